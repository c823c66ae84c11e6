//! Where things stand in shared memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::memory::Memory;
use crate::record::{CELL, HEADER, cells_for, header, kind, kind_of, len_of};

/// Bytes of a ring's control block.
pub const CONTROL: usize = 128;

/// Offsets in a control block.
pub mod control {
    #![allow(missing_docs, reason = "as in docs/design.md")]
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

/// How a sleeper's word says that it sleeps on it.
pub const ON_WORD: u32 = 1;
/// On the socket.
pub const ON_SOCKET: u32 = 2;
/// That a wait set has it for a member; its number is in the bits from 8 on.
pub const ON_SET: u32 = 3;

/// What the transfer word says: pending, handed over, claimed, abandoned, cancelled.
pub mod transfer {
    #![allow(missing_docs, reason = "as in docs/design.md")]
    pub const PENDING: u32 = 0;
    pub const HANDED_OVER: u32 = 1;
    pub const CLAIMED: u32 = 2;
    pub const ABANDONED: u32 = 3;
    pub const CANCELLED: u32 = 4;
}

/// Of a ready bitmap.
pub mod bitmap {
    /// Bytes of it.
    pub const BYTES: usize = 33 * 4096;
    /// Members that it has a bit for.
    pub const MEMBERS: usize = 1 << 20;
    /// Where the reader says that it sleeps.
    pub const SLEEPING: usize = 0;
    /// Where the ringer says that it has sent packets.
    pub const POSTED: usize = 4;
    /// Where it says that it has the ready bitmap.
    pub const KNOWN: usize = 8;
    /// Where the four words at the top are.
    pub const TOP: usize = 128;
    /// Where the 256 words in the middle are.
    pub const MIDDLE: usize = 160;
    /// Where the 16384 leaves are.
    pub const LEAVES: usize = 2208;
}

/// Bytes of a lane.
pub const fn lane_size(cells: usize) -> usize {
    2 * CONTROL + 2 * cells * CELL
}

/// A lane in some memory.
#[derive(Clone, Debug)]
pub struct Lane {
    memory: Arc<Memory>,
    at: usize,
    cells: usize,
}

impl Lane {
    /// The lane that begins there.
    pub fn new(memory: &Arc<Memory>, at: usize, cells: usize) -> Self {
        Self { memory: memory.clone(), at, cells }
    }

    /// The ring that this side writes.
    pub fn ring(&self, side: usize) -> Ring {
        Ring {
            control: (self.memory.clone(), self.at + side * CONTROL),
            cells: (self.memory.clone(), self.at + 2 * CONTROL + side * self.cells * CELL),
            count: self.cells,
        }
    }

    /// Whose the end is that the lane was made for.
    pub fn transfer(&self) -> &AtomicU32 {
        self.memory.word32(self.at + control::TRANSFER)
    }

    /// Whether this side uses the lane no more.
    pub fn done(&self, side: usize) -> &AtomicU32 {
        self.memory.word32(self.at + side * CONTROL + control::DONE)
    }

    /// Whether its maker is moving an end into it.
    pub fn moving(&self) -> &AtomicU32 {
        self.memory.word32(self.at + control::MOVING)
    }
}

/// A ring: a control block, and cells.
#[derive(Clone, Debug)]
pub struct Ring {
    control: (Arc<Memory>, usize),
    cells: (Arc<Memory>, usize),
    count: usize,
}

impl Ring {
    /// A word of the control block, at one of the offsets in [`control`].
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        self.control.0.word32(self.control.1 + offset)
    }

    /// The same for double words.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        self.control.0.word64(self.control.1 + offset)
    }

    /// Cells taken.
    pub fn credit(&self) -> &AtomicU64 {
        self.word64(control::CREDIT)
    }

    /// Messages taken.
    pub fn taken(&self) -> &AtomicU64 {
        self.word64(control::TAKEN)
    }

    /// How its reader sleeps.
    pub fn sleeping(&self) -> &AtomicU32 {
        self.word32(control::SLEEPING)
    }

    /// How its writer sleeps.
    pub fn waiting(&self) -> &AtomicU32 {
        self.word32(control::WAITING)
    }

    /// Where the writer goes on, once the ring is frozen.
    pub fn set_forward(&self, name: [u64; 2]) {
        self.word64(control::FORWARD).store(name[0], Ordering::SeqCst);
        self.word64(control::FORWARD + 8).store(name[1], Ordering::SeqCst);
    }

    /// Cells.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The header in a cell; any number, taken modulo the cells.
    pub fn header(&self, cell: usize) -> &AtomicU64 {
        self.cells.0.word64(self.cells.1 + cell % self.count * CELL)
    }

    /// Writes to the payload of the record in a cell.
    pub fn write(&self, cell: usize, offset: usize, bytes: &[u8]) {
        self.cells.0.write(self.cells.1 + cell % self.count * CELL + HEADER + offset, bytes);
    }

    /// Reads the payload of the record in a cell.
    pub fn read(&self, cell: usize, len: usize) -> Vec<u8> {
        self.cells.0.read(self.cells.1 + cell % self.count * CELL + HEADER, len)
    }

    /// The same control block, with these cells.
    pub fn grown(&self, cells: &Arc<Memory>) -> Self {
        Self { control: self.control.clone(), cells: (cells.clone(), 0), count: cells.len() / CELL }
    }

    /// The memory of its control block, and that of its cells.
    pub fn memories(&self) -> [&Arc<Memory>; 2] {
        [&self.control.0, &self.cells.0]
    }
}

/// Writes records, without a look at credit: who uses it knows how much room there is.
#[derive(Debug)]
pub struct Writer {
    /// The ring.
    pub ring: Ring,
    /// Where the next record goes; cells since the ring was made.
    pub position: usize,
    /// Messages written.
    pub sequence: u64,
    /// Of the ring.
    pub generation: u64,
}

impl Writer {
    /// The writer of a new ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, position: 0, sequence: 0, generation: 0 }
    }

    /// The cell where the next record goes.
    pub fn cell(&self) -> usize {
        self.position % self.ring.count()
    }

    /// Puts a record with any header, and goes on behind it as far as its payload is long.
    pub fn put(&mut self, header: u64, payload: &[u8]) {
        self.place(header, payload);
        self.ring.header(self.cell()).store(header, Ordering::SeqCst);
        self.position += cells_for(payload.len());
        self.sequence += u64::from((kind::MESSAGE..=kind::SEALED).contains(&kind_of(header)));
    }

    /// Writes what is behind the header of the next record, so that only the header is missing.
    pub fn place(&self, _header: u64, payload: &[u8]) {
        self.ring.header(self.position + cells_for(payload.len())).store(0, Ordering::SeqCst);
        self.ring.write(self.cell(), 0, payload);
    }

    /// Skips to the start of the ring if a record of so many bytes does not fit before its end.
    pub fn pad_for(&mut self, len: usize) {
        let left = self.ring.count() - self.cell();
        if cells_for(len) > left {
            let len = left * CELL - HEADER;
            self.ring.header(0).store(0, Ordering::SeqCst);
            self.ring.header(self.cell()).store(header(kind::PAD, len, 0), Ordering::SeqCst);
            self.position += left;
        }
    }

    /// Goes on in larger cells, whose memory was sent. To be called after the record of kind *next* was put.
    pub fn go_on_in(&mut self, cells: &Arc<Memory>) {
        self.ring = self.ring.grown(cells);
        self.position = 0;
        self.generation += 1;
    }
}

/// Reads records, and believes them: it is for an honest peer, or in a lane that only we disturb.
#[derive(Debug)]
pub struct Reader {
    /// The ring.
    pub ring: Ring,
    /// Where the next record is, in the present cells.
    pub position: usize,
    /// Cells taken since the ring was made.
    pub taken_cells: u64,
    /// Messages taken.
    pub taken: u64,
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Its header.
    pub header: u64,
    /// Its payload.
    pub payload: Vec<u8>,
}

impl Reader {
    /// The reader of a new ring.
    pub fn new(ring: Ring) -> Self {
        Self { ring, position: 0, taken_cells: 0, taken: 0 }
    }

    /// Takes the next record that is no pad.
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

    /// Goes on in larger cells.
    pub fn go_on_in(&mut self, cells: &Arc<Memory>) {
        self.ring = self.ring.grown(cells);
        self.position = 0;
    }

    /// Tells the writer what was taken.
    pub fn give_credit(&self) {
        self.ring.taken().store(self.taken, Ordering::SeqCst);
        self.ring.credit().store(self.taken_cells, Ordering::SeqCst);
    }
}
