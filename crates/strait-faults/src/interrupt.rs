//! A signal that comes all the time, whose handler does nothing: every call that sleeps fails with `EINTR`.

use std::time::Duration;

/// Has this process interrupted every so often.
pub(crate) fn every(interval: Duration) {
    extern "C" fn nothing(_: libc::c_int) {}
    let micros = libc::suseconds_t::from(interval.subsec_micros());
    set(micros, Some(nothing));
}

/// Has it interrupted no more.
pub(crate) fn no_more() {
    set(0, None);
}

fn set(micros: libc::suseconds_t, handler: Option<extern "C" fn(libc::c_int)>) {
    // SAFETY: the structures are plain data for which all zeroes are a value; the handler does nothing, so it may run at
    // any time.
    unsafe {
        if let Some(handler) = handler {
            let mut action: libc::sigaction = std::mem::zeroed();
            // Without SA_RESTART.
            action.sa_sigaction = handler as *const () as usize;
            libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut());
        }
        let interval = libc::timeval { tv_sec: 0, tv_usec: micros };
        let timer = libc::itimerval { it_interval: interval, it_value: interval };
        libc::setitimer(libc::ITIMER_REAL, &raw const timer, std::ptr::null_mut());
    }
}
