//! Passing a descriptor to a child process.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

use rustix::fd::BorrowedFd;

/// A descriptor that the next child process of a command inherits. After this value is dropped, later children of the
/// command do not inherit the descriptor.
///
/// The command keeps for good the function that it runs in each new child. So the function reads the descriptor's
/// number from this value: by the time of another child, the number may belong to another file.
#[derive(Debug)]
pub(crate) struct Inherited(Arc<AtomicI32>);

/// Number that stands for no descriptor.
const NONE: RawFd = -1;

impl Inherited {
    /// Makes the next child process of `command` inherit `fd`, under the same number as in this process.
    ///
    /// The close-on-exec flag is cleared in the child only. So a process that another thread starts at the same time
    /// does not get the descriptor.
    pub(crate) fn by(command: &mut Command, fd: &OwnedFd) -> Self {
        let number = Arc::new(AtomicI32::new(fd.as_raw_fd()));
        let hook = number.clone();
        // SAFETY: the closure runs between fork and exec and makes one system call, which is async-signal-safe. The
        // closure allocates nothing and takes no lock.
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

/// Returns whether the descriptor with number `number` is open in this process and is a socket with the inode number
/// `inode`.
pub(crate) fn is_inherited(number: RawFd, inode: u64) -> bool {
    // A number below 3 is a standard stream; the standard library assumes that standard streams stay open for ever.
    if number < 3 {
        return false;
    }
    // SAFETY: the borrow serves only to ask the kernel about the descriptor. If no descriptor with this number is open,
    // the answer is EBADF.
    let probe = unsafe { BorrowedFd::borrow_raw(number) };
    crate::os::call("fstat", || rustix::fs::fstat(probe)).is_ok_and(|stat| {
        stat.st_ino == inode && rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::Socket
    })
}

/// Returns whether the descriptor with number `number` is open in this process and is a listening socket.
pub(crate) fn is_listening(number: RawFd) -> bool {
    if number < 3 {
        return false;
    }
    // SAFETY: the borrow serves only to ask the kernel what the descriptor is, as in `is_inherited`.
    crate::os::names::is_listening(unsafe { BorrowedFd::borrow_raw(number) })
}

/// Takes ownership of the inherited descriptor with number `number`. The caller must have checked that the descriptor
/// is open and has no other owner.
pub(crate) fn take_inherited(number: RawFd) -> OwnedFd {
    // SAFETY: `is_inherited` or `is_listening` has confirmed that the descriptor is the socket left for this process,
    // and the caller takes the descriptor only once. So it has no other owner in this process.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// Returns the inode number of the file that `fd` refers to; `None` if the kernel does not tell.
pub(crate) fn inode(fd: &OwnedFd) -> Option<u64> {
    crate::os::call("fstat", || rustix::fs::fstat(fd)).ok().map(|stat| stat.st_ino)
}
