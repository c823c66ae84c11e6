//! The common and the different traits of figures: manner, size, wait strategy and placement. A *manner* is a shape
//! of work with its parameters.
//!
//! The manner comes from the names and parameters of a shape in the results, so the page shows a new shape without a
//! change here. [`Manner::title`] has better words for some shapes.

use std::collections::BTreeMap;

use serde_json::Value;
use strait_lab::results::figure::interval;
use strait_lab::results::{Figure, Results, State};
use strait_lab::stats::{bytes, median};
use strait_lab::work::Report;
use strait_lab::{Mechanism, Wait, Work};

use crate::looks;

/// A results file with its name.
#[derive(Clone, Debug)]
pub struct Source {
    /// The name of the file.
    pub name: String,
    /// The contents of the file.
    pub results: Results,
}

/// The wait strategy and the processors of a measurement. Figures with different conditions are never in one column
/// or on one plot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) wait: Wait,
    pub(crate) placement: &'static str,
}

impl Condition {
    pub(crate) fn of(work: &Work) -> Self {
        Self { wait: work.wait, placement: work.placement.name() }
    }

    /// Returns a sort key for conditions: spinning before blocking, unpinned first.
    pub(crate) fn rank(self) -> (u8, u8) {
        let wait = match self.wait {
            Wait::Spin => 0,
            Wait::Adaptive => 1,
            Wait::Block => 2,
        };
        let placement = match self.placement {
            "unpinned" => 0,
            "two cores" => 1,
            _ => 2,
        };
        (wait, placement)
    }

    pub(crate) fn words(self) -> String {
        format!("{}, {}", self.wait.name(), self.placement)
    }
}

/// A shape of work, with parameters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Manner {
    pub(crate) kind: String,
    /// The numeric parameters, by name.
    pub(crate) numbers: BTreeMap<String, u64>,
    /// All other parameters by name, with the values as text.
    pub(crate) others: BTreeMap<String, String>,
}

impl Manner {
    pub(crate) fn of(work: &Work) -> Self {
        let mut manner = Self { kind: String::new(), numbers: BTreeMap::new(), others: BTreeMap::new() };
        let Ok(Value::Object(fields)) = serde_json::to_value(work.shape) else { return manner };
        for (name, value) in fields {
            match (name.as_str(), value) {
                ("kind", Value::String(kind)) => manner.kind = kind,
                (_, Value::Null) => {}
                // A reply as large as the message is the default, and not shown.
                ("reply", Value::Number(reply)) if reply.as_u64() == Some(work.size as u64) => {}
                ("reply", Value::Number(reply)) => {
                    manner.others.insert("reply".to_owned(), bytes(reply.as_u64().unwrap_or(0) as usize));
                }
                (_, Value::Number(number)) => {
                    manner.numbers.insert(name, number.as_u64().unwrap_or(0));
                }
                (_, Value::String(words)) => {
                    manner.others.insert(name, words);
                }
                (_, other) => {
                    manner.others.insert(name, other.to_string());
                }
            }
        }
        manner
    }

    /// Returns the manner without the parameter `number`, for plots with `number` on an axis.
    pub(crate) fn without(&self, number: &str) -> Self {
        let mut manner = self.clone();
        manner.numbers.remove(number);
        manner
    }

    /// Returns the title of this manner above a plot.
    pub(crate) fn title(&self) -> String {
        let kind = match self.kind.as_str() {
            "ping-pong" => "Round trips, one at a time",
            "stream" => "One way, as fast as it goes",
            "in-place" => "Filled and read in place",
            "idle" => "Waiting for nothing",
            "open-loop" | "paced" => "Open loop",
            "out-of-line" => "Out of line",
            "hop" => "Round trips with a hop to another thread on receiving",
            "mix" => "Chrome's mix of sizes",
            "vectored" => "Gathered from several places",
            "fidl" => "FIDL messages with a vector",
            "coded" => "Values in memory",
            "descriptors" => "With descriptors",
            "producers" => "Several producers",
            "fan-out" => "One to several",
            "connect" => "Connecting, and the first message",
            "wake" => "The first message after a silence",
            other => other,
        };
        let numbers = self.numbers.iter().filter(|&(name, &value)| !(name == "batch" && value == 1));
        let numbers = numbers.map(|(name, value)| match name.as_str() {
            "batch" => format!("{value} in a call"),
            "load" => format!("at {value} % of capacity"),
            "rate" => format!("at {value} messages a second"),
            "parts" => format!("{value} pieces"),
            "after" => format!("after {value} ms"),
            "count" => value.to_string(),
            name => format!("{} {value}", name.replace('_', " ")),
        });
        let others = self.others.iter().map(|(name, value)| match (name.as_str(), value.as_str()) {
            ("reply", size) => format!("answered with {size}"),
            ("stream", "true") => "one way".to_owned(),
            ("stream", "false") => "there and back".to_owned(),
            ("direct", "true") => "sent without one".to_owned(),
            ("direct", "false") => "sent with one".to_owned(),
            ("linear", "true") => "put together first".to_owned(),
            ("linear", "false") => "as they lie".to_owned(),
            ("cold", "false") => "warm".to_owned(),
            ("touched", "false") => "untouched".to_owned(),
            ("shared", "true") => "through one end".to_owned(),
            ("shared", "false") => "each through its own".to_owned(),
            (name, "true") => name.replace('_', " "),
            (name, "false") => format!("not {}", name.replace('_', " ")),
            (name, value) => format!("{} {value}", name.replace('_', " ")),
        });
        let details: Vec<String> = numbers.chain(others).collect();
        if details.is_empty() { kind.to_owned() } else { format!("{kind} ({})", details.join(", ")) }
    }

    /// Returns the name of the measured time, for an axis.
    pub(crate) fn quantity(&self) -> &'static str {
        match self.kind.as_str() {
            "ping-pong" | "hop" => "round trip",
            "stream" | "producers" | "fan-out" => "time for each message",
            "in-place" => "commit to first byte",
            "open-loop" | "paced" => "from the intended sending",
            _ => "time",
        }
    }
}

/// A figure with everything for tables and plots.
#[derive(Clone, Debug)]
pub(crate) struct Case<'a> {
    /// The index of the results file of the figure.
    pub(crate) source: usize,
    pub(crate) figure: &'a Figure,
    pub(crate) manner: Manner,
    pub(crate) condition: Condition,
}

impl<'a> Case<'a> {
    pub(crate) fn all(sources: &'a [Source]) -> Vec<Self> {
        let all = sources.iter().enumerate().flat_map(|(source, file)| {
            file.results.figures.iter().map(move |figure| Self {
                source,
                figure,
                manner: Manner::of(&figure.work),
                condition: Condition::of(&figure.work),
            })
        });
        all.collect()
    }

    pub(crate) fn mechanism(&self) -> Mechanism {
        self.figure.work.mechanism
    }

    pub(crate) fn size(&self) -> usize {
        self.figure.work.size
    }

    pub(crate) fn is_doubtful(&self) -> bool {
        matches!(self.figure.state, State::Disturbed(_))
    }

    /// Returns whether the two figures are from one run and differ only in the mechanism.
    pub(crate) fn is_compared_with(&self, other: &Self) -> bool {
        self.source == other.source && self.figure.work.is_compared_with(&other.figure.work)
    }

    /// Returns the distribution of the middle repetition: pairs of a fraction of all messages and the time within
    /// which that fraction was done.
    ///
    /// If the file has a finer distribution, the curve comes from it, otherwise from the summary. `quantiles` are the
    /// fractions of the finer distribution.
    pub(crate) fn curve(&self, quantiles: &[f64]) -> Vec<(f64, f64)> {
        let Some(report) = self.figure.middle() else { return Vec::new() };
        let fine = numbers(&serde_json::to_value(report).unwrap_or_default()["curve"]);
        if !fine.is_empty() && fine.len() == quantiles.len() {
            // The lower half of the curve is flat, and its last hundredth is useless.
            let pairs = quantiles.iter().copied().zip(fine);
            return pairs.filter(|&(at, _)| at >= 0.5 || at == 0.0 || at == 0.1 || at == 0.25).collect();
        }
        let times = report.times;
        let values = [times.min, times.p50, times.p90, times.p98, times.p99, times.p999, times.p9999];
        [0.0, 0.5, 0.9, 0.98, 0.99, 0.999, 0.9999].into_iter().zip(values).collect()
    }

    /// Returns the further counts of the figure, by name: counts for each message, and results of the shape of work.
    pub(crate) fn counts(&self) -> Vec<(String, f64)> {
        let mut out = Vec::new();
        let figure = serde_json::to_value(self.figure.summary).unwrap_or_default();
        let found = self.figure.middle().map(|report| serde_json::to_value(&report.found).unwrap_or_default());
        for object in [Some(figure["each"].clone()), found] {
            let Some(Value::Object(object)) = object else { continue };
            let counted =
                object.into_iter().filter_map(|(name, value)| Some((name.replace('_', " "), value.as_f64()?)));
            // A value that the page would show as 0 is left out.
            out.extend(counted.filter(|(_, value)| value.abs() >= 0.005));
        }
        out
    }

    /// Returns a further result of the shape by its name: the median of the repetitions. `None` if no repetition has
    /// the result, or if it is not positive.
    pub(crate) fn found(&self, name: &str) -> Option<f64> {
        let all: Vec<f64> =
            self.figure.repetitions.iter().filter_map(|report| report.found.get(name).copied()).collect();
        median(&all).filter(|value| value.is_finite() && *value > 0.0)
    }

    /// Returns one metric of the figure, with the interval of its true median. `None` if the figure has no positive
    /// value for the metric.
    pub(crate) fn value(&self, what: Metric) -> Option<Value1> {
        let summary = self.figure.summary?;
        let values: Vec<f64> = self.figure.repetitions.iter().map(|report| what.of(report)).collect();
        let (interval, sure) = interval(&values)?;
        let value = match what {
            Metric::Median => Value1 { value: summary.median, interval: summary.interval, sure: summary.confidence },
            _ => Value1 { value: median(&values)?, interval, sure },
        };
        (value.value.is_finite() && value.value > 0.0).then_some(value)
    }
}

/// Returns the numbers of a JSON array; an empty list if `value` is no array.
fn numbers(value: &Value) -> Vec<f64> {
    value.as_array().map_or(Vec::new(), |all| all.iter().filter_map(Value::as_f64).collect())
}

/// Returns the fractions of the curves in a file; empty if the file has no curves.
pub(crate) fn quantiles(source: &Source) -> Vec<f64> {
    let without = Results { figures: Vec::new(), ..source.results.clone() };
    numbers(&serde_json::to_value(without).unwrap_or_default()["quantiles"])
}

/// A value measured over several repetitions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value1 {
    pub(crate) value: f64,
    /// The interval that contains the true median with the probability `sure`.
    pub(crate) interval: [f64; 2],
    pub(crate) sure: f64,
}

/// A metric of a figure, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Metric {
    Median,
    P98,
    P99,
    Cpu,
    /// The time from one message to the next: the inverse of the rate.
    Pace,
}

impl Metric {
    pub(crate) fn of(self, report: &Report) -> f64 {
        match self {
            Self::Median => report.times.p50,
            Self::P98 => report.times.p98,
            Self::P99 => report.times.p99,
            Self::Cpu => report.cpu_per_message(),
            Self::Pace => report.per_second().map_or(0.0, |rate| 1e9 / rate),
        }
    }

    pub(crate) fn words(self) -> &'static str {
        match self {
            Self::Median => "median time",
            Self::P98 => "98th percentile",
            Self::P99 => "99th percentile",
            Self::Cpu => "processor time",
            Self::Pace => "time for each",
        }
    }
}

/// Returns the different values, in the order in which they first appear.
pub(crate) fn distinct<T: PartialEq>(values: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut out: Vec<T> = Vec::new();
    for value in values {
        if !out.contains(&value) {
            out.push(value);
        }
    }
    out
}

/// Returns the conditions of these cases, in the order of their rank.
pub(crate) fn conditions<'a>(cases: impl IntoIterator<Item = &'a Case<'a>>) -> Vec<Condition> {
    let mut all = distinct(cases.into_iter().map(|case| case.condition));
    all.sort_by_key(|condition| condition.rank());
    all
}

/// Returns the mechanisms of these cases, Strait first.
pub(crate) fn mechanisms<'a>(cases: impl IntoIterator<Item = &'a Case<'a>>) -> Vec<Mechanism> {
    let mut all = distinct(cases.into_iter().map(Case::mechanism));
    all.sort_by_key(|&mechanism| looks::order(mechanism));
    all
}
