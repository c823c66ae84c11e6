//! Lanes and their rings: the memory shared by two processes.

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
    /// The number of the lane in counter-examples. States with a difference in such numbers only are equal.
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

/// The seal: the record at the end of a ring, set once by compare-and-swap on the first empty header of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seal {
    /// The mark: the producer set this seal because its end moved. The consumer continues in the given lane.
    Moved(LaneId),
    /// The consumer set this seal because its end moved. The producer continues in the given lane.
    Frozen(LaneId),
    /// Set by the producer because its end was closed.
    ClosedByWriter,
    /// Set by the consumer because its end was closed.
    ClosedByReader,
}

/// The sleeping side of a ring, consumer or producer. Each side has a sleep word.
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
    /// The half sleeps on the link to its supposed peer.
    Plain,
    /// The half sleeps relayed: the lane is pending, so the half sleeps on the link to the source, and the source
    /// must wake the half.
    Via,
}

/// One direction of a lane, without the records already read.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Ring {
    /// The published records that were not read yet, the oldest first.
    pub records: Vec<Record>,
    /// The seal behind the last record, if the ring has ended.
    pub seal: Option<Seal>,
    /// The sleep words of the consumer and of the producer.
    pub words: [Word; 2],
}

/// The transfer state of a lane, in its transfer word: the progress of the move for which the lane was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransferState {
    /// The source still has the end. The state can become handed over, claimed, cancelled or abandoned.
    Pending,
    /// The source has committed the message with the end.
    HandedOver,
    /// The new process of the end has taken the end out of its message.
    Claimed,
    /// The source died before the hand-over, and the other end has given the lane up.
    Abandoned,
    /// The source cancelled the move: the lane is an ordinary lane between the other end and the source.
    Cancelled,
}

/// A lane: two rings and the transfer word.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lane {
    /// The index and the name of this lane.
    pub id: LaneId,
    /// The two rings. The end on side *s* writes ring *s* and reads the other.
    pub rings: [Ring; 2],
    /// The transfer state: the progress of the move for which the lane was made.
    pub transfer: TransferState,
    /// The process that made the lane: the source of the move.
    pub source: Process,
    /// The side (0 or 1) of the end that moves into the lane. 2 in the lane between the far ends of two fused
    /// channels, where neither end moves.
    pub moved: usize,
    /// The process at each side once the end is handed over.
    pub at: [Process; 2],
}

impl Lane {
    /// Returns whether the lane is pending for the end on `side`: a move of the other end is in progress.
    pub fn pending(&self, side: usize) -> bool {
        self.transfer == TransferState::Pending && side != self.moved
    }

    /// Returns the peer of the end on `side`, as that end knows it; `None` if the lane was abandoned.
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
