//! The two directions of an end.

/// One direction of a channel end: the receiving one or the sending one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receiving = 0,
    Sending = 1,
}
