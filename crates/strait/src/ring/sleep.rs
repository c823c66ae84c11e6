//! Going to sleep, and waking a sleeper: each is one access to a shared word, without a system call.
//!
//! A **sleep word** holds 0 while its owner is awake, and otherwise how the owner sleeps.

use std::sync::atomic::Ordering::SeqCst;

use super::{Memory, Word};

/// Writes into the caller's sleep word `word` how the caller sleeps; `how` is not 0. The caller must look at the ring
/// once more after this call and may sleep only then. So, if the other side publishes at the same time, either the
/// caller sees the record, or the other side sees the sleeper.
#[inline]
pub(crate) fn announce<M: Memory>(word: &M::Word32, how: u32) {
    word.swap(how, SeqCst);
    M::sleep_barrier();
}

/// Sets the word `reason` to 1 and takes the sleeper of the sleep word `word`. Returns how the sleeper slept, or 0 if
/// there was none; the caller must wake it. The reason is one that the sleeper looks at after it has
/// [announced](announce) its sleep, besides the ring.
pub(crate) fn wake_for<M: Memory>(reason: &M::Word32, word: &M::Word32) -> u32 {
    reason.store(1, SeqCst);
    M::full_barrier();
    take_sleeper(word)
}

/// Takes the sleeper of a sleep word: returns how it sleeps, or 0 if its owner is awake. The caller must wake a sleeper
/// that it took. The caller has published by an atomic exchange before this call.
///
/// The word is cleared by an exchange. A plain store could clear the word of a sleeper that was woken, came back and
/// sleeps again; then nothing would wake it.
#[inline]
pub(crate) fn take_sleeper(word: &impl Word<u32>) -> u32 {
    if word.load(SeqCst) == 0 { 0 } else { word.swap(0, SeqCst) }
}
