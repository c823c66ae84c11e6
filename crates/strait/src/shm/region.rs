//! A mapping of a region, or of part of a region.
//!
//! The bytes of immutable memory, and of private copies of it, can be read as ordinary Rust bytes. All other mappings
//! give access to words and copies only, as shared memory does everywhere.

use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use super::{accessed, copy};
use crate::error::Error;
use crate::os::fork::Born;
use crate::os::region::{self, How};

/// A mapping of a part of a region's file. A child made by `fork` inherits the mapping, except with [`How::Own`]. If
/// either process removes its mapping, the mapping of the other process stays.
#[derive(Debug)]
pub(crate) struct RegionMapping {
    /// Address of the first mapped page; dangling if the mapping has no bytes.
    pages: NonNull<u8>,
    mapped: usize,
    /// Number of bytes between the start of the first mapped page and the first byte that the caller asked for.
    skip: usize,
    len: usize,
    how: How,
    /// Size in bytes (4 or 8) of the atomic words to which the mapping has returned references; 0 before the first.
    word: AtomicU8,
    /// The process that made the mapping; a forked child does not have a mapping with [`How::Own`].
    born: Born,
}

// SAFETY: a mapping is an address range. Shared mappings are accessed by atomics, and by copies that are sound while
// other processes write. Private and immutable mappings are accessed under the rules of Rust references, which `&self`
// and `&mut self` below keep.
unsafe impl Send for RegionMapping {}
// SAFETY: as for `Send` above.
unsafe impl Sync for RegionMapping {}

impl RegionMapping {
    /// Maps `len` bytes of the file `fd`, from byte `offset` on, in the way `how`. Maps nothing if `len` is 0.
    ///
    /// # Safety
    /// The size of the file is sealed and not below `offset + len`. With [`How::Immutable`] and [`How::Copy`] the file
    /// is sealed against writes. With [`How::Own`] no other process and no other mapping has the memory, and the size
    /// need not be sealed.
    pub(crate) unsafe fn new(fd: BorrowedFd<'_>, offset: usize, len: usize, how: How) -> Result<Self, Error> {
        let (word, born) = (AtomicU8::new(0), Born::here());
        if len == 0 {
            return Ok(Self { pages: NonNull::dangling(), mapped: 0, skip: 0, len, how, word, born });
        }
        let skip = offset % rustix::param::page_size();
        let mapped = skip.checked_add(len).ok_or(Error::NoMemory { call: "mmap" })?;
        let pages = region::map(fd, (offset - skip) as u64, mapped, how)?;
        Ok(Self { pages, mapped, skip, len, how, word, born })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_writable(&self) -> bool {
        self.how == How::Write
    }

    /// Returns the address in this process of the first byte that the caller asked to be mapped.
    pub(crate) fn base(&self) -> *mut u8 {
        // SAFETY: the address is inside the mapping; if nothing is mapped, `skip` is 0 and the address stays dangling.
        unsafe { self.pages.as_ptr().add(self.skip) }
    }

    /// Asks the kernel to back the mapping with huge pages. Affects speed only.
    pub(crate) fn prefer_huge_pages(&self) {
        if self.mapped > 0 {
            region::prefer_huge_pages(self.pages, self.mapped);
        }
    }

    /// Returns all bytes of the mapping, which must be of immutable memory, a private copy, or memory that no other
    /// process has.
    ///
    /// # Panics
    /// If other processes can write to the mapped memory; in a forked child without the memory.
    pub(crate) fn bytes(&self) -> &[u8] {
        assert!(!self.is_elsewhere(), "{}", Error::Forked);
        assert!(matches!(self.how, How::Immutable | How::Copy | How::Own));
        // SAFETY: by the promise to `new` the size of the file is sealed, and either the file is sealed against writes
        // or no other process has the file. So the bytes are there and do not change while the mapping lives. Bytes of
        // a copy, and bytes that no other process has, change only through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.base(), self.len) }
    }

    /// Returns all bytes of the mapping, which must be a private copy or memory that no other process has, for writing.
    ///
    /// # Panics
    /// If the mapping is of another kind; in a forked child without the memory.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(!self.is_elsewhere(), "{}", Error::Forked);
        assert!(matches!(self.how, How::Copy | How::Own));
        // SAFETY: a private mapping of immutable memory belongs to this process alone, as does memory that no other
        // process has, and `&mut self` makes the result the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.base(), self.len) }
    }

    /// Checks that this process has the memory of the mapping.
    ///
    /// # Errors
    /// [`Error::Forked`] in a forked child without the memory.
    pub(crate) fn check_fork(&self) -> Result<(), Error> {
        if self.is_elsewhere() { Err(Error::Forked) } else { Ok(()) }
    }

    /// Returns whether this process is a forked child without the memory of the mapping.
    fn is_elsewhere(&self) -> bool {
        self.how == How::Own && self.born.is_elsewhere()
    }

    /// Seals the file `fd` by `seal`, and makes the mapping a private copy of the file at the same address. The mapping
    /// must be of the whole file, with [`How::Own`]. After an error of `seal` the mapping is unchanged. If the kernel
    /// fails to replace the mapping, for example for lack of memory, the mapping has no bytes any more.
    pub(crate) fn seal_in_place(
        &mut self,
        fd: BorrowedFd<'_>,
        seal: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        assert!(self.how == How::Own);
        self.born.check()?;
        if self.mapped > 0 {
            // A first mapping elsewhere shows whether the kernel grants a mapping: a refusal then changes nothing.
            let probe = region::map(fd, 0, self.mapped, How::Copy)?;
            // SAFETY: the mapping was made just now, and no pointer leads into it.
            unsafe { region::unmap(probe, self.mapped) };
        }
        self.replace(fd, How::Copy)?;
        // Only the seal makes bytes of a private mapping immutable, so no reference to them exists before the seal.
        seal().inspect_err(|_| {
            let _ = self.replace(fd, How::Own);
        })
    }

    /// In a forked child: maps private memory with a copy of the bytes of the file `fd` at the address of the mapping,
    /// which must be of the whole file, with [`How::Own`]. After an error the child still has no mapping.
    pub(crate) fn copy_in_child(&mut self, fd: BorrowedFd<'_>) -> Result<(), Error> {
        assert!(self.how == How::Own);
        if self.mapped > 0 {
            // SAFETY: the mapping was made by `region::map`. In a forked child the mapping is not there, and no
            // reference exists since `bytes` refuses. In the process that made the mapping, the kernel refuses the
            // call.
            unsafe { region::copy_at(self.pages, self.mapped, fd) }?;
        }
        (self.how, self.born) = (How::Copy, Born::here());
        Ok(())
    }

    /// Replaces the mapping by a mapping of the kind `how`, at the same address. After an error the mapping has no
    /// bytes.
    fn replace(&mut self, fd: BorrowedFd<'_>, how: How) -> Result<(), Error> {
        self.how = how;
        if self.mapped == 0 {
            return Ok(());
        }
        // SAFETY: the mapping was made by `region::map`, and `&mut self` is the only reference to it.
        let replaced = unsafe { region::map_over(self.pages, self.mapped, fd, how) };
        replaced.inspect_err(|_| {
            // The range may be free by now, or belong to another thread: the range is not unmapped.
            (self.pages, self.mapped, self.len) = (NonNull::dangling(), 0, 0);
        })
    }

    /// Returns the address in this process of byte `offset` of the mapping; `None` if fewer than `len` bytes follow.
    fn at(&self, offset: usize, len: usize) -> Option<*mut u8> {
        let room = self.len.checked_sub(offset)?;
        // SAFETY: the address is inside the mapping or right behind its end.
        (len <= room).then(|| unsafe { self.base().add(offset) })
    }

    /// Fills `out` with the bytes of the mapping from byte `offset` on. Returns `false`, and copies nothing, if the
    /// mapping has too few bytes there.
    pub(crate) fn copy_out(&self, offset: usize, out: &mut [u8]) -> bool {
        let Some(from) = self.at(offset, out.len()) else { return false };
        // SAFETY: the range is mapped, as checked just now; `out` is private memory.
        unsafe { copy(from, out.as_mut_ptr(), out.len()) };
        true
    }

    /// Copies `bytes` into the mapping, from byte `offset` on. Returns `false`, and copies nothing, if the bytes do not
    /// fit or the mapping is not writable.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) -> bool {
        let Some(to) = self.at(offset, bytes.len()).filter(|_| self.is_writable()) else { return false };
        // SAFETY: the range is mapped for writing, and is not Rust memory that `bytes` could overlap.
        unsafe { copy(bytes.as_ptr(), to, bytes.len()) };
        true
    }

    /// Returns the address of the word of `size` bytes (4 or 8) at byte `offset` of the mapping. Returns `None` if the
    /// word is not inside the mapping, not aligned or not writable. Also returns `None` if the mapping has given out
    /// words of the other size, since Rust does not define atomic accesses of two sizes to the same bytes.
    fn word(&self, offset: usize, size: u8) -> Option<*mut u8> {
        accessed();
        let bytes = usize::from(size);
        let at = self.at(offset, bytes).filter(|at| self.is_writable() && at.addr() % bytes == 0)?;
        let before =
            self.word.compare_exchange(0, size, Ordering::Relaxed, Ordering::Relaxed).unwrap_or_else(|given| given);
        (before == 0 || before == size).then_some(at)
    }

    /// Returns the word of 4 bytes at byte `offset` of the mapping. Returns `None` if the word is not inside the
    /// mapping, not aligned or not writable, or if the mapping has given out words of 8 bytes.
    pub(crate) fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        let at = self.word(offset, 4)?;
        // SAFETY: the word is inside the mapping and aligned, and the mapping lives as long as `self`. All access to
        // shared mappings is atomic, with one word size for each mapping, or a copy of this module.
        Some(unsafe { AtomicU32::from_ptr(at.cast()) })
    }

    /// Returns the word of 8 bytes at byte `offset` of the mapping. Returns `None` if the word is not inside the
    /// mapping, not aligned or not writable, or if the mapping has given out words of 4 bytes.
    pub(crate) fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        let at = self.word(offset, 8)?;
        // SAFETY: the conditions in `word32` hold for 8 bytes as well.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

impl Drop for RegionMapping {
    fn drop(&mut self) {
        if self.mapped > 0 && !self.is_elsewhere() {
            // SAFETY: the mapping was made by `region::map`; no borrow of the mapping outlives `self`.
            unsafe { region::unmap(self.pages, self.mapped) }
        }
    }
}
