//! The controller: starts the processes of each round, watches them from outside, and reports mistakes.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::world::descriptors::sends_slow;
use crate::world::ledger::{Ledger, Phase, SLOTS, Word, delay_of, now, used_of};
use crate::world::plan::Plan;
use crate::world::roles::Arguments;
use crate::world::victim::{CLOSER, LATE};

/// How long a phase of a round lasts.
const PHASE: Duration = Duration::from_millis(250);

/// How long a round waits for an event that must happen, before the missing event counts as a mistake.
const SOON: Duration = Duration::from_secs(20);

/// How long after its peer's end the victim may still hold anything for that peer. Two times are not counted: that
/// for which a thread of the library could run but had no processor, and up to [`SOON`] that the kernel takes to
/// close a descriptor. The last close of a packet socket or of an inotify instance waits for a grace period, which
/// takes more than a second on a busy machine. (For a chain of a million lanes, the thread that closes ends takes
/// half a second of processor time, and 1 to 3 seconds while other processes use all processors.)
const GIVEN_BACK: Duration = Duration::from_secs(1);

/// The value of [`GIVEN_BACK`] in two cases. In the first, attackers send descriptors whose last close waits for the
/// kernel or for a linger time: a thread of the victim closes them one after the other. In the second, the kernel may
/// not tell the victim which process the attacker is. Then the victim cannot find out that the attacker is dead, and
/// closes the received ends with a twentieth of a processor. (A chain of a million lanes takes 10 to 20 seconds
/// then.)
const GIVEN_BACK_SLOWLY: Duration = Duration::from_secs(60);

/// The share of a processor that a waiting victim may use under attack in addition to its share beside an attacker
/// that only uses a processor.
const SHARE: f64 = 0.05;

/// The value of [`SHARE`] in a build without optimisation.
const SHARE_UNOPTIMISED: f64 = 0.25;

/// The number of consecutive measurements with too much processor time of a waiting victim that count as a mistake.
const WINDOWS: usize = 3;

/// The number of printed lines of the trails.
const LINES: usize = 150;

/// A run of hostile worlds: the seed, the rounds, and for how long.
#[derive(Clone, Debug)]
pub struct Run {
    /// The seed of all rounds.
    pub seed: u64,
    /// How long new rounds begin.
    pub time: Duration,
    /// The number of the first round.
    pub first: u64,
    /// The largest number of rounds.
    pub rounds: u64,
    /// The names of the steps that attackers may take; empty for all steps.
    pub only: Vec<String>,
    /// Whether much slower other channels of the victim count as a mistake, compared with the channels beside an
    /// attacker that only uses a processor.
    pub speed: bool,
    /// Whether a line about each round is printed.
    pub told: bool,
}

/// The numbers of descriptors, mappings and threads of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Held {
    descriptors: usize,
    /// The number of mappings of memory made by this crate: the attacker's memory and the ledger.
    foreign: usize,
    /// The number of mappings of memory made by the library.
    own: usize,
    threads: usize,
}

/// The number of further mappings of the library's memory that the victim may have after the attack, for its honest
/// channels, which were used meanwhile.
const OWN_MAPPINGS: usize = 40;

/// The number of descriptors that the victim may have for a moment beyond its limits: each of its three threads opens
/// up to 253 descriptors of a packet before it finds that there are too many.
const IN_PACKETS: usize = 3 * 253;

/// Measurements of all rounds together.
#[derive(Debug, Default)]
struct Seen {
    burning: Vec<Duration>,
    attacked: Vec<Duration>,
    /// The shares of a processor that a waiting victim used beside an attacker that only uses a processor.
    idle: Vec<f64>,
    steps: u64,
    calls: u64,
}

fn held(process: u32) -> Held {
    let count = |path: String| std::fs::read_dir(path).map_or(0, Iterator::count);
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let mappings = |name: &str| maps.lines().filter(|line| line.contains(name)).count();
    Held {
        descriptors: count(format!("/proc/{process}/fd")),
        foreign: mappings("/memfd:hostile"),
        own: mappings("/memfd:strait"),
        threads: count(format!("/proc/{process}/task")),
    }
}

fn what_is_open(process: u32) -> String {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return String::new() };
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let mut kinds = std::collections::BTreeMap::new();
    for link in links {
        let name = link.display().to_string();
        *kinds.entry(name.split('[').next().unwrap_or_default().to_owned()).or_insert(0) += 1;
    }
    kinds.into_iter().map(|(name, count)| format!("{count} {name}")).collect::<Vec<_>>().join(", ")
}

/// Returns one line of text for each mapping of shared memory in the process, without the addresses.
fn what_is_mapped(process: u32) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let describe = |line: &str| {
        let mut fields = line.split_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let len = usize::from_str_radix(to, 16).ok()? - usize::from_str_radix(from, 16).ok()?;
        let (protection, offset) = (fields.next()?, fields.next()?);
        let name = line.split_once("/memfd:")?.1;
        Some(format!("\n{len} bytes at {offset} of {name}, {protection}"))
    };
    maps.lines().filter_map(describe).collect()
}

/// Returns whether a thread waits for work that the kernel does for all processes. Before the thread sends sockets,
/// the kernel may search for sockets that no process can receive any more. Before the table of descriptors becomes
/// larger, the thread waits for a grace period. Before the thread seals memory, the kernel has each processor give up
/// the pages that the processor holds back. On a busy machine each can take a second. Returns `false` if this process
/// may not read the thread's stack.
fn waits_for_kernel(process: u32, thread: u64) -> bool {
    let stack = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/stack")).unwrap_or_default();
    let flushes = |caller| stack.contains("__flush_work") && stack.contains(caller);
    stack.contains("expand_files") || flushes("_sendmsg") || flushes("lru_add_drain_all")
}

/// Returns the peak memory of a process so far, in bytes.
fn peak(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|word| word.parse::<u64>().ok()).unwrap_or(0) << 10
}

/// Returns the name and the used processor time of each thread of a process, without the thread that closes
/// descriptors taken out of messages.
fn used(process: u32) -> Vec<(String, Duration)> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let used = |entry: std::fs::DirEntry| {
        let read = |name: &str| std::fs::read_to_string(entry.path().join(name)).ok();
        let name = format!("{} {}", read("comm")?.trim(), entry.file_name().display());
        let nanos = read("schedstat")?.split(' ').next()?.parse().ok()?;
        (!name.starts_with(CLOSER)).then(|| (name, Duration::from_nanos(nanos)))
    };
    entries.flatten().filter_map(used).collect()
}

/// Returns the name of each thread of a process and the processor time used since `before`, a result of [`used`].
fn used_since(before: &[(String, Duration)], process: u32) -> Vec<(String, Duration)> {
    let since = |(name, now): (String, Duration)| {
        let then = before.iter().find(|(other, _)| *other == name).map_or(Duration::ZERO, |(_, then)| *then);
        (name, now.saturating_sub(then))
    };
    used(process).into_iter().map(since).collect()
}

/// Returns how long each thread of the library in a process has waited for a processor so far.
fn delays_of_library(process: u32) -> HashMap<u64, Duration> {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{process}/task")) else { return HashMap::new() };
    let delay = |entry: std::fs::DirEntry| {
        let thread = entry.file_name().to_str()?.parse().ok()?;
        let name = std::fs::read_to_string(entry.path().join("comm")).ok()?;
        name.starts_with("strait-").then(|| (thread, delay_of(process, thread)))
    };
    entries.flatten().filter_map(delay).collect()
}

/// Returns whether one of these threads of a process is in the last close of a descriptor in the kernel. Returns
/// `false` if this process may not read their stacks.
fn is_closing<'a>(process: u32, mut threads: impl Iterator<Item = &'a u64>) -> bool {
    threads.any(|thread| {
        let stack = std::fs::read_to_string(format!("/proc/{process}/task/{thread}/stack")).unwrap_or_default();
        stack.contains("__fput")
    })
}

/// Returns the stacks of all threads of a process as `gdb` prints them, or an empty text if `gdb` is not installed.
fn stacks(process: u32) -> String {
    let arguments =
        ["-batch", "-nx", "-ex", "set print frame-arguments none", "-ex", "thread apply all backtrace 40", "-p"];
    let printed = Command::new("gdb").args(arguments).arg(process.to_string()).stderr(Stdio::null()).output();
    let printed = printed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    printed.lines().filter(|line| line.starts_with("Thread ") || line.starts_with('#')).fold(
        String::new(),
        |mut text, line| {
            let _ = writeln!(text, "{line}");
            text
        },
    )
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

fn middle(times: &[Duration]) -> Duration {
    let mut times = times.to_vec();
    times.sort();
    times.get(times.len() / 2).copied().unwrap_or_default()
}

/// Starts a process of a round that inherits only these descriptors.
fn start(arguments: &Arguments, inherited: &[BorrowedFd<'_>]) -> io::Result<Child> {
    for fd in inherited {
        fcntl_setfd(fd, FdFlags::empty())?;
    }
    let started = Command::new(std::env::current_exe()?)
        // A process group, which also has the child's own children.
        .process_group(0)
        .args(arguments.to_words())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn();
    for fd in inherited {
        fcntl_setfd(fd, FdFlags::CLOEXEC)?;
    }
    started
}

/// Kills a process of a round and its children.
fn kill(child: &Child) {
    if let Some(group) = rustix::process::Pid::from_raw(child.id() as i32) {
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

/// A round in progress: its processes and their ledger.
struct Round<'a> {
    run: &'a Run,
    number: u64,
    plan: Plan,
    ledger: Ledger,
    victim: Child,
    attacker: Child,
    bystander: Child,
    /// The victim's descriptors, mappings and threads before it met the attacker, without the sockets to the
    /// attacker.
    before: Held,
    peak_before: u64,
    /// The time of the last look at the victim.
    looked: Instant,
    /// For how long a thread of the victim [waited for the kernel](waits_for_kernel).
    held_up: Duration,
}

impl Run {
    /// Runs rounds until the time or the number of rounds is used up, or until a mistake is found. Returns `Ok` with
    /// a summary, or `Err` with a report of the mistake.
    ///
    /// # Errors
    /// Errors of the kernel in the controller itself.
    pub fn go(&self) -> io::Result<Result<String, String>> {
        let begun = Instant::now();
        let mut seen = Seen::default();
        let mut rounds = 0;
        while begun.elapsed() < self.time && rounds < self.rounds {
            let number = self.first + rounds;
            let findings = self.round(number, &mut seen)?;
            if let Some(text) = findings {
                return Ok(Err(text));
            }
            rounds += 1;
        }
        let (burning, attacked) = (middle(&seen.burning), middle(&seen.attacked));
        let summary = format!(
            "{rounds} rounds, {} steps, {} calls; round trips of others: {attacked:?} beside an attack, {burning:?} beside work",
            seen.steps, seen.calls
        );
        if self.speed && seen.burning.len() >= 5 && attacked > 2 * burning {
            return Ok(Err(format!("seed {}: others' channels are slower: {summary}", self.seed)));
        }
        Ok(Ok(summary))
    }

    fn round(&self, number: u64, seen: &mut Seen) -> io::Result<Option<String>> {
        let folder = std::env::temp_dir().join(format!("strait-world-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder)?;
        std::fs::set_permissions(&folder, std::os::unix::fs::PermissionsExt::from_mode(0o700))?;
        let mut round = Round::begin(self, number, &folder)?;
        let found = round.play(seen);
        let report = found.map(|found| round.report(&found));
        round.end();
        let _ = std::fs::remove_dir_all(&folder);
        Ok(report)
    }
}

impl<'a> Round<'a> {
    fn begin(run: &'a Run, number: u64, folder: &Path) -> io::Result<Self> {
        let plan = Plan::draw(run.seed, number);
        let ledger = Ledger::create()?;
        let (honest, its) = pair()?;
        let pairs = plan.links.iter().map(|_| pair()).collect::<io::Result<Vec<_>>>()?;
        let arguments = |role: &str, sockets: Vec<i32>, copies: Vec<i32>| Arguments {
            role: role.into(),
            seed: run.seed,
            round: number,
            only: run.only.clone(),
            ledger: ledger.file().as_raw_fd(),
            sockets,
            copies,
            folder: PathBuf::from(folder),
        };
        let theirs: Vec<BorrowedFd<'_>> = pairs.iter().map(|(_, theirs)| theirs.as_fd()).collect();
        let ours: Vec<BorrowedFd<'_>> = pairs.iter().map(|(ours, _)| ours.as_fd()).collect();
        let numbers = |fds: &[BorrowedFd<'_>]| fds.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>();
        let of_victim: Vec<_> = [honest.as_fd()].into_iter().chain(theirs.iter().copied()).collect();
        let mut victim_has = of_victim.clone();
        victim_has.push(ledger.file());
        let victim = start(&arguments("victim", numbers(&of_victim), Vec::new()), &victim_has)?;
        let bystander =
            start(&arguments("bystander", vec![its.as_raw_fd()], Vec::new()), &[its.as_fd(), ledger.file()])?;
        let mut attacker_has: Vec<_> = ours.iter().copied().chain(theirs.iter().copied()).collect();
        attacker_has.push(ledger.file());
        let copies: Vec<i32> =
            plan.links.iter().zip(&theirs).map(|(copied, fd)| if *copied { fd.as_raw_fd() } else { -1 }).collect();
        // The attacker must not inherit a victim's end for which the plan gives it no copy.
        attacker_has.retain(|fd| {
            !theirs.iter().any(|other| other.as_raw_fd() == fd.as_raw_fd()) || copies.contains(&fd.as_raw_fd())
        });
        let role = if plan.burns { "burner" } else { "attacker" };
        let attacker = start(&arguments(role, numbers(&ours), copies), &attacker_has)?;
        let (before, peak_before) = (Held::default(), 0);
        let (looked, held_up) = (Instant::now(), Duration::ZERO);
        Ok(Self { run, number, plan, ledger, victim, attacker, bystander, before, peak_before, looked, held_up })
    }

    /// Waits until `so` returns true, but not longer than `limit`. Returns false if `so` did not in time.
    fn until(&self, limit: Duration, so: impl Fn(&Self) -> bool) -> bool {
        let end = Instant::now() + limit;
        while !so(self) {
            if Instant::now() >= end {
                return false;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        true
    }

    /// Plays the round. Returns the first mistake, if there is a mistake.
    fn play(&mut self, seen: &mut Seen) -> Option<String> {
        if !self.until(SOON, |round| round.ledger.get(Word::VictimIn) == 1 && round.ledger.get(Word::RoundTrips) > 4) {
            return Some("the victim and the bystander did not begin".into());
        }
        self.before = held(self.victim.id());
        self.before.descriptors -= self.plan.links.len();
        self.peak_before = peak(self.victim.id());
        for _ in 0..2 {
            if let Some(found) = self.active().or_else(|| self.quiet(seen)) {
                return Some(found);
            }
        }
        self.let_go(seen)
    }

    /// Checks everything that must hold at any time: no process recorded a mistake, every call ends, and the victim
    /// does not hold too much. Returns the mistake, if there is one.
    fn look(&mut self) -> Option<String> {
        if let Some(found) = self.ledger.findings().first() {
            return Some(found.clone());
        }
        if let Ok(Some(status)) = self.victim.try_wait() {
            return Some(format!("the victim ended with {status}"));
        }
        let process = self.victim.id();
        let states = self.states();
        let since = std::mem::replace(&mut self.looked, Instant::now());
        if states.iter().any(|(thread, _)| waits_for_kernel(process, *thread)) {
            self.held_up += since.elapsed();
        }
        let delays: Duration = states.iter().map(|(thread, _)| delay_of(process, *thread)).sum();
        self.ledger.word(Word::Delays).fetch_max((delays + self.held_up).as_nanos() as u64, SeqCst);
        (0..SLOTS).find_map(|slot| self.late(slot)).or_else(|| self.too_much())
    }

    /// Returns a description if the call in this slot has taken too long, or has used a processor for too long. The
    /// call may take longer while its thread, or another thread of the victim, could run but has no processor.
    fn late(&self, slot: usize) -> Option<String> {
        let call = self.ledger.call(slot)?;
        let took = now().checked_sub(call.begun)?;
        if took <= call.allowed + LATE {
            return None;
        }
        let used = used_of(self.victim.id(), call.thread).saturating_sub(call.used);
        if used > LATE && self.ledger.call(slot).is_some_and(|again| again.number == call.number) {
            return Some(format!("{} has used a processor for {used:?} in {took:?} of {:?}", call.name, call.allowed));
        }
        let states = self.states();
        let state = states.iter().find(|(thread, _)| *thread == call.thread).map_or('?', |(_, state)| *state);
        let waits = |thread: u64, state: char| state == 'R' || waits_for_kernel(self.victim.id(), thread);
        let limit = if states.iter().any(|(thread, state)| waits(*thread, *state)) { SOON } else { LATE };
        let delayed = delay_of(self.victim.id(), call.thread).saturating_sub(call.delay);
        let is_same = self.ledger.call(slot).is_some_and(|again| again.number == call.number);
        (is_same && took > call.allowed + limit + 2 * delayed)
            .then(|| format!("{} goes on for {took:?} of {:?}, in state {state}", call.name, call.allowed))
    }

    /// Returns the number and the state of each thread of the victim, as in `/proc` (`R` for running or ready to
    /// run).
    fn states(&self) -> Vec<(u64, char)> {
        let tasks = format!("/proc/{}/task", self.victim.id());
        let Ok(entries) = std::fs::read_dir(tasks) else { return Vec::new() };
        let state = |entry: std::fs::DirEntry| {
            let thread = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((thread, stat.rsplit(')').next()?.trim().chars().next()?))
        };
        entries.flatten().filter_map(state).collect()
    }

    /// Returns a description if the victim holds more descriptors, mappings or memory than it may.
    fn too_much(&self) -> Option<String> {
        let process = self.victim.id();
        let Held { descriptors, foreign, .. } = held(process);
        let own = (self.ledger.get(Word::Own) + self.ledger.get(Word::InMessages)) as usize + 200;
        // The limit for one peer process, and the limit for all peers: three quarters of all descriptors, and 64
        // more.
        let of_peers = if self.plan.tight { 300 } else { 8192 };
        let scarce = self.plan.descriptors as usize * 3 / 4 + 64;
        let most = self.before.descriptors + own + of_peers.min(scarce) + IN_PACKETS;
        if descriptors > most {
            return Some(format!("{descriptors} descriptors, where {most} may be: {}", what_is_open(process)));
        }
        if self.plan.tight && foreign > self.before.foreign + 300 + 50 {
            return Some(format!("{foreign} mappings, where {} were", self.before.foreign));
        }
        let memory = peak(process);
        if self.plan.tight && memory > self.peak_before + (400 << 20) {
            return Some(format!("{} MiB of memory, where {} were", memory >> 20, self.peak_before >> 20));
        }
        None
    }

    fn watch(&mut self, time: Duration) -> Option<String> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            if let Some(found) = self.look() {
                return Some(found);
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        None
    }

    fn active(&mut self) -> Option<String> {
        self.ledger.begin_phase(Phase::Active);
        self.watch(PHASE)
    }

    /// Has the victim wait, and checks its use of processor time. Returns the first mistake, or `None`.
    fn quiet(&mut self, seen: &mut Seen) -> Option<String> {
        let number = self.ledger.begin_phase(Phase::Quiet);
        let end = Instant::now() + SOON;
        while self.ledger.get(Word::VictimIn) != number || self.ledger.get(Word::BystanderIn) != number {
            if let Some(found) = self.look() {
                return Some(found);
            }
            if Instant::now() >= end {
                return Some("the victim or the bystander does not become quiet".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // A spinning victim fails every measurement. A victim that took longer once, on a busy machine, fails only
        // one.
        let mut found = None;
        for _ in 0..WINDOWS {
            match self.measure(seen) {
                Ok(()) => return None,
                Err(text) => found = Some(text),
            }
        }
        found
    }

    /// Measures for one phase the processor time used by the waiting victim. Returns `Err` with a description if the
    /// victim uses too much, or if something else is wrong.
    fn measure(&mut self, seen: &mut Seen) -> Result<(), String> {
        let (process, begun) = (self.victim.id(), Instant::now());
        let work = |round: &Self| round.ledger.get(Word::Work) + round.ledger.get(Word::Valid);
        let (used_before, work_before) = (used(process), work(self));
        if let Some(found) = self.watch(PHASE) {
            return Err(found);
        }
        let by_thread = used_since(&used_before, process);
        let (used, elapsed) = (by_thread.iter().map(|(_, used)| *used).sum::<Duration>(), begun.elapsed());
        let work = Duration::from_micros(work(self) - work_before);
        if self.plan.burns {
            seen.idle.push(used.as_secs_f64() / elapsed.as_secs_f64());
            return Ok(());
        }
        let (factor, most) = if cfg!(debug_assertions) { (5, SHARE_UNOPTIMISED) } else { (1, SHARE) };
        let idle = seen.idle.iter().sum::<f64>() / seen.idle.len().max(1) as f64;
        let allowed = Duration::from_secs_f64((idle + most) * elapsed.as_secs_f64()) + factor * work;
        if self.run.told {
            println!("  quiet: {used:?} of {elapsed:?}, work {work:?}, {allowed:?} allowed");
        }
        if used <= allowed {
            return Ok(());
        }
        let what = format!("{allowed:?} may be, {work:?} of it for what came: {by_thread:?}");
        Err(format!("a waiting victim used {used:?} in {elapsed:?}, where {what}"))
    }

    /// Ends the attacker, has the victim close everything, and checks that the victim holds no more than before.
    /// Returns the mistake, if there is one.
    fn let_go(&mut self, seen: &mut Seen) -> Option<String> {
        if self.plan.killed {
            kill(&self.attacker);
        }
        let number = self.ledger.begin_phase(Phase::LetGo);
        if !self.plan.killed {
            let mut ended = false;
            for _ in 0..100 {
                ended = ended || matches!(self.attacker.try_wait(), Ok(Some(_)));
                std::thread::sleep(Duration::from_millis(if ended { 0 } else { 5 }));
            }
        }
        self.end_attacker();
        let end = Instant::now() + SOON;
        while self.ledger.get(Word::VictimIn) != number {
            if let Some(found) = self.look() {
                return Some(found);
            }
            if Instant::now() >= end {
                return Some("the victim does not let go".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let time = if sends_slow() || !self.plan.is_named { GIVEN_BACK_SLOWLY } else { GIVEN_BACK };
        if let Err(found) = self.is_given_back(time) {
            return Some(self.look().unwrap_or(found));
        }
        if let Some(found) = self.look() {
            return Some(found);
        }
        if let Some(median) = self.ledger.median_round_trip() {
            if self.plan.burns { &mut seen.burning } else { &mut seen.attacked }.push(median);
        }
        seen.steps += self.ledger.get(Word::Steps);
        seen.calls += self.ledger.get(Word::Calls);
        if self.run.told {
            println!(
                "round {}: {} steps, {} calls, {} round trips, {:?} the middle one",
                self.number,
                self.ledger.get(Word::Steps),
                self.ledger.get(Word::Calls),
                self.ledger.get(Word::RoundTrips),
                self.ledger.median_round_trip()
            );
        }
        None
    }

    /// Waits until the victim holds no more than before it met the attacker. Returns `Err` with a description if the
    /// wait takes much longer than `time`.
    fn is_given_back(&self, time: Duration) -> Result<(), String> {
        let (process, begun, goal) = (self.victim.id(), Instant::now(), self.before);
        let delays_before = delays_of_library(process);
        let mut delays = delays_before.clone();
        let (mut looked, mut closing) = (begun, Duration::ZERO);
        loop {
            let held = held(process);
            if held.descriptors <= goal.descriptors
                && held.foreign <= goal.foreign
                && held.own <= goal.own + OWN_MAPPINGS
                && held.threads <= goal.threads
            {
                return Ok(());
            }
            // A thread that has ended stays in `delays`.
            let of_library = delays_of_library(process);
            let since = std::mem::replace(&mut looked, Instant::now());
            if is_closing(process, of_library.keys()) {
                closing += looked - since;
            }
            delays.extend(of_library);
            let before = |thread| delays_before.get(thread).copied().unwrap_or_default();
            let delayed = delays.iter().map(|(thread, now)| now.saturating_sub(before(thread))).sum::<Duration>();
            let took = begun.elapsed();
            if took >= time + LATE + delayed + closing.min(SOON) {
                let (open, mapped) = (what_is_open(process), what_is_mapped(process));
                return Err(format!(
                    "{took:?} after the attacker's end, {delayed:?} of it without a processor and {closing:?} in \
                     closes by the kernel, the victim has {held:?}, \
                     where {goal:?} was: {open}{mapped}"
                ));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn report(&self, found: &str) -> String {
        let mut text = format!("seed {}, round {}: {found}\n{:?}\n", self.run.seed, self.number, self.plan);
        for other in self.ledger.findings() {
            let _ = writeln!(text, "found: {other}");
        }
        for (thread, state) in self.states() {
            let read = |name: &str| std::fs::read_to_string(format!("/proc/{}/task/{thread}/{name}", self.victim.id()));
            let stack = read("stack").unwrap_or_default().replace('\n', " ");
            let _ = writeln!(text, "thread {thread} in state {state}: {} {stack}", read("wchan").unwrap_or_default());
        }
        text.push_str(&stacks(self.victim.id()));
        for slot in (0..SLOTS).filter_map(|slot| self.ledger.call(slot)) {
            let _ = writeln!(text, "thread {} is in {}", slot.thread, slot.name);
        }
        for line in self.ledger.trail(LINES) {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// Ends the attacker and the helper processes behind its descriptors.
    fn end_attacker(&mut self) {
        kill(&self.attacker);
        let _ = self.attacker.wait();
    }

    fn end(&mut self) {
        self.ledger.begin_phase(Phase::End);
        self.ledger.word(Word::Phase).store(Phase::End as u64, SeqCst);
        self.end_attacker();
        let end = Instant::now() + Duration::from_secs(2);
        for child in [&mut self.victim, &mut self.bystander] {
            while Instant::now() < end && !matches!(child.try_wait(), Ok(Some(_))) {
                std::thread::sleep(Duration::from_millis(1));
            }
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
