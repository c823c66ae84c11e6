//! Measures round trips of 64 bytes between two tokio processes: over a Strait channel, and over a `UnixStream`.
//!
//! ```sh
//! cargo run --release -p strait-tokio --example round_trip [same|two] [sleep]
//! ```
//!
//! With `same`, the default, both processes run on the first CPU; with `two`, each runs on one of the first two. With
//! `sleep`, the reactors do not poll before they let their runtime sleep. The rounds are interleaved; the program
//! prints medians.

use std::os::fd::OwnedFd;
use std::process::Command;
use std::time::{Duration, Instant};

use strait::{Options, Outgoing, Wait};
use strait_tokio::{AsyncChannel, Reactor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

const TRIPS: u32 = 20_000;
const ROUNDS: usize = 7;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn pin(cpu: usize) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    let _ = rustix::thread::sched_setaffinity(None, &set);
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<_> = std::env::args().collect();
    let two = arguments.iter().any(|argument| argument == "two");
    let sleep = arguments.iter().any(|argument| argument == "sleep");
    if arguments.iter().any(|argument| argument == "child") {
        pin(usize::from(two));
        return child(sleep).await;
    }
    pin(0);
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("child").args(&arguments[1..]);
    let options = Options::new().wait(Wait::Block);
    let (mut child, channel) = options.spawn(&mut command)?;
    let (stream, theirs) = std::os::unix::net::UnixStream::pair()?;
    channel.send(Outgoing::new(b"").handle(OwnedFd::from(theirs)))?;
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    let reactor = reactor(sleep)?;
    let channel = AsyncChannel::new(channel, &reactor)?;
    let (mut with_channel, mut with_stream) = (Vec::new(), Vec::new());
    let message = [7; 64];
    let mut buffer = [0; 64];
    for _ in 0..ROUNDS {
        let begin = Instant::now();
        for _ in 0..TRIPS {
            channel.send(&message).await?;
            channel.recv().await?;
        }
        with_channel.push(begin.elapsed() / TRIPS);
        let begin = Instant::now();
        for _ in 0..TRIPS {
            stream.write_all(&message).await?;
            stream.read_exact(&mut buffer).await?;
        }
        with_stream.push(begin.elapsed() / TRIPS);
    }
    with_channel.sort();
    with_stream.sort();
    let (channel_time, stream_time) = (with_channel[ROUNDS / 2], with_stream[ROUNDS / 2]);
    println!("channel    {channel_time:?}");
    println!("UnixStream {stream_time:?}");
    println!("ratio      {:.2}", channel_time.as_secs_f64() / stream_time.as_secs_f64());
    drop((channel, stream));
    child.wait()?;
    Ok(())
}

fn reactor(sleep: bool) -> std::io::Result<Reactor> {
    Reactor::with_spin(if sleep { Duration::ZERO } else { Reactor::SPIN })
}

async fn child(sleep: bool) -> Result<()> {
    let channel = Options::new().wait(Wait::Block).from_parent()?;
    let stream = channel.recv()?.take_handles()?.remove(0).into_fd().ok_or("no socket")?;
    let stream = std::os::unix::net::UnixStream::from(stream);
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    let reactor = reactor(sleep)?;
    let channel = AsyncChannel::new(channel, &reactor)?;
    let mut buffer = [0; 64];
    let mut filled = 0;
    loop {
        tokio::select! {
            message = channel.recv() => match message {
                Ok(message) => channel.send(message.bytes()).await?,
                Err(_) => return Ok(()),
            },
            // A single read: `read_exact` would lose the bytes that it has read when the channel is ready first.
            read = stream.read(&mut buffer[filled..]) => match read {
                Ok(0) | Err(_) => return Ok(()),
                Ok(read) => filled += read,
            },
        }
        if filled == buffer.len() {
            stream.write_all(&buffer).await?;
            filled = 0;
        }
    }
}
