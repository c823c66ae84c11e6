//! The payload and the handles of a received message: how to find them, and how to give their memory back.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::Rx;
use super::next::passing_or_end;
use crate::channel::End;
use crate::channel::message::{Message, MessageExtras, ReceivedExtras, Sealed};
use crate::channel::pool::{self, BlockRecord};
use crate::channel::unclaimed::UnclaimedHandles;
use crate::error::Error;
use crate::lane::mailbox;
use crate::lane::{Lane, waiter};
use crate::link::MemoryKey;
use crate::quota::Charge;
use crate::ring::{MAX_MESSAGE, Memory, Record, RecordKind};
use crate::shm::{Mapping, WORTH_PASSING_ON};

/// Number of bytes of the smallest buffer that a message allocates: room for a whole cell of 64 bytes.
pub(super) const SMALLEST_BUFFER: usize = 64;

/// The error for a message whose handles were never sent.
const NEVER_SENT: Error = Error::BadPeer("a message whose descriptors were never sent");

/// The place where the payload of a received message lies.
#[derive(Debug)]
pub(in crate::channel) enum Payload {
    /// The payload is in the ring; valid while the record is the next record there.
    Ring(Record),
    /// The payload is in a block of the sender's pool; valid until the block is returned to the sender. `len` is the
    /// length in bytes.
    Block { mapping: Arc<Mapping>, record: BlockRecord, len: usize, lane: Arc<Lane> },
    /// The payload is in sealed memory of its own: no process can change the bytes. `len` is the length in bytes.
    Sealed { mapping: Arc<Mapping>, len: usize },
    /// The payload is in private memory of this process: taken out of its ring before, or made from a value.
    Own(Vec<u8>),
}

impl Payload {
    pub(in crate::channel) fn len(&self) -> usize {
        match self {
            Self::Ring(record) => record.header.len(),
            Self::Block { len, .. } | Self::Sealed { len, .. } => *len,
            Self::Own(bytes) => bytes.len(),
        }
    }

    /// Returns the sealed memory of a payload that is received without a copy: the payload is long enough for this to
    /// pay, and alone in its memory. Otherwise `None`.
    #[inline]
    fn stays(&self) -> Option<&Arc<Mapping>> {
        match self {
            Self::Sealed { mapping, len } => (*len > WORTH_PASSING_ON && mapping.fits(*len)).then_some(mapping),
            _ => None,
        }
    }
}

/// Copies `bytes` to `out`, which has the same length, and returns `out` as initialised bytes.
pub(in crate::channel) fn put<'a>(bytes: &[u8], out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
    assert_eq!(bytes.len(), out.len());
    for (place, byte) in out.iter_mut().zip(bytes) {
        place.write(*byte);
    }
    // SAFETY: every byte of `out` was written just now, and `MaybeUninit<u8>` has the layout of `u8`.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
}

/// Returns initialised bytes as memory to be written, for functions that fill uninitialised memory.
pub(in crate::channel) fn as_uninit(bytes: &mut [u8]) -> &mut [MaybeUninit<u8>] {
    // SAFETY: the memory and the layout are the same. Functions of this crate write only initialised bytes through
    // this slice.
    unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
}

impl End {
    /// Returns where the payload of a record's message lies. Fetches the memory of a payload out of line, and checks
    /// that the payload lies within the memory.
    ///
    /// # Errors
    /// A temporary error; or else an error with which the receiving direction has ended, such as [`Error::BadPeer`].
    #[inline]
    pub(in crate::channel) fn payload(&self, rx: &mut Rx, record: Record) -> Result<Payload, Error> {
        match record.header.kind() {
            RecordKind::Message => Ok(Payload::Ring(record)),
            _ => self.payload_out_of_line(rx, record),
        }
    }

    pub(super) fn payload_out_of_line(&self, rx: &mut Rx, record: Record) -> Result<Payload, Error> {
        if record.header.kind() == RecordKind::Sealed {
            let len = self.sealed_len(rx, record)?;
            let key = MemoryKey::Sealed(rx.lane.token_in(), rx.number());
            let mapping = self.fetch_memory(rx, key)?;
            if len > mapping.len().min(MAX_MESSAGE) {
                return Err(rx.end_with(Error::BadPeer("a message longer than the memory that holds it")));
            }
            return Ok(Payload::Sealed { mapping, len });
        }
        let block = self.block_record(rx, record)?;
        let id = block.id as usize;
        // The first use of a block brings its memory; an older block with this id is gone.
        if block.brings_memory() {
            let mapping = self.fetch_memory(rx, MemoryKey::Block(rx.lane.token_in(), block.id))?;
            let blocks = &mut rx.cold().blocks;
            blocks.resize(blocks.len().max(id + 1), None);
            blocks[id] = Some(mapping);
        }
        let Some(mapping) = rx.cold.as_ref().and_then(|cold| cold.blocks.get(id).cloned().flatten()) else {
            return Err(rx.end_with(Error::BadPeer("a reference to a block that was never sent")));
        };
        match (block.offset_in(mapping.len()), usize::try_from(block.len)) {
            (Some(_), Ok(len)) if len <= MAX_MESSAGE => {
                Ok(Payload::Block { mapping, record: block, len, lane: rx.lane.clone() })
            }
            _ => Err(rx.end_with(Error::BadPeer("a message longer than the memory that holds it"))),
        }
    }

    pub(super) fn block_record(&self, rx: &mut Rx, record: Record) -> Result<BlockRecord, Error> {
        let mut bytes = [MaybeUninit::uninit(); BlockRecord::SIZE];
        let decoded = (record.header.len() == BlockRecord::SIZE)
            .then(|| rx.consumer().read(record, 0, &mut bytes))
            .and_then(|bytes| BlockRecord::decode((&*bytes).try_into().expect("as long as a record")));
        decoded.ok_or_else(|| rx.end_with(Error::BadPeer("an invalid record of a block")))
    }

    /// Returns the claimed number of payload bytes in a record, without fetching the message's memory. A claim above
    /// the largest message size makes the peer a bad peer: this call then fails with [`Error::BadPeer`], and the
    /// receiving direction has ended.
    pub(super) fn len_of(&self, rx: &mut Rx, record: Record) -> Result<usize, Error> {
        let len = match record.header.kind() {
            RecordKind::Block => usize::try_from(self.block_record(rx, record)?.len).unwrap_or(usize::MAX),
            RecordKind::Sealed => self.sealed_len(rx, record)?,
            _ => record.header.len(),
        };
        if len <= MAX_MESSAGE { Ok(len) } else { Err(rx.end_with(Error::BadPeer("a message over the largest size"))) }
    }

    pub(super) fn sealed_len(&self, rx: &mut Rx, record: Record) -> Result<usize, Error> {
        let mut bytes = [MaybeUninit::uninit(); 8];
        let len = (record.header.len() == 8)
            .then(|| rx.consumer().read(record, 0, &mut bytes))
            .and_then(|bytes| usize::try_from(u64::from_le_bytes((&*bytes).try_into().ok()?)).ok());
        len.ok_or_else(|| rx.end_with(Error::BadPeer("an invalid record of a sealed payload")))
    }

    /// Reserves memory for the bytes of a payload in an empty message. Reserves none if the payload stays in sealed
    /// memory. Fails if there is no memory.
    #[inline]
    pub(super) fn reserve_for(&self, payload: &Payload, message: &mut Message) -> Result<(), Error> {
        let len = if payload.stays().is_some() { 0 } else { payload.len().max(SMALLEST_BUFFER) };
        message.bytes.try_reserve_exact(len).map_err(|_| Error::NoMemory { call: "memory for the message" })
    }

    /// Moves a payload into an empty message: copies the bytes, or retains the sealed memory where a copy costs more.
    /// Fails if there is no memory.
    #[inline]
    pub(super) fn take_payload(&self, rx: &mut Rx, payload: &Payload, message: &mut Message) -> Result<(), Error> {
        let len = payload.len();
        if let Some(mapping) = payload.stays() {
            // Memory that the program keeps is no longer charged to the peer.
            mapping.release_charge();
            message.arrived.set_sealed(Sealed { mapping: mapping.clone(), len });
            return Ok(());
        }
        self.reserve_for(payload, message)?;
        rx.copy(payload, 0, &mut message.bytes.spare_capacity_mut()[..len]);
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { message.bytes.set_len(len) };
        Ok(())
    }

    /// Takes and returns the handles or the value of the next message; `record` is the record of that message. Fails if
    /// the handles cannot be received now.
    #[inline]
    pub(in crate::channel) fn arrived(&self, rx: &mut Rx, record: Record) -> Result<ReceivedExtras, Error> {
        self.arrived_charged(rx, record).map(|(arrived, _charge)| arrived)
    }

    /// Does what [`arrived`](Self::arrived) does, and also returns the charge to the peer for the descriptors, if any.
    #[inline]
    pub(super) fn arrived_charged(
        &self,
        rx: &mut Rx,
        record: Record,
    ) -> Result<(ReceivedExtras, Option<Charge>), Error> {
        let is_plain = record.header.handles() == 0 && !record.header.has_table();
        if is_plain { Ok(Default::default()) } else { self.fetch_handles(rx, record) }
    }

    fn fetch_handles(&self, rx: &mut Rx, record: Record) -> Result<(ReceivedExtras, Option<Charge>), Error> {
        let (token, message) = (rx.lane.token_in(), rx.number());
        let sent = record.header.handles();
        if record.header.has_table() {
            if sent == 0 {
                return Err(rx.end_with(Error::BadPeer("a message without handles that has a handle table")));
            }
            let Some(table) = rx.cold().table.take() else {
                return Err(rx.end_with(Error::BadPeer("a message without its handle table")));
            };
            let checked = rx.check_table(table.bytes().len());
            let arrived = checked.and_then(|()| self.receive_ends(rx, token, message, sent, table.bytes()));
            if let Err(error) = arrived {
                // The table is kept, since a later call may ask for the handles again.
                rx.set_table(table);
                return Err(passing_or_end(rx, error));
            }
            rx.reopen();
            return arrived;
        }
        let link = rx.lane.current_link().clone();
        if link.is_local() {
            return self.take_parcel(rx, token, message, sent).map(|arrived| (arrived, None));
        }
        let found = link.fetch(|inbox| inbox.take_handles(token, message, sent));
        let found = found.map_err(|error| passing_or_end(rx, error))?;
        match found {
            Some(found) if found.sent == sent => {
                let arrived = found.descriptors.len();
                let lost = (arrived < sent).then_some(Error::HandlesLost { sent, arrived });
                // If some handles of a message are missing, the others are closed here: an incomplete set is of no use.
                let arrived = UnclaimedHandles::received(found.descriptors, &link.ledger().payer());
                let arrived = ReceivedExtras::of_handles(arrived);
                Ok((lost.map_or(arrived, ReceivedExtras::of_lost), found.charge))
            }
            _ => Err(rx.end_with(link.missing(NEVER_SENT))),
        }
    }

    /// Takes and returns the handles or the value of a message within this process from the mailbox. `sent` is the
    /// number of handles in the record of the message, whose number is `message`.
    fn take_parcel(&self, rx: &mut Rx, token: u128, message: u64, sent: usize) -> Result<ReceivedExtras, Error> {
        let parcel = mailbox::take(token, message, sent);
        let parcel = parcel.filter(|parcel| parcel.len() == sent).ok_or_else(|| rx.end_with(NEVER_SENT))?;
        Ok(ReceivedExtras::of_local(MessageExtras::of_parcel(parcel)))
    }

    /// Takes a message off the ring and counts it as received. Returns its ring space, and the block of a payload out
    /// of line, to the sender.
    #[inline]
    pub(in crate::channel) fn finish(&self, rx: &mut Rx, record: Record, payload: Payload) {
        self.count(&payload);
        match payload {
            Payload::Ring(_) => self.advance(rx, record, false),
            out_of_line => {
                self.let_go(rx, out_of_line);
                self.advance(rx, record, true);
            }
        }
    }

    /// Takes a message off the ring and counts the message as received, while the program still uses the payload. A
    /// payload out of line occupies its block until [`End::release`].
    pub(in crate::channel) fn detach(&self, rx: &mut Rx, record: Record, payload: &Payload) {
        self.count(payload);
        // Memory that the program keeps is no longer charged to the peer.
        match payload {
            Payload::Ring(_) | Payload::Own(_) => {}
            Payload::Sealed { mapping, .. } => mapping.release_charge(),
            Payload::Block { mapping, record: block, .. } if block.once => {
                mapping.release_charge();
                self.forget_block(rx, block.id as usize);
            }
            Payload::Block { .. } => {}
        }
        self.advance(rx, record, true);
    }

    /// Returns the block of a payload, left in use by [`End::detach`], to the sender, and wakes a sender waiting for
    /// room.
    pub(in crate::channel) fn release(&self, payload: &Payload) {
        if let Payload::Block { mapping, record, lane, .. } = payload {
            pool::give_back(mapping, record);
            if let Some(waiting) = lane.peer_waiting() {
                self.wake_for_room(lane, waiting);
            }
        }
    }

    #[inline]
    pub(in crate::channel) fn count(&self, payload: &Payload) {
        self.counts.messages_received.add(1);
        self.counts.bytes_received.add(payload.len() as u64);
        if self.notifies_each.load(Ordering::Relaxed) {
            self.notify_member();
        }
    }

    /// Takes `record` off the ring. The sender gets credit (for the free cells) at once if `now` is set or the message
    /// has handles; otherwise when enough credit is owed.
    #[inline]
    pub(in crate::channel) fn advance(&self, rx: &mut Rx, record: Record, now: bool) {
        if now && let Some(cold) = &mut rx.cold {
            cold.fetched = None;
        }
        if rx.consumer().advance(record) || now || record.header.handles() > 0 {
            self.give_credit(rx);
        }
    }

    #[inline(never)]
    pub(in crate::channel) fn give_credit(&self, rx: &mut Rx) {
        rx.consumer().give_credit();
        self.wake_sender_of(rx);
    }

    /// Reports to the sender how many messages this end took out of the ring to travel in the backlog of a move. The
    /// sender gets no credit for these unreceived messages.
    pub(in crate::channel) fn give_taken(&self, rx: &mut Rx) {
        rx.consumer().give_taken();
        let Rx { consumer: Some(consumer), lane, .. } = rx else { return };
        self.wake_for_room(lane, consumer.memory().waiting());
    }

    /// Wakes the sender of `lane` if, by its sleep word `waiting`, the sender sleeps until there is room.
    pub(super) fn wake_for_room(&self, lane: &Lane, waiting: &AtomicU32) {
        if waiting.load(Ordering::SeqCst) != waiter::AWAKE {
            self.wake_sender(lane, waiting);
        }
    }

    #[cold]
    fn wake_sender(&self, lane: &Lane, waiting: &AtomicU32) {
        let how = lane.take_sleeper(waiting);
        if waiter::wake(lane.current_link(), lane.scope(), waiting, how) {
            self.counts.cold().recv_wake_ups.add(1);
        }
    }

    /// Returns the block of a payload to the sender, if the payload is in a block; does not wake the sender. Drops the
    /// mapping of a block that is used only once.
    pub(in crate::channel) fn let_go(&self, rx: &mut Rx, payload: Payload) {
        match payload {
            Payload::Ring(_) | Payload::Own(_) | Payload::Sealed { .. } => {}
            Payload::Block { mapping, record, .. } => {
                if record.once {
                    self.forget_block(rx, record.id as usize);
                }
                pool::give_back(&mapping, &record);
            }
        }
    }

    /// Drops the mapping of the block with this id, because the sender does not use the block again.
    pub(super) fn forget_block(&self, rx: &mut Rx, id: usize) {
        drop(rx.cold.as_mut().and_then(|cold| cold.blocks.get_mut(id)).and_then(Option::take));
    }
}
