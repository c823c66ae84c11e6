//! Strait for C and C++.
//!
//! This crate is the C interface and nothing else: each function checks what C gives it, calls [`strait`], and turns the result
//! into a status. `include/strait/strait.h` is made from it by cbindgen, comments and all, so what a function promises is said at the
//! function, in the terms of C; a test fails while the header is not what would be made. How to build and use it is in
//! `docs/c-and-cpp.md`.
//!
//! * No panic leaves a call: [`status`] catches it.
//! * A pointer that is still good may be used from several threads, and its end closed or sent from any: see [`channel`].
//! * What is given to a call that fails is the caller's as before: see [`handle`].

// These are names of C.
#![allow(non_camel_case_types)]
// What a caller must see to is said in the header, function by function: who owns what, what may be `NULL`, which thread.
#![allow(clippy::missing_safety_doc)]

mod args;
pub mod calls;
pub mod channel;
pub mod deadline;
pub mod handle;
pub mod in_place;
pub mod meeting;
pub mod options;
pub mod peer;
pub mod pipe;
pub mod receive;
pub mod region;
pub mod send;
pub mod spawn;
pub mod status;
pub mod wait_set;
