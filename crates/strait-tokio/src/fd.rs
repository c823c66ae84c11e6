//! Descriptors watched by the current runtime.

use std::fmt;
use std::io;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::runtime::Handle;

/// The error of a call outside of a tokio runtime, if the call needs a runtime: the source of an [`io::Error`].
///
/// ```
/// let failed = strait_tokio::Reactor::new().unwrap_err();
/// assert!(failed.get_ref().is_some_and(|source| source.is::<strait_tokio::NoRuntime>()));
///
/// let runtime = tokio::runtime::Runtime::new()?;
/// let _entered = runtime.enter();
/// let reactor = strait_tokio::Reactor::new()?;
/// # drop(reactor);
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NoRuntime {
    /// The line of the program with the call.
    pub caller: &'static std::panic::Location<'static>,
}

impl fmt::Display for NoRuntime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no tokio runtime at {}: make the call in a task of a runtime, or after Runtime::enter", self.caller)
    }
}

impl std::error::Error for NoRuntime {}

/// A duplicate of a descriptor, which a runtime watches until this value is dropped.
///
/// In a child of `fork`, the drop does nothing: the child shares the epoll instance of the runtime with its parent, so
/// the parent's runtime would no longer watch the descriptor.
#[derive(Debug)]
pub(crate) struct Watched {
    /// The duplicate; `None` only while this value is dropped.
    fd: Option<AsyncFd<OwnedFd>>,
    /// The process in which the runtime watches the descriptor.
    process: u32,
}

impl Deref for Watched {
    type Target = AsyncFd<OwnedFd>;

    fn deref(&self) -> &AsyncFd<OwnedFd> {
        self.fd.as_ref().expect("dropped by value")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let fd = self.fd.take();
        if self.process != std::process::id() {
            std::mem::forget(fd);
        }
    }
}

/// Returns a duplicate of the descriptor of `object`, which the current runtime watches until the duplicate is dropped.
/// Fails with [`NoRuntime`] if there is no runtime, and panics if the runtime has no I/O.
#[track_caller]
pub(crate) fn watch(object: &impl AsFd) -> io::Result<Watched> {
    if Handle::try_current().is_err() {
        return Err(io::Error::other(NoRuntime { caller: std::panic::Location::caller() }));
    }
    // A duplicate, so that tokio can stop watching at any time.
    let fd = object.as_fd().try_clone_to_owned()?;
    // SAFETY: an `OwnedFd` gives the same open descriptor as long as it lives. The `AsyncFd` owns the `OwnedFd`, so the
    // descriptor is not closed while tokio watches it.
    let fd = unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE)? };
    Ok(Watched { fd: Some(fd), process: std::process::id() })
}
