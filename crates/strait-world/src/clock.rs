//! The time, and the time for which the scheduler kept a thread from running.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Returns the nanoseconds of `CLOCK_MONOTONIC`, the same clock in all processes.
pub(crate) fn now() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The time for which a runnable thread had no processor. The file stays open, to be read also while the process can
/// open no descriptor.
#[derive(Debug)]
pub(crate) struct Delay(File);

impl Delay {
    /// Opens the file of the calling thread.
    pub(crate) fn own() -> Self {
        Self(File::open("/proc/thread-self/schedstat").expect("/proc"))
    }

    /// Opens the file of a thread of another process; `None` if the thread is gone.
    pub(crate) fn of(pid: u32, thread: u32) -> Option<Self> {
        Some(Self(File::open(format!("/proc/{pid}/task/{thread}/schedstat")).ok()?))
    }

    /// Returns the nanoseconds for which the thread has waited for a processor so far; 0 if the thread is gone.
    pub(crate) fn nanos(&self) -> u64 {
        self.ran_and_waited().1
    }

    /// Returns the nanoseconds for which the thread has run, and for which it has waited for a processor; zeroes if the
    /// thread is gone.
    pub(crate) fn ran_and_waited(&self) -> (u64, u64) {
        let mut text = [0; 80];
        let len = self.0.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(&text[..len]).unwrap_or_default();
        let mut words = text.split_whitespace().map(|word| word.parse().unwrap_or(0));
        (words.next().unwrap_or(0), words.next().unwrap_or(0))
    }
}
