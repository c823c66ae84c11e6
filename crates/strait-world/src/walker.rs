//! A thread of a world; uses its ends at random.

mod calls;
mod dispatch;
mod ending;
mod fuse;
mod hosting;
mod limits;
mod receiving;
mod reports;
mod sending;
mod sets;
mod tasks;
mod waits;

use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use strait::meet::Connector;
use strait::wait::WaitSet;
use strait::{Channel, Error, Options, SendError, Wait};

use crate::clock::{Delay, nanos, now};
use crate::content::{checksum, pattern};
use crate::judge;
use crate::ledger::{AWAITED, End, FOR_CALLS, FOR_REPORTS, Life, Phase, Place, Walk, other};
use crate::own;
use crate::random::{Random, mix};
use crate::trace::Trace;
use crate::trail::{self, Call, NO_END};
use crate::worker::{Process, excused};
use calls::Calling;
pub(crate) use tasks::drive;
use waits::Registration;

/// Nanoseconds by which a call may return after its deadline, not counting the time without a processor.
const LATE: u64 = 500_000_000;

/// How long a receive call may take to return *peer closed* after the other end is gone.
const TOLD: Duration = Duration::from_secs(10);

/// How long a process may take to record the result of a call, even if the process is stopped for a while.
const WRITTEN_DOWN: Duration = Duration::from_secs(6);

/// A thread with more ends than this number closes ends and makes no new ends.
const MANY: usize = 40;

/// An end held by this thread.
pub(crate) struct Held {
    pub(crate) end: u32,
    pub(crate) channel: Arc<Channel>,
    registration: Registration,
}

impl Held {
    fn new(end: u32, channel: Channel) -> Self {
        Self { end, channel: Arc::new(channel), registration: Registration::None }
    }
}

/// The kinds of steps that a thread takes for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// The thread takes steps of all kinds.
    Mixed,
    /// The thread only sends, and never receives.
    Talking,
    /// The thread only receives, with long waits.
    Listening,
    /// The thread only sends, and mostly ends, even in a shortage.
    Parting,
}

/// The call made by a thread: its kind, its end, and the number of its message.
#[derive(Clone, Copy)]
struct About {
    call: Call,
    end: u32,
    number: u64,
}

/// How long a thread was held up so far for reasons other than the library, in nanoseconds.
#[derive(Clone, Copy)]
struct HeldUp {
    /// Time on a processor; shown in reports, but not counted as a delay.
    ran: u64,
    /// The time for which the threads of this process waited for a processor, summed over the threads: another thread
    /// may have a lock needed by this thread.
    delayed: u64,
    stopped: u64,
    /// The time for which a thread of this process waited for the kernel: the waiting thread may have a lock needed by
    /// this thread.
    in_kernel: u64,
    /// The time for which a thread of this process waited for the sign of a wake-up.
    in_checks: u64,
    paused: u64,
}

impl HeldUp {
    fn since(&self, before: Self) -> u64 {
        self.delayed.saturating_sub(before.delayed)
            + (self.stopped - before.stopped)
            + (self.in_kernel - before.in_kernel)
            + (self.in_checks - before.in_checks)
            + (self.paused - before.paused)
    }
}

pub(crate) struct Walker {
    process: &'static Process,
    life: &'static Life,
    walk: &'static Walk,
    trace: Option<Trace>,
    number: usize,
    random: Random,
    delay: Delay,
    /// A recent time, and how long the thread had been held up by then.
    held_up: (u64, HeldUp),
    held: Vec<Held>,
    calling: Vec<Calling>,
    /// Accepted channels whose first message, with the number of the channel, was not received yet.
    unknown: Vec<Channel>,
    set: Option<WaitSet>,
    mood: (Mood, u64),
    /// If this thread has limited the descriptors of its process: the end of that limit.
    short_until: Option<u64>,
    /// If this thread has limited what its process holds for peers: the end of that limit.
    limited_until: Option<u64>,
}

const HEADER: usize = 4 * 8;

/// Returns whether message `number` of a stream has no bytes. A message with ends in it always has bytes.
fn is_empty(stream: u32, number: u64) -> bool {
    number > 0 && mix(u64::from(stream) ^ mix(number)).is_multiple_of(13)
}

fn bytes_of(stream: u32, number: u64, riders: &[u32], files: usize, filling: usize) -> Vec<u8> {
    let words = [u64::from(stream), number, riders.len() as u64, files as u64];
    let riders = riders.iter().map(|rider| u64::from(*rider));
    let mut bytes: Vec<u8> = words.into_iter().chain(riders).flat_map(u64::to_le_bytes).collect();
    bytes.extend(pattern(mix(u64::from(stream) ^ number), filling));
    let sum = checksum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

/// The header of a message: its stream, its number, and its handles.
struct Said {
    stream: u32,
    number: u64,
    riders: Vec<u32>,
    files: usize,
}

/// Reads the header of a message; `None` if the bytes are not a message of this world.
fn parse(bytes: &[u8]) -> Option<Said> {
    let (content, sum) = bytes.split_last_chunk::<8>()?;
    let word = |at: usize| Some(u64::from_le_bytes(content.get(8 * at..8 * at + 8)?.try_into().ok()?));
    if content.len() < HEADER || checksum(content).to_le_bytes() != *sum {
        return None;
    }
    let count = usize::try_from(word(2)?).ok()?;
    let riders: Option<Vec<u32>> = (0..count).map(|at| u32::try_from(word(4 + at)?).ok()).collect();
    let said = Said {
        stream: u32::try_from(word(0)?).ok()?,
        number: word(1)?,
        riders: riders?,
        files: usize::try_from(word(3)?).ok()?,
    };
    let filling = &content[HEADER + 8 * count..];
    (filling == pattern(mix(u64::from(said.stream) ^ said.number), filling.len())).then_some(said)
}

fn options(random: &mut Random) -> Options {
    let options = Options::new().queue_bytes(4 << 20).pool(2 << 20).spin(Duration::from_micros(10));
    let options = options.wait(random.pick(&[Wait::Spin, Wait::Adaptive, Wait::Block, Wait::Block]));
    let options = if random.one_in(2) { options.ring(256 << random.below(6)) } else { options };
    let options = if random.one_in(3) { options.ring_max(512 << random.below(8)) } else { options };
    let options = if random.one_in(5) { options.queue_messages(1 + random.below(30)) } else { options };
    let options = if random.one_in(4) { options.inline_max(random.index(4096)) } else { options };
    let options = if random.one_in(5) { options.queue_handles(1 + random.index(8)) } else { options };
    // No message of a world has more.
    options.max_message(16 << 20).max_handles(64)
}

impl Walker {
    pub(crate) fn new(process: &'static Process, number: usize) -> Self {
        let life = process.life;
        let walk = &life.walks[number];
        walk.thread.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, SeqCst);
        process.count_delays_of_this_thread();
        let (ledger, seed) = (process.ledger, process.ledger.seed.load(SeqCst));
        let trace = |folder| {
            let trace = Trace::new(folder, seed, process.number, number, ledger.begin.load(SeqCst));
            trace.expect("a file for a trace")
        };
        let nothing = HeldUp { ran: 0, delayed: 0, stopped: 0, in_kernel: 0, in_checks: 0, paused: 0 };
        Self {
            process,
            life,
            walk,
            trace: process.traces.as_deref().map(trace),
            number,
            random: Random::new(life.seed.load(SeqCst) ^ mix(number as u64)),
            delay: Delay::own(),
            held_up: (0, nothing),
            held: Vec::with_capacity(256),
            calling: Vec::with_capacity(64),
            unknown: Vec::with_capacity(64),
            set: None,
            mood: (Mood::Mixed, 0),
            short_until: None,
            limited_until: None,
        }
    }

    fn here(&self) -> Place {
        Place::Held { life: self.process.number, walker: self.number }
    }

    fn book(&self, end: u32) -> &'static End {
        self.process.ledger.end(end)
    }

    fn wrong(&self, end: u32, what: &str) -> ! {
        let book = self.book(end);
        let peer = self.process.ledger.peer(end);
        let there = self.book(peer);
        let count = |book: &End| [&book.tried, &book.accepted, &book.received].map(|word| word.load(SeqCst));
        let counts = format!(
            "\n  end {end} {:?} tried/accepted/received by the other {:?}\n  end {} {:?} {:?}",
            book.place(),
            count(book),
            peer,
            there.place(),
            count(there)
        );
        self.process.wrong(Some(end), &format!("{what}{counts}"))
    }

    fn held_up_so_far(&self) -> HeldUp {
        HeldUp {
            ran: self.delay.ran_and_waited().0,
            delayed: self.process.delayed(),
            stopped: self.life.stopped.load(SeqCst),
            in_kernel: self.life.in_kernel.load(SeqCst),
            in_checks: self.life.in_checks.load(SeqCst),
            paused: self.process.ledger.pauses.load(SeqCst),
        }
    }

    /// Makes a call that may wait up to `patience`, and records the call. Reports a mistake if the call took longer.
    fn timed<T>(
        &mut self,
        about: About,
        patience: Duration,
        call: impl FnOnce() -> T,
        outcome: impl Fn(&T) -> String,
    ) -> T {
        let time = now();
        if time - self.held_up.0 > 5_000_000 {
            self.held_up = (time, self.held_up_so_far());
        }
        // The begin is taken after `held_up`, so that a delay in between does not count as time of the call.
        let begin = now();
        let walk = self.walk;
        walk.call.store(about.call as u32, SeqCst);
        walk.end.store(about.end, SeqCst);
        walk.begin.store(begin, SeqCst);
        walk.patience.store(nanos(patience), SeqCst);
        let traced = self.trace.as_ref().map(|trace| trace.begin(begin, about.call, about.end, about.number));
        walk.calls.fetch_add(1, SeqCst);
        let done = call();
        walk.calls.fetch_add(1, SeqCst);
        walk.awaits.store(0, SeqCst);
        let took = now() - begin;
        let said = outcome(&done);
        trail::note(walk, begin, took, about.call, about.end, about.number, &said);
        if let (Some(trace), Some(line)) = (&self.trace, traced) {
            trace.end(line, took, &said);
            // At the end a thread looks at all its ends, again and again.
            if said.contains("WouldBlock") && self.process.ledger.phase() != Phase::Run {
                trace.forget(line);
            }
        }
        let over = took.saturating_sub(nanos(patience));
        if over > LATE {
            // The controller notices a pause of the machine a little later.
            std::thread::sleep(Duration::from_millis(50));
            let (before, after) = (self.held_up.1, self.held_up_so_far());
            let held_up = after.since(before) + own::delays_of_library_threads();
            let ran = after.ran - before.ran;
            if over > LATE + held_up {
                let what = format!(
                    "{} returned {} ms past its deadline of {} ms (held up for {} ms, ran for {} ms): {}",
                    Call::of(about.call as u32),
                    over / 1_000_000,
                    patience.as_millis(),
                    held_up / 1_000_000,
                    ran / 1_000_000,
                    outcome(&done)
                );
                self.process.wrong((about.end != NO_END).then_some(about.end), &what);
            }
        }
        done
    }

    /// Records an event other than a call, or a part of another call.
    fn note(&self, call: Call, end: u32, number: u64, what: &str) {
        let time = now();
        trail::note(self.walk, time, 0, call, end, number, what);
        if let Some(trace) = &self.trace {
            trace.end(trace.begin(time, call, end, number), 0, what);
        }
    }

    /// Records the ends whose messages the next call awaits.
    fn awaits(&self, ends: impl Iterator<Item = u32>) {
        let mut count = 0;
        for (place, end) in self.walk.awaited.iter().zip(ends.take(AWAITED)) {
            place.store(end, SeqCst);
            count += 1;
        }
        self.walk.awaits.store(count, SeqCst);
    }

    /// Returns whether an error other than *peer closed* is allowed: a full ring, a timeout, or a shortage.
    fn passes(&self, end: u32, over: u64, patience: Duration, error: Error) -> bool {
        let excuse = excused(self.process, over, error);
        if excuse {
            self.book(end).hardship.store(1, SeqCst);
        }
        match error {
            Error::WouldBlock => patience.is_zero(),
            Error::TimedOut => !patience.is_zero(),
            _ => excuse,
        }
    }

    /// Returns whether the other end is gone, after a call on this end returned *peer closed*. The process that lost
    /// the other end records the loss a little later, and may be stopped before, so the function waits for a while.
    fn is_other_gone(&self, end: u32) -> bool {
        let (ledger, begin) = (self.process.ledger, Instant::now());
        loop {
            let may_be = judge::is_peer_gone(ledger, end) || judge::may_be_abandoned(ledger, end);
            if may_be || judge::presume_lost(ledger, ledger.peer(end)) {
                return true;
            }
            if begin.elapsed() > WRITTEN_DOWN {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Takes random steps until the world ends, and then receives, checks and closes everything.
    pub(crate) fn walk(&mut self) {
        self.meet_others();
        while self.process.ledger.phase() == Phase::Run {
            self.step();
        }
        self.plenty();
        self.lift_limits(true);
        self.drain_all();
        self.see_that_lone_ends_say_so();
        self.close_all();
    }

    fn meet_others(&mut self) {
        let slots = u64::from(self.process.ledger.slots.load(SeqCst));
        for _ in 0..3 {
            let slot = self.random.below(slots);
            self.connect(slot, 0);
        }
    }

    fn change_mood(&mut self) {
        let time = now();
        if time < self.mood.1 {
            return;
        }
        let mood = self.random.pick(&[Mood::Mixed, Mood::Mixed, Mood::Talking, Mood::Listening]);
        let millis = 1 + self.random.below(800);
        self.mood = (mood, time + millis * 1_000_000);
    }

    fn step(&mut self) {
        self.change_mood();
        if self.short_until.is_some_and(|until| now() > until) {
            self.plenty();
        }
        self.lift_limits(false);
        let many = self.held.len() > MANY;
        match (self.mood.0, self.random.below(100)) {
            (_, 0) => self.starve(),
            (_, 1) => self.connect_to_one(),
            (Mood::Mixed, 2..10) if !many => self.pair(),
            (Mood::Mixed, 2..10) => self.close_one(),
            (Mood::Mixed, 10..12) => self.close_one(),
            (Mood::Mixed, 12..35) | (Mood::Talking, 2..60) | (Mood::Parting, 2..40) => self.send_something(),
            (Mood::Mixed, 35..52) | (Mood::Talking | Mood::Parting, _) => self.send_an_end(),
            (Mood::Mixed, 52..54) => self.rehome(),
            (Mood::Mixed, 54..56) => self.look(),
            (Mood::Mixed, 70..72) => self.fuse(),
            (Mood::Mixed, 72..79) => self.use_calls(),
            (Mood::Mixed, 79..82) => self.use_task(),
            (Mood::Mixed, 82..83) => self.use_dispatcher(),
            (Mood::Mixed, 83..84) => self.change_limits(),
            (Mood::Mixed, 84..85) => self.report_bad(),
            (Mood::Mixed, 85..86) => self.host_guest(),
            (Mood::Listening, 46..50) => self.await_request(),
            (Mood::Mixed, 86..88) => self.await_room(),
            (Mood::Mixed, 56..60) | (Mood::Listening, 2..40) => self.wait(),
            (Mood::Mixed, 60..65) => self.take_from_door(),
            (Mood::Mixed, 65..67) | (Mood::Listening, 40..42) => self.receive_interrupted(),
            (Mood::Mixed, 67..70) | (Mood::Listening, 42..46) => self.trap(),
            _ => self.receive_something(),
        }
    }

    fn pick(&mut self, mut of: impl FnMut(&Held) -> bool) -> Option<usize> {
        let found: Vec<usize> = (0..self.held.len()).filter(|at| of(&self.held[*at])).collect();
        (!found.is_empty()).then(|| found[self.random.index(found.len())])
    }

    fn class(&self, held: &Held) -> u64 {
        self.book(held.end).class.load(SeqCst)
    }

    fn hold(&mut self, end: u32, channel: Channel) {
        self.book(end).put(self.here());
        match self.is_for_calls(end) {
            true => self.hold_for_calls(end, channel),
            false => self.held.push(Held::new(end, channel)),
        }
    }

    fn close(&mut self, at: usize) {
        let held = self.held.swap_remove(at);
        self.book(held.end).put(Place::Closed);
        let about = About { call: Call::Close, end: held.end, number: 0 };
        let over = self.life.shortages_over();
        let reason = self.random.below(4);
        let close = || match (Arc::into_inner(held.channel), reason) {
            (Some(channel), 0) => channel.close_with(held.end),
            (Some(channel), 1) => channel.set_close_reason(held.end),
            (channel, _) => drop(channel),
        };
        self.timed(about, Duration::ZERO, close, |()| String::new());
        self.note_closed(held.end, over);
    }

    /// Records the closing of an end in a call that began when `over` shortages were over.
    fn note_closed(&self, end: u32, over: u64) {
        let book = self.book(end);
        if self.life.is_short_since(over) {
            book.is_closed_in_shortage.store(1, SeqCst);
        }
        book.put(Place::Closed);
    }

    fn close_one(&mut self) {
        let is_old = |walker: &Self, held: &Held| walker.class(held) > 0 || walker.held.len() > 2 * MANY;
        let found: Vec<usize> = (0..self.held.len()).filter(|at| is_old(self, &self.held[*at])).collect();
        if !found.is_empty() {
            let at = found[self.random.index(found.len())];
            self.close(at);
        }
    }

    fn patience(&mut self) -> Duration {
        match self.random.below(40) {
            0 => Duration::from_millis(40),
            1..5 => Duration::from_millis(self.random.below(3)),
            5..20 => Duration::from_micros(self.random.below(30)),
            _ => Duration::ZERO,
        }
    }

    fn long_patience(&mut self) -> Duration {
        match self.random.below(6) {
            0 => Duration::from_secs(6),
            _ => Duration::from_millis(self.random.below(200)),
        }
    }

    /// Makes a channel with two movable ends.
    fn pair(&mut self) {
        let class = 1 + self.random.below(3);
        let is_for_calls = self.random.one_in(6) && !self.has_many_for_calls();
        let class = if is_for_calls { FOR_CALLS } else { class };
        let Some(end) = self.process.ledger.new_channel(class) else { return };
        let options = options(&mut self.random);
        let over = self.life.shortages_over();
        let about = About { call: Call::Pair, end, number: class };
        let made = self.timed(about, Duration::ZERO, || options.pair(), said);
        match made {
            Ok((one, other)) => {
                self.hold(end, one);
                self.hold(end + 1, other);
            }
            Err(error) if excused(self.process, over, error) => {}
            Err(error) => self.wrong(end, &format!("pair: {error:?}")),
        }
    }

    fn connect_to_one(&mut self) {
        let slot = self.random.below(u64::from(self.process.ledger.slots.load(SeqCst)));
        if self.held.len() < MANY && self.random.one_in(4) {
            let class = if self.random.one_in(4) { FOR_REPORTS } else { 0 };
            self.connect(slot, class);
        }
    }

    /// Connects to the process in slot `slot` by a channel of class `class`. The first message has the number of the
    /// channel.
    fn connect(&mut self, slot: u64, class: u64) {
        let Some(end) = self.process.ledger.new_channel(class) else { return };
        self.book(end).put(self.here());
        self.book(end + 1).put(Place::Offered);
        let mut options = options(&mut self.random);
        if class == FOR_REPORTS {
            // A report ends every channel on its link. A channel with a ring of its own size has a link of its own.
            options = options.ring(8 << 10);
        }
        let patience = Duration::from_millis(self.random.below(300));
        let connector = Connector::new().directory(&self.process.directory).options(options);
        let connector = if self.random.one_in(3) { connector.wait_for_listener() } else { connector };
        let user = rustix::process::getuid().as_raw();
        let connector = if self.random.one_in(2) { connector.server(user) } else { connector };
        let over = self.life.shortages_over();
        let about = About { call: Call::Connect, end, number: slot };
        let connect = || connector.connect(&format!("w{slot}"), patience).map_err(Error::from);
        let connected = self.timed(about, patience, connect, said);
        match connected {
            Ok(channel) => self.hold(end, channel),
            Err(error) => {
                self.book(end).put(Place::Closed);
                let may_be = matches!(
                    error,
                    Error::NobodyThere | Error::TimedOut | Error::WouldBlock | Error::PeerClosed | Error::Refused(_)
                );
                if !may_be && !excused(self.process, over, error) {
                    self.wrong(end, &format!("connect: {error:?}"));
                }
            }
        }
    }

    /// Takes the accepted channels, and receives their first messages.
    fn take_from_door(&mut self) {
        let accepted = std::mem::take(&mut *self.process.accepted.lock().unwrap_or_else(PoisonError::into_inner));
        self.unknown.extend(accepted);
        self.know();
    }

    /// Receives the first messages of accepted channels.
    fn know(&mut self) {
        let mut at = 0;
        while at < self.unknown.len() {
            let over = self.life.shortages_over();
            let about = About { call: Call::Accept, end: NO_END, number: 0 };
            let channel = self.unknown.swap_remove(at);
            let received = self.timed(about, Duration::ZERO, || channel.try_recv(), said);
            match received {
                Ok(mut message) => {
                    let Some(said) = parse(message.bytes()) else {
                        self.process.wrong(None, "the first message of a channel is none that anybody sent")
                    };
                    let end = other(said.stream);
                    self.hold(end, channel);
                    let handles = message.take_handles();
                    self.take(end, message.bytes(), handles);
                }
                Err(Error::PeerClosed) => {}
                Err(error) if error == Error::WouldBlock || excused(self.process, over, error) => {
                    self.unknown.push(channel);
                    let last = self.unknown.len() - 1;
                    self.unknown.swap(at, last);
                    at += 1;
                }
                Err(error) => self.process.wrong(None, &format!("the first message of a channel: {error:?}")),
            }
        }
    }

    /// If the world has shortages of descriptors, limits this process for a while to its present number of
    /// descriptors or a few more.
    fn starve(&mut self) {
        const NOFILE: u32 = 1;
        if self.process.ledger.faults.load(SeqCst) & NOFILE == 0 || self.short_until.is_some() {
            return;
        }
        let Some(lowest) = own::lowest_free_descriptor() else { return };
        let spare = if self.random.one_in(2) { 0 } else { self.random.below(6) };
        let millis = match self.random.below(4) {
            0 => self.random.below(3000),
            _ => self.random.below(30),
        };
        self.life.begin_shortage();
        own::limit_descriptors(lowest + spare);
        self.note(Call::Shortage, NO_END, lowest + spare, "descriptors");
        let until = now() + millis * 1_000_000;
        self.short_until = Some(until);
        if !self.random.one_in(3) {
            self.mood = (self.random.pick(&[Mood::Talking, Mood::Parting]), until);
        }
    }

    fn plenty(&mut self) {
        if self.short_until.take().is_some() {
            own::limit_descriptors(own::descriptors_in_plenty());
            self.life.end_shortage();
            self.note(Call::Plenty, NO_END, 0, "descriptors");
        }
    }
}

/// Returns a result in few words.
fn said<T>(result: &Result<T, Error>) -> String {
    match result {
        Ok(_) => "Ok".into(),
        Err(error) => format!("{error:?}"),
    }
}

fn said_of_sending(result: &Result<(), SendError>) -> String {
    match result {
        Ok(()) => "Ok".into(),
        Err(SendError { error, .. }) => format!("{error:?}"),
    }
}
