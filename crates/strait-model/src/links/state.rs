//! The objects: processes, sockets with a link at each side, lanes, and the tables of introducers.

use super::configuration::Configuration;

/// The number of a process, which stands for its verified identity.
pub type Process = u8;
/// A set of processes or of lanes, with one bit for each.
pub type Set = u8;
/// The id of a socket: its index in [`State::sockets`].
pub type SocketId = u8;
/// The id of a lane: its index in [`State::lanes`].
pub type LaneId = u8;

/// `V`: a process with a link to each of the others.
pub const V: Process = 0;
/// `H`: the process at the other end of V's lanes.
pub const H: Process = 1;
/// `B`: an honest introducer.
pub const B: Process = 2;
/// `A`: a hostile process.
pub const A: Process = 3;
/// `HOSTILE`: the set of processes that do not keep to the protocol.
pub const HOSTILE: Set = 1 << A;

/// Returns the set with a single member.
pub fn bit(number: u8) -> Set {
    1 << number
}

/// A packet on a socket. The kernel keeps the order of packets on one socket. IDLE has the number of *counted*
/// packets.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Packet {
    /// The handshake: the first packet of a side.
    Handshake {
        /// The sender, as reported by the kernel.
        from: Process,
        /// The identity claimed by the sender.
        claims: Process,
        /// Whether the sender claims that the sender's half is direct: made by connect, accept or spawn.
        direct: bool,
    },
    /// Opens a lane on this link. Counted in IDLE.
    Open(LaneId),
    /// A packet for a lane: a message's attachments or a wake-up. Counted in IDLE.
    Data(LaneId),
    /// The sender knows no lane with this id.
    NoLane(LaneId),
    /// IDLE: the sender does not need the link any more, and has received so many counted packets.
    Idle(u8),
    /// AGREE: answers IDLE; the link is closed.
    Agree,
    /// REFUSE: answers IDLE; the link stays open.
    Refuse,
    /// An introduction: one half of a new socket pair, and the first lane over it. Counted in IDLE.
    Half {
        /// The socket pair; its id is also the number of the link.
        socket: SocketId,
        /// The side (0 or 1) of the half.
        side: u8,
        /// The first lane over the socket pair.
        lane: LaneId,
        /// The process at the other half, as verified by the introducer.
        expected: Process,
        /// The processes that could have kept a copy of the socket, as known to the introducer.
        makers: Set,
    },
    /// The introducer names a further lane over an introduced link. Counted in IDLE.
    Lane(SocketId, LaneId),
    /// FORGET: asks the introducer to stop naming the link, unless the introducer has named the link more often than
    /// the number says.
    Forget(SocketId, u8),
    /// RELEASED: the introducer names this link no more.
    Released(SocketId),
    /// *Yourself*: an introducer sends this end (0 or 1) of a lane, whose other end is in the receiving process, too.
    /// Counted in IDLE.
    Yourself(LaneId, u8),
    /// A connect request.
    Connect,
    /// REUSE: answers a connect request; the lane runs over a link that both processes have.
    Reuse(LaneId, SocketId),
    /// NEW: answers a connect request; the lane runs over the socket of the connect.
    New(LaneId),
}

impl Packet {
    /// Returns whether IDLE counts the packet.
    pub fn counted(self) -> bool {
        matches!(
            self,
            Packet::Open(_) | Packet::Data(_) | Packet::Half { .. } | Packet::Lane(..) | Packet::Yourself(..)
        )
    }
}

/// The provenance of a link, as known to one side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// Made by the two processes themselves.
    Direct,
    /// The two halves came over other links.
    Introduced,
    /// The evidence about the link does not agree: the link is shared with nothing.
    Foreign,
}

/// A link as seen by one of its two processes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Link {
    /// The provenance of the link.
    pub origin: Origin,
    /// The process that connected or accepted, according to the kernel.
    pub credentials: Option<Process>,
    /// The peer, according to the introducer.
    pub expected: Option<Process>,
    /// The sender of the first packet; `None` until that packet was received.
    pub peer: Option<Process>,
    /// The makers of the link, as known to this process: the processes that could have kept a copy of the socket.
    pub makers: Set,
    /// The link to the introducer, over which the link came.
    pub by: Option<SocketId>,
    /// Whether the introducer may still name this link.
    pub named: bool,
    /// How often the introducer named the link to this process.
    pub announced: u8,
    /// The number in the last FORGET sent by this process for the link.
    pub forgot: Option<u8>,
    /// The lanes bound to the link in this process.
    pub lanes: Set,
    /// The number of counted packets sent by this process over the link.
    pub sent: u8,
    /// The number of counted packets received by this process over the link.
    pub received: u8,
    /// The number in the unanswered IDLE of this process.
    pub asked: Option<u8>,
    /// Whether this process may send IDLE. After a refusal of its IDLE, the process may not send IDLE until it refuses
    /// an IDLE itself.
    pub may_ask: bool,
    /// Whether something outside the model uses the link, so that the link is never idle.
    pub pinned: bool,
}

impl Link {
    /// Returns a link with a single provenance.
    pub fn new(origin: Origin) -> Link {
        Link {
            origin,
            credentials: None,
            expected: None,
            peer: None,
            makers: 0,
            by: None,
            named: false,
            announced: 0,
            forgot: None,
            lanes: 0,
            sent: 0,
            received: 0,
            asked: None,
            may_ask: true,
            pinned: false,
        }
    }
}

/// The place of one half of a socket pair.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// The half is with this process.
    At(Process),
    /// The half is in a packet.
    Travelling,
    /// Closed by the process, or lost with the packet.
    Closed,
}

/// Half of a socket pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Half {
    /// Where the half is.
    pub place: Place,
    /// The packets to be received from this half, the oldest first.
    pub queue: Vec<Packet>,
    /// The link, as seen by the holder of the half.
    pub link: Option<Link>,
}

/// A socket pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// The hostile processes that hold a copy of the socket.
    pub copies: Set,
    /// The process that made the pair, or connected.
    pub maker: Process,
    /// The two halves of the socket.
    pub halves: [Half; 2],
}

impl Socket {
    /// Returns a socket with two halves at the given places, and no packets.
    pub fn new(maker: Process, copies: Set, places: [Place; 2]) -> Socket {
        Socket { copies, maker, halves: places.map(|place| Half { place, queue: Vec::new(), link: None }) }
    }
}

/// The place of one end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// The process of the end was not told of the end yet.
    Coming,
    /// The end is bound to a link.
    At(SocketId),
    /// The end is in a mailbox (a lane with both ends in one process), and came over this link.
    Mailbox(SocketId),
    /// The end was closed by its process, or lost.
    Closed,
}

/// A lane between two processes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The processes of the two ends of the lane.
    pub processes: [Process; 2],
    /// The processes that may harm the lane: the processes of both ends, the source, and the makers.
    pub blame: Set,
    /// The process that opened the lane or moved an end into the lane.
    pub source: Process,
    /// Whether the move is committed, so that the lane may be used.
    pub committed: bool,
    /// The places of the two ends.
    pub ends: [End; 2],
    /// The number of packets sent by each end.
    pub sent: [u8; 2],
    /// The number of packets received by each end.
    pub received: [u8; 2],
}

/// An entry in the table of an introducer, for one socket pair made by the introducer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The introducer.
    pub introducer: Process,
    /// The socket pair.
    pub socket: SocketId,
    /// The two introduced processes, as verified by the introducer.
    pub processes: [Process; 2],
    /// The makers of the pair.
    pub makers: Set,
    /// The introducer's links to the two processes.
    pub links: [SocketId; 2],
    /// The number of times that the pair was named to each of the two processes.
    pub announced: u8,
    /// Whether each of the two processes has sent FORGET since the pair was named last.
    pub forgot: [bool; 2],
}

/// A remaining step of an introduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Task {
    /// The introducer sends the packet for the second process over this link.
    Second(Process, SocketId, Packet),
    /// The introducer commits the move, so that the lane may be used.
    Commit(Process, LaneId),
}

impl Task {
    /// Returns the process of the step.
    pub fn process(self) -> Process {
        match self {
            Task::Second(process, ..) | Task::Commit(process, _) => process,
        }
    }
}

/// A fault, visible in the step of its cause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// The lane ended, although no process that may harm the lane died or is hostile.
    Harmed(LaneId),
    /// This link was closed with an unread counted packet, or with a lane bound to it.
    ClosedInUse(SocketId),
    /// An end of the lane, or the half for the end, reached the wrong process.
    Stolen(LaneId),
    /// A process mistakes the peer on a socket for another process.
    Misnamed(SocketId),
    /// This honest process was taken for a bad peer.
    Accused(Process),
    /// A counted packet was sent over the link between an IDLE and the answer.
    NotQuiet(SocketId),
}

/// The number of optional steps that may still happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    /// The number of introductions left for each line of the configuration.
    pub introductions: Vec<u8>,
    /// The number of connects left for each line of the configuration.
    pub connects: Vec<u8>,
    /// The number of lanes that may still be opened on direct links.
    pub opens: u8,
    /// The number of packets that may still be sent for lanes.
    pub sends: u8,
    /// The number of processes that may still die.
    pub deaths: u8,
    /// The attacks left: one bit for each line of the configuration.
    pub attacks: Set,
}

/// A state of the model: processes, sockets, lanes, tables, and what may still happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The living processes.
    pub alive: Set,
    /// The sockets, by id.
    pub sockets: Vec<Socket>,
    /// The lanes, by id.
    pub lanes: Vec<Lane>,
    /// The entries of all introducers' tables.
    pub entries: Vec<Entry>,
    /// The remaining steps of the introductions in progress.
    pub tasks: Vec<Task>,
    /// The number of optional steps that may still happen.
    pub left: Left,
    /// The fault in the last step, if there was one.
    pub wrong: Option<Wrong>,
}

impl State {
    /// Returns the first state of a configuration.
    pub fn start(configuration: &Configuration) -> State {
        let mut state = State {
            alive: 0b1111,
            sockets: Vec::new(),
            lanes: Vec::new(),
            entries: Vec::new(),
            tasks: Vec::new(),
            left: configuration.left(),
            wrong: None,
        };
        for given in &configuration.links {
            given.add(&mut state);
        }
        state
    }

    /// Returns whether a process lives.
    pub fn alive(&self, process: Process) -> bool {
        self.alive & bit(process) != 0
    }

    /// Returns one half of a socket, for changes.
    pub fn half(&mut self, socket: SocketId, side: u8) -> &mut Half {
        &mut self.sockets[usize::from(socket)].halves[usize::from(side)]
    }

    /// Returns the link at one half of a socket; `None` if the half is no link yet.
    pub fn link(&self, socket: SocketId, side: u8) -> Option<&Link> {
        self.sockets[usize::from(socket)].halves[usize::from(side)].link.as_ref()
    }

    /// Returns the link at one half of a socket, for changes; `None` if the half is no link yet.
    pub fn link_mut(&mut self, socket: SocketId, side: u8) -> Option<&mut Link> {
        self.half(socket, side).link.as_mut()
    }

    /// Returns the lane with this id, for changes.
    pub fn lane(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(lane)]
    }

    /// Returns the holder of one half of a socket; `None` if no process holds the half, or a hostile process made up
    /// the id.
    pub fn holder(&self, socket: SocketId, side: u8) -> Option<Process> {
        match self.sockets.get(usize::from(socket))?.halves[usize::from(side)].place {
            Place::At(process) => Some(process),
            Place::Travelling | Place::Closed => None,
        }
    }

    /// Returns the side of a socket held by a process; `None` if the process holds neither.
    pub fn side_of(&self, socket: SocketId, process: Process) -> Option<u8> {
        (0..2).find(|&side| self.holder(socket, side) == Some(process))
    }

    /// Returns whether the process on this side of a link needs the link.
    pub fn in_use(&self, socket: SocketId, side: u8) -> bool {
        self.link(socket, side).is_some_and(|link| link.pinned || link.named || link.lanes != 0)
            || self.connecting(socket, side)
            || self.introducing(socket, side)
    }

    /// Returns whether the holder of this half has an introduction in progress.
    pub fn introducing(&self, socket: SocketId, side: u8) -> bool {
        let process = self.holder(socket, side);
        self.tasks.iter().any(|task| Some(task.process()) == process)
    }

    /// Returns whether the holder of the half waits for the answer of an acceptor that may name the link.
    pub fn connecting(&self, socket: SocketId, side: u8) -> bool {
        let process = self.holder(socket, side);
        let direct = |link: &&Link| link.origin == Origin::Direct;
        let Some(peer) = self.link(socket, side).filter(direct).and_then(|link| link.peer) else { return false };
        process.is_some_and(|process| self.connects(process).any(|other| self.holder(other, 1) == Some(peer)))
    }

    /// Returns the sockets on which a process waits for the answer of an acceptor.
    pub fn connects(&self, process: Process) -> impl Iterator<Item = SocketId> {
        self.halves()
            .filter(move |(_, side, half)| *side == 0 && half.place == Place::At(process) && half.link.is_none())
            .map(|(socket, ..)| socket)
    }

    /// Adds a socket and returns the id.
    pub fn add_socket(&mut self, socket: Socket) -> SocketId {
        self.sockets.push(socket);
        self.sockets.len() as u8 - 1
    }

    /// Adds a lane made by `source`, and returns its id. The lane is not announced to the processes of its ends yet.
    pub fn add_lane(&mut self, source: Process, processes: [Process; 2], makers: Set, committed: bool) -> LaneId {
        let blame = makers | bit(source) | bit(processes[0]) | bit(processes[1]);
        let (ends, counts) = ([End::Coming; 2], [0; 2]);
        self.lanes.push(Lane { processes, blame, source, committed, ends, sent: counts, received: counts });
        self.lanes.len() as u8 - 1
    }

    /// Returns every half of a socket, with the id of the socket and the side of the half.
    pub fn halves(&self) -> impl Iterator<Item = (SocketId, u8, &Half)> {
        (0u8..)
            .zip(&self.sockets)
            .flat_map(|(id, socket)| (0u8..).zip(&socket.halves).map(move |(side, half)| (id, side, half)))
    }

    /// Returns the links of a process to a peer, the oldest first: the id of each socket and the side of the half.
    pub fn links_of(&self, process: Process, peer: Process) -> Vec<(SocketId, u8)> {
        self.halves()
            .filter(|(_, _, half)| half.place == Place::At(process))
            .filter(|(_, _, half)| half.link.as_ref().is_some_and(|link| link.peer == Some(peer)))
            .map(|(socket, side, _)| (socket, side))
            .collect()
    }

    /// Returns whether the other half of a socket is closed and the process on this side can see it.
    pub fn hung_up(&self, socket: SocketId, side: u8) -> bool {
        let Socket { copies, halves, .. } = &self.sockets[usize::from(socket)];
        let dead = |link: &Link| link.peer.is_some_and(|peer| !self.alive(peer));
        let told_by_pidfd = halves[usize::from(side)].link.as_ref().is_some_and(dead);
        halves[usize::from(1 - side)].place == Place::Closed && (*copies == 0 || told_by_pidfd)
    }
}
