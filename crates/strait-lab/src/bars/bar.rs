//! A bar, a row with a target, and the table of a suite of bars.

use serde::Serialize;

use crate::stats::{digits, median, range, time};
use crate::table;

/// The text of a table cell without a figure.
const NOTHING: &str = "–";

/// Whether the limit of a bar is an upper or a lower one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sense {
    /// The ratio or the count must not be greater than the limit.
    AtMost,
    /// The ratio or the count must not be less than the limit.
    AtLeast,
}

/// One row of a suite with targets.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// The work that was measured.
    pub work: String,
    /// The figure for the work: the median over the repetitions, or the worst repetition for a count.
    pub value: Option<f64>,
    /// The unit of `value` and `reference_value`.
    pub unit: String,
    /// The description of the reference: the bare means with which the work is compared.
    pub reference: String,
    /// The figure for the reference: the median over the repetitions.
    pub reference_value: Option<f64>,
    /// The median of the ratios of value and reference, each computed within one repetition; none for a count.
    pub ratio: Option<f64>,
    /// The least and the greatest of the ratios.
    pub ratio_range: Option<[f64; 2]>,
    /// The 90th and the 99th percentile of the times whose median `value` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_p99: Option<[f64; 2]>,
    /// Processor time of all processes for each message or round trip of `value`, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// The limit for the ratio or the count: the target. None for a figure without a target.
    pub bar: Option<f64>,
    /// Whether the limit is an upper or a lower one.
    pub sense: Sense,
    /// Whether the figure keeps to the limit; none if it could not be measured here or has no limit.
    pub holds: Option<bool>,
    /// The number of repetitions that were measured.
    pub repetitions: usize,
    /// The round trip of two empty flag lines in the same processes, in nanoseconds, if it was measured: how close
    /// the two processors were at that moment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<f64>,
    /// A remark about the figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Bar {
    /// Returns a row with the limit `bar`, and nothing measured yet.
    pub fn new(work: &str, unit: &str, reference: &str, sense: Sense, bar: f64) -> Self {
        Self { sense, bar: Some(bar), ..Self::told(work, unit, reference) }
    }

    /// Returns a row without a limit, and nothing measured yet.
    pub fn told(work: &str, unit: &str, reference: &str) -> Self {
        Self {
            work: work.to_owned(),
            value: None,
            unit: unit.to_owned(),
            reference: reference.to_owned(),
            reference_value: None,
            ratio: None,
            ratio_range: None,
            p90_p99: None,
            cpu: None,
            bar: None,
            sense: Sense::AtMost,
            holds: None,
            repetitions: 0,
            probe: None,
            note: None,
        }
    }

    /// Fills in the figures of a row: `(value, reference value)` of each repetition.
    pub fn compared(mut self, pairs: &[(f64, f64)]) -> Self {
        let values: Vec<_> = pairs.iter().map(|pair| pair.0).collect();
        let references: Vec<_> = pairs.iter().map(|pair| pair.1).collect();
        let ratios: Vec<_> = pairs.iter().map(|pair| pair.0 / pair.1).collect();
        self.value = median(&values);
        self.reference_value = median(&references);
        self.ratio = median(&ratios);
        self.ratio_range = range(&ratios);
        self.holds = self.ratio.and_then(|ratio| self.keeps(ratio));
        self.repetitions = pairs.len();
        self
    }

    /// Fills in the counts of a row, one of each repetition. A count that must be zero must be zero in every
    /// repetition, so the worst repetition is judged.
    pub fn counted(mut self, counts: &[f64]) -> Self {
        let worst = range(counts).map(|[least, greatest]| match self.sense {
            Sense::AtMost => greatest,
            Sense::AtLeast => least,
        });
        self.value = worst;
        self.reference_value = Some(0.0);
        self.holds = worst.and_then(|worst| self.keeps(worst));
        self.repetitions = counts.len();
        self
    }

    /// Fills in the values of a row without a reference, one of each repetition. Their median is compared with the
    /// limit, if any.
    pub fn found(mut self, values: &[f64]) -> Self {
        self.value = median(values);
        self.holds = self.value.and_then(|value| self.keeps(value));
        self.repetitions = values.len();
        self
    }

    /// Fills in the 90th and the 99th percentile of the times in each repetition.
    pub fn spread_over(mut self, repetitions: &[[f64; 2]]) -> Self {
        let middle = |index: usize| median(&repetitions.iter().map(|spread| spread[index]).collect::<Vec<_>>());
        self.p90_p99 = middle(0).zip(middle(1)).map(|(p90, p99)| [p90, p99]);
        self
    }

    /// Fills in the processor time in each repetition.
    pub fn costing(mut self, cpu: &[f64]) -> Self {
        self.cpu = median(cpu);
        self
    }

    /// Fills in only the figures of the reference, because the work could not be measured.
    pub fn reference_only(mut self, references: &[f64]) -> Self {
        self.reference_value = median(references);
        self.repetitions = references.len();
        self
    }

    /// Adds a remark, after the row's other remarks.
    pub fn noted(mut self, note: impl Into<String>) -> Self {
        let note = note.into();
        self.note = Some(match self.note.take() {
            Some(before) => format!("{before}; {note}"),
            None => note,
        });
        self
    }

    /// Marks the bar as missed because a run broke, whatever was measured, and adds the reason.
    pub fn broken(mut self, why: &str) -> Self {
        self.holds = Some(false);
        self.noted(format!("broken: {why}"))
    }

    fn keeps(&self, figure: f64) -> Option<bool> {
        let bar = self.bar?;
        Some(match self.sense {
            Sense::AtMost => figure <= bar,
            Sense::AtLeast => figure >= bar,
        })
    }

    fn figure(&self, value: Option<f64>) -> String {
        let Some(value) = value else {
            return NOTHING.to_owned();
        };
        match self.unit.as_str() {
            "ns" => time(value),
            "M/s" => format!("{} M/s", digits(value)),
            unit if value.fract() == 0.0 => format!("{value} {unit}"),
            unit => format!("{} {unit}", digits(value)),
        }
    }

    fn range_words(&self) -> String {
        match self.ratio_range {
            Some([least, greatest]) => format!("{least:.2}–{greatest:.2}"),
            None => NOTHING.to_owned(),
        }
    }

    fn spread_words(&self) -> [String; 2] {
        match self.p90_p99 {
            Some(spread) => spread.map(time),
            None => [NOTHING; 2].map(str::to_owned),
        }
    }

    fn bar_words(&self) -> String {
        let Some(bar) = self.bar else {
            return NOTHING.to_owned();
        };
        let sign = match self.sense {
            Sense::AtMost => '≤',
            Sense::AtLeast => '≥',
        };
        let times = if self.unit == "ns" || self.unit == "M/s" { " ×" } else { "" };
        format!("{sign} {bar}{times}")
    }

    fn holds_words(&self) -> &'static str {
        match self.holds {
            Some(true) => "yes",
            Some(false) => "NO",
            None if self.bar.is_none() && self.value.is_some() => NOTHING,
            None => "not measured",
        }
    }
}

/// The results of a suite with targets, as `--json` prints them.
#[derive(Debug, Serialize)]
pub struct Suite {
    /// The name of the suite.
    pub suite: &'static str,
    /// The machine on which the suite ran.
    pub machine: String,
    /// The duration of the suite in seconds.
    pub seconds: f64,
    /// The share of all processors' time that other programs used meanwhile, from 0 to 1.
    pub foreign: Option<f64>,
    /// Whether every row was reached before the end of the time budget, and before an interrupt. A row that needs more
    /// processors counts as reached.
    pub complete: bool,
    /// The rows of the table.
    pub bars: Vec<Bar>,
}

impl Suite {
    /// Formats the rows as a table, with the remarks below. The probe is the round trip of two empty flag lines; CPU
    /// is the processor time of all processes.
    pub fn table(&self) -> String {
        let heads = [
            "work",
            "Strait",
            "p90",
            "p99",
            "CPU",
            "floor",
            "ratio",
            "range",
            "bar",
            "probe",
            "holds",
            "what the floor is",
        ];
        let mut table = table::new(heads, 1..10);
        let mut remarks = String::new();
        let mut number = 0;
        for bar in &self.bars {
            let mut holds = bar.holds_words().to_owned();
            if let Some(note) = &bar.note {
                number += 1;
                holds += &format!(" ({number})");
                remarks += &format!("\n({number}) {note}");
            }
            let [p90, p99] = bar.spread_words();
            table.add_row([
                bar.work.clone(),
                bar.figure(bar.value),
                p90,
                p99,
                bar.cpu.map_or(NOTHING.to_owned(), time),
                bar.figure(bar.reference_value),
                bar.ratio.map_or(NOTHING.to_owned(), |ratio| format!("{ratio:.2}")),
                bar.range_words(),
                bar.bar_words(),
                bar.probe.map_or(NOTHING.to_owned(), time),
                holds,
                bar.reference.clone(),
            ]);
        }
        format!("{table}{remarks}")
    }

    /// Returns a sentence with the numbers of met, missed and unmeasured bars.
    pub fn verdict(&self) -> String {
        let judged = || self.bars.iter().filter(|bar| bar.bar.is_some());
        let count = |holds| judged().filter(|bar| bar.holds == holds).count();
        let (kept, missed, unknown) = (count(Some(true)), count(Some(false)), count(None));
        format!("{kept} bars hold, {missed} are missed, {unknown} not measured")
    }
}

#[cfg(test)]
mod tests {
    use super::{Bar, Sense, Suite};

    fn bar(sense: Sense, limit: f64) -> Bar {
        Bar::new("round trip", "ns", "two lines", sense, limit)
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let pairs = [(110.0, 100.0), (2200.0, 2000.0), (130.0, 100.0)];
        let bar = bar(Sense::AtMost, 1.25).compared(&pairs);
        assert_eq!(bar.ratio, Some(1.1));
        assert_eq!(bar.ratio_range, Some([1.1, 1.3]));
        assert_eq!((bar.value, bar.reference_value), (Some(130.0), Some(100.0)));
        assert_eq!((bar.holds, bar.repetitions), (Some(true), 3));
    }

    #[test]
    fn a_bar_has_two_senses() {
        assert_eq!(bar(Sense::AtMost, 1.25).compared(&[(126.0, 100.0)]).holds, Some(false));
        assert_eq!(bar(Sense::AtLeast, 0.8).compared(&[(79.0, 100.0)]).holds, Some(false));
        assert_eq!(bar(Sense::AtLeast, 0.8).compared(&[(81.0, 100.0)]).holds, Some(true));
    }

    #[test]
    fn one_bad_count_is_enough() {
        let bar = Bar::new("allocations", "allocations", "none", Sense::AtMost, 0.0);
        assert_eq!(bar.clone().counted(&[0.0, 0.0]).holds, Some(true));
        let bad = bar.counted(&[0.0, 3.0, 0.0]);
        assert_eq!((bad.holds, bad.value, bad.ratio), (Some(false), Some(3.0), None));
        assert_eq!(bad.reference_value, Some(0.0));
    }

    #[test]
    fn what_was_not_measured_does_not_hold() {
        assert_eq!(bar(Sense::AtMost, 1.0).compared(&[]).holds, None);
        assert_eq!(bar(Sense::AtMost, 1.0).reference_only(&[5.0]).holds, None);
        let broken = bar(Sense::AtMost, 1.0).broken("a message was lost");
        assert_eq!(broken.holds, Some(false));
    }

    #[test]
    fn the_form_is_the_one_agreed() {
        let suite = Suite {
            suite: "floors",
            machine: String::new(),
            seconds: 1.0,
            foreign: None,
            complete: true,
            bars: vec![bar(Sense::AtMost, 1.25).compared(&[(1.0, 1.0)])],
        };
        let value = serde_json::to_value(&suite).unwrap();
        let row = value["bars"][0].as_object().unwrap();
        for key in ["work", "value", "unit", "reference", "reference_value", "ratio", "bar", "holds", "repetitions"] {
            assert!(row.contains_key(key), "{key}");
        }
        assert!(suite.table().contains("1.00"));
    }
}
