//! The processes of a measurement.
//!
//! `strait` starts a fresh first process for each run, and the first process starts the others. Each process is this
//! program, executed again with a hidden subcommand. The standard input is the control socket, and the process dies
//! with its parent.

pub(crate) mod counted;
pub(crate) mod traced;

use std::io::stdin;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::loops::{self, Share};
use crate::machine::Watch;
use crate::mechanism::{self, End, Side};
use crate::process::control::{self, Heard};
use crate::process::start::Started;
use crate::process::{clock, events, silence};
use crate::shape::{Crowd, Shape};
use crate::sys::shared::Shared;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Wait, Work};

/// The share of all processors' time that other processes may use before a run gets more time. The processes of the
/// run count as others too until they have ended.
const CROWDED: f64 = 0.3;

/// How many times its usual time limit a run gets at most.
const CROWDED_LIMITS: usize = 10;

/// The shortest time limit for the start of all other processes of a run.
const BEGIN: Duration = Duration::from_secs(30);

/// Returns the usual time limit of a run.
fn limit(work: &Work) -> Duration {
    let slack = if work.silent || work.size < 1 << 20 { 5 } else { 20 };
    work.longest() + Duration::from_secs(slack)
}

/// How a run ended.
#[derive(Debug)]
pub enum Outcome {
    /// The run was measured.
    Measured(Box<Report>),
    /// A process was killed for a system call when none was allowed. A hanging process looks the same then, because the
    /// other process may make no system call for a report.
    SilenceBroken,
}

/// Runs `work` in fresh processes, and returns its report. Blocks until the run ends or its time limit has passed. If
/// the limit has passed, the processes are killed.
pub fn run(work: &Work) -> Result<Outcome> {
    let (socket, theirs) = control::pair()?;
    let mut first = Started::new("first", work, theirs)?;
    match hear(socket.as_fd(), work)? {
        Heard::Packet(Ok(report), _) if report.silence_broken => Ok(Outcome::SilenceBroken),
        Heard::Packet(Ok(report), _) => Ok(Outcome::Measured(Box::new(report))),
        Heard::Packet(Err(trouble), _) => Err(trouble),
        Heard::Gone => {
            let status = first.child.wait().doing("wait")?;
            if work.silent && status.signal() == Some(silence::BROKEN) {
                return Ok(Outcome::SilenceBroken);
            }
            Err(Trouble::new(format!("the measuring process died: {status}")))
        }
        // In a silent run the first process only spins for the answer of the second process, which was killed.
        Heard::Nothing if work.silent => Ok(Outcome::SilenceBroken),
        Heard::Nothing => Err(Trouble::new("no result arrived in time: a side hangs or died")),
    }
}

/// Waits for the result of `work`. If other processes use most of the processors, the time limit is extended up to
/// [`CROWDED_LIMITS`] times: a process that spins then needs a time slice for each message.
fn hear(socket: BorrowedFd<'_>, work: &Work) -> Result<Heard<Result<Report>>> {
    let watch = Watch::start();
    for _ in 0..if work.silent { 0 } else { CROWDED_LIMITS - 1 } {
        let heard = control::recv(socket, limit(work))?;
        if !matches!(heard, Heard::Nothing) || watch.foreign() < Some(CROWDED) {
            return Ok(heard);
        }
    }
    control::recv(socket, limit(work))
}

/// The main function of a process started with the hidden subcommand. `side` is the number of the process in the
/// measurement; `told` is the work as JSON.
pub fn main(side: &str, told: &str) -> Result<()> {
    if side == mechanism::KEEPER {
        return mechanism::keep(stdin().as_fd());
    }
    set_parent_process_death_signal(Some(Signal::KILL)).doing("prctl(PR_SET_PDEATHSIG)")?;
    events::open();
    let work: Work = serde_json::from_str(told).doing("reading the work")?;
    if side == "first" {
        control::send(stdin().as_fd(), &work.mechanism.run(&work, Side::First), &[])
    } else {
        // After a success, the second process has already sent its share, before the last probe.
        match work.mechanism.run(&work, Side::Second) {
            Ok(_) => Ok(()),
            Err(trouble) => control::send(stdin().as_fd(), &Err::<Share, _>(trouble), &[]),
        }
    }
}

fn from_share(share: Share) -> Report {
    let mut report = Report { count: share.count, times: share.times, ..Report::default() };
    report.spent[1] = share.spent;
    report
}

/// The size in bytes of the memory in which the probe runs.
pub(crate) const PROBE_AREA: usize = 4096;

/// Runs one side of `work`, with everything around the loop: placement, starting and connecting the processes, and the
/// probe before and after.
pub(crate) fn run_side<E: End>(work: &Work, side: Side) -> Result<Report> {
    work.placement.take(side == Side::First)?;
    // The probe ends only if both sides certainly run at the same time, and only spinning figures need it.
    let probed = work.placement.is_two() && work.wait == Wait::Spin && !work.silent && work.shape.crowd().is_none();
    match side {
        Side::First => first::<E>(work, probed),
        Side::Second => second::<E>(work, probed),
    }
}

/// The second process, or one of several others, as seen by the first process.
#[derive(Debug)]
struct Other {
    socket: OwnedFd,
    started: Started,
}

impl Other {
    /// Starts another process with the number `index`, and sends its descriptors; the last one is the memory of the
    /// probe.
    fn start(work: &Work, index: usize, mut descriptors: Vec<OwnedFd>, probe: &OwnedFd) -> Result<Self> {
        let (socket, theirs) = control::pair()?;
        let started = Started::new("second", work, theirs)?;
        descriptors.push(probe.try_clone().doing("dup")?);
        control::send(socket.as_fd(), &index, &descriptors)?;
        drop(descriptors);
        match control::recv::<()>(socket.as_fd(), Duration::from_secs(5))? {
            Heard::Packet((), _) => Ok(Self { socket, started }),
            Heard::Gone | Heard::Nothing => Err(Trouble::new("the second process did not start")),
        }
    }
}

fn first<E: End>(work: &Work, probed: bool) -> Result<Report> {
    let probe_memory = Shared::create(PROBE_AREA)?;
    let (mut others, mut ends, connect) = connect::<E>(work, &probe_memory)?;
    // No process begins before all have started.
    for other in &others {
        control::send(other.socket.as_fd(), &(), &[])?;
    }

    let mut probes = Vec::new();
    let mut probe = || -> Result<()> {
        if probed {
            probes.push(mechanism::probe(&probe_memory, Side::First)?);
        }
        Ok(())
    };
    probe()?;
    let result = match (work.shape, &others[..]) {
        (Shape::Connect, [other]) => loops::connect::first::<E>(work, other.socket.as_fd()),
        (Shape::Objects { task }, _) => {
            let channels = std::mem::take(&mut ends).into_iter().map(E::into_channel).collect::<Result<_>>()?;
            loops::objects::first(channels, work, task)
        }
        (shape, [other]) if shape.crowd().is_none() => match ends.first_mut() {
            Some(end) => loops::first(end, work, other.started.child.id()),
            None => Err(Trouble::new("the mechanism has no end")),
        },
        _ => loops::first_of_many(std::mem::take(&mut ends), work),
    };
    if let (true, true, [other]) = (result.is_err(), work.silent, &mut others[..])
        && other.started.was_silenced()
    {
        return Ok(Report { silence_broken: true, ..Report::default() });
    }
    // If this side failed because of another process, the error of the other process is a better explanation.
    let patience = if result.is_ok() { limit(work) } else { Duration::from_millis(300) };
    let mut shares = Vec::new();
    for other in &others {
        match hear_share(other.socket.as_fd(), patience) {
            Ok(share) => shares.push(share),
            Err(trouble) => {
                return Err(match result {
                    Ok(_) => trouble,
                    Err(first) => Trouble::of_both(first, trouble),
                });
            }
        }
    }
    let mut report = result?;
    probe()?;
    add(&mut report, shares);
    report.connect = connect;
    report.probes = probes;
    Ok(report)
}

/// Starts the other processes, and makes an end to each process, or one end shared by all. Returns the processes, the
/// ends, and the nanoseconds for joining the ends.
fn connect<E: End>(work: &Work, probe: &OwnedFd) -> Result<(Vec<Other>, Vec<E>, u64)> {
    let crowd = work.shape.crowd().unwrap_or(Crowd { peers: 1, shared: false });
    let (mut others, mut ends, mut connect) = (Vec::new(), Vec::new(), 0);
    let join = |ends: &mut Vec<E>, first| -> Result<u64> {
        let begin = clock::now();
        ends.push(E::join(work, Side::First, first)?);
        Ok(clock::now() - begin)
    };
    if crowd.shared {
        let opened = E::open(work)?;
        for index in 0..crowd.peers {
            let again = opened.second.iter().map(|descriptor| descriptor.try_clone().doing("dup"));
            others.push(Other::start(work, index, again.collect::<Result<_>>()?, probe)?);
        }
        connect += join(&mut ends, opened.first)?;
    } else {
        for index in 0..crowd.peers {
            let opened = E::open(work)?;
            others.push(Other::start(work, index, opened.second, probe)?);
            connect += join(&mut ends, opened.first)?;
        }
    }
    Ok((others, ends, connect))
}

/// Adds the results of the other processes to the first process's report. All of them together are the second side.
fn add(report: &mut Report, shares: Vec<Share>) {
    for (index, share) in shares.into_iter().enumerate() {
        if index == 0 {
            report.spent[1] = share.spent;
        } else {
            report.spent[1] += share.spent;
        }
        if report.times == Default::default() {
            report.times = share.times;
            report.curve = share.curve;
        }
        report.found.extend(share.found);
    }
}

fn hear_share(socket: BorrowedFd<'_>, patience: Duration) -> Result<Share> {
    match control::recv::<Result<Share>>(socket, patience)? {
        Heard::Packet(Ok(share), _) => Ok(share),
        Heard::Packet(Err(trouble), _) => Err(trouble.of("second process")),
        Heard::Gone => Err(Trouble::new("the second process died")),
        Heard::Nothing => Err(Trouble::new("the second process does not answer")),
    }
}

fn second<E: End>(work: &Work, probed: bool) -> Result<Report> {
    let control = stdin();
    let Heard::Packet(index, mut descriptors) = control::recv::<usize>(control.as_fd(), Duration::from_secs(5))? else {
        return Err(Trouble::new("the first process sent nothing"));
    };
    let probe_memory = descriptors.pop().ok_or_else(|| Trouble::new("the first process sent no descriptors"))?;
    control::send(control.as_fd(), &(), &[])?;
    let mut end = E::join(work, Side::Second, descriptors)?;
    let Heard::Packet((), _) = control::recv::<()>(control.as_fd(), limit(work).max(BEGIN))? else {
        return Err(Trouble::new("the first process did not begin"));
    };
    let probe = || -> Result<()> {
        if probed {
            mechanism::probe(&probe_memory, Side::Second)?;
        }
        Ok(())
    };
    probe()?;
    let result = match work.shape {
        Shape::Connect => loops::connect::second::<E>(work, control.as_fd()),
        Shape::Objects { task } => loops::objects::second(end.into_channel()?, work, task, index),
        _ => loops::second(&mut end, work, index),
    };
    if let Ok(share) = &result {
        // The share is sent before the last probe; then the first process knows that the second will take part.
        control::send(control.as_fd(), &Ok::<_, Trouble>(share), &[])?;
        probe()?;
        if work.shape.crowd().is_some() {
            // A process that is done first must stay until all are done: its end must not look closed to the first
            // process.
            control::recv::<()>(control.as_fd(), limit(work))?;
        }
    }
    result.map(from_share)
}
