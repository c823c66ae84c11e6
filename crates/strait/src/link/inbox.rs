//! The inbox of a link: attachments received over the socket before the record that refers to them was read.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::io::ReceivedAttachment;
use super::packet::{Packet, PayloadMemory, VERSIONS};
use crate::error::Error;
use crate::quota::closing::ReceivedFd;
use crate::quota::{Amounts, Charge, Ledger, OverLimit, Resource};
use crate::ring::{CELL, MAX_CELLS, MAX_MESSAGE, MIN_CELLS};
use crate::shm::{Mapping, PAYLOAD, Sizes};

/// The most descriptors, and the most messages with handles, from a peer in the inbox of one link. A peer that sends
/// more is a bad peer; an honest peer has at most [`crate::quota::LINK_HANDLES_IN_FLIGHT`] in flight.
const MAX_DESCRIPTORS: usize = 2 * crate::quota::LINK_HANDLES_IN_FLIGHT;

/// The most pieces of memory from a peer in the inbox of one link. A peer that sends more is a bad peer.
const MAX_MEMORIES: usize = 2 * crate::quota::LINK_HANDLES_IN_FLIGHT;

/// The size in bytes of the longest handle table (the description of a message's handles) that a process sends, and of
/// the longest prepended backlog. Such a table contains the unreceived messages of the ends in the message.
pub(crate) const LONGEST_TABLE: usize = 1 << 30;

/// The descriptors of one unreceived message in the inbox. Dropping this value closes the descriptors.
#[derive(Debug, Default)]
pub(crate) struct ReceivedHandles {
    pub(crate) descriptors: Vec<ReceivedFd>,
    /// The number of handles that the sender has sent. Includes handles lost because this process had no free
    /// descriptors.
    pub(crate) sent: usize,
    /// The charge to the peer for the received descriptors.
    pub(crate) charge: Option<Charge>,
}

impl ReceivedHandles {
    /// Adds `sent` handles that arrived as `attachments`, and charges the peer of `ledger` for them. Handles over a
    /// limit are closed, and their message reports the loss: the packet was received and cannot be put back.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the peer lets too many descriptors wait to be closed.
    fn add(
        &mut self,
        sent: u32,
        attachments: impl Iterator<Item = ReceivedAttachment>,
        ledger: &Arc<Ledger>,
    ) -> Result<(), Error> {
        let mut descriptors: Vec<_> = attachments.map(|attachment| attachment.0).collect();
        let charge = match ledger.charge_descriptors(&descriptors) {
            Ok(charge) => charge,
            Err(error) => {
                descriptors.clear();
                if let Error::BadPeer(_) = error {
                    return Err(error);
                }
                None
            }
        };
        self.descriptors.append(&mut descriptors);
        match (&mut self.charge, charge) {
            (Some(charge), Some(more)) => charge.absorb(more),
            (none, charge) => *none = none.take().or(charge),
        }
        self.sent += sent as usize;
        Ok(())
    }
}

/// The content of the peer's open packet: the peer's first outgoing ring of the link, with token and size.
#[derive(Debug)]
pub(crate) struct OpenPacket {
    pub(crate) token: u128,
    pub(crate) cells: u64,
    pub(crate) ring: Arc<Mapping>,
}

/// The key of a piece of memory in an inbox, or in the mailbox of this process: the purpose of the memory, the token of
/// the ring to which the memory belongs, and a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemoryKey {
    /// The memory with the cells of a larger ring, by the token of the ring and the ring's generation.
    Ring(u128, u64),
    /// The memory of a block from the sender's pool, by the token of the ring whose records refer to the block and the
    /// number of the block.
    Block(u128, u64),
    /// The sealed memory with the payload of a message, by the token of the ring and the number of the message.
    Sealed(u128, u64),
    /// The sealed memory with the handle table of a message, by the token of the ring and the number of the message.
    Table(u128, u64),
}

impl MemoryKey {
    /// Returns the keys, in the inbox, of the memory in `packet`, in the order of the packet's attachments. Returns
    /// none if the packet brings no memory, or none that the inbox stores.
    pub(crate) fn of(packet: &Packet) -> impl Iterator<Item = Self> {
        let keys = match *packet {
            Packet::Ring { token, generation } => [Some(Self::Ring(token, generation)), None],
            Packet::Message { token, message, payload, has_table, .. } => {
                let payload = match payload {
                    PayloadMemory::None => None,
                    PayloadMemory::Block(id) => Some(Self::Block(token, id)),
                    PayloadMemory::Sealed => Some(Self::Sealed(token, message)),
                };
                [payload, has_table.then_some(Self::Table(token, message))]
            }
            _ => [None, None],
        };
        keys.into_iter().flatten()
    }

    pub(super) fn is_immutable(self) -> bool {
        matches!(self, Self::Sealed(..) | Self::Table(..))
    }

    /// Returns the range of possible sizes in bytes, both bounds included, of memory with this key. A process that
    /// sends memory of another size is a bad peer.
    pub(super) fn sizes(self) -> Sizes {
        match self {
            Self::Ring(..) => MIN_CELLS * CELL..=MAX_CELLS * CELL,
            Self::Block(..) => PAYLOAD..=PAYLOAD + MAX_MESSAGE,
            Self::Sealed(..) => 1..=MAX_MESSAGE,
            Self::Table(..) => 1..=LONGEST_TABLE,
        }
    }

    /// Returns whether memory with this key is a sealed payload. If so, this process may send the memory on to another
    /// process without a copy.
    fn is_payload(self) -> bool {
        matches!(self, Self::Sealed(..))
    }
}

/// A piece of memory in an inbox, before its record was read.
#[derive(Debug)]
enum Held {
    Mapped(Arc<Mapping>),
    /// Memory that could not be mapped at receipt: its descriptor, and the charge to the peer for the descriptor.
    Arrived(ReceivedAttachment, Option<Charge>),
}

#[derive(Debug)]
pub(crate) struct Inbox {
    open: Option<OpenPacket>,
    opened: bool,
    /// The handles of messages, all those of each message, by the token of the ring and the number of the message.
    handles: BTreeMap<(u128, u64), ReceivedHandles>,
    /// The descriptors ahead of the packet of their message, by the token of the ring.
    ahead: BTreeMap<u128, ReceivedHandles>,
    /// The number of descriptors in `handles` and `ahead`.
    descriptors: usize,
    memories: BTreeMap<MemoryKey, Held>,
    ledger: Arc<Ledger>,
}

impl Inbox {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        let (handles, ahead, memories) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { open: None, opened: false, handles, ahead, descriptors: 0, memories, ledger }
    }

    /// Returns whether the inbox holds the peer's open packet, which brings the first ring of the link. `false` before
    /// the packet was received and after [`take_open`](Self::take_open).
    pub(crate) fn has_open(&self) -> bool {
        self.open.is_some()
    }

    pub(crate) fn take_open(&mut self) -> Option<OpenPacket> {
        self.open.take()
    }

    /// Returns whether the inbox holds no handles and no memory. An open packet does not count.
    pub(crate) fn is_empty(&self) -> bool {
        self.handles.is_empty() && self.ahead.is_empty() && self.memories.is_empty()
    }

    /// Removes and returns the handles of the message with the number `message` in the ring with the token `token`.
    /// Returns `None` until they have arrived, and if fewer than `count` were sent. The returned handles may be fewer
    /// than were sent: some are lost if this process had no free descriptors.
    pub(crate) fn take_handles(&mut self, token: u128, message: u64, count: usize) -> Option<ReceivedHandles> {
        if self.handles.get(&(token, message))?.sent < count {
            return None;
        }
        let handles = self.handles.remove(&(token, message))?;
        self.descriptors -= handles.descriptors.len();
        Some(handles)
    }

    fn remove_memories(&mut self, keys: RangeInclusive<MemoryKey>) {
        while let Some(key) = self.memories.range(keys.clone()).map(|(key, _)| *key).next() {
            self.memories.remove(&key);
        }
    }

    /// Removes the descriptors and the memory for the ring with this token, because no record will refer to them, and
    /// returns the descriptors, for the caller to drop without a lock on the inbox.
    #[must_use]
    pub(crate) fn retract(&mut self, token: u128) -> Vec<ReceivedHandles> {
        if self.is_empty() {
            return Vec::new();
        }
        let keys: Vec<_> = self.handles.range((token, 0)..=(token, u64::MAX)).map(|(key, _)| *key).collect();
        let mut dropped: Vec<_> = keys.iter().filter_map(|key| self.handles.remove(key)).collect();
        dropped.extend(self.ahead.remove(&token));
        self.descriptors -= dropped.iter().map(|handles| handles.descriptors.len()).sum::<usize>();
        for kind in [MemoryKey::Ring, MemoryKey::Block, MemoryKey::Sealed, MemoryKey::Table] {
            self.remove_memories(kind(token, 0)..=kind(token, u64::MAX));
        }
        dropped
    }

    /// Removes and returns the memory with this key, mapped. Returns `None` if no such memory has been received. If the
    /// memory cannot be mapped now, returns that error and leaves the memory in the inbox. `over_limit` says what
    /// happens if the mapping exceeds a limit of the peer.
    pub(crate) fn take_memory(&mut self, key: MemoryKey, over_limit: OverLimit) -> Option<Result<Arc<Mapping>, Error>> {
        match self.memories.remove(&key)? {
            Held::Mapped(mapping) => Some(Ok(mapping)),
            Held::Arrived(attachment, charge) => {
                let mapped = self.map(&attachment, key, over_limit);
                match &mapped {
                    Ok(mapping) => {
                        // If the mapping keeps the descriptor, the mapping has its own charge.
                        drop(charge);
                        self.leave_descriptor(key, attachment, mapping);
                    }
                    Err(_) => {
                        self.memories.insert(key, Held::Arrived(attachment, charge));
                    }
                }
                Some(mapped)
            }
        }
    }

    fn map(
        &self,
        attachment: &ReceivedAttachment,
        key: MemoryKey,
        over_limit: OverLimit,
    ) -> Result<Arc<Mapping>, Error> {
        if key.is_immutable() {
            attachment.map_immutable(key.sizes(), &self.ledger, over_limit)
        } else {
            attachment.map(key.sizes(), &self.ledger, over_limit)
        }
    }

    /// Deals with the descriptor `attachment` of memory that is mapped now. For a sealed payload gives the descriptor
    /// to `mapping`, so that the payload can be sent on. Otherwise closes the descriptor.
    fn leave_descriptor(&self, key: MemoryKey, attachment: ReceivedAttachment, mapping: &Mapping) {
        if key.is_payload() { attachment.leave_descriptor(mapping, &self.ledger) } else { attachment.close_mapped() }
    }

    /// Returns the memory with this key, received as `attachment`. Maps the memory if possible, so that its descriptor
    /// can be closed; otherwise [`Inbox::take_memory`] maps it later.
    fn hold(&self, key: MemoryKey, attachment: Option<ReceivedAttachment>) -> Result<Held, Error> {
        let attachment = attachment.ok_or(Error::BadPeer("a reference to memory that did not arrive"))?;
        if self.memories.len() >= MAX_MEMORIES {
            return Err(Error::BadPeer("more memory than its messages refer to"));
        }
        match self.map(&attachment, key, OverLimit::Refuse) {
            Ok(mapping) => {
                self.leave_descriptor(key, attachment, &mapping);
                Ok(Held::Mapped(mapping))
            }
            Err(error @ Error::BadPeer(_)) => Err(error),
            Err(_) => {
                let charge = self.ledger.charge(Amounts::of(Resource::Descriptors, 1))?;
                Ok(Held::Arrived(attachment, charge))
            }
        }
    }

    /// Drops all handles and all memory in the inbox. A received open packet stays.
    pub(crate) fn clear(&mut self) {
        self.handles.clear();
        self.ahead.clear();
        self.descriptors = 0;
        self.memories.clear();
    }

    /// Stores the peer's open packet, which brings the first ring of the link. Fails with [`Error::BadPeer`] for a
    /// second open packet, or if `version`, the protocol version in the packet, is not the version of this process.
    pub(crate) fn put_open(&mut self, version: u64, open: OpenPacket) -> Result<(), Error> {
        if version != u64::from(VERSIONS.lowest) {
            return Err(Error::BadPeer("an open packet in a version that was not agreed on"));
        }
        if self.opened {
            return Err(Error::BadPeer("a second open packet"));
        }
        self.opened = true;
        self.open = Some(open);
        Ok(())
    }

    /// Stores the handles and memory that arrived with `packet`. Does nothing for packets without contents for the
    /// inbox. After a temporary error nothing has changed, and the call can be repeated. [`Error::BadPeer`] is
    /// permanent.
    pub(crate) fn put(&mut self, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        let mut attachments = attachments.into_iter();
        // All memory of a packet is stored, or none: a record may refer to the memory as soon as it is here.
        let mut held = [None, None];
        for (place, key) in held.iter_mut().zip(MemoryKey::of(&packet)) {
            *place = Some((key, self.hold(key, attachments.next())?));
        }
        self.memories.extend(held.into_iter().flatten());
        match packet {
            Packet::Message { token, message, handles, .. } if handles > 0 => {
                let mut whole = self.ahead.remove(&token).unwrap_or_default();
                let before = whole.descriptors.len();
                whole.add(handles, attachments, &self.ledger)?;
                self.descriptors += whole.descriptors.len() - before;
                let old = self.handles.insert((token, message), whole);
                self.descriptors -= old.map_or(0, |old| old.descriptors.len());
            }
            Packet::Ahead { token, count: 0 } => {
                self.descriptors -= self.ahead.remove(&token).map_or(0, |void| void.descriptors.len());
            }
            Packet::Ahead { token, count } => {
                let ahead = self.ahead.entry(token).or_default();
                let before = ahead.descriptors.len();
                ahead.add(count, attachments, &self.ledger)?;
                self.descriptors += ahead.descriptors.len() - before;
            }
            // The link handles the other packets itself.
            _ => {}
        }
        let is_over = self.descriptors > MAX_DESCRIPTORS || self.handles.len() + self.ahead.len() > MAX_DESCRIPTORS;
        if packet.handles() > 0 && is_over {
            return Err(Error::BadPeer("more descriptors than its messages refer to"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Payer;

    fn files(count: usize) -> Vec<ReceivedAttachment> {
        let file = || std::fs::File::open("/dev/null").unwrap();
        let attach = |_| ReceivedAttachment(ReceivedFd::new(file().into(), &Payer::default()));
        (0..count).map(attach).collect()
    }

    fn message(handles: u32) -> Packet {
        Packet::Message { token: 1, message: 7, payload: PayloadMemory::None, has_table: false, handles }
    }

    /// Shows that handles are counted exactly as long as they are in the inbox, in every way of leaving. With a count
    /// that stays too high, an honest peer would in the end count as a bad peer.
    #[test]
    fn handles_count_as_long_as_they_are_there() {
        let mut inbox = Inbox::new(Ledger::new(None));
        for _ in 0..2 {
            inbox.put(message(3), files(3)).unwrap();
            assert_eq!(inbox.descriptors, 3, "a message replaces one of its number");
        }
        assert_eq!(inbox.take_handles(1, 7, 3).unwrap().descriptors.len(), 3);
        assert_eq!(inbox.descriptors, 0, "received");
        inbox.put(message(3), files(3)).unwrap();
        assert_eq!(inbox.retract(1).len(), 1);
        assert_eq!(inbox.descriptors, 0, "discarded");
        inbox.put(message(3), files(3)).unwrap();
        inbox.clear();
        assert_eq!(inbox.descriptors, 0, "cleared");
    }

    #[test]
    fn a_peer_can_leave_as_many_descriptors_as_the_limit() {
        let mut inbox = Inbox::new(Ledger::new(None));
        inbox.descriptors = MAX_DESCRIPTORS - 1;
        inbox.put(message(1), files(1)).unwrap();
        let more = inbox.put(Packet::Ahead { token: 2, count: 1 }, files(1));
        assert_eq!(more, Err(Error::BadPeer("more descriptors than its messages refer to")));
    }

    /// Shows that descriptors sent ahead of their message are received only with the message. No such descriptor stays
    /// in the inbox once the sender voids them, or retracts the ring's attachments.
    #[test]
    fn descriptors_sent_ahead_are_part_of_the_next_message_or_of_none() {
        let mut inbox = Inbox::new(Ledger::new(None));
        for void in [Some(Packet::Ahead { token: 1, count: 0 }), None] {
            for _ in 0..2 {
                inbox.put(Packet::Ahead { token: 1, count: 2 }, files(2)).unwrap();
            }
            assert!(inbox.take_handles(1, 7, 0).is_none() && !inbox.is_empty());
            match void {
                Some(void) => inbox.put(void, Vec::new()).unwrap(),
                None => assert_eq!(inbox.retract(1).len(), 1),
            }
            assert_eq!((inbox.is_empty(), inbox.descriptors), (true, 0));
        }
        // Descriptors of another ring are not part of the message.
        inbox.put(Packet::Ahead { token: 1, count: 2 }, files(2)).unwrap();
        inbox.put(Packet::Ahead { token: 2, count: 1 }, files(1)).unwrap();
        inbox.put(message(3), files(3)).unwrap();
        let whole = inbox.take_handles(1, 7, 0).unwrap();
        assert_eq!((whole.sent, whole.descriptors.len(), inbox.descriptors), (5, 5, 1));
    }
}
