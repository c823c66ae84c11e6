//! Notes of what an attempt was blocked on, so that a waiter registers for exactly the event that ends its wait.
//!
//! A call with [`Deadline::NOW`](crate::Deadline::NOW) that fails with *would block* [notes](note) here, for its
//! thread, what it was blocked on. The caller [takes](take) the note right after the call, and waits for that and
//! nothing else. So the note is a second result of the call. It is made where the attempt fails, from what was seen
//! there, and no other thread can change it.
//!
//! | blocked on | the event that ends the wait |
//! |---|---|
//! | room in the ring, or credit for a message, a block or a handle | the reader of this channel receives something |
//! | descriptors in flight over the link | the reader of this channel receives something; [`PollBackoff`] besides |
//! | an end in transit, or a peer that has not opened its side | the source hands the end over; the peer's first packet |
//! | room in a socket | the socket is writable; [`PollBackoff`] besides |
//! | the lock of this end | the thread that holds the lock releases it |
//! | the kernel: the user's limit on descriptors in flight, or memory | none: a look each [`POLL_INTERVAL`] |

use std::any::Any;
use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time between two looks in a wait that no event ends.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How much the reader of a ring had received when an attempt of its writer looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The generation of the ring in its lane; each larger ring has the next number.
    pub(crate) generation: u16,
    /// The number of cells for which the reader has given credit in this ring.
    pub(crate) cells: u64,
    /// The number of messages that the reader has received in this lane.
    pub(crate) messages: u64,
    /// The number of blocks that the reader has given back to the writer's pool.
    pub(crate) blocks: u64,
}

impl Progress {
    /// Returns the lower of two values of progress. A reader that has gone on since either of them has gone on since
    /// the lower one.
    fn lower(self, other: Self) -> Self {
        let key = |progress: &Self| (progress.generation, progress.cells, progress.messages, progress.blocks);
        if key(&other) < key(&self) { other } else { self }
    }
}

/// The lane or the link about which a note is. Holds a weak reference only, so the note keeps nothing open.
#[derive(Clone, Debug)]
pub(crate) struct Subject(Weak<dyn Any + Send + Sync>);

impl Subject {
    pub(crate) fn of<T: Any + Send + Sync>(weak: Weak<T>) -> Self {
        Self(weak)
    }

    /// Returns the lane or the link of this type, if it still exists.
    pub(crate) fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.upgrade()?.downcast().ok()
    }

    /// Returns whether the note is about `this` lane or link.
    pub(crate) fn is<T>(&self, this: &Arc<T>) -> bool {
        std::ptr::addr_eq(self.0.as_ptr(), Arc::as_ptr(this))
    }
}

/// The resource or state that an attempt to send or receive was blocked on. Keeps nothing open.
#[derive(Clone, Debug)]
pub(crate) enum BlockedOn {
    /// Blocked on room in this lane: the reader must go beyond this progress, or the ring must end.
    Room(Subject, Progress),
    /// Blocked on descriptors: too many were in flight over the lane's link to send this number more. The progress is
    /// that of the lane's reader.
    Descriptors(Subject, Progress, usize),
    /// Blocked on a transfer: the other end of this lane was in transit, or its peer had not opened its side.
    Transit(Subject),
    /// Blocked on the socket of this link, which was full at this time.
    Socket(Subject, Instant),
    /// Blocked on the kernel, which refused a packet over this link at this time although the socket had room.
    Kernel(Subject, Instant),
    /// Blocked on the lock of the end, which another thread had marked as blocking.
    Lock,
}

/// All that the tasks are blocked on that wait to send from one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockedSends {
    /// Whether a task waits for room for a small message.
    pub(crate) small_room: bool,
    /// The lane in which tasks wait for room, and the lowest progress of the reader that one of them saw.
    pub(crate) room: Option<(Subject, Progress)>,
    /// Everything else that the tasks are blocked on, in no order.
    pub(crate) others: Vec<BlockedOn>,
}

impl BlockedSends {
    /// Adds what one more task is blocked on. `None` means room for a small message.
    pub(crate) fn add(&mut self, blocked_on: Option<BlockedOn>) {
        match (blocked_on, &mut self.room) {
            (None, _) => self.small_room = true,
            (Some(BlockedOn::Room(lane, seen)), Some((known, lowest))) if known.0.ptr_eq(&lane.0) => {
                *lowest = lowest.lower(seen)
            }
            (Some(BlockedOn::Room(lane, seen)), none @ None) => *none = Some((lane, seen)),
            (Some(blocked_on), _) => self.others.push(blocked_on),
        }
    }
}

/// Paces the looks of a wait whose event may come late: the longer the wait, the rarer the looks.
///
/// The kernel reports a socket as writable once three quarters of its buffer are free, though a packet would find room
/// before. No word of a channel tells that other channels of the link have fewer descriptors in flight.
#[derive(Debug, Default)]
pub(crate) struct PollBackoff {
    began: Option<Instant>,
}

impl PollBackoff {
    /// Returns how long the next sleep of the wait may last: as long as the wait has lasted so far, and at least
    /// [`POLL_INTERVAL`].
    pub(crate) fn next(&mut self) -> Duration {
        self.began.get_or_insert_with(Instant::now).elapsed().max(POLL_INTERVAL)
    }
}

thread_local! {
    static LAST: RefCell<Option<BlockedOn>> = const { RefCell::new(None) };
}

/// Stores what the present call of this thread is blocked on, for [`take`].
#[cold]
pub(crate) fn note(blocked_on: BlockedOn) {
    let old = LAST.try_with(|last| last.replace(Some(blocked_on)));
    drop(old);
}

/// Removes and returns what the last call of this thread was blocked on; `None` if nothing was noted.
pub(crate) fn take() -> Option<BlockedOn> {
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Removes the note of what an earlier call of this thread was blocked on.
pub(crate) fn forget() {
    drop(take());
}

/// Calls `act` while a failed call still has its note of what it was blocked on. Restores the note after `act`.
pub(crate) fn preserved<T>(act: impl FnOnce() -> T) -> T {
    let blocked_on = take();
    let done = act();
    let _ = LAST.try_with(|last| last.replace(blocked_on));
    done
}
