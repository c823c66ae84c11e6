//! Names of listeners, and the name directories.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
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

/// Checks the name of a listener: fails with [`Error::BadName`] unless the name has 1 to [`LONGEST`] ASCII letters,
/// digits or `-_.` and does not begin with a dot. A valid name cannot be a path to another directory.
pub(super) fn check(name: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = (1..=LONGEST).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.');
    if good { Ok(()) } else { Err(Error::BadName) }
}

/// The name directories of a listener or a connector, which hold the sockets of listeners by name. `None` stands for
/// the name directories of this process's user; a path stands for the one directory with this path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameDirectory(pub(super) Option<PathBuf>);

/// The open name directories with their paths, in the order in which names are taken and looked for.
pub(super) type Opened = Vec<(PathBuf, Directory)>;

impl NameDirectory {
    /// Returns the paths of the name directories, which need not exist, in the order in which names are looked for.
    pub(super) fn paths(&self) -> Vec<PathBuf> {
        self.0.clone().map_or_else(of_user, |path| vec![path])
    }

    /// Returns the name directories of this process's user that exist and cannot be used, with the reasons. Returns
    /// none for a directory given by path.
    pub(super) fn unsafe_paths(&self) -> Vec<(PathBuf, &'static str)> {
        let paths = if self.0.is_none() { of_user() } else { Vec::new() };
        let refused = |path: PathBuf| match Directory::open(&path, Demand::Private) {
            Err(Error::UnsafeDirectory(why)) => Some((path, why)),
            _ => None,
        };
        paths.into_iter().filter_map(refused).collect()
    }

    /// Opens the name directories that exist. A directory of this process's user must belong to this user and give no
    /// other user access; an unsafe directory is passed over, and the call fails with [`Error::UnsafeDirectory`] if no
    /// other exists. A directory given by path must belong to root, this user or the user `owner`, and no other user
    /// may be able to write to it; otherwise the call fails.
    pub(super) fn open(&self, owner: u32) -> Result<Opened, Error> {
        match &self.0 {
            Some(path) => open_each(vec![path.clone()], |path| Directory::open(path, Demand::Trusted { owner })),
            None => open_each(of_user(), |path| Directory::open(path, Demand::Private)),
        }
    }

    /// Opens the name directories as [`open`](Self::open) does, at least one. A missing directory of this process's
    /// user is made if the directory above it exists. A directory given by path must exist, or the call fails with
    /// [`Error::UnsafeDirectory`].
    pub(super) fn open_or_make(&self, owner: u32) -> Result<Opened, Error> {
        let (opened, missing) = match &self.0 {
            Some(_) => (self.open(owner)?, "it is not there: make it, writable for this user only"),
            None => (
                open_each(of_user(), Directory::open_or_make)?,
                "the directory above it is not there: make it, or set STRAIT_DIR to a directory of this user alone",
            ),
        };
        if opened.is_empty() { Err(Error::UnsafeDirectory(missing)) } else { Ok(opened) }
    }
}

/// Opens each of `paths` by `open`, which returns `None` for a directory that does not exist, and passes over the paths
/// that fail with [`Error::UnsafeDirectory`]. Fails with the last such error if no directory is usable.
fn open_each(paths: Vec<PathBuf>, open: impl Fn(&Path) -> Result<Option<Directory>, Error>) -> Result<Opened, Error> {
    let (mut usable, mut refused) = (Vec::new(), None);
    for path in paths {
        match open(&path) {
            Ok(directory) => usable.extend(directory.map(|directory| (path, directory))),
            Err(Error::UnsafeDirectory(why)) => refused = Some(why),
            Err(error) => return Err(error),
        }
    }
    match refused {
        Some(why) if usable.is_empty() => Err(Error::UnsafeDirectory(why)),
        _ => Ok(usable),
    }
}

/// Returns the paths of the name directories of this process's user, in the order in which names are taken and looked
/// for.
fn of_user() -> Vec<PathBuf> {
    candidates(own_user(), |variable| std::env::var_os(variable))
}

/// Returns the paths of the name directories of the user with the number (uid) `user`, whose environment is `variable`:
/// the directory `STRAIT_DIR` alone if that variable is set; otherwise `strait` in `XDG_RUNTIME_DIR` if its value is an
/// absolute path, `strait` in `/run/user/UID`, and last the fallback, which is there without a login session too:
/// `/run/strait` for root, and `/tmp/strait-UID` for any other user.
fn candidates(user: u32, variable: impl Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let given = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(alone) = given("STRAIT_DIR") {
        return vec![std::path::absolute(&alone).unwrap_or(alone)];
    }
    let runtime = given("XDG_RUNTIME_DIR").filter(|path| path.is_absolute());
    let session = PathBuf::from(format!("/run/user/{user}"));
    let fallback = if user == 0 { PathBuf::from("/run/strait") } else { PathBuf::from(format!("/tmp/strait-{user}")) };
    let mut paths = Vec::new();
    for path in runtime.into_iter().chain([session]).map(|base| base.join("strait")).chain([fallback]) {
        if !paths.contains(&path) {
            paths.push(path);
        }
    }
    paths
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
    /// The number (pid) of the process that listens under the name, as the kernel reports it. `None` if no process
    /// listens any more, or the process is in a process namespace that this process does not see.
    pub pid: Option<u32>,
    /// Whether a process listens under the name now; `false` if the process that took the name has ended. If this
    /// process may not write to the socket file, as with another user's listener of mode 0o600, the kernel does not
    /// tell: then `is_live` is `true`, and `pid` is `None`.
    pub is_live: bool,
}

/// Returns the names in `directory`, or in the name directories of this process's user, sorted. Connects to each name
/// to find out whether a process listens; the listening program does not notice. A listener with its name in several
/// directories is listed once.
///
/// ```
/// for there in strait::meet::names(None)? {
///     println!("{} {}", there.name, if there.is_live { "is there" } else { "is gone" });
/// }
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Errors
/// A [`MeetError`], which names the directories. The reason is [`Error::UnsafeDirectory`] if other users could change
/// the directory; [`Error::NoDescriptors`] and [`Error::NoMemory`] if this process lacks what a connection takes;
/// [`Error::System`]. A directory that does not exist has no names.
pub fn names(directory: Option<&Path>) -> Result<Vec<Listening>, MeetError> {
    let location = NameDirectory(directory.map(Path::to_owned));
    names_in(&location)
        .map_err(|error| MeetError::new(Attempt::List, error).at_one_of(location.paths()).passing_over(&location))
}

fn names_in(location: &NameDirectory) -> Result<Vec<Listening>, Error> {
    let mut there = BTreeMap::new();
    for (_, directory) in location.open(own_user())? {
        for name in directory.names()? {
            match directory.look(&name) {
                Ok(Some(found)) if found.is_socket() => keep_live(&mut there, describe(name, &found)?),
                Err(error) if is_shortage(error) => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok(there.into_values().collect())
}

/// Adds `found` to `there` unless `there` has another listener of the same name. A live listener replaces a dead one.
fn keep_live(there: &mut BTreeMap<String, Listening>, found: Listening) {
    match there.get(&found.name) {
        Some(known) if known.is_live || !found.is_live => {}
        _ => drop(there.insert(found.name.clone(), found)),
    }
}

/// Removes the names of dead listeners of this process's user from `directory`, or from the user's name directories.
/// Returns the removed names, sorted.
///
/// Binding a listener removes some names of dead listeners too, so that such names do not pile up.
///
/// ```no_run
/// for name in strait::meet::prune(None)? {
///     println!("removed {name}");
/// }
/// # Ok::<(), strait::meet::MeetError>(())
/// ```
///
/// # Errors
/// As [`names`].
pub fn prune(directory: Option<&Path>) -> Result<Vec<String>, MeetError> {
    let location = NameDirectory(directory.map(Path::to_owned));
    prune_in(&location)
        .map_err(|error| MeetError::new(Attempt::List, error).at_one_of(location.paths()).passing_over(&location))
}

fn prune_in(location: &NameDirectory) -> Result<Vec<String>, Error> {
    let mut removed = BTreeSet::new();
    for (_, directory) in location.open(own_user())? {
        for name in directory.names()? {
            if directory.prune(&name)? {
                removed.insert(name);
            }
        }
    }
    Ok(removed.into_iter().collect())
}

/// Returns whether the error of an attempt to connect means that this process lacks descriptors or memory. Such an
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

/// Returns the name directories and the name that a program means by `given`. The last part of an absolute path is the
/// name, and the rest of the path is the directory, in place of `location`. Fails with [`Error::BadName`] if the name
/// is not valid.
pub(super) fn resolve(location: &NameDirectory, given: &str) -> Result<(NameDirectory, String), Error> {
    let (location, name) = if given.starts_with('/') {
        let (directory, name) = parted(Path::new(given)).ok_or(Error::BadName)?;
        (NameDirectory(Some(directory)), name)
    } else {
        (location.clone(), given.to_owned())
    };
    check(&name)?;
    Ok((location, name))
}

/// Returns the paths at which the socket file of the listener `name` can be, in the order in which it is looked for. If
/// the name is an absolute path, the result is this path alone.
pub(super) fn full(location: &NameDirectory, name: &str) -> Vec<PathBuf> {
    if name.starts_with('/') {
        return vec![PathBuf::from(name)];
    }
    location.paths().into_iter().map(|directory| directory.join(name)).collect()
}

/// Splits the path of a listener's socket file into the name directory and the name. `None` if the path is not absolute
/// or its last part is not a name.
pub(super) fn parted(path: &Path) -> Option<(PathBuf, String)> {
    let name = path.file_name()?.to_str()?.to_owned();
    let directory = path.parent().filter(|directory| directory.is_absolute())?.to_owned();
    Some((directory, name))
}

impl Connector {
    /// Returns a connector for the listener whose socket file has the path `path`, and the name of the listener; `None`
    /// if the path is not absolute or its last part is not a name.
    pub(super) fn at(path: &Path) -> Option<(Self, String)> {
        let (directory, name) = parted(path)?;
        Some((Self::new().directory(directory), name))
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
    fn an_absolute_path_names_its_directory() {
        let of = |given| resolve(&NameDirectory::default(), given).map(|(location, name)| (location.0, name));
        assert_eq!(of("name"), Ok((None, "name".to_owned())));
        assert_eq!(of("/run/service/name"), Ok((Some("/run/service".into()), "name".to_owned())));
        for bad in ["/", "/..", "/run/..", "/run/.hidden", "/run/a b", "run/name", "./name"] {
            assert_eq!(of(bad), Err(Error::BadName), "{bad}");
        }
        let elsewhere = NameDirectory(Some("/elsewhere".into()));
        assert_eq!(resolve(&elsewhere, "/run/name").map(|(location, _)| location.0), Ok(Some("/run".into())));
        assert_eq!(full(&NameDirectory::default(), "/run/name"), [PathBuf::from("/run/name")]);
    }

    #[test]
    fn a_path_is_a_directory_and_a_name() {
        assert_eq!(parted(Path::new("/run/service/name")), Some(("/run/service".into(), "name".to_owned())));
        assert_eq!(parted(Path::new("name")), None);
        assert_eq!(parted(Path::new("/")), None);
    }

    #[test]
    fn every_process_of_a_user_has_the_fallback_last() {
        let of = |user, set: &[(&str, &str)]| {
            let value = |name: &str| set.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into());
            candidates(user, value).iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(of(7, &[]), ["/run/user/7/strait", "/tmp/strait-7"]);
        assert_eq!(of(0, &[]), ["/run/user/0/strait", "/run/strait"]);
        assert_eq!(of(7, &[("XDG_RUNTIME_DIR", "/run/user/7")]), ["/run/user/7/strait", "/tmp/strait-7"]);
        assert_eq!(of(7, &[("XDG_RUNTIME_DIR", "/x")]), ["/x/strait", "/run/user/7/strait", "/tmp/strait-7"]);
        assert_eq!(of(7, &[("XDG_RUNTIME_DIR", "x")]), of(7, &[]));
        assert_eq!(of(7, &[("STRAIT_DIR", "/s"), ("XDG_RUNTIME_DIR", "/x")]), ["/s"]);
        assert_eq!(of(7, &[("STRAIT_DIR", "")]), of(7, &[]));
    }
}
