//! Until when a call may block.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use strait::Deadline;
use strait::bindings::PerProcess;

/// Until when a call may block: nanoseconds of `CLOCK_MONOTONIC`, or `STRAIT_NOW`, or `STRAIT_NEVER`. A call whose deadline has
/// passed still does what it can do at once.
pub type strait_deadline = i64;

/// Do not block at all: a call that would have to fails with `STRAIT_WOULD_BLOCK`.
pub const STRAIT_NOW: strait_deadline = 0;

/// Block for as long as it takes.
pub const STRAIT_NEVER: strait_deadline = 0x7fff_ffff_ffff_ffff;

/// A moment by both clocks, so that no call has to look at one.
struct Epoch {
    instant: Instant,
    monotonic: i64,
}

fn monotonic() -> i64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: writes the one timespec that it is given. The clock is there on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec)
}

fn epoch() -> &'static Epoch {
    static EPOCH: PerProcess<OnceLock<Epoch>> = PerProcess::new(OnceLock::new);
    EPOCH.get().get_or_init(|| Epoch { instant: Instant::now(), monotonic: monotonic() })
}

/// As the library wants it.
#[inline]
pub(crate) fn until(deadline: strait_deadline) -> Deadline {
    match deadline {
        STRAIT_NOW => Deadline::NOW,
        STRAIT_NEVER => Deadline::NEVER,
        at => at_instant(at),
    }
}

#[cold]
fn at_instant(at: i64) -> Deadline {
    let epoch = epoch();
    // What lay before the epoch has passed, however long ago.
    let ahead = Duration::from_nanos(at.saturating_sub(epoch.monotonic).max(0) as u64);
    epoch.instant.checked_add(ahead).map_or(Deadline::NEVER, Deadline::from)
}

/// The deadline so many nanoseconds from now. A negative number is a deadline that has passed; one that is too large never
/// passes.
#[unsafe(no_mangle)]
pub extern "C" fn strait_after(nanoseconds: i64) -> strait_deadline {
    let at = monotonic().saturating_add(nanoseconds);
    // These two mean something else.
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
