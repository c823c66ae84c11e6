//! Ports: queues of packets, which programs put there, and waits that end.
//!
//! A port of which a handle is written into a channel goes on as a port of several processes: packets of programs go through
//! a pair of sockets that all of them have ([`shared`]), each to one who waits, wherever. The packet of a wait comes to the
//! process that began it.

mod shared;

use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use strait::bindings::PerProcess;

use crate::abi::*;
use crate::channel::wire::carrier;
use crate::hub::{self, Rung};
use crate::koid;
use crate::status::{Result, Status};
use crate::time::{self, Deadline};
use crate::unpoisoned;
use crate::waiter::Waiter;
use shared::{Identity, Shared};

/// Packets of programs that a port holds at most.
const MAX_USER_PACKETS: usize = 4096;

/// A port.
#[derive(Debug)]
pub(crate) struct Port {
    koid: zx_koid_t,
    handles: AtomicUsize,
    me: Weak<Self>,
    inner: Mutex<Inner>,
    /// Once other processes may have it too.
    shared: OnceLock<Shared>,
}

#[derive(Debug, Default)]
struct Inner {
    queue: VecDeque<Queued>,
    /// Of those, packets that programs put there.
    users: usize,
    /// Waits of which a packet will come, by number.
    waits: HashMap<u64, Wait>,
    waiters: VecDeque<Arc<Waiter>>,
    /// The number of the bell, if the hub listens for what comes of other processes.
    listens: Option<u64>,
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
        Self(Port::new(koid::next()))
    }

    pub(crate) fn shared(&self) -> Arc<Port> {
        self.0.clone()
    }

    pub(crate) fn koid(&self) -> zx_koid_t {
        self.0.koid
    }

    pub(crate) fn handles(&self) -> usize {
        self.0.handles.load(Ordering::Relaxed)
    }

    /// What another process needs to have this port too.
    pub(crate) fn pack(&self) -> Result<strait::Channel> {
        carrier(self.0.share()?.cargo()?)
    }

    /// One that has arrived.
    pub(crate) fn unpack(koid: zx_koid_t, cargo: Vec<OwnedFd>) -> Result<Self> {
        let shared = Shared::received(cargo)?;
        let identity = shared.identity();
        let mut here = unpoisoned(HERE.get());
        let here = here.get_or_insert_default();
        // It is here already; unless its last handle is just being closed.
        if let Some(port) = here.get(&identity).and_then(Weak::upgrade)
            && port.take_handle()
        {
            return Ok(Self(port));
        }
        let port = Port::new(koid);
        let _ = port.shared.set(shared);
        here.insert(identity, Arc::downgrade(&port));
        Ok(Self(port))
    }
}

/// The ports here that are shared.
static HERE: PerProcess<Mutex<Option<ByIdentity>>> = PerProcess::new(Mutex::default);

type ByIdentity = HashMap<Identity, Weak<Port>>;

impl Clone for PortHandle {
    fn clone(&self) -> Self {
        self.0.take_handle();
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
            if let Some(shared) = self.0.shared.get() {
                if let Some(number) = inner.listens.take() {
                    hub::silence_bell(shared.bell(), number);
                }
                drop(inner);
                let mut here = unpoisoned(HERE.get());
                if let Some(here) = here.as_mut()
                    && here.get(&shared.identity()).is_some_and(|port| std::ptr::eq(port.as_ptr(), &*self.0))
                {
                    here.remove(&shared.identity());
                }
            }
        }
    }
}

impl Rung for Port {
    fn rung(&self) {
        let mut inner = unpoisoned(&self.inner);
        if let Some(waiter) = inner.waiters.pop_front() {
            waiter.wake();
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

    /// Drops packets with this key: of waits for this handle; without a handle all. How many.
    fn drop_packets(&mut self, key: u64, source: Option<zx_handle_t>) -> usize {
        let before = self.queue.len();
        self.queue.retain(|queued| queued.packet.key != key || (source.is_some() && queued.source != source));
        self.users = self.queue.iter().filter(|queued| queued.source.is_none()).count();
        before - self.queue.len()
    }
}

impl Port {
    fn new(koid: zx_koid_t) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            koid,
            handles: AtomicUsize::new(1),
            me: me.clone(),
            inner: Mutex::default(),
            shared: OnceLock::new(),
        })
    }

    /// One handle more, unless the last one is gone.
    fn take_handle(&self) -> bool {
        let more = |count| if count == 0 { None } else { Some(count + 1) };
        self.handles.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Lets other processes have it too: from here on packets of programs go through sockets.
    fn share(&self) -> Result<&Shared> {
        let mut inner = unpoisoned(&self.inner);
        if let Some(shared) = self.shared.get() {
            return Ok(shared);
        }
        let shared = Shared::new()?;
        // What is there already goes along, if there is room for all of it; otherwise it stays, and comes first here.
        if inner.users <= shared::ROOM {
            let mut sent = 0;
            inner.queue.retain(|queued| {
                let goes = queued.source.is_none() && shared.send(&queued.packet).is_ok();
                sent += usize::from(goes);
                !goes
            });
            inner.users -= sent;
        }
        unpoisoned(HERE.get()).get_or_insert_default().insert(shared.identity(), self.me.clone());
        let _ = self.shared.set(shared);
        // Threads that wait have to listen from now on.
        inner.waiters.drain(..).for_each(|waiter| waiter.wake());
        Ok(self.shared.get().expect("it was set just now"))
    }

    /// Has the hub listen for packets of other processes.
    fn listen(&self, inner: &mut Inner) -> Result<()> {
        if let Some(shared) = self.shared.get()
            && inner.listens.is_none()
        {
            inner.listens = Some(hub::listen_to_bell(shared.bell(), self.me.clone())?);
        }
        Ok(())
    }

    /// The next packet, if there is one.
    fn take(&self, inner: &mut Inner) -> Option<zx_port_packet_t> {
        if let Some(queued) = inner.queue.pop_front() {
            inner.users -= usize::from(queued.source.is_none());
            return Some(queued.packet);
        }
        let packet = self.shared.get()?.take()?;
        // An arrival wakes one thread; there may be more than one packet.
        if let Some(waiter) = inner.waiters.pop_front() {
            waiter.wake();
        }
        Some(packet)
    }

    /// Queues a packet of the program's.
    pub(crate) fn queue(&self, packet: &zx_port_packet_t) -> Result<()> {
        let mut inner = unpoisoned(&self.inner);
        if let Some(shared) = self.shared.get() {
            shared.send(&zx_port_packet_t { type_: ZX_PKT_TYPE_USER, ..*packet })?;
            // Threads here need not wait until they hear of it.
            if let Some(waiter) = inner.waiters.pop_front() {
                waiter.wake();
            }
            return Ok(());
        }
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
        let (mut polled, mut slept) = (false, false);
        loop {
            let waiter = {
                let mut inner = unpoisoned(&self.inner);
                if let Some(packet) = self.take(&mut inner) {
                    return Ok(packet);
                }
                if inner.closed {
                    // Who has not slept is in the same place as who comes after the port was closed.
                    return Err(if slept { Status::CANCELED } else { Status::BAD_HANDLE });
                }
                if polled && deadline.has_passed() {
                    return Err(Status::TIMED_OUT);
                }
                if !polled {
                    None
                } else {
                    self.listen(&mut inner)?;
                    // What came before that was not heard.
                    if let Some(packet) = self.take(&mut inner) {
                        return Ok(packet);
                    }
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
            slept = true;
            let mut inner = unpoisoned(&self.inner);
            inner.waiters.retain(|other| !Arc::ptr_eq(other, &waiter));
        }
    }

    /// Ends the waits for this handle with this key, and takes back their packets; without a handle all waits with this key, and
    /// the program's own packets with it too.
    ///
    /// # Errors
    /// `NOT_FOUND` if there was nothing of that.
    pub(crate) fn cancel(&self, key: u64, source: Option<zx_handle_t>) -> Result<Vec<(u64, zx_handle_t)>> {
        let mut inner = unpoisoned(&self.inner);
        let packets =
            inner.drop_packets(key, source) + if source.is_none() { self.drop_shared(&mut inner, key) } else { 0 };
        let matches = |of: zx_handle_t| source.is_none_or(|source| source == of);
        let waits: Vec<_> = inner
            .waits
            .extract_if(|_, wait| wait.key == key && matches(wait.source))
            .map(|(id, wait)| (id, wait.source))
            .collect();
        if packets == 0 && waits.is_empty() { Err(Status::NOT_FOUND) } else { Ok(waits) }
    }

    /// Drops packets with this key that lie in the sockets of a port of several processes. How many. The others are sent once
    /// more, in their order; those for which another process has taken the room come first here.
    fn drop_shared(&self, inner: &mut Inner, key: u64) -> usize {
        let Some(shared) = self.shared.get() else { return 0 };
        let all: Vec<_> = std::iter::from_fn(|| shared.take()).take(MAX_USER_PACKETS).collect();
        let count = all.len();
        let kept: Vec<_> = all.into_iter().filter(|packet| packet.key != key).collect();
        let dropped = count - kept.len();
        let mut is_full = false;
        for packet in kept {
            is_full = is_full || shared.send(&packet).is_err();
            if is_full {
                inner.users += 1;
                inner.push(Queued { packet, source: None });
            }
        }
        dropped
    }
}
