//! Starting a process with a channel to it.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::channel::Channel;
use crate::channel::options::Options;
use crate::error::Error;
use crate::os::process::spawn;
use crate::os::socket::{self, credentials};

/// The environment variable that tells a child process which descriptor is its channel to the parent: the descriptor's
/// number, and the inode number of its socket. By the inode number, a process that has merely inherited the variable
/// notices that the descriptor is not its channel.
const VARIABLE: &str = "STRAIT_PARENT";

/// Whether this process has already taken the channel to its parent. A process can take this channel once.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Starts a child process together with a channel to it; implemented for [`Command`].
pub trait CommandExt {
    /// Starts the command, and makes a channel with default options, whose other end the new process takes with
    /// [`from_parent`].
    ///
    /// The child inherits one descriptor, whose number is in its environment, and no other descriptor of Strait.
    /// Messages that are sent before the child takes its end wait for it. If the child ends without taking its end,
    /// this end sees [`Error::PeerClosed`].
    ///
    /// ```no_run
    /// use std::process::Command;
    /// use strait::CommandExt;
    ///
    /// let (mut child, channel) = Command::new("worker").spawn_with_channel()?;
    /// channel.send(b"work")?;
    /// println!("{:?}", channel.recv()?.bytes());
    /// child.wait().expect("a child");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::System`] naming `spawn` if the command cannot be started; otherwise as [`Channel::over`].
    fn spawn_with_channel(&mut self) -> Result<(Child, Channel), Error>;
}

impl CommandExt for Command {
    fn spawn_with_channel(&mut self) -> Result<(Child, Channel), Error> {
        Options::new().spawn(self)
    }
}

impl Options {
    /// Starts `command`, and makes a channel with these options, as [`CommandExt::spawn_with_channel`] does.
    ///
    /// # Errors
    /// As [`CommandExt::spawn_with_channel`].
    pub fn spawn(&self, command: &mut Command) -> Result<(Child, Channel), Error> {
        let (ours, theirs) = socket::pair()?;
        // The sockets ask for credentials before the child can send a handshake, so that the kernel names the sender.
        credentials::ask(ours.as_fd(), true)?;
        credentials::ask(theirs.as_fd(), true)?;
        let channel = self.over(ours)?;
        let inode = spawn::inode(&theirs).ok_or(Error::NotASocket)?;
        command.env(VARIABLE, format!("{}:{inode}", theirs.as_raw_fd()));
        let inherited = spawn::Inherited::by(command, &theirs);
        let spawned = command.spawn();
        // The descriptor and the variable are for this child only: the command may start other processes.
        drop(inherited);
        command.env_remove(VARIABLE);
        let child = spawned.map_err(|error| Error::System {
            call: "spawn",
            code: error.raw_os_error().unwrap_or(rustix::io::Errno::INVAL.raw_os_error()),
        })?;
        Ok((child, channel))
    }

    /// Takes this process's end of the channel to its parent, with these options, as [`from_parent`] does.
    ///
    /// # Errors
    /// As [`from_parent`].
    pub fn from_parent(&self) -> Result<Channel, Error> {
        let (number, inode) = std::env::var(VARIABLE).ok().as_deref().and_then(parse).ok_or(Error::NoParent)?;
        if TAKEN.load(Ordering::Relaxed) {
            return Err(Error::ParentTaken);
        }
        if !spawn::is_inherited(number, inode) {
            return Err(Error::NoParent);
        }
        if TAKEN.swap(true, Ordering::Relaxed) {
            return Err(Error::ParentTaken);
        }
        self.over(spawn::take_inherited(number))
    }
}

/// Takes this process's end of the channel that its parent made with [`CommandExt::spawn_with_channel`], with default
/// options. A process can do this once. Does not block.
///
/// # Errors
/// [`Error::NoParent`] if this process was not started so; [`Error::ParentTaken`] the second time; otherwise as
/// [`Channel::over`].
pub fn from_parent() -> Result<Channel, Error> {
    Options::new().from_parent()
}

fn parse(value: &str) -> Option<(RawFd, u64)> {
    let (number, inode) = value.split_once(':')?;
    Some((number.parse().ok()?, inode.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_variable_is_parsed_strictly() {
        assert_eq!(parse("5:123"), Some((5, 123)));
        for wrong in ["", "5", "5:", ":5", "x:5", "5:-1", "5:1:2", "99999999999:1"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
