//! How every layer takes an ordinary lock.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks `mutex` and returns the guard, even if a thread has panicked while holding the lock. This is sound because no
/// code that may panic runs under these locks, and the guarded data is consistent at every step.
pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
