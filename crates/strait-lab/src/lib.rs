//! The benchmark laboratory: measures ways to send a message from one process to another on Linux, Strait's and
//! others.
//!
//! Every figure comes from fresh processes, started for this figure alone. A [`Work`] describes a measurement: a
//! [`Mechanism`] (pipe, socket, Strait, ...), a [`Shape`] (ping-pong, stream, ...), a size, a way of [waiting](Wait)
//! and a [`Placement`] on the processors. Figures with different waiting or placement are figures of different
//! products, and never stand in one column.
//!
//! * `mechanism` has a small module for each mechanism, behind one trait. A new mechanism takes about a page of code.
//!   The [`CATALOGUE`] lists the mechanisms.
//! * [`shape`] describes the tasks of the processes: the sender, the message and the time of each send. `loops` has
//!   the measuring loops, written once for all mechanisms. The loops check every message.
//! * [`process`] starts and observes a process, and [`pair`] runs the processes of a measurement.
//! * [`suite`] lists the works of each named suite, [`runner`] measures them in random order and in repetitions,
//!   [`results`] stores the figures, and [`compare`] compares two stored results.
//! * [`peers`] compares Strait with other libraries, each in a program of its own.
//! * [`bars`] judges Strait: each of its targets, with a floor measured in the same seconds.
//!
//! Each module uses only lower modules; `tests/layers.rs` has their order.
//!
//! The measuring processes are this program, executed again with a hidden subcommand. A program with the laboratory
//! calls [`pair::main`] for this subcommand, `peer`.

pub mod bars;
mod catalogue;
pub mod compare;
mod loops;
pub mod machine;
mod mechanism;
pub mod pair;
pub mod peers;
mod placement;
pub mod process;
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

pub use catalogue::{CATALOGUE, CODECS};
pub use placement::{Cpus, Placement};
pub use results::Results;
pub use samples::{Percentiles, QUANTILES};
pub use shape::Shape;
pub use work::{Calls, Counted, Extent, Mechanism, Report, Spent, Wait, Work};

/// The unit tests count allocations, like a program with this crate.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: process::allocations::Counting = process::allocations::Counting;
