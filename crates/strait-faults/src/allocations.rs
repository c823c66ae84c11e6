//! Counts the allocated bytes of this process, so that a leak of memory shows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator with a counter of allocated bytes.
#[derive(Debug)]
pub(crate) struct Counting;

static BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of allocated bytes of this process, without freed bytes.
pub(crate) fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

// SAFETY: the system's allocator keeps the contract of `GlobalAlloc`, and every call passes its arguments on
// unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.dealloc(block, layout) }
    }
}
