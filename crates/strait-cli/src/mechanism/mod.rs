//! The ways to get a message across, behind one small trait.
//!
//! Each is a page of code that shows the best correct use of one primitive, polled or asleep, and all of them do the
//! same work: the sender's whole message is copied out of the sender's memory, and the receiver's whole message into
//! the receiver's. A *floor* is such a bare loop, with none of the things a library has to do.

mod flag;
mod futex;
mod line;
mod mailbox;
mod pipe;
mod rights;
mod ring;
mod seqpacket;
mod strait_peer;
mod stream;

use std::os::fd::OwnedFd;

use crate::trouble::Result;
use crate::work::Work;

pub(crate) use self::flag::Flag;
pub(crate) use self::futex::Futex;
pub(crate) use self::line::{Line, probe};
pub(crate) use self::pipe::Pipe;
pub(crate) use self::rights::{Rights, traveller};
pub(crate) use self::ring::Ring;
pub(crate) use self::seqpacket::Seqpacket;
pub(crate) use self::strait_peer::{Strait, StraitRights};
pub(crate) use self::stream::Stream;

/// Which of the two processes this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// It sends first, and measures.
    First,
    /// It answers.
    Second,
}

impl Side {
    /// `(mine, theirs)` of two things, the first side's one standing first.
    pub(crate) fn of<T>(self, first: T, second: T) -> (T, T) {
        match self {
            Self::First => (first, second),
            Self::Second => (second, first),
        }
    }
}

/// The descriptors that each side needs.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) first: Vec<OwnedFd>,
    pub(crate) second: Vec<OwnedFd>,
}

/// One process's end of a mechanism.
pub(crate) trait End: Sized {
    /// Makes, in the first process, what both need.
    fn open(work: &Work) -> Result<Opened>;

    /// Takes up this process's side of it.
    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self>;

    /// Sends `message`.
    fn send(&mut self, message: &[u8]) -> Result<()>;

    /// Waits for a message of exactly the length of `buffer`, and copies all of it there.
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()>;

    /// Sends messages of `size` bytes that stand one behind the other.
    #[inline]
    fn send_batch(&mut self, messages: &[u8], size: usize) -> Result<()> {
        messages.chunks_exact(size).try_for_each(|message| self.send(message))
    }
}

/// An end that lets a message be filled and read in the memory that both processes share.
pub(crate) trait InPlace: End {
    /// Has a message of `len` bytes written by `fill`, which is called with a function that writes bytes at a place, and
    /// gives it out.
    fn send_filled(&mut self, len: usize, fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()>;

    /// Waits for a message of `len` bytes and has `read` look at it, which is called with a function that copies out what
    /// stands at a place.
    fn recv_in_place<T>(&mut self, len: usize, read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T) -> Result<T>;
}

/// Takes the descriptors of a side out of the vector they came in.
fn exactly<const N: usize>(descriptors: Vec<OwnedFd>) -> Result<[OwnedFd; N]> {
    descriptors.try_into().map_err(|these: Vec<OwnedFd>| {
        crate::trouble::Trouble::new(format!("{} descriptors came instead of {N}", these.len()))
    })
}
