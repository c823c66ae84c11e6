//! A futex and two copies: the bare blocking hand-over.
//!
//! The flag is the futex's word, in shared memory and therefore without the private flag. The sender wakes after every
//! message, since in a ping-pong somebody always sleeps; the receiver looks before it sleeps, and sleeps without a
//! limit.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;
use rustix::thread::futex;

use super::mailbox::Mailboxes;
use super::{Ability, End, Opened, Side};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// Between processes: not `FUTEX_PRIVATE_FLAG`.
const SHARED: futex::Flags = futex::Flags::empty();

/// One process's end.
#[derive(Debug)]
pub(crate) struct Futex(Mailboxes);

impl End for Futex {
    const NAME: &'static str = "futex";
    const TITLE: &'static str = "bare futex";
    const WAITS: &'static [Wait] = &[Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Gather];

    fn open(work: &Work) -> Result<Opened> {
        Mailboxes::open(work)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Mailboxes::join(work, side, descriptors).map(Self)
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.memory.put(self.0.out, message);
        self.wake()
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let before = self.0.received;
        self.0.received = before.wrapping_add(1);
        let word = self.0.memory.half_word(self.0.theirs);
        while word.load(Acquire) == before {
            match futex::wait(word, SHARED, before, None) {
                Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(error) => return Err(error).doing("futex(FUTEX_WAIT)"),
            }
        }
        self.0.memory.get(self.0.inward, buffer);
        Ok(())
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.0.put_parts(parts);
        self.wake()
    }
}

impl Futex {
    /// Gives out what was put in, and wakes the receiver.
    #[inline]
    fn wake(&mut self) -> Result<()> {
        self.0.sent = self.0.sent.wrapping_add(1);
        let word = self.0.memory.half_word(self.0.mine);
        word.store(self.0.sent, Release);
        futex::wake(word, SHARED, 1).doing("futex(FUTEX_WAKE)")?;
        Ok(())
    }
}
