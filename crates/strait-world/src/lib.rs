//! Worlds: five to eight processes that use every public call of Strait at random, with channels to each other whose ends
//! they pass around, while a controller kills, stops, starves and interrupts them. Every process writes into shared memory
//! what it is about to do and what came of it, so that the controller and the other processes can judge each result:
//!
//! * A message that was accepted is delivered once, whole and in order, or its receiver is gone.
//! * *Peer closed* is only said when the other end is gone.
//! * No call returns later than its deadline by half a second, the time that the scheduler kept the thread from running apart.
//! * No thread sleeps on while there is something for it.
//! * An error that passes is only said in a shortage, and has changed nothing.
//! * At the end no descriptor, mapping, thread or memory is left in any process.
//!
//! A world is drawn from a seed: how many processes, which faults, and what each thread chooses. The schedule is the
//! machine's, so a seed repeats choices, not results. `cargo run -p strait-world --release -- --seconds 60 --seed 1` runs worlds
//! one after the other, with the seeds 1, 2, and so on.

pub mod allocations;
mod clock;
mod content;
mod controller;
mod judge;
mod ledger;
mod own;
mod random;
mod trail;
mod walker;
mod worker;

use std::process::ExitCode;

use clap::Parser;

/// Runs worlds one after the other until the time is up, at least one.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Arguments {
    /// The first world's seed; the next has the next number. A random one by default.
    #[arg(long)]
    seed: Option<u64>,
    /// No world begins after so many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Processes at a time; drawn from the seed by default.
    #[arg(long)]
    workers: Option<usize>,
    /// Which faults there are: 1 shortages of descriptors, 2 of address space, 4 kills, 8 stops, 16 signals; drawn by default.
    #[arg(long)]
    faults: Option<u32>,
    /// Where something is wrong, leaves the processes stopped as they are until the input has a line or ends.
    #[arg(long)]
    hold: bool,
    /// Plays a worker: the descriptor of the ledger, and the number of its life.
    #[arg(long, hide = true, num_args = 2)]
    play: Option<Vec<i32>>,
}

/// The program.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.play.as_deref() {
        Some(&[ledger, life]) => worker::play(ledger, life, arguments.hold),
        _ => controller::main(&arguments),
    }
}
