//! Names on disk: directories that are looked at before they are used, and the sockets in them.
//!
//! A directory is opened once and everything in it is reached through that descriptor, so that nobody can put another one
//! in its place between a check and a use. A socket is looked at through a descriptor of its own (`O_PATH`) and connected
//! to through that, for the same reason: a plain `connect` follows symbolic links.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, SystemTime};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Stat};
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt,
    sockopt::{Timeout, set_socket_timeout},
};

use super::socket::credentials;
use super::{Named, call, failed};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::os::fork::PerProcess;
use crate::sync::unpoisoned;

/// Connections that the kernel keeps until they are accepted; it may be set to keep fewer.
const BACKLOG: i32 = 4096;

/// What a directory must be like to be used.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// This user's, and nobody else's business.
    Private,
    /// Writable by this user, root or `owner` only.
    Trusted {
        /// Who else may own it.
        owner: u32,
    },
}

/// An open directory that was found to be safe.
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

/// The user this process acts as.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The number under which a user namespace shows everybody whom it does not know.
const UNMAPPED: u32 = 65534;

/// Whether this number stands for one user. In a namespace that does not know all users, 65534 stands for any of the others.
pub(crate) fn is_one_user(uid: u32) -> bool {
    let all = ["0", "0", "4294967295"];
    uid != UNMAPPED || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(all))
}

/// Why a directory of somebody else's is refused.
const OTHER_OWNER: &str = "it belongs to another user: chown it, or use a directory of this user";

impl Directory {
    /// Opens it; `None` if it is not there.
    pub(crate) fn open(path: &Path, demand: Demand) -> Result<Option<Self>, Error> {
        // Not `O_PATH`, whose names cannot be read.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        match call("open", || rustix::fs::open(path, flags, Mode::empty())) {
            Ok(directory) => Self::check(directory, demand).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                Err(Error::UnsafeDirectory("it is a link, or no directory: give a directory by its own path"))
            }
            Err(errno) => Err(failed("open", errno)),
        }
    }

    /// Makes it for this user alone, if it is not there. False if the one above it is not there.
    pub(crate) fn make(path: &Path) -> Result<bool, Error> {
        match call("mkdir", || rustix::fs::mkdir(path, Mode::RWXU)) {
            Ok(()) | Err(Errno::EXIST) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(failed("mkdir", errno)),
        }
    }

    fn check(directory: OwnedFd, demand: Demand) -> Result<Self, Error> {
        let stat = call("fstat", || rustix::fs::fstat(&directory)).named("fstat")?;
        let mode = stat.st_mode & 0o777;
        match demand {
            Demand::Private if stat.st_uid != own_user() => Err(Error::UnsafeDirectory(OTHER_OWNER)),
            Demand::Private if mode & 0o077 != 0 => {
                Err(Error::UnsafeDirectory("other users may look into it: chmod 700 it"))
            }
            Demand::Trusted { owner } if ![0, own_user(), owner].contains(&stat.st_uid) => {
                Err(Error::UnsafeDirectory(OTHER_OWNER))
            }
            Demand::Trusted { .. } if mode & 0o022 != 0 => {
                Err(Error::UnsafeDirectory("other users may write to it: chmod go-w it"))
            }
            _ => Ok(Self(directory)),
        }
    }

    /// Keeps other processes from taking this name until the guard is dropped, or this process ends. Waits for one that takes it.
    ///
    /// The lock is on a file that nobody but the owner of the directory can open: who can open a file can lock it. It is of the
    /// kind that belongs to a process, so a child that has the file open too does not hold it.
    fn lock(&self, name: &str) -> Result<Locked<'_>, Error> {
        /// Threads of one process have such a lock together.
        static TURN: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);
        let turn = unpoisoned(TURN.get());
        let name = format!(".{name}.lock");
        loop {
            let file = self.open_lock(&name)?;
            let lock = || rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive);
            rustix::io::retry_on_intr(|| call("fcntl(F_SETLKW)", lock)).named("fcntl(F_SETLKW)")?;
            let stat = call("fstat", || rustix::fs::fstat(&file)).named("fstat")?;
            // The process that had the lock has removed the file: another one may stand there, and be locked.
            if self.place(&name).is_ok_and(|there| there == Place::of(&stat)) {
                return Ok(Locked { directory: self, name, _file: file, _turn: turn });
            }
        }
    }

    fn open_lock(&self, name: &str) -> Result<OwnedFd, Error> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        call("open", || rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)).named("open")
    }

    /// Where a name in it is, however long its own path is.
    fn address(&self, name: &str) -> Result<SocketAddrUnix, Error> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd())).map_err(|_| Error::BadName)
    }

    /// Listens under this name, with these permissions. A name that nobody listens under any more is taken over.
    pub(crate) fn listen(&self, name: &str, mode: u32) -> Result<(OwnedFd, Place), Error> {
        let locked = self.lock(name)?;
        match self.look(name)? {
            Some(found) if found.is_live()? => return Err(Error::NameTaken),
            Some(_) => match call("unlink", || rustix::fs::unlinkat(&self.0, name, AtFlags::empty())) {
                // The listener that had the name has removed it just now.
                Err(Errno::NOENT) => {}
                removed => removed.named("unlink")?,
            },
            None => {}
        }
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        // Before it has a name, so that there is no moment in which it is anybody's; the umask can only take away.
        call("fchmod", || rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))).named("fchmod")?;
        credentials::ask(socket.as_fd(), true)?;
        // Nobody who was not let in yet has a reason to send descriptors. Kernels before 6.16 cannot refuse them.
        let _ = credentials::accept_rights(socket.as_fd(), false);
        let address = self.address(name)?;
        match call("bind", || net::bind(&socket, &address)) {
            // The directory is there, so `/proc` is not.
            Err(Errno::NOENT) => return Err(failed("bind through /proc", Errno::NOENT)),
            bound => bound.named("bind")?,
        }
        let place = self.place(name);
        let listening = place.and_then(|place| {
            let mode = Mode::from_raw_mode(mode);
            call("chmod", || rustix::fs::chmodat(&self.0, name, mode, AtFlags::empty())).named("chmod")?;
            call("listen", || net::listen(&socket, BACKLOG)).named("listen")?;
            Ok(place)
        });
        drop(locked);
        match listening {
            Ok(place) => Ok((socket, place)),
            Err(error) => {
                let _ = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
                Err(error)
            }
        }
    }

    /// Which file stands under this name.
    fn place(&self, name: &str) -> Result<Place, Error> {
        let stat = call("stat", || rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)).named("stat")?;
        Ok(Place::of(&stat))
    }

    /// Removes the name of a listener, if it still stands for this file. As long as its socket listens no other process takes
    /// the name, so this needs no lock.
    pub(crate) fn unlink(&self, name: &str, place: Place) {
        if self.place(name).is_ok_and(|there| there == place) {
            let _ = call("unlink(name)", || rustix::fs::unlinkat(&self.0, name, AtFlags::empty()));
        }
    }

    /// What stands under this name, if anything does.
    pub(crate) fn look(&self, name: &str) -> Result<Option<Found>, Error> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = match call("open", || rustix::fs::openat(&self.0, name, flags, Mode::empty())) {
            Ok(file) => file,
            Err(Errno::NOENT) => return Ok(None),
            Err(errno) => return Err(failed("open", errno)),
        };
        let stat = call("fstat", || rustix::fs::fstat(&file)).named("fstat")?;
        Ok(Some(Found { file, stat }))
    }

    /// What is called how in it.
    pub(crate) fn names(&self) -> Result<Vec<String>, Error> {
        let mut names = Vec::new();
        for entry in rustix::fs::Dir::read_from(&self.0).named("getdents")? {
            if let Ok(name) = entry.named("getdents")?.file_name().to_str()
                && !name.starts_with('.')
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }
}

/// Holds the lock of a name.
struct Locked<'a> {
    directory: &'a Directory,
    /// Of the file that is locked.
    name: String,
    _file: OwnedFd,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Locked<'_> {
    /// Removes the file while it is still locked: processes that wait for it look for another one.
    fn drop(&mut self) {
        let _ = call("unlink(lock)", || rustix::fs::unlinkat(&self.directory.0, &self.name, AtFlags::empty()));
    }
}

/// A file, by what does not change when it is renamed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    device: u64,
    inode: u64,
}

impl Place {
    fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// What was found under a name: the file itself, whatever happens to the name.
pub(crate) struct Found {
    file: OwnedFd,
    stat: Stat,
}

impl Found {
    pub(crate) fn is_socket(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Socket
    }

    /// Whose it is.
    pub(crate) fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// When it was made.
    pub(crate) fn since(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(self.stat.st_ctime).unwrap_or(0))
    }

    /// Whether somebody listens there. What is no socket of ours is not ours to replace either, and so counts as live.
    fn is_live(&self) -> Result<bool, Error> {
        if !self.is_socket() || self.owner() != own_user() {
            return Ok(true);
        }
        match self.connect(Deadline::NOW) {
            Err(Error::NobodyThere) => Ok(false),
            // This process could not ask whether somebody listens.
            Err(error @ (Error::NoDescriptors | Error::NoMemory { .. })) => Err(error),
            // It has no time now, or speaks another kind of socket.
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// Connects to it. Blocks while its queue is full, until the deadline.
    pub(crate) fn connect(&self, deadline: Deadline) -> Result<OwnedFd, Error> {
        let flags = if deadline.is_now() { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK } else { SocketFlags::CLOEXEC };
        let socket = seqpacket(flags)?;
        // Before anybody can say hello, so that the kernel says who does.
        credentials::ask(socket.as_fd(), true)?;
        let address = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let address = SocketAddrUnix::new(address).map_err(|_| Error::BadName)?;
        loop {
            if let Some(left) = deadline.remaining(std::time::Instant::now())
                && !deadline.is_now()
            {
                // A time of nothing would mean for ever.
                let left = left.max(Duration::from_millis(1));
                set_socket_timeout(&socket, Timeout::Send, Some(left)).named("setsockopt(SO_SNDTIMEO)")?;
            }
            return match call("connect", || net::connect(&socket, &address)) {
                Ok(()) => Ok(socket),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => Err(Error::NobodyThere),
                // The file is there and `/proc` is not.
                Err(Errno::NOENT) => Err(failed("connect through /proc", Errno::NOENT)),
                Err(Errno::AGAIN) if deadline.is_now() => Err(Error::WouldBlock),
                Err(Errno::AGAIN) => Err(Error::TimedOut),
                Err(errno) => Err(failed("connect", errno)),
            };
        }
    }
}

/// A socket that keeps packets whole.
fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Error> {
    call("socket", || net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)).named("socket")
}

/// Takes one connection out of a listening socket's queue; `None` if there is none.
pub(crate) fn accept(listening: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Error> {
    loop {
        return match call("accept", || net::accept_with(listening, SocketFlags::CLOEXEC)) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::INTR) => continue,
            // Whoever it was is gone.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(failed("accept", errno)),
        };
    }
}

/// Has `accept` never block. The flag is the open file's: nobody else may have it.
pub(crate) fn set_nonblocking(listening: BorrowedFd<'_>) -> Result<(), Error> {
    let flags = rustix::fs::fcntl_getfl(listening).named("fcntl(F_GETFL)")?;
    rustix::fs::fcntl_setfl(listening, flags | OFlags::NONBLOCK).named("fcntl(F_SETFL)")
}

/// Whether this is a Unix socket that listens and keeps packets whole.
pub(crate) fn is_listening(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_acceptconn(fd) == Ok(true)
}

/// The path of a listening socket, if it has one.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(net::getsockname(fd).ok()?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path()?.to_bytes())))
}
