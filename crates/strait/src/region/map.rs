//! Mappings of a region.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use super::RegionError;
use super::region_error::Attempt;
use crate::error::Error;
use crate::quota::Charge;
use crate::shm::RegionMapping;

/// A mapping of a region in this process, with the charge against the peer that sent the region; the charge is `None`
/// if no peer is charged.
pub(super) struct Mapped {
    mapping: RegionMapping,
    _charge: Option<Arc<Charge>>,
}

impl Mapped {
    pub(super) fn new(mapping: RegionMapping, charge: Option<Arc<Charge>>) -> Self {
        Self { mapping, _charge: charge }
    }
}

/// A mapping of a region that other processes may write at the same time. Bytes are copied in and out; words can be
/// shared.
///
/// If two processes write to the same bytes at once, the result is a mixture. A process that must not read half-written
/// data needs a shared word, or a message, to know when the data is complete.
///
/// Example: [a region](crate::region).
pub struct RegionMap(pub(super) Mapped);

impl RegionMap {
    /// Returns the number of mapped bytes.
    pub fn len(&self) -> usize {
        self.0.mapping.len()
    }

    /// Returns whether no bytes are mapped.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether the region was mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.0.mapping.is_writable()
    }

    /// Fills `out` with the bytes of the mapping from byte `offset` on, in one pass: each byte is read once.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the mapping has fewer bytes there.
    #[inline]
    pub fn read_at(&self, out: &mut [u8], offset: usize) -> Result<(), RegionError> {
        if self.0.mapping.copy_out(offset, out) {
            Ok(())
        } else {
            Err(self.not_permitted(offset, out.len(), Attempt::ReadMapping))
        }
    }

    /// Copies `bytes` into the mapping, from byte `offset` on, in one pass.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if the bytes do not fit; [`Error::ReadOnly`] if the region was mapped for reading.
    #[inline]
    pub fn write_at(&self, bytes: &[u8], offset: usize) -> Result<(), RegionError> {
        if self.0.mapping.copy_in(offset, bytes) {
            Ok(())
        } else {
            Err(self.not_permitted(offset, bytes.len(), Attempt::WriteMapping))
        }
    }

    /// Returns the word of four bytes at byte `offset` of the mapping; `None` if the word is not inside the mapping,
    /// not aligned or not writable. Any process that can write to the region may have written the value that you load.
    ///
    /// One mapping returns words of one size only, the size of its first word; for the other size it returns `None`.
    /// Rust's memory model does not define atomic accesses of two sizes to the same bytes ([`std::sync::atomic`],
    /// *mixed-size accesses*). To use words of both sizes, map the region (or the range with the words) once for each
    /// size.
    pub fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        self.0.mapping.word32(offset)
    }

    /// Returns the word of eight bytes at byte `offset` of the mapping; `None` if the word is not inside the mapping,
    /// not aligned or not writable. Also returns `None` if the mapping has returned a word of [four
    /// bytes](Self::word32) before.
    pub fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        self.0.mapping.word64(offset)
    }

    /// Returns the address in this process of the first mapped byte. Other processes may write to the mapped bytes at
    /// any time: access the memory as if every byte were volatile, and never through a reference.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.mapping.base()
    }

    /// Returns the error of a copy that the mapping does not permit.
    #[cold]
    fn not_permitted(&self, offset: usize, len: usize, attempt: Attempt) -> RegionError {
        let forbidden = attempt == Attempt::WriteMapping && !self.is_writable();
        let error = if forbidden { Error::ReadOnly } else { Error::OutOfRange { len: self.len() } };
        RegionError::within(self.len(), offset..offset.saturating_add(len), attempt, error)
    }
}

impl fmt::Debug for RegionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("RegionMap");
        f.field("len", &self.len()).field("is_writable", &self.is_writable()).finish()
    }
}

/// A mapping of a sealed region. Its bytes never change, even if an untrusted process made the region.
///
/// Example: [a region](crate::region::Region).
pub struct RegionView(pub(super) Mapped);

impl Deref for RegionView {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.mapping.bytes()
    }
}

impl AsRef<[u8]> for RegionView {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RegionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionView").field("len", &self.len()).finish()
    }
}

/// A private, writable copy of a sealed region. The kernel copies each page when this process first writes to it.
///
/// Example: [a private copy](crate::region::Region::copy_on_write).
pub struct RegionCopy(pub(super) Mapped);

impl RegionCopy {
    /// Returns `mapping`, which this process made as a private copy of its own memory, as a `RegionCopy`.
    pub(crate) fn over(mapping: RegionMapping) -> Self {
        Self(Mapped::new(mapping, None))
    }
}

impl Deref for RegionCopy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.mapping.bytes()
    }
}

impl DerefMut for RegionCopy {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.mapping.bytes_mut()
    }
}

impl AsRef<[u8]> for RegionCopy {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl fmt::Debug for RegionCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionCopy").field("len", &self.len()).finish()
    }
}
