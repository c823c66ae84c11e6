//! The two halves of going to sleep, and of waking who does: one word each way, no system call.

use std::sync::atomic::Ordering::SeqCst;

use super::{Memory, Word};

/// Says that we sleep, and how. The caller looks at the ring once more after this, and only then sleeps: of it and
/// whoever publishes at the same time, one sees the other.
#[inline]
pub(crate) fn announce<M: Memory>(word: &M::Word32, how: u32) {
    word.swap(how, SeqCst);
    M::sleep_barrier();
}

/// Wakes the sleeper of a word for a reason of this side's own, which it looks at after it has [said](announce) that it
/// sleeps, besides the ring: how it slept, if it did.
pub(crate) fn rouse<M: Memory>(reason: &M::Word32, word: &M::Word32) -> u32 {
    reason.store(1, SeqCst);
    M::full_barrier();
    take_sleeper(word)
}

/// How the sleeper of a word sleeps, if there is one: from now on it is ours to wake. To be called after publishing by
/// an atomic exchange.
///
/// Takes the word by an exchange. A plain store could clear the word of a sleeper that was woken, came back and
/// sleeps again, and nobody would ever wake it.
#[inline]
pub(crate) fn take_sleeper(word: &impl Word<u32>) -> u32 {
    if word.load(SeqCst) == 0 { 0 } else { word.swap(0, SeqCst) }
}
