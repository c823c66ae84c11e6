//! Distributions of times, recorded without allocating memory.

use hdrhistogram::Histogram;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Picoseconds in a nanosecond. A fast ring delivers a message every six nanoseconds, so whole nanoseconds are too
/// coarse.
const PER_NANOSECOND: f64 = 1000.0;

/// The fractions at which a distribution is stored for drawing: evenly spaced in the middle, and ever closer near
/// both ends.
pub const QUANTILES: [f64; 40] = [
    0.0, 0.001, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75, 0.8,
    0.85, 0.875, 0.9, 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.993, 0.995, 0.998, 0.999, 0.9995, 0.9998,
    0.9999, 0.99999, 1.0,
];

/// A histogram of times, in picoseconds.
#[derive(Debug)]
pub(crate) struct Samples(Histogram<u64>);

impl Samples {
    /// Returns an empty histogram.
    pub(crate) fn new() -> Self {
        let minute = 60_000_000_000_000;
        Self(Histogram::new_with_bounds(1, minute, 3).expect("these bounds are valid"))
    }

    /// Records one sample: the mean time of `count` messages that took `elapsed` nanoseconds together.
    #[inline]
    pub(crate) fn record(&mut self, elapsed: u64, count: u64) {
        self.0.saturating_record(elapsed.saturating_mul(1000) / count);
    }

    /// Whether nothing was recorded.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the distribution for drawing: the times at [`QUANTILES`] in nanoseconds. Empty if nothing was
    /// recorded.
    pub(crate) fn curve(&self) -> Vec<f64> {
        if self.0.is_empty() {
            return Vec::new();
        }
        QUANTILES.iter().map(|&quantile| self.0.value_at_quantile(quantile) as f64 / PER_NANOSECOND).collect()
    }

    /// Returns the percentiles of the distribution, in nanoseconds. All are 0 if nothing was recorded.
    pub(crate) fn percentiles(&self) -> Percentiles {
        let at = |quantile| self.0.value_at_quantile(quantile) as f64 / PER_NANOSECOND;
        if self.0.is_empty() {
            return Percentiles::default();
        }
        Percentiles {
            min: self.0.min() as f64 / PER_NANOSECOND,
            p50: at(0.5),
            p90: at(0.9),
            p98: at(0.98),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            max: self.0.max() as f64 / PER_NANOSECOND,
        }
    }
}

/// The percentiles of a distribution, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Percentiles {
    /// The shortest time.
    pub min: f64,
    /// The median time.
    pub p50: f64,
    /// The 90th percentile: 90 % of the times were no longer.
    pub p90: f64,
    /// The 98th percentile: 98 % of the times were no longer.
    pub p98: f64,
    /// The 99th percentile: 99 % of the times were no longer.
    pub p99: f64,
    /// The 99.9th percentile: 99.9 % of the times were no longer.
    pub p999: f64,
    /// The 99.99th percentile: 99.99 % of the times were no longer.
    pub p9999: f64,
    /// The longest time.
    pub max: f64,
}

#[cfg(test)]
mod tests {
    use super::Samples;

    #[test]
    fn percentiles_are_in_nanoseconds_per_thing() {
        let mut samples = Samples::new();
        for elapsed in 1..=1000 {
            samples.record(elapsed * 16, 16);
        }
        let found = samples.percentiles();
        assert!((found.p50 - 500.0).abs() < 2.0, "{found:?}");
        assert!((found.p99 - 990.0).abs() < 2.0, "{found:?}");
        assert!((found.max - 1000.0).abs() < 2.0, "{found:?}");
    }

    #[test]
    fn the_curve_rises_from_the_least_to_the_greatest() {
        let mut samples = Samples::new();
        assert!(samples.curve().is_empty());
        for elapsed in 1..=1000 {
            samples.record(elapsed, 1);
        }
        let curve = samples.curve();
        assert!(curve.is_sorted() && super::QUANTILES.is_sorted() && curve.len() == super::QUANTILES.len());
        let (percentiles, last) = (samples.percentiles(), curve[curve.len() - 1]);
        assert!((curve[0] - percentiles.min).abs() < 0.01 && (last - percentiles.max).abs() < 1.0);
    }

    #[test]
    fn fractions_of_a_nanosecond_are_kept() {
        let mut samples = Samples::new();
        samples.record(4096 * 6 + 2048, 4096);
        assert!((samples.percentiles().p50 - 6.5).abs() < 0.01);
    }
}
