//! Messages that were taken out of the rings of earlier lanes, when their end moved.
//!
//! An end that moves takes along what it has not received. Its new holder receives that first.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::recv::Body;
use crate::account::Charge;
use crate::error::Error;
use crate::handle::Handle;
use crate::message::Arrived;
use crate::origin::Origin;
use crate::pool::PAYLOAD;
use crate::shm::Mapping;
use crate::sys::memory;

/// A message that was sent and not received, with its handles.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) body: KeptBody,
    pub(super) arrived: Arrived,
    /// For what is in private memory.
    pub(super) charge: Option<Charge>,
    pub(super) origin: Origin,
}

/// Its bytes.
#[derive(Debug)]
pub(super) enum KeptBody {
    Bytes(Vec<u8>),
    /// In a block of the former sender's pool, which that one uses no more.
    Block(Arc<Mapping>, usize),
    /// In memory that cannot change.
    Sealed(Arc<Mapping>, usize),
}

impl KeptBody {
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Block(_, len) | Self::Sealed(_, len) => *len,
        }
    }

    /// The bytes in memory of their own, if they are too many to be copied into a table.
    pub(super) fn large(&self) -> Option<Result<OwnedFd, Error>> {
        match self {
            Self::Bytes(_) => None,
            Self::Block(mapping, len) => Some(sealed_copy(mapping, PAYLOAD, *len)),
            Self::Sealed(mapping, len) => Some(sealed_copy(mapping, 0, *len)),
        }
    }
}

impl Kept {
    /// Its handles.
    pub(super) fn into_handles(self) -> Vec<Handle> {
        self.arrived.into_handles()
    }

    /// As the body of a message that is received.
    pub(super) fn into_parts(self) -> (Body, Arrived, Origin) {
        let body = match self.body {
            KeptBody::Bytes(bytes) => Body::Own(bytes),
            KeptBody::Sealed(mapping, len) => Body::Sealed { mapping, len },
            KeptBody::Block(mapping, len) => {
                // Copied once, as it could still change.
                let mut bytes = Vec::with_capacity(len);
                mapping.copy_out(PAYLOAD, &mut bytes.spare_capacity_mut()[..len]);
                // SAFETY: `len` bytes were reserved and have been written just now.
                unsafe { bytes.set_len(len) };
                Body::Own(bytes)
            }
        };
        (body, self.arrived, self.origin)
    }
}

/// Copies bytes into memory of their own that cannot change any more.
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
