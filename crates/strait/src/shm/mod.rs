//! Shared memory: the only module that looks into it.
//!
//! A peer may change any byte of a shared mapping at any time. So this module never makes a Rust reference to
//! shared *bytes*; it gives out two things:
//!
//! * **words**: references to atomics, at checked offsets. A reader loads one once and uses the copy.
//! * **copies**: bytes move between private memory and a mapping in one pass, between two compiler barriers, so
//!   that the compiler can neither read the shared side twice nor put off the read.
//!
//! Everything above treats what it gets from here as a claim of the peer's.

mod board;
mod layout;
mod pipe;
mod region;
mod ring;
mod shareable;

pub(crate) use board::BoardMemory;
pub(crate) use layout::Layout;
pub(crate) use pipe::PipeMemory;
pub(crate) use region::RegionMapping;
pub(crate) use ring::{LaneMemory, RingMemory};
pub(crate) use shareable::{PAYLOAD, Shareable};

use std::mem::MaybeUninit;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::error::Error;
use crate::os::fork::Born;
use crate::os::memory;
use crate::quota::{Amounts, Charge, Ledger, Resource};

/// A mapping that other processes may have too. Unmapped when the last user is gone.
#[derive(Debug)]
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    /// For memory that a peer sent.
    charge: Option<Box<Charge>>,
    /// Of memory that cannot change, so that it can be passed on.
    descriptor: OnceLock<Box<Kept>>,
    born: Born,
}

/// A descriptor that was not closed when its memory was mapped.
#[derive(Debug)]
struct Kept {
    fd: OwnedFd,
    /// For one that a peer sent. It is given back with the descriptor, whoever uses the memory.
    _charge: Option<Charge>,
}

/// Bytes up to which memory is copied rather than passed on: for less, a descriptor costs more than the copy.
pub(crate) const WORTH_PASSING_ON: usize = 64 << 10;

/// How many bytes memory can have that a peer of ours sends for a purpose.
pub(crate) type Sizes = RangeInclusive<usize>;

/// What is known of memory that both sides write, before it is mapped: the kernel would refuse to map what a peer of ours never
/// sends, which must not look like a trouble that passes.
fn checked(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<memory::Checked, Error> {
    let checked = memory::check_memfd(fd)?.ok_or(Error::BadPeer("memory that is not a memfd of sealed size"))?;
    if !checked.writable {
        return Err(Error::BadPeer("memory that cannot be written to"));
    }
    checked.of_size(sizes)
}

/// What is known of memory that nobody can change, before it is mapped.
fn checked_immutable(fd: BorrowedFd<'_>, sizes: Sizes) -> Result<memory::Checked, Error> {
    let checked = memory::check_memfd(fd)?.ok_or(Error::BadPeer("memory that is not a memfd of sealed size"))?;
    if !checked.immutable {
        return Err(Error::BadPeer("a payload said to be sealed that is not"));
    }
    if !checked.readable {
        return Err(Error::BadPeer("memory that cannot be read"));
    }
    checked.of_size(sizes)
}

impl memory::Checked {
    fn of_size(self, sizes: Sizes) -> Result<Self, Error> {
        let fits = self.len > 0 && sizes.contains(&self.len);
        if fits { Ok(self) } else { Err(Error::BadPeer("memory of a size that it cannot have")) }
    }

    /// What a peer is charged with for it.
    fn amounts(&self) -> Amounts {
        Amounts::of(Resource::Memory, self.len).and(Resource::Mappings, 1)
    }
}

// SAFETY: a mapping is an address range; all access through it is by atomics or by copies that assume that others
// write at the same time.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process alone, for two ends in one process.
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

    /// Fresh zeroed memory and the descriptor that shares it. Its size is sealed.
    pub(crate) fn shared(name: &str, len: usize) -> Result<(Arc<Self>, OwnedFd), Error> {
        let fd = memory::memfd(name, len)?;
        memory::seal_size(&fd)?;
        let base = memory::map(memory::Source::Shared(fd.as_fd()), len)?;
        Ok((
            Arc::new(Self { base, len, writable: true, charge: None, descriptor: OnceLock::new(), born: Born::here() }),
            fd,
        ))
    }

    /// Fresh zeroed memory that nobody else has yet and that can still be sealed against writes.
    pub(crate) fn unsealed(name: &str, len: usize) -> Result<(Self, OwnedFd), Error> {
        let fd = memory::memfd(name, len)?;
        let base = memory::map(memory::Source::Shared(fd.as_fd()), len)?;
        Ok((Self { base, len, writable: true, charge: None, descriptor: OnceLock::new(), born: Born::here() }, fd))
    }

    /// Maps what a peer sent, if it is a memfd whose size is sealed and one of `sizes`, and charges the peer with it.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if it is no such memory; [`Error::LimitReached`] if it is too much; what `mmap` fails with.
    pub(crate) fn received(fd: BorrowedFd<'_>, sizes: Sizes, ledger: &Arc<Ledger>) -> Result<Arc<Self>, Error> {
        let checked = checked(fd, sizes)?;
        let charge = ledger.charge(checked.amounts())?;
        Self::received_checked(memory::Source::Shared(fd), &checked, charge)
    }

    /// Maps memory as [`Mapping::received`] does, whatever the limits: there is only so much of it.
    pub(crate) fn received_anyway(fd: BorrowedFd<'_>, sizes: Sizes, ledger: &Arc<Ledger>) -> Result<Arc<Self>, Error> {
        let checked = checked(fd, sizes)?;
        let charge = ledger.charge_anyway(checked.amounts());
        Self::received_checked(memory::Source::Shared(fd), &checked, charge)
    }

    /// Maps memory as [`Mapping::received`] does, for reading only, if nobody can write to it any more.
    pub(crate) fn received_immutable(
        fd: BorrowedFd<'_>,
        sizes: Sizes,
        ledger: &Arc<Ledger>,
    ) -> Result<Arc<Self>, Error> {
        let checked = checked_immutable(fd, sizes)?;
        let charge = ledger.charge(checked.amounts())?;
        Self::received_checked(memory::Source::Sealed(fd), &checked, charge)
    }

    /// Maps an immutable payload of about `len` bytes, with which the peer was charged before.
    pub(crate) fn received_prepaid(fd: BorrowedFd<'_>, len: usize, charge: Option<Charge>) -> Result<Arc<Self>, Error> {
        let checked = checked_immutable(fd, 1..=len.next_multiple_of(rustix::param::page_size()))?;
        Self::received_checked(memory::Source::Sealed(fd), &checked, charge)
    }

    /// Maps memory of `len` bytes that can be written to, with which the peer was charged before.
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

    /// From now on it is the affair of who uses it here, and no longer of the peer that sent it.
    pub(crate) fn settle(&self) {
        if let Some(charge) = &self.charge {
            charge.settle();
        }
    }

    /// Keeps the descriptor of memory that cannot change, if it is large enough for that to pay, and `ledger` and the process
    /// have room for it; else it comes back.
    pub(crate) fn keep_descriptor(&self, fd: OwnedFd, ledger: &Arc<Ledger>) -> Option<OwnedFd> {
        if self.writable || self.len <= WORTH_PASSING_ON {
            return Some(fd);
        }
        match ledger.charge_spare_descriptor(&fd) {
            Ok(charge) => self.descriptor.set(Box::new(Kept { fd, _charge: charge })).err().map(|kept| kept.fd),
            Err(_) => Some(fd),
        }
    }

    /// Its descriptor, if it was kept.
    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.get().map(|kept| kept.fd.as_fd())
    }

    /// Whether it is no larger than a payload of `len` bytes needs: who keeps that keeps nothing else.
    pub(crate) fn fits(&self, len: usize) -> bool {
        len > 0 && len <= self.len && self.len <= len.next_multiple_of(rustix::param::page_size())
    }

    /// Whether a payload of `len` bytes that cannot change can be passed on with its memory: there is a descriptor, and nothing
    /// else is in there that would go along.
    pub(crate) fn can_be_passed_on(&self, len: usize) -> bool {
        self.descriptor().is_some() && self.fits(len) && {
            // What is behind the end of the file, up to the end of the page, is mapped as well, and can have been written.
            let end = self.len.next_multiple_of(rustix::param::page_size());
            // SAFETY: pages are mapped whole. The file is sealed against writes, which was checked before a descriptor was
            // kept, so nothing in them changes.
            let behind = unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(len), end - len) };
            behind.iter().all(|byte| *byte == 0)
        }
    }

    /// Whether it is mapped in another process: the parent of this one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.born.is_elsewhere()
    }

    /// Size in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Where byte `offset` of it is in this process.
    ///
    /// # Panics
    /// If that is outside.
    pub(crate) fn at(&self, offset: usize) -> *const u8 {
        assert!(offset <= self.len);
        // SAFETY: inside the mapping or right behind it.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Where it is in this process.
    fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The shared word at `offset`.
    ///
    /// # Panics
    /// If it is not inside, aligned and writable; the offsets are constants of the layout, never a peer's.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        accessed();
        assert!(self.writable && offset.is_multiple_of(8) && offset + 8 <= self.len);
        // SAFETY: inside the mapping and aligned (mappings start at a page); the mapping lives as long as `self`,
        // and every access in every process is atomic or a copy of this module.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Copies `bytes` to `offset`.
    ///
    /// # Panics
    /// If they do not fit.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        assert!(self.writable && self.len.checked_sub(offset).is_some_and(|room| bytes.len() <= room));
        // SAFETY: the range is inside the mapping, which is writable and is not Rust memory that `bytes` could
        // overlap.
        unsafe { copy(bytes.as_ptr(), self.base.as_ptr().add(offset), bytes.len()) }
    }

    /// Fills `out` with the bytes from `offset` on.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn copy_out<'a>(&self, offset: usize, out: &'a mut [MaybeUninit<u8>]) -> &'a mut [u8] {
        assert!(self.len.checked_sub(offset).is_some_and(|room| out.len() <= room));
        // SAFETY: the range is inside the mapping; `out` is private memory.
        unsafe { copy(self.base.as_ptr().add(offset), out.as_mut_ptr().cast(), out.len()) };
        // SAFETY: every byte was written just now.
        unsafe { written(out) }
    }

    /// Takes `len` bytes from `offset` on, or what of them is inside, from the kernel. Only a matter of speed.
    pub(crate) fn populate(&self, offset: usize, len: usize) {
        if self.writable && offset < self.len {
            memory::populate(self.base, offset, len.min(self.len - offset));
        }
    }

    /// Zeroes `len` bytes from `offset` on.
    ///
    /// # Panics
    /// If there are fewer.
    pub(crate) fn zero(&self, offset: usize, len: usize) {
        assert!(self.writable && self.len.checked_sub(offset).is_some_and(|room| len <= room));
        // SAFETY: the range is inside the mapping, which is writable.
        unsafe { std::ptr::write_bytes(self.base.as_ptr().add(offset), 0, len) }
    }

    /// The bytes of an immutable payload, in place.
    ///
    /// # Panics
    /// If this mapping was not made by [`Mapping::received_immutable`], or is shorter.
    pub(crate) fn immutable_bytes(&self, len: usize) -> &[u8] {
        assert!(!self.writable && len <= self.len);
        // SAFETY: the file is sealed against writes, shrinking and further seals, which was checked before it was
        // mapped, so the bytes are there and do not change as long as the mapping lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), len) }
    }

    /// Places for a caller to write to.
    ///
    /// # Safety
    /// Nobody else in this process uses the range as long as the slice lives. That a peer may write to it too is
    /// harmless: what is not initialised is never read.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    pub(crate) unsafe fn places(&self, offset: usize, len: usize) -> &mut [MaybeUninit<u8>] {
        assert!(self.writable && self.len.checked_sub(offset).is_some_and(|room| len <= room));
        // SAFETY: inside the mapping, which lives as long as `self`; exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().add(offset).cast(), len) }
    }

    /// The bytes of memory that nobody else has.
    pub(crate) fn own_bytes(&mut self) -> &mut [u8] {
        assert!(self.writable);
        // SAFETY: `&mut self` is only had before the mapping is put into an `Arc` or its descriptor is sent
        // (see `Mapping::unsealed`), so no other reference and no other process has these bytes.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // In the child of a fork the range is not mapped, and may meanwhile belong to somebody else.
        if !self.is_elsewhere() {
            // SAFETY: made by `memory::map` in this process; no borrow of it outlives `self`.
            unsafe { memory::unmap(self.base, self.len) }
        }
    }
}

/// Copies `len` bytes, one side of which may be shared memory, in exactly one pass.
///
/// # Safety
/// Both ranges are mapped, the destination for writing, and they do not overlap.
#[inline]
unsafe fn copy(from: *const u8, to: *mut u8, len: usize) {
    accessed();
    barrier(from);
    // SAFETY: the caller's promise. That a peer may write the shared side meanwhile is outside what the language
    // defines; between the two barriers the compiler has nothing to combine this copy with, so whatever bytes
    // come out stay what they are.
    unsafe { if len <= SMALL { copy_small(from, to, len) } else { std::ptr::copy_nonoverlapping(from, to, len) } }
    barrier(to.cast_const());
}

/// Up to here a copy is not worth a call.
const SMALL: usize = 64;

/// Copies up to [`SMALL`] bytes in pieces.
///
/// # Safety
/// As for [`copy`].
#[inline]
unsafe fn copy_small(from: *const u8, to: *mut u8, len: usize) {
    /// # Safety
    /// As for [`copy`], at `at`.
    #[inline]
    unsafe fn piece<const N: usize>(from: *const u8, to: *mut u8, at: usize) {
        // SAFETY: the caller's promise.
        unsafe { std::ptr::copy_nonoverlapping(from.add(at), to.add(at), N) }
    }
    // SAFETY: every piece ends at `len` or before; the rest is the caller's promise.
    unsafe {
        // No loop, of which the compiler would make a call; no pieces that overlap, which would have to be put together
        // again by whoever reads them next.
        let mut at = 0;
        if len - at >= 32 {
            piece::<32>(from, to, at);
            at += 32;
        }
        if len - at >= 32 {
            piece::<32>(from, to, at);
            at += 32;
        }
        if len - at >= 16 {
            piece::<16>(from, to, at);
            at += 16;
        }
        if len - at >= 8 {
            piece::<8>(from, to, at);
            at += 8;
        }
        if len - at >= 4 {
            piece::<4>(from, to, at);
            at += 4;
        }
        if len - at >= 2 {
            piece::<2>(from, to, at);
            at += 2;
        }
        if len > at {
            piece::<1>(from, to, at);
        }
    }
}

/// Bytes that have been written.
///
/// # Safety
/// All of them have.
#[inline]
unsafe fn written(out: &mut [MaybeUninit<u8>]) -> &mut [u8] {
    // SAFETY: the caller's promise; the layout is the same.
    unsafe { &mut *(std::ptr::from_mut(out) as *mut [u8]) }
}

/// Shared memory is about to be looked at or written to: where a fuzzer can play a peer that changes it in the middle of a
/// call.
#[inline]
fn accessed() {
    #[cfg(feature = "fuzzing")]
    crate::os::fuzz_hooks::step();
}

/// Makes the compiler forget what it knows about memory.
#[inline]
fn barrier(pointer: *const u8) {
    #[cfg(not(miri))]
    // SAFETY: no instruction; tells the compiler that any memory may have changed.
    unsafe {
        std::arch::asm!("/* {0} */", in(reg) pointer, options(nostack, preserves_flags));
    }
    #[cfg(miri)]
    {
        let _ = pointer;
        std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    }
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
        let (_, fd) = Mapping::unsealed("test", 4096).unwrap();
        assert!(matches!(Mapping::received(fd.as_fd(), ANY, &ledger(1 << 20)), Err(Error::BadPeer(_))));
        let (_mapping, fd) = Mapping::shared("test", 8192).unwrap();
        assert_eq!(
            Mapping::received(fd.as_fd(), ANY, &ledger(4096)).unwrap_err(),
            Error::LimitReached(Resource::Memory)
        );
        let once = ledger(8192);
        let mapping = Mapping::received(fd.as_fd(), ANY, &once).unwrap();
        assert_eq!(mapping.len(), 8192);
        assert!(Mapping::received(fd.as_fd(), ANY, &once).is_err());
        drop(mapping);
        assert!(Mapping::received(fd.as_fd(), ANY, &once).is_ok());
        assert!(matches!(Mapping::received_immutable(fd.as_fd(), ANY, &ledger(8192)), Err(Error::BadPeer(_))));
    }
}
