//! A guest: a child of a process of a world, with a channel to its parent, the host. The guest sends back each
//! message, with the ends and files in the message, until the host closes the channel.

use std::process::ExitCode;
use std::time::Duration;

use clap::ValueEnum;
use strait::{Channel, Deadline, Error, Options};

/// How long a host and its guest wait for each other.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How a guest gets its channel.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Way {
    /// The guest connects with an invitation from its standard input.
    Invited,
    /// The guest inherits the channel.
    Spawned,
}

/// Plays a guest.
pub(crate) fn play(way: Way) -> ExitCode {
    // SAFETY: the arguments are plain numbers; the kernel kills this process when the host ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let channel = match way {
        Way::Invited => Options::new().invited(PATIENCE),
        Way::Spawned => Options::new().from_parent(),
    };
    match channel.map_err(strait::Error::from).and_then(|channel| echo(&channel)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("a guest: {error:?}");
            ExitCode::FAILURE
        }
    }
}

fn echo(channel: &Channel) -> Result<(), Error> {
    loop {
        match channel.recv_by(Deadline::NEVER) {
            Ok(mut message) => channel.forward(&mut message, PATIENCE)?,
            Err(Error::PeerClosed) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}
