//! What the processes of a world tell each other: memory that a controller reads from outside.
//!
//! Each actor writes its steps down before it takes them, so that the trail is there however the actor ends. The victim
//! writes down which call each of its threads is in, since when, and how long the call may take.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::memory::Memory;

/// Whose trail it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Actor {
    /// Uses the library.
    Victim,
    /// Is its hostile peer.
    Attacker,
    /// Is an honest peer of the victim's.
    Bystander,
}

/// Words that all can see.
#[derive(Clone, Copy, Debug)]
pub enum Word {
    /// What everybody is to do; one of [`Phase`].
    Phase,
    /// The number of the phase that the victim's driver is in. Phases are counted.
    VictimIn,
    /// The same of the bystander.
    BystanderIn,
    /// How many phases there were.
    Phases,
    /// What the victim has received, in microseconds of work that it may cost.
    Work,
    /// What the attacker has sent that is valid and costs the victim something, in microseconds.
    Valid,
    /// Steps of the attacker.
    Steps,
    /// Calls of the victim.
    Calls,
    /// Round trips of the bystander.
    RoundTrips,
    /// The longest of them in this round, in nanoseconds.
    Longest,
    /// Findings.
    Findings,
    /// Descriptors that the victim's program took out of messages and has not closed yet.
    Own,
    /// How long threads of the victim have waited for a processor, all together, in nanoseconds.
    Delays,
}

/// What everybody is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum Phase {
    /// Get ready.
    Begin = 0,
    /// The attacker attacks, the victim uses every call, the bystander measures.
    Active = 1,
    /// The attacker attacks, the victim waits, the bystander does nothing.
    Quiet = 2,
    /// The attacker is gone. The victim lets go of all that it had from it.
    LetGo = 3,
    /// All end.
    End = 4,
}

const SLOTS_AT: usize = 4096;
const SLOT: usize = 128;
/// Threads of the victim whose calls are watched.
pub const SLOTS: usize = 8;
const FINDINGS_AT: usize = 8192;
const MOST_FINDINGS: usize = 32;
const TRAILS_AT: usize = 16384;
const LINE: usize = 160;
const LINES: usize = 2048;
const TRAIL: usize = 64 + LINES * LINE;
const TRIPS_AT: usize = TRAILS_AT + 3 * TRAIL;
/// Round trips whose times are kept.
pub const TRIPS: usize = 4096;
const BYTES: usize = TRIPS_AT + TRIPS * 8;

/// The time on `CLOCK_MONOTONIC`, the same for all processes.
pub fn now() -> Duration {
    let time = clock_gettime(ClockId::Monotonic);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// How long this thread has waited for a processor, as its scheduler says; zero where it does not.
pub fn delay() -> Duration {
    figure_in("/proc/thread-self/schedstat", 1)
}

/// The same of another thread.
pub fn delay_of(process: u32, thread: u64) -> Duration {
    figure_in(&format!("/proc/{process}/task/{thread}/schedstat"), 1)
}

/// How much of a processor another thread has used.
pub fn used_of(process: u32, thread: u64) -> Duration {
    figure_in(&format!("/proc/{process}/task/{thread}/schedstat"), 0)
}

fn figure_in(path: &str, nth: usize) -> Duration {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    Duration::from_nanos(text.split(' ').nth(nth).and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// The memory.
#[derive(Debug)]
pub struct Ledger {
    memory: Memory,
}

/// A call that a thread of the victim is in.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which of the thread's calls it is.
    pub number: u64,
    /// Its thread.
    pub thread: u64,
    /// When it began.
    pub begun: Duration,
    /// How long it may take.
    pub allowed: Duration,
    /// How long the thread had waited for a processor when it began.
    pub delay: Duration,
    /// The processor time that the thread had used.
    pub used: Duration,
    /// What it is called.
    pub name: String,
}

impl Ledger {
    /// A new one, for a round.
    pub fn create() -> io::Result<Self> {
        Ok(Self { memory: Memory::create(BYTES)? })
    }

    /// The one that somebody else made.
    pub fn of(file: OwnedFd) -> io::Result<Self> {
        Ok(Self { memory: Memory::map(file)? })
    }

    /// Its file, to be given to others.
    pub fn file(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// One of its words.
    pub fn word(&self, word: Word) -> &AtomicU64 {
        self.memory.word64(word as usize * 64)
    }

    /// What it says.
    pub fn get(&self, word: Word) -> u64 {
        self.word(word).load(SeqCst)
    }

    /// Makes it more.
    pub fn add(&self, word: Word, more: u64) {
        self.word(word).fetch_add(more, SeqCst);
    }

    /// Has everybody do this.
    pub fn begin_phase(&self, phase: Phase) -> u64 {
        self.word(Word::Phase).store(phase as u64, SeqCst);
        self.word(Word::Phases).fetch_add(1, SeqCst) + 1
    }

    /// What everybody is to do, and which phase that is.
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

    /// Notes what this actor does next.
    pub fn note(&self, actor: Actor, text: &str) {
        let trail = TRAILS_AT + actor as usize * TRAIL;
        let nth = self.memory.word64(trail).fetch_add(1, SeqCst) as usize;
        let line = trail + 64 + nth % LINES * LINE;
        self.memory.word64(line).store(now().as_micros() as u64, SeqCst);
        self.put_text(line + 8, LINE - 8, text);
    }

    /// The last lines of all trails, in the order of time.
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

    /// Notes that something is not as it must be.
    pub fn find(&self, text: &str) {
        let nth = self.word(Word::Findings).fetch_add(1, SeqCst) as usize;
        if nth < MOST_FINDINGS {
            self.put_text(FINDINGS_AT + nth * 256, 256, text);
        }
    }

    /// What was found.
    pub fn findings(&self) -> Vec<String> {
        let count = (self.get(Word::Findings) as usize).min(MOST_FINDINGS);
        (0..count).map(|nth| self.text(FINDINGS_AT + nth * 256, 256)).collect()
    }

    /// Notes that this thread begins a call. Even numbers are calls that have ended.
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

    /// Notes that it has ended.
    pub fn end_call(&self, slot: usize) {
        self.memory.word64(SLOTS_AT + slot * SLOT).fetch_add(1, SeqCst);
        self.add(Word::Calls, 1);
    }

    /// The call that a thread is in.
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

    /// Notes how long a round trip of the bystander took.
    pub fn round_trip(&self, took: Duration) {
        let nanos = took.as_nanos() as u64;
        let nth = self.word(Word::RoundTrips).fetch_add(1, SeqCst) as usize;
        self.memory.word64(TRIPS_AT + nth % TRIPS * 8).store(nanos, SeqCst);
        self.word(Word::Longest).fetch_max(nanos, SeqCst);
    }

    /// The middle one of the last round trips.
    pub fn median_round_trip(&self) -> Option<Duration> {
        let count = (self.get(Word::RoundTrips) as usize).min(TRIPS);
        let mut trips: Vec<u64> = (0..count).map(|nth| self.memory.word64(TRIPS_AT + nth * 8).load(SeqCst)).collect();
        trips.sort_unstable();
        trips.get(count / 2).map(|nanos| Duration::from_nanos(*nanos))
    }
}
