//! The signals that a thread blocks during some calls of the library.

use std::mem::MaybeUninit;
use std::ptr;

use rustix::io::Errno;

use crate::os::call;

/// A guard: all signals are blocked on its thread until the guard is dropped, which restores the thread's signal mask.
pub(super) struct Blocked {
    /// The signal mask that the thread had before. If the kernel refused to change the mask, `None`: dropping the guard
    /// then changes nothing.
    before: Option<libc::sigset_t>,
}

impl Blocked {
    /// Blocks on the calling thread all signals that can be blocked, until the returned guard is dropped.
    pub(in crate::os) fn all() -> Self {
        // SAFETY: `sigfillset` writes a whole set.
        Self::these(&filled(|set| unsafe { libc::sigfillset(set) }))
    }

    /// Returns the signal mask that the thread had before; `None` if the kernel refused to change the mask.
    pub(super) fn before(&self) -> Option<libc::sigset_t> {
        self.before
    }

    fn these(signals: &libc::sigset_t) -> Self {
        let mut before = MaybeUninit::uninit();
        let block = || {
            // SAFETY: `signals` is a set, and the call writes a set to `before`.
            let errno = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, signals, before.as_mut_ptr()) };
            if errno == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(errno)) }
        };
        let blocked = call("rt_sigprocmask", block);
        // SAFETY: the successful call has written the set.
        Self { before: blocked.ok().map(|()| unsafe { before.assume_init() }) }
    }
}

impl Drop for Blocked {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            set_mask(&before);
        }
    }
}

/// Makes `mask` the signal mask of the calling thread.
pub(super) fn set_mask(mask: &libc::sigset_t) {
    // SAFETY: `mask` is a set, and the old mask is not asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, ptr::null_mut()) };
}

/// Returns whether a signal is pending that `mask` does not block.
pub(super) fn pending(mask: &libc::sigset_t) -> bool {
    // SAFETY: `sigpending` writes a whole set.
    let pending = filled(|set| unsafe { libc::sigpending(set) });
    (1..=libc::SIGRTMAX()).any(|signal| has(&pending, signal) && !has(mask, signal))
}

/// The signals that the kernel sends to a thread because of the thread's own writes: SIGPIPE if no reader is left,
/// SIGXFSZ if the file would grow over `RLIMIT_FSIZE`. The write also fails with an error.
const OF_WRITES: [libc::c_int; 2] = [libc::SIGPIPE, libc::SIGXFSZ];

/// Calls `write`, and removes the signal (SIGPIPE or SIGXFSZ) that the kernel has sent to the calling thread because of
/// the write. If the program itself blocks the signal and the signal was pending before, it stays pending.
///
/// If the kernel refuses to change the thread's signal mask, the signal reaches the program.
pub(crate) fn without_signals<T, E>(write: impl FnOnce() -> Result<T, E>) -> Result<T, E> {
    let blocked = Blocked::these(&set_of(OF_WRITES));
    let ours =
        blocked.before.map(|before| set_of(OF_WRITES.into_iter().filter(|signal| !is_pending(&before, *signal))));
    let written = write();
    if let Some(ours) = ours
        && written.is_err()
    {
        take(&ours);
    }
    written
}

/// Returns whether `signal` is blocked by `mask` and is pending for the calling thread. A signal that is not blocked is
/// never pending.
fn is_pending(mask: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: `sigpending` writes a whole set.
    has(mask, signal) && has(&filled(|set| unsafe { libc::sigpending(set) }), signal)
}

/// Removes the pending signals of the calling thread that are in `signals`, without waiting. The signals must be
/// blocked.
fn take(signals: &libc::sigset_t) {
    let now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let take = || {
        // SAFETY: the arguments are a set and a time; information about the signal is not asked for.
        let signal = unsafe { libc::sigtimedwait(signals, ptr::null_mut(), &raw const now) };
        if signal > 0 { Ok(()) } else { Err(crate::os::last_errno()) }
    };
    while let Ok(()) | Err(Errno::INTR) = call("rt_sigtimedwait", take) {}
}

fn set_of(signals: impl IntoIterator<Item = libc::c_int>) -> libc::sigset_t {
    // SAFETY: `sigemptyset` writes a whole set.
    let mut set = filled(|set| unsafe { libc::sigemptyset(set) });
    for signal in signals {
        // SAFETY: `set` is a set.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

fn has(set: &libc::sigset_t, signal: libc::c_int) -> bool {
    // SAFETY: `set` is a set.
    unsafe { libc::sigismember(set, signal) == 1 }
}

/// Returns the signal set that the function `fill` writes through its pointer.
fn filled(fill: impl FnOnce(*mut libc::sigset_t) -> libc::c_int) -> libc::sigset_t {
    let mut set = MaybeUninit::zeroed();
    let _ = fill(set.as_mut_ptr());
    // SAFETY: a signal set consists of bits; the bits not written are zeroes.
    unsafe { set.assume_init() }
}
