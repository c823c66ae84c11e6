//! Waiting for many channels and other sources at once.
//!
//! A [`WaitSet`] has a queue of the members that may have something. A member with nothing is in no list that any
//! thread walks through. The sleep word of its ring says that the member is armed and by which member id. A peer that
//! publishes in the ring [notifies](crate::link) this process, which puts the member into the queue. So the cost of a
//! wait does not depend on the number of members.
//!
//! # A member
//!
//! ```text
//!         notified, or its end changed hands         looked at: it has something
//! armed ──────────────────────────────────▶ queued ────────────────────────────▶ reported, and queued again (level)
//!   ▲                                          │                                 or left alone until rearmed (one-shot)
//!   └──────────────────────────────────────────┘
//!      looked at: it has nothing; the set arms it and looks once more
//! ```
//!
//! A thread that marks a direction of an end as blocking, as a blocking receive does, uses the same sleep word. The set
//! then leaves the member alone; when the thread is done, it makes the set look at the member.
//!
//! # A set
//!
//! If a thread finds nothing, it records in the notification area of each link with members of the wait set that the
//! process sleeps. The thread then looks once more, and sleeps in epoll: on the sockets of the links, and on a wake fd
//! (an eventfd) for events found by other threads of the process. Threads write to the wake fd only if a thread sleeps,
//! or if the descriptor of the set is in use.

mod event;
mod fd;
mod member;
mod shared;
pub(crate) mod source;
#[cfg(test)]
mod tests;

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::blocked_on::{self, BlockedSends};
use crate::channel::{Channel, Conditions, End, Ready};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::link::ListenerSet;
use crate::os::fork;
use crate::pipe::Gate;
use crate::sync::unpoisoned;
pub use event::{Event, Interest, Mode};
pub use fd::Fd;
pub(crate) use member::Member;
use member::{Subject, Terms};
pub(crate) use shared::SharedSet;
pub use source::Source;
use source::{EndParts, FdParts, Parts};

/// The most events that [`WaitSet::wait`] returns if the caller's vector has no capacity.
const EVENTS: usize = 64;

/// Waits for any number of channels and other [sources](Source) at once, in a thread or through one descriptor in any
/// event loop.
///
/// ```
/// use strait::{Channel, Deadline};
/// use strait::wait::{Interest, Mode, WaitSet};
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
/// A source is in at most one wait set at a time, and leaves the set when dropped. A channel end also leaves its wait
/// set when sent to another process in a message, with one last [event](Event::has_moved). When the *other* end of the
/// channel moves, the registration stays and the move causes no event.
///
/// Any number of threads may wait on one set, and may add and remove channels meanwhile. A [level](Mode::Level)
/// registration reports a message to every thread that waits before the message is received. Use [`Mode::OneShot`] to
/// give each event to one thread only. Ready channels take turns: a channel that is always ready delays no other
/// channel, and delays a listener or an [`Fd`] for at most 64 waits.
///
/// Other threads may use a channel in the set as usual. While such a thread *blocks* in a call on the channel, or holds
/// a view or a reservation of the channel, the set reports nothing for the thread's direction. The set looks again when
/// the call, view or reservation ends.
///
/// # The descriptor
/// The descriptor of the set is readable whenever [`wait`](Self::wait) may have something. When it is readable, call
/// `wait` with [`Deadline::NOW`]: until there are no more events, or once each time the descriptor is readable. The
/// call that returns no event makes the descriptor unreadable. Never read from the descriptor. After a program has
/// asked for the descriptor, each wait costs two more system calls.
///
/// ```
/// use rustix::event::{PollFd, PollFlags, poll};
/// use strait::{Channel, Deadline};
/// use strait::wait::{Interest, Mode, WaitSet};
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
/// Adding a channel, removing a channel and reporting an event cost the same with ten channels as with a hundred
/// thousand. Each look at a listener or an [`Fd`] costs a system call, and a second system call if the source is not
/// ready. Going to sleep costs a few memory accesses for each *process* at the other ends. An idle set makes no
/// wake-ups. A set has two descriptors however many channels it has, and a third descriptor after a program has asked
/// for the set's own. A member takes about 100 bytes. Each process at the other ends costs two or more pages of shared
/// memory.
///
/// # Untrusted peers
/// A hostile peer can make the set look at the peer's channels for nothing, and can wake this process, as it could by
/// sending messages. A busy peer cannot keep the set from reporting other channels.
pub struct WaitSet {
    shared: Arc<SharedSet>,
}

impl fmt::Debug for WaitSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaitSet").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl WaitSet {
    /// Creates a wait set without channels. Makes three system calls.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`], [`Error::NoMemory`], [`Error::System`], [`Error::Forked`].
    pub fn new() -> Result<Self, Error> {
        fork::arm()?;
        Ok(Self { shared: Arc::new(SharedSet::new()?) })
    }

    /// Adds `source`, such as a channel, to the wait set; its events carry `key`. If the source is ready now, the next
    /// wait returns an event. Does not block, unless the source is an [`Fd`] whose file makes the kernel wait.
    ///
    /// Several sources may have the same key. The first channel whose other end is in a given process costs some system
    /// calls and a shared page; further channels to the same process cost no system call. A listener and an [`Fd`] cost
    /// three system calls.
    ///
    /// # Errors
    /// [`Error::InSet`] if the source is in a wait set already; [`Error::WouldBlock`] if the socket to the peer's
    /// process is full now; [`Error::NoDescriptors`] or [`Error::NoMemory`] for the shared memory; [`Error::System`];
    /// [`Error::Forked`].
    pub fn add(&self, source: &impl Source, key: u64, interest: Interest, mode: Mode) -> Result<(), Error> {
        self.shared.born.check()?;
        let member = self.join(&source.parts(), key, interest, mode)?;
        let looked = match self.look_at(&member) {
            // Another thread has removed the source, and may have added it again.
            Err(_) if member.is_out() => Ok(()),
            looked => looked.inspect_err(|_| leave(&source.parts(), &member)),
        };
        deferred::run_if_failed(looked)
    }

    /// Makes a member for the object with the given parts, and stores the member in the object.
    fn join(&self, parts: &Parts<'_>, key: u64, interest: Interest, mode: Mode) -> Result<Arc<Member>, Error> {
        let terms = Terms::new(key, parts.interest(interest), mode);
        match parts {
            Parts::End(EndParts { channel, gate }) => {
                let member = Member::new(&self.shared, Subject::end(&channel.end, gate.clone()), terms, None);
                channel.end.join_set(member.clone())?;
                self.shared.count.fetch_add(1, Ordering::Relaxed);
                Ok(member)
            }
            Parts::Fd(FdParts { fd, .. }) => {
                let number = self.shared.new_fd_number();
                let subject = Subject::Fd { fd: Arc::downgrade(fd), number };
                let member = Member::new(&self.shared, subject, terms, None);
                fd.join_set(member.clone())?;
                self.shared.count.fetch_add(1, Ordering::Relaxed);
                let used = self.shared.use_fd(number, fd.as_fd(), &member);
                used.inspect_err(|_| fd.leave_set(&*member)).map(|()| member)
            }
        }
    }

    /// Returns the member of the wait set that stands for the object with the given parts.
    fn member_of(&self, parts: &Parts<'_>) -> Result<Arc<Member>, Error> {
        let member = match parts {
            Parts::End(EndParts { channel, .. }) => Member::of(&channel.end, &self.shared),
            Parts::Fd(FdParts { fd, .. }) => Member::of_fd(fd, &self.shared),
        };
        member.ok_or(Error::NotInSet)
    }

    /// Adds `end` to the wait set for a trap: a callback that is due once, when `conditions` are met. The set then
    /// reports the end once.
    ///
    /// If the conditions are met now and `springs` is false, the end is not added and the call returns `true`. If the
    /// conditions are met now and `springs` is true, the next wait reports the end. In every other case the end is
    /// added. Except in the first case the call returns `false`.
    pub(crate) fn add_trap(
        &self,
        end: &Arc<End>,
        key: u64,
        conditions: Conditions,
        springs: bool,
    ) -> Result<bool, Error> {
        self.shared.born.check()?;
        let terms = Terms::new(key, conditions.interest(), Mode::OneShot);
        let member = Member::new(&self.shared, Subject::end(end, None), terms, Some(conditions));
        end.join_set(member.clone())?;
        self.shared.count.fetch_add(1, Ordering::Relaxed);
        match member.look() {
            Ok(Ready::NOTHING) => Ok(false),
            Ok(_) if springs => {
                member.notify();
                Ok(false)
            }
            // If the member is no longer armed, a waiting thread has just reported it.
            _ if !member.disarm() => Ok(false),
            looked => {
                end.leave_set(&*member);
                deferred::run_if_failed(looked.map(|_| true))
            }
        }
    }

    /// Rearms the one-shot registration of `channel` in the wait set; does nothing if the channel is not in the set.
    /// Unlike with [`WaitSet::modify`], the next thread that waits checks whether the channel is ready, so the call
    /// cannot fail. The channel is reported even if a receive from it has failed just now.
    pub(crate) fn rearm_later(&self, channel: &Channel) {
        if let Some(member) = Member::of(&channel.end, &self.shared) {
            channel.end.rests_no_more();
            member.rearm();
            member.notify();
        }
    }

    /// Disarms the registration of `channel` in the wait set: the set reports nothing for the channel until the
    /// registration is rearmed. Does nothing if the channel is not in the set.
    pub(crate) fn disarm(&self, channel: &Channel) {
        if let Some(member) = Member::of(&channel.end, &self.shared) {
            member.disarm();
        }
    }

    /// Removes `end` from the wait set, if the end is registered in the set under `key`; otherwise does nothing.
    pub(crate) fn leave(&self, end: &End, key: u64) {
        if let Some(member) = Member::of(end, &self.shared).filter(|member| member.key() == key) {
            end.leave_set(&*member);
        }
    }

    /// Replaces the key, the interest and the mode of `source` in the wait set, and arms its registration: if the
    /// source is ready now, the next wait returns an event. Does not block.
    ///
    /// With the values of [`add`](Self::add), the call rearms a [one-shot](Mode::OneShot) registration for one more
    /// event, and changes nothing about a [level](Mode::Level) registration.
    ///
    /// ```
    /// use strait::{Channel, Deadline};
    /// use strait::wait::{Interest, Mode, WaitSet};
    /// let set = WaitSet::new()?;
    /// let (theirs, ours) = Channel::pair()?;
    /// set.add(&ours, 7, Interest::Readable, Mode::OneShot)?;
    /// theirs.send(b"hello")?;
    /// let mut events = Vec::new();
    /// assert_eq!(set.wait(&mut events, Deadline::NEVER)?, 1);
    /// assert_eq!(set.wait(&mut events, Deadline::NOW)?, 0);
    /// set.modify(&ours, 8, Interest::Both, Mode::OneShot)?;
    /// assert_eq!(set.wait(&mut events, Deadline::NEVER)?, 1);
    /// assert!(events[0].key() == 8 && events[0].is_readable() && events[0].is_writable());
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInSet`] if the source is not in the wait set; otherwise as [`WaitSet::add`]. An error leaves the
    /// registration unchanged.
    pub fn modify(&self, source: &impl Source, key: u64, interest: Interest, mode: Mode) -> Result<(), Error> {
        self.shared.born.check()?;
        let parts = source.parts();
        let member = self.member_of(&parts)?;
        member.forget_blocked();
        let before = member.set_terms(Terms::new(key, parts.interest(interest), mode));
        let was_armed = member.rearm();
        let looked = match self.look_at(&member) {
            // If the member is no longer armed, a waiting thread has just reported it.
            Err(error) if was_armed || member.disarm() => {
                member.set_terms(before);
                // A waiting thread may have looked meanwhile, and told the kernel or the peer of the other interest.
                member.notify();
                Err(error)
            }
            _ => Ok(()),
        };
        deferred::run_if_failed(looked)
    }

    /// Arms `source` for one event: that the send that has just failed with [`Error::WouldBlock`] in this thread may
    /// succeed now. `source` is then a [one-shot](Mode::OneShot) member with the interest [`Interest::Writable`] and
    /// the given key, until [`modify`](Self::modify) changes that. Does not block.
    ///
    /// Call this right after a send with [`Deadline::NOW`] from `source`. The event comes when what that send lacked
    /// may be there: room for this message, and not only for a small one. The event also comes when a send would fail
    /// at once, and may come early. Then send again, and call this again if that fails with [`Error::WouldBlock`]. If
    /// no such send has failed in this thread, the event comes when there is room for a small message.
    ///
    /// ```
    /// use strait::{Channel, Deadline, Error};
    /// use strait::wait::{Interest, Mode, WaitSet};
    /// let (ours, theirs) = Channel::pair()?;
    /// let set = WaitSet::new()?;
    /// set.add(&ours, 7, Interest::Readable, Mode::Level)?;
    /// let message = [0; 60 << 10];
    /// while ours.try_send(&message).is_ok() {}
    /// set.await_room(&ours, 7)?;
    /// // There is room for a small message: with `Interest::Writable`, the set would report the channel all the time.
    /// assert!(ours.is_writable());
    /// let mut events = Vec::new();
    /// assert_eq!(set.wait(&mut events, Deadline::NOW)?, 0);
    /// while theirs.try_recv().is_ok() {}
    /// assert_eq!(set.wait(&mut events, Deadline::NEVER)?, 1);
    /// ours.try_send(&message)?;
    /// set.modify(&ours, 7, Interest::Readable, Mode::Level)?;
    /// # Ok::<(), Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::NotInSet`] if the source is not in the wait set; [`Error::Forked`]. An error leaves the registration
    /// unchanged.
    pub fn await_room(&self, source: &impl Source, key: u64) -> Result<(), Error> {
        self.shared.born.check()?;
        let mut blocked = BlockedSends::default();
        blocked.add(blocked_on::take());
        let parts = source.parts();
        let member = self.member_of(&parts)?;
        // No event that was due for the old interest is reported for the new one.
        member.disarm();
        if let Parts::End(EndParts { gate: None, .. }) = parts {
            member.set_blocked(blocked);
        }
        member.set_terms(Terms::new(key, parts.interest(Interest::Writable), Mode::OneShot));
        member.rearm();
        // If the peer cannot be told now how to notify the member, the next wait tries again.
        if self.look_at(&member).is_err() {
            member.notify();
        }
        deferred::run();
        Ok(())
    }

    /// Removes `source` from the wait set. Waits that begin after the call report nothing for the source; a wait in
    /// progress in another thread still may.
    ///
    /// # Errors
    /// [`Error::NotInSet`] if the source is not in the wait set; [`Error::Forked`].
    pub fn remove(&self, source: &impl Source) -> Result<(), Error> {
        self.shared.born.check()?;
        let parts = source.parts();
        let member = self.member_of(&parts)?;
        leave(&parts, &member);
        Ok(())
    }

    /// Waits until a source in the wait set is ready or the deadline passes, and fills `events` with an event for each
    /// ready source. The old content of `events` is dropped. Returns the number of events, which is 0 if the deadline
    /// passed.
    ///
    /// Returns at most as many events as `events` has capacity for, or 64 if its capacity is 0. The next call returns
    /// further events.
    ///
    /// Receiving from a peer can fail for lack of descriptors or memory, or at a limit. Such a failure is reported as
    /// an event of one channel to the peer; receiving from this channel then returns the error, or
    /// [`Error::WouldBlock`] if the failure is over by then. While the failure lasts, such an event comes every 100 ms.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::System`].
    pub fn wait(&self, events: &mut Vec<Event>, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        self.shared.born.check()?;
        events.clear();
        let limit = if events.capacity() == 0 { EVENTS } else { events.capacity() };
        events.reserve(limit);
        let found = self.shared.wait(events, limit, deadline.into());
        deferred::run();
        found
    }

    /// Returns whether this process is a child of `fork`, and the wait set is its parent's.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.shared.born.is_elsewhere()
    }

    /// Polls the wait set for a driver: fills `events` like [`WaitSet::wait`], without waiting. The driver calls `look`
    /// again and again without being woken, until [`WaitSet::park`] returns no event. As a rule the call makes no
    /// system call.
    pub(crate) fn look(&self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.run_once(events, SharedSet::look)
    }

    /// Polls the wait set once more for a driver that is about to sleep, and fills `events`. If there is no event, the
    /// set's descriptor becomes readable as soon as there may be an event.
    pub(crate) fn park(&self, events: &mut Vec<Event>) -> Result<(), Error> {
        self.run_once(events, SharedSet::park)
    }

    fn run_once(
        &self,
        events: &mut Vec<Event>,
        how: fn(&SharedSet, &mut Vec<Event>, usize) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.shared.born.check()?;
        events.clear();
        events.reserve(EVENTS);
        let found = how(&self.shared, events, EVENTS);
        deferred::run();
        found
    }

    /// Adds a one-shot member for `channel` to the wait set, or rearms the present member. `blocked` lists the
    /// obstacles of the tasks that wait to send from the channel end.
    ///
    /// If the peer cannot be told now how to notify the member, later waits on the set try again. Used for tasks: a
    /// task cannot block, and waits for room only after an attempt to send.
    pub(crate) fn arm(
        &self,
        channel: &Channel,
        gate: Option<Weak<dyn Gate>>,
        key: u64,
        interest: Interest,
        blocked: BlockedSends,
    ) -> Result<(), Error> {
        self.shared.born.check()?;
        let member = match Member::of(&channel.end, &self.shared) {
            Some(member) if member.waits_in(interest) => {
                member.set_blocked(blocked);
                member.rearm();
                member
            }
            other => {
                if let Some(member) = other {
                    channel.end.leave_set(&*member);
                }
                let terms = Terms::new(key, interest, Mode::OneShot);
                let member = Member::new(&self.shared, Subject::end(&channel.end, gate), terms, None);
                member.set_blocked(blocked);
                channel.end.join_set(member.clone())?;
                self.shared.count.fetch_add(1, Ordering::Relaxed);
                member
            }
        };
        if self.look_at(&member).is_err() {
            member.notify();
        }
        Ok(())
    }

    /// Returns whether the wait set has more work although [`wait`](Self::wait) with [`Deadline::NOW`] returned no
    /// event: the call ran out of time and left some work to the next call. For event loops that report only once that
    /// the descriptor is readable (`EPOLLET`). Makes no system call.
    pub fn has_more(&self) -> bool {
        unpoisoned(&self.shared.ready).signalled
    }

    /// Returns the number of sources in the wait set.
    pub fn len(&self) -> usize {
        self.shared.count.load(Ordering::Relaxed)
    }

    /// Returns whether the wait set has no sources.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Puts `member` into the queue of the wait set if the member is ready now, and otherwise arms the member. Fails if
    /// the peer cannot be told now how to notify the member.
    fn look_at(&self, member: &Arc<Member>) -> Result<(), Error> {
        if member.look()? != Ready::NOTHING {
            member.notify();
        }
        Ok(())
    }
}

/// Takes the object with the given parts out of its wait set, if the object is still in the set with the registration
/// `member`.
fn leave(parts: &Parts<'_>, member: &Member) {
    match parts {
        Parts::End(EndParts { channel, .. }) => channel.end.leave_set(member),
        Parts::Fd(FdParts { fd, .. }) => fd.leave_set(member),
    }
}

impl AsFd for WaitSet {
    /// Returns the wait set's descriptor for an event loop: see [the type](Self#the-descriptor).
    fn as_fd(&self) -> BorrowedFd<'_> {
        if !self.shared.polled.swap(true, Ordering::SeqCst) {
            let _ = self.shared.clock();
            // The peers do not know yet that this process sleeps, so nothing would make the descriptor readable later.
            // The first call to `wait` tells the peers.
            self.shared.wake_one();
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
    /// Closes the wait set and empties its queue of ready members. Its channels are in no wait set afterwards.
    fn drop(&mut self) {
        if self.shared.born.is_elsewhere() {
            // In a forked child nothing of the parent may be touched, as with channels.
            return std::mem::forget(self.shared.clone());
        }
        self.shared.closed.store(true, Ordering::Release);
        for used in std::mem::take(&mut *unpoisoned(&self.shared.links)).into_values() {
            used.link.remove_set(&*self.shared);
        }
        unpoisoned(&self.shared.fds).clear();
        unpoisoned(&self.shared.ready).queue.clear();
    }
}
