//! Calls: requests that are answered, over a channel.
//!
//! Each message has a [trailer](wire) that says which call it belongs to. Whichever thread waits for something receives for all
//! ([`routes`] sorts what comes), and hands that over to another when it has what it wants: there is no thread for it, and an
//! end that is used by one thread makes no detour. Where several share a processor they let each other run before they sleep
//! ([`pauses`]), and wake the peer once for all.
//!
//! A thread that finds no room to send receives meanwhile, if nobody else does. As each end takes no more calls at a time than the
//! other makes, what is received always finds a place. So two ends that call each other, with both rings full, go on.

mod ground;
mod numbers;
mod pauses;
mod places;
mod routes;
mod shared;
#[cfg(test)]
mod tests;
mod waiting;
mod wire;

pub use routes::CallCounters;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use crate::channel::handle::Handle;
use crate::channel::message::{Message, Outgoing};
use crate::channel::{Channel, SendError, WakeOnDrop};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::quota::{tell, told};
use places::Answer;
use routes::{Queued, Routes};
use shared::Shared;
use waiting::Waits;
use wire::Kind;

/// Calls of one end that may be without an answer, unless options say otherwise.
const CALLS: usize = 1024;

/// Batches of messages that a reactor takes from an end, before others have their turn.
const BATCHES: usize = 16;

/// An end of a channel that calls the other, and is called by it.
///
/// Both ends of the channel must be one of these. Any number of threads may call and serve at the same time, through `&self`;
/// replies come in any order, each to its call.
///
/// ```
/// use std::time::Duration;
/// use strait::{CallEnd, Channel};
/// let (a, b) = Channel::pair()?; // One of them may be in another process.
/// let (client, server) = (CallEnd::over(a), CallEnd::over(b));
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let request = server.next_request(Duration::from_secs(10))?;
///         let answer = request.bytes().to_ascii_uppercase();
///         request.reply(&answer).map_err(strait::Error::from)
///     });
///     let reply = client.call(b"hello", Duration::from_secs(10)).expect("an answer");
///     assert_eq!(reply.bytes(), b"HELLO");
/// });
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # When it fails
/// A call that fails says whether it may have been carried out: see [`CallError`]. A server that drops a [`Request`] without an
/// answer has the caller told at once.
///
/// # Who receives
/// Whichever thread waits, for a reply or a request, receives for all of them. If no thread of this end waits for anything, what
/// comes stays in the channel.
#[derive(Debug)]
pub struct CallEnd {
    shared: Arc<Shared>,
}

/// How many calls there may be.
///
/// | option | default |
/// |---|---|
/// | [`calls`](Self::calls) | 1024 |
/// | [`requests`](Self::requests) | 1024 |
#[derive(Clone, Copy, Debug)]
pub struct CallOptions {
    calls: usize,
    requests: usize,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self { calls: CALLS, requests: CALLS }
    }
}

impl CallOptions {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Calls of this end that may be without an answer at a time, at least 1; more wait. Not more than the other end takes. An answer
    /// that has come counts until it is taken from its [`PendingCall`], or that is dropped.
    #[must_use]
    pub fn calls(mut self, most: usize) -> Self {
        self.calls = most.max(1);
        self
    }

    /// Calls of the other end that may be without an answer at a time: a peer that makes more is a bad one. Each is held here
    /// in private memory, whole, from when it was received until it is served.
    #[must_use]
    pub fn requests(mut self, most: usize) -> Self {
        self.requests = most;
        self
    }

    /// Makes an end of calls of an end of a channel. From here on nothing else may be sent or received on it.
    pub fn over(&self, channel: Channel) -> CallEnd {
        CallEnd { shared: Arc::new(Shared::new(channel, Routes::new(self.calls, self.requests))) }
    }
}

/// Why a call has no reply.
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The request was never sent: it was not carried out. Its handles come back.
    NotSent(SendError),
    /// The request was sent, and there will be no reply: the deadline has passed, or the peer is gone. Whether it was carried out
    /// is unknown. A reply that comes after the deadline is dropped.
    OutcomeUnknown(Error),
    /// The server has dropped the request without an answer. What it did with it before is the server's to say.
    NotAnswered,
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotSent(failed) => write!(f, "the request was not sent: {failed}"),
            Self::OutcomeUnknown(Error::TimedOut) => write!(
                f,
                "the request was sent, and no reply came before the deadline: whether it was carried out is unknown; \
                 do not repeat the call unless that does no harm"
            ),
            Self::OutcomeUnknown(Error::WouldBlock) => write!(
                f,
                "the request was sent, and no reply is there yet: poll again or wait for it; if the call was \
                 cancelled, do not repeat it unless that does no harm"
            ),
            Self::OutcomeUnknown(Error::PeerClosed) => write!(
                f,
                "the request was sent, and the peer closed its end, or its process ended, before it replied: whether \
                 it was carried out is unknown; close this end, and do not repeat the call over another channel \
                 unless that does no harm"
            ),
            Self::OutcomeUnknown(error) => write!(
                f,
                "the request was sent, and whether it was carried out is unknown; do not repeat the call unless that \
                 does no harm: {error}"
            ),
            Self::NotAnswered => write!(
                f,
                "the server dropped the request without a reply: look there for the reason; do not repeat the call \
                 unless that does no harm"
            ),
        }
    }
}

impl std::error::Error for CallError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NotSent(failed) => Some(failed),
            Self::OutcomeUnknown(error) => Some(error),
            Self::NotAnswered => None,
        }
    }
}

impl CallEnd {
    /// An end of calls of an end of a channel, with the default [`CallOptions`].
    pub fn over(channel: Channel) -> Self {
        CallOptions::new().over(channel)
    }

    /// Calls the other end and waits for its reply until the deadline, which holds for sending too.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call<'a>(
        &self,
        request: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<Message, CallError> {
        let deadline = deadline.into();
        // Nothing of the user's is called between this and the wait, as the peer may not be woken yet.
        let (id, deferred_wake) = self.shared.begin(request.into(), deadline, true).map_err(|failed| {
            tell();
            CallError::NotSent(failed)
        })?;
        PendingCall { shared: self.shared.clone(), id: Some(id) }.wait_on(deadline, deferred_wake)
    }

    /// The same, and serves requests of the other end while it waits: what one that serves may have to do before it can answer.
    /// `serve` is called by this thread, outside of all locks, and may call in turn.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call_serving<'a>(
        &self,
        request: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
        mut serve: impl FnMut(Request),
    ) -> Result<Message, CallError> {
        let deadline = deadline.into();
        let mut pending = self.begin_call(request, deadline)?;
        let Some(id) = pending.id else { return Err(CallError::NotAnswered) };
        loop {
            let find = |routes: &mut Routes| match routes.take_answer(id) {
                Some(answer) => Some(Ok(answer)),
                None => routes.requests.pop_front().map(Err),
            };
            let found = self.shared.wait_until(Waits::Either(id), deadline, None, find);
            match told(found).map_err(CallError::OutcomeUnknown)? {
                Ok(answer) => return pending.answered(answer),
                Err(queued) => serve(self.request(queued)),
            }
        }
    }

    fn request(&self, Queued { id, message }: Queued) -> Request {
        let replier = Replier { shared: self.shared.clone(), id, answered: false };
        Request { message, replier }
    }

    /// Sends a request, and waits for room for it until the deadline; its reply is had from what this returns.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub fn begin_call<'a>(
        &self,
        request: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<PendingCall, CallError> {
        let begun = self.shared.begin(request.into(), deadline.into(), false);
        tell();
        let (id, _) = begun.map_err(CallError::NotSent)?;
        Ok(PendingCall { shared: self.shared.clone(), id: Some(id) })
    }

    /// The next request of the other end; waits for it until the deadline.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`]; [`Error::BadPeer`], as what is no call, or more than there may be;
    /// otherwise as [`Channel::recv_to`].
    pub fn next_request(&self, deadline: impl Into<Deadline>) -> Result<Request, Error> {
        let next = |routes: &mut Routes| routes.requests.pop_front();
        told(self.shared.wait_until(Waits::Request, deadline.into(), None, next)).map(|queued| self.request(queued))
    }

    /// What was counted.
    pub fn counters(&self) -> CallCounters {
        self.shared.routes().counters
    }

    /// Calls of this end that were not answered yet, those among them for which nobody waits any more.
    pub fn under_way(&self) -> usize {
        self.shared.routes().in_flight()
    }

    /// The channel below, to look at: who the peer is, what was counted. Nothing is to be sent or received on it.
    pub fn channel(&self) -> &Channel {
        &self.shared.channel
    }
}

/// A call whose reply has not come yet. Dropped, it is [cancelled](Self::cancel).
#[derive(Debug)]
pub struct PendingCall {
    shared: Arc<Shared>,
    /// `None` once it was answered.
    id: Option<u64>,
}

impl PendingCall {
    /// Waits for the reply until the deadline. After that the call is cancelled.
    ///
    /// # Errors
    /// [`CallError::OutcomeUnknown`], [`CallError::NotAnswered`].
    pub fn wait(mut self, deadline: impl Into<Deadline>) -> Result<Message, CallError> {
        self.wait_on(deadline.into(), None)
    }

    /// The reply, if it is there now. Otherwise [`Error::WouldBlock`] in [`CallError::OutcomeUnknown`], and the call goes on.
    ///
    /// # Errors
    /// As [`PendingCall::wait`].
    pub fn poll(&mut self) -> Result<Message, CallError> {
        self.wait_on(Deadline::NOW, None)
    }

    /// The peer is woken before this sleeps.
    fn wait_on(&mut self, deadline: Deadline, deferred_wake: Option<WakeOnDrop>) -> Result<Message, CallError> {
        let Some(id) = self.id else { return Err(CallError::NotAnswered) };
        let find = |routes: &mut Routes| routes.take_answer(id);
        let answer = self.shared.wait_until(Waits::Reply(id), deadline, deferred_wake, find);
        tell();
        match answer {
            Ok(answer) => self.answered(answer),
            Err(error) => Err(CallError::OutcomeUnknown(error)),
        }
    }

    fn answered(&mut self, answer: Answer) -> Result<Message, CallError> {
        self.id = None;
        match answer {
            Answer::Reply(message) => Ok(message),
            Answer::None => Err(CallError::NotAnswered),
        }
    }

    /// Tells the server that nobody waits any more. A request that it has not begun with is never begun with; otherwise it goes on
    /// unless it looks at [`Request::is_cancelled`]. A reply that comes still is dropped.
    pub fn cancel(self) {
        drop(self);
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        if let Some(id) = self.id
            && !self.shared.is_elsewhere()
        {
            self.shared.cancel(id);
        }
    }
}

/// A request to be answered. Dropped without an answer, it has the caller told so.
#[derive(Debug)]
pub struct Request {
    message: Message,
    replier: Replier,
}

impl Request {
    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.message.bytes()
    }

    /// As [`Message::take_handles`].
    ///
    /// # Errors
    /// As there.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.message.take_handles()
    }

    /// Whether nobody waits for the answer any more, as far as is known here. Takes a lock.
    pub fn is_cancelled(&self) -> bool {
        self.replier.is_cancelled()
    }

    /// Answers it; waits for room as long as it takes.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    pub fn reply<'a>(self, answer: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.replier.reply(answer)
    }

    /// The request, and what answers it, each to go its own way.
    pub fn into_parts(self) -> (Message, Replier) {
        (self.message, self.replier)
    }
}

/// What answers a request. Dropped without an answer, it has the caller told so.
#[derive(Debug)]
pub struct Replier {
    shared: Arc<Shared>,
    id: u64,
    answered: bool,
}

impl Replier {
    /// Whether nobody waits for the answer any more, as far as is known here. Takes a lock.
    pub fn is_cancelled(&self) -> bool {
        !self.answered && !self.shared.is_elsewhere() && self.shared.routes().is_cancelled(self.id)
    }

    /// Answers the request; waits for room as long as it takes.
    ///
    /// # Errors
    /// As [`Channel::send_by`]; the caller is told that there will be no answer.
    pub fn reply<'a>(mut self, answer: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.reply_by(answer, Deadline::NEVER)
    }

    /// Answers the request; waits for room until the deadline. After an error it can be answered still.
    ///
    /// # Panics
    /// If it was answered before.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    pub fn reply_by<'a>(
        &mut self,
        answer: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        assert!(!self.answered, "a request is answered once");
        // Before it is sent: the caller may use its place as soon as it has the answer.
        let cancelled = self.shared.routes().said(Kind::Reply, self.id);
        let sent = self.shared.send(answer.into(), Kind::Reply, self.id, deadline.into(), false).map(drop);
        match sent {
            Ok(()) => self.answered = true,
            Err(_) => self.shared.routes().unsaid(self.id, cancelled),
        }
        tell();
        sent
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if !self.answered && !self.shared.is_elsewhere() {
            let mut routes = self.shared.routes();
            if routes.ended.is_none() {
                routes.deferred.push_back((Kind::NoReply, self.id));
            }
            self.shared.flush(routes);
        }
    }
}

/// What [reactors](crate::Reactor) do with an end of calls.
impl CallEnd {
    /// Takes what is there, for whoever waits for it; or part of it, so that others have their turn, whose reactor this is.
    pub(crate) fn drain(&self) {
        for _ in 0..BATCHES {
            let routes = self.shared.routes();
            if routes.receiving || routes.ended.is_some() {
                break;
            }
            let (received, mut routes) = self.shared.receive(routes, false, Deadline::NOW);
            routes.hand_over();
            drop(routes);
            if received.is_err() {
                break;
            }
        }
        tell();
    }

    /// Whether nothing more will come, and nothing can be sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.routes().ended.is_some()
    }

    /// Whether something waits for room.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.shared.routes().deferred.is_empty()
    }

    /// The next request, if there is one; or has a task woken when there is.
    pub(crate) fn poll_request(&self, waker: &Waker) -> Poll<Result<Request, Error>> {
        let mut routes = self.shared.routes();
        if let Some(queued) = routes.requests.pop_front() {
            drop(routes);
            return Poll::Ready(Ok(self.request(queued)));
        }
        if let Some(error) = routes.ended {
            return Poll::Ready(Err(error));
        }
        routes.park(Waits::Request, waker);
        Poll::Pending
    }

    /// Whether one more call may be without an answer.
    pub(crate) fn has_place(&self) -> bool {
        self.shared.routes().has_place()
    }

    /// Has a task woken when there is a place for a call that found none.
    pub(crate) fn await_place(&self, waker: &Waker) {
        self.shared.routes().park(Waits::Place, waker);
    }
}

impl Future for PendingCall {
    type Output = Result<Message, CallError>;

    /// Waits for the reply as a task. Somebody has to receive: another thread, or [`AsyncCallEnd`](crate::AsyncCallEnd).
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(id) = self.id else { return Poll::Ready(Err(CallError::NotAnswered)) };
        let mut routes = self.shared.routes();
        if let Some(answer) = routes.take_answer(id) {
            drop(routes);
            return Poll::Ready(self.answered(answer));
        }
        if let Some(error) = routes.ended {
            return Poll::Ready(Err(CallError::OutcomeUnknown(error)));
        }
        routes.park_for_answer(id, context.waker());
        Poll::Pending
    }
}
