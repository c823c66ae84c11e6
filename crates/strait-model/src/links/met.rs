//! The situations that came about in a run.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Situations that a configuration is there for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Met {
    /// A move was given up, since its source had died before the commit.
    Abandoned,
    /// An IDLE was agreed to.
    Agreed,
    /// An IDLE was refused.
    Refused,
    /// Equal IDLEs crossed.
    CrossedEqual,
    /// IDLEs crossed, and a packet as well.
    CrossedUnequal,
    /// A FORGET crossed an announcement.
    ForgetCrossed,
    /// An introducer let go of a pair.
    Released,
    /// An introducer named a pair again.
    NamedAgain,
    /// A lane was put on a link that was there.
    Reused,
    /// A process was asked for a lane that it does not know.
    NoLane,
    /// The evidence about a socket did not agree.
    Foreign,
    /// The first packet came from another process than the introducer named.
    Mismatch,
    /// One end in a mailbox ended, since the other end did not come.
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

/// Every [`Met`] of a run.
#[derive(Debug, Default)]
pub struct Seen(AtomicU32);

impl Seen {
    pub(super) fn note(&self, what: Met) {
        self.0.fetch_or(1 << what as u32, Relaxed);
    }

    /// Everything that was met.
    pub fn all(&self) -> Vec<Met> {
        let bits = self.0.load(Relaxed);
        EVERY.into_iter().filter(|&what| bits & (1 << what as u32) != 0).collect()
    }
}
