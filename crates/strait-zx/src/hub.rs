//! Listening for what other processes do.
//!
//! The library starts no threads: those that wait take turns. One of them *leads*: it sleeps in epoll, looks at what
//! has changed, and tells whoever waits for that. When its own wait is over it has another one lead. Those that do not lead
//! sleep on a word of their own, and so do all as long as nothing here could be changed by another process.
//!
//! What changed while nobody waited is found when somebody does, or asks.

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::time::Timespec;
use strait::bindings::PerProcess;
use strait::{Channel, Deadline as StraitDeadline, Event, Interest, Mode, WaitSet};

use crate::abi::zx_handle_t;
use crate::channel;
use crate::status::{Result, Status};
use crate::time::Deadline;
use crate::unpoisoned;
use crate::waiter::Waiter;

/// How soon is tried again what had no room or memory.
const RETRY: Duration = Duration::from_millis(10);

/// What epoll says of the wait set, of the word to wake the leader, and, from here on, of bells.
const SET: u64 = 0;
const NUDGE: u64 = 1;
const FIRST_BELL: u64 = 2;

struct Hub {
    set: WaitSet,
    epoll: OwnedFd,
    nudge: OwnedFd,
    turns: Mutex<Turns>,
    /// Channels that could not be listened to; they are looked at again soon.
    later: Mutex<Vec<zx_handle_t>>,
    bells: Mutex<HashMap<u64, Weak<dyn Rung>>>,
    next_bell: AtomicU64,
}

#[derive(Default)]
struct Turns {
    leading: bool,
    parked: Vec<Arc<Waiter>>,
}

static HUB: PerProcess<OnceLock<Hub>> = PerProcess::new(OnceLock::new);

/// Things that another process may change and that somebody waits for.
static LISTENING: AtomicUsize = AtomicUsize::new(0);

/// Whether anything that another process may change is waited for.
#[inline]
pub(crate) fn is_listening() -> bool {
    LISTENING.load(Ordering::Relaxed) > 0
}

fn hub() -> Result<&'static Hub> {
    if let Some(hub) = HUB.get().get() {
        return Ok(hub);
    }
    let set = WaitSet::new()?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    epoll::add(&epoll, &set, epoll::EventData::new_u64(SET), epoll::EventFlags::IN)?;
    epoll::add(&epoll, &nudge, epoll::EventData::new_u64(NUDGE), epoll::EventFlags::IN)?;
    // If another thread was faster, its hub is the one.
    let _ = HUB.get().set(Hub {
        set,
        epoll,
        nudge,
        turns: Mutex::default(),
        later: Mutex::default(),
        bells: Mutex::default(),
        next_bell: AtomicU64::new(FIRST_BELL),
    });
    Ok(HUB.get().get().expect("it was set just now"))
}

/// Wakes the thread that leads.
pub(crate) fn nudge() {
    if let Some(hub) = HUB.get().get() {
        let _ = rustix::io::write(&hub.nudge, &1u64.to_ne_bytes());
    }
}

/// Listens to a channel. The caller has its reading lock.
pub(crate) fn listen(channel: &Channel, handle: zx_handle_t, was: Option<Interest>, interest: Interest) -> Result<()> {
    let hub = hub()?;
    let listens = match was {
        Some(was) if was == interest => hub.set.rearm(channel),
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

/// Has a channel looked at again soon.
pub(crate) fn look_later(handle: zx_handle_t) {
    if let Ok(hub) = hub() {
        hub.look_later(handle);
    }
}

/// Listens to a channel no more; one that was sent away is not there.
pub(crate) fn listen_no_more(channel: Option<&Channel>) {
    LISTENING.fetch_sub(1, Ordering::SeqCst);
    if let (Some(hub), Some(channel)) = (HUB.get().get(), channel) {
        let _ = hub.set.remove(channel);
    }
}

/// Something that is told when another process has rung for it.
pub(crate) trait Rung: Send + Sync {
    /// Something has arrived at a bell of its, or the other side of that is gone.
    fn rung(&self);
}

/// Listens to a bell, a descriptor, from now on: each arrival tells. It has to be looked at once more after this. The number
/// is for [`silence_bell`].
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

/// Listens to it no more. While it is still open: what is registered lives as long as anybody has the other side of it.
pub(crate) fn silence_bell(bell: BorrowedFd<'_>, number: u64) {
    if let Some(hub) = HUB.get().get() {
        let _ = epoll::delete(&hub.epoll, bell);
        unpoisoned(&hub.bells).remove(&number);
        LISTENING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Looks at what has changed, without waiting.
pub(crate) fn poll() {
    if is_listening()
        && let Some(hub) = HUB.get().get()
    {
        hub.attend(Some(Duration::ZERO), false);
    }
}

/// Blocks until the waiter is woken, or the deadline. Whether it was woken.
pub(crate) fn block(waiter: &Arc<Waiter>, deadline: Deadline) -> bool {
    let Ok(hub) = hub() else { return park_alone(waiter, deadline) };
    loop {
        if waiter.is_fired() || deadline.has_passed() {
            return waiter.is_fired();
        }
        let mut turns = unpoisoned(&hub.turns);
        if !turns.leading && is_listening() {
            turns.leading = true;
            drop(turns);
            hub.lead(waiter, deadline);
            unpoisoned(&hub.turns).leading = false;
            hub.have_somebody_lead();
        } else if waiter.begin_parking() {
            turns.parked.push(waiter.clone());
            drop(turns);
            waiter.park(deadline.remaining());
            unpoisoned(&hub.turns).parked.retain(|parked| !Arc::ptr_eq(parked, waiter));
        }
    }
}

/// As [`block`] in a process that has no descriptors to listen with.
fn park_alone(waiter: &Waiter, deadline: Deadline) -> bool {
    while !waiter.is_fired() && !deadline.has_passed() {
        if waiter.begin_parking() {
            waiter.park(deadline.remaining());
        }
    }
    waiter.is_fired()
}

impl Hub {
    fn look_later(&self, handle: zx_handle_t) {
        unpoisoned(&self.later).push(handle);
        // Who leads sleeps for a shorter time from now on.
        nudge();
    }

    /// Wakes a thread that could lead, if nobody does and there is something to listen to.
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

    fn lead(&self, waiter: &Waiter, deadline: Deadline) {
        while waiter.begin_leading() {
            self.attend(deadline.remaining(), true);
            waiter.end_leading();
            if deadline.has_passed() || !is_listening() {
                break;
            }
        }
    }

    /// Sleeps for as long, until something happens; then tells whoever waits for it. Only who leads takes nudges, which are
    /// for nobody else.
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

    fn look_at_channels(&self) {
        let mut events: Vec<Event> = Vec::new();
        // What fails for want of memory is said again.
        if self.set.wait(&mut events, StraitDeadline::NOW).is_ok() {
            for event in &events {
                channel::look_at(event.key() as zx_handle_t);
            }
        }
    }
}

/// Whether there is more than one processor to wait with.
pub(crate) fn may_spin() -> bool {
    static MANY: OnceLock<bool> = OnceLock::new();
    *MANY.get_or_init(|| std::thread::available_parallelism().is_ok_and(|count| count.get() > 1))
}

/// That a wait cannot be made.
pub(crate) const NOT_WAITABLE: Status = Status::NOT_SUPPORTED;
