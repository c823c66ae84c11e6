//! Futexes, between processes (the sleeping words of a ring) and within one (the locks of an end).

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};

use super::{call, failed};
use crate::error::Error;

/// Who else may sleep on the word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Threads of this process only.
    Private,
    /// Whoever has the memory mapped.
    Shared,
}

impl Scope {
    fn flags(self) -> Flags {
        match self {
            Scope::Private => Flags::PRIVATE,
            Scope::Shared => Flags::empty(),
        }
    }
}

/// Sleeps while `word` is `expected`, for at most `limit`. Returns for any reason at any time: the caller looks
/// at the word again. Only a kernel that refuses futexes is an error.
pub(crate) fn wait(word: &AtomicU32, expected: u32, scope: Scope, limit: Option<Duration>) -> Result<(), Error> {
    let limit = limit
        .map(|d| Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() });
    match call("futex(WAIT)", || futex::wait(word, scope.flags(), expected, limit.as_ref())) {
        Ok(()) | Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(()),
        Err(errno) => Err(failed("futex", errno)),
    }
}

/// Wakes every sleeper, if the kernel does not refuse.
pub(crate) fn wake_all(word: &AtomicU32, scope: Scope) {
    let _ = call("futex(WAKE)", || futex::wake(word, scope.flags(), i32::MAX as u32));
}

/// Wakes one sleeper. False if there was none, or the kernel refuses: no error, since the sleeper's slices are bounded.
pub(crate) fn wake_one(word: &AtomicU32, scope: Scope) -> bool {
    call("futex(WAKE)", || futex::wake(word, scope.flags(), 1)).is_ok_and(|woken| woken > 0)
}
