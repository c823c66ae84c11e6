//! Memory that two sides have: memfds of any size, with any seals, and mappings of what is really there.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// The seals that Strait asks of memory that both sides write.
pub const SIZE_SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Name of every memfd made here, by which a mapping of it can be told in `/proc/self/maps`.
pub const NAME: &str = "hostile";

/// A mapping of a whole file, and the file. All access is by atomics, a byte or a word at a time.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: an address range that is only accessed by atomics.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    /// Zeroed memory of sealed size, as an honest peer makes it.
    pub fn create(len: usize) -> io::Result<Self> {
        Self::create_with(len, SIZE_SEALS)
    }

    /// The same with these seals.
    pub fn create_with(len: usize, seals: SealFlags) -> io::Result<Self> {
        Self::map(file(len, seals)?)
    }

    /// Maps what a descriptor stands for, for reading, and for writing if that is possible.
    pub fn map(fd: OwnedFd) -> io::Result<Self> {
        let len = usize::try_from(fstat(&fd)?.st_size).map_err(io::Error::other)?;
        let map = |protection| {
            // SAFETY: a null hint makes the kernel choose fresh address space.
            unsafe { mmap(std::ptr::null_mut(), len, protection, MapFlags::SHARED, &fd, 0) }
        };
        let base = map(ProtFlags::READ | ProtFlags::WRITE).or_else(|_| map(ProtFlags::READ))?;
        Ok(Self { base: NonNull::new(base.cast()).expect("a mapping"), len, fd })
    }

    /// Bytes of it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.len), "inside the mapping");
        // SAFETY: inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// The word at `offset`.
    pub fn word32(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4));
        // SAFETY: inside the mapping, which lives as long as `self`, and aligned; all access is atomic.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The double word at `offset`.
    pub fn word64(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8));
        // SAFETY: as for `word32`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        // SAFETY: as for `word32`.
        unsafe { AtomicU8::from_ptr(self.at(offset, 1)) }
    }

    /// Writes bytes.
    pub fn write(&self, offset: usize, bytes: &[u8]) {
        for (at, byte) in (offset..).zip(bytes) {
            self.byte(at).store(*byte, Ordering::Relaxed);
        }
    }

    /// Reads bytes.
    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        (offset..offset + len).map(|at| self.byte(at).load(Ordering::Relaxed)).collect()
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`; no borrow of it outlives `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

/// A file of zeroes with these seals.
pub fn file(len: usize, seals: SealFlags) -> io::Result<OwnedFd> {
    let fd = memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&fd, len as u64)?;
    if !seals.is_empty() {
        fcntl_add_seals(&fd, seals)?;
    }
    Ok(fd)
}

/// A file with this content that nobody can change any more.
pub fn immutable(content: &[u8]) -> io::Result<OwnedFd> {
    let fd = file(content.len().max(1), SealFlags::empty())?;
    let mut written = 0;
    while written < content.len() {
        written += rustix::io::pwrite(&fd, &content[written..], written as u64)?;
    }
    fcntl_add_seals(&fd, SIZE_SEALS | SealFlags::WRITE)?;
    Ok(fd)
}
