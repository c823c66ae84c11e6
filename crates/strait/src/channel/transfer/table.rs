//! The handle table of a message, used when not all of its handles are plain descriptors. The table describes the
//! message's ends, their unreceived messages, the ends in these messages, and so on.
//!
//! All ends stand in one sequence, each end before the ends in its messages. Descriptors, including the descriptors of
//! regions and pipes, travel in the same order. So loops write and read the table, however deeply ends lie in messages
//! of ends.
//!
//! ```text
//! u32   handles of the message, then for each a byte, and what belongs to it:
//!         0 a descriptor          1 an end          2 a region:  u64 its size
//!         3 the producer, 4 the consumer of a data pipe, whose channel is an end:
//!           u32 bytes of an element   u64 bytes of the buffer   u64 how far it has come
//! for each end, in the order in which they are named:
//!   16  name of its lane        u8   its side        u8   1 cannot send any more | 2 will receive only what follows
//!   u32 messages that it has not received, then for each:
//!     u8 0 its bytes follow, 1 they are memory that comes as a descriptor      u64 bytes
//!     u32 handles that were sent with it and lost; then u32 handles, and what they are, as above
//! ```

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use super::PipeState;
use crate::channel::handle::Handle;
use crate::channel::message::ReceivedExtras;
use crate::channel::origin::Origin;
use crate::channel::receiver::backlog::{BacklogMessage, BacklogPayload};
use crate::channel::unclaimed::UnclaimedHandles;
use crate::channel::{Channel, End};
use crate::error::Error;
use crate::lane::Name;
use crate::link::{LONGEST_TABLE, ReceivedHandles};
use crate::quota::closing::ReceivedFd;
use crate::quota::{Amounts, Charge, Payer, Resource};
use crate::region::Region;
use crate::ring::MAX_MESSAGE;
use crate::shm::{Mapping, PipeMemory};

/// Number of bytes of the longest handle table that is stored in its record. A longer table travels in sealed memory.
pub(in crate::channel) const LONGEST_INLINE: usize = 4096;

/// Largest number of ends in one message, including the ends in unreceived messages of its ends.
const MOST_ENDS: usize = 1 << 17;

/// Largest number of unreceived messages, the backlogs of the ends in one message. Each message takes several times as
/// much memory in the receiving process as in the handle table.
const MOST_MESSAGES: usize = 1 << 22;

/// Number of bytes of the largest region that a process could map.
const MOST_BYTES: u64 = isize::MAX as u64;

fn too_large(len: usize) -> Error {
    Error::MessageTooLarge { len, limit: MAX_MESSAGE }
}

/// The kind of a handle in a table, with the table's data about the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::channel) enum HandleKind {
    Descriptor,
    End,
    /// A region. The number is its size in bytes.
    Region(u64),
    Pipe(PipeState),
}

impl HandleKind {
    /// Returns whether a file descriptor travels over the socket for a handle of this kind.
    fn has_descriptor(self) -> bool {
        self != Self::End
    }

    /// Returns the amounts charged for a received handle of this kind from a peer: a region, or the memory of a data
    /// pipe. A file descriptor and a channel end are charged nothing here.
    fn amounts(self) -> Amounts {
        match self {
            Self::Descriptor | Self::End => Amounts::default(),
            Self::Region(len) => Amounts::of(Resource::Regions, usize::try_from(len).unwrap_or(usize::MAX)),
            Self::Pipe(state) => state.amounts(),
        }
    }

    /// Returns whether a handle of this kind is a channel end or a data-pipe end.
    fn has_end(self) -> bool {
        matches!(self, Self::End | Self::Pipe(_))
    }
}

/// The handles of a message in one flat sequence: first the message's own handles, then the handles in unreceived
/// messages of its ends, and so on.
#[derive(Debug, Default)]
pub(super) struct FlatHandles {
    /// The kinds of the message's own handles, in the order of the handles.
    top: Vec<HandleKind>,
    /// All ends of the message, of messages inside those ends, and so on. Each end comes before the ends inside its
    /// messages.
    pub(in crate::channel) ends: Vec<FlatEnd>,
    descriptors: VecDeque<Item>,
}

/// An object in a flattened message for which a file descriptor travels.
#[derive(Debug)]
enum Item {
    /// A file descriptor that the program owned, or a region.
    Handle(Handle),
    /// A file descriptor from a peer, not taken out of the received message.
    Came(ReceivedFd),
    /// A placeholder for the memory of a data-pipe end that is being sent; the end itself owns the memory.
    OfPipe,
    /// The memory of a received data-pipe end, to be combined with its channel end.
    Memory(PipeMemory),
    /// A placeholder for a received handle of an unreceived message, lost because of a temporary error.
    Lost,
}

/// A channel end or data-pipe end of a flattened message, with its unreceived messages.
#[derive(Debug)]
pub(super) struct FlatEnd {
    /// `None` for a received end of an unreceived message, lost because of a temporary error.
    handle: Option<Handle>,
    backlog: Vec<FlatMessage>,
}

impl FlatEnd {
    pub(in crate::channel) fn end(&self) -> &Arc<End> {
        &self.handle.as_ref().and_then(Handle::channel).expect("an end or a pipe's").end
    }
}

#[derive(Debug)]
struct FlatMessage {
    payload: BacklogPayload,
    handles: Vec<HandleKind>,
    lost: Option<Error>,
    charge: Option<Charge>,
    descriptors: Option<Charge>,
    origin: Origin,
    /// The account of the sender of this message's handles.
    payer: Payer,
}

impl FlatHandles {
    /// Flattens the handles of a message into one sequence. For each end, calls `prepare`, which gets the end ready to
    /// be sent, and then takes the backlog of the end. On an error all handles are returned, each end with its backlog
    /// again; the effect of `prepare` on an end is not undone.
    pub(in crate::channel) fn of(
        handles: Vec<Handle>,
        mut prepare: impl FnMut(&End) -> Result<(), Error>,
    ) -> Result<Self, (Error, Vec<Handle>)> {
        let mut flat = Self::default();
        flat.top = flat.take(handles, None);
        let mut next = 0;
        let mut messages = 0;
        while let Some(end) = flat.ends.get(next) {
            if let Err(error) = prepare(end.end()) {
                return Err((error, flat.into_handles()));
            }
            if flat.ends.len() > MOST_ENDS {
                let error = Error::TooManyHandles { count: flat.ends.len(), limit: MOST_ENDS };
                return Err((error, flat.into_handles()));
            }
            let backlog = end.end().take_backlog();
            messages += backlog.len();
            if messages > MOST_MESSAGES {
                end.end().restore_backlog(backlog.into());
                let error = Error::TooManyHandles { count: messages, limit: MOST_MESSAGES };
                return Err((error, flat.into_handles()));
            }
            // The sender has turned all values into bytes that were there. Values that came since then are turned in
            // a further attempt, when no other process waits for these ends.
            let refused = match &backlog {
                backlog if backlog.iter().any(|all| all.arrived.value().is_some()) => Some(Error::WouldBlock),
                backlog => backlog.iter().map(|all| all.payload.len()).find(|len| *len > MAX_MESSAGE).map(too_large),
            };
            if let Some(error) = refused {
                end.end().restore_backlog(backlog.into());
                return Err((error, flat.into_handles()));
            }
            let backlog =
                backlog.into_iter().map(|BacklogMessage { payload, arrived, charge, descriptors, origin }| {
                    let lost = arrived.lost();
                    let mut handles = arrived.into_handles();
                    let payer = handles.payer().clone();
                    FlatMessage {
                        payload,
                        lost,
                        handles: flat.take(handles.take(), Some(&payer)),
                        charge,
                        descriptors,
                        origin,
                        payer,
                    }
                });
            let backlog = backlog.collect();
            flat.ends[next].backlog = backlog;
            next += 1;
        }
        Ok(flat)
    }

    /// Returns the file descriptors and regions of a message that was sent, for the caller to close. Its ends belong to
    /// the receiver now; everything else is dropped.
    pub(super) fn into_plain(self) -> Vec<Handle> {
        let of_item = |item| if let Item::Handle(handle) = item { Some(handle) } else { None };
        self.descriptors.into_iter().filter_map(of_item).collect()
    }

    /// Returns the number of the message's own handles.
    pub(in crate::channel) fn len(&self) -> usize {
        self.top.len()
    }

    /// Appends handles to this flat sequence, and returns their kinds. `payer` is the account of the handles' sender;
    /// `None` for handles of the program.
    fn take(&mut self, handles: Vec<Handle>, payer: Option<&Payer>) -> Vec<HandleKind> {
        let sort = |handle: Handle| match (handle, payer) {
            (Handle::Fd(fd), Some(payer)) => {
                self.descriptors.push_back(Item::Came(ReceivedFd::new(fd, payer)));
                HandleKind::Descriptor
            }
            (handle @ Handle::Fd(_), None) => {
                self.descriptors.push_back(Item::Handle(handle));
                HandleKind::Descriptor
            }
            (Handle::Region(region), _) => {
                let len = region.len() as u64;
                self.descriptors.push_back(Item::Handle(region.into()));
                HandleKind::Region(len)
            }
            (handle @ (Handle::Channel(_) | Handle::Producer(_) | Handle::Consumer(_)), _) => {
                let pipe = handle.pipe_state();
                self.ends.push(FlatEnd { handle: Some(handle), backlog: Vec::new() });
                match pipe {
                    Some(state) => {
                        self.descriptors.push_back(Item::OfPipe);
                        HandleKind::Pipe(state)
                    }
                    None => HandleKind::End,
                }
            }
        };
        handles.into_iter().map(sort).collect()
    }

    /// Turns received data-pipe ends into bare channel ends, because their message cannot be received. Closing a
    /// whole producer would claim that all data was written, although the user of the producer did not close it.
    fn leave_pipes_unfinished(&mut self) {
        for item in self.descriptors.iter_mut().filter(|item| matches!(item, Item::Memory(_))) {
            *item = Item::OfPipe;
        }
    }

    /// Turns the flat sequence back into the message's own handles, each end with its backlog again. If a handle of an
    /// unreceived message is lost, the other handles of that message are closed, and the message reports the loss.
    pub(in crate::channel) fn into_handles(mut self) -> Vec<Handle> {
        // Descriptors and ends are first assigned from the front. Then handles are put together from the back, so
        // that the messages that an end holds are whole before that end is.
        let mut counter = HandleCounter::default();
        let top = counter.of(&self.top);
        let held: Vec<Vec<_>> = self
            .ends
            .iter()
            .map(|end| end.backlog.iter().map(|unread| counter.of(&unread.handles)).collect())
            .collect();
        let mut parts = Parts {
            descriptors: self.descriptors.drain(..).map(Some).collect(),
            ends: self.ends.iter().map(|_| None).collect(),
        };
        for ((at, end), held) in self.ends.drain(..).enumerate().zip(held).rev() {
            let FlatEnd { handle, backlog } = end;
            let backlog = backlog.into_iter().zip(held).map(|(unread, indices)| {
                let (sent, has_lost) = (indices.len(), parts.have_lost_any(&indices));
                if has_lost {
                    parts.leave_pipes_unfinished(&indices);
                }
                let handles = UnclaimedHandles::new(parts.take(indices), unread.payer);
                let (arrived, descriptors) = match has_lost {
                    true => {
                        // Only all handles together are of use, so the arrived handles, including ends, are closed.
                        drop(handles);
                        let before = if let Some(Error::HandlesLost { sent, .. }) = unread.lost { sent } else { 0 };
                        // The count of the peer's table may be any number, and a further table has 32 bits for it.
                        let sent = (before + sent).min(u32::MAX as usize);
                        (ReceivedExtras::of_lost(Error::HandlesLost { sent, arrived: 0 }), None)
                    }
                    false => (ReceivedExtras::new(handles, unread.lost), unread.descriptors),
                };
                let (payload, charge, origin) = (unread.payload, unread.charge, unread.origin);
                BacklogMessage { payload, arrived, charge, descriptors, origin }
            });
            let backlog = backlog.collect();
            if let Some(channel) = handle.as_ref().and_then(Handle::channel) {
                channel.end.restore_backlog(backlog);
            }
            parts.ends[at] = handle;
        }
        parts.take(top)
    }

    /// Encodes the handle table of a message. Also returns the descriptors that travel with the table, in order. A long
    /// payload of an unreceived message travels outside the table, as a descriptor of sealed memory.
    pub(in crate::channel) fn encode(&self) -> Result<(Vec<u8>, Vec<TableAttachment<'_>>), Error> {
        self.encode_as(false)
    }

    /// Encodes the handle table, and returns the table with the descriptors beside it. With `whole`, the table contains
    /// all payload bytes, however many; otherwise long payloads travel as descriptors.
    pub(super) fn encode_as(&self, whole: bool) -> Result<(Vec<u8>, Vec<TableAttachment<'_>>), Error> {
        // Checked before the payloads are copied; the rest of the table is small.
        let messages = self.ends.iter().flat_map(|end| &end.backlog);
        let inside = messages.filter(|unread| whole || matches!(unread.payload, BacklogPayload::Bytes(_)));
        check_len(inside.fold(0, |sum: usize, unread| sum.saturating_add(unread.payload.len())))?;
        let mut table = Vec::new();
        let mut table_attachments = Vec::new();
        // Here both sequences are only gone through in order; the kinds assign their items to handles.
        let mut remaining = Remaining { descriptors: self.descriptors.iter(), ends: self.ends.iter() };
        put_kinds(&self.top, &mut table, &mut remaining, &mut table_attachments);
        for end in &self.ends {
            let entry = end.end().entry()?;
            table.extend_from_slice(&entry.name.encode());
            table.push(entry.side);
            table.push(u8::from(entry.cannot_send) | u8::from(entry.receives_no_more) << 1);
            table.extend_from_slice(&(end.backlog.len() as u32).to_le_bytes());
            for unread in &end.backlog {
                let message = unread.payload.len() as u64;
                match if whole { None } else { unread.payload.large() } {
                    Some(memory) => {
                        table.push(1);
                        table.extend_from_slice(&message.to_le_bytes());
                        table_attachments.push(memory?);
                    }
                    None => {
                        table.push(0);
                        table.extend_from_slice(&message.to_le_bytes());
                        unread.payload.append_to(&mut table)?;
                    }
                }
                let lost = match unread.lost {
                    Some(Error::HandlesLost { sent, .. }) => sent as u32,
                    _ => 0,
                };
                table.extend_from_slice(&lost.to_le_bytes());
                put_kinds(&unread.handles, &mut table, &mut remaining, &mut table_attachments);
            }
        }
        check_len(table.len())?;
        Ok((table, table_attachments))
    }
}

/// Checks that a handle table of `len` bytes is not longer than the longest that a receiver takes.
fn check_len(len: usize) -> Result<(), Error> {
    if len > LONGEST_TABLE { Err(Error::MessageTooLarge { len, limit: LONGEST_TABLE }) } else { Ok(()) }
}

/// The descriptors and the ends of a message, in order, that the encoder has not yet gone through while it writes the
/// handle table.
struct Remaining<'a> {
    descriptors: std::collections::vec_deque::Iter<'a, Item>,
    ends: std::slice::Iter<'a, FlatEnd>,
}

/// Writes the kinds of handles to the handle table, and adds the descriptors of these handles to `table_attachments`.
fn put_kinds<'a>(
    kinds: &[HandleKind],
    table: &mut Vec<u8>,
    remaining: &mut Remaining<'a>,
    table_attachments: &mut Vec<TableAttachment<'a>>,
) {
    table.extend_from_slice(&(kinds.len() as u32).to_le_bytes());
    for kind in kinds {
        match kind {
            HandleKind::Descriptor => table.push(0),
            HandleKind::End => table.push(1),
            HandleKind::Region(len) => {
                table.push(2);
                table.extend_from_slice(&len.to_le_bytes());
            }
            HandleKind::Pipe(state) => {
                table.push(if state.writes() { 3 } else { 4 });
                table.extend_from_slice(&state.encode());
            }
        }
        let end = kind.has_end().then(|| remaining.ends.next()).flatten();
        let item = kind.has_descriptor().then(|| remaining.descriptors.next()).flatten();
        let fd = match item {
            Some(Item::Handle(handle)) => handle.as_descriptor(),
            Some(Item::Came(fd)) => Some(fd.as_fd()),
            Some(Item::OfPipe) => end.and_then(|end| end.handle.as_ref()?.pipe_memory()).map(AsFd::as_fd),
            Some(Item::Memory(memory)) => Some(memory.as_fd()),
            Some(Item::Lost) | None => None,
        };
        table_attachments.extend(fd.map(TableAttachment::Handle));
    }
}

/// A descriptor that travels over the socket with a handle table.
pub(in crate::channel) enum TableAttachment<'a> {
    /// The descriptor of a handle or of a data pipe's memory, owned by this process until the message is sent.
    Handle(BorrowedFd<'a>),
    /// A descriptor of sealed memory that was made for a copy of a payload.
    Memory(OwnedFd),
    /// The descriptor of the sealed memory of a received payload; the payload is passed on without a copy.
    PassedOn(BorrowedFd<'a>),
}

impl AsFd for TableAttachment<'_> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Handle(fd) | Self::PassedOn(fd) => fd.as_fd(),
            Self::Memory(fd) => fd.as_fd(),
        }
    }
}

/// The kind of a handle, with the indices of its descriptor and of its end among the descriptors and ends of a
/// flattened message. An index that the kind does not need has no meaning.
struct HandleIndex {
    kind: HandleKind,
    descriptor: usize,
    end: usize,
}

/// The items and the ends of a flattened message, by index, while handles are put together from them. Each item and
/// each end is taken once.
struct Parts {
    descriptors: Vec<Option<Item>>,
    /// The ends, each with its backlog again. `None` for an end that is not put together yet, and for a lost end.
    ends: Vec<Option<Handle>>,
}

impl Parts {
    /// Takes the parts of the handles with these indices, and returns the handles. Leaves out lost handles.
    fn take(&mut self, indices: Vec<HandleIndex>) -> Vec<Handle> {
        let found = indices.into_iter().filter_map(|HandleIndex { kind, descriptor, end }| {
            let mut item = || self.descriptors.get_mut(descriptor)?.take();
            match kind {
                HandleKind::Descriptor | HandleKind::Region(_) => match item()? {
                    Item::Handle(handle) => Some(handle),
                    Item::Came(fd) => Some(fd.into_fd().into()),
                    Item::OfPipe | Item::Memory(_) | Item::Lost => None,
                },
                HandleKind::End => self.ends.get_mut(end)?.take(),
                HandleKind::Pipe(state) => match (self.ends.get_mut(end)?.take()?, item()?) {
                    (Handle::Channel(channel), Item::Memory(memory)) => Some(Handle::pipe_end(state, channel, memory)),
                    // The data-pipe end was not sent after all, or only half of it arrived.
                    (handle, _) => Some(handle),
                },
            }
        });
        found.collect()
    }

    /// Returns whether a handle with one of these indices was lost: its item, or its end. The ends of these handles
    /// were put together before.
    fn have_lost_any(&self, indices: &[HandleIndex]) -> bool {
        indices.iter().any(|HandleIndex { kind, descriptor, end }| {
            let has_lost_item = || matches!(self.descriptors.get(*descriptor), Some(Some(Item::Lost)));
            let has_lost_end = || matches!(self.ends.get(*end), Some(None));
            kind.has_descriptor() && has_lost_item() || kind.has_end() && has_lost_end()
        })
    }

    /// Turns the received data-pipe ends among the handles with these indices into bare channel ends, because their
    /// message has lost a handle; see [`FlatHandles::leave_pipes_unfinished`].
    fn leave_pipes_unfinished(&mut self, indices: &[HandleIndex]) {
        for index in indices.iter().filter(|index| matches!(index.kind, HandleKind::Pipe(_))) {
            if let Some(item) = self.descriptors.get_mut(index.descriptor) {
                *item = Some(Item::OfPipe);
            }
        }
    }
}

/// Counters of descriptors and ends, for giving each handle of a flattened message its indices.
#[derive(Default)]
struct HandleCounter {
    descriptors: usize,
    ends: usize,
}

impl HandleCounter {
    fn of(&mut self, kinds: &[HandleKind]) -> Vec<HandleIndex> {
        let index = |kind: &HandleKind| {
            let index = HandleIndex { kind: *kind, descriptor: self.descriptors, end: self.ends };
            self.descriptors += usize::from(kind.has_descriptor());
            self.ends += usize::from(kind.has_end());
            index
        };
        kinds.iter().map(index).collect()
    }
}

/// The entry of an end in a handle table: lane name, side, and whether each direction has ended. The end's messages
/// stand behind the entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(in crate::channel) name: Name,
    pub(in crate::channel) side: u8,
    pub(super) cannot_send: bool,
    pub(super) receives_no_more: bool,
}

/// A handle table that was received and parsed. Its lanes and descriptors are not checked yet.
#[derive(Debug, Default)]
pub(super) struct Parsed<'a> {
    pub(in crate::channel) top: Vec<HandleKind>,
    pub(in crate::channel) ends: Vec<(Entry, Vec<ParsedMessage<'a>>)>,
    /// Number of descriptors that have to arrive with the handle table.
    pub(in crate::channel) descriptors: usize,
    /// The amounts to be charged for the regions of the table and for the memory of its data pipes.
    amounts: Amounts,
    /// Whether the payloads of the messages in the table are dropped instead of taken out.
    without_payloads: bool,
}

/// A message in the backlog of an end, as a received handle table describes it.
#[derive(Debug)]
pub(super) struct ParsedMessage<'a> {
    /// The payload bytes of the message; `None` if the payload is in sealed memory that arrives as a descriptor.
    bytes: Option<&'a [u8]>,
    len: u64,
    lost: u32,
    handles: Vec<HandleKind>,
}

const NONSENSE: Error = Error::BadPeer("an invalid handle table");

/// A cursor that reads the bytes of a handle table from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Error> {
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(NONSENSE)?;
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        Ok(self.bytes(N)?.try_into().expect("as long as asked for"))
    }

    fn kinds(&mut self) -> Result<Vec<HandleKind>, Error> {
        let count = u32::from_le_bytes(self.array()?) as usize;
        if count > self.0.len() {
            return Err(NONSENSE);
        }
        let mut kinds = Vec::with_capacity(count);
        for _ in 0..count {
            let [byte] = self.array()?;
            kinds.push(match byte {
                0 => HandleKind::Descriptor,
                1 => HandleKind::End,
                byte @ (3 | 4) => HandleKind::Pipe(PipeState::decode(byte == 3, &self.array()?).ok_or(NONSENSE)?),
                2 => HandleKind::Region(
                    Some(u64::from_le_bytes(self.array()?)).filter(|len| *len <= MOST_BYTES).ok_or(NONSENSE)?,
                ),
                _ => return Err(NONSENSE),
            });
        }
        Ok(kinds)
    }
}

impl<'a> Parsed<'a> {
    /// Parses the table of a message that has `handles` handles.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the bytes are not such a table; [`Error::NoMemory`].
    pub(in crate::channel) fn read(table: &'a [u8], handles: usize) -> Result<Self, Error> {
        let mut reader = Reader(table);
        let mut parsed = Self { top: reader.kinds()?, ..Self::default() };
        if parsed.top.len() != handles {
            return Err(NONSENSE);
        }
        let mut named = parsed.count(&parsed.top.clone());
        let mut backlog = 0;
        while parsed.ends.len() < named {
            let name = Name::decode(reader.array()?);
            let [side, flags] = reader.array()?;
            if side > 1 || flags > 3 {
                return Err(NONSENSE);
            }
            let entry = Entry { name, side, cannot_send: flags & 1 != 0, receives_no_more: flags & 2 != 0 };
            let count = u32::from_le_bytes(reader.array()?) as usize;
            // Each message takes a few bytes at least. So an impossible count is found before memory is allocated for
            // it.
            backlog += count;
            if backlog > MOST_MESSAGES || count > reader.0.len() {
                return Err(NONSENSE);
            }
            let mut messages = Vec::new();
            if messages.try_reserve_exact(count).is_err() {
                return Err(Error::NoMemory { call: "memory for a table of handles" });
            }
            for _ in 0..count {
                let [inside] = reader.array()?;
                let len = u64::from_le_bytes(reader.array()?);
                let bytes = match inside {
                    0 => Some(reader.bytes(usize::try_from(len).map_err(|_| NONSENSE)?)?),
                    1 if len <= MAX_MESSAGE as u64 => {
                        parsed.descriptors += 1;
                        None
                    }
                    _ => return Err(NONSENSE),
                };
                let lost = u32::from_le_bytes(reader.array()?);
                let handles = reader.kinds()?;
                named += parsed.count(&handles);
                if named > MOST_ENDS {
                    return Err(NONSENSE);
                }
                messages.push(ParsedMessage { bytes, len, lost, handles });
            }
            parsed.ends.push((entry, messages));
        }
        if reader.0.is_empty() { Ok(parsed) } else { Err(NONSENSE) }
    }

    /// Removes the handles from the messages in the backlog of the first end, because not all of these handles arrived;
    /// each message counts its handles as lost. Returns the ends among these handles, and the ends in their messages,
    /// for closing by the caller.
    pub(super) fn lose_handles(&mut self) -> Vec<Entry> {
        for message in self.ends.first_mut().into_iter().flat_map(|(_, messages)| messages) {
            // The count in the table may be any number.
            let lost = std::mem::take(&mut message.handles).len() as u32;
            message.lost = message.lost.saturating_add(lost);
        }
        (self.descriptors, self.amounts) = (0, Amounts::default());
        self.ends.drain(1..).map(|(entry, _)| entry).collect()
    }

    /// Returns `false` if the table has the form of a prepended backlog (one end with at least one message), and
    /// otherwise `true`.
    pub(super) fn brings_nothing(&self) -> bool {
        self.top != [HandleKind::End] || self.ends.first().is_none_or(|(_, messages)| messages.is_empty())
    }

    /// Adds the descriptors and the amounts of handles of these kinds to the totals of the table. Returns how many of
    /// these handles are channel ends or data-pipe ends.
    fn count(&mut self, kinds: &[HandleKind]) -> usize {
        self.descriptors += kinds.iter().filter(|kind| kind.has_descriptor()).count();
        self.amounts = kinds.iter().fold(self.amounts, |sum, kind| sum.plus(kind.amounts()));
        kinds.iter().filter(|kind| kind.has_end()).count()
    }

    /// Leaves out the payloads of the messages in the table, which are then empty and not charged: all handles are to
    /// be closed. Drops the messages that have nothing to close.
    pub(super) fn leave_out_payloads(&mut self) {
        self.without_payloads = true;
        for (_, messages) in &mut self.ends {
            messages.retain(|message| !message.handles.is_empty() || message.bytes.is_none());
        }
    }

    /// Returns how many ends the table has, and how many messages.
    pub(super) fn entries(&self) -> (usize, usize) {
        (self.ends.len(), self.ends.iter().map(|(_, messages)| messages.len()).sum())
    }

    /// Returns the amounts to be charged for everything in the table: messages, regions and data pipes.
    pub(in crate::channel) fn amounts(&self) -> Amounts {
        if self.without_payloads {
            return self.amounts;
        }
        let messages = self.ends.iter().flat_map(|(_, messages)| messages);
        messages.fold(self.amounts, |sum, message| sum.plus(amounts(message)))
    }

    /// Builds the message's own handles from the parsed table. `build` creates an end from its entry; `came` holds the
    /// received descriptors, sent by the peer with the account `payer`, and the charge for them. Each message in a
    /// backlog gets the charge for its descriptors; the rest stays in `came`. `charge` is the charge for everything
    /// else in the table, and each object gets its part of this charge; `origin` is the origin of the messages in
    /// backlogs.
    ///
    /// If a handle of a message in a backlog fails with a temporary error, that message alone loses its handles, and
    /// reports the loss.
    ///
    /// # Errors
    /// The first error of `build`, or else the first error of memory: of a region, a data pipe or a payload. The
    /// handles are then closed, with every end that `build` creates.
    pub(in crate::channel) fn into_handles(
        self,
        came: &mut ReceivedHandles,
        payer: &Payer,
        mut charge: Option<Charge>,
        origin: Origin,
        mut build: impl FnMut(Entry) -> Result<Channel, Error>,
    ) -> Result<UnclaimedHandles, Error> {
        let ReceivedHandles { descriptors, charge: of_descriptors, .. } = came;
        let mut came = std::mem::take(descriptors).into_iter();
        let mut flat = FlatHandles { top: self.top, ..FlatHandles::default() };
        let mut outcome = Ok(());
        let top = flat.top.clone();
        outcome = outcome.and(collect_descriptors(&mut flat, &top, true, &mut came, payer, &mut charge));
        let own_ends = top.iter().filter(|kind| kind.has_end()).count();
        let mut ends = self.ends.into_iter();
        while let Some((entry, messages)) = ends.next() {
            let handle = match build(entry) {
                Ok(channel) => Some(channel.into()),
                Err(error) if error.passes() && flat.ends.len() >= own_ends => None,
                Err(error) => {
                    // Also the ends behind this one are closed: their other ends wait for that.
                    ends.for_each(|(entry, _)| drop(build(entry)));
                    return Err(error);
                }
            };
            let mut backlog = Vec::with_capacity(messages.len());
            for message in messages {
                let is_charged = !self.without_payloads;
                let split = |charge: &mut Charge| charge.split(amounts(&message));
                let mut of_message = charge.as_mut().filter(|_| is_charged).map(split);
                let payload = match message.bytes {
                    Some(_) if self.without_payloads => Ok(BacklogPayload::Bytes(Vec::new())),
                    None if self.without_payloads => {
                        // The descriptor of the payload's memory.
                        drop(came.next());
                        Ok(BacklogPayload::Bytes(Vec::new()))
                    }
                    Some(bytes) => Ok(BacklogPayload::Bytes(bytes.to_vec())),
                    None => sealed(came.next(), message.len, of_message.take()),
                };
                let lost = (message.lost > 0).then_some(Error::HandlesLost { sent: message.lost as usize, arrived: 0 });
                match payload {
                    Ok(payload) => {
                        let kinds = &message.handles;
                        let items = collect_descriptors(&mut flat, kinds, false, &mut came, payer, &mut charge);
                        outcome = outcome.and(items);
                        let payer = payer.clone();
                        let count = message.handles.iter().filter(|kind| kind.has_descriptor()).count();
                        let split = |charge: &mut Charge| charge.split(Amounts::of(Resource::Descriptors, count));
                        let descriptors = of_descriptors.as_mut().filter(|_| count > 0).map(split);
                        backlog.push(FlatMessage {
                            payload,
                            handles: message.handles,
                            lost,
                            charge: of_message,
                            descriptors,
                            origin,
                            payer,
                        });
                    }
                    Err(error) => outcome = outcome.and(Err(error)),
                }
            }
            flat.ends.push(FlatEnd { handle, backlog });
        }
        if outcome.is_err() {
            flat.leave_pipes_unfinished();
        }
        let handles = UnclaimedHandles::new(flat.into_handles(), payer.clone());
        outcome.map(|()| handles)
    }
}

/// Takes the descriptors for handles of these kinds from `came`, the received descriptors of the message; checks the
/// memory of regions and data pipes, and appends all to `flat`. `own` says that the handles are the message's own, and
/// not those of a message in a backlog. After an error continues with the remaining handles, and returns the last
/// error. A handle of a message in a backlog that fails with a temporary error is closed and counts as
/// [lost](Item::Lost).
fn collect_descriptors(
    flat: &mut FlatHandles,
    kinds: &[HandleKind],
    own: bool,
    came: &mut impl Iterator<Item = ReceivedFd>,
    payer: &Payer,
    charge: &mut Option<Charge>,
) -> Result<(), Error> {
    let mut outcome = Ok(());
    let wanted = kinds.iter().filter(|kind| kind.has_descriptor());
    for (kind, fd) in wanted.zip(came) {
        let charge = charge.as_mut().map(|charge| charge.split(kind.amounts()));
        let item = match kind {
            HandleKind::Region(len) => {
                Region::received(fd.into_fd(), *len, charge).map(|region| Item::Handle(region.into()))
            }
            HandleKind::Pipe(state) => state.receive(fd.into_fd(), charge).map(Item::Memory),
            HandleKind::Descriptor | HandleKind::End => Ok(Item::Came(fd)),
        };
        flat.descriptors.push_back(item.unwrap_or_else(|(error, fd)| {
            let fd = ReceivedFd::new(fd, payer);
            if !own && error.passes() {
                return Item::Lost;
            }
            outcome = Err(error);
            Item::Came(fd)
        }));
    }
    outcome
}

/// Returns the amounts to be charged for a message in the backlog of an end, as described by a handle table: for its
/// bytes, or for a mapping of its sealed memory.
fn amounts(message: &ParsedMessage<'_>) -> Amounts {
    match message.bytes {
        Some(bytes) => Amounts::of(Resource::QueuedMessages, 1).and(Resource::QueuedBytes, bytes.len()),
        None => {
            Amounts::of(Resource::Mappings, 1).and(Resource::Memory, usize::try_from(message.len).unwrap_or(usize::MAX))
        }
    }
}

/// Checks whether the bytes `table` are a valid handle table of a message with `handles` handles. Fails with
/// [`Error::BadPeer`] if they are not.
#[cfg(any(strait_fuzzing, strait_benchmarks))]
pub(crate) fn is_read(table: &[u8], handles: usize) -> Result<(), Error> {
    let parsed = Parsed::read(table, handles)?;
    assert_eq!(parsed.top.len(), handles);
    assert!(parsed.ends.len() <= table.len() && parsed.descriptors <= table.len());
    Ok(())
}

/// Maps the payload of a message in the backlog of a received end; the payload arrived as the descriptor `fd` of sealed
/// memory, and the mapping keeps `charge`. Fails with [`Error::BadPeer`] if there is no descriptor, or if the memory
/// has fewer than `len` bytes.
fn sealed(fd: Option<ReceivedFd>, len: u64, charge: Option<Charge>) -> Result<BacklogPayload, Error> {
    let fd = fd.ok_or(NONSENSE)?;
    let len = usize::try_from(len).map_err(|_| NONSENSE)?;
    let ledger = charge.as_ref().map(|charge| charge.ledger().clone());
    let mapping = Mapping::received_prepaid(fd.as_fd(), len.max(1), charge)?;
    if len > mapping.len() {
        return Err(NONSENSE);
    }
    if let Some(ledger) = ledger {
        mapping.retain_descriptor(fd.into_fd(), &ledger);
    }
    Ok(BacklogPayload::Sealed(mapping, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A message in a test's handle table: the byte that says where its payload is, the payload, and the kinds of its
    /// handles.
    type Message = (u8, Vec<u8>, Vec<u8>);

    /// Builds a handle table for tests from the kinds of the message's handles and, for each end, its side, flags and
    /// messages. The lanes that the table names do not exist.
    fn table(top: &[u8], ends: &[(u8, u8, Vec<Message>)]) -> Vec<u8> {
        let mut bytes = Vec::new();
        let put_kinds = |bytes: &mut Vec<u8>, kinds: &[u8]| {
            bytes.extend_from_slice(&(kinds.len() as u32).to_le_bytes());
            bytes.extend_from_slice(kinds);
        };
        put_kinds(&mut bytes, top);
        for (side, flags, messages) in ends {
            bytes.extend_from_slice(&Name::default().encode());
            bytes.extend_from_slice(&[*side, *flags]);
            bytes.extend_from_slice(&(messages.len() as u32).to_le_bytes());
            for (inside, content, kinds) in messages {
                bytes.push(*inside);
                bytes.extend_from_slice(&(content.len() as u64).to_le_bytes());
                if *inside == 0 {
                    bytes.extend_from_slice(content);
                }
                bytes.extend_from_slice(&0u32.to_le_bytes());
                put_kinds(&mut bytes, kinds);
            }
        }
        bytes
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_table_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200), handles in 0usize..4) {
            if let Ok(parsed) = Parsed::read(&bytes, handles) {
                prop_assert_eq!(parsed.top.len(), handles);
                prop_assert!(parsed.ends.len() <= bytes.len() && parsed.descriptors <= bytes.len());
            }
        }

        #[test]
        fn a_table_with_some_bytes_changed_is_a_table_or_refused(at in 0usize..90, value: u8) {
            let mut bytes = table(&[0, 1], &[(1, 0, vec![(0, b"hello".to_vec(), vec![1, 0])]), (0, 3, vec![])]);
            let at = at % bytes.len();
            bytes[at] = value;
            let _ = Parsed::read(&bytes, 2);
        }
    }

    #[test]
    fn ends_and_descriptors_are_counted_however_they_lie_in_each_other() {
        let bytes = table(
            &[1, 0, 1],
            &[
                (0, 0, vec![(0, b"inline".to_vec(), vec![1, 0]), (1, vec![0; 9], vec![])]),
                (1, 1, vec![]),
                (1, 2, vec![(0, vec![], vec![0, 0])]),
            ],
        );
        let parsed = Parsed::read(&bytes, 3).unwrap();
        assert_eq!(parsed.ends.len(), 3);
        // One descriptor of the message itself, two in messages, one with a payload, two more.
        assert_eq!(parsed.descriptors, 5);
        assert!(Parsed::read(&bytes, 2).is_err());
        assert!(Parsed::read(&bytes[..bytes.len() - 1], 3).is_err());
        assert!(Parsed::read(&[bytes.as_slice(), &[0]].concat(), 3).is_err());
    }

    #[test]
    fn a_table_longer_than_any_receiver_takes_is_not_made() {
        let (holder, _other) = Channel::pair().unwrap();
        // No page of the memory is written.
        let unread = |_| BacklogMessage {
            payload: BacklogPayload::Bytes(vec![0; MAX_MESSAGE]),
            arrived: ReceivedExtras::default(),
            charge: None,
            descriptors: None,
            origin: Origin::default(),
        };
        holder.end.restore_backlog((0..5).map(unread).collect());
        let flat = FlatHandles::of(vec![holder.into()], |_| Ok(())).unwrap();
        let refused = Err(Error::MessageTooLarge { len: 5 * MAX_MESSAGE, limit: LONGEST_TABLE });
        assert_eq!(flat.encode().map(|(table, _)| table.len()), refused);
    }

    include!("../../../tests/common/wire_page.rs");

    #[test]
    fn the_ends_of_a_table_are_closed_if_one_of_them_cannot_be_built() {
        let bytes = table(&[1, 1, 1], &[(0, 0, vec![]), (0, 0, vec![]), (0, 0, vec![])]);
        for without in 0..3 {
            let parsed = Parsed::read(&bytes, 3).unwrap();
            let (ends, mut others): (Vec<_>, Vec<_>) = (0..3).map(|_| Channel::pair().unwrap()).unzip();
            let mut ends = ends.into_iter().enumerate();
            let build = |_| match ends.next().unwrap() {
                (at, _) if at == without => Err(NONSENSE),
                (_, end) => Ok(end),
            };
            let payer = crate::link::Link::own().ledger().payer();
            let mut none = ReceivedHandles::default();
            assert!(parsed.into_handles(&mut none, &payer, None, Origin::default(), build).is_err());
            others.remove(without);
            assert!(others.iter().all(|other| other.try_recv().is_err_and(|error| error == Error::PeerClosed)));
        }
    }

    /// Shows that a message in the backlog of an end loses its handles, and no other message does, if one of its ends
    /// cannot be built because of a temporary error. The other handles are closed.
    #[test]
    fn a_message_with_an_end_that_cannot_be_built_now_loses_its_handles_alone() {
        let message = |handles: &[u8]| (0, b"message".to_vec(), handles.to_vec());
        let of_holder = vec![message(&[1]), message(&[1, 1]), message(&[1]), message(&[])];
        let inner = || (0, 0, vec![message(&[])]);
        let bytes = table(&[1], &[(0, 0, of_holder), inner(), inner(), inner(), inner()]);
        for without in 1..5 {
            let parsed = Parsed::read(&bytes, 1).unwrap();
            let (ends, others): (Vec<_>, Vec<_>) = (0..5).map(|_| Channel::pair().unwrap()).unzip();
            let mut ends = ends.into_iter().enumerate();
            let build = |_| match ends.next().unwrap() {
                (at, _) if at == without => Err(Error::NoDescriptors),
                (_, end) => Ok(end),
            };
            let payer = crate::link::Link::own().ledger().payer();
            let mut none = ReceivedHandles::default();
            let mut handles = parsed.into_handles(&mut none, &payer, None, Origin::default(), build).unwrap();
            let holder = handles.take_one(0).and_then(Handle::into_channel).unwrap();
            let (lost, closed) = match without {
                1 => (0, 1..2),
                2 | 3 => (1, 2..4),
                _ => (2, 4..5),
            };
            for (at, count) in [1, 2, 1, 0].into_iter().enumerate() {
                let mut received = holder.recv().unwrap();
                assert_eq!(received.bytes(), b"message");
                let taken = received.take_handles();
                if at == lost {
                    assert_eq!(taken.unwrap_err(), Error::HandlesLost { sent: count, arrived: 0 });
                } else {
                    let taken = taken.unwrap();
                    assert_eq!(taken.len(), count);
                    let ends = taken.into_iter().map(|handle| handle.into_channel().unwrap());
                    ends.for_each(|end| assert_eq!(end.recv().unwrap().bytes(), b"message"));
                }
            }
            for (at, other) in others.iter().enumerate().skip(1).filter(|(at, _)| closed.contains(at)) {
                assert_eq!(other.try_recv().unwrap_err(), Error::PeerClosed, "end {at} without end {without}");
            }
        }
    }

    #[test]
    fn the_page_has_the_kinds_of_handles() {
        let shape = crate::ring::stream::Shape::new(4, 64).unwrap();
        let pipe = |writes| HandleKind::Pipe(PipeState { writes, shape, position: 0 });
        let kinds = [
            ("descriptor", HandleKind::Descriptor),
            ("end", HandleKind::End),
            ("region", HandleKind::Region(1)),
            ("producer", pipe(true)),
            ("consumer", pipe(false)),
        ];
        let written = |kind: HandleKind| {
            let mut table = Vec::new();
            let none = VecDeque::new();
            let mut remaining = Remaining { descriptors: none.iter(), ends: [].iter() };
            put_kinds(&[kind], &mut table, &mut remaining, &mut Vec::new());
            // The kind follows the number of handles.
            table[4].into()
        };
        assert_page_has("handles", &kinds.map(|(name, kind)| (name, [written(kind)])));
    }

    #[test]
    fn handles_that_are_lost_are_counted_however_many_a_peer_says_were_lost_before() {
        let mut bytes = table(&[1], &[(0, 0, vec![(0, b"message".to_vec(), vec![0, 0])])]);
        // The offset of the lost count: after the payload, and before the handles of that message.
        let at = bytes.len() - 2 - 4 - 4;
        for (said, counted) in [(0, 2), (5, 7), (u32::MAX - 1, u32::MAX), (u32::MAX, u32::MAX)] {
            bytes[at..at + 4].copy_from_slice(&said.to_le_bytes());
            let mut parsed = Parsed::read(&bytes, 1).unwrap();
            assert_eq!((parsed.descriptors, parsed.ends[0].1[0].lost), (2, said));
            assert!(parsed.lose_handles().is_empty());
            assert_eq!((parsed.descriptors, parsed.ends[0].1[0].lost), (0, counted));
        }
    }

    #[test]
    fn handles_come_out_of_a_row_as_they_went_in() {
        let end = || Channel::pair().unwrap();
        let (outer, holder) = end();
        let (inner, nested) = end();
        inner.send(b"innermost").unwrap();
        outer
            .send(crate::Outgoing::new(b"one").handle(std::fs::File::open("/dev/null").unwrap()).handle(nested))
            .unwrap();
        outer.send(b"two").unwrap();
        // `prepare` moves each end, as a send does, and so takes the unreceived messages out of its rings.
        let own = crate::link::Link::own();
        let prepare = |end: &End| {
            end.relocate(&own, &mut crate::channel::transfer::moving::Along::default(), crate::Deadline::NOW)
        };
        let flat = FlatHandles::of(vec![Handle::Channel(holder)], prepare).unwrap();
        assert_eq!((flat.ends.len(), flat.descriptors.len()), (2, 1));
        let holder = flat.into_handles().remove(0).into_channel().unwrap();
        holder.end.lane().unwrap().cancel_transfer();
        let mut one = holder.recv().unwrap();
        assert_eq!(one.bytes(), b"one");
        let mut handles = one.take_handles().unwrap();
        let nested = handles.remove(1).into_channel().unwrap();
        assert!(handles.remove(0).into_fd().is_some());
        assert_eq!(holder.recv().unwrap().bytes(), b"two");
        assert_eq!(nested.recv().unwrap().bytes(), b"innermost");
    }
}
