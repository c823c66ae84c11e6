//! Which lanes two processes can use: the arenas that a link's peer has made, and those that we make.
//!
//! An arena is announced once, over the links to the two processes that will use it, before any record names a lane in
//! it. If neither of the two is us, they may never have met: then each also gets one end of a new socket, the first time.
//! No process has a special role in this, and whoever introduced two others may end at once.

use std::cell::RefCell;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard};

use super::io::Arrival;
use super::packet::Packet;
use super::{InUse, Link, MISSING, Parcel};
use crate::error::Error;
use crate::lane::arena::{self, Arena, Introduction, Made, Maker, SMALL};
use crate::lane::{Lane, Name};
use crate::quota::{Amounts, Charge, Resource};
use crate::shm::{Layout, Shareable};
use crate::sync::unpoisoned;

/// Most arenas and introductions that a peer can have us know of. The kernel allows a process some 65,000 mappings, and
/// there are others who need some.
const MOST: usize = 1 << 13;

/// Who uses the lanes of an arena, besides whoever looks them up.
enum With {
    /// The process that made it.
    Maker,
    /// This process: both ends are here.
    Us,
    /// The process at the other end of this link.
    Other(Arc<Link>),
}

/// An arena that was announced.
struct Known {
    memory: ArenaMemory,
    with: With,
    /// How often its lane is looked up, if it has only one: then it is forgotten.
    lookups: Option<u8>,
}

impl Known {
    /// The arena, if it is mapped.
    fn arena(&self) -> Option<&Arc<Arena>> {
        match &self.memory {
            ArenaMemory::Mapped(arena) => Some(arena),
            ArenaMemory::Arrived { .. } => None,
        }
    }
}

/// The memory of an arena that was announced.
enum ArenaMemory {
    Mapped(Arc<Arena>),
    /// It could not be mapped when it came, and is when a lane in it is looked up.
    Arrived {
        arrival: Arrival,
        claim: Claim,
        _charge: Option<Charge>,
    },
}

/// What an arena is said to be.
#[derive(Clone, Copy)]
struct Claim {
    number: u64,
    token: u128,
    lanes: u32,
    cells: usize,
    layout: Layout,
}

/// What a link's peer told of. What was said of a process that is gone stays: what it had said itself, before it went, may
/// still be asked for.
#[derive(Default)]
pub(super) struct Told {
    arenas: HashMap<u64, Known>,
    introduced: HashMap<u64, Arc<Link>>,
}

/// Links that go when another one does, and are listened to once more before. What their peers had left there counts
/// for somebody only if there is another link to the same process, and a peer can leave links in links without end.
const LISTENED_TO: usize = 1024;

/// Links that are about to go, since the one that led to them does.
struct Going {
    links: Vec<Arc<Link>>,
    /// How many of them will be listened to.
    listened_to: usize,
}

thread_local! {
    static GOING: RefCell<Option<Going>> = const { RefCell::new(None) };
}

/// Whether a link that goes may be listened to once more.
pub(super) fn may_listen() -> bool {
    let may = |going: &RefCell<Option<Going>>| match &mut *going.borrow_mut() {
        None => true,
        Some(going) => {
            let may = going.listened_to > 0;
            going.listened_to = going.listened_to.saturating_sub(1);
            may
        }
    };
    GOING.try_with(may).unwrap_or(false)
}

impl Drop for Told {
    /// Lets go of the links one after the other, not one from within the other: a peer could make a row of them that is
    /// longer than a stack is deep.
    fn drop(&mut self) {
        let mut links: Vec<_> = self.introduced.drain().map(|(_, link)| link).collect();
        links.extend(self.arenas.drain().filter_map(|(_, known)| match known.with {
            With::Other(link) => Some(link),
            With::Maker | With::Us => None,
        }));
        let_go(links);
    }
}

/// Lets go of links one after the other, also if this is called where one of them goes.
pub(super) fn let_go(mut links: Vec<Arc<Link>>) {
    if links.is_empty() {
        return;
    }
    let is_outermost = |going: &RefCell<Option<Going>>| match &mut *going.borrow_mut() {
        Some(going) => {
            going.links.append(&mut links);
            false
        }
        none => {
            *none = Some(Going { links: std::mem::take(&mut links), listened_to: LISTENED_TO });
            true
        }
    };
    if GOING.try_with(is_outermost) == Ok(true) {
        let next = || GOING.with_borrow_mut(|going| going.as_mut().and_then(|going| going.links.pop()));
        while let Some(link) = next() {
            drop(link);
        }
        GOING.set(None);
    }
}

impl Told {
    /// Whether it is nothing.
    pub(super) fn is_empty(&self) -> bool {
        self.arenas.is_empty() && self.introduced.is_empty()
    }

    /// Each link that was named.
    pub(super) fn named(&self, mut each: impl FnMut(&Arc<Link>)) {
        self.introduced.values().for_each(&mut each);
        for known in self.arenas.values() {
            if let With::Other(link) = &known.with {
                each(link);
            }
        }
    }

    /// Whether another link may be kept by it.
    pub(super) fn leads_anywhere(&self) -> bool {
        let within = || self.arenas.values().any(|known| matches!(known.with, With::Us));
        let mut leads = false;
        self.named(|_| leads = true);
        leads || within()
    }

    /// The arenas of lanes whose ends are both here, or will be.
    pub(super) fn within(&self) -> Vec<Arc<Arena>> {
        let within = self.arenas.values().filter(|known| matches!(known.with, With::Us));
        within.filter_map(Known::arena).cloned().collect()
    }

    /// Ends of its lanes that are not here yet will not come any more.
    pub(super) fn nobody_comes(&self) {
        for known in self.arenas.values() {
            if let (With::Us, Some(arena)) = (&known.with, known.arena()) {
                arena.nobody_comes();
            }
        }
    }

    /// Takes in what was told elsewhere. What stood in its place is left.
    pub(super) fn take_over(&mut self, mut told: Self) -> Self {
        let mut left = Self::default();
        for (number, arena) in told.arenas.drain() {
            left.arenas.extend(self.arenas.insert(number, arena).map(|old| (number, old)));
        }
        for (number, link) in told.introduced.drain() {
            left.introduced.extend(self.introduced.insert(number, link).map(|old| (number, old)));
        }
        left
    }
}

/// The arenas of a link.
#[derive(Default)]
pub(super) struct Arenas {
    told: Mutex<Told>,
    /// Makers of lanes to the processes at other links, by the link's number; kept at the younger of the two.
    makers: Mutex<HashMap<u64, Maker>>,
}

/// How an announcement says who uses the lanes.
const WITH_MAKER: u64 = 0;
const WITH_YOURSELF: u64 = 1;
const WITH_INTRODUCED: u64 = 2;

impl Link {
    /// Takes note of what the peer tells about lanes.
    pub(super) fn learn(&self, packet: Packet, mut arrivals: Vec<Arrival>) -> Result<(), Error> {
        match packet {
            Packet::Introduce { number } => {
                let Some(Arrival::Descriptor(socket)) = arrivals.pop() else { return Err(MISSING) };
                if !crate::os::socket::is_seqpacket(&socket)? {
                    return Err(Error::BadPeer("an introduction without a socket"));
                }
                let charge = self.ledger().charge_descriptors(&[socket.as_fd()])?;
                let link = self.introduced_over(socket.into_fd())?;
                link.ledger().introduced_by(charge);
                if self.refuses_descriptors() {
                    link.refuse_descriptors();
                }
                let mut told = self.told();
                if told.introduced.len() >= MOST {
                    return Err(Error::BadPeer("more introductions than there may be"));
                }
                let old = told.introduced.insert(number, Arc::clone(&link));
                drop(told);
                let mut replaced = Told::default();
                replaced.introduced.extend(old.map(|old| (number, old)));
                super::reach::forget(replaced);
                Ok(())
            }
            Packet::Arena { token, number, lanes, cells, with } => {
                let arrival = arrivals.pop().ok_or(MISSING)?;
                let claim = Claim { number, token, lanes, cells: cells as usize, layout: self.layout() };
                let memory = match self.map_arena(&arrival, claim) {
                    Ok(arena) => {
                        arrival.close_mapped();
                        ArenaMemory::Mapped(arena)
                    }
                    Err(error @ Error::BadPeer(_)) => return Err(error),
                    Err(_) => {
                        let charge = self.ledger().charge(Amounts::of(Resource::Descriptors, 1))?;
                        ArenaMemory::Arrived { arrival, claim, _charge: charge }
                    }
                };
                let with = match with {
                    WITH_MAKER => With::Maker,
                    WITH_YOURSELF => With::Us,
                    other => {
                        let link = self.introduced(other - WITH_INTRODUCED);
                        With::Other(link.ok_or(Error::BadPeer("an arena with nobody"))?)
                    }
                };
                let mut told = self.told();
                if told.arenas.len() >= MOST {
                    return Err(Error::BadPeer("more arenas than there may be"));
                }
                let lookups = (lanes == 1).then_some(if matches!(with, With::Us) { 2 } else { 1 });
                let old = told.arenas.insert(number, Known { memory, with, lookups });
                drop(told);
                let mut replaced = Told::default();
                replaced.arenas.extend(old.map(|old| (number, old)));
                super::reach::forget(replaced);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The link to whom the peer has introduced us by this number; or said so over another link, which has left us what it
    /// knew.
    fn introduced(&self, number: u64) -> Option<Arc<Self>> {
        let find = |link: &Self| link.told().introduced.get(&number).cloned();
        find(self).or_else(|| self.alike().iter().find_map(|link| find(link)))
    }

    fn map_arena(&self, arrival: &Arrival, claim: Claim) -> Result<Arc<Arena>, Error> {
        let impossible = Error::BadPeer("an arena of impossible size");
        let sizes = arena::sizes(claim.lanes, claim.cells as u64, claim.layout).ok_or(impossible)?;
        let mapping = arrival.map(sizes, self.ledger())?;
        let lanes = self.ledger().charge(Amounts::of(Resource::Lanes, claim.lanes as usize))?;
        let arena = Arena::received(claim.number, claim.token, mapping, claim.lanes, claim.cells, claim.layout, lanes);
        Ok(Arc::new(arena.ok_or(impossible)?))
    }

    /// What the peer told, to be looked at.
    pub(super) fn told(&self) -> MutexGuard<'_, Told> {
        unpoisoned(&self.arenas.told)
    }

    /// A link to a process that our peer introduced us to.
    fn introduced_over(&self, socket: OwnedFd) -> Result<InUse, Error> {
        // Asked for first: a link that is dropped is closed for good, and this may be tried again.
        let name = super::acquaintance::own_name()?;
        let link = Link::over(socket, self.ledger().memory().unwrap_or(usize::MAX))?;
        link.greet_sooner_or_later(name);
        Ok(link)
    }

    /// The lane that the peer calls so, for an end of this side: in a mark that says where our end goes on (`moved`, and
    /// the other end is still on its way), or for an end that it sends us.
    pub(crate) fn find_lane(self: &Arc<Self>, name: Name, side: usize, moved: bool) -> Result<Lane, Error> {
        let (link, arena) = self.find_arena(name, true)?;
        if arena.lane(name.slot).is_none() {
            return Err(Error::BadPeer("a lane outside of its arena"));
        }
        if !arena.hold(name.slot, name.usage, side) {
            return Err(Error::BadPeer("an end that is here already, or was"));
        }
        let mover = moved.then(|| self.in_use());
        Ok(Lane::in_arena(&arena, name, side, link, mover).expect("looked at just now"))
    }

    /// Makes sure that the memory of a lane is mapped.
    pub(crate) fn ready_lane(self: &Arc<Self>, name: Name) -> Result<(), Error> {
        self.find_arena(name, false).map(|_| ())
    }

    /// An arena that the peer has announced, over this link or another one from the same process.
    fn find_arena(self: &Arc<Self>, name: Name, count: bool) -> Result<(InUse, Arc<Arena>), Error> {
        if let Some(found) = self.fetch(|_| self.look_up(name, count))? {
            return found;
        }
        // The other link may not even have been listened to yet. If that cannot be now, it is not the peer's fault.
        let mut failed = Self::hear_all();
        for link in self.alike() {
            if Arc::ptr_eq(self, &link) {
                continue;
            }
            match link.fetch(|_| link.look_up(name, count)) {
                Ok(Some(found)) => return found,
                Err(error) if error.passes() => failed = Err(error),
                _ => {}
            }
        }
        failed.and(Err(Error::BadPeer("a lane that was never announced")))
    }

    /// An arena, and the link to whoever uses its lanes besides us. The error, if its memory cannot be mapped now.
    fn look_up(self: &Arc<Self>, name: Name, count: bool) -> Option<Result<(InUse, Arc<Arena>), Error>> {
        let mut told = self.told();
        let known = told.arenas.get_mut(&name.arena)?;
        if let ArenaMemory::Arrived { arrival, claim, .. } = &known.memory {
            match self.map_arena(arrival, *claim) {
                Ok(arena) => known.memory = ArenaMemory::Mapped(arena),
                Err(error) => return Some(Err(error)),
            }
        }
        let ArenaMemory::Mapped(arena) = &known.memory else { return None };
        let with = match &known.with {
            With::Maker => self.in_use(),
            With::Us => Link::own(),
            With::Other(link) => link.in_use(),
        };
        let found = (with, arena.clone());
        if let Some(lookups) = &mut known.lookups
            && count
        {
            *lookups -= 1;
            if *lookups == 0 {
                told.arenas.remove(&name.arena);
            }
        }
        Some(Ok(found))
    }

    /// Makes a lane for the processes at these two links, and has them know of it. Costs no system call but for a new
    /// arena or an introduction. On an error nothing has happened.
    pub(crate) fn make_lane(one: &Arc<Self>, other: &Arc<Self>, cells: usize) -> Result<(Arc<Arena>, Name), Error> {
        let (one, other) = &meeting(one, other);
        let (young, old) = if one.number >= other.number { (one, other) } else { (other, one) };
        let private = young.is_local() && old.is_local();
        let mut makers = unpoisoned(&young.arenas.makers);
        if !makers.contains_key(&old.number) {
            makers.retain(|_, maker| maker.other.upgrade().is_some_and(|other| !other.is_down()));
        }
        let maker = makers.entry(old.number).or_insert_with(|| Maker::with(Arc::downgrade(old)));
        let with = introduce(&mut maker.introduction, young, old)?;
        if cells > SMALL {
            let mut made = Made::new(1, cells, private)?;
            let name = made.take().expect("one lane");
            announce(&mut made, young, old, with)?;
            return Ok((made.arena, name));
        }
        let (made, name) = maker.take(private)?;
        let announced = announce(made, young, old, with);
        let arena = made.arena.clone();
        match announced {
            Ok(()) => Ok((arena, name)),
            Err(error) => {
                maker.put_back(name);
                Err(error)
            }
        }
    }
}

/// Over which links two processes are told of a lane between them. Those by which the ends are sent and marked cannot go
/// away meanwhile. Two other processes are told over the oldest to each, so that they are introduced once only.
fn meeting(one: &Arc<Link>, other: &Arc<Link>) -> (Arc<Link>, Arc<Link>) {
    if one.is_local() || other.is_local() {
        return (one.clone(), other.clone());
    }
    let (eldest, oldest) = (one.eldest(), other.eldest());
    if Arc::ptr_eq(&eldest, &oldest) { (other.clone(), other.clone()) } else { (eldest, oldest) }
}

/// Makes sure that two other processes have a link to each other. The number of the introduction.
fn introduce(introduction: &mut Option<Introduction>, young: &Arc<Link>, old: &Arc<Link>) -> Result<u64, Error> {
    if young.is_local() || old.is_local() || Arc::ptr_eq(young, old) {
        return Ok(0);
    }
    let introduction = match introduction {
        Some(introduction) => introduction,
        none => {
            static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
            let (one, other) = crate::os::socket::pair()?;
            // Before either can say hello, so that the kernel says who does.
            crate::os::socket::credentials::ask(std::os::fd::AsFd::as_fd(&one), true)?;
            crate::os::socket::credentials::ask(std::os::fd::AsFd::as_fd(&other), true)?;
            let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            none.insert(Introduction { number, sockets: [Some(one), Some(other)] })
        }
    };
    for (link, socket) in [young, old].into_iter().zip(&mut introduction.sockets) {
        if let Some(fd) = socket.take() {
            let packet = Packet::Introduce { number: introduction.number };
            let handles = [crate::channel::handle::Handle::Fd(fd)];
            let sent = link.try_send(&packet, Parcel::handles(&handles));
            if !matches!(sent, Ok(true)) {
                let [crate::channel::handle::Handle::Fd(fd)] = handles else { unreachable!("a descriptor") };
                *socket = Some(fd);
                return sent.and(Err(Error::WouldBlock));
            }
        }
    }
    Ok(introduction.number)
}

/// Tells the two processes of an arena, if they do not know it yet.
fn announce(made: &mut Made, young: &Arc<Link>, old: &Arc<Link>, introduction: u64) -> Result<(), Error> {
    if made.told == [true; 2] {
        return Ok(());
    }
    let alike = Arc::ptr_eq(young, old);
    for (index, link, other) in [(0, young, old), (1, old, young)] {
        if made.told[index] {
            continue;
        }
        if alike && index == 1 {
            made.told[1] = true;
        } else if link.is_local() {
            // Whoever moves an end here says so to the other one itself.
            made.told[index] = true;
        } else {
            let with = match () {
                () if alike => WITH_YOURSELF,
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
            let fd = made.fd.take().expect("kept until both know it");
            let memory = Shareable { mapping: made.arena.mapping(), fd: Some(fd) };
            let sent = link.try_send(&packet, Parcel::memory(&memory));
            made.fd = memory.fd;
            if !sent? {
                return Err(Error::WouldBlock);
            }
            made.told[index] = true;
        }
    }
    made.fd = None;
    Ok(())
}
