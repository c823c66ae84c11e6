//! Writing a message where the peer will read it.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use crate::channel::handle::Handle;
use crate::channel::message::Parts;
use crate::channel::pool::{self, Loan};
use crate::channel::sender::Tx;
use crate::channel::{Channel, End, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::link::Link;
use crate::os::memory;
use crate::quota::{MAX_HANDLES, told};
use crate::ring::{Header, Kind, Slot};
use crate::shm::{Mapping, Shareable};
use crate::wake::lock::Guard;

/// Room for a message, to be filled where the peer will read it. Dropped without [`commit`](Self::commit) it is given
/// back, and the peer sees nothing.
///
/// Other threads do not send from this end while it is held.
///
/// Bytes that are never written reach the peer as whatever was there: zeroes, or bytes of earlier messages to the
/// same peer.
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
pub struct Reservation<'a> {
    end: &'a End,
    tx: Guard<'a, Tx>,
    /// `None` once it was committed.
    place: Option<Place>,
    len: usize,
    /// How far `Write` has come.
    written: usize,
    handles: Vec<Handle>,
    deadline: Deadline,
    /// What was written, if it may have to be sent again.
    saved: Vec<u8>,
}

/// What the memory of a sealed message is called in `/proc`.
const SEALED: &str = "strait-sealed";

/// Bytes copied at once from one block to another.
pub(in crate::channel) const PIECE: usize = 64 << 10;

#[derive(Debug)]
enum Place {
    Ring(Slot),
    Block(Loan),
}

impl Channel {
    /// Makes room for a message of `len` bytes, to be filled in place and sent without a copy; waits for it until the
    /// deadline, which holds for [`Reservation::commit`] too.
    ///
    /// A small message is written into the ring, a large one into memory that the peer has mapped already, if there
    /// is some of the size; else into fresh memory.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    pub fn reserve(&self, len: usize, deadline: impl Into<Deadline>) -> Result<Reservation<'_>, Error> {
        let deadline = deadline.into();
        let end = &*self.end;
        let limit = end.options.max_message;
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        let mut tx = end.lock_tx(deadline)?;
        end.wait_for_quotas(&mut tx, 0, 0, deadline)?;
        let place = if len <= end.options.inline_limit() {
            Place::Ring(end.stage_record(&mut tx, Header::new(Kind::Message, len, 0), deadline)?)
        } else {
            Place::Block(end.borrow_block(&mut tx, len, deadline)?)
        };
        tx.keep();
        Ok(Reservation {
            end,
            tx,
            place: Some(place),
            len,
            written: 0,
            handles: Vec::new(),
            deadline,
            saved: Vec::new(),
        })
    }

    /// Makes fresh memory for a message of `len` bytes that is *sealed* when it is sent: from then on nobody can
    /// change it, this process included, and the receiver can read it [in place](crate::InPlace::sealed) without
    /// trusting this one.
    ///
    /// Sealing costs more than the pool's warm memory: each message pays for fresh pages. It is for what is sent
    /// once and read by somebody who must not copy it.
    ///
    /// # Errors
    /// As [`Channel::send_by`].
    pub fn reserve_sealed(&self, len: usize) -> Result<SealedReservation<'_>, Error> {
        self.end.born.check()?;
        let limit = self.end.options.max_message;
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        let (mapping, fd) = Mapping::unsealed(SEALED, len.max(1))?;
        Ok(SealedReservation { end: &self.end, mapping, fd, len, handles: Vec::new() })
    }
}

impl Reservation<'_> {
    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message will have no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Writes `bytes` at `offset`.
    ///
    /// # Panics
    /// If they reach past the end; in the child of a `fork`, which does not have the memory.
    pub fn put_at(&mut self, offset: usize, bytes: &[u8]) {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        assert!(offset <= self.len && bytes.len() <= self.len - offset, "a write inside the reservation");
        match &self.place {
            Some(Place::Ring(slot)) => self.tx.producer.write(*slot, offset, bytes),
            Some(Place::Block(loan)) => loan.mapping.copy_in(loan.record.at() + offset, bytes),
            None => unreachable!("a reservation is committed by value"),
        }
    }

    /// Writes `bytes` at `offset`, the fastest way.
    pub(super) fn fill_at(&mut self, offset: usize, bytes: &[u8]) -> Result<(), Error> {
        match &self.place {
            Some(Place::Block(loan)) => pool::fill(loan, offset, bytes),
            _ => {
                self.put_at(offset, bytes);
                Ok(())
            }
        }
    }

    /// The room itself, for code that fills memory it is given. It can only be written to: the peer may be able to
    /// change what is in it.
    ///
    /// # Panics
    /// In the child of a `fork`, which does not have the memory.
    pub fn as_uninit_mut(&mut self) -> &mut [MaybeUninit<u8>] {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        match &self.place {
            // SAFETY: the record is staged and not committed, and the lock is ours: nobody else in this process
            // touches it. The slice borrows the reservation.
            Some(Place::Ring(slot)) => unsafe { self.tx.producer.places(*slot) },
            // SAFETY: the block is lent to this reservation alone. The slice borrows it.
            Some(Place::Block(loan)) => unsafe { loan.mapping.places(loan.record.at(), self.len) },
            None => unreachable!("a reservation is committed by value"),
        }
    }

    /// Adds a handle to the message.
    pub fn add_handle(&mut self, handle: impl Into<Handle>) {
        self.handles.push(handle.into());
    }

    /// Sends the message.
    ///
    /// # Errors
    /// As [`Channel::send_by`]. The room is given back.
    pub fn commit(self) -> Result<(), SendError> {
        let len = self.len;
        self.commit_first(len)
    }

    /// Sends the first `len` bytes as the message.
    ///
    /// # Panics
    /// If more were not reserved.
    ///
    /// # Errors
    /// As [`Channel::send_by`]. The room is given back.
    pub fn commit_first(self, len: usize) -> Result<(), SendError> {
        self.commit_keeping(len).map(drop)
    }

    /// Sends the first `len` bytes as the message. What is left of its handles, which the caller closes.
    fn commit_keeping(mut self, len: usize) -> Result<Vec<Handle>, SendError> {
        assert!(len <= self.len, "no more than was reserved");
        let mut handles = std::mem::take(&mut self.handles);
        let committed = self.try_commit(len, &mut handles);
        drop(self);
        told(match committed {
            Ok(()) => Ok(handles),
            Err(error) => Err(SendError::new(error, handles)),
        })
    }

    /// Sends the first `len` bytes with these handles, until another deadline. What is left of the handles, which the caller
    /// closes.
    pub(super) fn commit_with(
        mut self,
        len: usize,
        handles: Vec<Handle>,
        deadline: Deadline,
    ) -> Result<Vec<Handle>, SendError> {
        (self.handles, self.deadline) = (handles, deadline);
        self.commit_keeping(len)
    }

    /// Goes on in a larger block, with the `used` bytes that were written. If there is none to be had now, hands out those bytes,
    /// and the reservation is of no more use.
    pub(super) fn enlarge(&mut self, len: usize, used: usize) -> Result<Option<Vec<u8>>, Error> {
        let Some(Place::Block(old)) = self.place.take() else { return Err(Error::WouldBlock) };
        // Given back first: its bytes count as under way, and there may be room for no more than those. They stay where they
        // are, as nobody else sends meanwhile.
        self.tx.pool().take_back(&old);
        match self.end.borrow_block(&mut self.tx, len, Deadline::NOW) {
            Ok(new) => {
                if !std::sync::Arc::ptr_eq(&old.mapping, &new.mapping) || old.record.at() != new.record.at() {
                    let mut piece = Vec::with_capacity(PIECE.min(used));
                    for at in (0..used).step_by(PIECE) {
                        let count = PIECE.min(used - at);
                        let bytes =
                            old.mapping.copy_out(old.record.at() + at, &mut piece.spare_capacity_mut()[..count]);
                        new.mapping.copy_in(new.record.at() + at, bytes);
                    }
                }
                (self.place, self.len) = (Some(Place::Block(new)), len);
                Ok(None)
            }
            Err(_) => Ok(Some(self.copy_out(&Place::Block(old), used))),
        }
    }

    fn try_commit(&mut self, len: usize, handles: &mut Vec<Handle>) -> Result<(), Error> {
        self.end.born.check()?;
        let limit = self.end.options.max_handles;
        if handles.len() > limit {
            return Err(Error::TooManyHandles { count: handles.len(), limit });
        }
        let within = !handles.is_empty() && self.end.is_within(&mut self.tx, self.deadline)?;
        let place = self.place.take().expect("a reservation is committed by value");
        // Ends of channels have to be made ready, during which this one may have to go elsewhere.
        if within || !handles.iter().all(Handle::is_plain) {
            let bytes = self.copy_out(&place, len);
            self.forget(place);
            return self.end.send_slowly(&mut self.tx, Parts::One(&bytes), handles, self.deadline);
        }
        // Should the peer move to elsewhere before it has the message.
        if let Place::Ring(_) = place
            && !handles.is_empty()
        {
            self.saved = self.copy_out(&place, len);
        }
        self.tx.pin();
        let waited = self.end.wait_for_handles(&mut self.tx, handles.len(), self.deadline);
        if waited.is_err() && !self.tx.is_moved() {
            self.tx.unpin();
            self.forget(place);
            return waited;
        }
        let committed = waited.and_then(|()| match &place {
            Place::Ring(slot) => self.commit_slot(*slot, len, handles),
            Place::Block(loan) => self.commit_block(loan, len, handles),
        });
        self.tx.unpin();
        match committed {
            Ok(()) => Ok(()),
            Err(_) if self.tx.has_moved() => {
                let bytes = match place {
                    Place::Ring(_) => std::mem::take(&mut self.saved),
                    Place::Block(_) => self.copy_out(&place, len),
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
        let header = self.tx.header(Kind::Message, len, handles.len());
        self.tx.producer.shorten(&mut slot, header);
        self.end.finish_stage(&mut self.tx, len, handles, self.deadline)?;
        // Without handles it goes wherever the peer is.
        if handles.is_empty() {
            self.tx.unpin();
        }
        self.end.commit(&mut self.tx, self.deadline)
    }

    fn commit_block(&mut self, loan: &Loan, len: usize, handles: &[Handle]) -> Result<(), Error> {
        self.end.stage_block(&mut self.tx, loan, len, Ok(()), handles, self.deadline)?;
        self.end.commit(&mut self.tx, self.deadline)
    }

    /// What was written.
    fn copy_out(&self, place: &Place, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len);
        let room = &mut bytes.spare_capacity_mut()[..len];
        match place {
            Place::Ring(slot) => self.tx.producer.read_back(*slot, room),
            Place::Block(loan) => loan.mapping.copy_out(loan.record.at(), room),
        };
        // SAFETY: `len` bytes were reserved and have been written just now.
        unsafe { bytes.set_len(len) };
        bytes
    }

    /// Gives the room back.
    fn forget(&mut self, place: Place) {
        match place {
            Place::Ring(_) => self.tx.producer.unstage_last(),
            Place::Block(loan) => self.tx.pool().take_back(&loan),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        // In the child of a fork it is not there, and not the child's.
        if self.end.born.is_elsewhere() {
            return;
        }
        if let Some(place) = self.place.take() {
            self.forget(place);
        }
        self.tx.keep_no_more();
        self.end.kept_no_more();
    }
}

/// Fills the room from the front, as far as it goes.
impl io::Write for Reservation<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let n = bytes.len().min(self.len - self.written);
        self.put_at(self.written, &bytes[..n]);
        self.written += n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Memory for a message that is sealed when it is sent. It is this process's alone until then.
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
pub struct SealedReservation<'a> {
    end: &'a End,
    mapping: Mapping,
    fd: OwnedFd,
    len: usize,
    handles: Vec<Handle>,
}

impl SealedReservation<'_> {
    /// The bytes of the message, zeroes at first.
    ///
    /// # Panics
    /// In the child of a `fork`, which does not have the memory.
    pub fn bytes(&mut self) -> &mut [u8] {
        assert!(!self.end.born.is_elsewhere(), "{}", Error::Forked);
        &mut self.mapping.own_bytes()[..self.len]
    }

    /// Adds a handle to the message.
    pub fn add_handle(&mut self, handle: impl Into<Handle>) {
        self.handles.push(handle.into());
    }

    /// Seals the bytes and sends them; waits for room until the deadline.
    ///
    /// # Errors
    /// As [`Channel::send_by`]. The memory is given back to the kernel.
    pub fn commit(self, deadline: impl Into<Deadline>) -> Result<(), SendError> {
        let Self { end, mapping, fd, len, mut handles } = self;
        let limit = end.options.max_handles.min(MAX_HANDLES);
        if handles.len() > limit {
            return Err(SendError::new(Error::TooManyHandles { count: handles.len(), limit }, handles));
        }
        // The kernel seals only what nobody can write to any more.
        drop(mapping);
        let sent = end
            .born
            .check()
            .and_then(|()| memory::sealed(fd, SEALED, len.max(1)))
            .and_then(|fd| Ok((Mapping::received_immutable(fd.as_fd(), 1..=usize::MAX, Link::own().ledger())?, fd)))
            .map(|(mapping, fd)| Shareable { fd: mapping.keep_descriptor(fd, Link::own().ledger()), mapping })
            .and_then(|memory| end.send_sealed(&memory, len, &mut handles, deadline.into()));
        match sent {
            Ok(()) => Ok(()),
            Err(error) => Err(SendError::new(error, handles)),
        }
    }
}
