//! Who waits for something of an end of calls, and how they are woken: after the lock was given back, so that nobody wakes
//! only to wait for it, and only if they sleep, since waking costs a system call.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::Waker;
use std::time::Duration;

use super::routes::Routes;
use crate::link::unpoisoned;

/// A thread, or a task, that waits for something of a call end.
#[derive(Debug, Default)]
pub(super) struct Waiter {
    condition: Condvar,
    /// Whether its thread sleeps and nobody has set about to wake it. Changes under the lock.
    asleep: AtomicBool,
    /// Of a task.
    pub(super) waker: Mutex<Option<Waker>>,
}

/// What a thread waits for besides a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waits {
    /// A reply, for which it is woken by name.
    Reply,
    /// A request.
    Request,
    /// That one more call can be made.
    Place,
}

impl Waiter {
    pub(super) fn is_asleep(&self) -> bool {
        self.asleep.load(Ordering::Relaxed)
    }
}

/// Those who are to be woken once there is no lock.
#[derive(Debug, Default)]
pub(super) struct Woken {
    threads: Vec<Arc<Waiter>>,
    tasks: Vec<Waker>,
}

impl Woken {
    /// The thread of this one, if it sleeps.
    pub(super) fn thread(&mut self, waiter: &Arc<Waiter>) {
        if waiter.asleep.swap(false, Ordering::Relaxed) {
            self.threads.push(waiter.clone());
        }
    }

    /// The thread or the task of this one.
    pub(super) fn either(&mut self, waiter: &Arc<Waiter>) {
        self.thread(waiter);
        self.tasks.extend(unpoisoned(&waiter.waker).take());
    }

    pub(super) fn tasks(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.tasks.extend(wakers);
    }

    fn is_empty(&self) -> bool {
        self.threads.is_empty() && self.tasks.is_empty()
    }

    fn wake(self) {
        self.threads.into_iter().for_each(|waiter| waiter.condition.notify_one());
        self.tasks.into_iter().for_each(Waker::wake);
    }
}

/// The routes, locked. When this is dropped the lock is given back, and whoever is to be woken is woken.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    routes: &'a Mutex<Routes>,
    /// Always there but while this is being dropped.
    guard: Option<MutexGuard<'a, Routes>>,
}

impl<'a> Locked<'a> {
    pub(super) fn new(routes: &'a Mutex<Routes>) -> Self {
        Self { routes, guard: Some(unpoisoned(routes)) }
    }

    /// Sleeps until this waiter is woken, or for so long; or for no reason.
    pub(super) fn sleep(mut self, what: Waits, waiter: &Arc<Waiter>, limit: Option<Duration>) -> Self {
        if !self.woken.is_empty() {
            // Others first. What has changed meanwhile nobody would have woken this thread for.
            let routes = self.routes;
            drop(self);
            return Self::new(routes);
        }
        waiter.asleep.store(true, Ordering::Relaxed);
        self.waiters.push_back((what, waiter.clone()));
        let routes = self.routes;
        let guard = self.guard.take().expect("not dropped");
        let mut guard = match limit {
            Some(limit) => {
                waiter.condition.wait_timeout(guard, limit).unwrap_or_else(|poisoned| poisoned.into_inner()).0
            }
            None => waiter.condition.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner()),
        };
        waiter.asleep.store(false, Ordering::Relaxed);
        guard.waiters.retain(|(_, other)| !Arc::ptr_eq(other, waiter));
        Self { routes, guard: Some(guard) }
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
        if guard.woken.is_empty() {
            return;
        }
        let woken = std::mem::take(&mut guard.woken);
        drop(guard);
        woken.wake();
    }
}
