//! The kill matrix: what becomes of Strait's channels when a process fails at any step.
//!
//! A **scenario** is what two to four processes do with each other. It is run once in recording, which finds every
//! [step](strait::fault) that each process comes to; then once for each process, step and **action**: at that step the
//! process is killed, stopped for a while, forked and killed, or starved of descriptors, or the system call there fails.
//! The processes check what they see themselves: nothing accepted is lost, everything comes in order and once, the right
//! errors, and nothing left open, mapped or allocated. Whoever watches them sees that none hangs.

mod actor;
mod allocations;
mod calls;
mod interrupt;
mod ledger;
mod matrix;
mod run;
mod scenarios;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, ValueEnum};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

/// What is done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// Killed.
    Kill,
    /// Stopped for a while.
    Stop,
    /// Forked, and killed: the child holds its descriptors.
    Fork,
    /// Denied any more descriptors, until it has an error from that.
    Starve,
    /// Each system call fails once with each error.
    Fail,
    /// A signal every 100 microseconds, in all processes.
    Interrupt,
}

/// Fails processes at every step, and looks what becomes of the others.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// What is done to them.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["kill", "stop", "fork", "starve", "fail", "interrupt"])]
    actions: Vec<Action>,
    /// Only these scenarios.
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Runs one pair of so many.
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Runs only so many of those pairs, drawn by the seed.
    #[arg(long)]
    draw: Option<usize>,
    /// What the pairs are drawn by.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Of a step that a process comes to more often than this, only the first, the last, and some between.
    #[arg(long, default_value_t = 1000)]
    times: u32,
    /// Pairs run at the same time.
    #[arg(long, default_value_t = 6)]
    jobs: usize,
    /// Seconds after which a process hangs.
    #[arg(long, default_value_t = 20)]
    deadline: u64,
    /// Milliseconds for which a process is stopped.
    #[arg(long, default_value_t = 4)]
    pause: u64,
    /// Runs of each scenario under interrupts.
    #[arg(long, default_value_t = 40)]
    interrupted: usize,
    /// Runs this only: the number of the process, and what happens to it, such as 0:kill:mmap:1.
    #[arg(long)]
    only: Option<String>,
    /// Runs each pair so often.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// Lists the steps of each scenario, and runs nothing else.
    #[arg(long)]
    list: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let limits = run::Limits {
        deadline: Duration::from_secs(arguments.deadline),
        pause: Duration::from_millis(arguments.pause),
    };
    match matrix::run(&arguments, limits) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}
