//! What both ends of a data pipe have: the memory, the channel beside it, and how the two ends wait for each other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::channel::{Channel, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::waiter;
use crate::os::{self, fault};
use crate::ring::stream::{Reading, Words, Writing, publish_cpu};
use crate::shm::PipeMemory;

/// The most doorbells (empty messages that wake the other side) that one call takes while it looks for news.
const DOORBELLS: usize = 64;

/// A side of a data pipe: writing or reading.
pub(super) trait Side {
    /// Publishes that this side is about to sleep, so that the other side sends a doorbell. The caller has to look once
    /// more after this.
    fn arm<W: Words>(words: &W);
    /// Publishes that this side does not sleep any more. Returns whether the other side has already seen that it slept,
    /// so that a doorbell is in flight.
    fn disarm(words: &impl Words) -> bool;
    /// Returns the words in which this side and the other side publish the CPU on which they run.
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32);
}

impl Side for Writing {
    fn arm<W: Words>(words: &W) {
        Self::arm(words);
    }
    fn disarm(words: &impl Words) -> bool {
        Self::disarm(words)
    }
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32) {
        (memory.producer_cpu(), memory.consumer_cpu())
    }
}

impl Side for Reading {
    fn arm<W: Words>(words: &W) {
        Self::arm(words);
    }
    fn disarm(words: &impl Words) -> bool {
        Self::disarm(words)
    }
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32) {
        (memory.consumer_cpu(), memory.producer_cpu())
    }
}

/// The private state of a side's waits.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    /// The number of doorbells that are in flight for sleeps that were called off.
    owed: u32,
    /// The number of the CPU, plus 1, that this side published last; 0 if it has published none.
    cpu: u32,
}

impl Sleeper {
    /// Counts a doorbell in flight if the other side had seen a sleep that is over (`noticed`).
    pub(super) fn expect(&mut self, noticed: bool) {
        self.owed = self.owed.saturating_add(noticed.into());
    }
}

/// The result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Ready,
    /// The other end is closed. The caller has to look once more at what the other end wrote before.
    Gone,
}

/// The parts that both ends of a data pipe have: the channel and the memory.
#[derive(Debug)]
pub(super) struct PipeCore {
    pub(super) channel: Channel,
    pub(super) memory: PipeMemory,
    /// Whether a doorbell could not be sent, for a reason that passes: this process lacks a resource that it needs to
    /// follow the other end to another process.
    owes: AtomicBool,
}

impl PipeCore {
    pub(super) fn new(channel: Channel, memory: PipeMemory) -> Self {
        Self { channel, memory, owes: AtomicBool::new(false) }
    }

    /// Wakes the other side, which has published that it sleeps. If that is impossible now, the next call does it.
    #[cold]
    pub(super) fn notify(&self) {
        let _ = self.try_ring();
    }

    fn try_ring(&self) -> Result<(), Error> {
        fault::point("before a doorbell");
        match self.channel.try_send(b"") {
            Err(SendError { error, .. }) if error.passes() => {
                self.owes.store(true, Ordering::Relaxed);
                Err(error)
            }
            // If there is no room, enough doorbells are in flight; if the other end is closed, other calls report it.
            _ => {
                self.owes.store(false, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Sends the doorbell that could not be sent before, if there is one.
    #[inline]
    pub(super) fn make_up(&self) -> Result<(), Error> {
        if self.owes.load(Ordering::Relaxed) { self.try_ring() } else { Ok(()) }
    }

    /// Publishes to the other side on which CPU this one runs.
    #[inline]
    pub(super) fn publish_cpu<S: Side>(&self, sleeper: &mut Sleeper) {
        publish_cpu(&mut sleeper.cpu, S::cpus(&self.memory).0, os::current_cpu());
    }

    /// Ends the pipe, as the other side published a counter that is impossible.
    #[cold]
    pub(super) fn break_off(&self) -> Error {
        self.channel.end.break_off(Error::BadPeer("an impossible counter in a data pipe"))
    }

    /// Takes a doorbell; waits for one until the deadline.
    fn take_doorbell(&self, deadline: Deadline) -> Result<(), Error> {
        match self.channel.recv_into(&mut [], deadline) {
            Ok(doorbell) => {
                drop(doorbell);
                Ok(())
            }
            Err(Error::BufferTooSmall { .. }) => Err(self
                .channel
                .end
                .break_off(Error::BadPeer("a message with bytes beside a data pipe, where only empty ones are sent"))),
            Err(error) => Err(error),
        }
    }

    /// Takes the doorbells that are there, for a wait set that looks at this end. Checks first whether there is one,
    /// since a failed receive would have the set look again. Returns why no more doorbells were taken: usually
    /// [`Error::WouldBlock`].
    pub(super) fn take_doorbells_quietly(&self) -> Error {
        for _ in 0..DOORBELLS {
            if !self.channel.end.is_readable() {
                break;
            }
            if let Err(error) = self.take_doorbell(Deadline::NOW) {
                return error;
            }
        }
        Error::WouldBlock
    }

    /// Takes the doorbells that are there. Returns why no more doorbells were taken: usually [`Error::WouldBlock`].
    pub(super) fn take_doorbells(&self) -> Error {
        for _ in 0..DOORBELLS {
            if let Err(error) = self.take_doorbell(Deadline::NOW) {
                return error;
            }
        }
        Error::WouldBlock
    }

    /// Waits until `ready` returns true, the other end has closed, or the deadline has passed. If the other end has
    /// closed, the caller has to look at what the other end did before.
    pub(super) fn wait<S: Side>(
        &self,
        sleeper: &mut Sleeper,
        deadline: Deadline,
        mut ready: impl FnMut() -> Result<bool, Error>,
    ) -> Result<Waited, Error> {
        if deadline.is_now() {
            // Taking doorbells also shows whether the other end is closed.
            return match self.take_doorbells() {
                _ if ready()? => Ok(Waited::Ready),
                Error::PeerClosed => Ok(Waited::Gone),
                error => Err(error),
            };
        }
        // An unsent doorbell goes first, or both sides would sleep.
        self.make_up()?;
        self.publish_cpu::<S>(sleeper);
        let mut outcome = None;
        let mut looked = || match ready() {
            Ok(false) => false,
            news => {
                outcome = Some(news);
                true
            }
        };
        let interruption = self.channel.end.interruption();
        let options = &self.channel.end.options;
        let cpu = S::cpus(&self.memory).1;
        if waiter::spin(cpu, options.wait, options.spin, deadline, interruption, &mut looked) {
            return outcome.unwrap_or(Ok(true)).map(|_| Waited::Ready);
        }
        loop {
            while sleeper.owed > 0 && self.take_doorbell(Deadline::NOW).is_ok() {
                sleeper.owed -= 1;
            }
            fault::point("before a side of a pipe sleeps");
            S::arm(&self.memory);
            match ready() {
                Ok(false) => {}
                news => {
                    sleeper.expect(S::disarm(&self.memory));
                    return news.map(|_| Waited::Ready);
                }
            }
            let taken = self.take_doorbell(deadline);
            let noticed = S::disarm(&self.memory);
            match taken {
                Ok(()) => {}
                Err(Error::PeerClosed) => return Ok(Waited::Gone),
                Err(error) => {
                    sleeper.expect(noticed);
                    return if ready()? { Ok(Waited::Ready) } else { Err(error) };
                }
            }
            if ready()? {
                return Ok(Waited::Ready);
            }
        }
    }
}
