//! The connection between two processes: one socket, which carries only what needs the kernel.
//!
//! Rings carry the messages. The link carries the [packets](packet) that bring memory and descriptors; a process always
//! sends them before it commits the record that refers to them. The link also carries wake-ups for threads that sleep
//! in `poll`. The end of a process shows as a hang-up of the socket.
//!
//! A thread that needs something from the socket receives what is there into the [inbox](inbox::Inbox). Only one thread
//! receives at a time, the **leader**, which may sleep in `poll` while it leads. The other threads that wait on the
//! link **follow**: they sleep until the leader has received something. When the leader stops leading, one of the
//! followers leads. (If two threads received, one could take the packet that is to wake the other from `poll`, which
//! would then sleep on.)

mod in_flight;
mod inbox;
pub(crate) mod io;
pub(crate) mod liveness;
mod notifications;
pub(crate) mod packet;
pub(crate) mod peers;
mod room;
mod stuck;
pub(crate) mod uses;
mod wake_limiter;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use crate::blocked_on::POLL_INTERVAL;
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::{Error, Refusal};
use crate::os::fault;
use crate::os::fork::Born;
use crate::os::socket::credentials::{self, Next, Sender};
use crate::os::socket::{Interest, Sent};
use crate::peer::Peer;
use crate::quota::{Ledger, Usage, closing};
use crate::ring::ready_bitmap;
use crate::shm::Layout;
use crate::signals;
use crate::sync::unpoisoned;
use crate::wake::condvar::Condvar;
use crate::wake::interrupt::{Interruption, Sleepers};
use in_flight::LinkInFlight;
pub(crate) use in_flight::{Amount, InFlight, Until};
pub(crate) use inbox::{Inbox, MemoryKey, OpenPacket};
pub(crate) use io::{Attachments, Io};
use io::{Incoming, Local, ReceivedAttachment, Socket};
use liveness::Liveness;
use notifications::Notifications;
#[cfg(test)]
pub(crate) use notifications::tests::{hung_up, linked};
pub(crate) use notifications::{Listener, ListenerSet};
use packet::{FEATURES, Packet, VERSIONS, Versions};
use peers::PeerEntry;
pub(crate) use room::SocketBlockedOn;
use uses::{Directory, Uses};
pub(crate) use uses::{InTransit, InUse};
pub(crate) use wake_limiter::PAUSE;

/// The shortest time between two questions of a spinning thread to the kernel whether the peer is alive.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// The most packets and descriptors, counted together, that one call receives from a socket, so that a peer that keeps
/// sending cannot keep a thread busy.
const DRAIN_LIMIT: usize = 1024;

/// The longest time that a call waits until it can send one of the first packets of a link.
const FIRST: Duration = Duration::from_millis(100);

/// The number of packets and descriptors, counted together, after which a fetch of an attachment gives up. The sender
/// sends an attachment before the record that refers to the attachment. So at most as many packets arrive before the
/// attachment as fit into a socket.
const FETCH_LIMIT: usize = 8 * DRAIN_LIMIT;

/// The longest sleep of a follower in a fetch before it looks at the inbox and the socket itself. A follower waits for
/// a link while another thread, the leader, receives.
const FOLLOW: Duration = Duration::from_millis(10);

/// The longest time that a wait set, or a sender that waits for room, waits for the leader (the thread that receives)
/// to receive what is in the socket.
const MOMENT: Duration = Duration::from_millis(1);

/// Returns the handshake packet, the first packet of each side of a link. `name` is the random name of this process.
/// With [`ANONYMOUS`] as the name the peer cannot recognise this process on other links.
pub(crate) fn handshake(name: u128) -> Packet {
    Packet::Handshake { name, versions: VERSIONS, features: FEATURES, layout: Layout::FIRST.said() }
}

/// The name that a process sends in its handshake so that the peer cannot recognise the process on other links.
pub(crate) const ANONYMOUS: u128 = 0;

/// The error for a peer whose packet arrives without the memory or socket that the packet should bring.
pub(crate) const MISSING: Error = Error::BadPeer("a reference to memory that did not arrive");

/// The link number of the one link of this process to itself. Links to other processes have higher numbers.
const OWN_NUMBER: u64 = 0;

/// The state of a link's leader: the one thread that receives from the socket on behalf of all threads that wait for
/// the link. There is none, or it sleeps, or it receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    None,
    Sleeping,
    Receiving,
}

/// The features and the memory layout of a peer, as the peer's handshake gives them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PeerParameters {
    /// The layout of the words in the shared memory that this peer creates.
    layout: Layout,
    features: u64,
}

impl PeerParameters {
    /// Decodes the layout and the feature bits from a peer's handshake. Fails with [`Error::BadPeer`] if the layout is
    /// impossible.
    pub(crate) fn heard(layout: u64, features: u64) -> Result<Self, Error> {
        let layout = Layout::heard(layout).ok_or(Error::BadPeer("an impossible memory layout"))?;
        Ok(Self { layout, features })
    }
}

pub(crate) struct Link {
    /// The number of the link, unique in this process. Newer links have higher numbers; the link of this process to
    /// itself has 0.
    number: u64,
    me: Weak<Self>,
    io: Box<dyn Io>,
    uses: Uses,
    directory: Box<dyn Directory>,
    peer_entry: PeerEntry,
    notifications: Notifications,
    ledger: Arc<Ledger>,
    wake_limiter: wake_limiter::WakeLimiter,
    /// Whether this process accepts no handles of messages on this link; the kernel then drops the handles.
    refuses: AtomicBool,
    in_flight: LinkInFlight,
    later: Mutex<Later>,
    leader: Mutex<Leader>,
    /// The condition variable on which followers wait. It is notified when the leader has received packets and stops
    /// leading, and when the link goes down or a wait is interrupted.
    turn: Condvar,
    /// The number of followers that wait on `turn`, written under the lock of `leader`. If it is 0, the leader saves
    /// the system call that would notify followers.
    followers: AtomicUsize,
    inbox: Mutex<Inbox>,
    /// Whether the link is stuck: the last attempt to take the next packet from the socket failed for lack of a
    /// resource.
    stuck: AtomicBool,
    /// The error with which the link went down; empty while the link is up. Set before `is_down`.
    reason: OnceLock<Error>,
    is_down: AtomicBool,
    peer: OnceLock<Peer>,
    liveness: Liveness,
    /// The features and the memory layout from the peer's handshake; empty until the handshake was received.
    parameters: OnceLock<PeerParameters>,
    /// Whether the listener's accept packet was received. Used on a link over which this process sent a connect
    /// request.
    accepted: AtomicBool,
    is_identified: AtomicBool,
    born: Instant,
    /// The process in which the link was created. A forked child of that process must not use the link.
    home: Born,
    /// The time of the last question to the kernel whether the peer is alive, in nanoseconds since the link was created
    /// (`born`).
    probed: AtomicU64,
    idle_timer: IdleTimer,
}

/// Packets that could not be sent over a link yet. The link sends them before any other packet.
#[derive(Default)]
struct Later {
    /// The unsent packets in order, without the wake packet; at most two for each thread. A packet is left unsent only
    /// if an earlier packet for its ring was sent, and the link sends nothing else before it.
    packets: Vec<Packet>,
    /// Whether a wake packet to the peer is still to be sent, after `packets`. This is a flag and no entry of
    /// `packets`, so that storing it needs no memory.
    wake: bool,
}

/// The idle timer of a link: measures for how long the peer has shown no activity. All times are in nanoseconds since
/// the link was created.
#[derive(Default)]
struct IdleTimer {
    /// Whether an end of the link has noticed activity of the peer since the last check that found no activity.
    heard: AtomicBool,
    /// The time of the last check that found no activity of the peer, in nanoseconds since the link was created; 0
    /// before the first such check.
    looked: AtomicU64,
    /// The earliest time at which the peer's present idle period may have begun, in nanoseconds since the link was
    /// created.
    since: AtomicU64,
}

impl Later {
    /// Removes the first unsent packet, which the link has just sent. If no other packet is unsent, this is the wake
    /// packet.
    fn sent_one(&mut self) {
        if self.packets.is_empty() {
            self.wake = false;
        } else {
            self.packets.remove(0);
        }
    }
}

// If two threads look at once, the change of one may get lost. That makes no difference that matters.
impl IdleTimer {
    /// Notes that an end of the link has noticed activity of the peer. Does not read the clock.
    #[inline]
    fn reset(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// Returns for how long the peer may have been idle at most. The caller has just found no activity of the peer;
    /// `now` is the time of that check, in nanoseconds since the link was created.
    ///
    /// A peer shows activity only now and then: it gives credit after a quarter of a ring. So many checks in a row find
    /// no activity even in a steady flow, but never for long. The idle period begins at the last check without activity
    /// before the latest activity. So a process that sends seldom need not check twice.
    fn lasts(&self, now: u64) -> Duration {
        if self.heard.swap(false, Ordering::Relaxed) {
            self.since.store(self.looked.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        self.looked.store(now, Ordering::Relaxed);
        Duration::from_nanos(now.saturating_sub(self.since.load(Ordering::Relaxed)))
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("peer", &self.peer).field("down", &self.reason).finish_non_exhaustive()
    }
}

impl Link {
    fn new(number: u64, io: Box<dyn Io>, ledger: Arc<Ledger>, directory: Box<dyn Directory>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            number,
            me: me.clone(),
            io,
            uses: Uses::default(),
            directory,
            peer_entry: PeerEntry::default(),
            notifications: Notifications::default(),
            ledger: ledger.clone(),
            wake_limiter: wake_limiter::WakeLimiter::default(),
            refuses: AtomicBool::new(false),
            in_flight: LinkInFlight::default(),
            later: Mutex::default(),
            leader: Mutex::new(Leader::None),
            turn: Condvar::default(),
            followers: AtomicUsize::new(0),
            inbox: Mutex::new(Inbox::new(ledger)),
            stuck: AtomicBool::new(false),
            reason: OnceLock::new(),
            is_down: AtomicBool::new(false),
            peer: OnceLock::new(),
            liveness: Liveness::default(),
            parameters: OnceLock::new(),
            accepted: AtomicBool::new(false),
            is_identified: AtomicBool::new(false),
            born: Instant::now(),
            home: Born::here(),
            probed: AtomicU64::new(0),
            idle_timer: IdleTimer::default(),
        })
    }

    /// Creates the link over `socket`, a connected socket, and sends nothing. `memory_limit` is the most memory, in
    /// bytes, that this process maps for the link. `directory` is what the lanes keep with the link.
    pub(crate) fn over(socket: OwnedFd, memory_limit: usize, directory: Box<dyn Directory>) -> Result<InUse, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        credentials::ask(socket.as_fd(), true)?;
        crate::os::socket::receive_plainly(socket.as_fd());
        crate::os::close::look_up();
        // Best effort: a listener's sockets are made without this, and others by another process.
        let _ = credentials::accept_rights(socket.as_fd(), true);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ledger = Ledger::new(Some(memory_limit));
        let link = Self::new(number, Box::new(Socket::new(socket, ledger.clone())), ledger, directory).in_use();
        peers::note(&link);
        Ok(link)
    }

    /// Creates the link over `socket` to a process whose handshake was received already. `peer` is that process as the
    /// kernel reported it, and `parameters` are the features and layout from its handshake. `memory_limit` is the most
    /// memory, in bytes, that this process maps for the link. `directory` is what the lanes keep with the link.
    pub(crate) fn known(
        socket: OwnedFd,
        peer: Peer,
        parameters: PeerParameters,
        memory_limit: usize,
        directory: Box<dyn Directory>,
    ) -> Result<InUse, Error> {
        let link = Self::over(socket, memory_limit, directory)?;
        credentials::ask(link.io.socket().expect("it is over one"), false)?;
        link.liveness.began(peer);
        let _ = (link.peer.set(peer), link.parameters.set(parameters));
        link.is_identified.store(true, Ordering::Release);
        Ok(link)
    }

    /// Waits until the listener at the other end accepts this process, which has sent a connect request over this link.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] or [`Error::TimedOut`] at the deadline; [`Error::Signalled`]; the link's error if the
    /// link is down; errors of receiving.
    pub(crate) fn await_accept(&self, deadline: Deadline) -> Result<(), Error> {
        self.fetch(|_| None::<()>)?;
        self.park(deadline, Interruption::SIGNALS, || self.accepted.load(Ordering::Acquire))?;
        if self.accepted.load(Ordering::Acquire) {
            Ok(())
        } else if self.is_down() {
            Err(self.reason())
        } else {
            signals::check()?;
            Err(if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut })
        }
    }

    /// Returns [`Error::Refused`] with the peer's reason, if `error` is [`Error::PeerClosed`] and the last packet from
    /// the peer refuses this process. Otherwise returns `error`. A full listener may refuse this process even before
    /// the connect request is sent.
    pub(crate) fn refusal_or(&self, error: Error) -> Error {
        match (error, self.fetch(|_| None::<()>)) {
            (Error::PeerClosed, Err(refused @ Error::Refused(_))) => refused,
            _ => error,
        }
    }

    /// Sends the handshake, the first packet of each side of a link. `name` is the random name of this process. With
    /// [`ANONYMOUS`] as the name the peer cannot recognise this process on other links.
    pub(crate) fn send_handshake(&self, name: u128) -> Result<(), Error> {
        self.send_first(&handshake(name), Attachments::NOTHING)
    }

    /// Sends the handshake on a link over the socket of an introduction. `name` is the random name of this process. If
    /// the handshake cannot be sent now, the link sends it before any other packet. Does nothing if the link is down.
    pub(crate) fn send_handshake_sooner_or_later(&self, name: u128) {
        self.send_sooner_or_later(handshake(name));
    }

    /// Creates the one link of this process to itself. `directory` is what the lanes keep with the link.
    pub(crate) fn local(directory: Box<dyn Directory>) -> Arc<Self> {
        // Nothing is charged: what is sent within the process is the process's own.
        Self::new(OWN_NUMBER, Box::new(Local), Ledger::nobodys(), directory)
    }

    /// Returns whether this is the one link of this process to itself ([`Link::local`]).
    #[inline]
    fn is_own(&self) -> bool {
        self.number == OWN_NUMBER
    }

    /// Returns whether this is the link of this process to itself, which has no socket.
    pub(crate) fn is_local(&self) -> bool {
        self.io.socket().is_none()
    }

    /// Returns the number of the link, unique in this process; newer links have higher numbers.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn io(&self) -> &dyn Io {
        &*self.io
    }

    /// Returns whether the link was created by another process, from which this process was forked.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.home.is_elsewhere()
    }

    /// Returns whether the link is down: nothing more will be received over it. Costs one load.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    /// Returns whether the link is stuck: at the last attempt the next packet in the socket could not be taken, for
    /// lack of a resource. `false` for a link that is down. Costs one load.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) && !self.is_down()
    }

    /// Returns the error with which the link went down; [`Error::PeerClosed`] if the link is up.
    pub(crate) fn reason(&self) -> Error {
        self.reason.get().copied().unwrap_or(Error::PeerClosed)
    }

    pub(crate) fn fail(&self, reason: Error) {
        let _ = self.reason.set(reason);
        let first = !self.is_down.swap(true, Ordering::AcqRel);
        if let Error::BadPeer(broken) = reason {
            self.inbox().clear();
            if first {
                self.ledger.broken(broken, true);
            }
        }
        self.wake_followers();
        if first {
            self.end_notifications();
        }
    }

    /// Shuts the link down with the error `reason`, because the peer broke the protocol in shared memory. The peer sees
    /// a hang-up of the socket.
    pub(crate) fn cut(&self, reason: Error) {
        self.fail(reason);
        if let Some(socket) = self.io.socket() {
            crate::os::socket::shut(socket);
        }
    }

    /// Returns the identity of the process at the other end, as the kernel reported it. Returns `None` until the peer's
    /// first packet was seen, and if the kernel did not report the sender.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer.get().copied()
    }

    /// Makes this process accept no handles of messages over this link from now on: the kernel drops descriptors that
    /// the peer sends as handles. Memory and sockets of the library itself (rings, blocks, links) still arrive.
    pub(crate) fn refuse_descriptors(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    pub(crate) fn refuses_descriptors(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Returns the ledger of this link: the part of the peer's account with what this process holds because of this
    /// link.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// Returns how much of each resource this process holds for the process at the other end.
    pub(crate) fn usage(&self) -> Usage {
        self.ledger.usage()
    }

    pub(crate) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        unpoisoned(&self.inbox)
    }

    /// Sends a packet without attachments now or, if that is not possible, before the next packet of the link. Does not
    /// block. Sends nothing on a local link and on a link that is down.
    pub(crate) fn send_sooner_or_later(&self, packet: Packet) {
        let sent = self.is_local() || matches!(self.try_send(&packet, Attachments::NOTHING), Ok(true));
        if !sent && !self.is_down() {
            unpoisoned(&self.later).packets.push(packet);
        }
    }

    /// Drops the attachments in the inbox for the ring with this token, and closes their descriptors, because no record
    /// will refer to them.
    pub(crate) fn discard_received(&self, token: u128) {
        let dropped = self.inbox().retract(token);
        drop(dropped);
    }

    /// Sends one of the first packets of a link, waiting for at most [`FIRST`]. A new socket has room for these
    /// packets; only the kernel may lack memory for a moment.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the packet could not be sent within [`FIRST`]; otherwise those of [`Link::send`].
    pub(crate) fn send_first(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<(), Error> {
        match self.send(packet, attachments, Deadline::after(FIRST), Interruption::NONE) {
            Err(Error::TimedOut) => Err(Error::WouldBlock),
            sent => sent,
        }
    }

    /// Sends a wake packet, which wakes threads that sleep on the socket in the peer's process. If the socket is full,
    /// no packet is needed: a full socket is readable, so no thread sleeps on it.
    ///
    /// Returns `false` if the kernel refused the packet. The link then tries again before it sends anything else,
    /// whenever a thread of this process is about to sleep on this link, and in later calls of the library: perhaps
    /// nothing else would wake the peer.
    pub(crate) fn wake(&self) -> bool {
        match self.io.send(&Packet::Wake, Attachments::NOTHING) {
            Ok(Sent::Done | Sent::Full) => true,
            Ok(Sent::Refused) | Err(_) => {
                unpoisoned(&self.later).wake = true;
                // An event loop may not look at its set before the peer answers, and this thread may never sleep on
                // this link.
                self.wake_sets();
                deferred::try_later("wake-ups", peers::send_all_that_is_unsent);
                false
            }
            Ok(Sent::HungUp) => {
                self.fail(Error::PeerClosed);
                true
            }
        }
    }

    fn try_lead(&self) -> bool {
        let mut leader = unpoisoned(&self.leader);
        let free = *leader == Leader::None;
        if free {
            *leader = Leader::Sleeping;
        }
        free
    }

    /// Receives the packets in the socket, as many as [`drain_limit`](Self::drain_limit) allows. The calling thread
    /// must be the leader, and no longer is when the call returns.
    fn receive_and_leave(&self) -> Result<(), Error> {
        *unpoisoned(&self.leader) = Leader::Receiving;
        let received = self.receive_all(|_| false);
        self.leave();
        received.map(|_more| ())
    }

    /// Receives the packets in the socket, as many as [`drain_limit`](Self::drain_limit) allows. Does nothing if
    /// another thread is the leader. Returns no error: a permanent error is stored in the link, which is then down.
    fn drain_once(&self) {
        if self.try_lead() {
            // An error is stored in the link.
            let _ = self.receive_and_leave();
        }
    }

    fn leave(&self) {
        let mut leader = unpoisoned(&self.leader);
        *leader = Leader::None;
        // A thread that begins to follow after this sees that there is no leader.
        let followed = self.followers.load(Ordering::Relaxed) > 0;
        drop(leader);
        if followed {
            self.turn.notify_all();
        }
        self.answer_notifications();
    }

    /// Sleeps as a follower until the leader has received packets or stops leading, for at most `limit` (`None`:
    /// without a limit). Releases the lock `leader` meanwhile, and returns it locked again.
    fn follow<'a>(&'a self, leader: MutexGuard<'a, Leader>, limit: Option<Duration>) -> MutexGuard<'a, Leader> {
        self.followers.fetch_add(1, Ordering::Relaxed);
        let leader = self.turn.wait(&self.leader, leader, limit);
        self.followers.fetch_sub(1, Ordering::Relaxed);
        leader
    }

    /// Receives the packets in the socket, for a wait set whose epoll instance reported the socket. If another thread
    /// is the leader, that thread receives; if `may_wait`, the call then waits for the leader for at most [`MOMENT`].
    /// Fails if the packets cannot be received now, or if the link goes down because of them.
    pub(crate) fn drain(&self, may_wait: bool) -> Result<(), Error> {
        if self.is_down() {
            return Ok(());
        }
        if self.try_lead() {
            return self.receive_and_leave();
        }
        let leader = unpoisoned(&self.leader);
        if may_wait && *leader != Leader::None {
            drop(self.follow(leader, Some(MOMENT)));
        }
        Ok(())
    }

    /// Asks the kernel which process sent the first packet of the link, unless that is known. Leaves the packet in the
    /// socket. Returns `false` if no packet has arrived. Returns `true` if packets may be received now. Only the leader
    /// may call this.
    fn knows_who_it_is(&self) -> Result<bool, Error> {
        let Some(socket) = self.io.socket().filter(|_| !self.is_identified.load(Ordering::Relaxed)) else {
            return Ok(true);
        };
        let mut sender = credentials::of_next_packet(socket, closing::close_nobodys)?;
        if sender.is_none() {
            // The first packet may arrive just now, and must not be taken before the kernel was asked for the sender.
            let found = self.io.wait(Interest::Readable, Deadline::NOW)?;
            if !found.hung_up {
                if found.readable {
                    self.io.check_nothing()?;
                }
                return Ok(false);
            }
            // The peer may have sent packets between the two looks and hung up then. After a hang-up it sends none.
            sender = credentials::of_next_packet(socket, closing::close_nobodys)?;
        }
        let Some(Next { sender, .. }) = sender else { return Ok(true) };
        // From here on the kernel attaches no credentials to packets; while it attaches them, nothing is received.
        credentials::ask(socket, false)?;
        // An honest peer asks for credentials itself before its handshake, and so has its own attached. The kernel
        // cannot name a peer that did not; the creator of the socket need not be the peer.
        if let Sender::Known(peer) = sender {
            self.liveness.began(peer);
            let _ = self.peer.set(peer);
            self.ledger.belongs_to(peer);
        }
        self.is_identified.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Receives packets into the inbox until there are none or `enough` returns `true`. Returns `true` only if
    /// [`drain_limit`](Self::drain_limit) was reached before that, so that packets may be left in the socket. After a
    /// permanent error the link is down. Only the leader may call this.
    fn receive_all(&self, enough: impl FnMut(&mut Inbox) -> bool) -> Result<bool, Error> {
        let received = self.receive_until(enough);
        self.stuck.store(received.is_err(), Ordering::Relaxed);
        if let Err(error) = received {
            if !error.passes() {
                self.fail(error);
            }
            // Behind a packet that cannot be taken now there may be another one that would have woken a member.
            self.begin_round();
        }
        received
    }

    fn receive_until(&self, mut enough: impl FnMut(&mut Inbox) -> bool) -> Result<bool, Error> {
        let (mut work, limit) = (0, self.drain_limit());
        while work < limit {
            if !self.knows_who_it_is()? {
                return Ok(false);
            }
            self.check_room()?;
            match self.io.receive(self.refuses_descriptors())? {
                Incoming::Empty => {
                    if work == 0 {
                        self.io.check_nothing()?;
                    }
                    return Ok(false);
                }
                Incoming::HungUp => {
                    self.fail(Error::PeerClosed);
                    return Ok(false);
                }
                Incoming::Packet { packet, attachments } => {
                    work += 1 + attachments.len();
                    self.put_and_take(packet, attachments)?;
                    self.packet_came();
                    self.begin_round();
                }
            }
            if enough(&mut self.inbox()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Processes a received packet with its attachments, and removes it from the socket. After a temporary error nothing
    /// has changed, and the packet stays in the socket.
    ///
    /// No thread closes a descriptor of the packet before the packet is removed. Otherwise the removal would be the last
    /// close, which can take as long as the sender likes. So this thread holds back what it closes meanwhile, and the
    /// other threads find the handles in the inbox only afterwards.
    fn put_and_take(&self, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        let _held_back = (!attachments.is_empty()).then(closing::hold_back);
        if packet.handles() > 0 {
            let mut inbox = self.inbox();
            inbox.put(packet, attachments)?;
            return self.io.take(&packet);
        }
        self.put(packet, attachments)?;
        self.io.take(&packet)
    }

    /// Processes a received packet with its attachments. After a temporary error nothing has changed, and the call can
    /// be repeated with the same packet.
    fn put(&self, packet: Packet, attachments: Vec<ReceivedAttachment>) -> Result<(), Error> {
        match packet {
            Packet::Introduce { .. } | Packet::Arena { .. } => self.directory.learn(self, packet, attachments),
            Packet::Wake => {
                // A sleeping thread that has something to do makes up for this count.
                self.woken_for_nothing();
                Ok(())
            }
            Packet::Retract { token } => {
                self.woken_for_nothing();
                self.discard_received(token);
                Ok(())
            }
            // The message of the descriptors that were sent ahead has failed.
            Packet::Ahead { count: 0, .. } => {
                self.woken_for_nothing();
                self.inbox().put(packet, attachments)
            }
            Packet::Handshake { name, versions, layout, features } => {
                self.learn_how_it_speaks(versions, layout, features)?;
                if name != ANONYMOUS {
                    self.learn_name(name);
                }
                Ok(())
            }
            Packet::Refuse { reason, versions } => Err(Error::Refused(Refusal::heard(reason, versions))),
            Packet::Connect { .. } => Err(Error::BadPeer("a connect request on an accepted connection")),
            Packet::Accept => {
                self.accepted.store(true, Ordering::Release);
                Ok(())
            }
            Packet::ReadyBitmap => {
                let attachment = attachments.first().ok_or(MISSING)?;
                // There is one notification area for each link, so it is mapped whatever the limits.
                let mapping = attachment.map_anyway(ready_bitmap::BYTES..=ready_bitmap::BYTES, &self.ledger)?;
                self.learn_bitmap(mapping)
            }
            Packet::Open { token, version, cells, .. } => {
                let attachment = attachments.first().ok_or(MISSING)?;
                let sizes =
                    self.layout().sizes_of_lanes(1, cells).ok_or(Error::BadPeer("a ring of impossible size"))?;
                let ring = attachment.map(sizes, &self.ledger)?;
                self.inbox().put_open(version, OpenPacket { token, cells, ring })?;
                // An end that is not open yet has no sleep word of the peer's in which it could be armed.
                self.notify_all();
                Ok(())
            }
            _ => self.inbox().put(packet, attachments),
        }
    }

    /// Handles the peer's handshake: stores the peer's memory layout and features. If this process and the peer have no
    /// version in common, refuses the peer and fails with [`Error::Refused`].
    fn learn_how_it_speaks(&self, versions: Versions, layout: u64, features: u64) -> Result<(), Error> {
        if VERSIONS.common(versions).is_none() {
            let refusal = Refusal::version(versions);
            // Tells the peer, so that it can report the reason too.
            let _ = self.io.send(&refusal.packet(), Attachments::NOTHING);
            return Err(Error::Refused(refusal));
        }
        let parameters = PeerParameters::heard(layout, features)?;
        self.parameters.set(parameters).map_err(|_| Error::BadPeer("a second handshake"))
    }

    /// Returns the layout of the words in the shared memory that the peer creates. Until the peer's handshake was
    /// received, returns [`Layout::FIRST`].
    pub(crate) fn layout(&self) -> Layout {
        self.parameters.get().map_or(Layout::FIRST, |parameters| parameters.layout)
    }

    /// Returns whether the peer's handshake has the bit `feature` among its feature bits. If the handshake was not
    /// received yet, first receives what is in the socket; `false` if the handshake was not there.
    pub(crate) fn knows(&self, feature: u64) -> bool {
        if self.parameters.get().is_none() && !self.is_local() {
            self.drain_once();
        }
        self.parameters.get().is_some_and(|parameters| parameters.features & feature != 0)
    }

    /// Takes from the inbox an attachment that the peer sent before the record that refers to it. Calls `find`, and
    /// receives packets until `find` returns the attachment. Returns `None` if `find` has returned nothing and there
    /// are no more packets, or after some [`FETCH_LIMIT`] packets.
    pub(crate) fn fetch<T>(&self, find: impl FnMut(&mut Inbox) -> Option<T>) -> Result<Option<T>, Error> {
        self.fetch_among(FETCH_LIMIT, find)
    }

    /// Takes from the inbox an item to which no record refers and which the peer sends before everything else, such as
    /// the peer's open packet. Works like [`Link::fetch`], but if the link has used up its budget of idle wake-ups,
    /// receives only as many packets as [`drain_limit`](Self::drain_limit) allows.
    pub(crate) fn fetch_first<T>(&self, find: impl FnMut(&mut Inbox) -> Option<T>) -> Result<Option<T>, Error> {
        self.fetch_among(if self.is_over_wake_limit() { 0 } else { FETCH_LIMIT }, find)
    }

    /// Takes an attachment from the inbox: calls `find`, and receives packets until `find` returns the attachment.
    /// Returns `None` if there are no more packets, or after about `packets` packets. With 0, receives only as many as
    /// [`drain_limit`](Self::drain_limit) allows.
    fn fetch_among<T>(
        &self,
        packets: usize,
        mut find: impl FnMut(&mut Inbox) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut work = 0;
        loop {
            if let Some(found) = find(&mut self.inbox()) {
                return Ok(Some(found));
            }
            if self.try_lead() {
                *unpoisoned(&self.leader) = Leader::Receiving;
                // Another thread may have received the attachment before it stopped leading.
                let mut found = find(&mut self.inbox());
                let received = match found {
                    Some(_) => Ok(false),
                    None => self.receive_all(|inbox| {
                        found = find(inbox);
                        found.is_some()
                    }),
                };
                self.leave();
                if found.is_some() {
                    return Ok(found);
                }
                // The packets that came may be for other threads; none was for this call.
                work += self.drain_limit();
                if received? && work < packets {
                    continue;
                }
                return Ok(None);
            }
            let leader = unpoisoned(&self.leader);
            match *leader {
                Leader::None => {}
                // If the socket is readable, a sleeping leader is about to wake up and receive the packet.
                Leader::Sleeping if !self.io.wait(Interest::Readable, Deadline::NOW)?.readable => {
                    drop(leader);
                    return Ok(find(&mut self.inbox()));
                }
                Leader::Sleeping | Leader::Receiving => {
                    drop(self.follow(leader, Some(FOLLOW)));
                }
            }
        }
    }

    /// Sleeps until `done` returns `true`, the link is down, the deadline passes or an interruption comes. The caller
    /// checks which of these happened. The caller has [noted](Interruption::note) before that its thread sleeps here.
    pub(crate) fn park(
        &self,
        deadline: Deadline,
        interruption: Interruption<'_>,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let mut done = || done() || interruption.has_come();
        // Whether packets are unsent, as a follower has found out before it follows the leader.
        let mut is_unsent = None;
        let mut leader = unpoisoned(&self.leader);
        loop {
            if done() || self.is_down() || deadline.has_passed() {
                return Ok(());
            }
            if *leader == Leader::None {
                *leader = Leader::Sleeping;
                drop(leader);
                is_unsent = None;
                let (interest, slice) = self.until_all_is_sent(deadline);
                let found = self.sleep(interest, slice, interruption);
                let received = self.receive_and_leave();
                let found = found?;
                received?;
                if found.hung_up && !found.readable {
                    self.fail(Error::PeerClosed);
                } else if self.is_over_wake_limit() && !done() {
                    crate::os::pause(deadline.within(PAUSE));
                }
                leader = unpoisoned(&self.leader);
            } else {
                // The leader notifies when it has received something and when it stops leading. It may have gone to
                // sleep before this thread's packet was refused, so this thread tries again to send that packet.
                let Some(is_unsent) = is_unsent.take() else {
                    drop(leader);
                    is_unsent = Some(self.unsent().is_some());
                    leader = unpoisoned(&self.leader);
                    continue;
                };
                let limit = is_unsent.then(|| deadline.within(POLL_INTERVAL));
                leader = self.follow(leader, limit.or_else(|| deadline.remaining(Instant::now())));
            }
        }
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// Asks the kernel whether the peer is alive, unless this process has asked within the last [`PROBE_EVERY`]. Used
    /// by threads that spin.
    pub(crate) fn probe_if_due(&self) {
        if !self.is_local() && self.is_due() {
            self.probe();
        }
    }

    /// Asks the kernel whether the peer is alive, if the peer may have been idle for [`PROBE_EVERY`] and this process
    /// has not asked within that time. `news` says whether the caller, an end of the link, has noticed activity of the
    /// peer since its last check; the call then only resets the idle timer.
    pub(crate) fn probe_if_idle(&self, news: bool) {
        if news {
            self.idle_timer.reset();
        } else if !self.is_local() && self.idle_timer.lasts(self.age()) >= PROBE_EVERY {
            self.probe_if_due();
        }
    }

    /// Returns whether the peer's process is known to be dead; if so, the link is down from now on. `false` if the
    /// process is alive, even if the link is down, and if the kernel does not say which process the peer is. Asks the
    /// kernel.
    pub(crate) fn has_lost_its_peer(&self) -> bool {
        matches!(self.watch(), liveness::Watch::Died)
    }

    /// Returns the time in nanoseconds since the link was created.
    fn age(&self) -> u64 {
        u64::try_from(self.born.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn is_due(&self) -> bool {
        let now = self.age();
        let due = now.saturating_sub(self.probed.load(Ordering::Relaxed)) >= PROBE_EVERY.as_nanos() as u64;
        if due {
            self.probed.store(now, Ordering::Relaxed);
        }
        due
    }

    /// Asks the kernel whether the peer's process is alive and its end of the socket open. If not, the link is down
    /// from now on. Does nothing on a local link and on a link that is down.
    #[cold]
    pub(crate) fn probe(&self) {
        if self.is_local() || self.is_down() {
            return;
        }
        // The first packet, which tells who the peer is, may be there unread if this process only sends.
        if !self.is_identified.load(Ordering::Relaxed) && self.try_lead() {
            if let Err(error) = self.knows_who_it_is()
                && !error.passes()
            {
                self.fail(error);
            }
            self.leave();
        }
        let has_hung_up = || self.io.wait(Interest::Readable, Deadline::NOW).is_ok_and(|found| found.hung_up);
        if has_hung_up() || self.liveness.is_over() {
            self.fail(Error::PeerClosed);
        }
    }
}

impl Drop for Link {
    /// Receives the remaining packets of a link that is dropped. Channels over another link to the same process may
    /// need what the peer announced over this link.
    fn drop(&mut self) {
        if self.is_elsewhere() {
            return;
        }
        peers::note_dropped();
        if peers::is_alone() || !self.directory.may_drain() {
            return;
        }
        let Some(socket) = self.io.socket() else { return };
        // From here on the peer cannot send; what it sent before is still there.
        crate::os::socket::stop_receiving(socket);
        let _ = self.receive_all(|_| false);
        fault::point("before the socket of a link is closed");
        self.directory.end(self);
    }
}

impl Sleepers for Link {
    /// Wakes the followers of this link, so that each checks the condition for which it waits.
    fn wake_followers(&self) {
        // Under the lock, or a follower that has just checked would miss the notification.
        let _leader = unpoisoned(&self.leader);
        if self.followers.load(Ordering::Relaxed) > 0 {
            self.turn.notify_all();
        }
    }

    fn weak_if_socket(&self) -> Option<Weak<dyn Sleepers>> {
        if self.is_local() { None } else { Some(self.weak()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::directory::LaneDirectory;
    use crate::os::socket::Readiness;
    use crate::quota::Amounts;

    const MS: u64 = 1_000_000;

    /// The transport of a link from whose peer one packet has come. It holds the packet's only descriptor, the writing
    /// end of a pipe, like a socket would: until the packet is removed.
    struct OnePacket {
        incoming: Mutex<Option<Incoming>>,
        reader: std::io::PipeReader,
        /// Whether the writing end of the pipe had been closed when the packet was removed.
        was_closed: Arc<AtomicBool>,
        local: Local,
    }

    impl Io for OnePacket {
        fn send(&self, packet: &Packet, attachments: Attachments<'_>) -> Result<Sent, Error> {
            self.local.send(packet, attachments)
        }

        fn receive(&self, _refusing: bool) -> Result<Incoming, Error> {
            Ok(unpoisoned(&self.incoming).take().unwrap_or(Incoming::Empty))
        }

        fn take(&self, _packet: &Packet) -> Result<(), Error> {
            // Another thread has time to close the descriptor, which it must not do yet.
            let limit = Deadline::after(Duration::from_millis(100));
            let found = crate::os::socket::wait(self.reader.as_fd(), Interest::Readable, limit)?;
            self.was_closed.store(found.hung_up, Ordering::Relaxed);
            Ok(())
        }

        fn check_nothing(&self) -> Result<(), Error> {
            Ok(())
        }

        fn wait(&self, interest: Interest, deadline: Deadline) -> Result<Readiness, Error> {
            self.local.wait(interest, deadline)
        }

        fn memory(&self, name: &str, len: usize) -> Result<crate::shm::Shareable, Error> {
            self.local.memory(name, len)
        }

        fn socket(&self) -> Option<std::os::fd::BorrowedFd<'_>> {
            None
        }
    }

    /// Creates a link over which the handles of message 1 have come, but have not been received. Returns the link, its
    /// ledger, and the flag [`OnePacket::was_closed`].
    fn with_one_packet() -> (Arc<Link>, Arc<Ledger>, Arc<AtomicBool>) {
        let (reader, writer) = std::io::pipe().unwrap();
        let ledger = Ledger::new(Some(1 << 20));
        let fd = closing::ReceivedFd::new(writer.into(), &ledger.payer());
        let payload = packet::PayloadMemory::None;
        let packet = Packet::Message { token: 1, message: 1, payload, has_table: false, handles: 1 };
        let incoming = Incoming::Packet { packet, attachments: vec![ReceivedAttachment(fd)] };
        let was_closed = Arc::new(AtomicBool::new(false));
        let io =
            OnePacket { incoming: Mutex::new(Some(incoming)), reader, was_closed: was_closed.clone(), local: Local };
        (Link::new(1, Box::new(io), ledger.clone(), Box::<LaneDirectory>::default()), ledger, was_closed)
    }

    #[test]
    fn descriptors_over_a_limit_are_closed_after_their_packet_was_removed() {
        let (link, ledger, was_closed) = with_one_packet();
        let _all = ledger.charge_anyway(Amounts::of(crate::quota::Resource::Descriptors, 1 << 20));
        link.drain(false).unwrap();
        assert!(!was_closed.load(Ordering::Relaxed));
        let lost = link.inbox().take_handles(1, 1, 1).unwrap();
        assert_eq!((lost.sent, lost.descriptors.len()), (1, 0));
    }

    #[test]
    fn no_other_thread_gets_handles_before_their_packet_was_removed() {
        let (link, _ledger, was_closed) = with_one_packet();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let take = || link.inbox().take_handles(1, 1, 1);
                while take().map(drop).is_none() {
                    std::thread::yield_now();
                }
            });
            link.drain(false).unwrap();
        });
        assert!(!was_closed.load(Ordering::Relaxed));
    }

    /// Shows that a sender that checks every millisecond, and finds activity at every fourth check, sees less than 5 ms
    /// of idle time.
    #[test]
    fn a_peer_that_says_something_now_and_then_is_never_silent_for_long() {
        let idle_timer = IdleTimer::default();
        for at in 0..1000 {
            if at % 4 == 0 {
                idle_timer.reset();
            } else {
                assert!(idle_timer.lasts(at * MS) < Duration::from_millis(5), "at {at} ms");
            }
        }
    }

    #[test]
    fn a_peer_that_says_nothing_more_is_silent_since_the_last_look_before() {
        let idle_timer = IdleTimer::default();
        idle_timer.reset();
        assert_eq!(idle_timer.lasts(3 * MS), Duration::from_millis(3));
        idle_timer.reset();
        assert_eq!(idle_timer.lasts(4 * MS), Duration::from_millis(1));
        assert_eq!(idle_timer.lasts(13 * MS), Duration::from_millis(10));
        // A process that sends seldom probes at its first look that finds no activity.
        idle_timer.reset();
        assert!(idle_timer.lasts(500 * MS) > PROBE_EVERY);
    }
}
