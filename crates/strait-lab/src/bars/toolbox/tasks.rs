//! Round trips between async tasks: over a channel, and over tokio's socket.

use std::os::fd::OwnedFd;

use strait::{Channel, Handle, Outgoing};
use strait_tokio::{AsyncChannel, Reactor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

use super::super::ends::talk;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

const SIZE: usize = 64;

/// The transport of the messages: a channel or a socket.
enum Carrier {
    Channel(Channel),
    Socket(OwnedFd),
}

/// Runs the first process of the task `Tasks`: makes `trips` round trips, after a tenth of them as warm-up.
pub(in crate::bars) fn ask(channel: Channel, bare: bool, trips: u64) -> Result<Report> {
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().doing("socketpair")?;
    channel.send(Outgoing::new(b"").handle(OwnedFd::from(theirs))).doing("send")?;
    run(if bare { Carrier::Socket(ours.into()) } else { Carrier::Channel(channel) }, Some(trips))
}

/// Runs the second process of the task `Tasks`: answers until the first process closes the channel or the socket.
pub(in crate::bars) fn answer(channel: Channel, bare: bool) -> Result<Report> {
    let mut handles = channel.recv().doing("recv")?.take_handles().doing("take_handles")?;
    let socket = handles.pop().and_then(Handle::into_fd).ok_or_else(|| Trouble::new("the message has no socket"))?;
    run(if bare { Carrier::Socket(socket) } else { Carrier::Channel(channel) }, None)
}

fn run(carrier: Carrier, trips: Option<u64>) -> Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().doing("making a runtime")?;
    runtime.block_on(async {
        match carrier {
            Carrier::Channel(channel) => {
                let reactor = Reactor::new().doing("making a reactor")?;
                let channel = AsyncChannel::new(channel, &reactor).doing("adding the channel to the reactor")?;
                match trips {
                    Some(trips) => {
                        timed(trips, async |message| {
                            channel.send(&*message).await.doing("send")?;
                            message.copy_from_slice(channel.recv().await.doing("recv")?.bytes());
                            Ok(())
                        })
                        .await
                    }
                    None => {
                        while let Ok(message) = channel.recv().await {
                            channel.send(message.bytes()).await.doing("send")?;
                        }
                        Ok(Report::default())
                    }
                }
            }
            Carrier::Socket(socket) => {
                let socket = std::os::unix::net::UnixStream::from(socket);
                socket.set_nonblocking(true).doing("fcntl")?;
                let mut socket = UnixStream::from_std(socket).doing("registering a socket")?;
                match trips {
                    Some(trips) => {
                        timed(trips, async |message| {
                            socket.write_all(message).await.doing("write")?;
                            socket.read_exact(message).await.doing("read").map(drop)
                        })
                        .await
                    }
                    None => {
                        let mut message = [0; SIZE];
                        while socket.read_exact(&mut message).await.is_ok() {
                            socket.write_all(&message).await.doing("write")?;
                        }
                        Ok(Report::default())
                    }
                }
            }
        }
    })
}

async fn timed(trips: u64, mut trip: impl AsyncFnMut(&mut [u8; SIZE]) -> Result<()>) -> Result<Report> {
    let mut all = async |count: u64| -> Result<()> {
        for number in 0..count {
            let mut message = [0; SIZE];
            message[..8].copy_from_slice(&number.to_le_bytes());
            trip(&mut message).await?;
            if message[..8] != number.to_le_bytes() {
                return Err(Trouble::new("the answer belongs to another message"));
            }
        }
        Ok(())
    };
    all((trips / 10).max(1)).await?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    all(trips).await?;
    let elapsed = clock::now() - begin;
    Ok(talk::paced(trips, elapsed, gauge.spent()?))
}
