//! What an end has done so far.

use std::sync::atomic::{AtomicU64, Ordering};

/// What one end of a channel has done since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages sent.
    pub messages_sent: u64,
    /// Bytes in them.
    pub bytes_sent: u64,
    /// Messages received.
    pub messages_received: u64,
    /// Bytes in them.
    pub bytes_received: u64,
    /// How often this end had to wake the other, by a system call.
    pub wake_ups: u64,
    /// How often this end went to sleep.
    pub sleeps: u64,
    /// Messages sent outside the ring.
    pub out_of_line: u64,
    /// Of those, how many found warm memory in the pool.
    pub pool_hits: u64,
    /// How often the ring this end sends through was replaced by a larger one.
    pub grown: u64,
    /// How often sending had to wait for room.
    pub stalls: u64,
    /// How often receiving failed since this process holds as much for the peer as it may.
    pub limits_reached: u64,
}

/// A count with one writer at a time, so that counting needs no atomic addition.
#[derive(Debug, Default)]
pub(crate) struct Count(AtomicU64);

impl Count {
    #[inline]
    pub(crate) fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
