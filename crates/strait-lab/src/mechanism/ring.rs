//! A bare single-producer, single-consumer ring of 64-byte slots, one for each direction.
//!
//! Head and tail have cache lines of their own. Each side keeps its own index in a register, with the last known value
//! of the other side's index. A side reads the other's line only when that value no longer suffices. One message is one
//! slot; a batch is one store of the head.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::{Ability, End, Hub, Opened, Side, exactly, hub};
use crate::sys::shared::{APART, Shared};
use crate::trouble::{Result, Trouble, While};
use crate::work::{DEFAULT_SLOTS, Wait, Work};

/// The size of a slot in bytes.
const SLOT: usize = 64;
/// The offset of the slots: on the page after the indices.
const SLOTS_AT: usize = 4096;

/// One direction of the ring as used by one side: its own index, and the last known value of the other side's index.
#[derive(Debug)]
struct Position {
    head: usize,
    tail: usize,
    slots: usize,
    own: u64,
    seen: u64,
}

/// One process's end of two rings.
#[derive(Debug)]
pub(crate) struct Ring {
    memory: Shared,
    mask: u64,
    out: Position,
    inward: Position,
}

fn slots(work: &Work) -> usize {
    work.slots.unwrap_or(DEFAULT_SLOTS).next_power_of_two()
}

fn direction(work: &Work) -> usize {
    SLOTS_AT + slots(work) * SLOT
}

impl End for Ring {
    const NAME: &'static str = "ring";
    const TITLE: &'static str = "bare ring";
    const WAITS: &'static [Wait] = &[Wait::Spin];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];
    const MOST: usize = 64;

    fn open(work: &Work) -> Result<Opened> {
        if work.size > SLOT {
            return Err(Trouble::new("the bare ring carries at most 64 bytes"));
        }
        let memory = Shared::create(2 * direction(work))?;
        let other = memory.try_clone().doing("dup")?;
        Ok(Opened { first: vec![memory], second: vec![other] })
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [memory] = exactly(descriptors)?;
        let at = |base| Position { head: base, tail: base + APART, slots: base + SLOTS_AT, own: 0, seen: 0 };
        let (out, inward) = side.of(0, direction(work));
        Ok(Self {
            memory: Shared::map(memory, 2 * direction(work))?,
            mask: slots(work) as u64 - 1,
            out: at(out),
            inward: at(inward),
        })
    }

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        self.put(message);
        self.publish();
        Ok(())
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        while !self.has_some() {
            std::hint::spin_loop();
        }
        let position = &mut self.inward;
        let place = position.slots + (position.own & self.mask) as usize * SLOT;
        if let Ok(buffer) = <&mut [u8; SLOT]>::try_from(&mut *buffer) {
            self.memory.get(place, buffer);
        } else {
            self.memory.get(place, buffer);
        }
        position.own += 1;
        self.memory.word(position.tail).store(position.own, Release);
        Ok(())
    }

    #[inline(always)]
    fn send_batch(&mut self, messages: &[u8], size: usize) -> Result<()> {
        for message in messages.chunks_exact(size) {
            self.put(message);
        }
        self.publish();
        Ok(())
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }
}

impl hub::Look for Ring {
    #[inline(always)]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        if !self.has_some() {
            return Ok(false);
        }
        self.recv(buffer).map(|()| true)
    }
}

impl Ring {
    /// Whether there is a message to receive.
    #[inline(always)]
    fn has_some(&mut self) -> bool {
        let position = &mut self.inward;
        if position.own == position.seen {
            position.seen = self.memory.word(position.head).load(Acquire);
        }
        position.own != position.seen
    }

    /// Copies `message` into the next slot and waits for a free one first. The peer does not see the message yet.
    #[inline(always)]
    fn put(&mut self, message: &[u8]) {
        let position = &mut self.out;
        while position.own - position.seen > self.mask {
            position.seen = self.memory.word(position.tail).load(Acquire);
            if position.own - position.seen > self.mask {
                // The full part of a batch is published: otherwise a ring smaller than a batch would never drain.
                self.memory.word(position.head).store(position.own, Release);
                std::hint::spin_loop();
            }
        }
        let place = position.slots + (position.own & self.mask) as usize * SLOT;
        if let Ok(message) = <&[u8; SLOT]>::try_from(message) {
            self.memory.put(place, message);
        } else {
            self.memory.put(place, message);
        }
        position.own += 1;
    }

    /// Publishes all messages that were put in.
    #[inline(always)]
    fn publish(&mut self) {
        let head = self.memory.word(self.out.head);
        if head.load(Relaxed) != self.out.own {
            head.store(self.out.own, Release);
        }
    }
}
