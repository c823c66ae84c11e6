//! How threads of this process sleep, and what wakes them.
//!
//! A [`waiter`] spins, and then sleeps until the peer or another thread wakes it; an [`interrupt`] ends such a sleep from another thread
//! of this process; a [`lock`] is what two threads wait for that use one end; and a [`want`] is what a call that did not wait lacked.

mod direction;
pub(crate) mod interrupt;
pub(crate) mod lock;
mod policy;
pub(crate) mod waiter;
pub(crate) mod want;

pub(crate) use direction::Direction;
pub use policy::Wait;
