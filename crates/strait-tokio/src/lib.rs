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

mod io;

pub use io::{PipeReader, PipeWriter};
pub use strait::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer};

use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::task::JoinHandle;

/// A [`strait::Reactor`] that a task of a tokio runtime turns, as long as this lives.
///
/// Keep it as long as anything is waited for with it.
#[derive(Debug)]
pub struct Reactor {
    reactor: strait::Reactor,
    task: JoinHandle<()>,
}

impl Reactor {
    /// Makes one, and its task in the runtime that this is called in.
    ///
    /// # Panics
    /// Outside of a tokio runtime with I/O.
    ///
    /// # Errors
    /// As [`strait::Reactor::new`], and what tokio fails with.
    pub fn new() -> std::io::Result<Self> {
        let reactor = strait::Reactor::new()?;
        // Of its own, so that tokio lets go of it whenever the task ends.
        let fd = reactor.as_fd().try_clone_to_owned()?;
        // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives, and is not closed behind tokio's back: the
        // `AsyncFd` owns it.
        let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
        let task = tokio::spawn(drive(fd, reactor.clone()));
        Ok(Self { reactor, task })
    }
}

/// Turns the reactor whenever there is something.
async fn drive(fd: AsyncFd<OwnedFd>, reactor: strait::Reactor) {
    loop {
        let Ok(mut readable) = fd.readable().await else { return };
        // Until there is nothing; what comes after that makes it readable anew.
        while !matches!(reactor.turn(), Ok(0)) || reactor.has_more() {
            // Also where this process lacks something, which passes: others are to run until then.
            tokio::task::yield_now().await;
        }
        readable.clear_ready();
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
