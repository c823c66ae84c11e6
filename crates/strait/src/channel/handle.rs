//! What a message carries besides bytes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::channel::{Channel, End};
use crate::pipe::{DataConsumer, DataProducer};
use crate::region::Region;

/// Something that travels in a message: a file descriptor, an end of a channel or of a data pipe, or a region.
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
    /// Shared memory. One that came from a peer was found to be what it is said to be.
    Region(Region),
    /// The writing end of a data pipe.
    Producer(DataProducer),
    /// The reading end of a data pipe, with what is unread.
    Consumer(DataConsumer),
}

impl Handle {
    /// The file descriptor, if it is one.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Fd(fd) => Some(fd),
            _ => None,
        }
    }

    /// The end of a channel, if it is one.
    pub fn into_channel(self) -> Option<Channel> {
        match self {
            Self::Channel(channel) => Some(channel),
            _ => None,
        }
    }

    /// The region, if it is one.
    pub fn into_region(self) -> Option<Region> {
        match self {
            Self::Region(region) => Some(region),
            _ => None,
        }
    }

    /// The writing end of a data pipe, if it is one.
    pub fn into_producer(self) -> Option<DataProducer> {
        match self {
            Self::Producer(producer) => Some(producer),
            _ => None,
        }
    }

    /// The reading end of a data pipe, if it is one.
    pub fn into_consumer(self) -> Option<DataConsumer> {
        match self {
            Self::Consumer(consumer) => Some(consumer),
            _ => None,
        }
    }

    /// The end of a channel that it is, or has.
    pub(crate) fn channel(&self) -> Option<&Channel> {
        match self {
            Self::Channel(channel) => Some(channel),
            Self::Producer(producer) => Some(producer.channel()),
            Self::Consumer(consumer) => Some(consumer.channel()),
            Self::Fd(_) | Self::Region(_) => None,
        }
    }

    /// The end of a channel that it is, or has, to be closed by the caller; as an end of a pipe it is at its end.
    pub(crate) fn into_end(self) -> Option<Arc<End>> {
        let end = self.channel()?.end.clone();
        if end.was_sent() {
            return None;
        }
        match &self {
            Self::Producer(producer) => producer.end_words(),
            Self::Consumer(consumer) => consumer.end_words(),
            _ => {}
        }
        // So that it is not closed when it is dropped.
        end.set_sent();
        Some(end)
    }

    /// Whether it is nothing but a descriptor, which is closed with it.
    pub(crate) fn has_own_descriptor(&self) -> bool {
        matches!(self, Self::Fd(_) | Self::Region(_))
    }

    /// Whether it travels as a bare descriptor, of which nothing has to be said.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Fd(_))
    }

    /// The end of a channel that it is, or has.
    pub(crate) fn as_end(&self) -> Option<&Arc<End>> {
        self.channel().map(Channel::end)
    }

    pub(crate) fn as_descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Fd(fd) => Some(fd.as_fd()),
            Self::Region(region) => Some(region.as_fd()),
            Self::Channel(_) | Self::Producer(_) | Self::Consumer(_) => None,
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

impl From<Region> for Handle {
    fn from(region: Region) -> Self {
        Self::Region(region)
    }
}

impl From<DataProducer> for Handle {
    fn from(producer: DataProducer) -> Self {
        Self::Producer(producer)
    }
}

impl From<DataConsumer> for Handle {
    fn from(consumer: DataConsumer) -> Self {
        Self::Consumer(consumer)
    }
}
