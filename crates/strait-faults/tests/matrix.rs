//! Runs the matrix: all of what kills, stops for a moment and interrupts processes, and a sample of the rest, which
//! `STRAIT_MATRIX_SEED` draws. All of it is `cargo run -p strait-faults`, and again with `--actions stop --pause 3000`.

use std::process::{Command, ExitCode};

/// What is run: which actions, and which of their pairs. A process is stopped, and starved if no error ends that, for longer than
/// the library waits for anything by itself, so that of those a few are drawn.
const RUNS: [(&str, &[&str]); 5] = [
    ("kill,stop,interrupt", &["--every", "1"]),
    ("stop", &["--pause", "3000", "--draw", "48"]),
    ("fork", &["--every", "10"]),
    ("starve", &["--draw", "400"]),
    ("fail", &["--every", "5"]),
];

fn main() -> ExitCode {
    // As other tests, it has a name, and can be left out.
    let filters: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if std::env::args().any(|argument| argument == "--list")
        || !(filters.is_empty() || filters.iter().any(|filter| "matrix".contains(filter.as_str())))
    {
        return ExitCode::SUCCESS;
    }
    let seed = std::env::var("STRAIT_MATRIX_SEED").unwrap_or_else(|_| "1".into());
    for (actions, which) in RUNS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait-faults"));
        // Processes that are stopped or starved, and those that look whether another one lives, sleep for most of the time.
        let jobs = if matches!(actions, "fork" | "stop" | "starve") { "16" } else { "6" };
        command.args(["--actions", actions, "--seed", &seed, "--deadline", "60", "--jobs", jobs]).args(which);
        if !command.status().expect("the matrix").success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
