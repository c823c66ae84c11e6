//! Counts the instructions of a process with Valgrind, since the processor's own counters are often not available.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use super::traced::reported;
use crate::process::{control, start};
use crate::trouble::{Result, Trouble, While};
use crate::work::Work;

/// Whether this machine has Valgrind.
pub(crate) fn has_valgrind() -> bool {
    let mut command = Command::new("valgrind");
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Runs the first process of `work` under Valgrind, and returns how many instructions it executed in user space.
pub(crate) fn instructions(work: &Work) -> Result<u64> {
    let (socket, theirs) = control::pair()?;
    let command = start::command("first", work, theirs.try_clone().doing("dup")?)?;
    let output = std::env::temp_dir().join(format!("strait-instructions-{}", std::process::id()));
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--quiet"]);
    valgrind.arg(format!("--cachegrind-out-file={}", output.display()));
    valgrind.arg(command.get_program()).args(command.get_args());
    valgrind.stdin(theirs).stdout(Stdio::null()).stderr(Stdio::piped());
    let done = valgrind.output().doing("starting valgrind")?;
    drop((command, valgrind));
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        return Err(Trouble::new(format!("the process under valgrind failed: {}, {}", done.status, said.trim())));
    }
    let counted = summary(&output);
    let _ = fs::remove_file(&output);
    reported(&socket)?;
    counted
}

/// Returns the total in an output file of cachegrind.
fn summary(file: &Path) -> Result<u64> {
    let text = fs::read_to_string(file).doing("reading what valgrind counted")?;
    let line = text.lines().rev().find_map(|line| line.strip_prefix("summary:"));
    line.and_then(|line| line.trim().parse().ok()).ok_or_else(|| Trouble::new("the output of valgrind has no summary"))
}
