//! Calls: requests that are answered, over a channel.
//!
//! Each message has a [trailer](wire) that says which call it belongs to. Whichever thread waits for something receives for all
//! ([`routes`] sorts what comes), and hands that over to another when it has what it wants: there is no thread for it, and an
//! end that is used by one thread makes no detour.
//!
//! A thread that finds no room to send receives meanwhile, if nobody else does. As each end takes no more calls at a time than the
//! other makes, what is received always finds a place. So two ends that call each other, with both rings full, go on.

mod routes;
mod waiting;
mod wire;

pub use routes::CallCounters;

use std::fmt;
use std::future::Future;
use std::io::IoSlice;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::account::{holding_back, tell, told};
use crate::channel::Channel;
use crate::deadline::Deadline;
use crate::error::{Error, SendError};
use crate::handle::Handle;
use crate::link::unpoisoned;
use crate::message::{Message, Outgoing, Parts};
use routes::{Answer, Queued, Routes};
use waiting::{Locked, Waiter, Waits};
use wire::{Kind, TRAILER};

/// Calls of one end that may be without an answer, unless options say otherwise.
const CALLS: usize = 1024;

/// Messages that are received at a time.
const ROW: usize = 16;

/// Payloads up to here are copied together with their trailer: that is cheaper than to gather the two.
const SMALL: usize = 240;

/// How long a thread that waits for room does so before it looks whether somebody receives, at first and at last.
const SLICE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// How soon what found no room is tried again.
const RETRY: Duration = Duration::from_millis(5);

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

#[derive(Debug)]
struct Shared {
    channel: Channel,
    routes: Mutex<Routes>,
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

    /// Calls of this end that may be without an answer at a time, at least 1; more wait. Not more than the other end takes.
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
        let routes = Mutex::new(Routes::new(self.calls, self.requests));
        CallEnd { shared: Arc::new(Shared { channel, routes }) }
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
            Self::OutcomeUnknown(error) => write!(f, "the request was sent, its outcome is unknown: {error}"),
            Self::NotAnswered => write!(f, "the server dropped the request without an answer"),
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
        self.begin_call(request, deadline)?.wait(deadline)
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
            let found = self.shared.wait_until(Waits::Request, &pending.waiter, deadline, find);
            match told(found).map_err(CallError::OutcomeUnknown)? {
                Ok(answer) => return pending.answered(answer),
                Err(queued) => serve(self.request(queued)),
            }
        }
    }

    fn request(&self, Queued { id, message, cancelled }: Queued) -> Request {
        let replier = Replier { shared: self.shared.clone(), id, cancelled, answered: false };
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
        let waiter = Arc::<Waiter>::default();
        let begun = self.shared.begin(request.into(), &waiter, deadline.into());
        tell();
        let id = begun.map_err(CallError::NotSent)?;
        Ok(PendingCall { shared: self.shared.clone(), id: Some(id), waiter })
    }

    /// The next request of the other end; waits for it until the deadline.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`]; [`Error::BadPeer`], as what is no call, or more than there may be;
    /// otherwise as [`Channel::recv_to`].
    pub fn next_request(&self, deadline: impl Into<Deadline>) -> Result<Request, Error> {
        let waiter = Arc::<Waiter>::default();
        let next = |routes: &mut Routes| routes.requests.pop_front();
        told(self.shared.wait_until(Waits::Request, &waiter, deadline.into(), next)).map(|queued| self.request(queued))
    }

    /// What was counted.
    pub fn counters(&self) -> CallCounters {
        self.shared.routes().counters
    }

    /// Calls of this end that were not answered yet, those among them for which nobody waits any more.
    pub fn under_way(&self) -> usize {
        self.shared.routes().under_way()
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
    waiter: Arc<Waiter>,
}

impl PendingCall {
    /// Waits for the reply until the deadline. After that the call is cancelled.
    ///
    /// # Errors
    /// [`CallError::OutcomeUnknown`], [`CallError::NotAnswered`].
    pub fn wait(mut self, deadline: impl Into<Deadline>) -> Result<Message, CallError> {
        self.wait_on(deadline.into())
    }

    /// The reply, if it is there now. Otherwise [`Error::WouldBlock`] in [`CallError::OutcomeUnknown`], and the call goes on.
    ///
    /// # Errors
    /// As [`PendingCall::wait`].
    pub fn poll(&mut self) -> Result<Message, CallError> {
        self.wait_on(Deadline::NOW)
    }

    fn wait_on(&mut self, deadline: Deadline) -> Result<Message, CallError> {
        let Some(id) = self.id else { return Err(CallError::NotAnswered) };
        let answer = self.shared.wait_until(Waits::Reply, &self.waiter, deadline, |routes| routes.take_answer(id));
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
            && !crate::fork::in_child()
        {
            let mut routes = self.shared.routes();
            if routes.abandon(id) && routes.ended.is_none() {
                routes.deferred.push_back((Kind::Cancel, id));
            }
            self.shared.flush(routes);
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

    /// Whether nobody waits for the answer any more, as far as is known here.
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
    cancelled: Arc<AtomicBool>,
    answered: bool,
}

impl Replier {
    /// Whether nobody waits for the answer any more, as far as is known here.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled.load(Ordering::Acquire)
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
        self.shared.routes().said(Kind::Reply, self.id);
        let sent = self.shared.send(answer.into(), Kind::Reply, self.id, deadline.into());
        match sent {
            Ok(()) => self.answered = true,
            Err(_) => self.shared.routes().unsaid(self.id, &self.cancelled),
        }
        tell();
        sent
    }
}

impl Drop for Replier {
    fn drop(&mut self) {
        if !self.answered && !crate::fork::in_child() {
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
    /// Takes what is there, for whoever waits for it.
    pub(crate) fn drain(&self) {
        loop {
            let routes = self.shared.routes();
            if routes.receiving || routes.ended.is_some() {
                break;
            }
            let (received, mut routes) = self.shared.receive(routes, Waits::Reply, Deadline::NOW);
            routes.hand_over();
            drop(routes);
            if received.is_err() {
                break;
            }
        }
        tell();
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

    /// Has a task woken when a call can be begun again, that found no place or no room.
    pub(crate) fn await_place(&self, waker: &Waker) {
        self.shared.routes().park(Waits::Place, waker);
    }

    /// Wakes tasks that wait to begin a call.
    pub(crate) fn wake_places(&self) {
        self.shared.routes().wake(Waits::Place);
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
        *unpoisoned(&self.waiter.waker) = Some(context.waker().clone());
        Poll::Pending
    }
}

impl Shared {
    fn routes(&self) -> Locked<'_> {
        Locked::new(&self.routes)
    }

    /// Makes a call: finds it a place, and sends it.
    fn begin(&self, request: Outgoing<'_>, waiter: &Arc<Waiter>, deadline: Deadline) -> Result<u64, SendError> {
        let place = |routes: &mut Routes| routes.begin(waiter);
        let id = match self.wait_until(Waits::Place, waiter, deadline, place) {
            Ok(id) => id,
            Err(error) => return Err(SendError::new(error, request.handles)),
        };
        self.send(request, Kind::Request, id, deadline).inspect_err(|_| {
            self.routes().forget(id);
        })?;
        Ok(id)
    }

    /// Sends a message with its trailer. While there is no room somebody receives, and if it is this thread.
    fn send(&self, message: Outgoing<'_>, kind: Kind, id: u64, deadline: Deadline) -> Result<(), SendError> {
        let trailer = wire::encode(kind, id);
        match message.parts {
            Parts::One(bytes) if bytes.len() <= SMALL => {
                let mut whole = [0; SMALL + TRAILER];
                whole[..bytes.len()].copy_from_slice(bytes);
                whole[bytes.len()..][..TRAILER].copy_from_slice(&trailer);
                self.send_whole(Parts::One(&whole[..bytes.len() + TRAILER]), message.handles, deadline)
            }
            Parts::One(bytes) => {
                let parts = [IoSlice::new(bytes), IoSlice::new(&trailer)];
                self.send_whole(Parts::Many(&parts), message.handles, deadline)
            }
            Parts::Many(parts) => {
                let parts: Vec<_> = parts.iter().copied().chain([IoSlice::new(&trailer)]).collect();
                self.send_whole(Parts::Many(&parts), message.handles, deadline)
            }
        }
    }

    fn send_whole(&self, parts: Parts<'_>, mut handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
        let mut slice = Deadline::NOW;
        let mut wait = SLICE.0;
        loop {
            match self.channel.send_by(Outgoing { parts, handles }, slice) {
                Err(SendError { error: Error::WouldBlock | Error::TimedOut, handles: back }) => {
                    if deadline.is_now() || deadline.has_passed() {
                        let error = if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut };
                        return Err(SendError::new(error, back));
                    }
                    handles = back;
                }
                sent => return sent,
            }
            // What the other end sends makes no room here; but it may wait, as this one does, for somebody to take it.
            let mut routes = self.routes();
            if !routes.receiving && routes.ended.is_none() {
                routes = self.receive(routes, Waits::Reply, Deadline::NOW).1;
                routes.hand_over();
            }
            drop(routes);
            slice = Deadline::after(deadline.within(wait));
            wait = (wait * 2).min(SLICE.1);
        }
    }

    /// Says what was put off, as far as there is room.
    fn flush(&self, mut routes: Locked<'_>) {
        while let Some((kind, id)) = routes.deferred.front().copied() {
            // Small, and at once or not at all: under the lock, so that it is said once.
            match holding_back(|| self.channel.try_send(&wire::encode(kind, id))) {
                Err(SendError { error: Error::WouldBlock, .. }) => return,
                _ => {
                    routes.said(kind, id);
                    routes.deferred.pop_front();
                }
            }
        }
    }

    /// Waits until there is what `find` looks for.
    fn wait_until<T>(
        &self,
        what: Waits,
        waiter: &Arc<Waiter>,
        deadline: Deadline,
        mut find: impl FnMut(&mut Routes) -> Option<T>,
    ) -> Result<T, Error> {
        crate::fork::check()?;
        let (found, mut routes) = self.look_until(what, waiter, deadline, &mut find);
        routes.pass_on(what);
        routes.hand_over();
        found
    }

    fn look_until<T>(
        &self,
        what: Waits,
        waiter: &Arc<Waiter>,
        deadline: Deadline,
        find: &mut impl FnMut(&mut Routes) -> Option<T>,
    ) -> (Result<T, Error>, Locked<'_>) {
        let mut routes = self.routes();
        // Of one that must not wait, whether it has looked at the channel.
        let mut looked = false;
        loop {
            if let Some(found) = find(&mut routes) {
                return (Ok(found), routes);
            }
            if let Some(error) = routes.ended {
                return (Err(error), routes);
            }
            if deadline.is_now() && (routes.receiving || (what == Waits::Place && looked)) {
                return (Err(Error::WouldBlock), routes);
            }
            if routes.receiving {
                let left = deadline.remaining(Instant::now());
                if left.is_some_and(|left| left.is_zero()) {
                    return (Err(Error::TimedOut), routes);
                }
                routes = routes.sleep(what, waiter, left);
                continue;
            }
            let (received, back) = self.receive(routes, what, deadline);
            routes = back;
            looked = true;
            if let Err(error) = received {
                // What came just before counts.
                let found = find(&mut routes);
                return (found.ok_or(error), routes);
            }
        }
    }

    /// Receives what is there, or waits for it until the deadline, and sorts it. To be called if nobody receives, by a thread
    /// that waits for this.
    fn receive<'a>(
        &'a self,
        mut routes: Locked<'a>,
        what: Waits,
        deadline: Deadline,
    ) -> (Result<(), Error>, Locked<'a>) {
        routes.receiving = true;
        let mut row = [const { Message::EMPTY }; ROW];
        let received = loop {
            let (deferred, over) = (!routes.deferred.is_empty(), deadline.has_passed());
            if deferred {
                self.flush(routes);
            } else {
                drop(routes);
            }
            // What found no room is tried again soon.
            let until = if deferred && !over { Deadline::after(deadline.within(RETRY)) } else { deadline };
            match self.channel.recv_many(&mut row, until) {
                Err(Error::TimedOut) if deferred && !deadline.has_passed() => {}
                // Too much is held for the peer, or this process lacks something: that passes.
                Err(error) if error.passes() && !deadline.has_passed() => {
                    std::thread::sleep(deadline.within(RETRY));
                }
                received => break received,
            }
            routes = self.routes();
        };
        let mut unwanted = Vec::new();
        // A peer may send anything; what is a call's is not sealed.
        row.iter_mut().for_each(Message::own_bytes);
        let mut routes = self.routes();
        let mut outcome = received.map(|_| ());
        let count = received.unwrap_or(0);
        let before = routes.requests.len();
        for message in &mut row[..count] {
            match routes.sort(std::mem::take(message)) {
                Ok(message) => unwanted.extend(message),
                Err(error) => outcome = Err(self.channel.end.break_off(error)),
            }
        }
        let came = routes.requests.len().saturating_sub(before);
        routes.wake_for_requests(came, what);
        routes.receiving = false;
        if let Err(error @ (Error::PeerClosed | Error::BadPeer(_) | Error::Forked)) = outcome {
            routes.end(error);
        }
        if !unwanted.is_empty() {
            // They may hold ends, and what those hold.
            drop(routes);
            drop(unwanted);
            routes = self.routes();
        }
        (outcome, routes)
    }
}
