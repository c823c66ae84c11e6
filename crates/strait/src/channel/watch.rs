//! An end in a wait set.
//!
//! The set looks at an end with its locks. In a direction that has nothing the end says in the ring's word that it
//! listens, and by which number on which link; whoever publishes rings. It looks once more after that. When a mark leads
//! the end to another lane, or the other end is handed over, it is found there at the next look, which says so anew.

use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Weak};

use super::End;
use super::receiver::Rx;
use super::receiver::queued::{Queued, Status};
use super::sender::Tx;
use super::sender::packets::is_lane_of;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::Lane;
use crate::link::Link;
use crate::ring::{Header, Kind, Memory};
use crate::sync::unpoisoned;
use crate::wait_set::{Member, Ready, Shared};
use crate::wake::lock::Guard;
use crate::wake::want::{self, Progress, Want, Wants};
use crate::wake::{Direction, waiter};

/// Whether one of the things is there that tasks wait for. The caller has the lock of the sending direction.
fn is_any_met(wants: &Wants, has_room: bool, tx: &Tx) -> bool {
    let has_moved_on = |(lane, seen): &(Weak<Lane>, Progress)| !is_lane_of(tx, lane) || tx.has_moved_on_from(seen);
    (wants.small_room && has_room)
        || wants.room.as_ref().is_some_and(has_moved_on)
        || wants.others.iter().any(|want| is_met(want, tx))
}

fn is_met(want: &Want, tx: &Tx) -> bool {
    match want {
        Want::Room(lane, seen) => !is_lane_of(tx, lane) || tx.has_moved_on_from(seen),
        Want::Descriptors(lane, seen, count) => {
            !is_lane_of(tx, lane) || tx.has_moved_on_from(seen) || tx.lane.link().may_send(*count, || tx.has_reserve())
        }
        Want::Transit(lane) => lane.upgrade().is_none_or(|lane| has_arrived(&lane)),
        Want::Socket(link, since) => {
            let is_writable = |link: Arc<Link>| link.is_down() || link.is_writable();
            since.elapsed() >= want::LOOK || link.upgrade().is_none_or(is_writable)
        }
        Want::Kernel(_, since) => since.elapsed() >= want::LOOK,
        // This look has it.
        Want::Lock => true,
    }
}

/// Has a member told of what no word of its own ring tells of. True if something of it is there already.
///
/// # Errors
/// [`Error::WouldBlock`] if the member is to be looked at again soon, as no event tells of something for sure; what adding a link
/// to its set fails with.
fn await_others(member: &Arc<Member>, wants: Option<&Wants>) -> Result<bool, Error> {
    let mut looks_again = false;
    for want in wants.iter().flat_map(|wants| &wants.others) {
        match want {
            Want::Transit(lane) => {
                let Some(lane) = lane.upgrade() else { return Ok(true) };
                let pending = lane.is_pending();
                let number = member.place_beside(lane.listen())?;
                waiter::announce(lane.out().waiting(), waiter::on_set(number, pending));
                if has_arrived(&lane) || lane.is_pending() != pending {
                    return Ok(true);
                }
            }
            Want::Socket(link, _) => {
                let Some(link) = link.upgrade() else { return Ok(true) };
                member.await_socket(&link.in_use())?;
                looks_again = true;
            }
            Want::Kernel(..) | Want::Descriptors(..) => looks_again = true,
            Want::Room(..) | Want::Lock => {}
        }
    }
    if looks_again { Err(Error::WouldBlock) } else { Ok(false) }
}

/// Whether the other end of a lane is known to be somewhere, or to come to nobody.
fn has_arrived(lane: &Lane) -> bool {
    let is_open = || lane.inward().is_some() || lane.link().stash().has_hello();
    lane.is_down() || (!lane.is_pending() && is_open())
}

/// How often a look is repeated since the end came to another lane in it.
const LANES: usize = 16;

impl End {
    /// Makes it a member of a set.
    pub(crate) fn join_set(&self, member: &Arc<Member>) -> Result<(), Error> {
        self.born.check()?;
        let old = {
            let mut place = unpoisoned(&self.member);
            if place.as_ref().is_some_and(|old| old.is_current()) {
                return Err(Error::InSet);
            }
            self.in_set.store(true, Ordering::SeqCst);
            place.replace(member.clone())
        };
        if let Some(old) = old {
            old.take_out(false);
        }
        // Whoever keeps the end now looks after this whether it is in a set.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Its registration with this set.
    pub(crate) fn member_of(&self, set: &Arc<Shared>) -> Option<Arc<Member>> {
        if self.born.is_elsewhere() {
            return None;
        }
        unpoisoned(&self.member).clone().filter(|member| member.is_of(set))
    }

    /// It is in the set no more.
    pub(crate) fn leave_set(&self, member: &Arc<Member>) {
        let mut place = unpoisoned(&self.member);
        if place.as_ref().is_some_and(|current| Arc::ptr_eq(current, member)) {
            *place = None;
            self.in_set.store(false, Ordering::Relaxed);
            drop(place);
            member.take_out(false);
        }
    }

    /// Takes its registration away, for good or until [`End::put_member_back`]; no set looks at it any more.
    pub(super) fn take_member(&self) -> Option<Arc<Member>> {
        if !self.in_set.load(Ordering::Relaxed) || self.born.is_elsewhere() {
            return None;
        }
        let member = unpoisoned(&self.member).take();
        self.in_set.store(false, Ordering::Relaxed);
        // A look that is under way does not take long.
        drop(self.tx.lock(Deadline::NOW));
        drop(self.rx.lock(Deadline::NOW));
        member
    }

    /// It was not sent away after all.
    pub(super) fn put_member_back(&self, member: Arc<Member>) {
        *unpoisoned(&self.member) = Some(member);
        self.in_set.store(true, Ordering::SeqCst);
        self.kept_no_more();
    }

    /// Called after a lock was [kept](Guard::keep) and is no more: whoever kept it has used the words in which a member
    /// says that it listens, and kept its set from looking.
    #[inline]
    pub(crate) fn kept_no_more(&self) {
        fence(Ordering::SeqCst);
        if self.in_set.load(Ordering::Relaxed) {
            self.ring_member();
        }
    }

    #[cold]
    pub(super) fn ring_member(&self) {
        let member = unpoisoned(&self.member).clone();
        if let Some(member) = member {
            member.ring();
        }
    }

    fn is_member(&self, member: &Arc<Member>) -> bool {
        unpoisoned(&self.member).as_ref().is_some_and(|current| Arc::ptr_eq(current, member))
    }

    /// What there is for a member. Where there is nothing, says that it listens.
    pub(crate) fn look(&self, member: &Arc<Member>) -> Result<Ready, Error> {
        let readable = if member.interest.readable() { self.look_to_receive(member) } else { Ok(false) };
        let writable = if member.interest.writable() { self.look_to_send(member) } else { Ok(false) };
        match (readable, writable) {
            // What fails in one direction keeps nothing from being told of the other.
            (Ok(true), writable) => Ok(Ready::new(true, writable.unwrap_or(false))),
            (readable, Ok(true)) => Ok(Ready::new(readable.unwrap_or(false), true)),
            (readable, writable) => Ok(Ready::new(readable?, writable?)),
        }
    }

    /// Whether there is something to receive; false as well if somebody keeps the lock, who has it looked at afterwards.
    fn look_to_receive(&self, member: &Arc<Member>) -> Result<bool, Error> {
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
            let link = lane.listen().clone();
            let number = match member.place(Direction::Receiving, &link) {
                Ok(number) => number,
                // Which the next look shows.
                Err(_) if link.is_down() => continue,
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

    fn has_what_is_waited_for(&self, member: &Member, rx: &mut Rx) -> Result<bool, Error> {
        match &member.conditions {
            None => Ok(self.has_front(rx)),
            Some(conditions) => {
                let Queued { messages, bytes, peer_closed } = self.queued(rx)?;
                if peer_closed && messages > 0 && conditions.wait_for_the_end() {
                    // Nobody else will ring: the last to do something is whoever receives what is left.
                    rx.receive_slowly();
                    self.tells_of_each.store(true, Ordering::Relaxed);
                }
                let status = Status { messages, bytes, peer_closed, has_room: false };
                Ok(conditions.are_met(&status) || conditions.are_out_of_reach(&status))
            }
        }
    }

    /// Whether a message is at the front, or the channel's end.
    pub(super) fn has_front(&self, rx: &mut Rx) -> bool {
        // The look may find some that were brought.
        rx.kept().is_some() || !matches!(self.front(rx), Ok(None)) || rx.kept().is_some()
    }

    /// The same for sending.
    fn look_to_send(&self, member: &Arc<Member>) -> Result<bool, Error> {
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
            let link = lane.listen().clone();
            let number = match member.place(Direction::Sending, &link) {
                Ok(number) => number,
                Err(_) if link.is_down() => continue,
                Err(error) => return Err(error),
            };
            let memory = tx.producer.memory().clone();
            waiter::announce(memory.waiting(), waiter::on_set(number, pending));
            let found = self.has_room_for(member, &mut tx);
            if !found && Arc::ptr_eq(&lane, &tx.lane) && lane.is_pending() == pending {
                return member.with_wants(|wants| await_others(member, wants));
            }
            waiter::announce(memory.waiting(), 0);
            if found {
                return Ok(true);
            }
        }
        Err(Error::WouldBlock)
    }

    /// Whether there is what a member waits for: room for a small message, or what its tasks lacked when they tried.
    fn has_room_for(&self, member: &Member, tx: &mut Guard<'_, Tx>) -> bool {
        // Follows the other end, so that the ring is the present one.
        let has_room = self.has_room(tx);
        let fails_at_once = tx.ended().is_some() || tx.producer.ended().is_some() || tx.lane.is_down();
        fails_at_once || member.with_wants(|wants| wants.map_or(has_room, |wants| is_any_met(wants, has_room, tx)))
    }

    /// Whether a small message can be sent without waiting; true if sending fails at once.
    pub(super) fn has_room(&self, tx: &mut Guard<'_, Tx>) -> bool {
        self.catch_up(tx);
        // Whoever sends then finds out why it fails, or goes on to where the other end is.
        if tx.ended().is_some() || tx.producer.ended().is_some() {
            return true;
        }
        if tx.lane.is_down() || tx.refresh_taken().is_err() {
            return true;
        }
        let staged = tx.producer.stage(Header::new(Kind::Message, 0, 0));
        tx.producer.discard();
        let room = match staged {
            Ok(_) => true,
            Err(crate::ring::NoRoom::Corrupt) => return true,
            // A larger ring goes to whoever has the other end, once that is known.
            Err(_) => !tx.lane.is_pending() && tx.may_grow(self.options.ring_max_cells),
        };
        room && self.has_credit(tx)
    }
}
