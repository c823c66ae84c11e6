//! The writing side of a ring.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::{CELL, HEADER, Header, Memory, ONE_CELL, PACK_WORD, RecordKind, Word, cells_for};

/// Number of cells ahead of its position for which the producer zeroes headers. The producer zeroes them after a
/// commit, when no process waits for the producer. A compare-and-swap waits for earlier stores, and these wait for
/// cache lines that the consumer's core holds. With the headers zeroed ahead, a commit does not wait for the cache line
/// of the header behind its message.
const ZERO_AHEAD: u64 = 4;

/// Number of cells by which prefetches run ahead of zeroing and writing.
const FETCH_AHEAD: usize = 24;

/// Writes the records of a lane's ring. Only one thread at a time may use a producer. The records of a batch become
/// visible to the consumer all at once.
#[derive(Debug)]
pub struct Producer<M> {
    memory: M,
    /// Position at which the ring begins, in cells since the lane was made: 0 for the first ring of a lane. A larger
    /// ring begins at the position at which the smaller ring before it ended.
    base: u64,
    /// Number of cells committed by the producer since the lane was made.
    position: u64,
    /// Number of cells written by the producer since the lane was made, including staged records, which are not
    /// committed yet.
    staged: u64,
    /// Value of the field `staged` before the last record was staged.
    staged_before: u64,
    /// Position, in cells since the lane was made, at which the headers known to be 0 end. All headers from the end of
    /// the staged records up to this position, not included, are 0.
    zeroed: u64,
    /// Header of the first record of the staged batch; 0 if nothing is staged. Writing this header to the ring commits
    /// the batch.
    first: u64,
    /// The last credit accepted: the number of cells that the consumer has freed since the lane was made, as the
    /// producer last loaded it.
    credit: u64,
    /// The position up to which cells are free, by the last credit accepted: the size of the ring beyond the credit, or
    /// beyond the beginning of the ring before any credit.
    free_end: u64,
}

/// The place in the ring of the payload of one staged record.
#[derive(Clone, Copy, Debug)]
pub struct Slot {
    cell: usize,
    /// Number of bytes of the payload.
    pub len: usize,
}

/// Number of bytes of the longest payload that a packed record may have.
const PACK_ROOM: usize = 32 * CELL - HEADER;

/// The greatest number of messages that a packed record may hold.
const PACK_COUNT: usize = 255;

/// A staged packed record, open for further messages.
#[derive(Debug)]
pub struct Packing {
    slot: Slot,
    used: usize,
    count: usize,
}

/// The reason why a record cannot be staged in the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRoom {
    /// The ring has no room for the record now. The record will fit once the consumer has given more credit.
    Full,
    /// The payload of the record is longer than this ring permits.
    TooLong,
    /// The consumer wrote an invalid credit to shared memory: less than before, or more cells than were committed.
    Corrupt,
}

/// An error: the consumer has ended the ring, and the producer can publish nothing more in it. Holds the mark that the
/// consumer put into the first free header; `None` if the header there is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended(pub Option<RecordKind>);

impl<M: Memory> Producer<M> {
    /// Creates the producer of a lane's first ring, whose cells must be all zeroes.
    pub fn new(memory: M) -> Self {
        let zeroed = memory.cells() as u64;
        Self {
            memory,
            base: 0,
            position: 0,
            staged: 0,
            staged_before: 0,
            zeroed,
            first: 0,
            credit: 0,
            free_end: zeroed,
        }
    }

    /// Continues in `memory`, a larger ring whose cells are all zeroes. The caller must have ended the old ring with
    /// the mark [`RecordKind::Next`]. Discards all records that are staged in the old ring.
    pub fn go_on_in(&mut self, memory: M) {
        self.memory = memory;
        // The mark that ended the old ring takes one cell.
        self.position += 1;
        self.base = self.position;
        self.discard();
        self.zeroed = self.base + self.memory.cells() as u64;
        self.free_end = self.credit.max(self.base) + self.memory.cells() as u64;
    }

    /// Returns the memory of this ring.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// Returns the position at which this ring began: the number of cells committed to earlier rings of the lane.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Returns the number of cells that were committed since the lane was made.
    pub fn position(&self) -> u64 {
        self.position
    }

    #[inline]
    fn mask(&self) -> usize {
        self.memory.cells() - 1
    }

    #[inline]
    fn index(&self, position: u64) -> usize {
        (position - self.base) as usize & self.mask()
    }

    /// Returns whether this ring has no room for `cells` more cells, by the credit last loaded. Unread cells of an
    /// older ring of the lane take no room in this ring.
    #[inline]
    fn lacks(&self, cells: u64) -> bool {
        self.staged + cells > self.free_end
    }

    /// Loads the consumer's credit, and returns whether the ring has room for `cells` more cells now. Returns `false`
    /// also if the credit is invalid.
    #[inline(never)]
    fn gains(&mut self, cells: u64) -> bool {
        self.refresh_credit().is_ok() && !self.lacks(cells)
    }

    /// Returns the number of bytes of the longest payload of a record in this ring.
    pub fn longest_payload(&self) -> usize {
        super::longest_payload(self.memory.cells())
    }

    /// Loads the consumer's credit from shared memory, checks it and stores it as the last credit accepted. Fails only
    /// with [`NoRoom::Corrupt`], if the credit is invalid.
    #[inline(always)]
    pub fn refresh_credit(&mut self) -> Result<(), NoRoom> {
        let claim = self.memory.credit().load(Acquire);
        // Credit can only grow, and never beyond the committed cells. The differences are exact, because positions
        // never wrap in the life of a machine.
        if claim < self.credit || claim > self.position {
            return Err(NoRoom::Corrupt);
        }
        self.credit = claim;
        self.free_end = claim.max(self.base) + self.memory.cells() as u64;
        Ok(())
    }

    /// Publishes the message `bytes`, if nothing is staged and the message fits right behind the last record: the
    /// common case, in a few instructions. Returns `false`, and publishes nothing, in all other cases; staging the
    /// message then gives the reason.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        self.push_with(bytes.len(), |memory, cell| memory.write(cell, 0, bytes))
    }

    /// Publishes the message `bytes`, if nothing is staged, the message fits one cell, and the ring has room: the most
    /// common case, in the fewest instructions and without a call. Returns `false`, and publishes nothing, in all other
    /// cases.
    #[inline(always)]
    pub fn push_one(&mut self, bytes: &[u8]) -> bool {
        let position = self.position;
        let end = position + 1;
        // A cell whose header is known to be zero is free. So there is room for the message, and for the header behind
        // it.
        if bytes.len() > ONE_CELL || self.staged != position || (self.zeroed <= end && !self.zero_next(end)) {
            return false;
        }
        let cell = self.index(position);
        let header = Header::new(RecordKind::Message, bytes.len(), 0).to_word();
        if self.memory.publish_one(cell, bytes, header).is_err() {
            return false;
        }
        M::step("after a record was committed");
        M::full_barrier();
        (self.position, self.staged) = (end, end);
        // Zeroes one more header for each message, to keep the distance.
        let zeroed = self.zeroed;
        if zeroed < self.free_end.min(end + ZERO_AHEAD) {
            let ahead = cell + (zeroed - position) as usize;
            self.memory.prefetch_for_writing(ahead + FETCH_AHEAD);
            self.memory.header(ahead).store(0, Relaxed);
            self.zeroed = zeroed + 1;
        }
        true
    }

    /// Zeroes the header at position `end`, one cell behind the producer's position, if the cell is free. Loads the
    /// consumer's credit to find out. Returns `false` if the cell is not free, or the credit is invalid.
    #[inline(always)]
    fn zero_next(&mut self, end: u64) -> bool {
        if self.lacks(2) && (self.refresh_credit().is_err() || self.lacks(2)) {
            return false;
        }
        self.memory.header(self.index(end)).store(0, Relaxed);
        self.zeroed = end + 1;
        true
    }

    /// Publishes the message that consists of `parts`, which have `len` bytes in all, if nothing is staged and the
    /// message fits right behind the last record. Returns `false`, and publishes nothing, in all other cases; staging
    /// the message then gives the reason.
    #[inline]
    pub fn push_parts(&mut self, parts: &[IoSlice<'_>], len: usize) -> bool {
        self.push_with(len, |memory, cell| memory.gather(cell, parts, len))
    }

    /// Stages and commits a message of `len` bytes in a single step, which keeps position and cell in registers. Calls
    /// `fill` with the memory and the message's first cell, to write the payload. Returns `false`, with nothing staged
    /// or published, in the cases named by [`push`](Self::push).
    #[inline(always)]
    fn push_with(&mut self, len: usize, fill: impl FnOnce(&M, usize)) -> bool {
        let (position, cells) = (self.position, cells_for(len));
        let cell = self.index(position);
        // The record may end where the ring ends; then the header behind it is the first of the ring.
        if self.staged != position
            || cells > self.memory.cells() - cell
            || (self.lacks(cells as u64 + 1) && !self.gains(cells as u64 + 1))
        {
            return false;
        }
        fill(&self.memory, cell);
        let end = position + cells as u64;
        self.zero_behind(end);
        if self.swap_in_at(cell, Header::new(RecordKind::Message, len, 0).to_word()).is_err() {
            // The payload may lie where headers were zero.
            self.zeroed = position;
            return false;
        }
        (self.position, self.staged) = (end, end);
        self.prepare_ahead(end);
        true
    }

    /// Stages the message `bytes` right behind the last record, staged or committed. Returns `false`, and stages
    /// nothing, if the ring has no room, or if the message does not fit before the end of the ring's memory (padding
    /// would be needed there).
    #[inline]
    pub fn stage_plain(&mut self, bytes: &[u8]) -> bool {
        self.stage_with(bytes.len(), |memory, cell| memory.write(cell, 0, bytes))
    }

    /// Stages a message of `len` bytes right behind the last record. Calls `fill` with the memory and the message's
    /// first cell, to write the payload. Returns `false`, and stages nothing, if the ring has no room, or if the
    /// message does not fit before the end of the ring's memory (padding would be needed there).
    #[inline]
    fn stage_with(&mut self, len: usize, fill: impl FnOnce(&M, usize)) -> bool {
        let cells = cells_for(len);
        let cell = self.index(self.staged);
        // The record may end where the ring ends; then the header behind it is the first of the ring.
        if cells > self.memory.cells() - cell || (self.lacks(cells as u64 + 1) && !self.gains(cells as u64 + 1)) {
            return false;
        }
        fill(&self.memory, cell);
        self.put_header(Header::new(RecordKind::Message, len, 0));
        self.staged_before = self.staged;
        self.staged += cells as u64;
        true
    }

    /// Zeroes the header at position `end`, right behind the records that are about to be committed, unless that header
    /// is known to be zero.
    #[inline]
    fn zero_behind(&mut self, end: u64) {
        if self.zeroed <= end {
            self.memory.header(self.index(end)).store(0, Relaxed);
            self.zeroed = end + 1;
        }
    }

    /// Zeroes the headers of the next cells behind the last commit, which ended at `position`, at most [`ZERO_AHEAD`]
    /// of them, and prefetches cells further ahead. The header at `position` must be known to be 0. Does not touch
    /// cells for which the consumer has given no credit.
    #[inline(always)]
    fn prepare_ahead(&mut self, position: u64) {
        let end = (position + ZERO_AHEAD).min(self.free_end);
        let mut zeroed = self.zeroed;
        while zeroed < end {
            let cell = self.index(zeroed);
            self.memory.header(cell).store(0, Relaxed);
            self.memory.prefetch_for_writing(cell + FETCH_AHEAD);
            zeroed += 1;
        }
        self.zeroed = zeroed;
    }

    /// Stages a record with the header `header`: reserves its cells behind the last staged record and writes its
    /// header. The caller then writes the payload to the returned place. If too few cells are left before the end of
    /// the ring, padding fills them and the record begins at the ring's first cell. Fails for the reasons in
    /// [`NoRoom`], with nothing staged.
    #[inline]
    pub fn stage(&mut self, header: Header) -> Result<Slot, NoRoom> {
        let len = header.len();
        let cells = cells_for(len);
        if len > self.longest_payload() {
            return Err(NoRoom::TooLong);
        }
        let index = self.index(self.staged);
        let to_end = self.memory.cells() - index;
        let pad = if cells > to_end { to_end } else { 0 };
        // One more cell is for the zeroed header behind the record, where the last record of a ring goes.
        let needed = (pad + cells + 1) as u64;
        if self.lacks(needed) {
            self.refresh_credit()?;
            if self.lacks(needed) {
                return Err(NoRoom::Full);
            }
        }
        self.staged_before = self.staged;
        if pad > 0 {
            self.put_header(Header::new(RecordKind::Pad, pad * CELL - HEADER, 0));
            self.staged += pad as u64;
        }
        let cell = self.index(self.staged);
        self.put_header(header);
        self.staged += cells as u64;
        Ok(Slot { cell, len })
    }

    #[inline]
    fn put_header(&mut self, header: Header) {
        if self.staged == self.position {
            self.first = header.to_word();
        } else {
            self.memory.header(self.index(self.staged)).store(header.to_word(), Relaxed);
        }
    }

    /// Returns whether at least one record is staged and not committed.
    pub fn has_staged(&self) -> bool {
        self.staged != self.position
    }

    /// Stages a packed record without messages, of the greatest size that such a record may have. Returns `None`, and
    /// stages nothing, if the ring has no room for that size.
    pub fn begin_pack(&mut self) -> Option<Packing> {
        let room = self.longest_payload().min(PACK_ROOM);
        let slot = self.stage(Header::new(RecordKind::Pack, room, 0)).ok()?;
        Some(Packing { slot, used: 0, count: 0 })
    }

    /// Adds the message `bytes` to the packed record `pack`. Returns `false`, and adds nothing, if the record has no
    /// room for the message.
    #[inline]
    pub fn pack(&self, pack: &mut Packing, bytes: &[u8]) -> bool {
        let needed = PACK_WORD + bytes.len().next_multiple_of(PACK_WORD);
        if pack.slot.len - pack.used < needed || pack.count == PACK_COUNT {
            return false;
        }
        self.memory.prefetch_for_writing(pack.slot.cell + (pack.used + needed) / CELL + FETCH_AHEAD);
        self.memory.write(pack.slot.cell, pack.used, &(bytes.len() as u64).to_le_bytes());
        self.memory.write(pack.slot.cell, pack.used + PACK_WORD, bytes);
        pack.used += needed;
        pack.count += 1;
        true
    }

    /// Completes the packed record `pack`, which must be the record staged last: shortens the record to the messages
    /// added, or removes a record without messages.
    pub fn end_pack(&mut self, mut pack: Packing) {
        if pack.count == 0 {
            self.unstage_last();
        } else {
            self.shorten(&mut pack.slot, Header::new(RecordKind::Pack, pack.used, pack.count));
        }
    }

    /// Removes the last staged record, with the padding before the record; does nothing if the record is committed.
    /// Works only once before another record is staged.
    pub fn unstage_last(&mut self) {
        self.staged = self.staged_before.max(self.position);
        self.zeroed = self.position;
    }

    /// Removes all staged records. The bytes written to their cells have no meaning to the consumer, because it sees no
    /// header there.
    pub fn discard(&mut self) {
        self.staged = self.position;
        self.staged_before = self.position;
        self.zeroed = self.position;
    }

    /// Returns copies of the headers and payloads of the staged records, without padding, so that the caller can stage
    /// them in another ring. The list ends before the first record whose header no producer would stage: the other
    /// process has overwritten that header.
    pub fn staged_records(&self) -> Vec<(Header, Vec<u8>)> {
        let mut records = Vec::new();
        let mut at = self.position;
        while at < self.staged {
            let cell = self.index(at);
            let word = if at == self.position { self.first } else { self.memory.header(cell).load(Relaxed) };
            let Some(header) = Header::from_word(word) else { break };
            let cells = cells_for(header.len());
            if cells > self.memory.cells() - cell || cells as u64 > self.staged - at {
                break;
            }
            if header.kind() != RecordKind::Pad && !header.kind().comes_in_batches() {
                break;
            }
            if header.kind() != RecordKind::Pad {
                let mut payload = vec![MaybeUninit::uninit(); header.len()];
                records.push((header, self.memory.read(cell, 0, &mut payload).to_vec()));
            }
            at += cells as u64;
        }
        records
    }

    /// Writes `bytes` into the payload of the staged record at `slot`, from byte `offset` of the payload on. Panics if
    /// the bytes do not all fit into the payload.
    #[inline]
    pub fn write(&self, slot: Slot, offset: usize, bytes: &[u8]) {
        assert!(offset <= slot.len && bytes.len() <= slot.len - offset, "a write inside the record");
        self.memory.write(slot.cell, offset, bytes);
    }

    /// Fills `out` with the first bytes of the payload of the staged record at `slot`, and returns `out` as initialised
    /// bytes. Panics if `out` is longer than the payload.
    pub fn read_back<'a>(&self, slot: Slot, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        assert!(out.len() <= slot.len, "a read inside the record");
        self.memory.read(slot.cell, 0, out)
    }

    /// Returns the payload of the staged record at `slot`, for writing in place.
    ///
    /// # Safety
    /// While the slice lives, the record is neither committed nor removed, and nothing else in this process writes to
    /// the payload.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    pub unsafe fn uninit_mut(&self, slot: Slot) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.uninit_mut(slot.cell, slot.len) }
    }

    /// Shortens the last staged record, at `slot`: replaces the header by `header`, with the new length of the payload.
    /// Panics if the new length exceeds the old length.
    pub fn shorten(&mut self, slot: &mut Slot, header: Header) {
        let len = header.len();
        assert!(len <= slot.len, "a record only shrinks");
        let record = self.staged - cells_for(slot.len) as u64;
        if record == self.position {
            self.first = header.to_word();
        } else {
            self.memory.header(self.index(record)).store(header.to_word(), Relaxed);
        }
        self.staged = record + cells_for(len) as u64;
        self.zeroed = self.position;
        slot.len = len;
    }

    /// Commits: makes all staged records visible to the consumer in one step. If the consumer has ended the ring, fails
    /// and publishes nothing; the records stay staged.
    #[inline]
    pub fn commit(&mut self) -> Result<(), Ended> {
        self.zero_behind(self.staged);
        self.swap_in(self.first)?;
        self.position = self.staged;
        self.prepare_ahead(self.position);
        Ok(())
    }

    /// Ends the ring from the writing side: discards all staged records, and publishes the mark `kind` with `payload`
    /// (at most 56 bytes) in the one cell that always is free for a mark. Fails, and publishes nothing, if the consumer
    /// has ended the ring already.
    pub fn end(&mut self, kind: RecordKind, payload: &[u8]) -> Result<(), Ended> {
        assert!(payload.len() <= CELL - HEADER);
        self.discard();
        let cell = self.index(self.position);
        self.memory.write(cell, 0, payload);
        self.swap_in(Header::new(kind, payload.len(), 0).to_word())
    }

    #[inline]
    fn swap_in(&self, header: u64) -> Result<(), Ended> {
        self.swap_in_at(self.index(self.position), header)
    }

    /// Publishes the record in `cell`, the cell at the producer's position, after the payload was written.
    #[inline]
    fn swap_in_at(&self, cell: usize, header: u64) -> Result<(), Ended> {
        M::step("before a record is committed");
        match self.memory.header(cell).compare_exchange(0, header, SeqCst, Acquire) {
            Ok(_) => {
                M::step("after a record was committed");
                M::full_barrier();
                Ok(())
            }
            Err(found) => Err(Ended(Header::from_word(found).map(|header| header.kind()))),
        }
    }

    /// Returns the number of cells freed by the consumer since the lane was made, as last loaded by the producer.
    pub fn known_credit(&self) -> u64 {
        self.credit
    }

    /// Returns whether the consumer has given credit since the producer last accepted credit: the credit in shared
    /// memory differs from the last credit accepted.
    pub fn has_news(&self) -> bool {
        self.memory.credit().load(Acquire) != self.credit
    }

    /// Returns the mark by which the consumer ended the ring; `None` if the consumer has not ended the ring.
    pub fn ended(&self) -> Option<Ended> {
        match self.memory.header(self.index(self.position)).load(Acquire) {
            0 => None,
            found => Some(Ended(Header::from_word(found).map(|header| header.kind()))),
        }
    }
}
