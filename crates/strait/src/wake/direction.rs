//! The two directions of an end.

/// One direction of an end: the one in which it receives, or the one in which it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receiving = 0,
    Sending = 1,
}
