//! The writing side.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use super::{CELL, HEADER, Header, Kind, Memory, PACK_WORD, Word, cells_for};
use crate::os::fault;

/// How many cells ahead of its position the producer zeroes headers, after a commit, when nobody waits for it. A
/// compare-and-swap waits until the stores before it are done, and those wait for lines that the consumer's core
/// holds: zeroed ahead, the line of the header behind a message is not one of them.
const ZERO_AHEAD: u64 = 4;

/// How many cells ahead it fetches, so that the zeroing finds the line here.
const FETCH_AHEAD: usize = 24;

/// Writes records. One thread at a time; whole batches appear at once.
#[derive(Debug)]
pub(crate) struct Producer<M> {
    memory: M,
    /// Where this ring began; positions go on counting when a ring is replaced.
    base: u64,
    /// Cells written and committed since the channel was made.
    position: u64,
    /// Cells written, the batch under way included.
    staged: u64,
    /// The same before the last record was staged.
    staged_before: u64,
    /// The headers from the end of what is staged up to here are known to be zero.
    zeroed: u64,
    /// The first header of the batch under way, which commits it; 0 if there is none.
    first: u64,
    /// Cells that the consumer has taken, as far as we accepted it.
    credit: u64,
}

/// Where the payload of a staged record goes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot {
    cell: usize,
    pub(crate) len: usize,
}

/// Most bytes of a pack.
const PACK_ROOM: usize = 32 * CELL - HEADER;

/// Most messages of a pack.
const PACK_COUNT: usize = 255;

/// A pack that is being filled.
#[derive(Debug)]
pub(crate) struct Packing {
    slot: Slot,
    used: usize,
    count: usize,
}

/// The record does not fit now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// Not before the consumer has taken something.
    Full,
    /// Never: it is longer than this ring takes.
    TooLong,
    /// The consumer claims to have taken what was never there.
    Corrupt,
}

/// Nothing more can be published: the consumer has put this in the first free header, or garbage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended(pub(crate) Option<Kind>);

impl<M: Memory> Producer<M> {
    /// The producer of a ring whose memory is all zeroes.
    pub(crate) fn new(memory: M) -> Self {
        let zeroed = memory.cells() as u64;
        Self { memory, base: 0, position: 0, staged: 0, staged_before: 0, zeroed, first: 0, credit: 0 }
    }

    /// Goes on in a larger ring whose cells are all zeroes, once the old one has ended with [`Kind::Next`].
    pub(crate) fn go_on_in(&mut self, memory: M) {
        self.memory = memory;
        // The record that ended the old ring counts too.
        self.position += 1;
        self.base = self.position;
        self.discard();
        self.zeroed = self.base + self.memory.cells() as u64;
    }

    pub(crate) fn memory(&self) -> &M {
        &self.memory
    }

    /// Where this ring began: cells committed to earlier rings of the lane.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Cells committed since the lane was made.
    pub(crate) fn position(&self) -> u64 {
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

    /// Whether `cells` more would leave too few free. What is still unread in an older ring takes none here.
    #[inline]
    fn lacks(&self, cells: u64) -> bool {
        self.staged + cells - self.credit.max(self.base) > self.memory.cells() as u64
    }

    /// Whether the consumer has made room for so many cells since it was last looked at.
    #[inline(never)]
    fn gains(&mut self, cells: u64) -> bool {
        self.refresh_credit().is_ok() && !self.lacks(cells)
    }

    /// Longest payload this ring takes.
    pub(crate) fn longest_payload(&self) -> usize {
        super::longest_payload(self.memory.cells())
    }

    /// Looks at how much the consumer says it has taken.
    pub(crate) fn refresh_credit(&mut self) -> Result<(), NoRoom> {
        let claim = self.memory.credit().load(Acquire);
        // The claim can only grow, and not past what was committed. Both differences are exact: positions never
        // wrap in the life of a machine.
        if claim < self.credit || claim > self.position {
            return Err(NoRoom::Corrupt);
        }
        self.credit = claim;
        Ok(())
    }

    /// Publishes a message of one piece, if it fits right behind the last one: the common case, in a few instructions.
    /// False if nothing happened, whatever the reason: it will show when the record is staged.
    #[inline]
    pub(crate) fn push(&mut self, bytes: &[u8]) -> bool {
        !self.has_staged() && self.stage_plain(bytes) && self.commit_pushed()
    }

    /// The same with a message in parts, which have `len` bytes in all.
    #[inline]
    pub(crate) fn push_parts(&mut self, parts: &[IoSlice<'_>], len: usize) -> bool {
        !self.has_staged()
            && self.stage_with(len, |memory, cell| memory.gather(cell, parts, len))
            && self.commit_pushed()
    }

    #[inline]
    fn commit_pushed(&mut self) -> bool {
        let pushed = self.commit().is_ok();
        if !pushed {
            self.discard();
        }
        pushed
    }

    /// Stages a message of one piece, if it fits right behind the last one.
    #[inline]
    pub(crate) fn stage_plain(&mut self, bytes: &[u8]) -> bool {
        self.stage_with(bytes.len(), |memory, cell| memory.write(cell, 0, bytes))
    }

    /// Stages a message of `len` bytes, if it fits right behind the last one, and has its payload filled.
    #[inline]
    fn stage_with(&mut self, len: usize, fill: impl FnOnce(&M, usize)) -> bool {
        let cells = cells_for(len);
        let cell = self.index(self.staged);
        // The header behind it may be the first of the ring.
        if cells > self.memory.cells() - cell || (self.lacks(cells as u64 + 1) && !self.gains(cells as u64 + 1)) {
            return false;
        }
        fill(&self.memory, cell);
        self.put_header(Header::new(Kind::Message, len, 0));
        self.staged_before = self.staged;
        self.staged += cells as u64;
        true
    }

    /// Makes sure that the header at `end`, behind what is about to be committed, is zero.
    #[inline]
    fn zero_behind(&mut self, end: u64) {
        if self.zeroed <= end {
            self.memory.header(self.index(end)).store(0, Relaxed);
            self.zeroed = end + 1;
        }
    }

    /// Zeroes and fetches what the next messages will need. What the consumer has not taken yet is left alone.
    #[inline]
    fn prepare_ahead(&mut self) {
        let end = (self.position + ZERO_AHEAD).min(self.credit.max(self.base) + self.memory.cells() as u64);
        self.zeroed = self.zeroed.max(self.position);
        while self.zeroed < end {
            self.memory.header(self.index(self.zeroed)).store(0, Relaxed);
            self.memory.prefetch_for_writing(self.index(self.zeroed) + FETCH_AHEAD);
            self.zeroed += 1;
        }
    }

    /// Makes place for a record behind what is staged, and skips to the start of the ring if the end is too near.
    #[inline]
    pub(crate) fn stage(&mut self, header: Header) -> Result<Slot, NoRoom> {
        let len = header.len();
        let cells = cells_for(len);
        if len > self.longest_payload() {
            return Err(NoRoom::TooLong);
        }
        let index = self.index(self.staged);
        let to_end = self.memory.cells() - index;
        let pad = if cells > to_end { to_end } else { 0 };
        // One more cell, for the zeroed header after the record: it is where the last record of a ring goes.
        let needed = (pad + cells + 1) as u64;
        if self.lacks(needed) {
            self.refresh_credit()?;
            if self.lacks(needed) {
                return Err(NoRoom::Full);
            }
        }
        self.staged_before = self.staged;
        if pad > 0 {
            self.put_header(Header::new(Kind::Pad, pad * CELL - HEADER, 0));
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

    /// Whether something is staged and not committed.
    pub(crate) fn has_staged(&self) -> bool {
        self.staged != self.position
    }

    /// Begins a pack, with as much room as there is for one; `None` if there is not.
    pub(crate) fn begin_pack(&mut self) -> Option<Packing> {
        let room = self.longest_payload().min(PACK_ROOM);
        let slot = self.stage(Header::new(Kind::Pack, room, 0)).ok()?;
        Some(Packing { slot, used: 0, count: 0 })
    }

    /// Puts a message into a pack. False if it does not fit.
    #[inline]
    pub(crate) fn pack(&self, pack: &mut Packing, bytes: &[u8]) -> bool {
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

    /// Ends a pack, which was staged last: only what is in it is sent.
    pub(crate) fn end_pack(&mut self, mut pack: Packing) {
        if pack.count == 0 {
            self.unstage_last();
        } else {
            self.shorten(&mut pack.slot, Header::new(Kind::Pack, pack.used, pack.count));
        }
    }

    /// Forgets the record staged last, if there is one; never one that was committed.
    pub(crate) fn unstage_last(&mut self) {
        self.staged = self.staged_before.max(self.position);
        self.zeroed = self.position;
    }

    /// Forgets what is staged. The memory behind the commit point is nobody's until it is written again.
    pub(crate) fn discard(&mut self) {
        self.staged = self.position;
        self.staged_before = self.position;
        self.zeroed = self.position;
    }

    /// What is staged, to be staged anew elsewhere. What the other side may have scribbled over is left out.
    pub(crate) fn staged_records(&self) -> Vec<(Header, Vec<u8>)> {
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
            if header.kind() != Kind::Pad && !header.kind().comes_in_batches() {
                break;
            }
            if header.kind() != Kind::Pad {
                let mut payload = vec![MaybeUninit::uninit(); header.len()];
                records.push((header, self.memory.read(cell, 0, &mut payload).to_vec()));
            }
            at += cells as u64;
        }
        records
    }

    /// Writes part of the payload of a staged record.
    #[inline]
    pub(crate) fn write(&self, slot: Slot, offset: usize, bytes: &[u8]) {
        assert!(offset <= slot.len && bytes.len() <= slot.len - offset, "a write inside the record");
        self.memory.write(slot.cell, offset, bytes);
    }

    /// Copies out of the front of a staged record's payload.
    pub(crate) fn read_back<'a>(&self, slot: Slot, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        assert!(out.len() <= slot.len, "a read inside the record");
        self.memory.read(slot.cell, 0, out)
    }

    /// The payload of a staged record, to be written to.
    ///
    /// # Safety
    /// The record is not committed or forgotten, and nothing else writes to it, as long as the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    pub(crate) unsafe fn places(&self, slot: Slot) -> &mut [MaybeUninit<u8>] {
        // SAFETY: the caller's promise.
        unsafe { self.memory.places(slot.cell, slot.len) }
    }

    /// Shortens the payload of the record staged last.
    pub(crate) fn shorten(&mut self, slot: &mut Slot, header: Header) {
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

    /// Makes everything that is staged appear at once.
    #[inline]
    pub(crate) fn commit(&mut self) -> Result<(), Ended> {
        self.zero_behind(self.staged);
        self.swap_in(self.first)?;
        self.position = self.staged;
        self.prepare_ahead();
        Ok(())
    }

    /// Ends the ring with a record of one cell. There is always room for it.
    pub(crate) fn end(&mut self, kind: Kind, payload: &[u8]) -> Result<(), Ended> {
        assert!(payload.len() <= CELL - HEADER);
        self.discard();
        let cell = self.index(self.position);
        self.memory.write(cell, 0, payload);
        self.swap_in(Header::new(kind, payload.len(), 0).to_word())
    }

    #[inline]
    fn swap_in(&self, header: u64) -> Result<(), Ended> {
        fault::point("before a record is committed");
        match self.memory.header(self.index(self.position)).compare_exchange(0, header, SeqCst, Acquire) {
            Ok(_) => {
                fault::point("after a record was committed");
                M::full_barrier();
                Ok(())
            }
            Err(found) => Err(Ended(Header::from_word(found).map(|header| header.kind()))),
        }
    }

    /// How much the consumer has taken, as far as is known.
    pub(crate) fn known_credit(&self) -> u64 {
        self.credit
    }

    /// Whether the consumer has taken more than when it was last looked at.
    pub(crate) fn has_news(&self) -> bool {
        self.memory.credit().load(Acquire) != self.credit
    }

    /// Whether the consumer has put an end to the ring, if anything.
    pub(crate) fn ended(&self) -> Option<Ended> {
        match self.memory.header(self.index(self.position)).load(Acquire) {
            0 => None,
            found => Some(Ended(Header::from_word(found).map(|header| header.kind()))),
        }
    }
}
