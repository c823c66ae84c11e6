//! The functions of the C interface.
//!
//! Each function checks its arguments (module `user`), and turns its result into a status. No panic leaves a
//! function: a panic becomes `ZX_ERR_INTERNAL`.
//!
//! # Safety
//! For every `unsafe` function here: each pointer is null, or points to as many readable or writable values as the
//! function documents, during the call. The functions detect a null pointer in place of a required value. Pointers
//! need not be aligned, and their memory may overlap.

#![allow(clippy::missing_safety_doc, clippy::not_unsafe_ptr_arg_deref)]

mod bridge;
mod channel;
mod clock;
mod handle;
mod objects;
mod port;

pub use bridge::*;
pub use channel::*;
pub use clock::*;
pub use handle::*;
pub use objects::*;
pub use port::*;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::abi::zx_status_t;
use crate::status::{Result, Status, to_c};

/// Runs the body of a function, and returns its status.
#[inline]
fn call(body: impl FnOnce() -> Result<()>) -> zx_status_t {
    // After a panic, shared state is behind a poisoned lock, or was dropped.
    to_c(catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Status::INTERNAL)))
}
