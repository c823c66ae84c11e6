//! The transfer word: the state of the transfer of a ring's writing end to another process, and how the ring's reader
//! sleeps meanwhile.
//!
//! Three processes take part: the **source**, which has the writing end and sends it away; the **destination**, which
//! receives it; and the **reader** of the ring, which stays where it is. One word in shared memory holds the transfer
//! state:
//!
//! ```text
//!          source: hand over           destination: claim
//! 0 pending ──────────────▶ 1 handed over ────────▶ 2 claimed
//!    │ │                                           ▲
//!    │ └───────────────────────────────────────────┘  destination: claim, before the source hands over
//!    ├────▶ 3 abandoned                               reader: abandon, when the source has died
//!    └────▶ 4 cancelled                               source: cancel, if it could not send the end
//! ```
//!
//! Every step is a compare-and-swap, and each process learns the outcome from the value that it finds: of a destination
//! that claims and a reader that abandons, exactly one wins, and the other sees this.
//!
//! # Sleeping
//!
//! The destination may publish before the reader has a link to it. Until the end is handed over the reader sleeps on
//! its link to the source, and says so: its sleep word has the bit [`VIA`] (it is *relayed*). The destination cannot
//! wake such a sleeper and leaves it alone. The source hands over, and wakes it. So there are two publishers and two
//! checks:
//!
//! | | publishes | then looks for |
//! |---|---|---|
//! | the destination | a record | a sleeper without [`VIA`] |
//! | the source | that the end is handed over | a sleeper with [`VIA`] |
//! | the reader | how it sleeps | records and, with [`VIA`], whether the end is handed over |
//!
//! Each waker leaves a sleeper alone that it cannot wake, and tries only once. If the sleep word changed after the
//! waker's look, then either the reader changed it, and looks again after that; or another waker took it, and wakes the
//! reader.

use std::sync::atomic::Ordering::SeqCst;

use super::{Memory, Word};

/// Bit of a sleep word: the sleeper can be woken only by the source of the transfer (the wake-up is relayed).
pub(crate) const VIA: u32 = 4;

/// The transfer state: which process has the writing end that is being moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Hand {
    /// Pending: the source has not said yet that it sent the end.
    Mover = 0,
    /// Handed over: the source has sent the end, and its death has no effect any more.
    Handed = 1,
    /// Claimed: the destination has the end.
    Adopted = 2,
    /// Abandoned: the source died before it handed the end over. No process will write into the ring.
    Abandoned = 3,
    /// Cancelled: the source could not send the end and retains it. The source uses the lane as an ordinary one.
    Kept = 4,
}

impl Hand {
    /// Returns the state that `word` stands for, or `None` if it stands for none.
    fn from_word(word: u32) -> Option<Self> {
        [Self::Mover, Self::Handed, Self::Adopted, Self::Abandoned, Self::Kept]
            .into_iter()
            .find(|hand| *hand as u32 == word)
    }

    /// Loads the transfer state; `None` if the word holds no valid state. The reader calls this after it has said how
    /// it sleeps.
    #[inline]
    pub(crate) fn of(word: &impl Word<u32>) -> Option<Self> {
        Self::from_word(word.load(SeqCst))
    }
}

/// Changes the state to `to` if it is `from`. Returns the state found, in either case; `None` if the word was not
/// valid.
#[inline]
fn step(word: &impl Word<u32>, from: Hand, to: Hand) -> Option<Hand> {
    // The order of a failed exchange matters as well: after a failure, too, the source looks for a sleeper.
    let (Ok(found) | Err(found)) = word.compare_exchange(from as u32, to as u32, SeqCst, SeqCst);
    Hand::from_word(found)
}

/// The source says that it has sent the end. Returns the state found: [`Hand::Mover`] if this call handed the end over,
/// [`Hand::Adopted`] if the destination had claimed it already, `None` if the word is not valid. In every case the
/// source must then call [`take_sleeper_if_via`].
pub(crate) fn hand_over<M: Memory>(word: &M::Word32) -> Option<Hand> {
    let found = step(word, Hand::Mover, Hand::Handed);
    M::full_barrier();
    found
}

/// The source cancels the transfer of an end that it could not send. Returns the state found: [`Hand::Mover`] if this
/// call cancelled it. In every case the source must then call [`take_sleeper_if_via`], as after [`hand_over`].
pub(crate) fn keep<M: Memory>(word: &M::Word32) -> Option<Hand> {
    let found = step(word, Hand::Mover, Hand::Kept);
    M::full_barrier();
    found
}

/// The destination claims the end. Returns the state found: the destination has the end if this is [`Hand::Mover`] or
/// [`Hand::Handed`], and has come too late if it is [`Hand::Abandoned`]. A second claim changes nothing and returns
/// [`Hand::Adopted`].
pub(crate) fn adopt(word: &impl Word<u32>) -> Option<Hand> {
    // The load comes first: a read of memory that this process has not touched yet maps more pages at once than a write
    // does.
    let _ = word.load(SeqCst);
    match step(word, Hand::Mover, Hand::Adopted) {
        // The state after handed over can only be claimed, so this one step is enough.
        Some(Hand::Handed) => step(word, Hand::Handed, Hand::Adopted),
        found => found,
    }
}

/// The reader gives up an end that was not handed over when it saw the source die. Returns the state found: the end is
/// abandoned if this is [`Hand::Mover`]; with [`Hand::Handed`] or [`Hand::Adopted`] the destination has the end or will
/// have it.
pub(crate) fn abandon(word: &impl Word<u32>) -> Option<Hand> {
    step(word, Hand::Mover, Hand::Abandoned)
}

/// Takes the sleeper of a sleep word for the destination: returns how the sleeper sleeps, and the caller must wake it.
/// Returns 0 if nothing sleeps or only the source can wake the sleeper. The destination calls this instead of
/// [`take_sleeper`](super::take_sleeper), after it has published by an atomic exchange.
#[inline]
pub(crate) fn take_sleeper_unless_via(word: &impl Word<u32>) -> u32 {
    take_sleeper_that(word, |how| how & VIA == 0)
}

/// Takes the sleeper of a sleep word for the source: returns how the sleeper sleeps, and the caller must wake it.
/// Returns 0 if nothing sleeps or the sleeper is not relayed. The source calls this after [`hand_over`] or [`keep`].
#[inline]
pub(crate) fn take_sleeper_if_via(word: &impl Word<u32>) -> u32 {
    take_sleeper_that(word, |how| how & VIA != 0)
}

#[inline]
fn take_sleeper_that(word: &impl Word<u32>, ours: impl Fn(u32) -> bool) -> u32 {
    let how = word.load(SeqCst);
    // A plain exchange could take a sleeper of the other kind that came in between. One attempt is enough: see the head
    // of this file.
    if how != 0 && ours(how) && word.compare_exchange(how, 0, SeqCst, SeqCst).is_ok() { how } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::RingMemory;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn every_step_says_what_it_found() {
        type Step = fn(&AtomicU32) -> Option<Hand>;
        let steps: [(&str, Step); 4] = [
            ("hand over", |word| hand_over::<RingMemory>(word)),
            ("keep", |word| keep::<RingMemory>(word)),
            ("adopt", |word| adopt(word)),
            ("abandon", |word| abandon(word)),
        ];
        for (name, from, to) in [
            ("hand over", 0, 1),
            ("hand over", 1, 1),
            ("hand over", 2, 2),
            ("hand over", 3, 3),
            ("hand over", 4, 4),
            ("keep", 0, 4),
            ("keep", 1, 1),
            ("keep", 2, 2),
            ("keep", 3, 3),
            ("keep", 4, 4),
            ("adopt", 0, 2),
            ("adopt", 1, 2),
            ("adopt", 2, 2),
            ("adopt", 3, 3),
            ("adopt", 4, 4),
            ("abandon", 0, 3),
            ("abandon", 1, 1),
            ("abandon", 2, 2),
            ("abandon", 3, 3),
            ("abandon", 4, 4),
            ("hand over", 77, 77),
            ("keep", 77, 77),
            ("adopt", 77, 77),
            ("abandon", 77, 77),
        ] {
            let word = AtomicU32::new(from);
            let (_, step) = steps.iter().find(|(of, _)| *of == name).unwrap();
            assert_eq!(step(&word), Hand::from_word(from), "{name} from {from}");
            assert_eq!(word.into_inner(), to, "{name} from {from}");
        }
    }

    #[test]
    fn each_waker_takes_only_whom_it_can_wake() {
        for how in [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, u32::MAX] {
            let via = how & VIA != 0;
            let word = AtomicU32::new(how);
            assert_eq!(take_sleeper_unless_via(&word), if via { 0 } else { how });
            assert_eq!(word.into_inner(), if via { how } else { 0 });
            let word = AtomicU32::new(how);
            assert_eq!(take_sleeper_if_via(&word), if via { how } else { 0 });
            assert_eq!(word.into_inner(), if via { 0 } else { how });
        }
    }
}
