//! A member of a wait set: the registration of a channel or of a data pipe's end.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{Conditions, Event, Interest, Mode, SharedSet};
use crate::blocked_on::{self, BlockedOn, BlockedSends};
use crate::channel::{End, Ready};
use crate::error::Error;
use crate::link::{InUse, Link};
use crate::pipe::Gate;
use crate::sync::unpoisoned;
use crate::wake::Direction;

/// How many doorbells in a row (empty messages that wake a data pipe's end) make a look at the end start over.
const DOORBELLS: usize = 16;

/// A link registration of a member: the link on which the member is armed, and its member id there.
#[derive(Debug)]
struct LinkRegistration {
    link: InUse,
    number: u32,
}

const IN: u8 = 0;
/// State of a member: its end was sent away, and its set has not reported that yet.
const MOVED: u8 = 1;
/// State of a member: it has left its set.
const OUT: u8 = 2;

/// A member of a wait set: the registration of a channel or of a data pipe's end.
#[derive(Debug)]
pub(crate) struct Member {
    set: Weak<SharedSet>,
    end: Weak<End>,
    /// The pipe, for an end of a data pipe; `None` for a channel. The set asks the pipe first whether the end is ready.
    gate: Option<Weak<dyn Gate>>,
    key: u64,
    pub(crate) interest: Interest,
    /// The conditions of a trap, for which the member waits in place of a message or room; `None` for other members.
    pub(crate) conditions: Option<Conditions>,
    mode: Mode,
    /// The events for which tasks wait to send; `None` for room for a small message.
    blocked: Mutex<Option<BlockedSends>>,
    /// Whether the member is in the queue of its set. Cleared before the member is looked at, so that a notification
    /// after that queues it again.
    queued: AtomicBool,
    /// Whether the set reports events of the member now. A one-shot member is armed until its first event.
    armed: AtomicBool,
    /// Whether the next packet in the socket of the member's link cannot be taken now, which the set has still to
    /// report.
    in_trouble: AtomicBool,
    state: AtomicU8,
    /// The link registrations of the member, one for each [`Direction`].
    registrations: Mutex<[Option<LinkRegistration>; 2]>,
    /// Further links on which the member waits: to other ends for which tasks wait, with the member id there, or with
    /// full sockets, without an id.
    other_links: Mutex<Vec<(InUse, Option<u32>)>>,
}

/// The result of a set's look at a queued member.
pub(super) enum Examined {
    /// There is an event to report. If `again` is true, the member goes back into the queue.
    Event {
        event: Event,
        again: bool,
    },
    Nothing,
    /// The peer could not be told that the member waits, so the set looks at the member again soon.
    Retry,
}

impl Member {
    pub(super) fn new(
        set: &Arc<SharedSet>,
        end: &Arc<End>,
        gate: Option<Weak<dyn Gate>>,
        key: u64,
        interest: Interest,
        conditions: Option<Conditions>,
        mode: Mode,
    ) -> Arc<Self> {
        Arc::new(Self {
            set: Arc::downgrade(set),
            end: Arc::downgrade(end),
            gate,
            key,
            interest,
            conditions,
            mode,
            blocked: Mutex::new(None),
            queued: AtomicBool::new(false),
            armed: AtomicBool::new(true),
            in_trouble: AtomicBool::new(false),
            state: AtomicU8::new(IN),
            registrations: Mutex::default(),
            other_links: Mutex::default(),
        })
    }

    pub(super) fn key(&self) -> u64 {
        self.key
    }

    /// Sets what the tasks that wait to send are blocked on.
    pub(super) fn set_blocked(&self, blocked: BlockedSends) {
        *unpoisoned(&self.blocked) = Some(blocked);
        // These registrations served what was waited for before.
        self.leave_other_links(self.set.upgrade().as_ref());
    }

    /// Calls `act` with what the tasks that wait to send are blocked on; with `None` if that was never set.
    pub(crate) fn with_blocked<T>(&self, act: impl FnOnce(Option<&BlockedSends>) -> T) -> T {
        act(unpoisoned(&self.blocked).as_ref())
    }

    /// Returns the member's set, or `None` if the set was dropped or closed.
    pub(super) fn set(&self) -> Option<Arc<SharedSet>> {
        self.set.upgrade().filter(|set| !set.is_closed())
    }

    /// Returns whether the member's set still exists and is not closed.
    pub(crate) fn is_current(&self) -> bool {
        self.set().is_some()
    }

    /// Returns whether this is a member of `set`, for a caller that has the set's `Arc`.
    pub(crate) fn is_of(&self, set: &Arc<SharedSet>) -> bool {
        std::ptr::eq(self.set.as_ptr(), Arc::as_ptr(set))
    }

    /// Returns whether this is a member of `set`, for a caller that has no `Arc` of the set.
    pub(crate) fn is_in(&self, set: &SharedSet) -> bool {
        std::ptr::eq(self.set.as_ptr(), set)
    }

    /// Makes the set report an error of `link`, if the member is armed and waits for messages there; receiving then
    /// returns the error. Returns `false` for any other member.
    pub(super) fn report_trouble(self: &Arc<Self>, link: &InUse) -> bool {
        let registration = unpoisoned(&self.registrations)[Direction::Receiving as usize]
            .as_ref()
            .map(|registration| registration.link.clone());
        let reports = self.interest.readable()
            && self.conditions.is_none()
            && self.gate.is_none()
            && self.armed.load(Ordering::Acquire)
            && registration.is_some_and(|registration| Arc::ptr_eq(&registration, link));
        if reports {
            self.in_trouble.store(true, Ordering::Relaxed);
            self.notify();
        }
        reports
    }

    pub(super) fn is_out(&self) -> bool {
        self.state.load(Ordering::Acquire) == OUT
    }

    /// Disarms the member, so that its set reports nothing for it. Returns `false` if it was not armed, because an
    /// event of it was just reported.
    pub(super) fn disarm(&self) -> bool {
        self.armed.swap(false, Ordering::AcqRel)
    }

    /// Returns whether the set reports when this process closes the member's end. Only traps need that.
    pub(crate) fn reports_its_end(&self) -> bool {
        self.conditions.is_some()
    }

    pub(super) fn rearm(&self) {
        self.armed.store(true, Ordering::Release);
    }

    /// Puts the member into the queue of its set, because it may be ready. Does nothing if it is not armed or has left
    /// its set.
    pub(crate) fn notify(self: &Arc<Self>) {
        if self.armed.load(Ordering::Acquire) && self.state.load(Ordering::Acquire) == IN {
            self.enqueue();
        }
    }

    fn enqueue(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let Some(set) = self.set.upgrade()
        {
            set.push(self.clone());
        }
    }

    /// Marks the member as being in the queue of its set. Returns `false` if it was marked already.
    pub(super) fn set_queued(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Returns what the member has ready now. If that is nothing, tells the peer how to notify the member (arms it).
    pub(super) fn look(self: &Arc<Self>) -> Result<Ready, Error> {
        let Some(end) = self.end.upgrade() else { return Ok(Ready::NOTHING) };
        let Some(gate) = &self.gate else { return end.look(self) };
        for _ in 0..DOORBELLS {
            match gate.upgrade().and_then(|gate| gate.look()) {
                Some(Ready::NOTHING) => {}
                Some(ready) => return Ok(ready),
                None => return Ok(Ready::NOTHING),
            }
            // A doorbell that came meanwhile calls for another look.
            if end.look(self)? == Ready::NOTHING {
                return Ok(Ready::NOTHING);
            }
        }
        // The peer sends doorbells without end and has nothing.
        Err(Error::WouldBlock)
    }

    /// Looks at a member that was just taken from the queue, and returns what its set has to report.
    pub(super) fn examine(self: &Arc<Self>) -> Examined {
        self.queued.swap(false, Ordering::AcqRel);
        match self.state.load(Ordering::Acquire) {
            IN => {}
            MOVED if self.state.compare_exchange(MOVED, OUT, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
                return Examined::Event { event: Event::new(self.key, Ready::MOVED), again: false };
            }
            _ => return Examined::Nothing,
        }
        if !self.armed.load(Ordering::Acquire) {
            return Examined::Nothing;
        }
        // An end whose last receive failed for lack of a resource is not reported at once: its user would do nothing
        // else than call receive.
        if self.end.upgrade().is_some_and(|end| end.take_stumble()) {
            return Examined::Retry;
        }
        let in_trouble = self.in_trouble.swap(false, Ordering::Relaxed);
        match self.look() {
            Ok(Ready::NOTHING) if !in_trouble => Examined::Nothing,
            // If two threads look at the member at once, one of them reports it.
            Ok(_) if self.mode == Mode::OneShot && !self.armed.swap(false, Ordering::AcqRel) => Examined::Nothing,
            // The error is reported again when the next attempt to take the packet fails.
            Ok(Ready::NOTHING) => Examined::Event { event: Event::new(self.key, Ready::TROUBLE), again: false },
            Ok(ready) => Examined::Event { event: Event::new(self.key, ready), again: self.mode == Mode::Level },
            Err(_) => {
                self.await_room_to_say_so();
                Examined::Retry
            }
        }
    }

    /// Makes the set look again once a socket has room, if the last look failed because that socket was full.
    fn await_room_to_say_so(&self) {
        if let Some(BlockedOn::Socket(link, _)) = blocked_on::take()
            && let (Some(link), Some(set)) = (link.get::<Link>(), self.set.upgrade())
        {
            set.await_socket(&link);
        }
    }

    /// Returns the member id on `link` for `direction`. If the member is not registered there, registers it and ends
    /// the registration on another link.
    pub(crate) fn register_for(self: &Arc<Self>, direction: Direction, link: &InUse) -> Result<u32, Error> {
        let mut registrations = unpoisoned(&self.registrations);
        if let Some(registration) = &registrations[direction as usize]
            && Arc::ptr_eq(&registration.link, link)
        {
            return Ok(registration.number);
        }
        let Some(set) = self.set.upgrade().filter(|_| self.state.load(Ordering::Acquire) == IN) else {
            return Err(Error::NotInSet);
        };
        link.open_bitmap()?;
        set.use_link(link)?;
        let number = link.register(self).inspect_err(|_| set.leave_link(link))?;
        let old = registrations[direction as usize].replace(LinkRegistration { link: link.clone(), number });
        drop(registrations);
        if let Some(registration) = old {
            registration.link.unregister(registration.number);
            set.leave_link(&registration.link);
        }
        Ok(number)
    }

    /// Returns the member id on `link`, which leads to another end for which a task waits. Registers the member there
    /// if needed.
    pub(crate) fn register_at_other_link(self: &Arc<Self>, link: &InUse) -> Result<u32, Error> {
        let mut other_links = unpoisoned(&self.other_links);
        let known = other_links.iter().find_map(|(known, number)| number.filter(|_| Arc::ptr_eq(known, link)));
        if let Some(number) = known {
            return Ok(number);
        }
        let set = self.present_set()?;
        link.open_bitmap()?;
        set.use_link(link)?;
        let number = link.register(self).inspect_err(|_| set.leave_link(link))?;
        other_links.push((link.clone(), Some(number)));
        Ok(number)
    }

    /// Makes the set look at the member again once the socket of `link` has room.
    pub(crate) fn await_socket(&self, link: &InUse) -> Result<(), Error> {
        let mut other_links = unpoisoned(&self.other_links);
        let set = self.present_set()?;
        if !other_links.iter().any(|(known, _)| Arc::ptr_eq(known, link)) {
            set.use_link(link)?;
            other_links.push((link.clone(), None));
        }
        set.await_socket(link);
        Ok(())
    }

    fn present_set(&self) -> Result<Arc<SharedSet>, Error> {
        self.set.upgrade().filter(|_| self.state.load(Ordering::Acquire) == IN).ok_or(Error::NotInSet)
    }

    /// Ends the waits on further links: for other ends, and for full sockets.
    fn leave_other_links(&self, set: Option<&Arc<SharedSet>>) {
        let other_links = std::mem::take(&mut *unpoisoned(&self.other_links));
        for (link, number) in other_links {
            if let Some(number) = number {
                link.unregister(number);
            }
            if let Some(set) = set {
                set.leave_link(&link);
            }
        }
    }

    /// Takes the member out of its set. With `moved` the set reports that the end was sent away.
    pub(crate) fn take_out(self: &Arc<Self>, moved: bool) {
        let before = self.state.swap(if moved { MOVED } else { OUT }, Ordering::AcqRel);
        let registrations = std::mem::take(&mut *unpoisoned(&self.registrations));
        let set = self.set.upgrade();
        self.leave_other_links(set.as_ref());
        for registration in registrations.into_iter().flatten() {
            registration.link.unregister(registration.number);
            if let Some(set) = &set {
                set.leave_link(&registration.link);
            }
        }
        if let Some(set) = set.filter(|_| before == IN) {
            set.count_out(self);
        }
        if moved {
            self.enqueue();
        }
    }
}
