//! How a link begins and ends: the machine of one side of a link.
//!
//! | phase | the next packet sent unasked by this side | on IDLE(n) |
//! |---|---|---|
//! | greeting | none: the peer's first packet has not come | breach |
//! | open | IDLE, once nothing holds the link | agreeing if n packets were sent, else refusing |
//! | refused | none: the peer refused an IDLE, and so sends the next one | agreeing or refusing, as above |
//! | asked | none: waits for the answer to its IDLE | closed if n packets were sent, else open |
//! | overtaken | none: as *asked*, but a counted packet came after the IDLE was sent | open |
//! | agreeing | AGREE; once something holds the link, or a counted packet is sent: refusing | breach |
//! | refusing | REFUSE | breach |
//!
//! No phase has the number of an IDLE, because only *overtaken* and *refusing* depend on the number later. The machine
//! does not know whether something holds the link either: the caller passes this fact to [`Life::owes`], and records it
//! with [`Life::held`]. A chosen refusal stays a refusal, even if nothing holds the link when the refusal is sent:
//! meanwhile the peer may have chosen the link for a connect of this process.

/// The life of a link, as known to one side.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Life {
    phase: Phase,
    /// The number of counted packets sent by this side.
    sent: u64,
    /// The number of counted packets received by this side.
    received: u64,
}

/// The phase of one side of a link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// The peer's first packet has not come.
    Greeting,
    /// The link is up, and this side may send IDLE.
    Open,
    /// The link is up. The peer has refused the IDLE of this side, and sends the next IDLE.
    Refused,
    /// This side has sent IDLE and received nothing since.
    Asked,
    /// This side has sent IDLE, and received a counted packet since.
    Overtaken,
    /// The peer has sent IDLE, and no counted packet was on its way to the peer. This side has not answered, and does
    /// not need the link any more.
    Agreeing,
    /// The peer has sent IDLE, and this side has not sent its refusal yet.
    Refusing,
}

/// A packet received by one side of a link, as far as the packet concerns the life of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Heard {
    /// The first packet of the peer.
    Handshake,
    /// A counted packet.
    Counted,
    /// An uncounted packet, without concern for the life of this link.
    Other,
    /// IDLE with its number.
    Idle(u64),
    /// AGREE.
    Agree,
    /// REFUSE.
    Refuse,
}

/// A packet sent by one side of a link for the life of the link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Say {
    /// IDLE with its number.
    Idle(u64),
    /// AGREE.
    Agree,
    /// REFUSE.
    Refuse,
}

/// The fate of the link after a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// The link stays.
    Stays,
    /// Both sides close the link: neither side needs the link, and no packet on the link is unread.
    Closes,
    /// No honest peer sends this packet here: the link ends.
    Breach,
}

impl Life {
    /// The life of a link whose peer has not sent its first packet yet.
    pub const GREETING: Self = Self { phase: Phase::Greeting, sent: 0, received: 0 };
    /// The life of a link made by a connect: both sides know each other from the first packet on.
    pub const OPEN: Self = Self { phase: Phase::Open, sent: 0, received: 0 };

    /// Returns the number of counted packets sent by this side.
    #[must_use]
    pub fn sent(self) -> u64 {
        self.sent
    }

    /// Returns the phase of the link.
    #[must_use]
    pub fn phase(self) -> Phase {
        self.phase
    }

    /// Returns whether this side may send a counted packet now. If not, this side waits for the peer's first packet,
    /// or for the answer to its IDLE.
    #[must_use]
    pub fn may_send(self) -> bool {
        matches!(self.phase, Phase::Open | Phase::Refused | Phase::Agreeing | Phase::Refusing)
    }

    /// Returns the machine after a counted packet was sent.
    #[must_use]
    pub fn counted(self) -> Self {
        debug_assert!(self.may_send(), "a counted packet was sent while {:?}", self.phase);
        Self { sent: self.sent + 1, ..self.held() }
    }

    /// Returns the machine after something held the link.
    #[must_use]
    pub fn held(self) -> Self {
        match self.phase {
            Phase::Agreeing => Self { phase: Phase::Refusing, ..self },
            _ => self,
        }
    }

    /// Returns the machine after a packet was received, and the fate of the link.
    #[must_use]
    pub fn hears(self, heard: Heard) -> (Self, Fate) {
        use Phase::{Agreeing, Asked, Greeting, Open, Overtaken, Refused, Refusing};
        let received = self.received + u64::from(heard == Heard::Counted);
        let goes_to = |phase| (Self { phase, received, ..self }, Fate::Stays);
        match (self.phase, heard) {
            (Greeting, Heard::Handshake) => goes_to(Open),
            (Greeting, _) | (_, Heard::Handshake) => (self, Fate::Breach),
            (_, Heard::Other) => goes_to(self.phase),
            // After sending IDLE, a process sends no counted packet until the answer arrives.
            (Agreeing | Refusing, _) => (self, Fate::Breach),
            (Asked | Overtaken, Heard::Counted) => goes_to(Overtaken),
            (Open | Refused, Heard::Counted) => goes_to(self.phase),
            (_, Heard::Idle(n)) if n > self.sent => (self, Fate::Breach),
            (Open | Refused, Heard::Idle(n)) => goes_to(if n == self.sent { Agreeing } else { Refusing }),
            // Two IDLEs have crossed: both sides come to the same result.
            (Asked, Heard::Idle(n)) if n == self.sent => (self, Fate::Closes),
            (Asked | Overtaken, Heard::Idle(_)) => goes_to(Open),
            (Asked, Heard::Agree) => (self, Fate::Closes),
            (Asked | Overtaken, Heard::Refuse) => goes_to(Refused),
            (Overtaken, Heard::Agree) | (Open | Refused, Heard::Agree | Heard::Refuse) => (self, Fate::Breach),
        }
    }

    /// Returns the packet due from this side now. `held` says whether something holds the link on this side; if so, the
    /// caller has recorded the fact with [`Life::held`].
    #[must_use]
    pub fn owes(self, held: bool) -> Option<Say> {
        match self.phase {
            Phase::Open if !held => Some(Say::Idle(self.received)),
            Phase::Agreeing => Some(Say::Agree),
            Phase::Refusing => Some(Say::Refuse),
            _ => None,
        }
    }

    /// Returns the machine after an owed packet was sent, and the fate of the link. If sending failed, the packet stays
    /// owed as long as it is still the right packet.
    #[must_use]
    pub fn says(self, say: Say) -> (Self, Fate) {
        match say {
            Say::Idle(_) => (Self { phase: Phase::Asked, ..self }, Fate::Stays),
            Say::Agree => (self, Fate::Closes),
            // The side that refuses sends the next IDLE.
            Say::Refuse => (Self { phase: Phase::Open, ..self }, Fate::Stays),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open() -> Life {
        Life::GREETING.hears(Heard::Handshake).0
    }

    #[test]
    fn two_sides_that_need_a_link_no_more_close_it() {
        let (asker, say) = (open(), open().owes(false));
        assert_eq!(say, Some(Say::Idle(0)));
        let asker = asker.says(Say::Idle(0)).0;
        let (other, fate) = open().hears(Heard::Idle(0));
        assert_eq!((other.owes(false), fate), (Some(Say::Agree), Fate::Stays));
        assert_eq!(other.says(Say::Agree).1, Fate::Closes);
        assert_eq!(asker.hears(Heard::Agree).1, Fate::Closes);
    }

    #[test]
    fn a_packet_on_its_way_keeps_the_link() {
        let asker = open().says(Say::Idle(0)).0;
        let other = open().counted().hears(Heard::Idle(0)).0;
        assert_eq!(other.owes(false), Some(Say::Refuse));
        assert_eq!(other.says(Say::Refuse).0.owes(false), Some(Say::Idle(0)));
        let asker = asker.hears(Heard::Counted).0;
        assert_eq!(asker.phase(), Phase::Overtaken);
        let asker = asker.hears(Heard::Refuse).0;
        assert_eq!((asker.phase(), asker.owes(false)), (Phase::Refused, None));
    }

    #[test]
    fn idles_that_cross_close_the_link_only_if_nothing_was_on_its_way() {
        let quiet = open().says(Say::Idle(0)).0;
        assert_eq!(quiet.hears(Heard::Idle(0)).1, Fate::Closes);
        let sender = open().counted().says(Say::Idle(0)).0;
        assert_eq!(sender.hears(Heard::Idle(0)).0.phase(), Phase::Open);
        let receiver = quiet.hears(Heard::Counted).0;
        assert_eq!(receiver.hears(Heard::Idle(0)).0.phase(), Phase::Open);
    }

    #[test]
    fn a_refusal_stays_one() {
        let asked = open().hears(Heard::Idle(0)).0;
        assert_eq!(asked.owes(false), Some(Say::Agree));
        assert_eq!(asked.counted().owes(false), Some(Say::Refuse));
        assert_eq!(asked.held().owes(false), Some(Say::Refuse));
    }

    #[test]
    fn what_no_honest_peer_sends_is_a_breach() {
        let breach = |life: Life, heard| life.hears(heard).1 == Fate::Breach;
        assert!(breach(Life::GREETING, Heard::Counted) && breach(open(), Heard::Handshake));
        assert!(breach(open(), Heard::Idle(1)) && breach(open(), Heard::Agree) && breach(open(), Heard::Refuse));
        let answering = open().hears(Heard::Idle(0)).0;
        assert!(breach(answering, Heard::Idle(0)) && breach(answering, Heard::Counted));
        let overtaken = open().says(Say::Idle(0)).0.hears(Heard::Counted).0;
        assert!(breach(overtaken, Heard::Agree) && breach(overtaken, Heard::Idle(1)));
    }
}
