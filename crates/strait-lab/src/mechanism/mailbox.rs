//! Two shared buffers, one for each direction, each with a flag that counts the messages put in.
//!
//! One message is in flight at a time: the sender puts in the next message only when the answer shows that the last
//! message was taken out. [`Flag`](super::Flag) and [`Futex`](super::Futex) differ in how the receiver learns of a
//! message.

use std::io::IoSlice;
use std::os::fd::OwnedFd;

use super::{Opened, Side, exactly};
use crate::sys::shared::{APART, Shared};
use crate::trouble::{Result, While};
use crate::work::Work;

/// The page size in bytes. The flags are on a page of their own, and each buffer starts on a page.
const PAGE: usize = 4096;

/// The two shared buffers, one for each direction, as used by one side.
#[derive(Debug)]
pub(super) struct Mailboxes {
    pub(super) memory: Shared,
    /// The offset of this side's flag in bytes.
    pub(super) mine: usize,
    /// The offset of the other side's flag in bytes.
    pub(super) theirs: usize,
    /// The offset in bytes of this side's outgoing buffer.
    pub(super) out: usize,
    /// The offset in bytes of this side's incoming buffer.
    pub(super) inward: usize,
    /// The number of messages put in by this side.
    pub(super) sent: u32,
    /// The number of messages taken out by this side.
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
    /// Copies the bytes of `parts` into this side's buffer, joined.
    #[inline]
    pub(super) fn put_parts(&self, parts: &[IoSlice<'_>]) {
        let mut place = self.out;
        for part in parts {
            self.memory.put(place, part);
            place += part.len();
        }
    }
}

/// Returns the size of each buffer in bytes.
fn room(work: &Work) -> usize {
    work.size.next_multiple_of(PAGE)
}
