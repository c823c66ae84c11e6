//! Letting others run before one sleeps.
//!
//! A thread that has woken others of its end, and is about to sleep until more comes, lets them run first, where they share its
//! processor. They make their next calls, and sleep; then this one wakes the peer once for all of them, and often what it waits
//! for is there. Otherwise the peer would be woken for each, and wake this one for each.
//!
//! A thread that lets others run comes back when they sleep, or when the kernel finds that they ran for long enough. Where somebody
//! keeps the processor who has nothing to do with it, that is after milliseconds; then it is not done again for a while.

use std::time::Duration;

use super::ground::{Instant, current_cpu};

/// After so many times in a row that nobody ran, it is left out for [`SELDOM`] times.
const IN_VAIN: u32 = 4;
const SELDOM: u32 = 16;

/// Longer than those who make a call and sleep take together. After that it is left out for [`LEAST`] times, and if it happens
/// again for up to [`MOST`], until [`SOON`] in a row did not take so long.
const LONG: Duration = Duration::from_micros(100);
const LEAST: u32 = 64;
const MOST: u32 = 4096;
const SOON: u32 = 64;

/// Who lets others run, and whether that pays.
#[derive(Debug, Default)]
pub(super) struct Pauses {
    /// The processor, plus 1, on which a thread does so now; 0 if none does.
    cpu: u32,
    in_vain: u32,
    /// How often it is left out yet.
    left_out: u32,
    /// How often it was left out after it took long.
    penalty: u32,
    /// How many in a row did not take long since then.
    soon: u32,
}

/// A thread lets others run.
#[derive(Debug)]
pub(super) struct Pause {
    begin: Instant,
    roused: usize,
}

impl Pauses {
    /// Whether it is not left out.
    pub(super) fn pay(&self) -> bool {
        self.left_out == 0
    }

    /// Whether a thread lets others run on this processor.
    pub(super) fn are_here(&self) -> bool {
        self.cpu != 0 && self.cpu == current_cpu() + 1
    }

    /// Begins one, unless it is left out; so many others were woken.
    pub(super) fn begin(&mut self, roused: usize) -> Option<Pause> {
        if self.left_out > 0 {
            self.left_out -= 1;
            return None;
        }
        self.cpu = current_cpu() + 1;
        Some(Pause { begin: Instant::now(), roused })
    }

    /// Ends it; so many were woken and have not run yet.
    pub(super) fn end(&mut self, pause: &Pause, roused: usize) {
        self.cpu = 0;
        self.judge(pause.begin.elapsed(), roused < pause.roused);
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

    /// How often it is left out from here on.
    fn left_out(pauses: &mut Pauses) -> u32 {
        (0..).take_while(|_| pauses.begin(1).is_none()).count() as u32
    }

    #[test]
    fn what_takes_long_or_does_not_pay_is_left_out() {
        let mut pauses = Pauses::default();
        assert_eq!(left_out(&mut pauses), 0);
        for _ in 0..IN_VAIN {
            assert!(pauses.pay());
            pauses.judge(Duration::ZERO, false);
        }
        assert!(!pauses.pay());
        assert_eq!(left_out(&mut pauses), SELDOM);
        // It was tried, and paid.
        pauses.judge(Duration::ZERO, true);
        assert_eq!(left_out(&mut pauses), 0);
        for expected in [LEAST, 2 * LEAST, 4 * LEAST] {
            pauses.judge(LONG, true);
            assert_eq!(left_out(&mut pauses), expected);
        }
        (0..20).for_each(|_| pauses.judge(LONG, true));
        assert_eq!(left_out(&mut pauses), MOST);
        (1..SOON).for_each(|_| pauses.judge(Duration::ZERO, true));
        pauses.judge(LONG, true);
        assert_eq!(left_out(&mut pauses), MOST);
        (0..SOON).for_each(|_| pauses.judge(Duration::ZERO, true));
        pauses.judge(LONG, true);
        assert_eq!(left_out(&mut pauses), LEAST);
    }
}
