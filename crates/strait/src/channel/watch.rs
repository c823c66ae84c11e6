//! An end as a member of a wait set.
//!
//! The wait set polls an end under the locks of that end. In a direction that is not ready, the end arms itself: the
//! end writes into the ring's sleep word the link and the member id for a notification. Then the wait set polls the end
//! once more. When the peer publishes a record, the peer sends the notification. If a mark leads the end to another
//! lane, or the other end is handed over, the next poll notices the change and arms the end anew.

use std::any::Any;
use std::fmt::Debug;
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, MutexGuard};

use super::End;
use super::receiver::{Conditions, Rx};
use super::sender::Tx;
use super::sender::packets::is_lane_of;
use crate::blocked_on::{self, BlockedOn, BlockedSends, Progress, Subject};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::{Lane, waiter};
use crate::link::{InUse, Link};
use crate::ring::{Header, Memory, RecordKind};
use crate::sync::unpoisoned;
use crate::wake::Direction;
use crate::wake::lock::Guard;

/// The state of a member of a wait set when it was last polled: a set of the bits readable, writable and moved. *Moved*
/// means that the member was sent away in a message and has left the wait set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ready(u8);

impl Ready {
    pub(crate) const NOTHING: Self = Self(0);
    const READABLE: u8 = 1;
    const WRITABLE: u8 = 2;
    /// State of a member with a receive error, reported as readable by a wait set.
    pub(crate) const TROUBLE: Self = Self(Self::READABLE);
    pub(crate) const MOVED: Self = Self(4);

    pub(crate) fn new(readable: bool, writable: bool) -> Self {
        Self(if readable { Self::READABLE } else { 0 } | if writable { Self::WRITABLE } else { 0 })
    }

    pub(crate) fn is_readable(self) -> bool {
        self.0 & Self::READABLE != 0
    }

    pub(crate) fn is_writable(self) -> bool {
        self.0 & Self::WRITABLE != 0
    }
}

/// In place of the number of a CPU: the other end is in this process, so no other process can run there.
pub(crate) const NOWHERE: u32 = u32::MAX;

/// The registration of an end with a wait set: the end's interface to its member of the wait set.
pub(crate) trait Watcher: Any + Debug + Send + Sync {
    /// Returns whether the wait set waits for events of `direction`: messages to receive, or room to send.
    fn waits_for(&self, direction: Direction) -> bool;

    /// Returns the conditions of a trap, for which the wait set waits in place of a message or room; `None` if the
    /// registration is not that of a trap.
    fn conditions(&self) -> Option<&Conditions>;

    /// Returns the locked record of the obstacles of tasks' sends on this end; its content is `None` if no task has set
    /// it.
    fn blocked(&self) -> MutexGuard<'_, Option<BlockedSends>>;

    /// Returns whether the wait set of this registration still exists and is not closed.
    fn is_current(&self) -> bool;

    /// Returns whether the wait set reports an event when this process closes the channel end. Only the wait set of a
    /// trap does.
    fn reports_its_end(&self) -> bool;

    /// Makes the wait set poll the end, because the end may be ready.
    fn notify(&self);

    /// Takes the end out of its wait set, and ends the end's registrations at all links. If `moved` is `true`, the wait
    /// set reports that the end was sent away.
    fn take_out(&self, moved: bool);

    /// Returns the member id for notifications of this member by the peer over `link` for `direction`. If the member is
    /// not registered at `link`, registers the member there and ends a registration at another link.
    fn register_for(&self, direction: Direction, link: &InUse) -> Result<u32, Error>;

    /// Returns the member id on `link`, over which the arrival of another end is reported; a task that sends waits for
    /// that arrival. Registers the member at `link` in addition, unless it is registered there already.
    fn register_at_other_link(&self, link: &InUse) -> Result<u32, Error>;

    /// Tells the wait set on which CPU the peer last ran, as the peer says: the number plus 1, 0 if unknown, or
    /// [`NOWHERE`] if the other end is in this process.
    fn peer_was_on(&self, cpu: u32);

    /// Makes the wait set poll the member again once the socket of `link` has room.
    fn await_socket(&self, link: &InUse) -> Result<(), Error>;
}

/// Returns whether a blocked task should try its send again, because an obstacle in `blocked` (such as missing room, or
/// an end in transit) is gone. `has_room` says whether there is room for a small message. The caller has the lock of
/// the sending direction.
fn is_any_met(blocked: &BlockedSends, has_room: bool, tx: &Tx) -> bool {
    let has_moved_on = |(lane, seen): &(Subject, Progress)| !is_lane_of(tx, lane) || tx.has_moved_on_from(seen);
    (blocked.small_room && has_room)
        || blocked.room.as_ref().is_some_and(has_moved_on)
        || blocked.others.iter().any(|blocked_on| is_met(blocked_on, tx))
}

fn is_met(blocked_on: &BlockedOn, tx: &Tx) -> bool {
    match blocked_on {
        BlockedOn::Room(lane, seen) => !is_lane_of(tx, lane) || tx.has_moved_on_from(seen),
        BlockedOn::Descriptors(lane, seen, count) => {
            !is_lane_of(tx, lane) || tx.has_moved_on_from(seen) || tx.lane.link().may_send(*count, || tx.has_reserve())
        }
        BlockedOn::Transit(lane) => lane.get().is_none_or(|lane: Arc<Lane>| has_arrived(&lane)),
        BlockedOn::Socket(link, since) => {
            let is_writable = |link: Arc<Link>| link.is_down() || link.is_writable();
            since.elapsed() >= blocked_on::POLL_INTERVAL || link.get().is_none_or(is_writable)
        }
        BlockedOn::Unreported(_, since) => since.elapsed() >= blocked_on::POLL_INTERVAL,
        // This poll holds the lock, so the lock is free for tasks afterwards.
        BlockedOn::Lock => true,
    }
}

/// Arms `member` for those obstacles in `blocked` (such as an end in transit, or a full socket) whose end the sleep
/// word of the member's own ring does not report. To arm means to ask the peer or the kernel for a notification.
/// Returns `true` if an end in transit for which a task waits has arrived already, or if a link or lane no longer
/// exists.
///
/// # Errors
/// [`Error::WouldBlock`] if the member has to be polled again soon, because no event is certain to report that some
/// obstacle is gone. Also any error of adding a link to the member's wait set.
fn await_others(member: &dyn Watcher, blocked: Option<&BlockedSends>) -> Result<bool, Error> {
    let mut looks_again = false;
    for blocked_on in blocked.iter().flat_map(|blocked| &blocked.others) {
        match blocked_on {
            BlockedOn::Transit(lane) => {
                let Some(lane) = lane.get::<Lane>() else { return Ok(true) };
                let pending = lane.is_pending();
                let number = match member.register_at_other_link(lane.current_link()) {
                    Ok(number) => number,
                    Err(_) if is_over(lane.current_link()) => return Ok(true),
                    Err(error) => return Err(error),
                };
                waiter::announce(lane.out().waiting(), waiter::on_set(number, pending));
                if has_arrived(&lane) || lane.is_pending() != pending {
                    return Ok(true);
                }
            }
            BlockedOn::Socket(link, _) => {
                let Some(link) = link.get::<Link>() else { return Ok(true) };
                member.await_socket(&link.in_use())?;
                looks_again = true;
            }
            BlockedOn::Unreported(..) | BlockedOn::Descriptors(..) => looks_again = true,
            BlockedOn::Room(..) | BlockedOn::Lock => {}
        }
    }
    if looks_again { Err(Error::WouldBlock) } else { Ok(false) }
}

/// Returns whether the other end of `lane` is no longer in transit: that end has arrived in a process, or will arrive
/// nowhere.
fn has_arrived(lane: &Lane) -> bool {
    let is_open = || lane.inward().is_some() || lane.link().inbox().has_open();
    lane.is_down() || (!lane.is_pending() && is_open())
}

/// Returns whether `link` is down, after asking the kernel. Called when a member could not be registered at the link:
/// the wait set may not watch the link's socket, so this process may not have noticed yet that the link is down.
fn is_over(link: &Link) -> bool {
    link.probe();
    link.is_down()
}

/// Largest number of rounds of one poll for one direction of an end. Another round is needed if the end went on in
/// another lane during the last one. After the last round the poll fails with [`Error::WouldBlock`].
const LANES: usize = 16;

/// A lock of `end` that is marked as blocking. Dropping the value takes the mark back and notifies the wait set, also
/// if code of the program panics meanwhile.
pub(super) struct Blocking<'a, 'b, T> {
    end: &'a End,
    pub(super) guard: &'a mut Guard<'b, T>,
}

impl<T> Drop for Blocking<'_, '_, T> {
    fn drop(&mut self) {
        self.guard.unmark_blocking();
        self.end.after_blocking();
    }
}

/// The members of wait sets that were taken away from ends, because the ends are being sent or fused. Dropping the
/// value puts the members back, also if code of the program panics meanwhile.
pub(super) struct TakenMembers(Vec<(Arc<End>, Arc<dyn Watcher>)>);

impl TakenMembers {
    pub(super) fn of<'a>(ends: impl Iterator<Item = &'a Arc<End>>) -> Self {
        Self(ends.filter_map(|end| end.take_member().map(|member| (end.clone(), member))).collect())
    }

    /// Takes the members out of their wait sets for good, because the ends were sent or fused.
    pub(super) fn take_out(mut self) {
        while let Some((_, member)) = self.0.pop() {
            member.take_out(true);
        }
    }
}

impl Drop for TakenMembers {
    fn drop(&mut self) {
        while let Some((end, member)) = self.0.pop() {
            end.put_member_back(member);
        }
    }
}

impl End {
    /// Marks the lock of `guard`, a lock of this end, as blocking until the returned value is dropped.
    pub(super) fn mark_blocking<'a, 'b, T>(&'a self, guard: &'a mut Guard<'b, T>) -> Blocking<'a, 'b, T> {
        guard.mark_blocking();
        Blocking { end: self, guard }
    }

    /// Makes this end a member of a wait set, as `member`.
    ///
    /// # Errors
    /// [`Error::InSet`] if this end is in a wait set already; [`Error::Forked`].
    pub(crate) fn join_set(&self, member: Arc<dyn Watcher>) -> Result<(), Error> {
        self.born.check()?;
        let old = {
            let mut place = unpoisoned(&self.member);
            if place.as_ref().is_some_and(|old| old.is_current()) {
                return Err(Error::InSet);
            }
            self.in_set.store(true, Ordering::SeqCst);
            place.replace(Box::new(member))
        };
        if let Some(old) = old {
            old.take_out(false);
        }
        // A thread with a lock of the end checks after this fence whether the end is in a wait set.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Returns the registration of this end with its wait set; `None` if the end is in no wait set, or in a child of
    /// `fork`.
    pub(crate) fn watcher(&self) -> Option<Arc<dyn Watcher>> {
        if self.born.is_elsewhere() { None } else { unpoisoned(&self.member).as_deref().cloned() }
    }

    /// Takes this end out of its wait set, if the end is still there as `member`.
    pub(crate) fn leave_set(&self, member: &dyn Watcher) {
        let mut place = unpoisoned(&self.member);
        if place.as_ref().is_some_and(|current| std::ptr::addr_eq(Arc::as_ptr(current.as_ref()), member)) {
            *place = None;
            self.in_set.store(false, Ordering::Relaxed);
            drop(place);
            member.take_out(false);
        }
    }

    /// Takes this end's member of its wait set away, for good or until [`End::put_member_back`]. Waits for a poll in
    /// progress, so that no wait set polls the end afterwards. Returns `None` if the end is in no wait set.
    pub(crate) fn take_member(&self) -> Option<Arc<dyn Watcher>> {
        if !self.in_set.load(Ordering::Relaxed) || self.born.is_elsewhere() {
            return None;
        }
        let mut place = unpoisoned(&self.member);
        // Under the lock: a thread that adds the end right after this call sets the flag again.
        self.in_set.store(false, Ordering::Relaxed);
        let member = place.take();
        drop(place);
        // A poll in progress holds these locks only briefly.
        drop(self.tx.lock(Deadline::NOW));
        drop(self.rx.lock(Deadline::NOW));
        member.map(|member| *member)
    }

    /// Restores a member from [`End::take_member`], because the end stays in this process: the wait set polls the end
    /// again. If another thread has added the end to a wait set meanwhile, such as the handler of a trap, that member
    /// is taken out.
    pub(crate) fn put_member_back(&self, member: Arc<dyn Watcher>) {
        let other = unpoisoned(&self.member).replace(Box::new(member));
        self.in_set.store(true, Ordering::SeqCst);
        if let Some(other) = other {
            other.take_out(other.reports_its_end());
        }
        self.after_blocking();
    }

    /// Notifies the wait set of this end after a thread has released a lock that was [marked
    /// blocking](Guard::mark_blocking), or has moved this end. That thread may have overwritten or left the sleep words
    /// in which the wait set had armed the end, and has kept the wait set from polling.
    #[inline]
    pub(crate) fn after_blocking(&self) {
        fence(Ordering::SeqCst);
        if self.in_set.load(Ordering::Relaxed) {
            self.notify_member();
        }
    }

    #[cold]
    pub(super) fn notify_member(&self) {
        let member = unpoisoned(&self.member).as_deref().cloned();
        if let Some(member) = member {
            member.notify();
        }
    }

    /// Takes this end out of its wait set, because the end is being dropped. A thread may have added the end while
    /// another thread closed it, after the close had looked for a member. A member that stays registered on a link
    /// would keep the link open for ever.
    pub(super) fn leave_set_when_dropped(&mut self) {
        let member = unpoisoned(&self.member).take();
        if let Some(member) = member {
            member.take_out(member.reports_its_end());
        }
    }

    fn is_member(&self, member: &dyn Watcher) -> bool {
        unpoisoned(&self.member)
            .as_ref()
            .is_some_and(|current| std::ptr::addr_eq(Arc::as_ptr(current.as_ref()), member))
    }

    /// Polls this end for its wait set. Returns which directions are ready. Arms each direction that is not ready, so
    /// that the peer sends a notification when the direction becomes ready.
    ///
    /// # Errors
    /// Any error of a direction, unless the other direction is ready.
    pub(crate) fn look(&self, member: &dyn Watcher) -> Result<Ready, Error> {
        let readable = if member.waits_for(Direction::Receiving) { self.look_to_receive(member) } else { Ok(false) };
        let writable = if member.waits_for(Direction::Sending) { self.look_to_send(member) } else { Ok(false) };
        match (readable, writable) {
            // An error in one direction does not hide an event in the other.
            (Ok(true), writable) => Ok(Ready::new(true, writable.unwrap_or(false))),
            (readable, Ok(true)) => Ok(Ready::new(readable.unwrap_or(false), true)),
            (readable, writable) => Ok(Ready::new(readable?, writable?)),
        }
    }

    /// Returns whether this end is ready for `member`, its member of a wait set. Does not arm the end. Returns `false`
    /// if another thread holds a lock of the end: that thread notifies the wait set afterwards. For the [check for lost
    /// wake-ups](crate::wake::strict).
    pub(crate) fn is_ready_for(&self, member: &dyn Watcher) -> bool {
        let has_message = || {
            let rx = self.rx.lock(Deadline::NOW);
            rx.is_ok_and(|mut rx| self.is_member(member) && self.has_what_is_waited_for(member, &mut rx) == Ok(true))
        };
        let has_room = || {
            let tx = self.tx.lock(Deadline::NOW);
            tx.is_ok_and(|mut tx| self.is_member(member) && self.has_room_for(member, &mut tx))
        };
        (member.waits_for(Direction::Receiving) && has_message())
            || (member.waits_for(Direction::Sending) && has_room())
    }

    /// Returns whether the peer need not wake this process. Asks the kernel. For the [check for lost
    /// wake-ups](crate::wake::strict).
    pub(crate) fn may_be_silent(&self) -> bool {
        self.rx.try_lock().is_some_and(|rx| rx.lane.current_link().may_be_silent())
    }

    /// Polls the receiving direction for the wait set. Returns whether the direction is ready for `member`, and arms it
    /// if not. Also returns `false` if the end is no longer in the wait set as `member`, or if another thread holds the
    /// receiving lock; that thread notifies the wait set afterwards.
    fn look_to_receive(&self, member: &dyn Watcher) -> Result<bool, Error> {
        let Ok(mut rx) = self.rx.lock(Deadline::NOW) else { return Ok(false) };
        if !self.is_member(member) {
            return Ok(false);
        }
        for _ in 0..LANES {
            if self.has_what_is_waited_for(member, &mut rx)? {
                return Ok(true);
            }
            let lane = rx.lane.clone();
            let pending = lane.is_pending();
            let link = lane.current_link().clone();
            let number = match member.register_for(Direction::Receiving, &link) {
                Ok(number) => number,
                Err(_) if is_over(&link) => {
                    if self.has_what_is_waited_for(member, &mut rx)? {
                        return Ok(true);
                    }
                    if rx.lane.is_down() {
                        // No peer will notify the wait set: the member waits until every message was received, and the
                        // receiving thread notifies the wait set.
                        return Ok(false);
                    }
                    continue;
                }
                Err(error) => return Err(error),
            };
            self.owe_nothing(&mut rx);
            let memory = rx.consumer_memory();
            if let Some(memory) = &memory {
                waiter::announce(memory.sleeping(), waiter::on_set(number, pending));
            }
            let found = self.has_what_is_waited_for(member, &mut rx)?;
            if !found
                && Arc::ptr_eq(&lane, &rx.lane)
                && lane.is_pending() == pending
                && memory.is_some() == rx.is_open()
            {
                let cpu = if link.is_local() {
                    NOWHERE
                } else {
                    lane.peer_cpu().map_or(0, |cpu| cpu.load(Ordering::Relaxed))
                };
                member.peer_was_on(cpu);
                return Ok(false);
            }
            if let Some(memory) = &memory {
                waiter::announce(memory.sleeping(), 0);
            }
            if found {
                return Ok(true);
            }
        }
        Err(Error::WouldBlock)
    }

    fn has_what_is_waited_for(&self, member: &dyn Watcher, rx: &mut Rx) -> Result<bool, Error> {
        match member.conditions() {
            None => Ok(self.has_next(rx)),
            Some(conditions) => {
                let queued = self.queued(rx)?;
                if queued.peer_closed && queued.messages > 0 && conditions.wait_for_the_end() {
                    // No peer will notify the wait set any more: the thread that receives the remaining messages has to
                    // do so.
                    rx.receive_slowly();
                    self.notifies_each.store(true, Ordering::Relaxed);
                }
                let status = self.status_of(queued, false);
                Ok(conditions.are_met(&status) || conditions.are_out_of_reach(&status))
            }
        }
    }

    /// Returns whether a receive from this end would not block: a message is there, or the channel has ended.
    pub(super) fn has_next(&self, rx: &mut Rx) -> bool {
        // Looking for the next record may find a prepended backlog.
        rx.backlog().is_some() || !matches!(self.next_record(rx), Ok(None)) || rx.backlog().is_some()
    }

    /// Polls the sending direction for the wait set. Returns whether the direction is ready for `member`, and arms it
    /// if not. Also returns `false` if the end is no longer in the wait set as `member`, or if another thread holds the
    /// sending lock; that thread notifies the wait set afterwards.
    fn look_to_send(&self, member: &dyn Watcher) -> Result<bool, Error> {
        let Ok(mut tx) = self.tx.lock(Deadline::NOW) else { return Ok(false) };
        if !self.is_member(member) {
            return Ok(false);
        }
        for _ in 0..LANES {
            if self.has_room_for(member, &mut tx) {
                return Ok(true);
            }
            let lane = tx.lane.clone();
            let pending = lane.is_pending();
            let link = lane.current_link().clone();
            let number = match member.register_for(Direction::Sending, &link) {
                Ok(number) => number,
                Err(_) if is_over(&link) => continue,
                Err(error) => return Err(error),
            };
            let memory = tx.producer.memory().clone();
            waiter::announce(memory.waiting(), waiter::on_set(number, pending));
            let found = self.has_room_for(member, &mut tx);
            if !found && Arc::ptr_eq(&lane, &tx.lane) && lane.is_pending() == pending {
                return await_others(member, member.blocked().as_ref());
            }
            waiter::announce(memory.waiting(), 0);
            if found {
                return Ok(true);
            }
        }
        Err(Error::WouldBlock)
    }

    /// Returns whether the sending direction is ready for `member`. If no blocked sends of tasks are noted, it is ready
    /// when there is room for a small message; otherwise, when one of the obstacles of these sends is gone. The
    /// direction is also ready if a send would fail at once.
    fn has_room_for(&self, member: &dyn Watcher, tx: &mut Guard<'_, Tx>) -> bool {
        // First follows the other end, so that the present ring is polled.
        let has_room = self.has_room(tx);
        let fails_at_once = tx.ended().is_some() || tx.producer.ended().is_some() || tx.lane.is_down();
        let is_any_met = |blocked: &BlockedSends| is_any_met(blocked, has_room, tx);
        fails_at_once || member.blocked().as_ref().map_or(has_room, is_any_met)
    }

    /// Returns whether a small message can be sent now without waiting, after following the other end to its present
    /// lane. Also `true` if a send would fail at once.
    pub(super) fn has_room(&self, tx: &mut Guard<'_, Tx>) -> bool {
        self.catch_up(tx);
        // The next send finds out why sending fails, or goes on to where the other end is.
        if tx.ended().is_some() || tx.producer.ended().is_some() {
            return true;
        }
        if tx.lane.is_down() || tx.refresh_taken().is_err() {
            return true;
        }
        let staged = tx.producer.stage(Header::new(RecordKind::Message, 0, 0));
        tx.producer.discard();
        let room = match staged {
            Ok(_) => true,
            Err(crate::ring::NoRoom::Corrupt) => return true,
            // The ring can grow only once this end knows the process of the other end, because that process gets the
            // memory.
            Err(_) => !tx.lane.is_pending() && tx.may_grow(self.options.ring_max_cells),
        };
        room && self.has_credit(tx)
    }
}
