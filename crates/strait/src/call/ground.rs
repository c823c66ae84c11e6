//! What an end of calls stands on: the channel, the clock, and what the threads of a process wait with.
//!
//! The model in `tests/model.rs` puts something else here, and runs the very same code on it under the model checker.

pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::sync::{Condvar, Mutex, MutexGuard};
pub(super) use std::thread::{sleep, yield_now};
pub(super) use std::thread_local;
pub(super) use std::time::Instant;

pub(super) use crate::channel::{Channel, WakeOnDrop};
pub(super) use crate::deadline::Deadline;
use crate::error::Error;
pub(super) use crate::os::current_cpu;
pub(super) use crate::quota::holding_back;
pub(super) use crate::sync::unpoisoned;

/// [`Error::Forked`] in any process but the one that has this end.
pub(super) fn check_fork(channel: &Channel) -> Result<(), Error> {
    channel.end.born.check()
}
