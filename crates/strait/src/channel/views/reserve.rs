//! Reservations: messages written in the memory where the peer will read them.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::channel::handle::{Handle, descriptors};
use crate::channel::message::Parts;
use crate::channel::pool::{self, BlockRecord, Growth, Loan};
use crate::channel::sender::Tx;
use crate::channel::{Channel, End, SendError};
use crate::deadline::Deadline;
use crate::deferred;
use crate::error::Error;
use crate::kept::{self, Borrowed, Keep};
use crate::link::{Attachments, Link};
use crate::os::memory;
use crate::os::region::{self, How};
use crate::quota::{MAX_HANDLES, OverLimit};
use crate::region::RegionCopy;
use crate::ring::{Header, RecordKind, Slot};
use crate::shm::{Mapping, RegionMapping, Shareable};
use crate::signals;
use crate::wake::lock::Guard;

/// Room for a message, to be filled in the memory where the peer will read. Dropping the reservation without
/// [`commit`](Self::commit) gives the room back, and the peer sees nothing.
///
/// While a reservation is held, no other thread sends from this end.
///
/// Unwritten bytes reach the peer with their old content: zeroes, or bytes of earlier messages to the same peer.
///
/// ```
/// use std::io::Write;
/// let (a, b) = strait::Channel::pair()?;
/// let mut room = a.reserve(1 << 20, strait::Deadline::NEVER)?;
/// room.write_all(&[7; 1 << 20]).expect("it was reserved");
/// room.commit()?;
/// assert_eq!(b.recv()?.bytes(), [7; 1 << 20]);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Reservation<'a, K = ()> {
    end: Borrowed<'a, End>,
    tx: Guard<'a, Tx>,
    /// The reserved room in the ring or in a block; `None` once the message was sent or the room released.
    storage: Option<ReservedStorage>,
    len: usize,
    /// Number of bytes that calls of `write` have written into the room so far.
    written: usize,
    handles: Vec<Handle>,
    deadline: Deadline,
    /// A copy of the bytes of a small message with handles, which the commit makes in case the peer moves and the
    /// message has to be sent again. Empty for other messages.
    saved: Vec<u8>,
    /// The reference that keeps the end alive, for an owned reservation. Dropped last.
    kept: K,
}

/// The name of a sealed message's memory in `/proc`.
const SEALED: &str = "strait-sealed";

/// Number of bytes copied in one step, when a message is copied from one block to another.
pub(in crate::channel) const PIECE: usize = 64 << 10;

#[derive(Debug)]
enum ReservedStorage {
    Ring(Slot),
    Block(Loan),
}

impl Channel {
    /// Reserves room for a message of `len` bytes, to be filled in place and sent without a copy. Waits for room until
    /// the deadline, which also applies to [`Reservation::commit`].
    ///
    /// A small message is written into the ring. A large message is written into a block already mapped by the peer, if
    /// a block of the size is free; otherwise into a new block.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`].
    pub fn reserve(&self, len: usize, deadline: impl Into<Deadline>) -> Result<Reservation<'_>, Error> {
        self.reserve_with(len, deadline.into(), || ())
    }

    /// Reserves room for a message, like [`reserve`](Self::reserve), for a reservation that [owns
    /// itself](crate::owned).
    ///
    /// # Errors
    /// As [`Channel::reserve`].
    pub fn reserve_owned(
        self: Arc<Self>,
        len: usize,
        deadline: impl Into<Deadline>,
    ) -> Result<Reservation<'static, Arc<Self>>, Error> {
        reserve(self, len, deadline.into())
    }

    fn reserve_with<K>(
        &self,
        len: usize,
        deadline: Deadline,
        keep: impl FnOnce() -> K,
    ) -> Result<Reservation<'_, K>, Error> {
        let end = &*self.end;
        let limit = end.options.max_message;
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        let mut tx = end.lock_tx(deadline)?;
        end.wait_for_quotas(&mut tx, 0, 0, deadline)?;
        let storage = if len <= end.options.inline_limit() {
            ReservedStorage::Ring(end.stage_record(&mut tx, Header::new(RecordKind::Message, len, 0), deadline)?)
        } else {
            ReservedStorage::Block(end.borrow_block(&mut tx, len, deadline)?)
        };
        tx.mark_blocking();
        Ok(Reservation {
            end: end.into(),
            tx,
            storage: Some(storage),
            len,
            written: 0,
            handles: Vec::new(),
            deadline,
            saved: Vec::new(),
            kept: keep(),
        })
    }

    /// Allocates memory for a message of `len` bytes that is *sealed* when sent: from then on no process can change the
    /// bytes, this process included. The receiver can read the message [in place](crate::view::InPlace::sealed) without
    /// trusting this process.
    ///
    /// Sealing costs more than the warm memory of the pool: each message pays for new pages. Use sealed reservations
    /// for messages that are sent once and must be read without a copy.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`].
    pub fn reserve_sealed(&self, len: usize) -> Result<SealedReservation<'_>, Error> {
        self.reserve_sealed_with(len, || ())
    }

    /// Allocates memory for a sealed message, like [`reserve_sealed`](Self::reserve_sealed), for a reservation that
    /// [owns itself](crate::owned).
    ///
    /// # Errors
    /// As [`Channel::reserve_sealed`].
    pub fn reserve_sealed_owned(self: Arc<Self>, len: usize) -> Result<SealedReservation<'static, Arc<Self>>, Error> {
        reserve_sealed(self, len)
    }

    fn reserve_sealed_with<K>(&self, len: usize, keep: impl FnOnce() -> K) -> Result<SealedReservation<'_, K>, Error> {
        self.end.born.check()?;
        let limit = self.end.options.max_message;
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        let fd = memory::memfd(SEALED, len.max(1))?;
        // SAFETY: no other process has the memory or has mapped it, so no other process can change its size.
        let mapping = unsafe { RegionMapping::new(fd.as_fd(), 0, len, How::Own) }?;
        Ok(SealedReservation { end: (&*self.end).into(), mapping, fd, len, handles: Vec::new(), kept: keep() })
    }
}

/// Reserves room for a message of `len` bytes over the channel that `kept` keeps, as [`Channel::reserve`] does.
pub fn reserve<K: Keep<Object = Channel>>(
    kept: K,
    len: usize,
    deadline: Deadline,
) -> Result<Reservation<'static, K>, Error> {
    // SAFETY: the reservation drops its borrows before `kept`; a call that fails returns before `kept` is dropped.
    let channel = unsafe { kept::borrow(&kept) };
    let mut kept = Some(kept);
    channel.reserve_with(len, deadline, || kept.take().expect("there is one reservation"))
}

/// Allocates memory for a sealed message over the channel that `kept` keeps, as [`Channel::reserve_sealed`] does.
pub fn reserve_sealed<K: Keep<Object = Channel>>(kept: K, len: usize) -> Result<SealedReservation<'static, K>, Error> {
    // SAFETY: the reservation drops its borrows before `kept`; a call that fails returns before `kept` is dropped.
    let channel = unsafe { kept::borrow(&kept) };
    let mut kept = Some(kept);
    channel.reserve_sealed_with(len, || kept.take().expect("there is one reservation"))
}

impl<K> Reservation<'_, K> {
    /// Returns what keeps the end: for an [owned](crate::owned) reservation the `Arc` of the channel.
    pub fn kept(&self) -> &K {
        &self.kept
    }

    /// Checks that this process made the reservation, and so has the memory (a forked child does not).
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of `fork`.
    #[doc(hidden)]
    pub fn check_fork(&self) -> Result<(), Error> {
        self.end.born.check()
    }

    /// Returns the number of bytes that were reserved for the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether 0 bytes were reserved.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes` into the reserved room, from byte `offset` on.
    ///
    /// # Panics
    /// If `bytes` would reach past the end of the room; in a child of `fork`, which does not have the memory.
    pub fn write_at(&mut self, bytes: &[u8], offset: usize) {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "a write inside the reservation");
        match &self.storage {
            Some(ReservedStorage::Ring(slot)) => self.tx.producer.write(*slot, offset, bytes),
            Some(ReservedStorage::Block(loan)) => loan.mapping.copy_in(loan.record.at() + offset, bytes),
            None => unreachable!("a reservation is committed by value"),
        }
    }

    /// Writes `bytes` into the reserved room, from byte `offset` of the room on, the fastest way: a new block is
    /// written through its descriptor, which avoids page faults. Fails if the kernel refuses that write.
    pub(super) fn fill_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        match &self.storage {
            Some(ReservedStorage::Block(loan)) => pool::fill(loan, offset, bytes),
            _ => {
                self.write_at(bytes, offset);
                Ok(())
            }
        }
    }

    /// Returns the reserved room itself, for code that fills a slice. The slice is only to be written to: the peer may
    /// be able to change its bytes.
    ///
    /// # Panics
    /// In a child of `fork`, which does not have the memory.
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        match &self.storage {
            // SAFETY: the record is staged and not committed, and this reservation holds the lock: nobody else in
            // this process touches the record. The slice borrows the reservation.
            Some(ReservedStorage::Ring(slot)) => unsafe { self.tx.producer.uninit_mut(*slot) },
            // SAFETY: the block is lent to this reservation alone. The slice borrows the reservation.
            Some(ReservedStorage::Block(loan)) => unsafe { loan.mapping.uninit_mut(loan.record.at(), self.len) },
            None => unreachable!("a reservation is committed by value"),
        }
    }

    /// Adds a handle to the message that is being written.
    pub fn handle(&mut self, handle: impl Into<Handle>) {
        self.handles.push(handle.into());
    }

    /// Sends the message, with all reserved bytes. Waits, if it has to, until the deadline that was given to
    /// [`Channel::reserve`].
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`]. After an error the room is released.
    pub fn commit(self) -> Result<(), SendError> {
        let len = self.len;
        self.commit_first(len)
    }

    /// Sends the first `len` bytes of the room as the message. Waits, if it has to, until the deadline that was given
    /// to [`Channel::reserve`].
    ///
    /// # Panics
    /// If fewer than `len` bytes were reserved.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`]. After an error the room is released.
    pub fn commit_first(self, len: usize) -> Result<(), SendError> {
        self.commit_returning_handles(len).map(drop)
    }

    /// Sends the first `len` bytes of the room as the message. On success returns the handles of the message still open
    /// in this process, for the caller to close.
    fn commit_returning_handles(mut self, len: usize) -> Result<Vec<Handle>, SendError> {
        assert!(len <= self.len, "no more than was reserved");
        let mut handles = std::mem::take(&mut self.handles);
        let committed = self.try_commit(len, &mut handles);
        drop(self);
        deferred::run_if_failed(match committed {
            Ok(()) => Ok(handles),
            Err(error) => Err(SendError::new(error, handles)),
        })
    }

    /// Sends the first `len` bytes of the room with `handles`; waits until `deadline` instead of the reservation's own
    /// deadline. On success returns the handles still open in this process, for the caller to close.
    pub(super) fn commit_with(
        mut self,
        len: usize,
        handles: Vec<Handle>,
        deadline: Deadline,
    ) -> Result<Vec<Handle>, SendError> {
        (self.handles, self.deadline) = (handles, deadline);
        self.commit_returning_handles(len)
    }

    /// Moves the reservation to a larger block of `len` bytes, with the first `used` bytes. Returns `None` on success.
    /// If no such block can be had now, returns a copy of those bytes; the reservation can then only be dropped.
    ///
    /// # Errors
    /// [`Error::WouldBlock`] if the reservation is not in a block.
    pub(super) fn enlarge(&mut self, len: usize, used: usize) -> Result<Option<Vec<u8>>, Error> {
        let Some(ReservedStorage::Block(mut old)) = self.storage.take() else { return Err(Error::WouldBlock) };
        let queue_bytes = self.end.options.queue_bytes;
        let found = match self.tx.pool().grow(&mut old, len, queue_bytes) {
            Growth::Done => {
                (self.storage, self.len) = (Some(ReservedStorage::Block(old)), len);
                return Ok(None);
            }
            Growth::Refused => Err(Error::WouldBlock),
            Growth::NeedsOther => {
                // The bytes count as in flight, and the limit may allow no further bytes. The block stays lent: the
                // pool may discard the bytes of a free block to make room.
                self.tx.pool().uncount(&old);
                self.end.borrow_block(&mut self.tx, len, Deadline::NOW)
            }
        };
        let copy = match &found {
            Ok(new) => {
                let mut piece = Vec::with_capacity(PIECE.min(used));
                for at in (0..used).step_by(PIECE) {
                    let count = PIECE.min(used - at);
                    let bytes = old.mapping.copy_out(old.record.at() + at, &mut piece.spare_capacity_mut()[..count]);
                    new.mapping.copy_in(new.record.at() + at, bytes);
                }
                None
            }
            Err(_) => {
                let mut bytes = Vec::with_capacity(used);
                old.mapping.copy_out(old.record.at(), &mut bytes.spare_capacity_mut()[..used]);
                // SAFETY: `used` bytes were written just now.
                unsafe { bytes.set_len(used) };
                Some(bytes)
            }
        };
        self.tx.pool().take_back(&old);
        if let Ok(new) = found {
            (self.storage, self.len) = (Some(ReservedStorage::Block(new)), len);
        }
        Ok(copy)
    }

    fn try_commit(&mut self, len: usize, handles: &mut Vec<Handle>) -> Result<(), Error> {
        self.end.born.check()?;
        let limit = self.end.options.max_handles;
        if handles.len() > limit {
            return Err(Error::TooManyHandles { count: handles.len(), limit });
        }
        let local = !handles.is_empty() && self.end.is_local(&mut self.tx, self.deadline)?;
        let storage = self.storage.take().expect("a reservation is committed by value");
        // Sending ends of channels needs preparation, during which this end may have to go on in another lane.
        if local || !handles.iter().all(Handle::is_plain) {
            let bytes = self.copy_out(&storage, len);
            self.forget(storage);
            return self.end.send_slowly(&mut self.tx, Parts::One(&bytes), handles, self.deadline);
        }
        // The bytes are needed again if the peer moves before it has the message.
        if let ReservedStorage::Ring(_) = storage
            && !handles.is_empty()
        {
            self.saved = self.copy_out(&storage, len);
        }
        self.tx.pin();
        let waited = self.end.wait_for_handles(&mut self.tx, handles.len(), self.deadline);
        if waited.is_err() && !self.tx.is_moved() {
            self.tx.unpin();
            self.forget(storage);
            return waited;
        }
        let committed = waited.and_then(|()| match &storage {
            ReservedStorage::Ring(slot) => self.commit_slot(*slot, len, handles),
            ReservedStorage::Block(loan) => self.commit_block(loan, len, handles),
        });
        self.tx.unpin();
        match committed {
            Ok(()) => Ok(()),
            Err(error) if self.tx.has_moved() => {
                signals::postpone(error);
                let bytes = match storage {
                    ReservedStorage::Ring(_) => std::mem::take(&mut self.saved),
                    ReservedStorage::Block(_) => self.copy_out(&storage, len),
                };
                self.end.send_slowly(&mut self.tx, Parts::One(&bytes), handles, self.deadline)
            }
            Err(error) => {
                self.tx.discard();
                Err(error)
            }
        }
    }

    fn commit_slot(&mut self, mut slot: Slot, len: usize, handles: &[Handle]) -> Result<(), Error> {
        let header = Header::new(RecordKind::Message, len, handles.len());
        self.tx.producer.shorten(&mut slot, header);
        self.end.finish_inline(&mut self.tx, len, handles, self.deadline)?;
        // A message without handles can go to whichever lane the peer is in.
        if handles.is_empty() {
            self.tx.unpin();
        }
        self.end.commit(&mut self.tx, self.deadline)
    }

    fn commit_block(&mut self, loan: &Loan, len: usize, handles: &[Handle]) -> Result<(), Error> {
        let header = Header::new(RecordKind::Block, BlockRecord::SIZE, handles.len());
        let descriptors = descriptors(handles);
        let attachments = Attachments::descriptors(&descriptors);
        self.end.stage_block(&mut self.tx, loan, len, Ok(()), header, attachments, self.deadline)?;
        self.end.commit(&mut self.tx, self.deadline)
    }

    /// Returns a copy of the first `len` bytes of the reserved room `storage`.
    fn copy_out(&self, storage: &ReservedStorage, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        let room = &mut bytes.spare_capacity_mut()[..len];
        match storage {
            ReservedStorage::Ring(slot) => self.tx.producer.read_back(*slot, room),
            ReservedStorage::Block(loan) => loan.mapping.copy_out(loan.record.at(), room),
        };
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { bytes.set_len(len) };
        bytes
    }

    /// Releases the reserved room `storage`: takes back the record that was staged last, or returns the block to the
    /// pool. The peer sees nothing of it.
    fn forget(&mut self, storage: ReservedStorage) {
        match storage {
            ReservedStorage::Ring(_) => self.tx.producer.unstage_last(),
            ReservedStorage::Block(loan) => self.tx.pool().take_back(&loan),
        }
    }
}

impl<K> Drop for Reservation<'_, K> {
    fn drop(&mut self) {
        // A child of `fork` does not have the memory, and the end belongs to its parent.
        if self.end.born.is_elsewhere() {
            return;
        }
        if let Some(storage) = self.storage.take() {
            self.forget(storage);
        }
        self.tx.unmark_blocking();
        self.end.after_blocking();
    }
}

/// Each `write` fills the reserved room behind the bytes written before; it writes as many bytes as still fit.
impl<K> io::Write for Reservation<'_, K> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.len - self.written);
        self.write_at(&bytes[..n], self.written);
        self.written += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory for a message that is sealed when sent. Until then only this process has the memory.
///
/// ```
/// let (a, b) = strait::Channel::pair()?;
/// let mut room = a.reserve_sealed(5)?;
/// room.bytes().copy_from_slice(b"fixed");
/// room.commit(strait::Deadline::NEVER)?;
/// let message = b.recv_in_place(strait::Deadline::NEVER)?;
/// assert_eq!(message.sealed(), Some(b"fixed".as_slice()));
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct SealedReservation<'a, K = ()> {
    end: Borrowed<'a, End>,
    mapping: RegionMapping,
    fd: OwnedFd,
    len: usize,
    handles: Vec<Handle>,
    /// The reference that keeps the end alive, for an owned reservation. Dropped last.
    kept: K,
}

impl<K> SealedReservation<'_, K> {
    /// Returns what keeps the end: for an [owned](crate::owned) reservation the `Arc` of the channel.
    pub fn kept(&self) -> &K {
        &self.kept
    }

    /// Checks that this process made the reservation, and so has the memory (a forked child does not).
    ///
    /// # Errors
    /// [`Error::Forked`] in a child of `fork`.
    #[doc(hidden)]
    pub fn check_fork(&self) -> Result<(), Error> {
        self.end.born.check()
    }

    /// Returns the bytes of the message, to be filled; they are zero at first.
    ///
    /// # Panics
    /// In a child of `fork`, which does not have the memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        self.mapping.bytes_mut()
    }

    /// Adds a handle to the message.
    pub fn handle(&mut self, handle: impl Into<Handle>) {
        self.handles.push(handle.into());
    }

    /// Seals the bytes of the message and sends it; waits for room until the deadline.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`]. After an error the memory is freed; the error contains the handles.
    pub fn commit(self, deadline: impl Into<Deadline>) -> Result<(), SendError> {
        self.commit_by(deadline.into(), |mapping, fd, len| {
            // The kernel refuses to seal memory that is still mapped writable.
            drop(mapping);
            Ok(((), memory::sealed(fd, SEALED, len.max(1))?))
        })
    }

    /// Seals and sends the message, like [`commit`](Self::commit), and returns the memory to this process: as a private
    /// copy at the same address, for reading and writing. No byte is copied;
    /// [`RegionWriter::seal`](crate::region::RegionWriter::seal) says what the call costs.
    ///
    /// # Errors
    /// The errors of [`commit`](Self::commit); [`Error::StillMapped`] if another thread forked a child while the memory
    /// was made, and the child still has the memory after 100 ms. After an error the memory is freed; the error
    /// contains the handles.
    pub fn commit_and_keep(self, deadline: impl Into<Deadline>) -> Result<RegionCopy, SendError> {
        self.commit_by(deadline.into(), |mut mapping, fd, _| {
            mapping.seal_in_place(fd.as_fd(), || region::seal(&fd))?;
            Ok((RegionCopy::over(mapping), fd))
        })
    }

    /// Seals the memory by `seal` and sends the message; waits for room until the deadline. `seal` gets the memory and
    /// its length in bytes, and returns the sealed memfd together with the result of this call.
    fn commit_by<R>(
        self,
        deadline: Deadline,
        seal: impl FnOnce(RegionMapping, OwnedFd, usize) -> Result<(R, OwnedFd), Error>,
    ) -> Result<R, SendError> {
        let Self { end, mapping, fd, len, mut handles, kept: _kept } = self;
        let limit = end.options.max_handles.min(MAX_HANDLES);
        if handles.len() > limit {
            return Err(SendError::new(Error::TooManyHandles { count: handles.len(), limit }, handles));
        }
        let send = |(kept, fd): (R, OwnedFd)| {
            let link = Link::own();
            let mapping = Mapping::received_immutable(fd.as_fd(), 1..=usize::MAX, link.ledger(), OverLimit::Refuse)?;
            let memory = Shareable { fd: mapping.retain_descriptor(fd, link.ledger()), mapping };
            end.send_sealed(&memory, len, &mut handles, deadline)?;
            Ok(kept)
        };
        let sent = end.born.check().and_then(|()| seal(mapping, fd, len)).and_then(send);
        sent.map_err(|error| SendError::new(error, handles))
    }
}
