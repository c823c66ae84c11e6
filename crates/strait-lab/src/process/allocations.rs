//! Counts memory allocations, so that "no allocation per message" is a measured figure.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

/// The system's allocator with counters: of allocations, and of allocated bytes that are not freed yet.
#[derive(Debug)]
pub struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Returns the number of allocations of this process so far.
pub fn so_far() -> u64 {
    ALLOCATIONS.load(Ordering::Relaxed)
}

/// Returns the number of allocated and not freed bytes of this process.
pub fn bytes() -> u64 {
    BYTES.load(Ordering::Relaxed)
}

fn count(size: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(size as u64, Ordering::Relaxed);
}

fn uncount(size: usize) {
    BYTES.fetch_sub(size as u64, Ordering::Relaxed);
}

// SAFETY: every call is passed on unchanged to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc`, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller keeps the contract of `alloc_zeroed`, which is the same for the system's allocator.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        uncount(layout.size());
        // SAFETY: the caller keeps the contract of `realloc`; the system's allocator made `block`.
        unsafe { System.realloc(block, layout, size) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        uncount(layout.size());
        // SAFETY: the caller keeps the contract of `dealloc`; the system's allocator made `block`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_allocation_is_counted() {
        let before = super::so_far();
        std::hint::black_box(Box::new(1));
        assert!(super::so_far() > before);
        let held = Vec::<u8>::with_capacity(1 << 30);
        std::hint::black_box(&held);
        assert!(super::bytes() >= 1 << 30);
        drop(held);
        assert!(super::bytes() < 1 << 30);
    }
}
