//! Ends and messages: the possessions of a process, movable to another process.

use std::fmt;

use crate::lane::{Half, LaneId, Word};
use crate::state::Process;

/// Identifies one of the two ends of a channel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndId(u8);

impl EndId {
    /// Returns the id of the end on `side` (0 or 1) of a channel.
    pub const fn new(channel: u8, side: u8) -> Self {
        Self(channel * 2 + side)
    }

    /// Returns the number of the channel of this end.
    pub fn channel(self) -> u8 {
        self.0 / 2
    }

    /// Returns the side of the end, 0 or 1. In each lane, the end writes the ring with this number, and reads the
    /// other ring.
    pub fn side(self) -> usize {
        usize::from(self.0 % 2)
    }

    /// Returns the id of the other end of the channel.
    pub fn other(self) -> Self {
        Self(self.0 ^ 1)
    }

    /// Returns the index of the end in tables with a row for each end.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }
}

/// Prints the end as the number of its channel and a letter: `0a` and `0b` are the ends of channel 0.
impl fmt::Debug for EndId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.channel(), ["a", "b"][self.side()])
    }
}

/// A message. The payload is the message's number, counted from 0 for each writing end.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Message {
    /// The number of the message: how many messages the sending end had written before.
    pub number: u8,
    /// The end in the message, with its backlog and the ends in the backlog.
    pub carried: Option<Box<End>>,
}

/// The owner's knowledge of what an end can still read.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reading {
    /// More messages may arrive.
    Open,
    /// Only the backlog can still be read.
    Ended,
    /// The user was told *peer closed*.
    Closed,
}

/// The state of a half of an end (its reading or its writing side) on the way to sleep.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sleep {
    /// The half is awake.
    Awake,
    /// The half has read the transfer word, and so decided how to sleep, and on the link to which process.
    Decided(Word, Process),
    /// The half has recorded its sleep in the sleep word, and will look once more before it sleeps.
    Announced(Word, Process),
    /// The half sleeps on the link to the given process.
    Asleep(Process),
}

/// An end, as known to its owner, with everything that moves with the end.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct End {
    /// The channel and the side of this end.
    pub id: EndId,
    /// The lane of the outgoing ring.
    pub tx: LaneId,
    /// The lane of the ring that this end reads. While this end follows a move of the other end, `rx` may be older or
    /// newer than `tx`.
    pub rx: LaneId,
    /// The messages drained from older lanes, the oldest first. The end receives them before those in the ring.
    pub backlog: Vec<Message>,
    /// The readable messages of the end.
    pub reading: Reading,
    /// Whether the end knows that the other end reads nothing more.
    pub tx_closed: bool,
    /// Whether the lane of this end was abandoned before the end arrived: the other end has seen *peer closed*.
    pub dead: bool,
    /// Whether the end is in a message and not claimed yet.
    pub in_flight: bool,
    /// The operation in progress.
    pub doing: Doing,
    /// How the halves sleep: first the reading side, then the writing side.
    pub sleep: [Sleep; 2],
}

/// An operation of several steps on an end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Doing {
    /// No operation is in progress.
    Nothing,
    /// The owner sends the end to another process.
    Moving(Move),
    /// The owner has given a move up after its mark, for lack of memory, and keeps the end. The next step reads the
    /// incoming ring to its end, and continues in the new lane. The values are the new lane and the lane with the mark.
    Staying(LaneId, LaneId),
    /// The owner closes the end; the next step seals the ring that the end writes.
    ClosingOut,
    /// The owner closes the end; the next step drops unread messages and seals the ring read by the end.
    ClosingIn,
}

/// A move in progress: an end is being sent to another process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    /// The end that carries the message with the moving end.
    pub carrier: EndId,
    /// The process that the source sends the end to.
    pub to: Process,
    /// The end at work now, as an index into [`End::items`]: 0 is the sent end, then come the ends in its backlog,
    /// each before those in its own backlog.
    pub item: usize,
    /// The next step of the move.
    pub phase: Phase,
}

/// The next step of a move.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// The source claims an end in the backlog.
    Claim,
    /// The source makes the new lane and sets the mark.
    Mark,
    /// The source reads the incoming ring to its end and freezes it. The values are the new lane, and the lane with
    /// the mark, if the mark was set.
    Drain(LaneId, Option<LaneId>),
    /// Only with a deliberate error: the source sets the mark after it froze the incoming ring.
    LateMark(LaneId),
    /// Only with a deliberate error: the source hands the new lanes over before it commits the message.
    EarlyHandOver,
    /// The source commits the message.
    Commit,
    /// The source calls the move off, and sets each new lane to *cancelled*.
    CallOff {
        /// Whether the end is closed afterwards, because the channel of the carrier has no other end.
        close: bool,
    },
}

impl End {
    /// Returns an end on its first lane, with nothing to read and no operation in progress.
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

    /// Returns the lane and the number of the ring in which a half of this end works.
    pub fn place(&self, half: Half) -> (LaneId, usize) {
        match half {
            Half::Reader => (self.rx, 1 - self.id.side()),
            Half::Writer => (self.tx, self.id.side()),
        }
    }

    /// Returns the end and all ends in its backlog, each before the ends in its own backlog.
    pub fn items(&self) -> Vec<&Self> {
        let mut items = vec![self];
        for message in &self.backlog {
            items.extend(message.carried.iter().flat_map(|end| end.items()));
        }
        items
    }

    /// Returns the end at index `at` of [`End::items`], to be changed; `None` if there are fewer.
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
