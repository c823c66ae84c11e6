//! A few worlds, each for a few seconds. Longer runs, and other seeds, are `cargo run -p strait-world --release`.

use std::process::Command;

/// Seeds, and the faults of each world: see `--help`. The last world has faults of every kind, also shortages.
const WORLDS: [(u64, u32); 3] = [(1, 0), (2, 28), (3, 31)];

#[test]
fn in_a_few_worlds_the_books_balance() {
    for (seed, faults) in WORLDS {
        let (seed, faults) = (seed.to_string(), faults.to_string());
        let mut command = Command::new(env!("CARGO_BIN_EXE_strait-world"));
        command.args(["--seconds", "0", "--seed", &seed, "--faults", &faults]);
        let output = command.output().expect("a world");
        let said = String::from_utf8_lossy(&output.stdout);
        println!("{said}");
        assert!(output.status.success(), "world {seed} with faults {faults}: {said}");
    }
}
