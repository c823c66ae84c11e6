//! Starting the processes of a measurement.

use std::env;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use serde::Serialize;

use super::silence;
use crate::trouble::{Result, While};

/// A process of a measurement. Dropping it kills the process.
#[derive(Debug)]
pub(crate) struct Started {
    pub(crate) child: Child,
}

impl Started {
    /// Starts this program with the hidden subcommand, and `socket` as its standard input.
    pub(crate) fn new(side: &str, work: &impl Serialize, socket: OwnedFd) -> Result<Self> {
        start(side, work, socket).map(|child| Self { child })
    }

    /// Whether the process was killed for a system call. Waits up to about 100 ms for its end.
    pub(crate) fn was_silenced(&mut self) -> bool {
        (0..100).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            matches!(self.child.try_wait(), Ok(Some(status)) if status.signal() == Some(silence::BROKEN))
        })
    }
}

/// Starts this program with the hidden subcommand, and `socket` as its standard input. The process is not killed when
/// the returned [`Child`] is dropped.
pub(crate) fn start(side: &str, work: &impl Serialize, socket: OwnedFd) -> Result<Child> {
    command(side, work, socket)?.spawn().doing("starting a process")
}

/// Returns the command that executes this program with the hidden subcommand, and `socket` as its standard input.
pub(crate) fn command(side: &str, work: &impl Serialize, socket: OwnedFd) -> Result<Command> {
    let program = env::current_exe().doing("finding this program's file")?;
    let told = serde_json::to_string(work).doing("describing the work")?;
    let mut command = Command::new(program);
    command
        .args(["peer", side, &told])
        .stdin(Stdio::from(socket))
        .stdout(Stdio::null())
        // An interrupt at the terminal goes to the process of the suite, which completes the current run.
        .process_group(0);
    Ok(command)
}

impl Drop for Started {
    fn drop(&mut self) {
        // Both calls fail only for a process that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
