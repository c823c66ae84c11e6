//! Tests that need another process start this very test program again, to play a role.
//!
//! Each test file has a test named `child`, which does nothing in an ordinary run; started by [`spawn`], it looks up
//! its role in the table that it is given and plays it.

#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod travel;

use std::process::{Child, Command};
use std::time::Duration;

use strait::{Channel, CommandExt, Options};

/// Long enough for a slow machine; a test that waits this long has failed.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_TEST_ROLE";
const ARGUMENT: &str = "STRAIT_TEST_ARGUMENT";

/// A process that plays a role, killed when dropped.
pub(crate) struct Actor(pub(crate) Child);

impl Actor {
    pub(crate) fn wait_for_success(mut self) {
        let status = self.0.wait().unwrap();
        assert!(status.success(), "the other process failed: {status}");
    }

    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A command that plays `role` in this test program.
pub(crate) fn command(role: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]);
    command.env(ROLE, role).env(ARGUMENT, argument);
    command.stdout(std::process::Stdio::null());
    command
}

/// Starts a process that plays `role`, with a channel to it.
pub(crate) fn spawn_with(role: &str, argument: &str, options: &Options) -> (Actor, Channel) {
    let (child, channel) = command(role, argument).spawn_with_channel(options).unwrap();
    (Actor(child), channel)
}

/// The same with default options.
pub(crate) fn spawn(role: &str) -> (Actor, Channel) {
    spawn_with(role, "", &Options::new())
}

/// What a process does, given its argument.
pub(crate) type Role = fn(&str);

/// The body of the test `child`.
pub(crate) fn play(roles: &[(&str, Role)]) {
    if let Ok(role) = std::env::var(ROLE) {
        let argument = std::env::var(ARGUMENT).unwrap();
        let (_, play) = roles.iter().find(|(name, _)| *name == role).expect("a known role");
        play(&argument);
    }
}

/// Sends back what it receives, handles included, until the channel ends: also before the last of it is sent back.
pub(crate) fn echo(channel: &Channel) {
    let error = loop {
        let sent = channel.recv().and_then(|mut message| {
            let handles = message.take_handles()?;
            Ok(channel.send(strait::Outgoing::new(message.bytes()).handles(handles))?)
        });
        match sent {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert_eq!(error, strait::Error::PeerClosed);
}

/// The channel to the process that started this one.
pub(crate) fn parent() -> Channel {
    strait::from_parent(&Options::new()).unwrap()
}

/// Bytes that depend on their place and on `seed`, so that a byte out of place shows.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&(state ^ (state >> 29)).to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}

/// A checksum of bytes (FNV-1a over words).
pub(crate) fn checksum(bytes: &[u8]) -> u64 {
    let mut sum = 0xcbf2_9ce4_8422_2325u64;
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        sum = (sum ^ u64::from_le_bytes(word.try_into().unwrap())).wrapping_mul(0x0000_0100_0000_01b3);
    }
    for byte in words.remainder() {
        sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    }
    sum ^ bytes.len() as u64
}

/// Open descriptors of this process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Mappings of this process that are Strait's memfds.
pub(crate) fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:strait")).count()
}

/// Soon enough for something that should happen at once, on a machine that stands still for a while.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Looks until it is so; what is never so fails.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "it never came about that {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits for a process to end well; one that hangs fails.
pub(crate) fn finish(mut actor: Actor) {
    drop(actor.0.stdin.take());
    let begin = std::time::Instant::now();
    while actor.0.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < 2 * DEADLINE, "the other process hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    actor.wait_for_success();
}

/// Plays `role` in a process of its own, whose descriptors, limits and mappings are nobody else's.
///
/// Nor has anybody a copy of them there: a process that another test starts has all that this one had when it was forked, until it
/// is another program. So what is closed here, or was a dead process's, may be open for a while yet, and that is seen by whoever
/// does not wait: a send, for one, may succeed.
pub(crate) fn alone(role: &str, argument: &str) {
    finish(Actor(command(role, argument).spawn().unwrap()));
}

/// A file with this content, to be sent.
pub(crate) fn file_with(content: &[u8]) -> std::os::fd::OwnedFd {
    let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, content, 0).unwrap(), content.len());
    fd
}

/// What is in a file that arrived.
pub(crate) fn content_of(handle: strait::Handle) -> Vec<u8> {
    let fd = handle.into_fd().unwrap();
    let len = usize::try_from(rustix::fs::fstat(&fd).unwrap().st_size).unwrap();
    let mut content = vec![0; len];
    assert_eq!(rustix::io::pread(&fd, &mut content, 0).unwrap(), len);
    content
}

/// A thread that others watch while it is in a call that blocks.
pub(crate) struct Watched(std::sync::atomic::AtomicI32);

impl Watched {
    pub(crate) fn new() -> Self {
        Self(0.into())
    }

    /// Called by the thread, right before the call.
    pub(crate) fn enter(&self) {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), std::sync::atomic::Ordering::SeqCst);
    }

    fn file(&self, name: &str) -> String {
        let tid = self.0.load(std::sync::atomic::Ordering::SeqCst);
        std::fs::read_to_string(format!("/proc/self/task/{tid}/{name}")).unwrap_or_default()
    }

    /// How it runs ('S': it sleeps), and the ticks of CPU time that it has used.
    fn state(&self) -> (char, u64) {
        let stat = self.file("stat");
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let state = fields.next().and_then(|state| state.chars().next()).unwrap_or('?');
        let user = fields.nth(10).map_or(0, |ticks| ticks.parse().unwrap());
        let system = fields.next().map_or(0, |ticks| ticks.parse::<u64>().unwrap());
        (state, user + system)
    }

    /// Waits until it sleeps, or has spun for longer than a call takes that does not block.
    pub(crate) fn wait_until_blocked(&self) {
        wait_until("the thread came to its call", || self.0.load(std::sync::atomic::Ordering::SeqCst) != 0);
        let begin = self.state().1;
        let mut asleep = 0;
        wait_until("the thread blocked", || {
            let (state, ticks) = self.state();
            asleep = if state == 'S' { asleep + 1 } else { 0 };
            asleep >= 5 || ticks >= begin + 5
        });
    }

    /// How often it went to sleep.
    pub(crate) fn switches(&self) -> u64 {
        let status = self.file("status");
        let line =
            status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("a thread that lives");
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    /// Once it has settled, it must sleep on for two seconds without a single wake-up. How long it takes to settle is the machine's
    /// matter: what comes late, such as the other side's first packets, wakes it once. Whoever looks again and again never does.
    pub(crate) fn assert_idle(&self) {
        self.wait_until_blocked();
        let begin = std::time::Instant::now();
        loop {
            let (before, ticks) = (self.switches(), self.state().1);
            std::thread::sleep(Duration::from_secs(2));
            let (after, used) = (self.switches(), self.state().1 - ticks);
            if after == before && used <= 2 {
                return;
            }
            assert!(
                begin.elapsed() < DEADLINE / 4,
                "an idle thread was woken {} times in two seconds, and used {used} ticks",
                after - before
            );
        }
    }
}

/// Where a process started by [`spawn_over_socket`] finds its socket: further up than what a test process has open.
pub(crate) const SOCKET: i32 = 700;

/// Makes `fd` the descriptor of this number, which stays open on `exec`. Async-signal-safe.
pub(crate) fn leave_open(fd: i32, number: i32) -> std::io::Result<()> {
    // SAFETY: numbers of descriptors go in, and nothing is behind pointers.
    let done = unsafe {
        // `dup2` of a descriptor to its own number would leave it to be closed.
        libc::dup2(fd, number) == number && libc::fcntl(number, libc::F_SETFD, 0) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Starts a process that plays `role`, with a channel over a socket of our own, which holds few packets: so that
/// senders wait for it.
pub(crate) fn spawn_over_socket(role: &str, argument: &str, options: &Options) -> (Actor, Channel) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt as _;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for socket in [&ours, &theirs] {
        // The kernel makes the least it can of this, about six packets.
        sockopt::set_socket_send_buffer_size(socket, 1).unwrap();
    }
    let mut command = command(role, argument);
    let inherited = theirs.as_raw_fd();
    // SAFETY: the closure makes system calls only, which are async-signal-safe.
    unsafe {
        command.pre_exec(move || leave_open(inherited, SOCKET));
    }
    command.stdin(std::process::Stdio::piped());
    let child = command.spawn().unwrap();
    (Actor(child), Channel::over(ours, options).unwrap())
}

/// The other end of that channel, in the process that was started so; else the channel to the parent.
pub(crate) fn parent_over_any(options: &Options) -> Channel {
    use std::os::fd::FromRawFd;
    match strait::from_parent(options) {
        Err(strait::Error::NoParent) => {
            // SAFETY: whoever starts a role without a channel of Strait's own leaves it this descriptor.
            let socket = unsafe { std::os::fd::OwnedFd::from_raw_fd(SOCKET) };
            Channel::over(socket, options).unwrap()
        }
        taken => taken.unwrap(),
    }
}

/// Makes this thread's system calls of this number fail from here on, and those of what it starts.
pub(crate) fn refuse(call: libc::c_long, errno: libc::c_int) {
    let step = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    };
    // The number of the call is the first word of what the filter sees.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live until the call returns; the kernel copies them.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Has a handler of SIGUSR1 note on which thread it runs.
pub(crate) fn handle_signals() {
    extern "C" fn handle(_: libc::c_int) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        HANDLED_BY.store(thread, std::sync::atomic::Ordering::SeqCst);
    }
    // SAFETY: the handler does only what is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR1, handle as *const () as libc::sighandler_t) };
}

static HANDLED_BY: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// The thread on which that handler ran last; 0 if on none.
pub(crate) fn handled_by() -> i32 {
    HANDLED_BY.load(std::sync::atomic::Ordering::SeqCst)
}

/// Sends SIGUSR1, which it handles, to the thread of this name in a process, where it must stay pending.
pub(crate) fn assert_handles_no_signals(pid: u32, name: &str) {
    let tasks = format!("/proc/{pid}/task");
    let read = |task: &std::path::Path, file: &str| std::fs::read_to_string(task.join(file)).unwrap_or_default();
    let mut found = None;
    wait_until(&format!("there is a thread {name}"), || {
        let mut tasks = std::fs::read_dir(&tasks).unwrap().map(|task| task.unwrap().path());
        found = tasks.find(|task| read(task, "comm").trim_end() == name);
        found.is_some()
    });
    let task = found.unwrap();
    let tid: libc::pid_t = task.file_name().unwrap().to_str().unwrap().parse().unwrap();
    // SAFETY: the call touches no memory of this process.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, pid, tid, libc::SIGUSR1) };
    assert_eq!(sent, 0);
    let status = read(&task, "status");
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:")).expect("a thread that is there");
    let pending = u64::from_str_radix(pending.trim(), 16).unwrap();
    assert_eq!(pending, 1 << (libc::SIGUSR1 - 1), "{name} has handled it");
}
