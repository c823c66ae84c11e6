//! Packets between processes, through a pair of sockets shared by all processes of the port.
//!
//! The kernel keeps the order of packets, and gives each packet to one receiver. No call waits for a packet or for
//! room. A process with the port can take packets that others wait for, as on Zircon. The process can also send
//! malformed packets, which are skipped, and block a thread that takes a packet, as it can block the reader of an
//! event's bell.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};

use crate::abi::*;
use crate::channel::wire::UnclaimedFd;
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
        let identity = identify(&out)?;
        Ok(Self { into, out, identity })
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

/// The shared part of a port that has arrived, with checked and unclaimed descriptors.
pub(crate) struct Arrived {
    into: UnclaimedFd,
    out: UnclaimedFd,
    pub(super) identity: Identity,
}

impl Arrived {
    /// Checks the descriptors of a port, sent by another process.
    ///
    /// # Errors
    /// `PEER_CLOSED` if they are not those of a port.
    pub(crate) fn new(cargo: Vec<UnclaimedFd>) -> Result<Self> {
        let [into, out]: [UnclaimedFd; 2] = cargo.try_into().map_err(|_| Status::PEER_CLOSED)?;
        into.check_socket(SocketType::SEQPACKET)?;
        out.check_socket(SocketType::SEQPACKET)?;
        let identity = identify(&out)?;
        Ok(Self { into, out, identity })
    }

    /// Returns the shared part, which owns the descriptors.
    pub(super) fn claim(self) -> Shared {
        Shared { into: self.into.claim(), out: self.out.claim(), identity: self.identity }
    }
}

/// Returns the identity of a queue by its receiving socket.
fn identify(out: impl AsFd) -> Result<Identity> {
    let stat = rustix::fs::fstat(out)?;
    Ok((stat.st_dev, stat.st_ino))
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
