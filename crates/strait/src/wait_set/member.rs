//! A member of a wait set: the registration of a channel, of a data pipe's end or of a descriptor.

use std::any::Any;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::{Event, Interest, Mode, SharedSet};
use crate::blocked_on::{self, BlockedOn, BlockedSends};
use crate::channel::{Conditions, End, Ready, Watcher};
use crate::error::Error;
use crate::link::{InUse, Link, Listener, ListenerSet};
use crate::os::epoll::{self, Wanted};
use crate::os::fault;
use crate::pipe::Gate;
use crate::sync::unpoisoned;
use crate::wake::watched_fd::{FdWatcher, WatchedFd};
use crate::wake::{Direction, strict};

/// The most times in a row that one look checks the end of a data pipe again, each time because a doorbell (an empty
/// message that wakes the end) arrived during the check before. If the last check finds nothing either, the wait set
/// looks at the end again later.
const DOORBELLS: usize = 16;

/// A registration of a member of a wait set on a link: the link on which the member is armed, and its member id there.
#[derive(Debug)]
struct LinkRegistration {
    link: InUse,
    number: u32,
}

const IN: u8 = 0;
/// `MOVED`: the state of a member of a wait set whose end was sent away, as long as the wait set has not reported the
/// move.
const MOVED: u8 = 1;
/// `OUT`: the state of a member that was removed from its wait set.
const OUT: u8 = 2;

/// The object that a member of a wait set stands for.
#[derive(Debug)]
pub(super) enum Subject {
    End {
        end: Weak<End>,
        /// The gate of the data-pipe end, if the member is a data-pipe end; `None` for a channel. The wait set asks the
        /// gate first whether the end is ready.
        gate: Option<Weak<dyn Gate>>,
    },
    /// A descriptor of a listener or of the program, and the number under which the set's epoll instance reports it.
    Fd { fd: Weak<WatchedFd>, number: u64 },
}

impl Subject {
    pub(super) fn end(end: &Arc<End>, gate: Option<Weak<dyn Gate>>) -> Self {
        Self::End { end: Arc::downgrade(end), gate }
    }
}

/// The bit in a member's packed terms for waiting until the member is readable.
const READABLE: u8 = 1;
/// The bit in a member's packed terms for waiting until the member is writable.
const WRITABLE: u8 = 2;
/// The bit in a member's packed terms for reporting the member only once.
const ONE_SHOT: u8 = 4;

/// Returns the interest and the mode of a member, packed into bits.
fn terms(interest: Interest, mode: Mode) -> u8 {
    let bit = |is_so, bit| if is_so { bit } else { 0 };
    bit(interest.readable(), READABLE) | bit(interest.writable(), WRITABLE) | bit(mode == Mode::OneShot, ONE_SHOT)
}

/// The key, the interest and the mode of a registration, which [`Member::set_terms`] replaces.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    key: u64,
    packed: u8,
}

impl Terms {
    pub(super) fn new(key: u64, interest: Interest, mode: Mode) -> Self {
        Self { key, packed: terms(interest, mode) }
    }
}

/// A member of a wait set: the registration of a channel, of a data-pipe end or of a descriptor with the set.
#[derive(Debug)]
pub(crate) struct Member {
    me: Weak<Member>,
    set: Weak<SharedSet>,
    subject: Subject,
    key: AtomicU64,
    /// The interest and the mode, as [`terms`] packs them.
    terms: AtomicU8,
    /// The number of times that the key, the interest and the mode were replaced.
    replaced: AtomicU32,
    /// The conditions of a trap (a callback that is due when a condition is met), which replace the interest; `None`
    /// for a member without a trap.
    conditions: Option<Conditions>,
    /// Everything that the sends are blocked on for which tasks, or a program with
    /// [`await_room`](super::WaitSet::await_room), wait. `None` if no obstacle is noted, which stands for room for a
    /// small message.
    blocked: Mutex<Option<BlockedSends>>,
    /// Whether the member is in the queue of its wait set. Cleared before the wait set looks at the member, so that a
    /// later notification queues the member again.
    queued: AtomicBool,
    /// Whether the wait set reports events of the member now. A one-shot member is armed until its first event is
    /// reported.
    armed: AtomicBool,
    /// Whether the wait set has still to report that the member's link is stuck: the next packet in the link's socket
    /// could not be taken.
    in_trouble: AtomicBool,
    state: AtomicU8,
    /// The registrations of the member on links, one for each [`Direction`] of its end; `None` for a direction for
    /// which the member is not registered.
    registrations: Mutex<[Option<LinkRegistration>; 2]>,
    /// Further links on which the member waits, beside those of its own end. For a link of another end for which tasks
    /// wait, the entry has the member id on that link. For a link that is awaited only because its socket was full, the
    /// entry has `None`.
    other_links: Mutex<Vec<(InUse, Option<u32>)>>,
}

/// The result of a look at a member from the queue of its wait set.
pub(super) enum Examined {
    /// Result of the look: the wait set has to report the event. If `again`, the member goes back into the queue
    /// afterwards.
    Event {
        event: Event,
        again: bool,
    },
    Nothing,
    /// Result of the look: the peer could not be told now how to notify the member, so the wait set looks at the member
    /// again soon.
    Retry,
}

impl Member {
    pub(super) fn new(
        set: &Arc<SharedSet>,
        subject: Subject,
        Terms { key, packed }: Terms,
        conditions: Option<Conditions>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            set: Arc::downgrade(set),
            subject,
            key: AtomicU64::new(key),
            terms: AtomicU8::new(packed),
            replaced: AtomicU32::new(0),
            conditions,
            blocked: Mutex::new(None),
            queued: AtomicBool::new(false),
            armed: AtomicBool::new(true),
            in_trouble: AtomicBool::new(false),
            state: AtomicU8::new(IN),
            registrations: Mutex::default(),
            other_links: Mutex::default(),
        })
    }

    /// Returns the member of the wait set `set` that stands for `end`; `None` if the end is not in the set.
    pub(super) fn of(end: &End, set: &Arc<SharedSet>) -> Option<Arc<Self>> {
        let watcher: Arc<dyn Any + Send + Sync> = end.watcher()?;
        watcher.downcast::<Self>().ok().filter(|member| member.is_of(set))
    }

    /// Returns the member of the wait set `set` that stands for the descriptor `fd`; `None` if the descriptor is not in
    /// the set.
    pub(super) fn of_fd(fd: &WatchedFd, set: &Arc<SharedSet>) -> Option<Arc<Self>> {
        let watcher: Arc<dyn Any + Send + Sync> = fd.watcher()?;
        watcher.downcast::<Self>().ok().filter(|member| member.is_of(set))
    }

    fn listener(&self) -> Result<Arc<dyn Listener>, Error> {
        let me = self.me.upgrade().ok_or(Error::NotInSet)?;
        Ok(me)
    }

    pub(super) fn key(&self) -> u64 {
        self.key.load(Ordering::Relaxed)
    }

    fn has_term(&self, bit: u8) -> bool {
        self.terms.load(Ordering::Relaxed) & bit != 0
    }

    /// Returns whether the interest of the member is `interest`.
    pub(super) fn waits_in(&self, interest: Interest) -> bool {
        self.has_term(READABLE) == interest.readable() && self.has_term(WRITABLE) == interest.writable()
    }

    /// Replaces the key, the interest and the mode of the member, and returns the old values. The caller arms the
    /// member afterwards.
    pub(super) fn set_terms(&self, new: Terms) -> Terms {
        let key = self.key.swap(new.key, Ordering::Relaxed);
        let packed = self.terms.swap(new.packed, Ordering::SeqCst);
        self.replaced.fetch_add(1, Ordering::Release);
        Terms { key, packed }
    }

    fn event(&self, ready: Ready) -> Event {
        Event::new(self.key(), ready)
    }

    /// Replaces the note of what the tasks that wait to send from the member's end are blocked on. Ends the
    /// registrations on other links for the old note.
    pub(super) fn set_blocked(&self, blocked: BlockedSends) {
        *unpoisoned(&self.blocked) = Some(blocked);
        // The registrations on other links served the former obstacles of the tasks.
        self.leave_other_links(self.set.upgrade().as_ref());
    }

    /// Removes the note of what sends are blocked on, if there is one: the member is writable again when there is room
    /// for a small message.
    pub(super) fn forget_blocked(&self) {
        if unpoisoned(&self.blocked).take().is_some() {
            self.leave_other_links(self.set.upgrade().as_ref());
        }
    }

    /// Returns the wait set of the member; `None` if the set was dropped or closed.
    pub(super) fn set(&self) -> Option<Arc<SharedSet>> {
        self.set.upgrade().filter(|set| !set.is_closed())
    }

    /// Returns whether the member is in the wait set `set`, or was in it.
    pub(crate) fn is_of(&self, set: &Arc<SharedSet>) -> bool {
        std::ptr::eq(self.set.as_ptr(), Arc::as_ptr(set))
    }

    pub(super) fn is_out(&self) -> bool {
        self.state.load(Ordering::Acquire) == OUT
    }

    /// Disarms the member: the wait set reports no event of the member. Returns `false` if the member was not armed,
    /// for example because one of its events was just reported.
    pub(super) fn disarm(&self) -> bool {
        self.armed.swap(false, Ordering::AcqRel)
    }

    /// Arms the member: the wait set reports one more event of the member. Returns whether the member was armed before.
    pub(super) fn rearm(&self) -> bool {
        self.armed.swap(true, Ordering::AcqRel)
    }

    /// Puts the member into the queue of its wait set, because the member may be ready. Does nothing if the member is
    /// not armed, was removed from the set, or is in the queue already.
    pub(crate) fn notify(&self) {
        if self.armed.load(Ordering::Acquire) && self.state.load(Ordering::Acquire) == IN {
            self.enqueue();
        }
    }

    fn enqueue(&self) {
        if !self.queued.swap(true, Ordering::AcqRel)
            && let (Some(set), Some(me)) = (self.set.upgrade(), self.me.upgrade())
        {
            set.push(me);
        }
    }

    /// Marks the member as being in the queue of its wait set. Returns `false` if the member had the mark already.
    pub(super) fn set_queued(&self) -> bool {
        !self.queued.swap(true, Ordering::AcqRel)
    }

    pub(super) fn is_queued(&self) -> bool {
        self.queued.load(Ordering::Acquire)
    }

    /// Returns the events for which the member is ready now. If there are none, arms the member: tells the peer how to
    /// notify the member. Fails if the peer cannot be told now, or after [`DOORBELLS`] doorbells in a row without
    /// anything else.
    pub(super) fn look(&self) -> Result<Ready, Error> {
        match &self.subject {
            Subject::Fd { fd, number } => fd.upgrade().map_or(Ok(Ready::NOTHING), |fd| self.look_at_fd(&fd, *number)),
            Subject::End { end, gate } => {
                let Some(end) = end.upgrade() else { return Ok(Ready::NOTHING) };
                gate.as_ref().map_or_else(|| end.look(self), |gate| self.look_through(gate, &end))
            }
        }
    }

    /// Returns the events for which the descriptor `fd`, which the member stands for, is ready now. If there are none,
    /// makes the wait set's epoll instance report the descriptor under `number` when it becomes ready.
    fn look_at_fd(&self, fd: &WatchedFd, number: u64) -> Result<Ready, Error> {
        loop {
            let wanted = self.wanted();
            let found = epoll::look(fd, wanted)?;
            let ready = Ready::new(found.readable, found.writable);
            if ready == Ready::NOTHING {
                self.present_set()?.await_fd(number, fd.as_fd(), wanted)?;
            }
            // If another thread has changed the interest meanwhile, the calling thread may have overwritten the other
            // thread's setting in the epoll instance.
            if self.wanted() == wanted {
                return Ok(ready);
            }
        }
    }

    /// Returns the events for which the wait set waits, if the member stands for a descriptor.
    fn wanted(&self) -> Wanted {
        let terms = self.terms.load(Ordering::SeqCst);
        Wanted { readable: terms & READABLE != 0, writable: terms & WRITABLE != 0 }
    }

    /// Returns the events for which the data-pipe end `end` is ready now, as `gate` says. If there are none, arms the
    /// end.
    fn look_through(&self, gate: &Weak<dyn Gate>, end: &End) -> Result<Ready, Error> {
        for _ in 0..DOORBELLS {
            match gate.upgrade().and_then(|gate| gate.look()) {
                Some(Ready::NOTHING) => {}
                Some(ready) => return Ok(ready),
                None => return Ok(Ready::NOTHING),
            }
            // A doorbell that arrived in the meantime calls for another look.
            if end.look(self)? == Ready::NOTHING {
                return Ok(Ready::NOTHING);
            }
        }
        // The peer sends doorbells without end and has nothing.
        Err(Error::WouldBlock)
    }

    /// Returns whether `end`, the end of the member, is ready now. Does not arm the end. For the [check for lost
    /// wake-ups](crate::wake::strict).
    fn is_ready(&self, end: &End) -> bool {
        match &self.subject {
            Subject::End { gate: Some(gate), .. } => gate.upgrade().is_some_and(|gate| gate.has_sleeper()),
            _ => !end.rests_after_stumble() && end.is_ready_for(self),
        }
    }

    /// Returns whether the next wait looks at the member anyway.
    fn is_for_later(&self) -> bool {
        let Some(set) = self.set() else { return true };
        let ready = unpoisoned(&set.ready);
        ready.later.iter().any(|member| std::ptr::eq(Arc::as_ptr(member), self))
    }

    /// Looks at the member, which the caller has just taken from the wait set's queue of ready members. Returns the
    /// event that the wait set has to report, if any, and whether the set must look again.
    pub(super) fn examine(&self) -> Examined {
        self.queued.swap(false, Ordering::AcqRel);
        match self.state.load(Ordering::Acquire) {
            IN => {}
            MOVED if self.state.compare_exchange(MOVED, OUT, Ordering::AcqRel, Ordering::Relaxed).is_ok() => {
                return Examined::Event { event: self.event(Ready::MOVED), again: false };
            }
            _ => return Examined::Nothing,
        }
        if !self.armed.load(Ordering::Acquire) {
            return Examined::Nothing;
        }
        // An end whose last receive failed for lack of a resource is not reported at once: the program would call
        // receive again and again.
        if self.end().is_some_and(|end| end.rests_after_stumble()) {
            return Examined::Retry;
        }
        let in_trouble = self.in_trouble.swap(false, Ordering::Relaxed);
        let (replaced, key) = (self.replaced.load(Ordering::Acquire), self.key());
        let looked = self.look();
        fault::point("after a wait set has looked at a member");
        match looked {
            Ok(Ready::NOTHING) if !in_trouble => Examined::Nothing,
            // If two threads look at the member at once, only one thread reports the member.
            Ok(_) if self.has_term(ONE_SHOT) && !self.armed.swap(false, Ordering::AcqRel) => Examined::Nothing,
            // Another thread has replaced the interest meanwhile, and perhaps armed the member before the exchange
            // above.
            Ok(_) if self.replaced.load(Ordering::Acquire) != replaced => {
                self.in_trouble.fetch_or(in_trouble, Ordering::Relaxed);
                self.rearm();
                self.notify();
                Examined::Nothing
            }
            // The error is reported again when the next attempt to take the packet fails.
            Ok(Ready::NOTHING) => Examined::Event { event: Event::new(key, Ready::TROUBLE), again: false },
            Ok(ready) => Examined::Event { event: Event::new(key, ready), again: !self.has_term(ONE_SHOT) },
            Err(_) => {
                self.in_trouble.fetch_or(in_trouble, Ordering::Relaxed);
                self.await_room_to_say_so();
                Examined::Retry
            }
        }
    }

    /// If the last look at the member failed because a socket was full, makes the wait set look at the member again
    /// when the socket has room.
    fn await_room_to_say_so(&self) {
        if let Some(BlockedOn::Socket(link, _)) = blocked_on::take()
            && let (Some(link), Some(set)) = (link.get::<Link>(), self.set.upgrade())
        {
            set.await_socket(&link);
        }
    }

    /// Returns the end for which the member stands; `None` if the member stands for a descriptor, or the end was
    /// dropped.
    fn end(&self) -> Option<Arc<End>> {
        match &self.subject {
            Subject::End { end, .. } => end.upgrade(),
            Subject::Fd { .. } => None,
        }
    }

    fn present_set(&self) -> Result<Arc<SharedSet>, Error> {
        self.set.upgrade().filter(|_| self.state.load(Ordering::Acquire) == IN).ok_or(Error::NotInSet)
    }

    /// Ends the member's registrations on further links: the links of other ends for which tasks wait, and the links
    /// with full sockets. If `set`, the member's wait set, is given, also counts these registrations as ended in the
    /// wait set.
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
}

impl Watcher for Member {
    fn waits_for(&self, direction: Direction) -> bool {
        match direction {
            Direction::Receiving => self.has_term(READABLE),
            Direction::Sending => self.has_term(WRITABLE),
        }
    }

    fn conditions(&self) -> Option<&Conditions> {
        self.conditions.as_ref()
    }

    fn blocked(&self) -> MutexGuard<'_, Option<BlockedSends>> {
        unpoisoned(&self.blocked)
    }

    fn notify(&self) {
        Self::notify(self);
    }

    fn peer_was_on(&self, cpu: u32) {
        if let Some(set) = self.set.upgrade() {
            set.peer_was_on(cpu);
        }
    }

    fn is_current(&self) -> bool {
        self.set().is_some()
    }

    fn reports_its_end(&self) -> bool {
        self.conditions.is_some()
    }

    fn take_out(&self, moved: bool) {
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

    fn register_for(&self, direction: Direction, link: &InUse) -> Result<u32, Error> {
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
        let number = link.register(self.listener()?).inspect_err(|_| set.leave_link(link))?;
        let old = registrations[direction as usize].replace(LinkRegistration { link: link.clone(), number });
        drop(registrations);
        if let Some(registration) = old {
            registration.link.unregister(registration.number);
            set.leave_link(&registration.link);
        }
        Ok(number)
    }

    fn register_at_other_link(&self, link: &InUse) -> Result<u32, Error> {
        let mut other_links = unpoisoned(&self.other_links);
        let known = other_links.iter().find_map(|(known, number)| number.filter(|_| Arc::ptr_eq(known, link)));
        if let Some(number) = known {
            return Ok(number);
        }
        let set = self.present_set()?;
        link.open_bitmap()?;
        set.use_link(link)?;
        let number = link.register(self.listener()?).inspect_err(|_| set.leave_link(link))?;
        other_links.push((link.clone(), Some(number)));
        Ok(number)
    }

    fn await_socket(&self, link: &InUse) -> Result<(), Error> {
        let mut other_links = unpoisoned(&self.other_links);
        let set = self.present_set()?;
        if !other_links.iter().any(|(known, _)| Arc::ptr_eq(known, link)) {
            set.use_link(link)?;
            other_links.push((link.clone(), None));
        }
        set.await_socket(link);
        Ok(())
    }
}

impl FdWatcher for Member {
    fn is_current(&self) -> bool {
        self.set().is_some()
    }

    fn take_out(&self, fd: BorrowedFd<'_>) {
        let before = self.state.swap(OUT, Ordering::AcqRel);
        if let (Some(set), Subject::Fd { number, .. }) = (self.set.upgrade(), &self.subject) {
            // Called by each of two threads that take the member out at once: when either thread returns, the kernel no
            // longer watches the descriptor.
            set.leave_fd(*number, fd);
            if before == IN {
                set.count_out(self);
            }
        }
    }
}

impl Listener for Member {
    fn notify(&self) {
        Self::notify(self);
    }

    fn is_in(&self, set: &dyn ListenerSet) -> bool {
        std::ptr::addr_eq(self.set.as_ptr(), set)
    }

    fn report_trouble(&self, link: &InUse) -> bool {
        let registration = unpoisoned(&self.registrations)[Direction::Receiving as usize]
            .as_ref()
            .map(|registration| registration.link.clone());
        let reports = self.has_term(READABLE)
            && self.conditions.is_none()
            && matches!(self.subject, Subject::End { gate: None, .. })
            && self.armed.load(Ordering::Acquire)
            && registration.is_some_and(|registration| Arc::ptr_eq(&registration, link));
        if reports {
            self.in_trouble.store(true, Ordering::Relaxed);
            self.notify();
        }
        reports
    }

    fn is_overlooked(&self) -> bool {
        let waits = || self.armed.load(Ordering::Acquire) && self.state.load(Ordering::Acquire) == IN;
        strict::IS_ON
            && waits()
            && self.end().is_some_and(|end| self.is_ready(&end))
            && !self.is_queued()
            && !self.is_for_later()
    }
}
