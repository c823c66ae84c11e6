//! The packets of a message, and the wait until the link for these packets is known.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use super::Tx;
use crate::blocked_on::{self, BlockedOn, PollBackoff, Subject};
use crate::channel::End;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::Lane;
use crate::lane::mailbox::mailbox;
use crate::link::packet::{Packet, PayloadMemory};
use crate::link::{Attachments, InUse, Link, MemoryKey, SocketBlockedOn};
use crate::os::fault;
use crate::os::socket::SCM_MAX_FD;
use crate::quota::MAX_HANDLES;
use crate::ring::{Ended, RecordKind};
use crate::shm::Shareable;
use crate::signals;
use crate::wake::Direction;
use crate::wake::interrupt::Interruption;
use crate::wake::lock::Guard;

impl End {
    /// Sends all attachments of the last staged message over the socket, in one packet; sends nothing if the message
    /// has no attachments. `message` is the number of the message, and `payload` gives the kind of memory among the
    /// attachments. This is the last step before the commit that can fail for lack of room. On an error the last staged
    /// record is discarded.
    ///
    /// Descriptors that do not fit into the packet are sent ahead of the packet. Without that packet, such descriptors
    /// have no meaning for the receiver; if the packet cannot be sent, they are voided at the receiver.
    pub(in crate::channel) fn send_message_packet(
        &self,
        tx: &mut Guard<'_, Tx>,
        message: u64,
        payload: PayloadMemory,
        attachments: Attachments<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let count = attachments.len();
        if count == 0 {
            return Ok(());
        }
        let (ahead, attachments) = attachments.split_ahead();
        let handles = attachments.descriptors.len() as u32;
        let has_table = attachments.table.is_some();
        self.send_packets(tx, count, deadline, |link, token| {
            let send = |packet, attachments: Attachments<'_>| self.send_packet(link, &packet, attachments, deadline);
            let mut is_ahead = false;
            let mut send_ahead = |descriptors: &[BorrowedFd<'_>]| {
                let packet = Packet::Ahead { token, count: descriptors.len() as u32 };
                send(packet, Attachments { descriptors, ..Attachments::NOTHING }).inspect(|()| is_ahead = true)
            };
            let sent_ahead = ahead.chunks(SCM_MAX_FD).try_for_each(&mut send_ahead);
            let packet = Packet::Message { token, message, payload, has_table, handles };
            let sent = sent_ahead.and_then(|()| send(packet, attachments));
            if sent.is_err() && is_ahead {
                link.send_sooner_or_later(Packet::Ahead { token, count: 0 });
            }
            sent
        })
    }

    /// Sends the memory of the ring with the generation `generation`, to which the record leads that is staged next.
    /// Waits until `deadline` for room in the socket, with the sending lock held.
    pub(super) fn send_ring(
        &self,
        tx: &mut Guard<'_, Tx>,
        generation: u64,
        memory: &Shareable,
        deadline: Deadline,
    ) -> Result<(), Error> {
        self.send_packets(tx, 1, deadline, |link, token| {
            let packet = Packet::Ring { token, generation };
            self.send_packet(link, &packet, Attachments::memory(memory), deadline)
        })
    }

    /// Sends a packet with its attachments over `link`; waits until `deadline` for room in the socket. If the receiver
    /// is in this process, leaves the packet's memory in the mailbox instead.
    fn send_packet(
        &self,
        link: &Link,
        packet: &Packet,
        attachments: Attachments<'_>,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if !link.is_local() {
            return link.send(packet, attachments, deadline, self.interruption());
        }
        debug_assert!(attachments.descriptors.is_empty(), "handles are left in the mailbox");
        for (key, memory) in MemoryKey::of(packet).zip(attachments.memory) {
            mailbox().leave_memory(key, memory.mapping.clone());
        }
        Ok(())
    }

    /// Sends packets with `count` descriptors, for the record that was staged last; `send` sends them, given the link
    /// and the token of the ring. Waits until `deadline` for room, with the sending lock held. On an error that record
    /// is discarded.
    fn send_packets(
        &self,
        tx: &mut Guard<'_, Tx>,
        count: usize,
        deadline: Deadline,
        send: impl FnOnce(&Link, u128) -> Result<(), Error>,
    ) -> Result<(), Error> {
        tx.mark_blocking_until(deadline);
        let sent = self.wait_to_send(tx, count, deadline).and_then(|link| send(&link, tx.lane.token_out()));
        tx.unmark_blocking_until(deadline);
        self.after_blocking();
        match sent {
            Ok(()) => tx.attach(),
            Err(_) => tx.producer.unstage_last(),
        }
        // The source of a moved end may exit as soon as the end has gone on; then this end follows the moved end.
        if let (Err(Error::PeerClosed), Some(ended @ Ended(Some(RecordKind::Frozen)))) = (sent, tx.producer.ended()) {
            self.after_end(tx, ended, deadline)?;
            tx.moved = true;
            return Err(Error::WouldBlock);
        }
        if sent == Err(Error::PeerClosed) && tx.lane.is_down() {
            tx.end_with(Error::PeerClosed);
        }
        sent
    }

    /// Waits until the link for packets is known, and until `count` more descriptors may be in flight over the link.
    /// Returns the link.
    fn wait_to_send(&self, tx: &mut Guard<'_, Tx>, count: usize, deadline: Deadline) -> Result<InUse, Error> {
        // A higher count includes descriptors in backlogs of ends; even then, the wait is only for this many.
        let count = count.min(MAX_HANDLES + 1);
        // A packet has to wait until its link is known. Until then the ring may still get another token.
        self.wait_until_handed_over(&tx.lane, deadline)?;
        let link = tx.lane.link().clone();
        let mut backoff = PollBackoff::default();
        while !link.may_send(count, || tx.has_reserve()) {
            // A dead peer never frees descriptors.
            link.probe_if_due();
            if link.is_down() {
                return Err(link.reason());
            }
            if tx.producer.ended().is_some() {
                return Err(Error::PeerClosed);
            }
            self.wait_for_descriptors(tx, count, &mut backoff, deadline)?;
        }
        Ok(link)
    }

    /// Waits until the consumer has taken a message or freed cells, because too many descriptors are in flight over the
    /// link to send `count` more. Also returns without an error when the next pause of `backoff` is over, so that the
    /// caller checks again. With [`Deadline::NOW`] looks once more and then fails with [`Error::WouldBlock`]; at any
    /// other deadline fails with [`Error::TimedOut`].
    pub(in crate::channel) fn wait_for_descriptors(
        &self,
        tx: &mut Guard<'_, Tx>,
        count: usize,
        backoff: &mut PollBackoff,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if deadline.is_now() {
            fault::point("before a sender notes that it lacks descriptors");
            // The note is of the consumer's progress by now. Otherwise earlier, useless progress would count as an
            // event.
            tx.refresh()?;
            // Descriptors that came free before the progress was read would not be news to the waiter.
            if tx.lane.link().may_send(count, || tx.has_reserve()) {
                return Ok(());
            }
            blocked_on::note(BlockedOn::Descriptors(Subject::of(Arc::downgrade(&tx.lane)), tx.progress(false), count));
            return Err(Error::WouldBlock);
        }
        let slice = Deadline::after(deadline.within(backoff.next()));
        match self.waiter(&tx.lane, tx.producer.memory()).until(slice, || tx.has_news(), || {}) {
            Err(Error::TimedOut) if !deadline.has_passed() => {}
            waited => waited?,
        }
        tx.refresh()
    }

    /// If the other end of this channel is in transit, waits until its destination is known. The sending lock is held
    /// meanwhile. Fails as [`End::wait_until_handed_over`] does.
    pub(in crate::channel) fn wait_for_hand_over(&self, tx: &Guard<'_, Tx>, deadline: Deadline) -> Result<(), Error> {
        if !tx.lane.is_pending() && !tx.lane.is_abandoned() {
            return Ok(());
        }
        tx.mark_blocking_until(deadline);
        let waited = self.wait_until_handed_over(&tx.lane, deadline);
        tx.unmark_blocking_until(deadline);
        self.after_blocking();
        match waited {
            // The other end went on elsewhere, and its source is gone. The caller's next step follows the other end.
            Err(Error::PeerClosed) if tx.has_frozen() => Ok(()),
            waited => waited,
        }
    }

    /// If the other end of `lane` is in transit, waits until its destination is known. The thread sleeps on the sleep
    /// word for room in the lane, so no other thread may wait for room there meanwhile.
    ///
    /// # Errors
    /// The error with which the lane has ended, if the other end will arrive nowhere; [`Error::WouldBlock`],
    /// [`Error::TimedOut`], [`Error::Interrupted`].
    pub(in crate::channel) fn wait_until_handed_over(&self, lane: &Arc<Lane>, deadline: Deadline) -> Result<(), Error> {
        while lane.is_pending() {
            fault::point("between two looks at an end that is on its way");
            lane.probe();
            if lane.is_down() {
                return Err(lane.reason());
            }
            if deadline.is_now() {
                blocked_on::note(BlockedOn::Transit(Subject::of(Arc::downgrade(lane))));
                return Err(Error::WouldBlock);
            }
            let source = lane.current_link().clone();
            match self.waiter(lane, &lane.out()).until(deadline, || !lane.is_pending(), || {}) {
                // If the source died, the lane knows the outcome of the transfer.
                Err(error) if source.is_down() => signals::postpone(error),
                waited => waited?,
            }
        }
        // This process may have been the first to abandon the transfer: then nothing more is sent, although the link
        // exists.
        if lane.is_abandoned() { Err(lane.reason()) } else { Ok(()) }
    }

    /// Waits until the peer has opened its side of `lane`, or until the link is down. Returns `Ok` in both cases. Fails
    /// with [`Error::TimedOut`] at the deadline, and with [`Error::Interrupted`].
    fn wait_until_open(&self, lane: &Lane, deadline: Deadline) -> Result<(), Error> {
        let link = lane.link().clone();
        let interruption = self.interruption();
        let noted = interruption.note(Direction::Sending, &**link, None);
        let is_open = || lane.inward().is_some() || link.inbox().has_open();
        let parked = link.park(deadline, interruption, is_open);
        drop(noted);
        parked?;
        interruption.check()?;
        if !is_open() && !link.is_down() && deadline.has_passed() { Err(Error::TimedOut) } else { Ok(()) }
    }

    /// Waits until the process of the other end of a lane is known. Returns `Ok` also if that end will arrive nowhere,
    /// or if the lane no longer exists: the next attempt to send finds that out. Fails with [`Error::TimedOut`] at the
    /// deadline, and with [`Error::Interrupted`].
    fn wait_until_arrived(&self, lane: &Subject, deadline: Deadline) -> Result<(), Error> {
        let Some(lane) = lane.get::<Lane>() else { return Ok(()) };
        if lane.inward().is_none() {
            return self.wait_until_open(&lane, deadline);
        }
        match self.wait_until_handed_over(&lane, deadline) {
            Err(error @ (Error::TimedOut | Error::Interrupted | Error::Signalled)) => Err(error),
            _ => Ok(()),
        }
    }

    /// Waits for the obstacle `blocked` of a failed attempt to move ends: room, descriptors, the socket, the kernel, a
    /// lock, or the end of a transfer. That attempt has been undone. If the obstacle is room or descriptors, the
    /// calling thread does not hold the sending lock. In every other case the thread holds that lock, or is the only
    /// thread that uses the end, because the wait may sleep on the word on which a sender sleeps until there is room.
    pub(in crate::channel) fn wait_for(
        &self,
        blocked: Option<BlockedOn>,
        backoff: &mut PollBackoff,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if deadline.has_passed() {
            return Err(Error::TimedOut);
        }
        let interruption = self.interruption();
        interruption.check()?;
        match blocked {
            Some(BlockedOn::Transit(lane)) => self.wait_until_arrived(&lane, deadline),
            Some(BlockedOn::Socket(link, _)) => wait_on(&link, SocketBlockedOn::Room, backoff, deadline, interruption),
            Some(BlockedOn::Unreported(link, _)) => {
                wait_on(&link, SocketBlockedOn::Kernel, backoff, deadline, interruption)
            }
            Some(BlockedOn::Room(lane, seen)) => match self.tx.lock_unless(deadline, || interruption)? {
                mut tx if is_lane_of(&tx, &lane) => self.wait_for_room(&mut tx, seen.blocks.is_some(), deadline),
                _ => Ok(()),
            },
            Some(BlockedOn::Descriptors(lane, _, count)) => match self.tx.lock_unless(deadline, || interruption)? {
                mut tx if is_lane_of(&tx, &lane) => self.wait_for_descriptors(&mut tx, count, backoff, deadline),
                _ => Ok(()),
            },
            // By the next attempt the obstacle is gone: a value that has just come, or a lock held for a moment.
            Some(BlockedOn::Lock) | None => {
                std::thread::yield_now();
                Ok(())
            }
        }
    }
}

/// Returns whether `lane` is the lane in which the end of `tx` still sends. Returns `false` if that end has followed
/// the other end to another lane since.
pub(in crate::channel) fn is_lane_of(tx: &Tx, lane: &Subject) -> bool {
    lane.is(&tx.lane)
}

/// Waits until another attempt to send a packet is worthwhile, or until the deadline. `blocked` is what the last
/// attempt was blocked on: room in the socket, or memory of the kernel. Returns at once if the link no longer exists.
fn wait_on(
    link: &Subject,
    blocked: SocketBlockedOn,
    backoff: &mut PollBackoff,
    deadline: Deadline,
    interruption: Interruption<'_>,
) -> Result<(), Error> {
    match link.get::<Link>() {
        // A link that is down is noticed by the next attempt.
        Some(link) if !link.is_down() => match link.wait_for(blocked, backoff, deadline, interruption) {
            Err(Error::PeerClosed) => Ok(()),
            waited => waited,
        },
        _ => Ok(()),
    }
}
