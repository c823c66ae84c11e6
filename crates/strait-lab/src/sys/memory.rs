//! The memory of other processes, and memory that goes through pipes.

use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::slice;

use rustix::fs::{OFlags, fcntl_getfl};
use rustix::io::Errno;
use rustix::pipe::{IoSliceRaw, SpliceFlags, vmsplice};
use rustix::process::Pid;

use super::outcome;

/// Copies what another process has at `address` into `buffer`; how many bytes were copied.
///
/// The kernel checks that this process may look there, and that the other has something there.
#[inline]
pub(crate) fn read_from(process: Pid, address: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
    let here = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let there = libc::iovec { iov_base: address as *mut libc::c_void, iov_len: buffer.len() };
    // SAFETY: the kernel writes into a valid slice. `there` is an address in the other process, which it looks up there.
    let got =
        unsafe { libc::process_vm_readv(process.as_raw_nonzero().get(), &raw const here, 1, &raw const there, 1, 0) };
    outcome(got).map(|got| got as usize)
}

/// So many pieces are given to the kernel in one call.
const PARTS: usize = 64;

/// The writing end of a pipe, and certainly that.
#[derive(Debug)]
pub(crate) struct WritingEnd(OwnedFd);

impl WritingEnd {
    /// Takes a descriptor that can be written to only.
    pub(crate) fn of(pipe: OwnedFd) -> Result<Self, Errno> {
        let access = fcntl_getfl(&pipe)? & OFlags::ACCMODE;
        if access == OFlags::WRONLY { Ok(Self(pipe)) } else { Err(Errno::BADF) }
    }

    /// Puts the pages of `parts` themselves into the pipe, as many as a call takes; how many bytes. They must not change until
    /// they were read there, or the reader sees the change: no harm to this process's memory, but another message.
    #[inline]
    pub(crate) fn splice(&self, parts: &[IoSlice<'_>]) -> Result<usize, Errno> {
        let mut raw = [const { MaybeUninit::uninit() }; PARTS];
        let count = parts.len().min(PARTS);
        for (place, part) in raw.iter_mut().zip(parts) {
            place.write(IoSliceRaw::from_slice(part));
        }
        // SAFETY: the loop has written the first `count`.
        let raw = unsafe { slice::from_raw_parts(raw.as_ptr().cast::<IoSliceRaw<'_>>(), count) };
        // SAFETY: into a writing end the kernel puts what it reads from the slices; without `GIFT` the pages stay ours.
        unsafe { vmsplice(&self.0, raw, SpliceFlags::empty()) }
    }
}
