//! Clocks whose values all processes of a measurement can compare.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Returns the time of the monotonic clock in nanoseconds. All processes see the same clock.
#[inline]
pub fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Returns the processor time of this process, in nanoseconds.
pub fn cpu() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
