//! Time.

use super::call;
use crate::abi::*;
use crate::time;

/// Nanoseconds of `CLOCK_MONOTONIC`.
#[unsafe(no_mangle)]
pub extern "C" fn zx_clock_get_monotonic() -> zx_time_t {
    time::now()
}

/// So long from now, or the end of time.
#[unsafe(no_mangle)]
pub extern "C" fn zx_deadline_after(nanoseconds: zx_duration_t) -> zx_time_t {
    time::after(nanoseconds)
}

/// Sleeps until then.
#[unsafe(no_mangle)]
pub extern "C" fn zx_nanosleep(deadline: zx_time_t) -> zx_status_t {
    call(|| {
        time::sleep_until(deadline);
        Ok(())
    })
}
