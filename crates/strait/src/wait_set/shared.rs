//! The state that the threads of a wait set share: the queue, the links, and how the threads sleep on them.

mod driven;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::EVENTS;
use super::event::Event;
use super::member::{Examined, Member};
use crate::blocked_on;
use crate::channel::NOWHERE;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::waiter::SLICE;
use crate::link::liveness::{self, Watch};
use crate::link::{InUse, Link, ListenerSet, PAUSE, SocketBlockedOn};
use crate::os::epoll::Wanted;
use crate::os::fork::Born;
use crate::os::{self, epoll, socket};
use crate::signals;
use crate::sync::unpoisoned;
use crate::wake::before_sleep;
use words::Slept;

/// The most peer processes whose death one long sleep of a wait set watches for. Each watched process takes one
/// descriptor of this process during the sleep.
const WATCHED: usize = 64;

/// The most links on which a wait collects notifications before looking at the queued members. With more links, the
/// next call continues with the next links.
const SOME_LINKS: usize = 8;

/// The share of the waits of a wait set that also receive from the sockets, even if members are queued: one in this
/// many. A wait does so too if the last receive from the sockets was [`SLICE`] ago: only a socket tells of a death, and
/// a program may wait seldom.
const SOCKETS_EVERY: u64 = 64;

/// The time after which a wait set tries again an action that failed for lack of room in a socket, of descriptors or of
/// memory.
const RETRY: Duration = blocked_on::POLL_INTERVAL;

/// The longest time for which a wait set ignores a link without any budget of idle wake-ups left.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// `REST`: a wait set ignores throttled links for this many times the time spent looking at the links. The looks then
/// take a twentieth of the time, unless [`LONGEST_PAUSE`] makes the pause shorter.
const REST: u32 = 19;

/// The most times that a wait with [`Deadline::NOW`] starts over while peers keep notifying. Then the wait returns
/// without an event, and leaves the notified members to the next wait.
const PASSES: usize = 2;

/// The key under which the epoll instance of a wait set reports the set's wake fd (an eventfd by which threads of the
/// process wake the set). Links are reported under their numbers, all of them lower.
const WAKE_FD: u64 = u64::MAX;

/// The key under which the epoll instance of a wait set reports the set's timer, which ends throttling and starts
/// retries. Links are reported under their numbers, all of them lower.
const CLOCK: u64 = u64::MAX - 1;

/// The least key under which the epoll instance of a wait set reports a descriptor of the program or of a listener.
/// Links are reported under their numbers, which are lower.
const FIRST_FD: u64 = 1 << 62;

/// Returns the result of a wait that found no event: 0 events if the deadline has passed.
///
/// # Errors
/// [`Error::Signalled`] if a signal has ended the wait.
fn nothing(deadline: Deadline) -> Result<usize, Error> {
    if deadline.has_passed() { Ok(0) } else { signals::check().map(|()| 0) }
}

fn now_in_milliseconds() -> u64 {
    os::coarse_time().as_millis() as u64
}

/// A link on which a wait set has members registered, with the state in which the set watches the link.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) link: InUse,
    /// The number of registrations of the wait set's members on the link. When the last registration ends, the wait set
    /// leaves the link.
    count: usize,
    /// Whether the wait set's epoll instance watches the link's socket for packets.
    watched: bool,
    /// Whether the wait set's epoll instance also reports when the link's socket has room to send.
    awaits_room: bool,
    /// Whether the wait set ignores the link until the set's timer expires, because the link has used up its budget of
    /// idle wake-ups.
    throttled: bool,
    /// Whether the wait set does not watch the link's socket for [`RETRY`], because the next packet in the socket
    /// cannot be taken now.
    stuck: bool,
}

/// The queue of a wait set: the members that may be ready, at which the next wait looks.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) queue: VecDeque<Arc<Member>>,
    /// The number of members in `queue` that were removed from the wait set after they were queued.
    gone: usize,
    /// Whether the wake fd of the wait set is readable: a thread has written to the wake fd, and no thread has reset it
    /// since.
    pub(super) signalled: bool,
    /// The members at which the next wait looks again, because the peers could not be told how to notify these members.
    later: Vec<Arc<Member>>,
    /// Whether a thread sleeps on the words (futexes) of the wait set, or is about to: see [`words`].
    on_word: bool,
    /// Two empty vectors for reuse: the first for the members at which a thread looks, the second for the members that
    /// go back into the queue.
    spare: (Vec<Arc<Member>>, Vec<Arc<Member>>),
}

/// The state of a wait set, which its members and its waiting threads share.
#[derive(Debug)]
pub(crate) struct SharedSet {
    pub(super) born: Born,
    pub(super) epoll: OwnedFd,
    wake_fd: OwnedFd,
    pub(super) ready: Mutex<Queue>,
    /// The links on which members of the wait set are registered, by link number.
    pub(super) links: Mutex<BTreeMap<u64, Used>>,
    /// The members that stand for descriptors, by the number under which `epoll` reports each descriptor.
    pub(super) fds: Mutex<BTreeMap<u64, Arc<Member>>>,
    next_fd: AtomicU64,
    /// The number of the last link on which a wait collected notifications; the next wait begins at the link after it.
    /// Used if there are more links than [`SOME_LINKS`].
    turn: AtomicU64,
    calls: AtomicU64,
    /// The time at which a thread last looked at the sockets, in milliseconds of [`os::coarse_time`].
    heard: AtomicU64,
    /// The number of threads that sleep in a wait on the wait set, or are about to.
    asleep: AtomicUsize,
    /// The CPU on which the peer of the member that was armed last ran at the time: its number plus 1, 0 if unknown, or
    /// [`NOWHERE`] if the member has no peer in another process.
    peer_cpu: AtomicU32,
    /// Whether the program has asked for the wait set's descriptor, so that an event loop may sleep on it.
    pub(super) polled: AtomicBool,
    /// Whether the driver of the wait set is polling: it looks at the set again and again without being woken. See
    /// [`driven`].
    polling: AtomicBool,
    pub(super) closed: AtomicBool,
    pub(super) count: AtomicUsize,
    /// Whether the last wait returned events. If so, the next call of [`SharedSet::collect_some`] adds to the links'
    /// budgets of idle wake-ups.
    had_events: AtomicBool,
    /// The time at which the wait set watches the sockets of stuck links again; `None` if no link of the set is stuck.
    retry: Mutex<Option<Instant>>,
    /// The timer of the wait set, which ends throttling and starts retries. Created when a link is first throttled or
    /// the program first asks for the set's descriptor.
    clock: OnceLock<OwnedFd>,
    /// The time at which the throttling of links last ended.
    unthrottled: Mutex<Option<Instant>>,
    /// The state for a thread of the wait set that sleeps on words (futexes): see [`words`].
    words: words::Own,
}

/// A count of one thread as asleep on a wait set: made before the thread sleeps, and taken back when the value is
/// dropped.
pub(super) struct Asleep<'a>(&'a AtomicUsize);

impl<'a> Asleep<'a> {
    pub(super) fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count)
    }
}

impl Drop for Asleep<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl SharedSet {
    pub(super) fn new() -> Result<Self, Error> {
        let (epoll, wake_fd) = (epoll::create()?, epoll::wake_fd()?);
        epoll::add(&epoll, &wake_fd, WAKE_FD)?;
        Ok(Self {
            born: Born::here(),
            epoll,
            wake_fd,
            ready: Mutex::default(),
            links: Mutex::default(),
            fds: Mutex::default(),
            next_fd: AtomicU64::new(FIRST_FD),
            turn: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            heard: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            peer_cpu: AtomicU32::new(NOWHERE),
            polled: AtomicBool::new(false),
            polling: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            had_events: AtomicBool::new(false),
            retry: Mutex::default(),
            clock: OnceLock::new(),
            unthrottled: Mutex::default(),
            words: words::Own::default(),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Puts a member into the queue of the wait set, and wakes a thread that sleeps on the set or its event loop. Does
    /// nothing if the set is closed.
    pub(crate) fn push(&self, member: Arc<Member>) {
        if self.is_closed() {
            return;
        }
        let mut ready = unpoisoned(&self.ready);
        ready.queue.push_back(member);
        // Checked under the lock: a thread that is about to sleep counts itself as asleep before looking at the queue.
        if self.is_armed() {
            self.signal(&mut ready);
        }
    }

    pub(super) fn signal(&self, ready: &mut Queue) {
        if self.words.wake(ready) && !self.polled.load(Ordering::SeqCst) {
            return;
        }
        if !std::mem::replace(&mut ready.signalled, true) {
            epoll::signal(&self.wake_fd);
        }
    }

    /// Counts `member`, which was removed from the wait set, as no longer in the set. The wait set's queue of ready
    /// members may still hold removed members. If the removed members are more than [`EVENTS`], and more than half of
    /// the queue, takes all removed members out of the queue.
    pub(super) fn count_out(&self, member: &Member) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        if member.is_queued() {
            let mut ready = unpoisoned(&self.ready);
            ready.gone += 1;
            // Removed members are dropped when they come up in the queue. A program that adds and removes without
            // waiting must not fill the queue.
            if ready.gone > EVENTS && ready.gone > ready.queue.len() / 2 {
                ready.queue.retain(|member| !member.is_out());
                ready.gone = 0;
            }
        }
    }

    /// Counts one more registration of a member of the wait set on `link`. The first registration makes the set's epoll
    /// instance watch the link's socket, and makes the link know the set.
    pub(super) fn use_link(self: &Arc<Self>, link: &InUse) -> Result<(), Error> {
        let mut links = unpoisoned(&self.links);
        if let Some(used) = links.get_mut(&link.number()) {
            used.count += 1;
            return Ok(());
        }
        let mut watched = false;
        if let Some(socket) = link.io().socket().filter(|_| !link.is_down()) {
            epoll::add(&self.epoll, socket, link.number())?;
            watched = true;
        }
        links.insert(
            link.number(),
            Used { link: link.clone(), count: 1, watched, awaits_room: false, throttled: false, stuck: false },
        );
        drop(links);
        let this = Arc::downgrade(self);
        link.add_set(this);
        // A thread that sleeps on words would not be woken by the new link.
        self.words.wake(&mut unpoisoned(&self.ready));
        if link.is_down() {
            self.link_down(link.number());
        }
        Ok(())
    }

    /// Counts one registration of a member of the wait set on `link` as ended. After the last registration, the set's
    /// epoll instance no longer watches the link's socket, and the link forgets the wait set.
    pub(super) fn leave_link(&self, link: &InUse) {
        let mut links = unpoisoned(&self.links);
        let Some(used) = links.get_mut(&link.number()) else { return };
        used.count -= 1;
        if used.count > 0 {
            return;
        }
        let used = links.remove(&link.number()).expect("found just now");
        if let Some(socket) = link.io().socket().filter(|_| used.watched) {
            epoll::remove(&self.epoll, socket);
        }
        drop(links);
        link.remove_set(self);
    }

    /// Returns a number under which the wait set's epoll instance can report one more descriptor.
    pub(super) fn new_fd_number(&self) -> u64 {
        self.next_fd.fetch_add(1, Ordering::Relaxed)
    }

    /// Makes the wait set's epoll instance watch the descriptor `fd`, for which `member` stands, under `number`. The
    /// instance reports the descriptor only after a look at the member. Does nothing if another thread has removed the
    /// member already.
    pub(super) fn use_fd(&self, number: u64, fd: BorrowedFd<'_>, member: &Arc<Member>) -> Result<(), Error> {
        let mut fds = unpoisoned(&self.fds);
        // Checked under the lock: the removing thread marks the member as removed before it takes the lock.
        if member.is_out() {
            return Ok(());
        }
        epoll::add_once(&self.epoll, fd, number, Wanted { readable: false, writable: false })?;
        fds.insert(number, member.clone());
        drop(fds);
        // A thread that sleeps on words would not be woken by the new descriptor.
        self.words.wake(&mut unpoisoned(&self.ready));
        Ok(())
    }

    /// Makes the wait set's epoll instance report the descriptor `fd`, which it watches under `number`, once more.
    ///
    /// # Errors
    /// [`Error::NotInSet`] if another thread has removed the descriptor. The descriptor may be in the wait set again
    /// under another number; the call leaves that registration as it is.
    pub(super) fn await_fd(&self, number: u64, fd: BorrowedFd<'_>, wanted: Wanted) -> Result<(), Error> {
        let fds = unpoisoned(&self.fds);
        if !fds.contains_key(&number) {
            return Err(Error::NotInSet);
        }
        epoll::watch_once(&self.epoll, fd, number, wanted)
    }

    /// Makes the wait set's epoll instance stop watching the descriptor `fd`, reported under `number`. Does nothing if
    /// the instance does not watch the descriptor under this number. Does nothing in a child of `fork`, whose epoll
    /// instance is the parent's.
    pub(super) fn leave_fd(&self, number: u64, fd: BorrowedFd<'_>) {
        if self.born.is_elsewhere() {
            return;
        }
        let mut fds = unpoisoned(&self.fds);
        if fds.remove(&number).is_some() {
            epoll::remove(&self.epoll, fd);
        }
    }

    pub(super) fn wait(&self, events: &mut Vec<Event>, limit: usize, deadline: Deadline) -> Result<usize, Error> {
        let mut passes = 0;
        if self.polling.load(Ordering::Relaxed) {
            // A thread that calls `wait` is no driver, or a driver that no longer polls.
            self.polling.store(false, Ordering::SeqCst);
        }
        if self.is_due_to_hear() {
            self.sleep_and_drain(Asleep::new(&self.asleep), Some(Duration::ZERO), false)?;
        }
        let mut yielded = false;
        // A signal ends a wait as the deadline does.
        let is_over = || deadline.has_passed() || signals::has_come();
        loop {
            // Done whatever is in the queue: a member that is always ready must not keep others out of the queue.
            self.collect_some();
            self.take_ready(events, limit);
            let polled = self.polled.load(Ordering::SeqCst);
            if !events.is_empty() {
                self.had_events.store(true, Ordering::Relaxed);
                if polled {
                    // The wake fd becomes unreadable only when nothing was found and the peers know that this process
                    // sleeps.
                    self.wake_one();
                }
                return Ok(events.len());
            }
            passes += 1;
            let enough = passes > PASSES && is_over();
            // As in a wait on a channel: the peer may run, and send, before this process writes that it sleeps.
            if !yielded && !is_over() && self.peer_may_be_here() {
                yielded = true;
                if before_sleep::yield_once(deadline, &mut || self.has_news()) {
                    continue;
                }
            }
            let mut asleep = Asleep::new(&self.asleep);
            let (idle, later) = self.reset_wake_fd();
            if idle && !later && !is_over() {
                match self.sleep_on_words(asleep, deadline)? {
                    Slept::Woken => continue,
                    Slept::InVain(still) => asleep = still,
                }
            }
            let notified = self.arm();
            if notified || !idle {
                drop(asleep);
                if enough {
                    self.wake_one();
                    return nothing(deadline);
                }
                if notified {
                    self.collect();
                }
                continue;
            }
            let mut sleep = if signals::has_come() { Some(Duration::ZERO) } else { deadline.remaining(Instant::now()) };
            let retries = later || self.is_stuck() || self.has_unsent();
            if retries {
                sleep = Some(sleep.map_or(RETRY, |sleep| sleep.min(RETRY)));
            }
            let found = self.words.measure(|| self.sleep_and_drain(asleep, sleep, !deadline.is_now()))?;
            if is_over() && (!found || enough) {
                // More events may be left, which do not make the descriptor readable again.
                if found && polled {
                    self.wake_one();
                } else if retries && polled {
                    self.look_again_later();
                }
                return nothing(deadline);
            }
        }
    }

    /// Counts one wait or look, and returns whether it should receive from the sockets even if members are queued.
    fn is_due_to_hear(&self) -> bool {
        let calls = self.calls.fetch_add(1, Ordering::Relaxed);
        calls % SOCKETS_EVERY == SOCKETS_EVERY - 1
            || now_in_milliseconds().saturating_sub(self.heard.load(Ordering::Relaxed)) >= SLICE.as_millis() as u64
    }

    /// Notes on which CPU the peer of a member ran when the member was armed.
    pub(super) fn peer_was_on(&self, cpu: u32) {
        self.peer_cpu.store(cpu, Ordering::Relaxed);
    }

    /// Returns whether the peer of the member that was armed last is another process, last seen on the CPU of the
    /// calling thread: if the thread yields, the peer may run, and send.
    fn peer_may_be_here(&self) -> bool {
        let cpu = self.peer_cpu.load(Ordering::Relaxed);
        cpu == 0 || cpu == os::current_cpu() + 1
    }

    /// Returns whether a member is queued, or a peer has notified a member.
    fn has_news(&self) -> bool {
        !unpoisoned(&self.ready).queue.is_empty()
            || unpoisoned(&self.links).values().any(|used| !used.throttled && used.link.has_notified())
    }

    /// Makes the wake fd of the wait set unreadable, if the wait set's queue of ready members is empty. Returns two
    /// answers: whether the queue is empty, and whether there are members (in [`Queue::later`]) at which the next wait
    /// looks again.
    pub(super) fn reset_wake_fd(&self) -> (bool, bool) {
        let mut ready = unpoisoned(&self.ready);
        let idle = ready.queue.is_empty();
        if idle && std::mem::take(&mut ready.signalled) {
            epoll::reset(&self.wake_fd);
        }
        (idle, !ready.later.is_empty())
    }

    /// For each link that is not throttled, writes into this process's notification area that this process sleeps.
    /// Returns whether a peer has notified a member that is not collected yet.
    pub(super) fn arm(&self) -> bool {
        let links = unpoisoned(&self.links);
        let heard = || links.values().filter(|used| !used.throttled);
        heard().for_each(|used| used.link.arm());
        let mut notified = false;
        let mut over_budget = Vec::new();
        for used in heard().filter(|used| used.link.has_notified()) {
            notified = true;
            // If the notification was for something, the coming events make up for the count.
            if used.link.woken_for_nothing() {
                over_budget.push(used.link.number());
            }
        }
        drop(links);
        over_budget.into_iter().for_each(|number| self.throttle(number));
        notified
    }

    /// Throttles the link with the number `number`: the wait set ignores the link until the set's timer expires, after
    /// [`LONGEST_PAUSE`] or less. Does nothing if there is no timer.
    pub(super) fn throttle(&self, number: u64) {
        let mut links = unpoisoned(&self.links);
        let first = links.values().all(|used| !used.throttled);
        // Links that are throttled before the timer expires end their throttling at the same time. Without a timer the
        // link is not throttled.
        if first && !self.set_clock(self.pause()) {
            return;
        }
        if let Some(used) = links.get_mut(&number) {
            used.throttled = true;
            self.unwatch(used);
        }
    }

    /// Returns how long the wait set ignores a throttled link: at least [`PAUSE`], and [`REST`] times the time that the
    /// set's threads spent since the last such pause, at most [`LONGEST_PAUSE`]. So a link that is throttled again and
    /// again costs little, however long each look takes.
    fn pause(&self) -> Duration {
        let spent = unpoisoned(&self.unthrottled).map_or(Duration::ZERO, |since| since.elapsed());
        // If the last throttling was longer ago, no single look has caused the present throttling.
        if spent < LONGEST_PAUSE { (spent * REST).clamp(PAUSE, LONGEST_PAUSE) } else { PAUSE }
    }

    fn unwatch(&self, used: &mut Used) {
        used.awaits_room = false;
        if std::mem::take(&mut used.watched)
            && let Some(socket) = used.link.io().socket()
        {
            epoll::remove(&self.epoll, socket);
        }
    }

    /// Makes the wait set's epoll instance watch the socket of the link `used` again, if it does not and the link is
    /// up. Returns `false` if the kernel refuses.
    fn watch(&self, used: &mut Used) -> bool {
        let Some(socket) = used.link.io().socket().filter(|_| !used.link.is_down() && !used.watched) else {
            return true;
        };
        used.watched = epoll::add(&self.epoll, socket, used.link.number()).is_ok();
        used.watched
    }

    /// Handles a stuck link, whose next packet cannot be taken now: makes one member on the link report the fact. Also
    /// stops watching the link's socket for [`RETRY`], because the socket stays readable.
    fn leave_alone(&self, link: &InUse) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&link.number()) {
            used.stuck = true;
            self.unwatch(used);
        }
        unpoisoned(&self.retry).get_or_insert_with(|| Instant::now() + RETRY);
        link.some_members_of(self).iter().any(|member| member.report_trouble(link));
    }

    pub(super) fn is_stuck(&self) -> bool {
        unpoisoned(&self.retry).is_some()
    }

    /// Makes the wait set's epoll instance watch the sockets of stuck links again, if [`RETRY`] has passed since a link
    /// got stuck.
    fn watch_stuck(&self) {
        let mut retry = unpoisoned(&self.retry);
        if retry.is_none_or(|retry| Instant::now() < retry) {
            return;
        }
        *retry = None;
        for used in unpoisoned(&self.links).values_mut().filter(|used| used.stuck) {
            used.stuck = !used.throttled && !self.watch(used);
            if used.stuck {
                *retry = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Ends the throttling of all throttled links of the wait set. Called when the set's timer has expired. A link
    /// whose socket cannot be watched now stays throttled for [`RETRY`].
    pub(super) fn unthrottle(&self) {
        let Some(clock) = self.clock.get() else { return };
        epoll::reset(clock);
        *unpoisoned(&self.unthrottled) = Some(Instant::now());
        let mut failed = false;
        for used in unpoisoned(&self.links).values_mut().filter(|used| used.throttled) {
            used.throttled = !used.stuck && !self.watch(used);
            failed |= used.throttled;
        }
        if failed {
            epoll::set_timer(clock, RETRY);
        }
    }

    /// Tries again to send the unsent packets of all links of the wait set. Returns whether a link still has unsent
    /// packets, for which its peer may be waiting. Makes the epoll instance report when a full socket has room again.
    pub(super) fn has_unsent(&self) -> bool {
        let mut links = unpoisoned(&self.links);
        let mut has_unsent = false;
        for used in links.values_mut() {
            match used.link.unsent() {
                None => {}
                Some(blocked) => {
                    has_unsent = true;
                    if blocked == SocketBlockedOn::Room {
                        self.watch_for_room(used);
                    }
                }
            }
        }
        has_unsent
    }

    /// Makes the wait set's descriptor readable when the socket of `link` has room. Does nothing if no member of the
    /// set is registered on the link.
    pub(crate) fn await_socket(&self, link: &Link) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&link.number()) {
            self.watch_for_room(used);
        }
        // A thread that sleeps on words would not be woken by room in the socket.
        self.words.wake(&mut unpoisoned(&self.ready));
    }

    fn watch_for_room(&self, used: &mut Used) {
        if used.watched
            && !used.awaits_room
            && let Some(socket) = used.link.io().socket()
        {
            used.awaits_room = epoll::watch(&self.epoll, socket, used.link.number(), true);
        }
    }

    /// Makes the epoll instance no longer report room in the socket of the link with the number `number`, if the socket
    /// has room now. Called when epoll has reported the socket.
    fn watch_for_room_no_more(&self, number: u64) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&number)
            && used.awaits_room
            && used.link.is_writable()
            && let Some(socket) = used.link.io().socket()
        {
            used.awaits_room = !epoll::watch(&self.epoll, socket, number, false);
        }
    }

    /// Makes the wait set's descriptor readable after [`RETRY`] at the latest: the next wait tries again an action that
    /// failed and whose success no event announces, such as a send to a full socket.
    pub(super) fn look_again_later(&self) {
        let is_throttled = unpoisoned(&self.links).values().any(|used| used.throttled);
        // If a link is throttled, the timer is set already, to an earlier time.
        if !is_throttled && !self.set_clock(RETRY) {
            self.wake_one();
        }
    }

    /// Sets the timer of the wait set to expire after the time `after`. Returns `false` if there is no timer and none
    /// can be created, or if the timer cannot be set.
    fn set_clock(&self, after: Duration) -> bool {
        self.clock().is_some_and(|clock| epoll::set_timer(clock, after) && epoll::add_again(&self.epoll, clock, CLOCK))
    }

    /// Returns the timer of the wait set, and creates the timer if needed; `None` if the creation fails. Called early
    /// where possible, because the creation can fail for lack of descriptors.
    pub(super) fn clock(&self) -> Option<&OwnedFd> {
        match self.clock.get() {
            Some(clock) => Some(clock),
            None => {
                let clock = epoll::timer().ok()?;
                Some(self.clock.get_or_init(|| clock))
            }
        }
    }

    pub(super) fn collect(&self) {
        unpoisoned(&self.links).values().filter(|used| !used.throttled).for_each(|used| used.link.collect());
    }

    /// Puts the members that peers have notified, on up to [`SOME_LINKS`] links of the wait set, into the wait set's
    /// queue of ready members. The next call takes the next links.
    pub(super) fn collect_some(&self) {
        let links = unpoisoned(&self.links);
        let had_events = self.had_events.load(Ordering::Relaxed);
        if had_events {
            self.had_events.store(false, Ordering::Relaxed);
        }
        let look_at = |used: &Used| {
            if had_events {
                used.link.woken();
            }
            if !used.throttled {
                used.link.collect();
            }
        };
        if links.len() <= SOME_LINKS {
            links.values().for_each(look_at);
            return;
        }
        let turn = self.turn.load(Ordering::Relaxed);
        let after = links.range((Bound::Excluded(turn), Bound::Unbounded));
        for (number, used) in after.chain(links.iter()).take(SOME_LINKS) {
            look_at(used);
            self.turn.store(*number, Ordering::Relaxed);
        }
    }

    /// Looks at the queued members of the wait set, and adds an event for each ready member to `events`, until there
    /// are `limit` events. Each member is reported at most once in one call.
    pub(super) fn take_ready(&self, events: &mut Vec<Event>, limit: usize) {
        let mut ready = unpoisoned(&self.ready);
        let Queue { queue, later, .. } = &mut *ready;
        queue.extend(later.drain(..).filter(|member| member.set_queued()));
        let mut left = queue.len();
        if left == 0 {
            return;
        }
        let (mut batch, mut again) = std::mem::take(&mut ready.spare);
        let mut later = Vec::new();
        while left > 0 && events.len() < limit {
            let count = left.min(limit - events.len()).min(EVENTS).min(ready.queue.len());
            left = if count == 0 { 0 } else { left - count };
            batch.extend(ready.queue.drain(..count));
            drop(ready);
            for member in batch.drain(..) {
                match member.examine() {
                    Examined::Event { event, again: level } => {
                        events.push(event);
                        if level {
                            again.push(member);
                        }
                    }
                    Examined::Nothing => {}
                    Examined::Retry => later.push(member),
                }
            }
            ready = unpoisoned(&self.ready);
        }
        // Queued again only now, so that no member is reported twice in one call.
        for member in again.drain(..) {
            if member.set_queued() {
                ready.queue.push_back(member);
            }
        }
        if !ready.queue.is_empty() && self.is_armed() {
            self.signal(&mut ready);
        }
        ready.later.append(&mut later);
        ready.spare = (batch, again);
    }

    /// Sleeps in epoll for at most `limit` (`None`: without a limit), and receives what arrived in the links' sockets.
    /// A sleep longer than [`liveness::LONG`] also watches the peers' processes. `may_wait` says whether the call may
    /// wait for another receiving thread. Returns whether a descriptor was ready or a peer had died.
    pub(super) fn sleep_and_drain(
        &self,
        asleep: Asleep<'_>,
        limit: Option<Duration>,
        may_wait: bool,
    ) -> Result<bool, Error> {
        self.watch_stuck();
        let mut asleep = Some(asleep);
        let short = limit.map_or(liveness::LONG, |limit| limit.min(liveness::LONG));
        let found = self.drain_found(&mut asleep, Some(short), may_wait)?;
        if found || limit == Some(short) || signals::has_come() {
            return Ok(found);
        }
        let died = self.watch_processes(limit.map(|limit| limit - short))?;
        for number in &died {
            self.link_down(*number);
        }
        let found = self.drain_found(&mut asleep, Some(Duration::ZERO), may_wait)?;
        Ok(found || !died.is_empty())
    }

    /// Sleeps until the wait set's epoll instance reports something, for at most `limit` (`None`: without a limit).
    /// Also watches up to [`WATCHED`] peer processes. Returns the numbers of the links whose peer process has died
    /// although the socket is open; these links are down then.
    pub(super) fn watch_processes(&self, limit: Option<Duration>) -> Result<Vec<u64>, Error> {
        let up = |(number, used): (&u64, &Used)| (!used.link.is_down()).then(|| (*number, used.link.clone()));
        let links: Vec<_> = unpoisoned(&self.links).iter().filter_map(up).collect();
        let (mut died, mut watched) = (Vec::new(), Vec::new());
        for (number, link) in links.into_iter().take(WATCHED) {
            match link.watch() {
                Watch::Died => died.push(number),
                Watch::Lives(process) => watched.push((number, link, process)),
                Watch::Unknown => {}
            }
        }
        if died.is_empty() {
            let processes: Vec<_> = watched.iter().map(|(.., process)| process.as_fd()).collect();
            let ended = socket::wait_any(self.epoll.as_fd(), &processes, limit)?;
            for (number, link, _) in ended.into_iter().map(|index| &watched[index]) {
                link.fail(Error::PeerClosed);
                died.push(*number);
            }
        }
        Ok(died)
    }

    pub(super) fn drain_found(
        &self,
        asleep: &mut Option<Asleep<'_>>,
        limit: Option<Duration>,
        may_wait: bool,
    ) -> Result<bool, Error> {
        let mut room = [const { std::mem::MaybeUninit::uninit() }; 64];
        let mut found = false;
        self.heard.store(now_in_milliseconds(), Ordering::Relaxed);
        for number in epoll::wait(&self.epoll, &mut room, limit)? {
            // The calling thread need not wake itself for events that it finds.
            drop(asleep.take());
            found = true;
            match number {
                WAKE_FD => continue,
                CLOCK => {
                    self.unthrottle();
                    continue;
                }
                FIRST_FD.. => {
                    let member = unpoisoned(&self.fds).get(&number).cloned();
                    member.inspect(|member| member.notify());
                    continue;
                }
                _ => {}
            }
            let link = unpoisoned(&self.links).get(&number).map(|used| used.link.clone());
            let Some(link) = link else { continue };
            self.watch_for_room_no_more(number);
            let drained = link.drain(may_wait);
            if link.is_down() {
                self.link_down(number);
            } else if drained.is_err() {
                self.leave_alone(&link);
            } else if link.is_over_wake_limit() {
                self.throttle(number);
            }
        }
        Ok(found)
    }
}

impl ListenerSet for SharedSet {
    fn wake_one(&self) {
        self.signal(&mut unpoisoned(&self.ready));
    }

    fn is_armed(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0
            || (self.polled.load(Ordering::SeqCst) && !self.polling.load(Ordering::SeqCst))
    }

    fn link_down(&self, number: u64) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&number)
            && std::mem::take(&mut used.watched)
            && let Some(socket) = used.link.io().socket()
        {
            epoll::remove(&self.epoll, socket);
        }
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::epoll::{EventData, EventFlags};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::super::member::{Subject, Terms};
    use super::super::{Interest, Mode, WaitSet};
    use super::*;
    use crate::channel::Channel;
    use crate::link::{hung_up, linked};
    use crate::wake::watched_fd::WatchedFd;

    fn is_readable(set: &SharedSet) -> bool {
        poll(&mut [PollFd::new(&set.epoll, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    }

    #[test]
    fn only_a_peer_on_this_processor_is_given_a_turn() {
        let set = SharedSet::new().unwrap();
        assert!(!set.peer_may_be_here(), "no member was armed");
        // The test's thread may be moved to another processor between the two calls.
        let here = (0..1000).any(|_| {
            set.peer_was_on(os::current_cpu() + 1);
            set.peer_may_be_here()
        });
        assert!(here);
        let away = (0..1000).any(|_| {
            set.peer_was_on(os::current_cpu() + 2);
            !set.peer_may_be_here()
        });
        assert!(away);
        set.peer_was_on(NOWHERE);
        assert!(!set.peer_may_be_here() && !set.has_news());
    }

    /// Waits in a set for 50 ms, in a new thread, which leaves no yield out. Returns how often that thread has yielded.
    fn yields_of(wait: impl FnOnce(&mut Vec<Event>, Deadline) -> Result<usize, Error> + Send) -> u32 {
        let wait = || {
            assert_eq!(wait(&mut Vec::with_capacity(1), Deadline::after(Duration::from_millis(50))), Ok(0));
            before_sleep::yields()
        };
        std::thread::scope(|scope| scope.spawn(wait).join().unwrap())
    }

    /// Shows that a wait yields once, however often it is woken for nothing.
    #[test]
    fn a_wait_yields_once_before_it_sleeps() {
        let set = SharedSet::new().unwrap();
        let wait = |events: &mut Vec<Event>, deadline| {
            std::thread::scope(|scope| {
                let (over, goes_on) = std::sync::mpsc::channel::<()>();
                let set = &set;
                let wake = move || {
                    while goes_on.try_recv() == Err(std::sync::mpsc::TryRecvError::Empty) {
                        set.wake_one();
                        std::thread::sleep(Duration::from_millis(1));
                    }
                };
                scope.spawn(wake);
                let waited = set.wait(events, 1, deadline);
                drop(over);
                waited
            })
        };
        set.peer_was_on(NOWHERE);
        assert_eq!(yields_of(wait), 0);
        // The CPU of the peer is not known, so it may be that of this thread.
        set.peer_was_on(0);
        assert_eq!(yields_of(wait), 1);
    }

    /// Shows that a member tells its set where the peer ran: in another process, or in this one, in which case a yield
    /// would not make the peer run.
    #[test]
    fn a_wait_yields_for_a_member_whose_peer_may_run_in_another_process() {
        let (one, other) = socket::pair().unwrap();
        let over = [one, other].map(|socket| Channel::over(socket).unwrap());
        let (one, other) = Channel::pair().unwrap();
        for ([end, _other], yields) in [(over, 1), ([one, other], 0)] {
            let set = WaitSet::new().unwrap();
            set.add(&end, 1, Interest::Readable, Mode::Level).unwrap();
            assert_eq!(yields_of(|events, deadline| set.wait(events, deadline)), yields);
        }
    }

    #[test]
    fn a_thread_that_sleeps_on_words_is_told_of_a_full_socket() {
        let set = Arc::new(SharedSet::new().unwrap());
        let [link, _peer] = linked();
        set.use_link(&link).unwrap();
        unpoisoned(&set.ready).on_word = true;
        set.await_socket(&link);
        assert!(!unpoisoned(&set.ready).on_word);
        set.leave_link(&link);
    }

    #[test]
    fn a_set_that_comes_to_a_link_looks_at_what_was_notified_before() {
        let set = Arc::new(SharedSet::new().unwrap());
        let [link, peer] = linked();
        link.drain(false).unwrap();
        assert!(peer.notify(5));
        set.use_link(&link).unwrap();
        assert!(is_readable(&set));
        set.leave_link(&link);
    }

    /// Shows that a member leaves nothing in the set if another thread removes the member during the add.
    #[test]
    fn a_descriptor_that_is_removed_before_it_is_watched_leaves_nothing() {
        let set = Arc::new(SharedSet::new().unwrap());
        let fd = WatchedFd::new(epoll::wake_fd().unwrap()).unwrap();
        let member = |number| {
            let terms = Terms::new(1, Interest::Readable, Mode::Level);
            let member = Member::new(&set, Subject::Fd { fd: Arc::downgrade(&fd), number }, terms, None);
            fd.join_set(member.clone()).unwrap();
            set.count.fetch_add(1, Ordering::Relaxed);
            member
        };
        let removed = member(FIRST_FD);
        fd.leave_set(&*removed);
        set.use_fd(FIRST_FD, fd.as_fd(), &removed).unwrap();
        assert!(unpoisoned(&set.fds).is_empty());
        let added = member(FIRST_FD + 1);
        set.use_fd(FIRST_FD + 1, fd.as_fd(), &added).unwrap();
        fd.leave_set(&*added);
        assert!(unpoisoned(&set.fds).is_empty());
    }

    #[test]
    fn without_a_timer_the_descriptor_is_readable_until_an_action_succeeds() {
        let set = SharedSet::new().unwrap();
        set.clock.set(std::fs::File::open("/dev/null").unwrap().into()).unwrap();
        assert!(!is_readable(&set));
        set.look_again_later();
        assert!(is_readable(&set));
    }

    /// Shows that the descriptor of a set stays readable as long as a peer has notified more members than a look takes,
    /// although the look found no event and has received every packet.
    #[test]
    fn a_look_that_gives_up_leaves_the_descriptor_readable() {
        const NOTIFIED: u32 = 100_000;
        let set = Arc::new(SharedSet::new().unwrap());
        let [link, peer] = linked();
        set.use_link(&link).unwrap();
        set.polled.store(true, Ordering::SeqCst);
        (0..NOTIFIED).for_each(|number| assert!(peer.notify(number)));
        set.drain_found(&mut None, Some(Duration::ZERO), false).unwrap();
        let mut looks = 0;
        while is_readable(&set) {
            assert_eq!(set.wait(&mut Vec::with_capacity(1), 1, Deadline::NOW), Ok(0));
            looks += 1;
        }
        assert!(looks > 1 && !link.has_notified(), "after {looks} looks");
        set.leave_link(&link);
    }

    /// Shows that a look that leaves some sockets unread is followed by a new event of the set's descriptor: an event
    /// loop that learns of changes only (edge-triggered) looks again.
    #[test]
    fn a_look_that_leaves_sockets_unread_causes_a_new_event() {
        const LINKS: usize = 4 * 64;
        let set = Arc::new(SharedSet::new().unwrap());
        let links: Vec<_> = std::iter::repeat_with(hung_up).take(LINKS).collect();
        links.iter().for_each(|link| set.use_link(link).unwrap());
        set.polled.store(true, Ordering::SeqCst);
        let outer = epoll::create().unwrap();
        let flags = EventFlags::IN | EventFlags::ET;
        rustix::event::epoll::add(&outer, &set.epoll, EventData::new_u64(1), flags).unwrap();
        let mut room = [const { std::mem::MaybeUninit::uninit() }; 64];
        while epoll::wait(&outer, &mut room, Some(Duration::ZERO)).unwrap().count() > 0 {
            assert_eq!(set.wait(&mut Vec::with_capacity(1), 1, Deadline::NOW), Ok(0));
        }
        let left = links.iter().filter(|link| !link.is_down()).count();
        assert_eq!(left, 0, "links whose hang-up was not noticed");
        links.iter().for_each(|link| set.leave_link(link));
    }
}
