//! Knocking.

use std::path::PathBuf;
use std::time::Duration;

use super::name::{self, NameDirectory};
use crate::channel::Channel;
use crate::channel::options::Options;
use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::os::fork;
use crate::os::names::{is_one_user, own_user};

/// How long [`connect`] waits to be let in.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);

/// Pauses between tries, where too many others wait to be let in.
const SHORTEST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(50);

/// The channel to whoever of this user listens under this name. Blocks until it is let in, for at most 30 seconds.
///
/// # Errors
/// As [`Connector::connect_by`].
pub fn connect(name: &str) -> Result<Channel, Error> {
    Connector::new(name).connect_by(CONNECT_TIMEOUT)
}

/// How to connect to a name: where it is, and who is expected there.
#[derive(Clone, Debug)]
pub struct Connector {
    name: String,
    place: NameDirectory,
    server: u32,
    token: u128,
    options: Options,
}

impl Connector {
    /// For this name among those of this user.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            place: NameDirectory::default(),
            server: own_user(),
            token: 0,
            options: Options::new(),
        }
    }

    /// The directory in which the name is, instead of this user's. It must be writable by this user, the server's or root
    /// only.
    #[must_use]
    pub fn directory(mut self, path: impl Into<PathBuf>) -> Self {
        self.place = NameDirectory(Some(path.into()));
        self
    }

    /// The user as whom the server is to run: this one by default. The process that answers must run as this user. The socket may
    /// also have been made, and may be listened on, by root, as a service manager does; a token is told to root then. Any other
    /// user is refused before anything is said to it.
    #[must_use]
    pub fn server(mut self, uid: u32) -> Self {
        self.server = uid;
        self
    }

    /// Options of the channel.
    #[must_use]
    pub fn options(mut self, options: Options) -> Self {
        self.options = options;
        self
    }

    /// The token of an invitation.
    pub(super) fn token(mut self, token: u128) -> Self {
        self.token = token;
        self
    }

    /// The channel, once this process is let in. Blocks until then, or the deadline.
    ///
    /// # Errors
    /// [`Error::NobodyThere`]; [`Error::Refused`] with the listener's reason; [`Error::WrongServer`] and
    /// [`Error::UnsafeDirectory`] if it is not who was expected; [`Error::BadName`]; [`Error::PeerClosed`] if the listener
    /// ended meanwhile; [`Error::TimedOut`], [`Error::WouldBlock`]; otherwise as [`Channel::over`].
    pub fn connect_by(&self, deadline: impl Into<Deadline>) -> Result<Channel, Error> {
        let deadline = deadline.into();
        fork::arm()?;
        name::check(&self.name)?;
        let directory = self.place.open(self.server)?.ok_or(Error::NobodyThere)?;
        let found = directory.look(&self.name)?.ok_or(Error::NobodyThere)?;
        if !found.is_socket() {
            return Err(Error::NobodyThere);
        }
        // Root may make the sockets of others: a service manager does.
        if ![self.server, 0].contains(&found.owner()) || !is_one_user(found.owner()) {
            return Err(Error::WrongServer { uid: found.owner() });
        }
        let mut pause = SHORTEST_PAUSE;
        loop {
            let socket = found.connect(deadline)?;
            match Channel::connect(socket, self.server, self.token, &self.options, deadline) {
                // Somebody else's turn; but it has our connection no more, so nothing would tell when it is ours.
                Err(Error::Refused(Refusal::Busy)) if !deadline.has_passed() => {
                    std::thread::sleep(deadline.within(pause));
                    pause = (pause * 2).min(LONGEST_PAUSE);
                }
                done => return done,
            }
        }
    }
}

impl Drop for Connector {
    fn drop(&mut self) {
        crate::os::wipe(&mut self.token);
    }
}
