//! What the threads that use an end of calls share, and how they wait: whoever waits receives for all.

use std::io::IoSlice;
use std::time::Duration;

use super::ground::{Channel, Deadline, Instant, Mutex, WakeOnDrop, check_fork, holding_back, sleep, yield_now};
use super::routes::Routes;
use super::waiting::{Locked, Waits};
use super::wire::{self, Kind, TRAILER};
use crate::channel::SendError;
use crate::channel::handle::Handle;
use crate::channel::message::{Message, Outgoing, Parts};
use crate::error::Error;

/// Messages that are received at a time.
const BATCH: usize = 16;

/// Payloads up to here are copied together with their trailer: that is cheaper than to gather the two.
const SMALL: usize = 240;

/// How long a thread that waits for room does so before it looks whether somebody receives, at first and at last.
const SLICE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(16));

/// How soon what found no room is tried again.
const RETRY: Duration = Duration::from_millis(5);

/// What the threads that use an end share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) channel: Channel,
    routes: Mutex<Routes>,
}

impl Shared {
    pub(super) fn new(channel: Channel, routes: Routes) -> Self {
        Self { channel, routes: Mutex::new(routes) }
    }

    /// Whether it is of another process: the parent of this one.
    pub(super) fn is_elsewhere(&self) -> bool {
        check_fork(&self.channel).is_err()
    }

    pub(super) fn routes(&self) -> Locked<'_> {
        Locked::new(&self.routes)
    }

    /// Makes a call: finds it a place, and sends it. If the peer need not be woken before this thread `waits`, what wakes it.
    pub(super) fn begin(
        &self,
        request: Outgoing<'_>,
        deadline: Deadline,
        waits: bool,
    ) -> Result<(u64, Option<WakeOnDrop>), SendError> {
        let place = |routes: &mut Routes| Some((routes.begin()?, waits && routes.has_company()));
        let (id, deferred_wake) = match self.wait_until(Waits::Place, deadline, None, place) {
            Ok(begun) => begun,
            Err(error) => return Err(SendError::new(error, request.handles)),
        };
        let sent = self.send(request, Kind::Request, id, deadline, deferred_wake);
        let deferred_wake = sent.inspect_err(|_| self.routes().forget(id))?;
        Ok((id, deferred_wake))
    }

    /// Sends a message with its trailer. While there is no room somebody receives, and if it is this thread. `deferred_wake` if the peer
    /// may be left to be woken by whoever gets what this returns.
    pub(super) fn send(
        &self,
        message: Outgoing<'_>,
        kind: Kind,
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
                self.channel.end.send(&mut message, slice).map(|()| None)
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
            // What the other end sends makes no room here; but it may wait, as this one does, for somebody to take it.
            let mut routes = self.routes();
            if !routes.receiving && routes.ended.is_none() {
                routes = self.receive(routes, false, Deadline::NOW).1;
                routes.hand_over();
            }
            drop(routes);
            slice = Deadline::after(deadline.within(wait));
            wait = (wait * 2).min(SLICE.1);
        }
    }

    /// Nobody waits for the answer to this call any more.
    pub(super) fn cancel(&self, id: u64) {
        let mut routes = self.routes();
        if routes.abandon(id) && routes.ended.is_none() {
            routes.deferred.push_back((Kind::Cancel, id));
        }
        self.flush(routes);
    }

    /// Says what was put off, as far as there is room.
    pub(super) fn flush(&self, mut routes: Locked<'_>) {
        while let Some((kind, id)) = routes.deferred.front().copied() {
            // Small, and at once or not at all: under the lock, so that it is said once.
            match holding_back(|| self.channel.try_send(&wire::encode(kind, id))) {
                // Or somebody waits for what was never said.
                Err(SendError { error, .. }) if error == Error::WouldBlock || error.passes() => return,
                _ => {
                    routes.said(kind, id);
                    routes.deferred.pop_front();
                }
            }
        }
    }

    /// Waits until there is what `find` looks for. The peer is woken before this sleeps.
    pub(super) fn wait_until<T>(
        &self,
        what: Waits,
        deadline: Deadline,
        mut deferred_wake: Option<WakeOnDrop>,
        mut find: impl FnMut(&mut Routes) -> Option<T>,
    ) -> Result<T, Error> {
        check_fork(&self.channel)?;
        let (found, mut routes) = self.look_until(what, deadline, &mut deferred_wake, &mut find);
        routes.pass_on(what);
        routes.hand_over();
        drop(routes);
        // If it was not woken before.
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
        // Of one that must not wait, whether it has looked at the channel.
        let mut looked = false;
        // Whether others were let run since something came.
        let mut paused = false;
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
            if routes.receiving && routes.pauses.are_here() && routes.deferred_wake.is_none() {
                routes.deferred_wake = deferred_wake.take();
            }
            let pauses = !paused && !routes.receiving && routes.roused > 0 && !deadline.is_now();
            if !pauses && deferred_wake.is_some() {
                drop(routes);
                *deferred_wake = None;
                routes = self.routes();
                continue;
            }
            if routes.receiving {
                let left = deadline.remaining(Instant::now());
                if left.is_some_and(|left| left.is_zero()) {
                    return (Err(Error::TimedOut), routes);
                }
                routes = routes.sleep(what, left);
                continue;
            }
            let until = if pauses { Deadline::NOW } else { deadline };
            let (received, back) = self.receive(routes, what.takes_requests(), until);
            routes = back;
            looked = true;
            match received {
                Ok(()) => paused = false,
                Err(Error::WouldBlock) if pauses => {
                    routes = self.pause(routes, deferred_wake);
                    paused = true;
                }
                Err(error) => {
                    // What came just before counts.
                    let found = find(&mut routes);
                    return (found.ok_or(error), routes);
                }
            }
        }
    }

    /// Lets the threads run that were woken, if they share this processor and that pays. To be called if nobody receives.
    fn pause<'a>(&'a self, mut routes: Locked<'a>, deferred_wake: &mut Option<WakeOnDrop>) -> Locked<'a> {
        let roused = routes.roused;
        if !self.channel.end.sleeps_at_once() {
            return routes;
        }
        let Some(pause) = routes.pauses.begin(roused) else { return routes };
        routes.receiving = true;
        drop(routes);
        yield_now();
        let mut routes = self.routes();
        routes.receiving = false;
        let roused = routes.roused;
        routes.pauses.end(&pause, roused);
        if let Some(left) = routes.deferred_wake.take() {
            // One of the two at most is of a peer that sleeps still.
            drop(routes);
            *deferred_wake = Some(left);
            routes = self.routes();
        }
        routes
    }

    /// Receives what is there, or waits for it until the deadline, and sorts it. To be called if nobody receives, by a thread
    /// that waits for this; `takes` if it takes a request.
    pub(super) fn receive<'a>(
        &'a self,
        mut routes: Locked<'a>,
        takes: bool,
        deadline: Deadline,
    ) -> (Result<(), Error>, Locked<'a>) {
        routes.receiving = true;
        let mut batch = std::mem::take(&mut routes.batch);
        let received = loop {
            let deferred = !routes.deferred.is_empty();
            if deferred {
                self.flush(routes);
            } else {
                drop(routes);
            }
            // What found no room is tried again soon.
            let soon = deferred && !deadline.has_passed();
            let until = if soon { Deadline::after(deadline.within(RETRY)) } else { deadline };
            match self.channel.recv_onto(&mut batch, BATCH, until) {
                Err(Error::TimedOut) if deferred && !deadline.has_passed() => {}
                // Too much is held for the peer, or this process lacks something: that passes.
                Err(error) if error.passes() && !deadline.has_passed() => {
                    sleep(deadline.within(RETRY));
                }
                received => break received,
            }
            routes = self.routes();
        };
        let mut unwanted = Vec::new();
        // A peer may send anything; what is a call's is not sealed.
        batch.iter_mut().for_each(Message::own_bytes);
        let mut routes = self.routes();
        let mut outcome = received;
        let before = routes.requests.len();
        for message in batch.drain(..) {
            match routes.sort(message) {
                Ok(message) => unwanted.extend(message),
                Err(error) => outcome = Err(self.channel.end.break_off(error)),
            }
        }
        routes.batch = batch;
        let came = routes.requests.len().saturating_sub(before);
        routes.wake_for_requests(came, takes);
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
