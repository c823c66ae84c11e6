//! Deferred close: ends that could not be closed when they were dropped. This process lacked a descriptor or
//! memory to follow the other end to its lane. They are closed as soon as that is possible, because the process of
//! the other end waits for it.
//!
//! The program may never call into the library again, so a thread tries from time to time while there are such ends.
//! The thread is seldom started, and it ends.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::vec::IntoIter;

use super::close;
use crate::channel::End;
use crate::deferred;
use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::sync::unpoisoned;

/// The pause of the deferred close before its first attempt: 10 ms. The pause doubles with each attempt, up to 1 s.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_secs(1);

/// Size in bytes of the stack of the thread that closes ends later (the deferred close).
const STACK: usize = 256 << 10;

struct DeferredClose<T> {
    ends: Vec<T>,
    running: bool,
}

static DEFERRED: PerProcess<Mutex<DeferredClose<Arc<End>>>> =
    PerProcess::new(|| Mutex::new(DeferredClose { ends: Vec::new(), running: false }));

/// Adds an end that could not be closed to the deferred close: a thread of the library tries again to close it.
pub(in crate::channel) fn close_later(end: Arc<End>) {
    let mut deferred_close = unpoisoned(DEFERRED.get());
    deferred_close.ends.push(end);
    start(deferred_close);
}

/// Starts the thread of the deferred close, if there are ends to close and the thread does not run yet. If the thread
/// cannot be started, a later call into the library tries again.
fn start(mut deferred_close: MutexGuard<'_, DeferredClose<Arc<End>>>) {
    if !deferred_close.running && !deferred_close.ends.is_empty() {
        let run = || run(DEFERRED.get(), close::close_all);
        deferred_close.running = background::start(c"strait-unclosed", STACK, run);
        if !deferred_close.running {
            deferred::try_later("ends", || start(unpoisoned(DEFERRED.get())));
        }
    }
}

/// The ends that the thread of the deferred close tries to close in one attempt.
struct Round<'a, T> {
    of: &'a Mutex<DeferredClose<T>>,
    ends: IntoIter<T>,
}

impl<T> Drop for Round<'_, T> {
    /// If the thread of the deferred close panics, puts the ends that it has not tried in this attempt back into the
    /// list. The next thread closes these ends.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut deferred_close = unpoisoned(self.of);
            deferred_close.ends.extend(&mut self.ends);
            deferred_close.running = false;
            // No other end may ever be added, which would start the next thread.
            deferred::try_later("ends", || start(unpoisoned(DEFERRED.get())));
        }
    }
}

fn run<T>(of: &Mutex<DeferredClose<T>>, close: impl Fn(T)) {
    let mut pause = SOON;
    loop {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LATER);
        let ends = std::mem::take(&mut unpoisoned(of).ends).into_iter();
        let mut round = Round { of, ends };
        // An end that still cannot be closed is added again.
        round.ends.by_ref().for_each(&close);
        deferred::run();
        drop(round);
        let mut deferred_close = unpoisoned(of);
        deferred_close.running = !deferred_close.ends.is_empty();
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
        let deferred_close = Mutex::new(DeferredClose { ends: vec![1, 2, 3], running: true });
        let closed = Mutex::new(Vec::new());
        let close = |end| match end {
            2 => panic!("closing this one fails"),
            end => closed.lock().unwrap().push(end),
        };
        let ended = std::thread::scope(|scope| scope.spawn(|| run(&deferred_close, close)).join());
        ended.unwrap_err();
        assert!(!unpoisoned(&deferred_close).running);
        // The next end that is added would start another thread; this call runs in place of that thread.
        run(&deferred_close, close);
        assert_eq!(*closed.lock().unwrap(), [1, 3]);
    }
}
