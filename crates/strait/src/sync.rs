//! What every layer uses of locks.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Locks a mutex of which the holder may have panicked: nothing that panics holds these locks, and what they guard is whole at every
/// step.
pub(crate) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
