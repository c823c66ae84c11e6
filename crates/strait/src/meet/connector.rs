//! Connecting to a listener.

use std::path::PathBuf;
use std::time::Duration;

use super::meet_error::{Attempt, MeetError};
use super::name::{self, NameDirectory};
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::fork;
use crate::os::names::{Directory, Watch, is_one_user, own_user};
use crate::quota::closing;
use crate::signals;

/// The pause before the second attempt to connect to a listener that has too many pending connections. The pause
/// doubles with each further attempt, up to [`LONGEST_PAUSE`].
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
/// The longest pause between two attempts to connect to a listener that refuses because of too many pending
/// connections.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// Connects to the listener named `name` that runs as this process's user. Blocks until the listener accepts, or until
/// `deadline`. The name may be an absolute path, see [`Connector::connect`].
///
/// Example: [a listener and its client](crate::Listener).
///
/// # Errors
/// As [`Connector::connect`].
pub fn connect(name: &str, deadline: impl Into<Deadline>) -> Result<Channel, MeetError> {
    Connector::new().connect(name, deadline)
}

/// The options with which [`connect`](Self::connect) connects to a listener: the directory of the name, the user that
/// must run the listener, and the options of the new channel.
///
/// ```
/// use std::time::Duration;
/// use strait::meet::Connector;
/// use strait::Error;
/// let failed = Connector::new().directory("/run").connect("nobody-listens-here", Duration::from_secs(1));
/// assert_eq!(failed.unwrap_err().error, Error::NobodyThere);
/// ```
#[derive(Clone)]
pub struct Connector {
    location: NameDirectory,
    server: u32,
    token: u128,
    options: Options,
    waits: bool,
}

impl std::fmt::Debug for Connector {
    /// Prints the connector without its token, which is a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connector")
            .field("location", &self.location)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl Connector {
    /// Makes a connector with the default options, for listeners of this process's user in the user's name directories.
    /// Nothing is connected yet.
    pub fn new() -> Self {
        Self { location: NameDirectory::default(), server: own_user(), token: 0, options: Options::new(), waits: false }
    }

    /// Sets the directory in which a listener's name is looked for, instead of the name directories of this process's
    /// user. Only this user, the server's user or root may be able to write to the directory.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.location = NameDirectory(Some(path.into()));
        self
    }

    /// Sets the number (uid) of the user that the listening process must run as; by default the uid of this process's
    /// user. The socket may also have been made, and be listened on, by root, as a service manager does; then root
    /// learns the token of an invitation. If any other user listens, this process sends nothing, and connecting fails
    /// with [`Error::WrongServer`].
    #[must_use]
    pub fn server(mut self, uid: u32) -> Self {
        self.server = uid;
        self
    }

    /// Sets the options of this process's end of the new channel.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// Makes [`connect`](Self::connect) wait until its deadline for a listener of the name, if there is none yet. The
    /// wait sleeps until something changes in the name directories; missing name directories of the user are made.
    ///
    /// If this user has no inotify instance or watch left, [`connect`](Self::connect) fails with an [`Error::System`]
    /// that names the limit.
    ///
    /// A service manager gives a socket its name shortly before it listens on the socket. A wait can miss such a
    /// socket: start the client after the unit.
    #[must_use]
    pub fn wait_for_listener(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Sets the invitation's token that the connect request carries; 0, the default, stands for no invitation.
    pub(super) fn token(mut self, token: u128) -> Self {
        self.token = token;
        self
    }

    /// Connects to the listener named `name`, and returns the channel when the listener has accepted this process.
    /// Blocks until then, or until the deadline. An absolute path as the name, such as `/run/service/echo`, means the
    /// name `echo` in the directory `/run/service`, as if [`directory`](Self::directory) named that directory.
    ///
    /// While two processes have a channel by an earlier connect, in either direction, a further connect uses the socket
    /// of that channel. This needs equal options on both sides: `peer_memory` and `accept_descriptors` are equal, and
    /// `ring` is not set. Each channel works and ends by itself. But [`Channel::disconnect`] and
    /// [`Channel::report_bad`] end all channels of the socket.
    ///
    /// # Errors
    /// A [`MeetError`], which names the listener and the paths at which its socket can be. The reason is
    /// [`Error::NobodyThere`], with [`wait_for_listener`](Self::wait_for_listener) at the deadline;
    /// [`Error::Refused`] with the listener's reason; [`Error::WrongServer`] and [`Error::UnsafeDirectory`] if the
    /// server or the directory is not the expected one; [`Error::BadName`]; [`Error::PeerClosed`] if the listener
    /// closed the connection or its process ended; [`Error::TimedOut`], [`Error::WouldBlock`]; otherwise as
    /// [`Channel::over`].
    pub fn connect(&self, name: &str, deadline: impl Into<Deadline>) -> Result<Channel, MeetError> {
        self.connect_plainly(name, deadline.into()).map_err(|error| self.failed(Attempt::Connect, name, error))
    }

    /// Returns the error of an attempt to connect to the listener named `name`.
    pub(super) fn failed(&self, attempt: Attempt, name: &str, error: Error) -> MeetError {
        MeetError::new(attempt, error).named(name, name::full(&self.location, name)).passing_over(&self.location)
    }

    pub(super) fn connect_plainly(&self, name: &str, deadline: Deadline) -> Result<Channel, Error> {
        fork::arm()?;
        let (location, name) = name::resolve(&self.location, name)?;
        match self.connect_to_first(&location, &name, deadline) {
            Err(Error::NobodyThere) if self.waits && !deadline.has_passed() => {
                self.connect_once_there(&location, &name, deadline)
            }
            done => done,
        }
    }

    /// Connects to the first live listener named `name`. A listener of another user counts only if the expected user
    /// has no listener.
    fn connect_to_first(&self, location: &NameDirectory, name: &str, deadline: Deadline) -> Result<Channel, Error> {
        let mut missed = Error::NobodyThere;
        for (_, directory) in location.open(self.server)? {
            match self.connect_in(&directory, name, deadline) {
                Err(Error::NobodyThere) => {}
                Err(error @ Error::WrongServer { .. }) => missed = error,
                done => return done,
            }
        }
        Err(missed)
    }

    /// Connects to the first live listener named `name`; sleeps until the deadline while there is none. The watch
    /// begins before each attempt, so no listener is missed.
    fn connect_once_there(&self, location: &NameDirectory, name: &str, deadline: Deadline) -> Result<Channel, Error> {
        let watch = Watch::new()?;
        let connected = self.connect_watching(&watch, location, name, deadline);
        closing::close_own(watch.into_fd());
        connected
    }

    fn connect_watching(
        &self,
        watch: &Watch,
        location: &NameDirectory,
        name: &str,
        deadline: Deadline,
    ) -> Result<Channel, Error> {
        loop {
            location.open_or_make(self.server)?.iter().try_for_each(|(_, directory)| watch.add(directory))?;
            match self.connect_to_first(location, name, deadline) {
                Err(Error::NobodyThere) if !deadline.has_passed() => watch.wait(deadline)?,
                done => return done,
            }
        }
    }

    fn connect_in(&self, directory: &Directory, name: &str, deadline: Deadline) -> Result<Channel, Error> {
        let found = directory.look(name)?.ok_or(Error::NobodyThere)?;
        if !found.is_socket() {
            return Err(Error::NobodyThere);
        }
        // Root may make the sockets of other users, as a service manager does.
        if ![self.server, 0].contains(&found.owner()) || !is_one_user(found.owner()) {
            return Err(Error::WrongServer { uid: found.owner() });
        }
        let mut pause = SHORTEST_PAUSE;
        loop {
            let socket = found.connect(deadline)?;
            match Channel::connect(socket, self.server, self.token, &self.options, deadline) {
                // The listener has closed the connection, so nothing would notify this process when the listener has
                // room: try again after a pause.
                Err(Error::Refused(Refusal::Busy)) if !deadline.has_passed() => {
                    crate::os::pause(deadline.within(pause));
                    signals::check()?;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                done => return done,
            }
        }
    }
}

impl Default for Connector {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        crate::os::wipe(&mut self.token);
    }
}
