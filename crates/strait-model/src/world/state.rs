//! The objects: processes with their machines, sockets, lanes.

use std::collections::BTreeMap;

use strait_proto::links::{Id, Identity, Lane, Links, Packet};

/// The number of a process.
pub type Process = u8;
/// A set of processes, with one bit for each.
pub type Set = u8;

/// `V`: a process with links to others.
pub const V: Process = 0;
/// `H`: the process at the other end of V's lanes.
pub const H: Process = 1;
/// `B`: an introducer.
pub const B: Process = 2;
/// `A`: the hostile process. It has no machine.
pub const A: Process = 3;
/// `C`: a second introducer.
pub const C: Process = 4;
/// The number of processes of a world.
pub const PROCESSES: Process = 5;

/// Returns the set with a single process.
pub fn bit(process: Process) -> Set {
    1 << process
}

/// Returns the identity of a process.
pub fn identity(process: Process) -> Identity {
    Identity { inode: u64::from(process) + 1, name: 100 + u128::from(process) }
}

/// Returns the process with the inode number.
pub fn process(inode: u64) -> Process {
    inode as Process - 1
}

/// A packet in a socket, with its half.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Item {
    /// The sender of the packet, according to the kernel.
    pub from: Process,
    /// The packet.
    pub packet: Packet,
    /// The half in the packet: its socket and side.
    pub half: Option<(Id, usize)>,
}

/// The place of one half of a socket.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Place {
    /// A process has the half.
    At(Process),
    /// The half is in a packet, or not sent by the introducer yet.
    Travelling,
    /// The half is closed.
    Closed,
}

/// Half of a socket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Half {
    /// Where the half is.
    pub place: Place,
    /// The packets to be received from this half, the oldest first.
    pub queue: Vec<Item>,
    /// Whether its process has sent IDLE and has no answer.
    pub asked: bool,
}

/// A socket.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Socket {
    /// The hostile processes with a copy.
    pub copies: Set,
    /// The hostile processes that have or had a copy.
    pub copied: Set,
    /// The maker of the socket.
    pub maker: Process,
    /// The two halves.
    pub halves: [Half; 2],
    /// The lane of the connect that made the socket.
    pub lane: Option<Lane>,
}

impl Socket {
    /// Returns a socket with the halves at the given places.
    pub fn new(maker: Process, copies: Set, places: [Place; 2]) -> Self {
        let halves = places.map(|place| Half { place, queue: Vec::new(), asked: false });
        Self { copies, copied: copies, maker, halves, lane: None }
    }
}

/// The fate of the move for which a lane was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Move {
    /// The move is in progress.
    Pending,
    /// The lane may be used.
    Committed,
    /// The move was called off.
    CalledOff,
}

/// The place of one end of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum End {
    /// The end's process has not been told of the lane.
    Coming,
    /// The end is on this link.
    At(Id),
    /// Both ends are in one process.
    Within,
    /// The end was closed, or has ended.
    Closed,
}

/// A lane, with facts that no single process knows.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LaneState {
    /// The processes of the two ends.
    pub processes: [Process; 2],
    /// The processes that may harm the lane: its two processes, its source, and its makers.
    pub blame: Set,
    /// The process that opened the lane or moved an end into the lane.
    pub source: Process,
    /// The move.
    pub state: Move,
    /// The places of the two ends.
    pub ends: [End; 2],
    /// The number of packets sent by each end.
    pub sent: [u8; 2],
    /// The number of packets received by each end.
    pub received: [u8; 2],
    /// Whether the lane stays open for the whole run.
    pub pinned: bool,
}

/// A fault, visible in the step of its cause.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// This lane ended, although no process that may harm the lane has died or is hostile.
    Harmed(Lane),
    /// This link was closed by IDLE with an unread counted packet, or with a lane on it.
    ClosedInUse(Id),
    /// A half for the lane reached a hostile process that may not harm the lane.
    Stolen(Lane),
    /// This honest process was taken for a bad peer.
    Accused(Process),
    /// A counted packet was sent over the link between IDLE and the answer.
    NotQuiet(Id),
}

/// How often optional things may still happen.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Left {
    /// For each line of the configuration, the number of introductions.
    pub introductions: Vec<u8>,
    /// For each line of the configuration, the number of connects.
    pub connects: Vec<u8>,
    /// Lanes opened on a direct link.
    pub opens: u8,
    /// Packets for lanes.
    pub sends: u8,
    /// Introductions called off.
    pub calls_off: u8,
    /// The number of processes that may still die.
    pub deaths: u8,
    /// The attacks still to come, one bit for each line of the configuration.
    pub attacks: u16,
}

/// A state of the world.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct World {
    /// The living processes.
    pub alive: Set,
    /// The machine of each honest process.
    pub machines: BTreeMap<Process, Links>,
    /// The sockets, by number.
    pub sockets: Vec<Socket>,
    /// The lanes, by number.
    pub lanes: Vec<LaneState>,
    /// The pairs with a half still at the introducer: the introducer, its number for the pair, and the socket.
    pub kept: Vec<(Process, u64, Id)>,
    /// How often optional things may still happen.
    pub left: Left,
    /// The fault in the last step.
    pub wrong: Option<Wrong>,
}

impl World {
    /// Returns whether a process lives.
    pub fn lives(&self, process: Process) -> bool {
        self.alive & bit(process) != 0
    }

    /// Returns a socket.
    pub fn socket(&self, on: Id) -> &Socket {
        &self.sockets[on as usize]
    }

    /// Returns a half of a socket.
    pub fn half(&self, on: Id, side: usize) -> &Half {
        &self.socket(on).halves[side]
    }

    pub(super) fn half_mut(&mut self, on: Id, side: usize) -> &mut Half {
        &mut self.sockets[on as usize].halves[side]
    }

    /// Returns a lane.
    pub fn lane(&self, lane: Lane) -> &LaneState {
        &self.lanes[lane as usize]
    }

    pub(super) fn lane_mut(&mut self, lane: Lane) -> &mut LaneState {
        &mut self.lanes[lane as usize]
    }

    /// Returns the side of a socket held by a process.
    pub fn side_of(&self, on: Id, process: Process) -> Option<usize> {
        let socket = self.sockets.get(on as usize)?;
        (0..2).find(|&side| socket.halves[side].place == Place::At(process))
    }

    /// Returns every half, with the number of the socket and the side.
    pub fn halves(&self) -> impl Iterator<Item = (Id, usize, &Half)> {
        let numbered = (0..).zip(&self.sockets);
        numbered.flat_map(|(on, socket)| (0..).zip(&socket.halves).map(move |(side, half)| (on, side, half)))
    }

    /// Returns whether the process on the given side can see that the other half is closed.
    pub fn hung_up(&self, on: Id, side: usize) -> bool {
        let Socket { copies, halves, .. } = self.socket(on);
        let Place::At(own) = halves[side].place else { return false };
        let peer = self.machines.get(&own).and_then(|machine| machine.link(on)).and_then(|link| link.peer);
        let dead = peer.is_some_and(|peer| !self.lives(process(peer.inode)));
        halves[1 - side].place == Place::Closed && (*copies == 0 || dead)
    }

    /// Returns the index of the end of a lane in a process.
    pub fn end_in(&self, lane: Lane, process: Process) -> usize {
        usize::from(self.lane(lane).processes[0] != process)
    }

    /// Adds a socket.
    pub fn add_socket(&mut self, socket: Socket) -> Id {
        self.sockets.push(socket);
        self.sockets.len() as Id - 1
    }

    /// Adds a lane made by `source` between two processes.
    pub fn add_lane(&mut self, source: Process, processes: [Process; 2], state: Move) -> Lane {
        let blame = bit(source) | bit(processes[0]) | bit(processes[1]);
        let (ends, sent, received, pinned) = ([End::Coming; 2], [0; 2], [0; 2], false);
        self.lanes.push(LaneState { processes, blame, source, state, ends, sent, received, pinned });
        self.lanes.len() as Lane - 1
    }
}

impl Socket {
    /// Returns the process that introduced the two processes of an introduced link (`kind` 2).
    pub(super) fn maker_if_introduced(&self, kind: u8) -> Option<Process> {
        (kind == 2).then_some(self.maker)
    }
}
