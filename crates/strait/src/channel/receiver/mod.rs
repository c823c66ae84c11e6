//! The receiving direction of an end: how far it has come, and what it keeps.

pub(super) mod body;
pub(super) mod front;
pub(super) mod kept;
pub(super) mod queued;
mod recv;

pub use queued::Status;
pub use recv::PutBackError;

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::End;
use crate::channel::origin::Origin;
use crate::error::Error;
use crate::lane::Lane;
use crate::link::{MemoryKey, Number};
use crate::quota::{Amounts, Charge, Resource};
use crate::ring::{CELL, Consumer, Kind, Memory, PACK_WORD, Record};
use crate::shm::{Mapping, RingMemory};
use body::{Body, put};
use kept::Kept;
use queued::Ahead;

/// The receiving direction of an end.
#[derive(Debug)]
pub(super) struct Rx {
    /// Whether the next message is the one at the front of the ring: the lane is open, it is known whose the other end is,
    /// nothing came before, and the channel has not ended.
    pub(super) open: bool,
    /// Of the messages in the ring.
    pub(super) origin: Origin,
    pub(super) consumer: Option<Consumer<RingMemory>>,
    pub(super) lane: Arc<Lane>,
    /// Of the ring; each larger one is the next.
    pub(super) generation: u32,
    /// Whether nothing more can be received.
    pub(super) over: bool,
    /// What few ends ever need.
    pub(super) rare: Option<Box<Rare>>,
}

/// What few ends ever need to receive.
#[derive(Debug, Default)]
pub(super) struct Rare {
    /// The peer's pool, by number.
    pub(super) blocks: Vec<Option<Arc<Mapping>>>,
    /// Memory that the message at the front brought; kept here should a call fail before it has taken the message.
    pub(super) fetched: Option<(MemoryKey, Arc<Mapping>)>,
    /// Messages that were taken out of the rings of earlier lanes. They come first.
    kept: VecDeque<Kept>,
    /// Tables in a row, without a message between.
    pub(super) tables: usize,
    /// What the handles of the next message are, if not all are descriptors.
    pub(super) table: Option<Vec<u8>>,
    /// Why nothing more can be received.
    ended: Option<Error>,
    /// How far was looked at what is queued, if anybody asked.
    ahead: Option<Ahead>,
    /// Whether what is done for each message is more than the shortest way does.
    slowly: bool,
    /// Larger rings that the records in the present one lead to, by generation. They were looked at and not come to yet.
    pub(super) rings: Vec<(u64, Arc<Mapping>)>,
    /// What was charged beforehand for messages that are taken out of the ring.
    prepaid: Option<Charge>,
    /// Where this end goes on, if it has told the other end so and has not taken out yet what that one had sent before.
    onward: Option<Onward>,
}

/// An end that moves has told the other one where it goes on.
#[derive(Clone, Debug)]
pub(super) struct Onward {
    /// Where it goes on.
    pub(super) fresh: Arc<Lane>,
    /// The lane in whose ring it said so, if somebody is there to be told.
    pub(super) marked: Option<Arc<Lane>>,
    /// Something failed that passes: the end stays in this process, and goes on there as soon as it can.
    pub(super) stays: bool,
}

impl Onward {
    /// Whether the other end was told in this lane.
    pub(super) fn was_marked_in(&self, lane: &Arc<Lane>) -> bool {
        self.marked.as_ref().is_some_and(|marked| Arc::ptr_eq(marked, lane))
    }
}

impl Rx {
    pub(super) fn new(lane: Arc<Lane>) -> Self {
        let mut rx = Self {
            open: false,
            origin: Origin::NOWHERE,
            consumer: None,
            lane: lane.clone(),
            generation: 0,
            over: false,
            rare: None,
        };
        rx.enter(lane);
        rx
    }

    /// Goes on at the beginning of a lane's ring, if the lane is open.
    pub(super) fn enter(&mut self, lane: Arc<Lane>) {
        self.consumer = lane.inward().map(|ring| {
            let quota = message_quota(&ring);
            Consumer::new(ring, quota)
        });
        self.lane = lane;
        self.generation = 0;
        if let Some(rare) = &mut self.rare {
            rare.blocks.clear();
            rare.rings.clear();
            rare.fetched = None;
            rare.table = None;
        }
        self.reopen();
    }

    /// Finds out anew where the next message is.
    pub(super) fn reopen(&mut self) {
        let slowly = self.rare.as_ref().is_some_and(|rare| rare.slowly || rare.onward.is_some());
        self.open = self.is_at_ring() && !slowly && !self.lane.is_pending();
        self.origin = Origin::of(self.lane.link());
    }

    /// Whether the next record is in the ring.
    pub(super) fn is_at_ring(&self) -> bool {
        let kept = self.rare.as_ref().is_some_and(|rare| !rare.kept.is_empty());
        self.consumer.is_some() && !self.over && !kept
    }

    /// Of the message at the front of the ring, once that was looked at.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    pub(super) fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    #[inline]
    pub(super) fn consumer(&mut self) -> &mut Consumer<RingMemory> {
        self.consumer.as_mut().expect("an end that found a message is open")
    }

    /// The next message, as what was sent for it over the socket says to which it belongs; this record is of it.
    pub(super) fn number(&mut self, record: Record) -> Number {
        Number::new(self.consumer().taken(), record.header.attempt())
    }

    /// Messages that were taken out of earlier lanes' rings.
    pub(super) fn kept(&mut self) -> Option<&mut VecDeque<Kept>> {
        self.rare.as_mut().map(|rare| &mut rare.kept).filter(|kept| !kept.is_empty())
    }

    /// Keeps a message for later.
    pub(super) fn keep_message(&mut self, kept: Kept) {
        self.rare().kept.push_back(kept);
        self.open = false;
    }

    /// Keeps a message as the next one.
    pub(super) fn put_back(&mut self, kept: Kept) {
        self.rare().kept.push_front(kept);
        // It will be counted once more when it is received.
        self.set_ahead(None);
        self.open = false;
    }

    /// Takes all that is kept.
    pub(super) fn take_all_kept(&mut self) -> VecDeque<Kept> {
        let kept = self.rare.as_mut().map(|rare| std::mem::take(&mut rare.kept)).unwrap_or_default();
        self.reopen();
        kept
    }

    /// The ends in messages that are kept.
    pub(super) fn ends_in_kept(&mut self) -> Vec<Arc<End>> {
        let handles = self.kept().into_iter().flatten().flat_map(|kept| kept.arrived.handles());
        handles.filter_map(|handle| Some(handle.channel()?.end.clone())).collect()
    }

    /// Whether the other side has opened the lane.
    pub(super) fn is_open(&self) -> bool {
        self.consumer.is_some()
    }

    /// The ring, if it is open.
    pub(super) fn consumer_memory(&self) -> Option<RingMemory> {
        self.consumer.as_ref().map(|consumer| consumer.memory().clone())
    }

    /// Which ring of its lane it is.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// The consumer, unless it is not there yet or nothing more comes.
    pub(super) fn consumer_of_open(&self) -> Option<&Consumer<RingMemory>> {
        self.consumer.as_ref().filter(|_| !self.over)
    }

    /// How far was looked at what is queued.
    pub(super) fn ahead(&self) -> Option<&Ahead> {
        self.rare.as_ref()?.ahead.as_ref()
    }

    pub(super) fn set_ahead(&mut self, ahead: Option<Ahead>) {
        self.rare().ahead = ahead;
    }

    /// From now on no message is received by the shortest way.
    pub(super) fn receive_slowly(&mut self) {
        self.rare().slowly = true;
        self.reopen();
    }

    /// Messages that are kept, and bytes in them.
    pub(super) fn amount_kept(&self) -> (u64, u64) {
        let kept = self.rare.iter().flat_map(|rare| &rare.kept);
        kept.fold((0, 0), |(messages, bytes), kept| (messages + 1, bytes + kept.body.len() as u64))
    }

    /// Cells of the ring.
    pub(super) fn cells(&self) -> usize {
        self.consumer.as_ref().map_or(0, |consumer| consumer.memory().cells())
    }

    /// Ends the ring, so that its producer goes on in the lane of which `fresh` is the end across from it. False if
    /// something was published just before.
    pub(super) fn freeze(&mut self, fresh: &Lane) -> bool {
        let name = self.lane.name_for_other(fresh);
        let consumer = self.consumer();
        consumer.memory().set_forward(name.to_words());
        let ended = consumer.end(Kind::Frozen);
        if ended {
            self.lane.set_read();
        }
        ended
    }

    /// Where this end goes on, if that is still to come.
    pub(super) fn onward(&self) -> Option<&Onward> {
        self.rare.as_ref()?.onward.as_ref()
    }

    /// Notes where this end goes on once the present ring is empty, or that it is there.
    pub(super) fn set_onward(&mut self, onward: Option<Onward>) {
        self.rare().onward = onward;
        self.reopen();
    }

    /// Charges now for all that the ring can still bring while no credit is given, as far as it is in the ring itself, and
    /// while the ring does not grow.
    pub(super) fn prepay(&mut self) -> Result<(), Error> {
        let bytes = self.cells() * CELL;
        // The shortest messages are those of a pack, each after its length.
        let amounts = Amounts::of(Resource::QueuedBytes, bytes).and(Resource::QueuedMessages, bytes / PACK_WORD);
        let charge = self.lane.listen().ledger().charge(amounts)?;
        self.rare().prepaid = charge;
        Ok(())
    }

    /// What is left of it is not needed.
    pub(super) fn drop_prepaid(&mut self) {
        self.rare().prepaid = None;
    }

    /// Charges for a message that is taken out of the ring.
    pub(super) fn charge(&mut self, amounts: Amounts) -> Result<Option<Charge>, Error> {
        match self.rare.as_mut().and_then(|rare| rare.prepaid.as_mut()) {
            Some(prepaid) => Ok(Some(prepaid.split(amounts))),
            None => self.lane.listen().ledger().charge(amounts),
        }
    }

    /// The memory of a larger ring that was looked at.
    pub(super) fn ring_ahead(&self, generation: u64) -> Option<Arc<Mapping>> {
        let rings = &self.rare.as_ref()?.rings;
        rings.iter().find(|(of, _)| *of == generation).map(|(_, mapping)| mapping.clone())
    }

    /// Lets go of what came for this lane and will not be asked for.
    pub(super) fn leave(&mut self) {
        let link = self.lane.listen().clone();
        if let Some(rare) = &mut self.rare {
            rare.fetched = None;
            rare.blocks.clear();
        }
        // Within a process a sender that is refused takes back what it left there.
        if !link.is_local() {
            link.discard_stashed(self.lane.token_in());
        }
    }

    pub(super) fn take_kept(&mut self) -> Option<Kept> {
        let kept = self.kept()?.pop_front();
        self.reopen();
        kept
    }

    /// Whether nothing more can be received but what is kept; and why.
    pub(super) fn ended(&self) -> Option<Error> {
        self.rare.as_ref().and_then(|rare| rare.ended)
    }

    /// The message at the front, if it is a plain one.
    #[inline]
    pub(super) fn plain(&mut self) -> Option<(&mut Consumer<RingMemory>, Record)> {
        match self {
            Self { open: true, consumer: Some(consumer), .. } => {
                let record = consumer.plain()?;
                Some((consumer, record))
            }
            _ => None,
        }
    }

    /// Whether the next message is one of the ring, and is not there: as far as two loads tell.
    pub(super) fn is_plainly_empty(&self) -> bool {
        self.open && self.consumer.as_ref().is_some_and(Consumer::is_empty)
    }

    pub(super) fn end_with(&mut self, error: Error) -> Error {
        self.over = true;
        self.lane.tell_of(self.ended().is_none(), error);
        let error = *self.rare().ended.get_or_insert(error);
        self.reopen();
        error
    }

    /// Where a record's payload is.
    pub(super) fn in_place(&self, record: Record) -> *const u8 {
        self.consumer.as_ref().expect("an end that found a message is open").in_place(record)
    }

    /// Copies out of a message.
    pub(super) fn copy<'a>(&mut self, body: &Body, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        match body {
            Body::Ring(record) => self.consumer().read(*record, offset, out),
            Body::Block { mapping, record, .. } => mapping.copy_out(record.at() + offset, out),
            Body::Sealed { mapping, .. } => mapping.copy_out(offset, out),
            Body::Own(bytes) => put(&bytes[offset..offset + out.len()], out),
        }
    }
}

/// After how many messages the producer of a ring needs credit.
pub(super) fn message_quota(ring: &RingMemory) -> u64 {
    match ring.quota().load(Ordering::Relaxed) {
        0 => u64::MAX,
        quota => (quota / 4).max(1),
    }
}
