//! Measures a suite: every work in fresh processes, in repetitions, in random order.
//!
//! Compared works (with different mechanisms, and all else equal) run in direct sequence, in random order. The groups
//! of such works are in random order, too. So a disturbance of a quarter of a minute spoils one repetition of some
//! figures, not all repetitions of a figure.
//!
//! On a virtual machine the processors can move closer together or farther apart during a run. Such a run is repeated
//! a few times, and marked if the repetitions do not help.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::loops;
use crate::machine::{Machine, Watch};
use crate::mechanism::Empty;
use crate::pair::{self, Outcome, traced};
use crate::placement::Placement;
use crate::process::{clock, events};
use crate::progress::Progress;
use crate::results::figure::STEADY;
use crate::results::{FORMAT, Figure, Harness, Results};
use crate::samples::QUANTILES;
use crate::stats::spread;
use crate::trouble::{Result, Trouble, While};
use crate::work::{Calls, Extent, Mechanism, Report, Wait, Work};

/// How often a run is measured at most, if the probe (the bare cache-line round trip) changes within the run by more
/// than [`STEADY`].
pub(crate) const RETRIES: usize = 3;

/// A suite to measure: its works, and how to measure them.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The name of the suite, for the results.
    pub suite: String,
    /// The works of the suite.
    pub works: Vec<Work>,
    /// How often each work is measured, each time in fresh processes.
    pub repetitions: usize,
    /// Time budget in seconds: no repetition begins that would probably end later, and no run begins later.
    pub budget: f64,
    /// The random seed for the order of the runs.
    pub seed: u64,
    /// Whether system calls are counted too, in separate runs.
    pub calls: bool,
}

static STOPPED: AtomicBool = AtomicBool::new(false);

/// Two interrupts less than this apart count as one: `timeout` signals a program, and then its whole process group.
const ONE: Duration = Duration::from_secs(1);

/// Installs a handler for interrupts (`SIGINT`, and `SIGTERM` as `timeout` sends it). The first interrupt ends the
/// suite after the current run and keeps the completed runs; the second one ends the program.
///
/// # Errors
/// If the handler cannot be installed.
pub fn stop_on_interrupt() -> Result<()> {
    let mut asked = None;
    ctrlc::set_handler(move || {
        if asked.get_or_insert_with(Instant::now).elapsed() >= ONE {
            std::process::exit(130);
        }
        if STOPPED.swap(true, Ordering::Relaxed) {
            return;
        }
        eprintln!("Stopping; what is done is kept. Interrupt again to leave at once.");
    })
    .doing("installing the interrupt handler")
}

/// Returns a random seed.
pub fn any_seed() -> u64 {
    fastrand::u64(..)
}

/// Whether the program was asked to stop: see [`stop_on_interrupt`].
pub(crate) fn stopped() -> bool {
    STOPPED.load(Ordering::Relaxed)
}

/// The reports, the error and the system calls of one work so far.
#[derive(Debug, Default)]
struct Found {
    reports: Vec<Report>,
    trouble: Option<Trouble>,
    calls: Option<Calls>,
}

/// Measures the suite of `plan`. Blocks until the suite is complete, interrupted or over its time budget.
pub fn run(plan: &Plan) -> Results {
    let begin = Instant::now();
    let began = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let watch = Watch::start();
    let mut machine = Machine::here();
    let harness = calibrate();
    let mut random = fastrand::Rng::with_seed(plan.seed);

    let lacking: Vec<Option<String>> = plan.works.iter().map(Work::lacking).collect();
    let mut found: Vec<Found> = plan.works.iter().map(|_| Found::default()).collect();
    let mut groups = groups(&plan.works, &lacking);
    let steps: usize = groups.iter().map(Vec::len).sum();
    let mut progress = Progress::new(steps * (plan.repetitions + usize::from(plan.calls)));
    let mut missing = events::missing();
    let over = || stopped() || begin.elapsed().as_secs_f64() > plan.budget;
    let mut repetitions = 0;
    'repetitions: for repetition in 0..plan.repetitions {
        let elapsed = begin.elapsed().as_secs_f64();
        if elapsed + elapsed / repetition.max(1) as f64 > plan.budget {
            break;
        }
        random.shuffle(&mut groups);
        for group in &mut groups {
            random.shuffle(group);
            for &index in &*group {
                let work = &plan.works[index];
                progress.step(&work.words());
                if over() {
                    break 'repetitions;
                }
                // A work that broke is not tried again: each try may cost the whole timeout for a process that hangs.
                if found[index].trouble.is_none() {
                    match measure(work) {
                        Ok(report) => found[index].reports.push(report),
                        Err(trouble) => found[index].trouble = Some(trouble),
                    }
                }
            }
        }
        repetitions += 1;
    }
    let mut complete = repetitions == plan.repetitions;
    if plan.calls && complete {
        complete = count_calls(plan, &groups, &mut found, &mut progress, &over, &mut missing);
    }
    progress.finish();

    let figures = plan.works.iter().zip(lacking).zip(found).map(|((work, lacking), found)| match lacking {
        Some(why) => Figure::lacking(work.clone(), why),
        None => {
            let calls = found.calls;
            let figure = Figure::of(work.clone(), found.reports, found.trouble);
            Figure { calls: figure.calls.or(calls), ..figure }
        }
    });
    machine.foreign = watch.foreign();
    Results {
        format: FORMAT,
        suite: plan.suite.clone(),
        began,
        seconds: begin.elapsed().as_secs_f64(),
        complete,
        harness,
        seed: plan.seed,
        missing,
        quantiles: QUANTILES.to_vec(),
        figures: figures.collect(),
        machine,
    }
}

/// Measures the cost of a clock reading, and of a round trip through the measuring loops without a mechanism.
fn calibrate() -> Harness {
    let readings = 100_000;
    let begin = clock::now();
    for _ in 0..readings {
        std::hint::black_box(clock::now());
    }
    let clock = (clock::now() - begin) as f64 / f64::from(readings);
    let work = Work {
        extent: Extent::Time { warm: 5, steady: 20 },
        ..Work::round_trip(Mechanism::EMPTY, 64, Wait::Spin, Placement::Free)
    };
    let empty = loops::first(&mut Empty::default(), &work, 0).map_or(f64::NAN, |report| report.times.p50);
    Harness { clock, empty }
}

/// Counts the system calls of every measured work, in separate runs. Returns `false` if the suite was stopped before
/// the end. If system calls cannot be counted for a work, the reason is added to `missing`.
fn count_calls(
    plan: &Plan,
    groups: &[Vec<usize>],
    found: &mut [Found],
    progress: &mut Progress,
    over: &impl Fn() -> bool,
    missing: &mut Vec<[String; 2]>,
) -> bool {
    for &index in groups.iter().flatten() {
        let (work, found) = (&plan.works[index], &mut found[index]);
        progress.step(&format!("system calls of {}", work.words()));
        if over() {
            return false;
        }
        let traced = found.reports.iter().all(|report| report.spent[0].calls.is_some());
        if found.trouble.is_some() || found.reports.is_empty() || traced || work.silent {
            continue;
        }
        match traced::calls(work) {
            Ok(calls) => found.calls = Some(calls),
            Err(trouble) => missing.push([format!("system calls of {}", work.words()), trouble.to_string()]),
        }
    }
    true
}

/// Groups the compared works, as indices in `works`. Leaves out works that this machine cannot measure (with a reason
/// in `lacking`).
fn groups(works: &[Work], lacking: &[Option<String>]) -> Vec<Vec<usize>> {
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for index in (0..works.len()).filter(|&index| lacking[index].is_none()) {
        match groups.iter_mut().find(|group| works[group[0]].is_compared_with(&works[index])) {
            Some(group) => group.push(index),
            None => groups.push(vec![index]),
        }
    }
    groups
}

/// Measures `work`, again if the probe changed within the run, but at most [`RETRIES`] times. Returns the last
/// report.
fn measure(work: &Work) -> Result<Report> {
    let mut last = once(work)?;
    for _ in 1..RETRIES {
        if spread(&last.probes) <= STEADY {
            break;
        }
        last = once(work)?;
    }
    Ok(last)
}

fn once(work: &Work) -> Result<Report> {
    let watch = Watch::start();
    match pair::run(work)? {
        Outcome::Measured(mut report) => {
            report.foreign = watch.foreign();
            Ok(*report)
        }
        Outcome::SilenceBroken => {
            Err(Trouble::new("the process was killed for a system call, although calls were allowed"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::groups;
    use crate::placement::Placement;
    use crate::work::{Mechanism, Wait, Work};

    #[test]
    fn what_is_compared_stands_together() {
        let work = |mechanism, size| Work::round_trip(mechanism, size, Wait::Block, Placement::Free);
        let works = [work(Mechanism::PIPE, 64), work(Mechanism::PIPE, 8), work(Mechanism::STREAM, 64)];
        assert_eq!(groups(&works, &[None, None, None]), [vec![0, 2], vec![1]]);
        assert_eq!(groups(&works, &[None, Some(String::new()), None]), [vec![0, 2]]);
    }
}
