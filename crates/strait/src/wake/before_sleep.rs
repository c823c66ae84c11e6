//! One yield before a thread sleeps. If the peer shares the thread's processor, the peer can run and answer during the
//! yield, and neither side has to sleep and be woken.
//!
//! If another program computes on the same processor, the other program runs during the yield, for milliseconds. So
//! each yield is timed. After a long yield the thread leaves out its next yields; each further long yield doubles their
//! number, up to [`MOST`]. So a program that always computes there costs a thread one long yield in [`MOST`] waits.
//! [`FORGIVEN`] short yields in a row halve the number. So a program that computes now and then cannot make the thread
//! forget quickly.

use std::cell::Cell;
use std::time::{Duration, Instant};

use crate::deadline::Deadline;

/// A yield of at least this time counts as long: the peer alone would not have run for so long.
const LONG: Duration = Duration::from_micros(50);

/// Number of yields to leave out after a thread's first long yield.
const LEAST: u32 = 4;

/// The greatest number of yields that a thread leaves out after a long yield.
const MOST: u32 = 1 << 14;

/// Number of short yields in a row after which the thread halves the number of yields to leave out.
const FORGIVEN: u32 = 256;

/// After this number of yields in a row without the awaited event, a thread leaves out its next [`SELDOM`] yields.
const IN_VAIN: u32 = 4;

/// Number of yields that a thread leaves out after [`IN_VAIN`] yields without the awaited event.
const SELDOM: u32 = 16;

/// The time that must be left before the deadline for a thread to yield: another program may run for so long.
const LEFT: Duration = Duration::from_millis(20);

/// The record of one thread about its yields.
#[derive(Clone, Copy, Debug)]
struct Brake {
    /// Number of coming yields that the thread leaves out.
    left_out: u32,
    /// Number of yields that were left out after the last long yield.
    penalty: u32,
    /// Number of short yields in a row.
    short: u32,
    /// Number of short yields in a row without the awaited event.
    in_vain: u32,
}

thread_local! {
    static BRAKE: Cell<Brake> = const { Cell::new(Brake { left_out: 0, penalty: 0, short: 0, in_vain: 0 }) };
}

#[cfg(test)]
thread_local! {
    /// How often this thread has yielded.
    static YIELDS: Cell<u32> = const { Cell::new(0) };
}

/// Returns how often this thread has yielded.
#[cfg(test)]
pub(crate) fn yields() -> u32 {
    YIELDS.get()
}

impl Brake {
    /// Judges a yield that took the time `took`. `found` says whether the awaited event was there after the yield.
    fn judge(&mut self, took: Duration, found: bool) {
        if took >= LONG {
            self.penalty = (self.penalty * 2).clamp(LEAST, MOST);
            self.left_out = self.penalty;
            (self.short, self.in_vain) = (0, 0);
            return;
        }
        self.short += 1;
        if self.short >= FORGIVEN {
            (self.short, self.penalty) = (0, self.penalty / 2);
        }
        self.in_vain = if found { 0 } else { self.in_vain + 1 };
        if self.in_vain >= IN_VAIN {
            self.left_out = SELDOM;
        }
    }
}

/// Lets other threads run once, and returns whether `ready` then returns `true`. If the thread leaves yields out now,
/// or the deadline is less than [`LEFT`] away, returns `false` without yielding. Costs a system call.
pub(crate) fn yield_once(deadline: Deadline, ready: &mut impl FnMut() -> bool) -> bool {
    let yields = |cell: &Cell<Brake>| {
        let mut brake = cell.get();
        if brake.left_out > 0 {
            brake.left_out -= 1;
            cell.set(brake);
            return false;
        }
        let begin = Instant::now();
        if deadline.remaining(begin).is_some_and(|left| left < LEFT) {
            return false;
        }
        std::thread::yield_now();
        #[cfg(test)]
        YIELDS.set(YIELDS.get() + 1);
        let took = begin.elapsed();
        let found = ready();
        brake.judge(took, found);
        cell.set(brake);
        found
    };
    // A thread that is ending has no brake any more, and does not yield.
    BRAKE.try_with(yields).unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: Brake = Brake { left_out: 0, penalty: 0, short: 0, in_vain: 0 };

    #[test]
    fn long_yields_become_rare() {
        let mut brake = NEW;
        let mut waits = 0u64;
        // Each yield is long, as with a program that always computes.
        for _ in 0..100 {
            brake.judge(LONG, true);
            waits += 1 + u64::from(brake.left_out);
        }
        assert!(waits / 100 > u64::from(MOST / 2), "{waits}");
    }

    /// Shows that short yields between the long ones, as with a program that computes now and then, do not make a
    /// thread forget its long yields.
    #[test]
    fn short_yields_between_long_ones_do_not_release_the_brake() {
        let mut brake = NEW;
        let (mut waits, mut long) = (0u64, 0u64);
        while waits < 1_000_000 {
            brake.judge(LONG, true);
            long += 1;
            waits += 1 + u64::from(brake.left_out);
            for _ in 0..FORGIVEN / 2 {
                brake.judge(Duration::ZERO, true);
                waits += 1;
            }
        }
        assert!(long < 100, "{long} of {waits}");
    }

    #[test]
    fn a_thread_yields_often_again_once_no_yield_is_long_any_more() {
        let mut brake = NEW;
        (0..30).for_each(|_| brake.judge(LONG, true));
        assert_eq!(brake.left_out, MOST);
        (0..20 * FORGIVEN).for_each(|_| brake.judge(Duration::ZERO, true));
        brake.judge(LONG, true);
        assert_eq!(brake.left_out, LEAST);
    }

    #[test]
    fn yields_that_bring_nothing_are_left_out() {
        let mut brake = NEW;
        (1..IN_VAIN).for_each(|_| brake.judge(Duration::ZERO, false));
        assert_eq!(brake.left_out, 0);
        brake.judge(Duration::ZERO, false);
        assert_eq!(brake.left_out, SELDOM);
    }

    #[test]
    fn no_thread_yields_shortly_before_its_deadline() {
        let mut looks = 0;
        let mut ready = || {
            looks += 1;
            true
        };
        assert!(!yield_once(Deadline::after(LEFT / 2), &mut ready));
        assert!(yield_once(Deadline::NEVER, &mut ready));
        assert_eq!(looks, 1);
    }
}
