//! The kill matrix: tests the fate of Strait's channels when a process fails at any step.
//!
//! A **scenario** is a short program for up to four processes. The first run of a scenario has no fault, and finds
//! every [step](strait::fault) of each process. Then the scenario runs once for each process, step and **action**: at
//! that step the process is killed, stopped for a while, forked and killed, or starved of descriptors, or the system
//! call there fails. The processes themselves check that no accepted message is lost, that messages arrive in order
//! and once, that errors are the right ones, and that nothing is left open, mapped or allocated. The watching process
//! checks that no process hangs.

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

/// An action: a failure that the matrix causes in a process at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Action {
    /// The process is killed.
    Kill,
    /// The process is stopped for a while (`--pause`).
    Stop,
    /// The process forks and is killed; the child keeps copies of all descriptors.
    Fork,
    /// The process gets no more descriptors until a call has failed for lack of them.
    Starve,
    /// Each system call fails once with each possible error.
    Fail,
    /// A signal interrupts all processes every 100 microseconds.
    Interrupt,
}

/// Makes processes fail at every step, and checks how the others fare.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Arguments {
    /// The actions to run.
    #[arg(long, value_enum, value_delimiter = ',', default_values = ["kill", "stop", "fork", "starve", "fail", "interrupt"])]
    actions: Vec<Action>,
    /// For `fail`, only these errors, such as EINTR.
    #[arg(long, value_delimiter = ',')]
    errors: Vec<String>,
    /// Only these scenarios.
    #[arg(long, value_delimiter = ',')]
    scenarios: Vec<String>,
    /// Run only every Nth pair of step and action.
    #[arg(long, default_value_t = 1)]
    every: usize,
    /// Only this many pairs, drawn by the seed.
    #[arg(long)]
    draw: Option<usize>,
    /// Random seed for the drawn pairs.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// For a more frequent step, the matrix uses the first time, the last, and some between.
    #[arg(long, default_value_t = 1000)]
    times: u32,
    /// Number of pairs run at the same time.
    #[arg(long, default_value_t = 6)]
    jobs: usize,
    /// Seconds until a process counts as hanging.
    #[arg(long, default_value_t = 20)]
    deadline: u64,
    /// Milliseconds for stopping a process.
    #[arg(long, default_value_t = 4)]
    pause: u64,
    /// Number of runs of each scenario under interrupts.
    #[arg(long, default_value_t = 40)]
    interrupted: usize,
    /// Only this fault: the number of the process, and the plan, such as 0:kill:mmap:1.
    #[arg(long)]
    only: Option<String>,
    /// Number of runs of each pair.
    #[arg(long, default_value_t = 1)]
    repeat: usize,
    /// List the steps of each scenario, and run nothing else.
    #[arg(long)]
    list: bool,
}

/// Runs the kill matrix, or the process of a scenario.
pub(crate) fn main() -> ExitCode {
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
