//! Batches: messages that appear at the receiver at once.

use super::Tx;
use crate::channel::End;
use crate::channel::message::Parts;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::ring::{PACKABLE, Packing};
use crate::wake::lock::Guard;

/// A batch of messages that [`send_many`](crate::Channel::send_many) stages and has not committed. Dropping the batch
/// commits the messages that are complete, also if the caller's iterator panics.
pub(super) struct Batch<'a, 'b> {
    pub(in crate::channel) end: &'a End,
    pub(in crate::channel) tx: &'a mut Guard<'b, Tx>,
    pub(in crate::channel) pack: Option<Packing>,
    pub(in crate::channel) deadline: Deadline,
}

impl Batch<'_, '_> {
    /// Stages a message without waiting: a short message in a packed record, a longer message in its own record. Begins
    /// a new packed record when the present one is full. Returns `false`, with nothing staged, if the message is too
    /// long for the ring or not in one piece, or if there is no room.
    #[inline]
    pub(super) fn stage_packed(&mut self, parts: Parts<'_>) -> bool {
        let Parts::One(bytes) = parts else { return false };
        if !self.end.is_plain(self.tx, bytes.len()) {
            return false;
        }
        let staged = (bytes.len() <= PACKABLE && self.pack(bytes)) || {
            self.end_pack();
            self.tx.producer.stage_plain(bytes)
        };
        if staged {
            self.end.count_staged(self.tx, bytes.len());
        }
        staged
    }

    #[inline]
    fn pack(&mut self, bytes: &[u8]) -> bool {
        loop {
            let fresh = self.pack.is_none();
            if fresh {
                self.pack = self.tx.producer.begin_pack();
            }
            let Some(pack) = &mut self.pack else { return false };
            if self.tx.producer.pack(pack, bytes) {
                return true;
            }
            self.end_pack();
            if fresh {
                return false;
            }
        }
    }

    pub(super) fn end_pack(&mut self) {
        if let Some(pack) = self.pack.take() {
            self.tx.producer.end_pack(pack);
        }
    }

    pub(in crate::channel) fn commit(&mut self) -> Result<(), Error> {
        self.end_pack();
        self.end.commit(self.tx, self.deadline)
    }
}

impl Drop for Batch<'_, '_> {
    fn drop(&mut self) {
        // After a normal end of the batch, nothing is left to commit.
        let _ = self.commit();
    }
}
