//! Arenas: memory for many lanes between the same two processes.
//!
//! Whoever makes lanes gives them out of arenas of its own, so that a lane costs no system call, no descriptor and no
//! mapping. An arena holds lanes between two processes only, of which its maker may be one, both, or neither; so what a
//! process can scribble on is only what it could disturb anyway.
//!
//! A place is used again once both sides say that they are done with it. That is a claim too: a process that lies about it
//! disturbs channels of the same two processes only.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::ops::RangeInclusive;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, Weak};

use super::{Lane, Name};
use crate::error::Error;
use crate::link::reach::Away;
use crate::link::{InUse, Link};
use crate::os::fork::Born;
use crate::quota::Charge;
use crate::ring::MIN_CELLS;
use crate::shm::{LaneMemory, Layout, Mapping, Shareable, Sizes};
use crate::sync::unpoisoned;

/// Bytes of the first arena of a kind; each one after it is four times larger.
const FIRST: usize = 16 << 10;

/// Bytes of the largest.
const LARGEST: usize = 4 << 20;

/// Cells of the largest rings that a peer may claim to have; larger are no rings of ours.
pub(crate) const MAX_CELLS: usize = 1 << 24;

/// Bytes of an arena that are taken from the kernel at a time.
const PIECE: usize = 64 << 10;

/// What sizes of memory may be rounded up to.
const PAGE: usize = 4096;

/// Places looked at before a new arena is made.
const LOOKS: usize = 16;

/// Cells of the rings in an arena of many lanes.
pub(crate) const SMALL: usize = MIN_CELLS;

/// Memory that holds lanes.
pub(crate) struct Arena {
    born: Born,
    number: u64,
    token: u128,
    /// What its lanes are named by while both ends are here. A peer does not choose that, or it could choose what names the
    /// rings of others.
    token_within: u128,
    mapping: Arc<Mapping>,
    lanes: u32,
    cells: usize,
    layout: Layout,
    private: bool,
    /// For the lanes of an arena that a peer made.
    _charge: Option<Charge>,
    /// A bit for each end of its lanes: whether it is here. Two ends of the same side would write to the same memory. For
    /// arenas that a peer made.
    held: Box<[AtomicU32]>,
    /// For arenas that a peer made: with which use of its place each end was here last that is no more. It cannot come again.
    gone: Mutex<HashMap<(u32, usize), u32>>,
    /// For arenas of our own, a bit for each end: whether it has been here, or will never be. Nobody is told there any more where the
    /// other end goes on; the link that this leads to may be what keeps the arena. Written to under the lock of `successors`.
    left: Box<[AtomicU32]>,
    /// Where an end goes on whose other end was moved by this very process, by its place and side: what another process
    /// can write to is not asked about it.
    successors: Mutex<HashMap<(u32, usize), Successor>>,
    /// Places that can be used again, if both ends of its lanes are always here and so know.
    freed: Mutex<Freed>,
}

/// Places of an arena that can be used again.
#[derive(Default)]
struct Freed {
    /// The last ones first: they are still in the caches.
    names: Vec<Name>,
    /// Places that will be free, and where one end has not read all that the other one has sent or may still send.
    unread: HashSet<u32>,
    /// By its number, after how many uses each place was free last.
    uses: Vec<u32>,
}

impl Freed {
    /// Whether a place was free already after this use of it.
    fn was_given_back(&self, slot: u32, usage: u32) -> bool {
        self.uses.get(slot as usize).is_some_and(|uses| uses.wrapping_sub(usage).cast_signed() > 0)
    }

    /// Makes it free.
    fn give_back(&mut self, name: Name) {
        let at = name.slot as usize;
        if self.uses.len() <= at {
            self.uses.resize(at + 1, 0);
        }
        self.uses[at] = name.usage.wrapping_add(1);
        self.names.push(name);
    }
}

/// A lane that this process has made for one of its own ends.
pub(crate) struct Successor {
    pub(crate) arena: Arc<Arena>,
    /// With what it says about sides.
    pub(crate) name: Name,
    /// To the process that the other end goes to.
    pub(crate) link: InUse,
    /// How often its own place was used before.
    usage: u32,
    _away: Option<Away>,
}

/// The place of an end in a lane of this process to itself.
pub(crate) struct Place {
    arena: Arc<Arena>,
    slot: u32,
    usage: u32,
    side: usize,
}

impl Place {
    pub(crate) fn new(arena: &Arc<Arena>, slot: u32, usage: u32, side: usize) -> Self {
        Self { arena: arena.clone(), slot, usage, side }
    }

    /// The same for the same place.
    pub(crate) fn key(&self) -> (*const Arena, u32, usize) {
        (Arc::as_ptr(&self.arena), self.slot, self.side)
    }

    /// Whether it was free after this use of it.
    #[cfg(test)]
    pub(crate) fn was_given_back(&self) -> bool {
        unpoisoned(&self.arena.freed).was_given_back(self.slot, self.usage)
    }

    /// Where its end goes on, if it was told, and the link to who holds the other end there.
    pub(crate) fn successor(&self) -> Option<(Self, Arc<Link>)> {
        let successors = unpoisoned(&self.arena.successors);
        let Successor { arena, name, link, .. } = successors.get(&(self.slot, self.side))?;
        let side = name.side_from(self.side);
        Some((Self::new(arena, name.upright().slot, name.usage, side), Arc::clone(link)))
    }

    /// What names that which is left for its end within this process.
    pub(crate) fn token_in(&self) -> u128 {
        self.arena.token(self.slot, self.usage, 1 - self.side, true)
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena").field("number", &self.number).field("lanes", &self.lanes).finish_non_exhaustive()
    }
}

/// How many bytes memory can have in which a peer has made so many lanes of so many cells; `None` if there are no such lanes.
pub(crate) fn sizes(lanes: u32, cells: u64, layout: Layout) -> Option<Sizes> {
    let cells = usize::try_from(cells).ok().filter(|cells| is_count(*cells))?;
    let len = layout.lane_size(cells).checked_mul(lanes as usize).filter(|len| *len > 0)?;
    Some(len..=len.checked_next_multiple_of(PAGE)?)
}

/// Whether a ring can have so many cells.
fn is_count(cells: usize) -> bool {
    (MIN_CELLS..=MAX_CELLS).contains(&cells) && cells.is_power_of_two()
}

impl Arena {
    /// An arena that a peer made; `None` if its memory is too small for what it is said to hold.
    pub(crate) fn received(
        number: u64,
        token: u128,
        mapping: Arc<Mapping>,
        lanes: u32,
        cells: usize,
        layout: Layout,
        charge: Option<Charge>,
    ) -> Option<Self> {
        let fits =
            is_count(cells) && lanes > 0 && layout.lane_size(cells).checked_mul(lanes as usize)? <= mapping.len();
        fits.then(|| Self {
            born: Born::here(),
            number,
            token,
            token_within: token_within(next_number()),
            mapping,
            lanes,
            cells,
            layout,
            private: false,
            _charge: charge,
            held: bits(lanes),
            gone: Mutex::default(),
            left: Box::default(),
            successors: Mutex::default(),
            freed: Mutex::default(),
        })
    }

    /// The memory of one of its lanes, if there are so many.
    pub(crate) fn lane(&self, slot: u32) -> Option<LaneMemory<'_>> {
        if slot >= self.lanes {
            return None;
        }
        LaneMemory::new(&self.mapping, slot as usize * self.layout.lane_size(self.cells), self.cells, self.layout)
    }

    /// Notes that the end of this side is here. False if one is already, or was with this use of the place.
    pub(crate) fn hold(&self, slot: u32, usage: u32, side: usize) -> bool {
        let gone = unpoisoned(&self.gone);
        gone.get(&(slot, side)) != Some(&usage)
            && bit(&self.held, slot, side).is_none_or(|(word, bit)| word.fetch_or(bit, Ordering::SeqCst) & bit == 0)
    }

    /// Whether it is, as far as that is known: of an arena of our own it is taken to be.
    pub(crate) fn is_here(&self, slot: u32, side: usize) -> bool {
        bit(&self.held, slot, side).is_none_or(|(word, bit)| word.load(Ordering::SeqCst) & bit != 0)
    }

    /// Whether it was with this use of the place, or will never be, as far as that is known: of an arena of a peer's it may
    /// come once.
    pub(crate) fn has_left(&self, slot: u32, usage: u32, side: usize) -> bool {
        match bit(&self.left, slot, side) {
            Some((word, bit)) => word.load(Ordering::SeqCst) & bit != 0,
            None => unpoisoned(&self.gone).get(&(slot, side)) == Some(&usage),
        }
    }

    /// It is no longer here. To be called before its maker is told so, who may then use the place anew.
    pub(crate) fn let_go(&self, slot: u32, usage: u32, side: usize) {
        if let Some((word, bit)) = bit(&self.held, slot, side) {
            unpoisoned(&self.gone).insert((slot, side), usage);
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

    /// An end is done with its lane; if the other is too, and both are always here, the place is free.
    ///
    /// Where two threads find that at once, one of them may be late: the place may be another lane's by then, or have been.
    /// So the words are looked at only under the lock, and only if they still are those of this use.
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
                Link::discard_within(left[0]..=left[1]);
                freed = unpoisoned(&self.freed);
            }
            freed.give_back(Name { arena: self.number, slot, usage });
        }
    }

    /// An end goes that has not read all that the other one has sent, or may still send: when both are done, what is left
    /// of that is let go of. To be called before this one is.
    pub(crate) fn expect_more(&self, slot: u32) {
        if self.private {
            unpoisoned(&self.freed).unread.insert(slot);
        }
    }

    /// Says where the end of this side goes on: in this lane, to the process at this link. What nobody will ask for comes
    /// back: this, if that end is gone; or what was said before.
    #[must_use]
    pub(crate) fn set_successor(
        &self,
        slot: u32,
        usage: u32,
        side: usize,
        next: (Arc<Self>, Name),
        link: &InUse,
    ) -> Option<Successor> {
        let away = Away::counted(!self.is_here(slot, side)).map(|away| away.with([Arc::clone(link)]));
        let successor = Successor { arena: next.0, name: next.1, link: link.clone(), usage, _away: away };
        let mut successors = unpoisoned(&self.successors);
        if self.has_left(slot, usage, side) {
            return Some(successor);
        }
        let old = successors.insert((slot, side), successor);
        let again = |new: &Successor, old: &Successor| new.name == old.name && Arc::ptr_eq(&new.arena, &old.arena);
        let is_again = old.as_ref().is_some_and(|old| again(&successors[&(slot, side)], old));
        drop(successors);
        old.filter(|_| !is_again)
    }

    /// The places of ends that are not here, and for which something was left: where they go on, or handles.
    pub(crate) fn places_of_absent(self: &Arc<Self>) -> Vec<Place> {
        let place = |slot, usage, side| Place::new(self, slot, usage, side);
        let told = unpoisoned(&self.successors);
        let mut places: Vec<_> =
            told.iter().map(|((slot, side), successor)| place(*slot, successor.usage, *side)).collect();
        drop(told);
        let tokens = Link::own().stash().tokens(self.tokens_within());
        places.extend(tokens.into_iter().map(|token| {
            let (slot, side) = Self::reader_of(token);
            place(slot, (token >> 33) as u32, side)
        }));
        places.retain(|place| !self.is_here(place.slot, place.side));
        places
    }

    /// Where the end is that gets what comes by this name within this process.
    fn reader_of(token: u128) -> (u32, usize) {
        ((token >> 1) as u32, 1 - (token & 1) as usize)
    }

    /// Ends that are not here will not come: what was left here for them is let go of.
    pub(crate) fn nobody_comes(&self) {
        let mut successors = unpoisoned(&self.successors);
        let gone: Vec<_> = successors.extract_if(|(slot, side), _| !self.is_here(*slot, *side)).collect();
        drop(successors);
        gone.into_iter().for_each(close_absent);
        let own = Link::own();
        let tokens = own.stash().tokens(self.tokens_within());
        for token in tokens {
            let (slot, side) = Self::reader_of(token);
            if !self.is_here(slot, side) {
                own.discard_stashed(token);
            }
        }
    }

    /// Where the end of this side goes on.
    pub(crate) fn take_successor(&self, slot: u32, side: usize) -> Option<Successor> {
        unpoisoned(&self.successors).remove(&(slot, side))
    }

    /// The same, of an end that asks no more: it is gone, or never comes.
    pub(crate) fn leave(&self, slot: u32, side: usize) -> Option<Successor> {
        let mut successors = unpoisoned(&self.successors);
        if let Some((word, bit)) = bit(&self.left, slot, side) {
            word.fetch_or(bit, Ordering::SeqCst);
        }
        successors.remove(&(slot, side))
    }

    /// What names a lane's ring in packets: nobody can guess it who does not know the arena. In packets of this process to
    /// itself (`within`) it is another name.
    pub(crate) fn token(&self, slot: u32, usage: u32, side: usize, within: bool) -> u128 {
        let lane = u128::from(usage) << 33 | u128::from(slot) << 1 | side as u128;
        if within { self.token_within | lane } else { self.token.wrapping_add(lane) }
    }

    /// All such names within this process.
    pub(crate) fn tokens_within(&self) -> RangeInclusive<u128> {
        self.token_within..=self.token_within | LANES_OF_ONE
    }

    /// A place that was used, as good as new.
    fn renew(&self, name: Name) -> Name {
        for (word, bit) in [0, 1].into_iter().filter_map(|side| bit(&self.left, name.slot, side)) {
            word.fetch_and(!bit, Ordering::SeqCst);
        }
        self.lane(name.slot).expect("a lane of this arena").clear();
        Name { usage: name.usage.wrapping_add(1), ..name }
    }

    /// What names the arena itself.
    pub(crate) fn own_token(&self) -> u128 {
        self.token
    }
}

/// A bit for each end of so many lanes.
fn bits(lanes: u32) -> Box<[AtomicU32]> {
    (0..(2 * lanes as usize).div_ceil(32)).map(|_| AtomicU32::new(0)).collect()
}

/// The one of this end: the word that it is in, and which.
fn bit(bits: &[AtomicU32], slot: u32, side: usize) -> Option<(&AtomicU32, u32)> {
    let bit = 2 * slot as usize + side;
    Some((bits.get(bit / 32)?, 1 << (bit % 32)))
}

/// An end that is told where it goes on, but does not come: the other one sees it closed.
fn close_absent(((_, side), successor): ((u32, usize), Successor)) {
    let Successor { arena, name, link, .. } = successor;
    if let Some(lane) = Lane::in_arena(&arena, name.upright(), name.side_from(side), link, Some(Link::own())) {
        crate::channel::close_absent(lane);
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if !self.private && !self.born.is_elsewhere() {
            // Nobody here has lanes of it any more, and so nobody will ask.
            std::mem::take(&mut *unpoisoned(&self.successors)).into_iter().for_each(close_absent);
            // What one end here sent to another that never came, as its mover broke the link.
            Link::discard_within(self.tokens_within());
        }
    }
}

/// A number that no other arena has that this process has made or knows of.
fn next_number() -> u64 {
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
    NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// What the lanes of an arena are named by within this process: above what names a lane in it.
fn token_within(number: u64) -> u128 {
    u128::from(number) << LANE_BITS
}

/// Bits of what names a lane in its arena, and room.
const LANE_BITS: u32 = 72;

/// The last lane there could be.
const LANES_OF_ONE: u128 = (1 << LANE_BITS) - 1;

/// An arena of ours, and what we still have to do about it.
pub(crate) struct Made {
    pub(crate) arena: Arc<Arena>,
    /// Its memory's descriptor, until both processes have been told of it.
    pub(crate) fd: Option<OwnedFd>,
    /// Which of the two have been.
    pub(crate) told: [bool; 2],
    /// Places that were never used yet begin here.
    unused: u32,
}

impl Made {
    /// A new arena with so many lanes of so many cells.
    pub(crate) fn new(lanes: u32, cells: usize, private: bool) -> Result<Self, Error> {
        let number = next_number();
        let layout = Layout::FIRST;
        let len = layout.lane_size(cells) * lanes as usize;
        let (Shareable { mapping, fd }, token) = if private {
            // Its packets never leave the process.
            (Shareable { mapping: Mapping::private(len)?, fd: None }, 0)
        } else {
            let (mapping, fd) = Mapping::shared("strait-lanes", len)?;
            (Shareable { mapping, fd: Some(fd) }, crate::os::random_token()?)
        };
        let arena = Arc::new(Arena {
            born: Born::here(),
            number,
            token,
            token_within: token_within(number),
            mapping,
            lanes,
            cells,
            layout,
            private,
            _charge: None,
            held: Box::default(),
            gone: Mutex::default(),
            left: bits(lanes),
            successors: Mutex::default(),
            freed: Mutex::default(),
        });
        Ok(Self { arena, fd, told: [false; 2], unused: 0 })
    }

    /// The name of a lane in it that is new.
    pub(crate) fn take(&mut self) -> Option<Name> {
        let slot = self.unused;
        if slot == self.arena.lanes {
            return None;
        }
        // The pieces that this lane is the first in, all at once: that is faster than a page fault for each page.
        let size = self.arena.layout.lane_size(self.arena.cells);
        let begin = (slot as usize * size).next_multiple_of(PIECE);
        let end = (slot as usize + 1) * size;
        if begin < end {
            self.arena.mapping.populate(begin, (end - begin).next_multiple_of(PIECE));
        }
        self.unused += 1;
        Some(Name { arena: self.arena.number, slot, usage: 0 })
    }
}

/// Makes the lanes between two processes.
pub(crate) struct Maker {
    /// To the one process; the other keeps it.
    pub(crate) other: Weak<Link>,
    arenas: Vec<Made>,
    /// Lanes in use, as far as we know, those longest in use in front.
    lent: VecDeque<Lent>,
    /// Number of the link that introduced the two to each other through us, if neither is us.
    pub(crate) introduction: Option<Introduction>,
}

/// A lane in use: the arena that it is in, its place, and how often that was used before.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Lent {
    arena: u32,
    slot: u32,
    usage: u32,
}

/// A link that we made between two other processes.
pub(crate) struct Introduction {
    pub(crate) number: u64,
    /// The ends of its socket that were not sent yet, to the one and to the other.
    pub(crate) sockets: [Option<OwnedFd>; 2],
}

impl Maker {
    pub(crate) fn with(other: Weak<Link>) -> Self {
        Self { other, arenas: Vec::new(), lent: VecDeque::new(), introduction: None }
    }

    /// The name of a free lane, and its arena.
    pub(crate) fn take(&mut self, private: bool) -> Result<(&mut Made, Name), Error> {
        let (index, name) = match self.find(private) {
            Some(found) => found,
            None => {
                let size = (FIRST << (2 * self.arenas.len().min(8))).min(LARGEST);
                let lanes = (size / Layout::FIRST.lane_size(SMALL)) as u32;
                self.arenas.push(Made::new(lanes, SMALL, private)?);
                let index = self.arenas.len() - 1;
                (index, self.arenas[index].take().expect("a new arena has lanes"))
            }
        };
        if !private {
            self.lent.push_back(Lent { arena: index as u32, slot: name.slot, usage: name.usage });
        }
        Ok((&mut self.arenas[index], name))
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

    /// Takes back the lane that was taken last, which nobody was told of.
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

    /// A place in private memory, and the two ends of the lane there; of the first one also as its mover has it.
    fn ends() -> (Made, [Lane; 3]) {
        let mut made = Made::new(1, SMALL, true).unwrap();
        let name = made.take().unwrap();
        let lane = |side| Lane::in_arena(&made.arena, name, side, Link::own(), None).unwrap();
        let (moved, adopted, other) = (lane(0), lane(0), lane(1));
        moved.set_moving();
        (made, [moved, adopted, other])
    }

    fn is_free(made: &Made) -> bool {
        let freed = unpoisoned(&made.arena.freed);
        assert!(freed.names.len() <= 1);
        !freed.names.is_empty()
    }

    /// Whoever gets an end may be done with it before it is handed over.
    #[test]
    fn a_place_is_free_whoever_is_done_with_it_last() {
        for order in [[0, 1, 2], [1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1], [2, 1, 0]] {
            let (made, [moved, adopted, other]) = ends();
            let mut ends = [Some(moved), Some(adopted), Some(other)];
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

    #[test]
    fn a_place_of_two_that_were_handed_to_each_other_is_free_too() {
        let (made, [one, adopted, other]) = ends();
        let far = Lane::in_arena(&made.arena, other.name(), 1, Link::own(), None).unwrap();
        drop((adopted, other));
        assert!(!is_free(&made));
        one.hand_over_to_both(&far);
        assert!(is_free(&made));
        drop((one, far));
        assert!(is_free(&made));
    }
}
