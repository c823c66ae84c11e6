//! Runs random worlds with the machines of links: `links --seeds N [--first SEED]`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use strait_model::world::coverage::Coverage;
use strait_model::world::random;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = arguments.iter().position(|argument| argument == name)?;
        arguments.get(at + 1)?.parse::<u64>().ok()
    };
    let (first, seeds) = (value("--first").unwrap_or(1), value("--seeds").unwrap_or(u64::MAX));
    let until = value("--seconds").map(|seconds| Instant::now() + Duration::from_secs(seconds));
    let coverage = Arc::new(Coverage::default());
    let (mut worlds, mut steps) = (0u64, 0);
    for seed in first..first.saturating_add(seeds) {
        if until.is_some_and(|until| Instant::now() >= until) {
            break;
        }
        match random::run(seed, &coverage) {
            Ok(more) => steps += more,
            Err(report) => {
                println!("{report}");
                return ExitCode::FAILURE;
            }
        }
        worlds += 1;
    }
    let (table, missing) = coverage.table();
    println!("{table}{worlds} worlds, {steps} steps; {} pairs never came about", missing.len());
    ExitCode::SUCCESS
}
