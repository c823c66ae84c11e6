//! What both ends of a pipe are made of: the memory, the channel beside it, and how they wait for each other.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::channel::{Channel, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::{self, fault};
use crate::ring::stream::{Reading, Words, Writing, publish_cpu};
use crate::shm::PipeMemory;
use crate::wake::waiter;

/// Doorbells that a call takes at most while it looks for news.
const DOORBELLS: usize = 64;

/// A side of a pipe.
pub(super) trait Side {
    /// Says that it sleeps; the caller looks once more after this.
    fn listen<W: Words>(words: &W);
    /// It sleeps no more. Whether the other side took notice before.
    fn listen_no_more(words: &impl Words) -> bool;
    /// Where it says on which CPU it runs, and where the other side does.
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32);
}

impl Side for Writing {
    fn listen<W: Words>(words: &W) {
        Self::listen(words);
    }
    fn listen_no_more(words: &impl Words) -> bool {
        Self::listen_no_more(words)
    }
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32) {
        (memory.producer_cpu(), memory.consumer_cpu())
    }
}

impl Side for Reading {
    fn listen<W: Words>(words: &W) {
        Self::listen(words);
    }
    fn listen_no_more(words: &impl Words) -> bool {
        Self::listen_no_more(words)
    }
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32) {
        (memory.consumer_cpu(), memory.producer_cpu())
    }
}

/// What a side knows about waiting.
#[derive(Debug, Default)]
pub(super) struct Sleeper {
    /// Doorbells that are in flight for a sleep that never was.
    owed: u32,
    /// The CPU that the other side was told, plus 1.
    cpu: u32,
}

impl Sleeper {
    /// A doorbell is in flight, if the other side took notice of a sleep that is over.
    pub(super) fn expect(&mut self, noticed: bool) {
        self.owed = self.owed.saturating_add(noticed.into());
    }
}

/// What came of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Ready,
    /// The other end is gone; what it did before that is to be looked at once more.
    Gone,
}

/// What both ends have.
#[derive(Debug)]
pub(super) struct End {
    pub(super) channel: Channel,
    pub(super) memory: PipeMemory,
    /// A doorbell could not be sent, for a reason that passes: this process lacks what it needs to come to where the other end
    /// has gone.
    owes: AtomicBool,
}

impl End {
    pub(super) fn new(channel: Channel, memory: PipeMemory) -> Self {
        Self { channel, memory, owes: AtomicBool::new(false) }
    }

    /// Wakes the other side, which said that it sleeps. If that cannot be now, it is done by the next call.
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
            // If there is no room it has doorbells enough; if it is gone it shows elsewhere.
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

    /// Tells the other side where this one runs.
    #[inline]
    pub(super) fn publish_cpu<S: Side>(&self, sleeper: &mut Sleeper) {
        publish_cpu(&mut sleeper.cpu, S::cpus(&self.memory).0, os::current_cpu());
    }

    /// What the other side wrote cannot be: nothing goes on here.
    #[cold]
    pub(super) fn break_off(&self) -> Error {
        self.channel.end.break_off(Error::BadPeer("a counter of a data pipe that cannot be"))
    }

    /// Takes a doorbell, or waits for one.
    fn take_doorbell(&self, deadline: Deadline) -> Result<(), Error> {
        match self.channel.recv_into(&mut [], deadline) {
            Ok(doorbell) => {
                drop(doorbell);
                Ok(())
            }
            Err(Error::BufferTooSmall { .. }) => {
                Err(self.channel.end.break_off(Error::BadPeer("a doorbell that is a message")))
            }
            Err(error) => Err(error),
        }
    }

    /// The same for whoever looks on behalf of a set: without a look by which the set would be asked to look again.
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

    /// Takes the doorbells that are there. What stands in the way of more: [`Error::WouldBlock`], as a rule.
    pub(super) fn take_doorbells(&self) -> Error {
        for _ in 0..DOORBELLS {
            if let Err(error) = self.take_doorbell(Deadline::NOW) {
                return error;
            }
        }
        Error::WouldBlock
    }

    /// Waits until `ready`. What the other side did before it went is for the caller to look at.
    pub(super) fn wait<S: Side>(
        &self,
        sleeper: &mut Sleeper,
        deadline: Deadline,
        mut ready: impl FnMut() -> Result<bool, Error>,
    ) -> Result<Waited, Error> {
        if deadline.is_now() {
            // Whether it is gone shows here.
            return match self.take_doorbells() {
                _ if ready()? => Ok(Waited::Ready),
                Error::PeerClosed => Ok(Waited::Gone),
                error => Err(error),
            };
        }
        // Both would sleep.
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
            S::listen(&self.memory);
            match ready() {
                Ok(false) => {}
                news => {
                    sleeper.expect(S::listen_no_more(&self.memory));
                    return news.map(|_| Waited::Ready);
                }
            }
            let taken = self.take_doorbell(deadline);
            let noticed = S::listen_no_more(&self.memory);
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
