//! Who wants to know of an object's signals: threads that wait, and ports.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use crate::abi::{ZX_SIGNAL_HANDLE_CLOSED, ZX_WAIT_ASYNC_EDGE, zx_handle_t, zx_signals_t};
use crate::port::Port;
use crate::waiter::{Fired, Waiter};

/// A wait for signals of one object. It ends with the first that it waits for.
#[derive(Debug)]
pub(crate) struct Observer {
    pub(crate) id: u64,
    /// The handle by which it was made: closing that ends it.
    pub(crate) handle: zx_handle_t,
    pub(crate) mask: zx_signals_t,
    pub(crate) target: Target,
}

#[derive(Debug)]
pub(crate) enum Target {
    Thread { waiter: Arc<Waiter>, item: usize },
    Port { port: Weak<Port>, options: u32 },
}

/// A number that no other wait of this process has.
pub(crate) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

impl Observer {
    /// Whether it does not want to be told of what is so already.
    pub(crate) fn waits_for_edge(&self) -> bool {
        matches!(self.target, Target::Port { options, .. } if options & ZX_WAIT_ASYNC_EDGE != 0)
    }

    /// Tells it of the object's signals, if they are what it waits for; then it has ended.
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

/// All that wait for one object, the newest first: in that order Zircon's kernel tells them.
#[derive(Debug, Default)]
pub(crate) struct Observers(VecDeque<Observer>);

impl Observers {
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one is a port.
    pub(crate) fn have_ports(&self) -> bool {
        self.0.iter().any(|observer| matches!(observer.target, Target::Port { .. }))
    }

    /// All that somebody waits for.
    pub(crate) fn wanted(&self) -> zx_signals_t {
        self.0.iter().fold(0, |all, observer| all | observer.mask)
    }

    pub(crate) fn add(&mut self, observer: Observer) {
        self.0.push_front(observer);
    }

    /// The object's signals have changed.
    pub(crate) fn tell(&mut self, before: zx_signals_t, now: zx_signals_t) {
        if !self.0.is_empty() {
            self.0.retain(|observer| !observer.tell(before, now));
        }
    }

    /// A handle of the object is closed.
    pub(crate) fn cancel(&mut self, handle: zx_handle_t, now: zx_signals_t) {
        let (canceled, others) = self.0.drain(..).partition(|observer| observer.handle == handle);
        self.0 = others;
        let canceled: VecDeque<_> = canceled;
        canceled.into_iter().for_each(|observer| observer.cancel(now));
    }

    /// Its wait is over.
    pub(crate) fn remove(&mut self, id: u64) {
        self.0.retain(|observer| observer.id != id);
    }
}
