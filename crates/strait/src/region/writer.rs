//! Writers: memory that its owner fills, and that becomes a sealed region without a copy.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::region_error::Attempt;
use super::{Region, RegionCopy, RegionError, RegionOptions};
use crate::error::Error;
use crate::os::region::How;
use crate::shm::RegionMapping;

/// Memory that only this process has, to be filled as ordinary bytes and then [sealed](Self::seal) in place.
///
/// Sealing copies nothing, and this process keeps the memory at its address, as a private copy to read and write. Other
/// processes see the sealed bytes.
///
/// ```
/// use strait::{Channel, Outgoing};
/// use strait::region::RegionWriter;
/// let (a, b) = Channel::pair()?; // One of them may be in another process.
/// let mut frame = RegionWriter::new(1 << 20)?;
/// frame[..6].copy_from_slice(b"pixels");
/// let (region, mut kept) = frame.seal().map_err(|(error, _frame)| error)?;
/// a.send(Outgoing::new(b"a frame").handle(region))?;
/// kept[..6].copy_from_slice(b"mine.."); // This changes the private copy only.
///
/// let region = b.recv()?.take_handles()?.remove(0).into_region().expect("a region was sent");
/// assert_eq!(region.view(..)?[..6], *b"pixels");
/// # Ok::<(), strait::Error>(())
/// ```
///
/// In a child of `fork` the memory is not there; [`copy_in_child`](Self::copy_in_child) makes a copy of it.
pub struct RegionWriter {
    region: Region,
    mapping: RegionMapping,
}

impl RegionWriter {
    /// Creates memory of `len` bytes, all of them 0. [`RegionOptions::writer`] can set more.
    ///
    /// # Errors
    /// The errors of [`RegionOptions::create`].
    pub fn new(len: usize) -> Result<Self, RegionError> {
        RegionOptions::new().writer(len)
    }

    /// Makes a writer over `region`, which must be new and have no other handle.
    pub(super) fn over(region: Region) -> Result<Self, Error> {
        // SAFETY: the caller made the region just now: its size is sealed, and no other process has or maps the region.
        let mapping = unsafe { RegionMapping::new(region.fd(), 0, region.len(), How::Own) }?;
        if region.memory.huge_pages {
            mapping.prefer_huge_pages();
        }
        Ok(Self { region, mapping })
    }

    /// Checks that this process has the memory (a forked child does not).
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of `fork`.
    #[doc(hidden)]
    pub fn check_fork(&self) -> Result<(), Error> {
        self.mapping.check_fork()
    }

    /// Seals the memory: returns a region that no process can ever change, and a private copy of this process at the
    /// same address. No byte is copied. The kernel copies a page of the private copy when this process first writes to
    /// the page.
    ///
    /// The kernel takes the memory out of this process's page tables, and maps it again page by page at the first use:
    /// the call takes some 0.1 ms for 1 MiB and 80 ms for 256 MiB. No other thread may write to the memory, through a
    /// raw pointer, during the call: such bytes may be lost.
    ///
    /// # Errors
    /// The writer is returned with the error. [`Error::StillMapped`] if a child that another thread forked while the
    /// memory was made still has the memory after 100 ms; [`Error::Forked`] in a child of `fork`; [`Error::NoMemory`];
    /// [`Error::System`]. If the kernel runs out of memory for its own tables halfway, the returned writer has no bytes
    /// any more.
    pub fn seal(mut self) -> Result<(Region, RegionCopy), (RegionError, Self)> {
        let region = self.region.clone();
        let sealed = self.mapping.seal_in_place(region.fd(), || region.seal_memory());
        match sealed {
            Ok(()) => Ok((region, RegionCopy::over(self.mapping))),
            Err(error) => Err((RegionError::of(&region, Attempt::Seal, error), self)),
        }
    }

    /// In a child of `fork`, which does not have the memory: makes private memory with a copy of the bytes, at the
    /// address of the memory in the parent. So addresses that the child knows from the parent stay valid. Call this
    /// function first in the child, before other memory is mapped.
    ///
    /// The copy has the bytes of the moment of the call. If the parent writes meanwhile, the copy may have some of the
    /// new bytes. The call reads all bytes. A piece of 64 KiB takes no memory if all its bytes are 0.
    ///
    /// # Errors
    /// The writer is returned with the error: [`Error::System`] naming `mmap(MAP_FIXED_NOREPLACE)` if something is
    /// mapped at the address, as the memory itself is in the process that made it, unless it has no bytes;
    /// [`Error::NoMemory`].
    pub fn copy_in_child(mut self) -> Result<RegionCopy, (RegionError, Self)> {
        match self.mapping.copy_in_child(self.region.fd()) {
            Ok(()) => Ok(RegionCopy::over(self.mapping)),
            Err(error) => {
                let region = self.region.clone();
                Err((RegionError::of(&region, Attempt::Map, error), self))
            }
        }
    }
}

/// # Panics
/// In a child of `fork`, which does not have the memory.
impl Deref for RegionWriter {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.mapping.bytes()
    }
}

/// # Panics
/// In a child of `fork`, which does not have the memory.
impl DerefMut for RegionWriter {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.mapping.bytes_mut()
    }
}

impl AsRef<[u8]> for RegionWriter {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for RegionWriter {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for RegionWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegionWriter").field("len", &self.mapping.len()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a writer that cannot be sealed is what it was, and can be sealed later.
    #[test]
    fn a_writer_that_is_mapped_elsewhere_is_given_back() {
        let mut writer = RegionWriter::new(10_000).unwrap();
        writer.fill(7);
        let address = writer.as_ptr();
        let other = writer.region.map_writable(..).unwrap();
        let (error, mut writer) = writer.seal().unwrap_err();
        assert_eq!(error.error, Error::StillMapped);
        assert_eq!((writer.as_ptr(), writer.len()), (address, 10_000));
        // The memory is shared again, not a private copy.
        writer[5] = 8;
        let mut seen = [0; 2];
        other.read_at(&mut seen, 4).unwrap();
        assert_eq!(seen, [7, 8]);
        drop(other);
        let (region, copy) = writer.seal().map_err(|(error, _)| error).unwrap();
        assert_eq!((copy.as_ptr(), copy[5], region.view(5..6).unwrap()[0]), (address, 8, 8));
    }
}
