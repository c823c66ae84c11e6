//! Reports of peers that broke the protocol, and other deferred work.
//!
//! A violation is found in the middle of an operation, with locks held. So a report is put into a queue, and this or
//! another thread delivers it just before a call of the program returns. Then the thread holds no lock of the library,
//! and the callback may do anything. Calls that send or receive messages do not look at the queue. It is looked at when
//! a call fails, after a wait on a wait set, and after a channel was closed.

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

/// A report that a peer broke the protocol, as passed to the callback of [`on_bad_peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BadPeer {
    /// The peer process, as the kernel identifies it; `None` if the kernel does not.
    pub peer: Option<Peer>,
    /// The protocol violation, as in [`Error::BadPeer`](crate::Error::BadPeer).
    pub reason: &'static str,
    /// Whether the link was lost, and with it every channel over that link. If `false`, only one channel has ended.
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
/// The deferred work that is due where no lock is held: bit [`TO_TELL`] if there may be reports, bit [`TO_TRY`] if
/// there may be something to try again, and [`ASIDE`] times the number of values that threads have deferred to drop.
static PENDING: AtomicUsize = AtomicUsize::new(0);
const TO_TELL: usize = 1;
const TO_TRY: usize = 2;
const ASIDE: usize = 4;

/// Operations that failed for lack of a resource, and the time at which they are tried again.
#[derive(Default)]
struct Later {
    again: BTreeMap<&'static str, fn()>,
    when: Option<Instant>,
}

static LATER: PerProcess<Mutex<Later>> = PerProcess::new(Mutex::default);

/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(10);

/// Sets the callback that is told of each peer process that breaks the protocol. It replaces an earlier callback.
///
/// The library calls `callback` once for each peer process and reason, however many links lead to that process. (It may
/// call again for the same process once this process holds nothing of it any more.) The callback runs in a thread that
/// is in a call of this library and holds no lock of it: it may call anything, send, and drop channels. It should be
/// quick, because that call returns only after it. A panic in it goes on in that call.
///
/// A forked child has no callback until it calls this function itself.
///
/// The library writes no logs.
pub fn on_bad_peer(callback: impl Fn(&BadPeer) + Send + Sync + 'static) {
    let old = unpoisoned(CALLBACK.get()).replace(Arc::new(callback));
    drop(old);
}

/// Queues a report for the callback; does nothing if there is no callback.
#[cold]
pub(super) fn note(bad: BadPeer) {
    if unpoisoned(CALLBACK.get()).is_none() {
        return;
    }
    unpoisoned(QUEUE.get()).push_back(bad);
    PENDING.fetch_or(TO_TELL, Ordering::Release);
}

/// Counts a value that this thread has deferred to drop.
pub(crate) fn note_aside() {
    PENDING.fetch_add(ASIDE, Ordering::Relaxed);
}

/// Counts down after a deferred value was dropped.
pub(crate) fn dropped_aside() {
    PENDING.fetch_sub(ASIDE, Ordering::Relaxed);
}

/// Makes a later call of the program run `again`, after a pause, when that call holds no lock. `what` names the
/// operation; a second request with the same name replaces the first.
#[cold]
pub(crate) fn try_later(what: &'static str, again: fn()) {
    let mut later = unpoisoned(LATER.get());
    later.when = Some(Instant::now() + PAUSE);
    later.again.insert(what, again);
    PENDING.fetch_or(TO_TRY, Ordering::Release);
}

/// Runs the operations to try again, if their time has come. An operation that fails once more requests another
/// attempt.
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
    /// Whether this thread may drop channels while it holds locks, so that deferred work must wait.
    static HELD_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Runs `act`, in which channels may be dropped while locks are held. No deferred work runs on this thread meanwhile.
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

/// Runs deferred work: reports, attempts to try again, and drops. The caller must hold no lock. Costs one load if there
/// is nothing to do.
#[inline]
pub(crate) fn tell() {
    if PENDING.load(Ordering::Relaxed) != 0 {
        tell_all();
    }
}

/// Runs deferred work if `result` is an error, and returns `result`.
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
    // The callback may call this library, and those calls record what they were blocked on.
    crate::want::preserved(tell_what_is_left);
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
    // One report at a time: the callback may call this library, and so enter this function again.
    loop {
        let next = unpoisoned(QUEUE.get()).pop_front();
        match (next, &callback) {
            (Some(bad), Some(callback)) => callback(&bad),
            (Some(_), None) => {}
            (None, _) => return,
        }
    }
}
