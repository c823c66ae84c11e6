//! The sending direction of an end: how far it has come, and what is under way.

mod commit;
mod outside;
pub(super) mod packets;
mod room;
mod row;
mod send;
pub(super) mod within;

pub(crate) use commit::Unrung;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::channel::options::Options;
use crate::channel::pool::Pool;
use crate::error::Error;
use crate::lane::Lane;
use crate::link::packet::Packet;
use crate::link::{Amount, Number, UnderWay, Until};
use crate::ring::{Ended, Header, Kind, Memory, Producer, Try};
use crate::shm::RingMemory;
use crate::wake::want::Progress;

/// A lane in which fewer messages than this were sent was a short stay of the other end.
const SHORT_STAY: u64 = 1 << 15;

/// After so many short stays in a row the other end counts as one that moves all the time.
const RESTLESS: u8 = 4;

/// An end that moves all the time has settled in a lane once it has received so many times the cells of the ring there.
const SETTLED: u64 = 64;

/// The sending direction of an end.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) producer: Producer<RingMemory>,
    pub(super) lane: Arc<Lane>,
    /// Of the ring; each larger one is the next.
    pub(super) generation: u16,
    /// What is staged has descriptors or memory that were sent for it, so that it cannot go to another lane as it is.
    pub(super) attached: bool,
    /// What is under way has more than records that belongs to the present lane: a block of its pool, ends made ready for
    /// its peer.
    pub(super) pinned: bool,
    /// The other end has moved, and what was staged was forgotten: it is to be staged anew.
    pub(super) moved: bool,
    /// Lanes in a row, up to the present one, that were short stays of the other end.
    short_stays: u8,
    /// Whether nothing more can be sent, or nothing in this lane.
    pub(super) over: bool,
    /// Messages staged or committed in this lane.
    pub(super) sequence: u64,
    /// Messages staged and not committed, and bytes in them.
    pub(super) uncommitted: (u32, u32),
    /// Messages that the consumer has taken, as far as we accepted it.
    pub(super) taken: u64,
    /// What the peer had done, by what it gave and sent, when that was last looked at.
    pub(super) sign: u64,
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
    /// Why this end is not yet where it told the other one that it goes on.
    delayed: Option<Error>,
    /// Cells of earlier rings, of this lane and of others, whose messages the other end had not received when this end went
    /// on in the present ring. The other end receives those messages first.
    behind: u64,
    /// Which try to send a message this is, of those for which packets were sent.
    attempt: Try,
    /// The number of the last message for which one was.
    sent_for: Option<u64>,
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
            rare: None,
            over: false,
        }
    }

    /// Goes on at the beginning of a lane's ring. What was staged is forgotten.
    pub(super) fn enter(&mut self, lane: Arc<Lane>, options: &Options) {
        let ended = self.ended();
        let behind = self.unreceived();
        let short_stays = if self.sequence < SHORT_STAY { self.short_stays.saturating_add(1) } else { 0 };
        *self = Self::new(lane, options);
        self.short_stays = short_stays;
        self.set_behind(behind);
        if let Some(error) = ended {
            self.end_with(error);
        }
    }

    /// What is under way here is counted until the other end has taken it, if it can be; nobody else will look.
    fn leave_under_way(&mut self) {
        let Some(under_way) = self.rare.take().and_then(|rare| rare.under_way) else { return };
        let link = self.lane.link();
        // Within a process nothing of it is a peer's to refuse. And who goes elsewhere takes all that there is along.
        let is_over = link.is_elsewhere() || link.is_local() || link.is_down() || self.has_frozen();
        if is_over || !self.lane.linger(&under_way) {
            link.forget(&under_way);
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

    /// Why this end is not yet where it told the other one, by a mark in this ring, that it goes on. It stays in this process.
    pub(super) fn delayed(&self) -> Option<Error> {
        self.rare.as_ref()?.delayed
    }

    /// Nothing may be staged until this end is there: it would be written over the mark.
    pub(super) fn set_delayed(&mut self, error: Error) {
        self.over = true;
        self.rare().delayed = Some(error);
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

    /// Whether the ring may become larger, up to `most` cells, because it is full. An end that moves takes along what it
    /// has not received, and the fresh ring lets this end send as much once more; so this ring grows only if less than a
    /// largest ring was left behind, or the other end has received that and begun with this ring.
    pub(super) fn may_grow(&self, most: usize) -> bool {
        let cells = self.producer.memory().cells();
        cells < most && (self.behind() < most as u64 || self.received() > self.producer.base())
    }

    /// Whether a full ring is rather waited for than made larger. An end that moves all the time takes along each time what it has
    /// not received: a small ring keeps that little.
    pub(super) fn rather_waits_than_grows(&self) -> bool {
        self.short_stays >= RESTLESS && self.received() < SETTLED * self.producer.memory().cells() as u64
    }

    /// How far the other end has come, by the credit that it gave. It may claim more than was sent.
    fn received(&self) -> u64 {
        self.producer.memory().credit().load(Ordering::Acquire)
    }

    /// Cells of the present ring and of earlier ones whose messages the other end has not received. Who only takes messages
    /// out of a ring to take them along gives no credit for the last ring.
    fn unreceived(&self) -> u64 {
        let (received, base) = (self.received(), self.producer.base());
        let before = if received > base { 0 } else { self.behind() };
        before.saturating_add(self.producer.position().saturating_sub(received.max(base)))
    }

    fn behind(&self) -> u64 {
        self.rare.as_ref().map_or(0, |rare| rare.behind)
    }

    fn set_behind(&mut self, cells: u64) {
        if cells != self.behind() {
            self.rare().behind = cells;
        }
    }

    /// Goes on in a larger ring of the same lane, to which the present one has led the other end.
    pub(super) fn go_on_in(&mut self, larger: RingMemory) {
        self.set_behind(self.unreceived());
        self.generation += 1;
        self.producer.go_on_in(larger);
        self.attached = false;
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
        let sequence = self.sequence;
        let Some(rare) = &mut self.rare else { return };
        if rare.sent_for.take_if(|number| *number == sequence).is_none() || !self.lane.link().knows_tries() {
            return;
        }
        rare.attempt = rare.attempt.next();
        // What was sent for it is let go of now: there may be no message for long that shows that it was for nothing. A message
        // of the same number begins with its first handles, of which these are none.
        let message = Number::new(sequence, rare.attempt);
        let packet = Packet::Handles { token: self.lane.token_out(), message, part: 0, count: 0 };
        self.lane.link().send_sooner_or_later(packet);
    }

    /// A packet was sent for what is staged.
    pub(super) fn note_sent(&mut self) {
        let sequence = self.sequence;
        self.attached = true;
        self.rare().sent_for = Some(sequence);
    }

    pub(super) fn attempt(&self) -> Try {
        self.rare.as_ref().map_or(Try::FIRST, |rare| rare.attempt)
    }

    /// The next message, as what is sent for it over the socket says to which it belongs.
    pub(super) fn number(&self) -> Number {
        Number::new(self.sequence, self.attempt())
    }

    /// The header of a record of that message.
    pub(super) fn header(&self, kind: Kind, len: usize, handles: usize) -> Header {
        Header::new(kind, len, handles).with_try(self.attempt())
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

    /// What the reader has taken, as far as a try of this end has looked.
    pub(super) fn progress(&self) -> Progress {
        let blocks = self.rare.as_ref().map_or(0, |rare| rare.pool.returned());
        Progress { generation: self.generation, cells: self.producer.known_credit(), messages: self.taken, blocks }
    }

    /// Whether the reader has taken something, or given a block back, since a try looked that saw this.
    pub(super) fn has_moved_on_from(&self, seen: &Progress) -> bool {
        let memory = self.producer.memory();
        let taken = Progress {
            cells: memory.credit().load(Ordering::Acquire),
            messages: memory.taken().load(Ordering::Acquire),
            ..self.progress()
        };
        taken != *seen || self.pool_has_news()
    }

    fn under_way(&self) -> Option<&UnderWay> {
        self.rare.as_ref()?.under_way.as_deref()
    }

    /// How many descriptors so many things of a message are under way: none within a process.
    pub(super) fn descriptors(&self, count: usize) -> usize {
        if self.lane.link().is_local() { 0 } else { count }
    }

    /// Whether this end has nothing under way, and its reader takes what it is sent: then there is room kept for it.
    pub(super) fn has_reserve(&self) -> bool {
        self.in_flight().is_nothing() && self.producer.memory().taken().load(Ordering::Acquire) > 0
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

    /// Counts so many descriptors that came with what was committed last: the ring that was gone on in just now, say.
    pub(super) fn note_in_flight_up_to_here(&mut self, memories: usize) {
        let amount = Amount { memories, ..Amount::default() };
        if !amount.is_nothing() {
            self.count_under_way(Until::Credit(self.producer.position()), amount);
        }
    }

    fn count_under_way(&mut self, until: Until, amount: Amount) {
        let lane = self.lane.clone();
        let under_way = self.rare().under_way.get_or_insert_with(|| UnderWay::new(lane.out()));
        lane.link().count_under_way(under_way, until, amount);
    }

    /// Whether the reader has taken something since it was last looked at, or the ring has ended.
    pub(super) fn has_news(&self) -> bool {
        self.producer.has_news()
            || self.producer.memory().taken().load(Ordering::Acquire) != self.taken
            || self.producer.ended().is_some()
    }

    /// Looks at how much the reader says it has taken: cells, and messages.
    pub(super) fn refresh(&mut self) -> Result<(), Error> {
        if self.producer.refresh_credit().is_err() {
            return Err(self.end_with(Error::BadPeer("it claims to have taken what was never sent")));
        }
        self.refresh_taken()
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
        self.leave_under_way();
    }
}

/// Tells the consumer after how many messages credit is needed.
fn set_quota(producer: &Producer<RingMemory>, options: &Options) {
    let quota = if options.queue_messages == u64::MAX { 0 } else { options.queue_messages };
    producer.memory().quota().store(quota, Ordering::Relaxed);
}
