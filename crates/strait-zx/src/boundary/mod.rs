//! The calls, as C sees them.
//!
//! Each makes safe values of what it is given (module `user`), and a status of what comes of it. No panic leaves one: it
//! is `ZX_ERR_INTERNAL`.
//!
//! # Safety
//! Of every `unsafe` function here: a pointer is null, or points to as many values as the call says, which can be read, or
//! written, during the call. Null where something is needed is found out. Pointers need not be aligned, and what they
//! point to may overlap.

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

/// Runs a call.
#[inline]
fn call(body: impl FnOnce() -> Result<()>) -> zx_status_t {
    // Whatever a panic leaves behind is behind locks that say so, or was dropped.
    to_c(catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Status::INTERNAL)))
}
