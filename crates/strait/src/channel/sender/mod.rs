//! The sending direction of an end: position in the ring, and messages in flight.

mod batch;
mod commit;
pub(super) mod local;
mod out_of_line;
pub(super) mod packets;
mod room;
mod send;

pub(crate) use commit::WakeOnDrop;
pub(in crate::channel) use send::Pushed;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::blocked_on::Progress;
use crate::channel::options::Options;
use crate::channel::pool::Pool;
use crate::error::Error;
use crate::lane::Lane;
use crate::link::{Amount, InFlight, Until};
use crate::ring::{Ended, Memory, Producer, RecordKind};
use crate::shm::RingMemory;

/// The stay of the other end in a lane counts as short if fewer messages than this number were sent in the lane. A stay
/// lasts from one move of the other end to the next.
const SHORT_STAY: u64 = 1 << 15;

/// The number of consecutive lanes with a short stay after which the other end counts as moving all the time.
const MANY_SHORT_STAYS: u8 = 4;

/// The factor that decides when the other end, after moving all the time, counts as settled in a lane: the other end
/// must have given credit for this many times the cells of the present ring.
const LONG_STAY: u64 = 64;

/// The sending direction of an end: the producer of its ring with the surrounding state. The end's sending lock guards
/// it.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) producer: Producer<RingMemory>,
    pub(super) lane: Arc<Lane>,
    /// The generation of the present ring within its lane: 0 for the first ring, and one more for each larger ring.
    pub(super) generation: u16,
    /// Whether the staged records depend on the present peer: descriptors, memory or lanes were sent for them. Such
    /// records cannot be staged again in another lane.
    pub(super) attached: bool,
    /// Whether the message being sent depends on the present lane, because the message uses a block of the lane's pool,
    /// or ends that were moved for the present peer.
    pub(super) pinned: bool,
    /// Whether the other end has moved and the staged records were discarded, so that the caller has to stage the
    /// message again.
    pub(super) moved: bool,
    /// Number of consecutive earlier lanes, up to the last, with a short stay of the other end.
    short_stays: u8,
    /// Whether nothing can be staged in the present ring: for good, because the sending direction has ended, or until
    /// this end has gone on to another lane.
    pub(super) over: bool,
    /// Whether the sending direction has ended with [`Error::PeerClosed`], while there was no cold state. So closing an
    /// end allocates nothing.
    closed: bool,
    /// Number of messages staged or committed by this end in this lane.
    pub(super) sequence: u64,
    /// The number of uncommitted staged messages, and their payload bytes.
    pub(super) uncommitted: (u32, u32),
    /// Number of messages taken from this lane by the consumer: the consumer's claim, as last read and checked by this
    /// end.
    pub(super) taken: u64,
    /// The peer's activity when this end last looked: the credit given by the peer, in cells, plus the number of
    /// messages received by this end. A change shows that the peer is alive.
    pub(super) sign: u64,
    /// The cold state of the sending direction, which few ends ever need; `None` until it is first needed.
    cold: Option<Box<TxCold>>,
}

/// The cold state of the sending direction, which few ends ever need.
#[derive(Debug, Default)]
struct TxCold {
    /// The counts of descriptors, and of bytes of sealed memory and of values, in flight from this end; `None` if none
    /// were sent in this lane.
    in_flight: Option<Arc<InFlight>>,
    pool: Pool,
    /// The error with which the sending direction has ended; `None` before the end, and if the field `closed` of [`Tx`]
    /// is set.
    ended: Option<Error>,
    /// The error of the given-up pending move of this end, which keeps this end from going on in the fresh lane; `None`
    /// if there is no such error.
    delayed: Option<Error>,
    /// Number of cells of earlier rings with unreceived messages when this end went on in the present ring. Rings of
    /// earlier lanes are included. The other end receives those messages first.
    behind: u64,
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
            short_stays: 0,
            sequence: 0,
            uncommitted: (0, 0),
            taken: 0,
            sign: 0,
            cold: None,
            over: false,
            closed: false,
        }
    }

    /// Goes on sending at the beginning of the ring of `lane`. Discards staged records.
    pub(super) fn enter(&mut self, lane: Arc<Lane>, options: &Options) {
        let ended = self.ended();
        let behind = self.unreceived();
        let short_stays = if self.sequence < SHORT_STAY { self.short_stays.saturating_add(1) } else { 0 };
        *self = Self::new(lane, options);
        self.short_stays = short_stays;
        self.set_behind(behind);
        // The error was reported when it ended the sending direction; this lane may lead to a different process.
        if let Some(error) = ended {
            self.over = true;
            self.set_ended(error);
        }
    }

    /// Leaves this lane while descriptors or sealed memory may be in flight there. The link goes on counting them as
    /// long as the other end can still receive them. Otherwise the counts are dropped now, because no thread would read
    /// the counts again.
    fn leave_in_flight(&mut self) {
        let Some(in_flight) = self.cold.take().and_then(|cold| cold.in_flight) else { return };
        let link = self.lane.link();
        // Within a process no peer limits messages in flight. An end that moved elsewhere takes all its messages along.
        let is_over = link.is_elsewhere() || link.is_local() || link.is_down() || self.has_frozen();
        if is_over || !self.lane.linger(&in_flight) {
            link.forget(&in_flight);
        }
    }

    /// Returns whether nothing forbids to send in this lane, without a look at shared memory. If not,
    /// [`Tx::is_usable`] looks further.
    #[inline(always)]
    pub(super) fn is_open(&self) -> bool {
        !self.over && self.lane.is_plainly_up()
    }

    /// Returns whether messages can be committed in this lane, as far as this process knows: the direction is not over,
    /// and the lane is not down.
    #[cold]
    pub(super) fn is_usable(&self) -> bool {
        !self.over && !self.lane.is_down()
    }

    pub(super) fn end_with(&mut self, error: Error) -> Error {
        self.over = true;
        let ended = self.ended();
        self.lane.report_error(ended.is_none(), error);
        ended.unwrap_or_else(|| {
            self.set_ended(error);
            error
        })
    }

    /// Notes that the sending direction, which has not ended before, has ended with `error`.
    fn set_ended(&mut self, error: Error) {
        match &self.cold {
            None if error == Error::PeerClosed => self.closed = true,
            _ => self.cold().ended = Some(error),
        }
    }

    pub(super) fn ended(&self) -> Option<Error> {
        if self.closed { Some(Error::PeerClosed) } else { self.cold.as_ref().and_then(|cold| cold.ended) }
    }

    /// Returns the error of the given-up pending move of this end. Until the move is finished, this end cannot go on in
    /// the fresh lane, although a mark in this ring leads the other end there. Returns `None` if no move was given up
    /// in that way.
    pub(super) fn delayed(&self) -> Option<Error> {
        self.cold.as_ref()?.delayed
    }

    /// Sets the error that keeps this end out of the fresh lane of its pending move. Until the end has gone on, nothing
    /// may be staged in the present ring: a record would overwrite the mark at the end of that ring.
    pub(super) fn set_delayed(&mut self, error: Error) {
        self.over = true;
        self.cold().delayed = Some(error);
    }

    /// Returns whether the other end has moved and staged records were discarded; if so, the caller has to stage the
    /// records again. Clears the flag `moved`: a second call returns `false`.
    pub(super) fn has_moved(&mut self) -> bool {
        std::mem::take(&mut self.moved)
    }

    /// Returns whether the other end has moved and staged records were discarded. Does not clear the flag `moved`.
    pub(super) fn is_moved(&self) -> bool {
        self.moved
    }

    /// Returns whether the other end has frozen this end's outgoing ring: the other end has moved to another lane, and
    /// this end has not followed yet.
    pub(super) fn has_frozen(&self) -> bool {
        self.producer.ended() == Some(Ended(Some(RecordKind::Frozen)))
    }

    /// Notes that the staged records are for the present peer only, because no other peer has the memory or lanes named
    /// there.
    pub(super) fn attach(&mut self) {
        self.attached = true;
    }

    /// Returns whether a full ring may be replaced by a larger one of at most `most` cells. When the other end moves,
    /// its unreceived messages go along as backlog, and a new ring lets this end send as much again. To limit that
    /// backlog, the ring grows only in two cases: if fewer than `most` cells were left behind in earlier rings, or if
    /// the other end has received all messages in earlier rings and some in this ring.
    pub(super) fn may_grow(&self, most: usize) -> bool {
        let cells = self.producer.memory().cells();
        cells < most && (self.behind() < most as u64 || self.received() > self.producer.base())
    }

    /// Returns whether this end should wait for room in a full ring before making the ring larger. Returns `true` if
    /// the other end moves all the time: with each move unreceived messages go along as backlog, and a small ring keeps
    /// the backlog small.
    pub(super) fn rather_waits_than_grows(&self) -> bool {
        self.short_stays >= MANY_SHORT_STAYS && self.received() < LONG_STAY * self.producer.memory().cells() as u64
    }

    /// Returns the position in the lane, in cells, up to which the other end has given credit. The peer may claim more
    /// than was sent.
    fn received(&self) -> u64 {
        self.producer.memory().credit().load(Ordering::Acquire)
    }

    /// Returns the number of cells, of the present and earlier rings, with unreceived messages. Messages that a moving
    /// end takes along from the last ring of a lane count as unreceived.
    fn unreceived(&self) -> u64 {
        let (received, base) = (self.received(), self.producer.base());
        let before = if received > base { 0 } else { self.behind() };
        before.saturating_add(self.producer.position().saturating_sub(received.max(base)))
    }

    fn behind(&self) -> u64 {
        self.cold.as_ref().map_or(0, |cold| cold.behind)
    }

    fn set_behind(&mut self, cells: u64) {
        if cells != self.behind() {
            self.cold().behind = cells;
        }
    }

    /// Goes on sending in a larger ring of this lane. A record at the end of the present ring leads the other end
    /// there.
    pub(super) fn go_on_in(&mut self, larger: RingMemory) {
        self.set_behind(self.unreceived());
        self.generation += 1;
        self.producer.go_on_in(larger);
        self.attached = false;
    }

    /// Notes that the message being sent depends on the present lane, until [`Tx::unpin`].
    pub(super) fn pin(&mut self) {
        self.pinned = true;
    }

    pub(super) fn is_pinned(&self) -> bool {
        self.pinned
    }

    pub(super) fn unpin(&mut self) {
        self.pinned = false;
    }

    /// Discards the staged records, which the peer has not seen.
    pub(super) fn discard(&mut self) {
        self.producer.discard();
        self.attached = false;
        self.sequence -= u64::from(self.uncommitted.0);
        self.uncommitted = (0, 0);
    }

    fn cold(&mut self) -> &mut TxCold {
        self.cold.get_or_insert_default()
    }

    pub(super) fn pool(&mut self) -> &mut Pool {
        &mut self.cold().pool
    }

    /// Returns whether the receiver has returned a block or part that the pool has not taken back yet.
    pub(super) fn pool_has_news(&self) -> bool {
        self.cold.as_ref().is_some_and(|cold| cold.pool.has_news())
    }

    /// Returns the last read progress of the ring's consumer: the generation of the ring, the credit in cells, and the
    /// number of messages taken. With `or_block`, also returns the number of blocks that the receiver had returned.
    pub(super) fn progress(&self, or_block: bool) -> Progress {
        let blocks = or_block.then(|| self.cold.as_ref().map_or(0, |cold| cold.pool.returned()));
        Progress { generation: self.generation, cells: self.producer.known_credit(), messages: self.taken, blocks }
    }

    /// Returns whether the consumer has taken a message or freed cells since `seen`, which an earlier [`Tx::progress`]
    /// has returned. If `seen` counts blocks, also returns `true` if the receiver has returned a block since.
    pub(super) fn has_moved_on_from(&self, seen: &Progress) -> bool {
        let memory = self.producer.memory();
        let now = Progress {
            cells: memory.credit().load(Ordering::Acquire),
            messages: memory.taken().load(Ordering::Acquire),
            ..self.progress(seen.blocks.is_some())
        };
        now != *seen || (seen.blocks.is_some() && self.pool_has_news())
    }

    fn in_flight(&self) -> Option<&InFlight> {
        self.cold.as_ref()?.in_flight.as_deref()
    }

    /// Returns the number of descriptors in flight that `count` handles or pieces of memory cost: `count`, or 0 if the
    /// other end is in this process.
    pub(super) fn descriptors(&self, count: usize) -> usize {
        if self.lane.link().is_local() { 0 } else { count }
    }

    /// Returns whether this end may use the reserved descriptors of the link: nothing is in flight from this end, and
    /// the consumer has received a message in this lane.
    pub(super) fn has_reserve(&self) -> bool {
        self.amount_in_flight().is_nothing() && self.producer.memory().taken().load(Ordering::Acquire) > 0
    }

    /// Returns the numbers of descriptors, and of bytes of sealed memory and of values, in flight from this end, by the
    /// last read progress of the consumer.
    pub(super) fn amount_in_flight(&self) -> Amount {
        self.in_flight().map_or(Amount::default(), InFlight::all)
    }

    pub(super) fn note_in_flight(&mut self, amount: Amount) {
        self.note_in_flight_of(self.sequence, amount);
    }

    /// Counts `amount` (of descriptors, sealed memory and values) as in flight until the consumer has taken the message
    /// with the number `sequence` in this lane.
    pub(super) fn note_in_flight_of(&mut self, sequence: u64, amount: Amount) {
        if amount.is_nothing() {
            return;
        }
        self.count_in_flight(Until::Taken(sequence), amount);
    }

    /// Counts `memories` descriptors of memory as in flight until the consumer has given credit up to the present
    /// position. The descriptors belong to the last committed record, such as *next* for a larger ring.
    pub(super) fn note_in_flight_up_to_here(&mut self, memories: usize) {
        let amount = Amount { memories, ..Amount::default() };
        if !amount.is_nothing() {
            self.count_in_flight(Until::Credit(self.producer.position()), amount);
        }
    }

    fn count_in_flight(&mut self, until: Until, amount: Amount) {
        let lane = self.lane.clone();
        let in_flight = self.cold().in_flight.get_or_insert_with(|| InFlight::new(lane.out()));
        lane.link().count_in_flight(in_flight, until, amount);
    }

    /// Returns whether the consumer has taken a message or freed cells since this end last looked, or has ended the
    /// ring.
    pub(super) fn has_news(&self) -> bool {
        self.producer.has_news()
            || self.producer.memory().taken().load(Ordering::Acquire) != self.taken
            || self.producer.ended().is_some()
    }

    /// Reads how many cells and messages the consumer claims to have taken, and checks both claims.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if a claim is impossible; the sending direction has then ended.
    pub(super) fn refresh(&mut self) -> Result<(), Error> {
        if self.producer.refresh_credit().is_err() {
            return Err(self.end_with(Error::BadPeer("credit for cells that were never used")));
        }
        self.refresh_taken()
    }

    /// Reads how many messages the consumer claims to have taken, and checks the claim.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the claim is impossible; the sending direction has then ended.
    pub(super) fn refresh_taken(&mut self) -> Result<(), Error> {
        let claim = self.producer.memory().taken().load(Ordering::Acquire);
        if claim < self.taken || claim > self.sequence {
            return Err(self.end_with(Error::BadPeer("a count of received messages that were never sent")));
        }
        self.taken = claim;
        if let Some(in_flight) = self.in_flight() {
            self.lane.link().count_taken(in_flight);
        }
        Ok(())
    }
}

impl Drop for Tx {
    fn drop(&mut self) {
        self.leave_in_flight();
    }
}

/// Publishes the limit on messages in flight (the quota) to the consumer, which times its credit by the quota. The
/// published number is 0 if there is no limit.
fn set_quota(producer: &Producer<RingMemory>, options: &Options) {
    let quota = if options.queue_messages == u64::MAX { 0 } else { options.queue_messages };
    producer.memory().quota().store(quota, Ordering::Relaxed);
}
