//! The layout of a lane's memory: the words and cells of its two rings.
//!
//! A **lane** has two rings, one in each direction. Their **control blocks** stay in place for the life of the lane.
//! Their **cells** follow the control blocks at first; when a ring grows, new and more cells in separate memory replace
//! the old cells.
//!
//! ```text
//! offset   written by   what
//!      0   producer     waiting   u32   the producer's sleep word: 0 awake, else asleep until there is room:
//!                                       1 on this word, 2 on the socket, 3 in a wait set
//!      4   producer     cpu       u32   CPU that the producing end last ran on, plus 1; 0 unknown
//!      8   producer     quota     u64   messages after which the producer needs credit; 0 for no such quota
//!     16   both         transfer  u32   in ring 0 only: the transfer word of the end that this lane was made for,
//!                                       see `ring::transfer_word`
//!     20   producer     done      u32   1 once the producing end no longer uses the lane
//!     24   maker        moving    u32   in ring 0 only: 1 while the lane's maker is moving an end into it; 2 once
//!                                       the maker has taken the lane back
//!     64   consumer     credit    u64   cells freed since the lane was made
//!     72   consumer     taken     u64   messages received since the lane was made
//!     80   consumer     sleeping  u32   the consumer's sleep word, as `waiting`; see also `ring::transfer_word`
//!     88   consumer     forward   2×u64 once the ring is frozen: the name of the lane where the producer goes on
//!    128                the words of ring 1, in this order
//!    256   both         cells of ring 0, 64 bytes each, their number a power of two; then the cells of ring 1
//! ```
//!
//! Each side's words have their own cache line. The protocol version fixes the offsets.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mapping, Sizes, accessed, copy, copy_short, written};
use crate::os::fault;
use crate::ring::{CELL, HEADER, MAX_CELLS, Memory, ONE_CELL};

/// `TAKEN_BACK`: the value of a lane's word *moving* after the process that made the lane has taken the lane back, to
/// use its memory again.
const TAKEN_BACK: u32 = 2;

/// The size of a ring's control block in bytes.
const CONTROL: usize = 128;

/// The offset in bytes of a 4-byte word in a control block: aligned, and the whole word inside the block.
#[derive(Clone, Copy)]
struct Word32(usize);

/// The offset in bytes of an 8-byte word in a control block: aligned, and the whole word inside the block.
#[derive(Clone, Copy)]
struct Word64(usize);

const fn word32(offset: usize) -> Word32 {
    assert!(offset.is_multiple_of(4) && offset + 4 <= CONTROL);
    Word32(offset)
}

const fn word64(offset: usize) -> Word64 {
    assert!(offset.is_multiple_of(8) && offset + 8 <= CONTROL);
    Word64(offset)
}

const WAITING: Word32 = word32(0);
const CPU: Word32 = word32(4);
const QUOTA: Word64 = word64(8);
const TRANSFER: Word32 = word32(16);
const DONE: Word32 = word32(20);
const MOVING: Word32 = word32(24);
const CREDIT: Word64 = word64(64);
const TAKEN: Word64 = word64(72);
const SLEEPING: Word32 = word32(80);
const FORWARD: [Word64; 2] = [word64(88), word64(96)];

/// Returns the size in bytes of the memory of a lane whose two rings have `cells` cells each, their control blocks
/// included.
pub(crate) fn lane_size(cells: usize) -> usize {
    2 * CONTROL + 2 * cells * CELL
}

/// Returns the smallest and the largest size in bytes, both included, that memory with `lanes` lanes may have, with
/// `cells` cells for each ring. Returns `None` if no ring in an arena can have `cells` cells, if `lanes` is 0, or if
/// the size overflows.
pub(crate) fn sizes_of_lanes(lanes: u32, cells: u64) -> Option<Sizes> {
    let cells = usize::try_from(cells).ok().filter(|cells| is_count(*cells) && *cells <= MAX_CELLS)?;
    let len = lane_size(cells).checked_mul(lanes as usize).filter(|len| *len > 0)?;
    Some(len..=len.checked_next_multiple_of(PAGE)?)
}

/// The page size in bytes that this crate assumes. A peer may round the size of memory for lanes up to the next
/// multiple of this number.
const PAGE: usize = 4096;

/// The memory of a lane: two rings, one in each direction, and their control blocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneMemory<'a> {
    mapping: &'a Arc<Mapping>,
    /// Offset in bytes of the lane's first byte from the start of the mapping.
    at: usize,
    /// Number of cells that each of the two rings has when the lane is made. A ring that has grown has more cells, in
    /// memory of its own.
    cells: usize,
}

impl<'a> LaneMemory<'a> {
    /// Returns the lane at byte `at` of the mapping, with `cells` cells in each ring. Returns `None` if the lane would
    /// not be aligned or not be inside the mapping, if the mapping is read-only, or if no ring can have `cells` cells.
    pub(crate) fn new(mapping: &'a Arc<Mapping>, at: usize, cells: usize) -> Option<Self> {
        let end = at.checked_add(lane_size(cells))?;
        let fits = is_count(cells) && at.is_multiple_of(CELL) && end <= mapping.len() && mapping.writable;
        fits.then_some(Self { mapping, at, cells })
    }

    /// Returns the memory of the ring that the end of side `side` (0 or 1) writes, with the cells that the ring had
    /// when the lane was made.
    pub(crate) fn ring(self, side: usize) -> RingMemory {
        assert!(side < 2);
        let base = self.mapping.base();
        // SAFETY: `new` checked that the whole lane is inside the mapping.
        let (control, cells) = unsafe {
            let lane = base.add(self.at);
            (lane.add(side * CONTROL), lane.add(2 * CONTROL + side * self.cells * CELL))
        };
        RingMemory {
            control: NonNull::new(control).expect("inside a mapping"),
            cells: NonNull::new(cells).expect("inside a mapping"),
            mask: self.cells - 1,
            _mappings: (self.mapping.clone(), None),
        }
    }

    /// Returns the 4-byte word `word` in the control block of the ring that the end of side `side` writes.
    fn word32(self, side: usize, word: Word32) -> &'a AtomicU32 {
        accessed();
        assert!(side < 2);
        let offset = self.at + side * CONTROL + word.0;
        // SAFETY: `new` checked that the lane is inside the mapping, which lives as long as `self`. A word's offset is
        // aligned and inside the control block. Every process accesses the words of control blocks atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.base().add(offset).cast()) }
    }

    /// Returns the transfer word of the lane. The word holds the state of the move (the transfer) of the end for which
    /// the lane was made.
    pub(crate) fn transfer_word(self) -> &'a AtomicU32 {
        self.word32(0, TRANSFER)
    }

    /// Returns the word *done* of side `side`: 1 when the side's end no longer uses the lane, else 0.
    pub(crate) fn done(self, side: usize) -> &'a AtomicU32 {
        self.word32(side, DONE)
    }

    /// Returns the lane's word *moving*: 1 while the process that made the lane moves an end into it, 2 when this
    /// process has taken the lane back to use its memory again, else 0.
    pub(crate) fn moving(self) -> &'a AtomicU32 {
        self.word32(0, MOVING)
    }

    /// Returns whether the lane's memory can be used again: the ends of both sides no longer use the lane, and the
    /// process that made the lane neither moves an end into it nor has taken it back.
    pub(crate) fn is_unused(self) -> bool {
        (0..2).all(|side| self.done(side).load(Ordering::SeqCst) == 1) && self.moving().load(Ordering::SeqCst) == 0
    }

    /// Takes the lane back, so that the caller can use its memory again. Does so only if both ends are done with the
    /// lane and no end is being moved into it. Returns whether the call has taken the lane back. If several threads try
    /// at once, only one thread gets `true`.
    pub(crate) fn take_if_unused(self) -> bool {
        let taken = || self.moving().compare_exchange(0, TAKEN_BACK, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        self.is_unused() && taken()
    }

    /// Marks the lane as unused: both ends are done with the lane, and no end is being moved into it. For a lane that
    /// has never been used.
    pub(crate) fn set_unused(self) {
        self.moving().store(0, Ordering::Release);
        for side in 0..2 {
            self.done(side).store(1, Ordering::Release);
        }
    }

    /// Returns the word with the number of the CPU on which the end of side `side` last ran, plus 1; the word is 0
    /// while the CPU is unknown.
    pub(crate) fn cpu(self, side: usize) -> &'a AtomicU32 {
        self.word32(side, CPU)
    }

    /// Returns the sleep word of the end of side `side` as a producer: 0 while the producer is awake, else how the
    /// producer sleeps until its ring has room.
    pub(crate) fn waiting(self, side: usize) -> &'a AtomicU32 {
        self.word32(side, WAITING)
    }

    /// Returns the sleep word of the consumer of the ring written by side `side`: 0 while the consumer is awake, else
    /// how the consumer sleeps until a message comes.
    pub(crate) fn sleeping(self, side: usize) -> &'a AtomicU32 {
        self.word32(side, SLEEPING)
    }

    /// Zeroes the lane's memory for its next use. Only the process that made the lane may call this function, when no
    /// end uses the lane.
    pub(crate) fn clear(self) {
        self.mapping.zero(self.at, lane_size(self.cells));
    }
}

/// The memory of one ring: its control block (the shared words) and its cells.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory {
    control: NonNull<u8>,
    cells: NonNull<u8>,
    /// The number of cells, a power of two, less 1.
    mask: usize,
    /// The mappings that `control` and `cells` point into. The first is the mapping of the lane; the second, after the
    /// ring has grown, is the mapping of the larger cells.
    _mappings: (Arc<Mapping>, Option<Arc<Mapping>>),
}

// SAFETY: the pointers are into mappings of which the value owns a share. All access is by atomics, or by copies that
// are sound while other processes write.
unsafe impl Send for RingMemory {}
// SAFETY: as for `Send` above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Returns the ring after it has grown: with its old control block and the larger number of cells that fill
    /// `cells`. Returns `None` if `cells` is not larger, is read-only, or has a size that no ring has.
    pub(crate) fn grown(&self, cells: Arc<Mapping>) -> Option<Self> {
        let count = cells.len() / CELL;
        let larger = is_count(count) && cells.len().is_multiple_of(CELL) && count > self.cells() && cells.writable;
        larger.then(|| Self {
            control: self.control,
            cells: NonNull::new(cells.base()).expect("a mapping"),
            mask: count - 1,
            _mappings: (self._mappings.0.clone(), Some(cells)),
        })
    }

    #[inline]
    fn word32(&self, word: Word32) -> &AtomicU32 {
        accessed();
        // SAFETY: a word's offset is aligned and inside the control block, which is inside a mapping that `self` holds.
        // Every process accesses the words of control blocks atomically.
        unsafe { AtomicU32::from_ptr(self.control.as_ptr().add(word.0).cast()) }
    }

    #[inline]
    fn word64(&self, word: Word64) -> &AtomicU64 {
        accessed();
        // SAFETY: the conditions in `word32` hold for words of 8 bytes as well.
        unsafe { AtomicU64::from_ptr(self.control.as_ptr().add(word.0).cast()) }
    }

    /// Returns the word *quota*, written by the producer: the number of messages after which the consumer must give
    /// credit, whatever their size; 0 if the producer sets no quota.
    pub(crate) fn quota(&self) -> &AtomicU64 {
        self.word64(QUOTA)
    }

    /// Returns whether `self` and `other` are the same ring of the same lane. A ring stays the same ring when it grows.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.control == other.control
    }

    /// Returns the word *done* of the producing end: 1 when the producing end no longer uses the lane, else 0.
    pub(crate) fn done(&self) -> &AtomicU32 {
        self.word32(DONE)
    }

    /// Writes `name`, the two numbers that name the lane in which the producer must continue, into the word *forward*
    /// of the ring. The consumer calls this function before freezing the ring.
    pub(crate) fn set_forward(&self, name: [u64; 2]) {
        self.word64(FORWARD[0]).store(name[0], Ordering::Relaxed);
        self.word64(FORWARD[1]).store(name[1], Ordering::Release);
    }

    /// Returns the two numbers that name the lane in which the producer must continue, from the word *forward* of the
    /// ring. The producer calls this function after finding the ring frozen.
    pub(crate) fn forward(&self) -> [u64; 2] {
        FORWARD.map(|word| self.word64(word).load(Ordering::Acquire))
    }

    /// Returns the address in this process of byte `offset` of the payload of the record that begins in `cell`.
    ///
    /// # Panics
    /// If the `len` bytes from there are not all inside the ring.
    #[inline]
    fn payload(&self, cell: usize, offset: usize, len: usize) -> *mut u8 {
        let start = cell * CELL + HEADER + offset;
        assert!(cell < self.cells() && start + len <= self.cells() * CELL, "a payload inside the ring");
        // SAFETY: the range is inside the cells, as checked above.
        unsafe { self.cells.as_ptr().add(start) }
    }

    /// Returns the header word of the cell `cell`, modulo the number of cells, and the address of the [`ONE_CELL`]
    /// bytes behind it.
    #[inline(always)]
    fn cell(&self, cell: usize) -> (&AtomicU64, *mut u8) {
        accessed();
        // SAFETY: the mask keeps the cell inside the cells; cells are aligned to 8 bytes because mappings are
        // aligned to pages.
        unsafe {
            let start = self.cells.as_ptr().add((cell & self.mask) * CELL);
            (AtomicU64::from_ptr(start.cast()), start.add(HEADER))
        }
    }
}

impl Memory for RingMemory {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline(always)]
    fn step(name: &'static str) {
        fault::point(name);
    }

    #[inline]
    fn cells(&self) -> usize {
        self.mask + 1
    }

    #[inline]
    fn header(&self, cell: usize) -> &AtomicU64 {
        accessed();
        let cell = cell & self.mask;
        // SAFETY: the mask keeps the cell inside; cells are aligned to 8 bytes because mappings are aligned to pages.
        unsafe { AtomicU64::from_ptr(self.cells.as_ptr().add(cell * CELL).cast()) }
    }

    #[inline]
    fn waiting(&self) -> &AtomicU32 {
        self.word32(WAITING)
    }

    #[inline]
    fn sleeping(&self) -> &AtomicU32 {
        self.word32(SLEEPING)
    }

    #[inline]
    fn cpu(&self) -> &AtomicU32 {
        self.word32(CPU)
    }

    #[inline]
    fn credit(&self) -> &AtomicU64 {
        self.word64(CREDIT)
    }

    #[inline]
    fn taken(&self) -> &AtomicU64 {
        self.word64(TAKEN)
    }

    #[inline]
    fn write(&self, cell: usize, offset: usize, bytes: &[u8]) {
        let to = self.payload(cell, offset, bytes.len());
        // SAFETY: `payload` checked the range; `bytes` is private memory.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) }
    }

    #[inline]
    fn gather(&self, cell: usize, parts: &[IoSlice<'_>], len: usize) {
        let mut to = self.payload(cell, 0, len);
        let mut left = len;
        for part in parts {
            assert!(part.len() <= left, "no more bytes than there is room for");
            left -= part.len();
            // SAFETY: `payload` checked the range, and `left` bytes of the range are left from `to` on; `part` is
            // private memory.
            unsafe {
                copy(part.as_ptr(), to, part.len());
                to = to.add(part.len());
            }
        }
    }

    #[inline]
    fn read<'a>(&self, cell: usize, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let from = self.payload(cell, offset, out.len());
        // SAFETY: `payload` checked the range; `out` is private memory, written whole here.
        unsafe {
            copy(from, out.as_mut_ptr().cast(), out.len());
            written(out)
        }
    }

    #[inline(always)]
    fn publish_one(&self, cell: usize, bytes: &[u8], header: u64) -> Result<(), u64> {
        assert!(bytes.len() <= ONE_CELL, "a payload inside the cell");
        let (word, payload) = self.cell(cell);
        // SAFETY: the payload of one cell has room for the bytes, as checked above; `bytes` is private memory.
        unsafe { copy_short(bytes.as_ptr(), payload, bytes.len()) }
        Self::step("before a record is committed");
        accessed();
        word.compare_exchange(0, header, Ordering::SeqCst, Ordering::Acquire).map(|_| ())
    }

    #[inline(always)]
    fn read_one<'a>(&self, cell: usize, place: impl FnOnce(u64) -> Option<&'a mut [MaybeUninit<u8>]>) -> u64 {
        let (word, payload) = self.cell(cell);
        let header = word.load(Ordering::Acquire);
        if let Some(out) = place(header) {
            assert!(out.len() <= ONE_CELL, "a payload inside the cell");
            // SAFETY: the payload of one cell has as many bytes, as checked above; `out` is private memory.
            unsafe { copy_short(payload, out.as_mut_ptr().cast(), out.len()) }
        }
        header
    }

    #[inline]
    fn in_place(&self, cell: usize, offset: usize, len: usize) -> *const u8 {
        self.payload(cell, offset, len)
    }

    unsafe fn uninit_mut(&self, cell: usize, len: usize) -> &mut [MaybeUninit<u8>] {
        // SAFETY: `payload` checked the range; nothing else uses the range meanwhile, as the caller promises.
        unsafe { std::slice::from_raw_parts_mut(self.payload(cell, 0, len).cast(), len) }
    }

    #[inline]
    fn prefetch_for_reading(&self, cell: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let line = self.header(cell).as_ptr();
            // SAFETY: the instruction is a hint about a cache line of the mapping and changes no memory.
            unsafe {
                std::arch::asm!("prefetcht0 [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = cell;
    }

    #[inline]
    fn prefetch_for_writing(&self, cell: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let line = self.header(cell).as_ptr();
            // SAFETY: the instruction is a hint about a cache line of the mapping and changes no memory.
            unsafe {
                std::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = cell;
    }
}

/// Returns whether a ring can have `cells` cells: a power of two, and at least [`MIN_CELLS`](crate::ring::MIN_CELLS).
fn is_count(cells: usize) -> bool {
    cells >= crate::ring::MIN_CELLS && cells.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::transfer_word::TransferState;
    use crate::ring::{MAX_MESSAGE, MIN_CELLS, RecordKind};

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_words_of_a_control_block() {
        let word32 = |name, word: Word32| (name, [word.0 as u64, 4]);
        let word64 = |name, word: Word64| (name, [word.0 as u64, 8]);
        assert_page_has(
            "control",
            &[
                word32("waiting", WAITING),
                word32("cpu", CPU),
                word64("quota", QUOTA),
                word32("transfer", TRANSFER),
                word32("done", DONE),
                word32("moving", MOVING),
                word64("credit", CREDIT),
                word64("taken", TAKEN),
                word32("sleeping", SLEEPING),
                ("forward", [FORWARD[0].0 as u64, 16]),
            ],
        );
        assert_eq!(FORWARD[1].0, FORWARD[0].0 + 8);
    }

    #[test]
    fn the_page_has_the_numbers_of_rings() {
        let kinds = [
            ("message", RecordKind::Message),
            ("block", RecordKind::Block),
            ("sealed", RecordKind::Sealed),
            ("pad", RecordKind::Pad),
            ("next", RecordKind::Next),
            ("closed", RecordKind::Closed),
            ("moved", RecordKind::Moved),
            ("frozen", RecordKind::Frozen),
            ("packed", RecordKind::Pack),
            ("table", RecordKind::Table),
            ("prepended", RecordKind::Prepended),
        ];
        assert_page_has("records", &kinds.map(|(name, kind)| (name, [kind as u64])));
        let states = [
            ("pending", TransferState::Pending),
            ("handed over", TransferState::HandedOver),
            ("claimed", TransferState::Claimed),
            ("abandoned", TransferState::Abandoned),
            ("cancelled", TransferState::Cancelled),
        ];
        assert_page_has("transfer", &states.map(|(name, state)| (name, [state as u64])));
        let numbers = [
            ("cell", CELL),
            ("header", HEADER),
            ("fewest cells", MIN_CELLS),
            ("most cells", MAX_CELLS),
            ("longest message", MAX_MESSAGE),
        ];
        assert_page_has("constants", &numbers.map(|(name, number)| (name, [number as u64])));
    }
}
