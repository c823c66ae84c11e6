//! Memory shared by the processes of a measurement. All code of the floors that touches shared memory is here.
//!
//! The peer is this same program, so the floors trust the peer: floors are bare loops that show what the machine can
//! do, not what a careful library does. Their correctness depends on the order of accesses. One side writes every
//! byte outside the flag words before that side stores a flag with *release*; the other side reads the byte after it
//! loaded that flag with *acquire*.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::sysv;
use crate::trouble::{Result, Trouble, While};

/// The distance in bytes between words of different writers: two cache lines, because processors fetch lines in
/// pairs.
pub(crate) const APART: usize = 128;

/// The size in bytes of the smallest page; other page sizes are multiples of it.
pub(crate) const PAGE: usize = 4096;

/// A piece of memory shared with the peer, mapped here.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
    /// Whether the memory was attached as System V memory, not mapped.
    attached: bool,
}

impl Shared {
    /// Creates memory of `len` bytes, mappable for this process and the peer.
    pub(crate) fn create(len: usize) -> Result<OwnedFd> {
        let memory = memfd_create("strait-floor", MemfdFlags::CLOEXEC).doing("memfd_create")?;
        ftruncate(&memory, len as u64).doing("ftruncate")?;
        Ok(memory)
    }

    /// Maps `len` bytes of `memory` with all pages present, so that no page fault is measured.
    pub(crate) fn map(memory: impl AsFd, len: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0) }
            .doing("mmap")?;
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        Ok(Self { base, len, attached: false })
    }

    /// Attaches the System V memory with the number `memory`, `len` bytes, with all pages present.
    pub(crate) fn attach(memory: i32, len: usize) -> Result<Self> {
        if sysv::memory_len(memory).doing("shmctl(IPC_STAT)")? < len {
            return Err(Trouble::new("the System V memory is too small"));
        }
        let base = sysv::attach(memory).doing("shmat")?;
        let shared = Self { base, len, attached: true };
        for page in (0..len).step_by(PAGE) {
            // This write changes no value, so the peer may already use the memory.
            shared.half_word(page).fetch_or(0, Ordering::Relaxed);
        }
        Ok(shared)
    }

    /// Returns the address of `len` bytes at `offset`. Panics if they are not inside the mapping.
    #[inline(always)]
    pub(crate) fn place(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the 64-bit word at `offset`, which both sides use.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: the word is inside the mapping and aligned (a mapping starts on a page); it lives as long as
        // `self`; the words of a layout are used as atomics only.
        unsafe { AtomicU64::from_ptr(self.place(offset, 8).cast()) }
    }

    /// Returns the 32-bit word at `offset`, which both sides use, for instance as a futex.
    #[inline(always)]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: the word is inside the mapping and aligned (a mapping starts on a page); it lives as long as
        // `self`; the words of a layout are used as atomics only.
        unsafe { AtomicU32::from_ptr(self.place(offset, 4).cast()) }
    }

    /// Copies `bytes` into the memory at `offset`.
    #[inline(always)]
    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        let to = self.place(offset, bytes.len());
        // SAFETY: `to` has room, and a private slice cannot overlap a shared mapping. The peer does not touch these
        // bytes before this side stores its next flag (see the module's introduction).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies the bytes at `offset` of the memory into `bytes`, and fills `bytes`.
    #[inline(always)]
    pub(crate) fn get(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.place(offset, bytes.len());
        // SAFETY: `from` has that many bytes, and a private slice cannot overlap a shared mapping. This side has
        // loaded the peer's flag and not stored its own yet, so the peer does not touch these bytes (see the module's
        // introduction).
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }
}

// SAFETY: a mapping is the same for every thread of the process, and the order of accesses in the module's
// introduction holds whichever thread makes them.
unsafe impl Send for Shared {}
// SAFETY: a mapping is the same for every thread of the process, and the order of accesses in the module's
// introduction holds whichever thread makes them.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // Neither call can fail for an address that `shmat` or `mmap` returned, and a failure would be harmless.
        if self.attached {
            // SAFETY: the attached memory belongs to this value, and every reference into it borrowed `self`.
            let _ = unsafe { sysv::detach(self.base) };
        } else {
            // SAFETY: the mapping belongs to this value, and every reference into it borrowed `self`.
            let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Shared;

    #[test]
    fn two_mappings_show_the_same_bytes() {
        let memory = Shared::create(4096).unwrap();
        let (one, two) = (Shared::map(&memory, 4096).unwrap(), Shared::map(&memory, 4096).unwrap());
        one.put(100, b"across");
        let mut seen = [0; 6];
        two.get(100, &mut seen);
        assert_eq!(&seen, b"across");
    }

    #[test]
    #[should_panic]
    fn nothing_outside_is_reached() {
        let memory = Shared::create(4096).unwrap();
        Shared::map(&memory, 4096).unwrap().put(4095, b"ab");
    }
}
