//! What stands in rings.

/// Bytes of a cell.
pub const CELL: usize = 64;

/// Bytes of a record's header.
pub const HEADER: usize = 8;

/// Kinds of records.
pub mod kind {
    #![allow(missing_docs, reason = "as in docs/design.md")]
    pub const MESSAGE: u8 = 1;
    pub const BLOCK: u8 = 2;
    pub const SEALED: u8 = 3;
    pub const PAD: u8 = 4;
    pub const NEXT: u8 = 5;
    pub const CLOSED: u8 = 6;
    pub const MOVED: u8 = 7;
    pub const FROZEN: u8 = 8;
    pub const PACK: u8 = 9;
    pub const TABLE: u8 = 10;
    pub const PREPENDED: u8 = 11;
    /// One more than the last.
    pub const END: u8 = 12;
}

/// In a header: a table before it says what the handles are.
pub const WITH_TABLE: u64 = 1 << 48;

/// A header.
pub const fn header(kind: u8, len: usize, handles: usize) -> u64 {
    (len as u32) as u64 | (kind as u64) << 32 | ((handles as u8) as u64) << 40
}

/// The kind that a header says.
pub const fn kind_of(header: u64) -> u8 {
    (header >> 32) as u8
}

/// The bytes of payload that a header says.
pub const fn len_of(header: u64) -> usize {
    header as u32 as usize
}

/// The handles that a header says.
pub const fn handles_of(header: u64) -> usize {
    (header >> 40) as u8 as usize
}

/// Cells that a record takes.
pub const fn cells_for(len: usize) -> usize {
    (HEADER + len).div_ceil(CELL)
}

/// What a lane is called.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// Number of its arena.
    pub arena: u64,
    /// Place in there.
    pub slot: u32,
    /// How often the place was used before.
    pub usage: u32,
}

impl Name {
    /// A place of an arena that was not used before.
    pub fn new(arena: u64, slot: u32) -> Self {
        Self { arena, slot, usage: 0 }
    }

    /// As two words.
    pub fn to_words(self) -> [u64; 2] {
        [self.arena, u64::from(self.slot) | u64::from(self.usage) << 32]
    }

    /// As it stands in records.
    pub fn to_bytes(self) -> [u8; 16] {
        let [low, high] = self.to_words();
        (u128::from(low) | u128::from(high) << 64).to_le_bytes()
    }

    /// What bytes say.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self { arena: word as u64, slot: (word >> 64) as u32, usage: (word >> 96) as u32 }
    }
}

/// What the record of a message in a block says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// Number of the block.
    pub id: u64,
    /// Which use of it this is, from 1.
    pub usage: u64,
    /// Bytes of the message.
    pub len: u64,
    /// 1 if there will be no other use.
    pub once: u64,
}

/// Where a block's message begins.
pub const BLOCK_PAYLOAD: usize = 4096;

impl Block {
    /// As it stands in records.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.id, self.usage, self.len, self.once]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// What bytes say.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words = words(bytes);
        let [id, usage, len, once] = words[..].try_into().ok()?;
        Some(Self { id, usage, len, once })
    }
}

/// Bytes as words; what is no whole word is left out.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// What the handles of a message are: built piece by piece, right or wrong.
///
/// First the kinds of the message's own handles; then for each end among them [`Table::end`], then for each message
/// that this one has not received [`Table::message`].
#[derive(Clone, Debug, Default)]
pub struct Table(pub Vec<u8>);

/// A handle that is a descriptor.
pub const DESCRIPTOR: u8 = 0;

/// A handle that is an end.
pub const AN_END: u8 = 1;

/// A handle that is a region; the table says its size behind it.
pub const A_REGION: u8 = 2;

impl Table {
    /// A table that begins with these kinds of handles.
    pub fn of(kinds: &[u8]) -> Self {
        Self::default().kinds(kinds)
    }

    fn kinds(mut self, kinds: &[u8]) -> Self {
        self.0.extend((kinds.len() as u32).to_le_bytes());
        self.0.extend(kinds);
        self
    }

    /// A table of a message with one region, said to have this size.
    pub fn of_region(len: u64) -> Self {
        let mut table = Self::of(&[A_REGION]);
        table.0.extend(len.to_le_bytes());
        table
    }

    /// An end, and how many messages of it follow.
    pub fn end(mut self, name: Name, side: u8, flags: u8, messages: u32) -> Self {
        self.0.extend(name.to_bytes());
        self.0.extend([side, flags]);
        self.0.extend(messages.to_le_bytes());
        self
    }

    /// A message that an end has not received, with its bytes in the table.
    pub fn message(mut self, bytes: &[u8], lost: u32, kinds: &[u8]) -> Self {
        self.0.push(0);
        self.0.extend((bytes.len() as u64).to_le_bytes());
        self.0.extend(bytes);
        self.0.extend(lost.to_le_bytes());
        self.kinds(kinds)
    }

    /// A message whose bytes come as memory; it says how many there are.
    pub fn message_in_memory(mut self, len: u64, lost: u32, kinds: &[u8]) -> Self {
        self.0.push(1);
        self.0.extend(len.to_le_bytes());
        self.0.extend(lost.to_le_bytes());
        self.kinds(kinds)
    }
}
