//! Locks held for a few instructions.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex. A panic in another thread leaves no half-made state in this crate, so poison is ignored.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
