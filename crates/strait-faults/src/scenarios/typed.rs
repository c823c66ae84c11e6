//! The scenarios of typed messages and of typed calls with handles in the fields of values: no handle is lost, and
//! none is leaked.

use std::os::fd::OwnedFd;

use serde::Serialize;
use serde::de::DeserializeOwned;
use strait::call::CallError as Outcome;
use strait::{Deadline, Error, Handle};
use strait_typed::{CallError, End, Fd, RecvError, SendError, Typed, TypedCalls, TypedRequest};

use crate::program::actor::{Actor, Played, Stop, options};
use crate::program::scenarios::only;

/// A value with handles in several places: its number, files, an end for the answer, and a text that makes some
/// messages long.
type Asked = (u32, Vec<Fd>, Option<End<u32, ()>>, String);

/// The last value: a number and a file.
type Answered = (u32, Option<Fd>);

/// The number of files and the length of the text of each message.
const MESSAGES: [(usize, usize); 4] = [(0, 0), (2, 10), (1, 100_000), (3, 10)];

fn files(actor: &Actor, count: usize) -> Vec<Fd> {
    actor.files(count).into_iter().map(|handle| Fd::new(handle.into_fd().expect("a descriptor"))).collect()
}

fn check_files(actor: &Actor, files: impl IntoIterator<Item = Fd>, count: usize) {
    let handles = files.into_iter().map(|file| Handle::from(file.into_fd().expect("a descriptor"))).collect();
    actor.check_files(handles, count);
}

/// Sends the next value of a stream. `is_whole` tells whether all handles are in the value, which must hold while the
/// value is unsent.
#[track_caller]
fn send<S: Serialize, R>(
    actor: &Actor,
    stream: usize,
    typed: &Typed<S, R>,
    value: &S,
    is_whole: impl Fn(&S) -> bool,
) -> Played {
    actor.send_made(stream, |_| {
        typed.send(value).map_err(|refused| {
            assert!(is_whole(value), "handles of a value that was not sent: {refused}");
            match refused {
                SendError::Channel(error) => error,
                other => panic!("{other}"),
            }
        })
    })
}

/// Receives the next value of a stream; `number_of` returns the number of a value. `None` if its handles were lost
/// for lack of descriptors.
#[track_caller]
fn recv<S, R: DeserializeOwned + Send + 'static>(
    actor: &Actor,
    stream: usize,
    typed: &Typed<S, R>,
    number_of: impl Fn(&R) -> u32,
) -> Result<Option<R>, Stop> {
    let receive = || match typed.recv() {
        Ok(value) => Ok(Ok(value)),
        Err(RecvError::Channel(lost @ Error::HandlesLost { .. })) => Ok(Err(lost)),
        Err(RecvError::Channel(error)) => Err(error),
        Err(other) => panic!("{other}"),
    };
    let received = actor.ended(stream, |actor| actor.again_if_refused(receive))?;
    actor.taken_value(stream, received.as_ref().ok().map(number_of));
    match received {
        Ok(value) => Ok(Some(value)),
        Err(lost) => actor.handles(Err(lost)).map(|_| None),
    }
}

/// Sends values with files and ends; gets an answer over each end, and in the end a file over the channel.
pub(crate) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
    let typed = Typed::<Asked, Answered>::over(actor.open(only(sockets))?);
    for (number, (count, len)) in MESSAGES.into_iter().enumerate() {
        let (ours, theirs) = actor.call(|| options().pair())?;
        let ours = Typed::<(), u32>::over(ours);
        let end = End::from(Typed::over(theirs));
        let value = (number as u32, files(actor, count), Some(end), "x".repeat(len));
        send(actor, 0, &typed, &value, |(_, files, end, _)| {
            files.iter().all(|file| !file.is_sent()) && end.as_ref().is_some_and(|end| !end.is_sent())
        })?;
        match recv(actor, 2 + number, &ours, |number| *number) {
            // The end was lost with the other handles of its value.
            Err(Stop::Closed) if actor.others_may_be_refused() => {}
            received => drop(received?),
        }
    }
    if let Some((_, file)) = recv(actor, 1, &typed, |(number, _)| *number)? {
        check_files(actor, file, 1);
    }
    Ok(())
}

/// Receives the values, and answers over the ends in the values.
pub(crate) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
    let typed = Typed::<Answered, Asked>::over(actor.open(only(sockets))?);
    for (number, (count, len)) in MESSAGES.into_iter().enumerate() {
        let Some((_, files, end, text)) = recv(actor, 0, &typed, |(number, ..)| *number)? else { continue };
        assert_eq!(text.len(), len, "another text than was sent");
        check_files(actor, files, count);
        let answers = end.and_then(End::into_typed).expect("an end");
        send(actor, 2 + number, &answers, &0, |_| true)?;
    }
    let value = (0, files(actor, 1).pop());
    send(actor, 1, &typed, &value, |(_, file)| file.as_ref().is_some_and(|file| !file.is_sent()))
}

/// Typed calls with files as fields of requests and replies.
pub(crate) mod calls {
    use super::*;

    /// A request: a number, at least one file, and a text that makes some requests long.
    type Request = (u32, Vec<Fd>, String);
    /// A reply: the number of the request, and a file.
    type Reply = (u32, Option<Fd>);

    /// The number of files and the length of the text of each request.
    const REQUESTS: [(usize, usize); 3] = [(1, 10), (3, 100_000), (2, 0)];

    /// Makes the next call. Returns `None` if there is no reply, because its handles or those of the request were lost.
    #[track_caller]
    fn call(actor: &Actor, calls: &TypedCalls<Request, Reply>, request: &Request) -> Result<Option<Reply>, Stop> {
        let is_whole = || request.1.iter().all(|file| !file.is_sent());
        let mut answer = None;
        actor.send_made(0, |_| {
            loop {
                answer = Some(match calls.call(request, Deadline::NEVER) {
                    Ok(reply) => Ok(Some(reply)),
                    Err(CallError::Call(Outcome::NotSent(refused))) => {
                        assert!(is_whole(), "handles of a request that was not sent: {refused}");
                        return Err(refused.error);
                    }
                    // Before the first request, the ends exchange their types by an internal call.
                    Err(CallError::Call(Outcome::NotAnswered)) if is_whole() => continue,
                    Err(CallError::Call(Outcome::OutcomeUnknown(error))) if is_whole() => return Err(error),
                    Err(CallError::Call(Outcome::NotAnswered)) => Ok(None),
                    Err(CallError::Call(Outcome::OutcomeUnknown(error))) => Err(error),
                    Err(other) => panic!("{other}"),
                });
                return Ok(());
            }
        })?;
        match answer.expect("the call has ended") {
            Ok(Some(reply)) => Ok(Some(reply)),
            Ok(None) => {
                assert!(actor.others_may_be_refused() || actor.may_be_refused(), "the request was not answered");
                Ok(None)
            }
            Err(lost @ Error::HandlesLost { .. }) => actor.handles(Err(lost)).map(|_| None),
            Err(error) => actor.once(|| Err(error)),
        }
    }

    pub(crate) fn one(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let calls = TypedCalls::<Request, Reply>::over(actor.open(only(sockets))?);
        for (number, (count, len)) in REQUESTS.into_iter().enumerate() {
            let request = (number as u32, files(actor, count), "x".repeat(len));
            if let Some((answered, file)) = call(actor, &calls, &request)? {
                assert_eq!(answered, number as u32, "the reply of another request");
                check_files(actor, file, 1);
            }
        }
        Ok(())
    }

    pub(crate) fn other(actor: &Actor, sockets: Vec<OwnedFd>) -> Played {
        let calls = TypedCalls::<Request, Reply>::over(actor.open(only(sockets))?);
        for (count, len) in REQUESTS {
            let next = || match calls.next_request(Deadline::NEVER) {
                Ok(request) => Ok(Ok(request)),
                Err(RecvError::Channel(lost @ Error::HandlesLost { .. })) => Ok(Err(lost)),
                Err(RecvError::Channel(error)) => Err(error),
                Err(other) => panic!("{other}"),
            };
            let next = actor.ended(0, |actor| actor.again_if_refused(next))?;
            let number_of = |request: &TypedRequest<Request, Reply>| request.get().map(|(number, ..)| *number);
            actor.taken_value(0, next.as_ref().ok().and_then(number_of));
            let mut request = match next {
                Ok(request) => request,
                Err(lost) => {
                    actor.handles(Err(lost))?;
                    continue;
                }
            };
            let (number, received, text) = request.take();
            assert_eq!(text.len(), len, "another text than was sent");
            check_files(actor, received, count);
            let reply: Reply = (number, files(actor, 1).pop());
            actor.once(|| {
                request.reply(&reply, Deadline::NEVER).map_err(|refused| {
                    assert!(reply.1.as_ref().is_some_and(|file| !file.is_sent()), "the file of a reply: {refused}");
                    match refused {
                        SendError::Channel(error) => error,
                        other => panic!("{other}"),
                    }
                })
            })?;
        }
        Ok(())
    }
}
