//! `strait bench scale`: whether one more channel, client or member of a wait set costs the same however many there
//! are.

mod counting;
mod scene;

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use super::bar::{Bar, Sense, Suite};
use super::contest::{self, Contest, Job, Kind, Row};
use crate::pair::{Outcome, traced};
use crate::process::control;
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

use self::scene::{Order, Taken, Task};

/// The greatest allowed ratio of a unit's cost to the least cost of a unit in its group.
const BAR: f64 = 1.2;

/// The time limit for a run under `ptrace`.
const PATIENCE: Duration = Duration::from_secs(300);

/// The explanation below the table of the suite `scale`.
pub const HOW: &str = "\
Each run is one fresh process, which does 64 units before the measured ones. The ends of a link are connected by a
socket pair. The floor is the least cost of a unit in any row of the group.
Instructions are those in user space, counted by Valgrind; system calls are counted by ptrace. Both are the difference
between a run with the units and a run without. Less than one system call for each unit counts as one, since a call
that many units share adds up in steps.
Time, processor time and memory have no target: the counts do not include the kernel's part of them, and other
programs use the machine. The instructions of a client are not counted, because Valgrind has no pidfds, without which
a listener takes other paths, and because both threads of the client wait for each other.";

/// The largest number of units (channels, clients or members of a wait set) in a run.
#[derive(Clone, Copy, Debug)]
pub struct Most(usize);

impl Most {
    /// No limit: all numbers of units, for measuring.
    pub const FULL: Self = Self(usize::MAX);
    /// Up to 100 units, for tests: enough to see that the suite works.
    pub const QUICK: Self = Self(100);
}

/// A group of rows: a task, its description, and the numbers of units to compare.
struct Group {
    task: Task,
    words: &'static str,
    sizes: &'static [usize],
}

const GROUPS: [Group; 3] = [
    Group {
        task: Task::Channels,
        words: "channels over one link: made, sent, used",
        sizes: &[10, 100, 1000, 10_000, 100_000],
    },
    Group { task: Task::Clients, words: "clients of one listener: connected, accepted, used", sizes: &[10, 100, 1000] },
    Group {
        task: Task::Members,
        words: "members of one wait set: added, woken, received",
        sizes: &[10, 100, 1000, 10_000, 50_000],
    },
];

/// Runs the suite `scale`. Returns its rows, and whether a run broke. With `only`, just the rows whose work contains it
/// are measured; with `most`, just the runs with at most so many units.
pub fn run(repetitions: usize, only: Option<&str>, most: Most) -> (Suite, bool) {
    let contests = GROUPS.iter().map(|group| contest(group, most, Units::new)).collect();
    contest::run("scale", contests, repetitions, only, f64::INFINITY)
}

/// Returns the contest of a group: first the rows of counts, each compared with the least count in the group, and then
/// times and memory.
fn contest<J: Job>(group: &Group, most: Most, job: impl Fn(Order) -> J) -> Contest<J> {
    let sizes: Vec<_> = group.sizes.iter().copied().filter(|&units| units <= most.0).collect();
    let mut rows = Vec::new();
    for name in ["instructions", "system calls"] {
        for (index, units) in sizes.iter().enumerate() {
            let work = format!("{units} {}: {name} a unit", group.words);
            let bar = Bar::new(&work, name, "the least of these rows", Sense::AtMost, BAR);
            rows.push(Row { bar, kind: Kind::Least(index, name) });
        }
    }
    for (index, units) in sizes.iter().enumerate() {
        for (name, unit) in [("time", "ns"), ("processor time", "ns"), ("memory", "bytes")] {
            let bar = Bar::told(&format!("{units} {}: {name} a unit", group.words), unit, "–");
            rows.push(Row { bar, kind: Kind::Found(index, name) });
        }
    }
    let runs = sizes.iter().map(|&units| job(Order { task: group.task, units })).collect();
    Contest { runs, rows, idle: false }
}

/// The results for each unit of a run, by their names.
type Found = BTreeMap<String, f64>;

/// A run with a number of units.
struct Units {
    order: Order,
    /// The counts, which are made in the first repetition only: they do not vary, and take long.
    counts: OnceLock<Found>,
}

impl Units {
    fn new(order: Order) -> Self {
        Self { order, counts: OnceLock::new() }
    }

    fn measure(&self) -> Result<Report> {
        let taken = plain(self.order)?;
        let parts = [("time", taken.time), ("processor time", taken.processor), ("memory", taken.memory)];
        let each = |total: f64| (total / self.order.units as f64).round();
        let mut found: Found = parts.into_iter().map(|(name, total)| (name.to_owned(), each(total))).collect();
        if self.counts.get().is_none() {
            // Only one thread runs the job.
            let _ = self.counts.set(counts(self.order)?);
        }
        found.extend(self.counts.get().cloned().unwrap_or_default());
        Ok(Report { found, ..Report::default() })
    }
}

impl Job for Units {
    fn run(&self) -> Result<Outcome> {
        self.measure().map(|report| Outcome::Measured(Box::new(report)))
    }
}

/// Counts the system calls and, if this machine can, the instructions of each unit of `order`.
fn counts(order: Order) -> Result<Found> {
    let calls = each(order, |order| Ok(traced::count(command(order)?, PATIENCE)?.iter().sum()))?;
    let mut found = Found::from([("system calls".to_owned(), calls)]);
    if order.task != Task::Clients && counting::has_valgrind() {
        let instructions = each(order, |order| counting::instructions(&command(order)?))?;
        found.insert("instructions".to_owned(), instructions.round());
    }
    Ok(found)
}

/// Returns what `count` counts for each unit of `order`: the difference between a run with all units and a run with
/// none, divided by their number.
fn each(order: Order, count: impl Fn(Order) -> Result<u64>) -> Result<f64> {
    let without = count(Order { units: 0, ..order })?;
    let with = count(order)?;
    Ok(with.saturating_sub(without) as f64 / order.units as f64)
}

/// Runs the order without tracing, so that its times are undisturbed. Returns the costs that the process reports.
fn plain(order: Order) -> Result<Taken> {
    let output = command(order)?.stdout(Stdio::piped()).output().doing("starting a process")?;
    if !output.status.success() {
        return Err(Trouble::new(format!("the measured process failed: {}", output.status)));
    }
    serde_json::from_slice(&output.stdout).doing("decoding the result of the process")
}

/// Returns the command that executes this program with the hidden subcommand and the order.
fn command(order: Order) -> Result<Command> {
    let program = std::env::current_exe().doing("finding this program's file")?;
    let told = String::from_utf8(control::encode(&order)?).doing("describing the order")?;
    let mut command = Command::new(program);
    command.args(["scale", "one", &told]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
    Ok(command)
}

/// The main function of a process that was started with the hidden subcommand. `told` is the order as JSON.
pub fn main(told: &str) -> Result<()> {
    let order: Order = serde_json::from_str(told).doing("reading the order")?;
    let taken = scene::run(order)?;
    println!("{}", serde_json::to_string(&taken).doing("encoding the result")?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::scene::Order;
    use super::{BTreeMap, GROUPS, Job, Most, Outcome, Report, Result, contest};

    /// A job that pretends to have found costs that grow with the number of units.
    struct Pretended(Order);

    impl Job for Pretended {
        fn run(&self) -> Result<Outcome> {
            let instructions = match self.0.units {
                10 => 100.0,
                100 => 110.0,
                _ => 130.0,
            };
            let found = [("instructions", instructions), ("system calls", 0.0), ("time", 7.0)];
            let found: BTreeMap<_, _> = found.map(|(name, value)| (name.to_owned(), value)).into();
            Ok(Outcome::Measured(Box::new(Report { found, ..Report::default() })))
        }
    }

    #[test]
    fn a_unit_that_costs_more_among_many_is_seen() {
        let contests = vec![contest(&GROUPS[1], Most::FULL, Pretended)];
        let (suite, broken) = crate::bars::contest::run("scale", contests, 1, None, f64::INFINITY);
        let holds: Vec<_> = suite.bars[..3].iter().map(|bar| bar.holds).collect();
        assert_eq!((holds, broken), (vec![Some(true), Some(true), Some(false)], false));
        assert!(suite.bars[3..6].iter().all(|bar| bar.holds == Some(true)));
        assert_eq!((suite.bars[6].value, suite.bars[7].value), (Some(7.0), None));
    }
}
