//! The descriptors of a wait set that belong to the program or to a listener. The set's epoll instance reports each of
//! them once, and then again only after a look at its member.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SharedSet;
use crate::error::Error;
use crate::os::epoll::{self, Wanted};
use crate::sync::unpoisoned;
use crate::wait_set::member::Member;

/// The least key under which the epoll instance of a wait set reports a descriptor of the program or of a listener.
/// Links are reported under their numbers, which are lower.
pub(super) const FIRST_FD: u64 = 1 << 62;

impl SharedSet {
    /// Returns a number under which the wait set's epoll instance can report one more descriptor.
    pub(in crate::wait_set) fn new_fd_number(&self) -> u64 {
        self.next_fd.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the wait set's epoll instance watch the descriptor `fd`, for which `member` stands, under `number`. The
    /// instance reports the descriptor only after a look at the member. Does nothing if another thread has removed the
    /// member already.
    pub(in crate::wait_set) fn use_fd(
        &self,
        number: u64,
        fd: BorrowedFd<'_>,
        member: &Arc<Member>,
    ) -> Result<(), Error> {
        let mut fds = unpoisoned(&self.fds);
        // Checked under the lock: the removing thread marks the member as removed before it takes the lock.
        if member.is_out() {
            return Ok(());
        }
        epoll::add_once(&self.epoll, fd, number, Wanted { readable: false, writable: false })?;
        fds.insert(number, member.clone());
        drop(fds);
        // A thread that sleeps on words would not be woken by the new descriptor.
        self.words.wake(&mut unpoisoned(&self.ready));
        Ok(())
    }

    /// Makes the wait set's epoll instance report the descriptor `fd`, which it watches under `number`, once more.
    ///
    /// # Errors
    /// [`Error::NotInSet`] if another thread has removed the descriptor. The descriptor may be in the wait set again
    /// under another number; the call leaves that registration as it is.
    pub(in crate::wait_set) fn await_fd(&self, number: u64, fd: BorrowedFd<'_>, wanted: Wanted) -> Result<(), Error> {
        let fds = unpoisoned(&self.fds);
        if !fds.contains_key(&number) {
            return Err(Error::NotInSet);
        }
        epoll::watch_once(&self.epoll, fd, number, wanted)
    }

    /// Makes the wait set's epoll instance stop watching the descriptor `fd`, reported under `number`. Does nothing if
    /// the instance does not watch the descriptor under this number. Does nothing in a child of `fork`, whose epoll
    /// instance is the parent's.
    pub(in crate::wait_set) fn leave_fd(&self, number: u64, fd: BorrowedFd<'_>) {
        if self.born.is_elsewhere() {
            return;
        }
        let mut fds = unpoisoned(&self.fds);
        if fds.remove(&number).is_some() {
            epoll::remove(&self.epoll, fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;
    use crate::wait_set::member::{Subject, Terms};
    use crate::wait_set::{Interest, Mode};
    use crate::wake::watched_fd::WatchedFd;

    /// Shows that a member leaves nothing in the set if another thread removes the member during the add.
    #[test]
    fn a_descriptor_that_is_removed_before_it_is_watched_leaves_nothing() {
        let set = Arc::new(SharedSet::new().unwrap());
        let fd = WatchedFd::new(epoll::wake_fd().unwrap()).unwrap();
        let member = |number| {
            let terms = Terms::new(1, Interest::Readable, Mode::Level);
            let member = Member::new(&set, Subject::Fd { fd: Arc::downgrade(&fd), number }, terms, None);
            fd.join_set(member.clone()).unwrap();
            set.count.fetch_add(1, Ordering::Relaxed);
            member
        };
        let removed = member(FIRST_FD);
        fd.leave_set(&*removed);
        set.use_fd(FIRST_FD, fd.as_fd(), &removed).unwrap();
        assert!(unpoisoned(&set.fds).is_empty());
        let added = member(FIRST_FD + 1);
        set.use_fd(FIRST_FD + 1, fd.as_fd(), &added).unwrap();
        fd.leave_set(&*added);
        assert!(unpoisoned(&set.fds).is_empty());
    }
}
