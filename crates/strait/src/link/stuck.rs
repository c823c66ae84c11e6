//! Stuck links: a packet that could not be processed, for lack of a resource or at a limit, stays in the socket and is
//! looked at again.
//!
//! Each look at the packet gives this process copies of its descriptors, and closing those can take long. So a repeated
//! look takes only the first descriptor, which is memory or a socket, and checks whether there is room now. The packet
//! in the socket still holds the memory or socket, so closing the copy is not the last close. Only the last close has
//! an effect on memory and sockets.

use super::inbox::MemoryKey;
use super::io::{Incoming, ReceivedAttachment};
use super::packet::Packet;
use super::{Link, arena, ready_bitmap};
use crate::error::Error;
use crate::os::{memory, socket};
use crate::quota::closing::ReceivedFd;
use crate::quota::{Amounts, Resource};
use crate::shm::{Mapping, Sizes};
use std::os::fd::AsFd;

impl Link {
    /// Checks whether there is room now for the next packet in the socket, if the link is stuck (the last attempt to
    /// take a packet failed for lack of a resource). Ignores errors in the packet itself, which the receive that
    /// follows will find.
    ///
    /// # Errors
    /// The temporary error for the resource that is still missing; no other error except one of receiving.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if !self.is_stuck() {
            return Ok(());
        }
        let Incoming::Packet { packet, attachments } = self.io.receive(true)? else { return Ok(()) };
        let room = match attachments.into_iter().next() {
            Some(ReceivedAttachment::Descriptor(socket)) if matches!(packet, Packet::Introduce { .. }) => {
                self.room_for(socket)
            }
            Some(ReceivedAttachment::Descriptor(memory)) => self.room_for_memory(&packet, memory),
            Some(ReceivedAttachment::Memory(_)) | None => Ok(()),
        };
        room.or_else(|error| if error.passes() { Err(error) } else { Ok(()) })
    }

    /// Checks whether the link's ledger (the account of what this process holds for the peer) has room for the socket
    /// in a packet that introduces another process. Fails with the temporary error if not. Leaves nothing charged.
    fn room_for(&self, socket: ReceivedFd) -> Result<(), Error> {
        if !socket::is_seqpacket(&socket)? {
            return Ok(());
        }
        let room = self.ledger().charge_descriptors(&[socket.as_fd()]);
        drop(socket.into_fd());
        room.map(drop)
    }

    /// Checks whether the link's ledger has room for the memory that `packet` brings: as a mapping or, for packets
    /// whose memory may be mapped later, as a descriptor. Fails with the temporary error if not. Leaves nothing
    /// charged.
    fn room_for_memory(&self, packet: &Packet, fd: ReceivedFd) -> Result<(), Error> {
        if memory::check_memfd(fd.as_fd())?.is_none() {
            return Ok(());
        }
        let mapped = self.map_for_a_moment(packet, &fd);
        drop(fd.into_fd());
        match mapped {
            Err(error) if error.passes() && !matches!(packet, Packet::Open { .. } | Packet::ReadyBitmap) => {
                self.ledger().charge(Amounts::of(Resource::Descriptors, 1)).map(drop)
            }
            mapped => mapped,
        }
    }

    fn map_for_a_moment(&self, packet: &Packet, fd: &ReceivedFd) -> Result<(), Error> {
        let Some(sizes) = self.sizes_for(packet) else { return Ok(()) };
        let mapped = match packet {
            Packet::ReadyBitmap => Mapping::received_anyway(fd.as_fd(), sizes, &self.ledger),
            Packet::Sealed { .. } | Packet::Table { .. } => {
                Mapping::received_immutable(fd.as_fd(), sizes, &self.ledger)
            }
            _ => Mapping::received(fd.as_fd(), sizes, &self.ledger),
        };
        mapped.map(drop)
    }

    /// Returns the range of sizes in bytes, both bounds included, that the memory in `packet` may have. Returns `None`
    /// if the packet brings no memory or gives an impossible size.
    fn sizes_for(&self, packet: &Packet) -> Option<Sizes> {
        match *packet {
            Packet::ReadyBitmap => Some(ready_bitmap::BYTES..=ready_bitmap::BYTES),
            Packet::Open { cells, .. } => arena::sizes(1, cells, self.layout()),
            Packet::Arena { lanes, cells, .. } => arena::sizes(lanes, cells.into(), self.layout()),
            ref other => MemoryKey::of(other).map(MemoryKey::sizes),
        }
    }
}
