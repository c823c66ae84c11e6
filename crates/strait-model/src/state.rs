//! A state of the model: every process with its possessions, every lane, and the counters of the model.

use crate::end::{End, EndId, Message};
use crate::lane::{Half, Lane, LaneId, TransferState};

/// The number of a process.
pub type Process = u8;

/// Work that a process still has to do without an end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Set the transfer word of this lane to *handed over*.
    HandOver(LaneId),
    /// After the hand-over or the cancelling of this lane: wake the given half of the other end, if that half sleeps
    /// relayed.
    TakeRelayed(LaneId, Half),
    /// After a publish into a ring or a read from it: take the sleep word of the given [`Half`]. The values are the
    /// lane, the number of the ring, the half, and the process to wake. The process is given only with the deliberate
    /// error that looks for it too early.
    TakeWord(LaneId, usize, Half, Option<Process>),
    /// Wake the half whose sleep word was taken, over the link to its process. The values are as for
    /// [`Task::TakeWord`].
    Wake(LaneId, usize, Half, Option<Process>),
}

/// A process: alive or dead, with possessions and work.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Owner {
    /// Whether the process lives.
    pub alive: bool,
    /// The ends of the process, without those in messages and backlogs.
    pub ends: Vec<End>,
    /// The work of the process, besides the operations on its ends.
    pub tasks: Vec<Task>,
    /// The two channels being fused by the process, if any.
    pub fuse: Option<Fuse>,
}

impl Owner {
    /// Returns a process without possessions.
    pub fn new(alive: bool) -> Self {
        Self { alive, ends: Vec::new(), tasks: Vec::new(), fuse: None }
    }
}

/// Two channels that a process fuses. The process holds both far ends, 0a and 0b. The near ends have no name, as
/// their users do nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fuse {
    /// The lane in which each far end is held.
    pub held: [LaneId; 2],
    /// The lane between the far ends, once it is made.
    pub lane: Option<LaneId>,
    /// The messages committed for each far end, from the other far end.
    pub prepended: [Vec<Message>; 2],
    /// Whether each far end has a mark that names the lane between the far ends.
    pub told: [bool; 2],
    /// The next step of the fuse.
    pub step: FuseStep,
}

/// The next step of a fuse. A number is the side, 0 or 1, of a far end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FuseStep {
    /// Receive everything written by the far end, and freeze its ring.
    Freeze(usize),
    /// Commit for the far end everything written by the other far end.
    Bring(usize),
    /// Set the mark with the lane in which the far end continues to read.
    Mark(usize),
    /// Hand the joining lane over to both far ends.
    HandOver,
    /// Make the lane in which the far end was held an ordinary lane.
    Cancel(usize),
    /// Commit for this far end everything that the other far end wrote; the other far end is closed or dead.
    BringAlone(usize),
    /// Close the channel of this far end, after [`FuseStep::BringAlone`].
    Close(usize),
}

/// The counters of the model for an end, unknown to all processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ledger {
    /// The number of messages published by the end.
    pub written: u8,
    /// The number of messages received by the end.
    pub received: u8,
    /// Whether the owner of the end closed it.
    pub closed: bool,
    /// The number of messages that the user of the end may still publish.
    pub writes: u8,
    /// The number of moves of the end that may still begin.
    pub moves: u8,
    /// Whether the user may close the end.
    pub may_close: bool,
    /// The number of times that the ring of the end may still grow.
    pub grows: u8,
}

/// A state of the model: all processes, all lanes, and what may still happen.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Every lane within reach of some process.
    pub lanes: Vec<Lane>,
    /// The processes, by number.
    pub owners: Vec<Owner>,
    /// The counters of the model, with one row for each end.
    pub ledger: Vec<Ledger>,
    /// The number of processes that may still die.
    pub deaths: u8,
    /// The number of times that a socket may still be full.
    pub fulls: u8,
    /// The number of times that a source may still lack memory for the messages that it drains.
    pub stays: u8,
    /// Whether the fusing process died before the far ends were joined.
    pub cut: bool,
    /// The fault in the last step, if there was one.
    pub wrong: Option<Wrong>,
}

/// A fault, visible in the step of its cause.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// This end received a message out of order.
    Order(EndId),
    /// The end saw *peer closed* before receiving everything written by the other end.
    ClosedEarly(EndId),
    /// A process claimed this end, although another process has the end.
    OwnedTwice(EndId),
}

impl State {
    /// Returns an end of `process`; `None` if the end is in a message or with another process.
    pub fn owned(&self, process: Process, id: EndId) -> Option<&End> {
        self.owners[usize::from(process)].ends.iter().find(|end| end.id == id)
    }

    /// Returns an end of `process`, for changes. Panics if `process` does not own the end.
    pub fn owned_mut(&mut self, process: Process, id: EndId) -> &mut End {
        self.owners[usize::from(process)].ends.iter_mut().find(|end| end.id == id).expect("the process has the end")
    }

    /// Returns the lane with this id.
    pub fn lane(&self, id: LaneId) -> &Lane {
        &self.lanes[usize::from(id.place)]
    }

    /// Returns the lane with this id, for changes.
    pub fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(id.place)]
    }

    /// Adds a lane made by `source` for the move of the end on side `moved` (2: neither end moves), and returns its
    /// id. `at` is the process at each side after the hand-over.
    pub fn add_lane(&mut self, transfer: TransferState, source: Process, moved: usize, at: [Process; 2]) -> LaneId {
        let name = self.lanes.iter().map(|lane| lane.id.name + 1).max().unwrap_or(0);
        let id = LaneId { place: self.lanes.len() as u8, name };
        self.lanes.push(Lane { id, rings: Default::default(), transfer, source, moved, at });
        id
    }

    /// Returns whether a process lives.
    pub fn alive(&self, process: Process) -> bool {
        self.owners[usize::from(process)].alive
    }

    /// Returns whether the end on `side` of a lane has no live peer there. Then nothing more arrives in the lane.
    pub fn alone(&self, lane: LaneId, side: usize) -> bool {
        self.lane(lane).peer(side).is_none_or(|peer| !self.alive(peer))
    }

    /// Makes `process` the owner of an end.
    pub fn give(&mut self, process: Process, end: End) {
        let ends = &mut self.owners[usize::from(process)].ends;
        ends.push(end);
        ends.sort_by_key(|end| end.id);
    }

    /// Takes an end from its owner `process`, and returns the end. Panics if `process` does not own the end.
    pub fn take(&mut self, process: Process, id: EndId) -> End {
        let ends = &mut self.owners[usize::from(process)].ends;
        let at = ends.iter().position(|end| end.id == id).expect("the process has the end");
        ends.remove(at)
    }

    /// Returns every end of every process, with the number of the process; without ends in messages.
    pub fn ends(&self) -> impl Iterator<Item = (Process, &End)> {
        (0u8..).zip(&self.owners).flat_map(|(process, owner)| owner.ends.iter().map(move |end| (process, end)))
    }
}
