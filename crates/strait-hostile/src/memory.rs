//! Memory that two sides share: memfds of any size, with any seals, and mappings of their real size.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The seals that Strait requires of memory written by both sides: the size cannot change, and no seal can be added.
pub const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The name of every memfd of this crate, which also marks their mappings in `/proc/self/maps`.
pub const NAME: &str = "hostile";

/// A memfd and a shared mapping of the whole memfd. All access to the mapping is atomic, a byte or a word at a time.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping does not depend on a thread, and all access to its bytes is atomic.
unsafe impl Send for Memory {}
// SAFETY: all access to the bytes of the mapping is atomic.
unsafe impl Sync for Memory {}

impl Memory {
    /// Creates zeroed memory of `len` bytes with a sealed size, as an honest peer does.
    pub fn create(len: usize) -> io::Result<Self> {
        Self::create_with(len, SIZE_SEALS)
    }

    /// Creates zeroed memory of `len` bytes with the seals `seals`.
    pub fn create_with(len: usize, seals: SealFlags) -> io::Result<Self> {
        Self::map(file(len, seals)?)
    }

    /// Maps the whole file behind `fd`, for reading, and for writing too if the file can be written.
    pub fn map(fd: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(&fd)?.st_size).map_err(io::Error::other)?;
        let map = |protection| {
            // SAFETY: a null hint makes the kernel choose fresh address space.
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0) }
        };
        let base = map(ProtFlags::READ | ProtFlags::WRITE).or_else(|_| map(ProtFlags::READ))?;
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping"), len, fd })
    }

    /// Returns the size of the mapping in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the mapping has 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the descriptor of the memfd.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: the result is inside the mapping, as asserted above.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the 32-bit word `offset` bytes into the mapping. Panics if `offset` is not aligned or not inside.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: the word is aligned and inside the mapping, which lives as long as `self`; all access is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Returns the 64-bit word `offset` bytes into the mapping. Panics if `offset` is not aligned or not inside.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: the word is aligned and inside the mapping, which lives as long as `self`; all access is atomic.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: the byte is inside the mapping, which lives as long as `self`; all access is atomic.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// Writes `bytes` to the mapping, from `offset` on. Panics if `bytes` do not fit.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
    }

    /// Reads `len` bytes of the mapping, from `offset` on. Panics if the mapping ends before.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        (offset..offset + len).map(|at| self.byte(at).load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping; no borrow of it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// Creates a memfd of `len` zero bytes with the seals `seals`.
pub fn file(len: usize, seals: SealFlags) -> io::Result<OwnedFd> {
    let fd = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    if !seals.is_empty() {
        fcntl_add_seals(&fd, seals)?;
    }
    Ok(fd)
}

/// Creates a memfd with this content, sealed so that no process can change the memfd any more. Its size is 1 byte if
/// `content` is empty.
pub fn immutable(content: &[u8]) -> io::Result<OwnedFd> {
    let fd = file(content.len().max(1), SealFlags::empty())?;
    let mut written = 0;
    while written < content.len() {
        written += rustix::io::pwrite(&fd, &content[written..], written as u64)?;
    }
    fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::WRITE)?;
    Ok(fd)
}
