//! System calls that the crates with safe system calls lack: System V and POSIX objects, signals, and the memory of
//! other processes.
//!
//! Every function here is a thin safe wrapper of one call, and returns the kernel's error as an [`Errno`].

pub(crate) mod memory;
pub(crate) mod posix;
pub(crate) mod shared;
pub(crate) mod signal;
pub(crate) mod sysv;

use rustix::io::Errno;

/// Returns the result of a call, or the call's `errno` for a result of -1.
fn outcome<T: PartialEq + From<i8>>(returned: T) -> Result<T, Errno> {
    if returned == T::from(-1) { Err(last()) } else { Ok(returned) }
}

fn last() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}
