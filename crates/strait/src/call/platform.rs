//! The platform of a call end: the channel, the clock, and the primitives with which threads of one process wait.
//!
//! The model in `tests/model.rs` replaces this module, and runs the code of call ends under the model checker.

pub(super) use std::sync::atomic::AtomicBool;
pub(super) use std::sync::{Mutex, MutexGuard};
pub(super) use std::thread::yield_now;
pub(super) use std::thread_local;
pub(super) use std::time::Instant;

pub(super) use crate::channel::{Channel, WakeOnDrop};
pub(super) use crate::deadline::Deadline;
pub(super) use crate::deferred::postponed;
use crate::error::Error;
pub(super) use crate::os::{current_cpu, pause as sleep};
pub(super) use crate::signals::check as check_signals;
pub(super) use crate::sync::unpoisoned;
pub(super) use crate::wake::condvar::Condvar;
pub(super) use crate::wake::strict;

/// Fails if a thread that waits on `channel` must not wait any longer, because of an interruption or of a signal.
pub(super) fn check_interruption(channel: &Channel) -> Result<(), Error> {
    channel.end.interruption().check()
}

/// Fails with [`Error::Forked`] if this process is a forked child of the process that made `channel`.
pub(super) fn check_fork(channel: &Channel) -> Result<(), Error> {
    channel.end.born.check()
}
