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

/// The pause before each attempt: 10 ms at first, doubled up to 1 s.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_secs(1);

/// Number of bytes of the thread's stack.
const STACK: usize = 256 << 10;

struct Unclosed<T> {
    ends: Vec<T>,
    running: bool,
}

static UNCLOSED: PerProcess<Mutex<Unclosed<Arc<End>>>> =
    PerProcess::new(|| Mutex::new(Unclosed { ends: Vec::new(), running: false }));

/// Adds an end whose close is to be tried again later.
pub(in crate::channel) fn close_later(end: Arc<End>) {
    let mut unclosed = unpoisoned(UNCLOSED.get());
    unclosed.ends.push(end);
    start(unclosed);
}

/// Starts the thread, if there are ends to close and none runs. If the thread cannot be started, a later call of the
/// library tries again.
fn start(mut unclosed: MutexGuard<'_, Unclosed<Arc<End>>>) {
    if !unclosed.running && !unclosed.ends.is_empty() {
        let run = || run(UNCLOSED.get(), close::close_all);
        unclosed.running = background::start(c"strait-unclosed", STACK, run);
        if !unclosed.running {
            deferred::try_later("ends", || start(unpoisoned(UNCLOSED.get())));
        }
    }
}

/// The ends to be closed in one attempt of the thread.
struct Round<'a, T> {
    of: &'a Mutex<Unclosed<T>>,
    ends: IntoIter<T>,
}

impl<T> Drop for Round<'_, T> {
    /// Puts the ends that are left back, if the thread panics: the next thread closes them.
    fn drop(&mut self) {
        if std::thread::panicking() {
            let mut unclosed = unpoisoned(self.of);
            unclosed.ends.extend(&mut self.ends);
            unclosed.running = false;
        }
    }
}

fn run<T>(of: &Mutex<Unclosed<T>>, close: impl Fn(T)) {
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
        let mut unclosed = unpoisoned(of);
        unclosed.running = !unclosed.ends.is_empty();
        if !unclosed.running {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_the_thread_and_loses_nothing_else() {
        let unclosed = Mutex::new(Unclosed { ends: vec![1, 2, 3], running: true });
        let closed = Mutex::new(Vec::new());
        let close = |end| match end {
            2 => panic!("closing this one fails"),
            end => closed.lock().unwrap().push(end),
        };
        let ended = std::thread::scope(|scope| scope.spawn(|| run(&unclosed, close)).join());
        ended.unwrap_err();
        assert!(!unpoisoned(&unclosed).running);
        // The next end that is added would start another thread; this call runs in place of that thread.
        run(&unclosed, close);
        assert_eq!(*closed.lock().unwrap(), [1, 3]);
    }
}
