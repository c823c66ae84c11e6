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
    /// Number of messages that this end has sent.
    pub messages_sent: u64,
    /// Number of payload bytes in the messages that this end has sent.
    pub bytes_sent: u64,
    /// Number of messages that this end has received.
    pub messages_received: u64,
    /// Number of payload bytes in the messages that this end has received.
    pub bytes_received: u64,
    /// Number of system calls with which this end has woken threads at the other end.
    pub wake_ups: u64,
    /// How often a thread that waited on this end, for a message or for room, went to sleep.
    pub sleeps: u64,
    /// Number of messages that this end sent out of line, in a block or in sealed memory.
    pub out_of_line: u64,
    /// Number of messages that this end sent out of line in a block that the pool had free and mapped already.
    pub pool_hits: u64,
    /// Number of messages that this end sent out of line in memory that was used once, because no more memory can be
    /// kept: see [`set_pool_limit`](crate::quota::set_pool_limit) and [`Options::pool`](crate::Options::pool).
    pub used_once: u64,
    /// How often a larger ring replaced the ring through which this end sends.
    pub grown: u64,
    /// How often a send on this end found no room or reached a limit, and had to wait or to fail.
    pub stalls: u64,
    /// How often a receive on this end failed because this process held as much for the peer as the limits allow.
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
