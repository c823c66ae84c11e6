//! What a message carries besides bytes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Something that travels in a message: today a file descriptor.
///
/// The receiver gets a descriptor of its own for the same open file, closed on `exec`. If the message is never
/// received it is closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Handle {
    /// A file descriptor, for anything the kernel knows.
    Fd(OwnedFd),
}

impl Handle {
    /// The file descriptor, if it is one.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Fd(fd) => Some(fd),
        }
    }

    pub(crate) fn as_descriptor(&self) -> BorrowedFd<'_> {
        match self {
            Self::Fd(fd) => fd.as_fd(),
        }
    }
}

impl From<OwnedFd> for Handle {
    fn from(fd: OwnedFd) -> Self {
        Self::Fd(fd)
    }
}

impl From<File> for Handle {
    fn from(file: File) -> Self {
        Self::Fd(file.into())
    }
}
