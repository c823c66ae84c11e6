//! Handles: the descriptors and objects that a message carries besides bytes.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::channel::pipe_end::{DataConsumer, DataProducer};
use crate::channel::{Channel, End};
use crate::region::Region;

/// An object that travels in a message: a file descriptor, an end of a channel or of a data pipe, or a region.
///
/// For a file, the receiver gets a new descriptor for the same open file; `exec` closes that descriptor. An end of a
/// channel travels with all its unreceived messages; its other end notices nothing. Handles in a message that is never
/// received are closed.
///
/// Example: [an end that travels](crate#handles).
#[derive(Debug)]
#[non_exhaustive]
pub enum Handle {
    /// A file descriptor of any kind that the kernel can send.
    Fd(OwnedFd),
    /// An end of a channel.
    Channel(Channel),
    /// A region of shared memory. For a received region the library has checked that the size is fixed and equals the
    /// size named by the sender.
    Region(Region),
    /// The writing end of a data pipe.
    Producer(DataProducer),
    /// The reading end of a data pipe, with its unread bytes.
    Consumer(DataConsumer),
}

impl Handle {
    /// Returns the file descriptor; `None` for any other handle, which is dropped.
    pub fn into_fd(self) -> Option<OwnedFd> {
        match self {
            Self::Fd(fd) => Some(fd),
            _ => None,
        }
    }

    /// Returns the end of a channel; `None` for any other handle, which is dropped.
    pub fn into_channel(self) -> Option<Channel> {
        match self {
            Self::Channel(channel) => Some(channel),
            _ => None,
        }
    }

    /// Returns the region; `None` for any other handle, which is dropped.
    pub fn into_region(self) -> Option<Region> {
        match self {
            Self::Region(region) => Some(region),
            _ => None,
        }
    }

    /// Returns the writing end of a data pipe; `None` for any other handle, which is dropped.
    pub fn into_producer(self) -> Option<DataProducer> {
        match self {
            Self::Producer(producer) => Some(producer),
            _ => None,
        }
    }

    /// Returns the reading end of a data pipe; `None` for any other handle, which is dropped.
    pub fn into_consumer(self) -> Option<DataConsumer> {
        match self {
            Self::Consumer(consumer) => Some(consumer),
            _ => None,
        }
    }

    /// Returns the channel of a channel end or a data-pipe end (which contains a channel end). `None` for file
    /// descriptors and regions.
    pub(crate) fn channel(&self) -> Option<&Channel> {
        match self {
            Self::Channel(channel) => Some(channel),
            Self::Producer(producer) => Some(producer.channel()),
            Self::Consumer(consumer) => Some(consumer.channel()),
            Self::Fd(_) | Self::Region(_) => None,
        }
    }

    /// Takes the channel end out of a handle that is a channel end or a data-pipe end, for the caller to close. A
    /// data-pipe end first publishes that its stream has ended (producer), or that nothing more will be read
    /// (consumer). `None` for file descriptors, regions, and ends that were sent or closed already.
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
        // Marks the end as sent, so that dropping the handle does not close it.
        end.set_sent();
        Some(end)
    }

    /// Returns whether the handle is nothing but a descriptor (a file descriptor or a region), which is closed when the
    /// handle is dropped.
    pub(crate) fn has_own_descriptor(&self) -> bool {
        matches!(self, Self::Fd(_) | Self::Region(_))
    }

    /// Returns whether the handle travels as a bare file descriptor, without an entry in a handle table.
    pub(crate) fn is_plain(&self) -> bool {
        matches!(self, Self::Fd(_))
    }

    /// Returns the channel end of the handle: the handle itself, or the channel end inside a data-pipe end. `None` for
    /// file descriptors and regions.
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

/// Returns the descriptors of handles that travel as bare descriptors. Allocates nothing if there are no handles.
#[inline]
pub(crate) fn descriptors(handles: &[Handle]) -> Vec<BorrowedFd<'_>> {
    if handles.is_empty() { Vec::new() } else { handles.iter().filter_map(Handle::as_descriptor).collect() }
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
