//! System calls that no library of safe ones has: System V and POSIX objects, signals, and the memory of other processes.
//!
//! Everything here is a thin safe door to one call. What it says of an error is the kernel's word, as an [`Errno`].

pub(crate) mod memory;
pub(crate) mod posix;
pub(crate) mod signal;
pub(crate) mod sysv;

use rustix::io::Errno;

/// What a call returned, or the error that it left behind if that was -1.
fn outcome<T: PartialEq + From<i8>>(returned: T) -> Result<T, Errno> {
    if returned == T::from(-1) { Err(last()) } else { Ok(returned) }
}

fn last() -> Errno {
    let number = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    Errno::from_raw_os_error(number)
}
