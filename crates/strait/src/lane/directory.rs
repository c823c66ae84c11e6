//! The lanes that two processes can use: arenas announced by the peer of a link, and arenas of this process's own.
//!
//! An arena is announced once, over the links to its two processes, before any record names one of its lanes. If
//! neither of the two is this process, the two may have no link to each other. Then each of the two also gets one end
//! of a new socket with the first announcement. No process has a special role, and the introducing process may exit at
//! once.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use super::retention::{self, Search};
use super::{Lane, Name};
use crate::deferred::{self, InTurn};
use crate::error::Error;
use crate::lane::arena::{Arena, Introduction, LARGEST, Made, Maker, SMALL};
use crate::link::io::ReceivedAttachment;
use crate::link::packet::{COUNTS_ABSENT_ENDS, Packet, RETIRES_ARENAS};
use crate::link::peers::{ClaimedProcess, Look};
use crate::link::uses::Directory;
use crate::link::{Attachments, InUse, Link, MISSING, peers, uses};
use crate::os::fork::PerProcess;
use crate::os::socket::credentials;
use crate::quota::closing::HalfForPeer;
use crate::quota::{Amounts, Charge, OverLimit, Resource};
use crate::shm::{Shareable, sizes_of_lanes};
use crate::sync::unpoisoned;

/// A lane made by this process: the arena, the name, and the links over which the arena was announced to the two
/// processes of the lane.
pub(crate) type NewLane = (Arc<Arena>, Name, [Weak<Link>; 2]);

/// The most arenas that the peer of one link can make this process remember, and also the most introduced processes. A
/// peer that announces more is a bad peer. The kernel allows a process some 65,000 mappings, and other peers need some.
const MOST: usize = 1 << 13;

/// The number of introduced processes of one link beyond which this process looks for ended processes. After a look,
/// the next look comes at twice the number of remaining processes, plus `LOOK_AFTER`. So a look costs little for each
/// introduction, and sockets to ended processes do not accumulate.
const LOOK_AFTER: usize = 16;

/// The value of [`LaneDirectory::left_at_look`] while a look is about to begin: no number of introductions causes
/// another.
const LOOKING: usize = usize::MAX / 4;

/// The result of a search for the arena of a lane.
struct Found {
    /// The link to the process that holds the other end of the lane.
    link: InUse,
    arena: Arc<Arena>,
    /// Whether the search has marked the end as held by this process. `false` if this process has or had the end
    /// already, or if the search was not to mark the end.
    is_held: bool,
}

/// The announcements of an arena among which a search for the arena of a lane chooses.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// All announcements.
    Any,
    /// Only announcements that can be true of the other end: an announcement for a third process is left out if the
    /// other end came to this process by that announcement.
    OtherElsewhere,
}

/// The holder of the other ends of the lanes of an announced arena. An arena holds many lanes between this process and
/// one other process.
enum With {
    /// The other ends of the arena's lanes are in the process that created and announced the arena: the peer.
    Maker,
    /// The other ends of the arena's lanes are in this process too: this process has both ends of each lane.
    Us,
    /// The other ends of the arena's lanes are in a third process. The link given here leads to that process.
    Other(Arc<Link>),
}

/// The state of an announced arena in this process: the memory, and the holder of the other ends of the lanes.
struct Known {
    memory: ArenaMemory,
    with: With,
    /// The number of ends in lanes of the arena that this process has looked up, or that never come.
    found: u64,
    /// The number of looked-up ends after which this process forgets the arena. `None` as long as the maker of the
    /// arena may take further lanes.
    in_all: Option<u64>,
}

impl Known {
    /// Returns the number of this process's ends in `lanes` lanes of the arena.
    fn ends_in(&self, lanes: u64) -> u64 {
        match self.with {
            With::Us => lanes.saturating_mul(2),
            With::Maker | With::Other(_) => lanes,
        }
    }

    /// Returns whether this process has looked up every end in the arena, and there will be no more.
    fn is_used_up(&self) -> bool {
        self.in_all.is_some_and(|ends| self.found >= ends)
    }

    /// Returns the arena announced by the peer of `link`; maps the memory now, if not mapped yet.
    ///
    /// For an end that is closed (`over_limit` is [`OverLimit::Exceed`]), the memory is mapped even over a limit of the
    /// peer, unless the arena is larger than an honest process makes. It is then mapped only for as long as the
    /// returned arena lives: until the end is closed. Meanwhile further calls for such ends return that arena. Such an
    /// arena does not know which ends of its lanes were here before, so a peer can have an end closed twice. A second
    /// close disturbs only channels between this process and processes for which the peer may make lanes.
    fn map(&mut self, link: &Link, over_limit: OverLimit) -> Result<Arc<Arena>, Error> {
        let (attachment, claim, for_closing) = match &mut self.memory {
            ArenaMemory::Mapped(arena) => return Ok(arena.clone()),
            ArenaMemory::Arrived { attachment, claim, for_closing, .. } => (attachment, *claim, for_closing),
        };
        if over_limit == OverLimit::Exceed
            && let Some(arena) = for_closing.upgrade()
        {
            return Ok(arena);
        }
        match link.map_arena(attachment, claim, OverLimit::Refuse) {
            Ok(arena) => {
                self.memory = ArenaMemory::Mapped(arena.clone());
                Ok(arena)
            }
            Err(Error::LimitReached(_)) if over_limit == OverLimit::Exceed && claim.is_plausible() => {
                let arena = link.map_arena(attachment, claim, over_limit)?;
                *for_closing = Arc::downgrade(&arena);
                Ok(arena)
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the mapped arena; `None` while its memory could not be mapped.
    fn arena(&self) -> Option<&Arc<Arena>> {
        match &self.memory {
            ArenaMemory::Mapped(arena) => Some(arena),
            ArenaMemory::Arrived { .. } => None,
        }
    }
}

/// The memory of an arena that a peer announced: mapped already, or received and not mapped yet.
enum ArenaMemory {
    Mapped(Arc<Arena>),
    /// The memory of the announced arena could not be mapped when the announcement was received. The next lookup of a
    /// lane in the arena tries to map it again.
    Arrived {
        attachment: ReceivedAttachment,
        claim: Claim,
        /// The arena, mapped over a limit of the peer for ends that are being closed, as long as these ends exist.
        for_closing: Weak<Arena>,
        _charge: Option<Charge>,
    },
}

/// The size, number and token of an arena as the peer's announcement gives them. The memory of the arena has not been
/// checked against these values yet.
#[derive(Clone, Copy)]
struct Claim {
    number: u64,
    token: u128,
    lanes: u32,
    cells: usize,
}

impl Claim {
    /// Returns whether an honest process makes arenas of this size. This process keeps private memory for each lane of
    /// a received arena.
    fn is_plausible(&self) -> bool {
        sizes_of_lanes(self.lanes, self.cells as u64).is_some_and(|sizes| *sizes.start() <= LARGEST)
    }
}

/// The key of an announcement: the number in the packet, and the number of the link over which the packet was received.
/// A peer may announce one number over two links: if the peer does not know yet that both links lead to this process,
/// the peer introduces this process to itself, and announces an arena for both halves of the introduction.
type Announced = (u64, u64);

/// All announcements of the peer of one link: arenas and introduced processes. Announcements about a process that has
/// died stay, because a message sent earlier may still refer to them.
#[derive(Default)]
pub(crate) struct Announcements {
    arenas: BTreeMap<Announced, Known>,
    introduced: BTreeMap<Announced, Arc<Link>>,
    /// The ended introduced processes to which this process has no link any more. The peer may not have noticed the
    /// end, and may announce another arena for such a process. At most [`MOST`], without the oldest.
    ended: BTreeMap<Announced, ClaimedProcess>,
}

/// The most links of a chain from which this process receives the remaining packets before dropping the links. Such a
/// chain forms if the announcements over one link hold another link, and so on. The remaining packets matter only if
/// there is another link to the same process.
const LISTENED_TO: usize = 1024;

thread_local! {
    /// Links still to be dropped by this thread, because their announcements were dropped.
    static GOING: InTurn<Arc<Link>> = const { InTurn::new() };
    /// The number of links, in a chain dropped by this thread, from which the remaining packets may still be received.
    /// Starts at [`LISTENED_TO`] and counts down.
    static TO_LISTEN_TO: Cell<usize> = const { Cell::new(0) };
}

/// Returns whether a link that is being dropped may receive its remaining packets first. In a chain of links, each
/// `true` uses up one of the chain's [`LISTENED_TO`].
pub(crate) fn may_drain() -> bool {
    let count = |left: &Cell<usize>| left.replace(left.get().saturating_sub(1)) > 0;
    match InTurn::is_at_it(&GOING) {
        Some(true) => TO_LISTEN_TO.try_with(count).unwrap_or(false),
        Some(false) => true,
        None => false,
    }
}

impl Drop for Announcements {
    /// Drops the links held by these announcements, one after the other. None is dropped from within the destructor of
    /// another link, because a peer could make a chain of links that is longer than the stack is deep.
    fn drop(&mut self) {
        let mut links: Vec<_> = std::mem::take(&mut self.introduced).into_values().collect();
        links.extend(std::mem::take(&mut self.arenas).into_values().filter_map(|known| match known.with {
            With::Other(link) => Some(link),
            With::Maker | With::Us => None,
        }));
        let_go(links);
    }
}

/// Drops the links one after the other, none from within the destructor of another link.
pub(crate) fn let_go(links: Vec<Arc<Link>>) {
    if !links.is_empty() {
        InTurn::let_go(&GOING, links, || TO_LISTEN_TO.set(LISTENED_TO), drop);
    }
}

impl Announcements {
    /// Returns whether there are no announcements: the peer has announced no arena and introduced no process, or all of
    /// that was forgotten.
    pub(crate) fn is_empty(&self) -> bool {
        self.arenas.is_empty() && self.introduced.is_empty() && self.ended.is_empty()
    }

    /// Calls `each` with every link held by these announcements: the links to introduced processes, and to third
    /// processes with an arena in common with this process.
    pub(crate) fn named(&self, mut each: impl FnMut(&Arc<Link>)) {
        self.introduced.values().for_each(&mut each);
        for known in self.arenas.values() {
            if let With::Other(link) = &known.with {
                each(link);
            }
        }
    }

    /// Returns whether these announcements may keep a link open besides their own link. So do announcements with a
    /// link, or with an arena for lanes with both ends in this process.
    pub(crate) fn has_references(&self) -> bool {
        let local = || self.arenas.values().any(|known| matches!(known.with, With::Us));
        let mut leads = false;
        self.named(|_| leads = true);
        leads || local()
    }

    /// Returns the mapped, announced arenas for lanes with both ends in this process, now or after a transfer.
    pub(crate) fn local_arenas(&self) -> Vec<Arc<Arena>> {
        let local = self.arenas.values().filter(|known| matches!(known.with, With::Us));
        local.filter_map(Known::arena).cloned().collect()
    }

    /// Discards all entries of the announced arenas for ends in transit to this process, because the ends will not
    /// arrive. Concerns only arenas for lanes with both ends in this process.
    pub(crate) fn nobody_comes(&self) {
        for known in self.arenas.values() {
            if let (With::Us, Some(arena)) = (&known.with, known.arena()) {
                arena.nobody_comes();
            }
        }
    }

    /// Adds `announcements`, received over another link to the same process, to these announcements. An added
    /// announcement replaces a present announcement with the same key. Returns the replaced announcements.
    pub(crate) fn take_over(&mut self, mut announcements: Self) -> Self {
        let mut left = Self::default();
        for (key, arena) in std::mem::take(&mut announcements.arenas) {
            left.arenas.extend(self.arenas.insert(key, arena).map(|old| (key, old)));
        }
        for (key, link) in std::mem::take(&mut announcements.introduced) {
            left.introduced.extend(self.introduced.insert(key, link).map(|old| (key, old)));
        }
        self.ended.append(&mut announcements.ended);
        left
    }
}

/// The state of lanes that belongs to a link: the arenas announced by the peer, and the makers (with this process's own
/// arenas) for lanes to the peer.
#[derive(Default)]
pub(crate) struct LaneDirectory {
    announcements: Mutex<Announcements>,
    /// The makers of lanes between this link's peer and the peers of other links, by the number of the other link. A
    /// maker is stored with the newer of its two links.
    makers: Mutex<HashMap<u64, Maker>>,
    /// Whether announcements over this link were taken away, because nothing in use reaches the link, or because too
    /// many introduced processes have ended. A packet that was unread at that time may refer to a lost announcement.
    has_lost_announcements: AtomicBool,
    /// The announcements that were replaced or used up while the link was being dropped: forgotten with the others.
    replaced: Mutex<Vec<Announcements>>,
    /// The number of introduced processes that remained after the last look for ended processes; 0 before the first
    /// look, and [`LOOKING`] while a look is about to begin.
    left_at_look: AtomicUsize,
}

/// `WITH_MAKER`: the value of the field `with` of an arena packet if the process that sent the packet holds the other
/// ends of the arena's lanes.
const WITH_MAKER: u64 = 0;
/// `WITH_YOURSELF`: the value of the field `with` of an arena packet if the receiver of the packet holds both ends of
/// each lane.
const WITH_YOURSELF: u64 = 1;
/// `WITH_INTRODUCED`: the lowest value of the field `with` of an arena packet if a third process holds the other ends
/// of the lanes. The value is this constant plus the number of the introduction of the process.
const WITH_INTRODUCED: u64 = 2;

impl Directory for LaneDirectory {
    fn learn(&self, link: &Link, packet: Packet, mut attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        if let Packet::Retire { number, lanes } = packet {
            self.learn_retirement(link, number, lanes);
            return Ok(());
        }
        if let Packet::Absent { number } = packet {
            self.learn_absence(link, number);
            return Ok(());
        }
        let (Packet::Introduce { .. } | Packet::Arena { .. }) = packet else { return Ok(()) };
        let attachment = attachments.pop().ok_or(MISSING)?;
        let replaced = match packet {
            Packet::Introduce { number, name, inode } => {
                self.learn_introduction(link, number, ClaimedProcess { name, inode }, attachment)?
            }
            Packet::Arena { token, number, lanes, cells, with } => {
                let claim = Claim { number, token, lanes, cells: cells as usize };
                self.learn_arena(link, claim, with, attachment)?
            }
            _ => Announcements::default(),
        };
        self.forget_later(link, replaced);
        Ok(())
    }

    fn end_use(&self, link: &Link, is_counted: bool) {
        // If this link was not counted, no other link depends on whether this link is open. As long as another link to
        // the same process is in use, everything announced by the process is retained.
        let siblings = link.siblings();
        let is_retained = || siblings.iter().any(|link| link.is_used());
        let has_announced = || siblings.iter().any(|link| !link.announcements().is_empty());
        let has_references = || unpoisoned(&self.announcements).has_references();
        if is_counted || (!is_retained() && (has_references() || (siblings.len() > 1 && has_announced()))) {
            retention::forget_unreachable();
        }
    }

    fn may_drain(&self) -> bool {
        may_drain()
    }

    fn end(&self, link: &Link, heard: Result<(), Error>) -> Result<(), Error> {
        let ended = self.end_announcements(link, heard);
        self.retire_arenas();
        ended
    }
}

impl LaneDirectory {
    /// Passes on or forgets the announcements over the dropped link `link`. `heard` is the result of receiving its
    /// remaining packets. After an error, which is temporary, the announcements are still here.
    fn end_announcements(&self, link: &Link, heard: Result<(), Error>) -> Result<(), Error> {
        // Announcements without references are of arenas for the peer and this process alone. The peer refers to such
        // arenas over this link only. So closing the link of an ordinary peer looks at no link of another peer.
        if heard.is_err_and(Error::passes) || unpoisoned(&self.announcements).has_references() {
            retention::pass_on(link, heard)?;
        }
        drop(link.lose_announcements());
        std::mem::take(&mut *unpoisoned(&self.replaced)).into_iter().for_each(retention::forget);
        Ok(())
    }

    /// Forgets this process's arenas for the peer of the dropped link and other processes, and tells the other
    /// processes. The other processes need no more lanes from this process to that peer, and forget the arenas once
    /// their ends have arrived.
    fn retire_arenas(&self) {
        let makers = std::mem::take(&mut *unpoisoned(&self.makers));
        let mut others = Vec::new();
        for maker in makers.into_values() {
            if let Some(other) = maker.other.upgrade() {
                retire(maker, &other, 1);
                others.push(other);
            }
        }
        let_go(others);
    }

    /// Stores the introduction with this number and the socket `attachment`; `claim` is the claimed process at the
    /// other side of the socket. Returns the replaced announcement.
    fn learn_introduction(
        &self,
        peer: &Link,
        number: u64,
        claim: ClaimedProcess,
        attachment: ReceivedAttachment,
    ) -> Result<Announcements, Error> {
        let ReceivedAttachment(socket) = attachment;
        if !crate::os::socket::is_seqpacket(&socket)? {
            return Err(Error::BadPeer("an introduction without a socket"));
        }
        if !credentials::are_asked(socket.as_fd())? {
            return Err(Error::BadPeer("an introduction with a socket that does not name the sender of a packet"));
        }
        // Checked before the link is made: this thread is the leader of the peer's link, and must drop no link.
        if unpoisoned(&self.announcements).introduced.len() >= MOST {
            return Err(Error::BadPeer("more introductions than permitted"));
        }
        let charge = peer.ledger().charge_descriptors(&[socket.as_fd()])?;
        let link = peer.introduced_over(socket.into_fd(), charge, claim)?;
        if peer.refuses_descriptors() {
            link.refuse_descriptors();
        }
        let mut announcements = unpoisoned(&self.announcements);
        let key = (number, peer.number());
        let old = announcements.introduced.insert(key, Arc::clone(&link));
        let count = announcements.introduced.len();
        drop(announcements);
        self.look_for_ended_later(peer, count);
        let mut replaced = Announcements::default();
        replaced.introduced.extend(old.map(|old| (key, old)));
        Ok(replaced)
    }

    /// Stores the arena of `claim` with the memory `attachment`; `with` says which process holds the other ends of the
    /// lanes. Returns the replaced announcement.
    fn learn_arena(
        &self,
        link: &Link,
        claim: Claim,
        with: u64,
        attachment: ReceivedAttachment,
    ) -> Result<Announcements, Error> {
        // Checked before a link is looked up: this thread is the leader of the peer's link, and must drop no link.
        if unpoisoned(&self.announcements).arenas.len() >= MOST {
            return Err(Error::BadPeer("more arenas than permitted"));
        }
        let memory = match link.map_arena(&attachment, claim, OverLimit::Refuse) {
            Ok(arena) => {
                attachment.close_mapped();
                ArenaMemory::Mapped(arena)
            }
            Err(error @ Error::BadPeer(_)) => return Err(error),
            Err(_) => {
                let charge = link.ledger().charge(Amounts::of(Resource::Descriptors, 1))?;
                ArenaMemory::Arrived { attachment, claim, for_closing: Weak::new(), _charge: charge }
            }
        };
        let with = match with {
            WITH_MAKER => With::Maker,
            WITH_YOURSELF => With::Us,
            other => match link.introduced_or_ended(other - WITH_INTRODUCED)? {
                Some(link) => With::Other(link),
                // No end here uses the link any more, so no end will ask for the arena; or the introduced process ended
                // before thousands of others.
                None if self.has_lost_announcements.load(Ordering::Acquire) => return Ok(Announcements::default()),
                None => return Err(Error::BadPeer("an arena shared with an unknown process")),
            },
        };
        let mut known = Known { memory, with, found: 0, in_all: None };
        known.in_all = (claim.lanes == 1).then(|| known.ends_in(1));
        let key = (claim.number, link.number());
        let mut announcements = unpoisoned(&self.announcements);
        let old = announcements.arenas.insert(key, known);
        drop(announcements);
        let mut replaced = Announcements::default();
        replaced.arenas.extend(old.map(|old| (key, old)));
        Ok(replaced)
    }

    /// Looks later in this call for introduced processes that have ended, if `count`, the number of processes that the
    /// peer of the link `peer` has introduced, is large enough. The calling thread is the leader of the link, and must
    /// drop no link.
    fn look_for_ended_later(&self, peer: &Link, count: usize) {
        let left = self.left_at_look.load(Ordering::Relaxed);
        if count > 2 * left + LOOK_AFTER {
            self.left_at_look.store(LOOKING, Ordering::Relaxed);
            let peer = peer.weak();
            deferred::run_later(move || {
                if let Some(peer) = peer.upgrade() {
                    peer.close_links_to_ended();
                    let_go(vec![peer]);
                }
            });
        }
    }

    /// Notes that the maker of the arena `number`, announced over `link`, takes no more lanes from the arena, and has
    /// named `lanes` lanes so far. Forgets the arena, if this process has looked up its ends in all these lanes. Does
    /// nothing if the arena is not known.
    fn learn_retirement(&self, link: &Link, number: u64, lanes: u64) {
        self.update(link, number, |known| known.in_all = Some(known.ends_in(lanes)));
    }

    /// Notes that an end in a lane of the arena `number`, announced over `link`, never comes: counts the end as looked
    /// up. Forgets the arena, if this process has now looked up all ends. Does nothing if the arena is not known.
    fn learn_absence(&self, link: &Link, number: u64) {
        self.update(link, number, |known| known.found += 1);
    }

    fn update(&self, link: &Link, number: u64, update: impl FnOnce(&mut Known)) {
        let key = (number, link.number());
        let mut announcements = unpoisoned(&self.announcements);
        let Some(known) = announcements.arenas.get_mut(&key) else { return };
        update(known);
        if !known.is_used_up() {
            return;
        }
        let Announcements { arenas, introduced, .. } = &mut *announcements;
        let is_kept = |link: &Arc<Link>| introduced.values().any(|known| Arc::ptr_eq(known, link));
        match &arenas[&key].with {
            // Nothing waits for these lanes, and the link stays with the introduction, so forgetting ends nothing.
            With::Maker => {}
            With::Other(link) if is_kept(link) => {}
            // This thread is the leader of a link, and must drop no link.
            With::Other(_) | With::Us if !peers::is_dropping() => {
                let mut used_up = Announcements::default();
                used_up.arenas.extend(arenas.remove_entry(&key));
                drop(announcements);
                return self.forget_later(link, used_up);
            }
            // The arena is forgotten with the link: after the destructor of a link the program may never call the
            // library again, so no job may be left.
            With::Other(_) | With::Us => return,
        }
        let used_up = arenas.remove(&key);
        drop(announcements);
        drop(used_up);
    }

    /// Forgets `announcements`, of the peer of `link`, later in this call: forgetting may close ends in transit, and so
    /// receive from the link, and the calling thread is the leader of the link.
    fn forget_later(&self, link: &Link, announcements: Announcements) {
        if announcements.is_empty() {
            return;
        }
        // After the destructor of a link the program may never call the library again, so no job may be left.
        match link.is_being_dropped() {
            true => unpoisoned(&self.replaced).push(announcements),
            false => deferred::run_later(|| retention::forget(announcements)),
        }
    }
}

/// Tells the peer of `link` that an end in a lane of the arena `number`, announced by this process over the link, never
/// comes. Does nothing on the link of this process to itself, and if the peer does not count such ends.
pub(super) fn tell_absence(link: &Link, number: u64) {
    if !link.is_local() && link.knows(COUNTS_ABSENT_ENDS) {
        link.send_sooner_or_later(Packet::Absent { number });
    }
}

/// Ends `maker`, one of whose two processes has ended, and tells the other process, which is the peer of `link` and the
/// process `index` of the maker's arenas: no more lanes come from the arenas, and no end comes in an arena whose lane
/// was not made.
fn retire(maker: Maker, link: &Link, index: usize) {
    let [arenas, half_announced] = maker.into_arenas();
    send_retirements(&arenas, link);
    let known = half_announced.iter().filter(|made| made.announced[index]);
    known.for_each(|made| tell_absence(link, made.arena.number()));
}

/// Tells the peer of `link` that this process takes no more lanes from `arenas`, if that peer can forget them.
fn send_retirements(arenas: &[Made], link: &Link) {
    if !arenas.is_empty() && link.knows(RETIRES_ARENAS) {
        arenas.iter().map(Made::retirement).for_each(|packet| link.send_sooner_or_later(packet));
    }
}

impl Maker {
    /// Makes a lane between the peers of the links `young` and `old`, the two links of this maker, with `cells` cells
    /// for each ring, and announces the lane's arena to both. Returns the arena and the name of the lane.
    fn lane(&mut self, young: &Arc<Link>, old: &Arc<Link>, cells: usize) -> Result<(Arc<Arena>, Name), Error> {
        let with = introduce(&mut self.introduction, young, old)?;
        let private = young.is_local() && old.is_local();
        let is_for_others = !young.is_local() && !old.is_local();
        let is_seldom = (is_for_others || self.has_forgotten) && !recent::contains(young, old);
        if cells <= SMALL
            && let Some((made, name)) = self.take(private, !is_seldom)?
        {
            if let Err(error) = announce(made, young, old, with) {
                self.put_back(name);
                return Err(error);
            }
            made.was_taken();
            return Ok((made.arena.clone(), name));
        }
        self.make_single(cells, private, |made| announce(made, young, old, with))
    }
}

fn of_lanes(directory: &dyn Directory) -> &LaneDirectory {
    let directory: &dyn Any = directory;
    directory.downcast_ref().expect("each link was created with a directory")
}

impl Link {
    /// Returns the link of this process to itself, for channels with both ends in this process. All calls return the
    /// same link, created by the first call.
    pub(crate) fn own() -> InUse {
        static OWN: PerProcess<OnceLock<Arc<Link>>> = PerProcess::new(OnceLock::new);
        OWN.get().get_or_init(|| Self::local(Arc::<LaneDirectory>::default())).in_use()
    }

    /// Returns the state of the lanes for this link.
    fn lane_directory(&self) -> &LaneDirectory {
        of_lanes(self.directory())
    }

    /// Returns the link to the process introduced by the peer over this link under the number `number`. Another link to
    /// the same peer may have taken that announcement over. Returns `None` if the peer has introduced no process under
    /// this number.
    fn introduced(&self, number: u64) -> Option<Arc<Self>> {
        self.find_announced(|announcements| announcements.introduced.get(&(number, self.number())).cloned())
    }

    /// Returns the result of `find` for the announcements over this link, or over another link to the same peer, to
    /// which announcements may have moved. If such a link is being dropped, `find` sees its announcements too. So the
    /// search waits for no thread that drops a link; such a thread may wait for the caller, the leader of this link.
    fn find_announced<T>(&self, find: impl Fn(&Announcements) -> Option<T>) -> Option<T> {
        let of_link = |link: &Self| find(&link.announcements());
        let of_dropped = |directory: &dyn Directory| find(&unpoisoned(&of_lanes(directory).announcements));
        let mut search = Search::begin();
        loop {
            let found = of_link(self)
                .or_else(|| self.siblings().iter().find_map(|link| of_link(link)))
                .or_else(|| peers::find_among_dropped(of_dropped));
            if found.is_some() || !search.was_disturbed() {
                return found;
            }
        }
    }

    /// Returns the link to the process introduced by the peer over this link under the number `number`, like
    /// [`introduced`](Self::introduced). If the process has ended and this process has closed the link, creates a link
    /// over a socket that has hung up already. So the end that the peer is about to send gets the messages of the ended
    /// process, and then *peer closed*.
    fn introduced_or_ended(&self, number: u64) -> Result<Option<Arc<Self>>, Error> {
        let key = (number, self.number());
        if let Some(link) = self.introduced(number) {
            return Ok(Some(link));
        }
        let Some(claim) = self.find_announced(|announcements| announcements.ended.get(&key).copied()) else {
            return Ok(None);
        };
        let (socket, _) = crate::os::socket::pair()?;
        credentials::ask(socket.as_fd(), true)?;
        let charge = self.ledger().charge_descriptors(&[socket.as_fd()])?;
        let link = self.introduced_over(socket, charge, claim)?;
        self.announcements().introduced.insert(key, Arc::clone(&link));
        Ok(Some(Arc::clone(&link)))
    }

    /// Closes the links to processes that were introduced over this link, have ended, and are not used by this process
    /// any more; notes that the processes have ended. Does nothing for a link whose packets cannot be received now.
    fn close_links_to_ended(&self) {
        let introduced = self.announcements().introduced.clone();
        let mut look = Look::begin();
        // The hang-up of a process is found behind its last packet.
        let _ = look.at(introduced.values().map(|link| &**link).filter(|link| link.uses() == 0));
        let ended: Vec<_> = introduced.iter().filter(|(_, link)| link.uses() == 0 && link.is_down()).collect();
        // An ended process may have used a lane that this process does not know yet. The maker of that lane announced
        // the lane to this process before the ended process could use it, so the announcement can be received now.
        let announcers = self.siblings();
        let are_known = look.at(announcers.iter().map(|link| &**link).chain([self])).is_ok();
        let turn = uses::hold();
        let mut announcements = self.announcements();
        for (key, link) in ended.into_iter().filter(|(_, link)| are_known && link.uses() == 0) {
            // Another link may have replaced `link` under this key. Removed links are dropped later, without the lock.
            if announcements.introduced.get(key).is_some_and(|known| Arc::ptr_eq(known, link)) {
                announcements.introduced.remove(key);
                announcements.ended.insert(*key, ClaimedProcess::of(link.process()));
            }
        }
        while announcements.ended.len() > MOST {
            self.lane_directory().has_lost_announcements.store(true, Ordering::Release);
            announcements.ended.pop_first();
        }
        self.lane_directory().left_at_look.store(announcements.introduced.len(), Ordering::Relaxed);
        drop(announcements);
        drop(turn);
        let_go(introduced.into_values().chain(announcers).collect());
    }

    /// Maps the memory `attachment` of an arena that the peer announced as `claim`, and charges the peer; `over_limit`
    /// says what happens if a charge exceeds a limit.
    fn map_arena(
        &self,
        attachment: &ReceivedAttachment,
        claim: Claim,
        over_limit: OverLimit,
    ) -> Result<Arc<Arena>, Error> {
        let impossible = Error::BadPeer("an arena of impossible size");
        let sizes = sizes_of_lanes(claim.lanes, claim.cells as u64).ok_or(impossible)?;
        let mapping = attachment.map(sizes, self.ledger(), over_limit)?;
        let lanes = self.ledger().charge_or(Amounts::of(Resource::Lanes, claim.lanes as usize), over_limit)?;
        let arena = Arena::received(claim.number, claim.token, mapping, claim.lanes, claim.cells, lanes);
        Ok(Arc::new(arena.ok_or(impossible)?))
    }

    /// Takes the announcements of the peer away from this link, because nothing in use reaches the link.
    pub(crate) fn lose_announcements(&self) -> Announcements {
        // Set first: a thread that misses an announcement then finds the flag set.
        self.lane_directory().has_lost_announcements.store(true, Ordering::Release);
        std::mem::take(&mut *self.announcements())
    }

    /// Locks the announcements of the peer over this link, and returns the guard.
    pub(crate) fn announcements(&self) -> MutexGuard<'_, Announcements> {
        unpoisoned(&self.lane_directory().announcements)
    }

    /// Creates the link to a process introduced by this link's peer, over the received `socket`. `charge` is the charge
    /// for the socket against this link's peer, and `claim` is the peer's description of the process. Sends the
    /// handshake on the new link, now or before any other packet.
    fn introduced_over(&self, socket: OwnedFd, charge: Option<Charge>, claim: ClaimedProcess) -> Result<InUse, Error> {
        // The name is obtained first, because it may fail: a dropped link is closed for good, but this call may be
        // tried again.
        let name = peers::own_name()?;
        let link = Self::over_received(socket, self, charge, Arc::<LaneDirectory>::default());
        link.was_introduced(self, claim);
        link.send_handshake_sooner_or_later(name);
        Ok(link)
    }

    /// Returns the lane `name`, which the peer has announced, for the end of this process on `side`. If `moved`, this
    /// end goes on there because of a mark from the peer, and the other end is still in transit from the peer.
    /// Otherwise the peer has sent this end to this process. `over_limit` is [`OverLimit::Exceed`] if the end is being
    /// closed: see [`Known::map`]. Fails with [`Error::BadPeer`] if there is no such lane, or if this process has or
    /// had the end already.
    pub(crate) fn find_lane(
        self: &Arc<Self>,
        name: Name,
        side: usize,
        moved: bool,
        over_limit: OverLimit,
    ) -> Result<Lane, Error> {
        let found = self.find_arena(name, side, true, over_limit)?;
        self.lane_in(found, name, side, moved)
    }

    /// Returns the lane `name` in the arena `found` for the end on `side`; `moved` is as for
    /// [`find_lane`](Self::find_lane).
    fn lane_in(self: &Arc<Self>, found: Found, name: Name, side: usize, moved: bool) -> Result<Lane, Error> {
        let Found { link, arena, is_held } = found;
        if arena.lane(name.slot).is_none() {
            return Err(Error::BadPeer("a lane outside of its arena"));
        }
        if !is_held {
            return Err(Error::BadPeer("an end that this process has or had already"));
        }
        let source = moved.then(|| self.in_use());
        Ok(Lane::in_arena(&arena, name, side, link, source).expect("looked at just now"))
    }

    /// Returns the arena with the lane `name`, for the end on `side`; maps the memory of the arena if it is not mapped
    /// yet. As long as the caller keeps the arena, [`find_ready_lane`](Self::find_ready_lane) needs no resource to find
    /// the lane.
    ///
    /// # Errors
    /// A temporary error if the arena cannot be looked for or mapped now; [`Error::BadPeer`] if the peer never
    /// announced the arena.
    pub(crate) fn ready_lane(
        self: &Arc<Self>,
        name: Name,
        side: usize,
        over_limit: OverLimit,
    ) -> Result<Arc<Arena>, Error> {
        self.find_arena(name, side, false, over_limit).map(|found| found.arena)
    }

    /// Returns the lane `name` for an end that the peer has sent to this process, as [`find_lane`](Self::find_lane)
    /// does. The caller has found the arena with [`ready_lane`](Self::ready_lane) before, so the arena is looked for
    /// without a receive.
    pub(crate) fn find_ready_lane(
        self: &Arc<Self>,
        name: Name,
        side: usize,
        over_limit: OverLimit,
    ) -> Result<Lane, Error> {
        let look_up = |link: &Arc<Self>, fit: Fit| link.look_up(name, side, true, fit, over_limit);
        let among_all = |fit| look_up(self, fit).or_else(|| self.siblings().iter().find_map(|link| look_up(link, fit)));
        match among_all(Fit::OtherElsewhere).or_else(|| among_all(Fit::Any)) {
            Some(found) => self.lane_in(found?, name, side, false),
            // The announcement has moved to another link meanwhile.
            None => self.find_lane(name, side, false, over_limit),
        }
    }

    /// Returns the arena of the lane `name`, and the link to the process that holds the other ends of the arena's
    /// lanes. Looks through the announcements over all links to the peer. If no announcement contains the arena, fails
    /// with [`Error::BadPeer`], or with [`Error::PeerClosed`] if this process may have lost the announcement. If `take`
    /// is set, the caller takes the end on `side`: the call marks that end
    /// as held, and counts as one of the lookups after which an arena with one lane is forgotten.
    ///
    /// If two announcements contain the arena, both ends of the lane are in this process, and each end goes with an
    /// announcement of its own ([`Announced`]).
    fn find_arena(
        self: &Arc<Self>,
        name: Name,
        side: usize,
        take: bool,
        over_limit: OverLimit,
    ) -> Result<Found, Error> {
        let look_up = |link: &Arc<Self>, fit: Fit| link.look_up(name, side, take, fit, over_limit);
        let mut search = Search::begin();
        loop {
            if let Some(found) = self.fetch(|_| look_up(self, Fit::OtherElsewhere))? {
                return found;
            }
            // Nothing may have been received from the other link yet. A failure to receive now is not the peer's fault.
            let heard = peers::drain_all();
            let elsewhere = |link: &Arc<Self>| look_up(link, Fit::OtherElsewhere);
            if let Some(found) = self.siblings().iter().find_map(elsewhere) {
                return found;
            }
            let any = |link: &Arc<Self>| look_up(link, Fit::Any);
            if let Some(found) = any(self).or_else(|| self.siblings().iter().find_map(any)) {
                return found;
            }
            search.await_dropped();
            if !search.was_disturbed() {
                let never = Error::BadPeer("a lane that was never announced");
                return heard.and(Err(if retention::may_have_lost() { Error::PeerClosed } else { never }));
            }
        }
    }

    /// Returns the arena of the lane `name`, and the link to the process that holds the other ends of the arena's
    /// lanes. Returns `None` if no announcement over this link contains the arena and is as `fit` demands, and an error
    /// if the arena's memory cannot be mapped now. `side`, `take` and `over_limit` are those of [`Link::find_arena`].
    fn look_up(
        self: &Arc<Self>,
        name: Name,
        side: usize,
        take: bool,
        fit: Fit,
        over_limit: OverLimit,
    ) -> Option<Result<Found, Error>> {
        let mut announcements = self.announcements();
        let mut fitting = None;
        for (key, known) in announcements.arenas.range_mut((name.arena, 0)..=(name.arena, u64::MAX)) {
            let arena = match known.map(self, over_limit) {
                Ok(arena) => arena,
                Err(error) => return Some(Err(error)),
            };
            let has_other =
                |arena: &Arena| arena.is_here(name.slot, 1 - side) || arena.has_left(name.slot, name.usage, 1 - side);
            if fit == Fit::Any || !matches!(known.with, With::Other(_)) || !has_other(&arena) {
                fitting = Some((*key, known, arena));
                break;
            }
        }
        let (key, known, arena) = fitting?;
        let link = match &known.with {
            With::Maker => self.in_use(),
            With::Us => Link::own(),
            With::Other(link) => link.in_use(),
        };
        let is_held = take && arena.hold(name.slot, name.usage, side);
        if take {
            known.found += 1;
            if known.is_used_up() {
                announcements.arenas.remove(&key);
            }
        }
        Some(Ok(Found { link, arena, is_held }))
    }

    /// Creates a lane between the peers of the links `one` and `other`, and announces the lane's arena to both; a local
    /// link stands for this process. Each ring has `cells` cells. Makes no system call except for a new arena or an
    /// introduction. Returns the arena and the name of the lane, and the two links over which the arena was announced:
    /// that to the peer of `one`, and that to the peer of `other`. After an error no lane was taken, and the call can
    /// be repeated.
    pub(crate) fn make_lane(one: &Arc<Self>, other: &Arc<Self>, cells: usize) -> Result<NewLane, Error> {
        let (one, other) = &meeting(one, other)?;
        // If the lane is not used in the end, a packet tells both processes so. A process that never reads its socket
        // must not make these packets pile up here.
        one.check_all_is_sent()?;
        other.check_all_is_sent()?;
        let told = [one, other].map(Arc::downgrade);
        let (young, old) = if one.number() >= other.number() { (one, other) } else { (other, one) };
        let private = young.is_local() && old.is_local();
        let mut makers = unpoisoned(&young.lane_directory().makers);
        let mut ended = Vec::new();
        if !makers.contains_key(&old.number()) {
            let has_ended = |maker: &Maker| maker.other.upgrade().is_none_or(|other| other.is_down());
            ended.extend(makers.extract_if(|_, maker| has_ended(maker)).map(|(_, maker)| maker));
        }
        let maker = makers.entry(old.number()).or_insert_with(|| Maker::with(Arc::downgrade(old)));
        let made = maker.lane(young, old, cells);
        drop(makers);
        ended.into_iter().for_each(|maker| retire(maker, young, 0));
        let (arena, name) = made?;
        if !private && cells <= SMALL {
            recent::note(young, old);
        }
        Ok((arena, name, told))
    }

    /// Forgets the arenas made by this process for the peers of this link and of the link with the number `old`, and
    /// tells both peers.
    fn forget_arenas_with(&self, old: u64) {
        let mut makers = unpoisoned(&self.lane_directory().makers);
        let Some(maker) = makers.get_mut(&old) else { return };
        let (forgotten, other) = (maker.forget_arenas(), maker.other.upgrade());
        drop(makers);
        let links = [Some(self), other.as_deref().filter(|other| !std::ptr::eq(*other, self))];
        links.into_iter().flatten().for_each(|link| send_retirements(&forgotten, link));
    }
}

/// The makers used last by this process. These makers keep their arenas, for further lanes.
///
/// Without this list, a process that introduces many others to each other would keep a mapping for each pair. So the
/// first lane between two other processes has an arena of its own, kept by the two processes alone. A maker outside of
/// the list forgets its arenas, unless a lane of the arenas is in this process.
mod recent {
    use std::collections::VecDeque;

    use super::*;

    /// The number of last used makers that keep their arenas.
    const MOST: usize = 32;

    /// Returns the makers used last, each as the numbers of its two links. The maker used last is at the end.
    fn makers() -> &'static Mutex<VecDeque<[u64; 2]>> {
        static MAKERS: PerProcess<Mutex<VecDeque<[u64; 2]>>> = PerProcess::new(Mutex::default);
        MAKERS.get()
    }

    /// Returns whether the maker of lanes between the peers of these two links is among the makers used last.
    pub(super) fn contains(young: &Link, old: &Link) -> bool {
        unpoisoned(makers()).contains(&[young.number(), old.number()])
    }

    /// Notes that a lane was made between the peers of two links. The maker unused for the longest time forgets its
    /// arenas. The caller holds no lock.
    pub(super) fn note(young: &Link, old: &Link) {
        let maker = [young.number(), old.number()];
        let mut makers = unpoisoned(makers());
        if makers.back() == Some(&maker) {
            return;
        }
        if let Some(at) = makers.iter().position(|known| *known == maker) {
            makers.remove(at);
        }
        makers.push_back(maker);
        let oldest = if makers.len() > MOST { makers.pop_front() } else { None };
        drop(makers);
        if let Some([young, old]) = oldest
            && let Some(young) = Link::numbered(young)
        {
            young.forget_arenas_with(old);
        }
    }
}

/// Returns the two links for announcing lanes between the peers of `one` and `other`. If one of the two links is local,
/// returns the given links. For two other processes, returns the oldest link to each that may be used in place of the
/// given one, so that the two are introduced only once. If both peers are the same process, returns one link twice.
///
/// # Errors
/// [`Error::WouldBlock`] as [`peers::link_to_both`].
fn meeting(one: &Arc<Link>, other: &Arc<Link>) -> Result<(Arc<Link>, Arc<Link>), Error> {
    if one.is_local() || other.is_local() {
        return Ok((one.clone(), other.clone()));
    }
    if Arc::ptr_eq(one, other) {
        return Ok((other.clone(), other.clone()));
    }
    let oldest_links = (one.oldest_link(), other.oldest_link());
    Ok(match peers::link_to_both(one, other)? {
        Some(link) => (link.clone(), link),
        None => oldest_links,
    })
}

/// Introduces the peers of the links `young` and `old` to each other, once: sends each one end of a new socket. Returns
/// the number of the introduction. Returns 0, and sends nothing, if one of the links is local or both are the same
/// link. Fails with [`Error::WouldBlock`] if a packet cannot be sent now; a later call then sends only the missing
/// packet. `introduction` stores the progress.
fn introduce(introduction: &mut Option<Introduction>, young: &Arc<Link>, old: &Arc<Link>) -> Result<u64, Error> {
    if young.is_local() || old.is_local() || Arc::ptr_eq(young, old) {
        return Ok(0);
    }
    let introduction = match introduction {
        Some(introduction) => introduction,
        none => {
            static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            let (one, other) = crate::os::socket::pair()?;
            // Requested before either process can send its handshake, so that the kernel names the sender.
            credentials::ask(one.as_fd(), true)?;
            credentials::ask(other.as_fd(), true)?;
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            // The process with the one half fills the queue of the other half.
            let one = HalfForPeer::new(one, old.ledger());
            let other = HalfForPeer::new(other, young.ledger());
            none.insert(Introduction { number, sockets: [Some(one), Some(other)] })
        }
    };
    let links = [(young, old), (old, young)];
    for ((link, introduced), socket) in links.into_iter().zip(&mut introduction.sockets) {
        if let Some(fd) = socket.take() {
            let ClaimedProcess { name, inode } = introduced.claim();
            let packet = Packet::Introduce { number: introduction.number, name, inode };
            let sent = link.try_send(&packet, Attachments::descriptors(&[fd.as_fd()]));
            if !matches!(sent, Ok(true)) {
                *socket = Some(fd);
                return sent.and(Err(Error::WouldBlock));
            }
        }
    }
    Ok(introduction.number)
}

/// Announces the arena `made` to the peers of the links `young` and `old`, which will use the arena, unless that was
/// done before. `introduction` is the number under which the two were introduced. Fails with [`Error::WouldBlock`] if a
/// packet cannot be sent now; a later call then sends only what was not sent yet.
fn announce(made: &mut Made, young: &Arc<Link>, old: &Arc<Link>, introduction: u64) -> Result<(), Error> {
    if made.announced == [true; 2] {
        return Ok(());
    }
    let siblings = Arc::ptr_eq(young, old);
    for (index, link, other) in [(0, young, old), (1, old, young)] {
        if made.announced[index] {
            continue;
        }
        if siblings && index == 1 {
            made.announced[1] = true;
        } else if link.is_local() {
            // This process announces nothing to itself: when it moves an end, it stores the next lane for the other
            // end.
            made.announced[index] = true;
        } else {
            let with = match () {
                () if siblings => WITH_YOURSELF,
                () if other.is_local() => WITH_MAKER,
                () => WITH_INTRODUCED + introduction,
            };
            let packet = Packet::Arena {
                token: made.arena.own_token(),
                number: made.arena.number(),
                lanes: made.arena.lanes(),
                cells: made.arena.cells() as u32,
                with,
            };
            let fd = made.fd.take().expect("retained until both know it");
            let memory = Shareable { mapping: made.arena.mapping(), fd: Some(fd) };
            let sent = link.try_send(&packet, Attachments::memory(&memory));
            made.fd = memory.fd;
            if !sent? {
                return Err(Error::WouldBlock);
            }
            made.announced[index] = true;
        }
    }
    made.fd = None;
    Ok(())
}
