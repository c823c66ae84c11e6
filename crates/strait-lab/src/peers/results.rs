//! The results of the programs.

use serde::{Deserialize, Serialize};

use super::program::{Outcome, Program};
use super::row::{Form, Row, Spot};
use crate::machine::Machine;
use crate::results::figure::{FOREIGN, STEADY};
use crate::stats::{median, range};

/// The figures of one run of a program. Times are in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Run {
    /// The number of round trips or messages.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<f64>,
    /// The mean time of a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean: Option<f64>,
    /// The median time of a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<f64>,
    /// The time that 99 % of the round trips do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<f64>,
    /// The time that 99.9 % of the round trips do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p999: Option<f64>,
    /// The longest time of a round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max: Option<f64>,
    /// The processor time of both sides for a round trip or message.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// The number of messages that arrived in a second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_second: Option<f64>,
    /// The number of messages of a stream that did not arrive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// The time from the start of connecting to the first reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub connect: Option<f64>,
    /// The seconds for which two processes were idle.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// How often a thread of the two idle processes went to sleep.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<f64>,
    /// The processor time of the two idle processes, in the kernel's ticks of 10 ms.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_ticks: Option<f64>,
    /// The threads of both processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub threads: Option<f64>,
    /// The open descriptors of both processes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub descriptors: Option<f64>,
    /// The memory of both processes, shared pages in part, in KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pss_kib: Option<f64>,
    /// The time from SIGKILL of the server to the client's error.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub noticed: Option<f64>,
    /// The time in milliseconds within which a client noticed nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_noticed_within_ms: Option<f64>,
    /// The share of all processors' time that other processes used during the run, from 0 to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub foreign: Option<f64>,
    /// The round trip of a bare cache line between the two processors, just before the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<f64>,
    /// Why the library does not offer the row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacking: Option<String>,
}

/// A library in a row, form and placement.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    /// The name of the program without `peer-`.
    pub program: String,
    /// The name of the library.
    pub title: String,
    /// A description of the program's use of the library.
    pub does: String,
    /// How the library is used.
    pub form: Form,
    /// The measured row.
    pub row: Row,
    /// Where the processes run.
    pub spot: Spot,
    /// The runs, in order.
    pub runs: Vec<Run>,
    /// Why there is no figure: the library does not offer the row.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lacking: Option<String>,
    /// The error of the program in each failed run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<String>,
}

/// The number of failed runs after which a program is no longer run in its row.
const PATIENCE: usize = 2;

impl Figure {
    pub(super) fn new(program: &Program, form: Form, row: Row, spot: Spot) -> Self {
        let does = match form {
            Form::Default => program.default.clone(),
            Form::Tuned => program.tuned.clone().unwrap_or_default(),
        };
        let lacking = (form == Form::Tuned && program.tuned.is_none())
            .then(|| "its documentation advises nothing else".to_owned());
        let (program, title) = (program.name.clone(), program.title.clone());
        Self { program, title, does, form, row, spot, runs: Vec::new(), lacking, failed: Vec::new() }
    }

    /// Whether further runs would show nothing new. If a client did not notice a death, it will not notice the next
    /// death.
    pub(super) fn is_settled(&self) -> bool {
        let deaf = self.runs.iter().any(|run| run.not_noticed_within_ms.is_some());
        deaf || self.lacking.is_some() || self.failed.len() >= PATIENCE || self.runs.len() >= self.row.most_runs()
    }

    /// Whether the program was run at least once, or does not offer the row.
    pub fn is_reached(&self) -> bool {
        self.lacking.is_some() || !self.runs.is_empty() || !self.failed.is_empty()
    }

    /// Returns why the figure is marked as disturbed, if it is.
    pub fn disturbance(&self) -> Option<String> {
        let share = self.median(|run| run.foreign).filter(|share| *share > FOREIGN)?;
        Some(format!("others used {:.0} % of the processors", 100.0 * share))
    }

    /// Returns the medians of one field in the runs between near and between far processors, if the runs were of both
    /// kinds. `border` is the longest cache-line round trip that counts as near.
    pub fn near_and_far(&self, border: f64, field: fn(&Run) -> Option<f64>) -> Option<[f64; 2]> {
        if !self.row.feels_distance(self.spot) {
            return None;
        }
        let of = |near: bool| {
            let runs = self.runs.iter().filter(|run| run.probe.is_some_and(|probe| (probe <= border) == near));
            median(&runs.filter_map(field).collect::<Vec<_>>())
        };
        Some([of(true)?, of(false)?])
    }

    pub(super) fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Measured(run) => self.runs.push(*run),
            Outcome::Lacking(why) => self.lacking = Some(why),
            Outcome::Failed(why) => self.failed.push(why),
        }
    }

    /// Describes the figure in a line.
    pub fn words(&self) -> String {
        format!("{}, {}: {}, {}", self.title, self.form.name(), self.row.words(), self.spot.words())
    }

    /// Whether the row is a floor, and no product.
    pub fn is_floor(&self) -> bool {
        self.title.starts_with("floor")
    }

    /// Returns the values of one field of all runs.
    pub fn values(&self, field: fn(&Run) -> Option<f64>) -> Vec<f64> {
        self.runs.iter().filter_map(field).collect()
    }

    /// Returns the median of one field over all runs.
    pub fn median(&self, field: fn(&Run) -> Option<f64>) -> Option<f64> {
        median(&self.values(field))
    }

    /// Returns the lower and the upper quartile of one field over all runs.
    pub fn quartiles(&self, field: fn(&Run) -> Option<f64>) -> Option<[f64; 2]> {
        let mut values = self.values(field);
        values.sort_by(f64::total_cmp);
        let last = values.len().checked_sub(1)?;
        Some([values[last / 4], values[last - last / 4]])
    }

    /// Returns the figure by which the libraries of a row are ordered, the smaller the better: the median time, for a
    /// stream the time for each message, for idle processes the processor time, and then the number of wake-ups.
    pub fn rank(&self) -> Option<f64> {
        match self.row {
            Row::Stream(_) => self.median(|run| run.per_second).map(|rate| 1e9 / rate),
            // A process that polls without end never wakes up: each of its ticks counts as many wake-ups.
            Row::Idle => self
                .median(|run| run.sleeps)
                .map(|sleeps| sleeps + 1e6 * self.median(|run| run.cpu_ticks).unwrap_or(0.0)),
            Row::Death => self.median(|run| run.noticed),
            _ => self.median(|run| run.p50),
        }
    }
}

/// All figures of one run of the comparison.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeerResults {
    /// The machine.
    pub machine: Machine,
    /// The number of repetitions that were asked for.
    pub repetitions: usize,
    /// The time of one measurement in milliseconds.
    pub milliseconds: u64,
    /// The seed of the order.
    pub seed: u64,
    /// Whether every repetition was made.
    pub complete: bool,
    /// The duration of the whole run in seconds.
    #[serde(default)]
    pub seconds: f64,
    /// When the run began, in seconds since 1970.
    #[serde(default)]
    pub began: u64,
    /// The commit of the measured programs, as named by the caller; with `-dirty` behind it if their sources differed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The figures.
    pub figures: Vec<Figure>,
}

impl PeerResults {
    /// Returns the groups of figures, a group for each table, in the requested order.
    pub fn groups(&self) -> Vec<(Form, Row, Spot)> {
        let mut groups = Vec::new();
        for figure in &self.figures {
            let key = (figure.form, figure.row, figure.spot);
            if !groups.contains(&key) {
                groups.push(key);
            }
        }
        groups
    }

    /// Returns the measured figures of a group, the best first.
    pub fn ranked(&self, (form, row, spot): (Form, Row, Spot)) -> Vec<&Figure> {
        let of_group = |figure: &&Figure| (figure.form, figure.row, figure.spot) == (form, row, spot);
        let mut figures: Vec<&Figure> =
            self.figures.iter().filter(of_group).filter(|figure| !figure.runs.is_empty()).collect();
        let rank = |figure: &Figure| figure.rank().unwrap_or(f64::INFINITY);
        figures.sort_by(|a, b| rank(a).total_cmp(&rank(b)));
        figures
    }

    /// Returns the greatest number of runs of any figure.
    pub fn runs(&self) -> usize {
        self.figures.iter().map(|figure| figure.runs.len()).max().unwrap_or_default()
    }

    /// Returns the shortest and the longest round trip of a bare cache line between the two processors, over all runs.
    pub fn distances(&self) -> Option<[f64; 2]> {
        let probes = self.figures.iter().flat_map(|figure| figure.values(|run| run.probe));
        range(&probes.collect::<Vec<_>>())
    }

    /// Returns the longest cache-line round trip between processors that count as near each other. `None` if the
    /// distance did not change.
    pub fn border(&self) -> Option<f64> {
        let [near, far] = self.distances()?;
        (far > STEADY * near).then_some(STEADY * near)
    }

    /// Returns the ratio to Strait's figure, and whether either of the two is disturbed.
    pub fn marked_ratio(&self, figure: &Figure, field: fn(&Run) -> Option<f64>) -> Option<(f64, bool)> {
        let strait = self.strait_beside(figure)?;
        let disturbed = strait.disturbance().is_some() || figure.disturbance().is_some();
        Some((self.ratio(figure, field)?, disturbed))
    }

    /// Returns Strait's figure in the group of `figure`.
    fn strait_beside(&self, figure: &Figure) -> Option<&Figure> {
        self.figures.iter().find(|other| {
            other.program == "strait" && (other.form, other.row, other.spot) == (figure.form, figure.row, figure.spot)
        })
    }

    /// Returns the median over the repetitions of the ratio of a figure to Strait's in the same repetition.
    ///
    /// Repetitions are paired by their number; a failed run of either shifts the pairs, so a figure with failed runs
    /// has no ratio.
    pub fn ratio(&self, figure: &Figure, field: fn(&Run) -> Option<f64>) -> Option<f64> {
        let strait = self.strait_beside(figure)?;
        if !strait.failed.is_empty() || !figure.failed.is_empty() {
            return None;
        }
        let (own, others) = (strait.values(field), figure.values(field));
        let ratios: Vec<f64> = own.iter().zip(others).map(|(own, other)| other / own).collect();
        median(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::{Figure, PeerResults, Run};
    use crate::machine::Machine;
    use crate::peers::{Form, Row, Spot};

    fn figure(row: Row, spot: Spot, runs: Vec<Run>) -> Figure {
        let (program, title, does) = ("strait".to_owned(), "Strait".to_owned(), String::new());
        Figure { program, title, does, form: Form::Default, row, spot, runs, lacking: None, failed: Vec::new() }
    }

    fn run(p50: f64, probe: f64, foreign: f64) -> Run {
        Run { p50: Some(p50), probe: Some(probe), foreign: Some(foreign), ..Run::default() }
    }

    #[test]
    fn a_figure_is_disturbed_if_most_of_its_runs_were() {
        let row = Row::RoundTrip(64);
        let of = |shares: [f64; 3]| {
            figure(row, Spot::Free, shares.map(|share| run(1.0, 100.0, share)).to_vec()).disturbance()
        };
        assert_eq!(of([0.0, 0.9, 0.1]), None);
        assert_eq!(of([0.4, 0.9, 0.1]).as_deref(), Some("others used 40 % of the processors"));
    }

    #[test]
    fn an_idle_process_that_polls_is_behind_one_that_sleeps() {
        let idle = |sleeps: f64, cpu_ticks: f64| {
            let run = Run { sleeps: Some(sleeps), cpu_ticks: Some(cpu_ticks), ..Run::default() };
            figure(Row::Idle, Spot::Free, vec![run]).rank().unwrap()
        };
        assert!(idle(0.0, 0.0) < idle(5.0, 0.0) && idle(5.0, 0.0) < idle(0.0, 200.0));
    }

    #[test]
    fn runs_between_near_and_far_processors_are_told_apart() {
        let runs = vec![run(200.0, 100.0, 0.0), run(220.0, 110.0, 0.0), run(500.0, 390.0, 0.0)];
        let results = |spot: Spot| PeerResults {
            machine: Machine::default(),
            repetitions: 3,
            milliseconds: 1,
            seed: 0,
            complete: true,
            seconds: 1.0,
            began: 0,
            commit: None,
            figures: vec![figure(Row::RoundTrip(64), spot, runs.clone())],
        };
        let two = results(Spot::Two);
        let border = two.border().unwrap();
        assert_eq!(two.figures[0].near_and_far(border, |run| run.p50), Some([210.0, 500.0]));
        assert_eq!(results(Spot::Same).figures[0].near_and_far(border, |run| run.p50), None);
    }
}
