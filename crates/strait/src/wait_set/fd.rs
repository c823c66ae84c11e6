//! Descriptors of the program as members of a wait set.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use crate::error::Error;
use crate::os::region;
use crate::wake::watched_fd::WatchedFd;

/// A descriptor of the program that a [wait set](crate::wait::WaitSet) can hold beside channels: a socket, a pipe, a
/// timer, an eventfd, another event loop.
///
/// The value owns its descriptor, so the descriptor stays open as long as a wait set watches it. Dropping the value
/// first takes the descriptor out of its wait set. [`Fd::new`] takes the program's descriptor. [`Fd::duplicate`] makes
/// another descriptor of the same file; the program keeps the original. A regular file is always ready.
///
/// The kernel asks the file whether it is ready, in [`WaitSet::add`](crate::wait::WaitSet::add) and in each wait of the
/// set. A file can make the kernel wait for another process, for any time: an epoll instance that another process uses
/// too, or a file of a file system in user space (FUSE). So if a descriptor came from a process that the program does
/// not trust, watch the descriptor only if its kind is known to be harmless, and not in a set with other members.
///
/// ```
/// use std::io::{Read, Write};
/// use std::os::unix::net::UnixStream;
/// use strait::wait::{Fd, Interest, Mode, WaitSet};
/// use strait::{Channel, Deadline};
///
/// let set = WaitSet::new()?;
/// let (_theirs, ours) = Channel::pair()?;
/// set.add(&ours, 1, Interest::Readable, Mode::Level)?;
/// let (mut far, mut near) = UnixStream::pair().expect("a pair of sockets");
/// let watched = Fd::duplicate(&near)?;
/// set.add(&watched, 2, Interest::Readable, Mode::Level)?;
/// far.write_all(b"hello").expect("room");
/// let mut events = Vec::new();
/// set.wait(&mut events, Deadline::NEVER)?;
/// assert_eq!(events[0].key(), 2);
/// let mut bytes = [0; 5];
/// near.read_exact(&mut bytes).expect("five bytes");
/// assert_eq!(set.wait(&mut events, Deadline::NOW)?, 0);
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// One descriptor. Each look by its wait set costs a system call, and a second system call if the descriptor is not
/// ready.
pub struct Fd {
    pub(super) watched: Arc<WatchedFd>,
}

impl fmt::Debug for Fd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Fd").field(&self.as_raw_fd()).finish()
    }
}

impl Fd {
    /// Takes a descriptor of the program, so that a wait set can hold it. Makes no system call, except for the first
    /// object of the process.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::System`]: for the page that distinguishes this process from its forked children.
    pub fn new(fd: impl Into<OwnedFd>) -> Result<Self, Error> {
        Ok(Self { watched: WatchedFd::new(fd.into())? })
    }

    /// Duplicates the descriptor `fd` for a wait set. The program may go on using `fd`, or close `fd`.
    ///
    /// # Errors
    /// [`Error::NoDescriptors`]; otherwise as [`Fd::new`].
    pub fn duplicate(fd: &impl AsFd) -> Result<Self, Error> {
        Self::new(region::duplicate(fd.as_fd())?)
    }
}

impl Drop for Fd {
    /// Takes the descriptor out of its wait set. Closes the descriptor: at once, or when a wait that looks at the
    /// descriptor is done.
    fn drop(&mut self) {
        self.watched.leave();
    }
}

impl AsFd for Fd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }
}

impl AsRawFd for Fd {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
