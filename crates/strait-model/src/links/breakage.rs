//! Deliberate errors in the rules. The tests show that the model finds each error.

/// A deliberate error in the rules, which the model must find.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Breakage {
    /// The rules have no error.
    #[default]
    None,
    /// Deliberate error: a process believes the identity claimed by the peer.
    ClaimedName,
    /// Deliberate error: a receiver believes the introducer about the process at the other half.
    ExpectedUnchecked,
    /// Deliberate error: a receiver binds a lane to its oldest link to the other process, whatever the makers of the
    /// link.
    MakersIgnored,
    /// Deliberate error: an introducer names a pair again although it made the pair over links with other makers.
    KeyWithoutMakers,
    /// Deliberate error: an introducer names a pair over other links than those that carried the halves.
    NamedOverAnyLink,
    /// Deliberate error: an introduction in progress keeps no link open.
    IntroductionHoldsNothing,
    /// Deliberate error: the first packet alone decides the identity of the peer, and that the link is direct.
    FirstPacketAlone,
    /// Deliberate error: a link counts as direct if one side claims so.
    DirectByOneSide,
    /// Deliberate error: a process agrees to IDLE without comparing the number of counted packets.
    IdleWithoutCount,
    /// Deliberate error: a side sends counted packets between its IDLE and the answer.
    SendWhileAsked,
    /// Deliberate error: the side that refuses an IDLE owes no IDLE in return.
    RefuserOwesNothing,
    /// Deliberate error: after two IDLEs with unequal numbers have crossed, each side waits for the next IDLE of the
    /// other.
    CrossedOweNothing,
    /// Deliberate error: a side takes a link with a bound lane to be idle.
    LanesNotCounted,
    /// Deliberate error: FORGET needs no answer: its sender drops the name of the link at once.
    ForgetUnanswered,
    /// Deliberate error: the introducer accepts FORGET even after it has named the link again.
    ForgetWithoutCount,
    /// Deliberate error: FORGET and RELEASED are accepted on any link, not only on their own.
    ForgetOnAnyLink,
    /// Deliberate error: the introducer removes an entry after FORGET from only one of the two sides.
    ForgetByOneSide,
    /// Deliberate error: a connect without an answer keeps no link open.
    ConnectHoldsNothing,
    /// Deliberate error: the acceptor chooses a link before reading the peer's packets on that link.
    AcceptorReadsLate,
    /// Deliberate error: the connector looks for the link in REUSE before it has read the acceptor's earlier packets.
    ConnectorReadsLate,
    /// Deliberate error: the acceptor makes a new link while its IDLE on the existing link is unanswered.
    AskedAnswersNew,
    /// Deliberate error: the connector, too, chooses a link for the new lane; only the acceptor may.
    BothChoose,
    /// Deliberate error: a process believes *yourself*, the introducer's claim that both ends of a lane are in that
    /// process.
    YourselfBelieved,
    /// Deliberate error: a process takes a packet for an unknown lane as a breach by the peer.
    UnknownIsBreach,
    /// Deliberate error: a process answers a packet for an unknown lane before it has read the introducer's packets.
    UnknownAtOnce,
}
