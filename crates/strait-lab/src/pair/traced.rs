//! Counts system calls by `ptrace`, for machines where the kernel's tracepoint is not available.
//!
//! All processes are traced from the first instruction to the last, in two runs of the same work, the second run longer
//! than the first. The difference is the cost of the messages, without starting, connecting and reporting.
//!
//! Every stop costs tens of microseconds, so nothing is timed here, and behaviour that depends on time differs: a
//! receiver that polls by system calls makes fewer calls, and a receiver that spins before it sleeps may always
//! sleep.

use std::collections::HashMap;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::process::control::{self, Heard};
use crate::process::start;
use crate::shape::Shape;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Calls, Counted, Extent, Report, Work};

/// The most messages in the warm-up of both runs.
const WARM: u64 = 64;

/// Returns the system calls of each side for each message of `work`.
///
/// # Errors
/// If this machine does not allow tracing, or a run breaks.
pub(crate) fn calls(work: &Work) -> Result<Calls> {
    let [few, many] = counts(work);
    let (less, more) = (run(work, few)?, run(work, many)?);
    let messages = more.messages.saturating_sub(less.messages).max(1) as f64;
    let each = |side: usize| (more.calls[side].saturating_sub(less.calls[side])) as f64 / messages;
    Ok(Calls { sides: [each(0), each(1)], how: Counted::Ptrace })
}

/// Returns the numbers of messages for the shorter and the longer run: enough for a clear difference, but fewer if
/// messages are large or slow.
fn counts(work: &Work) -> [u64; 2] {
    let many = match work.shape {
        Shape::Wake { after } => (2000 / u64::from(after).max(1)).clamp(8, 200),
        Shape::Connect => 40,
        // A stream checks whether its time is over once in 1024 messages.
        Shape::Stream { .. } | Shape::Mix { stream: true } | Shape::Producers { .. } => 8192,
        _ => ((32 << 20) / work.size as u64).clamp(8, 800),
    };
    [many / 4, many]
}

/// The results of one traced run.
#[derive(Debug, Default)]
struct Run {
    messages: u64,
    /// The system calls of the first process, and of all others together.
    calls: [u64; 2],
}

fn run(work: &Work, steady: u64) -> Result<Run> {
    let warm = WARM.min(steady);
    let work = Work { extent: Extent::Count { warm, steady }, stride: 1, silent: false, ..work.clone() };
    let (socket, theirs) = control::pair()?;
    let command = start::command("first", &work, theirs)?;
    let calls = count(command, 4 * work.longest() + Duration::from_secs(20))?;
    reported(&socket).map(|report| Run { messages: report.count, calls })
}

/// Returns the report of an ended process from `socket`.
pub(super) fn reported(socket: &OwnedFd) -> Result<Report> {
    match control::recv::<Result<Report>>(socket.as_fd(), Duration::ZERO)? {
        Heard::Packet(report, _) => report,
        Heard::Gone | Heard::Nothing => Err(Trouble::new("the observed process gave no result")),
    }
}

/// Counts the system calls of all processes of `work`, from start to end.
pub(crate) fn total(work: &Work, patience: Duration) -> Result<u64> {
    let (socket, theirs) = control::pair()?;
    let calls = count(start::command("first", work, theirs)?, patience)?;
    reported(&socket)?;
    Ok(calls.iter().sum())
}

/// Counts the system calls of a process and of all its descendants, from start to end. Kills a process that is not done
/// after `patience`. Returns the count of the first process, and of all others together.
fn count(mut command: Command, patience: Duration) -> Result<[u64; 2]> {
    // SAFETY: between `fork` and `exec` the closure makes one system call, and touches no memory but errno.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(Into::into)) };
    // The code below waits for the child by number, and never by handle: after the end of the child, another process
    // may get the number.
    let first = Pid::from_raw(command.spawn().doing("starting a process")?.id() as i32);
    drop(command);

    let (done, hangs) = mpsc::channel::<()>();
    let watchdog = std::thread::spawn(move || {
        if hangs.recv_timeout(patience) == Err(mpsc::RecvTimeoutError::Timeout) {
            let _ = kill(first, Signal::SIGKILL);
        }
    });
    let stops = follow(first);
    drop(done);
    if watchdog.join().is_err() {
        return Err(Trouble::new("the watchdog panicked"));
    }
    // A thread stops at the beginning and at the end of a system call.
    Ok(stops?.map(|stops| stops / 2))
}

/// Follows `first` and all processes and threads started by it until they have ended. Returns how often the first
/// process and the others stopped at a system call: twice for each call, at begin and end.
fn follow(first: Pid) -> Result<[u64; 2]> {
    let mut sides: HashMap<Pid, usize> = HashMap::new();
    let mut stops = [0; 2];
    loop {
        // Waits only for processes traced by this thread: other threads may have children of their own.
        let status = match waitpid(None, Some(WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD)) {
            Ok(status) => status,
            Err(Errno::EINTR) => continue,
            Err(Errno::ECHILD) => return Ok(stops),
            Err(error) => return Err(error).doing("waiting for the traced processes"),
        };
        let Some(thread) = status.pid() else { continue };
        let deliver = match status {
            WaitStatus::Exited(..) | WaitStatus::Signaled(..) => continue,
            WaitStatus::PtraceSyscall(_) => {
                stops[*sides.entry(thread).or_insert_with(|| side(thread, first))] += 1;
                None
            }
            // The first stop of a thread marks its start; there is no signal to deliver.
            WaitStatus::Stopped(_, _) if !sides.contains_key(&thread) => {
                sides.insert(thread, side(thread, first));
                if thread == first {
                    let all = Options::PTRACE_O_TRACESYSGOOD
                        | Options::PTRACE_O_TRACEFORK
                        | Options::PTRACE_O_TRACEVFORK
                        | Options::PTRACE_O_TRACECLONE
                        | Options::PTRACE_O_EXITKILL;
                    ptrace::setoptions(first, all).doing("ptrace(PTRACE_SETOPTIONS)")?;
                }
                None
            }
            // `exec` sends this signal to a traced process.
            WaitStatus::Stopped(_, Signal::SIGTRAP) => None,
            WaitStatus::Stopped(_, signal) => Some(signal),
            _ => None,
        };
        match ptrace::syscall(thread, deliver) {
            // `ESRCH`: the thread was killed since it stopped.
            Ok(()) | Err(Errno::ESRCH) => {}
            Err(error) => return Err(error).doing("ptrace(PTRACE_SYSCALL)"),
        }
    }
}

/// Returns 0 if `thread` belongs to the first process, and 1 otherwise.
fn side(thread: Pid, first: Pid) -> usize {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
    usize::from(process != Some(first.as_raw()))
}
