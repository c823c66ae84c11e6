//! The peer table: which links lead to the same process.
//!
//! Two processes can have several links: a program may give them several sockets, and any process may introduce the two
//! to each other. New arenas and introductions go over the oldest introduced link that is up in place of another
//! introduced link, so that links do not cause ever more links. A process that introduced a link made the socket, and
//! may have kept a copy. So link A stands in place of link B only if every process that can harm A can harm B, too
//! ([`Introducers`]).
//!
//! A process has a name: a random number in the handshake, which is the first packet on each link. Two links lead to
//! the same process if their peers send the same name *and* the kernel reports the same process for both: the same
//! process id, and the same inode number of a pidfd. No two processes ever have the same inode number, so a process
//! gains nothing by using the name of another process, not even with the process id of a process that has ended. If the
//! inode number of one of the two is not known, the name and the process id decide.
//!
//! An introducer says which process is at the other end of the link. The receiver believes the introducer only where a
//! lie harms nothing but the introducer's own channels: see [`link_to_both`].

use std::cell::RefCell;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::link::reader::REST_LIMIT;
use crate::link::room::SocketBlockedOn;
use crate::link::uses::Directory;
use crate::link::{ANONYMOUS, Link};
use crate::os;
use crate::os::fork::PerProcess;
use crate::os::socket::NOT_NOW;
use crate::peer::Peer;
use crate::sync::unpoisoned;
use crate::wake::condvar::Condvar;

/// The identity of the process at the other end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Process {
    /// The random name in the handshake of the process.
    name: u128,
    /// The process id. The kernel may give the number to another process after the end of this process.
    pid: u32,
    /// The inode number of the process's pidfd, which no other process ever has. `None` if the kernel did not give the
    /// number.
    inode: Option<u64>,
}

impl Process {
    /// Returns the identity of the process `peer` with this name in the handshake and this inode number of the pidfd.
    /// `None` if the peer gave no name, or if the kernel did not report its process id.
    pub(crate) fn new(name: u128, peer: Peer, inode: u64) -> Option<Self> {
        let pid = peer.pid.filter(|_| name != ANONYMOUS)?;
        Some(Self { name, pid, inode: Some(inode) })
    }

    /// Returns the process under which a new link to this process is entered into the peer table `known`: this process
    /// if the table has it. Otherwise the newest process with the same name and process id, if the inode number of one
    /// of the two is not known. Otherwise this process.
    fn as_known<T>(self, known: &BTreeMap<Self, T>) -> Self {
        if known.contains_key(&self) {
            return self;
        }
        let (first, last) = (Self { inode: None, ..self }, Self { inode: Some(u64::MAX), ..self });
        let mut alike = known.range(first..=last).map(|(process, _)| *process).rev();
        alike.find(|other| other.inode.is_none() || self.inode.is_none()).unwrap_or(self)
    }
}

/// Returns the peer table of this process: by peer process, the links to that process, the oldest first. Dropped links
/// may still be in the table.
fn links() -> &'static Mutex<BTreeMap<Process, Vec<Weak<Link>>>> {
    static LINKS: PerProcess<Mutex<BTreeMap<Process, Vec<Weak<Link>>>>> = PerProcess::new(Mutex::default);
    LINKS.get()
}

/// An entry of the list of all links.
struct Listed {
    link: Weak<Link>,
    /// The directory of the link. While the link is being dropped, the announcements are reachable only by this entry.
    directory: Arc<dyn Directory>,
}

impl Listed {
    fn is_being_dropped(&self) -> bool {
        self.link.strong_count() == 0
    }
}

/// Returns the list of all links of this process to other processes, by number. A link that is being dropped stays in
/// the list until the announcements of the peer were passed on ([`forget`]), or until the link is [retained](retain).
fn all() -> &'static Mutex<BTreeMap<u64, Listed>> {
    static ALL: PerProcess<Mutex<BTreeMap<u64, Listed>>> = PerProcess::new(Mutex::default);
    ALL.get()
}

/// Returns the condition variable that is notified when a dropped link leaves the list of all links.
fn forgotten() -> &'static Condvar {
    static FORGOTTEN: PerProcess<Condvar> = PerProcess::new(Condvar::default);
    FORGOTTEN.get()
}

/// The state of a thread in the destructor of a link.
#[derive(Default)]
struct Dropping {
    /// The numbers of the links in whose destructors the thread is.
    links: Vec<u64>,
    /// The deadline of the thread for all waits for links dropped by other threads; `None` until the first wait.
    patience: Option<Deadline>,
}

thread_local! {
    static DROPPING: RefCell<Dropping> = const { RefCell::new(Dropping { links: Vec::new(), patience: None }) };
}

/// The longest time for which a thread in the destructor of a link waits, in all its waits together, for links dropped
/// by other threads: 400 ms. Two such threads may wait for each other.
const PATIENCE: Duration = Duration::from_millis(400);

/// The longest time for which a look through the sockets of all links waits for other receiving threads: 400 ms. Such a
/// thread needs some microseconds, unless it waits for a processor.
const HEARING: Duration = Duration::from_millis(400);

/// Adds the new link `link` to the list of all links of this process to other processes.
pub(crate) fn note(link: &Arc<Link>) {
    let listed = Listed { link: Arc::downgrade(link), directory: Arc::clone(&link.directory) };
    unpoisoned(all()).insert(link.number(), listed);
}

#[cfg(test)]
thread_local! {
    /// Acts like another thread while this thread enters its next link into the peer table.
    pub(super) static MEANWHILE: std::cell::Cell<Option<Box<dyn FnOnce()>>> = const { std::cell::Cell::new(None) };
}

/// Lists this link among the links that are being dropped. Only for tests.
#[cfg(test)]
pub(crate) fn list_as_dropped(link: &Link) {
    let listed = Listed { link: Weak::new(), directory: Arc::clone(&link.directory) };
    unpoisoned(all()).insert(link.number(), listed);
}

/// Removes the dropped link with this number from the list of all links. Its peer's announcements were passed on to
/// another link before, or are not needed. Does nothing if the link is not in the list, or is there again
/// ([`retain`]).
pub(crate) fn forget(number: u64) {
    let mut all_links = unpoisoned(all());
    let removed = all_links.get(&number).is_some_and(Listed::is_being_dropped).then(|| all_links.remove(&number));
    drop(all_links);
    if removed.is_some() {
        forgotten().notify_all();
    }
}

/// The dropped links that are retained: see [`retain`].
static RETAINED: PerProcess<Mutex<VecDeque<Arc<Link>>>> = PerProcess::new(Mutex::default);

/// How often a link was retained.
static TIMES_RETAINED: AtomicU64 = AtomicU64::new(0);

/// Returns how often a dropped link was [retained](retain) so far.
pub(crate) fn times_retained() -> u64 {
    TIMES_RETAINED.load(Ordering::SeqCst)
}

/// Enters `link` into the peer table and the list of all links in place of the link `dropped`, from which everything
/// was moved to `link`; drops `link` later, after a pause. Until then its packets can be received, and the peer's
/// announcements over it are found. Called by the destructor of `dropped`.
pub(super) fn retain(dropped: &Weak<Link>, link: Arc<Link>) {
    if let Some(process) = link.process()
        && let Some(known) = unpoisoned(links()).get_mut(&process)
    {
        let places = known.iter_mut().filter(|known| Weak::ptr_eq(known, dropped));
        places.for_each(|place| *place = Arc::downgrade(&link));
    }
    // Noted after the link is in the peer table, and before it stops counting as dropped: so a search that has not
    // found the link in the table is repeated.
    TIMES_RETAINED.fetch_add(1, Ordering::SeqCst);
    note(&link);
    forgotten().notify_all();
    unpoisoned(RETAINED.get()).push_back(link);
    deferred::try_later("retained links", drop_retained);
}

/// Drops the links that were [retained](retain), the oldest first. The first link that still cannot be dropped is
/// retained again, behind the others, and ends the call: each such attempt receives from all links.
fn drop_retained() {
    let before = times_retained();
    while times_retained() == before {
        let Some(link) = unpoisoned(RETAINED.get()).pop_front() else { return };
        drop(link);
    }
}

/// Calls `step`, a part of the destructor of the link with the number `number`, and then removes the link from the list
/// of all links, unless `step` has called [`retain`].
pub(crate) fn while_dropping(number: u64, step: impl FnOnce()) {
    /// Notes that the thread has left the destructor of the link, even after a panic in the program's code.
    struct Dropped(u64);
    impl Drop for Dropped {
        fn drop(&mut self) {
            let _ = DROPPING.try_with(|dropping| {
                let mut dropping = dropping.borrow_mut();
                dropping.links.pop();
                if dropping.links.is_empty() {
                    *dropping = Dropping::default();
                }
            });
            forget(self.0);
        }
    }
    let _ = DROPPING.try_with(|dropping| dropping.borrow_mut().links.push(number));
    let _dropped = Dropped(number);
    step();
}

/// Removes the dropped links to `process` from the peer table, because an entry retains the memory of its link. Does
/// nothing if the process is `None`.
pub(crate) fn forget_dropped(process: Option<Process>) {
    if let Some(process) = process {
        let mut links = unpoisoned(links());
        if let Entry::Occupied(mut known) = links.entry(process) {
            known.get_mut().retain(|known| known.strong_count() > 0);
            if known.get().is_empty() {
                known.remove();
            }
        }
    }
}

/// Returns whether the calling thread is in the destructor of a link.
pub(crate) fn is_dropping() -> bool {
    DROPPING.try_with(|dropping| !dropping.borrow().links.is_empty()).unwrap_or(true)
}

/// Waits for the links that other threads are dropping, until the announcements of the peers were passed on, or until
/// the deadline. A thread in the destructor of a link itself waits for [`PATIENCE`] at most.
pub(crate) fn await_dropped(deadline: Deadline) {
    let mut all_links = unpoisoned(all());
    if !all_links.values().any(Listed::is_being_dropped) {
        return;
    }
    let own = DROPPING.try_with(|dropping| {
        let mut dropping = dropping.borrow_mut();
        let is_in_one = !dropping.links.is_empty();
        let patience = is_in_one.then(|| *dropping.patience.get_or_insert_with(|| Deadline::after(PATIENCE)));
        (dropping.links.clone(), patience)
    });
    // Not known if the thread is ending.
    let Ok((own, patience)) = own else { return };
    let deadline = patience.map_or(deadline, |patience| deadline.earlier(patience));
    let dropped =
        |(number, link): (&u64, &Listed)| (link.is_being_dropped() && !own.contains(number)).then_some(*number);
    let going: Vec<u64> = all_links.iter().filter_map(dropped).collect();
    let is_going =
        |all_links: &BTreeMap<u64, Listed>, number| all_links.get(number).is_some_and(Listed::is_being_dropped);
    while going.iter().any(|number| is_going(&all_links, number)) && !deadline.has_passed() {
        all_links = forgotten().wait(all(), all_links, deadline.remaining(Instant::now()));
    }
}

/// Returns all existing links of this process to other processes.
pub(crate) fn all_there_are() -> Vec<Arc<Link>> {
    unpoisoned(all()).values().filter_map(|listed| listed.link.upgrade()).collect()
}

/// Returns the first result of `find`, called with the directory of each link that is being dropped and has not passed
/// on the announcements of its peer yet. `find` runs under the lock of the list of all links, so it must drop no link.
pub(crate) fn find_among_dropped<T>(find: impl FnMut(&dyn Directory) -> Option<T>) -> Option<T> {
    let all_links = unpoisoned(all());
    all_links.values().filter(|listed| listed.is_being_dropped()).map(|listed| &*listed.directory).find_map(find)
}

/// Tries again to send the unsent packets of all links of this process. Never waits. If the kernel refuses a packet,
/// the process tries again later. A full socket wakes its peer anyway.
pub(crate) fn send_all_that_is_unsent() {
    let is_refused = |link: &&Arc<Link>| link.unsent() == Some(SocketBlockedOn::Kernel);
    let is_left = all_there_are().iter().filter(is_refused).count() > 0;
    if is_left {
        deferred::try_later("wake-ups", send_all_that_is_unsent);
    }
}

/// Returns all links of this process to the process with this inode number of its pidfd, other than this process
/// itself.
pub(crate) fn links_to_inode(inode: u64) -> Vec<Arc<Link>> {
    let Ok(own) = own_name() else { return Vec::new() };
    let links = unpoisoned(links());
    let known = links.iter().filter(|(process, _)| process.inode == Some(inode) && process.name != own);
    known.flat_map(|(_, links)| links).filter_map(Weak::upgrade).collect()
}

/// Returns all existing links of this process to the peer process `process`, the oldest first.
pub(crate) fn links_to(process: Process) -> Vec<Arc<Link>> {
    unpoisoned(links()).get(&process).into_iter().flatten().filter_map(Weak::upgrade).collect()
}

/// Receives the packets in the sockets of all links of this process. If another thread is the leader of a link, waits
/// until the leader has emptied the socket, for about [`HEARING`] at most for all links together. The caller must be
/// the leader of no link, and must hold no lock of a link and not the lock of the mailbox.
///
/// # Errors
/// A temporary error if the packets of some link could not be received now, or if there are more than a [`Look`]
/// receives.
pub(crate) fn drain_all() -> Result<(), Error> {
    Look::begin().at_all()
}

/// The most rounds of [`Look::at_all`].
const ROUNDS: usize = 16;

/// The number of packets and descriptors, counted together, that a look receives from each link in any case.
const FIRST_LOOK: usize = 16;

/// The number of packets and descriptors, counted together, that a look receives from all links beyond
/// [`FIRST_LOOK`] from each. To receive them takes some 40 ms.
const LOOK_LIMIT: usize = 16 * 1024;

/// A look through the sockets of many links. A peer can introduce many links, and fill the sockets of all of them. So
/// the packets of the look are counted together. The look first receives a few packets from each link: the links to
/// honest peers rarely have more.
///
/// The look counts packets instead of time, because the process may be stopped in the middle.
pub(crate) struct Look {
    /// The number of packets and descriptors that the look may still receive, beyond [`FIRST_LOOK`] from each link.
    left: usize,
    /// The end of the waits for other threads that receive.
    until: Deadline,
}

impl Look {
    /// Begins a look that waits for other receiving threads for about [`HEARING`].
    pub(crate) fn begin() -> Self {
        Self { left: LOOK_LIMIT, until: Deadline::after(HEARING) }
    }

    /// Receives the packets in the sockets of `links`. The caller must be the leader of no link, and must hold no lock
    /// of a link and not the lock of the mailbox.
    ///
    /// # Errors
    /// A temporary error if the packets of some link could not be received now, or if there are too many.
    pub(crate) fn at<'a>(&mut self, links: impl IntoIterator<Item = &'a Link>) -> Result<(), Error> {
        let mut looked = Ok(());
        let mut with_more = Vec::new();
        for link in links {
            match link.drain_or_follow(FIRST_LOOK, self.until) {
                Ok((_, true)) => with_more.push(link),
                Ok((_, false)) => {}
                Err(error) if error.passes() => looked = Err(error),
                // The link is down.
                Err(_) => {}
            }
        }
        for link in with_more {
            match link.drain_or_follow(self.left.min(REST_LIMIT), self.until) {
                Ok((work, is_more)) => {
                    self.left = self.left.saturating_sub(work);
                    if is_more {
                        looked = Err(NOT_NOW);
                    }
                }
                Err(error) if error.passes() => looked = Err(error),
                Err(_) => {}
            }
        }
        looked
    }

    /// Receives the packets in the sockets of all links of this process to other processes, and then of the links
    /// introduced meanwhile, for at most [`ROUNDS`] rounds. A packet in one socket may introduce a link with the unread
    /// handshake of a known process.
    fn at_all(mut self) -> Result<(), Error> {
        let mut newest = 0;
        let mut looked = Ok(());
        for _ in 0..ROUNDS {
            let new: Vec<_> = all_there_are().into_iter().filter(|link| link.number() > newest).collect();
            let Some(last) = new.last() else { break };
            newest = last.number();
            looked = self.at(new.iter().map(|link| &**link)).and(looked);
        }
        looked
    }
}

/// Returns whether this process has no link to any other process.
pub(crate) fn is_alone() -> bool {
    unpoisoned(all()).values().all(Listed::is_being_dropped)
}

/// Returns the name in this process's handshakes: a random number, drawn at the first call. Every later call returns
/// that number. Fails if the kernel gives no random number.
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

/// The identity of a process in an introducer's packet. It may be a lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedProcess {
    /// The random name of the process; 0 if the introducer does not know it.
    pub(crate) name: u128,
    /// The inode number of the process's pidfd; 0 if the introducer does not know it.
    pub(crate) inode: u64,
}

impl ClaimedProcess {
    /// Returns the claim by which this process introduces the process `process` to another process.
    pub(crate) fn of(process: Option<Process>) -> Self {
        let none = Self { name: ANONYMOUS, inode: 0 };
        process.map_or(none, |process| Self { name: process.name, inode: process.inode.unwrap_or(0) })
    }

    /// Returns whether this is a claim about the process `process`. If the inode number of one of the two is not known,
    /// the name decides.
    fn is_about(self, process: Process) -> bool {
        let inode = process.inode.filter(|_| self.inode != 0);
        self.name == process.name && inode.is_none_or(|inode| inode == self.inode)
    }
}

/// A process that introduced a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Introducer {
    Process(Process),
    /// A process with unknown identity, at the other end of the link with this number.
    Unknown(u64),
}

/// The processes that may have a copy of an introduced link's socket, as far as known: the process that introduced the
/// link and so made the socket, and the introducers of the link over which the socket came. A process with a copy can
/// send packets over the link, take packets away, and shut the link down.
///
/// Some of these processes are unknown here: the introducers of the link over which the socket's other half was sent.
/// The packet of an introduction does not name them.
#[derive(Clone, Debug)]
enum Introducers {
    These(BTreeSet<Introducer>),
    /// More than [`MOST_INTRODUCERS`].
    Anyone,
}

/// The most distinguished introducers of one link. A peer can make a chain of introductions, and so as many
/// introducers, as long as it likes.
const MOST_INTRODUCERS: usize = 64;

impl Introducers {
    /// Returns the introducers of a link that the peer of the link `by` introduces.
    fn over(by: &Link) -> Self {
        let introducer = by.process().map_or(Introducer::Unknown(by.number()), Introducer::Process);
        let mut introducers = match by.peer.entry.introduction.get().map(|introduction| &introduction.introducers) {
            None => BTreeSet::new(),
            Some(Self::These(these)) => these.clone(),
            Some(Self::Anyone) => return Self::Anyone,
        };
        introducers.insert(introducer);
        if introducers.len() > MOST_INTRODUCERS { Self::Anyone } else { Self::These(introducers) }
    }

    /// Returns whether each of these introducers is among `others` or is the process `peer`.
    fn are_among(&self, others: &Self, peer: Option<Process>) -> bool {
        let is_peer = |introducer: &Introducer| peer.is_some_and(|peer| *introducer == Introducer::Process(peer));
        match (self, others) {
            (_, Self::Anyone) => true,
            (Self::Anyone, Self::These(_)) => false,
            (Self::These(these), Self::These(others)) => these.iter().all(|one| others.contains(one) || is_peer(one)),
        }
    }
}

/// How another process introduced a link.
#[derive(Debug)]
struct Introduction {
    /// The process at the other end, according to the introducer.
    claim: ClaimedProcess,
    introducers: Introducers,
}

/// The entry of a link in the peer table: the identity of the link's peer process, and whether there was an older link
/// to that process.
#[derive(Default)]
pub(crate) struct PeerEntry {
    peer: OnceLock<Process>,
    /// Empty for a link without an introduction.
    introduction: OnceLock<Introduction>,
    /// Whether this is an introduced link, and this process had an older introduced link to the same peer process when
    /// this link was added to the peer table.
    has_older: AtomicBool,
}

/// Returns the link over which this process announces an arena to one process with both ends of each lane, if the two
/// given links lead to one process. Receives the process's handshakes first, if they are in the sockets. Returns `None`
/// if the links lead to two processes, or if the process of a link is unknown.
///
/// If only one peer's handshake was received, the claim of the other link's introducer decides: a peer sends its
/// handshake only when it uses the link. If the introducer has lied, it has made a lane whose other end never comes.
/// The lie harms only the introducer's own channel.
///
/// # Errors
/// [`Error::WouldBlock`] if the links lead to one process, and the handshake of this process cannot be sent over both
/// links now. Without both handshakes, the process could not find out that both links lead to this process.
pub(crate) fn link_to_both(one: &Arc<Link>, other: &Arc<Link>) -> Result<Option<Arc<Link>>, Error> {
    let claims =
        |link: &Link, process| link.peer.entry.introduction.get().is_some_and(|told| told.claim.is_about(process));
    let link = match (one.process(), other.process()) {
        (Some(known), Some(also)) if known == also => other,
        (Some(known), None) if claims(other, known) => one,
        (None, Some(known)) if claims(one, known) => other,
        _ => return Ok(None),
    };
    one.check_all_is_sent()?;
    other.check_all_is_sent()?;
    Ok(Some(link.clone()))
}

impl Link {
    /// Returns the link to another process with this number; `None` if it was dropped.
    pub(crate) fn numbered(number: u64) -> Option<Arc<Self>> {
        unpoisoned(all()).get(&number).and_then(|listed| listed.link.upgrade())
    }

    /// Stores `name`, the process name in the peer's handshake, and adds the link to the peer table. Does nothing if
    /// the kernel did not report the peer's process id, or if a name was stored before.
    ///
    /// Also does nothing for a link from this process to itself, and for a peer that sends this process's own name over
    /// a link that was not introduced: no other link leads to the same peer. Only over introduced links can the two
    /// ends of a lane in this process find each other.
    pub(crate) fn learn_name(&self, name: u128) {
        if !self.is_introduced() && own_name() == Ok(name) {
            return;
        }
        let Some(pid) = self.peer().and_then(|peer| peer.pid) else { return };
        let mut links = unpoisoned(links());
        let process = Process { name, pid, inode: self.peer.inode.get().copied() }.as_known(&links);
        if self.peer.entry.peer.set(process).is_err() {
            return;
        }
        let known = links.entry(process).or_default();
        let mut alike: Vec<_> = known.iter().filter_map(Weak::upgrade).collect();
        let has_older = self.is_introduced() && alike.iter().any(|link| link.is_introduced());
        self.peer.entry.has_older.store(has_older, Ordering::Relaxed);
        known.push(self.me.clone());
        drop(links);
        #[cfg(test)]
        MEANWHILE.take().into_iter().for_each(|act| act());
        // If other threads have dropped a link meanwhile, this thread has the last reference, and drops the link. The
        // destructor locks the table, and waits for the leaders of links, perhaps for this thread. So the drop is
        // deferred.
        alike.retain(|link| Arc::strong_count(link) == 1);
        if !alike.is_empty() {
            deferred::run_later(|| drop(alike));
        }
    }

    /// Notes that the peer of the link `by` has introduced this link, and claims that the process of `claim` is at the
    /// other end. Called before anything is received over this link.
    pub(crate) fn was_introduced(&self, by: &Self, claim: ClaimedProcess) {
        let introducers = Introducers::over(by);
        let _ = self.peer.entry.introduction.set(Introduction { claim, introducers });
    }

    /// Returns whether another process has introduced this link.
    fn is_introduced(&self) -> bool {
        self.peer.entry.introduction.get().is_some()
    }

    /// Returns whether packets may go over this link in place of the link `other` to the same process: both links were
    /// introduced, and every process that can harm this link can harm the other link, too.
    fn stands_for(&self, other: &Self) -> bool {
        let (Some(ours), Some(others)) = (self.peer.entry.introduction.get(), other.peer.entry.introduction.get())
        else {
            return false;
        };
        ours.introducers.are_among(&others.introducers, self.process())
    }

    /// Returns the claim by which this process introduces the process at the other end to another process. Before the
    /// peer's handshake was received, the claim is the introducer's claim for this link. If the introducer has lied,
    /// the claim is passed on only for a lane that the introducer can harm anyway.
    pub(crate) fn claim(&self) -> ClaimedProcess {
        let told = self.peer.entry.introduction.get().filter(|_| self.process().is_none());
        told.map_or_else(|| ClaimedProcess::of(self.process()), |introduction| introduction.claim)
    }

    /// Returns the identity of the process at the other end. Returns `None` until the peer's handshake was received,
    /// and if the handshake gave no name.
    pub(crate) fn process(&self) -> Option<Process> {
        self.peer.entry.peer.get().copied()
    }

    /// Returns the oldest link, among the introduced links to this link's peer process, that is up and [may stand for
    /// this link](Introducers). Returns this link if this link was not introduced, or if no other link is known. New
    /// arenas and introductions go over the returned link. Receives the peer's handshake first, if unread in the
    /// socket.
    pub(crate) fn oldest_link(self: &Arc<Self>) -> Arc<Self> {
        if self.peer.entry.peer.get().is_none() && !self.is_local() {
            // The handshake may be there unread.
            let _ = self.fetch(|_| None::<()>);
        }
        if !self.peer.entry.has_older.load(Ordering::Relaxed) {
            return self.clone();
        }
        // The peer closes a link without uses.
        let is_up = |link: &Arc<Self>| {
            link.probe();
            link.stands_for(self) && !link.is_down()
        };
        self.siblings().into_iter().find(is_up).unwrap_or_else(|| self.clone())
    }

    /// Returns all links to this link's peer process whose handshakes were received, including this link: first those
    /// that may stand for this link, then the others, the oldest first. Returns an empty list if the peer's handshake
    /// was not received or gave no name.
    pub(crate) fn siblings(&self) -> Vec<Arc<Self>> {
        let mut siblings = self.process().map(links_to).unwrap_or_default();
        siblings.sort_by_cached_key(|link| !link.stands_for(self));
        siblings
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::directory::LaneDirectory;
    use crate::os::fork;

    #[test]
    fn a_process_id_that_is_used_again_is_another_process() {
        let process = |inode| Process { name: 1, pid: 2, inode };
        let known = BTreeMap::from([(process(Some(3)), ()), (process(Some(4)), ())]);
        assert_eq!(process(Some(5)).as_known(&known), process(Some(5)));
        assert_eq!(process(Some(3)).as_known(&known), process(Some(3)));
        // Without an inode number the name and the process id decide.
        assert_eq!(process(None).as_known(&known), process(Some(4)));
        assert_eq!(process(Some(5)).as_known(&BTreeMap::from([(process(None), ())])), process(None));
        for other in [Process { name: 9, ..process(None) }, Process { pid: 9, ..process(None) }] {
            assert_eq!(other.as_known(&known), other);
        }
    }

    #[test]
    fn a_link_knows_the_inode_of_its_peer() {
        let (one, other) = crate::os::socket::pair().unwrap();
        let over = |socket| Link::over(socket, usize::MAX, Arc::<LaneDirectory>::default()).unwrap();
        let (one, other) = (over(one), over(other));
        other.send_handshake(1).unwrap();
        one.drain_once();
        let pid = std::process::id();
        let inode = os::process::inode(&os::process::open(pid).unwrap());
        assert_eq!(one.process(), Some(Process { name: 1, pid, inode }));
    }

    #[test]
    fn the_tables_retain_no_memory_of_many_links_that_were_dropped() {
        const LINKS: usize = 300;
        fork::arm().unwrap();
        let over_a_socket = || {
            use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
            let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            Link::over(pair.unwrap().0, usize::MAX, Arc::<LaneDirectory>::default()).unwrap()
        };
        let links: Vec<_> = (0..LINKS).map(|_| over_a_socket()).collect();
        assert!(unpoisoned(all()).len() >= LINKS);
        drop(links);
        assert!(unpoisoned(all()).len() < LINKS / 2, "{}", unpoisoned(all()).len());
    }
}
