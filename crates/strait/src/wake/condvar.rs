//! A condition variable whose sleep a signal can interrupt. The condition variable of the standard library goes on
//! sleeping after a signal.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use crate::os::futex::{self, Scope};
use crate::sync::unpoisoned;

/// A condition variable: threads sleep until another thread notifies them. The word counts the notifications.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    notified: AtomicU32,
}

impl Condvar {
    /// Releases the lock `guard` of `mutex`, sleeps, locks `mutex` again and returns the guard. The sleep ends at a
    /// notification after the release, or after the time `limit` (`None`: without a limit). May return without a
    /// reason.
    pub(crate) fn wait<'a, T>(
        &self,
        mutex: &'a Mutex<T>,
        guard: MutexGuard<'a, T>,
        limit: Option<Duration>,
    ) -> MutexGuard<'a, T> {
        // Read under the lock. A notifier changes the awaited condition under the same lock before the notification.
        let before = self.notified.load(Ordering::Relaxed);
        drop(guard);
        if futex::wait(&self.notified, before, Scope::Private, limit).is_err() {
            // The kernel refuses futexes: the thread yields instead of sleeping.
            std::thread::yield_now();
        }
        unpoisoned(mutex)
    }

    /// Wakes one thread, if any sleeps on the condition variable.
    pub(crate) fn notify_one(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
        futex::wake_one(&self.notified, Scope::Private);
    }

    /// Wakes all threads that sleep on the condition variable.
    pub(crate) fn notify_all(&self) {
        self.notified.fetch_add(1, Ordering::Relaxed);
        futex::wake_all(&self.notified, Scope::Private);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn notified_threads_go_on_and_others_sleep_until_their_limit() {
        let (mutex, condvar) = (Mutex::new(false), Condvar::default());
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut ready = unpoisoned(&mutex);
                    while !*ready {
                        ready = condvar.wait(&mutex, ready, None);
                    }
                });
            }
            *unpoisoned(&mutex) = true;
            condvar.notify_all();
        });
        let begin = Instant::now();
        let limit = Duration::from_millis(20);
        while begin.elapsed() < limit {
            drop(condvar.wait(&mutex, unpoisoned(&mutex), Some(limit.saturating_sub(begin.elapsed()))));
        }
    }
}
