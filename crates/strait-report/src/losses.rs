//! Where Strait loses: every group of comparable figures in which something that one could use instead is ahead.
//!
//! Nothing here is chosen by hand. Two figures are compared when they come from one run and only the mechanism is another;
//! one is ahead when the intervals of both do not meet. Bare floors are left out, since they leave out what a library
//! must do; how near Strait comes to them stands in the tables.

use crate::cases::{Case, Metric, Value1};
use crate::looks;

/// One comparison that Strait does not win.
#[derive(Clone, Debug)]
pub(crate) struct Loss<'a> {
    pub(crate) ours: &'a Case<'a>,
    pub(crate) our_value: Value1,
    pub(crate) theirs: &'a Case<'a>,
    pub(crate) their_value: Value1,
    pub(crate) metric: Metric,
    /// By how much: Strait's value through the other's. Below one where Strait is ahead.
    pub(crate) factor: f64,
    /// Whether the intervals of the two do not meet, and are intervals.
    pub(crate) certain: bool,
    /// How many others are ahead in the same group.
    pub(crate) more: usize,
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub(crate) struct Losses<'a> {
    /// Beyond the intervals, the worst first.
    pub(crate) certain: Vec<Loss<'a>>,
    /// Where another is ahead by less than can be told, the worst first.
    pub(crate) unsure: Vec<Loss<'a>>,
    /// Where Strait is ahead, but by the least. Only asked for where nothing else can be said.
    pub(crate) closest: Vec<Loss<'a>>,
    /// In how many groups there was something to compare with.
    pub(crate) compared: usize,
}

/// What is compared. Of these, less is better.
const METRICS: [Metric; 4] = [Metric::Median, Metric::P99, Metric::Cpu, Metric::Pace];

/// Finds them all.
pub(crate) fn find<'a>(cases: &'a [Case<'a>]) -> Losses<'a> {
    let mut losses = Losses::default();
    let mut ours: Vec<&Case<'_>> = cases.iter().filter(|case| looks::is_strait(case.mechanism())).collect();
    // Where plain Strait was measured, it stands for itself, and not its modes.
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
            // The pace of one message at a time is its time, said again.
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
