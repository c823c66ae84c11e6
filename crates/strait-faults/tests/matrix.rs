//! Runs the matrix: all of what kills, stops and interrupts processes, and a sample of the rest. All of it is
//! `cargo run -p strait-faults`.

use std::process::{Command, ExitCode};

/// What is run, and one of how many pairs.
const RUNS: [(&str, &str); 4] = [("kill,stop,interrupt", "1"), ("fork", "10"), ("starve", "3"), ("fail", "5")];

fn main() -> ExitCode {
    // As other tests, it has a name, and can be left out.
    let filters: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if std::env::args().any(|argument| argument == "--list")
        || !(filters.is_empty() || filters.iter().any(|filter| "matrix".contains(filter.as_str())))
    {
        return ExitCode::SUCCESS;
    }
    for (actions, every) in RUNS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait-faults"));
        // Those who look whether a process lives sleep for most of the time.
        let jobs = if actions == "fork" { "16" } else { "6" };
        command.args(["--actions", actions, "--every", every, "--deadline", "60", "--jobs", jobs]);
        if !command.status().expect("the matrix").success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
