//! The bounds of a run.

use strait_proto::links::{Id, Links, Packet};

use super::act::Act;
use super::coverage::Coverage;
use super::state::{A, Left, Move, PROCESSES, Place, Process, Set, Socket, World, bit, identity};

/// An attack of the hostile process A. Each attack of a configuration happens at most once.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Attack {
    /// Puts a packet into a socket, for the half on this side. A has the other half, or a copy.
    Inject(Id, usize, Packet),
    /// Shuts down a socket with a copy in A.
    Shutdown(Id),
    /// Takes the half out of the next packet on a socket with a copy in A, and puts a half of its own there.
    Swap(Id),
    /// Introduces V to "H", and keeps the other half.
    NameElsewhere,
    /// Introduces V and H, keeps a copy, and names the pair once more to V alone.
    Frame,
    /// Sends V one end of a lane, and claims that the other end is in V, too.
    FalseYourself,
    /// Connects to V and gives the socket to H as an introduced half.
    HandOn,
    /// Takes a connection of H from V's listener, and gives it to V as an introduced half.
    ListenerCopy,
    /// Introduces V to itself, but gives the other half to H.
    NameSelf,
    /// Gives H the socket over which V started A, as if V had started H.
    HandDown,
    /// Takes the socket over which H starts V, and gives it to V as an introduced half.
    Intercept,
    /// Connects to V.
    Dial,
}

/// A socket at the start.
#[derive(Clone, Debug)]
struct Given {
    between: [Process; 2],
    copies: Set,
    pinned: bool,
}

/// The bounds of a run: the links at the start, and how often each thing may happen.
#[derive(Clone, Debug)]
pub struct Configuration {
    given: Vec<Given>,
    pub(super) introductions: Vec<(Process, [Process; 2], u8)>,
    pub(super) connects: Vec<([Process; 2], u8)>,
    pub(super) attacks: Vec<Attack>,
    pub(super) mortal: Set,
    /// The maximum number of packets in one direction of a socket.
    pub(super) room: usize,
    left: Left,
}

impl Default for Configuration {
    fn default() -> Self {
        let (given, introductions, connects, attacks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Self { given, introductions, connects, attacks, mortal: 0, room: 8, left: Left::default() }
    }
}

impl Configuration {
    fn given(mut self, between: [Process; 2], copies: Set, pinned: bool) -> Self {
        self.given.push(Given { between, copies, pinned });
        self
    }

    /// Adds a link made by two processes, with a lane that stays open. One of the two processes may be A.
    pub fn link(self, left: Process, right: Process) -> Self {
        self.given([left, right], 0, true)
    }

    /// Adds a link made by two processes and not used.
    pub fn idle_link(self, left: Process, right: Process) -> Self {
        self.given([left, right], 0, false)
    }

    /// Adds a link between two processes with a copy in A, and with a lane that stays open. Both processes know that
    /// they did not make the socket.
    pub fn foreign(self, left: Process, right: Process) -> Self {
        self.given([left, right], bit(A), true)
    }

    /// Lets a process introduce two others this many times.
    pub fn introduces(mut self, introducer: Process, left: Process, right: Process, times: u8) -> Self {
        self.introductions.push((introducer, [left, right], times));
        self
    }

    /// Lets a process connect to another this many times.
    pub fn connects(mut self, from: Process, to: Process, times: u8) -> Self {
        self.connects.push(([from, to], times));
        self
    }

    /// Lets A do an attack once.
    pub fn attack(mut self, attack: Attack) -> Self {
        self.attacks.push(attack);
        self
    }

    /// Lets this many lanes be opened on direct links.
    pub fn opens(mut self, opens: u8) -> Self {
        self.left.opens = opens;
        self
    }

    /// Lets this many packets be sent for lanes.
    pub fn sends(mut self, sends: u8) -> Self {
        self.left.sends = sends;
        self
    }

    /// Lets this many introductions be called off, for any reason.
    pub fn calls_off(mut self, calls: u8) -> Self {
        self.left.calls_off = calls;
        self
    }

    /// Lets so many of the processes `of` die.
    pub fn deaths(mut self, deaths: u8, of: &[Process]) -> Self {
        self.left.deaths = deaths;
        self.mortal = of.iter().fold(0, |set, &process| set | bit(process));
        self
    }

    /// Limits the packets in one direction of a socket.
    pub fn room(self, room: usize) -> Self {
        Self { room, ..self }
    }

    /// Returns the first state: all links of the start are up.
    pub fn start(&self) -> World {
        let machine = |process| (process, Links::new(identity(process)));
        let world = World {
            alive: (1 << PROCESSES) - 1,
            machines: (0..PROCESSES).filter(|&process| process != A).map(machine).collect(),
            sockets: Vec::new(),
            lanes: Vec::new(),
            kept: Vec::new(),
            left: Left {
                introductions: self.introductions.iter().map(|line| line.2).collect(),
                connects: self.connects.iter().map(|line| line.1).collect(),
                attacks: ((1u32 << self.attacks.len()) - 1) as u16,
                ..self.left.clone()
            },
            wrong: None,
        };
        let coverage = Coverage::default();
        let mut act = Act { coverage: &coverage, now: world };
        self.given.iter().for_each(|given| add(given, &mut act));
        act.now
    }
}

/// Adds a link: both sides get a half and greet.
fn add(given: &Given, act: &mut Act<'_>) {
    let [left, right] = given.between;
    let on = act.now.add_socket(Socket::new(left, given.copies, [Place::At(left), Place::At(right)]));
    let direct = given.copies == 0;
    for (process, peer) in [(left, right), (right, left)] {
        act.given(process, on, direct.then_some(peer));
    }
    act.greet(on);
    if given.pinned {
        let lane = act.now.add_lane(left, [left, right], Move::Committed);
        act.now.lane_mut(lane).pinned = true;
        act.now.lane_mut(lane).blame |= given.copies;
        act.open_both(on, lane);
    }
}
