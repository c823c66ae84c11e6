//! Two shared buffers, one for each direction, each with a flag that says how many messages have been put in.
//!
//! One message is in flight at a time: the sender puts the next one in only when the answer shows that the last one
//! has been taken out. What tells the receiver is the business of [`Flag`](super::Flag) and [`Futex`](super::Futex).

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use super::{Opened, Side, exactly};
use crate::pair::shared::{APART, Shared};
use crate::trouble::{Result, While};
use crate::work::Work;

/// The flags stand on a page of their own, and buffers start on pages.
const PAGE: usize = 4096;

/// Both buffers as one side sees them.
#[derive(Debug)]
pub(super) struct Mailboxes {
    pub(super) memory: Shared,
    /// Where this side's flag and the other's stand.
    pub(super) mine: usize,
    pub(super) theirs: usize,
    /// Where this side writes and where it reads.
    pub(super) out: usize,
    pub(super) inward: usize,
    /// Messages put in and taken out so far.
    pub(super) sent: u32,
    pub(super) received: u32,
}

impl Mailboxes {
    pub(super) fn open(work: &Work) -> Result<Opened> {
        let memory = Shared::create(PAGE + 2 * room(work))?;
        let other = memory.try_clone().doing("dup")?;
        Ok(Opened { first: vec![memory], second: vec![other] })
    }

    pub(super) fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [memory] = exactly(descriptors)?;
        let (mine, theirs) = side.of(0, APART);
        let (out, inward) = side.of(PAGE, PAGE + room(work));
        Ok(Self {
            memory: Shared::map(memory, PAGE + 2 * room(work))?,
            mine,
            theirs,
            out,
            inward,
            sent: 0,
            received: 0,
        })
    }
}

impl Mailboxes {
    /// Puts a message in whose bytes lie in `parts`.
    #[inline]
    pub(super) fn put_parts(&self, parts: &[IoSlice<'_>]) {
        let mut place = self.out;
        for part in parts {
            self.memory.put(place, part);
            place += part.len();
        }
    }
}

/// The size of each buffer.
fn room(work: &Work) -> usize {
    work.size.next_multiple_of(PAGE)
}
