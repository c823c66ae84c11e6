//! Threads of the library's own: few, and seldom.

use std::mem::MaybeUninit;
use std::thread::Builder;

use rustix::io::Errno;

use super::call;

/// Starts a thread on which no handler of the program's runs, whatever signals are sent to the process: a handler may count on the
/// program's own threads, their stacks and what is in them. False if there is no room for a thread.
pub(crate) fn start(name: &str, stack: usize, run: impl FnOnce() + Send + 'static) -> bool {
    // It inherits what this thread blocks meanwhile. Where that is refused it is a thread as any other.
    let before = block_all();
    let started = Builder::new().name(name.into()).stack_size(stack).spawn(run).is_ok();
    if let Some(before) = before {
        unblock_but(&before);
    }
    started
}

/// Blocks all signals of this thread that can be blocked. What it had blocked before.
fn block_all() -> Option<libc::sigset_t> {
    let (mut all, mut before) = (MaybeUninit::uninit(), MaybeUninit::uninit());
    let block = || {
        // SAFETY: both are places for a set; the first is filled before it is read.
        let errno = unsafe {
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr())
        };
        if errno == 0 { Ok(()) } else { Err(Errno::from_raw_os_error(errno)) }
    };
    let blocked = call("rt_sigprocmask", block);
    // SAFETY: what was asked for was written, since it succeeded.
    blocked.ok().map(|()| unsafe { before.assume_init() })
}

/// Blocks these alone.
fn unblock_but(signals: &libc::sigset_t) {
    // SAFETY: a set that the same call has written; nothing is asked for.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, signals, std::ptr::null_mut()) };
}
