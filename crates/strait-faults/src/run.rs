//! Runs a scenario once with one fault, and judges the result.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, kill_process_group, setpgid, wait};

use crate::program::actor::{self, Ending, Expect, Fate, LOST};
use crate::program::ledger::Ledger;
use crate::program::scenarios::Scenario;

/// A fault: the action on a process of a scenario.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// No fault; each process records its steps.
    Record,
    /// The process `victim` follows `plan`, such as `kill:mmap:1`; the others have no fault.
    Plan { victim: usize, plan: String },
    /// A signal interrupts all processes all the time.
    Interrupts,
}

impl Fault {
    fn action(&self) -> &str {
        match self {
            Self::Plan { plan, .. } => plan.split(':').next().unwrap_or_default(),
            _ => "",
        }
    }

    fn victim(&self) -> Option<usize> {
        match self {
            Self::Plan { victim, .. } => Some(*victim),
            _ => None,
        }
    }

    /// Returns whether the plan makes a system call fail with an error that means a dead peer.
    fn is_hang_up(&self) -> bool {
        match self {
            Self::Plan { plan, .. } => ["EPIPE", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "ENOTCONN", "ESRCH"]
                .iter()
                .any(|error| plan.contains(error)),
            _ => false,
        }
    }

    /// Returns whether the plan makes a system call fail as if a signal had interrupted the call. The library repeats
    /// such a call, so no process notices the fault.
    fn is_signal(&self) -> bool {
        matches!(self, Self::Plan { plan, .. } if plan.contains(":EINTR:"))
    }

    fn fate(&self, number: usize) -> Fate {
        match self {
            Self::Record => Fate::Record,
            Self::Plan { victim, plan } if *victim == number => Fate::Plan(plan.replace("fork?", "fork")),
            Self::Plan { .. } => Fate::None,
            Self::Interrupts => Fate::Interrupted,
        }
    }

    fn expect(&self, number: usize) -> Expect {
        match (self.action(), self.victim() == Some(number)) {
            ("" | "stop", _) => Expect::Success,
            _ if self.is_signal() => Expect::Success,
            ("starve" | "fail", true) => Expect::Refusal,
            ("starve" | "fail", false) => Expect::Loss,
            _ => Expect::Death,
        }
    }
}

/// The result of one run of a scenario.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The run was correct.
    Right,
    /// The run was correct, but only after the end of the child with a dead process's descriptors.
    Late,
    /// The process never reached the faulty step.
    NotReached,
    /// The run showed a mistake; the text describes it.
    Wrong(String),
}

/// The surroundings of the consecutive scenarios of a process.
#[derive(Debug)]
pub(crate) struct World {
    /// The record written by the processes of a scenario.
    pub(crate) ledger: &'static Ledger,
    /// The file sent between the processes.
    pub(crate) content: OwnedFd,
    /// The directory of the listeners' names.
    pub(crate) directory: PathBuf,
    pub(crate) limits: Limits,
}

impl World {
    /// Creates the surroundings: the ledger, the file and the directory.
    pub(crate) fn new(limits: Limits) -> Self {
        let directory = std::env::temp_dir().join(format!("strait-faults-{}", std::process::id()));
        std::fs::DirBuilder::new().mode(0o700).create(&directory).expect("a directory for names");
        let content = memfd_create("content", MemfdFlags::CLOEXEC).expect("a file");
        Self { ledger: Ledger::new(), content, directory, limits }
    }

    /// Removes the directory.
    pub(crate) fn end(self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

/// Times for each run of a scenario.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// How long a scenario may run; processes that still run after that hang.
    pub(crate) deadline: Duration,
    /// How long a stopped process stays stopped.
    pub(crate) pause: Duration,
}

/// Bytes that a process may keep allocated beyond a run without a fault, for growing tables of the process.
const SLACK: u64 = 16 << 10;

/// Lets this process wait for its children with a deadline, and makes it the parent of orphaned descendants.
pub(crate) fn prepare() {
    // SAFETY: the set is plain data; the calls only change this thread's signal mask, and make orphans children of
    // this process.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1);
    }
}

fn wait_for_a_child(limit: Duration) {
    let limit = libc::timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() };
    // SAFETY: as in `prepare`.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, libc::SIGCHLD);
        libc::sigtimedwait(&raw const set, std::ptr::null_mut(), &raw const limit);
    }
}

/// How long the other processes may take to notice the death of a process whose child is still alive, if they can
/// notice the death.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long the child of a dead process may live if the other processes may be unable to notice the death; then the
/// child is ended.
const SHORT_PATIENCE: Duration = Duration::from_secs(3);

/// Kills all children of this process except `known`: children left behind by the processes of a scenario. Returns
/// whether there were any.
fn end_children_but(known: &[Pid]) -> bool {
    let children = std::fs::read_to_string("/proc/thread-self/children").unwrap_or_default();
    let others = children.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?));
    others.filter(|pid| !known.contains(pid)).filter(|pid| kill_process(*pid, Signal::KILL).is_ok()).count() > 0
}

/// Runs a scenario once with a fault, and judges the result. `bytes` are the bytes that each process keeps allocated
/// without a fault, if known.
pub(crate) fn run(scenario: &Scenario, fault: &Fault, world: &World, bytes: Option<&[u64]>) -> Outcome {
    world.ledger.clear();
    let mut watched = start(scenario, fault, world);
    let patience = if fault.action() == "fork?" { SHORT_PATIENCE } else { PATIENCE.min(world.limits.deadline / 2) };
    let hang = watch(&mut watched, world.ledger, world.limits, patience);
    judge(scenario, fault, world.ledger, &watched, bytes, hang)
}

struct Watched {
    pids: Vec<Pid>,
    killed: Vec<bool>,
    stopped: bool,
    /// Whether a child of a dead process had to be ended, because the other processes still waited.
    late: bool,
}

fn start(scenario: &Scenario, fault: &Fault, world: &World) -> Watched {
    let mut sockets: HashMap<usize, Vec<OwnedFd>> = HashMap::new();
    for (one, other) in scenario.sockets {
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
        let (ours, theirs) = pair.expect("socketpair");
        // Set before any process can send a handshake, as in the library.
        for socket in [&ours, &theirs] {
            rustix::net::sockopt::set_socket_passcred(socket, true).expect("setsockopt");
        }
        sockets.entry(*one).or_default().push(ours);
        sockets.entry(*other).or_default().push(theirs);
    }
    let mut pids = Vec::new();
    for number in 0..scenario.roles.len() {
        // SAFETY: this process has one thread, so the child inherits no lock held by another thread.
        match unsafe { libc::fork() } {
            0 => {
                // SAFETY: the arguments are plain numbers; the kernel kills this process when its parent ends.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let _ = setpgid(None, pids.first().copied());
                let own = sockets.remove(&number).unwrap_or_default();
                drop(sockets);
                actor::play(scenario, number, world, own, fault.fate(number), fault.expect(number));
            }
            pid => {
                let pid = Pid::from_raw(pid).expect("a process");
                pids.push(pid);
                let _ = setpgid(Some(pid), pids.first().copied());
            }
        }
    }
    let count = pids.len();
    Watched { pids, killed: vec![false; count], stopped: false, late: false }
}

/// Waits until all processes have ended. If some have not ended within the deadline, returns a description of them,
/// and kills them.
fn watch(watched: &mut Watched, ledger: &Ledger, limits: Limits, patience: Duration) -> Option<String> {
    let begin = Instant::now();
    let mut death: Option<Instant> = None;
    let mut alive: Vec<_> = (0..watched.pids.len()).collect();
    let mut hang = None;
    while !alive.is_empty() {
        match wait(WaitOptions::NOHANG | WaitOptions::UNTRACED) {
            Ok(Some((pid, status))) => {
                let number = watched.pids.iter().position(|known| *known == pid);
                if status.stopped() {
                    watched.stopped = true;
                    std::thread::sleep(limits.pause);
                    let _ = kill_process(pid, Signal::CONT);
                } else if let Some(number) = number {
                    death.get_or_insert_with(Instant::now);
                    watched.killed[number] = status.terminating_signal() == Some(Signal::KILL.as_raw());
                    if let Some(signal) = status.terminating_signal().filter(|signal| *signal != Signal::KILL.as_raw())
                    {
                        ledger.lives[number].say(&format!("ended by signal {signal}"));
                        ledger.lives[number].ending.store(Ending::Wrong as u32, Ordering::SeqCst);
                    }
                    ledger.lives[number].gone.store(1, Ordering::SeqCst);
                    alive.retain(|alive| *alive != number);
                }
            }
            _ if begin.elapsed() >= limits.deadline => {
                let known = alive.iter().map(|number| {
                    let (pid, line) = (watched.pids[*number], ledger.lives[*number].line.load(Ordering::Relaxed));
                    let file = |name| std::fs::read_to_string(format!("/proc/{}/{name}", pid.as_raw_nonzero()));
                    let call = file("syscall").unwrap_or_default();
                    let place = file("wchan").unwrap_or_default();
                    format!("process {number} hangs at line {line}: {place} {}", call.trim())
                });
                hang = Some(known.collect::<Vec<_>>().join("; "));
                break;
            }
            _ => {
                if death.is_some_and(|death| death.elapsed() >= patience) && !watched.late {
                    watched.late = end_children_but(&watched.pids);
                }
                wait_for_a_child(limits.deadline.saturating_sub(begin.elapsed()).min(Duration::from_millis(500)));
            }
        }
    }
    // Kills hanging processes, and children left behind by a forked process.
    let _ = kill_process_group(watched.pids[0], Signal::KILL);
    while wait(WaitOptions::empty()).is_ok() {}
    hang
}

fn judge(
    scenario: &Scenario,
    fault: &Fault,
    ledger: &Ledger,
    watched: &Watched,
    bytes: Option<&[u64]>,
    hang: Option<String>,
) -> Outcome {
    let lives = &ledger.lives[..scenario.roles.len()];
    let endings: Vec<_> = lives.iter().map(Ending::of).collect();
    let said = |number: usize| format!("process {number}: {:?} {}", endings[number], lives[number].said().trim());
    let all = || (0..lives.len()).map(said).collect::<Vec<_>>().join("\n  ");
    let wrong = |what: String| {
        let streams = ledger.streams.iter().enumerate().filter_map(|(number, stream)| {
            let count = |count: &std::sync::atomic::AtomicU32| count.load(Ordering::SeqCst);
            let counts = [count(&stream.attempted), count(&stream.accepted), count(&stream.received)];
            (counts[0] > 0).then(|| format!("{number}: {}/{}/{}", counts[0], counts[1], counts[2]))
        });
        let streams = streams.collect::<Vec<_>>().join(", ");
        Outcome::Wrong(format!("{what}\n  {}\n  tried/accepted/received: {streams}", all()))
    };
    if let Some(hang) = hang {
        return wrong(hang);
    }
    if endings.contains(&Ending::Wrong) {
        return wrong("something is wrong".into());
    }
    let victim = fault.victim();
    let reached = match (fault.action(), victim) {
        ("kill" | "fork" | "fork?", Some(victim)) => watched.killed[victim],
        ("stop", _) => watched.stopped,
        (_, Some(victim)) => lives[victim].is_past.load(Ordering::SeqCst) != 0,
        _ => true,
    };
    for (number, ending) in endings.iter().enumerate() {
        if *ending == Ending::Killed && !(victim == Some(number) && reached) {
            return wrong(format!("process {number} ended without a word"));
        }
    }
    let killed = victim.filter(|victim| endings[*victim] == Ending::Killed);
    let excused = killed.is_some()
        || endings.contains(&Ending::GaveUp)
        || fault.is_hang_up()
        || lives.iter().any(|life| life.mark.load(Ordering::SeqCst) & LOST != 0);
    if !excused && endings.contains(&Ending::Closed) {
        return wrong("a channel was closed by nobody".into());
    }
    for stream in &ledger.streams {
        let (attempted, received) = (stream.attempted.load(Ordering::SeqCst), stream.received.load(Ordering::SeqCst));
        if received > attempted {
            return wrong("more was received than was sent".into());
        }
    }
    if let Err(what) = (scenario.judge)(ledger, killed) {
        return wrong(what);
    }
    for (number, normal) in bytes.into_iter().flatten().enumerate() {
        let kept = lives[number].bytes.load(Ordering::SeqCst);
        if killed != Some(number) && kept > normal + SLACK {
            return wrong(format!("process {number} kept {kept} bytes, and {normal} without a fault"));
        }
    }
    match (reached, watched.late) {
        (false, _) => Outcome::NotReached,
        (true, false) => Outcome::Right,
        (true, true) if fault.action() == "fork?" => Outcome::Late,
        (true, true) => wrong("the death was only seen when the child let go of the descriptors".into()),
    }
}
