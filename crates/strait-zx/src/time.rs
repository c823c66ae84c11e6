//! Time in nanoseconds of `CLOCK_MONOTONIC`, and deadlines.

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;

use crate::abi::{ZX_TIME_INFINITE, zx_duration_t, zx_time_t};

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
pub(crate) fn now() -> zx_time_t {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns the time of `CLOCK_BOOTTIME` in nanoseconds; this clock goes on while the machine sleeps.
pub(crate) fn boot_now() -> zx_time_t {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Returns the time that is `duration` nanoseconds from now, limited to the range of times.
pub(crate) fn after(duration: zx_duration_t) -> zx_time_t {
    now().saturating_add(duration)
}

/// The time at which a blocking function gives up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(zx_time_t);

impl Deadline {
    pub(crate) fn new(at: zx_time_t) -> Self {
        Self(at)
    }

    /// Returns whether the deadline is not positive, as is usual for functions that must not block. Reads no clock.
    pub(crate) fn is_past(self) -> bool {
        self.0 <= 0
    }

    /// Returns whether the deadline has passed. Reads the clock if needed.
    pub(crate) fn has_passed(self) -> bool {
        self.is_past() || (self.0 != ZX_TIME_INFINITE && now() >= self.0)
    }

    /// Returns the time until the deadline, 0 after the deadline; `None` for a deadline without end.
    pub(crate) fn remaining(self) -> Option<Duration> {
        match self.0 {
            ZX_TIME_INFINITE => None,
            at => Some(Duration::from_nanos(at.saturating_sub(now()).max(0) as u64)),
        }
    }
}

/// Sleeps until a time of `CLOCK_MONOTONIC`. Only yields the CPU if the time is not positive.
pub(crate) fn sleep_until(at: zx_time_t) {
    if at <= 0 {
        std::thread::yield_now();
        return;
    }
    let until = Timespec { tv_sec: at / 1_000_000_000, tv_nsec: at % 1_000_000_000 };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(Errno::INTR) {}
}
