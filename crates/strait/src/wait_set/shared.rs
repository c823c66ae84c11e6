//! What the threads that wait on a set have in common: the queue, the links, and sleeping on them.

mod driven;
mod words;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use super::EVENTS;
use super::event::Event;
use super::member::{Examined, Member};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::life::{self, Watch};
use crate::link::{InUse, Lack, Link, PAUSE};
use crate::os::fork::Born;
use crate::os::{epoll, socket};
use crate::sync::unpoisoned;
use crate::wake::want;
use words::Slept;

/// Processes that a long sleep watches at most. Each takes a descriptor as long.
const WATCHED: usize = 64;

/// Links whose boards are looked at in every call, whatever is in the queue.
const SOME_LINKS: usize = 8;

/// In every so many calls the sockets are looked at as well, though the queue has something.
const SOCKETS_EVERY: u64 = 64;

/// How soon what failed for want of room or memory is tried again.
const RETRY: Duration = want::LOOK;

/// Looks of a call that must not block, at peers that ring without end.
const PASSES: usize = 2;

/// The number of the eventfd in epoll; those of links are lower.
const BELL: u64 = u64::MAX;

/// The number of the clock that says when to listen again to links that were muted.
const CLOCK: u64 = u64::MAX - 1;

/// A link on which the set has members.
#[derive(Debug)]
pub(super) struct Used {
    pub(super) link: InUse,
    /// How many places.
    count: usize,
    /// Whether epoll watches its socket.
    watched: bool,
    /// Whether epoll watches for room in it, too.
    awaits_room: bool,
    /// Whether it is not looked at for a moment, since its peer rings and wakes for nothing.
    muted: bool,
    /// Whether its socket is not watched for a moment, since the packet at its head cannot be taken now.
    stuck: bool,
}

/// The members that may have something.
#[derive(Debug, Default)]
pub(super) struct Queue {
    pub(super) queue: VecDeque<Arc<Member>>,
    /// Of those, members that were taken out.
    gone: usize,
    /// Whether the eventfd is readable.
    pub(super) rung: bool,
    /// Members whose peer could not be told that we listen: they are tried again soon.
    later: Vec<Arc<Member>>,
    /// Whether a thread sleeps on the set's word, or is about to.
    on_word: bool,
    /// Memory for those that a thread is looking at, and those of them that are queued again.
    spare: (Vec<Arc<Member>>, Vec<Arc<Member>>),
}

/// A set.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(super) born: Born,
    pub(super) epoll: OwnedFd,
    bell: OwnedFd,
    pub(super) ready: Mutex<Queue>,
    /// By number.
    pub(super) links: Mutex<BTreeMap<u64, Used>>,
    /// Where the next look at some of them begins.
    turn: AtomicU64,
    calls: AtomicU64,
    /// Threads that sleep, or are about to.
    asleep: AtomicUsize,
    /// Whether the descriptor was asked for.
    pub(super) polled: AtomicBool,
    /// Whether its driver looks again without being woken: see [`driven`].
    awake: AtomicBool,
    pub(super) closed: AtomicBool,
    pub(super) count: AtomicUsize,
    /// Whether the last call had events.
    fruitful: AtomicBool,
    /// When to look again at links that are stuck, if any are.
    retry: Mutex<Option<Instant>>,
    /// Made when a link is muted for the first time, or the descriptor is asked for.
    clock: OnceLock<OwnedFd>,
    /// For a thread that sleeps on words: see [`words`].
    words: words::Own,
}

/// That a thread is about to sleep, or does.
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

impl Shared {
    pub(super) fn new() -> Result<Self, Error> {
        let (epoll, bell) = (epoll::create()?, epoll::bell()?);
        epoll::add(&epoll, &bell, BELL)?;
        Ok(Self {
            born: Born::here(),
            epoll,
            bell,
            ready: Mutex::default(),
            links: Mutex::default(),
            turn: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            asleep: AtomicUsize::new(0),
            polled: AtomicBool::new(false),
            awake: AtomicBool::new(false),
            closed: AtomicBool::new(false),
            count: AtomicUsize::new(0),
            fruitful: AtomicBool::new(false),
            retry: Mutex::default(),
            clock: OnceLock::new(),
            words: words::Own::default(),
        })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Whether somebody may be asleep, in our epoll or in a loop of the user's.
    pub(crate) fn is_listening(&self) -> bool {
        self.asleep.load(Ordering::SeqCst) > 0
            || (self.polled.load(Ordering::SeqCst) && !self.awake.load(Ordering::SeqCst))
    }

    /// Puts a member into the queue, and wakes those who sleep.
    pub(crate) fn push(&self, member: Arc<Member>) {
        if self.is_closed() {
            return;
        }
        let mut ready = unpoisoned(&self.ready);
        ready.queue.push_back(member);
        // Looked at under the lock: who is about to sleep says so before it looks at the queue.
        if self.is_listening() {
            self.ring(&mut ready);
        }
    }

    /// Has somebody look.
    pub(crate) fn nudge(&self) {
        self.ring(&mut unpoisoned(&self.ready));
    }

    pub(super) fn ring(&self, ready: &mut Queue) {
        if self.words.wake(ready) && !self.polled.load(Ordering::SeqCst) {
            return;
        }
        if !std::mem::replace(&mut ready.rung, true) {
            epoll::ring(&self.bell);
        }
    }

    /// A member has left.
    pub(super) fn count_out(&self, member: &Member) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        if member.is_queued() {
            let mut ready = unpoisoned(&self.ready);
            ready.gone += 1;
            // They go as they are come across; but who adds and removes and never waits must not fill the queue.
            if ready.gone > EVENTS && ready.gone > ready.queue.len() / 2 {
                ready.queue.retain(|member| !member.is_out());
                ready.gone = 0;
            }
        }
    }

    /// One place more is on this link.
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
            Used { link: link.clone(), count: 1, watched, awaits_room: false, muted: false, stuck: false },
        );
        drop(links);
        link.add_set(Arc::downgrade(self));
        // Who sleeps on words hears nothing of this one.
        self.words.wake(&mut unpoisoned(&self.ready));
        if link.is_down() {
            self.link_down(link.number());
        }
        Ok(())
    }

    /// One place less is on it.
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

    /// Its socket is readable for ever, and tells nothing more.
    pub(crate) fn link_down(&self, number: u64) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&number)
            && std::mem::take(&mut used.watched)
            && let Some(socket) = used.link.io().socket()
        {
            epoll::remove(&self.epoll, socket);
        }
    }

    pub(super) fn wait(&self, events: &mut Vec<Event>, limit: usize, deadline: Deadline) -> Result<usize, Error> {
        let mut passes = 0;
        if self.awake.load(Ordering::Relaxed) {
            // Whoever waits like this is no driver, or one that does not come back.
            self.awake.store(false, Ordering::SeqCst);
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) % SOCKETS_EVERY == SOCKETS_EVERY - 1 {
            self.attend(Asleep::new(&self.asleep), Some(Duration::ZERO), false)?;
        }
        loop {
            // Whatever is in the queue: a member that is always ready must not keep others from getting there.
            self.collect_some();
            self.take_ready(events, limit);
            let polled = self.polled.load(Ordering::SeqCst);
            if !events.is_empty() {
                self.fruitful.store(true, Ordering::Relaxed);
                if polled {
                    // It is only made unreadable when nothing was found, and the peers know that we sleep.
                    self.nudge();
                }
                return Ok(events.len());
            }
            passes += 1;
            let enough = passes > PASSES && deadline.has_passed();
            let mut asleep = Asleep::new(&self.asleep);
            let (idle, later) = self.silence();
            if idle && !later && !deadline.has_passed() {
                match self.sleep_on_words(asleep, deadline)? {
                    Slept::Woken => continue,
                    Slept::InVain(still) => asleep = still,
                }
            }
            let rung = self.listen();
            if rung || !idle {
                drop(asleep);
                if enough {
                    self.nudge();
                    return Ok(0);
                }
                if rung {
                    self.collect();
                }
                continue;
            }
            let mut sleep = deadline.remaining(Instant::now());
            let retries = later || self.is_stuck() || self.has_unsent();
            if retries {
                sleep = Some(sleep.map_or(RETRY, |sleep| sleep.min(RETRY)));
            }
            let found = self.words.measure(|| self.attend(asleep, sleep, !deadline.is_now()))?;
            if deadline.has_passed() && (!found || enough) {
                // Of what was found there may be more, which makes nothing readable anew.
                if found && polled {
                    self.nudge();
                } else if retries && polled {
                    self.look_again_later();
                }
                return Ok(0);
            }
        }
    }

    /// Makes the eventfd unreadable, if nothing is queued. Whether nothing is, and whether something is to be tried again.
    pub(super) fn silence(&self) -> (bool, bool) {
        let mut ready = unpoisoned(&self.ready);
        let idle = ready.queue.is_empty();
        if idle && std::mem::take(&mut ready.rung) {
            epoll::silence(&self.bell);
        }
        (idle, !ready.later.is_empty())
    }

    /// Says to the peers that we sleep. Whether any of them has rung meanwhile.
    pub(super) fn listen(&self) -> bool {
        let links = unpoisoned(&self.links);
        let heard = || links.values().filter(|used| !used.muted);
        heard().for_each(|used| used.link.listen());
        let mut rung = false;
        let mut tired = Vec::new();
        for used in heard().filter(|used| used.link.has_rung()) {
            rung = true;
            // If it was for something, there are events, which make up for it.
            if used.link.woken_for_nothing() {
                tired.push(used.link.number());
            }
        }
        drop(links);
        tired.into_iter().for_each(|number| self.mute(number));
        rung
    }

    /// Does not look at a link for a moment.
    pub(super) fn mute(&self, number: u64) {
        let mut links = unpoisoned(&self.links);
        let first = links.values().all(|used| !used.muted);
        // Those that are muted meanwhile are listened to again at the same time. Without a clock it goes on as it is.
        if first && !self.set_clock(PAUSE) {
            return;
        }
        if let Some(used) = links.get_mut(&number) {
            used.muted = true;
            self.unwatch(used);
        }
    }

    fn unwatch(&self, used: &mut Used) {
        used.awaits_room = false;
        if std::mem::take(&mut used.watched)
            && let Some(socket) = used.link.io().socket()
        {
            epoll::remove(&self.epoll, socket);
        }
    }

    /// Watches the socket of a link again; false if that cannot be now.
    fn watch(&self, used: &mut Used) -> bool {
        let Some(socket) = used.link.io().socket().filter(|_| !used.link.is_down() && !used.watched) else {
            return true;
        };
        used.watched = epoll::add(&self.epoll, socket, used.link.number()).is_ok();
        used.watched
    }

    /// The packet at the head of a link's socket cannot be taken now. One of its members tells of it, and the socket, which stays
    /// readable, is not watched for a moment.
    fn leave_alone(&self, link: &InUse) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&link.number()) {
            used.stuck = true;
            self.unwatch(used);
        }
        unpoisoned(&self.retry).get_or_insert_with(|| Instant::now() + RETRY);
        link.some_members_of(self).iter().any(|member| member.tell_of_trouble(link));
    }

    pub(super) fn is_stuck(&self) -> bool {
        unpoisoned(&self.retry).is_some()
    }

    /// Watches the sockets of stuck links again, once that is due.
    fn watch_stuck(&self) {
        let mut retry = unpoisoned(&self.retry);
        if retry.is_none_or(|retry| Instant::now() < retry) {
            return;
        }
        *retry = None;
        for used in unpoisoned(&self.links).values_mut().filter(|used| used.stuck) {
            used.stuck = !used.muted && !self.watch(used);
            if used.stuck {
                *retry = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Looks at all links again.
    pub(super) fn unmute(&self) {
        let Some(clock) = self.clock.get() else { return };
        epoll::silence(clock);
        let mut failed = false;
        for used in unpoisoned(&self.links).values_mut().filter(|used| used.muted) {
            used.muted = !used.stuck && !self.watch(used);
            failed |= used.muted;
        }
        if failed {
            epoll::set_timer(clock, RETRY);
        }
    }

    /// Whether something was left to be sent to a peer that may be waiting for it.
    pub(super) fn has_unsent(&self) -> bool {
        let mut links = unpoisoned(&self.links);
        let mut has_unsent = false;
        for used in links.values_mut() {
            match used.link.unsent() {
                None => {}
                Some(lack) => {
                    has_unsent = true;
                    if lack == Lack::Room {
                        self.watch_for_room(used);
                    }
                }
            }
        }
        has_unsent
    }

    /// Has the descriptor become readable once the socket of a link in use has room.
    pub(crate) fn await_socket(&self, link: &Link) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&link.number()) {
            self.watch_for_room(used);
        }
        // Who sleeps on words hears nothing of it.
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

    /// The socket of a link has something. Whether it has room is not watched any more, if it has.
    fn watch_for_room_no_more(&self, number: u64) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&number)
            && used.awaits_room
            && used.link.is_writable()
            && let Some(socket) = used.link.io().socket()
        {
            used.awaits_room = !epoll::watch(&self.epoll, socket, number, false);
        }
    }

    /// Has the descriptor become readable when it is time to look again at what no event ends.
    pub(super) fn look_again_later(&self) {
        let is_muted = unpoisoned(&self.links).values().any(|used| used.muted);
        // Then the clock is set already, to something sooner.
        if !is_muted && !self.set_clock(RETRY) {
            self.nudge();
        }
    }

    /// False if there is no clock.
    fn set_clock(&self, after: Duration) -> bool {
        self.clock().is_some_and(|clock| epoll::set_timer(clock, after) && epoll::add_again(&self.epoll, clock, CLOCK))
    }

    /// What makes the descriptor readable later. Made before it is needed where it can be, since that may be for want of
    /// descriptors.
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
        unpoisoned(&self.links).values().filter(|used| !used.muted).for_each(|used| used.link.collect());
    }

    /// Collects from some of the links, others the next time.
    pub(super) fn collect_some(&self) {
        let links = unpoisoned(&self.links);
        let fruitful = self.fruitful.load(Ordering::Relaxed);
        if fruitful {
            self.fruitful.store(false, Ordering::Relaxed);
        }
        let look_at = |used: &Used| {
            if fruitful {
                used.link.woken();
            }
            if !used.muted {
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

    /// Looks at the members in the queue, until there are enough events.
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
        // Only now, so that none comes twice in a call.
        for member in again.drain(..) {
            if member.set_queued() {
                ready.queue.push_back(member);
            }
        }
        if !ready.queue.is_empty() && self.is_listening() {
            self.ring(&mut ready);
        }
        ready.later.append(&mut later);
        ready.spare = (batch, again);
    }

    /// Sleeps, for at most `limit`, and takes in what came on the sockets. Whether there was anything.
    pub(super) fn attend(&self, asleep: Asleep<'_>, limit: Option<Duration>, may_wait: bool) -> Result<bool, Error> {
        self.watch_stuck();
        let mut asleep = Some(asleep);
        let short = limit.map_or(life::LONG, |limit| limit.min(life::LONG));
        let found = self.attend_to(&mut asleep, Some(short), may_wait)?;
        if found || limit == Some(short) {
            return Ok(found);
        }
        let died = self.watch_processes(limit.map(|limit| limit - short))?;
        for number in &died {
            self.link_down(*number);
        }
        let found = self.attend_to(&mut asleep, Some(Duration::ZERO), may_wait)?;
        Ok(found || !died.is_empty())
    }

    /// Sleeps until the epoll instance has something, for at most `limit`, and watches the processes at the other ends as
    /// well, if they are not too many. The numbers of links whose process died though its socket is open.
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

    pub(super) fn attend_to(
        &self,
        asleep: &mut Option<Asleep<'_>>,
        limit: Option<Duration>,
        may_wait: bool,
    ) -> Result<bool, Error> {
        let mut room = [const { std::mem::MaybeUninit::uninit() }; 64];
        let mut found = false;
        for number in epoll::wait(&self.epoll, &mut room, limit)? {
            // What this thread finds it need not tell itself.
            drop(asleep.take());
            found = true;
            match number {
                BELL => continue,
                CLOCK => {
                    self.unmute();
                    continue;
                }
                _ => {}
            }
            let link = unpoisoned(&self.links).get(&number).map(|used| used.link.clone());
            let Some(link) = link else { continue };
            self.watch_for_room_no_more(number);
            let attended = link.attend(may_wait);
            if link.is_down() {
                self.link_down(number);
            } else if attended.is_err() {
                self.leave_alone(&link);
            } else if link.is_out_of_patience() {
                self.mute(number);
            }
        }
        Ok(found)
    }
}
