//! What came about in a run: a configuration that never meets what it is there for proves nothing.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Situations that a configuration is there for. What was met is noted, so that a test can tell that it was no idle
/// run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Met {
    /// A publish found its ring frozen.
    PublishFrozen,
    /// A close found its ring frozen.
    CloseFrozen,
    /// *Next* found its ring frozen.
    NextFrozen,
    /// A freeze came behind *next*.
    NextDrained,
    /// Both ends moved at once, and this one had to give way.
    Lost,
    /// A mark found its ring frozen.
    MarkFrozen,
    /// A mark or a message found that the reader has closed.
    ReaderClosed,
    /// A lane was given up.
    Abandoned,
    /// An end was claimed before its source said that it was handed over.
    ClaimedFirst,
    /// An end was claimed that the other end had given up.
    ClaimedDead,
    /// A move was called off.
    CalledOff,
    /// A carrying message found its ring frozen.
    CommitFrozen,
    /// An end in a backlog was moved on.
    Nested,
    /// An end in a backlog could not be moved on now.
    NestedRefused,
    /// A reader slept as pending.
    SleptVia,
    /// A writer found a reader that sleeps as pending.
    LeftVia,
    /// A writer woke a reader.
    Woken,
    /// A reader woke a writer that waited for room, or froze its ring.
    WokenForRoom,
    /// A source woke a reader that slept as pending.
    WokenVia,
}

const EVERY: [Met; 19] = [
    Met::PublishFrozen,
    Met::CloseFrozen,
    Met::NextFrozen,
    Met::NextDrained,
    Met::Lost,
    Met::MarkFrozen,
    Met::ReaderClosed,
    Met::Abandoned,
    Met::ClaimedFirst,
    Met::ClaimedDead,
    Met::CalledOff,
    Met::CommitFrozen,
    Met::Nested,
    Met::NestedRefused,
    Met::SleptVia,
    Met::LeftVia,
    Met::Woken,
    Met::WokenForRoom,
    Met::WokenVia,
];

/// Every [`Met`] of a run.
#[derive(Debug, Default)]
pub struct Seen(AtomicU32);

impl Seen {
    pub(crate) fn note(&self, what: Met) {
        self.0.fetch_or(1 << what as u32, Relaxed);
    }

    /// Everything that was met.
    pub fn all(&self) -> Vec<Met> {
        let bits = self.0.load(Relaxed);
        EVERY.into_iter().filter(|&what| bits & (1 << what as u32) != 0).collect()
    }
}
