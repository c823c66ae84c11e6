//! Private memory of arrays, used again.
//!
//! The kernel clears each page at a process's first access, which takes longer than copying a page. So the memory of an
//! array is kept when the array goes, for a later array. Memory of at least 4 MiB asks for huge pages, so that the
//! first access to new memory also costs little.
//!
//! Kept memory still has the bytes of its last array. Each function here that hands out memory therefore overwrites all
//! visible bytes: with zeros, or with the bytes of a message. Bytes behind the visible ones are never shown.

use std::ptr::NonNull;
use std::sync::{Mutex, TryLockError};
use std::time::{Duration, Instant};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// The size in bytes of a huge page.
const HUGE: usize = 2 << 20;
/// The size in bytes of a page.
const PAGE: usize = 4096;
/// The least size in bytes of memory that is kept.
pub(crate) const LEAST: usize = 1 << 16;
/// The greatest number of bytes of kept memory in this process.
const MOST_BYTES: usize = 128 << 20;
/// The greatest number of kept pieces of memory in this process.
const MOST: usize = 8;
/// How long memory is kept without being used. Older memory is given back when memory is next taken or dropped.
const IDLE: Duration = Duration::from_secs(10);

static KEPT: Mutex<Vec<Kept>> = Mutex::new(Vec::new());

struct Kept {
    memory: Mapping,
    since: Instant,
}

/// A private mapping.
struct Mapping {
    base: NonNull<u8>,
    capacity: usize,
}

// SAFETY: the mapping belongs to this value alone, and can be read, written and unmapped by any thread.
#[allow(unsafe_code)]
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps new memory of zeros. The kernel provides the pages at the first access.
    fn new(capacity: usize) -> rustix::io::Result<Self> {
        let is_huge = capacity.is_multiple_of(HUGE);
        // Huge pages need an address at such a page.
        let whole = capacity.checked_add(if is_huge { HUGE } else { 0 }).ok_or(rustix::io::Errno::NOMEM)?;
        // SAFETY: the kernel chooses an unused address.
        #[allow(unsafe_code)]
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), whole, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }?;
        let before = if is_huge { base.addr().next_multiple_of(HUGE) - base.addr() } else { 0 };
        let used = base.wrapping_byte_add(before);
        let behind = whole - before - capacity;
        // SAFETY: the ranges lie in the mapping made just now, before and behind the part that is used. If the kernel
        // refuses a call, the range stays mapped and unused. The part has no bytes yet whose pages could be lost.
        #[allow(unsafe_code)]
        unsafe {
            if before > 0 {
                let _ = munmap(base, before);
            }
            if behind > 0 {
                let _ = munmap(used.wrapping_byte_add(capacity), behind);
            }
            if is_huge {
                // A kernel without huge pages refuses, and the memory has small pages.
                let _ = madvise(used, capacity, Advice::LinuxHugepage);
            }
        }
        NonNull::new(used.cast()).map(|base| Self { base, capacity }).ok_or(rustix::io::Errno::NOMEM)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: no other value refers to the mapping.
        #[allow(unsafe_code)]
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.capacity) };
    }
}

/// Private memory of this process. Kept for a later array when dropped.
pub(crate) struct Warm {
    /// The mapping, until the drop.
    mapping: Option<Mapping>,
    len: usize,
}

impl Warm {
    /// Returns memory of `len` bytes, and whether all of them are zero; otherwise they are of an earlier array.
    fn any(len: usize) -> Option<(Self, bool)> {
        let page = if len >= 2 * HUGE { HUGE } else { PAGE };
        let capacity = len.max(1).checked_next_multiple_of(page)?;
        let (kept, _idle) = match KEPT.try_lock() {
            Ok(mut kept) => (take(&mut kept, capacity), idle(&mut kept)),
            Err(_) => (None, Vec::new()),
        };
        let is_new = kept.is_none();
        let mapping = kept.or_else(|| Mapping::new(capacity).ok())?;
        Some((Self { mapping: Some(mapping), len }, is_new))
    }

    /// Returns memory of `len` zeros; `None` if there is no memory.
    pub(crate) fn zeroed(len: usize) -> Option<Self> {
        let (mut warm, is_zero) = Self::any(len)?;
        if !is_zero {
            warm.bytes_mut().fill(0);
        }
        Some(warm)
    }

    /// Returns memory of `len` bytes, written by `fill`; `None` if there is no memory. `fill` has to write each byte:
    /// bytes that it leaves may be of an earlier array.
    pub(crate) fn filled(len: usize, fill: impl FnOnce(&mut [u8])) -> Option<Self> {
        let (mut warm, _) = Self::any(len)?;
        fill(warm.bytes_mut());
        Some(warm)
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.mapping.as_ref().map_or(std::ptr::null_mut(), |mapping| mapping.base.as_ptr())
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has at least `len` bytes, which no other code refers to before this value is given out.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts_mut(self.base(), self.len)
        }
    }
}

impl Drop for Warm {
    fn drop(&mut self) {
        let Some(memory) = self.mapping.take() else { return };
        if memory.capacity < LEAST || memory.capacity > MOST_BYTES {
            return;
        }
        // Unmapped after the lock is released. A child of `fork` may have inherited a lock that is never released.
        let _dropped = match KEPT.try_lock() {
            Ok(mut kept) => {
                let mut dropped = idle(&mut kept);
                kept.push(Kept { memory, since: Instant::now() });
                while kept.len() > MOST || total(&kept) > MOST_BYTES {
                    // The memory at the front has been unused for the longest time.
                    dropped.push(kept.remove(0));
                }
                dropped
            }
            Err(TryLockError::WouldBlock | TryLockError::Poisoned(_)) => vec![Kept { memory, since: Instant::now() }],
        };
    }
}

/// Takes the kept memory out whose capacity is at least `capacity` and exceeds it least, and is less than twice as
/// much. Of several, takes the one used last, whose bytes are most likely in a cache.
fn take(kept: &mut Vec<Kept>, capacity: usize) -> Option<Mapping> {
    let fits = |kept: &Kept| (capacity..2 * capacity).contains(&kept.memory.capacity);
    let candidates = kept.iter().enumerate().rev().filter(|(_, kept)| fits(kept));
    let (index, _) = candidates.min_by_key(|(_, kept)| kept.memory.capacity)?;
    Some(kept.remove(index).memory)
}

/// Takes out the memory that was not used for a long time.
fn idle(kept: &mut Vec<Kept>) -> Vec<Kept> {
    let used = kept.iter().position(|kept| kept.since.elapsed() < IDLE).unwrap_or(kept.len());
    kept.drain(..used).collect()
}

fn total(kept: &[Kept]) -> usize {
    kept.iter().map(|kept| kept.memory.capacity).sum()
}

/// Gives back all kept memory, and returns the number of bytes given back.
pub(crate) fn trim() -> usize {
    let kept = KEPT.try_lock().map(|mut kept| std::mem::take(&mut *kept)).unwrap_or_default();
    total(&kept)
}
