//! Hostile worlds of some seeds, each for some seconds. The command of this crate runs longer worlds.

use std::process::Command;

/// Runs rounds of a seed. Does not compare the speed of other channels, which needs an otherwise idle machine.
fn world(seed: u64, seconds: u64) {
    run(&["--seconds", &seconds.to_string(), "--seed", &seed.to_string(), "--no-speed"]);
}

fn run(arguments: &[&str]) {
    let output = Command::new(env!("CARGO_BIN_EXE_hostile-world")).args(arguments).output().expect("the command");
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}\n{out}\n{errors}", output.status);
}

#[test]
fn a_hostile_world_of_the_first_seed() {
    world(1, 6);
}

#[test]
fn a_hostile_world_of_the_second_seed() {
    world(2, 6);
}

#[test]
fn a_hostile_world_of_the_third_seed() {
    world(3, 6);
}

#[test]
fn worlds_in_one_thread() {
    run(&["--within", "--rounds", "60", "--seconds", "120", "--seed", "1"]);
}
