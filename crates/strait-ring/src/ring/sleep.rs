//! Going to sleep, and waking a sleeper: each is one access to a shared word, without a system call.
//!
//! A **sleep word** holds 0 while its owner is awake, and otherwise how the owner sleeps.

use std::sync::atomic::Ordering::SeqCst;

use super::{Memory, Word};

/// Records a sleep: writes `how`, which says how the caller will sleep, into the caller's sleep word `word`. (A `how`
/// of 0 records that the caller is awake.) After this call the caller must look at the ring once more, and may sleep
/// only then. So, if the other side publishes at the same time, either the caller sees the record, or the other side
/// sees the sleeper.
#[inline]
pub fn announce<M: Memory>(word: &M::Word32, how: u32) {
    word.swap(how, SeqCst);
    M::sleep_barrier();
}

/// Ends a wait for another reason than a record in the ring: sets the word `reason` to 1, and takes the sleeper of the
/// sleep word `word`. Returns how the sleeper sleeps, and then the caller must wake the sleeper; returns 0 if there is
/// no sleeper. After a thread has [recorded](announce) its sleep, it must look at `reason` besides the ring.
pub fn wake_for<M: Memory>(reason: &M::Word32, word: &M::Word32) -> u32 {
    reason.store(1, SeqCst);
    M::full_barrier();
    take_sleeper(word)
}

/// Takes the sleeper of the sleep word `word`: clears the word and returns the value that the word held. A value other
/// than 0 says how the owner of the word sleeps, and the caller must wake the owner; 0 means that the owner is awake.
/// Before this call the caller must have published what the owner waits for (a record, credit) with an atomic exchange.
///
/// The word is cleared by an exchange, not by a load and a plain store. Between these two, another thread could wake
/// the sleeper, and the sleeper could sleep again. The store would then clear the record of the new sleep, and no
/// thread would wake the sleeper.
#[inline]
pub fn take_sleeper(word: &impl Word<u32>) -> u32 {
    if word.load(SeqCst) == 0 { 0 } else { word.swap(0, SeqCst) }
}
