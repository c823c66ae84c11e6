//! Waiting for many channels at once.
//!
//! A [`WaitSet`] has a queue of members that may have something. A member that has nothing is in no list that anybody
//! goes through: its ring's word says that it listens and by which number, and whoever publishes there
//! [rings](crate::link) for it, which puts it into the queue. So it makes no difference how many there are.
//!
//! # A member
//!
//! ```text
//!            rings, or its end changed hands            looked at: it has something
//! listening ──────────────────────────────────▶ queued ────────────────────────────▶ told, and queued again (level)
//!     ▲                                           │                                  or left alone until it is re-armed
//!     └───────────────────────────────────────────┘
//!        looked at: it has nothing; it says so in its word, and is looked at once more
//! ```
//!
//! A thread that keeps an end to itself, as one that blocks in a receive does, uses the same word; the set then leaves the
//! member alone, and whoever kept it has it looked at afterwards.
//!
//! # A set
//!
//! A thread that finds nothing says on the board of each link on which the set has members that it sleeps, looks once
//! more, and sleeps in epoll: on the links' sockets, and on an eventfd for what other threads of this process find. The
//! eventfd is written to only if somebody sleeps, or if the set's descriptor was asked for.

mod member;
#[cfg(test)]
mod model;

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::ops::Bound;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::account::{tell, told};
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::fork;
use crate::link::life::{self, Watch};
use crate::link::{InUse, PAUSE, unpoisoned};
use crate::pipe::{Gate, PipeEnd};
use crate::sys::{epoll, socket};
use crate::trap::Conditions;
use member::Examined;
pub(crate) use member::{Direction, Member};

/// Events a call has room for if the caller's vector has none.
const EVENTS: usize = 64;

/// Processes that a long sleep watches at most. Each takes a descriptor as long.
const WATCHED: usize = 64;

/// Links whose boards are looked at in every call, whatever is in the queue.
const SOME_LINKS: usize = 8;

/// In every so many calls the sockets are looked at as well, though the queue has something.
const SOCKETS_EVERY: u64 = 64;

/// How soon what failed for want of room or memory is tried again.
const RETRY: Duration = Duration::from_millis(10);

/// Looks of a call that must not block, at peers that ring without end.
const PASSES: usize = 2;

/// The number of the eventfd in epoll; those of links are lower.
const BELL: u64 = u64::MAX;

/// The number of the clock that says when to listen again to links that were muted.
const CLOCK: u64 = u64::MAX - 1;

/// What a registration waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Interest {
    /// That a message can be received, or that the channel has ended.
    Readable,
    /// That a small message can be sent, or that sending fails at once.
    Writable,
    /// Either.
    Both,
}

impl Interest {
    pub(crate) fn readable(self) -> bool {
        self != Self::Writable
    }

    pub(crate) fn writable(self) -> bool {
        self != Self::Readable
    }
}

/// How often a registration tells.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In every call, as long as it is so.
    #[default]
    Level,
    /// Once, to one thread; then not before [`WaitSet::rearm`].
    OneShot,
}

/// What a look at a member found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready(u8);

impl Ready {
    pub(crate) const NOTHING: Self = Self(0);
    const READABLE: u8 = 1;
    const WRITABLE: u8 = 2;
    const MOVED: Self = Self(4);

    pub(crate) fn new(readable: bool, writable: bool) -> Self {
        Self(if readable { Self::READABLE } else { 0 } | if writable { Self::WRITABLE } else { 0 })
    }
}

/// What [`WaitSet::wait`] tells of a channel.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Event {
    key: u64,
    ready: Ready,
}

impl Event {
    fn new(key: u64, ready: Ready) -> Self {
        Self { key, ready }
    }

    /// The number that was given to [`WaitSet::add`].
    pub fn key(&self) -> u64 {
        self.key
    }

    /// Whether a message can be received; or an error, as the other end is closed, its process dead, or a bad peer.
    pub fn is_readable(&self) -> bool {
        self.ready.0 & Ready::READABLE != 0
    }

    /// Whether a small message can be sent; or that fails at once.
    pub fn is_writable(&self) -> bool {
        self.ready.0 & Ready::WRITABLE != 0
    }

    /// Whether the channel was sent away in a message and so left the set. The last event of this registration.
    pub fn has_moved(&self) -> bool {
        self.ready == Ready::MOVED
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Event")
            .field("key", &self.key)
            .field("readable", &self.is_readable())
            .field("writable", &self.is_writable())
            .field("moved", &self.has_moved())
            .finish()
    }
}

/// Waits for any number of channels at once, in a thread or through one descriptor in any event loop.
///
/// ```
/// use strait::{Channel, Deadline, Interest, Mode, WaitSet};
/// let set = WaitSet::new()?;
/// let pairs = (0..3).map(|_| Channel::pair()).collect::<Result<Vec<_>, _>>()?;
/// for (key, (_, ours)) in (0..).zip(&pairs) {
///     set.add(ours, key, Interest::Readable, Mode::Level)?;
/// }
/// pairs[2].0.send(b"hello")?;
/// let mut events = Vec::new();
/// set.wait(&mut events, Deadline::NEVER)?;
/// assert_eq!(events[0].key(), 2);
/// assert_eq!(pairs[2].1.try_recv()?.bytes(), b"hello");
/// assert_eq!(set.wait(&mut events, Deadline::NOW)?, 0);
/// # Ok::<(), strait::Error>(())
/// ```
///
/// A channel is in one set at a time. It leaves the set by itself when it is dropped, and when it is sent away in a
/// message; that yields one [event](Event::has_moved) more. When its *other* end moves, it stays and notices nothing.
///
/// Any number of threads may wait on one set, and add and remove channels meanwhile. What a [level](Mode::Level)
/// registration tells, it tells every thread that asks before the message is taken; for each event to go to one thread
/// use [`Mode::OneShot`]. Ready channels take turns: one that is always ready keeps no other waiting.
///
/// Other threads may use a member's channel as ever. While one *blocks* in a call on it, or holds a view or a reservation
/// of it, the set tells nothing of that direction; it looks again when that ends.
///
/// # The descriptor
/// It is readable whenever [`wait`](Self::wait) may have something. When it is, call `wait` with [`Deadline::NOW`], as
/// often as there are events or once for each time it is readable; the call that returns none makes it unreadable. It
/// must not be read from. Asking for it makes waiting dearer by two system calls.
///
/// ```
/// use rustix::event::{PollFd, PollFlags, poll};
/// use strait::{Channel, Deadline, Interest, Mode, WaitSet};
/// let set = WaitSet::new()?;
/// let (theirs, ours) = Channel::pair()?;
/// set.add(&ours, 7, Interest::Readable, Mode::Level)?;
/// theirs.send(b"hello")?;
/// let mut events = Vec::new();
/// let mut messages = 0;
/// while messages < 1 {
///     // Beside any other descriptors.
///     poll(&mut [PollFd::new(&set, PollFlags::IN)], None).unwrap();
///     set.wait(&mut events, Deadline::NOW)?;
///     for _event in &events {
///         while ours.try_recv().is_ok() {
///             messages += 1;
///         }
///     }
/// }
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// Adding, removing, and telling of a member cost the same with ten and with a hundred thousand. Going to sleep costs a few
/// memory accesses for each *process* at the other ends. An idle set makes no wake-ups. A set has two descriptors,
/// whatever is in it. A member takes about 100 bytes, and each process at other ends two pages or more of
/// shared memory.
///
/// # Peers that are not trusted
/// A hostile one can have its own members looked at for nothing, and this process woken, as it could by sending. It cannot
/// keep other members from being told of.
pub struct WaitSet {
    shared: Arc<Shared>,
}

impl fmt::Debug for WaitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitSet").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl WaitSet {
    /// A set without members. Makes three system calls.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`], [`Error::NoMemory`], [`Error::System`], [`Error::Forked`].
    pub fn new() -> Result<Self, Error> {
        fork::arm()?;
        Ok(Self { shared: Arc::new(Shared::new()?) })
    }

    /// Adds a channel, whose events come with this key. If it is ready now, that is an event. Does not block.
    ///
    /// Keys need not differ. The first channel of a process at the other end costs some system calls and a shared page,
    /// others none.
    ///
    /// # Errors
    /// [`Error::InSet`] if it is in a set already; [`Error::WouldBlock`] if the socket to the peer's process is full now;
    /// [`Error::NoDescriptors`] or [`Error::NoMemory`] for the shared memory; [`Error::System`]; [`Error::Forked`].
    pub fn add(&self, channel: &Channel, key: u64, interest: Interest, mode: Mode) -> Result<(), Error> {
        self.add_member(channel, None, key, interest, mode)
    }

    /// Adds an end of a data pipe: a consumer, whose events are that it is readable, or a producer, whose events are that it is
    /// writable. Otherwise as [`WaitSet::add`].
    ///
    /// # Errors
    /// As there.
    pub fn add_pipe(&self, end: &impl PipeEnd, key: u64, mode: Mode) -> Result<(), Error> {
        let parts = end.parts();
        self.add_member(parts.channel, Some(parts.gate), key, Interest::Readable, mode)
    }

    fn add_member(
        &self,
        channel: &Channel,
        gate: Option<Weak<dyn Gate>>,
        key: u64,
        interest: Interest,
        mode: Mode,
    ) -> Result<(), Error> {
        fork::check()?;
        let member = Member::new(&self.shared, &channel.end, gate, key, interest, None, mode);
        channel.end.join_set(&member)?;
        self.shared.count.fetch_add(1, Ordering::Relaxed);
        told(self.look_at(&member).inspect_err(|_| {
            let _ = self.remove(channel);
        }))
    }

    /// Adds an end that tells once, when the conditions are met. True if they are now: then it is not in the set, and
    /// tells nothing; unless it `springs`, which is an event at once.
    pub(crate) fn add_trap(
        &self,
        end: &Arc<End>,
        key: u64,
        conditions: Conditions,
        springs: bool,
    ) -> Result<bool, Error> {
        fork::check()?;
        let interest = conditions.interest();
        let member = Member::new(&self.shared, end, None, key, interest, Some(conditions), Mode::OneShot);
        end.join_set(&member)?;
        self.shared.count.fetch_add(1, Ordering::Relaxed);
        match member.look() {
            Ok(Ready::NOTHING) => Ok(false),
            Ok(_) if springs => {
                member.ring();
                Ok(false)
            }
            // It may have been told just now, by a thread that waits.
            _ if !member.disarm() => Ok(false),
            looked => {
                end.leave_set(&member);
                told(looked.map(|_| true))
            }
        }
    }

    /// As [`WaitSet::rearm`], but whoever waits looks whether it is ready now; so nothing can fail.
    pub(crate) fn rearm_later(&self, channel: &Channel) {
        if let Some(member) = channel.end.member_of(&self.shared) {
            member.rearm();
            member.ring();
        }
    }

    /// Takes an end out, if it is in under this key.
    pub(crate) fn leave(&self, end: &End, key: u64) {
        if let Some(member) = end.member_of(&self.shared).filter(|member| member.key() == key) {
            end.leave_set(&member);
        }
    }

    /// As [`WaitSet::rearm`], for an end of a data pipe.
    ///
    /// # Errors
    /// As there.
    pub fn rearm_pipe(&self, end: &impl PipeEnd) -> Result<(), Error> {
        self.rearm(end.parts().channel)
    }

    /// As [`WaitSet::remove`], for an end of a data pipe.
    ///
    /// # Errors
    /// As there.
    pub fn remove_pipe(&self, end: &impl PipeEnd) -> Result<(), Error> {
        self.remove(end.parts().channel)
    }

    /// Has a [one-shot](Mode::OneShot) registration tell once more. If its channel is ready now, that is an event. Does not
    /// block. For other registrations it does nothing that shows.
    ///
    /// # Errors
    /// [`Error::NotInSet`] if the channel is not in this set; otherwise as [`WaitSet::add`].
    pub fn rearm(&self, channel: &Channel) -> Result<(), Error> {
        fork::check()?;
        let member = channel.end.member_of(&self.shared).ok_or(Error::NotInSet)?;
        member.rearm();
        told(self.look_at(&member))
    }

    /// Takes a channel out. Calls that begin after this tell nothing of it; one that is under way in another thread still
    /// may.
    ///
    /// # Errors
    /// [`Error::NotInSet`] if the channel is not in this set; [`Error::Forked`].
    pub fn remove(&self, channel: &Channel) -> Result<(), Error> {
        fork::check()?;
        let member = channel.end.member_of(&self.shared).ok_or(Error::NotInSet)?;
        channel.end.leave_set(&member);
        Ok(())
    }

    /// Waits until a member is ready, or the deadline has passed, and puts events of those that are into `events`, whose
    /// old content is dropped. Returns how many; 0 if the time is up.
    ///
    /// No more than the capacity of `events`, or 64 if it has none; the others come in the next call.
    ///
    /// # Errors
    /// If there is no event: [`Error::NoDescriptors`] if this process has none free for memory that a peer sent (nothing is
    /// lost, call again); [`Error::Forked`]; [`Error::System`].
    pub fn wait(&self, events: &mut Vec<Event>, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        fork::check()?;
        events.clear();
        let limit = if events.capacity() == 0 { EVENTS } else { events.capacity() };
        events.reserve(limit);
        let found = self.shared.wait(events, limit, deadline.into());
        tell();
        found
    }

    /// Adds a one-shot member, or arms it again for this; what cannot be said to its peer now is tried again by the calls that
    /// wait. For those that cannot wait.
    pub(crate) fn listen(
        &self,
        channel: &Channel,
        gate: Option<Weak<dyn Gate>>,
        key: u64,
        interest: Interest,
    ) -> Result<(), Error> {
        fork::check()?;
        let member = match channel.end.member_of(&self.shared) {
            Some(member) if member.interest == interest => {
                member.rearm();
                member
            }
            other => {
                if let Some(member) = other {
                    channel.end.leave_set(&member);
                }
                let member = Member::new(&self.shared, &channel.end, gate, key, interest, None, Mode::OneShot);
                channel.end.join_set(&member)?;
                self.shared.count.fetch_add(1, Ordering::Relaxed);
                member
            }
        };
        if self.look_at(&member).is_err() {
            member.ring();
        }
        Ok(())
    }

    /// Whether its descriptor is readable for something of this process's own.
    pub(crate) fn is_rung(&self) -> bool {
        unpoisoned(&self.shared.ready).rung
    }

    /// How many channels are in it.
    pub fn len(&self) -> usize {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Queues a member that is ready now.
    fn look_at(&self, member: &Arc<Member>) -> Result<(), Error> {
        if member.look()? != Ready::NOTHING {
            member.ring();
        }
        Ok(())
    }
}

impl AsFd for WaitSet {
    /// See [the type](Self#the-descriptor).
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.shared.polled.swap(true, Ordering::SeqCst) {
            // Nothing was said to the peers yet that would make it readable later; the first call does that.
            self.shared.nudge();
        }
        self.shared.epoll.as_fd()
    }
}

impl AsRawFd for WaitSet {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl Drop for WaitSet {
    /// Its members are in no set any more.
    fn drop(&mut self) {
        if fork::in_child() {
            return;
        }
        self.shared.closed.store(true, Ordering::Release);
        for used in std::mem::take(&mut *unpoisoned(&self.shared.links)).into_values() {
            used.link.remove_set(&self.shared);
        }
        unpoisoned(&self.shared.ready).queue.clear();
    }
}

/// A link on which the set has members.
#[derive(Debug)]
struct Used {
    link: InUse,
    /// How many places.
    count: usize,
    /// Whether epoll watches its socket.
    watched: bool,
    /// Whether it is not looked at for a moment, since its peer rings and wakes for nothing.
    muted: bool,
}

/// The members that may have something.
#[derive(Debug, Default)]
struct Queue {
    queue: VecDeque<Arc<Member>>,
    /// Of those, members that were taken out.
    gone: usize,
    /// Whether the eventfd is readable.
    rung: bool,
    /// Members whose peer could not be told that we listen: they are tried again soon.
    later: Vec<Arc<Member>>,
    /// Memory for those that a thread is looking at, and those of them that are queued again.
    spare: (Vec<Arc<Member>>, Vec<Arc<Member>>),
}

/// A set.
#[derive(Debug)]
pub(crate) struct Shared {
    epoll: OwnedFd,
    bell: OwnedFd,
    ready: Mutex<Queue>,
    /// By number.
    links: Mutex<BTreeMap<u64, Used>>,
    /// Where the next look at some of them begins.
    turn: AtomicU64,
    calls: AtomicU64,
    /// Threads that sleep, or are about to.
    asleep: AtomicUsize,
    /// Whether the descriptor was asked for.
    polled: AtomicBool,
    closed: AtomicBool,
    count: AtomicUsize,
    /// Whether the last call had events.
    fruitful: AtomicBool,
    /// Made when a link is muted for the first time.
    clock: OnceLock<OwnedFd>,
}

/// That a thread is about to sleep, or does.
struct Asleep<'a>(&'a AtomicUsize);

impl<'a> Asleep<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Shared {
    fn new() -> Result<Self, Error> {
        let (epoll, bell) = (epoll::create()?, epoll::bell()?);
        epoll::add(&epoll, &bell, BELL)?;
        Ok(Self {
            epoll,
            bell,
            ready: Mutex::default(),
            links: Mutex::default(),
            turn: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            polled: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            fruitful: AtomicBool::new(false),
            clock: OnceLock::new(),
        })
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether somebody may be asleep, in our epoll or in a loop of the user's.
    pub(crate) fn is_listening(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0 || self.polled.load(Ordering::SeqCst)
    }

    /// Puts a member into the queue, and wakes those who sleep.
    pub(crate) fn push(&self, member: Arc<Member>) {
        if self.is_closed() {
            return;
        }
        let mut ready = unpoisoned(&self.ready);
        ready.queue.push_back(member);
        // Looked at under the lock: who is about to sleep says so before it looks at the queue.
        if self.is_listening() {
            self.ring(&mut ready);
        }
    }

    /// Has somebody look.
    pub(crate) fn nudge(&self) {
        self.ring(&mut unpoisoned(&self.ready));
    }

    fn ring(&self, ready: &mut Queue) {
        if !std::mem::replace(&mut ready.rung, true) {
            epoll::ring(&self.bell);
        }
    }

    /// A member has left.
    fn count_out(&self, member: &Member) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        if member.is_queued() {
            let mut ready = unpoisoned(&self.ready);
            ready.gone += 1;
            // They go as they are come across; but who adds and removes and never waits must not fill the queue.
            if ready.gone > EVENTS && ready.gone > ready.queue.len() / 2 {
                ready.queue.retain(|member| !member.is_out());
                ready.gone = 0;
            }
        }
    }

    /// One place more is on this link.
    fn use_link(self: &Arc<Self>, link: &InUse) -> Result<(), Error> {
        let mut links = unpoisoned(&self.links);
        if let Some(used) = links.get_mut(&link.number()) {
            used.count += 1;
            return Ok(());
        }
        let mut watched = false;
        if let Some(socket) = link.io().socket().filter(|_| !link.is_down()) {
            epoll::add(&self.epoll, socket, link.number())?;
            watched = true;
        }
        links.insert(link.number(), Used { link: link.clone(), count: 1, watched, muted: false });
        drop(links);
        link.add_set(Arc::downgrade(self));
        if link.is_down() {
            self.link_down(link.number());
        }
        Ok(())
    }

    /// One place less is on it.
    fn leave_link(&self, link: &InUse) {
        let mut links = unpoisoned(&self.links);
        let Some(used) = links.get_mut(&link.number()) else { return };
        used.count -= 1;
        if used.count > 0 {
            return;
        }
        let used = links.remove(&link.number()).expect("found just now");
        if let Some(socket) = link.io().socket().filter(|_| used.watched) {
            epoll::remove(&self.epoll, socket);
        }
        drop(links);
        link.remove_set(self);
    }

    /// Its socket is readable for ever, and tells nothing more.
    pub(crate) fn link_down(&self, number: u64) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&number)
            && std::mem::take(&mut used.watched)
            && let Some(socket) = used.link.io().socket()
        {
            epoll::remove(&self.epoll, socket);
        }
    }

    fn wait(&self, events: &mut Vec<Event>, limit: usize, deadline: Deadline) -> Result<usize, Error> {
        let mut failed = None;
        let mut passes = 0;
        if self.calls.fetch_add(1, Ordering::Relaxed) % SOCKETS_EVERY == SOCKETS_EVERY - 1 {
            self.attend(Asleep::new(&self.asleep), Some(Duration::ZERO), false, &mut failed)?;
        }
        loop {
            // Whatever is in the queue: a member that is always ready must not keep others from getting there.
            self.collect_some();
            self.take_ready(events, limit);
            let polled = self.polled.load(Ordering::SeqCst);
            if !events.is_empty() {
                self.fruitful.store(true, Ordering::Relaxed);
                if polled {
                    // It is only made unreadable when nothing was found, and the peers know that we sleep.
                    self.nudge();
                }
                return Ok(events.len());
            }
            if let Some(error) = failed {
                return Err(error);
            }
            passes += 1;
            let enough = passes > PASSES && deadline.has_passed();
            let asleep = Asleep::new(&self.asleep);
            let (idle, later) = self.silence();
            let rung = self.listen();
            if rung || !idle {
                drop(asleep);
                if enough {
                    self.nudge();
                    return Ok(0);
                }
                if rung {
                    self.collect();
                }
                continue;
            }
            let mut sleep = deadline.remaining(Instant::now());
            if later || self.has_unsent() {
                sleep = Some(sleep.map_or(RETRY, |sleep| sleep.min(RETRY)));
            }
            let found = self.attend(asleep, sleep, !deadline.is_now(), &mut failed)?;
            if deadline.has_passed() && (!found || enough) {
                if later && polled {
                    self.nudge();
                }
                return failed.map_or(Ok(0), Err);
            }
        }
    }

    /// Makes the eventfd unreadable, if nothing is queued. Whether nothing is, and whether something is to be tried again.
    fn silence(&self) -> (bool, bool) {
        let mut ready = unpoisoned(&self.ready);
        let idle = ready.queue.is_empty();
        if idle && std::mem::take(&mut ready.rung) {
            epoll::silence(&self.bell);
        }
        (idle, !ready.later.is_empty())
    }

    /// Says to the peers that we sleep. Whether any of them has rung meanwhile.
    fn listen(&self) -> bool {
        let links = unpoisoned(&self.links);
        let heard = || links.values().filter(|used| !used.muted);
        heard().for_each(|used| used.link.listen());
        let mut rung = false;
        let mut tired = Vec::new();
        for used in heard().filter(|used| used.link.has_rung()) {
            rung = true;
            // If it was for something, there are events, which make up for it.
            if used.link.woken_for_nothing() {
                tired.push(used.link.number());
            }
        }
        drop(links);
        tired.into_iter().for_each(|number| self.mute(number));
        rung
    }

    /// Does not look at a link for a moment.
    fn mute(&self, number: u64) {
        let clock = match self.clock.get() {
            Some(clock) => clock,
            None => {
                // Without a clock it goes on as it is.
                let Ok(clock) = epoll::timer() else { return };
                self.clock.get_or_init(|| clock)
            }
        };
        let mut links = unpoisoned(&self.links);
        let first = links.values().all(|used| !used.muted);
        // Those that are muted meanwhile are listened to again at the same time.
        if first && !(epoll::set_timer(clock, PAUSE) && epoll::add_again(&self.epoll, clock, CLOCK)) {
            return;
        }
        if let Some(used) = links.get_mut(&number) {
            used.muted = true;
            if std::mem::take(&mut used.watched)
                && let Some(socket) = used.link.io().socket()
            {
                epoll::remove(&self.epoll, socket);
            }
        }
    }

    /// Looks at all links again.
    fn unmute(&self) {
        let Some(clock) = self.clock.get() else { return };
        epoll::silence(clock);
        let mut failed = false;
        for used in unpoisoned(&self.links).values_mut().filter(|used| used.muted) {
            used.muted = false;
            if let Some(socket) = used.link.io().socket().filter(|_| !used.link.is_down()) {
                used.watched = epoll::add(&self.epoll, socket, used.link.number()).is_ok();
                used.muted = !used.watched;
                failed |= used.muted;
            }
        }
        if failed {
            epoll::set_timer(clock, RETRY);
        }
    }

    /// Whether something was left to be sent to a peer that may be waiting for it.
    fn has_unsent(&self) -> bool {
        let links = unpoisoned(&self.links);
        links.values().filter(|used| used.link.may_sleep_for().is_some()).count() > 0
    }

    fn collect(&self) {
        unpoisoned(&self.links).values().filter(|used| !used.muted).for_each(|used| used.link.collect());
    }

    /// Collects from some of the links, others the next time.
    fn collect_some(&self) {
        let links = unpoisoned(&self.links);
        let fruitful = self.fruitful.load(Ordering::Relaxed);
        if fruitful {
            self.fruitful.store(false, Ordering::Relaxed);
        }
        let look_at = |used: &Used| {
            if fruitful {
                used.link.woken();
            }
            if !used.muted {
                used.link.collect();
            }
        };
        if links.len() <= SOME_LINKS {
            links.values().for_each(look_at);
            return;
        }
        let turn = self.turn.load(Ordering::Relaxed);
        let after = links.range((Bound::Excluded(turn), Bound::Unbounded));
        for (number, used) in after.chain(links.iter()).take(SOME_LINKS) {
            look_at(used);
            self.turn.store(*number, Ordering::Relaxed);
        }
    }

    /// Looks at the members in the queue, until there are enough events.
    fn take_ready(&self, events: &mut Vec<Event>, limit: usize) {
        let mut ready = unpoisoned(&self.ready);
        let Queue { queue, later, .. } = &mut *ready;
        queue.extend(later.drain(..).filter(|member| member.set_queued()));
        let mut left = queue.len();
        if left == 0 {
            return;
        }
        let (mut batch, mut again) = std::mem::take(&mut ready.spare);
        let mut later = Vec::new();
        while left > 0 && events.len() < limit {
            let count = left.min(limit - events.len()).min(EVENTS).min(ready.queue.len());
            left = if count == 0 { 0 } else { left - count };
            batch.extend(ready.queue.drain(..count));
            drop(ready);
            for member in batch.drain(..) {
                match member.examine() {
                    Examined::Event { event, again: level } => {
                        events.push(event);
                        if level {
                            again.push(member);
                        }
                    }
                    Examined::Nothing => {}
                    Examined::Retry => later.push(member),
                }
            }
            ready = unpoisoned(&self.ready);
        }
        // Only now, so that none comes twice in a call.
        for member in again.drain(..) {
            if member.set_queued() {
                ready.queue.push_back(member);
            }
        }
        if !ready.queue.is_empty() && self.is_listening() {
            self.ring(&mut ready);
        }
        ready.later.append(&mut later);
        ready.spare = (batch, again);
    }

    /// Sleeps, for at most `limit`, and takes in what came on the sockets. Whether there was anything.
    fn attend(
        &self,
        asleep: Asleep<'_>,
        limit: Option<Duration>,
        may_wait: bool,
        failed: &mut Option<Error>,
    ) -> Result<bool, Error> {
        let mut asleep = Some(asleep);
        let short = limit.map_or(life::LONG, |limit| limit.min(life::LONG));
        let found = self.attend_to(&mut asleep, Some(short), may_wait, failed)?;
        if found || limit == Some(short) {
            return Ok(found);
        }
        let died = self.watch_processes(limit.map(|limit| limit - short))?;
        for number in &died {
            self.link_down(*number);
        }
        let found = self.attend_to(&mut asleep, Some(Duration::ZERO), may_wait, failed)?;
        Ok(found || !died.is_empty())
    }

    /// Sleeps until the epoll instance has something, for at most `limit`, and watches the processes at the other ends as
    /// well, if they are not too many. The numbers of links whose process died though its socket is open.
    fn watch_processes(&self, limit: Option<Duration>) -> Result<Vec<u64>, Error> {
        let up = |(number, used): (&u64, &Used)| (!used.link.is_down()).then(|| (*number, used.link.clone()));
        let links: Vec<_> = unpoisoned(&self.links).iter().filter_map(up).collect();
        let (mut died, mut watched) = (Vec::new(), Vec::new());
        for (number, link) in links.into_iter().take(WATCHED) {
            match link.watch() {
                Watch::Died => died.push(number),
                Watch::Lives(process) => watched.push((number, link, process)),
                Watch::Unknown => {}
            }
        }
        if died.is_empty() {
            let processes: Vec<_> = watched.iter().map(|(.., process)| process.as_fd()).collect();
            let ended = socket::wait_any(self.epoll.as_fd(), &processes, limit)?;
            for (number, link, _) in ended.into_iter().map(|index| &watched[index]) {
                link.fail(Error::PeerClosed);
                died.push(*number);
            }
        }
        Ok(died)
    }

    fn attend_to(
        &self,
        asleep: &mut Option<Asleep<'_>>,
        limit: Option<Duration>,
        may_wait: bool,
        failed: &mut Option<Error>,
    ) -> Result<bool, Error> {
        let mut room = [const { std::mem::MaybeUninit::uninit() }; 64];
        let mut found = false;
        for number in epoll::wait(&self.epoll, &mut room, limit)? {
            // What this thread finds it need not tell itself.
            drop(asleep.take());
            found = true;
            match number {
                BELL => continue,
                CLOCK => {
                    self.unmute();
                    continue;
                }
                _ => {}
            }
            let link = unpoisoned(&self.links).get(&number).map(|used| used.link.clone());
            let Some(link) = link else { continue };
            match link.attend(may_wait) {
                Ok(()) | Err(Error::PeerClosed | Error::BadPeer(_)) => {}
                Err(error) => *failed = Some(error),
            }
            if link.is_down() {
                self.link_down(number);
            } else if link.is_out_of_patience() {
                self.mute(number);
            }
        }
        Ok(found)
    }
}
