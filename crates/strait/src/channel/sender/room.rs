//! Room for messages: in the ring, which grows; in the pool; and within the limits on what may be in flight. A
//! sender without room waits.

use std::sync::Arc;
use std::time::Duration;

use super::Tx;
use crate::blocked_on::{self, BlockedOn, Subject};
use crate::channel::End;
use crate::channel::options::Options;
use crate::channel::pool::{Loan, NewMemory};
use crate::channel::receiver::next::MOST_LANES;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::Lane;
use crate::lane::waiter::Waiter;
use crate::link::packet::SHARES_BLOCKS;
use crate::quota::pools;
use crate::ring::{self, CELL, Header, Memory, NoRoom, RecordKind, Slot};
use crate::shm::RingMemory;
use crate::signals;
use crate::wake::Direction;
use crate::wake::lock::Guard;

/// The time for which a sender waits for room before replacing its ring by a larger ring, if the other end moves all
/// the time. An end that receives makes room sooner. The wait is short, because the other end may not receive at all.
const GROWS_AFTER: Duration = Duration::from_millis(1);

impl End {
    #[cold]
    pub(super) fn stage_when_room(
        &self,
        tx: &mut Guard<'_, Tx>,
        header: Header,
        deadline: Deadline,
    ) -> Result<Slot, Error> {
        // Records staged before are committed first, or the consumer could not take them and so make room.
        self.commit(tx, deadline)?;
        // The commit may have led to another ring, which has room.
        let mut no_room = match tx.producer.stage(header) {
            Ok(slot) => return Ok(slot),
            Err(no_room) => no_room,
        };
        let (mut lane, mut lanes) = (Arc::as_ptr(&tx.lane), 0);
        loop {
            if no_room == NoRoom::Corrupt {
                return Err(tx.end_with(Error::BadPeer("credit for cells that were never used")));
            }
            let cells = tx.producer.memory().cells();
            if no_room == NoRoom::Full && tx.rather_waits_than_grows() && self.finds_room_soon(tx, deadline)? {
                // There is room now, or the other end has moved once more: stage again.
            } else if cells < self.options.ring_max_cells
                && (no_room == NoRoom::TooLong
                    || (tx.may_grow(self.options.ring_max_cells) && tx.lane.link().may_send(1, || false)))
            {
                // For a long record the ring becomes as large as that record needs. For a consumer that does not keep
                // up it becomes four times as large. Rings start small, since small rings stay in the level 1 cache.
                let larger = match no_room {
                    NoRoom::TooLong => ring::cells_to_carry(header.len()),
                    _ => 4 * cells,
                };
                match self.grow(tx, larger.min(self.options.ring_max_cells), deadline) {
                    // Without memory for a larger ring, the present ring still works.
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
            if lane != Arc::as_ptr(&tx.lane) {
                lane = Arc::as_ptr(&tx.lane);
                lanes += 1;
                if lanes % MOST_LANES == 0 {
                    self.goes_on(deadline, Direction::Sending)?;
                }
            }
        }
    }

    /// Waits at most [`GROWS_AFTER`] for room in the present ring. Returns `false` if there was no room in time, so
    /// that the ring has to grow.
    fn finds_room_soon(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<bool, Error> {
        if deadline.is_now() {
            return Ok(false);
        }
        match self.wait_for_room(tx, false, deadline.within(GROWS_AFTER).into()) {
            Err(Error::TimedOut) => Ok(false),
            waited => waited.map(|()| true),
        }
    }

    /// Replaces the ring by a larger one of `cells` cells (of 64 bytes). Sends the memory of the larger ring over the
    /// socket, and ends the present ring with a record that leads there.
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
        let pinned = tx.is_pinned();
        // If the other end has moved, the ring of the next lane may have room; that is no error.
        let unless_moved = |tx: &mut Tx, done: Result<(), Error>| match done {
            Err(error) if !pinned && tx.has_moved() => {
                signals::postpone(error);
                Ok(())
            }
            done => done,
        };
        if let Err(error) = self.send_ring(tx, generation.into(), &memory, deadline) {
            return unless_moved(tx, Err(error));
        }
        if let Err(ended) = tx.producer.end(RecordKind::Next, &u64::from(generation).to_le_bytes()) {
            let followed = self.after_end(tx, ended, deadline);
            return unless_moved(tx, followed);
        }
        tx.go_on_in(grown);
        tx.note_in_flight_up_to_here(1);
        self.counts.cold().grown.add(1);
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        self.after_commit(tx, how);
        Ok(())
    }

    /// Waits until the consumer has taken a message, freed cells, or ended the ring. With `or_block`, a block that the
    /// consumer returns ends the wait too. If the consumer has ended the ring, does what [`End::after_end`] does.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Deadline::NOW`]; [`Error::TimedOut`] at any other deadline; [`Error::Interrupted`];
    /// the errors of [`End::after_end`]; the error of the link if the link is down.
    pub(in crate::channel) fn wait_for_room(
        &self,
        tx: &mut Guard<'_, Tx>,
        or_block: bool,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.counts.cold().stalls.add(1);
        tx.mark_blocking_until(deadline);
        let lane = tx.lane.clone();
        let pending = lane.is_pending();
        let waiter = self.waiter(&lane, tx.producer.memory());
        let waited = waiter.until(
            deadline,
            || tx.has_news() || (or_block && tx.pool_has_news()) || (pending && !lane.is_pending()),
            || {
                self.counts.cold().send_sleeps.add(1);
                self.publish_cpu(tx);
            },
        );
        let source_died = pending && waiter.link.is_down();
        if deadline.is_now() && waited.is_err() {
            blocked_on::note(BlockedOn::Room(Subject::of(Arc::downgrade(&tx.lane)), tx.progress(or_block)));
        }
        tx.unmark_blocking_until(deadline);
        self.after_blocking();
        if let Some(ended) = tx.producer.ended() {
            waited.unwrap_or_else(signals::postpone);
            return self.after_end(tx, ended, deadline);
        }
        match waited {
            // If the source died, the lane knows the outcome of the transfer.
            Err(error) if source_died && !lane.is_down() => signals::postpone(error),
            // Another thread has broken off this end.
            Err(error @ Error::BadPeer(_)) if !lane.is_down() => {
                self.retract(tx);
                return Err(self.break_off_while_sending(tx, error));
            }
            waited => waited?,
        }
        tx.refresh()
    }

    /// Returns the description of a wait by the sending direction of this end. `memory` is this end's outgoing ring in
    /// `lane`. Such a wait ends when the consumer has changed its words in the ring. If the other end is in transit,
    /// the wait also ends when that end has arrived.
    pub(in crate::channel) fn waiter<'a>(&'a self, lane: &'a Lane, memory: &'a RingMemory) -> Waiter<'a> {
        // The lane's state is read before its link. If the end is handed over in between, the wait ends at once,
        // whichever link was read.
        let relayed = lane.is_pending();
        Waiter {
            link: lane.current_link(),
            scope: lane.scope(),
            relayed,
            memory,
            direction: Direction::Sending,
            interruption: self.interruption_within(lane.current_link()),
            peer_cpu: lane.peer_cpu(),
            wait: self.options.wait,
            spin: self.options.spin,
            long: &self.long_stall,
        }
    }

    /// Waits until the limits allow one more message in flight, with `handles` descriptors and `sealed` bytes of sealed
    /// memory. Commits staged records before waiting. Fails as [`End::commit`] and [`End::wait_for_room`] do.
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
                    let before = tx.amount_in_flight().sealed;
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

    /// Waits until the limits allow `handles` more descriptors in flight, for a message that is already staged. Commits
    /// nothing. Fails as [`End::wait_for_room`] does.
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

    /// Returns whether `descriptors` more descriptors would exceed the limit on descriptors in flight from this end. If
    /// none are in flight, any number is allowed.
    pub(super) fn are_too_many(&self, tx: &Tx, descriptors: usize) -> bool {
        descriptors > 0 && {
            let before = tx.amount_in_flight().handles;
            before > 0 && before + descriptors > self.options.queue_handles
        }
    }

    /// Borrows a block from the pool for a message of `len` bytes; waits until `deadline` while no block is free.
    /// Commits staged records before it waits. Fails as [`End::commit`] and [`End::wait_for_room`] do, or if no memory
    /// can be had for a new block.
    pub(in crate::channel) fn borrow_block(
        &self,
        tx: &mut Guard<'_, Tx>,
        len: usize,
        deadline: Deadline,
    ) -> Result<Loan, Error> {
        loop {
            let Options { pool: retain_limit, queue_bytes, .. } = *self.options;
            // The memory is made for the process of the other end, so that process must be known first.
            self.is_local(tx, deadline)?;
            let lane = tx.lane.clone();
            let make = |size| {
                let memory = lane.link().io().memory("strait-block", size)?;
                let account = memory.fd.as_ref().map(|_| lane.link().ledger().number());
                Ok(NewMemory { memory, account })
            };
            let may_share = || lane.link().is_local() || lane.link().knows(SHARES_BLOCKS);
            if let Some(loan) = tx.pool().lend(len, retain_limit, queue_bytes, may_share, make)? {
                self.counts.cold().out_of_line.add(1);
                self.counts.cold().pool_hits.add(u64::from(loan.fresh.is_none()));
                self.counts.cold().used_once.add(u64::from(loan.record.once));
                pools::look();
                return Ok(loan);
            }
            self.commit(tx, deadline)?;
            self.wait_for_room(tx, true, deadline)?;
        }
    }
}
