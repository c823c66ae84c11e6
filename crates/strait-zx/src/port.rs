//! Ports: queues of packets, which programs put there, and waits that end.

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crate::abi::*;
use crate::hub;
use crate::koid;
use crate::status::{Result, Status};
use crate::time::{self, Deadline};
use crate::unpoisoned;
use crate::waiter::Waiter;

/// Packets of programs that a port holds at most.
const MAX_USER_PACKETS: usize = 4096;

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    koid: zx_koid_t,
    handles: AtomicUsize,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Queued>,
    /// Of those, packets that programs put there.
    users: usize,
    /// Waits of which a packet will come, by number.
    waits: HashMap<u64, Wait>,
    waiters: VecDeque<Arc<Waiter>>,
    closed: bool,
}

#[derive(Debug)]
struct Queued {
    packet: zx_port_packet_t,
    /// The handle that was waited for, if it comes of a wait.
    source: Option<zx_handle_t>,
}

#[derive(Clone, Copy, Debug)]
struct Wait {
    key: u64,
    source: zx_handle_t,
}

/// A port as a handle holds it: with the last of them it is closed.
pub(crate) struct PortHandle(Arc<Port>);

impl PortHandle {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Port { koid: koid::next(), handles: AtomicUsize::new(1), inner: Mutex::default() }))
    }

    pub(crate) fn shared(&self) -> Arc<Port> {
        self.0.clone()
    }

    pub(crate) fn koid(&self) -> zx_koid_t {
        self.0.koid
    }

    /// What another process needs to have this port too.
    pub(crate) fn pack(&self) -> Result<strait::Channel> {
        Err(Status::NOT_SUPPORTED)
    }

    /// One that has arrived.
    pub(crate) fn unpack(_koid: zx_koid_t, _cargo: Vec<OwnedFd>) -> Result<Self> {
        Err(Status::PEER_CLOSED)
    }
}

impl Clone for PortHandle {
    fn clone(&self) -> Self {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        Self(self.0.clone())
    }
}

impl Drop for PortHandle {
    fn drop(&mut self) {
        if self.0.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            let mut inner = unpoisoned(&self.0.inner);
            inner.closed = true;
            inner.queue.clear();
            inner.waits.clear();
            inner.waiters.drain(..).for_each(|waiter| waiter.wake());
        }
    }
}

impl Inner {
    fn push(&mut self, queued: Queued) {
        self.queue.push_back(queued);
        if let Some(waiter) = self.waiters.pop_front() {
            waiter.wake();
        }
    }
}

impl Port {
    /// Queues a packet of the program's.
    pub(crate) fn queue(&self, packet: &zx_port_packet_t) -> Result<()> {
        let mut inner = unpoisoned(&self.inner);
        if inner.users >= MAX_USER_PACKETS {
            return Err(Status::SHOULD_WAIT);
        }
        inner.users += 1;
        inner.push(Queued { packet: zx_port_packet_t { type_: ZX_PKT_TYPE_USER, ..*packet }, source: None });
        Ok(())
    }

    /// Notes a wait whose packet is to come here.
    pub(crate) fn expect(&self, id: u64, key: u64, source: zx_handle_t) {
        let mut inner = unpoisoned(&self.inner);
        if !inner.closed {
            inner.waits.insert(id, Wait { key, source });
        }
    }

    /// The wait will bring no packet.
    pub(crate) fn forget(&self, id: u64) {
        unpoisoned(&self.inner).waits.remove(&id);
    }

    /// The wait is over: its packet.
    pub(crate) fn complete(&self, id: u64, trigger: zx_signals_t, observed: zx_signals_t, options: u32) {
        let mut inner = unpoisoned(&self.inner);
        // Unless it was canceled meanwhile.
        let Some(wait) = inner.waits.remove(&id) else { return };
        let timestamp = match options {
            options if options & ZX_WAIT_ASYNC_TIMESTAMP != 0 => time::now(),
            options if options & ZX_WAIT_ASYNC_BOOT_TIMESTAMP != 0 => time::boot_now(),
            _ => 0,
        };
        inner.push(Queued {
            packet: zx_port_packet_t {
                key: wait.key,
                type_: ZX_PKT_TYPE_SIGNAL_ONE,
                status: 0,
                signal: zx_packet_signal_t { trigger, observed, count: 1, timestamp, reserved1: 0 },
            },
            source: Some(wait.source),
        });
    }

    /// Takes the next packet; waits for it until the deadline.
    pub(crate) fn wait(&self, deadline: Deadline) -> Result<zx_port_packet_t> {
        let mut polled = false;
        loop {
            let waiter = {
                let mut inner = unpoisoned(&self.inner);
                if let Some(queued) = inner.queue.pop_front() {
                    inner.users -= usize::from(queued.source.is_none());
                    return Ok(queued.packet);
                }
                if inner.closed {
                    return Err(Status::CANCELED);
                }
                if polled && deadline.has_passed() {
                    return Err(Status::TIMED_OUT);
                }
                if !polled {
                    None
                } else {
                    let waiter = Waiter::new();
                    inner.waiters.push_back(waiter.clone());
                    Some(waiter)
                }
            };
            let Some(waiter) = waiter else {
                // What has changed while nobody listened.
                hub::poll();
                polled = true;
                continue;
            };
            hub::block(&waiter, deadline);
            let mut inner = unpoisoned(&self.inner);
            inner.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
        }
    }

    /// Ends the waits for this handle with this key, and takes back their packets.
    ///
    /// # Errors
    /// `NOT_FOUND` if there was none.
    pub(crate) fn cancel(&self, key: u64, source: Option<zx_handle_t>) -> Result<Vec<(u64, zx_handle_t)>> {
        let matches = |of: zx_handle_t| source.is_none_or(|source| source == of);
        let mut inner = unpoisoned(&self.inner);
        let before = inner.queue.len();
        inner.queue.retain(|queued| !(queued.packet.key == key && queued.source.is_some_and(matches)));
        let packets = before - inner.queue.len();
        let waits: Vec<_> = inner
            .waits
            .extract_if(|_, wait| wait.key == key && matches(wait.source))
            .map(|(id, wait)| (id, wait.source))
            .collect();
        if packets == 0 && waits.is_empty() { Err(Status::NOT_FOUND) } else { Ok(waits) }
    }
}
