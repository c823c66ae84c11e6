//! The two directions of an end.

/// One direction of a channel end: receiving or sending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receiving = 0,
    Sending = 1,
}
