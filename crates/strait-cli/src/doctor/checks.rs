//! The checks, in the order in which they are shown.

use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Listener, Options, Outgoing};

use super::Finding;

/// Time limit of each step; the steps take microseconds.
const DEADLINE: Duration = Duration::from_secs(10);

/// How to fix a sandbox that refuses a system call.
const SANDBOX: &str = "allow the call in the sandbox's filter \
     (https://github.com/strait-ipc/strait/blob/main/docs/reference/system-calls.md), or make channels before it \
     is active";

/// How to fix a limit on the size of files that is too low.
const FILE_SIZE: &str = "ulimit -f unlimited";

/// Runs all checks, and returns their findings.
pub(super) fn all() -> Vec<Finding> {
    vec![
        kernel(),
        seccomp(),
        namespaces(),
        memfd(),
        memfd_policy(),
        futex(),
        descriptors_travel(),
        credentials(),
        pidfd(),
        rights(),
        open_files(),
        file_size(),
        processors(),
        spinning(),
        proc(),
        names(),
        channel(),
        ends(),
        wait_set(),
    ]
}

/// Describes the error of a system call that failed.
fn refused(errno: Errno) -> String {
    match errno {
        Errno::NOSYS => "not in this kernel, or hidden by a filter".to_owned(),
        Errno::PERM | Errno::ACCESS => "refused by a filter or a policy".to_owned(),
        other => std::io::Error::from(other).to_string(),
    }
}

/// Returns the finding of a check in which Strait failed with `error`.
fn failed(what: &'static str, error: String) -> Finding {
    // The text of the error names the limit.
    let cure = if error.contains("RLIMIT_FSIZE") { FILE_SIZE } else { SANDBOX };
    Finding::broken(what, error, cure)
}

/// Checks the version of the kernel.
fn kernel() -> Finding {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version >= (5, 10) {
        Finding::good("kernel", release)
    } else {
        Finding::broken("kernel", release, "Linux 5.10 or later")
    }
}

/// Returns a field of `/proc/self/status`.
fn status(field: &str) -> Option<String> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    status.lines().find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(':')?.trim().to_owned()))
}

/// Reports whether a seccomp filter is active.
fn seccomp() -> Finding {
    match status("Seccomp").as_deref() {
        Some("0") => Finding::good("seccomp", "no filter"),
        Some(_) => Finding::good("seccomp", "a filter is active; what it refuses shows below"),
        None => Finding::good("seccomp", "not known"),
    }
}

/// Reports whether this process is in the initial user and PID namespaces. The kernel gives both a fixed number.
fn namespaces() -> Finding {
    let is_own = |name: &str, initial: &str| {
        let namespace = fs::read_link(format!("/proc/self/ns/{name}")).ok()?;
        Some(namespace != Path::new(initial))
    };
    let found = match (is_own("user", "user:[4026531837]"), is_own("pid", "pid:[4026531836]")) {
        (Some(false), Some(false)) => "initial namespaces",
        (Some(true), Some(false)) => "own user namespace: peers outside appear as user 65534 unless they are mapped",
        (Some(false), Some(true)) => "own PID namespace: peers outside have no process number",
        (Some(true), Some(true)) => "own user and PID namespaces: peers outside are unknown unless they are mapped",
        _ => "not known",
    };
    Finding::good("namespaces", found)
}

/// Checks that memfds can be made and sealed.
fn memfd() -> Finding {
    let sealed = || -> Result<(), Errno> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = match rustix::fs::memfd_create("strait-doctor", flags | MemfdFlags::NOEXEC_SEAL) {
            Err(Errno::INVAL) => rustix::fs::memfd_create("strait-doctor", flags)?,
            made => made?,
        };
        rustix::fs::ftruncate(&fd, 4096)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
    };
    const WHAT: &str = "memfd_create, sealing";
    // A signal ends a process that makes a file longer than this limit.
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|limit| *limit < 4096) {
        return Finding::broken(WHAT, format!("RLIMIT_FSIZE is {limit} bytes"), FILE_SIZE);
    }
    match sealed() {
        Ok(()) => Finding::good(WHAT, "works"),
        Err(errno) => Finding::broken(WHAT, refused(errno), SANDBOX),
    }
}

/// Reports the kernel's policy on executable memfds.
fn memfd_policy() -> Finding {
    let value = fs::read_to_string("/proc/sys/vm/memfd_noexec").unwrap_or_default();
    let has_settings = fs::metadata("/proc/sys/vm").is_ok();
    let found = match value.trim() {
        "0" => "0: memfds may be executable",
        "1" => "1: memfds are executable only on request",
        "2" => "2: memfds are never executable, as Strait's are",
        "" if has_settings => "not in this kernel (before 6.3)",
        _ => "not known",
    };
    Finding::good("vm.memfd_noexec", found)
}

/// Checks that futexes work.
fn futex() -> Finding {
    let word = std::sync::atomic::AtomicU32::new(0);
    match rustix::thread::futex::wake(&word, rustix::thread::futex::Flags::PRIVATE, 1) {
        Ok(_) => Finding::good("futex", "works"),
        Err(errno) => {
            Finding::lacking("futex", refused(errno), "waits sleep on the socket, which takes longer to wake", SANDBOX)
        }
    }
}

/// Returns a connected pair of sockets, as links use.
fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
}

/// Returns the two ends of a channel over a socket, as between two processes.
fn over() -> Result<(Channel, Channel), String> {
    let (one, other) = pair().map_err(refused)?;
    let open = |socket| Channel::over(socket).map_err(|error| error.to_string());
    Ok((open(one)?, open(other)?))
}

/// Checks that a descriptor sent in a message arrives.
fn descriptors_travel() -> Finding {
    const WHAT: &str = "descriptors in messages";
    let travel = || -> Result<(), String> {
        let (a, b) = over()?;
        let file = File::open("/dev/null").map_err(|error| format!("/dev/null: {error}"))?;
        a.send_by(Outgoing::new(b"a file").handle(file), DEADLINE).map_err(|failed| failed.to_string())?;
        b.recv_by(DEADLINE).and_then(|mut message| message.take_handles()).map_err(|error| error.to_string()).map(drop)
    };
    match travel() {
        Ok(()) => Finding::good(WHAT, "arrive"),
        Err(error) => failed(WHAT, error),
    }
}

/// Checks that the kernel names the process at the other end of a socket.
fn credentials() -> Finding {
    const WHAT: &str = "identity of the peer";
    let found = over().and_then(|(_a, b)| b.peer().map_err(|error| error.to_string()));
    match found {
        Ok(Some(peer)) if peer.pid == Some(std::process::id()) => Finding::good(WHAT, "reported by the kernel"),
        Ok(_) => Finding::lacking(WHAT, "not reported by the kernel", "policies cannot tell processes apart", SANDBOX),
        Err(error) => failed(WHAT, error),
    }
}

/// Checks that pidfds can be opened.
fn pidfd() -> Finding {
    const WHAT: &str = "pidfd_open";
    const SO: &str = "a peer's death is noticed only once no process has its socket";
    match rustix::process::pidfd_open(rustix::process::getpid(), rustix::process::PidfdFlags::empty()) {
        Ok(_) => Finding::good(WHAT, "works"),
        Err(errno) => Finding::lacking(WHAT, refused(errno), SO, SANDBOX),
    }
}

/// Checks that the kernel can refuse descriptors on a socket (`SO_PASSRIGHTS`).
fn rights() -> Finding {
    const WHAT: &str = "SO_PASSRIGHTS";
    const OPTION: libc::c_int = 83;
    let Ok((one, _other)) = pair() else { return Finding::good(WHAT, "not tried") };
    let off: libc::c_int = 0;
    let len = size_of_val(&off) as libc::socklen_t;
    let number = std::os::fd::AsRawFd::as_raw_fd(&one.as_fd());
    // SAFETY: the pointer is to a local of the size given.
    if unsafe { libc::setsockopt(number, libc::SOL_SOCKET, OPTION, (&raw const off).cast(), len) } == 0 {
        return Finding::good(WHAT, "works");
    }
    let so = "clients that are not accepted yet can send descriptors, which are dropped";
    Finding::lacking(WHAT, "not available", so, "Linux 6.16 or later (optional)")
}

/// Checks that the limit on open descriptors is not too low.
fn open_files() -> Finding {
    const WHAT: &str = "descriptors (RLIMIT_NOFILE)";
    let limit = getrlimit(Resource::Nofile).current;
    match limit {
        Some(limit) if limit < 256 => {
            let so = "connections and messages with descriptors soon fail for lack of free ones";
            Finding::lacking(WHAT, limit.to_string(), so, "ulimit -n 4096")
        }
        Some(limit) => Finding::good(WHAT, limit.to_string()),
        None => Finding::good(WHAT, "no limit"),
    }
}

/// Checks that the limit on file size permits the largest message.
fn file_size() -> Finding {
    const WHAT: &str = "memory of one message (RLIMIT_FSIZE)";
    match getrlimit(Resource::Fsize).current {
        Some(limit) if limit < 256 << 20 => {
            let so = "longer messages fail with EFBIG";
            Finding::lacking(WHAT, format!("{limit} bytes"), so, FILE_SIZE)
        }
        _ => Finding::good(WHAT, "no limit"),
    }
}

/// Checks that this process may use more than one CPU.
fn processors() -> Finding {
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    if count > 1 {
        return Finding::good("CPUs", count.to_string());
    }
    let so = "no spinning; each message that is waited for costs a context switch";
    Finding::lacking("CPUs", "1", so, "allow a second CPU (taskset, cpuset)")
}

/// Checks that the environment variable `STRAIT_SPIN`, if set, has a valid value.
fn spinning() -> Finding {
    const WHAT: &str = "STRAIT_SPIN";
    let Some(value) = std::env::var_os(WHAT) else {
        return Finding::good(WHAT, format!("not set; waits spin for {} µs", Options::default_spin().as_micros()));
    };
    let value = value.to_string_lossy();
    match strait::bindings::parse_spin(&value) {
        Some(spin) => Finding::good(WHAT, format!("waits spin for {} µs", spin.as_micros())),
        None => {
            let so = "the variable is ignored; waits spin for 50 µs";
            Finding::lacking(WHAT, format!("{value:?}"), so, "set a whole number of microseconds, or off")
        }
    }
}

/// Checks that `/proc` is mounted.
fn proc() -> Finding {
    if fs::metadata("/proc/self/fd").is_ok() {
        return Finding::good("/proc", "mounted");
    }
    let so = "no connections by name; channels to child processes and over sockets work";
    Finding::lacking("/proc", "not mounted", so, "mount -t proc proc /proc")
}

/// Checks that this process can listen under a name.
fn names() -> Finding {
    const WHAT: &str = "names";
    let name = format!("strait-doctor-{}", std::process::id());
    match Listener::bind(&name) {
        Ok(listener) => {
            let directory = listener.path().parent().map(|path| path.display().to_string()).unwrap_or_default();
            Finding::good(WHAT, format!("in {directory}"))
        }
        Err(error) => {
            let so = "no connections by name in this user's directory";
            Finding::lacking(WHAT, error.to_string(), so, "set STRAIT_DIR to a directory of this user alone")
        }
    }
}

/// Checks that messages of several sizes arrive unchanged.
fn channel() -> Finding {
    const WHAT: &str = "messages, small and large";
    let talk = || -> Result<(), String> {
        let (a, b) = over()?;
        // `file_size` reports the effect of that limit on larger messages.
        let most = getrlimit(Resource::Fsize).current.map_or(usize::MAX, |limit| limit as usize / 2);
        for len in [0, 56, 5000, 1 << 20].map(|len: usize| len.min(most)) {
            let bytes = vec![7; len];
            a.send_by(&bytes, DEADLINE).map_err(|failed| failed.to_string())?;
            let message = b.recv_by(DEADLINE).map_err(|error| error.to_string())?;
            if message.bytes() != bytes {
                return Err(format!("a message of {len} bytes was changed on the way"));
            }
        }
        Ok(())
    };
    match talk() {
        Ok(()) => Finding::good(WHAT, "arrive"),
        Err(error) => failed(WHAT, error),
    }
}

/// Checks that an end of a channel sent in a message arrives with its unread message.
fn ends() -> Finding {
    const WHAT: &str = "ends of channels in messages";
    let travel = || -> Result<(), String> {
        let (a, b) = over()?;
        let (mine, theirs) = Channel::pair().map_err(|error| error.to_string())?;
        mine.send(b"unread").map_err(|failed| failed.to_string())?;
        a.send_by(Outgoing::new(b"an end").handle(theirs), DEADLINE).map_err(|failed| failed.to_string())?;
        let arrived = b.recv_by(DEADLINE).and_then(|mut message| message.take_handles());
        let end = arrived.map_err(|error| error.to_string())?.pop().and_then(strait::Handle::into_channel);
        let message = end.ok_or("no end arrived")?.recv_by(DEADLINE).map_err(|error| error.to_string())?;
        if message.bytes() == b"unread" {
            Ok(())
        } else {
            Err("the unread message did not arrive with the end".to_owned())
        }
    };
    match travel() {
        Ok(()) => Finding::good(WHAT, "arrive"),
        Err(error) => failed(WHAT, error),
    }
}

/// Checks that a wait set reports an event.
fn wait_set() -> Finding {
    const WHAT: &str = "wait sets (epoll, eventfd)";
    let wait = || -> Result<(), strait::Error> {
        let (a, b) = Channel::pair()?;
        let set = WaitSet::new()?;
        set.add(&b, 0, Interest::Readable, Mode::Level)?;
        a.send(b"an event")?;
        let mut events = Vec::new();
        set.wait(&mut events, DEADLINE).map(drop)
    };
    match wait() {
        Ok(()) => Finding::good(WHAT, "work"),
        Err(error) => {
            Finding::lacking(WHAT, error.to_string(), "no wait sets; waiting for a single channel works", SANDBOX)
        }
    }
}
