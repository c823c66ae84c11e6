//! Messages to a receiver in this process: handles and values arrive without a conversion.

use super::Tx;
use crate::channel::End;
use crate::channel::message::MessageExtras;
use crate::lane::mailbox::{self, mailbox};
use crate::lane::retention;
use crate::link::Amount;
use crate::link::InTransit;
use crate::ring::Ended;
use crate::wake::lock::Guard;

impl End {
    /// Commits the last staged message, whose receiver is in this process. Leaves `extras`, the handles or the value of
    /// the message, in the mailbox for the receiver. `in_transit` is the retention mark for channel ends among the
    /// handles. `read_by_ends` are the tokens of the rings within this process that these ends read.
    ///
    /// Returns `None` on success. If the other end was closed or has left this process, returns how the ring was ended,
    /// and `extras` from the mailbox. `extras` are missing if another process with the memory of the ring has put
    /// another message in their place.
    pub(in crate::channel) fn commit_local(
        &self,
        tx: &mut Guard<'_, Tx>,
        extras: Box<MessageExtras>,
        in_transit: Option<InTransit>,
        read_by_ends: Vec<u128>,
        amount: Amount,
    ) -> Option<(Ended, Option<Box<MessageExtras>>)> {
        let (token, message) = (tx.lane.token_out(), tx.sequence - 1);
        leave(tx, message, extras, in_transit, read_by_ends, false);
        tx.note_in_flight_of(message, amount);
        let Some(ended) = self.commit_once(tx) else {
            mailbox().committed(token, message);
            if tx.lane.has_other_left() {
                // A process with the memory has marked the ring as closed, or as ended elsewhere, so no end in this
                // process reads the ring.
                mailbox::discard(token..=token);
            }
            return None;
        };
        let parcel = mailbox::take(token, message, 0);
        Some((ended, parcel.map(MessageExtras::of_parcel)))
    }
}

/// Leaves handles or a value in the mailbox of this process, for the receiver of the message with the number `message`
/// in the outgoing ring of `tx`. `in_transit` is the retention mark for channel ends among the handles, and
/// `read_by_ends` are the tokens of the rings within this process read by these ends. Unless `is_committed`, the sender
/// takes the parcel back if the message cannot be committed.
pub(in crate::channel) fn leave(
    tx: &mut Tx,
    message: u64,
    extras: Box<MessageExtras>,
    in_transit: Option<InTransit>,
    read_by_ends: Vec<u128>,
    is_committed: bool,
) {
    let is_in_transit = in_transit.is_some() && !tx.lane.is_other_here();
    let old = mailbox().leave(tx.lane.token_out(), message, extras, in_transit, read_by_ends, is_committed);
    drop(old);
    if is_in_transit {
        // Links used by these handles only may now be unreachable; such links are closed.
        retention::forget_unreachable();
    }
    tx.attach();
}
