//! Packets: 48 bytes, little-endian. Any of their words can be anything.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// Bytes of every packet.
pub const PACKET: usize = 48;

/// Most descriptors that the kernel lets through in one packet.
pub const MOST_DESCRIPTORS: usize = 253;

/// Kinds of packets.
pub mod kind {
    #![allow(missing_docs, reason = "as in docs/design.md")]
    pub const OPEN: u32 = 1;
    pub const RING: u32 = 2;
    pub const HANDLES: u32 = 3;
    pub const BLOCK: u32 = 4;
    pub const SEALED: u32 = 5;
    pub const WAKE: u32 = 6;
    pub const HANDSHAKE: u32 = 7;
    pub const INTRODUCE: u32 = 8;
    pub const ARENA: u32 = 9;
    pub const RETRACT: u32 = 10;
    pub const TABLE: u32 = 11;
    pub const READY_BITMAP: u32 = 12;
    pub const REFUSE: u32 = 13;
    pub const CONNECT: u32 = 14;
    pub const ACCEPT: u32 = 15;
    /// One more than the last.
    pub const END: u32 = 16;
}

/// A packet, as it is on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packet {
    /// One of [`kind`].
    pub kind: u32,
    /// How many descriptors it says it comes with.
    pub descriptors: u32,
    /// The direction of a lane that it belongs to, an arena's name, or a process's.
    pub token: u128,
    /// By kind.
    pub fields: [u64; 3],
}

impl Packet {
    /// Wakes whoever sleeps on the socket.
    pub fn wake() -> Self {
        Self { kind: kind::WAKE, ..Self::default() }
    }

    /// Larger cells for a ring.
    pub fn ring(token: u128, generation: u64) -> Self {
        Self { kind: kind::RING, descriptors: 1, token, fields: [generation, 0, 0] }
    }

    /// Part of the descriptors of a message.
    pub fn handles(token: u128, sequence: u64, part: u64, count: usize) -> Self {
        Self { kind: kind::HANDLES, descriptors: count as u32, token, fields: [sequence, part, 0] }
    }

    /// A block, and so many descriptors of its first message.
    pub fn block(token: u128, id: u64, sequence: u64, handles: usize) -> Self {
        Self { kind: kind::BLOCK, descriptors: handles as u32 + 1, token, fields: [id, sequence, 0] }
    }

    /// A sealed message, and so many descriptors of it.
    pub fn sealed(token: u128, sequence: u64, handles: usize) -> Self {
        Self { kind: kind::SEALED, descriptors: handles as u32 + 1, token, fields: [sequence, 0, 0] }
    }

    /// A table too long for a ring.
    pub fn table(token: u128, sequence: u64) -> Self {
        Self { kind: kind::TABLE, descriptors: 1, token, fields: [sequence, 0, 0] }
    }

    /// A link to another process.
    pub fn introduce(number: u64) -> Self {
        Self { kind: kind::INTRODUCE, descriptors: 1, token: 0, fields: [number, 0, 0] }
    }

    /// Memory with lanes; `with` is 0 for us, 1 for the receiver itself, else 2 and the number of an introduction.
    pub fn arena(token: u128, number: u64, lanes: u32, cells: u32, with: u64) -> Self {
        let size = u64::from(lanes) | u64::from(cells) << 32;
        Self { kind: kind::ARENA, descriptors: 1, token, fields: [number, size, with] }
    }

    /// What came for this direction will not be asked for.
    pub fn retract(token: u128) -> Self {
        Self { kind: kind::RETRACT, token, ..Self::default() }
    }

    /// Where the receiver is to ring.
    pub fn bitmap() -> Self {
        Self { kind: kind::READY_BITMAP, descriptors: 1, ..Self::default() }
    }

    /// As it is on the wire.
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

    /// What these bytes say, whatever that is.
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

/// Sends bytes, and any descriptors beside them, without blocking. False if there is no room for it.
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

/// Receives a packet, without blocking; `None` if there is none.
///
/// # Errors
/// `UnexpectedEof` once the other side has hung up and all was received; `InvalidData` for what is no packet.
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
