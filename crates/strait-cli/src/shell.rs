//! `strait completions` and `strait man`: further files in a package of the program, made from the definition of the
//! command line.

use std::path::Path;

use clap::CommandFactory;
use strait_lab::trouble::{Result, While};

use crate::cli::Cli;

/// Prints the completion script for a shell.
pub(crate) fn completions(shell: clap_complete::Shell) {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "strait", &mut script);
    // `print` ends the program without a message if the reader has closed the pipe: see `main`.
    print!("{}", String::from_utf8_lossy(&script));
}

/// Writes `strait.1` and a page for each subcommand (`strait-bench.1`, `strait-bench-table.1`, ...) to a directory.
pub(crate) fn manual(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory).doing(&format!("making {}", directory.display()))?;
    clap_mangen::generate_to(Cli::command(), directory).doing(&format!("writing to {}", directory.display()))
}
