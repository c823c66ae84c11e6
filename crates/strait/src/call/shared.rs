//! The state that all threads of a call end share, and how the threads wait: one waiting thread receives for all.

use std::io::IoSlice;
use std::time::Duration;

use super::platform::{
    Channel, Deadline, Instant, Mutex, WakeOnDrop, check_fork, check_interruption, check_signals, postponed, sleep,
    yield_now,
};
use super::routes::Routes;
use super::waiting::{Locked, Waits};
use super::wire::{self, CallKind, TRAILER};
use crate::channel::SendError;
use crate::channel::handle::Handle;
use crate::channel::message::{Outgoing, Parts};
use crate::error::Error;

/// The greatest number of messages that are received in one batch.
const BATCH: usize = 16;

/// A batch ends with the message with which it has this number of bytes, and so do the batches of a call that must not
/// wait. So a receiving thread looks at its deadline, and at other ends, in time.
pub(super) const BATCH_BYTES: usize = 1 << 20;

/// The greatest number of batches that one call receives if it must not wait.
pub(super) const BATCHES: usize = 16;

/// Length in bytes of the longest payload that is copied into one buffer with its trailer. For such payloads a copy is
/// cheaper than sending two pieces.
const SMALL: usize = 240;

/// The first and the longest time that a thread waits for room to send before it checks whether any thread of its call
/// end receives. The time doubles with each check.
const SLICE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// The pause before a receiving thread tries again: to send a deferred message for which there was no room, or to
/// receive after a temporary error.
const RETRY: Duration = Duration::from_millis(5);

/// The state of one call end, shared by all its threads: the channel, and the routes (calls, requests and waiters)
/// under their lock.
pub(super) struct CallShared {
    pub(super) channel: Channel,
    pub(super) routes: Mutex<Routes>,
}

impl std::fmt::Debug for CallShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CallShared").field("channel", &self.channel).finish_non_exhaustive()
    }
}

impl CallShared {
    pub(super) fn new(channel: Channel, routes: Routes) -> Self {
        // For `Channel::nudge_receiver`.
        channel.make_interruptible();
        Self { channel, routes: Mutex::new(routes) }
    }

    /// Returns whether this process is a forked child and its parent made the call end. If so, the child must not use
    /// the call end.
    pub(super) fn is_elsewhere(&self) -> bool {
        check_fork(&self.channel).is_err()
    }

    pub(super) fn routes(&self) -> Locked<'_> {
        Locked::new(self)
    }

    /// Makes a call: waits for a slot and for room until the deadline, and sends the request. Returns the number of the
    /// call and, if the peer still has to be woken, a [`WakeOnDrop`], whose drop wakes the peer. A `WakeOnDrop` is
    /// returned only if `waits` is true (the caller will wait for the answer) and other threads of the end run soon.
    /// After an error the request was not sent; the error contains its handles.
    pub(super) fn begin(
        &self,
        request: Outgoing<'_>,
        deadline: Deadline,
        waits: bool,
    ) -> Result<(u64, Option<WakeOnDrop>), SendError> {
        let slot = |routes: &mut Routes| Some((routes.begin()?, waits && routes.has_company()));
        let (id, deferred_wake) = match self.wait_until(Waits::Slot, deadline, None, slot) {
            Ok(begun) => begun,
            Err(error) => return Err(SendError::new(error, request.handles)),
        };
        let sent = self.send(request, CallKind::Request, id, deadline, deferred_wake);
        let deferred_wake = sent.inspect_err(|_| {
            let forgotten = self.routes().forget(id);
            // The lock is released. A bad peer may have answered the call, and the answer may hold ends, whose drop
            // runs user code.
            drop(forgotten);
        })?;
        Ok((id, deferred_wake))
    }

    /// Sends `message`, followed by the trailer (the role `kind` and the call number `id`); waits for room until the
    /// deadline. While there is no room, some thread of the end receives, if necessary the calling thread. If
    /// `deferred_wake` is true and the peer sleeps, does not wake the peer but returns a [`WakeOnDrop`], whose drop
    /// wakes the peer; otherwise returns `None`.
    pub(super) fn send(
        &self,
        message: Outgoing<'_>,
        kind: CallKind,
        id: u64,
        deadline: Deadline,
        deferred_wake: bool,
    ) -> Result<Option<WakeOnDrop>, SendError> {
        let trailer = wire::encode(kind, id);
        match message.parts {
            Parts::One(bytes) if bytes.len() <= SMALL => {
                let mut whole = [0; SMALL + TRAILER];
                whole[..bytes.len()].copy_from_slice(bytes);
                whole[bytes.len()..][..TRAILER].copy_from_slice(&trailer);
                self.send_whole(Parts::One(&whole[..bytes.len() + TRAILER]), message.handles, deadline, deferred_wake)
            }
            Parts::One(bytes) => {
                let parts = [IoSlice::new(bytes), IoSlice::new(&trailer)];
                self.send_whole(Parts::Many(&parts), message.handles, deadline, deferred_wake)
            }
            Parts::Many(parts) => {
                let parts: Vec<_> = parts.iter().copied().chain([IoSlice::new(&trailer)]).collect();
                self.send_whole(Parts::Many(&parts), message.handles, deadline, deferred_wake)
            }
        }
    }

    fn send_whole(
        &self,
        parts: Parts<'_>,
        handles: Vec<Handle>,
        deadline: Deadline,
        deferred_wake: bool,
    ) -> Result<Option<WakeOnDrop>, SendError> {
        let mut message = Outgoing { parts, handles };
        let mut slice = Deadline::NOW;
        let mut wait = SLICE.0;
        loop {
            let sent = if deferred_wake {
                self.channel.end.send_with_deferred_wake(&mut message, slice)
            } else {
                self.channel.end.send_any(&mut message, slice).map(|()| None)
            };
            match sent {
                Err(SendError { error: Error::WouldBlock | Error::TimedOut, handles: back }) => {
                    if deadline.is_now() || deadline.has_passed() {
                        let error = if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut };
                        return Err(SendError::new(error, back));
                    }
                    message.handles = back;
                }
                sent => return sent,
            }
            // A message from the other end makes no room here. But the other end may wait for room too, until this end
            // receives.
            let mut routes = self.routes();
            if routes.receiving.is_none() && routes.ended.is_none() {
                if !routes.pauses() {
                    routes = self.receive(routes, Waits::Nothing, Deadline::NOW).1;
                }
                self.flush_or_wake(&mut routes);
                routes.hand_over();
            }
            drop(routes);
            slice = Deadline::after(deadline.within(wait));
            wait = (wait * 2).min(SLICE.1);
        }
    }

    /// Records that the caller of the call `id` no longer waits, and tells the server so if the call has no answer yet.
    pub(super) fn cancel(&self, id: u64) {
        let mut routes = self.routes();
        if let Some(answer) = routes.take_answer(id) {
            routes.counters.late += 1;
            drop(routes);
            // The answer may hold ends, whose drop runs user code.
            drop(answer);
        } else if let Some(abandoned) = routes.abandon(id) {
            self.send_soon(routes, CallKind::Cancel, id);
            // The call may hold the waker of a task, whose drop runs user code.
            drop(abandoned);
        }
    }

    /// Tells the caller of the request `id` that there will be no reply.
    pub(super) fn refuse(&self, id: u64) {
        self.send_soon(self.routes(), CallKind::NoReply, id);
    }

    /// Sends a cancellation or an answer without a payload, now or as soon as there is room. Does nothing if the end
    /// has ended. Releases the lock `routes`.
    fn send_soon(&self, mut routes: Locked<'_>, kind: CallKind, id: u64) {
        if routes.ended.is_none() {
            routes.deferred.push_back((kind, id));
            self.flush_or_wake(&mut routes);
        }
    }

    /// Sends the deferred messages, or leaves them to the thread that receives, or to the reactor of the end: these try
    /// again until there is room. Without such a thread and without a reactor, the next thread that waits on the end
    /// sends the messages.
    #[inline]
    fn flush_or_wake(&self, routes: &mut Locked<'_>) {
        if !self.flush(routes) {
            routes.wake_reactor();
            if routes.receiving.is_some() {
                routes.woken.receiver();
            }
        }
    }

    /// Sends the cancellations and answers without a payload that were deferred for lack of room, as long as there is
    /// room. Returns whether none is left.
    #[inline]
    pub(super) fn flush(&self, routes: &mut Locked<'_>) -> bool {
        routes.deferred.is_empty() || self.flush_some(routes)
    }

    /// Does what [`flush`](Self::flush) does, for at least one message.
    #[cold]
    fn flush_some(&self, routes: &mut Locked<'_>) -> bool {
        while let Some((kind, id)) = routes.deferred.front().copied() {
            // The message is small and sent at once or not at all. The lock is held, so that the message is sent only
            // once.
            match postponed(|| self.channel.try_send(&wire::encode(kind, id))) {
                // If the message were dropped here, the other end would wait for the message without end.
                Err(SendError { error, .. }) if error == Error::WouldBlock || error.passes() => return false,
                _ => {
                    if kind == CallKind::NoReply {
                        routes.answered(id);
                    }
                    routes.deferred.pop_front();
                }
            }
        }
        true
    }

    /// Waits until `find` returns a value, or until the deadline, and returns the value. Fails at the deadline, or with
    /// the error with which the call end has ended. `what` is the event for which `find` looks. `deferred_wake` is a
    /// wake-up still due to the peer, if any; the calling thread drops it before sleeping or returning, and the drop
    /// wakes the peer.
    pub(super) fn wait_until<T>(
        &self,
        what: Waits,
        deadline: Deadline,
        mut deferred_wake: Option<WakeOnDrop>,
        mut find: impl FnMut(&mut Routes) -> Option<T>,
    ) -> Result<T, Error> {
        check_fork(&self.channel)?;
        let (found, mut routes) = self.look_until(what, deadline, &mut deferred_wake, &mut find);
        // A cancellation that this thread has received may have caused a message.
        self.flush_or_wake(&mut routes);
        routes.pass_on(what);
        routes.hand_over();
        drop(routes);
        // The drop wakes the peer, unless the peer was woken before.
        drop(deferred_wake);
        found
    }

    fn look_until<T>(
        &self,
        what: Waits,
        deadline: Deadline,
        deferred_wake: &mut Option<WakeOnDrop>,
        find: &mut impl FnMut(&mut Routes) -> Option<T>,
    ) -> (Result<T, Error>, Locked<'_>) {
        let mut routes = self.routes();
        // The number of receives by this thread that have brought messages, and their limit for a call that must not
        // wait; and the number of received bytes.
        let (mut receives, most, mut bytes) = (0, if what == Waits::Slot { 1 } else { BATCHES }, 0);
        // Whether the calling thread has yielded since its last receive.
        let mut paused = false;
        loop {
            if let Some(found) = find(&mut routes) {
                return (Ok(found), routes);
            }
            if let Some(error) = routes.ended {
                return (Err(error), routes);
            }
            if deadline.is_now() && (routes.receiving.is_some() || receives >= most || bytes >= BATCH_BYTES) {
                return (Err(Error::WouldBlock), routes);
            }
            if receives > 0
                && let Err(error) = Self::goes_on(deadline)
            {
                return (Err(error), routes);
            }
            if routes.receiving.is_some() && routes.yield_policy.are_here() && routes.deferred_wake.is_none() {
                routes.deferred_wake = deferred_wake.take();
            }
            let yield_policy = !paused && routes.receiving.is_none() && routes.woken_threads > 0 && !deadline.is_now();
            if !yield_policy && deferred_wake.is_some() {
                drop(routes);
                *deferred_wake = None;
                routes = self.routes();
                continue;
            }
            if routes.receiving.is_some() {
                let left = deadline.remaining(Instant::now());
                if left.is_some_and(|left| left.is_zero()) {
                    return (Err(Error::TimedOut), routes);
                }
                if let Err(error) = check_signals() {
                    return (Err(error), routes);
                }
                routes = routes.sleep(what, left);
                continue;
            }
            let until = if yield_policy { Deadline::NOW } else { deadline };
            let (received, back) = self.receive(routes, what, until);
            routes = back;
            match received {
                Ok(()) => {
                    paused = false;
                    receives += 1;
                    bytes += routes.batch_bytes;
                }
                Err(Error::WouldBlock) if yield_policy => {
                    routes = self.pause(routes, deferred_wake);
                    paused = true;
                }
                Err(error) => {
                    // The messages received just before the error may contain what `find` looks for.
                    let found = find(&mut routes);
                    return (found.ok_or(error), routes);
                }
            }
        }
    }

    /// Checks whether a wait may receive again after a receive that brought messages, but not the awaited event. The
    /// peer can send messages for other threads without end, and a receive that finds a message ends neither at the
    /// deadline nor at a signal.
    fn goes_on(deadline: Deadline) -> Result<(), Error> {
        match () {
            () if deadline.is_now() => Ok(()),
            () if deadline.has_passed() => Err(Error::TimedOut),
            () => check_signals(),
        }
    }

    /// Yields: lets other threads that were woken run first, before the calling thread sleeps. Returns at once if the
    /// yield policy skips the yield. `routes` is the lock, which is released meanwhile and returned locked. No thread
    /// may be receiving. If another thread has left a wake-up for the peer in the routes, puts the wake-up into
    /// `deferred_wake`.
    fn pause<'a>(&'a self, mut routes: Locked<'a>, deferred_wake: &mut Option<WakeOnDrop>) -> Locked<'a> {
        let woken_threads = routes.woken_threads;
        if !self.channel.end.sleeps_at_once() {
            return routes;
        }
        let Some(pause) = routes.yield_policy.begin(woken_threads) else { return routes };
        routes.receiving = Some(Waits::Nothing);
        drop(routes);
        yield_now();
        let mut routes = self.routes();
        routes.receiving = None;
        let woken_threads = routes.woken_threads;
        routes.yield_policy.end(&pause, woken_threads);
        if let Some(left) = routes.deferred_wake.take() {
            // At most one of the two deferred wake-ups is for a peer that still sleeps.
            drop(routes);
            *deferred_wake = Some(left);
            routes = self.routes();
        }
        routes
    }

    /// Receives the messages that have arrived, or waits for messages until the deadline, and gives them to their calls
    /// or to the queue of requests. No other thread may be receiving. `what` is the event for which the calling thread
    /// waits. Returns `Ok` if messages were received, or if another thread wants the calling thread to look again for
    /// its event; otherwise the error of the receive ([`Error::WouldBlock`] or [`Error::TimedOut`] at the deadline).
    /// Also returns the lock of the routes, which is released while the thread receives.
    pub(super) fn receive<'a>(
        &'a self,
        mut routes: Locked<'a>,
        what: Waits,
        deadline: Deadline,
    ) -> (Result<(), Error>, Locked<'a>) {
        routes.begin_receive(what);
        let mut batch = std::mem::take(&mut routes.batch);
        let received = loop {
            let deferred = !self.flush(&mut routes);
            drop(routes);
            // A message that found no room is tried again soon.
            let soon = deferred && !deadline.has_passed();
            let until = if soon { Deadline::after(deadline.within(RETRY)) } else { deadline };
            match self.channel.recv_onto(&mut batch, BATCH, BATCH_BYTES, until) {
                Err(Error::TimedOut) if deferred && !deadline.has_passed() => {}
                // Another thread has deferred a message, or has freed a call slot: see `Routes::woken`.
                Err(Error::Interrupted) if self.channel.take_nudge() => break Ok(()),
                // A limit is reached for the peer, or this process lacks a resource: a later attempt can succeed. But
                // no wait without a deadline may outlive the peer.
                Err(error) if error.passes() && !deadline.has_passed() && !self.channel.is_peer_closed() => {
                    sleep(deadline.within(RETRY));
                    if self.channel.take_nudge() {
                        break Ok(());
                    }
                    if let Err(error) = check_interruption(&self.channel) {
                        break Err(error);
                    }
                }
                received => break received,
            }
            routes = self.routes();
        };
        let mut unwanted = Vec::new();
        let mut routes = self.routes();
        routes.receiving = None;
        let mut outcome = received;
        let before = routes.waiting_requests();
        routes.batch_bytes = batch.iter().map(|message| message.bytes.len()).sum();
        for message in batch.drain(..) {
            // A refused message may hold ends, whose drop runs user code.
            match postponed(|| routes.sort(message)) {
                Ok(message) => unwanted.extend(message),
                Err(error) => outcome = Err(self.channel.end.break_off(error)),
            }
        }
        routes.batch = batch;
        let came = routes.waiting_requests().saturating_sub(before);
        routes.wake_for_requests(came, what.takes_requests());
        if let Err(error @ (Error::PeerClosed | Error::BadPeer(_) | Error::Forked)) = outcome {
            routes.end(error);
        }
        if !unwanted.is_empty() {
            // The dropped messages may hold ends, whose drop runs user code.
            drop(routes);
            drop(unwanted);
            routes = self.routes();
        }
        (outcome, routes)
    }
}
