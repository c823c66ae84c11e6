//! System calls about other processes, threads, signals, and inherited descriptors.

pub(crate) mod background;
pub(crate) mod held;
pub(crate) mod signals;
pub(crate) mod spawn;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};

use super::{Named, call};
use crate::error::Error;

/// Number by which `statfs(2)` names the file system of pidfds, since Linux 6.9. On this file system each process has
/// its own inode number, which is never used again.
const PIDFS: u64 = 0x5049_4446;

/// Opens a pidfd for the process with number `pid`. Fails with [`Error::PeerClosed`] if no process has this number.
pub(crate) fn open(pid: u32) -> Result<OwnedFd, Error> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).ok_or(Error::PeerClosed)?;
    match call("pidfd_open", || rustix::process::pidfd_open(pid, PidfdFlags::empty())) {
        Err(Errno::SRCH) => Err(Error::PeerClosed),
        opened => opened.named("pidfd_open"),
    }
}

/// Returns whether the process for which `process` is a pidfd has ended.
pub(crate) fn has_ended(process: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(process, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    call("ppoll", || poll(&mut fds, Some(&now))).is_ok() && fds[0].revents().contains(PollFlags::IN)
}

/// The identity of a process, which distinguishes the process from a later process with the same pid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pid: u32,
    /// Inode number of the process's pidfd; no other process ever has this number. `None` if the kernel has no such
    /// inode numbers; then any process with the same pid counts as the same process.
    inode: Option<u64>,
}

impl Identity {
    /// Returns the identity of the process with the pid `pid`; `None` if no process has this pid now.
    pub(crate) fn of(pid: u32) -> Result<Option<Self>, Error> {
        match open(pid) {
            Ok(process) => Ok(Some(Self { pid, inode: inode(&process) })),
            Err(Error::PeerClosed) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns an identity without proof: it fits every process with the pid `pid`, now or later.
    pub(crate) fn unproven(pid: u32) -> Self {
        Self { pid, inode: None }
    }

    /// Returns the identity of the process with the pid `pid` whose pidfds have the inode number `inode`.
    pub(crate) fn with_inode(pid: u32, inode: u64) -> Self {
        Self { pid, inode: Some(inode) }
    }

    /// Opens a pidfd for the process with this identity; `None` if the process has ended.
    pub(crate) fn open(&self) -> Result<Option<OwnedFd>, Error> {
        let process = match open(self.pid) {
            Ok(process) => process,
            Err(Error::PeerClosed) => return Ok(None),
            Err(error) => return Err(error),
        };
        let other = self.inode.is_some_and(|known| inode(&process).is_some_and(|found| found != known));
        Ok((!other).then_some(process))
    }

    /// Returns whether the process is stopped, by a signal or by a debugger. `false` if the kernel cannot be asked.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        // The name of the program, in parentheses, comes before the state.
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with(['T', 't']))
    }
}

/// Returns the inode number of a pidfd; no pidfd of another process has or will have the same number. `None` if the
/// kernel has no such numbers (before Linux 6.9).
pub(crate) fn inode(process: &OwnedFd) -> Option<u64> {
    let in_pidfs = call("fstatfs", || rustix::fs::fstatfs(process)).is_ok_and(|stat| stat.f_type as u64 == PIDFS);
    if in_pidfs { Some(call("fstat", || rustix::fs::fstat(process)).ok()?.st_ino) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_itself_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let identity = Identity::of(child.id()).unwrap().unwrap();
        let process = identity.open().unwrap().unwrap();
        assert!(!has_ended(std::os::fd::AsFd::as_fd(&process)));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(has_ended(std::os::fd::AsFd::as_fd(&process)));
        assert!(identity.open().unwrap().is_none());
        assert!(Identity::of(child.id()).unwrap().is_none());
    }

    #[test]
    fn another_process_of_the_same_number_is_another() {
        let own = Identity::of(std::process::id()).unwrap().unwrap();
        if let Some(inode) = own.inode {
            let earlier = Identity { inode: Some(inode + 1), ..own };
            assert!(earlier.open().unwrap().is_none());
        }
    }
}
