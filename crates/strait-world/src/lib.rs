//! A world is five to eight processes that use the public calls of Strait at random. The processes have channels to
//! each other and exchange the ends of these channels. Meanwhile a controller kills, stops, starves and interrupts the
//! processes. Every process records each step and its result in shared memory. The controller and the other processes
//! judge the results:
//!
//! * An accepted message is delivered once, whole and in order, or its receiver is gone.
//! * A call returns *peer closed* only if the other end is gone.
//! * No call returns more than half a second after its deadline, not counting the time for which the scheduler kept
//!   the thread from running.
//! * No thread continues to sleep while there is a message or an event for it.
//! * A call returns an error of a shortage only during a shortage, and has then changed nothing.
//! * At the end no descriptor, mapping, thread or memory is left in any process.
//!
//! A seed determines a world: the number of processes, the faults, and the choices of each thread. The machine
//! decides the scheduling, so a seed repeats choices, not results. `cargo run -p strait-world --release -- --seconds
//! 60 --seed 1` runs worlds with the seeds 1, 2, and so on.

pub mod allocations;
mod clock;
mod content;
mod controller;
mod guest;
mod judge;
mod ledger;
mod own;
mod random;
mod trace;
mod trail;
mod walker;
mod worker;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

/// Runs worlds one after the other until the time is up, at least one.
#[derive(Debug, Parser)]
#[command(version, about)]
pub(crate) struct Arguments {
    /// Seed of the first world; each next world has the next number. Random by default.
    #[arg(long)]
    seed: Option<u64>,
    /// No world begins after this many seconds.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Number of processes at a time; drawn from the seed by default.
    #[arg(long)]
    workers: Option<usize>,
    /// Sum of the kinds of faults: 1 shortages of descriptors, 2 of address space, 4 kills, 8 stops, 16 signals;
    /// drawn by default.
    #[arg(long)]
    faults: Option<u32>,
    /// After a mistake, leave the processes stopped until a line is entered or the input ends.
    #[arg(long)]
    hold: bool,
    /// Folder with a file for each thread, with the last calls of the thread. The file outlives the process. The files
    /// of a world without a mistake are removed. A folder in memory, as in /dev/shm, does not slow the threads down.
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,
    /// Play a worker: the descriptor of the ledger, and the number of its life.
    #[arg(long, hide = true, num_args = 2)]
    play: Option<Vec<i32>>,
    /// Play a guest with this way of getting a channel.
    #[arg(long, hide = true)]
    guest: Option<guest::Way>,
}

/// Runs the program: the controller, or one process of a world.
pub fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(way) = arguments.guest {
        return guest::play(way);
    }
    match arguments.play.as_deref() {
        Some(&[ledger, life]) => worker::play(ledger, life, &arguments),
        _ => controller::main(&arguments),
    }
}
