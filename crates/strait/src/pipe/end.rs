//! The code that both ends of a data pipe share: how the ends wait for each other, and how they receive doorbells.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::channel::pipe_end::{PipeCore, Sleeper};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::waiter;
use crate::os::{self, fault};
use crate::ring::stream::{Reading, Words, Writing, publish_cpu};
use crate::shm::PipeMemory;
use crate::signals;
use crate::wake::strict;

/// The greatest number of doorbells (empty messages on the pipe's channel that wake this side) that one call receives
/// while looking for bytes or room.
const DOORBELLS: usize = 64;

/// The greatest number of doorbells that one wait receives although this side was not asleep in the shared memory. An
/// honest peer sends one doorbell for each sleep that it has seen, so only as many are in flight as its ring holds.
const STRAY_DOORBELLS: u32 = 1 << 16;

/// The writing or the reading side of a data pipe: the operations on shared memory that differ between the two sides.
pub(super) trait Side {
    /// Records in this side's sleep word, in the shared memory, that this side is about to sleep. If the other side
    /// then writes or reads bytes, it sends a doorbell (an empty message). After the call the caller must look once
    /// more for bytes or room, and may sleep only then.
    fn arm<W: Words>(words: &W);
    /// Clears this side's sleep word: this side counts as awake. Returns whether the other side has already taken the
    /// sleeper: then a doorbell (an empty message that wakes this side) is in flight or about to be sent.
    fn disarm(words: &impl Words) -> bool;
    /// Returns whether this side counts as asleep, by its sleep word.
    fn is_armed(words: &PipeMemory) -> bool;
    /// Returns two words of the shared memory in which the sides publish the CPU on which they run: first the word of
    /// this side, then the word of the other side.
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32);
}

impl Side for Writing {
    fn arm<W: Words>(words: &W) {
        Self::arm(words);
    }
    fn disarm(words: &impl Words) -> bool {
        Self::disarm(words)
    }
    fn is_armed(words: &PipeMemory) -> bool {
        words.waiting().load(Ordering::SeqCst) != 0
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
    fn is_armed(words: &PipeMemory) -> bool {
        words.sleeping().load(Ordering::SeqCst) != 0
    }
    fn cpus(memory: &PipeMemory) -> (&AtomicU32, &AtomicU32) {
        (memory.consumer_cpu(), memory.producer_cpu())
    }
}

impl Sleeper {
    /// Counts one more doorbell to be received later, if `noticed` is true. `noticed` is the result of
    /// [`Side::disarm`]: whether the other side had seen the sleep word and sends a doorbell, although this side has
    /// not slept.
    pub(super) fn expect(&mut self, noticed: bool) {
        self.owed = self.owed.saturating_add(noticed.into());
    }
}

/// The result of a wait on a data pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    Ready,
    /// `Gone`: the other end was closed, or its process died. The caller must look once more for bytes or room, since
    /// the other end may have read or written before closing.
    Gone,
}

impl PipeCore {
    /// Publishes to the other side the number of the CPU on which the calling thread runs, if the number has changed
    /// since the last time.
    #[inline]
    pub(super) fn publish_cpu<S: Side>(&self, sleeper: &mut Sleeper) {
        publish_cpu(&mut sleeper.cpu, S::cpus(&self.memory).0, os::current_cpu());
    }

    /// Returns whether this side counts as asleep, by its sleep word, and the other side is alive. For the [check for
    /// lost wake-ups](crate::wake::strict).
    pub(super) fn is_armed<S: Side>(&self) -> bool {
        S::is_armed(&self.memory) && !self.channel.end.may_be_silent()
    }

    /// Returns whether no doorbell has come that this side has not received, and the other side is alive. For the
    /// [check for lost wake-ups](crate::wake::strict).
    fn has_no_doorbell(&self) -> bool {
        !self.channel.end.is_readable() && !self.channel.end.may_be_silent()
    }

    /// Ends the pipe's channel, because the other side published an impossible number of bytes and so is a bad peer.
    /// Returns the error that the caller reports: [`Error::BadPeer`].
    #[cold]
    pub(super) fn break_off(&self) -> Error {
        self.channel.end.break_off(Error::BadPeer("an impossible counter in a data pipe"))
    }

    /// Receives one doorbell; waits for a doorbell until `deadline`. Fails with [`Error::BadPeer`] if the other side
    /// sent a message that is not empty.
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

    /// Receives the doorbells that have arrived, for a wait set that asks whether the end is ready. Before each
    /// receive, checks whether a doorbell is there: a failed receive would make the wait set ask again. Returns the
    /// reason why no more doorbells were received: usually [`Error::WouldBlock`].
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

    /// Receives the doorbells that have arrived, at most [`DOORBELLS`]. Returns the reason why no more doorbells were
    /// received: usually [`Error::WouldBlock`].
    pub(super) fn take_doorbells(&self) -> Error {
        for _ in 0..DOORBELLS {
            if let Err(error) = self.take_doorbell(Deadline::NOW) {
                return error;
            }
        }
        Error::WouldBlock
    }

    /// Waits until `ready` returns true, the other end has closed, or the deadline has passed, which is an error.
    /// `ready` looks for the bytes or the room that the caller needs. If the other end has closed, the caller must look
    /// once more: the other end may have read or written before.
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
        let interruption = self.channel.end.interruption();
        // An unsent doorbell goes first, or both sides would sleep.
        while let Err(error) = self.make_up() {
            match error {
                Error::WouldBlock if deadline.has_passed() => return Err(Error::TimedOut),
                Error::WouldBlock => interruption.check()?,
                error => return Err(error),
            }
        }
        self.publish_cpu::<S>(sleeper);
        let mut outcome = None;
        let mut looked = || match ready() {
            Ok(false) => false,
            news => {
                outcome = Some(news);
                true
            }
        };
        let options = &self.channel.end.options;
        let cpu = S::cpus(&self.memory).1;
        if waiter::spin(cpu, options.wait, options.spin, deadline, interruption, &mut looked) {
            return outcome.unwrap_or(Ok(true)).map(|_| Waited::Ready);
        }
        let mut strays = 0;
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
            if taken.is_err_and(|error| error != Error::PeerClosed) {
                strict::expect_wake("on a data pipe, whose sleep word is not taken", || {
                    ready() == Ok(true) && self.is_armed::<S>()
                });
                strict::expect_wake("on a data pipe, and no doorbell comes", || {
                    ready() == Ok(true) && self.has_no_doorbell()
                });
            }
            let noticed = S::disarm(&self.memory);
            match taken {
                // Without a limit, a peer that has filled its ring with doorbells would keep this thread busy for ever,
                // even after its death.
                Ok(()) if !noticed && strays == STRAY_DOORBELLS => {
                    return Err(self.channel.end.break_off(Error::BadPeer("doorbells without end beside a data pipe")));
                }
                Ok(()) => strays += u32::from(!noticed),
                Err(Error::PeerClosed) => return Ok(Waited::Gone),
                Err(error) => {
                    sleeper.expect(noticed);
                    if !ready()? {
                        return Err(error);
                    }
                    signals::postpone(error);
                    return Ok(Waited::Ready);
                }
            }
            if ready()? {
                return Ok(Waited::Ready);
            }
            // A receive that finds a doorbell ends neither at the deadline nor at an interruption.
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            interruption.check()?;
        }
    }
}
