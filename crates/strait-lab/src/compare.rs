//! Compares two results: which figures changed beyond noise.

use crate::results::figure::STEADY;
use crate::results::{Figure, Results, State};
use crate::stats::{digits, spread, time};
use crate::table;

/// The least confidence of a figure that is judged: that of three repetitions. If nothing has changed, the intervals
/// of three repetitions lie apart in one of ten comparisons, those of two in one of three, and two single repetitions
/// always.
const SURE: f64 = 0.75;

/// How a figure changed from one result to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The intervals do not overlap, and the later figure takes less time.
    Faster,
    /// The intervals do not overlap, and the later figure takes more time.
    Slower,
    /// The intervals overlap: no difference can be shown.
    Same,
    /// No comparison is possible: a result lacks the figure, has no time for it, has fewer than three repetitions of it
    /// or marks it as disturbed, or the distance between the processors changed between the results.
    Unknown,
}

/// Returns how the figure changed from `before` to `after`.
pub fn change(before: &Figure, after: &Figure) -> Change {
    // A figure of the shape `idle` has no time.
    let sound = |figure: &Figure| {
        figure.state == State::Measured
            && figure.summary.is_some_and(|summary| summary.median > 0.0 && summary.confidence >= SURE)
    };
    let (Some(then), Some(now)) = (before.summary, after.summary) else {
        return Change::Unknown;
    };
    if !sound(before) || !sound(after) || moved(then.probe, now.probe) {
        Change::Unknown
    } else if now.interval[1] < then.interval[0] {
        Change::Faster
    } else if now.interval[0] > then.interval[1] {
        Change::Slower
    } else {
        Change::Same
    }
}

/// Whether the probes differ by more than [`STEADY`]: in one result the processors were much closer, and a comparison
/// of spinning figures means nothing.
fn moved(then: Option<f64>, now: Option<f64>) -> bool {
    match (then, now) {
        (Some(then), Some(now)) => spread(&[then, now]) > STEADY,
        _ => false,
    }
}

/// Formats the comparison for the terminal: a table of the changed figures, then the inconclusive figures, and the
/// number of unchanged figures.
pub fn print(before: &Results, after: &Results) -> String {
    let mut out = String::new();
    if before.machine.words() != after.machine.words() {
        out +=
            &format!("The results are from two machines:\n  {}\n  {}\n", before.machine.words(), after.machine.words());
    }
    let pairs: Vec<(&Figure, &Figure)> =
        after.figures.iter().filter_map(|now| Some((before.figure(&now.work)?, now))).collect();
    let mut table = table::new(["", "before", "after", "ratio", ""], 1..4);
    let mut same = 0;
    let mut unknown = Vec::new();
    for &(then, now) in &pairs {
        match (change(then, now), then.summary, now.summary) {
            (Change::Same, ..) => same += 1,
            (change @ (Change::Faster | Change::Slower), Some(then), Some(now_summary)) => {
                table.add_row(vec![
                    now.work.words(),
                    time(then.median),
                    time(now_summary.median),
                    digits(now_summary.median / then.median),
                    if change == Change::Faster { "faster" } else { "slower" }.to_owned(),
                ]);
            }
            _ => unknown.push(now.work.words()),
        }
    }
    if table.row_count() > 0 {
        out += &format!("{table}\n");
    }
    for words in &unknown {
        out += &format!("inconclusive: {words}\n");
    }
    let is_unsure = |figure: &Figure| figure.summary.is_some_and(|summary| summary.confidence < SURE);
    if pairs.iter().any(|(then, now)| is_unsure(then) || is_unsure(now)) {
        out += "Figures with fewer than three repetitions are not judged; --repetitions sets their number.\n";
    }
    let only = |these: &Results, those: &Results| {
        these.figures.iter().filter(|figure| those.figure(&figure.work).is_none()).count()
    };
    out += &format!(
        "{} of {} figures changed beyond noise, {same} did not, {} are inconclusive; {} only before, {} only after.\n",
        table.row_count(),
        pairs.len(),
        unknown.len(),
        only(before, after),
        only(after, before),
    );
    out
}

#[cfg(test)]
mod tests {
    use super::{Change, change};
    use crate::placement::Placement;
    use crate::results::Figure;
    use crate::work::{Mechanism, Report, Wait, Work};

    fn figure(times: &[f64]) -> Figure {
        let reports = times.iter().map(|&p50| {
            let mut report = Report { count: 1, elapsed: p50 as u64, ..Report::default() };
            report.times.p50 = p50;
            report
        });
        let work = Work::round_trip(Mechanism::PIPE, 64, Wait::Block, Placement::Free);
        Figure::of(work, reports.collect(), None)
    }

    #[test]
    fn only_what_lies_apart_has_changed() {
        let base = figure(&[10.0, 11.0, 12.0]);
        assert_eq!(change(&base, &figure(&[11.0, 12.0, 13.0])), Change::Same);
        assert_eq!(change(&base, &figure(&[13.0, 14.0, 15.0])), Change::Slower);
        assert_eq!(change(&base, &figure(&[7.0, 8.0, 9.0])), Change::Faster);
        assert_eq!(change(&base, &figure(&[])), Change::Unknown);
        let without_time = figure(&[0.0, 0.0, 0.0]);
        assert_eq!(change(&without_time, &without_time), Change::Unknown);
    }

    #[test]
    fn few_repetitions_prove_nothing() {
        let (few, many) = (figure(&[10.0, 11.0]), figure(&[20.0, 21.0, 22.0, 23.0, 24.0]));
        assert_eq!(change(&few, &many), Change::Unknown);
        assert_eq!(change(&many, &few), Change::Unknown);
        assert_eq!(change(&figure(&[10.0]), &figure(&[20.0])), Change::Unknown);
        assert_eq!(change(&figure(&[10.0, 11.0, 12.0]), &many), Change::Slower);
    }

    #[test]
    fn processors_that_moved_are_not_the_mechanism() {
        let probed = |time: f64, probe: f64| {
            let mut figure = figure(&[time, time + 1.0, time + 2.0]);
            figure.summary.as_mut().unwrap().probe = Some(probe);
            figure
        };
        assert_eq!(change(&probed(100.0, 95.0), &probed(400.0, 390.0)), Change::Unknown);
        assert_eq!(change(&probed(100.0, 95.0), &probed(400.0, 96.0)), Change::Slower);
    }
}
