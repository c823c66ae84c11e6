//! The threads and tasks that wait on a call end, and how they are woken. A thread is woken after the lock of the
//! routes was released, so that the thread need not wait for the lock. Only sleeping threads are woken, because waking
//! costs a system call.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

use super::platform::{AtomicBool, Channel, Condvar, MutexGuard, strict, thread_local, unpoisoned};
use super::routes::Routes;
use super::shared::CallShared;
use super::slots::Call;

/// The object on which a thread sleeps while it waits on a call end. Each thread uses one such object for all its
/// waits, because a thread waits for one event at a time.
#[derive(Debug, Default)]
pub(super) struct CallWaiter {
    pub(super) condition: Condvar,
    /// Whether the thread of the waiter sleeps and no other thread is about to wake it. Changes only under the lock of
    /// the routes (which give each message to its call).
    asleep: AtomicBool,
}

thread_local! {
    static OWN: Arc<CallWaiter> = Arc::default();
}

/// The event for which a thread or a task waits on a call end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// `Reply`: the thread waits for the answer to the call with the given number. The arrival of the answer wakes only
    /// this thread.
    Reply(u64),
    /// `Request`: the thread waits for a request of the other end.
    Request,
    /// `Either`: the thread waits for a request of the other end or for the answer to the call with the given number,
    /// whichever arrives first.
    Either(u64),
    /// `Slot`: the thread waits for a free call slot.
    Slot,
    /// `Nothing`: the thread waits for no event of the end.
    Nothing,
}

impl Waits {
    /// Returns the number of the call whose answer the thread waits for; `None` if the thread waits for no answer.
    pub(super) fn call(self) -> Option<u64> {
        match self {
            Self::Reply(id) | Self::Either(id) => Some(id),
            Self::Request | Self::Slot | Self::Nothing => None,
        }
    }

    /// Returns whether a thread that waits for the event `self` may be woken by the event `other`: if both are equal,
    /// or if `other` is a request and `self` is `Either`.
    pub(super) fn includes(self, other: Self) -> bool {
        self == other || (other == Self::Request && self.takes_requests())
    }

    /// Returns whether a thread that waits for the event `self` takes an arriving request: `true` for `Request` and
    /// `Either`.
    pub(super) fn takes_requests(self) -> bool {
        matches!(self, Self::Request | Self::Either(_))
    }
}

impl CallWaiter {
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}

/// Threads and tasks of a call end that are to be woken when the lock of its routes is released.
#[derive(Debug, Default)]
pub(super) struct Woken(Vec<Sleeper>);

#[derive(Debug)]
enum Sleeper {
    Thread(Arc<CallWaiter>),
    Task(Waker),
    /// `Receiver`: the receiving thread, which then looks again for its event and for deferred messages.
    Receiver,
}

impl Woken {
    /// Adds the thread of `waiter` to the threads to be woken, if the thread sleeps and no other thread is about to
    /// wake it. Returns whether the thread was added.
    pub(super) fn thread(&mut self, waiter: &Arc<CallWaiter>) -> bool {
        let asleep = waiter.asleep.swap(false, Ordering::Relaxed);
        if asleep {
            self.0.push(Sleeper::Thread(waiter.clone()));
        }
        asleep
    }

    pub(super) fn tasks(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.0.extend(wakers.into_iter().map(Sleeper::Task));
    }

    /// Adds the receiving thread to the threads to be woken.
    pub(super) fn receiver(&mut self) {
        self.0.push(Sleeper::Receiver);
    }

    /// Wakes the threads and tasks. `channel` is the channel of the end, from which the receiving thread receives.
    fn wake(self, channel: &Channel) {
        for sleeper in self.0 {
            match sleeper {
                Sleeper::Thread(waiter) => waiter.condition.notify_one(),
                Sleeper::Task(waker) => waker.wake(),
                Sleeper::Receiver => channel.nudge_receiver(),
            }
        }
    }
}

/// The locked routes of a call end. Dropping this value releases the lock, and then wakes the threads and tasks in
/// [`Routes::woken`].
#[derive(Debug)]
pub(super) struct Locked<'a> {
    shared: &'a CallShared,
    /// The lock guard; `None` only while the lock is being released.
    guard: Option<MutexGuard<'a, Routes>>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(shared: &'a CallShared) -> Self {
        Self { shared, guard: Some(unpoisoned(&shared.routes)) }
    }

    /// Releases the lock, sleeps until the thread is woken or the time `limit` has passed, and then locks again and
    /// returns the lock. With `None` there is no time limit. `what` is the event for which the thread waits. May also
    /// return without a reason.
    pub(super) fn sleep(mut self, what: Waits, limit: Option<Duration>) -> Self {
        if !self.woken.0.is_empty() {
            // Other threads are woken first. Meanwhile the state may have changed without a wake-up of the calling
            // thread, so the caller looks again.
            let shared = self.shared;
            drop(self);
            return Self::new(shared);
        }
        // While a thread ends, its thread-local waiter is gone.
        let waiter = OWN.try_with(Arc::clone).unwrap_or_default();
        waiter.asleep.store(true, Ordering::Relaxed);
        if let Some(Call::Waiting(thread, _)) = what.call().and_then(|id| self.calls.get(id)) {
            *thread = Some(waiter.clone());
        }
        self.waiters.push_back((what, waiter.clone()));
        let shared = self.shared;
        let guard = self.guard.take().expect("not dropped");
        let guard = waiter.condition.wait(&shared.routes, guard, limit);
        let mut guard = Self::expect_wake(shared, guard, what, &waiter);
        if !waiter.asleep.swap(false, Ordering::Relaxed) {
            guard.woken_threads -= 1;
        }
        // A later answer must not wake the calling thread from another wait.
        if let Some(Call::Waiting(thread, _)) = what.call().and_then(|id| guard.calls.get(id)) {
            *thread = None;
        }
        if let Some(at) = guard.waiters.iter().position(|(_, other)| Arc::ptr_eq(other, &waiter)) {
            guard.waiters.remove(at);
        }
        Self { shared, guard: Some(guard) }
    }

    /// Checks the sleep of the thread of `waiter`, which has just ended. The thread waits for the event `what`: if
    /// there is something to do, another thread must wake it. The check releases the lock `guard` while it waits for
    /// that.
    fn expect_wake(
        shared: &'a CallShared,
        guard: MutexGuard<'a, Routes>,
        what: Waits,
        waiter: &CallWaiter,
    ) -> MutexGuard<'a, Routes> {
        let mut place = Some(guard);
        strict::expect_wake("in a call end", || {
            let mut guard = place.take().unwrap_or_else(|| unpoisoned(&shared.routes));
            let is_owed = waiter.is_asleep() && guard.is_due(what);
            place = (!is_owed).then_some(guard);
            is_owed
        });
        place.unwrap_or_else(|| unpoisoned(&shared.routes))
    }
}

impl Deref for Locked<'_> {
    type Target = Routes;

    fn deref(&self) -> &Routes {
        self.guard.as_ref().expect("not dropped")
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut Routes {
        self.guard.as_mut().expect("not dropped")
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        let Some(mut guard) = self.guard.take() else { return };
        if guard.woken.0.is_empty() {
            return;
        }
        let woken = std::mem::take(&mut guard.woken);
        drop(guard);
        woken.wake(&self.shared.channel);
    }
}
