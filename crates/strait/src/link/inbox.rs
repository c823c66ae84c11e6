//! The inbox of a link: what arrived over the socket before the record that refers to it was read.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::io::ReceivedAttachment;
use super::packet::{Packet, PayloadMemory, VERSIONS};
use super::routes::retention::InTransit;
use crate::channel::End;
use crate::channel::handle::Handle;
use crate::channel::message::Valued;
use crate::channel::unclaimed::UnclaimedHandles;
use crate::error::Error;
use crate::quota::{Amounts, Charge, Ledger, Payer, Resource, closing};
use crate::ring::{CELL, MAX_CELLS, MAX_MESSAGE, MIN_CELLS};
use crate::shm::{Mapping, PAYLOAD, Sizes};

/// The most descriptors, and the most messages with handles, that a peer can leave in the inbox of one link. A peer
/// that sends more is a bad peer; an honest peer has at most [`crate::quota::LINK_HANDLES_IN_FLIGHT`] in flight.
const MAX_DESCRIPTORS: usize = 2 * crate::quota::LINK_HANDLES_IN_FLIGHT;

/// The most pieces of memory that a peer can leave in the inbox of one link. A peer that sends more is a bad peer.
const MAX_MEMORIES: usize = 2 * crate::quota::LINK_HANDLES_IN_FLIGHT;

/// The size in bytes of the longest handle table (the description of a message's handles) that this process maps. No
/// process has enough handles for a longer table.
const LONGEST_TABLE: usize = 1 << 40;

/// The handles of one message in the inbox, which no end has received yet: descriptors and, in messages of this process
/// to itself, channel ends too.
#[derive(Debug, Default)]
pub(crate) struct Handles {
    pub(crate) handles: UnclaimedHandles,
    /// The object that this process sends to itself as a message (a value); `None` for any other message. A message
    /// that is a value has no handles.
    pub(crate) value: Option<Valued>,
    /// The number of handles that the sender has sent. Counts also handles that were lost because this process had no
    /// free descriptors.
    pub(crate) sent: usize,
    /// Whether these handles belong to a message that this process is sending to itself and has not committed. The
    /// sending thread removes them again if it cannot commit the message.
    is_uncommitted: bool,
    /// The charge to the peer for the received handles; `None` for handles that this process sends to itself.
    charge: Option<Charge>,
    /// The retention mark for channel ends among these handles; `None` if there are none. The channel ends may lie in
    /// the inbox until the end that receives them arrives in this process.
    in_transit: Option<InTransit>,
}

impl Handles {
    /// Creates the entry in the inbox for the handles of a message that this process sends to itself and has not
    /// committed yet. `in_transit` is the retention mark for channel ends among `handles`.
    pub(crate) fn of(handles: Vec<Handle>, in_transit: Option<InTransit>) -> Self {
        let (sent, handles) = (handles.len(), UnclaimedHandles::new(handles, Payer::default()));
        Self { sent, handles, is_uncommitted: true, in_transit, ..Self::default() }
    }

    /// Creates the entry in the inbox for a value: an object that this process sends to itself as a message and has not
    /// committed yet. A value counts as one handle.
    pub(crate) fn of_value(value: Option<Valued>) -> Self {
        Self { value, sent: 1, is_uncommitted: true, ..Self::default() }
    }

    /// Returns these handles marked as those of a committed message, whose record is in the ring.
    pub(crate) fn committed(self) -> Self {
        Self { is_uncommitted: false, ..self }
    }

    /// Adds `sent` handles that arrived as `attachments`, and charges the peer of `ledger` for them. Handles over a limit
    /// are closed, and their message reports that: their packet was received and cannot be put back.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the peer lets too many descriptors wait to be closed.
    fn add(
        &mut self,
        sent: u32,
        attachments: impl Iterator<Item = ReceivedAttachment>,
        ledger: &Arc<Ledger>,
    ) -> Result<(), Error> {
        let mut descriptors: Vec<_> = attachments.filter_map(ReceivedAttachment::into_fd).collect();
        let payer = ledger.payer();
        let charge = match ledger.charge_descriptors(&descriptors) {
            Ok(charge) => charge,
            Err(error) => {
                descriptors.drain(..).for_each(|fd| closing::close(fd, &payer));
                if let Error::BadPeer(_) = error {
                    return Err(error);
                }
                None
            }
        };
        self.handles.add(descriptors, &payer);
        match (&mut self.charge, charge) {
            (Some(charge), Some(more)) => charge.absorb(more),
            (none, charge) => *none = none.take().or(charge),
        }
        self.sent += sent as usize;
        Ok(())
    }

    /// Returns whether these handles have a retention mark, because channel ends among them may lie in the inbox until
    /// the end that receives them arrives.
    pub(crate) fn is_in_transit(&self) -> bool {
        self.in_transit.is_some()
    }
}

/// The content of the peer's open packet: the first ring of the link that the peer writes, with its token and size.
#[derive(Debug)]
pub(crate) struct OpenPacket {
    pub(crate) token: u128,
    pub(crate) cells: u64,
    pub(crate) ring: Arc<Mapping>,
}

/// The key by which an inbox finds a piece of memory: the purpose of the memory, the token of the ring to which the
/// memory belongs, and a number.
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
    /// Returns the keys under which the inbox stores the memory that `packet` brings, in the order of the packet's
    /// attachments. Returns none if the packet brings no memory, or none that the inbox stores.
    pub(super) fn of(packet: &Packet) -> impl Iterator<Item = Self> {
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

    /// Returns the range of sizes in bytes, both bounds included, that memory with this key may have. A process that
    /// sends memory of another size is a bad peer.
    pub(super) fn sizes(self) -> Sizes {
        match self {
            Self::Ring(..) => MIN_CELLS * CELL..=MAX_CELLS * CELL,
            Self::Block(..) => PAYLOAD..=PAYLOAD + MAX_MESSAGE,
            Self::Sealed(..) => 1..=MAX_MESSAGE,
            Self::Table(..) => 1..=LONGEST_TABLE,
        }
    }

    /// Returns whether memory with this key is a sealed payload, which this process may send on to another process
    /// without a copy.
    fn is_payload(self) -> bool {
        matches!(self, Self::Sealed(..))
    }
}

/// A piece of memory in an inbox, to which no record that was read has referred yet.
#[derive(Debug)]
enum Held {
    Mapped(Arc<Mapping>),
    /// Memory that could not be mapped when it was received: its descriptor, and the charge to the peer for that
    /// descriptor.
    Arrived(ReceivedAttachment, Option<Charge>),
}

/// Returns the range of the keys under which the inbox stores the handles of all messages in the ring with this token.
fn all_of(token: u128) -> RangeInclusive<(u128, u64)> {
    (token, 0)..=(token, u64::MAX)
}

#[derive(Debug)]
pub(crate) struct Inbox {
    open: Option<OpenPacket>,
    opened: bool,
    /// The handles of messages, all those of each message, by the token of the ring and the number of the message.
    handles: BTreeMap<(u128, u64), Handles>,
    /// The descriptors that came ahead of the packet of their message, by the token of the ring.
    ahead: BTreeMap<u128, Handles>,
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
    pub(crate) fn take_handles(&mut self, token: u128, message: u64, count: usize) -> Option<Handles> {
        if self.handles.get(&(token, message))?.sent < count {
            return None;
        }
        let handles = self.handles.remove(&(token, message))?;
        self.descriptors -= handles.handles.len();
        Some(handles)
    }

    fn remove_memories(&mut self, keys: RangeInclusive<MemoryKey>) {
        while let Some(key) = self.memories.range(keys.clone()).map(|(key, _)| *key).next() {
            self.memories.remove(&key);
        }
    }

    /// Removes the handles and the memory for the rings with these tokens, because no record will refer to them, and
    /// returns the handles. The caller must drop the handles without a lock on the inbox, because they may contain
    /// channel ends. Handles of messages that are not [committed](Self::committed) yet stay in the inbox.
    #[must_use]
    pub(crate) fn retract(&mut self, tokens: RangeInclusive<u128>) -> Vec<Handles> {
        if self.is_empty() {
            return Vec::new();
        }
        let (first, last) = tokens.into_inner();
        let all = self.handles.range((first, 0)..=(last, u64::MAX));
        let keys: Vec<_> = all.filter(|(_, handles)| !handles.is_uncommitted).map(|(key, _)| *key).collect();
        let ahead: Vec<_> = self.ahead.range(first..=last).map(|(token, _)| *token).collect();
        let mut dropped: Vec<_> = keys.iter().filter_map(|key| self.handles.remove(key)).collect();
        dropped.extend(ahead.iter().filter_map(|token| self.ahead.remove(token)));
        self.descriptors -= dropped.iter().map(|handles| handles.handles.len()).sum::<usize>();
        for kind in [MemoryKey::Ring, MemoryKey::Block, MemoryKey::Sealed, MemoryKey::Table] {
            self.remove_memories(kind(first, 0)..=kind(last, u64::MAX));
        }
        dropped
    }

    /// Returns the channel ends among the handles in the inbox for the ring with this token. The ends stay in the
    /// inbox.
    pub(crate) fn ends_for(&self, token: u128) -> Vec<Arc<End>> {
        let handles = self.handles.range(all_of(token)).flat_map(|(_, handles)| handles.handles.iter());
        handles.filter_map(Handle::as_end).cloned().collect()
    }

    /// Returns, in ascending order, the tokens in this range that name rings for which the inbox has handles.
    pub(crate) fn tokens(&self, tokens: RangeInclusive<u128>) -> Vec<u128> {
        let (first, last) = tokens.into_inner();
        let mut found: Vec<_> =
            self.handles.range((first, 0)..=(last, u64::MAX)).map(|((token, _), _)| *token).collect();
        found.dedup();
        found
    }

    /// Removes and returns the memory with this key, mapped. Returns `None` if no such memory has been received. If the
    /// memory cannot be mapped now, returns that error and leaves the memory in the inbox.
    pub(crate) fn take_memory(&mut self, key: MemoryKey) -> Option<Result<Arc<Mapping>, Error>> {
        match self.memories.remove(&key)? {
            Held::Mapped(mapping) => Some(Ok(mapping)),
            Held::Arrived(attachment, charge) => {
                let mapped = self.map(&attachment, key);
                match &mapped {
                    Ok(mapping) => {
                        // The mapping carries a charge of its own if it keeps the descriptor.
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

    fn map(&self, attachment: &ReceivedAttachment, key: MemoryKey) -> Result<Arc<Mapping>, Error> {
        if key.is_immutable() {
            attachment.map_immutable(key.sizes(), &self.ledger)
        } else {
            attachment.map(key.sizes(), &self.ledger)
        }
    }

    /// Deals with the descriptor `attachment` of memory that is mapped now. For a sealed payload gives the descriptor
    /// to `mapping`, so that the payload can be sent on. Otherwise closes the descriptor.
    fn leave_descriptor(&self, key: MemoryKey, attachment: ReceivedAttachment, mapping: &Mapping) {
        if key.is_payload() { attachment.leave_descriptor(mapping, &self.ledger) } else { attachment.close_mapped() }
    }

    /// Returns the memory with this key that arrived as `attachment`: mapped where possible, so that its descriptor can
    /// be closed. Otherwise [`Inbox::take_memory`] maps the memory.
    fn hold(&self, key: MemoryKey, attachment: Option<ReceivedAttachment>) -> Result<Held, Error> {
        let attachment = attachment.ok_or(Error::BadPeer("a reference to memory that did not arrive"))?;
        // A process may send itself more, because what is in flight is no longer counted once the end that sent it is
        // closed.
        if self.memories.len() >= MAX_MEMORIES && self.ledger.memory().is_some() {
            return Err(Error::BadPeer("more memory than its messages refer to"));
        }
        match self.map(&attachment, key) {
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
    /// second open packet, or if `version`, the protocol version in the packet, is not the one that this process uses.
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

    /// Stores the handles and memory that arrived with `packet`. Does nothing for packets that bring nothing that the
    /// inbox stores. After a temporary error nothing has changed, and the call can be repeated. [`Error::BadPeer`] is
    /// permanent.
    pub(crate) fn put(&mut self, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        let mut attachments = attachments.into_iter();
        // All memory of a packet is stored, or none: a record may refer to it as soon as it is here.
        let mut held = [None, None];
        for (place, key) in held.iter_mut().zip(MemoryKey::of(&packet)) {
            *place = Some((key, self.hold(key, attachments.next())?));
        }
        self.memories.extend(held.into_iter().flatten());
        match packet {
            Packet::Message { token, message, handles, .. } if handles > 0 => {
                let mut whole = self.ahead.remove(&token).unwrap_or_default();
                let before = whole.handles.len();
                whole.add(handles, attachments, &self.ledger)?;
                self.descriptors += whole.handles.len() - before;
                let old = self.handles.insert((token, message), whole);
                self.descriptors -= old.map_or(0, |old| old.handles.len());
            }
            Packet::Ahead { token, count: 0 } => {
                self.descriptors -= self.ahead.remove(&token).map_or(0, |void| void.handles.len());
            }
            Packet::Ahead { token, count } => {
                let ahead = self.ahead.entry(token).or_default();
                let before = ahead.handles.len();
                ahead.add(count, attachments, &self.ledger)?;
                self.descriptors += ahead.handles.len() - before;
            }
            // The link handles the other packets itself.
            _ => {}
        }
        // What a process has sent to itself has no such limit, and came without a packet.
        let is_over = self.descriptors > MAX_DESCRIPTORS || self.handles.len() + self.ahead.len() > MAX_DESCRIPTORS;
        if packet.handles() > 0 && is_over {
            return Err(Error::BadPeer("more descriptors than its messages refer to"));
        }
        Ok(())
    }

    /// Stores the handles of a message that this process sends to itself and is about to [commit](Self::committed).
    /// `token` is the token of the ring, and `message` the number of the message. Returns the handles that were stored under
    /// them before, for the caller to drop without a lock: only a peer that shares the memory of both ends can have
    /// caused that. Otherwise returns `None`.
    #[must_use]
    pub(crate) fn deposit(&mut self, token: u128, message: u64, handles: Handles) -> Option<Handles> {
        self.descriptors += handles.handles.len();
        let old = self.handles.insert((token, message), handles);
        self.descriptors -= old.as_ref().map_or(0, |old| old.handles.len());
        old
    }

    /// Marks the handles of a message of this process to itself as committed: the record of the message is in the ring
    /// now. `token` is the token of that ring, and `message` the number of the message.
    /// [`retract`](Self::retract) leaves uncommitted handles in the inbox. So after this call the sender checks whether
    /// the other end has been closed meanwhile, and if so discards what the inbox holds for the ring.
    pub(crate) fn committed(&mut self, token: u128, message: u64) {
        if let Some(handles) = self.handles.get_mut(&(token, message)) {
            handles.is_uncommitted = false;
        }
    }

    /// Returns whether the message with this token and number is a value (an object that stays in this process)
    /// in the inbox, which no end has received yet.
    pub(crate) fn is_value(&self, token: u128, message: u64) -> bool {
        self.handles.get(&(token, message)).is_some_and(|handles| handles.value.is_some())
    }

    /// Returns whether the inbox has a value (a message that is an object of this process) for the ring with this
    /// token.
    pub(crate) fn has_value_for(&self, token: u128) -> bool {
        self.handles.range(all_of(token)).any(|(_, handles)| handles.value.is_some())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(count: usize) -> Vec<ReceivedAttachment> {
        let file = || std::fs::File::open("/dev/null").unwrap();
        let attach = |_| ReceivedAttachment::Descriptor(closing::ReceivedFd::new(file().into(), &Payer::default()));
        (0..count).map(attach).collect()
    }

    fn message(handles: u32) -> Packet {
        Packet::Message { token: 1, message: 7, payload: PayloadMemory::None, has_table: false, handles }
    }

    /// Shows that packets without handles arrive however many messages with handles this process has sent to itself.
    #[test]
    fn messages_of_this_process_to_itself_have_no_limit() {
        let mut inbox = Inbox::new(Ledger::new(None));
        for message in 0..=MAX_DESCRIPTORS as u64 {
            assert!(inbox.deposit(1, message, Handles::of(Vec::new(), None)).is_none());
        }
        inbox.put(Packet::Wake, Vec::new()).unwrap();
        assert!(matches!(inbox.put(message(1), files(1)), Err(Error::BadPeer(_))));
    }

    /// Shows that descriptors sent ahead of their message are received with that message only, and that none of them
    /// stays in the inbox once the sender says that they are void, or that nothing refers to the ring's attachments.
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
                None => assert_eq!(inbox.retract(1..=1).len(), 1),
            }
            assert_eq!((inbox.is_empty(), inbox.descriptors), (true, 0));
        }
        // Those of another ring are not part of the message.
        inbox.put(Packet::Ahead { token: 1, count: 2 }, files(2)).unwrap();
        inbox.put(Packet::Ahead { token: 2, count: 1 }, files(1)).unwrap();
        inbox.put(message(3), files(3)).unwrap();
        let whole = inbox.take_handles(1, 7, 0).unwrap();
        assert_eq!((whole.sent, whole.handles.len(), inbox.descriptors), (5, 5, 1));
    }
}
