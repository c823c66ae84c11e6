//! Measures what it costs to wait for messages in a foreign event loop: round trips of 64 bytes between this process,
//! which waits by `recv`, and a child, which waits in one of these ways. Default options.
//!
//! ```text
//! cargo run --release -p strait --example event_loop -- HOW COUNT PLACE
//! ```
//!
//! HOW is `recv` (no event loop), `set` (a wait set), `epoll` (the wait set's descriptor in an epoll), `thread` (a
//! thread receives, hands the message over, and writes a byte into a pipe that is in the epoll), or `pipe` (no Strait:
//! two pipes, one of them in an epoll). PLACE is `same` (one processor), `two` (processors 0 and 1) or `free`. Prints
//! the median, the 99th percentile and the mean in microseconds.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::Instant;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::thread::{CpuSet, sched_setaffinity};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, CommandExt, Deadline, Error};

type Done = Result<(), Box<dyn std::error::Error>>;

const SIZE: usize = 64;

/// Calls `ready` whenever the descriptor is readable, until `ready` returns false.
fn event_loop(descriptor: BorrowedFd<'_>, mut ready: impl FnMut() -> Result<bool, Error>) -> Done {
    let epoll = epoll::create(CreateFlags::CLOEXEC)?;
    epoll::add(&epoll, descriptor, EventData::new_u64(0), EventFlags::IN)?;
    let mut events = Vec::with_capacity(8);
    loop {
        events.clear();
        epoll::wait(&epoll, spare_capacity(&mut events), None)?;
        if !ready()? {
            return Ok(());
        }
    }
}

/// Answers all messages that are there. Returns false once the other side is gone.
fn answer(channel: &Channel) -> Result<bool, Error> {
    loop {
        match channel.try_recv() {
            Ok(message) => channel.send(message.bytes())?,
            Err(Error::WouldBlock) => return Ok(true),
            Err(Error::PeerClosed) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
}

fn serve_by_thread(channel: Channel) -> Done {
    let channel = Arc::new(channel);
    let (hand_over, handed) = mpsc::channel();
    let (mut wakes, mut wake) = std::io::pipe()?;
    let receiver = Arc::clone(&channel);
    let thread = std::thread::spawn(move || {
        while let Ok(message) = receiver.recv() {
            if hand_over.send(message).is_err() || wake.write_all(&[1]).is_err() {
                return;
            }
        }
        // The end of the pipe ends the event loop.
    });
    let pipe = wakes.try_clone()?;
    event_loop(pipe.as_fd(), || {
        let mut woken = [0; 64];
        if wakes.read(&mut woken).unwrap_or(0) == 0 {
            return Ok(false);
        }
        while let Ok(message) = handed.try_recv() {
            channel.send(message.bytes())?;
        }
        Ok(true)
    })?;
    thread.join().map_err(|_| "the thread panicked")?;
    Ok(())
}

fn serve(channel: Channel, how: &str) -> Done {
    if how == "thread" {
        return serve_by_thread(channel);
    }
    if how == "recv" {
        while let Ok(message) = channel.recv() {
            channel.send(message.bytes())?;
        }
        return Ok(());
    }
    let set = WaitSet::new()?;
    set.add(&channel, 0, Interest::Readable, Mode::Level)?;
    let mut events = Vec::new();
    if how == "set" {
        loop {
            set.wait(&mut events, Deadline::NEVER)?;
            if !answer(&channel)? {
                return Ok(());
            }
        }
    }
    event_loop(set.as_fd(), || {
        while set.wait(&mut events, Deadline::NOW)? > 0 || set.has_more() {
            if !answer(&channel)? {
                return Ok(false);
            }
        }
        Ok(true)
    })
}

/// The side without Strait: standard input and output are pipes.
fn serve_pipes() -> Done {
    let (stdin, mut stdout) = (std::io::stdin(), std::fs::File::from(std::io::stdout().as_fd().try_clone_to_owned()?));
    let mut from = std::fs::File::from(stdin.as_fd().try_clone_to_owned()?);
    let watched = from.try_clone()?;
    event_loop(watched.as_fd(), || {
        let mut message = [0; SIZE];
        Ok(from.read_exact(&mut message).is_ok() && stdout.write_all(&message).is_ok())
    })
}

fn place(word: &str, first: bool) -> Done {
    if word != "free" {
        let mut cpus = CpuSet::new();
        cpus.set(usize::from(word == "two" && !first));
        sched_setaffinity(None, &cpus)?;
    }
    Ok(())
}

fn main() -> Done {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [how, count, where_, rest @ ..] = &arguments[..] else {
        return Err("the arguments are HOW COUNT PLACE".into());
    };
    if rest.first().is_some_and(|word| word == "served") {
        place(where_, false)?;
        return if how == "pipe" { serve_pipes() } else { serve(strait::from_parent()?, how) };
    }
    let count: usize = count.parse()?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(&arguments).arg("served");
    let (mut child, mut trip): (_, Box<dyn FnMut() -> Result<(), Error>>) = if how == "pipe" {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (mut to, mut from) = (child.stdin.take().ok_or("no pipe")?, child.stdout.take().ok_or("no pipe")?);
        let trip = move || {
            let mut message = [1; SIZE];
            to.write_all(&message).and_then(|()| from.read_exact(&mut message)).map_err(|_| Error::PeerClosed)
        };
        (child, Box::new(trip))
    } else {
        let (child, channel) = command.spawn_with_channel()?;
        let trip = move || {
            channel.send(&[1; SIZE])?;
            channel.recv().map(drop)
        };
        (child, Box::new(trip))
    };
    place(where_, true)?;
    let mut times = Vec::with_capacity(count);
    for _ in 0..count / 10 + 20 {
        trip()?;
    }
    for _ in 0..count {
        let begin = Instant::now();
        trip()?;
        times.push(begin.elapsed().as_secs_f64() * 1e6);
    }
    drop(trip);
    child.wait()?;
    let mean = times.iter().sum::<f64>() / times.len() as f64;
    times.sort_by(f64::total_cmp);
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    println!("{:.2} {:.2} {mean:.2}", at(0.5), at(0.99));
    Ok(())
}
