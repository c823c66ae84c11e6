//! Pairs made by an introducer: how long the introducer may name a pair, as seen by the introducer and by a receiver.

use super::identity::{Identity, Makers};
use super::{Id, Lane};

/// The introducer's name for a link, as seen by a receiver. While the link has a name, the introducer may name the
/// link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Name {
    /// The link to the introducer that brought the half. The number is valid on that link only.
    pub by: Id,
    /// The introducer's number for the pair.
    pub number: u64,
    /// How often the introducer named the pair to this process.
    pub times: u64,
    /// Whether this process has sent FORGET since the introducer last named the pair.
    pub asked: bool,
}

impl Name {
    /// Returns the name after the introducer named the link once more.
    pub(super) fn again(self) -> Self {
        Self { times: self.times + 1, asked: false, ..self }
    }
}

/// Whether an introducer may still name a pair to one process of the pair.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Side {
    /// The process has not asked to forget the pair since the last naming.
    Named,
    /// The process has asked to forget the pair, or its link is closed while the link to the other process is up.
    Forgot,
    /// The process was sent RELEASED, or its link is closed: the introducer does not name the pair any more.
    Released,
}

/// An entry in the table of an introducer: a socket pair made by the introducer.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Pair {
    /// The introducer's number for the pair.
    pub number: u64,
    /// The two processes, as verified by the introducer; `None` if the kernel reports no identity.
    pub ends: [Option<Identity>; 2],
    /// The makers of the pair.
    pub makers: Makers,
    /// The links that carry the halves and the names of the pair.
    pub over: [Id; 2],
    /// How often the pair was named to each of the two processes.
    pub told: [u64; 2],
    /// Whether the pair may still be named to each of the two processes.
    pub sides: [Side; 2],
}

impl Pair {
    /// Returns whether the pair can be named for a further lane between the processes `ends` with these makers. A
    /// pair with an unknown process, or with unknown makers, serves one lane only.
    pub(super) fn serves(&self, ends: [Option<Identity>; 2], makers: &Makers) -> bool {
        let same = self.ends == ends || self.ends == [ends[1], ends[0]];
        let known = ends.iter().all(Option::is_some) && *makers != Makers::Anyone;
        same && known && self.makers == *makers && !self.sides.contains(&Side::Released)
    }

    /// Returns the side of the process at a link of the introducer.
    pub(super) fn side(&self, on: Id) -> Option<usize> {
        self.over.iter().position(|&over| over == on)
    }

    /// Notes that the pair was named to one of the two processes.
    pub(super) fn was_named(&mut self, side: usize) {
        self.told[side] += 1;
        self.sides[side] = Side::Named;
    }

    /// Notes FORGET from one of the two processes. If the introducer named the pair again meanwhile, nothing changes:
    /// the process sends FORGET again after receiving the name.
    pub(super) fn forget(&mut self, side: usize, times: u64) {
        if times == self.told[side] && self.sides[side] == Side::Named {
            self.sides[side] = Side::Forgot;
        }
    }

    /// Notes that the link to one of the two processes is closed. The pair cannot be named any more.
    pub(super) fn lost(&mut self, side: usize) {
        self.sides[side] = Side::Released;
        if self.sides[1 - side] == Side::Named {
            self.sides[1 - side] = Side::Forgot;
        }
    }

    /// Returns whether one of the two processes must be sent RELEASED. If an introduction is about to name the pair
    /// (`busy`), the pair is not released.
    pub(super) fn owes_released(&self, side: usize, busy: bool) -> bool {
        !busy && self.sides[side] == Side::Forgot && self.sides[1 - side] != Side::Named
    }
}

/// The next step of an introduction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Stage {
    /// Make a socket pair.
    Make,
    /// Tell the first process.
    First,
    /// Tell the second process.
    Second,
    /// Commit: the lane may be used.
    Commit,
}

/// An introduction in progress; it holds the links in `over`.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Introduction {
    /// The lane for which the two processes are introduced.
    pub lane: Lane,
    /// The number of the pair; `None` if both ends are in one process.
    pub pair: Option<u64>,
    /// The links to the two processes.
    pub over: [Id; 2],
    /// The next step.
    pub stage: Stage,
}
