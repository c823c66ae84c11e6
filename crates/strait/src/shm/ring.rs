//! Where the words and cells of a ring are.
//!
//! The **control block** stays where it was made for the life of a channel; the **cells** come right behind it at
//! first, and are replaced by larger ones in memory of their own when the ring grows.
//!
//! ```text
//! offset  written by   what
//!      0  producer     waiting   u32   the producer sleeps for room: 0 awake, 1 on this word, 2 on the socket
//!      4  producer     cpu       u32   CPU that the producing end last ran on, plus 1; 0 unknown
//!    128  consumer     credit    u64   cells taken since the channel was made
//!    136  consumer     taken     u64   messages taken since the channel was made
//!    144  consumer     sleeping  u32   the consumer sleeps for messages: as `waiting`
//!    256  both         cells     64 bytes each, a power of two of them
//! ```
//!
//! Each side's words have a pair of cache lines of their own, since neighbouring lines are fetched together.

use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::{Mapping, copy, written};
use crate::ring::{CELL, HEADER, Memory};

const WAITING: usize = 0;
const CPU: usize = 4;
const CREDIT: usize = 128;
const TAKEN: usize = 136;
const SLEEPING: usize = 144;
const CONTROL: usize = 256;

/// Bytes of a ring besides its cells.
pub(crate) const RING_OVERHEAD: usize = CONTROL;

/// The memory of a ring.
#[derive(Clone, Debug)]
pub(crate) struct RingMemory {
    control: Arc<Mapping>,
    cells: Arc<Mapping>,
    /// Where the cells begin in `cells`.
    offset: usize,
    count: usize,
}

impl RingMemory {
    /// The control block and the ring behind it that fill `mapping`, if its size is that of one.
    pub(crate) fn new(mapping: Arc<Mapping>) -> Option<Self> {
        let count = count(mapping.len().checked_sub(CONTROL)?)?;
        mapping.writable.then(|| Self { control: mapping.clone(), cells: mapping, offset: CONTROL, count })
    }

    /// The same control block with the larger ring that fills `cells`, if its size is that of one.
    pub(crate) fn grown(&self, cells: Arc<Mapping>) -> Option<Self> {
        let count = count(cells.len())?;
        let larger = count > self.count && cells.writable;
        larger.then(|| Self { control: self.control.clone(), cells, offset: 0, count })
    }

    #[inline]
    fn word32(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: `offset` is one of the constants above, all below `CONTROL` and aligned; `new` checked that the
        // mapping is larger and writable. Every process accesses these words atomically.
        unsafe { AtomicU32::from_ptr(self.control.base().add(offset).cast()) }
    }

    #[inline]
    fn word64(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as for `word32`.
        unsafe { AtomicU64::from_ptr(self.control.base().add(offset).cast()) }
    }

    /// Where byte `offset` of the payload of the record in `cell` is.
    ///
    /// # Panics
    /// If `len` bytes from there would leave the ring.
    #[inline]
    fn payload(&self, cell: usize, offset: usize, len: usize) -> *mut u8 {
        let start = cell * CELL + HEADER + offset;
        assert!(cell < self.count && start + len <= self.count * CELL, "a payload inside the ring");
        // SAFETY: inside the mapping, which holds `offset + count * CELL` bytes.
        unsafe { self.cells.base().add(self.offset + start) }
    }
}

impl Memory for RingMemory {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline]
    fn cells(&self) -> usize {
        self.count
    }

    #[inline]
    fn header(&self, cell: usize) -> &AtomicU64 {
        let cell = cell & (self.count - 1);
        // SAFETY: the mask keeps it inside; cells are aligned to 8 since mappings are to pages.
        unsafe { AtomicU64::from_ptr(self.cells.base().add(self.offset + cell * CELL).cast()) }
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
    fn read<'a>(&self, cell: usize, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        let from = self.payload(cell, offset, out.len());
        // SAFETY: `payload` checked the range; `out` is private memory, written whole here.
        unsafe {
            copy(from, out.as_mut_ptr().cast(), out.len());
            written(out)
        }
    }

    #[inline]
    fn in_place(&self, cell: usize, offset: usize, len: usize) -> *const u8 {
        self.payload(cell, offset, len)
    }

    unsafe fn places(&self, cell: usize, len: usize) -> &mut [MaybeUninit<u8>] {
        // SAFETY: `payload` checked the range; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.payload(cell, 0, len).cast(), len) }
    }

    #[inline]
    fn prefetch_for_reading(&self, cell: usize) {
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        {
            let line = self.header(cell).as_ptr();
            // SAFETY: a hint about a line of the mapping.
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
            // SAFETY: a hint about a line of the mapping.
            unsafe {
                std::arch::asm!("prefetchw [{0}]", in(reg) line, options(nostack, preserves_flags, readonly));
            }
        }
        #[cfg(not(all(target_arch = "x86_64", not(miri))))]
        let _ = cell;
    }
}

/// How many cells fill so many bytes, if a ring can have so many.
fn count(bytes: usize) -> Option<usize> {
    let count = bytes / CELL;
    (count >= crate::ring::MIN_CELLS && count.is_power_of_two() && bytes.is_multiple_of(CELL)).then_some(count)
}
