//! The server's process.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use crate::Result;
use crate::command::Meeting;

/// A server that is killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Server(Child);

impl Server {
    /// Starts this program as the server. Returns the server and the word that it printed once it listened.
    pub(crate) fn start(meeting: &Meeting) -> Result<(Self, String)> {
        let program = std::env::current_exe()?;
        let mut server = Self(Command::new(program).args(meeting.words()).stdout(Stdio::piped()).spawn()?);
        let mut line = String::new();
        BufReader::new(server.0.stdout.take().ok_or("no pipe from the server")?).read_line(&mut line)?;
        let word = line.strip_prefix("ready ").ok_or("the server ended before it listened")?.trim_end().to_owned();
        Ok((server, word))
    }

    /// Returns the process's number.
    pub(crate) fn id(&self) -> u32 {
        self.0.id()
    }

    /// Kills the process.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.0.kill()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // A failure means that the process has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
