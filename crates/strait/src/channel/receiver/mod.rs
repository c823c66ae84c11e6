//! The receiving direction of an end: position in the ring, and backlog.

// First, so that the page of `Channel` has the receiving calls before the other calls of this folder.
mod recv;

pub(super) mod backlog;
mod conditions;
pub(super) mod next;
pub(super) mod payload;
pub(super) mod queued;

pub use conditions::Conditions;
pub use queued::Status;
pub(in crate::channel) use recv::Taken;
pub use recv::{MessageInfo, PutBackError};

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::End;
use super::transfer::close::LONGEST_AT_ONCE;
use crate::channel::origin::Origin;
use crate::error::Error;
use crate::lane::Lane;
use crate::link::MemoryKey;
use crate::quota::{Amounts, Charge, Resource};
use crate::ring::{CELL, Consumer, Memory, PACK_WORD, Popped, Record, RecordKind};
use crate::shm::{Mapping, RingMemory};
use backlog::BacklogMessage;
use payload::{Payload, put};
use queued::Lookahead;

/// The receiving direction of an end: the consumer of its ring with the surrounding state. The end's receiving lock
/// guards it.
#[derive(Debug)]
pub(super) struct Rx {
    /// Whether the next message comes straight from the ring, on the fast path. If so, the lane is open, the other
    /// end is not in transit, there is no backlog and no handle table, and the channel has not ended.
    pub(super) open: bool,
    /// The origin of the messages in the ring: the link over which they are received.
    pub(super) origin: Origin,
    pub(super) consumer: Option<Consumer<RingMemory>>,
    pub(super) lane: Arc<Lane>,
    /// The generation of the present ring within its lane: 0 for the first ring, and one more for each larger ring.
    pub(super) generation: u32,
    /// Whether nothing more can be received from the ring, because the receiving direction has ended. The backlog may
    /// still have messages.
    pub(super) over: bool,
    /// Whether the receiving direction has ended with [`Error::PeerClosed`], while there was no cold state. So closing
    /// an end allocates nothing.
    closed: bool,
    /// The cold state of the receiving direction, which few ends ever need; `None` until it is first needed.
    pub(super) cold: Option<Box<RxCold>>,
}

/// The cold state of the receiving direction, which few ends ever need.
#[derive(Debug, Default)]
pub(super) struct RxCold {
    /// The mapped blocks of the peer's pool; the block with id *n* is at index *n*.
    pub(super) blocks: Vec<Option<Arc<Mapping>>>,
    /// Memory from the socket for the next record, with its key. The memory is stored here until the record is taken
    /// off the ring, in case a call fails before.
    pub(super) fetched: Option<(MemoryKey, Arc<Mapping>)>,
    /// The backlog: unreceived messages taken out of a ring earlier. Messages of the backlog are received before those
    /// in the ring.
    backlog: VecDeque<BacklogMessage>,
    /// Number of handle tables received without a message between them; a table in separate memory counts as several.
    pub(super) tables: usize,
    /// The handle table in the last record before the next message, if that record was a table.
    pub(super) table: Option<HandleTable>,
    /// The work done with handle tables since the last [`Rx::take_table_work`], counted in records.
    table_work: usize,
    /// Whether all handle tables are read while this end is being closed, however long: in the deferred close.
    reads_long_tables: bool,
    /// Whether a handle table was not read since the last [`Rx::was_table_too_long`], because of its length.
    table_too_long: bool,
    /// The error with which the receiving direction has ended; `None` before the end, and if the field `closed` of
    /// [`Rx`] is set.
    ended: Option<Error>,
    /// The survey (count) of queued messages, with its position; `None` before a call asked for the status.
    ahead: Option<Lookahead>,
    /// Whether every receive from this end takes the slow path. Set for a wait set that has to be notified of each
    /// received message.
    slowly: bool,
    /// The larger rings, by generation, to which records in the present ring lead. The check before a move has mapped
    /// these rings; this end does not read from them yet.
    pub(super) rings: Vec<(u64, Arc<Mapping>)>,
    /// The charge, made in advance, for messages that a fuse will take out of the ring.
    prepaid: Option<Charge>,
    /// The pending move of this end, if any. Set from the time when a mark leads the other end to the fresh lane until
    /// this end has taken out all earlier messages of the other end.
    pending_move: Option<PendingMove>,
}

/// A received handle table, or a prepended backlog.
#[derive(Debug)]
pub(super) enum HandleTable {
    /// A copy of a table that was in its record: at most `LONGEST_INLINE` bytes.
    Copied(Vec<u8>),
    /// A table in sealed memory, which no process can change. The mapping holds the charge against the peer.
    Sealed(Arc<Mapping>),
}

impl HandleTable {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Copied(bytes) => bytes,
            Self::Sealed(mapping) => mapping.immutable_bytes(mapping.len()),
        }
    }
}

/// An unfinished move, known to the other end by a mark: the moving end still takes messages out of its old ring.
#[derive(Clone, Debug)]
pub(super) struct PendingMove {
    /// The lane in which the moving end will go on.
    pub(super) fresh: Arc<Lane>,
    /// The lane with the mark for `fresh` at the end of its ring; `None` if the other end was closed, so that there was
    /// no end to read a mark.
    pub(super) marked: Option<Arc<Lane>>,
    /// Whether the move failed with a temporary error. The end then stays in this process, and goes on in the fresh
    /// lane as soon as it can.
    pub(super) stays: bool,
}

impl PendingMove {
    /// Returns whether this end has put the mark of this move into `lane`, its present receiving lane. (The mark leads
    /// the other end to the fresh lane.) If so, a mark from the other end means that both ends move at once.
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
            closed: false,
            cold: None,
        };
        rx.enter(lane);
        rx
    }

    /// Reads the sender's limit on messages in flight, which may have been published after the making of this end's
    /// consumer.
    pub(in crate::channel) fn learn_quota(&mut self) {
        if let Some(consumer) = &mut self.consumer {
            let quota = message_quota(consumer.memory());
            consumer.set_message_quota(quota);
        }
    }

    /// Goes on receiving at the beginning of the ring of `lane`, if that lane is open. Drops the mapped blocks, the
    /// mapped larger rings, the fetched memory and the handle table of the former lane.
    pub(super) fn enter(&mut self, lane: Arc<Lane>) {
        self.consumer = lane.inward().map(|ring| {
            let quota = message_quota(&ring);
            Consumer::new(ring, quota)
        });
        self.lane = lane;
        self.generation = 0;
        if let Some(cold) = &mut self.cold {
            cold.blocks.clear();
            cold.rings.clear();
            cold.fetched = None;
            cold.table = None;
        }
        self.reopen();
    }

    /// Computes anew whether the next message can be taken straight from the ring, on the fast path (the field `open`).
    pub(super) fn reopen(&mut self) {
        let is_slow = |cold: &RxCold| cold.slowly || cold.pending_move.is_some() || cold.table.is_some();
        let slowly = self.cold.as_deref().is_some_and(is_slow);
        self.open = self.is_at_ring() && !slowly && !self.lane.is_pending();
        self.origin = Origin::of(self.lane.link());
    }

    /// Returns whether the next record is in the ring: the lane is open, the receiving direction has not ended, and
    /// there is no backlog.
    pub(super) fn is_at_ring(&self) -> bool {
        let backlog = self.cold.as_ref().is_some_and(|cold| !cold.backlog.is_empty());
        self.consumer.is_some() && !self.over && !backlog
    }

    /// Stores the handle table that was taken off the ring, for the next message.
    pub(super) fn set_table(&mut self, table: HandleTable) {
        self.cold().table = Some(table);
        self.open = false;
    }

    /// Drops the handle table of the next message, if there is one: the next message has no table, or was taken.
    pub(super) fn drop_table(&mut self) {
        if self.cold.as_mut().is_some_and(|cold| cold.table.take().is_some()) {
            self.reopen();
        }
    }

    /// Counts work with handle tables, in records, for [`Rx::take_table_work`].
    pub(super) fn count_table_work(&mut self, records: usize) {
        let cold = self.cold();
        cold.table_work = cold.table_work.saturating_add(records);
    }

    /// Lets the calls that close this end read handle tables of any length.
    pub(super) fn read_long_tables(&mut self) {
        self.cold().reads_long_tables = true;
    }

    /// Checks that a handle table of `len` bytes is to be read.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if this end is being closed, and the table is too long for the call that drops the end.
    fn check_table(&mut self, len: usize) -> Result<(), Error> {
        if len > LONGEST_AT_ONCE && self.lane.is_closing() && !self.cold().reads_long_tables {
            self.cold().table_too_long = true;
            return Err(Error::WouldBlock);
        }
        Ok(())
    }

    /// Returns whether a call has found a handle table that is too long to be read, since the last call of this
    /// function.
    pub(super) fn was_table_too_long(&mut self) -> bool {
        self.cold.as_mut().is_some_and(|cold| std::mem::take(&mut cold.table_too_long))
    }

    /// Returns the work done with handle tables since the last call, counted in records.
    pub(super) fn take_table_work(&mut self) -> usize {
        self.cold.as_mut().map_or(0, |cold| std::mem::take(&mut cold.table_work))
    }

    /// Returns the origin of the messages in the ring: the link over which they are received.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    pub(super) fn cold(&mut self) -> &mut RxCold {
        self.cold.get_or_insert_default()
    }

    #[inline]
    pub(super) fn consumer(&mut self) -> &mut Consumer<RingMemory> {
        self.consumer.as_mut().expect("an end that found a message is open")
    }

    /// Returns the number of the next message. Packets with attachments for the message carry this number.
    pub(super) fn number(&mut self) -> u64 {
        self.consumer().taken()
    }

    /// Returns the backlog; `None` if the backlog is empty.
    pub(super) fn backlog(&mut self) -> Option<&mut VecDeque<BacklogMessage>> {
        self.cold.as_mut().map(|cold| &mut cold.backlog).filter(|all| !all.is_empty())
    }

    /// Appends a message to the backlog.
    pub(super) fn push_backlog(&mut self, unread: BacklogMessage) {
        self.cold().backlog.push_back(unread);
        self.open = false;
    }

    /// Puts a message at the front of the backlog, to be received next.
    pub(super) fn put_back(&mut self, unread: BacklogMessage) {
        self.cold().backlog.push_front(unread);
        // The message will be counted once more when it is received, so the survey starts anew.
        self.set_ahead(None);
        self.open = false;
    }

    /// Takes all messages out of the backlog, in order. The backlog is then empty.
    pub(super) fn take_backlog(&mut self) -> VecDeque<BacklogMessage> {
        let backlog = self.cold.as_mut().map(|cold| std::mem::take(&mut cold.backlog)).unwrap_or_default();
        self.reopen();
        backlog
    }

    /// Returns the channel ends among the handles in the backlog, including the ends that belong to data pipes. The
    /// ends stay in the backlog.
    pub(super) fn ends_in_backlog(&mut self) -> Vec<Arc<End>> {
        let handles = self.backlog().into_iter().flatten().flat_map(|all| all.arrived.handles());
        handles.filter_map(|handle| Some(handle.channel()?.end.clone())).collect()
    }

    /// Returns whether the lane is open for receiving: the peer has opened its side, so this end knows the ring.
    pub(super) fn is_open(&self) -> bool {
        self.consumer.is_some()
    }

    /// Returns the memory of this end's incoming ring; `None` if the lane is not open.
    pub(super) fn consumer_memory(&self) -> Option<RingMemory> {
        self.consumer.as_ref().map(|consumer| consumer.memory().clone())
    }

    /// Returns the generation of the present ring: 0 for the first ring of the lane, and one more for each larger
    /// ring.
    pub(super) fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the consumer of this end's incoming ring; `None` if the lane is not open or the receiving direction has
    /// ended.
    pub(super) fn consumer_of_open(&self) -> Option<&Consumer<RingMemory>> {
        self.consumer.as_ref().filter(|_| !self.over)
    }

    /// Returns the survey (count) of queued messages with its position; `None` before a call asked for the status.
    pub(super) fn ahead(&self) -> Option<&Lookahead> {
        self.cold.as_ref()?.ahead.as_ref()
    }

    pub(super) fn set_ahead(&mut self, ahead: Option<Lookahead>) {
        if ahead.is_some() || self.cold.is_some() {
            self.cold().ahead = ahead;
        }
    }

    /// Makes every later receive from this end take the slow path; a wait set is then notified of each received
    /// message.
    pub(super) fn receive_slowly(&mut self) {
        self.cold().slowly = true;
        self.reopen();
    }

    /// Returns the number of messages in the backlog, and the number of bytes in their payloads.
    pub(super) fn backlog_amount(&self) -> (u64, u64) {
        let backlog = self.cold.iter().flat_map(|cold| &cold.backlog);
        backlog.fold((0, 0), |(messages, bytes), unread| (messages + 1, bytes + unread.payload.len() as u64))
    }

    /// Returns the number of cells (of 64 bytes) of this end's incoming ring; 0 if the lane is not open.
    pub(super) fn cells(&self) -> usize {
        self.consumer.as_ref().map_or(0, |consumer| consumer.memory().cells())
    }

    /// Freezes the ring: ends the ring from the reading side; the producer then goes on in another lane. `fresh` is
    /// this end's side of the other lane. Returns `false`, with the ring unchanged, if the producer has published
    /// something just before.
    pub(super) fn freeze(&mut self, fresh: &Lane) -> bool {
        let name = self.lane.name_for_other(fresh);
        let consumer = self.consumer();
        consumer.memory().set_forward(name.to_words());
        let ended = consumer.end(RecordKind::Frozen);
        if ended {
            self.lane.set_read();
        }
        ended
    }

    /// Returns the pending move of this end; `None` if the end is not being moved, or has reached its fresh lane.
    pub(super) fn pending_move(&self) -> Option<&PendingMove> {
        self.cold.as_ref()?.pending_move.as_ref()
    }

    /// Sets or clears the pending move of this end. `None` means that the end has reached its fresh lane or gives the
    /// lane up.
    pub(super) fn set_pending_move(&mut self, pending_move: Option<PendingMove>) {
        self.cold().pending_move = pending_move;
        self.reopen();
    }

    /// Charges the peer's account in advance for as many messages and bytes as the ring can hold. The charge covers all
    /// messages that can still arrive in the ring while the ring neither grows nor gets credit. Payloads out of line
    /// are not included. Fails with [`Error::LimitReached`], and charges nothing, if a limit forbids the charge.
    pub(super) fn prepay(&mut self) -> Result<(), Error> {
        let bytes = self.cells() * CELL;
        // The shortest messages are those of a packed record, each after its length word.
        let amounts = Amounts::of(Resource::QueuedBytes, bytes).and(Resource::QueuedMessages, bytes / PACK_WORD);
        let charge = self.lane.current_link().ledger().charge(amounts)?;
        self.cold().prepaid = charge;
        Ok(())
    }

    /// Releases the rest of what [`Rx::prepay`] charged in advance for messages in the ring.
    pub(super) fn drop_prepaid(&mut self) {
        self.cold().prepaid = None;
    }

    /// Charges the peer's account with `amounts` for a message that is taken out of the ring into the backlog. Splits
    /// the charge off what was charged in advance, if anything was. Returns the charge; `None` if the link charges
    /// nothing. Fails with [`Error::LimitReached`] if nothing was charged in advance and a limit forbids the charge.
    pub(super) fn charge(&mut self, amounts: Amounts) -> Result<Option<Charge>, Error> {
        match self.cold.as_mut().and_then(|cold| cold.prepaid.as_mut()) {
            Some(prepaid) => Ok(Some(prepaid.split(amounts))),
            None => self.lane.current_link().ledger().charge(amounts),
        }
    }

    /// Returns the memory of the larger ring with the generation `generation`, if the check before a move has mapped
    /// that ring; otherwise `None`.
    pub(super) fn ring_ahead(&self, generation: u64) -> Option<Arc<Mapping>> {
        let rings = &self.cold.as_ref()?.rings;
        rings.iter().find(|(of, _)| *of == generation).map(|(_, mapping)| mapping.clone())
    }

    /// Drops everything received for the present lane, because this end leaves the lane for good: mapped blocks,
    /// fetched memory and, unless the channel is local, the attachments in the inbox of the link.
    pub(super) fn leave(&mut self) {
        let link = self.lane.current_link().clone();
        if let Some(cold) = &mut self.cold {
            cold.fetched = None;
            cold.blocks.clear();
        }
        // Within a process the sender itself removes untaken handles and values.
        if !link.is_local() {
            // The other end keeps the lane until its descriptors were taken. No thread sleeps for room
            // there: the ring has ended.
            if let Some(consumer) = &mut self.consumer {
                consumer.give_taken();
            }
            link.discard_received(self.lane.token_in());
        }
    }

    pub(super) fn pop_backlog(&mut self) -> Option<BacklogMessage> {
        let backlog = self.backlog()?.pop_front();
        self.reopen();
        backlog
    }

    /// Returns the error with which the receiving direction has ended; `None` while it has not ended. After the end,
    /// only messages in the backlog can still be received.
    pub(super) fn ended(&self) -> Option<Error> {
        if self.closed { Some(Error::PeerClosed) } else { self.cold.as_ref().and_then(|cold| cold.ended) }
    }

    /// Returns the consumer and the next record, if the next message is plain: its payload is in the ring, it has no
    /// handles, and the fast path is open. Otherwise `None`.
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

    /// Receives the next message by [`Consumer::pop_one`], if the fast path is open; otherwise returns
    /// [`Popped::Other`].
    #[inline(always)]
    pub(super) fn pop_one<'a>(&mut self, place: impl FnOnce(usize) -> Option<&'a mut [MaybeUninit<u8>]>) -> Popped {
        match self {
            Self { open: true, consumer: Some(consumer), .. } => consumer.pop_one(place),
            _ => Popped::Other,
        }
    }

    /// Returns whether there is certainly no message: the next message has to come through the ring, and the ring is
    /// empty. Costs two loads.
    pub(super) fn is_plainly_empty(&self) -> bool {
        self.open && self.consumer.as_ref().is_some_and(Consumer::is_empty)
    }

    pub(super) fn end_with(&mut self, error: Error) -> Error {
        self.over = true;
        let ended = self.ended();
        self.lane.report_error(ended.is_none(), error);
        match (ended, &self.cold) {
            (Some(_), _) => {}
            (None, None) if error == Error::PeerClosed => self.closed = true,
            (None, _) => self.cold().ended = Some(error),
        }
        self.reopen();
        ended.unwrap_or(error)
    }

    /// Returns a pointer to the payload of a record in the ring, in shared memory that the peer can still change.
    pub(super) fn in_place(&self, record: Record) -> *const u8 {
        self.consumer.as_ref().expect("an end that found a message is open").in_place(record)
    }

    /// Copies bytes of a received message's payload, from byte `offset` of the payload on, to fill `out`. Returns `out`
    /// as initialised bytes.
    pub(super) fn copy<'a>(
        &mut self,
        payload: &Payload,
        offset: usize,
        out: &'a mut [MaybeUninit<u8>],
    ) -> &'a mut [u8] {
        match payload {
            Payload::Ring(record) => self.consumer().read(*record, offset, out),
            Payload::Block { mapping, record, .. } => mapping.copy_out(record.at() + offset, out),
            Payload::Sealed { mapping, .. } => mapping.copy_out(offset, out),
            Payload::Own(bytes) => put(&bytes[offset..offset + out.len()], out),
        }
    }
}

/// Returns the number of messages after which the consumer of a ring gives credit: a quarter of the quota that the
/// producer has published, but at least 1. `u64::MAX` if the producer has published no quota.
fn message_quota(ring: &RingMemory) -> u64 {
    match ring.quota().load(Ordering::Relaxed) {
        0 => u64::MAX,
        quota => (quota / 4).max(1),
    }
}
