//! Tests of a process that can map no more memory. The process keeps running, and threads of the library close every
//! handle and end that the process closes meanwhile.

mod common;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use common::{Actor, DEADLINE, SOON, parent, spawn, wait_until};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::call::CallEnd;
use strait::pipe::DataPipe;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Error, Handle, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("drops handles", drops_handles),
        ("closes an end", closes_an_end),
        ("closes an end with few descriptors", closes_an_end_with_few_descriptors),
        ("has an end", has_an_end),
        ("waits for an end", waits_for_an_end),
        ("holds an end", holds_an_end),
        ("receives with little memory", receives_with_little_memory),
        ("receives a request with little memory", receives_a_request_with_little_memory),
        ("receives a backlog with little memory", receives_a_backlog_with_little_memory),
    ]);
}

fn limit(of: Resource, current: Option<u64>) {
    let maximum = getrlimit(of).maximum;
    setrlimit(of, Rlimit { current: current.or(maximum), maximum }).unwrap();
}

/// Prevents further mappings in this process.
fn lack_memory() {
    lack_memory_but(0);
}

/// Prevents this process from mapping more than `few` further bytes.
fn lack_memory_but(few: u64) {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().next().unwrap().parse().unwrap();
    limit(Resource::As, Some(pages * rustix::param::page_size() as u64 + few));
}

/// Polls the channel until the peer has sent a message. The calls give the library occasion for deferred closes.
fn poll_until_told(channel: &Channel) {
    wait_until("the peer has answered", || match channel.try_recv() {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error, Error::WouldBlock);
            false
        }
    });
}

/// Drops messages with handles: one before the shortage if the argument says so, and one during the shortage.
fn drops_handles(argument: &str) {
    let channel = parent();
    if argument == "after others" {
        drop(channel.recv_by(DEADLINE).unwrap());
        poll_until_told(&channel);
    }
    let message = channel.recv_by(DEADLINE).unwrap();
    lack_memory();
    drop(message);
    limit(Resource::As, None);
    channel.send(b"dropped").unwrap();
    poll_until_told(&channel);
}

/// Sends one end of a pipe, runs `meanwhile`, and waits until every copy of the end is closed.
fn is_closed(channel: &Channel, mut meanwhile: impl FnMut()) {
    let (mut reader, writer) = std::io::pipe().unwrap();
    channel.send(Outgoing::new(b"a pipe").handle(OwnedFd::from(writer))).unwrap();
    meanwhile();
    assert_eq!(reader.read(&mut [0]).unwrap(), 0);
    channel.send(b"it is closed").unwrap();
}

fn spawn_with_argument(role: &str, argument: &str) -> (Actor, Channel) {
    common::spawn_with(role, argument, &strait::Options::new())
}

/// Shows that a thread of the library does not end the process when it finds no memory. An earlier thread left its
/// stack for the new thread, so the new thread can start.
#[test]
fn a_thread_that_starts_without_memory_does_not_end_the_process() {
    let (actor, channel) = spawn_with_argument("drops handles", "after others");
    is_closed(&channel, || {});
    is_closed(&channel, || assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"dropped"));
    common::finish(actor);
}

/// Shows that handles dropped while no thread could be started are closed later.
#[test]
fn handles_for_whose_closing_there_was_no_thread_are_closed_later() {
    let (actor, channel) = spawn_with_argument("drops handles", "");
    is_closed(&channel, || assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"dropped"));
    common::finish(actor);
}

/// Closes an end while the process has neither a free descriptor nor memory for a thread. The other end has moved to a
/// process to which this process has no link; or messages of the end carry ends whose other ends are in such a process.
fn closes_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    // This process must not learn of the move before its descriptors are used up.
    let mut go = File::from(channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_fd().unwrap());
    assert_eq!(go.read(&mut [0]).unwrap(), 0);
    drop(go);
    limit(Resource::Nofile, Some(64));
    let all: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    // Reading the size of the mapped memory needs a descriptor.
    let all = drop_one_and(all, lack_memory);
    drop(end);
    drop(all);
    limit(Resource::Nofile, None);
    limit(Resource::As, None);
    channel.send(b"closed").unwrap();
    poll_until_told(&channel);
}

/// Frees one descriptor, runs `act`, and uses the descriptor up again.
fn drop_one_and(mut all: Vec<File>, act: impl FnOnce()) -> Vec<File> {
    drop(all.pop());
    act();
    all.push(File::open("/dev/null").unwrap());
    all
}

fn has_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    channel.send(b"saw it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that an end dropped while no thread could be started is closed later.
#[test]
fn an_end_for_whose_closing_there_was_no_thread_is_closed_later() {
    let (closing, to_closing) = spawn("closes an end");
    let (seeing, to_seeing) = spawn("has an end");
    let (one, other) = Channel::pair().unwrap();
    to_closing.send(Outgoing::new(b"").handle(one)).unwrap();
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    let (go, say) = std::io::pipe().unwrap();
    to_closing.send(Outgoing::new(b"").handle(OwnedFd::from(go))).unwrap();
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    drop(say);
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"closed");
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"saw it");
    to_closing.send(b"it is closed").unwrap();
    drop((to_closing, to_seeing));
    common::finish(closing);
    common::finish(seeing);
}

#[test]
fn an_end_in_a_message_that_was_dropped_without_descriptors_is_closed_later() {
    drop_message_with_end(&[]);
}

/// Shows that an end is closed later although it comes behind files in the socket, and without a thread the files
/// cannot be received.
#[test]
fn an_end_behind_files_that_were_dropped_without_descriptors_and_threads_is_closed_later() {
    let file = || File::open("/dev/null").unwrap();
    drop_message_with_end(&[file(), file()]);
}

/// Makes a process drop a message with an end, behind a message with `files`, while the process lacks descriptors and
/// memory.
fn drop_message_with_end(files: &[File]) {
    let (closing, to_closing) = spawn("closes an end");
    let (seeing, to_seeing) = spawn("has an end");
    let (carrier, theirs) = Channel::pair().unwrap();
    to_closing.send(Outgoing::new(b"").handle(theirs)).unwrap();
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    let (go, say) = std::io::pipe().unwrap();
    to_closing.send(Outgoing::new(b"").handle(OwnedFd::from(go))).unwrap();
    let (one, other) = Channel::pair().unwrap();
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    if !files.is_empty() {
        let files = files.iter().map(|file| file.try_clone().unwrap().into());
        carrier.send_by(Outgoing::new(b"nor this").handles(files.collect::<Vec<Handle>>()), DEADLINE).unwrap();
    }
    carrier.send_by(Outgoing::new(b"nobody reads this").handle(one), DEADLINE).unwrap();
    drop(say);
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"closed");
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"saw it");
    assert_eq!(carrier.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    to_closing.send(b"it is closed").unwrap();
    drop((to_closing, to_seeing));
    common::finish(closing);
    common::finish(seeing);
}

/// Closes an end while few descriptors are left, so that the peer has reached its limit here. A message of the end
/// carries another end.
fn closes_an_end_with_few_descriptors(_: &str) {
    limit(Resource::Nofile, Some(400));
    let channel = parent();
    let mut handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    let _keeps_files = handles.pop().unwrap().into_channel().unwrap();
    let end = handles.pop().unwrap().into_channel().unwrap();
    channel.send(b"has it").unwrap();
    let mut go = File::from(channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_fd().unwrap());
    assert_eq!(go.read(&mut [0]).unwrap(), 0);
    drop(go);
    let all: Vec<File> = (0..320 - common::descriptors()).map(|_| File::open("/dev/null").unwrap()).collect();
    drop(end);
    drop(all);
    limit(Resource::Nofile, None);
    channel.send(b"closed").unwrap();
    poll_until_told(&channel);
}

#[test]
fn an_end_in_a_message_that_was_dropped_with_few_descriptors_left_is_closed_later() {
    let (closing, to_closing) = spawn("closes an end with few descriptors");
    let (seeing, to_seeing) = spawn("has an end");
    let ((carrier, theirs), (files, their_files)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
    to_closing.send(Outgoing::new(b"").handle(theirs).handle(their_files)).unwrap();
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    let as_many_as_there_may_be = (0..64).map(|_| File::open("/dev/null").unwrap().into());
    files.send(Outgoing::new(b"").handles(as_many_as_there_may_be.collect::<Vec<Handle>>())).unwrap();
    let (go, say) = std::io::pipe().unwrap();
    to_closing.send(Outgoing::new(b"").handle(OwnedFd::from(go))).unwrap();
    let (one, other) = Channel::pair().unwrap();
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    carrier.send_by(Outgoing::new(b"nobody reads this").handle(one), DEADLINE).unwrap();
    drop(say);
    assert_eq!(to_closing.recv_by(DEADLINE).unwrap().bytes(), b"closed");
    assert_eq!(to_seeing.recv_by(DEADLINE).unwrap().bytes(), b"saw it");
    to_closing.send(b"it is closed").unwrap();
    drop((to_closing, to_seeing));
    common::finish(closing);
    common::finish(seeing);
}

/// The memory for the lane to another process, in bytes; not enough for the ready bitmap by which that process would
/// notify.
const LITTLE: u64 = 64 << 10;

/// Waits in a wait set for an event of an end, with little memory.
fn waits_for_an_end(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&end, 1, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::with_capacity(8);
    lack_memory_but(LITTLE);
    channel.send(b"waits").unwrap();
    assert_eq!(set.wait(&mut events, SOON).unwrap(), 1, "the set reported no event in time");
    assert_eq!(end.try_recv().unwrap_err(), Error::PeerClosed);
    channel.send(b"was told").unwrap();
}

fn holds_an_end(_: &str) {
    let channel = parent();
    let _end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that a wait set reports the death of a peer that cannot be asked for notifications; the set does not watch the
/// link to such a peer.
#[test]
fn a_member_whose_peer_cannot_be_told_that_it_listens_is_told_of_the_peers_death() {
    let (waiting, to_waiting) = spawn("waits for an end");
    let (mut holding, to_holding) = spawn("holds an end");
    let (one, other) = Channel::pair().unwrap();
    to_waiting.send(Outgoing::new(b"").handle(one)).unwrap();
    assert_eq!(to_waiting.recv_by(DEADLINE).unwrap().bytes(), b"waits");
    to_holding.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(to_holding.recv_by(DEADLINE).unwrap().bytes(), b"has it");
    // The pause gives the set time to follow the end, invisible to this process. A set that follows later must pass
    // too.
    std::thread::sleep(Duration::from_millis(300));
    holding.0.kill().unwrap();
    assert_eq!(to_waiting.recv_by(DEADLINE).unwrap().bytes(), b"was told");
    common::finish(waiting);
}

/// The size in bytes of a message for which a process does not find memory: more than the 64 MiB of address space that
/// an allocator may hold in reserve for a thread.
const LARGE: usize = 80 << 20;

/// Takes a large message out of its ring, and then receives the message while there is no memory for another copy.
fn receives_with_little_memory(how: &str) {
    let channel = parent();
    if how == "looks at what is queued" {
        // Behind the large message the ring has grown, so a look takes the message out of the ring.
        wait_until("all messages have come", || channel.status().unwrap().messages == 1001);
    } else {
        wait_until("the message has come", || channel.peek().unwrap().is_some());
        channel.rehome(DEADLINE).unwrap();
    }
    lack_memory_but(LARGE as u64 / 4);
    let received = match channel.try_recv() {
        Err(error) => {
            assert!(matches!(error, Error::NoMemory { .. }), "{error}");
            limit(Resource::As, None);
            channel.try_recv().unwrap()
        }
        Ok(received) => received,
    };
    limit(Resource::As, None);
    assert!(received.bytes() == common::pattern(1, LARGE), "another message of {} bytes", received.bytes().len());
    channel.send(b"received").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"small");
}

/// Shows that a message that was taken out of its ring is not lost if there is no memory to receive it.
#[test]
fn a_message_out_of_its_ring_is_received_once_there_is_memory() {
    for how in ["looks at what is queued", "moves"] {
        let (actor, channel) = spawn_with_argument("receives with little memory", how);
        channel.send(common::pattern(1, LARGE).as_slice()).unwrap();
        (0..1000).for_each(|_| channel.send_by(b"small", DEADLINE).unwrap());
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"received");
        common::finish(actor);
    }
}

/// The bytes of a long request in sealed memory, with the 16 bytes that follow the payload.
const LONG: usize = 256 << 20;

/// Has memory to map a long request in sealed memory, but not to copy the request.
fn receives_a_request_with_little_memory(_: &str) {
    let end = CallEnd::over(parent());
    lack_memory_but(LONG as u64 + (64 << 20));
    let failed = end.next_request(SOON).unwrap_err();
    assert!(matches!(failed, Error::NoMemory { .. }), "{failed}");
    limit(Resource::As, None);
    let request = end.next_request(DEADLINE).unwrap();
    assert_eq!((request.bytes().len(), &request.bytes()[..4]), (LONG - 16, &b"long"[..]));
    request.reply(b"there", DEADLINE).unwrap();
}

/// Shows that a call end that lacks the memory for a request gets an error, loses nothing, and receives the request
/// later.
#[test]
fn a_request_for_which_there_is_no_memory_is_received_later() {
    let (actor, channel) = spawn("receives a request with little memory");
    let mut request = channel.reserve_sealed(LONG).unwrap();
    request.bytes()[..4].copy_from_slice(b"long");
    // The request has the number 7.
    request.bytes()[LONG - 16..][..9].copy_from_slice(&[7, 0, 0, 0, 0, 0, 0, 0, 1]);
    request.commit(DEADLINE).unwrap();
    let reply = channel.recv_by(DEADLINE).unwrap();
    assert_eq!(&reply.bytes()[..6], b"there\x07");
    actor.wait_for_success();
}

/// The bytes of a data pipe for which a process does not find memory.
const LARGE_PIPE: usize = 256 << 20;

/// Receives messages from two ends, joined by the parent, while there is no memory for the large data pipes among the
/// handles.
fn receives_a_backlog_with_little_memory(_: &str) {
    let channel = parent();
    let end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"fused");
    lack_memory_but(LARGE_PIPE as u64 / 16);
    let mut first = end.recv_by(DEADLINE).unwrap();
    limit(Resource::As, None);
    assert_eq!(first.bytes(), b"first");
    let mut consumer = first.take_handles().unwrap().remove(0).into_consumer().unwrap();
    let mut read = String::new();
    consumer.read_to_string(&mut read).unwrap();
    assert_eq!(read, "in a pipe");

    let mut second = end.recv_by(DEADLINE).unwrap();
    assert_eq!(second.bytes(), b"second");
    assert_eq!(second.take_handles().unwrap_err(), Error::HandlesLost { sent: 4, arrived: 0 });

    let mut third = end.recv_by(DEADLINE).unwrap();
    assert_eq!(third.bytes(), b"third");
    let rider = third.take_handles().unwrap().remove(0).into_channel().unwrap();
    let mut inner = rider.recv_by(DEADLINE).unwrap();
    assert_eq!(inner.bytes(), b"in the rider");
    assert_eq!(inner.take_handles().unwrap_err(), Error::HandlesLost { sent: 1, arrived: 0 });
    rider.send(b"from the rider").unwrap();

    let mut last = end.recv_by(DEADLINE).unwrap();
    assert_eq!(last.bytes(), b"last");
    assert_eq!(common::content_of(last.take_handles().unwrap().remove(0)), b"a file");
    end.send(b"all have come").unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap().bytes(), b"behind them");
}

/// Shows that a receiver without memory for a handle of one unreceived message of a fuse loses the handles of that
/// message alone. The message and all others arrive, and so do the handles of the others. The lost handles are closed,
/// and no lost producer counts as finished.
#[test]
fn a_handle_for_which_there_is_no_memory_is_lost_alone() {
    let (actor, channel) = spawn("receives a backlog with little memory");
    let ((a, b), (c, d)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
    channel.send(Outgoing::new(b"").handle(d)).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"has it");

    let (mut producer, consumer) = DataPipe::pair(4096).unwrap();
    producer.write_all(b"in a pipe").unwrap();
    drop(producer);
    a.send(Outgoing::new(b"first").handle(consumer)).unwrap();

    let pipe = |capacity| DataPipe::pair(capacity).unwrap();
    let ((small, from_small), (large, from_large)) = (pipe(4096), pipe(LARGE_PIPE));
    let (end, its_other) = Channel::pair().unwrap();
    let second = Outgoing::new(b"second").handle(small).handle(common::file_with(b"lost")).handle(large).handle(end);
    a.send_by(second, DEADLINE).unwrap();

    let (rider, to_rider) = Channel::pair().unwrap();
    let (also_large, from_also_large) = pipe(LARGE_PIPE);
    to_rider.send(Outgoing::new(b"in the rider").handle(also_large)).unwrap();
    a.send(Outgoing::new(b"third").handle(rider)).unwrap();
    a.send(Outgoing::new(b"last").handle(common::file_with(b"a file"))).unwrap();

    b.fuse(c, DEADLINE).unwrap();
    channel.send(b"fused").unwrap();
    assert_eq!(a.recv_by(DEADLINE).unwrap().bytes(), b"all have come");
    assert_eq!(to_rider.recv_by(DEADLINE).unwrap().bytes(), b"from the rider");
    assert_eq!(its_other.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    for consumer in [from_small, from_large, from_also_large] {
        assert_eq!(consumer.read_some(&mut [0], DEADLINE), Err(Error::PeerClosed));
    }
    a.send(b"behind them").unwrap();
    common::finish(actor);
}
