//! Notes of the obstacle that blocked an attempt: a waiter registers for exactly the event that ends its wait.
//!
//! A call with [`Deadline::NOW`](crate::Deadline::NOW) that fails with *would block* [notes](note) its obstacle here,
//! for its thread. The caller [takes](take) the note right after the call, and waits for exactly this obstacle. So the
//! note is a second result of the call. The note is made where the attempt fails, from the state seen there, and no
//! other thread can change the note.
//!
//! | blocked on | the event that ends the wait |
//! |---|---|
//! | room in the ring, or credit for a message, a block or a handle | the other end of this channel receives something |
//! | descriptors in flight over the link | the other end of this channel receives something; [`PollBackoff`] besides |
//! | an end in transit, or a peer that has not opened its side | the source hands the end over; the peer's first packet |
//! | room in a socket | the socket is writable; [`PollBackoff`] besides |
//! | the lock of this end | the thread that holds the lock releases it |
//! | the kernel: the user's limit on descriptors in flight, or memory | none: a look each [`POLL_INTERVAL`] |
//! | both ends of a channel of this process to itself, in one message | none: a look each [`POLL_INTERVAL`] |

use std::any::Any;
use std::cell::RefCell;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// The time between two checks in a wait that no event ends: 100 ms.
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How much the consumer of a ring had received and freed when the producer's attempt to send was blocked. If the
/// consumer gets further, another attempt is worthwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The generation (number within the lane) of the ring that the producer used. Each larger ring of the lane has the
    /// next number.
    pub(crate) generation: u16,
    /// The number of cells for which the consumer of the ring had given credit, counted since the lane was made.
    pub(crate) cells: u64,
    /// The number of messages that the consumer had received in the lane, by the consumer's last report.
    pub(crate) messages: u64,
    /// The number of blocks that the receiver of the messages had returned, and the sender's pool had taken back, when
    /// the attempt to send failed. `None` if the attempt needed no block, and so would gain nothing from a returned
    /// block.
    pub(crate) blocks: Option<u64>,
}

impl Progress {
    /// Returns the lower of two values of progress of one consumer. A consumer that gets further than either value also
    /// gets further than the returned value.
    fn lower(self, other: Self) -> Self {
        let key = |progress: &Self| (progress.generation, progress.cells, progress.messages);
        let lower = if key(&other) < key(&self) { other } else { self };
        let blocks = self.blocks.into_iter().chain(other.blocks).min();
        Self { blocks, ..lower }
    }
}

/// The lane or the link that an attempt was blocked on, as a weak reference: keeps neither open.
#[derive(Clone, Debug)]
pub(crate) struct Subject(Weak<dyn Any + Send + Sync>);

impl Subject {
    pub(crate) fn of<T: Any + Send + Sync>(weak: Weak<T>) -> Self {
        Self(weak)
    }

    /// Returns the lane or the link that the attempt was blocked on. Returns `None` if it no longer exists or is not of
    /// the type `T`.
    pub(crate) fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.upgrade()?.downcast().ok()
    }

    /// Returns whether the attempt was blocked on `this`, a lane or a link.
    pub(crate) fn is<T>(&self, this: &Arc<T>) -> bool {
        std::ptr::addr_eq(self.0.as_ptr(), Arc::as_ptr(this))
    }
}

/// The reason why an attempt to send or receive would have blocked. The reason decides for which event a waiter waits.
/// Keeps no lane and no link open.
#[derive(Clone, Debug)]
pub(crate) enum BlockedOn {
    /// The attempt was blocked on room in the lane. Another attempt is worthwhile when the consumer of the ring gets
    /// beyond the given progress, or the ring ends.
    Room(Subject, Progress),
    /// The attempt was blocked on descriptors: it needed to send the given number of descriptors, and too many were in
    /// flight over the lane's link. Another attempt is worthwhile when the consumer of the lane's ring gets beyond the
    /// given progress.
    Descriptors(Subject, Progress, usize),
    /// The attempt was blocked on a transfer: the other end of the lane was in transit, or its process had not sent its
    /// open packet yet.
    Transit(Subject),
    /// The attempt was blocked on the socket of the link, which was full at the given time.
    Socket(Subject, Instant),
    /// The attempt was blocked, at the given time, on an obstacle whose end no event reports: the kernel refused a
    /// packet over the link although the socket had room. Or the link connects the process with itself, and both ends
    /// of a channel over the link were to travel in one message.
    Unreported(Subject, Instant),
    /// The attempt was blocked on the lock of the end, which another thread held and had marked as blocking.
    Lock,
}

/// All obstacles of the tasks that wait to send from one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockedSends {
    /// Whether a task waits until there is room for a small message.
    pub(crate) small_room: bool,
    /// The lane in which tasks wait for room, with the lowest progress of the lane's consumer that one of the tasks
    /// saw. `None` if no task waits for room in a lane.
    pub(crate) room: Option<(Subject, Progress)>,
    /// Everything else that the tasks are blocked on, in no particular order: also room in a second lane.
    pub(crate) others: Vec<BlockedOn>,
}

impl BlockedSends {
    /// Adds the obstacle of one more task. `None` means that the task waits for room for a small message.
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

/// The growing pauses between the checks of a wait whose event may be reported late: the longer the wait has lasted,
/// the longer the next pause.
///
/// The kernel reports a socket as writable when three quarters of its buffer are free, though a packet would find room
/// before. No word of a channel tells that other channels of the link have fewer descriptors in flight.
#[derive(Debug, Default)]
pub(crate) struct PollBackoff {
    began: Option<Instant>,
}

impl PollBackoff {
    /// Returns the longest time that the next sleep of the wait may take: as long as the wait has lasted so far, and at
    /// least [`POLL_INTERVAL`].
    pub(crate) fn next(&mut self) -> Duration {
        self.began.get_or_insert_with(Instant::now).elapsed().max(POLL_INTERVAL)
    }
}

thread_local! {
    static LAST: RefCell<Option<BlockedOn>> = const { RefCell::new(None) };
}

/// Stores, for the calling thread, what the present call is blocked on, for a later [`take`]. Replaces the note of an
/// earlier call.
#[cold]
pub(crate) fn note(blocked_on: BlockedOn) {
    let old = LAST.try_with(|last| last.replace(Some(blocked_on)));
    drop(old);
}

/// Removes and returns the calling thread's note of the obstacle of its last call; `None` if there is no note.
pub(crate) fn take() -> Option<BlockedOn> {
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Removes the note of the obstacle of an earlier call of the calling thread, if there is a note.
pub(crate) fn forget() {
    drop(take());
}

/// Calls `act` and returns its result. Restores the calling thread's note of an earlier call's obstacle afterwards,
/// because calls within `act` may change the note.
pub(crate) fn preserved<T>(act: impl FnOnce() -> T) -> T {
    let blocked_on = take();
    let done = act();
    let _ = LAST.try_with(|last| last.replace(blocked_on));
    done
}
