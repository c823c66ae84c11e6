//! Runs the matrix: all pairs that kill, stop for a moment or interrupt processes, and a sample of the others, drawn
//! by `STRAIT_MATRIX_SEED`. The whole matrix is `./run-faults run`, and `./run-faults run -- --actions stop
//! --pause 3000`; `.ci/nightly` runs both.

use std::process::{Command, ExitCode};

/// The actions of each run, and arguments that choose its pairs. A long stop takes longer than any wait inside
/// the library, as does starvation that no error ends. So only a few such pairs are drawn.
const RUNS: [(&str, &[&str]); 5] = [
    ("kill,stop,interrupt", &["--every", "1"]),
    ("stop", &["--pause", "3000", "--draw", "48"]),
    ("fork", &["--every", "10"]),
    ("starve", &["--draw", "400"]),
    ("fail", &["--every", "5"]),
];

fn main() -> ExitCode {
    // Like other tests, this test has a name and can be filtered out.
    let filters: Vec<_> = std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    if std::env::args().any(|argument| argument == "--list")
        || !(filters.is_empty() || filters.iter().any(|filter| "matrix".contains(filter.as_str())))
    {
        return ExitCode::SUCCESS;
    }
    if !cfg!(strait_fault_points) {
        println!("The kill matrix was left out: run ./run-faults test");
        return ExitCode::SUCCESS;
    }
    let seed = std::env::var("STRAIT_MATRIX_SEED").unwrap_or_else(|_| "1".into());
    for (actions, which) in RUNS {
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait-faults"));
        // Processes that are stopped or starved, or wait for the end of another process, sleep most of the time.
        let jobs = if matches!(actions, "fork" | "stop" | "starve") { "16" } else { "6" };
        command.args(["--actions", actions, "--seed", &seed, "--deadline", "60", "--jobs", jobs]).args(which);
        if !command.status().expect("the matrix").success() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}
