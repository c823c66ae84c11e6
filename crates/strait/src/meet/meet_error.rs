//! The error of meeting: of making a listener, accepting and inviting, connecting, and starting a process.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::name::NameDirectory;
use crate::error::Error;

/// The error of a call that makes a listener, accepts or invites a process, connects to a listener, or starts a
/// process: the reason, and the object of the call. The text names both, and the next step.
///
/// `?` turns a `MeetError` into an [`Error`], which keeps the reason alone.
///
/// ```
/// use std::path::Path;
/// use std::time::Duration;
/// use strait::Error;
/// use strait::meet::Connector;
///
/// let failed = Connector::new().directory("/run").connect("no-such-service", Duration::from_secs(1)).unwrap_err();
/// match failed.error {
///     Error::NobodyThere => assert_eq!(failed.path.as_deref(), Some(Path::new("/run/no-such-service"))),
///     _ => return Err(failed.into()),
/// }
/// assert!(failed.to_string().starts_with("connecting to \"no-such-service\" at /run/no-such-service: no process"));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MeetError {
    /// The reason why the call failed.
    pub error: Error,
    /// The name of the listener that the program gave; `None` for a call without a name.
    pub name: Option<String>,
    /// The path of the object of the call: the socket of a listener, a name directory, or a program. `None` if the call
    /// has no such object, or failed before the object was known. If the call looked in several name directories, the
    /// path in the first directory; the text names all paths.
    pub path: Option<PathBuf>,
    /// The paths in the further name directories.
    other_paths: Box<[PathBuf]>,
    /// The name directories that the call did not use because other users could change them, with the reasons.
    passed_over: Box<[(PathBuf, &'static str)]>,
    attempt: Attempt,
}

/// The action that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Connect,
    Listen,
    Activate,
    List,
    Invited,
    Start,
    FromParent,
    Accept,
    AcceptInvited,
    Invite,
    Tell,
}

impl MeetError {
    pub(super) fn new(attempt: Attempt, error: Error) -> Self {
        Self { error, name: None, path: None, other_paths: Box::default(), passed_over: Box::default(), attempt }
    }

    /// Adds the name of the listener, and the paths at which its socket can be unless the name is not valid.
    pub(super) fn named(self, name: &str, paths: Vec<PathBuf>) -> Self {
        let paths = if self.error == Error::BadName { Vec::new() } else { paths };
        Self { name: Some(name.to_owned()), ..self.at_one_of(paths) }
    }

    pub(super) fn at_one_of(self, paths: Vec<PathBuf>) -> Self {
        let mut paths = paths.into_iter();
        Self { path: paths.next(), other_paths: paths.collect(), ..self }
    }

    /// Adds the name directories among those of `location` that cannot be used, unless `location` is one directory:
    /// then the reason of the error says why.
    pub(super) fn passing_over(self, location: &NameDirectory) -> Self {
        Self { passed_over: location.unsafe_paths().into(), ..self }
    }

    pub(super) fn at(self, path: &Path) -> Self {
        Self { path: Some(path.to_owned()), ..self }
    }

    /// Returns the error of an `attempt` with the listener at `path`; `path` is empty if the listener has no path.
    pub(super) fn at_listener(attempt: Attempt, path: &Path, error: Error) -> Self {
        let failed = Self::new(attempt, error);
        if path.as_os_str().is_empty() { failed } else { failed.at(path) }
    }

    /// Returns the error of an attempt to start `command`.
    pub(super) fn starting(command: &Command, error: Error) -> Self {
        Self::new(Attempt::Start, error).at(Path::new(command.get_program()))
    }

    /// Returns the error of an attempt to take the socket with the name `name` in the service manager's unit.
    pub(super) fn activating(name: Option<&str>, error: Error) -> Self {
        Self { name: name.map(str::to_owned), ..Self::new(Attempt::Activate, error) }
    }

    /// Returns the action of the failed call, with its object: the first part of the error's text.
    pub fn doing(&self) -> String {
        let paths: Vec<_> = self.path.iter().chain(&self.other_paths).map(|path| path.display().to_string()).collect();
        let all = if self.attempt == Attempt::Connect { " or " } else { " and " };
        let path = Some(paths.join(all)).filter(|paths| !paths.is_empty());
        let at = || path.as_ref().map_or_else(String::new, |path| format!(" at {path}"));
        let name = || self.name.as_ref().map_or_else(String::new, |name| format!(" {name:?}"));
        match self.attempt {
            Attempt::Connect => format!("connecting to{}{}", name(), at()),
            Attempt::Listen => format!("listening as{}{}", name(), at()),
            Attempt::Activate => format!("taking the socket{} of the service manager", name()),
            Attempt::List => {
                format!("listing the names{}", path.map_or_else(String::new, |path| format!(" in {path}")))
            }
            Attempt::Invited => format!("connecting by invitation{}", at()),
            Attempt::Start => format!("starting {}", path.unwrap_or_default()),
            Attempt::FromParent => "taking the channel to the parent".to_owned(),
            Attempt::Accept => format!("accepting a process{}", at()),
            Attempt::AcceptInvited => format!("accepting the invited process{}", at()),
            Attempt::Invite => format!("inviting a process{}", at()),
            Attempt::Tell => format!("writing the invitation{}", at()),
        }
    }

    fn connects(&self) -> bool {
        matches!(self.attempt, Attempt::Connect | Attempt::Invited)
    }

    fn accepts(&self) -> bool {
        matches!(self.attempt, Attempt::Accept | Attempt::AcceptInvited)
    }
}

impl fmt::Display for MeetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.doing())?;
        match self.error {
            Error::WouldBlock if self.connects() => write!(
                f,
                "would block: the listener has not accepted this process yet, and the deadline was now; give a later \
                 deadline"
            ),
            Error::TimedOut if self.connects() => write!(
                f,
                "timed out: the listener has not accepted this process before the deadline; check that the server \
                 calls accept, or give a later deadline"
            ),
            Error::PeerClosed if self.connects() => write!(
                f,
                "the listener closed the connection before it accepted this process, for example for lack of \
                 descriptors, or its process has ended; look there for the reason, then connect again"
            ),
            Error::WouldBlock if self.accepts() => write!(
                f,
                "would block: no process that the listener accepts waits here, and the deadline was now; give a later \
                 deadline, or wait for the listener in a wait set"
            ),
            Error::TimedOut if self.accepts() => write!(
                f,
                "timed out: no process that the listener accepts has connected before the deadline; check that the \
                 client uses this path, or call again to go on waiting"
            ),
            Error::Interrupted => write!(
                f,
                "interrupted: another thread has ended the waits of this listener; drop the listener, or call \
                 Interrupter::resume before the next wait"
            ),
            Error::PeerClosed if self.attempt == Attempt::AcceptInvited => write!(
                f,
                "no process can come by this invitation any more: the invited process has closed its connection or \
                 ended before it was accepted, or the listener was dropped; keep the listener, and invite again"
            ),
            Error::BadName if self.attempt == Attempt::Invite => write!(
                f,
                "the invited process cannot find this listener: give it a socket with an absolute path that has no \
                 line feed and ends with a name of 1 to 64 letters, digits, dots, dashes and underscores"
            ),
            Error::System { call: "spawn", code } => write!(
                f,
                "{}; check that the program exists, and that this user may run it",
                std::io::Error::from_raw_os_error(code)
            ),
            error => error.fmt(f),
        }?;
        self.passed_over.iter().try_for_each(|(path, why)| write!(f, "; passed over {}: {why}", path.display()))
    }
}

impl std::error::Error for MeetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<MeetError> for Error {
    /// Returns the reason, without the object.
    fn from(failed: MeetError) -> Self {
        failed.error
    }
}

impl From<MeetError> for std::io::Error {
    fn from(failed: MeetError) -> Self {
        Self::new(Self::from(failed.error).kind(), failed)
    }
}
