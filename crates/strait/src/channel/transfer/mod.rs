//! Ends that travel, are joined, and are closed.
//!
//! [`moving`] takes an end out of its lane, with the messages that it has not received. [`ends`] sends it, and
//! [`table`] encodes which handles a message has. [`fuse`] joins two channels. [`away`] finds the links held by ends
//! that have not arrived yet. [`close`](mod@close) closes an end, and [`unclosed`] tries again if that failed.

pub(super) mod away;
mod close;
pub(super) mod ends;
mod fuse;
mod moving;
pub(super) mod table;
mod unclosed;

pub(crate) use away::{Absent, Seen, close_absent};
pub(crate) use close::close;
pub use fuse::FuseError;
#[cfg(any(feature = "fuzzing", feature = "benchmarks"))]
pub(crate) use table::is_read as table_is_read;
