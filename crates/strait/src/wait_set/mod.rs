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

mod conditions;
mod event;
mod member;
mod shared;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::fork;
use crate::pipe::{Gate, PipeEnd};
use crate::quota::{tell, told};
use crate::sync::unpoisoned;
use crate::wake::want::Wants;
pub use conditions::Conditions;
pub(crate) use event::Ready;
pub use event::{Event, Interest, Mode};
pub(crate) use member::Member;
pub(crate) use shared::Shared;

/// Events a call has room for if the caller's vector has none.
const EVENTS: usize = 64;

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
/// whatever is in it, and one more once its own was asked for. A member takes about 100 bytes, and each process at other ends two pages or more of
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
        self.shared.born.check()?;
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
        self.shared.born.check()?;
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

    /// Has a one-shot registration tell nothing until it is armed again.
    pub(crate) fn disarm(&self, channel: &Channel) {
        if let Some(member) = channel.end.member_of(&self.shared) {
            member.disarm();
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
        self.shared.born.check()?;
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
        self.shared.born.check()?;
        let member = channel.end.member_of(&self.shared).ok_or(Error::NotInSet)?;
        channel.end.leave_set(&member);
        Ok(())
    }

    /// Waits until a member is ready, or the deadline has passed, and puts events of those that are into `events`, whose
    /// old content is dropped. Returns how many; 0 if the time is up.
    ///
    /// No more than the capacity of `events`, or 64 if it has none; the others come in the next call.
    ///
    /// What goes wrong for want of descriptors or memory, or at a limit, while something of a peer's is received, is an event of a
    /// channel to that peer: receiving from the channel returns the error. While that lasts, there is such an event every
    /// 10 ms.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::System`].
    pub fn wait(&self, events: &mut Vec<Event>, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        self.shared.born.check()?;
        events.clear();
        let limit = if events.capacity() == 0 { EVENTS } else { events.capacity() };
        events.reserve(limit);
        let found = self.shared.wait(events, limit, deadline.into());
        tell();
        found
    }

    /// As [`WaitSet::wait`] without waiting, for one who looks again without being woken, until [`WaitSet::rest`] finds nothing:
    /// as a rule it makes no system call.
    pub(crate) fn look(&self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.drive(events, Shared::look)
    }

    /// The same for the last time. If there is nothing, the descriptor is readable as soon as there may be something.
    pub(crate) fn rest(&self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.drive(events, Shared::rest)
    }

    fn drive(
        &self,
        events: &mut Vec<Event>,
        how: fn(&Shared, &mut Vec<Event>, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.shared.born.check()?;
        events.clear();
        events.reserve(EVENTS);
        let found = how(&self.shared, events, EVENTS);
        tell();
        found
    }

    /// Adds a one-shot member, or arms it again for this; what cannot be said to its peer now is tried again by the calls that
    /// wait. For those that cannot wait, and wait for room only after they have tried to send.
    pub(crate) fn listen(
        &self,
        channel: &Channel,
        gate: Option<Weak<dyn Gate>>,
        key: u64,
        interest: Interest,
        wants: Wants,
    ) -> Result<(), Error> {
        self.shared.born.check()?;
        let member = match channel.end.member_of(&self.shared) {
            Some(member) if member.interest == interest => {
                member.set_wants(wants);
                member.rearm();
                member
            }
            other => {
                if let Some(member) = other {
                    channel.end.leave_set(&member);
                }
                let member = Member::new(&self.shared, &channel.end, gate, key, interest, None, Mode::OneShot);
                member.set_wants(wants);
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

    /// Whether there is more to do though [`wait`](Self::wait) with [`Deadline::NOW`] has told nothing, since it took its time and
    /// left some: for those who are told only once that the descriptor is readable (`EPOLLET`). Makes no system call.
    pub fn has_more(&self) -> bool {
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
            let _ = self.shared.clock();
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
        if self.shared.born.is_elsewhere() {
            // As with channels.
            return std::mem::forget(self.shared.clone());
        }
        self.shared.closed.store(true, Ordering::Release);
        for used in std::mem::take(&mut *unpoisoned(&self.shared.links)).into_values() {
            used.link.remove_set(&self.shared);
        }
        unpoisoned(&self.shared.ready).queue.clear();
    }
}
