//! Messages that carry ends of channels.
//!
//! Within a process, ends are handed over unchanged. For another process, each end is first [moved](super::moving) into
//! a lane that the other process can use. All ends of the message, and the ends in unreceived messages of these ends,
//! move before the single commit of the message. Unsendable ends are returned to the caller, and go on in their present
//! lanes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use super::close::CLOSE_LANE;
use super::in_transit;
use super::moving::Along;
use super::table::{Entry, FlatHandles, LONGEST_INLINE, Parsed};
use crate::blocked_on::{self, BlockedOn, PollBackoff, Subject};
use crate::channel::handle::Handle;
use crate::channel::message::{MessageExtras, Parts, ReceivedExtras};
use crate::channel::origin::Origin;
use crate::channel::pool::{self, BlockRecord, Loan};
use crate::channel::receiver::Rx;
use crate::channel::sender::Tx;
use crate::channel::views::values::turn_values;
use crate::channel::watch::TakenMembers;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::lane::nesting::Places;
use crate::link::{Amount, Attachments};
use crate::os::memory;
use crate::quota::Charge;
use crate::ring::{CELL, Header, RecordKind, longest_payload};
use crate::shm::Shareable;
use crate::signals;
use crate::wake::Direction;
use crate::wake::lock::Guard;

/// Number of moves of the other end after which a send of ends gives up once its deadline has passed. Counted are the
/// moves of the receiving end in the course of this send. A correct end does not move so often in so short a time.
const MOST_MOVES: u32 = 1000;

/// The payload of a message with ends: parts to copy, or sealed memory with the payload's length in bytes.
#[derive(Clone, Copy)]
pub(in crate::channel) enum Content<'a> {
    Parts(Parts<'a>),
    Sealed(&'a Shareable, usize),
}

impl End {
    /// Sends a message with channel ends or data-pipe ends among its handles. If the other end is in this process, the
    /// message may have handles of any kind. After success, `handles` holds the handles that the caller has to close.
    /// After an error, `handles` holds all of them again.
    pub(in crate::channel) fn send_ends(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let len = match content {
            Content::Parts(parts) => self.check(&parts, handles)?,
            Content::Sealed(_, len) => len,
        };
        handles.iter().filter_map(Handle::as_end).try_for_each(|end| end.born.check())?;
        let marked = self.mark_blocking(tx);
        let tx = &mut *marked.guard;
        let mut backoff = PollBackoff::default();
        let mut moves = 0;
        // While an end is being sent, its wait set must not poll the end. The wait set must also have dropped the end
        // before a receiver adds the end to another wait set.
        let members = TakenMembers::of(handles.iter().filter_map(|handle| Some(&handle.channel()?.end)));
        let sent = loop {
            // Checked again each time this end has followed the other end, because the other end may turn out to be in
            // this process.
            let other_end = |handle: &Handle| handle.channel().is_some_and(|channel| channel.end.is_other_end_of(tx));
            if handles.iter().any(other_end) {
                break Err(Error::OwnChannel);
            }
            // An earlier call may have noted a cause; only the cause of this attempt counts.
            blocked_on::forget();
            // While ends are being moved the attempt does not wait: the processes with the other ends wait for this
            // process.
            let sent = self.try_send_ends(tx, content, len, handles, deadline);
            tx.unpin();
            let goes_on_elsewhere = match sent {
                Err(error) if tx.has_moved() => {
                    signals::postpone(error);
                    true
                }
                // The source of the moved end may exit as soon as the end has gone on.
                Err(Error::PeerClosed) if tx.ended().is_none() && tx.has_frozen() => {
                    tx.discard();
                    if let Err(error) = self.follow_frozen(tx) {
                        break Err(error);
                    }
                    true
                }
                _ => false,
            };
            if goes_on_elsewhere {
                // The other end has moved again in the course of this attempt. A hostile peer could repeat such moves
                // without end.
                moves += 1;
                if moves > MOST_MOVES
                    && let Err(error) = self.goes_on(deadline, Direction::Sending)
                {
                    break Err(error);
                }
                continue;
            }
            match sent {
                Err(Error::WouldBlock) if !deadline.is_now() => {
                    if let Err(error) = self.wait_to_send_ends(tx, &mut backoff, deadline) {
                        break Err(error);
                    }
                }
                sent => break sent,
            }
        };
        if sent.is_ok() {
            members.take_out();
        }
        sent
    }

    /// Waits until `deadline` for what the last attempt to send a message with ends, or to move this end, was blocked
    /// on, such as room. No end is being moved during this wait.
    pub(super) fn wait_to_send_ends(
        &self,
        tx: &mut Guard<'_, Tx>,
        backoff: &mut PollBackoff,
        deadline: Deadline,
    ) -> Result<(), Error> {
        match blocked_on::take() {
            Some(BlockedOn::Room(_, seen)) => self.wait_for_room(tx, seen.blocks.is_some(), deadline),
            Some(BlockedOn::Descriptors(_, _, count)) => self.wait_for_descriptors(tx, count, backoff, deadline),
            blocked => self.wait_for(blocked, backoff, deadline),
        }
    }

    /// Makes one attempt to send a message of `len` bytes with ends to the process where the peer is now. The attempt
    /// waits, until `deadline`, only before any end is moved. After an error all handles are in `handles` again.
    fn try_send_ends(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.commit(tx, deadline)?;
        // The receiver of this message is to use the ends, so the receiving process must be known.
        self.wait_for_hand_over(tx, deadline)?;
        if tx.lane.is_down() {
            return Err(tx.lane.reason());
        }
        let dest = tx.lane.link().clone();
        tx.pin();
        if dest.is_local() {
            return self.send_local(tx, content, len, handles, deadline);
        }
        // A value sent to one of these ends after this point makes the attempt fail; the next attempt turns the value
        // into bytes.
        turn_values(handles)?;
        let descriptors = handles.iter().filter(|handle| handle.as_descriptor().is_some()).count();
        self.wait_for_quotas(tx, descriptors, 0, deadline)?;
        let header = Header::new(RecordKind::Message, len.min(self.options.inline_limit()), 0);
        self.stage_record(tx, header, deadline)?;
        tx.discard();
        let mut along = Along::default();
        let prepare = |end: &End| end.relocate(&dest, &mut along, Deadline::NOW);
        let flat = match FlatHandles::of(std::mem::take(handles), prepare) {
            Ok(flat) => flat,
            Err((error, back)) => {
                for handle in &back {
                    cancel_transfers(handle);
                }
                *handles = back;
                return Err(error);
            }
        };
        let sent = self.send_flat(tx, content, len, &flat, Deadline::NOW);
        match sent {
            Ok(()) => {
                // The plain handles are not closed here: they may have come from a peer known to the caller only.
                *handles = flat.into_plain();
            }
            Err(_) => {
                tx.discard();
                for end in &flat.ends {
                    if let Ok(lane) = end.end().lane() {
                        lane.cancel_transfer();
                    }
                }
                *handles = flat.into_handles();
            }
        }
        sent
    }

    /// Sends a message of `len` bytes with flattened handles, after all their ends were moved into lanes for the peer
    /// process. Stages the handle table and the message, sends the descriptors over the socket, and commits. After the
    /// commit the ends belong to the receiver.
    ///
    /// The ends are handed over before the receiver is woken. The receiver can use an end, and send from the end,
    /// before the end is handed over; but the other end may be asleep at its link to this process, and only this
    /// process can wake it.
    fn send_flat(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        flat: &FlatHandles,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let (table, table_attachments) = flat.encode()?;
        self.wait_for_quotas(tx, table_attachments.len(), 0, deadline)?;
        // First the steps that may have to wait. The message follows its table, and the header of the table makes both
        // visible.
        let loan = match content {
            Content::Parts(_) if len > self.options.inline_limit() => Some(self.borrow_block(tx, len, deadline)?),
            _ => None,
        };
        let record = match content {
            Content::Sealed(..) => 8,
            Content::Parts(_) if loan.is_some() => BlockRecord::SIZE,
            Content::Parts(_) => len,
        };
        let room = self.make_room_for_both(tx, table.len(), record, deadline);
        let memory = match room.and_then(|is_inline| self.stage_table(tx, &table, is_inline, deadline)) {
            Ok(memory) => memory,
            Err(error) => {
                if let Some(loan) = loan.filter(|_| !tx.is_moved()) {
                    tx.pool().take_back(&loan);
                }
                return Err(error);
            }
        };
        let header = |kind, len| Header::new(kind, len, flat.len()).with_table();
        let descriptors: Vec<_> = table_attachments.iter().map(AsFd::as_fd).collect();
        let table = memory.as_ref().map(AsFd::as_fd);
        let attachments = Attachments { table, ..Attachments::descriptors(&descriptors) };
        self.stage_content(tx, content, len, loan, header, attachments, deadline)?;
        self.commit_and(tx, deadline, || {
            for end in &flat.ends {
                let end = end.end();
                end.set_sent();
                if let Ok(lane) = end.lane() {
                    lane.hand_over();
                }
            }
        })
    }

    /// Returns the number of bytes of the longest handle table that goes through the ring: at most a quarter of the
    /// longest message there, so that the message fits behind it.
    fn longest_table(&self) -> usize {
        LONGEST_INLINE.min(self.options.inline_limit() / 4)
    }

    /// Makes sure that the ring has room for the records of a handle table and of its message, which have to appear
    /// together. `table` and `record` are the sizes of the two in bytes. Returns whether the table is to be inside its
    /// record; otherwise the table goes into memory of its own, and its record takes one cell. Leaves nothing staged.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if there is no room for both before the consumer gives credit. Once the consumer has read
    /// everything, a ring of the largest size has room for the longest message with a cell before it.
    fn make_room_for_both(
        &self,
        tx: &mut Guard<'_, Tx>,
        table: usize,
        record: usize,
        deadline: Deadline,
    ) -> Result<bool, Error> {
        let inside = if table <= self.longest_table() { table } else { 0 };
        let fit = |tx: &mut Tx, table: usize| {
            let headers = [table, record].map(|len| Header::new(RecordKind::Message, len, 0));
            let fit = headers.iter().all(|header| tx.producer.stage(*header).is_ok());
            tx.discard();
            fit
        };
        self.commit(tx, deadline)?;
        if fit(tx, inside) {
            return Ok(inside > 0);
        }
        // Room is made as for a message that is as long as the table and the record together.
        let both = (inside + record + CELL).min(longest_payload(self.options.ring_max_cells));
        self.stage_record(tx, Header::new(RecordKind::Message, both, 0), deadline)?;
        tx.discard();
        if fit(tx, inside) {
            return Ok(inside > 0);
        }
        // Beside the longest messages there may be no room for a table, whatever the consumer reads.
        if fit(tx, 0) {
            return Ok(false);
        }
        // Messages received by the consumer before this attempt do not help, so they must not count as an event.
        tx.refresh_taken()?;
        blocked_on::note(BlockedOn::Room(Subject::of(Arc::downgrade(&tx.lane)), tx.progress(false)));
        Err(Error::WouldBlock)
    }

    /// Stages the record of the handle table of the next message. If the table `is_inline`, it is in that record.
    /// Otherwise returns sealed memory with the table, for the packet of the message.
    fn stage_table(
        &self,
        tx: &mut Guard<'_, Tx>,
        table: &[u8],
        is_inline: bool,
        deadline: Deadline,
    ) -> Result<Option<OwnedFd>, Error> {
        let memory = if is_inline { None } else { Some(table_memory(table)?) };
        let len = if is_inline { table.len() } else { 0 };
        let header = Header::new(RecordKind::Table, len, usize::from(!is_inline));
        let slot = self.stage_record(tx, header, deadline)?;
        tx.producer.write(slot, 0, &table[..len]);
        // The table names lanes that only the present peer can use.
        tx.attach();
        Ok(memory)
    }

    /// Stages the record of a message under the header that `header` makes, and sends its attachments over the socket:
    /// `attachments`, and the memory of the payload, if any. If the payload needs a block, `loan` may be that block.
    #[allow(clippy::too_many_arguments, reason = "all of it is what the message is")]
    fn stage_content(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        loan: Option<Loan>,
        header: impl Fn(RecordKind, usize) -> Header,
        attachments: Attachments<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let parts = match content {
            Content::Sealed(memory, len) => {
                let header = header(RecordKind::Sealed, 8);
                return self.stage_sealed(tx, memory, len, header, attachments, deadline);
            }
            Content::Parts(parts) => parts,
        };
        if len <= self.options.inline_limit() {
            let slot = self.stage_record(tx, header(RecordKind::Message, len), deadline)?;
            let producer = &tx.producer;
            parts.each(|at, bytes| {
                producer.write(slot, at, bytes);
                Ok::<(), Error>(())
            })?;
            return self.finish_stage(tx, len, attachments, deadline);
        }
        let loan = match loan {
            Some(loan) => loan,
            None => self.borrow_block(tx, len, deadline)?,
        };
        let filled = parts.each(|at, bytes| pool::fill(&loan, at, bytes));
        let header = header(RecordKind::Block, BlockRecord::SIZE);
        self.stage_block(tx, &loan, len, filled, header, attachments, deadline)
    }

    /// Sends a message of `len` bytes to an end of this process. The handles are passed on as objects, so no descriptor
    /// goes through a socket.
    fn send_local(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        for handle in handles.iter() {
            if let Handle::Fd(fd) = handle
                && !memory::is_open(fd)
            {
                return Err(Error::BadHandle);
            }
        }
        let ends = || handles.iter().filter_map(Handle::as_end);
        let places = match ends().next() {
            // Taken before the message is staged: of two sends that would close a cycle together, the later one fails.
            Some(_) => {
                let rings = in_transit::rings_read_by(ends());
                Some(Places::take(tx.lane.token_out(), rings).ok_or(Error::OwnChannel)?)
            }
            None => None,
        };
        let count = handles.len();
        self.wait_for_quotas(tx, 0, 0, deadline)?;
        let header = |kind, len| Header::new(kind, len, count);
        self.stage_content(tx, content, len, None, header, Attachments::NOTHING, deadline)?;
        let in_transit = in_transit::of_handles(handles, tx.lane.is_other_here());
        let extras = MessageExtras::with_handles(std::mem::take(handles));
        let rings = places.map(|places| places.into_rings(tx.lane.token_out())).unwrap_or_default();
        let Some((ended, left)) = self.commit_local(tx, extras, in_transit, rings, Amount::default()) else {
            return Ok(());
        };
        *handles = left.map(|mut left| left.take_handles()).unwrap_or_default();
        self.after_end(tx, ended, deadline)
    }

    /// Returns whether this end is the other end of the channel of `tx`. Returns `false` while another call holds this
    /// end's sending lock.
    pub(super) fn is_other_end_of(&self, tx: &Tx) -> bool {
        let Ok(mut other) = self.tx.lock(Deadline::NOW) else { return false };
        // This end may first have to follow the other end.
        self.catch_up(&mut other);
        let (theirs, ours) = (&other.lane, &tx.lane);
        // Lanes of different makers may have the same name. And only the peer's word says that an end is in another
        // process.
        let here = theirs.link().is_local() && ours.link().is_local() && theirs.token_in() == ours.token_out();
        here || theirs.is_opposite(ours)
    }

    /// Returns the handles of a received message whose handle table is `table`, and the charge to the peer for its
    /// descriptors, if any. Messages in backlogs of its ends hold the charges for their own descriptors. If some of the
    /// message's descriptors did not arrive, or its own handles fail with a temporary error, returns no handles, and
    /// [`ReceivedExtras::lost`] of the returned value gives [`Error::HandlesLost`]. If handles of a message in a
    /// backlog fail with a temporary error, only that message loses its handles. `token` is the token of the ring,
    /// `message` the number of the message, and `handles` the number of its handles.
    pub(in crate::channel) fn receive_ends(
        &self,
        rx: &mut Rx,
        token: u128,
        message: u64,
        handles: usize,
        table: &[u8],
    ) -> Result<(ReceivedExtras, Option<Charge>), Error> {
        self.receive_table(rx, token, message, Parsed::read(table, handles)?, None)
    }

    /// Returns the handles that a received and parsed handle table describes, and the charge to the peer for the
    /// descriptors, if any. Messages in backlogs hold the charges for their own descriptors. `token` is the token of
    /// the ring, and `message` the number under which the descriptors were sent. If `holder` is given, that end takes
    /// the place of the first end in the table: `holder` gets the messages listed in the table for the end.
    pub(super) fn receive_table(
        &self,
        rx: &mut Rx,
        token: u128,
        message: u64,
        mut parsed: Parsed<'_>,
        mut holder: Option<Channel>,
    ) -> Result<(ReceivedExtras, Option<Charge>), Error> {
        let link = rx.lane.current_link().clone();
        if link.is_local() {
            return Err(Error::BadPeer("a handle table on a channel within one process"));
        }
        let (is_closing, over_limit) = (rx.lane.is_closing(), rx.lane.over_limit());
        let (ends, messages) = parsed.entries();
        rx.count_table_work(messages + CLOSE_LANE * ends);
        if is_closing {
            parsed.leave_out_payloads();
        }
        let (sent, handles) = (parsed.descriptors, parsed.top.len());
        // Checked before anything is taken, because a later call may ask for the message again.
        let entries = parsed.ends.iter().skip(usize::from(holder.is_some()));
        let ready = entries.map(|(entry, ..)| link.ready_lane(entry.name, usize::from(entry.side), over_limit));
        let _arenas = ready.collect::<Result<Vec<_>, _>>()?;
        let charge = link.ledger().charge_or(parsed.amounts(), over_limit)?;
        let mut found = match sent {
            0 => Default::default(),
            _ => link
                .fetch(|inbox| inbox.take_handles(token, message, sent))?
                .filter(|found| found.sent == sent)
                .ok_or_else(|| link.missing(Error::BadPeer("a message whose descriptors were never sent")))?,
        };
        let arrived = found.descriptors.len();
        let payer = link.ledger().payer();
        let origin = Origin::in_backlog_over(&link);
        let find = |entry: Entry| -> Result<Channel, Error> {
            let lane = link.find_ready_lane(entry.name, usize::from(entry.side), over_limit)?;
            Ok(Channel { end: Arc::new(self.received(lane, entry)) })
        };
        if arrived < sent && holder.is_some() {
            // The holder's messages arrive without their handles.
            drop(found);
            let lost = parsed.lose_handles();
            deferred::postponed(|| lost.into_iter().for_each(|entry| drop(find(entry))));
            let holder = |_| holder.take().ok_or(Error::BadPeer("an invalid handle table"));
            let handles = parsed.into_handles(&mut Default::default(), &payer, charge, origin, holder)?;
            return Ok((ReceivedExtras::of_handles(handles), None));
        }
        let build = |entry: Entry| holder.take().map_or_else(|| find(entry), Ok);
        if arrived < sent {
            // Only all handles together are of use, so the arrived handles, including ends, are closed.
            drop(found);
            let mut none = Default::default();
            deferred::postponed(|| drop(parsed.into_handles(&mut none, &payer, charge, origin, build)));
            let lost = Error::HandlesLost { sent: handles, arrived: arrived.min(handles) };
            return Ok((ReceivedExtras::of_lost(lost), None));
        }
        match deferred::postponed(|| parsed.into_handles(&mut found, &payer, charge, origin, build)) {
            Ok(handles) => Ok((ReceivedExtras::of_handles(handles), found.charge)),
            // A handle of the message itself, or the payload of a message that an end brings along, could not be
            // mapped. The descriptors have left the inbox, so no later call can try again.
            Err(error) if error.passes() => {
                Ok((ReceivedExtras::of_lost(Error::HandlesLost { sent: handles, arrived: 0 }), None))
            }
            Err(error) => Err(error),
        }
    }
}

/// Returns new sealed memory with a handle table, for the packet of its message.
pub(super) fn table_memory(table: &[u8]) -> Result<OwnedFd, Error> {
    let fd = memory::memfd("strait-table", table.len())?;
    memory::write_at(&fd, table, 0)?;
    memory::seal_all(&fd)?;
    Ok(fd)
}

/// Cancels the transfer of an unsent end, and the transfers of the ends in its unreceived messages. All these ends stay
/// in this process and go on in the lanes made for the transfer.
pub(in crate::channel) fn cancel_transfers(handle: &Handle) {
    let mut ends = Vec::new();
    ends.extend(handle.channel().map(|channel| channel.end.clone()));
    while let Some(end) = ends.pop() {
        if let Ok(lane) = end.lane()
            && lane.is_moving()
        {
            lane.cancel_transfer();
        }
        ends.extend(end.ends_in_backlog());
    }
}
