//! Deferred close: ends that were not closed when they were dropped. This process lacked a descriptor or memory to
//! follow the other end to its lane, or the peer had sent so much that one [attempt](Closing::attempt) did not suffice.
//! They are closed as soon as that is possible, because the process of the other end waits for it.
//!
//! The program may never call into the library again, so a thread makes the attempts while there are such ends. The
//! thread is seldom started, and it ends. A peer that sends ends which are expensive to close costs this process
//! a twentieth of a processor while it lives: the thread [rests](REST) after each round.

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use super::close::{Closing, Open};
use crate::deferred;
use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::sync::unpoisoned;

/// The pause of the deferred close before its first attempt after a shortage: 10 ms. The pause doubles with each
/// attempt, up to 1 s.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_secs(1);

/// How much longer the thread rests after a round than the round took.
const REST: u32 = 19;

/// The longest rest. Within this time the thread learns that a peer is gone.
const LONGEST_REST: Duration = Duration::from_millis(200);

/// Size in bytes of the stack of the thread that closes ends later (the deferred close).
const STACK: usize = 256 << 10;

struct DeferredClose<T> {
    waiting: Vec<(T, Open)>,
    running: bool,
}

static DEFERRED: PerProcess<Mutex<DeferredClose<Closing>>> =
    PerProcess::new(|| Mutex::new(DeferredClose { waiting: Vec::new(), running: false }));

/// Adds ends that were not closed to the deferred close: a thread of the library tries again to close them.
pub(in crate::channel) fn close_later(closing: Closing, open: Open) {
    let mut deferred_close = unpoisoned(DEFERRED.get());
    deferred_close.waiting.push((closing, open));
    start(deferred_close);
}

/// Starts the thread of the deferred close, if there are ends to close and the thread does not run yet. If the thread
/// cannot be started, a later call into the library tries again.
fn start(mut deferred_close: MutexGuard<'_, DeferredClose<Closing>>) {
    if !deferred_close.running && !deferred_close.waiting.is_empty() {
        let run = || run(DEFERRED.get(), Closing::attempt);
        deferred_close.running = background::start(c"strait-unclosed", STACK, run);
        if !deferred_close.running {
            deferred::try_later("ends", || start(unpoisoned(DEFERRED.get())));
        }
    }
}

/// What the thread of the deferred close tries to close in one round.
struct Round<'a, T> {
    of: &'a Mutex<DeferredClose<T>>,
    waiting: IntoIter<(T, Open)>,
}

impl<T> Drop for Round<'_, T> {
    /// If the thread of the deferred close panics, puts what it has not tried in this round back into the list. The
    /// next thread closes it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut deferred_close = unpoisoned(self.of);
            deferred_close.waiting.extend(&mut self.waiting);
            deferred_close.running = false;
            // No other end may ever be added, which would start the next thread.
            deferred::try_later("ends", || start(unpoisoned(DEFERRED.get())));
        }
    }
}

/// Returns the most urgent reason among those of the entries, which says how soon the next round begins.
fn most_urgent<T>(of: &Mutex<DeferredClose<T>>) -> Open {
    let waiting = &unpoisoned(of).waiting;
    let has = |open| waiting.iter().any(|entry| entry.1 == open);
    [Open::PeerGone, Open::Unfinished].into_iter().find(|open| has(*open)).unwrap_or(Open::Shortage)
}

/// Takes the entries of the next round out of the list. If the most urgent reason (`urgency`) is that an attempt was
/// unfinished, takes only one such entry, the one that has waited longest: so the round is short, and its rest too.
fn take<T>(of: &Mutex<DeferredClose<T>>, urgency: Open) -> Vec<(T, Open)> {
    let waiting = &mut unpoisoned(of).waiting;
    let mut is_first = true;
    let (now, later) = std::mem::take(waiting).into_iter().partition(|(_, open)| {
        urgency != Open::Unfinished || *open != Open::Unfinished || std::mem::take(&mut is_first)
    });
    *waiting = later;
    now
}

/// Makes attempts in rounds, one attempt for each entry of a round, until the list is empty. If all entries have
/// a shortage, the next round begins after a pause that grows. After a round that left work for a living peer, the next
/// one begins after a rest that is [`REST`] times as long as that round.
fn run<T>(of: &Mutex<DeferredClose<T>>, attempt: impl Fn(T) -> Vec<(T, Open)>) {
    let mut pause = SOON;
    let mut busy = Duration::ZERO;
    loop {
        let urgency = most_urgent(of);
        match urgency {
            Open::PeerGone => {}
            Open::Unfinished => std::thread::sleep((busy * REST).min(LONGEST_REST)),
            Open::Shortage => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(LATER);
            }
        }
        let begun = Instant::now();
        let mut round = Round { of, waiting: take(of, urgency).into_iter() };
        for (closing, _) in round.waiting.by_ref() {
            let left = attempt(closing);
            unpoisoned(of).waiting.extend(left);
        }
        deferred::run();
        drop(round);
        busy = begun.elapsed();
        let mut deferred_close = unpoisoned(of);
        deferred_close.running = !deferred_close.waiting.is_empty();
        if !deferred_close.running {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_thread_and_loses_nothing_else() {
        let waiting = [1, 2, 3].map(|end| (end, Open::Shortage)).to_vec();
        let deferred_close = Mutex::new(DeferredClose { waiting, running: true });
        let closed = Mutex::new(Vec::new());
        let close = |end| match end {
            2 => panic!("closing this one fails"),
            end => {
                closed.lock().unwrap().push(end);
                Vec::new()
            }
        };
        let ended = std::thread::scope(|scope| scope.spawn(|| run(&deferred_close, close)).join());
        ended.unwrap_err();
        assert!(!unpoisoned(&deferred_close).running);
        // The next end that is added would start another thread; this call runs in place of that thread.
        run(&deferred_close, close);
        assert_eq!(*closed.lock().unwrap(), [1, 3]);
    }

    #[test]
    fn a_round_does_the_work_of_one_living_peer_or_of_all_that_are_gone() {
        let waiting = [("a", Open::Unfinished), ("b", Open::Unfinished), ("c", Open::Shortage)];
        let deferred_close = Mutex::new(DeferredClose { waiting: waiting.to_vec(), running: true });
        assert_eq!(most_urgent(&deferred_close), Open::Unfinished);
        assert_eq!(take(&deferred_close, Open::Unfinished), [waiting[0], waiting[2]]);
        assert_eq!(take(&deferred_close, Open::Unfinished), [waiting[1]]);
        let waiting = [("a", Open::Unfinished), ("b", Open::Unfinished), ("c", Open::PeerGone)];
        unpoisoned(&deferred_close).waiting = waiting.to_vec();
        assert_eq!(most_urgent(&deferred_close), Open::PeerGone);
        assert_eq!(take(&deferred_close, Open::PeerGone), waiting);
    }

    #[test]
    fn what_one_attempt_does_not_finish_is_tried_in_turn_and_soon() {
        let waiting = vec![(('a', 300), Open::Unfinished), (('b', 300), Open::Unfinished)];
        let deferred_close = Mutex::new(DeferredClose { waiting, running: true });
        let tried = Mutex::new(Vec::new());
        let begin = Instant::now();
        run(&deferred_close, |(name, left)| {
            tried.lock().unwrap().push(name);
            if left > 0 { vec![((name, left - 1), Open::Unfinished)] } else { Vec::new() }
        });
        let tried = tried.into_inner().unwrap();
        assert_eq!((tried.len(), &tried[..4]), (602, &['a', 'b', 'a', 'b'][..]));
        // With a pause that grows, the rounds would take minutes.
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
