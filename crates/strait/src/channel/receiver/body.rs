//! Where the bytes of a message are that was found, and its handles; and giving back what they were in.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Rx;
use super::front::passing_or_end;
use crate::channel::End;
use crate::channel::message::{Arrived, Message, Sealed};
use crate::channel::pool::{self, BlockRecord};
use crate::error::Error;
use crate::lane::Lane;
use crate::link::{Handles, MemoryKey};
use crate::ring::{Kind, MAX_MESSAGE, Memory, Record};
use crate::shm::{Mapping, WORTH_PASSING_ON};
use crate::wake::waiter;

/// Bytes of the smallest buffer of a message: room for a whole cell.
pub(super) const SMALLEST_BUFFER: usize = 64;

/// Where the bytes of a message are.
#[derive(Debug)]
pub(in crate::channel) enum Body {
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
    pub(in crate::channel) fn len(&self) -> usize {
        match self {
            Self::Ring(record) => record.header.len(),
            Self::Block { len, .. } | Self::Sealed { len, .. } => *len,
            Self::Own(bytes) => bytes.len(),
        }
    }

    /// The memory of bytes that cannot change, if they are so many that they are not copied, and nothing else is kept with them.
    #[inline]
    fn stays(&self) -> Option<&Arc<Mapping>> {
        match self {
            Self::Sealed { mapping, len } => (*len > WORTH_PASSING_ON && mapping.fits(*len)).then_some(mapping),
            _ => None,
        }
    }
}

/// Copies bytes to places for them.
pub(in crate::channel) fn put<'a>(bytes: &[u8], out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
    assert_eq!(bytes.len(), out.len());
    for (place, byte) in out.iter_mut().zip(bytes) {
        place.write(*byte);
    }
    // SAFETY: all of it was written just now; the layout is the same.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
}

/// Bytes seen as places to write to.
pub(in crate::channel) fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the same memory; whoever gets this slice in this crate only writes initialised bytes to it.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

impl End {
    /// Where the bytes of a record's message are, checked to be there.
    #[inline]
    pub(in crate::channel) fn body(&self, rx: &mut Rx, record: Record) -> Result<Body, Error> {
        match record.header.kind() {
            Kind::Message => Ok(Body::Ring(record)),
            _ => self.body_outside(rx, record),
        }
    }

    pub(super) fn body_outside(&self, rx: &mut Rx, record: Record) -> Result<Body, Error> {
        if record.header.kind() == Kind::Sealed {
            let len = self.sealed_len(rx, record)?;
            let key = MemoryKey::Sealed(rx.lane.token_in(), rx.number(record));
            let mapping = self.fetch_memory(rx, key)?;
            if len > mapping.len().min(MAX_MESSAGE) {
                return Err(rx.end_with(Error::BadPeer("a message longer than its memory")));
            }
            return Ok(Body::Sealed { mapping, len });
        }
        let block = self.block_record(rx, record)?;
        let id = block.id as usize;
        // The first use brings its memory; what stood under the number before is gone.
        if block.brings_memory() {
            let mapping = self.fetch_memory(rx, MemoryKey::Block(rx.lane.token_in(), block.id))?;
            let blocks = &mut rx.rare().blocks;
            blocks.resize(blocks.len().max(id + 1), None);
            blocks[id] = Some(mapping);
        }
        let Some(mapping) = rx.rare.as_ref().and_then(|rare| rare.blocks.get(id).cloned().flatten()) else {
            return Err(rx.end_with(Error::BadPeer("a block that was never sent")));
        };
        match (block.place_in(mapping.len()), usize::try_from(block.len)) {
            (Some(_), Ok(len)) if len <= MAX_MESSAGE => {
                Ok(Body::Block { mapping, record: block, len, lane: rx.lane.clone() })
            }
            _ => Err(rx.end_with(Error::BadPeer("a message longer than its memory"))),
        }
    }

    pub(super) fn block_record(&self, rx: &mut Rx, record: Record) -> Result<BlockRecord, Error> {
        let mut bytes = [MaybeUninit::uninit(); BlockRecord::SIZE];
        let decoded = (record.header.len() == BlockRecord::SIZE)
            .then(|| rx.consumer().read(record, 0, &mut bytes))
            .and_then(|bytes| BlockRecord::decode((&*bytes).try_into().expect("as long as a record")));
        decoded.ok_or_else(|| rx.end_with(Error::BadPeer("a record of a block that is none")))
    }

    /// How long a message says it is, before its memory is looked at.
    pub(super) fn len_of(&self, rx: &mut Rx, record: Record) -> Result<usize, Error> {
        let len = match record.header.kind() {
            Kind::Block => usize::try_from(self.block_record(rx, record)?.len).unwrap_or(usize::MAX),
            Kind::Sealed => self.sealed_len(rx, record)?,
            _ => record.header.len(),
        };
        if len <= MAX_MESSAGE { Ok(len) } else { Err(rx.end_with(Error::BadPeer("a message longer than any"))) }
    }

    pub(super) fn sealed_len(&self, rx: &mut Rx, record: Record) -> Result<usize, Error> {
        let mut bytes = [MaybeUninit::uninit(); 8];
        let len = (record.header.len() == 8)
            .then(|| rx.consumer().read(record, 0, &mut bytes))
            .and_then(|bytes| usize::try_from(u64::from_le_bytes((&*bytes).try_into().ok()?)).ok());
        len.ok_or_else(|| rx.end_with(Error::BadPeer("a record of a sealed payload that is none")))
    }

    /// Makes sure that a message, which is empty, has room for a body.
    #[inline]
    pub(super) fn reserve_for(&self, body: &Body, message: &mut Message) -> Result<(), Error> {
        let len = if body.stays().is_some() { 0 } else { body.len().max(SMALLEST_BUFFER) };
        message.bytes.try_reserve_exact(len).map_err(|_| Error::NoMemory { call: "memory for the message" })
    }

    /// Copies the bytes of a message into one that is empty; or if they cannot change, and are worth it, leaves them where they
    /// are.
    #[inline]
    pub(super) fn take_body(&self, rx: &mut Rx, body: &Body, message: &mut Message) -> Result<(), Error> {
        let len = body.len();
        if let Some(mapping) = body.stays() {
            // What the user keeps is no longer the peer's affair.
            mapping.settle();
            message.arrived.set_sealed(Sealed { mapping: mapping.clone(), len });
            return Ok(());
        }
        self.reserve_for(body, message)?;
        rx.copy(body, 0, &mut message.bytes.spare_capacity_mut()[..len]);
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { message.bytes.set_len(len) };
        Ok(())
    }

    /// The handles that came with the next message.
    #[inline]
    pub(in crate::channel) fn arrived(&self, rx: &mut Rx, record: Record) -> Result<Arrived, Error> {
        if record.header.handles() == 0 { Ok(Arrived::default()) } else { self.fetch_handles(rx, record) }
    }

    pub(super) fn fetch_handles(&self, rx: &mut Rx, record: Record) -> Result<Arrived, Error> {
        let (token, message) = (rx.lane.token_in(), rx.number(record));
        let sent = record.header.handles();
        let table = rx.rare.as_mut().and_then(|rare| rare.table.take());
        if record.header.has_table() {
            let Some(table) = table else {
                return Err(rx.end_with(Error::BadPeer("a message without its table of handles")));
            };
            let arrived = self.receive_ends(rx, token, message, sent, &table);
            if let Err(error) = arrived {
                // It may be asked for again.
                rx.rare().table = Some(table);
                return Err(passing_or_end(rx, error));
            }
            return arrived;
        }
        let link = rx.lane.listen().clone();
        let found = link.fetch(|stash| stash.take_handles(token, message, sent));
        let found = found.map_err(|error| passing_or_end(rx, error))?;
        match found {
            Some(Handles { value: Some(value), .. }) => Ok(Arrived::of_value(value)),
            Some(found) if found.sent == sent => {
                let arrived = found.handles.len();
                let lost = (arrived < sent).then_some(Error::HandlesLost { sent, arrived });
                // Those of a message that is not whole are closed here: half a row of handles is of no use.
                let arrived = Arrived::of_handles(found.handles);
                Ok(lost.map_or(arrived, Arrived::of_lost))
            }
            _ => Err(rx.end_with(Error::BadPeer("a message whose descriptors were never sent"))),
        }
    }

    /// Takes a message off the ring, and gives back what its bytes were in.
    #[inline]
    pub(in crate::channel) fn finish(&self, rx: &mut Rx, record: Record, body: Body) {
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
    pub(in crate::channel) fn detach(&self, rx: &mut Rx, record: Record, body: &Body) {
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
    pub(in crate::channel) fn release(&self, body: &Body) {
        if let Body::Block { mapping, record, lane, .. } = body {
            pool::give_back(mapping, record);
            if let Some(waiting) = lane.peer_waiting() {
                self.wake_for_room(lane, waiting);
            }
        }
    }

    #[inline]
    pub(in crate::channel) fn count(&self, body: &Body) {
        self.counts.messages_received.add(1);
        self.counts.bytes_received.add(body.len() as u64);
        if self.tells_of_each.load(Ordering::Relaxed) {
            self.ring_member();
        }
    }

    /// Goes on to the next record. The sender is told at once (`now`) of what it has only so much of.
    #[inline]
    pub(in crate::channel) fn advance(&self, rx: &mut Rx, record: Record, now: bool) {
        if now && let Some(rare) = &mut rx.rare {
            rare.fetched = None;
        }
        if rx.consumer().advance(record) || now || record.header.handles() > 0 {
            self.give_credit(rx);
        }
    }

    #[cold]
    pub(in crate::channel) fn give_credit(&self, rx: &mut Rx) {
        rx.consumer().give_credit();
        let Rx { consumer: Some(consumer), lane, .. } = rx else { return };
        self.wake_for_room(lane, consumer.memory().waiting());
    }

    /// Tells the sender what was taken out of the ring to travel along: it is not received, so there is no credit for it.
    pub(in crate::channel) fn give_taken(&self, rx: &mut Rx) {
        rx.consumer().give_taken();
        let Rx { consumer: Some(consumer), lane, .. } = rx else { return };
        self.wake_for_room(lane, consumer.memory().waiting());
    }

    /// Wakes the sender, if it waits for room.
    pub(super) fn wake_for_room(&self, lane: &Lane, waiting: &AtomicU32) {
        let how = lane.take_sleeper(waiting);
        if waiter::wake(lane.listen(), lane.scope(), waiting, how) {
            self.counts.rare().recv_wake_ups.add(1);
        }
    }

    /// Drops the memory that a message outside the ring was in.
    pub(in crate::channel) fn let_go(&self, rx: &mut Rx, body: Body) {
        match body {
            Body::Ring(_) | Body::Own(_) | Body::Sealed { .. } => {}
            Body::Block { mapping, record, .. } => {
                if record.once {
                    self.forget_block(rx, record.id as usize);
                }
                pool::give_back(&mapping, &record);
            }
        }
    }

    /// The sender does not use this block again.
    pub(super) fn forget_block(&self, rx: &mut Rx, id: usize) {
        drop(rx.rare.as_mut().and_then(|rare| rare.blocks.get_mut(id)).and_then(Option::take));
    }
}
