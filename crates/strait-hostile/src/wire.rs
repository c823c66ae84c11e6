//! Packets: 48 bytes, little-endian. Each word of a packet can have any value.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// The size of every packet in bytes.
pub const PACKET: usize = 48;

/// The largest number of descriptors that the kernel allows in one packet.
pub const MOST_DESCRIPTORS: usize = 253;

/// The kinds of packets.
pub mod kind {
    #![allow(missing_docs, reason = "as in docs/how-it-works/wire.md")]
    pub const OPEN: u32 = 1;
    pub const RING: u32 = 2;
    pub const MESSAGE: u32 = 3;
    pub const AHEAD: u32 = 4;
    pub const RETIRE: u32 = 5;
    pub const WAKE: u32 = 6;
    pub const HANDSHAKE: u32 = 7;
    pub const INTRODUCE: u32 = 8;
    pub const ARENA: u32 = 9;
    pub const RETRACT: u32 = 10;
    pub const ABSENT: u32 = 11;
    pub const READY_BITMAP: u32 = 12;
    pub const REFUSE: u32 = 13;
    pub const CONNECT: u32 = 14;
    pub const ACCEPT: u32 = 15;
    /// One more than the highest kind of packet.
    pub const END: u32 = 16;
}

/// The bits of a message's packet for the memory with the payload of the message: a block, or sealed memory.
pub const PAYLOAD: u64 = PAYLOAD_BLOCK | PAYLOAD_SEALED;
/// The value of [`PAYLOAD`] for a block.
pub const PAYLOAD_BLOCK: u64 = 1;
/// The value of [`PAYLOAD`] for sealed memory.
pub const PAYLOAD_SEALED: u64 = 2;
/// The bit of a message's packet for memory with the handle table.
pub const HAS_TABLE: u64 = 1 << 8;

/// A packet with its fields on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// The kind of the packet, one of [`kind`] if the packet is valid.
    pub kind: u32,
    /// The number of descriptors that the packet announces; another number can be attached.
    pub descriptors: u32,
    /// The token of the packet, by kind: of one direction of a lane (a ring), of an arena, or the random name of a
    /// process.
    pub token: u128,
    /// Three words whose meaning depends on the kind of the packet.
    pub fields: [u64; 3],
}

impl Packet {
    /// Returns a packet that wakes a thread asleep on the socket.
    pub fn wake() -> Self {
        Self { kind: kind::WAKE, ..Self::default() }
    }

    /// Returns a packet that brings larger cells for the ring named by `token`.
    pub fn ring(token: u128, generation: u64) -> Self {
        Self { kind: kind::RING, descriptors: 1, token, fields: [generation, 0, 0] }
    }

    /// Returns a packet that brings `count` descriptors of the message `sequence` of the ring named by `token`.
    pub fn handles(token: u128, sequence: u64, count: usize) -> Self {
        Self { kind: kind::MESSAGE, descriptors: count as u32, token, fields: [sequence, 0, 0] }
    }

    /// Returns a packet that brings the memory of block `id` and `handles` descriptors of message `sequence`, the
    /// first message in the block.
    pub fn block(token: u128, id: u64, sequence: u64, handles: usize) -> Self {
        Self { kind: kind::MESSAGE, descriptors: handles as u32 + 1, token, fields: [sequence, id, PAYLOAD_BLOCK] }
    }

    /// Returns a packet that brings the sealed memory of the message `sequence` and `handles` descriptors of that
    /// message.
    pub fn sealed(token: u128, sequence: u64, handles: usize) -> Self {
        Self { kind: kind::MESSAGE, descriptors: handles as u32 + 1, token, fields: [sequence, 0, PAYLOAD_SEALED] }
    }

    /// Returns a packet that brings memory with a handle table too long for the ring, and `handles` descriptors of
    /// the message `sequence`.
    pub fn table(token: u128, sequence: u64, handles: usize) -> Self {
        Self { kind: kind::MESSAGE, descriptors: handles as u32 + 1, token, fields: [sequence, 0, HAS_TABLE] }
    }

    /// Returns a packet that brings the first `count` descriptors of the next message with a packet. With `count` 0,
    /// the descriptors sent ahead before are void.
    pub fn ahead(token: u128, count: usize) -> Self {
        Self { kind: kind::AHEAD, descriptors: count as u32, token, fields: [0; 3] }
    }

    /// Returns how many of the packet's first descriptors are memory with the payload, and how many are memory with
    /// the handle table. Both are 0 if the packet is not for a message.
    pub fn memories(&self) -> [usize; 2] {
        let bits = if self.kind == kind::MESSAGE { self.fields[2] } else { 0 };
        [usize::from(bits & PAYLOAD != 0), usize::from(bits & HAS_TABLE != 0)]
    }

    /// Returns a packet that brings a socket to another process: introduction `number`.
    pub fn introduce(number: u64) -> Self {
        Self { kind: kind::INTRODUCE, descriptors: 1, token: 0, fields: [number, 0, 0] }
    }

    /// Returns a packet that brings an arena, memory for lanes. `with` names the process of the other ends: 0 the
    /// sender of the packet, 1 the receiver itself, otherwise 2 plus the number of an introduction.
    pub fn arena(token: u128, number: u64, lanes: u32, cells: u32, with: u64) -> Self {
        let size = u64::from(lanes) | u64::from(cells) << 32;
        Self { kind: kind::ARENA, descriptors: 1, token, fields: [number, size, with] }
    }

    /// Returns a packet by which the sender retracts the attachments sent for the ring named by `token`.
    pub fn retract(token: u128) -> Self {
        Self { kind: kind::RETRACT, token, ..Self::default() }
    }

    /// Returns a packet by which the sender stops taking lanes from the arena `number`, after `lanes` named lanes.
    pub fn retire(number: u64, lanes: u64) -> Self {
        Self { kind: kind::RETIRE, fields: [number, lanes, 0], ..Self::default() }
    }

    /// Returns a packet by which the sender says that an end in the arena `number` never comes.
    pub fn absent(number: u64) -> Self {
        Self { kind: kind::ABSENT, fields: [number, 0, 0], ..Self::default() }
    }

    /// Returns a packet that brings a ready bitmap, in which the receiver of the packet must notify.
    pub fn bitmap() -> Self {
        Self { kind: kind::READY_BITMAP, descriptors: 1, ..Self::default() }
    }

    /// Returns the bytes of the packet on the wire, little-endian.
    pub fn to_bytes(&self) -> [u8; PACKET] {
        let mut bytes = [0; PACKET];
        bytes[0..4].copy_from_slice(&self.kind.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.descriptors.to_le_bytes());
        bytes[8..24].copy_from_slice(&self.token.to_le_bytes());
        for (place, field) in bytes[24..].chunks_exact_mut(8).zip(self.fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Returns the packet with these bytes. Checks nothing: any bytes are a packet.
    pub fn from_bytes(bytes: &[u8; PACKET]) -> Self {
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        Self {
            kind: word(0) as u32,
            descriptors: (word(0) >> 32) as u32,
            token: u128::from(word(8)) | u128::from(word(16)) << 64,
            fields: [word(24), word(32), word(40)],
        }
    }
}

/// Sends `bytes` with any descriptors attached, without blocking. Returns false, and sends nothing, if the socket has
/// no room.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<bool> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(Errno::INVAL.into());
    }
    match sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(_) => Ok(true),
        Err(Errno::AGAIN) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Receives a packet and its descriptors, without blocking; `None` if no packet is there.
///
/// # Errors
/// `UnexpectedEof` once the other side has hung up and all was received; `InvalidData` for bytes of another length
/// than a packet.
pub fn receive(socket: impl AsFd) -> io::Result<Option<(Packet, Vec<OwnedFd>)>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut bytes = [0; PACKET];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = match recvmsg(socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Ok(received) => received.bytes,
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno.into()),
    };
    let mut descriptors = Vec::new();
    for part in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = part {
            descriptors.extend(rights);
        }
    }
    match received {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        PACKET => Ok(Some((Packet::from_bytes(&bytes), descriptors))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
