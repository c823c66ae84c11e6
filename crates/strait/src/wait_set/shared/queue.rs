//! The queue of a wait set: the members that may be ready, and how a thread that adds a member wakes a thread that
//! waits.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::SharedSet;
use crate::link::ListenerSet;
use crate::os::epoll;
use crate::sync::unpoisoned;
use crate::wait_set::EVENTS;
use crate::wait_set::event::Event;
use crate::wait_set::member::{Examined, Member};

/// The queue of a wait set: the members that may be ready, at which the next wait looks.
#[derive(Debug, Default)]
pub(in crate::wait_set) struct Queue {
    pub(in crate::wait_set) queue: VecDeque<Arc<Member>>,
    /// The number of members in `queue` that were removed from the wait set after they were queued.
    pub(super) gone: usize,
    /// Whether the wake fd of the wait set is readable: a thread has written to the wake fd, and no thread has reset it
    /// since.
    pub(in crate::wait_set) signalled: bool,
    /// The members at which the next wait looks again, because the peers could not be told how to notify these members.
    pub(in crate::wait_set) later: Vec<Arc<Member>>,
    /// Whether a thread sleeps on the words (futexes) of the wait set, or is about to: see [`words`](super::words).
    pub(super) on_word: bool,
    /// Two empty vectors for reuse: the first for the members at which a thread looks, the second for the members that
    /// go back into the queue.
    pub(super) spare: (Vec<Arc<Member>>, Vec<Arc<Member>>),
}

impl SharedSet {
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

    pub(in crate::wait_set) fn signal(&self, ready: &mut Queue) {
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
    pub(in crate::wait_set) fn count_out(&self, member: &Member) {
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

    /// Makes the wake fd of the wait set unreadable, if the wait set's queue of ready members is empty. Returns two
    /// answers: whether the queue is empty, and whether there are members (in [`Queue::later`]) at which the next wait
    /// looks again.
    pub(in crate::wait_set) fn reset_wake_fd(&self) -> (bool, bool) {
        let mut ready = unpoisoned(&self.ready);
        let idle = ready.queue.is_empty();
        if idle && std::mem::take(&mut ready.signalled) {
            epoll::reset(&self.wake_fd);
        }
        (idle, !ready.later.is_empty())
    }

    /// Looks at the queued members of the wait set, and adds an event for each ready member to `events`, until there
    /// are `limit` events. Each member is reported at most once in one call.
    pub(in crate::wait_set) fn take_ready(&self, events: &mut Vec<Event>, limit: usize) {
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
}
