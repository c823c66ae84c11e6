//! The victim: a process that calls every public operation of the library, on its own objects and on objects from the
//! attacker. `tests/operations.rs` checks that, and has the exceptions with their reasons.
//!
//! A victim has any number of drivers, each in its own thread and with its own choices. All drivers share the objects
//! in the `Pool`.

mod channels;
mod objects;
mod pipes;
mod waiting;

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use strait::call::{CallEnd, PendingCall, Request};
use strait::pipe::{DataConsumer, DataProducer};
use strait::quota::{Limits, Resource};
use strait::region::{Region, RegionMap};
use strait::wait::{Traps, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Interrupter, Listener, Message, Options};

use crate::world::choices::Choices;
use crate::world::ledger::{Actor, Ledger, Word, delay, now};

/// The maximum number of objects of each kind in a victim.
const MOST: usize = 12;

/// The name of the thread that closes descriptors taken out of messages by the victim's program.
pub const CLOSER: &str = "own-closer";

/// How long a call that another thread interrupts may take. The interrupting thread may have to interrupt other calls
/// first.
const INTERRUPTED: Duration = Duration::from_secs(1);

/// How much later than its deadline a call may return.
pub const LATE: Duration = Duration::from_millis(500);

/// An interrupter, which ends a waiting call, and a flag that is set once the call has ended.
type Wait = (Interrupter, Arc<AtomicBool>);

/// The objects shared by all drivers of a victim.
#[derive(Default)]
struct Pool {
    channels: Vec<Arc<Channel>>,
    /// Channels to the attacker that are also in `channels` and are never sent away. A driver prefers these channels
    /// for its waits.
    pinned: Vec<Arc<Channel>>,
    sets: Vec<Arc<WaitSet>>,
    traps: Vec<Arc<Traps>>,
    regions: Vec<Region>,
    maps: Vec<RegionMap>,
    producers: Vec<Arc<DataProducer>>,
    consumers: Vec<Arc<DataConsumer>>,
    ends: Vec<Arc<CallEnd>>,
    pending: Vec<PendingCall>,
    requests: Vec<Request>,
    messages: Vec<Message>,
    /// Both ends of a channel over a socket of this process to itself; ends are sent over it.
    relay: Option<Arc<(Channel, Channel)>>,
}

/// The configuration of a victim.
#[derive(Debug, Default)]
pub struct Setting {
    /// The options of the victim's channels.
    pub options: Options,
    /// Whether victim and attacker share one thread. If so, no call of the victim waits.
    pub within: bool,
    /// The ledger for calls and mistakes; `None` within one process, where a mistake panics.
    pub ledger: Option<Arc<Ledger>>,
}

/// A victim: its objects and its listener.
pub struct Victim {
    pool: Mutex<Pool>,
    setting: Setting,
    listener: Option<Listener>,
    /// Takes descriptors from messages to the thread that closes them. Their close is the program's business, not the
    /// library's.
    to_close: Option<Sender<Handle>>,
    /// Takes waiting calls to the thread that interrupts them.
    to_interrupt: Option<Sender<Wait>>,
}

impl fmt::Debug for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Victim").finish_non_exhaustive()
    }
}

/// Returns limits that are low enough for an attacker to reach.
pub fn tight_limits() -> Limits {
    Limits::new()
        .peer(Resource::Memory, 64 << 20)
        .peer(Resource::Mappings, 300)
        .peer(Resource::Descriptors, 300)
        .peer(Resource::Lanes, 4096)
        .peer(Resource::QueuedBytes, 16 << 20)
        .peer(Resource::QueuedMessages, 4096)
        .peer(Resource::Regions, 64 << 20)
}

fn relay() -> Result<(Channel, Channel), Error> {
    let pair = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::CLOEXEC,
        None,
    );
    let (one, other) = pair.map_err(|_| Error::NoDescriptors)?;
    let options = Options::new();
    let relay = (options.over(one)?, options.over(other)?);
    relay.0.try_send(b"x").map_err(Error::from)?;
    relay.1.recv_by(Duration::from_secs(5))?;
    Ok(relay)
}

impl Victim {
    /// Returns a victim without a peer.
    ///
    /// # Errors
    /// None at present.
    pub fn new(setting: Setting, listener: Option<Listener>) -> Result<Self, Error> {
        let (to_close, to_interrupt) = match setting.within {
            true => (None, None),
            false => (Some(start_closer(setting.ledger.clone())), Some(start_interrupter())),
        };
        Ok(Self { pool: Mutex::default(), setting, listener, to_close, to_interrupt })
    }

    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.pool.lock().expect("nobody panics with it")
    }

    /// Makes a channel over a socket to the attacker. A `pinned` channel is never sent away.
    pub fn meet(&self, socket: std::os::fd::OwnedFd, pinned: bool) -> Result<(), Error> {
        let channel = Arc::new(self.setting.options.over(socket)?);
        let mut pool = self.pool();
        if pinned {
            pool.pinned.push(channel.clone());
        }
        pool.channels.push(channel);
        Ok(())
    }

    /// Returns a driver with these choices. `slot` is its slot for calls in the ledger.
    pub fn driver(&self, choices: Choices, slot: usize) -> Driver<'_> {
        Driver { victim: self, choices, slot, told: false }
    }
}

/// Starts the thread that closes descriptors taken out of messages. For each closed descriptor, the thread reduces
/// the ledger's [`Word::Own`] by one.
fn start_closer(ledger: Option<Arc<Ledger>>) -> Sender<Handle> {
    let (sender, receiver) = channel::<Handle>();
    let close = move || {
        for handle in receiver {
            drop(handle);
            if let Some(ledger) = &ledger {
                ledger.word(Word::Own).fetch_sub(1, SeqCst);
            }
        }
    };
    std::thread::Builder::new().name(CLOSER.into()).spawn(close).expect("a thread");
    sender
}

/// Starts the thread that interrupts waiting calls, one after the other: two milliseconds after the thread took a
/// call, until the call has ended.
fn start_interrupter() -> Sender<Wait> {
    let (sender, receiver) = channel::<Wait>();
    std::thread::spawn(move || {
        for (interrupter, has_ended) in receiver {
            std::thread::sleep(Duration::from_millis(2));
            interrupter.interrupt();
            while !has_ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            interrupter.resume();
        }
    });
    sender
}

/// A driver of a victim: one thread that acts on the victim's objects at random.
pub struct Driver<'v> {
    victim: &'v Victim,
    choices: Choices,
    slot: usize,
    told: bool,
}

impl fmt::Debug for Driver<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
    }
}

/// Adds an object. If there are [`MOST`] objects, replaces the object at `at` (modulo their number), and returns the
/// replaced object.
fn put<T>(into: &mut Vec<T>, one: T, at: usize) -> Option<T> {
    if into.len() < MOST {
        into.push(one);
        return None;
    }
    let at = at % into.len();
    Some(std::mem::replace(&mut into[at], one))
}

impl Driver<'_> {
    fn pool(&self) -> MutexGuard<'_, Pool> {
        self.victim.pool()
    }

    fn within(&self) -> bool {
        self.victim.setting.within
    }

    fn options(&self) -> Options {
        self.victim.setting.options
    }

    /// Records a mistake; panics if there is no ledger.
    pub fn find(&self, text: &str) {
        match &self.victim.setting.ledger {
            Some(ledger) => ledger.find(text),
            None => panic!("{text}"),
        }
    }

    /// Makes a call that may take `allowed`, and records the call. Reports a mistake if the call took much longer.
    fn call<T>(&self, name: &str, allowed: Duration, call: impl FnOnce() -> T) -> T {
        let Some(ledger) = &self.victim.setting.ledger else {
            if self.told {
                println!("Victim: {name}");
            }
            let begun = now();
            let result = call();
            assert!(now() - begun < allowed + 10 * LATE, "{name} took {:?} of {allowed:?}", now() - begun);
            return result;
        };
        ledger.note(Actor::Victim, &format!("{}: {name} {allowed:?}", self.slot));
        let delayed = delay() + Duration::from_nanos(ledger.get(Word::Delays));
        let begun = ledger.begin_call(self.slot, name, allowed);
        let result = call();
        let took = now() - begun;
        ledger.end_call(self.slot);
        if took > allowed + LATE {
            let delayed = (delay() + Duration::from_nanos(ledger.get(Word::Delays))).saturating_sub(delayed);
            if took > allowed + LATE + 2 * delayed {
                ledger.find(&format!("{name} took {took:?} of {allowed:?}, delayed for {delayed:?}"));
            }
        }
        result
    }

    /// Records that a call failed. An unexpected error of a system call is a mistake.
    fn failed(&self, name: &str, error: Error) {
        if let Some(ledger) = &self.victim.setting.ledger {
            ledger.note(Actor::Victim, &format!("{}:   {name}: {error}", self.slot));
        }
        if self.told {
            println!("  {name}: {error}");
        }
        // A peer may set its socket to accept no descriptors; sending a descriptor then fails with this error.
        let is_refusal = error == Error::System { call: "sendmsg", code: libc::EPERM };
        if let (Error::System { call, code }, false) = (error, is_refusal) {
            self.find(&format!("{name}: {call} was refused with {code}"));
        }
    }

    /// Makes a call without a deadline, which another thread interrupts. Without such a thread, makes no call and
    /// returns `None`.
    fn call_until_interrupted<T>(&self, name: &str, channel: &Channel, call: impl FnOnce() -> T) -> Option<T> {
        let sender = self.victim.to_interrupt.as_ref()?;
        let has_ended = Arc::new(AtomicBool::new(false));
        sender.send((channel.interrupter(), has_ended.clone())).ok()?;
        let result = self.call(name, INTERRUPTED, call);
        has_ended.store(true, SeqCst);
        Some(result)
    }

    fn deadline(&mut self) -> (Deadline, Duration) {
        let millis = if self.within() { 0 } else { self.choices.pick(&[0, 0, 1, 1, 3, 10]) };
        match millis {
            0 => (Deadline::NOW, Duration::ZERO),
            millis => (Deadline::after(Duration::from_millis(millis)), Duration::from_millis(millis)),
        }
    }

    fn one_of<T: Clone>(&mut self, get: impl Fn(&Pool) -> &Vec<T>) -> Option<T> {
        let pool = self.victim.pool();
        let all = get(&pool);
        if all.is_empty() { None } else { Some(all[self.choices.below(all.len())].clone()) }
    }

    /// Removes a random object from the pool; `None` if the pool has none of that kind.
    fn take<T>(&mut self, get: impl Fn(&mut Pool) -> &mut Vec<T>) -> Option<T> {
        let mut pool = self.victim.pool();
        let all = get(&mut pool);
        if all.is_empty() { None } else { Some(all.swap_remove(self.choices.below(all.len()))) }
    }

    /// Adds an object to the pool. Drops the replaced object, if there is one, as a recorded call.
    fn keep<T>(&mut self, get: impl Fn(&mut Pool) -> &mut Vec<T>, one: T) {
        let at = self.choices.below(MOST);
        let replaced = put(get(&mut self.victim.pool()), one, at);
        if let Some(replaced) = replaced {
            self.call("drop", Duration::ZERO, || drop(replaced));
        }
    }

    fn relay(&mut self) -> Option<Arc<(Channel, Channel)>> {
        if let Some(relay) = &self.pool().relay {
            return Some(relay.clone());
        }
        let relay = Arc::new(self.note("a relay", relay())?);
        self.pool().relay = Some(relay.clone());
        Some(relay)
    }

    fn channel(&mut self) -> Option<Arc<Channel>> {
        self.one_of(|pool| &pool.channels)
    }

    /// Adds the handles of a message to the pool, and closes file descriptors.
    fn keep_handles(&mut self, handles: Vec<Handle>) {
        for handle in handles {
            match handle {
                Handle::Channel(channel) => self.keep(|pool| &mut pool.channels, Arc::new(channel)),
                Handle::Region(region) => self.keep(|pool| &mut pool.regions, region),
                Handle::Producer(producer) => self.keep(|pool| &mut pool.producers, Arc::new(producer)),
                Handle::Consumer(consumer) => self.keep(|pool| &mut pool.consumers, Arc::new(consumer)),
                handle => self.close(handle),
            }
        }
    }

    /// Has a descriptor closed by the closing thread, since the close may take any time. Without such a thread,
    /// closes it here.
    fn close(&self, handle: Handle) {
        if let (Some(sender), Some(ledger)) = (&self.victim.to_close, &self.victim.setting.ledger) {
            ledger.add(Word::Own, 1);
            let _ = sender.send(handle);
        }
    }

    /// Handles a received message: adds it to the pool, drops it, or takes its handles.
    fn received(&mut self, mut message: Message) {
        self.note_work(message.bytes().len());
        self.check_length(message.bytes().len());
        if self.choices.one_in(3) {
            return self.keep(|pool| &mut pool.messages, message);
        }
        if self.choices.one_in(4) {
            // The message is dropped together with its handles.
            return self.call("drop a message", Duration::ZERO, || drop(message));
        }
        if let Ok(handles) = self.call("take_handles", Duration::ZERO, || message.take_handles()) {
            self.keep_handles(handles);
        }
    }

    /// Reports a mistake if a message is longer than the library allows.
    fn check_length(&self, len: usize) {
        if len > strait::MAX_MESSAGE {
            self.find(&format!("a message of {len} bytes"));
        }
    }

    fn note_work(&self, bytes: usize) {
        if let Some(ledger) = &self.victim.setting.ledger {
            ledger.add(Word::Work, 60 + bytes as u64 / 500);
        }
    }

    /// Sets whether calls are printed if there is no ledger.
    pub fn tell(&mut self, told: bool) {
        self.told = told;
    }

    /// Returns whether the choices come from an input that has ended.
    pub fn is_over(&self) -> bool {
        self.choices.are_over()
    }

    /// Chooses whether the victim closes everything while the attacker is still there.
    pub fn ends_first(&mut self) -> bool {
        self.choices.one_in(2)
    }

    /// Uses each part of the library for which objects are created once for a process, so that these objects exist
    /// afterwards.
    pub fn warm_up(&mut self) {
        self.new_pair();
        self.new_pipe();
        for _ in 0..20 {
            self.act_on_sets();
            self.act_on_traps();
            self.act_on_reactors();
            self.act_on_meetings();
        }
        self.let_go();
    }

    /// Drops everything in the pool.
    pub fn let_go(&mut self) {
        let pool = std::mem::take(&mut *self.pool());
        self.call("drop of all", Duration::ZERO, || drop(pool));
    }

    /// Makes one random call, or a few related calls, and records the number of descriptors in the messages of the
    /// pool.
    pub fn act(&mut self) {
        self.act_once();
        if let Some(ledger) = &self.victim.setting.ledger {
            let pool = self.pool();
            let of_messages: usize = pool.messages.iter().map(|message| message.handles().len()).sum();
            let of_requests = pool.requests.len() * strait::quota::MAX_HANDLES;
            ledger.word(Word::InMessages).store((of_messages + of_requests) as u64, SeqCst);
        }
    }

    fn act_once(&mut self) {
        match self.choices.below(20) {
            0..=7 => self.act_on_channels(),
            8..=10 => self.act_on_ends(),
            11 => self.act_on_sets(),
            12 => self.act_on_traps(),
            13 => self.act_on_regions(),
            14 => self.act_on_pipes(),
            15 | 16 => self.act_on_calls(),
            17 => self.act_on_reactors(),
            18 => self.act_on_meetings(),
            _ => self.close_some(),
        }
    }

    /// Drops one random object of the pool.
    fn close_some(&mut self) {
        match self.choices.below(14) {
            0 => self.close_one("drop of channels", |pool| &mut pool.channels),
            1 => self.close_one("drop of sets", |pool| &mut pool.sets),
            2 => self.close_one("drop of traps", |pool| &mut pool.traps),
            3 => self.close_one("drop of regions", |pool| &mut pool.regions),
            4 => self.close_one("drop of maps", |pool| &mut pool.maps),
            5 => self.close_one("drop of producers", |pool| &mut pool.producers),
            6 => self.close_one("drop of consumers", |pool| &mut pool.consumers),
            7 => self.close_one("drop of ends", |pool| &mut pool.ends),
            8 => self.close_one("drop of pending", |pool| &mut pool.pending),
            9 => self.close_one("drop of requests", |pool| &mut pool.requests),
            10 => self.close_one("drop of messages", |pool| &mut pool.messages),
            _ => self.close_one("drop of channels", |pool| &mut pool.channels),
        }
    }

    fn close_one<T>(&mut self, name: &str, get: impl Fn(&mut Pool) -> &mut Vec<T>) {
        if let Some(one) = self.take(get) {
            self.call(name, Duration::ZERO, || drop(one));
        }
    }
}
