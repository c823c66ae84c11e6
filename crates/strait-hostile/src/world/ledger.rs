//! The ledger: memory shared by the processes of a world, and read by the controller.
//!
//! Each actor writes a step to its trail before the step, so that the trail is complete however the actor ends. For
//! each thread of the victim, the ledger has the present call, its begin, and how long the call may take.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::memory::Memory;

/// A process of a world that writes a trail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The process that uses the library and is under attack.
    Victim,
    /// The hostile peer of the victim.
    Attacker,
    /// An honest peer of the victim.
    Bystander,
}

/// A word of the ledger, readable and writable by all processes of a world.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// The present phase, as a number.
    Phase,
    /// The number of the phase entered by the victim, counted from the start of the round.
    VictimIn,
    /// The number of the phase entered by the bystander, counted from the start of the round.
    BystanderIn,
    /// The number of phases that have begun in this round.
    Phases,
    /// Microseconds of work that the victim may spend on everything received so far.
    Work,
    /// Microseconds of work that the victim may spend on the valid messages of the attacker.
    Valid,
    /// The number of steps taken by the attacker.
    Steps,
    /// The number of calls finished by the victim.
    Calls,
    /// The number of round trips between the bystander and the victim.
    RoundTrips,
    /// The time of the bystander's longest round trip in this round, in nanoseconds.
    Longest,
    /// The number of mistakes found; the ledger stores only the first 32.
    Findings,
    /// The number of descriptors that the victim's program took out of messages and has not closed yet.
    Own,
    /// The number of descriptors in messages that the victim's program has received and still holds. They are not
    /// charged to the peer any more.
    InMessages,
    /// The largest sum so far of the nanoseconds for which the victim's threads have waited for a processor.
    Delays,
}

/// A phase of a round, which tells each process what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// The processes get ready.
    Begin = 0,
    /// The attacker attacks, the victim uses every call, and the bystander measures.
    Active = 1,
    /// The attacker attacks, the victim only waits, and the bystander does nothing.
    Quiet = 2,
    /// The attacker is gone; the victim closes everything.
    LetGo = 3,
    /// All processes exit.
    End = 4,
}

const SLOTS_AT: usize = 4096;
const SLOT: usize = 128;
/// The number of threads of the victim with recorded calls.
pub const SLOTS: usize = 8;
const FINDINGS_AT: usize = 8192;
const MOST_FINDINGS: usize = 32;
const TRAILS_AT: usize = 16384;
const LINE: usize = 160;
const LINES: usize = 2048;
const TRAIL: usize = 64 + LINES * LINE;
const TRIPS_AT: usize = TRAILS_AT + 3 * TRAIL;
/// The number of stored times of round trips; each further round trip replaces the oldest.
pub const TRIPS: usize = 4096;
const BYTES: usize = TRIPS_AT + TRIPS * 8;

/// Returns the time of `CLOCK_MONOTONIC`, which is equal in all processes.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns how long this thread has waited for a processor so far; zero if the kernel does not report that time.
pub fn delay() -> Duration {
    figure_in("/proc/thread-self/schedstat", 1)
}

/// Returns how long a thread of another process has waited for a processor so far; zero if the kernel does not say.
pub fn delay_of(process: u32, thread: u64) -> Duration {
    figure_in(&format!("/proc/{process}/task/{thread}/schedstat"), 1)
}

/// Returns the processor time used so far by a thread of another process; zero if the kernel does not report that
/// time.
pub fn used_of(process: u32, thread: u64) -> Duration {
    figure_in(&format!("/proc/{process}/task/{thread}/schedstat"), 0)
}

fn figure_in(path: &str, nth: usize) -> Duration {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Duration::from_nanos(text.split(' ').nth(nth).and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// The memory shared by the processes of a round: words, findings, calls in progress, trails and times.
#[derive(Debug)]
pub struct Ledger {
    memory: Memory,
}

/// A call in progress of a thread of the victim.
#[derive(Clone, Debug)]
pub struct Call {
    /// A counter that is odd during a call, and differs between two calls of one slot.
    pub number: u64,
    /// The kernel's number of the calling thread.
    pub thread: u64,
    /// The time at which the call began, from [`now`].
    pub begun: Duration,
    /// How long the call may take.
    pub allowed: Duration,
    /// How long the thread had waited for a processor when the call began.
    pub delay: Duration,
    /// The processor time that the thread had used when the call began.
    pub used: Duration,
    /// The name of the call, cut to 72 bytes.
    pub name: String,
}

impl Ledger {
    /// Creates the ledger of a round, zeroed.
    pub fn create() -> io::Result<Self> {
        Ok(Self { memory: Memory::create(BYTES)? })
    }

    /// Maps the ledger created by another process.
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { memory: Memory::map(file)? })
    }

    /// Returns the descriptor of the ledger's memory, to be given to other processes.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Returns a word of the ledger for atomic access.
    pub fn word(&self, word: Word) -> &AtomicU64 {
        self.memory.word64(word as usize * 64)
    }

    /// Returns the value of a word.
    pub fn get(&self, word: Word) -> u64 {
        self.word(word).load(SeqCst)
    }

    /// Adds `more` to a word.
    pub fn add(&self, word: Word, more: u64) {
        self.word(word).fetch_add(more, SeqCst);
    }

    /// Begins a phase for all processes, and returns its number.
    pub fn begin_phase(&self, phase: Phase) -> u64 {
        self.word(Word::Phase).store(phase as u64, SeqCst);
        self.word(Word::Phases).fetch_add(1, SeqCst) + 1
    }

    /// Returns the present phase and its number.
    pub fn phase(&self) -> (Phase, u64) {
        let number = self.get(Word::Phases);
        let phase = match self.get(Word::Phase) {
            0 => Phase::Begin,
            1 => Phase::Active,
            2 => Phase::Quiet,
            3 => Phase::LetGo,
            _ => Phase::End,
        };
        (phase, number)
    }

    fn put_text(&self, at: usize, room: usize, text: &str) {
        let bytes = &text.as_bytes()[..text.len().min(room - 8)];
        self.memory.write(at + 8, bytes);
        self.memory.word64(at).store(bytes.len() as u64, SeqCst);
    }

    fn text(&self, at: usize, room: usize) -> String {
        let len = (self.memory.word64(at).load(SeqCst) as usize).min(room - 8);
        String::from_utf8_lossy(&self.memory.read(at + 8, len)).into_owned()
    }

    /// Adds the next step of an actor to its trail.
    pub fn note(&self, actor: Actor, text: &str) {
        let trail = TRAILS_AT + actor as usize * TRAIL;
        let nth = self.memory.word64(trail).fetch_add(1, SeqCst) as usize;
        let line = trail + 64 + nth % LINES * LINE;
        self.memory.word64(line).store(now().as_micros() as u64, SeqCst);
        self.put_text(line + 8, LINE - 8, text);
    }

    /// Returns the last `most` lines of all trails together, in the order of time.
    pub fn trail(&self, most: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for actor in [Actor::Victim, Actor::Attacker, Actor::Bystander] {
            let trail = TRAILS_AT + actor as usize * TRAIL;
            let count = self.memory.word64(trail).load(SeqCst) as usize;
            for nth in count.saturating_sub(LINES)..count {
                let line = trail + 64 + nth % LINES * LINE;
                let time = self.memory.word64(line).load(SeqCst);
                lines.push((time, format!("{actor:?}: {}", self.text(line + 8, LINE - 8))));
            }
        }
        lines.sort_by_key(|(time, _)| *time);
        let first = lines.first().map_or(0, |(time, _)| *time);
        let skipped = lines.len().saturating_sub(most);
        lines[skipped..].iter().map(|(time, text)| format!("{:9.3} ms  {text}", (time - first) as f64 / 1e3)).collect()
    }

    /// Records a mistake.
    pub fn find(&self, text: &str) {
        let nth = self.word(Word::Findings).fetch_add(1, SeqCst) as usize;
        if nth < MOST_FINDINGS {
            self.put_text(FINDINGS_AT + nth * 256, 256, text);
        }
    }

    /// Returns the recorded mistakes, at most 32.
    pub fn findings(&self) -> Vec<String> {
        let count = (self.get(Word::Findings) as usize).min(MOST_FINDINGS);
        (0..count).map(|nth| self.text(FINDINGS_AT + nth * 256, 256)).collect()
    }

    /// Records the begin of a call that may take `allowed` in the slot of this thread, and makes the slot's counter
    /// odd. Returns the time.
    pub fn begin_call(&self, slot: usize, name: &str, allowed: Duration) -> Duration {
        let at = SLOTS_AT + slot * SLOT;
        let (begun, delay) = (now(), delay());
        let put = |word: usize, value: u64| self.memory.word64(at + word * 8).store(value, SeqCst);
        put(1, begun.as_nanos() as u64);
        put(2, allowed.as_nanos() as u64);
        put(3, delay.as_nanos() as u64);
        put(4, rustix::thread::gettid().as_raw_nonzero().get() as u64);
        let used = clock_gettime(ClockId::ThreadCPUTime);
        put(5, used.tv_sec as u64 * 1_000_000_000 + used.tv_nsec as u64);
        self.put_text(at + 48, SLOT - 48, name);
        self.memory.word64(at).fetch_add(1, SeqCst);
        begun
    }

    /// Records the end of a call in the slot of this thread, and makes the slot's counter even.
    pub fn end_call(&self, slot: usize) {
        self.memory.word64(SLOTS_AT + slot * SLOT).fetch_add(1, SeqCst);
        self.add(Word::Calls, 1);
    }

    /// Returns the call in progress in this slot; `None` if there is none, or if the thread changed calls meanwhile.
    pub fn call(&self, slot: usize) -> Option<Call> {
        let at = SLOTS_AT + slot * SLOT;
        let get = |word: usize| self.memory.word64(at + word * 8).load(SeqCst);
        let number = get(0);
        let call = Call {
            number,
            thread: get(4),
            begun: Duration::from_nanos(get(1)),
            allowed: Duration::from_nanos(get(2)),
            delay: Duration::from_nanos(get(3)),
            used: Duration::from_nanos(get(5)),
            name: self.text(at + 48, SLOT - 48),
        };
        (number % 2 == 1 && get(0) == number).then_some(call)
    }

    /// Records how long a round trip of the bystander took.
    pub fn round_trip(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        let nth = self.word(Word::RoundTrips).fetch_add(1, SeqCst) as usize;
        self.memory.word64(TRIPS_AT + nth % TRIPS * 8).store(nanos, SeqCst);
        self.word(Word::Longest).fetch_max(nanos, SeqCst);
    }

    /// Returns the median of the stored round trips; `None` if there are none.
    pub fn median_round_trip(&self) -> Option<Duration> {
        let count = (self.get(Word::RoundTrips) as usize).min(TRIPS);
        let mut trips: Vec<u64> = (0..count).map(|nth| self.memory.word64(TRIPS_AT + nth * 8).load(SeqCst)).collect();
        trips.sort_unstable();
        trips.get(count / 2).map(|nanos| Duration::from_nanos(*nanos))
    }
}
