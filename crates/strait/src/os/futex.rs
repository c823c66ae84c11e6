//! Futexes, both between processes (the sleep words of a ring) and within one process (the locks of an end).

use std::sync::atomic::AtomicU32;
use std::time::Duration;

use rustix::io::Errno;
use rustix::thread::futex::{self, Flags, Timespec};
use rustix::time::{ClockId, clock_gettime};

use super::{call, failed};
use crate::error::Error;
use crate::os::process::held::Opened;
use crate::signals;

/// The threads that may sleep on a word and wake its sleepers: only threads of this process, or threads of all
/// processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scope {
    /// Only threads of this process may sleep on the word.
    Private,
    /// Threads of every process with a mapping of the word's memory may sleep on the word.
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

/// Sleeps while `word` has the value `expected`, for at most `limit` (`None`: without a limit). May return at any time
/// without a reason; the caller must load the word again. Fails only if the kernel refuses futexes.
pub(crate) fn wait(word: &AtomicU32, expected: u32, scope: Scope, limit: Option<Duration>) -> Result<(), Error> {
    let opened = Opened::new();
    if opened.as_ref().is_some_and(Opened::came) {
        return Ok(());
    }
    let bounded = opened.as_ref().map(|opened| opened.bounded(limit));
    let timeout = bounded
        .or_else(|| signals::bounded(limit))
        .map(|d| Timespec { tv_sec: i64::try_from(d.as_secs()).unwrap_or(i64::MAX), tv_nsec: d.subsec_nanos().into() });
    match call("futex(WAIT)", || futex::wait(word, scope.flags(), expected, timeout.as_ref())) {
        Ok(()) | Err(Errno::AGAIN) => Ok(()),
        Err(Errno::TIMEDOUT) => {
            if let (Some(opened), Some(bounded)) = (&opened, bounded) {
                opened.timed_out(bounded, limit);
            }
            Ok(())
        }
        Err(Errno::INTR) => {
            signals::interrupted();
            Ok(())
        }
        Err(errno) => Err(failed("futex", errno)),
    }
}

/// The greatest number of words on which a thread can sleep at once.
pub(crate) const MOST_WORDS: usize = 17;

/// A word on which a thread sleeps, the value at which the thread stays asleep, and which threads may sleep on the
/// word.
pub(crate) type Expected<'a> = (&'a AtomicU32, u32, Scope);

/// Sleeps while all the given words, at most [`MOST_WORDS`], have their expected values, for at most `limit`. May
/// return at any time without a reason. If a waker ended the sleep, returns the index of the word of the wake-up; the
/// word need not have changed. Returns `None` in all other cases. Fails if the kernel (before Linux 5.16) or a filter
/// refuses the call.
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

/// Wakes all threads that sleep on `word`, unless the kernel refuses.
pub(crate) fn wake_all(word: &AtomicU32, scope: Scope) {
    let _ = call("futex(WAKE)", || futex::wake(word, scope.flags(), i32::MAX as u32));
}

/// Wakes one thread that sleeps on `word`. Returns `false` if no thread slept there, or if the kernel refused. Callers
/// need not treat a refusal as an error, because a sleeper looks again after a bounded time.
pub(crate) fn wake_one(word: &AtomicU32, scope: Scope) -> bool {
    call("futex(WAKE)", || futex::wake(word, scope.flags(), 1)).is_ok_and(|woken| woken > 0)
}
