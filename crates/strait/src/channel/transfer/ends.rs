//! Messages that carry ends of channels.
//!
//! Within a process they are handed over as they are. To another one each is first [moved](super::moving) into a lane
//! that the other process can use; all of them, and those in messages that they have not received, before the one
//! commit that sends them. What cannot be sent comes back, and goes on where it is.

use std::os::fd::AsFd;
use std::sync::Arc;

use super::away;
use super::table::{Entry, Flat, Parsed, Traveller};
use crate::channel::handle::Handle;
use crate::channel::message::{Arrived, Parts};
use crate::channel::origin::Origin;
use crate::channel::pool::{self, BlockRecord, Loan};
use crate::channel::receiver::Rx;
use crate::channel::sender::Tx;
use crate::channel::views::values::turn_values;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::packet::Packet;
use crate::link::{Amount, Attachments, Handles, Link, Number};
use crate::os::memory;
use crate::quota::{MAX_HANDLES, holding_back};
use crate::ring::{CELL, Header, Kind, longest_payload};
use crate::shm::{Mapping, Shareable};
use crate::wait_set::Member;
use crate::wake::lock::Guard;
use crate::wake::want::{self, Looks, Want};

/// Bytes of the longest table that goes through the ring.
const LONGEST_TABLE: usize = 4096;

/// How often the other end may turn out to have moved on while ends are being moved to it, once the deadline has passed. An honest one
/// does not move so often in so short a time.
const MOST_MOVES: u32 = 1000;

/// The bytes of a message.
#[derive(Clone, Copy)]
pub(in crate::channel) enum Content<'a> {
    Parts(Parts<'a>),
    Sealed(&'a Shareable, usize),
}

impl End {
    /// Sends a message with ends of channels; or within a process, with any handles. What is left of them once it was sent is for
    /// the caller to close.
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
        tx.mark_blocking();
        let mut looks = Looks::default();
        let mut moves = 0;
        // A set must not look at an end that is on its way, nor know it when its receiver adds it to another.
        let members: Vec<_> = handles.iter().filter_map(take_member).collect();
        let sent = loop {
            // Whenever this end has followed the other one, that may turn out to be here.
            let other_end = |handle: &Handle| handle.channel().is_some_and(|channel| channel.end.is_other_end_of(tx));
            if handles.iter().any(other_end) {
                break Err(Error::OwnChannel);
            }
            // Of what this try lacks, not an earlier call.
            want::forget();
            // While ends are on their way nothing is waited for: whoever holds their other ends waits for us.
            let sent = self.try_send_ends(tx, content, len, handles, deadline);
            tx.unpin();
            match sent {
                Err(_) if tx.has_moved() => {
                    // It has moved once more with each end that was moved to it: a peer can have it so, without end.
                    moves += 1;
                    if moves > MOST_MOVES && deadline.has_passed() {
                        break Err(if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut });
                    }
                }
                // Whoever passed the other end on may be gone at once.
                Err(Error::PeerClosed) if tx.ended().is_none() && tx.has_frozen() => {
                    tx.discard();
                    if let Err(error) = self.follow_frozen(tx) {
                        break Err(error);
                    }
                }
                Err(Error::WouldBlock) if !deadline.is_now() => {
                    if let Err(error) = self.wait_to_send_ends(tx, &mut looks, deadline) {
                        break Err(error);
                    }
                }
                sent => break sent,
            }
        };
        for (end, member) in members {
            match sent {
                Ok(()) => member.take_out(true),
                Err(_) => end.put_member_back(member),
            }
        }
        tx.unmark_blocking();
        self.after_blocking();
        sent
    }

    /// Waits for what the last try lacked. No end is on its way meanwhile.
    fn wait_to_send_ends(&self, tx: &mut Guard<'_, Tx>, looks: &mut Looks, deadline: Deadline) -> Result<(), Error> {
        match want::take() {
            Some(Want::Room(..)) => self.wait_for_room(tx, true, deadline),
            Some(Want::Descriptors(_, _, count)) => self.wait_for_descriptors(tx, count, looks, deadline),
            lacked => self.wait_for(lacked, looks, deadline),
        }
    }

    /// Tries it where the peer is now. Waits for room only before any end is moved.
    fn try_send_ends(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        handles: &mut Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.commit(tx, deadline)?;
        // Whoever reads this is to use the ends; so it must be known who that is.
        self.wait_for_hand_over(tx, deadline)?;
        if tx.lane.is_down() {
            return Err(tx.lane.reason());
        }
        let dest = tx.lane.link().clone();
        tx.pin();
        if dest.is_local() {
            return self.send_within(tx, content, len, handles, deadline);
        }
        // What is sent to them from here on, and is a value, makes this fail once more.
        turn_values(handles)?;
        let descriptors = handles.iter().filter(|handle| handle.as_descriptor().is_some()).count();
        self.wait_for_quotas(tx, descriptors, 0, deadline)?;
        let header = Header::new(Kind::Message, len.min(self.options.inline_limit()), 0);
        self.stage_record(tx, header, deadline)?;
        tx.discard();
        let mut along = Vec::new();
        let prepare = |end: &End| {
            end.relocate(&dest, &along, Deadline::NOW)?;
            along.push(end.lane()?.name());
            Ok(())
        };
        let flat = match Flat::of(std::mem::take(handles), prepare) {
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
                for end in &flat.ends {
                    let end = end.end();
                    // From here on it is the receiver's.
                    end.set_sent();
                    if let Ok(lane) = end.lane() {
                        lane.hand_over();
                    }
                }
                // Not here: they may have come from a peer, which the caller knows.
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

    /// Sends a message whose handles are ready to go.
    fn send_flat(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        flat: &Flat,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let (table, travellers) = flat.encode()?;
        self.wait_for_quotas(tx, travellers.len(), 0, deadline)?;
        // Whatever may have to wait comes first. Behind the table comes the message, and its first header makes both appear.
        let loan = match content {
            Content::Parts(_) if len > self.options.inline_limit() => Some(self.borrow_block(tx, len, deadline)?),
            _ => None,
        };
        let record = match content {
            Content::Sealed(..) => 8,
            Content::Parts(_) if loan.is_some() => BlockRecord::SIZE,
            Content::Parts(_) => len,
        };
        let staged = self
            .make_room_for_both(tx, table.len(), record, deadline)
            .and_then(|()| self.stage_table(tx, &table, deadline))
            .and_then(|()| self.send_travellers(tx, &travellers, tx.number(), deadline));
        if let Err(error) = staged {
            if let Some(loan) = loan.filter(|_| !tx.is_moved()) {
                tx.pool().take_back(&loan);
            }
            return Err(error);
        }
        let sequence = tx.sequence;
        let attempt = tx.attempt();
        let header = |kind, len| Header::new(kind, len, flat.len()).with_table().with_try(attempt);
        self.stage_content(tx, content, len, loan, header, deadline)?;
        let memories = usize::from(table.len() > self.longest_table());
        tx.note_in_flight_of(sequence, Amount { handles: travellers.len(), memories, sealed: 0 });
        self.commit(tx, deadline)
    }

    /// Bytes of the longest table that goes through the ring: so much that there is room for a message behind it.
    fn longest_table(&self) -> usize {
        LONGEST_TABLE.min(self.options.inline_limit() / 4)
    }

    /// Makes room for a table and the record of its message, which must not come alone: nothing is staged.
    fn make_room_for_both(
        &self,
        tx: &mut Guard<'_, Tx>,
        table: usize,
        record: usize,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let is_inline = table <= self.longest_table();
        let table = if is_inline { table } else { 0 };
        let fit = |tx: &mut Tx| {
            let headers = [table, record].map(|len| Header::new(Kind::Message, len, 0));
            let fit = headers.iter().all(|header| tx.producer.stage(*header).is_ok());
            tx.discard();
            fit
        };
        self.commit(tx, deadline)?;
        if fit(tx) {
            return Ok(());
        }
        // As for one that is as long as both.
        let both = (table + record + CELL).min(longest_payload(self.options.ring_max_cells));
        self.stage_record(tx, Header::new(Kind::Message, both, 0), deadline)?;
        tx.discard();
        // A table in the ring that comes alone does no harm, and the longest messages find no room beside it for sure.
        if fit(tx) || is_inline {
            return Ok(());
        }
        want::note(Want::Room(Arc::downgrade(&tx.lane), tx.progress()));
        Err(Error::WouldBlock)
    }

    /// Stages what the handles of the next message are.
    fn stage_table(&self, tx: &mut Guard<'_, Tx>, table: &[u8], deadline: Deadline) -> Result<(), Error> {
        if table.len() <= self.longest_table() {
            let slot = self.stage_record(tx, Header::new(Kind::Table, table.len(), 0), deadline)?;
            tx.producer.write(slot, 0, table);
            // It names lanes that only the present peer can use.
            tx.attach();
            return Ok(());
        }
        self.stage_record(tx, tx.header(Kind::Table, 0, 1), deadline)?;
        self.send_table(tx, table, tx.number(), deadline)
    }

    /// Sends a table in memory of its own, for the record staged last.
    pub(super) fn send_table(
        &self,
        tx: &mut Guard<'_, Tx>,
        table: &[u8],
        message: Number,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let fd = memory::memfd("strait-table", table.len())?;
        memory::write_at(&fd, table, 0)?;
        memory::seal_all(&fd)?;
        let mapping = Mapping::received_immutable(fd.as_fd(), 1..=usize::MAX, Link::own().ledger())?;
        let memory = Shareable { mapping, fd: Some(fd) };
        let packet = |token| Packet::Table { token, message };
        self.send_packet(tx, packet, Attachments::memory(&memory), 1, deadline)
    }

    /// Sends the descriptors that belong to a table.
    pub(super) fn send_travellers(
        &self,
        tx: &mut Guard<'_, Tx>,
        travellers: &[Traveller<'_>],
        message: Number,
        deadline: Deadline,
    ) -> Result<(), Error> {
        for (part, travellers) in travellers.chunks(MAX_HANDLES).enumerate() {
            let count = travellers.len();
            let packet = |token| Packet::Handles { token, message, part: part as u64, count: count as u32 };
            let descriptors: Vec<_> = travellers.iter().map(AsFd::as_fd).collect();
            self.send_packet(tx, packet, Attachments::descriptors(&descriptors), count, deadline)?;
        }
        Ok(())
    }

    fn stage_content(
        &self,
        tx: &mut Guard<'_, Tx>,
        content: Content<'_>,
        len: usize,
        loan: Option<Loan>,
        header: impl Fn(Kind, usize) -> Header,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let parts = match content {
            Content::Sealed(memory, len) => {
                let slot = self.stage_record(tx, header(Kind::Sealed, 8), deadline)?;
                let message = tx.number();
                let packet = |token| Packet::Sealed { token, message, handles: 0 };
                self.send_packet(tx, packet, Attachments::memory(memory), 1, deadline)?;
                tx.producer.write(slot, 0, &(len as u64).to_le_bytes());
                let amount = Amount { handles: tx.descriptors(1), memories: 0, sealed: len };
                tx.note_in_flight(amount);
                self.count_staged(tx, len);
                return Ok(());
            }
            Content::Parts(parts) => parts,
        };
        if len <= self.options.inline_limit() {
            let slot = self.stage_record(tx, header(Kind::Message, len), deadline)?;
            let producer = &tx.producer;
            parts.each(|at, bytes| {
                producer.write(slot, at, bytes);
                Ok::<(), Error>(())
            })?;
            self.count_staged(tx, len);
            return Ok(());
        }
        let loan = match loan {
            Some(loan) => loan,
            None => self.borrow_block(tx, len, deadline)?,
        };
        let filled = parts.each(|at, bytes| pool::fill(&loan, at, bytes));
        self.stage_block_as(tx, &loan, len, filled, header(Kind::Block, BlockRecord::SIZE), &[], deadline)
    }

    /// Sends a message to this very process: its handles are handed over as they are.
    fn send_within(
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
        let count = handles.len();
        self.wait_for_quotas(tx, 0, 0, deadline)?;
        let header = |kind, len| Header::new(kind, len, count);
        self.stage_content(tx, content, len, None, header, deadline)?;
        let away = away::of_handles(handles, tx.lane.is_other_here());
        let left = Handles::of(std::mem::take(handles), away);
        let Some((ended, left)) = self.commit_within(tx, left, Amount::default()) else { return Ok(()) };
        *handles = { left.handles }.take();
        self.after_end(tx, ended, deadline)
    }

    /// Whether this is the other end of the channel whose end sends.
    pub(super) fn is_other_end_of(&self, tx: &Tx) -> bool {
        let Ok(mut other) = self.tx.lock(Deadline::NOW) else { return false };
        // It may not have noticed that that end moved.
        self.catch_up(&mut other);
        let (theirs, ours) = (&other.lane, &tx.lane);
        // Lanes of different makers may have the same name; and that an end is elsewhere is only what a peer says.
        let here = theirs.link().is_local() && ours.link().is_local() && theirs.token_in() == ours.token_out();
        here || theirs.is_opposite(ours)
    }

    /// The handles of a message with a table.
    pub(in crate::channel) fn receive_ends(
        &self,
        rx: &mut Rx,
        token: u128,
        message: Number,
        handles: usize,
        table: &[u8],
    ) -> Result<Arrived, Error> {
        self.receive_row(rx, token, message, Parsed::read(table, handles)?, None)
    }

    /// The handles of a table; the first of them is this `holder`, if one is given.
    pub(super) fn receive_row(
        &self,
        rx: &mut Rx,
        token: u128,
        message: Number,
        mut parsed: Parsed<'_>,
        mut holder: Option<Channel>,
    ) -> Result<Arrived, Error> {
        let link = rx.lane.listen().clone();
        if link.is_local() {
            return Err(Error::BadPeer("a table of handles within a process"));
        }
        let (sent, handles) = (parsed.descriptors, parsed.top.len());
        // Before anything is taken: it may be asked for again.
        for (entry, ..) in parsed.ends.iter().skip(usize::from(holder.is_some())) {
            link.ready_lane(entry.name)?;
        }
        let charge = link.ledger().charge(parsed.amounts())?;
        let found = match sent {
            0 => Default::default(),
            _ => link
                .fetch(|inbox| inbox.take_handles(token, message, sent))?
                .filter(|found| found.sent == sent)
                .ok_or(Error::BadPeer("a message whose descriptors were never sent"))?,
        };
        let arrived = found.handles.len();
        let payer = link.ledger().payer();
        let origin = Origin::brought_over(&link);
        let find = |entry: Entry| -> Result<Channel, Error> {
            let lane = link.find_lane(entry.name, usize::from(entry.side), false)?;
            Ok(Channel { end: Arc::new(self.received(lane, entry)) })
        };
        if arrived < sent && holder.is_some() {
            // The messages that it holds come without.
            drop(found);
            let lost = parsed.lose_handles();
            holding_back(|| lost.into_iter().for_each(|entry| drop(find(entry))));
            let holder = |_| holder.take().ok_or(Error::BadPeer("a table of handles that is none"));
            let handles = parsed.into_handles(Vec::new(), &payer, charge, origin, holder)?;
            return Ok(Arrived::of_handles(handles));
        }
        let build = |entry: Entry| holder.take().map_or_else(|| find(entry), Ok);
        if arrived < sent {
            // Half a row of handles is of no use. Its ends are closed.
            drop(found);
            holding_back(|| drop(parsed.into_handles(Vec::new(), &payer, charge, origin, build)));
            return Ok(Arrived::of_lost(Error::HandlesLost { sent: handles, arrived: arrived.min(handles) }));
        }
        let came = found.handles.into_descriptors();
        match holding_back(|| parsed.into_handles(came, &payer, charge, origin, build)) {
            Ok(handles) => Ok(Arrived::of_handles(handles)),
            // Memory of a message that an end takes along cannot be mapped.
            Err(error) if error.passes() => Ok(Arrived::of_lost(Error::HandlesLost { sent: handles, arrived: 0 })),
            Err(error) => Err(error),
        }
    }
}

/// The registration of an end that is in a wait set.
fn take_member(handle: &Handle) -> Option<(Arc<End>, Arc<Member>)> {
    let end = &handle.channel()?.end;
    Some((end.clone(), end.take_member()?))
}

/// An end that could not be sent, and those in its messages, go on where they are.
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
