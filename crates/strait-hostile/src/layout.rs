//! The places of rings, records and words in shared memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::Memory;
use crate::record::{CELL, HEADER, cells_for, header, kind, kind_of, len_of};

/// The size of a ring's control block in bytes.
pub const CONTROL: usize = 128;

/// The offsets, in bytes, of the words of a control block.
pub mod control {
    #![allow(missing_docs, reason = "as in docs/how-it-works/wire.md")]
    pub const WAITING: usize = 0;
    pub const CPU: usize = 4;
    pub const QUOTA: usize = 8;
    pub const TRANSFER: usize = 16;
    pub const DONE: usize = 20;
    pub const MOVING: usize = 24;
    pub const CREDIT: usize = 64;
    pub const TAKEN: usize = 72;
    pub const SLEEPING: usize = 80;
    pub const FORWARD: usize = 88;
}

/// Value of a sleep word: the sleeper waits by futex on the sleep word.
pub const ON_WORD: u32 = 1;
/// Value of a sleep word: the sleeper waits on the link's socket, so that a packet wakes it.
pub const ON_SOCKET: u32 = 2;
/// Value of the lower bits of a sleep word: the sleeper is a wait set with the channel as a member. The member id is
/// in the bits from 8 on.
pub const ON_SET: u32 = 3;

/// The values of a transfer word: pending, handed over, claimed, abandoned and cancelled.
pub mod transfer {
    #![allow(missing_docs, reason = "as in docs/how-it-works/wire.md")]
    pub const PENDING: u32 = 0;
    pub const HANDED_OVER: u32 = 1;
    pub const CLAIMED: u32 = 2;
    pub const ABANDONED: u32 = 3;
    pub const CANCELLED: u32 = 4;
}

/// The layout of a ready bitmap: sizes, and offsets in bytes.
pub mod bitmap {
    /// The size of a ready bitmap in bytes.
    pub const BYTES: usize = 33 * 4096;
    /// The number of members of a ready bitmap.
    pub const MEMBERS: usize = 1 << 20;
    /// Offset of the word that is set while the reader of a ready bitmap sleeps.
    pub const SLEEPING: usize = 0;
    /// Offset of the word that the notifying process sets after it sent packets.
    pub const POSTED: usize = 4;
    /// Offset of the word that the notifying process sets once it has received the ready bitmap.
    pub const KNOWN: usize = 8;
    /// Offset of the four words at the top level of a ready bitmap.
    pub const TOP: usize = 128;
    /// Offset of the 256 words at the middle level of a ready bitmap.
    pub const MIDDLE: usize = 160;
    /// Offset of the 16,384 words at the lowest level of a ready bitmap, with one bit for each member.
    pub const LEAVES: usize = 2208;
}

/// Returns the size of a lane in bytes, if each of its two rings has `cells` cells.
pub const fn lane_size(cells: usize) -> usize {
    2 * CONTROL + 2 * cells * CELL
}

/// A lane (two rings and their control blocks) in a piece of shared memory.
#[derive(Clone, Debug)]
pub struct Lane {
    memory: Arc<Memory>,
    at: usize,
    cells: usize,
}

impl Lane {
    /// Returns the lane that begins `at` bytes into `memory` and has `cells` cells in each ring. Writes nothing.
    pub fn new(memory: &Arc<Memory>, at: usize, cells: usize) -> Self {
        Self { memory: memory.clone(), at, cells }
    }

    /// Returns the ring written by the end of side `side` (0 or 1).
    pub fn ring(&self, side: usize) -> Ring {
        Ring {
            control: (self.memory.clone(), self.at + side * CONTROL),
            cells: (self.memory.clone(), self.at + 2 * CONTROL + side * self.cells * CELL),
            count: self.cells,
        }
    }

    /// Returns the transfer word of the lane: one of the values in [`transfer`].
    pub fn transfer(&self) -> &AtomicU32 {
        self.memory.word32(self.at + control::TRANSFER)
    }

    /// Returns the word that is 1 once the end of side `side` (0 or 1) does not use the lane any more.
    pub fn done(&self, side: usize) -> &AtomicU32 {
        self.memory.word32(self.at + side * CONTROL + control::DONE)
    }

    /// Returns the word that is 1 while the maker of the lane moves an end into the lane.
    pub fn moving(&self) -> &AtomicU32 {
        self.memory.word32(self.at + control::MOVING)
    }
}

/// A ring: a control block and an array of cells, possibly in different pieces of memory.
#[derive(Clone, Debug)]
pub struct Ring {
    control: (Arc<Memory>, usize),
    cells: (Arc<Memory>, usize),
    count: usize,
}

impl Ring {
    /// Returns the 32-bit word of the control block at one of the offsets in [`control`].
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        self.control.0.word32(self.control.1 + offset)
    }

    /// Returns the 64-bit word of the control block at one of the offsets in [`control`].
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        self.control.0.word64(self.control.1 + offset)
    }

    /// Returns the word of the credit: the number of cells that the consumer has freed since the ring was made.
    pub fn credit(&self) -> &AtomicU64 {
        self.word64(control::CREDIT)
    }

    /// Returns the word with the number of messages that the consumer has received since the ring was made.
    pub fn taken(&self) -> &AtomicU64 {
        self.word64(control::TAKEN)
    }

    /// Returns the sleep word of the ring's reader.
    pub fn sleeping(&self) -> &AtomicU32 {
        self.word32(control::SLEEPING)
    }

    /// Returns the sleep word of the ring's writer, for a writer that waits for room.
    pub fn waiting(&self) -> &AtomicU32 {
        self.word32(control::WAITING)
    }

    /// Stores the name of the lane in which the writer continues, as
    /// [`Name::to_words`](crate::record::Name::to_words) returns it. The name is valid once the ring is frozen.
    pub fn set_forward(&self, name: [u64; 2]) {
        self.word64(control::FORWARD).store(name[0], Ordering::SeqCst);
        self.word64(control::FORWARD + 8).store(name[1], Ordering::SeqCst);
    }

    /// Returns the number of cells.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Returns the header at the start of cell `cell`, modulo the number of cells.
    pub fn header(&self, cell: usize) -> &AtomicU64 {
        self.cells.0.word64(self.cells.1 + cell % self.count * CELL)
    }

    /// Writes `bytes` to the payload of the record that begins in cell `cell`, `offset` bytes behind the header.
    /// `cell` counts modulo the number of cells.
    pub fn write(&self, cell: usize, offset: usize, bytes: &[u8]) {
        self.cells.0.write(self.cells.1 + cell % self.count * CELL + HEADER + offset, bytes);
    }

    /// Reads the first `len` bytes of the payload of the record that begins in cell `cell`, modulo the number of
    /// cells.
    pub fn read(&self, cell: usize, len: usize) -> Vec<u8> {
        self.cells.0.read(self.cells.1 + cell % self.count * CELL + HEADER, len)
    }

    /// Returns a ring with the control block of this ring and with all of `cells` as its array of cells.
    pub fn grown(&self, cells: &Arc<Memory>) -> Self {
        Self { control: self.control.clone(), cells: (cells.clone(), 0), count: cells.len() / CELL }
    }

    /// Returns the memory of the control block and the memory of the cells, in this order.
    pub fn memories(&self) -> [&Arc<Memory>; 2] {
        [&self.control.0, &self.cells.0]
    }
}

/// Writes records to a ring. A writer does not check credit: its user must know how much room the ring has.
#[derive(Debug)]
pub struct Writer {
    /// The ring of the writer.
    pub ring: Ring,
    /// The position of the next record, in cells since the ring got its present cells.
    pub position: usize,
    /// The number of messages written so far: the sequence number of the next message.
    pub sequence: u64,
    /// The generation of the ring's present cells: 0 at first, and one more with each larger array of cells.
    pub generation: u64,
}

impl Writer {
    /// Returns the writer of a new, empty ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, position: 0, sequence: 0, generation: 0 }
    }

    /// Returns the index of the cell where the next record begins.
    pub fn cell(&self) -> usize {
        self.position % self.ring.count()
    }

    /// Publishes a record with any header, right or wrong. The next record begins behind `payload`, whatever the
    /// length in the header.
    pub fn put(&mut self, header: u64, payload: &[u8]) {
        self.place(header, payload);
        self.ring.header(self.cell()).store(header, Ordering::SeqCst);
        self.position += cells_for(payload.len());
        self.sequence += u64::from((kind::MESSAGE..=kind::SEALED).contains(&kind_of(header)));
    }

    /// Writes the payload of the next record, and 0 as the header behind the record. Only the header of the record
    /// itself is missing then.
    pub fn place(&self, _header: u64, payload: &[u8]) {
        self.ring.header(self.position + cells_for(payload.len())).store(0, Ordering::SeqCst);
        self.ring.write(self.cell(), 0, payload);
    }

    /// If a record with `len` bytes of payload does not fit before the end of the ring, writes a pad record up to
    /// that end.
    pub fn pad_for(&mut self, len: usize) {
        let left = self.ring.count() - self.cell();
        if cells_for(len) > left {
            let len = left * CELL - HEADER;
            self.ring.header(0).store(0, Ordering::SeqCst);
            self.ring.header(self.cell()).store(header(kind::PAD, len, 0), Ordering::SeqCst);
            self.position += left;
        }
    }

    /// Continues in larger cells, whose memory was sent to the reader before. The caller has put the record of kind
    /// *next*.
    pub fn go_on_in(&mut self, cells: &Arc<Memory>) {
        self.ring = self.ring.grown(cells);
        self.position = 0;
        self.generation += 1;
    }
}

/// Reads records from a ring without checking them. A reader is for honest peers, and for lanes that only this
/// process disturbs.
#[derive(Debug)]
pub struct Reader {
    /// The ring of the reader.
    pub ring: Ring,
    /// The position of the next record, in cells since the ring got its present cells.
    pub position: usize,
    /// The number of cells read since the ring was made.
    pub taken_cells: u64,
    /// The number of messages received since the ring was made.
    pub taken: u64,
}

/// A copy of a record: its header and its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// The header of the record: kind, length and number of handles.
    pub header: u64,
    /// The payload of the record, as many bytes as the header says.
    pub payload: Vec<u8>,
}

impl Reader {
    /// Returns the reader of a new, empty ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, position: 0, taken_cells: 0, taken: 0 }
    }

    /// Takes the next record and skips pads; `None` if no record was published.
    pub fn take(&mut self) -> Option<Record> {
        loop {
            let cell = self.position % self.ring.count();
            let header = self.ring.header(cell).load(Ordering::SeqCst);
            if header == 0 {
                return None;
            }
            let cells = cells_for(len_of(header));
            self.position += cells;
            self.taken_cells += cells as u64;
            if kind_of(header) == kind::PAD {
                continue;
            }
            self.taken += u64::from((kind::MESSAGE..=kind::SEALED).contains(&kind_of(header)));
            return Some(Record { header, payload: self.ring.read(cell, len_of(header)) });
        }
    }

    /// Continues in larger cells, after a record of kind *next*.
    pub fn go_on_in(&mut self, cells: &Arc<Memory>) {
        self.ring = self.ring.grown(cells);
        self.position = 0;
    }

    /// Stores the numbers of messages and cells read so far in the words for the ring's writer. Does not wake the
    /// writer.
    pub fn give_credit(&self) {
        self.ring.taken().store(self.taken, Ordering::SeqCst);
        self.ring.credit().store(self.taken_cells, Ordering::SeqCst);
    }
}
