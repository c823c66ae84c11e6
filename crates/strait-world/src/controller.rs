//! The controller: makes worlds, causes faults, watches processes, and judges the remains.

use std::collections::HashMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv,
    sendmsg, socketpair,
};
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use crate::Arguments;
use crate::clock::{Delay, nanos, now};
use crate::judge::{is_gone, is_peer_gone};
use crate::ledger::{Answer, Ending, LIVES, Ledger, Life, Phase, Place, WALKERS, Walk, faults, other};
use crate::own;
use crate::random::{Random, mix};
use crate::trace;
use crate::trail::{self, Call};
use crate::worker::directory;

/// The longest time in nanoseconds until a waiting thread must notice a message or an event.
const NOTICED: u64 = 1_000_000_000;

/// How long a thread is watched to learn whether it runs. The kernel adds the time that a running thread has run at
/// least every 10 ms.
const GLANCE: Duration = Duration::from_millis(20);

/// Nanoseconds past the deadline of a call after which the log shows where the thread is.
const LATE: u64 = 400_000_000;

/// Nanoseconds past the deadline after which a call counts as hanging.
const HANGS: u64 = 8_000_000_000;

/// Nanoseconds without a new message after which a missing message counts as lost, once no process sends any more.
const DRAINED: u64 = 20_000_000_000;

/// If the threads were held up, a message counts as missing only after each thread has looked at all its ends in vain
/// this many times.
const LOOKS: u64 = 500;

/// How long the processes may take to end.
const ENDED: Duration = Duration::from_secs(60);

/// The length of the longest stops and shortages in milliseconds: longer than any wait inside the library.
const LONG: u64 = 2500;

/// Runs at least one world, and more until the time is up.
pub(crate) fn main(arguments: &Arguments) -> ExitCode {
    let begin = Instant::now();
    let first = arguments.seed.unwrap_or_else(|| mix(now()) >> 32);
    for seed in first.. {
        println!("world {seed}");
        match run(seed, arguments) {
            Ok(summary) => println!("  {summary}"),
            Err(what) => {
                println!("  WRONG: {what}\n  again: --seed {seed} --seconds 1");
                return ExitCode::FAILURE;
            }
        }
        if begin.elapsed() >= Duration::from_secs(arguments.seconds) {
            break;
        }
    }
    ExitCode::SUCCESS
}

/// The controller's record of a process.
struct Worker {
    life: usize,
    child: Child,
    /// If the process is stopped: the begin and the end of the stop, in nanoseconds of the shared clock.
    stopped: Option<(u64, u64)>,
    short: Option<(Resource, u64)>,
    /// The time of the last look at the process.
    looked: u64,
    watches: [Watch; WALKERS],
}

/// The controller's record of a thread that may be in a call.
#[derive(Default)]
struct Watch {
    delay: Option<Delay>,
    /// The last call in which the thread was seen, and the nanoseconds for which the thread had been held up when the
    /// call was first seen.
    seen: (u64, u64),
    /// The last call that the log reports as late.
    told: u64,
    /// If a message or an event is there for the waiting thread: the time when this process noticed it, the
    /// call, and the nanoseconds for which the thread had been held up by then.
    overlooked: Option<(u64, u64, u64)>,
}

struct World {
    ledger: &'static Ledger,
    memory: OwnedFd,
    random: Random,
    seed: u64,
    faults: u32,
    hold: bool,
    /// The folder of the traces, if there are any.
    traces: Option<PathBuf>,
    begin: u64,
    lives: usize,
    workers: Vec<Worker>,
    counts: [u32; 4],
    /// The time of each fault, and a text about the fault and its process.
    log: Vec<(u64, String)>,
}

/// A mistake: a description, and the end concerned, if there is one.
struct Wrong(String, Option<u32>);

impl From<String> for Wrong {
    fn from(what: String) -> Self {
        Self(what, None)
    }
}

fn run(seed: u64, arguments: &Arguments) -> Result<String, String> {
    let mut world = World::new(seed, arguments)?;
    let still = AtomicBool::new(false);
    let (ledger, over) = (world.ledger, &still);
    let done = std::thread::scope(|scope| {
        scope.spawn(|| notice_pauses(ledger, over));
        scope.spawn(|| send_sockets(ledger, over));
        let done = world.run();
        over.store(true, SeqCst);
        done
    });
    let summary = match done {
        Ok(()) => Ok(world.summary()),
        Err(Wrong(what, about)) => Err(world.tell(&what, about)),
    };
    if arguments.hold
        && let Err(what) = &summary
    {
        println!("{what}\n{}", world.processes());
        let _ = std::io::stdin().read_line(&mut String::new());
    }
    if summary.is_ok() {
        world.remove_traces();
    }
    world.end();
    summary
}

/// Sends a socket again and again, and records each such call in the ledger. If the user has more than 2,024
/// descriptors in flight, Linux searches for unreachable sockets before sending a socket. On a machine with other work
/// the search takes seconds, and holds up every process of the user.
fn send_sockets(ledger: &Ledger, over: &AtomicBool) {
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (one, other) = pair.expect("two sockets");
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    while !over.load(SeqCst) {
        let mut control = SendAncillaryBuffer::new(&mut space);
        let descriptors = [one.as_fd()];
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        ledger.sends_since.store(now(), SeqCst);
        let _ = sendmsg(&one, &[IoSlice::new(b"x")], &mut control, SendFlags::DONTWAIT);
        ledger.sends_since.store(0, SeqCst);
        // The descriptor is not received.
        let _ = recv(&other, &mut [0], RecvFlags::DONTWAIT);
        std::thread::sleep(NAP);
    }
}

/// The time between two looks at the machine.
const NAP: Duration = Duration::from_millis(10);

/// Adds up the time for which the whole machine stands still: by how much short sleeps last too long, and for how
/// long the kernel blocks [senders of sockets](send_sockets).
fn notice_pauses(ledger: &Ledger, over: &AtomicBool) {
    let delay = Delay::own();
    while !over.load(SeqCst) {
        let (begin, delayed) = (now(), delay.nanos());
        std::thread::sleep(NAP);
        let late = (now() - begin).saturating_sub(nanos(NAP) + (delay.nanos() - delayed));
        let sends_since = ledger.sends_since.load(SeqCst);
        if sends_since != 0 && sends_since < begin {
            ledger.pauses.fetch_add(now() - begin, SeqCst);
        } else if late > nanos(NAP) {
            ledger.pauses.fetch_add(late, SeqCst);
        }
    }
}

impl World {
    fn new(seed: u64, arguments: &Arguments) -> Result<Self, String> {
        let memory = Ledger::memory();
        let ledger = Ledger::map(memory.as_fd());
        let mut random = Random::new(seed);
        let slots = 5 + random.index(4);
        // In some worlds there are no faults, and every loss counts as a mistake; others have all kinds of faults.
        let faults = match random.below(4) {
            0 => 0,
            1 => 31,
            _ => random.below(32) as u32,
        };
        let (slots, faults) = (arguments.workers.unwrap_or(slots), arguments.faults.unwrap_or(faults));
        ledger.slots.store(slots as u32, SeqCst);
        ledger.faults.store(faults, SeqCst);
        ledger.seed.store(seed, SeqCst);
        let names = directory(seed, std::process::id());
        std::fs::DirBuilder::new().mode(0o700).create(&names).map_err(|error| format!("{names}: {error}"))?;
        if let Some(folder) = &arguments.trace {
            std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        }
        let begin = now();
        ledger.begin.store(begin, SeqCst);
        let mut world = Self {
            ledger,
            memory,
            random,
            seed,
            faults,
            hold: arguments.hold,
            traces: arguments.trace.clone(),
            begin,
            lives: 0,
            workers: Vec::new(),
            counts: [0; 4],
            log: Vec::new(),
        };
        for slot in 0..slots {
            let worker = world.start(slot);
            world.workers.push(worker);
        }
        Ok(world)
    }

    /// Starts a process in slot `slot`.
    fn start(&mut self, slot: usize) -> Worker {
        let number = self.lives;
        self.lives += 1;
        let life = &self.ledger.lives[number];
        life.slot.store(slot as u32, SeqCst);
        life.seed.store(self.random.next(), SeqCst);
        let program = std::env::current_exe().expect("this program");
        let ledger = self.memory.as_raw_fd().to_string();
        let mut command = Command::new(program);
        command.args(["--play", &ledger, &number.to_string()]);
        if self.hold {
            command.arg("--hold");
        }
        if let Some(folder) = &self.traces {
            command.arg("--trace").arg(folder);
        }
        let child = command.spawn().expect("a process");
        Worker { life: number, child, stopped: None, short: None, looked: now(), watches: Default::default() }
    }

    fn life(&self, at: usize) -> &'static Life {
        &self.ledger.lives[self.workers[at].life]
    }

    fn run(&mut self) -> Result<(), Wrong> {
        let millis = 2000 + self.random.below(7000);
        let end = now() + millis * 1_000_000;
        let mut next_fault = now();
        while now() < end {
            std::thread::sleep(Duration::from_millis(10));
            self.relent(false);
            self.watch()?;
            if now() >= next_fault {
                next_fault = now() + (20 + self.random.below(300)) * 1_000_000;
                self.do_something();
            }
        }
        self.relent(true);
        self.settle()
    }

    /// Ends the world: has the processes receive every message, check the ends whose other ends are gone, close
    /// everything and exit. Watches the processes meanwhile.
    fn settle(&mut self) -> Result<(), Wrong> {
        self.ledger.set_phase(Phase::Drain);
        self.all_come_to(Phase::Drain)?;
        self.drain()?;
        self.ledger.set_phase(Phase::Lone);
        self.all_come_to(Phase::Lone)?;
        self.ledger.set_phase(Phase::Close);
        let begin = Instant::now();
        while let Some(at) = (0..self.workers.len()).find(|at| self.life(*at).ending() != Ending::Done) {
            self.watch()?;
            if begin.elapsed() > ENDED {
                return Err(Wrong(format!("process {} does not end", self.workers[at].life), None));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Waits until every thread has reached the end of a phase.
    fn all_come_to(&mut self, phase: Phase) -> Result<(), Wrong> {
        loop {
            self.watch()?;
            let has_come = |walk: &Walk| walk.thread.load(SeqCst) == 0 || walk.done.load(SeqCst) >= phase as u32;
            // A freshly started process has not recorded its number of threads yet.
            let all = |life: &Life| life.is_ready.load(SeqCst) != 0 && life.walks.iter().all(has_come);
            if (0..self.workers.len()).all(|at| all(self.life(at))) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until all messages and ends sent to living processes have arrived.
    fn drain(&mut self) -> Result<(), Wrong> {
        let (mut since, mut before, mut looks) = (now(), 0, Vec::new());
        let mut known = u64::MAX;
        loop {
            let (missing, received) = self.missing();
            let Some((end, what)) = missing else { return Ok(()) };
            self.watch()?;
            // The wait goes on as long as messages arrive.
            let held_up = self.held_up();
            if received != known {
                (since, known, before, looks) = (now(), received, held_up, self.looks());
            }
            let time = now() - since;
            let have_looked = self.looks().iter().zip(&looks).all(|(now, before)| *now >= before + LOOKS);
            if time > DRAINED + held_up.saturating_sub(before) || time > DRAINED && have_looked {
                return Err(Wrong(what, Some(end)));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Returns, for each thread of each process, how often the thread has looked at all its ends in vain.
    fn looks(&self) -> Vec<u64> {
        let walks = (0..self.workers.len()).flat_map(|at| &self.life(at).walks);
        walks.filter(|walk| walk.thread.load(SeqCst) != 0).map(|walk| walk.quiet.load(SeqCst)).collect()
    }

    /// Returns the sum of the nanoseconds for which the whole machine stood still and for which the threads of all
    /// processes waited for a processor.
    fn held_up(&mut self) -> u64 {
        let delayed: u64 = (0..self.workers.len()).map(|at| self.delayed(at)).sum();
        delayed + self.ledger.pauses.load(SeqCst)
    }

    /// Returns an end that is in transit or misses a sent message, with a description; and the number of messages
    /// received so far by all ends.
    fn missing(&self) -> (Option<(u32, String)>, u64) {
        let mut missing = None;
        let mut all = 0;
        for end in 0..self.ledger.ends() {
            all += self.ledger.end(end).received.load(SeqCst);
            let place = self.ledger.end(end).place();
            let is_held = matches!(place, Place::Held { life, .. } if !self.ledger.lives[life].is_doomed());
            if is_held && self.ledger.has_message(end) && !is_peer_gone(self.ledger, end) {
                let book = self.ledger.end(self.ledger.stream_to(end));
                let [accepted, received] = [&book.accepted, &book.received].map(|word| word.load(SeqCst));
                let what = format!("end {end} has received {received} of {accepted} messages, and no more come");
                missing = Some((end, what));
            } else if is_held
                && !is_peer_gone(self.ledger, end)
                && let Some(number) = self.ledger.end(end).open_call(false)
            {
                missing = Some((end, format!("call {number} of end {end} is not answered")));
            } else if matches!(place, Place::Riding { .. }) && !is_gone(self.ledger, end) {
                missing = Some((end, format!("end {end} does not arrive: {place:?}")));
            }
        }
        (missing, all)
    }
}

/// Faults.
impl World {
    fn signal(&self, at: usize, signal: Signal) {
        let pid = Pid::from_child(&self.workers[at].child);
        // A killed process keeps its process number until its parent waits for it.
        let _ = kill_process(pid, signal);
    }

    /// Causes a random fault of this world in a random process.
    fn do_something(&mut self) {
        let at = self.random.index(self.workers.len());
        if self.life(at).is_ready.load(SeqCst) == 0 {
            return;
        }
        let kinds: Vec<u32> = (0..5).map(|bit| 1 << bit).filter(|bit| self.faults & bit != 0).collect();
        if kinds.is_empty() {
            return;
        }
        match self.random.pick(&kinds) {
            faults::KILLS if self.lives < LIVES => self.kill(at),
            faults::STOPS => self.stop(at),
            faults::SIGNALS => {
                for _ in 0..self.random.below(2000) {
                    self.signal(at, Signal::USR1);
                }
            }
            faults::DESCRIPTORS => self.starve(at, Resource::Nofile),
            faults::MEMORY => self.starve(at, Resource::As),
            _ => {}
        }
    }

    fn log(&mut self, at: usize, what: &str) {
        self.log.push((now(), format!("{} {what}", self.workers[at].life)));
    }

    fn millis(&mut self) -> u64 {
        match self.random.below(3) {
            0 => self.random.below(LONG),
            _ => self.random.below(50),
        }
    }

    fn kill(&mut self, at: usize) {
        self.counts[0] += 1;
        self.log(at, "is killed");
        let life = self.life(at);
        life.doomed.store(1, SeqCst);
        self.signal(at, Signal::KILL);
        let _ = self.workers[at].child.wait();
        let slot = life.slot.load(SeqCst) as usize;
        self.workers[at] = self.start(slot);
    }

    fn stop(&mut self, at: usize) {
        let millis = self.millis();
        if self.workers[at].stopped.is_none() {
            self.counts[1] += 1;
            self.log(at, "is stopped");
            self.workers[at].stopped = Some((now(), now() + millis * 1_000_000));
            self.signal(at, Signal::STOP);
        }
    }

    /// Limits a process for a while to its present number of descriptors or its present address space, or a little
    /// more.
    fn starve(&mut self, at: usize, resource: Resource) {
        let millis = self.millis();
        let spare = if self.random.one_in(2) { 0 } else { self.random.below(8) };
        let pid = self.workers[at].child.id();
        let most = match resource {
            Resource::Nofile => first_free_descriptor(pid).map(|free| free + spare),
            _ => address_space(pid).map(|bytes| bytes + (spare << 14)),
        };
        if let (None, Some(most)) = (self.workers[at].short, most) {
            self.counts[if resource == Resource::Nofile { 2 } else { 3 }] += 1;
            self.log(at, &format!("may have {most} {resource:?}"));
            self.life(at).begin_shortage();
            self.limit(at, resource, Some(most));
            self.workers[at].short = Some((resource, now() + millis * 1_000_000));
        }
    }

    fn limit(&self, at: usize, resource: Resource, most: Option<u64>) {
        let maximum = rustix::process::getrlimit(resource).maximum;
        let limit = Rlimit { current: most, maximum };
        let _ = prlimit(Some(Pid::from_child(&self.workers[at].child)), resource, limit);
    }

    /// Ends the stops and shortages whose time is over; with `all`, every stop and shortage.
    fn relent(&mut self, all: bool) {
        for at in 0..self.workers.len() {
            if let Some((since, until)) = self.workers[at].stopped
                && (all || now() >= until)
            {
                self.life(at).stopped.fetch_add(now() - since, SeqCst);
                self.signal(at, Signal::CONT);
                self.workers[at].stopped = None;
                self.log(at, "goes on");
            }
            if let Some((resource, until)) = self.workers[at].short
                && (all || now() >= until)
            {
                let most = if resource == Resource::Nofile { Some(own::descriptors_in_plenty()) } else { None };
                self.limit(at, resource, most);
                self.life(at).end_shortage();
                self.workers[at].short = None;
                self.log(at, "has plenty");
            }
        }
    }
}

/// Returns the numbers of the threads of a process.
fn threads_of(pid: u32) -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns whether a thread waits for work of the kernel for all processes, which the thread cannot end. Before the
/// thread sends a socket, the kernel may search for unreachable sockets. Before the thread seals memory, the kernel has
/// each processor give up the pages in its local lists. On a machine with other work each can take seconds. Returns
/// `false` if this process may not read the thread's stack.
fn waits_for_kernel(pid: u32, thread: u32) -> bool {
    let stack = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stack")).unwrap_or_default();
    let callers = ["_sendmsg", "lru_add_drain_all"];
    stack.contains("__flush_work") && callers.iter().any(|caller| stack.contains(caller))
}

/// Returns whether a thread of a process waits for a processor now: ready to run, and not running meanwhile. The kernel
/// adds such a wait to the thread's delay only when the wait ends. Takes [`GLANCE`].
fn waits_for_processor(pid: u32) -> bool {
    let ready = || -> Vec<(u32, u64)> {
        let is_ready = |thread: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('R'))
        };
        let ran = |thread| Some((thread, Delay::of(pid, thread)?.ran_and_waited().0));
        threads_of(pid).filter(is_ready).filter_map(ran).collect()
    };
    let before = ready();
    std::thread::sleep(GLANCE);
    ready().iter().any(|thread| before.contains(thread))
}

fn first_free_descriptor(pid: u32) -> Option<u64> {
    let entries = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?;
    let mut open: Vec<u64> = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    open.sort_unstable();
    Some((0..).zip(&open).find(|(number, open)| number != *open).map_or(open.len() as u64, |(number, _)| number))
}

fn address_space(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    Some(text.split_whitespace().next()?.parse::<u64>().ok()? * rustix::param::page_size() as u64)
}

/// Watching the processes.
impl World {
    /// Checks all processes for mistakes: mistakes recorded by a process, unexpected ends, and hanging threads.
    fn watch(&mut self) -> Result<(), Wrong> {
        for at in 0..self.workers.len() {
            let (life, number) = (self.life(at), self.workers[at].life);
            if life.ending() == Ending::Wrong {
                let about = life.about.load(SeqCst).checked_sub(1);
                return Err(Wrong(format!("process {number}: {}", life.said()), about));
            }
            if life.ending() == Ending::Done {
                continue;
            }
            if let Ok(Some(status)) = self.workers[at].child.try_wait() {
                // The process may have recorded a mistake in between.
                let said = life.said();
                return Err(Wrong(format!("process {number} ended by itself: {status} {said}"), None));
            }
            self.notice_waits_for_kernel(at);
            for walker in 0..WALKERS {
                self.watch_thread(at, walker)?;
            }
        }
        Ok(())
    }

    /// Adds up the time for which a thread of a process [waits for the kernel](waits_for_kernel) while a call is past
    /// its deadline. The time counts from each look at the process to the next look.
    fn notice_waits_for_kernel(&mut self, at: usize) {
        let life = self.life(at);
        let since = std::mem::replace(&mut self.workers[at].looked, now());
        let is_late = |walk: &Walk| {
            let is_in_call = walk.calls.load(SeqCst) % 2 == 1;
            is_in_call && now() > walk.begin.load(SeqCst) + walk.patience.load(SeqCst)
        };
        let pid = life.pid.load(SeqCst);
        // The waiting thread can be any thread of the process: it may have a lock that a late thread needs.
        if life.walks.iter().any(is_late) && threads_of(pid).any(|thread| waits_for_kernel(pid, thread)) {
            life.in_kernel.fetch_add(now() - since, SeqCst);
        }
    }

    fn watch_thread(&mut self, at: usize, walker: usize) -> Result<(), Wrong> {
        let (life, number) = (self.life(at), self.workers[at].life);
        let walk = &life.walks[walker];
        let calls = walk.calls.load(SeqCst);
        if calls.is_multiple_of(2) {
            self.workers[at].watches[walker].overlooked = None;
            return Ok(());
        }
        let stopped_now = self.workers[at].stopped.map_or(0, |(since, _)| now() - since);
        let delayed = self.delayed(at);
        let in_library = life.in_kernel.load(SeqCst) + life.in_checks.load(SeqCst);
        let held_up = delayed + life.stopped.load(SeqCst) + stopped_now + in_library + self.ledger.pauses.load(SeqCst);
        // A message may have to wait while its receiver lacks something. The waiting thread itself may have set the
        // exceeded limit.
        let there = if life.is_short() { None } else { awaited(walk).find(|end| self.is_there(walk, *end)) };
        let watch = &mut self.workers[at].watches[walker];
        match (there, watch.overlooked) {
            (None, _) => watch.overlooked = None,
            (Some(end), Some((since, in_call, before))) if in_call == calls => {
                let time = (now() - since).saturating_sub(held_up.saturating_sub(before));
                let pid = life.pid.load(SeqCst);
                if time > NOTICED && !waits_for_processor(pid) && walk.calls.load(SeqCst) == calls {
                    let what = format!(
                        "process {number}.{walker} sleeps in {} though there has been something at end {end} for {} ms; \
                         the other end is {:?}",
                        Call::of(walk.call.load(SeqCst)),
                        time / 1_000_000,
                        self.ledger.end(self.ledger.peer(end)).place()
                    );
                    return Err(Wrong(what + &self.whereabouts(at, walker), Some(end)));
                }
            }
            (Some(_), _) => watch.overlooked = Some((now(), calls, held_up)),
        }
        if watch.seen.0 != calls {
            watch.seen = (calls, held_up);
        }
        let late = now().saturating_sub(walk.begin.load(SeqCst) + walk.patience.load(SeqCst));
        if late > LATE + held_up.saturating_sub(watch.seen.1) && watch.told != calls && walk.calls.load(SeqCst) == calls
        {
            watch.told = calls;
            let call = Call::of(walk.call.load(SeqCst));
            let text = format!("is late in {call}:{}", self.all_whereabouts(at));
            self.log(at, &text);
        }
        let watch = &mut self.workers[at].watches[walker];
        let hangs = late > HANGS + held_up.saturating_sub(watch.seen.1);
        if hangs && !waits_for_processor(life.pid.load(SeqCst)) && walk.calls.load(SeqCst) == calls {
            let call = Call::of(walk.call.load(SeqCst));
            let what = format!("process {number}.{walker} hangs in {call}, {} ms past its deadline", late / 1_000_000);
            return Err(Wrong(what + &self.whereabouts(at, walker), Some(walk.end.load(SeqCst))));
        }
        Ok(())
    }

    /// Returns the nanoseconds for which the threads of a process with channels have waited for a processor so far,
    /// summed over the threads: a thread may have a lock needed by another thread.
    fn delayed(&mut self, at: usize) -> u64 {
        let life = self.life(at);
        let mut sum = 0;
        for (watch, walk) in self.workers[at].watches.iter_mut().zip(&life.walks) {
            let thread = walk.thread.load(SeqCst);
            if watch.delay.is_none() && thread != 0 {
                watch.delay = Delay::of(life.pid.load(SeqCst), thread);
            }
            sum += watch.delay.as_ref().map_or(0, Delay::nanos);
        }
        sum
    }

    /// Returns where each thread of a process is in the kernel, as far as this process may read it: the functions,
    /// without addresses.
    fn all_whereabouts(&self, at: usize) -> String {
        let pid = self.life(at).pid.load(SeqCst);
        let entries = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let place = |entry: std::fs::DirEntry| {
            let file = |name| std::fs::read_to_string(entry.path().join(name)).unwrap_or_default();
            let stack = file("stack");
            let functions: Vec<_> = stack.split_whitespace().filter_map(|word| word.split_once('+')).collect();
            let functions: Vec<_> = functions.into_iter().map(|(function, _)| function).take(6).collect();
            format!("\n      {} in {} {}", file("comm").trim(), file("wchan"), functions.join(" "))
        };
        entries.map(place).collect()
    }

    /// Returns where a thread is in the kernel, by `/proc`.
    fn whereabouts(&self, at: usize, walker: usize) -> String {
        let life = self.life(at);
        let (pid, thread) = (life.pid.load(SeqCst), life.walks[walker].thread.load(SeqCst));
        let file = |name| std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/{name}")).unwrap_or_default();
        format!("\n  in {} {}", file("wchan"), file("syscall").trim())
    }

    /// Returns whether the answer, message or request that a thread awaits at `end` is there, or the other end is
    /// gone for good.
    fn is_there(&self, walk: &Walk, end: u32) -> bool {
        let answer = walk.awaits_answer.load(SeqCst).checked_sub(1);
        let has_come = match answer {
            Some(number) => self.ledger.end(end).answer(number) == Answer::Sent,
            None => self.ledger.has_message(end) || self.ledger.end(other(end)).open_call(true).is_some(),
        };
        has_come || is_gone_for_good(self.ledger, self.ledger.peer(end))
    }
}

/// Returns whether an end is closed, or its process dead, so that a waiting thread at the other end must notice soon.
/// An end closed in a shortage does not count: closing such an end can take a descriptor, and the library retries until
/// it gets a descriptor (`docs/reference/limits.md`, *Closing ends that have moved*). An end lost in a shortage does
/// not count either.
fn is_gone_for_good(ledger: &Ledger, end: u32) -> bool {
    let end = ledger.end(end);
    match end.place() {
        Place::Closed => end.is_closed_in_shortage.load(SeqCst) == 0,
        Place::Held { life, .. } => ledger.lives[life].is_doomed(),
        _ => false,
    }
}

fn awaited(walk: &Walk) -> impl Iterator<Item = u32> {
    let count = walk.awaits.load(SeqCst) as usize;
    walk.awaited[..count.min(walk.awaited.len())].iter().map(|end| end.load(SeqCst))
}

/// Reports.
impl World {
    fn summary(&self) -> String {
        let mut sums: HashMap<&str, u64> = HashMap::new();
        for end in 0..self.ledger.ends() {
            let end = self.ledger.end(end);
            *sums.entry("accepted").or_default() += end.accepted.load(SeqCst);
            *sums.entry("received").or_default() += end.received.load(SeqCst);
            *sums.entry("fused").or_default() += u64::from(matches!(end.place(), Place::Fused { .. }));
        }
        let [kills, stops, descriptors, memory] = self.counts;
        let kept = self.ledger.lives[..self.lives].iter().map(|life| life.kept.load(SeqCst)).max().unwrap_or_default();
        format!(
            "{:.1} s, {} processes at a time, faults {:05b}, {} channels, {} fused, {} messages accepted, {} received, \
             {kills} kills, {stops} stops, {descriptors} + {memory} shortages, at most {} KiB kept, \
             {} guests, {} reports, late calls waited for the kernel for {} ms",
            (now() - self.begin) as f64 / 1e9,
            self.workers.len(),
            self.faults,
            self.ledger.ends() / 2,
            sums["fused"] / 2,
            sums["accepted"],
            sums["received"],
            kept >> 10,
            self.ledger.guests.load(SeqCst),
            self.ledger.reports.load(SeqCst),
            self.ledger.lives.iter().map(|life| life.in_kernel.load(SeqCst)).sum::<u64>() / 1_000_000,
        )
    }

    /// Stops the processes, and returns everything in the ledger about a mistake: the description `what`, the places of
    /// the ends concerned, and the trail.
    fn tell(&mut self, what: &str, about: Option<u32>) -> String {
        for at in 0..self.workers.len() {
            self.signal(at, Signal::STOP);
        }
        let chain = about.map_or(Vec::new(), |about| self.chain(about));
        let whereabouts: String = chain.iter().map(|channel| self.whereabouts_of(*channel)).collect();
        let trail = trail::trail(self.ledger, self.lives, self.begin, &chain, 12, &self.log);
        let now = (now() - self.begin) as f64 / 1e9;
        let short = |life: &usize| self.ledger.lives[*life].has_been_short();
        let short: Vec<usize> = (0..self.lives).filter(short).collect();
        format!(
            "{what}\n{whereabouts}  at {now:.6} s; faults {:05b}; lacked something: {short:?}; the trail (life.thread, + for a dead one):\n{trail}{}",
            self.faults,
            self.traces_to_read(&chain)
        )
    }

    /// Returns the traces with more about a mistake: the traces of living processes, and of dead processes with calls
    /// on the channels of `chain`. Returns an empty text if there are no traces.
    fn traces_to_read(&self, chain: &[u32]) -> String {
        let Some(folder) = &self.traces else { return String::new() };
        let line = |(life, path): (usize, PathBuf)| {
            let (calls, is_dead) = (trace::lines_about(&path, chain), self.ledger.lives[life].is_doomed());
            let dead = if is_dead { ", of a dead process" } else { "" };
            let line = || format!("  {}: {calls} calls on these channels{dead}\n", path.display());
            (calls > 0 || !is_dead).then(line)
        };
        let lines: String = trace::of_world(folder, self.seed, self.lives).filter_map(line).collect();
        format!("traces, each to be read with `sort`:\n{lines}")
    }

    fn remove_traces(&self) {
        if let Some(folder) = &self.traces {
            trace::of_world(folder, self.seed, self.lives).for_each(|(_, path)| drop(std::fs::remove_file(path)));
        }
    }

    /// Returns the channel of `about`, the channels with its ends in messages, the channels fused with it, and so on.
    fn chain(&self, about: u32) -> Vec<u32> {
        let mut chain = vec![about / 2];
        let mut at = 0;
        while let Some(channel) = chain.get(at).copied() {
            for end in [2 * channel, 2 * channel + 1] {
                let next = match self.ledger.end(end).place() {
                    Place::Riding { stream: end, .. }
                    | Place::Fusing { with: end, .. }
                    | Place::Fused { with: end } => end / 2,
                    _ => continue,
                };
                if !chain.contains(&next) {
                    chain.push(next);
                }
            }
            at += 1;
        }
        chain
    }

    /// Returns where the ends of a channel are, and how many messages each has sent.
    fn whereabouts_of(&self, channel: u32) -> String {
        let line = |end: u32| {
            let book = self.ledger.end(end);
            let [tried, accepted, received] =
                [&book.tried, &book.accepted, &book.received].map(|word| word.load(SeqCst));
            let place = book.place();
            let gone = if is_gone(self.ledger, end) { ", gone" } else { "" };
            format!("  end {end} {place:?}{gone}: {tried} tried, {accepted} accepted, {received} received\n")
        };
        line(2 * channel) + &line(2 * channel + 1)
    }

    /// Returns the process number in the kernel of each process, as text.
    fn processes(&self) -> String {
        self.workers.iter().map(|worker| format!("process {} is {}\n", worker.life, worker.child.id())).collect()
    }

    fn end(mut self) {
        for worker in &mut self.workers {
            // If a process has ended by itself, it need not be killed.
            let done = self.ledger.lives[worker.life].ending() == Ending::Done;
            if !done {
                let _ = worker.child.kill();
            }
            let _ = worker.child.wait();
        }
        let _ = std::fs::remove_dir_all(directory(self.seed, std::process::id()));
    }
}
