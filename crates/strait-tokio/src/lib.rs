//! Strait in tokio: channels, data pipes and calls for which tasks of tokio can wait.
//!
//! The types [`AsyncChannel`], [`AsyncProducer`], [`AsyncConsumer`] and [`AsyncCallEnd`] come from the crate `strait`,
//! and are independent of the runtime. The [`strait::task::Reactor`] of the objects must be run whenever its descriptor
//! is readable; a [`Reactor`] of this crate does so in a task of the runtime. There are no threads except the
//! runtime's, and tokio watches one descriptor for any number of channels.
//!
//! ```
//! use std::time::Duration;
//! use strait::Channel;
//! use strait_tokio::{AsyncChannel, Reactor};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let reactor = Reactor::new()?;
//! let (a, b) = Channel::pair()?; // One of the ends may be in another process.
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
//! A `select!` can contain the futures: a future that is dropped has lost nothing, as documented for each. The
//! exception is [`AsyncProducer::write_all`], which may have written a part of the bytes.
//!
//! The futures take no deadline, since `tokio::time::timeout` drops a future at its time. Only connecting takes a
//! deadline, since its thread waits on without the future. [`Stream::open`] has its options as an argument, since
//! [`PipeOptions`](strait::pipe::PipeOptions) belongs to the crate `strait`, which knows no streams.

mod connect;
mod drive;
mod fd;
mod framed;
mod io;
mod listener;
mod stream;
#[cfg(feature = "tonic014")]
mod tonic;
mod wait_set;

pub use connect::{connect, connect_channel};
pub use fd::NoRuntime;
pub use framed::Framed;
pub use io::{PipeReader, PipeWriter};
pub use listener::Listener;
pub use stream::Stream;
#[cfg(feature = "tonic014")]
pub use tonic::ConnectInfo;
pub use wait_set::AsyncWaitSet;

pub use strait::task::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, AsyncReceiver, AsyncSender};

use std::ops::Deref;
use std::time::Duration;

use tokio::task::JoinHandle;

/// A [`strait::task::Reactor`] that a task of a tokio runtime drives until this object is dropped.
///
/// Keep the object, and the runtime in which it was made, as long as a task waits for an object of the reactor. When
/// the object is dropped or the runtime ends, the reactor [ends](strait::task::Reactor::end): tasks that wait for
/// objects of the reactor, in any runtime, get [`strait::Error::ReactorEnded`]. The objects lose nothing, and can be
/// [taken out](AsyncChannel::into_inner) and put into another reactor.
///
/// ```
/// use strait::{Channel, Error};
/// use strait_tokio::{AsyncChannel, Reactor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let (a, b) = Channel::pair()?;
/// let reactor = Reactor::new()?;
/// let b = AsyncChannel::new(b, &reactor)?;
/// drop(reactor);
/// assert_eq!(b.recv().await.unwrap_err(), Error::ReactorEnded);
/// let reactor = Reactor::new()?;
/// let b = AsyncChannel::new(b.into_inner(), &reactor)?;
/// a.send(b"hello")?;
/// assert_eq!(b.recv().await?.bytes(), b"hello");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Reactor {
    reactor: strait::task::Reactor,
    /// The task that drives the reactor; `None` only while this value is dropped.
    task: Option<JoinHandle<()>>,
    /// The process in which the reactor was made.
    process: u32,
}

impl Reactor {
    /// The time for which the driving task polls after an event before the runtime may sleep, if `STRAIT_SPIN` is not
    /// set in the environment: 50 µs.
    ///
    /// Example: [a reactor](Self).
    pub const SPIN: Duration = Duration::from_micros(50);

    /// Makes a reactor, and a task that drives it, in the current tokio runtime. The task polls for
    /// [`strait::Options::default_spin`] after an event, before the runtime may sleep.
    ///
    /// # Panics
    /// In a tokio runtime without I/O (`Builder::enable_io`).
    ///
    /// # Errors
    /// [`NoRuntime`] outside of a tokio runtime; the errors of [`strait::task::Reactor::new`] and of tokio.
    #[track_caller]
    pub fn new() -> std::io::Result<Self> {
        Self::with_spin(strait::Options::default_spin())
    }

    /// Makes a reactor whose driving task polls for the time `spin` after an event, between other tasks. An event
    /// within this time needs no wake-up on either side.
    ///
    /// With [`Duration::ZERO`] the runtime sleeps at once, which costs the least processor time. The task notices
    /// whether polling pays, and polls only seldom if it does not.
    ///
    /// # Panics
    /// As [`Reactor::new`].
    ///
    /// # Errors
    /// The errors of [`Reactor::new`].
    #[track_caller]
    pub fn with_spin(spin: Duration) -> std::io::Result<Self> {
        let reactor = strait::task::Reactor::new()?;
        let fd = fd::watch(&reactor)?;
        let task = tokio::spawn(drive::drive(fd, reactor.driver(), spin));
        Ok(Self { reactor, task: Some(task), process: std::process::id() })
    }
}

impl Deref for Reactor {
    type Target = strait::task::Reactor;

    fn deref(&self) -> &strait::task::Reactor {
        &self.reactor
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        if self.process != std::process::id() {
            // In a child of `fork`, the task is the parent's, and threads of the parent may have held locks.
            std::mem::forget(task);
            return;
        }
        task.abort();
        // The runtime drops the task later, or, if nothing runs the runtime, never.
        self.reactor.end();
    }
}
