//! The check for lost wake-ups, in tests built with `--cfg strait_strict_wakes`.
//!
//! A lost wake-up costs a user little, so no other test sees it: each sleep has an end, such as the deadline or the end
//! of a short sleep on a word, and then the thread looks again and finds its event. In a build with the flag, a thread
//! that finds its event after a sleep, but no sign of a wake-up, waits for the sign: for another thread to take the
//! sleeper from its sleep word, or for a packet. A process may be between its two steps: publishing, and waking. If no
//! sign comes in [`LIMIT`], the wake-up is lost, and the process names the place and aborts.
//!
//! No sign is needed from a peer that is gone or stopped: such a peer may stay between its two steps.
//!
//! Without the flag, the functions of this module do nothing. A test with a hostile peer, which need not wake
//! anybody, calls [`switch_off`].

#[cfg(strait_strict_wakes)]
pub(crate) use on::{IS_ON, expect_wake};
#[cfg(strait_strict_wakes)]
pub use on::{count_in, switch_off};

use std::sync::atomic::{AtomicU32, Ordering};

/// `WOKEN`: the value of a sleep word whose sleeper another thread has taken and wakes now. Only builds with the check
/// write this value, where other builds leave 0: the sleeping thread then knows that the wake-up is made.
pub(crate) const WOKEN: u32 = 16;

/// Notes in `word`, a sleep word, that the calling thread wakes the sleeper that it has taken from the word. Does
/// nothing without `--cfg strait_strict_wakes`.
#[inline(always)]
pub(crate) fn note_wake(word: &AtomicU32) {
    if IS_ON {
        let _ = word.compare_exchange(0, WOKEN, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Removes the note of [`note_wake`] from a sleep word of the calling thread.
#[inline(always)]
pub(crate) fn forget_wake(word: &AtomicU32) {
    if IS_ON {
        let _ = word.compare_exchange(WOKEN, 0, Ordering::SeqCst, Ordering::Relaxed);
    }
}

/// Whether this build checks for lost wake-ups.
#[cfg(not(strait_strict_wakes))]
pub(crate) const IS_ON: bool = false;

/// Waits until `is_owed` returns `false`; does nothing without `--cfg strait_strict_wakes`.
#[cfg(not(strait_strict_wakes))]
#[inline(always)]
pub(crate) fn expect_wake(_sleep: &str, _is_owed: impl FnMut() -> bool) {}

#[cfg(strait_strict_wakes)]
mod on {
    use std::panic::Location;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
    use std::time::{Duration, Instant};

    /// Whether this build checks for lost wake-ups.
    pub(crate) const IS_ON: bool = true;

    /// How long a thread waits for the sign of a wake-up.
    const LIMIT: Duration = Duration::from_secs(10);

    /// The time between two looks for the sign of a wake-up.
    const STEP: Duration = Duration::from_micros(200);

    /// The most that one look adds to the time for which a thread has waited: while the machine stands still, the
    /// waking process stands still, too.
    const MOST: Duration = Duration::from_millis(10);

    static IS_OFF: AtomicBool = AtomicBool::new(false);
    static WAITED: OnceLock<&'static AtomicU64> = OnceLock::new();

    /// Switches the check off in this process: a peer may be hostile, and need not wake this process.
    pub fn switch_off() {
        IS_OFF.store(true, Relaxed);
    }

    /// Adds the nanoseconds for which threads of this process wait for signs of wake-ups to `nanos`, also while they
    /// wait. Only the first call has an effect.
    pub fn count_in(nanos: &'static AtomicU64) {
        let _ = WAITED.set(nanos);
    }

    /// Waits until `is_owed` returns `false`. `is_owed` says whether the event of the calling thread is there, after a
    /// sleep of the thread, and there is no sign of a wake-up yet. If a wake-up is owed for [`LIMIT`], aborts the
    /// process. `sleep` describes the sleep.
    #[track_caller]
    pub(crate) fn expect_wake(sleep: &str, mut is_owed: impl FnMut() -> bool) {
        let mut waited = Duration::ZERO;
        while !IS_OFF.load(Relaxed) && is_owed() {
            if waited >= LIMIT {
                eprintln!("a lost wake-up, {}: {sleep}; its event is there for {LIMIT:?}", Location::caller());
                std::process::abort();
            }
            let begin = Instant::now();
            std::thread::sleep(STEP);
            let took = begin.elapsed();
            waited += took.min(MOST);
            if let Some(nanos) = WAITED.get() {
                nanos.fetch_add(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX), Relaxed);
            }
        }
    }
}
