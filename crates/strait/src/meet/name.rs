//! Names of listeners, and the name directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::connector::Connector;
use super::meet_error::{Attempt, MeetError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::names::{Demand, Directory, Found, own_user};
use crate::os::socket::credentials;

/// The most bytes in the name of a listener.
const LONGEST: usize = 64;

/// Checks the name of a listener: fails with [`Error::BadName`] unless it has 1 to [`LONGEST`] ASCII letters, digits or
/// `-_.` and does not begin with a dot. A valid name cannot be a path to another directory.
pub(super) fn check(name: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = (1..=LONGEST).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.');
    if good { Ok(()) } else { Err(Error::BadName) }
}

/// A name directory, which holds the sockets of listeners by name. With `None`, it is this user's own directory;
/// otherwise the directory of the given path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameDirectory(pub(super) Option<PathBuf>);

impl NameDirectory {
    /// Returns the path of this name directory, which need not exist.
    pub(super) fn path(&self) -> PathBuf {
        self.0.clone().unwrap_or_else(of_user)
    }

    /// Opens this name directory; returns `None` if the directory does not exist. Fails with [`Error::UnsafeDirectory`]
    /// if this user's own directory belongs to another user or gives access to other users. A directory given by path
    /// must belong to root, this user or the user `owner`, and no other user may be able to write to it.
    pub(super) fn open(&self, owner: u32) -> Result<Option<Directory>, Error> {
        match &self.0 {
            Some(path) => Directory::open(path, Demand::Trusted { owner }),
            None => Directory::open(&of_user(), Demand::Private),
        }
    }

    /// Opens this name directory for a listener. If this user's own directory does not exist, the call makes it; any
    /// other directory must exist, or the call fails with [`Error::UnsafeDirectory`].
    pub(super) fn open_or_make(&self) -> Result<Directory, Error> {
        if self.0.is_none() && !Directory::make(&of_user())? {
            return Err(Error::UnsafeDirectory(
                "the directory above it (XDG_RUNTIME_DIR, or /run/user and the user's number) is not there: make it, or \
                 set XDG_RUNTIME_DIR",
            ));
        }
        self.open(own_user())?.ok_or(Error::UnsafeDirectory("it is not there: make it, writable for this user only"))
    }
}

/// Returns the path of this user's name directory: `strait` in `$XDG_RUNTIME_DIR` if that is set to an absolute path;
/// otherwise in `/run/user/UID` if that exists; otherwise, for root, in `/run`; otherwise `/tmp/strait-UID`.
fn of_user() -> PathBuf {
    let user = own_user();
    let given = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|path| path.is_absolute());
    let usual = || Some(PathBuf::from(format!("/run/user/{user}"))).filter(|path| path.is_dir());
    let of_root = || (user == 0).then(|| PathBuf::from("/run"));
    match given.or_else(usual).or_else(of_root) {
        Some(base) => base.join("strait"),
        None => PathBuf::from(format!("/tmp/strait-{user}")),
    }
}

/// A listener's name in a name directory. The process that took the name may have ended.
///
/// Example: [the names of listeners](crate::meet::names).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listening {
    /// The name of the listener, without its directory.
    pub name: String,
    /// The time at which the listener took the name.
    pub since: SystemTime,
    /// The number of the user that owns the socket file of the listener's name.
    pub uid: u32,
    /// The number (pid) of the process that listens under this name, as the kernel reports it. `None` if no process
    /// listens any more, or the process is in a process namespace that this process does not see.
    pub pid: Option<u32>,
    /// Whether a process listens under this name now; `false` if no process does, because the process that took the
    /// name has ended.
    pub is_live: bool,
}

/// Returns the names in `directory`, or in this user's name directory, sorted. Connects to each name to find out
/// whether a process listens; the listening program does not notice.
///
/// ```
/// for there in strait::meet::names(None)? {
///     println!("{} {}", there.name, if there.is_live { "is there" } else { "is gone" });
/// }
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Errors
/// A [`MeetError`], which names the directory. The reason is [`Error::UnsafeDirectory`] if other users could change the
/// directory; [`Error::NoDescriptors`] and [`Error::NoMemory`] if this process lacks what a connection takes;
/// [`Error::System`]. A directory that does not exist has no names.
pub fn names(directory: Option<&Path>) -> Result<Vec<Listening>, MeetError> {
    let location = NameDirectory(directory.map(Path::to_owned));
    names_in(&location).map_err(|error| MeetError::new(Attempt::List, error).at(&location.path()))
}

fn names_in(location: &NameDirectory) -> Result<Vec<Listening>, Error> {
    let Some(directory) = location.open(own_user())? else { return Ok(Vec::new()) };
    let mut there = Vec::new();
    for name in directory.names()? {
        match directory.look(&name) {
            Ok(Some(found)) if found.is_socket() => there.push(describe(name, &found)?),
            Err(error) if is_shortage(error) => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(there)
}

/// Returns whether the error of an attempt to connect means that this process lacks descriptors or memory. Then the
/// error does not tell whether a listener is there.
fn is_shortage(error: Error) -> bool {
    matches!(error, Error::NoDescriptors | Error::NoMemory { .. })
}

fn describe(name: String, found: &Found) -> Result<Listening, Error> {
    let connected = found.connect(Deadline::NOW);
    if let Err(error) = connected
        && is_shortage(error)
    {
        return Err(error);
    }
    let peer = connected.as_ref().ok().and_then(|socket| {
        use std::os::fd::AsFd;
        credentials::of_socket(socket.as_fd()).ok()
    });
    Ok(Listening {
        name,
        since: found.since(),
        uid: found.owner(),
        pid: peer.and_then(|peer| peer.pid),
        is_live: !matches!(connected, Err(Error::NobodyThere)),
    })
}

/// Returns the path of the socket file of a listener: the path of the name directory `location`, with `name` as its
/// last part.
pub(super) fn full(location: &NameDirectory, name: &str) -> PathBuf {
    location.path().join(name)
}

/// Splits the path of a listener's socket file into the name directory and the name. `None` if the path is not absolute
/// or its last part is not a name.
pub(super) fn parted(path: &Path) -> Option<(NameDirectory, String)> {
    let name = path.file_name()?.to_str()?.to_owned();
    let directory = path.parent().filter(|directory| directory.is_absolute())?.to_owned();
    let location = if directory == of_user() { NameDirectory(None) } else { NameDirectory(Some(directory)) };
    Some((location, name))
}

impl Connector {
    /// Returns a connector for the listener whose socket file has this path, and the name of that listener; `None` if
    /// the path is not absolute or its last part is not a name.
    pub(super) fn at(path: &Path) -> Option<(Self, String)> {
        let (location, name) = parted(path)?;
        let connector = match location.0 {
            Some(directory) => Self::new().directory(directory),
            None => Self::new(),
        };
        Some((connector, name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_nowhere_else() {
        for good in ["a", "editor.renderer-1", "A_b", &"x".repeat(64)] {
            assert_eq!(check(good), Ok(()), "{good}");
        }
        for bad in ["", ".", "..", ".hidden", "a/b", "/a", "a b", "a\0", "ä", &"x".repeat(65)] {
            assert_eq!(check(bad), Err(Error::BadName), "{bad}");
        }
    }

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        let location = NameDirectory(Some("/run/service".into()));
        assert_eq!(parted(&full(&location, "name")), Some((location, "name".to_owned())));
        assert_eq!(parted(&full(&NameDirectory(None), "name")), Some((NameDirectory(None), "name".to_owned())));
        assert_eq!(parted(Path::new("name")), None);
        assert_eq!(parted(Path::new("/")), None);
    }
}
