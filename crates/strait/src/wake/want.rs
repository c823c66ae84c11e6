//! What a try lacked that would have had to wait: by it a waiter registers for exactly the event that ends the wait.
//!
//! A call with [`Deadline::NOW`](crate::Deadline::NOW) that fails with *would block* [notes](note) here, for its thread, what it
//! lacked. Whoever made the call [takes](take) the note right after it, and waits for that and nothing else. So the note is a
//! second result of the call: it is made where the try fails, of what was seen there, and no other thread can change it.
//!
//! | lacked | the event that ends the wait |
//! |---|---|
//! | room in the ring, or credit for a message, a block or a handle | the reader of this channel takes something |
//! | descriptors under way over the link | the reader of this channel takes something; [`Looks`] beside it |
//! | an end is in transit, or its peer has not opened its side | the mover hands it over; the peer's first packet |
//! | room in a socket | the socket is writable; [`Looks`] beside it |
//! | the lock of this end | the thread that keeps the lock lets it go |
//! | the kernel refuses: the user's limit on descriptors under way, or memory | none: a look each [`LOOK`] |

use std::cell::RefCell;
use std::sync::Weak;
use std::time::{Duration, Instant};

use crate::lane::Lane;
use crate::link::Link;

/// How long a wait lasts that no event ends, before the next look.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// How much the reader of a ring has taken, as a try of its writer has seen it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Which ring of its lane it is.
    pub(crate) generation: u16,
    /// Cells of the ring.
    pub(crate) cells: u64,
    /// Messages of the lane.
    pub(crate) messages: u64,
    /// Blocks of the pool that were given back.
    pub(crate) blocks: u64,
}

impl Progress {
    /// The lower of the two: a ring that has moved on from one of them has moved on from this.
    fn lower(self, other: Self) -> Self {
        let key = |progress: &Self| (progress.generation, progress.cells, progress.messages, progress.blocks);
        if key(&other) < key(&self) { other } else { self }
    }
}

/// What a try lacked. It keeps nothing open: a note may outlive what it is about.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    /// Room in this lane: its reader has to take more than it had taken by then, or the ring has to end.
    Room(Weak<Lane>, Progress),
    /// Too many descriptors were under way over the link of this lane, for as many more.
    Descriptors(Weak<Lane>, Progress, usize),
    /// The other end of this lane was in transit, or its peer had not opened its side.
    Transit(Weak<Lane>),
    /// The socket of this link was full.
    Socket(Weak<Link>, Instant),
    /// The kernel refused a packet over this link, though its socket has room.
    Kernel(Weak<Link>, Instant),
    /// Another thread kept the lock of the end.
    Lock,
}

/// What the tasks want that wait to send from one end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wants {
    /// Whether one waits for room for a small message.
    pub(crate) small_room: bool,
    /// The lowest of what they saw when they found no room, in the last lane of which one was told.
    pub(crate) room: Option<(Weak<Lane>, Progress)>,
    /// Whatever else they lacked.
    pub(crate) others: Vec<Want>,
}

impl Wants {
    /// Adds what one more task wants; room for a small message, if that is not known.
    pub(crate) fn add(&mut self, want: Option<Want>) {
        match (want, &mut self.room) {
            (None, _) => self.small_room = true,
            (Some(Want::Room(lane, seen)), Some((known, lowest))) if known.ptr_eq(&lane) => {
                *lowest = lowest.lower(seen)
            }
            (Some(Want::Room(lane, seen)), none @ None) => *none = Some((lane, seen)),
            (Some(want), _) => self.others.push(want),
        }
    }
}

/// Looks beside an event that tells late: they come the more seldom the longer a wait lasts.
///
/// The kernel says that a socket is writable once three quarters of its buffer are free, though a packet would find room before.
/// That other channels of a link have fewer descriptors under way tells no word of this channel.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    began: Option<Instant>,
}

impl Looks {
    /// How long the next sleep of the wait may last: as long as the wait has lasted, and [`LOOK`] at least.
    pub(crate) fn next(&mut self) -> Duration {
        self.began.get_or_insert_with(Instant::now).elapsed().max(LOOK)
    }
}

thread_local! {
    static LAST: RefCell<Option<Want>> = const { RefCell::new(None) };
}

/// Notes what the present call of this thread lacks.
#[cold]
pub(crate) fn note(want: Want) {
    let old = LAST.try_with(|last| last.replace(Some(want)));
    drop(old);
}

/// Takes what the last call of this thread that would have had to wait lacked.
pub(crate) fn take() -> Option<Want> {
    LAST.try_with(RefCell::take).ok().flatten()
}

/// Forgets what an earlier call lacked.
pub(crate) fn forget() {
    drop(take());
}

/// Does something else in the course of a call that has failed: what the call lacked stays noted.
pub(crate) fn preserved<T>(act: impl FnOnce() -> T) -> T {
    let want = take();
    let done = act();
    let _ = LAST.try_with(|last| last.replace(want));
    done
}
