//! Receiving.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::kept::{Kept, KeptBody};
use super::queued::Ahead;
use super::{Channel, End, InPlace};
use crate::account::{Amounts, Resource, tell};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::fork;
use crate::handle::Handle;
use crate::lane::{Lane, Name};
use crate::link::MemoryKey;
use crate::lock::Guard;
use crate::message::{Arrived, Message, Received};
use crate::options::MAX_MESSAGE;
use crate::origin::Origin;
use crate::pool::{self, BlockRecord, MAX_BLOCKS, PAYLOAD};
use crate::ring::{Consumer, Front, Kind, Memory, Record};
use crate::shm::{Mapping, RingMemory};
use crate::wait::{self, Waiter};

/// Records dropped at most when an end is closed, with the ends that lie in them, while its peer goes on sending. It gets
/// no credit meanwhile, so one ring and its successors is all it can fill.
pub(super) const CLOSE_LIMIT: usize = 1 << 22;

/// Tables in a row at most.
const MOST_TABLES: usize = 4096;

/// As how many of them one counts that comes as memory.
const LONG_TABLE: usize = 64;

/// As how many records a mark counts there.
const CLOSE_MARK: usize = 4;

/// As how many each thing counts that the kernel has to be asked for or to take back.
const CLOSE_THING: usize = 64;

/// Bytes of the smallest buffer of a message: room for a whole cell.
const SMALLEST_BUFFER: usize = 64;

/// The receiving direction of an end.
#[derive(Debug)]
pub(super) struct Rx {
    /// Whether the next message is the one at the front of the ring: the lane is open, it is known whose the other end is,
    /// nothing came before, and the channel has not ended.
    open: bool,
    /// Of the messages in the ring.
    origin: Origin,
    consumer: Option<Consumer<RingMemory>>,
    pub(super) lane: Arc<Lane>,
    /// Of the ring; each larger one is the next.
    generation: u32,
    /// Whether nothing more can be received.
    over: bool,
    /// What few ends ever need.
    rare: Option<Box<Rare>>,
}

/// What few ends ever need to receive.
#[derive(Debug, Default)]
struct Rare {
    /// The peer's pool, by number.
    blocks: Vec<Option<Arc<Mapping>>>,
    /// Memory that the message at the front brought; kept here should a call fail before it has taken the message.
    fetched: Option<(MemoryKey, Arc<Mapping>)>,
    /// Messages that were taken out of the rings of earlier lanes. They come first.
    kept: VecDeque<Kept>,
    /// Tables in a row, without a message between.
    tables: usize,
    /// What the handles of the next message are, if not all are descriptors.
    table: Option<Vec<u8>>,
    /// Why nothing more can be received.
    ended: Option<Error>,
    /// How far was looked at what is queued, if anybody asked.
    ahead: Option<Ahead>,
    /// Whether what is done for each message is more than the shortest way does.
    slowly: bool,
}

/// Where the bytes of a message are.
#[derive(Debug)]
pub(super) enum Body {
    /// In the ring, as long as the record is at its front.
    Ring(Record),
    /// In a block, until it is given back.
    Block { mapping: Arc<Mapping>, record: BlockRecord, len: usize, lane: Arc<Lane> },
    /// In memory of their own that cannot change.
    Sealed { mapping: Arc<Mapping>, len: usize },
    /// Taken out of its ring when the end moved.
    Own(Vec<u8>),
}

impl Body {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ring(record) => record.header.len(),
            Self::Block { len, .. } | Self::Sealed { len, .. } => *len,
            Self::Own(bytes) => bytes.len(),
        }
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
            rare.fetched = None;
            rare.table = None;
        }
        self.reopen();
    }

    /// Finds out anew where the next message is.
    fn reopen(&mut self) {
        let slowly = self.rare.as_ref().is_some_and(|rare| rare.slowly);
        self.open = self.is_at_ring() && !slowly && !self.lane.is_pending();
        self.origin = Origin::of(self.lane.link());
    }

    /// Whether the next record is in the ring.
    fn is_at_ring(&self) -> bool {
        let kept = self.rare.as_ref().is_some_and(|rare| !rare.kept.is_empty());
        self.consumer.is_some() && !self.over && !kept
    }

    /// Of the message at the front of the ring, once that was looked at.
    pub(super) fn origin(&self) -> Origin {
        self.origin
    }

    fn rare(&mut self) -> &mut Rare {
        self.rare.get_or_insert_default()
    }

    #[inline]
    pub(super) fn consumer(&mut self) -> &mut Consumer<RingMemory> {
        self.consumer.as_mut().expect("an end that found a message is open")
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
    fn put_back(&mut self, kept: Kept) {
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
        let handles = self.kept().into_iter().flatten().flat_map(|kept| &kept.arrived.handles);
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

    /// Ends the ring, so that its producer goes on in the lane of this name. False if something was published just
    /// before.
    pub(super) fn freeze(&mut self, name: Name) -> bool {
        let consumer = self.consumer();
        consumer.memory().set_forward(name.to_words());
        consumer.end(Kind::Frozen)
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

    fn take_kept(&mut self) -> Option<Kept> {
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
    fn plain(&mut self) -> Option<(&mut Consumer<RingMemory>, Record)> {
        match self {
            Self { open: true, consumer: Some(consumer), .. } => {
                let record = consumer.plain()?;
                Some((consumer, record))
            }
            _ => None,
        }
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
            Body::Block { mapping, .. } => mapping.copy_out(PAYLOAD + offset, out),
            Body::Sealed { mapping, .. } => mapping.copy_out(offset, out),
            Body::Own(bytes) => put(&bytes[offset..offset + out.len()], out),
        }
    }
}

/// Copies bytes to places for them.
pub(super) fn put<'a>(bytes: &[u8], out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
    assert_eq!(bytes.len(), out.len());
    for (place, byte) in out.iter_mut().zip(bytes) {
        place.write(*byte);
    }
    // SAFETY: all of it was written just now; the layout is the same.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
}

/// After how many messages the producer of a ring needs credit.
fn message_quota(ring: &RingMemory) -> u64 {
    match ring.quota().load(Ordering::Relaxed) {
        0 => u64::MAX,
        quota => (quota / 4).max(1),
    }
}

impl Channel {
    /// Receives the next message; waits for it as long as it takes.
    ///
    /// # Errors
    /// As [`Channel::recv_to`].
    pub fn recv(&self) -> Result<Message, Error> {
        self.recv_by(Deadline::NEVER)
    }

    /// Receives the next message if it is there now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if it is not; otherwise as [`Channel::recv_to`].
    pub fn try_recv(&self) -> Result<Message, Error> {
        self.recv_by(Deadline::NOW)
    }

    /// Receives the next message; waits for it until the deadline.
    ///
    /// # Errors
    /// As [`Channel::recv_to`].
    pub fn recv_by(&self, deadline: impl Into<Deadline>) -> Result<Message, Error> {
        let mut message = Message::new();
        self.recv_to(&mut message, deadline)?;
        Ok(message)
    }

    /// Receives the next message into `message`, whose old content is dropped and whose memory is used again: in
    /// steady flow nothing is allocated. On an error `message` is empty.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`] once everything that the peer sent has been received;
    /// [`Error::NoDescriptors`] if this process has none free for memory that the peer sent, and
    /// [`Error::LimitReached`] if as much is held for the peer as may be (nothing is lost, call again);
    /// [`Error::NoMemory`]; [`Error::BadPeer`]; [`Error::Forked`]; [`Error::System`].
    #[inline]
    pub fn recv_to(&self, message: &mut Message, deadline: impl Into<Deadline>) -> Result<(), Error> {
        message.clear();
        let deadline = deadline.into();
        self.end.received_or({
            let mut rx = self.end.lock_rx(deadline)?;
            self.end.recv_locked(&mut rx, message, deadline)
        })
    }

    /// Receives the next message into the front of `buffer`.
    ///
    /// # Errors
    /// [`Error::BufferTooSmall`], with the size that is needed, if the message is longer: it stays the next one.
    /// Otherwise as [`Channel::recv_to`].
    #[inline]
    pub fn recv_into(&self, buffer: &mut [u8], deadline: impl Into<Deadline>) -> Result<Received, Error> {
        let deadline = deadline.into();
        self.end.received_or({
            let mut rx = self.end.lock_rx(deadline)?;
            self.end.recv_into_locked(&mut rx, buffer, deadline)
        })
    }

    /// Receives the next message without copying it: it is read where the peer wrote it.
    ///
    /// The peer may still be able to change the bytes, so they are given out as [`InPlace`] says. Nobody else
    /// receives a small message from this end while the view of it is held.
    ///
    /// # Errors
    /// As [`Channel::recv_to`].
    pub fn recv_in_place(&self, deadline: impl Into<Deadline>) -> Result<InPlace<'_>, Error> {
        self.end.received_or(self.end.recv_view(deadline.into()))
    }

    /// Receives as many messages as are there and `slots` takes, at least one; waits for the first until the
    /// deadline. Returns how many. The memory of the slots is used again, as in [`Channel::recv_to`].
    ///
    /// # Errors
    /// As [`Channel::recv_to`], for the first message; an error at a later one is returned by the next call.
    pub fn recv_many(&self, slots: &mut [Message], deadline: impl Into<Deadline>) -> Result<usize, Error> {
        self.end.received_or(self.end.recv_row(slots, deadline.into()))
    }

    /// Puts messages back that were received from this end: they are the next ones again, in this order, before all others.
    /// They travel along if the end is sent. The bytes are not copied, and no limit holds for them. Does not block.
    ///
    /// For who looks at what has come and leaves some of it to others. To have the order right, nobody else receives meanwhile.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// a.send_many(["one", "two", "three"], strait::Deadline::NEVER)?;
    /// let skipped = [b.recv()?, b.recv()?];
    /// assert_eq!(b.recv()?.bytes(), b"three");
    /// b.put_back(skipped)?;
    /// assert_eq!(b.recv()?.bytes(), b"one");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::WouldBlock`] while another thread blocks in receiving, or holds a view of a message; [`Error::Forked`]. The
    /// messages are dropped then.
    pub fn put_back<I>(&self, messages: I) -> Result<(), Error>
    where
        I: IntoIterator<Item = Message>,
        I::IntoIter: DoubleEndedIterator,
    {
        let messages = messages.into_iter();
        let mut rx = self.end.lock_rx(Deadline::NOW)?;
        for message in messages.rev() {
            let Message { bytes, arrived, origin } = message;
            rx.put_back(Kept { body: KeptBody::Bytes(bytes), arrived, charge: None, origin });
        }
        drop(rx);
        self.end.kept_no_more();
        Ok(())
    }
}

/// Errors that pass leave the channel as it is; after others it has ended.
fn passing_or_end(rx: &mut Rx, error: Error) -> Error {
    if error.passes() { error } else { rx.end_with(error) }
}

/// Bytes seen as places to write to.
pub(super) fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the same memory; whoever gets this slice in this crate only writes initialised bytes to it.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

impl End {
    #[inline]
    fn lock_rx(&self, deadline: Deadline) -> Result<Guard<'_, Rx>, Error> {
        fork::check()?;
        self.rx.lock(deadline)
    }

    /// What a call returns that holds no lock any more.
    #[inline]
    fn received_or<T>(&self, result: Result<T, Error>) -> Result<T, Error> {
        if let Err(error) = &result {
            if let Error::LimitReached(_) = error {
                self.counts.rare().limits_reached.add(1);
            }
            tell();
        }
        result
    }

    fn recv_view(&self, deadline: Deadline) -> Result<InPlace<'_>, Error> {
        let mut rx = self.lock_rx(deadline)?;
        if let Some(kept) = rx.take_kept() {
            let parts = kept.into_parts();
            self.count(&parts.0);
            return Ok(InPlace::kept(self, parts));
        }
        let record = self.next_record(&mut rx, deadline)?;
        let body = self.body(&mut rx, record)?;
        let arrived = self.arrived(&mut rx, record)?;
        Ok(InPlace::new(self, rx, record, body, arrived))
    }

    fn recv_row(&self, slots: &mut [Message], deadline: Deadline) -> Result<usize, Error> {
        if slots.is_empty() {
            return Ok(0);
        }
        let mut rx = self.lock_rx(deadline)?;
        let mut received = 0;
        for slot in slots {
            slot.clear();
            if received > 0 && !self.has_more(&mut rx) {
                break;
            }
            match self.recv_locked(&mut rx, slot, deadline) {
                Ok(()) => received += 1,
                Err(error) if received == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(received)
    }

    #[inline]
    fn recv_locked(&self, rx: &mut Guard<'_, Rx>, message: &mut Message, deadline: Deadline) -> Result<(), Error> {
        loop {
            if self.recv_plain(rx, message) {
                return Ok(());
            }
            if let Some(kept) = rx.take_kept() {
                let (body, arrived, origin) = kept.into_parts();
                self.count(&body);
                (message.arrived, message.origin) = (arrived, origin);
                return self.take_body(rx, &body, message);
            }
            match self.front(rx)? {
                Some(record) => return self.recv_any(rx, record, message),
                None => self.wait_for_message(rx, deadline)?,
            }
        }
    }

    /// Whether a message is there.
    fn has_more(&self, rx: &mut Rx) -> bool {
        rx.kept().is_some() || matches!(self.front(rx), Ok(Some(_)))
    }

    /// Receives a plain message, if one is at the front and `message` has memory for it.
    #[inline]
    fn recv_plain(&self, rx: &mut Guard<'_, Rx>, message: &mut Message) -> bool {
        let Some((consumer, record)) = rx.plain() else { return false };
        let len = record.header.len();
        let spare = message.bytes.spare_capacity_mut();
        if len > spare.len() {
            return false;
        }
        let copied = match spare.first_chunk_mut() {
            Some(cell) if len <= cell.len() => consumer.read_cell(record, cell),
            _ => false,
        };
        if !copied {
            consumer.read(record, 0, &mut spare[..len]);
        }
        // SAFETY: `message` was empty, and its first `len` bytes have been written just now.
        unsafe { message.bytes.set_len(len) };
        message.origin = rx.origin;
        self.finish_plain(rx, record);
        true
    }

    #[inline]
    fn finish_plain(&self, rx: &mut Guard<'_, Rx>, record: Record) {
        self.counts.messages_received.add(1);
        self.counts.bytes_received.add(record.header.len() as u64);
        if rx.consumer().advance(record) {
            self.give_credit(rx);
        }
    }

    #[inline]
    fn recv_into_locked(
        &self,
        rx: &mut Guard<'_, Rx>,
        buffer: &mut [u8],
        deadline: Deadline,
    ) -> Result<Received, Error> {
        loop {
            if let Some((consumer, record)) = rx.plain()
                && let Some(buffer) = buffer.get_mut(..record.header.len())
            {
                let len = consumer.read(record, 0, as_uninit(buffer)).len();
                self.finish_plain(rx, record);
                return Ok(Received { len, arrived: Arrived::default(), origin: rx.origin });
            }
            if let Some(kept) = rx.kept().and_then(|kept| kept.front()) {
                let needed = kept.body.len();
                let Some(buffer) = buffer.get_mut(..needed) else { return Err(Error::BufferTooSmall { needed }) };
                let (body, arrived, origin) = rx.take_kept().expect("looked at just now").into_parts();
                self.count(&body);
                rx.copy(&body, 0, as_uninit(buffer));
                return Ok(Received { len: needed, arrived, origin });
            }
            match self.front(rx)? {
                Some(record) => return self.recv_any_into(rx, record, buffer),
                None => self.wait_for_message(rx, deadline)?,
            }
        }
    }

    #[inline(never)]
    fn recv_any_into(&self, rx: &mut Guard<'_, Rx>, record: Record, buffer: &mut [u8]) -> Result<Received, Error> {
        // Looked at before anything is taken, since a message that does not fit stays whole.
        let needed = self.len_of(rx, record)?;
        let Some(buffer) = buffer.get_mut(..needed) else {
            return Err(Error::BufferTooSmall { needed });
        };
        let body = self.body(rx, record)?;
        let arrived = self.arrived(rx, record)?;
        // Its length was read anew; a peer may have changed it.
        let len = body.len().min(buffer.len());
        rx.copy(&body, 0, as_uninit(&mut buffer[..len]));
        self.finish(rx, record, body);
        Ok(Received { len, arrived, origin: rx.origin })
    }

    #[inline(never)]
    fn recv_any(&self, rx: &mut Guard<'_, Rx>, record: Record, message: &mut Message) -> Result<(), Error> {
        let body = self.body(rx, record)?;
        if message.bytes.try_reserve_exact(body.len().max(SMALLEST_BUFFER)).is_err() {
            return Err(Error::NoMemory { call: "memory for the message" });
        }
        message.arrived = self.arrived(rx, record)?;
        self.take_body(rx, &body, message)?;
        message.origin = rx.origin;
        self.finish(rx, record, body);
        Ok(())
    }

    /// Copies the bytes of a message into one that is empty.
    fn take_body(&self, rx: &mut Rx, body: &Body, message: &mut Message) -> Result<(), Error> {
        let len = body.len();
        if message.bytes.try_reserve_exact(len.max(SMALLEST_BUFFER)).is_err() {
            return Err(Error::NoMemory { call: "memory for the message" });
        }
        rx.copy(body, 0, &mut message.bytes.spare_capacity_mut()[..len]);
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { message.bytes.set_len(len) };
        Ok(())
    }

    /// The next message's record; waits for it.
    #[inline]
    fn next_record(&self, rx: &mut Guard<'_, Rx>, deadline: Deadline) -> Result<Record, Error> {
        loop {
            if let Some(record) = self.front(rx)? {
                return Ok(record);
            }
            self.wait_for_message(rx, deadline)?;
        }
    }

    /// The next message's record in the ring, if it is there.
    #[inline]
    pub(super) fn front(&self, rx: &mut Rx) -> Result<Option<Record>, Error> {
        loop {
            match self.front_or_mark(rx)? {
                Some(record) if record.header.kind() == Kind::Moved => self.follow_mark(rx, record)?,
                found => return Ok(found),
            }
        }
    }

    /// Follows the marks that are at the front, if the peer has opened its side.
    pub(super) fn front_of_open(&self, rx: &mut Rx) -> Result<(), Error> {
        while rx.is_at_ring()
            && let Some(record) = self.front_or_mark(rx)?
            && record.header.kind() == Kind::Moved
        {
            let next = self.marked(rx, record)?;
            rx.leave();
            rx.enter(next);
        }
        Ok(())
    }

    /// The same, or the mark that says where the other end went on.
    #[inline]
    pub(super) fn front_or_mark(&self, rx: &mut Rx) -> Result<Option<Record>, Error> {
        loop {
            // Before the ring is looked at: what was committed before the peer went down is seen after.
            let down = rx.lane.is_down();
            let front = match &mut rx.consumer {
                Some(consumer) if !rx.over => consumer.front(),
                _ => match self.not_open(rx, down)? {
                    true => continue,
                    false => return Ok(None),
                },
            };
            match front {
                Ok(Front::Record(record)) if record.header.kind().is_message() => {
                    if !rx.open {
                        // Whoever wrote it has its end for good.
                        rx.reopen();
                    }
                    return Ok(Some(record));
                }
                Ok(Front::Empty) if !down => return Ok(None),
                Ok(Front::Empty) => {
                    let reason = rx.lane.reason();
                    return Err(rx.end_with(reason));
                }
                Ok(Front::Record(record)) if record.header.kind() == Kind::Moved => return Ok(Some(record)),
                Ok(Front::Record(record)) => self.follow(rx, record)?,
                Err(corrupt) => return Err(rx.end_with(Error::BadPeer(corrupt.0))),
            }
        }
    }

    /// The channel has ended, or the peer's hello has not come: true if it has now.
    #[cold]
    fn not_open(&self, rx: &mut Rx, down: bool) -> Result<bool, Error> {
        if let Some(error) = rx.ended() {
            return Err(error);
        }
        let lane = rx.lane.clone();
        match lane.open().map_err(|error| passing_or_end(rx, error))? {
            true => {
                rx.enter(lane);
                Ok(true)
            }
            false if down || lane.link().is_down() => Err(rx.end_with(lane.link().reason())),
            false => Ok(false),
        }
    }

    /// Follows a record that is no message.
    #[cold]
    fn follow(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        match record.header.kind() {
            Kind::Closed => Err(rx.end_with(Error::PeerClosed)),
            Kind::Next if record.header.len() == 8 => {
                let mut generation = [MaybeUninit::uninit(); 8];
                let generation = rx.consumer().read(record, 0, &mut generation);
                let generation = u64::from_le_bytes(generation.try_into().expect("eight bytes"));
                if generation != u64::from(rx.generation) + 1 {
                    return Err(rx.end_with(Error::BadPeer("a ring out of its turn")));
                }
                let cells = self.fetch_memory(rx, MemoryKey::Ring(rx.lane.token_in(), generation))?;
                let grown = rx.consumer().memory().grown(cells);
                let Some(grown) = grown else {
                    return Err(rx.end_with(Error::BadPeer("a ring of impossible size")));
                };
                rx.generation += 1;
                rx.rare().fetched = None;
                rx.consumer().go_on_in(grown);
                // Its memory is no longer under way.
                self.give_credit(rx);
                Ok(())
            }
            Kind::Table => self.take_table(rx, record),
            _ => Err(rx.end_with(Error::BadPeer("a record out of place"))),
        }
    }

    /// Goes on in the lane that a mark names.
    #[cold]
    pub(super) fn follow_mark(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        let next = self.marked(rx, record)?;
        rx.leave();
        rx.enter(next);
        // An end that never sends must not stay behind lane after lane.
        if let Some(mut tx) = self.tx.try_lock() {
            self.catch_up(&mut tx);
        }
        Ok(())
    }

    /// The lane that a mark names.
    pub(super) fn marked(&self, rx: &mut Rx, record: Record) -> Result<Arc<Lane>, Error> {
        let mut name = [MaybeUninit::uninit(); Name::SIZE];
        if record.header.len() != Name::SIZE {
            return Err(rx.end_with(Error::BadPeer("a mark that is none")));
        }
        let name = Name::decode((&*rx.consumer().read(record, 0, &mut name)).try_into().expect("as long as a name"));
        if rx.consumer().taken() > 0 {
            rx.lane.set_used();
        }
        rx.lane.next(name).map_err(|error| passing_or_end(rx, error))
    }

    /// Takes note of what the handles of the next message are.
    fn take_table(&self, rx: &mut Rx, record: Record) -> Result<(), Error> {
        // The message comes right behind it, unless that could not be sent: then it is tried again, table and all. A row of
        // tables must not keep a call here.
        let rare = rx.rare();
        let cost = 1 + usize::from(record.header.handles() > 0) * LONG_TABLE;
        rare.tables = if rare.table.is_some() { rare.tables + cost } else { cost };
        if rare.tables > MOST_TABLES {
            return Err(rx.end_with(Error::BadPeer("tables without their messages")));
        }
        let len = record.header.len();
        let table = if record.header.handles() == 0 {
            let mut table = Vec::with_capacity(len);
            rx.consumer().read(record, 0, &mut table.spare_capacity_mut()[..len]);
            // SAFETY: `len` bytes were reserved and have been written just now.
            unsafe { table.set_len(len) };
            table
        } else {
            // Too long for a ring: in memory of its own, which nobody can change any more.
            let key = MemoryKey::Table(rx.lane.token_in(), rx.consumer().taken());
            let mapping = self.fetch_memory(rx, key)?;
            let mut table = Vec::new();
            if table.try_reserve_exact(mapping.len()).is_err() {
                return Err(Error::NoMemory { call: "memory for a table of handles" });
            }
            table.extend_from_slice(mapping.immutable_bytes(mapping.len()));
            table
        };
        let rare = rx.rare();
        rare.fetched = None;
        rare.table = Some(table);
        rx.consumer().advance(record);
        Ok(())
    }

    /// Memory that the record at the front refers to, and that was sent before it. Until the record is taken it can be
    /// asked for again.
    fn fetch_memory(&self, rx: &mut Rx, key: MemoryKey) -> Result<Arc<Mapping>, Error> {
        if let Some(Some((fetched, mapping))) = rx.rare.as_ref().map(|rare| &rare.fetched)
            && *fetched == key
        {
            return Ok(mapping.clone());
        }
        let link = rx.lane.listen().clone();
        let found = link.fetch(|stash| stash.take_memory(key)).map_err(|error| passing_or_end(rx, error))?;
        let missing = Error::BadPeer("a record that refers to memory which was never sent");
        let mapping = found.ok_or_else(|| rx.end_with(missing))?.map_err(|error| passing_or_end(rx, error))?;
        rx.rare().fetched = Some((key, mapping.clone()));
        Ok(mapping)
    }

    /// Gives the credit that the sender may wait for while we wait for it.
    pub(super) fn owe_nothing(&self, rx: &mut Rx) {
        let Some(consumer) = &mut rx.consumer else { return };
        // Told to us by a producer that may be newer than the ring.
        let quota = message_quota(consumer.memory());
        consumer.set_message_quota(quota);
        if consumer.owes_credit() {
            self.give_credit(rx);
        }
    }

    fn wait_for_message(&self, rx: &mut Guard<'_, Rx>, deadline: Deadline) -> Result<(), Error> {
        if rx.consumer.is_none() {
            return self.wait_for_hello(rx, deadline);
        }
        self.owe_nothing(rx);
        let (lane, consumer) = (&rx.lane, rx.consumer.as_ref().expect("looked at just now"));
        let pending = lane.is_pending();
        let waiter = Waiter {
            link: lane.listen(),
            scope: lane.scope(),
            via_mover: pending,
            word: consumer.memory().sleeping(),
            peer_cpu: Some(consumer.memory().cpu()),
            wait: self.options.wait,
            spin: self.options.spin,
            long: &self.long_sleep,
        };
        rx.keep();
        let waited = waiter.until(
            deadline,
            || !consumer.is_empty() || (pending && !lane.is_pending()),
            || {
                self.counts.rare().recv_sleeps.add(1);
                if let Some(tx) = self.tx.try_lock() {
                    self.publish_cpu(&tx);
                }
            },
        );
        rx.keep_no_more();
        self.kept_no_more();
        match waited {
            // The mover has died; what that means is for the lane to say.
            Err(_) if pending && waiter.link.is_down() => Ok(()),
            waited => waited,
        }
    }

    fn wait_for_hello(&self, rx: &mut Guard<'_, Rx>, deadline: Deadline) -> Result<(), Error> {
        let link = rx.lane.link().clone();
        if deadline.is_now() {
            link.probe();
            return Err(Error::WouldBlock);
        }
        rx.keep();
        let mut hello = None;
        let waited = link.park(deadline, || {
            hello = link.stash().take_hello();
            hello.is_some() || rx.lane.inward().is_some()
        });
        rx.keep_no_more();
        self.kept_no_more();
        match hello {
            // The caller goes on with what was opened.
            Some(hello) => rx.lane.open_with(hello).map_err(|error| rx.end_with(error)),
            None => {
                waited?;
                // Down, which the caller sees, or the time is up.
                if !link.is_down() && deadline.has_passed() { Err(Error::TimedOut) } else { Ok(()) }
            }
        }
    }

    fn block_record(&self, rx: &mut Rx, record: Record) -> Result<BlockRecord, Error> {
        let mut bytes = [MaybeUninit::uninit(); BlockRecord::SIZE];
        let decoded = (record.header.len() == BlockRecord::SIZE)
            .then(|| rx.consumer().read(record, 0, &mut bytes))
            .and_then(|bytes| BlockRecord::decode((&*bytes).try_into().expect("as long as a record")));
        decoded.ok_or_else(|| rx.end_with(Error::BadPeer("a record of a block that is none")))
    }

    /// How long a message says it is, before its memory is looked at.
    fn len_of(&self, rx: &mut Rx, record: Record) -> Result<usize, Error> {
        let len = match record.header.kind() {
            Kind::Block => usize::try_from(self.block_record(rx, record)?.len).unwrap_or(usize::MAX),
            Kind::Sealed => self.sealed_len(rx, record)?,
            _ => record.header.len(),
        };
        if len <= MAX_MESSAGE { Ok(len) } else { Err(rx.end_with(Error::BadPeer("a message longer than any"))) }
    }

    fn sealed_len(&self, rx: &mut Rx, record: Record) -> Result<usize, Error> {
        let mut bytes = [MaybeUninit::uninit(); 8];
        let len = (record.header.len() == 8)
            .then(|| rx.consumer().read(record, 0, &mut bytes))
            .and_then(|bytes| usize::try_from(u64::from_le_bytes((&*bytes).try_into().ok()?)).ok());
        len.ok_or_else(|| rx.end_with(Error::BadPeer("a record of a sealed payload that is none")))
    }

    /// Where the bytes of a record's message are, checked to be there.
    #[inline]
    fn body(&self, rx: &mut Rx, record: Record) -> Result<Body, Error> {
        match record.header.kind() {
            Kind::Message => Ok(Body::Ring(record)),
            _ => self.body_outside(rx, record),
        }
    }

    fn body_outside(&self, rx: &mut Rx, record: Record) -> Result<Body, Error> {
        if record.header.kind() == Kind::Sealed {
            let len = self.sealed_len(rx, record)?;
            let key = MemoryKey::Sealed(rx.lane.token_in(), rx.consumer().taken());
            let mapping = self.fetch_memory(rx, key)?;
            if len > mapping.len().min(MAX_MESSAGE) {
                return Err(rx.end_with(Error::BadPeer("a message longer than its memory")));
            }
            return Ok(Body::Sealed { mapping, len });
        }
        let block = self.block_record(rx, record)?;
        let id = block.id as usize;
        // The first use brings its memory; what stood under the number before is gone.
        if block.usage == 1 {
            let mapping = self.fetch_memory(rx, MemoryKey::Block(rx.lane.token_in(), block.id))?;
            let blocks = &mut rx.rare().blocks;
            blocks.resize(MAX_BLOCKS, None);
            blocks[id] = Some(mapping);
        }
        let Some(mapping) = rx.rare.as_ref().and_then(|rare| rare.blocks.get(id).cloned().flatten()) else {
            return Err(rx.end_with(Error::BadPeer("a block that was never sent")));
        };
        match usize::try_from(block.len) {
            Ok(len) if mapping.len().checked_sub(PAYLOAD).is_some_and(|room| len <= room.min(MAX_MESSAGE)) => {
                Ok(Body::Block { mapping, record: block, len, lane: rx.lane.clone() })
            }
            _ => Err(rx.end_with(Error::BadPeer("a message longer than its memory"))),
        }
    }

    /// The handles that came with the next message.
    #[inline]
    fn arrived(&self, rx: &mut Rx, record: Record) -> Result<Arrived, Error> {
        if record.header.handles() == 0 { Ok(Arrived::default()) } else { self.fetch_handles(rx, record) }
    }

    fn fetch_handles(&self, rx: &mut Rx, record: Record) -> Result<Arrived, Error> {
        let (token, sequence) = (rx.lane.token_in(), rx.consumer().taken());
        let sent = record.header.handles();
        let table = rx.rare.as_mut().and_then(|rare| rare.table.take());
        if record.header.has_table() {
            let Some(table) = table else {
                return Err(rx.end_with(Error::BadPeer("a message without its table of handles")));
            };
            let arrived = self.receive_ends(rx, token, sequence, sent, &table);
            if let Err(error) = arrived {
                // It may be asked for again.
                rx.rare().table = Some(table);
                return Err(passing_or_end(rx, error));
            }
            return arrived;
        }
        let link = rx.lane.listen().clone();
        let found = link.fetch(|stash| stash.take_handles(token, sequence, sent));
        let found = found.map_err(|error| passing_or_end(rx, error))?;
        match found {
            Some(found) if found.sent == sent => {
                let arrived = found.handles.len();
                let lost = (arrived < sent).then_some(Error::HandlesLost { sent, arrived });
                // Those of a message that is not whole are closed here: half a row of handles is of no use.
                let arrived = Arrived { handles: found.handles, lost };
                Ok(if lost.is_some() { Arrived { handles: Vec::new(), lost } } else { arrived })
            }
            _ => Err(rx.end_with(Error::BadPeer("a message whose descriptors were never sent"))),
        }
    }

    /// Takes a message off the ring, and gives back what its bytes were in.
    #[inline]
    pub(super) fn finish(&self, rx: &mut Rx, record: Record, body: Body) {
        self.count(&body);
        match body {
            Body::Ring(_) => self.advance(rx, record, false),
            outside => {
                self.let_go(rx, outside);
                self.advance(rx, record, true);
            }
        }
    }

    /// Takes a message off the ring whose bytes, outside of it, stay in use. They are let go with [`End::release`].
    pub(super) fn detach(&self, rx: &mut Rx, record: Record, body: &Body) {
        self.count(body);
        // What the user keeps is no longer the peer's affair.
        match body {
            Body::Ring(_) | Body::Own(_) => {}
            Body::Sealed { mapping, .. } => mapping.settle(),
            Body::Block { mapping, record: block, .. } if block.once => {
                mapping.settle();
                self.forget_block(rx, block.id as usize);
            }
            Body::Block { .. } => {}
        }
        self.advance(rx, record, true);
    }

    /// Lets go of a detached body.
    pub(super) fn release(&self, body: &Body) {
        if let Body::Block { mapping, record, lane, .. } = body {
            pool::give_back(mapping, record.usage);
            if let Some(waiting) = lane.peer_waiting() {
                self.wake_for_room(lane, waiting);
            }
        }
    }

    /// Wakes the sender, if it waits for room.
    fn wake_for_room(&self, lane: &Lane, waiting: &std::sync::atomic::AtomicU32) {
        let how = lane.take_sleeper(waiting);
        if wait::wake(lane.listen(), lane.scope(), waiting, how) {
            self.counts.rare().recv_wake_ups.add(1);
        }
    }

    #[inline]
    fn count(&self, body: &Body) {
        self.counts.messages_received.add(1);
        self.counts.bytes_received.add(body.len() as u64);
        if self.tells_of_each.load(Ordering::Relaxed) {
            self.ring_member();
        }
    }

    /// Goes on to the next record. The sender is told at once (`now`) of what it has only so much of.
    #[inline]
    fn advance(&self, rx: &mut Rx, record: Record, now: bool) {
        if now && let Some(rare) = &mut rx.rare {
            rare.fetched = None;
        }
        if rx.consumer().advance(record) || now || record.header.handles() > 0 {
            self.give_credit(rx);
        }
    }

    #[cold]
    pub(super) fn give_credit(&self, rx: &mut Rx) {
        rx.consumer().give_credit();
        let Rx { consumer: Some(consumer), lane, .. } = rx else { return };
        self.wake_for_room(lane, consumer.memory().waiting());
    }

    /// Drops the memory that a message outside the ring was in.
    fn let_go(&self, rx: &mut Rx, body: Body) {
        match body {
            Body::Ring(_) | Body::Own(_) | Body::Sealed { .. } => {}
            Body::Block { mapping, record, .. } => {
                if record.once {
                    self.forget_block(rx, record.id as usize);
                }
                pool::give_back(&mapping, record.usage);
            }
        }
    }

    /// The sender does not use this block again.
    fn forget_block(&self, rx: &mut Rx, id: usize) {
        drop(rx.rare.as_mut().and_then(|rare| rare.blocks.get_mut(id)).and_then(Option::take));
    }

    pub(crate) fn is_readable(&self) -> bool {
        self.lock_rx(Deadline::NOW).is_ok_and(|mut rx| self.has_front(&mut rx))
    }

    /// Takes the message at the front out of its ring, handles and all, as one that is kept.
    pub(super) fn take_out(&self, rx: &mut Rx, record: Record) -> Result<Kept, Error> {
        self.take_out_as(rx, record, true)
    }

    /// The same for an end that stays: its peer goes on in this lane, and gets back the room and the memory.
    pub(super) fn take_out_and_stay(&self, rx: &mut Rx, record: Record) -> Result<Kept, Error> {
        self.take_out_as(rx, record, false)
    }

    fn take_out_as(&self, rx: &mut Rx, record: Record, leaves: bool) -> Result<Kept, Error> {
        let body = self.body(rx, record)?;
        let mut charge = None;
        let kept = match &body {
            Body::Block { mapping, len, .. } if leaves => KeptBody::Block(mapping.clone(), *len),
            Body::Sealed { mapping, len } => KeptBody::Sealed(mapping.clone(), *len),
            Body::Own(_) => unreachable!("a message in a ring was not kept"),
            Body::Ring(_) | Body::Block { .. } => {
                let len = body.len();
                let amounts = Amounts::of(Resource::QueuedBytes, len).and(Resource::QueuedMessages, 1);
                charge = rx.lane.listen().ledger().charge(amounts)?;
                let mut bytes = Vec::new();
                if bytes.try_reserve_exact(len).is_err() {
                    return Err(Error::NoMemory { call: "memory for the message" });
                }
                rx.copy(&body, 0, &mut bytes.spare_capacity_mut()[..len]);
                // SAFETY: `len` bytes were reserved and have been written just now.
                unsafe { bytes.set_len(len) };
                KeptBody::Bytes(bytes)
            }
        };
        let arrived = self.arrived(rx, record)?;
        if !leaves {
            self.let_go(rx, body);
            self.advance(rx, record, true);
        } else {
            // No credit is given: who sends meanwhile can fill what it has, and no more.
            if let Some(rare) = &mut rx.rare {
                rare.fetched = None;
            }
            rx.consumer().advance(record);
        }
        Ok(Kept { body: kept, arrived, charge, origin: rx.origin })
    }

    /// Drops what was not received, as far as `limit` allows, and makes the peer's sends fail from here on. The handles that
    /// were not received.
    pub(super) fn close_rx(&self, rx: &mut Rx, limit: &mut usize) -> Vec<Handle> {
        let mut handles: Vec<Handle> = Vec::new();
        while let Some(kept) = rx.take_kept() {
            handles.extend(kept.into_handles());
        }
        while *limit > 0 {
            match self.front_or_mark(rx) {
                Ok(Some(record)) if record.header.kind() == Kind::Moved => {
                    *limit = limit.saturating_sub(CLOSE_MARK);
                    if self.follow_mark(rx, record).is_err() {
                        break;
                    }
                }
                Ok(Some(record)) => {
                    let things = record.header.handles() + usize::from(record.header.kind() != Kind::Message);
                    *limit = limit.saturating_sub(1 + CLOSE_THING * things);
                    // Handles and blocks are let go one by one; what cannot be had goes with the link.
                    let body = self.body(rx, record);
                    if let Ok(arrived) = self.arrived(rx, record) {
                        handles.extend(arrived.into_handles());
                    }
                    if let Ok(body) = body {
                        self.let_go(rx, body);
                    }
                    rx.consumer().advance(record);
                }
                Ok(None) if rx.consumer.is_none() => break,
                Ok(None) => {
                    if rx.consumer().end(Kind::Closed) {
                        self.give_credit(rx);
                        break;
                    }
                }
                Err(_) => break,
            }
        }
        let link = rx.lane.listen();
        if !link.is_local() {
            link.discard_stashed(rx.lane.token_in());
        }
        handles
    }
}
