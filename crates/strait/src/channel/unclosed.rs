//! Ends that could not be closed when their user did, since this process lacked something for following the other end to where it
//! is: a descriptor, memory. They are closed when there is some: whoever has the other end waits for it.
//!
//! Nobody in this process may ever call into the library again, so a thread looks from time to time, as long as there are
//! any. It is seldom started, and ends.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{End, close};
use crate::account::tell;
use crate::link::unpoisoned;

/// Between two looks, at first and at most.
const SOON: Duration = Duration::from_millis(10);
const LATER: Duration = Duration::from_secs(1);

/// Bytes of the thread's stack.
const STACK: usize = 256 << 10;

struct Unclosed {
    ends: Vec<Arc<End>>,
    running: bool,
}

static UNCLOSED: Mutex<Unclosed> = Mutex::new(Unclosed { ends: Vec::new(), running: false });

/// Closes an end later.
pub(super) fn keep(end: Arc<End>) {
    let mut unclosed = unpoisoned(&UNCLOSED);
    unclosed.ends.push(end);
    if !unclosed.running {
        let builder = std::thread::Builder::new().name("strait-unclosed".into()).stack_size(STACK);
        // If there is no room for a thread, the next end that lacks something tries again.
        unclosed.running = builder.spawn(run).is_ok();
    }
}

fn run() {
    let mut pause = SOON;
    loop {
        std::thread::sleep(pause);
        pause = (pause * 2).min(LATER);
        let ends = std::mem::take(&mut unpoisoned(&UNCLOSED).ends);
        // What still lacks something is kept once more.
        ends.into_iter().for_each(close::close_all);
        tell();
        let mut unclosed = unpoisoned(&UNCLOSED);
        unclosed.running = !unclosed.ends.is_empty();
        if !unclosed.running {
            return;
        }
    }
}
