//! Traps: handlers that are called once when something is so.
//!
//! A trap is a one-shot member of a wait set, with conditions in place of *a message is there*. What is counted for them
//! is looked at where messages are received (`channel/receiver/queued.rs`), under the set's own rule against lost wake-ups: whoever finds that
//! nothing is so says in the ring's word that it listens, and looks once more. Arming ends with that second look, so a
//! condition that holds already is found by the caller, and one that comes to hold later springs the trap.
//!
//! Handlers are called by whoever calls [`Traps::dispatch`], after everything that this library locks was let go.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::channel::{Channel, End, Status};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::{Conditions, Event, WaitSet};

/// Why a trap has sprung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sprung {
    /// A condition was met. What there was at the channel when the handler was about to be called, if other threads had not
    /// received it by then; nothing at all if one of them kept the channel to itself just then.
    Met(Status),
    /// So many messages or bytes will never be queued here, as nothing more will come; and nothing else was waited for. What there is
    /// can be received.
    Never(Status),
    /// The channel was sent away in a message, or dropped. Conditions will never be met here.
    Removed,
}

/// Names a trap that was armed, for [`Traps::cancel`]. Never used again for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrapId(u64);

/// A trap that was not armed, and its handler, which was not called.
pub struct NotArmed<H> {
    /// Why.
    pub reason: Reason,
    /// Comes back.
    pub handler: H,
}

/// Why a trap was not armed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// A condition is met already. This is what there is; nothing if another thread keeps the channel to itself by now.
    Met(Status),
    /// None is met, or ever will be: see [`Sprung::Never`].
    Never(Status),
    /// As [`WaitSet::add`]; among others [`Error::InSet`], as a channel has one trap at a time.
    Failed(Error),
}

impl<H> fmt::Debug for NotArmed<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NotArmed").field(&self.reason).finish()
    }
}

impl<H> fmt::Display for NotArmed<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Reason::Met(_) => write!(f, "a condition is met already: act on it, then arm again"),
            Reason::Never(_) => {
                write!(f, "no condition can be met any more, as nothing more will come: receive what there is")
            }
            Reason::Failed(error) => error.fmt(f),
        }
    }
}

impl<H> std::error::Error for NotArmed<H> {}

/// A handler, which can be had back as what it was.
trait Handler: Any + Send {
    fn call(self: Box<Self>, sprung: Sprung);
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
}

impl<H: FnOnce(Sprung) + Send + 'static> Handler for H {
    fn call(self: Box<Self>, sprung: Sprung) {
        self(sprung);
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

struct Trap {
    end: Weak<End>,
    conditions: Conditions,
    handler: Box<dyn Handler>,
}

/// Handlers called in one dispatch, at most: one that arms its trap again and again must not keep a thread there.
const MOST: usize = 64;

/// One-shot traps on channels.
///
/// A trap is armed with conditions and a handler. When one of the conditions comes to hold, some call of
/// [`dispatch`](Self::dispatch) calls the handler, once; to go on, arm again. **If a condition holds already, arming fails and
/// says what there is**: so a loop that receives until there is nothing, then arms, and receives again if that fails, misses
/// nothing, whatever comes in between.
///
/// Handlers are called with no lock of this library held. They may call anything: send, receive, arm and cancel traps, these
/// or others, dispatch, drop the channel, or panic. The library starts no threads: handlers run in the threads that call
/// `dispatch`, any number of them, each trap's in one.
///
/// A channel has one trap at a time, and is in no other [`WaitSet`] meanwhile. It is used as ever, from any thread; while a
/// thread *blocks* in a call on it, its trap does not spring.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use strait::{Channel, Conditions, Deadline, Reason, Sprung, Traps};
/// let traps = Traps::new()?;
/// let (theirs, ours) = Channel::pair()?;
/// let seen = Arc::new(Mutex::new(None));
/// let noted = seen.clone();
/// traps.arm(&ours, Conditions::new().messages(2), move |sprung| *noted.lock().unwrap() = Some(sprung)).unwrap();
/// theirs.send(b"one")?;
/// assert_eq!(traps.dispatch(Deadline::NOW)?, 0);
/// theirs.send(b"two")?;
/// assert_eq!(traps.dispatch(Deadline::NOW)?, 1);
/// assert!(matches!(*seen.lock().unwrap(), Some(Sprung::Met(status)) if status.messages == 2));
/// // Both are still there, so it cannot be armed again.
/// let failed = traps.arm(&ours, Conditions::new().messages(2), |_| {}).unwrap_err();
/// assert!(matches!(failed.reason, Reason::Met(status) if status.bytes == 6));
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// Arming allocates the handler's box. An armed trap on a number of messages or bytes has each message looked at once, when
/// it comes, by whoever dispatches; the sender wakes that thread for it. An idle one costs nothing.
pub struct Traps {
    shared: Arc<Shared>,
}

struct Shared {
    set: WaitSet,
    armed: Mutex<BTreeMap<u64, Trap>>,
    next: AtomicU64,
}

impl fmt::Debug for Traps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traps").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Traps {
    /// None are armed.
    ///
    /// # Errors
    /// As [`WaitSet::new`].
    pub fn new() -> Result<Self, Error> {
        let shared = Shared { set: WaitSet::new()?, armed: Mutex::default(), next: AtomicU64::new(0) };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Arms a trap. Does not block.
    ///
    /// # Errors
    /// [`Reason::Met`] if a condition is met already, [`Reason::Never`], and [`Reason::Failed`]. The handler comes back.
    pub fn arm<H>(&self, channel: &Channel, conditions: Conditions, handler: H) -> Result<TrapId, NotArmed<H>>
    where
        H: FnOnce(Sprung) + Send + 'static,
    {
        self.shared.arm(&channel.end, conditions, false, handler)
    }

    /// Watches a channel: `handler` is called whenever the conditions are met, also if they are now, and returns those to wait
    /// for next, or `None` for an end of it. As with [`arm`](Self::arm) it is [`dispatch`](Self::dispatch) that calls it.
    ///
    /// So a channel gets a **quota**: nothing is refused by it, and the handler decides what passing it means.
    ///
    /// ```
    /// use strait::{Channel, Conditions, Deadline, Sprung, Traps};
    /// let traps = Traps::new()?;
    /// let (theirs, ours) = Channel::pair()?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// // Told of a queue of 10 messages or 1 MiB, and then of each doubling.
    /// traps.watch(&ours, Conditions::new().messages(10).bytes(1 << 20), move |sprung| match sprung {
    ///     Sprung::Met(status) => {
    ///         tell.send(status.messages).unwrap();
    ///         Some(Conditions::new().messages(2 * status.messages).bytes(2 * status.bytes.max(1 << 20)))
    ///     }
    ///     _ => None,
    /// })?;
    /// for _ in 0..25 {
    ///     theirs.send(b"unread")?;
    ///     traps.dispatch(Deadline::NOW)?;
    /// }
    /// assert_eq!(told.try_iter().collect::<Vec<_>>(), [10, 20]);
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// A handler that panics is not called again, nor one that was told [`Sprung::Never`].
    ///
    /// # Errors
    /// As [`Reason::Failed`]. Should that happen when it goes on later, the handler is dropped.
    pub fn watch<H>(&self, channel: &Channel, conditions: Conditions, handler: H) -> Result<TrapId, Error>
    where
        H: FnMut(Sprung) -> Option<Conditions> + Send + 'static,
    {
        watch(&self.shared, &channel.end, conditions, handler)
    }

    /// Takes a trap away. True if its handler will not be called, and was dropped; false if it was called, or is just being
    /// called by another thread, or was taken away before.
    pub fn cancel(&self, trap: TrapId) -> bool {
        let Some(cancelled) = unpoisoned(&self.shared.armed).remove(&trap.0) else { return false };
        if let Some(end) = cancelled.end.upgrade() {
            self.shared.set.leave(&end, trap.0);
        }
        true
    }

    /// Waits until traps have sprung, or the deadline has passed, and calls the handlers of those that have. Returns how
    /// many; 0 if the time is up.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn dispatch(&self, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        let deadline = deadline.into();
        // One by one: should a handler panic, the others are still to be told of.
        let mut events = Vec::with_capacity(1);
        let mut called = 0;
        while called < MOST {
            let deadline = if called == 0 { deadline } else { Deadline::NOW };
            match self.shared.set.wait(&mut events, deadline) {
                Ok(0) => break,
                // Those of cancelled traps are nothing to return for.
                Ok(_) => called += events.iter().filter(|event| self.shared.spring(event)).count(),
                Err(error) if called == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(called)
    }

    /// How many are armed.
    pub fn len(&self) -> usize {
        unpoisoned(&self.shared.armed).len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AsFd for Traps {
    /// Readable whenever [`dispatch`](Self::dispatch) may have something to do. See [the wait
    /// set's](WaitSet#the-descriptor).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.set.as_fd()
    }
}

/// Arms a trap that arms itself anew. It is named by what it is armed as first, and then by other names.
fn watch<H>(shared: &Arc<Shared>, end: &Arc<End>, conditions: Conditions, mut handler: H) -> Result<TrapId, Error>
where
    H: FnMut(Sprung) -> Option<Conditions> + Send + 'static,
{
    let (weak_shared, weak_end) = (Arc::downgrade(shared), Arc::downgrade(end));
    let go_on = move |sprung| {
        // Which it would be for ever.
        let next = handler(sprung).filter(|_| !matches!(sprung, Sprung::Never(_)));
        if let (Some(next), Some(shared), Some(end)) = (next, weak_shared.upgrade(), weak_end.upgrade()) {
            let _ = watch(&shared, &end, next, handler);
        }
    };
    shared.arm(end, conditions, true, go_on).map_err(|failed| match failed.reason {
        Reason::Failed(error) => error,
        Reason::Met(_) | Reason::Never(_) => unreachable!("then it springs"),
    })
}

impl Shared {
    /// Arms a trap. If a condition is met already it springs by the next dispatch, if it `springs`, or else it is not armed.
    fn arm<H>(&self, end: &Arc<End>, conditions: Conditions, springs: bool, handler: H) -> Result<TrapId, NotArmed<H>>
    where
        H: FnOnce(Sprung) + Send + 'static,
    {
        let key = self.next.fetch_add(1, Ordering::Relaxed);
        // It must be here before the trap can spring.
        let trap = Trap { end: Arc::downgrade(end), conditions, handler: Box::new(handler) };
        unpoisoned(&self.armed).insert(key, trap);
        let reason = match self.set.add_trap(end, key, conditions, springs) {
            Ok(false) => return Ok(TrapId(key)),
            Ok(true) => match end.status().unwrap_or_default() {
                status if conditions.are_out_of_reach(&status) => Reason::Never(status),
                status => Reason::Met(status),
            },
            Err(error) => Reason::Failed(error),
        };
        let unused = unpoisoned(&self.armed).remove(&key).expect("a trap that did not spring is here");
        let handler = unused.handler.into_any().downcast().expect("it was put there just now");
        Err(NotArmed { reason, handler: *handler })
    }

    fn spring(&self, event: &Event) -> bool {
        let Some(Trap { end, conditions, handler }) = unpoisoned(&self.armed).remove(&event.key()) else {
            return false;
        };
        let end = end.upgrade().filter(|_| !event.has_moved());
        let sprung = match end {
            Some(end) => {
                self.set.leave(&end, event.key());
                match end.status().unwrap_or_default() {
                    status if conditions.are_out_of_reach(&status) => Sprung::Never(status),
                    status => Sprung::Met(status),
                }
            }
            None => Sprung::Removed,
        };
        handler.call(sprung);
        true
    }
}
