//! Futexes, between processes (the sleeping words of a ring) and within one (the locks of an end).

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use rustix::time::{ClockId, clock_gettime};

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

/// Words to sleep on at a time.
pub(crate) const MOST_WORDS: usize = 17;

/// A word, what it is to say, and who else may sleep on it.
pub(crate) type Expected<'a> = (&'a AtomicU32, u32, Scope);

/// Sleeps while all of these, at most [`MOST_WORDS`], are as expected, for at most `limit`. Returns for any reason at any time;
/// if somebody woke it, with the index of a word by which that was done, which need not have changed for it.
/// An error says that this kernel (before Linux 5.16), or a filter, refuses it.
pub(crate) fn wait_for_any<'a>(
    words: impl IntoIterator<Item = Expected<'a>>,
    limit: Duration,
) -> Result<Option<usize>, Error> {
    let mut waits = [futex::Wait::new(); MOST_WORDS];
    let mut count = 0;
    for (word, expected, scope) in words {
        debug_assert!(count < MOST_WORDS, "too many words to sleep on");
        let Some(wait) = waits.get_mut(count) else { break };
        wait.val = expected.into();
        wait.uaddr = futex::WaitPtr::new(word.as_ptr().cast());
        wait.flags = futex::WaitFlags::SIZE_U32;
        if scope == Scope::Private {
            wait.flags |= futex::WaitFlags::PRIVATE;
        }
        count += 1;
    }
    let now = clock_gettime(ClockId::Monotonic);
    let sum = u64::from(limit.subsec_nanos()) + now.tv_nsec as u64;
    let limit = i64::try_from(limit.as_secs()).unwrap_or(i64::MAX / 2);
    let until = Timespec {
        tv_sec: now.tv_sec.saturating_add(limit).saturating_add((sum / 1_000_000_000) as i64),
        tv_nsec: (sum % 1_000_000_000) as _,
    };
    let slept = call("futex_waitv", || {
        futex::waitv(&waits[..count], futex::WaitvFlags::empty(), Some(&until), ClockId::Monotonic)
    });
    match slept {
        Ok(woken) => Ok(Some(woken)),
        Err(Errno::AGAIN | Errno::INTR | Errno::TIMEDOUT) => Ok(None),
        Err(errno) => Err(failed("futex_waitv", errno)),
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
