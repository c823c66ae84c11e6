//! Watching for changes by other processes.
//!
//! The library starts no threads: waiting threads take turns. One waiting thread is the *leader*. The leader sleeps
//! in epoll, looks for changes, and informs the observers. When its own wait is over, the leader hands over to
//! another thread. The other threads sleep each on a word of its own. If no other process could change anything here,
//! all threads sleep that way.
//!
//! The next wait or query finds changes that came while no thread waited.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;
use strait::bindings::PerProcess;
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline as StraitDeadline};

use crate::abi::zx_handle_t;
use crate::channel;
use crate::status::{Result, Status};
use crate::time::Deadline;
use crate::unpoisoned;
use crate::waiter::Waiter;

/// Time between attempts at an operation that lacked room or memory.
const RETRY: Duration = Duration::from_millis(10);

/// Number of the wait set in reports of epoll.
const SET: u64 = 0;
/// Number of the leader's eventfd in reports of epoll.
const NUDGE: u64 = 1;
/// First number of a bell in reports of epoll. A bell is a descriptor through which other processes wake this process.
const FIRST_BELL: u64 = 2;

/// The objects for watching for changes in this process.
struct Hub {
    /// The wait set of channels.
    set: WaitSet,
    /// The epoll instance in which the leader sleeps: the wait set, `nudge` and the bells.
    epoll: OwnedFd,
    /// The eventfd for waking the leader.
    nudge: OwnedFd,
    /// The waiting threads, and whether there is a leader.
    turns: Mutex<Turns>,
    /// Handles of channels that the hub could not watch, for another look soon.
    later: Mutex<Vec<zx_handle_t>>,
    /// The owners of bells, by the number of the bell.
    bells: Mutex<HashMap<u64, Weak<dyn Rung>>>,
    /// Number of the next bell.
    next_bell: AtomicU64,
}

/// The threads that wait.
#[derive(Default)]
struct Turns {
    /// Whether a thread leads.
    leading: bool,
    /// The threads asleep on their own words.
    parked: Vec<Arc<Waiter>>,
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

/// Number of channels and bells for which this process waits and which another process may change.
static LISTENING: AtomicUsize = AtomicUsize::new(0);

/// Returns whether this process waits for anything that another process may change.
#[inline]
pub(crate) fn is_listening() -> bool {
    LISTENING.load(Ordering::Relaxed) > 0
}

/// Returns the hub of the process; makes the hub at the first call.
fn hub() -> Result<&'static Hub> {
    if let Some(hub) = HUB.get().get() {
        return Ok(hub);
    }
    // If another thread was faster, its hub is used.
    let _ = HUB.get().set(Hub::new()?);
    Ok(HUB.get().get().expect("it was set just now"))
}

/// Wakes the leader.
pub(crate) fn nudge() {
    if let Some(hub) = HUB.get().get() {
        hub.wake_leader();
    }
}

/// Registers a channel for events of its handle, once. `was` is the present registration. The caller has the reading
/// lock of the channel.
pub(crate) fn listen(channel: &Channel, handle: zx_handle_t, was: Option<Interest>, interest: Interest) -> Result<()> {
    let hub = hub()?;
    let listens = match was {
        Some(was) if was == interest => hub.set.modify(channel, handle.into(), interest, Mode::OneShot),
        Some(_) => {
            let _ = hub.set.remove(channel);
            hub.set.add(channel, handle.into(), interest, Mode::OneShot)
        }
        None => {
            LISTENING.fetch_add(1, Ordering::SeqCst);
            let added = hub.set.add(channel, handle.into(), interest, Mode::OneShot);
            hub.have_somebody_lead();
            added
        }
    };
    if listens.is_err() {
        hub.look_later(handle);
    }
    Ok(())
}

/// Schedules a channel to be looked at again soon.
pub(crate) fn look_later(handle: zx_handle_t) {
    if let Ok(hub) = hub() {
        hub.look_later(handle);
    }
}

/// Unregisters a channel; `None` for a channel that was sent away.
pub(crate) fn listen_no_more(channel: Option<&Channel>) {
    LISTENING.fetch_sub(1, Ordering::SeqCst);
    if let (Some(hub), Some(channel)) = (HUB.get().get(), channel) {
        let _ = hub.set.remove(channel);
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
    let number = hub.next_bell.fetch_add(1, Ordering::Relaxed);
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

/// Handles changes by other processes, without waiting.
pub(crate) fn poll() {
    if is_listening()
        && let Some(hub) = HUB.get().get()
    {
        hub.attend(Some(Duration::ZERO), false);
    }
}

/// Blocks until the waiter is woken or the deadline has passed. Returns whether it was woken.
pub(crate) fn block(waiter: &Arc<Waiter>, deadline: Deadline) -> bool {
    match hub() {
        Ok(hub) => hub.block(waiter, deadline),
        Err(_) => park_alone(waiter, deadline),
    }
}

/// Blocks until the waiter is woken or the deadline has passed, in a process without descriptors for a hub. Returns
/// whether it was woken.
fn park_alone(waiter: &Waiter, deadline: Deadline) -> bool {
    while !waiter.is_fired() && !deadline.has_passed() {
        if waiter.begin_parking() {
            waiter.park(deadline.remaining());
        }
    }
    waiter.is_fired()
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
            epoll,
            nudge,
            turns: Mutex::default(),
            later: Mutex::default(),
            bells: Mutex::default(),
            next_bell: AtomicU64::new(FIRST_BELL),
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

    /// Schedules a channel to be looked at after [`RETRY`].
    fn look_later(&self, handle: zx_handle_t) {
        unpoisoned(&self.later).push(handle);
        // The leader sleeps for a shorter time from now on.
        self.wake_leader();
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
            self.attend(deadline.remaining(), true);
            waiter.end_leading();
            if deadline.has_passed() || !is_listening() {
                break;
            }
        }
    }

    /// Sleeps until something happens, at most for `limit`; then informs the owners. Only the leader consumes the
    /// wake-ups of `nudge`, which are for no other thread.
    fn attend(&self, limit: Option<Duration>, leads: bool) {
        let later = std::mem::take(&mut *unpoisoned(&self.later));
        let limit = if later.is_empty() { limit } else { Some(limit.map_or(RETRY, |limit| limit.min(RETRY))) };
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        let mut buffer = [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 32];
        let happened = epoll::wait(&self.epoll, &mut buffer, limit.as_ref()).unwrap_or(0);
        for event in &buffer[..happened] {
            match event.data.u64() {
                SET => self.look_at_channels(),
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
        later.into_iter().for_each(channel::look_at);
    }

    /// Looks at the channels for which the wait set has events.
    fn look_at_channels(&self) {
        let mut events: Vec<Event> = Vec::new();
        // An event that fails for lack of memory is reported again.
        if self.set.wait(&mut events, StraitDeadline::NOW).is_ok() {
            for event in &events {
                channel::look_at(event.key() as zx_handle_t);
            }
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
