//! Deliberate errors in the protocol. The tests show that the model finds each error.

/// A deliberate error in the protocol, which the model must find.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Breakage {
    /// The protocol has no error.
    #[default]
    None,
    /// Deliberate error: the source drains and freezes the incoming ring before it marks the outgoing ring.
    FreezeBeforeMark,
    /// Deliberate error: when both ends move at once, neither gives way.
    BothWin,
    /// Deliberate error: the source hands the lane over before it commits the message that carries the end.
    HandOverBeforeCommit,
    /// Deliberate error: the other end takes a lane for dead without setting the transfer word to *abandoned*.
    AbandonWithoutWord,
    /// Deliberate error: an end that finds its outgoing ring frozen also continues to read in the new lane, before it
    /// has found the mark.
    FollowWithoutMark,
    /// Deliberate error: when the link to the peer is down, an end does not look for a seal on its outgoing ring.
    DeadBeforeSeal,
    /// Deliberate error: a message with an end is committed in a pending lane.
    CarryOverPending,
    /// Deliberate error: a cancelled move leaves its new lanes pending.
    StayPending,
    /// Deliberate error: an end in the backlog moves on with the lane of its arrival.
    NestedAsTheyAre,
    /// Deliberate error: a producer takes the sleep word of a consumer that sleeps relayed.
    TakeRelayed,
    /// Deliberate error: the source does not wake a consumer that sleeps relayed.
    NoWakeOnHandOver,
    /// Deliberate error: the source wakes a consumer that sleeps relayed, but not a producer that waits for room.
    NoWakeOfWriter,
    /// Deliberate error: freezing or closing a ring does not wake the producer that waits for room there.
    NoWakeOnSeal,
    /// Deliberate error: after the hand-over the source also takes the sleep word of a consumer that does not sleep
    /// relayed.
    TakePlainOnHandOver,
    /// Deliberate error: before it sleeps relayed, a consumer looks at the ring once more, but not at the transfer
    /// word.
    SleepWithoutTransfer,
    /// Deliberate error: the producer looks for the process to wake before it takes the sleep word.
    WakeBeforeWord,
    /// Deliberate error: a process that fuses two channels sets the mark for one far end before it has frozen the
    /// ring written by the other far end.
    MarkBeforeFreeze,
}
