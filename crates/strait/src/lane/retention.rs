//! Retention: which links stay open, and how long the announcements over links are remembered.
//!
//! [Uses](crate::link::uses) of a link are counted. Besides, the announcements over one link refer to other links: to
//! links to introduced processes, and to links on which an end in transit goes on. Links refer to each other in cycles
//! through announcements, among honest processes too, and a peer can make any cycle it likes. So these references are
//! not counted but *followed*. A link is retained if the link is in use, or if announcements reach it from a link in
//! use.
//!
//! If there are several links to one process, the peer may refer over each link to an announcement over another link.
//! So as long as one link to a process is retained, the announcements over all links to the process are remembered.
//!
//! When the last use of a link ends, this module looks for unreachable links ([`collect`]). The search forgets the
//! announcements over those links, unless another link to the same process takes the announcements over. So the cycles
//! are opened, and the links are dropped.
//!
//! If not all packets can be received now, for lack of descriptors or memory, nothing is forgotten: an unread packet
//! may show another link to the same process. A dropped link is then [retained](peers::retain), and the search is
//! repeated later.
//!
//! Objects kept for an end in transit to this process ([`EndsInTransit`]) are counted uses of links, but do not retain
//! the links. Only announcements retain them, as long as the end may arrive. The search runs only for links without
//! other uses.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use super::directory::{Announcements, let_go};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::lane::arena::Arena;
use crate::lane::in_transit::{EndsInTransit, Seen};
use crate::link::peers::Process;
use crate::link::{Link, peers, uses};
use crate::os::fault;
use crate::os::socket::NOT_NOW;

/// The size of the last search for links that nothing reaches: the number of links then, plus the number of lane slots,
/// ends and lanes that the search found for ends in transit.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
/// The credit for the next search for unreachable links, increased by the end of a link's last use. A search runs if
/// the last search was no larger than this credit and [`CREDIT_FREE`] together.
static CREDIT: AtomicUsize = AtomicUsize::new(0);

/// The size of a search for unreachable links up to which a search runs whenever the last use of a link ends. After a
/// larger search the next one waits until enough last uses have ended: each adds [`CREDIT_EACH`]. So larger searches
/// are rarer: a program may have any number of idle ends that have not followed the other end yet.
const CREDIT_FREE: usize = 1024;
/// The amount added to the credit for the next search for unreachable links by the end of a link's last use.
const CREDIT_EACH: usize = 64;

/// How often announcements were passed on from one link to another.
static PASSED_ON: AtomicU64 = AtomicU64::new(0);

/// Returns how often announcements have moved to another link: passed on, or retained with their link.
fn times_moved() -> u64 {
    PASSED_ON.load(Ordering::SeqCst) + peers::times_retained()
}

/// The number of rounds in a row in which this process could not receive all packets, and so forgot nothing.
static ROUNDS: AtomicU32 = AtomicU32::new(0);
/// The most rounds in which nothing is forgotten. The thread that tries again makes the last of them after some 6 s.
/// The links that are not closed meanwhile may hold the descriptors or the memory that this process lacks.
const MOST_TRIES: u32 = 60;
/// Whether this process has forgotten announcements although a peer may refer to them later.
static HAS_LOST: AtomicBool = AtomicBool::new(false);

/// Returns whether this process may have lost announcements to which an honest peer refers later: it could not receive
/// all packets for long.
pub(crate) fn may_have_lost() -> bool {
    HAS_LOST.load(Ordering::SeqCst)
}

/// Decides whether announcements may be forgotten. `heard` is the result of receiving the packets that can bring such
/// announcements, or show another link to take them over. If this process lacks a resource to receive the packets, the
/// caller must forget nothing: this process [tries again](try_again) later. After [`MOST_TRIES`] such rounds, and if
/// there are too many packets ([`NOT_NOW`]), announcements may be forgotten nevertheless.
///
/// # Errors
/// The temporary error in `heard`, if the announcements must not be forgotten now.
fn may_forget(heard: Result<(), Error>) -> Result<(), Error> {
    match heard {
        Err(error) if error.passes() => {
            if error != NOT_NOW && ROUNDS.load(Ordering::Relaxed) < MOST_TRIES {
                deferred::try_later("announcements", try_again);
                return Err(error);
            }
            HAS_LOST.store(true, Ordering::SeqCst);
        }
        // After any other error the link is down, and its peer refers to nothing.
        _ => {}
    }
    Ok(())
}

/// Receives the packets of all links, as [`peers::drain_all`] does, and returns the result. `before` is the result of
/// receiving the packets of the dropped link, which that function leaves out. If both succeed, nothing is lacking any
/// more.
fn drain_all_after(before: Result<(), Error>) -> Result<(), Error> {
    let heard = peers::drain_all();
    if before.is_ok() && heard.is_ok() {
        ROUNDS.store(0, Ordering::Relaxed);
    }
    heard
}

/// Counts a round in which nothing was forgotten, and searches again for links whose announcements can be forgotten.
fn try_again() {
    ROUNDS.fetch_add(1, Ordering::Relaxed);
    forget_now();
}

/// A search for an announcement among the links to a process. Another thread may pass announcements on meanwhile, so
/// that the search finds them at neither link. Then the search is repeated, for at most [`SEARCH`].
pub(crate) struct Search {
    moved: u64,
    until: Deadline,
    /// How often the search was repeated or ended.
    looks: u32,
}

/// The longest time for which a search waits for other threads passing announcements on, and is repeated because of
/// such threads: 400 ms. Such a thread needs some microseconds, unless it waits for a processor. The limit protects
/// against peers that make this process pass announcements on again and again, and against a thread that waits for
/// something held by the searching thread.
const SEARCH: Duration = Duration::from_millis(400);

/// The number of waits of a search that last up to [`AGAIN`] also after [`SEARCH`]: the process may have been stopped
/// meanwhile.
const LOOKS: u32 = 2;

/// The longest time of a wait of a search after [`SEARCH`].
const AGAIN: Duration = Duration::from_millis(50);

impl Search {
    /// Begins a search.
    pub(crate) fn begin() -> Self {
        Self { moved: times_moved(), until: Deadline::after(SEARCH), looks: 0 }
    }

    /// Waits while other threads drop links, which may have unread packets with the announcement, but not beyond
    /// [`SEARCH`] and [`LOOKS`] waits of [`AGAIN`]. The caller must be the leader of no link: a thread that drops a
    /// link receives from all links.
    pub(crate) fn await_dropped(&self) {
        let may_look = self.looks < LOOKS;
        let is_late = self.until.has_passed();
        peers::await_dropped(if is_late && may_look { Deadline::after(AGAIN) } else { self.until });
    }

    /// Returns whether announcements were passed on since the search began or was last repeated. If so, a vain search
    /// must be repeated. Waits while another thread moves announcements, but for nothing else.
    pub(crate) fn was_disturbed(&mut self) -> bool {
        self.looks += 1;
        drop(uses::hold());
        let before = std::mem::replace(&mut self.moved, times_moved());
        before != self.moved && (self.looks <= LOOKS || !self.until.has_passed())
    }
}

/// Searches for unreachable links, and forgets the announcements over these links; the links are then dropped. Does
/// nothing if the last search was large and few last uses of links have ended since.
pub(crate) fn forget_unreachable() {
    let credit = CREDIT.fetch_add(CREDIT_EACH, Ordering::Relaxed);
    if credit + CREDIT_FREE >= LOOKED_AT.load(Ordering::Relaxed) {
        forget_now();
    }
}

/// Does what [`forget_unreachable`] does, in any case.
fn forget_now() {
    if is_anything_to_forget() {
        // A link to the same process may not be known as such yet, because nothing was received from it. An error here
        // changes nothing: the packets are received again before anything is forgotten.
        let _ = drain_all_after(Ok(()));
        // An error says that this process tries again later.
        let _ = collect(None);
    }
}

/// Searches for links that nothing in use reaches. Returns whether the peer of at least one such link has announced
/// anything.
fn is_anything_to_forget() -> bool {
    let turn = uses::hold();
    let all = peers::all_there_are();
    let reachable = Reachable::from_uses(&all, &processes_of(&all), None, &turn);
    let is_any = all.iter().any(|link| !reachable.contains(link) && !link.announcements().is_empty());
    drop(turn);
    fault::point("before the links of a search are let go");
    // Other threads may have dropped the links meanwhile.
    drop(reachable);
    let_go(all);
    is_any
}

/// Returns the process to which each of the links leads, as far as known.
fn processes_of(links: &[Arc<Link>]) -> Vec<Option<Process>> {
    links.iter().map(|link| link.process()).collect()
}

/// Takes the announcements over all links that nothing in use reaches, and over the dropped link `late`. Moves the
/// announcements to a retained link to the same process, if there is one, and otherwise forgets the announcements. The
/// caller must hold neither a lock of a link nor the lock of the mailbox.
///
/// Another link may lead to the same process without this process knowing, because the handshake on that link is
/// unread, or the packet that introduces the link. The peer may be about to refer, over that link, to announcements
/// that would be forgotten. So before announcements are forgotten, their link is shut down. Then everything unread is
/// received, and the search is repeated. Before a peer can use another link to this process, the peer has sent its
/// handshake there, and the introducer the packet of the introduction. A peer without a handshake by then finds the
/// link shut down before referring to the announcements.
///
/// # Errors
/// A temporary error if not everything unread can be received now. Nothing was forgotten then.
fn collect(late: Option<&Link>) -> Result<(), Error> {
    let (turn, all) = (uses::hold(), peers::all_there_are());
    let processes = processes_of(&all);
    let reachable = Reachable::from_uses(&all, &processes, late, &turn);
    if shut_those_without_heir(&all, &processes, &reachable, late) {
        drop(turn);
        drop(reachable);
        let_go(all);
        // The packets of the dropped link may be what is lacking, so this success alone ends no row of rounds.
        let heard = if late.is_some() { peers::drain_all() } else { drain_all_after(Ok(())) };
        may_forget(heard)?;
        let (turn, all) = (uses::hold(), peers::all_there_are());
        let processes = processes_of(&all);
        let reachable = Reachable::from_uses(&all, &processes, late, &turn);
        pass_on_or_forget(all, &processes, reachable, late, turn);
        return Ok(());
    }
    pass_on_or_forget(all, &processes, reachable, late, turn);
    Ok(())
}

/// Returns the link to `process` that takes over the announcements of another link to the process: the first of `all`
/// that is `reachable`. `processes` are the processes of the links in `all`.
fn heir<'a>(
    all: &'a [Arc<Link>],
    processes: &[Option<Process>],
    reachable: &Reachable,
    process: Option<Process>,
) -> Option<&'a Arc<Link>> {
    let mut links = all.iter().zip(processes);
    links.find(|(link, of)| process.is_some() && **of == process && reachable.contains(link)).map(|(link, _)| link)
}

/// Shuts down each link in `all` that is not `reachable` and whose announcements no other link would take over. Returns
/// whether a link to a known process was shut down, or whether the dropped link `late` leads to a known process without
/// another link to take over.
fn shut_those_without_heir(
    all: &[Arc<Link>],
    processes: &[Option<Process>],
    reachable: &Reachable,
    late: Option<&Link>,
) -> bool {
    let has_none = |process: Option<Process>| process.is_some() && heir(all, processes, reachable, process).is_none();
    let mut is_any = late.is_some_and(|late| has_none(late.process()));
    for (link, process) in all.iter().zip(processes) {
        if !reachable.contains(link) && has_none(*process) && !link.announcements().is_empty() {
            link.shut();
            is_any = true;
        }
    }
    is_any
}

/// Finishes [`collect`], once the links in `all` that are `reachable` are known, while `turn` is held. `processes` are
/// the processes of the links in `all`.
fn pass_on_or_forget(
    all: Vec<Arc<Link>>,
    processes: &[Option<Process>],
    reachable: Reachable,
    late: Option<&Link>,
    turn: MutexGuard<'_, ()>,
) {
    let unreachable = all.iter().zip(processes).filter(|(link, _)| !reachable.contains(link));
    let lost = late.map(|late| (late.process(), late.lose_announcements()));
    let lost = lost.into_iter().chain(unreachable.map(|(link, process)| (*process, link.lose_announcements())));
    let lost: Vec<_> = lost.filter(|(_, announcements)| !announcements.is_empty()).collect();
    fault::point("before announcements are passed on to another link");
    let mut forgotten = Vec::new();
    for (process, announcements) in lost {
        forgotten.push(match heir(&all, processes, &reachable, process) {
            Some(heir) => heir.announcements().take_over(announcements),
            None => announcements,
        });
        PASSED_ON.fetch_add(1, Ordering::SeqCst);
    }
    if let Some(late) = late {
        peers::forget(late.number());
    }
    drop(turn);
    drop(reachable);
    for announcements in &forgotten {
        announcements.nobody_comes();
    }
    // Links that are dropped now have announcements of their own.
    drop(forgotten);
    let_go(all);
}

/// Moves the announcements over `link` to another reachable link to the same process, if there is such a link.
/// Otherwise forgets the announcements. The destructor of `link` runs; `heard` is the result of receiving the remaining
/// packets.
///
/// # Errors
/// A temporary error if packets with such announcements, or packets that can show another link to the same process,
/// cannot be received now. Nothing was moved or forgotten then.
pub(crate) fn pass_on(link: &Link, heard: Result<(), Error>) -> Result<(), Error> {
    // Another link may lead to the same process without this process knowing, because nothing was received over that
    // link yet. The announcements stay in the directory meanwhile: a receiving thread may need them.
    let all_heard = drain_all_after(heard);
    match link.process() {
        Some(process) if peers::links_to(process).is_empty() => may_forget(all_heard)?,
        Some(_) => {
            may_forget(heard)?;
            return collect(Some(link));
        }
        None => may_forget(heard)?,
    }
    let announcements = link.lose_announcements();
    peers::forget(link.number());
    forget(announcements);
    Ok(())
}

/// Forgets these announcements, and discards everything kept for ends in transit because of the announcements. Drops
/// the links reached only by these announcements.
pub(crate) fn forget(announcements: Announcements) {
    let refers = announcements.has_references();
    announcements.nobody_comes();
    drop(announcements);
    if refers {
        forget_unreachable();
    }
}

/// Everything kept open by the announcements over one link: the links named in announcements, and the links and ends
/// kept for ends in transit.
#[derive(Default)]
struct LinkReferences {
    /// The links that the announcements name: to introduced processes, and to third processes with an arena in common
    /// with this process.
    named: Vec<Arc<Link>>,
    /// The links and channel ends kept for ends in transit to this process.
    in_transit: EndsInTransit,
    /// The arenas with entries for ends in transit, held so that no arena is dropped during the search.
    _arenas: Vec<Arc<Arena>>,
}

impl LinkReferences {
    fn of(announcements: &Announcements, seen: &mut Seen) -> Self {
        let mut named = Vec::new();
        announcements.named(|link| named.push(link.clone()));
        let arenas = announcements.local_arenas();
        let in_transit = EndsInTransit::at(arenas.iter().flat_map(Arena::slots_in_transit), seen);
        Self { named, in_transit, _arenas: arenas }
    }

    fn references(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.named.iter().chain(&self.in_transit.links)
    }
}

/// The result of a search for the links to retain: the numbers of all links in use, or reached by announcements over
/// such links.
struct Reachable {
    numbers: HashSet<u64>,
    /// The references followed by the search. The references are dropped with this value, when the thread holds no
    /// lock.
    _references: Vec<LinkReferences>,
}

impl Reachable {
    fn contains(&self, link: &Arc<Link>) -> bool {
        self.numbers.contains(&link.number())
    }

    /// Finds the links to retain among `all`, whose processes are `processes`, and the dropped link `late`. The caller
    /// passes the processes, because it may learn meanwhile to which process a link leads.
    fn from_uses(
        all: &[Arc<Link>],
        processes: &[Option<Process>],
        late: Option<&Link>,
        _turn: &MutexGuard<'_, ()>,
    ) -> Self {
        // The announcements over all links to a process are followed together.
        let mut seen = Seen::default();
        let mut references: Vec<_> =
            all.iter().map(|link| LinkReferences::of(&link.announcements(), &mut seen)).collect();
        references.extend(late.map(|late| LinkReferences::of(&late.announcements(), &mut seen)));
        let mut siblings: HashMap<Process, Vec<usize>> = HashMap::new();
        let known = processes.iter().copied().chain(late.map(Link::process));
        for (at, process) in known.enumerate() {
            if let Some(process) = process {
                siblings.entry(process).or_default().push(at);
            }
        }
        let in_transit = references.iter().map(|references| references.in_transit.size());
        LOOKED_AT.store(all.len() + in_transit.sum::<usize>(), Ordering::Relaxed);
        CREDIT.store(0, Ordering::Relaxed);
        let mut retained_in_transit: HashMap<u64, usize> = HashMap::new();
        for link in references.iter().flat_map(|references| &references.in_transit.links) {
            *retained_in_transit.entry(link.number()).or_default() += 1;
        }
        let places: HashMap<u64, usize> = all.iter().enumerate().map(|(at, link)| (link.number(), at)).collect();
        let is_in_use =
            |link: &Link| link.uses() > retained_in_transit.get(&link.number()).copied().unwrap_or_default();
        let mut numbers = HashSet::new();
        loop {
            // Repeated: a link that announcements reach may have come into use since, and those announcements may be
            // used up.
            let new = |link: &&Arc<Link>| !numbers.contains(&link.number()) && is_in_use(link);
            let mut next: Vec<_> = all.iter().filter(new).map(|link| link.number()).collect();
            if next.is_empty() {
                break;
            }
            while let Some(number) = next.pop() {
                if !numbers.insert(number) {
                    continue;
                }
                let Some(at) = places.get(&number).copied() else { continue };
                let known = match processes[at] {
                    Some(process) => siblings.remove(&process).unwrap_or_default(),
                    None => vec![at],
                };
                next.extend(known.into_iter().flat_map(|at| references[at].references()).map(|link| link.number()));
            }
        }
        Self { numbers, _references: references }
    }
}

/// Returns one line of text for every link to another process: number, peer process, number of uses, and the numbers of
/// the links to which its announcements refer.
#[cfg(strait_fuzzing)]
pub(crate) fn describe_all() -> Vec<String> {
    let turn = uses::hold();
    let (all, mut seen) = (peers::all_there_are(), Seen::default());
    let references: Vec<_> = all.iter().map(|link| LinkReferences::of(&link.announcements(), &mut seen)).collect();
    drop(turn);
    let describe = |(link, references): (&Arc<Link>, &LinkReferences)| {
        let (number, process, uses) = (link.number(), link.process(), link.uses());
        let refers: Vec<_> = references.references().map(|link| link.number()).collect();
        format!("{number} to {process:x?}: {uses} uses, refers to {refers:?}")
    };
    all.iter().zip(&references).map(describe).collect()
}
