//! Two System V message queues, one for each direction.
//!
//! A queue keeps messages whole and in order. The kernel requires a type before each message, so there is one more
//! copy here than with any other primitive. A process does not learn of the death of its peer, and waits until the
//! queue is removed. So the keeper removes the queue when the first process dies.

use std::os::fd::OwnedFd;

use rustix::io::Errno;

use super::keeper::Keeper;
use super::{Ability, End, Hub, Opened, Receiving, Sending, Side, exactly, hub, note};
use crate::sys::sysv::{self, Letter, Patience};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Wait, Work};

/// One process's end of two System V queues.
#[derive(Debug)]
pub(crate) struct SysvQueue {
    out: i32,
    inward: i32,
    /// The buffer for a message with its type.
    letter: Box<Letter>,
    patience: Patience,
    _keeper: Option<Keeper>,
}

impl End for SysvQueue {
    const NAME: &'static str = "sysv-queue";
    const TITLE: &'static str = "System V message queue";
    const WAITS: &'static [Wait] = &[Wait::Spin, Wait::Block];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Shared, Ability::Hub, Ability::Threads];
    /// The ways of waiting for several queues at once: no call waits for several, so they are polled.
    const HUB_WAITS: &'static [Wait] = &[Wait::Spin];
    const MOST: usize = sysv::QUEUE_MOST;

    fn missing() -> Option<String> {
        let queue = match sysv::make_queue() {
            Ok(queue) => queue,
            Err(Errno::NOSYS) => return Some("this kernel has no System V IPC (CONFIG_SYSVIPC)".to_owned()),
            Err(Errno::NOSPC) => return Some("the limit on queues is reached (kernel.msgmni; ipcs -q)".to_owned()),
            Err(error) => return Some(format!("msgget: {error}")),
        };
        sysv::remove_queue(queue).err().map(|error| format!("msgctl(IPC_RMID): {error}"))
    }

    fn open(_: &Work) -> Result<Opened> {
        let keeper = Keeper::start()?;
        let queues = [keeper.queue()?, keeper.queue()?];
        let (here, there) = (note::write(&queues)?, note::write(&queues)?);
        Ok(Opened { first: vec![here, keeper.into_descriptor()], second: vec![there] })
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let keeper = Keeper::of(side, &mut descriptors);
        let [queues] = exactly(descriptors)?;
        let [there, back] = note::read(queues)?;
        let (out, inward) = side.of(there, back);
        let patience = if work.wait == Wait::Spin { Patience::Now } else { Patience::Wait };
        Ok(Self { out, inward, letter: Letter::new(), patience, _keeper: keeper })
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        put(self.out, &mut self.letter, message, self.patience)
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        get(self.inward, &mut self.letter, buffer, self.patience)
    }

    fn divide(&mut self) -> Result<(Sending<'_>, Receiving<'_>)> {
        let (out, inward, patience) = (self.out, self.inward, self.patience);
        let mut other = Letter::new();
        let letter = &mut self.letter;
        Ok((
            Box::new(move |message| put(out, &mut other, message, patience)),
            Box::new(move |buffer| get(inward, letter, buffer, patience)),
        ))
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }
}

impl hub::Look for SysvQueue {
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        match sysv::recv(self.inward, &mut self.letter, buffer, Patience::Now) {
            Ok(got) if got == buffer.len() => Ok(true),
            Ok(got) => Err(Trouble::new(format!("a message of {got} bytes arrived"))),
            Err(Errno::NOMSG | Errno::INTR) => Ok(false),
            Err(error) => Err(error).doing("msgrcv"),
        }
    }
}

/// Sends `message` to `queue`.
#[inline]
fn put(queue: i32, letter: &mut Letter, message: &[u8], patience: Patience) -> Result<()> {
    loop {
        match sysv::send(queue, letter, message, patience) {
            Ok(()) => return Ok(()),
            Err(Errno::AGAIN) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            // The error is the same if the queue was removed, which is no limit.
            Err(Errno::INVAL) if limit_on_messages().is_some_and(|most| message.len() > most) => {
                return Err(Trouble::limit("the message is too large for a queue (kernel.msgmax)"));
            }
            Err(error) => return Err(error).doing("msgsnd"),
        }
    }
}

/// Receives a message of the length of `buffer` from `queue`.
#[inline]
fn get(queue: i32, letter: &mut Letter, buffer: &mut [u8], patience: Patience) -> Result<()> {
    loop {
        match sysv::recv(queue, letter, buffer, patience) {
            Ok(got) if got == buffer.len() => return Ok(()),
            Ok(got) => return Err(Trouble::new(format!("a message of {got} bytes arrived"))),
            Err(Errno::NOMSG) => std::hint::spin_loop(),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error).doing("msgrcv"),
        }
    }
}

/// Returns the most bytes in a message, as the kernel limits it (`kernel.msgmax`).
#[cold]
fn limit_on_messages() -> Option<usize> {
    std::fs::read_to_string("/proc/sys/kernel/msgmax").ok()?.trim().parse().ok()
}
