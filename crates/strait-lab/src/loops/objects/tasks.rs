//! Round trips between async tasks: over a channel, and over tokio's socket.

use std::os::fd::OwnedFd;

use strait::{Channel, Handle, Outgoing};
use strait_tokio::{AsyncChannel, Reactor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::runtime::Runtime;

use super::super::parts::{Share, Steady, together, warm_up};
use crate::shape::payload;
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

type Words = [u8; 64];

/// The transport of the messages: a channel or a socket.
enum Carrier {
    Channel {
        channel: AsyncChannel,
        /// The reactor serves the channel until it is dropped.
        _reactor: Reactor,
    },
    Socket(UnixStream),
}

impl Carrier {
    /// Makes the carrier: `socket` if `bare` is set, otherwise `channel`. The calling thread is in a runtime.
    fn new(channel: Channel, socket: OwnedFd, bare: bool) -> Result<Self> {
        if bare {
            let socket = std::os::unix::net::UnixStream::from(socket);
            socket.set_nonblocking(true).doing("fcntl")?;
            return UnixStream::from_std(socket).map(Self::Socket).doing("registering a socket");
        }
        let reactor = Reactor::new().doing("making a reactor")?;
        let channel = AsyncChannel::new(channel, &reactor).doing("adding the channel to the reactor")?;
        Ok(Self::Channel { channel, _reactor: reactor })
    }

    async fn send(&mut self, words: &Words) -> Result<()> {
        match self {
            Self::Channel { channel, .. } => channel.send(words).await.doing("send"),
            Self::Socket(socket) => socket.write_all(words).await.doing("write"),
        }
    }

    async fn recv(&mut self, words: &mut Words) -> Result<()> {
        match self {
            Self::Channel { channel, .. } => words.copy_from_slice(channel.recv().await.doing("recv")?.bytes()),
            Self::Socket(socket) => socket.read_exact(words).await.doing("read").map(drop)?,
        }
        Ok(())
    }
}

fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_current_thread().enable_io().build().doing("making a runtime")
}

/// Runs the first process of the task `Tasks`: makes `trips` round trips, after a tenth of them as warm-up.
pub(super) fn ask(channel: Channel, bare: bool, trips: u64) -> Result<Report> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().doing("socketpair")?;
    channel.send(Outgoing::new(b"").handle(OwnedFd::from(theirs))).doing("send")?;
    let runtime = runtime()?;
    let mut carrier = runtime.block_on(async { Carrier::new(channel, ours.into(), bare) })?;
    together(trips, |count| {
        runtime.block_on(async {
            let mut words = [0; 64];
            for number in 0..count {
                payload::stamp(&mut words, number);
                carrier.send(&words).await?;
                carrier.recv(&mut words).await?;
                payload::check(&words, number)?;
            }
            Ok(())
        })
    })
}

/// Runs the second process of the task `Tasks`: answers until the first process closes the channel or the socket.
pub(super) fn answer(channel: Channel, bare: bool, trips: u64) -> Result<Share> {
    let mut handles = channel.recv().doing("recv")?.take_handles().doing("take_handles")?;
    let socket = handles.pop().and_then(Handle::into_fd).ok_or_else(|| Trouble::new("the message has no socket"))?;
    runtime()?.block_on(async {
        let mut carrier = Carrier::new(channel, socket, bare)?;
        let mut words = [0; 64];
        let mut steady = Steady::after(warm_up(trips))?;
        while carrier.recv(&mut words).await.is_ok() {
            carrier.send(&words).await?;
            steady.answered()?;
        }
        steady.share()
    })
}
