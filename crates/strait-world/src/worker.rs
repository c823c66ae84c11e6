//! A process of a world: the process listens under its name, runs its threads, and checks at the end that nothing is
//! left.

use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Barrier, Mutex, PoisonError};
use std::time::{Duration, Instant};

use strait::meet::Refused;
use strait::quota::{BadPeer, Limits, Resource};
use strait::{Channel, Error, Listener, Peer};

use crate::Arguments;
use crate::clock::Delay;
use crate::ledger::{Ending, Ledger, Life, Phase, WALKERS};
use crate::walker::Walker;
use crate::{allocations, judge, own};

/// How long resources may remain after everything was dropped, because the library closes some resources in the
/// background.
const SETTLED: Duration = Duration::from_secs(10);

/// The number of bytes that may stay allocated in a process, for growing tables of the library.
const KEPT: u64 = 512 << 10;

/// The state of this process, shared by its threads.
pub(crate) struct Process {
    pub(crate) ledger: &'static Ledger,
    pub(crate) life: &'static Life,
    pub(crate) number: usize,
    pub(crate) directory: String,
    /// Whether the process waits after a mistake, instead of exiting.
    hold: bool,
    /// The folder of the traces, if there are any.
    pub(crate) traces: Option<PathBuf>,
    /// Accepted channels that no thread has taken yet.
    pub(crate) accepted: Mutex<Vec<Channel>>,
    /// How often the library has called the callback for bad peers.
    pub(crate) reports: AtomicU64,
    /// The delays of each thread that uses the library.
    delays: Mutex<Vec<Delay>>,
}

/// The numbers of descriptors, mappings and threads of this process, to be compared at its start and its end. One
/// eventfd does not count: the library keeps the eventfd for all waits that can be interrupted (see
/// `Channel::interrupter`).
#[derive(Debug, PartialEq, Eq)]
struct Possessions {
    descriptors: usize,
    mappings: usize,
    threads: usize,
}

impl Possessions {
    fn now() -> Self {
        let descriptors = own::descriptors() - own::eventfds().min(1);
        Self { descriptors, mappings: own::mappings().len(), threads: own::threads() }
    }
}

/// Returns the path of the directory of names of a world.
pub(crate) fn directory(seed: u64, controller: u32) -> String {
    format!("{}/strait-world-{controller}-{seed}", std::env::temp_dir().display())
}

impl Process {
    /// Makes [`delayed`](Self::delayed) count the calling thread too.
    pub(crate) fn count_delays_of_this_thread(&self) {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).push(Delay::own());
    }

    /// Returns the nanoseconds of waiting for a processor so far, summed over the counted threads of this process.
    pub(crate) fn delayed(&self) -> u64 {
        self.delays.lock().unwrap_or_else(PoisonError::into_inner).iter().map(Delay::nanos).sum()
    }

    /// Records a mistake, and the end `about` concerned by it. Then ends this process, or holds this thread for ever.
    pub(crate) fn wrong(&self, about: Option<u32>, what: &str) -> ! {
        self.life.say(what);
        if let Some(about) = about {
            self.life.about.store(about + 1, SeqCst);
        }
        self.life.ends(Ending::Wrong);
        if self.hold {
            loop {
                std::thread::park();
            }
        }
        // SAFETY: `_exit` may be called in any state; no exit handler runs while other threads are in calls.
        unsafe { libc::_exit(101) }
    }
}

/// Has each panic recorded as a mistake.
fn report_panics(process: &'static Process) {
    std::panic::set_hook(Box::new(|panic| process.wrong(None, &panic.to_string())));
}

/// The reason with which a process of a world reports an honest peer as bad.
pub(crate) const REASON: &str = "a message that makes no sense, says a world";

/// Counts a report of a bad peer. All peers are honest, so the library itself must report none.
fn hear_of_bad_peer(process: &Process, bad: &BadPeer) {
    if bad.reason != REASON {
        process.wrong(None, &format!("the library says of an honest peer: {bad}"));
    }
    process.reports.fetch_add(1, SeqCst);
}

/// Plays one process of a world: the process `number`, whose ledger is in the descriptor `ledger`.
pub(crate) fn play(ledger: i32, number: i32, arguments: &Arguments) -> ExitCode {
    own::take_memory_in_advance();
    lift_limits();
    own::limit_descriptors(own::descriptors_in_plenty());
    // SAFETY: the controller left the descriptor open for this process alone, and nothing else owns it.
    let memory = unsafe { OwnedFd::from_raw_fd(ledger) };
    let ledger = Ledger::map(memory.as_fd());
    own::grow_descriptor_table(&memory);
    drop(memory);
    let number = usize::try_from(number).expect("a number");
    let life = &ledger.lives[number];
    // SAFETY: the arguments are plain numbers; the kernel kills this process when its parent ends.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    let directory = directory(ledger.seed.load(SeqCst), std::os::unix::process::parent_id());
    let (accepted, reports, delays) = (Mutex::default(), AtomicU64::new(0), Mutex::default());
    let (hold, traces) = (arguments.hold, arguments.trace.clone());
    let process = Process { ledger, life, number, directory, hold, traces, accepted, reports, delays };
    let process: &'static Process = Box::leak(Box::new(process));
    report_panics(process);
    #[cfg(strait_strict_wakes)]
    strait::strict_wakes::count_in(&life.in_checks);
    strait::quota::on_bad_peer(|bad| hear_of_bad_peer(process, bad));
    handle_signals();
    life.pid.store(std::process::id(), SeqCst);
    let threads = 1 + life.seed.load(SeqCst) as usize % WALKERS;
    live(process, threads);
    life.ends(Ending::Done);
    ExitCode::SUCCESS
}

/// Lifts the limits of this process for its peers. Threads hold their ends until the world ends, so a call over a limit
/// would fail for ever. The limits on descriptors that follow from `RLIMIT_NOFILE` stay.
pub(crate) fn lift_limits() {
    const PLENTY: u64 = 1 << 40;
    let lift = |limits: Limits, of| limits.peer(of, PLENTY).user(of, PLENTY);
    strait::quota::set_limits(Resource::ALL.into_iter().fold(Limits::new(), lift));
}

/// Installs an empty signal handler, so that signals interrupt sleeping calls.
fn handle_signals() {
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: `sigaction` is plain data for which all zeroes are a value; the handler does nothing, so it may run at
    // any time.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
    }
}

fn live(process: &'static Process, threads: usize) {
    let (ready, measured, ended, may_end) =
        (Barrier::new(threads + 2), Barrier::new(threads + 2), Barrier::new(threads + 2), Barrier::new(threads + 2));
    std::thread::scope(|scope| {
        for number in 0..threads {
            let (ready, measured, ended, may_end) = (&ready, &measured, &ended, &may_end);
            scope.spawn(move || {
                let mut walker = Walker::new(process, number);
                ready.wait();
                measured.wait();
                walker.walk();
                ended.wait();
                may_end.wait();
            });
        }
        let (ready_too, measured_too, ended_too, may_end_too) = (&ready, &measured, &ended, &may_end);
        scope.spawn(move || {
            process.count_delays_of_this_thread();
            ready_too.wait();
            measured_too.wait();
            keep_door(process);
            ended_too.wait();
            may_end_too.wait();
        });
        ready.wait();
        let (before, bytes) = (Possessions::now(), (allocations::bytes(), allocations::blocks()));
        process.life.is_ready.store(1, SeqCst);
        measured.wait();
        ended.wait();
        look_what_is_left(process, &before, bytes);
        may_end.wait();
    });
}

/// The longest time for which the name of a killed process may stay taken. A child of the process has a copy of the
/// listening socket until it starts its own program.
const NAME_IS_FREE: Duration = Duration::from_secs(10);

/// Accepts processes that connect, until the world ends.
fn keep_door(process: &'static Process) {
    let name = format!("w{}", process.life.slot.load(SeqCst));
    let (mut listener, begin) = (None, Instant::now());
    while process.ledger.phase() < Phase::Close {
        let Some(open) = &listener else {
            let over = process.life.shortages_over();
            let of_this_user = |peer: &Peer| peer.uid == rustix::process::getuid().as_raw();
            // If a connecting process gives up, it is refused, too.
            let hears = |refused: &Refused| drop(format!("{refused:?}"));
            let builder = Listener::builder().policy(of_this_user).on_refused(hears);
            listener = match builder.directory(&process.directory).bind(&name) {
                Ok(listener) => Some(listener),
                Err(failed) if excused(process, over, failed.error) => None,
                Err(failed) if failed.error == Error::NameTaken && begin.elapsed() < NAME_IS_FREE => {
                    std::thread::sleep(Duration::from_millis(1));
                    None
                }
                Err(error) => process.wrong(None, &format!("the name {name}: {error:?}")),
            };
            continue;
        };
        let over = process.life.shortages_over();
        match open.accept(Duration::from_millis(100)) {
            Ok(channel) => process.accepted.lock().unwrap_or_else(PoisonError::into_inner).push(channel),
            Err(failed) if failed.error == Error::TimedOut => {}
            Err(failed) if excused(process, over, failed.error) => std::thread::sleep(Duration::from_millis(1)),
            Err(error) => process.wrong(None, &format!("accepting: {error:?}")),
        }
    }
    process.accepted.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Returns whether a shortage explains the error of a call, before which `over` shortages were over.
pub(crate) fn excused(process: &Process, over: u64, error: Error) -> bool {
    judge::is_shortage(error) && (process.life.is_short_since(over) || has_few_left(error))
}

/// Returns whether the error reports the limit of descriptors for a peer while few are left. Repeated introductions of
/// processes leave very many links, each with a descriptor.
fn has_few_left(error: Error) -> bool {
    error == Error::LimitReached(Resource::Descriptors) && own::has_few_descriptors()
}

fn look_what_is_left(process: &Process, before: &Possessions, memory: (u64, Vec<u64>)) {
    let begin = Instant::now();
    while Possessions::now() != *before && begin.elapsed() < SETTLED {
        std::thread::sleep(Duration::from_millis(5));
    }
    let after = Possessions::now();
    if after != *before {
        let what = format!("left: {before:?} became {after:?}\n{}\n{:#?}", own::open_files(), own::mappings());
        process.wrong(None, &what);
    }
    let kept = allocations::bytes().saturating_sub(memory.0);
    process.life.kept.store(kept, SeqCst);
    if kept > KEPT {
        let more =
            allocations::blocks().into_iter().zip(memory.1).map(|(now, before)| now.wrapping_sub(before).cast_signed());
        let more: String = more
            .enumerate()
            .filter(|(_, more)| *more != 0)
            .map(|(bits, more)| format!(", {more} of 2^{bits}"))
            .collect();
        process.wrong(None, &format!("left: {kept} bytes of memory; more blocks than at first, below{more} bytes"));
    }
}
