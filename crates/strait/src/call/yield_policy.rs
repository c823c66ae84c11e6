//! The yield policy of a call end: when a thread lets other threads run before it sleeps.
//!
//! Before a thread of a call end sleeps, the threads that it has woken run, if they share its processor. The woken
//! threads make their next calls and sleep. Then the first thread wakes the peer once for all these calls, and often
//! its own reply is there already. Without the yield, the peer would be woken for each call, and would wake the first
//! thread for each reply.
//!
//! A thread that yields runs again when the others sleep, or when the kernel finds that they ran for long enough. If an
//! unrelated thread keeps the processor, a yield takes milliseconds; then threads do not yield for a while.

use std::time::Duration;

use super::platform::{Instant, current_cpu};

/// Number of yields (a thread lets others run before it sleeps) in a row without a run of a woken thread, after which
/// the next [`SELDOM`] yields are skipped.
const IN_VAIN: u32 = 4;
/// Number of yields (a thread lets others run before it sleeps) to skip after [`IN_VAIN`] yields in a row without a run
/// of a woken thread.
const SELDOM: u32 = 16;

/// A yield (a thread lets others run before it sleeps) of at least this time counts as long: an unrelated thread must
/// have run, because threads that make a call and sleep take less. After a long yield, the next [`LEAST`] yields are
/// skipped; after each further long yield twice as many as the last time, at most [`MOST`]. After [`SOON`] short yields
/// in a row, the number begins at [`LEAST`] again.
const LONG: Duration = Duration::from_micros(100);
/// The number of yields (a thread lets others run before it sleeps) to skip after the first long yield. A long yield
/// takes at least [`LONG`].
const LEAST: u32 = 64;
/// The greatest number of yields (a thread lets others run before it sleeps) to skip after a long yield. A long yield
/// takes at least [`LONG`].
const MOST: u32 = 4096;
/// Number of short yields (less than [`LONG`]) in a row after which earlier long yields no longer count: after the next
/// long yield, only [`LEAST`] yields are skipped.
const SOON: u32 = 64;

/// The state of the yield policy of a call end: on which processor a thread yields now (lets others run before it
/// sleeps), and how many of the next yields are skipped.
#[derive(Debug, Default)]
pub(super) struct YieldPolicy {
    /// Number of the processor, plus 1, on which a thread of the call end yields now (lets others run before sleeping);
    /// 0 if no thread yields. At most one thread of a call end yields at a time.
    cpu: u32,
    in_vain: u32,
    /// Number of coming yields (a thread lets others run before it sleeps) still to skip.
    left_out: u32,
    /// The number of yields (a thread lets others run before it sleeps) to skip, as set by the last long yield. The
    /// next long yield doubles the number; [`SOON`] short yields in a row reset it to 0.
    penalty: u32,
    /// The number of short yields (shorter than [`LONG`]) since the last long yield. The count restarts at 0 at
    /// [`SOON`].
    soon: u32,
}

/// A yield in progress (a thread lets others run before sleeping): the time of its beginning, and the number of threads
/// that were then woken and had not run yet.
#[derive(Debug)]
pub(super) struct Yield {
    begin: Instant,
    woken_threads: usize,
}

impl YieldPolicy {
    /// Returns whether yields are not being skipped now. If so, the next thread that is about to sleep lets others run
    /// first.
    pub(super) fn pay(&self) -> bool {
        self.left_out == 0
    }

    /// Returns whether a thread yields now (lets others run before it sleeps) on the processor of the calling thread.
    pub(super) fn are_here(&self) -> bool {
        self.cpu != 0 && self.cpu == current_cpu() + 1
    }

    /// Begins a yield (a thread lets others run before sleeping). `woken_threads` is the number of threads that were
    /// woken and have not run yet. Returns the yield, for [`end`](Self::end). If the yield is to be skipped, returns
    /// `None` and counts the yield as skipped.
    pub(super) fn begin(&mut self, woken_threads: usize) -> Option<Yield> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return None;
        }
        self.cpu = current_cpu() + 1;
        Some(Yield { begin: Instant::now(), woken_threads })
    }

    /// Ends the yield `pause`, and decides from its length and result how many of the next yields are skipped.
    /// `woken_threads` is the number of threads that were woken and have not run yet. The yield has paid if this number
    /// is smaller than at the beginning.
    pub(super) fn end(&mut self, pause: &Yield, woken_threads: usize) {
        self.cpu = 0;
        self.judge(pause.begin.elapsed(), woken_threads < pause.woken_threads);
    }

    fn judge(&mut self, took: Duration, paid: bool) {
        if took >= LONG {
            self.penalty = (self.penalty * 2).clamp(LEAST, MOST);
            self.left_out = self.penalty;
            self.soon = 0;
            return;
        }
        self.soon += 1;
        if self.soon >= SOON {
            (self.soon, self.penalty) = (0, 0);
        }
        if paid {
            self.in_vain = 0;
        } else {
            self.in_vain += 1;
            if self.in_vain >= IN_VAIN {
                self.left_out = SELDOM;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Calls [`YieldPolicy::begin`] until a yield is not skipped, and returns the number of skipped yields.
    fn left_out(yield_policy: &mut YieldPolicy) -> u32 {
        (0..).take_while(|_| yield_policy.begin(1).is_none()).count() as u32
    }

    #[test]
    fn what_takes_long_or_does_not_pay_is_left_out() {
        let mut yield_policy = YieldPolicy::default();
        assert_eq!(left_out(&mut yield_policy), 0);
        for _ in 0..IN_VAIN {
            assert!(yield_policy.pay());
            yield_policy.judge(Duration::ZERO, false);
        }
        assert!(!yield_policy.pay());
        assert_eq!(left_out(&mut yield_policy), SELDOM);
        // A yield was made again, and paid.
        yield_policy.judge(Duration::ZERO, true);
        assert_eq!(left_out(&mut yield_policy), 0);
        for expected in [LEAST, 2 * LEAST, 4 * LEAST] {
            yield_policy.judge(LONG, true);
            assert_eq!(left_out(&mut yield_policy), expected);
        }
        (0..20).for_each(|_| yield_policy.judge(LONG, true));
        assert_eq!(left_out(&mut yield_policy), MOST);
        (1..SOON).for_each(|_| yield_policy.judge(Duration::ZERO, true));
        yield_policy.judge(LONG, true);
        assert_eq!(left_out(&mut yield_policy), MOST);
        (0..SOON).for_each(|_| yield_policy.judge(Duration::ZERO, true));
        yield_policy.judge(LONG, true);
        assert_eq!(left_out(&mut yield_policy), LEAST);
    }
}
