//! Call ends for tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::task::{Context, Poll, Wake, Waker, ready};

use super::source::Turns;
use super::{OnEvent, Reactor};
use crate::blocked_on::{self, BlockedOn, BlockedSends};
use crate::call::{CallEnd, CallError, Replier, Request};
use crate::channel::SendError;
use crate::channel::message::{Message, Outgoing};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::{Event, Interest};
use crate::wakers::{FutureId, Wakers};

/// A call end for tasks: calls and requests wait without blocking a thread. [`Reactor::turn`] receives the messages
/// that have arrived, and wakes the tasks that wait for them. When the `AsyncCallEnd` is dropped, each
/// [`PendingCall`](crate::call::PendingCall) of the end that a task awaits fails with [`Error::ReactorEnded`].
///
/// Example: [tasks](crate::task).
pub struct AsyncCallEnd {
    source: Arc<Source>,
}

struct Source {
    /// The call end; `None` after it was taken out of the reactor.
    end: Option<CallEnd>,
    reactor: Reactor,
    key: u64,
    /// The tasks whose requests or replies could not be sent, each with the obstacle of its last attempt (such as
    /// missing room); `None` if the obstacle is not known.
    to_send: Mutex<Wakers<Option<BlockedOn>>>,
    turns: Turns,
}

impl AsyncCallEnd {
    /// Puts the call end `end` into `reactor`, and returns it for use by tasks. Threads may still use the call end too,
    /// through [`get_ref`](Self::get_ref).
    ///
    /// # Errors
    /// As [`WaitSet::add`](crate::wait::WaitSet::add); the call end is dropped.
    pub fn new(end: CallEnd, reactor: &Reactor) -> Result<Self, Error> {
        end.set_undriven(false);
        let tasks = Mutex::default();
        let source = reactor.enter(|key| Source {
            end: Some(end),
            reactor: reactor.clone(),
            key,
            to_send: tasks,
            turns: Turns::default(),
        });
        source.end().set_reactor_waker(Some(Waker::from(Arc::new(ArmOnWake(Arc::downgrade(&source))))));
        let (set, channel) = (reactor.set(), source.end().channel());
        deferred::run_if_failed(set.arm(channel, None, source.key, Interest::Readable, BlockedSends::default()))?;
        if source.end().has_deferred() {
            source.arm_or_wake(unpoisoned(&source.to_send));
        }
        if reactor.has_ended() {
            source.on_end();
        }
        Ok(Self { source })
    }

    /// Returns the call end, for calls that do not wait.
    pub fn get_ref(&self) -> &CallEnd {
        self.source.end()
    }

    /// Takes the call end out of the reactor, and returns it. Tasks that wait for the end are not woken. Calls in
    /// flight go on: their [`PendingCall`](crate::call::PendingCall)s get the replies.
    pub fn into_inner(self) -> CallEnd {
        let reactor = self.source.reactor.clone();
        reactor.leave(self.source.key);
        let mut source = reactor.sole(self.source);
        let end = source.end.take().expect("taken out once");
        end.set_reactor_waker(None);
        let _ = source.reactor.set().remove(end.channel());
        end
    }

    /// Sends a request and waits for its reply. For a deadline, use the runtime's timeout.
    ///
    /// # Cancel safety
    /// Dropping the future cancels the call. Whether the request was carried out is then unknown, as after a deadline.
    ///
    /// # Errors
    /// See [`CallError`]. Its cause is [`Error::ReactorEnded`] if the task would have to wait and the reactor has
    /// ended.
    pub async fn call<'a>(&self, request: impl Into<Outgoing<'a>>) -> Result<Message, CallError> {
        let Outgoing { parts, mut handles } = request.into();
        let mut waiting = Waiting { source: &self.source, future: None };
        let pending = poll_fn(|context| {
            ready!(self.source.turns.poll_turn(context));
            // Whether the task is registered for a wake-up when there is a slot for a call, or room for the request.
            // After each registration the request is tried once more.
            let (mut awaits_slot, mut awaits_room) = (false, false);
            loop {
                let request = Outgoing { parts, handles: std::mem::take(&mut handles) };
                blocked_on::forget();
                match self.get_ref().begin_call(request, Deadline::NOW) {
                    Err(CallError::NotSent(SendError { error: Error::WouldBlock, handles: back })) => handles = back,
                    begun => return Poll::Ready(begun),
                }
                let blocked_on = blocked_on::take();
                // The task waits for a slot or for room, not for both: a task that has a slot and finds no room gives
                // the slot back, which wakes the tasks that wait for a slot.
                match self.get_ref().has_slot() {
                    false if !awaits_slot => {
                        self.get_ref().await_slot(waiting.future(), context.waker());
                        awaits_slot = true;
                    }
                    true if !awaits_room => {
                        self.source.await_room(Some(waiting.future()), context.waker(), blocked_on);
                        awaits_room = true;
                    }
                    _ if self.source.reactor.has_ended() => {
                        let failed = SendError::new(Error::ReactorEnded, std::mem::take(&mut handles));
                        return Poll::Ready(Err(CallError::NotSent(failed)));
                    }
                    _ => {
                        self.source.turns.wait();
                        return Poll::Pending;
                    }
                }
            }
        })
        .await?;
        drop(waiting);
        pending.await
    }

    /// Sends `answer` as the reply to the request of `replier`, a request of this end; waits for room. For a deadline,
    /// use the runtime's timeout. After an error, `reply` can be called again.
    ///
    /// ```no_run
    /// # use strait::task::AsyncCallEnd;
    /// # async fn serve(client: AsyncCallEnd) -> Result<(), strait::Error> {
    /// loop {
    ///     let (request, mut replier) = client.next_request().await?.into_parts();
    ///     client.reply(&mut replier, request.bytes()).await?;
    /// }
    /// # }
    /// ```
    ///
    /// # Cancel safety
    /// If the future is dropped before it is ready, nothing was sent, and the handles of the answer are closed. The
    /// request still needs a reply; if `replier` is dropped without one, the caller gets [`CallError::NotAnswered`].
    ///
    /// # Panics
    /// If the request was answered before, or came to another end.
    ///
    /// # Errors
    /// As [`Replier::reply`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would have to wait
    /// and the reactor has ended.
    pub async fn reply<'a>(&self, replier: &mut Replier, answer: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        let mut answer = answer.into();
        let mut waiting = Waiting { source: &self.source, future: None };
        poll_fn(|context| self.poll_to_reply(Some(&mut waiting), context, replier, &mut answer)).await
    }

    /// Sends `answer` as the future of [`reply`](Self::reply) does; for futures written by hand. If there is no room,
    /// returns `Pending`, and the task of `context` is woken when another attempt may succeed; the handles stay in
    /// `answer`.
    ///
    /// # Panics
    /// As [`AsyncCallEnd::reply`].
    ///
    /// # Errors
    /// As [`AsyncCallEnd::reply`].
    pub fn poll_reply(
        &self,
        context: &mut Context<'_>,
        replier: &mut Replier,
        answer: &mut Outgoing<'_>,
    ) -> Poll<Result<(), SendError>> {
        self.poll_to_reply(None, context, replier, answer)
    }

    fn poll_to_reply(
        &self,
        mut future: Option<&mut Waiting<'_>>,
        context: &mut Context<'_>,
        replier: &mut Replier,
        answer: &mut Outgoing<'_>,
    ) -> Poll<Result<(), SendError>> {
        assert!(replier.is_of(self.get_ref()), "a reply is sent over the end of its request");
        ready!(self.source.turns.poll_turn(context));
        let mut is_registered = false;
        loop {
            blocked_on::forget();
            let message = Outgoing { parts: answer.parts, handles: std::mem::take(&mut answer.handles) };
            match replier.reply(message, Deadline::NOW) {
                Err(SendError { error: Error::WouldBlock, handles: back }) => answer.handles = back,
                sent => return Poll::Ready(sent),
            }
            // After the registration the reply is tried once more.
            if is_registered {
                if self.source.reactor.has_ended() {
                    let handles = std::mem::take(&mut answer.handles);
                    return Poll::Ready(Err(SendError::new(Error::ReactorEnded, handles)));
                }
                self.source.turns.wait();
                return Poll::Pending;
            }
            let id = future.as_deref_mut().map(Waiting::future);
            self.source.await_room(id, context.waker(), blocked_on::take());
            is_registered = true;
        }
    }

    /// Waits for the next request of the other end, and returns it.
    ///
    /// # Cancel safety
    /// Dropping the future loses no request.
    ///
    /// # Errors
    /// As [`CallEnd::next_request`], except the errors of the deadline; [`Error::ReactorEnded`] if the task would have
    /// to wait and the reactor has ended.
    pub async fn next_request(&self) -> Result<Request, Error> {
        let mut waiting = Waiting { source: &self.source, future: None };
        poll_fn(|context| self.poll_request(Some(waiting.future()), context)).await
    }

    /// Returns the next request if there is one, as the future of [`next_request`](Self::next_request) does; for
    /// futures written by hand. If there is none, returns `Pending`, and the task of `context` is woken when a request
    /// arrives.
    ///
    /// # Errors
    /// As [`AsyncCallEnd::next_request`].
    pub fn poll_next_request(&self, context: &mut Context<'_>) -> Poll<Result<Request, Error>> {
        self.poll_request(None, context)
    }

    fn poll_request(&self, future: Option<FutureId>, context: &mut Context<'_>) -> Poll<Result<Request, Error>> {
        ready!(self.source.turns.poll_turn(context));
        let request = self.get_ref().poll_request(future, context.waker());
        if request.is_pending() {
            self.source.turns.wait();
        }
        request
    }
}

/// A future that waits on a call end. Its drop removes the waker of its task.
struct Waiting<'a> {
    source: &'a Source,
    /// The number of the future; `None` as long as it has registered no waker.
    future: Option<FutureId>,
}

impl Waiting<'_> {
    fn future(&mut self) -> FutureId {
        *self.future.get_or_insert_with(FutureId::new)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        // In a child of `fork`, a thread of the parent may have held the locks.
        if let Some(future) = self.future
            && !self.source.reactor.is_elsewhere()
        {
            self.source.end().forget_task(future);
            let forgotten = unpoisoned(&self.source.to_send).remove(future);
            drop(forgotten);
        }
    }
}

impl Source {
    fn end(&self) -> &CallEnd {
        self.end.as_ref().expect("taken out by value")
    }

    /// Registers a task whose request or reply could not be sent. `future` is the future that the task polls, if it is
    /// one of the library. `blocked_on` is the obstacle of its last attempt, such as missing room; the task is woken
    /// when another attempt may succeed.
    fn await_room(&self, future: Option<FutureId>, waker: &Waker, blocked_on: Option<BlockedOn>) {
        let mut to_send = unpoisoned(&self.to_send);
        let replaced = to_send.add(future, waker, blocked_on);
        self.arm_or_wake(to_send);
        drop(replaced);
        deferred::run();
    }

    /// Arms a one-shot event as [`arm`](Self::arm) does. If the call end has ended, no event would come, so the call
    /// wakes all tasks whose requests or replies wait.
    fn arm_or_wake(&self, mut to_send: MutexGuard<'_, Wakers<Option<BlockedOn>>>) {
        let woken = (!self.arm(&to_send)).then(|| to_send.take());
        drop(to_send);
        woken.into_iter().flatten().for_each(Waker::wake);
    }

    /// Arms a one-shot event for the channel in the wait set: for reading, unless the end receives nothing now, and for
    /// writing if a message waits to be sent. `to_send` are the tasks in [`Source::to_send`]. The caller must hold the
    /// lock of `to_send`; otherwise the calling thread could replace an event just armed by another thread by an event
    /// for an older state. Returns `false`, and arms nothing, if the call end has ended: such a channel is always
    /// ready.
    fn arm(&self, to_send: &Wakers<Option<BlockedOn>>) -> bool {
        if self.end().has_ended() {
            return false;
        }
        let mut blocked = BlockedSends { small_room: self.end().has_deferred(), ..BlockedSends::default() };
        to_send.values().for_each(|blocked_on| blocked.add(blocked_on.clone()));
        // The channel is armed for reading unless the end pauses, and for writing if a message found no room.
        let sends = blocked.small_room || !to_send.is_empty();
        let wanted = match (sends, self.end().pauses()) {
            (false, false) => Interest::Readable,
            (true, false) => Interest::Both,
            (true, true) => Interest::Writable,
            // The end wakes the reactor when it receives again.
            (false, true) => return true,
        };
        // The call fails only in the child of a `fork`, or if the program has put the channel into another wait set.
        // Callbacks of the program run later, without a lock.
        let _ = deferred::postponed(|| self.reactor.set().arm(self.end().channel(), None, self.key, wanted, blocked));
        true
    }
}

/// The waker that a call end wakes when it has to send a message for which there is no room, or when it receives again
/// after a pause: from then on the reactor waits for room, or for messages.
struct ArmOnWake(Weak<Source>);

impl Wake for ArmOnWake {
    fn wake(self: Arc<Self>) {
        if let Some(source) = self.0.upgrade() {
            source.arm(&unpoisoned(&source.to_send));
        }
    }
}

impl OnEvent for Source {
    fn on_event(&self, event: Event) {
        self.end().drain();
        let mut to_send = unpoisoned(&self.to_send);
        let woken = event.is_writable().then(|| to_send.take());
        self.arm_or_wake(to_send);
        deferred::run();
        woken.into_iter().flatten().for_each(Waker::wake);
    }

    fn on_end(&self) {
        self.end().set_undriven(true);
        let woken = unpoisoned(&self.to_send).take();
        woken.for_each(Waker::wake);
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        self.reactor.leave(self.key);
        if let Some(end) = &self.end {
            // Calls that the program has begun through the call end may go on, but nothing receives their replies.
            end.set_undriven(true);
            let _ = self.reactor.set().remove(end.channel());
        }
    }
}

impl fmt::Debug for AsyncCallEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AsyncCallEnd").field(self.get_ref()).finish()
    }
}
