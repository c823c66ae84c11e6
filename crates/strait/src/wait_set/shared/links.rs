//! The links of a wait set: the sockets that the set watches, the notifications that it collects, and the links that it
//! ignores for a while, because a peer wakes the set for nothing or because the next packet cannot be taken.

use std::ops::Bound;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{RETRY, SharedSet};
use crate::error::Error;
use crate::link::liveness::Watch;
use crate::link::{InUse, Link, ListenerSet, PAUSE, SocketBlockedOn};
use crate::os::{epoll, socket};
use crate::sync::unpoisoned;

/// The most peer processes whose death one long sleep of a wait set watches for. Each watched process takes one
/// descriptor of this process during the sleep.
const WATCHED: usize = 64;

/// The most links on which a wait collects notifications before looking at the queued members. With more links, the
/// next call continues with the next links.
const SOME_LINKS: usize = 8;

/// The longest time for which a wait set ignores a link without any budget of idle wake-ups left.
const LONGEST_PAUSE: Duration = Duration::from_millis(20);

/// `REST`: a wait set ignores throttled links for this many times the time spent looking at the links. The looks then
/// take a twentieth of the time, unless [`LONGEST_PAUSE`] makes the pause shorter.
const REST: u32 = 19;

/// A link on which a wait set has members registered, with the state in which the set watches the link.
#[derive(Debug)]
pub(in crate::wait_set) struct Used {
    pub(in crate::wait_set) link: InUse,
    /// The number of registrations of the wait set's members on the link. When the last registration ends, the wait set
    /// leaves the link.
    pub(super) count: usize,
    /// Whether the wait set's epoll instance watches the link's socket for packets.
    pub(super) watched: bool,
    /// Whether the wait set's epoll instance also reports when the link's socket has room to send.
    pub(super) awaits_room: bool,
    /// Whether the wait set ignores the link until the set's timer expires, because the link has used up its budget of
    /// idle wake-ups.
    pub(super) throttled: bool,
    /// Whether the wait set does not watch the link's socket for [`RETRY`], because the next packet in the socket
    /// cannot be taken now.
    pub(super) stuck: bool,
}

impl SharedSet {
    /// Counts one more registration of a member of the wait set on `link`. The first registration makes the set's epoll
    /// instance watch the link's socket, and makes the link know the set.
    pub(in crate::wait_set) fn use_link(self: &Arc<Self>, link: &InUse) -> Result<(), Error> {
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
    pub(in crate::wait_set) fn leave_link(&self, link: &InUse) {
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

    /// For each link that is not throttled, writes into this process's notification area that this process sleeps.
    /// Returns whether a peer has notified a member that is not collected yet.
    pub(in crate::wait_set) fn arm(&self) -> bool {
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
    pub(in crate::wait_set) fn throttle(&self, number: u64) {
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
    pub(super) fn pause(&self) -> Duration {
        let spent = unpoisoned(&self.unthrottled).map_or(Duration::ZERO, |since| since.elapsed());
        // If the last throttling was longer ago, no single look has caused the present throttling.
        if spent < LONGEST_PAUSE { (spent * REST).clamp(PAUSE, LONGEST_PAUSE) } else { PAUSE }
    }

    pub(super) fn unwatch(&self, used: &mut Used) {
        used.awaits_room = false;
        if std::mem::take(&mut used.watched)
            && let Some(socket) = used.link.io().socket()
        {
            epoll::remove(&self.epoll, socket);
        }
    }

    /// Makes the wait set's epoll instance watch the socket of the link `used` again, if it does not and the link is
    /// up. Returns `false` if the kernel refuses.
    pub(super) fn watch(&self, used: &mut Used) -> bool {
        let Some(socket) = used.link.io().socket().filter(|_| !used.link.is_down() && !used.watched) else {
            return true;
        };
        used.watched = epoll::add(&self.epoll, socket, used.link.number()).is_ok();
        used.watched
    }

    /// Handles a stuck link, whose next packet cannot be taken now: makes one member on the link report the fact. Also
    /// stops watching the link's socket for [`RETRY`], because the socket stays readable.
    pub(super) fn leave_alone(&self, link: &InUse) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&link.number()) {
            used.stuck = true;
            self.unwatch(used);
        }
        unpoisoned(&self.retry).get_or_insert_with(|| Instant::now() + RETRY);
        link.some_members_of(self).iter().any(|member| member.report_trouble(link));
    }

    pub(in crate::wait_set) fn is_stuck(&self) -> bool {
        unpoisoned(&self.retry).is_some()
    }

    /// Makes the wait set's epoll instance watch the sockets of stuck links again, if [`RETRY`] has passed since a link
    /// got stuck.
    pub(super) fn watch_stuck(&self) {
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
    pub(in crate::wait_set) fn unthrottle(&self) {
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
    pub(in crate::wait_set) fn has_unsent(&self) -> bool {
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

    pub(super) fn watch_for_room(&self, used: &mut Used) {
        if used.watched
            && !used.awaits_room
            && let Some(socket) = used.link.io().socket()
        {
            used.awaits_room = epoll::watch(&self.epoll, socket, used.link.number(), true);
        }
    }

    /// Makes the epoll instance no longer report room in the socket of the link with the number `number`, if the socket
    /// has room now. Called when epoll has reported the socket.
    pub(super) fn watch_for_room_no_more(&self, number: u64) {
        if let Some(used) = unpoisoned(&self.links).get_mut(&number)
            && used.awaits_room
            && used.link.is_writable()
            && let Some(socket) = used.link.io().socket()
        {
            used.awaits_room = !epoll::watch(&self.epoll, socket, number, false);
        }
    }

    pub(in crate::wait_set) fn collect(&self) {
        unpoisoned(&self.links).values().filter(|used| !used.throttled).for_each(|used| used.link.collect());
    }

    /// Puts the members that peers have notified, on up to [`SOME_LINKS`] links of the wait set, into the wait set's
    /// queue of ready members. The next call takes the next links.
    pub(in crate::wait_set) fn collect_some(&self) {
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

    /// Sleeps until the wait set's epoll instance reports something, for at most `limit` (`None`: without a limit).
    /// Also watches up to [`WATCHED`] peer processes. Returns the numbers of the links whose peer process has died
    /// although the socket is open; these links are down then.
    pub(in crate::wait_set) fn watch_processes(&self, limit: Option<Duration>) -> Result<Vec<u64>, Error> {
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
}

#[cfg(test)]
mod tests {
    use super::super::tests::is_readable;
    use super::*;
    use crate::link::linked;

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
}
