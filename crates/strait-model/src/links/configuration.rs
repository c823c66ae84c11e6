//! The bounds of a run: the links at the start, and how often each thing may happen.

use super::breakage::Breakage;
use super::state::{A, HOSTILE, Left, Link, Origin, Packet, Place, Process, Set, Socket, State, bit};

/// A link that is there at first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Given {
    between: [Process; 2],
    makers: Set,
    pinned: bool,
    claims: Option<Process>,
}

impl Given {
    /// Adds it to the first state.
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

/// An attack of the hostile process; it happens once at most.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Attack {
    /// Shuts down a socket of which it has a copy.
    Shutdown,
    /// Puts a packet into a socket of which it has a copy, to one side.
    Inject(u8, Packet),
    /// Sends a packet over its own link to a process.
    Say(Process, Packet),
    /// Introduces V to "H" and keeps the other half.
    NameElsewhere,
    /// Announces a lane to V alone.
    Frame,
    /// Sends V one end of a lane, and says that the other is in V as well.
    FalseYourself,
    /// Connects to V and lets H say the first word.
    HandOn,
    /// Takes a connection of H from V's listener, keeps a copy, and sends it to V.
    ListenerCopy,
    /// Replaces a half that passes over a link of which A has a copy by a half of A's own.
    Swap,
}

/// The bounds.
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

    /// Two processes have a direct link that something outside the model uses.
    pub fn link(self, left: Process, right: Process) -> Self {
        self.given([left, right], 0, true)
    }

    /// Two processes have a direct link that they use for nothing yet.
    pub fn idle_link(self, left: Process, right: Process) -> Self {
        self.given([left, right], 0, false)
    }

    /// The hostile process has introduced two processes, which use that link for something outside the model.
    pub fn made_by_a(self, left: Process, right: Process) -> Self {
        self.given([left, right], bit(A), true)
    }

    /// The hostile process has a link to another, and claims to be a third.
    pub fn claims(mut self, other: Process, name: Process) -> Self {
        self.links.push(Given { between: [other, A], makers: 0, pinned: true, claims: Some(name) });
        self
    }

    /// A process may introduce two others, with a new lane each time.
    pub fn introduces(mut self, introducer: Process, left: Process, right: Process, times: u8) -> Self {
        self.introductions.push((introducer, [left, right], times));
        self
    }

    /// A process may connect to another.
    pub fn connects(mut self, from: Process, to: Process, times: u8) -> Self {
        self.connects.push(([from, to], times));
        self
    }

    /// The hostile process may try this.
    pub fn attack(mut self, attack: Attack) -> Self {
        self.attacks.push(attack);
        self
    }

    /// Lanes may be opened over direct links, so many in all.
    pub fn opens(self, opens: u8) -> Self {
        Configuration { opens, ..self }
    }

    /// Packets may be sent over lanes, so many in all.
    pub fn sends(self, sends: u8) -> Self {
        Configuration { sends, ..self }
    }

    /// So many of these processes may die.
    pub fn deaths(self, deaths: u8, of: &[Process]) -> Self {
        Configuration { deaths, mortal: of.iter().fold(0, |set, &process| set | bit(process)), ..self }
    }

    /// The rules with a mistake.
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
