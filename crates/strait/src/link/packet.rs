//! The packets on a link's socket: 48 bytes each, little-endian.
//!
//! ```text
//! offset 0   u32   kind
//!        4   u32   number of descriptors that were sent with the packet
//!        8   u128  token of the direction of a lane that the packet belongs to
//!       24   u64   \
//!       32   u64    } by kind
//!       40   u64   /
//! ```
//!
//! | kind | descriptors | fields |
//! |---|---|---|
//! | open | the ring that the sender writes | protocol version · feature bits · cells of that ring |
//! | ring | larger cells for that ring | generation |
//! | message | all attachments of one message: memory with its payload, memory with its handle table, then its descriptors | number of the message · number of the block · bits 0..8: the memory with the payload (0 none, 1 a block, 2 sealed); bit 8: the memory with the handle table |
//! | ahead | the first descriptors of a message with too many for one packet; without descriptors, the ones sent ahead are void | |
//! | wake | none | |
//! | handshake | none; its token is the name of the process | lowest version · feature bits · highest version << 56 |
//! | refuse | none; the last packet | reason · lowest version · highest version |
//! | connect request | none; its token is that of an invitation, or 0 | 0 · number of the new link · number of a link that the sender has, or 0 |
//! | accept | none: the listener accepts the process that sent a connect request | 1 if the channel is on the link that the connect request names, else 0 · name of its lane there |
//! | introduce | a socket to a process that the receiver may not know; its token is the name of that process, or 0 | number of the introduction · inode number of that process, or 0 |
//! | arena | memory for lanes; its token is that of the arena | number · lanes, and cells of a ring << 32 · the process at the other end |
//! | notification area | the memory on which the receiver notifies members of the sender's wait sets | |
//! | retire | none: the sender takes no more lanes from an arena | number of the arena · lanes that it named there |
//! | absent | none: an end that the receiver may expect in an arena never comes | number of the arena |
//! | retract | none: attachments for this direction that are still in the receiver's inbox are void | |

use crate::error::Refusal;

/// The size of every packet in bytes.
pub(crate) const PACKET: usize = 48;

/// The versions of the link protocol supported by this build. Two processes can connect if they have a version in
/// common. Packets are in the lowest version; feature bits in the handshake announce the additions of later builds.
pub(crate) const VERSIONS: Versions = if cfg!(strait_protocol = "3") {
    // A copy of the library for tests of builds without a version in common; see the crate strait-next.
    Versions { lowest: 3, highest: 3 }
} else {
    Versions { lowest: 2, highest: 2 }
};

/// Feature bit of a process that accepts blocks (shared memory for large messages) with several messages. A message to
/// a peer without this feature has a block of its own.
pub(crate) const SHARES_BLOCKS: u64 = 2;

/// Feature bit of a process that knows the packet *retire*: the maker of an arena takes no more lanes from the arena.
pub(crate) const RETIRES_ARENAS: u64 = 4;

/// Feature bit of a process that knows the packet *absent*, by which the maker of an arena says that an end never
/// comes.
pub(crate) const COUNTS_ABSENT_ENDS: u64 = 8;

/// The feature bits that this process sends in its handshake.
pub(crate) const FEATURES: u64 = SHARES_BLOCKS | RETIRES_ARENAS | COUNTS_ABSENT_ENDS;

/// A constant in the upper 32 bits of the first field of open packets, handshakes, refusals and connect requests.
/// [`Packet::decode`] returns `None` for such a packet without this constant.
const MAGIC: u64 = 0x5354_5254 << 32;

/// The position of the bit, in the last word of a message's packet, for a handle table in the packet.
const TABLE: u32 = 8;

/// The position of the lowest bit of the highest version in the last word of a handshake packet. The bits below
/// are 0 in a packet of this version, and are not read.
const HIGHEST: u32 = 56;

/// A range of protocol versions from `lowest` to `highest`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Versions {
    pub(crate) lowest: u8,
    pub(crate) highest: u8,
}

impl Versions {
    /// Decodes the range of protocol versions in a packet from the peer. A peer that sends 0 for the highest version
    /// speaks only `lowest`. Returns `None` if the two numbers are no range, or a number does not fit into a byte.
    fn heard(lowest: u64, highest: u64) -> Option<Self> {
        let lowest = u8::try_from(lowest).ok()?;
        let highest = if highest == 0 { lowest } else { u8::try_from(highest).ok()? };
        (lowest > 0 && lowest <= highest).then_some(Self { lowest, highest })
    }

    /// Returns the highest protocol version that is in both ranges; `None` if the ranges share no version.
    pub(crate) fn common(self, other: Self) -> Option<u8> {
        let highest = self.highest.min(other.highest);
        (highest >= self.lowest.max(other.lowest)).then_some(highest)
    }
}

/// The memory that a message's packet brings for the payload of the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PayloadMemory {
    /// No memory: the payload is in the ring, or in a block that the receiver has.
    None,
    /// A block (shared memory for large messages); records refer to the block by this number.
    Block(u64),
    /// Sealed memory with the payload of this message only.
    Sealed,
}

/// A decoded packet on the socket of a link: kind and fields, without attachments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// The open packet: brings the first ring of a link, which the sender of the packet writes, and so opens the first
    /// channel. `cells` is the number of cells of that ring.
    Open { token: u128, version: u64, features: u64, cells: u64 },
    /// The packet that brings the memory with the cells of a larger ring. The mark at the end of the old ring refers to
    /// this memory by the ring's `generation`.
    Ring { token: u128, generation: u64 },
    /// The packet with all attachments of one message: the memory `payload`, if `has_table` sealed memory with the
    /// handle table of the message, and then `handles` descriptors. The sender commits the message after this packet.
    /// `message` is the number of the message in its ring.
    Message { token: u128, message: u64, payload: PayloadMemory, has_table: bool, handles: u32 },
    /// The packet with `count` descriptors of the message whose packet follows: the first descriptors of a message with
    /// too many for one packet. With `count` 0, no packet of that message follows, and the descriptors sent ahead are
    /// void.
    Ahead { token: u128, count: u32 },
    /// The wake packet, without attachments: wakes a thread of the receiver asleep on the socket; the thread then looks
    /// for messages and room.
    Wake,
    /// The handshake, the first packet of each side: the random name, the versions and the features of the sending
    /// process.
    Handshake { name: u128, versions: Versions, features: u64 },
    /// The packet that refuses the connection, with a reason and the sender's versions. No packet of the sender
    /// follows.
    Refuse { reason: u64, versions: Versions },
    /// The connect request: asks a listener to accept the process that sends the packet. `token` is the token of an
    /// invitation, or 0 if there is none. `link` is the number by which both processes name the new link; `reuses` is
    /// the number of a link that the sender has to the listener's process and keeps until the answer, or 0.
    Connect { token: u128, link: u64, reuses: u64 },
    /// The accept packet: the listener accepts the receiver of the packet, the sender of the connect request. `lane` is
    /// the name of the channel's lane, if the channel is on the link that the connect request named. Otherwise the
    /// socket becomes a new link.
    Accept { lane: Option<[u64; 2]> },
    /// The packet that introduces a third process, to which the receiver may have no link: carries a socket to that
    /// process. Later packets name that process by `number`. `name` and `inode` identify the process: the name in its
    /// handshake, and the inode number of its pidfd. Each is 0 if unknown to the sender of the packet.
    Introduce { number: u64, name: u128, inode: u64 },
    /// The packet by which the maker of an arena announces that it takes no more lanes from the arena. `number` is the
    /// number of the arena, and `lanes` is the number of lanes there named in present or past records of the sender.
    Retire { number: u64, lanes: u64 },
    /// The packet by which the maker of an arena says that an end in a lane of the arena never comes to the receiver:
    /// the end was closed before the move, or was not moved. The receiver counts the end as found. `number` is the
    /// number of the arena.
    Absent { number: u64 },
    /// The packet that brings the memory of an arena with `lanes` lanes, of `cells` cells for each ring. `with` says
    /// which process holds the other ends of the lanes. `number` and `token` name the arena.
    Arena { token: u128, number: u64, lanes: u32, cells: u32, with: u64 },
    /// The packet that revokes the remaining attachments in the receiver's inbox for the ring `token`. No record will
    /// refer to these attachments.
    Retract { token: u128 },
    /// The packet with the sender's notification area, the memory where the receiver notifies members of the sender's
    /// wait sets.
    ReadyBitmap,
}

impl Packet {
    fn kind(&self) -> u32 {
        match self {
            Self::Open { .. } => 1,
            Self::Ring { .. } => 2,
            Self::Message { .. } => 3,
            Self::Ahead { .. } => 4,
            Self::Wake => 6,
            Self::Handshake { .. } => 7,
            Self::Retire { .. } => 5,
            Self::Introduce { .. } => 8,
            Self::Arena { .. } => 9,
            Self::Retract { .. } => 10,
            Self::Absent { .. } => 11,
            Self::ReadyBitmap => 12,
            Self::Refuse { .. } => 13,
            Self::Connect { .. } => 14,
            Self::Accept { .. } => 15,
        }
    }

    /// Returns the name of the fault point just before this packet is sent. At a fault point, a named step, the tests
    /// kill, stop or starve a process.
    pub(crate) fn step(&self) -> &'static str {
        match self {
            Self::Open { .. } => "before an open packet is sent",
            Self::Ring { .. } => "before a ring is sent",
            Self::Message { .. } => "before the packet of a message is sent",
            Self::Ahead { .. } => "before descriptors are sent ahead of their message",
            Self::Wake => "before wake is sent",
            Self::Handshake { .. } => "before a handshake is sent",
            Self::Introduce { .. } => "before an introduction is sent",
            Self::Retire { .. } => "before an arena is retired",
            Self::Absent { .. } => "before an end is said to be absent",
            Self::Arena { .. } => "before an arena is sent",
            Self::Retract { .. } => "before retract is sent",
            Self::ReadyBitmap => "before a ready bitmap is sent",
            Self::Refuse { .. } => "before a refusal is sent",
            Self::Connect { .. } => "before a connect request is sent",
            Self::Accept { .. } => "before an accept packet is sent",
        }
    }

    /// Returns the number of descriptors attached to this packet.
    pub(crate) fn descriptors(&self) -> u32 {
        self.handles().saturating_add(self.memories() as u32)
    }

    /// Returns how many pieces of memory, or sockets, this packet brings, placed before the handles of a message.
    /// Without these attachments a channel cannot go on; without the handles of a message it can.
    pub(crate) fn memories(&self) -> usize {
        match *self {
            Self::Message { payload, has_table, .. } => {
                usize::from(payload != PayloadMemory::None) + usize::from(has_table)
            }
            Self::Open { .. } | Self::Ring { .. } | Self::Introduce { .. } | Self::Arena { .. } | Self::ReadyBitmap => {
                1
            }
            _ => 0,
        }
    }

    /// Returns how many handles of a message (descriptors of any kind) this packet brings.
    pub(crate) fn handles(&self) -> u32 {
        match *self {
            Self::Message { handles, .. } | Self::Ahead { count: handles, .. } => handles,
            _ => 0,
        }
    }

    pub(crate) fn encode(&self) -> [u8; PACKET] {
        let (token, fields) = match *self {
            Self::Open { token, version, features, cells } => (token, [version | MAGIC, features, cells]),
            Self::Ring { token, generation } => (token, [generation, 0, 0]),
            Self::Message { token, message, payload, has_table, .. } => {
                let (id, payload) = match payload {
                    PayloadMemory::None => (0, 0),
                    PayloadMemory::Block(id) => (id, 1),
                    PayloadMemory::Sealed => (0, 2),
                };
                (token, [message, id, payload | u64::from(has_table) << TABLE])
            }
            Self::Wake | Self::ReadyBitmap | Self::Accept { lane: None } => (0, [0; 3]),
            Self::Accept { lane: Some([one, other]) } => (0, [1, one, other]),
            Self::Handshake { name, versions, features } => {
                let last = u64::from(versions.highest) << HIGHEST;
                (name, [u64::from(versions.lowest) | MAGIC, features, last])
            }
            Self::Refuse { reason, versions: Versions { lowest, highest } } => {
                (0, [reason | MAGIC, lowest.into(), highest.into()])
            }
            Self::Connect { token, link, reuses } => (token, [MAGIC, link, reuses]),
            Self::Introduce { number, name, inode } => (name, [number, inode, 0]),
            Self::Retire { number, lanes } => (0, [number, lanes, 0]),
            Self::Absent { number } => (0, [number, 0, 0]),
            Self::Arena { token, number, lanes, cells, with } => {
                (token, [number, u64::from(lanes) | u64::from(cells) << 32, with])
            }
            Self::Ahead { token, .. } | Self::Retract { token } => (token, [0; 3]),
        };
        let mut bytes = [0; PACKET];
        bytes[0..4].copy_from_slice(&self.kind().to_le_bytes());
        bytes[4..8].copy_from_slice(&self.descriptors().to_le_bytes());
        bytes[8..24].copy_from_slice(&token.to_le_bytes());
        for (field, place) in fields.iter().zip(bytes[24..].chunks_exact_mut(8)) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes a received packet. Returns `None` if no honest peer sends these bytes; the sender is then a bad peer.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PACKET] = bytes.try_into().ok()?;
        let word32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let word64 = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let token = u128::from_le_bytes(bytes[8..24].try_into().expect("sixteen bytes"));
        let packet = match word32(0) {
            1 if word64(24) & !u64::from(u32::MAX) == MAGIC => {
                Self::Open { token, version: word64(24) & u64::from(u32::MAX), features: word64(32), cells: word64(40) }
            }
            2 => Self::Ring { token, generation: word64(24) },
            3 => {
                let payload = match word64(40) & !(1 << TABLE) {
                    0 => PayloadMemory::None,
                    1 => PayloadMemory::Block(word64(32)),
                    2 => PayloadMemory::Sealed,
                    _ => return None,
                };
                let has_table = word64(40) >> TABLE == 1;
                let bare = Self::Message { token, message: word64(24), payload, has_table, handles: 0 };
                // A packet that brings nothing is not sent.
                let handles = word32(4).checked_sub(bare.descriptors()).filter(|_| word32(4) > 0)?;
                Self::Message { token, message: word64(24), payload, has_table, handles }
            }
            4 => Self::Ahead { token, count: word32(4) },
            5 => Self::Retire { number: word64(24), lanes: word64(32) },
            6 => Self::Wake,
            7 if word64(24) & !u64::from(u32::MAX) == MAGIC => Self::Handshake {
                name: token,
                versions: Versions::heard(word64(24) & u64::from(u32::MAX), word64(40) >> HIGHEST)?,
                features: word64(32),
            },
            8 => Self::Introduce { number: word64(24), name: token, inode: word64(32) },
            9 => Self::Arena {
                token,
                number: word64(24),
                lanes: word64(32) as u32,
                cells: (word64(32) >> 32) as u32,
                with: word64(40),
            },
            10 => Self::Retract { token },
            11 => Self::Absent { number: word64(24) },
            12 => Self::ReadyBitmap,
            13 if word64(24) & !u64::from(u32::MAX) == MAGIC => Self::Refuse {
                reason: word64(24) & u64::from(u32::MAX),
                versions: Versions::heard(word64(32), word64(40))?,
            },
            14 if word64(24) == MAGIC => Self::Connect { token, link: word64(32), reuses: word64(40) },
            15 => Self::Accept { lane: (word64(24) == 1).then(|| [word64(32), word64(40)]) },
            _ => return None,
        };
        (packet.descriptors() == word32(4)).then_some(packet)
    }
}

impl Refusal {
    /// Creates the refusal of a peer with the versions `theirs`, none in common with this process.
    pub(crate) fn version(theirs: Versions) -> Self {
        Self::Version { ours: (VERSIONS.lowest, VERSIONS.highest), theirs: (theirs.lowest, theirs.highest) }
    }

    /// Returns the packet for the peer with this refusal and its reason.
    pub(crate) fn packet(self) -> Packet {
        let reason = match self {
            Self::Unknown => 0,
            Self::Version { .. } => 1,
            Self::Token => 2,
            Self::Policy => 3,
            Self::Busy => 4,
        };
        Packet::Refuse { reason, versions: VERSIONS }
    }

    /// Decodes the reason from a packet by which the peer refuses this process. `reason` 1 means that the peer's
    /// `versions` have none in common with this process. Unknown values become [`Refusal::Unknown`].
    pub(crate) fn heard(reason: u64, versions: Versions) -> Self {
        match reason {
            1 => Self::version(versions),
            2 => Self::Token,
            3 => Self::Policy,
            4 => Self::Busy,
            _ => Self::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    include!("../../tests/common/wire_page.rs");

    #[test]
    fn the_page_has_the_numbers_of_the_packets() {
        let (token, versions, payload) = (0, VERSIONS, PayloadMemory::None);
        let packets = [
            ("open", Packet::Open { token, version: 2, features: 0, cells: 4 }),
            ("ring", Packet::Ring { token, generation: 1 }),
            ("message", Packet::Message { token, message: 0, payload, has_table: false, handles: 1 }),
            ("ahead", Packet::Ahead { token, count: 1 }),
            ("wake", Packet::Wake),
            ("handshake", Packet::Handshake { name: 0, versions, features: 0 }),
            ("introduce", Packet::Introduce { number: 0, name: 0, inode: 0 }),
            ("arena", Packet::Arena { token, number: 0, lanes: 1, cells: 4, with: 0 }),
            ("retire", Packet::Retire { number: 0, lanes: 0 }),
            ("absent", Packet::Absent { number: 0 }),
            ("retract", Packet::Retract { token }),
            ("ready bitmap", Packet::ReadyBitmap),
            ("refuse", Packet::Refuse { reason: 0, versions }),
            ("connect request", Packet::Connect { token, link: 1, reuses: 0 }),
            ("accept", Packet::Accept { lane: None }),
        ];
        assert_page_has("packets", &packets.map(|(name, packet)| (name, [packet.kind().into()])));
        let features = [
            ("shares blocks", [SHARES_BLOCKS]),
            ("retires arenas", [RETIRES_ARENAS]),
            ("counts absent ends", [COUNTS_ABSENT_ENDS]),
        ];
        assert_page_has("features", &features);
        assert_eq!(FEATURES, features.iter().fold(0, |all, (_, [bit])| all | bit));
        let refusals = [
            ("unknown", Refusal::Unknown),
            ("version", Refusal::version(VERSIONS)),
            ("token", Refusal::Token),
            ("policy", Refusal::Policy),
            ("busy", Refusal::Busy),
        ];
        let reason = |refusal: Refusal| match refusal.packet() {
            Packet::Refuse { reason, .. } => reason,
            other => panic!("{other:?}"),
        };
        assert_page_has("refusals", &refusals.map(|(name, refusal)| (name, [reason(refusal)])));
        assert_eq!(VERSIONS.lowest, VERSIONS.highest, "the page describes one version");
        let constants = [("version", [VERSIONS.lowest.into()]), ("packet", [PACKET as u64]), ("magic", [MAGIC >> 32])];
        assert_page_has("constants", &constants);
    }

    /// Shows which attachments of a packet are memory: all except the handles of a message. So a process that refuses
    /// the handles of messages still receives memory.
    #[test]
    fn a_packet_brings_memory_if_it_has_a_descriptor_that_is_no_messages() {
        let token = 7;
        for packet in [
            Packet::Wake,
            Packet::Accept { lane: None },
            Packet::Retire { number: 1, lanes: 2 },
            Packet::Absent { number: 1 },
            Packet::Connect { token, link: 1, reuses: 2 },
            Packet::Retract { token },
        ] {
            assert!(packet.memories() == 0 && packet.descriptors() == 0, "{packet:?}");
        }
        for count in 0..3 {
            assert_eq!(Packet::Ahead { token, count }.memories(), 0);
            for (payload, memories) in
                [(PayloadMemory::None, 0), (PayloadMemory::Block(1), 1), (PayloadMemory::Sealed, 1)]
            {
                let packet = |has_table| Packet::Message { token, message: 3, payload, has_table, handles: count };
                assert_eq!((packet(false).memories(), packet(true).memories()), (memories, memories + 1));
                assert_eq!(packet(true).descriptors(), count + 1 + memories as u32);
            }
        }
        for packet in [Packet::ReadyBitmap, Packet::Ring { token, generation: 1 }] {
            assert!(packet.memories() == 1 && packet.descriptors() == 1, "{packet:?}");
        }
    }

    #[test]
    fn a_packet_for_a_message_that_brings_nothing_is_refused() {
        let packet = |payload| Packet::Message { token: 7, message: 3, payload, has_table: false, handles: 0 };
        assert_eq!(Packet::decode(&packet(PayloadMemory::None).encode()), None);
        assert_eq!(Packet::decode(&packet(PayloadMemory::Sealed).encode()), Some(packet(PayloadMemory::Sealed)));
    }

    fn versions() -> impl Strategy<Value = Versions> {
        (1..=u8::MAX, 1..=u8::MAX).prop_map(|(one, other)| Versions { lowest: one.min(other), highest: one.max(other) })
    }

    fn payloads() -> impl Strategy<Value = PayloadMemory> {
        prop_oneof![Just(PayloadMemory::None), any::<u64>().prop_map(PayloadMemory::Block), Just(PayloadMemory::Sealed)]
    }

    fn packets() -> impl Strategy<Value = Packet> {
        prop_oneof![
            (any::<u128>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(token, version, features, cells)| {
                Packet::Open { token, version: version.into(), features, cells }
            }),
            (any::<u128>(), any::<u64>()).prop_map(|(token, generation)| Packet::Ring { token, generation }),
            (any::<u128>(), any::<u32>()).prop_map(|(token, count)| Packet::Ahead { token, count }),
            (any::<u128>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>())
                .prop_map(|(token, number, lanes, cells, with)| Packet::Arena { token, number, lanes, cells, with }),
            (any::<u128>(), versions(), any::<u64>()).prop_map(|(name, versions, features)| Packet::Handshake {
                name,
                versions,
                features
            }),
            (any::<u32>(), versions())
                .prop_map(|(reason, versions)| Packet::Refuse { reason: reason.into(), versions }),
            (any::<u128>(), any::<u64>(), any::<u64>()).prop_map(|(token, link, reuses)| Packet::Connect {
                token,
                link,
                reuses
            }),
            any::<Option<[u64; 2]>>().prop_map(|lane| Packet::Accept { lane }),
            (any::<u64>(), any::<u128>(), any::<u64>()).prop_map(|(number, name, inode)| Packet::Introduce {
                number,
                name,
                inode
            }),
            any::<u128>().prop_map(|token| Packet::Retract { token }),
            (any::<u128>(), any::<u64>(), payloads(), any::<bool>(), 1..u32::MAX / 2).prop_map(
                |(token, message, payload, has_table, handles)| {
                    Packet::Message { token, message, payload, has_table, handles }
                }
            ),
            (any::<u64>(), any::<u64>()).prop_map(|(number, lanes)| Packet::Retire { number, lanes }),
            Just(Packet::Wake),
            Just(Packet::ReadyBitmap),
        ]
    }

    #[test]
    fn versions_overlap_or_not() {
        let speaks = |lowest, highest| Versions { lowest, highest };
        assert_eq!(speaks(1, 1).common(speaks(1, 3)), Some(1));
        assert_eq!(speaks(2, 5).common(speaks(1, 3)), Some(3));
        assert_eq!(speaks(1, 1).common(speaks(2, 3)), None);
        assert_eq!(speaks(4, 5).common(speaks(2, 3)), None);
        assert_eq!(Versions::heard(1, 0), Some(speaks(1, 1)));
        for (lowest, highest) in [(0, 0), (0, 1), (3, 2), (256, 0)] {
            assert_eq!(Versions::heard(lowest, highest), None);
        }
    }

    proptest! {
        #[test]
        fn packets_survive_the_wire(packet in packets()) {
            prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
        }

        #[test]
        fn any_bytes_are_a_packet_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            if let Some(packet) = Packet::decode(&bytes) {
                prop_assert_eq!(bytes.len(), PACKET);
                prop_assert_eq!(Packet::decode(&packet.encode()), Some(packet));
            }
        }
    }
}
