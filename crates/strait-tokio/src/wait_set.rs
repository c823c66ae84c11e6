//! A wait set whose waiting is a task's.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use strait::{Deadline, Event, WaitSet};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A [`WaitSet`] for tasks: for who serves many channels in one task by their keys, instead of having a task for each.
///
/// It has a descriptor of its own, which is the only one that tokio watches for it, and needs no [`Reactor`](crate::Reactor). Channels
/// are added to the [set](Self::get_ref) and removed as ever.
///
/// ```
/// use strait::{Channel, Interest, Mode, WaitSet};
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
    fd: AsyncFd<OwnedFd>,
}

impl AsyncWaitSet {
    /// Has tokio watch a set's descriptor.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    ///
    /// # Errors
    /// What tokio fails with.
    pub fn new(set: WaitSet) -> io::Result<Self> {
        // Of its own, so that tokio lets go of it whenever this is dropped.
        let fd = set.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives, and is not closed behind tokio's back: the
        // `AsyncFd` owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        Ok(Self { set, fd })
    }

    /// The set, to add to and to remove from.
    pub fn get_ref(&self) -> &WaitSet {
        &self.set
    }

    /// The set, without tokio.
    pub fn into_inner(self) -> WaitSet {
        self.set
    }

    /// Waits until a member is ready, and puts events of those that are into `events`, as [`WaitSet::wait`]. Returns how many; at
    /// least one.
    ///
    /// # Cancel safety
    /// A future that is dropped has told nothing that would be told only once; `events` is as it was, or empty.
    ///
    /// # Errors
    /// As [`WaitSet::wait`], and what tokio fails with when it ends.
    pub async fn wait(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        loop {
            let mut readable = self.fd.readable().await?;
            // A set that always has something lets others have their turn.
            tokio::task::coop::consume_budget().await;
            match self.set.wait(events, Deadline::NOW)? {
                0 if self.set.has_more() => {}
                // What comes after that makes it readable anew.
                0 => readable.clear_ready(),
                count => return Ok(count),
            }
        }
    }
}
