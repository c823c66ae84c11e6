//! Telling the user of this library of peers that broke the protocol.
//!
//! That is found out in the middle of things, with locks held. So it is put into a queue, and told by the thread that
//! found out, or by another one, just before a call of the user's returns: then nothing of ours is locked by it, and who
//! is told may do anything. In the flow of messages nobody looks at the queue: it is looked at when a call fails, when a
//! wait set was waited for, and when a channel was closed.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::channel::value;
use crate::os::fork::PerProcess;
use crate::peer::Peer;
use crate::sync::unpoisoned;

/// A peer that broke the protocol, as [`on_bad_peer`] tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadPeer {
    /// Who it is, as the kernel says; `None` if it does not.
    pub peer: Option<Peer>,
    /// What it did, as in [`Error::BadPeer`](crate::Error::BadPeer).
    pub reason: &'static str,
    /// Whether its link is lost, and with it every channel over that link; else it is one channel that has ended.
    pub link_lost: bool,
}

impl fmt::Display for BadPeer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad peer: {}", self.reason)?;
        match self.peer {
            Some(Peer { pid: Some(pid), uid, .. }) => write!(f, " (process {pid} of user {uid})"),
            Some(Peer { uid, .. }) => write!(f, " (a process of user {uid})"),
            None => Ok(()),
        }
    }
}

type Callback = Arc<dyn Fn(&BadPeer) + Send + Sync>;

static CALLBACK: PerProcess<Mutex<Option<Callback>>> = PerProcess::new(Mutex::default);
static QUEUE: PerProcess<Mutex<VecDeque<BadPeer>>> = PerProcess::new(Mutex::default);
/// Whether there is something to do where no lock is held: 1 if there may be something in the queue, 2 if there may be something to
/// try again, and 4 for each value that a thread has put aside.
static PENDING: AtomicUsize = AtomicUsize::new(0);
const TO_TELL: usize = 1;
const TO_TRY: usize = 2;
const ASIDE: usize = 4;

/// What could not be done for want of something, and when it is tried again.
#[derive(Default)]
struct Later {
    again: BTreeMap<&'static str, fn()>,
    when: Option<Instant>,
}

static LATER: PerProcess<Mutex<Later>> = PerProcess::new(Mutex::default);

/// Between two tries.
const PAUSE: Duration = Duration::from_millis(10);

/// Has `callback` told of each peer process that breaks the protocol, in place of what was to be told before.
///
/// It is called once for each peer process and reason, however many links lead to that process, as long as anything of
/// that process is here. It is called in a thread that is just in a call of this library, where that holds no lock: it
/// may call anything, send, and drop channels. It should not take long, as that call returns after it. A panic in it
/// goes on in that call.
///
/// A child of a `fork` has no callback until it has called this itself.
///
/// The library writes no logs.
pub fn on_bad_peer(callback: impl Fn(&BadPeer) + Send + Sync + 'static) {
    let old = unpoisoned(CALLBACK.get()).replace(Arc::new(callback));
    drop(old);
}

/// Takes note of one, to be told soon.
#[cold]
pub(super) fn note(bad: BadPeer) {
    if unpoisoned(CALLBACK.get()).is_none() {
        return;
    }
    unpoisoned(QUEUE.get()).push_back(bad);
    PENDING.fetch_or(TO_TELL, Ordering::Release);
}

/// This thread has put a value aside, to be dropped soon.
pub(crate) fn note_aside() {
    PENDING.fetch_add(ASIDE, Ordering::Relaxed);
}

/// It is dropped now.
pub(crate) fn dropped_aside() {
    PENDING.fetch_sub(ASIDE, Ordering::Relaxed);
}

/// Has a later call of the user's do `again` after a pause, where that call holds no lock. `what` is what it tries.
#[cold]
pub(crate) fn try_later(what: &'static str, again: fn()) {
    let mut later = unpoisoned(LATER.get());
    later.when = Some(Instant::now() + PAUSE);
    later.again.insert(what, again);
    PENDING.fetch_or(TO_TRY, Ordering::Release);
}

/// Tries again what could not be done, if it is time. What fails once more comes back.
fn try_again() {
    let mut later = unpoisoned(LATER.get());
    if later.when.is_some_and(|when| when > Instant::now()) {
        return;
    }
    let again = std::mem::take(&mut later.again);
    PENDING.fetch_and(!TO_TRY, Ordering::AcqRel);
    drop(later);
    again.into_values().for_each(|again| again());
}

thread_local! {
    /// Whether this thread drops channels while it holds locks.
    static HELD_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Does something in which channels may be dropped while locks are held: nothing is told meanwhile.
pub(crate) fn holding_back<T>(act: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            HELD_BACK.with(|held| held.set(self.0));
        }
    }
    let _restore = Restore(HELD_BACK.with(|held| held.replace(true)));
    act()
}

/// Tells what is to be told, and drops what was put aside. The caller holds no lock.
#[inline]
pub(crate) fn tell() {
    if PENDING.load(Ordering::Relaxed) != 0 {
        tell_all();
    }
}

/// The same where a call has failed.
#[inline]
pub(crate) fn told<T, E>(result: Result<T, E>) -> Result<T, E> {
    if result.is_err() {
        tell();
    }
    result
}

#[cold]
fn tell_all() {
    if HELD_BACK.with(Cell::get) {
        return;
    }
    // What it calls may be calls of this library, which note what they lack themselves.
    crate::wake::want::preserved(tell_what_is_left);
}

fn tell_what_is_left() {
    value::drop_aside();
    if PENDING.load(Ordering::Acquire) & TO_TRY != 0 {
        try_again();
    }
    if PENDING.fetch_and(!TO_TELL, Ordering::AcqRel) & TO_TELL == 0 {
        return;
    }
    let callback = unpoisoned(CALLBACK.get()).clone();
    // One by one: the callback may call this library, and so come here itself.
    loop {
        let next = unpoisoned(QUEUE.get()).pop_front();
        match (next, &callback) {
            (Some(bad), Some(callback)) => callback(&bad),
            (Some(_), None) => {}
            (None, _) => return,
        }
    }
}
