//! A thread of a world, which uses the ends that it has at random.

mod calls;
mod dispatch;
mod fuse;
mod limits;
mod tasks;
mod waits;

use std::io::IoSlice;
use std::rc::Rc;
use std::sync::PoisonError;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use strait::meet::Connector;
use strait::quota::Resource;
use strait::view::{InPlace, Value};
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing, SendError, SendManyError, Wait};

use crate::clock::{Delay, nanos, now};
use crate::content::{check_file, checksum, file, pattern};
use crate::judge;
use crate::ledger::{AWAITED, End, FOR_CALLS, Life, Phase, Place, Walk, other};
use crate::own;
use crate::random::{Random, mix};
use crate::trail::{self, Call, NO_END};
use crate::worker::{Process, excused};
use calls::Calling;
use waits::Registration;

/// Nanoseconds by which a call may return after its deadline, not counting the time for which the scheduler kept the
/// thread from running.
const LATE: u64 = 500_000_000;

/// How long a receive call may take to return *peer closed* after the other end is gone.
const TOLD: Duration = Duration::from_secs(10);

/// How long a process may take to record the result of a call, even if it is stopped for a while.
const WRITTEN_DOWN: Duration = Duration::from_secs(6);

/// The number of ends of a thread above which it closes ends and makes no new ones.
const MANY: usize = 40;

/// An end that this thread has.
pub(crate) struct Held {
    pub(crate) end: u32,
    pub(crate) channel: Rc<Channel>,
    registration: Registration,
}

impl Held {
    fn new(end: u32, channel: Channel) -> Self {
        Self { end, channel: Rc::new(channel), registration: Registration::None }
    }
}

/// The kinds of steps that a thread takes for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// The thread takes steps of all kinds.
    Mixed,
    /// The thread only sends, so that it never reads what its peers sent.
    Talking,
    /// The thread only receives, with long waits.
    Listening,
    /// The thread only sends, and mostly ends. It may do this in a shortage.
    Parting,
}

/// The call that a thread makes: its kind, its end, and the number of its message.
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
    /// The time for which the threads of this process waited for a processor, all together: another thread may have a
    /// lock that this one needs.
    delayed: u64,
    stopped: u64,
    paused: u64,
}

impl HeldUp {
    fn since(&self, before: Self) -> u64 {
        self.delayed.saturating_sub(before.delayed) + (self.stopped - before.stopped) + (self.paused - before.paused)
    }
}

pub(crate) struct Walker {
    process: &'static Process,
    life: &'static Life,
    walk: &'static Walk,
    number: usize,
    random: Random,
    delay: Delay,
    /// A recent time, and how long the thread had been held up by then.
    held_up: (u64, HeldUp),
    held: Vec<Held>,
    calling: Vec<Calling>,
    /// Accepted channels whose first message was not received yet; it says which channel each is.
    unknown: Vec<Channel>,
    set: Option<WaitSet>,
    mood: (Mood, u64),
    /// If this thread has limited the descriptors of its process: until when.
    short_until: Option<u64>,
    /// If this thread has limited what its process holds for peers: until when.
    limited_until: Option<u64>,
}

const HEADER: usize = 4 * 8;

/// Returns whether the message of this number has no bytes. A message with ends in it always has bytes.
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

/// Reads the header of a message; `None` if the bytes are not those of a message of this world.
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
    if random.one_in(5) { options.queue_messages(1 + random.below(30)) } else { options }
}

impl Walker {
    pub(crate) fn new(process: &'static Process, number: usize) -> Self {
        let life = process.life;
        let walk = &life.walks[number];
        walk.thread.store(rustix::thread::gettid().as_raw_nonzero().get() as u32, SeqCst);
        process.count_delays_of_this_thread();
        let nothing = HeldUp { ran: 0, delayed: 0, stopped: 0, paused: 0 };
        Self {
            process,
            life,
            walk,
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
            paused: self.process.ledger.pauses.load(SeqCst),
        }
    }

    /// Makes a call that may wait up to `patience`, records it, and reports a mistake if it took longer.
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
        // The call begins after that: what holds the thread up in between does not count as time of the call.
        let begin = now();
        let walk = self.walk;
        walk.call.store(about.call as u32, SeqCst);
        walk.end.store(about.end, SeqCst);
        walk.begin.store(begin, SeqCst);
        walk.patience.store(nanos(patience), SeqCst);
        walk.calls.fetch_add(1, SeqCst);
        let done = call();
        walk.calls.fetch_add(1, SeqCst);
        walk.awaits.store(0, SeqCst);
        let took = now() - begin;
        trail::note(walk, begin, took, about.call, about.end, about.number, &outcome(&done));
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

    /// Records the ends for whose messages the next call waits.
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
    /// the other end records that a little later, and may be stopped before, so this waits for a while.
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
            self.connect(slot);
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
            (Mood::Listening, 46..50) => self.await_request(),
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
        self.timed(about, Duration::ZERO, || drop(held.channel), |()| String::new());
        if self.life.is_short_since(over) {
            self.book(held.end).is_closed_in_shortage.store(1, SeqCst);
        }
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

    /// Makes a channel whose two ends can be sent to other processes.
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
            self.connect(slot);
        }
    }

    /// Connects to the process in this slot. The channel's first message says which channel it is.
    fn connect(&mut self, slot: u64) {
        let Some(end) = self.process.ledger.new_channel(0) else { return };
        self.book(end).put(self.here());
        self.book(end + 1).put(Place::Offered);
        let options = options(&mut self.random);
        let patience = Duration::from_millis(self.random.below(300));
        let connector = Connector::new().directory(&self.process.directory).options(options);
        let over = self.life.shortages_over();
        let about = About { call: Call::Connect, end, number: slot };
        let connected = self.timed(about, patience, || connector.connect(&format!("w{slot}"), patience), said);
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

    /// Takes the channels that were accepted, and receives their first messages.
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

    /// Limits this process for a while to the descriptors that it has, or a few more, if the world has this fault.
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
        trail::note(self.walk, now(), 0, Call::Shortage, NO_END, lowest + spare, "descriptors");
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
            trail::note(self.walk, now(), 0, Call::Plenty, NO_END, 0, "descriptors");
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

fn send_vectored(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    let (one, other) = bytes.split_at(bytes.len() / 3);
    let parts = [IoSlice::new(one), IoSlice::new(&[]), IoSlice::new(other)];
    channel.send_by(Outgoing::vectored(&parts).handles(handles), deadline)
}

fn send_reserved(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    match channel.reserve(bytes.len() + 10, deadline) {
        Ok(mut room) => {
            room.write_at(bytes, 0);
            handles.into_iter().for_each(|handle| room.handle(handle));
            room.commit_first(bytes.len())
        }
        Err(error) => Err(SendError { error, handles }),
    }
}

fn send_sealed(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    match channel.reserve_sealed(bytes.len()) {
        Ok(mut room) => {
            room.bytes().copy_from_slice(bytes);
            handles.into_iter().for_each(|handle| room.handle(handle));
            room.commit(deadline)
        }
        Err(error) => Err(SendError { error, handles }),
    }
}

fn send_draft(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    let mut draft = channel.draft();
    if let Some(error) = bytes.chunks(1000).find_map(|piece| draft.append(piece).err()) {
        return Err(SendError { error, handles });
    }
    handles.into_iter().for_each(|handle| draft.handle(handle));
    draft.send(deadline)
}

/// Sends a message by forwarding it, as a relay does.
fn send_forwarded(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    let (near, far) = match Channel::pair() {
        Ok(pair) => pair,
        Err(error) => return Err(SendError { error, handles }),
    };
    near.try_send(Outgoing::new(bytes).handles(handles))?;
    // The channel is within this process, so the message is there.
    let mut message = far.try_recv().map_err(|error| SendError { error, handles: Vec::new() })?;
    channel
        .forward(&mut message, deadline)
        .map_err(|error| SendError { error, handles: message.take_handles().unwrap_or_default() })
}

/// A value, which stays an object while it is sent within one process.
struct Whole {
    bytes: Vec<u8>,
    handles: Vec<Handle>,
}

impl Value for Whole {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.bytes, self.handles)
    }

    fn size(&self) -> usize {
        self.bytes.len()
    }
}

fn send_value(channel: &Channel, bytes: &[u8], handles: Vec<Handle>, deadline: Deadline) -> Result<(), SendError> {
    channel.send_value(Whole { bytes: bytes.to_vec(), handles }, deadline).map_err(|failed| {
        let mut message = failed.message;
        let handles = match message.take_value::<Whole>() {
            Some(whole) => whole.handles,
            None => message.take_handles().unwrap_or_default(),
        };
        SendError { error: failed.error, handles }
    })
}

/// Sending.
impl Walker {
    fn send_something(&mut self) {
        if let Some(at) = self.pick(|_| true) {
            match self.random.below(5) {
                0 => self.send_row(at),
                _ => self.send(at, Vec::new()),
            }
        }
    }

    fn send_an_end(&mut self) {
        let roads_only = self.random.one_in(2);
        let most = if roads_only { 0 } else { 2 };
        let found: Vec<usize> = (0..self.held.len()).filter(|at| self.class(&self.held[*at]) <= most).collect();
        if found.is_empty() {
            return;
        }
        let carrier = self.held.swap_remove(found[self.random.index(found.len())]);
        let class = self.class(&carrier);
        let mut riders = Vec::new();
        for _ in 0..1 + self.random.below(12).saturating_sub(8) {
            let may_ride: Vec<usize> = (0..self.held.len()).filter(|at| self.class(&self.held[*at]) > class).collect();
            if !may_ride.is_empty() {
                riders.push(self.held.swap_remove(may_ride[self.random.index(may_ride.len())]));
            }
        }
        if self.random.one_in(4) {
            riders.extend(self.take_for_sending());
        }
        self.held.push(carrier);
        self.send(self.held.len() - 1, riders);
    }

    fn filling(&mut self) -> usize {
        let limit = match self.random.below(300) {
            0 if self.random.one_in(4) => 3 << 20,
            0..8 => 200_000,
            _ => 600 >> self.random.below(4),
        };
        self.random.index(limit + 1)
    }

    fn files(&mut self, stream: u32, number: u64) -> Vec<Handle> {
        let count = if self.random.one_in(6) { self.random.index(5) } else { 0 };
        (0..count).map_while(|at| file(stream, number, at)).collect()
    }

    /// Sends the next message of an end, with the ends `riders` in it, by a random call.
    fn send(&mut self, at: usize, riders: Vec<Held>) {
        let stream = self.held[at].end;
        let book = self.book(stream);
        let number = book.accepted.load(SeqCst);
        let names: Vec<u32> = riders.iter().map(|rider| rider.end).collect();
        let (files, bytes) = if names.is_empty() && is_empty(stream, number) {
            (Vec::new(), Vec::new())
        } else {
            let files = self.files(stream, number);
            let filling = self.filling();
            let bytes = bytes_of(stream, number, &names, files.len(), filling);
            (files, bytes)
        };
        for name in &names {
            self.book(*name).put(Place::Riding { stream, number });
        }
        let mut handles: Vec<Handle> =
            riders.into_iter().filter_map(|rider| Rc::into_inner(rider.channel)).map(Handle::from).collect();
        handles.extend(files);
        let count = handles.len();
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        book.tried.store(number + 1, SeqCst);
        let over = self.life.shortages_over();
        if self.life.has_been_short() {
            names.iter().for_each(|name| self.book(*name).hardship.store(1, SeqCst));
        }
        let call = self.way_to_send(bytes.len(), names.len());
        // The ends in the message are recorded before the call; its result decides what becomes of them.
        for name in &names {
            trail::note(self.walk, now(), 0, Call::SendWithEnds, *name, u64::from(stream), "rides");
        }
        let about = About { call, end: stream, number };
        let channel = Rc::clone(&self.held[at].channel);
        let send = || match call {
            Call::SendVectored => send_vectored(&channel, &bytes, handles, deadline),
            Call::Reserve => send_reserved(&channel, &bytes, handles, deadline),
            Call::Sealed => send_sealed(&channel, &bytes, handles, deadline),
            Call::Draft => send_draft(&channel, &bytes, handles, deadline),
            Call::Forward => send_forwarded(&channel, &bytes, handles, deadline),
            Call::Value => send_value(&channel, &bytes, handles, deadline),
            _ => channel.send_by(Outgoing::new(&bytes).handles(handles), deadline),
        };
        let sent = self.timed(about, patience, send, said_of_sending);
        match sent {
            Ok(()) => book.accepted.store(number + 1, SeqCst),
            Err(SendError { error, handles }) => {
                if handles.len() != count {
                    self.wrong(stream, &format!("{} of {count} handles came back with {error:?}", handles.len()));
                }
                self.take_back(stream, number, &names, handles);
                book.tried.store(number, SeqCst);
                self.take_error(stream, over, patience, error);
            }
        }
    }

    /// Chooses the call that sends a message with `len` bytes and `ends` ends.
    fn way_to_send(&mut self, len: usize, ends: usize) -> Call {
        match self.random.below(12) {
            0 => Call::SendVectored,
            1 => Call::Reserve,
            2 if len > 100 => Call::Sealed,
            3 => Call::Draft,
            4 => Call::Forward,
            // Ends in a message that stays a value remain members of their wait set, so a value carries no ends.
            5 if ends == 0 => Call::Value,
            _ if ends > 0 => Call::SendWithEnds,
            _ => Call::Send,
        }
    }

    /// Sends a few messages as a batch, without handles.
    fn send_row(&mut self, at: usize) {
        let stream = self.held[at].end;
        let book = self.book(stream);
        let first = book.accepted.load(SeqCst);
        let last = first + 1 + self.random.below(20);
        let message = |walker: &mut Self, number| {
            let len = walker.random.index(300);
            if is_empty(stream, number) { Vec::new() } else { bytes_of(stream, number, &[], 0, len) }
        };
        let row: Vec<Vec<u8>> = (first..last).map(|number| message(self, number)).collect();
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        book.tried.store(last, SeqCst);
        let over = self.life.shortages_over();
        let channel = Rc::clone(&self.held[at].channel);
        let about = About { call: Call::SendMany, end: stream, number: first };
        let send = || channel.send_many(row.iter().map(Outgoing::from), deadline);
        let said = |sent: &Result<usize, SendManyError>| match sent {
            Ok(sent) => format!("{sent}"),
            Err(stopped) => format!("{} {:?}", stopped.sent, stopped.failed.error),
        };
        let (sent, error) = match self.timed(about, patience, send, said) {
            Ok(sent) => (sent as u64, None),
            Err(stopped) => (stopped.sent as u64, Some(stopped.failed.error)),
        };
        if error.is_none() && first + sent != last {
            self.wrong(stream, &format!("a row of {} messages was sent, and {sent} are said to be", last - first));
        }
        book.accepted.store(first + sent, SeqCst);
        book.tried.store(first + sent, SeqCst);
        if let Some(error) = error {
            self.take_error(stream, over, patience, error);
        }
    }

    /// Moves a channel into memory that only its two processes have.
    fn rehome(&mut self) {
        let Some(at) = self.pick(|_| true) else { return };
        let (end, channel) = (self.held[at].end, Rc::clone(&self.held[at].channel));
        let patience = self.patience();
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        if self.life.has_been_short() {
            self.book(end).hardship.store(1, SeqCst);
        }
        let over = self.life.shortages_over();
        let about = About { call: Call::Rehome, end, number: 0 };
        if let Err(error) = self.timed(about, patience, || channel.rehome(deadline), said) {
            self.take_error(end, over, patience, error);
        }
    }

    /// Asks an end for its state. If the end says that its peer is closed, checks that the other end is gone.
    fn look(&mut self) {
        let Some(at) = self.pick(|_| true) else { return };
        let (end, channel) = (self.held[at].end, Rc::clone(&self.held[at].channel));
        let over = self.life.shortages_over();
        let about = About { call: Call::Look, end, number: 0 };
        let ask = || {
            let _ = (channel.counters(), channel.is_readable(), channel.is_writable(), channel.peer_usage());
            let is_closed = channel.is_peer_closed();
            (is_closed, channel.status().and(channel.peer()).map(|_| ()))
        };
        let (is_closed, asked) = self.timed(about, Duration::ZERO, ask, |(_, asked)| said(asked));
        if is_closed && !self.is_other_gone(end) {
            self.wrong(end, "is_peer_closed says so, and it is not");
        }
        if let Err(error) = asked {
            self.take_error(end, over, Duration::ZERO, error);
        }
    }

    /// Takes back the handles of a message that was not sent: ends are held again, files are checked.
    fn take_back(&mut self, stream: u32, number: u64, names: &[u32], handles: Vec<Handle>) {
        for (at, handle) in handles.into_iter().enumerate() {
            match names.get(at) {
                Some(name) => match handle.into_channel() {
                    Some(channel) => self.hold(*name, channel),
                    None => self.wrong(*name, "an end came back from a send as something else"),
                },
                None => {
                    if let Err(what) = check_file(handle, stream, number, at - names.len(), self.life.has_been_short())
                    {
                        self.wrong(stream, &format!("came back from a send: {what}"));
                    }
                }
            }
        }
    }

    /// Reports a mistake if a call that sent nothing must not have returned this error.
    fn take_error(&mut self, end: u32, over: u64, patience: Duration, error: Error) {
        if error == Error::PeerClosed {
            if !self.is_other_gone(end) {
                self.wrong(end, "sending says that the peer is closed, and it is not");
            }
        } else if !self.passes(end, over, patience, error) {
            self.wrong(end, &format!("sending says {error:?}"));
        }
    }
}

/// The bytes and the handles of a message.
type Parts = (Vec<u8>, Result<Vec<Handle>, Error>);

fn in_parts(mut message: Message) -> Parts {
    let handles = message.take_handles();
    (message.into_bytes(), handles)
}

fn copied(mut view: InPlace<'_>) -> Parts {
    let mut bytes = vec![0; view.len()];
    view.read_at(&mut bytes, 0);
    (bytes, view.take_handles())
}

/// Receives into a buffer of `size` bytes, and if that is too small, into one that is large enough.
fn recv_into(channel: &Channel, size: usize, deadline: Deadline) -> Result<Parts, Error> {
    let mut buffer = vec![0; size];
    let mut received = match channel.recv_into(&mut buffer, deadline) {
        Err(Error::BufferTooSmall { needed }) => {
            buffer.resize(needed, 0);
            channel.recv_into(&mut buffer, deadline)?
        }
        received => received?,
    };
    buffer.truncate(received.len());
    Ok((buffer, received.take_handles()))
}

/// Receives by `try_recv_bytes`; if the message is too long or has handles, by `try_recv`.
fn try_recv_bytes(channel: &Channel) -> Result<Parts, Error> {
    let mut buffer = [0; 400];
    match channel.try_recv_bytes(&mut buffer) {
        Ok(Some(len)) => Ok((buffer[..len].to_vec(), Ok(Vec::new()))),
        Ok(None) | Err(Error::BufferTooSmall { .. }) => channel.try_recv().map(in_parts),
        Err(error) => Err(error),
    }
}

/// Receiving.
impl Walker {
    fn receive_something(&mut self) {
        let roads_only = self.random.one_in(3);
        let found: Vec<usize> =
            (0..self.held.len()).filter(|at| !roads_only || self.class(&self.held[*at]) == 0).collect();
        if found.is_empty() {
            return self.take_from_door();
        }
        let at = found[self.random.index(found.len())];
        let is_long = self.mood.0 == Mood::Listening && self.random.one_in(10);
        let patience = if is_long { self.long_patience() } else { self.patience() };
        self.receive(at, patience);
    }

    /// Receives from an end by a random call. Returns false if there was nothing to receive, or if the end was
    /// closed.
    fn receive(&mut self, at: usize, patience: Duration) -> bool {
        let end = self.held[at].end;
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        self.awaits(std::iter::once(end));
        let channel = Rc::clone(&self.held[at].channel);
        let way = self.random.below(6);
        let mut messages = Vec::new();
        let about = |call| About { call, end, number: 0 };
        let received = match way {
            0 => {
                let mut slots: Vec<Message> = (0..1 + self.random.below(8)).map(|_| Message::new()).collect();
                let received = self.timed(
                    about(Call::RecvMany),
                    patience,
                    || channel.recv_many(&mut slots, deadline),
                    |done| format!("{done:?}"),
                );
                received.map(|count| messages.extend(slots.into_iter().take(count).map(in_parts)))
            }
            1 => {
                let receive = || channel.recv_in_place(deadline).map(copied);
                self.timed(about(Call::InPlace), patience, receive, said).map(|message| messages.push(message))
            }
            2 => {
                let size = self.random.pick(&[0, 100, 1000, 1 << 20]);
                let receive = || recv_into(&channel, size, deadline);
                self.timed(about(Call::RecvInto), patience, receive, said).map(|message| messages.push(message))
            }
            3 if patience.is_zero() => {
                let receive = || try_recv_bytes(&channel);
                self.timed(about(Call::RecvBytes), patience, receive, said).map(|message| messages.push(message))
            }
            _ => {
                let received = self.timed(about(Call::Recv), patience, || channel.recv_by(deadline), said);
                match received {
                    Ok(message) if self.random.one_in(10) => {
                        messages.extend(self.put_back(end, &channel, message).into_iter().map(in_parts));
                        Ok(())
                    }
                    received => received.map(|message| messages.push(in_parts(message))),
                }
            }
        };
        drop(channel);
        match received {
            Ok(()) => {
                for (bytes, handles) in messages {
                    self.take(end, &bytes, handles);
                }
                true
            }
            Err(Error::PeerClosed) => {
                self.see_closed(at);
                false
            }
            Err(error) => {
                if !self.passes(end, over, patience, error) {
                    self.wrong(end, &format!("receiving says {error:?}"));
                }
                false
            }
        }
    }

    /// Puts a message back, so that it is received again next. Returns the messages that could not be put back; they
    /// count as received.
    fn put_back(&mut self, end: u32, channel: &Channel, message: Message) -> Vec<Message> {
        let over = self.life.shortages_over();
        let about = About { call: Call::PutBack, end, number: 0 };
        let mut returned = Vec::new();
        // No other thread has this end, so nothing prevents the message from being put back.
        let put = || {
            channel.put_back([message]).map_err(|failed| {
                returned = failed.messages;
                failed.error
            })
        };
        let back = self.timed(about, Duration::ZERO, put, said);
        if let Err(error) = back
            && !excused(self.process, over, error)
        {
            self.wrong(end, &format!("putting back a message: {error:?}"));
        }
        returned
    }

    /// Handles *peer closed* at an end: checks that the other end is gone and that all accepted messages have
    /// arrived, and closes the end.
    fn see_closed(&mut self, at: usize) {
        self.judge_closed(self.held[at].end);
        self.close(at);
    }

    /// Checks that the other end is gone and that all accepted messages have arrived, after *peer closed* at an end.
    fn judge_closed(&self, end: u32) {
        if !self.is_other_gone(end) {
            self.wrong(end, "receiving says that the peer is closed, and it is not");
        }
        if !self.process.ledger.is_fuse_unknown(end) {
            self.process.ledger.far_ends(end).for_each(|stream| self.see_complete(end, stream));
        }
    }

    /// Checks that all messages of a stream have arrived at `end`, whose peer is closed.
    fn see_complete(&self, end: u32, stream: u32) {
        let book = self.book(stream);
        let [received, accepted, tried] = [&book.received, &book.accepted, &book.tried].map(|word| word.load(SeqCst));
        if !(accepted..=tried.max(accepted)).contains(&received) {
            let what = format!("the peer is closed, and {received} of {accepted} messages of {stream} have come");
            self.wrong(end, &what);
        }
    }

    /// Checks a received message: it must be the next of its stream. Holds the ends in it.
    fn take(&mut self, end: u32, bytes: &[u8], handles: Result<Vec<Handle>, Error>) {
        let stream = self.process.ledger.stream_to(end);
        let book = self.book(stream);
        let number = book.received.load(SeqCst);
        if bytes.is_empty() {
            if !is_empty(stream, number) {
                self.wrong(end, &format!("message {number} is empty"));
            }
            book.received.store(number + 1, SeqCst);
            return;
        }
        let Some(said) = parse(bytes) else {
            self.wrong(end, &format!("message {number} of {} bytes is garbled", bytes.len()));
        };
        if (said.stream, said.number) != (stream, number) {
            let found = (said.stream, said.number);
            self.wrong(end, &format!("message {number} of stream {stream} is said to be (stream, number) {found:?}"));
        }
        if number >= book.tried.load(SeqCst) {
            self.wrong(end, &format!("message {number} was sent by nobody"));
        }
        match handles {
            Ok(handles) => self.take_handles(end, number, &said, handles),
            Err(error) => self.take_loss(end, number, &said, error),
        }
        book.received.store(number + 1, SeqCst);
    }

    fn take_handles(&mut self, end: u32, number: u64, said: &Said, handles: Vec<Handle>) {
        if handles.len() != said.riders.len() + said.files {
            self.wrong(end, &format!("message {number} has {} handles", handles.len()));
        }
        for (at, handle) in handles.into_iter().enumerate() {
            match said.riders.get(at) {
                Some(rider) => match handle.into_channel() {
                    Some(channel) => {
                        let book = self.book(*rider);
                        if book.is_presumed_lost.load(SeqCst) != 0 {
                            self.wrong(*rider, "it arrived, and its other end was told that it is gone");
                        }
                        if self.life.has_been_short() || self.may_lose_handles(end) {
                            book.hardship.store(1, SeqCst);
                        }
                        self.process.ledger.note_arrival(*rider, said.stream, number);
                        self.hold(*rider, channel);
                        trail::note(self.walk, now(), 0, Call::Recv, *rider, u64::from(said.stream), "arrived");
                    }
                    None => self.wrong(*rider, "an end arrived as something else"),
                },
                None => {
                    if let Err(what) =
                        check_file(handle, said.stream, number, at - said.riders.len(), self.life.has_been_short())
                    {
                        self.wrong(end, &what);
                    }
                }
            }
        }
    }

    /// Returns whether this process may have lost handles of what came over `end`, because it holds many descriptors:
    /// few are left, or the library says that it holds as many for that peer as it may (`docs/reference/limits.md`:
    /// descriptors over the limit are closed, and their message reports that). An end can bring along messages whose
    /// handles were lost so.
    fn may_lose_handles(&self, end: u32) -> bool {
        let reached = |held: &Held| {
            let usage = held.channel.peer_usage().ok().flatten();
            usage.is_some_and(|usage| usage.peer(Resource::Descriptors).reached > 0)
        };
        own::has_few_descriptors() || self.held.iter().any(|held| held.end == end && reached(held))
    }

    /// Handles the loss of a message's handles, which is allowed only after a shortage.
    fn take_loss(&mut self, end: u32, number: u64, said: &Said, error: Error) {
        let book = self.book(end);
        let hardship = book.hardship.load(SeqCst) != 0 || self.life.has_been_short() || self.may_lose_handles(end);
        if !hardship || !matches!(error, Error::HandlesLost { .. }) {
            self.wrong(end, &format!("handles of message {number}: {error:?}"));
        }
        for rider in &said.riders {
            self.book(*rider).put(Place::Lost);
        }
    }
}

/// Waiting for many ends.
impl Walker {
    /// Returns the wait set of this thread, or a new one, after adding some of the thread's ends to it. `None` in a
    /// shortage.
    fn fill_set(&mut self) -> Option<WaitSet> {
        let over = self.life.shortages_over();
        let set = match self.set.take().filter(|_| !self.random.one_in(8)) {
            Some(set) => set,
            None => {
                self.held.iter_mut().for_each(|held| held.registration = Registration::None);
                let about = About { call: Call::NewSet, end: NO_END, number: 0 };
                match self.timed(about, Duration::ZERO, WaitSet::new, said) {
                    Ok(set) => set,
                    Err(error) if excused(self.process, over, error) => return None,
                    Err(error) => self.process.wrong(None, &format!("a wait set: {error:?}")),
                }
            }
        };
        for at in 0..self.held.len() {
            if self.held[at].registration != Registration::None || set.len() >= AWAITED || self.random.one_in(4) {
                continue;
            }
            self.add(&set, at);
        }
        self.rearm_some(&set);
        Some(set)
    }

    fn add(&mut self, set: &WaitSet, at: usize) {
        let over = self.life.shortages_over();
        let (end, channel) = (self.held[at].end, Rc::clone(&self.held[at].channel));
        let about = About { call: Call::Add, end, number: 0 };
        let (mode, registration) = match self.random.one_in(3) {
            true => (Mode::OneShot, Registration::OneShot { armed: true }),
            false => (Mode::Level, Registration::Level),
        };
        let add = || set.add(&channel, end.into(), Interest::Readable, mode);
        let added = self.timed(about, Duration::ZERO, add, said);
        match added {
            Ok(()) => self.held[at].registration = registration,
            // An end that came back from a failed send is still in the set.
            Err(Error::InSet) => return self.remove(set, at),
            Err(_) => {}
        }
        if let Err(error) = added
            && error != Error::PeerClosed
            && !self.passes(end, over, Duration::ZERO, error)
        {
            self.wrong(end, &format!("adding to a set: {error:?}"));
        }
    }

    fn wait(&mut self) {
        let Some(set) = self.fill_set() else { return };
        let patience = if self.mood.0 == Mood::Listening { self.long_patience() } else { self.patience() };
        let deadline = if patience.is_zero() { Deadline::NOW } else { patience.into() };
        let over = self.life.shortages_over();
        self.awaits(self.held.iter().filter(|held| held.registration.reports()).map(|held| held.end));
        let mut events: Vec<Event> = Vec::new();
        let about = About { call: Call::Wait, end: NO_END, number: set.len() as u64 };
        let waited = self.timed(about, patience, || set.wait(&mut events, deadline), |done| format!("{done:?}"));
        self.set = Some(set);
        if let Err(error) = waited
            && !excused(self.process, over, error)
        {
            self.process.wrong(None, &format!("waiting for a set: {error:?}"));
        }
        for event in events {
            let Some(at) = self.held.iter().position(|held| u64::from(held.end) == event.key()) else { continue };
            if !event.has_moved() {
                self.note_event(at);
                self.receive(at, Duration::ZERO);
            }
        }
    }
}

/// The end of the world.
impl Walker {
    fn arrive_at(&self, phase: Phase) {
        self.walk.done.store(phase as u32, SeqCst);
    }

    /// Receives everything that is there, until the controller ends the phase.
    fn drain_all(&mut self) {
        self.arrive_at(Phase::Drain);
        while self.process.ledger.phase() == Phase::Drain {
            self.take_from_door();
            let mut came = false;
            for at in (0..self.held.len()).rev() {
                while at < self.held.len() && self.receive(at, Duration::ZERO) {
                    came = true;
                }
            }
            if !self.drain_calls() && !came {
                self.walk.quiet.fetch_add(1, SeqCst);
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Checks that each end whose other end is gone returns *peer closed*, and that no other end does.
    fn see_that_lone_ends_say_so(&mut self) {
        for at in (0..self.held.len()).rev() {
            let end = self.held[at].end;
            if self.book(self.process.ledger.peer(end)).place() == Place::Offered {
                // The other end may be an accepted channel whose first message was not received.
                continue;
            }
            let is_lone = judge::is_peer_gone_for_certain(self.process.ledger, end);
            if is_lone {
                while self.receive(at, TOLD) {}
                if self.held.get(at).is_some_and(|held| held.end == end) {
                    self.wrong(end, "the other end is gone, and this one is not told in time");
                }
            } else {
                self.receive(at, Duration::ZERO);
            }
        }
        self.see_that_lone_calls_say_so();
        self.arrive_at(Phase::Lone);
        while self.process.ledger.phase() < Phase::Close {
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn close_all(&mut self) {
        self.see_that_nothing_is_charged();
        while !self.held.is_empty() {
            self.close(self.held.len() - 1);
        }
        self.close_all_calls();
        self.unknown.clear();
        self.set = None;
        self.held = Vec::new();
        self.arrive_at(Phase::Close);
    }
}
