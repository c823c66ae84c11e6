//! The wake limiter: how often a peer may wake this process for nothing.
//!
//! A peer can wake the threads that wait for the peer at any rate: with packets, through sleep words, and by
//! notifications. A wake-up that brings a message or room is useful. All other wake-ups are **idle wake-ups**, and each
//! link has a budget of them. The budget grows by a few with each useful wake-up, and by one with each millisecond. The
//! few allow for packets that arrive after their message was seen, and for insufficient room. A link without any budget
//! left is **over budget**. A thread that waits on such a link sleeps for a millisecond between looks, whatever the
//! peer does, and takes few packets at a time. A wait set does not look at the link in that time.
//!
//! A received packet makes a wake-up useful, whichever thread received the packet, unless its kind has counted as idle
//! already. So if a thread sleeps on the word of a notification area, a wake-up because of a packet is not idle.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use super::Link;
use crate::deadline::Deadline;

/// The most idle wake-ups (without anything to do) in the budget of a link. The budget of a new link is full.
const MOST: u32 = 1024;

/// The number that each wake-up with something to do adds to the link's budget of idle wake-ups.
const EARNED: u32 = 8;

/// The time for which this process does not react to a peer with an exhausted budget of idle wake-ups. The budget grows
/// by one in this time.
pub(crate) const PAUSE: Duration = Duration::from_millis(1);

/// The smallest bound on the packets plus descriptors received by one call from a link, even if the link's budget of
/// idle wake-ups is smaller.
const FEW_PACKETS: usize = 32;

/// The most received packets that the wake limiter of a link remembers as possible reasons of later wake-ups. No more
/// are needed, because a sleeping thread was woken by one of the last few packets.
const RECENT: u32 = 64;

pub(super) struct WakeLimiter {
    left: AtomicU32,
    /// The number of received packets that have not been taken as the reason of a wake-up yet, at most [`RECENT`].
    packets: AtomicU32,
    /// The time at which elapsed time was last added to the budget, in milliseconds since the link was created.
    given: AtomicU64,
}

impl Default for WakeLimiter {
    fn default() -> Self {
        Self { left: AtomicU32::new(MOST), packets: AtomicU32::new(0), given: AtomicU64::new(0) }
    }
}

// If two threads call at once, the change of one may get lost; that does no harm.
impl WakeLimiter {
    /// Adds [`EARNED`] idle wake-ups to the budget, up to [`MOST`] in all. Called after a wake-up with something to do.
    fn earn(&self) {
        let left = self.left.load(Relaxed);
        if left < MOST {
            self.left.store((left + EARNED).min(MOST), Relaxed);
        }
    }

    /// Takes an idle wake-up from the budget, after adding one for each millisecond since the last call. `now` is in
    /// milliseconds since the link was created. Returns `false` if the budget was empty, and otherwise `true`.
    fn spend(&self, now: u64) -> bool {
        let since = now.saturating_sub(self.given.load(Relaxed));
        if since > 0 {
            self.given.store(now, Relaxed);
        }
        let left = (u64::from(self.left.load(Relaxed)) + since).min(MOST.into()) as u32;
        self.left.store(left.saturating_sub(1), Relaxed);
        left > 0
    }

    /// Remembers one more received packet as a possible reason of a later wake-up, up to [`RECENT`] packets.
    fn receive(&self) {
        let packets = self.packets.load(Relaxed);
        if packets < RECENT {
            self.packets.store(packets + 1, Relaxed);
        }
    }

    /// Forgets one received packet, because the packet counts as the reason of a wake-up. Returns `false` if no packet
    /// was remembered.
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
    /// Adds [`EARNED`] to the link's budget of idle wake-ups, because a thread asleep on this link was woken and found
    /// something to do.
    #[inline]
    pub(crate) fn woken(&self) {
        self.reader.wake_limiter.earn();
    }

    /// Takes an idle wake-up from the link's budget, because the peer woke this process for nothing. Returns `true` if
    /// the budget was used up already. Always returns `false`, and takes nothing, on a local link.
    pub(crate) fn woken_for_nothing(&self) -> bool {
        if self.is_local() {
            return false;
        }
        let now = Instant::now().saturating_duration_since(self.life.born).as_millis();
        let out = !self.reader.wake_limiter.spend(u64::try_from(now).unwrap_or(u64::MAX));
        self.ledger.count_idle_wake_up(out);
        out
    }

    /// Notes a received packet of this link, as a possible reason of a later wake-up.
    #[inline]
    pub(super) fn packet_came(&self) {
        self.reader.wake_limiter.receive();
    }

    /// Returns whether a received packet can be the reason of a wake-up of a thread that does not sleep on the socket.
    /// Each packet counts as the reason of one wake-up only.
    pub(crate) fn woken_by_packet(&self) -> bool {
        self.reader.wake_limiter.account_for()
    }

    /// Takes one from the link's budget of idle wake-ups, because the peer woke the calling thread for nothing. If the
    /// budget was used up already, sleeps for [`PAUSE`], or until the deadline if that is sooner.
    pub(crate) fn throttle(&self, deadline: Deadline) {
        if self.woken_for_nothing() {
            crate::os::pause(deadline.within(PAUSE));
        }
    }

    /// Returns whether the link has used up its budget of idle wake-ups.
    pub(crate) fn is_over_wake_limit(&self) -> bool {
        self.reader.wake_limiter.is_out()
    }

    /// Returns how much one call may receive from this link: a bound on the number of packets plus the number of their
    /// descriptors. The bound is the link's budget of idle wake-ups, because each packet may turn out to be for
    /// nothing. The number is at least [`FEW_PACKETS`] and at most [`DRAIN_LIMIT`](super::reader::DRAIN_LIMIT).
    pub(super) fn drain_limit(&self) -> usize {
        (self.reader.wake_limiter.left.load(Relaxed) as usize).clamp(FEW_PACKETS, super::reader::DRAIN_LIMIT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_wakes_for_nothing_is_throttled_after_a_while_and_gets_one_a_millisecond() {
        let wake_limiter = WakeLimiter::default();
        assert!((0..MOST).all(|_| wake_limiter.spend(0)));
        assert!(!wake_limiter.spend(0) && wake_limiter.is_out());
        assert!(wake_limiter.spend(1) && !wake_limiter.spend(1));
        assert!((0..5).all(|_| wake_limiter.spend(6)) && !wake_limiter.spend(6));
    }

    #[test]
    fn who_has_something_to_show_now_and_then_is_never_out() {
        let wake_limiter = WakeLimiter::default();
        for _ in 0..100_000 {
            assert!((0..EARNED).all(|_| wake_limiter.spend(0)));
            wake_limiter.earn();
        }
    }
    #[test]
    fn as_many_are_woken_by_packets_as_came_lately() {
        let wake_limiter = WakeLimiter::default();
        assert!(!wake_limiter.account_for());
        for came in [1, 3, RECENT] {
            (0..came).for_each(|_| wake_limiter.receive());
            assert!((0..came).all(|_| wake_limiter.account_for()) && !wake_limiter.account_for());
        }
        (0..3 * RECENT).for_each(|_| wake_limiter.receive());
        assert!((0..RECENT).all(|_| wake_limiter.account_for()) && !wake_limiter.account_for());
    }
}
