//! Time, as both processes see it.

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Nanoseconds of the monotonic clock, which is one and the same in all processes.
#[inline]
pub fn now() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds of processor time that this process has used.
pub fn cpu() -> u64 {
    nanoseconds(clock_gettime(ClockId::ProcessCPUTime))
}

#[inline]
fn nanoseconds(time: Timespec) -> u64 {
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}
