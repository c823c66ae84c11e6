//! Channels: an end of one of Strait's, and what Zircon has beyond that.
//!
//! A message without handles is the bytes of one of Strait's messages; handles come with a record each behind the bytes
//! ([`wire`]). As long as nobody waits for an end, its messages stay in Strait's ring until they are [read], and writing and
//! reading cost little more than they do there. Who waits, for signals or for the answer of a [call], looks at the ring by
//! way of the reading lock, and takes messages out of it into the end's own queue: so a wait sees what comes behind unread
//! messages, and answers find those that wait for them. An end that is sent away puts its queue back first.

pub(crate) mod call;
pub(crate) mod read;
pub(crate) mod wire;
pub(crate) mod write;

use std::cell::UnsafeCell;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use strait::bindings::PerProcess;
use strait::{Channel, Deadline as StraitDeadline, Interest, Message, Options, Outgoing};

use crate::abi::*;
use crate::hub;
use crate::koid;
use crate::object::Object;
use crate::observer::{Observer, Observers};
use crate::status::{Result, Status};
use crate::table::table;
use crate::unpoisoned;
use call::Calls;

/// Bytes to which a ring grows: what no writer on Zircon could have under way without being killed for it, 3,500 messages
/// of 64 KiB, has room.
const RING_MAX: usize = 256 << 20;

/// Messages, and bytes in them, that are taken out of the ring for those who wait; more stay there.
const QUEUE_MESSAGES: usize = 8192;
const QUEUE_BYTES: usize = 64 << 20;

/// The options of all channels.
pub(crate) fn options() -> &'static Options {
    static OPTIONS: PerProcess<OnceLock<Options>> = PerProcess::new(OnceLock::new);
    OPTIONS.get().get_or_init(|| {
        let longest = ZX_CHANNEL_MAX_MSG_BYTES as usize + wire::RECORD * ZX_CHANNEL_MAX_MSG_HANDLES as usize;
        Options::new().ring_max(RING_MAX).inline_max(longest).max_message(longest)
    })
}

/// An end of a channel. In cache lines of its own, as its slot is.
#[repr(align(64))]
pub(crate) struct Chan {
    /// `None` once it was sent away.
    strait: Option<Channel>,
    koid: zx_koid_t,
    related: zx_koid_t,
    /// Signals that programs set.
    user: AtomicU32,
    /// Whether reading has to look at more than the ring.
    slow: AtomicBool,
    inner: UnsafeCell<Inner>,
}

// SAFETY: `inner` is reached by whoever has the reading lock of the entry that the end is in, or the entry itself.
unsafe impl Sync for Chan {}

/// What is under the reading lock.
#[derive(Default)]
struct Inner {
    /// Messages that were taken out of the ring. They come first.
    queue: VecDeque<Message>,
    queued_bytes: usize,
    calls: Calls,
    observers: Observers,
    /// How it is registered with the hub, if it is.
    listens: Option<Interest>,
    /// Whether it is one of [`PORTED`].
    ported: bool,
    /// The signals that observers were last told of.
    last: zx_signals_t,
    /// Whether the other end has sent a change of signals some time: then more may be behind messages.
    signalled: bool,
    /// Why nothing more will come.
    ended: Option<Status>,
}

impl Inner {
    fn push(&mut self, message: Message) {
        self.queued_bytes += message.bytes().len();
        self.queue.push_back(message);
    }

    fn pop(&mut self) -> Option<Message> {
        let message = self.queue.pop_front()?;
        self.queued_bytes -= message.bytes().len();
        Some(message)
    }

    fn is_full(&self) -> bool {
        self.queue.len() >= QUEUE_MESSAGES || self.queued_bytes >= QUEUE_BYTES
    }

    /// Whether reading has to look at this.
    fn is_slow(&self) -> bool {
        !self.queue.is_empty() || !self.calls.is_empty() || !self.observers.is_empty() || self.ended.is_some()
    }
}

/// Ends for which a port waits. Who writes to one in the same process has the packet queued at once, so that packets come in
/// the order of what they are about.
static PORTED: AtomicUsize = AtomicUsize::new(0);

/// The ends that are here, by number.
static HERE: PerProcess<Mutex<Option<HashMap<zx_koid_t, zx_handle_t>>>> = PerProcess::new(Mutex::default);

/// Notes by which handle an end is reached.
pub(crate) fn register(koid: zx_koid_t, handle: zx_handle_t) {
    unpoisoned(HERE.get()).get_or_insert_default().insert(koid, handle);
}

fn find_here(koid: zx_koid_t) -> Option<zx_handle_t> {
    unpoisoned(HERE.get()).as_ref()?.get(&koid).copied()
}

/// A channel with both ends here.
pub(crate) fn create() -> Result<(zx_handle_t, zx_handle_t)> {
    let (a, b) = Channel::pair_with(options())?;
    let (koid_a, koid_b) = (koid::next(), koid::next());
    let first = adopt(Chan::new(a, koid_a, koid_b, 0), ZX_DEFAULT_CHANNEL_RIGHTS)?;
    match adopt(Chan::new(b, koid_b, koid_a, 0), ZX_DEFAULT_CHANNEL_RIGHTS) {
        Ok(second) => Ok((first, second)),
        Err(error) => {
            let _ = crate::object::close_handle(first);
            Err(error)
        }
    }
}

/// Gives an end a handle.
pub(crate) fn adopt(chan: Chan, rights: zx_rights_t) -> Result<zx_handle_t> {
    let koid = chan.koid;
    let handle = crate::object::add(Object::Channel(Box::new(chan)), rights)?;
    register(koid, handle);
    Ok(handle)
}

/// Looks at an end for which something may have changed, and tells those who wait for it.
pub(crate) fn look_at(handle: zx_handle_t) {
    if let Ok(entry) = table().get_reading(handle)
        && let Object::Channel(chan) = &entry.object
    {
        chan.look(handle);
    }
}

/// Something was done to the end of this number from the other end: if it is here and a port waits for it, tells that.
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
    pub(crate) fn new(strait: Channel, koid: zx_koid_t, related: zx_koid_t, user: zx_signals_t) -> Self {
        Self {
            strait: Some(strait),
            koid,
            related,
            user: AtomicU32::new(user),
            slow: AtomicBool::new(false),
            inner: UnsafeCell::default(),
        }
    }

    pub(crate) fn koids(&self) -> (zx_koid_t, zx_koid_t) {
        (self.koid, self.related)
    }

    /// The end of Strait's. It is there as long as a handle leads here.
    #[inline]
    fn strait(&self) -> &Channel {
        self.strait.as_ref().expect("an end with a handle was not sent away")
    }

    /// What is under the reading lock.
    ///
    /// The caller has that lock, or the entry; and uses one of these at a time.
    #[inline]
    #[allow(clippy::mut_from_ref)]
    fn inner(&self) -> &mut Inner {
        // SAFETY: the lock lets one thread in at a time, and no function here calls another while it holds this.
        unsafe { &mut *self.inner.get() }
    }

    /// Says outside of the lock what others look at without it. The caller has changed something.
    #[inline]
    fn settle(&self, inner: &mut Inner) {
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

    /// Takes the next message out of the ring into the queue, or to the call whose answer it is.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if there is none; why nothing more will come; `NO_RESOURCES` and the like, which pass.
    fn pull(&self, inner: &mut Inner) -> Result<()> {
        if let Some(ended) = inner.ended {
            return Err(ended);
        }
        let mut message = call::take_spare();
        match self.strait().recv_to(&mut message, StraitDeadline::NOW) {
            Ok(()) => {}
            Err(error) => {
                let status = Status::from(error);
                if status == Status::PEER_CLOSED || status == Status::BAD_STATE {
                    inner.ended = Some(status);
                    inner.calls.end(status);
                }
                return Err(status);
            }
        }
        self.accept(inner, message)
    }

    /// Has a message that was taken out of the ring go where it belongs.
    ///
    /// # Errors
    /// `PEER_CLOSED` if it is not made as it has to be: nothing more will come.
    fn accept(&self, inner: &mut Inner, message: Message) -> Result<()> {
        if let Some((clear, set)) = wire::as_signals(&message) {
            inner.signalled = true;
            self.change_user(clear, set);
        } else if !wire::is_valid(&message) {
            inner.ended = Some(Status::PEER_CLOSED);
            inner.calls.end(Status::PEER_CLOSED);
            return Err(Status::PEER_CLOSED);
        } else if let Some(message) = inner.calls.route(message) {
            inner.push(message);
        }
        Ok(())
    }

    /// Takes out of the ring what there is, as far as there is room.
    fn drain(&self, inner: &mut Inner) -> Result<()> {
        // Messages that change signals do not fill the queue, and a peer may send them without end.
        for _ in 0..QUEUE_MESSAGES {
            if inner.is_full() {
                break;
            }
            match self.pull(inner) {
                Ok(()) => {}
                Err(Status::SHOULD_WAIT | Status::PEER_CLOSED | Status::BAD_STATE) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The end's signals now, for somebody who waits for some of these.
    fn signals(&self, inner: &mut Inner, mask: zx_signals_t) -> zx_signals_t {
        // What is in front may be an answer; and changes of signals may be behind messages. Who names no signal asks for all.
        if !inner.calls.is_empty() || inner.signalled || mask == 0 || mask & ZX_USER_SIGNAL_ALL != 0 {
            let _ = self.drain(inner);
        }
        let is_readable = !inner.queue.is_empty() || self.has_message(inner);
        let mut signals = self.user.load(Ordering::Relaxed);
        if is_readable {
            signals |= ZX_CHANNEL_READABLE;
        }
        if inner.ended.is_some() || self.strait().is_peer_closed() {
            signals |= ZX_CHANNEL_PEER_CLOSED;
        } else if self.strait().is_writable() {
            signals |= ZX_CHANNEL_WRITABLE;
        }
        signals
    }

    /// Whether a message is at the front of the ring, which stays there if it has bytes.
    fn has_message(&self, inner: &mut Inner) -> bool {
        for _ in 0..QUEUE_MESSAGES {
            if inner.ended.is_some() {
                return false;
            }
            match self.strait().recv_into(&mut [], StraitDeadline::NOW) {
                // It may be one that changes signals, which is for nobody to read.
                Err(strait::Error::BufferTooSmall { needed: wire::SIGNALS }) => match self.pull(inner) {
                    Ok(()) if inner.queue.is_empty() => {}
                    Ok(()) => return true,
                    Err(_) => return false,
                },
                Err(strait::Error::BufferTooSmall { .. }) => return true,
                Err(error) => {
                    let status = Status::from(error);
                    if status == Status::PEER_CLOSED {
                        inner.ended = Some(status);
                    }
                    return false;
                }
                Ok(mut received) => {
                    // A message of no bytes has no handles, or it would have records.
                    if !matches!(received.take_handles().as_deref(), Ok([])) {
                        inner.ended = Some(Status::PEER_CLOSED);
                        return false;
                    }
                    inner.push(Message::new());
                    return true;
                }
            }
        }
        false
    }

    /// Whether nothing that the other end has sent is in the ring any more; takes it out.
    fn is_drained(&self) -> bool {
        let inner = self.inner();
        let drained = self.drain(inner).is_ok() && !self.strait().is_readable();
        self.settle(inner);
        drained
    }

    /// Tells observers what has changed, and listens for more as long as there are some.
    fn look(&self, handle: zx_handle_t) {
        let inner = self.inner();
        self.tell(inner, handle);
        self.settle(inner);
    }

    fn tell(&self, inner: &mut Inner, handle: zx_handle_t) {
        let now = self.signals(inner, inner.observers.wanted() | ZX_CHANNEL_READABLE);
        let before = std::mem::replace(&mut inner.last, now);
        inner.observers.tell(before, now);
        self.listen(inner, handle);
    }

    /// Has the hub listen for what somebody waits for.
    fn listen(&self, inner: &mut Inner, handle: zx_handle_t) {
        let wanted = inner.observers.wanted();
        let by_messages = ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED | ZX_USER_SIGNAL_ALL;
        let mut readable = wanted & by_messages != 0 || !inner.calls.is_empty();
        let writable = wanted & ZX_CHANNEL_WRITABLE != 0 && inner.last & ZX_CHANNEL_WRITABLE == 0;
        if inner.ended.is_some() {
            return;
        }
        if readable && (self.drain(inner).is_err() || inner.is_full()) {
            // There is something in front that must stay there: it is looked at again in a while.
            readable = false;
            hub::look_later(handle);
        }
        let interest = match (readable, writable) {
            (false, false) => return,
            (true, false) => Interest::Readable,
            (false, true) => Interest::Writable,
            (true, true) => Interest::Both,
        };
        if hub::listen(self.strait(), handle, inner.listens, interest).is_ok() {
            inner.listens = Some(interest);
        }
    }

    /// The signals now. With an observer that waits for others, makes that wait.
    ///
    /// The caller has the reading lock.
    pub(crate) fn observe(
        &self,
        handle: zx_handle_t,
        mask: zx_signals_t,
        observer: Option<Observer>,
    ) -> Result<zx_signals_t> {
        let inner = self.inner();
        let now = self.signals(inner, mask);
        if let Some(observer) = observer {
            let waits_for_edge = observer.waits_for_edge();
            if now & mask == 0 || waits_for_edge {
                inner.last = now;
                inner.observers.add(observer);
                // What came meanwhile is seen by listening.
                self.listen(inner, handle);
                let then = self.signals(inner, mask);
                if then != now {
                    self.tell(inner, handle);
                }
            }
        }
        self.settle(inner);
        Ok(now)
    }

    /// Ends a wait. The caller has the reading lock.
    pub(crate) fn forget_observer(&self, id: u64) {
        let inner = self.inner();
        inner.observers.remove(id);
        self.settle(inner);
    }

    /// Changes the signals that are the program's. The caller has the reading lock.
    pub(crate) fn signal(&self, handle: zx_handle_t, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        if (clear | set) & !ZX_USER_SIGNAL_ALL != 0 {
            return Err(Status::INVALID_ARGS);
        }
        self.change_user(clear, set);
        self.look(handle);
        Ok(())
    }

    /// The caller has the reading lock.
    fn change_user(&self, clear: zx_signals_t, set: zx_signals_t) {
        let now = (self.user.load(Ordering::Relaxed) & !clear) | set;
        self.user.store(now, Ordering::Relaxed);
    }

    /// Changes the signals of the other end: at once if it is here; otherwise by a message, in its order, that nobody reads.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if there is no room for that message, or it is not known yet to which process it goes; nothing has
    /// happened.
    pub(crate) fn signal_peer(&self, clear: zx_signals_t, set: zx_signals_t) -> Result<()> {
        if (clear | set) & !ZX_USER_SIGNAL_ALL != 0 {
            return Err(Status::INVALID_ARGS);
        }
        if self.strait().is_peer_closed() {
            return Err(Status::PEER_CLOSED);
        }
        // Whoever has the other end's reading lock waits for no use of this one's handle.
        if let Some(peer) = find_here(self.related)
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

    /// The handle by which the end is reached is no more: all waits by it end.
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
        if inner.listens.take().is_some() {
            hub::listen_no_more(self.strait.as_ref());
        }
    }

    /// Takes the end of Strait's out, with what was not read.
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

    /// Puts it back in.
    pub(crate) fn attach(&mut self, strait: Channel) {
        self.strait = Some(strait);
        self.settle(self.inner());
    }

    /// The signals that programs set.
    pub(crate) fn user_signals(&self) -> zx_signals_t {
        self.user.load(Ordering::Relaxed)
    }

    /// The end is closed.
    pub(crate) fn close(&mut self, handle: zx_handle_t) {
        self.leave(handle);
        // Before anybody is told that it is.
        drop(self.strait.take());
    }
}

impl Drop for Chan {
    /// One that never had a handle, or had one.
    fn drop(&mut self) {
        if self.inner.get_mut().listens.take().is_some() {
            hub::listen_no_more(self.strait.as_ref());
        }
    }
}
