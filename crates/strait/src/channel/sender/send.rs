//! Sending: the calls that send messages, and the staging of records.

use super::Tx;
use super::batch::Batch;
use crate::blocked_on::{self, BlockedOn};
use crate::channel::handle::{Handle, descriptors};
use crate::channel::message::{Outgoing, Parts};
use crate::channel::pool::{self, BlockRecord};
use crate::channel::receiver::next::MOST_LANES;
use crate::channel::transfer::ends::Content;
use crate::channel::{Channel, End, SendError, SendManyError, WakeOnDrop};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::link::packet::PayloadMemory;
use crate::link::{Amount, Attachments};
use crate::ring::{Ended, Header, ONE_CELL, RecordKind, Slot};
use crate::signals;
use crate::wake::Direction;
use crate::wake::lock::Guard;

impl Channel {
    // Always inlined: the function only passes its arguments on to another small function.
    /// Sends a message; waits for room without a time limit.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`], except that the call never times out.
    #[inline(always)]
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.end.send(message.into(), Deadline::NEVER)
    }

    /// Sends a message if there is room for the message now. Does not block.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room; otherwise the errors of [`Channel::send_by`].
    #[inline]
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.end.send(message.into(), Deadline::NOW)
    }

    /// Sends a message; waits for room until the deadline.
    ///
    /// The bytes are copied once, straight into shared memory. After a send, the handles of the message are closed in
    /// this process. Otherwise the error contains the handles.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`]; [`Error::MessageTooLarge`] and [`Error::TooManyHandles`] by the
    /// options of this end; [`Error::BadHandle`]; [`Error::NoDescriptors`] or [`Error::NoMemory`] if a large message
    /// needs memory that cannot be had; [`Error::BadPeer`]; [`Error::Forked`]; [`Error::System`].
    #[inline]
    pub fn send_by<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        self.end.send(message.into(), deadline.into())
    }

    /// Sends messages in batches: as many messages as fit into the ring appear at the peer at once, with one wake-up.
    /// Returns the number of messages sent, which is the number of all messages.
    ///
    /// The call keeps the sending direction for itself until the iterator ends. Meanwhile other calls that send on this
    /// end wait, and fail with [`Error::WouldBlock`] if they must not wait. So the iterator itself must not wait to
    /// send on this end: the send would wait for the iterator.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// a.send_many(["one", "two", "three"], strait::Deadline::NEVER)?;
    /// assert_eq!(b.recv()?.bytes(), b"one");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`], for the first message that could not be sent. All messages before the failed
    /// message were sent. If the iterator was passed by reference, the messages after the failed one are still in the
    /// iterator.
    pub fn send_many<'a, I>(&self, messages: I, deadline: impl Into<Deadline>) -> Result<usize, SendManyError>
    where
        I: IntoIterator,
        I::Item: Into<Outgoing<'a>>,
    {
        deferred::run_if_failed(self.end.send_many(messages.into_iter().map(Into::into), deadline.into()))
    }
}

/// The result of [`End::push_one`].
pub(in crate::channel) enum Pushed {
    /// The message was published, and nothing else is to be done.
    Yes,
    /// The message was published, and the caller has to call [`End::committed`].
    Look,
    /// Nothing was published.
    No,
}

impl End {
    // By value, so that a caller that inlines this function builds the message only for the slow path.
    #[inline(always)]
    fn send(&self, message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        let Some(bytes) = message.only_bytes() else { return self.send_owned(message, deadline) };
        // The message has nothing to drop.
        std::mem::forget(message);
        let sent = if bytes.len() <= ONE_CELL { self.send_short(bytes) } else { self.send_plainly(bytes) };
        if sent { Ok(()) } else { self.send_bytes(bytes, deadline) }
    }

    /// Sends a message of `bytes` as [`Channel::send_by`] does, in all cases.
    #[inline(never)]
    fn send_bytes(&self, bytes: &[u8], deadline: Deadline) -> Result<(), SendError> {
        self.send_any(&mut Outgoing::new(bytes), deadline)
    }

    /// Sends a message as [`Channel::send_by`] does, in all cases.
    #[inline(never)]
    fn send_owned(&self, mut message: Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.send_any(&mut message, deadline)
    }

    /// Sends a message of one cell without handles, if the lock is free, nothing ends or moves the channel, and the
    /// ring has room: the common case, in few instructions. Returns `false`, with nothing sent, in all other cases.
    ///
    /// The function calls no other function except as its last step. So the processor's registers need not be saved.
    #[inline(never)]
    fn send_short(&self, bytes: &[u8]) -> bool {
        if !self.born.is_elsewhere()
            && let Some(mut tx) = self.tx.try_lock()
        {
            match self.push_one(&mut tx, bytes) {
                Pushed::Yes => return true,
                Pushed::Look => return self.look_after_push(tx),
                Pushed::No => {}
            }
        }
        false
    }

    /// Publishes a message of one cell in the ring, if nothing needs a further look and the cell is known to be free.
    #[inline(always)]
    pub(in crate::channel) fn push_one(&self, tx: &mut Tx, bytes: &[u8]) -> Pushed {
        if !tx.is_open() || !self.is_plain(tx, bytes.len()) || !tx.producer.push_one(bytes) {
            return Pushed::No;
        }
        self.count_plain(tx, bytes.len());
        if self.is_look_due(tx) { Pushed::Look } else { Pushed::Yes }
    }

    #[cold]
    #[inline(never)]
    fn look_after_push(&self, mut tx: Guard<'_, Tx>) -> bool {
        self.committed(&mut tx);
        // Not a constant to the compiler, so that this function's call is the caller's last step.
        std::hint::black_box(true)
    }

    /// Sends a longer message in the cases of [`End::send_short`].
    #[inline(never)]
    fn send_plainly(&self, bytes: &[u8]) -> bool {
        !self.born.is_elsewhere() && self.tx.try_lock().is_some_and(|mut tx| self.send_plainly_held(&mut tx, bytes))
    }

    /// Sends a message as [`End::send_plainly`] does, for a caller that holds the lock.
    #[inline]
    pub(in crate::channel) fn send_plainly_held(&self, tx: &mut Guard<'_, Tx>, bytes: &[u8]) -> bool {
        if self.born.is_elsewhere() || !tx.is_open() || !self.is_plain(tx, bytes.len()) || !tx.producer.push(bytes) {
            return false;
        }
        self.count_plain(tx, bytes.len());
        self.committed(tx);
        true
    }

    /// Sends a message as [`Channel::send_by`] does, in all cases.
    #[inline(never)]
    pub(crate) fn send_any(&self, message: &mut Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.lock_tx(deadline).and_then(|mut tx| self.send_locked(&mut tx, message, deadline)).map_err(|error| {
            deferred::run();
            SendError::new(error, std::mem::take(&mut message.handles))
        })
    }

    /// Sends a message as [`End::send_any`] does, for a caller that holds the lock for good.
    pub(in crate::channel) fn send_any_held(
        &self,
        tx: &mut Guard<'_, Tx>,
        message: &mut Outgoing<'_>,
        deadline: Deadline,
    ) -> Result<(), SendError> {
        self.check_held(tx, deadline).and_then(|()| self.send_locked(tx, message, deadline)).map_err(|error| {
            deferred::run();
            SendError::new(error, std::mem::take(&mut message.handles))
        })
    }

    /// Sends messages in batches as [`Channel::send_many`] does, for a caller that holds the lock for good.
    pub(in crate::channel) fn send_many_held<'a>(
        &self,
        tx: &mut Guard<'_, Tx>,
        mut messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        deferred::run_if_failed(match self.check_held(tx, deadline) {
            Ok(()) => self.send_many_locked(tx, messages, deadline),
            Err(error) => {
                let handles = messages.next().map(|message| message.handles).unwrap_or_default();
                Err(SendManyError { sent: 0, failed: SendError::new(error, handles) })
            }
        })
    }

    /// Makes the checks of [`End::lock_tx`] for a caller that holds the lock permanently.
    #[inline]
    fn check_held(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        self.born.check()?;
        if tx.is_open() || tx.is_usable() { Ok(()) } else { self.check_open(tx, deadline) }
    }

    // Always inlined: it is the whole of two small functions, of which each is called for every message.
    #[inline(always)]
    fn send_locked(&self, tx: &mut Guard<'_, Tx>, message: &mut Outgoing<'_>, deadline: Deadline) -> Result<(), Error> {
        if self.send_plain(tx, message) {
            self.committed(tx);
            return Ok(());
        }
        self.send_slowly(tx, message.parts, &mut message.handles, deadline)
    }

    /// Publishes a plain message in the ring: one without handles that is short enough for the ring and within the
    /// limits. Returns `false`, with nothing sent, if the message is not plain or the ring has no room. The caller
    /// still has to wake the peer.
    #[inline(always)]
    fn send_plain(&self, tx: &mut Guard<'_, Tx>, message: &Outgoing<'_>) -> bool {
        if message.handles.is_empty()
            && let Some(len) = message.parts.len()
            && self.is_plain(tx, len)
            && match message.parts {
                Parts::One(bytes) => tx.producer.push(bytes),
                Parts::Many(parts) => tx.producer.push_parts(parts, len),
            }
        {
            self.count_plain(tx, len);
            return true;
        }
        false
    }

    /// Counts a message of `len` bytes without handles that was published in the ring.
    #[inline(always)]
    fn count_plain(&self, tx: &mut Tx, len: usize) {
        tx.sequence += 1;
        self.counts.messages_sent.add(1);
        self.counts.bytes_sent.add(len as u64);
    }

    /// Sends a message; waits for room until the deadline. If the peer sleeps, the call may return the wake-up that is
    /// due instead of waking the peer: the caller wakes the peer by dropping the returned [`WakeOnDrop`]. `None` if no
    /// wake-up is due.
    pub(crate) fn send_with_deferred_wake(
        &self,
        message: &mut Outgoing<'_>,
        deadline: Deadline,
    ) -> Result<Option<WakeOnDrop>, SendError> {
        let sent = self.lock_tx(deadline).and_then(|mut tx| {
            if self.send_plain(&mut tx, message) {
                return Ok(self.committed_with_deferred_wake(&mut tx));
            }
            // This call may have to wait for room, and a sleeping peer makes none. So the call wakes the peer itself.
            self.send_slowly(&mut tx, message.parts, &mut message.handles, deadline).map(|()| None)
        });
        sent.map_err(|error| {
            deferred::run();
            SendError::new(error, std::mem::take(&mut message.handles))
        })
    }

    /// Returns whether a message of `len` bytes without handles needs only room in the ring: the message is short
    /// enough for the ring, and the limits allow one more message in flight.
    #[inline]
    pub(in crate::channel) fn is_plain(&self, tx: &Tx, len: usize) -> bool {
        len <= self.plain_limit && tx.sequence - tx.taken < self.options.queue_messages
    }

    /// Counts a message of `len` bytes that was staged and is not committed yet.
    #[inline]
    pub(in crate::channel) fn count_staged(&self, tx: &mut Tx, len: usize) {
        tx.sequence += 1;
        tx.uncommitted.0 += 1;
        tx.uncommitted.1 += len as u32;
    }

    /// Returns whether the other end is in this process. While the other end is in transit, waits until its destination
    /// is known. The answer may be out of date as soon as the other end moves again.
    pub(in crate::channel) fn is_local(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<bool, Error> {
        self.wait_for_hand_over(tx, deadline)?;
        Ok(tx.lane.link().is_local())
    }

    /// Sends one message of any kind, on the slow path. If the other end moves meanwhile, stages the message again in
    /// the new lane of the other end.
    #[inline(never)]
    pub(in crate::channel) fn send_slowly(
        &self,
        tx: &mut Guard<'_, Tx>,
        parts: Parts<'_>,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.attempt_in_each_lane(tx, deadline, |tx| {
            let local = !handles.is_empty() && self.is_local(tx, deadline)?;
            if local || !handles.iter().all(Handle::is_plain) {
                self.send_ends(tx, Content::Parts(parts), handles, deadline)
            } else {
                self.stage(tx, parts, handles, deadline).and_then(|()| self.commit(tx, deadline))
            }
        })
    }

    /// Calls `attempt`, which sends one message in the present lane, and calls `attempt` again whenever the message has
    /// to be staged again, because the other end has moved and this end has followed to another lane. Returns any other
    /// result. On any other error discards the staged records.
    ///
    /// # Errors
    /// The errors of `attempt`, and the errors of [`End::goes_on`], called after each [`MOST_LANES`] lanes.
    pub(in crate::channel) fn attempt_in_each_lane<T>(
        &self,
        tx: &mut Guard<'_, Tx>,
        deadline: Deadline,
        mut attempt: impl FnMut(&mut Guard<'_, Tx>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        for lanes in 1.. {
            let sent = attempt(tx);
            tx.unpin();
            match sent {
                Ok(sent) => return Ok(sent),
                Err(error) if tx.has_moved() => signals::postpone(error),
                Err(error) => {
                    tx.discard();
                    return Err(error);
                }
            }
            if lanes % MOST_LANES == 0 {
                self.goes_on(deadline, Direction::Sending)?;
            }
        }
        unreachable!("a call goes on for as long as it takes")
    }

    fn send_many<'a>(
        &self,
        mut messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        match self.lock_tx(deadline) {
            Ok(mut tx) => self.send_many_locked(&mut tx, messages, deadline),
            Err(error) => {
                // As after an attempt: the first message is taken from the iterator, and the error contains its
                // handles.
                let handles = messages.next().map(|message| message.handles).unwrap_or_default();
                Err(SendManyError { sent: 0, failed: SendError::new(error, handles) })
            }
        }
    }

    fn send_many_locked<'a>(
        &self,
        tx: &mut Guard<'_, Tx>,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        let mut outcome = Ok(());
        let mut staged = 0;
        let mut unsent = Vec::new();
        // The iterator is code of the program, and may take long or use this channel.
        let marked = self.mark_blocking(tx);
        let mut batch = Batch { end: self, tx: &mut *marked.guard, pack: None, deadline };
        for Outgoing { parts, mut handles } in messages {
            if handles.is_empty() && batch.stage_packed(parts) {
                staged += 1;
                continue;
            }
            batch.end_pack();
            let small = parts.len().is_some_and(|len| len <= self.options.inline_limit());
            outcome = if handles.is_empty() && small {
                self.stage(batch.tx, parts, &[], deadline)
            } else {
                // Attachments go through the socket, so this message is not part of a batch.
                batch.commit().and_then(|()| self.send_slowly(batch.tx, parts, &mut handles, deadline))
            };
            if outcome.is_err() {
                unsent = handles;
                break;
            }
            staged += 1;
        }
        // All messages before the failed message are complete, and so are committed.
        let committed = batch.commit();
        drop(batch);
        drop(marked);
        let sent = staged - tx.uncommitted.0 as usize;
        outcome.and(committed).map(|()| sent).map_err(|error| {
            tx.discard();
            SendManyError { sent, failed: SendError::new(error, unsent) }
        })
    }

    #[inline]
    pub(in crate::channel) fn lock_tx(&self, deadline: Deadline) -> Result<Guard<'_, Tx>, Error> {
        self.born.check()?;
        let mut tx =
            self.tx.lock_unless(deadline, || self.interruption()).inspect_err(|_| blocked_on::note(BlockedOn::Lock))?;
        if !tx.is_open() && !tx.is_usable() {
            self.check_open(&mut tx, deadline)?;
        }
        Ok(tx)
    }

    /// Checks that this end can still send. If the other end moved before its old process died, this end follows to the
    /// next lane.
    ///
    /// # Errors
    /// The error with which the sending direction has ended.
    #[cold]
    fn check_open(&self, tx: &mut Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        for lanes in 1.. {
            match (tx.ended(), tx.delayed()) {
                (Some(error), _) => return Err(error),
                (None, Some(error)) => self.finish_delayed(tx, error)?,
                (None, None) if !tx.lane.is_down() => return Ok(()),
                (None, None) => match tx.producer.ended() {
                    Some(Ended(Some(RecordKind::Frozen))) => self.follow_frozen(tx)?,
                    // The direction ends for good. Otherwise a peer that only pretended to be dead could go on as if
                    // nothing had happened.
                    _ => {
                        let reason = tx.lane.reason();
                        return Err(tx.end_with(reason));
                    }
                },
            }
            if lanes % MOST_LANES == 0 {
                self.goes_on(deadline, Direction::Sending)?;
            }
        }
        unreachable!("a call goes on for as long as it takes")
    }

    /// Checks the size and the number of handles of a message against the limits of this end's options. Returns the
    /// message's length in bytes. Fails with [`Error::MessageTooLarge`] or [`Error::TooManyHandles`] if a limit is
    /// exceeded.
    #[inline]
    pub(in crate::channel) fn check(&self, parts: &Parts<'_>, handles: &[Handle]) -> Result<usize, Error> {
        let len = parts.len().unwrap_or(usize::MAX);
        self.check_size(len, handles).map(|()| len)
    }

    /// Checks the size and the number of handles of a message of `len` bytes with these handles against the limits of
    /// this end's options: Fails with [`Error::MessageTooLarge`] or [`Error::TooManyHandles`] if a limit is exceeded.
    #[inline]
    pub(in crate::channel) fn check_size(&self, len: usize, handles: &[Handle]) -> Result<(), Error> {
        let limit = self.options.max_message;
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        if handles.len() > self.options.max_handles {
            return Err(Error::TooManyHandles { count: handles.len(), limit: self.options.max_handles });
        }
        Ok(())
    }

    /// Stages a message behind the records that are staged already; waits for room until `deadline`. The message
    /// becomes visible to the peer with [`End::commit`].
    #[inline]
    fn stage(
        &self,
        tx: &mut Guard<'_, Tx>,
        parts: Parts<'_>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let len = self.check(&parts, handles)?;
        if !handles.is_empty() || len > self.options.inline_limit() {
            // Sending attachments may have to wait for room in the socket. The peer makes room by taking the earlier
            // messages.
            self.commit(tx, deadline)?;
            tx.pin();
        }
        self.wait_for_quotas(tx, handles.len(), 0, deadline)?;
        if len <= self.options.inline_limit() {
            let slot = self.stage_record(tx, Header::new(RecordKind::Message, len, handles.len()), deadline)?;
            let producer = &tx.producer;
            parts.each(|at, bytes| {
                producer.write(slot, at, bytes);
                Ok::<(), Error>(())
            })?;
            self.finish_inline(tx, len, handles, deadline)
        } else {
            let loan = self.borrow_block(tx, len, deadline)?;
            let filled = parts.each(|at, bytes| pool::fill(&loan, at, bytes));
            let header = Header::new(RecordKind::Block, BlockRecord::SIZE, handles.len());
            let descriptors = descriptors(handles);
            self.stage_block(tx, &loan, len, filled, header, Attachments::descriptors(&descriptors), deadline)
        }
    }

    /// Completes a message of `len` bytes with the payload in the staged record: sends its handles over the socket, and
    /// counts the message. The handles are file descriptors.
    #[inline]
    pub(in crate::channel) fn finish_inline(
        &self,
        tx: &mut Guard<'_, Tx>,
        len: usize,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        if !handles.is_empty() {
            self.send_descriptors(tx, handles, deadline)?;
        }
        self.count_staged(tx, len);
        Ok(())
    }

    /// Sends the handles of the message that was staged last over the socket. The handles are file descriptors.
    #[inline(never)]
    fn send_descriptors(&self, tx: &mut Guard<'_, Tx>, handles: &[Handle], deadline: Deadline) -> Result<(), Error> {
        let descriptors = descriptors(handles);
        let attachments = Attachments::descriptors(&descriptors);
        self.send_attachments(tx, PayloadMemory::None, attachments, Amount::default(), deadline)
    }

    /// Completes a message of `len` bytes after its record was staged: sends its attachments (without memory for the
    /// payload) over the socket, and counts the message.
    #[inline]
    pub(in crate::channel) fn finish_stage(
        &self,
        tx: &mut Guard<'_, Tx>,
        len: usize,
        attachments: Attachments<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if attachments.len() > 0 {
            self.send_attachments(tx, PayloadMemory::None, attachments, Amount::default(), deadline)?;
        }
        self.count_staged(tx, len);
        Ok(())
    }

    /// Sends the attachments of the last staged message over the socket, and counts them as in flight. `payload` gives
    /// the kind of memory among the attachments, and `amount` the amount to count for that memory.
    pub(super) fn send_attachments(
        &self,
        tx: &mut Guard<'_, Tx>,
        payload: PayloadMemory,
        attachments: Attachments<'_>,
        mut amount: Amount,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.send_message_packet(tx, tx.sequence, payload, attachments, deadline)?;
        amount.handles += attachments.descriptors.len();
        amount.memories += usize::from(attachments.table.is_some());
        tx.note_in_flight(amount);
        Ok(())
    }

    /// Stages a record with this header in the ring, and returns the place for the payload. Without room, lets the ring
    /// grow or waits until `deadline`.
    #[inline]
    pub(in crate::channel) fn stage_record(
        &self,
        tx: &mut Guard<'_, Tx>,
        header: Header,
        deadline: Deadline,
    ) -> Result<Slot, Error> {
        match tx.producer.stage(header) {
            Ok(slot) => Ok(slot),
            Err(_) => self.stage_when_room(tx, header, deadline),
        }
    }

    pub(in crate::channel) fn is_writable(&self) -> bool {
        let Ok(mut tx) = self.lock_tx(Deadline::NOW) else { return false };
        let header = Header::new(RecordKind::Message, 0, 0);
        let room = tx.producer.stage(header).is_ok() || tx.may_grow(self.options.ring_max_cells);
        tx.producer.discard();
        room && tx.refresh_taken().is_ok() && self.has_credit(&tx)
    }

    /// Returns whether, by the last read counts, the limits allow one more message with a descriptor in flight from
    /// this end.
    pub(in crate::channel) fn has_credit(&self, tx: &Tx) -> bool {
        tx.sequence - tx.taken < self.options.queue_messages && !self.are_too_many(tx, 1)
    }

    pub(in crate::channel) fn is_peer_closed(&self) -> bool {
        if self.born.is_elsewhere() {
            return false;
        }
        let Ok(mut tx) = self.tx.lock(Deadline::NOW) else { return false };
        tx.lane.current_link().probe_for_less();
        for _ in 0..MOST_LANES {
            match (tx.ended(), tx.producer.ended()) {
                (Some(error), _) => return error == Error::PeerClosed || tx.lane.is_down(),
                (None, Some(Ended(Some(RecordKind::Frozen)))) => {
                    // A temporary error says nothing about the other end: this process could not follow it now.
                    if let Err(error) = self.follow_frozen(&mut tx) {
                        return error == Error::PeerClosed;
                    }
                }
                (None, Some(_)) if tx.delayed().is_none() => return true,
                (None, _) => return tx.lane.is_down(),
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that, if the other end moves without end, a call checks its deadline after each [`MOST_LANES`] lanes, and
    /// goes on until then.
    #[test]
    fn a_call_checks_its_deadline_when_the_other_end_has_moved_very_often() {
        let (near, _far) = Channel::pair().unwrap();
        let attempts = |moves: usize, deadline: Deadline| {
            let mut count = 0;
            let mut tx = near.end.lock_tx(deadline).unwrap();
            let sent = near.end.attempt_in_each_lane(&mut tx, deadline, |tx| {
                count += 1;
                tx.moved = count <= moves;
                if tx.moved { Err(Error::WouldBlock) } else { Ok(()) }
            });
            (sent, count)
        };
        assert_eq!(attempts(MOST_LANES - 1, Deadline::NOW), (Ok(()), MOST_LANES));
        assert_eq!(attempts(4 * MOST_LANES, Deadline::NOW), (Err(Error::WouldBlock), MOST_LANES));
        assert_eq!(attempts(3 * MOST_LANES, Deadline::NEVER), (Ok(()), 3 * MOST_LANES + 1));
        near.interrupter().interrupt();
        assert_eq!(attempts(4 * MOST_LANES, Deadline::NEVER), (Err(Error::Interrupted), MOST_LANES));
    }
}
