//! Messages whose payload is out of line: in blocks of the pool, or in sealed memory of their own.

use super::Tx;
use crate::channel::End;
use crate::channel::handle::Handle;
use crate::channel::pool::{BlockRecord, Loan};
use crate::channel::transfer::ends::Content;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::packet::Packet;
use crate::link::{Amount, Attachments};
use crate::ring::{Header, RecordKind};
use crate::shm::Shareable;
use crate::wake::lock::Guard;

impl End {
    /// Stages a message of `len` bytes whose payload is in a block (`loan`). `filled` is the result of writing the
    /// payload there. If the peer does not know the block yet, one packet carries its memory and all handles. On an
    /// error nothing is staged, and the block goes back to the pool.
    pub(in crate::channel) fn stage_block(
        &self,
        tx: &mut Guard<'_, Tx>,
        loan: &Loan,
        len: usize,
        filled: Result<(), Error>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let header = tx.header(RecordKind::Block, BlockRecord::SIZE, handles.len());
        self.stage_block_as(tx, loan, len, filled, header, handles, deadline)
    }

    /// Stages a message of `len` bytes whose payload is in a block (`loan`), under the given header. The header says
    /// what the message's handles are; `handles` are those that travel as descriptors. On an error nothing is staged,
    /// and the block goes back to the pool.
    #[allow(clippy::too_many_arguments, reason = "all of it is what the message is")]
    pub(in crate::channel) fn stage_block_as(
        &self,
        tx: &mut Guard<'_, Tx>,
        loan: &Loan,
        len: usize,
        filled: Result<(), Error>,
        header: Header,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let staged = filled.and_then(|()| {
            let slot = self.stage_record(tx, header, deadline)?;
            tx.producer.write(slot, 0, &loan.record.with_len(len).encode());
            // Only the present peer knows the block.
            tx.attached = true;
            let Some(memory) = &loan.fresh else { return self.finish_stage(tx, len, handles, deadline) };
            let (message, id, count) = (tx.number(), loan.record.id, handles.len() as u32);
            let packet = |token| Packet::Block { token, id, message, handles: count };
            let attachments = Attachments { memory: Some(memory), handles, ..Attachments::NOTHING };
            self.send_packet(tx, packet, attachments, handles.len() + 1, deadline)?;
            tx.note_in_flight(Amount { handles: handles.len(), memories: 1, sealed: 0 });
            self.count_staged(tx, len);
            Ok(())
        });
        // If the other end has moved, this pool no longer exists.
        if staged.is_err() && !tx.moved {
            tx.pool().take_back(loan);
        }
        staged
    }

    /// Sends a message of `len` bytes whose payload is in sealed memory of its own. After success, `handles` holds the
    /// handles that the caller has to close; after an error, all of them.
    pub(in crate::channel) fn send_sealed(
        &self,
        memory: &Shareable,
        len: usize,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut tx = self.lock_tx(deadline)?;
        let tx = &mut tx;
        loop {
            let local = !handles.is_empty() && self.is_local(tx, deadline)?;
            let sent = if local || !handles.iter().all(Handle::is_plain) {
                self.send_ends(tx, Content::Sealed(memory, len), handles, deadline)
            } else {
                tx.pin();
                self.stage_sealed(tx, memory, len, handles, deadline).and_then(|()| self.commit(tx, deadline))
            };
            tx.unpin();
            match sent {
                Ok(()) => return Ok(()),
                Err(_) if tx.has_moved() => {}
                Err(error) => {
                    tx.discard();
                    return Err(error);
                }
            }
        }
    }

    /// Stages a message of `len` bytes whose payload is in sealed memory of its own. Sends the memory and the handles
    /// over the socket.
    pub(super) fn stage_sealed(
        &self,
        tx: &mut Guard<'_, Tx>,
        memory: &Shareable,
        len: usize,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        // Between processes the memory is one more descriptor in flight.
        let descriptors = tx.descriptors(handles.len() + 1);
        self.wait_for_quotas(tx, descriptors, len, deadline)?;
        let slot = self.stage_record(tx, tx.header(RecordKind::Sealed, 8, handles.len()), deadline)?;
        let (message, count) = (tx.number(), handles.len() as u32);
        let packet = |token| Packet::Sealed { token, message, handles: count };
        let attachments = Attachments { memory: Some(memory), handles, ..Attachments::NOTHING };
        self.send_packet(tx, packet, attachments, handles.len() + 1, deadline)?;
        tx.producer.write(slot, 0, &(len as u64).to_le_bytes());
        let amount = Amount { handles: tx.descriptors(handles.len() + 1), memories: 0, sealed: len };
        tx.note_in_flight(amount);
        self.count_staged(tx, len);
        self.counts.cold().out_of_line.add(1);
        Ok(())
    }
}
