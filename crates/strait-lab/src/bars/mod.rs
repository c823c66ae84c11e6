//! Bars: figures with a target, in the form that all suites with targets use.
//!
//! A bar names the work, its figure, the figure of a *reference* (the bare means for the same work), the ratio of the
//! two, and the limit for the ratio. A bar of counts (allocations, system calls, wake-ups) has the reference 0 and no
//! ratio.
//!
//! The works of a suite run on the loops that every other figure of the laboratory uses. A suite adds only the rows:
//! which runs are compared, and with which limit.

mod bar;
mod contest;
pub mod ends;
pub mod fairness;
pub mod floors;
pub mod scale;
pub mod toolbox;

pub use self::bar::{Bar, Sense, Suite};
