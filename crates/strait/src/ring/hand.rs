//! Whose hands a ring is in whose writing end moves to another process, and how its reader sleeps meanwhile.
//!
//! Three processes have a part in it: the **mover**, which has the writing end and gives it away; the **adopter**,
//! which gets it; and the reader, **the other end**, which stays where it is. One word says how far they are:
//!
//! ```text
//!          mover: hand_over            adopter: adopt
//! 0 with the mover ────────▶ 1 handed ────────▶ 2 adopted
//!    │ │                                           ▲
//!    │ └───────────────────────────────────────────┘  adopter: adopt, faster than the mover
//!    ├────▶ 3 abandoned                               the other end, on the mover's death: abandon
//!    └────▶ 4 kept                                    the mover, if it could not send it: keep
//! ```
//!
//! Every step is a compare-and-swap, and what it finds is the answer: of an adopter and an other end that gives it up,
//! exactly one wins, and the loser sees it.
//!
//! # Sleeping
//!
//! The adopter may publish before the other end has a link to it. Until the ring is handed over the other end
//! sleeps on the mover's link, and says so: its word has the bit [`VIA`]. The adopter cannot reach such a sleeper and
//! leaves it alone. The mover hands over, and wakes it. So there are two who publish and two who look:
//!
//! | | publishes | then looks for |
//! |---|---|---|
//! | the adopter | a record | a sleeper without [`VIA`] |
//! | the mover | that it handed over | a sleeper with [`VIA`] |
//! | the other end | how it sleeps | records and, with [`VIA`], whether it was handed over |
//!
//! Each waker leaves alone whom it cannot wake, and needs to try only once: a sleeper's word that changed after it was
//! looked at was changed by its owner, who looks again after that, or was taken by somebody who wakes him.

use std::sync::atomic::Ordering::SeqCst;

use super::{Memory, Word};

/// In the word of a sleeper: it can only be woken by way of the mover.
pub(crate) const VIA: u32 = 4;

/// Whose hands the writing end is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Hand {
    /// The mover has not sent it yet, as far as it has said.
    Mover = 0,
    /// The mover has sent it: its death changes nothing any more.
    Handed = 1,
    /// The adopter has it.
    Adopted = 2,
    /// The mover died before it was handed over. Nobody will write.
    Abandoned = 3,
    /// The mover could not send it, and keeps it: the lane is an ordinary one to the mover.
    Kept = 4,
}

impl Hand {
    /// `None` if it is no word of ours.
    fn from_word(word: u32) -> Option<Self> {
        [Self::Mover, Self::Handed, Self::Adopted, Self::Abandoned, Self::Kept]
            .into_iter()
            .find(|hand| *hand as u32 == word)
    }

    /// Whose hands it is in now. For the other end: to be looked at after saying how it sleeps.
    #[inline]
    pub(crate) fn of(word: &impl Word<u32>) -> Option<Self> {
        Self::from_word(word.load(SeqCst))
    }
}

/// One step, and what was there before it. It is taken only if that was `from`.
#[inline]
fn step(word: &impl Word<u32>, from: Hand, to: Hand) -> Option<Hand> {
    // A failure is in order with what follows as well: the mover looks for a sleeper after it too.
    let (Ok(found) | Err(found)) = word.compare_exchange(from as u32, to as u32, SeqCst, SeqCst);
    Hand::from_word(found)
}

/// The mover says that it has sent the end. Returns what was there before: [`Hand::Mover`] if this did it,
/// [`Hand::Adopted`] if the adopter was faster; `None` if the word is not ours. Whatever it was, the mover then takes
/// the sleeper by [`take_sleeper_if_via`].
pub(crate) fn hand_over<M: Memory>(word: &M::Word32) -> Option<Hand> {
    let found = step(word, Hand::Mover, Hand::Handed);
    M::full_barrier();
    found
}

/// The mover could not send the end, and keeps it. Returns what was there before, and then takes the sleeper as with
/// [`hand_over`].
pub(crate) fn keep<M: Memory>(word: &M::Word32) -> Option<Hand> {
    let found = step(word, Hand::Mover, Hand::Kept);
    M::full_barrier();
    found
}

/// The adopter takes the end. It has it if it returns [`Hand::Mover`] or [`Hand::Handed`]; with [`Hand::Abandoned`]
/// it came too late. Twice is once: then it returns [`Hand::Adopted`].
pub(crate) fn adopt(word: &impl Word<u32>) -> Option<Hand> {
    // Looked at first: reading memory that nobody here has touched yet maps more of it at once than writing does.
    let _ = word.load(SeqCst);
    match step(word, Hand::Mover, Hand::Adopted) {
        // Handed is only followed by adopted, so this one step is enough.
        Some(Hand::Handed) => step(word, Hand::Handed, Hand::Adopted),
        found => found,
    }
}

/// The other end, which saw that the mover has died, gives the writing end up if it was not handed over. It did if
/// this returns [`Hand::Mover`]; with [`Hand::Handed`] or [`Hand::Adopted`] the adopter has it or will.
pub(crate) fn abandon(word: &impl Word<u32>) -> Option<Hand> {
    step(word, Hand::Mover, Hand::Abandoned)
}

/// How the sleeper of a word sleeps, if there is one that the adopter can wake: from now on it is its to wake. To be
/// called after publishing by an atomic exchange, instead of [`take_sleeper`](super::take_sleeper).
#[inline]
pub(crate) fn take_sleeper_unless_via(word: &impl Word<u32>) -> u32 {
    take_sleeper_that(word, |how| how & VIA == 0)
}

/// The same for the mover, after [`hand_over`]: only a sleeper that sleeps by way of it. Others it could not wake.
#[inline]
pub(crate) fn take_sleeper_if_via(word: &impl Word<u32>) -> u32 {
    take_sleeper_that(word, |how| how & VIA != 0)
}

#[inline]
fn take_sleeper_that(word: &impl Word<u32>, ours: impl Fn(u32) -> bool) -> u32 {
    let how = word.load(SeqCst);
    // Not by a plain exchange: it could take a sleeper of the other kind that came in between. And only once: see the
    // head of this file.
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
