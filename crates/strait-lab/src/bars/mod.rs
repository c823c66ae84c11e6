//! Bars: figures that must reach something, in the form that every suite uses.
//!
//! A bar says what was done, what it took, what the same took by the bare means (the *reference*), how the two
//! compare, and what that ratio may be. A bar of counts (allocations, system calls, wake-ups) has the reference 0 and no
//! ratio.

pub(crate) mod contest;
pub mod ends;
pub mod floors;
pub mod scale;
pub mod toolbox;

use serde::Serialize;

use crate::stats::{digits, median, range, time};
use crate::table;

/// In a table, where there is no figure.
const NOTHING: &str = "–";

/// On which side of the bar the figure has to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Sense {
    /// The ratio or the count may be this much.
    AtMost,
    /// The ratio must be this much.
    AtLeast,
}

/// One row.
#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    /// What was done.
    pub work: String,
    /// What it took: the median.
    pub value: Option<f64>,
    /// In what `value` and `reference_value` are given.
    pub unit: String,
    /// What it is compared with.
    pub reference: String,
    /// What that took: the median.
    pub reference_value: Option<f64>,
    /// The median of the ratios, each taken within one repetition; none for a count.
    pub ratio: Option<f64>,
    /// The least and the greatest of these ratios.
    pub ratio_range: Option<[f64; 2]>,
    /// How the times that `value` is of were spread: 90 and 99 of a hundred were no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_p99: Option<[f64; 2]>,
    /// Processor time of all processes for each of what `value` is of, in nanoseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// What the ratio, or the count, must keep to; none for a figure that is only told.
    pub bar: Option<f64>,
    /// In which direction.
    pub sense: Sense,
    /// Whether it does; none if it could not be measured here.
    pub holds: Option<bool>,
    /// How many repetitions the medians are of.
    pub repetitions: usize,
    /// The round trip of two empty flag lines in the same processes, in nanoseconds, where it was taken: how near the
    /// two processors were to each other just then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub probe: Option<f64>,
    /// What has to be said about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

impl Bar {
    /// A bar with nothing measured yet.
    pub fn new(work: &str, unit: &str, reference: &str, sense: Sense, bar: f64) -> Self {
        Self { sense, bar: Some(bar), ..Self::told(work, unit, reference) }
    }

    /// A figure that is only told, with nothing measured yet.
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

    /// The same with figures: `(value, reference value)` of each repetition.
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

    /// The same with counts, one of each repetition. What must be zero must be zero every time, so the worst counts.
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

    /// The same with a figure that is compared with the bar itself, or only told: one of each repetition.
    pub fn found(mut self, values: &[f64]) -> Self {
        self.value = median(values);
        self.holds = self.value.and_then(|value| self.keeps(value));
        self.repetitions = values.len();
        self
    }

    /// The same with how its times were spread, in each repetition.
    pub fn spread_over(mut self, repetitions: &[[f64; 2]]) -> Self {
        let middle = |index: usize| median(&repetitions.iter().map(|spread| spread[index]).collect::<Vec<_>>());
        self.p90_p99 = middle(0).zip(middle(1)).map(|(p90, p99)| [p90, p99]);
        self
    }

    /// The same with the processor time that it cost, in each repetition.
    pub fn costing(mut self, cpu: &[f64]) -> Self {
        self.cpu = median(cpu);
        self
    }

    /// Only the reference could be measured.
    pub fn reference_only(mut self, references: &[f64]) -> Self {
        self.reference_value = median(references);
        self.repetitions = references.len();
        self
    }

    /// The same with a remark.
    pub fn noted(mut self, note: impl Into<String>) -> Self {
        let note = note.into();
        self.note = Some(match self.note.take() {
            Some(before) => format!("{before}; {note}"),
            None => note,
        });
        self
    }

    /// The run broke: whatever was measured, the bar does not hold.
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

/// What a suite prints with `--json`.
#[derive(Debug, Serialize)]
pub struct Suite {
    /// Which suite.
    pub suite: &'static str,
    /// Where it ran.
    pub machine: String,
    /// How long it took, in seconds.
    pub seconds: f64,
    /// The share of the processors' time that other programs used meanwhile.
    pub foreign: Option<f64>,
    /// The rows.
    pub bars: Vec<Bar>,
}

impl Suite {
    /// The table for people, remarks below. The probe is the round trip of two empty flag lines; CPU is that of all
    /// processes.
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

    /// How many bars hold, are missed, and could not be measured.
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
