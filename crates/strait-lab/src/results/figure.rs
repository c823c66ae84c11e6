//! A figure: a work, the report of each repetition, and how reliable the figure is.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{median, spread};
use crate::trouble::Trouble;
use crate::work::{Calls, Counted, Report, Spent, Work};

/// The factor by which the probes of a figure may differ before the figure is marked as disturbed.
pub const STEADY: f64 = 1.5;

/// The share of all processors' time that other processes may use during a run before the figure is marked as
/// disturbed.
pub const FOREIGN: f64 = 0.15;

/// A work with its results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Figure {
    /// The work that was measured.
    pub work: Work,
    /// How reliable the figure is.
    pub state: State,
    /// The medians over the repetitions, if there are any.
    pub summary: Option<Summary>,
    /// The report of each repetition.
    pub repetitions: Vec<Report>,
    /// System calls for each message, if the suite asks for them and they can be counted here.
    #[serde(default)]
    pub calls: Option<Calls>,
}

/// How reliable a figure is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(tag = "state", content = "why", rename_all = "kebab-case")]
pub enum State {
    /// No problem is known.
    Measured,
    /// Other processes used too much processor time meanwhile, or the distance between the processors changed. The
    /// text says which.
    Disturbed(String),
    /// A message was lost or wrong, a process died, or a call failed; the text says which. There is no figure,
    /// whatever the other repetitions found.
    Broken(String),
    /// This machine does not support the mechanism, or the mechanism met a known limit; the text has the reason.
    /// There is no figure, and no failure either.
    Lacking(String),
    /// The suite was stopped before this work was measured.
    NotReached,
}

/// The medians over the repetitions of a figure. Times are in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Summary {
    /// The median over the repetitions of their median times.
    pub median: f64,
    /// The interval that contains the true median with the probability `confidence`, by the order of the repetitions.
    pub interval: [f64; 2],
    /// The probability for `interval`, from 0 to 1.
    pub confidence: f64,
    /// Messages or round trips per second; absent if no time was measured, as in the shape `idle`.
    pub per_second: Option<f64>,
    /// Processor time of all processes for each message or round trip, in nanoseconds.
    pub cpu: f64,
    /// How often a process slept for each message or round trip.
    pub sleeps: f64,
    /// The bare cache-line round trip in the same processes, in nanoseconds, if it was measured.
    pub probe: Option<f64>,
    /// Other counts of both sides for each message or round trip.
    #[serde(default)]
    pub each: Each,
}

/// Counts for each message or round trip, of both sides together: medians over the repetitions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct Each {
    /// Involuntary context switches.
    pub preempted: f64,
    /// Page faults without reading from a device.
    pub minor_faults: f64,
    /// Page faults that waited for a device.
    pub major_faults: f64,
    /// Memory allocations.
    pub allocations: f64,
    /// Instructions in user space; absent if this machine cannot count them.
    pub instructions: Option<f64>,
    /// Branches in user space; absent if this machine cannot count them.
    pub branches: Option<f64>,
    /// Mispredicted branches in user space; absent if this machine cannot count them.
    pub mispredictions: Option<f64>,
    /// Misses of the first-level instruction cache; absent if this machine cannot count them.
    pub instruction_misses: Option<f64>,
}

impl Figure {
    /// Builds the figure of `work` from the reports of the completed repetitions, and the error of the repetition
    /// that failed, if one did.
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

    /// Returns the figure of a work that this machine cannot measure, with the reason.
    pub fn lacking(work: Work, why: String) -> Self {
        Self { work, state: State::Lacking(why), summary: None, repetitions: Vec::new(), calls: None }
    }

    /// Returns the number of messages or round trips per second.
    pub fn per_second(&self) -> Option<f64> {
        self.summary?.per_second
    }

    /// Returns how often the idle receiver woke: the median over the repetitions. `None` in all shapes but `idle`.
    pub fn wake_ups(&self) -> Option<f64> {
        median(&self.repetitions.iter().filter_map(|report| Some(report.wake_ups? as f64)).collect::<Vec<_>>())
    }

    /// Returns the repetition with the median time. Its distribution is a real one, not a composite.
    pub fn middle(&self) -> Option<&Report> {
        self.repetitions.get(self.middle_index()?)
    }

    fn middle_index(&self) -> Option<usize> {
        let mut sorted: Vec<usize> = (0..self.repetitions.len()).collect();
        sorted.sort_by(|&one, &other| self.repetitions[one].times.p50.total_cmp(&self.repetitions[other].times.p50));
        sorted.get(sorted.len() / 2).copied()
    }

    /// Removes the curves of all repetitions but the one with the median time, since curves take most of a file and
    /// only one of each figure is drawn.
    fn keep_one_curve(&mut self) {
        let middle = self.middle_index();
        for (index, report) in self.repetitions.iter_mut().enumerate() {
            if Some(index) != middle {
                report.curve = Vec::new();
            }
        }
    }
}

/// Returns the system calls for each message as the kernel's tracepoint counted them, if every repetition has them.
fn traced(repetitions: &[Report]) -> Option<Calls> {
    let side = |side: usize| {
        let each = |report: &Report| Some(report.spent[side].calls? as f64 / report.count.max(1) as f64);
        median(&repetitions.iter().map(each).collect::<Option<Vec<f64>>>()?)
    };
    Some(Calls { sides: [side(0)?, side(1)?], how: Counted::Tracepoint })
}

/// Returns why these repetitions are marked as disturbed, if they are.
fn disturbance(repetitions: &[Report]) -> Option<String> {
    let probes: Vec<f64> = repetitions.iter().flat_map(|report| report.probes.iter().copied()).collect();
    if spread(&probes) > STEADY {
        return Some(format!("the round trip between the processors changed by a factor of {:.1}", spread(&probes)));
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
        let rates: Option<Vec<f64>> = repetitions.iter().map(Report::per_second).collect();
        Some(Self {
            median: median(&times)?,
            interval,
            confidence,
            per_second: rates.and_then(|rates| median(&rates)),
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

/// Returns an interval for the median of the distribution from which `values` were drawn, with the probability that
/// the interval contains this median.
///
/// The interval lies between two of the values: the narrowest pair that contains the median with 95 %, or, if there
/// are too few values, the outermost pair. `None` if `values` is empty.
///
/// Each value is below the true median with a probability of one half. So the number of values below the median has a
/// binomial distribution, whatever the distribution of the values.
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

/// Returns the probability that an interval contains the median, if the interval leaves out the `out` least and the
/// `out` greatest of `count` values.
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
    use crate::placement::Placement;
    use crate::trouble::Trouble;
    use crate::work::{Mechanism, Report, Wait, Work};

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
        // The median is missed if all five values lie on one side of it: 2 * (1/2)^5.
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
