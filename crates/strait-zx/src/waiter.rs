//! A waiting thread.
//!
//! Waiting threads take turns at watching for changes by other processes: see [`hub`](crate::hub). The threads that
//! do not watch sleep each on a word of its own.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rustix::thread::futex;

use crate::abi::zx_signals_t;
use crate::unpoisoned;

/// Value of the word: the thread is awake.
const IDLE: u32 = 0;
/// Value of the word: an event for which the thread waits has happened, or the thread has another reason to look.
const FIRED: u32 = 1;
/// Value of the word: the thread sleeps on the word.
const PARKED: u32 = 2;
/// Value of the word: the thread leads, and sleeps in epoll.
const LEADING: u32 = 3;

/// A wait of a thread.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    /// The state of the thread: [`IDLE`], [`FIRED`], [`PARKED`] or [`LEADING`].
    word: AtomicU32,
    /// The past events of the wait.
    fired: Mutex<Vec<Fired>>,
}

/// An event of an object of the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fired {
    /// Index of the object in the call.
    pub(crate) item: usize,
    /// The object's signals at the event.
    pub(crate) observed: zx_signals_t,
    /// Whether the wait ended because the handle was closed or sent away.
    pub(crate) canceled: bool,
}

impl Waiter {
    /// Makes a waiter that is awake and has no events.
    pub(crate) fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Adds an event, and wakes the thread.
    pub(crate) fn fire(&self, fired: Fired) {
        unpoisoned(&self.fired).push(fired);
        self.wake();
    }

    /// Wakes the thread for a look.
    pub(crate) fn wake(&self) {
        match self.word.swap(FIRED, Ordering::AcqRel) {
            PARKED => {
                let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
            }
            LEADING => crate::hub::nudge(),
            _ => {}
        }
    }

    /// Returns whether the thread was woken.
    pub(crate) fn is_fired(&self) -> bool {
        self.word.load(Ordering::Acquire) == FIRED
    }

    /// Takes the past events.
    pub(crate) fn take_fired(&self) -> Vec<Fired> {
        std::mem::take(&mut unpoisoned(&self.fired))
    }

    /// Declares that the thread is about to lead. Returns `false` if it was woken.
    pub(crate) fn begin_leading(&self) -> bool {
        self.word.compare_exchange(IDLE, LEADING, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Declares that the thread leads no more.
    pub(crate) fn end_leading(&self) {
        let _ = self.word.compare_exchange(LEADING, IDLE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Declares that the thread is about to sleep. Returns `false` if it was woken.
    pub(crate) fn begin_parking(&self) -> bool {
        self.word.compare_exchange(IDLE, PARKED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Sleeps until the thread is woken, at most for `limit`.
    pub(crate) fn park(&self, limit: Option<Duration>) {
        let limit = limit.map(|limit| rustix::time::Timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        });
        // The caller looks at the word, whatever ended the sleep.
        let _ = futex::wait(&self.word, futex::Flags::PRIVATE, PARKED, limit.as_ref());
        let _ = self.word.compare_exchange(PARKED, IDLE, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Wakes the thread for another reason than an event, if asleep on its word. Returns whether the thread slept.
    pub(crate) fn rouse(&self) -> bool {
        let sleeps = self.word.compare_exchange(PARKED, IDLE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if sleeps {
            let _ = futex::wake(&self.word, futex::Flags::PRIVATE, 1);
        }
        sleeps
    }
}
