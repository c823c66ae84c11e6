//! Runs the part of the kill matrix in which a signal interrupts each system call once.

#![cfg(strait_fault_points)]

use std::process::Command;

#[test]
fn every_system_call_that_a_signal_interrupts_is_made_again() {
    let mut matrix = Command::new(env!("CARGO_BIN_EXE_strait-faults"));
    matrix.args(["--actions", "fail", "--errors", "EINTR", "--deadline", "60"]);
    assert!(matrix.status().unwrap().success());
}
