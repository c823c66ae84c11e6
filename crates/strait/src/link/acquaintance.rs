//! Which links lead to the same process.
//!
//! Two processes can have several links: they may be given several sockets, and are introduced to each other by whoever
//! has reason to. What is new goes over the oldest that is up, so that links do not beget links.
//!
//! A process has a name, a random number that it says first on each link. Two links lead to the same process if their peers
//! say the same name *and* the kernel says the same process number of both; a process that uses another's name gains
//! nothing by it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use super::Link;
use crate::error::Error;
use crate::os;
use crate::os::fork::PerProcess;
use crate::sync::unpoisoned;

/// Who is at the other end of a link: its process number, and its name.
pub(super) type Process = (u32, u128);

/// The links to each process, the oldest first.
fn links() -> &'static Mutex<BTreeMap<Process, Vec<Weak<Link>>>> {
    static LINKS: PerProcess<Mutex<BTreeMap<Process, Vec<Weak<Link>>>>> = PerProcess::new(Mutex::default);
    LINKS.get()
}

/// Every link to another process.
fn all() -> &'static Mutex<Vec<Weak<Link>>> {
    static ALL: PerProcess<Mutex<Vec<Weak<Link>>>> = PerProcess::new(Mutex::default);
    ALL.get()
}

/// Takes note of a new link.
pub(super) fn note(link: &Arc<Link>) {
    let mut all = unpoisoned(all());
    all.retain(|link| link.strong_count() > 0);
    all.push(Arc::downgrade(link));
}

/// Every link to another process that is there.
pub(super) fn all_there_are() -> Vec<Arc<Link>> {
    unpoisoned(all()).iter().filter_map(Weak::upgrade).collect()
}

/// Every link to this process, the oldest first.
pub(super) fn links_to(process: Process) -> Vec<Arc<Link>> {
    unpoisoned(links()).get(&process).into_iter().flatten().filter_map(Weak::upgrade).collect()
}

/// Takes in what every link's peer has sent, where nobody else is at it: so that it can be called from anywhere.
pub(super) fn listen_to_all() {
    for link in all_there_are() {
        link.listen_once();
    }
}

/// Whether this process has no link to another one.
pub(super) fn is_alone() -> bool {
    unpoisoned(all()).iter().all(|link| link.strong_count() == 0)
}

/// The name of this process.
pub(crate) fn own_name() -> Result<u128, Error> {
    static NAME: PerProcess<OnceLock<u128>> = PerProcess::new(OnceLock::new);
    let own = NAME.get();
    match own.get() {
        Some(name) => Ok(*name),
        None => {
            let name = os::random_token()?;
            Ok(*own.get_or_init(|| name))
        }
    }
}

/// What a link knows of its like.
#[derive(Default)]
pub(super) struct Acquaintance {
    peer: OnceLock<Process>,
    /// Whether an older one leads to the same process.
    has_elder: AtomicBool,
}

impl Link {
    /// The link of this number, if it is still there.
    pub(crate) fn numbered(number: u64) -> Option<Arc<Self>> {
        if number == 0 {
            return Some(Arc::clone(&Self::own()));
        }
        // Let go of outside of the lock: one that goes listens to all.
        let all: Vec<_> = unpoisoned(all()).iter().filter_map(Weak::upgrade).collect();
        all.into_iter().find(|link| link.number == number)
    }

    /// The peer has said which process it is.
    pub(super) fn greeted_by(&self, name: u128) {
        let Some(pid) = self.peer().and_then(|peer| peer.pid) else { return };
        if self.acquaintance.peer.set((pid, name)).is_err() {
            return;
        }
        let mut links = unpoisoned(links());
        links.retain(|_, known| {
            known.retain(|link| link.strong_count() > 0);
            !known.is_empty()
        });
        let known = links.entry((pid, name)).or_default();
        self.acquaintance.has_elder.store(!known.is_empty(), Ordering::Relaxed);
        known.push(self.me.clone());
    }

    /// The process at the other end, once it has said its name.
    pub(super) fn process(&self) -> Option<Process> {
        self.acquaintance.peer.get().copied()
    }

    /// The oldest link to the same process that is up, over which to send what is new.
    pub(crate) fn eldest(self: &Arc<Self>) -> Arc<Self> {
        if self.acquaintance.peer.get().is_none() && !self.is_local() {
            // It may have said who it is, and nobody has listened yet.
            let _ = self.fetch(|_| None::<()>);
        }
        if !self.acquaintance.has_elder.load(Ordering::Relaxed) {
            return self.clone();
        }
        // The peer closes one that it uses no more.
        let is_up = |link: &Arc<Self>| {
            link.probe();
            !link.is_down()
        };
        self.alike().into_iter().find(is_up).unwrap_or_else(|| self.clone())
    }

    /// Takes in what every link's peer has said of itself, if anything is there to be taken in. An error is one that passes,
    /// of a link where that cannot be now.
    pub(super) fn hear_all() -> Result<(), Error> {
        let all = all_there_are();
        let heard = |heard: Result<(), Error>, link: &Arc<Self>| match link.fetch(|_| None::<()>) {
            Err(error) if error.passes() => Err(error),
            _ => heard,
        };
        all.iter().fold(Ok(()), heard)
    }

    /// All links to the same process, as far as they have said so.
    pub(super) fn alike(&self) -> Vec<Arc<Self>> {
        self.process().map(links_to).unwrap_or_default()
    }
}
