//! Counts the allocated and not freed bytes of this process, to find leaks of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator, with counters of allocated bytes and blocks.
#[derive(Debug)]
pub struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

/// The numbers of allocated blocks, by the number of bits of their sizes.
static BLOCKS: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Returns the number of allocated and not freed bytes of this process.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

/// Returns the numbers of allocated blocks, by the number of bits of their sizes.
pub(crate) fn blocks() -> Vec<u64> {
    BLOCKS.iter().map(|count| count.load(Ordering::Relaxed)).collect()
}

fn blocks_like(layout: &Layout) -> &'static AtomicU64 {
    &BLOCKS[layout.size().checked_ilog2().map_or(0, |bits| bits as usize + 1).min(BLOCKS.len() - 1)]
}

// SAFETY: the system's allocator keeps the contract of `GlobalAlloc`, and every call passes its arguments on
// unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        blocks_like(&layout).fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::alloc`, so `System.alloc` may be called.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        blocks_like(&layout).fetch_sub(1, Ordering::Relaxed);
        // SAFETY: the caller keeps the contract of `GlobalAlloc::dealloc`; the block comes from `System.alloc`.
        unsafe { System.dealloc(block, layout) }
    }
}
