//! `heapless` 0.9: a queue for one producer and one consumer, without memory of its own, placed in shared memory.
//!
//! `heapless::spsc::Queue` is two indices and an array, without pointers. So two processes of one program can map the
//! queue, and each uses its half. The queue is made for interrupt handlers, and carries values of one size. Here the
//! values are arrays of 64, 1024 or 4096 bytes: the smallest that has room for the message.

use std::os::fd::OwnedFd;

use heapless::spsc::{Consumer, Producer, Queue};

use crate::mechanism::hub::{self, Look};
use crate::mechanism::{Ability, End, Hub, Opened, Side, exactly};
use crate::sys::shared::{PAGE, Shared};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// The number of slots in a queue; one always stays empty.
const PLACES: usize = 64;

/// The end of one process at two queues, by the size of the values.
#[derive(Debug)]
pub(crate) enum Heapless {
    /// Queues for messages of up to 64 bytes.
    Small(Ends<64>),
    /// Queues for messages of up to 1024 bytes.
    Middling(Ends<1024>),
    /// Queues for messages of up to 4096 bytes.
    Large(Ends<4096>),
}

/// One side's halves of both queues, for messages of up to `N` bytes.
pub(crate) struct Ends<const N: usize> {
    out: Producer<'static, [u8; N]>,
    inward: Consumer<'static, [u8; N]>,
}

impl<const N: usize> std::fmt::Debug for Ends<N> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Ends")
    }
}

impl<const N: usize> Ends<N> {
    const EACH: usize = size_of::<Queue<[u8; N], PLACES>>().next_multiple_of(PAGE);

    fn open() -> Result<Opened> {
        let memory = Shared::create(2 * Self::EACH)?;
        let mapped = Shared::map(&memory, 2 * Self::EACH)?;
        for number in 0..2 {
            let place = mapped.place(number * Self::EACH, Self::EACH).cast::<Queue<[u8; N], PLACES>>();
            // SAFETY: a page-aligned place with room for a queue, in memory that no other process has yet.
            unsafe { place.write(Queue::new()) };
        }
        let other = memory.try_clone().doing("dup")?;
        Ok(Opened { first: vec![memory], second: vec![other] })
    }

    fn join(side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [memory] = exactly(descriptors)?;
        // The queues are borrowed until the process ends, so their memory is never unmapped.
        let memory: &'static Shared = Box::leak(Box::new(Shared::map(memory, 2 * Self::EACH)?));
        let (out, inward) = side.of(0, 1);
        let queue = |number: usize| {
            let place = memory.place(number * Self::EACH, Self::EACH).cast::<Queue<[u8; N], PLACES>>();
            // SAFETY: this same program made a queue there, and so in the same layout. This process takes each queue
            // once and uses one half; the other process uses the other half, as another thread would.
            unsafe { &mut *place }
        };
        Ok(Self { out: queue(out).split().0, inward: queue(inward).split().1 })
    }

    #[inline(always)]
    fn send(&mut self, message: &[u8]) {
        let mut value = [0; N];
        value[..message.len()].copy_from_slice(message);
        while let Err(back) = self.out.enqueue(value) {
            value = back;
            std::hint::spin_loop();
        }
    }

    #[inline(always)]
    fn try_recv(&mut self, buffer: &mut [u8]) -> bool {
        let value = self.inward.dequeue();
        if let Some(value) = &value {
            buffer.copy_from_slice(&value[..buffer.len()]);
        }
        value.is_some()
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) {
        while !self.try_recv(buffer) {
            std::hint::spin_loop();
        }
    }
}

impl End for Heapless {
    const NAME: &'static str = "heapless";
    const TITLE: &'static str = "heapless queue";
    const WAITS: &'static [Wait] = &[Wait::Spin];
    const ABILITIES: &'static [Ability] = &[Ability::Stream, Ability::Hub];
    const MOST: usize = 4096;

    fn open(work: &Work) -> Result<Opened> {
        match work.size {
            ..=64 => Ends::<64>::open(),
            65..=1024 => Ends::<1024>::open(),
            _ => Ends::<4096>::open(),
        }
    }

    fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        match work.size {
            ..=64 => Ends::join(side, descriptors).map(Self::Small),
            65..=1024 => Ends::join(side, descriptors).map(Self::Middling),
            _ => Ends::join(side, descriptors).map(Self::Large),
        }
    }

    #[inline]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        match self {
            Self::Small(ends) => ends.send(message),
            Self::Middling(ends) => ends.send(message),
            Self::Large(ends) => ends.send(message),
        }
        Ok(())
    }

    #[inline]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        match self {
            Self::Small(ends) => ends.recv(buffer),
            Self::Middling(ends) => ends.recv(buffer),
            Self::Large(ends) => ends.recv(buffer),
        }
        Ok(())
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }
}

impl Look for Heapless {
    #[inline]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        Ok(match self {
            Self::Small(ends) => ends.try_recv(buffer),
            Self::Middling(ends) => ends.try_recv(buffer),
            Self::Large(ends) => ends.try_recv(buffer),
        })
    }
}
