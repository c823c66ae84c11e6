//! Lanes: the shared memory that carries one channel between the processes that hold its ends.
//!
//! A lane has two rings, one each way. [Arenas](arena) hold many of them. When an end moves to another process its
//! channel goes on in a fresh lane; an end follows the marks that say so, in each direction when it comes to them, so for
//! a while it may write in one lane and read in another.
//!
//! A lane that was made for an end on its way is **pending** until the end has been handed over: the end at the other
//! side regards the *mover* as its peer as long, and sees the channel closed if the mover dies before that. Then it
//! turns to the process that the end went to. One word in the lane, its *hand*, says how far that has come
//! ([`crate::ring::hand`]).

pub(crate) mod arena;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::error::Error;
use crate::link::{Hello, InUse, Link, UnderWay};
use crate::os::fault;
use crate::os::futex::Scope;
use crate::ring::hand::{self, Hand};
use crate::ring::{self, Memory};
use crate::shm::{LaneMemory, RingMemory};
use arena::{Arena, MAX_CELLS, Successor};

/// What a lane is called between two processes that know it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Name {
    /// Number of the arena, by its maker.
    pub(crate) arena: u64,
    /// Place in the arena.
    pub(crate) slot: u32,
    /// How often the place was used before.
    pub(crate) usage: u32,
}

impl Name {
    /// Bytes of it in a record.
    pub(crate) const SIZE: usize = 16;

    /// In the place: where a mark says so, the end that follows it changes sides. No arena has so many places.
    const FLIPPED: u32 = 1 << 31;

    /// The same, for an end that takes the other side there.
    pub(crate) fn flipped(self) -> Self {
        Self { slot: self.slot ^ Self::FLIPPED, ..self }
    }

    /// Without what it says about sides.
    pub(crate) fn upright(self) -> Self {
        Self { slot: self.slot & !Self::FLIPPED, ..self }
    }

    /// The side there of an end that comes from this side.
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

/// Where the rings of a lane are.
enum Place {
    /// In one place of an arena, used for so many times.
    Slot { arena: Arc<Arena>, slot: u32, usage: u32 },
    /// The first lane of a link.
    Halves(Box<Halves>),
}

/// A lane of which each side made the ring that it writes.
struct Halves {
    out: RingMemory,
    token: u128,
    /// The other side's, once its hello has come.
    inward: OnceLock<(RingMemory, u128)>,
}

/// A lane, as one of its two ends has it.
pub(crate) struct Lane {
    place: Place,
    /// Which of the two rings this end writes.
    side: AtomicU8,
    /// Lanes in a row, this one included, in which nothing was sent or received by this end.
    unused: AtomicU32,
    /// To the process that holds the other end, once that has been handed over; as long as we hold an end that is not
    /// handed over yet, to the process of the other.
    link: InUse,
    /// To the process that is handing over the other end.
    mover: Option<InUse>,
    /// Whether the other end is still on its way, as far as we know.
    pending: AtomicBool,
    /// The other end was given up, since its mover died.
    abandoned: AtomicBool,
    /// Its mover kept it after all.
    kept: AtomicBool,
    /// This end is on its way: the other one regards us as the mover.
    moving: AtomicBool,
    /// Whether this end has read all that was sent to it here, and nothing more can be.
    is_read: AtomicBool,
    /// Where this end goes on, whichever direction found out first.
    next: OnceLock<Arc<Lane>>,
    /// Held by the direction that is finding out: what a mark names may be told only once.
    finding: Mutex<()>,
}

impl fmt::Debug for Lane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lane").field("name", &self.name()).field("side", &self.side).finish_non_exhaustive()
    }
}

impl Lane {
    /// The first lane of a link, of which we made the ring that we write. Its side is known once the peer's hello is.
    pub(crate) fn first(link: InUse, out: RingMemory, token: u128) -> Self {
        Self::new(Place::Halves(Box::new(Halves { out, token, inward: OnceLock::new() })), 0, link, None)
    }

    fn new(place: Place, side: usize, link: InUse, mover: Option<InUse>) -> Self {
        Self {
            place,
            side: AtomicU8::new(side as u8),
            unused: AtomicU32::new(0),
            link,
            pending: AtomicBool::new(mover.is_some()),
            mover,
            abandoned: AtomicBool::new(false),
            kept: AtomicBool::new(false),
            moving: AtomicBool::new(false),
            is_read: AtomicBool::new(false),
            next: OnceLock::new(),
            finding: Mutex::new(()),
        }
    }

    /// The lane of this name in an arena, for an end of this side; `None` if there is none.
    pub(crate) fn in_arena(
        arena: &Arc<Arena>,
        name: Name,
        side: usize,
        link: InUse,
        mover: Option<InUse>,
    ) -> Option<Self> {
        arena.lane(name.slot)?;
        let place = Place::Slot { arena: arena.clone(), slot: name.slot, usage: name.usage };
        Some(Self::new(place, side, link, mover))
    }

    /// Its memory, if it is in an arena.
    fn memory(&self) -> Option<LaneMemory<'_>> {
        match &self.place {
            Place::Slot { arena, slot, .. } => arena.lane(*slot),
            Place::Halves(_) => None,
        }
    }

    /// Opens the first lane of a link, if the peer's half of it has come. Whether the lane is open.
    pub(crate) fn open(&self) -> Result<bool, Error> {
        let Place::Halves(halves) = &self.place else { return Ok(true) };
        if halves.inward.get().is_some() {
            return Ok(true);
        }
        match self.link.fetch_first(|stash| stash.take_hello())? {
            Some(hello) => self.open_with(hello).map(|()| true),
            // Another thread may have had it.
            None => Ok(halves.inward.get().is_some()),
        }
    }

    /// Opens it with the peer's half.
    pub(crate) fn open_with(&self, hello: Hello) -> Result<(), Error> {
        let Place::Halves(halves) = &self.place else { return Ok(()) };
        let cells = usize::try_from(hello.cells).ok().filter(|cells| *cells <= MAX_CELLS);
        let memory = cells.and_then(|cells| LaneMemory::new(&hello.ring, 0, cells, self.link.layout()));
        let ring = memory.ok_or(Error::BadPeer("a ring of impossible size"))?.ring(0);
        // Somebody must be first, and both must agree on who.
        self.side.store(u8::from(halves.token > hello.token), Ordering::Relaxed);
        let _ = halves.inward.set((ring, hello.token));
        Ok(())
    }

    /// What it is called; the first lane of a link has no name.
    pub(crate) fn name(&self) -> Name {
        match &self.place {
            Place::Slot { arena, slot, usage } => Name { arena: arena.number(), slot: *slot, usage: *usage },
            Place::Halves(_) => Name::default(),
        }
    }

    /// Which side this end is, 0 or 1. For the first lane of a link only known once it is open.
    pub(crate) fn side(&self) -> usize {
        usize::from(self.side.load(Ordering::Relaxed) & 1)
    }

    /// The ring that this end writes.
    pub(crate) fn out(&self) -> RingMemory {
        match &self.place {
            Place::Slot { arena, slot, .. } => arena.lane(*slot).expect("it was looked up").ring(self.side()),
            Place::Halves(halves) => halves.out.clone(),
        }
    }

    /// The ring that it reads, if the lane is open.
    pub(crate) fn inward(&self) -> Option<RingMemory> {
        match &self.place {
            Place::Slot { arena, slot, .. } => Some(arena.lane(*slot)?.ring(1 - self.side())),
            Place::Halves(halves) => Some(halves.inward.get()?.0.clone()),
        }
    }

    /// What names the ring that this end writes in packets. Where its mover keeps the other end after all, it is another
    /// one: it has to be known who has that.
    pub(crate) fn token_out(&self) -> u128 {
        match &self.place {
            Place::Slot { arena, slot, usage } => arena.token(*slot, *usage, self.side(), self.is_within()),
            Place::Halves(halves) => halves.token,
        }
    }

    /// The same for the ring that it reads.
    pub(crate) fn token_in(&self) -> u128 {
        match &self.place {
            Place::Slot { arena, slot, usage } => arena.token(*slot, *usage, 1 - self.side(), self.is_within()),
            Place::Halves(halves) => halves.inward.get().map_or(0, |(_, token)| *token),
        }
    }

    /// Whether it is the same lane, in the same memory, as the other end has it.
    pub(crate) fn is_opposite(&self, other: &Self) -> bool {
        match (&self.place, &other.place) {
            (Place::Slot { arena, slot, usage }, Place::Slot { arena: theirs, slot: place, usage: times }) => {
                Arc::ptr_eq(arena, theirs) && (slot, usage) == (place, times) && self.side() != other.side()
            }
            _ => false,
        }
    }

    /// Whether the other end is in this process, as it is now.
    fn is_within(&self) -> bool {
        self.is_pending();
        self.link().is_local()
    }

    /// Whether the peer may be running while we are: where it says on which CPU it is.
    pub(crate) fn peer_cpu(&self) -> Option<&AtomicU32> {
        match &self.place {
            Place::Slot { arena, slot, .. } => Some(arena.lane(*slot)?.cpu(1 - self.side())),
            Place::Halves(halves) => halves.inward.get().map(|(ring, _)| ring.cpu()),
        }
    }

    /// Where the peer says that it waits for room.
    pub(crate) fn peer_waiting(&self) -> Option<&AtomicU32> {
        match &self.place {
            Place::Slot { arena, slot, .. } => Some(arena.lane(*slot)?.waiting(1 - self.side())),
            Place::Halves(halves) => halves.inward.get().map(|(ring, _)| ring.waiting()),
        }
    }

    fn hand(&self) -> Option<&AtomicU32> {
        self.memory().map(LaneMemory::hand)
    }

    /// To the process that holds the other end, or will: where what needs the kernel is sent.
    pub(crate) fn link(&self) -> &InUse {
        match &self.mover {
            Some(mover) if self.kept.load(Ordering::Relaxed) => mover,
            _ => &self.link,
        }
    }

    /// The link on which to listen, to wake the peer, and to fetch what belongs to records: the mover's, while the other
    /// end is on its way.
    pub(crate) fn listen(&self) -> &InUse {
        match &self.mover {
            Some(mover) if self.is_pending() => mover,
            _ => self.link(),
        }
    }

    /// Who sleeps on words in its memory.
    pub(crate) fn scope(&self) -> Scope {
        match &self.place {
            Place::Slot { arena, .. } if arena.is_private() => Scope::Private,
            _ => Scope::Shared,
        }
    }

    /// Whether the other end is still on its way.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        self.pending.load(Ordering::Relaxed) && self.look_at_hand()
    }

    #[cold]
    fn look_at_hand(&self) -> bool {
        match self.hand().and_then(Hand::of) {
            Some(Hand::Mover) => return true,
            Some(Hand::Abandoned) => self.abandoned.store(true, Ordering::Relaxed),
            Some(Hand::Kept) => self.kept.store(true, Ordering::Relaxed),
            // Anything else is a peer's nonsense, and nothing to wait for.
            _ => {}
        }
        self.pending.store(false, Ordering::Release);
        false
    }

    /// Whether it was given up, by whichever of its ends, as its mover died before the other end was handed over. As far as is
    /// known: to be asked once it is not [pending](Self::is_pending).
    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// As if the other end of it had found that its mover is dead.
    #[cfg(test)]
    pub(crate) fn give_up(&self) {
        assert_eq!(self.hand().map(hand::abandon), Some(Some(Hand::Mover)));
    }

    /// Whether nothing more will come on this lane but what was committed.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        if self.mover.is_some() || self.abandoned.load(Ordering::Relaxed) {
            return self.is_given_up();
        }
        self.link.is_down()
    }

    #[cold]
    fn is_given_up(&self) -> bool {
        if self.is_pending()
            && self.mover.as_ref().is_some_and(|mover| mover.is_down())
            && let Some(Some(Hand::Mover)) = self.hand().map(hand::abandon)
        {
            self.abandoned.store(true, Ordering::Relaxed);
        }
        self.abandoned.load(Ordering::Relaxed) || (!self.is_pending() && self.link().is_down())
    }

    /// Asks the kernel whether the peer still lives.
    pub(crate) fn probe(&self) {
        self.listen().probe();
    }

    /// Why nothing more will come.
    pub(crate) fn reason(&self) -> Error {
        if self.listen().is_down() { self.listen().reason() } else { Error::PeerClosed }
    }

    /// From now on this end is on its way: we are the mover.
    pub(crate) fn set_moving(&self) {
        self.moving.store(true, Ordering::Relaxed);
        if let Some(memory) = self.memory() {
            memory.moving().store(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Relaxed)
    }

    /// The end was committed to another process: it is no longer ours, and the other end may turn to its new holder.
    pub(crate) fn hand_over(&self) {
        if let Place::Slot { arena, slot, usage } = &self.place {
            // Whoever has the end now is told by marks. Before the place can be another lane's.
            pass_by(arena.leave(*slot, self.side()), self.side(), Done::ByOthers);
            self.end_move(hand::hand_over::<RingMemory>);
            if self.link.is_local() {
                // Its other end waits until it is handed over, unless somebody wrote into its hand.
                discard_within(arena, *slot, *usage, self.side());
            }
        }
        self.side.fetch_or(GONE, Ordering::Relaxed);
    }

    /// The end could not be sent: we keep it, and the other end knows us as its peer.
    pub(crate) fn keep(&self) {
        self.end_move(hand::keep::<RingMemory>);
        self.moving.store(false, Ordering::Relaxed);
    }

    /// Two ends that stay where they are get each other: both were told of this lane, of which `other` is the end that is
    /// not this one. Neither is ours.
    pub(crate) fn hand_over_to_both(&self, other: &Self) {
        let Some(memory) = self.memory() else { return };
        fault::point("before two ends are handed to each other");
        hand::hand_over::<RingMemory>(memory.hand());
        self.wake_via(memory);
        other.wake_via(memory);
        self.is_moved_into(memory);
        self.disown();
        other.disown();
    }

    /// From here on it may be used for something else, once its two ends are done with it: they may be already.
    fn is_moved_into(&self, memory: LaneMemory<'_>) {
        fault::point("before a lane is free of its mover");
        memory.moving().store(0, Ordering::SeqCst);
        if let Place::Slot { arena, slot, usage } = &self.place
            && memory.is_unused()
        {
            arena.give_back(*slot, *usage);
        }
    }

    /// This end of it is not ours: whoever has it says so when it is done with it.
    pub(crate) fn disown(&self) {
        self.side.fetch_or(GONE, Ordering::Relaxed);
    }

    /// Wakes the other end if it sleeps as one whose peer is the mover.
    fn wake_via(&self, memory: LaneMemory<'_>) {
        for word in [memory.sleeping(self.side()), memory.waiting(1 - self.side())] {
            let how = hand::take_sleeper_if_via(word);
            crate::wake::waiter::wake(&self.link, self.scope(), word, how);
        }
    }

    /// Says what became of the end, and wakes the other one if it sleeps as one whose peer is the mover.
    fn end_move(&self, step: impl FnOnce(&AtomicU32) -> Option<Hand>) {
        let Some(memory) = self.memory() else { return };
        fault::point("before an end is handed over or kept");
        step(memory.hand());
        self.wake_via(memory);
        self.is_moved_into(memory);
    }

    /// How the sleeper of a word in this lane sleeps, if there is one that we can wake: it is ours to wake.
    #[inline]
    pub(crate) fn take_sleeper(&self, word: &AtomicU32) -> u32 {
        if word.load(Ordering::SeqCst) == 0 { 0 } else { self.take_that_sleeper(word) }
    }

    #[cold]
    fn take_that_sleeper(&self, word: &AtomicU32) -> u32 {
        fault::point("before a sleeper is taken");
        if self.moving.load(Ordering::Relaxed) { ring::take_sleeper(word) } else { hand::take_sleeper_unless_via(word) }
    }

    /// Nobody was told of it.
    pub(crate) fn unmake(&self) {
        self.side.fetch_or(GONE, Ordering::Relaxed);
        if let Some(memory) = self.memory() {
            memory.set_unused();
        }
        if let Place::Slot { arena, slot, usage } = &self.place {
            arena.give_back(*slot, *usage);
        }
    }

    /// The end on this side is ours from now on, as it was sent to us. False if the other end gave it up.
    pub(crate) fn adopt(&self) -> bool {
        fault::point("before an end is adopted");
        let adopted = self.hand().is_none_or(|word| hand::adopt(word) != Some(Hand::Abandoned));
        if !adopted {
            self.abandoned.store(true, Ordering::Relaxed);
        }
        adopted
    }

    /// Ready from the start: nobody is on the way.
    pub(crate) fn settle(&self) {
        if let Some(word) = self.hand() {
            hand::hand_over::<RingMemory>(word);
        }
    }

    /// Where the other end goes on, if it is in this process too: in the lane that this end was given.
    pub(crate) fn tell_successor(&self, fresh: &Lane, link: &InUse) {
        if let (Place::Slot { arena, slot, usage }, Place::Slot { arena: next, .. }) = (&self.place, &fresh.place)
            && self.listen().is_local()
        {
            // It asks, or takes this away when it goes; or it is still to come.
            let next = (next.clone(), self.name_for_other(fresh));
            let side = 1 - self.side();
            pass_by(arena.set_successor(*slot, *usage, side, next, link), side, Done::ByUs);
        }
    }

    /// What the other end of this lane is told of the lane that it goes on in, of which `fresh` is the end across from it.
    pub(crate) fn name_for_other(&self, fresh: &Lane) -> Name {
        if fresh.side() == self.side() { fresh.name() } else { fresh.name().flipped() }
    }

    /// The place of this end, if the other was in this process too.
    pub(crate) fn place_within(&self) -> Option<arena::Place> {
        match &self.place {
            Place::Slot { arena, slot, usage } => {
                self.link.is_local().then(|| arena::Place::new(arena, *slot, *usage, self.side()))
            }
            Place::Halves(_) => None,
        }
    }

    /// Whether the other end, if it is in this process too, is here and not on its way.
    pub(crate) fn is_other_here(&self) -> bool {
        match &self.place {
            Place::Slot { arena, slot, .. } => arena.is_here(*slot, 1 - self.side()),
            Place::Halves(_) => true,
        }
    }

    /// Whether the other end, though it is thought to be in this process too, will never read what was sent to it here.
    pub(crate) fn has_other_left(&self) -> bool {
        match &self.place {
            Place::Slot { arena, slot, usage } => arena.has_left(*slot, *usage, 1 - self.side()),
            Place::Halves(_) => false,
        }
    }

    /// The links that it uses.
    pub(crate) fn links(&self) -> impl Iterator<Item = &InUse> {
        [Some(&self.link), self.mover.as_ref()].into_iter().flatten()
    }

    /// Where its end goes on, if that was found out.
    pub(crate) fn found_next(&self) -> Option<&Arc<Self>> {
        self.next.get()
    }

    /// Its end goes on in this lane, which this process made for it.
    pub(crate) fn lead_to(&self, next: &Arc<Self>) {
        let _ = self.next.set(next.clone());
    }

    /// It does not go there after all. False if it was told so and has asked, or is gone.
    pub(crate) fn forget_successor(&self) -> bool {
        match &self.place {
            Place::Slot { arena, slot, .. } if self.listen().is_local() => {
                arena.take_successor(*slot, 1 - self.side()).is_some()
            }
            _ => true,
        }
    }

    /// Where this end goes on, as a mark of the peer's says. Whichever direction of the end comes there first looks it up;
    /// an error if the other was told otherwise.
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
                            return Err(Error::BadPeer("it moves without end"));
                        }
                        let found = Arc::new(self.find_next(name)?);
                        found.unused.store(unused, Ordering::Relaxed);
                        self.next.get_or_init(|| found).clone()
                    }
                }
            }
        };
        let is_that = next.name() == name.upright() && next.side() == name.side_from(self.side());
        if is_that { Ok(next) } else { Err(Error::BadPeer("its marks name different lanes")) }
    }

    /// An end of this lane was ended with an error, for the `first` time: that the peer broke the protocol is told.
    pub(crate) fn tell_of(&self, first: bool, error: Error) {
        if let Error::BadPeer(reason) = error
            && first
        {
            self.listen().ledger().broken(reason, false);
        }
    }

    /// This end has read all that was sent to it here, and nothing more can be.
    pub(crate) fn set_read(&self) {
        self.is_read.store(true, Ordering::Relaxed);
    }

    /// This end sends here no more, and what it has sent is counted until it was taken. False if all was.
    pub(crate) fn linger(&self, under_way: &Arc<UnderWay>) -> bool {
        let lingers = self.link().linger(under_way, self.inward());
        if lingers {
            self.side.fetch_or(LINGERING, Ordering::Relaxed);
        }
        lingers
    }

    /// Something was sent or received here.
    pub(crate) fn set_used(&self) {
        self.unused.store(0, Ordering::Relaxed);
    }

    fn find_next(&self, name: Name) -> Result<Lane, Error> {
        // Only then is it known which side we are.
        if !self.open()? {
            return Err(Error::BadPeer("a mark of a peer that never said hello"));
        }
        let mover = self.listen();
        let side = name.side_from(self.side());
        if !mover.is_local() {
            return mover.find_lane(name.upright(), side, true);
        }
        let successor = match &self.place {
            Place::Slot { arena, slot, .. } => arena.take_successor(*slot, self.side()),
            Place::Halves(_) => None,
        };
        let successor = match successor {
            Some(successor) if successor.name == name => successor,
            // It goes nowhere, then; nor does anything lead to where it would have gone on from there.
            other => {
                pass_by(other, self.side(), Done::ByUs);
                return Err(Error::BadPeer("a mark that nobody here has made"));
            }
        };
        Lane::in_arena(&successor.arena, name.upright(), side, successor.link, Some(mover.clone()))
            .ok_or(Error::BadPeer("a lane outside of its arena"))
    }
}

/// Most lanes in a row in which nothing was sent or received, before a peer's marks are taken for a circle: more than an
/// honest one has memory for, and followed in a second or two.
const MOST_UNUSED: u32 = 1 << 20;

/// Beside the side: the end was handed over, so that it is not we who are done with the lane.
const GONE: u8 = 2;

/// There too: what this end had sent is counted until it was taken, so that this side may not be done with the lane before.
const LINGERING: u8 = 4;

/// Who says of an end that does not come to a lane that it is done with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Done {
    ByUs,
    /// The process that has that end.
    ByOthers,
}

/// An end has not followed the other one to where it was told, and never will, since it is closed or in another process: it
/// is gone from that lane, too, and from those where it would have gone on from there.
fn pass_by(mut successor: Option<Successor>, mut side: usize, done: Done) {
    while let Some(Successor { arena, name, .. }) = successor {
        side = name.side_from(side);
        let name = name.upright();
        successor = arena.leave(name.slot, side);
        let token = arena.token(name.slot, name.usage, 1 - side, true);
        Link::discard_within(token..=token);
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

/// Lets go of what was sent within this process to an end of this side that will not read it.
fn discard_within(arena: &Arena, slot: u32, usage: u32, side: usize) {
    if !arena.is_private() && Link::has_sent_within() {
        let token = arena.token(slot, usage, 1 - side, true);
        Link::discard_within(token..=token);
    }
}

impl Drop for Lane {
    /// Tells the maker of the lane that this side is done with it.
    fn drop(&mut self) {
        if self.link().is_elsewhere() {
            return;
        }
        // Nobody will ask where this end goes on: it goes nowhere, or elsewhere if whoever wrote into its hand or its marks has
        // it. Before the place can be another lane's.
        let successor = match &self.place {
            Place::Slot { arena, slot, .. } if self.side.load(Ordering::Relaxed) & GONE == 0 => {
                arena.leave(*slot, self.side())
            }
            _ => None,
        };
        if let Some(memory) = self.memory() {
            let side = self.side.load(Ordering::Relaxed);
            if let Place::Slot { arena, slot, usage } = &self.place {
                arena.let_go(*slot, *usage, usize::from(side & 1));
            }
            if side & GONE == 0 {
                fault::point("before a lane is done with");
                if let Place::Slot { arena, slot, usage } = &self.place {
                    if !(self.is_read.load(Ordering::Relaxed) && self.listen().is_local()) {
                        arena.expect_more(*slot);
                    }
                    // Sent to an end that was led to believe its other end elsewhere, or records that were written over.
                    discard_within(arena, *slot, *usage, self.side());
                }
                if side & LINGERING == 0 {
                    memory.done(self.side()).store(1, Ordering::SeqCst);
                } else {
                    self.link().end_is_done(&self.out());
                }
                if let Place::Slot { arena, slot, usage } = &self.place {
                    arena.give_back(*slot, *usage);
                }
            }
        }
        pass_by(successor, self.side(), Done::ByUs);
        // One by one: an end that was idle while the other moved often has a long row of them before it.
        let mut next = self.next.take();
        while let Some(lane) = next {
            next = Arc::into_inner(lane).and_then(|mut lane| lane.next.take());
        }
    }
}
