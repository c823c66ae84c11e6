//! A state of the whole: every process with what it owns, every lane, and what the model keeps count of.

use crate::end::{End, EndId, Message};
use crate::lane::{Half, Lane, LaneId, TransferState};

/// A process.
pub type Process = u8;

/// What a process still has to do that no end is needed for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Say that the end of this lane was handed over.
    HandOver(LaneId),
    /// After that: wake the other end's reader or writer if it sleeps as pending.
    TakeRelayed(LaneId, Half),
    /// After publishing in a ring or reading from it: take the word of the other [`Half`]. The ring is that of the
    /// given side. The process to wake stands here only in a broken protocol, which looked for it before.
    TakeWord(LaneId, usize, Half, Option<Process>),
    /// The word said that it sleeps: wake it over the link to its process.
    Wake(LaneId, usize, Half, Option<Process>),
}

/// A process: whether it lives, what it owns, what it has to do.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Whether it lives.
    pub alive: bool,
    /// Its ends.
    pub ends: Vec<End>,
    /// What it has to do, apart from what its ends do.
    pub tasks: Vec<Task>,
    /// Two channels that it fuses.
    pub fuse: Option<Fuse>,
}

impl Owner {
    /// One that has nothing.
    pub fn new(alive: bool) -> Self {
        Self { alive, ends: Vec::new(), tasks: Vec::new(), fuse: None }
    }
}

/// Two channels that are being fused, of which both far ends are held: 0a and 0b. The near ends have no name, as their users
/// do nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fuse {
    /// The lane in which each far end is held.
    pub held: [LaneId; 2],
    /// The lane in which they will have each other.
    pub lane: Option<LaneId>,
    /// What is brought to each.
    pub prepended: [Vec<Message>; 2],
    /// Whether each was told of the lane.
    pub told: [bool; 2],
    /// What is done next.
    pub step: FuseStep,
}

/// The next step of a fuse.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FuseStep {
    /// What this far end wrote is taken, and its ring frozen.
    Freeze(usize),
    /// What the other one wrote is committed for this one.
    Bring(usize),
    /// This one is told where it reads on.
    Mark(usize),
    /// They have each other.
    HandOver,
    /// The lane in which this one was held is an ordinary one.
    Cancel(usize),
    /// This one is all there is: what the other one wrote is committed for it.
    BringAlone(usize),
    /// After that its channel is closed.
    Close(usize),
}

/// What the model knows of an end and no process does.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ledger {
    /// Messages that it published.
    pub written: u8,
    /// Messages that it received.
    pub received: u8,
    /// Whether it was closed by its owner.
    pub closed: bool,
    /// Messages that it may still publish of its own accord.
    pub writes: u8,
    /// Moves that it may still begin.
    pub moves: u8,
    /// Whether it may be closed.
    pub may_close: bool,
    /// How often its ring may grow.
    pub grows: u8,
}

/// A state of the whole.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Every lane that somebody knows.
    pub lanes: Vec<Lane>,
    /// Every process.
    pub owners: Vec<Owner>,
    /// A row for each end.
    pub ledger: Vec<Ledger>,
    /// Processes that may still die.
    pub deaths: u8,
    /// How often a socket may still be full.
    pub fulls: u8,
    /// Who was fusing two channels died before their far ends had each other.
    pub cut: bool,
    /// What went wrong in the last step.
    pub wrong: Option<Wrong>,
}

/// What can be seen to be wrong at the moment it happens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// An end received another message than the next.
    Order(EndId),
    /// An end saw *peer closed* before all that the other end had written.
    ClosedEarly(EndId),
    /// A process claimed an end that another has.
    OwnedTwice(EndId),
}

impl State {
    /// The end, if it is with a process and not in a message.
    pub fn owned(&self, process: Process, id: EndId) -> Option<&End> {
        self.owners[usize::from(process)].ends.iter().find(|end| end.id == id)
    }

    /// The same for changing it.
    pub fn owned_mut(&mut self, process: Process, id: EndId) -> &mut End {
        self.owners[usize::from(process)].ends.iter_mut().find(|end| end.id == id).expect("the process has the end")
    }

    /// A lane.
    pub fn lane(&self, id: LaneId) -> &Lane {
        &self.lanes[usize::from(id.place)]
    }

    /// The same for changing it.
    pub fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(id.place)]
    }

    /// Adds a lane, whose end on the `moved` side is the source's.
    pub fn add_lane(&mut self, transfer: TransferState, source: Process, moved: usize, at: [Process; 2]) -> LaneId {
        let name = self.lanes.iter().map(|lane| lane.id.name + 1).max().unwrap_or(0);
        let id = LaneId { place: self.lanes.len() as u8, name };
        self.lanes.push(Lane { id, rings: Default::default(), transfer, source, moved, at });
        id
    }

    /// Whether a process lives.
    pub fn alive(&self, process: Process) -> bool {
        self.owners[usize::from(process)].alive
    }

    /// Whether the end on `side` of a lane has no live peer there: nothing more will come, except what is there.
    pub fn alone(&self, lane: LaneId, side: usize) -> bool {
        self.lane(lane).peer(side).is_none_or(|peer| !self.alive(peer))
    }

    /// Gives an end to a process.
    pub fn give(&mut self, process: Process, end: End) {
        let ends = &mut self.owners[usize::from(process)].ends;
        ends.push(end);
        ends.sort_by_key(|end| end.id);
    }

    /// Takes an end from a process.
    pub fn take(&mut self, process: Process, id: EndId) -> End {
        let ends = &mut self.owners[usize::from(process)].ends;
        let at = ends.iter().position(|end| end.id == id).expect("the process has the end");
        ends.remove(at)
    }

    /// Every live process and each of its ends.
    pub fn ends(&self) -> impl Iterator<Item = (Process, &End)> {
        (0u8..).zip(&self.owners).flat_map(|(process, owner)| owner.ends.iter().map(move |end| (process, end)))
    }
}
