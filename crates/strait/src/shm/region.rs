//! A mapping of a region, or of part of one.
//!
//! Whose bytes can be read as ordinary ones depends on how it was made: those of immutable memory, and of private copies of
//! it. Of any other mapping only words and copies are given out, as of all shared memory.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::{accessed, copy};
use crate::error::Error;
use crate::os::region::{self, How};

/// Part of a file, mapped. A child of a `fork` has it too, and unmaps its own.
#[derive(Debug)]
pub(crate) struct RegionMapping {
    /// Of the whole pages that are mapped; dangling if there are none.
    pages: NonNull<u8>,
    mapped: usize,
    /// Bytes before what was asked for.
    skip: usize,
    len: usize,
    how: How,
    /// Bytes of the words that were given out; 0 if none were.
    word: AtomicU8,
}

// SAFETY: a mapping is an address range. Shared ones are accessed by atomics and by copies that assume that others write at
// the same time; private and immutable ones under the rules of Rust references, which `&self` and `&mut self` below keep.
unsafe impl Send for RegionMapping {}
// SAFETY: as above.
unsafe impl Sync for RegionMapping {}

impl RegionMapping {
    /// Maps `len` bytes from `offset` on of a file of fixed size that reaches so far.
    ///
    /// # Safety
    /// The size of the file is sealed and not below `offset + len`; and with [`How::Immutable`] and [`How::Copy`] it is sealed
    /// against writes.
    pub(crate) unsafe fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, how: How) -> Result<Self, Error> {
        if len == 0 {
            return Ok(Self { pages: NonNull::dangling(), mapped: 0, skip: 0, len, how, word: AtomicU8::new(0) });
        }
        let skip = offset % rustix::param::page_size();
        let mapped = skip.checked_add(len).ok_or(Error::NoMemory { call: "mmap" })?;
        let pages = region::map(fd, (offset - skip) as u64, mapped, how)?;
        Ok(Self { pages, mapped, skip, len, how, word: AtomicU8::new(0) })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.how == How::Write
    }

    /// Where its first byte is.
    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: inside the mapping, or for an empty one at the same dangling place.
        unsafe { self.pages.as_ptr().add(self.skip) }
    }

    /// Asks for huge pages.
    pub(crate) fn prefer_huge_pages(&self) {
        if self.mapped > 0 {
            region::prefer_huge_pages(self.pages, self.mapped);
        }
    }

    /// The bytes of immutable memory, or of a copy of it.
    ///
    /// # Panics
    /// If it is neither.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(matches!(self.how, How::Immutable | How::Copy));
        // SAFETY: by the promise to `new` the file is sealed against writes and changes of its size, so the bytes are there
        // and do not change as long as the mapping lives; those of a copy only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base(), self.len) }
    }

    /// The bytes of a private copy.
    ///
    /// # Panics
    /// If it is none.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.how == How::Copy);
        // SAFETY: a private mapping of memory that does not change is this process's alone, and `&mut self` makes this the
        // only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.len) }
    }

    /// Where `len` bytes from `offset` on are; `None` if there are fewer.
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let room = self.len.checked_sub(offset)?;
        // SAFETY: inside the mapping or right behind it.
        (len <= room).then(|| unsafe { self.base().add(offset) })
    }

    /// Fills `out` from `offset` on; false if there are fewer bytes.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, out.len()) else { return false };
        // SAFETY: the range is mapped, as looked at just now; `out` is private memory.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `bytes` to `offset`; false if they do not fit or it is not for writing.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()).filter(|_| self.is_writable()) else { return false };
        // SAFETY: the range is mapped for writing, and is no memory of Rust's that `bytes` could overlap.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Where the word of `size` bytes at `offset` is; `None` if it is not inside, aligned, and writable, or if words of another
    /// size were given out: Rust does not define what atomic accesses of two sizes to the same bytes do.
    fn word(&self, offset: usize, size: u8) -> Option<*mut u8> {
        accessed();
        let bytes = usize::from(size);
        let at = self.at(offset, bytes).filter(|at| self.is_writable() && at.addr() % bytes == 0)?;
        let before =
            self.word.compare_exchange(0, size, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|given| given);
        (before == 0 || before == size).then_some(at)
    }

    /// The word at `offset`.
    pub(crate) fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.word(offset, 4)?;
        // SAFETY: inside the mapping and aligned; the mapping lives as long as `self`, and all access to shared mappings is
        // atomic, of one size for each mapping, or a copy of this module.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// The same for eight bytes.
    pub(crate) fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.word(offset, 8)?;
        // SAFETY: as for `word32`.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

impl Drop for RegionMapping {
    fn drop(&mut self) {
        if self.mapped > 0 {
            // SAFETY: made by `region::map`; no borrow of it outlives `self`.
            unsafe { region::unmap(self.pages, self.mapped) }
        }
    }
}
