//! The packets that the life of a link needs, without the bytes on the wire.

use super::Lane;
use super::identity::{Identity, Makers};

/// A packet on a link, or on the socket of a connect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Packet {
    /// The first packet of each side of a link that was not made by a connect.
    Handshake {
        /// The random name of the sending process.
        name: u128,
        /// Whether the sender made its half itself, so that the half did not come over another link.
        direct: bool,
    },
    /// The connect request: asks for a lane to the receiver.
    Connect {
        /// The random name of the sending process.
        name: u128,
        /// A random number that names the link, if this socket becomes one.
        link: u64,
    },
    /// NEW: accepts a connect; the socket becomes a link, with this lane.
    New {
        /// The random name of the sending process.
        name: u128,
        /// The first lane of the link.
        lane: Lane,
    },
    /// REUSE: accepts a connect; the lane is on the link that has this number, which both processes have already.
    Reuse {
        /// The new lane.
        lane: Lane,
        /// The number in the connect request by which the link was made.
        link: u64,
    },
    /// The sender has opened a lane on this link.
    Open(Lane),
    /// All that comes for a lane: attachments, wake-ups.
    Data(Lane),
    /// NO_LANE: the sender knows no such lane on this link.
    NoLane(Lane),
    /// IDLE: the sender needs the link no more, and has received this many counted packets.
    Idle(u64),
    /// AGREE: answers IDLE. The sender has closed the link.
    Agree,
    /// REFUSE: answers IDLE. The link stays.
    Refuse,
    /// An introduction: brings one half of a socket pair.
    Half {
        /// The introducer's number for the pair.
        number: u64,
        /// The first lane over the pair.
        lane: Lane,
        /// The process at the other half; `None` if the introducer does not know its identity.
        expected: Option<Identity>,
        /// The makers of the pair, as the introducer knows them.
        makers: Makers,
    },
    /// Names a pair again that the introducer has sent before, for a further lane.
    Named {
        /// The introducer's number for the pair.
        number: u64,
        /// The further lane.
        lane: Lane,
    },
    /// FORGET: asks the introducer not to name the pair any more, if it has named the pair this often.
    Forget {
        /// The introducer's number for the pair.
        number: u64,
        /// The number of times that the introducer named the pair to the sender.
        times: u64,
    },
    /// RELEASED: the introducer names the pair no more.
    Released {
        /// The introducer's number for the pair.
        number: u64,
    },
    /// *Yourself*: brings the end on this side (0 or 1) of a lane, both of whose ends are in the receiving process.
    Yourself {
        /// The lane.
        lane: Lane,
        /// The side of the end.
        side: u8,
    },
}

impl Packet {
    /// Returns whether IDLE counts the packet: whether it brings something that a closed link would lose.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Open(_) | Self::Data(_) | Self::Half { .. } | Self::Named { .. } | Self::Yourself { .. })
    }
}
