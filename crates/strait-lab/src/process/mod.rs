//! A process of a measurement: how it is started, told what to do, and observed.

pub mod allocations;
pub mod clock;
pub(crate) mod control;
pub(crate) mod events;
pub(crate) mod fresh;
pub(crate) mod gauge;
pub(crate) mod silence;
pub(crate) mod start;
