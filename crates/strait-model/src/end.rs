//! Ends and messages: what one process owns, and can give to another.

use std::fmt;

use crate::lane::{Half, LaneId, Word};
use crate::state::Process;

/// One end of a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndId(u8);

impl EndId {
    /// The end on `side` (0 or 1) of a channel.
    pub const fn new(channel: u8, side: u8) -> Self {
        Self(channel * 2 + side)
    }

    /// Which channel it is of.
    pub fn channel(self) -> u8 {
        self.0 / 2
    }

    /// The side: it writes the ring with this number and reads the other.
    pub fn side(self) -> usize {
        usize::from(self.0 % 2)
    }

    /// The other end of the channel.
    pub fn other(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// For tables with a row for each end.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// `0a` and `0b` are the two ends of channel 0.
impl fmt::Debug for EndId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.channel(), ["a", "b"][self.side()])
    }
}

/// A message. What it says is its number, counted from 0 for each end that writes.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// How many messages its end had written before.
    pub number: u8,
    /// The end that travels with it, with everything that belongs to that end.
    pub carried: Option<Box<End>>,
}

/// What its owner knows of what an end can still read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reading {
    /// More may come.
    Open,
    /// Only the backlog is left.
    Ended,
    /// The user has been told *peer closed*.
    Closed,
}

/// How an end's reader or writer sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sleep {
    /// Not at all.
    Awake,
    /// It has seen whether the lane is pending, and so how it will sleep, and on the link to which process.
    Decided(Word, Process),
    /// It has said so in the ring and looks once more.
    Announced(Word, Process),
    /// It sleeps on the link to that process.
    Asleep(Process),
}

/// An end: what its owner knows, and takes along.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct End {
    /// Which.
    pub id: EndId,
    /// The lane it writes in.
    pub tx: LaneId,
    /// The lane it reads from; an older one than `tx`, or a newer, while it follows the other end.
    pub rx: LaneId,
    /// What was drained from older lanes: read before the ring.
    pub backlog: Vec<Message>,
    /// What there is to read.
    pub reading: Reading,
    /// The other end is known to read nothing more.
    pub tx_closed: bool,
    /// The lane on which it arrived had been abandoned: the other end has seen *peer closed*.
    pub dead: bool,
    /// It is in a message and nobody has claimed it.
    pub in_flight: bool,
    /// The operation that has it.
    pub doing: Doing,
    /// Each [`Half`] of it.
    pub sleep: [Sleep; 2],
}

/// An operation of an end's owner that takes several steps.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    /// None.
    Nothing,
    /// The end is being sent.
    Moving(Move),
    /// Its last record is to be written.
    ClosingOut,
    /// What it could read is to be dropped.
    ClosingIn,
}

/// A move in progress.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    /// The end that the message goes through.
    pub carrier: EndId,
    /// The process that the source means to send it to.
    pub to: Process,
    /// Which end is being worked on: 0 the one that is sent, then those in its backlog, and those in theirs.
    pub item: usize,
    /// What is done next.
    pub phase: Phase,
}

/// The next step of a move.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// An end in the backlog is claimed.
    Claim,
    /// The lane is made, and the mark set.
    Mark,
    /// The ring is read to its end and frozen. With the new lane, and the lane where the mark stands.
    Drain(LaneId, Option<LaneId>),
    /// Only in a broken protocol: the mark is set after the freeze.
    LateMark(LaneId),
    /// Only in a broken protocol: the hand-over is announced before it has happened.
    EarlyHandOver,
    /// The message is committed.
    Commit,
    /// The move cannot be done: each new lane is kept. Afterwards the end is closed, or not.
    CallOff {
        /// Because the channel that should have carried it has no other end.
        close: bool,
    },
}

impl End {
    /// An end on its first lane.
    pub fn new(id: EndId, lane: LaneId) -> Self {
        Self {
            id,
            tx: lane,
            rx: lane,
            backlog: Vec::new(),
            reading: Reading::Open,
            tx_closed: false,
            dead: false,
            in_flight: false,
            doing: Doing::Nothing,
            sleep: [Sleep::Awake; 2],
        }
    }

    /// The lane on which a half of it works, and the side of the ring there.
    pub fn place(&self, half: Half) -> (LaneId, usize) {
        match half {
            Half::Reader => (self.rx, 1 - self.id.side()),
            Half::Writer => (self.tx, self.id.side()),
        }
    }

    /// Itself and the ends in its backlog, each before those in its own.
    pub fn items(&self) -> Vec<&Self> {
        let mut items = vec![self];
        for message in &self.backlog {
            items.extend(message.carried.iter().flat_map(|end| end.items()));
        }
        items
    }

    /// One of its [`End::items`].
    pub fn item_mut(&mut self, at: usize) -> Option<&mut Self> {
        fn find<'a>(end: &'a mut End, left: &mut usize) -> Option<&'a mut End> {
            if *left == 0 {
                return Some(end);
            }
            *left -= 1;
            end.backlog.iter_mut().filter_map(|message| message.carried.as_deref_mut()).find_map(|end| find(end, left))
        }
        find(self, &mut { at })
    }
}
