//! The lock of one direction of an end, between the threads of a process, with deadlines.
//!
//! Unlike with `std::sync::Mutex`, a thread can wait for this lock until a deadline. A thread that holds the lock for
//! longer than one copy of a message marks the lock as blocking. While the lock is marked, a call that must not block
//! fails at once.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::deadline::Deadline;
use crate::error::Error;
use crate::kept::Borrowed;
use crate::os::futex::{self, Scope};
use crate::wake::interrupt::Interruption;

const FREE: u32 = 0;
const HELD: u32 = 1;
/// State of the lock: a thread holds the lock, and other threads may sleep until it is free. Releasing the lock must
/// wake one of those threads.
const CONTENDED: u32 = 2;
/// State of the lock: a thread holds the lock, and the waiting threads have been woken to check for an interruption.
const WOKEN: u32 = 3;

/// How often a thread checks a lock that another thread holds, before sleeping. As a rule a lock is held for tens of
/// nanoseconds.
const SPINS: u32 = 100;

#[derive(Debug)]
pub(crate) struct Lock<T> {
    state: AtomicU32,
    /// How many times the holder of the lock has marked the lock as blocking. The holder does so while waiting for the
    /// peer, or while the program holds a view or a reservation.
    blocking: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: code reaches the value only through a guard, and only one guard exists at a time.
unsafe impl<T: Send> Sync for Lock<T> {}

impl<T> Lock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { state: AtomicU32::new(FREE), blocking: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Takes the lock. If another thread holds the lock for the short time of one copy of a message, waits for that
    /// thread. If the holder has marked the lock as blocking, takes the lock away from the holder at once.
    ///
    /// # Safety
    /// A holder that has marked the lock as blocking must never use its guard again.
    pub(crate) unsafe fn lock_or_seize(&self) -> Guard<'_, T> {
        self.lock(Deadline::NOW).unwrap_or(Guard { lock: self.into() })
    }

    /// Takes the lock and returns its guard if the lock is free; otherwise returns `None`. Never waits. A thread that
    /// holds another lock must use this function: two threads that wait for each other's locks would never go on.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.state.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).ok()?;
        Some(Guard { lock: self.into() })
    }

    /// Takes the lock. If another thread holds the lock, waits until the deadline.
    ///
    /// With [`Deadline::NOW`] the call still waits for a thread that holds the lock for the short time of one copy of a
    /// message. The call fails only if the holder has marked the lock as blocking.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] with [`Deadline::NOW`]; [`Error::TimedOut`] at any other deadline; [`Error::System`].
    #[inline]
    pub(crate) fn lock(&self, deadline: Deadline) -> Result<Guard<'_, T>, Error> {
        self.lock_unless(deadline, || Interruption::NONE)
    }

    /// Takes the lock. If another thread holds the lock, waits until the deadline or until `interruption` comes. After
    /// an interruption the call still waits for a holder that keeps the lock only for the copy of one message. But the
    /// call fails with [`Error::Interrupted`] or [`Error::Signalled`] if the holder has marked the lock as blocking.
    #[inline]
    pub(crate) fn lock_unless<'i>(
        &self,
        deadline: Deadline,
        interruption: impl FnOnce() -> Interruption<'i>,
    ) -> Result<Guard<'_, T>, Error> {
        match self.try_lock() {
            Some(guard) => Ok(guard),
            None => self.lock_slowly(deadline, interruption()),
        }
    }

    /// Wakes all threads that sleep on the lock: each checks whether its wait was interrupted.
    pub(crate) fn wake_waiters(&self) {
        // A thread that begins to sleep later checks for an interruption after its own exchange, and so sees everything
        // written before the exchange here.
        if self.state.compare_exchange(CONTENDED, WOKEN, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            futex::wake_all(&self.state, Scope::Private);
        }
    }

    #[cold]
    fn lock_slowly(&self, deadline: Deadline, interruption: Interruption<'_>) -> Result<Guard<'_, T>, Error> {
        let mut spins = 0;
        loop {
            if self.state.load(Ordering::Relaxed) == FREE
                && let Some(guard) = self.try_lock()
            {
                return Ok(guard);
            }
            let interrupted = interruption.has_come();
            if (deadline.is_now() || interrupted) && self.blocking.load(Ordering::Relaxed) > 0 {
                let interrupted = || interruption.check().err().unwrap_or(Error::Interrupted);
                return Err(if deadline.is_now() { Error::WouldBlock } else { interrupted() });
            }
            if spins < SPINS {
                spins += 1;
                std::hint::spin_loop();
            } else if deadline.is_now() || interrupted {
                std::thread::yield_now();
            } else if let Some(guard) = self.sleep(deadline, interruption)? {
                return Ok(guard);
            }
        }
    }

    /// Sleeps until the lock is free, takes the lock and returns its guard. Returns `None` if the wait was interrupted.
    ///
    /// # Errors
    /// [`Error::TimedOut`] at the deadline; [`Error::System`].
    fn sleep(&self, deadline: Deadline, interruption: Interruption<'_>) -> Result<Option<Guard<'_, T>>, Error> {
        while self.state.swap(CONTENDED, Ordering::SeqCst) != FREE {
            if interruption.has_come() {
                return Ok(None);
            }
            if deadline.has_passed() {
                return Err(Error::TimedOut);
            }
            let limit = deadline.remaining(std::time::Instant::now());
            futex::wait(&self.state, CONTENDED, Scope::Private, limit.map(|d| d.max(Duration::from_micros(1))))?;
        }
        Ok(Some(Guard { lock: self.into() }))
    }
}

/// A guard of a held lock. The thread that holds the lock reaches the locked value through the guard. Dropping the
/// guard releases the lock.
#[derive(Debug)]
pub(crate) struct Guard<'a, T> {
    lock: Borrowed<'a, Lock<T>>,
}

impl<T> Guard<'_, T> {
    /// Marks the lock as blocking: from now on the holder keeps the lock while waiting for the peer, or while the
    /// program holds a view or a reservation. Other threads that want the lock then fail at their deadline, or at once
    /// with [`Deadline::NOW`].
    pub(crate) fn mark_blocking(&self) {
        self.lock.blocking.store(self.lock.blocking.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Marks the lock as blocking, because its holder is about to wait until `deadline`. Does nothing with
    /// [`Deadline::NOW`]: a holder that does not wait delays no other thread.
    pub(crate) fn mark_blocking_until(&self, deadline: Deadline) {
        if !deadline.is_now() {
            self.mark_blocking();
        }
    }

    /// Takes back one call of [`Guard::mark_blocking_until`] with the same deadline.
    pub(crate) fn unmark_blocking_until(&self, deadline: Deadline) {
        if !deadline.is_now() {
            self.unmark_blocking();
        }
    }

    /// Takes back one call of [`Guard::mark_blocking`]. Dropping the guard takes back all calls.
    pub(crate) fn unmark_blocking(&self) {
        self.lock.blocking.store(self.lock.blocking.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: only one guard exists at a time, and the result borrows the guard.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: only one guard exists at a time, and the result borrows the guard mutably.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.lock.blocking.load(Ordering::Relaxed) > 0 {
            self.lock.blocking.store(0, Ordering::Relaxed);
        }
        if self.lock.state.swap(FREE, Ordering::Release) >= CONTENDED {
            let _ = futex::wake_one(&self.lock.state, Scope::Private);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::OnceLock;
    use std::time::Instant;

    #[test]
    fn threads_take_turns() {
        let lock = Lock::new(0u64);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock.lock(Deadline::NEVER).unwrap() += 1;
                    }
                });
            }
        });
        assert_eq!(*lock.lock(Deadline::NOW).unwrap(), 40_000);
    }

    #[test]
    fn a_blocking_holder_makes_others_time_out_or_fail_at_once() {
        static LOCK: OnceLock<Lock<()>> = OnceLock::new();
        let lock = LOCK.get_or_init(|| Lock::new(()));
        let held = lock.lock(Deadline::NEVER).unwrap();
        held.mark_blocking();
        let (done, ended) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let at_once = lock.lock(Deadline::NOW).err();
            let begin = Instant::now();
            let later = lock.lock(Deadline::after(Duration::from_millis(20))).err();
            let _ = done.send((at_once, later, begin.elapsed()));
        });
        // The threads have no scope: a thread that waited beyond its deadline would keep the scope from ending.
        let (at_once, later, took) = ended.recv_timeout(Duration::from_secs(60)).expect("both calls end");
        assert_eq!((at_once, later), (Some(Error::WouldBlock), Some(Error::TimedOut)));
        assert!(took >= Duration::from_millis(20));
    }
}
