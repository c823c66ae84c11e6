//! `strait bench scale`: whether one more channel, client or member of a wait set costs the same however many there
//! are.

mod counting;
mod scene;

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bars::{Bar, Sense, Suite};
use crate::machine;
use crate::pair::traced;
use crate::process::control;
use crate::progress::Progress;
use crate::trouble::{Result, Trouble, While};

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

/// A function that returns one count of a [`Cost`], or `None` if it was not counted.
type Figure = fn(&Cost) -> Option<f64>;

/// The cost of each unit in runs with a given number of units.
#[derive(Debug, Default)]
struct Cost {
    instructions: Option<f64>,
    calls: Option<f64>,
    time: Vec<f64>,
    processor: Vec<f64>,
    memory: Vec<f64>,
}

/// Runs the suite `scale`. Returns its rows, and whether a run broke. With `only`, just the groups whose description
/// contains it are measured; with `most`, just the runs with at most so many units.
pub fn run(repetitions: usize, only: Option<&str>, most: Most) -> (Suite, bool) {
    let begin = Instant::now();
    let watch = machine::Watch::start();
    let groups = GROUPS.iter().filter(|group| only.is_none_or(|only| group.words.contains(only)));
    let groups: Vec<_> = groups.map(|group| (group, sizes(group, most))).collect();
    let mut progress = Progress::new(groups.iter().map(|(_, sizes)| sizes.len()).sum());
    let has_valgrind = counting::has_valgrind();

    let mut bars = Vec::new();
    let mut broken = false;
    for (group, sizes) in groups {
        let mut costs = Vec::new();
        for &units in &sizes {
            progress.step(group.words);
            costs.push((units, cost(group.task, units, repetitions, has_valgrind)));
        }
        broken |= costs.iter().any(|(_, cost)| cost.is_err());
        bars.extend(rows(group.words, &costs));
    }
    progress.finish();
    let seconds = begin.elapsed().as_secs_f64();
    (Suite { suite: "scale", machine: machine::describe(), seconds, foreign: watch.foreign(), bars }, broken)
}

/// Returns the numbers of units of `group` that are not above `most`.
fn sizes(group: &Group, most: Most) -> Vec<usize> {
    group.sizes.iter().copied().filter(|&units| units <= most.0).collect()
}

/// Returns the rows of a group: first the counts, each compared with the least count in the group, and then times and
/// memory.
fn rows(words: &str, costs: &[(usize, Result<Cost>)]) -> Vec<Bar> {
    let mut bars = Vec::new();
    let counts: [(&str, Figure); 2] = [("instructions", |cost| cost.instructions), ("system calls", |cost| cost.calls)];
    for (name, figure) in counts {
        let least = costs.iter().filter_map(|(_, cost)| figure(cost.as_ref().ok()?)).reduce(f64::min);
        for (units, cost) in costs {
            let bar = Bar::new(
                &format!("{units} {words}: {name} a unit"),
                name,
                "the least of these rows",
                Sense::AtMost,
                BAR,
            );
            bars.push(judge(bar, cost, |cost| figure(cost).zip(least)));
        }
    }
    for (units, cost) in costs {
        let row = |name: &str, unit: &str| Bar::told(&format!("{units} {words}: {name} a unit"), unit, "–");
        let told = |bar: Bar, values: fn(&Cost) -> &Vec<f64>| match cost {
            Ok(cost) => bar.found(values(cost)),
            Err(trouble) => bar.broken(&trouble.to_string()),
        };
        bars.push(told(row("time", "ns"), |cost| &cost.time));
        bars.push(told(row("processor time", "ns"), |cost| &cost.processor));
        bars.push(told(row("memory", "bytes"), |cost| &cost.memory));
    }
    bars
}

fn judge(bar: Bar, cost: &Result<Cost>, figure: impl Fn(&Cost) -> Option<(f64, f64)>) -> Bar {
    match cost {
        Err(trouble) => bar.broken(&trouble.to_string()),
        Ok(cost) => match figure(cost) {
            Some((value, least)) => Bar {
                value: Some(value),
                reference_value: Some(least),
                ..bar.compared(&[(value.max(1.0), least.max(1.0))])
            },
            None => bar.noted("cannot be counted here"),
        },
    }
}

/// Measures the cost of each unit in runs with `units` units.
fn cost(task: Task, units: usize, repetitions: usize, has_valgrind: bool) -> Result<Cost> {
    let order = Order { task, units };
    let mut cost = Cost::default();
    for _ in 0..repetitions {
        let taken = plain(order)?;
        cost.time.push((taken.time / units as f64).round());
        cost.processor.push((taken.processor / units as f64).round());
        cost.memory.push((taken.memory / units as f64).round());
    }
    cost.calls = each(order, |order| Ok(traced::count(command(order)?, PATIENCE)?.iter().sum()))?;
    if has_valgrind && task != Task::Clients {
        cost.instructions = each(order, |order| counting::instructions(&command(order)?))?.map(f64::round);
    }
    Ok(cost)
}

/// Returns what `count` counts for each unit of `order`: the difference between a run with all units and a run with
/// none, divided by their number.
fn each(order: Order, count: impl Fn(Order) -> Result<u64>) -> Result<Option<f64>> {
    let without = count(Order { units: 0, ..order })?;
    let with = count(order)?;
    Ok(Some(with.saturating_sub(without) as f64 / order.units as f64))
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
    use super::{Cost, rows};

    #[test]
    fn a_unit_that_costs_more_among_many_is_seen() {
        let cost = |instructions| {
            Ok(Cost {
                instructions: Some(instructions),
                calls: Some(0.0),
                time: vec![7.0],
                processor: vec![6.0],
                memory: vec![8.0],
            })
        };
        let bars = rows("things", &[(10, cost(100.0)), (100, cost(110.0)), (1000, cost(130.0))]);
        let holds: Vec<_> = bars[..3].iter().map(|bar| bar.holds).collect();
        assert_eq!(holds, [Some(true), Some(true), Some(false)]);
        assert!(bars[3..6].iter().all(|bar| bar.holds == Some(true)));
        assert_eq!([6, 7, 8].map(|row| bars[row].value), [Some(7.0), Some(6.0), Some(8.0)]);
    }
}
