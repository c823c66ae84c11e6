//! The state that the threads of a wait set share: the queue, the links, and how the threads sleep on them.

mod driven;
mod fds;
mod links;
mod overlooked;
mod queue;
mod words;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::event::Event;
use super::member::Member;
use crate::blocked_on;
use crate::channel::NOWHERE;
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::waiter::SLICE;
use crate::link::{ListenerSet, liveness};
use crate::os::fork::Born;
use crate::os::{self, epoll};
use crate::signals;
use crate::sync::unpoisoned;
use crate::wake::before_sleep;
use fds::FIRST_FD;
use links::Used;
use queue::Queue;
use words::Slept;

/// The share of the waits of a wait set that also receive from the sockets, even if members are queued: one in this
/// many. A wait does so too if the last receive from the sockets was [`SLICE`] ago: only a socket tells of a death, and
/// a program may wait seldom.
const SOCKETS_EVERY: u64 = 64;

/// The time after which a wait set tries again an action that failed for lack of room in a socket, of descriptors or of
/// memory.
const RETRY: Duration = blocked_on::POLL_INTERVAL;

/// The most times that a wait with [`Deadline::NOW`] starts over while peers keep notifying. Then the wait returns
/// without an event, and leaves the notified members to the next wait.
const PASSES: usize = 2;

/// The key under which the epoll instance of a wait set reports the set's wake fd (an eventfd by which threads of the
/// process wake the set). Links are reported under their numbers, all of them lower.
const WAKE_FD: u64 = u64::MAX;

/// The key under which the epoll instance of a wait set reports the set's timer, which ends throttling and starts
/// retries. Links are reported under their numbers, all of them lower.
const CLOCK: u64 = u64::MAX - 1;

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
    /// Used only if one wait does not collect on all links.
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

    pub(super) fn wait(&self, events: &mut Vec<Event>, limit: usize, deadline: Deadline) -> Result<usize, Error> {
        let waited = self.wait_for_events(events, limit, deadline);
        if waited.is_ok() {
            self.expect_notifications();
        }
        waited
    }

    fn wait_for_events(&self, events: &mut Vec<Event>, limit: usize, deadline: Deadline) -> Result<usize, Error> {
        let mut passes = 0;
        if self.polling.load(Ordering::Relaxed) {
            // A thread that calls `wait` is not a polling driver.
            self.polling.store(false, Ordering::SeqCst);
        }
        if self.is_due_to_hear() {
            self.sleep_and_drain(Asleep::new(&self.asleep), Some(Duration::ZERO), false)?;
        }
        let mut yielded = false;
        // A signal ends a wait as the deadline does.
        let is_over = || deadline.has_passed() || signals::has_come();
        loop {
            // Collects even if members are queued: a member that is always ready must not keep other members out of the
            // queue.
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
            // Yields once before announcing the sleep, as a wait on a channel does: the peer may run now, and send.
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

    /// Counts a wait or a look, and returns whether the call should receive from the sockets even if members are
    /// queued.
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
        if !found && !short.is_zero() {
            self.expect_events();
        }
        if found || limit == Some(short) || signals::has_come() {
            return Ok(found);
        }
        let died = self.watch_processes(limit.map(|limit| limit - short))?;
        for number in &died {
            self.link_down(*number);
        }
        let found = self.drain_found(&mut asleep, Some(Duration::ZERO), may_wait)?;
        if !found && died.is_empty() {
            self.expect_events();
        }
        Ok(found || !died.is_empty())
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
    use rustix::thread::{CpuSet, sched_setaffinity};

    use super::super::{Interest, Mode, WaitSet};
    use super::*;
    use crate::channel::Channel;
    use crate::link::{hung_up, linked};
    use crate::os::socket;

    pub(super) fn is_readable(set: &SharedSet) -> bool {
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

    /// Waits in a set for 400 ms, in a new thread, which leaves no yield out. Returns how often that thread has
    /// yielded. The time is long enough that the thread gets a processor before the deadline, on a busy machine too: a
    /// wait after its deadline does not yield.
    fn yields_of(wait: impl FnOnce(&mut Vec<Event>, Deadline) -> Result<usize, Error> + Send) -> u32 {
        let wait = || {
            assert_eq!(wait(&mut Vec::with_capacity(1), Deadline::after(Duration::from_millis(400))), Ok(0));
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
    /// would not make the peer run. An end records the CPU of the thread that makes it, and a wait yields only on the
    /// CPU of the peer; so both threads of the test run on one CPU.
    #[test]
    fn a_wait_yields_for_a_member_whose_peer_may_run_in_another_process() {
        let mut here = CpuSet::new();
        here.set(os::current_cpu() as usize);
        sched_setaffinity(None, &here).unwrap();
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
