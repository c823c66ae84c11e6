//! What goes over a link's socket: packets of 48 bytes, little-endian.
//!
//! ```text
//! offset 0   u32   kind
//!        4   u32   descriptors that were sent with it
//!        8   u128  token of the lane's direction that it belongs to
//!       24   u64   \
//!       32   u64    } by kind
//!       40   u64   /
//! ```
//!
//! | kind | descriptors | fields |
//! |---|---|---|
//! | hello | the ring that the sender writes | protocol version · feature bits · cells of that ring |
//! | ring | larger cells for it | generation |
//! | handles | a message's | sequence number of the message · which part of them, from 0 |
//! | block | memory of the pool, then handles of its first message | number of the block · sequence number of the message |
//! | sealed | a message's payload, then its handles | sequence number of the message |
//! | table | what a message's handles are, if that is too long for the ring | sequence number of the message |
//! | wake | none | |
//! | greet | none; its token is the name of the process | protocol version · feature bits |
//! | introduce | a socket to a process that the receiver may not know | number of the introduction |
//! | arena | memory for lanes; its token is the arena's | number · lanes, and cells of a ring << 32 · with whom |
//! | board | memory on which the receiver rings for members of the sender's wait sets | |
//! | retract | none: what was sent for this direction and not asked for yet is void | |

/// Bytes of every packet.
pub(crate) const PACKET: usize = 48;

/// Version of the protocol that this code speaks.
pub(crate) const VERSION: u64 = 1;

/// First word of a hello's token field would do as a mark, were it not random; this is in its version field.
const MAGIC: u64 = 0x5354_5254 << 32;

/// A packet, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packet {
    /// Opens the first channel of a link.
    Hello { token: u128, version: u64, features: u64, cells: u64 },
    /// The cells that a record of kind *next* refers to.
    Ring { token: u128, generation: u64 },
    /// The descriptors of a message.
    Handles { token: u128, sequence: u64, part: u64, count: u32 },
    /// Memory that messages will refer to by number, and the descriptors of the first of them.
    Block { token: u128, id: u64, sequence: u64, handles: u32 },
    /// The payload of a message, sealed, and its descriptors.
    Sealed { token: u128, sequence: u64, handles: u32 },
    /// Nothing: whoever sleeps on the socket should look at its ring.
    Wake,
    /// The first packet of each side: which process it is, among those of the same number.
    Greet { name: u128, version: u64, features: u64 },
    /// A link to another process.
    Introduce { number: u64 },
    /// Memory with lanes.
    Arena { token: u128, number: u64, lanes: u32, cells: u32, with: u64 },
    /// Nothing that came for this direction and was not asked for will be.
    Retract { token: u128 },
    /// What the handles of a message are.
    Table { token: u128, sequence: u64 },
    /// Where the receiver rings for members of the sender's wait sets.
    Board,
}

impl Packet {
    fn kind(&self) -> u32 {
        match self {
            Self::Hello { .. } => 1,
            Self::Ring { .. } => 2,
            Self::Handles { .. } => 3,
            Self::Block { .. } => 4,
            Self::Sealed { .. } => 5,
            Self::Wake => 6,
            Self::Greet { .. } => 7,
            Self::Introduce { .. } => 8,
            Self::Arena { .. } => 9,
            Self::Retract { .. } => 10,
            Self::Table { .. } => 11,
            Self::Board => 12,
        }
    }

    /// How many descriptors travel with it.
    pub(crate) fn descriptors(&self) -> u32 {
        match *self {
            Self::Handles { count, .. } => count,
            Self::Sealed { handles, .. } | Self::Block { handles, .. } => handles.saturating_add(1),
            Self::Wake | Self::Greet { .. } | Self::Retract { .. } => 0,
            _ => 1,
        }
    }

    /// Whether it brings memory that the channel cannot go on without.
    pub(crate) fn brings_memory(&self) -> bool {
        !matches!(self, Self::Handles { .. } | Self::Wake | Self::Greet { .. } | Self::Retract { .. })
    }

    pub(crate) fn encode(&self) -> [u8; PACKET] {
        let (token, fields) = match *self {
            Self::Hello { token, version, features, cells } => (token, [version | MAGIC, features, cells]),
            Self::Ring { token, generation } => (token, [generation, 0, 0]),
            Self::Handles { token, sequence, part, .. } => (token, [sequence, part, 0]),
            Self::Sealed { token, sequence, .. } | Self::Table { token, sequence } => (token, [sequence, 0, 0]),
            Self::Block { token, id, sequence, .. } => (token, [id, sequence, 0]),
            Self::Wake | Self::Board => (0, [0; 3]),
            Self::Greet { name, version, features } => (name, [version | MAGIC, features, 0]),
            Self::Introduce { number } => (0, [number, 0, 0]),
            Self::Arena { token, number, lanes, cells, with } => {
                (token, [number, u64::from(lanes) | u64::from(cells) << 32, with])
            }
            Self::Retract { token } => (token, [0; 3]),
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

    /// `None` if no peer of ours sends this.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; PACKET] = bytes.try_into().ok()?;
        let word32 = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        let word64 = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let token = u128::from_le_bytes(bytes[8..24].try_into().expect("sixteen bytes"));
        let packet = match word32(0) {
            1 if word64(24) & !u64::from(u32::MAX) == MAGIC => Self::Hello {
                token,
                version: word64(24) & u64::from(u32::MAX),
                features: word64(32),
                cells: word64(40),
            },
            2 => Self::Ring { token, generation: word64(24) },
            3 => Self::Handles { token, sequence: word64(24), part: word64(32), count: word32(4) },
            4 => Self::Block { token, id: word64(24), sequence: word64(32), handles: word32(4).checked_sub(1)? },
            5 => Self::Sealed { token, sequence: word64(24), handles: word32(4).checked_sub(1)? },
            6 => Self::Wake,
            7 if word64(24) & !u64::from(u32::MAX) == MAGIC => {
                Self::Greet { name: token, version: word64(24) & u64::from(u32::MAX), features: word64(32) }
            }
            8 => Self::Introduce { number: word64(24) },
            9 => Self::Arena {
                token,
                number: word64(24),
                lanes: word64(32) as u32,
                cells: (word64(32) >> 32) as u32,
                with: word64(40),
            },
            10 => Self::Retract { token },
            11 => Self::Table { token, sequence: word64(24) },
            12 => Self::Board,
            _ => return None,
        };
        (packet.descriptors() == word32(4)).then_some(packet)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packets() -> impl Strategy<Value = Packet> {
        prop_oneof![
            (any::<u128>(), any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(token, version, features, cells)| {
                Packet::Hello { token, version: version.into(), features, cells }
            }),
            (any::<u128>(), any::<u64>()).prop_map(|(token, generation)| Packet::Ring { token, generation }),
            (any::<u128>(), any::<u64>(), any::<u64>(), any::<u32>())
                .prop_map(|(token, sequence, part, count)| Packet::Handles { token, sequence, part, count }),
            (any::<u128>(), any::<u64>(), any::<u32>(), any::<u32>(), any::<u64>())
                .prop_map(|(token, number, lanes, cells, with)| Packet::Arena { token, number, lanes, cells, with }),
            (any::<u128>(), any::<u32>(), any::<u64>()).prop_map(|(name, version, features)| Packet::Greet {
                name,
                version: version.into(),
                features
            }),
            any::<u64>().prop_map(|number| Packet::Introduce { number }),
            any::<u128>().prop_map(|token| Packet::Retract { token }),
            (any::<u128>(), any::<u64>()).prop_map(|(token, sequence)| Packet::Table { token, sequence }),
            (any::<u128>(), any::<u64>(), any::<u64>(), 0..u32::MAX)
                .prop_map(|(token, id, sequence, handles)| Packet::Block { token, id, sequence, handles }),
            (any::<u128>(), any::<u64>(), 0..u32::MAX).prop_map(|(token, sequence, handles)| Packet::Sealed {
                token,
                sequence,
                handles
            }),
            Just(Packet::Wake),
            Just(Packet::Board),
        ]
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
