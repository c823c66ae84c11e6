//! Moving, fusing and closing ends of channels.
//!
//! [`moving`] takes an end out of its lane, with its unreceived messages. [`ends`] sends the end, and [`table`] encodes
//! the handles of a message. [`fuse`] joins two channels. [`in_transit`] tells the lanes the references of ends in
//! transit. [`close`](mod@close) closes an end, and [`deferred_close`] tries again if a close failed.

pub(super) mod close;
mod deferred_close;
pub(super) mod ends;
mod fuse;
pub(super) mod in_transit;
mod moving;
mod pipe_state;
pub(super) mod table;

pub(crate) use close::close;
pub use fuse::FuseError;
pub(crate) use pipe_state::PipeState;
#[cfg(any(strait_fuzzing, strait_benchmarks))]
pub(crate) use table::is_read as table_is_read;
