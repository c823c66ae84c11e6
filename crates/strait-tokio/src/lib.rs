//! Strait in tokio: channels, data pipes and calls whose waiting is tokio's.
//!
//! The futures are those of the crate `strait`, which know nothing of tokio: [`AsyncChannel`], [`AsyncProducer`], [`AsyncConsumer`]
//! and [`AsyncCallEnd`]. What they need is that somebody turns their [`strait::Reactor`] whenever its descriptor is readable; a
//! [`Reactor`] of this crate has a task of the runtime do that. There is no thread but the runtime's, and however many channels there
//! are, tokio watches one descriptor.
//!
//! ```
//! use std::time::Duration;
//! use strait::Channel;
//! use strait_tokio::{AsyncChannel, Reactor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let reactor = Reactor::new()?;
//! let (a, b) = Channel::pair()?; // One of them may be in another process.
//! let (a, b) = (AsyncChannel::new(a, &reactor)?, AsyncChannel::new(b, &reactor)?);
//! let echo = tokio::spawn(async move {
//!     let message = b.recv().await?;
//!     b.send(message.bytes()).await.map_err(strait::Error::from)
//! });
//! a.send(b"hello").await?;
//! tokio::select! {
//!     answer = a.recv() => assert_eq!(answer?.bytes(), b"hello"),
//!     () = tokio::time::sleep(Duration::from_secs(10)) => panic!("no answer"),
//! }
//! echo.await??;
//! # Ok(())
//! # }
//! ```
//!
//! All futures are safe to cancel, as their own documentation says, and so can stand in a `select!`.

mod drive;
mod io;
mod wait_set;

pub use io::{PipeReader, PipeWriter};
pub use wait_set::AsyncWaitSet;

pub use strait::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer};

use std::ops::Deref;
use std::os::fd::AsFd;
use std::time::Duration;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// A [`strait::Reactor`] that a task of a tokio runtime drives, as long as this lives.
///
/// Keep it as long as anything is waited for with it.
#[derive(Debug)]
pub struct Reactor {
    reactor: strait::Reactor,
    task: JoinHandle<()>,
}

impl Reactor {
    /// How long its task goes on looking after there was something, unless told otherwise.
    pub const SPIN: Duration = Duration::from_micros(50);

    /// Makes one, and its task in the runtime that this is called in.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    ///
    /// # Errors
    /// As [`strait::Reactor::new`], and what tokio fails with.
    pub fn new() -> std::io::Result<Self> {
        Self::with_spin(Self::SPIN)
    }

    /// The same with another time for which its task goes on looking, between other tasks, after there was something: what comes
    /// within it needs no waking, on either side. With no time at all the runtime sleeps at once, at the least cost of processor
    /// time. It finds out by itself whether looking pays, and seldom does it where it does not.
    ///
    /// # Panics
    /// As [`Reactor::new`].
    ///
    /// # Errors
    /// As [`Reactor::new`].
    pub fn with_spin(spin: Duration) -> std::io::Result<Self> {
        let reactor = strait::Reactor::new()?;
        // Of its own, so that tokio lets go of it whenever the task ends.
        let fd = reactor.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives, and is not closed behind tokio's back: the
        // `AsyncFd` owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        let task = tokio::spawn(drive::drive(fd, reactor.clone(), spin));
        Ok(Self { reactor, task })
    }
}

impl Deref for Reactor {
    type Target = strait::Reactor;

    fn deref(&self) -> &strait::Reactor {
        &self.reactor
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        self.task.abort();
    }
}
