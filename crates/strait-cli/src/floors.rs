//! `strait bench floors`: what Strait must reach, each figure beside its floor from the same seconds.
//!
//! A *contest* is a few runs that are compared: they are taken one directly after the other, in fresh processes, in
//! changing order, and their ratio is taken within the repetition. All contests are gone through once in each
//! repetition, so that a bad quarter of a minute spoils one repetition of some and not all repetitions of one.

use std::time::Instant;

use crate::bars::{Bar, Sense, Suite};
use crate::machine;
use crate::peer::{self, Outcome};
use crate::placement::{Cpus, Placement};
use crate::progress::Progress;
use crate::stats::{bytes, median, spread};
use crate::trouble::Result;
use crate::work::{DEFAULT_SLOTS, Extent, Mechanism, Pattern, Report, Wait, Work};

/// By how much the probe may move within a contest.
const STEADY: f64 = 1.5;
/// How often a contest is repeated for that before it is taken as it is.
const RETRIES: usize = 3;
/// The suite ends within two minutes: no repetition is begun that would not.
const BUDGET: f64 = 105.0;

/// Runs that are compared with each other.
#[derive(Debug)]
struct Contest {
    /// The first is Strait's, or whatever is under judgement.
    runs: Vec<Work>,
    /// What is made of them.
    rows: Vec<Row>,
    /// Whether it is done only once, being long.
    once: bool,
}

/// One row of the table, made from the runs of a contest.
#[derive(Debug)]
struct Row {
    bar: Bar,
    kind: Kind,
}

/// How a row judges.
#[derive(Clone, Debug)]
enum Kind {
    /// The median time of the first run against the shortest of these.
    Times(Vec<usize>),
    /// The pace of the first run against that of this one, as messages a second.
    Paces(usize),
    /// Allocations of all runs.
    Allocations,
    /// System calls of all runs, which must be silent ones.
    SystemCalls,
    /// Wake-ups of all runs.
    WakeUps,
}

/// What one repetition of a contest gave.
#[derive(Debug, Default)]
struct Results {
    /// By run: what it found, or why not.
    runs: Vec<std::result::Result<Run, String>>,
    /// The probe kept moving.
    unsteady: bool,
}

impl Results {
    fn broke(&self) -> bool {
        self.runs.iter().any(std::result::Result::is_err)
    }
}

#[derive(Debug)]
enum Run {
    Report(Box<Report>),
    SilenceBroken,
}

/// Runs the suite. `Err` only if nothing could be run at all.
pub(crate) fn run(repetitions: usize, only: Option<&str>, cpus: Cpus) -> Result<(Suite, bool)> {
    let begin = Instant::now();
    let watch = machine::Watch::start();
    let mut contests = contests(cpus);
    if let Some(only) = only {
        for contest in &mut contests {
            contest.rows.retain(|row| row.bar.work.contains(only));
        }
        contests.retain(|contest| !contest.rows.is_empty());
    }

    let steps = |contest: &Contest| contest.runs.len() * if contest.once { 1 } else { repetitions };
    let mut progress = Progress::new(contests.iter().map(steps).sum());
    let mut results: Vec<Vec<Results>> = contests.iter().map(|_| Vec::new()).collect();
    for repetition in 0..repetitions {
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed + elapsed / repetition.max(1) as f64 > BUDGET {
            break;
        }
        for (contest, results) in contests.iter().zip(&mut results) {
            // A contest that broke is not tried again: each time may cost the whole patience for a side that hangs.
            let broke = results.last().is_some_and(Results::broke);
            let in_time = begin.elapsed().as_secs_f64() < BUDGET;
            if !contest.once && !contest.runs.is_empty() && !broke && in_time {
                results.push(repeat(contest, repetition, &mut progress));
            }
        }
    }
    // What takes long is done once, when nothing follows that it could push out.
    for (contest, results) in contests.iter().zip(&mut results) {
        if contest.once && !contest.runs.is_empty() {
            results.push(repeat(contest, 0, &mut progress));
        }
    }
    progress.finish();

    let mut bars = Vec::new();
    let mut broken = false;
    for (contest, results) in contests.iter().zip(&results) {
        for row in &contest.rows {
            let (bar, row_broken) = judge(row, contest, results);
            bars.push(bar);
            broken |= row_broken;
        }
    }
    let suite = Suite {
        suite: "floors",
        machine: machine::describe(),
        seconds: begin.elapsed().as_secs_f64(),
        foreign: watch.foreign(),
        bars,
    };
    Ok((suite, broken))
}

/// One repetition of a contest, taken again if the processors moved apart or together meanwhile.
fn repeat(contest: &Contest, repetition: usize, progress: &mut Progress) -> Results {
    for _ in &contest.runs {
        progress.step(&contest.rows[0].bar.work);
    }
    let mut results = Results::default();
    for _ in 0..RETRIES {
        results = once(contest, repetition);
        let probes: Vec<f64> = (results.runs.iter())
            .filter_map(|run| match run {
                Ok(Run::Report(report)) => Some(report.probes.clone()),
                _ => None,
            })
            .flatten()
            .collect();
        results.unsteady = spread(&probes) > STEADY;
        if !results.unsteady || results.broke() {
            break;
        }
    }
    results
}

fn once(contest: &Contest, repetition: usize) -> Results {
    let count = contest.runs.len();
    let mut runs: Vec<_> = (0..count).map(|_| Err("not run".to_owned())).collect();
    if matches!(contest.rows[0].kind, Kind::WakeUps) {
        // Idle processes do not disturb one another.
        std::thread::scope(|scope| {
            for (work, result) in contest.runs.iter().zip(&mut runs) {
                scope.spawn(move || *result = run_one(work));
            }
        });
    } else {
        for turn in 0..count {
            let index = (turn + repetition) % count;
            runs[index] = run_one(&contest.runs[index]);
        }
    }
    Results { runs, unsteady: false }
}

fn run_one(work: &Work) -> std::result::Result<Run, String> {
    match peer::run(work) {
        Ok(Outcome::Measured(report)) => Ok(Run::Report(report)),
        Ok(Outcome::SilenceBroken) => Ok(Run::SilenceBroken),
        Err(trouble) => Err(trouble.to_string()),
    }
}

/// Makes the row, and says whether something broke.
fn judge(row: &Row, contest: &Contest, results: &[Results]) -> (Bar, bool) {
    let mut bar = row.bar.clone();
    if contest.runs.is_empty() {
        return (bar.noted("skipped: this machine gives us one processor"), false);
    }
    let trouble = results.iter().flat_map(|results| &results.runs).find_map(|run| run.as_ref().err());
    bar = match &row.kind {
        Kind::Times(references) => {
            let best = |results: &Results| {
                let times = references.iter().map(|&index| median_time(results, index));
                times.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::min)
            };
            compare(bar, results, |results| median_time(results, 0), best)
        }
        Kind::Paces(reference) => {
            let pace = |results: &Results, index| median_time(results, index).map(|time| 1e3 / time);
            compare(bar, results, |results| pace(results, 0), |results| pace(results, *reference))
        }
        Kind::Allocations => bar.counted(&counts(results, |report| Some(report.allocations()))),
        Kind::SystemCalls => silence(bar, &counts(results, |_| Some(0))),
        Kind::WakeUps => bar.counted(&counts(results, |report| report.wake_ups)),
    };
    let unsteady = results.iter().filter(|results| results.unsteady).count();
    if unsteady > 0 {
        bar =
            bar.noted(format!("the probe moved by more than {STEADY} in {unsteady} repetitions, {RETRIES} times each"));
    }
    bar.probe = probe(results);
    match trouble {
        Some(trouble) => (bar.broken(trouble), true),
        None => (bar, false),
    }
}

/// A run is killed at its first system call, so it counts none or one, which stands for any number. Calls that belong to
/// the messages break every repetition. A single one is broken when a side was not let run for so long that the other
/// looked whether it was still alive; so the median counts, and what broke is said.
fn silence(bar: Bar, counts: &[f64]) -> Bar {
    let broken = counts.iter().filter(|&&count| count > 0.0).count();
    let bar = match median(counts) {
        Some(median) => Bar { repetitions: counts.len(), ..bar.counted(&[median.ceil()]) },
        None => bar,
    };
    if broken == 0 {
        return bar;
    }
    bar.noted(format!("in {broken} of {} repetitions a process was killed at its first system call", counts.len()))
}

/// Fills in the pairs of those repetitions in which both sides were measured.
fn compare(
    bar: Bar,
    results: &[Results],
    value: impl Fn(&Results) -> Option<f64>,
    reference: impl Fn(&Results) -> Option<f64>,
) -> Bar {
    let pairs: Vec<_> = results.iter().filter_map(|results| Some((value(results)?, reference(results)?))).collect();
    if pairs.is_empty() {
        let references: Vec<_> = results.iter().filter_map(reference).collect();
        bar.reference_only(&references)
    } else {
        bar.compared(&pairs)
    }
}

fn median_time(results: &Results, index: usize) -> Option<f64> {
    match results.runs.get(index)? {
        Ok(Run::Report(report)) => Some(report.times.p50),
        _ => None,
    }
}

/// The sum of a count over the runs, by repetition; a broken silence counts as one.
fn counts(results: &[Results], count: impl Fn(&Report) -> Option<u64>) -> Vec<f64> {
    let of_run = |run: &std::result::Result<Run, String>| match run {
        Ok(Run::Report(report)) => count(report).map(|count| count as f64),
        Ok(Run::SilenceBroken) => Some(1.0),
        Err(_) => None,
    };
    results
        .iter()
        .filter_map(|results| {
            let counts: Option<Vec<f64>> = results.runs.iter().map(of_run).collect();
            counts.map(|counts| counts.iter().sum())
        })
        .collect()
}

fn probe(results: &[Results]) -> Option<f64> {
    let probes: Vec<f64> = results
        .iter()
        .flat_map(|results| &results.runs)
        .filter_map(|run| match run {
            Ok(Run::Report(report)) => Some(report.probes.clone()),
            _ => None,
        })
        .flatten()
        .collect();
    median(&probes)
}

/// The table of what must be reached.
fn contests(cpus: Cpus) -> Vec<Contest> {
    let mut all = Vec::new();
    let two = cpus.two();
    small_round_trips(&mut all, two);
    copied_round_trips(&mut all, two);
    blocking(&mut all, Some(cpus.same()));
    blocking(&mut all, two);
    adaptive(&mut all);
    streams(&mut all, two);
    large(&mut all, two);
    in_place(&mut all, two);
    descriptors(&mut all, two, cpus.same());
    counted(&mut all, two);
    all
}

/// Adds a contest of `subject` against others; without a placement it stands there with no runs, and says so.
fn contest(
    all: &mut Vec<Contest>,
    placement: Option<Placement>,
    runs: impl Fn(Placement) -> Vec<Work>,
    rows: Vec<Row>,
) {
    all.push(Contest { runs: placement.map(runs).unwrap_or_default(), rows, once: false });
}

fn times(work: String, reference: &str, against: Vec<usize>, limit: f64) -> Row {
    Row { bar: Bar::new(&work, "ns", reference, Sense::AtMost, limit), kind: Kind::Times(against) }
}

fn small_round_trips(all: &mut Vec<Contest>, two: Option<Placement>) {
    for size in [12, 56] {
        let reference = format!("two flag lines, {size} B in the flag's own line");
        contest(
            all,
            two,
            |place| {
                [Mechanism::Strait, Mechanism::Line]
                    .map(|mechanism| Work::round_trip(mechanism, size, Wait::Spin, place))
                    .to_vec()
            },
            vec![times(format!("round trip {size} B, spinning, two cores"), &reference, vec![1], 1.25)],
        );
    }
}

fn copied_round_trips(all: &mut Vec<Contest>, two: Option<Placement>) {
    for size in [64, 144, 1024, 4096, 20_736, 248_832] {
        contest(
            all,
            two,
            |place| {
                [Mechanism::Strait, Mechanism::Flag]
                    .map(|mechanism| Work::round_trip(mechanism, size, Wait::Spin, place))
                    .to_vec()
            },
            vec![times(
                format!("round trip {size} B, spinning, two cores"),
                "flag + memcpy in and out of a shared buffer",
                vec![1],
                1.3,
            )],
        );
    }
}

fn blocking(all: &mut Vec<Contest>, placement: Option<Placement>) {
    let name = placement.map_or("two cores", Placement::name);
    let work = format!("round trip 64 B, blocking, {name}");
    contest(
        all,
        placement,
        |place| {
            [Mechanism::Strait, Mechanism::Futex, Mechanism::Pipe]
                .map(|mechanism| Work::round_trip(mechanism, 64, Wait::Block, place))
                .to_vec()
        },
        vec![times(work.clone(), "bare futex ping-pong", vec![1], 1.15), times(work, "a pipe each way", vec![2], 1.0)],
    );
}

fn adaptive(all: &mut Vec<Contest>) {
    contest(
        all,
        Some(Placement::Free),
        |place| {
            [Wait::Adaptive, Wait::Spin, Wait::Block]
                .map(|wait| Work::round_trip(Mechanism::Strait, 64, wait, place))
                .to_vec()
        },
        vec![times(
            "round trip 64 B, adaptive, unpinned".to_owned(),
            "the better of Strait spinning and Strait blocking",
            vec![1, 2],
            1.2,
        )],
    );
}

fn streams(all: &mut Vec<Contest>, two: Option<Placement>) {
    for (batch, how) in [(1, "one at a time"), (16, "in batches of 16")] {
        for slots in [1024, DEFAULT_SLOTS] {
            let work = format!("stream of 64 B, {how}, ring of {slots}");
            let reference = format!("bare single-producer ring of {slots} slots, {how}");
            contest(
                all,
                two,
                |place| {
                    [Mechanism::Strait, Mechanism::Ring]
                        .map(|mechanism| Work {
                            slots: Some(slots),
                            ..Work::one_way(mechanism, 64, batch, Wait::Spin, place)
                        })
                        .to_vec()
                },
                vec![Row { bar: Bar::new(&work, "M/s", &reference, Sense::AtLeast, 0.8), kind: Kind::Paces(1) }],
            );
        }
    }
}

const MIB: usize = 1 << 20;

fn large(all: &mut Vec<Contest>, two: Option<Placement>) {
    for (size, extent) in
        [(MIB, Extent::Time { warm: 50, steady: 150 }), (64 * MIB, Extent::Count { warm: 3, steady: 7 })]
    {
        contest(
            all,
            two,
            |place| {
                [Mechanism::Strait, Mechanism::Flag]
                    .map(|mechanism| Work {
                        pattern: Pattern::RoundTrip { reply: 8 },
                        extent,
                        ..Work::round_trip(mechanism, size, Wait::Spin, place)
                    })
                    .to_vec()
            },
            vec![times(
                format!("{} copied in and out, warm", bytes(size)),
                "flag + two memcpy through a warm shared buffer",
                vec![1],
                1.15,
            )],
        );
    }
}

fn in_place(all: &mut Vec<Contest>, two: Option<Placement>) {
    contest(
        all,
        two,
        |place| {
            [(256 * MIB, 8), (MIB, 12)]
                .map(|(size, steady)| Work {
                    pattern: Pattern::InPlace,
                    extent: Extent::Count { warm: 3, steady },
                    ..Work::round_trip(Mechanism::Strait, size, Wait::Spin, place)
                })
                .to_vec()
        },
        vec![times(
            "256 MiB filled and read in place, commit to first byte".to_owned(),
            "the same with 1 MiB, the caches equally cold",
            vec![1],
            1.5,
        )],
    );
}

fn descriptors(all: &mut Vec<Contest>, two: Option<Placement>, same: Placement) {
    for (placement, wait, how) in
        [(two, Wait::Spin, "spinning, two cores"), (Some(same), Wait::Block, "blocking, same core")]
    {
        contest(
            all,
            placement,
            |place| {
                [Mechanism::StraitRights, Mechanism::Rights]
                    .map(|mechanism| Work::round_trip(mechanism, 64, wait, place))
                    .to_vec()
            },
            vec![times(
                format!("one descriptor in a message each way, {how}"),
                "bare sendmsg and recvmsg with one",
                vec![1],
                1.5,
            )],
        );
    }
}

fn counted(all: &mut Vec<Contest>, two: Option<Placement>) {
    let sizes = [12, 64, 1024, 4096];
    let count = |work: &str, unit, kind| Row { bar: Bar::new(work, unit, "none", Sense::AtMost, 0.0), kind };
    contest(
        all,
        two,
        |place| {
            let short = Extent::Time { warm: 30, steady: 30 };
            let there = |size| Work::round_trip(Mechanism::Strait, size, Wait::Spin, place);
            let mut runs = sizes.map(there).to_vec();
            runs.push(Work::one_way(Mechanism::Strait, 64, 1, Wait::Spin, place));
            for run in &mut runs {
                run.extent = short;
            }
            runs
        },
        vec![count("memory allocations in steady flow, 12 to 4096 B", "allocations", Kind::Allocations)],
    );
    contest(
        all,
        two,
        |place| {
            let silent = |work| Work { silent: true, ..work };
            let there = |size| {
                silent(Work {
                    extent: Extent::Count { warm: 20_000, steady: 50_000 },
                    ..Work::round_trip(Mechanism::Strait, size, Wait::Spin, place)
                })
            };
            let mut runs = sizes.map(there).to_vec();
            runs.push(silent(Work {
                extent: Extent::Count { warm: 200_000, steady: 1_000_000 },
                ..Work::one_way(Mechanism::Strait, 64, 1, Wait::Spin, place)
            }));
            runs
        },
        vec![count("system calls in steady flow, spinning, 12 to 4096 B", "calls", Kind::SystemCalls)],
    );
    all.push(Contest {
        runs: [Wait::Block, Wait::Adaptive]
            .map(|wait| Work {
                pattern: Pattern::Idle,
                extent: Extent::Time { warm: 200, steady: 10_000 },
                ..Work::round_trip(Mechanism::Strait, 64, wait, Placement::Free)
            })
            .to_vec(),
        rows: vec![count("wake-ups of an idle receiver in 10 s, blocking and adaptive", "wake-ups", Kind::WakeUps)],
        once: true,
    });
}

#[cfg(test)]
mod tests {
    use super::{Kind, contests, silence};
    use crate::bars::{Bar, Sense};
    use crate::placement::Cpus;

    #[test]
    fn one_disturbed_run_is_said_and_not_held_against_the_rest() {
        let bar = || Bar::new("system calls", "calls", "none", Sense::AtMost, 0.0);
        let quiet = silence(bar(), &[0.0, 0.0, 0.0]);
        assert_eq!((quiet.holds, quiet.value, quiet.note), (Some(true), Some(0.0), None));
        let disturbed = silence(bar(), &[0.0, 1.0, 0.0]);
        assert_eq!((disturbed.holds, disturbed.repetitions), (Some(true), 3));
        assert!(disturbed.note.unwrap().contains("1 of 3"));
        assert_eq!(silence(bar(), &[1.0, 2.0, 0.0]).holds, Some(false));
        assert_eq!(silence(bar(), &[]).holds, None);
    }

    #[test]
    fn every_run_can_be_done() {
        for contest in contests(Cpus::named(&[0, 1]).unwrap()) {
            assert!(!contest.runs.is_empty() && !contest.rows.is_empty());
            for run in &contest.runs {
                assert!(run.mechanism.can(run.size, run.wait), "{run:?}");
            }
            for row in &contest.rows {
                let references = match &row.kind {
                    Kind::Times(references) => references.clone(),
                    Kind::Paces(reference) => vec![*reference],
                    _ => vec![],
                };
                assert!(references.iter().all(|&index| index < contest.runs.len()));
            }
        }
    }

    #[test]
    fn with_one_processor_nothing_is_pretended() {
        for contest in contests(Cpus::named(&[0]).unwrap()) {
            assert!(contest.runs.iter().all(|run| !run.placement.is_two()));
        }
    }
}
