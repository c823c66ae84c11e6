//! A wait set for which a task can wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use strait::Deadline;
use strait::wait::{Event, WaitSet};

use crate::fd::{self, Watched};

/// A [`WaitSet`] for tasks: a single task serves many channels by their keys.
///
/// The set has its own descriptor, which is all that tokio watches, and needs no [`Reactor`](crate::Reactor). Channels
/// are added to and removed from the [wait set](Self::get_ref) as usual.
///
/// ```
/// use strait::Channel;
/// use strait::wait::{Interest, Mode, WaitSet};
/// use strait_tokio::AsyncWaitSet;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let set = AsyncWaitSet::new(WaitSet::new()?)?;
/// let (theirs, ours) = Channel::pair()?;
/// set.get_ref().add(&ours, 7, Interest::Readable, Mode::Level)?;
/// theirs.send(b"hello")?;
/// let mut events = Vec::new();
/// set.wait(&mut events).await?;
/// assert_eq!((events[0].key(), ours.try_recv()?.bytes()), (7, b"hello".as_slice()));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct AsyncWaitSet {
    set: WaitSet,
    fd: Watched,
}

impl AsyncWaitSet {
    /// Makes a wait set for tasks of `set`; tokio watches the descriptor of `set` from now on.
    ///
    /// # Panics
    /// In a tokio runtime without I/O (`Builder::enable_io`).
    ///
    /// # Errors
    /// [`NoRuntime`](crate::NoRuntime) outside of a tokio runtime; the errors of tokio.
    #[track_caller]
    pub fn new(set: WaitSet) -> io::Result<Self> {
        let fd = fd::watch(&set)?;
        Ok(Self { set, fd })
    }

    /// Returns the wait set, to add channels to and to remove channels from.
    pub fn get_ref(&self) -> &WaitSet {
        &self.set
    }

    /// Returns the wait set, no longer watched by tokio.
    pub fn into_inner(self) -> WaitSet {
        self.set
    }

    /// Waits until a member is ready, and puts the events of ready members into `events`, like [`WaitSet::wait`].
    /// Returns the number of events; at least 1.
    ///
    /// # Cancel safety
    /// If the future is dropped, no event is lost, not even of a one-shot member; `events` is unchanged or empty.
    ///
    /// # Errors
    /// The errors of [`WaitSet::wait`], and of tokio when the runtime ends.
    pub async fn wait(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        loop {
            let mut readable = self.fd.readable().await?;
            // A task whose wait set always has events lets other tasks run.
            tokio::task::coop::consume_budget().await;
            match self.set.wait(events, Deadline::NOW)? {
                0 if self.set.has_more() => {}
                // A later event makes the descriptor readable again.
                0 => readable.clear_ready(),
                count => return Ok(count),
            }
        }
    }
}

impl AsFd for AsyncWaitSet {
    /// Returns the descriptor of the [wait set](WaitSet#the-descriptor).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}

impl AsRawFd for AsyncWaitSet {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
