//! Two pipes, one for each direction.
//!
//! Polled pipes are non-blocking and the loop tries again; blocking pipes wait in the kernel. For messages larger than
//! the default buffer, the pipes get the largest buffer for an unprivileged process.

use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::{Errno, read, write, writev};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, exactly, hub};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The default size of a pipe's buffer in bytes.
const DEFAULT_ROOM: usize = 64 << 10;
/// The largest buffer of a pipe in bytes: the default of `/proc/sys/fs/pipe-max-size`.
const MOST_ROOM: usize = 1 << 20;

/// One process's end of two pipes.
#[derive(Debug)]
pub(crate) struct Pipe {
    out: OwnedFd,
    inward: OwnedFd,
}

impl Pipe {
    /// Makes an end from two pipes, which may be FIFOs.
    pub(super) fn over(out: OwnedFd, inward: OwnedFd) -> Self {
        Self { out, inward }
    }
}

/// Gives a pipe for large messages the largest possible buffer.
pub(super) fn enlarge(pipe: &OwnedFd, work: &Work) -> Result<()> {
    if work.size > DEFAULT_ROOM {
        fcntl_setpipe_size(pipe, MOST_ROOM).doing("fcntl(F_SETPIPE_SZ)")?;
    }
    Ok(())
}

impl End for Pipe {
    const NAME: &'static str = "pipe";
    const TITLE: &'static str = "pipe";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] =
        &[Ability::Stream, Ability::Gather, Ability::Shared, Ability::Hub, Ability::Threads];
    /// The size of the largest message that stays whole if several processes write: `PIPE_BUF` bytes.
    const MOST_SHARED: usize = 4096;

    fn open(work: &Work) -> Result<Opened> {
        let one = || {
            let mut flags = PipeFlags::CLOEXEC;
            flags.set(PipeFlags::NONBLOCK, work.wait == Wait::Spin);
            let (reader, writer) = pipe_with(flags).doing("pipe2")?;
            enlarge(&writer, work)?;
            Ok((reader, writer))
        };
        let (there, back) = (one()?, one()?);
        Ok(Opened { first: vec![there.1, back.0], second: vec![back.1, there.0] })
    }

    fn join(_: &Work, _: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [out, inward] = exactly(descriptors)?;
        Ok(Self { out, inward })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        put(&self.out, message)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        get(&self.inward, buffer)
    }

    /// Sends several messages by one `write`, since a pipe keeps no message boundaries.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], _: usize) -> Result<()> {
        self.send(messages)
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        hub::gathered(parts, |parts| match writev(&self.out, parts) {
            Ok(written) => Ok(Some(written)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error).doing("writing to the pipe"),
        })
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        Ok((Box::new(|message| put(&self.out, message)), Box::new(|buffer| get(&self.inward, buffer))))
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        hub::polled(ends, work)
    }
}

/// Writes all of `message`.
#[inline]
fn put(pipe: &OwnedFd, message: &[u8]) -> Result<()> {
    let mut rest = message;
    while !rest.is_empty() {
        match write(pipe, rest) {
            Ok(written) => rest = &rest[written..],
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("writing to the pipe"),
        }
    }
    Ok(())
}

/// Reads until `buffer` is full.
#[inline]
pub(super) fn get(pipe: &OwnedFd, buffer: &mut [u8]) -> Result<()> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(pipe, &mut buffer[filled..]) {
            Ok(0) => return Err(Trouble::new("the other end of the pipe is closed")),
            Ok(got) => filled += got,
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("reading from the pipe"),
        }
    }
    Ok(())
}

impl AsFd for Pipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inward.as_fd()
    }
}
