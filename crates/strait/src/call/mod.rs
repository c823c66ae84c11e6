//! Calls: requests and their replies over a channel, with any number of calls in flight.
//!
//! ```
//! use std::time::Duration;
//! use strait::Channel;
//! use strait::call::CallEnd;
//!
//! let (a, b) = Channel::pair()?; // One of them may be in another process.
//! let (client, server) = (CallEnd::over(a), CallEnd::over(b));
//! let serving = std::thread::spawn(move || {
//!     let request = server.next_request(Duration::from_secs(10)).unwrap();
//!     let answer = [request.bytes(), b", answered"].concat();
//!     request.reply(&answer, Duration::from_secs(10)).unwrap();
//! });
//! let reply = client.call(b"a question", Duration::from_secs(10)).unwrap();
//! assert_eq!(reply.bytes(), b"a question, answered");
//! # serving.join().unwrap();
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! Each end of the channel becomes a [`CallEnd`]; both ends may call and serve calls at the same time. A call that
//! fails says with its [`CallError`] whether the request was carried out.

// Calls: requests and their replies over a channel.
//
// Each message has a [trailer](wire) with the number of its call. One waiting thread receives for all threads of the
// end, and [`routes`] gives each message to its call. When the receiving thread has its own result, it hands the
// receiving to another thread. The library starts no thread for calls, and an end with only one thread takes no detour.
// Threads that share a processor let each other run before they sleep ([`yield_policy`]), and one of them wakes the
// peer for all.
//
// A thread that finds no room to send receives meanwhile, unless another thread does. Each end accepts as many calls at
// a time as the other may make, so a received message always has a slot. So two ends that call each other, with both
// rings full, make progress.

mod numbers;
mod platform;
mod routes;
mod shared;
mod slots;
#[cfg(test)]
mod tests;
mod waiting;
mod wire;
mod yield_policy;

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
use crate::deferred;
use crate::error::Error;
use crate::wakers::FutureId;
use platform::check_fork;
use routes::{Most, Queued, Routes};
use shared::{BATCH_BYTES, BATCHES, CallShared};
use slots::Answer;
use waiting::Waits;
use wire::CallKind;

/// An end of a channel for requests and replies. Either side may call the other.
///
/// Both ends of the channel must be a `CallEnd`. Any number of threads may call and serve at the same time, through
/// `&self`; replies come in any order, and each reaches its caller.
///
/// ```
/// use std::time::Duration;
/// use strait::Channel;
/// use strait::call::CallEnd;
/// let (a, b) = Channel::pair()?; // One of them may be in another process.
/// let (client, server) = (CallEnd::over(a), CallEnd::over(b));
/// std::thread::scope(|scope| {
///     scope.spawn(|| {
///         let request = server.next_request(Duration::from_secs(10))?;
///         let answer = request.bytes().to_ascii_uppercase();
///         request.reply(&answer, Duration::from_secs(10)).map_err(strait::Error::from)
///     });
///     let reply = client.call(b"hello", Duration::from_secs(10)).expect("an answer");
///     assert_eq!(reply.bytes(), b"HELLO");
/// });
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # When it fails
/// The error of a failed call says whether the request may have been carried out: see [`CallError`]. If a server drops
/// a [`Request`] without a reply, the caller learns so at once.
///
/// # Which thread receives
/// A thread that waits for a reply or a request receives for all threads of the end. If no thread waits, arriving
/// messages stay in the channel.
#[derive(Debug)]
pub struct CallEnd {
    shared: Arc<CallShared>,
}

/// The limits of a [`CallEnd`]: how many calls in each direction may be without an answer at a time, and how much
/// memory they may take.
///
/// | option | default |
/// |---|---|
/// | [`calls`](Self::calls) | 1024 |
/// | [`requests`](Self::requests) | 1024 |
/// | [`request_bytes`](Self::request_bytes) | `Options::queue_bytes` of the channel: 256 MiB if not set |
/// | [`max_message`](Self::max_message) | 256 MiB |
///
/// ```
/// use strait::Channel;
/// use strait::call::CallOptions;
/// let (a, _b) = Channel::pair()?;
/// // The other end may have 10 requests here that are not answered.
/// let server = CallOptions::new().requests(10).over(a);
/// assert_eq!(server.under_way(), 0);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct CallOptions {
    most: Most,
    /// The number of bytes of waiting requests, if the program has set it.
    request_bytes: Option<usize>,
}

impl CallOptions {
    /// Returns the default limits: see the table above.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets how many calls of this end may be without an answer at a time, at least 1; further calls wait until a call
    /// slot is free. The number must not be more than [`requests`](Self::requests) of the other end. An answered call
    /// counts until the program takes the answer from its [`PendingCall`] or drops the `PendingCall`.
    #[must_use]
    pub fn calls(mut self, most: usize) -> Self {
        self.most.calls = most.max(1);
        self
    }

    /// Sets how many calls of the other end may be without an answer at a time; a peer that makes more is a bad peer.
    /// This process holds each received request whole, in private memory, until the program takes the request:
    /// [`request_bytes`](Self::request_bytes) limits the memory.
    #[must_use]
    pub fn requests(mut self, most: usize) -> Self {
        self.most.requests = most;
        self
    }

    /// Sets how many bytes of requests this end receives before the program takes a request; one request may exceed the
    /// limit. While the requests that the program has not taken have so many bytes, the end receives nothing, and the
    /// other end waits for room, as on a channel. Cancellations wait there, too: a server must not wait for
    /// [`Request::is_cancelled`] alone before it takes its next request.
    ///
    /// Exception: while a call of this end has no answer, or no call slot is free, the end has to receive the answers,
    /// which may lie behind further requests. So the end then drops these requests, and up to 15 that it receives
    /// together with the last answer, without a reply. Their callers get [`CallError::NotAnswered`];
    /// [`CallCounters::refused`] counts them.
    ///
    /// ```
    /// use std::time::Duration;
    /// use strait::Channel;
    /// use strait::call::{CallEnd, CallError, CallOptions};
    /// let (a, b) = Channel::pair()?;
    /// let (client, server) = (CallEnd::over(a), CallOptions::new().request_bytes(1000).over(b));
    /// let calls: Vec<_> = (0..20).map(|_| client.begin_call(&[0; 900], Duration::from_secs(10)).unwrap()).collect();
    /// // The server receives some requests, refuses the others, and finds no answer to its own call.
    /// assert!(server.call(b"a question", Duration::from_millis(10)).is_err());
    /// assert!(server.counters().refused > 0);
    /// // Between its own calls the server receives nothing more, and refuses nothing: requests wait in the channel.
    /// # drop(calls);
    /// # Ok::<(), strait::Error>(())
    /// ```
    #[must_use]
    pub fn request_bytes(mut self, most: usize) -> Self {
        self.request_bytes = Some(most.max(1));
        self
    }

    /// Sets the length in bytes of the longest request or reply that the other end may send; a peer that sends a longer
    /// one is a bad peer. So all replies that the program has not taken have at most [`calls`](Self::calls) times so
    /// many bytes.
    #[must_use]
    pub fn max_message(mut self, most: usize) -> Self {
        self.most.message = most;
        self
    }

    /// Makes a call end from `channel`, with these options. From now on only calls may use the channel, and its
    /// other end must be a call end too.
    pub fn over(&self, channel: Channel) -> CallEnd {
        let request_bytes = self.request_bytes.unwrap_or(channel.end.options.queue_bytes).max(1);
        let routes = Routes::new(Most { request_bytes, ..self.most });
        CallEnd { shared: Arc::new(CallShared::new(channel, routes)) }
    }
}

/// The reason why a call has no reply.
///
/// Example: [a call and its reply](crate::call).
#[derive(Debug)]
#[non_exhaustive]
pub enum CallError {
    /// The request was not sent, so the server has not carried it out. The [`SendError`] gives back the handles of the
    /// request.
    NotSent(SendError),
    /// The request was sent, and there will be no reply: for example, the deadline has passed, or the peer has closed.
    /// Whether the request was carried out is unknown. A reply that arrives after the deadline is dropped. Exception:
    /// if [`PendingCall::poll`] fails at its deadline or by a signal, the call stays in flight, and its reply may still
    /// arrive.
    OutcomeUnknown(Error),
    /// The server dropped the request without a reply. Whether the server had acted on the request before depends on
    /// the server. The end of the server drops a request unseen if the end is full of requests: see
    /// [`CallOptions::request_bytes`].
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
            Self::OutcomeUnknown(Error::Forked) => write!(
                f,
                "the parent process sent the request before the fork, and only the parent gets its reply: wait for the \
                 reply there; do not repeat the call in this process, the child, unless that does no harm"
            ),
            Self::OutcomeUnknown(error) => write!(
                f,
                "the request was sent, and the wait for its reply failed: whether it was carried out is unknown; do \
                 not repeat the call unless that does no harm; the wait failed with: {error}"
            ),
            Self::NotAnswered => Error::NotAnswered.fmt(f),
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

impl From<CallError> for Error {
    /// Returns the reason why the request was not sent, and closes its handles; [`Error::OutcomeUnknown`] or
    /// [`Error::NotAnswered`] for a request that was sent.
    fn from(failed: CallError) -> Self {
        match failed {
            CallError::NotSent(failed) => failed.error,
            CallError::OutcomeUnknown(_) => Self::OutcomeUnknown,
            CallError::NotAnswered => Self::NotAnswered,
        }
    }
}

impl From<CallError> for std::io::Error {
    /// Returns the reason why the request was not sent, and closes its handles. For a request that was sent, the
    /// returned error contains the `CallError`. Its kind is that of the failure of the wait for the reply, but
    /// [`Other`](std::io::ErrorKind::Other) for a signal: after the kind
    /// [`Interrupted`](std::io::ErrorKind::Interrupted), a program may repeat the call.
    fn from(failed: CallError) -> Self {
        let kind = match failed {
            CallError::NotSent(failed) => return failed.into(),
            CallError::OutcomeUnknown(Error::Signalled) | CallError::NotAnswered => std::io::ErrorKind::Other,
            CallError::OutcomeUnknown(error) => Self::from(error).kind(),
        };
        Self::new(kind, failed)
    }
}

impl CallEnd {
    /// Makes a call end from `channel`, with the default [`CallOptions`]. From now on only calls may use the channel,
    /// and its other end must be a call end too.
    pub fn over(channel: Channel) -> Self {
        CallOptions::new().over(channel)
    }

    /// Sends a request and waits for its reply until `deadline`, which includes the wait for room to send. Returns the
    /// reply.
    ///
    /// # Errors
    /// See [`CallError`].
    pub fn call<'a>(
        &self,
        request: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<Message, CallError> {
        let deadline = deadline.into();
        // No user code may run between `begin` and the wait below, because the peer may not be woken yet.
        let (id, deferred_wake) = self.shared.begin(request.into(), deadline, true).map_err(|failed| {
            deferred::run();
            CallError::NotSent(failed)
        })?;
        PendingCall { shared: self.shared.clone(), id: Some(id) }.wait_on(deadline, deferred_wake)
    }

    /// Calls the other end as [`call`](Self::call) does, and passes requests of the other end to `serve` while it waits
    /// for the reply. Use this function if the other end may have to call back before it can reply. The calling thread
    /// runs `serve` without holding a lock; `serve` may make calls too.
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
                None => routes.next_request().map(Err),
            };
            let found = self.shared.wait_until(Waits::Either(id), deadline, None, find);
            match deferred::run_if_failed(found).map_err(CallError::OutcomeUnknown)? {
                Ok(answer) => return pending.answered(answer),
                Err(queued) => serve(self.request(queued)),
            }
        }
    }

    fn request(&self, Queued { id, message }: Queued) -> Request {
        let replier = Replier { shared: self.shared.clone(), id, answered: false };
        Request { message, replier }
    }

    /// Sends a request without waiting for its reply; waits for room until `deadline`. The returned [`PendingCall`]
    /// gives the reply.
    ///
    /// # Errors
    /// [`CallError::NotSent`].
    pub fn begin_call<'a>(
        &self,
        request: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<PendingCall, CallError> {
        let begun = self.shared.begin(request.into(), deadline.into(), false);
        deferred::run();
        let (id, _) = begun.map_err(CallError::NotSent)?;
        Ok(PendingCall { shared: self.shared.clone(), id: Some(id) })
    }

    /// Returns the next request of the other end; waits for a request until `deadline`.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`]; [`Error::BadPeer`], also if the other end sends a message that is
    /// not part of a call, or more requests than [`CallOptions::requests`]; otherwise as [`Channel::recv_message`].
    pub fn next_request(&self, deadline: impl Into<Deadline>) -> Result<Request, Error> {
        let next = |routes: &mut Routes| routes.next_request();
        deferred::run_if_failed(self.shared.wait_until(Waits::Request, deadline.into(), None, next))
            .map(|queued| self.request(queued))
    }

    /// Returns the numbers of calls, requests and unexpected answers that the end has counted since its creation. In a
    /// child of `fork`, the numbers of an end that its parent made are 0.
    pub fn counters(&self) -> CallCounters {
        // A thread of the parent may have held the lock at the fork.
        if self.shared.is_elsewhere() { CallCounters::default() } else { self.shared.routes().counters }
    }

    /// Returns the number of this end's calls that still count against [`CallOptions::calls`]: the answer has not
    /// arrived, or the program has not taken the answer. A cancelled call counts until its answer arrives. In a child
    /// of `fork`, the number of an end that its parent made is 0.
    pub fn under_way(&self) -> usize {
        if self.shared.is_elsewhere() { 0 } else { self.shared.routes().in_flight() }
    }

    /// Returns the channel of the end, for questions about the peer and for the channel's counters. The program must
    /// not send or receive on the channel.
    pub fn channel(&self) -> &Channel {
        &self.shared.channel
    }
}

/// A call whose reply has not been taken yet. Dropping the `PendingCall` [cancels](Self::cancel) the call.
///
/// ```
/// use strait::call::CallEnd;
/// use strait::{Channel, Deadline};
/// let (a, b) = Channel::pair()?;
/// let (client, server) = (CallEnd::over(a), CallEnd::over(b));
/// let one = client.begin_call(b"one", Deadline::NEVER).unwrap();
/// let two = client.begin_call(b"two", Deadline::NEVER).unwrap();
/// for _ in 0..2 {
///     let request = server.next_request(Deadline::NEVER)?;
///     let answer = request.bytes().to_ascii_uppercase();
///     request.reply(&answer, Deadline::NEVER)?;
/// }
/// assert_eq!(two.wait(Deadline::NEVER).unwrap().bytes(), b"TWO");
/// assert_eq!(one.wait(Deadline::NEVER).unwrap().bytes(), b"ONE");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct PendingCall {
    shared: Arc<CallShared>,
    /// The number of the call; `None` after the answer of the call was taken.
    id: Option<u64>,
}

impl PendingCall {
    /// Waits for the reply until `deadline` and returns the reply. If the deadline passes first, the call is cancelled.
    ///
    /// # Errors
    /// [`CallError::OutcomeUnknown`], [`CallError::NotAnswered`].
    pub fn wait(mut self, deadline: impl Into<Deadline>) -> Result<Message, CallError> {
        self.wait_on(deadline.into(), None)
    }

    /// Waits for the reply until `deadline` and returns the reply. If the wait ends first, by the deadline or by a
    /// [signal](crate::signals), the call stays in flight, and a later call of `poll` may return the reply.
    ///
    /// # Errors
    /// As [`PendingCall::wait`]; after [`Error::WouldBlock`], [`Error::TimedOut`] and [`Error::Signalled`] in
    /// [`CallError::OutcomeUnknown`] the call is still in flight.
    pub fn poll(&mut self, deadline: impl Into<Deadline>) -> Result<Message, CallError> {
        self.wait_on(deadline.into(), None)
    }

    /// Waits for the answer of the call until `deadline`, and returns the reply. `deferred_wake` is a wake-up still due
    /// to the peer, if any; the calling thread drops it before sleeping, and the drop wakes the peer. Fails as
    /// [`wait`](Self::wait) and [`poll`](Self::poll) do.
    fn wait_on(&mut self, deadline: Deadline, deferred_wake: Option<WakeOnDrop>) -> Result<Message, CallError> {
        let Some(id) = self.id else { return Err(CallError::NotAnswered) };
        let find = |routes: &mut Routes| routes.take_answer(id);
        let answer = self.shared.wait_until(Waits::Reply(id), deadline, deferred_wake, find);
        deferred::run();
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

    /// Cancels the call: tells the server that the caller no longer waits. If the server has not taken the request yet,
    /// it never gets the request. Otherwise the server goes on with the request, unless the server checks
    /// [`Request::is_cancelled`]. A late reply is dropped.
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

/// A request of the other end that needs a reply. If the program drops the request without a reply, the caller gets
/// [`CallError::NotAnswered`].
///
/// Example: [a call and its reply](crate::call).
#[derive(Debug)]
pub struct Request {
    message: Message,
    replier: Replier,
}

impl Request {
    /// Returns the bytes of the request.
    pub fn bytes(&self) -> &[u8] {
        self.message.bytes()
    }

    /// Takes the handles out of the request and returns them, as [`Message::take_handles`] does.
    ///
    /// # Errors
    /// As [`Message::take_handles`].
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.message.take_handles()
    }

    /// Returns whether the caller has cancelled the call, as far as this process has received the cancellation. Takes a
    /// lock.
    pub fn is_cancelled(&self) -> bool {
        self.replier.is_cancelled()
    }

    /// Sends `answer` as the reply to the request; waits for room until `deadline`. After an error the caller learns
    /// that there will be no reply. To try again after an error, use [`Replier::reply`].
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    pub fn reply<'a>(
        mut self,
        answer: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        self.replier.reply(answer, deadline)
    }

    /// Splits the request into its message and the [`Replier`] that sends the reply.
    pub fn into_parts(self) -> (Message, Replier) {
        (self.message, self.replier)
    }
}

/// Sends the reply to one request. If a replier is dropped without a reply, the caller gets [`CallError::NotAnswered`].
///
/// ```
/// use strait::call::CallEnd;
/// use strait::{Channel, Deadline};
/// let (a, b) = Channel::pair()?;
/// let (client, server) = (CallEnd::over(a), CallEnd::over(b));
/// let call = client.begin_call(b"how long?", Deadline::NEVER).unwrap();
/// // The message can be forwarded or kept, and answered later.
/// let (message, mut replier) = server.next_request(Deadline::NEVER)?.into_parts();
/// replier.reply(&[message.bytes().len() as u8], Deadline::NEVER)?;
/// assert_eq!(call.wait(Deadline::NEVER).unwrap().bytes(), [9]);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Replier {
    shared: Arc<CallShared>,
    id: u64,
    answered: bool,
}

impl Replier {
    /// Returns whether the caller has cancelled the call, as far as this process has received the cancellation. Takes a
    /// lock.
    pub fn is_cancelled(&self) -> bool {
        !self.answered && !self.shared.is_elsewhere() && self.shared.routes().is_cancelled(self.id)
    }

    /// Returns whether the request of the replier came to the call end `end`.
    pub(crate) fn is_of(&self, end: &CallEnd) -> bool {
        Arc::ptr_eq(&self.shared, &end.shared)
    }

    /// Sends `answer` as the reply to the request; waits for room until `deadline`. After an error, `reply` can be
    /// called again. A task replies with [`AsyncCallEnd::reply`](crate::task::AsyncCallEnd::reply) instead.
    ///
    /// # Panics
    /// If the request was answered before.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    pub fn reply<'a>(
        &mut self,
        answer: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        assert!(!self.answered, "a request is answered once");
        let answer = answer.into();
        if let Err(error) = check_fork(&self.shared.channel) {
            return Err(SendError::new(error, answer.handles));
        }
        self.shared.routes().begin_answer(self.id);
        let sent = self.shared.send(answer, CallKind::Reply, self.id, deadline.into(), false).map(drop);
        self.answered = sent.is_ok();
        self.shared.routes().end_answer(self.id, self.answered);
        deferred::run();
        sent
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if !self.answered && !self.shared.is_elsewhere() {
            self.shared.refuse(self.id);
        }
    }
}

/// The methods of a call end that [reactors](crate::task::Reactor) use.
impl CallEnd {
    /// Receives the messages that have arrived, on behalf of all tasks and threads that wait on the end. Stops after
    /// [`BATCHES`] batches or [`BATCH_BYTES`] bytes, so that other ends in the reactor have their turn. Receives
    /// nothing while another thread receives, if the end has ended, or while it [pauses](Self::pauses).
    pub(crate) fn drain(&self) {
        let mut bytes = 0;
        for _ in 0..BATCHES {
            let mut routes = self.shared.routes();
            if routes.receiving.is_some() || routes.ended.is_some() {
                break;
            }
            if routes.pauses() {
                self.shared.flush(&mut routes);
                break;
            }
            let (received, mut routes) = self.shared.receive(routes, Waits::Nothing, Deadline::NOW);
            bytes += routes.batch_bytes;
            routes.hand_over();
            drop(routes);
            if received.is_err() || bytes >= BATCH_BYTES {
                break;
            }
        }
        deferred::run();
    }

    /// Returns whether the end receives nothing until the program takes a request or makes a call: see
    /// [`CallOptions::request_bytes`]. The reactor of the end is woken then.
    pub(crate) fn pauses(&self) -> bool {
        self.shared.routes().pauses()
    }

    /// Returns whether the call end has ended, because the peer has closed or is a bad peer: nothing more arrives, and
    /// nothing can be sent.
    pub(crate) fn has_ended(&self) -> bool {
        self.shared.routes().ended.is_some()
    }

    /// Sets whether the reactor of the end has ended, or no longer has the end. If so, wakes all tasks that wait on the
    /// end, and from now on a task gets [`Error::ReactorEnded`] where it would wait. Does nothing in a child of `fork`.
    pub(crate) fn set_undriven(&self, undriven: bool) {
        if self.shared.is_elsewhere() {
            return;
        }
        let mut routes = self.shared.routes();
        routes.undriven = undriven;
        if undriven {
            routes.wake_all_tasks();
        }
    }

    /// Sets the waker that is woken when the end has to send a cancellation, or an answer without a payload, for which
    /// there was no room. Does nothing in a child of `fork`.
    pub(crate) fn set_reactor_waker(&self, waker: Option<Waker>) {
        if self.shared.is_elsewhere() {
            return;
        }
        self.shared.routes().reactor_waker = waker;
    }

    /// Returns whether the end still has to send a cancellation, or an answer without a payload, for which there was no
    /// room.
    pub(crate) fn has_deferred(&self) -> bool {
        !self.shared.routes().deferred.is_empty()
    }

    /// Returns the next request if a request has arrived. Otherwise registers `waker`, the waker of the task that polls
    /// `future`: an arriving request wakes the task.
    pub(crate) fn poll_request(&self, future: Option<FutureId>, waker: &Waker) -> Poll<Result<Request, Error>> {
        check_fork(&self.shared.channel)?;
        let mut routes = self.shared.routes();
        if let Some(queued) = routes.next_request() {
            drop(routes);
            return Poll::Ready(Ok(self.request(queued)));
        }
        if let Some(error) = routes.ended.or_else(|| routes.undriven()) {
            return Poll::Ready(Err(error));
        }
        let replaced = routes.park(Waits::Request, future, waker);
        drop(routes);
        drop(replaced);
        Poll::Pending
    }

    /// Returns whether a call slot is free: the end may make one more call now.
    pub(crate) fn has_slot(&self) -> bool {
        self.shared.routes().has_slot()
    }

    /// Registers `waker`, the waker of the task that polls `future`: a call slot that becomes free wakes the task.
    pub(crate) fn await_slot(&self, future: FutureId, waker: &Waker) {
        let replaced = self.shared.routes().park(Waits::Slot, Some(future), waker);
        drop(replaced);
    }

    /// Removes the waker of `future`, which no longer waits on the end.
    pub(crate) fn forget_task(&self, future: FutureId) {
        if !self.shared.is_elsewhere() {
            let forgotten = self.shared.routes().tasks.remove(future);
            drop(forgotten);
        }
    }
}

impl Future for PendingCall {
    type Output = Result<Message, CallError>;

    /// Returns the reply if it has arrived; otherwise the task is woken when the reply arrives. The future receives no
    /// messages itself: another thread, or an [`AsyncCallEnd`](crate::task::AsyncCallEnd), must receive on the call end
    /// meanwhile. If the reactor of the call end has ended, the future fails with [`Error::ReactorEnded`]; the call
    /// stays in flight, and [`wait`](Self::wait) can still get its reply.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(id) = self.id else { return Poll::Ready(Err(CallError::NotAnswered)) };
        check_fork(&self.shared.channel).map_err(CallError::OutcomeUnknown)?;
        let mut routes = self.shared.routes();
        if let Some(answer) = routes.take_answer(id) {
            drop(routes);
            return Poll::Ready(self.answered(answer));
        }
        if let Some(error) = routes.ended.or_else(|| routes.undriven()) {
            return Poll::Ready(Err(CallError::OutcomeUnknown(error)));
        }
        let replaced = routes.park_for_answer(id, context.waker());
        drop(routes);
        drop(replaced);
        Poll::Pending
    }
}
