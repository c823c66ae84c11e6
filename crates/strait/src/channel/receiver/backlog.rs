//! The backlog: messages taken out of an end's rings before the program received them.
//!
//! An end that moves takes its unreceived messages along. The destination of the end receives the backlog first.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::Rx;
use super::payload::Payload;
use crate::channel::End;
use crate::channel::handle::Handle;
use crate::channel::message::ReceivedExtras;
use crate::channel::origin::Origin;
use crate::channel::pool::BlockRecord;
use crate::channel::transfer::table::TableAttachment;
use crate::error::Error;
use crate::os::memory;
use crate::quota::{Amounts, Charge, Resource};
use crate::ring::Record;
use crate::shm::Mapping;

/// A message in the backlog of an end: the end took the message out of a ring, with its handles, but the program has
/// not received it yet.
#[derive(Debug)]
pub(in crate::channel) struct BacklogMessage {
    pub(in crate::channel) payload: BacklogPayload,
    pub(in crate::channel) arrived: ReceivedExtras,
    /// The charge to the peer's account for a payload in private memory. `None` for a payload in shared memory (the
    /// mapping holds the charge), for a put-back message, and if the link charges nothing.
    pub(in crate::channel) charge: Option<Charge>,
    /// The charge for the descriptors, made when they arrived. `None` if the message has none, for a put-back message,
    /// and if the link charges nothing.
    pub(in crate::channel) descriptors: Option<Charge>,
    pub(in crate::channel) origin: Origin,
}

/// The payload of a message in the backlog of an end: bytes in private memory, or shared memory.
#[derive(Debug)]
pub(in crate::channel) enum BacklogPayload {
    Bytes(Vec<u8>),
    /// The payload is in a block of the sender's pool, in an earlier lane of this end. This process does not return the
    /// block, so a correct sender does not use the block again. The last field is the length of the payload in bytes.
    Block(Arc<Mapping>, BlockRecord, usize),
    /// The payload is in sealed memory, which cannot change. The second field is its length in bytes.
    Sealed(Arc<Mapping>, usize),
}

impl BacklogPayload {
    pub(in crate::channel) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Block(_, _, len) | Self::Sealed(_, len) => *len,
        }
    }

    /// Appends the bytes of the payload to `out`. Fails if there is no memory for them.
    pub(in crate::channel) fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        let len = self.len();
        if out.try_reserve(len).is_err() {
            return Err(Error::NoMemory { call: "memory for a table of handles" });
        }
        let (mapping, offset) = match self {
            Self::Bytes(bytes) => {
                out.extend_from_slice(bytes);
                return Ok(());
            }
            Self::Block(mapping, block, _) => (mapping, block.at()),
            Self::Sealed(mapping, _) => (mapping, 0),
        };
        mapping.copy_out(offset, &mut out.spare_capacity_mut()[..len]);
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { out.set_len(out.len() + len) };
        Ok(())
    }

    /// Returns a descriptor of memory with the payload, if the payload is in a block or in sealed memory. The memory is
    /// the payload's own if it can be passed on, or else a sealed copy; `Some(Err(_))` if no copy can be made. Returns
    /// `None` for a payload in private memory: those bytes go into the handle table.
    pub(in crate::channel) fn large(&self) -> Option<Result<TableAttachment<'_>, Error>> {
        match self {
            Self::Bytes(_) => None,
            Self::Block(mapping, block, len) => {
                Some(sealed_copy(mapping, block.at(), *len).map(TableAttachment::Memory))
            }
            Self::Sealed(mapping, len) => Some(match mapping.descriptor() {
                Some(fd) if mapping.can_be_passed_on(*len) => Ok(TableAttachment::PassedOn(fd)),
                _ => sealed_copy(mapping, 0, *len).map(TableAttachment::Memory),
            }),
        }
    }
}

impl BacklogMessage {
    /// Drops the message, and returns the channel ends and data-pipe ends among its handles. The other handles are
    /// closed.
    pub(in crate::channel) fn into_ends(self) -> Vec<Handle> {
        self.arrived.into_handles().into_ends()
    }

    /// Copies a payload that is in a block into private memory: the former sender could still change the block. Fails,
    /// and leaves the message unchanged, if there is no memory.
    fn leave_block(&mut self) -> Result<(), Error> {
        let BacklogPayload::Block(mapping, block, len) = &self.payload else { return Ok(()) };
        let (mut bytes, len) = (Vec::new(), *len);
        if bytes.try_reserve_exact(len).is_err() {
            return Err(NO_MEMORY);
        }
        mapping.copy_out(block.at(), &mut bytes.spare_capacity_mut()[..len]);
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { bytes.set_len(len) };
        self.payload = BacklogPayload::Bytes(bytes);
        Ok(())
    }

    /// Splits the message, which has [left its block](Self::leave_block), into payload, handles (or value) and origin.
    fn into_parts(self) -> (Payload, ReceivedExtras, Origin) {
        let payload = match self.payload {
            BacklogPayload::Bytes(bytes) => Payload::Own(bytes),
            BacklogPayload::Sealed(mapping, len) => Payload::Sealed { mapping, len },
            BacklogPayload::Block(..) => unreachable!("a message that is received has left its block"),
        };
        (payload, self.arrived, self.origin)
    }
}

impl Rx {
    /// Takes the first message out of the backlog, split into payload, handles (or value) and origin. Returns `None` if
    /// the backlog is empty. Fails, and leaves the message there, if there is no memory for its payload.
    pub(super) fn pop_parts(&mut self) -> Result<Option<(Payload, ReceivedExtras, Origin)>, Error> {
        match self.backlog().and_then(|all| all.front_mut()) {
            Some(first) => first.leave_block()?,
            None => return Ok(None),
        }
        Ok(self.pop_backlog().map(BacklogMessage::into_parts))
    }
}

/// The error if there is no memory for the bytes of a message.
const NO_MEMORY: Error = Error::NoMemory { call: "memory for the message" };

/// Copies `len` bytes from `offset` of a mapping into new sealed memory, and returns its descriptor.
fn sealed_copy(mapping: &Mapping, mut offset: usize, len: usize) -> Result<OwnedFd, Error> {
    const PIECE: usize = 64 << 10;
    let fd = memory::memfd("strait-sealed", len.max(1))?;
    let mut piece = Vec::with_capacity(PIECE.min(len));
    let mut at = 0;
    while at < len {
        let count = PIECE.min(len - at);
        piece.clear();
        let bytes = mapping.copy_out(offset, &mut piece.spare_capacity_mut()[..count]);
        memory::write_at(&fd, bytes, at as u64)?;
        offset += count;
        at += count;
    }
    memory::seal_all(&fd)?;
    Ok(fd)
}

impl End {
    /// Takes the next message, with the record `record`, and its handles out of the ring, for an end that moves to
    /// another lane. Gives the sender no credit, and leaves a payload in a block there. After a temporary error the
    /// message is still in the ring.
    pub(in crate::channel) fn take_out(&self, rx: &mut Rx, record: Record) -> Result<BacklogMessage, Error> {
        self.take_out_as(rx, record, true)
    }

    /// Takes the next message, with the record `record`, and its handles out of the ring, for an end that stays in the
    /// lane. The sender goes on in this lane, and so gets credit for the cells, and its block back. After a temporary
    /// error the message is still in the ring.
    pub(in crate::channel) fn take_out_and_stay(&self, rx: &mut Rx, record: Record) -> Result<BacklogMessage, Error> {
        self.take_out_as(rx, record, false)
    }

    pub(super) fn take_out_as(&self, rx: &mut Rx, record: Record, leaves: bool) -> Result<BacklogMessage, Error> {
        let payload = self.payload(rx, record)?;
        let mut charge = None;
        let stored = match &payload {
            Payload::Block { mapping, record, len, .. } if leaves => {
                BacklogPayload::Block(mapping.clone(), *record, *len)
            }
            Payload::Sealed { mapping, len } => BacklogPayload::Sealed(mapping.clone(), *len),
            Payload::Own(_) => unreachable!("a message in a ring was not stored"),
            Payload::Ring(_) | Payload::Block { .. } => {
                let len = payload.len();
                let amounts = Amounts::of(Resource::QueuedBytes, len).and(Resource::QueuedMessages, 1);
                charge = rx.charge(amounts)?;
                let mut bytes = Vec::new();
                if bytes.try_reserve_exact(len).is_err() {
                    return Err(NO_MEMORY);
                }
                rx.copy(&payload, 0, &mut bytes.spare_capacity_mut()[..len]);
                // SAFETY: `len` bytes were reserved and have been written just now.
                unsafe { bytes.set_len(len) };
                BacklogPayload::Bytes(bytes)
            }
        };
        // The descriptors stay charged until the program receives the message.
        let (arrived, descriptors) = self.arrived_charged(rx, record)?;
        let stored = if arrived.value().is_some() { BacklogPayload::Bytes(Vec::new()) } else { stored };
        if !leaves {
            self.let_go(rx, payload);
            self.advance(rx, record, true);
        } else {
            // No credit is given. A sender can meanwhile fill the room that is left, and no more.
            if let Some(cold) = &mut rx.cold {
                cold.fetched = None;
            }
            rx.consumer().advance(record);
        }
        Ok(BacklogMessage { payload: stored, arrived, charge, descriptors, origin: rx.origin })
    }
}
