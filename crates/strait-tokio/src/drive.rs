//! The task that drives a reactor.
//!
//! Consider two processes that share one core and sleep while they wait for each other. Each message then costs a
//! wake-up through two polls and a socket. So before the task lets the runtime sleep, the task polls for a while, and
//! meanwhile lets other tasks and processes run. The polling costs processor time. If polling did not pay several times
//! in a row, the task polls only seldom.

use std::time::{Duration, Instant};

use strait::task::{Driver, Reactor};

use crate::fd::Watched;

/// `IN_VAIN`: after polling in vain this many times in a row, the task polls only once in [`SELDOM`] times.
const IN_VAIN: u32 = 4;
const SELDOM: u32 = 16;

/// If the runtime runs the task again within this time, the runtime had nothing else to do.
const IDLE: Duration = Duration::from_micros(5);

/// Drives `reactor` whenever its descriptor is readable, to wake tasks for their events. After an event the task polls
/// for `spin` before the runtime may sleep. The end of the task, even between two steps, drops the driver and so ends
/// the reactor: tasks of other runtimes that wait for objects of the reactor get an error.
pub(crate) async fn drive(fd: Watched, reactor: Driver, spin: Duration) {
    let mut in_vain = 0u32;
    loop {
        let Ok(mut readable) = fd.readable().await else { return };
        // Until the reactor has nothing to do; a later event makes the descriptor readable again.
        while !matches!(reactor.rest(), Ok(0)) || reactor.has_more() {
            let looks = in_vain < IN_VAIN || in_vain.is_multiple_of(SELDOM);
            let paid = look(&reactor, if looks { spin } else { Duration::ZERO }).await;
            in_vain = if paid { 0 } else { in_vain.wrapping_add(1) };
        }
        readable.clear_ready();
    }
}

/// Polls until nothing has happened for `spin`, and lets other tasks and processes run in between. Returns whether
/// anything happened.
async fn look(reactor: &Reactor, spin: Duration) -> bool {
    let mut paid = false;
    let mut last = Instant::now();
    let mut before = last;
    loop {
        tokio::task::yield_now().await;
        let now = Instant::now();
        // If this process lacks a resource for now, the runtime will run the task again.
        let Ok(mut found) = reactor.look() else { return paid };
        if found == 0 && now - before < IDLE && !spin.is_zero() {
            // The peer may be waiting for this processor.
            std::thread::yield_now();
            let Ok(more) = reactor.look() else { return paid };
            found = more;
        }
        before = Instant::now();
        if found > 0 {
            paid = true;
            last = before;
        } else if before - last >= spin {
            return paid;
        }
    }
}
