//! Two channels become one.
//!
//! This process has *b* of a channel A–*b*, and *c* of a channel *c*–D. What it joins is A and D, which may be anywhere and
//! do anything meanwhile. It is the move of an end twice over, and ends with something new:
//!
//! 1. **Hold.** *b* and *c* move within this process ([`super::moving`]), each into a fresh lane that is not handed over.
//!    Both far ends are *pending* there: they cannot move, and can only write small messages, as many as the ring takes that
//!    they found. What they had written is drained. If the second cannot be held now, the first is kept and let go: who holds
//!    one end never waits for another.
//! 2. **Make** a lane N for the processes of A and D.
//! 3. **Bring.** What *b* has not received is staged for D, and what *c* has not for A, as a record of its own
//!    ([`Kind::Brought`]): its reader keeps these messages, and reads on behind. Until here anything may fail, and *b* and *c* are
//!    kept as they are.
//! 4. **Freeze** the rings that A and D write: they write on in N. A message that A published just before is brought along,
//!    and the freeze tried again. It is given no room, so that ends after a few times. What D published after A was frozen
//!    is small, and goes into the ring as it is: that of *b*'s lane was made large enough.
//! 5. **Mark** the rings that A and D read: behind what was brought they read on in N.
//! 6. **Hand over**: one word of N says that A and D have each other. If this process dies before, both see *peer closed*.
//!
//! An end has a side, 0 or 1, and where it writes in a lane follows from that. A and D may have the same; then D's mark says
//! that it changes sides.
//!
//! A far end that is closed, or its process dead, needs no N: what it had written is brought to the other, then that is
//! closed.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::away;
use super::close::CLOSE_LIMIT;
use super::ends::cancel_transfers;
use super::table::{Flat, Parsed};
use crate::channel::handle::Handle;
use crate::channel::receiver::Rx;
use crate::channel::receiver::backlog::BacklogMessage;
use crate::channel::sender::packets::is_lane_of;
use crate::channel::sender::{Tx, within};
use crate::channel::views::values::turn_values_of;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::{Lane, Name};
use crate::link::{Handles, InUse, Link, Number};
use crate::quota::{holding_back, tell};
use crate::ring::{CELL, Ended, Header, Kind, Memory};
use crate::wake::lock::Guard;
use crate::wake::want::{self, Looks, Want};

/// Cells of the rings of the lane in which the first far end is held: room for what was brought, and for all that fits the
/// ring of the other lane once more.
const ROOMY: usize = 32;

/// How often an honest end can keep its ring from being frozen, and more.
const MOST_TRIES: usize = 4 * ROOMY;

/// Two channels that were not fused. Both are as they were.
#[derive(Debug)]
pub struct FuseError {
    /// Why.
    pub error: Error,
    /// The two ends.
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
    /// Keeps the reason; the two ends are closed.
    fn from(failed: FuseError) -> Self {
        failed.error
    }
}

impl Channel {
    /// Makes one channel of two: the other end of this one and the other end of `other` are each other's from now on. What
    /// they had sent here and nobody received comes first, handles and all; nothing is lost or reordered, whatever they do
    /// meanwhile, and they notice nothing. This process has no part in it any more, and may end.
    ///
    /// As whoever sends an end, this process has made the memory in which the channel goes on: see [`Channel::rehome`].
    ///
    /// The other ends may be in any processes, this one included, and on their way. Where one of them is closed, or its
    /// process dead, the other receives what it had sent, and then [`Error::PeerClosed`].
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
    /// The two ends come back, as they were. [`Error::WouldBlock`] or [`Error::TimedOut`] while one of the other ends is just
    /// being sent elsewhere or fused, while a process has not opened its side, or while a socket is full;
    /// [`Error::OwnChannel`] if the two are the ends of one channel, or the other end of one lies in a message that would
    /// be sent to it; [`Error::NoMemory`], [`Error::NoDescriptors`], [`Error::LimitReached`], [`Error::Forked`].
    ///
    /// # Cost
    /// That of sending two ends, and once more as much as one. Messages that were not received are copied.
    pub fn fuse(self, other: Self, deadline: impl Into<Deadline>) -> Result<(), FuseError> {
        let fused = self
            .end
            .born
            .check()
            .and(other.end.born.check())
            .and_then(|()| fuse(&self.end, &other.end, deadline.into()));
        match fused {
            Ok(()) => {
                // Those that were fused are no longer here; one without another end is closed.
                drop((self, other));
                Ok(())
            }
            Err(error) => {
                tell();
                Err(FuseError { error, channels: (self, other) })
            }
        }
    }
}

fn fuse(one: &Arc<End>, other: &Arc<End>, deadline: Deadline) -> Result<(), Error> {
    // A set must not look at an end that is on its way.
    let members = [one, other].map(|end| (end, end.take_member()));
    let mut looks = Looks::default();
    let fused = loop {
        want::forget();
        match turn_for_each_other(one, other).and_then(|()| holding_back(|| try_fuse(one, other))) {
            Err(Error::WouldBlock) if !deadline.is_now() => {
                if let Err(error) = wait_to_fuse(one, other, want::take(), &mut looks, deadline) {
                    break Err(error);
                }
            }
            fused => break fused,
        }
    };
    for (end, member) in members {
        match (member, &fused) {
            (Some(member), Ok(())) => member.take_out(true),
            (Some(member), Err(_)) => end.put_member_back(member),
            (None, _) => {}
        }
    }
    fused
}

/// Waits for what the last try lacked, in which nothing has changed.
fn wait_to_fuse(
    one: &End,
    other: &End,
    lacked: Option<Want>,
    looks: &mut Looks,
    deadline: Deadline,
) -> Result<(), Error> {
    match lacked {
        Some(Want::Room(ref lane, _) | Want::Descriptors(ref lane, ..))
            if other.tx.lock(Deadline::NOW).is_ok_and(|tx| is_lane_of(&tx, lane)) =>
        {
            other.wait_for(lacked, looks, deadline)
        }
        lacked => one.wait_for(lacked, looks, deadline),
    }
}

/// Turns values into bytes that one has not received, and the far end of the other will receive in another process.
fn turn_for_each_other(one: &Arc<End>, other: &Arc<End>) -> Result<(), Error> {
    for (from, to) in [(one, other), (other, one)] {
        if !to.link()?.is_local() {
            turn_values_of(vec![from.clone()])?;
        }
    }
    Ok(())
}

fn try_fuse(one: &End, other: &End) -> Result<(), Error> {
    // Before anything is moved: whether both could be.
    for end in [one, other] {
        end.follow_to_peer(&mut end.tx.lock(Deadline::NOW)?, &mut end.rx.lock(Deadline::NOW)?, &[])?;
    }
    if other.is_other_end_of(&*one.tx.lock(Deadline::NOW)?) {
        return Err(Error::OwnChannel);
    }
    let own = Link::own();
    one.relocate_into(&own, &[], Some(ROOMY), Deadline::NOW)?;
    let fused = other.relocate_into(&own, &[], Some(SMALL), Deadline::NOW).and_then(|()| join(one, other));
    for end in [one, other] {
        // If the second was not moved, it is where it was.
        if let Ok(lane) = end.lane()
            && lane.is_moving()
        {
            lane.cancel_transfer();
        }
    }
    fused
}

/// Joins the far ends of two that hold them. On an error both are as they were.
fn join(one: &End, other: &End) -> Result<(), Error> {
    let (mut near, mut far) = (Half::of(one)?, Half::of(other)?);
    for end in ends_in(near.rx.ends_in_backlog()).into_iter().chain(ends_in(far.rx.ends_in_backlog())) {
        if end.is_other_end_of(&near.tx) || end.is_other_end_of(&far.tx) {
            return Err(Error::OwnChannel);
        }
    }
    loop {
        near.take_new()?;
        far.take_new()?;
        match (near.is_alone(), far.is_alone()) {
            (true, true) => return Ok(()),
            (true, false) => return far.bring_all_from(&mut near),
            (false, true) => return near.bring_all_from(&mut far),
            (false, false) => {
                if fuse_held(&mut near, &mut far)? {
                    one.set_sent();
                    other.set_sent();
                    return Ok(());
                }
            }
        }
    }
}

/// An end that is held, with both its locks.
struct Half<'a> {
    end: &'a End,
    tx: Guard<'a, Tx>,
    rx: Guard<'a, Rx>,
    /// How often something was staged.
    tries: u64,
    /// Descriptors that were sent for what is staged.
    descriptors: usize,
}

impl<'a> Half<'a> {
    fn of(end: &'a End) -> Result<Self, Error> {
        Ok(Self { end, tx: end.tx.lock(Deadline::NOW)?, rx: end.rx.lock(Deadline::NOW)?, tries: 0, descriptors: 0 })
    }

    /// Whether its far end is gone.
    fn is_alone(&self) -> bool {
        self.tx.ended().is_some()
    }

    /// Whether the far end is in this process.
    fn is_within(&self) -> bool {
        self.tx.lane.link().is_local()
    }

    /// Takes what the far end has written. No room is given for it.
    fn take_new(&mut self) -> Result<(), Error> {
        loop {
            let step = match self.end.front_or_mark(&mut self.rx) {
                Ok(None) => return Ok(()),
                Ok(Some(record)) if record.header.kind() == Kind::Moved => {
                    Err(self.rx.end_with(Error::BadPeer("an end moved that is held")))
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

    /// What names the descriptors and the memory that belong to a record: another one each time, or its reader could take
    /// those of an earlier try. It is no number of a message.
    fn next_number(&mut self) -> Number {
        self.tries += 1;
        Number::apart(self.tries)
    }

    /// Stages messages for the far end, which is in another process. On an error they come back, and nothing is staged.
    fn stage(
        &mut self,
        holder: Channel,
        backlog: VecDeque<BacklogMessage>,
        along: &mut Vec<Name>,
    ) -> Result<Flat, Failed> {
        let (dest, top) = (self.tx.lane.link().clone(), holder.end.clone());
        top.restore_backlog(backlog.into());
        let prepare = |end: &End| {
            if std::ptr::eq(end, &*top) {
                return Ok(());
            }
            end.relocate(&dest, along, Deadline::NOW)?;
            along.push(end.lane()?.name());
            Ok(())
        };
        let flat = Flat::of(vec![holder.into()], prepare).map_err(|(error, back)| {
            back.iter().for_each(cancel_transfers);
            (error, top.take_backlog())
        })?;
        // So that there is room for the same once more, and for a mark.
        let longest = self.tx.producer.memory().cells() / 4 * CELL - crate::ring::HEADER;
        let number = self.next_number();
        // Bytes go in the table, which its reader can ask for again if it lacks descriptors just now.
        let staged = flat.encode_as(true).and_then(|(table, travellers)| {
            self.descriptors += travellers.len();
            let is_inline = 8 + table.len() <= longest;
            let len = if is_inline { 8 + table.len() } else { 8 };
            let header = Header::new(Kind::Brought, len, usize::from(!is_inline));
            let slot = self.end.stage_record(&mut self.tx, header, Deadline::NOW)?;
            self.tx.producer.write(slot, 0, &number.to_word().to_le_bytes());
            if is_inline {
                self.tx.producer.write(slot, 8, &table);
                // It names lanes that only the present peer can use.
                self.tx.attach();
            } else {
                self.descriptors += 1;
                self.end.send_table(&mut self.tx, &table, number, Deadline::NOW)?;
            }
            self.end.send_travellers(&mut self.tx, &travellers, number, Deadline::NOW)
        });
        match staged {
            Ok(()) => Ok(flat),
            Err(error) => {
                self.discard();
                Err((error, taken_back(flat)))
            }
        }
    }

    /// Forgets what is staged.
    fn discard(&mut self) {
        self.tx.discard();
        self.descriptors = 0;
    }

    /// The same for a far end in this process: it gets them as they are.
    fn stage_within(&mut self, holder: Channel, backlog: VecDeque<BacklogMessage>) -> Result<(), Error> {
        holder.end.restore_backlog(backlog.into());
        let number = self.next_number();
        let slot = self.end.stage_record(&mut self.tx, Header::new(Kind::Brought, 8, 1), Deadline::NOW)?;
        self.tx.producer.write(slot, 0, &number.to_word().to_le_bytes());
        let handles = vec![Handle::from(holder)];
        let away = away::of_handles(&handles, self.tx.lane.is_other_here());
        // As if it were in the ring: nobody takes it back.
        within::leave(&mut self.tx, number, Handles::of(handles, away).committed());
        Ok(())
    }

    /// Commits what is staged. False if nobody reads it.
    fn commit(&mut self) -> bool {
        if !self.tx.producer.has_staged() {
            return true;
        }
        let descriptors = std::mem::take(&mut self.descriptors);
        let Some(ended) = self.end.commit_once(&mut self.tx) else {
            // This end is about to go; but they are in flight as those of any message.
            self.tx.note_in_flight_up_to_here(descriptors);
            return true;
        };
        // One that is held freezes nothing.
        let ended = if ended == Ended(Some(Kind::Frozen)) { Ended(None) } else { ended };
        let _ = self.end.after_end(&mut self.tx, ended, Deadline::NOW);
        false
    }

    /// Tells the far end where it reads on: in the lane of which `fresh` is the end across from it. False if it reads no more.
    fn tell(&mut self, fresh: &Lane) -> bool {
        self.tx.ended().is_none() && self.commit() && self.end.mark(&mut self.tx, fresh) == Ok(true)
    }

    /// Has the far end receive what one got whose own far end is gone, before it sees this one closed.
    fn bring_all_from(&mut self, from: &mut Self) -> Result<(), Error> {
        let backlog = from.rx.take_backlog();
        if backlog.is_empty() {
            return Ok(());
        }
        let (holder, _) = Channel::pair()?;
        if self.is_within() {
            self.stage_within(holder, backlog)?;
            self.commit();
            return Ok(());
        }
        match self.stage(holder, backlog, &mut Vec::new()) {
            Ok(flat) => finish_row(flat, self.commit()),
            Err((error, backlog)) => {
                from.put_back(backlog);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// Why messages could not be staged, and the messages.
type Failed = (Error, VecDeque<BacklogMessage>);

/// These ends, and those in messages that they have not received, and so on.
fn ends_in(mut ends: Vec<Arc<End>>) -> Vec<Arc<End>> {
    let mut at = 0;
    while let Some(end) = ends.get(at) {
        ends.extend(end.ends_in_backlog());
        at += 1;
    }
    ends
}

/// Messages that were not brought after all; the ends in them stay here.
fn taken_back(flat: Flat) -> VecDeque<BacklogMessage> {
    finish_ends(&flat, false);
    let holder = flat.ends[0].end().clone();
    let handles = flat.into_handles();
    let backlog = holder.take_backlog();
    drop(handles);
    backlog
}

/// Messages were brought, or nobody is there to receive them.
fn finish_row(flat: Flat, sent: bool) {
    finish_ends(&flat, sent);
    if !sent {
        // The ends among the handles are closed.
        drop(flat.into_handles());
    }
}

/// The ends in messages that were brought are the receiver's, or are kept.
fn finish_ends(flat: &Flat, sent: bool) {
    // But for the first, which only held the messages.
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

/// Joins two far ends that are both there. False if one of them was found to be gone; then nothing has happened.
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

/// A lane that two far ends are about to be told of.
struct Joining<'a, 'b> {
    near: &'a mut Half<'b>,
    far: &'a mut Half<'b>,
    to_near: Arc<Lane>,
    to_far: Arc<Lane>,
    /// The lanes of ends that are brought along.
    along: Vec<Name>,
}

/// What is staged for the one and for the other, and what else can be had without fail.
type Frozen = (Option<Flat>, Option<Flat>, [Channel; 2]);

impl<'a, 'b> Joining<'a, 'b> {
    /// A lane for the processes of two far ends. `None` if one of them is gone.
    fn make(near: &'a mut Half<'b>, far: &'a mut Half<'b>) -> Result<Option<Self>, Error> {
        let links = [near.tx.lane.link(), far.tx.lane.link()];
        let (arena, name) = match Link::make_lane(links[0], links[1], SMALL) {
            Err(Error::PeerClosed) if links.iter().any(|link| link.is_down()) => return Ok(None),
            made => made?,
        };
        let side = near.tx.lane.side();
        let stand_in = |side, link: &InUse| {
            let lane = Lane::in_arena(&arena, name, side, link.clone(), None).expect("it was made just now");
            lane.set_moving();
            Arc::new(lane)
        };
        // Each is the end across from the far end that is told of it, and stands for the other one.
        let (to_near, to_far) = (stand_in(side, links[0]), stand_in(1 - side, links[1]));
        Ok(Some(Self { near, far, to_near, to_far, along: Vec::new() }))
    }

    /// Notes where they go on for far ends in this process, which ask once they are told.
    fn tell_successors(&self) {
        self.near.tx.lane.tell_successor(&self.to_near, self.far.tx.lane.link());
        self.far.tx.lane.tell_successor(&self.to_far, self.near.tx.lane.link());
    }

    /// Stages all that may fail, and freezes what the near far end writes. `None` if it is gone.
    fn freeze_near(&mut self) -> Result<Option<Frozen>, Error> {
        let holders = [Channel::pair()?.0, Channel::pair()?.0];
        // What the other far end writes once this one is frozen can be taken out whatever the limits are by then.
        self.far.rx.prepay()?;
        let mut for_near = None;
        if !self.near.is_within() && self.far.rx.backlog().is_some() {
            let backlog = self.far.rx.take_backlog();
            match self.near.stage(Channel::pair()?.0, backlog, &mut self.along) {
                Ok(flat) => for_near = Some(flat),
                Err((error, backlog)) => {
                    self.far.put_back(backlog);
                    return Err(error);
                }
            }
        }
        self.tell_successors();
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

    fn try_to_freeze_near(&mut self) -> Result<Option<Option<Flat>>, Error> {
        for _ in 0..MOST_TRIES {
            self.near.take_new()?;
            if self.near.is_alone() {
                return Ok(None);
            }
            let mut for_far = None;
            if !self.far.is_within() && self.near.rx.backlog().is_some() {
                let backlog = self.near.rx.take_backlog();
                match self.far.stage(Channel::pair()?.0, backlog, &mut self.along) {
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
            // Something was published just before, and there is no room for much more.
            self.far.discard();
            if let Some(flat) = for_far {
                self.near.put_back(taken_back(flat));
            }
        }
        let error = self.near.rx.end_with(Error::BadPeer("it writes more than its ring takes"));
        self.near.tx.end_with(error);
        Ok(None)
    }

    /// The near far end knows of the lane, and there is no way back: whatever has become of the other one.
    fn finish(mut self, for_near: Option<Flat>, for_far: Option<Flat>, [late, within]: [Channel; 2]) {
        let far_is_there = self.freeze_far();
        let mut rows_for_near: Vec<_> = for_near.into_iter().collect();
        // All of it for one within this process; else what came late, for which there is room.
        let backlog = self.far.rx.take_backlog();
        if !backlog.is_empty() {
            if self.near.is_within() {
                let staged = self.near.stage_within(late, backlog);
                debug_assert_eq!(staged, Ok(()));
            } else {
                match self.near.stage(late, backlog, &mut self.along) {
                    Ok(flat) => rows_for_near.push(flat),
                    // It claims to have taken what was never there, or this process is out of memory.
                    Err((error, _)) => {
                        self.near.tx.end_with(error);
                    }
                }
            }
        }
        if self.far.is_within() && self.near.rx.backlog().is_some() {
            let backlog = self.near.rx.take_backlog();
            let staged = self.far.stage_within(within, backlog);
            debug_assert_eq!(staged, Ok(()));
        }
        let near_told = self.near.tell(&self.to_near);
        let far_told = far_is_there && self.far.tell(&self.to_far);
        rows_for_near.into_iter().for_each(|flat| finish_row(flat, near_told));
        for_far.into_iter().for_each(|flat| finish_row(flat, far_told));
        let (near_end, far_end) = (self.near.end, self.far.end);
        self.near.rx.leave();
        self.far.rx.leave();
        if !far_is_there {
            // It never learns of the lane; its place is ours, and closed.
            self.to_far.disown();
            self.to_near.cancel_transfer();
            drop(Channel { end: Arc::new(End::new(self.to_near, &near_end.options)) });
            return;
        }
        // One that was closed meanwhile closes what it writes there itself. What it would have read there is closed for it.
        if !near_told {
            close_reading(&self.to_far, near_end);
        }
        if !far_told {
            close_reading(&self.to_near, far_end);
        }
        self.to_near.hand_over_to_both(&self.to_far);
    }

    /// Freezes what the other far end writes. False if it is gone.
    fn freeze_far(&mut self) -> bool {
        for _ in 0..MOST_TRIES {
            if self.far.is_alone() {
                return false;
            }
            if self.far.rx.freeze(&self.to_far) {
                return true;
            }
            // A far end that is held writes into its ring and nowhere else, and that is paid.
            if let Err(error) = self.far.take_new() {
                let error = self.far.rx.end_with(error);
                self.far.tx.end_with(error);
            }
        }
        let error = self.far.rx.end_with(Error::BadPeer("it writes more than its ring takes"));
        self.far.tx.end_with(error);
        false
    }

    /// Nobody goes on in it. A far end in this process that was closed meanwhile has taken what it was told, and is done with
    /// its side of the lane itself.
    fn unmake(&self) {
        match [&self.near.tx.lane, &self.far.tx.lane].map(|lane| lane.forget_successor()) {
            [true, true] => {
                self.to_far.disown();
                self.to_near.unmake();
            }
            [near, far] => {
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

/// Closes what would be read at this end of a lane, for one who is gone.
fn close_reading(lane: &Arc<Lane>, end: &End) {
    let end = End::new(lane.clone(), &end.options);
    if let Ok(mut rx) = end.rx.lock(Deadline::NOW) {
        drop(end.close_rx(&mut rx, &mut { CLOSE_LIMIT }).0);
    }
}

impl End {
    /// Messages that were brought along by another process. If their descriptors did not arrive this end is closed.
    pub(in crate::channel) fn receive_brought(
        &self,
        rx: &mut Rx,
        token: u128,
        message: Number,
        table: &[u8],
    ) -> Result<VecDeque<BacklogMessage>, Error> {
        let (holder, _) = Channel::pair()?;
        let parsed = Parsed::read(table, 1)?;
        if parsed.brings_nothing() {
            return Err(Error::BadPeer("messages brought along that are none"));
        }
        let end = holder.end.clone();
        let arrived = self.receive_row(rx, token, message, parsed, Some(holder))?;
        match arrived.lost() {
            // As for an end that brings messages along: half of what was sent is worse than none.
            Some(_) => Err(Error::PeerClosed),
            None => Ok(end.take_backlog()),
        }
    }

    /// The same within this process.
    pub(in crate::channel) fn brought_within(
        &self,
        rx: &mut Rx,
        token: u128,
        message: Number,
    ) -> Result<VecDeque<BacklogMessage>, Error> {
        let link = rx.lane.listen().clone();
        let found = link.fetch(|inbox| inbox.take_handles(token, message, 1))?;
        let holder = found.and_then(|mut found| found.handles.take().pop()).and_then(Handle::into_channel);
        holder.map(|holder| holder.end.take_backlog()).ok_or(Error::BadPeer("messages brought along that nobody has"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two channels are held, and told of a lane that nothing comes of; meanwhile their far ends are closed, or not.
    fn unmade(near_stays: bool, far_stays: bool) {
        let ((a, b), (c, d)) = (Channel::pair().unwrap(), Channel::pair().unwrap());
        for (end, cells) in [(&b, ROOMY), (&c, SMALL)] {
            end.end.relocate_into(&Link::own(), &[], Some(cells), Deadline::NOW).unwrap();
        }
        let (mut near, mut far) = (Half::of(&b.end).unwrap(), Half::of(&c.end).unwrap());
        let lane = Joining::make(&mut near, &mut far).unwrap().unwrap();
        lane.tell_successors();
        let (a, d) = (near_stays.then_some(a), far_stays.then_some(d));
        lane.unmake();
        let place = lane.to_near.place_within().unwrap();
        drop(lane);
        drop((near, far));
        assert!(place.was_given_back(), "{near_stays} {far_stays}");
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

    #[test]
    fn of_a_lane_that_nothing_comes_of_nothing_stays() {
        for (near_stays, far_stays) in [(true, true), (true, false), (false, true), (false, false)] {
            unmade(near_stays, far_stays);
        }
    }

    /// Two that were told of each other by one who died before it handed them over; the first has given it up.
    #[test]
    fn what_one_gave_up_the_other_does_not_send_to() {
        let (held, other) = Channel::pair().unwrap();
        held.end.relocate_into(&Link::own(), &[], Some(SMALL), Deadline::NOW).unwrap();
        held.end.lane().unwrap().give_up();
        assert!(other.is_peer_closed());
        let lane = other.end.lane().unwrap();
        let waited = other.end.wait_until_handed_over(&lane, Deadline::NOW);
        assert_eq!((lane.is_pending(), waited), (false, Err(Error::PeerClosed)));
    }
}
