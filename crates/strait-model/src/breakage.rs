//! Ways to get the protocol wrong. The tests show that the model finds each.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Breakage {
    /// The protocol as it is meant.
    #[default]
    None,
    /// The in ring is drained and frozen before the out ring is marked.
    FreezeBeforeMark,
    /// When both ends move at once, neither gives way.
    BothWin,
    /// The hand-over is announced before the message that carries the end is committed.
    HandOverBeforeCommit,
    /// The other end takes a lane for dead without saying so in its word.
    AbandonWithoutWord,
    /// An end that finds its out ring frozen goes on in the new lane with reading too.
    FollowWithoutMark,
    /// Whoever finds the link to its peer down does not look at its out ring any more.
    DeadBeforeSeal,
    /// A message with an end is committed to a lane that is still pending.
    CarryOverPending,
    /// A move that is called off leaves its lane pending.
    StayPending,
    /// An end in the backlog travels on with the lane that it came on.
    NestedAsTheyAre,
    /// A writer takes the sleeping word of a reader that sleeps as pending.
    TakeRelayed,
    /// The source does not wake a reader that sleeps as pending.
    NoWakeOnHandOver,
    /// The source wakes a reader that sleeps as pending, and forgets the writer that waits for room.
    NoWakeOfWriter,
    /// Freezing or closing a ring does not wake the writer that waits for room in it.
    NoWakeOnSeal,
    /// The source takes the sleeping word after the hand-over, however the reader sleeps.
    TakePlainOnHandOver,
    /// A reader that is about to sleep as pending looks at the ring once more, but not at the lane's word.
    SleepWithoutTransfer,
    /// The writer looks for the process to wake before it takes the sleeping word.
    WakeBeforeWord,
    /// Who fuses tells one far end where it reads on before what the other one writes is frozen.
    MarkBeforeFreeze,
}
