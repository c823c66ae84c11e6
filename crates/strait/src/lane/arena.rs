//! Arenas: memory for many lanes between the same two processes.
//!
//! A process takes new lanes from its own arenas, so that a lane costs no system call, no descriptor and no mapping. An
//! arena holds lanes between only two processes; the creator of the arena may be one of the two, both, or neither. So
//! each process can write only to memory of channels that the process could disturb anyway.
//!
//! A lane slot is used again once both sides have declared that they are done with the slot. A false declaration
//! disturbs only channels between the same two processes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::mailbox::{self, mailbox};
use super::nesting::GoesOn;
use super::{Lane, Name};
use crate::error::Error;
use crate::link::InTransit;
use crate::link::packet::Packet;
use crate::link::{InUse, Link};
use crate::os::fork::Born;
use crate::quota::Charge;
use crate::quota::closing::HalfForPeer;
use crate::ring::MIN_CELLS;
use crate::shm::{LaneMemory, Mapping, Shareable, lane_size, sizes_of_lanes};
use crate::sync::unpoisoned;

/// The size in bytes of this process's first arena for two given processes. Each further arena for these two processes
/// is four times larger, up to [`LARGEST`].
const FIRST: usize = 16 << 10;

/// The size in bytes of this process's largest arenas with many lanes.
pub(crate) const LARGEST: usize = 4 << 20;

/// The number of bytes by which the memory of an arena is populated: the kernel backs this much with memory at a time.
const PIECE: usize = 64 << 10;

/// The most used lane slots checked by a maker before it creates a new arena. A slot has become free if both ends of
/// its lane are done with the lane.
const LOOKS: usize = 16;

/// The number of cells of each ring in an arena of many lanes. A lane with larger rings gets an arena of its own.
pub(crate) const SMALL: usize = MIN_CELLS;

/// An arena: a block of shared memory that holds many lanes between the same two processes.
pub(crate) struct Arena {
    born: Born,
    number: u64,
    token: u128,
    /// The lowest token of this arena's rings in the mailbox of this process. The token is this process's own choice: a
    /// peer could choose a token equal to the tokens of other rings.
    local_token: u128,
    mapping: Arc<Mapping>,
    lanes: u32,
    cells: usize,
    private: bool,
    /// The charge to the peer for the lanes of an arena that the peer created; `None` for an arena of this process's
    /// own.
    _charge: Option<Charge>,
    /// For an arena created by a peer: a bit for each end of each lane, set while this process holds the end. The bits
    /// prevent two ends on the same side of a lane in this process, which would both write to the same ring. Empty for
    /// an arena of this process's own.
    held: Box<[AtomicU32]>,
    /// For an arena created by a peer: the ends that left this process.
    gone: Mutex<Gone>,
    /// For an arena that this process created: a bit for each end of each lane. The bit is set once this process will
    /// not ask for the end's next lane any more. From then on `successors` gets no entry for that end, because the link
    /// in an entry might keep the arena alive. Written under the lock of `successors`.
    left: Box<[AtomicU32]>,
    /// The next lanes of ends in this process or in transit to this process, by the lane slot and side of the end. An
    /// entry is made when this process moves the other end of the channel. The entries are not in shared memory, where
    /// another process could change an entry.
    successors: Mutex<HashMap<(u32, usize), Successor>>,
    /// The free lane slots of a private arena (an arena of this process alone); empty for any other arena.
    freed: Mutex<Freed>,
}

/// The free lane slots of a private arena (an arena of this process alone), with possible leftover attachments for each
/// slot, and the number of earlier lanes in the slot.
#[derive(Default)]
struct Freed {
    /// The free lane slots: for each, the name of the last lane that used the slot. The last freed slot is used first,
    /// because it is still in the CPU's caches.
    names: Vec<Name>,
    /// The lane slots with possible leftover attachments in this process, because an end left the lane before reading
    /// everything. No end will receive these attachments; freeing the slot discards the attachments.
    unread: HashSet<u32>,
    /// For each lane slot, the number of lanes that had used the slot when the slot was last freed; 0 if the slot was
    /// never freed.
    uses: Vec<u32>,
}

impl Freed {
    /// Returns whether the lane slot `slot` has been freed since the lane with the use count `usage` began to use it.
    fn was_given_back(&self, slot: u32, usage: u32) -> bool {
        self.uses.get(slot as usize).is_some_and(|uses| uses.wrapping_sub(usage).cast_signed() > 0)
    }

    /// Adds the lane slot of the lane `name` to the free slots. Both ends are done with that lane.
    fn give_back(&mut self, name: Name) {
        let at = name.slot as usize;
        if self.uses.len() <= at {
            self.uses.resize(at + 1, 0);
        }
        self.uses[at] = name.usage.wrapping_add(1);
        self.names.push(name);
    }
}

/// The ends that this process no longer holds, of lanes in one arena of a peer. Such an end cannot arrive again.
///
/// A table with an entry for each end of each lane, made when the first end leaves. (A growing map would make some call
/// copy a million entries, if the peer causes a million entries.) An entry is 0 if no end has left that place, and
/// otherwise [`Gone::LEFT`] plus the use count of the last lane whose end left.
#[derive(Default)]
struct Gone(Box<[u64]>);

impl Gone {
    const LEFT: u64 = 1 << 32;

    fn index(slot: u32, side: usize) -> usize {
        2 * slot as usize + side
    }

    /// Returns whether the end on `side` of the lane in `slot` with the use count `usage` has left.
    fn has(&self, slot: u32, usage: u32, side: usize) -> bool {
        self.0.get(Self::index(slot, side)) == Some(&(Self::LEFT | u64::from(usage)))
    }

    /// Notes that the end on `side` of the lane in `slot` with the use count `usage` has left. The arena has `lanes`
    /// lanes.
    fn add(&mut self, lanes: u32, slot: u32, usage: u32, side: usize) {
        if self.0.is_empty() {
            self.0 = vec![0; 2 * lanes as usize].into();
        }
        self.0[Self::index(slot, side)] = Self::LEFT | u64::from(usage);
    }
}

/// The next lane of an end in this process or in transit to this process. Stored when this process moves the other end
/// of the channel; read when the end goes on in the next lane.
pub(crate) struct Successor {
    pub(crate) arena: Arc<Arena>,
    /// The name of the next lane. A flag in the name says whether the end changes sides there.
    pub(crate) name: Name,
    /// The link to the present or future holder of the other end in the next lane.
    pub(crate) link: InUse,
    /// The use count of the lane in which the end is now: part of that lane's name.
    usage: u32,
    /// Closes the end in the next lane, if the end never arrives in this process.
    close: fn(Lane),
    goes_on: GoesOn,
    _in_transit: Option<InTransit>,
}

/// The location of one end in a lane that connects this process to itself: the arena, lane slot, use count and side.
pub(crate) struct LaneSlot {
    arena: Arc<Arena>,
    slot: u32,
    usage: u32,
    side: usize,
}

impl LaneSlot {
    pub(crate) fn new(arena: &Arc<Arena>, slot: u32, usage: u32, side: usize) -> Self {
        Self { arena: arena.clone(), slot, usage, side }
    }

    /// Returns the arena, lane slot and side of this location as a key for maps. Two locations have equal keys if all
    /// three are equal; the use count is left out.
    pub(crate) fn key(&self) -> (*const Arena, u32, usize) {
        (Arc::as_ptr(&self.arena), self.slot, self.side)
    }

    /// Returns whether the lane slot was freed since the lane of this location took the slot.
    #[cfg(test)]
    pub(crate) fn was_given_back(&self) -> bool {
        unpoisoned(&self.arena.freed).was_given_back(self.slot, self.usage)
    }

    /// Returns the location of this end in the next lane, and the link to the holder of the other end there. Returns
    /// `None` if this process has stored no next lane for the end. The stored entry stays.
    pub(crate) fn successor(&self) -> Option<(Self, Arc<Link>)> {
        let successors = unpoisoned(&self.arena.successors);
        let Successor { arena, name, link, .. } = successors.get(&(self.slot, self.side))?;
        let side = name.side_from(self.side);
        Some((Self::new(arena, name.upright().slot, name.usage, side), Arc::clone(link)))
    }

    /// Returns the token, in the mailbox of this process, of the ring read by the end at this location.
    pub(crate) fn token_in(&self) -> u128 {
        self.arena.token(self.slot, self.usage, 1 - self.side, true)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("number", &self.number).field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

impl Arena {
    /// Creates an arena that a peer announced. `number`, `token`, `lanes` and `cells` (of each ring) are as announced,
    /// `mapping` is the received memory, and `charge` charges the peer. Returns `None` if the memory is too small for
    /// the lanes, or if `lanes` or `cells` is impossible.
    pub(crate) fn received(
        number: u64,
        token: u128,
        mapping: Arc<Mapping>,
        lanes: u32,
        cells: usize,
        charge: Option<Charge>,
    ) -> Option<Self> {
        let fits = *sizes_of_lanes(lanes, cells as u64)?.start() <= mapping.len();
        fits.then(|| Self {
            born: Born::here(),
            number,
            token,
            local_token: local_token(next_number()),
            mapping,
            lanes,
            cells,
            private: false,
            _charge: charge,
            held: bits(lanes),
            gone: Mutex::default(),
            left: Box::default(),
            successors: Mutex::default(),
            freed: Mutex::default(),
        })
    }

    /// Returns the memory of the lane in the lane slot `slot`; `None` if the arena has no slot of this number.
    pub(crate) fn lane(&self, slot: u32) -> Option<LaneMemory<'_>> {
        if slot >= self.lanes {
            return None;
        }
        LaneMemory::new(&self.mapping, slot as usize * lane_size(self.cells), self.cells)
    }

    /// Marks the end on `side` of a lane as held by this process; the lane is that in the lane slot `slot` with the use
    /// count `usage`. Returns `false` if this process already holds an end on the same side of the slot, or has held
    /// this end before. Always returns `true`, and marks nothing, for an arena of this process's own.
    pub(crate) fn hold(&self, slot: u32, usage: u32, side: usize) -> bool {
        let gone = unpoisoned(&self.gone);
        !gone.has(slot, usage, side)
            && bit(&self.held, slot, side).is_none_or(|(word, bit)| word.fetch_or(bit, Ordering::SeqCst) & bit == 0)
    }

    /// Returns whether this process holds the end on `side` of the lane in `slot`. Always returns `true` for an arena
    /// of this process's own, because its ends are not recorded.
    pub(crate) fn is_here(&self, slot: u32, side: usize) -> bool {
        bit(&self.held, slot, side).is_none_or(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    /// Returns whether the end on `side` of a lane will read nothing more in this process; the lane is that in the lane
    /// slot `slot` with the use count `usage`. Such an end was closed or sent away, or never arrives. An end in an
    /// arena of a peer may arrive once for each use of the lane slot.
    pub(crate) fn has_left(&self, slot: u32, usage: u32, side: usize) -> bool {
        match bit(&self.left, slot, side) {
            Some((word, bit)) => word.load(Ordering::SeqCst) & bit != 0,
            None => unpoisoned(&self.gone).has(slot, usage, side),
        }
    }

    /// Marks the end on `side` of a lane as no longer held by this process; the lane is that in the lane slot `slot`
    /// with the use count `usage`. The caller does so before declaring that the end is done with the lane. After that
    /// declaration the creator of the arena may use the lane slot again. Does nothing for an arena of this process's
    /// own.
    pub(crate) fn let_go(&self, slot: u32, usage: u32, side: usize) {
        if let Some((word, bit)) = bit(&self.held, slot, side) {
            unpoisoned(&self.gone).add(self.lanes, slot, usage, side);
            word.fetch_and(!bit, Ordering::SeqCst);
        }
    }

    pub(crate) fn mapping(&self) -> Arc<Mapping> {
        self.mapping.clone()
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn lanes(&self) -> u32 {
        self.lanes
    }

    pub(crate) fn cells(&self) -> usize {
        self.cells
    }

    pub(crate) fn is_private(&self) -> bool {
        self.private
    }

    /// Frees the lane slot `slot` of a private arena if both ends are done with the lane with the use count `usage`.
    /// Does nothing for an arena that other processes have, too, nor if the slot was already freed after the lane.
    ///
    /// Two threads may find both ends done at the same time. Another lane may use the slot before the second thread
    /// calls this function. So the function reads the lane's words under the lock of the free slots, and only if the
    /// words still belong to the lane with this use count.
    pub(crate) fn give_back(&self, slot: u32, usage: u32) {
        if self.private
            && let Some(memory) = self.lane(slot)
        {
            let mut freed = unpoisoned(&self.freed);
            if freed.was_given_back(slot, usage) || !memory.take_if_unused() {
                return;
            }
            if !freed.unread.is_empty() && freed.unread.remove(&slot) {
                drop(freed);
                let left = [0, 1].map(|side| self.token(slot, usage, side, true));
                mailbox::discard(left[0]..=left[1]);
                freed = unpoisoned(&self.freed);
            }
            freed.give_back(Name { arena: self.number, slot, usage });
        }
    }

    /// Notes that an end leaves the lane in `slot` without reading all sent and later messages of the other end. When
    /// both ends are done with the lane, the remaining attachments are discarded. The caller calls this before
    /// declaring that the end is done. Does nothing for an arena shared with other processes.
    pub(crate) fn expect_more(&self, slot: u32) {
        if self.private {
            unpoisoned(&self.freed).unread.insert(slot);
        }
    }

    /// Stores `next` (an arena and the name of a lane in it) as the next lane of the end on `side` of the lane with
    /// this slot and use count. `link` is the link to the process of the other end there. Returns an entry that the end
    /// will never read: the new entry if the end is closed or was sent away, otherwise an older entry with another
    /// lane. Returns `None` if there is no such entry.
    #[must_use]
    pub(crate) fn set_successor(
        &self,
        slot: u32,
        usage: u32,
        side: usize,
        next: (Arc<Self>, Name),
        link: &InUse,
        close: fn(Lane),
    ) -> Option<Successor> {
        let in_transit =
            InTransit::counted(!self.is_here(slot, side)).map(|in_transit| in_transit.with([Arc::clone(link)]));
        let (arena, name) = next;
        let next_side = name.side_from(side);
        let goes_on = GoesOn::note(
            self.token(slot, usage, 1 - side, true),
            arena.token(name.upright().slot, name.usage, 1 - next_side, true),
        );
        let successor = Successor { arena, name, link: link.clone(), usage, close, goes_on, _in_transit: in_transit };
        let mut successors = unpoisoned(&self.successors);
        if self.has_left(slot, usage, side) {
            return Some(successor);
        }
        let mut old = successors.insert((slot, side), successor);
        let again = |new: &Successor, old: &Successor| new.name == old.name && Arc::ptr_eq(&new.arena, &old.arena);
        let is_again = old.as_ref().is_some_and(|old| again(&successors[&(slot, side)], old));
        drop(successors);
        if let Some(Successor { goes_on, .. }) = old.take_if(|_| is_again) {
            // The new entry has the same note.
            std::mem::forget(goes_on);
        }
        old
    }

    /// Returns the locations, in this arena, of ends in transit to this process: ends with a next lane or sent handles
    /// stored in this process.
    pub(crate) fn slots_in_transit(self: &Arc<Self>) -> Vec<LaneSlot> {
        let lane_slot = |slot, usage, side| LaneSlot::new(self, slot, usage, side);
        let successors = unpoisoned(&self.successors);
        let mut slots: Vec<_> =
            successors.iter().map(|((slot, side), successor)| lane_slot(*slot, successor.usage, *side)).collect();
        drop(successors);
        let tokens = mailbox().tokens(self.local_tokens());
        slots.extend(tokens.into_iter().map(|token| {
            let (slot, side) = Self::reader_of(token);
            lane_slot(slot, (token >> 33) as u32, side)
        }));
        slots.retain(|lane_slot| !self.is_here(lane_slot.slot, lane_slot.side));
        slots
    }

    /// Returns the lane slot and the side of the end that reads the ring with this token. `token` must be a token for
    /// the mailbox of this process.
    fn reader_of(token: u128) -> (u32, usize) {
        ((token >> 1) as u32, 1 - (token & 1) as usize)
    }

    /// Discards everything stored for ends in this arena that may be in transit to this process: the next lanes of the
    /// ends, and the handles in this process's messages to the ends. The caller knows that no such end will arrive
    /// here.
    pub(crate) fn nobody_comes(&self) {
        let mut successors = unpoisoned(&self.successors);
        let gone: Vec<_> = successors.extract_if(|(slot, side), _| !self.is_here(*slot, *side)).collect();
        drop(successors);
        gone.into_iter().for_each(close_in_transit);
        let tokens = mailbox().tokens(self.local_tokens());
        for token in tokens {
            let (slot, side) = Self::reader_of(token);
            if !self.is_here(slot, side) {
                mailbox::discard(token..=token);
            }
        }
    }

    /// Removes and returns the stored next lane for the end on `side` of the lane in `slot`. Returns `None` if no next
    /// lane is stored.
    pub(crate) fn take_successor(&self, slot: u32, side: usize) -> Option<Successor> {
        unpoisoned(&self.successors).remove(&(slot, side))
    }

    /// Removes and returns the next lane that this process has stored for the end on `side` of the lane in `slot`;
    /// `None` if no next lane is stored. In an arena of this process's own, no next lane is stored for the end from now
    /// on: the end is closed, was sent away or never arrives.
    pub(crate) fn leave(&self, slot: u32, side: usize) -> Option<Successor> {
        let mut successors = unpoisoned(&self.successors);
        if let Some((word, bit)) = bit(&self.left, slot, side) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        successors.remove(&(slot, side))
    }

    /// Returns the token, in packets, of the ring written by the end on `side` of the lane with this slot and use
    /// count. If `local`, returns the token for the mailbox of this process. Otherwise it is the token for packets
    /// between processes; a process that does not know the arena cannot guess the token.
    pub(crate) fn token(&self, slot: u32, usage: u32, side: usize, local: bool) -> u128 {
        let lane = u128::from(usage) << 33 | u128::from(slot) << 1 | side as u128;
        if local { self.local_token | lane } else { self.token.wrapping_add(lane) }
    }

    /// Returns the range of all tokens, in the mailbox of this process, of rings of this arena.
    pub(crate) fn local_tokens(&self) -> RangeInclusive<u128> {
        self.local_token..=self.local_token | LANES_OF_ONE
    }

    /// Clears the memory of the lane slot that the lane `name` used last, for a new lane. Returns the name of the new
    /// lane, which has the next use count.
    fn renew(&self, name: Name) -> Name {
        for (word, bit) in [0, 1].into_iter().filter_map(|side| bit(&self.left, name.slot, side)) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
        self.lane(name.slot).expect("a lane of this arena").clear();
        Name { usage: name.usage.wrapping_add(1), ..name }
    }

    /// Returns the token of this arena itself (not of a ring) in the announcing packet.
    pub(crate) fn own_token(&self) -> u128 {
        self.token
    }
}

/// Returns words of 32 bits with room for one bit for each of the two ends of `lanes` lanes; all bits are 0.
fn bits(lanes: u32) -> Box<[AtomicU32]> {
    (0..(2 * lanes as usize).div_ceil(32)).map(|_| AtomicU32::new(0)).collect()
}

/// Returns the word in `bits` with the bit of the end on `side` of the lane slot `slot`, and the mask of the bit.
/// Returns `None` if `bits` has no such word.
fn bit(bits: &[AtomicU32], slot: u32, side: usize) -> Option<(&AtomicU32, u32)> {
    let bit = 2 * slot as usize + side;
    Some((bits.get(bit / 32)?, 1 << (bit % 32)))
}

/// Closes an end in transit to this process that will never arrive, in the stored next lane `successor`. There the
/// other end sees *peer closed*.
fn close_in_transit(((_, side), successor): ((u32, usize), Successor)) {
    let Successor { arena, name, link, close, .. } = successor;
    if let Some(lane) = Lane::in_arena(&arena, name.upright(), name.side_from(side), link, Some(Link::own())) {
        close(lane);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if !self.private && !self.born.is_elsewhere() {
            // No lane of this arena is left in this process, so no thread will look an entry up.
            std::mem::take(&mut *unpoisoned(&self.successors)).into_iter().for_each(close_in_transit);
            // Discards the attachments sent by an end in this process to a missing other end, whose source broke the
            // link.
            mailbox::discard(self.local_tokens());
        }
    }
}

/// Returns a number for an arena: a new number at each call, counted from 1 in this process.
fn next_number() -> u64 {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Returns the lowest token of an arena's rings in the mailbox of this process. The token is `number`, drawn by this
/// process for the arena, shifted left by [`LANE_BITS`].
fn local_token(number: u64) -> u128 {
    u128::from(number) << LANE_BITS
}

/// The number of low bits of a local token (for the mailbox of this process) for the lane and the side within the
/// arena. Some of these bits are spare.
const LANE_BITS: u32 = 72;

/// The mask of the low bits of a local token (for the mailbox of this process): they name a lane and a side
/// within the arena.
const LANES_OF_ONE: u128 = (1 << LANE_BITS) - 1;

/// An arena of this process's own, with the descriptor and the notes for announcing the arena.
pub(crate) struct Made {
    pub(crate) arena: Arc<Arena>,
    /// The descriptor of the arena's memory, to be sent with an announcement. `None` for a private arena, and once the
    /// arena was announced to both its processes.
    pub(crate) fd: Option<OwnedFd>,
    /// For the first and the second process of the arena: whether the arena was announced to the process.
    pub(crate) announced: [bool; 2],
    /// The number of lane slots used so far. The slots from this index on were never used.
    unused: u32,
    /// The number of lanes made in the arena so far.
    made: u64,
}

impl Made {
    /// Creates an arena with `lanes` lanes and `cells` cells for each ring. If `private`, only this process has the
    /// memory. Fails if the memory or the random token cannot be had.
    pub(crate) fn new(lanes: u32, cells: usize, private: bool) -> Result<Self, Error> {
        let number = next_number();
        let len = lane_size(cells) * lanes as usize;
        let (Shareable { mapping, fd }, token) = if private {
            // The packets of a private arena never leave the process.
            (Shareable { mapping: Mapping::private(len)?, fd: None }, 0)
        } else {
            let (mapping, fd) = Mapping::shared("strait-lanes", len)?;
            (Shareable { mapping, fd: Some(fd) }, crate::os::random_token()?)
        };
        let arena = Arc::new(Arena {
            born: Born::here(),
            number,
            token,
            local_token: local_token(number),
            mapping,
            lanes,
            cells,
            private,
            _charge: None,
            held: Box::default(),
            gone: Mutex::default(),
            left: bits(lanes),
            successors: Mutex::default(),
            freed: Mutex::default(),
        });
        Ok(Self { arena, fd, announced: [false; 2], unused: 0, made: 0 })
    }

    /// Notes that a lane was made in the arena, and that both processes of the arena know the arena.
    pub(crate) fn was_taken(&mut self) {
        self.made += 1;
    }

    /// Returns whether this process has a lane of the arena, or an entry for such a lane.
    fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.arena) > 1 || !unpoisoned(&self.arena.successors).is_empty()
    }

    /// Returns the packet that ends the making of lanes in this arena.
    pub(crate) fn retirement(&self) -> Packet {
        Packet::Retire { number: self.arena.number, lanes: self.made }
    }

    /// Takes the next lane slot that no lane has used yet, and populates the slot's memory. Returns the name of the
    /// first lane there. Returns `None` if every slot has been used.
    pub(crate) fn take(&mut self) -> Option<Name> {
        let slot = self.unused;
        if slot == self.arena.lanes {
            return None;
        }
        // Populates all pieces of memory first needed by this lane at once, which is faster than a page fault for each
        // page.
        let size = lane_size(self.arena.cells);
        let begin = (slot as usize * size).next_multiple_of(PIECE);
        let end = (slot as usize + 1) * size;
        if begin < end {
            self.arena.mapping.populate(begin, (end - begin).next_multiple_of(PIECE));
        }
        self.unused += 1;
        Some(Name { arena: self.arena.number, slot, usage: 0 })
    }
}

/// The maker of lanes between two given processes: this process's arenas for the two, and the lanes in use there.
pub(crate) struct Maker {
    /// The link to one of the two processes of the lanes. The link to the other process holds this `Maker`.
    pub(crate) other: Weak<Link>,
    /// The arenas of many lanes. (The processes of an arena with one lane forget it by themselves, and so does the
    /// maker.)
    arenas: Vec<Made>,
    /// The lanes in arenas that are not private, with each lane in use at the maker's last check. The lane checked or
    /// taken longest ago is in front.
    lent: VecDeque<Lent>,
    /// The introduction by which this process connected the two processes of the lanes; `None` if the two needed no
    /// introduction.
    pub(crate) introduction: Option<Introduction>,
    /// Arenas of one lane that were announced to only one of the two processes: one arena at most for each number of
    /// cells. The lane was not made.
    half_announced: Vec<Made>,
    /// Whether this maker, seldom used, has forgotten its arenas before.
    pub(crate) has_forgotten: bool,
}

/// A lane that was in use at the maker's last check: the index of the arena in the maker, the lane slot and the use
/// count.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lent {
    arena: u32,
    slot: u32,
    usage: u32,
}

/// An introduction: a socket by which this process connects two other processes without a link.
pub(crate) struct Introduction {
    pub(crate) number: u64,
    /// The two ends of the introduction's socket, one for each process; `None` once sent.
    pub(crate) sockets: [Option<HalfForPeer>; 2],
}

impl Maker {
    pub(crate) fn with(other: Weak<Link>) -> Self {
        Self {
            other,
            arenas: Vec::new(),
            lent: VecDeque::new(),
            introduction: None,
            half_announced: Vec::new(),
            has_forgotten: false,
        }
    }

    /// Takes a free lane in an arena of many lanes, and returns the arena and the name of the lane. If no lane is found
    /// free, creates a new arena, or returns `None` if `may_create` is not set. `private` says whether only this
    /// process has the arena's memory.
    pub(crate) fn take(&mut self, private: bool, may_create: bool) -> Result<Option<(&mut Made, Name)>, Error> {
        let (index, name) = match self.find(private) {
            Some(found) => found,
            None if may_create => {
                let size = (FIRST << (2 * self.arenas.len().min(8))).min(LARGEST);
                self.arenas.push(Made::new((size / lane_size(SMALL)) as u32, SMALL, private)?);
                let index = self.arenas.len() - 1;
                (index, self.arenas[index].take().expect("a new arena has lanes"))
            }
            None => return Ok(None),
        };
        if !private {
            self.lent.push_back(Lent { arena: index as u32, slot: name.slot, usage: name.usage });
        }
        Ok(Some((&mut self.arenas[index], name)))
    }

    fn find(&mut self, private: bool) -> Option<(usize, Name)> {
        if private {
            for (index, made) in self.arenas.iter().enumerate().rev() {
                let freed = unpoisoned(&made.arena.freed).names.pop();
                if let Some(name) = freed {
                    return Some((index, made.arena.renew(name)));
                }
            }
        }
        if let Some(last) = self.arenas.len().checked_sub(1)
            && let Some(name) = self.arenas[last].take()
        {
            return Some((last, name));
        }
        for _ in 0..LOOKS.min(self.lent.len()) {
            let lent = self.lent.pop_front()?;
            let arena = &self.arenas[lent.arena as usize].arena;
            if arena.lane(lent.slot).is_some_and(LaneMemory::take_if_unused) {
                let name = Name { arena: arena.number, slot: lent.slot, usage: lent.usage };
                return Some((lent.arena as usize, arena.renew(name)));
            }
            self.lent.push_back(lent);
        }
        None
    }

    /// Makes a lane in an arena of its own, with `cells` cells for each ring, and returns the arena and the name of the
    /// lane. `announce` announces the arena to the two processes of the lane. If only one of the two could be told, the
    /// maker keeps the arena for the next lane with as many cells, and announces that arena to the other process then.
    pub(crate) fn make_single(
        &mut self,
        cells: usize,
        private: bool,
        announce: impl FnOnce(&mut Made) -> Result<(), Error>,
    ) -> Result<(Arc<Arena>, Name), Error> {
        let mut made = match self.half_announced.iter().position(|made| made.arena.cells == cells) {
            Some(index) => self.half_announced.swap_remove(index),
            None => Made::new(1, cells, private)?,
        };
        if let Err(error) = announce(&mut made) {
            if made.announced != [false; 2] {
                self.half_announced.push(made);
            }
            return Err(error);
        }
        let name = made.take().expect("one lane");
        Ok((made.arena, name))
    }

    /// Forgets the arenas, and returns them to be retired. The processes of the lanes keep the memory. Forgets nothing
    /// if a lane of the arenas is in this process: then the memory has to stay here, too.
    pub(crate) fn forget_arenas(&mut self) -> Vec<Made> {
        if self.arenas.iter().any(Made::is_in_use) {
            return Vec::new();
        }
        self.has_forgotten = true;
        self.lent.clear();
        std::mem::take(&mut self.arenas)
    }

    /// Ends the maker. Returns its arenas of many lanes, to be retired, and its arenas that were announced to only one
    /// of the two processes.
    pub(crate) fn into_arenas(self) -> [Vec<Made>; 2] {
        [self.arenas, self.half_announced]
    }

    /// Takes back the lane `name`, so that the lane is free again. This lane must be the last lane taken, and must not
    /// have been announced to any process.
    pub(crate) fn put_back(&mut self, name: Name) {
        if let Some(lent) = self.lent.back() {
            let memory = self.arenas[lent.arena as usize].arena.lane(name.slot);
            memory.expect("a lane of this arena").set_unused();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a new arena with one lane in private memory, and three views of the lane: of the first end at the
    /// source, of the first end at the destination, and of the other end. The first end is in transit.
    fn ends() -> (Made, [Lane; 3]) {
        let mut made = Made::new(1, SMALL, true).unwrap();
        let name = made.take().unwrap();
        let lane = |side| Lane::in_arena(&made.arena, name, side, Link::own(), None).unwrap();
        let (moved, claimed, other) = (lane(0), lane(0), lane(1));
        moved.set_moving();
        (made, [moved, claimed, other])
    }

    /// Shows that a maker keeps an arena with one lane that was announced to only one process, and takes no lane from
    /// the arena but after it was announced to the other process. No arena with one lane is taken from a second time.
    #[test]
    fn a_half_announced_arena_is_used_once_it_was_announced_to_both() {
        let mut maker = Maker::with(Weak::new());
        let mut numbers = Vec::new();
        for told in [[true, false], [true, false], [true, true], [false, false], [false, false], [true, true]] {
            let made = maker.make_single(SMALL, false, |made| {
                numbers.push(made.arena.number());
                made.announced = told;
                if told[1] { Ok(()) } else { Err(Error::WouldBlock) }
            });
            assert_eq!(made.is_ok(), told[1]);
            assert_eq!(maker.half_announced.len(), usize::from(told[0] && !told[1]));
            assert!(maker.take(false, false).unwrap().is_none());
        }
        let [first, again, then, fourth, fifth, last] = numbers[..] else { panic!("{numbers:?}") };
        assert_eq!((again, then), (first, first));
        assert!(first < fourth && fourth < fifth && fifth < last);
    }

    fn is_free(made: &Made) -> bool {
        let freed = unpoisoned(&made.arena.freed);
        assert!(freed.names.len() <= 1);
        !freed.names.is_empty()
    }

    /// Shows that a lane slot is freed once its two ends and the source of a transfer are all done, in whatever order,
    /// and not before. The destination of an end may be done before the source has handed the end over.
    #[test]
    fn a_slot_is_free_whoever_is_done_with_it_last() {
        for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1], [2, 1, 0]] {
            let (made, [moved, claimed, other]) = ends();
            let mut ends = [Some(moved), Some(claimed), Some(other)];
            for (n, who) in order.into_iter().enumerate() {
                assert!(!is_free(&made), "{order:?}");
                let end = ends[who].take().unwrap();
                if who == 0 {
                    end.hand_over();
                }
                drop(end);
                assert_eq!(is_free(&made), n == 2, "{order:?}");
            }
        }
    }

    /// Shows that the slot of an idle end's next lane is freed, if the end is dropped before going there, after the
    /// other end.
    #[test]
    fn a_slot_that_an_end_never_came_to_is_free_once_that_end_is_dropped() {
        let mut made = Made::new(2, SMALL, true).unwrap();
        let names = [made.take().unwrap(), made.take().unwrap()];
        let lane = |nth: usize, side| Lane::in_arena(&made.arena, names[nth], side, Link::own(), None).unwrap();
        let (idle, moved, other) = (lane(0, 0), lane(0, 1), lane(1, 1));
        moved.store_successor(&other, &Link::own(), |_| unreachable!("the end never was in transit"));
        drop(other);
        assert!(!is_free(&made));
        drop(idle);
        assert!(is_free(&made));
        drop(moved);
        assert_eq!(unpoisoned(&made.arena.freed).names.len(), 2);
    }

    /// Shows that the search for ends in transit finds the next lane of an end, whether the end changes sides there or
    /// not.
    #[test]
    fn the_next_lane_of_an_end_in_transit_is_found_on_either_side() {
        for side in [0, 1] {
            let mut made = Made::new(2, SMALL, true).unwrap();
            let names = [made.take().unwrap(), made.take().unwrap()];
            let lane = |nth: usize, side| Lane::in_arena(&made.arena, names[nth], side, Link::own(), None).unwrap();
            let (idle, moved) = (lane(0, 0), lane(0, 1));
            let (fresh, next) = (lane(1, side), lane(1, 1 - side));
            moved.store_successor(&fresh, &Link::own(), |_| unreachable!("the end never was in transit"));
            let (found, _) = idle.local_slot().unwrap().successor().unwrap();
            let next = next.local_slot().unwrap();
            assert_eq!((found.key(), found.token_in()), (next.key(), next.token_in()), "{side}");
        }
    }

    #[test]
    fn a_slot_of_two_that_were_handed_to_each_other_is_free_too() {
        let (made, [one, claimed, other]) = ends();
        let far = Lane::in_arena(&made.arena, other.name(), 1, Link::own(), None).unwrap();
        drop((claimed, other));
        assert!(!is_free(&made));
        one.hand_over_to_both(&far);
        assert!(is_free(&made));
        drop((one, far));
        assert!(is_free(&made));
    }
}
