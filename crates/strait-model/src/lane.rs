//! Lanes and their rings: the memory that two processes share.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::end::Message;
use crate::state::Process;

/// Identifies a lane of a [`State`](crate::state::State).
#[derive(Clone, Copy)]
pub struct LaneId {
    /// The index of the lane in [`State::lanes`](crate::state::State::lanes);
    /// [`State::tidy`](crate::state::State::tidy) may change it.
    pub place: u8,
    /// The number of the lane in counter-examples. States that differ only in such numbers are equal.
    pub name: u8,
}

impl PartialEq for LaneId {
    fn eq(&self, other: &Self) -> bool {
        self.place == other.place
    }
}

impl Eq for LaneId {}

impl PartialOrd for LaneId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LaneId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.place.cmp(&other.place)
    }
}

impl Hash for LaneId {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.place.hash(state);
    }
}

impl fmt::Debug for LaneId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}", self.name)
    }
}

/// A record in a ring.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// A message of the user.
    Message(Message),
    /// The record *next*: the producer goes on in a larger ring.
    Next,
}

/// The seal: the record that ends a ring. It is set once, by compare-and-swap on the first empty header of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seal {
    /// The mark: the producer set this seal because its end moved. The consumer goes on in the given lane.
    Moved(LaneId),
    /// The consumer set this seal because its end moved. The producer goes on in the given lane.
    Frozen(LaneId),
    /// The producer set this seal because its end was closed.
    ClosedByWriter,
    /// The consumer set this seal because its end was closed.
    ClosedByReader,
}

/// The side of a ring that can sleep: its consumer or its producer. Each has a sleep word of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Half {
    /// The consumer of the ring, which sleeps until there is something to read.
    Reader,
    /// The producer of the ring, which sleeps until there is room.
    Writer,
}

/// A sleep word: whether and how one half of an end sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Word {
    /// The half is awake.
    #[default]
    Nobody,
    /// The half sleeps on the link to the process that it takes for its peer.
    Plain,
    /// The half sleeps relayed: the lane is pending, so it sleeps on the link to the source, and the source has to wake
    /// it.
    Via,
}

/// One direction of a lane, without the records that were read already.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Ring {
    /// The records that were published and not read yet, the oldest first.
    pub records: Vec<Record>,
    /// The seal behind the last record, if the ring has ended.
    pub seal: Option<Seal>,
    /// The sleep words of the ring: that of its consumer, then that of its producer.
    pub words: [Word; 2],
}

/// The transfer state of a lane, which its transfer word holds: how far the move of the end is for which the lane was
/// made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransferState {
    /// The source still has the end. The state can become handed over, claimed, cancelled or abandoned.
    Pending,
    /// The source has committed the message that carries the end.
    HandedOver,
    /// The new process of the end has taken the end out of its message.
    Claimed,
    /// The source died before the hand-over, and the other end has given the lane up.
    Abandoned,
    /// The source called the move off: the lane is an ordinary one between the other end and the source.
    Cancelled,
}

/// A lane: two rings and the transfer word.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The index and the name of this lane.
    pub id: LaneId,
    /// The two rings. The end on side *s* writes ring *s* and reads the other.
    pub rings: [Ring; 2],
    /// The transfer state: how far the move is for which the lane was made.
    pub transfer: TransferState,
    /// The process that made the lane: the source of the move.
    pub source: Process,
    /// The side (0 or 1) whose end moves into the lane. 2 in the lane that joins the far ends of two fused channels,
    /// where neither end moves.
    pub moved: usize,
    /// The process at each side once the end is handed over.
    pub at: [Process; 2],
}

impl Lane {
    /// Returns whether the lane is pending for the end on `side`: a move is in progress, and the end on `side` is not
    /// the one that moves.
    pub fn pending(&self, side: usize) -> bool {
        self.transfer == TransferState::Pending && side != self.moved
    }

    /// Returns the process that the end on `side` takes for its peer; `None` if the lane was abandoned.
    pub fn peer(&self, side: usize) -> Option<Process> {
        if side == self.moved {
            return Some(self.at[1 - side]);
        }
        match self.transfer {
            TransferState::Pending | TransferState::Cancelled => Some(self.source),
            TransferState::HandedOver | TransferState::Claimed => Some(self.at[1 - side]),
            TransferState::Abandoned => None,
        }
    }
}
