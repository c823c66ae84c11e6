//! How often a peer may wake this process for nothing.
//!
//! A peer can wake whoever waits for it at any rate: with packets, through the words on which it sleeps, and by ringing.
//! What it gains by a wake-up that has something to show, a message or room, it has paid for. So wake-ups **for nothing**
//! are what a link has so many of: a few come with each that is not for nothing (a packet that comes after its message was
//! seen, room that is not enough yet), and some in each millisecond. A link that has used them up is **out of patience**:
//! who waits on it sleeps for a millisecond, whatever the peer does, before it looks again, and takes few packets at a
//! time; a wait set does not look at it as long.
//!
//! A packet that was received is worth something, whoever received it, or has cost the peer something by its kind. So who is
//! woken because one came, as those are who sleep on a board's word, is not woken for nothing.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Link;
use crate::deadline::Deadline;

/// Wake-ups for nothing that a link has at most in store.
const MOST: u32 = 1024;

/// Of them that come with each wake-up that has something to show.
const EARNED: u32 = 8;

/// How long the peer of a link that has none left is not listened to. In this time the link gets one more.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// Packets that are taken at a time from a link that has none left, or nearly none.
const FEW_PACKETS: usize = 32;

/// Packets that count at most of those for which nobody was woken so far. What a sleeper finds comes from the last few.
const RECENT: u32 = 64;

pub(super) struct Patience {
    left: AtomicU32,
    /// Packets that were received and for which nobody was woken.
    packets: AtomicU32,
    /// Milliseconds from the link's birth to the last time that it was given some.
    given: AtomicU64,
}

impl Default for Patience {
    fn default() -> Self {
        Self { left: AtomicU32::new(MOST), packets: AtomicU32::new(0), given: AtomicU64::new(0) }
    }
}

// Of two threads at once one's change may get lost, which makes no difference that matters.
impl Patience {
    /// A wake-up had something to show.
    fn earn(&self) {
        let left = self.left.load(Relaxed);
        if left < MOST {
            self.left.store((left + EARNED).min(MOST), Relaxed);
        }
    }

    /// One had nothing to show, `now` milliseconds after the birth of the link. False if there were none left.
    fn spend(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.given.load(Relaxed));
        if since > 0 {
            self.given.store(now, Relaxed);
        }
        let left = (u64::from(self.left.load(Relaxed)) + since).min(MOST.into()) as u32;
        self.left.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    /// A packet was received.
    fn receive(&self) {
        let packets = self.packets.load(Relaxed);
        if packets < RECENT {
            self.packets.store(packets + 1, Relaxed);
        }
    }

    /// Whether one was for which nobody was woken yet. Somebody was now.
    fn account_for(&self) -> bool {
        let packets = self.packets.load(Relaxed);
        self.packets.store(packets.saturating_sub(1), Relaxed);
        packets > 0
    }

    fn is_out(&self) -> bool {
        self.left.load(Relaxed) == 0
    }
}

impl Link {
    /// Somebody who slept on this link was woken, and there was something.
    #[inline]
    pub(crate) fn woken(&self) {
        self.patience.earn();
    }

    /// Somebody was woken for nothing. True if that was too often lately.
    pub(crate) fn woken_for_nothing(&self) -> bool {
        if self.is_local() {
            return false;
        }
        let now = Instant::now().saturating_duration_since(self.born).as_millis();
        let out = !self.patience.spend(u64::try_from(now).unwrap_or(u64::MAX));
        self.ledger.count_idle_wake_up(out);
        out
    }

    /// A packet was received.
    #[inline]
    pub(super) fn packet_came(&self) {
        self.patience.receive();
    }

    /// Whether a packet was received that may be why somebody was woken who does not sleep on the socket. Each is why one was.
    pub(crate) fn woken_by_packet(&self) -> bool {
        self.patience.account_for()
    }

    /// Was woken for nothing, and sleeps for a moment if that was too often lately.
    pub(crate) fn endure(&self, deadline: Deadline) {
        if self.woken_for_nothing() {
            std::thread::sleep(deadline.within(PAUSE));
        }
    }

    /// Whether it was woken for nothing too often lately.
    pub(crate) fn is_out_of_patience(&self) -> bool {
        self.patience.is_out()
    }

    /// How many packets are taken at a time: each may turn out to be for nothing. (Who is slow to wake from a pause has got
    /// a few back meanwhile, and must not take a thousand for them.)
    pub(super) fn drain_limit(&self) -> usize {
        (self.patience.left.load(Relaxed) as usize).clamp(FEW_PACKETS, super::DRAIN_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wakes_for_nothing_is_out_after_a_while_and_gets_one_a_millisecond() {
        let patience = Patience::default();
        assert!((0..MOST).all(|_| patience.spend(0)));
        assert!(!patience.spend(0) && patience.is_out());
        assert!(patience.spend(1) && !patience.spend(1));
        assert!((0..5).all(|_| patience.spend(6)) && !patience.spend(6));
    }

    #[test]
    fn who_has_something_to_show_now_and_then_is_never_out() {
        let patience = Patience::default();
        for _ in 0..100_000 {
            assert!((0..EARNED).all(|_| patience.spend(0)));
            patience.earn();
        }
    }
    #[test]
    fn as_many_are_woken_by_packets_as_came_lately() {
        let patience = Patience::default();
        assert!(!patience.account_for());
        for came in [1, 3, RECENT] {
            (0..came).for_each(|_| patience.receive());
            assert!((0..came).all(|_| patience.account_for()) && !patience.account_for());
        }
        (0..3 * RECENT).for_each(|_| patience.receive());
        assert!((0..RECENT).all(|_| patience.account_for()) && !patience.account_for());
    }
}
