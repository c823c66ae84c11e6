//! Shared memory: no other module accesses it.
//!
//! A peer may change any byte of a shared mapping at any time. So this module never makes a Rust reference to shared
//! *bytes*. The module gives access in two ways:
//!
//! * **words**: references to atomics, at checked offsets. A reader loads a word once and uses the copy.
//! * **copies**: bytes move between private memory and a mapping in one pass, between two compiler barriers, so that
//!   the compiler can neither read the shared side twice nor delay the read.
//!
//! All other modules treat the values that they get from this module as claims of the peer.

mod copy;
mod pipe;
mod ready_bitmap;
mod region;
mod ring;
mod shareable;

pub(crate) use pipe::PipeMemory;
pub(crate) use ready_bitmap::ReadyBitmapMemory;
pub(crate) use region::RegionMapping;
pub(crate) use ring::{LaneMemory, RingMemory, lane_size, sizes_of_lanes};
pub(crate) use shareable::{PAYLOAD, Shareable};

use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use copy::{copy, copy_short};

use crate::error::Error;
use crate::os::fork::Born;
use crate::os::memory;
use crate::quota::{Amounts, Charge, Ledger, OverLimit, Resource};

/// The most bytes of immutable memory that are mapped over a limit of the peer. Such memory is a handle table, mapped
/// until the ends in the table are closed.
const MOST_OVER_LIMIT: usize = 4 << 20;

/// A mapping of memory that other processes may have mapped too. Dropping the last reference removes the mapping from
/// the process.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// The charge for the memory and its mapping against the peer that sent the memory. `None` if this process made the
    /// memory, or the peer was charged nothing.
    charge: Option<Box<Charge>>,
    /// The descriptor of the memory, if retained to send the memory on to another process. Only memory mapped for
    /// reading only has a retained descriptor.
    descriptor: OnceLock<Box<RetainedFd>>,
    born: Born,
}

/// A descriptor that this process retains after it has mapped the descriptor's memory.
#[derive(Debug)]
struct RetainedFd {
    fd: OwnedFd,
    /// The charge against the peer that sent the descriptor; `None` if no peer is charged. The charge is released when
    /// the descriptor is closed, even if the memory stays mapped.
    _charge: Option<Charge>,
}

/// The greatest size in bytes of memory whose contents are copied for another process. Larger memory is sent on as a
/// descriptor; for less memory, a descriptor costs more than the copy.
pub(crate) const WORTH_PASSING_ON: usize = 64 << 10;

/// The permitted sizes in bytes, both bounds included, of the memory that a peer sends for one purpose.
pub(crate) type Sizes = RangeInclusive<usize>;

/// Checks memory from a peer that both sides are to write: its size must be sealed and one of `sizes`, and the memory
/// must be writable. Fails with [`Error::BadPeer`] otherwise: no correct peer sends such memory. The check comes before
/// the mapping, because `mmap` would fail with an error that looks temporary.
fn checked(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<memory::Checked, Error> {
    let checked = memory::check_memfd(fd)?.ok_or(Error::BadPeer("memory that is not a memfd of sealed size"))?;
    if !checked.writable {
        return Err(Error::BadPeer("memory that cannot be written to"));
    }
    checked.of_size(sizes)
}

/// Checks memory that a peer sent as immutable, before the mapping. Fails with [`Error::BadPeer`] if the memory is not
/// sealed against writes, cannot be read, or its size is not one of `sizes`.
fn checked_immutable(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<memory::Checked, Error> {
    let checked = memory::check_memfd(fd)?.ok_or(Error::BadPeer("memory that is not a memfd of sealed size"))?;
    if !checked.immutable {
        return Err(Error::BadPeer("a payload that is not sealed as announced"));
    }
    if !checked.readable {
        return Err(Error::BadPeer("memory that cannot be read"));
    }
    checked.of_size(sizes)
}

impl memory::Checked {
    fn of_size(self, sizes: Sizes) -> Result<Self, Error> {
        let fits = self.len > 0 && sizes.contains(&self.len);
        if fits { Ok(self) } else { Err(Error::BadPeer("memory of an impossible size")) }
    }

    /// Returns the amounts that a peer is charged for mapping the memory: its size in bytes, and one mapping.
    fn amounts(&self) -> Amounts {
        Amounts::of(Resource::Memory, self.len).and(Resource::Mappings, 1)
    }
}

// SAFETY: a mapping is an address range. All access through it is by atomics, or by copies that are sound while other
// processes write.
unsafe impl Send for Mapping {}
// SAFETY: as for `Send` above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes of zeroed memory that no other process can map, for a channel with both ends in this process.
    pub(crate) fn private(len: usize) -> Result<Arc<Self>, Error> {
        Ok(Arc::new(Self {
            base: memory::map(memory::Source::Anonymous, len)?,
            len,
            writable: true,
            charge: None,
            descriptor: OnceLock::new(),
            born: Born::here(),
        }))
    }

    /// Creates zeroed shared memory of `len` bytes, whose size is sealed, and maps it. Returns the mapping, and the
    /// descriptor with which other processes can map the memory. `name` is the memfd's name, for debugging only.
    pub(crate) fn shared(name: &str, len: usize) -> Result<(Arc<Self>, OwnedFd), Error> {
        let fd = memory::memfd(name, len)?;
        memory::seal_size(&fd)?;
        let base = memory::map(memory::Source::Shared(fd.as_fd()), len)?;
        Ok((
            Arc::new(Self { base, len, writable: true, charge: None, descriptor: OnceLock::new(), born: Born::here() }),
            fd,
        ))
    }

    /// Maps memory from a peer, for reading and writing, and charges the peer for the memory. The memory must be a
    /// writable memfd whose size is sealed and one of `sizes`. `over_limit` says what happens if the charge exceeds a
    /// limit.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the memory is of another kind or size; [`Error::LimitReached`] if a limit forbids the
    /// charge; the errors of `mmap`.
    pub(crate) fn received(
        fd: BorrowedFd<'_>,
        sizes: Sizes,
        ledger: &Arc<Ledger>,
        over_limit: OverLimit,
    ) -> Result<Arc<Self>, Error> {
        let checked = checked(fd, sizes)?;
        let charge = ledger.charge_or(checked.amounts(), over_limit)?;
        Self::received_checked(memory::Source::Shared(fd), &checked, charge)
    }

    /// Maps memory from a peer, for reading only, and charges the peer for the memory. The memory must be a readable
    /// memfd that is sealed against writes and whose size is one of `sizes`. Fails as [`Mapping::received`] does.
    pub(crate) fn received_immutable(
        fd: BorrowedFd<'_>,
        sizes: Sizes,
        ledger: &Arc<Ledger>,
        over_limit: OverLimit,
    ) -> Result<Arc<Self>, Error> {
        let checked = checked_immutable(fd, sizes)?;
        let over_limit = if checked.len <= MOST_OVER_LIMIT { over_limit } else { OverLimit::Refuse };
        let charge = ledger.charge_or(checked.amounts(), over_limit)?;
        Self::received_checked(memory::Source::Sealed(fd), &checked, charge)
    }

    /// Maps, for reading, sealed memory from a peer with a payload of `len` bytes. The memory may be shorter, or longer
    /// up to the end of the payload's last page. The caller has charged the peer: the mapping keeps `charge`. Fails
    /// with [`Error::BadPeer`] if the memory is of another size or not immutable.
    pub(crate) fn received_prepaid(fd: BorrowedFd<'_>, len: usize, charge: Option<Charge>) -> Result<Arc<Self>, Error> {
        let checked = checked_immutable(fd, 1..=len.next_multiple_of(rustix::param::page_size()))?;
        Self::received_checked(memory::Source::Sealed(fd), &checked, charge)
    }

    /// Maps, for reading and writing, memory of exactly `len` bytes from a peer. The caller has charged the peer: the
    /// mapping keeps `charge`. Fails with [`Error::BadPeer`] if the memory is of another size or kind.
    pub(crate) fn received_for(fd: BorrowedFd<'_>, len: usize, charge: Option<Charge>) -> Result<Arc<Self>, Error> {
        let checked = checked(fd, len..=len)?;
        Self::received_checked(memory::Source::Shared(fd), &checked, charge)
    }

    fn received_checked(
        source: memory::Source<'_>,
        checked: &memory::Checked,
        charge: Option<Charge>,
    ) -> Result<Arc<Self>, Error> {
        let writable = matches!(source, memory::Source::Shared(_));
        let base = memory::map(source, checked.len)?;
        let charge = charge.map(Box::new);
        let (len, descriptor, born) = (checked.len, OnceLock::new(), Born::here());
        Ok(Arc::new(Self { base, len, writable, charge, descriptor, born }))
    }

    /// Releases the charge against the peer that sent the memory. From now on the memory is charged to no peer; it
    /// stays mapped.
    pub(crate) fn release_charge(&self) {
        if let Some(charge) = &self.charge {
            charge.release();
        }
    }

    /// Retains `fd`, the descriptor of the memory, so that this process can send the memory on. Retains `fd` only if
    /// the memory is mapped for reading only and longer than [`WORTH_PASSING_ON`], and if `ledger` (the account of the
    /// link) and the process have room for one more descriptor. Returns `None` if the call retained `fd`; otherwise
    /// returns `fd`, also if a descriptor was retained before.
    pub(crate) fn retain_descriptor(&self, fd: OwnedFd, ledger: &Arc<Ledger>) -> Option<OwnedFd> {
        if self.writable || self.len <= WORTH_PASSING_ON {
            return Some(fd);
        }
        match ledger.charge_spare_descriptor(&fd) {
            Ok(charge) => {
                self.descriptor.set(Box::new(RetainedFd { fd, _charge: charge })).err().map(|retained| retained.fd)
            }
            Err(_) => Some(fd),
        }
    }

    /// Returns the descriptor of the memory, if the descriptor was retained; otherwise `None`.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.get().map(|retained| retained.fd.as_fd())
    }

    /// Returns whether a payload of the first `len` bytes fills the memory, except for less than a page at its end. If
    /// so, keeping the memory mapped for the payload keeps nothing else mapped.
    pub(crate) fn fits(&self, len: usize) -> bool {
        len > 0 && len <= self.len && self.len <= len.next_multiple_of(rustix::param::page_size())
    }

    /// Returns whether a sealed payload of the first `len` bytes can be sent on to another process together with its
    /// memory. The descriptor must be retained, and the memory must hold nothing but the payload and zeroes.
    pub(crate) fn can_be_passed_on(&self, len: usize) -> bool {
        self.descriptor().is_some() && self.fits(len) && {
            // The rest of the last page, behind the end of the file, is mapped as well and may have been written.
            let end = self.len.next_multiple_of(rustix::param::page_size());
            // SAFETY: pages are mapped whole. The file was checked to be sealed against writes before its descriptor
            // was retained, so nothing in the pages changes.
            let behind = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(len), end - len) };
            behind.iter().all(|byte| *byte == 0)
        }
    }

    /// Returns whether this process is a forked child of the process that made the mapping: the child does not have the
    /// memory mapped.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.born.is_elsewhere()
    }

    /// Returns the size of the mapping in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the address in this process of byte `offset` of the mapping.
    ///
    /// # Panics
    /// If `offset` is greater than the size of the mapping.
    pub(crate) fn at(&self, offset: usize) -> *const u8 {
        assert!(offset <= self.len);
        // SAFETY: the address is inside the mapping or right behind its end.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Returns the address of the first mapped byte in this process.
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// Returns the shared word of 8 bytes at byte `offset` of the mapping.
    ///
    /// # Panics
    /// If the word is not inside the mapping, not aligned or not writable. Offsets are constants of the layout, never
    /// values from a peer.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        accessed();
        assert!(self.writable && offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: the word is inside the mapping and aligned (mappings start at a page); the mapping lives as long as
        // `self`, and every access in every process is atomic or a copy of this module.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Copies `bytes` into the memory, from byte `offset` on.
    ///
    /// # Panics
    /// If the mapping is too short, or read-only.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable && self.len.checked_sub(offset).is_some_and(|room| bytes.len() <= room));
        // SAFETY: the range is inside the mapping. The mapping is writable, and is not Rust memory that `bytes` could
        // overlap.
        unsafe { copy(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) }
    }

    /// Fills `out` with the bytes of the memory from byte `offset` on, and returns `out` as initialised bytes.
    ///
    /// # Panics
    /// If the mapping has fewer than `out.len()` bytes from `offset` on.
    pub(crate) fn copy_out<'a>(&self, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        assert!(self.len.checked_sub(offset).is_some_and(|room| out.len() <= room));
        // SAFETY: the range is inside the mapping; `out` is private memory.
        unsafe { copy(self.base.as_ptr().add(offset), out.as_mut_ptr().cast(), out.len()) };
        // SAFETY: every byte was written just now.
        unsafe { written(out) }
    }

    /// Allocates the pages of the `len` bytes from byte `offset` on now, and not at the first access. Ignores bytes
    /// outside the mapping; does nothing for a read-only mapping. Affects speed only.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        if self.writable && offset < self.len {
            memory::populate(self.base, offset, len.min(self.len - offset));
        }
    }

    /// Gives the pages of the writable memory from byte `offset` on, a multiple of the page size, back to the kernel,
    /// in all processes with a mapping; the bytes are zeroes then. Returns whether the kernel did so.
    pub(crate) fn discard(&self, offset: usize) -> bool {
        self.writable && offset < self.len && memory::discard(self.base, offset, self.len - offset)
    }

    /// Zeroes `len` bytes of the memory from byte `offset` on.
    ///
    /// # Panics
    /// If the mapping has fewer than `len` bytes from `offset` on, or is read-only.
    pub(crate) fn zero(&self, offset: usize, len: usize) {
        assert!(self.writable && self.len.checked_sub(offset).is_some_and(|room| len <= room));
        // SAFETY: the range is inside the mapping, which is writable.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(offset), 0, len) }
    }

    /// Returns the first `len` bytes of the immutable memory, in place.
    ///
    /// # Panics
    /// If the memory is not sealed against writes (see [`Mapping::received_immutable`]), or shorter than `len`.
    pub(crate) fn immutable_bytes(&self, len: usize) -> &[u8] {
        assert!(!self.writable && len <= self.len);
        // SAFETY: the file was checked before the mapping to be sealed against writes, shrinking and further seals. So
        // the bytes are there and do not change as long as the mapping lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), len) }
    }

    /// Returns the `len` bytes of the memory from byte `offset` on, for writing in place. Panics if the mapping has
    /// fewer bytes there, or is read-only.
    ///
    /// # Safety
    /// Nothing else in this process uses the range while the slice lives. A peer may write to the range too, which is
    /// harmless: the slice is uninitialised memory to Rust, and so is never read.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    pub(crate) unsafe fn uninit_mut(&self, offset: usize, len: usize) -> &mut [MaybeUninit<u8>] {
        assert!(self.writable && self.len.checked_sub(offset).is_some_and(|room| len <= room));
        // SAFETY: the range is inside the mapping, which lives as long as `self`. The caller promises that nothing else
        // in the process uses the range.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset).cast(), len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In a forked child the range is not mapped, and may belong to another mapping by now.
        if !self.is_elsewhere() {
            // SAFETY: the mapping was made by `memory::map` in this process; no borrow of the mapping outlives `self`.
            unsafe { memory::unmap(self.base, self.len) }
        }
    }
}

/// Returns `out` as initialised bytes.
///
/// # Safety
/// All bytes of `out` have been written.
#[inline]
unsafe fn written(out: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    // SAFETY: all bytes are written, as the caller promises, and both slice types have one layout.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
}

/// Marks an access to shared memory; must be called right before each access. A fuzzer can change the memory at this
/// moment, in the middle of a call, as a peer could. Does nothing without `--cfg strait_fuzzing`.
#[inline]
fn accessed() {
    #[cfg(strait_fuzzing)]
    crate::os::fuzz_hooks::step();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_arrive_whole_at_both_edges() {
        let memory = Mapping::private(8192).unwrap();
        memory.copy_in(0, b"front");
        memory.copy_in(8192 - 4, b"back");
        let mut out = [MaybeUninit::uninit(); 5];
        assert_eq!(memory.copy_out(0, &mut out), b"front");
        assert_eq!(memory.copy_out(8192 - 4, &mut out[..4]), b"back");
    }

    #[test]
    #[should_panic(expected = "assertion failed")]
    fn a_copy_past_the_end_is_refused() {
        Mapping::private(4096).unwrap().copy_in(4090, b"too long");
    }

    const ANY: Sizes = 1..=usize::MAX;

    #[test]
    fn memory_without_size_seals_is_refused() {
        let ledger = |bytes| Ledger::new(Some(bytes));
        let fd = memory::memfd("test", 4096).unwrap();
        assert!(matches!(
            Mapping::received(fd.as_fd(), ANY, &ledger(1 << 20), OverLimit::Refuse),
            Err(Error::BadPeer(_))
        ));
        let (_mapping, fd) = Mapping::shared("test", 8192).unwrap();
        assert_eq!(
            Mapping::received(fd.as_fd(), ANY, &ledger(4096), OverLimit::Refuse).unwrap_err(),
            Error::LimitReached(Resource::Memory)
        );
        let once = ledger(8192);
        let mapping = Mapping::received(fd.as_fd(), ANY, &once, OverLimit::Refuse).unwrap();
        assert_eq!(mapping.len(), 8192);
        assert!(Mapping::received(fd.as_fd(), ANY, &once, OverLimit::Refuse).is_err());
        drop(mapping);
        assert!(Mapping::received(fd.as_fd(), ANY, &once, OverLimit::Refuse).is_ok());
        assert!(matches!(
            Mapping::received_immutable(fd.as_fd(), ANY, &ledger(8192), OverLimit::Refuse),
            Err(Error::BadPeer(_))
        ));
    }

    #[test]
    fn only_little_immutable_memory_is_mapped_over_a_limit() {
        for (len, is_mapped) in [(MOST_OVER_LIMIT, true), (MOST_OVER_LIMIT + 4096, false)] {
            let fd = memory::memfd("test", len).unwrap();
            memory::seal_all(&fd).unwrap();
            let mapped = Mapping::received_immutable(fd.as_fd(), ANY, &Ledger::new(Some(4096)), OverLimit::Exceed);
            assert_eq!(mapped.map(drop), if is_mapped { Ok(()) } else { Err(Error::LimitReached(Resource::Memory)) });
        }
    }
}
