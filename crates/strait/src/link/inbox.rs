//! The inbox of a link: what arrived over the socket before the record that refers to it was read.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::AttachmentKey;
use super::io::ReceivedAttachment;
use super::packet::{Packet, VERSIONS};
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
    /// The number of handles that the sender has sent for this message so far. Counts also handles that were lost
    /// because this process had no free descriptors.
    pub(crate) sent: usize,
    /// The number of packets that have brought handles of this message so far, which is also the `part` of the next
    /// one.
    parts: u64,
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
        Self { sent, handles, parts: 1, is_uncommitted: true, in_transit, ..Self::default() }
    }

    /// Creates the entry in the inbox for a value: an object that this process sends to itself as a message and has not
    /// committed yet. A value counts as one handle.
    pub(crate) fn of_value(value: Option<Valued>) -> Self {
        Self { value, sent: 1, parts: 1, is_uncommitted: true, ..Self::default() }
    }

    /// Returns these handles marked as those of a committed message, whose record is in the ring.
    pub(crate) fn committed(self) -> Self {
        Self { is_uncommitted: false, ..self }
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
    /// The sealed memory with the payload of a message, by the token of the ring and the attachment key (message and
    /// attempt).
    Sealed(u128, AttachmentKey),
    /// The sealed memory with the handle table of a message, by the token of the ring and the attachment key (message
    /// and attempt).
    Table(u128, AttachmentKey),
}

impl MemoryKey {
    /// Returns the key under which the inbox stores the memory that `packet` brings. Returns `None` if the packet
    /// brings no memory, or none that the inbox stores.
    pub(super) fn of(packet: &Packet) -> Option<Self> {
        Some(match *packet {
            Packet::Ring { token, generation } => Self::Ring(token, generation),
            Packet::Block { token, id, .. } => Self::Block(token, id),
            Packet::Sealed { token, message, .. } => Self::Sealed(token, message),
            Packet::Table { token, message } => Self::Table(token, message),
            _ => return None,
        })
    }

    fn is_immutable(self) -> bool {
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
fn all_of(token: u128) -> RangeInclusive<(u128, AttachmentKey)> {
    (token, AttachmentKey::LOWEST)..=(token, AttachmentKey::HIGHEST)
}

#[derive(Debug)]
pub(crate) struct Inbox {
    open: Option<OpenPacket>,
    opened: bool,
    handles: BTreeMap<(u128, AttachmentKey), Handles>,
    descriptors: usize,
    memories: BTreeMap<MemoryKey, Held>,
    ledger: Arc<Ledger>,
}

impl Inbox {
    pub(crate) fn new(ledger: Arc<Ledger>) -> Self {
        Self { open: None, opened: false, handles: BTreeMap::new(), descriptors: 0, memories: BTreeMap::new(), ledger }
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
        self.handles.is_empty() && self.memories.is_empty()
    }

    /// Removes and returns the handles of one message in the ring with the token `token`; `message` is the attachment
    /// key (message and attempt). Returns `None` until the sender has sent `count` of them. The returned handles may be
    /// fewer: some are lost if this process had no free descriptors.
    pub(crate) fn take_handles(&mut self, token: u128, message: AttachmentKey, count: usize) -> Option<Handles> {
        if self.handles.get(&(token, message))?.sent < count {
            return None;
        }
        let handles = self.handles.remove(&(token, message))?;
        self.descriptors -= handles.handles.len();
        if message.is_again() {
            // Messages are received in order, so what is here for earlier numbers belongs to failed attempts.
            self.close_handles((token, AttachmentKey::LOWEST)..=(token, message));
        }
        Some(handles)
    }

    /// Closes the received handles whose keys (token and attachment key) are in this range: their messages failed, and
    /// no record will refer to them.
    fn close_handles(&mut self, messages: RangeInclusive<(u128, AttachmentKey)>) {
        while let Some(key) = self.handles.range(messages.clone()).map(|(key, _)| *key).next() {
            let handles = self.handles.remove(&key);
            self.descriptors -= handles.map_or(0, |handles| handles.handles.len());
        }
    }

    /// Drops memory of failed attempts to send the message of `key`. `which` returns the range of attachment keys to
    /// drop, given the attachment key in `key`. Does nothing if `key` is of a first attempt, or of a ring or block.
    fn forget_memories(&mut self, key: MemoryKey, which: impl Fn(AttachmentKey) -> RangeInclusive<AttachmentKey>) {
        let range = match key {
            MemoryKey::Sealed(token, message) if message.is_again() => {
                let (first, last) = which(message).into_inner();
                MemoryKey::Sealed(token, first)..=MemoryKey::Sealed(token, last)
            }
            MemoryKey::Table(token, message) if message.is_again() => {
                let (first, last) = which(message).into_inner();
                MemoryKey::Table(token, first)..=MemoryKey::Table(token, last)
            }
            _ => return,
        };
        self.remove_memories(range);
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
        if self.handles.is_empty() && self.memories.is_empty() {
            return Vec::new();
        }
        let (first, last) = tokens.into_inner();
        let all = self.handles.range((first, AttachmentKey::LOWEST)..=(last, AttachmentKey::HIGHEST));
        let keys: Vec<_> = all.filter(|(_, handles)| !handles.is_uncommitted).map(|(key, _)| *key).collect();
        let dropped: Vec<_> = keys.iter().filter_map(|key| self.handles.remove(key)).collect();
        self.descriptors -= dropped.iter().map(|handles| handles.handles.len()).sum::<usize>();
        for kind in [MemoryKey::Ring, MemoryKey::Block] {
            self.remove_memories(kind(first, 0)..=kind(last, u64::MAX));
        }
        for kind in [MemoryKey::Sealed, MemoryKey::Table] {
            self.remove_memories(kind(first, AttachmentKey::LOWEST)..=kind(last, AttachmentKey::HIGHEST));
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
        let mut found: Vec<_> = self
            .handles
            .range((first, AttachmentKey::LOWEST)..=(last, AttachmentKey::HIGHEST))
            .map(|((token, _), _)| *token)
            .collect();
        found.dedup();
        found
    }

    /// Removes and returns the memory with this key, mapped. Returns `None` if no such memory has been received. If the
    /// memory cannot be mapped now, returns that error and leaves the memory in the inbox.
    pub(crate) fn take_memory(&mut self, key: MemoryKey) -> Option<Result<Arc<Mapping>, Error>> {
        let held = self.memories.remove(&key)?;
        self.forget_memories(key, |message| AttachmentKey::LOWEST..=message);
        match held {
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

    fn store(&mut self, key: MemoryKey, attachment: Option<ReceivedAttachment>) -> Result<(), Error> {
        let attachment = attachment.ok_or(Error::BadPeer("a reference to memory that did not arrive"))?;
        self.forget_memories(key, AttachmentKey::all_tries);
        // A process may send itself more, because what is in flight is no longer counted once the end that sent it is
        // closed.
        if self.memories.len() >= MAX_MEMORIES && self.ledger.memory().is_some() {
            return Err(Error::BadPeer("more memory than its messages refer to"));
        }
        // Memory is mapped at once where possible, so that its descriptor can be closed. Otherwise
        // [`Inbox::take_memory`] maps the memory.
        let held = match self.map(&attachment, key) {
            Ok(mapping) => {
                self.leave_descriptor(key, attachment, &mapping);
                Held::Mapped(mapping)
            }
            Err(error @ Error::BadPeer(_)) => return Err(error),
            Err(_) => {
                let charge = self.ledger.charge(Amounts::of(Resource::Descriptors, 1))?;
                Held::Arrived(attachment, charge)
            }
        };
        self.memories.insert(key, held);
        Ok(())
    }

    fn store_both(
        &mut self,
        key: MemoryKey,
        token: u128,
        message: AttachmentKey,
        handles: u32,
        attachments: Vec<ReceivedAttachment>,
    ) -> Result<(), Error> {
        let mut attachments = attachments.into_iter();
        self.store(key, attachments.next())?;
        if handles > 0 { self.store_handles(token, message, 0, handles, attachments.collect()) } else { Ok(()) }
    }

    /// Drops all handles and all memory in the inbox. A received open packet stays.
    pub(crate) fn clear(&mut self) {
        self.handles.clear();
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
        match packet {
            Packet::Wake => Ok(()),
            Packet::Ring { token, generation } => {
                self.store(MemoryKey::Ring(token, generation), attachments.into_iter().next())
            }
            Packet::Block { token, id, message, handles } => {
                self.store_both(MemoryKey::Block(token, id), token, message, handles, attachments)
            }
            Packet::Sealed { token, message, handles } => {
                self.store_both(MemoryKey::Sealed(token, message), token, message, handles, attachments)
            }
            Packet::Table { token, message } => {
                self.store(MemoryKey::Table(token, message), attachments.into_iter().next())
            }
            Packet::Handles { token, message, part, count } => {
                self.store_handles(token, message, part, count, attachments)
            }
            // The link handles these itself.
            Packet::Handshake { .. }
            | Packet::Open { .. }
            | Packet::Introduce { .. }
            | Packet::Arena { .. }
            | Packet::Retract { .. }
            | Packet::Refuse { .. }
            | Packet::Connect { .. }
            | Packet::Accept
            | Packet::ReadyBitmap => Ok(()),
        }
    }

    /// Stores the handles of a message that this process sends to itself and is about to [commit](Self::committed).
    /// `token` is the token of the ring, and `message` the attachment key. Returns the handles that were stored under
    /// them before, for the caller to drop without a lock: only a peer that shares the memory of both ends can have
    /// caused that. Otherwise returns `None`.
    #[must_use]
    pub(crate) fn deposit(&mut self, token: u128, message: AttachmentKey, handles: Handles) -> Option<Handles> {
        self.descriptors += handles.handles.len();
        let old = self.handles.insert((token, message), handles);
        self.descriptors -= old.as_ref().map_or(0, |old| old.handles.len());
        old
    }

    /// Marks the handles of a message of this process to itself as committed: the record of the message is in the ring
    /// now. `token` is the token of that ring, and `message` the attachment key of the message.
    /// [`retract`](Self::retract) leaves uncommitted handles in the inbox. So after this call the sender checks whether
    /// the other end has been closed meanwhile, and if so discards what the inbox holds for the ring.
    pub(crate) fn committed(&mut self, token: u128, message: AttachmentKey) {
        if let Some(handles) = self.handles.get_mut(&(token, message)) {
            handles.is_uncommitted = false;
        }
    }

    /// Returns whether the message with this token and attachment key is a value (an object that stays in this process)
    /// in the inbox, which no end has received yet.
    pub(crate) fn is_value(&self, token: u128, message: AttachmentKey) -> bool {
        self.handles.get(&(token, message)).is_some_and(|handles| handles.value.is_some())
    }

    /// Returns whether the inbox has a value (a message that is an object of this process) for the ring with this
    /// token.
    pub(crate) fn has_value_for(&self, token: u128) -> bool {
        self.handles.range(all_of(token)).any(|(_, handles)| handles.value.is_some())
    }

    fn store_handles(
        &mut self,
        token: u128,
        message: AttachmentKey,
        part: u64,
        sent: u32,
        attachments: Vec<ReceivedAttachment>,
    ) -> Result<(), Error> {
        let mut descriptors: Vec<_> = attachments
            .into_iter()
            .filter_map(|attachment| match attachment {
                ReceivedAttachment::Descriptor(fd) => Some(fd.into_fd()),
                ReceivedAttachment::Memory(_) => None,
            })
            .collect();
        let payer = self.ledger.payer();
        let charge = match self.ledger.charge_descriptors(&descriptors) {
            Ok(charge) => charge,
            // Descriptors over the limit are closed, and their message reports that. The packet was received and cannot
            // be put back.
            Err(error) => {
                descriptors.drain(..).for_each(|fd| closing::close(fd, &payer));
                if let Error::BadPeer(_) = error {
                    return Err(error);
                }
                None
            }
        };
        if message.is_again() && part == 0 {
            let (first, last) = message.all_tries().into_inner();
            self.close_handles((token, first)..=(token, last));
            if sent == 0 {
                // A packet with no handles is the only sign that the sender has given up the message for now.
                self.remove_memories(MemoryKey::Sealed(token, first)..=MemoryKey::Sealed(token, last));
                self.remove_memories(MemoryKey::Table(token, first)..=MemoryKey::Table(token, last));
                return Ok(());
            }
        }
        let handles = self.handles.entry((token, message)).or_default();
        if part == 0 {
            // Earlier handles were sent for nothing: their message failed after them.
            self.descriptors -= handles.handles.len();
            *handles = Handles::default();
        }
        if part != handles.parts {
            return Err(Error::BadPeer("handles out of order"));
        }
        let before = handles.handles.len();
        handles.handles.add(descriptors, &payer);
        match (&mut handles.charge, charge) {
            (Some(charge), Some(more)) => charge.absorb(more),
            (none, charge) => *none = none.take().or(charge),
        }
        handles.sent += sent as usize;
        handles.parts += 1;
        self.descriptors += handles.handles.len() - before;
        if self.descriptors > MAX_DESCRIPTORS || self.handles.len() > MAX_DESCRIPTORS {
            return Err(Error::BadPeer("more descriptors than its messages refer to"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::Try;

    fn inbox() -> Inbox {
        Inbox::new(Ledger::new(None))
    }

    fn file() -> ReceivedAttachment {
        let file = std::fs::File::open("/dev/null").unwrap();
        ReceivedAttachment::Descriptor(closing::ReceivedFd::new(file.into(), &Payer::default()))
    }

    /// Puts the handles of one attempt to send a message (`message` is the attachment key) into the inbox, in `packets`
    /// packets of one descriptor each.
    fn put_handles(inbox: &mut Inbox, message: AttachmentKey, packets: u64) {
        for part in 0..packets {
            inbox.put(Packet::Handles { token: 1, message, part, count: 1 }, vec![file()]).unwrap();
        }
    }

    fn put_memories(inbox: &mut Inbox, message: AttachmentKey) {
        let memory = || vec![ReceivedAttachment::Memory(Mapping::private(4096).unwrap())];
        inbox.put(Packet::Table { token: 1, message }, memory()).unwrap();
        inbox.put(Packet::Sealed { token: 1, message, handles: 0 }, memory()).unwrap();
    }

    #[test]
    fn of_a_message_that_is_said_to_have_failed_nothing_stays() {
        let (first, again) = (Try::FIRST, Try::FIRST.next());
        let mut inbox = inbox();
        put_memories(&mut inbox, AttachmentKey::new(6, first));
        put_handles(&mut inbox, AttachmentKey::new(6, first), 1);
        for attempt in [first, again] {
            put_memories(&mut inbox, AttachmentKey::new(7, attempt));
            put_handles(&mut inbox, AttachmentKey::new(7, attempt), 2);
            let message = AttachmentKey::new(7, attempt.next());
            inbox.put(Packet::Handles { token: 1, message, part: 0, count: 0 }, Vec::new()).unwrap();
            // The attachments of other messages stay.
            assert_eq!((inbox.handles.len(), inbox.descriptors, inbox.memories.len()), (1, 1, 2));
        }
        // The next message may have the sequence number of the failed one.
        let last = AttachmentKey::new(7, again.next());
        put_handles(&mut inbox, last, 2);
        assert_eq!(inbox.take_handles(1, last, 2).unwrap().handles.len(), 2);
    }
}
