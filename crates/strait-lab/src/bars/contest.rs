//! Contests: a few compared runs, and the rows computed from the runs.
//!
//! The runs of a contest run directly one after the other, in fresh processes, in changing order. Their ratio is
//! computed within each repetition. Each repetition goes through all contests once. So a disturbance of a quarter of
//! a minute spoils one repetition of some contests, not all repetitions of a single contest.

use std::time::Instant;

use super::bar::{Bar, Sense, Suite};
use crate::machine;
use crate::pair::{self, Outcome};
use crate::placement::Placement;
use crate::progress::Progress;
use crate::results::figure::STEADY;
use crate::runner::{RETRIES, stopped};
use crate::stats::{median, spread};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// A run that can be repeated: each call of `run` uses fresh processes.
pub(crate) trait Job: Sync {
    /// Runs the job once, and waits for its result.
    fn run(&self) -> Result<Outcome>;
}

impl Job for Work {
    fn run(&self) -> Result<Outcome> {
        pair::run(self)
    }
}

/// A group of runs that are compared with each other.
#[derive(Debug)]
pub(crate) struct Contest<J = Work> {
    /// The runs; a row refers to them by index. The list is empty if this machine has too few processors.
    pub(crate) runs: Vec<J>,
    /// The rows that are computed from the runs.
    pub(crate) rows: Vec<Row>,
    /// Whether the contest measures idle processes. If so, the long contest runs only once, with all its runs at one
    /// time.
    pub(crate) idle: bool,
}

impl Contest {
    /// Returns a contest with the runs that `runs` returns for `placement`, and no rows. Without a placement the
    /// contest has no runs, and its rows are marked as skipped.
    pub(crate) fn new(placement: Option<Placement>, runs: impl FnOnce(Placement) -> Vec<Work>) -> Self {
        Self { runs: placement.map(runs).unwrap_or_default(), rows: Vec::new(), idle: false }
    }

    /// Adds a row.
    pub(crate) fn row(mut self, bar: Bar, kind: Kind) -> Self {
        self.rows.push(Row { bar, kind });
        self
    }

    /// Adds a row that compares the time of the first run with the shortest time of the runs in `others`.
    pub(crate) fn times(self, work: &str, reference: &str, others: &[usize], limit: f64) -> Self {
        self.times_of(0, work, reference, others, limit)
    }

    /// Adds a row that compares the time of `run` with the shortest time of the runs in `others`.
    pub(crate) fn times_of(self, run: usize, work: &str, reference: &str, others: &[usize], limit: f64) -> Self {
        self.row(Bar::new(work, "ns", reference, Sense::AtMost, limit), Kind::Times(run, others.to_vec()))
    }

    /// Adds a row that compares the messages per second of the first and the second run.
    pub(crate) fn paces(self, work: &str, reference: &str, limit: f64) -> Self {
        self.row(Bar::new(work, "M/s", reference, Sense::AtLeast, limit), Kind::Paces(1))
    }

    /// Adds a row that compares the added time for each of `parts` parts of the second run with a bare hop between two
    /// threads.
    pub(crate) fn hops(self, work: &str, parts: f64) -> Self {
        let bar = Bar::new(work, "ns", "a bare hop: mutex, queue, condition variable", Sense::AtMost, 1.5);
        self.row(bar, Kind::Added { run: 0, to: 1, parts, each: "bare_hop_ns" })
    }

    /// Adds a row that compares a count, summed over all runs, with `limit`.
    pub(crate) fn counts(self, work: &str, unit: &str, limit: f64, count: fn(&Report) -> Option<f64>) -> Self {
        self.row(Bar::new(work, unit, "none", Sense::AtMost, limit), Kind::Count(count))
    }

    /// Adds a row without a limit, for the additional result `name` of `run`.
    pub(crate) fn told(self, work: &str, run: usize, name: &'static str, unit: &str, remark: &str) -> Self {
        self.row(Bar::told(work, unit, remark), Kind::Found(run, name))
    }
}

/// One row of the table, computed from the runs of a contest.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) bar: Bar,
    pub(crate) kind: Kind,
}

/// The way in which a row is computed and judged.
#[derive(Clone, Debug)]
pub(crate) enum Kind {
    /// `Times(run, others)`: the median time of `run`, compared with the shortest median time of the runs in
    /// `others`.
    Times(usize, Vec<usize>),
    /// `Paces(other)`: the messages per second of the first run, compared with those of run `other`.
    Paces(usize),
    /// `Limit(run, name, limit)`: the additional result `name` of `run` in nanoseconds, compared with the fixed time
    /// `limit`.
    Limit(usize, &'static str, f64),
    /// `Count(count)`: a count summed over all runs. The sum of the worst repetition is compared with the row's
    /// limit.
    Count(fn(&Report) -> Option<f64>),
    /// `Least(run, name)`: the additional result `name` of `run`, a count, compared with the least of all runs. Less
    /// than one counts as one.
    Least(usize, &'static str),
    /// `SystemCalls`: the number of system calls of all runs, in which any system call ends the run.
    SystemCalls,
    /// `Added`: the median time of `run` minus that of run `to`, divided by `parts`, compared with the additional
    /// result `each` of `run`.
    Added { run: usize, to: usize, parts: f64, each: &'static str },
    /// `Found(run, name)`: the additional result `name` of `run`, in the row's unit, compared with the row's limit, if
    /// any.
    Found(usize, &'static str),
}

/// The results of one repetition of a contest.
#[derive(Debug, Default)]
struct Results {
    /// The result of each run, or its error.
    runs: Vec<Result<Outcome>>,
    /// Whether the probe changed too much in every try of this repetition.
    unsteady: bool,
}

impl Results {
    fn broke(&self) -> bool {
        self.runs.iter().any(Result::is_err)
    }

    /// Returns the reports of the runs that were measured.
    fn reports(&self) -> impl Iterator<Item = &Report> {
        self.runs.iter().filter_map(|run| match run {
            Ok(Outcome::Measured(report)) => Some(&**report),
            _ => None,
        })
    }

    fn report(&self, index: usize) -> Option<&Report> {
        match self.runs.get(index)? {
            Ok(Outcome::Measured(report)) => Some(report),
            _ => None,
        }
    }

    /// Returns the median time of a run: one way if the shape also measured one way.
    fn median_time(&self, index: usize) -> Option<f64> {
        Some(self.found(index, "way_there_ns").unwrap_or(self.report(index)?.times.p50))
    }

    fn found(&self, index: usize, name: &str) -> Option<f64> {
        self.report(index)?.found.get(name).copied()
    }

    fn probes(&self) -> impl Iterator<Item = f64> {
        self.reports().flat_map(|report| report.probes.iter().copied())
    }
}

/// Runs all contests of a suite. Returns the rows, and whether a run broke. No repetition begins that would end after
/// `budget` seconds, and no contest begins after an interrupt. With `only`, measures just the rows whose work contains
/// `only`.
pub(crate) fn run<J: Job>(
    suite: &'static str,
    mut contests: Vec<Contest<J>>,
    repetitions: usize,
    only: Option<&str>,
    budget: f64,
) -> (Suite, bool) {
    let begin = Instant::now();
    let watch = machine::Watch::start();
    if let Some(only) = only {
        for contest in &mut contests {
            contest.rows.retain(|row| row.bar.work.contains(only));
        }
        contests.retain(|contest| !contest.rows.is_empty());
    }

    let steps = |contest: &Contest<J>| contest.runs.len() * if contest.idle { 1 } else { repetitions };
    let mut progress = Progress::new(contests.iter().map(steps).sum());
    let mut results: Vec<Vec<Results>> = contests.iter().map(|_| Vec::new()).collect();
    for repetition in 0..repetitions {
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed + elapsed / repetition.max(1) as f64 > budget {
            break;
        }
        for (contest, results) in contests.iter().zip(&mut results) {
            // A contest that broke is not tried again: each try may cost the whole timeout for a process that hangs.
            let broke = results.last().is_some_and(Results::broke);
            let in_time = begin.elapsed().as_secs_f64() < budget && !stopped();
            if !contest.idle && !contest.runs.is_empty() && !broke && in_time {
                results.push(repeat(contest, repetition, &mut progress));
            }
        }
    }
    // Long contests run once, at the end, and so leave the time budget to the others.
    for (contest, results) in contests.iter().zip(&mut results) {
        if contest.idle && !contest.runs.is_empty() && !stopped() {
            results.push(repeat(contest, 0, &mut progress));
        }
    }
    progress.finish();

    let mut bars = Vec::new();
    let mut broken = false;
    for (contest, results) in contests.iter().zip(&results) {
        for row in &contest.rows {
            let (bar, row_broken) = judge(row, contest.runs.is_empty(), results);
            bars.push(if is_reached(contest, results) { bar } else { bar.noted("not reached") });
            broken |= row_broken;
        }
    }
    let suite = Suite {
        suite,
        machine: machine::describe(),
        seconds: begin.elapsed().as_secs_f64(),
        foreign: watch.foreign(),
        complete: contests.iter().zip(&results).all(|(contest, results)| is_reached(contest, results)),
        bars,
    };
    (suite, broken)
}

/// Whether the contest was measured at least once, or cannot be measured with so few processors.
fn is_reached<J>(contest: &Contest<J>, results: &[Results]) -> bool {
    contest.runs.is_empty() || !results.is_empty()
}

/// Runs one repetition of a contest. Repeats it up to [`RETRIES`] times in all if the probe changed too much.
fn repeat<J: Job>(contest: &Contest<J>, repetition: usize, progress: &mut Progress) -> Results {
    for _ in &contest.runs {
        progress.step(&contest.rows[0].bar.work);
    }
    let mut results = Results::default();
    for _ in 0..RETRIES {
        results = once(contest, repetition);
        let probes: Vec<f64> = results.probes().collect();
        results.unsteady = spread(&probes) > STEADY;
        if !results.unsteady || results.broke() {
            break;
        }
    }
    results
}

fn once<J: Job>(contest: &Contest<J>, repetition: usize) -> Results {
    let count = contest.runs.len();
    let mut runs: Vec<_> = (0..count).map(|_| Err(Trouble::new("not run"))).collect();
    if contest.idle {
        // Idle processes do not disturb each other, so all run at the same time.
        std::thread::scope(|scope| {
            for (job, result) in contest.runs.iter().zip(&mut runs) {
                scope.spawn(move || *result = job.run());
            }
        });
    } else {
        for turn in 0..count {
            let index = (turn + repetition) % count;
            runs[index] = contest.runs[index].run();
        }
    }
    Results { runs, unsteady: false }
}

/// Computes one row from the results of its contest. Returns the row, and whether a run of the contest broke.
fn judge(row: &Row, skipped: bool, results: &[Results]) -> (Bar, bool) {
    let mut bar = row.bar.clone();
    if skipped {
        return (bar.noted("skipped: only one processor is available"), false);
    }
    let trouble = results.iter().flat_map(|results| &results.runs).find_map(|run| run.as_ref().err());
    bar = match &row.kind {
        Kind::Times(run, references) => {
            let best = |results: &Results| {
                let times = references.iter().map(|&index| results.median_time(index));
                times.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::min)
            };
            compare(bar, results, |results| results.median_time(*run), best)
                .spread_over(&spreads(results, *run))
                .costing(&costs(results, *run))
        }
        Kind::Paces(reference) => {
            let pace = |results: &Results, index| results.median_time(index).map(|time| 1e3 / time);
            compare(bar, results, |results| pace(results, 0), |results| pace(results, *reference))
                .costing(&costs(results, 0))
        }
        Kind::Limit(run, name, limit) => compare(bar, results, |results| results.found(*run, name), |_| Some(*limit))
            .spread_over(&spreads(results, *run))
            .costing(&costs(results, *run)),
        Kind::Added { run, to, parts, each } => {
            let added = |results: &Results| Some((results.median_time(*run)? - results.median_time(*to)?) / parts);
            compare(bar, results, added, |results| results.found(*run, each))
        }
        Kind::Least(run, name) => least(bar, results, *run, name),
        Kind::Count(count) => bar.counted(&counts(results, count)),
        Kind::SystemCalls => silence(bar, &counts(results, |_| Some(0.0))),
        Kind::Found(run, name) => {
            let found = results.iter().filter_map(|results| results.found(*run, name));
            bar.found(&found.collect::<Vec<_>>())
        }
    };
    let unsteady = results.iter().filter(|results| results.unsteady).count();
    if unsteady > 0 {
        bar = bar.noted(format!(
            "the probe changed by more than {STEADY} × in {unsteady} repetitions, {RETRIES} tries each"
        ));
    }
    bar.probe = median(&results.iter().flat_map(Results::probes).collect::<Vec<_>>());
    match trouble {
        Some(trouble) => (bar.broken(&trouble.to_string()), true),
        None => (bar, false),
    }
}

/// Compares the count `name` of a run with the least of all runs.
fn least(bar: Bar, results: &[Results], run: usize, name: &str) -> Bar {
    let value = |results: &Results| results.found(run, name);
    let least =
        |results: &Results| results.reports().filter_map(|report| report.found.get(name).copied()).reduce(f64::min);
    let [value_found, least_found] = [
        median(&results.iter().filter_map(value).collect::<Vec<_>>()),
        median(&results.iter().filter_map(least).collect::<Vec<_>>()),
    ];
    if value_found.is_none() {
        return bar.noted("cannot be counted here");
    }
    let at_least_one = |count: f64| count.max(1.0);
    let bar =
        compare(bar, results, |results| value(results).map(at_least_one), |results| least(results).map(at_least_one));
    Bar { value: value_found, reference_value: least_found, ..bar }
}

/// Judges counts of system calls. A run is killed at its first system call, so the count is 0 or 1, and 1 stands for
/// any number.
///
/// System calls for the messages end the run in every repetition. A single repetition may break if a side did not run
/// for so long that the other side asked the kernel whether the peer is alive. So the median is judged, and the
/// broken repetitions are noted.
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

/// Fills in the values and the references of the repetitions in which both were measured. If there is none, fills in
/// only the references.
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

/// Returns the 90th and the 99th percentile of a run's times, for each repetition.
fn spreads(results: &[Results], run: usize) -> Vec<[f64; 2]> {
    results
        .iter()
        .filter_map(|results| results.report(run))
        .map(|report| [report.times.p90, report.times.p99])
        .collect()
}

/// Returns the processor time of both sides for each message of a run, for each repetition with this measurement.
fn costs(results: &[Results], run: usize) -> Vec<f64> {
    let costs = results.iter().filter_map(|results| results.report(run)).map(Report::cpu_per_message);
    costs.filter(|&cost| cost > 0.0).collect()
}

/// Returns the sum of a count over all runs, for each repetition. A run that was killed for a system call counts as
/// 1.
fn counts(results: &[Results], count: impl Fn(&Report) -> Option<f64>) -> Vec<f64> {
    let of_run = |run: &Result<Outcome>| match run {
        Ok(Outcome::Measured(report)) => count(report),
        Ok(Outcome::SilenceBroken) => Some(1.0),
        Err(_) => None,
    };
    let of_all = |results: &Results| results.runs.iter().map(of_run).sum::<Option<f64>>();
    results.iter().filter_map(of_all).collect()
}

#[cfg(test)]
mod tests {
    use super::{Contest, Job, Kind, Row, run, silence};
    use crate::bars::{Bar, Sense};
    use crate::pair::Outcome;
    use crate::trouble::{Result, Trouble};
    use crate::work::Report;

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

    /// A job that pretends to take so many nanoseconds, or breaks.
    struct Pretended(Option<f64>);

    impl Job for Pretended {
        fn run(&self) -> Result<Outcome> {
            let mut report = Report::default();
            report.times.p50 = self.0.ok_or_else(|| Trouble::new("it broke"))?;
            report.found.insert("size".to_owned(), 7.0);
            Ok(Outcome::Measured(Box::new(report)))
        }
    }

    fn contest(runs: Vec<Pretended>) -> Contest<Pretended> {
        let bar = || Bar::new("work", "ns", "reference", Sense::AtMost, 2.0);
        let kinds = [Kind::Times(0, vec![1]), Kind::Limit(0, "size", 70.0), Kind::Found(0, "size")];
        let rows = kinds.map(|kind| Row { bar: bar(), kind });
        Contest { runs, rows: rows.into(), idle: false }
    }

    #[test]
    fn rows_are_made_of_what_the_runs_found() {
        let (suite, broken) =
            run("pretended", vec![contest(vec![Pretended(Some(30.0)), Pretended(Some(10.0))])], 3, None, 9.0);
        assert!(!broken);
        assert_eq!((suite.bars[0].ratio, suite.bars[0].holds), (Some(3.0), Some(false)));
        assert_eq!((suite.bars[1].ratio, suite.bars[1].holds), (Some(0.1), Some(true)));
        assert_eq!((suite.bars[2].value, suite.bars[2].repetitions), (Some(7.0), 3));
    }

    #[test]
    fn a_contest_that_broke_is_not_tried_again() {
        let (suite, broken) =
            run("pretended", vec![contest(vec![Pretended(Some(30.0)), Pretended(None)])], 3, None, 9.0);
        assert!(broken);
        assert_eq!((suite.bars[0].holds, suite.bars[2].repetitions), (Some(false), 1));
        let (suite, _) = run("pretended", vec![contest(vec![])], 3, Some("nothing of the kind"), 9.0);
        assert!(suite.bars.is_empty());
    }

    #[test]
    fn a_contest_beyond_the_budget_is_not_reached() {
        let pretended = || vec![contest(vec![Pretended(Some(30.0)), Pretended(Some(10.0))])];
        let (suite, broken) = run("pretended", pretended(), 1, None, 0.0);
        assert!(!suite.complete && !broken);
        assert!(suite.bars.iter().all(|bar| bar.holds.is_none() && bar.note.as_deref() == Some("not reached")));
        assert!(run("pretended", pretended(), 1, None, 9.0).0.complete);
        assert!(run("pretended", vec![contest(vec![])], 1, None, 0.0).0.complete);
    }
}
