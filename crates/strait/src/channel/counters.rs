//! Counts of the events of an end.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of the messages, wake-ups and other events of one end of a channel since the end was created.
///
/// ```
/// let (a, b) = strait::Channel::pair()?;
/// a.send(b"hello")?;
/// b.recv()?;
/// assert_eq!((a.counters().messages_sent, b.counters().bytes_received), (1, 5));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Number of messages sent by this end.
    pub messages_sent: u64,
    /// Number of payload bytes in messages sent by this end.
    pub bytes_sent: u64,
    /// Number of messages received by this end. A message that was [put back](crate::Channel::put_back) counts once
    /// more when it is received again.
    pub messages_received: u64,
    /// Number of payload bytes in messages received by this end. The bytes of a message that was
    /// [put back](crate::Channel::put_back) count once more when the message is received again.
    pub bytes_received: u64,
    /// Number of system calls of this end for waking threads at the other end.
    pub wake_ups: u64,
    /// How often a thread went to sleep while waiting on this end, for a message or for room.
    pub sleeps: u64,
    /// Number of messages sent out of line by this end, in a block or in sealed memory.
    pub out_of_line: u64,
    /// Number of messages sent out of line by this end in a free block of the pool, already mapped.
    pub pool_hits: u64,
    /// Number of messages sent out of line by this end in memory for a single use, because no more memory can be kept:
    /// see [`set_pool_limit`](crate::quota::set_pool_limit) and [`Options::pool`](crate::Options::pool).
    pub used_once: u64,
    /// How often a larger ring replaced this end's outgoing ring.
    pub grown: u64,
    /// How often a send on this end found no room or reached a limit, and had to wait or to fail.
    pub stalls: u64,
    /// How often a receive on this end failed because this process was at a limit for the peer.
    pub limits_reached: u64,
}

/// A counter with one writing thread at a time, so that counting needs no atomic read-modify-write operation.
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
