//! Observers: waits for the signals of an object, by threads and by ports.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::abi::{ZX_SIGNAL_HANDLE_CLOSED, ZX_WAIT_ASYNC_EDGE, zx_handle_t, zx_signals_t};
use crate::port::Port;
use crate::waiter::{Fired, Waiter};

/// A wait for signals of one object. The first awaited signal ends the wait.
#[derive(Debug)]
pub(crate) struct Observer {
    /// The number of the wait, unique in the process.
    pub(crate) id: u64,
    /// The handle of the wait. Closing this handle ends the wait.
    pub(crate) handle: zx_handle_t,
    /// The awaited signals.
    pub(crate) mask: zx_signals_t,
    /// The thread or port to inform.
    pub(crate) target: Target,
}

/// The receiver of the result of a wait.
#[derive(Debug)]
pub(crate) enum Target {
    /// A waiting thread; `item` is the index of the object in the thread's call.
    Thread { waiter: Arc<Waiter>, item: usize },
    /// A port that gets a packet, with the options of `zx_object_wait_async`.
    Port { port: Weak<Port>, options: u32 },
}

/// Returns a number for a wait, unique in this process.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Observer {
    /// Returns whether the wait ends only with a signal that is set after the wait began.
    pub(crate) fn waits_for_edge(&self) -> bool {
        matches!(self.target, Target::Port { options, .. } if options & ZX_WAIT_ASYNC_EDGE != 0)
    }

    /// Informs the target if one of the observer's signals is set. Returns whether the wait has ended.
    fn tell(&self, before: zx_signals_t, now: zx_signals_t) -> bool {
        if now & self.mask == 0 {
            return false;
        }
        match &self.target {
            Target::Thread { waiter, item } => {
                waiter.fire(Fired { item: *item, observed: now, canceled: false });
                true
            }
            Target::Port { options, .. } if options & ZX_WAIT_ASYNC_EDGE != 0 && now & !before & self.mask == 0 => {
                false
            }
            Target::Port { port, options } => {
                if let Some(port) = port.upgrade() {
                    port.complete(self.id, self.mask, now, *options);
                }
                true
            }
        }
    }

    /// Ends the wait because its handle was closed or sent away.
    fn cancel(self, now: zx_signals_t) {
        match self.target {
            Target::Thread { waiter, item } => {
                waiter.fire(Fired { item, observed: now | ZX_SIGNAL_HANDLE_CLOSED, canceled: true });
            }
            Target::Port { port, .. } => {
                if let Some(port) = port.upgrade() {
                    port.forget(self.id);
                }
            }
        }
    }
}

/// All observers of an object, the newest first, in the order in which Zircon's kernel informs observers.
#[derive(Debug, Default)]
pub(crate) struct Observers(VecDeque<Observer>);

impl Observers {
    /// Returns whether there is no observer.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether one of the observers is a port.
    pub(crate) fn have_ports(&self) -> bool {
        self.0.iter().any(|observer| matches!(observer.target, Target::Port { .. }))
    }

    /// Returns all signals with observers.
    pub(crate) fn wanted(&self) -> zx_signals_t {
        self.0.iter().fold(0, |all, observer| all | observer.mask)
    }

    /// Adds the newest observer.
    pub(crate) fn add(&mut self, observer: Observer) {
        self.0.push_front(observer);
    }

    /// Informs the observers about changed signals of the object, and removes observers whose wait has ended.
    pub(crate) fn tell(&mut self, before: zx_signals_t, now: zx_signals_t) {
        if !self.0.is_empty() {
            self.0.retain(|observer| !observer.tell(before, now));
        }
    }

    /// Ends all waits by a handle that is being closed or sent away.
    pub(crate) fn cancel(&mut self, handle: zx_handle_t, now: zx_signals_t) {
        let (canceled, others) = self.0.drain(..).partition(|observer| observer.handle == handle);
        self.0 = others;
        let canceled: VecDeque<_> = canceled;
        canceled.into_iter().for_each(|observer| observer.cancel(now));
    }

    /// Removes the observer with the given number.
    pub(crate) fn remove(&mut self, id: u64) {
        self.0.retain(|observer| observer.id != id);
    }
}
