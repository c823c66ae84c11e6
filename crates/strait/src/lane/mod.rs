//! Lanes. A lane is the shared memory that carries one channel between the processes of its ends.
//!
//! A lane has two rings, one for each direction. [Arenas](arena) hold many lanes. When an end moves to another process,
//! its channel goes on in a new lane. A mark at the end of a ring names the new lane, and each direction of an end
//! follows the mark when it reads the mark. So for a while an end may write in one lane and read in another.
//!
//! A lane made for an end in transit is **pending** until that end is handed over. Until then the peer of the other end
//! is the *source*, the process that sends the end in transit; if the source dies, the other end sees the channel
//! closed. After the handover, the peer of the other end is the destination. One word in the lane, the *transfer word*,
//! holds the state of the transfer ([`crate::ring::transfer_word`]).

pub(crate) mod arena;
pub(crate) mod directory;
pub(crate) mod in_transit;
pub(crate) mod mailbox;
pub(crate) mod nesting;
pub(crate) mod retention;
pub(crate) mod waiter;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use crate::error::Error;
use crate::link::{InFlight, InUse, Link, OpenPacket};
use crate::os::fault;
use crate::os::futex::Scope;
use crate::quota::OverLimit;
use crate::ring::transfer_word::{self, TransferState};
use crate::ring::{self, MAX_CELLS, Memory};
use crate::shm::{LaneMemory, RingMemory};
use arena::{Arena, Successor};
use mailbox::mailbox;

/// The name of a lane: the arena's number, the lane slot and the use count. All processes that know the lane use the
/// same name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// The number of the arena, given by the process that created the arena.
    pub(crate) arena: u64,
    /// The lane slot: the index of the lane among the lanes of its arena.
    pub(crate) slot: u32,
    /// The use count: the number of earlier lanes in the lane slot.
    pub(crate) usage: u32,
}

impl Name {
    /// The size in bytes of a lane name as it is encoded in a record.
    pub(crate) const SIZE: usize = 16;

    /// A flag in `slot` of the lane name in a mark: the end that goes on in the named lane changes sides there. No
    /// index of a lane slot needs this bit.
    const FLIPPED: u32 = 1 << 31;

    /// Returns the lane name with [`Self::FLIPPED`] inverted, the flag for an end that changes sides in the named lane.
    pub(crate) fn flipped(self) -> Self {
        Self { slot: self.slot ^ Self::FLIPPED, ..self }
    }

    /// Returns the lane name without [`Self::FLIPPED`], so that two names of one lane compare equal.
    pub(crate) fn upright(self) -> Self {
        Self { slot: self.slot & !Self::FLIPPED, ..self }
    }

    /// Returns the side, 0 or 1, that an end has in the named lane, if the end is on `side` in the lane before.
    pub(crate) fn side_from(self, side: usize) -> usize {
        side ^ usize::from(self.slot & Self::FLIPPED != 0)
    }

    pub(crate) fn to_words(self) -> [u64; 2] {
        [self.arena, u64::from(self.slot) | u64::from(self.usage) << 32]
    }

    pub(crate) fn from_words(words: [u64; 2]) -> Self {
        Self { arena: words[0], slot: words[1] as u32, usage: (words[1] >> 32) as u32 }
    }

    pub(crate) fn encode(self) -> [u8; Self::SIZE] {
        let [one, other] = self.to_words().map(u64::to_le_bytes);
        let mut bytes = [0; Self::SIZE];
        bytes[..8].copy_from_slice(&one);
        bytes[8..].copy_from_slice(&other);
        bytes
    }

    pub(crate) fn decode(bytes: [u8; Self::SIZE]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self::from_words([word(0), word(8)])
    }
}

/// The location of a lane's memory: a lane slot of an arena, or the two rings of a link's first lane.
enum LaneLocation {
    /// The lane is in the lane slot `slot` of an arena; `usage` lanes had that slot before.
    Slot { arena: Arc<Arena>, slot: u32, usage: u32 },
    /// The lane is the first lane of a link, which is in no arena: each of the two processes created its outgoing ring.
    Halves(Box<Halves>),
}

/// The two rings of the first lane of a link. Each process created its outgoing ring.
struct Halves {
    out: RingMemory,
    token: u128,
    /// The ring created by the peer, with the token of the ring; empty until the peer's open packet was received.
    inward: OnceLock<(RingMemory, u128)>,
}

/// A lane (the shared memory that carries one channel over one link), seen from one end.
pub(crate) struct Lane {
    location: LaneLocation,
    /// The side of this end, 0 or 1: also the number of this end's outgoing ring. Also holds the flags [`GONE`],
    /// [`LINGERING`], [`CLOSING`], [`MOVING`], [`IS_READ`], and those of [`Absent`].
    side: AtomicU8,
    /// The number of unused lanes in a row, including this lane: lanes where this end has sent and received no message.
    /// If a peer makes the number exceed [`MOST_UNUSED`], the peer is a bad peer.
    unused: AtomicU32,
    /// The link to the holder of the other end, or to the future holder once the transfer into this lane is complete.
    link: InUse,
    /// The link to the source of the other end: the process that sent the other end away. `None` if the other end was
    /// not in transit when this process got the lane.
    source: Option<InUse>,
    /// Whether the transfer of the other end into this lane is pending, as far as noticed by this process. Once
    /// `false`, stays `false`.
    pending: AtomicBool,
    /// Whether the transfer of the other end into this lane was abandoned, because the source died before the
    /// hand-over. If so, the channel is closed.
    abandoned: AtomicBool,
    /// Whether the transfer of the other end into this lane was cancelled. If so, the source still holds the other end.
    cancelled: AtomicBool,
    /// The next lane, in which this end goes on; empty while unknown. Set by the first direction of this end (sending
    /// or receiving) to reach its mark.
    next: OnceLock<Arc<Lane>>,
    /// A lock held by a direction of this end while looking up the next lane. Without this lock, both directions might
    /// look the lane up; but the memory of a lane with an arena of its own can be looked up only once.
    finding: Mutex<()>,
    /// For a lane made by this process: the links over which the lane's arena was announced. The first link leads to
    /// the process of the other end, the second to the destination of this end.
    told: Option<Box<[Weak<Link>; 2]>>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("name", &self.name()).field("side", &self.side).finish_non_exhaustive()
    }
}

impl Lane {
    /// Creates the first lane of a link. `out` is the ring created by this process, and `token` is the token of the
    /// ring. The side of this end is not known until the lane is open.
    pub(crate) fn first(link: InUse, out: RingMemory, token: u128) -> Self {
        Self::new(LaneLocation::Halves(Box::new(Halves { out, token, inward: OnceLock::new() })), 0, link, None)
    }

    fn new(location: LaneLocation, side: usize, link: InUse, source: Option<InUse>) -> Self {
        Self {
            location,
            side: AtomicU8::new(side as u8),
            unused: AtomicU32::new(0),
            link,
            pending: AtomicBool::new(source.is_some()),
            source,
            abandoned: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            next: OnceLock::new(),
            finding: Mutex::new(()),
            told: None,
        }
    }

    /// Returns the lane `name` in `arena`, seen from the end on `side`; `None` if the arena has no such lane slot.
    /// `link` is the link to the process of the other end. If there is a `source`, the other end is in transit from the
    /// process of that link.
    pub(crate) fn in_arena(
        arena: &Arc<Arena>,
        name: Name,
        side: usize,
        link: InUse,
        source: Option<InUse>,
    ) -> Option<Self> {
        arena.lane(name.slot)?;
        let location = LaneLocation::Slot { arena: arena.clone(), slot: name.slot, usage: name.usage };
        Some(Self::new(location, side, link, source))
    }

    /// Returns this lane, just made by this process, with the links over which the lane's arena was announced: to the
    /// process of the other end, and to the destination of this end.
    pub(crate) fn announced_over(mut self, told: [Weak<Link>; 2]) -> Self {
        self.told = Some(Box::new(told));
        self
    }

    /// Returns the memory of this lane if it is in an arena, and `None` for the first lane of a link.
    fn memory(&self) -> Option<LaneMemory<'_>> {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } => arena.lane(*slot),
            LaneLocation::Halves(_) => None,
        }
    }

    /// Opens the first lane of a link, if the peer's open packet (with the ring that the peer writes) has arrived.
    /// Returns whether the lane is open now. Always returns `true` for a lane in an arena. Fails with
    /// [`Error::BadPeer`] if the ring in the packet has an impossible size, or with an error of receiving.
    pub(crate) fn open(&self) -> Result<bool, Error> {
        let LaneLocation::Halves(halves) = &self.location else { return Ok(true) };
        if halves.inward.get().is_some() {
            return Ok(true);
        }
        match self.link.fetch_first(|inbox| inbox.take_open())? {
            Some(open) => self.open_with(open).map(|()| true),
            // Another thread may have opened the lane.
            None => Ok(halves.inward.get().is_some()),
        }
    }

    /// Opens the first lane of a link with the content of the peer's open packet: the peer's ring and its token. Does
    /// nothing for a lane in an arena. Fails with [`Error::BadPeer`] if the ring has an impossible size.
    pub(crate) fn open_with(&self, open: OpenPacket) -> Result<(), Error> {
        let LaneLocation::Halves(halves) = &self.location else { return Ok(()) };
        let cells = usize::try_from(open.cells).ok().filter(|cells| *cells <= MAX_CELLS);
        let memory = cells.and_then(|cells| LaneMemory::new(&open.ring, 0, cells));
        let ring = memory.ok_or(Error::BadPeer("a ring of impossible size"))?.ring(0);
        // Exactly one end must be side 0: both ends decide by the same tokens.
        self.side.fetch_or(u8::from(halves.token > open.token), Ordering::Relaxed);
        let _ = halves.inward.set((ring, open.token));
        Ok(())
    }

    /// Returns the name of the lane; [`Name::default`] for the first lane of a link, which has no name.
    pub(crate) fn name(&self) -> Name {
        match &self.location {
            LaneLocation::Slot { arena, slot, usage } => Name { arena: arena.number(), slot: *slot, usage: *usage },
            LaneLocation::Halves(_) => Name::default(),
        }
    }

    /// Returns the side of this end, 0 or 1. In the first lane of a link the side is known only once the lane is open.
    pub(crate) fn side(&self) -> usize {
        usize::from(self.side.load(Ordering::Relaxed) & 1)
    }

    /// Returns this end's outgoing ring in this lane.
    pub(crate) fn out(&self) -> RingMemory {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } => arena.lane(*slot).expect("it was looked up").ring(self.side()),
            LaneLocation::Halves(halves) => halves.out.clone(),
        }
    }

    /// Returns this end's incoming ring in this lane; `None` if the lane is not open.
    pub(crate) fn inward(&self) -> Option<RingMemory> {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } => Some(arena.lane(*slot)?.ring(1 - self.side())),
            LaneLocation::Halves(halves) => Some(halves.inward.get()?.0.clone()),
        }
    }

    /// Returns the token, in packets, of this end's outgoing ring. The token depends on whether the other end is in
    /// this process. So the token may change when the transfer of the other end is cancelled.
    pub(crate) fn token_out(&self) -> u128 {
        match &self.location {
            LaneLocation::Slot { arena, slot, usage } => arena.token(*slot, *usage, self.side(), self.is_local()),
            LaneLocation::Halves(halves) => halves.token,
        }
    }

    /// Returns the token, in packets, of this end's incoming ring. Returns 0 if the lane is not open.
    pub(crate) fn token_in(&self) -> u128 {
        match &self.location {
            LaneLocation::Slot { arena, slot, usage } => arena.token(*slot, *usage, 1 - self.side(), self.is_local()),
            LaneLocation::Halves(halves) => halves.inward.get().map_or(0, |(_, token)| *token),
        }
    }

    /// Returns whether `other` is this lane seen from the other end. Always returns `false` for the first lane of a
    /// link.
    pub(crate) fn is_opposite(&self, other: &Self) -> bool {
        match (&self.location, &other.location) {
            (
                LaneLocation::Slot { arena, slot, usage },
                LaneLocation::Slot { arena: theirs, slot: other_slot, usage: other_usage },
            ) => {
                Arc::ptr_eq(arena, theirs) && (slot, usage) == (other_slot, other_usage) && self.side() != other.side()
            }
            _ => false,
        }
    }

    /// Returns whether the other end is in this process now; if so, attachments need no socket. Looks at the transfer
    /// word first, if a transfer of the other end may be pending.
    fn is_local(&self) -> bool {
        self.is_pending();
        self.link().is_local()
    }

    /// Returns the word in shared memory with the peer's CPU: the CPU's number plus 1, or 0 if unknown. Returns `None`
    /// if the lane is not open.
    pub(crate) fn peer_cpu(&self) -> Option<&AtomicU32> {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } => Some(arena.lane(*slot)?.cpu(1 - self.side())),
            LaneLocation::Halves(halves) => halves.inward.get().map(|(ring, _)| ring.cpu()),
        }
    }

    /// Returns the peer's sleep word for waits for room. Returns `None` if the lane is not open.
    pub(crate) fn peer_waiting(&self) -> Option<&AtomicU32> {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } => Some(arena.lane(*slot)?.waiting(1 - self.side())),
            LaneLocation::Halves(halves) => halves.inward.get().map(|(ring, _)| ring.waiting()),
        }
    }

    fn transfer_word(&self) -> Option<&AtomicU32> {
        self.memory().map(LaneMemory::transfer_word)
    }

    /// Returns the link to the holder of the other end, or to the future holder once the other end's transfer is
    /// complete. If the transfer was cancelled, returns the link to the source, which still holds the other end.
    #[inline]
    pub(crate) fn link(&self) -> &InUse {
        match &self.source {
            Some(source) if self.cancelled.load(Ordering::Relaxed) => source,
            _ => &self.link,
        }
    }

    /// Returns the link over which the other end is reached now, for wake-ups and attachments. While the other end is
    /// in transit, this is the link to the source; otherwise the result is that of [`Lane::link`].
    pub(crate) fn current_link(&self) -> &InUse {
        match &self.source {
            Some(source) if self.is_pending() => source,
            _ => self.link(),
        }
    }

    /// Returns which threads may sleep on the futex words of this lane. `Private`: only threads of this process.
    /// `Shared`: also threads of other processes.
    pub(crate) fn scope(&self) -> Scope {
        match &self.location {
            LaneLocation::Slot { arena, .. } if arena.is_private() => Scope::Private,
            _ => Scope::Shared,
        }
    }

    /// Returns whether the transfer of the other end into this lane is pending. Reads the transfer word of the lane,
    /// unless this process has already seen the end of the transfer.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) && self.look_at_transfer()
    }

    #[cold]
    fn look_at_transfer(&self) -> bool {
        match self.transfer_word().and_then(TransferState::of) {
            Some(TransferState::Pending) => return true,
            Some(TransferState::Abandoned) => self.abandoned.store(true, Ordering::Relaxed),
            Some(TransferState::Cancelled) => self.cancelled.store(true, Ordering::Relaxed),
            // Only a misbehaving peer writes any other value; there is nothing to wait for.
            _ => {}
        }
        self.pending.store(false, Ordering::Release);
        false
    }

    /// Returns whether the transfer of the other end was abandoned, because the source died before it handed the end
    /// over. The answer is valid only after [`Lane::is_pending`] has returned `false`.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Abandons the pending transfer into this lane, as if this end had noticed the death of the source. Only for
    /// tests.
    #[cfg(test)]
    pub(crate) fn give_up(&self) {
        assert_eq!(self.transfer_word().map(transfer_word::abandon), Some(Some(TransferState::Pending)));
    }

    /// Returns whether no more messages can be committed in this lane: if the link to the process of the other end is
    /// down, or if the transfer of the other end was abandoned. If the source of a pending transfer is dead, this call
    /// abandons the transfer.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        if self.source.is_some() || self.abandoned.load(Ordering::Relaxed) {
            return self.is_given_up();
        }
        self.link.is_down()
    }

    /// Returns whether the lane is up, without a look at shared memory: the link is up, and this process has seen the
    /// end of the transfer of the other end. If not, [`Lane::is_down`] looks further.
    #[inline(always)]
    pub(crate) fn is_plainly_up(&self) -> bool {
        !self.pending.load(Ordering::Relaxed) && !self.abandoned.load(Ordering::Relaxed) && !self.link().is_down()
    }

    #[cold]
    fn is_given_up(&self) -> bool {
        if self.is_pending()
            && self.source.as_ref().is_some_and(|source| source.is_down())
            && let Some(Some(TransferState::Pending)) = self.transfer_word().map(transfer_word::abandon)
        {
            self.abandoned.store(true, Ordering::Relaxed);
        }
        self.abandoned.load(Ordering::Relaxed) || (!self.is_pending() && self.link().is_down())
    }

    /// Asks the kernel whether the process of the other end is alive; while the other end is in transit, asks about the
    /// source instead. If the process is dead, its link is down from now on.
    pub(crate) fn probe(&self) {
        self.current_link().probe();
    }

    /// Returns the error with which the current link of the other end went down: the link to the source while the other
    /// end is in transit. Returns [`Error::PeerClosed`] if that link is up.
    pub(crate) fn reason(&self) -> Error {
        if self.current_link().is_down() { self.current_link().reason() } else { Error::PeerClosed }
    }

    /// Records this end as in transit from now on, with this process as the source: in this `Lane`, and for other
    /// processes in the lane's shared memory.
    pub(crate) fn set_moving(&self) {
        self.side.fetch_or(MOVING, Ordering::Relaxed);
        if let Some(memory) = self.memory() {
            memory.moving().store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.side.load(Ordering::Relaxed) & MOVING != 0
    }

    /// Hands this end over to its destination, because the message with the end was committed. This process no longer
    /// holds the end. From now on the other end has the destination as its peer.
    pub(crate) fn hand_over(&self) {
        if let LaneLocation::Slot { arena, slot, usage } = &self.location {
            // Done first, before the lane slot can be used for another lane. The new holder finds its next lane by a
            // mark.
            pass_by(arena.leave(*slot, self.side()), self.side(), Done::ByOthers);
            self.end_move(transfer_word::hand_over::<RingMemory>);
            if self.link.is_local() {
                // The other end waits for the handover of this end, unless a peer wrote into the transfer word.
                discard_local(arena, *slot, *usage, self.side());
            }
        }
        self.side.fetch_or(GONE, Ordering::Relaxed);
    }

    /// Cancels the transfer of this end, because the message with the end could not be sent. This process keeps the
    /// end, and is the peer of the other end again.
    pub(crate) fn cancel_transfer(&self) {
        self.end_move(transfer_word::cancel::<RingMemory>);
        self.side.fetch_and(!MOVING, Ordering::Relaxed);
        self.tell_absence(Absent::This);
    }

    /// Completes a fuse: hands the two ends of this new lane over to the processes of the two far ends. The lane's
    /// arena was announced to both processes. `other` is this lane seen from the other end. Afterwards this process
    /// holds neither end.
    pub(crate) fn hand_over_to_both(&self, other: &Self) {
        let Some(memory) = self.memory() else { return };
        fault::point("before two ends are handed to each other");
        transfer_word::hand_over::<RingMemory>(memory.transfer_word());
        self.wake_relayed(memory);
        other.wake_relayed(memory);
        self.is_moved_into(memory);
        self.disown();
        other.disown();
    }

    /// Clears the word in the lane's `memory` for a source that is moving an end into this lane. If both ends are done
    /// with the lane already, frees the lane slot.
    fn is_moved_into(&self, memory: LaneMemory<'_>) {
        fault::point("before a lane is free of its source");
        memory.moving().store(0, Ordering::SeqCst);
        if let LaneLocation::Slot { arena, slot, usage } = &self.location
            && memory.is_unused()
        {
            arena.give_back(*slot, *usage);
        }
    }

    /// Declares that the other end will never come to this new lane, because the other end is closed: marks the other
    /// end as done with the lane. No other process would do so, and the lane slot would never be free again.
    pub(crate) fn other_never_comes(&self) {
        if let Some(memory) = self.memory() {
            memory.done(1 - self.side()).store(1, Ordering::SeqCst);
        }
        self.tell_absence(Absent::Other);
    }

    /// Tells a process that its end of this lane never comes. `which` selects the process: that of the other end, or
    /// the destination of this end. The process then forgets the arena without waiting for the end. Does nothing at a
    /// second call, and for a lane that another process made.
    pub(crate) fn tell_absence(&self, which: Absent) {
        let (flag, index) = match which {
            Absent::Other => (OTHER_IS_ABSENT, 0),
            Absent::This => (THIS_IS_ABSENT, 1),
        };
        if let (Some(told), LaneLocation::Slot { arena, .. }) = (&self.told, &self.location)
            && self.side.fetch_or(flag, Ordering::Relaxed) & flag == 0
            && let Some(link) = told[index].upgrade()
        {
            directory::tell_absence(&link, arena.number());
            directory::let_go(vec![link]);
        }
    }

    /// Marks this end as not held by this process any more. Dropping this `Lane` then does not declare the end done
    /// with the lane.
    pub(crate) fn disown(&self) {
        self.side.fetch_or(GONE, Ordering::Relaxed);
    }

    /// Wakes the other end if one of its two sleep words (for messages and for room) shows a relayed sleeper, which
    /// only the source of the transfer, this process, can wake.
    fn wake_relayed(&self, memory: LaneMemory<'_>) {
        for word in [memory.sleeping(self.side()), memory.waiting(1 - self.side())] {
            let how = transfer_word::take_sleeper_if_relayed(word);
            crate::lane::waiter::wake(&self.link, self.scope(), word, how);
        }
    }

    /// Calls `step` with the lane's transfer word; `step` writes the outcome of this end's transfer. Then wakes the
    /// other end if its sleeper is relayed: only the source of the transfer, this process, can wake a relayed sleeper.
    fn end_move(&self, step: impl FnOnce(&AtomicU32) -> Option<TransferState>) {
        let Some(memory) = self.memory() else { return };
        fault::point("before an end is handed over or its transfer is cancelled");
        step(memory.transfer_word());
        self.wake_relayed(memory);
        self.is_moved_into(memory);
    }

    /// Sets `word`, a sleep word of this lane, to 0 and returns its old value. If the value is not 0, the caller must
    /// wake the thread that slept. Returns 0 and changes nothing if no thread sleeps there, or if only the source of a
    /// transfer may wake the thread and this process is not the source.
    #[inline]
    pub(crate) fn take_sleeper(&self, word: &AtomicU32) -> u32 {
        if word.load(Ordering::SeqCst) == 0 { 0 } else { self.take_that_sleeper(word) }
    }

    #[cold]
    fn take_that_sleeper(&self, word: &AtomicU32) -> u32 {
        fault::point("before a sleeper is taken");
        if self.is_moving() { ring::take_sleeper(word) } else { transfer_word::take_sleeper_unless_relayed(word) }
    }

    /// Discards this new lane, to which no end can come, and frees the lane slot.
    pub(crate) fn unmake(&self) {
        self.side.fetch_or(GONE, Ordering::Relaxed);
        self.tell_absence(Absent::Other);
        self.tell_absence(Absent::This);
        if let Some(memory) = self.memory() {
            memory.set_unused();
        }
        if let LaneLocation::Slot { arena, slot, usage } = &self.location {
            arena.give_back(*slot, *usage);
        }
    }

    /// Claims this end: this process received the end as the destination of the transfer. Returns `false` if the other
    /// end has abandoned the transfer before.
    pub(crate) fn claim(&self) -> bool {
        fault::point("before an end is claimed");
        let claimed =
            self.transfer_word().is_none_or(|word| transfer_word::claim(word) != Some(TransferState::Abandoned));
        if !claimed {
            self.abandoned.store(true, Ordering::Relaxed);
        }
        claimed
    }

    /// Marks the transfer into this new lane as complete in the lane's transfer word, because neither end of the new
    /// lane is in transit.
    pub(crate) fn complete_transfer(&self) {
        if let Some(word) = self.transfer_word() {
            transfer_word::hand_over::<RingMemory>(word);
        }
    }

    /// Stores `fresh` as the next lane of the other end, if the other end is in this process. This process has created
    /// `fresh` to move this end; `link` is the link to the destination. If the other end never arrives in this process,
    /// `close` closes the other end in the next lane.
    pub(crate) fn store_successor(&self, fresh: &Lane, link: &InUse, close: fn(Lane)) {
        if let (LaneLocation::Slot { arena, slot, usage }, LaneLocation::Slot { arena: next, .. }) =
            (&self.location, &fresh.location)
            && self.current_link().is_local()
        {
            // The other end looks this entry up later, or removes the entry when closed; or the other end has not
            // arrived yet.
            let next = (next.clone(), self.name_for_other(fresh));
            let side = 1 - self.side();
            pass_by(arena.set_successor(*slot, *usage, side, next, link, close), side, Done::ByUs);
        }
    }

    /// Returns the name of the next lane for a mark to the other end of this lane. `fresh` is the next lane seen from
    /// this end. The name has the flag [`Name::FLIPPED`] if the other end changes sides there.
    pub(crate) fn name_for_other(&self, fresh: &Lane) -> Name {
        if fresh.side() == self.side() { fresh.name() } else { fresh.name().flipped() }
    }

    /// Returns the location of this end in the arena if the lane connects this process to itself, otherwise `None`.
    pub(crate) fn local_slot(&self) -> Option<arena::LaneSlot> {
        match &self.location {
            LaneLocation::Slot { arena, slot, usage } => {
                self.link.is_local().then(|| arena::LaneSlot::new(arena, *slot, *usage, self.side()))
            }
            LaneLocation::Halves(_) => None,
        }
    }

    /// Returns whether this process holds the other end of this lane; for a lane that connects this process to itself.
    /// Returns `false` while the other end is still in transit. Always returns `true` for the first lane of a link, and
    /// for a lane in an arena of this process's own.
    pub(crate) fn is_other_here(&self) -> bool {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } => arena.is_here(*slot, 1 - self.side()),
            LaneLocation::Halves(_) => true,
        }
    }

    /// Returns whether the other end, which should be in this process, was closed or sent away. If so, the other end
    /// never receives messages of this end in this lane.
    pub(crate) fn has_other_left(&self) -> bool {
        match &self.location {
            LaneLocation::Slot { arena, slot, usage } => arena.has_left(*slot, *usage, 1 - self.side()),
            LaneLocation::Halves(_) => false,
        }
    }

    /// Returns the links used by this lane: the link to the process of the other end and, if there is one, the link to
    /// the source.
    pub(crate) fn links(&self) -> impl Iterator<Item = &InUse> {
        [Some(&self.link), self.source.as_ref()].into_iter().flatten()
    }

    /// Returns the next lane, in which this end goes on. Returns `None` if no direction of the end has come to its mark
    /// yet and this process has not set the lane.
    pub(crate) fn found_next(&self) -> Option<&Arc<Self>> {
        self.next.get()
    }

    /// Sets the next lane of this end to `next`, a lane created by this process for the end. Does nothing if the next
    /// lane is set already.
    pub(crate) fn lead_to(&self, next: &Arc<Self>) {
        let _ = self.next.set(next.clone());
    }

    /// Removes the next lane that [`Lane::store_successor`] stored for the other end. Returns `false` if the entry was
    /// gone, because the other end has read it or is closed. Returns `true` if the other end is not in this process.
    pub(crate) fn forget_successor(&self) -> bool {
        match &self.location {
            LaneLocation::Slot { arena, slot, .. } if self.current_link().is_local() => {
                arena.take_successor(*slot, 1 - self.side()).is_some()
            }
            _ => true,
        }
    }

    /// Returns the next lane, in which this end goes on. `name` is the lane's name in a mark written by the peer. The
    /// first direction of the end to reach its mark looks the lane up; the other direction gets the same lane.
    ///
    /// # Errors
    /// [`Error::BadPeer`] if the marks of the two directions name different lanes, if there is no such lane, or after
    /// more than [`MOST_UNUSED`] lanes in a row without a message; a temporary error if the lane's memory cannot be
    /// mapped now.
    pub(crate) fn next(&self, name: Name) -> Result<Arc<Lane>, Error> {
        let next = match self.next.get() {
            Some(next) => next.clone(),
            None => {
                let _finding = crate::sync::unpoisoned(&self.finding);
                match self.next.get() {
                    Some(next) => next.clone(),
                    None => {
                        let unused = self.unused.load(Ordering::Relaxed) + 1;
                        if unused > MOST_UNUSED {
                            return Err(Error::BadPeer("an end that moves again and again without stopping"));
                        }
                        let found = Arc::new(self.find_next(name)?);
                        found.side.fetch_or(self.side.load(Ordering::Relaxed) & CLOSING, Ordering::Relaxed);
                        found.unused.store(unused, Ordering::Relaxed);
                        self.next.get_or_init(|| found).clone()
                    }
                }
            }
        };
        let is_that = next.name() == name.upright() && next.side() == name.side_from(self.side());
        if is_that { Ok(next) } else { Err(Error::BadPeer("two marks of one end with different lanes")) }
    }

    /// Reports the peer as a bad peer, if `error` is [`Error::BadPeer`] and is the `first` error of this end. Otherwise
    /// does nothing.
    pub(crate) fn report_error(&self, first: bool, error: Error) {
        if let Error::BadPeer(reason) = error
            && first
        {
            self.current_link().ledger().broken(reason, false);
        }
    }

    /// Marks that this end has received everything from the other end in this lane, and nothing more can follow.
    pub(crate) fn set_read(&self) {
        self.side.fetch_or(IS_READ, Ordering::Relaxed);
    }

    /// Keeps counting this end's descriptors in flight in this lane, after the last message here. `in_flight` is the
    /// in-flight record of this end. Returns `false`, and counts nothing more, if none are in flight.
    pub(crate) fn linger(&self, in_flight: &Arc<InFlight>) -> bool {
        let lingers = self.link().linger(in_flight, self.inward());
        if lingers {
            self.side.fetch_or(LINGERING, Ordering::Relaxed);
        }
        lingers
    }

    /// Notes that this end is being closed. From now on, messages in this lane and in the next lanes are received only
    /// to close their attachments.
    pub(crate) fn set_closing(&self) {
        if !self.is_closing() {
            self.side.fetch_or(CLOSING, Ordering::Relaxed);
        }
    }

    /// Returns whether this end is being closed.
    pub(crate) fn is_closing(&self) -> bool {
        self.side.load(Ordering::Relaxed) & CLOSING != 0
    }

    /// Returns whether memory for this end is mapped even over a limit of the peer: only if this end is being closed,
    /// because the memory is then unmapped soon.
    pub(crate) fn over_limit(&self) -> OverLimit {
        if self.is_closing() { OverLimit::Exceed } else { OverLimit::Refuse }
    }

    /// Notes that this end has used this lane (has sent or received a message): sets the count of unused lanes in a row
    /// to 0.
    pub(crate) fn set_used(&self) {
        self.unused.store(0, Ordering::Relaxed);
    }

    fn find_next(&self, name: Name) -> Result<Lane, Error> {
        // The side of this end is known only once the lane is open.
        if !self.open()? {
            return Err(Error::BadPeer("a mark in a ring of a peer that sent no open packet"));
        }
        let source = self.current_link();
        let side = name.side_from(self.side());
        if !source.is_local() {
            return source.find_lane(name.upright(), side, true, self.over_limit());
        }
        let successor = match &self.location {
            LaneLocation::Slot { arena, slot, .. } => arena.take_successor(*slot, self.side()),
            LaneLocation::Halves(_) => None,
        };
        let successor = match successor {
            Some(successor) if successor.name == name => successor,
            // The end has no next lane then, and is removed from the chain of stored next lanes.
            other => {
                pass_by(other, self.side(), Done::ByUs);
                return Err(Error::BadPeer("a mark with a lane that this process did not make"));
            }
        };
        Lane::in_arena(&successor.arena, name.upright(), side, successor.link, Some(source.clone()))
            .ok_or(Error::BadPeer("a lane outside of its arena"))
    }
}

/// The most lanes in a row in which an end may send and receive nothing. With more, the peer is a bad peer, because its
/// marks may form an endless chain. An honest peer has no memory for this many lanes. Following this many takes a
/// second or two.
const MOST_UNUSED: u32 = 1 << 20;

/// Flag in `Lane::side`: this process does not hold the end any more, so dropping the `Lane` does not declare the end
/// as done with the lane.
const GONE: u8 = 2;

/// Flag in `Lane::side`: descriptors of this end are still in flight. The end is not declared done with the lane before
/// the peer has received them.
const LINGERING: u8 = 4;

/// An end, in a lane made by this process, that never comes to the process for which the lane was announced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Absent {
    /// The other end.
    Other,
    /// The end from which this `Lane` sees the lane.
    This,
}

/// Flags in `Lane::side`: the process of the end was told that the end never comes ([`Absent`]).
const OTHER_IS_ABSENT: u8 = 16;
const THIS_IS_ABSENT: u8 = 32;

/// Flag in `Lane::side`: this end is being closed, and received messages are dropped.
const CLOSING: u8 = 8;

/// Flag in `Lane::side`: this process, as the source, has begun a transfer of this end without cancelling the transfer.
const MOVING: u8 = 64;

/// Flag in `Lane::side`: this end has received everything from the other end in this lane, and nothing more can follow.
const IS_READ: u8 = 128;

/// Decides which process declares an end as done with a lane in which the end never arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    ByUs,
    /// The destination of the end declares the end as done with the lane; this process does not.
    ByOthers,
}

/// Removes an end from `successor`, the next lane stored for the end, and from the chain of next lanes after
/// `successor`. The end never goes to these lanes, because the end is closed or in another process. `side` is the end's
/// side in the lane before `successor`. `done` says whether this process declares the end done with these lanes.
fn pass_by(mut successor: Option<Successor>, mut side: usize, done: Done) {
    while let Some(Successor { arena, name, .. }) = successor {
        side = name.side_from(side);
        let name = name.upright();
        successor = arena.leave(name.slot, side);
        let token = arena.token(name.slot, name.usage, 1 - side, true);
        mailbox::discard(token..=token);
        if done == Done::ByOthers {
            continue;
        }
        arena.expect_more(name.slot);
        if let Some(memory) = arena.lane(name.slot) {
            memory.done(side).store(1, Ordering::SeqCst);
            arena.give_back(name.slot, name.usage);
        }
    }
}

/// Discards everything in the mailbox of this process for an end that will not receive any more: the end on `side` of
/// the lane in the slot `slot` of `arena` with the use count `usage`. Does nothing for a private arena.
fn discard_local(arena: &Arena, slot: u32, usage: u32, side: usize) {
    if !arena.is_private() && !mailbox().is_empty() {
        let token = arena.token(slot, usage, 1 - side, true);
        mailbox::discard(token..=token);
    }
}

impl Drop for Lane {
    /// Declares this end as done with the lane, if this process still holds the end. Removes the end from the next
    /// lanes stored for the end, because the end will not go on there.
    fn drop(&mut self) {
        if self.link().is_elsewhere() {
            return;
        }
        // No thread will ask any more for the next lane of this end. The end has no next lane, unless a peer wrote into
        // the end's transfer word or marks, so that the end moved elsewhere. Done first, before the lane slot can be
        // used for another lane.
        let successor = match &self.location {
            LaneLocation::Slot { arena, slot, .. } if self.side.load(Ordering::Relaxed) & GONE == 0 => {
                arena.leave(*slot, self.side())
            }
            _ => None,
        };
        if let Some(memory) = self.memory() {
            let side = self.side.load(Ordering::Relaxed);
            if let LaneLocation::Slot { arena, slot, usage } = &self.location {
                arena.let_go(*slot, *usage, usize::from(side & 1));
            }
            if side & GONE == 0 {
                fault::point("before a lane is done with");
                if let LaneLocation::Slot { arena, slot, usage } = &self.location {
                    if !(side & IS_READ != 0 && self.current_link().is_local()) {
                        arena.expect_more(*slot);
                    }
                    // Entries can be left only if a peer misled the end about its other end, or if records were
                    // overwritten.
                    discard_local(arena, *slot, *usage, self.side());
                }
                if side & LINGERING == 0 {
                    memory.done(self.side()).store(1, Ordering::SeqCst);
                } else {
                    self.link().end_is_done(&self.out());
                }
                if let LaneLocation::Slot { arena, slot, usage } = &self.location {
                    arena.give_back(*slot, *usage);
                }
            }
        }
        pass_by(successor, self.side(), Done::ByUs);
        // Drops the next lanes singly: if the other end moved often while this end was idle, the chain of next lanes is
        // long.
        let mut next = self.next.take();
        while let Some(lane) = next {
            next = Arc::into_inner(lane).and_then(|mut lane| lane.next.take());
        }
    }
}
