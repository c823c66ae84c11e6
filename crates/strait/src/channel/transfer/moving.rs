//! Moving an end to another process.
//!
//! The end *a* of this process goes to process C; the other end *b* is in process B, which may do anything meanwhile.
//!
//! 1. **Check** whether all messages from *b* can be taken along: receive the packets on the socket, look through the
//!    ring, map the rings to which it leads, check the limits. A failure here has changed nothing.
//! 2. **Make** a fresh lane for B and C. If a socket cannot take the packets for it, nothing has happened.
//! 3. **Mark**: the last record of the ring that *a* writes says where *b* reads on. If *b* has frozen that ring, *b*
//!    moved before: follow *b*, and begin again with the present process of *b*.
//! 4. **Drain**: take every message out of the ring that *b* writes, in order; they travel with *a*. At the first
//!    empty header **freeze** the ring. If *b* published just before, the freeze fails, and there is more to take.
//!    After the freeze the next publish of *b* fails, and goes to the fresh lane. *b* never waits.
//! 5. **Hand over**: commit the message that carries *a* ([`super::ends`]), and say so in the lane; only then does
//!    *b* treat C as its peer.
//!
//! The mark comes before the freeze. So if both ends move at once, at least one end meets the other's mark in the lane
//! of its own mark. Then the end on side 0 has won. The other end goes to the winner's lane with the drained messages,
//! and waits until the winner is handed over.
//!
//! Until the handover, an end is still in its old process. If the end cannot be sent, the transfer is *cancelled*, and
//! the end goes on in the fresh lane.
//!
//! Between the check and the freeze, *b* may send a message that cannot be taken out. Then the move is given up, and
//! the end stays in this process: the end receives from the ring of the old lane, and when that ring is empty, freezes
//! the ring and goes on in the fresh lane ([`PendingMove`]). Until then each send first tries to complete the move,
//! because sends have to go to the fresh lane, and fails with the error of the move. *b* regards the end as in transit
//! meanwhile, so that *b* does not move itself.
//!
//! A model in the crate `strait-model` explores the protocol with crashes. `ring/tests/moving.rs` checks the orders
//! of each single step under weak memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use super::in_transit::close_in_transit;
use super::table::Entry;
use crate::blocked_on::{self, BlockedOn, PollBackoff, Subject};
use crate::channel::End;
use crate::channel::receiver::backlog::BacklogMessage;
use crate::channel::receiver::next::MOST_LANES;
use crate::channel::receiver::{PendingMove, Rx};
use crate::channel::sender::Tx;
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::{Lane, Name, waiter};
use crate::link::{InUse, Link, MemoryKey};
use crate::quota::{Amounts, Resource};
use crate::ring::{Ended, Memory, NextRecord, RecordKind};
use crate::shm::Mapping;
use crate::wake::interrupt::Interruption;
use crate::wake::lock::Guard;

/// Largest number of cells (of 64 bytes) in each ring of the fresh lane of a moved end, if the rings of its old lane
/// were larger.
const LARGEST_START: usize = 128;

/// The result of counting the queued messages of an end, before the end moves and takes these messages along as
/// backlog.
struct UnreadAhead {
    /// The messages and bytes to be charged for the queued messages when they enter the moving end's backlog. Payloads
    /// out of line are not included.
    amounts: Amounts,
    /// Whether some of the queued messages have attachments, or handles or payloads out of line, which have to be
    /// received from the socket.
    needs_socket: bool,
}

/// Undoes `fresh`, the lane made for the move of an end, because the end stays in `lane`. If the other end has already
/// learnt of the fresh lane, only the transfer is cancelled, and the ends go on there.
fn unmake(lane: &Lane, fresh: &Lane) {
    match lane.forget_successor() {
        true => fresh.unmake(),
        // The other end has learnt of the fresh lane within this process, and has used the lane.
        false => fresh.cancel_transfer(),
    }
}

/// The ends moved so far by one attempt to send a message, or to fuse. Both ends of a channel may be among the ends.
#[derive(Debug, Default)]
pub(super) struct Along {
    moved: Vec<MovedAlong>,
}

/// An end moved by an attempt.
#[derive(Debug)]
struct MovedAlong {
    /// The fresh lane of the end.
    lane: Arc<Lane>,
    /// The link to the process to which the other end goes, if the attempt has moved the other end before.
    other_goes_to: Option<InUse>,
}

impl Along {
    /// Returns whether the attempt has moved an end into the lane `name`.
    fn has(&self, name: Name) -> bool {
        self.moved.iter().any(|moved| moved.lane.name() == name)
    }

    /// Returns the link to the process to which the other end of `lane` goes, if the attempt has moved an end into
    /// `lane` and has moved the other end before. A fuse can cancel the move of the first end alone, and move that end
    /// again: the other end is still on its way then.
    fn other_goes_to(&self, lane: &Arc<Lane>) -> Option<&InUse> {
        self.moved.iter().find(|moved| Arc::ptr_eq(&moved.lane, lane))?.other_goes_to.as_ref()
    }
}

/// Returns the obstacle of an end whose other end is in transit into `lane`. `along` are the ends that the same attempt
/// has moved before.
///
/// If a socket connects this process with itself, the other end may be among these ends. The attempt fails and so
/// cancels the move, which is no event: the next attempt fails in the same way. So the wait looks again now and then
/// until its deadline. Two arenas of different makers may have the same number; then such a wait is only a little
/// longer.
fn obstacle_of_transit(lane: &Arc<Lane>, along: &Along) -> BlockedOn {
    if along.has(lane.name()) {
        BlockedOn::Unreported(Subject::of(lane.current_link().weak()), Instant::now())
    } else {
        BlockedOn::Transit(Subject::of(Arc::downgrade(lane)))
    }
}

impl End {
    /// Moves this end into a fresh lane for the process at the link `dest`. No other thread uses the end. After an
    /// error the end is where it was, or in another lane, and works as before.
    ///
    /// `along` are the ends moved before by the same attempt; the other end of this end may be one of them. The call
    /// adds this end to `along`.
    pub(super) fn relocate(&self, dest: &InUse, along: &mut Along, deadline: Deadline) -> Result<(), Error> {
        self.relocate_into(dest, along, None, deadline)
    }

    /// Moves this end into a fresh lane for the process at the link `dest`, like [`End::relocate`]. If `cells` is
    /// given, each ring of that lane has `cells` cells of 64 bytes.
    pub(super) fn relocate_into(
        &self,
        dest: &InUse,
        along: &mut Along,
        cells: Option<usize>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        // The process that gets this end does not know of the doorbell.
        deferred::postponed(|| self.ring_if_owed())?;
        let mut tx = self.tx.lock_unless(deadline, || Interruption::SIGNALS)?;
        let mut rx = self.rx.lock_unless(deadline, || Interruption::SIGNALS)?;
        // The other end may move at the same time, again and again.
        for _ in 0..MOST_LANES {
            self.follow_to_peer(&mut tx, &mut rx, along)?;
            if tx.ended().is_none() && tx.lane.is_down() {
                // The other end may have gone on to another lane right before. Otherwise the other end is closed or
                // dead, and this end travels with this knowledge.
                if let Some(Ended(Some(RecordKind::Frozen))) = tx.producer.ended() {
                    continue;
                }
                let reason = tx.lane.reason();
                tx.end_with(reason);
            }
            self.come_to(&tx.lane, &mut rx)?;
            self.find_out(&mut rx)?;
            // An end without a peer can go on in any lane.
            let alone = tx.ended().is_some();
            let travels = if alone { None } else { along.other_goes_to(&tx.lane).cloned() };
            let peer = match (alone, &travels) {
                (true, _) => Link::own(),
                (false, Some(goes_to)) => goes_to.clone(),
                (false, None) => tx.lane.link().clone(),
            };
            // Until the handover, the peer of the other end is this process, also if both ends travel together.
            let is_on_its_way = travels.is_some() || tx.lane.is_pending();
            let now = if is_on_its_way { tx.lane.current_link().clone() } else { peer.clone() };
            let fresh = match self.make(&tx, &rx, [&peer, dest], now, cells) {
                Ok(fresh) => fresh,
                Err(Error::PeerClosed) if !dest.is_down() => continue,
                Err(error) => return Err(error),
            };
            // An end that is closed or dead will not ask for the successor.
            if tx.ended().is_none() {
                tx.lane.store_successor(&fresh, dest, close_in_transit);
            }
            let marked = match self.mark(&mut tx, &fresh) {
                Ok(marked) => marked,
                Err(Ended(_)) => {
                    unmake(&tx.lane, &fresh);
                    continue;
                }
            };
            if !marked {
                // There is no other end to read the mark.
                tx.lane.forget_successor();
            }
            let marked_in = marked.then(|| tx.lane.clone());
            rx.set_pending_move(Some(PendingMove { fresh: fresh.clone(), marked: marked_in, stays: false }));
            if let Err(error) = self.drain(&mut rx) {
                self.stay(&mut tx, &mut rx, error);
                return Err(error);
            }
            if rx.ended().is_none() && !Arc::ptr_eq(&rx.lane, &fresh) {
                // Both ends moved at once, and the other end goes first.
                let theirs = rx.lane.clone();
                self.enter_tx(&mut tx, theirs);
                continue;
            }
            // The other end was closed, or its process died, before the other end reached its next lane.
            if alone && rx.ended().is_none() {
                rx.end_with(Error::PeerClosed);
            }
            // If the other end has closed both directions in the old lane, it follows no mark.
            if alone || (!marked && rx.ended() == Some(Error::PeerClosed)) {
                fresh.other_never_comes();
            }
            // If the other end is closed or dead, no end reads in the fresh lane: messages sent there, and the ends in
            // them, would be lost.
            if let Some(error) = rx.ended() {
                tx.end_with(error);
            }
            self.enter_tx(&mut tx, fresh.clone());
            if !Arc::ptr_eq(&rx.lane, &fresh) {
                rx.set_pending_move(None);
                rx.leave();
                rx.enter(fresh.clone());
            }
            let other_goes_to = is_on_its_way.then_some(peer);
            along.moved.push(MovedAlong { lane: fresh, other_goes_to });
            return Ok(());
        }
        Err(Error::WouldBlock)
    }

    /// Moves this end within this process, into memory shared only by this process and the process of the other end.
    /// Waits until `deadline` while the move is not possible, with the sending lock held.
    pub(in crate::channel) fn rehome(&self, deadline: Deadline) -> Result<(), Error> {
        self.born.check()?;
        let rehomed = self.rehome_by(deadline);
        // The end is not armed in its new lane. An end that failed to move may be in another lane, too.
        self.after_blocking();
        rehomed
    }

    fn rehome_by(&self, deadline: Deadline) -> Result<(), Error> {
        let mut backoff = PollBackoff::default();
        let mut along = Along::default();
        loop {
            blocked_on::forget();
            match self.relocate(&Link::own(), &mut along, Deadline::NOW) {
                Err(Error::WouldBlock) if !deadline.is_now() => {
                    // Another thread may block on this end, in either direction.
                    drop(self.rx.lock_unless(deadline, || self.interruption())?);
                    // No other thread may wait for room meanwhile: both threads would sleep on one word.
                    let mut tx = self.tx.lock_unless(deadline, || self.interruption())?;
                    tx.mark_blocking();
                    self.wait_to_send_ends(&mut tx, &mut backoff, deadline)?
                }
                moved => break moved?,
            }
        }
        // Another thread may hold a lock of this end by now, so the lane is not asked of the end.
        along.moved.iter().for_each(|moved| moved.lane.cancel_transfer());
        Ok(())
    }

    /// Brings this end to the present lane of the other end, for any number of moves of the other end. `along` are the
    /// ends travelling with this end; the call does not wait for them.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while the other end is in transit, or while the peer process has not opened its side of
    /// the lane.
    pub(super) fn follow_to_peer(
        &self,
        tx: &mut Guard<'_, Tx>,
        rx: &mut Guard<'_, Rx>,
        along: &Along,
    ) -> Result<(), Error> {
        for _ in 0..MOST_LANES {
            // Opens the lane, if the peer has opened its side.
            let _ = self.next_or_mark(rx);
            if !rx.is_open() && rx.ended().is_none() {
                blocked_on::note(BlockedOn::Transit(Subject::of(Arc::downgrade(&rx.lane))));
                return Err(Error::WouldBlock);
            }
            let waits = |lane: &Lane| {
                lane.is_pending() && !(lane.current_link().is_local() && along.has(lane.name())) && !lane.is_down()
            };
            let pending = [&tx.lane, &rx.lane].into_iter().find(|lane| waits(lane));
            if let Some(lane) = pending {
                lane.probe();
                if !lane.is_down() {
                    blocked_on::note(obstacle_of_transit(lane, along));
                    return Err(Error::WouldBlock);
                }
                continue;
            }
            match tx.producer.ended() {
                _ if tx.ended().is_some() => return Ok(()),
                None => return Ok(()),
                Some(Ended(Some(RecordKind::Frozen))) => self.follow_frozen(tx)?,
                Some(Ended(Some(RecordKind::Moved))) if tx.delayed().is_some() => self.finish_move(tx, rx)?,
                Some(Ended(Some(RecordKind::Closed))) => {
                    tx.end_with(Error::PeerClosed);
                }
                Some(_) => {
                    tx.end_with(Error::BadPeer("an impossible record in a ring, written by its reader"));
                }
            }
        }
        // The next attempt follows more lanes.
        Err(Error::WouldBlock)
    }

    /// Makes a fresh lane for a moving end, between the process of the other end and the destination, at these two
    /// links. `now` is the link over which the other end is reached until the handover. `cells` is the number of cells
    /// (of 64 bytes) of each ring; if it is `None`, the size of the present rings decides.
    fn make(
        &self,
        tx: &Tx,
        rx: &Rx,
        [peer, dest]: [&InUse; 2],
        now: InUse,
        cells: Option<usize>,
    ) -> Result<Arc<Lane>, Error> {
        let present = tx.producer.memory().cells().max(rx.cells());
        let cells = cells.unwrap_or(if present > SMALL { present.min(LARGEST_START) } else { SMALL });
        let (arena, name, told) = Link::make_lane(peer, dest, cells)?;
        let lane = Lane::in_arena(&arena, name, tx.lane.side(), now, None).expect("it was made just now");
        lane.set_moving();
        Ok(Arc::new(lane.announced_over(told)))
    }

    /// Ends this end's outgoing ring with a mark, so that the other end reads on in the lane of `fresh`, and wakes the
    /// other end. Returns `false` if the other end is closed and reads no more. Returns an error if the other end has
    /// ended the ring before, because it has moved.
    pub(in crate::channel) fn mark(&self, tx: &mut Guard<'_, Tx>, fresh: &Lane) -> Result<bool, Ended> {
        if tx.ended().is_some() {
            return Ok(false);
        }
        let name = tx.lane.name_for_other(fresh);
        match tx.producer.end(RecordKind::Moved, &name.encode()) {
            Ok(()) => {
                let word = tx.producer.memory().sleeping();
                let how = tx.lane.take_sleeper(word);
                waiter::wake(tx.lane.current_link(), tx.lane.scope(), word, how);
                Ok(true)
            }
            Err(Ended(Some(RecordKind::Closed))) => {
                tx.end_with(Error::PeerClosed);
                Ok(false)
            }
            Err(ended) => Err(ended),
        }
    }

    /// Brings the receiving direction of this end to `lane`, the present sending lane. The other end has left the lanes
    /// before `lane`; the messages in their rings go to the backlog of this end.
    fn come_to(&self, lane: &Arc<Lane>, rx: &mut Guard<'_, Rx>) -> Result<(), Error> {
        let mut lanes = 0;
        while rx.is_open() && rx.ended().is_none() && !Arc::ptr_eq(lane, &rx.lane) {
            let before = rx.lane.clone();
            match self.take_next(rx) {
                Ok(_) if !Arc::ptr_eq(&before, &rx.lane) => lanes += 1,
                Ok(false) if rx.consumer().is_empty() => break,
                Err(error) if rx.ended().is_none() => return Err(error),
                _ => {}
            }
            if lanes >= MOST_LANES {
                return Err(Error::WouldBlock);
            }
        }
        Ok(())
    }

    /// Moves the next message from the ring to the backlog, or follows a mark to the next lane. Returns `false`, and
    /// changes nothing, if the ring had neither a message nor a mark; otherwise returns `true`.
    fn take_next(&self, rx: &mut Guard<'_, Rx>) -> Result<bool, Error> {
        let Some(record) = self.next_or_mark(rx)? else { return Ok(false) };
        if record.header.kind() == RecordKind::Moved {
            let next = self.marked(rx, record)?;
            rx.leave();
            rx.enter(next);
        } else {
            let unread = self.take_out(rx, record)?;
            rx.push_backlog(unread);
        }
        Ok(true)
    }

    /// Checks before a move whether this end can take along all messages of the other end: receives their attachments
    /// into the inbox, maps larger rings, and charges the peer's account for the messages and releases the charge
    /// again. Takes no message out of the ring. An error is temporary.
    fn find_out(&self, rx: &mut Rx) -> Result<(), Error> {
        if rx.ended().is_some() {
            return Ok(());
        }
        let link = rx.lane.current_link().clone();
        let taken_in = |ahead: UnreadAhead| match ahead.needs_socket {
            true => link.fetch(|_| None::<()>).map(|_| ahead),
            false => Ok(ahead),
        };
        let enough =
            self.look_ahead_of_move(rx).and_then(taken_in).and_then(|ahead| link.ledger().charge(ahead.amounts));
        match enough {
            Err(error) if error.passes() => Err(error),
            // A protocol error of the peer shows when its messages are received.
            _ => Ok(()),
        }
    }

    /// Looks at the messages in this end's incoming ring, and in the following larger rings of the lane. Maps those
    /// larger rings. Returns the amounts to charge for the payloads in these rings, and whether any record needs
    /// packets from the socket.
    fn look_ahead_of_move(&self, rx: &mut Rx) -> Result<UnreadAhead, Error> {
        let (mut messages, mut bytes) = (0, 0_usize);
        let mut needs_socket = false;
        let mut generation = u64::from(rx.generation());
        if let Some(mut scout) = rx.consumer_of_open().cloned() {
            while let Ok(NextRecord::Record(record)) = scout.next_record() {
                needs_socket |= record.header.handles() > 0 || record.header.kind() != RecordKind::Message;
                match record.header.kind() {
                    RecordKind::Message => {
                        messages += 1;
                        bytes = bytes.saturating_add(record.header.len());
                    }
                    // The payload of such a message stays in its memory.
                    RecordKind::Block | RecordKind::Sealed | RecordKind::Table => {}
                    RecordKind::Next => {
                        generation += 1;
                        let ring = self.map_ring_ahead(rx, generation)?;
                        let Some(larger) = scout.memory().grown(ring) else { break };
                        scout.go_on_in(larger);
                        continue;
                    }
                    _ => break,
                }
                scout.advance(record);
            }
        }
        let amounts = Amounts::of(Resource::QueuedMessages, messages).and(Resource::QueuedBytes, bytes);
        Ok(UnreadAhead { amounts, needs_socket })
    }

    /// Maps the ring of this lane with the generation `generation`, before this end reads from the ring. Stores the
    /// mapping until the end reads there, and returns the mapping.
    fn map_ring_ahead(&self, rx: &mut Rx, generation: u64) -> Result<Arc<Mapping>, Error> {
        if let Some(ring) = rx.ring_ahead(generation) {
            return Ok(ring);
        }
        // The memory that was fetched for the next record is stored again afterwards.
        let of_front = rx.cold().fetched.take();
        let ring = self.fetch_memory(rx, MemoryKey::Ring(rx.lane.token_in(), generation));
        rx.cold().fetched = of_front;
        let ring = ring?;
        rx.cold().rings.push((generation, ring.clone()));
        Ok(ring)
    }

    /// Moves messages from the ring to the backlog until the pending move is finished and this end is in its fresh
    /// lane. If both ends move at once, the other end may go first; then this end stops in the fresh lane of the other
    /// end. Stops also when the channel has ended. Errors are temporary.
    fn drain(&self, rx: &mut Guard<'_, Rx>) -> Result<(), Error> {
        while rx.pending_move().is_some() && rx.ended().is_none() {
            match self.take_next(rx) {
                Err(error) if rx.ended().is_none() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Freezes the ring (ends it from the reading side), if the ring is empty, and goes on receiving in the fresh lane
    /// of the pending move. Does nothing if no move is pending, or if a message was published meanwhile.
    #[cold]
    pub(in crate::channel) fn go_on_with_pending_move(&self, rx: &mut Rx) {
        let Some(PendingMove { fresh, .. }) = rx.pending_move().cloned() else { return };
        if rx.freeze(&fresh) {
            self.give_taken(rx);
            let fresh = self.arrive(rx);
            rx.leave();
            rx.enter(fresh);
        }
    }

    /// Completes the pending move of this end, and returns the fresh lane for going on. If the move was given up,
    /// cancels the transfer, because the end stays in this process. Returns the present lane if no move is pending.
    pub(in crate::channel) fn arrive(&self, rx: &mut Rx) -> Arc<Lane> {
        let Some(PendingMove { fresh, marked, stays }) = rx.pending_move().cloned() else { return rx.lane.clone() };
        rx.set_pending_move(None);
        if stays {
            if let Some(marked) = marked {
                marked.lead_to(&fresh);
            }
            fresh.cancel_transfer();
        }
        fresh
    }

    /// Gives up the fresh lane of the pending move, because both ends move at once and the other one goes first.
    /// Neither end goes on in that fresh lane.
    pub(in crate::channel) fn give_way(&self, rx: &mut Rx) {
        if let Some(PendingMove { fresh, marked: Some(marked), .. }) = rx.pending_move().cloned() {
            unmake(&marked, &fresh);
        }
        rx.set_pending_move(None);
    }

    /// Gives up a move that failed with `error`: the end stays in this process. If the other end has learnt of the
    /// fresh lane, this end goes on there as soon as it can; otherwise that lane is undone.
    fn stay(&self, tx: &mut Tx, rx: &mut Rx, error: Error) {
        match rx.pending_move().cloned() {
            Some(pending_move @ PendingMove { marked: Some(_), .. }) => {
                tx.set_delayed(error);
                rx.set_pending_move(Some(PendingMove { stays: true, ..pending_move }));
            }
            Some(PendingMove { fresh, .. }) => {
                rx.set_pending_move(None);
                fresh.unmake();
            }
            None => {}
        }
    }

    /// Completes a move that was given up after the other end had learnt of the fresh lane: this end drains its ring
    /// and goes on in the fresh lane, within this process. An error is temporary, and the call can be repeated.
    fn finish_move(&self, tx: &mut Guard<'_, Tx>, rx: &mut Guard<'_, Rx>) -> Result<(), Error> {
        self.drain(rx)?;
        if let Some(error) = rx.ended() {
            tx.end_with(error);
            self.arrive(rx);
        }
        match tx.lane.found_next().cloned() {
            Some(next) => self.enter_tx(tx, next),
            None => {
                tx.end_with(Error::PeerClosed);
            }
        }
        Ok(())
    }

    /// Completes a pending move that was given up, for a caller that holds the sending lock only: this end goes on in
    /// the fresh lane of that move, within this process.
    ///
    /// # Errors
    /// `error`, with which the move had failed, while another call holds the receiving lock. Also a temporary error of
    /// the completion, or the error with which the sending direction has ended.
    pub(in crate::channel) fn finish_delayed(&self, tx: &mut Guard<'_, Tx>, error: Error) -> Result<(), Error> {
        if let Some(next) = tx.lane.found_next().cloned() {
            self.enter_tx(tx, next);
            return Ok(());
        }
        // The call must not wait: this very thread may hold a view of a message, and so the lock.
        let mut rx = self.rx.lock(Deadline::NOW).map_err(|_| error)?;
        self.finish_move(tx, &mut rx)?;
        tx.ended().map_or(Ok(()), Err)
    }

    /// After a given-up move, brings the end to the fresh lane of the move, to be closed there. If the receiving
    /// direction has completed the move already, the sending direction follows.
    pub(super) fn close_delayed(&self, tx: &mut Tx, rx: &mut Rx) {
        let next = match rx.pending_move() {
            Some(_) => Some(self.arrive(rx)),
            None => tx.lane.found_next().cloned(),
        };
        if let Some(next) = next {
            self.enter_tx(tx, next);
        }
    }

    /// Returns the entry for this end in a handle table: lane, side, and whether each direction has ended.
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

    /// Creates an end that was received in a message, from its `entry` in the handle table. The sending process has
    /// made `lane` for the end. The new end has the options of this one.
    pub(super) fn received(&self, lane: Lane, entry: Entry) -> Self {
        lane.claim();
        let end = Self::new(Arc::new(lane), &self.options);
        if entry.cannot_send {
            end.tx.lock(Deadline::NEVER).expect("nobody else has it").end_with(Error::PeerClosed);
        }
        if entry.receives_no_more {
            end.rx.lock(Deadline::NEVER).expect("nobody else has it").end_with(Error::PeerClosed);
        }
        end
    }

    /// Returns the sending lane of this end. Fails while another call holds the sending lock.
    pub(in crate::channel) fn lane(&self) -> Result<Arc<Lane>, Error> {
        Ok(self.tx.lock(Deadline::NOW)?.lane.clone())
    }

    /// Takes all messages out of the backlog of this end. Returns none while another call holds the receiving lock.
    pub(in crate::channel) fn take_backlog(&self) -> VecDeque<BacklogMessage> {
        self.rx.lock(Deadline::NOW).map(|mut rx| rx.take_backlog()).unwrap_or_default()
    }

    /// Appends these messages to the backlog of this end. Does nothing while another call holds the receiving lock.
    pub(super) fn restore_backlog(&self, backlog: Vec<BacklogMessage>) {
        if let Ok(mut rx) = self.rx.lock(Deadline::NOW) {
            for unread in backlog {
                rx.push_backlog(unread);
            }
        }
    }

    /// Returns the ends in messages of this end's backlog. Returns none while another call holds the receiving lock.
    pub(in crate::channel) fn ends_in_backlog(&self) -> Vec<Arc<End>> {
        self.rx.lock(Deadline::NOW).map(|mut rx| rx.ends_in_backlog()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::channel::{Channel, Options};
    use crate::lane::directory::LaneDirectory;
    use crate::quota::OverLimit;
    use std::sync::atomic::Ordering;
    use std::time::Duration;

    /// Brings an end into the state of a pending move that was given up: a mark leads the other end to the fresh lane,
    /// and this process then lacked descriptors for the messages of the other end.
    fn delay(channel: &Channel) {
        let end = &channel.end;
        let (mut tx, mut rx) = (end.tx.lock(Deadline::NOW).unwrap(), end.rx.lock(Deadline::NOW).unwrap());
        let own = Link::own();
        let fresh = end.make(&tx, &rx, [&own, &own], own.clone(), None).unwrap();
        tx.lane.store_successor(&fresh, &own, close_in_transit);
        assert_eq!(end.mark(&mut tx, &fresh), Ok(true));
        rx.set_pending_move(Some(PendingMove { fresh, marked: Some(tx.lane.clone()), stays: false }));
        end.stay(&mut tx, &mut rx, Error::NoDescriptors);
    }

    /// Runs `test` with an end whose move was given up and with its other end, which has sent two messages. Runs `test`
    /// twice, with the first end on either side of the lane.
    fn each_side(test: impl Fn(Channel, Channel)) {
        for turned in [false, true] {
            let (one, other) = Channel::pair().unwrap();
            let (end, other) = if turned { (other, one) } else { (one, other) };
            send(&other, "one");
            delay(&end);
            send(&other, "two");
            test(end, other);
        }
    }

    fn send(channel: &Channel, text: &str) {
        channel.try_send(text).unwrap();
    }

    fn expect(channel: &Channel, text: &str) {
        assert_eq!(channel.try_recv().unwrap().bytes(), text.as_bytes());
    }

    fn talk(one: &Channel, other: &Channel) {
        for _ in 0..2 {
            for (from, to) in [(one, other), (other, one)] {
                send(from, "back and forth");
                expect(to, "back and forth");
                assert_eq!(to.try_recv().unwrap_err(), Error::WouldBlock);
            }
        }
        for (end, other) in [(one, other), (other, one)] {
            end.rehome(Deadline::NOW).unwrap();
            send(end, "at home");
            expect(other, "at home");
        }
    }

    /// Shows that an end which a fuse moves again, because its first message was taken back, is not taken for the peer
    /// of an end in this process if the other end is still on its way to another process. Both ends go to one process
    /// here, over two links. The fresh lane has both ends there.
    #[test]
    fn an_end_that_is_moved_again_remembers_where_the_other_end_goes() {
        let (one, theirs) = linked_to(0xc1);
        let (two, others) = linked_to(0xc1);
        let (first, second) = Channel::pair().unwrap();
        let mut along = Along::default();
        first.end.relocate(&one, &mut along, Deadline::NOW).unwrap();
        for _ in 0..2 {
            second.end.relocate(&two, &mut along, Deadline::NOW).unwrap();
            second.end.lane().unwrap().cancel_transfer();
        }
        second.end.relocate(&two, &mut along, Deadline::NOW).unwrap();
        let name = second.end.lane().unwrap().name();
        for side in [0, 1] {
            let is_there = |link: &InUse| {
                link.find_lane(name, side, false, OverLimit::Refuse).is_ok_and(|lane| lane.link().is_local())
            };
            assert!([&theirs, &others].into_iter().any(is_there), "side {side}");
        }
    }

    /// Creates a link to a process with this name, and returns it with the link of that process to this one.
    fn linked_to(name: u128) -> (InUse, InUse) {
        let (ours, theirs) = crate::os::socket::pair().unwrap();
        let over = |socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
        let (ours, theirs) = (over(ours), over(theirs));
        theirs.send_handshake(name).unwrap();
        ours.drain(false).unwrap();
        (ours, theirs)
    }

    /// Shows that a thread that moves an end and a thread that sends from the end both go on once the other end has
    /// arrived.
    #[test]
    fn a_mover_and_a_sender_that_wait_for_one_end_in_transit_both_go_on() {
        for _ in 0..20 {
            let (near, far) = Options::new().ring(1024).ring_max(1024).pair().unwrap();
            far.end.relocate(&Link::own(), &mut Along::default(), Deadline::NOW).unwrap();
            let limit = Duration::from_secs(60);
            std::thread::scope(|scope| {
                let moving = scope.spawn(|| near.rehome(limit));
                let begin = Instant::now();
                // The mover has the lock, or sleeps on the word for room.
                let sleeps = || near.end.lane().map_or(true, |lane| lane.out().waiting().load(Ordering::SeqCst) != 0);
                while !sleeps() && begin.elapsed() < limit {
                    std::thread::yield_now();
                }
                let sending = scope.spawn(|| (0..100).try_for_each(|_| near.send_by(&[0; 100], limit)));
                std::thread::sleep(Duration::from_millis(20));
                far.end.lane().unwrap().cancel_transfer();
                let receiving = scope.spawn(|| (0..100).try_for_each(|_| far.recv_by(limit).map(drop)));
                assert_eq!(moving.join().unwrap(), Ok(()));
                assert!(sending.join().unwrap().is_ok());
                assert_eq!(receiving.join().unwrap(), Ok(()));
            });
        }
    }

    #[test]
    fn an_end_that_stays_receives_and_goes_on() {
        each_side(|end, other| {
            expect(&end, "one");
            send(&other, "three");
            expect(&end, "two");
            expect(&end, "three");
            assert_eq!(end.try_recv().unwrap_err(), Error::WouldBlock);
            send(&other, "four");
            expect(&end, "four");
            talk(&end, &other);
        });
    }

    #[test]
    fn an_end_that_stays_goes_on_to_send() {
        each_side(|end, other| {
            assert!(!end.is_peer_closed() && end.is_writable());
            send(&end, "sent");
            expect(&other, "sent");
            send(&other, "three");
            ["one", "two", "three"].into_iter().for_each(|text| expect(&end, text));
            talk(&end, &other);
        });
    }

    /// Shows a send by an end whose move was given up. While a view of a message holds the receiving direction, the
    /// send fails with the error of the move. Once the view is dropped, sends succeed.
    #[test]
    fn an_end_that_stays_and_is_being_received_from_fails_to_send_as_it_failed_to_move() {
        each_side(|end, other| {
            let view = end.recv_in_place(Deadline::NOW).unwrap();
            assert_eq!(end.send_by("sent", Deadline::NEVER).unwrap_err().error, Error::NoDescriptors);
            drop(view);
            send(&end, "sent");
            expect(&other, "sent");
            expect(&end, "two");
            talk(&end, &other);
        });
    }

    #[test]
    fn an_end_that_stays_can_be_moved_once_it_can() {
        each_side(|end, other| {
            assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
            assert_eq!(other.rehome(Deadline::NOW).unwrap_err(), Error::WouldBlock);
            end.rehome(Deadline::NOW).unwrap();
            ["one", "two"].into_iter().for_each(|text| expect(&end, text));
            talk(&end, &other);
        });
    }

    #[test]
    fn of_two_ends_that_stay_one_comes_to_the_other() {
        for first_to_look in [0, 1] {
            each_side(|end, other| {
                send(&other, "three");
                delay(&other);
                let ends = [&end, &other];
                // Either end may be the first to find out, in either direction.
                let _ = ends[first_to_look].status();
                ["one", "two", "three"].into_iter().for_each(|text| expect(&end, text));
                assert_eq!(other.try_recv().unwrap_err(), Error::WouldBlock);
                talk(&end, &other);
            });
        }
    }

    #[test]
    fn an_end_that_stays_is_closed_where_the_other_is() {
        each_side(|end, other| {
            drop(end);
            assert_eq!(other.try_recv().unwrap_err(), Error::PeerClosed);
            assert_eq!(other.try_send("nobody").unwrap_err().error, Error::PeerClosed);
        });
        each_side(|end, other| {
            end.report_bad("nonsense");
            drop(end);
            assert_eq!(other.try_recv().unwrap_err(), Error::PeerClosed);
            assert_eq!(other.try_send("nobody").unwrap_err().error, Error::PeerClosed);
        });
        each_side(|end, other| {
            drop(other);
            ["one", "two"].into_iter().for_each(|text| expect(&end, text));
            assert_eq!(end.try_recv().unwrap_err(), Error::PeerClosed);
            assert_eq!(end.try_send("nobody").unwrap_err().error, Error::PeerClosed);
        });
    }
}
