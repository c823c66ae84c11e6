//! Stuck links: a packet that could not be processed, for lack of a resource or at a limit, stays in the socket and is
//! looked at again.
//!
//! Each look at the packet gives this process copies of the packet's descriptors, and closing the copies can take long.
//! So a repeated look takes only the descriptors of memory and sockets, which come first, and checks whether there is
//! room now. The packet in the socket still holds the memory or socket, so closing the copy is not the last close. Only
//! the last close has an effect on memory and sockets.

use super::Link;
use super::inbox::MemoryKey;
use super::io::{Incoming, ReceivedAttachment, Takes};
use super::packet::Packet;
use crate::error::Error;
use crate::os::{memory, socket};
use crate::quota::closing::ReceivedFd;
use crate::quota::{Amounts, OverLimit, Resource};
use crate::ring::ready_bitmap;
use crate::shm::{Mapping, Sizes, sizes_of_lanes};
use std::os::fd::AsFd;

impl Link {
    /// Checks whether there is room now for the next packet in the socket, if the link is stuck (the last attempt to
    /// take a packet failed for lack of a resource). Ignores errors in the packet itself; the next receive will find
    /// them.
    ///
    /// # Errors
    /// The temporary error for the resource that is still missing; no other error except one of receiving.
    pub(super) fn check_room(&self) -> Result<(), Error> {
        if !self.is_stuck() {
            return Ok(());
        }
        let Incoming::Packet { packet, attachments, .. } = self.io.receive(true, Takes::Nothing)? else {
            return Ok(());
        };
        let mut keys = MemoryKey::of(&packet);
        let room = attachments.into_iter().try_for_each(|ReceivedAttachment(fd)| match packet {
            Packet::Introduce { .. } => self.room_for(fd),
            _ => self.room_for_memory(&packet, keys.next(), fd),
        });
        room.or_else(|error| if error.passes() { Err(error) } else { Ok(()) })
    }

    /// Checks whether the link's ledger (the account of everything held for the peer) has room for the socket in an
    /// introducing packet. Fails with the temporary error if not. Leaves nothing charged.
    fn room_for(&self, socket: ReceivedFd) -> Result<(), Error> {
        if !socket::is_seqpacket(&socket)? {
            return Ok(());
        }
        let room = self.ledger().charge_descriptors(&[socket.as_fd()]);
        drop(socket.into_fd());
        room.map(drop)
    }

    /// Checks whether the link's ledger has room for one piece of memory in `packet`: as a mapping or, for memory that
    /// may be mapped later, as a descriptor. `key` is the key under which the inbox would store the memory; `None` if
    /// the inbox stores none from this packet. Fails with the temporary error if there is no room. Leaves nothing
    /// charged.
    fn room_for_memory(&self, packet: &Packet, key: Option<MemoryKey>, fd: ReceivedFd) -> Result<(), Error> {
        if memory::check_memfd(fd.as_fd())?.is_none() {
            return Ok(());
        }
        let mapped = self.map_for_a_moment(packet, key, &fd);
        drop(fd.into_fd());
        match mapped {
            Err(error) if error.passes() && !matches!(packet, Packet::Open { .. } | Packet::ReadyBitmap) => {
                self.ledger().charge(Amounts::of(Resource::Descriptors, 1)).map(drop)
            }
            mapped => mapped,
        }
    }

    fn map_for_a_moment(&self, packet: &Packet, key: Option<MemoryKey>, fd: &ReceivedFd) -> Result<(), Error> {
        let Some(sizes) = key.map(MemoryKey::sizes).or_else(|| self.sizes_for(packet)) else { return Ok(()) };
        let mapped = match packet {
            Packet::ReadyBitmap => Mapping::received(fd.as_fd(), sizes, &self.ledger, OverLimit::Exceed),
            _ if key.is_some_and(MemoryKey::is_immutable) => {
                Mapping::received_immutable(fd.as_fd(), sizes, &self.ledger, OverLimit::Refuse)
            }
            _ => Mapping::received(fd.as_fd(), sizes, &self.ledger, OverLimit::Refuse),
        };
        mapped.map(drop)
    }

    /// If the link itself keeps the memory in `packet`, returns the range of possible sizes in bytes, both bounds
    /// included. Otherwise, and for an impossible size, returns `None`.
    fn sizes_for(&self, packet: &Packet) -> Option<Sizes> {
        match *packet {
            Packet::ReadyBitmap => Some(ready_bitmap::BYTES..=ready_bitmap::BYTES),
            Packet::Open { cells, .. } => sizes_of_lanes(1, cells),
            Packet::Arena { lanes, cells, .. } => sizes_of_lanes(lanes, cells.into()),
            _ => None,
        }
    }
}
