//! Time: nanoseconds of `CLOCK_MONOTONIC`, and deadlines in them.

use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::Timespec;

use crate::abi::{ZX_TIME_INFINITE, zx_duration_t, zx_time_t};

/// Now.
pub(crate) fn now() -> zx_time_t {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Now, on the clock that goes on while the machine sleeps.
pub(crate) fn boot_now() -> zx_time_t {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// So long from now; what is too far is never, or long ago.
pub(crate) fn after(duration: zx_duration_t) -> zx_time_t {
    now().saturating_add(duration)
}

/// Until when a call may block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(zx_time_t);

impl Deadline {
    pub(crate) fn new(at: zx_time_t) -> Self {
        Self(at)
    }

    /// Whether it was over before there was time, as is usual in calls that must not block. Asks no clock.
    pub(crate) fn is_past(self) -> bool {
        self.0 <= 0
    }

    pub(crate) fn has_passed(self) -> bool {
        self.is_past() || (self.0 != ZX_TIME_INFINITE && now() >= self.0)
    }

    /// What is left; `None` if it never passes.
    pub(crate) fn remaining(self) -> Option<Duration> {
        match self.0 {
            ZX_TIME_INFINITE => None,
            at => Some(Duration::from_nanos(at.saturating_sub(now()).max(0) as u64)),
        }
    }
}

/// Sleeps until then.
pub(crate) fn sleep_until(at: zx_time_t) {
    if at <= 0 {
        std::thread::yield_now();
        return;
    }
    let until = Timespec { tv_sec: at / 1_000_000_000, tv_nsec: at % 1_000_000_000 };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(Errno::INTR) {}
}
