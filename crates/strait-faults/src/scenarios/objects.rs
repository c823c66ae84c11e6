//! Scenarios of objects that are built on channels: regions, data pipes and calls.

use std::os::fd::OwnedFd;

use strait::call::{CallEnd, CallError, PendingCall, Request};
use strait::pipe::{DataConsumer, DataProducer, PipeOptions};
use strait::region::{Region, RegionError};
use strait::{Deadline, Error, Handle, Outgoing, Wait};

use crate::program::actor::{Actor, Played, Stop, content};
use crate::program::scenarios::{only, two};

/// Returns the `N` handles of a message; stops the process if the handles were lost.
fn received<const N: usize>(handles: Option<Vec<Handle>>) -> Result<[Handle; N], Stop> {
    let lost = Stop::GaveUp(Error::HandlesLost { sent: N, arrived: 0 });
    let handles = handles.ok_or(lost)?;
    Ok(handles.try_into().expect("as many handles as were sent"))
}

/// Two processes use regions of each kind: immutable, writable by both, and writable only by its maker.
pub(crate) mod regions {
    use super::*;

    const SEALED: usize = 20_000;
    const SHARED: usize = 8192;

    /// If a `mmap` was made to fail, turns the error *read-only* into the error of a system call, so that the call is
    /// repeated.
    fn refused(failed: RegionError) -> Error {
        let error = failed.error;
        if error == Error::ReadOnly { Error::System { call: "mmap", code: 1 } } else { error }
    }

    pub(crate) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let sealed = actor.call(|| Ok(Region::sealed(&content(9, 0, SEALED))?))?;
        let shared = actor.call(|| Ok(Region::new(SHARED)?))?;
        let shared_map = actor.call(|| shared.map_writable(..).map_err(refused))?;
        let watched = actor.call(|| Ok(Region::new(SHARED)?))?;
        let watched_map = actor.call(|| watched.map_writable(..).map_err(refused))?;
        actor.call(|| Ok(watched.admit_no_writer()?))?;
        let handles = [&sealed, &shared, &watched].map(|region| Handle::from(region.clone()));
        actor.send_with(0, &channel, 3, handles.into())?;
        actor.call(|| Ok(watched_map.write_at(b"news", 100)?))?;
        actor.send(0, &channel, 4)?;
        actor.recv(1, &channel, 5)?;
        let mut answer = [0; 6];
        actor.call(|| Ok(shared_map.read_at(&mut answer, SHARED - 6)?))?;
        assert_eq!(&answer, b"answer");
        Ok(())
    }

    pub(crate) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let handles = received::<3>(actor.recv_with(0, &channel, 3)?)?;
        let [sealed, shared, watched] = handles.map(|handle| handle.into_region().expect("a region was sent"));
        let view = actor.call(|| sealed.view(..).map_err(refused))?;
        assert!(*view == content(9, 0, SEALED), "other bytes than were sealed");
        actor.call(|| match watched.map_writable(..).map(drop) {
            Err(failed) if failed.error == Error::ReadOnly => Ok(()),
            done => Ok(done.map(|()| panic!("a writer was admitted"))?),
        })?;
        actor.recv(0, &channel, 4)?;
        let map = actor.call(|| watched.map(..).map_err(refused))?;
        let mut news = [0; 4];
        actor.call(|| Ok(map.read_at(&mut news, 100)?))?;
        assert_eq!(&news, b"news");
        actor.call(|| Ok(shared.write_at(b"answer", SHARED - 6)?))?;
        actor.send(1, &channel, 5)
    }
}

/// Processes use a data pipe that is smaller than the stream, so both sides wait; each end moves.
pub(crate) mod pipe {
    use super::*;

    const CAPACITY: usize = 4096;
    const ALL: usize = 10_000;

    fn pair(actor: &Actor) -> Result<(DataProducer, DataConsumer), Stop> {
        actor.call(|| PipeOptions::new().capacity(CAPACITY).wait(Wait::Block).create())
    }

    fn producer(handles: Option<Vec<Handle>>) -> Result<DataProducer, Stop> {
        received(handles).map(|[handle]| handle.into_producer().expect("an end that writes was sent"))
    }

    fn consumer(handles: Option<Vec<Handle>>) -> Result<DataConsumer, Stop> {
        received(handles).map(|[handle]| handle.into_consumer().expect("an end that reads was sent"))
    }

    fn read_all(actor: &Actor, stream: usize, consumer: &DataConsumer) -> Played {
        while actor.read(stream, consumer, 1500)? > 0 {}
        Ok(())
    }

    pub(crate) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let (writes, reads) = pair(actor)?;
        actor.write(2, &writes, 1000)?;
        actor.send_with(0, &channel, 3, vec![reads.into()])?;
        actor.write(2, &writes, ALL)?;
        drop(writes);
        let writes = producer(actor.recv_with(1, &channel, 4)?)?;
        actor.write(3, &writes, ALL)?;
        drop(writes);
        actor.recv(1, &channel, 5)
    }

    pub(crate) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let reads = consumer(actor.recv_with(0, &channel, 3)?)?;
        read_all(actor, 2, &reads)?;
        let (writes, reads) = pair(actor)?;
        actor.send_with(1, &channel, 4, vec![writes.into()])?;
        read_all(actor, 3, &reads)?;
        actor.send(1, &channel, 5)
    }

    const REASON: u32 = 17;
    const ABORTED: Error = Error::Aborted { reason: REASON };

    /// Aborts a stream as its producer, and then another as its consumer.
    pub(crate) fn aborter(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let (writes, reads) = pair(actor)?;
        actor.send_with(0, &channel, 3, vec![reads.into()])?;
        actor.write(2, &writes, ALL)?;
        writes.abort(REASON);
        consumer(actor.recv_with(1, &channel, 4)?)?.abort(REASON);
        actor.recv(1, &channel, 5)
    }

    /// Reads all bytes of a stream and then the reason, and writes to another stream until it gets the reason.
    pub(crate) fn aborted(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let reads = consumer(actor.recv_with(0, &channel, 3)?)?;
        read_all(actor, 2, &reads)?;
        assert_eq!(reads.read_some(&mut [0], Deadline::NEVER), Err(ABORTED));
        let (writes, reads) = pair(actor)?;
        actor.send_with(1, &channel, 4, vec![reads.into()])?;
        actor.call(|| {
            loop {
                match writes.write_some(&[0; 1500], Deadline::NEVER) {
                    Ok(_) => {}
                    Err(ABORTED) => return Ok(()),
                    Err(error) => return Err(error),
                }
            }
        })?;
        actor.send(1, &channel, 5)
    }

    /// Reads the beginning of the stream, then sends the consumer on to another process.
    pub(crate) fn mover(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let [b, c] = two(sockets);
        let (b, c) = (actor.open(b)?, actor.open(c)?);
        let (writes, reads) = pair(actor)?;
        actor.send_with(0, &b, 3, vec![writes.into()])?;
        actor.read(2, &reads, 1000)?;
        actor.send_with(1, &c, 4, vec![reads.into()])?;
        actor.recv(3, &c, 1)
    }

    pub(crate) fn writer(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let writes = producer(actor.recv_with(0, &channel, 3)?)?;
        actor.write(2, &writes, ALL)
    }

    pub(crate) fn reader(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let channel = actor.open(only(sockets))?;
        let reads = consumer(actor.recv_with(1, &channel, 4)?)?;
        read_all(actor, 2, &reads)?;
        actor.send(3, &channel, 1)
    }
}

/// Several calls are in flight at a time. The answers come in another order, and one call gets none. One call goes in
/// the other direction.
pub(crate) mod calls {
    use super::*;

    /// For each call, the length of its request and of its reply in bytes, and the number of descriptors in each.
    const CALLS: [(usize, usize); 3] = [(8, 0), (300, 1), (70_000, 1)];
    /// The index of the call without an answer.
    const DROPPED: usize = 0;

    fn begin(actor: &Actor, end: &CallEnd, stream: usize, len: usize, files: usize) -> Result<PendingCall, Stop> {
        let (mut handles, mut begun) = (actor.files(files), None);
        actor.send_made(stream, |number| {
            let bytes = content(stream, number, len);
            let request = Outgoing::new(&bytes).handles(std::mem::take(&mut handles));
            match end.begin_call(request, Deadline::NEVER) {
                Ok(call) => begun = Some(call),
                Err(CallError::NotSent(refused)) => {
                    handles = refused.handles;
                    return Err(refused.error);
                }
                Err(other) => panic!("{other}"),
            }
            Ok(())
        })?;
        Ok(begun.expect("it was begun"))
    }

    /// Waits for the reply of a call and checks the reply. Returns false if there will be no reply.
    fn wait(actor: &Actor, call: PendingCall, stream: usize, len: usize, files: usize) -> Result<bool, Stop> {
        let wait = || match call.wait(Deadline::NEVER) {
            Ok(answer) => Ok(Some(answer)),
            Err(CallError::NotAnswered) => Ok(None),
            Err(CallError::OutcomeUnknown(error)) => Err(error),
            Err(other) => panic!("{other}"),
        };
        let Some(mut answer) = actor.ended(stream, |actor| actor.once(wait))? else { return Ok(false) };
        actor.taken(stream, answer.bytes(), len);
        if let Some(handles) = actor.handles(answer.take_handles())? {
            actor.check_files(handles, files);
        }
        Ok(true)
    }

    fn next(actor: &Actor, end: &CallEnd, stream: usize, len: usize, files: usize) -> Result<Request, Stop> {
        let next = || end.next_request(Deadline::NEVER);
        let mut request = actor.ended(stream, |actor| actor.again_if_refused(next))?;
        actor.taken(stream, request.bytes(), len);
        if let Some(handles) = actor.handles(request.take_handles())? {
            actor.check_files(handles, files);
        }
        Ok(request)
    }

    fn reply(actor: &Actor, request: Request, stream: usize, len: usize, files: usize) -> Played {
        let (_, mut replier) = request.into_parts();
        let mut handles = actor.files(files);
        actor.send_made(stream, |number| {
            let bytes = content(stream, number, len);
            let answer = Outgoing::new(&bytes).handles(std::mem::take(&mut handles));
            replier.reply(answer, Deadline::NEVER).map_err(|refused| {
                handles = refused.handles;
                refused.error
            })
        })
    }

    pub(crate) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let end = CallEnd::over(actor.open(only(sockets))?);
        let mut calls = Vec::new();
        for (len, files) in CALLS {
            calls.push(begin(actor, &end, 0, len, files)?);
        }
        for (index, (call, (len, files))) in calls.into_iter().zip(CALLS).enumerate() {
            assert_eq!(wait(actor, call, 2 + index, len, files)?, index != DROPPED, "whether it was answered");
        }
        let request = next(actor, &end, 1, 40, 1)?;
        reply(actor, request, 5, 50, 1)
    }

    pub(crate) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let end = CallEnd::over(actor.open(only(sockets))?);
        let mut requests = Vec::new();
        for (len, files) in CALLS {
            requests.push(next(actor, &end, 0, len, files)?);
        }
        for (index, (len, files)) in CALLS.into_iter().enumerate().rev() {
            let request = requests.pop().expect("as many as came");
            if index != DROPPED {
                reply(actor, request, 2 + index, len, files)?;
            }
        }
        let call = begin(actor, &end, 1, 40, 1)?;
        assert!(wait(actor, call, 5, 50, 1)?, "it was answered");
        Ok(())
    }
}
