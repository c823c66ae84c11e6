//! The situations in a run. A configuration that never reaches its situations proves nothing.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// A situation to be reached by some configuration. A run notes its situations, so that a test can check that the
/// configuration shows its purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Met {
    /// An end published a message and found its ring frozen.
    PublishFrozen,
    /// A closing end found its outgoing ring frozen.
    CloseFrozen,
    /// An end on its way to a larger ring (*next*) found its ring frozen.
    NextFrozen,
    /// A drain read the record *next*, and so went on in the larger ring.
    NextDrained,
    /// Both ends moved at once, and this end had to give way.
    Lost,
    /// A move found the ring frozen when setting the mark.
    MarkFrozen,
    /// A mark or a message found the ring closed by its consumer.
    ReaderClosed,
    /// An end set a lane to *abandoned*, since the source had died.
    Abandoned,
    /// A process claimed an end before the source had set the lane to *handed over*.
    ClaimedFirst,
    /// A process claimed an end whose lane the other end had abandoned.
    ClaimedDead,
    /// A source called a move off.
    CalledOff,
    /// A source gave a move up after its mark.
    Stayed,
    /// The message with an end found its ring frozen.
    CommitFrozen,
    /// An end in the backlog moved together with the moving end.
    Nested,
    /// An end in the backlog could not move, because of a pending lane.
    NestedRefused,
    /// A half of an end slept relayed: on the link to the source.
    SleptVia,
    /// A process found the sleep word of a half that sleeps relayed, and left the word to the source.
    LeftVia,
    /// A consumer was woken.
    Woken,
    /// A producer that waited for room was woken, by room or by a seal.
    WokenForRoom,
    /// A source took the sleep word of a half that slept relayed, and woke the half.
    WokenVia,
}

const EVERY: [Met; 20] = [
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
    Met::Stayed,
    Met::CommitFrozen,
    Met::Nested,
    Met::NestedRefused,
    Met::SleptVia,
    Met::LeftVia,
    Met::Woken,
    Met::WokenForRoom,
    Met::WokenVia,
];

/// The situations ([`Met`]) reached in a run.
#[derive(Debug, Default)]
pub struct Seen(AtomicU32);

impl Seen {
    pub(crate) fn note(&self, what: Met) {
        self.0.fetch_or(1 << what as u32, Relaxed);
    }

    /// Returns the situations reached so far.
    pub fn all(&self) -> Vec<Met> {
        let bits = self.0.load(Relaxed);
        EVERY.into_iter().filter(|&what| bits & (1 << what as u32) != 0).collect()
    }
}
