//! A futex and two copies: the bare blocking hand-over.
//!
//! The flag is the futex's word. It is in shared memory, so the private flag is not set. The sender wakes after every
//! message, since in a ping-pong the receiver always sleeps. The receiver checks the word before it sleeps, and
//! sleeps without a timeout.

use std::io::IoSlice;
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Release};

use rustix::io::Errno;
use rustix::thread::futex;
use rustix::time::ClockId;

use super::hub::{self, Look};
use super::mailbox::Mailboxes;
use super::{Ability, End, Hub, Opened, Receiving, Sending, Side};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// The flags of a futex between processes: without `FUTEX_PRIVATE_FLAG`.
const SHARED: futex::Flags = futex::Flags::empty();

/// One process's end of two shared buffers with futexes.
#[derive(Debug)]
pub(crate) struct Futex(Mailboxes);

impl End for Futex {
    const NAME: &'static str = "futex";
    const TITLE: &'static str = "bare futex";
    const WAITS: &'static [Wait] = &[Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Gather, Ability::Hub, Ability::Threads];

    fn open(work: &Work) -> Result<Opened> {
        Mailboxes::open(work)
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        Mailboxes::join(work, side, descriptors).map(Self)
    }

    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.0.memory.put(self.0.out, message);
        wake(self.0.memory.half_word(self.0.mine), &mut self.0.sent)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        wait(self.0.memory.half_word(self.0.theirs), &mut self.0.received)?;
        self.0.memory.get(self.0.inward, buffer);
        Ok(())
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        self.0.put_parts(parts);
        wake(self.0.memory.half_word(self.0.mine), &mut self.0.sent)
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        let Mailboxes { memory, mine, theirs, out, inward, sent, received } = &mut self.0;
        let (memory, out, inward) = (&*memory, *out, *inward);
        let (mine, theirs) = (memory.half_word(*mine), memory.half_word(*theirs));
        let send = move |message: &[u8]| {
            memory.put(out, message);
            wake(mine, sent)
        };
        let recv = move |buffer: &mut [u8]| {
            wait(theirs, received)?;
            memory.get(inward, buffer);
            Ok(())
        };
        Ok((Box::new(send), Box::new(recv)))
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::in_turn(ends, wait_for_any))
    }
}

/// Publishes the message in the shared buffer by incrementing `word`, and wakes the receiver.
#[inline]
fn wake(word: &AtomicU32, sent: &mut u32) -> Result<()> {
    *sent = sent.wrapping_add(1);
    word.store(*sent, Release);
    futex::wake(word, SHARED, 1).doing("futex(FUTEX_WAKE)")?;
    Ok(())
}

/// Waits until `word` shows one more message than `received`, and counts the message as received.
#[inline]
fn wait(word: &AtomicU32, received: &mut u32) -> Result<()> {
    let before = *received;
    *received = before.wrapping_add(1);
    while word.load(Acquire) == before {
        match futex::wait(word, SHARED, before, None) {
            Ok(()) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error).doing("futex(FUTEX_WAIT)"),
        }
    }
    Ok(())
}

impl Look for Futex {
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let came = self.0.memory.half_word(self.0.theirs).load(Acquire) != self.0.received;
        if came {
            self.recv(buffer)?;
        }
        Ok(came)
    }
}

/// Sleeps until one of the ends may have a message, by one call for all (`futex_waitv`, since Linux 5.16).
fn wait_for_any(ends: &[Futex]) -> Result<()> {
    let waits: Vec<futex::Wait> = ends.iter().map(Futex::in_a_row).collect();
    match futex::waitv(&waits, futex::WaitvFlags::empty(), None, ClockId::Monotonic) {
        Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
        Err(Errno::NOSYS) => Err(Trouble::limit("this kernel has no futex_waitv (since Linux 5.16)")),
        Err(error) => Err(error).doing("futex_waitv"),
    }
}

impl Futex {
    /// Returns the element for this end in the list for `futex_waitv`.
    fn in_a_row(&self) -> futex::Wait {
        let mut wait = futex::Wait::new();
        wait.val = self.0.received.into();
        wait.uaddr = futex::WaitPtr::new(self.0.memory.half_word(self.0.theirs).as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32;
        wait
    }
}
