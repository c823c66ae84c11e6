//! The transfer word: the state of the transfer of a ring's writing end to another process, and how the ring's consumer
//! sleeps meanwhile.
//!
//! Three processes take part: the **source** has the writing end and sends the end away; the **destination** receives
//! the end; the **consumer** of the ring does not move. One word in shared memory holds the transfer state:
//!
//! ```text
//!          source: hand over           destination: claim
//! 0 pending ──────────────▶ 1 handed over ────────▶ 2 claimed
//!    │ │                                           ▲
//!    │ └───────────────────────────────────────────┘  destination: claim, before the source hands over
//!    ├────▶ 3 abandoned                               consumer: abandon, when the source has died
//!    └────▶ 4 cancelled                               source: cancel, if it could not send the end
//! ```
//!
//! Every step is a compare-and-swap, and each process learns the outcome from the value found: if a destination claims
//! and a consumer abandons, exactly one wins, and the other sees that.
//!
//! # Sleeping
//! The destination may publish before the consumer has a link to it. Until the end is handed over, the consumer sleeps
//! on its link to the source, and records this in its sleep word by the bit [`RELAYED`] (the consumer is *relayed*).
//! The destination cannot wake a relayed sleeper and leaves it alone. The source hands over, and wakes the sleeper. So
//! there are two publishers and two checks:
//!
//! | | publishes | then looks for |
//! |---|---|---|
//! | the destination | a record | a sleeper without [`RELAYED`] |
//! | the source | that the end is handed over | a sleeper with [`RELAYED`] |
//! | the consumer | how it sleeps | records and, with [`RELAYED`], whether the end is handed over |
//!
//! A waker leaves a sleeper alone if it cannot wake that sleeper, and tries only once. If the sleep word changed after
//! the waker's look, there are two cases: the consumer changed the word, and looks again afterwards; or another waker
//! took the word, and wakes the consumer.

use std::sync::atomic::Ordering::SeqCst;

use super::{Memory, Word};

/// `RELAYED`: the bit of a consumer's sleep word for a sleep on the link to the source of a transfer. Only the source
/// can wake such a sleeper (the wake-up is relayed).
pub const RELAYED: u32 = 4;

/// The state of the transfer of a ring's writing end from one process (the source) to another (the destination).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub enum TransferState {
    /// Pending: the source has not declared yet that the end was sent.
    Pending = 0,
    /// Handed over: the source has declared that it sent the end. From now on the death of the source has no effect on
    /// the end.
    HandedOver = 1,
    /// Claimed: the destination has received the end and owns it.
    Claimed = 2,
    /// Abandoned: the source died before it handed the end over, and the consumer has given the end up. No process will
    /// write into the ring.
    Abandoned = 3,
    /// Cancelled: the source could not send the end and keeps it. The source uses the lane that was made for the move
    /// as an ordinary lane.
    Cancelled = 4,
}

impl TransferState {
    /// Returns the transfer state that `word` stands for; `None` if `word` is the number of no state.
    #[inline]
    fn from_word(word: u32) -> Option<Self> {
        [Self::Pending, Self::HandedOver, Self::Claimed, Self::Abandoned, Self::Cancelled]
            .into_iter()
            .find(|state| *state as u32 == word)
    }

    /// Loads the transfer state from the transfer word `word`; `None` if the word holds no valid state. A consumer
    /// calls this function after it recorded its sleep in its sleep word, and before it sleeps.
    #[inline]
    pub fn of(word: &impl Word<u32>) -> Option<Self> {
        Self::from_word(word.load(SeqCst))
    }
}

/// Changes the state in the transfer word from `from` to `to`; changes nothing if the word holds another state. Returns
/// the state that the word held before; `None` if that was no valid state.
#[inline]
fn step(word: &impl Word<u32>, from: TransferState, to: TransferState) -> Option<TransferState> {
    // The order of a failed exchange matters as well: after a failure, too, the source looks for a sleeper.
    let (Ok(found) | Err(found)) = word.compare_exchange(from as u32, to as u32, SeqCst, SeqCst);
    TransferState::from_word(found)
}

/// Records in the transfer word that the source has sent the end. Returns the state that the word held before:
/// [`TransferState::Pending`] if this call handed the end over, [`TransferState::Claimed`] if the destination had
/// claimed the end already, `None` if the word was not valid. In every case the source must then call
/// [`take_sleeper_if_relayed`].
pub fn hand_over<M: Memory>(word: &M::Word32) -> Option<TransferState> {
    let found = step(word, TransferState::Pending, TransferState::HandedOver);
    M::full_barrier();
    found
}

/// Cancels the transfer, for a source that could not send the end. Returns the state that the transfer word held
/// before: the transfer is cancelled if that was [`TransferState::Pending`], and unchanged otherwise. In every case the
/// source must then call [`take_sleeper_if_relayed`], as after [`hand_over`].
pub fn cancel<M: Memory>(word: &M::Word32) -> Option<TransferState> {
    let found = step(word, TransferState::Pending, TransferState::Cancelled);
    M::full_barrier();
    found
}

/// Claims the end for the destination. Returns the state that the transfer word held before: if
/// [`TransferState::Pending`] or [`TransferState::HandedOver`], the destination now has the end.
/// [`TransferState::Abandoned`] means that the claim came too late and the end is lost. A second claim changes nothing
/// and returns [`TransferState::Claimed`].
pub fn claim(word: &impl Word<u32>) -> Option<TransferState> {
    // The load comes first: a read of memory that this process has not touched yet maps more pages at once than a write
    // does.
    let _ = word.load(SeqCst);
    match step(word, TransferState::Pending, TransferState::Claimed) {
        // The state after handed over can only be claimed, so a single step is enough.
        Some(TransferState::HandedOver) => step(word, TransferState::HandedOver, TransferState::Claimed),
        found => found,
    }
}

/// Abandons an end whose source died before the handover; the consumer of the ring calls this. Returns the former state
/// of the transfer word. If the former state was [`TransferState::Pending`], the end is abandoned now. If it was
/// [`TransferState::HandedOver`] or [`TransferState::Claimed`], nothing changes, and the destination has the end or can
/// still claim it.
pub fn abandon(word: &impl Word<u32>) -> Option<TransferState> {
    step(word, TransferState::Pending, TransferState::Abandoned)
}

/// Takes the sleeper of a sleep word for the destination of a transfer: clears the word and returns how the consumer
/// sleeps; then the caller must wake the consumer. Returns 0, and changes nothing, if the consumer is awake or only the
/// source can wake it. The destination calls this instead of [`take_sleeper`](super::take_sleeper), after publishing by
/// an atomic exchange.
#[inline]
pub fn take_sleeper_unless_relayed(word: &impl Word<u32>) -> u32 {
    take_sleeper_that(word, |how| how & RELAYED == 0)
}

/// Takes the sleeper of a sleep word for the source of a transfer: clears the word and returns how the consumer sleeps,
/// and then the caller must wake it. Returns 0, and changes nothing, if the consumer is awake or sleeps where the
/// source cannot wake it (without [`RELAYED`]). The source calls this after [`hand_over`] or [`cancel`].
#[inline]
pub fn take_sleeper_if_relayed(word: &impl Word<u32>) -> u32 {
    take_sleeper_that(word, |how| how & RELAYED != 0)
}

#[inline]
fn take_sleeper_that(word: &impl Word<u32>, ours: impl Fn(u32) -> bool) -> u32 {
    let how = word.load(SeqCst);
    // A plain exchange could take a sleeper of the other kind, if the sleep word changed in between. A single attempt
    // is enough: see the head of this file.
    if how != 0 && ours(how) && word.compare_exchange(how, 0, SeqCst, SeqCst).is_ok() { how } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::tests::harness::{InOperations, Table};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, AtomicU64};

    type Plain = Arc<Table<AtomicU32, AtomicU64, InOperations>>;

    #[test]
    fn every_step_says_what_it_found() {
        type Step = fn(&AtomicU32) -> Option<TransferState>;
        let steps: [(&str, Step); 4] = [
            ("transfer over", |word| hand_over::<Plain>(word)),
            ("cancel", |word| cancel::<Plain>(word)),
            ("claim", |word| claim(word)),
            ("abandon", |word| abandon(word)),
        ];
        for (name, from, to) in [
            ("transfer over", 0, 1),
            ("transfer over", 1, 1),
            ("transfer over", 2, 2),
            ("transfer over", 3, 3),
            ("transfer over", 4, 4),
            ("cancel", 0, 4),
            ("cancel", 1, 1),
            ("cancel", 2, 2),
            ("cancel", 3, 3),
            ("cancel", 4, 4),
            ("claim", 0, 2),
            ("claim", 1, 2),
            ("claim", 2, 2),
            ("claim", 3, 3),
            ("claim", 4, 4),
            ("abandon", 0, 3),
            ("abandon", 1, 1),
            ("abandon", 2, 2),
            ("abandon", 3, 3),
            ("abandon", 4, 4),
            ("transfer over", 77, 77),
            ("cancel", 77, 77),
            ("claim", 77, 77),
            ("abandon", 77, 77),
        ] {
            let word = AtomicU32::new(from);
            let (_, step) = steps.iter().find(|(of, _)| *of == name).unwrap();
            assert_eq!(step(&word), TransferState::from_word(from), "{name} from {from}");
            assert_eq!(word.into_inner(), to, "{name} from {from}");
        }
    }

    #[test]
    fn each_waker_takes_only_whom_it_can_wake() {
        for how in [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, u32::MAX] {
            let relayed = how & RELAYED != 0;
            let word = AtomicU32::new(how);
            assert_eq!(take_sleeper_unless_relayed(&word), if relayed { 0 } else { how });
            assert_eq!(word.into_inner(), if relayed { how } else { 0 });
            let word = AtomicU32::new(how);
            assert_eq!(take_sleeper_if_relayed(&word), if relayed { how } else { 0 });
            assert_eq!(word.into_inner(), if relayed { 0 } else { how });
        }
    }
}
