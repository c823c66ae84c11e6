//! What a message carries besides bytes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::channel::Channel;

/// Something that travels in a message: a file descriptor, or an end of a channel.
///
/// The receiver gets a descriptor of its own for the same open file, closed on `exec`. An end of a channel goes with all
/// that was not received from it yet; its other end notices nothing. What is in a message that is never received is
/// closed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Handle {
    /// A file descriptor, for anything the kernel knows.
    Fd(OwnedFd),
    /// An end of a channel.
    Channel(Channel),
}

impl Handle {
    /// The file descriptor, if it is one.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Fd(fd) => Some(fd),
            Self::Channel(_) => None,
        }
    }

    /// The end of a channel, if it is one.
    pub fn into_channel(self) -> Option<Channel> {
        match self {
            Self::Channel(channel) => Some(channel),
            Self::Fd(_) => None,
        }
    }

    pub(crate) fn as_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Fd(fd) => Some(fd.as_fd()),
            Self::Channel(_) => None,
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

impl From<Channel> for Handle {
    fn from(channel: Channel) -> Self {
        Self::Channel(channel)
    }
}
