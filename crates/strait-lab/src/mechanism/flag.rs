//! A flag and two copies: a copy into a shared buffer, a flag line polled by the receiver, and a copy out.
//!
//! This mechanism is the floor for messages too large for the flag's own cache line, and for large messages.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::mailbox::Mailboxes;
use super::{Ability, End, Hub, Opened, Side, hub};
use crate::trouble::Result;
use crate::work::{Wait, Work};

/// One process's end of two shared buffers with flags.
#[derive(Debug)]
pub(crate) struct Flag(Mailboxes);

impl Flag {
    #[inline(always)]
    fn raise(&mut self) {
        self.0.sent = self.0.sent.wrapping_add(1);
        let flag = self.0.memory.half_word(self.0.mine);
        flag.store(self.0.sent, Release);
    }

    #[inline(always)]
    fn wait(&mut self) {
        self.0.received = self.0.received.wrapping_add(1);
        let flag = self.0.memory.half_word(self.0.theirs);
        while flag.load(Acquire) != self.0.received {
            std::hint::spin_loop();
        }
    }
}

impl End for Flag {
    const NAME: &'static str = "flag";
    const TITLE: &'static str = "flag + memcpy";
    const WAITS: &'static [Wait] = &[Wait::Spin];
    const ABILITIES: &'static [Ability] = &[Ability::InPlace, Ability::Gather, Ability::Hub];

    fn open(work: &Work) -> Result<Opened> {
        Mailboxes::open(work)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Mailboxes::join(work, side, descriptors).map(Self)
    }

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.memory.put(self.0.out, message);
        self.raise();
        Ok(())
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.wait();
        self.0.memory.get(self.0.inward, buffer);
        Ok(())
    }

    fn send_filled(&mut self, _: usize, fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        let (memory, out) = (&self.0.memory, self.0.out);
        fill(&mut |place, bytes| memory.put(out + place, bytes));
        self.raise();
        Ok(())
    }

    fn recv_in_place<T>(&mut self, _: usize, read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T) -> Result<T> {
        self.wait();
        let (memory, inward) = (&self.0.memory, self.0.inward);
        Ok(read(&mut |place, bytes| memory.get(inward + place, bytes)))
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.0.put_parts(parts);
        self.raise();
        Ok(())
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }
}

impl hub::Look for Flag {
    #[inline(always)]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let flag = self.0.memory.half_word(self.0.theirs);
        if flag.load(Acquire) == self.0.received {
            return Ok(false);
        }
        self.recv(buffer).map(|()| true)
    }
}
