//! The victim: it uses every public call of the library on whatever it has, and on what the attacker sent it.
//!
//! It has any number of drivers, each in a thread of its own with choices of its own. What is in the `Pool` is everybody's.

mod channels;
mod objects;
mod pipes;
mod waiting;

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use strait::{
    CallEnd, Channel, DataConsumer, DataProducer, Deadline, Error, Handle, Interrupter, Limits, Listener, Message,
    Options, PendingCall, Region, RegionMap, Request, Resource, Traps, WaitSet,
};

use crate::world::choices::Choices;
use crate::world::ledger::{Actor, Ledger, Word, delay, now};

/// Most of each kind that are held.
const MOST: usize = 12;

/// What the thread is called that closes what the program took out of messages.
pub const CLOSER: &str = "own-closer";

/// How long a call may take that another thread ends, which may have to end others first.
const INTERRUPTED: Duration = Duration::from_secs(1);

/// A call may take so much longer than its deadline.
pub const LATE: Duration = Duration::from_millis(500);

/// What ends a wait, and whether it has ended.
type Wait = (Interrupter, Arc<AtomicBool>);

/// What the drivers have.
#[derive(Default)]
struct Pool {
    channels: Vec<Arc<Channel>>,
    /// Some of them, which lead to the attacker: they are not sent away, and waited for again and again.
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
    /// Both ends of a channel through a socket, to send ends over.
    relay: Option<Arc<(Channel, Channel)>>,
}

/// How a victim is set up.
#[derive(Debug, Default)]
pub struct Setting {
    /// Options of its channels.
    pub options: Options,
    /// Whether it is in one thread with the attacker: then no call waits.
    pub within: bool,
    /// Where calls and findings are noted.
    pub ledger: Option<Arc<Ledger>>,
}

/// A victim.
pub struct Victim {
    pool: Mutex<Pool>,
    setting: Setting,
    listener: Option<Listener>,
    /// Descriptors that were taken out of messages: to close them is the program's business, not the library's.
    to_close: Option<Sender<Handle>>,
    /// Ends whose waits are to be ended soon.
    to_interrupt: Option<Sender<Wait>>,
}

/// Limits low enough to be reached.
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
    let relay = (Channel::over(one, &options)?, Channel::over(other, &options)?);
    relay.0.try_send(b"x").map_err(Error::from)?;
    relay.1.recv_by(Duration::from_secs(5))?;
    Ok(relay)
}

impl Victim {
    /// One that has no peer yet.
    ///
    /// # Errors
    /// As [`Channel::over`].
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

    /// Takes a socket whose other end the attacker has. Its channel stays if it is `pinned`, until it is over.
    pub fn meet(&self, socket: std::os::fd::OwnedFd, pinned: bool) -> Result<(), Error> {
        let channel = Arc::new(Channel::over(socket, &self.setting.options)?);
        let mut pool = self.pool();
        if pinned {
            pool.pinned.push(channel.clone());
        }
        pool.channels.push(channel);
        Ok(())
    }

    /// One that uses it.
    pub fn driver(&self, choices: Choices, slot: usize) -> Driver<'_> {
        Driver { victim: self, choices, slot, told: false }
    }
}

/// Closes what the program took out of messages. How many it has yet to close is in the ledger's word.
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

/// Ends waits two milliseconds later, until they have ended.
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

/// A thread of a victim.
pub struct Driver<'v> {
    victim: &'v Victim,
    choices: Choices,
    slot: usize,
    told: bool,
}

/// Puts something in, in place of something that is there if there is no room.
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

    /// Notes something that is not as it must be.
    pub fn find(&self, text: &str) {
        match &self.victim.setting.ledger {
            Some(ledger) => ledger.find(text),
            None => panic!("{text}"),
        }
    }

    /// Makes a call that may take so long.
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

    /// Notes how a call went, if it failed.
    fn failed(&self, name: &str, error: Error) {
        if let Some(ledger) = &self.victim.setting.ledger {
            ledger.note(Actor::Victim, &format!("{}:   {name}: {error}", self.slot));
        }
        if self.told {
            println!("  {name}: {error}");
        }
        // A peer may have its socket take no descriptors: then none can be sent to it.
        let is_refusal = error == Error::System { call: "sendmsg", code: libc::EPERM };
        if let (Error::System { call, code }, false) = (error, is_refusal) {
            self.find(&format!("{name}: {call} was refused with {code}"));
        }
    }

    /// Makes a call without a deadline, which somebody else ends.
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

    /// Takes one out.
    fn take<T>(&mut self, get: impl Fn(&mut Pool) -> &mut Vec<T>) -> Option<T> {
        let mut pool = self.victim.pool();
        let all = get(&mut pool);
        if all.is_empty() { None } else { Some(all.swap_remove(self.choices.below(all.len()))) }
    }

    /// Puts one in; what it replaces is dropped as any other call is made.
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

    /// What came in a message.
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

    /// Closes a descriptor of the program's, which may take as long as it likes.
    fn close(&self, handle: Handle) {
        if let (Some(sender), Some(ledger)) = (&self.victim.to_close, &self.victim.setting.ledger) {
            ledger.add(Word::Own, 1);
            let _ = sender.send(handle);
        }
    }

    /// A message was received.
    fn received(&mut self, mut message: Message) {
        self.note_work(message.bytes().len());
        self.check_length(message.bytes().len());
        if self.choices.one_in(3) {
            return self.keep(|pool| &mut pool.messages, message);
        }
        if self.choices.one_in(4) {
            // With the handles in it.
            return self.call("drop a message", Duration::ZERO, || drop(message));
        }
        if let Ok(handles) = self.call("take_handles", Duration::ZERO, || message.take_handles()) {
            self.keep_handles(handles);
        }
    }

    /// No message is longer than the longest.
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

    /// Whether calls are printed, where there is no ledger.
    pub fn tell(&mut self, told: bool) {
        self.told = told;
    }

    /// Whether an input has made all its choices.
    pub fn is_over(&self) -> bool {
        self.choices.are_over()
    }

    /// A choice of whether the victim lets go while the attacker is there.
    pub fn ends_first(&mut self) -> bool {
        self.choices.one_in(2)
    }

    /// Uses what is made once for a process: what there is of it stays.
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

    /// Lets go of all that this victim has.
    pub fn let_go(&mut self) {
        let pool = std::mem::take(&mut *self.pool());
        self.call("drop of all", Duration::ZERO, || drop(pool));
    }

    /// Makes a call.
    pub fn act(&mut self) {
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

    /// Closes one of what it has.
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
