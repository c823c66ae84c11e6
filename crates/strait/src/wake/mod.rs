//! How the threads of a process sleep, and how they are woken.
//!
//! A thread that [waits](Wait) first spins, and then sleeps until the peer or another thread wakes it. An [`interrupt`]
//! ends the sleep from another thread of the process. Two threads that use one end wait for its [`lock`].

pub(crate) mod before_sleep;
pub(crate) mod condvar;
mod direction;
pub(crate) mod interrupt;
pub(crate) mod lock;
mod policy;
pub(crate) mod spin;
pub(crate) mod watched_fd;

pub(crate) use direction::Direction;
pub use policy::Wait;
