//! How a side of a ring sleeps, and how the other side wakes it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The state of the other side of the ring, as a side knows it after a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The other side may still wake this side.
    Alive,
    /// The other side is gone and will never wake this side. A waiting call then takes the messages published before,
    /// and otherwise fails with [`Error::Closed`](crate::Error::Closed).
    Gone,
}

/// How one side of a ring sleeps and wakes the other side.
///
/// Between processes, use a futex on the word, without the flag for private futexes. Threads of one process can use
/// [`Threads`]. A type without sleep is correct as well: `wait` returns at once, and `wake` does nothing.
pub trait Sleep {
    /// Sleeps while `word` holds `asleep`, at most until `deadline`. Comparing the word and going to sleep must be one
    /// step: a call of [`Sleep::wake`] after the word has changed must find the sleeper. May return early for any
    /// reason. The result says whether the other side still lives; if this is unknown, the result is [`Peer::Alive`].
    fn wait(&self, word: &AtomicU32, asleep: u32, deadline: Option<Instant>) -> Peer;

    /// Wakes the thread that sleeps on `word`, the sleep word of the other side. The caller has already changed the
    /// word.
    fn wake(&self, word: &AtomicU32);
}

/// Sleeps and wakes threads of one process with a lock and a condition variable of the standard library. Both sides of
/// a ring need clones of one value.
#[derive(Clone, Debug, Default)]
pub struct Threads(Arc<(Mutex<()>, Condvar)>);

impl Threads {
    fn lock(&self) -> MutexGuard<'_, ()> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sleep for Threads {
    fn wait(&self, word: &AtomicU32, asleep: u32, deadline: Option<Instant>) -> Peer {
        let guard = self.lock();
        // The waker changes the word before taking the lock, so the change comes either before this look or after the
        // sleep has begun.
        if word.load(Ordering::SeqCst) == asleep {
            let woken = &self.0.1;
            match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                None => drop(woken.wait(guard).unwrap_or_else(PoisonError::into_inner)),
                Some(left) => drop(woken.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner)),
            }
        }
        Peer::Alive
    }

    fn wake(&self, _word: &AtomicU32) {
        drop(self.lock());
        // Both sides sleep on this condition variable, but never at the same time for long: a side that is woken in
        // vain looks at the ring and sleeps again.
        self.0.1.notify_all();
    }
}
