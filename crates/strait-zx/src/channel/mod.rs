//! Channels: an end of a Strait channel, and everything that Zircon adds.
//!
//! A message without handles is a Strait message with equal bytes. Each handle adds a record behind the bytes
//! ([`wire`]). While no thread or port waits for an end, its messages stay in Strait's ring until they are [read],
//! and writing and reading cost little more than in Strait. A thread that waits for signals or for the answer of a
//! [call] looks at the ring under the reading lock, and moves messages from the ring into the end's own queue. So a
//! wait sees messages behind unread messages, and answers reach their callers. An end puts its queue back before it
//! is sent away.

pub(crate) mod call;
pub(crate) mod read;
pub(crate) mod wire;
pub(crate) mod write;

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use strait::bindings::PerProcess;
use strait::wait::Interest;
use strait::{Channel, Deadline as StraitDeadline, Message, Options, Outgoing};

use crate::abi::*;
use crate::hub::{self, Registration, Wanted};
use crate::koid;
use crate::object::Object;
use crate::observer::{Observer, Observers};
use crate::status::{Result, Status};
use crate::table::{Entry, table};
use crate::unpoisoned;
use call::Calls;

/// Maximum size of a ring in bytes. A ring of this size has room for 3,500 messages of 64 KiB: on Zircon a writer
/// with more unread messages is killed.
const RING_MAX: usize = 256 << 20;

/// Maximum number of messages that are moved out of the ring for waits; more stay in the ring.
const QUEUE_MESSAGES: usize = 8192;
/// Maximum number of bytes in messages that are moved out of the ring for waits.
const QUEUE_BYTES: usize = 64 << 20;

/// Maximum number of changes of signals that one use of an end takes out of the ring. A peer may send such messages,
/// which fill no queue, without end. If more are in the ring, the hub reports the end again.
const CHANGES: usize = 256;

/// Returns the options of all channels.
pub(crate) fn options() -> &'static Options {
    static OPTIONS: PerProcess<OnceLock<Options>> = PerProcess::new(OnceLock::new);
    OPTIONS.get().get_or_init(|| {
        let longest = ZX_CHANNEL_MAX_MSG_BYTES as usize + wire::RECORD * ZX_CHANNEL_MAX_MSG_HANDLES as usize;
        Options::new().ring_max(RING_MAX).inline_max(longest).max_message(longest)
    })
}

/// An end of a channel, with cache lines of its own, like the end's slot.
#[repr(align(64))]
pub(crate) struct Chan {
    /// The end of the Strait channel; `None` once it was sent away.
    strait: Option<Channel>,
    /// The koid of the end.
    koid: zx_koid_t,
    /// The koid of the other end; 0 if it is not known.
    related: zx_koid_t,
    /// Whether the end was made in this process together with its other end, and has had a handle ever since. A peer
    /// chooses the koids of any other end.
    is_native: bool,
    /// The signals set by programs.
    user: AtomicU32,
    /// Whether reading has to look at `inner` too, and not only at the ring.
    slow: AtomicBool,
    /// The state under the reading lock.
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is accessed only under the reading lock of the entry of this end, or by the owner of that entry.
unsafe impl Sync for Chan {}

/// The state of an end under its reading lock.
#[derive(Default)]
struct Inner {
    /// Messages moved out of the ring, older than the messages in the ring.
    queue: VecDeque<Message>,
    /// Number of bytes in the messages of `queue`.
    queued_bytes: usize,
    /// The calls in flight on the end.
    calls: Calls,
    /// The waits for signals of the end.
    observers: Observers,
    /// The end's registration with the hub.
    registration: Registration,
    /// Whether the end is counted in [`PORTED`], the number of ends for which a port waits.
    ported: bool,
    /// The signals last reported to observers.
    last: zx_signals_t,
    /// Whether a message has left the ring, or the end has ended, since observers were last informed. The hub does not
    /// report such a message any more.
    has_news: bool,
    /// Whether the other end has ever sent a change of signals. Then more changes may be behind messages.
    signalled: bool,
    /// Number of changes of signals that the current use of the state has taken out of the ring.
    changes: usize,
    /// Whether the other end was found to be closed although messages were still in the ring.
    is_peer_gone: bool,
    /// The status of an end to which no message will come any more.
    ended: Option<Status>,
}

impl Inner {
    /// Appends a message to the queue.
    fn push(&mut self, message: Message) {
        self.has_news = true;
        self.queued_bytes += message.bytes().len();
        self.queue.push_back(message);
    }

    /// Removes the first message of the queue.
    fn pop(&mut self) -> Option<Message> {
        let message = self.queue.pop_front()?;
        self.queued_bytes -= message.bytes().len();
        Some(message)
    }

    /// Notes that no message will come any more, and ends all calls with the given status.
    fn end(&mut self, status: Status) {
        self.has_news = true;
        self.ended = Some(status);
        self.calls.end(status);
    }

    /// Reports the signals of the end to the observers.
    fn report(&mut self, now: zx_signals_t) {
        self.has_news = false;
        let before = std::mem::replace(&mut self.last, now);
        self.observers.tell(before, now);
    }

    /// Returns whether the queue has reached a limit.
    fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MESSAGES || self.queued_bytes >= QUEUE_BYTES
    }

    /// Returns whether an observer or a call waits for an event that a message in the ring, or the end of the ring, may
    /// be.
    fn awaits_messages(&self) -> bool {
        let by_messages = ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED | ZX_USER_SIGNAL_ALL;
        self.observers.wanted() & by_messages != 0 || !self.calls.is_empty()
    }

    /// Returns whether reading has to look at this state, and not only at the ring.
    fn is_slow(&self) -> bool {
        !self.queue.is_empty() || !self.calls.is_empty() || !self.observers.is_empty() || self.ended.is_some()
    }
}

/// Number of ends for which a port waits. A thread that writes to such an end in its own process queues the packet at
/// once, so that packets come in the order of the events.
static PORTED: AtomicUsize = AtomicUsize::new(0);

/// The handles of the native ends in this process, by koid.
static HERE: PerProcess<Mutex<Option<HashMap<zx_koid_t, zx_handle_t>>>> = PerProcess::new(Mutex::default);

/// Returns the handle of the native end with the given koid, if the end is in this process.
fn find_here(koid: zx_koid_t) -> Option<zx_handle_t> {
    unpoisoned(HERE.get()).as_ref()?.get(&koid).copied()
}

/// Makes a channel with both ends in this process.
pub(crate) fn create() -> Result<(zx_handle_t, zx_handle_t)> {
    let (a, b) = options().pair()?;
    let (koid_a, koid_b) = (koid::next(), koid::next());
    let native = |strait, koid, related| {
        let mut chan = Chan::new(strait, koid, related, 0);
        chan.is_native = true;
        chan
    };
    let first = adopt(native(a, koid_a, koid_b), ZX_DEFAULT_CHANNEL_RIGHTS)?;
    match adopt(native(b, koid_b, koid_a), ZX_DEFAULT_CHANNEL_RIGHTS) {
        Ok(second) => Ok((first, second)),
        Err(error) => {
            let _ = crate::object::close_handle(first);
            Err(error)
        }
    }
}

/// Makes a handle for an end.
pub(crate) fn adopt(chan: Chan, rights: zx_rights_t) -> Result<zx_handle_t> {
    add(Entry { rights, object: Object::Channel(Box::new(chan)) })
}

/// Adds an entry, which may be that of an end, to the handle table.
pub(crate) fn add(entry: Entry) -> Result<zx_handle_t> {
    let native = match &entry.object {
        Object::Channel(chan) if chan.is_native => Some(chan.koid),
        _ => None,
    };
    let handle = table().add(entry)?;
    if let Some(koid) = native {
        unpoisoned(HERE.get()).get_or_insert_default().insert(koid, handle);
    }
    Ok(handle)
}

/// Looks at an end whose signals may have changed, and informs the end's observers.
pub(crate) fn look_at(handle: zx_handle_t) {
    if let Ok(entry) = table().get_reading(handle)
        && let Object::Channel(chan) = &entry.object
    {
        chan.look(handle);
    }
}

/// Looks at an end with a full queue, whose other end may be closed behind the unread messages. Does nothing if the
/// handle does not name the end with this koid any more.
pub(crate) fn look_behind_messages(handle: zx_handle_t, koid: zx_koid_t, is_peer_gone: bool) {
    if let Ok(entry) = table().get_reading(handle)
        && let Object::Channel(chan) = &entry.object
        && chan.koid == koid
    {
        chan.inner().is_peer_gone |= is_peer_gone;
        chan.look(handle);
    }
}

/// Looks at the native end with this koid after an operation on the other end, if the end is in this process. Costs one
/// load while no port waits for any end.
#[inline]
pub(crate) fn tell_peer(koid: zx_koid_t) {
    if PORTED.load(Ordering::Relaxed) > 0 {
        tell_peer_here(koid);
    }
}

#[cold]
fn tell_peer_here(koid: zx_koid_t) {
    if let Some(handle) = find_here(koid) {
        look_at(handle);
    }
}

impl Chan {
    /// Makes an end of a Strait channel that is not native, with the signals `user` set.
    pub(crate) fn new(strait: Channel, koid: zx_koid_t, related: zx_koid_t, user: zx_signals_t) -> Self {
        Self {
            strait: Some(strait),
            koid,
            related,
            is_native: false,
            user: AtomicU32::new(user),
            slow: AtomicBool::new(false),
            inner: UnsafeCell::default(),
        }
    }

    /// Returns the koids of this end and of the other end.
    pub(crate) fn koids(&self) -> (zx_koid_t, zx_koid_t) {
        (self.koid, self.related)
    }

    /// Returns the end of the Strait channel, which is there as long as the end has a handle.
    #[inline]
    fn strait(&self) -> &Channel {
        self.strait.as_ref().expect("an end with a handle was not sent away")
    }

    /// Begins a use of the state under the reading lock.
    ///
    /// The caller holds that lock or owns the entry, and uses only one reference to the state at a time.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    fn inner(&self) -> &mut Inner {
        // SAFETY: only one thread can hold the lock, and a function that has the reference calls no other function that
        // makes a reference.
        let inner = unsafe { &mut *self.inner.get() };
        inner.changes = 0;
        inner
    }

    /// Ends a use of `inner` that may have changed it. Informs observers of messages that have left the ring. Publishes
    /// what threads without the lock look at: `slow` and [`PORTED`]. Removes a trap for which nothing waits any more.
    #[inline]
    fn settle(&self, inner: &mut Inner) {
        if std::mem::take(&mut inner.has_news) && !inner.observers.is_empty() {
            self.inform(inner);
        }
        if inner.registration.has_trap() && !inner.awaits_messages() {
            hub::remove_trap(&mut inner.registration);
        }
        self.slow.store(inner.is_slow(), Ordering::Relaxed);
        let ported = inner.observers.have_ports();
        if ported != std::mem::replace(&mut inner.ported, ported) {
            if ported {
                PORTED.fetch_add(1, Ordering::Relaxed);
            } else {
                PORTED.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Moves the next message from the ring into the queue; an answer goes to its call.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if there is no message; the status of an ended channel; `NO_RESOURCES` and similar temporary
    /// errors.
    fn pull(&self, inner: &mut Inner) -> Result<()> {
        if let Some(ended) = inner.ended {
            return Err(ended);
        }
        let mut message = call::take_spare();
        match self.strait().recv_message(&mut message, StraitDeadline::NOW) {
            Ok(()) => {}
            Err(error) => {
                let status = Status::from(error);
                if status == Status::PEER_CLOSED || status == Status::BAD_STATE {
                    inner.end(status);
                }
                return Err(status);
            }
        }
        self.accept(inner, message)
    }

    /// Handles a message that was taken out of the ring: a change of signals, an answer, or a message for the queue. A
    /// message with lost handles counts as an answer or a message; the call or the read fails.
    ///
    /// # Errors
    /// `PEER_CLOSED` if the message is malformed; then the channel has ended.
    fn accept(&self, inner: &mut Inner, mut message: Message) -> Result<()> {
        if let Some((clear, set)) = wire::as_signals(&message) {
            inner.signalled = true;
            inner.changes += 1;
            inner.has_news = true;
            self.change_user(clear, set);
        } else if !wire::has_lost_handles(&mut message) && !wire::is_valid(&message) {
            inner.end(Status::PEER_CLOSED);
            return Err(Status::PEER_CLOSED);
        } else if let Some(message) = inner.calls.route(message) {
            inner.push(message);
        }
        Ok(())
    }

    /// Moves the messages from the ring into the queue, as far as there is room, and at most [`CHANGES`] changes of
    /// signals. Returns whether that has changed anything: whether there was a message, or the channel has ended.
    fn drain(&self, inner: &mut Inner) -> bool {
        let had_ended = inner.ended.is_some();
        let mut had_message = false;
        while inner.changes < CHANGES && !inner.is_full() && self.pull(inner).is_ok() {
            had_message = true;
        }
        had_message || inner.ended.is_some() != had_ended
    }

    /// Returns the signals of the end now, for a wait for the signals `mask`.
    fn signals(&self, inner: &mut Inner, mask: zx_signals_t) -> zx_signals_t {
        // The next message may be an answer, and changes of signals may be behind messages. An empty mask asks for all
        // signals.
        if !inner.calls.is_empty() || inner.signalled || mask == 0 || mask & ZX_USER_SIGNAL_ALL != 0 {
            self.drain(inner);
        }
        let is_readable = !inner.queue.is_empty() || self.has_message(inner);
        let mut signals = self.user.load(Ordering::Relaxed);
        if is_readable {
            signals |= ZX_CHANNEL_READABLE;
        }
        if inner.ended.is_some() || inner.is_peer_gone || self.strait().is_peer_closed() {
            signals |= ZX_CHANNEL_PEER_CLOSED;
        } else if self.strait().is_writable() {
            signals |= ZX_CHANNEL_WRITABLE;
        }
        signals
    }

    /// Returns whether there is a message for the reader, behind at most [`CHANGES`] changes of signals. A message with
    /// bytes stays in the ring.
    fn has_message(&self, inner: &mut Inner) -> bool {
        while inner.ended.is_none() {
            match self.strait().recv_into(&mut [], StraitDeadline::NOW) {
                Err(strait::Error::BufferTooSmall { needed: wire::SIGNALS }) if inner.changes == CHANGES => {
                    return false;
                }
                // A message of this length may be a change of signals, hidden from the reader.
                Err(strait::Error::BufferTooSmall { needed: wire::SIGNALS }) => match self.pull(inner) {
                    Ok(()) if inner.queue.is_empty() => {}
                    Ok(()) => return true,
                    Err(_) => return false,
                },
                Err(strait::Error::BufferTooSmall { .. }) => return true,
                Err(error) => {
                    let status = Status::from(error);
                    if status == Status::PEER_CLOSED {
                        inner.end(status);
                    }
                    return false;
                }
                Ok(received) => {
                    // A message of no bytes has no handles, since each would have a record.
                    if received.has_handles() {
                        inner.end(Status::PEER_CLOSED);
                        return false;
                    }
                    inner.push(Message::new());
                    return true;
                }
            }
        }
        false
    }

    /// Moves the messages of the ring into the queue. Returns whether the ring is empty now.
    fn is_drained(&self) -> bool {
        let inner = self.inner();
        self.drain(inner);
        self.settle(inner);
        !self.strait().is_readable()
    }

    /// Informs observers of changed signals, and watches for more changes as long as there are observers.
    fn look(&self, handle: zx_handle_t) {
        let inner = self.inner();
        self.tell(inner, handle);
        self.settle(inner);
    }

    /// Informs observers of changed signals, and registers with the hub for more changes.
    fn tell(&self, inner: &mut Inner, handle: zx_handle_t) {
        self.inform(inner);
        if inner.awaits_messages() && self.drain(inner) {
            // Registering with the hub shows only changes by messages that are still in the ring.
            self.inform(inner);
        }
        self.listen(inner, handle);
    }

    /// Informs observers of changed signals.
    fn inform(&self, inner: &mut Inner) {
        let now = self.signals(inner, inner.observers.wanted() | ZX_CHANNEL_READABLE);
        inner.report(now);
    }

    /// Registers the end with the hub, which watches for changes by other processes, for the events awaited by
    /// observers or calls. The caller has moved the messages of the ring into the queue, if messages are awaited. If
    /// some are left, the hub reports the end at once.
    fn listen(&self, inner: &mut Inner, handle: zx_handle_t) {
        let readable = inner.awaits_messages();
        let writable = inner.observers.wanted() & ZX_CHANNEL_WRITABLE != 0 && inner.last & ZX_CHANNEL_WRITABLE == 0;
        let is_full = readable && inner.is_full();
        if is_full && inner.last & ZX_CHANNEL_PEER_CLOSED != 0 {
            // Nothing comes any more, and the answers of the calls are not among the messages in the queue.
            inner.calls.end(Status::PEER_CLOSED);
            return;
        }
        if inner.ended.is_some() {
            return;
        }
        let wanted = match (readable, writable) {
            // Messages stay in the ring until a thread reads from the queue, and then looks at the ring again.
            (true, room) if is_full => Wanted::Close { room },
            (false, false) => return,
            (true, false) => Wanted::Events(Interest::Readable),
            (false, true) => Wanted::Events(Interest::Writable),
            (true, true) => Wanted::Events(Interest::Both),
        };
        let Inner { registration, .. } = inner;
        hub::listen(self.strait(), handle, self.koid, registration, wanted);
    }

    /// Returns the signals now, and reports them to the observers that are there. If there is an observer to add, and
    /// none of its signals is set, adds the observer.
    ///
    /// The caller has the reading lock.
    ///
    /// # Errors
    /// The errors of [`hub::prepare`]; the observer was not added.
    pub(crate) fn observe(
        &self,
        handle: zx_handle_t,
        mask: zx_signals_t,
        observer: Option<Observer>,
    ) -> Result<zx_signals_t> {
        let inner = self.inner();
        let now = self.signals(inner, mask);
        inner.report(now);
        if let Some(observer) = observer {
            let waits_for_edge = observer.waits_for_edge();
            if now & mask == 0 || waits_for_edge {
                if let Err(error) = hub::prepare() {
                    // No thread could notice an event.
                    self.settle(inner);
                    return Err(error);
                }
                inner.observers.add(observer);
                if inner.awaits_messages() {
                    self.drain(inner);
                }
                self.listen(inner, handle);
                // Registering with the hub also shows changes that came meanwhile.
                let then = self.signals(inner, mask);
                if then != now {
                    self.tell(inner, handle);
                }
            }
        }
        self.settle(inner);
        Ok(now)
    }

    /// Removes an observer. The caller has the reading lock.
    pub(crate) fn forget_observer(&self, id: u64) {
        let inner = self.inner();
        inner.observers.remove(id);
        self.settle(inner);
    }

    /// Changes the signals that programs may set. The caller has the reading lock.
    ///
    /// # Errors
    /// `INVALID_ARGS` for other signals.
    pub(crate) fn signal(&self, handle: zx_handle_t, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        if (clear | set) & !ZX_USER_SIGNAL_ALL != 0 {
            return Err(Status::INVALID_ARGS);
        }
        self.change_user(clear, set);
        self.look(handle);
        Ok(())
    }

    /// Clears and sets signals that programs may set, without informing observers. The caller has the reading lock.
    fn change_user(&self, clear: zx_signals_t, set: zx_signals_t) {
        let now = (self.user.load(Ordering::Relaxed) & !clear) | set;
        self.user.store(now, Ordering::Relaxed);
    }

    /// Changes the signals of the other end. If both ends are native, the change is immediate. Otherwise a message
    /// carries the change, in order with the other messages, and no reader sees that message.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if there is no room for the message, or if the destination of the message is not known yet;
    /// nothing has changed then. `PEER_CLOSED` if the other end is gone.
    pub(crate) fn signal_peer(&self, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        if (clear | set) & !ZX_USER_SIGNAL_ALL != 0 {
            return Err(Status::INVALID_ARGS);
        }
        if self.strait().is_peer_closed() {
            return Err(Status::PEER_CLOSED);
        }
        // A thread with the other end's reading lock does not wait for a use of this end's handle.
        if self.is_native
            && let Some(peer) = find_here(self.related)
            && let Ok(entry) = table().get_reading(peer)
            && let Object::Channel(chan) = &entry.object
            && chan.koids() == (self.related, self.koid)
            && chan.is_drained()
        {
            return chan.signal(peer, clear, set);
        }
        let bytes = wire::signals(clear, set);
        self.strait().try_send(Outgoing::new(&bytes).handle(wire::token()?)).map_err(|error| error.error)?;
        tell_peer(self.related);
        Ok(())
    }

    /// Ends all waits and calls by a handle that becomes invalid.
    pub(crate) fn leave(&mut self, handle: zx_handle_t) {
        if let Some(here) = unpoisoned(HERE.get()).as_mut()
            && here.get(&self.koid) == Some(&handle)
        {
            here.remove(&self.koid);
        }
        let inner = self.inner.get_mut();
        let last = inner.last;
        inner.observers.cancel(handle, last);
        inner.calls.abandon();
        if std::mem::take(&mut inner.ported) {
            PORTED.fetch_sub(1, Ordering::Relaxed);
        }
        hub::listen_no_more(self.strait.as_ref(), &mut inner.registration);
    }

    /// Takes the end of the Strait channel out, with the unread messages.
    ///
    /// # Errors
    /// The error of putting the queue back; then the end is as it was.
    pub(crate) fn detach(&mut self) -> Result<Channel> {
        let inner = self.inner.get_mut();
        let strait = self.strait.take().expect("an end with a handle was not sent away");
        if let Err(failed) = strait.put_back(std::mem::take(&mut inner.queue)) {
            inner.queue = failed.messages.into();
            self.strait = Some(strait);
            return Err(failed.error.into());
        }
        inner.queued_bytes = 0;
        Ok(strait)
    }

    /// Puts the end of the Strait channel back, after sending it has failed.
    pub(crate) fn attach(&mut self, strait: Channel) {
        self.strait = Some(strait);
        self.settle(self.inner());
    }

    /// Returns the signals set by programs.
    pub(crate) fn user_signals(&self) -> zx_signals_t {
        self.user.load(Ordering::Relaxed)
    }

    /// Closes the end, after the handle was taken away.
    pub(crate) fn close(&mut self, handle: zx_handle_t) {
        self.leave(handle);
        // The channel is closed before observers of the other end look at it.
        drop(self.strait.take());
    }
}

impl Drop for Chan {
    /// Unregisters the end from the hub, if that was not done yet.
    fn drop(&mut self) {
        hub::listen_no_more(self.strait.as_ref(), &mut self.inner.get_mut().registration);
    }
}
