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

/// The size in bytes of the first arena that this process creates for two processes. Each further arena for the two is
/// four times larger, up to [`LARGEST`].
pub(crate) const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The size in bytes of the largest arena with many lanes that this process creates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// The generation (number within the lane) of the ring that the writer used; each larger ring has the next number.
    pub(crate) generation: u16,
    /// The number of cells of this ring for which the reader had given credit, since the ring began.
    pub(crate) cells: u64,
    /// The page size in bytes. A peer may round the size of an arena up to the next multiple of it.
    pub(crate) messages: u64,
    /// The number of lane slots in use that a maker checks before it creates a new arena. A slot is free again once
    /// both ends are done with it.
    pub(crate) blocks: u64,
}

impl Progress {
    /// Returns the lower of two values of progress: a reader that has got further than either of them has got further
    /// than the one returned.
    fn lower(self, other: Self) -> Self {
        let key = |progress: &Self| (progress.generation, progress.cells, progress.messages, progress.blocks);
        if key(&other) < key(&self) { other } else { self }
    }
}

/// The lane or the link that an attempt was blocked on. A weak reference, which keeps neither open.
#[derive(Clone, Debug)]
pub(crate) struct Subject(Weak<dyn Any + Send + Sync>);

impl Subject {
    pub(crate) fn of<T: Any + Send + Sync>(weak: Weak<T>) -> Self {
        Self(weak)
    }

    /// The base of the tokens for lanes of this arena in packets of this process to itself. This process chooses it; a
    /// peer that chose it could choose the tokens of other rings.
    pub(crate) fn get<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.0.upgrade()?.downcast().ok()
    }

    /// The charge to the peer for the lanes of an arena that the peer created; `None` for an arena that this process
    /// created.
    pub(crate) fn is<T>(&self, this: &Arc<T>) -> bool {
        std::ptr::addr_eq(self.0.as_ptr(), Arc::as_ptr(this))
    }
}

/// For an arena that a peer created: a bit for each end of each lane, set while this process holds that end. Two ends
/// on the same side would write to the same memory. Empty for an arena that this process created.
#[derive(Clone, Debug)]
pub(crate) enum BlockedOn {
    /// For an arena that a peer created: by lane slot and side, the use count of the last lane there whose end this
    /// process held and holds no more. That end cannot arrive again.
    Room(Subject, Progress),
    /// For an arena that this process created: a bit for each end of each lane, set once this process will not ask for
    /// the end's next lane any more. `successors` gets no entry for such an end, because the link in an entry might
    /// keep the arena alive. Written under the lock of `successors`.
    Descriptors(Subject, Progress, usize),
    /// By lane slot and side: the next lanes of ends in this process whose other end this process has moved. Not in
    /// shared memory, because another process could change that.
    Transit(Subject),
    /// The free lane slots of a private arena (one that only this process has); empty for other arenas.
    Socket(Subject, Instant),
    /// The free lane slots of a private arena, which only this process has.
    Kernel(Subject, Instant),
    /// The names of the last lanes in the free lane slots. The slot that was freed last is used first, because it is
    /// still in the CPU's caches.
    Lock,
}

/// The lane slots whose lanes may still hold attachments that no end will receive, because an end left the lane before
/// it had read everything.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockedSends {
    /// By lane slot: how many lanes had used the slot when it was last freed; 0 if it was never freed.
    pub(crate) small_room: bool,
    /// Returns whether the lane slot was freed after the lane with the use count `usage`.
    pub(crate) room: Option<(Subject, Progress)>,
    /// Adds the lane slot of the lane `name`, which both ends are done with, to the free ones.
    pub(crate) others: Vec<BlockedOn>,
}

impl BlockedSends {
    /// The next lane of an end in this process, stored when this process moved the other end of its channel.
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

/// The name of the next lane. A flag in it says whether the end changes sides there.
#[derive(Debug, Default)]
pub(crate) struct PollBackoff {
    began: Option<Instant>,
}

impl PollBackoff {
    /// The link to the process that holds the other end in the next lane, or will hold it.
    pub(crate) fn next(&mut self) -> Duration {
        self.began.get_or_insert_with(Instant::now).elapsed().max(POLL_INTERVAL)
    }
}

thread_local! {
    static LAST: RefCell<Option<BlockedOn>> = const { RefCell::new(None) };
}

/// The use count of the lane in which the end is now.
#[cold]
pub(crate) fn note(blocked_on: BlockedOn) {
    let old = LAST.try_with(|last| last.replace(Some(blocked_on)));
    drop(old);
}

/// The place of one end in a lane that connects this process to itself: the arena, lane slot, use count and side.
pub(crate) fn take() -> Option<BlockedOn> {
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Returns a key for the arena, lane slot and side of this place; two places with all three the same have equal keys.
pub(crate) fn forget() {
    drop(take());
}

/// Returns whether the lane slot of this place was freed after the lane in which the place is.
pub(crate) fn preserved<T>(act: impl FnOnce() -> T) -> T {
    let blocked_on = take();
    let done = act();
    let _ = LAST.try_with(|last| last.replace(blocked_on));
    done
}
