//! Retention: which links stay open, and how long announcements over them are remembered.
//!
//! A link is in **use** as long as something depends on it: a lane of an end that is here, a member of a wait set, a
//! call. Uses are counted ([`InUse`]). Besides that, the announcements over one link refer to other links: to processes
//! that its peer has introduced, and to where an end that has not arrived yet goes on. Links refer to each other in
//! cycles through announcements, among honest processes too, and a peer can make any cycle it likes. So these
//! references are not counted but *followed*. A link is retained if it is in use, or if announcements reach it from a
//! link in use.
//!
//! A peer may refer over any link to a process to what it announced over another link to the same process. So as long
//! as one link to a process is retained, the announcements over all of them are remembered.
//!
//! When the last use of a link ends, this module looks for links that nothing reaches any more ([`collect`]). It
//! forgets the announcements over those links, unless another link to the same process takes them over. That opens the
//! cycles, and the links are dropped.
//!
//! Things kept for an end in transit to this process are no use of their links, although they are counted as one. These
//! are the link on which that end goes on, and ends that lie in messages to it ([`EndsInTransit`]). Only announcements
//! reach there, as long as the end may arrive. Each link knows how many such uses there may be ([`InTransit`]), so that
//! the search runs only where no other uses are left.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::arenas::{Announcements, let_go};
use super::peers;
use super::peers::Process;
use crate::lane::arena::Arena;
use crate::lane::in_transit::{EndsInTransit, Seen};
use crate::link::Link;
use crate::os::fault;
use crate::os::fork::PerProcess;
use crate::sync::unpoisoned;

/// A lock that a thread holds while it ends the last use of a link, and while it searches for links that nothing
/// reaches. So the links in use stay in use during a search.
static TURN: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// The number of retention marks in this process. A retention mark ([`InTransit`]) is a note that something is kept for
/// an end that may still be in transit to this process.
static IN_TRANSIT: AtomicUsize = AtomicUsize::new(0);

/// The size of the last search for links that nothing reaches: the number of links then, plus the number of lane slots,
/// ends and lanes that the search found for ends in transit.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
/// The credit for the next search for links that nothing reaches, which the end of a link's last use increases. A
/// search runs if the last search was no larger than this credit and [`CREDIT_FREE`] together.
static CREDIT: AtomicUsize = AtomicUsize::new(0);

/// The size of a search for unreachable links up to which a search runs whenever the last use of a link ends. After a
/// larger search the next one waits until enough last uses have ended: each adds [`CREDIT_EACH`]. So larger searches
/// are rarer: a program may have any number of idle ends that have not followed the other end yet.
const CREDIT_FREE: usize = 1024;
/// The amount that the end of a link's last use adds to the credit for the next search for links that nothing reaches.
const CREDIT_EACH: usize = 64;

/// A counted use of a link, by a lane, a member of a wait set or a call. The link stays open until every `InUse` of the
/// link is dropped.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Link>);

impl InUse {
    /// Counts a use of `link`, and returns an `InUse`, whose drop ends that use. The caller must have created the link,
    /// or have it through something in use. Uses of the link of this process to itself are not counted.
    fn of(link: &Arc<Link>) -> Self {
        if !link.is_own() {
            link.uses.fetch_add(1, Ordering::AcqRel);
        }
        Self(link.clone())
    }
}

impl Deref for InUse {
    type Target = Arc<Link>;

    fn deref(&self) -> &Arc<Link> {
        &self.0
    }
}

impl Clone for InUse {
    fn clone(&self) -> Self {
        Self::of(&self.0)
    }
}

impl Drop for InUse {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_own() {
            self.0.end_use();
        }
    }
}

/// A retention mark: a note that one use of each link in the field is on behalf of an end that may still be in transit
/// to this process. Retention (the rule that decides which links stay open) does not count those uses.
#[derive(Debug)]
pub(crate) struct InTransit(Vec<Arc<Link>>);

impl InTransit {
    /// Returns a new retention mark, to which [`with`](Self::with) adds links, if `in_transit` is `true` or this
    /// process has any other retention mark. `in_transit` says whether the end for which something is kept may be in
    /// transit to this process. Otherwise returns `None`: no mark is needed.
    pub(crate) fn counted(in_transit: bool) -> Option<Self> {
        (in_transit || IN_TRANSIT.load(Ordering::SeqCst) > 0).then(|| {
            IN_TRANSIT.fetch_add(1, Ordering::SeqCst);
            Self(Vec::new())
        })
    }

    /// Adds one use of each of these links to this retention mark, and returns the mark. Leaves out the link of this
    /// process to itself.
    pub(crate) fn with(mut self, links: impl IntoIterator<Item = Arc<Link>>) -> Self {
        let counted = links.into_iter().filter(|link| !link.is_own());
        self.0.extend(counted.inspect(|link| {
            link.in_transit.fetch_add(1, Ordering::AcqRel);
        }));
        self
    }
}

impl Drop for InTransit {
    fn drop(&mut self) {
        for link in &self.0 {
            link.in_transit.fetch_sub(1, Ordering::AcqRel);
        }
        IN_TRANSIT.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Link {
    /// Counts a use of the link, and returns an [`InUse`], whose drop ends that use. A link in use stays open.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        InUse::of(self)
    }

    /// Returns whether the link would still be in use if one of its uses ended. Uses for ends in transit do not count.
    pub(crate) fn has_other_uses(&self) -> bool {
        self.uses.load(Ordering::Acquire) > self.in_transit.load(Ordering::Acquire) + 1
    }

    #[inline]
    fn end_use(&self) {
        let others = |uses: usize| (uses > self.in_transit.load(Ordering::Acquire) + 1).then(|| uses - 1);
        if self.uses.fetch_update(Ordering::AcqRel, Ordering::Acquire, others).is_err() {
            self.end_last_use();
        }
    }

    #[cold]
    fn end_last_use(&self) {
        if self.is_elsewhere() {
            return;
        }
        let turn = unpoisoned(TURN.get());
        let before = self.uses.fetch_sub(1, Ordering::AcqRel);
        drop(turn);
        if before > 1 || self.has_references() {
            forget_unreachable();
        }
    }

    /// Returns whether dropping this link may have effects on other links. Other links may be dropped too, or the
    /// announcements over other links to the same process may be forgotten.
    fn has_references(&self) -> bool {
        self.announcements().has_references() || self.siblings().len() > 1
    }
}

/// The announcements that were received over a link that was dropped or is about to be dropped.
pub(in crate::link) struct Orphaned {
    /// The process at the other end of the dropped link; `None` if its handshake was not received or gave no name.
    pub(in crate::link) process: Option<Process>,
    pub(in crate::link) announcements: Announcements,
}

/// Searches for links that nothing in use reaches, and forgets the announcements over them, so that these links are
/// dropped. Does nothing if the last search was large and few last uses of links have ended since.
pub(crate) fn forget_unreachable() {
    let credit = CREDIT.fetch_add(CREDIT_EACH, Ordering::Relaxed);
    if credit + CREDIT_FREE >= LOOKED_AT.load(Ordering::Relaxed) && is_anything_to_forget() {
        // A link to the same process may not be known as such yet, because nothing was received from it.
        peers::drain_all();
        collect(None);
    }
}

/// Searches for links that nothing in use reaches. Returns whether the peer of at least one such link has announced
/// anything.
fn is_anything_to_forget() -> bool {
    let turn = unpoisoned(TURN.get());
    let all = peers::all_there_are();
    let reachable = Reachable::from_uses(&all, &[], &turn);
    let is_any = all.iter().any(|link| !reachable.contains(link) && !link.announcements().is_empty());
    drop(turn);
    fault::point("before the links of a search are let go");
    // Other threads may have dropped the links meanwhile.
    drop(reachable);
    let_go(all);
    is_any
}

/// Takes the announcements over all links that nothing in use reaches, and the announcements `late` of a dropped link.
/// Moves them to a link to the same process that something in use reaches, if there is one, and otherwise forgets them.
/// The caller must hold no lock of a link.
fn collect(late: Option<Orphaned>) {
    let mut late: Vec<_> = late.into_iter().collect();
    let turn = unpoisoned(TURN.get());
    let all = peers::all_there_are();
    let reachable = Reachable::from_uses(&all, &late, &turn);
    for link in all.iter().filter(|link| !reachable.contains(link)) {
        let announcements = std::mem::take(&mut *link.announcements());
        if !announcements.is_empty() {
            late.push(Orphaned { process: link.process(), announcements });
        }
    }
    let mut forgotten = Vec::new();
    for Orphaned { process, announcements } in late {
        let siblings = |link: &&Arc<Link>| process.is_some() && link.process() == process && reachable.contains(link);
        forgotten.push(match all.iter().find(siblings) {
            Some(heir) => heir.announcements().take_over(announcements),
            None => announcements,
        });
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

impl Orphaned {
    /// Moves these announcements to another link to the same process, if there is such a link that something in use
    /// reaches. Otherwise forgets the announcements.
    pub(in crate::link) fn pass_on(self) {
        if self.process.is_some_and(|process| !peers::links_to(process).is_empty()) {
            return collect(Some(self));
        }
        forget(self.announcements);
    }
}

/// Forgets these announcements, and discards everything that is kept for ends in transit because of them. Drops the
/// links that only these announcements reached.
pub(in crate::link) fn forget(announcements: Announcements) {
    let refers = announcements.has_references();
    announcements.nobody_comes();
    drop(announcements);
    if refers {
        forget_unreachable();
    }
}

/// Everything that the announcements over one link keep open: the links that they name, and the links and ends that are
/// kept for ends in transit.
#[derive(Default)]
struct LinkReferences {
    /// The links that the announcements name: to introduced processes, and to third processes that share an arena with
    /// this process.
    named: Vec<Arc<Link>>,
    /// The links and channel ends that are kept for ends in transit to this process.
    in_transit: EndsInTransit,
    /// The arenas in which something is kept for ends in transit, held so that none is dropped during the search.
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

/// The result of a search for the links to retain: the numbers of all links that are in use, or that announcements over
/// such links reach.
struct Reachable {
    numbers: HashSet<u64>,
    /// The references that the search followed, held so that they are dropped with this value, when the thread holds no
    /// lock.
    _references: Vec<LinkReferences>,
}

impl Reachable {
    fn contains(&self, link: &Arc<Link>) -> bool {
        self.numbers.contains(&link.number)
    }

    fn from_uses(all: &[Arc<Link>], late: &[Orphaned], _turn: &MutexGuard<'_, ()>) -> Self {
        // The announcements over all links to a process are followed together.
        let mut seen = Seen::default();
        let mut references: Vec<_> =
            all.iter().map(|link| LinkReferences::of(&link.announcements(), &mut seen)).collect();
        references.extend(late.iter().map(|late| LinkReferences::of(&late.announcements, &mut seen)));
        let mut siblings: HashMap<Process, Vec<usize>> = HashMap::new();
        let processes = all.iter().map(|link| link.process()).chain(late.iter().map(|late| late.process));
        for (at, process) in processes.enumerate() {
            if let Some(process) = process {
                siblings.entry(process).or_default().push(at);
            }
        }
        let in_transit = references.iter().map(|references| references.in_transit.size());
        LOOKED_AT.store(all.len() + in_transit.sum::<usize>(), Ordering::Relaxed);
        CREDIT.store(0, Ordering::Relaxed);
        let mut retained_in_transit: HashMap<u64, usize> = HashMap::new();
        for link in references.iter().flat_map(|references| &references.in_transit.links) {
            *retained_in_transit.entry(link.number).or_default() += 1;
        }
        let places: HashMap<u64, usize> = all.iter().enumerate().map(|(at, link)| (link.number, at)).collect();
        let is_in_use = |link: &Link| {
            link.uses.load(Ordering::Acquire) > retained_in_transit.get(&link.number).copied().unwrap_or_default()
        };
        let mut numbers = HashSet::new();
        loop {
            // Repeated: a link that announcements reach may have come into use since, and those announcements may be
            // used up.
            let new = |link: &&Arc<Link>| !numbers.contains(&link.number) && is_in_use(link);
            let mut next: Vec<_> = all.iter().filter(new).map(|link| link.number).collect();
            if next.is_empty() {
                break;
            }
            while let Some(number) = next.pop() {
                if !numbers.insert(number) {
                    continue;
                }
                let Some(at) = places.get(&number).copied() else { continue };
                let known = match all[at].process() {
                    Some(process) => siblings.remove(&process).unwrap_or_default(),
                    None => vec![at],
                };
                next.extend(known.into_iter().flat_map(|at| references[at].references()).map(|link| link.number));
            }
        }
        Self { numbers, _references: references }
    }
}

/// Returns one line of text for every link to another process: its number, its peer process, its number of uses, and
/// the numbers of the links to which its announcements refer.
#[cfg(strait_fuzzing)]
pub(crate) fn describe_all() -> Vec<String> {
    let turn = unpoisoned(TURN.get());
    let (all, mut seen) = (peers::all_there_are(), Seen::default());
    let references: Vec<_> = all.iter().map(|link| LinkReferences::of(&link.announcements(), &mut seen)).collect();
    drop(turn);
    let describe = |(link, references): (&Arc<Link>, &LinkReferences)| {
        let (number, process, uses) = (link.number, link.process(), link.uses.load(Ordering::Acquire));
        let refers: Vec<_> = references.references().map(|link| link.number).collect();
        format!("{number} to {process:x?}: {uses} uses, refers to {refers:?}")
    };
    all.iter().zip(&references).map(describe).collect()
}
