//! Waits of Python threads: without the interpreter lock, and with Python's signal handlers.
//!
//! Python runs the handler of a signal in the main thread, between two instructions of the thread. So a wait of the
//! main thread ends for each signal, runs the handlers, and then continues. A wait begins with a short part. The short
//! part has no further cost, but may miss a signal right before its begin. The long part behind the short part misses
//! no signal.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use strait::{Deadline, Error, signals};

use crate::sync::lock;

/// The length of the short part of a wait, longer than the library's first sleep on a word.
const SHORT: Duration = Duration::from_millis(50);

/// The timeout of a call, with the time of its end.
#[derive(Clone, Copy)]
pub(crate) enum Timeout {
    /// The call does not wait.
    Now,
    /// The call waits until this time.
    At(Instant),
    /// The call waits without a time limit.
    Never,
}

impl Timeout {
    /// Returns the timeout of a number of seconds from now, or of `None`, which never ends. A negative number is an
    /// expired timeout; a number beyond every clock never ends.
    pub(crate) fn of(seconds: Option<f64>) -> PyResult<Self> {
        match seconds {
            None => Ok(Self::Never),
            Some(seconds) if seconds.is_nan() => Err(PyValueError::new_err("the timeout is not a number (NaN)")),
            Some(0.0) => Ok(Self::Now),
            Some(seconds) => {
                let duration = Duration::try_from_secs_f64(seconds.max(0.0)).unwrap_or(Duration::MAX);
                Ok(Instant::now().checked_add(duration).map_or(Self::Never, Self::At))
            }
        }
    }

    /// Returns the deadline of the call.
    pub(crate) fn whole(self) -> Deadline {
        match self {
            Self::Now => Deadline::NOW,
            Self::At(at) => at.into(),
            Self::Never => Deadline::NEVER,
        }
    }

    /// Returns the deadline of the short part of a wait beginning now.
    fn short(self) -> Deadline {
        let end = Instant::now() + SHORT;
        match self {
            Self::Now => Deadline::NOW,
            Self::At(at) => at.min(end).into(),
            Self::Never => end.into(),
        }
    }

    /// Returns whether the time for the end of the call has come.
    fn has_passed(self) -> bool {
        match self {
            Self::Now => true,
            Self::At(at) => Instant::now() >= at,
            Self::Never => false,
        }
    }
}

/// Returns whether the calling thread runs Python's signal handlers: the first thread of the process, or the thread
/// that called `fork`.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Calls `attempt` with a deadline until it succeeds, fails, or the timeout ends. The interpreter lock is free during
/// each attempt. Python's signal handlers run between two attempts. An idle wait makes no wake-ups.
///
/// The outer error is an exception raised by a signal handler. Then nothing was sent, received or accepted.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Timeout,
    mut attempt: impl FnMut(Deadline) -> Result<T, Error> + Send,
) -> PyResult<Result<T, Error>> {
    // Most calls need not wait: immediate attempts save the look at the thread.
    match py.detach(|| attempt(Deadline::NOW)) {
        Err(Error::WouldBlock) if !matches!(timeout, Timeout::Now) => {}
        done => return Ok(done),
    }
    if !is_main_thread() {
        return Ok(py.detach(|| attempt(timeout.whole())));
    }
    let since = Instant::now();
    match py.detach(|| signals::guarded(|| attempt(timeout.short()))) {
        Err(Error::Signalled) => {}
        Err(Error::TimedOut) if !timeout.has_passed() => {}
        done => return Ok(done),
    }
    loop {
        py.check_signals()?;
        match py.detach(|| checked(since, || attempt(timeout.whole()))) {
            Ok(Err(Error::Signalled)) => {}
            done => return done,
        }
    }
}

/// Makes a last check for signals, and then calls `attempt`, which misses no signal after the check. The interpreter
/// lock must be free.
///
/// The outer error is an exception raised by a signal handler.
pub(crate) fn checked<T>(since: Instant, attempt: impl FnOnce() -> T) -> PyResult<T> {
    let raised = Mutex::new(None);
    let check = || match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(error) => {
            *lock(&raised) = Some(error);
            false
        }
    };
    match signals::guarded_if(since, check, attempt) {
        Some(done) => Ok(done),
        None => Err(lock(&raised).take().unwrap_or_else(|| PyValueError::new_err("no exception"))),
    }
}
