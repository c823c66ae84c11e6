//! Threads that hold their signals: such a thread blocks all signals, except while it sleeps. So no signal handler runs
//! between a check of the program and the next sleep, and a signal that arrives in between ends the sleep.
//!
//! `ppoll` exchanges the signal mask of the thread for the time of the sleep, in one step with the sleep. A sleep on a
//! word (a futex) cannot exchange the mask: the thread lets its signals through right before the sleep, and the sleep
//! is short.

use std::cell::Cell;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, Timespec};
use rustix::io::Errno;

use super::signals::{Blocked, pending, set_mask};
use crate::signals;

/// The shortest limit of a sleep on a word, for a thread that holds its signals.
const SHORTEST: Duration = Duration::from_millis(20);

#[derive(Clone, Copy)]
struct Held {
    /// The signal mask of the thread before it held its signals.
    before: libc::sigset_t,
    /// The time at which the program began to wait.
    since: Instant,
}

thread_local! {
    /// The state of a thread that holds its signals; `None` for all other threads.
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// Calls `f` while the calling thread holds its signals. `since` is the time at which the program began to wait. If the
/// kernel refuses to block signals, or if the thread holds its signals already, only calls `f`.
pub(crate) fn holding<T>(since: Instant, f: impl FnOnce() -> T) -> T {
    /// Ends the holding when dropped, also while a panic unwinds.
    struct Reset;
    impl Drop for Reset {
        fn drop(&mut self) {
            HELD.set(None);
        }
    }
    if HELD.get().is_some() {
        return f();
    }
    let blocked = Blocked::all();
    let Some(before) = blocked.before() else { return f() };
    HELD.set(Some(Held { before, since }));
    // Dropped before `blocked`, which restores the mask.
    let _reset = Reset;
    f()
}

/// Sleeps as `poll` of rustix does. If the calling thread holds its signals, lets the signals through during the sleep.
pub(in crate::os) fn poll(fds: &mut [PollFd<'_>], limit: Option<&Timespec>) -> Result<usize, Errno> {
    let sleeps = limit.is_none_or(|limit| limit.tv_sec != 0 || limit.tv_nsec != 0);
    match HELD.get() {
        Some(held) if sleeps => poll_with(fds, limit, &held.before),
        _ => rustix::event::poll(fds, limit),
    }
}

fn poll_with(fds: &mut [PollFd<'_>], limit: Option<&Timespec>, mask: &libc::sigset_t) -> Result<usize, Errno> {
    const { assert!(size_of::<PollFd<'_>>() == size_of::<libc::pollfd>()) };
    let limit = limit.map(|limit| libc::timespec { tv_sec: limit.tv_sec as _, tv_nsec: limit.tv_nsec as _ });
    let limit = limit.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `PollFd` has the layout of `pollfd` in all backends of rustix. The call writes only the found events of
    // `fds`, and reads the time and the set.
    let found = unsafe { libc::ppoll(fds.as_mut_ptr().cast(), fds.len() as libc::nfds_t, limit, mask) };
    super::super::done(found as isize).map(|found| found as usize)
}

/// Returns whether the calling thread holds its signals.
pub(in crate::os) fn is_holding() -> bool {
    HELD.get().is_some()
}

/// Runs the handlers of the signals that the calling thread holds back, if there are any, and notes that signals came.
/// For loops that do not sleep.
pub(crate) fn let_through() {
    let _ = Opened::new().is_some_and(|opened| opened.came());
}

/// Lets the signals of a thread that holds its signals through until the value is dropped: for a sleep in a call that
/// cannot exchange the mask.
pub(in crate::os) struct Opened {
    held: Held,
    came: bool,
}

impl Opened {
    /// Lets the signals of the calling thread through; the handlers of pending signals run now. Returns `None` if the
    /// thread holds no signals.
    pub(in crate::os) fn new() -> Option<Self> {
        let held = HELD.get()?;
        let came = pending(&held.before);
        set_mask(&held.before);
        Some(Self { held, came })
    }

    /// Returns whether a handler ran in [`Opened::new`], and if so notes the signal for the wait of the thread. If the
    /// result is `true`, the caller must not sleep.
    pub(in crate::os) fn came(&self) -> bool {
        if self.came {
            signals::interrupted();
        }
        self.came
    }

    /// Returns the limit for a sleep that is to last for at most `limit`: at most as long as the program has waited so
    /// far. The thread notices a signal that came right before the sleep when the sleep ends.
    pub(in crate::os) fn bounded(&self, limit: Option<Duration>) -> Duration {
        let longest = self.held.since.elapsed().max(SHORTEST);
        limit.map_or(longest, |limit| limit.min(longest))
    }

    /// Notes, after a sleep of the length `bounded` has ended by its time, that a signal may have come right before the
    /// sleep.
    pub(in crate::os) fn timed_out(&self, bounded: Duration, limit: Option<Duration>) {
        if limit.is_none_or(|limit| bounded < limit) {
            signals::interrupted();
        }
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        // The thread blocks its signals again; `holding` restores the mask at its end.
        std::mem::forget(Blocked::all());
    }
}
