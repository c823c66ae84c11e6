//! A channel's end: what users hold.
//!
//! An end sends through one ring and receives through another; each direction has a [lock](crate::lock) of its own,
//! so that threads that send and threads that receive never meet. [`send`] and [`recv`] are the two directions;
//! [`reserve`] and [`in_place`] are the same without the copy. [`room`] is where sending waits, and [`row`] sends many
//! messages as one.

mod in_place;
mod recv;
mod reserve;
mod room;
mod row;
mod send;

pub use in_place::InPlace;
pub use reserve::{Reservation, SealedReservation};

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::counters::{Count, Counters};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::fork;
use crate::link::packet::{Packet, VERSION};
use crate::link::{Hello, Link, Parcel, Shareable};
use crate::lock::Lock;
use crate::options::Options;
use crate::peer::Peer;
use crate::ring::{CELL, Memory};
use crate::shm::{RING_OVERHEAD, RingMemory};
use crate::sys::{self, credentials, socket};
use recv::Rx;
use send::Tx;

/// Most memory that a ring may claim; larger is no ring of ours.
const MAX_RING: usize = RING_OVERHEAD + (1 << 30);

/// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one.
///
/// A message is bytes (0 to 256 MiB) and [handles](crate::Handle). Messages arrive whole, once, and in the order in
/// which they were sent. Once a send has returned success the message is in memory that outlives the sender: it is
/// received even if the sender is killed in the next instruction. When an end is dropped or its process dies, the
/// other receives what was sent before, and then [`Error::PeerClosed`].
///
/// An end may be used from many threads at once through `&self`. Several that receive take turns; each message goes
/// to one of them.
///
/// The peer is not trusted: whatever it writes or sends, calls on this end return in bounded time with a result or an
/// error.
///
/// # Cost
/// A message of up to 56 bytes is one cache line. In steady flow, while the peer is awake, sending and receiving make
/// no system call and allocate nothing (see [`Channel::recv_to`]).
#[derive(Debug)]
pub struct Channel {
    pub(crate) end: Box<End>,
}

/// On lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Padded<T>(T);

#[derive(Debug)]
pub(crate) struct End {
    tx: Padded<Lock<Tx>>,
    rx: Padded<Lock<Rx>>,
    link: Arc<Link>,
    /// The control block of the ring that this end writes, which never moves.
    out: RingMemory,
    /// That of the ring which it reads, once the peer's hello has come.
    inward: OnceLock<RingMemory>,
    options: Options,
    /// Longest message that goes through the ring.
    inline_limit: usize,
    /// Longest that does so without a further check.
    plain_limit: usize,
    /// The CPU we last told the peer of, plus 1.
    cpu: AtomicU32,
    /// Whether the last sleep for a message was a long one.
    long_sleep: AtomicBool,
    /// Whether the last sleep for room was.
    long_stall: AtomicBool,
    counts: Padded<Counts>,
}

/// As [`Counters`].
#[derive(Debug, Default)]
struct Counts {
    messages_sent: Count,
    bytes_sent: Count,
    send_wake_ups: Count,
    out_of_line: Count,
    pool_hits: Count,
    grown: Count,
    stalls: Count,
    send_sleeps: Count,
    messages_received: Count,
    bytes_received: Count,
    recv_wake_ups: Count,
    recv_sleeps: Count,
}

impl Channel {
    /// A channel with both ends in this process. It uses no descriptor and no shared memory.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Forked`].
    pub fn pair() -> Result<(Self, Self), Error> {
        Self::pair_with(&Options::new())
    }

    /// The same with options, for both ends.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Forked`].
    pub fn pair_with(options: &Options) -> Result<(Self, Self), Error> {
        fork::arm()?;
        let (link_a, link_b) = Link::local_pair();
        let (a, ring_a) = End::new(link_a, options)?;
        let (b, ring_b) = End::new(link_b, options)?;
        // Within a process there is nothing to shake hands about; the token only has to be the same on both sides.
        let hello = |ring: Shareable| Hello { token: 0, message_quota: options.queue_messages, ring: ring.mapping };
        a.open(hello(ring_b))?;
        b.open(hello(ring_a))?;
        Ok((Self { end: a }, Self { end: b }))
    }

    /// A channel over a connected `SOCK_SEQPACKET` Unix socket, to whoever does the same with the other end of it.
    ///
    /// The socket is the link from now on: nothing else may be sent or received on it, and it is closed on `exec`.
    /// Returns at once; what is sent before the peer has opened its side waits for it.
    ///
    /// # Errors
    /// [`Error::NotASocket`]; [`Error::System`] naming what the kernel refuses; [`Error::NoDescriptors`],
    /// [`Error::NoMemory`], [`Error::Forked`]; [`Error::PeerClosed`] if it has hung up already.
    pub fn over(socket: OwnedFd, options: &Options) -> Result<Self, Error> {
        fork::arm()?;
        if !socket::is_seqpacket(&socket) {
            return Err(Error::NotASocket);
        }
        socket::close_on_exec(&socket)?;
        let link = Link::over(socket, options.peer_memory)?;
        let (end, ring) = End::new(link, options)?;
        let hello =
            Packet::Hello { token: end.token()?, version: VERSION, features: 0, message_quota: options.queue_messages };
        end.link.send(&hello, Parcel::memory(&ring), Deadline::NOW)?;
        Ok(Self { end })
    }

    /// Whether a message is there to be received, or the end of the channel. Does not block; if another thread is
    /// receiving, it is false.
    pub fn is_readable(&self) -> bool {
        self.end.is_readable()
    }

    /// Whether a small message could be sent now. Does not block; if another thread waits for room, it is false.
    pub fn is_writable(&self) -> bool {
        self.end.is_writable()
    }

    /// Whether the other end is known to be gone: closed, or its process dead. What it sent before may still be
    /// there to be received. Makes one system call at most.
    pub fn is_peer_closed(&self) -> bool {
        self.end.is_peer_closed()
    }

    /// Who is at the other end, as the kernel says; `None` before it has opened its side. Within one process, this
    /// process.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::BadPeer`].
    pub fn peer(&self) -> Result<Option<Peer>, Error> {
        self.end.peer()
    }

    /// A descriptor for the process at the other end, which stays its own even when its number is used again, and
    /// can be polled for its death.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] before the peer has opened its side; [`Error::PeerClosed`] if it is gone;
    /// [`Error::System`] where the kernel has no pidfds.
    pub fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        self.end.peer_pidfd()
    }

    /// What this end has done so far. Costs a few loads.
    pub fn counters(&self) -> Counters {
        let counts = &self.end.counts.0;
        Counters {
            messages_sent: counts.messages_sent.get(),
            bytes_sent: counts.bytes_sent.get(),
            messages_received: counts.messages_received.get(),
            bytes_received: counts.bytes_received.get(),
            wake_ups: counts.send_wake_ups.get() + counts.recv_wake_ups.get(),
            sleeps: counts.send_sleeps.get() + counts.recv_sleeps.get(),
            out_of_line: counts.out_of_line.get(),
            pool_hits: counts.pool_hits.get(),
            grown: counts.grown.get(),
            stalls: counts.stalls.get(),
        }
    }
}

impl End {
    fn new(link: Link, options: &Options) -> Result<(Box<Self>, Shareable), Error> {
        let ring = link.io().memory("strait-ring", RING_OVERHEAD + options.ring_cells * CELL)?;
        let out = RingMemory::new(ring.mapping.clone()).expect("a ring of a size that options allow");
        let token = if link.is_local() { 0 } else { sys::random_token()? };
        let end = Self {
            tx: Padded(Lock::new(Tx::new(out.clone(), token))),
            rx: Padded(Lock::new(Rx::new())),
            link: Arc::new(link),
            out,
            inward: OnceLock::new(),
            options: *options,
            inline_limit: options.inline_limit(),
            plain_limit: options.inline_limit().min(options.max_message),
            cpu: AtomicU32::new(0),
            long_sleep: AtomicBool::new(false),
            long_stall: AtomicBool::new(false),
            counts: Padded(Counts::default()),
        };
        end.publish_cpu();
        Ok((Box::new(end), ring))
    }

    /// What names our direction to the peer.
    fn token(&self) -> Result<u128, Error> {
        Ok(self.tx.0.lock(Deadline::NOW)?.token())
    }

    fn open(&self, hello: Hello) -> Result<(), Error> {
        let mut rx = self.rx.0.lock(Deadline::NEVER)?;
        self.open_locked(&mut rx, hello)
    }

    fn open_locked(&self, rx: &mut Rx, hello: Hello) -> Result<(), Error> {
        if hello.ring.len() > MAX_RING {
            return Err(Error::BadPeer("a ring larger than any"));
        }
        let ring = RingMemory::new(hello.ring).ok_or(Error::BadPeer("a ring of impossible size"))?;
        let _ = self.inward.set(ring.clone());
        rx.open(ring, hello.token, hello.message_quota);
        Ok(())
    }

    /// Tells the peer on which CPU we run, if it changed: it spins for us only if that is another one than its own.
    #[inline]
    fn publish_cpu(&self) {
        let cpu = sys::current_cpu() + 1;
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
            self.out.cpu().store(cpu, Ordering::Relaxed);
        }
    }

    fn peer_cpu(&self) -> Option<&AtomicU32> {
        self.inward.get().map(Memory::cpu)
    }

    fn peer(&self) -> Result<Option<Peer>, Error> {
        fork::check()?;
        if self.link.is_local() {
            return Ok(Some(Peer {
                pid: Some(std::process::id()),
                uid: rustix::process::geteuid().as_raw(),
                gid: rustix::process::getegid().as_raw(),
            }));
        }
        if self.link.peer().is_none() {
            // Takes in the peer's hello, if it has come; nothing is asked for.
            self.link.fetch(|_| None::<()>)?;
        }
        Ok(self.link.peer())
    }

    fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        let peer = self.peer()?.ok_or(Error::WouldBlock)?;
        // The socket's own answer is fixed when a pair is made, so for a spawned child it is the parent. Then its number
        // is what there is, and the link says that its process lived after we asked.
        if let Some(socket) = self.link.io().socket()
            && credentials::of_socket(socket)?.pid == peer.pid
            && let Ok(fd) = credentials::pidfd_of_socket(socket)
        {
            return Ok(fd);
        }
        let fd = sys::pidfd_open(peer.pid.ok_or(Error::WouldBlock)?)?;
        self.link.probe();
        if self.link.is_down() { Err(self.link.reason()) } else { Ok(fd) }
    }
}

impl Drop for End {
    /// Closes the end: the peer receives what was sent, and then *peer closed*; what it sent and was not received is
    /// dropped, handles and all. Never blocks.
    fn drop(&mut self) {
        // The parent's end is not this child's to close.
        if fork::in_child() {
            return;
        }
        // By value, not by the locks: a view that was leaked holds its lock for ever.
        let mut tx = self.tx.0.take(Tx::new(self.out.clone(), 0));
        let mut rx = self.rx.0.take(Rx::new());
        self.close_tx(&mut tx);
        self.close_rx(&mut rx);
    }
}
