//! The program `strait`: a demonstration of Strait channels, and their benchmarks.
//!
//! Every figure comes from two real processes, started for it and for nothing else. [`peer`] starts them, [`loops`] is
//! what they do, [`mechanism`] by what means; [`floors`] and [`mod@bench`] make tables of it, [`demo`] a short story.
//! [`ls`] and [`doctor`] are for whoever runs programs that use Strait: who listens, and what is wrong with a machine.
//! [`ends`] has processes and tasks of its own: up to three, and channels by the hundred thousand.

mod allocations;
mod bars;
mod bench;
mod cli;
mod clock;
mod contest;
mod control;
mod demo;
mod doctor;
mod ends;
mod floors;
mod gauge;
mod loops;
mod ls;
mod machine;
mod mechanism;
mod payload;
mod peer;
mod placement;
mod progress;
mod samples;
mod shared;
mod silence;
mod stats;
mod table;
mod trouble;
mod work;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command, Suite};
use crate::placement::Cpus;
use crate::trouble::{Result, While};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(trouble) => {
            eprintln!("strait: {trouble}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command.unwrap_or(Command::Demo(cli::Demo::default())) {
        Command::Demo(demo) => demo::run(demo.story),
        Command::Ls { directory } => ls::run(directory.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Doctor => Ok(doctor::run()),
        Command::Companion => demo::companion().map(|()| ExitCode::SUCCESS),
        Command::Ends { name, order } => ends::main(&name, &order).map(|()| ExitCode::SUCCESS),
        Command::Peer { side, work } => peer::main(&side, &work).map(|()| ExitCode::SUCCESS),
        Command::Bench(bench) => match bench.suite {
            None => bench::run(&bench.table, cpus(&bench.table.cpus)?),
            Some(Suite::Floors(bars)) => {
                let (suite, broken) = floors::run(bars.repetitions.into(), bars.only.as_deref(), cpus(&bars.cpus)?);
                print(&suite, None, broken, bars.json)
            }
            Some(Suite::Ends(bars)) => {
                let scale = if bars.quick { ends::Scale::QUICK } else { ends::Scale::FULL };
                let (suite, broken) =
                    ends::run(bars.repetitions.into(), bars.only.as_deref(), cpus(&bars.cpus)?, scale);
                print(&suite, Some(ends::HOW), broken, bars.json)
            }
        },
    }
}

fn cpus(named: &[usize]) -> Result<Cpus> {
    match named {
        [] => Cpus::allowed(),
        named => Cpus::named(named),
    }
}

/// Fails only if a run broke: a bar that is missed is a result.
fn print(suite: &bars::Suite, how: Option<&str>, broken: bool, json: bool) -> Result<ExitCode> {
    if json {
        println!("{}", serde_json::to_string_pretty(suite).doing("writing JSON")?);
    } else {
        println!("{}\n{}", suite.machine, suite.table());
        if let Some(how) = how {
            println!("\n{how}");
        }
        let foreign = suite
            .foreign
            .map_or(String::new(), |share| format!("; others used {:.0} % of the processors", 100.0 * share));
        println!("\n{}, in {:.0} s{foreign}", suite.verdict(), suite.seconds);
    }
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
