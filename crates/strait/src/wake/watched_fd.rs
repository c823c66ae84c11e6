//! A descriptor that a wait set of this process can watch: a descriptor of a listener or of the program.

use std::any::Any;
use std::fmt::Debug;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use crate::error::Error;
use crate::os::fork::{self, Born};
use crate::sync::unpoisoned;

/// The registration of a descriptor with a wait set: the interface through which the descriptor leaves the wait set.
pub(crate) trait FdWatcher: Any + Debug + Send + Sync {
    /// Returns whether the wait set of the registration still exists and is not closed.
    fn is_current(&self) -> bool;

    /// Takes `fd`, the registered descriptor, out of the wait set.
    fn take_out(&self, fd: BorrowedFd<'_>);
}

/// A descriptor with its place in a wait set. Dropping the value takes the descriptor out of the wait set, and then
/// closes the descriptor. So the descriptor is open as long as the wait set watches it.
#[derive(Debug)]
pub(crate) struct WatchedFd {
    born: Born,
    fd: OwnedFd,
    watcher: Mutex<Option<Arc<dyn FdWatcher>>>,
}

impl WatchedFd {
    /// Makes a value for `fd`, which is in no wait set.
    ///
    /// # Errors
    /// The errors of the system calls by which this process is distinguished from its forked children.
    pub(crate) fn new(fd: OwnedFd) -> Result<Arc<Self>, Error> {
        fork::arm()?;
        Ok(Arc::new(Self { born: Born::here(), fd, watcher: Mutex::default() }))
    }

    /// Stores `watcher` as the registration of this descriptor with a wait set.
    ///
    /// # Errors
    /// [`Error::InSet`] if the descriptor is in a wait set already; [`Error::Forked`].
    pub(crate) fn join_set(&self, watcher: Arc<dyn FdWatcher>) -> Result<(), Error> {
        self.born.check()?;
        let mut place = unpoisoned(&self.watcher);
        if place.as_ref().is_some_and(|old| old.is_current()) {
            return Err(Error::InSet);
        }
        *place = Some(watcher);
        Ok(())
    }

    /// Returns the registration of the descriptor with its wait set; `None` if the descriptor is in no wait set, or in
    /// a child of `fork`.
    pub(crate) fn watcher(&self) -> Option<Arc<dyn FdWatcher>> {
        if self.born.is_elsewhere() { None } else { unpoisoned(&self.watcher).clone() }
    }

    /// Takes the descriptor out of its wait set, if any. Does nothing in a child of `fork`: the wait set and its epoll
    /// instance belong to the parent.
    pub(crate) fn leave(&self) {
        if let Some(watcher) = self.watcher() {
            self.leave_set(&*watcher);
        }
    }

    /// Takes the descriptor out of its wait set, if the descriptor is still in a set with the registration `watcher`.
    pub(crate) fn leave_set(&self, watcher: &dyn FdWatcher) {
        let is_it = |current: &Arc<dyn FdWatcher>| std::ptr::addr_eq(Arc::as_ptr(current), watcher);
        if !unpoisoned(&self.watcher).as_ref().is_some_and(is_it) {
            return;
        }
        // The kernel watches a descriptor for a wait set only once. So before the place is free for another thread, the
        // kernel must no longer watch the descriptor.
        watcher.take_out(self.fd.as_fd());
        // Dropped once the lock is free.
        let _left = unpoisoned(&self.watcher).take_if(|current| is_it(current));
    }
}

impl AsFd for WatchedFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for WatchedFd {
    fn drop(&mut self) {
        self.leave();
    }
}
