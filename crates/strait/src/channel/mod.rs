//! The end of a channel, which users hold.
//!
//! An end sends through one ring and receives through another. Each direction has its own [lock](crate::wake::lock), so
//! a sending thread never waits for a receiving thread. [`sender`] and [`receiver`] hold the state guarded by these
//! locks.
//!
//! To [send](sender), an end stages a message: in the ring, out of line, or together with others in a packed record.
//! Handles and memory for the message go over the socket first, in packets. The commit then makes the message visible
//! to the peer. To [receive](receiver), an end finds the next record and reads its payload. [`views`] has the variants
//! without a copy: messages that grow during writing, forwarded messages, and values, which stay objects within the
//! process.
//!
//! Ends travel in messages: see [`transfer`]. [`watch`] connects an end to wait sets, and [`interrupter`] ends waits.

// In this order, so that the page of `Channel` begins with `pair`, `over`, `send` and `recv`.
pub(crate) mod options;

mod sender;

mod receiver;

pub(crate) mod buffer;
mod counters;
mod halves;
pub(crate) mod handle;
mod interrupter;
pub(crate) mod message;
pub(crate) mod origin;
pub(crate) mod pipe_end;
pub(crate) mod pool;
mod reuse;
mod send_error;
mod transfer;
pub(crate) mod unclaimed;
pub(crate) mod value;
mod views;
mod warm;
mod watch;

pub use counters::Counters;
pub use halves::{Receiver, Sender};
pub use handle::Handle;
pub use interrupter::Interrupter;
pub(crate) use interrupter::{Interruptible, WakeWaiters};
pub use message::{Message, Outgoing, Received};
pub use options::Options;
pub use receiver::{Conditions, MessageInfo, PutBackError, Status};
pub use send_error::{SendError, SendManyError};
pub(crate) use sender::WakeOnDrop;
pub use transfer::FuseError;
#[cfg(any(strait_fuzzing, strait_benchmarks))]
pub(crate) use transfer::table_is_read;
pub(crate) use transfer::{PipeState, close};
pub use unclaimed::UnclaimedHandle;
pub use value::{Value, ValueError};
pub use views::{Draft, InPlace, Reservation, SealedReservation, recv_in_place, reserve, reserve_sealed};
pub(crate) use watch::{NOWHERE, Ready, Watcher};

use std::fmt;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::deadline::Deadline;
use crate::error::Error;
use crate::lane::arena::SMALL;
use crate::lane::directory::LaneDirectory;
use crate::lane::{Lane, Name};
use crate::link::packet::{Packet, VERSIONS};
use crate::link::reuse::Request;
use crate::link::{Attachments, InUse, Link, peers};
use crate::os::fork::{self, Born};
use crate::os::socket::{self, credentials};
use crate::peer::Peer;
use crate::quota::closing::Unread;
use crate::quota::{Reported, Usage};
use crate::ring::Memory;
use crate::shm::{LaneMemory, Mapping, Shareable, lane_size};
use crate::wake::interrupt::Interrupts;
use crate::wake::lock::Lock;
use crate::{deferred, os};
use counters::Count;
use origin::Origin;
use receiver::Rx;
use sender::Tx;

/// Number of cells (of 64 bytes) in each ring of a link's first channel, unless the options set another size. Both
/// rings stay in the level 1 cache.
const FIRST_CELLS: usize = 128;

/// Where the channel to a process that has connected will be.
enum Place {
    /// In a lane of a link that an earlier connect has made.
    Reused(Lane),
    /// On the new link, with this ring.
    First(FirstRing),
}

/// The memory for the ring that an end of a link's first channel writes, and the ring's token.
struct FirstRing {
    memory: Shareable,
    cells: usize,
    token: u128,
}

impl FirstRing {
    /// Creates the ring. Fails if this process has no descriptor or no memory for the ring.
    fn new(options: &Options) -> Result<Self, Error> {
        let cells = options.ring_cells.unwrap_or(FIRST_CELLS);
        let (mapping, fd) = Mapping::shared("strait-ring", lane_size(cells))?;
        Ok(Self { memory: Shareable { mapping, fd: Some(fd) }, cells, token: os::random_token()? })
    }
}

/// One end of a channel: a bidirectional, ordered stream of messages between two processes, or within one.
///
/// A message is bytes (0 to 256 MiB) and [handles](crate::Handle). Messages arrive whole, once, and in the order in
/// which they were sent. Once a send has returned success, the message is in memory that outlives the sender: the
/// peer receives the message even if the sender is killed in the next instruction. When an end is dropped or its
/// process dies, the other end receives what was sent before, and then [`Error::PeerClosed`].
///
/// Many threads may use one end at once through `&self`. Receiving threads take turns; each message goes to one thread.
/// [`Channel::split`] gives one half to a sending thread and the other to a receiving thread.
///
/// The peer is not trusted: whatever the peer writes or sends, calls on this end return in bounded time with a result
/// or an error.
///
/// ```
/// use std::time::Duration;
/// use strait::{Channel, Error};
///
/// // Both ends are in this process; `connect`, `from_parent` and `Listener::accept` return an end whose other end is
/// // in another process.
/// let (a, b) = Channel::pair()?;
/// a.send(b"a request")?;
/// assert_eq!(b.recv()?.bytes(), b"a request");
/// b.send(b"an answer")?;
/// assert_eq!(a.recv_by(Duration::from_secs(1))?.bytes(), b"an answer");
/// drop(a);
/// assert_eq!(b.recv().unwrap_err(), Error::PeerClosed);
/// # Ok::<(), Error>(())
/// ```
///
/// | task | calls |
/// |---|---|
/// | make a channel | [`Channel::pair`], [`connect`](crate::connect), [`Listener::accept`](crate::Listener::accept), [`from_parent`](crate::from_parent), [`Channel::over`] |
/// | send | [`send`](Self::send), [`try_send`](Self::try_send), [`send_by`](Self::send_by), [`send_many`](Self::send_many); in place: [`reserve`](Self::reserve), [`draft`](Self::draft) |
/// | receive | [`recv`](Self::recv), [`try_recv`](Self::try_recv), [`recv_by`](Self::recv_by), [`recv_many`](Self::recv_many); in place: [`recv_in_place`](Self::recv_in_place) |
///
/// # Cost
/// A message of up to 56 bytes is one cache line. In steady flow, while the peer is awake, sending and receiving make
/// no system call and allocate nothing (see [`Channel::recv_message`]).
pub struct Channel {
    pub(crate) end: Arc<End>,
}

pub(crate) struct End {
    tx: Lock<Tx>,
    rx: Lock<Rx>,
    pub(crate) options: Arc<Options>,
    /// Number of bytes of the longest message without handles that goes through the ring, by the options.
    plain_limit: usize,
    /// The process that created this end. Calls in any other process (a child of `fork`) get [`Error::Forked`] and do
    /// not use the end.
    pub(crate) born: Born,
    /// Number, plus 1, of the last CPU published by this end to the peer; 0 if this end has not published a CPU in the
    /// present lane.
    cpu: AtomicU32,
    /// Whether the last sleep of a thread that waited for a message took 20 ms or more. If so, the next such thread
    /// sleeps on the socket of the link at once, instead of on the sleep word first.
    long_sleep: AtomicBool,
    /// Whether the last sleep of a thread that waited for room took 20 ms or more. If so, the next such thread sleeps
    /// on the socket of the link at once, instead of on the sleep word first.
    long_stall: AtomicBool,
    /// Whether this end was sent to another process, fused or closed. Then dropping the end closes nothing.
    sent: AtomicBool,
    /// Whether this end, the end of a data pipe's channel, owes the other end a doorbell: see
    /// [`ring`](pipe_end::ring).
    owes_doorbell: AtomicBool,
    /// Whether this end is in a wait set; the field `member` then holds the end's member of the wait set.
    in_set: AtomicBool,
    /// Whether this end notifies its wait set after each received message. Set when the other end is closed while a
    /// trap waits until no message is left: the peer will not notify the wait set any more.
    notifies_each: AtomicBool,
    /// The registration of this end with its wait set; `None` if the end is in no wait set. Boxed, so that an end
    /// without a registration is small.
    member: Mutex<Option<Box<Arc<dyn Watcher>>>>,
    counts: Counts,
}

/// The counts of an end that [`Counters`] reports. The counts of rare events are allocated when one is first needed.
#[derive(Debug, Default)]
struct Counts {
    messages_sent: Count,
    bytes_sent: Count,
    messages_received: Count,
    bytes_received: Count,
    cold: OnceLock<Box<ColdCounts>>,
}

/// The counts of rare events at an end, and its state for interrupts. Allocated when first used, since most ends never
/// need them.
#[derive(Debug, Default)]
struct ColdCounts {
    /// The interrupts of this end; set once [`Channel::interrupter`] was called for it.
    interrupts: OnceLock<Box<Interrupts>>,
    send_wake_ups: Count,
    out_of_line: Count,
    pool_hits: Count,
    used_once: Count,
    grown: Count,
    stalls: Count,
    send_sleeps: Count,
    recv_wake_ups: Count,
    recv_sleeps: Count,
    limits_reached: Count,
    /// The time of the last receive that failed with a temporary error, in milliseconds by
    /// [`coarse_time`](crate::os::coarse_time); 0 if there was none, or if the end was reported again since. A wait set
    /// pauses before it reports the end again.
    stumbled: AtomicU64,
    /// The reason for the peer when this end is closed, set by [`Channel::close_with`].
    closes_with: OnceLock<u32>,
    /// The reason from the other end's close, once read by this end.
    closed_with: OnceLock<u32>,
}

impl Drop for End {
    fn drop(&mut self) {
        // A child of `fork` must not touch the wait sets of its parent.
        if !self.born.is_elsewhere() {
            self.leave_set_when_dropped();
        }
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.end.print("Channel", f)
    }
}

impl fmt::Debug for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.print("End", f)
    }
}

impl Counts {
    fn cold(&self) -> &ColdCounts {
        self.cold.get_or_init(Default::default)
    }
}

impl Options {
    /// Creates a channel with both ends in this process; both ends get these options. Uses no descriptor and no shared
    /// memory.
    ///
    /// # Errors
    /// [`Error::NoMemory`], [`Error::Forked`].
    pub fn pair(&self) -> Result<(Channel, Channel), Error> {
        fork::arm()?;
        let own = Link::own();
        let (arena, name, _) = Link::make_lane(&own, &own, self.ring_cells.unwrap_or(SMALL))?;
        let options = self.shared();
        let end = |side| {
            let lane = Lane::in_arena(&arena, name, side, own.clone(), None).expect("it was made just now");
            lane.complete_transfer();
            Channel { end: Arc::new(End::new(Arc::new(lane), &options)) }
        };
        let ends = (end(0), end(1));
        // At its making, after the consumer of the first end, the second end publishes its limit on messages in flight.
        ends.0.end.rx.lock(Deadline::NOW)?.learn_quota();
        Ok(ends)
    }

    /// Creates a channel with these options over a connected `SOCK_SEQPACKET` Unix socket, as [`Channel::over`] does.
    ///
    /// # Errors
    /// As [`Channel::over`].
    pub fn over(&self, socket: OwnedFd) -> Result<Channel, Error> {
        self.over_taken(|| Ok(socket))
    }

    /// Creates a channel as [`over`](Self::over) does, over the socket that `take` returns. Calls `take` when the call
    /// has the descriptors and the memory that it needs. So if these are lacking, the socket is not taken.
    pub(crate) fn over_taken(&self, take: impl FnOnce() -> Result<OwnedFd, Error>) -> Result<Channel, Error> {
        fork::arm()?;
        let (name, ring) = (peers::own_name()?, FirstRing::new(self)?);
        let socket = take()?;
        if let Some(other) = socket::other_than_seqpacket(&socket)? {
            return Err(Error::NotASocket(other));
        }
        socket::close_on_exec(&socket)?;
        let link = Link::over(socket, self.peer_memory, Arc::<LaneDirectory>::default())?;
        match link.send_handshake(name) {
            // The peer may have sent something before it closed the socket.
            Ok(()) | Err(Error::PeerClosed) => Channel::first(link, ring, self),
            Err(error) => Err(error),
        }
    }
}

impl Channel {
    /// Creates the channel to a listener over `socket`, which is connected to the listener. Sends the connect request
    /// with `token` and waits until the listener has accepted. `server` is the user id that the listener's process must
    /// have.
    ///
    /// # Errors
    /// [`Error::WrongServer`] if another user (not root) has made the listening socket, or if another user than
    /// `server` answers.
    pub(crate) fn connect(
        socket: OwnedFd,
        server: u32,
        token: u128,
        options: &Options,
        deadline: Deadline,
    ) -> Result<Self, Error> {
        let name = peers::own_name()?;
        let link = Link::over(socket, options.peer_memory, Arc::<LaneDirectory>::default())?;
        // The token goes out only if the listening socket belongs to the right user. The process that answers may be a
        // different process, so the user of the link's peer is checked below.
        let listens = credentials::of_socket(link.io().socket().expect("it has one"))?.uid;
        if ![server, 0].contains(&listens) {
            return Err(Error::WrongServer { uid: listens });
        }
        let terms = options.terms();
        let socket = || link.io().socket().expect("it has one");
        let reused = terms.and_then(|terms| Link::for_connect(socket(), terms));
        let number = if terms.is_some() { os::random_token()? as u64 | 1 } else { 0 };
        let reuses = reused.as_ref().map_or(0, |(_, number)| *number);
        let request = Packet::Connect { token, link: number, reuses };
        let requested = link.send_handshake(name).and_then(|()| link.send_first(&request, Attachments::NOTHING));
        requested.map_err(|error| link.refusal_or(error))?;
        link.await_accept_or_end(deadline)?;
        match link.peer() {
            Some(peer) if peer.uid == server => {}
            Some(peer) => return Err(Error::WrongServer { uid: peer.uid }),
            None => return Err(Error::BadPeer("a process that the kernel does not identify")),
        }
        let Some(words) = link.lane_elsewhere() else {
            terms.into_iter().for_each(|terms| link.was_connected(number, terms));
            return Self::first(link, FirstRing::new(options)?, options);
        };
        let is_there = |reused: &InUse| reused.process().is_some() && reused.process() == link.process();
        match reused.filter(|(reused, _)| is_there(reused)) {
            Some((reused, _)) => reuse::over(reused, Name::from_words(words), options),
            None => Err(Error::BadPeer("an answer that names a link to another process")),
        }
    }

    /// Creates the channel to the process `peer`, which has connected over `socket` and sent its handshake and a
    /// connect request. Sends the accept packet to that process. If `request` names a usable earlier link to the
    /// process, the channel is on the earlier link.
    ///
    /// # Errors
    /// With the socket if nothing was sent yet: then the call can be repeated.
    pub(crate) fn accept(
        socket: Unread,
        peer: Peer,
        request: Request,
        options: &Options,
    ) -> Result<Self, (Error, Option<Unread>)> {
        let terms = options.terms();
        // What this process may lack comes before the first packet.
        let prepare = || {
            let name = peers::own_name()?;
            let inode = credentials::inode_of_connector(socket.as_fd(), peer)?;
            let reused = terms.zip(inode).and_then(|(terms, inode)| Link::for_request(peer, inode, &request, terms));
            let place = match reused.and_then(|reused| reuse::make(&reused).ok()) {
                Some(lane) => Place::Reused(lane),
                None => Place::First(FirstRing::new(options)?),
            };
            Ok((name, inode, place))
        };
        let (name, inode, place) = match prepare() {
            Ok(prepared) => prepared,
            Err(error) => return Err((error, Some(socket))),
        };
        let send = || {
            let directory = Arc::<LaneDirectory>::default();
            let known = (request.name, request.features);
            let link = Link::known(socket.into_fd(), (peer, inode), known, options.peer_memory, directory);
            let greeted = link.and_then(|link| link.send_handshake(name).map(|()| link));
            let link = greeted.inspect_err(|_| {
                if let Place::Reused(lane) = &place {
                    lane.unmake();
                }
            })?;
            match place {
                Place::Reused(lane) => reuse::accept(&link, lane, options),
                Place::First(ring) => {
                    link.send_first(&Packet::Accept { lane: None }, Attachments::NOTHING)?;
                    terms.into_iter().for_each(|terms| link.was_connected(request.link, terms));
                    Self::first(link, ring, options)
                }
            }
        };
        send().map_err(|error| (error, None))
    }

    pub(crate) fn end(&self) -> &Arc<End> {
        &self.end
    }

    /// Creates the first channel of a link, after this process has sent its handshake over the link. Sends the open
    /// packet, with the memory of the first ring `ring`, to the peer.
    fn first(link: InUse, ring: FirstRing, options: &Options) -> Result<Self, Error> {
        if !options.accept_descriptors {
            link.refuse_descriptors();
        }
        let FirstRing { memory, cells, token } = ring;
        let out = LaneMemory::new(&memory.mapping, 0, cells).expect("a lane that options allow").ring(0);
        let lane = Lane::first(link.clone(), out, token);
        let lane = Arc::new(lane);
        let end = End::new(lane.clone(), &options.shared());
        let open = Packet::Open { token, version: VERSIONS.lowest.into(), features: 0, cells: cells as u64 };
        match link.send_first(&open, Attachments::memory(&memory)) {
            // The peer has sent its open packet and closed the link since. Its messages are still delivered.
            Err(Error::PeerClosed) if lane.open()? => {}
            sent => sent?,
        }
        Ok(Self { end: Arc::new(end) })
    }

    /// Returns whether a receive would not block: a message is there, or the channel has ended. Does not block. Also
    /// returns `false` if another thread is receiving from this end.
    pub fn is_readable(&self) -> bool {
        let readable = self.end.is_readable();
        deferred::run();
        readable
    }

    /// Returns whether a small message with one descriptor could be sent now, as far as the ring and the limits of this
    /// end's [`Options`] allow. Does not block. Also returns `false` if another thread is waiting for room on this end.
    pub fn is_writable(&self) -> bool {
        let writable = self.end.is_writable();
        deferred::run();
        writable
    }

    /// Returns whether the other end is closed or its process dead. Messages sent before that may still wait to be
    /// received.
    ///
    /// Asks the kernel, which takes longer than a receive: one system call, and at most once in 10 ms five more. So a
    /// death is reported within 10 ms, also if the socket stays open because another process has a copy.
    pub fn is_peer_closed(&self) -> bool {
        let closed = self.end.is_peer_closed();
        deferred::run();
        closed
    }

    /// Returns the identity of the process at the other end, as the kernel reports it; `None` before the peer has
    /// opened its side. Within one process, returns the identity of this process.
    ///
    /// The identity comes over the socket between the two processes, and messages do not. So if another process has
    /// passed the end on, the identity may be missing for some milliseconds after the first message.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::BadPeer`].
    pub fn peer(&self) -> Result<Option<Peer>, Error> {
        deferred::run_if_failed(self.end.peer())
    }

    /// Returns the resources held for the peer process and for its user, and how often a limit of
    /// [`Limits`](crate::quota::Limits) was reached. `None` before the peer has opened its side, and for a channel
    /// within a process.
    ///
    /// # Errors
    /// The errors of [`Channel::peer`].
    pub fn peer_usage(&self) -> Result<Option<Usage>, Error> {
        let link = self.end.link_to_peer()?;
        let is_known = !link.is_local() && peer_of(&link)?.is_some();
        Ok(is_known.then(|| link.usage()))
    }

    /// Returns a pidfd of the process at the other end. The pidfd keeps naming that process even when the kernel
    /// reuses the process id, and can be polled for the death of the process.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] before the peer has opened its side; [`Error::PeerClosed`] if the peer process is gone;
    /// [`Error::System`] where the kernel has no pidfds.
    pub fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        deferred::run_if_failed(self.end.peer_pidfd())
    }

    /// Reports the process at the other end as a bad peer, for the given reason: an invalid message, for example.
    /// Closes the link to that process and every channel over the link, as if the peer had broken the library's own
    /// protocol. Within one process, ends this channel alone. Calls the [`on_bad_peer`](crate::quota::on_bad_peer)
    /// callback with the reason; the peer sees *peer closed*. Drops the unreceived messages of this channel.
    ///
    /// Works like [`Message::report_bad`](crate::Message::report_bad) for a message of the peer process, with the same
    /// result. In addition, this channel always ends, whatever the result. Within one process, the waits of other
    /// threads on this end fail. If a thread holds a view or a reservation of this end, the direction of that thread
    /// ends at its next wait.
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
        deferred::run();
        reported
    }

    /// Ends the link to the process at the other end, and every channel over the link, without a report of a bad peer.
    /// Both sides first receive the messages sent before, and then see [`Error::PeerClosed`] on each of these channels.
    /// Does nothing within one process. Returns whether there was a link to end.
    ///
    /// Use this call to part from a well-behaved process, whatever channel ends the process has passed on. For a
    /// process that broke the rules, use [`report_bad`](Self::report_bad).
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::WouldBlock`] if other threads wait on this end in both directions.
    pub fn disconnect(&self) -> Result<bool, Error> {
        let link = self.end.link_to_peer()?;
        let is_up = !link.is_local() && !link.is_down();
        if is_up {
            link.cut(Error::PeerClosed);
        }
        deferred::run();
        Ok(is_up)
    }

    /// Moves the channel into memory that only this process and the process of the other end have.
    ///
    /// A process that sent an end here has made the memory in which the channel goes on, and may still have that
    /// memory. Such a process could disturb the channel after the end was passed on; this call excludes the process.
    /// Nothing is lost or reordered, and the other end notices nothing. Costs as much as sending an end; the channel is
    /// as fast as before. While the call waits, other threads that send from this end wait for the call.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] or [`Error::TimedOut`] while the other end is in transit, or while the peer process has
    /// not opened its side; [`Error::NoMemory`], [`Error::NoDescriptors`], [`Error::Forked`]. After an error the
    /// channel works as before.
    pub fn rehome(&self, deadline: impl Into<Deadline>) -> Result<(), Error> {
        deferred::run_if_failed(self.end.rehome(deadline.into()))
    }

    /// Returns the counts of this end's events since its creation: messages, bytes, wake-ups and others. Costs a few
    /// loads.
    pub fn counters(&self) -> Counters {
        let counts = &self.end.counts;
        let cold = counts.cold.get();
        Counters {
            messages_sent: counts.messages_sent.get(),
            bytes_sent: counts.bytes_sent.get(),
            messages_received: counts.messages_received.get(),
            bytes_received: counts.bytes_received.get(),
            wake_ups: cold.map_or(0, |cold| cold.send_wake_ups.get() + cold.recv_wake_ups.get()),
            sleeps: cold.map_or(0, |cold| cold.send_sleeps.get() + cold.recv_sleeps.get()),
            out_of_line: cold.map_or(0, |cold| cold.out_of_line.get()),
            pool_hits: cold.map_or(0, |cold| cold.pool_hits.get()),
            used_once: cold.map_or(0, |cold| cold.used_once.get()),
            grown: cold.map_or(0, |cold| cold.grown.get()),
            stalls: cold.map_or(0, |cold| cold.stalls.get()),
            limits_reached: cold.map_or(0, |cold| cold.limits_reached.get()),
        }
    }
}

impl End {
    /// Prints this end for debugging, in one line that begins with `name`. Takes no lock.
    fn print(&self, name: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(name)
            .field("messages_sent", &self.counts.messages_sent.get())
            .field("messages_received", &self.counts.messages_received.get())
            .field("in_set", &self.in_set.load(Ordering::Relaxed))
            .field("is_gone", &self.sent.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }

    /// Creates an end in `lane`, on the side of `lane`. No other end has used that side before. Publishes this thread's
    /// CPU to the peer.
    fn new(lane: Arc<Lane>, options: &Arc<Options>) -> Self {
        let end = Self {
            born: Born::here(),
            tx: Lock::new(Tx::new(lane.clone(), options)),
            rx: Lock::new(Rx::new(lane)),
            options: options.clone(),
            plain_limit: options.plain_limit(),
            cpu: AtomicU32::new(0),
            long_sleep: AtomicBool::new(false),
            long_stall: AtomicBool::new(false),
            sent: AtomicBool::new(false),
            owes_doorbell: AtomicBool::new(false),
            in_set: AtomicBool::new(false),
            notifies_each: AtomicBool::new(false),
            member: Mutex::new(None),
            counts: Counts::default(),
        };
        end.publish_cpu(&end.tx.lock(Deadline::NEVER).expect("nobody else has it"));
        end
    }

    /// Returns whether this end was sent to another process, fused or closed.
    pub(crate) fn was_sent(&self) -> bool {
        self.sent.load(Ordering::Relaxed)
    }

    pub(crate) fn set_sent(&self) {
        self.sent.store(true, Ordering::Relaxed);
    }

    /// Publishes this thread's CPU to the peer, if the CPU has changed. A thread of the peer spins for this end only if
    /// the two run on different CPUs.
    #[inline]
    fn publish_cpu(&self, tx: &Tx) {
        let cpu = os::current_cpu() + 1;
        if self.cpu.load(Ordering::Relaxed) != cpu {
            self.cpu.store(cpu, Ordering::Relaxed);
            tx.producer.memory().cpu().store(cpu, Ordering::Relaxed);
        }
    }

    /// Returns the link over which this end sends. If the other end has moved and this end has not followed yet,
    /// returns the link to the former peer.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::WouldBlock`] if other threads hold the locks of both directions.
    fn link(&self) -> Result<InUse, Error> {
        self.born.check()?;
        // Either direction will do: both follow the other end to the same process.
        match self.tx.lock(Deadline::NOW) {
            Ok(tx) => Ok(tx.lane.link().clone()),
            Err(_) => Ok(self.rx.lock(Deadline::NOW)?.lane.link().clone()),
        }
    }

    /// Returns the link to the process that has the other end now. If the other end has moved, this end first follows
    /// to the new lane. While the other end is in transit, returns the link to the source, the process that sends the
    /// other end.
    ///
    /// # Errors
    /// [`Error::Forked`]; [`Error::WouldBlock`] if other threads hold the locks of both directions.
    fn link_to_peer(&self) -> Result<InUse, Error> {
        self.born.check()?;
        if let Ok(mut tx) = self.tx.lock(Deadline::NOW) {
            self.catch_up(&mut tx);
            return Ok(tx.lane.current_link().clone());
        }
        let mut rx = self.rx.lock(Deadline::NOW)?;
        // The marks that lead to the next lane may lie behind messages; a survey of the queue follows them.
        let _ = self.queued(&mut rx);
        Ok(rx.lane.current_link().clone())
    }

    fn peer(&self) -> Result<Option<Peer>, Error> {
        let link = self.link_to_peer()?;
        peer_of(&link)
    }

    fn peer_pidfd(&self) -> Result<OwnedFd, Error> {
        let link = self.link_to_peer()?;
        let peer = peer_of(&link)?.ok_or(Error::WouldBlock)?;
        // The kernel reports the process that made the socket. For a child spawned with one end of a socket pair, the
        // parent is the maker. Then the pidfd is opened by process id, and the probe makes sure that the process was
        // alive afterwards, so the id was not reused.
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

/// Returns the identity of the process at the other end of `link`; `None` if its handshake has not arrived. For the
/// link of this process to itself, returns the identity of this process.
fn peer_of(link: &Link) -> Result<Option<Peer>, Error> {
    if link.is_local() {
        return Ok(Some(Peer {
            pid: Some(std::process::id()),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            is_alive: true,
        }));
    }
    if link.peer().is_none() {
        // Receives the peer's handshake, if the handshake has arrived; asks for nothing else.
        link.fetch(|_| None::<()>)?;
    }
    link.probe();
    Ok(link.peer().map(|peer| Peer { is_alive: !link.is_down(), ..peer }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks that an end with only small messages takes at most 512 bytes on each side, besides its lane slot in an
    /// arena.
    #[test]
    fn an_end_is_small() {
        let shared_counts = 2 * size_of::<usize>();
        let size = size_of::<End>() + size_of::<Lane>() + 2 * shared_counts;
        assert!(size <= 512, "{size} bytes, of which an end has {} and a lane {}", size_of::<End>(), size_of::<Lane>());
    }
}
