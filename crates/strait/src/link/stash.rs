//! What arrived over a link and waits for the record that refers to it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::io::Arrival;
use super::packet::{Packet, VERSION};
use crate::error::Error;
use crate::shm::Mapping;

/// Most descriptors that a peer can leave here, whatever it sends. Ours never has more than
/// [`crate::channel::HANDLES_IN_FLIGHT`] under way.
const MAX_DESCRIPTORS: usize = 4 * crate::channel::HANDLES_IN_FLIGHT;

/// Most pieces of memory that a peer can leave here.
const MAX_MEMORIES: usize = 2 * crate::channel::HANDLES_IN_FLIGHT;

/// The descriptors of one message.
#[derive(Debug)]
pub(crate) struct Handles {
    pub(crate) descriptors: Vec<OwnedFd>,
    /// How many were sent.
    pub(crate) sent: usize,
}

/// The peer's first packet.
#[derive(Debug)]
pub(crate) struct Hello {
    pub(crate) token: u128,
    pub(crate) message_quota: u64,
    pub(crate) ring: Arc<Mapping>,
}

/// Memory by what it is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum MemoryKey {
    /// Cells of a larger ring, by generation.
    Ring(u128, u64),
    /// A block of the pool, by number.
    Block(u128, u64),
    /// A sealed payload, by the message's sequence number.
    Sealed(u128, u64),
}

#[derive(Debug)]
pub(crate) struct Stash {
    hello: Option<Hello>,
    greeted: bool,
    handles: HashMap<(u128, u64), Handles>,
    descriptors: usize,
    memories: HashMap<MemoryKey, Arc<Mapping>>,
    /// Bytes of memory that the peer may still have us map.
    memory_left: usize,
}

impl Stash {
    pub(crate) fn new(peer_memory: usize) -> Self {
        Self {
            hello: None,
            greeted: false,
            handles: HashMap::new(),
            descriptors: 0,
            memories: HashMap::new(),
            memory_left: peer_memory,
        }
    }

    pub(crate) fn take_hello(&mut self) -> Option<Hello> {
        self.hello.take()
    }

    pub(crate) fn take_handles(&mut self, token: u128, sequence: u64) -> Option<Handles> {
        let handles = self.handles.remove(&(token, sequence))?;
        // Those of earlier messages were sent for nothing: their message failed after them.
        self.handles.retain(|(lane, number), _| *lane != token || *number > sequence);
        self.descriptors = self.handles.values().map(|handles| handles.descriptors.len()).sum();
        Some(handles)
    }

    pub(crate) fn take_memory(&mut self, key: MemoryKey) -> Option<Arc<Mapping>> {
        let memory = self.memories.remove(&key)?;
        if let MemoryKey::Sealed(token, sequence) = key {
            // As with handles.
            let left = &mut self.memory_left;
            self.memories.retain(|key, mapping| {
                let stale = matches!(*key, MemoryKey::Sealed(lane, number) if lane == token && number < sequence);
                *left += if stale { mapping.len() } else { 0 };
                !stale
            });
        }
        Some(memory)
    }

    /// Memory of the peer's was unmapped.
    pub(crate) fn give_back_memory(&mut self, bytes: usize) {
        self.memory_left += bytes;
    }

    fn map(&mut self, arrivals: Vec<Arrival>, immutable: bool) -> Result<Arc<Mapping>, Error> {
        let mapping = match arrivals.into_iter().next() {
            None => return Err(Error::BadPeer("memory that did not come")),
            Some(Arrival::Memory(mapping)) => mapping,
            Some(Arrival::Descriptor(fd)) if immutable => Mapping::received_immutable(fd.as_fd(), self.memory_left)?,
            Some(Arrival::Descriptor(fd)) => Mapping::received(fd.as_fd(), self.memory_left)?,
        };
        self.memory_left = self.memory_left.saturating_sub(mapping.len());
        Ok(mapping)
    }

    fn keep(&mut self, key: MemoryKey, arrivals: Vec<Arrival>) -> Result<(), Error> {
        let immutable = matches!(key, MemoryKey::Sealed(..));
        let mapping = self.map(arrivals, immutable)?;
        if self.memories.len() == MAX_MEMORIES {
            return Err(Error::BadPeer("more memory than its messages refer to"));
        }
        // What stood there was sent for nothing: its message failed after it.
        if let Some(old) = self.memories.insert(key, mapping) {
            self.memory_left += old.len();
        }
        Ok(())
    }

    /// Puts away what came with a packet.
    pub(crate) fn put(&mut self, packet: Packet, arrivals: Vec<Arrival>) -> Result<(), Error> {
        match packet {
            Packet::Wake => Ok(()),
            Packet::Hello { token, version, message_quota, .. } => {
                if version != VERSION {
                    return Err(Error::BadPeer("it speaks another version of the protocol"));
                }
                if std::mem::replace(&mut self.greeted, true) {
                    return Err(Error::BadPeer("it said hello twice"));
                }
                let ring = self.map(arrivals, false)?;
                self.hello = Some(Hello { token, message_quota, ring });
                Ok(())
            }
            Packet::Ring { token, generation } => self.keep(MemoryKey::Ring(token, generation), arrivals),
            Packet::Block { token, id } => self.keep(MemoryKey::Block(token, id), arrivals),
            Packet::Sealed { token, sequence, handles } => {
                let mut arrivals = arrivals.into_iter();
                self.keep(MemoryKey::Sealed(token, sequence), arrivals.next().into_iter().collect())?;
                if handles > 0 { self.keep_handles(token, sequence, handles, arrivals.collect()) } else { Ok(()) }
            }
            Packet::Handles { token, sequence, count } => self.keep_handles(token, sequence, count, arrivals),
        }
    }

    fn keep_handles(&mut self, token: u128, sequence: u64, sent: u32, arrivals: Vec<Arrival>) -> Result<(), Error> {
        let descriptors: Vec<OwnedFd> = arrivals
            .into_iter()
            .filter_map(|arrival| match arrival {
                Arrival::Descriptor(fd) => Some(fd),
                Arrival::Memory(_) => None,
            })
            .collect();
        self.descriptors += descriptors.len();
        if self.descriptors > MAX_DESCRIPTORS || self.handles.len() > MAX_DESCRIPTORS {
            return Err(Error::BadPeer("more descriptors than its messages refer to"));
        }
        let handles = Handles { descriptors, sent: sent as usize };
        if let Some(old) = self.handles.insert((token, sequence), handles) {
            self.descriptors -= old.descriptors.len();
        }
        Ok(())
    }
}
