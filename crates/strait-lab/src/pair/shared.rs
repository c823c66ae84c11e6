//! Memory shared by the two processes of a measurement: the only place where a mechanism touches it.
//!
//! The peer is this same program, so the floors trust it: they are bare loops that show what the machine can do, not
//! what a careful library does. What keeps them correct is the order in which they touch the memory. Every byte
//! outside the flag words is written by one side before it stores a flag with *release*, and read by the other side
//! after it loaded that flag with *acquire*.

use std::os::fd::{AsFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::sys::sysv;
use crate::trouble::{Result, Trouble, While};

/// The distance between words of different writers: two cache lines, because processors fetch lines in pairs.
pub(crate) const APART: usize = 128;

/// Memory comes in pages of this size, or of a multiple of it.
pub(crate) const PAGE: usize = 4096;

/// A mapping shared with the peer.
#[derive(Debug)]
pub(crate) struct Shared {
    base: NonNull<u8>,
    len: usize,
    /// Attached as System V memory, not mapped.
    attached: bool,
}

impl Shared {
    /// Makes memory of `len` bytes that can be mapped here and in the peer.
    pub(crate) fn create(len: usize) -> Result<OwnedFd> {
        let memory = memfd_create("strait-floor", MemfdFlags::CLOEXEC).doing("memfd_create")?;
        ftruncate(&memory, len as u64).doing("ftruncate")?;
        Ok(memory)
    }

    /// Maps `len` bytes of `memory`, with every page already there, so that no page fault is measured.
    pub(crate) fn map(memory: impl AsFd, len: usize) -> Result<Self> {
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: a new mapping at an address that the kernel chooses overlaps nothing that exists.
        let base = unsafe { mmap(ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags, memory, 0) }
            .doing("mmap")?;
        let base = NonNull::new(base.cast()).expect("a mapping is never at address zero");
        Ok(Self { base, len, attached: false })
    }

    /// Attaches System V memory of `len` bytes, with every page already there.
    pub(crate) fn attach(memory: i32, len: usize) -> Result<Self> {
        if sysv::memory_len(memory).doing("shmctl(IPC_STAT)")? < len {
            return Err(Trouble::new("the System V memory is too small"));
        }
        let base = sysv::attach(memory).doing("shmat")?;
        let shared = Self { base, len, attached: true };
        for page in (0..len).step_by(PAGE) {
            // A write that changes nothing, whatever the peer does there already.
            shared.half_word(page).fetch_or(0, Ordering::Relaxed);
        }
        Ok(shared)
    }

    /// The address of `len` bytes at `offset`, which must be inside.
    #[inline(always)]
    pub(crate) fn place(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset <= self.len && len <= self.len - offset);
        // SAFETY: the assertion keeps the result inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// A 64-bit word that both sides use.
    #[inline(always)]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: inside the mapping and aligned (a mapping starts on a page); lives as long as `self`; the words of a
        // layout are used as atomics only.
        unsafe { AtomicU64::from_ptr(self.place(offset, 8).cast()) }
    }

    /// A 32-bit word that both sides use, as a futex needs it.
    #[inline(always)]
    pub(crate) fn half_word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: as for `word`.
        unsafe { AtomicU32::from_ptr(self.place(offset, 4).cast()) }
    }

    /// Copies `bytes` in at `offset`.
    #[inline(always)]
    pub(crate) fn put(&self, offset: usize, bytes: &[u8]) {
        let to = self.place(offset, bytes.len());
        // SAFETY: `to` has room, and a private slice cannot overlap a shared mapping. The peer does not touch these
        // bytes until the caller's next flag tells it to (see the module's introduction).
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) }
    }

    /// Copies out what stands at `offset`.
    #[inline(always)]
    pub(crate) fn get(&self, offset: usize, bytes: &mut [u8]) {
        let from = self.place(offset, bytes.len());
        // SAFETY: as for `put`, with the peer's flag seen before and ours not yet given.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), bytes.len()) }
    }
}

// SAFETY: a mapping is the same from every thread of the process, and what is in it is touched as the introduction says,
// whichever thread does it.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        // That either fails is impossible for what `shmat` or `mmap` returned, and harmless.
        if self.attached {
            // SAFETY: what was attached is ours, and every reference into it borrowed `self`.
            let _ = unsafe { sysv::detach(self.base) };
        } else {
            // SAFETY: the mapping is ours, and every reference into it borrowed `self`.
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
