//! The memory of other processes, and memory that is put into pipes.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::slice;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};
use rustix::process::Pid;

use super::outcome;

/// Copies memory of another process at `address` into `buffer`. Returns the number of bytes copied.
///
/// The kernel checks the access rights to the other process, and that the address is mapped there.
#[inline]
pub(crate) fn read_from(process: Pid, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: the kernel writes into a valid slice. `there` is an address in the other process, which the kernel
    // checks.
    let got =
        unsafe { libc::process_vm_readv(process.as_raw_nonzero().get(), &raw const here, 1, &raw const there, 1, 0) };
    outcome(got).map(|got| got as usize)
}

/// The most pieces given to the kernel by one call.
const PARTS: usize = 64;

/// The writing end of a pipe, checked to be a pipe.
#[derive(Debug)]
pub(crate) struct WritingEnd(OwnedFd);

impl WritingEnd {
    /// Makes a `WritingEnd` from a descriptor; fails with `EBADF` unless the descriptor can only be written to.
    pub(crate) fn of(pipe: OwnedFd) -> Result<Self, Errno> {
        let access = fcntl_getfl(&pipe)? & OFlags::ACCMODE;
        if access == OFlags::WRONLY { Ok(Self(pipe)) } else { Err(Errno::BADF) }
    }

    /// Puts the pages of `parts` themselves into the pipe, as many as one call takes. Returns the number of bytes.
    ///
    /// The pages must not change until the receiver has read them; otherwise the receiver reads changed bytes. Such a
    /// change does no harm to this process's memory.
    #[inline]
    pub(crate) fn splice(&self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut raw = [const { MaybeUninit::uninit() }; PARTS];
        let count = parts.len().min(PARTS);
        for (place, part) in raw.iter_mut().zip(parts) {
            place.write(IoSliceRaw::from_slice(part));
        }
        // SAFETY: the loop has written the first `count` elements.
        let raw = unsafe { slice::from_raw_parts(raw.as_ptr().cast::<IoSliceRaw<'_>>(), count) };
        // SAFETY: the kernel only reads bytes from the slices, since the descriptor is a writing end. Without `GIFT`
        // the pages remain this process's.
        unsafe { vmsplice(&self.0, raw, SpliceFlags::empty()) }
    }
}
