//! The commit: makes staged records visible to the peer. If the peer has moved meanwhile, the sender follows it
//! to the next lane.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Tx;
use crate::blocked_on::{self, BlockedOn, Subject};
use crate::channel::End;
use crate::channel::receiver::next::MOST_LANES;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::{Lane, Name, mailbox, waiter};
use crate::link::packet::Packet;
use crate::quota::pools;
use crate::ring::{self, Ended, Memory, RecordKind};
use crate::wake::Direction;
use crate::wake::lock::Guard;

/// After each this many messages, the sender publishes its CPU. If the peer has shown no activity since the last time,
/// the sender then also asks the kernel whether the peer is alive.
const LOOK_EVERY: u64 = 16;

/// A wake-up that is due: a message was sent to a peer that sleeps. Dropping this object wakes the peer; no other
/// thread does so.
#[derive(Debug)]
pub(crate) struct WakeOnDrop {
    lane: Arc<Lane>,
}

impl Drop for WakeOnDrop {
    fn drop(&mut self) {
        waiter::wake(self.lane.current_link(), self.lane.scope(), self.lane.out().sleeping(), waiter::ON_WORD);
    }
}

impl End {
    /// Makes the staged records visible to the peer, and wakes a sleeping peer. If the other end has moved, the records
    /// go to its new lane. Does nothing if nothing is staged.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the peer has moved and the records had attachments, which were sent to the old peer
    /// only. This call then discards the records, and the next call of [`Tx::has_moved`] returns `true`: the caller
    /// must stage the message anew. Also the errors with which the sending direction ends.
    #[inline]
    pub(in crate::channel) fn commit(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        self.commit_and(tx, deadline, || {})
    }

    /// Makes the staged records visible to the peer as [`End::commit`] does, and calls `and_then` right after that,
    /// before a sleeping peer is woken. The thread may lose its processor to the woken peer, so work for other threads
    /// comes first.
    #[inline]
    pub(in crate::channel) fn commit_and(
        &self,
        tx: &mut Guard<'_, Tx>,
        deadline: Deadline,
        mut and_then: impl FnMut(),
    ) -> Result<(), Error> {
        let mut lanes = 0;
        while tx.producer.has_staged() {
            match self.commit_once_and(tx, &mut and_then) {
                None => return Ok(()),
                Some(ended) => self.after_end(tx, ended, deadline)?,
            }
            lanes += 1;
            if lanes % MOST_LANES == 0 {
                self.goes_on(deadline, Direction::Sending)?;
            }
        }
        Ok(())
    }

    /// Commits the staged records in the present lane. Returns `None` on success. If the peer has ended the ring,
    /// because the other end has moved or was closed, commits nothing and returns how the ring was ended; the caller
    /// passes this value to [`End::after_end`].
    pub(in crate::channel) fn commit_once(&self, tx: &mut Guard<'_, Tx>) -> Option<Ended> {
        self.commit_once_and(tx, || {})
    }

    /// Commits the staged records in the present lane as [`End::commit_once`] does. Calls `and_then` after a successful
    /// commit, before a sleeping peer is woken.
    #[inline]
    fn commit_once_and(&self, tx: &mut Guard<'_, Tx>, mut and_then: impl FnMut()) -> Option<Ended> {
        match tx.producer.commit() {
            Ok(()) => {
                and_then();
                tx.attached = false;
                let (messages, bytes) = std::mem::take(&mut tx.uncommitted);
                self.counts.messages_sent.add(messages.into());
                self.counts.bytes_sent.add(bytes.into());
                self.committed(tx);
                None
            }
            Err(ended) => Some(ended),
        }
    }

    /// Returns whether [`End::committed`] has anything to do after this commit. Costs one load.
    #[inline(always)]
    pub(super) fn is_look_due(&self, tx: &Tx) -> bool {
        tx.producer.memory().sleeping().load(Ordering::SeqCst) != waiter::AWAKE
            || tx.sequence.is_multiple_of(LOOK_EVERY)
    }

    /// Does the work after a commit: wakes a sleeping peer. In that case, and after every [`LOOK_EVERY`] messages, also
    /// publishes the CPU of this thread, and if the peer has shown no activity since, checks whether the peer is alive.
    #[inline]
    pub(in crate::channel) fn committed(&self, tx: &mut Guard<'_, Tx>) {
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        if how != 0 || tx.sequence.is_multiple_of(LOOK_EVERY) {
            self.after_commit(tx, how);
        }
    }

    /// Does the work after a commit, like [`End::committed`], but does not wake a peer asleep on its sleep word.
    /// Instead returns the due wake-up; the caller has to drop this value soon, because no other thread wakes the peer.
    /// Returns `None` if no wake-up is due.
    pub(super) fn committed_with_deferred_wake(&self, tx: &mut Guard<'_, Tx>) -> Option<WakeOnDrop> {
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        let deferred_wake = how == waiter::ON_WORD && !tx.lane.is_pending();
        if deferred_wake {
            self.counts.cold().send_wake_ups.add(1);
        }
        if how != 0 || tx.sequence.is_multiple_of(LOOK_EVERY) {
            self.after_commit(tx, if deferred_wake { waiter::AWAKE } else { how });
        }
        deferred_wake.then(|| WakeOnDrop { lane: tx.lane.clone() })
    }

    #[cold]
    pub(super) fn after_commit(&self, tx: &mut Guard<'_, Tx>, how: u32) {
        // The link is read after the sleeper was taken: from then on the sleeping process is known.
        let link = tx.lane.current_link();
        if waiter::wake(link, tx.lane.scope(), tx.producer.memory().sleeping(), how) {
            self.counts.cold().send_wake_ups.add(1);
        }
        self.publish_cpu(tx);
        // If the peer has taken or sent something, it is alive, and there is no need to ask the kernel.
        let credit = tx.producer.memory().credit().load(Ordering::Relaxed);
        let sign = credit.wrapping_add(self.counts.messages_received.get());
        let news = std::mem::replace(&mut tx.sign, sign) != sign;
        tx.lane.current_link().probe_if_idle(news);
        pools::look();
    }

    /// Handles a ring ended by its consumer, the other end (`ended` says how). If the consumer has moved, this end
    /// follows to the next lane, and stages the staged records again there. Records whose attachments were sent to the
    /// old peer are not staged again: this call then sets `tx.moved`, and the caller must build the message anew.
    ///
    /// # Errors
    /// [`Error::PeerClosed`] if the consumer has closed the ring. [`Error::BadPeer`] if the consumer has written
    /// anything else. [`Error::WouldBlock`] if the next ring has no room, or if this call has set `tx.moved`.
    #[cold]
    pub(in crate::channel) fn after_end(
        &self,
        tx: &mut Guard<'_, Tx>,
        ended: Ended,
        deadline: Deadline,
    ) -> Result<(), Error> {
        match ended {
            Ended(Some(RecordKind::Frozen)) => {}
            Ended(Some(RecordKind::Closed)) => {
                self.retract(tx);
                return Err(tx.end_with(Error::PeerClosed));
            }
            Ended(_) => {
                return Err(tx.end_with(Error::BadPeer("an impossible record in a ring, written by its reader")));
            }
        }
        let records = tx.producer.staged_records();
        let (attached, uncommitted) = (tx.attached || tx.pinned, tx.uncommitted);
        self.retract(tx);
        self.follow_frozen(tx)?;
        if attached {
            tx.moved = true;
            return Err(Error::WouldBlock);
        }
        let cells = records.iter().map(|(_, payload)| ring::cells_for(payload.len())).sum::<usize>();
        let longest = records.iter().map(|(_, payload)| payload.len()).max().unwrap_or(0);
        let needed = (2 * cells + 2).next_power_of_two().max(ring::cells_to_carry(longest));
        let mut carried = Ok(());
        // While the ring grows, the other end may move to yet another lane.
        let mut lanes = 0;
        while cells > 0 && needed > tx.producer.memory().cells() && carried.is_ok() {
            carried = self.grow(tx, needed, deadline);
            lanes += 1;
            if carried.is_ok() && lanes % MOST_LANES == 0 {
                carried = self.goes_on(deadline, Direction::Sending);
            }
        }
        for (header, payload) in records {
            if carried.is_ok() {
                match tx.producer.stage(header) {
                    Ok(slot) => tx.producer.write(slot, 0, &payload),
                    Err(_) => {
                        blocked_on::note(BlockedOn::Room(Subject::of(Arc::downgrade(&tx.lane)), tx.progress(false)));
                        carried = Err(Error::WouldBlock);
                    }
                }
            }
        }
        // Nothing was committed in this lane yet. Records that could not be carried over are discarded by the caller.
        tx.sequence = uncommitted.0.into();
        tx.uncommitted = uncommitted;
        carried
    }

    /// Retracts the attachments of records that could not be committed: the peer will discard these attachments. Does
    /// nothing if none were sent.
    pub(in crate::channel) fn retract(&self, tx: &mut Tx) {
        if std::mem::take(&mut tx.attached) {
            let link = tx.lane.link();
            if link.is_local() {
                let token = tx.lane.token_out();
                mailbox::discard(token..=token);
            } else {
                link.send_sooner_or_later(Packet::Retract { token: tx.lane.token_out() });
            }
        }
    }

    /// Brings the sending direction to the lane to which the other end has moved, through at most [`MOST_LANES`] lanes.
    /// Does nothing if records are staged. Stops without an error at the first lane that cannot be entered.
    pub(in crate::channel) fn catch_up(&self, tx: &mut Guard<'_, Tx>) {
        for _ in 0..MOST_LANES {
            if tx.over || tx.producer.has_staged() || !tx.has_frozen() || self.follow_frozen(tx).is_err() {
                break;
            }
        }
    }

    /// Goes on sending in the lane to which the other end has moved. The other end has frozen (ended from the reading
    /// side) this end's outgoing ring.
    ///
    /// # Errors
    /// [`Error::BadPeer`], which ends the sending direction. After a temporary error the call can be repeated.
    pub(in crate::channel) fn follow_frozen(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        let name = Name::from_words(tx.producer.memory().forward());
        // A lane counts as used once a message was committed in it. Messages that are only staged do not count.
        if tx.sequence > tx.uncommitted.0.into() {
            tx.lane.set_used();
        }
        let next = tx.lane.next(name).map_err(|error| match error {
            Error::BadPeer(_) => tx.end_with(error),
            passing => passing,
        })?;
        self.enter_tx(tx, next);
        // An end that never receives follows the marks here; otherwise such an end would retain one lane after the
        // other.
        if let Some(mut rx) = self.rx.try_lock() {
            let _ = self.next_of_open(&mut rx);
        }
        Ok(())
    }

    /// Goes on sending at the beginning of the ring of `lane`, and publishes this thread's CPU there. Discards staged
    /// records.
    pub(in crate::channel) fn enter_tx(&self, tx: &mut Tx, lane: Arc<Lane>) {
        tx.enter(lane, &self.options);
        self.cpu.store(0, Ordering::Relaxed);
        self.publish_cpu(tx);
    }
}
