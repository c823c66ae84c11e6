//! Strait for C and C++.
//!
//! This crate is the C interface and nothing else. Each function checks its arguments, calls [`strait`], and turns the
//! result into a status. cbindgen makes `include/strait/strait.h` from this crate, with the comments, so the comment of
//! each function describes the function in the terms of C. A test fails while the header is out of date. How to build
//! and use the library is in `docs/reference/c-and-cpp.md`.
//!
//! * No panic leaves a function: [`status`] catches panics.
//! * Several threads may use one end of a channel, and any thread may close or send the end: see [`channel`].
//! * If a function fails, the caller still owns the arguments: see [`handle`].

// The types have the names used by C code.
#![allow(non_camel_case_types)]
// The header says for each function the owner of each object, the arguments that may be `NULL`, and the threads that
// may call the function.
#![allow(clippy::missing_safety_doc)]

mod args;
pub mod calls;
pub mod channel;
pub mod deadline;
pub mod halves;
pub mod handle;
pub mod in_place;
pub mod meeting;
pub mod options;
pub mod peer;
pub mod pipe;
pub mod receive;
pub mod region;
pub mod sandbox;
pub mod send;
pub mod signals;
pub mod spawn;
pub mod status;
pub mod wait_set;
