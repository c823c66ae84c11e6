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

/// Where the words of a control block are, as it is said in a greeting: for each its offset by 4, in 5 bits; then bytes of
/// the control block by 64, less 1.
pub fn layout_of(offsets: [usize; 10], bytes: usize) -> u64 {
    let words = offsets.iter().enumerate().map(|(at, offset)| (*offset as u64 / 4) << (5 * at));
    words.sum::<u64>() | (bytes as u64 / 64).wrapping_sub(1) << 50
}

/// The offsets of the layout that is used here, in the order of a greeting.
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
pub fn greet(name: u128) -> Packet {
    greet_with(name, VERSIONS, layout_of(OFFSETS, crate::layout::CONTROL))
}

/// The same with any versions and any layout.
pub fn greet_with(name: u128, [lowest, highest]: [u64; 2], layout: u64) -> Packet {
    let fields = [lowest | MAGIC, READS_LAYOUT, layout | highest << 56];
    Packet { kind: kind::GREET, descriptors: 0, token: name, fields }
}

/// Says hello, and of how many cells the ring is whose memory comes with it. Opens the first channel.
pub fn hello(token: u128, cells: u64) -> Packet {
    Packet { kind: kind::HELLO, descriptors: 1, token, fields: [VERSIONS[0] | MAGIC, 0, cells] }
}

/// Whether the peer's memory is laid out as ours; only such is understood here.
pub fn is_like_ours(greeting: &Packet) -> bool {
    greeting.fields[2] & ((1 << 56) - 1) == layout_of(OFFSETS, crate::layout::CONTROL)
}

/// What the peer's hello says.
pub struct Hello {
    /// What names the ring in packets.
    pub token: u128,
    /// Cells of it.
    pub cells: usize,
}

/// Reads a hello.
pub fn read_hello(packet: &Packet) -> Option<Hello> {
    (packet.kind == kind::HELLO && packet.fields[0] == VERSIONS[0] | MAGIC)
        .then(|| Hello { token: packet.token, cells: packet.fields[2] as usize })
}

/// Memory for the ring that a hello brings: room for a lane, of which only ring 0 is used.
pub fn ring_memory(cells: usize) -> std::io::Result<Memory> {
    Memory::create(crate::layout::lane_size(cells))
}
