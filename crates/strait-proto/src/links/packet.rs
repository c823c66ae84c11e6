//! The packets for the life of a link, without their bytes on the wire.

use super::Lane;
use super::identity::{Identity, Makers};

/// A packet on a link, or on the socket of a connect.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Packet {
    /// The first packet of each side of a link, unless a connect made the link.
    Handshake {
        /// The random name of the sending process.
        name: u128,
        /// Whether the sender made its half itself; if not, the half came over another link.
        direct: bool,
    },
    /// The connect request: asks for a lane to the receiver.
    Connect {
        /// The random name of the sending process.
        name: u128,
        /// A random number: the number of the link, if the socket becomes a link.
        link: u64,
    },
    /// NEW: accepts a connect; the socket becomes a link, with this lane.
    New {
        /// The random name of the sending process.
        name: u128,
        /// The first lane of the link.
        lane: Lane,
    },
    /// REUSE: accepts a connect; the lane is on an existing link between the two processes, the link numbered `link`.
    Reuse {
        /// The new lane.
        lane: Lane,
        /// The number in the connect request for the link.
        link: u64,
    },
    /// The sender has opened a lane on this link.
    Open(Lane),
    /// Anything for a lane: attachments, wake-ups.
    Data(Lane),
    /// NO_LANE: the sender knows no such lane on this link.
    NoLane(Lane),
    /// IDLE: the sender does not need the link any more, and has received so many counted packets.
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
        /// The makers of the pair, as known to the introducer.
        makers: Makers,
    },
    /// Names an earlier pair from the introducer, for a further lane.
    Named {
        /// The introducer's number for the pair.
        number: u64,
        /// The further lane.
        lane: Lane,
    },
    /// FORGET: asks the introducer to name the pair no more, unless the introducer has named the pair more often than
    /// `times`.
    Forget {
        /// The introducer's number for the pair.
        number: u64,
        /// How often the introducer named the pair to the sender.
        times: u64,
    },
    /// RELEASED: the introducer names the pair no more.
    Released {
        /// The introducer's number for the pair.
        number: u64,
    },
    /// *Yourself*: brings one end of a lane (side 0 or 1). Both ends of the lane are in the receiving process.
    Yourself {
        /// The lane.
        lane: Lane,
        /// The side of the end.
        side: u8,
    },
}

impl Packet {
    /// Returns whether IDLE counts the packet: whether its content would be lost if the link were closed.
    #[must_use]
    pub fn is_counted(&self) -> bool {
        matches!(self, Self::Open(_) | Self::Data(_) | Self::Half { .. } | Self::Named { .. } | Self::Yourself { .. })
    }
}
