//! The bounds of a run: the links at the start, and how often each thing may happen.

use super::breakage::Breakage;
use super::state::{A, HOSTILE, Left, Link, Origin, Packet, Place, Process, Set, Socket, State, bit};

/// A link of the initial state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    between: [Process; 2],
    makers: Set,
    pinned: bool,
    claims: Option<Process>,
}

impl Given {
    /// Adds the link to the first state.
    pub fn add(&self, state: &mut State) {
        let [left, right] = self.between;
        let socket = Socket::new(left, self.makers & HOSTILE, [Place::At(left), Place::At(right)]);
        let id = state.add_socket(socket);
        for (side, peer) in [(0, right), (1, left)] {
            let origin = if self.makers == 0 { Origin::Direct } else { Origin::Introduced };
            let peer = Some(peer).filter(|&peer| peer != A || self.claims.is_none());
            let link = Link { peer, makers: self.makers, pinned: self.pinned, ..Link::new(origin) };
            state.half(id, side).link = Some(link);
        }
        if let Some(claims) = self.claims {
            state.half(id, 0).queue.push(Packet::Handshake { from: right, claims, direct: true });
        }
    }
}

/// An attack of the hostile process A. Each attack of a configuration happens once at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// The hostile process A shuts down a socket with a copy in A.
    Shutdown,
    /// The hostile process A puts this packet, for the half on this side, into a socket with a copy in A.
    Inject(u8, Packet),
    /// The hostile process A sends the packet over A's own link to the process.
    Say(Process, Packet),
    /// The hostile process A introduces V to "H" and keeps the other half.
    NameElsewhere,
    /// The hostile process A introduces V and H, and then announces a further lane to V alone.
    Frame,
    /// The hostile process A sends V one end of a lane, and claims that the other end is in V as well.
    FalseYourself,
    /// The hostile process A connects to V and lets H send the first packet.
    HandOn,
    /// The hostile process A takes a connection of H from V's listener, keeps a copy, and sends the connection to V.
    ListenerCopy,
    /// The hostile process A has a copy of a link. A replaces a half that passes over that link by a half of its own.
    Swap,
}

/// The bounds of a run: the links at the start, and how often each thing may happen.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    pub(crate) links: Vec<Given>,
    pub(crate) introductions: Vec<(Process, [Process; 2], u8)>,
    pub(crate) connects: Vec<([Process; 2], u8)>,
    pub(crate) attacks: Vec<Attack>,
    pub(crate) mortal: Set,
    pub(crate) opens: u8,
    pub(crate) sends: u8,
    pub(crate) deaths: u8,
    pub(crate) breakage: Breakage,
}

impl Configuration {
    fn given(mut self, between: [Process; 2], makers: Set, pinned: bool) -> Self {
        self.links.push(Given { between, makers, pinned, claims: None });
        self
    }

    /// Adds a direct link between two processes. Something outside the model keeps the link in use.
    pub fn link(self, left: Process, right: Process) -> Self {
        self.given([left, right], 0, true)
    }

    /// Adds a direct link between two processes, not used yet.
    pub fn idle_link(self, left: Process, right: Process) -> Self {
        self.given([left, right], 0, false)
    }

    /// Adds a link between two processes introduced by the hostile process. Something outside the model keeps the
    /// link in use.
    pub fn made_by_a(self, left: Process, right: Process) -> Self {
        self.given([left, right], bit(A), true)
    }

    /// Adds a link of the hostile process to `other`, on which the hostile process claims to be the process `name`.
    pub fn claims(mut self, other: Process, name: Process) -> Self {
        self.links.push(Given { between: [other, A], makers: 0, pinned: true, claims: Some(name) });
        self
    }

    /// Lets a process introduce two others this many times, with a new lane each time.
    pub fn introduces(mut self, introducer: Process, left: Process, right: Process, times: u8) -> Self {
        self.introductions.push((introducer, [left, right], times));
        self
    }

    /// Lets a process connect to another this many times.
    pub fn connects(mut self, from: Process, to: Process, times: u8) -> Self {
        self.connects.push(([from, to], times));
        self
    }

    /// Lets the hostile process do this attack once.
    pub fn attack(mut self, attack: Attack) -> Self {
        self.attacks.push(attack);
        self
    }

    /// Lets this many lanes in all be opened on direct links.
    pub fn opens(self, opens: u8) -> Self {
        Configuration { opens, ..self }
    }

    /// Lets this many packets in all be sent for lanes.
    pub fn sends(self, sends: u8) -> Self {
        Configuration { sends, ..self }
    }

    /// Lets so many of the processes `of` die.
    pub fn deaths(self, deaths: u8, of: &[Process]) -> Self {
        Configuration { deaths, mortal: of.iter().fold(0, |set, &process| set | bit(process)), ..self }
    }

    /// Puts a deliberate error into the rules.
    pub fn broken(self, breakage: Breakage) -> Self {
        Configuration { breakage, ..self }
    }

    pub(crate) fn has(&self, breakage: Breakage) -> bool {
        self.breakage == breakage
    }

    pub(crate) fn left(&self) -> Left {
        Left {
            introductions: self.introductions.iter().map(|line| line.2).collect(),
            connects: self.connects.iter().map(|line| line.1).collect(),
            opens: self.opens,
            sends: self.sends,
            deaths: self.deaths,
            attacks: ((1u16 << self.attacks.len()) - 1) as Set,
        }
    }
}
