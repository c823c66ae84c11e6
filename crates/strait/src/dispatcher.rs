//! Serving channels from one thread, for handlers that are bound to it.
//!
//! Nothing here is needed to serve a channel: any thread may receive from any end, so a handler can run where its message is
//! received, and then there is no hop. A hop is for what must run in one thread (a user interface, a script engine): somebody
//! receives, and hands the message to that thread. That costs a lock, a queue and a wake-up for each message.
//!
//! ```text
//! pump (any thread):   wait set ─▶ receive ─▶ queue of the channel ─▶ wake
//! dispatcher (one):                           the most urgent channel's next message ─▶ handler
//! ```
//!
//! A channel whose queue is full is left alone by the pump until the dispatcher has taken half of it: what is not received
//! fills the ring, and the sender waits, as it would without the hop.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use crate::channel::Channel;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::unpoisoned;
use crate::message::Message;
use crate::wait_set::{Event, Interest, Mode, WaitSet};

/// Messages of one channel that may wait for the dispatcher.
const MOST_QUEUED: usize = 64;

/// Messages received from a channel in a row, before others have their turn.
const IN_A_ROW: usize = 32;

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
    /// Whether the dispatcher is asleep.
    asleep: bool,
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
    fn next(&mut self) -> Option<(u64, Arc<Channel>, Dispatched, bool)> {
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
        let mut ended = None;
        let mut received = Vec::new();
        while received.len() < room.min(IN_A_ROW) {
            match channel.try_recv() {
                Ok(message) => received.push(message),
                Err(Error::WouldBlock) => break,
                Err(error) if error.passes() => break,
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
        let rearm = !served.full && served.ended.is_none();
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
}

/// Calls handlers in one thread with the messages of any number of channels: the hop, for those who want it.
///
/// **Who does not need it should not use it.** A channel can be received from in any thread, pool or executor, and sending
/// never hops; a thread that [waits for a set](WaitSet) and handles what it receives there has no hop at all, and answers the
/// sooner by what one costs (a lock, a queue, and a wake-up of another thread: `strait-bench` measures both).
///
/// A dispatcher stays in the thread that made it, and so may its handlers, which need not be `Send`. Messages are received by
/// whoever runs its [`Pump`], in one other thread or several. In between they are queued, 64 of each channel at most; then the
/// pump leaves that channel alone, and its sender waits as ever.
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
/// let pump = dispatcher.pump();
/// std::thread::spawn(move || pump.run());
/// theirs.send(b"hello")?;
/// dispatcher.dispatch(Deadline::NEVER)?;
/// assert_eq!((handled.get(), theirs.recv()?.bytes()), (1, &b"hello"[..]));
/// # Ok::<(), strait::Error>(())
/// ```
pub struct Dispatcher {
    shared: Arc<Shared>,
    handlers: RefCell<BTreeMap<u64, Handler>>,
    next: Cell<u64>,
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
        Ok(Self { shared, _stop: stop, handlers: RefCell::default(), next: Cell::new(0), here: PhantomData })
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

    /// What receives for this dispatcher. Any number of them may run, each in a thread of its own.
    pub fn pump(&self) -> Pump {
        Pump { shared: self.shared.clone() }
    }

    /// Waits until a channel has something, or the deadline has passed, and calls the handlers of what is there, the most urgent
    /// first. Returns how many were called, at least one; 0 if the time is up.
    ///
    /// What comes while handlers are called is handled as well, up to 64 in a call.
    ///
    /// # Errors
    /// [`Error::Forked`].
    pub fn dispatch(&self, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        crate::fork::check()?;
        let deadline = deadline.into();
        let mut called = 0;
        while called < MOST_QUEUED {
            let Some((key, channel, next, resumes)) = self.take(if called == 0 { deadline } else { Deadline::NOW })
            else {
                break;
            };
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

    fn take(&self, deadline: Deadline) -> Option<(u64, Arc<Channel>, Dispatched, bool)> {
        let mut state = unpoisoned(&self.shared.state);
        loop {
            if let Some(next) = state.next() {
                return Some(next);
            }
            if deadline.has_passed() {
                return None;
            }
            state.asleep = true;
            state = match deadline.remaining(Instant::now()) {
                None => self.shared.news.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => self.shared.news.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0,
            };
            state.asleep = false;
        }
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
        let served = std::mem::take(&mut unpoisoned(&self.shared.state).served);
        drop(served);
    }
}

/// Receives for a [`Dispatcher`].
#[derive(Debug)]
pub struct Pump {
    shared: Arc<Shared>,
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
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn run_once(&self, deadline: impl Into<Deadline>) -> Result<bool, Error> {
        let mut events = Vec::new();
        self.shared.set.wait(&mut events, deadline)?;
        for key in events.iter().map(Event::key).filter(|key| *key != STOPPED) {
            self.shared.receive(key);
        }
        Ok(!self.shared.stopped.is_peer_closed())
    }
}
