//! `strait bench scale`: whether one more channel, client or member of a wait set, or one more channel of a full mesh
//! of processes, costs the same however many there are.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use super::bar::{Bar, Sense, Suite};
use super::contest::{self, Contest, Job, Kind, Row};
use crate::pair::{Outcome, counted, traced};
use crate::placement::Placement;
use crate::shape::{Task, Unit};
use crate::trouble::Result;
use crate::work::{Wait, Work};

/// The greatest allowed ratio of a unit's cost to the least cost of a unit in its group.
const BAR: f64 = 1.2;

/// The shortest time limit for a run under `ptrace`.
const PATIENCE: Duration = Duration::from_secs(300);

/// How many times its usual time limit a run gets at least under `ptrace`.
const TRACED_LIMITS: u32 = 8;

/// The explanation below the table of the suite `scale`.
pub const HOW: &str = "\
Each run, except a mesh, is one fresh process, which does 64 units before the measured ones. The ends of a link are
connected by a socket pair. The floor is the least cost of a unit in any row of the group.
Instructions are those in user space, counted by Valgrind; system calls are counted by ptrace. Both are the difference
between a run with the units and a run without. Less than one system call for each unit counts as one, since a call
that many units share adds up in steps.
Time, processor time and memory have no target: the counts do not include the kernel's part of them, and other
programs use the machine. The instructions of a client are not counted, because Valgrind has no pidfds, without which
a listener takes other paths, and because both threads of the client wait for each other.
A mesh has a process for each of its members and one more, the controller. The controller makes a channel for each pair
of members, and sends one end to each of the two. The time of a mesh ends when each member has received a message from
every other member. The instructions of a mesh are not counted, because Valgrind observes one process. Its system calls and
processor time are those of all processes, its memory and descriptors those of the members. How often a process sleeps
depends on the scheduler, so the system calls vary by some 15 %.";

/// The largest number of units (channels, clients or members of a wait set) in a run. The units of a mesh are its
/// channels.
#[derive(Clone, Copy, Debug)]
pub struct Most(usize);

impl Most {
    /// No limit: all numbers of units, for measuring.
    pub const FULL: Self = Self(usize::MAX);
    /// Up to 100 units, for tests: enough to see that the suite works. Of the meshes, only the smallest has so few.
    pub const QUICK: Self = Self(100);
}

/// A group of rows: the runs, their description, and the sizes to compare.
struct Group {
    of: Of,
    words: &'static str,
    sizes: &'static [usize],
}

/// The runs of a group.
#[derive(Clone, Copy)]
enum Of {
    /// Units of this kind within one process. The size of a run is the number of units.
    Units(Unit),
    /// Full meshes of processes. The size of a run is the number of processes.
    Mesh,
}

/// A figure of each run in a group.
struct Figure {
    name: &'static str,
    unit: &'static str,
    /// The name of the result of a run from which the figure comes.
    total: &'static str,
    /// Returns by how much the result is divided, from the size of the run.
    parts: fn(usize) -> usize,
}

/// The figures of units that are compared with the least in the group.
const COUNTS_OF_UNITS: &[Figure] = &[
    Figure { name: "instructions a unit", unit: "instructions", total: "instructions", parts: |units| units },
    Figure { name: "system calls a unit", unit: "system calls", total: "system calls", parts: |units| units },
];

/// The figures of units that are compared with nothing.
const COSTS_OF_UNITS: &[Figure] = &[
    Figure { name: "time a unit", unit: "ns", total: "time", parts: |units| units },
    Figure { name: "processor time a unit", unit: "ns", total: "processor time", parts: |units| units },
    Figure { name: "memory a unit", unit: "bytes", total: "memory", parts: |units| units },
];

/// The figures of meshes that are compared with the least in the group.
const COUNTS_OF_MESHES: &[Figure] = &[
    Figure { name: "system calls a channel", unit: "system calls", total: "system calls", parts: channels },
    Figure { name: "descriptors an end", unit: "descriptors", total: "descriptors", parts: ends },
];

/// The figures of meshes that are compared with nothing.
const COSTS_OF_MESHES: &[Figure] = &[
    Figure { name: "time a channel", unit: "ns", total: "time", parts: channels },
    Figure { name: "processor time a channel", unit: "ns", total: "processor time", parts: channels },
    Figure { name: "memory an end", unit: "bytes", total: "memory", parts: ends },
    Figure { name: "memory a process", unit: "bytes", total: "memory", parts: |processes| processes },
    Figure { name: "descriptors a process", unit: "descriptors", total: "descriptors", parts: |processes| processes },
];

/// Returns the number of channels in a full mesh of processes.
fn channels(processes: usize) -> usize {
    ends(processes) / 2
}

/// Returns the number of channel ends in a full mesh of processes.
fn ends(processes: usize) -> usize {
    processes * (processes - 1)
}

impl Of {
    /// Returns the number of units in a run, or of channels.
    fn units(self, size: usize) -> usize {
        match self {
            Self::Units(_) => size,
            Self::Mesh => channels(size),
        }
    }

    /// Returns the figures that are compared with the least in the group, and the others.
    fn figures(self) -> [&'static [Figure]; 2] {
        match self {
            Self::Units(_) => [COUNTS_OF_UNITS, COSTS_OF_UNITS],
            Self::Mesh => [COUNTS_OF_MESHES, COSTS_OF_MESHES],
        }
    }

    /// Returns the work of a run: with its units, or only everything else in the run.
    fn work(self, size: usize, with_units: bool) -> Work {
        let task = match self {
            Self::Units(unit) => Task::Units { unit, units: if with_units { size } else { 0 } },
            Self::Mesh => Task::Mesh { members: size, joined: with_units },
        };
        Work::objects(task, Wait::Block, Placement::Free)
    }

    /// Whether Valgrind can count the instructions: it observes one process, and cannot run a listener.
    fn has_instructions(self) -> bool {
        !matches!(self, Self::Units(Unit::Clients) | Self::Mesh)
    }
}

const GROUPS: [Group; 4] = [
    Group {
        of: Of::Units(Unit::Channels),
        words: "channels over one link: made, sent, used",
        sizes: &[10, 100, 1000, 10_000, 100_000],
    },
    Group {
        of: Of::Units(Unit::Clients),
        words: "clients of one listener: connected, accepted, used",
        sizes: &[10, 100, 1000],
    },
    Group {
        of: Of::Units(Unit::Members),
        words: "members of one wait set: added, woken, received",
        sizes: &[10, 100, 1000, 10_000, 50_000],
    },
    Group { of: Of::Mesh, words: "processes in a full mesh: introduced, used", sizes: &[10, 50, 100, 250] },
];

/// Runs the suite `scale`. Returns its rows, and whether a run broke. With `only`, measures just the rows with this
/// text in their work; with `most`, just the runs with at most so many units.
pub fn run(repetitions: usize, only: Option<&str>, most: Most) -> (Suite, bool) {
    let contests = GROUPS.iter().map(|group| contest(group, most, Units::new)).collect();
    contest::run("scale", contests, repetitions, only, f64::INFINITY)
}

/// Returns the contest of a group: first the rows of counts, each compared with the least count in the group, and then
/// times, memory and the like.
fn contest<J: Job>(group: &Group, most: Most, job: impl Fn(Of, usize) -> J) -> Contest<J> {
    let sizes: Vec<_> = group.sizes.iter().copied().filter(|&size| group.of.units(size) <= most.0).collect();
    let [counts, costs] = group.of.figures();
    let work = |size: &usize, figure: &Figure| format!("{size} {}: {}", group.words, figure.name);
    let mut rows = Vec::new();
    for figure in counts {
        for (index, size) in sizes.iter().enumerate() {
            let bar = Bar::new(&work(size, figure), figure.unit, "the least of these rows", Sense::AtMost, BAR);
            rows.push(Row { bar, kind: Kind::Least(index, figure.name) });
        }
    }
    for (index, size) in sizes.iter().enumerate() {
        for figure in costs {
            let bar = Bar::told(&work(size, figure), figure.unit, "–");
            rows.push(Row { bar, kind: Kind::Found(index, figure.name) });
        }
    }
    let runs = sizes.iter().map(|&size| job(group.of, size)).collect();
    Contest { runs, rows, idle: false }
}

/// The results of a run, by their names.
type Found = BTreeMap<String, f64>;

/// A run with a number of units.
struct Units {
    of: Of,
    size: usize,
    /// The counts, which are made in the first repetition only: they hardly vary, and take long.
    counts: OnceLock<Found>,
}

impl Units {
    fn new(of: Of, size: usize) -> Self {
        Self { of, size, counts: OnceLock::new() }
    }

    /// Counts the system calls and, if this machine can, the instructions of all units.
    fn counts(&self) -> Result<Found> {
        let calls = self.count(|work| traced::total(work, PATIENCE.max(TRACED_LIMITS * work.longest())))?;
        let mut found = Found::from([("system calls".to_owned(), calls)]);
        if self.of.has_instructions() && counted::has_valgrind() {
            found.insert("instructions".to_owned(), self.count(counted::instructions)?);
        }
        Ok(found)
    }

    /// Returns what `count` counts for all units: the difference between a run with the units and a run without.
    fn count(&self, count: impl Fn(&Work) -> Result<u64>) -> Result<f64> {
        let without = count(&self.of.work(self.size, false))?;
        let with = count(&self.of.work(self.size, true))?;
        Ok(with.saturating_sub(without) as f64)
    }

    /// Returns the figures of this run from its results.
    fn figures(&self, totals: &Found) -> Found {
        let figures = self.of.figures().into_iter().flatten();
        let found = figures.filter_map(|figure| {
            let each = totals.get(figure.total)? / (figure.parts)(self.size) as f64;
            let whole = matches!(figure.unit, "ns" | "bytes" | "instructions");
            Some((figure.name.to_owned(), if whole { each.round() } else { each }))
        });
        found.collect()
    }
}

impl Job for Units {
    fn run(&self) -> Result<Outcome> {
        let mut outcome = self.of.work(self.size, true).run()?;
        if let Outcome::Measured(report) = &mut outcome {
            if self.counts.get().is_none() {
                // Only one thread runs the job.
                let _ = self.counts.set(self.counts()?);
            }
            report.found.extend(self.counts.get().cloned().unwrap_or_default());
            report.found = self.figures(&report.found);
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, GROUPS, Job, Most, Of, Outcome, Result, Units, contest};
    use crate::work::Report;

    /// A job that pretends to have found growing costs for more units.
    struct Pretended(usize);

    impl Job for Pretended {
        fn run(&self) -> Result<Outcome> {
            let instructions = match self.0 {
                10 => 100.0,
                100 => 110.0,
                _ => 130.0,
            };
            let found = [("instructions a unit", instructions), ("system calls a unit", 0.0), ("time a unit", 7.0)];
            let found: BTreeMap<_, _> = found.map(|(name, value)| (name.to_owned(), value)).into();
            Ok(Outcome::Measured(Box::new(Report { found, ..Report::default() })))
        }
    }

    #[test]
    fn a_unit_that_costs_more_among_many_is_seen() {
        let contests = vec![contest(&GROUPS[1], Most::FULL, |_: Of, units| Pretended(units))];
        let (suite, broken) = crate::bars::contest::run("scale", contests, 1, None, f64::INFINITY);
        let holds: Vec<_> = suite.bars[..3].iter().map(|bar| bar.holds).collect();
        assert_eq!((holds, broken), (vec![Some(true), Some(true), Some(false)], false));
        assert!(suite.bars[3..6].iter().all(|bar| bar.holds == Some(true)));
        assert_eq!((suite.bars[6].value, suite.bars[7].value), (Some(7.0), None));
    }

    #[test]
    fn a_mesh_has_a_channel_for_each_two_processes() {
        let totals = [("time", 4500.0), ("system calls", 450.0), ("memory", 900.0), ("descriptors", 99.0)];
        let totals = totals.map(|(name, total)| (name.to_owned(), total)).into();
        let found = Units::new(Of::Mesh, 10).figures(&totals);
        for (name, each) in [
            ("time a channel", 100.0),
            ("system calls a channel", 10.0),
            ("memory an end", 10.0),
            ("memory a process", 90.0),
            ("descriptors an end", 1.1),
            ("descriptors a process", 9.9),
        ] {
            assert_eq!(found[name], each, "{name}");
        }
    }

    #[test]
    fn a_quick_suite_has_only_the_smallest_mesh() {
        let mesh = GROUPS.iter().find(|group| matches!(group.of, Of::Mesh)).unwrap();
        assert_eq!(contest(mesh, Most::QUICK, |_: Of, size| Pretended(size)).runs.len(), 1);
        assert_eq!(contest(mesh, Most::FULL, |_: Of, size| Pretended(size)).runs.len(), 4);
    }
}
