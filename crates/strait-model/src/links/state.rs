//! The objects: processes, sockets with a link at each side, lanes, and the tables of introducers.

use super::configuration::Configuration;

/// A process: its number stands for its verified identity.
pub type Process = u8;
/// A set of processes or of lanes, one bit each.
pub type Set = u8;
/// A socket: a place in [`State::sockets`].
pub type SocketId = u8;
/// A lane: a place in [`State::lanes`].
pub type LaneId = u8;

/// A process with a link to each of the others.
pub const V: Process = 0;
/// V's peer.
pub const H: Process = 1;
/// An honest introducer.
pub const B: Process = 2;
/// A hostile process.
pub const A: Process = 3;
/// The processes that do not keep to the protocol.
pub const HOSTILE: Set = 1 << A;

/// The set of one.
pub fn bit(number: u8) -> Set {
    1 << number
}

/// A packet. The kernel keeps the order on one socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Packet {
    /// The first packet of a side.
    Handshake {
        /// The sender, as the kernel reports it.
        from: Process,
        /// The process that the sender says it is.
        claims: Process,
        /// The sender made this socket by connect, accept or spawn.
        direct: bool,
    },
    /// A lane on this link. Counted.
    Open(LaneId),
    /// A message's attachments or a wake-up. Counted.
    Data(LaneId),
    /// The sender knows no such lane.
    NoLane(LaneId),
    /// The sender needs the link no more; it has received this many counted packets.
    Idle(u8),
    /// The link is closed.
    Agree,
    /// The link stays open.
    Refuse,
    /// One half of a new socket pair, and the first lane over it. Counted.
    Half {
        /// The socket, which is also its number.
        socket: SocketId,
        /// The half.
        side: u8,
        /// The lane.
        lane: LaneId,
        /// The process at the other half, as the introducer verified it.
        expected: Process,
        /// The processes that could have kept a copy, as the introducer knows them.
        makers: Set,
    },
    /// A further lane over an introduced link. Counted.
    Lane(SocketId, LaneId),
    /// Do not name this link any more, if you have named it so often.
    Forget(SocketId, u8),
    /// The introducer names this link no more.
    Released(SocketId),
    /// This end of the lane is here, and the other end is in the same process. Counted.
    Yourself(LaneId, u8),
    /// A connect request.
    Connect,
    /// Accepted: the lane runs over this link, which both have.
    Reuse(LaneId, SocketId),
    /// Accepted: the lane runs over this new socket.
    New(LaneId),
}

impl Packet {
    /// Whether the packet counts in IDLE.
    pub fn counted(self) -> bool {
        matches!(
            self,
            Packet::Open(_) | Packet::Data(_) | Packet::Half { .. } | Packet::Lane(..) | Packet::Yourself(..)
        )
    }
}

/// How a link came about, as one side knows it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Origin {
    /// Made by the two processes themselves.
    Direct,
    /// The two halves came over other links.
    Introduced,
    /// The evidence does not agree: shared with nothing.
    Foreign,
}

/// A link as one of its processes sees it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Link {
    /// How it came about.
    pub origin: Origin,
    /// The process that connected or accepted, as the kernel reports it for the socket.
    pub credentials: Option<Process>,
    /// The process that the introducer named.
    pub expected: Option<Process>,
    /// The process that sent the first packet.
    pub peer: Option<Process>,
    /// The makers, as this process knows them.
    pub makers: Set,
    /// The introducer's link, by which it came.
    pub by: Option<SocketId>,
    /// Whether the introducer may still name it.
    pub named: bool,
    /// How often the introducer named it.
    pub announced: u8,
    /// With which number FORGET was sent last.
    pub forgot: Option<u8>,
    /// The lanes bound to it here.
    pub lanes: Set,
    /// Counted packets sent.
    pub sent: u8,
    /// Counted packets received.
    pub received: u8,
    /// IDLE was sent with this number and is not answered.
    pub asked: Option<u8>,
    /// Whether this side is to send the next IDLE.
    pub may_ask: bool,
    /// Used by something outside the model, and never idle.
    pub pinned: bool,
}

impl Link {
    /// A link that nothing is known of.
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
    /// With a process.
    At(Process),
    /// In a packet.
    Travelling,
    /// Closed by its process, or lost with its packet.
    Closed,
}

/// One half of a socket pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Half {
    /// The place of the half.
    pub place: Place,
    /// The packets that can be received there.
    pub queue: Vec<Packet>,
    /// The link as its process sees it.
    pub link: Option<Link>,
}

/// A socket pair.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// The hostile processes that hold a copy.
    pub copies: Set,
    /// The process that made it, or that connected.
    pub maker: Process,
    /// The halves.
    pub halves: [Half; 2],
}

impl Socket {
    /// A socket with its halves at these places.
    pub fn new(maker: Process, copies: Set, places: [Place; 2]) -> Socket {
        Socket { copies, maker, halves: places.map(|place| Half { place, queue: Vec::new(), link: None }) }
    }
}

/// The place of one end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// Its process was not told of it yet.
    Coming,
    /// Bound to a link.
    At(SocketId),
    /// In a mailbox; the end came over this link.
    Mailbox(SocketId),
    /// Closed or ended.
    Closed,
}

/// A lane.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Lane {
    /// The processes that it joins.
    pub processes: [Process; 2],
    /// The processes that may harm it: its own two, its movers, its makers.
    pub blame: Set,
    /// The process that moved an end into it.
    pub source: Process,
    /// Whether the move is committed, so that the lane may be used.
    pub committed: bool,
    /// Its ends.
    pub ends: [End; 2],
    /// Packets sent by each end.
    pub sent: [u8; 2],
    /// Packets received by each end.
    pub received: [u8; 2],
}

/// A pair that an introducer made.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// The introducer.
    pub introducer: Process,
    /// The pair.
    pub socket: SocketId,
    /// The two identities that it verified.
    pub processes: [Process; 2],
    /// The makers of the pair.
    pub makers: Set,
    /// The introducer's links to the two.
    pub links: [SocketId; 2],
    /// How often it named the link to each.
    pub announced: u8,
    /// Whether each asked to forget it since.
    pub forgot: [bool; 2],
}

/// A remaining step of an introduction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Task {
    /// Tell the second process.
    Second(Process, SocketId, Packet),
    /// Commit the move.
    Commit(Process, LaneId),
}

impl Task {
    /// The process that does it.
    pub fn process(self) -> Process {
        match self {
            Task::Second(process, ..) | Task::Commit(process, _) => process,
        }
    }
}

/// A fault that shows in the step that causes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// A lane ended, although no process that may harm it died or is hostile.
    Harmed(LaneId),
    /// A link was closed with something in it, or with a lane bound to it.
    ClosedInUse(SocketId),
    /// An end or a half came to a process that it was not for.
    Stolen(LaneId),
    /// A process takes its peer for another process.
    Misnamed(SocketId),
    /// An honest process was taken for a bad peer.
    Accused(Process),
    /// A packet was sent between an IDLE and its answer.
    NotQuiet(SocketId),
}

/// The numbers of optional steps that are left.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Left {
    /// Introductions: how often each line of the configuration may still be done.
    pub introductions: Vec<u8>,
    /// Connects, likewise.
    pub connects: Vec<u8>,
    /// Lanes opened on a direct link.
    pub opens: u8,
    /// Packets sent over lanes.
    pub sends: u8,
    /// Deaths.
    pub deaths: u8,
    /// Attacks: a bit for each line of the configuration.
    pub attacks: Set,
}

/// A state of the whole.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct State {
    /// The processes that live.
    pub alive: Set,
    /// Every socket.
    pub sockets: Vec<Socket>,
    /// Every lane.
    pub lanes: Vec<Lane>,
    /// The introducers' tables.
    pub entries: Vec<Entry>,
    /// Introductions in progress.
    pub tasks: Vec<Task>,
    /// The optional steps that are left.
    pub left: Left,
    /// The fault of the last step.
    pub wrong: Option<Wrong>,
}

impl State {
    /// The first state of a configuration.
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

    /// Whether a process lives.
    pub fn alive(&self, process: Process) -> bool {
        self.alive & bit(process) != 0
    }

    /// One half of a socket.
    pub fn half(&mut self, socket: SocketId, side: u8) -> &mut Half {
        &mut self.sockets[usize::from(socket)].halves[usize::from(side)]
    }

    /// The link at one half of a socket, if there is one.
    pub fn link(&self, socket: SocketId, side: u8) -> Option<&Link> {
        self.sockets[usize::from(socket)].halves[usize::from(side)].link.as_ref()
    }

    /// The link at one half of a socket, for changing it.
    pub fn link_mut(&mut self, socket: SocketId, side: u8) -> Option<&mut Link> {
        self.half(socket, side).link.as_mut()
    }

    /// A lane.
    pub fn lane(&mut self, lane: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(lane)]
    }

    /// The process that holds one half, if one does. The number may be one that a hostile process made up.
    pub fn holder(&self, socket: SocketId, side: u8) -> Option<Process> {
        match self.sockets.get(usize::from(socket))?.halves[usize::from(side)].place {
            Place::At(process) => Some(process),
            Place::Travelling | Place::Closed => None,
        }
    }

    /// The side of a socket that a process holds.
    pub fn side_of(&self, socket: SocketId, process: Process) -> Option<u8> {
        (0..2).find(|&side| self.holder(socket, side) == Some(process))
    }

    /// Whether a side needs the link.
    pub fn in_use(&self, socket: SocketId, side: u8) -> bool {
        self.link(socket, side).is_some_and(|link| link.pinned || link.named || link.lanes != 0)
            || self.connecting(socket, side)
            || self.introducing(socket, side)
    }

    /// Whether the process has an introduction in progress.
    pub fn introducing(&self, socket: SocketId, side: u8) -> bool {
        let process = self.holder(socket, side);
        self.tasks.iter().any(|task| Some(task.process()) == process)
    }

    /// Whether the process waits for the answer of an acceptor that may name this link.
    pub fn connecting(&self, socket: SocketId, side: u8) -> bool {
        let process = self.holder(socket, side);
        let direct = |link: &&Link| link.origin == Origin::Direct;
        let Some(peer) = self.link(socket, side).filter(direct).and_then(|link| link.peer) else { return false };
        process.is_some_and(|process| self.connects(process).any(|other| self.holder(other, 1) == Some(peer)))
    }

    /// The sockets on which a process waits for an acceptor's answer.
    pub fn connects(&self, process: Process) -> impl Iterator<Item = SocketId> {
        self.halves()
            .filter(move |(_, side, half)| *side == 0 && half.place == Place::At(process) && half.link.is_none())
            .map(|(socket, ..)| socket)
    }

    /// Adds a socket.
    pub fn add_socket(&mut self, socket: Socket) -> SocketId {
        self.sockets.push(socket);
        self.sockets.len() as u8 - 1
    }

    /// Adds a lane whose ends are not there yet.
    pub fn add_lane(&mut self, source: Process, processes: [Process; 2], makers: Set, committed: bool) -> LaneId {
        let blame = makers | bit(source) | bit(processes[0]) | bit(processes[1]);
        let (ends, counts) = ([End::Coming; 2], [0; 2]);
        self.lanes.push(Lane { processes, blame, source, committed, ends, sent: counts, received: counts });
        self.lanes.len() as u8 - 1
    }

    /// Every half with its numbers.
    pub fn halves(&self) -> impl Iterator<Item = (SocketId, u8, &Half)> {
        (0u8..)
            .zip(&self.sockets)
            .flat_map(|(id, socket)| (0u8..).zip(&socket.halves).map(move |(side, half)| (id, side, half)))
    }

    /// The links of a process to a peer, the oldest first.
    pub fn links_of(&self, process: Process, peer: Process) -> Vec<(SocketId, u8)> {
        self.halves()
            .filter(|(_, _, half)| half.place == Place::At(process))
            .filter(|(_, _, half)| half.link.as_ref().is_some_and(|link| link.peer == Some(peer)))
            .map(|(socket, side, _)| (socket, side))
            .collect()
    }

    /// Whether the other half is gone, and this side can see it.
    pub fn hung_up(&self, socket: SocketId, side: u8) -> bool {
        let Socket { copies, halves, .. } = &self.sockets[usize::from(socket)];
        let dead = |link: &Link| link.peer.is_some_and(|peer| !self.alive(peer));
        let told_by_pidfd = halves[usize::from(side)].link.as_ref().is_some_and(dead);
        halves[usize::from(1 - side)].place == Place::Closed && (*copies == 0 || told_by_pidfd)
    }
}
