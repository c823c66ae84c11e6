//! Axes of plots: the places and the labels of their marks.

use std::ops::Range;

use plotters::coord::ranged1d::{DefaultFormatting, KeyPointHint, Ranged};
use strait_lab::stats::digits;

/// The unit of an axis, which decides how the axis is divided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// Nanoseconds, on a logarithmic axis: each decade is as wide as the next.
    Time,
    /// Bytes, on a logarithmic axis: each doubling is as wide as the next.
    Bytes,
    /// Counted things, on a logarithmic axis: each decade is as wide as the next.
    Count,
    /// A share of a whole, in percent.
    Share,
    /// The share of messages that were not slower: the distances between 0 %, 90 %, 99 %, … are equal.
    Nines,
    /// The rows of a list.
    Rows,
}

/// The drawable values on a logarithmic axis. A value outside came from a damaged file.
const DRAWN: Range<f64> = 1e-3..1e18;

impl Unit {
    /// Returns the position of a value in units of this axis; `None` if the value cannot be drawn.
    pub(crate) fn place(self, value: f64) -> Option<f64> {
        match self {
            Self::Time | Self::Count => DRAWN.contains(&value).then(|| value.log10()),
            Self::Bytes => DRAWN.contains(&value).then(|| value.log2()),
            Self::Share => (0.0..=1000.0).contains(&value).then_some(value),
            // The slowest of a million messages: six nines.
            Self::Nines => (0.0..1.0).contains(&value).then(|| -(1.0 - value).log10()),
            Self::Rows => value.is_finite().then_some(value),
        }
    }

    fn words(self, place: f64) -> String {
        match self {
            Self::Time => short_time(10f64.powf(place)),
            Self::Bytes => short_bytes(2f64.powf(place).round()),
            Self::Count => short_count(10f64.powf(place)),
            Self::Share => format!("{place:.0} %"),
            Self::Nines => match place.round() as u32 {
                0 => "0 %".to_owned(),
                1 => "90 %".to_owned(),
                2 => "99 %".to_owned(),
                more => format!("99.{} %", "9".repeat(more as usize - 2)),
            },
            Self::Rows => String::new(),
        }
    }
}

/// One axis of one plot.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    unit: Unit,
    least: f64,
    most: f64,
    marks: Vec<f64>,
}

impl Axis {
    /// Returns an axis with room for these values, and at most about `room` marks; `None` if no value can be drawn.
    pub(crate) fn over(unit: Unit, room: usize, values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let values: Vec<f64> = values.into_iter().collect();
        let places: Vec<f64> = values.iter().filter_map(|&value| unit.place(value)).collect();
        let mut least = places.iter().copied().reduce(f64::min)?;
        let mut most = places.iter().copied().reduce(f64::max)?;
        match unit {
            Unit::Time | Unit::Count => {
                // At least half a decade, so that noise does not look large.
                let lacking = (0.5 - (most - least)).max(0.0) / 2.0;
                let margin = 0.04 * (most - least) + 0.05;
                (least, most) = (least - lacking - margin, most + lacking + margin);
            }
            Unit::Bytes => (least, most) = (least - 0.4, most + 0.4),
            Unit::Share => (least, most) = (0.0, most.max(100.0)),
            Unit::Nines => (least, most) = (0.0, most.max(2.0)),
            Unit::Rows => (least, most) = (-0.6, most + 0.6),
        }
        let marks = few_things(unit, &values, most - least).unwrap_or_else(|| marks(unit, room as f64, least, most));
        Some(Self { unit, least, most, marks })
    }

    /// Returns the label of a mark at this position.
    pub(crate) fn words(&self, place: f64) -> String {
        self.unit.words(place)
    }

    /// Returns the position of a value on this axis; `None` if the value cannot be drawn or is beyond the axis.
    pub(crate) fn place(&self, value: f64) -> Option<f64> {
        self.unit.place(value).filter(|place| (self.least..=self.most).contains(place))
    }
}

/// Returns marks at exactly the measured values, if the axis counts things and there are few values: 8, 16 and 64
/// pieces, rather than 10, 20 and 50.
fn few_things(unit: Unit, values: &[f64], span: f64) -> Option<Vec<f64>> {
    const FEW: usize = 8;
    let is_number = |&value: &f64| value.fract() == 0.0 && (1.0..1000.0).contains(&value);
    if unit != Unit::Count || !values.iter().all(is_number) {
        return None;
    }
    let mut marks: Vec<f64> = values.iter().filter_map(|&value| unit.place(value)).collect();
    marks.sort_by(f64::total_cmp);
    marks.dedup();
    let apart = marks.windows(2).all(|two| two[1] - two[0] >= span / (2 * FEW) as f64);
    (marks.len() <= FEW && apart).then_some(marks)
}

/// Returns the positions of the marks.
fn marks(unit: Unit, room: f64, least: f64, most: f64) -> Vec<f64> {
    let within = |place: &f64| (least..=most).contains(place);
    let whole = || (least.floor() as i64..=most.ceil() as i64).map(|place| place as f64);
    match unit {
        Unit::Time | Unit::Count => {
            let span = most - least;
            let parts: &[f64] = match room / span {
                each if each >= 3.0 => &[1.0, 2.0, 5.0],
                each if each >= 2.0 => &[1.0, 3.0],
                _ => &[1.0],
            };
            let step = (span / room).ceil();
            let decades = whole().filter(|decade| decade.rem_euclid(step) == 0.0);
            decades.flat_map(|decade| parts.iter().map(move |part| decade + part.log10())).filter(within).collect()
        }
        Unit::Bytes => {
            let step = ((most - least) / room).ceil().max(1.0);
            whole().filter(|place| place.rem_euclid(step) == 0.0).filter(within).collect()
        }
        Unit::Share => (0..=(most / 25.0) as u32).map(|quarter| f64::from(25 * quarter)).collect(),
        Unit::Nines => whole().filter(within).collect(),
        Unit::Rows => Vec::new(),
    }
}

impl Ranged for Axis {
    type FormatOption = DefaultFormatting;
    type ValueType = f64;

    fn map(&self, &place: &f64, (from, to): (i32, i32)) -> i32 {
        let part = (place - self.least) / (self.most - self.least);
        from + (f64::from(to - from) * part).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.least..self.most
    }
}

fn short_time(nanoseconds: f64) -> String {
    let (value, unit) = match nanoseconds {
        n if n < 0.9995e3 => (n, "ns"),
        n if n < 0.9995e6 => (n / 1e3, "µs"),
        n if n < 0.9995e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    format!("{} {unit}", short(value))
}

fn short_count(value: f64) -> String {
    match value {
        n if n < 0.9995e3 => short(n),
        n if n < 0.9995e6 => format!("{} k", short(n / 1e3)),
        n => format!("{} M", short(n / 1e6)),
    }
}

/// Returns a number of bytes as short text.
pub(crate) fn short_bytes(n: f64) -> String {
    match n {
        n if n < 1024.0 => format!("{} B", short(n)),
        n if n < 1024.0 * 1024.0 => format!("{} K", short(n / 1024.0)),
        n => format!("{} M", short(n / 1024.0 / 1024.0)),
    }
}

/// Returns a number without zeros at its end.
fn short(value: f64) -> String {
    let words = digits(value);
    if words.contains('.') { words.trim_end_matches('0').trim_end_matches('.').to_owned() } else { words }
}

#[cfg(test)]
mod tests {
    use super::{Axis, Unit};

    fn named(unit: Unit, values: &[f64]) -> Vec<String> {
        let axis = Axis::over(unit, 5, values.iter().copied()).unwrap();
        axis.marks.iter().map(|&mark| axis.words(mark)).collect()
    }

    #[test]
    fn marks_are_round_and_few() {
        assert_eq!(named(Unit::Time, &[120.0, 80_000.0]), ["100 ns", "1 µs", "10 µs", "100 µs"]);
        assert_eq!(named(Unit::Bytes, &[56.0, 4096.0]), ["64 B", "256 B", "1 K", "4 K"]);
        assert_eq!(named(Unit::Count, &[64.0, 16.0, 8.0, 16.0]), ["8", "16", "64"]);
        assert_eq!(named(Unit::Count, &[1234.5, 98_765.4]), ["1 k", "3 k", "10 k", "30 k", "100 k"]);
        assert_eq!(named(Unit::Nines, &[0.0, 0.9999]), ["0 %", "90 %", "99 %", "99.9 %", "99.99 %"]);
        assert!(named(Unit::Time, &[100.0, 101.0]).len() >= 2);
        for most in 1..60 {
            let marks = named(Unit::Time, &[1.0, 1.35f64.powi(most)]);
            assert!((2..=8).contains(&marks.len()), "{marks:?}");
        }
    }

    #[test]
    fn what_cannot_be_drawn_is_not() {
        assert!(Axis::over(Unit::Time, 5, [0.0, -1.0, f64::NAN, f64::INFINITY, 1e300]).is_none());
        assert!(Axis::over(Unit::Nines, 5, [1.0, 2.0]).is_none());
        let axis = Axis::over(Unit::Time, 5, [1.0, 10.0]).unwrap();
        assert_eq!(axis.place(f64::NAN), None);
    }
}
