//! Deadlines: how long a function may block.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use strait::Deadline;
use strait::bindings::PerProcess;

/// How long a function may block: a time of `CLOCK_MONOTONIC` in nanoseconds, `STRAIT_NOW` or `STRAIT_NEVER`. If the
/// deadline has passed, a function still succeeds if it need not wait.
pub type strait_deadline = i64;

/// Do not block: a function that would have to wait fails with `STRAIT_WOULD_BLOCK`.
pub const STRAIT_NOW: strait_deadline = 0;

/// Block without a time limit.
pub const STRAIT_NEVER: strait_deadline = 0x7fff_ffff_ffff_ffff;

/// A moment by both clocks, read once, so that converting a deadline reads no clock.
struct Epoch {
    instant: Instant,
    monotonic: i64,
}

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
fn monotonic() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec to valid memory. Every Linux has `CLOCK_MONOTONIC`.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

/// Returns the moment of the first conversion of a deadline in this process.
fn epoch() -> &'static Epoch {
    static EPOCH: PerProcess<OnceLock<Epoch>> = PerProcess::new(OnceLock::new);
    EPOCH.get().get_or_init(|| Epoch { instant: Instant::now(), monotonic: monotonic() })
}

/// Converts a deadline of C to a deadline of the Rust library.
#[inline]
pub(crate) fn until(deadline: strait_deadline) -> Deadline {
    match deadline {
        STRAIT_NOW => Deadline::NOW,
        STRAIT_NEVER => Deadline::NEVER,
        at => at_instant(at),
    }
}

/// Converts a time of `CLOCK_MONOTONIC` in nanoseconds to a deadline.
#[cold]
fn at_instant(at: i64) -> Deadline {
    let epoch = epoch();
    // A time before the epoch has passed, however long ago; the epoch itself is as good.
    let ahead = Duration::from_nanos(at.saturating_sub(epoch.monotonic).max(0) as u64);
    epoch.instant.checked_add(ahead).map_or(Deadline::NEVER, Deadline::from)
}

/// Returns the deadline in `nanoseconds` from now. For a negative number the deadline has passed; for a number above
/// the range the deadline never passes.
#[unsafe(no_mangle)]
pub extern "C" fn strait_after(nanoseconds: i64) -> strait_deadline {
    let at = monotonic().saturating_add(nanoseconds);
    // 0 would mean `STRAIT_NOW`; the deadline -1 has passed.
    if at == STRAIT_NOW { -1 } else { at }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deadlines_are_those_of_the_monotonic_clock() {
        assert_eq!(until(STRAIT_NOW), Deadline::NOW);
        assert_eq!(until(STRAIT_NEVER), Deadline::NEVER);
        assert_eq!(until(strait_after(i64::MAX)), Deadline::NEVER);
        let (a, _b) = strait::Channel::pair().unwrap();
        for passed in [-1, i64::MIN, 1, strait_after(-1), strait_after(i64::MIN)] {
            assert_eq!(a.recv_by(until(passed)).unwrap_err(), strait::Error::TimedOut, "{passed}");
        }
        let begin = Instant::now();
        assert_eq!(a.recv_by(until(strait_after(20_000_000))).unwrap_err(), strait::Error::TimedOut);
        assert!(begin.elapsed() >= Duration::from_millis(19));
    }
}
