//! The first packets of a link. A change of the handshake changes only this module.

use crate::memory::Memory;
use crate::wire::{Packet, kind};

/// The lowest and the highest version of the protocol that this crate speaks.
pub const VERSIONS: [u64; 2] = [2, 2];

/// The magic number of a handshake, in the upper half of the word whose lower half is the lowest version.
pub const MAGIC: u64 = 0x5354_5254 << 32;

/// Reason of a *refuse* packet: no common version. Other packets have [`MAGIC`] in the place of the reason, the upper
/// half of the word.
pub const REFUSE_VERSION: u64 = 1;

/// Returns the handshake packet of this crate, the first packet of a link. `name` is the random name of the process;
/// 0 for no name.
pub fn announce(name: u128) -> Packet {
    announce_with(name, VERSIONS)
}

/// Returns a handshake packet with any versions (lowest, highest). `name` is as for [`announce`].
pub fn announce_with(name: u128, [lowest, highest]: [u64; 2]) -> Packet {
    let fields = [lowest | MAGIC, 0, highest << 56];
    Packet { kind: kind::HANDSHAKE, descriptors: 0, token: name, fields }
}

/// Returns an open packet, which opens the first channel of a link. `token` names the ring whose memory is attached,
/// and `cells` is the number of its cells.
pub fn open(token: u128, cells: u64) -> Packet {
    Packet { kind: kind::OPEN, descriptors: 1, token, fields: [VERSIONS[0] | MAGIC, 0, cells] }
}

/// The content of the peer's open packet.
#[derive(Debug)]
pub struct Open {
    /// The token that names the peer's ring in packets.
    pub token: u128,
    /// The number of cells of the peer's ring.
    pub cells: usize,
}

/// Returns the content of an open packet; `None` if the packet is no open packet of this crate's version.
pub fn read_open(packet: &Packet) -> Option<Open> {
    (packet.kind == kind::OPEN && packet.fields[0] == VERSIONS[0] | MAGIC)
        .then(|| Open { token: packet.token, cells: packet.fields[2] as usize })
}

/// Creates the memory for the ring of an open packet: as large as a lane, though only ring 0 is used.
pub fn ring_memory(cells: usize) -> std::io::Result<Memory> {
    Memory::create(crate::layout::lane_size(cells))
}
