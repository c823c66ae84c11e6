//! The program `strait`: a demo of Strait channels, their benchmarks, and diagnosis.
//!
//! [`demo`] shows a conversation between two processes and a few benchmarks. [`mod@bench`] is the command line of
//! `strait-lab`; `strait-lab` measures. [`ls`] and [`doctor`] are for users of programs with Strait: the first lists
//! listeners, the second checks the machine. [`shell`] writes completion scripts and manual pages. [`output`] writes
//! result files.

mod bench;
mod cli;
mod demo;
mod doctor;
mod ls;
mod output;
mod shell;

use std::process::ExitCode;

use clap::Parser;
use strait_lab::pair;
use strait_lab::process::allocations;
use strait_lab::trouble::Result;

use crate::cli::{Cli, Command};

#[global_allocator]
static ALLOCATOR: allocations::Counting = allocations::Counting;

fn main() -> ExitCode {
    end_with_the_reader();
    match run(Cli::parse()) {
        Ok(code) => code,
        Err(trouble) => {
            eprintln!("strait: {trouble}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the program exit without a message when the reader of its output has closed the pipe, as `head` does. After
/// another failure to write, such as a full disk, the program exits with the reason.
fn end_with_the_reader() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        // `println!` panics with this text if the output cannot be written.
        let text = panic.payload().downcast_ref::<String>();
        if let Some(reason) = text.and_then(|text| text.strip_prefix("failed printing to stdout: ")) {
            let closed = std::io::Error::from_raw_os_error(libc::EPIPE);
            if reason != closed.to_string() {
                eprintln!("strait: writing the output: {reason}");
            }
            std::process::exit(1);
        }
        tell(panic);
    }));
}

/// Runs the subcommand.
fn run(cli: Cli) -> Result<ExitCode> {
    match cli.command.unwrap_or(Command::Demo(cli::Demo::default())) {
        Command::Demo(demo) => demo::run(demo.story),
        Command::Bench(bench) => bench::run(*bench),
        Command::Ls(asked) => ls::run(&asked).map(|()| ExitCode::SUCCESS),
        Command::Doctor { json } => Ok(doctor::run(json)),
        Command::Completions { shell } => {
            shell::completions(shell);
            Ok(ExitCode::SUCCESS)
        }
        Command::Man { directory } => shell::manual(&directory).map(|()| ExitCode::SUCCESS),
        Command::Companion => demo::companion().map(|()| ExitCode::SUCCESS),
        Command::Peer { side, work } => pair::main(&side, &work).map(|()| ExitCode::SUCCESS),
    }
}
