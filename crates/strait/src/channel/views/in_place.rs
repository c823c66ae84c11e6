//! Views: received messages, read where the peer wrote them.

use std::mem::MaybeUninit;
use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::message::ReceivedExtras;
use crate::channel::origin::Origin;
use crate::channel::receiver::Rx;
use crate::channel::receiver::payload::{Payload, as_uninit, put};
use crate::channel::unclaimed::UnclaimedHandle;
use crate::channel::{Channel, End};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::kept::{self, Borrowed, Keep};
use crate::peer::Peer;
use crate::quota::Reported;
use crate::ring::Record;
use crate::shm::Mapping;
use crate::wake::lock::Guard;

/// A view of a received message, in the memory where the peer wrote it.
///
/// **The bytes are untrusted** in a way that ordinary bytes are not. Unless the sender has [sealed](Self::sealed) the
/// message, the peer can change its bytes while this process reads. So the view does not give out `&[u8]`. Copy the
/// bytes that matter ([`read_at`](Self::read_at)) once, and decide on the copy.
///
/// A small message stays in the ring until the view is dropped, and no other thread receives from this end meanwhile.
/// A large message keeps its memory, and other threads go on receiving.
///
/// Example: [a message that is read in place](crate::view).
#[derive(Debug)]
pub struct InPlace<'a, K = ()> {
    end: Borrowed<'a, End>,
    storage: ViewStorage<'a>,
    arrived: ReceivedExtras,
    origin: Origin,
    /// The reference that keeps the end alive, for an owned view. Dropped last.
    kept: K,
}

#[derive(Debug)]
enum ViewStorage<'a> {
    /// The message is the next record in the ring. The view holds the receiving lock, so no other thread receives.
    Ring { rx: Guard<'a, Rx>, record: Record },
    /// The payload is not in the ring, but in a block, in sealed memory or in private memory. Other threads can
    /// receive.
    OutOfLine(Payload),
}

/// The place of a message's payload, as far as forwarding needs to know: in sealed memory, which can be passed on, or
/// elsewhere.
pub(super) enum PayloadLocation {
    /// The payload is in sealed memory of its own; the second field is its length in bytes.
    Sealed(Arc<Mapping>, usize),
    Elsewhere,
}

/// Receives the next message of the channel that `kept` keeps, as [`Channel::recv_in_place`] does.
pub fn recv_in_place<K: Keep<Object = Channel>>(kept: K, deadline: Deadline) -> Result<InPlace<'static, K>, Error> {
    // SAFETY: the view drops its borrows before `kept`; a call that fails returns before `kept` is dropped.
    let channel = unsafe { kept::borrow(&kept) };
    let mut kept = Some(kept);
    channel.end.recv_view_with(deadline, || kept.take().expect("there is one view"))
}

impl<'a, K> InPlace<'a, K> {
    pub(in crate::channel) fn new(
        end: &'a End,
        mut rx: Guard<'a, Rx>,
        record: Record,
        payload: Payload,
        arrived: ReceivedExtras,
        kept: K,
    ) -> Self {
        let origin = rx.origin();
        let storage = match payload {
            Payload::Ring(record) => {
                rx.mark_blocking();
                ViewStorage::Ring { rx, record }
            }
            out_of_line => {
                end.detach(&mut rx, record, &out_of_line);
                ViewStorage::OutOfLine(out_of_line)
            }
        };
        Self { end: end.into(), storage, arrived, origin, kept }
    }

    /// Creates a view of a message that was taken out of the backlog of `end`, from its payload, its handles and its
    /// origin.
    pub(in crate::channel) fn from_backlog(
        end: &'a End,
        (payload, arrived, origin): (Payload, ReceivedExtras, Origin),
        kept: K,
    ) -> Self {
        Self { end: end.into(), storage: ViewStorage::OutOfLine(payload), arrived, origin, kept }
    }

    /// Returns what keeps the end: for an [owned](crate::owned) view the `Arc` of the channel.
    pub fn kept(&self) -> &K {
        &self.kept
    }

    /// Returns the number of bytes of the message. The peer cannot change this number.
    pub fn len(&self) -> usize {
        match &self.storage {
            ViewStorage::Ring { record, .. } => record.header.len(),
            ViewStorage::OutOfLine(payload) => payload.len(),
        }
    }

    /// Returns whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies `len` bytes of the message, from `offset` on, to the end of `out`. Unlike [`read_at`](Self::read_at), the
    /// call needs no initialized memory.
    ///
    /// # Panics
    /// As [`read_at`](Self::read_at).
    ///
    /// # Errors
    /// [`Error::NoMemory`] if there is no memory for the bytes in `out`, which then is unchanged.
    pub fn append_to(&mut self, out: &mut Vec<u8>, offset: usize, len: usize) -> Result<(), Error> {
        out.try_reserve(len).map_err(|_| Error::NoMemory { call: "memory for the bytes of a view" })?;
        let begin = out.len();
        self.copy_out(&mut out.spare_capacity_mut()[..len], offset);
        // SAFETY: `len` bytes were reserved behind the first `begin`, and have been written just now.
        unsafe { out.set_len(begin + len) };
        Ok(())
    }

    /// Copies the bytes of the message from `offset` on into `out`, and fills all of `out`.
    ///
    /// # Panics
    /// If the message has fewer than `offset` plus `out.len()` bytes; in a child of `fork`, which does not have the
    /// memory.
    pub fn read_at(&mut self, out: &mut [u8], offset: usize) {
        self.copy_out(as_uninit(out), offset);
    }

    /// Copies the bytes of the message from `offset` on into `out`, and writes all of `out`.
    fn copy_out(&mut self, out: &mut [MaybeUninit<u8>], offset: usize) {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        let len = self.len();
        assert!(offset <= len && out.len() <= len - offset, "a copy inside the message");
        match &mut self.storage {
            ViewStorage::Ring { rx, record } => rx.consumer().read(*record, offset, out),
            ViewStorage::OutOfLine(Payload::Block { mapping, record, .. }) => {
                mapping.copy_out(record.at() + offset, out)
            }
            ViewStorage::OutOfLine(Payload::Sealed { mapping, .. }) => mapping.copy_out(offset, out),
            ViewStorage::OutOfLine(Payload::Own(bytes)) => put(&bytes[offset..offset + out.len()], out),
            ViewStorage::OutOfLine(Payload::Ring(_)) => unreachable!("a message in the ring is not out_of_line"),
        };
    }

    /// Returns the bytes of the message without a copy, if the sender has sealed the message, so that no process can
    /// change the bytes any more. Otherwise returns `None`.
    ///
    /// # Panics
    /// In a child of `fork`, which does not have the memory.
    pub fn sealed(&self) -> Option<&[u8]> {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        match &self.storage {
            ViewStorage::OutOfLine(Payload::Sealed { mapping, len }) => Some(mapping.immutable_bytes(*len)),
            _ => None,
        }
    }

    /// Returns the address of the [`len`](Self::len) bytes of the message, which are readable as long as the view
    /// lives. The address is for system calls and other code that can handle changing bytes. It is aligned to a page
    /// for a large message, and to 8 bytes otherwise.
    pub fn as_ptr(&self) -> *const u8 {
        match &self.storage {
            ViewStorage::Ring { rx, record } => rx.in_place(*record),
            ViewStorage::OutOfLine(Payload::Block { mapping, record, .. }) => mapping.at(record.at()),
            ViewStorage::OutOfLine(Payload::Sealed { mapping, .. }) => mapping.at(0),
            ViewStorage::OutOfLine(Payload::Own(bytes)) => bytes.as_ptr(),
            ViewStorage::OutOfLine(Payload::Ring(_)) => unreachable!("a message in the ring is not out_of_line"),
        }
    }

    /// Checks that this process received the message, and so has the memory (a forked child does not).
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of `fork`.
    #[doc(hidden)]
    pub fn check_fork(&self) -> Result<(), Error> {
        self.end.born.check()
    }

    pub(super) fn arrived_mut(&mut self) -> &mut ReceivedExtras {
        &mut self.arrived
    }

    /// Returns the sealed memory that holds the message's payload, if there is such memory; otherwise
    /// `PayloadLocation::Elsewhere`.
    pub(super) fn lies(&self) -> PayloadLocation {
        match &self.storage {
            ViewStorage::OutOfLine(Payload::Sealed { mapping, len }) => PayloadLocation::Sealed(mapping.clone(), *len),
            _ => PayloadLocation::Elsewhere,
        }
    }

    /// Takes the handles of the message, in sending order. Returns none if the handles were taken before.
    ///
    /// # Errors
    /// [`Error::HandlesLost`] if this process had too few free descriptors when the message arrived. The handles that
    /// did arrive were closed; the bytes are intact.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.arrived.take()
    }

    /// Takes the handles of the message, as [`InPlace::take_handles`] does, for a layer that decodes the message: until
    /// the layer claims a handle, dropping the handle closes it as dropping a message would.
    ///
    /// # Errors
    /// As [`InPlace::take_handles`].
    #[doc(hidden)]
    pub fn take_unclaimed(&mut self) -> Result<Vec<UnclaimedHandle>, Error> {
        self.arrived.take_unclaimed()
    }

    /// Returns the identity of the sender of this message, like [`Message::sender`](crate::Message::sender).
    pub fn sender(&self) -> Option<Peer> {
        self.origin.sender()
    }

    /// Reports that the sender of this message broke the rules, and closes the link to the sender. Works like
    /// [`Message::report_bad`](crate::Message::report_bad).
    pub fn report_bad(&self, why: &'static str) -> Reported {
        self.origin.report(why)
    }
}

impl<K> Drop for InPlace<'_, K> {
    /// Ends the view: the ring space or the block of the message is returned to the sender.
    fn drop(&mut self) {
        // A child of `fork` does not have the memory, and the end belongs to its parent.
        if self.end.born.is_elsewhere() {
            return;
        }
        match &mut self.storage {
            ViewStorage::Ring { rx, record } => {
                let record = *record;
                self.end.finish(rx, record, Payload::Ring(record));
                rx.unmark_blocking();
                self.end.after_blocking();
            }
            ViewStorage::OutOfLine(payload) => self.end.release(payload),
        }
    }
}
