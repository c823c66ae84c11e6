//! Ends that travel, are joined, and are closed.
//!
//! [`moving`] takes an end out of the lane in which it is, with what it has not received, [`ends`] sends it, and [`table`] is how a
//! message says what its handles are. [`fuse`] makes one channel of two. [`away`] knows what is kept for ends that are not here yet.
//! [`close`](mod@close) ends it all, and [`unclosed`] tries again where it could not.

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
