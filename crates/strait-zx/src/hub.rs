//! Watching for changes by other processes.
//!
//! The library starts no threads: waiting threads take turns. One waiting thread is the *leader*. The leader sleeps
//! in epoll, looks for changes, and informs the observers. When its own wait is over, the leader hands over to
//! another thread. The other threads sleep each on a word of its own. If no other process could change anything here,
//! all threads sleep that way.
//!
//! The leader watches channels through a wait set. A channel with a full queue, whose messages stay in the ring, would
//! be ready all the time. Such a channel has a trap instead, for the close of the other end.
//!
//! The next wait or query finds changes that came while no thread waited.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;
use strait::bindings::PerProcess;
use strait::wait::{Conditions, Event, Interest, Mode, Sprung, TrapId, Traps, WaitSet};
use strait::{Channel, Deadline as StraitDeadline, Error};

use crate::abi::{zx_handle_t, zx_koid_t};
use crate::channel;
use crate::status::{Result, Status};
use crate::time::Deadline;
use crate::unpoisoned;
use crate::waiter::Waiter;

/// Time between two attempts at a registration that failed for lack of a resource.
const RETRY: Duration = Duration::from_millis(10);

/// How long a thread goes on looking at channels that have events after its deadline. With less, a query could not look
/// at many channels.
const OVERTIME: Duration = Duration::from_millis(10);

/// Number of the wait set in reports of epoll.
const SET: u64 = 0;
/// Number of the leader's eventfd in reports of epoll.
const NUDGE: u64 = 1;
/// Number of the traps in reports of epoll.
const TRAPS: u64 = 2;
/// First number of a bell in reports of epoll. A bell is a descriptor through which other processes wake this process.
const FIRST_BELL: u64 = 3;

/// The objects for watching for changes in this process.
struct Hub {
    /// The wait set of channels.
    set: WaitSet,
    /// The traps on channels with a full queue; made for the first such channel.
    traps: OnceLock<Traps>,
    /// The epoll instance in which the leader sleeps: the wait set, the traps, `nudge` and the bells.
    epoll: OwnedFd,
    /// The eventfd for waking the leader.
    nudge: OwnedFd,
    /// The waiting threads, and whether there is a leader.
    turns: Mutex<Turns>,
    /// The objects for another look.
    later: Mutex<Later>,
    /// The owners of bells, by the number of the bell.
    bells: Mutex<HashMap<u64, Weak<dyn Rung>>>,
}

/// The threads that wait.
#[derive(Default)]
struct Turns {
    /// Whether a thread leads.
    leading: bool,
    /// The threads asleep on their own words.
    parked: Vec<Arc<Waiter>>,
}

/// The objects at which a thread looks again.
#[derive(Default)]
struct Later {
    /// The handles of channels: the registration with the hub failed, or the deadline of another thread passed before
    /// its look.
    handles: BTreeSet<zx_handle_t>,
    /// The owners of bells that could not wake another process, by address. Each is counted in [`LISTENING`].
    bells: HashMap<usize, Weak<dyn Rung>>,
    /// The time of the look; `None` if there are no objects.
    due: Option<Instant>,
}

/// The events of a channel for which the hub is to look at the channel once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// The events of a wait set.
    Events(Interest),
    /// The close of the other end, although messages stay in the ring. If `room`, also room for a message.
    Close { room: bool },
}

/// The registration of a channel with the hub.
#[derive(Debug, Default)]
pub(crate) struct Registration {
    /// Whether the channel is counted in [`LISTENING`].
    is_counted: bool,
    /// The trap for [`Wanted::Close`]; `None` while the channel is in the wait set, or nowhere.
    trap: Option<Trap>,
}

impl Registration {
    /// Returns whether the channel has a trap.
    #[inline]
    pub(crate) fn has_trap(&self) -> bool {
        self.trap.is_some()
    }
}

/// A trap on a channel with a full queue.
#[derive(Debug)]
struct Trap {
    id: TrapId,
    /// Whether the trap also waits for room for a message.
    room: bool,
    /// Set once the trap is used up.
    has_sprung: Arc<AtomicBool>,
}

/// The calling thread as the leader. The drop hands over to another thread, also if the thread panics while it looks at
/// an object.
struct Leading<'a>(&'a Hub);

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        unpoisoned(&self.0.turns).leading = false;
        self.0.have_somebody_lead();
    }
}

static HUB: PerProcess<OnceLock<Hub>> = PerProcess::new(OnceLock::new);

/// Number of the next bell. The child of a fork goes on counting: an object of the parent keeps the number of its bell,
/// which must not be the number of a bell of the child.
static NEXT_BELL: AtomicU64 = AtomicU64::new(FIRST_BELL);

/// Number of channels and bells for which this process waits and which another process may change.
static LISTENING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether this process waits for anything that another process may change.
#[inline]
pub(crate) fn is_listening() -> bool {
    LISTENING.load(Ordering::Relaxed) > 0
}

/// Returns the hub of the process; makes the hub at the first call.
#[inline]
fn hub() -> Result<&'static Hub> {
    match HUB.get().get() {
        Some(hub) => Ok(hub),
        None => make_hub(),
    }
}

#[cold]
fn make_hub() -> Result<&'static Hub> {
    // If another thread was faster, its hub is used.
    let _ = HUB.get().set(Hub::new()?);
    Ok(HUB.get().get().expect("it was set just now"))
}

/// Makes the hub of the process, unless it is there.
///
/// # Errors
/// `NO_RESOURCES` or `NO_MEMORY`.
#[inline]
pub(crate) fn prepare() -> Result<()> {
    hub().map(drop)
}

/// Wakes the leader.
pub(crate) fn nudge() {
    if let Some(hub) = HUB.get().get() {
        hub.wake_leader();
    }
}

/// Registers a channel for one look at its handle, at the first of the wanted events. Replaces the channel's earlier
/// registration. `koid` is the koid of the channel's end. The caller has the reading lock of the channel, and has
/// called [`prepare`] before.
///
/// If the registration fails for lack of a resource, a thread looks at the handle after [`RETRY`].
pub(crate) fn listen(
    channel: &Channel,
    handle: zx_handle_t,
    koid: zx_koid_t,
    registration: &mut Registration,
    wanted: Wanted,
) {
    let Ok(hub) = hub() else { return };
    let is_new = !std::mem::replace(&mut registration.is_counted, true);
    if is_new {
        LISTENING.fetch_add(1, Ordering::SeqCst);
    }
    let listens = match wanted {
        Wanted::Events(interest) => hub.listen_to_events(channel, handle, registration, interest),
        Wanted::Close { room } => hub.listen_to_close(channel, handle, koid, registration, room),
    };
    if is_new {
        hub.have_somebody_lead();
    }
    if listens.is_err() {
        hub.look_later(handle);
    }
}

/// Removes the trap of a channel for whose messages nothing waits any more. A trap is looked at with each message.
pub(crate) fn remove_trap(registration: &mut Registration) {
    if let Some(hub) = HUB.get().get() {
        hub.cancel_trap(registration);
    }
}

/// Ends the registration of a channel; `None` for a channel that was sent away.
pub(crate) fn listen_no_more(channel: Option<&Channel>, registration: &mut Registration) {
    if !std::mem::take(&mut registration.is_counted) {
        return;
    }
    LISTENING.fetch_sub(1, Ordering::SeqCst);
    if let Some(hub) = HUB.get().get() {
        hub.cancel_trap(registration);
        if let Some(channel) = channel {
            let _ = hub.set.remove(channel);
        }
    }
}

/// An object to inform when another process wakes this process because of the object.
pub(crate) trait Rung: Send + Sync {
    /// Called when a byte or packet has arrived at a bell of this object, or when the other side of the bell is gone.
    fn rung(&self);
}

/// Registers a bell (a descriptor through which other processes wake this process); each arrival informs `owner`. The
/// caller looks once more after this call. Returns a number for [`silence_bell`].
pub(crate) fn listen_to_bell(bell: BorrowedFd<'_>, owner: Weak<dyn Rung>) -> Result<u64> {
    let hub = hub()?;
    let number = NEXT_BELL.fetch_add(1, Ordering::Relaxed);
    unpoisoned(&hub.bells).insert(number, owner);
    let flags = epoll::EventFlags::IN | epoll::EventFlags::HUP | epoll::EventFlags::ET;
    if let Err(error) = epoll::add(&hub.epoll, bell, epoll::EventData::new_u64(number), flags) {
        unpoisoned(&hub.bells).remove(&number);
        return Err(error.into());
    }
    LISTENING.fetch_add(1, Ordering::SeqCst);
    hub.have_somebody_lead();
    Ok(number)
}

/// Unregisters a bell. Call this while the descriptor is open: its registration lives as long as any process has the
/// other side.
pub(crate) fn silence_bell(bell: BorrowedFd<'_>, number: u64) {
    if let Some(hub) = HUB.get().get() {
        let _ = epoll::delete(&hub.epoll, bell);
        unpoisoned(&hub.bells).remove(&number);
        LISTENING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Schedules a look at the owner of a bell after [`RETRY`], by a thread that waits.
pub(crate) fn look_at_bell_later(owner: Weak<dyn Rung>) {
    // If there is no hub and none can be made, the next call on the object looks.
    let Ok(hub) = hub() else { return };
    let is_new = hub.schedule(|later| later.bells.insert(owner.as_ptr().cast::<()>().addr(), owner).is_none());
    if is_new {
        LISTENING.fetch_add(1, Ordering::SeqCst);
        hub.have_somebody_lead();
    }
}

/// Handles changes by other processes, without waiting.
pub(crate) fn poll() {
    if is_listening()
        && let Some(hub) = HUB.get().get()
    {
        hub.attend(Deadline::new(0), false);
    }
}

/// Blocks until the waiter is woken or the deadline has passed. Returns whether it was woken. The caller has called
/// [`prepare`] before: a thread that slept without the hub could not lead later.
pub(crate) fn block(waiter: &Arc<Waiter>, deadline: Deadline) -> bool {
    hub().is_ok_and(|hub| hub.block(waiter, deadline))
}

impl Hub {
    fn new() -> Result<Self> {
        let set = WaitSet::new()?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &set, epoll::EventData::new_u64(SET), epoll::EventFlags::IN)?;
        epoll::add(&epoll, &nudge, epoll::EventData::new_u64(NUDGE), epoll::EventFlags::IN)?;
        Ok(Self {
            set,
            traps: OnceLock::new(),
            epoll,
            nudge,
            turns: Mutex::default(),
            later: Mutex::default(),
            bells: Mutex::default(),
        })
    }

    /// Wakes the leader.
    fn wake_leader(&self) {
        let _ = rustix::io::write(&self.nudge, &1u64.to_ne_bytes());
    }

    /// Blocks until the waiter is woken or the deadline has passed. Returns whether it was woken.
    fn block(&self, waiter: &Arc<Waiter>, deadline: Deadline) -> bool {
        let mut has_parked = false;
        while !waiter.is_fired() && !deadline.has_passed() {
            let mut turns = unpoisoned(&self.turns);
            if !turns.leading && is_listening() {
                turns.leading = true;
                drop(turns);
                let _leading = Leading(self);
                self.lead(waiter, deadline);
            } else if waiter.begin_parking() {
                turns.parked.push(waiter.clone());
                drop(turns);
                waiter.park(deadline.remaining());
                unpoisoned(&self.turns).parked.retain(|parked| !Arc::ptr_eq(parked, waiter));
                has_parked = true;
            }
        }
        if has_parked {
            // A leader may have chosen this thread as the next one, at the instant in which the wait ended.
            self.have_somebody_lead();
        }
        waiter.is_fired()
    }

    /// Registers a channel in the wait set, for one event.
    fn listen_to_events(
        &self,
        channel: &Channel,
        handle: zx_handle_t,
        registration: &mut Registration,
        interest: Interest,
    ) -> Result<()> {
        self.cancel_trap(registration);
        match self.set.modify(channel, handle.into(), interest, Mode::OneShot) {
            Err(Error::NotInSet) => self.set.add(channel, handle.into(), interest, Mode::OneShot)?,
            modified => modified?,
        }
        Ok(())
    }

    /// Sets a trap for the close of a channel's other end, and for room if `room`. The trap also springs if the other
    /// end is closed already.
    fn listen_to_close(
        &self,
        channel: &Channel,
        handle: zx_handle_t,
        koid: zx_koid_t,
        registration: &mut Registration,
        room: bool,
    ) -> Result<()> {
        if registration.trap.as_ref().is_some_and(|trap| trap.room == room && !trap.has_sprung.load(Ordering::SeqCst)) {
            return Ok(());
        }
        self.cancel_trap(registration);
        let _ = self.set.remove(channel);
        let conditions = Conditions::new().peer_closed();
        let conditions = if room { conditions.room() } else { conditions };
        let has_sprung = Arc::new(AtomicBool::new(false));
        let springs = has_sprung.clone();
        let id = self.traps()?.watch(channel, conditions, move |sprung| {
            springs.store(true, Ordering::SeqCst);
            let is_closed = matches!(sprung, Sprung::Met(status) if status.peer_closed);
            channel::look_behind_messages(handle, koid, is_closed);
            None
        })?;
        registration.trap = Some(Trap { id, room, has_sprung });
        Ok(())
    }

    /// Removes the trap of a channel, if there is one.
    fn cancel_trap(&self, registration: &mut Registration) {
        if let (Some(trap), Some(traps)) = (registration.trap.take(), self.traps.get()) {
            traps.cancel(trap.id);
        }
    }

    /// Returns the traps; makes them at the first call.
    fn traps(&self) -> Result<&Traps> {
        if self.traps.get().is_none() {
            let traps = Traps::new()?;
            epoll::add(&self.epoll, &traps, epoll::EventData::new_u64(TRAPS), epoll::EventFlags::IN)?;
            // If another thread was faster, its traps are used. Closing the others takes them out of epoll.
            let _ = self.traps.set(traps);
        }
        Ok(self.traps.get().expect("they were set just now"))
    }

    /// Schedules a channel to be looked at after [`RETRY`].
    fn look_later(&self, handle: zx_handle_t) {
        self.schedule(|later| later.handles.insert(handle));
    }

    /// Adds an object to `later`, to be looked at after [`RETRY`]. Returns the result of `add`.
    fn schedule(&self, add: impl FnOnce(&mut Later) -> bool) -> bool {
        let mut later = unpoisoned(&self.later);
        let is_new = add(&mut later);
        if later.due.is_none() {
            later.due = Some(Instant::now() + RETRY);
            drop(later);
            // The leader sleeps for a shorter time from now on.
            self.wake_leader();
        }
        is_new
    }

    /// Returns the time until the look at the objects in `later`; `None` without such objects.
    fn time_to_look(&self) -> Option<Duration> {
        unpoisoned(&self.later).due.map(|due| due.saturating_duration_since(Instant::now()))
    }

    /// Looks at the objects in `later`, if it is time, at channels until the deadline.
    fn look_if_due(&self, deadline: Deadline) {
        let mut later = unpoisoned(&self.later);
        if later.due.is_some_and(|due| due <= Instant::now()) {
            let due = std::mem::take(&mut *later);
            drop(later);
            for owner in due.bells.into_values() {
                LISTENING.fetch_sub(1, Ordering::SeqCst);
                if let Some(owner) = owner.upgrade() {
                    owner.rung();
                }
            }
            self.look_at_all(due.handles, deadline);
        }
    }

    /// Looks at channels until the deadline, and for [`OVERTIME`] at least. The next thread that attends looks at the
    /// others.
    fn look_at_all(&self, handles: impl IntoIterator<Item = zx_handle_t>, deadline: Deadline) {
        let begin = Instant::now();
        let mut handles = handles.into_iter();
        for handle in handles.by_ref() {
            channel::look_at(handle);
            if deadline.has_passed() && begin.elapsed() >= OVERTIME {
                break;
            }
        }
        let mut handles = handles.peekable();
        if handles.peek().is_some() {
            let mut later = unpoisoned(&self.later);
            later.handles.extend(handles);
            later.due = Some(begin);
            drop(later);
            // The leader may be another thread, which sleeps.
            self.wake_leader();
        }
    }

    /// Wakes a thread that can lead, if there is no leader and something to watch.
    fn have_somebody_lead(&self) {
        if !is_listening() {
            return;
        }
        let mut turns = unpoisoned(&self.turns);
        while !turns.leading
            && let Some(waiter) = turns.parked.pop()
        {
            if waiter.rouse() {
                break;
            }
        }
    }

    /// Leads until the waiter is woken, the deadline has passed, or there is nothing to watch.
    fn lead(&self, waiter: &Waiter, deadline: Deadline) {
        while waiter.begin_leading() {
            self.attend(deadline, true);
            waiter.end_leading();
            if deadline.has_passed() || !is_listening() {
                break;
            }
        }
    }

    /// Sleeps until something happens or the deadline has passed; then informs the owners. Only the leader consumes the
    /// wake-ups of `nudge`, which are for no other thread.
    fn attend(&self, deadline: Deadline, leads: bool) {
        let limit = match (deadline.remaining(), self.time_to_look()) {
            (Some(limit), Some(look)) => Some(limit.min(look)),
            (limit, look) => limit.or(look),
        };
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut buffer = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 32];
        let happened = epoll::wait(&self.epoll, &mut buffer, limit.as_ref()).unwrap_or(0);
        for event in &buffer[..happened] {
            match event.data.u64() {
                SET => self.look_at_channels(deadline),
                TRAPS => drop(self.traps.get().map(|traps| traps.dispatch(StraitDeadline::NOW))),
                NUDGE if !leads => {}
                NUDGE => {
                    let _ = rustix::io::read(&self.nudge, &mut [0u8; 8]);
                }
                bell => {
                    let owner = unpoisoned(&self.bells).get(&bell).and_then(Weak::upgrade);
                    if let Some(owner) = owner {
                        owner.rung();
                    }
                }
            }
        }
        self.look_if_due(deadline);
    }

    /// Looks at the channels for which the wait set has events.
    fn look_at_channels(&self, deadline: Deadline) {
        let mut events: Vec<Event> = Vec::new();
        // An event that fails for lack of memory is reported again.
        if self.set.wait(&mut events, StraitDeadline::NOW).is_ok() {
            self.look_at_all(events.iter().map(|event| event.key() as zx_handle_t), deadline);
        }
    }
}

/// Returns whether spinning makes sense, because this process may use more than one CPU.
pub(crate) fn may_spin() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1))
}

/// The status for objects that cannot be waited for.
pub(crate) const NOT_WAITABLE: Status = Status::NOT_SUPPORTED;

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::sync::atomic::AtomicBool;
    use std::thread::ThreadId;
    use std::time::Instant;

    use super::*;

    /// An owner of a bell that panics in one thread, and counts the calls in other threads.
    #[derive(Default)]
    struct PanicsIn {
        thread: Mutex<Option<ThreadId>>,
        others: AtomicUsize,
    }

    impl Rung for PanicsIn {
        fn rung(&self) {
            assert_ne!(*unpoisoned(&self.thread), Some(std::thread::current().id()), "the leader panics");
            self.others.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Shows that another thread leads after the leader has panicked.
    #[test]
    fn a_leader_that_panics_hands_over() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let owner: Arc<PanicsIn> = Arc::default();
        let weak: Weak<PanicsIn> = Arc::downgrade(&owner);
        let number = listen_to_bell(bell.as_fd(), weak).unwrap();
        let begin = Instant::now();
        let ring_until = |is_so: &dyn Fn() -> bool| {
            while !is_so() && begin.elapsed() < Duration::from_secs(60) {
                rustix::io::write(&bell, &1u64.to_ne_bytes()).unwrap();
                std::thread::yield_now();
            }
        };
        let deadline = Deadline::new(crate::time::after(Duration::from_secs(60).as_nanos() as i64));
        let has_panicked = AtomicBool::new(false);
        let waiter = Waiter::new();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                *unpoisoned(&owner.thread) = Some(std::thread::current().id());
                let leads = || block(&Waiter::new(), deadline);
                assert!(std::panic::catch_unwind(leads).is_err());
                has_panicked.store(true, Ordering::SeqCst);
            });
            ring_until(&|| has_panicked.load(Ordering::SeqCst));
            let before = owner.others.load(Ordering::SeqCst);
            scope.spawn(|| block(&waiter, deadline));
            ring_until(&|| owner.others.load(Ordering::SeqCst) > before);
            waiter.wake();
            assert!(owner.others.load(Ordering::SeqCst) > before);
        });
        silence_bell(bell.as_fd(), number);
    }

    /// Shows that another thread leads if the thread that the last leader has chosen is woken, for the end of its own
    /// wait, before it could lead.
    #[test]
    fn a_thread_that_is_chosen_to_lead_when_its_wait_ends_hands_over() {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let owner: Weak<PanicsIn> = Weak::new();
        // With the bell, the process listens to other processes.
        let number = listen_to_bell(bell.as_fd(), owner).unwrap();
        let hub = Hub::new().unwrap();
        unpoisoned(&hub.turns).leading = true;
        let deadline = Deadline::new(crate::time::after(Duration::from_secs(60).as_nanos() as i64));
        let (first, chosen) = (Waiter::new(), Waiter::new());
        let await_that = |is_so: &dyn Fn(&Turns) -> bool| {
            let begin = Instant::now();
            while !is_so(&unpoisoned(&hub.turns)) && begin.elapsed() < Duration::from_secs(20) {
                std::thread::yield_now();
            }
            is_so(&unpoisoned(&hub.turns))
        };
        std::thread::scope(|scope| {
            scope.spawn(|| hub.block(&first, deadline));
            assert!(await_that(&|turns| turns.parked.len() == 1));
            scope.spawn(|| hub.block(&chosen, deadline));
            assert!(await_that(&|turns| turns.parked.len() == 2));
            {
                // The leader stops leading. The chosen thread does not go on before the lock is released.
                let mut turns = unpoisoned(&hub.turns);
                turns.leading = false;
                let last = turns.parked.pop().unwrap();
                assert!(Arc::ptr_eq(&last, &chosen) && last.rouse());
                last.wake();
            }
            let leads = await_that(&|turns| turns.leading);
            first.wake();
            hub.wake_leader();
            assert!(leads, "no thread leads");
        });
        silence_bell(bell.as_fd(), number);
    }
}
