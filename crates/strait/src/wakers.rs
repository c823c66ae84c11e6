//! The wakers of tasks that wait for an event of an object.
//!
//! A future has a [`FutureId`], under which its waker is in the list, and removes the waker when it is dropped. So the
//! list holds no more wakers than there are waiting futures, however long the event does not come. A task that polls
//! without such a future has no number: its waker stays until the event.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// The number of a future of this process that waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FutureId(NonZeroU64);

impl FutureId {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        Self(NonZeroU64::MIN.saturating_add(LAST.fetch_add(1, Ordering::Relaxed)))
    }
}

/// The wakers of waiting tasks, each with a value: the event for which the task waits, for example.
#[derive(Debug)]
pub(crate) struct Wakers<T>(Vec<Entry<T>>);

#[derive(Debug)]
struct Entry<T> {
    future: Option<FutureId>,
    waker: Waker,
    value: T,
}

impl<T> Default for Wakers<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T> Wakers<T> {
    /// Adds the waker of a task, with `value`. Replaces the earlier waker of the future `future`; without a future,
    /// replaces an equal waker. Returns the replaced waker, for the caller to drop without a lock.
    #[must_use]
    pub(crate) fn add(&mut self, future: Option<FutureId>, waker: &Waker, value: T) -> Option<Waker> {
        let same = |entry: &&mut Entry<T>| entry.future == future && (future.is_some() || entry.waker.will_wake(waker));
        if let Some(entry) = self.0.iter_mut().find(same) {
            entry.value = value;
            return Some(std::mem::replace(&mut entry.waker, waker.clone()));
        }
        self.0.push(Entry { future, waker: waker.clone(), value });
        None
    }

    /// Removes the waker of the future `future`, if it is in the list, and returns the waker, for the caller to drop
    /// without a lock.
    #[must_use]
    pub(crate) fn remove(&mut self, future: FutureId) -> Option<Waker> {
        let at = self.0.iter().position(|entry| entry.future == Some(future))?;
        Some(self.0.swap_remove(at).waker)
    }

    /// Removes all wakers, and returns them.
    pub(crate) fn take(&mut self) -> impl Iterator<Item = Waker> + use<T> {
        std::mem::take(&mut self.0).into_iter().map(|entry| entry.waker)
    }

    /// Removes the wakers whose value is `value`, and returns them.
    pub(crate) fn take_all_of(&mut self, value: &T) -> impl Iterator<Item = Waker>
    where
        T: PartialEq,
    {
        self.0.extract_if(.., |entry| entry.value == *value).map(|entry| entry.waker)
    }

    /// Returns an iterator over the values of the waiting tasks.
    pub(crate) fn values(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|entry| &entry.value)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
