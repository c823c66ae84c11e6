//! What arrived over a link and waits for the record that refers to it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::io::Arrival;
use super::packet::{Packet, VERSION};
use crate::error::Error;
use crate::shm::Mapping;

/// Most descriptors that a peer can leave here, whatever it sends. Ours never has more than
/// [`crate::options::HANDLES_IN_FLIGHT`] under way.
const MAX_DESCRIPTORS: usize = 2 * crate::options::HANDLES_IN_FLIGHT;

/// Most pieces of memory that a peer can leave here.
const MAX_MEMORIES: usize = 2 * crate::options::HANDLES_IN_FLIGHT;

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

/// Memory that has arrived.
#[derive(Debug)]
enum Held {
    Mapped(Arc<Mapping>),
    /// It could not be mapped when it came.
    Arrived(Arrival),
}

#[derive(Debug)]
pub(crate) struct Stash {
    hello: Option<Hello>,
    greeted: bool,
    handles: HashMap<(u128, u64), Handles>,
    descriptors: usize,
    memories: HashMap<MemoryKey, Held>,
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

    /// The memory of this key, if it came; the error, if it cannot be mapped now, and then it stays.
    pub(crate) fn take_memory(&mut self, key: MemoryKey) -> Option<Result<Arc<Mapping>, Error>> {
        match self.memories.remove(&key)? {
            Held::Mapped(mapping) => Some(Ok(mapping)),
            Held::Arrived(arrival) => {
                let mapped = self.map(&arrival, matches!(key, MemoryKey::Sealed(..)));
                if mapped.is_err() {
                    self.memories.insert(key, Held::Arrived(arrival));
                }
                Some(mapped)
            }
        }
    }

    /// Memory of the peer's was unmapped.
    pub(crate) fn give_back_memory(&mut self, bytes: usize) {
        self.memory_left += bytes;
    }

    fn map(&mut self, arrival: &Arrival, immutable: bool) -> Result<Arc<Mapping>, Error> {
        let mapping = match arrival {
            Arrival::Memory(mapping) => mapping.clone(),
            Arrival::Descriptor(fd) if immutable => Mapping::received_immutable(fd.as_fd(), self.memory_left)?,
            Arrival::Descriptor(fd) => Mapping::received(fd.as_fd(), self.memory_left)?,
        };
        self.memory_left = self.memory_left.saturating_sub(mapping.len());
        Ok(mapping)
    }

    fn keep(&mut self, key: MemoryKey, arrival: Option<Arrival>) -> Result<(), Error> {
        let arrival = arrival.ok_or(Error::BadPeer("memory that did not come"))?;
        let immutable = matches!(key, MemoryKey::Sealed(..));
        if self.memories.len() == MAX_MEMORIES {
            return Err(Error::BadPeer("more memory than its messages refer to"));
        }
        // Mapped at once, so that its descriptor can be closed; or, if that cannot be now, when it is asked for.
        let held = match self.map(&arrival, immutable) {
            Ok(mapping) => Held::Mapped(mapping),
            Err(error @ Error::BadPeer(_)) => return Err(error),
            Err(_) => Held::Arrived(arrival),
        };
        if let Some(Held::Mapped(old)) = self.memories.insert(key, held) {
            self.memory_left += old.len();
        }
        Ok(())
    }

    fn keep_both(
        &mut self,
        key: MemoryKey,
        token: u128,
        sequence: u64,
        handles: u32,
        arrivals: Vec<Arrival>,
    ) -> Result<(), Error> {
        let mut arrivals = arrivals.into_iter();
        self.keep(key, arrivals.next())?;
        if handles > 0 { self.keep_handles(token, sequence, handles, arrivals.collect()) } else { Ok(()) }
    }

    /// Lets go of what will not be asked for.
    pub(crate) fn clear(&mut self) {
        self.handles.clear();
        self.descriptors = 0;
        self.memories.clear();
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
                let ring = arrivals.first().ok_or(Error::BadPeer("memory that did not come"))?;
                let ring = self.map(ring, false)?;
                self.hello = Some(Hello { token, message_quota, ring });
                Ok(())
            }
            Packet::Ring { token, generation } => {
                self.keep(MemoryKey::Ring(token, generation), arrivals.into_iter().next())
            }
            Packet::Block { token, id, sequence, handles } => {
                self.keep_both(MemoryKey::Block(token, id), token, sequence, handles, arrivals)
            }
            Packet::Sealed { token, sequence, handles } => {
                self.keep_both(MemoryKey::Sealed(token, sequence), token, sequence, handles, arrivals)
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
