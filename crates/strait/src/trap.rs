//! Traps: handlers that are called once, when a condition on a channel is met.
//!
//! A trap is a one-shot member of a wait set, with conditions other than *a message is there*. The receiving side
//! counts what the conditions need (`channel/receiver/queued.rs`). Lost wake-ups are avoided as in every wait set: if
//! no condition is met, the receiving side records its sleep in the ring's sleep word, and looks once more. Arming ends
//! with this second look. So arming reports a condition that is met already, and a condition met later springs the
//! trap.
//!
//! The thread that calls [`Traps::dispatch`] calls the handlers, with all locks of the library released.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::channel::{Channel, Conditions, End, Status};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::{Event, WaitSet};

/// The reason why a trap sprang, as passed to its handler.
///
/// Example: [traps](crate::wait::Traps).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Sprung {
    /// `Met`: the trap sprang because one of its conditions was met. The field is the channel's status just before the
    /// call of the handler; another thread may already have received messages since the condition was met. If another
    /// thread was using the channel at that moment, the field is the default status, which counts nothing.
    Met(Status),
    /// `Never`: the trap sprang because none of its conditions can be met any more. The trap waited only for a number
    /// of queued messages or bytes, and the other end has closed. The messages that the status counts can still be
    /// received.
    Never(Status),
    /// `Removed`: the trap sprang because its channel was sent to another process, or dropped: the trap's conditions
    /// will never be met in this process.
    Removed,
}

/// Identifies an armed trap, for [`Traps::cancel`]. No other trap of the same [`Traps`] ever has an equal id.
///
/// Example: [traps](crate::wait::Traps).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TrapId(u64);

/// The error of [`Traps::arm`]: the trap was not armed. The trap's handler was not called, and the error gives the
/// handler back.
///
/// Example: [traps](crate::wait::Traps).
pub struct NotArmed<H> {
    /// The reason why the trap was not armed.
    pub reason: Reason,
    /// The handler that was given to [`Traps::arm`].
    pub handler: H,
}

/// The reason why [`Traps::arm`] has not armed a trap.
///
/// Example: [traps](crate::wait::Traps).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// `Met`: the trap was not armed, because one of the conditions is met already. The field is the status of the
    /// channel. If another thread is using the channel at this moment, the field is the default status, which counts
    /// nothing.
    Met(Status),
    /// `Never`: the trap was not armed, because no condition is met and none can be met any more: see
    /// [`Sprung::Never`]. The field is the status of the channel.
    Never(Status),
    /// `Failed`: the trap was not armed, because of an error of [`WaitSet::add`]; for example [`Error::InSet`] if the
    /// channel has a trap already.
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

impl<H> From<NotArmed<H>> for Error {
    /// Returns the reason, and drops the handler: the error of [`Reason::Failed`], otherwise [`Error::NotArmed`].
    fn from(failed: NotArmed<H>) -> Self {
        match failed.reason {
            Reason::Met(_) | Reason::Never(_) => Self::NotArmed,
            Reason::Failed(error) => error,
        }
    }
}

impl<H> From<NotArmed<H>> for std::io::Error {
    fn from(failed: NotArmed<H>) -> Self {
        Error::from(failed).into()
    }
}

/// A trap's handler as a trait object that can be converted back to the handler's own type.
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

/// The most handlers that one call of [`Traps::dispatch`] calls. So a handler that always arms its trap again cannot
/// keep a thread in the call.
const MOST: usize = 64;

/// One-shot traps on channels.
///
/// A trap is armed with conditions and a handler. When one of the conditions is met, some call of
/// [`dispatch`](Self::dispatch) calls the handler, once. To wait again, arm again. **If a condition is met already,
/// arming fails and returns the channel's status.** So the following loop misses nothing: receive until the channel is
/// empty, then arm, and receive again if arming fails.
///
/// Handlers are called with no lock of the library held. A handler may call anything: send, receive, arm and cancel
/// traps, dispatch, drop the channel, or panic. No thread is started for them: handlers run in the threads that call
/// `dispatch`. Any number of threads may call `dispatch`; each trap's handler runs in one of them.
///
/// A channel has at most one trap, and a channel with a trap is in no other [`WaitSet`]. Any thread may use the channel
/// as before; while a thread *blocks* in a call on the channel, its trap does not spring.
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use strait::{Channel, Deadline};
/// use strait::wait::{Conditions, Reason, Sprung, Traps};
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
/// // Both messages are still there, so the trap cannot be armed again.
/// let failed = traps.arm(&ours, Conditions::new().messages(2), |_| {}).unwrap_err();
/// assert!(matches!(failed.reason, Reason::Met(status) if status.bytes == 6));
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// Arming allocates the handler's box. If a trap waits for a number of messages or bytes, each message wakes a
/// dispatching thread, which looks at the message once. A trap on an idle channel costs nothing.
pub struct Traps {
    shared: Arc<TrapsShared>,
}

struct TrapsShared {
    set: WaitSet,
    armed: Mutex<BTreeMap<u64, Trap>>,
}

/// Number of the next trap. The child of a fork goes on counting: if the child cancels a trap of its parent, the number
/// is not that of a trap of the child.
static NEXT: AtomicU64 = AtomicU64::new(0);

impl fmt::Debug for Traps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Traps").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl Traps {
    /// Makes a set of traps; none is armed yet.
    ///
    /// # Errors
    /// As [`WaitSet::new`].
    pub fn new() -> Result<Self, Error> {
        let shared = TrapsShared { set: WaitSet::new()?, armed: Mutex::default() };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// Arms a trap on `channel`: a later [`dispatch`](Self::dispatch) calls `handler` once, when one of `conditions` is
    /// met. Does not block.
    ///
    /// # Errors
    /// [`NotArmed`] gives the handler back, with the reason: [`Reason::Met`] if a condition is met already,
    /// [`Reason::Never`] if none can be met any more, [`Reason::Failed`] otherwise.
    pub fn arm<H>(&self, channel: &Channel, conditions: Conditions, handler: H) -> Result<TrapId, NotArmed<H>>
    where
        H: FnOnce(Sprung) + Send + 'static,
    {
        self.shared.arm(&channel.end, conditions, false, handler)
    }

    /// Watches a channel: `handler` is called whenever the conditions are met, also if they are met already. The
    /// handler returns the conditions to wait for next, or `None` to end the watch. As with [`arm`](Self::arm),
    /// [`dispatch`](Self::dispatch) calls the handler.
    ///
    /// So a channel can have a **quota** that refuses nothing: the handler decides what to do when the quota is passed.
    ///
    /// ```
    /// use strait::{Channel, Deadline};
    /// use strait::wait::{Conditions, Sprung, Traps};
    /// let traps = Traps::new()?;
    /// let (theirs, ours) = Channel::pair()?;
    /// let (tell, told) = std::sync::mpsc::channel();
    /// // The handler is told of a queue of 10 messages or 1 MiB, and then of each doubling.
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
    /// A handler is not called again after it has panicked or got [`Sprung::Never`].
    ///
    /// # Errors
    /// The errors in [`Reason::Failed`]. If arming the next trap fails later, the handler is dropped.
    pub fn watch<H>(&self, channel: &Channel, conditions: Conditions, handler: H) -> Result<TrapId, Error>
    where
        H: FnMut(Sprung) -> Option<Conditions> + Send + 'static,
    {
        watch(&self.shared, &channel.end, conditions, handler)
    }

    /// Disarms and removes a trap. Returns `true` if its handler was not called and will not be called; the handler was
    /// dropped then. Returns `false` if the handler was called, is being called by another thread, or the trap was
    /// cancelled before.
    pub fn cancel(&self, trap: TrapId) -> bool {
        let Some(cancelled) = unpoisoned(&self.shared.armed).remove(&trap.0) else { return false };
        if let Some(end) = cancelled.end.upgrade() {
            self.shared.set.leave(&end, trap.0);
        }
        true
    }

    /// Waits until a trap springs or the deadline has passed, then calls the handlers of all traps that have sprung.
    /// Returns the number of handlers called, at most 64; 0 if the deadline has passed.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn dispatch(&self, deadline: impl Into<Deadline>) -> Result<usize, Error> {
        let deadline = deadline.into();
        // The wait set reports one event at a time: if a handler panics, the other events must still be reported.
        let mut events = Vec::with_capacity(1);
        let mut called = 0;
        while called < MOST {
            let deadline = if called == 0 { deadline } else { Deadline::NOW };
            match self.shared.set.wait(&mut events, deadline) {
                Ok(0) => break,
                // Events of cancelled traps do not count, and do not end the call.
                Ok(_) => called += events.iter().filter(|event| self.shared.spring(event)).count(),
                Err(error) if called == 0 => return Err(error),
                Err(_) => break,
            }
        }
        Ok(called)
    }

    /// Returns the number of traps that are armed and have not sprung yet.
    pub fn len(&self) -> usize {
        unpoisoned(&self.shared.armed).len()
    }

    /// Returns whether no trap in the set of traps is armed.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl AsFd for Traps {
    /// Returns a descriptor for event loops: readable whenever [`dispatch`](Self::dispatch) may have something to do;
    /// see [the descriptor of a wait set](WaitSet#the-descriptor).
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.set.as_fd()
    }
}

impl AsRawFd for Traps {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Arms a trap on `end`, which springs even if one of `conditions` is met already. When the trap springs, a dispatch
/// calls `handler`, and then arms a new trap with the conditions that `handler` returns. No new trap is armed if
/// `handler` returns `None`, or after [`Sprung::Never`]. Returns the id of the first trap. Each later trap has another
/// id, which is not returned.
fn watch<H>(shared: &Arc<TrapsShared>, end: &Arc<End>, conditions: Conditions, mut handler: H) -> Result<TrapId, Error>
where
    H: FnMut(Sprung) -> Option<Conditions> + Send + 'static,
{
    let (weak_shared, weak_end) = (Arc::downgrade(shared), Arc::downgrade(end));
    let go_on = move |sprung| {
        // After `Sprung::Never` a new trap would spring at once, and so for ever.
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

impl TrapsShared {
    /// Arms a trap on `end`. If a condition is met already and `springs` is true, the next dispatch calls the handler.
    /// If `springs` is false, the trap is not armed, and the error gives the handler back.
    fn arm<H>(&self, end: &Arc<End>, conditions: Conditions, springs: bool, handler: H) -> Result<TrapId, NotArmed<H>>
    where
        H: FnOnce(Sprung) + Send + 'static,
    {
        let key = NEXT.fetch_add(1, Ordering::Relaxed);
        // The trap must be in the map before it can spring.
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
