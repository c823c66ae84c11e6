//! Room for what is sent: in the ring, which grows; in the pool; and under the limits on what may be under way. Where
//! there is none, waiting for it.

use std::sync::Arc;
use std::time::Duration;

use super::Tx;
use crate::channel::End;
use crate::channel::options::Options;
use crate::channel::pool::Loan;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::Lane;
use crate::link::Parcel;
use crate::link::packet::{Packet, SHARES_BLOCKS};
use crate::ring::{self, CELL, Header, Kind, Memory, NoRoom, Slot};
use crate::shm::RingMemory;
use crate::wake::Direction;
use crate::wake::lock::Guard;
use crate::wake::waiter::Waiter;
use crate::wake::want::{self, Want};

/// How long a sender waits for room before it makes the ring larger, if the other end moves all the time. An end that receives
/// makes room sooner; for one that does not, the sender must go on nevertheless.
const GROWS_AFTER: Duration = Duration::from_millis(1);

impl End {
    #[cold]
    pub(super) fn stage_when_room(
        &self,
        tx: &mut Guard<'_, Tx>,
        header: Header,
        deadline: Deadline,
    ) -> Result<Slot, Error> {
        // What was staged before must be out, or the consumer could not make room by taking it.
        self.commit(tx, deadline)?;
        // Which may be in another ring by now.
        let mut no_room = match tx.producer.stage(header) {
            Ok(slot) => return Ok(slot),
            Err(no_room) => no_room,
        };
        loop {
            if no_room == NoRoom::Corrupt {
                return Err(tx.end_with(Error::BadPeer("it claims to have taken what was never sent")));
            }
            let cells = tx.producer.memory().cells();
            if no_room == NoRoom::Full && tx.rather_waits_than_grows() && self.finds_room_soon(tx, deadline)? {
                // There is some now, or the other end has moved once more.
            } else if cells < self.options.ring_max_cells
                && (no_room == NoRoom::TooLong
                    || (tx.may_grow(self.options.ring_max_cells) && tx.lane.link().may_send(1, || false)))
            {
                // As large as it must be for a long record; by much for a consumer that does not keep up. Small rings stay
                // in the nearest caches.
                let larger = match no_room {
                    NoRoom::TooLong => ring::cells_to_carry(header.len()),
                    _ => 4 * cells,
                };
                match self.grow(tx, larger.min(self.options.ring_max_cells), deadline) {
                    // Without memory for a larger ring the one we have still does.
                    Err(Error::NoDescriptors | Error::NoMemory { .. } | Error::System { .. })
                        if no_room == NoRoom::Full =>
                    {
                        self.wait_for_room(tx, false, deadline)?;
                    }
                    grown => grown?,
                }
            } else {
                self.wait_for_room(tx, false, deadline)?;
            }
            match tx.producer.stage(header) {
                Ok(slot) => return Ok(slot),
                Err(again) => no_room = again,
            }
        }
    }

    /// Waits for room in the present ring, for [`GROWS_AFTER`] at most. False if none came, so that the ring has to grow.
    fn finds_room_soon(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<bool, Error> {
        if deadline.is_now() {
            return Ok(false);
        }
        match self.wait_for_room(tx, false, deadline.within(GROWS_AFTER).into()) {
            Err(Error::TimedOut) => Ok(false),
            waited => waited.map(|()| true),
        }
    }

    /// Goes on in a ring of so many cells.
    pub(in crate::channel) fn grow(
        &self,
        tx: &mut Guard<'_, Tx>,
        cells: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.wait_for_hand_over(tx, deadline)?;
        let memory = tx.lane.link().io().memory("strait-ring", cells * CELL)?;
        let grown = tx.producer.memory().grown(memory.mapping.clone()).expect("a larger ring");
        let generation = tx.generation + 1;
        let packet = |token| Packet::Ring { token, generation: generation.into() };
        let pinned = tx.is_pinned();
        // The ring of the next lane may do.
        let unless_moved = |tx: &mut Tx, done: Result<(), Error>| match done {
            Err(_) if !pinned && tx.has_moved() => Ok(()),
            done => done,
        };
        if let Err(error) = self.send_packet(tx, packet, Parcel::memory(&memory), 1, deadline) {
            return unless_moved(tx, Err(error));
        }
        if let Err(ended) = tx.producer.end(Kind::Next, &u64::from(generation).to_le_bytes()) {
            let followed = self.after_end(tx, ended, deadline);
            return unless_moved(tx, followed);
        }
        tx.go_on_in(grown);
        tx.note_in_flight_up_to_here(1);
        self.counts.rare().grown.add(1);
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        self.after_commit(tx, how);
        Ok(())
    }

    /// Waits until the consumer has taken something; or, `or_block`, has given a block back.
    pub(in crate::channel) fn wait_for_room(
        &self,
        tx: &mut Guard<'_, Tx>,
        or_block: bool,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.counts.rare().stalls.add(1);
        tx.keep_until(deadline);
        let lane = tx.lane.clone();
        let pending = lane.is_pending();
        let waiter = self.waiter(&lane, tx.producer.memory());
        let waited = waiter.until(
            deadline,
            || tx.has_news() || (or_block && tx.pool_has_news()) || (pending && !lane.is_pending()),
            || {
                self.counts.rare().send_sleeps.add(1);
                self.publish_cpu(tx);
            },
        );
        let mover_died = pending && waiter.link.is_down();
        if deadline.is_now() && waited.is_err() {
            want::note(Want::Room(Arc::downgrade(&tx.lane), tx.progress()));
        }
        tx.kept_until(deadline);
        self.kept_no_more();
        if let Some(ended) = tx.producer.ended() {
            return self.after_end(tx, ended, deadline);
        }
        match waited {
            // What that means is for the lane to say.
            Err(_) if mover_died && !lane.is_down() => {}
            waited => waited?,
        }
        tx.refresh()
    }

    /// How this end waits in its sending direction on the words of a lane, of which it writes the ring in `memory`. If the other
    /// end is in transit, the wait has to end when it no longer is.
    pub(in crate::channel) fn waiter<'a>(&'a self, lane: &'a Lane, memory: &'a RingMemory) -> Waiter<'a> {
        // First: where it is handed over right after this, the wait ends at once, whichever link it is on.
        let via_mover = lane.is_pending();
        Waiter {
            link: lane.listen(),
            scope: lane.scope(),
            via_mover,
            memory,
            direction: Direction::Sending,
            interruption: self.interruption(),
            peer_cpu: lane.peer_cpu(),
            wait: self.options.wait,
            spin: self.options.spin,
            long: &self.long_stall,
        }
    }

    /// Waits until one more message with so many descriptors, and bytes of sealed memory, may be under way.
    #[inline]
    pub(in crate::channel) fn wait_for_quotas(
        &self,
        tx: &mut Guard<'_, Tx>,
        handles: usize,
        sealed: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let full = |tx: &Tx| {
            tx.sequence - tx.taken >= self.options.queue_messages
                || self.are_too_many(tx, handles)
                || (sealed > 0 && {
                    let before = tx.in_flight().sealed;
                    before > 0 && before + sealed > self.options.queue_bytes
                })
        };
        if !full(tx) {
            return Ok(());
        }
        tx.refresh_taken()?;
        while full(tx) {
            self.commit(tx, deadline)?;
            self.wait_for_room(tx, false, deadline)?;
        }
        Ok(())
    }

    /// The same for the handles of a message that is staged already; nothing is committed.
    pub(in crate::channel) fn wait_for_handles(
        &self,
        tx: &mut Guard<'_, Tx>,
        handles: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        while self.are_too_many(tx, handles) {
            tx.refresh_taken()?;
            if self.are_too_many(tx, handles) {
                self.wait_for_room(tx, false, deadline)?;
            }
        }
        Ok(())
    }

    /// Whether so many descriptors more would be too many under way from this end. One message may always be under way, however
    /// many it has.
    pub(super) fn are_too_many(&self, tx: &Tx, descriptors: usize) -> bool {
        descriptors > 0 && {
            let before = tx.in_flight().handles;
            before > 0 && before + descriptors > self.options.queue_handles
        }
    }

    /// Memory outside the ring for a message of `len` bytes.
    pub(in crate::channel) fn borrow_block(
        &self,
        tx: &mut Guard<'_, Tx>,
        len: usize,
        deadline: Deadline,
    ) -> Result<Loan, Error> {
        loop {
            let Options { pool: keep, queue_bytes, .. } = *self.options;
            // Its memory is made for the process that it goes to.
            self.is_within(tx, deadline)?;
            let lane = tx.lane.clone();
            let make = |size| lane.link().io().memory("strait-block", size);
            let may_share = || lane.link().is_local() || lane.link().knows(SHARES_BLOCKS);
            if let Some(loan) = tx.pool().lend(len, keep, queue_bytes, may_share, make)? {
                self.counts.rare().out_of_line.add(1);
                self.counts.rare().pool_hits.add(u64::from(loan.fresh.is_none()));
                return Ok(loan);
            }
            self.commit(tx, deadline)?;
            self.wait_for_room(tx, true, deadline)?;
        }
    }
}
