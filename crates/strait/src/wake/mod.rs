//! How threads of this process sleep, and what wakes them.
//!
//! A [`waiter`] spins, and then sleeps until the peer or another thread wakes it. An [`interrupt`] ends such a sleep
//! from another thread of this process. Two threads that use one end wait for its [`lock`]. A call that must not wait
//! notes as a [`want`] what it was blocked on.

mod direction;
pub(crate) mod interrupt;
pub(crate) mod lock;
mod policy;
pub(crate) mod waiter;
pub(crate) mod want;

pub(crate) use direction::Direction;
pub use policy::Wait;
