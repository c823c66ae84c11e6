//! Runs hostile worlds: `cargo run -p strait-hostile --release -- --seconds 60 --seed 1`.
//!
//! The program exits with 0 if every round passed. If a round failed, the program prints the seed, the round and the
//! trails of all processes, and exits with another number. With `--within`, attacker and victim take turns in one
//! thread, so that equal choices have equal effects in each run. `--round N` repeats round N alone.

use std::process::ExitCode;
use std::time::Duration;

use strait_hostile::world::controller::Run;
use strait_hostile::world::roles::Arguments;
use strait_hostile::world::within::Within;

fn usage() -> ExitCode {
    eprintln!(
        "hostile-world [--within] [--seconds N] [--seed N] [--round N] [--rounds N] [--only STEP,...] [--no-speed] [--told]"
    );
    ExitCode::from(2)
}

/// Plays the worlds of `run` in this thread, until the time or the number of rounds is used up, or a round fails.
fn within(run: &Run) -> ExitCode {
    let world = Within { only: run.only.clone(), told: run.told };
    // A first world, not counted, has the library create the objects that it creates once for a process.
    let _ = world.of_seed(0, u64::MAX);
    let begun = std::time::Instant::now();
    let mut rounds = 0;
    while rounds < run.rounds && begun.elapsed() < run.time {
        let round = run.first + rounds;
        if let Err(found) = world.of_seed(run.seed, round) {
            println!("within, seed {}, round {round}: {found}", run.seed);
            return ExitCode::FAILURE;
        }
        rounds += 1;
    }
    println!("within, seed {}: {rounds} rounds", run.seed);
    ExitCode::SUCCESS
}

fn main() -> ExitCode {
    // A hostile peer need not wake anybody.
    #[cfg(strait_strict_wakes)]
    strait::strict_wakes::switch_off();
    if let Some(arguments) = Arguments::from_words(std::env::args().skip(1)) {
        arguments.play();
        return ExitCode::SUCCESS;
    }
    let mut run = Run {
        seed: 1,
        time: Duration::from_secs(10),
        first: 0,
        rounds: u64::MAX,
        only: Vec::new(),
        speed: true,
        told: false,
    };
    let mut is_within = false;
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--within" => is_within = true,
            "--told" => run.told = true,
            "--no-speed" => run.speed = false,
            "--only" => {
                let Some(names) = words.next() else { return usage() };
                run.only = names.split(',').map(Into::into).collect();
            }
            "--seed" | "--seconds" | "--round" | "--rounds" => {
                let Some(number) = words.next().and_then(|word| word.parse::<u64>().ok()) else { return usage() };
                match word.as_str() {
                    "--seed" => run.seed = number,
                    "--seconds" => run.time = Duration::from_secs(number),
                    "--rounds" => run.rounds = number,
                    _ => {
                        (run.first, run.rounds) = (number, 1);
                    }
                }
            }
            _ => return usage(),
        }
    }
    if is_within {
        return within(&run);
    }
    match run.go() {
        Ok(Ok(summary)) => {
            println!("seed {}: {summary}", run.seed);
            ExitCode::SUCCESS
        }
        Ok(Err(found)) => {
            println!("{found}");
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("the controller: {error}");
            ExitCode::from(3)
        }
    }
}
