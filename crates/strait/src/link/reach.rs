//! Which links are kept, and how long what was told over them is known.
//!
//! A link is in **use** as long as something goes on over it: a lane of an end that is here, a member of a wait set, a
//! call. Uses are counted ([`InUse`]). Besides that, what was told over one link leads to others: to processes that
//! its peer has introduced, and to where an end goes on that has not come here yet. That is **knowledge**. Its links lead
//! to each other in circles, among honest processes too, and a peer can make any circle it likes; so knowledge is not
//! counted but *followed*. A link is kept if it is in use, or if knowledge leads to it from one that is.
//!
//! A peer may say over any link to a process what was announced over another one to the same. So as long as one
//! link to a process is kept, what was told over all of them is known.
//!
//! When the last use of a link ends, what nothing leads to any more is looked for ([`collect`]). What was told over such
//! links is forgotten, unless another one leads to the same process and takes it over; with that the circles are open,
//! and the links go.
//!
//! What is kept for an end that has not come is no use of its links, though it is counted as one: where that end goes on, and
//! ends that lie in messages to it ([`Absent`]). Only knowledge leads there, as long as the end may come. How much of that
//! there may be is known of each link ([`Away`]), so that it is looked for only where no other uses are left.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use super::Link;
use super::acquaintance::{self, Process};
use super::arenas::{Told, let_go};
use crate::channel::{Absent, Seen};
use crate::lane::arena::Arena;
use crate::os::fork::PerProcess;
use crate::sync::unpoisoned;

/// Held by whoever ends the last use of a link, and whoever looks for links that nothing leads to: those that are in use
/// then have been for as long as it looks.
static TURN: PerProcess<Mutex<()>> = PerProcess::new(Mutex::default);

/// How much there is that is kept for ends which may not have come.
static AWAY: AtomicUsize = AtomicUsize::new(0);

/// How much there was to look at the last time, and for how much it was looked again since.
static LOOKED_AT: AtomicUsize = AtomicUsize::new(0);
static CREDIT: AtomicUsize = AtomicUsize::new(0);

/// So much is looked at whenever there may be reason to. More only once there was reason so often that each time counts for
/// [`CREDIT_EACH`]: a program may have any number of idle ends that have not followed the other one yet.
const CREDIT_FREE: usize = 1024;
const CREDIT_EACH: usize = 64;

/// A link that is used for something.
#[derive(Debug)]
pub(crate) struct InUse(Arc<Link>);

impl InUse {
    /// A link that the caller made, or that something in use leads to.
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

/// What is kept for an end that may not have come: uses of these links are no uses then.
#[derive(Debug)]
pub(crate) struct Away(Vec<Arc<Link>>);

impl Away {
    /// If that end is `absent`; or if any is, since this one may have to do with it.
    pub(crate) fn counted(absent: bool) -> Option<Self> {
        (absent || AWAY.load(Ordering::SeqCst) > 0).then(|| {
            AWAY.fetch_add(1, Ordering::SeqCst);
            Self(Vec::new())
        })
    }

    /// One use of each of these.
    pub(crate) fn with(mut self, links: impl IntoIterator<Item = Arc<Link>>) -> Self {
        let counted = links.into_iter().filter(|link| !link.is_own());
        self.0.extend(counted.inspect(|link| {
            link.away.fetch_add(1, Ordering::AcqRel);
        }));
        self
    }
}

impl Drop for Away {
    fn drop(&mut self) {
        for link in &self.0 {
            link.away.fetch_sub(1, Ordering::AcqRel);
        }
        AWAY.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Link {
    /// Something is going on over it from now on.
    pub(crate) fn in_use(self: &Arc<Self>) -> InUse {
        InUse::of(self)
    }

    /// Whether it stays when one use of it ends.
    pub(crate) fn has_other_uses(&self) -> bool {
        self.uses.load(Ordering::Acquire) > self.away.load(Ordering::Acquire) + 1
    }

    #[inline]
    fn end_use(&self) {
        let others = |uses: usize| (uses > self.away.load(Ordering::Acquire) + 1).then(|| uses - 1);
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
        if before > 1 || self.leads_anywhere() {
            forget_what_nothing_leads_to();
        }
    }

    /// Whether more than itself may go with it.
    fn leads_anywhere(&self) -> bool {
        self.told().leads_anywhere() || self.alike().len() > 1
    }
}

/// What was told over a link that is gone, or is about to go.
pub(super) struct Orphaned {
    /// To which process it led, if that is known.
    pub(super) process: Option<Process>,
    pub(super) told: Told,
}

/// Looks for links that nothing leads to, and has them go.
pub(crate) fn forget_what_nothing_leads_to() {
    let credit = CREDIT.fetch_add(CREDIT_EACH, Ordering::Relaxed);
    if credit + CREDIT_FREE >= LOOKED_AT.load(Ordering::Relaxed) && is_anything_to_forget() {
        // A link to the same process may not have been listened to yet, and so not be known as such.
        acquaintance::listen_to_all();
        collect(None);
    }
}

/// Whether anything was told over links that nothing leads to.
fn is_anything_to_forget() -> bool {
    let turn = unpoisoned(TURN.get());
    let all = acquaintance::all_there_are();
    let reached = Reached::from_uses(&all, &[], &turn);
    let is_any = all.iter().any(|link| !reached.contains(link) && !link.told().is_empty());
    drop(turn);
    // Others may have let go of them meanwhile.
    drop(reached);
    let_go(all);
    is_any
}

/// Has what was told over links that nothing leads to go to others to the same process, or be forgotten; `late` as well.
/// To be called without any lock of a link.
fn collect(late: Option<Orphaned>) {
    let mut late: Vec<_> = late.into_iter().collect();
    let turn = unpoisoned(TURN.get());
    let all = acquaintance::all_there_are();
    let reached = Reached::from_uses(&all, &late, &turn);
    for link in all.iter().filter(|link| !reached.contains(link)) {
        let told = std::mem::take(&mut *link.told());
        if !told.is_empty() {
            late.push(Orphaned { process: link.process(), told });
        }
    }
    let mut forgotten = Vec::new();
    for Orphaned { process, told } in late {
        let alike = |link: &&Arc<Link>| process.is_some() && link.process() == process && reached.contains(link);
        forgotten.push(match all.iter().find(alike) {
            Some(heir) => heir.told().take_over(told),
            None => told,
        });
    }
    drop(turn);
    drop(reached);
    for told in &forgotten {
        told.nobody_comes();
    }
    // Links that go now have something to say themselves.
    drop(forgotten);
    let_go(all);
}

impl Orphaned {
    /// Another link to the same process takes it over, if there is one; or it is forgotten.
    pub(super) fn settle(self) {
        if self.process.is_some_and(|process| !acquaintance::links_to(process).is_empty()) {
            return collect(Some(self));
        }
        forget(self.told);
    }
}

/// What was told is not known any more; with it may go what it led to.
pub(super) fn forget(told: Told) {
    let leads = told.leads_anywhere();
    told.nobody_comes();
    drop(told);
    if leads {
        forget_what_nothing_leads_to();
    }
}

/// What is known by what was told over one link.
#[derive(Default)]
struct Knowledge {
    /// Links that were named.
    named: Vec<Arc<Link>>,
    /// What is kept for ends that have not come.
    absent: Absent,
    /// So that none is dropped where it is looked at.
    _arenas: Vec<Arc<Arena>>,
}

impl Knowledge {
    fn of(told: &Told, seen: &mut Seen) -> Self {
        let mut named = Vec::new();
        told.named(|link| named.push(link.clone()));
        let arenas = told.within();
        let absent = Absent::at(arenas.iter().flat_map(Arena::places_of_absent), seen);
        Self { named, absent, _arenas: arenas }
    }

    fn leads_to(&self) -> impl Iterator<Item = &Arc<Link>> {
        self.named.iter().chain(&self.absent.links)
    }
}

/// The links that something in use leads to.
struct Reached {
    numbers: HashSet<u64>,
    /// Dropped without a lock.
    _knowledge: Vec<Knowledge>,
}

impl Reached {
    fn contains(&self, link: &Arc<Link>) -> bool {
        self.numbers.contains(&link.number)
    }

    fn from_uses(all: &[Arc<Link>], late: &[Orphaned], _turn: &MutexGuard<'_, ()>) -> Self {
        // What was told over all links to a process is known together.
        let mut seen = Seen::default();
        let mut knowledge: Vec<_> = all.iter().map(|link| Knowledge::of(&link.told(), &mut seen)).collect();
        knowledge.extend(late.iter().map(|late| Knowledge::of(&late.told, &mut seen)));
        let mut alike: HashMap<Process, Vec<usize>> = HashMap::new();
        let processes = all.iter().map(|link| link.process()).chain(late.iter().map(|late| late.process));
        for (at, process) in processes.enumerate() {
            if let Some(process) = process {
                alike.entry(process).or_default().push(at);
            }
        }
        let absent = knowledge.iter().map(|knowledge| knowledge.absent.size());
        LOOKED_AT.store(all.len() + absent.sum::<usize>(), Ordering::Relaxed);
        CREDIT.store(0, Ordering::Relaxed);
        let mut kept_for_absent: HashMap<u64, usize> = HashMap::new();
        for link in knowledge.iter().flat_map(|knowledge| &knowledge.absent.links) {
            *kept_for_absent.entry(link.number).or_default() += 1;
        }
        let places: HashMap<u64, usize> = all.iter().enumerate().map(|(at, link)| (link.number, at)).collect();
        let is_in_use = |link: &Link| {
            link.uses.load(Ordering::Acquire) > kept_for_absent.get(&link.number).copied().unwrap_or_default()
        };
        let mut numbers = HashSet::new();
        loop {
            // Each time: one that knowledge led to may have come into use since, and that knowledge have been used up.
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
                    Some(process) => alike.remove(&process).unwrap_or_default(),
                    None => vec![at],
                };
                next.extend(known.into_iter().flat_map(|at| knowledge[at].leads_to()).map(|link| link.number));
            }
        }
        Self { numbers, _knowledge: knowledge }
    }
}

/// Every link, and what keeps it.
#[cfg(feature = "fuzzing")]
pub(crate) fn describe_all() -> Vec<String> {
    let turn = unpoisoned(TURN.get());
    let (all, mut seen) = (acquaintance::all_there_are(), Seen::default());
    let knowledge: Vec<_> = all.iter().map(|link| Knowledge::of(&link.told(), &mut seen)).collect();
    drop(turn);
    let describe = |(link, knowledge): (&Arc<Link>, &Knowledge)| {
        let (number, process, uses) = (link.number, link.process(), link.uses.load(Ordering::Acquire));
        let leads: Vec<_> = knowledge.leads_to().map(|link| link.number).collect();
        format!("{number} to {process:x?}: {uses} uses, leads to {leads:?}")
    };
    all.iter().zip(&knowledge).map(describe).collect()
}
