//! `vmsplice`: the sender puts its own pages into a pipe, and the receiver copies from the pages.
//!
//! There is one copy instead of a pipe's two. The pages still belong to the sender. The sender must not write to a page
//! before the receiver has read it. The kernel does not report when they were read, so two shared words do.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::pipe::{self, enlarge};
use super::rendezvous::Rendezvous;
use super::{Ability, End, Opened, Side, exactly, hub};
use crate::sys::memory::WritingEnd;
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// One process's end of two pipes, with the words for reporting reads.
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
    const ABILITIES: &'static [Ability] = &[Ability::Gather];

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
        Ok(Self { out: WritingEnd::of(out).doing("checking the pipe")?, inward, words })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        // The pipe itself announces a lent message to the receiver, so the word for lent messages is not published.
        self.words.count_loan();
        self.splice(&[IoSlice::new(message)])?;
        self.words.wait_until_taken()
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        pipe::get(&self.inward, buffer)?;
        self.words.take()
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.words.count_loan();
        self.splice(parts)?;
        self.words.wait_until_taken()
    }
}

impl Vmsplice {
    #[inline]
    fn splice(&self, parts: &[IoSlice<'_>]) -> Result<()> {
        hub::gathered(parts, |parts| match self.out.splice(parts) {
            Ok(put) => Ok(Some(put)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(error) => Err(error).doing("vmsplice"),
        })
    }
}
