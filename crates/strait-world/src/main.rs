//! Runs worlds: see the library of this crate.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: strait_world::allocations::Counting = strait_world::allocations::Counting;

fn main() -> ExitCode {
    strait_world::main()
}
