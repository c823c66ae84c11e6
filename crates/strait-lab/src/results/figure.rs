//! One figure: a work, what each repetition of it found, and how far that can be believed.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{median, spread};
use crate::trouble::Trouble;
use crate::work::{Calls, Counted, Report, Spent, Work};

/// By how much the probes of a figure may differ before it is marked.
pub const STEADY: f64 = 1.5;

/// The share of all processors' time that others may use during a run before it is marked.
pub const FOREIGN: f64 = 0.15;

/// One work and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Figure {
    /// What was measured.
    pub work: Work,
    /// How far it can be believed.
    pub state: State,
    /// The median of the repetitions, unless nothing could be measured.
    pub summary: Option<Summary>,
    /// What each repetition found.
    pub repetitions: Vec<Report>,
    /// System calls per message, if the suite asks for them and they can be counted here.
    #[serde(default)]
    pub calls: Option<Calls>,
}

/// How far a figure can be believed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "state", content = "why", rename_all = "kebab-case")]
pub enum State {
    /// Nothing is known against it.
    Measured,
    /// Something else was at work meanwhile, or the processors moved.
    Disturbed(String),
    /// A message was lost or wrong, a process died, or a call failed. There is no figure, whatever other repetitions found.
    Broken(String),
    /// The machine does not have it, or the mechanism met a limit that it is known to have here. There is no figure, and
    /// nothing is wrong.
    Lacking(String),
    /// The suite was stopped before.
    NotReached,
}

/// What the repetitions say together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Summary {
    /// The median over the repetitions of their medians.
    pub median: f64,
    /// Where the true median lies with the probability `confidence`, by the order of the repetitions.
    pub interval: [f64; 2],
    /// The probability that belongs to `interval`.
    pub confidence: f64,
    /// Messages or round trips a second: the median over the repetitions.
    pub per_second: f64,
    /// Processor time of all processes for each, in nanoseconds.
    pub cpu: f64,
    /// How often a process slept, for each.
    pub sleeps: f64,
    /// The bare cache-line round trip in the same processes, where it was taken.
    pub probe: Option<f64>,
    /// What both sides together did for each message, where it can be counted.
    #[serde(default)]
    pub each: Each,
}

/// Counts per message or round trip, of both sides together: medians over the repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Each {
    /// Involuntary context switches.
    pub preempted: f64,
    /// Page faults that needed no reading.
    pub minor_faults: f64,
    /// Page faults that waited for a device.
    pub major_faults: f64,
    /// Memory allocations.
    pub allocations: f64,
    /// Instructions in user space; absent where the machine does not let them be counted, as what follows.
    pub instructions: Option<f64>,
    /// Branches in user space.
    pub branches: Option<f64>,
    /// Branches that the processor did not foresee.
    pub mispredictions: Option<f64>,
    /// Misses of the first instruction cache.
    pub instruction_misses: Option<f64>,
}

impl Figure {
    /// What came of `work`: the reports of the repetitions that could be taken, and the trouble of one that could not.
    pub fn of(work: Work, repetitions: Vec<Report>, trouble: Option<Trouble>) -> Self {
        let state = match trouble {
            Some(limit) if limit.is_limit() => State::Lacking(limit.to_string()),
            Some(broke) => State::Broken(broke.to_string()),
            None if repetitions.is_empty() => State::NotReached,
            None => disturbance(&repetitions).map_or(State::Measured, State::Disturbed),
        };
        let summary = match state {
            State::Broken(_) | State::Lacking(_) => None,
            _ => Summary::of(&repetitions),
        };
        let calls = traced(&repetitions);
        let mut figure = Self { work, state, summary, repetitions, calls };
        figure.keep_one_curve();
        figure
    }

    /// What the machine lacks for `work`.
    pub fn lacking(work: Work, why: String) -> Self {
        Self { work, state: State::Lacking(why), summary: None, repetitions: Vec::new(), calls: None }
    }

    /// Messages a second.
    pub fn per_second(&self) -> Option<f64> {
        self.summary.map(|summary| summary.per_second)
    }

    /// The repetition with the median time: its distribution is a real one, not one put together.
    pub fn middle(&self) -> Option<&Report> {
        self.repetitions.get(self.middle_index()?)
    }

    fn middle_index(&self) -> Option<usize> {
        let mut sorted: Vec<usize> = (0..self.repetitions.len()).collect();
        sorted.sort_by(|&one, &other| self.repetitions[one].times.p50.total_cmp(&self.repetitions[other].times.p50));
        sorted.get(sorted.len() / 2).copied()
    }

    /// Curves are most of a file, and one for each figure is drawn.
    fn keep_one_curve(&mut self) {
        let middle = self.middle_index();
        for (index, report) in self.repetitions.iter_mut().enumerate() {
            if Some(index) != middle {
                report.curve = Vec::new();
            }
        }
    }
}

/// System calls per message by the tracepoint, if every repetition has them.
fn traced(repetitions: &[Report]) -> Option<Calls> {
    let side = |side: usize| {
        let each = |report: &Report| Some(report.spent[side].calls? as f64 / report.count.max(1) as f64);
        median(&repetitions.iter().map(each).collect::<Option<Vec<f64>>>()?)
    };
    Some(Calls { sides: [side(0)?, side(1)?], how: Counted::Tracepoint })
}

/// What speaks against these repetitions.
fn disturbance(repetitions: &[Report]) -> Option<String> {
    let probes: Vec<f64> = repetitions.iter().flat_map(|report| report.probes.iter().copied()).collect();
    if spread(&probes) > STEADY {
        return Some(format!("the way between the processors changed by a factor of {:.1}", spread(&probes)));
    }
    let foreign = median(&repetitions.iter().filter_map(|report| report.foreign).collect::<Vec<_>>())?;
    (foreign > FOREIGN).then(|| format!("others used {:.0} % of the processors", 100.0 * foreign))
}

impl Summary {
    fn of(repetitions: &[Report]) -> Option<Self> {
        let all = |value: fn(&Report) -> f64| repetitions.iter().map(value).collect::<Vec<f64>>();
        let times = all(|report| report.times.p50);
        let (interval, confidence) = interval(&times)?;
        let probes: Vec<f64> = repetitions.iter().flat_map(|report| report.probes.iter().copied()).collect();
        Some(Self {
            median: median(&times)?,
            interval,
            confidence,
            per_second: median(&all(Report::per_second))?,
            cpu: median(&all(Report::cpu_per_message))?,
            sleeps: median(&all(Report::sleeps_per_message))?,
            probe: median(&probes),
            each: Each::of(repetitions),
        })
    }
}

impl Each {
    fn of(repetitions: &[Report]) -> Self {
        let each = |what: fn(&Spent) -> Option<u64>| {
            let all: Option<Vec<f64>> = repetitions.iter().map(|report| report.per_message(what)).collect();
            all.and_then(|all| median(&all))
        };
        Self {
            preempted: each(|spent| Some(spent.preempted)).unwrap_or_default(),
            minor_faults: each(|spent| Some(spent.minor_faults)).unwrap_or_default(),
            major_faults: each(|spent| Some(spent.major_faults)).unwrap_or_default(),
            allocations: each(|spent| Some(spent.allocations)).unwrap_or_default(),
            instructions: each(|spent| spent.instructions),
            branches: each(|spent| spent.branches),
            mispredictions: each(|spent| spent.mispredictions),
            instruction_misses: each(|spent| spent.instruction_misses),
        }
    }
}

/// Where the median of whatever `values` were drawn from lies: between two of them, the nearest that hold it with 95 %,
/// or the outermost if there are too few for that; with the probability.
///
/// Each value is below the true median with probability one half, so how many are is binomial, whatever the distribution.
pub fn interval(values: &[f64]) -> Option<([f64; 2], f64)> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let count = sorted.len();
    let (first, last) = (*sorted.first()?, *sorted.last()?);
    let mut best = ([first, last], outside(count, 0));
    for out in 1..count / 2 {
        let probability = outside(count, out);
        if probability < 0.95 {
            break;
        }
        best = ([sorted[out], sorted[count - 1 - out]], probability);
    }
    Some(best)
}

/// The probability that no more than `out` of `count` values lie on the far side of an interval that leaves `out` values
/// out on either side.
fn outside(count: usize, out: usize) -> f64 {
    let mut term = 0.5f64.powi(count as i32);
    let mut tail = term;
    for index in 0..out {
        term *= (count - index) as f64 / (index + 1) as f64;
        tail += term;
    }
    (1.0 - 2.0 * tail).max(0.0)
}

#[cfg(test)]
mod tests {
    use super::{Figure, State, interval};
    use crate::mechanism::Mechanism;
    use crate::pair::placement::Placement;
    use crate::trouble::Trouble;
    use crate::work::{Report, Wait, Work};

    fn report(p50: f64) -> Report {
        let mut report = Report { count: 10, elapsed: 10 * p50 as u64, ..Report::default() };
        report.times.p50 = p50;
        report
    }

    fn work() -> Work {
        Work::round_trip(Mechanism::PIPE, 64, Wait::Block, Placement::Free)
    }

    #[test]
    fn an_interval_is_as_sure_as_it_says() {
        assert_eq!(interval(&[]), None);
        assert_eq!(interval(&[3.0]), Some(([3.0, 3.0], 0.0)));
        // Five values all on one side of the median: 2 * (1/2)^5.
        assert_eq!(interval(&[5.0, 1.0, 2.0, 4.0, 3.0]), Some(([1.0, 5.0], 0.9375)));
        let twenty: Vec<f64> = (1..=20).map(f64::from).collect();
        let (range, sure) = interval(&twenty).unwrap();
        assert_eq!(range, [6.0, 15.0]);
        assert!((sure - 0.9586).abs() < 1e-3, "{sure}");
    }

    #[test]
    fn the_middle_report_is_a_real_one() {
        let figure = Figure::of(work(), [30.0, 10.0, 20.0].map(report).to_vec(), None);
        assert_eq!(figure.state, State::Measured);
        assert_eq!(figure.middle().unwrap().times.p50, 20.0);
        assert_eq!(figure.summary.unwrap().median, 20.0);
    }

    #[test]
    fn what_broke_once_has_no_figure() {
        let trouble = Trouble::new("message 7 came where message 6 was due");
        let figure = Figure::of(work(), vec![report(10.0)], Some(trouble));
        assert!(matches!(figure.state, State::Broken(_)));
        assert_eq!(figure.summary, None);
        let limited = Figure::of(work(), vec![report(10.0)], Some(Trouble::limit("no room")));
        assert_eq!((limited.state, limited.summary), (State::Lacking("no room".to_owned()), None));
        assert_eq!(Figure::of(work(), Vec::new(), None).state, State::NotReached);
    }

    #[test]
    fn disturbances_are_said() {
        let mut moved = report(10.0);
        moved.probes = vec![100.0, 400.0];
        assert!(matches!(Figure::of(work(), vec![moved], None).state, State::Disturbed(_)));
        let mut crowded = report(10.0);
        crowded.foreign = Some(0.5);
        assert!(matches!(Figure::of(work(), vec![crowded], None).state, State::Disturbed(_)));
    }
}
