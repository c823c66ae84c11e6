//! Ways to get the rules wrong. The tests show that the model finds each.

/// A mistake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Breakage {
    /// The rules as they are meant.
    #[default]
    None,
    /// A peer is the process that it says it is.
    ClaimedName,
    /// A receiver believes the introducer about the process at the other half.
    ExpectedUnchecked,
    /// A receiver binds a lane to the oldest link to that process and ignores its makers.
    MakersIgnored,
    /// An introducer names a pair that it made over other links.
    KeyWithoutMakers,
    /// An introducer names a pair over other links than those over which it sent the halves.
    NamedOverAnyLink,
    /// An introduction in progress holds no link.
    IntroductionHoldsNothing,
    /// The first packet alone says to whom a link leads and that it is direct.
    FirstPacketAlone,
    /// A link is direct if one side thinks so.
    DirectByOneSide,
    /// IDLE is agreed to whatever was sent meanwhile.
    IdleWithoutCount,
    /// A side goes on sending between its IDLE and the answer.
    SendWhileAsked,
    /// No side owes an IDLE after a refusal.
    RefuserOwesNothing,
    /// After IDLEs with other numbers have crossed, each side waits for the other's next IDLE.
    CrossedOweNothing,
    /// A side takes a link to be idle although a lane is bound to it.
    LanesNotCounted,
    /// FORGET needs no answer: the receiver drops the name at once.
    ForgetUnanswered,
    /// The introducer forgets whatever it has announced meanwhile.
    ForgetWithoutCount,
    /// FORGET and RELEASED count on whichever link they come.
    ForgetOnAnyLink,
    /// The introducer lets go when one of the two asks.
    ForgetByOneSide,
    /// A connect whose answer is still to come holds no link.
    ConnectHoldsNothing,
    /// The acceptor chooses a link before it has read the packets that its peer sent over it.
    AcceptorReadsLate,
    /// The connector looks for the link that *reuse* names before it has read the acceptor's earlier packets.
    ConnectorReadsLate,
    /// The acceptor makes a new link while its IDLE is not answered.
    AskedAnswersNew,
    /// The connector, too, chooses the link.
    BothChoose,
    /// The introducer is believed about *yourself*.
    YourselfBelieved,
    /// A packet for an unknown lane is the peer's breach.
    UnknownIsBreach,
    /// A packet for an unknown lane is answered before the introducer's packets were read.
    UnknownAtOnce,
}
