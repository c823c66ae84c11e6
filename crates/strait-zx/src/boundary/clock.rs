//! Functions for time.

use super::call;
use crate::abi::*;
use crate::time;

/// Returns the time of `CLOCK_MONOTONIC` in nanoseconds.
#[unsafe(no_mangle)]
pub extern "C" fn zx_clock_get_monotonic() -> zx_time_t {
    time::now()
}

/// Returns the time that is `nanoseconds` from now, limited to the range of the type.
#[unsafe(no_mangle)]
pub extern "C" fn zx_deadline_after(nanoseconds: zx_duration_t) -> zx_time_t {
    time::after(nanoseconds)
}

/// Sleeps until a time of `CLOCK_MONOTONIC`.
#[unsafe(no_mangle)]
pub extern "C" fn zx_nanosleep(deadline: zx_time_t) -> zx_status_t {
    call(|| {
        time::sleep_until(deadline);
        Ok(())
    })
}
