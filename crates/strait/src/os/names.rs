//! Names on disk: directories, checked before use, and the sockets in these directories.
//!
//! A directory is opened once, and everything in it is reached through the open descriptor. So no process can replace
//! the directory between the check and the use. For the same reason the check of a socket and the connection both go
//! through one descriptor of the socket (`O_PATH`): a plain `connect` would follow symbolic links.

use std::ffi::OsStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, SystemTime};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::inotify::{self, WatchFlags};
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
use crate::os::process::held::{Opened, poll};
use crate::signals;
use crate::sync::unpoisoned;

/// Number of pending connections that this process asks the kernel to hold for a listener. A system can be configured
/// to hold fewer.
const BACKLOG: i32 = 4096;

/// The condition for a name directory that this process uses.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Demand {
    /// `Private`: the condition that the directory belongs to this process's user, and that no other user has any
    /// access to it.
    Private,
    /// `Trusted`: the condition that the directory belongs to root, to this process's user or to the user `owner`, and
    /// that no other user can write to it.
    Trusted {
        /// The uid of the further user that may own the directory.
        owner: u32,
    },
}

/// An open directory that has met its condition, a [`Demand`].
#[derive(Debug)]
pub(crate) struct Directory(OwnedFd);

/// Returns the effective uid of this process.
pub(crate) fn own_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// The uid that the kernel shows, in a user namespace, for all users without a mapping in the namespace.
const UNMAPPED: u32 = 65534;

/// Returns whether `uid` stands for a single user. In a user namespace that does not map all users, 65534 stands for
/// all unmapped users; every other uid is one user.
pub(crate) fn is_one_user(uid: u32) -> bool {
    let all = ["0", "0", "4294967295"];
    uid != UNMAPPED || std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| map.split_whitespace().eq(all))
}

/// The reason, in the text of errors, for refusing a directory that belongs to another user.
const OTHER_OWNER: &str = "it belongs to another user: chown it, or use a directory of this user";

/// The reason, in the text of errors, for refusing a directory that this process's user may not open or make.
const NO_ACCESS: &str = "this user may not open or make it: use a directory of this user";

/// A mutex that a thread of this process holds together with the kernel's lock of a name. The kernel's lock excludes
/// other processes, but not the other threads of the process.
static TURN: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

impl Directory {
    /// Opens the directory `path` and checks that it meets `demand`. Returns `None` if the path does not exist; fails
    /// with [`Error::UnsafeDirectory`] if the directory does not meet the condition.
    pub(crate) fn open(path: &Path, demand: Demand) -> Result<Option<Self>, Error> {
        // `O_PATH` would not permit reading the names in the directory.
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
        match call("open", || rustix::fs::open(path, flags, Mode::empty())) {
            Ok(directory) => Self::check(directory, demand).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::LOOP | Errno::NOTDIR) => {
                Err(Error::UnsafeDirectory("it is a link, or no directory: give a directory by its own path"))
            }
            Err(Errno::ACCESS) if matches!(demand, Demand::Private) => Err(Error::UnsafeDirectory(NO_ACCESS)),
            Err(errno) => Err(failed("open", errno)),
        }
    }

    /// Opens the directory `path`, which must belong to this process's user alone; makes the directory if it does not
    /// exist. Returns `None`, and creates nothing, if the parent directory does not exist. Fails with
    /// [`Error::UnsafeDirectory`] also if the user may not make the directory, or the parent directory belongs neither
    /// to the user nor to root: a directory that root makes in the runtime directory of a user would keep the user out.
    pub(crate) fn open_or_make(path: &Path) -> Result<Option<Self>, Error> {
        if let Some(there) = Self::open(path, Demand::Private)? {
            return Ok(Some(there));
        }
        match call("stat", || rustix::fs::stat(path.parent().unwrap_or(path))) {
            Ok(above) if ![0, own_user()].contains(&above.st_uid) => return Err(Error::UnsafeDirectory(OTHER_OWNER)),
            Err(Errno::NOENT) => return Ok(None),
            Ok(_) | Err(_) => {}
        }
        match call("mkdir", || rustix::fs::mkdir(path, Mode::RWXU)) {
            Ok(()) | Err(Errno::EXIST) => Self::open(path, Demand::Private),
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::ACCESS | Errno::PERM | Errno::ROFS) => Err(Error::UnsafeDirectory(NO_ACCESS)),
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

    /// Locks the listener name `name`: no other process can take the name until the returned guard is dropped, or this
    /// process ends. Waits while another process holds the lock.
    ///
    /// The lock is on a file that only the owner of the directory can open, because a process that can open a file can
    /// lock it. Locks of this kind belong to a process, so a child that inherits the open file does not hold the lock.
    fn lock(&self, name: &str) -> Result<Locked<'_>, Error> {
        let turn = unpoisoned(TURN.get());
        let name = format!(".{name}.lock");
        loop {
            let file = self.open_lock(&name)?;
            let lock = || rustix::fs::fcntl_lock(&file, FlockOperation::LockExclusive);
            rustix::io::retry_on_intr(|| call("fcntl(F_SETLKW)", lock)).named("fcntl(F_SETLKW)")?;
            if self.is_lock(&name, &file)? {
                return Ok(Locked { directory: self, name, _file: file, _turn: turn });
            }
        }
    }

    /// Locks the listener name `name` as [`lock`](Self::lock) does, but never waits: returns `None` if a process or
    /// another thread of this process holds the lock.
    fn try_lock(&self, name: &str) -> Result<Option<Locked<'_>>, Error> {
        let turn = match TURN.get().try_lock() {
            Ok(turn) => turn,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(None),
        };
        let name = format!(".{name}.lock");
        let file = self.open_lock(&name)?;
        let lock = || rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        match rustix::io::retry_on_intr(|| call("fcntl(F_SETLK)", lock)) {
            Err(Errno::AGAIN | Errno::ACCESS) => return Ok(None),
            locked => locked.named("fcntl(F_SETLK)")?,
        }
        let is_lock = self.is_lock(&name, &file)?;
        Ok(is_lock.then(|| Locked { directory: self, name, _file: file, _turn: turn }))
    }

    /// Returns whether the open file `file` is still the lock file with the name `name`. If not, the process that held
    /// the lock has removed the file; there may be a new file by now, locked by another process.
    fn is_lock(&self, name: &str, file: &OwnedFd) -> Result<bool, Error> {
        let stat = call("fstat", || rustix::fs::fstat(file)).named("fstat")?;
        Ok(self.file_id(name).is_ok_and(|there| there == FileId::of(&stat)))
    }

    fn open_lock(&self, name: &str) -> Result<OwnedFd, Error> {
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        call("open", || rustix::fs::openat(&self.0, name, flags, Mode::RUSR | Mode::WUSR)).named("open")
    }

    /// Returns the socket address of the name `name` in the directory. The address is short even if the path of the
    /// directory is long.
    fn address(&self, name: &str) -> Result<SocketAddrUnix, Error> {
        SocketAddrUnix::new(format!("/proc/self/fd/{}/{name}", self.0.as_raw_fd())).map_err(|_| Error::BadName)
    }

    /// Creates a listening socket under the name `name`, with the permissions `mode`. Replaces a socket of the same
    /// name on which no process listens any more; fails with [`Error::NameTaken`] if a process listens. Returns the
    /// listening socket, and the identity of the file that stands for the name.
    pub(crate) fn listen(&self, name: &str, mode: u32) -> Result<(OwnedFd, FileId), Error> {
        let locked = self.lock(name)?;
        match self.look(name)? {
            Some(found) if found.is_live()? => return Err(Error::NameTaken),
            Some(_) => match call("unlink", || rustix::fs::unlinkat(&self.0, name, AtFlags::empty())) {
                // The listener with this name has removed the name just now.
                Err(Errno::NOENT) => {}
                removed => removed.named("unlink")?,
            },
            None => {}
        }
        let socket = seqpacket(SocketFlags::CLOEXEC)?;
        // The permissions are set before the socket has a name, so that the socket is never open to all users; the
        // umask can only restrict the permissions.
        call("fchmod", || rustix::fs::fchmod(&socket, Mode::from_raw_mode(mode))).named("fchmod")?;
        credentials::ask(socket.as_fd(), true)?;
        // A process that was not accepted yet has no reason to send descriptors. Kernels before 6.16 cannot refuse
        // descriptors.
        let _ = credentials::accept_rights(socket.as_fd(), false);
        let address = self.address(name)?;
        match call("bind", || net::bind(&socket, &address)) {
            // The directory exists, so `/proc` is missing.
            Err(Errno::NOENT) => return Err(failed("bind through /proc", Errno::NOENT)),
            bound => bound.named("bind")?,
        }
        let file_id = self.file_id(name);
        let listening = file_id.and_then(|file_id| {
            let mode = Mode::from_raw_mode(mode);
            call("chmod", || rustix::fs::chmodat(&self.0, name, mode, AtFlags::empty())).named("chmod")?;
            call("listen", || net::listen(&socket, BACKLOG)).named("listen")?;
            Ok(file_id)
        });
        if listening.is_err() {
            // Without the lock the name might be another process's by now.
            let _ = rustix::fs::unlinkat(&self.0, name, AtFlags::empty());
        }
        drop(locked);
        listening.map(|file_id| (socket, file_id))
    }

    /// Removes the listener name `name` if no process listens under the name and its socket belongs to this process's
    /// user. Returns whether the name was removed. A listener that is being made has a name before it listens, and
    /// holds the lock meanwhile: while another process holds the lock, nothing is removed. Does not wait for the lock:
    /// the other process may be stopped.
    pub(crate) fn prune(&self, name: &str) -> Result<bool, Error> {
        let is_dead =
            || self.look(name).and_then(|found| found.map_or(Ok(false), |found| found.is_live().map(|is| !is)));
        if !is_dead()? {
            return Ok(false);
        }
        let Some(_locked) = self.try_lock(name)? else { return Ok(false) };
        if !is_dead()? {
            return Ok(false);
        }
        match call("unlink", || rustix::fs::unlinkat(&self.0, name, AtFlags::empty())) {
            Err(Errno::NOENT) => Ok(false),
            removed => removed.named("unlink").map(|()| true),
        }
    }

    /// Returns the identity (device and inode) of the file that has the name `name` in the directory now.
    fn file_id(&self, name: &str) -> Result<FileId, Error> {
        let stat = call("stat", || rustix::fs::statat(&self.0, name, AtFlags::SYMLINK_NOFOLLOW)).named("stat")?;
        Ok(FileId::of(&stat))
    }

    /// Removes the listener name `name` if the name still stands for the file `file_id`; otherwise does nothing. No
    /// lock is needed: while the listener's socket listens, no other process takes the name.
    pub(crate) fn unlink(&self, name: &str, file_id: FileId) {
        if self.file_id(name).is_ok_and(|there| there == file_id) {
            let _ = call("unlink(name)", || rustix::fs::unlinkat(&self.0, name, AtFlags::empty()));
        }
    }

    /// Opens the file with the name `name` in the directory, to ask about it, without following a link. Returns `None`
    /// if there is no such file.
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

    /// Returns the names of all files in the directory, sorted, without names that begin with a dot or are not UTF-8.
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

/// Watches directories for names that come and go.
///
/// The close of the descriptor of a watch waits until no processor uses the watched directories any more, which can
/// take seconds on a loaded machine. So a thread without a deadline closes the descriptor ([`into_fd`](Self::into_fd)).
pub(crate) struct Watch(OwnedFd);

impl Watch {
    /// Makes a watch of no directory. Fails with an [`Error::System`] that names the kernel's limit if this process's
    /// user has too many watches.
    pub(crate) fn new() -> Result<Self, Error> {
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        match call("inotify_init1", || inotify::init(flags)) {
            Err(Errno::MFILE) => Err(Error::System {
                call: "inotify_init1 (limits: open files, and sysctl fs.inotify.max_user_instances)",
                code: Errno::MFILE.raw_os_error(),
            }),
            made => made.named("inotify_init1").map(Self),
        }
    }

    /// Watches `directory`; does nothing if the directory is watched already. Fails with an [`Error::System`] that
    /// names the kernel's limit if this process's user watches too many directories.
    pub(crate) fn add(&self, directory: &Directory) -> Result<(), Error> {
        // A listener's socket listens before its lock file is deleted.
        let events = WatchFlags::CREATE | WatchFlags::DELETE | WatchFlags::MOVED_TO | WatchFlags::DELETE_SELF;
        let path = format!("/proc/self/fd/{}", directory.0.as_raw_fd());
        match call("inotify_add_watch", || inotify::add_watch(&self.0, &path, events)) {
            Err(Errno::NOSPC) => Err(Error::System {
                call: "inotify_add_watch (limit: sysctl fs.inotify.max_user_watches)",
                code: Errno::NOSPC.raw_os_error(),
            }),
            added => added.named("inotify_add_watch").map(drop),
        }
    }

    /// Returns the descriptor of the watch, to be closed.
    pub(crate) fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Sleeps until something has changed in a watched directory since the watch began or `wait` last returned, at most
    /// until `deadline`. A signal ends the sleep of a thread with a [guard](signals::Guard).
    pub(crate) fn wait(&self, deadline: Deadline) -> Result<(), Error> {
        let limit = signals::bounded(deadline.remaining(std::time::Instant::now()));
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        match call("ppoll", || poll(&mut [PollFd::new(&self.0, PollFlags::IN)], limit.as_ref())) {
            Ok(_) => {}
            Err(Errno::INTR) if signals::interrupted() => signals::check()?,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("poll", errno)),
        }
        let mut events = [0; 4096];
        while rustix::io::read(&self.0, &mut events).is_ok() {}
        Ok(())
    }
}

/// The lock of a listener name in a directory. Dropping this value releases the lock.
struct Locked<'a> {
    directory: &'a Directory,
    /// Name of the lock file: the locked listener name with a dot before it and `.lock` behind it.
    name: String,
    _file: OwnedFd,
    _turn: MutexGuard<'static, ()>,
}

impl Drop for Locked<'_> {
    /// Removes the lock file while still holding the lock. Processes that wait for the lock then notice the removal,
    /// and lock a new file.
    fn drop(&mut self) {
        let _ = call("unlink(lock)", || rustix::fs::unlinkat(&self.directory.0, &self.name, AtFlags::empty()));
    }
}

/// The identity of a file: its device and inode. A rename does not change the identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    fn of(stat: &Stat) -> Self {
        Self { device: stat.st_dev, inode: stat.st_ino }
    }
}

/// A file found under a listener name, held open. The value refers to the same file even after the name is removed or
/// given to another file.
pub(crate) struct Found {
    file: OwnedFd,
    stat: Stat,
}

impl Found {
    pub(crate) fn is_socket(&self) -> bool {
        FileType::from_raw_mode(self.stat.st_mode) == FileType::Socket
    }

    /// Returns the uid of the owner of the found file.
    pub(crate) fn owner(&self) -> u32 {
        self.stat.st_uid
    }

    /// Returns the time when the inode of the found file last changed, in whole seconds. For a socket, the time when
    /// the socket was made.
    pub(crate) fn since(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(self.stat.st_ctime).unwrap_or(0))
    }

    /// Returns whether a process listens on the socket found under a listener name. Returns `true` also for a file that
    /// is not a socket of this process's user, because such a file must not be replaced. Fails if this process lacks
    /// the resources to ask.
    fn is_live(&self) -> Result<bool, Error> {
        if !self.is_socket() || self.owner() != own_user() {
            return Ok(true);
        }
        match self.connect(Deadline::NOW) {
            Err(Error::NobodyThere) => Ok(false),
            // This process could not ask whether the listener is alive.
            Err(error @ (Error::NoDescriptors | Error::NoMemory { .. })) => Err(error),
            // The listener is busy, or the socket is of another type.
            Ok(_) | Err(_) => Ok(true),
        }
    }

    /// Connects to the found listening socket. While the listener's queue of connections is full, blocks, at most until
    /// `deadline`. Fails with [`Error::NobodyThere`] if no process listens on the socket.
    pub(crate) fn connect(&self, deadline: Deadline) -> Result<OwnedFd, Error> {
        let flags = if deadline.is_now() { SocketFlags::CLOEXEC | SocketFlags::NONBLOCK } else { SocketFlags::CLOEXEC };
        let socket = seqpacket(flags)?;
        // Set before any packet can arrive, so that the kernel names the sender of the first packet.
        credentials::ask(socket.as_fd(), true)?;
        let address = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let address = SocketAddrUnix::new(address).map_err(|_| Error::BadName)?;
        loop {
            let left = deadline.remaining(std::time::Instant::now());
            let opened = if deadline.is_now() { None } else { Opened::new() };
            if opened.as_ref().is_some_and(Opened::came) {
                signals::check()?;
            }
            let bounded = opened.as_ref().map(|opened| opened.bounded(left));
            if let Some(left) = bounded.or_else(|| signals::bounded(left))
                && !deadline.is_now()
            {
                // A timeout of 0 would mean no timeout.
                let left = left.max(Duration::from_millis(1));
                set_socket_timeout(&socket, Timeout::Send, Some(left)).named("setsockopt(SO_SNDTIMEO)")?;
            }
            return match call("connect", || net::connect(&socket, &address)) {
                Ok(()) => Ok(socket),
                Err(Errno::INTR) if signals::interrupted() && !deadline.is_now() => signals::check().map(|()| socket),
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => Err(Error::NobodyThere),
                // The file exists, so `/proc` is missing.
                Err(Errno::NOENT) => Err(failed("connect through /proc", Errno::NOENT)),
                Err(Errno::AGAIN) if deadline.is_now() => Err(Error::WouldBlock),
                // The sleep ended at its own limit, before the deadline: a signal may have come right before the sleep.
                Err(Errno::AGAIN) if opened.is_some() && !deadline.has_passed() => Err(Error::Signalled),
                // Under a guard against signals a sleep without a deadline has a limit too.
                Err(Errno::AGAIN) if !deadline.has_passed() => continue,
                Err(Errno::AGAIN) => Err(Error::TimedOut),
                Err(errno) => Err(failed("connect", errno)),
            };
        }
    }
}

/// Creates an unconnected Unix socket of type `SOCK_SEQPACKET`.
fn seqpacket(flags: SocketFlags) -> Result<OwnedFd, Error> {
    call("socket", || net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)).named("socket")
}

/// Accepts one connection from the queue of the listening socket. Returns the connected socket; `None` if the queue is
/// empty.
pub(crate) fn accept(listening: BorrowedFd<'_>) -> Result<Option<OwnedFd>, Error> {
    loop {
        return match call("accept", || net::accept_with(listening, SocketFlags::CLOEXEC)) {
            Ok(socket) => Ok(Some(socket)),
            Err(Errno::INTR) => continue,
            // The error ECONNABORTED means that the connecting process is gone already.
            Err(Errno::AGAIN | Errno::CONNABORTED) => Ok(None),
            Err(errno) => Err(failed("accept", errno)),
        };
    }
}

/// Sets `O_NONBLOCK` on the listening socket: [`accept`] then never blocks. The flag belongs to the open file, so no
/// other process may share the socket.
pub(crate) fn set_nonblocking(listening: BorrowedFd<'_>) -> Result<(), Error> {
    let flags = rustix::fs::fcntl_getfl(listening).named("fcntl(F_GETFL)")?;
    rustix::fs::fcntl_setfl(listening, flags | OFlags::NONBLOCK).named("fcntl(F_SETFL)")
}

/// Returns whether `fd` is a listening Unix socket of type `SOCK_SEQPACKET`.
pub(crate) fn is_listening(fd: BorrowedFd<'_>) -> bool {
    sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_acceptconn(fd) == Ok(true)
}

/// Returns the path to which the listening socket is bound; `None` if it has no path.
pub(crate) fn path_of(fd: BorrowedFd<'_>) -> Option<PathBuf> {
    let address = SocketAddrUnix::try_from(net::getsockname(fd).ok()?).ok()?;
    Some(PathBuf::from(OsStr::from_bytes(address.path()?.to_bytes())))
}
