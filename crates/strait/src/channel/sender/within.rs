//! Messages whose reader is in this very process: their handles, or the value that they are, are left to it as they are.

use super::Tx;
use crate::channel::End;
use crate::link::{Amount, Handles, Link, Number, reach};
use crate::ring::Ended;
use crate::wake::lock::Guard;

impl End {
    /// Commits the message that was staged last, and leaves this to its reader. If nobody reads it here that comes back: the other
    /// end was closed, or has left this process.
    pub(in crate::channel) fn commit_within(
        &self,
        tx: &mut Guard<'_, Tx>,
        left: Handles,
        amount: Amount,
    ) -> Option<(Ended, Handles)> {
        let (own, token, sequence) = (Link::own(), tx.lane.token_out(), tx.sequence - 1);
        let message = Number::first(sequence);
        leave(tx, message, left);
        tx.note_in_flight_of(sequence, amount);
        let Some(ended) = self.commit_once(tx) else {
            own.stash().committed(token, message);
            if tx.lane.has_other_left() {
                // Somebody wrote into the ring that it was closed, or led it elsewhere.
                own.discard_stashed(token);
            }
            return None;
        };
        Some((ended, own.stash().take_handles(token, message, 0).unwrap_or_default()))
    }
}

/// Leaves something to who reads in this process what is sent here.
pub(in crate::channel) fn leave(tx: &mut Tx, message: Number, left: Handles) {
    let is_away = left.is_away() && !tx.lane.is_other_here();
    let old = Link::own().stash().deposit(tx.lane.token_out(), message, left);
    drop(old);
    if is_away {
        // What they use is kept for nobody else from here on.
        reach::forget_what_nothing_leads_to();
    }
    tx.attach();
}
