//! How long an adaptive wait spins by default: a setting of the whole process.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The environment variable that sets how long adaptive waits of this process spin by default.
const VARIABLE: &str = "STRAIT_SPIN";

/// How long an adaptive wait spins if neither the program nor the environment sets a time.
const DEFAULT: Duration = Duration::from_micros(50);

/// The longest time for which an adaptive wait spins.
pub(crate) const LONGEST: Duration = Duration::from_millis(20);

/// The value of `CHOSEN` before the environment was read.
const UNREAD: u64 = u64::MAX;

/// How long adaptive waits of this process spin by default, in nanoseconds. The environment is read once: two threads
/// that read the environment at the same time find the same value.
static CHOSEN: AtomicU64 = AtomicU64::new(UNREAD);

/// Returns how long adaptive waits of this process spin by default: the value of `STRAIT_SPIN`, or 50 µs if the
/// variable is not set or has no valid value. Reads the environment once.
pub(crate) fn default_spin() -> Duration {
    let chosen = CHOSEN.load(Ordering::Relaxed);
    if chosen != UNREAD {
        return Duration::from_nanos(chosen);
    }
    let spin = std::env::var(VARIABLE).ok().and_then(|value| parse_spin(&value)).unwrap_or(DEFAULT);
    CHOSEN.store(u64::try_from(spin.as_nanos()).unwrap_or(UNREAD - 1), Ordering::Relaxed);
    spin
}

/// Returns the time that `value` means as the value of the environment variable `STRAIT_SPIN`. The value is a whole
/// number of microseconds (above 20,000 it counts as 20,000), or `off` for 0. Returns `None` for any other value.
pub fn parse_spin(value: &str) -> Option<Duration> {
    if value == "off" {
        return Some(Duration::ZERO);
    }
    let digits = !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit());
    let micros = digits.then(|| value.parse().unwrap_or(u64::MAX))?;
    Some(Duration::from_micros(micros.min(LONGEST.as_micros() as u64)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_a_number_of_microseconds_or_off() {
        for (value, micros) in [("0", 0), ("off", 0), ("50", 50), ("20001", 20_000), ("99999999999999999999", 20_000)] {
            assert_eq!(parse_spin(value), Some(Duration::from_micros(micros)), "{value}");
        }
        for value in ["", " 5", "-1", "+5", "5us", "0.5", "on", "OFF"] {
            assert_eq!(parse_spin(value), None, "{value:?}");
        }
    }
}
