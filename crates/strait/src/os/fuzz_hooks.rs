//! Hooks for the fuzzers: an action in the middle of a call, and tokens that are the same in every run.

use std::cell::{Cell, RefCell};

/// An action of a fuzzer. The fuzzer's thread runs the action at a hook: a place in the library where a peer could act
/// in the middle of a call.
type Action = Box<dyn FnOnce()>;

thread_local! {
    static STEPS_LEFT: Cell<u32> = const { Cell::new(0) };
    static ACTION: RefCell<Option<Action>> = const { RefCell::new(None) };
    static TOKENS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Makes the calling thread call `action` once, in the middle of a call: right before the access to shared memory that
/// follows `steps` further accesses.
pub fn at_step(steps: u32, action: impl FnOnce() + 'static) {
    STEPS_LEFT.set(steps.saturating_add(1));
    ACTION.set(Some(Box::new(action)));
}

/// Cancels the action that [`at_step`] has set for the calling thread. Returns whether the action had not run yet.
pub fn no_more_steps() -> bool {
    STEPS_LEFT.set(0);
    ACTION.take().is_some()
}

/// Counts an access of the calling thread to shared memory. If [`at_step`] has set an action before this access, runs
/// the action.
#[inline]
pub(crate) fn step() {
    let left = STEPS_LEFT.get();
    if left > 0 {
        STEPS_LEFT.set(left - 1);
        if left == 1
            && let Some(action) = ACTION.take()
        {
            action();
        }
    }
}

/// Makes the tokens (random numbers that name rings or permit connections) that the calling thread creates from now on
/// the same in every run. The tokens are computed from the numbers `from`, `from` + 1 and so on.
pub fn number_tokens(from: u64) {
    TOKENS.set(Some(from));
}

/// Returns the next token of the calling thread after a call of [`number_tokens`]; otherwise `None`, and the token must
/// be random.
pub(crate) fn token() -> Option<u128> {
    let number = TOKENS.get()?;
    TOKENS.set(Some(number + 1));
    let mix = |word: u64| {
        let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    };
    Some(u128::from(mix(2 * number)) << 64 | u128::from(mix(2 * number + 1)))
}
