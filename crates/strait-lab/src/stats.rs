//! The arithmetic and the number formats of the tables.

/// Returns the median of `values`: the middle value, or the mean of the two middle values. `None` if `values` is
/// empty.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.is_empty() {
        None
    } else if sorted.len().is_multiple_of(2) {
        Some((sorted[middle - 1] + sorted[middle]) / 2.0)
    } else {
        Some(sorted[middle])
    }
}

/// Returns the least and the greatest of `values`. `None` if `values` is empty.
pub fn range(values: &[f64]) -> Option<[f64; 2]> {
    let least = values.iter().copied().reduce(f64::min)?;
    let greatest = values.iter().copied().reduce(f64::max)?;
    Some([least, greatest])
}

/// Returns the greatest of `values` divided by the least; 1 if `values` is empty.
pub fn spread(values: &[f64]) -> f64 {
    range(values).map_or(1.0, |[least, greatest]| greatest / least)
}

/// Formats a time in nanoseconds with a suitable unit, in three digits.
pub fn time(nanoseconds: f64) -> String {
    match nanoseconds {
        n if n < 999.5 => format!("{} ns", digits(n)),
        n if n < 999.5e3 => format!("{} µs", digits(n / 1e3)),
        n if n < 999.5e6 => format!("{} ms", digits(n / 1e6)),
        n => format!("{} s", digits(n / 1e9)),
    }
}

/// Formats a number per second with a suitable unit, in three digits.
pub fn rate(per_second: f64) -> String {
    match per_second {
        n if n < 999.5 => format!("{}/s", digits(n)),
        n if n < 999.5e3 => format!("{} k/s", digits(n / 1e3)),
        n => format!("{} M/s", digits(n / 1e6)),
    }
}

/// Formats `n` with three significant digits.
pub fn digits(n: f64) -> String {
    match n.abs() {
        a if a < 9.995 => format!("{n:.2}"),
        a if a < 99.95 => format!("{n:.1}"),
        _ => format!("{n:.0}"),
    }
}

/// Formats a number of bytes, in MiB if it is a multiple of 1 MiB.
pub fn bytes(n: usize) -> String {
    const MIB: usize = 1 << 20;
    if n >= MIB && n.is_multiple_of(MIB) { format!("{} MiB", n / MIB) } else { format!("{n} B") }
}

#[cfg(test)]
mod tests {
    use super::{bytes, median, range, rate, spread, time};

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), Some(3.0));
    }

    #[test]
    fn ranges_and_spreads() {
        assert_eq!(range(&[2.0, 1.0, 4.0]), Some([1.0, 4.0]));
        assert_eq!(range(&[]), None);
        assert_eq!(spread(&[2.0, 1.0, 4.0]), 4.0);
        assert_eq!(spread(&[]), 1.0);
    }

    #[test]
    fn figures_read_well() {
        assert_eq!(time(187.4), "187 ns");
        assert_eq!(time(6.357), "6.36 ns");
        assert_eq!(time(71_300.0), "71.3 µs");
        assert_eq!(time(999_900.0), "1.00 ms");
        assert_eq!(rate(156_000_000.0), "156 M/s");
        assert_eq!(rate(14_200.0), "14.2 k/s");
        assert_eq!(bytes(248_832), "248832 B");
        assert_eq!(bytes(256 << 20), "256 MiB");
    }
}
