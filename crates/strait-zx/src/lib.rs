//! Zircon's system calls on Linux, on top of Strait's channels.
//!
//! This crate is a C library. The headers in `include/zircon/` have the layout of Fuchsia's headers, so programs
//! written for Fuchsia's headers compile and run, in one process and across processes. The functions are in
//! [`boundary`]; `docs/reference/zircon.md` compares their behaviour with Zircon's.
//!
//! ```
//! use std::ptr::null_mut;
//! use strait_zx::boundary::*;
//! let (mut a, mut b) = (0, 0);
//! let mut buffer = [0u8; 8];
//! let mut len = 0;
//! // SAFETY: every pointer is null or to something that is there.
//! unsafe {
//!     assert_eq!(zx_channel_create(0, &mut a, &mut b), 0);
//!     assert_eq!(zx_channel_write(a, 0, b"hello".as_ptr().cast(), 5, null_mut(), 0), 0);
//!     assert_eq!(zx_channel_read(b, 0, buffer.as_mut_ptr().cast(), null_mut(), 8, 0, &mut len, null_mut()), 0);
//! }
//! assert_eq!(&buffer[..len as usize], b"hello");
//! assert_eq!(zx_handle_close(a), 0);
//! assert_eq!(zx_handle_close(b), 0);
//! ```
//!
//! # Modules
//!
//! ```text
//! boundary   the functions of the C interface: checks pointers, and turns results into statuses
//! user       access to memory of the caller
//! table      handles: numbers that stand for objects and rights
//! claim      marks entries of the table that threads use at the moment, without counting
//! object     the objects for which a handle can stand; closing, duplicating, signalling
//! channel    ends of channels: read, write, call, and how handles travel (wire)
//! event      events and eventpairs, in this process and shared with others
//! port, vmo  ports, and memory
//! observer   waits for the signals of an object
//! wait       waiting for signals
//! waiter     a thread that waits
//! hub        watches for changes by other processes, without a thread of the library
//! ```

pub mod abi;
pub mod boundary;
mod channel;
mod claim;
mod event;
mod hub;
mod koid;
mod object;
mod observer;
mod port;
mod status;
mod table;
mod time;
mod user;
mod vmo;
mod wait;
mod waiter;

use std::sync::{Mutex, MutexGuard, PoisonError};

pub use status::codes;

use abi::{ZX_DEFAULT_CHANNEL_RIGHTS, zx_handle_t, zx_status_t};

/// Locks a mutex, also if a thread has panicked while it held the lock: the protected data is consistent after each
/// step.
fn unpoisoned<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a handle of a Strait channel, for programs in Rust. The other end must become a handle too, in any process.
/// `related_koid` of both handles is 0, since neither end knows the number of the other.
///
/// # Errors
/// `ZX_ERR_NO_MEMORY` if there are too many handles.
pub fn handle_from_channel(channel: strait::Channel) -> std::result::Result<zx_handle_t, zx_status_t> {
    let chan = channel::Chan::new(channel, koid::next(), 0, 0);
    channel::adopt(chan, ZX_DEFAULT_CHANNEL_RIGHTS).map_err(status::Status::code)
}

/// Returns the options for a channel that becomes a handle later. With these options the rings grow as far as those
/// of [`zx_channel_create`](boundary::zx_channel_create).
pub fn channel_options() -> strait::Options {
    *channel::options()
}

/// Returns the number of handles in this process.
pub fn handle_count() -> usize {
    table::table().len()
}
