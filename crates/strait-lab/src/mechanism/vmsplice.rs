//! `vmsplice`: the sender puts its own pages into a pipe, and the receiver copies out of them.
//!
//! One copy instead of a pipe's two. The pages stay the sender's, so it has to wait until they were read before it
//! may write there again; nothing in the kernel tells it when, so two shared words do.

use std::os::fd::OwnedFd;

use rustix::io::{Errno, read};
use rustix::pipe::{PipeFlags, pipe_with};

use super::pipe::enlarge;
use super::rendezvous::Rendezvous;
use super::{Ability, End, Opened, Side, exactly};
use crate::sys::memory::WritingEnd;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end.
#[derive(Debug)]
pub(crate) struct Vmsplice {
    out: WritingEnd,
    inward: OwnedFd,
    words: Rendezvous,
}

impl End for Vmsplice {
    const NAME: &'static str = "vmsplice";
    const TITLE: &'static str = "pipe with vmsplice";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[];

    fn open(work: &Work) -> Result<Opened> {
        let one = || {
            let mut flags = PipeFlags::CLOEXEC;
            flags.set(PipeFlags::NONBLOCK, work.wait == Wait::Spin);
            let (reader, writer) = pipe_with(flags).doing("pipe2")?;
            enlarge(&writer, work)?;
            Ok((reader, writer))
        };
        let (there, back): (_, (OwnedFd, OwnedFd)) = (one()?, one()?);
        let mut opened = Rendezvous::open()?;
        opened.first.extend([there.1, back.0]);
        opened.second.extend([back.1, there.0]);
        Ok(opened)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [words, out, inward] = exactly(descriptors)?;
        let words = Rendezvous::join(work, side, vec![words])?;
        Ok(Self { out: WritingEnd::of(out).doing("the pipe")?, inward, words })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let mut rest = message;
        // The word that says that it was lent is not needed: the pipe says so.
        self.words.count_loan();
        while !rest.is_empty() {
            match self.out.splice(rest) {
                Ok(put) => rest = &rest[put..],
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("vmsplice"),
            }
        }
        self.words.wait_until_taken()
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match read(&self.inward, &mut buffer[filled..]) {
                Ok(0) => return Err(Trouble::new("the other end of the pipe is closed")),
                Ok(got) => filled += got,
                Err(Errno::AGAIN) => std::hint::spin_loop(),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("reading from the pipe"),
            }
        }
        self.words.take()
    }
}
