//! The reading side.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use super::{CELL, HEADER, Header, Kind, Memory, PACK_WORD, Word, cells_for};
use crate::os::fault;

mod survey;

pub(crate) use survey::Survey;

/// Reads records. One thread at a time. A copy can look ahead, and leaves everything as it is until it gives credit or ends
/// the ring.
#[derive(Clone, Debug)]
pub(crate) struct Consumer<M> {
    memory: M,
    /// Where this ring began; positions go on counting when a ring is replaced.
    base: u64,
    /// Cells taken since the channel was made.
    position: u64,
    /// Cells that the producer was told of.
    published: u64,
    /// The pack at the front, if one is, and what of it was taken.
    pack: Pack,
    /// Messages taken since the channel was made.
    taken: u64,
    /// Messages that the producer was told of.
    taken_published: u64,
    /// After how many messages it is told, whatever their size.
    message_quota: u64,
}

/// A record at the front of the ring, or a message in a pack there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) header: Header,
    cell: usize,
    /// Where its payload begins, in that of the record.
    offset: usize,
}

/// A pack at the front.
#[derive(Clone, Copy, Debug, Default)]
struct Pack {
    cell: u32,
    /// Bytes of it.
    len: u32,
    /// Where its next message is.
    offset: u32,
    /// Messages of it that were not taken; 0 if no pack is at the front.
    left: u32,
}

/// What is at the front of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// Nothing yet.
    Empty,
    /// A record, which stays there until [`Consumer::advance`].
    Record(Record),
}

/// The producer wrote what no producer of ours writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Corrupt(pub(crate) &'static str);

impl<M: Memory> Consumer<M> {
    /// The consumer of a new ring. Credit is given at least every `message_quota` messages.
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

    /// Goes on in the ring that the producer went to, behind the record of kind [`Kind::Next`] at the front.
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

    /// Messages taken since the channel was made.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// The message at the front, if it is a plain one: the common case, in a few instructions. What else may be there is
    /// for [`Consumer::front`].
    #[inline]
    pub(crate) fn plain(&self) -> Option<Record> {
        if self.pack.left > 0 {
            return self.packed().ok();
        }
        let cell = self.index();
        let header = Header::from_plain(self.memory.header(cell).load(Acquire))?;
        (cells_for(header.len()) <= self.memory.cells() - cell).then_some(Record { header, cell, offset: 0 })
    }

    /// The next message of the pack at the front.
    #[inline]
    fn packed(&self) -> Result<Record, Corrupt> {
        let Pack { cell, len, offset, .. } = self.pack;
        let (cell, len, offset) = (cell as usize, len as usize, offset as usize);
        let mut word = [MaybeUninit::uninit(); PACK_WORD];
        let room = len.checked_sub(offset + PACK_WORD).ok_or(Corrupt("a pack with fewer messages than it says"))?;
        let word = self.memory.read(cell, offset, &mut word);
        let length = u64::from_le_bytes((&*word).try_into().expect("eight bytes"));
        match usize::try_from(length) {
            Ok(length) if length <= room => {
                Ok(Record { header: Header::new(Kind::Message, length, 0), cell, offset: offset + PACK_WORD })
            }
            _ => Err(Corrupt("a message that does not fit its pack")),
        }
    }

    /// Copies out a small message with the rest of its cell, which is of no meaning; a few bytes more are copied faster
    /// than a number of bytes. False if it is in no cell of its own, and nothing was copied.
    #[inline]
    pub(crate) fn read_cell(&self, record: Record, out: &mut [MaybeUninit<u8>; CELL - HEADER]) -> bool {
        if record.offset > 0 {
            return false;
        }
        self.memory.read(record.cell, 0, out);
        true
    }

    /// Looks at the front. Costs one load, of the line that holds the payload of a small message.
    #[inline(always)]
    pub(crate) fn front(&mut self) -> Result<Front, Corrupt> {
        loop {
            if self.pack.left > 0 {
                return self.packed().map(Front::Record);
            }
            let word = self.memory.header(self.index()).load(Acquire);
            if word == 0 {
                return Ok(Front::Empty);
            }
            let header = Header::from_word(word).ok_or(Corrupt("a header that is none"))?;
            let cell = self.index();
            let to_end = self.memory.cells() - cell;
            let cells = cells_for(header.len());
            if header.kind() == Kind::Pad {
                // Never at the start of the ring: so there is no endless row of pads.
                if cell == 0 || cells != to_end {
                    return Err(Corrupt("a pad that does not end the ring"));
                }
                self.position += cells as u64;
                continue;
            }
            if cells > to_end {
                return Err(Corrupt("a record that does not fit its ring"));
            }
            // Nobody can write more than a ring of records for which he was given no credit.
            if self.position + cells as u64 - self.published.max(self.base) > self.memory.cells() as u64 {
                return Err(Corrupt("more records than fit its ring"));
            }
            if header.kind() == Kind::Pack {
                if header.handles() == 0 {
                    return Err(Corrupt("a pack of nothing"));
                }
                // All of it is there, and each message will be waited for alone.
                for ahead in 1..cells {
                    self.memory.prefetch_for_reading(cell + ahead);
                }
                // A ring has fewer than 2^32 bytes, and the record fits it.
                self.pack =
                    Pack { cell: cell as u32, len: header.len() as u32, offset: 0, left: header.handles() as u32 };
                continue;
            }
            return Ok(Front::Record(Record { header, cell, offset: 0 }));
        }
    }

    /// Whether something is at the front: one load, for a loop that spins.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pack.left == 0 && self.memory.header(self.index()).load(Acquire) == 0
    }

    /// Copies out part of a record's payload.
    #[inline]
    pub(crate) fn read<'a>(&self, record: Record, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let len = record.header.len();
        assert!(offset <= len && out.len() <= len - offset, "a read inside the record");
        self.memory.read(record.cell, record.offset + offset, out)
    }

    /// Where a record's payload is.
    pub(crate) fn in_place(&self, record: Record) -> *const u8 {
        self.memory.in_place(record.cell, record.offset, record.header.len())
    }

    /// Goes on to the next record. True when the producer should be given credit now.
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

    /// Tells the producer what was taken. If it waits for room, it must be woken after this.
    pub(crate) fn give_credit(&mut self) {
        self.published = self.position;
        self.taken_published = self.taken;
        fault::point("before credit is given");
        self.memory.taken().swap(self.taken, SeqCst);
        // An exchange, so that it is in order with the look at the waiting word.
        self.memory.credit().swap(self.position, SeqCst);
        M::full_barrier();
    }

    /// Tells the producer which messages were taken, without room for others. If it waits, it must be woken after this.
    pub(crate) fn give_taken(&mut self) {
        self.taken_published = self.taken;
        fault::point("before credit is given");
        self.memory.taken().swap(self.taken, SeqCst);
        M::full_barrier();
    }

    /// After how many messages the producer is told, whatever their size.
    pub(crate) fn set_message_quota(&mut self, messages: u64) {
        self.message_quota = messages;
    }

    /// Whether the producer was not told yet of all that it should be.
    pub(crate) fn owes_credit(&self) -> bool {
        self.taken - self.taken_published >= self.message_quota
            || self.position - self.published >= (self.memory.cells() / 4) as u64
    }

    /// Puts a mark into the first free header, after which the producer can publish nothing more. False if
    /// something was published there before: take it, and try again.
    pub(crate) fn end(&mut self, kind: Kind) -> bool {
        let mark = Header::new(kind, 0, 0).to_word();
        fault::point("before a ring is ended by its reader");
        let ended = self.memory.header(self.index()).compare_exchange(0, mark, SeqCst, Acquire).is_ok();
        M::full_barrier();
        ended
    }
}
