//! The memory of a data pipe: its words, and its buffer.
//!
//! ```text
//! offset  written by   what
//!      0  producer     written    u64   bytes written since the pipe was made
//!      8  producer     finished   u32   1 once the producer will write nothing more
//!     12  producer     cpu        u32   CPU that the producer last ran on, plus 1
//!     16  producer     reason     u64   2^32 + the reason with which the producer has aborted the stream, else 0
//!    128  consumer     taken      u64   bytes read since the pipe was made
//!    136  consumer     done       u32   1 once the consumer will read nothing more
//!    140  consumer     cpu        u32   CPU that the consumer last ran on, plus 1
//!    144  consumer     reason     u64   2^32 + the reason with which the consumer has aborted the stream, else 0
//!    256  both         sleeping   u32   1 while the consumer sleeps for bytes
//!    384  both         waiting    u32   1 while the producer sleeps for room
//!   4096  producer     the buffer
//! ```
//!
//! The sleep words have a pair of cache lines each: while no side sleeps, each word stays in the cache of the side that
//! reads it.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mapping, accessed};
use crate::error::Error;
use crate::os::memory;
use crate::quota::Charge;
use crate::ring::stream::{Span, Words};

/// Offset in bytes of the buffer from the start of the memory of a data pipe.
const BUFFER: usize = 4096;

const WRITTEN: usize = 0;
const FINISHED: usize = 8;
const PRODUCER_CPU: usize = 12;
const PRODUCER_REASON: usize = 16;
const TAKEN: usize = 128;
const DONE: usize = 136;
const CONSUMER_CPU: usize = 140;
const CONSUMER_REASON: usize = 144;
const SLEEPING: usize = 256;
const WAITING: usize = 384;

/// The upper half of a word of a side that has aborted the stream; the lower half is the reason.
const HAS_REASON: u64 = 1;

/// The memory of a data pipe (its words and its buffer), mapped in this process, and its descriptor.
#[derive(Debug)]
pub(crate) struct PipeMemory {
    mapping: Arc<Mapping>,
    fd: OwnedFd,
}

impl PipeMemory {
    /// Returns the size in bytes of the memory of a data pipe with a buffer of `capacity` bytes, in whole pages of
    /// 4,096 bytes; `None` if no `usize` can hold the size.
    pub(crate) fn size(capacity: u64) -> Option<usize> {
        usize::try_from(capacity).ok()?.checked_add(BUFFER)?.checked_next_multiple_of(4096)
    }

    /// Creates and maps the zeroed memory of a data pipe with a buffer of `capacity` bytes. `name` is the memfd's name,
    /// for debugging only.
    pub(crate) fn new(name: &str, capacity: u64) -> Result<Self, Error> {
        let size = Self::size(capacity).ok_or(Error::NoMemory { call: "memory for a data pipe" })?;
        let (mapping, fd) = Mapping::shared(name, size)?;
        Ok(Self { mapping, fd })
    }

    /// Maps the memory a second time, for the other end of the data pipe in this process. The returned value has a
    /// mapping and a descriptor of its own.
    pub(crate) fn again(&self) -> Result<Self, Error> {
        let fd = crate::os::region::duplicate(self.fd.as_fd())?;
        let mapping = Mapping::received_for(fd.as_fd(), self.mapping.len(), None)?;
        Ok(Self { mapping, fd })
    }

    /// Maps memory from a peer for a data pipe with a buffer of `capacity` bytes. The caller has charged the peer: the
    /// mapping keeps `charge`.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the memory has another size or kind; the errors of `mmap`. The descriptor is returned with
    /// each error.
    pub(crate) fn received(fd: OwnedFd, capacity: u64, charge: Option<Charge>) -> Result<Self, (Error, OwnedFd)> {
        let size = Self::size(capacity).ok_or(Error::BadPeer("a data pipe over the largest size"));
        match size.and_then(|size| Mapping::received_for(fd.as_fd(), size, charge)) {
            Ok(mapping) => Ok(Self { mapping, fd }),
            Err(error) => Err((error, fd)),
        }
    }

    /// Allocates all pages of the data pipe's memory now, and not at the first access. Affects speed only.
    pub(crate) fn populate(&self) {
        self.mapping.populate(0, self.mapping.len());
    }

    /// Returns the shared word with the number of the CPU that the pipe's producer last ran on, plus 1; the word is 0
    /// while the CPU is unknown.
    pub(crate) fn producer_cpu(&self) -> &AtomicU32 {
        self.word32(PRODUCER_CPU)
    }

    /// Returns the shared word with the number of the CPU that the pipe's consumer last ran on, plus 1; the word is 0
    /// while the CPU is unknown.
    pub(crate) fn consumer_cpu(&self) -> &AtomicU32 {
        self.word32(CONSUMER_CPU)
    }

    /// Publishes the reason with which the pipe's producer aborts the stream.
    pub(crate) fn set_producer_reason(&self, reason: u32) {
        self.set_reason(PRODUCER_REASON, reason);
    }

    /// Returns the reason with which the pipe's producer has aborted the stream; `None` if it has not. A claim of the
    /// producer.
    pub(crate) fn producer_reason(&self) -> Option<u32> {
        self.reason(PRODUCER_REASON)
    }

    /// Publishes the reason with which the pipe's consumer aborts the stream.
    pub(crate) fn set_consumer_reason(&self, reason: u32) {
        self.set_reason(CONSUMER_REASON, reason);
    }

    /// Returns the reason with which the pipe's consumer has aborted the stream; `None` if it has not. A claim of the
    /// consumer.
    pub(crate) fn consumer_reason(&self) -> Option<u32> {
        self.reason(CONSUMER_REASON)
    }

    fn set_reason(&self, offset: usize, reason: u32) {
        self.word64(offset).store(HAS_REASON << 32 | u64::from(reason), Ordering::SeqCst);
    }

    fn reason(&self, offset: usize) -> Option<u32> {
        let claim = self.word64(offset).load(Ordering::SeqCst);
        // The cast drops the upper half.
        (claim >> 32 == HAS_REASON).then_some(claim as u32)
    }

    fn word32(&self, offset: usize) -> &AtomicU32 {
        accessed();
        debug_assert!(offset.is_multiple_of(4) && offset + 4 <= BUFFER);
        // SAFETY: the offset is a constant of the layout, aligned and inside the mapping, which is larger than `BUFFER`
        // and lives as long as `self`. Every process accesses the words before `BUFFER` atomically.
        unsafe { AtomicU32::from_ptr(self.mapping.base().add(offset).cast()) }
    }

    fn word64(&self, offset: usize) -> &AtomicU64 {
        accessed();
        debug_assert!(offset.is_multiple_of(8) && offset + 8 <= BUFFER);
        // SAFETY: the conditions in `word32` hold for 8 bytes as well.
        unsafe { AtomicU64::from_ptr(self.mapping.base().add(offset).cast()) }
    }

    /// Copies `bytes` into the data pipe's buffer, from the start of `span` on.
    ///
    /// # Panics
    /// If the span is shorter than `bytes`.
    pub(crate) fn write(&self, span: Span, bytes: &[u8]) {
        assert!(bytes.len() <= span.len);
        self.mapping.copy_in(BUFFER + span.at, bytes);
    }

    /// Fills `out` from the data pipe's buffer, from the start of `span` on, and returns `out` as initialised bytes.
    ///
    /// # Panics
    /// If the span is shorter than `out`.
    pub(crate) fn read<'o>(&self, span: Span, out: &'o mut [MaybeUninit<u8>]) -> &'o mut [u8] {
        assert!(out.len() <= span.len);
        self.mapping.copy_out(BUFFER + span.at, out)
    }

    /// Returns the address in this process of the first byte of `span`, a part of the data pipe's buffer. Panics if the
    /// span is not inside the buffer.
    pub(crate) fn at(&self, span: Span) -> *const u8 {
        let end = self.mapping.at(BUFFER + span.at + span.len);
        end.wrapping_sub(span.len)
    }

    /// Returns the bytes of `span`, a part of the data pipe's buffer, for writing in place. Panics if the span is not
    /// inside the buffer.
    ///
    /// # Safety
    /// Nothing else uses the span through this mapping while the slice lives.
    #[allow(clippy::mut_from_ref, reason = "the memory is not Rust's; who may write to it is the caller's promise")]
    pub(crate) unsafe fn uninit_mut(&self, span: Span) -> &mut [MaybeUninit<u8>] {
        // SAFETY: nothing else uses the span through this mapping while the slice lives, as the caller promises.
        unsafe { self.mapping.uninit_mut(BUFFER + span.at, span.len) }
    }

    /// Writes the bytes of `span`, a part of the data pipe's buffer, to the file `to` in one system call. Returns how
    /// many bytes the file has accepted, perhaps fewer than the span has. Fails with [`Error::WouldBlock`] if the file
    /// accepts none now.
    pub(crate) fn write_out(&self, span: Span, to: BorrowedFd<'_>) -> Result<usize, Error> {
        accessed();
        // SAFETY: `at` checked that the bytes are mapped and readable. To the kernel, bytes that change during the call
        // do no harm.
        unsafe { memory::write_from(to, self.at(span), span.len) }
    }
}

impl Words for PipeMemory {
    type Word32 = AtomicU32;
    type Word64 = AtomicU64;

    #[inline]
    fn written(&self) -> &AtomicU64 {
        self.word64(WRITTEN)
    }
    #[inline]
    fn finished(&self) -> &AtomicU32 {
        self.word32(FINISHED)
    }
    #[inline]
    fn taken(&self) -> &AtomicU64 {
        self.word64(TAKEN)
    }
    #[inline]
    fn done(&self) -> &AtomicU32 {
        self.word32(DONE)
    }
    #[inline]
    fn sleeping(&self) -> &AtomicU32 {
        self.word32(SLEEPING)
    }
    #[inline]
    fn waiting(&self) -> &AtomicU32 {
        self.word32(WAITING)
    }
}

impl AsFd for PipeMemory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_words_of_a_data_pipe() {
        let rows = [
            ("written", [WRITTEN, 8]),
            ("finished", [FINISHED, 4]),
            ("producer cpu", [PRODUCER_CPU, 4]),
            ("producer reason", [PRODUCER_REASON, 8]),
            ("taken", [TAKEN, 8]),
            ("done", [DONE, 4]),
            ("consumer cpu", [CONSUMER_CPU, 4]),
            ("consumer reason", [CONSUMER_REASON, 8]),
            ("sleeping", [SLEEPING, 4]),
            ("waiting", [WAITING, 4]),
            ("buffer", [BUFFER, 0]),
        ];
        assert_page_has("pipe", &rows.map(|(name, numbers)| (name, numbers.map(|number| number as u64))));
    }
}
