//! Starting a process with a channel.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::process::{Child, Command};
use std::sync::atomic::{AtomicBool, Ordering};

use super::meet_error::{Attempt, MeetError};
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::error::Error;
use crate::os::process::spawn;
use crate::os::socket::{self, credentials};

/// The environment variable that tells a child process which descriptor is its channel to the parent: the number of the
/// descriptor, and the inode number of the socket. A process that has merely inherited the variable notices by the
/// inode number that the descriptor is not its channel.
const VARIABLE: &str = "STRAIT_PARENT";

/// Whether this process has already taken the channel to its parent. A process can take the channel only once.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Starts a child process together with a channel to the child; implemented for [`Command`].
///
/// Example: [parent and child](crate#hello).
pub trait CommandExt {
    /// Starts the command, and makes a channel with default options. The new process takes the other end of the channel
    /// with [`from_parent`].
    ///
    /// The child inherits one descriptor, whose number is in its environment, and no other descriptor of Strait.
    /// Messages sent before the child takes its end wait for the child. If the child exits without taking its end, this
    /// process sees [`Error::PeerClosed`].
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
    /// A [`MeetError`], which names the program. The reason is [`Error::System`] naming `spawn` if the command cannot
    /// be started; otherwise as [`Channel::over`].
    fn spawn_with_channel(&mut self) -> Result<(Child, Channel), MeetError>;
}

impl CommandExt for Command {
    fn spawn_with_channel(&mut self) -> Result<(Child, Channel), MeetError> {
        Options::new().spawn(self)
    }
}

/// The descriptor and the environment variable that a child process has to inherit, to take the other end of a channel
/// with [`from_parent`]. The variable names the descriptor. Use this type to start processes in another way than by
/// [`Command`]: with `posix_spawn`, through a launcher, or from another language.
///
/// The descriptor is closed on `exec` in this process and has to be inherited by the new process alone, under any
/// number above 2. Drop the `Inheritance` when the process has started: until then this process does not see the death
/// of the new process.
///
/// ```
/// use std::os::fd::AsRawFd;
/// use strait::Options;
/// use strait::meet::Inheritance;
///
/// let (channel, inheritance) = Options::new().inheritance()?;
/// // The new process gets the descriptor as its number 3, say with `posix_spawn_file_actions_adddup2`.
/// let from = inheritance.as_raw_fd();
/// let variable = format!("{}={}", Inheritance::VARIABLE, inheritance.value_at(3));
/// assert!(variable.starts_with("STRAIT_PARENT=3:"));
/// # let _ = from;
/// channel.send(b"work")?; // The message waits for the new process.
/// drop(inheritance);
/// // In this example no process was started, so the other end is gone.
/// assert_eq!(channel.recv().unwrap_err(), strait::Error::PeerClosed);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Inheritance {
    socket: OwnedFd,
    inode: u64,
}

impl Inheritance {
    /// The name of the environment variable, `STRAIT_PARENT`. The variable is for the new process only: the new process
    /// should not pass the variable on.
    ///
    /// Example: [an inherited channel](Self).
    pub const VARIABLE: &str = VARIABLE;

    /// Returns the value of [`VARIABLE`](Self::VARIABLE) for a process that inherits the descriptor under its number in
    /// this process.
    pub fn value(&self) -> String {
        self.value_at(self.socket.as_raw_fd())
    }

    /// Returns the value of [`VARIABLE`](Self::VARIABLE) for a process that gets the descriptor as its number `number`,
    /// which must be above 2: the lower numbers are the standard streams.
    pub fn value_at(&self, number: RawFd) -> String {
        format!("{number}:{}", self.inode)
    }
}

impl AsFd for Inheritance {
    /// Returns the descriptor that the new process has to inherit.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl AsRawFd for Inheritance {
    fn as_raw_fd(&self) -> RawFd {
        self.socket.as_raw_fd()
    }
}

impl From<Inheritance> for OwnedFd {
    /// Returns the descriptor that the new process has to inherit. The caller closes the descriptor when the process
    /// has started.
    fn from(inheritance: Inheritance) -> Self {
        inheritance.socket
    }
}

impl Options {
    /// Starts `command`, and makes a channel with these options, as [`CommandExt::spawn_with_channel`] does.
    ///
    /// # Errors
    /// As [`CommandExt::spawn_with_channel`].
    pub fn spawn(&self, command: &mut Command) -> Result<(Child, Channel), MeetError> {
        self.spawn_plainly(command).map_err(|error| MeetError::starting(command, error))
    }

    fn spawn_plainly(&self, command: &mut Command) -> Result<(Child, Channel), Error> {
        let (channel, inheritance) = self.inheritance()?;
        command.env(VARIABLE, inheritance.value());
        let inherited = spawn::Inherited::by(command, &inheritance.socket);
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

    /// Makes a channel with these options to a process that is started by other means than [`Command`]. Returns
    /// this process's end, and the [`Inheritance`] of the other process.
    ///
    /// # Errors
    /// As [`Channel::over`].
    pub fn inheritance(&self) -> Result<(Channel, Inheritance), Error> {
        let (ours, theirs) = socket::pair()?;
        // The sockets ask for credentials before the child can send a handshake, so that the kernel names the sender.
        credentials::ask(ours.as_fd(), true)?;
        credentials::ask(theirs.as_fd(), true)?;
        let channel = self.over(ours)?;
        let inode = spawn::inode(&theirs).ok_or(Error::NotASocket("no socket"))?;
        Ok((channel, Inheritance { socket: theirs, inode }))
    }

    /// Takes this process's end of the channel to its parent, with these options, as [`from_parent`] does.
    ///
    /// # Errors
    /// As [`from_parent`].
    pub fn from_parent(&self) -> Result<Channel, MeetError> {
        self.take_from_parent().map_err(|error| MeetError::new(Attempt::FromParent, error))
    }

    fn take_from_parent(&self) -> Result<Channel, Error> {
        let (number, inode) = std::env::var(VARIABLE).ok().as_deref().and_then(parse).ok_or(Error::NoParent)?;
        if TAKEN.load(Ordering::Relaxed) {
            return Err(Error::ParentTaken);
        }
        if !spawn::is_inherited(number, inode) {
            return Err(Error::NoParent);
        }
        self.over_taken(|| {
            if TAKEN.swap(true, Ordering::Relaxed) {
                return Err(Error::ParentTaken);
            }
            Ok(spawn::take_inherited(number))
        })
    }
}

/// Takes this process's end of the channel that its parent made with [`CommandExt::spawn_with_channel`], with default
/// options. A process can take this end once. Does not block.
///
/// Example: [parent and child](crate#hello).
///
/// # Errors
/// A [`MeetError`]. The reason is [`Error::NoParent`] if this process was not started with such a channel;
/// [`Error::ParentTaken`] the second time; [`Error::NoDescriptors`] or [`Error::NoMemory`], with which the end was not
/// taken: close something, and call again; otherwise as [`Channel::over`].
pub fn from_parent() -> Result<Channel, MeetError> {
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
