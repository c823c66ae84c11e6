//! Measures every way to get a message from one process to another on Linux, Strait's among them.
//!
//! Every figure comes from fresh processes that were started for it and for nothing else. What they do is a [`Work`]:
//! a [`Mechanism`] (by what means), a [`Shape`] (in which manner: ping-pong, stream, ...), a size, a way of [waiting](Wait)
//! and a [`Placement`] on the processors. Waiting and placement are axes: figures of different ones are figures of
//! different products, and never stand in one column.
//!
//! * [`mechanism`] has a small module for each mechanism, behind one trait; adding one is a page.
//! * [`shape`] has the measuring loops, written once for all mechanisms, and checks every message.
//! * [`pair`] starts the processes, binds them to processors, and reads what they used up.
//! * [`suite`] names what belongs together, [`runner`] takes it in random order and in repetitions, [`results`] is what
//!   is kept of it, [`compare`] tells two of those apart.
//! * [`bars`] judges Strait: what it must reach, each figure beside a floor from the same seconds.
//!
//! The processes are this same program, executed again with a hidden subcommand: whoever embeds the laboratory calls
//! [`pair::main`] for `peer`, and [`bars::ends::main`] for `ends`.

pub mod bars;
pub mod compare;
pub mod machine;
pub mod mechanism;
pub mod pair;
pub mod progress;
pub mod results;
pub mod runner;
pub(crate) mod samples;
pub mod shape;
pub mod stats;
pub mod suite;
pub(crate) mod sys;
pub mod table;
pub mod trouble;
pub mod work;

pub use mechanism::Mechanism;
pub use pair::placement::{Cpus, Placement};
pub use results::Results;
pub use samples::{Percentiles, QUANTILES};
pub use shape::Shape;
pub use work::{Calls, Counted, Extent, Report, Spent, Wait, Work};

/// The unit tests count allocations as the program does that embeds this.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: pair::allocations::Counting = pair::allocations::Counting;
