//! A thread that waits.
//!
//! Threads that wait take turns at listening for what other processes do: see [`hub`](crate::hub). The others sleep on
//! a word of their own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::futex;

use crate::abi::zx_signals_t;
use crate::unpoisoned;

/// Awake.
const IDLE: u32 = 0;
/// What it waits for has happened, or somebody has a reason for it to look.
const FIRED: u32 = 1;
/// It sleeps on the word.
const PARKED: u32 = 2;
/// It listens for all, and sleeps in epoll.
const LEADING: u32 = 3;

/// One wait of one thread.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    word: AtomicU32,
    fired: Mutex<Vec<Fired>>,
}

/// What has happened to one of the things it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    pub(crate) item: usize,
    pub(crate) observed: zx_signals_t,
    /// The handle was closed, or sent away.
    pub(crate) canceled: bool,
}

impl Waiter {
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Tells it what has happened, and wakes it.
    pub(crate) fn fire(&self, fired: Fired) {
        unpoisoned(&self.fired).push(fired);
        self.wake();
    }

    /// Has it look.
    pub(crate) fn wake(&self) {
        match self.word.swap(FIRED, Ordering::AcqRel) {
            PARKED => {
                let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
            }
            LEADING => crate::hub::nudge(),
            _ => {}
        }
    }

    pub(crate) fn is_fired(&self) -> bool {
        self.word.load(Ordering::Acquire) == FIRED
    }

    /// What has happened.
    pub(crate) fn take_fired(&self) -> Vec<Fired> {
        std::mem::take(&mut unpoisoned(&self.fired))
    }

    /// Says that it is about to listen; false if it was woken.
    pub(crate) fn begin_leading(&self) -> bool {
        self.word.compare_exchange(IDLE, LEADING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn end_leading(&self) {
        let _ = self.word.compare_exchange(LEADING, IDLE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Says that it is about to sleep; false if it was woken.
    pub(crate) fn begin_parking(&self) -> bool {
        self.word.compare_exchange(IDLE, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until it is woken, or for so long.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| rustix::time::Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // Whatever ends it, the caller looks at the word.
        let _ = futex::wait(&self.word, futex::Flags::PRIVATE, PARKED, limit.as_ref());
        let _ = self.word.compare_exchange(PARKED, IDLE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Wakes it, if it sleeps on its word, for another reason than that it waits for.
    pub(crate) fn rouse(&self) -> bool {
        let sleeps = self.word.compare_exchange(PARKED, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if sleeps {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
        sleeps
    }
}
