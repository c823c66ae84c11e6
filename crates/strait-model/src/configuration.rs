//! The bounds of a run: the processes of the ends at the start, and what may happen to the ends.

use crate::breakage::Breakage;
use crate::end::EndId;
use crate::lane::Half;
use crate::state::Process;

/// The permissions of the users of an end, in any process.
#[derive(Clone, Debug, Default)]
pub struct User {
    /// The number of messages that the users may publish.
    pub writes: u8,
    /// The number of times that the users may send the end.
    pub moves: u8,
    /// The channels through which the users may send the end.
    pub over: Vec<u8>,
    /// Whether the users may close the end.
    pub closes: bool,
    /// The number of times that the ring of the end may grow.
    pub grows: u8,
    /// Whether the reading side of the end sleeps when there is nothing to read; otherwise that side looks again and
    /// again.
    pub sleeps: bool,
    /// Whether the ring of the end has room for one message only. If so, its writing side sleeps until there is room.
    pub waits: bool,
}

/// A channel at the start of a run.
#[derive(Clone, Debug)]
pub struct Channel {
    /// The processes that have the two ends at the start.
    pub at: [Process; 2],
    /// The permissions of the users of each end.
    pub users: [User; 2],
}

/// The bounds of a run: processes, channels, and how often each thing may happen.
#[derive(Clone, Debug, Default)]
pub struct Configuration {
    /// The number of processes.
    pub processes: u8,
    /// The channels at the start.
    pub channels: Vec<Channel>,
    /// The process that fuses two channels into channel 0, and holds both far ends at the start; `None` if no
    /// channels are fused.
    pub fuser: Option<Process>,
    /// The processes allowed to die.
    pub mortal: Vec<Process>,
    /// The maximum number of deaths among these processes.
    pub deaths: u8,
    /// The number of times that a socket may be full.
    pub fulls: u8,
    /// The number of times that a source may lack memory for the messages that it drains.
    pub stays: u8,
    /// Whether a drain takes one step for each record, in place of one step for the whole ring.
    pub one_by_one: bool,
    /// The deliberate error in the protocol, if there is one.
    pub breakage: Breakage,
}

impl User {
    /// Returns receiving users.
    pub fn idle() -> Self {
        Self::default()
    }

    /// Returns users allowed to publish so many messages.
    pub fn writes(writes: u8) -> Self {
        Self { writes, ..Self::default() }
    }

    /// Lets the users send the end up to `moves` times, through the channels `over`.
    pub fn moves(mut self, moves: u8, over: &[u8]) -> Self {
        (self.moves, self.over) = (moves, over.to_vec());
        self
    }

    /// Lets the users close the end.
    pub fn closes(mut self) -> Self {
        self.closes = true;
        self
    }

    /// Lets the ring of the end grow this many times.
    pub fn grows(mut self, grows: u8) -> Self {
        self.grows = grows;
        self
    }

    /// Makes the reading side of the end sleep when there is nothing to read.
    pub fn sleeps(mut self) -> Self {
        self.sleeps = true;
        self
    }

    /// Makes the ring of the end small (one message), and its writing side sleep until there is room.
    pub fn waits(mut self) -> Self {
        self.waits = true;
        self
    }
}

impl Configuration {
    /// Returns a configuration with this many processes and no channels.
    pub fn new(processes: u8) -> Self {
        Self { processes, ..Self::default() }
    }

    /// Adds a channel, with the process and the users of each end.
    pub fn channel(mut self, a: (Process, User), b: (Process, User)) -> Self {
        self.channels.push(Channel { at: [a.0, b.0], users: [a.1, b.1] });
        self
    }

    /// Lets `process` fuse two channels into channel 0. The ends of channel 0 are their far ends.
    pub fn fused_by(mut self, process: Process) -> Self {
        self.fuser = Some(process);
        self
    }

    /// Adds a channel between two processes that only carries ends.
    pub fn carrier(self, a: Process, b: Process) -> Self {
        self.channel((a, User::idle()), (b, User::idle()))
    }

    /// Lets this many of the `mortal` processes die, at any moment.
    pub fn deaths(mut self, deaths: u8, mortal: &[Process]) -> Self {
        (self.deaths, self.mortal) = (deaths, mortal.to_vec());
        self
    }

    /// Lets a socket be full this many times.
    pub fn fulls(mut self, fulls: u8) -> Self {
        self.fulls = fulls;
        self
    }

    /// Lets a source lack memory for the messages that it drains this many times.
    pub fn stays(mut self, stays: u8) -> Self {
        self.stays = stays;
        self
    }

    /// Makes each drain take one step for each record.
    pub fn one_by_one(mut self) -> Self {
        self.one_by_one = true;
        self
    }

    /// Puts a deliberate error into the protocol.
    pub fn broken(mut self, breakage: Breakage) -> Self {
        self.breakage = breakage;
        self
    }

    /// Returns whether a half of an end ever sleeps.
    pub fn sleeps(&self, end: EndId, half: Half) -> bool {
        match half {
            Half::Reader => self.user(end).sleeps,
            Half::Writer => self.user(end).waits,
        }
    }

    /// Returns whether the given half of any end ever sleeps.
    pub fn sleeping(&self, half: Half) -> bool {
        let mut users = self.channels.iter().flat_map(|channel| &channel.users);
        users.any(|user| if half == Half::Reader { user.sleeps } else { user.waits })
    }

    /// Returns what the users of an end may do.
    pub fn user(&self, end: EndId) -> &User {
        &self.channels[usize::from(end.channel())].users[end.side()]
    }
}
