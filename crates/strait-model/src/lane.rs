//! Lanes and their rings: what two processes share.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::end::Message;
use crate::state::Process;

/// A lane, for whoever knows of it.
#[derive(Clone, Copy)]
pub struct LaneId {
    /// Its place in the state, which [`State::tidy`](crate::state::State::tidy) may change.
    pub place: u8,
    /// What it is called in counter-examples; makes no difference between states.
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

/// A record of a ring.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum Record {
    /// A message.
    Message(Message),
    /// The ring goes on in larger cells.
    Next,
}

/// What ends a ring: set once, by compare-and-swap on its first empty header.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Seal {
    /// By the writer, whose end moved: the reader goes on in that lane.
    Moved(LaneId),
    /// By the reader, whose end moved: the writer goes on in that lane.
    Frozen(LaneId),
    /// By the writer, who closed.
    ClosedByWriter,
    /// By the reader, who closed.
    ClosedByReader,
}

/// The two who can sleep on a ring, each with a word of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Half {
    /// The reader, for messages: the *sleeping* word.
    Reader,
    /// The writer, for room: the *waiting* word.
    Writer,
}

/// Such a word.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Word {
    /// It is awake.
    #[default]
    Nobody,
    /// It sleeps on the link to the process that it takes for the other's.
    Plain,
    /// The lane is pending for it: it sleeps on the link to the source, who has to wake it.
    Via,
}

/// One direction of a lane, from what was not read yet.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct Ring {
    /// What was published and not taken.
    pub records: Vec<Record>,
    /// What stands behind the last record, if the ring has ended.
    pub seal: Option<Seal>,
    /// The word of each [`Half`].
    pub words: [Word; 2],
}

/// The word of a lane that says how far its hand-over is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TransferState {
    /// The source still has the end: it can be handed over, claimed, cancelled or abandoned.
    Pending,
    /// The message that carries the end is committed.
    HandedOver,
    /// The end's new process has taken it out of its message.
    Claimed,
    /// The source died before; the other end has given the lane up.
    Abandoned,
    /// The move was called off: the lane is an ordinary one between the other end and the source.
    Cancelled,
}

/// A lane: two rings and the word.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Which it is.
    pub id: LaneId,
    /// Ring *s* is written by side *s*.
    pub rings: [Ring; 2],
    /// How far the hand-over is.
    pub transfer: TransferState,
    /// Who made the lane.
    pub source: Process,
    /// The side whose end moved; 2, where none did and two ends are to get each other.
    pub moved: usize,
    /// The process at each side once the end was handed over.
    pub at: [Process; 2],
}

impl Lane {
    /// Whether the end on `side` has to treat it as pending.
    pub fn pending(&self, side: usize) -> bool {
        self.transfer == TransferState::Pending && side != self.moved
    }

    /// The process that the end on `side` takes for its peer; none if the lane was given up.
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
