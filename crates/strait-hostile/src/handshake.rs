//! The first packets of a link. If the handshake of the protocol changes, only this module has to follow.

use crate::layout::control;
use crate::memory::Memory;
use crate::wire::{Packet, kind};

/// The lowest and the highest version of the protocol that this crate speaks.
pub const VERSIONS: [u64; 2] = [2, 2];

/// The magic number of a handshake, in the upper half of the word whose lower half is the lowest version.
pub const MAGIC: u64 = 0x5354_5254 << 32;

/// Feature bit of the handshake: the process can read memory in the layout that the maker of the memory announced.
pub const READS_LAYOUT: u64 = 1;

/// Reason of a *refuse* packet: no common version. It stands in the upper half of the word that holds [`MAGIC`] in
/// other packets.
pub const REFUSE_VERSION: u64 = 1;

/// Returns the layout word of a handshake: for each word of a control block its offset divided by 4, in 5 bits; above
/// these 50 bits, the size of the control block (`bytes`) divided by 64, less 1.
pub fn layout_of(offsets: [usize; 10], bytes: usize) -> u64 {
    let words = offsets.iter().enumerate().map(|(at, offset)| (*offset as u64 / 4) << (5 * at));
    words.sum::<u64>() | (bytes as u64 / 64).wrapping_sub(1) << 50
}

/// The offsets (in bytes) of the words of this crate's control blocks, in the order in which a handshake lists them.
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

/// Returns the handshake packet of this crate, the first packet of a link. `name` is the random name of the process,
/// or 0 to say no name.
pub fn announce(name: u128) -> Packet {
    announce_with(name, VERSIONS, layout_of(OFFSETS, crate::layout::CONTROL))
}

/// Returns a handshake packet with any versions (lowest, highest) and any layout word. `name` is as for [`announce`].
pub fn announce_with(name: u128, [lowest, highest]: [u64; 2], layout: u64) -> Packet {
    let fields = [lowest | MAGIC, READS_LAYOUT, layout | highest << 56];
    Packet { kind: kind::HANDSHAKE, descriptors: 0, token: name, fields }
}

/// Returns an open packet, which opens the first channel of a link. `token` names the ring whose memory is attached,
/// and `cells` is the number of its cells.
pub fn open(token: u128, cells: u64) -> Packet {
    Packet { kind: kind::OPEN, descriptors: 1, token, fields: [VERSIONS[0] | MAGIC, 0, cells] }
}

/// Returns whether the peer's handshake announces the memory layout of this crate, the only one that this crate
/// understands.
pub fn is_like_ours(handshake_packet: &Packet) -> bool {
    handshake_packet.fields[2] & ((1 << 56) - 1) == layout_of(OFFSETS, crate::layout::CONTROL)
}

/// The content of the peer's open packet.
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

/// Creates the memory for the ring that an open packet brings: as large as a lane, of which only ring 0 is used.
pub fn ring_memory(cells: usize) -> std::io::Result<Memory> {
    Memory::create(crate::layout::lane_size(cells))
}
