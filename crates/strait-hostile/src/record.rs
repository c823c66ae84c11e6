//! The content of rings: headers, names of lanes, blocks and handle tables.

/// The size of a cell in bytes.
pub const CELL: usize = 64;

/// The size of a record's header in bytes.
pub const HEADER: usize = 8;

/// The kinds of records.
pub mod kind {
    #![allow(missing_docs, reason = "as in docs/how-it-works/wire.md")]
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
    /// One more than the highest kind of record.
    pub const END: u8 = 12;
}

/// Bit of a message's header: the record before the message is the handle table of the message.
pub const WITH_TABLE: u64 = 1 << 48;

/// Returns the header of a record with `len` bytes of payload and `handles` handles.
pub const fn header(kind: u8, len: usize, handles: usize) -> u64 {
    (len as u32) as u64 | (kind as u64) << 32 | ((handles as u8) as u64) << 40
}

/// Returns the kind of record in a header.
pub const fn kind_of(header: u64) -> u8 {
    (header >> 32) as u8
}

/// Returns the number of bytes of payload in a header.
pub const fn len_of(header: u64) -> usize {
    header as u32 as usize
}

/// Returns the number of handles in a header.
pub const fn handles_of(header: u64) -> usize {
    (header >> 40) as u8 as usize
}

/// Returns the number of cells of a record with `len` bytes of payload.
pub const fn cells_for(len: usize) -> usize {
    (HEADER + len).div_ceil(CELL)
}

/// The name of a lane in records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The number of the arena in which the lane is.
    pub arena: u64,
    /// The index of the lane's slot in the arena.
    pub slot: u32,
    /// How often the slot was used before.
    pub usage: u32,
}

impl Name {
    /// Returns the name of the first lane in a slot.
    pub fn new(arena: u64, slot: u32) -> Self {
        Self { arena, slot, usage: 0 }
    }

    /// Returns the name as two words: the number of the arena; then the slot, and above it the number of earlier
    /// uses.
    pub fn to_words(self) -> [u64; 2] {
        [self.arena, u64::from(self.slot) | u64::from(self.usage) << 32]
    }

    /// Returns the bytes of the name in records.
    pub fn to_bytes(self) -> [u8; 16] {
        let [low, high] = self.to_words();
        (u128::from(low) | u128::from(high) << 64).to_le_bytes()
    }

    /// Returns the name with these bytes in records.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        let word = u128::from_le_bytes(bytes);
        Self { arena: word as u64, slot: (word >> 64) as u32, usage: (word >> 96) as u32 }
    }
}

/// The payload of the record of a message in a block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Block {
    /// The number of the block.
    pub id: u64,
    /// The number of this use of the block, counted from 1.
    pub usage: u64,
    /// The length of the message in bytes.
    pub len: u64,
    /// 1 if the block will have no other use, else 0.
    pub once: u64,
}

/// The offset, in bytes, at which the message begins in a block.
pub const BLOCK_PAYLOAD: usize = 4096;

impl Block {
    /// Returns the bytes of the payload in records.
    pub fn to_bytes(self) -> [u8; 32] {
        let mut bytes = [0; 32];
        for (place, word) in bytes.chunks_exact_mut(8).zip([self.id, self.usage, self.len, self.once]) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// Reads the payload of a record; `None` if the payload is not exactly four words long.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let words = words(bytes);
        let [id, usage, len, once] = words[..].try_into().ok()?;
        Some(Self { id, usage, len, once })
    }
}

/// Returns the bytes as little-endian words of 8 bytes; an incomplete last word is left out.
pub fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// A handle table: the description of the handles of a message, built piece by piece, right or wrong.
///
/// The order is: the kinds of the message's own handles; then [`Table::end`] for each end among them; then
/// [`Table::message`] for each message of the ends' backlogs.
#[derive(Clone, Debug, Default)]
pub struct Table(pub Vec<u8>);

/// Kind of handle in a table: a file descriptor.
pub const DESCRIPTOR: u8 = 0;

/// Kind of handle in a table: a channel end.
pub const AN_END: u8 = 1;

/// Kind of handle in a table: a region. The region's size follows in the table.
pub const A_REGION: u8 = 2;

impl Table {
    /// Returns a table that begins with handles of these kinds; `kinds` may be empty.
    pub fn of(kinds: &[u8]) -> Self {
        Self::default().kinds(kinds)
    }

    fn kinds(mut self, kinds: &[u8]) -> Self {
        self.0.extend((kinds.len() as u32).to_le_bytes());
        self.0.extend(kinds);
        self
    }

    /// Returns the table of a message with one region, described as `len` bytes long.
    pub fn of_region(len: u64) -> Self {
        let mut table = Self::of(&[A_REGION]);
        table.0.extend(len.to_le_bytes());
        table
    }

    /// Adds an end: the name of its lane, its side, its flags, and the number of its backlog messages (`messages`),
    /// which follow.
    pub fn end(mut self, name: Name, side: u8, flags: u8, messages: u32) -> Self {
        self.0.extend(name.to_bytes());
        self.0.extend([side, flags]);
        self.0.extend(messages.to_le_bytes());
        self
    }

    /// Adds a backlog message, with its bytes in the table. According to the table, `lost` handles were sent with the
    /// message and lost; `kinds` are the kinds of its other handles.
    pub fn message(mut self, bytes: &[u8], lost: u32, kinds: &[u8]) -> Self {
        self.0.push(0);
        self.0.extend((bytes.len() as u64).to_le_bytes());
        self.0.extend(bytes);
        self.0.extend(lost.to_le_bytes());
        self.kinds(kinds)
    }

    /// Adds a backlog message whose `len` bytes are in memory of their own. `lost` and `kinds` are as for
    /// [`Table::message`].
    pub fn message_in_memory(mut self, len: u64, lost: u32, kinds: &[u8]) -> Self {
        self.0.push(1);
        self.0.extend(len.to_le_bytes());
        self.0.extend(lost.to_le_bytes());
        self.kinds(kinds)
    }
}
