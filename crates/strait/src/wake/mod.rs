//! How threads of this process sleep, and what wakes them.
//!
//! A [`waiter`] spins, and then sleeps until the peer or another thread wakes it. An [`interrupt`] ends such a sleep
//! from another thread of this process. Two threads that use one end wait for its [`lock`].

mod direction;
pub(crate) mod interrupt;
pub(crate) mod lock;
mod policy;
pub(crate) mod waiter;

pub(crate) use direction::Direction;
pub use policy::Wait;
