//! Serving channels from one thread, for handlers that are bound to it.
//!
//! Nothing here is needed to serve a channel: any thread may receive from any end, so a handler can run where its message is
//! received. A dispatcher is for what must run in one thread (a user interface, a script engine), with an order between
//! channels. That thread can receive by itself, and then a message changes threads nowhere:
//!
//! ```text
//! dispatcher (one):    wait ─▶ receive ─▶ the most urgent channel's next message ─▶ handler
//! ```
//!
//! Or somebody receives for it, so that senders go on while a handler is at work. That is a hop: a lock, a queue and a wake-up
//! for each message.
//!
//! ```text
//! pump (any thread):   wait set ─▶ receive ─▶ queue of the channel ─▶ wake
//! dispatcher (one):                           the most urgent channel's next message ─▶ handler
//! ```
//!
//! It is the one or the other, and which is known at any time: as long as there is a pump, it receives. Only the thread of the
//! dispatcher makes pumps and serves channels, so nothing of this changes while it sleeps, but that the last pump goes.
//!
//! A dispatcher that receives from one channel alone waits on that one, as a plain receive does, and the channel's place in the
//! set is disarmed as long.
//!
//! A channel whose queue is full is left alone by the pump until the dispatcher has taken half of it: what is not received
//! fills the ring, and the sender waits, as it would without the hop.
//!
//! What cannot be received now, for want of a descriptor or since it would be over a limit, stays in front of its channel, which
//! would be an event again at once and for ever. So that channel is left alone until the next call of a dispatcher without a
//! pump, which returns the error if nothing else is there; and by a pump for a moment.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::channel::message::Message;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::{Event, Interest, Mode, WaitSet};

/// Messages of one channel that may wait for the dispatcher.
const MOST_QUEUED: usize = 64;

/// Messages received from a channel in a row, before others have their turn.
const IN_A_ROW: usize = 32;

/// How soon a pump tries again to receive what it could not for want of a descriptor, or that was over a limit.
const RETRY: Duration = Duration::from_millis(10);

/// The key of what is readable once there is no dispatcher any more.
const STOPPED: u64 = u64::MAX;

/// What a handler is told.
#[derive(Debug)]
pub enum Dispatched {
    /// The next message of its channel.
    Message(Message),
    /// Nothing more will come, and why: [`Error::PeerClosed`] as a rule. The handler is not called again.
    Ended(Error),
}

/// A channel's key, the channel, what is next of it, and whether its queue is no longer full.
type Next = (u64, Arc<Channel>, Dispatched, bool);

type Handler = Rc<RefCell<dyn FnMut(&Channel, Dispatched)>>;

/// A channel that is served.
#[derive(Debug)]
struct Served {
    channel: Arc<Channel>,
    priority: u8,
    queue: VecDeque<Message>,
    /// Why nothing more will come, behind what is queued.
    ended: Option<Error>,
    /// Whether the pump is to leave it alone, as its queue is full.
    full: bool,
    /// Whether it stands in `ready`.
    ready: bool,
    /// Whether its handler is being called.
    busy: bool,
}

#[derive(Debug, Default)]
struct State {
    served: BTreeMap<u64, Served>,
    /// Channels that have something, by priority; each once.
    ready: BTreeMap<u8, VecDeque<u64>>,
    /// Whether the dispatcher is asleep, and a pump is to wake it.
    asleep: bool,
    /// How many pumps there are.
    pumps: usize,
    /// The channel on which the dispatcher waits itself, and of which the set tells nothing.
    direct: Option<u64>,
    /// Channels whose next message could not be received, though it may be later. The set tells nothing of them.
    failed: Vec<Failed>,
}

/// A channel whose next message could not be received.
#[derive(Debug)]
struct Failed {
    key: u64,
    error: Error,
    at: Instant,
}

/// How the dispatcher gets something.
enum Source {
    /// From pumps.
    Pumps,
    /// By itself, from its only channel.
    Channel(u64, Arc<Channel>),
    /// By itself, from whatever the set tells of.
    Set,
}

impl State {
    fn make_ready(&mut self, key: u64) {
        if let Some(served) = self.served.get_mut(&key)
            && !served.busy
            && !std::mem::replace(&mut served.ready, true)
        {
            self.ready.entry(served.priority).or_default().push_back(key);
        }
    }

    /// The next of the most urgent channel that has something. With the channel, what is next, and whether its queue is no
    /// longer full.
    fn next(&mut self) -> Option<Next> {
        loop {
            let mut entry = self.ready.last_entry()?;
            let Some(key) = entry.get_mut().pop_front() else {
                entry.remove();
                continue;
            };
            let Some(served) = self.served.get_mut(&key) else { continue };
            served.ready = false;
            let next = match served.queue.pop_front() {
                Some(message) => Dispatched::Message(message),
                None => match served.ended {
                    Some(error) => Dispatched::Ended(error),
                    None => continue,
                },
            };
            let channel = served.channel.clone();
            let resumes = served.full && served.queue.len() <= MOST_QUEUED / 2;
            served.full &= !resumes;
            served.busy = true;
            if matches!(next, Dispatched::Ended(_)) {
                self.served.remove(&key);
            }
            return Some((key, channel, next, resumes));
        }
    }

    /// How the dispatcher gets something now. With a channel whose place in the set is to be armed again, or disarmed.
    fn source(&mut self) -> (Source, Option<Arc<Channel>>) {
        let only = match self.served.iter().next() {
            // What comes while its handler is called waits for that.
            Some((key, served)) if self.served.len() == 1 && self.pumps == 0 && !served.busy => {
                Some((*key, served.channel.clone()))
            }
            _ => None,
        };
        let before = self.direct;
        self.direct = only.as_ref().map(|(key, _)| *key);
        if let Some(direct) = self.direct {
            self.failed.retain(|failed| failed.key != direct);
        }
        match only {
            Some((key, channel)) => {
                let disarmed = (before != self.direct).then(|| channel.clone());
                (Source::Channel(key, channel), disarmed)
            }
            None => {
                let armed = before.and_then(|key| self.served.get(&key)).filter(|served| !served.full);
                (if self.pumps > 0 { Source::Pumps } else { Source::Set }, armed.map(|served| served.channel.clone()))
            }
        }
    }

    /// Why nothing could be received from one of the channels that are still served.
    fn failed(&self) -> Option<Error> {
        self.failed.iter().find(|failed| self.served.contains_key(&failed.key)).map(|failed| failed.error)
    }

    /// The channels that failed by then and are to be tried again. Each is handed out once.
    fn take_failed(&mut self, until: Instant) -> Vec<Arc<Channel>> {
        let due = self.failed.extract_if(.., |failed| failed.at <= until);
        due.filter_map(|failed| self.served.get(&failed.key)).map(|served| served.channel.clone()).collect()
    }

    /// The handler of a channel has returned.
    fn done(&mut self, key: u64) {
        let Some(served) = self.served.get_mut(&key) else { return };
        served.busy = false;
        if !served.queue.is_empty() || served.ended.is_some() {
            self.make_ready(key);
        }
    }
}

#[derive(Debug)]
struct Shared {
    set: WaitSet,
    /// In the set; readable once its other end, which the dispatcher has, is closed.
    stopped: Channel,
    state: Mutex<State>,
    news: Condvar,
}

impl Shared {
    /// Whether it was served.
    fn forget(&self, key: u64) -> bool {
        let served = unpoisoned(&self.state).served.remove(&key);
        if let Some(served) = &served {
            let _ = self.set.remove(&served.channel);
        }
        served.is_some()
    }

    /// Receives what is there on a channel, as far as its queue takes it.
    fn receive(&self, key: u64) {
        let place = |served: &Served| (served.channel.clone(), MOST_QUEUED.saturating_sub(served.queue.len()));
        let Some((channel, room)) = unpoisoned(&self.state).served.get(&key).map(place) else { return };
        let (mut ended, mut failed) = (None, None);
        let mut received = Vec::new();
        while received.len() < room.min(IN_A_ROW) {
            match channel.try_recv() {
                Ok(message) => received.push(message),
                Err(Error::WouldBlock) => break,
                Err(error) if error.passes() => {
                    failed = Some(Failed { key, error, at: Instant::now() });
                    break;
                }
                Err(error) => {
                    ended = Some(error);
                    break;
                }
            }
        }
        let mut state = unpoisoned(&self.state);
        let Some(served) = state.served.get_mut(&key) else { return };
        let news = !received.is_empty() || ended.is_some();
        served.queue.extend(received);
        served.ended = served.ended.or(ended);
        served.full = served.queue.len() >= MOST_QUEUED;
        let rearm = !served.full && served.ended.is_none() && failed.is_none();
        state.failed.extend(failed);
        if news {
            state.make_ready(key);
        }
        let wake = news && std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.news.notify_one();
        }
        // If there is more it is an event again, after those of others.
        if rearm {
            self.set.rearm_later(&channel);
        }
    }

    /// Has the set tell again of channels that failed by then.
    fn retry(&self, until: Instant) {
        let channels = unpoisoned(&self.state).take_failed(until);
        channels.iter().for_each(|channel| self.set.rearm_later(channel));
    }
}

/// Calls handlers in one thread with the messages of any number of channels.
///
/// Who needs neither one thread nor an order between channels needs no dispatcher: a channel can be received from in any thread,
/// pool or executor, and sending never hops.
///
/// A dispatcher stays in the thread that made it, and so may its handlers, which need not be `Send`. That thread receives by
/// itself when it [dispatches](Self::dispatch), and sleeps on the channels when there is nothing: a message changes threads
/// nowhere. What it has received and not handled yet is queued, 64 messages of each channel at most; then it leaves that channel
/// alone, and the sender waits as ever.
///
/// # With a hop
/// A [`Pump`] in another thread receives while a handler is at work, so that senders need not wait for it, up to those 64. Each
/// message then wakes two threads. As long as there is a pump it is the pumps that receive, and nobody else.
///
/// # Order
/// The messages of one channel are handled in the order in which they were sent, one at a time. Between channels the one with
/// the highest priority that has something goes first; those of one priority take turns, a message each. There is no ageing:
/// what is urgent without end keeps what is less urgent waiting.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use strait::{Channel, Deadline, Dispatched, Dispatcher};
/// let dispatcher = Dispatcher::new()?;
/// let (theirs, ours) = Channel::pair()?;
/// // Not `Send`: it is called in this thread.
/// let handled = Rc::new(Cell::new(0));
/// let count = handled.clone();
/// dispatcher.serve(ours, 0, move |channel, dispatched| {
///     if let Dispatched::Message(message) = dispatched {
///         count.set(count.get() + 1);
///         channel.send(message.bytes()).unwrap();
///     }
/// })?;
/// theirs.send(b"hello")?;
/// dispatcher.dispatch(Deadline::NEVER)?;
/// assert_eq!((handled.get(), theirs.recv()?.bytes()), (1, &b"hello"[..]));
/// # Ok::<(), strait::Error>(())
/// ```
pub struct Dispatcher {
    shared: Arc<Shared>,
    handlers: RefCell<BTreeMap<u64, Handler>>,
    next: Cell<u64>,
    /// Memory for what the set tells.
    events: RefCell<Vec<Event>>,
    /// Closed by being dropped, which ends the pumps.
    _stop: Channel,
    /// It stays in its thread, whatever its handlers are.
    here: PhantomData<Rc<()>>,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("channels", &self.handlers.borrow().len()).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// One that serves nothing yet.
    ///
    /// # Errors
    /// As [`WaitSet::new`].
    pub fn new() -> Result<Self, Error> {
        let (stop, stopped) = Channel::pair()?;
        let set = WaitSet::new()?;
        set.add(&stopped, STOPPED, Interest::Readable, Mode::Level)?;
        let shared = Arc::new(Shared { set, stopped, state: Mutex::default(), news: Condvar::new() });
        let (handlers, next, events) = Default::default();
        Ok(Self { shared, _stop: stop, handlers, next, events, here: PhantomData })
    }

    /// Serves a channel: `handler` is called with each of its messages, in this thread, within
    /// [`dispatch`](Self::dispatch). Higher priorities go first. Returns a key for [`stop`](Self::stop).
    ///
    /// The handler gets the channel to answer on, and may call anything, this dispatcher's `serve`, `stop` and `dispatch` too.
    /// Within a `dispatch` of its own it is not called again: what comes for its channel meanwhile waits until it returns.
    ///
    /// # Errors
    /// As [`WaitSet::add`]. The channel is closed then.
    pub fn serve(
        &self,
        channel: Channel,
        priority: u8,
        handler: impl FnMut(&Channel, Dispatched) + 'static,
    ) -> Result<u64, Error> {
        let key = self.next.replace(self.next.get() + 1);
        let channel = Arc::new(channel);
        let served = Served {
            channel: channel.clone(),
            priority,
            queue: VecDeque::new(),
            ended: None,
            full: false,
            ready: false,
            busy: false,
        };
        self.handlers.borrow_mut().insert(key, Rc::new(RefCell::new(handler)));
        unpoisoned(&self.shared.state).served.insert(key, served);
        if let Err(error) = self.shared.set.add(&channel, key, Interest::Readable, Mode::OneShot) {
            self.stop(key);
            return Err(error);
        }
        Ok(key)
    }

    /// Serves a channel no more and closes it. What was received and not handled is dropped. False if it was served no more.
    pub fn stop(&self, key: u64) -> bool {
        let handler = self.handlers.borrow_mut().remove(&key);
        drop(handler);
        self.shared.forget(key)
    }

    /// What receives for this dispatcher, which no longer does so itself until the last pump is dropped. Any number of them may
    /// run, each in a thread of its own; one that does not run receives nothing.
    pub fn pump(&self) -> Pump {
        let mut state = unpoisoned(&self.shared.state);
        state.pumps += 1;
        let (_, armed) = state.source();
        drop(state);
        self.arm(armed);
        Pump { shared: self.shared.clone() }
    }

    fn arm(&self, channel: Option<Arc<Channel>>) {
        if let Some(channel) = channel {
            self.shared.set.rearm_later(&channel);
        }
    }

    /// Waits until a channel has something, or the deadline has passed, and calls the handlers of what is there, the most urgent
    /// first. Returns how many were called, at least one; 0 if the time is up.
    ///
    /// What comes while handlers are called is handled as well, up to 64 in a call.
    ///
    /// # Errors
    /// If no handler was called: [`Error::Forked`]; and if there is no pump, as [`WaitSet::wait`] and [`Channel::recv_to`]
    /// where nothing is lost and the call can be made again, as soon as there may be what was wanting. A channel of which nothing
    /// can be received keeps no other waiting, and is tried anew in each call.
    pub fn dispatch(&self, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        self.shared.stopped.end.born.check()?;
        let deadline = deadline.into();
        let mut called = 0;
        while called < MOST_QUEUED {
            let next = match self.take(if called == 0 { deadline } else { Deadline::NOW }, called == 0) {
                Err(error) if called == 0 => return Err(error),
                next => next.unwrap_or(None),
            };
            let Some((key, channel, next, resumes)) = next else { break };
            if resumes {
                self.shared.set.rearm_later(&channel);
            }
            called += 1;
            let handler = match next {
                Dispatched::Ended(_) => self.handlers.borrow_mut().remove(&key),
                Dispatched::Message(_) => self.handlers.borrow().get(&key).cloned(),
            };
            // Also if the handler panics.
            let _busy = Busy { state: &self.shared.state, key };
            if let Some(handler) = handler {
                (*handler.borrow_mut())(&channel, next);
            }
        }
        Ok(called)
    }

    /// The next message, and what goes with it. Waits for one until the deadline. With `thoroughly`, even if that has passed, it
    /// looks for what only the kernel tells.
    fn take(&self, deadline: Deadline, thoroughly: bool) -> Result<Option<Next>, Error> {
        let mut state = unpoisoned(&self.shared.state);
        let (mut looked, mut thoroughly) = (false, thoroughly);
        if thoroughly && state.pumps == 0 && !state.failed.is_empty() {
            // What could not be received in the last call.
            drop(state);
            self.shared.retry(Instant::now());
            state = unpoisoned(&self.shared.state);
        }
        loop {
            let (source, changed) = state.source();
            match &source {
                // What is there now is to be in the queues before the most urgent is chosen.
                Source::Set if !looked => {
                    drop(state);
                    self.arm(changed);
                    looked = true;
                    self.look()?;
                    state = unpoisoned(&self.shared.state);
                    continue;
                }
                Source::Channel(..) => changed.into_iter().for_each(|channel| self.shared.set.disarm(&channel)),
                _ => self.arm(changed),
            }
            if let Some((key, channel, next, resumes)) = state.next() {
                return Ok(Some((key, channel, next, resumes && state.direct != Some(key))));
            }
            match source {
                Source::Channel(key, channel) => {
                    drop(state);
                    return self.receive_from(key, channel, deadline);
                }
                Source::Set if thoroughly || !deadline.has_passed() || state.failed().is_some() => {
                    let until = match state.failed() {
                        // There is nothing to wait for; but others may have what only the kernel tells.
                        Some(_) if thoroughly => Deadline::NOW,
                        Some(error) => return Err(error),
                        None => deadline,
                    };
                    thoroughly = false;
                    drop(state);
                    self.wait(until)?;
                    state = unpoisoned(&self.shared.state);
                }
                _ if deadline.has_passed() => return Ok(None),
                _ => {
                    state.asleep = true;
                    state = match deadline.remaining(Instant::now()) {
                        None => self.shared.news.wait(state).unwrap_or_else(PoisonError::into_inner),
                        Some(left) => {
                            self.shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                        }
                    };
                    state.asleep = false;
                }
            }
        }
    }

    /// Receives the next message of the only channel, which has nothing in its queue.
    fn receive_from(&self, key: u64, channel: Arc<Channel>, deadline: Deadline) -> Result<Option<Next>, Error> {
        let next = match channel.recv_by(deadline) {
            Ok(message) => Dispatched::Message(message),
            Err(Error::WouldBlock | Error::TimedOut) => return Ok(None),
            Err(error) if error.passes() => return Err(error),
            Err(error) => Dispatched::Ended(error),
        };
        let mut state = unpoisoned(&self.shared.state);
        match &next {
            Dispatched::Message(_) => state.served.get_mut(&key).into_iter().for_each(|served| served.busy = true),
            Dispatched::Ended(_) => drop(state.served.remove(&key)),
        }
        Ok(Some((key, channel, next, false)))
    }

    /// Receives what is there, from whatever channels.
    fn look(&self) -> Result<(), Error> {
        let mut events = self.events.take();
        let looked = self.shared.set.look(&mut events);
        self.receive(&events);
        self.events.replace(events);
        looked
    }

    /// Sleeps until something is there, and receives it.
    fn wait(&self, deadline: Deadline) -> Result<(), Error> {
        let mut events = self.events.take();
        let waited = self.shared.set.wait(&mut events, deadline);
        self.receive(&events);
        self.events.replace(events);
        waited.map(|_| ())
    }

    fn receive(&self, events: &[Event]) {
        events.iter().map(Event::key).filter(|key| *key != STOPPED).for_each(|key| self.shared.receive(key));
    }
}

/// While a handler is called nothing more of its channel is.
struct Busy<'a> {
    state: &'a Mutex<State>,
    key: u64,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        unpoisoned(self.state).done(self.key);
    }
}

impl Drop for Dispatcher {
    /// Closes the channels that it serves, and ends its pumps.
    fn drop(&mut self) {
        if self.shared.stopped.end.born.is_elsewhere() {
            // As with channels.
            return std::mem::forget(self.shared.clone());
        }
        let served = std::mem::take(&mut unpoisoned(&self.shared.state).served);
        drop(served);
    }
}

/// Receives for a [`Dispatcher`], as long as it exists. Once the last one is dropped the dispatcher receives by itself.
#[derive(Debug)]
pub struct Pump {
    shared: Arc<Shared>,
}

impl Drop for Pump {
    fn drop(&mut self) {
        if self.shared.stopped.end.born.is_elsewhere() {
            return;
        }
        // What it was to try again others do.
        self.shared.retry(Instant::now());
        let mut state = unpoisoned(&self.shared.state);
        state.pumps -= 1;
        let wake = state.pumps == 0 && std::mem::take(&mut state.asleep);
        drop(state);
        if wake {
            self.shared.news.notify_one();
        }
    }
}

impl Pump {
    /// Receives until the dispatcher is dropped. Sleeps while there is nothing.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn run(&self) -> Result<(), Error> {
        while self.run_once(Deadline::NEVER)? {}
        Ok(())
    }

    /// Waits until a channel has something, or the deadline has passed, and receives it. False if the dispatcher is gone.
    ///
    /// What cannot be received for want of a descriptor or of memory, or since it would be over a limit, stays in its channel. A
    /// pump says nothing of it, and tries again after 10 ms, if it runs then.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn run_once(&self, deadline: impl Into<Deadline>) -> Result<bool, Error> {
        let deadline = deadline.into();
        let mut events = Vec::new();
        loop {
            if let Some(since) = Instant::now().checked_sub(RETRY) {
                self.shared.retry(since);
            }
            let failed = !unpoisoned(&self.shared.state).failed.is_empty();
            let until = if failed { Deadline::after(deadline.within(RETRY)) } else { deadline };
            self.shared.set.wait(&mut events, until)?;
            if !events.is_empty() || !failed || deadline.has_passed() {
                break;
            }
        }
        for key in events.iter().map(Event::key).filter(|key| *key != STOPPED) {
            self.shared.receive(key);
        }
        Ok(!self.shared.stopped.is_peer_closed())
    }
}
