//! The fuzzer of `strait_fuzz::typed`. Fails too if an input makes the library allocate more than it justifies.
#![no_main]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The length in bytes of the largest block of memory that the present input has allocated.
static LARGEST: AtomicUsize = AtomicUsize::new(0);

/// The length in bytes of the largest block that an input may allocate. Inputs have at most 1,544 bytes; the largest
/// blocks are the memory in which a message is encoded, and that of new ends of channels.
const JUSTIFIED: usize = 128 << 10;

struct Watching;

// SAFETY: all calls go to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller keeps the rules of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the rules of `dealloc`.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static WATCHING: Watching = Watching;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    LARGEST.store(0, Ordering::Relaxed);
    strait_fuzz::typed(data);
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= JUSTIFIED, "a block of {largest} bytes for an input of {}", data.len());
});
