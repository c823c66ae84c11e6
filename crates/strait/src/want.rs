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

/// What a try lacked. It keeps nothing open: a note may outlive what it is about.
#[derive(Clone, Debug)]
pub(crate) enum Want {
    /// Room in this lane: its reader has to take something, or the ring has to end.
    Room(Weak<Lane>),
    /// Too many descriptors were under way over the link of this lane.
    Descriptors(Weak<Lane>),
    /// The other end of this lane is in transit, or its peer has not opened its side.
    Transit(Weak<Lane>),
    /// The socket of this link was full.
    Socket(Weak<Link>),
    /// The kernel refused a packet over this link, though its socket has room.
    Kernel(Weak<Link>),
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
