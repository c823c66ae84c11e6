//! What all processes of a world write down, in memory that outlives each of them.
//!
//! A channel has two ends with the numbers 2n and 2n + 1. What an end sends is a **stream** of the same number: its sender writes down
//! how many messages it tries to send, and how many were accepted; its receiver how many came. Both are wherever the ends are.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::trail::Event;

/// Most processes that a world can have, one after the other.
pub(crate) const LIVES: usize = 1 << 10;
/// Most threads of a process that use channels.
pub(crate) const WALKERS: usize = 2;
/// Most ends of channels.
pub(crate) const ENDS: usize = 1 << 17;
/// Most ends that one call waits for.
pub(crate) const AWAITED: usize = 64;
/// Results of calls that are known of a thread.
pub(crate) const EVENTS: usize = 512;
/// Bytes that a process can write of what is wrong.
const TEXT: usize = 8 << 10;

/// What the processes are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Phase {
    /// Anything.
    Run,
    /// Receive what there is, and send nothing.
    Drain,
    /// See that ends whose other ends are gone say so.
    Lone,
    /// Drop everything and end.
    Close,
}

impl Phase {
    fn of(word: u32) -> Self {
        [Self::Run, Self::Drain, Self::Lone, Self::Close][word.min(3) as usize]
    }
}

/// Where an end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The channel is not made yet, or could not be.
    Nowhere,
    /// A thread has it: the number of its process's life, and its own.
    Held { life: usize, walker: usize },
    /// It rides in a message: of which stream, and which message of that.
    Riding { stream: u32, number: u64 },
    /// A process connects, and another one has to accept.
    Offered,
    /// It was dropped by who had it.
    Closed,
    /// It was in a message whose handles were lost.
    Lost,
}

impl Place {
    fn word(self) -> u64 {
        match self {
            Self::Nowhere => 0,
            Self::Held { life, walker } => 1 | (life as u64) << 4 | (walker as u64) << 16,
            Self::Riding { stream, number } => 2 | u64::from(stream) << 4 | number << 24,
            Self::Offered => 3,
            Self::Closed => 4,
            Self::Lost => 5,
        }
    }

    fn of(word: u64) -> Self {
        match word & 15 {
            0 => Self::Nowhere,
            1 => Self::Held { life: (word >> 4 & 0xfff) as usize, walker: (word >> 16 & 15) as usize },
            2 => Self::Riding { stream: (word >> 4 & 0xf_ffff) as u32, number: word >> 24 },
            3 => Self::Offered,
            4 => Self::Closed,
            _ => Self::Lost,
        }
    }
}

/// An end, and the stream of what it sends.
#[derive(Debug)]
pub(crate) struct End {
    /// Messages that somebody tried to send.
    pub(crate) tried: AtomicU64,
    /// Messages of which a call said that they were accepted.
    pub(crate) accepted: AtomicU64,
    /// Messages that were received, and were right.
    pub(crate) received: AtomicU64,
    /// Ends ride in messages of channels of a lower class only, so that none lies in a message to itself.
    pub(crate) class: AtomicU64,
    /// Whether a process that lacked something had to do with it: then handles in its messages may be lost.
    pub(crate) hardship: AtomicU64,
    /// Whether its other end was told that it is gone while it rides in a message that nobody has received. Then it must never arrive.
    pub(crate) is_presumed_lost: AtomicU64,
    place: AtomicU64,
}

impl End {
    pub(crate) fn place(&self) -> Place {
        Place::of(self.place.load(SeqCst))
    }

    pub(crate) fn put(&self, place: Place) {
        self.place.store(place.word(), SeqCst);
    }
}

/// The other end of the same channel.
pub(crate) fn other(end: u32) -> u32 {
    end ^ 1
}

/// What a thread does right now, and what it did.
#[derive(Debug)]
pub(crate) struct Walk {
    /// Its number at the kernel.
    pub(crate) thread: AtomicU32,
    /// Odd while it is in a call.
    pub(crate) calls: AtomicU64,
    pub(crate) call: AtomicU32,
    /// The end that the call is about.
    pub(crate) end: AtomicU32,
    /// When the call began, and how long it may take, in nanoseconds.
    pub(crate) begin: AtomicU64,
    pub(crate) patience: AtomicU64,
    /// For a message at one of how many ends it waits, and which.
    pub(crate) awaits: AtomicU64,
    pub(crate) awaited: [AtomicU32; AWAITED],
    /// The phase that it has come to the end of.
    pub(crate) done: AtomicU32,
    /// Passes over all its ends in which nothing came.
    pub(crate) quiet: AtomicU64,
    pub(crate) next_event: AtomicU64,
    pub(crate) events: [Event; EVENTS],
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Ending {
    /// It did not say.
    None = 0,
    /// It has closed all and has nothing left.
    Done = 1,
    /// Something is wrong, and it said what.
    Wrong = 2,
}

/// A process, from its start to its end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) pid: AtomicU32,
    /// Which of the processes that there are at a time.
    pub(crate) slot: AtomicU32,
    pub(crate) seed: AtomicU64,
    /// Set before it is killed.
    pub(crate) doomed: AtomicU32,
    ending: AtomicU32,
    /// Shortages that have begun, and that have ended.
    shortages: AtomicU64,
    shortages_over: AtomicU64,
    /// Nanoseconds for which it was stopped.
    pub(crate) stopped: AtomicU64,
    /// Whether it has begun, so that faults may come.
    pub(crate) is_ready: AtomicU32,
    /// The end that is wrong, plus 1.
    pub(crate) about: AtomicU32,
    /// Bytes that it kept.
    pub(crate) kept: AtomicU64,
    pub(crate) walks: [Walk; WALKERS],
    length: AtomicU32,
    text: [AtomicU8; TEXT],
}

impl Life {
    pub(crate) fn is_doomed(&self) -> bool {
        self.doomed.load(SeqCst) != 0
    }

    pub(crate) fn ending(&self) -> Ending {
        match self.ending.load(SeqCst) {
            1 => Ending::Done,
            2 => Ending::Wrong,
            _ => Ending::None,
        }
    }

    pub(crate) fn ends(&self, how: Ending) {
        self.ending.store(how as u32, SeqCst);
    }

    /// A shortage begins. Said before it does.
    pub(crate) fn begin_shortage(&self) {
        self.shortages.fetch_add(1, SeqCst);
    }

    /// A shortage is over. Said after it is.
    pub(crate) fn end_shortage(&self) {
        self.shortages_over.fetch_add(1, SeqCst);
    }

    /// Shortages that are over by now.
    pub(crate) fn shortages_over(&self) -> u64 {
        self.shortages_over.load(SeqCst)
    }

    /// Whether there was a shortage since so many were over.
    pub(crate) fn is_short_since(&self, over: u64) -> bool {
        self.shortages.load(SeqCst) != over
    }

    pub(crate) fn has_been_short(&self) -> bool {
        self.is_short_since(0)
    }

    /// Writes down what there is to say. What is too long is cut off.
    pub(crate) fn say(&self, text: &str) {
        let begin = (self.length.fetch_add(text.len() as u32, SeqCst) as usize).min(TEXT);
        for (place, byte) in self.text[begin..].iter().zip(text.bytes()) {
            place.store(byte, SeqCst);
        }
    }

    pub(crate) fn said(&self) -> String {
        let length = (self.length.load(SeqCst) as usize).min(TEXT);
        let bytes: Vec<u8> = self.text[..length].iter().map(|byte| byte.load(SeqCst)).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

/// All of it.
#[derive(Debug)]
pub(crate) struct Ledger {
    phase: AtomicU32,
    /// Nanoseconds for which the machine as a whole stood still, as far as the controller noticed.
    pub(crate) pauses: AtomicU64,
    next_channel: AtomicU32,
    /// Faults that the world has: bits of [`crate::controller::Faults`].
    pub(crate) faults: AtomicU32,
    pub(crate) slots: AtomicU32,
    pub(crate) seed: AtomicU64,
    pub(crate) lives: [Life; LIVES],
    ends: [End; ENDS],
}

impl Ledger {
    /// Memory for a new one.
    pub(crate) fn memory() -> OwnedFd {
        let fd = memfd_create("ledger", MemfdFlags::empty()).expect("memory for a ledger");
        ftruncate(&fd, size_of::<Self>() as u64).expect("memory for a ledger");
        fd
    }

    /// The ledger in this memory, for as long as the process lives.
    pub(crate) fn map(memory: BorrowedFd<'_>) -> &'static Self {
        let (len, access) = (size_of::<Self>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a null hint makes the kernel choose fresh address space.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0) };
        // SAFETY: a mapping of the right size, aligned to a page, never unmapped; all zeroes are a ledger, and every process
        // that has it uses it as atomics only.
        unsafe { &*mapped.expect("a mapping of the ledger").cast::<Self>() }
    }

    pub(crate) fn phase(&self) -> Phase {
        Phase::of(self.phase.load(SeqCst))
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u32, SeqCst);
    }

    pub(crate) fn end(&self, end: u32) -> &End {
        &self.ends[end as usize]
    }

    /// How many ends there are.
    pub(crate) fn ends(&self) -> u32 {
        2 * self.next_channel.load(SeqCst).min(ENDS as u32 / 2)
    }

    /// The first end of a new channel; `None` if there were too many.
    pub(crate) fn new_channel(&self, class: u64) -> Option<u32> {
        let channel = self.next_channel.fetch_add(1, SeqCst);
        if channel as usize >= ENDS / 2 {
            return None;
        }
        for end in [2 * channel, 2 * channel + 1] {
            self.end(end).class.store(class, SeqCst);
        }
        Some(2 * channel)
    }
}
