//! A process of a measurement: start, control socket, clock, and counters.

pub mod allocations;
pub mod clock;
pub(crate) mod control;
pub(crate) mod events;
pub(crate) mod fresh;
pub(crate) mod gauge;
pub(crate) mod silence;
pub(crate) mod start;
