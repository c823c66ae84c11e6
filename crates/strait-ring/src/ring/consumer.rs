//! The reading side of a ring.

use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Release, SeqCst};

use super::{Header, Memory, ONE_CELL, PACK_WORD, RecordKind, Word, cells_for};

mod survey;

pub use survey::Survey;

/// The largest message quota. No consumer receives as many messages.
const MOST_QUOTA: u64 = 1 << 62;

/// Reads the records of a lane's ring. Only one thread at a time may use a consumer. A clone can look ahead in the
/// ring; the clone changes nothing in shared memory until it gives credit or ends the ring.
#[derive(Clone, Debug)]
pub struct Consumer<M> {
    memory: M,
    /// Position at which the ring begins, in cells since the lane was made: 0 for the first ring of a lane. A larger
    /// ring begins at the position at which the smaller ring before it ended.
    base: u64,
    /// Number of cells read by the consumer since the lane was made.
    position: u64,
    /// The position at which the consumer owes credit for cells: [`credit_step`] cells behind the last credit given.
    /// (The last credit given is the number of cells freed since the lane was made, as the consumer last wrote it to
    /// shared memory for the producer.)
    credit_due: u64,
    /// The packed record being read, if any, and the progress in the record.
    pack: Pack,
    /// Number of messages received since the lane was made.
    taken: u64,
    /// The number of received messages at which the consumer owes credit by its message quota: one quota above the
    /// number last reported to the producer.
    taken_due: u64,
    /// Message quota: the number of received messages, of any size, after which the consumer gives credit; at most
    /// [`MOST_QUOTA`].
    message_quota: u64,
}

/// Describes the next record of a ring, or the next message in a packed record, as found by a look of the consumer: the
/// header and the place of the payload. The record stays in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// The header of the record. For a message in a packed record, the header that the message would have on its own.
    pub header: Header,
    cell: usize,
    /// Offset in bytes of the message's payload from the start of the record's payload; 0 if the message is not in a
    /// packed record.
    offset: usize,
}

/// The packed record that a consumer is reading, and the progress of the reading.
#[derive(Clone, Copy, Debug, Default)]
struct Pack {
    cell: u32,
    /// Length of the packed record's payload in bytes.
    len: u32,
    /// Offset in bytes, from the start of the packed record's payload, of the length word of the next message.
    offset: u32,
    /// Number of messages in the packed record that were not received yet; 0 if no packed record is being read.
    left: u32,
}

/// The result of a consumer's look for the next record of its ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextRecord {
    /// The ring has no further record now: the producer has not published the next record yet.
    Empty,
    /// The ring has a next record. The record stays in the ring until [`Consumer::advance`] receives it.
    Record(Record),
}

/// The result of [`Consumer::pop_one`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Popped {
    /// A message was received.
    Message {
        /// The number of bytes of the message.
        len: usize,
        /// Whether the caller must wake the producer: the consumer has given credit, and the producer sleeps for room.
        producer_sleeps: bool,
    },
    /// The ring has no further record now.
    Empty,
    /// The ring may have a next record, and nothing was received: the record is not a plain message of one cell, or the
    /// caller has no memory for the message. [`Consumer::next_record`] tells which record it is.
    Other,
}

/// An error: the ring has contents that no correct producer writes. The text names the mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

/// Returns the number of cells for which the consumer of the ring in `memory` gives credit at once.
#[inline(always)]
fn credit_step(memory: &impl Memory) -> u64 {
    (memory.cells() / 4) as u64
}

impl<M: Memory> Consumer<M> {
    /// Creates the consumer of a lane's first ring, at its first cell. The consumer gives credit at least once every
    /// `message_quota` received messages.
    pub fn new(memory: M, message_quota: u64) -> Self {
        let (credit_due, message_quota) = (credit_step(&memory), message_quota.min(MOST_QUOTA));
        Self {
            memory,
            base: 0,
            position: 0,
            credit_due,
            pack: Pack::default(),
            taken: 0,
            taken_due: message_quota,
            message_quota,
        }
    }

    /// Returns the last credit given, in cells since the lane was made.
    #[inline]
    fn published(&self) -> u64 {
        self.credit_due - credit_step(&self.memory)
    }

    /// Continues in `memory`, the larger ring to which the producer has gone on. The next record in the old ring must
    /// be the mark [`RecordKind::Next`]; this call moves past the mark.
    pub fn go_on_in(&mut self, memory: M) {
        self.credit_due = self.published() + credit_step(&memory);
        self.memory = memory;
        self.position += 1;
        self.base = self.position;
    }

    #[inline]
    fn index(&self) -> usize {
        (self.position - self.base) as usize & (self.memory.cells() - 1)
    }

    /// Returns the memory of this ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the number of messages received since the lane was made.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the next message if it is in a packed record, or is a plain message (see [`Header::from_plain`]): the
    /// common case, in a few instructions. The message stays in the ring. Returns `None` in all other cases, also if
    /// the ring is empty or corrupt; then [`Consumer::next_record`] tells which case it is.
    #[inline]
    pub fn plain(&self) -> Option<Record> {
        if self.pack.left > 0 {
            return self.packed().ok();
        }
        let cell = self.index();
        let header = Header::from_plain(self.memory.header(cell).load(Acquire))?;
        (cells_for(header.len()) <= self.memory.cells() - cell).then_some(Record { header, cell, offset: 0 })
    }

    /// Receives the next message if it is plain (see [`Header::from_plain`]) and takes one cell: the most common case,
    /// in the fewest instructions. Calls `place` with the length of the message, at most [`ONE_CELL`], for the memory
    /// to which the message is copied: as many bytes, or [`ONE_CELL`] bytes. The message stays in the ring if `place`
    /// returns `None`. Gives credit if credit is owed.
    #[inline(always)]
    pub fn pop_one<'a>(&mut self, place: impl FnOnce(usize) -> Option<&'a mut [MaybeUninit<u8>]>) -> Popped {
        if self.pack.left > 0 {
            return Popped::Other;
        }
        let mut taken = None;
        let word = self.memory.read_one(self.index(), |word| {
            // The header of a plain message is its length, beside the kind.
            let len = word ^ (RecordKind::Message as u64) << 32;
            let out = if len <= ONE_CELL as u64 { place(len as usize) } else { None }?;
            taken = Some(len as usize);
            Some(out)
        });
        match taken {
            Some(len) => {
                self.position += 1;
                self.taken += 1;
                let producer_sleeps = self.owes_credit() && {
                    self.give_credit();
                    self.memory.waiting().load(SeqCst) != 0
                };
                Popped::Message { len, producer_sleeps }
            }
            None if word == 0 => Popped::Empty,
            None => Popped::Other,
        }
    }

    /// Returns the next message of the packed record that the consumer is reading. The message stays in the ring. Fails
    /// if the message would reach beyond the end of the packed record.
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

    /// Returns the next record; the record stays in the ring. Fails if the producer wrote something invalid. Steps over
    /// padding, and returns the messages of a packed record one by one. Costs one load, of the cache line that also
    /// holds the payload of a small message.
    #[inline(always)]
    pub fn next_record(&mut self) -> Result<NextRecord, Corrupt> {
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
            // Without new credit, a producer can write no more than one ring of records.
            if self.position + cells as u64 - self.published().max(self.base) > self.memory.cells() as u64 {
                return Err(Corrupt("more records than fit its ring"));
            }
            if header.kind() == RecordKind::Pack {
                if header.handles() == 0 {
                    return Err(Corrupt("a packed record without messages"));
                }
                // All of the record is there, and without this hint the consumer would wait for each message's line
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

    /// Returns whether the ring has no further record now. The cost of one load suits a loop that spins.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.pack.left == 0 && self.memory.header(self.index()).load(Acquire) == 0
    }

    /// Fills `out` with the payload of the message or mark `record`, from byte `offset` of the payload on, and returns
    /// `out` as initialised bytes. Panics if these bytes are not all inside the payload.
    #[inline]
    pub fn read<'a>(&self, record: Record, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let len = record.header.len();
        assert!(offset <= len && out.len() <= len - offset, "a read inside the record");
        self.memory.read(record.cell, record.offset + offset, out)
    }

    /// Returns a pointer to the first byte of the payload of the message or mark `record`, in shared memory.
    pub fn in_place(&self, record: Record) -> *const u8 {
        self.memory.in_place(record.cell, record.offset, record.header.len())
    }

    /// Receives `record`, which must be the next record, and moves to the record behind it. Returns `true` if the
    /// consumer should give credit now (see [`Consumer::owes_credit`]).
    #[inline]
    pub fn advance(&mut self, record: Record) -> bool {
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
        self.owes_credit()
    }

    /// Gives credit: writes to shared memory how many cells were read and how many messages were received since the
    /// lane was made. After this call the caller must wake the producer if it sleeps for room.
    #[inline(always)]
    pub fn give_credit(&mut self) {
        self.credit_due = self.position + credit_step(&self.memory);
        self.taken_due = self.taken + self.message_quota;
        M::step("before credit is given");
        self.memory.taken().store(self.taken, Release);
        // An exchange, so that the credit and the count are ordered before the look at the producer's sleep word.
        self.memory.credit().swap(self.position, SeqCst);
        M::full_barrier();
    }

    /// Writes to shared memory how many messages were received since the lane was made, without giving credit for
    /// cells. After this call the caller must wake the producer if it sleeps.
    pub fn give_taken(&mut self) {
        self.taken_due = self.taken + self.message_quota;
        M::step("before credit is given");
        self.memory.taken().swap(self.taken, SeqCst);
        M::full_barrier();
    }

    /// Sets the message quota to `messages`: the number of received messages, of any size, after which the consumer
    /// gives credit.
    pub fn set_message_quota(&mut self, messages: u64) {
        let messages = messages.min(MOST_QUOTA);
        self.taken_due = self.taken_due - self.message_quota + messages;
        self.message_quota = messages;
    }

    /// Returns whether the consumer should give credit now: it owes credit for at least a quarter of the ring's cells,
    /// or has received at least as many messages as its quota since it last gave credit.
    #[inline]
    pub fn owes_credit(&self) -> bool {
        self.position >= self.credit_due || self.taken >= self.taken_due
    }

    /// Ends the ring from the reading side: puts the mark `kind` into the first free header, after which the producer
    /// can publish nothing more. Returns `false`, and changes nothing, if the producer had published a record there:
    /// the caller must receive that record and try again.
    pub fn end(&mut self, kind: RecordKind) -> bool {
        let mark = Header::new(kind, 0, 0).to_word();
        M::step("before a ring is ended by its reader");
        let ended = self.memory.header(self.index()).compare_exchange(0, mark, SeqCst, Acquire).is_ok();
        M::full_barrier();
        ended
    }
}
