//! The first packets of a link: all that has to change when the handshake does.

use crate::layout::control;
use crate::memory::Memory;
use crate::wire::{Packet, kind};

/// The versions of the protocol that are spoken here, lowest and highest.
pub const VERSIONS: [u64; 2] = [1, 1];

/// In the upper half of the word that carries the lowest version.
pub const MAGIC: u64 = 0x5354_5254 << 32;

/// Feature: reads memory by the layout that its maker said.
pub const READS_LAYOUT: u64 = 1;

/// Why somebody is refused, in the upper half of the same word as [`MAGIC`].
pub const REFUSE_VERSION: u64 = 1;

/// Where the words of a control block are, as it is said in a handshake: for each its offset by 4, in 5 bits; then bytes of
/// the control block by 64, less 1.
pub fn layout_of(offsets: [usize; 10], bytes: usize) -> u64 {
    let words = offsets.iter().enumerate().map(|(at, offset)| (*offset as u64 / 4) << (5 * at));
    words.sum::<u64>() | (bytes as u64 / 64).wrapping_sub(1) << 50
}

/// The offsets of the layout that is used here, in the order of a handshake.
pub const OFFSETS: [usize; 10] = [
    control::WAITING,
    control::CPU,
    control::QUOTA,
    control::TRANSFER,
    control::DONE,
    control::MOVING,
    control::CREDIT,
    control::TAKEN,
    control::SLEEPING,
    control::FORWARD,
];

/// Says how we speak, and of which process the link is an end; 0 if that is not to be said. The first packet.
pub fn announce(name: u128) -> Packet {
    announce_with(name, VERSIONS, layout_of(OFFSETS, crate::layout::CONTROL))
}

/// The same with any versions and any layout.
pub fn announce_with(name: u128, [lowest, highest]: [u64; 2], layout: u64) -> Packet {
    let fields = [lowest | MAGIC, READS_LAYOUT, layout | highest << 56];
    Packet { kind: kind::HANDSHAKE, descriptors: 0, token: name, fields }
}

/// Says open packet, and of how many cells the ring is whose memory comes with it. Opens the first channel.
pub fn open(token: u128, cells: u64) -> Packet {
    Packet { kind: kind::OPEN, descriptors: 1, token, fields: [VERSIONS[0] | MAGIC, 0, cells] }
}

/// Whether the peer's memory is laid out as ours; only such is understood here.
pub fn is_like_ours(handshake_packet: &Packet) -> bool {
    handshake_packet.fields[2] & ((1 << 56) - 1) == layout_of(OFFSETS, crate::layout::CONTROL)
}

/// What the peer's open packet says.
pub struct Open {
    /// What names the ring in packets.
    pub token: u128,
    /// Cells of it.
    pub cells: usize,
}

/// Reads an open packet.
pub fn read_open(packet: &Packet) -> Option<Open> {
    (packet.kind == kind::OPEN && packet.fields[0] == VERSIONS[0] | MAGIC)
        .then(|| Open { token: packet.token, cells: packet.fields[2] as usize })
}

/// Memory for the ring that an open packet brings: room for a lane, of which only ring 0 is used.
pub fn ring_memory(cells: usize) -> std::io::Result<Memory> {
    Memory::create(crate::layout::lane_size(cells))
}
