//! How an end of a data pipe is sent: its channel as any channel end, its memory as a descriptor, and with them the
//! number of bytes that the end has written or read.
//!
//! A message describes the pipe in the words of its sender, which may be wrong. This process checks that the
//! description fits the memory. The counters may have any valid value; this process checks them against those that the
//! other side publishes, as always.

use super::consumer::DataConsumer;
use super::end::PipeCore;
use super::producer::DataProducer;
use crate::channel::{Channel, Handle, PipeState};
use crate::ring::stream::{Reading, Writing};
use crate::shm::PipeMemory;

impl Handle {
    /// Returns the state of a data-pipe end that is about to be sent: whether it writes, the sizes of buffer and
    /// element, and how many bytes the end has written or read. Returns `None` if this handle is no data-pipe end. No
    /// thread may be using the end.
    pub(crate) fn pipe_state(&self) -> Option<PipeState> {
        match self {
            Handle::Producer(producer) => {
                // SAFETY: the handle is owned here as a whole. So if the lock is held, its holder has leaked the value
                // that borrows the end, and never comes back.
                let state = unsafe { producer.shared.state.lock_or_seize() };
                Some(PipeState { writes: true, shape: state.index.shape(), position: state.index.position() })
            }
            Handle::Consumer(consumer) => {
                // SAFETY: as for the producer: if the lock is held, its holder has leaked the value and never comes
                // back.
                let state = unsafe { consumer.shared.state.lock_or_seize() };
                Some(PipeState { writes: false, shape: state.index.shape(), position: state.index.position() })
            }
            _ => None,
        }
    }

    /// Makes the handle of a received data-pipe end from its state, its channel for doorbells and its shared memory.
    /// The state must have been checked when it was decoded; otherwise this call panics.
    pub(crate) fn pipe_end(state: PipeState, channel: Channel, memory: PipeMemory) -> Self {
        let end = PipeCore::new(channel, memory);
        let sound = "looked at when it was decoded";
        if state.writes {
            DataProducer::new(end, Writing::at(state.shape, state.position).expect(sound)).into()
        } else {
            DataConsumer::new(end, Reading::at(state.shape, state.position).expect(sound)).into()
        }
    }

    /// Returns the shared memory of a data-pipe end; `None` if this handle is no data-pipe end.
    pub(crate) fn pipe_memory(&self) -> Option<&PipeMemory> {
        match self {
            Handle::Producer(producer) => Some(&producer.shared.end.memory),
            Handle::Consumer(consumer) => Some(&consumer.shared.end.memory),
            _ => None,
        }
    }
}
