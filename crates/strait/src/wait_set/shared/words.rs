//! Short sleeps on words (futexes), where only words can bring anything new.
//!
//! To wake a thread that sleeps in epoll, a peer has to send a packet, and the thread has to receive the packet. The
//! packet costs more than everything else. If only one thread sleeps, in the only set that sleeps, the thread does
//! better: it sleeps on the words of the [notification areas](crate::ring::ready_bitmap), and on a word of the set that
//! threads of this process use. One system call wakes the thread, and no other is needed.
//!
//! The sockets do not wake a thread that sleeps on words. A peer that sends a packet wakes the word as well, but a peer
//! that dies does not. So a sleep on words is short. A sleep that outlasts [`SLICE`] goes on in epoll, and later sleeps
//! begin in epoll as long as sleeps are long. A thread that is woken sooner each time, for something or for nothing,
//! looks at the sockets once in each [`SLICE`] before it sleeps again.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Asleep, Queue, SharedSet};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::waiter::SLICE;
use crate::link::Link;
use crate::os::futex::{self, Expected, MOST_WORDS, Scope};
use crate::ring::ready_bitmap::{ON_WORD, Words};
use crate::shm::ReadyBitmapMemory;
use crate::signals;
use crate::sync::unpoisoned;

/// The part of a wait set's state that serves a thread that sleeps on words (futexes): on the words of notification
/// areas and on a word of the set.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The word that other threads of the process change to wake the thread of the wait set that sleeps on words. 1
    /// while this thread sleeps or is about to, and otherwise 0.
    word: AtomicU32,
    /// Whether the last sleep of a thread of the wait set was longer than [`SLICE`]. If so, the next sleep is in epoll.
    long: AtomicBool,
    /// Whether the kernel has refused to let a thread sleep on several words at once (`futex_waitv`). If so, all
    /// further sleeps are in epoll.
    refused: AtomicBool,
    /// The time at which a thread of the wait set that was about to sleep on words last received from the sockets;
    /// `None` if never.
    heard: Mutex<Option<Instant>>,
}

/// The outcome of an attempt of a thread to sleep on the words (futexes) of a wait set and of its links.
pub(super) enum Slept<'a> {
    /// Outcome of an attempt to sleep on words: the thread was woken, or did not have to sleep. Members may be ready.
    Woken,
    /// Outcome of an attempt to sleep on words: the thread could not sleep on words now. Contains the thread's count as
    /// asleep, so that the thread can sleep in epoll.
    InVain(Asleep<'a>),
}

/// The reason why the peer of one link may have woken a thread that slept on the words of several links.
#[derive(Clone, Copy)]
enum Waker {
    Nobody,
    Ringer,
    /// Reason for a wake-up: the peer sent a packet, or claims a packet in the notification area, and woke the thread
    /// for the packet.
    Packet,
}

impl Own {
    /// Wakes the thread of the wait set that sleeps on words. Returns whether a thread slept on words, or was about to.
    pub(super) fn wake(&self, ready: &mut Queue) -> bool {
        let on_word = std::mem::take(&mut ready.on_word);
        if on_word {
            self.word.store(0, Ordering::SeqCst);
            futex::wake_one(&self.word, Scope::Private);
        }
        on_word
    }

    /// Returns whether [`SLICE`] or more has passed since a thread of the wait set that was about to sleep on words
    /// received from the sockets. If so, stores `now` as the time of the receive, and the caller must receive from the
    /// sockets.
    fn is_deaf(&self, now: Instant) -> bool {
        let mut heard = unpoisoned(&self.heard);
        let is_deaf = heard.is_none_or(|heard| now.saturating_duration_since(heard) >= SLICE);
        if is_deaf {
            *heard = Some(now);
        }
        is_deaf
    }

    /// Runs `sleep`, which sleeps in epoll, and returns its result. If `sleep` took less than [`SLICE`], the next sleep
    /// of the wait set may be on words again.
    pub(super) fn measure(&self, sleep: impl FnOnce() -> Result<bool, Error>) -> Result<bool, Error> {
        if !self.long.load(Ordering::Relaxed) {
            return sleep();
        }
        let begin = Instant::now();
        let found = sleep();
        self.long.store(begin.elapsed() >= SLICE, Ordering::Relaxed);
        found
    }
}

impl SharedSet {
    /// Sleeps on the words of the wait set until members may be ready, for at most [`SLICE`] and not beyond the
    /// deadline. `asleep` counts the calling thread as asleep. Returns [`Slept::InVain`] if a sleep on words is not
    /// possible now: for example if another thread of the set sleeps, or if a link has unsent packets.
    pub(super) fn sleep_on_words<'a>(&self, asleep: Asleep<'a>, deadline: Deadline) -> Result<Slept<'a>, Error> {
        let own = &self.words;
        if own.long.load(Ordering::Relaxed)
            || own.refused.load(Ordering::Relaxed)
            // After a handler with `SA_RESTART` the kernel goes on with a sleep on several words.
            || signals::is_guarded()
            || self.asleep.load(Ordering::SeqCst) != 1
        {
            return Ok(Slept::InVain(asleep));
        }
        let begin = Instant::now();
        let mut still = Some(asleep);
        if own.is_deaf(begin) {
            self.drain_found(&mut still, Some(Duration::ZERO), true)?;
        }
        // The sockets had events, so the thread does not sleep.
        let Some(asleep) = still else { return Ok(Slept::Woken) };
        let mut bitmaps: [Option<(Arc<Link>, ReadyBitmapMemory)>; MOST_WORDS - 1] = Default::default();
        let links = unpoisoned(&self.links);
        if links.len() > bitmaps.len()
            || !links.values().all(|used| {
                !used.throttled
                    && !used.stuck
                    && !used.awaits_room
                    && used.link.may_sleep_on_word(self)
                    && used.link.unsent().is_none()
            })
        {
            return Ok(Slept::InVain(asleep));
        }
        let fds = unpoisoned(&self.fds);
        if !fds.is_empty() {
            return Ok(Slept::InVain(asleep));
        }
        let mut ready = unpoisoned(&self.ready);
        if !ready.queue.is_empty() || self.polled.load(Ordering::SeqCst) {
            return Ok(Slept::InVain(asleep));
        }
        ready.on_word = true;
        own.word.store(1, Ordering::SeqCst);
        drop((ready, fds));
        for (bitmap, used) in bitmaps.iter_mut().zip(links.values()) {
            *bitmap = used.link.arm_on_word().map(|bitmap| (Arc::clone(&used.link), bitmap));
        }
        drop(links);
        let news = bitmaps.iter().flatten().any(|(link, _)| link.has_notified() || link.has_post());
        let limit = deadline.within(SLICE);
        let slept = if news {
            Ok(None)
        } else {
            let words = bitmaps.iter().flatten();
            let words = words.map(|(_, bitmap)| -> Expected<'_> { (bitmap.sleeping(), ON_WORD, Scope::Shared) });
            futex::wait_for_any([(&own.word, 1, Scope::Private)].into_iter().chain(words), limit)
        };
        if !news {
            self.expect_wake_on_words(bitmaps.iter().flatten().map(|(link, _)| link));
        }
        unpoisoned(&self.ready).on_word = false;
        // From here on the calling thread does not count as asleep: it wakes other sleeping threads for the events that
        // it finds, and not itself.
        drop(asleep);
        let (mut woken, mut posted) = (news, false);
        let mut wakers = [Waker::Nobody; MOST_WORDS - 1];
        // The set's own word is the first; no peer knows it.
        for (word, ((link, _), waker)) in (1..).zip(bitmaps.iter().flatten().zip(&mut wakers)) {
            // The word may have been woken without a change of its value.
            let touched = matches!(slept, Ok(Some(by)) if by == word);
            let (notified, post) = (link.has_notified(), link.take_post());
            let taken = link.leave_word();
            woken |= taken;
            posted |= post;
            if notified {
                *waker = Waker::Ringer;
            } else if touched || taken || post {
                *waker = Waker::Packet;
            }
        }
        if posted {
            self.drain_found(&mut None, Some(Duration::ZERO), true)?;
        }
        // By now the packet that the peer noted in the area has been received, if there was a packet.
        for ((link, _), waker) in bitmaps.iter().flatten().zip(wakers) {
            let for_nothing = match waker {
                Waker::Nobody => false,
                // If the notification was for something, the coming events make up for the count.
                Waker::Ringer => true,
                Waker::Packet => !link.woken_by_packet(),
            };
            if for_nothing && link.woken_for_nothing() {
                self.throttle(link.number());
            }
        }
        if slept.is_err() {
            own.refused.store(true, Ordering::Relaxed);
        }
        let outlasted = !woken && begin.elapsed() >= SLICE;
        own.long.store(outlasted, Ordering::Relaxed);
        Ok(Slept::Woken)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_on_words_is_told_of_a_link_that_comes() {
        let set = Arc::new(SharedSet::new().unwrap());
        let own = Link::own();
        for comes in [true, false] {
            unpoisoned(&set.ready).on_word = true;
            set.words.word.store(1, Ordering::SeqCst);
            set.use_link(&own).unwrap();
            assert_eq!(unpoisoned(&set.ready).on_word, !comes);
            assert_eq!(set.words.word.load(Ordering::SeqCst), u32::from(!comes));
        }
    }
}
