//! The two directions of an end.

/// One direction of an end: that in which it receives, or that in which it sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    Receiving = 0,
    Sending = 1,
}
