//! Waits of Python threads: without the interpreter lock, and with Python's signal handlers.

use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use strait::{Deadline, Error, signals};

/// The longest sleep of the main thread. Between two sleeps the thread runs the handlers of signals that another thread
/// has taken, or that came just before the sleep. Longer than the time after which a sleeping thread of the library
/// begins to watch the process of the peer, whose socket another process may hold.
const SLICE: Duration = Duration::from_millis(250);

/// The timeout of a call, with the time at which it ends.
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
    /// Returns the timeout of a number of seconds from now, or of `None`, which never ends. A negative number is a
    /// timeout that has ended; a number that no clock can represent never ends.
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
        self.deadline(false)
    }

    /// Returns the deadline of one attempt: that of the call, or an earlier one if `sliced`.
    fn deadline(self, sliced: bool) -> Deadline {
        let slice = Instant::now() + SLICE;
        match self {
            Self::Now => Deadline::NOW,
            Self::At(at) if sliced => at.min(slice).into(),
            Self::At(at) => at.into(),
            Self::Never if sliced => slice.into(),
            Self::Never => Deadline::NEVER,
        }
    }

    /// Returns whether the time has come at which the call ends.
    fn has_passed(self) -> bool {
        match self {
            Self::Now => true,
            Self::At(at) => Instant::now() >= at,
            Self::Never => false,
        }
    }
}

/// Returns whether the calling thread is the one that runs Python's signal handlers: the first thread of the process,
/// or the thread that made this process with `fork`.
fn is_main_thread() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

/// Calls `attempt` with a deadline until it succeeds, fails, or the timeout ends. The interpreter lock is free during
/// each attempt. Python's signal handlers run between two attempts.
///
/// The outer error is an exception that a signal handler raised. Then nothing was sent, received or accepted.
pub(crate) fn wait<T: Send>(
    py: Python<'_>,
    timeout: Timeout,
    attempt: impl FnMut(Deadline) -> Result<T, Error> + Send,
) -> PyResult<Result<T, Error>> {
    wait_sliced(py, timeout, is_main_thread, attempt)
}

/// Waits as [`wait`] does, in sleeps of a tenth of a second in every thread: for waits that a close of the object by
/// another thread does not end.
pub(crate) fn wait_in_slices<T: Send>(
    py: Python<'_>,
    timeout: Timeout,
    attempt: impl FnMut(Deadline) -> Result<T, Error> + Send,
) -> PyResult<Result<T, Error>> {
    wait_sliced(py, timeout, || true, attempt)
}

fn wait_sliced<T: Send>(
    py: Python<'_>,
    timeout: Timeout,
    sliced: impl FnOnce() -> bool,
    mut attempt: impl FnMut(Deadline) -> Result<T, Error> + Send,
) -> PyResult<Result<T, Error>> {
    // Most calls need not wait: these save the look at the thread.
    match py.detach(|| attempt(Deadline::NOW)) {
        Err(Error::WouldBlock) if !matches!(timeout, Timeout::Now) => {}
        done => return Ok(done),
    }
    let sliced = sliced();
    loop {
        let deadline = timeout.deadline(sliced);
        match py.detach(|| signals::guarded(|| attempt(deadline))) {
            Err(Error::Signalled) => py.check_signals()?,
            Err(Error::TimedOut) if !timeout.has_passed() => py.check_signals()?,
            done => return Ok(done),
        }
    }
}
