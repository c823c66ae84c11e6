//! What a run explores: who has which ends at first, and what may happen to them.

use crate::breakage::Breakage;
use crate::end::EndId;
use crate::lane::Half;
use crate::state::Process;

/// What the users of an end may do with it, wherever it is.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// Messages that they may publish.
    pub writes: u8,
    /// How often they may send it.
    pub moves: u8,
    /// The channels through which they may send it.
    pub over: Vec<u8>,
    /// Whether they may close it.
    pub closes: bool,
    /// How often its ring may grow.
    pub grows: u8,
    /// Whether its reader sleeps when there is nothing to read; otherwise it looks for ever.
    pub sleeps: bool,
    /// Whether its ring has room for one message only, and its writer sleeps until there is room.
    pub waits: bool,
}

/// A channel.
#[derive(Clone, Debug)]
pub struct Channel {
    /// The processes that have its ends at first.
    pub at: [Process; 2],
    /// What may happen to each end.
    pub users: [User; 2],
}

/// A bounded world.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// How many processes there are.
    pub processes: u8,
    /// Its channels.
    pub channels: Vec<Channel>,
    /// The process that fuses channel 0 of two whose far ends it holds.
    pub fuser: Option<Process>,
    /// The processes that may die.
    pub mortal: Vec<Process>,
    /// How many of them.
    pub deaths: u8,
    /// How often a socket may be full.
    pub fulls: u8,
    /// Whether rings are drained a record at a time.
    pub one_by_one: bool,
    /// What is wrong with the protocol.
    pub breakage: Breakage,
}

impl User {
    /// Nothing but receiving.
    pub fn idle() -> Self {
        Self::default()
    }

    /// Publishes so many messages.
    pub fn writes(writes: u8) -> Self {
        Self { writes, ..Self::default() }
    }

    /// Sends the end so often, through these channels.
    pub fn moves(mut self, moves: u8, over: &[u8]) -> Self {
        (self.moves, self.over) = (moves, over.to_vec());
        self
    }

    /// May close it.
    pub fn closes(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Its ring may grow so often.
    pub fn grows(mut self, grows: u8) -> Self {
        self.grows = grows;
        self
    }

    /// Its reader sleeps.
    pub fn sleeps(mut self) -> Self {
        self.sleeps = true;
        self
    }

    /// Its ring is small, and its writer sleeps until there is room.
    pub fn waits(mut self) -> Self {
        self.waits = true;
        self
    }
}

impl Configuration {
    /// So many processes and no channel yet.
    pub fn new(processes: u8) -> Self {
        Self { processes, ..Self::default() }
    }

    /// Adds a channel.
    pub fn channel(mut self, a: (Process, User), b: (Process, User)) -> Self {
        self.channels.push(Channel { at: [a.0, b.0], users: [a.1, b.1] });
        self
    }

    /// Channel 0 is fused by this process of two, whose far ends are the two ends.
    pub fn fused_by(mut self, process: Process) -> Self {
        self.fuser = Some(process);
        self
    }

    /// Adds a channel between two processes that carries ends and nothing else.
    pub fn carrier(self, a: Process, b: Process) -> Self {
        self.channel((a, User::idle()), (b, User::idle()))
    }

    /// So many of these processes may die, at any moment.
    pub fn deaths(mut self, deaths: u8, mortal: &[Process]) -> Self {
        (self.deaths, self.mortal) = (deaths, mortal.to_vec());
        self
    }

    /// A socket may be full so often.
    pub fn fulls(mut self, fulls: u8) -> Self {
        self.fulls = fulls;
        self
    }

    /// Rings are drained a record at a time.
    pub fn one_by_one(mut self) -> Self {
        self.one_by_one = true;
        self
    }

    /// With a mistake in the protocol.
    pub fn broken(mut self, breakage: Breakage) -> Self {
        self.breakage = breakage;
        self
    }

    /// Whether a half of an end ever sleeps.
    pub fn sleeps(&self, end: EndId, half: Half) -> bool {
        match half {
            Half::Reader => self.user(end).sleeps,
            Half::Writer => self.user(end).waits,
        }
    }

    /// Whether anybody ever sleeps.
    pub fn sleeping(&self, half: Half) -> bool {
        let mut users = self.channels.iter().flat_map(|channel| &channel.users);
        users.any(|user| if half == Half::Reader { user.sleeps } else { user.waits })
    }

    /// What may happen to an end.
    pub fn user(&self, end: EndId) -> &User {
        &self.channels[usize::from(end.channel())].users[end.side()]
    }
}
