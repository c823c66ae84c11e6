//! What this process holds for its peers: one account for each peer process and one for each user.
//!
//! Whatever a peer has this process hold (mapped memory, descriptors, lanes, messages in private memory) is **charged**
//! when it arrives, and given back when it is let go; a [`Charge`] does that by being dropped, so that nothing is
//! counted for ever. Nothing is charged where a message goes through a ring.
//!
//! A link charges to its [`Ledger`]. That has a limit of its own for mapped memory ([`Options::peer_memory`]), and leads
//! to the **account** of the process at the other end, which all links to that process share. Which process it is the
//! kernel said before the first packet was taken; a peer that it does not know has an account for each link. Accounts of
//! the same user share what that may have, as [`share`] says.
//!
//! An amount that is too much is [`Error::LimitReached`]; whoever wanted to charge it decides what that means, and it
//! can always be tried again.
//!
//! [`Options::peer_memory`]: crate::Options::peer_memory

mod limits;
mod report;
mod share;
mod usage;

pub use crate::error::Resource;
pub use limits::{Limits, limits, set_limits};
pub use report::{BadPeer, on_bad_peer};
pub(crate) use report::{dropped_aside, holding_back, note_aside, tell, told, try_later};
pub use usage::{Level, Usage};

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use crate::error::Error;
use crate::os::fd_reaper::Taking;
use crate::os::fork::{Born, PerProcess};
use crate::peer::Peer;
use crate::sync::unpoisoned;

/// The largest number of handles that one message can carry, whatever the options.
pub const MAX_HANDLES: usize = 64;

/// Default number of descriptors that one end may have in flight. The kernel counts them for the user, and a peer
/// that does not receive must not use them all up.
pub(crate) const HANDLES_IN_FLIGHT: usize = 256;

/// Number of descriptors that all ends of one link together may have in flight, if `RLIMIT_NOFILE` is at least four
/// times that.
pub(crate) const LINK_HANDLES_IN_FLIGHT: usize = 16 * HANDLES_IN_FLIGHT;

/// How many resources there are.
const KINDS: usize = 7;

/// The user of peers of which the kernel knows nothing; and of any that it shows so to this process.
const NOBODY: u32 = 65534;

/// So much of each resource.
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

/// A user whose processes are peers.
struct User {
    uid: Option<u32>,
    /// Charging to any account of the user is done under this lock.
    state: Mutex<OfUser>,
    reached: [AtomicU64; KINDS],
}

#[derive(Default)]
struct OfUser {
    held: [u64; KINDS],
    /// Accounts.
    processes: u64,
}

/// What is held for a peer process.
pub(crate) struct Account {
    born: Born,
    peer: Option<Peer>,
    user: Arc<User>,
    /// Written under the user's lock.
    held: [AtomicU64; KINDS],
    reached: [AtomicU64; KINDS],
    /// Wake-ups that had nothing to show, and of those how many were too many.
    idle_wake_ups: AtomicU64,
    pauses: AtomicU64,
    /// Descriptors of the peer's that wait to be closed.
    unclosed: AtomicU64,
    /// The last packet of the peer's that a thread had to take.
    taking: Mutex<Option<Arc<Taking>>>,
    /// What it did that was reported.
    reported: Mutex<Vec<&'static str>>,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Account").field("peer", &self.peer).field("held", &self.held).finish_non_exhaustive()
    }
}

/// The accounts there are.
struct Accounts {
    users: BTreeMap<Option<u32>, Weak<User>>,
    /// By process number and user.
    processes: BTreeMap<(u32, u32), Weak<Account>>,
}

static ACCOUNTS: PerProcess<Mutex<Accounts>> =
    PerProcess::new(|| Mutex::new(Accounts { users: BTreeMap::new(), processes: BTreeMap::new() }));

impl Account {
    /// The account of a process to which a link leads.
    fn open(peer: Option<Peer>) -> Arc<Self> {
        let mut accounts = unpoisoned(ACCOUNTS.get());
        let key = peer.and_then(|peer| Some((peer.pid?, peer.uid)));
        // Should the number have been used before, it inherits what is still held for the other process.
        if let Some(known) = key.and_then(|key| accounts.processes.get(&key)).and_then(Weak::upgrade) {
            return known;
        }
        let uid = peer.filter(|peer| peer.pid.is_some() || peer.uid != NOBODY).map(|peer| peer.uid);
        let user = accounts.users.get(&uid).and_then(Weak::upgrade).unwrap_or_else(|| {
            accounts.users.retain(|_, user| user.strong_count() > 0);
            let user = Arc::new(User { uid, state: Mutex::default(), reached: Default::default() });
            accounts.users.insert(uid, Arc::downgrade(&user));
            user
        });
        unpoisoned(&user.state).processes += 1;
        let account = Arc::new(Self {
            born: Born::here(),
            peer,
            user,
            held: Default::default(),
            reached: Default::default(),
            idle_wake_ups: AtomicU64::new(0),
            pauses: AtomicU64::new(0),
            unclosed: AtomicU64::new(0),
            taking: Mutex::default(),
            reported: Mutex::default(),
        });
        if let Some(key) = key {
            accounts.processes.retain(|_, account| account.strong_count() > 0);
            accounts.processes.insert(key, Arc::downgrade(&account));
        }
        account
    }

    /// Charges it, all or nothing, unless `anyway`.
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
        // In the child of a fork it is the parent's affair, whose threads may hold the lock.
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

/// Where a link charges what came over it.
#[derive(Debug)]
pub(crate) struct Ledger {
    /// Bytes of memory that this link may have mapped; `None` for the link of this process to itself, which charges
    /// nothing.
    memory: Option<u64>,
    mapped: AtomicU64,
    account: OnceLock<Arc<Account>>,
    /// For the link's own descriptor, if it is there because another peer introduced us.
    introduced: OnceLock<Held>,
}

impl Ledger {
    /// Of a link that may have so many bytes of memory mapped.
    pub(crate) fn new(memory: Option<usize>) -> Arc<Self> {
        Arc::new(Self {
            memory: memory.map(|bytes| bytes as u64),
            mapped: AtomicU64::new(0),
            account: OnceLock::new(),
            introduced: OnceLock::new(),
        })
    }

    /// Bytes of memory that the link may have mapped.
    pub(crate) fn memory(&self) -> Option<usize> {
        self.memory.map(|bytes| bytes as usize)
    }

    /// The kernel has said who the peer is.
    pub(crate) fn belongs_to(&self, peer: Peer) {
        self.account.get_or_init(|| Account::open(Some(peer)));
    }

    /// Another peer is charged for the link itself.
    pub(crate) fn introduced_by(&self, charge: Option<Charge>) {
        let _ = self.introduced.set(charge.map_or_else(Held::nothing, Charge::into_held));
    }

    /// The peer that is charged for the link itself, if there is one.
    pub(crate) fn introducer(&self) -> Option<Payer> {
        self.introduced.get().map(|held| held.payer.clone())
    }

    /// Whom to charge for what is not this link's.
    pub(crate) fn payer(&self) -> Payer {
        Payer(self.memory.map(|_| self.account().clone()))
    }

    fn account(&self) -> &Arc<Account> {
        self.account.get_or_init(|| Account::open(None))
    }

    /// Charges the peer with all of this, or with nothing.
    ///
    /// # Errors
    /// [`Error::LimitReached`].
    pub(crate) fn charge(self: &Arc<Self>, amounts: Amounts) -> Result<Option<Charge>, Error> {
        self.charge_within(amounts, &limits(), false)
    }

    /// The same for what is held in any case, since there is only so much of it.
    pub(crate) fn charge_anyway(self: &Arc<Self>, amounts: Amounts) -> Option<Charge> {
        self.charge_within(amounts, &limits(), true).ok().flatten()
    }

    /// Charges descriptors, `fds`, that have arrived. While the process has few free ones left, a peer may have only
    /// those of one message.
    ///
    /// # Errors
    /// [`Error::LimitReached`]; [`Error::BadPeer`] if more than those of one message wait to be closed already, so that refusing
    /// some would only let the peer have more of them there.
    pub(crate) fn charge_descriptors(self: &Arc<Self>, fds: &[impl AsRawFd]) -> Result<Option<Charge>, Error> {
        let mut limits = limits();
        if let Some(most) = few_are_left(fds) {
            let index = Resource::Descriptors.index();
            let one_message = MAX_HANDLES as u64;
            limits.peer[index] = limits.peer[index].min(one_message);
            limits.user[index] = limits.user[index].min((most / 4).max(4 * one_message));
        }
        let charged = self.charge_within(Amounts::of(Resource::Descriptors, fds.len()), &limits, false);
        if charged.is_err() && self.is_behind_with_closing() {
            return Err(Error::BadPeer("descriptors that take longer to close than to send"));
        }
        charged
    }

    /// Whether more descriptors of the peer's wait to be closed than one message can have.
    fn is_behind_with_closing(&self) -> bool {
        self.account.get().is_some_and(|account| account.unclosed.load(Ordering::Relaxed) > MAX_HANDLES as u64)
    }

    /// Charges a descriptor that can be done without: not while the process has few free ones left.
    pub(crate) fn charge_spare_descriptor(self: &Arc<Self>, fd: &impl AsRawFd) -> Result<Option<Charge>, Error> {
        if few_are_left(std::slice::from_ref(fd)).is_some() {
            return Err(Error::LimitReached(Resource::Descriptors));
        }
        self.charge_within(Amounts::of(Resource::Descriptors, 1), &limits(), false)
    }

    fn charge_within(
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

    /// The peer has broken the protocol, and its link is lost by it, or one channel.
    #[cold]
    pub(crate) fn broken(&self, reason: &'static str, link_lost: bool) {
        // Within a process it is no peer's doing, but of somebody who has made its memory.
        static WITHIN: PerProcess<Mutex<Vec<&'static str>>> = PerProcess::new(Mutex::default);
        let account = self.memory.map(|_| self.account());
        let mut reported = unpoisoned(account.map_or_else(|| WITHIN.get(), |account| &account.reported));
        if !reported.contains(&reason) {
            reported.push(reason);
            report::note(BadPeer { peer: account.and_then(|account| account.peer), reason, link_lost });
        }
    }

    /// The ledger of what this process sent itself, and of peers of which nothing is known any more: nothing is charged.
    pub(crate) fn nobodys() -> Arc<Self> {
        Self::new(None)
    }

    /// The peer has woken somebody for nothing, which may have been too often.
    pub(crate) fn count_idle_wake_up(&self, too_often: bool) {
        if let Some(account) = self.account.get() {
            account.idle_wake_ups.fetch_add(1, Ordering::Relaxed);
            account.pauses.fetch_add(too_often.into(), Ordering::Relaxed);
        }
    }

    /// What is held for the peer and for its user.
    pub(crate) fn usage(&self) -> Usage {
        Usage::of(self.account(), &limits())
    }
}

/// How many descriptors this process may have, if with these three quarters of them are in use.
fn few_are_left(fds: &[impl AsRawFd]) -> Option<u64> {
    // The kernel gives out the lowest number that is free.
    let highest = fds.iter().map(|fd| fd.as_raw_fd() as u64).max().unwrap_or(0);
    let most = descriptor_limit(highest);
    (highest >= few_of(most)).then_some(most)
}

/// From which number on few are left, of so many descriptors.
fn few_of(most: u64) -> u64 {
    most - most / 4
}

/// How many descriptors this process may have. Asking costs as much as a tenth of a message with one, so what is known goes for
/// the arrivals that follow, as long as by that many are left for one of this number. Whoever lowers the limit is heard so much
/// later, and whoever raises it at once where it matters.
fn descriptor_limit(number: u64) -> u64 {
    /// Arrivals for which it goes.
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

/// What a peer is charged with; given back when this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    ledger: Arc<Ledger>,
    amounts: Amounts,
    released: AtomicBool,
}

impl Charge {
    /// Where it was charged.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// The same, whatever becomes of the link. There is no memory in it.
    fn into_held(self) -> Held {
        debug_assert!(self.amounts.0[Resource::Memory.index()] == 0, "that counts for the link");
        let payer = self.ledger.payer();
        if self.released.swap(true, Ordering::AcqRel) { Held::nothing() } else { Held { payer, amounts: self.amounts } }
    }

    /// Gives it back now: it is no longer the peer's affair.
    pub(crate) fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.ledger.mapped.fetch_sub(self.amounts.0[Resource::Memory.index()], Ordering::Relaxed);
            self.ledger.account().give_back(&self.amounts);
        }
    }

    /// Makes one of two, both of which were charged to the same link and not given back.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.ledger, &other.ledger), "of the same link");
        let amounts = std::mem::take(&mut other.amounts);
        self.amounts.0.iter_mut().zip(amounts.0).for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Makes two of one. What is asked for is part of it.
    pub(crate) fn split(&mut self, amounts: Amounts) -> Self {
        let mut part = Amounts::default();
        for ((mine, part), wanted) in self.amounts.0.iter_mut().zip(&mut part.0).zip(amounts.0) {
            *part = wanted.min(*mine);
            *mine -= *part;
        }
        Self { ledger: self.ledger.clone(), amounts: part, released: AtomicBool::new(false) }
    }
}

/// The peer process that is charged for something, over whatever link it came; nobody for what this process sent itself.
#[derive(Clone, Debug, Default)]
pub(crate) struct Payer(Option<Arc<Account>>);

impl Payer {
    /// The account; none in a child of the process that opened it.
    fn account(&self) -> Option<&Arc<Account>> {
        self.0.as_ref().filter(|account| !account.born.is_elsewhere())
    }

    /// A number of its own, as long as it is charged for something; 0 for nobody.
    pub(crate) fn number(&self) -> usize {
        self.account().map_or(0, |account| Arc::as_ptr(account).addr())
    }

    /// Charges a descriptor that waits to be closed, whatever the limits.
    pub(crate) fn charge_unclosed(&self) -> Unclosed {
        let amounts = Amounts::of(Resource::Descriptors, 1);
        let Some(account) = self.account() else { return Unclosed(Held::nothing()) };
        let _ = account.charge(&amounts, &limits(), true);
        account.unclosed.fetch_add(1, Ordering::Relaxed);
        Unclosed(Held { payer: self.clone(), amounts })
    }

    /// The last packet of the peer's that a thread had to take.
    pub(crate) fn taking(&self) -> Option<MutexGuard<'_, Option<Arc<Taking>>>> {
        self.account().map(|account| unpoisoned(&account.taking))
    }
}

/// What a peer process is charged with, until this is dropped.
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

/// What a peer is charged with for a descriptor until that is closed.
pub(crate) struct Unclosed(Held);

impl Drop for Unclosed {
    fn drop(&mut self) {
        if let Some(account) = &self.0.payer.0 {
            account.unclosed.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}
