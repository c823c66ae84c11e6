//! An end in a wait set.
//!
//! The set looks at an end with its locks. In a direction that has nothing the end says in the ring's word that it
//! listens, and by which number on which link; whoever publishes rings. It looks once more after that. When a mark leads
//! the end to another lane, or the other end is handed over, it is found there at the next look, which says so anew.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use super::End;
use super::queued::{Queued, Status};
use super::rx::Rx;
use super::tx::Tx;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::unpoisoned;
use crate::lock::Guard;
use crate::ring::{Ended, Header, Kind, Memory};
use crate::wait;
use crate::wait_set::{Direction, Member, Ready, Shared};

/// How often a look is repeated since the end came to another lane in it.
const LANES: usize = 16;

impl End {
    /// Makes it a member of a set.
    pub(crate) fn join_set(&self, member: &Arc<Member>) -> Result<(), Error> {
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
        if !self.in_set.load(Ordering::Relaxed) {
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

    /// A try to send has come to nothing for want of what no word of the ring tells of: the lock, a place in the socket, or to know
    /// where the other end is. Called before the task that tried it waits; a thread that has time waits by itself.
    #[cold]
    pub(super) fn wanted_else(&self, deadline: Deadline) {
        if deadline.is_now() {
            self.wants_else.store(true, Ordering::Relaxed);
        }
    }

    fn is_member(&self, member: &Arc<Member>) -> bool {
        unpoisoned(&self.member).as_ref().is_some_and(|current| Arc::ptr_eq(current, member))
    }

    /// What there is for a member. Where there is nothing, says that it listens.
    pub(crate) fn look(&self, member: &Arc<Member>) -> Result<Ready, Error> {
        let readable = member.interest.readable() && self.look_to_receive(member)?;
        let writable = member.interest.writable() && self.look_to_send(member)?;
        Ok(Ready::new(readable, writable))
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
                wait::announce(memory.sleeping(), wait::on_set(number, pending));
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
                wait::announce(memory.sleeping(), 0);
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
        if self.wants_else.swap(false, Ordering::Relaxed) {
            tx.note_wanted_else();
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
            wait::announce(memory.waiting(), wait::on_set(number, pending));
            let found = self.has_room_for(member, &mut tx);
            if !found && Arc::ptr_eq(&lane, &tx.lane) && lane.is_pending() == pending {
                return Ok(false);
            }
            wait::announce(memory.waiting(), 0);
            if found {
                return Ok(true);
            }
        }
        Err(Error::WouldBlock)
    }

    /// Whether there is the room that a member waits for: for a small message; and if it has tried what found none, since then,
    /// unless somebody has tried what wanted something else.
    fn has_room_for(&self, member: &Member, tx: &mut Guard<'_, Tx>) -> bool {
        if !self.has_room(tx) {
            return false;
        }
        let fails_at_once = tx.ended().is_some() || tx.producer.ended().is_some() || tx.lane.is_down();
        fails_at_once || !member.has_tried() || !tx.is_stalled()
    }

    /// Whether a small message can be sent without waiting; true if sending fails at once.
    pub(super) fn has_room(&self, tx: &mut Guard<'_, Tx>) -> bool {
        loop {
            if tx.ended().is_some() {
                return true;
            }
            match tx.producer.ended() {
                Some(Ended(Some(Kind::Frozen))) if self.follow_frozen(tx).is_ok() => continue,
                Some(_) => return true,
                None => break,
            }
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
        room && tx.sequence - tx.taken < self.options.queue_messages
    }
}
