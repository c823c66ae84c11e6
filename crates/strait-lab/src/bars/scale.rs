//! `strait bench scale`: whether one more channel, client or member of a wait set costs the same however many there
//! are.

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

/// A group of rows: a kind of unit, its description, and the numbers of units to compare.
struct Group {
    unit: Unit,
    words: &'static str,
    sizes: &'static [usize],
}

const GROUPS: [Group; 3] = [
    Group {
        unit: Unit::Channels,
        words: "channels over one link: made, sent, used",
        sizes: &[10, 100, 1000, 10_000, 100_000],
    },
    Group { unit: Unit::Clients, words: "clients of one listener: connected, accepted, used", sizes: &[10, 100, 1000] },
    Group {
        unit: Unit::Members,
        words: "members of one wait set: added, woken, received",
        sizes: &[10, 100, 1000, 10_000, 50_000],
    },
];

/// Runs the suite `scale`. Returns its rows, and whether a run broke. With `only`, measures just the rows with this
/// text in their work; with `most`, just the runs with at most so many units.
pub fn run(repetitions: usize, only: Option<&str>, most: Most) -> (Suite, bool) {
    let contests = GROUPS.iter().map(|group| contest(group, most, Units::new)).collect();
    contest::run("scale", contests, repetitions, only, f64::INFINITY)
}

/// Returns the contest of a group: first the rows of counts, each compared with the least count in the group, and then
/// times and memory.
fn contest<J: Job>(group: &Group, most: Most, job: impl Fn(Unit, usize) -> J) -> Contest<J> {
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
    let runs = sizes.iter().map(|&units| job(group.unit, units)).collect();
    Contest { runs, rows, idle: false }
}

/// The results for each unit of a run, by their names.
type Found = BTreeMap<String, f64>;

/// A run with a number of units.
struct Units {
    unit: Unit,
    units: usize,
    /// The counts, which are made in the first repetition only: they do not vary, and take long.
    counts: OnceLock<Found>,
}

impl Units {
    fn new(unit: Unit, units: usize) -> Self {
        Self { unit, units, counts: OnceLock::new() }
    }

    fn work(&self, units: usize) -> Work {
        Work::objects(Task::Units { unit: self.unit, units }, Wait::Block, Placement::Free)
    }

    /// Counts the system calls and, if this machine can, the instructions of each unit.
    fn counts(&self) -> Result<Found> {
        let calls = self.each(|work| traced::total(work, PATIENCE))?;
        let mut found = Found::from([("system calls".to_owned(), calls)]);
        if self.unit != Unit::Clients && counted::has_valgrind() {
            found.insert("instructions".to_owned(), self.each(counted::instructions)?.round());
        }
        Ok(found)
    }

    /// Returns what `count` counts for each unit: the difference between a run with all units and a run with none,
    /// divided by their number.
    fn each(&self, count: impl Fn(&Work) -> Result<u64>) -> Result<f64> {
        let without = count(&self.work(0))?;
        let with = count(&self.work(self.units))?;
        Ok(with.saturating_sub(without) as f64 / self.units as f64)
    }
}

impl Job for Units {
    fn run(&self) -> Result<Outcome> {
        let mut outcome = self.work(self.units).run()?;
        if let Outcome::Measured(report) = &mut outcome {
            report.found.values_mut().for_each(|cost| *cost = (*cost / self.units as f64).round());
            if self.counts.get().is_none() {
                // Only one thread runs the job.
                let _ = self.counts.set(self.counts()?);
            }
            report.found.extend(self.counts.get().cloned().unwrap_or_default());
        }
        Ok(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::{BTreeMap, GROUPS, Job, Most, Outcome, Result, Unit, contest};
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
            let found = [("instructions", instructions), ("system calls", 0.0), ("time", 7.0)];
            let found: BTreeMap<_, _> = found.map(|(name, value)| (name.to_owned(), value)).into();
            Ok(Outcome::Measured(Box::new(Report { found, ..Report::default() })))
        }
    }

    #[test]
    fn a_unit_that_costs_more_among_many_is_seen() {
        let contests = vec![contest(&GROUPS[1], Most::FULL, |_: Unit, units| Pretended(units))];
        let (suite, broken) = crate::bars::contest::run("scale", contests, 1, None, f64::INFINITY);
        let holds: Vec<_> = suite.bars[..3].iter().map(|bar| bar.holds).collect();
        assert_eq!((holds, broken), (vec![Some(true), Some(true), Some(false)], false));
        assert!(suite.bars[3..6].iter().all(|bar| bar.holds == Some(true)));
        assert_eq!((suite.bars[6].value, suite.bars[7].value), (Some(7.0), None));
    }
}
