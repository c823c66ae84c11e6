//! Ends that could not be closed when their user did, since this process lacked something for following the other end to where it
//! is: a descriptor, memory. They are closed when there is some: whoever has the other end waits for it.
//!
//! Nobody in this process may ever call into the library again, so a thread looks from time to time, as long as there are
//! any. It is seldom started, and ends.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use std::vec::IntoIter;

use super::close;
use crate::channel::End;
use crate::os::fork::PerProcess;
use crate::os::process::background;
use crate::quota::{tell, try_later};
use crate::sync::unpoisoned;

/// Between two looks, at first and at most.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_secs(1);

/// Bytes of the thread's stack.
const STACK: usize = 256 << 10;

struct Unclosed<T> {
    ends: Vec<T>,
    running: bool,
}

static UNCLOSED: PerProcess<Mutex<Unclosed<Arc<End>>>> =
    PerProcess::new(|| Mutex::new(Unclosed { ends: Vec::new(), running: false }));

/// Closes an end later.
pub(in crate::channel) fn close_later(end: Arc<End>) {
    let mut unclosed = unpoisoned(UNCLOSED.get());
    unclosed.ends.push(end);
    start(unclosed);
}

/// Starts the thread, if there is something to do and none runs. If there is no room for one, a later call tries again.
fn start(mut unclosed: MutexGuard<'_, Unclosed<Arc<End>>>) {
    if !unclosed.running && !unclosed.ends.is_empty() {
        let run = || run(UNCLOSED.get(), close::close_all);
        unclosed.running = background::start(c"strait-unclosed", STACK, run);
        if !unclosed.running {
            try_later("ends", || start(unpoisoned(UNCLOSED.get())));
        }
    }
}

/// What is closed in one go.
struct Round<'a, T> {
    of: &'a Mutex<Unclosed<T>>,
    ends: IntoIter<T>,
}

impl<T> Drop for Round<'_, T> {
    /// Something is left only where the thread comes to an end by a panic: the next one that is started has it.
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
        // What still lacks something is kept once more.
        round.ends.by_ref().for_each(&close);
        tell();
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
        // The next one that is kept starts another.
        run(&unclosed, close);
        assert_eq!(*closed.lock().unwrap(), [1, 3]);
    }
}
