//! A state of the model: every process with what it owns, every lane, and what the model counts.

use crate::end::{End, EndId, Message};
use crate::lane::{Half, Lane, LaneId, TransferState};

/// The number of a process.
pub type Process = u8;

/// Work that a process still has to do and for which it needs no end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum Task {
    /// Set the transfer word of this lane to *handed over*.
    HandOver(LaneId),
    /// After the hand-over or the cancelling of this lane: wake the given half of the other end, if it sleeps relayed.
    TakeRelayed(LaneId, Half),
    /// After publishing into a ring or reading from it: take the sleep word of the given [`Half`]. The lane and the
    /// number of the ring are given. The process to wake is given only with the deliberate error that looks for it too
    /// early.
    TakeWord(LaneId, usize, Half, Option<Process>),
    /// Wake the half whose sleep word was taken, over the link to its process. The values are those of
    /// [`Task::TakeWord`].
    Wake(LaneId, usize, Half, Option<Process>),
}

/// A process: whether it lives, what it owns, and what it has to do.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Whether the process lives.
    pub alive: bool,
    /// The ends that the process owns, without those in messages and backlogs.
    pub ends: Vec<End>,
    /// The work that the process has to do, besides the operations on its ends.
    pub tasks: Vec<Task>,
    /// The two channels that the process is fusing, if there are such.
    pub fuse: Option<Fuse>,
}

impl Owner {
    /// Returns a process that owns nothing.
    pub fn new(alive: bool) -> Self {
        Self { alive, ends: Vec::new(), tasks: Vec::new(), fuse: None }
    }
}

/// Two channels that a process fuses. It holds both far ends, 0a and 0b. The near ends have no name, as their users do
/// nothing.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Fuse {
    /// The lane in which each far end is held.
    pub held: [LaneId; 2],
    /// The lane that will join the far ends, once it is made.
    pub lane: Option<LaneId>,
    /// The messages that are committed for each far end: those that the other far end wrote.
    pub prepended: [Vec<Message>; 2],
    /// Whether each far end has a mark that names the joining lane.
    pub told: [bool; 2],
    /// The next step of the fuse.
    pub step: FuseStep,
}

/// The next step of a fuse. A number is the side, 0 or 1, of a far end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum FuseStep {
    /// Take what this far end wrote, and freeze its ring.
    Freeze(usize),
    /// Commit for this far end what the other far end wrote.
    Bring(usize),
    /// Set the mark that tells this far end in which lane it reads on.
    Mark(usize),
    /// Hand the joining lane over to both far ends.
    HandOver,
    /// Make the lane in which this far end was held an ordinary lane.
    Cancel(usize),
    /// Commit for this far end what the other far end wrote; the other one is closed or dead.
    BringAlone(usize),
    /// Close the channel of this far end, after [`FuseStep::BringAlone`].
    Close(usize),
}

/// What the model counts about an end, and no process knows.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Ledger {
    /// The number of messages that the end published.
    pub written: u8,
    /// The number of messages that the end received.
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
    /// Every lane that some process can reach.
    pub lanes: Vec<Lane>,
    /// Every process, by its number.
    pub owners: Vec<Owner>,
    /// What the model counts, with one row for each end.
    pub ledger: Vec<Ledger>,
    /// The number of processes that may still die.
    pub deaths: u8,
    /// The number of times that a socket may still be full.
    pub fulls: u8,
    /// Whether the process that fused two channels died before their far ends were joined.
    pub cut: bool,
    /// The fault that the last step showed, if there was one.
    pub wrong: Option<Wrong>,
}

/// A fault that shows in the step that causes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Wrong {
    /// This end received another message than the next one.
    Order(EndId),
    /// This end saw *peer closed* before it had received all that the other end had written.
    ClosedEarly(EndId),
    /// A process claimed this end, which another process has.
    OwnedTwice(EndId),
}

impl State {
    /// Returns an end that `process` owns; `None` if the end is in a message or with another process.
    pub fn owned(&self, process: Process, id: EndId) -> Option<&End> {
        self.owners[usize::from(process)].ends.iter().find(|end| end.id == id)
    }

    /// Returns an end that `process` owns, to be changed. Panics if `process` does not own the end.
    pub fn owned_mut(&mut self, process: Process, id: EndId) -> &mut End {
        self.owners[usize::from(process)].ends.iter_mut().find(|end| end.id == id).expect("the process has the end")
    }

    /// Returns the lane with this id.
    pub fn lane(&self, id: LaneId) -> &Lane {
        &self.lanes[usize::from(id.place)]
    }

    /// Returns the lane with this id, to be changed.
    pub fn lane_mut(&mut self, id: LaneId) -> &mut Lane {
        &mut self.lanes[usize::from(id.place)]
    }

    /// Adds a lane that `source` made for the move of the end on the side `moved` (2: neither end moves), and returns
    /// its id. `at` is the process at each side once the end is handed over.
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

    /// Returns whether the end on `side` of a lane has no live peer there. Then nothing more arrives in the lane than
    /// what is there.
    pub fn alone(&self, lane: LaneId, side: usize) -> bool {
        self.lane(lane).peer(side).is_none_or(|peer| !self.alive(peer))
    }

    /// Makes `process` the owner of an end.
    pub fn give(&mut self, process: Process, end: End) {
        let ends = &mut self.owners[usize::from(process)].ends;
        ends.push(end);
        ends.sort_by_key(|end| end.id);
    }

    /// Takes an end from the process that owns it, and returns the end. Panics if `process` does not own it.
    pub fn take(&mut self, process: Process, id: EndId) -> End {
        let ends = &mut self.owners[usize::from(process)].ends;
        let at = ends.iter().position(|end| end.id == id).expect("the process has the end");
        ends.remove(at)
    }

    /// Returns every end that a process owns, with the number of the process. Ends in messages are left out.
    pub fn ends(&self) -> impl Iterator<Item = (Process, &End)> {
        (0u8..).zip(&self.owners).flat_map(|(process, owner)| owner.ends.iter().map(move |end| (process, end)))
    }
}
