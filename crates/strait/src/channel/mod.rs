//! A channel's end: what users hold.
//!
//! An end sends through one ring and receives through another; each direction has a [lock](crate::wake::lock) of its own,
//! so that threads that send and threads that receive never meet. [`sender`] and [`receiver`] have what the locks guard.
//!
//! To [send](sender), a message is staged in the ring, outside of it, or many as one, where there is room; what needs the kernel
//! goes in packets before it; and it is committed. To [receive](receiver) is to find what is at the front, and to get at its body.
//! [`views`] are the same without the copy, messages that grow, what was received and is sent on, and what stays within the process
//! and need not be bytes.
//!
//! Ends travel in messages: see [`transfer`]. [`watch`] is for wait sets, and [`interrupter`] ends waits.

mod counters;
pub(crate) mod handle;
mod interrupter;
pub(crate) mod message;
pub(crate) mod options;
pub(crate) mod origin;
pub(crate) mod pool;
mod receiver;
mod send_error;
mod sender;
mod transfer;
pub(crate) mod value;
mod views;
mod watch;

pub use counters::Counters;
pub use handle::Handle;
pub use interrupter::Interrupter;
pub(crate) use interrupter::Rouse;
pub use message::{Message, Outgoing, Received};
pub use options::Options;
pub use origin::Reported;
pub use receiver::{PutBackError, Status};
pub use send_error::{SendError, SendManyError};
pub(crate) use sender::Unrung;
pub use transfer::FuseError;
#[cfg(any(feature = "fuzzing", feature = "benchmarks"))]
pub(crate) use transfer::table_is_read;
pub(crate) use transfer::{Absent, Seen, close, close_absent};
pub use value::{Value, ValueError};
pub use views::{Draft, InPlace, Reservation, SealedReservation};

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::Lane;
use crate::lane::arena::SMALL;
use crate::link::packet::{Packet, VERSIONS};
use crate::link::{InUse, Link, Manner, NAMELESS, Parcel};
use crate::os;
use crate::os::fork::{self, Born};
use crate::os::socket::{self, credentials};
use crate::peer::Peer;
use crate::quota::{Usage, tell, told};
use crate::ring::Memory;
use crate::shm::{LaneMemory, Layout};
use crate::wait_set::Member;
use crate::wake::interrupt::Interrupts;
use crate::wake::lock::Lock;
use counters::Count;
use origin::Origin;
use receiver::Rx;
use sender::Tx;

/// Cells of the rings of a link's first channel, unless the options say otherwise. They stay in the nearest cache.
const FIRST_CELLS: usize = 128;

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
    pub(crate) end: Arc<End>,
}

#[derive(Debug)]
pub(crate) struct End {
    tx: Lock<Tx>,
    rx: Lock<Rx>,
    pub(crate) options: Arc<Options>,
    /// In no other process is anything of it used.
    pub(crate) born: Born,
    /// The CPU we last told the peer of, plus 1.
    cpu: AtomicU32,
    /// Whether the last sleep for a message was a long one.
    long_sleep: AtomicBool,
    /// Whether the last sleep for room was.
    long_stall: AtomicBool,
    /// Whether it was sent away, or closed.
    sent: AtomicBool,
    /// Whether it is in a wait set: then `member` says in which.
    in_set: AtomicBool,
    /// Whether its set is to look whenever something was received: the other end is closed, and a trap waits for nothing to
    /// be left.
    tells_of_each: AtomicBool,
    /// Whether the last receive failed with an error that passes: then its set waits for a moment before it tells again.
    has_stumbled: AtomicBool,
    member: Mutex<Option<Arc<Member>>>,
    counts: Counts,
}

/// As [`Counters`].
#[derive(Debug, Default)]
struct Counts {
    messages_sent: Count,
    bytes_sent: Count,
    messages_received: Count,
    bytes_received: Count,
    rare: OnceLock<Box<RareCounts>>,
}

/// Counts of what an idle channel has none of; and what most ends never have.
#[derive(Debug, Default)]
struct RareCounts {
    /// If somebody may interrupt its waits.
    interrupts: OnceLock<Box<Interrupts>>,
    send_wake_ups: Count,
    out_of_line: Count,
    pool_hits: Count,
    grown: Count,
    stalls: Count,
    send_sleeps: Count,
    recv_wake_ups: Count,
    recv_sleeps: Count,
    limits_reached: Count,
}

impl Counts {
    fn rare(&self) -> &RareCounts {
        self.rare.get_or_init(Default::default)
    }
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
        let own = Link::own();
        let (arena, name) = Link::make_lane(&own, &own, options.ring_cells.unwrap_or(SMALL))?;
        let options = options.shared();
        let end = |side| {
            let lane = Lane::in_arena(&arena, name, side, own.clone(), None).expect("it was made just now");
            lane.settle();
            Self { end: Arc::new(End::new(Arc::new(lane), &options)) }
        };
        Ok((end(0), end(1)))
    }

    /// A channel over a connected `SOCK_SEQPACKET` Unix socket, to whoever does the same with the other end of it.
    ///
    /// The socket is the link from now on: nothing else may be sent or received on it, and it is closed on `exec`.
    /// Returns at once; what is sent before the peer has opened its side waits for it.
    ///
    /// # Errors
    /// [`Error::NotASocket`]; [`Error::System`] naming what the kernel refuses; [`Error::NoDescriptors`],
    /// [`Error::NoMemory`], [`Error::Forked`]; [`Error::PeerClosed`] if it has hung up already without having opened its
    /// side.
    pub fn over(socket: OwnedFd, options: &Options) -> Result<Self, Error> {
        fork::arm()?;
        if !socket::is_seqpacket(&socket)? {
            return Err(Error::NotASocket);
        }
        socket::close_on_exec(&socket)?;
        let link = Link::over(socket, options.peer_memory)?;
        match link.greet(NAMELESS) {
            // It may have sent something before it went.
            Ok(()) | Err(Error::PeerClosed) => Self::first(link, options),
            Err(error) => Err(error),
        }
    }

    /// The channel to a listener that we connected to, once it has let us in.
    pub(crate) fn knock(
        socket: OwnedFd,
        server: u32,
        token: u128,
        options: &Options,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let link = Link::over(socket, options.peer_memory)?;
        // Who listens, before it is told a token; then who answers, which may be another process.
        let listens = credentials::of_socket(link.io().socket().expect("it has one"))?.uid;
        if ![server, 0].contains(&listens) {
            return Err(Error::WrongServer { uid: listens });
        }
        let knocked = link.greet(NAMELESS).and_then(|()| link.send_first(&Packet::Knock { token }, Parcel::NOTHING));
        knocked.map_err(|error| link.refusal_or(error))?;
        link.await_welcome(deadline)?;
        match link.peer() {
            Some(peer) if peer.uid == server => Self::first(link, options),
            Some(peer) => Err(Error::WrongServer { uid: peer.uid }),
            None => Err(Error::BadPeer("nobody that the kernel could name")),
        }
    }

    /// The channel to a process that knocked.
    pub(crate) fn let_in(socket: OwnedFd, peer: Peer, manner: Manner, options: &Options) -> Result<Self, Error> {
        let link = Link::known(socket, peer, manner, options.peer_memory)?;
        link.greet(NAMELESS)?;
        link.send_first(&Packet::Welcome, Parcel::NOTHING)?;
        Self::first(link, options)
    }

    pub(crate) fn end(&self) -> &Arc<End> {
        &self.end
    }

    /// The first channel of a link on which we have greeted.
    fn first(link: InUse, options: &Options) -> Result<Self, Error> {
        if !options.accept_descriptors {
            link.refuse_descriptors();
        }
        let cells = options.ring_cells.unwrap_or(FIRST_CELLS);
        let layout = Layout::FIRST;
        let memory = link.io().memory("strait-ring", layout.lane_size(cells))?;
        let out = LaneMemory::new(&memory.mapping, 0, cells, layout).expect("a lane that options allow").ring(0);
        let token = os::random_token()?;
        let lane = Lane::first(link.clone(), out, token);
        let lane = Arc::new(lane);
        let end = End::new(lane.clone(), &options.shared());
        let hello = Packet::Hello { token, version: VERSIONS.lowest.into(), features: 0, cells: cells as u64 };
        match link.send_first(&hello, Parcel::memory(&memory)) {
            // What was accepted is delivered, even if its sender has ended before we came.
            Err(Error::PeerClosed) if lane.open()? => {}
            sent => sent?,
        }
        Ok(Self { end: Arc::new(end) })
    }

    /// Whether a message is there to be received, or the end of the channel. Does not block; if another thread is
    /// receiving, it is false.
    pub fn is_readable(&self) -> bool {
        let readable = self.end.is_readable();
        tell();
        readable
    }

    /// Whether a small message, with one descriptor, could be sent now as far as the ring and the limits of this end's
    /// [`Options`] go. Does not block; if another thread waits for room, it is false.
    pub fn is_writable(&self) -> bool {
        let writable = self.end.is_writable();
        tell();
        writable
    }

    /// Whether the other end is known to be gone: closed, or its process dead. What it sent before may still be
    /// there to be received. Makes one system call at most.
    pub fn is_peer_closed(&self) -> bool {
        let closed = self.end.is_peer_closed();
        tell();
        closed
    }

    /// Who is at the other end, as the kernel says; `None` before it has opened its side. Within one process, this
    /// process.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::BadPeer`].
    pub fn peer(&self) -> Result<Option<Peer>, Error> {
        told(self.end.peer())
    }

    /// What this process holds for the process at the other end and for its user, and how often a limit of
    /// [`Limits`](crate::Limits) was reached. `None` before the peer has opened its side, and within one process.
    ///
    /// # Errors
    /// As [`Channel::peer`].
    pub fn peer_usage(&self) -> Result<Option<Usage>, Error> {
        let link = self.end.link_to_peer()?;
        let is_known = !link.is_local() && peer_of(&link)?.is_some();
        Ok(is_known.then(|| link.usage()))
    }

    /// A descriptor for the process at the other end, which stays its own even when its number is used again, and
    /// can be polled for its death.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] before the peer has opened its side; [`Error::PeerClosed`] if it is gone;
    /// [`Error::System`] where the kernel has no pidfds.
    pub fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        told(self.end.peer_pidfd())
    }

    /// Says that the process at the other end is a bad peer, for a reason of the user's: a message that makes no sense, say. The
    /// link to it ends, and with it every channel over it, as if it had broken the library's own protocol; within one process
    /// this channel alone. [`on_bad_peer`](crate::on_bad_peer) is told of it, with the reason; the peer sees *peer closed*.
    ///
    /// It is what [`Message::report_bad`](crate::Message::report_bad) does for a message of that process, and returns; and this
    /// channel ends, whatever that is.
    ///
    /// ```
    /// use strait::{Channel, Error};
    /// let (a, b) = Channel::pair()?;
    /// a.send(b"nonsense")?;
    /// if b.recv()?.bytes() != b"sense" {
    ///     b.report_bad("a request that makes no sense");
    /// }
    /// assert_eq!(b.recv().unwrap_err(), Error::BadPeer("a request that makes no sense"));
    /// # Ok::<(), Error>(())
    /// ```
    pub fn report_bad(&self, reason: &'static str) -> Reported {
        let reported = self.end.link_to_peer().map_or(Origin::NOWHERE, |link| Origin::of(&link)).report(reason);
        self.end.break_off(Error::BadPeer(reason));
        tell();
        reported
    }

    /// Moves the channel into memory that nobody has but this process and that of the other end.
    ///
    /// Whoever sent an end here has made the memory in which the channel goes on, and may still have it: so that process
    /// could disturb the channel after it gave the end away. This takes it out. Nothing is lost or reordered, and the other
    /// end notices nothing. Costs as much as sending an end; the channel is never worse for it.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] or [`Error::TimedOut`] while the other end is just being sent elsewhere, or while the other
    /// process has not opened its side; [`Error::NoMemory`], [`Error::NoDescriptors`], [`Error::Forked`]. The channel is as
    /// it was.
    pub fn rehome(&self, deadline: impl Into<Deadline>) -> Result<(), Error> {
        told(self.end.rehome(deadline.into()))
    }

    /// What this end has done so far. Costs a few loads.
    pub fn counters(&self) -> Counters {
        let counts = &self.end.counts;
        let rare = counts.rare.get();
        Counters {
            messages_sent: counts.messages_sent.get(),
            bytes_sent: counts.bytes_sent.get(),
            messages_received: counts.messages_received.get(),
            bytes_received: counts.bytes_received.get(),
            wake_ups: rare.map_or(0, |rare| rare.send_wake_ups.get() + rare.recv_wake_ups.get()),
            sleeps: rare.map_or(0, |rare| rare.send_sleeps.get() + rare.recv_sleeps.get()),
            out_of_line: rare.map_or(0, |rare| rare.out_of_line.get()),
            pool_hits: rare.map_or(0, |rare| rare.pool_hits.get()),
            grown: rare.map_or(0, |rare| rare.grown.get()),
            stalls: rare.map_or(0, |rare| rare.stalls.get()),
            limits_reached: rare.map_or(0, |rare| rare.limits_reached.get()),
        }
    }
}

impl End {
    /// An end in a lane that nobody has used yet on this side.
    fn new(lane: Arc<Lane>, options: &Arc<Options>) -> Self {
        let end = Self {
            born: Born::here(),
            tx: Lock::new(Tx::new(lane.clone(), options)),
            rx: Lock::new(Rx::new(lane)),
            options: options.clone(),
            cpu: AtomicU32::new(0),
            long_sleep: AtomicBool::new(false),
            long_stall: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            in_set: AtomicBool::new(false),
            tells_of_each: AtomicBool::new(false),
            has_stumbled: AtomicBool::new(false),
            member: Mutex::new(None),
            counts: Counts::default(),
        };
        end.publish_cpu(&end.tx.lock(Deadline::NEVER).expect("nobody else has it"));
        end
    }

    /// What is told of it elsewhere shows that the peer broke the protocol: nothing goes on here. The error that it ends with.
    pub(crate) fn break_off(&self, error: Error) -> Error {
        if let Ok(mut rx) = self.rx.lock(Deadline::NOW) {
            rx.end_with(error);
        }
        match self.tx.lock(Deadline::NOW) {
            Ok(mut tx) => tx.end_with(error),
            Err(_) => error,
        }
    }

    /// Whether this end is no longer here.
    pub(crate) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// Tells the peer on which CPU we run, if it changed: it spins for us only if that is another one than its own.
    #[inline]
    fn publish_cpu(&self, tx: &Tx) {
        let cpu = os::current_cpu() + 1;
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
            tx.producer.memory().cpu().store(cpu, Ordering::Relaxed);
        }
    }

    /// The link to the process at the other end.
    fn link(&self) -> Result<InUse, Error> {
        self.born.check()?;
        // Whichever direction can be looked at; both are on their way to the same.
        match self.tx.lock(Deadline::NOW) {
            Ok(tx) => Ok(tx.lane.link().clone()),
            Err(_) => Ok(self.rx.lock(Deadline::NOW)?.lane.link().clone()),
        }
    }

    /// The link to the process that has the other end now: this end goes after it first, if it has moved. While it is in
    /// transit, the link to the process that sends it.
    fn link_to_peer(&self) -> Result<InUse, Error> {
        self.born.check()?;
        if let Ok(mut tx) = self.tx.lock(Deadline::NOW) {
            self.catch_up(&mut tx);
            return Ok(tx.lane.listen().clone());
        }
        let mut rx = self.rx.lock(Deadline::NOW)?;
        // The marks may lie behind messages.
        let _ = self.queued(&mut rx);
        Ok(rx.lane.listen().clone())
    }

    fn peer(&self) -> Result<Option<Peer>, Error> {
        peer_of(&self.link_to_peer()?)
    }

    fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        let link = self.link_to_peer()?;
        let peer = peer_of(&link)?.ok_or(Error::WouldBlock)?;
        // The socket's own answer is fixed when a pair is made, so for a spawned child it is the parent. Then its number
        // is what there is, and the link says that its process lived after we asked.
        if let Some(socket) = link.io().socket()
            && credentials::of_socket(socket)?.pid == peer.pid
            && let Ok(fd) = credentials::pidfd_of_socket(socket)
        {
            return Ok(fd);
        }
        let fd = os::process::open(peer.pid.ok_or(Error::WouldBlock)?)?;
        link.probe();
        if link.is_down() { Err(link.reason()) } else { Ok(fd) }
    }
}

/// The process at the other end of a link, if it has said hello; this one, of the link to itself.
fn peer_of(link: &InUse) -> Result<Option<Peer>, Error> {
    if link.is_local() {
        return Ok(Some(Peer {
            pid: Some(std::process::id()),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            is_alive: true,
        }));
    }
    if link.peer().is_none() {
        // Takes in the peer's hello, if it has come; nothing is asked for.
        link.fetch(|_| None::<()>)?;
    }
    link.probe();
    Ok(link.peer().map(|peer| Peer { is_alive: !link.is_down(), ..peer }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a channel that has carried small messages only holds on each side, besides its place in an arena.
    #[test]
    fn an_end_is_small() {
        let shared_counts = 2 * size_of::<usize>();
        assert!(size_of::<End>() + size_of::<Lane>() + 2 * shared_counts <= 512);
    }
}
