//! The record of a world, in shared memory that outlives each process. All processes write to the record.
//!
//! A channel has two ends with the numbers 2n and 2n + 1. The messages from an end are the **stream** with the number
//! of the end. The process of the end records how many messages it tries to send and how many were accepted. The
//! process of the other end records the number of received messages.
//!
//! A process can fuse two ends. Their streams end there, and stay in the ledger. The far end of each fused end
//! receives the rest of its old stream, and then the stream of the other far end: see [`Ledger::far_ends`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering::SeqCst};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

use crate::trail::Event;

/// The maximum number of processes started by a world, including the replacements of killed processes.
pub(crate) const LIVES: usize = 1 << 10;
/// The maximum number of threads of a process with channels.
pub(crate) const WALKERS: usize = 2;
/// The largest number of ends of channels in a world.
pub(crate) const ENDS: usize = 1 << 17;
/// The maximum number of ends for which one call waits.
pub(crate) const AWAITED: usize = 64;
/// The maximum number of calls without an answer that the ledger records for an end.
pub(crate) const CALLS: usize = 8;
/// The maximum number of messages recorded in [`End::unsettled`].
const UNSETTLED: usize = 4;
/// The class of channels for calls.
pub(crate) const FOR_CALLS: u64 = 4;
/// The number of calls of a thread whose results are stored: the last ones.
pub(crate) const EVENTS: usize = 512;
/// The maximum length of the text about a mistake of a process, in bytes.
const TEXT: usize = 8 << 10;

/// The class of channels whose ends may report each other as bad peers.
pub(crate) const FOR_REPORTS: u64 = 5;

/// Bits for the kinds of faults of a world.
pub(crate) mod faults {
    /// Processes may open few or no more descriptors. The controller causes such shortages, and the processes
    /// themselves do.
    pub(crate) const DESCRIPTORS: u32 = 1;
    /// Processes may map little or no more memory (`RLIMIT_AS`).
    pub(crate) const MEMORY: u32 = 2;
    /// The controller kills processes and starts others.
    pub(crate) const KILLS: u32 = 4;
    pub(crate) const STOPS: u32 = 8;
    pub(crate) const SIGNALS: u32 = 16;
}

/// A phase of a world; determines the task of the processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Phase {
    /// The processes take steps of all kinds.
    Run,
    /// The processes receive every message, and send nothing.
    Drain,
    /// The processes check that an end returns *peer closed* if the other end is gone.
    Lone,
    /// The processes drop everything and end.
    Close,
}

impl Phase {
    fn of(word: u32) -> Self {
        [Self::Run, Self::Drain, Self::Lone, Self::Close][word.min(3) as usize]
    }
}

/// The place of a channel end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The channel was not made yet, or could not be made.
    Nowhere,
    /// A thread has the end: the thread `walker` of the process `life`.
    Held { life: usize, walker: usize },
    /// The end is in a message: message `number` of the stream `stream`.
    Riding { stream: u32, number: u64 },
    /// A process connects, and the other process has not received from the accepted channel yet.
    Offered,
    /// The process of the end dropped the end.
    Closed,
    /// The end was in a message whose handles were lost.
    Lost,
    /// The process `life` is in a call that fuses the end with the end `with`.
    Fusing { life: usize, with: u32 },
    /// The end was fused with the end `with`.
    Fused { with: u32 },
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
            Self::Fusing { life, with } => 6 | u64::from(with) << 4 | (life as u64) << 24,
            Self::Fused { with } => 7 | u64::from(with) << 4,
        }
    }

    fn of(word: u64) -> Self {
        match word & 15 {
            0 => Self::Nowhere,
            1 => Self::Held { life: (word >> 4 & 0xfff) as usize, walker: (word >> 16 & 15) as usize },
            2 => Self::Riding { stream: (word >> 4 & 0xf_ffff) as u32, number: word >> 24 },
            3 => Self::Offered,
            4 => Self::Closed,
            6 => Self::Fusing { life: (word >> 24) as usize, with: (word >> 4 & 0xf_ffff) as u32 },
            7 => Self::Fused { with: (word >> 4 & 0xf_ffff) as u32 },
            _ => Self::Lost,
        }
    }
}

/// The state of a call, as recorded by the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Ask {
    /// The caller is in the library call that begins the call.
    Begins = 1,
    /// The request was sent, and the caller has not cancelled the call.
    Sent = 2,
    /// The caller has cancelled the call, or the deadline of the call may have passed.
    MayEnd = 3,
    /// The call has an answer, or its request was not sent.
    Over = 4,
}

/// The state of a call, as recorded by the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub(crate) enum Answer {
    /// The server has not begun to answer.
    None = 0,
    /// The server is in the library call that sends the reply or drops the request.
    Begins = 1,
    Sent = 2,
    Dropped = 3,
}

/// The record of an end and of the stream of messages sent by the end. If the channel is for calls, the stream has
/// the requests of the end, `received` is the number of the last received request plus 1, and `accepted` is not used.
#[derive(Debug)]
pub(crate) struct End {
    /// The number of messages that the end tried to send, counted before each call.
    pub(crate) tried: AtomicU64,
    /// The number of messages whose send call returned success.
    pub(crate) accepted: AtomicU64,
    /// The number of messages that the other end received and found correct.
    pub(crate) received: AtomicU64,
    /// The class of the channel. An end moves only in messages of channels of a lower class, so no end is in a
    /// message to itself.
    pub(crate) class: AtomicU64,
    /// 1 if the end was used by a process with a shortage. If so, handles in messages of the end may be lost.
    pub(crate) hardship: AtomicU64,
    /// 1 if the end was closed in a shortage.
    pub(crate) is_closed_in_shortage: AtomicU64,
    /// 1 if a call on the other end reported this end as gone while the message with this end was unreceived. This end
    /// must then never arrive.
    pub(crate) is_presumed_lost: AtomicU64,
    place: AtomicU64,
    /// The last calls of the end: for each, the number of the call plus 1, and an [`Ask`].
    asks: [AtomicU64; CALLS],
    /// The state of the last calls of the end at the server: for each, the number of the call plus 1, and an
    /// [`Answer`].
    answers: [AtomicU64; CALLS],
    /// Messages with the end, received before their senders recorded the messages as accepted, each as the word of
    /// [`Place::Riding`]; 0 for none.
    unsettled: [AtomicU64; UNSETTLED],
}

impl End {
    pub(crate) fn place(&self) -> Place {
        Place::of(self.place.load(SeqCst))
    }

    pub(crate) fn put(&self, place: Place) {
        self.place.store(place.word(), SeqCst);
    }

    /// Returns the state of call `number`, as recorded by the caller; `None` if the record is of another call.
    pub(crate) fn ask(&self, number: u64) -> Option<Ask> {
        let states = [Ask::Begins, Ask::Sent, Ask::MayEnd, Ask::Over];
        let word = self.asks[number as usize % CALLS].load(SeqCst);
        states.into_iter().find(|ask| word == (number + 1) << 3 | *ask as u64)
    }

    pub(crate) fn put_ask(&self, number: u64, ask: Ask) {
        self.asks[number as usize % CALLS].store((number + 1) << 3 | ask as u64, SeqCst);
    }

    /// Returns the state of call `number`, as recorded by the server.
    pub(crate) fn answer(&self, number: u64) -> Answer {
        let states = [Answer::Begins, Answer::Sent, Answer::Dropped];
        let word = self.answers[number as usize % CALLS].load(SeqCst);
        states.into_iter().find(|answer| word == (number + 1) << 3 | *answer as u64).unwrap_or(Answer::None)
    }

    pub(crate) fn put_answer(&self, number: u64, answer: Answer) {
        let place = &self.answers[number as usize % CALLS];
        // The caller may have forgotten the call, and may use the record for a later call.
        if place.load(SeqCst) >> 3 <= number + 1 {
            place.store((number + 1) << 3 | answer as u64, SeqCst);
        }
    }

    /// Returns the number of a sent call that is neither answered nor cancelled. With `only_new`, returns only a call
    /// whose request was not received yet.
    pub(crate) fn open_call(&self, only_new: bool) -> Option<u64> {
        let first = if only_new { self.received.load(SeqCst) } else { 0 };
        let numbers = self.asks.iter().filter_map(|ask| (ask.load(SeqCst) >> 3).checked_sub(1));
        numbers.filter(|number| *number >= first).find(|number| self.ask(*number) == Some(Ask::Sent))
    }

    /// Returns whether a message of the end's stream was accepted and not received.
    pub(crate) fn is_unread(&self) -> bool {
        self.received.load(SeqCst) < self.accepted.load(SeqCst)
    }

    /// Returns the streams and numbers of messages with the end, received before their senders recorded the messages as
    /// accepted.
    pub(crate) fn unsettled(&self) -> impl Iterator<Item = (u32, u64)> {
        self.unsettled.iter().filter_map(|place| match Place::of(place.load(SeqCst)) {
            Place::Riding { stream, number } => Some((stream, number)),
            _ => None,
        })
    }
}

/// Returns the number of the end made together with `end`. After a fuse, `end` has another peer: see
/// [`Ledger::peer`].
pub(crate) fn other(end: u32) -> u32 {
    end ^ 1
}

/// The record of a thread: its present call, and its last calls.
#[derive(Debug)]
pub(crate) struct Walk {
    /// The thread's number in the kernel; 0 if the process has no such thread.
    pub(crate) thread: AtomicU32,
    /// A counter that is odd while the thread is in a call.
    pub(crate) calls: AtomicU64,
    pub(crate) call: AtomicU32,
    /// The end of the present call.
    pub(crate) end: AtomicU32,
    /// The time at which the call began, in nanoseconds of the shared clock.
    pub(crate) begin: AtomicU64,
    pub(crate) patience: AtomicU64,
    /// The number of awaited ends: the present call waits for messages of so many ends in `awaited`.
    pub(crate) awaits: AtomicU64,
    pub(crate) awaited: [AtomicU32; AWAITED],
    /// If the thread waits for an answer at the first end in `awaited`, the number of the call plus 1; 0 if the
    /// thread waits for messages or requests.
    pub(crate) awaits_answer: AtomicU64,
    /// The last phase that the thread has finished.
    pub(crate) done: AtomicU32,
    /// The number of passes over all ends of the thread in which no message arrived.
    pub(crate) quiet: AtomicU64,
    pub(crate) next_event: AtomicU64,
    pub(crate) events: [Event; EVENTS],
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Ending {
    /// The process recorded no ending.
    None = 0,
    /// The process has closed everything, and nothing was left.
    Done = 1,
    /// The process found and recorded a mistake.
    Wrong = 2,
}

/// The record of a process, from its start to its end.
#[derive(Debug)]
pub(crate) struct Life {
    pub(crate) pid: AtomicU32,
    /// The index of the process among the processes of the world that run at the same time.
    pub(crate) slot: AtomicU32,
    pub(crate) seed: AtomicU64,
    /// 1 if the controller kills the process; set before the kill.
    pub(crate) doomed: AtomicU32,
    ending: AtomicU32,
    /// The number of shortages that have begun.
    shortages: AtomicU64,
    shortages_over: AtomicU64,
    /// Nanoseconds for which the process was stopped.
    pub(crate) stopped: AtomicU64,
    /// Nanoseconds for which a thread was past its deadline while a thread of this process did work of the kernel for
    /// all processes, as far as noticed by the controller.
    pub(crate) in_kernel: AtomicU64,
    /// Nanoseconds for which threads of the process, in a build that checks for lost wake-ups, waited for the sign of a
    /// wake-up.
    pub(crate) in_checks: AtomicU64,
    /// 1 once the process has started its threads; then faults may begin.
    pub(crate) is_ready: AtomicU32,
    /// The end concerned by the recorded mistake, plus 1; 0 for none.
    pub(crate) about: AtomicU32,
    /// The increase of the allocated bytes of the process, from its start to its end.
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

    /// Records that a shortage begins; called before the begin.
    pub(crate) fn begin_shortage(&self) {
        self.shortages.fetch_add(1, SeqCst);
    }

    /// Records that a shortage is over; called after the end.
    pub(crate) fn end_shortage(&self) {
        self.shortages_over.fetch_add(1, SeqCst);
    }

    /// Returns the number of shortages that are over.
    pub(crate) fn shortages_over(&self) -> u64 {
        self.shortages_over.load(SeqCst)
    }

    /// Returns whether there was a shortage since `over` shortages were over.
    pub(crate) fn is_short_since(&self, over: u64) -> bool {
        self.shortages.load(SeqCst) != over
    }

    /// Returns whether the process lacks something now.
    pub(crate) fn is_short(&self) -> bool {
        self.is_short_since(self.shortages_over())
    }

    pub(crate) fn has_been_short(&self) -> bool {
        self.is_short_since(0)
    }

    /// Appends `text` to the text of the process. Text that does not fit is cut off.
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

/// The record of a world: its phase, its processes and its ends.
#[derive(Debug)]
pub(crate) struct Ledger {
    phase: AtomicU32,
    /// The begin of the world, in nanoseconds of the shared clock.
    pub(crate) begin: AtomicU64,
    /// Nanoseconds for which the whole machine stood still, as far as noticed by the controller.
    pub(crate) pauses: AtomicU64,
    /// The time when a thread of the controller entered a call for sending a socket; 0 outside such calls.
    pub(crate) sends_since: AtomicU64,
    next_channel: AtomicU32,
    /// The kinds of faults of the world: bits of [`faults`].
    pub(crate) faults: AtomicU32,
    /// The number of guests that returned every message and ended.
    pub(crate) guests: AtomicU32,
    /// The number of reports of bad peers that closed a link.
    pub(crate) reports: AtomicU32,
    pub(crate) slots: AtomicU32,
    pub(crate) seed: AtomicU64,
    pub(crate) lives: [Life; LIVES],
    ends: [End; ENDS],
}

impl Ledger {
    /// Creates zeroed memory for a new ledger.
    pub(crate) fn memory() -> OwnedFd {
        let fd = memfd_create("ledger", MemfdFlags::empty()).expect("memory for a ledger");
        ftruncate(&fd, size_of::<Self>() as u64).expect("memory for a ledger");
        fd
    }

    /// Maps the ledger in `memory` until the process ends.
    pub(crate) fn map(memory: BorrowedFd<'_>) -> &'static Self {
        let (len, access) = (size_of::<Self>(), ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: a null hint makes the kernel choose fresh address space.
        let mapped = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, memory, 0) };
        // SAFETY: the mapping has the right size, is aligned to a page and is never unmapped. All zeroes are a valid
        // ledger, and every process accesses the ledger by atomics only.
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

    /// Returns whether the sender of message `number` of `stream` recorded the message as accepted.
    pub(crate) fn is_settled(&self, stream: u32, number: u64) -> bool {
        self.end(stream).accepted.load(SeqCst) > number
    }

    /// Records that `end` arrived in message `number` of `stream`, unless the sender recorded the message as
    /// accepted.
    pub(crate) fn note_arrival(&self, end: u32, stream: u32, number: u64) {
        if self.is_settled(stream, number) {
            return;
        }
        let is_free = |place: &&AtomicU64| match Place::of(place.load(SeqCst)) {
            Place::Riding { stream, number } => self.is_settled(stream, number),
            _ => true,
        };
        if let Some(place) = self.end(end).unsettled.iter().find(is_free) {
            place.store(Place::Riding { stream, number }.word(), SeqCst);
        }
    }

    /// Returns the ends from which `end` receives, in this order. The first is the end made together with `end`. If an
    /// end was fused or is being fused, the next is the end at which the fused channel continues.
    pub(crate) fn far_ends(&self, end: u32) -> impl Iterator<Item = u32> {
        let next = |far: &u32| match self.end(*far).place() {
            Place::Fusing { with, .. } | Place::Fused { with } => Some(other(with)),
            _ => None,
        };
        // Two processes can try to fuse channels into a circle. One of the two calls fails then.
        std::iter::successors(Some(other(end)), next).take(ENDS)
    }

    /// Returns the other end of the channel of `end`.
    pub(crate) fn peer(&self, end: u32) -> u32 {
        self.far_ends(end).last().unwrap_or(other(end))
    }

    /// Returns whether the outcome of a fuse of the channel of `end` is unknown, because the fusing process was
    /// killed.
    pub(crate) fn is_fuse_unknown(&self, end: u32) -> bool {
        let is_unknown =
            |far| matches!(self.end(far).place(), Place::Fusing { life, .. } if self.lives[life].is_doomed());
        self.far_ends(end).any(is_unknown)
    }

    /// Returns the stream that `end` receives from at present.
    pub(crate) fn stream_to(&self, end: u32) -> u32 {
        let is_left = |stream: &u32| self.end(*stream).is_unread();
        self.far_ends(end).find(is_left).unwrap_or_else(|| self.peer(end))
    }

    /// Returns whether a message for `end` was accepted and not received.
    pub(crate) fn has_message(&self, end: u32) -> bool {
        self.far_ends(end).any(|stream| self.end(stream).is_unread())
    }

    /// Returns the number of ends made so far.
    pub(crate) fn ends(&self) -> u32 {
        2 * self.next_channel.load(SeqCst).min(ENDS as u32 / 2)
    }

    /// Makes a channel of `class`, and returns the first of its two ends; `None` if the ledger has no room for more
    /// channels.
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
