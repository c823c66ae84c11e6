//! A rendezvous over each message: the sender lends the message, and continues when the receiver has taken it.
//!
//! A rendezvous is needed if the receiver copies out of the sender's own memory, which the caller may change as soon
//! as the call returns. Two words for each direction count the lent and the taken messages. With polling, both sides
//! read the words continuously; blocking, the words are futexes.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::shm::bell::{Bell, Futex, look};
use super::{Opened, Side, exactly};
use crate::sys::shared::{APART, PAGE, Shared};
use crate::trouble::{Result, While};
use crate::work::{Wait, Work};

/// The offsets of the counters of lent messages, one for each direction, behind the words of the bells (futexes).
const LENT: [usize; 2] = [8 * APART, 9 * APART];
/// The offsets of the counters of taken messages, one for each direction.
const TAKEN: [usize; 2] = [10 * APART, 11 * APART];
/// The distance from the counter of lent messages to the value about the last lent message, in one cache line.
const WITH: usize = 8;

/// The shared counters of lent and taken messages, as used by one side.
#[derive(Debug)]
pub(super) struct Rendezvous {
    memory: Shared,
    polled: bool,
    futex: Futex,
    out: usize,
    inward: usize,
    lent: u64,
    taken: u64,
}

impl Rendezvous {
    /// Creates the memory with the shared words, and returns a descriptor of it for each side.
    pub(super) fn open() -> Result<Opened> {
        let memory = Shared::create(PAGE)?;
        let other = memory.try_clone().doing("dup")?;
        Ok(Opened { first: vec![memory], second: vec![other] })
    }

    /// Maps the shared memory, from a side's descriptor.
    pub(super) fn join(work: &Work, side: Side, descriptors: Vec<OwnedFd>) -> Result<Self> {
        let [memory] = exactly(descriptors)?;
        let (out, inward) = side.of(0, 1);
        let futex = Futex::join(work, Vec::new())?;
        let polled = work.wait == Wait::Spin;
        Ok(Self { memory: Shared::map(memory, PAGE)?, polled, futex, out, inward, lent: 0, taken: 0 })
    }

    #[inline]
    fn wait(&mut self, at: usize, due: u64, bell: usize) -> Result<()> {
        let word = self.memory.word(at);
        if self.polled {
            look(|| word.load(Acquire) == due);
            return Ok(());
        }
        self.futex.wait(&self.memory, bell, || word.load(Acquire) == due)
    }

    #[inline]
    fn set(&mut self, at: usize, to: u64, bell: usize) -> Result<()> {
        self.memory.word(at).store(to, Release);
        if self.polled { Ok(()) } else { self.futex.ring(&self.memory, bell) }
    }

    /// Lends a message to the receiver. `with` describes the message, for instance by an address.
    #[inline]
    pub(super) fn lend(&mut self, with: u64) -> Result<()> {
        self.memory.put(LENT[self.out] + WITH, &with.to_ne_bytes());
        self.lent += 1;
        self.set(LENT[self.out], self.lent, 2 * self.out)
    }

    /// Counts a loan without publishing it: the receiver learns of the message in another way.
    #[inline]
    pub(super) fn count_loan(&mut self) {
        self.lent += 1;
    }

    /// Waits until the receiver has taken the last message that was lent.
    #[inline]
    pub(super) fn wait_until_taken(&mut self) -> Result<()> {
        self.wait(TAKEN[self.out], self.lent, 2 * self.out + 1)
    }

    /// Waits until a message is lent, and returns its description.
    #[inline]
    pub(super) fn borrow(&mut self) -> Result<u64> {
        self.wait(LENT[self.inward], self.taken + 1, 2 * self.inward)?;
        let mut with = [0; 8];
        self.memory.get(LENT[self.inward] + WITH, &mut with);
        Ok(u64::from_ne_bytes(with))
    }

    /// Tells the sender that the message was taken.
    #[inline]
    pub(super) fn take(&mut self) -> Result<()> {
        self.taken += 1;
        self.set(TAKEN[self.inward], self.taken, 2 * self.inward + 1)
    }
}
