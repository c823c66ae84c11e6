//! Rings in shared memory, as programs make them by hand: one ring for every kind of memory and every way to wait.
//!
//! [`carrier`] has the kinds of memory, [`bell`] the ways to wait. The ring is *correct*: a slot begins with the number
//! of its message; the number is stored with *release* after the bytes and loaded with *acquire* before the bytes. (The
//! original benchmark compared the whole memory with the expected message, again and again, without any ordering. Then
//! the compiler and the processor may show the reader arbitrary bytes, and the reader must know the message in
//! advance.)
//!
//! The number is in the same cache line as the first bytes, so a small message moves one or two lines and no other.
//! Slots become free by quarters of the ring, so the line with the count of free slots seldom moves.

pub(crate) mod bell;
pub(crate) mod carrier;

use std::io::IoSlice;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};

use self::bell::Bell;
use self::carrier::Carrier;
use super::keeper::Keeper;
use super::{Ability, End, Hub, Opened, Side, hub};
use crate::sys::shared::{APART, PAGE, Shared};
use crate::trouble::{Result, Trouble};
use crate::work::{Wait, Work};

/// The size in bytes of the message number at the beginning of a slot.
const NUMBER: usize = 8;
/// The memory for the slots of one direction in bytes, unless [`FEWEST`] slots need more. These slots are enough for
/// the sender to go on while the receiver sleeps, and few enough to stay in the first-level cache.
const ROOM: usize = 16 << 10;
/// The least number of slots in a direction.
const FEWEST: usize = 4;
/// The greatest number of slots in a direction.
const MOST: usize = 128;
/// The offset of the words that count free slots: after the words of the bells. Slots start on the next page.
const FREE_AT: usize = bell::BELLS * APART;

/// The layout of the shared memory: the size of a slot in bytes, and the number of slots in a direction.
#[derive(Clone, Copy, Debug)]
struct Layout {
    slot: usize,
    slots: usize,
}

impl Layout {
    fn of(work: &Work) -> Self {
        let slot = (NUMBER + work.size).next_multiple_of(64);
        let slots = match work.slots {
            Some(slots) => slots.next_power_of_two().max(FEWEST),
            None => (ROOM / slot).clamp(FEWEST, MOST).next_power_of_two(),
        };
        Self { slot, slots }
    }

    fn direction(self) -> usize {
        (self.slot * self.slots).next_multiple_of(PAGE)
    }

    fn whole(self) -> usize {
        PAGE + 2 * self.direction()
    }
}

/// One direction of the shared memory, as used by one side.
#[derive(Debug)]
struct Way {
    /// The offset in bytes of this direction's slots in the shared memory.
    slots: usize,
    /// The offset of the word for the number of messages taken out by the receiver, stored after each quarter of the
    /// ring.
    free: usize,
    /// The number of the bell that is notified for a message.
    full: usize,
    /// The number of the bell that is notified when a quarter of the slots is free again.
    freed: usize,
    /// The number of messages put in or taken out by this side.
    done: u64,
    /// The number of messages after which the sender must wait for free slots. Only the sender uses it.
    until: u64,
}

/// One process's end of two rings in shared memory.
#[derive(Debug)]
pub(crate) struct Shm<C, B> {
    memory: Shared,
    layout: Layout,
    out: Way,
    inward: Way,
    bell: B,
    _keeper: Option<Keeper>,
    _carrier: PhantomData<C>,
}

impl<C: Carrier, B: Bell> End for Shm<C, B> {
    const NAME: &'static str = carrier::name(C::KIND, B::KIND);
    const TITLE: &'static str = carrier::title(C::KIND, B::KIND);
    const WAITS: &'static [Wait] = B::WAITS;
    const ABILITIES: &'static [Ability] = if B::HUB_WAITS.is_empty() {
        &[Ability::Stream, Ability::InPlace, Ability::Gather]
    } else {
        &[Ability::Stream, Ability::InPlace, Ability::Gather, Ability::Hub]
    };
    const HUB_WAITS: &'static [Wait] = B::HUB_WAITS;
    const MOST: usize = 16 << 20;

    fn missing() -> Option<String> {
        C::missing()
    }

    fn open(work: &Work) -> Result<Opened> {
        let made = C::make(Layout::of(work).whole())?;
        let mut opened = made.opened;
        let bell = B::open(work, &made.memory, made.keeper.as_ref())?;
        opened.first.extend(bell.first);
        opened.second.extend(bell.second);
        if let Some(keeper) = made.keeper {
            opened.first.push(keeper.into_descriptor());
        }
        Ok(opened)
    }

    fn join(work: &Work, side: Side, mut descriptors: Vec<OwnedFd>) -> Result<Self> {
        let keeper = if C::KEPT { Keeper::of(side, &mut descriptors) } else { None };
        let layout = Layout::of(work);
        let bells = descriptors.split_off(1);
        let memory = C::take(descriptors, side, layout.whole())?;
        let bell = B::join(work, bells)?;
        let way = |number: usize| Way {
            slots: PAGE + number * layout.direction(),
            free: FREE_AT + number * APART,
            full: 2 * number,
            freed: 2 * number + 1,
            done: 0,
            until: layout.slots as u64,
        };
        let (out, inward) = side.of(way(0), way(1));
        Ok(Self { memory, layout, out, inward, bell, _keeper: keeper, _carrier: PhantomData })
    }

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        let place = self.free_slot()?;
        let to = place + NUMBER;
        // The common sizes are copied by a few moves, without a call.
        if let Ok(message) = <&[u8; 64]>::try_from(message) {
            self.memory.put(to, message);
        } else if let Ok(message) = <&[u8; 56]>::try_from(message) {
            self.memory.put(to, message);
        } else {
            self.memory.put(to, message);
        }
        self.publish(place)
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        let from = self.full_slot()? + NUMBER;
        if let Ok(buffer) = <&mut [u8; 64]>::try_from(&mut *buffer) {
            self.memory.get(from, buffer);
        } else if let Ok(buffer) = <&mut [u8; 56]>::try_from(&mut *buffer) {
            self.memory.get(from, buffer);
        } else {
            self.memory.get(from, buffer);
        }
        self.release()
    }

    fn send_filled(&mut self, _: usize, fill: impl FnOnce(&mut dyn FnMut(usize, &[u8]))) -> Result<()> {
        let place = self.free_slot()?;
        let memory = &self.memory;
        fill(&mut |at, bytes| memory.put(place + NUMBER + at, bytes));
        self.publish(place)
    }

    fn recv_in_place<T>(&mut self, _: usize, read: impl FnOnce(&mut dyn FnMut(usize, &mut [u8])) -> T) -> Result<T> {
        let place = self.full_slot()?;
        let memory = &self.memory;
        let found = read(&mut |at, bytes| memory.get(place + NUMBER + at, bytes));
        self.release()?;
        Ok(found)
    }

    fn send_gathered(&mut self, parts: &[IoSlice<'_>]) -> Result<()> {
        let place = self.free_slot()?;
        let mut at = place + NUMBER;
        for part in parts {
            self.memory.put(at, part);
            at += part.len();
        }
        self.publish(place)
    }

    fn hub(ends: Vec<Self>, work: &Work) -> Result<Box<dyn Hub>> {
        B::hub(ends, work)
    }
}

/// Without a bell the receiver can poll an end, since a slot's number shows whether its message is there.
impl<C: Carrier> hub::Look for Shm<C, bell::Spin> {
    #[inline(always)]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        let number = self.memory.word(self.slot(&self.inward));
        if number.load(Acquire) != self.inward.done + 1 {
            return Ok(false);
        }
        self.recv(buffer).map(|()| true)
    }
}

impl<C: Carrier, B: Bell> Shm<C, B> {
    #[inline(always)]
    fn slot(&self, way: &Way) -> usize {
        way.slots + (way.done as usize & (self.layout.slots - 1)) * self.layout.slot
    }

    #[inline(always)]
    fn quarter(&self) -> u64 {
        self.layout.slots as u64 / 4
    }

    /// Waits until the next slot may be filled, and returns the slot's offset.
    #[inline(always)]
    fn free_slot(&mut self) -> Result<usize> {
        if self.out.done == self.out.until {
            // Each wait is for exactly one quarter, so a counting bell has as many waits as notifications.
            let due = self.out.until - self.layout.slots as u64 + self.quarter();
            let free = self.memory.word(self.out.free);
            self.bell.wait(&self.memory, self.out.freed, || free.load(Acquire) >= due)?;
            self.out.until += self.quarter();
        }
        Ok(self.slot(&self.out))
    }

    /// Publishes the message in the slot at offset `place`.
    #[inline(always)]
    fn publish(&mut self, place: usize) -> Result<()> {
        self.out.done += 1;
        self.memory.word(place).store(self.out.done, Release);
        self.bell.ring(&self.memory, self.out.full)
    }

    /// Waits for the next message, and returns the offset of its slot.
    #[inline(always)]
    fn full_slot(&mut self) -> Result<usize> {
        let place = self.slot(&self.inward);
        let (number, due) = (self.memory.word(place), self.inward.done + 1);
        self.bell.wait(&self.memory, self.inward.full, || number.load(Acquire) == due)?;
        Ok(place)
    }

    /// Counts the message as taken out. When a quarter of the slots was taken out, publishes their number and
    /// notifies the sender.
    #[inline(always)]
    fn release(&mut self) -> Result<()> {
        self.inward.done += 1;
        if self.inward.done.is_multiple_of(self.quarter()) {
            self.memory.word(self.inward.free).store(self.inward.done, Release);
            self.bell.ring(&self.memory, self.inward.freed)?;
        }
        Ok(())
    }
}

/// Returns the error for a bell that was notified without a message or free slots.
#[cold]
fn rung_for_nothing() -> Trouble {
    Trouble::new("a side was notified without a message or free room")
}
