//! The task that drives a reactor.
//!
//! A message between two processes on one core that sleep for each costs a wake-up through two polls and a socket. So the task
//! looks for a while before it lets the runtime sleep, and meanwhile lets others run, tasks and processes. That costs processor
//! time; where it has not paid for some times, it is done seldom.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use strait::Reactor;
use tokio::io::unix::AsyncFd;

/// After so many times in a row that it was in vain, looking is done once in [`SELDOM`] times.
const IN_VAIN: u32 = 4;
const SELDOM: u32 = 16;

/// A runtime that comes back within this time had nothing else to do.
const IDLE: Duration = Duration::from_micros(5);

/// Has tasks woken whenever there is something for them.
pub(crate) async fn drive(fd: AsyncFd<OwnedFd>, reactor: Reactor, spin: Duration) {
    let driven = Driven(reactor);
    let reactor = &driven.0;
    let mut in_vain = 0u32;
    loop {
        let Ok(mut readable) = fd.readable().await else { return };
        // Until there is nothing; what comes after that makes it readable anew.
        while !matches!(reactor.rest(), Ok(0)) || reactor.has_more() {
            let looks = in_vain < IN_VAIN || in_vain.is_multiple_of(SELDOM);
            let paid = look(reactor, if looks { spin } else { Duration::ZERO }).await;
            in_vain = if paid { 0 } else { in_vain.wrapping_add(1) };
        }
        readable.clear_ready();
    }
}

/// Looks until there was nothing for so long, and lets others run. Whether there was anything.
async fn look(reactor: &Reactor, spin: Duration) -> bool {
    let mut paid = false;
    let mut last = Instant::now();
    let mut before = last;
    loop {
        tokio::task::yield_now().await;
        let now = Instant::now();
        // Where this process lacks something, which passes, the runtime is asked to call again.
        let Ok(mut found) = reactor.look() else { return paid };
        if found == 0 && now - before < IDLE && !spin.is_zero() {
            // The peer may be waiting for this very processor.
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

/// A reactor that is left to whoever has it when its task ends in the middle.
struct Driven(Reactor);

impl Drop for Driven {
    fn drop(&mut self) {
        let _ = self.0.turn();
    }
}
