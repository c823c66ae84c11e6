//! The situations in a run.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A situation to be reached by some configuration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Met {
    /// A process ended its end of a lane, because the source had died before the commit.
    Abandoned,
    /// A side that had sent IDLE received AGREE.
    Agreed,
    /// A side that had sent IDLE received REFUSE.
    Refused,
    /// Two IDLEs crossed, and both numbers matched.
    CrossedEqual,
    /// Two IDLEs crossed, and a number did not match, because a counted packet was on its way.
    CrossedUnequal,
    /// A FORGET crossed an announcement of a lane, so the introducer ignored the FORGET.
    ForgetCrossed,
    /// An introducer removed its entry for a pair, and sent RELEASED.
    Released,
    /// An introducer named a pair again, for a further lane.
    NamedAgain,
    /// An acceptor put a lane on an existing link of the two processes.
    Reused,
    /// A process received NO_LANE: its peer does not know a lane.
    NoLane,
    /// The evidence about a socket did not agree, so the link became foreign.
    Foreign,
    /// The first packet came from another process than the introducer had named.
    Mismatch,
    /// An end in a mailbox (a lane with both ends in one process) was ended, since the other end had not arrived.
    HalfMailbox,
}

const EVERY: [Met; 13] = [
    Met::Abandoned,
    Met::Agreed,
    Met::Refused,
    Met::CrossedEqual,
    Met::CrossedUnequal,
    Met::ForgetCrossed,
    Met::Released,
    Met::NamedAgain,
    Met::Reused,
    Met::NoLane,
    Met::Foreign,
    Met::Mismatch,
    Met::HalfMailbox,
];

/// The situations ([`Met`]) reached in a run.
#[derive(Debug, Default)]
pub struct Seen(AtomicU32);

impl Seen {
    pub(super) fn note(&self, what: Met) {
        self.0.fetch_or(1 << what as u32, Relaxed);
    }

    /// Returns the situations reached so far.
    pub fn all(&self) -> Vec<Met> {
        let bits = self.0.load(Relaxed);
        EVERY.into_iter().filter(|&what| bits & (1 << what as u32) != 0).collect()
    }
}
