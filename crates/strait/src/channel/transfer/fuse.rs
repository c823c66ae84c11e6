//! Fusing: two channels become one.
//!
//! This process has *b* of a channel A–*b*, and *c* of a channel *c*–D. The fuse joins A and D, which may be anywhere
//! and do anything meanwhile. A fuse is the move of an end twice over, with a new last part:
//!
//! 1. **Hold.** *b* and *c* move within this process ([`super::moving`]), each into a fresh lane that is not handed
//!    over. Both far ends are *pending* there: a far end cannot move, and can only write small messages, as many as fit
//!    into the present ring. The messages written before are drained. If the second near end cannot be held now, the
//!    move of the first one is cancelled: a process that holds one end never waits for another.
//! 2. **Make** a lane N for the processes of A and D.
//! 3. **Prepend.** The unreceived messages of *b* are staged for D, and the unreceived messages of *c* for A, each set
//!    as one record ([`RecordKind::Prepended`]). When a far end reads the record, it adds the messages to its backlog
//!    and reads on behind the record. Until here any step may fail; *b* and *c* then stay unchanged.
//! 4. **Freeze** the rings that A and D write: both go on writing in N. A message that A published just before is taken
//!    along, and the freeze is tried again. A gets no room for more, so the freeze succeeds after a few attempts. The
//!    messages that D publishes after A was frozen are small, and fit into the ring of *b*'s lane, which was made large
//!    enough.
//! 5. **Mark** the incoming rings of A and D: behind the prepended backlog, A and D read on in N.
//! 6. **Hand over**: a word of N says that A and D have each other. If this process dies before the handover, A and D
//!    see *peer closed*.
//!
//! An end has a side, 0 or 1; the side decides into which ring of a lane the end writes. A and D may have the same
//! side; then the mark for D says that D changes sides.
//!
//! If a far end is closed, or its process dead, there is no N: the other far end gets the messages of the closed far
//! end, and then sees the close.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::AsFd;
use std::sync::Arc;

use super::close;
use super::ends::{cancel_transfers, table_memory};
use super::in_transit::{self, close_in_transit};
use super::moving::Along;
use super::table::{FlatHandles, LONGEST_INLINE, Parsed};
use crate::blocked_on::{self, BlockedOn, PollBackoff};
use crate::channel::handle::Handle;
use crate::channel::message::MessageExtras;
use crate::channel::receiver::Rx;
use crate::channel::receiver::backlog::BacklogMessage;
use crate::channel::sender::packets::is_lane_of;
use crate::channel::sender::{Tx, local};
use crate::channel::views::values::turn_values_of;
use crate::channel::watch::TakenMembers;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::mailbox::{self, Parcel};
use crate::lane::nesting::Places;
use crate::lane::{Absent, Lane};
use crate::link::packet::PayloadMemory;
use crate::link::{Attachments, InUse, Link};
use crate::ring::{CELL, Ended, Header, Memory, RecordKind};
use crate::wake::lock::Guard;

/// Number of cells (of 64 bytes) in each ring of the lane into which a fuse moves the first of the two near ends. Such
/// a ring has room for the prepended backlog. Besides, the ring has room for the contents of a ring of the second near
/// end's lane.
const ROOMY: usize = 32;

/// How often a fuse tries to freeze a ring (to end the ring from the reading side). A far end makes an attempt fail by
/// publishing a message; the ring has room for fewer messages than this. A far end that makes all attempts fail is a
/// bad peer.
const MOST_TRIES: usize = 4 * ROOMY;

/// The bit that distinguishes numbers of prepended backlogs from numbers of messages.
const PREPENDED: u64 = 1 << 63;

/// The error of [`Channel::fuse`], with the two unchanged ends.
///
/// Example: [two channels that become one](crate::Channel::fuse).
#[derive(Debug)]
pub struct FuseError {
    /// The reason why the channels were not fused.
    pub error: Error,
    /// The two ends that were to be fused, in the order of the call.
    pub channels: (Channel, Channel),
}

impl fmt::Display for FuseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for FuseError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<FuseError> for Error {
    /// Returns the reason why the channels were not fused, and closes the two ends that the error contains.
    fn from(failed: FuseError) -> Self {
        failed.error
    }
}

impl From<FuseError> for std::io::Error {
    fn from(failed: FuseError) -> Self {
        Error::from(failed).into()
    }
}

impl Channel {
    /// Joins two channels: from now on the other end of this channel and the other end of `other` are the two ends of
    /// one channel. Unreceived messages of the other ends come first, with their handles. No message is lost or
    /// reordered, whatever the other ends do meanwhile, and the other ends notice nothing. After the call this process
    /// has no part in the channel and may exit.
    ///
    /// The processes of the other ends do not have to take part. A fuse succeeds while these processes are idle or
    /// stopped, once each has opened its side of its channel. An other end follows to the joined channel when the end
    /// is used next.
    ///
    /// This process has made the memory in which the channel goes on, as for a sent end: see [`Channel::rehome`].
    ///
    /// The other ends may be in any process, also in this process, and in transit. If one other end is closed, or its
    /// process dead, the remaining other end receives the messages of the closed end, and then [`Error::PeerClosed`].
    ///
    /// ```
    /// use strait::{Channel, Deadline};
    /// let (client, ours) = Channel::pair()?;
    /// let (theirs, service) = Channel::pair()?;
    /// client.send(b"sent before")?;
    /// ours.fuse(theirs, Deadline::NEVER)?;
    /// client.send(b"sent after")?;
    /// assert_eq!(service.recv()?.bytes(), b"sent before");
    /// assert_eq!(service.recv()?.bytes(), b"sent after");
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Errors
    /// The error contains the two ends, unchanged. [`Error::WouldBlock`] or [`Error::TimedOut`] while one of the other
    /// ends is being sent or fused, while a process has not opened its side, or while a socket is full;
    /// [`Error::OwnChannel`] if the two are the ends of one channel, or if the other end of one channel lies in a
    /// message that would be sent to that end itself; [`Error::NoMemory`], [`Error::NoDescriptors`],
    /// [`Error::LimitReached`], [`Error::Forked`].
    ///
    /// # Cost
    /// About the cost of sending three ends. Unreceived messages are copied.
    pub fn fuse(self, other: Self, deadline: impl Into<Deadline>) -> Result<(), FuseError> {
        let fused = self
            .end
            .born
            .check()
            .and(other.end.born.check())
            .and_then(|()| fuse(&self.end, &other.end, deadline.into()));
        deferred::run();
        match fused {
            Ok(()) => {
                // Fused ends are marked as sent, so dropping the ends closes nothing. An end without another end is
                // closed here.
                drop((self, other));
                Ok(())
            }
            Err(error) => Err(FuseError { error, channels: (self, other) }),
        }
    }
}

fn fuse(one: &Arc<End>, other: &Arc<End>, deadline: Deadline) -> Result<(), Error> {
    // A wait set must not poll an end that is being moved.
    let members = TakenMembers::of([one, other].into_iter());
    let mut backoff = PollBackoff::default();
    let fused = loop {
        blocked_on::forget();
        match turn_for_each_other(one, other).and_then(|()| deferred::postponed(|| try_fuse(one, other))) {
            Err(Error::WouldBlock) if !deadline.is_now() => {
                if let Err(error) = wait_to_fuse(one, other, blocked_on::take(), &mut backoff, deadline) {
                    break Err(error);
                }
            }
            fused => break fused,
        }
    };
    if fused.is_ok() {
        members.take_out();
    }
    fused
}

/// Waits until `deadline` for the obstacle `blocked`, which stopped the last attempt to fuse two channels. The attempt
/// has changed nothing.
fn wait_to_fuse(
    one: &End,
    other: &End,
    blocked: Option<BlockedOn>,
    backoff: &mut PollBackoff,
    deadline: Deadline,
) -> Result<(), Error> {
    let waited = match blocked {
        Some(BlockedOn::Room(ref lane, _) | BlockedOn::Descriptors(ref lane, ..))
            if other.tx.lock(Deadline::NOW).is_ok_and(|tx| is_lane_of(&tx, lane)) =>
        {
            other.wait_for(blocked, backoff, deadline)
        }
        blocked => one.wait_for(blocked, backoff, deadline),
    };
    match waited {
        // A far end is closed or dead, which does not prevent a fuse. The next attempt notices the close.
        Err(Error::PeerClosed) => Ok(()),
        waited => waited,
    }
}

/// Turns the values queued at two near ends into bytes and handles, where needed: a value at one near end, if the far
/// end of the other near end is in another process and so receives the message after the fuse.
fn turn_for_each_other(one: &Arc<End>, other: &Arc<End>) -> Result<(), Error> {
    for (from, to) in [(one, other), (other, one)] {
        if !to.link()?.is_local() {
            turn_values_of(vec![from.clone()])?;
        }
    }
    Ok(())
}

fn try_fuse(one: &End, other: &End) -> Result<(), Error> {
    // First both ends are checked: each must be able to move now.
    for end in [one, other] {
        end.follow_to_peer(&mut end.tx.lock(Deadline::NOW)?, &mut end.rx.lock(Deadline::NOW)?, &Along::default())?;
    }
    if other.is_other_end_of(&*one.tx.lock(Deadline::NOW)?) {
        return Err(Error::OwnChannel);
    }
    let own = Link::own();
    one.relocate_into(&own, &mut Along::default(), Some(ROOMY), Deadline::NOW)?;
    let fused =
        other.relocate_into(&own, &mut Along::default(), Some(SMALL), Deadline::NOW).and_then(|()| join(one, other));
    for end in [one, other] {
        // If the second end was not moved, its lane needs no change.
        if let Ok(lane) = end.lane()
            && lane.is_moving()
        {
            lane.cancel_transfer();
        }
    }
    fused
}

/// Joins the far ends of two channels; the fuse holds their near ends `one` and `other` in this process. If one far end
/// is closed, the other far end gets the messages of the closed end. After an error both near ends are unchanged.
fn join(one: &End, other: &End) -> Result<(), Error> {
    let (mut near, mut far) = (Half::of(one)?, Half::of(other)?);
    let joined = join_halves(&mut near, &mut far);
    let unread = [near.take_unread(), far.take_unread()];
    drop((near, far));
    unread.into_iter().flatten().for_each(|parcel| parcel.close());
    joined
}

/// Does what [`join`] does, with the two near ends held. A prepended backlog that no far end will receive stays in the
/// mailbox, for the caller to take.
fn join_halves<'a>(near: &mut Half<'a>, far: &mut Half<'a>) -> Result<(), Error> {
    let (of_near, of_far) = (ends_in(near.rx.ends_in_backlog()), ends_in(far.rx.ends_in_backlog()));
    if of_near.iter().chain(&of_far).any(|end| end.is_other_end_of(&near.tx) || end.is_other_end_of(&far.tx)) {
        return Err(Error::OwnChannel);
    }
    near.check_for_cycle(&of_far)?;
    far.check_for_cycle(&of_near)?;
    loop {
        near.take_new()?;
        far.take_new()?;
        let alone = (near.is_alone(), far.is_alone());
        let joined = match alone {
            (true, true) => return Ok(()),
            (true, false) => far.bring_all_from(near).map(|()| true),
            (false, true) => near.bring_all_from(far).map(|()| true),
            (false, false) => fuse_held(near, far).inspect(|joined| {
                if *joined {
                    near.end.set_sent();
                    far.end.set_sent();
                }
            }),
        };
        match joined {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            // The process of a far end turned out to be dead when a packet was sent there.
            Err(Error::PeerClosed) if (near.is_alone(), far.is_alone()) != alone => {}
            Err(error) => return Err(error),
        }
    }
}

/// A near end: one of the two ends held by a fuse in this process, with the locks of both directions. The far end is
/// the other end of the same channel.
struct Half<'a> {
    end: &'a End,
    tx: Guard<'a, Tx>,
    rx: Guard<'a, Rx>,
    /// Number of attempts so far to stage a prepended backlog for the far end. Each attempt gets its number from this
    /// count.
    tries: u64,
    /// Number of descriptors sent over the socket for the records staged for the far end.
    descriptors: usize,
    /// The token and the number of the prepended backlog for the far end in the mailbox of this process, until its
    /// record is committed. `None` if there is none.
    unread: Option<(u128, u64)>,
}

impl<'a> Half<'a> {
    fn of(end: &'a End) -> Result<Self, Error> {
        let (tx, rx) = (end.tx.lock(Deadline::NOW)?, end.rx.lock(Deadline::NOW)?);
        Ok(Self { end, tx, rx, tries: 0, descriptors: 0, unread: None })
    }

    /// Fails with [`Error::OwnChannel`] if the far end of this half lies in a message for one of `ends`. The `ends` lie
    /// in messages for the far end, so no end would be left to receive these messages.
    fn check_for_cycle(&self, ends: &[Arc<End>]) -> Result<(), Error> {
        let rings = in_transit::rings_read_by(ends.iter());
        let is_cycle = self.tx.lane.link().is_local()
            && !rings.is_empty()
            && mailbox::mailbox().nesting.lies_within(self.tx.lane.token_out(), &rings);
        if is_cycle { Err(Error::OwnChannel) } else { Ok(()) }
    }

    /// Takes the prepended backlog out of the mailbox if its record was not committed, because the far end was closed
    /// during the fuse: no end will receive these messages. The caller closes the parcel once it holds no lock.
    fn take_unread(&mut self) -> Option<Box<dyn Parcel>> {
        let (token, number) = self.unread.take()?;
        mailbox::take(token, number, 0)
    }

    /// Returns whether sending to the far end has ended: the far end was closed, its process died, or its process broke
    /// the protocol.
    fn is_alone(&self) -> bool {
        self.tx.ended().is_some()
    }

    /// Returns whether the far end of this half's channel is in this process.
    fn is_local(&self) -> bool {
        self.tx.lane.link().is_local()
    }

    /// Moves the messages that the far end has written from the ring to the backlog of the near end. Gives the far end
    /// no credit for them. If the far end turns out to be closed, ends the sending direction as well.
    fn take_new(&mut self) -> Result<(), Error> {
        loop {
            let step = match self.end.next_or_mark(&mut self.rx) {
                Ok(None) => return Ok(()),
                Ok(Some(record)) if record.header.kind() == RecordKind::Moved => {
                    Err(self.rx.end_with(Error::BadPeer("a move of an end that this process holds")))
                }
                Ok(Some(record)) => self.end.take_out(&mut self.rx, record).map(|unread| self.rx.push_backlog(unread)),
                Err(error) => Err(error),
            };
            match (step, self.rx.ended()) {
                (_, Some(error)) => {
                    self.tx.end_with(error);
                    return Ok(());
                }
                (step, None) => step?,
            }
        }
    }

    fn put_back(&mut self, backlog: VecDeque<BacklogMessage>) {
        backlog.into_iter().for_each(|unread| self.rx.push_backlog(unread));
    }

    /// Returns a new number for a prepended backlog that is about to be staged. No number is used twice, so that the
    /// far end cannot take attachments of an earlier backlog. No message has such a number.
    fn next_number(&mut self) -> u64 {
        self.tries += 1;
        PREPENDED | self.tries
    }

    /// Stages messages as a prepended backlog for the far end, which is in another process. `holder` is an end made
    /// only for this purpose: the messages travel as the backlog of `holder`. `along` collects the ends among the
    /// handles of the messages. On an error, nothing is staged and the messages are returned with the error.
    fn stage(
        &mut self,
        holder: Channel,
        backlog: VecDeque<BacklogMessage>,
        along: &mut Along,
    ) -> Result<FlatHandles, Failed> {
        let (dest, top) = (self.tx.lane.link().clone(), holder.end.clone());
        top.restore_backlog(backlog.into());
        let prepare = |end: &End| {
            if std::ptr::eq(end, &*top) {
                return Ok(());
            }
            end.relocate(&dest, along, Deadline::NOW)
        };
        let flat = FlatHandles::of(vec![holder.into()], prepare).map_err(|(error, back)| {
            back.iter().for_each(cancel_transfers);
            (error, top.take_backlog())
        })?;
        // At most a quarter of the ring, which leaves room for a second backlog of this size and for a mark.
        let quarter = self.tx.producer.memory().cells() / 4 * CELL - crate::ring::HEADER;
        let longest = quarter.min(8 + LONGEST_INLINE);
        let number = self.next_number();
        // The payload bytes go into the table: a receiver that lacks descriptors just now can read a table again.
        let staged = flat.encode_as(true).and_then(|(table, table_attachments)| {
            self.descriptors += table_attachments.len();
            let is_inline = 8 + table.len() <= longest;
            let len = if is_inline { 8 + table.len() } else { 8 };
            let header = Header::new(RecordKind::Prepended, len, usize::from(!is_inline));
            let slot = self.end.stage_record(&mut self.tx, header, Deadline::NOW)?;
            self.tx.producer.write(slot, 0, &number.to_le_bytes());
            if is_inline {
                self.tx.producer.write(slot, 8, &table);
            } else {
                self.descriptors += 1;
            }
            // The table names lanes usable only by the present peer.
            self.tx.attach();
            let memory = if is_inline { None } else { Some(table_memory(&table)?) };
            let descriptors: Vec<_> = table_attachments.iter().map(AsFd::as_fd).collect();
            let table = memory.as_ref().map(AsFd::as_fd);
            let attachments = Attachments { table, ..Attachments::descriptors(&descriptors) };
            self.end.send_message_packet(&mut self.tx, number, PayloadMemory::None, attachments, Deadline::NOW)
        });
        match staged {
            Ok(()) => Ok(flat),
            Err(error) => {
                self.discard();
                Err((error, taken_back(flat)))
            }
        }
    }

    /// Discards the staged records, and has the peer discard their attachments. The ring is fresh and holds no other
    /// records, so the peer loses nothing else.
    fn discard(&mut self) {
        self.end.retract(&mut self.tx);
        self.tx.discard();
        self.descriptors = 0;
    }

    /// Stages messages as a prepended backlog for a far end in this process. `holder` is an end made only for this
    /// purpose: the messages travel as the backlog of `holder`. The messages are handed over as objects, without being
    /// encoded. On an error, nothing is staged and the messages are returned with the error.
    fn stage_local(&mut self, holder: Channel, backlog: VecDeque<BacklogMessage>) -> Result<(), Failed> {
        let number = self.next_number();
        let slot = match self.end.stage_record(&mut self.tx, Header::new(RecordKind::Prepended, 8, 1), Deadline::NOW) {
            Ok(slot) => slot,
            Err(error) => return Err((error, backlog)),
        };
        self.tx.producer.write(slot, 0, &number.to_le_bytes());
        holder.end.restore_backlog(backlog.into());
        let handles = vec![Handle::from(holder)];
        let in_transit = in_transit::of_handles(&handles, self.tx.lane.is_other_here());
        self.unread = Some((self.tx.lane.token_out(), number));
        // Marked as committed, as if the record were in the ring. If the far end is closed before the commit, this half
        // takes the backlog back.
        let read_by_ends = in_transit::rings_read_by(handles.iter().filter_map(Handle::as_end));
        let token = self.tx.lane.token_out();
        let read_by_ends = Places::take_unchecked(token, read_by_ends).into_rings(token);
        local::leave(&mut self.tx, number, MessageExtras::with_handles(handles), in_transit, read_by_ends, true);
        Ok(())
    }

    /// Commits the records staged for the far end, if there are any. Returns `false` if the far end no longer reads,
    /// and otherwise `true`.
    fn commit(&mut self) -> bool {
        if !self.tx.producer.has_staged() {
            return true;
        }
        let descriptors = std::mem::take(&mut self.descriptors);
        let Some(ended) = self.end.commit_once(&mut self.tx) else {
            // This end is about to be dropped, but the descriptors are in flight like the descriptors of any message.
            self.tx.note_in_flight_up_to_here(descriptors);
            // A process with the memory of the ring may have marked this end as gone for the far end. Then the far end
            // has not read the record.
            self.unread = self.unread.filter(|_| self.tx.lane.has_other_left());
            return true;
        };
        // While held by a fuse, a correct far end freezes no ring.
        let ended = if ended == Ended(Some(RecordKind::Frozen)) { Ended(None) } else { ended };
        let _ = self.end.after_end(&mut self.tx, ended, Deadline::NOW);
        false
    }

    /// Commits the staged records, and ends the far end's incoming ring with a mark: the far end reads on in another
    /// lane. `fresh` is the other lane, seen from the side opposite to the far end. Returns `false` if the far end
    /// reads no more.
    fn redirect(&mut self, fresh: &Lane) -> bool {
        self.tx.ended().is_none() && self.commit() && self.end.mark(&mut self.tx, fresh) == Ok(true)
    }

    /// If the far end of `from` is closed or dead, sends the backlog of `from` to the far end of this half, as a
    /// prepended backlog. The receiving far end gets these messages, and then *peer closed*.
    fn bring_all_from(&mut self, from: &mut Self) -> Result<(), Error> {
        if from.rx.backlog().is_none() {
            return Ok(());
        }
        // Made before the backlog is taken: there may be no memory for the holder.
        let (holder, _) = Channel::pair()?;
        let backlog = from.rx.take_backlog();
        let staged = match self.is_local() {
            true => self.stage_local(holder, backlog).map(|()| None),
            false => self.stage(holder, backlog, &mut Along::default()).map(Some),
        };
        match staged {
            Ok(flat) => {
                let is_sent = self.commit();
                flat.into_iter().for_each(|flat| finish_batch(flat, is_sent));
                Ok(())
            }
            Err((error, backlog)) => {
                from.put_back(backlog);
                Err(error)
            }
        }
    }
}

/// An error, and the messages that the error kept from being staged.
type Failed = (Error, VecDeque<BacklogMessage>);

/// Returns the given ends, the ends in their unreceived messages, the ends in the messages of those ends, and so on.
fn ends_in(mut ends: Vec<Arc<End>>) -> Vec<Arc<End>> {
    let mut at = 0;
    while let Some(end) = ends.get(at) {
        ends.extend(end.ends_in_backlog());
        at += 1;
    }
    ends
}

/// Returns the messages of a prepended backlog that was staged and will not be sent. `flat` are the handles returned by
/// [`Half::stage`]; the first handle is an end with the messages as its backlog. The ends in the messages stay in this
/// process; their transfers are cancelled.
fn taken_back(flat: FlatHandles) -> VecDeque<BacklogMessage> {
    finish_ends(&flat, false);
    let holder = flat.ends[0].end().clone();
    let handles = flat.into_handles();
    let backlog = holder.take_backlog();
    drop(handles);
    backlog
}

/// Completes a prepended backlog, once this process knows whether the backlog was sent. If `sent`, the ends in the
/// messages belong to the receiver; otherwise the ends are closed.
fn finish_batch(flat: FlatHandles, sent: bool) {
    finish_ends(&flat, sent);
    if !sent {
        // Closes the ends among the handles.
        drop(flat.into_handles());
    }
}

/// Completes the transfers of the ends in messages of a prepended backlog. If `sent`, hands these ends over to the
/// receiver; otherwise cancels their transfers.
fn finish_ends(flat: &FlatHandles, sent: bool) {
    // Skips the first end, which only held the messages.
    for end in flat.ends.iter().skip(1).map(|end| end.end()) {
        if sent {
            end.set_sent();
        }
        match end.lane() {
            Ok(lane) if sent => lane.hand_over(),
            Ok(lane) => lane.cancel_transfer(),
            Err(_) => {}
        }
    }
}

/// Joins two far ends, if both are open. Returns `true` if the far ends are joined. Returns `false`, without any
/// change, if a far end turns out to be closed or its process dead.
fn fuse_held<'a>(near: &mut Half<'a>, far: &mut Half<'a>) -> Result<bool, Error> {
    let Some(mut lane) = Joining::make(near, far)? else { return Ok(false) };
    match lane.freeze_near() {
        Ok(Some((for_near, for_far, holders))) => {
            lane.finish(for_near, for_far, holders);
            Ok(true)
        }
        stopped => {
            lane.unmake();
            lane.far.rx.drop_prepaid();
            stopped.map(|_| false)
        }
    }
}

/// A fuse of two open far ends, in progress: holds the future lane of their channel. Neither far end has learnt of the
/// lane yet.
struct Joining<'a, 'b> {
    near: &'a mut Half<'b>,
    far: &'a mut Half<'b>,
    to_near: Arc<Lane>,
    to_far: Arc<Lane>,
    /// The ends in prepended messages, including messages that were taken back and staged again.
    along: Along,
}

/// The state of a fuse after the first freeze: the backlog staged for the far end of `near`, the backlog staged for the
/// far end of `far`, and two spare ends. The spare ends were created in advance, so that later steps cannot fail.
type Frozen = (Option<FlatHandles>, Option<FlatHandles>, [Channel; 2]);

impl<'a, 'b> Joining<'a, 'b> {
    /// Makes a lane for the processes of the far ends of `near` and `far`. Returns `None` if the link to one of these
    /// processes is broken.
    fn make(near: &'a mut Half<'b>, far: &'a mut Half<'b>) -> Result<Option<Self>, Error> {
        let links = [near.tx.lane.link(), far.tx.lane.link()];
        let (arena, name, told) = match Link::make_lane(links[0], links[1], SMALL) {
            Err(Error::PeerClosed) if links.iter().any(|link| link.is_down()) => return Ok(None),
            made => made?,
        };
        let side = near.tx.lane.side();
        let stand_in = |side, link: &InUse| {
            let lane = Lane::in_arena(&arena, name, side, link.clone(), None).expect("it was made just now");
            lane.set_moving();
            lane
        };
        // A stand-in is an end of the new lane, held by this process until the handover. `to_near` is opposite to the
        // far end of `near`, in the place of the far end of `far`; `to_far` the reverse.
        let to_near = Arc::new(stand_in(side, links[0]).announced_over(told));
        let to_far = Arc::new(stand_in(1 - side, links[1]));
        Ok(Some(Self { near, far, to_near, to_far, along: Along::default() }))
    }

    /// Stores the new lane as the stored successor of each far end in this process. Such an end looks the lane up after
    /// it has read the mark.
    fn store_successors(&self) {
        self.near.tx.lane.store_successor(&self.to_near, self.far.tx.lane.link(), close_in_transit);
        self.far.tx.lane.store_successor(&self.to_far, self.near.tx.lane.link(), close_in_transit);
    }

    /// Stages the prepended backlogs, which may fail, and freezes the outgoing ring of the far end of `near`. Returns
    /// what was staged. Returns `None`, with nothing staged, if the far end of `near` is closed or dead.
    fn freeze_near(&mut self) -> Result<Option<Frozen>, Error> {
        let holders = [Channel::pair()?.0, Channel::pair()?.0];
        // The charge in advance lets this process take out later messages of the far end of `far` after the freeze, at
        // any limits by then.
        self.far.rx.prepay()?;
        let mut for_near = None;
        if !self.near.is_local() && self.far.rx.backlog().is_some() {
            // Made before the backlog is taken: there may be no memory for the holder.
            let (holder, _) = Channel::pair()?;
            let backlog = self.far.rx.take_backlog();
            match self.near.stage(holder, backlog, &mut self.along) {
                Ok(flat) => for_near = Some(flat),
                Err((error, backlog)) => {
                    self.far.put_back(backlog);
                    return Err(error);
                }
            }
        }
        self.store_successors();
        let frozen = self.try_to_freeze_near();
        if let Ok(Some(for_far)) = frozen {
            return Ok(Some((for_near, for_far, holders)));
        }
        self.near.discard();
        if let Some(flat) = for_near {
            self.far.put_back(taken_back(flat));
        }
        frozen.map(|_| None)
    }

    fn try_to_freeze_near(&mut self) -> Result<Option<Option<FlatHandles>>, Error> {
        for _ in 0..MOST_TRIES {
            self.near.take_new()?;
            if self.near.is_alone() {
                return Ok(None);
            }
            let mut for_far = None;
            if !self.far.is_local() && self.near.rx.backlog().is_some() {
                // Made before the backlog is taken: there may be no memory for the holder.
                let (holder, _) = Channel::pair()?;
                let backlog = self.near.rx.take_backlog();
                match self.far.stage(holder, backlog, &mut self.along) {
                    Ok(flat) => for_far = Some(flat),
                    Err((error, backlog)) => {
                        self.near.put_back(backlog);
                        return Err(error);
                    }
                }
            }
            if self.near.rx.freeze(&self.to_near) {
                return Ok(Some(for_far));
            }
            // A message was published just before the freeze. There is no room for many more.
            self.far.discard();
            if let Some(flat) = for_far {
                self.near.put_back(taken_back(flat));
            }
        }
        let error = self.near.rx.end_with(Error::BadPeer("more messages than the ring holds"));
        self.near.tx.end_with(error);
        Ok(None)
    }

    /// Completes a fuse after the outgoing ring of `near`'s far end was frozen. From this step on the fuse cannot be
    /// undone, even if the far end of `far` was closed meanwhile. `for_near` and `for_far` are the prepended backlogs
    /// staged for the two far ends. `late` and `local` are the two spare ends, holders for messages that arrived late
    /// and for messages to a far end in this process.
    fn finish(mut self, for_near: Option<FlatHandles>, for_far: Option<FlatHandles>, [late, local]: [Channel; 2]) {
        let far_is_there = self.freeze_far();
        let mut batches_for_near: Vec<_> = for_near.into_iter().collect();
        // A far end in this process gets the whole backlog now. Otherwise only late messages are left, and there is
        // room for late messages.
        let backlog = self.far.rx.take_backlog();
        if !backlog.is_empty() {
            if self.near.is_local() {
                let staged = self.near.stage_local(late, backlog);
                debug_assert!(staged.is_ok(), "there is room for the record");
            } else {
                match self.near.stage(late, backlog, &mut self.along) {
                    Ok(flat) => batches_for_near.push(flat),
                    // The peer claims to have taken messages that were never there, or this process is out of memory.
                    Err((error, _)) => {
                        self.near.tx.end_with(error);
                    }
                }
            }
        }
        if self.far.is_local() && self.near.rx.backlog().is_some() {
            let backlog = self.near.rx.take_backlog();
            let staged = self.far.stage_local(local, backlog);
            debug_assert!(staged.is_ok(), "there is room for the record");
        }
        let near_redirected = self.near.redirect(&self.to_near);
        let far_redirected = far_is_there && self.far.redirect(&self.to_far);
        batches_for_near.into_iter().for_each(|flat| finish_batch(flat, near_redirected));
        for_far.into_iter().for_each(|flat| finish_batch(flat, far_redirected));
        let (near_end, far_end) = (self.near.end, self.far.end);
        self.near.rx.leave();
        self.far.rx.leave();
        if !far_is_there {
            // The far end never learns of the lane; its end of the lane belongs to this process, and is closed.
            self.to_far.disown();
            self.to_near.cancel_transfer();
            drop(Channel { end: Arc::new(End::new(self.to_near, &near_end.options)) });
            return;
        }
        // A far end that was closed meanwhile has closed its sending direction itself. Its receiving direction is
        // closed here.
        if !near_redirected {
            close_reading(&self.to_far, near_end);
        }
        if !far_redirected {
            close_reading(&self.to_near, far_end);
        }
        self.to_near.hand_over_to_both(&self.to_far);
    }

    /// Freezes the outgoing ring of `far`'s far end. Returns `false` if that far end is closed or dead, or breaks the
    /// protocol.
    fn freeze_far(&mut self) -> bool {
        for _ in 0..MOST_TRIES {
            if self.far.is_alone() {
                return false;
            }
            if self.far.rx.freeze(&self.to_far) {
                return true;
            }
            // A held far end writes only into its ring, and the messages of the ring were charged in advance.
            if let Err(error) = self.far.take_new() {
                let error = self.far.rx.end_with(error);
                self.far.tx.end_with(error);
            }
        }
        let error = self.far.rx.end_with(Error::BadPeer("more messages than the ring holds"));
        self.far.tx.end_with(error);
        false
    }

    /// Undoes the new lane of a failed fuse: neither far end goes on in the lane. If a far end in this process was
    /// closed meanwhile, it may have taken its side of the lane; then that side is released already.
    fn unmake(&self) {
        match [&self.near.tx.lane, &self.far.tx.lane].map(|lane| lane.forget_successor()) {
            [true, true] => {
                self.to_far.disown();
                self.to_near.unmake();
            }
            [near, far] => {
                if near {
                    self.to_near.tell_absence(Absent::Other);
                }
                self.to_near.cancel_transfer();
                if !near {
                    self.to_far.disown();
                }
                if !far {
                    self.to_near.disown();
                }
            }
        }
    }
}

/// Closes the receiving direction of this process's side of `lane`, in place of a far end that was closed before
/// reaching the lane. The close uses the options of `end`.
fn close_reading(lane: &Arc<Lane>, end: &End) {
    let end = End::new(lane.clone(), &end.options);
    // The far end has closed the sending direction itself.
    if let Ok(mut tx) = end.tx.lock(Deadline::NOW) {
        tx.end_with(Error::PeerClosed);
    }
    close::close_all(Arc::new(end));
}

impl End {
    /// Receives a backlog prepended by another process, and returns the messages. `table` is the handle table of the
    /// messages, `token` the token of the ring, and `message` the number of the attachments. If a descriptor of the
    /// backlog did not arrive, the messages report the loss of their handles. If handles of a message fail with a
    /// temporary error, that message reports the loss. If the memory of a payload fails with a temporary error, the
    /// call fails with [`Error::PeerClosed`], so that the receiving direction of this end ends; a fuse sends no such
    /// memory.
    pub(in crate::channel) fn receive_prepended(
        &self,
        rx: &mut Rx,
        token: u128,
        message: u64,
        table: &[u8],
    ) -> Result<VecDeque<BacklogMessage>, Error> {
        let (holder, _) = Channel::pair()?;
        let parsed = Parsed::read(table, 1)?;
        if parsed.brings_nothing() {
            return Err(Error::BadPeer("an invalid prepended backlog"));
        }
        let end = holder.end.clone();
        let (arrived, _) = self.receive_table(rx, token, message, parsed, Some(holder))?;
        match arrived.lost() {
            // A payload could not be mapped; a part of the messages is worse than none. A fuse puts all payloads into
            // the table.
            Some(_) => Err(Error::PeerClosed),
            None => Ok(end.take_backlog()),
        }
    }

    /// Receives a backlog prepended within this process, and returns the messages. The messages are in the mailbox of
    /// this process, under `token` (the token of the ring) and the number `message`.
    pub(in crate::channel) fn prepended_local(
        &self,
        token: u128,
        message: u64,
    ) -> Result<VecDeque<BacklogMessage>, Error> {
        let parcel = mailbox::take(token, message, 1);
        let handle = parcel.and_then(|parcel| MessageExtras::of_parcel(parcel).take_handles().pop());
        let holder = handle.and_then(Handle::into_channel);
        holder.map(|holder| holder.end.take_backlog()).ok_or(Error::BadPeer("a prepended backlog that does not exist"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds two channels, prepares a lane for their far ends and undoes that lane. The first far end stays open if
    /// `near_stays` is set, the second if `far_stays` is set; otherwise the end is closed meanwhile. Checks that the
    /// lane slot is free again, and that a channel whose far end stays works as before.
    fn unmade(near_stays: bool, far_stays: bool) {
        let ((a, b), (c, d)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
        for (end, cells) in [(&b, ROOMY), (&c, SMALL)] {
            end.end.relocate_into(&Link::own(), &mut Along::default(), Some(cells), Deadline::NOW).unwrap();
        }
        let (mut near, mut far) = (Half::of(&b.end).unwrap(), Half::of(&c.end).unwrap());
        let lane = Joining::make(&mut near, &mut far).unwrap().unwrap();
        lane.store_successors();
        let (a, d) = (near_stays.then_some(a), far_stays.then_some(d));
        lane.unmake();
        let slot = lane.to_near.local_slot().unwrap();
        drop(lane);
        drop((near, far));
        assert!(slot.was_given_back(), "{near_stays} {far_stays}");
        for (held, other) in [(b, a), (c, d)] {
            held.end.lane().unwrap().cancel_transfer();
            match other {
                Some(other) => {
                    other.send(b"as before").unwrap();
                    assert_eq!(held.recv().unwrap().bytes(), b"as before");
                    held.send(b"both ways").unwrap();
                    assert_eq!(other.recv().unwrap().bytes(), b"both ways");
                }
                None => assert_eq!(held.try_recv().unwrap_err(), Error::PeerClosed),
            }
        }
    }

    /// Shows that no message is lost if the ring of a far end in this process has no room for the record of a prepended
    /// backlog.
    #[test]
    fn a_backlog_that_cannot_be_staged_stays_with_its_end() {
        let ((a, b), (c, _d)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
        a.send(b"unread").unwrap();
        drop(a);
        while c.try_send(b"no room is left").is_ok() {}
        let (mut near, mut far) = (Half::of(&b.end).unwrap(), Half::of(&c.end).unwrap());
        near.take_new().unwrap();
        assert_eq!(far.bring_all_from(&mut near), Err(Error::WouldBlock));
        drop((near, far));
        assert_eq!(b.recv().unwrap().bytes(), b"unread");
    }

    #[test]
    fn of_a_lane_that_nothing_comes_of_nothing_stays() {
        for (near_stays, far_stays) in [(true, true), (true, false), (false, true), (false, false)] {
            unmade(near_stays, far_stays);
        }
    }

    /// Shows that an end gets *peer closed*, and does not wait to send, once the transfer of its other end is
    /// abandoned. The case arises if a process dies in a fuse after its marks have led two far ends to their common
    /// lane, and the first far end then abandons the transfer.
    #[test]
    fn what_one_gave_up_the_other_does_not_send_to() {
        let (held, other) = Channel::pair().unwrap();
        held.end.relocate_into(&Link::own(), &mut Along::default(), Some(SMALL), Deadline::NOW).unwrap();
        held.end.lane().unwrap().give_up();
        assert!(other.is_peer_closed());
        let lane = other.end.lane().unwrap();
        let waited = other.end.wait_until_handed_over(&lane, Deadline::NOW);
        assert_eq!((lane.is_pending(), waited), (false, Err(Error::PeerClosed)));
    }
}
