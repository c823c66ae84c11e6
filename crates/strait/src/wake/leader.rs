//! Leader and followers: the threads that wait for one source of events, such as a socket, share the work. One thread
//! at a time, the **leader**, waits for events and handles them for all threads. The other threads **follow**: they
//! sleep until the leader stops leading, or until another thread wakes them. Then each follower checks what it waits
//! for, and one of those that still wait leads.
//!
//! The model in `tests/model.rs` runs this file under the model checker.

use std::time::Duration;

use super::{Condvar, Mutex, MutexGuard, unpoisoned};

/// The place where the threads that wait for one source of events find their leader. `T` is the data that the leader
/// writes for the other threads under the lock of the place.
#[derive(Debug, Default)]
pub(crate) struct Leader<T> {
    turn: Mutex<Turn<T>>,
    /// The condition variable on which the followers sleep.
    checks: Condvar,
}

/// The state under the lock of a [`Leader`].
#[derive(Debug, Default)]
pub(crate) struct Turn<T> {
    /// What the leader does; `None` if no thread leads.
    leader: Option<Doing>,
    /// The number of followers that sleep. If it is 0, a thread that would wake the followers saves the system call.
    followers: usize,
    pub(crate) shared: T,
}

/// What a leader does: `Sleeping` if it sleeps until there are events, or is about to, and `Handling` if it handles
/// events. A leader that handles events stops leading soon, so a thread that does not want to wait may follow without a
/// look at the source of the events. The difference only saves that system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Doing {
    Sleeping,
    Handling,
}

impl<T> Turn<T> {
    /// Returns whether there is a leader that sleeps until there are events.
    pub(crate) fn sleeps(&self) -> bool {
        self.leader == Some(Doing::Sleeping)
    }

    /// Returns the number of followers that sleep.
    #[cfg(test)]
    pub(crate) fn followers(&self) -> usize {
        self.followers
    }
}

impl<T> Leader<T> {
    /// Locks the state. A thread checks what it waits for under this lock, and then calls [`lead`](Self::lead) and
    /// [`follow`](Self::follow) without releasing the lock in between. So the thread misses no wake-up.
    pub(crate) fn lock(&self) -> MutexGuard<'_, Turn<T>> {
        unpoisoned(&self.turn)
    }

    /// Makes the calling thread the leader, which is `doing` this first, and releases the lock `turn`. If another
    /// thread leads, returns the lock as the error.
    pub(crate) fn lead<'a>(
        &'a self,
        mut turn: MutexGuard<'a, Turn<T>>,
        doing: Doing,
    ) -> Result<Leading<'a, T>, MutexGuard<'a, Turn<T>>> {
        if turn.leader.is_some() {
            return Err(turn);
        }
        turn.leader = Some(doing);
        Ok(Leading { leader: self })
    }

    /// Sleeps as a follower until the leader stops leading or a thread wakes the followers, for at most `limit`
    /// (`None`: without a limit). Returns at once if no thread leads, and may return without a reason. Releases the
    /// lock `turn` meanwhile, and returns the lock.
    pub(crate) fn follow<'a>(
        &'a self,
        mut turn: MutexGuard<'a, Turn<T>>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, Turn<T>> {
        if turn.leader.is_none() {
            return turn;
        }
        turn.followers += 1;
        let mut turn = self.checks.wait(&self.turn, turn, limit);
        turn.followers -= 1;
        turn
    }

    /// Wakes the followers, so that each checks what it waits for. The caller makes the change for which they wait
    /// before this call.
    pub(crate) fn wake_followers(&self) {
        self.wake(self.lock());
    }

    /// Releases the lock `turn`, and wakes the threads that follow at that time. A thread that locks later sees the
    /// change for which the followers are woken.
    fn wake(&self, turn: MutexGuard<'_, Turn<T>>) {
        let are_some = turn.followers > 0;
        drop(turn);
        if are_some {
            self.checks.notify_all();
        }
    }
}

/// The calling thread as the leader. Dropping the guard stops leading and wakes the followers, also when the thread
/// panics.
#[derive(Debug)]
#[must_use]
pub(crate) struct Leading<'a, T> {
    leader: &'a Leader<T>,
}

impl<T> Leading<'_, T> {
    /// Notes that the leader sleeps no more, and handles events from now on.
    pub(crate) fn handle(&self) {
        self.leader.lock().leader = Some(Doing::Handling);
    }
}

impl<T> Drop for Leading<'_, T> {
    fn drop(&mut self) {
        let mut turn = self.leader.lock();
        turn.leader = None;
        self.leader.wake(turn);
    }
}
