//! The description of a data-pipe end in a message.

use std::os::fd::OwnedFd;

use crate::error::Error;
use crate::quota::{Amounts, Charge, Resource};
use crate::ring::stream::{Shape, Writing};
use crate::shm::PipeMemory;

/// The state of a data-pipe end as a message describes it: direction, element size, capacity and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PipeState {
    pub(crate) writes: bool,
    pub(crate) shape: Shape,
    pub(crate) position: u64,
}

impl PipeState {
    /// Number of bytes that the state of a data-pipe end takes in a handle table.
    pub(crate) const SIZE: usize = 20;

    /// Returns whether this is the state of the writing end (the producer) of a data pipe.
    pub(crate) fn writes(&self) -> bool {
        self.writes
    }

    pub(crate) fn encode(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..4].copy_from_slice(&self.shape.element.to_le_bytes());
        bytes[4..12].copy_from_slice(&self.shape.capacity.to_le_bytes());
        bytes[12..].copy_from_slice(&self.position.to_le_bytes());
        bytes
    }

    /// Decodes the state of a data-pipe end from a handle table. `writes` says whether the end is the producer. Returns
    /// `None` if no data-pipe end can have such a state.
    pub(crate) fn decode(writes: bool, bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let word = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let element = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let (shape, position) = (Shape::new(element, word(4))?, word(12));
        Writing::at(shape, position).map(|_| Self { writes, shape, position })
    }

    /// Returns the amounts that the memory of the data pipe is charged in the receiving process: its bytes and one
    /// mapping.
    pub(crate) fn amounts(&self) -> Amounts {
        let size = PipeMemory::size(self.shape.capacity).unwrap_or(usize::MAX);
        Amounts::of(Resource::Memory, size).and(Resource::Mappings, 1)
    }

    /// Maps the memory of the data pipe from the received descriptor. The memory holds `charge` until it is unmapped.
    /// On an error returns the descriptor with it.
    pub(crate) fn receive(&self, fd: OwnedFd, charge: Option<Charge>) -> Result<PipeMemory, (Error, OwnedFd)> {
        PipeMemory::received(fd, self.shape.capacity, charge)
    }
}
