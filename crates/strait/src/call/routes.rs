//! The routes of a call end give each received message to its call, or to the queue of requests, whichever thread has
//! received the message.
//!
//! The number of calls of this end without an answer is limited, and so is the number of calls of the other end. So an
//! honest peer always has memory for the messages of this end. A call whose caller has given up keeps its slot until
//! the call is answered. Each call is answered, at least by *there will be no reply*.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use super::numbers::NumberHashing;
use super::platform::WakeOnDrop;
use super::slots::{Answer, Call, CallSlots};
use super::waiting::{CallWaiter, Waits, Woken};
use super::wire::{self, CallKind};
use super::yield_policy::YieldPolicy;
use crate::channel::message::Message;
use crate::error::Error;
use crate::wakers::{FutureId, Wakers};

/// A request of the other end that was received and that the program has not taken yet.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) id: u64,
    pub(super) message: Message,
}

/// The numbers of calls, requests and unexpected answers that a call end has counted since its creation.
///
/// ```
/// let (a, _b) = strait::Channel::pair()?;
/// let end = strait::call::CallEnd::over(a);
/// println!("{:?}", end.counters());
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CallCounters {
    /// Number of calls that this end has made.
    pub calls: u64,
    /// Number of requests that this end has received.
    pub requests: u64,
    /// Number of answers to this end's calls that were dropped because the caller had given up: at its deadline, or by
    /// cancelling.
    pub late: u64,
    /// Number of answers to calls that were never made or were answered before. Such answers are dropped.
    pub unknown: u64,
    /// Number of requests among [`requests`](Self::requests) that the end has dropped without a reply: see
    /// [`CallOptions::request_bytes`](crate::call::CallOptions::request_bytes).
    pub refused: u64,
}

/// The limits of a call end; the methods of [`CallOptions`](crate::call::CallOptions) describe them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Most {
    pub(super) calls: usize,
    pub(super) requests: usize,
    /// The number of bytes of requests that the program has not taken, at least 1, at which the end receives no more.
    pub(super) request_bytes: usize,
    /// The number of bytes of the longest request or reply.
    pub(super) message: usize,
}

/// The default of both [`CallOptions::calls`](crate::call::CallOptions::calls) and
/// [`CallOptions::requests`](crate::call::CallOptions::requests): the number of calls that one end may have without an
/// answer at a time, and the number of requests of the other end.
const CALLS: usize = 1024;

impl Default for Most {
    fn default() -> Self {
        Self { calls: CALLS, requests: CALLS, request_bytes: usize::MAX, message: usize::MAX }
    }
}

/// The number of stray messages (answers to no call, and cancellations of no request) that a peer may send besides one
/// for each call. An honest peer sends none, unless the channel had another call end before.
const STRAY: u64 = 1 << 16;

#[derive(Debug)]
pub(super) struct Routes {
    most: Most,
    pub(super) calls: CallSlots,
    /// Number of calls without an answer, abandoned ones too.
    unanswered: usize,
    /// Requests of the other end that were received and that the program has not taken yet, oldest first.
    requests: VecDeque<Queued>,
    /// Number of bytes of the requests in [`requests`](Self::requests).
    request_bytes: usize,
    /// Whether the requests that are received now are refused, because the requests before them have
    /// [`Most::request_bytes`].
    refuses: bool,
    /// All requests of the other end without an answer, taken by the program or not. The key is the number of the call;
    /// the value is `true` if the caller has cancelled the call.
    serving: HashMap<u64, bool, NumberHashing>,
    /// The requests whose answers threads are sending: the number of the call, and whether the caller has cancelled the
    /// call. Such a request does not count against the limit, since the caller may make a new call as soon as the
    /// answer arrives.
    answering: Vec<(u64, bool)>,
    /// The number of cancellations that were received for no request, or for a request cancelled before.
    stray_cancellations: u64,
    /// The event for which the receiving thread waits, if a thread receives: it has the task to receive from the
    /// channel, on behalf of all threads of the end. [`Waits::Nothing`] while the thread must not wait, or yields (lets
    /// others run before sleeping).
    pub(super) receiving: Option<Waits>,
    pub(super) yield_policy: YieldPolicy,
    /// A wake-up still due to the peer, if any. A sending thread left the wake-up to the thread that yields now (lets
    /// others run before sleeping); the yielding thread wakes the peer afterwards.
    pub(super) deferred_wake: Option<WakeOnDrop>,
    /// The threads that wait on the end, each with the awaited event. Some threads sleep, and some were woken and have
    /// not run yet.
    pub(super) waiters: VecDeque<(Waits, Arc<CallWaiter>)>,
    /// Number of threads in [`waiters`](Self::waiters) that were woken and have not run yet.
    pub(super) woken_threads: usize,
    /// The tasks that wait on the end for a request or for a free call slot, each with the awaited event.
    pub(super) tasks: Wakers<Waits>,
    /// The waker of the reactor of the end, if any: woken when messages are deferred, so that the reactor sends them as
    /// soon as there is room.
    pub(super) reactor_waker: Option<Waker>,
    /// The threads and tasks of the end to be woken when the lock of the routes is released.
    pub(super) woken: Woken,
    /// Cancellations, and answers without a payload, that were not sent yet for lack of room, oldest first. There are
    /// at most as many as the limits on calls and on requests together permit.
    pub(super) deferred: VecDeque<(CallKind, u64)>,
    pub(super) ended: Option<Error>,
    /// Whether the reactor of the end has ended: an arriving message wakes no task any more, so a task gets an error
    /// where it would wait.
    pub(super) undriven: bool,
    pub(super) counters: CallCounters,
    /// The buffer into which messages are received, kept to reuse its memory. Empty while a thread receives, because
    /// the receiving thread has taken the buffer.
    pub(super) batch: Vec<Message>,
    /// Number of bytes of the messages that were received last, together.
    pub(super) batch_bytes: usize,
}

impl Routes {
    pub(super) fn new(most: Most) -> Self {
        Self {
            most,
            calls: CallSlots::default(),
            unanswered: 0,
            requests: VecDeque::new(),
            request_bytes: 0,
            refuses: false,
            serving: HashMap::default(),
            answering: Vec::new(),
            stray_cancellations: 0,
            receiving: None,
            yield_policy: YieldPolicy::default(),
            deferred_wake: None,
            waiters: VecDeque::new(),
            woken_threads: 0,
            tasks: Wakers::default(),
            reactor_waker: None,
            woken: Woken::default(),
            deferred: VecDeque::new(),
            ended: None,
            undriven: false,
            counters: CallCounters::default(),
            batch: Vec::new(),
            batch_bytes: 0,
        }
    }

    /// Takes a slot for a new call, and returns the number of the call; `None` if no slot is free.
    pub(super) fn begin(&mut self) -> Option<u64> {
        if !self.has_slot() {
            return None;
        }
        self.wake_if_resumed(|routes| routes.unanswered += 1);
        self.counters.calls += 1;
        Some(self.calls.take())
    }

    /// Returns whether the requests that the program has not taken have as many bytes as permitted.
    fn is_full(&self) -> bool {
        self.request_bytes >= self.most.request_bytes
    }

    /// Returns whether the end receives nothing until the program takes a request or makes a call: the end is full of
    /// requests, and no message that has not arrived yet can help a call of this end.
    ///
    /// Two ends cannot pause at the same time and wait for each other: an end that pauses has requests of the other
    /// end, whose calls have no answer, so the other end does not pause.
    pub(super) fn pauses(&self) -> bool {
        self.is_full() && self.unanswered == 0 && self.has_slot()
    }

    /// Makes the change `change`. If the end [paused](Self::pauses) before and does not pause any more, wakes the
    /// reactor of the end, which then receives again. Threads need no wake-up: no thread waits for a message while the
    /// end pauses.
    #[inline]
    fn wake_if_resumed<T>(&mut self, change: impl FnOnce(&mut Self) -> T) -> T {
        let paused = self.pauses();
        let changed = change(self);
        if paused && !self.pauses() {
            self.wake_reactor();
        }
        changed
    }

    /// Takes the oldest request that the program has not taken yet.
    pub(super) fn next_request(&mut self) -> Option<Queued> {
        if self.requests.is_empty() {
            return None;
        }
        self.take_request(VecDeque::pop_front)
    }

    /// Takes a request of those that the program has not taken yet. `take` removes the request from the queue.
    fn take_request(&mut self, take: impl FnOnce(&mut VecDeque<Queued>) -> Option<Queued>) -> Option<Queued> {
        self.wake_if_resumed(|routes| {
            let queued = take(&mut routes.requests)?;
            routes.request_bytes -= queued.message.bytes.len();
            Some(queued)
        })
    }

    /// Returns the number of requests that were received and that the program has not taken yet.
    pub(super) fn waiting_requests(&self) -> usize {
        self.requests.len()
    }

    /// Notes that a thread begins to receive. Requests that it receives are refused if the end is full.
    pub(super) fn begin_receive(&mut self, what: Waits) {
        self.receiving = Some(what);
        self.refuses = self.is_full();
    }

    /// Returns whether a call slot is free: one more call may be made.
    pub(super) fn has_slot(&self) -> bool {
        self.calls.taken() < self.most.calls
    }

    /// Returns whether other threads of the end are likely to run soon: a thread yields on the calling thread's
    /// processor, or woken threads have not run yet and yields pay. If so, a thread that sends may leave the waking of
    /// the peer to the other threads.
    pub(super) fn has_company(&self) -> bool {
        self.yield_policy.are_here() || (self.woken_threads > 0 && self.yield_policy.pay())
    }

    /// Undoes [`begin`](Self::begin) for the call `id`, whose request could not be sent: frees the slot and does not
    /// count the call. Returns the call, for the caller to drop without a lock.
    #[must_use]
    pub(super) fn forget(&mut self, id: u64) -> Option<Call> {
        self.counters.calls -= 1;
        self.wake(Waits::Slot);
        let forgotten = self.calls.free(id);
        self.unanswered -= usize::from(forgotten.as_ref().is_some_and(|call| !matches!(call, Call::Answered(_))));
        forgotten
    }

    /// Takes the answer of the call `id`, and frees the call's slot. Returns `None`, and changes nothing, if there is
    /// no answer yet.
    pub(super) fn take_answer(&mut self, id: u64) -> Option<Answer> {
        if !matches!(self.calls.get(id), Some(Call::Answered(_))) {
            return None;
        }
        self.wake(Waits::Slot);
        match self.calls.free(id) {
            Some(Call::Answered(answer)) => Some(answer),
            _ => None,
        }
    }

    /// Registers the waker of a task: the answer of the call `id` wakes the task. Returns the replaced waker of the
    /// call, for the caller to drop without a lock. Does nothing if the answer is there.
    #[must_use]
    pub(super) fn park_for_answer(&mut self, id: u64, waker: &Waker) -> Option<Waker> {
        match self.calls.get(id) {
            Some(Call::Waiting(_, task)) => task.replace(waker.clone()),
            _ => None,
        }
    }

    /// Records that the caller of the call `id`, which has no answer yet, has given up: the server must be told.
    /// Returns the call as it was, for the caller to drop without a lock. Returns `None`, and changes nothing, if no
    /// call with this number waits for an answer.
    #[must_use]
    pub(super) fn abandon(&mut self, id: u64) -> Option<Call> {
        match self.calls.get(id) {
            Some(call @ Call::Waiting(..)) => Some(std::mem::replace(call, Call::Abandoned)),
            _ => None,
        }
    }

    /// Returns the number of calls that hold a slot: calls without an answer, and calls with an answer not taken yet.
    pub(super) fn in_flight(&self) -> usize {
        self.calls.taken()
    }

    /// Gives a received message to its call, if it is an answer, or adds it to the queue of requests. Returns a message
    /// that is no longer needed, for the caller to drop without a lock: a late answer, a refused request, or a request
    /// cancelled before the program took it. Otherwise returns `None`. Fails with [`Error::BadPeer`] if the message
    /// breaks the protocol of calls. Wakes no thread that waits for requests;
    /// [`wake_for_requests`](Self::wake_for_requests) wakes those threads.
    pub(super) fn sort(&mut self, mut message: Message) -> Result<Option<Message>, Error> {
        let Some((kind, id)) = wire::cut(&mut message.bytes) else {
            return Err(Error::BadPeer("a message that is not part of a call (both ends must be a CallEnd)"));
        };
        if message.bytes.len() > self.most.message {
            return Err(Error::BadPeer("a longer request or reply than permitted"));
        }
        match kind {
            CallKind::Request => {
                if self.serving.len() >= self.most.requests {
                    return Err(Error::BadPeer("more calls at a time than permitted"));
                }
                if self.serving.insert(id, false).is_some() {
                    return Err(Error::BadPeer("two calls of one number"));
                }
                self.counters.requests += 1;
                if self.refuses && self.is_full() {
                    self.counters.refused += 1;
                    self.deferred.push_back((CallKind::NoReply, id));
                    return Ok(Some(message));
                }
                self.request_bytes += message.bytes.len();
                self.requests.push_back(Queued { id, message });
                Ok(None)
            }
            CallKind::Reply => self.answer(id, Answer::Reply(message)),
            CallKind::NoReply => self.answer(id, Answer::None),
            CallKind::Cancel => {
                if let Some(is_cancelled) = self.cancellation_of(id).filter(|is_cancelled| !**is_cancelled) {
                    *is_cancelled = true;
                    // A cancelled request that was not taken yet is never served.
                    if let Some(at) = self.requests.iter().position(|queued| queued.id == id) {
                        let queued = self.take_request(|requests| requests.remove(at));
                        self.deferred.push_back((CallKind::NoReply, id));
                        return Ok(queued.map(|queued| queued.message));
                    }
                } else {
                    self.stray_cancellations += 1;
                    self.check_strays()?;
                }
                Ok(None)
            }
        }
    }

    /// Fails if the other end has sent more stray messages than an honest end can. A peer could otherwise keep a
    /// receiving thread busy for ever, even after its death: the thread finds the next message in the ring as long as
    /// the peer has filled all cells.
    fn check_strays(&self) -> Result<(), Error> {
        let CallCounters { calls, requests, unknown, .. } = self.counters;
        if self.stray_cancellations + unknown > calls + requests + STRAY {
            return Err(Error::BadPeer("more answers and cancellations than there were calls"));
        }
        Ok(())
    }

    /// Gives an answer to the call `id`, and wakes the caller. If the caller has given up, the call has an answer
    /// already, or there is no such call, returns the message of the reply instead, to be dropped without a lock.
    /// Otherwise returns `None`. Fails if there were too many answers to no call.
    fn answer(&mut self, id: u64, answer: Answer) -> Result<Option<Message>, Error> {
        let unwanted = match self.calls.get(id) {
            Some(call @ Call::Waiting(..)) => {
                if let Call::Waiting(thread, task) = std::mem::replace(call, Call::Answered(answer)) {
                    if let Some(thread) = thread {
                        self.wake_thread(&thread);
                    }
                    self.woken.tasks(task);
                }
                self.unanswered -= 1;
                None
            }
            Some(Call::Abandoned) => {
                self.calls.free(id);
                self.unanswered -= 1;
                self.counters.late += 1;
                self.wake(Waits::Slot);
                unwanted(answer)
            }
            Some(Call::Answered(_)) | None => {
                self.counters.unknown += 1;
                self.check_strays()?;
                unwanted(answer)
            }
        };
        Ok(unwanted)
    }

    /// Returns the place that says whether the caller has cancelled the request `id`; `None` if the request has an
    /// answer, or never arrived.
    fn cancellation_of(&mut self, id: u64) -> Option<&mut bool> {
        let answering = &mut self.answering;
        self.serving
            .get_mut(&id)
            .or_else(|| answering.iter_mut().find(|(other, _)| *other == id).map(|(_, is_cancelled)| is_cancelled))
    }

    /// Removes the request `id` from the requests without an answer, because its answer was sent.
    pub(super) fn answered(&mut self, id: u64) {
        self.serving.remove(&id);
    }

    /// Notes that a thread begins to send the answer to the request `id`.
    pub(super) fn begin_answer(&mut self, id: u64) {
        if let Some(is_cancelled) = self.serving.remove(&id) {
            self.answering.push((id, is_cancelled));
        }
    }

    /// Notes that the thread which has begun an answer to the request `id` has sent the answer, or, if `sent` is false,
    /// could not send it: the request has no answer again.
    pub(super) fn end_answer(&mut self, id: u64, sent: bool) {
        if let Some(at) = self.answering.iter().position(|(other, _)| *other == id) {
            let (_, is_cancelled) = self.answering.swap_remove(at);
            if !sent {
                self.serving.insert(id, is_cancelled);
            }
        }
    }

    /// Returns whether the caller has cancelled the request `id`.
    pub(super) fn is_cancelled(&mut self, id: u64) -> bool {
        self.cancellation_of(id).is_some_and(|is_cancelled| *is_cancelled)
    }

    /// Wakes the reactor of the end, if any, because there are deferred messages.
    pub(super) fn wake_reactor(&mut self) {
        self.woken.tasks(self.reactor_waker.clone());
    }

    /// Marks the call end as ended by `error`, unless it has ended before, and wakes all threads and tasks that wait on
    /// the end.
    pub(super) fn end(&mut self, error: Error) {
        self.ended.get_or_insert(error);
        for (_, waiter) in &self.waiters {
            self.woken_threads += usize::from(self.woken.thread(waiter));
        }
        self.wake_all_tasks();
    }

    /// Returns the error of a task that would have to wait, if nothing would wake the task.
    pub(super) fn undriven(&self) -> Option<Error> {
        self.undriven.then_some(Error::ReactorEnded)
    }

    /// Wakes all tasks that wait on the end: for a request, for a free call slot, or for an answer.
    pub(super) fn wake_all_tasks(&mut self) {
        for call in self.calls.all() {
            if let Call::Waiting(_, task) = call {
                self.woken.tasks(task.take());
            }
        }
        self.woken.tasks(self.tasks.take());
    }

    /// Registers the waker of the task that polls `future`. The task is woken at the event `what`: when a request
    /// arrives, or when a call slot becomes free. Returns the replaced waker of the future, for the caller to drop
    /// without a lock.
    #[must_use]
    pub(super) fn park(&mut self, what: Waits, future: Option<FutureId>, waker: &Waker) -> Option<Waker> {
        self.tasks.add(future, waker, what)
    }

    /// Notes which waiters to wake when the lock of the routes is released: one thread and all tasks that wait for the
    /// event `what`. The receiving thread is woken only if no other such thread sleeps.
    pub(super) fn wake(&mut self, what: Waits) {
        self.wake_tasks(what);
        let waits = |(waits, waiter): &&(Waits, Arc<CallWaiter>)| waits.includes(what) && waiter.is_asleep();
        if let Some((_, waiter)) = self.waiters.iter().find(waits) {
            self.woken_threads += usize::from(self.woken.thread(waiter));
        } else if self.receiving.is_some_and(|waits| waits.includes(what)) {
            self.woken.receiver();
        }
    }

    /// Returns whether a thread that waits for the event `what` has something to do, and no thread was woken to do so.
    /// For the [check for lost wake-ups](crate::wake::strict).
    pub(super) fn is_due(&mut self, what: Waits) -> bool {
        let is_answered = |id| matches!(self.calls.get(id), Some(Call::Answered(_)));
        if self.ended.is_some() || what.call().is_some_and(is_answered) {
            return true;
        }
        let has_request = what.takes_requests() && !self.requests.is_empty();
        let has_slot = what == Waits::Slot && self.has_slot();
        self.woken_threads == 0 && (has_request || has_slot || self.receiving.is_none())
    }

    fn wake_thread(&mut self, waiter: &Arc<CallWaiter>) {
        self.woken_threads += usize::from(self.woken.thread(waiter));
    }

    fn wake_tasks(&mut self, what: Waits) {
        if !self.tasks.is_empty() {
            self.woken.tasks(self.tasks.take_all_of(&what));
        }
    }

    /// Wakes one thread for each of the `came` requests that have just arrived. If `takes` is true, the receiving
    /// thread takes a request itself, so one thread fewer is woken. If `came` is not 0, wakes all tasks that wait for
    /// requests.
    pub(super) fn wake_for_requests(&mut self, came: usize, takes: bool) {
        if came > 0 {
            self.wake_tasks(Waits::Request);
        }
        let others = came.saturating_sub(usize::from(takes));
        (0..others.min(self.waiters.len())).for_each(|_| self.wake(Waits::Request));
    }

    /// Wakes another thread, and the tasks, if a request or a free call slot, as `what` says, is there now. The calling
    /// thread no longer waits for the event `what`: the wake-up meant for the calling thread must not be lost.
    pub(super) fn pass_on(&mut self, what: Waits) {
        match what {
            Waits::Request | Waits::Either(_) if !self.requests.is_empty() => self.wake(Waits::Request),
            Waits::Slot if self.has_slot() => self.wake(Waits::Slot),
            Waits::Reply(_) | Waits::Request | Waits::Either(_) | Waits::Slot | Waits::Nothing => {}
        }
    }

    /// Wakes the thread that has waited longest on the end, to receive from the channel. Does nothing if a thread
    /// receives already. Does nothing if a thread was woken and has not run yet: the woken thread will receive.
    pub(super) fn hand_over(&mut self) {
        if self.receiving.is_none()
            && self.woken_threads == 0
            && let Some((_, waiter)) = self.waiters.front()
        {
            self.woken_threads += usize::from(self.woken.thread(waiter));
        }
    }
}

fn unwanted(answer: Answer) -> Option<Message> {
    match answer {
        Answer::Reply(message) => Some(message),
        Answer::None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn message(kind: CallKind, id: u64, payload: &[u8]) -> Message {
        let mut message = Message::new();
        message.bytes = [payload, &wire::encode(kind, id)].concat().into();
        message
    }

    fn routes_with(calls: usize, requests: usize) -> Routes {
        Routes::new(Most { calls, requests, ..Most::default() })
    }

    fn bytes(answer: Option<Answer>) -> Option<Vec<u8>> {
        answer.map(|answer| unwanted(answer).map(Message::into_bytes).unwrap_or_default())
    }

    #[test]
    fn answers_find_their_calls_in_any_order_and_once() {
        let mut routes = routes_with(3, 3);
        let ids: Vec<_> = (0..3).map(|_| routes.begin().unwrap()).collect();
        assert!(routes.begin().is_none());
        assert!(routes.sort(message(CallKind::Reply, ids[2], b"third")).unwrap().is_none());
        assert!(routes.sort(message(CallKind::Reply, ids[0], b"first")).unwrap().is_none());
        assert!(routes.sort(message(CallKind::Reply, ids[0], b"again")).unwrap().is_some());
        assert_eq!(bytes(routes.take_answer(ids[0])), Some(b"first".to_vec()));
        assert_eq!(bytes(routes.take_answer(ids[0])), None);
        assert!(routes.sort(message(CallKind::Reply, ids[0], b"again")).unwrap().is_some());
        assert!(routes.sort(message(CallKind::Reply, 99, b"never")).unwrap().is_some());
        assert_eq!((routes.counters.unknown, routes.counters.late), (3, 0));
        // A call whose caller has given up keeps its slot until the answer arrives.
        assert!(routes.abandon(ids[1]).is_some());
        assert_eq!(routes.in_flight(), 2);
        assert!(routes.sort(message(CallKind::Reply, ids[1], b"late")).unwrap().is_some());
        assert_eq!((routes.counters.late, routes.in_flight()), (1, 1));
    }

    #[test]
    fn what_is_cancelled_before_it_was_begun_is_never_begun() {
        let mut routes = routes_with(1, 3);
        routes.sort(message(CallKind::Request, 1, b"one")).unwrap();
        routes.sort(message(CallKind::Request, 2, b"two")).unwrap();
        let begun = routes.next_request().unwrap();
        routes.sort(message(CallKind::Cancel, 1, b"")).unwrap();
        routes.sort(message(CallKind::Cancel, 2, b"")).unwrap();
        routes.sort(message(CallKind::Cancel, 3, b"")).unwrap();
        assert!(routes.is_cancelled(begun.id) && routes.requests.is_empty());
        assert_eq!(routes.deferred, [(CallKind::NoReply, 2)]);
        // The request counts until the server's answer is sent.
        assert_eq!(routes.serving.len(), 2);
        routes.answered(2);
        assert_eq!(routes.serving.len(), 1);
    }

    /// Shows that the reactor of an end that pauses is woken if a cancellation ends the pause.
    #[test]
    fn a_cancellation_that_ends_a_pause_wakes_the_reactor() {
        let mut routes = Routes::new(Most { calls: 1, requests: 3, request_bytes: 3, ..Most::default() });
        routes.reactor_waker = Some(Waker::noop().clone());
        routes.sort(message(CallKind::Request, 1, b"one")).unwrap();
        assert!(routes.pauses());
        routes.sort(message(CallKind::Cancel, 1, b"")).unwrap();
        assert!(!routes.pauses());
        assert!(format!("{:?}", routes.woken).contains("Task"), "{:?}", routes.woken);
    }

    #[test]
    fn a_peer_that_calls_too_often_or_twice_is_a_bad_one() {
        let mut routes = routes_with(1, 2);
        routes.sort(message(CallKind::Request, 1, b"")).unwrap();
        assert!(routes.sort(message(CallKind::Request, 1, b"")).is_err());
        let mut routes = routes_with(1, 2);
        routes.sort(message(CallKind::Request, 1, b"")).unwrap();
        routes.sort(message(CallKind::Request, 2, b"")).unwrap();
        assert!(routes.sort(message(CallKind::Request, 3, b"")).is_err());
        let text = routes.sort(Message::new()).unwrap_err().to_string();
        assert!(text.contains("both ends must be a CallEnd"), "{text}");
    }

    proptest! {
        /// Applies random sequences of steps to the routes of a call end: messages of the peer, correct or not, and
        /// calls of this end. Shows that the end never holds more calls and requests than its limits permit, and that
        /// each answer reaches only its own call.
        #[test]
        fn nothing_is_misrouted_or_grows(steps in prop::collection::vec((0u8..7, 0u64..12), 1..300)) {
            let mut routes = routes_with(4, 4);
            let mut waiting = BTreeSet::new();
            for (step, id) in steps {
                let payload = id.to_le_bytes();
                let sorted = match step {
                    0 => {
                        waiting.extend(routes.begin());
                        Ok(None)
                    }
                    1 => routes.sort(message(CallKind::Request, id, &payload)),
                    2 => routes.sort(message(CallKind::Reply, id, &payload)),
                    3 => routes.sort(message(CallKind::NoReply, id, b"")),
                    4 => routes.sort(message(CallKind::Cancel, id, b"")),
                    5 => {
                        if waiting.remove(&id) {
                            drop(routes.abandon(id));
                        }
                        Ok(None)
                    }
                    _ => {
                        if let Some(queued) = routes.next_request() {
                            routes.begin_answer(queued.id);
                            routes.end_answer(queued.id, true);
                        }
                        Ok(None)
                    }
                };
                if let Err(error) = sorted {
                    prop_assert!(matches!(error, Error::BadPeer(_)));
                }
                for id in waiting.clone() {
                    if let Some(answer) = routes.take_answer(id) {
                        waiting.remove(&id);
                        if let Some(message) = unwanted(answer) {
                            prop_assert_eq!(message.bytes(), id.to_le_bytes());
                        }
                    }
                }
                prop_assert!(routes.in_flight() <= 4 && routes.serving.len() <= 4 && routes.requests.len() <= 4);
                prop_assert!(routes.deferred.len() <= 4 && routes.unanswered <= routes.in_flight());
                if id % 3 == 0
                    && let Some((kind, id)) = routes.deferred.pop_front()
                {
                    prop_assert_eq!(kind, CallKind::NoReply);
                    routes.answered(id);
                }
            }
        }
    }
}
