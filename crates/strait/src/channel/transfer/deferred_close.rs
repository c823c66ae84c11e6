//! Deferred close: dropped ends that could not be closed at once. This process lacked a descriptor or memory to follow
//! the other end to its lane, or the peer had sent too much for one [attempt](Closing::attempt). The ends are closed as
//! soon as possible, because the process of the other end waits for the close.
//!
//! The program may never call into the library again, so a thread makes the attempts while there are such ends. The
//! thread is seldom started, and exits when no such end is left. A peer with ends that are expensive to close costs
//! this process a twentieth of a processor while the peer lives: the thread [rests](REST) after each round. A peer that
//! the kernel does not identify counts as alive. Ends whose peers are dead come first, without a rest.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};
use std::vec::IntoIter;

use super::close::{Closing, Open};
use crate::deferred;
use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::sync::unpoisoned;

/// The pause of the deferred close before its first attempt after a shortage: 10 ms. The pause doubles with each
/// attempt, up to 200 ms. So once the shortage has ended, ends to a dead peer are closed within a second, even if the
/// first attempts close only a part.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_millis(200);

/// How much longer the thread rests after a round than the round took.
const REST: u32 = 19;

/// The longest rest. Within this time the thread learns of a peer's death, if at most [`MOST_ASKED`] entries are
/// unfinished.
const LONGEST_REST: Duration = Duration::from_millis(200);

/// The most entries of the list for which a round asks the kernel whether the peer is dead: these questions take less
/// than a millisecond. With more entries, the thread learns of the death of the last peers only after as many rounds:
/// the entry of each round goes to the end of the list.
const MOST_ASKED: usize = 128;

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
        let run = || run(DEFERRED.get(), Closing::has_lost_its_peer, Closing::attempt);
        deferred_close.running = background::start(c"strait-unclosed", STACK, run);
        if !deferred_close.running {
            deferred::try_later("ends", || start(unpoisoned(DEFERRED.get())));
        }
    }
}

/// The entries for one round of the deferred close's thread.
struct Round<'a, T> {
    of: &'a Mutex<DeferredClose<T>>,
    waiting: IntoIter<(T, Open)>,
}

impl<T> Drop for Round<'_, T> {
    /// If the thread of the deferred close panics, puts the untried entries of this round back into the list, for the
    /// next thread.
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

impl<T> Round<'_, T> {
    /// Takes the entries of the next round out of the list: the entries with a [shortage](Open::Shortage), and the
    /// unfinished entries whose peer is dead, as `is_dead` says. If no peer is dead, takes only the unfinished entry
    /// with the longest wait: so both the round and its rest are short. Also returns whether a peer is dead.
    fn begin<'a>(of: &'a Mutex<DeferredClose<T>>, is_dead: impl Fn(&T) -> bool) -> (Round<'a, T>, bool) {
        let all = std::mem::take(&mut unpoisoned(of).waiting);
        let mut round = Round { of, waiting: all.into_iter() };
        let unfinished = round.waiting.as_slice().iter().enumerate().filter(|(_, (_, open))| *open == Open::Unfinished);
        let first = unfinished.clone().next().map(|(nth, _)| nth);
        let dead: HashSet<_> =
            unfinished.take(MOST_ASKED).filter(|(_, (closing, _))| is_dead(closing)).map(|(nth, _)| nth).collect();
        let is_due = |nth, open| match open {
            Open::Shortage => true,
            Open::Unfinished if dead.is_empty() => first == Some(nth),
            Open::Unfinished => dead.contains(&nth),
        };
        let (now, later): (Vec<_>, Vec<_>) =
            round.waiting.by_ref().enumerate().partition(|(nth, (_, open))| is_due(*nth, *open));
        unpoisoned(of).waiting.splice(0..0, later.into_iter().map(|(_, entry)| entry));
        round.waiting = now.into_iter().map(|(_, entry)| entry).collect::<Vec<_>>().into_iter();
        (round, !dead.is_empty())
    }
}

/// Makes attempts in rounds, one attempt for each entry of a round, until the list is empty. If all entries have a
/// shortage, the next round begins after a pause that grows. After a round that left work for a living peer, the next
/// round begins after a rest of [`REST`] times the length of the round. After a round for dead peers, the next round
/// begins at once.
fn run<T>(of: &Mutex<DeferredClose<T>>, is_dead: impl Fn(&T) -> bool, attempt: impl Fn(T) -> Vec<(T, Open)>) {
    let mut pause = SOON;
    let mut rest = Duration::ZERO;
    loop {
        if unpoisoned(of).waiting.iter().all(|(_, open)| *open == Open::Shortage) {
            // The entries wait for a descriptor or memory of this process, and no event reports when there is some.
            std::thread::sleep(pause);
            pause = (pause * 2).min(LATER);
        } else {
            // Waits for nothing: the rest limits the peer's cost to a share of a processor.
            std::thread::sleep(rest);
        }
        let begun = Instant::now();
        let (mut round, is_of_dead) = Round::begin(of, &is_dead);
        for (closing, _) in round.waiting.by_ref() {
            let left = attempt(closing);
            unpoisoned(of).waiting.extend(left);
        }
        deferred::run();
        drop(round);
        rest = if is_of_dead { Duration::ZERO } else { (begun.elapsed() * REST).min(LONGEST_REST) };
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
        let ended = std::thread::scope(|scope| scope.spawn(|| run(&deferred_close, |_| false, close)).join());
        ended.unwrap_err();
        assert!(!unpoisoned(&deferred_close).running);
        // The next end added would start another thread; this call runs in place of that thread.
        run(&deferred_close, |_| false, close);
        assert_eq!(*closed.lock().unwrap(), [1, 3]);
    }

    #[test]
    fn a_round_is_for_one_living_peer_or_for_all_dead_ones() {
        let waiting =
            [("a", Open::Unfinished), ("b", Open::Unfinished), ("c", Open::Shortage), ("d", Open::Unfinished)];
        let deferred_close = Mutex::new(DeferredClose { waiting: waiting.to_vec(), running: true });
        let begin = |dead: &[&str]| {
            let (round, is_of_dead) = Round::begin(&deferred_close, |name| dead.contains(name));
            (round.waiting.as_slice().iter().map(|(name, _)| *name).collect::<String>(), is_of_dead)
        };
        assert_eq!(begin(&[]), ("ac".into(), false));
        // A peer that waits behind a living peer has died; the work for the living peer is put off.
        assert_eq!(begin(&["d"]), ("d".into(), true));
        assert_eq!(unpoisoned(&deferred_close).waiting, [waiting[1]]);
        unpoisoned(&deferred_close).waiting = waiting.to_vec();
        assert_eq!(begin(&["b", "d"]), ("bcd".into(), true));
        assert_eq!(unpoisoned(&deferred_close).waiting, [waiting[0]]);
    }

    #[test]
    fn a_living_peer_has_rests_and_a_dead_one_has_none() {
        let busy = Duration::from_millis(1);
        let took = |is_dead: bool| {
            let waiting = vec![(9, Open::Unfinished)];
            let deferred_close = Mutex::new(DeferredClose { waiting, running: true });
            let begin = Instant::now();
            run(
                &deferred_close,
                |_| is_dead,
                |left: u32| {
                    let begin = Instant::now();
                    while begin.elapsed() < busy {}
                    if left > 0 { vec![(left - 1, Open::Unfinished)] } else { Vec::new() }
                },
            );
            begin.elapsed()
        };
        assert!(took(false) >= 9 * REST * busy);
        // On a busy machine one of the times may be longer, but hardly each one.
        assert!((0..100).any(|_| took(true) < 9 * REST * busy));
    }

    /// Shows that a long shortage does not make the pauses between attempts long.
    #[test]
    fn ends_are_closed_soon_after_a_long_shortage() {
        let deferred_close = Mutex::new(DeferredClose { waiting: vec![(12, Open::Shortage)], running: true });
        let begin = Instant::now();
        let attempt = |left: u32| if left > 0 { vec![(left - 1, Open::Shortage)] } else { Vec::new() };
        run(&deferred_close, |_| false, attempt);
        // With pauses of up to a second, these attempts would take seven seconds.
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }

    #[test]
    fn what_one_attempt_does_not_finish_is_tried_in_turn_and_soon() {
        let waiting = vec![(('a', 300), Open::Unfinished), (('b', 300), Open::Unfinished)];
        let deferred_close = Mutex::new(DeferredClose { waiting, running: true });
        let tried = Mutex::new(Vec::new());
        let begin = Instant::now();
        let attempt = |(name, left)| {
            tried.lock().unwrap().push(name);
            if left > 0 { vec![((name, left - 1), Open::Unfinished)] } else { Vec::new() }
        };
        run(&deferred_close, |_| false, attempt);
        let tried = tried.into_inner().unwrap();
        assert_eq!((tried.len(), &tried[..4]), (602, &['a', 'b', 'a', 'b'][..]));
        // With a pause that grows, the rounds would take minutes.
        assert!(begin.elapsed() < Duration::from_secs(60));
    }
}
