//! Sending.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ends::Content;
use super::row::Row;
use super::{Channel, End};
use crate::account::{tell, told};
use crate::deadline::Deadline;
use crate::error::{Error, SendError, SendManyError};
use crate::fork;
use crate::handle::Handle;
use crate::lane::{Lane, Name};
use crate::link::packet::Packet;
use crate::link::{Amount, Parcel, Shareable, UnderWay, Until};
use crate::lock::Guard;
use crate::message::{Outgoing, Parts};
use crate::options::Options;
use crate::pool::{self, BlockRecord, Loan, Pool};
use crate::ring::{self, Ended, Header, Kind, Memory, Producer, Slot};
use crate::shm::RingMemory;
use crate::wait;

/// Every so many messages the sender tells on which CPU it runs, and asks whether the peer lives if nothing else
/// told lately.
const LOOK_EVERY: u64 = 16;

/// Messages in a lane below which the other end's stay there was brief.
const BRIEF: u64 = 1 << 15;

/// Brief stays in a row after which the other end is restless.
const RESTLESS: u8 = 4;

/// Rings that a restless end must have taken before its ring grows.
const SETTLED: u64 = 64;

/// The sending direction of an end.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) producer: Producer<RingMemory>,
    pub(super) lane: Arc<Lane>,
    /// Of the ring; each larger one is the next.
    pub(super) generation: u16,
    /// What is staged has descriptors or memory that were sent for it, so that it cannot go to another lane as it is.
    attached: bool,
    /// What is under way has more than records that belongs to the present lane: a block of its pool, ends made ready for
    /// its peer.
    pinned: bool,
    /// The other end has moved, and what was staged was forgotten: it is to be staged anew.
    moved: bool,
    /// How often in a row the other end went on after few messages.
    hops: u8,
    /// Whether nothing more can be sent.
    over: bool,
    /// Messages staged or committed in this lane.
    pub(super) sequence: u64,
    /// Messages staged and not committed, and bytes in them.
    uncommitted: (u32, u32),
    /// Messages that the consumer has taken, as far as we accepted it.
    pub(super) taken: u64,
    /// What few ends ever need.
    rare: Option<Box<Rare>>,
}

/// What few ends ever need to send.
#[derive(Debug, Default)]
struct Rare {
    /// What only so much may be under way of.
    under_way: Option<Arc<UnderWay>>,
    pool: Pool,
    /// Why nothing more can be sent.
    ended: Option<Error>,
}

impl Tx {
    pub(super) fn new(lane: Arc<Lane>, options: &Options) -> Self {
        let producer = Producer::new(lane.out());
        set_quota(&producer, options);
        Self {
            producer,
            lane,
            generation: 0,
            attached: false,
            pinned: false,
            moved: false,
            hops: 0,
            sequence: 0,
            uncommitted: (0, 0),
            taken: 0,
            rare: None,
            over: false,
        }
    }

    /// Goes on at the beginning of a lane's ring. What was staged is forgotten.
    pub(super) fn enter(&mut self, lane: Arc<Lane>, options: &Options) {
        let ended = self.ended();
        *self = Self::new(lane, options);
        if let Some(error) = ended {
            self.end_with(error);
        }
    }

    /// Nobody will tell of what is under way here.
    fn forget_rare(&mut self) {
        if let Some(under_way) = self.rare.take().and_then(|rare| rare.under_way) {
            self.lane.link().forget(&under_way);
        }
    }

    pub(super) fn end_with(&mut self, error: Error) -> Error {
        self.over = true;
        self.lane.tell_of(self.ended().is_none(), error);
        *self.rare().ended.get_or_insert(error)
    }

    pub(super) fn ended(&self) -> Option<Error> {
        self.rare.as_ref().and_then(|rare| rare.ended)
    }

    /// Whether what was staged is to be staged anew, since the other end has moved.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// The same, only looked at.
    pub(super) fn is_moved(&self) -> bool {
        self.moved
    }

    /// Whether the other end has moved, and this one has not gone after it.
    pub(super) fn has_frozen(&self) -> bool {
        self.producer.ended() == Some(Ended(Some(Kind::Frozen)))
    }

    /// What is staged is for the present peer only.
    pub(super) fn attach(&mut self) {
        self.attached = true;
    }

    /// Whether the ring may become larger because it is full. Not for an end that moves again and again: it takes along all
    /// that it has not received, each time, and the fresh ring lets us send as much once more.
    pub(super) fn may_grow(&self) -> bool {
        let memory = self.producer.memory();
        self.hops < RESTLESS || memory.credit().load(Ordering::Acquire) >= SETTLED * memory.cells() as u64
    }

    /// From here on what is under way is for the present lane only, until [`Tx::unpin`].
    pub(super) fn pin(&mut self) {
        self.pinned = true;
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pinned
    }

    pub(super) fn unpin(&mut self) {
        self.pinned = false;
    }

    /// Forgets what is staged.
    pub(super) fn discard(&mut self) {
        self.producer.discard();
        self.attached = false;
        self.sequence -= u64::from(self.uncommitted.0);
        self.uncommitted = (0, 0);
    }

    /// What was sent for it has its record: the ring grew.
    pub(super) fn forget_attached(&mut self) {
        self.attached = false;
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    pub(super) fn pool(&mut self) -> &mut Pool {
        &mut self.rare().pool
    }

    /// Whether a block of the pool has come back.
    pub(super) fn pool_has_news(&self) -> bool {
        self.rare.as_ref().is_some_and(|rare| rare.pool.has_news())
    }

    fn under_way(&self) -> Option<&UnderWay> {
        self.rare.as_ref()?.under_way.as_deref()
    }

    /// What only so much may be under way of, and is, as far as we know.
    pub(super) fn in_flight(&self) -> Amount {
        self.under_way().map_or(Amount::default(), UnderWay::all)
    }

    pub(super) fn note_in_flight(&mut self, amount: Amount) {
        self.note_in_flight_of(self.sequence, amount);
    }

    /// Counts what is under way with the message of this number.
    pub(super) fn note_in_flight_of(&mut self, sequence: u64, amount: Amount) {
        if amount.is_nothing() {
            return;
        }
        self.count_under_way(Until::Taken(sequence), amount);
    }

    /// Counts the ring that was gone on in just now.
    pub(super) fn note_ring_in_flight(&mut self) {
        let until = Until::Credit(self.producer.position());
        self.count_under_way(until, Amount { memories: 1, ..Amount::default() });
    }

    fn count_under_way(&mut self, until: Until, amount: Amount) {
        let lane = self.lane.clone();
        let under_way = self.rare().under_way.get_or_insert_with(|| {
            let under_way = UnderWay::new(lane.out());
            lane.link().look_through(&under_way);
            under_way
        });
        lane.link().count_under_way(under_way, until, amount);
    }

    /// Looks at how many messages the consumer says it has taken.
    pub(super) fn refresh_taken(&mut self) -> Result<(), Error> {
        let claim = self.producer.memory().taken().load(Ordering::Acquire);
        if claim < self.taken || claim > self.sequence {
            return Err(self.end_with(Error::BadPeer("it claims to have taken messages that were never sent")));
        }
        self.taken = claim;
        if let Some(under_way) = self.under_way() {
            self.lane.link().count_taken(under_way);
        }
        Ok(())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.forget_rare();
    }
}

/// Tells the consumer after how many messages credit is needed.
fn set_quota(producer: &Producer<RingMemory>, options: &Options) {
    let quota = if options.queue_messages == u64::MAX { 0 } else { options.queue_messages };
    producer.memory().quota().store(quota, Ordering::Relaxed);
}

impl Channel {
    /// Sends a message; waits for room as long as it takes.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    #[inline]
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.end.send(&mut message.into(), Deadline::NEVER)
    }

    /// Sends a message if there is room for it now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is not; otherwise as [`Channel::send_by`].
    #[inline]
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.end.send(&mut message.into(), Deadline::NOW)
    }

    /// Sends a message; waits for room until the deadline.
    ///
    /// Bytes are copied once, straight into shared memory. The handles of a message that was sent are closed in this
    /// process; those of one that was not come back in the error.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`]; [`Error::MessageTooLarge`] and [`Error::TooManyHandles`] by the
    /// options of this end; [`Error::BadHandle`]; [`Error::NoDescriptors`] or [`Error::NoMemory`] if a large message
    /// needs memory that is not to be had; [`Error::BadPeer`]; [`Error::Forked`]; [`Error::System`].
    #[inline]
    pub fn send_by<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        self.end.send(&mut message.into(), deadline.into())
    }

    /// Sends messages in a row: as many as fit into the ring appear at the peer at once, with one wake-up.
    /// Returns how many were sent, which is all of them.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// a.send_many(["one", "two", "three"], strait::Deadline::NEVER)?;
    /// assert_eq!(b.recv()?.bytes(), b"one");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Channel::send_by`], for the first message that could not be sent; those before it were sent, and those
    /// after it are still in the iterator if it was passed by reference.
    pub fn send_many<'a, I>(&self, messages: I, deadline: impl Into<Deadline>) -> Result<usize, SendManyError>
    where
        I: IntoIterator,
        I::Item: Into<Outgoing<'a>>,
    {
        told(self.end.send_many(messages.into_iter().map(Into::into), deadline.into()))
    }
}

impl End {
    #[inline]
    fn send(&self, message: &mut Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.lock_tx(deadline).and_then(|mut tx| self.send_locked(&mut tx, message, deadline)).map_err(|error| {
            tell();
            SendError::new(error, std::mem::take(&mut message.handles))
        })
    }

    #[inline]
    fn send_locked(&self, tx: &mut Guard<'_, Tx>, message: &mut Outgoing<'_>, deadline: Deadline) -> Result<(), Error> {
        if message.handles.is_empty()
            && let Some(len) = message.parts.len()
            && self.is_plain(tx, len)
            && match message.parts {
                Parts::One(bytes) => tx.producer.push(bytes),
                Parts::Many(parts) => tx.producer.push_parts(parts, len),
            }
        {
            tx.sequence += 1;
            self.counts.messages_sent.add(1);
            self.counts.bytes_sent.add(len as u64);
            self.committed(tx);
            return Ok(());
        }
        self.send_slowly(tx, message.parts, &mut message.handles, deadline)
    }

    /// Whether nothing but room in the ring can keep a message from being sent.
    #[inline]
    pub(super) fn is_plain(&self, tx: &Tx, len: usize) -> bool {
        len <= self.options.plain_limit() && tx.sequence - tx.taken < self.options.queue_messages
    }

    /// Counts a message that was staged.
    #[inline]
    pub(super) fn count_staged(&self, tx: &mut Tx, len: usize) {
        tx.sequence += 1;
        tx.uncommitted.0 += 1;
        tx.uncommitted.1 += len as u32;
    }

    /// Whether the other end is in this process, as it seems now; once it is known where it is.
    pub(super) fn is_within(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<bool, Error> {
        if tx.lane.is_pending() {
            tx.keep();
            let known = wait_for_hand_over(&tx.lane, deadline);
            tx.keep_no_more();
            known?;
        }
        Ok(tx.lane.link().is_local())
    }

    /// Sends one message; if the other end moves meanwhile, to where it went.
    #[inline(never)]
    pub(super) fn send_slowly(
        &self,
        tx: &mut Guard<'_, Tx>,
        parts: Parts<'_>,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        loop {
            let within = !handles.is_empty() && self.is_within(tx, deadline)?;
            let sent = if within || !handles.iter().all(Handle::is_plain) {
                self.send_ends(tx, Content::Parts(parts), handles, deadline)
            } else {
                self.stage(tx, parts, handles, deadline).and_then(|()| self.commit(tx, deadline))
            };
            tx.unpin();
            match sent {
                Ok(()) => return Ok(()),
                Err(_) if tx.has_moved() => {}
                Err(error) => {
                    tx.discard();
                    return Err(error);
                }
            }
        }
    }

    fn send_many<'a>(
        &self,
        mut messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        match self.lock_tx(deadline) {
            Ok(mut tx) => self.send_many_locked(&mut tx, messages, deadline),
            Err(error) => {
                // As if it had been tried: the first is taken, and its handles come back.
                let handles = messages.next().map(|message| message.handles).unwrap_or_default();
                Err(SendManyError { sent: 0, failed: SendError::new(error, handles) })
            }
        }
    }

    fn send_many_locked<'a>(
        &self,
        tx: &mut Guard<'_, Tx>,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        let mut outcome = Ok(());
        let mut staged = 0;
        let mut unsent = Vec::new();
        let mut row = Row { end: self, tx, pack: None, deadline };
        for Outgoing { parts, mut handles } in messages {
            if handles.is_empty() && row.stage_packed(parts) {
                staged += 1;
                continue;
            }
            row.end_pack();
            let small = parts.len().is_some_and(|len| len <= self.options.inline_limit());
            outcome = if handles.is_empty() && small {
                self.stage(row.tx, parts, &[], deadline)
            } else {
                // What belongs to it goes through the socket, so it goes alone.
                row.commit().and_then(|()| self.send_slowly(row.tx, parts, &mut handles, deadline))
            };
            if outcome.is_err() {
                unsent = handles;
                break;
            }
            staged += 1;
        }
        // What was staged before a message that failed is whole, and goes out.
        let committed = row.commit();
        drop(row);
        let sent = staged - tx.uncommitted.0 as usize;
        outcome.and(committed).map(|()| sent).map_err(|error| {
            tx.discard();
            SendManyError { sent, failed: SendError::new(error, unsent) }
        })
    }

    #[inline]
    pub(super) fn lock_tx(&self, deadline: Deadline) -> Result<Guard<'_, Tx>, Error> {
        fork::check()?;
        let mut tx = self.tx.lock(deadline)?;
        if tx.over || tx.lane.is_down() {
            self.check_open(&mut tx)?;
        }
        Ok(tx)
    }

    /// Whether anything can be sent at all. An end whose peer has moved before it died goes on where that went.
    #[cold]
    fn check_open(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        loop {
            match tx.ended() {
                Some(error) => return Err(error),
                None if !tx.lane.is_down() => return Ok(()),
                None => match tx.producer.ended() {
                    Some(Ended(Some(Kind::Frozen))) => self.follow_frozen(tx)?,
                    // For good: who was there may go on as if nothing had happened, if it is not dead but lies.
                    _ => {
                        let reason = tx.lane.reason();
                        return Err(tx.end_with(reason));
                    }
                },
            }
        }
    }

    /// Checks a message against this end's limits. The number of its bytes.
    #[inline]
    pub(super) fn check(&self, parts: &Parts<'_>, handles: &[Handle]) -> Result<usize, Error> {
        let limit = self.options.max_message;
        let len = parts.len().unwrap_or(usize::MAX);
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        if handles.len() > self.options.max_handles {
            return Err(Error::TooManyHandles { count: handles.len(), limit: self.options.max_handles });
        }
        Ok(len)
    }

    /// Writes a message behind what is staged. It appears at the peer with [`End::commit`].
    #[inline]
    fn stage(
        &self,
        tx: &mut Guard<'_, Tx>,
        parts: Parts<'_>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let len = self.check(&parts, handles)?;
        if !handles.is_empty() || len > self.options.inline_limit() {
            // This may have to wait for room in the socket, which the peer makes as it takes what comes before.
            self.commit(tx, deadline)?;
            tx.pin();
        }
        self.wait_for_quotas(tx, handles.len(), 0, deadline)?;
        if len <= self.options.inline_limit() {
            let slot = self.stage_record(tx, Header::new(Kind::Message, len, handles.len()), deadline)?;
            let producer = &tx.producer;
            parts.each(|at, bytes| {
                producer.write(slot, at, bytes);
                Ok::<(), Error>(())
            })?;
            self.finish_stage(tx, len, handles, deadline)
        } else {
            let loan = self.borrow_block(tx, len, deadline)?;
            let filled = parts.each(|at, bytes| pool::fill(&loan, at, bytes));
            self.stage_block(tx, &loan, len, filled, handles, deadline)
        }
    }

    /// What is left to do once a message's record is staged: its handles, and the books.
    #[inline]
    pub(super) fn finish_stage(
        &self,
        tx: &mut Guard<'_, Tx>,
        len: usize,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        if !handles.is_empty() {
            let (token, sequence, count) = (tx.lane.token_out(), tx.sequence, handles.len() as u32);
            let packet = Packet::Handles { token, sequence, part: 0, count };
            self.send_packet(tx, &packet, Parcel::handles(handles), handles.len(), deadline)?;
            tx.note_in_flight(Amount::handles(handles.len()));
        }
        self.count_staged(tx, len);
        Ok(())
    }

    /// Sends a packet that what is staged refers to; waits for room in the socket, with the lock kept meanwhile. If it
    /// cannot be sent the record staged last is forgotten.
    pub(super) fn send_packet(
        &self,
        tx: &mut Guard<'_, Tx>,
        packet: &Packet,
        parcel: Parcel<'_>,
        handles: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        tx.keep();
        let sent = self.send_packet_kept(tx, packet, parcel, handles, deadline);
        tx.keep_no_more();
        self.kept_no_more();
        match sent {
            Ok(()) => tx.attached = true,
            Err(_) => tx.producer.unstage_last(),
        }
        // Whoever passed the other end on may be gone at once.
        if let (Err(Error::PeerClosed), Some(ended @ Ended(Some(Kind::Frozen)))) = (sent, tx.producer.ended()) {
            self.after_end(tx, ended, deadline)?;
            tx.moved = true;
            return Err(Error::WouldBlock);
        }
        if sent == Err(Error::PeerClosed) && tx.lane.is_down() {
            tx.end_with(Error::PeerClosed);
        }
        sent
    }

    fn send_packet_kept(
        &self,
        tx: &Guard<'_, Tx>,
        packet: &Packet,
        parcel: Parcel<'_>,
        handles: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        // What needs a socket waits until it is known to which.
        wait_for_hand_over(&tx.lane, deadline)?;
        let link = tx.lane.link();
        let mut pause = Pause::new();
        while !link.may_send(handles) {
            // A dead process takes none.
            link.probe_if_due();
            if link.is_down() {
                return Err(link.reason());
            }
            pause.until(deadline)?;
        }
        link.send(packet, parcel, deadline)
    }

    /// Waits until it is known to which process the other end goes, with the lock kept meanwhile.
    pub(super) fn wait_for_hand_over(&self, tx: &Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        if !tx.lane.is_pending() {
            return Ok(());
        }
        tx.keep();
        let waited = wait_for_hand_over(&tx.lane, deadline);
        tx.keep_no_more();
        self.kept_no_more();
        waited
    }

    /// Makes what is staged appear at the peer, and wakes it if it sleeps. If the peer has moved, it goes to where that
    /// went; or, with what only the old peer has got, it is forgotten, and [`Tx::has_moved`] says so.
    #[inline]
    pub(super) fn commit(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        while tx.producer.has_staged() {
            match self.commit_once(tx) {
                None => return Ok(()),
                Some(ended) => self.after_end(tx, ended, deadline)?,
            }
        }
        Ok(())
    }

    /// What is left to do once something has appeared at the peer: to wake it, if it sleeps.
    #[inline]
    pub(super) fn committed(&self, tx: &mut Guard<'_, Tx>) {
        let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
        if how != 0 || tx.sequence.is_multiple_of(LOOK_EVERY) {
            self.after_commit(tx, how);
        }
    }

    #[cold]
    pub(super) fn after_commit(&self, tx: &mut Guard<'_, Tx>, how: u32) {
        // Looked up after the sleeper was taken: by then it is known who that is.
        let link = tx.lane.listen();
        if wait::wake(link, tx.lane.scope(), tx.producer.memory().sleeping(), how) {
            self.counts.rare().send_wake_ups.add(1);
        }
        self.publish_cpu(tx);
        // A peer that takes or sends something lives, and nobody asks the kernel.
        let credit = tx.producer.memory().credit().load(Ordering::Relaxed);
        link.probe_if_silent(credit.wrapping_add(self.counts.messages_received.get()));
    }

    /// The consumer has put something where our next record was to go. If it has moved, what is staged here is staged
    /// there.
    #[cold]
    pub(super) fn after_end(&self, tx: &mut Guard<'_, Tx>, ended: Ended, deadline: Deadline) -> Result<(), Error> {
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
                    Err(_) => carried = Err(Error::WouldBlock),
                }
            }
        }
        // Of this lane nothing was committed yet. What could not be carried over is discarded by whoever staged it.
        tx.sequence = uncommitted.0.into();
        tx.uncommitted = uncommitted;
        carried
    }

    /// What was sent for a record that could not be committed will not be asked for.
    fn retract(&self, tx: &mut Tx) {
        if std::mem::take(&mut tx.attached) {
            let link = tx.lane.link();
            if link.is_local() {
                // Nobody may have looked for it yet.
                let _ = link.fetch(|_| None::<()>);
                link.discard_stashed(tx.lane.token_out());
            } else {
                link.send_sooner_or_later(Packet::Retract { token: tx.lane.token_out() });
            }
        }
    }

    /// Goes on to where the other end is, if nothing is staged.
    pub(super) fn catch_up(&self, tx: &mut Guard<'_, Tx>) {
        while !tx.over && !tx.producer.has_staged() && tx.has_frozen() && self.follow_frozen(tx).is_ok() {}
    }

    /// Goes on in the lane to which the other end has moved.
    pub(super) fn follow_frozen(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        let name = Name::from_words(tx.producer.memory().forward());
        if tx.sequence > 0 {
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
    pub(super) fn enter_tx(&self, tx: &mut Tx, lane: Arc<Lane>) {
        let hops = if tx.sequence < BRIEF { tx.hops.saturating_add(1) } else { 0 };
        tx.enter(lane, &self.options);
        tx.hops = hops;
        self.cpu.store(0, Ordering::Relaxed);
        self.publish_cpu(tx);
    }

    /// Stages a record in the ring; lets the ring grow, or waits, until there is room.
    #[inline]
    pub(super) fn stage_record(
        &self,
        tx: &mut Guard<'_, Tx>,
        header: Header,
        deadline: Deadline,
    ) -> Result<Slot, Error> {
        match tx.producer.stage(header) {
            Ok(slot) => Ok(slot),
            Err(_) => self.stage_when_room(tx, header, deadline),
        }
    }

    /// Stages a message whose bytes are in a block. If the peer does not know the block yet, its memory goes first, and
    /// the handles with it: all or nothing.
    pub(super) fn stage_block(
        &self,
        tx: &mut Guard<'_, Tx>,
        loan: &Loan,
        len: usize,
        filled: Result<(), Error>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let header = Header::new(Kind::Block, BlockRecord::SIZE, handles.len());
        self.stage_block_as(tx, loan, len, filled, header, handles, deadline)
    }

    /// The same under a header that says what its handles are, of which these are sent with it.
    #[allow(clippy::too_many_arguments, reason = "all of it is what the message is")]
    pub(super) fn stage_block_as(
        &self,
        tx: &mut Guard<'_, Tx>,
        loan: &Loan,
        len: usize,
        filled: Result<(), Error>,
        header: Header,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let staged = filled.and_then(|()| {
            let slot = self.stage_record(tx, header, deadline)?;
            tx.producer.write(slot, 0, &BlockRecord { len: len as u64, ..loan.record }.encode());
            // Its block is known to the present peer only.
            tx.attached = true;
            let Some(memory) = &loan.fresh else { return self.finish_stage(tx, len, handles, deadline) };
            let (token, sequence, id) = (tx.lane.token_out(), tx.sequence, loan.record.id);
            let packet = Packet::Block { token, id, sequence, handles: handles.len() as u32 };
            let parcel = Parcel { memory: Some(memory), handles, ..Parcel::NOTHING };
            self.send_packet(tx, &packet, parcel, handles.len() + 1, deadline)?;
            tx.note_in_flight(Amount { handles: handles.len(), memories: 1, sealed: 0 });
            self.count_staged(tx, len);
            Ok(())
        });
        // If the other end has moved its pool is no longer ours to lend from.
        if staged.is_err() && !tx.moved {
            tx.pool().take_back(loan);
        }
        staged
    }

    /// Commits what is staged, if the peer has not moved or closed: then how its ring ended.
    pub(super) fn commit_once(&self, tx: &mut Guard<'_, Tx>) -> Option<Ended> {
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

    /// Sends a payload that is sealed in memory of its own.
    pub(super) fn send_sealed(
        &self,
        memory: &Shareable,
        len: usize,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut tx = self.lock_tx(deadline)?;
        let tx = &mut tx;
        loop {
            let within = !handles.is_empty() && self.is_within(tx, deadline)?;
            let sent = if within || !handles.iter().all(Handle::is_plain) {
                self.send_ends(tx, Content::Sealed(memory, len), handles, deadline)
            } else {
                tx.pin();
                self.stage_sealed(tx, memory, len, handles, deadline).and_then(|()| self.commit(tx, deadline))
            };
            tx.unpin();
            match sent {
                Ok(()) => return Ok(()),
                Err(_) if tx.has_moved() => {}
                Err(error) => {
                    tx.discard();
                    return Err(error);
                }
            }
        }
    }

    /// Stages a payload that is sealed in memory of its own, and sends the memory.
    pub(super) fn stage_sealed(
        &self,
        tx: &mut Guard<'_, Tx>,
        memory: &Shareable,
        len: usize,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        // Its memory counts as one handle more: it is a descriptor under way.
        self.wait_for_quotas(tx, handles.len() + 1, len, deadline)?;
        let slot = self.stage_record(tx, Header::new(Kind::Sealed, 8, handles.len()), deadline)?;
        let (token, sequence) = (tx.lane.token_out(), tx.sequence);
        let packet = Packet::Sealed { token, sequence, handles: handles.len() as u32 };
        let parcel = Parcel { memory: Some(memory), handles, ..Parcel::NOTHING };
        self.send_packet(tx, &packet, parcel, handles.len() + 1, deadline)?;
        tx.producer.write(slot, 0, &(len as u64).to_le_bytes());
        tx.note_in_flight(Amount { handles: handles.len() + 1, memories: 0, sealed: len });
        self.count_staged(tx, len);
        self.counts.rare().out_of_line.add(1);
        Ok(())
    }

    pub(super) fn is_writable(&self) -> bool {
        let Ok(mut tx) = self.lock_tx(Deadline::NOW) else { return false };
        let header = Header::new(Kind::Message, 0, 0);
        let room = tx.producer.stage(header).is_ok()
            || (tx.producer.memory().cells() < self.options.ring_max_cells && tx.may_grow());
        tx.producer.discard();
        room && tx.refresh_taken().is_ok() && tx.sequence - tx.taken < self.options.queue_messages
    }

    pub(super) fn is_peer_closed(&self) -> bool {
        if fork::in_child() {
            return false;
        }
        let Ok(mut tx) = self.tx.lock(Deadline::NOW) else { return false };
        tx.lane.probe();
        loop {
            match (tx.ended(), tx.producer.ended()) {
                (Some(error), _) => return error == Error::PeerClosed,
                (None, Some(Ended(Some(Kind::Frozen)))) => {
                    if self.follow_frozen(&mut tx).is_err() {
                        return true;
                    }
                }
                (None, Some(_)) => return true,
                (None, None) => return tx.lane.is_down(),
            }
        }
    }

    pub(super) fn close_tx(&self, tx: &mut Guard<'_, Tx>) {
        while !tx.over {
            match tx.producer.end(Kind::Closed, &[]) {
                Ok(()) => {
                    tx.end_with(Error::PeerClosed);
                    let how = tx.lane.take_sleeper(tx.producer.memory().sleeping());
                    wait::wake(tx.lane.listen(), tx.lane.scope(), tx.producer.memory().sleeping(), how);
                }
                Err(Ended(Some(Kind::Frozen))) if self.follow_frozen(tx).is_ok() => {}
                Err(_) => return,
            }
        }
    }
}

/// Waits until it is known to which process the other end of a lane goes.
pub(super) fn wait_for_hand_over(lane: &Lane, deadline: Deadline) -> Result<(), Error> {
    let mut pause = Pause::new();
    while lane.is_pending() {
        lane.probe();
        if lane.is_down() {
            return Err(lane.reason());
        }
        pause.until(deadline)?;
    }
    Ok(())
}

/// Waiting for what nobody will tell of, and what takes microseconds as a rule.
pub(super) struct Pause(Duration);

impl Pause {
    pub(super) fn new() -> Self {
        Self(Duration::from_micros(10))
    }

    /// Pauses once; an error if the time is up.
    pub(super) fn until(&mut self, deadline: Deadline) -> Result<(), Error> {
        if deadline.is_now() {
            return Err(Error::WouldBlock);
        }
        if deadline.has_passed() {
            return Err(Error::TimedOut);
        }
        std::thread::sleep(deadline.within(self.0));
        self.0 = (self.0 * 2).min(Duration::from_millis(1));
        Ok(())
    }
}
