//! The kill matrix, if the library has fault points: `./run-faults run`.

#[cfg(strait_fault_points)]
#[path = "program.rs"]
mod program;

#[cfg(strait_fault_points)]
fn main() -> std::process::ExitCode {
    program::main()
}

#[cfg(not(strait_fault_points))]
fn main() -> std::process::ExitCode {
    eprintln!("This program was built without fault points. Use ./run-faults run");
    std::process::ExitCode::FAILURE
}
