//! The memory of a ring that two threads or processes share: a control block and cells.
//!
//! ```text
//! offset   written by   what
//!      0   sender       waiting    u32   the sender's sleep word: 1 while the sender sleeps until there is room, else 0
//!      4   sender       unused     u32
//!     64   receiver     credit     u64   cells freed since the ring was made
//!     72   receiver     taken      u64   messages received since the ring was made
//!     80   receiver     sleeping   u32   the receiver's sleep word: 1 while the receiver sleeps until a message comes
//!    128   both         cells, 64 bytes each, their number a power of two
//! ```
//!
//! The words of each side have a cache line of their own.
//!
//! # Access
//! The other side may be a process that writes to every byte at any time. So this module makes no Rust reference to the
//! bytes of messages. **Words** are atomics, at checked offsets. **Bytes** are copied in one pass between private
//! memory and the cells, between two compiler barriers, so that the compiler can neither read the cells twice nor delay
//! the read.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, compiler_fence};

use crate::ring::{CELL, Consumer, HEADER, MAX_CELLS, MAX_MESSAGE, MIN_CELLS, Memory, Record, cells_to_carry};

const WAITING: usize = 0;
const CPU: usize = 4;
const CREDIT: usize = 64;
const TAKEN: usize = 72;
const SLEEPING: usize = 80;
/// Size of the control block in bytes.
const CONTROL: usize = 128;

/// The memory of one ring, for one of the ring's two sides: a [`Sender`](crate::Sender) or a
/// [`Receiver`](crate::Receiver).
#[derive(Debug)]
pub struct RingMemory {
    base: NonNull<u8>,
    /// Number of cells, a power of two.
    cells: usize,
    /// Keeps memory on the heap of this process allocated; `None` for other memory.
    _heap: Option<Arc<Heap>>,
}

// SAFETY: the two sides of a ring access the memory by atomics and by copies. The ring's protocol orders the copies
// between the two sides; other copies assume that another process writes at the same time.
unsafe impl Send for RingMemory {}
// SAFETY: as for `Send` above.
unsafe impl Sync for RingMemory {}

impl RingMemory {
    /// Returns the size in bytes of the memory of a ring that carries messages of up to `longest` bytes (at most
    /// [`MAX_MESSAGE`]) and holds at least `bytes` bytes of messages. Each message takes 8 bytes more than its own,
    /// rounded up to a multiple of 64.
    #[must_use]
    pub fn size_for(bytes: usize, longest: usize) -> usize {
        CONTROL + cells_for_size(bytes).max(cells_to_carry(longest.min(MAX_MESSAGE))) * CELL
    }

    /// Returns the memory at `base`, of `len` bytes, as the memory of one side of a ring. The ring has as many cells of
    /// 64 bytes as fit, rounded down to a power of two. Returns `None` if `base` is null or not aligned to 64 bytes, or
    /// if the memory is too small for a ring.
    ///
    /// Both sides must give the same length, and all bytes must be 0 before either side uses the memory. If not, calls
    /// fail, wait for nothing or return wrong messages, but nothing worse happens.
    ///
    /// # Safety
    /// * The `len` bytes from `base` on are mapped for reading and writing until the returned value is dropped. The
    ///   bytes stay accessible: if they belong to a file, no process can make the file shorter (a memfd can be sealed
    ///   against shrinking).
    /// * In this process, at most two values are made of this memory: one for a sender and one for a receiver. No other
    ///   code in this process accesses the memory while these values live.
    ///
    /// Other processes may write any bytes to the memory at any time.
    #[must_use]
    pub unsafe fn from_raw(base: *mut u8, len: usize) -> Option<Self> {
        let cells = len.checked_sub(CONTROL)? / CELL;
        let cells = (1usize << cells.checked_ilog2()?).min(MAX_CELLS);
        let fits = cells >= MIN_CELLS && base.addr().is_multiple_of(CELL);
        NonNull::new(base).filter(|_| fits).map(|base| Self { base, cells, _heap: None })
    }

    /// Returns the two sides of the memory of a new ring on the heap. One must go to a sender and the other to a
    /// receiver.
    pub(crate) fn on_heap(bytes: usize) -> [Self; 2] {
        let cells = cells_for_size(bytes);
        let heap = Arc::new(Heap::zeroed(CONTROL + cells * CELL));
        let side = || Self { base: heap.base, cells, _heap: Some(heap.clone()) };
        [side(), side()]
    }

    #[inline]
    fn word32<const AT: usize>(&self) -> &AtomicU32 {
        const { assert!(AT.is_multiple_of(4) && AT + 4 <= CONTROL) };
        // SAFETY: the word is inside the control block, and aligned as the memory is. Every process accesses the
        // control block atomically.
        unsafe { AtomicU32::from_ptr(self.base.as_ptr().add(AT).cast()) }
    }

    #[inline]
    fn word64<const AT: usize>(&self) -> &AtomicU64 {
        const { assert!(AT.is_multiple_of(8) && AT + 8 <= CONTROL) };
        // SAFETY: as in `word32`, for 8 bytes.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(AT).cast()) }
    }

    /// Returns the address of byte `offset` of the payload of the record that begins in `cell`.
    ///
    /// # Panics
    /// If the `len` bytes from there are not all inside the ring.
    #[inline]
    fn payload(&self, cell: usize, offset: usize, len: usize) -> *mut u8 {
        let start = cell * CELL + HEADER + offset;
        assert!(cell < self.cells && start + len <= self.cells * CELL, "a payload inside the ring");
        // SAFETY: the range is inside the cells, as checked above, and they are behind the control block.
        unsafe { self.base.as_ptr().add(CONTROL + start) }
    }
}

/// Returns the number of cells of a ring of at least `bytes` bytes.
fn cells_for_size(bytes: usize) -> usize {
    bytes.div_ceil(CELL).clamp(MIN_CELLS, MAX_CELLS).next_power_of_two()
}

/// Copies `len` bytes between private memory and the cells, in either direction.
///
/// # Safety
/// Both ranges are valid, the destination for writing, and they do not overlap.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    compiler_fence(Ordering::SeqCst);
    // SAFETY: the caller's promise. The language does not define a write of another process at the same time. But
    // between the two barriers there is no other access that the compiler could combine with this copy, so the copied
    // bytes do not change afterwards, whatever their values.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) };
    compiler_fence(Ordering::SeqCst);
}

/// Replaces the contents of `message` by the payload of `record`, a message that `consumer` has found.
#[inline]
pub(crate) fn read_whole(consumer: &Consumer<RingMemory>, record: Record, message: &mut Vec<u8>) {
    let len = record.header.len();
    message.clear();
    message.reserve(len);
    consumer.read(record, 0, &mut message.spare_capacity_mut()[..len]);
    // SAFETY: the first `len` bytes were read just now.
    unsafe { message.set_len(len) };
}

impl Memory for RingMemory {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline]
    fn cells(&self) -> usize {
        self.cells
    }

    #[inline]
    fn header(&self, cell: usize) -> &AtomicU64 {
        let cell = cell & (self.cells - 1);
        // SAFETY: the mask keeps the cell inside, and cells are aligned as the memory is. Both sides access the header
        // at their positions atomically.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(CONTROL + cell * CELL).cast()) }
    }

    #[inline]
    fn waiting(&self) -> &AtomicU32 {
        self.word32::<WAITING>()
    }

    #[inline]
    fn sleeping(&self) -> &AtomicU32 {
        self.word32::<SLEEPING>()
    }

    #[inline]
    fn cpu(&self) -> &AtomicU32 {
        self.word32::<CPU>()
    }

    #[inline]
    fn credit(&self) -> &AtomicU64 {
        self.word64::<CREDIT>()
    }

    #[inline]
    fn taken(&self) -> &AtomicU64 {
        self.word64::<TAKEN>()
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
        // SAFETY: `payload` checked the range; `out` is private memory.
        unsafe { copy(from, out.as_mut_ptr().cast(), out.len()) };
        // SAFETY: every byte was written just now, and the layout is the same.
        unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
    }

    fn in_place(&self, cell: usize, offset: usize, len: usize) -> *const u8 {
        self.payload(cell, offset, len)
    }

    unsafe fn uninit_mut(&self, cell: usize, len: usize) -> &mut [MaybeUninit<u8>] {
        // SAFETY: `payload` checked the range; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.payload(cell, 0, len).cast(), len) }
    }
}

/// Zeroed memory on the heap, aligned to cache lines.
#[derive(Debug)]
struct Heap {
    base: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the value only frees the memory, once; `RingMemory` is responsible for all accesses.
unsafe impl Send for Heap {}
// SAFETY: as for `Send` above.
unsafe impl Sync for Heap {}

impl Heap {
    fn zeroed(len: usize) -> Self {
        let layout = Layout::from_size_align(len, 2 * CELL).expect("no ring is longer than an address space");
        // SAFETY: the layout has a size, that of the control block at least.
        let base = NonNull::new(unsafe { alloc_zeroed(layout) });
        Self { base: base.unwrap_or_else(|| handle_alloc_error(layout)), layout }
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        // SAFETY: the memory was allocated with this layout, and both sides of the ring are gone.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    struct Aligned([u8; 4096]);

    fn of(offset: usize, len: usize) -> Option<usize> {
        let mut memory = Box::new(Aligned([0; 4096]));
        assert!(offset + len <= memory.0.len());
        // SAFETY: the range is inside the array, which outlives the value.
        unsafe { RingMemory::from_raw(memory.0.as_mut_ptr().add(offset), len) }.map(|memory| memory.cells)
    }

    #[test]
    fn memory_that_no_ring_fits_is_refused() {
        assert_eq!(of(0, 0), None);
        assert_eq!(of(0, CONTROL), None);
        assert_eq!(of(0, CONTROL + 4 * CELL - 1), None);
        assert_eq!(of(32, 2048), None, "not aligned");
        // SAFETY: nothing is accessed at a null pointer.
        assert!(unsafe { RingMemory::from_raw(std::ptr::null_mut(), 4096) }.is_none());
    }

    #[test]
    fn the_cells_are_a_power_of_two() {
        assert_eq!(of(0, CONTROL + 4 * CELL), Some(4));
        assert_eq!(of(64, CONTROL + 7 * CELL + 63), Some(4));
        assert_eq!(of(0, 4096), Some(32));
        assert_eq!(RingMemory::size_for(0, 0), CONTROL + 4 * CELL);
        assert_eq!(RingMemory::size_for(5 * CELL, 0), CONTROL + 8 * CELL);
        assert_eq!(RingMemory::size_for(0, 1000), CONTROL + 64 * CELL);
    }
}
