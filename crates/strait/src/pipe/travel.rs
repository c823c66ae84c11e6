//! How an end of a data pipe is sent: its channel as any channel end, its memory as a descriptor, and with them how far
//! the end has come.
//!
//! What a message says about a pipe is its sender's claim. The claim must fit the memory, which is checked. The
//! counters may have any valid value; they are checked against what the other side publishes, as always.

use std::os::fd::OwnedFd;

use super::consumer::DataConsumer;
use super::end::PipeCore;
use super::producer::DataProducer;
use crate::channel::Channel;
use crate::channel::handle::Handle;
use crate::quota::{Amounts, Charge, Resource};
use crate::ring::stream::{Reading, Shape, Writing};
use crate::shm::PipeMemory;

/// The state of a data-pipe end as a message describes it: direction, element size, capacity and position.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PipeState {
    writes: bool,
    shape: Shape,
    position: u64,
}

impl PipeState {
    /// The number of bytes that the state of a data-pipe end takes in a message.
    pub(crate) const SIZE: usize = 20;

    /// Returns the state of a data-pipe end that is about to be sent and that no thread uses; `None` for other handles.
    pub(crate) fn of(handle: &Handle) -> Option<Self> {
        match handle {
            Handle::Producer(producer) => {
                // SAFETY: the handle is owned here as a whole. So if the lock is held, its holder has leaked the value
                // that borrows the end, and never comes back.
                let state = unsafe { producer.shared.state.lock_or_seize() };
                Some(Self { writes: true, shape: state.index.shape(), position: state.index.position() })
            }
            Handle::Consumer(consumer) => {
                // SAFETY: as above, for the consumer.
                let state = unsafe { consumer.shared.state.lock_or_seize() };
                Some(Self { writes: false, shape: state.index.shape(), position: state.index.position() })
            }
            _ => None,
        }
    }

    /// Returns whether this is the writing end.
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

    /// Decodes the state of a data-pipe end from a message. Returns `None` if there cannot be such an end.
    pub(crate) fn decode(writes: bool, bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let word = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let element = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let (shape, position) = (Shape::new(element, word(4))?, word(12));
        Writing::at(shape, position).map(|_| Self { writes, shape, position })
    }

    /// Returns what the pipe's memory counts against the limits of the receiving process: its bytes and one mapping.
    pub(crate) fn amounts(&self) -> Amounts {
        let size = PipeMemory::size(self.shape.capacity).unwrap_or(usize::MAX);
        Amounts::of(Resource::Memory, size).and(Resource::Mappings, 1)
    }

    /// Maps the received descriptor as the pipe's memory. The descriptor comes back with an error.
    pub(crate) fn receive(
        &self,
        fd: OwnedFd,
        charge: Option<Charge>,
    ) -> Result<PipeMemory, (crate::error::Error, OwnedFd)> {
        PipeMemory::received(fd, self.shape.capacity, charge)
    }

    /// Makes the data-pipe end from its channel and its memory.
    pub(crate) fn build(&self, channel: Channel, memory: PipeMemory) -> Handle {
        let end = PipeCore::new(channel, memory);
        let sound = "looked at when it was decoded";
        if self.writes {
            DataProducer::new(end, Writing::at(self.shape, self.position).expect(sound)).into()
        } else {
            DataConsumer::new(end, Reading::at(self.shape, self.position).expect(sound)).into()
        }
    }
}

impl Handle {
    /// Returns the memory of a data-pipe end; `None` for other handles.
    pub(crate) fn pipe_memory(&self) -> Option<&PipeMemory> {
        match self {
            Handle::Producer(producer) => Some(&producer.shared.end.memory),
            Handle::Consumer(consumer) => Some(&consumer.shared.end.memory),
            _ => None,
        }
    }
}
