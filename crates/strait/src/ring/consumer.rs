//! The reading side of a ring.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use super::{CELL, HEADER, Header, Memory, PACK_WORD, RecordKind, Word, cells_for};
use crate::os::fault;

mod survey;

pub(crate) use survey::Survey;

/// Reads the records of a lane's ring. Only one thread at a time may use it. A clone can look ahead; it changes nothing
/// in shared memory until it gives credit or ends the ring.
#[derive(Clone, Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    /// Position at which this ring began. Positions go on counting when a larger ring replaces this one.
    base: u64,
    /// Number of cells read since the lane was made.
    position: u64,
    /// The last credit given: number of freed cells of which the producer knows, since the lane was made.
    published: u64,
    /// The packed record that is being read, if any, and how far it was read.
    pack: Pack,
    /// Number of messages received since the lane was made.
    taken: u64,
    /// Number of received messages of which the producer knows, since the lane was made.
    taken_published: u64,
    /// Number of received messages after which the consumer gives credit, whatever their size.
    message_quota: u64,
}

/// The next record of the ring, or the next message in a packed record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: Header,
    cell: usize,
    /// Offset in bytes of the message's payload in the payload of the record; 0 if the record is not packed.
    offset: usize,
}

/// The packed record that is being read.
#[derive(Clone, Copy, Debug, Default)]
struct Pack {
    cell: u32,
    /// Length of the packed record's payload in bytes.
    len: u32,
    /// Offset in the packed record's payload at which the length word of the next message is.
    offset: u32,
    /// Number of messages in the packed record that were not received yet; 0 if no packed record is being read.
    left: u32,
}

/// The result of a look for the next record of a ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NextRecord {
    /// The next record is not there yet.
    Empty,
    /// The next record, which stays in the ring until [`Consumer::advance`] goes on behind it.
    Record(Record),
}

/// An error of the producer: it wrote something that no correct producer writes. The text says what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

impl<M: Memory> Consumer<M> {
    /// Creates the consumer of a new ring. The consumer gives credit at least once every `message_quota` messages.
    pub(crate) fn new(memory: M, message_quota: u64) -> Self {
        Self {
            memory,
            base: 0,
            position: 0,
            published: 0,
            pack: Pack::default(),
            taken: 0,
            taken_published: 0,
            message_quota,
        }
    }

    /// Goes on in the larger ring `memory`. The next record must be the mark [`RecordKind::Next`], behind which the
    /// producer went on there.
    pub(crate) fn go_on_in(&mut self, memory: M) {
        self.memory = memory;
        self.position += 1;
        self.base = self.position;
    }

    #[inline]
    fn index(&self) -> usize {
        (self.position - self.base) as usize & (self.memory.cells() - 1)
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the number of messages received since the lane was made.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the next message if it is a plain one (see [`Header::from_plain`]) or in a packed record: the common
    /// case, in a few instructions. Returns `None` in all other cases; then [`Consumer::next_record`] tells which.
    #[inline]
    pub(crate) fn plain(&self) -> Option<Record> {
        if self.pack.left > 0 {
            return self.packed().ok();
        }
        let cell = self.index();
        let header = Header::from_plain(self.memory.header(cell).load(Acquire))?;
        (cells_for(header.len()) <= self.memory.cells() - cell).then_some(Record { header, cell, offset: 0 })
    }

    /// Returns the next message of the packed record that is being read.
    #[inline]
    fn packed(&self) -> Result<Record, Corrupt> {
        let Pack { cell, len, offset, .. } = self.pack;
        let (cell, len, offset) = (cell as usize, len as usize, offset as usize);
        let mut word = [MaybeUninit::uninit(); PACK_WORD];
        let room =
            len.checked_sub(offset + PACK_WORD).ok_or(Corrupt("a packed record with fewer messages than announced"))?;
        let word = self.memory.read(cell, offset, &mut word);
        let length = u64::from_le_bytes((&*word).try_into().expect("eight bytes"));
        match usize::try_from(length) {
            Ok(length) if length <= room => {
                Ok(Record { header: Header::new(RecordKind::Message, length, 0), cell, offset: offset + PACK_WORD })
            }
            _ => Err(Corrupt("a message that does not fit its packed record")),
        }
    }

    /// Copies a whole cell's payload, whose first bytes are a small message and whose rest is meaningless: a constant
    /// number of bytes is copied faster than a variable one. Returns `false`, and copies nothing, if the message is in
    /// a packed record.
    #[inline]
    pub(crate) fn read_cell(&self, record: Record, out: &mut [MaybeUninit<u8>; CELL - HEADER]) -> bool {
        if record.offset > 0 {
            return false;
        }
        self.memory.read(record.cell, 0, out);
        true
    }

    /// Returns the next record, which stays in the ring. Costs one load, of the cache line that also holds the payload
    /// of a small message.
    #[inline(always)]
    pub(crate) fn next_record(&mut self) -> Result<NextRecord, Corrupt> {
        loop {
            if self.pack.left > 0 {
                return self.packed().map(NextRecord::Record);
            }
            let word = self.memory.header(self.index()).load(Acquire);
            if word == 0 {
                return Ok(NextRecord::Empty);
            }
            let header = Header::from_word(word).ok_or(Corrupt("an invalid record header"))?;
            let cell = self.index();
            let to_end = self.memory.cells() - cell;
            let cells = cells_for(header.len());
            if header.kind() == RecordKind::Pad {
                // Padding never is at the start of the ring, so there is no endless sequence of it.
                if cell == 0 || cells != to_end {
                    return Err(Corrupt("padding that does not reach the end of the ring"));
                }
                self.position += cells as u64;
                continue;
            }
            if cells > to_end {
                return Err(Corrupt("a record that does not fit its ring"));
            }
            // A producer can write no more than one ring of records for which it has no credit.
            if self.position + cells as u64 - self.published.max(self.base) > self.memory.cells() as u64 {
                return Err(Corrupt("more records than fit its ring"));
            }
            if header.kind() == RecordKind::Pack {
                if header.handles() == 0 {
                    return Err(Corrupt("a packed record without messages"));
                }
                // All of the record is there, and without this hint the reader would wait for each message's line
                // separately.
                for ahead in 1..cells {
                    self.memory.prefetch_for_reading(cell + ahead);
                }
                // A ring has fewer than 2^32 bytes, and the record fits the ring.
                self.pack =
                    Pack { cell: cell as u32, len: header.len() as u32, offset: 0, left: header.handles() as u32 };
                continue;
            }
            return Ok(NextRecord::Record(Record { header, cell, offset: 0 }));
        }
    }

    /// Returns whether there is no next record yet. Costs one load, for a loop that spins.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pack.left == 0 && self.memory.header(self.index()).load(Acquire) == 0
    }

    /// Fills `out` from a record's payload, from byte `offset` of the payload on.
    #[inline]
    pub(crate) fn read<'a>(&self, record: Record, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let len = record.header.len();
        assert!(offset <= len && out.len() <= len - offset, "a read inside the record");
        self.memory.read(record.cell, record.offset + offset, out)
    }

    /// Returns a pointer to the first byte of a record's payload.
    pub(crate) fn in_place(&self, record: Record) -> *const u8 {
        self.memory.in_place(record.cell, record.offset, record.header.len())
    }

    /// Receives the next record, `record`, and goes on behind it. Returns `true` if the consumer should give credit
    /// now.
    #[inline]
    pub(crate) fn advance(&mut self, record: Record) -> bool {
        if self.pack.left == 0 {
            self.position += cells_for(record.header.len()) as u64;
        } else {
            self.pack.left -= 1;
            self.pack.offset = (record.offset + record.header.len().next_multiple_of(PACK_WORD)) as u32;
            if self.pack.left == 0 {
                self.position += cells_for(self.pack.len as usize) as u64;
            }
        }
        self.taken += u64::from(record.header.kind().is_message());
        self.position - self.published >= (self.memory.cells() / 4) as u64
            || self.taken - self.taken_published >= self.message_quota
    }

    /// Gives credit: tells the producer how many cells and messages were taken. If the producer waits for room, the
    /// caller must wake it after this call.
    pub(crate) fn give_credit(&mut self) {
        self.published = self.position;
        self.taken_published = self.taken;
        fault::point("before credit is given");
        self.memory.taken().swap(self.taken, SeqCst);
        // An exchange, so that it is ordered before the look at the producer's sleep word.
        self.memory.credit().swap(self.position, SeqCst);
        M::full_barrier();
    }

    /// Tells the producer how many messages were taken, without giving it credit for cells. If the producer waits, the
    /// caller must wake it after this call.
    pub(crate) fn give_taken(&mut self) {
        self.taken_published = self.taken;
        fault::point("before credit is given");
        self.memory.taken().swap(self.taken, SeqCst);
        M::full_barrier();
    }

    /// Sets the number of received messages after which the consumer gives credit, whatever their size.
    pub(crate) fn set_message_quota(&mut self, messages: u64) {
        self.message_quota = messages;
    }

    /// Returns whether the consumer owes credit: a quarter of the ring's cells, or as many messages as its quota.
    pub(crate) fn owes_credit(&self) -> bool {
        self.taken - self.taken_published >= self.message_quota
            || self.position - self.published >= (self.memory.cells() / 4) as u64
    }

    /// Puts the mark `kind` into the first free header, after which the producer can publish nothing more. Returns
    /// `false` if the producer had published a record there: the caller must take that record and try again.
    pub(crate) fn end(&mut self, kind: RecordKind) -> bool {
        let mark = Header::new(kind, 0, 0).to_word();
        fault::point("before a ring is ended by its reader");
        let ended = self.memory.header(self.index()).compare_exchange(0, mark, SeqCst, Acquire).is_ok();
        M::full_barrier();
        ended
    }
}
