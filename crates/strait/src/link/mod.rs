//! The connection between two processes: one socket, which carries only what needs the kernel.
//!
//! Rings carry the messages. The link carries the [packets](packet) that bring memory and descriptors, always sent
//! before the record that refers to them is committed, and the wake-ups for whoever sleeps in `poll`. That the
//! socket hangs up is how the end of a process is seen.
//!
//! Whoever needs something from the socket receives what is there into the [stash](stash::Stash). Only one thread
//! receives at a time, the **leader**; it may sleep in `poll` while it leads, and the others that wait on the same
//! link **follow**: they sleep until the leader has received something, and when it leaves one of them leads. (Were
//! two to receive, one could take the packet whose arrival is to wake the other from `poll`, which would then sleep
//! on.)

pub(crate) mod acquaintance;
mod arenas;
mod bells;
pub(crate) mod io;
pub(crate) mod life;
mod number;
pub(crate) mod packet;
mod patience;
pub(crate) mod reach;
mod room;
mod stash;
mod stuck;
mod under_way;

use std::ops::RangeInclusive;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use crate::deadline::Deadline;
use crate::error::{Error, Refusal};
use crate::lane::arena;
use crate::os::fault;
use crate::os::fork::{Born, PerProcess};
use crate::os::socket::credentials::{self, Next, Sender};
use crate::os::socket::{Interest, Sent};
use crate::peer::Peer;
use crate::quota::{Ledger, Payer, Usage};
use crate::ring::board;
use crate::shm::Layout;
use crate::sync::unpoisoned;
use crate::wake::interrupt::Interruption;
use acquaintance::Acquaintance;
use arenas::Arenas;
use bells::Bells;
use io::{Arrival, Incoming, Local, Socket};
pub(crate) use io::{Io, Parcel};
use life::Life;
pub(crate) use number::Number;
use packet::{FEATURES, KNOWS_TRIES, Packet, VERSIONS, Versions};
pub(crate) use patience::PAUSE;
pub(crate) use reach::InUse;
pub(crate) use room::Lack;
pub(crate) use stash::{Handles, Hello, MemoryKey, Stash};
use under_way::AllUnderWay;
pub(crate) use under_way::{Amount, UnderWay, Until};

/// How often a thread that looks without sleeping asks the kernel whether the peer still lives.
const PROBE_EVERY: Duration = Duration::from_millis(10);

/// Packets, and descriptors with them, received in one go, so that a peer that keeps sending cannot keep a thread here.
const DRAIN_LIMIT: usize = 1024;

/// How long the first packets of a link may wait to be sent.
const FIRST: Duration = Duration::from_millis(100);

/// The same for something that was sent before it was asked for, and so has no more before it than what fits a socket.
const FETCH_LIMIT: usize = 8 * DRAIN_LIMIT;

/// How long a follower sleeps at most before it looks for itself.
const FOLLOW: Duration = Duration::from_millis(10);

/// How long a wait set waits for another thread to receive what it found.
const MOMENT: Duration = Duration::from_millis(1);

/// What this process says first on each link. By the name [`NAMELESS`] no link is known as leading to where another one
/// leads.
pub(crate) fn greeting(name: u128) -> Packet {
    Packet::Greet { name, versions: VERSIONS, features: FEATURES, layout: Layout::FIRST.said() }
}

/// The name of a process that does not say it.
pub(crate) const NAMELESS: u128 = 0;

/// What a peer has done that did not send what its packet says.
const MISSING: Error = Error::BadPeer("memory that did not come");

/// The number of the link of this process to itself.
const OWN_NUMBER: u64 = 0;

/// What the leader is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Leader {
    None,
    Sleeping,
    Receiving,
}

/// What a process said in its greeting of how it does things.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// Where the words are in the memory that it makes.
    layout: Layout,
    features: u64,
}

impl Manner {
    /// What a peer said.
    pub(crate) fn heard(layout: u64, features: u64) -> Result<Self, Error> {
        let layout = Layout::heard(layout).ok_or(Error::BadPeer("a layout that cannot be"))?;
        Ok(Self { layout, features })
    }
}

pub(crate) struct Link {
    /// Younger links have higher numbers; that of the process to itself is 0.
    number: u64,
    me: Weak<Self>,
    io: Box<dyn Io>,
    /// How much goes on over it: see [`reach`].
    uses: AtomicUsize,
    /// How much of that may be for ends that have not come.
    away: AtomicUsize,
    arenas: Arenas,
    acquaintance: Acquaintance,
    bells: Bells,
    ledger: Arc<Ledger>,
    patience: patience::Patience,
    /// Whether descriptors of messages are left to the kernel.
    refuses: AtomicBool,
    under_way: AllUnderWay,
    later: Mutex<Later>,
    leader: Mutex<Leader>,
    /// Woken whenever the leader has received something or leaves.
    turn: Condvar,
    /// How many sleep on that; written under the leader's lock. Waking nobody would be a system call, too.
    followers: AtomicUsize,
    stash: Mutex<Stash>,
    /// Whether the packet at the head of the socket could not be taken the last time, for a reason that passes.
    stuck: AtomicBool,
    /// Why nothing more will come; set before `is_down`.
    reason: OnceLock<Error>,
    is_down: AtomicBool,
    peer: OnceLock<Peer>,
    life: Life,
    /// What the peer said of itself.
    manner: OnceLock<Manner>,
    /// Whether the peer has let us in, where we knocked.
    welcomed: AtomicBool,
    greeted: AtomicBool,
    born: Instant,
    /// In which process it is used.
    home: Born,
    /// When the kernel was last asked, in nanoseconds since `born`.
    probed: AtomicU64,
    silence: Silence,
}

/// What the kernel has refused to send and need not be sent before anything else.
#[derive(Default)]
struct Later {
    /// No more than two for each thread: a packet is only left for a message of which another one was sent, and nothing is
    /// sent over the link as long as one is left.
    packets: Vec<Packet>,
    /// Whether the peer is to be woken: no packet among the others, so that it takes no memory.
    wake: bool,
}

/// How long a peer to which something is sent has given no sign of life. Times are in nanoseconds since the birth of its link.
#[derive(Default)]
struct Silence {
    /// Whether there was news of it when it was last looked at.
    heard: AtomicBool,
    /// When there was last no news.
    looked: AtomicU64,
    /// Since when there is none, at the earliest.
    since: AtomicU64,
}

impl Later {
    /// The first of it was sent.
    fn sent_one(&mut self) {
        if self.packets.is_empty() {
            self.wake = false;
        } else {
            self.packets.remove(0);
        }
    }
}

// Of two threads at once one's look may get lost, which makes no difference that matters.
impl Silence {
    /// The peer has done something since an end of the link looked last. Nobody needs the clock.
    #[inline]
    fn is_broken(&self) {
        self.heard.store(true, Ordering::Relaxed);
    }

    /// How long it may have lasted, where there was no news at `now`. A peer gives its sign only so often (credit, after a quarter
    /// of a ring), so that in steady flow, too, there is no news many times in a row; but never for long. It was silent no
    /// longer than since there was no news before that: who sends seldom need not look twice.
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
    fn new(number: u64, io: Box<dyn Io>, ledger: Arc<Ledger>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            number,
            me: me.clone(),
            io,
            uses: AtomicUsize::new(0),
            away: AtomicUsize::new(0),
            arenas: Arenas::default(),
            acquaintance: Acquaintance::default(),
            bells: Bells::default(),
            ledger: ledger.clone(),
            patience: patience::Patience::default(),
            refuses: AtomicBool::new(false),
            under_way: AllUnderWay::default(),
            later: Mutex::default(),
            leader: Mutex::new(Leader::None),
            turn: Condvar::new(),
            followers: AtomicUsize::new(0),
            stash: Mutex::new(Stash::new(ledger)),
            stuck: AtomicBool::new(false),
            reason: OnceLock::new(),
            is_down: AtomicBool::new(false),
            peer: OnceLock::new(),
            life: Life::default(),
            manner: OnceLock::new(),
            welcomed: AtomicBool::new(false),
            greeted: AtomicBool::new(false),
            born: Instant::now(),
            home: Born::here(),
            probed: AtomicU64::new(0),
            silence: Silence::default(),
        })
    }

    /// The link over a connected socket.
    pub(crate) fn over(socket: OwnedFd, memory_limit: usize) -> Result<InUse, Error> {
        static NUMBER: AtomicU64 = AtomicU64::new(1);
        credentials::ask(socket.as_fd(), true)?;
        crate::os::socket::receive_plainly(socket.as_fd());
        crate::os::close::look_up();
        // A listener's are made without; and others by somebody else.
        let _ = credentials::accept_rights(socket.as_fd(), true);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let ledger = Ledger::new(Some(memory_limit));
        let link = Self::new(number, Box::new(Socket::new(socket, ledger.clone())), ledger).in_use();
        acquaintance::note(&link);
        Ok(link)
    }

    /// The link to a process that has greeted already.
    pub(crate) fn known(socket: OwnedFd, peer: Peer, manner: Manner, memory_limit: usize) -> Result<InUse, Error> {
        let link = Self::over(socket, memory_limit)?;
        credentials::ask(link.io.socket().expect("it is over one"), false)?;
        link.life.began(peer);
        let _ = (link.peer.set(peer), link.manner.set(manner));
        link.greeted.store(true, Ordering::Release);
        Ok(link)
    }

    /// Waits until the peer, at whose door we knocked, has let us in.
    pub(crate) fn await_welcome(&self, deadline: Deadline) -> Result<(), Error> {
        self.fetch(|_| None::<()>)?;
        self.park(deadline, Interruption::NONE, || self.welcomed.load(Ordering::Acquire))?;
        if self.welcomed.load(Ordering::Acquire) {
            Ok(())
        } else if self.is_down() {
            Err(self.reason())
        } else {
            Err(if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut })
        }
    }

    /// Why the peer hung up, if it said so before: who has to make room for others may be sent away before it has knocked.
    pub(crate) fn refusal_or(&self, error: Error) -> Error {
        match (error, self.fetch(|_| None::<()>)) {
            (Error::PeerClosed, Err(refused @ Error::Refused(_))) => refused,
            _ => error,
        }
    }

    /// Says how we speak, and who we are if the peer may have met us elsewhere. The first packet on a link.
    pub(crate) fn greet(&self, name: u128) -> Result<(), Error> {
        self.send_first(&greeting(name), Parcel::NOTHING)
    }

    /// The same on a link that we were introduced to: whoever is at the other end may be gone, or is greeted later, but
    /// before anything else.
    pub(crate) fn greet_sooner_or_later(&self, name: u128) {
        self.send_sooner_or_later(greeting(name));
    }

    /// The link of this process to itself: between ends that are both here.
    pub(crate) fn own() -> InUse {
        static OWN: PerProcess<OnceLock<Arc<Link>>> = PerProcess::new(OnceLock::new);
        // What is mapped is our own.
        OWN.get().get_or_init(|| Self::new(OWN_NUMBER, Box::new(Local::default()), Ledger::nobodys())).in_use()
    }

    /// Whether it is that link.
    #[inline]
    fn is_own(&self) -> bool {
        self.number == OWN_NUMBER
    }

    /// Whether both ends are in this process.
    pub(crate) fn is_local(&self) -> bool {
        self.io.socket().is_none()
    }

    /// Its number in this process.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn io(&self) -> &dyn Io {
        &*self.io
    }

    /// Whether it is a link of another process: the parent of this one.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.home.is_elsewhere()
    }

    /// Whether nothing more will come. One load.
    #[inline]
    pub(crate) fn is_down(&self) -> bool {
        self.is_down.load(Ordering::Acquire)
    }

    /// Whether the packet at the head of the socket could not be taken the last time, for a reason that passes. One load.
    #[inline]
    pub(crate) fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::Relaxed) && !self.is_down()
    }

    /// Why nothing more will come.
    pub(crate) fn reason(&self) -> Error {
        self.reason.get().copied().unwrap_or(Error::PeerClosed)
    }

    pub(crate) fn fail(&self, reason: Error) {
        let _ = self.reason.set(reason);
        let first = !self.is_down.swap(true, Ordering::AcqRel);
        if let Error::BadPeer(broken) = reason {
            self.stash().clear();
            if first {
                self.ledger.broken(broken, true);
            }
        }
        self.rouse_followers();
        if first {
            self.end_bells();
        }
    }

    /// Ends the link for what was found in a message: at the other side too, which sees that we are gone.
    pub(crate) fn cut(&self, reason: Error) {
        self.fail(reason);
        if let Some(socket) = self.io.socket() {
            crate::os::socket::shut(socket);
        }
    }

    /// The process at the other end, once it has said hello.
    pub(crate) fn peer(&self) -> Option<Peer> {
        self.peer.get().copied()
    }

    /// Takes no descriptors of messages from now on.
    pub(crate) fn refuse_descriptors(&self) {
        self.refuses.store(true, Ordering::Relaxed);
    }

    pub(crate) fn refuses_descriptors(&self) -> bool {
        self.refuses.load(Ordering::Relaxed)
    }

    /// Where the peer is charged for what is held for it.
    pub(crate) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    /// What is held for the process at the other end.
    pub(crate) fn usage(&self) -> Usage {
        self.ledger.usage()
    }

    pub(crate) fn stash(&self) -> MutexGuard<'_, Stash> {
        unpoisoned(&self.stash)
    }

    /// Sends a packet that must arrive but that nobody waits for: now, or before the next that is sent.
    pub(crate) fn send_sooner_or_later(&self, packet: Packet) {
        let sent = self.is_local() || matches!(self.try_send(&packet, Parcel::NOTHING), Ok(true));
        if !sent && !self.is_down() {
            unpoisoned(&self.later).packets.push(packet);
        }
    }

    /// Lets go of what came for a direction of a lane and will not be asked for.
    pub(crate) fn discard_stashed(&self, token: u128) {
        self.discard_all_stashed(token..=token);
    }

    /// The same for several.
    pub(crate) fn discard_all_stashed(&self, tokens: RangeInclusive<u128>) {
        let dropped = self.stash().retract(tokens);
        for handles in dropped {
            crate::os::fd_reaper::close_left(handles.handles);
        }
    }

    /// The same of what this process has sent itself, though nobody may have looked for it yet.
    pub(crate) fn discard_within(tokens: RangeInclusive<u128>) {
        let own = Self::own();
        let _ = own.fetch(|_| None::<()>);
        own.discard_all_stashed(tokens);
    }

    /// Whether this process has sent itself something that nobody has asked for yet. Costs two locks.
    pub(crate) fn has_sent_within() -> bool {
        let own = Self::own();
        own.io.wait(Interest::Readable, Deadline::NOW).is_ok_and(|found| found.readable) || !own.stash().is_empty()
    }

    /// Sends one of the first packets of a link. There is room for those; only the kernel may have no memory for a moment.
    pub(crate) fn send_first(&self, packet: &Packet, parcel: Parcel<'_>) -> Result<(), Error> {
        match self.send(packet, parcel, Deadline::after(FIRST), Interruption::NONE) {
            Err(Error::TimedOut) => Err(Error::WouldBlock),
            sent => sent,
        }
    }

    /// Wakes whoever sleeps on the socket at the other end. A full socket is readable, so its sleeper is awake. False if
    /// it could not be woken now: then it is tried again before anything else is sent and whenever a thread of this process
    /// is about to sleep on this link; there may be no other reason to wake it.
    pub(crate) fn wake(&self) -> bool {
        match self.io.send(&Packet::Wake, Parcel::NOTHING) {
            Ok(Sent::Done | Sent::Full) => true,
            Ok(Sent::Refused) | Err(_) => {
                unpoisoned(&self.later).wake = true;
                // A set that an event loop drives may not be looked at before the peer answers.
                self.nudge_sets();
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

    /// Takes in what is there, then lets the next one lead.
    fn receive_and_leave(&self) -> Result<(), Error> {
        *unpoisoned(&self.leader) = Leader::Receiving;
        let received = self.receive_all(|_| false);
        self.leave();
        received.map(|_more| ())
    }

    /// Takes in what is there, if nobody else does.
    fn listen_once(&self) {
        if self.try_lead() {
            // What went wrong is known to the link.
            let _ = self.receive_and_leave();
        }
    }

    fn leave(&self) {
        let mut leader = unpoisoned(&self.leader);
        *leader = Leader::None;
        // Who begins to follow after this sees that nobody leads.
        let followed = self.followers.load(Ordering::Relaxed) > 0;
        drop(leader);
        if followed {
            self.turn.notify_all();
        }
        self.answer_bells();
    }

    /// Sleeps until the leader has received something or leaves, for at most `limit`.
    fn follow<'a>(&self, leader: MutexGuard<'a, Leader>, limit: Option<Duration>) -> MutexGuard<'a, Leader> {
        self.followers.fetch_add(1, Ordering::Relaxed);
        let leader = match limit {
            None => self.turn.wait(leader).unwrap_or_else(PoisonError::into_inner),
            Some(limit) => self.turn.wait_timeout(leader, limit).unwrap_or_else(PoisonError::into_inner).0,
        };
        self.followers.fetch_sub(1, Ordering::Relaxed);
        leader
    }

    /// Takes in what has come, for a wait set that found the socket readable. If another thread is the leader, it does
    /// that; then this waits for it a moment, if it `may_wait`.
    pub(crate) fn attend(&self, may_wait: bool) -> Result<(), Error> {
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

    /// Asks who sent the first packet, which stays where it is, unless that was done before. False if it has not come. For
    /// the leader only.
    fn knows_who_it_is(&self) -> Result<bool, Error> {
        let Some(socket) = self.io.socket().filter(|_| !self.greeted.load(Ordering::Relaxed)) else {
            return Ok(true);
        };
        let mut sender = credentials::of_next_packet(socket, &Payer::default())?;
        if sender.is_none() {
            // The first packet may come just now, and must not be taken before it was asked who sent it.
            let found = self.io.wait(Interest::Readable, Deadline::NOW)?;
            if !found.hung_up {
                if found.readable {
                    self.io.check_nothing()?;
                }
                return Ok(false);
            }
            // The peer may have sent packets between the two looks, and hung up then. After that it sends none.
            sender = credentials::of_next_packet(socket, &Payer::default())?;
        }
        let Some(Next { sender, .. }) = sender else { return Ok(true) };
        // From here on what says who sent a packet is beside none; as long as it is, nothing is received.
        credentials::ask(socket, false)?;
        // A peer of ours asks for credentials itself before it greets, and so has its own attached. One that
        // did not is nobody that the kernel could name; who made the socket says nothing about it.
        if let Sender::Known(peer) = sender {
            self.life.began(peer);
            let _ = self.peer.set(peer);
            self.ledger.belongs_to(peer);
        }
        self.greeted.store(true, Ordering::Relaxed);
        Ok(true)
    }

    /// Takes packets until there are none, or `enough`. True if it stopped short of that, since there were so many. For
    /// the leader only. An error that does not pass is the link's end.
    fn receive_all(&self, enough: impl FnMut(&mut Stash) -> bool) -> Result<bool, Error> {
        let received = self.receive_until(enough);
        self.stuck.store(received.is_err(), Ordering::Relaxed);
        if let Err(error) = received {
            if !error.passes() {
                self.fail(error);
            }
            // Behind what cannot be taken now there may be a packet that would have woken a member.
            self.begin_round();
        }
        received
    }

    fn receive_until(&self, mut enough: impl FnMut(&mut Stash) -> bool) -> Result<bool, Error> {
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
                Incoming::Packet { packet, arrivals } => {
                    work += 1 + arrivals.len();
                    // After an error that passes it stays where it is.
                    self.put(packet, arrivals)?;
                    self.io.take(&packet)?;
                    self.packet_came();
                    self.begin_round();
                }
            }
            if enough(&mut self.stash()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Puts away what came. An error that passes has changed nothing: it can be put away later.
    fn put(&self, packet: Packet, arrivals: Vec<Arrival>) -> Result<(), Error> {
        match packet {
            Packet::Introduce { .. } | Packet::Arena { .. } => self.learn(packet, arrivals),
            Packet::Wake => {
                // Who sleeps and has something to show for it makes up for it.
                self.woken_for_nothing();
                Ok(())
            }
            Packet::Retract { token } => {
                self.woken_for_nothing();
                self.discard_stashed(token);
                Ok(())
            }
            // Says of a message that it failed.
            Packet::Handles { count: 0, .. } => {
                self.woken_for_nothing();
                self.stash().put(packet, arrivals)
            }
            Packet::Greet { name, versions, layout, features } => {
                self.learn_how_it_speaks(versions, layout, features)?;
                if name != NAMELESS {
                    self.greeted_by(name);
                }
                Ok(())
            }
            Packet::Refuse { reason, versions } => Err(Error::Refused(Refusal::heard(reason, versions))),
            Packet::Knock { .. } => Err(Error::BadPeer("it knocked where it is in already")),
            Packet::Welcome => {
                self.welcomed.store(true, Ordering::Release);
                Ok(())
            }
            Packet::Board => {
                let arrival = arrivals.first().ok_or(MISSING)?;
                // One a link, so that no limit need be asked for it.
                let mapping = arrival.map_anyway(board::BYTES..=board::BYTES, &self.ledger)?;
                self.learn_board(mapping)
            }
            Packet::Hello { token, version, cells, .. } => {
                let arrival = arrivals.first().ok_or(MISSING)?;
                let sizes = arena::sizes(1, cells, self.layout()).ok_or(Error::BadPeer("a ring of impossible size"))?;
                let ring = arrival.map(sizes, &self.ledger)?;
                self.stash().put_hello(version, Hello { token, cells, ring })?;
                // An end that is not open yet has no word of the peer's to listen on.
                self.ring_all();
                Ok(())
            }
            _ => self.stash().put(packet, arrivals),
        }
    }

    /// The peer has greeted.
    fn learn_how_it_speaks(&self, versions: Versions, layout: u64, features: u64) -> Result<(), Error> {
        if VERSIONS.common(versions).is_none() {
            let refusal = Refusal::version(versions);
            // So that the other side can say why, too.
            let _ = self.io.send(&refusal.packet(), Parcel::NOTHING);
            return Err(Error::Refused(refusal));
        }
        let manner = Manner::heard(layout, features)?;
        self.manner.set(manner).map_err(|_| Error::BadPeer("it greeted twice"))
    }

    /// How the peer lays out the memory that it makes.
    pub(crate) fn layout(&self) -> Layout {
        self.manner.get().map_or(Layout::FIRST, |manner| manner.layout)
    }

    /// Whether the peer knows that what belongs to a message can be of several tries to send it. Who only sends has perhaps not
    /// heard its greeting yet.
    pub(crate) fn knows_tries(&self) -> bool {
        self.knows(KNOWS_TRIES)
    }

    /// Whether the peer has a feature. Who only sends has perhaps not heard its greeting yet.
    pub(crate) fn knows(&self, feature: u64) -> bool {
        if self.manner.get().is_none() && !self.is_local() {
            self.listen_once();
        }
        self.manner.get().is_some_and(|manner| manner.features & feature != 0)
    }

    /// Gets something that was sent before the record that refers to it; `None` if it was not, or is not there yet
    /// where nothing refers to it.
    pub(crate) fn fetch<T>(&self, find: impl FnMut(&mut Stash) -> Option<T>) -> Result<Option<T>, Error> {
        self.fetch_among(FETCH_LIMIT, find)
    }

    /// Gets what the peer sends first, to which nothing refers: from a peer that has woken this process for nothing too often lately,
    /// a call takes only a few packets for it.
    pub(crate) fn fetch_first<T>(&self, find: impl FnMut(&mut Stash) -> Option<T>) -> Result<Option<T>, Error> {
        self.fetch_among(if self.is_out_of_patience() { 0 } else { FETCH_LIMIT }, find)
    }

    /// Gets something if it is among about so many packets, at least a few.
    fn fetch_among<T>(
        &self,
        packets: usize,
        mut find: impl FnMut(&mut Stash) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let mut work = 0;
        loop {
            if let Some(found) = find(&mut self.stash()) {
                return Ok(Some(found));
            }
            if self.try_lead() {
                *unpoisoned(&self.leader) = Leader::Receiving;
                // Another thread may have received it since, before it left.
                let mut found = find(&mut self.stash());
                let received = match found {
                    Some(_) => Ok(false),
                    None => self.receive_all(|stash| {
                        found = find(stash);
                        found.is_some()
                    }),
                };
                self.leave();
                if found.is_some() {
                    return Ok(found);
                }
                // What came may be another's; what was asked for was not among it.
                work += self.drain_limit();
                // A process may have sent itself any amount, of which nobody has asked for anything yet.
                if received? && (work < packets || self.is_local()) {
                    continue;
                }
                return Ok(None);
            }
            let leader = unpoisoned(&self.leader);
            match *leader {
                Leader::None => {}
                // Then it is about to wake up and receive it.
                Leader::Sleeping if !self.io.wait(Interest::Readable, Deadline::NOW)?.readable => {
                    drop(leader);
                    return Ok(find(&mut self.stash()));
                }
                Leader::Sleeping | Leader::Receiving => {
                    drop(self.follow(leader, Some(FOLLOW)));
                }
            }
        }
    }

    /// Sleeps until `done`, or the link is down, or the deadline has passed, or there was an interruption; the caller looks
    /// which. Where it sleeps is [noted](Interruption::note) by then.
    pub(crate) fn park(
        &self,
        deadline: Deadline,
        interruption: Interruption<'_>,
        mut done: impl FnMut() -> bool,
    ) -> Result<(), Error> {
        let mut done = || done() || interruption.has_come();
        let mut leader = unpoisoned(&self.leader);
        loop {
            if done() || self.is_down() || deadline.has_passed() {
                return Ok(());
            }
            if *leader == Leader::None {
                *leader = Leader::Sleeping;
                drop(leader);
                let (interest, slice) = self.until_all_is_sent(deadline);
                let found = self.sleep(interest, slice, interruption);
                let received = self.receive_and_leave();
                let found = found?;
                received?;
                if found.hung_up && !found.readable {
                    self.fail(Error::PeerClosed);
                } else if self.is_out_of_patience() && !done() {
                    std::thread::sleep(deadline.within(PAUSE));
                }
                leader = unpoisoned(&self.leader);
            } else {
                // No limit but the deadline: the leader tells whatever it receives, and that it leaves.
                let left = deadline.remaining(Instant::now());
                leader = self.follow(leader, left);
            }
        }
    }

    /// Has the followers look what they wait for.
    pub(crate) fn rouse_followers(&self) {
        // Under the lock, or one that has just looked would miss it.
        let _leader = unpoisoned(&self.leader);
        if self.followers.load(Ordering::Relaxed) > 0 {
            self.turn.notify_all();
        }
    }

    pub(crate) fn weak(&self) -> Weak<Self> {
        self.me.clone()
    }

    /// Asks the kernel whether the peer still lives, if that was not done lately. For those who look again and again
    /// without ever sleeping.
    pub(crate) fn probe_if_due(&self) {
        if !self.is_local() && self.is_due() {
            self.probe();
        }
    }

    /// The same, unless the peer did something in as long. Here an end has looked whether there is `news` since its last look.
    pub(crate) fn probe_if_silent(&self, news: bool) {
        if news {
            self.silence.is_broken();
        } else if !self.is_local() && self.silence.lasts(self.age()) >= PROBE_EVERY {
            self.probe_if_due();
        }
    }

    /// In nanoseconds.
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

    /// Asks the kernel whether the peer still lives.
    #[cold]
    pub(crate) fn probe(&self) {
        if self.is_local() || self.is_down() {
            return;
        }
        // Who it is it may have said, and nobody who only sends has listened.
        if !self.greeted.load(Ordering::Relaxed) && self.try_lead() {
            if let Err(error) = self.knows_who_it_is()
                && !error.passes()
            {
                self.fail(error);
            }
            self.leave();
        }
        let has_hung_up = || self.io.wait(Interest::Readable, Deadline::NOW).is_ok_and(|found| found.hung_up);
        if has_hung_up() || self.life.is_over() {
            self.fail(Error::PeerClosed);
        }
    }
}

impl Drop for Link {
    /// What the peer tells over this link may belong to what goes on over another one.
    fn drop(&mut self) {
        if self.is_elsewhere() || acquaintance::is_alone() || !arenas::may_listen() {
            return;
        }
        let Some(socket) = self.io.socket() else { return };
        // From here on the peer cannot send; what it had sent is still there.
        crate::os::socket::stop_receiving(socket);
        let _ = self.receive_all(|_| false);
        fault::point("before the socket of a link is closed");
        let told = std::mem::take(&mut *self.told());
        if !told.is_empty() {
            // One to the same process may not have been listened to yet, and so not be known as such.
            acquaintance::listen_to_all();
            reach::Orphaned { process: self.process(), told }.settle();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// As a sender sees it that looks each millisecond at a peer that gives credit with every fourth look.
    #[test]
    fn a_peer_that_says_something_now_and_then_is_never_silent_for_long() {
        let silence = Silence::default();
        for at in 0..1000 {
            if at % 4 == 0 {
                silence.is_broken();
            } else {
                assert!(silence.lasts(at * MS) < Duration::from_millis(5), "at {at} ms");
            }
        }
    }

    #[test]
    fn a_peer_that_says_nothing_more_is_silent_since_the_last_look_before() {
        let silence = Silence::default();
        silence.is_broken();
        assert_eq!(silence.lasts(3 * MS), Duration::from_millis(3));
        silence.is_broken();
        assert_eq!(silence.lasts(4 * MS), Duration::from_millis(1));
        assert_eq!(silence.lasts(13 * MS), Duration::from_millis(10));
        // Who sends seldom asks with the first look that finds nothing.
        silence.is_broken();
        assert!(silence.lasts(500 * MS) > PROBE_EVERY);
    }
}
