//! A periodic signal with an empty handler, which makes every sleeping system call fail with `EINTR`.

use std::time::Duration;

/// Starts to interrupt this process every `interval` (less than one second).
pub(crate) fn every(interval: Duration) {
    extern "C" fn nothing(_: libc::c_int) {}
    let micros = libc::suseconds_t::from(interval.subsec_micros());
    set(micros, Some(nothing));
}

/// Stops interrupting this process.
pub(crate) fn no_more() {
    set(0, None);
}

fn set(micros: libc::suseconds_t, handler: Option<extern "C" fn(libc::c_int)>) {
    // SAFETY: the structures are plain data for which all zeroes are a value; the handler does nothing, so it may run
    // at any time.
    unsafe {
        if let Some(handler) = handler {
            let mut action: libc::sigaction = std::mem::zeroed();
            // SA_RESTART is not set, so system calls are not restarted.
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        }
        let interval = libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
}
