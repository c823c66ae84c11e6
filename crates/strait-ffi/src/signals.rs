//! Waits that a signal ends: the guards of [`strait::signals`], as a number for each thread.

use std::cell::Cell;

use strait::signals::Guard;

thread_local! {
    /// The guards made in this thread by `strait_signals_begin` and not taken back yet.
    static GUARDS: Cell<Vec<Guard>> = const { Cell::new(Vec::new()) };
}

/// Changes the guards of this thread. Does nothing while the thread ends.
fn change(change: impl FnOnce(&mut Vec<Guard>)) {
    let _ = GUARDS.try_with(|guards| {
        let mut held = guards.take();
        change(&mut held);
        guards.set(held);
    });
}

/// From now on, a signal that interrupts a sleep of the calling thread ends the wait: the function fails with
/// `STRAIT_SIGNALLED`, has done nothing, and may be called again. Without this call, functions go on waiting after a
/// signal handler has run. Holds until `strait_signals_end`; such pairs of calls may be nested.
///
/// Only a signal whose handler runs in this thread counts, with or without `SA_RESTART`. A signal whose handler runs
/// before the thread sleeps does not end the sleep that follows; docs/reference/c-and-cpp.md says how to miss none.
/// Functions that spin and do not sleep (`STRAIT_WAIT_SPIN`) go on. Makes no system call. Not for use in a signal
/// handler.
#[unsafe(no_mangle)]
pub extern "C" fn strait_signals_begin() {
    change(|guards| guards.push(Guard::new()));
}

/// Takes back one call of `strait_signals_begin` in the calling thread. Does nothing if there was none.
#[unsafe(no_mangle)]
pub extern "C" fn strait_signals_end() {
    change(|guards| drop(guards.pop()));
}
