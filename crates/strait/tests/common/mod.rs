//! Helpers of the tests. A test that needs another process starts this test program again to play a role.
//!
//! Each test file has a test named `child`, which does nothing in an ordinary run. In a process that [`spawn`] started,
//! the test `child` looks up the role of the process in a table and plays the role.

#![allow(dead_code, reason = "each test file uses some of it")]

pub(crate) mod travel;

use std::process::{Child, Command};
use std::time::Duration;

use strait::{Channel, Options};

/// The time after which a wait of a test fails; long enough for a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_TEST_ROLE";
const ARGUMENT: &str = "STRAIT_TEST_ARGUMENT";

/// A process with a role, killed on drop.
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

/// Returns a command that starts this test program with the role `role`.
pub(crate) fn command(role: &str, argument: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]);
    command.env(ROLE, role).env(ARGUMENT, argument);
    command.stdout(std::process::Stdio::null());
    command
}

/// Starts a process with the role `role`, and returns the process with a channel.
pub(crate) fn spawn_with(role: &str, argument: &str, options: &Options) -> (Actor, Channel) {
    let (child, channel) = options.spawn(&mut command(role, argument)).unwrap();
    (Actor(child), channel)
}

/// Starts a process that plays `role` without an argument, with a channel of default options.
pub(crate) fn spawn(role: &str) -> (Actor, Channel) {
    spawn_with(role, "", &Options::new())
}

/// The function of a role, run by its process with the argument of the role.
pub(crate) type Role = fn(&str);

/// Plays the role of this process, found in `roles`; does nothing in a process without a role. The test `child` calls
/// it.
pub(crate) fn play(roles: &[(&str, Role)]) {
    if let Ok(role) = std::env::var(ROLE) {
        let argument = std::env::var(ARGUMENT).unwrap();
        let mut plays = roles.iter().filter(|(name, _)| *name == role).map(|(_, play)| play);
        let play = plays.next().expect("a known role");
        assert!(plays.next().is_none(), "two roles have the name {role:?}");
        play(&argument);
    }
}

/// Sends back each received message with its handles, until the channel is closed, and asserts that the last error is
/// `PeerClosed`. The peer may close the channel before the last message was sent back.
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

/// Returns the channel to the parent process.
pub(crate) fn parent() -> Channel {
    strait::from_parent().unwrap()
}

/// Returns `len` bytes that depend on position and `seed`, so that a misplaced byte is noticed.
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

/// Returns a checksum of `bytes` (FNV-1a over words).
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

/// Returns the number of open descriptors of the process.
pub(crate) fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count() - 1
}

/// Returns the number of mappings in this process of memfds of Strait.
pub(crate) fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().filter(|line| line.contains("memfd:strait")).count()
}

/// The limit for an event that should happen at once, on a machine that may pause for a while.
pub(crate) const SOON: Duration = Duration::from_secs(30);

/// Waits until `is_so` returns `true`; fails after [`DEADLINE`]. `what` describes the condition in the message of the
/// failure.
pub(crate) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = std::time::Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < DEADLINE, "timed out waiting until {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until the process has ended, and asserts that it succeeded; fails if the process is still running after twice
/// [`DEADLINE`].
pub(crate) fn finish(mut actor: Actor) {
    drop(actor.0.stdin.take());
    let begin = std::time::Instant::now();
    while actor.0.try_wait().unwrap().is_none() {
        assert!(begin.elapsed() < 2 * DEADLINE, "the other process hangs");
        std::thread::sleep(Duration::from_millis(1));
    }
    actor.wait_for_success();
}

/// Plays `role` in a new process, which shares no descriptors, limits or mappings with other tests.
///
/// No other process has copies of the new process's descriptors either. In a process with several tests, a child
/// started by another test holds copies of all descriptors from its fork until its exec. A closed descriptor may
/// therefore stay open for a while, with visible effects: for example, a send may succeed although the peer is dead.
pub(crate) fn alone(role: &str, argument: &str) {
    finish(Actor(command(role, argument).spawn().unwrap()));
}

/// Returns a file with the given content, to be sent in a message.
pub(crate) fn file_with(content: &[u8]) -> std::os::fd::OwnedFd {
    let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, content, 0).unwrap(), content.len());
    fd
}

/// Returns the content of a file received as `handle`.
pub(crate) fn content_of(handle: strait::Handle) -> Vec<u8> {
    let fd = handle.into_fd().unwrap();
    let len = usize::try_from(rustix::fs::fstat(&fd).unwrap().st_size).unwrap();
    let mut content = vec![0; len];
    assert_eq!(rustix::io::pread(&fd, &mut content, 0).unwrap(), len);
    content
}

/// The id of a thread that other threads watch while it is in a blocking call; 0 before the thread has called
/// [`Self::enter`].
pub(crate) struct Watched(std::sync::atomic::AtomicI32);

impl Watched {
    pub(crate) fn new() -> Self {
        Self(0.into())
    }

    /// Records the calling thread as the watched thread. Called right before the thread's blocking call.
    pub(crate) fn enter(&self) {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), std::sync::atomic::Ordering::SeqCst);
    }

    fn file(&self, name: &str) -> String {
        let tid = self.0.load(std::sync::atomic::Ordering::SeqCst);
        std::fs::read_to_string(format!("/proc/self/task/{tid}/{name}")).unwrap_or_default()
    }

    /// Returns the state of the thread (`S`: sleeping) and the ticks of CPU time used.
    fn state(&self) -> (char, u64) {
        let stat = self.file("stat");
        let mut fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace();
        let state = fields.next().and_then(|state| state.chars().next()).unwrap_or('?');
        let user = fields.nth(10).map_or(0, |ticks| ticks.parse().unwrap());
        let system = fields.next().map_or(0, |ticks| ticks.parse::<u64>().unwrap());
        (state, user + system)
    }

    /// Waits until the thread sleeps, or has spun for longer than a call that does not block takes.
    pub(crate) fn wait_until_blocked(&self) {
        wait_until("the thread reached its call", || self.0.load(std::sync::atomic::Ordering::SeqCst) != 0);
        let begin = self.state().1;
        let mut asleep = 0;
        wait_until("the thread blocked", || {
            let (state, ticks) = self.state();
            asleep = if state == 'S' { asleep + 1 } else { 0 };
            asleep >= 5 || ticks >= begin + 5
        });
    }

    /// Returns how often the thread has gone to sleep so far.
    pub(crate) fn switches(&self) -> u64 {
        let status = self.file("status");
        let line =
            status.lines().find(|line| line.starts_with("voluntary_ctxt_switches")).expect("a thread that lives");
        line.split_whitespace().last().unwrap().parse().unwrap()
    }

    /// Asserts that the thread, once it has settled, sleeps for two seconds without a wake-up. A late event, such as
    /// the first packets of the other side, may wake the thread once before it settles; how late depends on the
    /// machine. A thread that polls never settles, and fails the test.
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

/// The number of the socket's descriptor in a process started by [`spawn_over_socket`], larger than any open descriptor
/// of a test process.
pub(crate) const SOCKET: i32 = 700;

/// Duplicates `fd` to the descriptor `number`, which stays open on `exec`. Async-signal-safe.
pub(crate) fn leave_open(fd: i32, number: i32) -> std::io::Result<()> {
    // SAFETY: the calls get numbers of descriptors and no pointers.
    let done = unsafe {
        // `dup2` of a descriptor to the same number would leave close-on-exec set, so `fcntl` clears the flag.
        libc::dup2(fd, number) == number && libc::fcntl(number, libc::F_SETFD, 0) == 0
    };
    if done { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}

/// Starts a process that plays `role`, with a channel over a socket that this function makes. The socket holds only a
/// few packets, so senders soon wait for room in the socket.
pub(crate) fn spawn_over_socket(role: &str, argument: &str, options: &Options) -> (Actor, Channel) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    use std::os::fd::AsRawFd;
    use std::os::unix::process::CommandExt as _;
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    for socket in [&ours, &theirs] {
        // The kernel raises the 1 to the minimum, about six packets.
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
    (Actor(child), options.over(ours).unwrap())
}

/// Returns the channel to the parent: Strait's own if there is one, otherwise the channel of [`spawn_over_socket`].
pub(crate) fn parent_over_any(options: &Options) -> Channel {
    use std::os::fd::FromRawFd;
    match options.from_parent() {
        Err(failed) if failed.error == strait::Error::NoParent => {
            // SAFETY: a parent that starts a role without a channel of Strait's own leaves this descriptor to the
            // process, and no other code in this process uses the descriptor.
            let socket = unsafe { std::os::fd::OwnedFd::from_raw_fd(SOCKET) };
            options.over(socket).unwrap()
        }
        taken => taken.unwrap(),
    }
}

/// Makes each later system call `call` of this thread fail with `errno`, and of all threads and processes started by
/// this thread.
pub(crate) fn refuse(call: libc::c_long, errno: libc::c_int) {
    let step = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    };
    // The number of the call is the first word of the data that the filter reads.
    let mut filter = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, call as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live until the call returns; the kernel makes copies.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Allows this thread only the system calls of `allowed` from now on. Those of `refused` fail with EPERM; for any other
/// one the process ends with the exit code 99, and the number of the call on standard error.
pub(crate) fn allow_only(allowed: &[i64], refused: &[i64]) {
    extern "C" fn ends(_: libc::c_int, info: *const libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes a valid structure, in which the number of the call is the seventh word for SIGSYS.
        let number = unsafe { info.cast::<libc::c_int>().add(6).read() };
        let mut text = *b"system call 0000 is in no list\n";
        for (place, unit) in [(12, 1000), (13, 100), (14, 10), (15, 1)] {
            text[place] = b'0' + (number / unit % 10) as u8;
        }
        // SAFETY: the text is a local of that size; both calls are async-signal-safe.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(99);
        }
    }
    // SAFETY: all zeroes are a valid structure; the handler does only what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ends as *const () as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO;
        assert_eq!(libc::sigaction(libc::SIGSYS, &raw const action, std::ptr::null_mut()), 0);
    }
    let step = |code: u32, jump_if: u8, jump_else: u8, k: u32| libc::sock_filter {
        code: code as u16,
        jt: jump_if,
        jf: jump_else,
        k,
    };
    let mut filter = vec![step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    let answers = [(allowed, libc::SECCOMP_RET_ALLOW), (refused, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32)];
    for (calls, answer) in answers {
        for call in calls {
            filter.push(step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, *call as u32));
            filter.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, answer));
        }
    }
    filter.push(step(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_TRAP));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: no memory is involved.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    // SAFETY: the program and its filter live until the call returns; the kernel makes copies.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Sets a handler of SIGUSR1 that records its thread; [`handled_by`] returns the thread.
pub(crate) fn handle_signals() {
    extern "C" fn handle(_: libc::c_int) {
        let thread = rustix::thread::gettid().as_raw_nonzero().get();
        HANDLED_BY.store(thread, std::sync::atomic::Ordering::SeqCst);
    }
    // SAFETY: the handler does only what is async-signal-safe.
    unsafe { libc::signal(libc::SIGUSR1, handle as *const () as libc::sighandler_t) };
}

static HANDLED_BY: std::sync::atomic::AtomicI32 = std::sync::atomic::AtomicI32::new(0);

/// Returns the id of the thread that last ran the handler of [`handle_signals`]; 0 if no thread has.
pub(crate) fn handled_by() -> i32 {
    HANDLED_BY.load(std::sync::atomic::Ordering::SeqCst)
}

/// Sends SIGUSR1 to the thread `name` of the process `pid`, and asserts that the signal stays pending there: the thread
/// blocks the signal although the process handles it.
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
    assert_eq!(pending, 1 << (libc::SIGUSR1 - 1), "the signal is not pending: {name} has handled it");
}
