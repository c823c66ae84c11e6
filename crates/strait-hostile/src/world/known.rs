//! What is left out of the attacker's choices for now.

/// Something that an attacker can do of which it is known that a victim does not withstand it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Deed {
    EmptyFirstPacket,
    PeekOffset,
    PassProcess,
    PassCredentials,
    HugeBoard,
    SlowDescriptor,
    HugeRecord,
    RowOfLanes,
    EndTwice,
    /// Ends that are sent away, fused or led elsewhere while the far end gives no room.
    MoveWithoutRoom,
}

/// What the victim does not withstand yet. A mending takes its deeds out.
pub const OFF: &[Deed] = &[Deed::SlowDescriptor, Deed::HugeRecord, Deed::EndTwice];

/// Whether an attacker does this.
pub fn does(deed: Deed, all: bool) -> bool {
    all || !OFF.contains(&deed)
}
