//! How an end of a pipe travels: its channel as any end, its memory as a descriptor, and with them how far it has come.
//!
//! What a message says of a pipe is a claim of its sender's. It must fit the memory, which is looked at; where the counters stand
//! can be anything that a counter can be, and is compared with what the other side says as ever.

use std::os::fd::OwnedFd;

use super::consumer::DataConsumer;
use super::end::End;
use super::producer::DataProducer;
use crate::channel::Channel;
use crate::channel::handle::Handle;
use crate::quota::{Amounts, Charge, Resource};
use crate::ring::stream::{Reading, Shape, Writing};
use crate::shm::PipeMemory;

/// What a message says of an end of a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PipeState {
    writes: bool,
    shape: Shape,
    position: u64,
}

impl PipeState {
    /// Bytes of it in a message.
    pub(crate) const SIZE: usize = 20;

    /// Of an end that nobody uses any more.
    pub(crate) fn of(handle: &Handle) -> Option<Self> {
        match handle {
            Handle::Producer(producer) => {
                // SAFETY: the handle is whole here, so whoever keeps the lock has leaked what borrows it, and never comes back.
                let state = unsafe { producer.shared.state.lock_or_seize() };
                Some(Self { writes: true, shape: state.index.shape(), position: state.index.position() })
            }
            Handle::Consumer(consumer) => {
                // SAFETY: as above.
                let state = unsafe { consumer.shared.state.lock_or_seize() };
                Some(Self { writes: false, shape: state.index.shape(), position: state.index.position() })
            }
            _ => None,
        }
    }

    /// Whether it is of an end that writes.
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

    /// `None` if there is no such pipe.
    pub(crate) fn decode(writes: bool, bytes: &[u8; Self::SIZE]) -> Option<Self> {
        let word = |from: usize| u64::from_le_bytes(bytes[from..from + 8].try_into().expect("eight bytes"));
        let element = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let (shape, position) = (Shape::new(element, word(4))?, word(12));
        Writing::at(shape, position).map(|_| Self { writes, shape, position })
    }

    /// What its memory takes where it arrives.
    pub(crate) fn amounts(&self) -> Amounts {
        let size = PipeMemory::size(self.shape.capacity).unwrap_or(usize::MAX);
        Amounts::of(Resource::Memory, size).and(Resource::Mappings, 1)
    }

    /// Maps what came as its memory.
    pub(crate) fn receive(
        &self,
        fd: OwnedFd,
        charge: Option<Charge>,
    ) -> Result<PipeMemory, (crate::error::Error, OwnedFd)> {
        PipeMemory::received(fd, self.shape.capacity, charge)
    }

    /// The end.
    pub(crate) fn build(&self, channel: Channel, memory: PipeMemory) -> Handle {
        let end = End::new(channel, memory);
        let sound = "looked at when it was decoded";
        if self.writes {
            DataProducer::new(end, Writing::at(self.shape, self.position).expect(sound)).into()
        } else {
            DataConsumer::new(end, Reading::at(self.shape, self.position).expect(sound)).into()
        }
    }
}

impl Handle {
    /// The memory of an end of a pipe.
    pub(crate) fn pipe_memory(&self) -> Option<&PipeMemory> {
        match self {
            Handle::Producer(producer) => Some(&producer.shared.end.memory),
            Handle::Consumer(consumer) => Some(&consumer.shared.end.memory),
            _ => None,
        }
    }
}
