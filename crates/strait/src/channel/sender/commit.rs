//! Making what is staged appear at the peer; and where the peer has moved meanwhile, going after it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::Tx;
use crate::channel::End;
use crate::channel::receiver::front::MOST_LANES;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::{Lane, Name};
use crate::link::Link;
use crate::link::packet::Packet;
use crate::ring::{self, Ended, Kind, Memory};
use crate::wake::lock::Guard;
use crate::wake::waiter;
use crate::wake::want::{self, Want};

/// Every so many messages the sender tells on which CPU it runs, and asks whether the peer lives if nothing else
/// told lately.
const LOOK_EVERY: u64 = 16;

/// A peer that sleeps and was sent something. Dropped, it is woken.
#[derive(Debug)]
pub(crate) struct Unrung {
    lane: Arc<Lane>,
}

impl Drop for Unrung {
    fn drop(&mut self) {
        waiter::wake(self.lane.listen(), self.lane.scope(), self.lane.out().sleeping(), waiter::ON_WORD);
    }
}

impl End {
    /// Makes what is staged appear at the peer, and wakes it if it sleeps. If the peer has moved, it goes to where that
    /// went; or, with what only the old peer has got, it is forgotten, and [`Tx::has_moved`] says so.
    #[inline]
    pub(in crate::channel) fn commit(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        let mut lanes = 0;
        while tx.producer.has_staged() {
            match self.commit_once(tx) {
                None => return Ok(()),
                Some(ended) => self.after_end(tx, ended, deadline)?,
            }
            lanes += 1;
            if lanes % MOST_LANES == 0 {
                self.goes_on(deadline)?;
            }
        }
        Ok(())
    }

    /// Commits what is staged, if the peer has not moved or closed: then how its ring ended.
    pub(in crate::channel) fn commit_once(&self, tx: &mut Guard<'_, Tx>) -> Option<Ended> {
        match tx.producer.commit() {
            Ok(()) => {
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

    /// What is left to do once something has appeared at the peer: to wake it, if it sleeps.
    #[inline]
    pub(in crate::channel) fn committed(&self, tx: &mut Guard<'_, Tx>) {
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        if how != 0 || tx.sequence.is_multiple_of(LOOK_EVERY) {
            self.after_commit(tx, how);
        }
    }

    /// The same, but that a peer which sleeps on its word is left to whoever gets this. Nobody else wakes it.
    pub(super) fn committed_unrung(&self, tx: &mut Guard<'_, Tx>) -> Option<Unrung> {
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        let unrung = how == waiter::ON_WORD && !tx.lane.is_pending();
        if unrung {
            self.counts.rare().send_wake_ups.add(1);
        }
        if how != 0 || tx.sequence.is_multiple_of(LOOK_EVERY) {
            self.after_commit(tx, if unrung { waiter::AWAKE } else { how });
        }
        unrung.then(|| Unrung { lane: tx.lane.clone() })
    }

    #[cold]
    pub(super) fn after_commit(&self, tx: &mut Guard<'_, Tx>, how: u32) {
        // Looked up after the sleeper was taken: by then it is known who that is.
        let link = tx.lane.listen();
        if waiter::wake(link, tx.lane.scope(), tx.producer.memory().sleeping(), how) {
            self.counts.rare().send_wake_ups.add(1);
        }
        self.publish_cpu(tx);
        // A peer that takes or sends something lives, and nobody asks the kernel.
        let credit = tx.producer.memory().credit().load(Ordering::Relaxed);
        let sign = credit.wrapping_add(self.counts.messages_received.get());
        let news = std::mem::replace(&mut tx.sign, sign) != sign;
        tx.lane.listen().probe_if_silent(news);
    }

    /// The consumer has put something where our next record was to go. If it has moved, what is staged here is staged
    /// there.
    #[cold]
    pub(in crate::channel) fn after_end(
        &self,
        tx: &mut Guard<'_, Tx>,
        ended: Ended,
        deadline: Deadline,
    ) -> Result<(), Error> {
        match ended {
            Ended(Some(Kind::Frozen)) => {}
            Ended(Some(Kind::Closed)) => {
                self.retract(tx);
                return Err(tx.end_with(Error::PeerClosed));
            }
            Ended(_) => return Err(tx.end_with(Error::BadPeer("it wrote into a ring that it reads"))),
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
        // While it grows it may go to a further lane.
        while cells > 0 && needed > tx.producer.memory().cells() && carried.is_ok() {
            carried = self.grow(tx, needed, deadline);
        }
        for (header, payload) in records {
            if carried.is_ok() {
                match tx.producer.stage(header) {
                    Ok(slot) => tx.producer.write(slot, 0, &payload),
                    Err(_) => {
                        want::note(Want::Room(Arc::downgrade(&tx.lane), tx.progress()));
                        carried = Err(Error::WouldBlock);
                    }
                }
            }
        }
        // Of this lane nothing was committed yet. What could not be carried over is discarded by whoever staged it.
        tx.sequence = uncommitted.0.into();
        tx.uncommitted = uncommitted;
        carried
    }

    /// What was sent for a record that could not be committed will not be asked for.
    pub(super) fn retract(&self, tx: &mut Tx) {
        if std::mem::take(&mut tx.attached) {
            let link = tx.lane.link();
            if link.is_local() {
                let token = tx.lane.token_out();
                Link::discard_within(token..=token);
            } else {
                link.send_sooner_or_later(Packet::Retract { token: tx.lane.token_out() });
            }
        }
    }

    /// Goes on to where the other end is, if nothing is staged, as far as a call goes.
    pub(in crate::channel) fn catch_up(&self, tx: &mut Guard<'_, Tx>) {
        for _ in 0..MOST_LANES {
            if tx.over || tx.producer.has_staged() || !tx.has_frozen() || self.follow_frozen(tx).is_err() {
                break;
            }
        }
    }

    /// Goes on in the lane to which the other end has moved.
    pub(in crate::channel) fn follow_frozen(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        let name = Name::from_words(tx.producer.memory().forward());
        // What is staged came to nothing here.
        if tx.sequence > tx.uncommitted.0.into() {
            tx.lane.set_used();
        }
        let next = tx.lane.next(name).map_err(|error| match error {
            Error::BadPeer(_) => tx.end_with(error),
            passing => passing,
        })?;
        self.enter_tx(tx, next);
        // An end that never receives must not stay behind lane after lane.
        if let Some(mut rx) = self.rx.try_lock() {
            let _ = self.front_of_open(&mut rx);
        }
        Ok(())
    }

    /// Goes on at the beginning of a lane's ring, and says there on which CPU we run.
    pub(in crate::channel) fn enter_tx(&self, tx: &mut Tx, lane: Arc<Lane>) {
        tx.enter(lane, &self.options);
        self.cpu.store(0, Ordering::Relaxed);
        self.publish_cpu(tx);
    }
}
