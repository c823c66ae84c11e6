//! Deliberate errors in the rules. The tests show that the model finds each.

/// A deliberate error in the rules, which the model must find.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Breakage {
    /// The rules have no error.
    #[default]
    None,
    /// A process takes its peer for the process that the peer says it is.
    ClaimedName,
    /// A receiver believes the introducer about the process at the other half.
    ExpectedUnchecked,
    /// A receiver binds a lane to its oldest link to the other process, and ignores the makers of that link.
    MakersIgnored,
    /// An introducer names a pair again that it made over links with other makers.
    KeyWithoutMakers,
    /// An introducer names a pair over other links than those over which it sent the halves.
    NamedOverAnyLink,
    /// An introduction in progress keeps no link open.
    IntroductionHoldsNothing,
    /// The first packet alone decides which process is the peer, and that the link is direct.
    FirstPacketAlone,
    /// A link counts as direct if one side says so.
    DirectByOneSide,
    /// A process agrees to IDLE without comparing the number of counted packets.
    IdleWithoutCount,
    /// A side sends counted packets between its IDLE and the answer.
    SendWhileAsked,
    /// The side that refuses an IDLE owes no IDLE of its own.
    RefuserOwesNothing,
    /// After two IDLEs with unequal numbers have crossed, each side waits for the next IDLE of the other.
    CrossedOweNothing,
    /// A side takes a link to be idle although a lane is bound to it.
    LanesNotCounted,
    /// FORGET needs no answer: the side that sends it drops the name of the link at once.
    ForgetUnanswered,
    /// The introducer accepts FORGET even if it has named the link again meanwhile.
    ForgetWithoutCount,
    /// FORGET and RELEASED are accepted on any link, not only on the one to which they belong.
    ForgetOnAnyLink,
    /// The introducer removes its entry when only one of the two sides has sent FORGET.
    ForgetByOneSide,
    /// A connect that waits for its answer keeps no link open.
    ConnectHoldsNothing,
    /// The acceptor chooses a link before it has read the packets that its peer sent over that link.
    AcceptorReadsLate,
    /// The connector looks for the link that REUSE names before it has read the acceptor's earlier packets.
    ConnectorReadsLate,
    /// The acceptor makes a new link while its IDLE on the existing link is unanswered.
    AskedAnswersNew,
    /// The connector, too, chooses a link for the new lane; only the acceptor may.
    BothChoose,
    /// A process believes the introducer that says *yourself* (both ends of the lane are in that process).
    YourselfBelieved,
    /// A process takes a packet for an unknown lane as a breach by the peer.
    UnknownIsBreach,
    /// A process answers a packet for an unknown lane before it has read the introducer's packets.
    UnknownAtOnce,
}
