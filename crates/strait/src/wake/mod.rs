//! How the threads of a process sleep, and how they are woken.
//!
//! A thread that [waits](Wait) first spins, and then sleeps until the peer or another thread wakes it. An [`interrupt`]
//! ends the sleep from another thread of the process. Two threads that use one end wait for its [`lock`]. Of the
//! threads that wait for one socket, one is the [`leader`].

pub(crate) mod before_sleep;
pub(crate) mod condvar;
mod direction;
pub(crate) mod interrupt;
pub(crate) mod leader;
pub(crate) mod lock;
mod policy;
pub(crate) mod spin;
pub(crate) mod strict;
#[cfg(test)]
mod tests;
pub(crate) mod watched_fd;

// What `leader` uses. The model of that module has other locks and another condition variable.
use std::sync::{Mutex, MutexGuard};

use crate::sync::unpoisoned;
use condvar::Condvar;
pub(crate) use direction::Direction;
pub use policy::Wait;
