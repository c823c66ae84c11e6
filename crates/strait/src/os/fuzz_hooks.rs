//! Hooks for the fuzzers: something that happens in the middle of a call, and tokens that can be foreseen.

use std::cell::{Cell, RefCell};

/// What is done at a step.
type Deed = Box<dyn FnOnce()>;

thread_local! {
    static STEPS_LEFT: Cell<u32> = const { Cell::new(0) };
    static DEED: RefCell<Option<Deed>> = const { RefCell::new(None) };
    static TOKENS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Does something just before this thread's access to shared memory after so many more: in the middle of a call.
pub fn at_step(steps: u32, deed: impl FnOnce() + 'static) {
    STEPS_LEFT.set(steps.saturating_add(1));
    DEED.set(Some(Box::new(deed)));
}

/// What was to be done at a step is not done any more. Whether it was still to be done.
pub fn no_more_steps() -> bool {
    STEPS_LEFT.set(0);
    DEED.take().is_some()
}

/// An access to shared memory.
#[inline]
pub(crate) fn step() {
    let left = STEPS_LEFT.get();
    if left > 0 {
        STEPS_LEFT.set(left - 1);
        if left == 1
            && let Some(deed) = DEED.take()
        {
            deed();
        }
    }
}

/// From here on the tokens that this thread makes are the same in every run.
pub fn number_tokens(from: u64) {
    TOKENS.set(Some(from));
}

/// The next token, if they are numbered.
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
