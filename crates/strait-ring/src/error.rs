//! Errors of the calls of a ring.

use std::fmt;

/// The reason why a call of a [`Sender`](crate::Sender) or a [`Receiver`](crate::Receiver) failed. A call that fails
/// has changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The other side has closed the ring or is gone. A receiver first gets all messages sent before.
    Closed,
    /// The call was not to wait, and the ring is full (for a sender) or empty (for a receiver).
    WouldBlock,
    /// The deadline of the call has passed.
    TimedOut,
    /// The message is longer than the ring can carry; see [`Sender::longest`](crate::Sender::longest).
    TooLong,
    /// The other side wrote something to the memory that no correct process writes. The text says what was wrong. The
    /// ring cannot be used any more.
    Corrupt(&'static str),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed => f.write_str("the other side of the ring is gone"),
            Self::WouldBlock => f.write_str("the call would have to wait"),
            Self::TimedOut => f.write_str("the deadline has passed"),
            Self::TooLong => f.write_str("the message is longer than the ring can carry"),
            Self::Corrupt(what) => write!(f, "the other side wrote {what}"),
        }
    }
}

impl std::error::Error for Error {}
