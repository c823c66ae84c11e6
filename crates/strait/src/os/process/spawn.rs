//! Handing a descriptor to a child.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fd::BorrowedFd;

/// A descriptor that a command's next child inherits; none after that.
///
/// The hook stays with the command for good, so it asks here for the number: by the time of another child the number
/// may be another file's.
#[derive(Debug)]
pub(crate) struct Inherited(Arc<AtomicI32>);

/// No descriptor.
const NONE: RawFd = -1;

impl Inherited {
    /// Lets the child that `command` starts inherit `fd` under its own number.
    ///
    /// Only the child's copy loses its close-on-exec flag, so a process started at the same time by another thread
    /// does not get it.
    pub(crate) fn by(command: &mut Command, fd: &OwnedFd) -> Self {
        let number = Arc::new(AtomicI32::new(fd.as_raw_fd()));
        let hook = number.clone();
        // SAFETY: the closure runs between fork and exec and makes one system call, which is async-signal-safe; it
        // allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || match hook.load(Ordering::Relaxed) {
                NONE => Ok(()),
                number => {
                    let fd = BorrowedFd::borrow_raw(number);
                    rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty()).map_err(std::io::Error::from)
                }
            });
        }
        Self(number)
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        self.0.store(NONE, Ordering::Relaxed);
    }
}

/// Whether a descriptor of this number is open whose file has this inode number.
pub(crate) fn is_inherited(number: RawFd, inode: u64) -> bool {
    // A number below 3 is a standard stream, which the standard library takes to be open for ever.
    if number < 3 {
        return false;
    }
    // SAFETY: borrowed only to ask the kernel what it is; if it is not open, the answer is EBADF.
    let probe = unsafe { BorrowedFd::borrow_raw(number) };
    crate::os::call("fstat", || rustix::fs::fstat(probe)).is_ok_and(|stat| {
        stat.st_ino == inode && rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket
    })
}

/// Whether a descriptor of this number is open and a socket that listens.
pub(crate) fn is_listening(number: RawFd) -> bool {
    if number < 3 {
        return false;
    }
    // SAFETY: as in `is_inherited`.
    crate::os::names::is_listening(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Takes over an inherited descriptor.
pub(crate) fn take_inherited(number: RawFd) -> OwnedFd {
    // SAFETY: `is_inherited` or `is_listening` said that this is the socket that was left here for us, and the caller takes
    // it once only; nobody else in this process owns it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// The inode number of an open file.
pub(crate) fn inode(fd: &OwnedFd) -> Option<u64> {
    crate::os::call("fstat", || rustix::fs::fstat(fd)).ok().map(|stat| stat.st_ino)
}
