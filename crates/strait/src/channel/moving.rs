//! An end moves to another process.
//!
//! The end *a* of this process goes to process C; the other end *b* is in process B, which may do anything meanwhile.
//!
//! 1. **Make** a fresh lane for B and C. If a socket cannot take what has to be said of it, nothing has happened.
//! 2. **Mark**: the last record of the ring that *a* writes says where *b* reads on. If *b* has frozen that ring, it
//!    moved before: follow, and begin again with the process that it is in now.
//! 3. **Drain**: take every message out of the ring that *b* writes, in order; they travel with *a*. At the first empty
//!    header **freeze** the ring: if *b* published just before, that fails, and there is more to take; after it *b*'s next
//!    publish fails and goes to the fresh lane. *b* never waits.
//! 4. **Hand over**: commit the message that carries *a* ([`super::ends`]), and say so in the lane; only then does *b*
//!    look at C as its peer.
//!
//! The mark comes before the freeze, so of two ends that move at once one at least meets the other's mark where it is
//! itself marked; then the end on side 0 has won, and the other goes to the winner's lane with what it drained, and waits
//! until the winner is handed over.
//!
//! Until it is handed over an end is here: if it cannot be sent, it is *kept*, and goes on in the fresh lane.
//!
//! The protocol is explored by a model with crashes in the crate `strait-model`; the orders of each single step with weak
//! memory are in `ring/moving.rs`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::End;
use super::kept::Kept;
use super::rx::Rx;
use super::table::Entry;
use super::tx::Tx;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::{Lane, Name};
use crate::link::{InUse, Link};
use crate::lock::Guard;
use crate::ring::{Ended, Kind, Memory};
use crate::wait;
use crate::want::{self, Looks, Want};

/// Cells of the largest rings that an end begins with where it goes to, if the ones that it leaves were larger.
const LARGEST_START: usize = 128;

/// How long a mover tries again when this process lacks memory or descriptors for what it has to take along.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);

/// How draining ended.
enum Drained {
    /// Everything is taken, and nothing more comes.
    All,
    /// Both ends moved at once, and the other goes first: to this lane.
    Lost(Arc<Lane>),
}

/// An end does not go on in the lane that was made for it.
fn unmake(lane: &Lane, fresh: &Lane) {
    match lane.forget_successor() {
        true => fresh.unmake(),
        // The other end was told of it here, and has used it in some way.
        false => fresh.keep(),
    }
}

impl End {
    /// Moves this end into a fresh lane for the process at `dest`. Nobody else uses the end. On an error it is where it
    /// was, or in another lane, and as good as before.
    ///
    /// `along` are the lanes of ends that go to the same process in the same message; the other end of this one may be
    /// among them.
    pub(super) fn relocate(&self, dest: &InUse, along: &[Name], deadline: Deadline) -> Result<(), Error> {
        self.relocate_into(dest, along, None, deadline)
    }

    /// The same, into a lane whose rings have so many cells.
    pub(super) fn relocate_into(
        &self,
        dest: &InUse,
        along: &[Name],
        cells: Option<usize>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut tx = self.tx.lock(deadline)?;
        let mut rx = self.rx.lock(deadline)?;
        loop {
            self.settle(&mut tx, &mut rx, along)?;
            if tx.ended().is_none() && tx.lane.is_down() {
                // It may have gone on elsewhere right before; else there is nobody any more, and that goes along.
                if let Some(Ended(Some(Kind::Frozen))) = tx.producer.ended() {
                    continue;
                }
                let reason = tx.lane.reason();
                tx.end_with(reason);
            }
            // For an end without a peer any lane will do.
            let alone = tx.ended().is_some();
            let peer = if alone { Link::own() } else { tx.lane.link().clone() };
            let fresh = match self.make(&tx, &rx, &peer, dest, cells) {
                Ok(fresh) => fresh,
                Err(Error::PeerClosed) if !dest.is_down() => continue,
                Err(error) => return Err(error),
            };
            // Of an end whose other end is gone nobody will ask.
            if tx.ended().is_none() {
                tx.lane.tell_successor(&fresh, dest);
            }
            let marked = match self.mark(&mut tx, &fresh) {
                Ok(marked) => marked,
                Err(Ended(_)) => {
                    unmake(&tx.lane, &fresh);
                    continue;
                }
            };
            if !marked {
                // Nobody is there to be told.
                tx.lane.forget_successor();
            }
            match self.drain(&mut rx, &fresh, marked.then(|| tx.lane.clone())) {
                Drained::All => {
                    // The other end was gone before it came to where it was to go on.
                    if alone && rx.ended().is_none() {
                        rx.end_with(Error::PeerClosed);
                    }
                    // Nobody reads in the fresh lane of an end whose other end is gone: what is sent there would be lost,
                    // ends and all.
                    if let Some(error) = rx.ended() {
                        tx.end_with(error);
                    }
                    rx.leave();
                    self.enter_tx(&mut tx, fresh.clone());
                    rx.enter(fresh);
                    return Ok(());
                }
                Drained::Lost(theirs) => {
                    unmake(&tx.lane, &fresh);
                    rx.leave();
                    self.enter_tx(&mut tx, theirs.clone());
                    rx.enter(theirs);
                }
            }
        }
    }

    /// Moves this end within its process: into memory that nobody else has but the process of the other end.
    pub(super) fn rehome(&self, deadline: Deadline) -> Result<(), Error> {
        crate::fork::check()?;
        let mut looks = Looks::default();
        loop {
            match self.relocate(&Link::own(), &[], Deadline::NOW) {
                Err(Error::WouldBlock) if !deadline.is_now() => self.wait_for(want::take(), &mut looks, deadline)?,
                moved => break moved?,
            }
        }
        self.lane()?.keep();
        Ok(())
    }

    /// Comes to where the other end is.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while the other end is on its way itself, or its peer has not opened its side.
    pub(super) fn settle(&self, tx: &mut Guard<'_, Tx>, rx: &mut Guard<'_, Rx>, along: &[Name]) -> Result<(), Error> {
        loop {
            // What the peer has made of its side, if it has opened it.
            let _ = self.front_or_mark(rx);
            if !rx.is_open() && rx.ended().is_none() {
                want::note(Want::Transit(Arc::downgrade(&rx.lane)));
                return Err(Error::WouldBlock);
            }
            let waits = |lane: &Lane| {
                lane.is_pending() && !(lane.listen().is_local() && along.contains(&lane.name())) && !lane.is_down()
            };
            let pending = [&tx.lane, &rx.lane].into_iter().find(|lane| waits(lane));
            if let Some(lane) = pending {
                lane.probe();
                if !lane.is_down() {
                    want::note(Want::Transit(Arc::downgrade(lane)));
                    return Err(Error::WouldBlock);
                }
                continue;
            }
            match tx.producer.ended() {
                _ if tx.ended().is_some() => return Ok(()),
                None => return Ok(()),
                Some(Ended(Some(Kind::Frozen))) => self.follow_frozen(tx)?,
                Some(Ended(Some(Kind::Closed))) => {
                    tx.end_with(Error::PeerClosed);
                }
                Some(_) => {
                    tx.end_with(Error::BadPeer("it wrote into a ring that it reads"));
                }
            }
        }
    }

    /// A lane for the other end and the process that this one goes to.
    fn make(&self, tx: &Tx, rx: &Rx, peer: &InUse, dest: &InUse, cells: Option<usize>) -> Result<Arc<Lane>, Error> {
        let present = tx.producer.memory().cells().max(rx.cells());
        let cells = cells.unwrap_or(if present > SMALL { present.min(LARGEST_START) } else { SMALL });
        let (arena, name) = Link::make_lane(peer, dest, cells)?;
        // Until it is handed over its other end has us for its peer; and so if that one goes along with it.
        let now = if tx.lane.is_pending() { tx.lane.listen() } else { peer };
        let lane = Lane::in_arena(&arena, name, tx.lane.side(), now.clone(), None).expect("it was made just now");
        lane.set_moving();
        Ok(Arc::new(lane))
    }

    /// Says in the ring that this end writes where the other reads on. False if that one reads no more.
    pub(super) fn mark(&self, tx: &mut Guard<'_, Tx>, fresh: &Lane) -> Result<bool, Ended> {
        if tx.ended().is_some() {
            return Ok(false);
        }
        let name = tx.lane.name_for_other(fresh);
        match tx.producer.end(Kind::Moved, &name.encode()) {
            Ok(()) => {
                let word = tx.producer.memory().sleeping();
                let how = tx.lane.take_sleeper(word);
                wait::wake(tx.lane.listen(), tx.lane.scope(), word, how);
                Ok(true)
            }
            Err(Ended(Some(Kind::Closed))) => {
                tx.end_with(Error::PeerClosed);
                Ok(false)
            }
            Err(ended) => Err(ended),
        }
    }

    /// Takes out what the other end sent, up to the end of it, which is here if it does not end by itself.
    fn drain(&self, rx: &mut Guard<'_, Rx>, fresh: &Lane, marked: Option<Arc<Lane>>) -> Drained {
        let patience = Instant::now() + PATIENCE;
        loop {
            let step = match self.front_or_mark(rx) {
                Ok(None) => {
                    if rx.freeze(fresh) {
                        self.give_taken(rx);
                        return Drained::All;
                    }
                    Ok(())
                }
                Ok(Some(record)) if record.header.kind() != Kind::Moved => {
                    self.take_out(rx, record).map(|kept| rx.keep_message(kept))
                }
                Ok(Some(record)) => {
                    let at_once = marked.as_ref().is_some_and(|marked| Arc::ptr_eq(marked, &rx.lane));
                    if at_once && rx.lane.side() == 0 {
                        return Drained::All;
                    }
                    match self.marked(rx, record) {
                        Ok(theirs) if at_once => return Drained::Lost(theirs),
                        Ok(theirs) => {
                            rx.enter(theirs);
                            Ok(())
                        }
                        Err(error) => Err(error),
                    }
                }
                Err(error) => Err(error),
            };
            if let Err(error) = step {
                if rx.ended().is_some() {
                    return Drained::All;
                }
                // It passes, or this end is given up: half of what was sent is worse than none.
                if Instant::now() >= patience {
                    rx.end_with(error);
                    return Drained::All;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }

    /// What a table says of this end.
    pub(super) fn entry(&self) -> Result<Entry, Error> {
        let tx = self.tx.lock(Deadline::NOW)?;
        let rx = self.rx.lock(Deadline::NOW)?;
        Ok(Entry {
            name: tx.lane.name(),
            side: tx.lane.side() as u8,
            cannot_send: tx.ended().is_some(),
            receives_no_more: rx.ended().is_some(),
        })
    }

    /// An end that was sent to us, in a lane that it was given by who sent it.
    pub(super) fn received(&self, lane: Lane, entry: Entry) -> Self {
        lane.adopt();
        let end = Self::new(Arc::new(lane), &self.options);
        if entry.cannot_send {
            end.tx.lock(Deadline::NEVER).expect("nobody else has it").end_with(Error::PeerClosed);
        }
        if entry.receives_no_more {
            end.rx.lock(Deadline::NEVER).expect("nobody else has it").end_with(Error::PeerClosed);
        }
        end
    }

    /// The lane of an end that is on its way.
    pub(super) fn lane(&self) -> Result<Arc<Lane>, Error> {
        Ok(self.tx.lock(Deadline::NOW)?.lane.clone())
    }

    /// Takes the messages that it keeps.
    pub(super) fn take_all_kept(&self) -> VecDeque<Kept> {
        self.rx.lock(Deadline::NOW).map(|mut rx| rx.take_all_kept()).unwrap_or_default()
    }

    /// Has it keep these messages.
    pub(super) fn put_back_kept(&self, kept: Vec<Kept>) {
        if let Ok(mut rx) = self.rx.lock(Deadline::NOW) {
            for kept in kept {
                rx.keep_message(kept);
            }
        }
    }

    /// The ends in messages that it keeps.
    pub(super) fn ends_in_kept(&self) -> Vec<Arc<End>> {
        self.rx.lock(Deadline::NOW).map(|mut rx| rx.ends_in_kept()).unwrap_or_default()
    }
}
