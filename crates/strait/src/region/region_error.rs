//! The error of regions.

use std::fmt;
use std::ops::Range;
use std::os::fd::RawFd;

use super::Region;
use crate::error::Error;

/// The error of a call that makes, maps, reads, writes or seals a [`Region`]: the reason, the size of the region, and
/// the bytes of the call. The text names them, and the next step.
///
/// `?` turns a `RegionError` into an [`Error`], which keeps the reason alone.
///
/// ```
/// use strait::Error;
/// use strait::region::Region;
///
/// let region = Region::sealed(b"never changes")?;
/// let failed = region.map_writable(4..10).unwrap_err();
/// assert_eq!((failed.error, failed.size, failed.range.clone()), (Error::ReadOnly, Some(13), Some(4..10)));
/// let text = failed.to_string();
/// assert!(text.starts_with("mapping bytes 4..10 of a region of 13 bytes for writing: the region is sealed"));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RegionError {
    /// The reason why the call failed.
    pub error: Error,
    /// The number of bytes of the region, or of the mapping for a call of a [`RegionMap`](super::RegionMap); for a call
    /// that makes a region, the requested number. `None` for [`Region::from_fd`].
    pub size: Option<usize>,
    /// The bytes that the call was to map, read or write; `None` for a call about the whole region. A range whose end
    /// is `usize::MAX` may have been longer.
    pub range: Option<Range<usize>>,
    attempt: Attempt,
}

/// The action that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Make,
    FromFd(RawFd),
    Duplicate,
    Inspect,
    Seal,
    AdmitNoWriter,
    Reader,
    Map,
    MapWritable {
        /// Whether the region was sealed when the mapping was refused.
        sealed: bool,
    },
    Read,
    Write {
        /// Whether the region was sealed when the write was refused.
        sealed: bool,
    },
    ReadMapping,
    WriteMapping,
}

impl RegionError {
    pub(super) fn new(attempt: Attempt, error: Error) -> Self {
        Self { error, size: None, range: None, attempt }
    }

    /// Returns the error of an attempt to make a region of `size` bytes.
    pub(super) fn making(size: usize, error: Error) -> Self {
        Self { size: Some(size), ..Self::new(Attempt::Make, error) }
    }

    /// Returns the error of an attempt with the whole of `region`.
    pub(super) fn of(region: &Region, attempt: Attempt, error: Error) -> Self {
        Self { size: Some(region.len()), ..Self::new(attempt, error) }
    }

    /// Returns the error of an attempt with `range` of a region or mapping of `size` bytes.
    #[cold]
    pub(super) fn within(size: usize, range: Range<usize>, attempt: Attempt, error: Error) -> Self {
        Self { size: Some(size), range: Some(range), ..Self::new(attempt, error) }
    }

    /// Returns what the call was doing, and with which bytes: the first part of the error's text.
    pub fn doing(&self) -> String {
        let size = self.size.unwrap_or_default();
        let range = self.range.as_ref().map_or_else(String::new, |range| format!("{range:?}"));
        match self.attempt {
            Attempt::Make => format!("making a region of {size} bytes"),
            Attempt::FromFd(fd) => format!("making a region from descriptor {fd}"),
            Attempt::Duplicate => format!("making a descriptor for a region of {size} bytes"),
            Attempt::Inspect => format!("looking whether a region of {size} bytes is sealed"),
            Attempt::Seal => format!("sealing a region of {size} bytes"),
            Attempt::AdmitNoWriter => format!("refusing new writers of a region of {size} bytes"),
            Attempt::Reader => format!("making a read-only handle for a region of {size} bytes"),
            Attempt::Map => format!("mapping bytes {range} of a region of {size} bytes"),
            Attempt::MapWritable { .. } => format!("mapping bytes {range} of a region of {size} bytes for writing"),
            Attempt::Read => format!("reading bytes {range} of a region of {size} bytes"),
            Attempt::Write { .. } => format!("writing bytes {range} of a region of {size} bytes"),
            Attempt::ReadMapping => format!("reading bytes {range} of a mapping of {size} bytes"),
            Attempt::WriteMapping => format!("writing bytes {range} of a mapping of {size} bytes"),
        }
    }

    /// Returns the text for an attempt that another process with the memory holds up.
    fn would_block(&self) -> &'static str {
        match self.attempt {
            Attempt::Seal | Attempt::AdmitNoWriter | Attempt::FromFd(_) => {
                "another process is writing to the memory and does not finish: the memory is sealed when that write \
                 ends; try again, or copy the bytes to a new region and seal that"
            }
            _ => "another process is sealing the region: try again, as that may fail, or read the region",
        }
    }

    /// Returns the text for a region, a handle or a mapping that does not permit the attempt.
    fn read_only(&self) -> &'static str {
        match self.attempt {
            Attempt::MapWritable { sealed: true } | Attempt::Write { sealed: true } => {
                "the region is sealed and never changes again: map a private copy of it, or copy its bytes to a new \
                 region, and write there"
            }
            Attempt::Seal | Attempt::AdmitNoWriter => {
                "this handle permits reading only, and a handle that permits writing is needed to seal: have the \
                 process that made the region seal it"
            }
            Attempt::WriteMapping => {
                "the region was mapped for reading: map it by Region::map_writable, and write there"
            }
            _ => {
                "this handle permits reading only: use a writable handle, unless the region admits no writer any more, \
                 or copy the bytes to a new region and write there"
            }
        }
    }
}

impl fmt::Display for RegionError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.doing())?;
        match self.error {
            Error::OutOfRange { len } => write!(f, "out of range: give an offset and a length within its {len} bytes"),
            Error::ReadOnly => f.write_str(self.read_only()),
            Error::WouldBlock => f.write_str(self.would_block()),
            error => error.fmt(f),
        }
    }
}

impl std::error::Error for RegionError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<RegionError> for Error {
    /// Returns the reason, without the region.
    fn from(failed: RegionError) -> Self {
        failed.error
    }
}

impl From<RegionError> for std::io::Error {
    fn from(failed: RegionError) -> Self {
        Self::new(Self::from(failed.error).kind(), failed)
    }
}
