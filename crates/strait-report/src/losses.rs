//! Finds where Strait loses: every group of comparable figures in which another usable mechanism is ahead.
//!
//! Nothing is chosen by hand. Two figures are compared if they come from one run and differ only in the mechanism. A
//! figure is ahead if the intervals of the two do not overlap. Bare floors are left out, because they do less work
//! than a library must do; the tables show how near Strait comes to the floors.

use crate::cases::{Case, Metric, Value1};
use crate::looks;

/// A comparison with another mechanism that Strait does not win.
#[derive(Clone, Debug)]
pub(crate) struct Loss<'a> {
    pub(crate) ours: &'a Case<'a>,
    pub(crate) our_value: Value1,
    pub(crate) theirs: &'a Case<'a>,
    pub(crate) their_value: Value1,
    pub(crate) metric: Metric,
    /// Strait's value divided by the other's. Below 1 where Strait is ahead, since less is better.
    pub(crate) factor: f64,
    /// Whether the intervals of the two values do not meet, and both values have an interval.
    pub(crate) certain: bool,
    /// How many further mechanisms are ahead in the same group.
    pub(crate) more: usize,
}

/// The result of all comparisons of Strait with other mechanisms.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses<'a> {
    /// The comparisons in which the other is ahead beyond the intervals, the worst for Strait first.
    pub(crate) certain: Vec<Loss<'a>>,
    /// The comparisons in which the other is ahead, but not certainly ([`Loss::certain`]); the worst for Strait first.
    pub(crate) unsure: Vec<Loss<'a>>,
    /// For each group and metric in which Strait is ahead of all others, the comparison with the nearest mechanism.
    /// Shown only if there is no loss.
    pub(crate) closest: Vec<Loss<'a>>,
    /// The number of Strait's figures with a comparable mechanism.
    pub(crate) compared: usize,
}

/// The compared metrics. Of each, less is better.
const METRICS: [Metric; 4] = [Metric::Median, Metric::P99, Metric::Cpu, Metric::Pace];

/// Compares Strait with all other mechanisms in each group of comparable figures.
pub(crate) fn find<'a>(cases: &'a [Case<'a>]) -> Losses<'a> {
    let mut losses = Losses::default();
    let mut ours: Vec<&Case<'_>> = cases.iter().filter(|case| looks::is_strait(case.mechanism())).collect();
    // Where plain Strait was measured, it stands for Strait, and its modes are left out.
    let plain = |case: &Case<'_>| case.mechanism() == strait_lab::Mechanism::STRAIT;
    let all = ours.clone();
    ours.retain(|&case| {
        plain(case)
            || looks::carries_descriptors(case.mechanism())
            || !all.iter().any(|other| plain(other) && other.is_compared_with(case))
    });
    for case in ours {
        let rivals: Vec<&Case<'_>> = cases
            .iter()
            .filter(|other| other.is_compared_with(case))
            .filter(|other| !looks::is_strait(other.mechanism()) && !looks::is_floor(other.mechanism()))
            .filter(|other| {
                looks::carries_descriptors(other.mechanism()) == looks::carries_descriptors(case.mechanism())
            })
            .collect();
        losses.compared += usize::from(!rivals.is_empty());
        for metric in METRICS {
            // For one message at a time, the pace only repeats the time.
            if metric == Metric::Pace && matches!(case.manner.kind.as_str(), "ping-pong" | "stream") {
                continue;
            }
            let Some(our_value) = case.value(metric) else { continue };
            let compared = rivals.iter().filter_map(|&theirs| {
                let their_value = theirs.value(metric)?;
                let certain =
                    their_value.interval[1] < our_value.interval[0] && our_value.sure > 0.0 && their_value.sure > 0.0;
                let factor = our_value.value / their_value.value;
                Some(Loss { ours: case, our_value, theirs, their_value, metric, factor, certain, more: 0 })
            });
            let mut compared: Vec<Loss<'_>> = compared.collect();
            compared
                .sort_by(|one, other| (other.certain, other.factor).partial_cmp(&(one.certain, one.factor)).unwrap());
            let ahead = compared.iter().filter(|loss| loss.certain).count();
            let Some(mut worst) = compared.into_iter().next() else { continue };
            worst.more = ahead.saturating_sub(1);
            if worst.certain {
                losses.certain.push(worst);
            } else if worst.factor > 1.0 {
                losses.unsure.push(worst);
            } else {
                losses.closest.push(worst);
            }
        }
    }
    for list in [&mut losses.certain, &mut losses.unsure, &mut losses.closest] {
        list.sort_by(|one, other| other.factor.total_cmp(&one.factor));
    }
    losses
}
