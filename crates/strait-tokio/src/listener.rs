//! A listener for which a task can wait.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::Path;

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error};

use crate::{AsyncChannel, AsyncWaitSet, Reactor, Stream};

/// A [`strait::Listener`] for tasks: [`accept`](Self::accept) waits in the runtime, so neither a thread nor the end of
/// the runtime waits for it.
///
/// ```
/// use strait_tokio::{Listener, Reactor};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let name = format!("tokio-listener-{}", std::process::id());
/// # let client = { let name = name.clone(); move || {
/// #     strait::connect(&name, std::time::Duration::from_secs(10))?.send(b"hello").map_err(strait::Error::from)
/// # }};
/// let reactor = Reactor::new()?;
/// let listener = Listener::bind(&name)?;
/// # let client = tokio::task::spawn_blocking(client);
/// let channel = listener.accept(&reactor).await?;
/// assert_eq!(channel.recv().await?.bytes(), b"hello");
/// # client.await??;
/// # Ok(())
/// # }
/// ```
///
/// # Cost
/// The descriptors of a [`strait::Listener`] and of an [`AsyncWaitSet`].
#[derive(Debug)]
pub struct Listener {
    /// The wait set whose only member is the listener. The set reports the listener as long as the listener has
    /// something to do; tokio by itself reports a descriptor only once.
    set: AsyncWaitSet,
    listener: strait::Listener,
}

impl Listener {
    /// Makes a listener under this name in the user's name directory. The listener accepts only processes of the same
    /// user. Does not wait; see [`strait::Listener::bind`].
    ///
    /// # Panics
    /// In a tokio runtime without I/O (`Builder::enable_io`).
    ///
    /// # Errors
    /// The errors of [`strait::Listener::bind`] and of tokio; [`NoRuntime`](crate::NoRuntime) outside of a tokio
    /// runtime.
    #[track_caller]
    pub fn bind(name: &str) -> io::Result<Self> {
        Self::new(strait::Listener::bind(name)?)
    }

    /// Makes a listener for tasks of `listener`, which a [builder](strait::Listener::builder) has made, for example;
    /// tokio watches the descriptor of `listener` from now on.
    ///
    /// # Panics
    /// In a tokio runtime without I/O (`Builder::enable_io`).
    ///
    /// # Errors
    /// The errors of [`WaitSet::new`], of [`WaitSet::add`] and of tokio; [`NoRuntime`](crate::NoRuntime) outside of a
    /// tokio runtime.
    #[track_caller]
    pub fn new(listener: strait::Listener) -> io::Result<Self> {
        let set = WaitSet::new()?;
        set.add(&listener, 0, Interest::Readable, Mode::Level)?;
        Ok(Self { set: AsyncWaitSet::new(set)?, listener })
    }

    /// Waits for the next connecting process that the listener accepts, and returns the channel to that process;
    /// `reactor` watches for the channel's events. Refused processes do not end the wait. Several tasks may wait at the
    /// same time. However many processes connect, the task lets other tasks run now and then.
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection is lost: the next call returns it.
    ///
    /// # Errors
    /// The errors of [`strait::Listener::accept`], and of tokio when the runtime ends. After an error the other pending
    /// connections stay pending, so a server may go on. While the process lacks descriptors or memory, the server
    /// should pause before the next call.
    pub async fn accept(&self, reactor: &Reactor) -> io::Result<AsyncChannel> {
        Ok(AsyncChannel::new(self.accept_channel().await?, reactor)?)
    }

    /// Waits as [`accept`](Self::accept) does, and returns a [`Stream`] of bytes to the process, which calls
    /// [`Stream::connect`]. Does not wait until that process has opened the stream: the first read or write does.
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection is lost: the next call returns it.
    ///
    /// # Errors
    /// The errors of [`accept`](Self::accept) and of [`Stream::accept`].
    pub async fn accept_stream(&self, reactor: &Reactor) -> io::Result<Stream> {
        Stream::accept(self.accept_channel().await?, reactor)
    }

    /// Waits as [`accept`](Self::accept) does, and returns a [`Channel`]: for a [wait set](crate::AsyncWaitSet), for a
    /// thread, or to send it on.
    ///
    /// # Cancel safety
    /// If the future is dropped, no connection is lost: the next call returns it.
    ///
    /// # Errors
    /// The errors of [`accept`](Self::accept).
    pub async fn accept_channel(&self) -> io::Result<Channel> {
        let mut events = Vec::new();
        loop {
            // A task to which processes connect without end lets other tasks run. The budget comes first: a future that
            // is dropped while it lets others run has accepted nothing.
            tokio::task::coop::consume_budget().await;
            match self.listener.accept(Deadline::NOW) {
                // A process has connected that the listener has not accepted yet, or none has.
                Err(failed) if failed.error == Error::WouldBlock => self.set.wait(&mut events).await?,
                done => return Ok(done?),
            };
        }
    }

    /// Returns the listener, for example to [invite](strait::Listener::invite) a process.
    pub fn get_ref(&self) -> &strait::Listener {
        &self.listener
    }

    /// Returns the listener, no longer watched by tokio.
    pub fn into_inner(self) -> strait::Listener {
        // Cannot fail: `new` added the listener, and no other code can remove the listener.
        let _ = self.set.get_ref().remove(&self.listener);
        self.listener
    }

    /// Returns the path of the listener's socket file; empty if a service manager made the socket and it has no path.
    pub fn path(&self) -> &Path {
        self.listener.path()
    }
}

impl AsFd for Listener {
    /// Returns the descriptor of the [listener](strait::Listener).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl AsRawFd for Listener {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
