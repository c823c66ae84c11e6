//! Messages with their payload out of line: in blocks of the pool, or in sealed memory of their own.

use super::Tx;
use crate::channel::End;
use crate::channel::handle::{self, Handle};
use crate::channel::pool::Loan;
use crate::channel::transfer::ends::Content;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::packet::PayloadMemory;
use crate::link::{Amount, Attachments};
use crate::ring::{Header, RecordKind};
use crate::shm::Shareable;
use crate::wake::lock::Guard;

impl End {
    /// Stages a message of `len` bytes whose payload is in a block (`loan`), under the given header. `filled` is the
    /// result of writing the payload into the block. `attachments` are the other attachments of the message; if the
    /// peer does not know the block yet, the memory of the block goes along. On an error the message is not staged, and
    /// the block goes back to the pool.
    #[allow(clippy::too_many_arguments, reason = "all of it is what the message is")]
    pub(in crate::channel) fn stage_block(
        &self,
        tx: &mut Guard<'_, Tx>,
        loan: &Loan,
        len: usize,
        filled: Result<(), Error>,
        header: Header,
        attachments: Attachments<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let staged = filled.and_then(|()| {
            let slot = self.stage_record(tx, header, deadline)?;
            tx.producer.write(slot, 0, &loan.record.with_len(len).encode());
            // Only the present peer knows the block.
            tx.attach();
            let Some(memory) = &loan.fresh else { return self.finish_stage(tx, len, attachments, deadline) };
            let attachments = Attachments { memory: Some(memory), ..attachments };
            let amount = Amount { memories: 1, ..Amount::default() };
            self.send_attachments(tx, PayloadMemory::Block(loan.record.id), attachments, amount, deadline)?;
            self.count_staged(tx, len);
            Ok(())
        });
        // If the other end has moved, this pool no longer exists.
        if staged.is_err() && !tx.moved {
            tx.pool().take_back(loan);
        }
        staged
    }

    /// Sends a message of `len` bytes with a payload in its own sealed memory. After success, `handles` holds the
    /// handles that the caller has to close; after an error, all handles.
    pub(in crate::channel) fn send_sealed(
        &self,
        memory: &Shareable,
        len: usize,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut tx = self.lock_tx(deadline)?;
        self.attempt_in_each_lane(&mut tx, deadline, |tx| {
            let local = !handles.is_empty() && self.is_local(tx, deadline)?;
            if local || !handles.iter().all(Handle::is_plain) {
                return self.send_ends(tx, Content::Sealed(memory, len), handles, deadline);
            }
            tx.pin();
            // Between processes the memory is one more descriptor in flight.
            let descriptors = tx.descriptors(handles.len() + 1);
            let header = Header::new(RecordKind::Sealed, 8, handles.len());
            let open = handle::descriptors(handles);
            let attachments = Attachments::descriptors(&open);
            self.wait_for_quotas(tx, descriptors, len, deadline)?;
            self.stage_sealed(tx, memory, len, header, attachments, deadline)?;
            self.commit(tx, deadline)
        })
    }

    /// Stages a message of `len` bytes with a payload in its own sealed memory, under the given header. Sends the
    /// memory over the socket, with `attachments`, the other attachments of the message.
    pub(in crate::channel) fn stage_sealed(
        &self,
        tx: &mut Guard<'_, Tx>,
        memory: &Shareable,
        len: usize,
        header: Header,
        attachments: Attachments<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let slot = self.stage_record(tx, header, deadline)?;
        tx.producer.write(slot, 0, &(len as u64).to_le_bytes());
        let attachments = Attachments { memory: Some(memory), ..attachments };
        let amount = Amount { sealed: len, ..Amount::handles(tx.descriptors(1)) };
        self.send_attachments(tx, PayloadMemory::Sealed, attachments, amount, deadline)?;
        self.count_staged(tx, len);
        self.counts.cold().out_of_line.add(1);
        Ok(())
    }
}
