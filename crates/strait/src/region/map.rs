//! What is mapped of a region.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::error::Error;
use crate::quota::Charge;
use crate::shm::RegionMapping;

/// A mapping, and what keeps the sender of its memory charged.
pub(super) struct Mapped {
    mapping: RegionMapping,
    _charge: Option<Arc<Charge>>,
}

impl Mapped {
    pub(super) fn new(mapping: RegionMapping, charge: Option<Arc<Charge>>) -> Self {
        Self { mapping, _charge: charge }
    }
}

/// Memory of a region that others may write at the same time. Bytes are copied in and out; words can be shared.
///
/// What two processes write at once comes out mixed. A reader that must not see half of it needs a word to go by, or a
/// message.
pub struct RegionMap(pub(super) Mapped);

impl RegionMap {
    /// Bytes that are mapped.
    pub fn len(&self) -> usize {
        self.0.mapping.len()
    }

    /// Whether none are.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it was mapped for writing.
    pub fn is_writable(&self) -> bool {
        self.0.mapping.is_writable()
    }

    /// Copies bytes from `offset` on, in one pass.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if there are fewer.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        if self.0.mapping.copy_out(offset, out) { Ok(()) } else { Err(self.outside()) }
    }

    /// Copies bytes to `offset`, in one pass.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if they do not fit; [`Error::ReadOnly`] if this was mapped for reading.
    #[inline]
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        if self.0.mapping.copy_in(offset, bytes) {
            Ok(())
        } else {
            Err(if self.is_writable() { self.outside() } else { Error::ReadOnly })
        }
    }

    /// A word of four bytes; `None` if it is not inside, aligned, and writable. What is loaded is what anybody wrote there.
    ///
    /// A map gives out words of one size, that which is asked for first, and `None` for the other: Rust's memory model does not define
    /// atomic accesses of two sizes to the same bytes ([`std::sync::atomic`], *mixed-size accesses*). For words of both sizes, map
    /// the region, or the part that has them, once for each.
    pub fn word32(&self, offset: usize) -> Option<&AtomicU32> {
        self.0.mapping.word32(offset)
    }

    /// A word of eight bytes; `None` if it is not inside, aligned, and writable, or if this map gives out words of
    /// [four](Self::word32).
    pub fn word64(&self, offset: usize) -> Option<&AtomicU64> {
        self.0.mapping.word64(offset)
    }

    /// Where it is. Others may write there at any time: access it as if every byte were volatile, never through a reference.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.mapping.base()
    }

    fn outside(&self) -> Error {
        Error::OutOfRange { len: self.len() }
    }
}

impl fmt::Debug for RegionMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("RegionMap");
        f.field("len", &self.len()).field("is_writable", &self.is_writable()).finish()
    }
}

/// Memory of a sealed region, as bytes that never change, whoever made them.
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

/// Memory of a sealed region as private bytes of this process, copied page by page where they are written to.
pub struct RegionCopy(pub(super) Mapped);

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
