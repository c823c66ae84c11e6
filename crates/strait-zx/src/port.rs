//! Ports: queues of packets from programs, and from waits that end.
//!
//! When a handle of a port is written into a channel, several processes have the port. Packets of programs then pass
//! through a pair of sockets that all these processes have ([`shared`]), each packet to one waiting thread, in any
//! process. The packet of a wait comes to the process that began the wait.

mod shared;

use std::collections::{HashMap, VecDeque};
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
pub(crate) use shared::Arrived;
use shared::{Identity, Shared};

/// Maximum number of packets of programs in a port.
const MAX_USER_PACKETS: usize = 4096;

/// A port (a queue of packets) in one process.
#[derive(Debug)]
pub(crate) struct Port {
    koid: zx_koid_t,
    /// Number of handles of the port in this process; at 0 the port is closed here.
    handles: AtomicUsize,
    me: Weak<Self>,
    inner: Mutex<Inner>,
    /// The shared part; set once other processes may have the port too.
    shared: OnceLock<Shared>,
}

/// The state of a port under its lock.
#[derive(Debug, Default)]
struct Inner {
    /// The packets, in the order of reading.
    queue: VecDeque<Queued>,
    /// Number of packets in `queue` from programs.
    users: usize,
    /// Number of handles of this process in messages that are being sent.
    leaving: usize,
    /// The waits that queue packets, by number.
    waits: HashMap<u64, Wait>,
    /// The threads waiting for a packet.
    waiters: VecDeque<Arc<Waiter>>,
    /// The number under which the hub watches for packets of other processes; `None` while the hub does not watch.
    listens: Option<u64>,
    /// Whether the last handle in this process was closed.
    closed: bool,
}

/// A packet in the queue.
#[derive(Debug)]
struct Queued {
    packet: zx_port_packet_t,
    /// The handle for which the wait was made, if a wait queued the packet; `None` for packets of programs.
    source: Option<zx_handle_t>,
}

/// A wait that queues a packet at its end.
#[derive(Clone, Copy, Debug)]
struct Wait {
    key: u64,
    source: zx_handle_t,
}

/// A port, as held by a handle. The last handle in this process closes the port for the process.
pub(crate) struct PortHandle {
    port: Arc<Port>,
    /// Whether the handle is counted in [`Inner::leaving`].
    leaves: bool,
}

impl PortHandle {
    pub(crate) fn new() -> Self {
        Self::of(Port::new(koid::next()))
    }

    /// Makes a handle that is counted in [`Port::handles`] already.
    fn of(port: Arc<Port>) -> Self {
        Self { port, leaves: false }
    }

    /// Returns the port.
    pub(crate) fn shared(&self) -> Arc<Port> {
        self.port.clone()
    }

    pub(crate) fn koid(&self) -> zx_koid_t {
        self.port.koid
    }

    /// Returns the number of handles of the port in this process.
    pub(crate) fn handles(&self) -> usize {
        self.port.handles.load(Ordering::Relaxed)
    }

    /// Returns a carrier with everything needed for the port in another process. If the handle `moves`, the caller
    /// drops the handle after sending the carrier, or calls [`stay`](Self::stay) if the carrier was not sent.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if the last handle of this process moves, and packets of programs would be lost.
    pub(crate) fn pack(&mut self, moves: bool) -> Result<strait::Channel> {
        let shared = self.port.share(moves)?;
        self.leaves = moves;
        let carrier = shared.cargo().and_then(carrier);
        if carrier.is_err() {
            self.stay();
        }
        carrier
    }

    /// Notes that the handle was not sent after all.
    pub(crate) fn stay(&mut self) {
        if std::mem::take(&mut self.leaves) {
            unpoisoned(&self.port.inner).leaving -= 1;
        }
    }

    /// Makes a handle of a port that has arrived in a message.
    pub(crate) fn unpack(koid: zx_koid_t, arrived: Arrived) -> Self {
        let identity = arrived.identity;
        let mut here = unpoisoned(HERE.get());
        let here = here.get_or_insert_default();
        // The process may have the port already, unless the last handle is just being closed.
        if let Some(port) = here.get(&identity).and_then(Weak::upgrade)
            && port.take_handle()
        {
            return Self::of(port);
        }
        let port = Port::new(koid);
        let _ = port.shared.set(arrived.claim());
        here.insert(identity, Arc::downgrade(&port));
        Self::of(port)
    }
}

/// The shared ports in this process, by identity.
static HERE: PerProcess<Mutex<Option<ByIdentity>>> = PerProcess::new(Mutex::default);

type ByIdentity = HashMap<Identity, Weak<Port>>;

impl Clone for PortHandle {
    fn clone(&self) -> Self {
        self.port.take_handle();
        Self::of(self.port.clone())
    }
}

impl Drop for PortHandle {
    fn drop(&mut self) {
        let port = &self.port;
        let is_last = port.handles.fetch_sub(1, Ordering::AcqRel) == 1;
        if self.leaves {
            // `handles` falls first, so another thread never counts too many handles that stay.
            unpoisoned(&port.inner).leaving -= 1;
        }
        if is_last {
            let mut inner = unpoisoned(&port.inner);
            inner.closed = true;
            if let Some(shared) = port.shared.get()
                && port.is_here(shared)
            {
                // Other processes get the packets of programs for which there is room.
                let users = inner.queue.iter().filter(|queued| queued.source.is_none());
                let _ = users.map(|queued| shared.send(&queued.packet)).find(Result::is_err);
            }
            inner.queue.clear();
            inner.waits.clear();
            inner.waiters.drain(..).for_each(|waiter| waiter.wake());
            if let Some(shared) = port.shared.get() {
                if let Some(number) = inner.listens.take() {
                    hub::silence_bell(shared.bell(), number);
                }
                drop(inner);
                let mut here = unpoisoned(HERE.get());
                if let Some(here) = here.as_mut()
                    && here.get(&shared.identity()).is_some_and(|here| std::ptr::eq(here.as_ptr(), &**port))
                {
                    here.remove(&shared.identity());
                }
            }
        }
    }
}

impl Port {
    /// Returns whether this process knows the port by the identity of `shared`, its shared part. The child of a fork
    /// does not know the ports of its parent, whose packets it must not send.
    fn is_here(&self, shared: &Shared) -> bool {
        let here = unpoisoned(HERE.get());
        let known = here.as_ref().and_then(|here| here.get(&shared.identity()));
        known.is_some_and(|known| std::ptr::eq(known.as_ptr(), self))
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
    /// Queues a packet, and wakes a thread.
    fn push(&mut self, queued: Queued) {
        self.queue.push_back(queued);
        if let Some(waiter) = self.waiters.pop_front() {
            waiter.wake();
        }
    }

    /// Drops packets with this key: packets of waits for the handle `source`; without a handle, all packets. Returns
    /// their number.
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

    /// Counts one more handle. Returns `false` if the port was closed already.
    fn take_handle(&self) -> bool {
        let more = |count| if count == 0 { None } else { Some(count + 1) };
        self.handles.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).is_ok()
    }

    /// Makes the shared part, so that other processes can have the port too. From now on packets of programs go through
    /// sockets. If a handle `moves` to another process, counts the handle in [`Inner::leaving`].
    ///
    /// # Errors
    /// `SHOULD_WAIT` if the last handle moves, and packets of programs stay here for lack of room in the sockets.
    fn share(&self, moves: bool) -> Result<&Shared> {
        let mut inner = unpoisoned(&self.inner);
        let is_last = moves && inner.leaving + 1 >= self.handles.load(Ordering::Acquire);
        if self.shared.get().is_none() {
            let mut shared = Shared::new()?;
            // Queued packets of programs are sent through the sockets if there is room for all. Otherwise all stay
            // here, and are taken first.
            let mut users = inner.queue.iter().filter(|queued| queued.source.is_none());
            if inner.users <= shared::ROOM && users.all(|queued| shared.send(&queued.packet).is_ok()) {
                inner.queue.retain(|queued| queued.source.is_some());
                inner.users = 0;
            } else if is_last {
                return Err(Status::SHOULD_WAIT);
            } else {
                // Drops the packets that were sent, with their sockets.
                shared = Shared::new()?;
            }
            unpoisoned(HERE.get()).get_or_insert_default().insert(shared.identity(), self.me.clone());
            let _ = self.shared.set(shared);
            // Threads that wait have to register with the hub from now on.
            inner.waiters.drain(..).for_each(|waiter| waiter.wake());
        }
        if is_last && inner.users > 0 {
            return Err(Status::SHOULD_WAIT);
        }
        inner.leaving += usize::from(moves);
        Ok(self.shared.get().expect("it was set just now"))
    }

    /// Registers with the hub for packets of other processes.
    fn listen(&self, inner: &mut Inner) -> Result<()> {
        if let Some(shared) = self.shared.get()
            && inner.listens.is_none()
        {
            inner.listens = Some(hub::listen_to_bell(shared.bell(), self.me.clone())?);
        }
        Ok(())
    }

    /// Takes the next packet, if any.
    fn take(&self, inner: &mut Inner) -> Option<zx_port_packet_t> {
        if let Some(queued) = inner.queue.pop_front() {
            inner.users -= usize::from(queued.source.is_none());
            return Some(queued.packet);
        }
        let packet = self.shared.get()?.take()?;
        // An arrival wakes one thread, but there may be more packets.
        if let Some(waiter) = inner.waiters.pop_front() {
            waiter.wake();
        }
        Some(packet)
    }

    /// Queues a packet of a program.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if there is no room.
    pub(crate) fn queue(&self, packet: &zx_port_packet_t) -> Result<()> {
        let mut inner = unpoisoned(&self.inner);
        if let Some(shared) = self.shared.get() {
            shared.send(&zx_port_packet_t { type_: ZX_PKT_TYPE_USER, ..*packet })?;
            // Threads of this process are woken at once, without the hub.
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

    /// Registers a wait that will queue a packet here.
    pub(crate) fn expect(&self, id: u64, key: u64, source: zx_handle_t) {
        let mut inner = unpoisoned(&self.inner);
        if !inner.closed {
            inner.waits.insert(id, Wait { key, source });
        }
    }

    /// Removes a wait without queueing a packet.
    pub(crate) fn forget(&self, id: u64) {
        unpoisoned(&self.inner).waits.remove(&id);
    }

    /// Ends a wait, and queues the wait's packet.
    pub(crate) fn complete(&self, id: u64, trigger: zx_signals_t, observed: zx_signals_t, options: u32) {
        let mut inner = unpoisoned(&self.inner);
        // The wait may have been cancelled meanwhile.
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
    ///
    /// # Errors
    /// `TIMED_OUT`; `CANCELED` if the port was closed during the wait; `BAD_HANDLE` if it was closed before;
    /// `NO_RESOURCES` or `NO_MEMORY` if no thread could notice the packets of other processes.
    pub(crate) fn wait(&self, deadline: Deadline) -> Result<zx_port_packet_t> {
        let (mut polled, mut slept) = (false, false);
        loop {
            let waiter = {
                let mut inner = unpoisoned(&self.inner);
                if let Some(packet) = self.take(&mut inner) {
                    return Ok(packet);
                }
                if inner.closed {
                    // A thread that has not slept cannot distinguish a close during the call from a close before the
                    // call.
                    return Err(if slept { Status::CANCELED } else { Status::BAD_HANDLE });
                }
                if polled && deadline.has_passed() {
                    return Err(Status::TIMED_OUT);
                }
                if !polled {
                    None
                } else {
                    hub::prepare()?;
                    self.listen(&mut inner)?;
                    // Packets that came before the registration were not reported.
                    if let Some(packet) = self.take(&mut inner) {
                        return Ok(packet);
                    }
                    let waiter = Waiter::new();
                    inner.waiters.push_back(waiter.clone());
                    Some(waiter)
                }
            };
            let Some(waiter) = waiter else {
                // Handles changes that came while no thread watched.
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

    /// Ends the waits for the handle `source` with this key, and drops their packets. Without a handle, ends all
    /// waits with this key, and also drops packets of programs with this key. Returns the numbers and handles of the
    /// ended waits.
    ///
    /// # Errors
    /// `NOT_FOUND` if there was no such wait or packet.
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

    /// Drops packets with this key from the sockets of a shared port, and returns their number. The other packets are
    /// sent again in their order. Packets without room in the sockets stay in this process, and are taken first here.
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
