//! Ends that travel, are joined, and are closed.
//!
//! [`moving`] takes an end out of its lane, with the messages that it has not received. [`ends`] sends it, and
//! [`table`] encodes which handles a message has. [`fuse`] joins two channels. [`in_transit`] tells the lanes what
//! ends that have not arrived yet refer to. [`close`](mod@close) closes an end, and [`deferred_close`] tries again if
//! that failed.

mod close;
mod deferred_close;
pub(super) mod ends;
mod fuse;
pub(super) mod in_transit;
mod moving;
mod pipe_state;
pub(super) mod table;

pub(crate) use close::close;
pub use close::set_close_reason;
pub use fuse::FuseError;
pub(crate) use pipe_state::PipeState;
#[cfg(any(strait_fuzzing, feature = "benchmarks"))]
pub(crate) use table::is_read as table_is_read;
