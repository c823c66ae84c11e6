//! Limits on the resources that peers can make this process hold, and reports of the amounts held.
//!
//! ```
//! use strait::quota::{Limits, Resource, limits, set_limits};
//!
//! // Each peer process may have at most 64 MiB of mapped memory here, and each user 512 MiB.
//! set_limits(Limits::new().peer(Resource::Memory, 64 << 20).user(Resource::Memory, 512 << 20));
//! # let _ = limits();
//! ```
//!
//! [`Channel::peer_usage`](crate::Channel::peer_usage) reports the amounts held for the peer of a channel, and
//! [`on_bad_peer`] calls a handler when a peer breaks the rules of the protocol.

// Accounts of the resources held for peers: one account for each peer process, and one for each user.
//
// The resources that a peer makes this process hold (mapped memory, descriptors, lanes, messages in private memory) are
// **charged** to the peer on arrival, and released when no longer held. Dropping a [`Charge`] releases the charge, so
// no resource stays counted for ever. A message that goes through a ring is not charged.
//
// A link charges to its [`Ledger`]. The ledger has its own limit for mapped memory ([`Options::peer_memory`]), and
// refers to the **account** of the process at the other end. All links to one process share the account. The kernel
// identifies the process before the first packet is taken; a peer unknown to the kernel has an account for each link.
// The accounts of one user share the user's limit, as [`share`] defines.
//
// An introduced link has another account than the direct links to its process: the introducer can have kept a copy of
// the process's socket, and send packets in the place of the process. All links to one process that one account's peer
// has introduced share an account. Such an account counts for the user of the introducer.
//
// A charge over a limit fails with [`Error::LimitReached`]. The caller decides what follows, and can always try again.
//
// [`Options::peer_memory`]: crate::Options::peer_memory

pub(crate) mod closing;
mod limits;
pub(crate) mod pools;
mod report;
mod share;
mod usage;

pub use crate::error::Resource;
pub use limits::{Limits, limits, set_limits};
pub use pools::{pool_held, pool_limit, set_pool_limit, trim};
pub use report::{BadPeer, Reported, on_bad_peer};
pub use usage::{Level, Usage};

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use crate::error::Error;
use crate::os::call_thread::PeerCalls;
use crate::os::epoll;
use crate::os::fork::{Born, PerProcess};
use crate::os::reaper::PacketRemoval;
use crate::peer::Peer;
use crate::sync::unpoisoned;

/// The greatest number of handles in one message: 64. No option can raise the number.
///
/// Example: [handles in a message](crate#handles).
pub const MAX_HANDLES: usize = 64;

/// The greatest number of descriptors that one end may have in flight by default. The kernel limits the descriptors in
/// flight of each user. A peer that does not receive must not make this process use up the kernel's limit.
pub(crate) const HANDLES_IN_FLIGHT: usize = 256;

/// The greatest number of descriptors that all ends of a link together may have in flight: 4,096. If `RLIMIT_NOFILE` is
/// less than 16,384, a quarter of `RLIMIT_NOFILE` applies instead.
pub(crate) const LINK_HANDLES_IN_FLIGHT: usize = 16 * HANDLES_IN_FLIGHT;

/// Number of kinds of resources that have limits.
const KINDS: usize = 7;

/// The uid 65534, which stands for peers that the kernel does not identify. The kernel also shows this uid for users
/// without a number in the user namespace.
const NOBODY: u32 = 65534;

/// One amount for each kind of resource, in the unit of the resource: bytes, or a number of objects.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts([u64; KINDS]);

impl Amounts {
    pub(crate) fn of(resource: Resource, amount: usize) -> Self {
        Self::default().and(resource, amount)
    }

    pub(crate) fn and(mut self, resource: Resource, amount: usize) -> Self {
        self.0[resource.index()] += amount as u64;
        self
    }

    pub(crate) fn plus(mut self, other: Self) -> Self {
        self.0.iter_mut().zip(other.0).for_each(|(mine, theirs)| *mine = mine.saturating_add(theirs));
        self
    }

    fn each(&self) -> impl Iterator<Item = (Resource, u64)> {
        Resource::ALL.into_iter().zip(self.0).filter(|(_, amount)| *amount > 0)
    }
}

/// A user of this machine, with the amounts held for all peer processes of the user.
struct User {
    uid: Option<u32>,
    /// The amounts held for all processes of the user. Every charge to an account of the user happens under this lock.
    state: Mutex<OfUser>,
    reached: [AtomicU64; KINDS],
}

#[derive(Default)]
struct OfUser {
    held: [u64; KINDS],
    /// Number of accounts of the user: one for each peer process, and one for each process that a peer process of the
    /// user has introduced.
    processes: u64,
}

/// The account of one peer process: the amounts held for the peer, and how often a limit stopped the peer.
pub(crate) struct Account {
    born: Born,
    /// The number of the account, which no other account of this process ever has.
    number: u64,
    peer: Option<Peer>,
    /// For an account of introduced links: whether packets over these links may come from another process than the
    /// peer, the introducer.
    is_introduced: bool,
    user: Arc<User>,
    /// The amounts of the resources held for the peer process, by index of the resource. Written only under the lock of
    /// the user's state.
    held: [AtomicU64; KINDS],
    reached: [AtomicU64; KINDS],
    /// Number of idle wake-ups (after which there was nothing to do) by the peer. The field `pauses` counts the idle
    /// wake-ups over the peer's budget: each of them throttled the peer.
    idle_wake_ups: AtomicU64,
    pauses: AtomicU64,
    /// Number of descriptors from the peer that a thread of the library has still to close.
    pending_close: AtomicU64,
    /// The last removal of a packet of the peer by a thread of the library, finished or not; `None` if no thread has
    /// removed a packet of the peer.
    taking: Mutex<Option<Arc<PacketRemoval>>>,
    /// The receives from the sockets which the peer has introduced.
    peer_calls: PeerCalls,
    /// The peer's breaches of the protocol that were reported to the program. Each breach is reported only once.
    reported: Mutex<Vec<&'static str>>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("peer", &self.peer).field("held", &self.held).finish_non_exhaustive()
    }
}

/// All accounts of this process, in two tables: the users by uid, and the accounts by peer process.
struct Accounts {
    users: BTreeMap<Option<u32>, Weak<User>>,
    /// The accounts, keyed by the pid and the uid of the peer process, and by the number of the introducer's account: 0
    /// for links without an introducer.
    processes: BTreeMap<(u32, u32, u64), Weak<Account>>,
}

static ACCOUNTS: PerProcess<Mutex<Accounts>> =
    PerProcess::new(|| Mutex::new(Accounts { users: BTreeMap::new(), processes: BTreeMap::new() }));

impl Account {
    /// Returns the account of the peer process `peer` for links that the peer of the account `introducer` has
    /// introduced; with `None`, for links without an introducer. Opens an account if there is none. A peer whose pid
    /// the kernel does not report gets a new account each time; but all introduced links that are charged before the
    /// kernel has named their peer share one account for each introducer.
    fn open(peer: Option<Peer>, introducer: Option<&Arc<Self>>) -> Arc<Self> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        let mut accounts = unpoisoned(ACCOUNTS.get());
        let introducers = introducer.map_or(0, |account| account.number);
        let key = match peer {
            // No process has the pid 0.
            None if introducer.is_some() => Some((0, 0, introducers)),
            peer => peer.and_then(|peer| Some((peer.pid?, peer.uid, introducers))),
        };
        // If an earlier process had the same pid, the new process inherits the amounts still held for the earlier
        // process.
        if let Some(known) = key.and_then(|key| accounts.processes.get(&key)).and_then(Weak::upgrade) {
            return known;
        }
        let uid = peer.filter(|peer| peer.pid.is_some() || peer.uid != NOBODY).map(|peer| peer.uid);
        let known = introducer.map(|account| account.user.clone());
        let user = known.or_else(|| accounts.users.get(&uid)?.upgrade()).unwrap_or_else(|| {
            accounts.users.retain(|_, user| user.strong_count() > 0);
            let user = Arc::new(User { uid, state: Mutex::default(), reached: Default::default() });
            accounts.users.insert(uid, Arc::downgrade(&user));
            user
        });
        unpoisoned(&user.state).processes += 1;
        let account = Arc::new(Self {
            born: Born::here(),
            number: NUMBER.fetch_add(1, Ordering::Relaxed),
            peer,
            is_introduced: introducer.is_some(),
            user,
            held: Default::default(),
            reached: Default::default(),
            idle_wake_ups: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            pending_close: AtomicU64::new(0),
            taking: Mutex::default(),
            peer_calls: PeerCalls::default(),
            reported: Mutex::default(),
        });
        if let Some(key) = key {
            accounts.processes.retain(|_, account| account.strong_count() > 0);
            accounts.processes.insert(key, Arc::downgrade(&account));
        }
        account
    }

    /// Charges all of `amounts` to the account. If the charge would exceed a limit in `limits`, of the process or of
    /// its user, counts the limit as reached. Then fails with the resource of the limit and charges nothing, unless
    /// `anyway` is true.
    fn charge(&self, amounts: &Amounts, limits: &Limits, anyway: bool) -> Result<(), Resource> {
        let mut user = unpoisoned(&self.user.state);
        for (resource, amount) in amounts.each() {
            let index = resource.index();
            let mine = self.held[index].load(Ordering::Relaxed);
            let fits = mine.checked_add(amount).is_some_and(|sum| sum <= limits.peer[index]);
            let shared = share::may_have(mine, amount, user.held[index], limits.user[index], user.processes);
            if !fits || !shared {
                self.reached[index].fetch_add(1, Ordering::Relaxed);
                if !shared {
                    self.user.reached[index].fetch_add(1, Ordering::Relaxed);
                }
                if !anyway {
                    return Err(resource);
                }
            }
        }
        for (resource, amount) in amounts.each() {
            let index = resource.index();
            user.held[index] = user.held[index].saturating_add(amount);
            self.held[index].fetch_add(amount, Ordering::Relaxed);
        }
        Ok(())
    }

    fn give_back(&self, amounts: &Amounts) {
        // In a forked child the account belongs to the parent, whose threads may hold the lock.
        if self.born.is_elsewhere() {
            return;
        }
        let mut user = unpoisoned(&self.user.state);
        for (resource, amount) in amounts.each() {
            let index = resource.index();
            user.held[index] = user.held[index].saturating_sub(amount);
            self.held[index].fetch_sub(amount, Ordering::Relaxed);
        }
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        if !self.born.is_elsewhere() {
            unpoisoned(&self.user.state).processes -= 1;
        }
    }
}

/// Says what happens to a charge that would exceed a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OverLimit {
    /// The charge fails with [`Error::LimitReached`].
    Refuse,
    /// The peer is charged all the same: for memory of which a peer can send only a little, and for what this process
    /// takes only to close it at once. A limit must not keep an end open for whose close other processes wait.
    Exceed,
}

/// The ledger of a link. The ledger counts the amounts held for the peer because of the link, and passes each charge on
/// to the account of the peer process.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// The limit on the peer's memory mapped because of the link, in bytes. `None` for a link that charges nothing,
    /// such as the local link.
    memory: Option<u64>,
    mapped: AtomicU64,
    account: OnceLock<Arc<Account>>,
    /// The charge for the link's own descriptor against the peer that introduced the two processes; `None` if no peer
    /// introduced the two processes.
    introduced: Option<Held>,
    /// The ledger of the link over which the introduction came; `None` if no peer introduced the two processes.
    introduced_over: Option<Weak<Self>>,
    /// Whether the link's peer has introduced a socket and kept this process from receiving from that socket.
    blocks_receives: AtomicBool,
}

impl Ledger {
    /// Creates the ledger of a link. At most `memory` bytes of the peer's memory may be mapped because of the link; if
    /// `memory` is `None`, the link charges nothing.
    pub(crate) fn new(memory: Option<usize>) -> Arc<Self> {
        Self::with(memory, None, None)
    }

    /// Creates the ledger of a link between two processes that another peer has introduced to each other over the link
    /// of the ledger `over`, with the limit of `over` on memory. `charge` is the charge against that peer for the
    /// link's own descriptor; the ledger keeps the charge. With `None`, the link counts as introduced, and no charge is
    /// kept.
    pub(crate) fn of_introduced(over: &Arc<Self>, charge: Option<Charge>) -> Arc<Self> {
        let held = charge.map_or_else(Held::nothing, Charge::into_held);
        Self::with(over.memory(), Some(held), Some(Arc::downgrade(over)))
    }

    fn with(memory: Option<usize>, introduced: Option<Held>, introduced_over: Option<Weak<Self>>) -> Arc<Self> {
        Arc::new(Self {
            memory: memory.map(|bytes| bytes as u64),
            mapped: AtomicU64::new(0),
            account: OnceLock::new(),
            introduced,
            introduced_over,
            blocks_receives: AtomicBool::new(false),
        })
    }

    /// Returns the greatest number of bytes of the peer's memory that may be mapped because of the link; `None` if the
    /// link charges nothing.
    pub(crate) fn memory(&self) -> Option<usize> {
        self.memory.map(|bytes| bytes as usize)
    }

    /// Records that the process `peer`, as the kernel identifies it, is at the other end of the link: from now on
    /// charges go to the account of `peer`, or on an introduced link to the account of `peer` and the introducer. Does
    /// nothing if the ledger has an account already.
    pub(crate) fn belongs_to(&self, peer: Peer) {
        self.account.get_or_init(|| Account::open(Some(peer), self.introducers_account()));
    }

    /// Returns the account of the peer that introduced the two processes of the link to each other; that peer is
    /// charged for the link's own descriptor. `None` if no peer introduced the two processes; an empty payer if no
    /// charge was kept.
    pub(crate) fn introducer(&self) -> Option<&Payer> {
        self.introduced.as_ref().map(|held| &held.payer)
    }

    /// Returns the account of the link's peer, for charges that outlive the link; an empty payer if the link charges
    /// nothing.
    pub(crate) fn payer(&self) -> Payer {
        Payer(self.memory.map(|_| self.account().clone()))
    }

    /// Returns the account of the link's peer as [`payer`](Self::payer) does; an empty payer if the link has no account
    /// yet. Opens no account: an account opened before the kernel has named the peer would stay without that name.
    pub(crate) fn known_payer(&self) -> Payer {
        Payer(self.memory.and_then(|_| self.account.get().cloned()))
    }

    /// Returns the number under which threads of the library work for the link's peer: the number of its account, or
    /// one that no account has. Opens no account.
    pub(crate) fn number(&self) -> usize {
        match self.known_payer().number() {
            0 => std::ptr::from_ref(self).addr(),
            number => number,
        }
    }

    fn account(&self) -> &Arc<Account> {
        self.account.get_or_init(|| Account::open(None, self.introducers_account()))
    }

    /// Returns whether the link's peer has introduced a socket and kept this process from receiving from that socket.
    pub(crate) fn blocks_receives(&self) -> bool {
        self.blocks_receives.load(Ordering::Relaxed)
    }

    /// Notes that the introducer keeps this process from receiving over the introduced link: the link over which the
    /// introduction came ends with the next receive.
    pub(crate) fn note_that_introducer_blocks(&self) {
        if let Some(over) = self.introduced_over.as_ref().and_then(Weak::upgrade) {
            over.blocks_receives.store(true, Ordering::Relaxed);
        }
    }

    fn introducers_account(&self) -> Option<&Arc<Account>> {
        self.introducer().and_then(Payer::account)
    }

    /// Charges the link's peer with all of `amounts`; a failed call charges nothing. Returns the charge; `None` if the
    /// link charges nothing.
    ///
    /// # Errors
    /// [`Error::LimitReached`].
    pub(crate) fn charge(self: &Arc<Self>, amounts: Amounts) -> Result<Option<Charge>, Error> {
        self.charge_up_to(amounts, &limits(), false)
    }

    /// Charges the link's peer with all of `amounts`, as [`Ledger::charge`] or [`Ledger::charge_anyway`] does:
    /// `over_limit` says which.
    pub(crate) fn charge_or(
        self: &Arc<Self>,
        amounts: Amounts,
        over_limit: OverLimit,
    ) -> Result<Option<Charge>, Error> {
        match over_limit {
            OverLimit::Refuse => self.charge(amounts),
            OverLimit::Exceed => Ok(self.charge_anyway(amounts)),
        }
    }

    /// Charges the link's peer with `amounts`, even if a limit is exceeded. Only for resources of which a peer can make
    /// this process hold a small, bounded amount, and for what this process takes only to close it at once. Returns the
    /// charge; `None` if the link charges nothing.
    pub(crate) fn charge_anyway(self: &Arc<Self>, amounts: Amounts) -> Option<Charge> {
        self.charge_up_to(amounts, &limits(), true).ok().flatten()
    }

    /// Charges the link's peer with the descriptors `fds`, which have just arrived. While this process has few free
    /// descriptors, the limit for the peer is the number of descriptors that one message can carry. Returns the charge;
    /// `None` if the link charges nothing.
    ///
    /// # Errors
    /// [`Error::LimitReached`]. [`Error::BadPeer`] if, in addition, more descriptors of the peer wait to be closed than
    /// one message can carry: a mere refusal would let the peer add more descriptors to the queue.
    pub(crate) fn charge_descriptors(self: &Arc<Self>, fds: &[impl AsRawFd]) -> Result<Option<Charge>, Error> {
        let mut limits = limits();
        if let Some(most) = few_are_left(fds) {
            let index = Resource::Descriptors.index();
            let one_message = MAX_HANDLES as u64;
            limits.peer[index] = limits.peer[index].min(one_message);
            limits.user[index] = limits.user[index].min((most / 4).max(4 * one_message));
        }
        let charged = self.charge_up_to(Amounts::of(Resource::Descriptors, fds.len()), &limits, false);
        if charged.is_err() && self.is_behind_with_closing() {
            return Err(Error::BadPeer("descriptors that take longer to close than to send"));
        }
        charged
    }

    /// Checks whether a message with `count` descriptors may leave its ring, so that its sender can send more, although
    /// the program has not received the message. The limit is half the usual one: the other half is for descriptors
    /// that arrive meanwhile, which cannot be refused without loss. While this process has few free descriptors, the
    /// limit is the number of descriptors that one message can carry.
    ///
    /// # Errors
    /// [`Error::LimitReached`].
    pub(crate) fn check_unread_descriptors(self: &Arc<Self>, count: usize) -> Result<(), Error> {
        let mut limits = limits();
        let limit = &mut limits.peer[Resource::Descriptors.index()];
        *limit /= 2;
        if has_few_descriptors() {
            *limit = (*limit).min(MAX_HANDLES as u64);
        }
        self.charge_up_to(Amounts::of(Resource::Descriptors, count), &limits, false).map(drop)
    }

    /// Returns whether more than [`MAX_HANDLES`] descriptors of the link's peer wait for a thread of the library to
    /// close them.
    fn is_behind_with_closing(&self) -> bool {
        self.account.get().is_some_and(|account| account.pending_close.load(Ordering::Relaxed) > MAX_HANDLES as u64)
    }

    /// Charges the link's peer with `fd`, a descriptor that this process could do without. Returns the charge; `None`
    /// if the link charges nothing. Fails with [`Error::LimitReached`] if a limit forbids the charge, or if this
    /// process has few free descriptors.
    pub(crate) fn charge_spare_descriptor(self: &Arc<Self>, fd: &impl AsRawFd) -> Result<Option<Charge>, Error> {
        if few_are_left(std::slice::from_ref(fd)).is_some() {
            return Err(Error::LimitReached(Resource::Descriptors));
        }
        self.charge_up_to(Amounts::of(Resource::Descriptors, 1), &limits(), false)
    }

    fn charge_up_to(
        self: &Arc<Self>,
        amounts: Amounts,
        limits: &Limits,
        anyway: bool,
    ) -> Result<Option<Charge>, Error> {
        let Some(most) = self.memory else { return Ok(None) };
        let memory = amounts.0[Resource::Memory.index()];
        let mapped = self.mapped.fetch_add(memory, Ordering::Relaxed);
        let charged = if !anyway && memory > 0 && mapped.saturating_add(memory) > most {
            self.account().reached[Resource::Memory.index()].fetch_add(1, Ordering::Relaxed);
            Err(Resource::Memory)
        } else {
            self.account().charge(&amounts, limits, anyway)
        };
        match charged {
            Ok(()) => Ok(Some(Charge { ledger: self.clone(), amounts, released: AtomicBool::new(false) })),
            Err(resource) => {
                self.mapped.fetch_sub(memory, Ordering::Relaxed);
                Err(Error::LimitReached(resource))
            }
        }
    }

    /// Reports to the program that the link's peer has broken the protocol, for the reason `reason`. Does nothing if
    /// the same reason was reported for the peer before. `link_lost` says whether the whole link is lost, or only one
    /// channel.
    #[cold]
    pub(crate) fn broken(&self, reason: &'static str, link_lost: bool) {
        // Within a process there is no peer: the program itself has written to the memory.
        static LOCAL_REPORTS: PerProcess<Mutex<Vec<&'static str>>> = PerProcess::new(Mutex::default);
        let account = self.memory.map(|_| self.account());
        let mut reported = unpoisoned(account.map_or_else(|| LOCAL_REPORTS.get(), |account| &account.reported));
        if !reported.contains(&reason) {
            reported.push(reason);
            let (peer, introduced) = account.map_or((None, false), |account| (account.peer, account.is_introduced));
            report::note(BadPeer { peer, reason, link_lost, introduced });
        }
    }

    /// Returns a ledger that charges nothing: for objects that a process sent to itself, and for peers no longer known.
    pub(crate) fn nobodys() -> Arc<Self> {
        Self::new(None)
    }

    /// Counts an idle wake-up (after which there was nothing to do) by the link's peer. `too_often` says whether the
    /// wake-up was over the peer's budget and so throttles the peer.
    pub(crate) fn count_idle_wake_up(&self, too_often: bool) {
        if let Some(account) = self.account.get() {
            account.idle_wake_ups.fetch_add(1, Ordering::Relaxed);
            account.pauses.fetch_add(too_often.into(), Ordering::Relaxed);
        }
    }

    /// Returns the amounts held for the link's peer and for all processes of the peer's user.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.account(), &limits())
    }
}

/// Returns the descriptor limit of this process (`RLIMIT_NOFILE`) if few descriptors are free, otherwise `None`. Few
/// descriptors are free if one of `fds`, the newest descriptors, has a number of at least three quarters of the limit.
fn few_are_left(fds: &[impl AsRawFd]) -> Option<u64> {
    // The kernel gives out the lowest free number, so a high number means that most numbers are in use.
    let highest = fds.iter().map(|fd| fd.as_raw_fd() as u64).max().unwrap_or(0);
    let most = descriptor_limit(highest);
    (highest >= few_of(most)).then_some(most)
}

/// Returns whether this process has few free descriptors now; then peers may have fewer descriptors here than usual.
/// Opens a descriptor to find out, and closes the descriptor.
pub(crate) fn has_few_descriptors() -> bool {
    match epoll::wake_fd() {
        Ok(newest) => few_are_left(&[newest]).is_some(),
        Err(error) => error == Error::NoDescriptors,
    }
}

/// Returns the lowest descriptor number that means few free descriptors: three quarters of the descriptor limit `most`.
fn few_of(most: u64) -> u64 {
    most - most / 4
}

/// Returns the descriptor limit of this process (`RLIMIT_NOFILE`). Asking the kernel costs a tenth of a message with a
/// descriptor. So the kernel is asked only at every 16th call, or if `number`, the number of the newest descriptor, is
/// at least three quarters of the last answer. A lowered limit is noticed up to 16 calls late; a raised limit at once
/// when few descriptors seem free.
fn descriptor_limit(number: u64) -> u64 {
    /// Number of calls after which the kernel is asked for the descriptor limit again; each call is an arrival of
    /// descriptors.
    const LASTS: u64 = 16;
    static KNOWN: AtomicU64 = AtomicU64::new(0);
    static ARRIVALS: AtomicU64 = AtomicU64::new(0);
    let known = KNOWN.load(Ordering::Relaxed);
    let due = ARRIVALS.fetch_add(1, Ordering::Relaxed).is_multiple_of(LASTS);
    if !due && number < few_of(known) {
        return known;
    }
    let most = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(u64::MAX);
    KNOWN.store(most, Ordering::Relaxed);
    most
}

/// A charge, through the ledger of a link, against the peer of the link: an amount of each resource. Dropping this
/// value releases the charge.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    amounts: Amounts,
    released: AtomicBool,
}

impl Charge {
    /// Returns the ledger of the link to which the charge belongs.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Converts this charge into a charge against the peer process that can outlive the link. A charge that was
    /// released before gives an empty result. The charge must not contain memory: only the ledger of the link counts
    /// memory.
    fn into_held(self) -> Held {
        debug_assert!(self.amounts.0[Resource::Memory.index()] == 0, "that counts for the link");
        let payer = self.ledger.payer();
        if self.released.swap(true, Ordering::AcqRel) { Held::nothing() } else { Held { payer, amounts: self.amounts } }
    }

    /// Releases the charge now: the resource no longer counts against the peer. A second call does nothing.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.ledger.mapped.fetch_sub(self.amounts.0[Resource::Memory.index()], Ordering::Relaxed);
            self.ledger.account().give_back(&self.amounts);
        }
    }

    /// Adds the amounts of the charge `other` to this charge. Both charges must belong to the same link and must not be
    /// released yet.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.ledger, &other.ledger), "of the same link");
        let amounts = std::mem::take(&mut other.amounts);
        self.amounts.0.iter_mut().zip(amounts.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Moves `amounts` from this charge into a new charge, and returns the new charge. If the charge contains less of a
    /// resource, moves all of the resource.
    pub(crate) fn split(&mut self, amounts: Amounts) -> Self {
        let mut part = Amounts::default();
        for ((mine, part), wanted) in self.amounts.0.iter_mut().zip(&mut part.0).zip(amounts.0) {
            *part = wanted.min(*mine);
            *mine -= *part;
        }
        Self { ledger: self.ledger.clone(), amounts: part, released: AtomicBool::new(false) }
    }
}

/// The account that is charged for an object, independent of any link. The field is `None` if no peer is charged, for
/// example because this process sent the object to itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payer(Option<Arc<Account>>);

impl Payer {
    /// Returns the account; `None` if no peer is charged, or in a forked child of the process that opened the account.
    fn account(&self) -> Option<&Arc<Account>> {
        self.0.as_ref().filter(|account| !account.born.is_elsewhere())
    }

    /// Returns a number that identifies the account as long as the account exists; 0 if no peer is charged, or in a
    /// forked child of the process that opened the account.
    pub(crate) fn number(&self) -> usize {
        self.account().map_or(0, |account| Arc::as_ptr(account).addr())
    }

    /// Charges the peer with one descriptor that waits to be closed, even if a limit is exceeded. Returns the charge;
    /// the charge of an empty payer is empty.
    pub(crate) fn charge_pending_close(&self) -> PendingClose {
        let amounts = Amounts::of(Resource::Descriptors, 1);
        let Some(account) = self.account() else { return PendingClose(Held::nothing()) };
        let _ = account.charge(&amounts, &limits(), true);
        account.pending_close.fetch_add(1, Ordering::Relaxed);
        PendingClose(Held { payer: self.clone(), amounts })
    }

    /// Returns the place of the receives from the sockets which the peer has introduced; `None` if no peer is charged.
    pub(crate) fn peer_calls(&self) -> Option<&PeerCalls> {
        self.account().map(|account| &account.peer_calls)
    }

    /// Locks the account's field `taking`, the last removal of a packet of the peer by a thread of the library, and
    /// returns the guard. Returns `None` if no peer is charged.
    pub(crate) fn taking(&self) -> Option<MutexGuard<'_, Option<Arc<PacketRemoval>>>> {
        self.account().map(|account| unpoisoned(&account.taking))
    }
}

/// A charge against a peer process that can outlive the link over which the charged object came. Dropping the value
/// releases the charge.
#[derive(Debug)]
struct Held {
    payer: Payer,
    amounts: Amounts,
}

impl Held {
    fn nothing() -> Self {
        Self { payer: Payer::default(), amounts: Amounts::default() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(account) = &self.payer.0 {
            account.give_back(&self.amounts);
        }
    }
}

/// The charge for a descriptor that waits to be closed. Dropping the value releases the charge.
pub(crate) struct PendingClose(Held);

impl Drop for PendingClose {
    fn drop(&mut self) {
        if let Some(account) = &self.0.payer.0 {
            account.pending_close.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::fork::tests::holds_in_a_child;

    /// Returns the bytes of memory that the ledger counts, and the bytes and the descriptors that its account counts.
    fn counted(ledger: &Ledger) -> [u64; 3] {
        let held = |resource: Resource| ledger.account().held[resource.index()].load(Ordering::Relaxed);
        [ledger.mapped.load(Ordering::Relaxed), held(Resource::Memory), held(Resource::Descriptors)]
    }

    #[test]
    fn memory_of_a_link_counts_until_its_charge_is_released_or_dropped() {
        let ledger = Ledger::new(Some(1000));
        let all = || ledger.charge(Amounts::of(Resource::Memory, 1000));
        for _ in 0..3 {
            let charge = all().unwrap().unwrap();
            assert!(all().is_err(), "more than the limit of the link");
            assert_eq!(counted(&ledger), [1000, 1000, 0]);
            charge.release();
            charge.release();
            assert_eq!(counted(&ledger), [0; 3]);
            drop(all().unwrap());
            drop(charge);
            assert_eq!(counted(&ledger), [0; 3]);
        }
    }

    /// Shows that a child of `fork` can drop the charges of its parent, whatever threads of the parent were doing. In
    /// the child, a lock of the account that another thread of the parent held is never released.
    #[test]
    fn a_child_gives_nothing_back_and_waits_for_no_lock() {
        let ledger = Ledger::new(Some(1000));
        let charge = ledger.charge(Amounts::of(Resource::Memory, 1000)).unwrap().unwrap();
        // The test's own thread holds the lock. To the child, the lock seems held by a thread that exists only in the
        // parent.
        let lock = unpoisoned(&ledger.account().user.state);
        assert!(holds_in_a_child(|| {
            charge.release();
            counted(&ledger)[1] == 1000
        }));
        drop(lock);
        charge.release();
        assert_eq!(counted(&ledger), [0; 3]);
    }

    #[test]
    fn what_is_split_off_or_absorbed_is_given_back_once() {
        let ledger = Ledger::new(Some(1000));
        let charge = |memory, descriptors| {
            ledger
                .charge(Amounts::of(Resource::Memory, memory).and(Resource::Descriptors, descriptors))
                .unwrap()
                .unwrap()
        };
        let mut whole = charge(600, 3);
        let part = whole.split(Amounts::of(Resource::Memory, 200).and(Resource::Descriptors, 9));
        assert_eq!(counted(&ledger), [600, 600, 3]);
        drop(part);
        assert_eq!(counted(&ledger), [400, 400, 0]);
        whole.absorb(charge(100, 2));
        assert_eq!(counted(&ledger), [500, 500, 2]);
        drop(whole);
        assert_eq!(counted(&ledger), [0; 3]);
    }

    #[test]
    fn what_outlives_its_link_counts_until_it_is_dropped() {
        let introducer = Ledger::new(Some(1000));
        let charge = introducer.charge(Amounts::of(Resource::Descriptors, 1)).unwrap();
        let ledger = Ledger::of_introduced(&introducer, charge);
        let pending = || ledger.account().pending_close.load(Ordering::Relaxed);
        let closes = ledger.payer().charge_pending_close();
        assert_eq!((counted(&ledger), pending()), ([0, 0, 1], 1));
        drop(closes);
        assert_eq!((counted(&ledger), pending()), ([0; 3], 0));
        assert_eq!(counted(&introducer), [0, 0, 1]);
        drop(ledger);
        assert_eq!(counted(&introducer), [0; 3]);
    }
}
