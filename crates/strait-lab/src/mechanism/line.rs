//! Two cache lines, one for each direction: the least cost of a round trip between two processors.
//!
//! The flag is the first word of a line and the payload follows in the same line, so a message moves one line and no
//! other. Without a payload the loop is the *probe*: the line measures the present distance of the two processors,
//! which on a virtual machine changes without notice.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::{Acquire, Release};

use super::{Ability, End, Hub, Opened, Side, exactly, hub};
use crate::process::clock;
use crate::samples::Samples;
use crate::sys::shared::{APART, Shared};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// The size of the flag in bytes; the payload follows it.
const FLAG: usize = 8;
/// The size in bytes of the shared memory for both lines.
const AREA: usize = 4096;

/// One process's end of two cache lines.
#[derive(Debug)]
pub(crate) struct Line {
    memory: Shared,
    mine: usize,
    theirs: usize,
    sent: u64,
    received: u64,
}

impl End for Line {
    const NAME: &'static str = "line";
    const TITLE: &'static str = "bare cache lines";
    const WAITS: &'static [Wait] = &[Wait::Spin];
    const ABILITIES: &'static [Ability] = &[Ability::Hub];
    const MOST: usize = 56;

    fn open(_: &Work) -> Result<Opened> {
        let memory = Shared::create(AREA)?;
        let other = memory.try_clone().doing("dup")?;
        Ok(Opened { first: vec![memory], second: vec![other] })
    }

    fn join(_: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [memory] = exactly(descriptors)?;
        Self::over(memory, side)
    }

    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        // The two sizes that other mechanisms are compared with are copied by a few moves, without a call.
        let place = self.mine + FLAG;
        if let Ok(message) = <&[u8; 56]>::try_from(message) {
            self.memory.put(place, message);
        } else if let Ok(message) = <&[u8; 12]>::try_from(message) {
            self.memory.put(place, message);
        } else {
            self.memory.put(place, message);
        }
        self.raise();
        Ok(())
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        self.wait();
        let place = self.theirs + FLAG;
        if let Ok(buffer) = <&mut [u8; 56]>::try_from(&mut *buffer) {
            self.memory.get(place, buffer);
        } else if let Ok(buffer) = <&mut [u8; 12]>::try_from(&mut *buffer) {
            self.memory.get(place, buffer);
        } else {
            self.memory.get(place, buffer);
        }
        Ok(())
    }

    fn hub(ends: Vec<Self>, _: &Work) -> Result<Box<dyn Hub>> {
        Ok(hub::spinning(ends))
    }
}

impl hub::Look for Line {
    #[inline(always)]
    fn try_recv(&mut self, buffer: &mut [u8]) -> Result<bool> {
        if self.memory.word(self.theirs).load(Acquire) == self.received {
            return Ok(false);
        }
        self.recv(buffer).map(|()| true)
    }
}

impl Line {
    fn over(memory: impl AsFd, side: Side) -> Result<Self> {
        let (mine, theirs) = side.of(0, APART);
        Ok(Self { memory: Shared::map(memory, AREA)?, mine, theirs, sent: 0, received: 0 })
    }

    /// Stores the next value of this side's flag; then the other side sees the content of the line.
    #[inline(always)]
    fn raise(&mut self) {
        self.sent += 1;
        self.memory.word(self.mine).store(self.sent, Release);
    }

    /// Waits until the other side's flag has its next value.
    #[inline(always)]
    fn wait(&mut self) {
        self.received += 1;
        let flag = self.memory.word(self.theirs);
        while flag.load(Acquire) != self.received {
            std::hint::spin_loop();
        }
    }
}

/// Measures the bare round trip between the processors on which the two sides run now, in nanoseconds. Both sides
/// call it at the same time.
pub(crate) fn probe(memory: impl AsFd, side: Side) -> Result<f64> {
    const BATCH: u64 = 16;
    const BATCHES: u64 = 600;
    let mut line = Line::over(memory, side)?;
    // The counters continue from the previous probe.
    let from = line.memory.word(line.mine).load(Acquire);
    (line.sent, line.received) = (from, from);

    let mut samples = Samples::new();
    for _ in 0..BATCHES {
        let then = clock::now();
        for _ in 0..BATCH {
            match side {
                Side::First => {
                    line.raise();
                    line.wait();
                }
                Side::Second => {
                    line.wait();
                    line.raise();
                }
            }
        }
        samples.record(clock::now() - then, BATCH);
    }
    Ok(samples.percentiles().p50)
}
