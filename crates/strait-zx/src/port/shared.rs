//! Packets between processes, through a pair of sockets shared by all processes of the port.
//!
//! The kernel keeps the order of packets, and gives each packet to one receiver. No call blocks. A process with the
//! port can take packets that others wait for, as on Zircon. The process can also send malformed packets, which are
//! skipped.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::abi::*;
use crate::status::{Result, Status};

/// Number of packets with room in any case. The kernel counts some 700 bytes for each, of 208 KiB unless configured
/// for more.
pub(super) const ROOM: usize = 256;

/// Number of malformed packets skipped by one call before giving up, to let other threads look.
const STRAY: usize = 16;

/// The identity of a queue: device and inode of its receiving socket.
pub(super) type Identity = (u64, u64);

/// The shared part of a port.
#[derive(Debug)]
pub(super) struct Shared {
    /// The sending socket.
    into: OwnedFd,
    /// The receiving socket.
    out: OwnedFd,
    identity: Identity,
}

impl Shared {
    pub(super) fn new() -> Result<Self> {
        let (into, out) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Self::of(into, out)
    }

    fn of(into: OwnedFd, out: OwnedFd) -> Result<Self> {
        let stat = rustix::fs::fstat(&out)?;
        Ok(Self { into, out, identity: (stat.st_dev, stat.st_ino) })
    }

    /// Makes the shared part from the descriptors sent by another process.
    ///
    /// # Errors
    /// `PEER_CLOSED` if the descriptors are not those of a port.
    pub(super) fn received(cargo: Vec<OwnedFd>) -> Result<Self> {
        let [into, out]: [OwnedFd; 2] = cargo.try_into().map_err(|_| Status::PEER_CLOSED)?;
        for socket in [&into, &out] {
            match rustix::net::sockopt::socket_type(socket) {
                Ok(SocketType::SEQPACKET) => {}
                _ => return Err(Status::PEER_CLOSED),
            }
        }
        Self::of(into, out)
    }

    /// Returns duplicates of the descriptors that another process gets.
    pub(super) fn cargo(&self) -> Result<Vec<OwnedFd>> {
        [&self.into, &self.out].map(|fd| fd.try_clone().map_err(|_| Status::NO_RESOURCES)).into_iter().collect()
    }

    /// Returns the identity of the queue.
    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Returns the descriptor that is readable when there is a packet.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.out.as_fd()
    }

    /// Sends a packet.
    ///
    /// # Errors
    /// `SHOULD_WAIT` if there is no room.
    pub(super) fn send(&self, packet: &zx_port_packet_t) -> Result<()> {
        let bytes = encode(packet);
        match rustix::net::send(&self.into, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
            Ok(_) => Ok(()),
            Err(Errno::AGAIN | Errno::NOBUFS) => Err(Status::SHOULD_WAIT),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes the next packet, if any.
    pub(super) fn take(&self) -> Option<zx_port_packet_t> {
        let mut bytes = [0u8; PACKET];
        for _ in 0..STRAY {
            let (taken, len) =
                rustix::net::recv(&self.out, &mut bytes[..], RecvFlags::DONTWAIT | RecvFlags::TRUNC).ok()?;
            // A length of 0 may also mean that the other side was shut down.
            if len == 0 {
                return None;
            }
            if taken == PACKET && len == PACKET {
                return Some(decode(&bytes));
            }
        }
        None
    }
}

/// Size of a packet in bytes.
const PACKET: usize = size_of::<zx_port_packet_t>();

/// Returns the bytes of a packet.
fn encode(packet: &zx_port_packet_t) -> [u8; PACKET] {
    let mut bytes = [0; PACKET];
    let signal = &packet.signal;
    bytes[0..8].copy_from_slice(&packet.key.to_ne_bytes());
    bytes[8..12].copy_from_slice(&packet.type_.to_ne_bytes());
    bytes[12..16].copy_from_slice(&packet.status.to_ne_bytes());
    bytes[16..20].copy_from_slice(&signal.trigger.to_ne_bytes());
    bytes[20..24].copy_from_slice(&signal.observed.to_ne_bytes());
    bytes[24..32].copy_from_slice(&signal.count.to_ne_bytes());
    bytes[32..40].copy_from_slice(&signal.timestamp.to_ne_bytes());
    bytes[40..48].copy_from_slice(&signal.reserved1.to_ne_bytes());
    bytes
}

/// Reads a packet of a program. The type is fixed, so that a peer cannot claim that the packet comes from a wait.
fn decode(bytes: &[u8; PACKET]) -> zx_port_packet_t {
    let half = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let whole = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    zx_port_packet_t {
        key: whole(0),
        type_: ZX_PKT_TYPE_USER,
        status: half(12) as zx_status_t,
        signal: zx_packet_signal_t {
            trigger: half(16),
            observed: half(20),
            count: whole(24),
            timestamp: whole(32) as zx_time_t,
            reserved1: whole(40),
        },
    }
}
