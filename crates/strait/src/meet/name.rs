//! Names, and the directory in which they are.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::connector::Connector;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::names::{Demand, Directory, Found, own_user};
use crate::os::socket::credentials;

/// Bytes of the longest name.
const LONGEST: usize = 64;

/// Refuses what could lead elsewhere, or be taken for something else.
pub(super) fn check(name: &str) -> Result<(), Error> {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let good = (1..=LONGEST).contains(&name.len()) && name.bytes().all(allowed) && !name.starts_with('.');
    if good { Ok(()) } else { Err(Error::BadName) }
}

/// Where the names are: those of this user, or those in some directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct NameDirectory(pub(super) Option<PathBuf>);

impl NameDirectory {
    /// Its path.
    pub(super) fn path(&self) -> PathBuf {
        self.0.clone().unwrap_or_else(of_user)
    }

    /// Opens it, if it is there, for whoever expects names of `owner` in it.
    pub(super) fn open(&self, owner: u32) -> Result<Option<Directory>, Error> {
        match &self.0 {
            Some(path) => Directory::open(path, Demand::Trusted { owner }),
            None => Directory::open(&of_user(), Demand::Private),
        }
    }

    /// Opens it to listen there. That of this user is made if it is not there.
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

/// The directory of this user's names: `strait` in `$XDG_RUNTIME_DIR`, in `/run/user/UID`, or for root in `/run`; where there
/// is none of these, `/tmp/strait-UID`.
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

/// A name under which somebody listens, or did.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Listening {
    /// The name.
    pub name: String,
    /// When it was taken.
    pub since: SystemTime,
    /// The user whose it is.
    pub uid: u32,
    /// The process that listens, as the kernel says: `None` if nobody does any more, or if it is in a process namespace that
    /// this one does not see.
    pub pid: Option<u32>,
    /// Whether anybody listens.
    pub is_live: bool,
}

/// The names of this user, or those in `directory`, sorted. That somebody listens is found out by connecting to it, which it
/// does not notice.
///
/// ```
/// for there in strait::names(None)? {
///     println!("{} {}", there.name, if there.is_live { "is there" } else { "is gone" });
/// }
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Errors
/// [`Error::UnsafeDirectory`] if the directory is not what a directory of names must be; [`Error::NoDescriptors`] and
/// [`Error::NoMemory`] if this process lacks what asking a listener takes; [`Error::System`]. A directory that is not there has no
/// names.
pub fn names(directory: Option<&Path>) -> Result<Vec<Listening>, Error> {
    let place = NameDirectory(directory.map(Path::to_owned));
    let Some(directory) = place.open(own_user())? else { return Ok(Vec::new()) };
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

/// Whether this process lacks something, so that an error says nothing of what it asked about.
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

/// The path of a name, for whoever is to be told of it.
pub(super) fn full(place: &NameDirectory, name: &str) -> PathBuf {
    place.path().join(name)
}

/// The place and the name in a full path.
pub(super) fn parted(path: &Path) -> Option<(NameDirectory, String)> {
    let name = path.file_name()?.to_str()?.to_owned();
    let directory = path.parent().filter(|directory| directory.is_absolute())?.to_owned();
    let place = if directory == of_user() { NameDirectory(None) } else { NameDirectory(Some(directory)) };
    Some((place, name))
}

impl Connector {
    /// For the name at the end of this path.
    pub(super) fn at(path: &Path) -> Option<Self> {
        let (place, name) = parted(path)?;
        let connector = Self::new(&name);
        Some(match place.0 {
            Some(directory) => connector.directory(directory),
            None => connector,
        })
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
        let place = NameDirectory(Some("/run/service".into()));
        assert_eq!(parted(&full(&place, "name")), Some((place, "name".to_owned())));
        assert_eq!(parted(&full(&NameDirectory(None), "name")), Some((NameDirectory(None), "name".to_owned())));
        assert_eq!(parted(Path::new("name")), None);
        assert_eq!(parted(Path::new("/")), None);
    }
}
