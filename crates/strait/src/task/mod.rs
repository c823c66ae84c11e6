//! Waiting in tasks: futures for any runtime, over one descriptor.
//!
//! ```
//! use std::future::Future;
//! use std::pin::pin;
//! use std::task::{Context, Poll, Waker};
//! use rustix::event::{PollFd, PollFlags, poll};
//! use strait::Channel;
//! use strait::task::{AsyncChannel, Reactor};
//!
//! let reactor = Reactor::new()?;
//! let (a, b) = Channel::pair()?;
//! let b = AsyncChannel::new(b, &reactor)?;
//! a.send(b"hello")?;
//! let mut receiving = pin!(b.recv());
//! let message = loop {
//!     // A runtime does this: it polls woken tasks, and calls `turn` when the descriptor is readable.
//!     if let Poll::Ready(message) = receiving.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
//!         break message?;
//!     }
//!     poll(&mut [PollFd::new(&reactor, PollFlags::IN)], None).unwrap();
//!     reactor.turn()?;
//! };
//! assert_eq!(message.bytes(), b"hello");
//! # Ok::<(), strait::Error>(())
//! ```
//!
//! The crate `strait-tokio` drives a [`Reactor`] in tokio.

// Waiting in tasks: futures over a wait set's descriptor, for any runtime.
//
// A [`Reactor`] is a wait set, and the wakers of the tasks that wait for its members. A driver has to call
// [`Reactor::turn`] whenever the reactor's descriptor is readable; a runtime needs nothing else. The crate
// `strait-tokio` is such a driver for tokio. There is no thread.
//
// Once a reactor has ended, no driver wakes a task any more. So the end wakes all waiting tasks, and from then on a
// task gets an error where it would wait.
//
// If a task's attempt finds nothing, the task first leaves its waker with the [source]. Then the task arms a one-shot
// event, and arming looks once more: a message that has arrived in between is an event. So no wake-up is lost. A
// dropped future has received nothing, and removes its waker. The waker of a task that polls without such a future, by
// a function named `poll_...`, stays until the event; the wake-up of a dropped task has no effect.

mod calls;
mod channel;
mod driver;
mod pipe;
mod source;

pub use calls::AsyncCallEnd;
pub use channel::{AsyncChannel, AsyncReceiver, AsyncSender};
pub use driver::Driver;
pub use pipe::{AsyncConsumer, AsyncProducer};

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::sync::unpoisoned;
use crate::wait_set::{Event, WaitSet};

/// The greatest number of events that one call of [`Reactor::turn`] handles.
const EVENTS: usize = 128;

/// Lets tasks wait for channels, data pipes and calls, through one descriptor that any runtime can poll.
///
/// A clone is another reference to the same reactor. [`AsyncChannel`], [`AsyncProducer`], [`AsyncConsumer`] and
/// [`AsyncCallEnd`] need a reactor. All of them work with any executor: waiting tasks make progress whenever a driver
/// calls [`turn`](Self::turn). Code that drives a reactor does so through a [`Driver`].
///
/// ```
/// use std::future::Future;
/// use std::pin::pin;
/// use std::task::{Context, Poll, Waker};
/// use rustix::event::{PollFd, PollFlags, poll};
/// use strait::Channel;
/// use strait::task::{AsyncChannel, Reactor};
/// let reactor = Reactor::new()?;
/// let (a, b) = Channel::pair()?;
/// let b = AsyncChannel::new(b, &reactor)?;
/// let mut receiving = pin!(b.recv());
/// let mut context = Context::from_waker(Waker::noop());
/// assert!(receiving.as_mut().poll(&mut context).is_pending());
/// a.send(b"hello")?;
/// let message = loop {
///     // What a runtime does.
///     poll(&mut [PollFd::new(&reactor, PollFlags::IN)], None).unwrap();
///     reactor.turn()?;
///     if let Poll::Ready(message) = receiving.as_mut().poll(&mut context) {
///         break message?;
///     }
/// };
/// assert_eq!(message.bytes(), b"hello");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone)]
pub struct Reactor {
    shared: Arc<ReactorShared>,
}

struct ReactorShared {
    set: WaitSet,
    sources: Mutex<Sources>,
    /// Whether the reactor has ended. Set before the members are told; a member checks it under the lock of its tasks,
    /// or after it has registered a task. So each task either gets the error or is woken.
    ended: AtomicBool,
    /// Buffer for events, kept between calls to reuse its memory.
    spare: Mutex<Vec<Event>>,
}

#[derive(Default)]
struct Sources {
    next: u64,
    by_key: BTreeMap<u64, Weak<dyn OnEvent>>,
}

/// A member of a reactor: a channel, a call end or a data-pipe end. The reactor passes each event of the object to its
/// member.
trait OnEvent: Send + Sync {
    /// Handles an event of the member: wakes the tasks that wait for the event. The caller must hold no lock.
    fn on_event(&self, event: Event);

    /// Wakes all tasks that wait for the member, because the reactor has ended. The caller must hold no lock.
    fn on_end(&self);
}

impl Reactor {
    /// Makes a reactor without members.
    ///
    /// # Errors
    /// As [`WaitSet::new`].
    pub fn new() -> Result<Self, Error> {
        Ok(Self {
            shared: Arc::new(ReactorShared {
                set: WaitSet::new()?,
                sources: Mutex::default(),
                ended: AtomicBool::new(false),
                spare: Mutex::default(),
            }),
        })
    }

    /// Wakes the tasks whose channels, data pipes or calls are ready; returns the number of events handled. Call `turn`
    /// when the reactor's descriptor is readable, until it returns 0. Does not block. The wakers of the tasks are
    /// called without a lock held.
    ///
    /// A peer that sends without end can give every call something to do. A task that drives the reactor therefore lets
    /// other tasks run between two calls.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn turn(&self) -> Result<usize, Error> {
        let mut events = Vec::with_capacity(EVENTS);
        let count = self.shared.set.wait(&mut events, Deadline::NOW)?;
        self.deliver(&mut events);
        Ok(count)
    }

    /// Wakes ready tasks as [`turn`](Self::turn) does, for a driver that polls; returns the number of events handled.
    /// The call usually makes no system call, and neither do the peers that send meanwhile. After the call the
    /// reactor's descriptor does not become readable until [`rest`](Self::rest) has returned 0 or `turn` was called. A
    /// driver that wants to sleep on the descriptor therefore calls `rest` again and again until it returns 0; any
    /// other result is a number of events handled.
    ///
    /// A driver that polls for some microseconds before it rests can answer a quick peer without sleeping.
    ///
    /// # Errors
    /// As [`WaitSet::wait`].
    pub fn look(&self) -> Result<usize, Error> {
        self.run_once(WaitSet::look)
    }

    /// Wakes ready tasks as [`look`](Self::look) does, before the driver sleeps; returns the number of events handled.
    /// If the result is 0, the reactor's descriptor is readable now, or becomes readable as soon as there is something
    /// to do. So the driver may wait for the descriptor with `EPOLLET`. Otherwise call `rest` or [`look`](Self::look)
    /// again.
    ///
    /// # Errors
    /// As [`WaitSet::wait`]. After an error, call `rest` again too.
    pub fn rest(&self) -> Result<usize, Error> {
        self.run_once(WaitSet::park)
    }

    fn run_once(&self, find: impl FnOnce(&WaitSet, &mut Vec<Event>) -> Result<(), Error>) -> Result<usize, Error> {
        if self.is_elsewhere() {
            return Err(Error::Forked);
        }
        let mut events = std::mem::take(&mut *unpoisoned(&self.shared.spare));
        let found = find(self.set(), &mut events);
        let count = events.len();
        self.deliver(&mut events);
        *unpoisoned(&self.shared.spare) = events;
        found.map(|()| count)
    }

    fn deliver(&self, events: &mut Vec<Event>) {
        for event in events.drain(..) {
            let source = unpoisoned(&self.shared.sources).by_key.get(&event.key()).and_then(Weak::upgrade);
            if let Some(source) = source {
                source.on_event(event);
            }
        }
    }

    /// Returns whether there is more to do although [`turn`](Self::turn) has returned 0: a call of `turn` stops after a
    /// certain time. Needed only by a driver that waits with `EPOLLET`, because the kernel then tells only once that
    /// the descriptor is readable. Makes no system call.
    pub fn has_more(&self) -> bool {
        self.shared.set.has_more()
    }

    /// Ends the reactor: wakes all tasks that wait for its objects. From now on a task that would have to wait for one
    /// of the objects gets [`Error::ReactorEnded`] instead. Sending, receiving, reading and writing without a wait
    /// still work, and every object can be taken out of the reactor. The end cannot be undone. In a child of `fork`,
    /// wakes no task.
    ///
    /// Code that drives a reactor should do so through a [`Driver`], which ends the reactor when it is dropped.
    pub fn end(&self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        if self.is_elsewhere() {
            return;
        }
        let sources: Vec<_> = unpoisoned(&self.shared.sources).by_key.values().filter_map(Weak::upgrade).collect();
        sources.into_iter().for_each(|source| source.on_end());
    }

    /// Returns whether the reactor has [ended](Self::end).
    pub fn has_ended(&self) -> bool {
        self.shared.ended.load(Ordering::SeqCst)
    }

    /// Returns an object through which code drives the reactor. When the object is dropped, the reactor
    /// [ends](Self::end).
    ///
    /// Example: [`Driver`].
    pub fn driver(&self) -> Driver {
        Driver::new(self.clone())
    }

    /// Returns whether this process is a child of `fork`, and the reactor is its parent's. Then threads of the parent
    /// may have held locks of the reactor, and references to its members, at the fork.
    fn is_elsewhere(&self) -> bool {
        self.shared.set.is_elsewhere()
    }

    fn set(&self) -> &WaitSet {
        &self.shared.set
    }

    /// Registers a new member: chooses the member's key in the wait set, makes the member by calling `make` with the
    /// key, and returns the member. Events with the key go to the member as long as the member exists. In a child of
    /// `fork`, only makes the member.
    fn enter<T: OnEvent + 'static>(&self, make: impl FnOnce(u64) -> T) -> Arc<T> {
        if self.is_elsewhere() {
            return Arc::new(make(0));
        }
        let mut sources = unpoisoned(&self.shared.sources);
        let key = sources.next;
        sources.next += 1;
        let source = Arc::new(make(key));
        let sink: Weak<T> = Arc::downgrade(&source);
        sources.by_key.insert(key, sink);
        drop(sources);
        source
    }

    /// Returns `member` once no other thread handles an event of it any more. The member must have left the reactor.
    ///
    /// # Panics
    /// In a child of `fork`, if a thread of the parent handled an event of the member at the fork: in the child, that
    /// thread never returns.
    fn sole<T>(&self, mut member: Arc<T>) -> T {
        loop {
            // A call of [`Reactor::turn`] in another thread may be handling an event of the object right now.
            match Arc::try_unwrap(member) {
                Ok(member) => return member,
                Err(shared) => member = shared,
            }
            assert!(!self.is_elsewhere(), "{}", Error::Forked);
            std::thread::yield_now();
        }
    }

    /// Removes the member with this key. Does nothing in a child of `fork`.
    fn leave(&self, key: u64) {
        if self.is_elsewhere() {
            return;
        }
        let left = unpoisoned(&self.shared.sources).by_key.remove(&key);
        drop(left);
    }
}

impl AsFd for Reactor {
    /// Returns a descriptor that is readable whenever [`turn`](Self::turn) has something to do. Only wait for
    /// readability; do not read from the descriptor.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.set.as_fd()
    }
}

impl AsRawFd for Reactor {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Reactor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ended = self.has_ended();
        f.debug_struct("Reactor")
            .field("sources", &self.shared.set.len())
            .field("ended", &ended)
            .finish_non_exhaustive()
    }
}
