//! The first packets of a link: all that has to change when the handshake does.

use crate::memory::Memory;
use crate::wire::{Packet, kind};

/// The version of the protocol that is spoken here.
pub const VERSION: u64 = 1;

/// In the upper half of the word that carries the version.
pub const MAGIC: u64 = 0x5354_5254 << 32;

/// Says hello, and of how many cells the ring is whose memory comes with it.
pub fn hello(token: u128, cells: u64) -> Packet {
    Packet { kind: kind::HELLO, descriptors: 1, token, fields: [VERSION | MAGIC, 0, cells] }
}

/// Says of which process the link is an end. Comes first on a link to which somebody has introduced its two ends.
pub fn greet(name: u128) -> Packet {
    Packet { kind: kind::GREET, descriptors: 0, token: name, fields: [VERSION | MAGIC, 0, 0] }
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
    (packet.kind == kind::HELLO && packet.fields[0] == VERSION | MAGIC)
        .then(|| Hello { token: packet.token, cells: packet.fields[2] as usize })
}

/// Memory for the ring that a hello brings: room for a lane, of which only ring 0 is used.
pub fn ring_memory(cells: usize) -> std::io::Result<Memory> {
    Memory::create(crate::layout::lane_size(cells))
}
