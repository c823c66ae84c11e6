//! Sending.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::row::Row;
use super::{Channel, End};
use crate::deadline::Deadline;
use crate::error::{Error, SendError, SendManyError};
use crate::fork;
use crate::handle::Handle;
use crate::link::packet::Packet;
use crate::link::{Parcel, Shareable};
use crate::lock::Guard;
use crate::message::{Outgoing, Parts};
use crate::pool::{self, BlockRecord, Loan, Pool};
use crate::ring::{Ended, Header, Kind, Memory, Producer, Slot};
use crate::shm::RingMemory;
use crate::wait;

/// Every so many messages the sender tells on which CPU it runs, and asks whether the peer lives if nothing else
/// told lately.
const LOOK_EVERY: u64 = 16;

/// The sending direction of an end.
#[derive(Debug)]
pub(super) struct Tx {
    pub(super) producer: Producer<RingMemory>,
    pub(super) token: u128,
    /// Of the ring; each larger one is the next.
    pub(super) generation: u64,
    /// Messages staged or committed since the channel was made.
    pub(super) sequence: u64,
    /// Messages committed since the channel was made.
    committed: u64,
    /// Messages that the consumer has taken, as far as we accepted it.
    pub(super) taken: u64,
    /// Messages with handles or sealed memory that the consumer has not taken.
    in_flight: VecDeque<InFlight>,
    pub(super) handles_in_flight: usize,
    pub(super) sealed_in_flight: usize,
    pub(super) pool: Pool,
    /// Why nothing more can be sent.
    ended: Option<Error>,
}

/// What a message has of which only so much may be under way.
#[derive(Debug)]
struct InFlight {
    sequence: u64,
    /// Descriptors.
    handles: usize,
    /// Bytes.
    sealed: usize,
}

impl Tx {
    pub(super) fn new(out: RingMemory, token: u128) -> Self {
        Self {
            producer: Producer::new(out),
            token,
            generation: 0,
            sequence: 0,
            committed: 0,
            taken: 0,
            in_flight: VecDeque::new(),
            handles_in_flight: 0,
            sealed_in_flight: 0,
            pool: Pool::default(),
            ended: None,
        }
    }

    pub(super) fn token(&self) -> u128 {
        self.token
    }

    pub(super) fn end_with(&mut self, error: Error) -> Error {
        *self.ended.get_or_insert(error)
    }

    fn note_in_flight(&mut self, handles: usize, sealed: usize) {
        self.in_flight.push_back(InFlight { sequence: self.sequence, handles, sealed });
        self.handles_in_flight += handles;
        self.sealed_in_flight += sealed;
    }

    /// Looks at how many messages the consumer says it has taken.
    pub(super) fn refresh_taken(&mut self) -> Result<(), Error> {
        let claim = self.producer.memory().taken().load(Ordering::Acquire);
        if claim < self.taken || claim > self.sequence {
            return Err(self.end_with(Error::BadPeer("it claims to have taken messages that were never sent")));
        }
        self.taken = claim;
        while let Some(message) = self.in_flight.front()
            && message.sequence < claim
        {
            self.handles_in_flight -= message.handles;
            self.sealed_in_flight -= message.sealed;
            self.in_flight.pop_front();
        }
        Ok(())
    }
}

impl Channel {
    /// Sends a message; waits for room as long as it takes.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    #[inline]
    pub fn send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.end.send(&mut message.into(), Deadline::NEVER)
    }

    /// Sends a message if there is room for it now.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is not; otherwise as [`Channel::send_by`].
    #[inline]
    pub fn try_send<'a>(&self, message: impl Into<Outgoing<'a>>) -> Result<(), SendError> {
        self.end.send(&mut message.into(), Deadline::NOW)
    }

    /// Sends a message; waits for room until the deadline.
    ///
    /// Bytes are copied once, straight into shared memory. The handles of a message that was sent are closed in this
    /// process; those of one that was not come back in the error.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::PeerClosed`]; [`Error::MessageTooLarge`] and [`Error::TooManyHandles`] by the
    /// options of this end; [`Error::BadHandle`]; [`Error::NoDescriptors`] or [`Error::NoMemory`] if a large message
    /// needs memory that is not to be had; [`Error::BadPeer`]; [`Error::Forked`]; [`Error::System`].
    #[inline]
    pub fn send_by<'a>(
        &self,
        message: impl Into<Outgoing<'a>>,
        deadline: impl Into<Deadline>,
    ) -> Result<(), SendError> {
        self.end.send(&mut message.into(), deadline.into())
    }

    /// Sends messages in a row: as many as fit into the ring appear at the peer at once, with one wake-up.
    /// Returns how many were sent, which is all of them.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// a.send_many(["one", "two", "three"], strait::Deadline::NEVER)?;
    /// assert_eq!(b.recv()?.bytes(), b"one");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Channel::send_by`], for the first message that could not be sent; those before it were sent, and those
    /// after it are still in the iterator if it was passed by reference.
    pub fn send_many<'a, I>(&self, messages: I, deadline: impl Into<Deadline>) -> Result<usize, SendManyError>
    where
        I: IntoIterator,
        I::Item: Into<Outgoing<'a>>,
    {
        self.end.send_many(messages.into_iter().map(Into::into), deadline.into())
    }
}

impl End {
    #[inline]
    fn send(&self, message: &mut Outgoing<'_>, deadline: Deadline) -> Result<(), SendError> {
        self.lock_tx(deadline)
            .and_then(|mut tx| self.send_locked(&mut tx, message, deadline))
            .map_err(|error| SendError::new(error, std::mem::take(&mut message.handles)))
    }

    #[inline]
    fn send_locked(&self, tx: &mut Guard<'_, Tx>, message: &Outgoing<'_>, deadline: Deadline) -> Result<(), Error> {
        if message.handles.is_empty()
            && let Parts::One(bytes) = message.parts
            && self.is_plain(tx, bytes)
            && tx.producer.push(bytes)
        {
            self.count_sent(tx, bytes.len());
            self.committed(tx);
            return Ok(());
        }
        self.send_slowly(tx, message, deadline)
    }

    /// Whether nothing but room in the ring can keep a message from being sent.
    #[inline]
    pub(super) fn is_plain(&self, tx: &Tx, bytes: &[u8]) -> bool {
        bytes.len() <= self.plain_limit && tx.sequence - tx.taken < self.options.queue_messages
    }

    /// Counts a message that was staged.
    #[inline]
    pub(super) fn count_sent(&self, tx: &mut Tx, len: usize) {
        tx.sequence += 1;
        self.counts.0.messages_sent.add(1);
        self.counts.0.bytes_sent.add(len as u64);
    }

    #[inline(never)]
    fn send_slowly(&self, tx: &mut Guard<'_, Tx>, message: &Outgoing<'_>, deadline: Deadline) -> Result<(), Error> {
        self.stage(tx, message.parts, &message.handles, deadline)?;
        self.commit(tx)
    }

    fn send_many<'a>(
        &self,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        match self.lock_tx(deadline) {
            Ok(mut tx) => self.send_many_locked(&mut tx, messages, deadline),
            Err(error) => Err(SendManyError { sent: 0, failed: SendError::new(error, Vec::new()) }),
        }
    }

    fn send_many_locked<'a>(
        &self,
        tx: &mut Guard<'_, Tx>,
        messages: impl Iterator<Item = Outgoing<'a>>,
        deadline: Deadline,
    ) -> Result<usize, SendManyError> {
        let begin = tx.sequence;
        // Handles are kept until their message is committed, since until then they may have to go back.
        let mut kept: Vec<(u64, Vec<Handle>)> = Vec::new();
        let mut outcome = Ok(());
        let mut row = Row { end: self, tx, pack: None };
        for Outgoing { parts, handles } in messages {
            if handles.is_empty() && row.stage_packed(parts) {
                continue;
            }
            row.end_pack();
            outcome = self.stage(row.tx, parts, &handles, deadline);
            if !handles.is_empty() {
                let sequence = row.tx.sequence - u64::from(outcome.is_ok());
                kept.push((sequence, handles));
            }
            if outcome.is_err() {
                break;
            }
        }
        // What was staged before a message that failed is whole, and goes out.
        let committed = row.commit();
        drop(row);
        let sent = (tx.committed - begin) as usize;
        outcome.and(committed).map(|()| sent).map_err(|error| {
            let uncommitted = kept.into_iter().filter(|(sequence, _)| *sequence >= tx.committed);
            let handles = uncommitted.flat_map(|(_, handles)| handles).collect();
            SendManyError { sent, failed: SendError::new(error, handles) }
        })
    }

    #[inline]
    pub(super) fn lock_tx(&self, deadline: Deadline) -> Result<Guard<'_, Tx>, Error> {
        fork::check()?;
        let tx = self.tx.0.lock(deadline)?;
        self.check_open(&tx)?;
        Ok(tx)
    }

    /// Whether anything can be sent at all.
    #[inline]
    fn check_open(&self, tx: &Tx) -> Result<(), Error> {
        match tx.ended {
            Some(error) => Err(error),
            None if self.link.is_down() => Err(self.link.reason()),
            None => Ok(()),
        }
    }

    /// Checks a message against this end's limits. The number of its bytes.
    #[inline]
    fn check(&self, parts: &Parts<'_>, handles: &[Handle]) -> Result<usize, Error> {
        let limit = self.options.max_message;
        let len = parts.len().unwrap_or(usize::MAX);
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        if handles.len() > self.options.max_handles {
            return Err(Error::TooManyHandles { count: handles.len(), limit: self.options.max_handles });
        }
        Ok(len)
    }

    /// Writes a message behind what is staged. It appears at the peer with [`End::commit`].
    #[inline]
    fn stage(
        &self,
        tx: &mut Guard<'_, Tx>,
        parts: Parts<'_>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let len = self.check(&parts, handles)?;
        if !handles.is_empty() || len > self.inline_limit {
            // This may have to wait for room in the socket, which the peer makes as it takes what comes before.
            self.commit(tx)?;
        }
        self.wait_for_quotas(tx, handles.len(), 0, deadline)?;
        if len <= self.inline_limit {
            let slot = self.stage_record(tx, Header::new(Kind::Message, len, handles.len()), deadline)?;
            let producer = &tx.producer;
            parts.each(|at, bytes| {
                producer.write(slot, at, bytes);
                Ok::<(), Error>(())
            })?;
            self.finish_stage(tx, len, handles, deadline)
        } else {
            let loan = self.borrow_block(tx, len, deadline)?;
            let filled = parts.each(|at, bytes| pool::fill(&loan, at, bytes));
            self.stage_block(tx, &loan, filled, handles, deadline)
        }
    }

    /// What is left to do once a message's record is staged: its handles, and the books.
    #[inline]
    pub(super) fn finish_stage(
        &self,
        tx: &mut Guard<'_, Tx>,
        len: usize,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        if !handles.is_empty() {
            let packet = Packet::Handles { token: tx.token, sequence: tx.sequence, count: handles.len() as u32 };
            if let Err(error) = self.send_packet(tx, &packet, Parcel::handles(handles), deadline) {
                tx.producer.unstage_last();
                return Err(error);
            }
            tx.note_in_flight(handles.len(), 0);
        }
        self.count_sent(tx, len);
        Ok(())
    }

    /// Sends a packet; waits for room in the socket, with the lock kept meanwhile.
    pub(super) fn send_packet(
        &self,
        tx: &Guard<'_, Tx>,
        packet: &Packet,
        parcel: Parcel<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        tx.keep();
        let sent = self.link.send(packet, parcel, deadline);
        tx.keep_no_more();
        sent
    }

    /// Makes what is staged appear at the peer, and wakes it if it sleeps.
    #[inline]
    pub(super) fn commit(&self, tx: &mut Guard<'_, Tx>) -> Result<(), Error> {
        if !tx.producer.has_staged() {
            return Ok(());
        }
        if let Err(ended) = tx.producer.commit() {
            return Err(self.ended(tx, ended));
        }
        self.committed(tx);
        Ok(())
    }

    /// What is left to do once something has appeared at the peer: to wake it, if it sleeps.
    #[inline]
    fn committed(&self, tx: &mut Guard<'_, Tx>) {
        tx.committed = tx.sequence;
        let how = tx.producer.take_sleeper();
        if how != 0 || tx.sequence.is_multiple_of(LOOK_EVERY) {
            self.after_commit(tx, how);
        }
    }

    #[cold]
    pub(super) fn after_commit(&self, tx: &mut Guard<'_, Tx>, how: u32) {
        if wait::wake(&self.link, tx.producer.memory().sleeping(), how) {
            self.counts.0.send_wake_ups.add(1);
        }
        self.publish_cpu();
        // A peer that takes or sends something lives, and nobody asks the kernel.
        let credit = tx.producer.memory().credit().load(Ordering::Relaxed);
        self.link.probe_if_silent(credit.wrapping_add(self.counts.0.messages_received.get()));
    }

    /// The consumer has put something where our next record was to go.
    pub(super) fn ended(&self, tx: &mut Tx, ended: Ended) -> Error {
        tx.end_with(match ended {
            Ended(Some(Kind::Closed)) => Error::PeerClosed,
            Ended(_) => Error::BadPeer("it wrote into a ring that it reads"),
        })
    }

    /// Stages a record in the ring; lets the ring grow, or waits, until there is room.
    #[inline]
    pub(super) fn stage_record(
        &self,
        tx: &mut Guard<'_, Tx>,
        header: Header,
        deadline: Deadline,
    ) -> Result<Slot, Error> {
        match tx.producer.stage(header) {
            Ok(slot) => Ok(slot),
            Err(no_room) => self.stage_when_room(tx, header, no_room, deadline),
        }
    }

    /// Stages a message whose bytes are in a block. If the peer does not know the block yet, its memory goes first, and
    /// the handles with it: all or nothing.
    pub(super) fn stage_block(
        &self,
        tx: &mut Guard<'_, Tx>,
        loan: &Loan,
        filled: Result<(), Error>,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let staged = filled.and_then(|()| {
            let header = Header::new(Kind::Block, BlockRecord::SIZE, handles.len());
            let slot = self.stage_record(tx, header, deadline)?;
            tx.producer.write(slot, 0, &loan.record.encode());
            let len = loan.record.len as usize;
            let Some(memory) = &loan.fresh else { return self.finish_stage(tx, len, handles, deadline) };
            let (token, sequence, id) = (tx.token, tx.sequence, loan.record.id);
            let packet = Packet::Block { token, id, sequence, handles: handles.len() as u32 };
            if let Err(error) = self.send_packet(tx, &packet, Parcel { memory: Some(memory), handles }, deadline) {
                tx.producer.unstage_last();
                return Err(error);
            }
            if !handles.is_empty() {
                tx.note_in_flight(handles.len(), 0);
            }
            self.count_sent(tx, len);
            Ok(())
        });
        if staged.is_err() {
            tx.pool.take_back(loan.record, loan.fresh.is_none());
        }
        staged
    }

    /// Sends a payload that is sealed in memory of its own.
    pub(super) fn send_sealed(
        &self,
        memory: &Shareable,
        len: usize,
        handles: &[Handle],
        deadline: Deadline,
    ) -> Result<(), Error> {
        let mut tx = self.lock_tx(deadline)?;
        let tx = &mut tx;
        // Its memory counts as one handle more: it is a descriptor under way.
        self.wait_for_quotas(tx, handles.len() + 1, len, deadline)?;
        let slot = self.stage_record(tx, Header::new(Kind::Sealed, 8, handles.len()), deadline)?;
        let packet = Packet::Sealed { token: tx.token, sequence: tx.sequence, handles: handles.len() as u32 };
        if let Err(error) = self.send_packet(tx, &packet, Parcel { memory: Some(memory), handles }, deadline) {
            tx.producer.unstage_last();
            return Err(error);
        }
        tx.producer.write(slot, 0, &(len as u64).to_le_bytes());
        tx.note_in_flight(handles.len() + 1, len);
        self.count_sent(tx, len);
        self.counts.0.out_of_line.add(1);
        self.commit(tx)
    }

    pub(super) fn is_writable(&self) -> bool {
        let Ok(mut tx) = self.lock_tx(Deadline::NOW) else { return false };
        let header = Header::new(Kind::Message, 0, 0);
        let room = tx.producer.stage(header).is_ok() || tx.producer.memory().cells() < self.options.ring_max_cells;
        tx.producer.discard();
        room && tx.refresh_taken().is_ok() && tx.sequence - tx.taken < self.options.queue_messages
    }

    pub(super) fn is_peer_closed(&self) -> bool {
        self.link.probe();
        self.link.is_down()
            || match self.lock_tx(Deadline::NOW) {
                Ok(tx) => tx.producer.ended().is_some(),
                Err(error) => error == Error::PeerClosed,
            }
    }

    pub(super) fn close_tx(&self, tx: &mut Tx) {
        if tx.ended.is_none() && tx.producer.end(Kind::Closed, &[]).is_ok() {
            let how = tx.producer.take_sleeper();
            wait::wake(&self.link, self.out.sleeping(), how);
        }
    }
}
