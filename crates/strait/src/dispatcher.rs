//! Serving channels from one thread, for handlers that are bound to that thread.
//!
//! A server does not need this module: any thread may receive from any end, so a handler can run in the thread that
//! receives its message. A dispatcher is for handlers that must run in one thread (a user interface, a script engine),
//! with priorities between channels. The handlers' thread can also receive, so that no message changes threads:
//!
//! ```text
//! dispatcher (one):    wait ─▶ receive ─▶ the most urgent channel's next message ─▶ handler
//! ```
//!
//! Or another thread, the pump, receives, so that senders go on while a handler runs. A pump costs a hop: a lock, a
//! queue and a wake-up for each message.
//!
//! ```text
//! pump (any thread):   wait set ─▶ receive ─▶ queue of the channel ─▶ wake
//! dispatcher (one):                           the most urgent channel's next message ─▶ handler
//! ```
//!
//! Either the pumps receive or the dispatcher's thread does: as long as there is a pump, the pumps receive. Only the
//! dispatcher's thread makes pumps and serves channels. So while the dispatcher's thread sleeps, only one change is
//! possible: the last pump may be dropped.
//!
//! A dispatcher that receives from one channel alone waits on that channel, as a plain receive does. Meanwhile the
//! channel is disarmed in the wait set. While the waits on the channel are interrupted, the dispatcher waits in the
//! wait set instead.
//!
//! A pump stops receiving from a channel whose queue is full until the dispatcher has taken half of the queue. Then
//! messages fill the ring and the sender waits, as without the hop.
//!
//! A message that cannot be received now, for lack of a descriptor or because of a limit, stays the next message of its
//! channel. If the channel stayed armed, the wait set would report it again and again. So a dispatcher without a pump
//! leaves the channel alone until its next call, which returns the error if nothing else is there. A pump leaves the
//! channel alone for [`RETRY`].

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::channel::Channel;
use crate::channel::message::Message;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::signals;
use crate::sync::unpoisoned;
use crate::wait_set::{Event, Interest, Mode, WaitSet};
use crate::wake::condvar::Condvar;
use crate::wake::strict;

/// The most messages of one channel in the channel's queue: received, and not passed to the handler yet.
const MOST_QUEUED: usize = 64;

/// The most messages that a dispatcher or a pump (a receiving thread of a dispatcher) receives from one channel in a
/// row, before it turns to other channels.
const MAX_CONSECUTIVE: usize = 32;

/// How long a pump waits before it tries again to receive a message, after a lack of descriptors or memory or a limit
/// has stopped the first attempt.
const RETRY: Duration = Duration::from_millis(10);

/// The wait-set key of the dispatcher's internal channel, which becomes readable when the dispatcher is dropped.
const STOPPED: u64 = u64::MAX;

/// The argument with which a dispatcher calls the handler of a channel: the next message, or the reason why there will
/// be no more messages.
///
/// Example: [a dispatcher](crate::wait::Dispatcher).
#[derive(Debug)]
pub enum Dispatched {
    /// The handler gets the next message of its channel.
    Message(Message),
    /// The handler's channel will bring no more messages, for the given reason: usually [`Error::PeerClosed`]. The
    /// handler is not called again.
    Ended(Error),
}

/// The next call of a handler. The fields are the key of the channel, the channel, the argument of the handler, and
/// whether the caller must arm the channel again in the wait set. The last field is `true` if the channel's queue was
/// full and has room now.
type Next = (u64, Arc<Channel>, Dispatched, bool);

type Handler = Rc<RefCell<dyn FnMut(&Channel, Dispatched)>>;

/// The state of one channel that a dispatcher serves.
#[derive(Debug)]
struct Served {
    channel: Arc<Channel>,
    priority: u8,
    queue: VecDeque<Message>,
    /// The reason why the channel will bring no more messages; `None` while it may. The handler gets the reason after
    /// all queued messages.
    ended: Option<Error>,
    /// Whether the channel's queue in the dispatcher is full. If so, the dispatcher and its pumps receive no more
    /// messages from the channel for now.
    full: bool,
    /// Whether the channel's key is in [`State::ready`], the queues of channels whose handlers are to be called.
    ready: bool,
    /// Whether the handler of the channel runs now. If so, the handler must not be called again.
    busy: bool,
}

#[derive(Debug, Default)]
struct State {
    served: BTreeMap<u64, Served>,
    /// The keys of the channels with a handler to be called, in one queue for each priority. Each key is in the queues
    /// at most once.
    ready: BTreeMap<u8, VecDeque<u64>>,
    /// Whether the dispatcher's thread sleeps on [`DispatcherShared::news`]. If so, a pump that has received messages
    /// must wake the thread.
    asleep: bool,
    /// The number of pumps of the dispatcher.
    pumps: usize,
    /// The key of the dispatcher's only channel, if the dispatcher receives directly from this channel. The channel is
    /// then disarmed in the wait set. `None` if the dispatcher uses the wait set or pumps.
    direct: Option<u64>,
    /// The channels from which the last attempt to receive failed for lack of a resource. Such channels are disarmed in
    /// the wait set until they are tried again.
    failed: Vec<Failed>,
}

/// A channel from which an attempt to receive failed for lack of a resource: its key, the error, and the time of the
/// attempt.
#[derive(Debug)]
struct Failed {
    key: u64,
    error: Error,
    at: Instant,
}

/// The way in which a dispatcher gets its next messages now: from its pumps, from one channel, or from its wait set.
enum Source {
    /// `Pumps`: the pumps, in other threads, receive into queues, and the dispatcher takes messages from the queues.
    Pumps,
    /// `Channel`: the dispatcher receives directly from its only channel. The fields are the key and the channel.
    Channel(u64, Arc<Channel>),
    /// `Set`: the dispatcher receives from the channels for which its wait set reports an event.
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

    /// Returns the next handler call, and records that the handler runs. The call is for the channel of the highest
    /// priority among those with a queued message, or with an end that the handler does not know yet. `None` if no
    /// handler is to be called.
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

    /// Returns whether the thread of the dispatcher has something to do. For the [check for lost
    /// wake-ups](crate::wake::strict).
    fn is_due(&self) -> bool {
        let is_due =
            |key| self.served.get(key).is_some_and(|served| !served.queue.is_empty() || served.ended.is_some());
        self.pumps == 0 || self.ready.values().flatten().any(is_due)
    }

    /// Decides from which source the dispatcher gets messages now, and returns the source. Also returns a channel, if
    /// the caller must change its state in the wait set: with [`Source::Channel`] the caller must disarm the channel,
    /// otherwise arm it.
    fn source(&mut self) -> (Source, Option<Arc<Channel>>) {
        let only = match self.served.iter().next() {
            // While the handler of the only channel runs, further messages of the channel have to wait.
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

    /// Returns the error of a served channel from which the last attempt to receive failed for lack of a resource;
    /// `None` if there is no such channel.
    fn failed(&self) -> Option<Error> {
        self.failed.iter().find(|failed| self.served.contains_key(&failed.key)).map(|failed| failed.error)
    }

    /// Removes from the list of failed attempts to receive the attempts made at the time `until` or earlier. Returns
    /// their channels that are still served, for the caller to try again.
    fn take_failed(&mut self, until: Instant) -> Vec<Arc<Channel>> {
        let due = self.failed.extract_if(.., |failed| failed.at <= until);
        due.filter_map(|failed| self.served.get(&failed.key)).map(|served| served.channel.clone()).collect()
    }

    /// Records that the handler of the channel `key` has returned. If the channel has queued messages or has ended,
    /// puts its key back into the queues of channels whose handlers are to be called.
    fn done(&mut self, key: u64) {
        let Some(served) = self.served.get_mut(&key) else { return };
        served.busy = false;
        if !served.queue.is_empty() || served.ended.is_some() {
            self.make_ready(key);
        }
    }
}

struct DispatcherShared {
    set: WaitSet,
    /// One end of a channel whose two ends the dispatcher holds; this end is in the wait set. When the dispatcher is
    /// dropped, the end becomes readable, and the pumps stop waiting and return.
    stopped: Channel,
    state: Mutex<State>,
    news: Condvar,
}

impl fmt::Debug for DispatcherShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DispatcherShared").field("set", &self.set).finish_non_exhaustive()
    }
}

impl DispatcherShared {
    /// Stops serving the channel of the key `key`, and drops its queued messages. Returns whether the channel was
    /// served.
    fn forget(&self, key: u64) -> bool {
        let served = unpoisoned(&self.state).served.remove(&key);
        if let Some(served) = &served {
            let _ = self.set.remove(&served.channel);
        }
        served.is_some()
    }

    /// Receives messages from the channel of the key `key` into the channel's queue, until the channel is empty, the
    /// queue is full, or [`MAX_CONSECUTIVE`] messages were received. Wakes the dispatcher's thread if it sleeps. Does
    /// not block.
    fn receive(&self, key: u64) {
        let place = |served: &Served| (served.channel.clone(), MOST_QUEUED.saturating_sub(served.queue.len()));
        let Some((channel, room)) = unpoisoned(&self.state).served.get(&key).map(place) else { return };
        let (mut ended, mut failed) = (None, None);
        let mut received = Vec::new();
        while received.len() < room.min(MAX_CONSECUTIVE) {
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
        // If the channel has more messages, the wait set reports it again, after other channels.
        if rearm {
            self.set.rearm_later(&channel);
        }
    }

    /// Arms again, in the wait set, the channels from which an attempt to receive failed at the time `until` or before.
    fn retry(&self, until: Instant) {
        let channels = unpoisoned(&self.state).take_failed(until);
        channels.iter().for_each(|channel| self.set.rearm_later(channel));
    }
}

/// Calls handlers in one thread with the messages of any number of channels.
///
/// Use a dispatcher only if handlers need one thread or priorities between channels. Otherwise receive from each
/// channel in any thread, pool or executor. Any thread may send; messages are not queued to another thread.
///
/// A dispatcher and its handlers stay in the thread that made the dispatcher, so handlers need not be `Send`. When this
/// thread [dispatches](Self::dispatch), it receives the messages itself, and sleeps on the channels if no message is
/// there: no message changes threads. The dispatcher queues received messages until their handlers run, at most 64 of
/// each channel. If a queue is full, the dispatcher receives no more from its channel, and the sender waits.
///
/// # With a hop
/// A [`Pump`] in another thread receives while a handler runs: senders need not wait for the handler until 64 messages
/// of a channel are queued. Each message then wakes two threads. As long as there is a pump, only pumps receive.
///
/// # No descriptor
/// A dispatcher has no descriptor for an event loop: with one channel it waits on that channel, and with pumps on the
/// pumps. An event loop polls a [`WaitSet`], and calls the handlers itself.
///
/// # Order
/// The messages of one channel are handled in the order in which they were sent, one at a time. Of the channels with a
/// message, the channel of the highest priority goes first; channels of one priority take turns, a message each. There
/// is no ageing: as long as a channel of higher priority always has a message, channels of lower priority wait.
///
/// ```
/// use std::cell::Cell;
/// use std::rc::Rc;
/// use strait::{Channel, Deadline};
/// use strait::wait::{Dispatched, Dispatcher};
/// let dispatcher = Dispatcher::new()?;
/// let (theirs, ours) = Channel::pair()?;
/// // The handler is not `Send`: it is called in this thread.
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
    shared: Arc<DispatcherShared>,
    handlers: RefCell<BTreeMap<u64, Handler>>,
    next: Cell<u64>,
    /// A buffer for the events that the wait set reports, kept between calls to reuse its memory.
    events: RefCell<Vec<Event>>,
    /// The other end of [`DispatcherShared::stopped`]. Dropping the field makes the pumps return.
    _stop: Channel,
    /// An empty field that makes the type not `Send`: the dispatcher stays in its thread, even if all handlers are
    /// `Send`.
    here: PhantomData<Rc<()>>,
}

impl fmt::Debug for Dispatcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Dispatcher").field("channels", &self.handlers.borrow().len()).finish_non_exhaustive()
    }
}

impl Dispatcher {
    /// Makes a dispatcher that serves no channel yet.
    ///
    /// # Errors
    /// As [`WaitSet::new`].
    pub fn new() -> Result<Self, Error> {
        let (stop, stopped) = Channel::pair()?;
        let set = WaitSet::new()?;
        set.add(&stopped, STOPPED, Interest::Readable, Mode::Level)?;
        let shared = Arc::new(DispatcherShared { set, stopped, state: Mutex::default(), news: Condvar::default() });
        let (handlers, next, events) = Default::default();
        Ok(Self { shared, _stop: stop, handlers, next, events, here: PhantomData })
    }

    /// Serves `channel`: from now on [`dispatch`](Self::dispatch) calls `handler` in the dispatcher's thread with each
    /// message of the channel. Channels of higher priority go first. Returns a key for [`stop`](Self::stop).
    ///
    /// The handler gets the channel, to answer on it. The handler may call anything, also `serve`, `stop` and
    /// `dispatch` of the same dispatcher. A `dispatch` within a handler never calls the same handler again: further
    /// messages of its channel wait until the handler returns.
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

    /// Stops serving the channel of the key `key`, and closes the channel. Messages that were received and not handled
    /// are dropped. Returns `false` if the channel was not served any more.
    pub fn stop(&self, key: u64) -> bool {
        let handler = self.handlers.borrow_mut().remove(&key);
        drop(handler);
        self.shared.forget(key)
    }

    /// Makes a pump, which receives messages for the dispatcher in another thread. While at least one pump exists, the
    /// dispatcher receives nothing itself. Any number of pumps may run, each in its own thread. A pump receives only
    /// while one of its methods runs.
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

    /// Waits until a channel has a message or has ended, or the deadline has passed; then calls the handlers, highest
    /// priority first. Returns the number of handler calls; 0 if the deadline has passed.
    ///
    /// Messages that arrive while handlers run are handled too, up to 64 in one call of `dispatch`.
    ///
    /// Only if no handler was called: [`Error::Forked`]; without a pump also the errors of [`WaitSet::wait`], and the
    /// errors of [`Channel::recv_message`] after which nothing is lost and the call can be repeated. A channel from
    /// which nothing can be received for now does not delay the other channels; each call of `dispatch` tries such a
    /// channel again.
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
            // Dropping `_busy` ends the busy state of the channel, also if the handler panics.
            let _busy = Busy { state: &self.shared.state, key };
            if let Some(handler) = handler {
                (*handler.borrow_mut())(&channel, next);
            }
        }
        Ok(called)
    }

    /// Returns the next handler call; waits for a call until the deadline, and returns `None` if the deadline has
    /// passed. If `thoroughly` is true and there are no pumps, also tries again the channels from which an attempt to
    /// receive failed, and asks the kernel for events at least once before giving up.
    fn take(&self, deadline: Deadline, thoroughly: bool) -> Result<Option<Next>, Error> {
        let mut state = unpoisoned(&self.shared.state);
        let (mut looked, mut thoroughly) = (false, thoroughly);
        if thoroughly && state.pumps == 0 && !state.failed.is_empty() {
            // The channels from which the last call could not receive are tried again.
            drop(state);
            self.shared.retry(Instant::now());
            state = unpoisoned(&self.shared.state);
        }
        loop {
            let (source, changed) = state.source();
            match &source {
                // All messages that have arrived must be in the queues before the highest priority is chosen.
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
                    match self.receive_from(key, channel.clone(), deadline) {
                        // The waits of a wait set are not interrupted, so the dispatcher waits in its set.
                        Err(Error::Interrupted) if !deadline.has_passed() => {
                            unpoisoned(&self.shared.state).direct = None;
                            self.arm(Some(channel));
                            self.wait(deadline)?;
                            state = unpoisoned(&self.shared.state);
                        }
                        Err(Error::Interrupted) => return Ok(None),
                        received => return received,
                    }
                }
                Source::Set if thoroughly || !deadline.has_passed() || state.failed().is_some() => {
                    let until = match state.failed() {
                        // Receiving from a channel failed, so the call must not sleep; but the kernel may have events
                        // of other channels.
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
                    signals::check()?;
                    state.asleep = true;
                    state = self.shared.news.wait(&self.shared.state, state, deadline.remaining(Instant::now()));
                    strict::expect_wake("in a dispatcher", || state.asleep && state.is_due());
                    state.asleep = false;
                }
            }
        }
    }

    /// Waits for the next message of `channel`, the dispatcher's only channel, which has the key `key` and an empty
    /// queue. Returns the handler call for the message or for the end of the channel; `None` if the deadline has
    /// passed. Fails with a temporary error if the message cannot be received now; the message then stays in the
    /// channel. Fails with [`Error::Interrupted`] while another thread interrupts the waits on the channel.
    fn receive_from(&self, key: u64, channel: Arc<Channel>, deadline: Deadline) -> Result<Option<Next>, Error> {
        let next = match channel.recv_by(deadline) {
            Ok(message) => Dispatched::Message(message),
            Err(Error::WouldBlock | Error::TimedOut) => return Ok(None),
            Err(error) if error.passes() || [Error::Signalled, Error::Interrupted].contains(&error) => {
                return Err(error);
            }
            Err(error) => Dispatched::Ended(error),
        };
        let mut state = unpoisoned(&self.shared.state);
        match &next {
            Dispatched::Message(_) => state.served.get_mut(&key).into_iter().for_each(|served| served.busy = true),
            Dispatched::Ended(_) => drop(state.served.remove(&key)),
        }
        Ok(Some((key, channel, next, false)))
    }

    /// Receives messages from the channels for which the wait set reports an event now, into the queues of the
    /// channels. Does not block. Fails as [`WaitSet::wait`] does.
    fn look(&self) -> Result<(), Error> {
        let mut events = self.events.take();
        let looked = self.shared.set.look(&mut events);
        self.receive(&events);
        self.events.replace(events);
        looked
    }

    /// Blocks until the wait set reports an event of a channel or the deadline has passed. Then receives messages from
    /// the reported channels into their queues. Fails as [`WaitSet::wait`] does.
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

/// A guard that exists while the handler of one channel runs: the handler is not called again meanwhile. Dropping the
/// guard records that the handler has returned, also if the handler panics.
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
    /// Closes the channels that the dispatcher serves, and makes its pumps return.
    fn drop(&mut self) {
        if self.shared.stopped.end.born.is_elsewhere() {
            // In a child of `fork`, the parent's objects are left alone, as when a channel is dropped there.
            return std::mem::forget(self.shared.clone());
        }
        let served = std::mem::take(&mut unpoisoned(&self.shared.state).served);
        drop(served);
    }
}

/// Receives messages for a [`Dispatcher`] in a thread other than the dispatcher's own. After the last pump of a
/// dispatcher was dropped, the dispatcher receives messages itself again.
///
/// Example: [a dispatcher](crate::wait::Dispatcher).
#[derive(Debug)]
pub struct Pump {
    shared: Arc<DispatcherShared>,
}

impl Drop for Pump {
    fn drop(&mut self) {
        if self.shared.stopped.end.born.is_elsewhere() {
            return;
        }
        // The channels that the dropped pump was to try again go to the other pumps or to the dispatcher.
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
    /// Receives messages for the dispatcher until the dispatcher is dropped. Sleeps while there is nothing to receive.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn run(&self) -> Result<(), Error> {
        while self.run_once(Deadline::NEVER)? {}
        Ok(())
    }

    /// Waits until a channel of the dispatcher has something to receive or the deadline has passed, then receives.
    /// Returns `false` if the dispatcher was dropped.
    ///
    /// If a descriptor or memory is lacking for a message, or a limit is reached, the message stays in its channel. The
    /// pump reports no error, and tries again after 10 ms, if one of its methods runs then.
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
