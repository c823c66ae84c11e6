//! The processes of a run: up to three, each with a link to the first.
//!
//! The suite starts a fresh first process for each run, and the first process starts the others. The suite and the
//! first process share a control socket. The sockets from the first process to the others become links of Strait
//! after all processes are ready.

use std::io::stdin;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::process::{Signal, set_parent_process_death_signal};
use strait::{Channel, Options};

use super::order::{Order, Task};
use super::{holding, many, sending, stream, waking, within};
use crate::bars::contest::{Job, Run};
use crate::bars::toolbox::{bulk, calls, dispatched, objects, tasks};
use crate::mechanism::{self, Side};
use crate::pair::PROBE_AREA;
use crate::process::control::{self, Heard};
use crate::process::start::Started;
use crate::sys::shared::Shared;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Wait};

/// The time limit for a run; if it has passed, the processes are killed.
const PATIENCE: Duration = Duration::from_secs(40);

/// The names of the processes on the command line, in order.
const NAMES: [&str; 3] = ["first", "second", "third"];

impl Job for Order {
    fn run(&self) -> std::result::Result<Run, String> {
        let report = run(self).map_err(|trouble| trouble.to_string())?;
        Ok(Run::Report(Box::new(report)))
    }
}

fn run(order: &Order) -> Result<Report> {
    let (socket, theirs) = control::pair()?;
    let mut first = Started::new("ends", NAMES[0], order, theirs)?;
    match control::recv::<Result<Report>>(socket.as_fd(), PATIENCE)? {
        Heard::Packet(Ok(report), _) => Ok(report),
        Heard::Packet(Err(trouble), _) => Err(trouble),
        Heard::Gone => {
            let status = first.child.wait().doing("wait")?;
            Err(Trouble::new(format!("the measuring process died: {status}")))
        }
        Heard::Nothing => Err(Trouble::new("no result arrived in time: a side hangs or died")),
    }
}

/// The main function of a process that was started with the hidden subcommand. `name` says which process it is;
/// `told` is the order as JSON.
pub fn main(name: &str, told: &str) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).doing("prctl(PR_SET_PDEATHSIG)")?;
    let order: Order = serde_json::from_str(told).doing("reading the order")?;
    order.placement.take(name == NAMES[0])?;
    if name == NAMES[0] {
        let result = first(&order);
        control::send(stdin().as_fd(), &result, &[])
    } else {
        other(&order, name == NAMES[2])
    }
}

/// Returns the options of a process's channel ends. An end that is received waits as the channel that brought it
/// does.
pub(super) fn options(order: &Order) -> Options {
    Options::new().wait(match order.wait {
        Wait::Spin => strait::Wait::Spin,
        Wait::Adaptive => strait::Wait::Adaptive,
        Wait::Block => strait::Wait::Block,
    })
}

/// Whether the probe runs before and after the task: only if both processes certainly run at the same time, and there
/// is no third one.
fn is_probed(order: &Order) -> bool {
    order.placement.is_two() && order.wait == Wait::Spin && order.task.processes() == 2
}

/// Runs the first process: starts the others, does its part of the task, and returns the report.
fn first(order: &Order) -> Result<Report> {
    let probe_memory = Shared::create(PROBE_AREA)?;
    let mut sockets = Vec::new();
    let mut started = Vec::new();
    for name in &NAMES[1..order.task.processes()] {
        let (socket, theirs) = control::pair()?;
        started.push(Started::new("ends", name, order, theirs)?);
        control::send(socket.as_fd(), &(), &[probe_memory.try_clone().doing("dup")?])?;
        sockets.push(socket);
    }
    for socket in &sockets {
        match control::recv::<()>(socket.as_fd(), Duration::from_secs(5))? {
            Heard::Packet((), _) => {}
            Heard::Gone | Heard::Nothing => return Err(Trouble::new("another process did not start")),
        }
    }

    let mut probes = Vec::new();
    let mut probe = || -> Result<()> {
        if is_probed(order) {
            probes.push(mechanism::probe(&probe_memory, Side::First)?);
        }
        Ok(())
    };
    probe()?;
    let mut report = play(order, 0, sockets)?;
    probe()?;
    report.probes = probes;
    Ok(report)
}

/// Runs the second or the third process. If it fails, it closes its socket, and the first process finds the channel
/// closed.
fn other(order: &Order, third: bool) -> Result<()> {
    let control = stdin();
    let Heard::Packet((), mut descriptors) = control::recv::<()>(control.as_fd(), Duration::from_secs(5))? else {
        return Err(Trouble::new("the first process sent nothing"));
    };
    let memory = descriptors.pop().ok_or_else(|| Trouble::new("the first process sent no memory for the probe"))?;
    let socket = control.as_fd().try_clone_to_owned().doing("dup")?;
    control::send(control.as_fd(), &(), &[])?;
    let probe = || -> Result<()> {
        if is_probed(order) {
            mechanism::probe(&memory, Side::Second)?;
        }
        Ok(())
    };
    probe()?;
    play(order, if third { 2 } else { 1 }, vec![socket])?;
    probe()
}

/// Does the part of process `number` (from 0) in the task. The first process has a socket to each of the others; each
/// of the others has one to the first.
fn play(order: &Order, number: usize, mut sockets: Vec<OwnedFd>) -> Result<Report> {
    if let Task::Descriptor { bare, count } = order.task {
        let socket = sockets.remove(0);
        return sending::descriptor(order, number == 0, bare, count, socket);
    }
    let options = options(order);
    let links: Result<Vec<_>> =
        sockets.into_iter().map(|socket| Channel::over(socket, &options).doing("making the channel")).collect();
    let mut links = links?;
    match (order.task, number) {
        (Task::Descriptor { .. }, _) => unreachable!("done before"),
        (Task::Give { count }, 0) => sending::give(&links[0], &options, count),
        (Task::Give { count }, _) => sending::take(&links[0], count),
        (Task::Acquaint { count }, 0) => sending::acquaint(&links[0], &links[1], &options, count),
        (Task::Acquaint { count }, 1) => sending::meet(&links[0], count),
        (Task::Acquaint { count }, _) => sending::greet(&links[0], count),
        (Task::Stream { moves, stretches, stretch }, 0) => {
            stream::pour(&links[0], &links[1], &options, moves, stretches, stretch)
        }
        (Task::Stream { stretch, .. }, _) => stream::drain(&links[0], number == 1, stretch),
        (Task::Beside { idle }, 0) => holding::ping(&links[0], &options, order, idle),
        (Task::Beside { idle }, _) => holding::echo(&links[0], order, idle),
        (Task::Hold { channels }, 0) => holding::hold(&links[0], &options, channels),
        (Task::Hold { .. }, _) => holding::hold_too(&links[0]),
        (Task::Wake { members }, 0) => waking::wake(&links[0], &options, members),
        (Task::Wake { members }, _) => waking::sleep(&links[0], members),
        (Task::Within { channels }, _) => within::run(&options, channels),
        (Task::Open { channels, batch }, 0) => many::open(&links[0], &options, channels, batch),
        (Task::Open { channels, .. }, _) => many::accept(&links[0], channels),
        (Task::Pass { crossings, ends, window }, 0) => many::pass(&links[0], &options, crossings, ends, window),
        (Task::Pass { .. }, _) => many::pass_back(&links[0]),
        (Task::Call { threads, millis }, 0) => calls::call(links.remove(0), threads, millis),
        (Task::Call { .. }, _) => calls::serve(links.remove(0)),
        (Task::Bulk { bare, pieces }, 0) => bulk::fill(&links[0], bare, pieces),
        (Task::Bulk { bare, pieces }, _) => bulk::drain(&links[0], bare, pieces),
        (Task::Tasks { bare, trips }, 0) => tasks::ask(links.remove(0), bare, trips),
        (Task::Tasks { bare, .. }, _) => tasks::answer(links.remove(0), bare),
        (Task::Dispatched { by, size, trips }, 0) => dispatched::ask(links.remove(0), by, size, trips),
        (Task::Dispatched { by, .. }, _) => dispatched::answer(links.remove(0), by),
        (Task::Relayed { how, size, count }, 0) => objects::source(&links[0], &links[1], &options, how, size, count),
        (Task::Relayed { how, .. }, 1) => objects::relay(&links[0], how),
        (Task::Relayed { .. }, _) => objects::sink(&links[0]),
        (Task::Values { as_bytes, size, count }, _) => objects::values(&options, as_bytes, size, count),
    }
}
