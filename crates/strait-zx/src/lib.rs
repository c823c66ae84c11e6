//! Zircon's calls on Linux, over Strait's channels.
//!
//! A C library whose headers, in `include/zircon/`, are laid out as Fuchsia's: what was written against those
//! compiles and runs, in one process and across processes. The calls are in [`boundary`]; what is the same as on Zircon and
//! what differs is in `docs/zircon.md`.
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
//! # Inside
//!
//! ```text
//! boundary   the calls, as C sees them: makes safe values of pointers, and statuses of results
//! user       what callers point to
//! table      handles: numbers for objects and rights
//! claim      which of them threads look at just now, without counting
//! object     what a handle can stand for; closing, duplicating, signalling
//! channel    ends of channels: read, write, call, and how handles travel (wire)
//! event      events and eventpairs, in this process and shared with others
//! port, vmo  ports, and memory
//! observer   who waits for an object's signals
//! wait       waiting for them
//! waiter     a thread that waits
//! hub        listening for what other processes do, without a thread of the library's own
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

/// A lock, whether or not a thread has panicked with it: what it protects is whole after every step.
fn unpoisoned<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a handle of one of Strait's channels, for programs in Rust that have one. The other end must be made a handle of, too, in
/// whatever process it is. `related_koid` of both is 0: neither knows the other's.
///
/// # Errors
/// `ZX_ERR_NO_MEMORY` if there are too many handles.
pub fn handle_from_channel(channel: strait::Channel) -> std::result::Result<zx_handle_t, zx_status_t> {
    let chan = channel::Chan::new(channel, koid::next(), 0, 0);
    channel::adopt(chan, ZX_DEFAULT_CHANNEL_RIGHTS).map_err(status::Status::code)
}

/// The options that a channel should have that becomes a handle: rings that grow as far as those of
/// [`zx_channel_create`](boundary::zx_channel_create) do.
pub fn channel_options() -> strait::Options {
    *channel::options()
}

/// How many handles this process has.
pub fn handle_count() -> usize {
    table::table().len()
}
