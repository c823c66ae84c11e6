//! Messages to a receiver in this process, which gets their handles, or values, without a conversion.

use super::Tx;
use crate::channel::End;
use crate::link::routes::retention;
use crate::link::{Amount, Handles, Link};
use crate::ring::Ended;
use crate::wake::lock::Guard;

impl End {
    /// Commits the message that was staged last, and leaves its handles or value (`left`) in the inbox for the
    /// receiver, which is in this process. Returns `None` on success. If the other end was closed or has left this
    /// process, returns how the ring was ended, and `left`.
    pub(in crate::channel) fn commit_local(
        &self,
        tx: &mut Guard<'_, Tx>,
        left: Handles,
        amount: Amount,
    ) -> Option<(Ended, Handles)> {
        let (own, token, message) = (Link::own(), tx.lane.token_out(), tx.sequence - 1);
        leave(tx, message, left);
        tx.note_in_flight_of(message, amount);
        let Some(ended) = self.commit_once(tx) else {
            own.inbox().committed(token, message);
            if tx.lane.has_other_left() {
                // A process with this memory has marked the ring as closed, or as ended elsewhere, so no end in this
                // process reads the ring.
                own.discard_received(token);
            }
            return None;
        };
        Some((ended, own.inbox().take_handles(token, message, 0).unwrap_or_default()))
    }
}

/// Leaves handles or a value in the inbox of this process, for the receiver of the message with the number `message` in
/// the ring that `tx` writes.
pub(in crate::channel) fn leave(tx: &mut Tx, message: u64, left: Handles) {
    let is_in_transit = left.is_in_transit() && !tx.lane.is_other_here();
    let old = Link::own().inbox().deposit(tx.lane.token_out(), message, left);
    drop(old);
    if is_in_transit {
        // Links that only these handles use may now be unreachable; such links are closed.
        retention::forget_unreachable();
    }
    tx.attach();
}
