//! Drafts: messages built by appending, in the memory where the peer will read them.
//!
//! A small draft is built in private memory, blocks no other sender, and is copied once by the send, as every small
//! message is. A draft that has become too long for the ring moves to a block of the pool. That block grows by
//! doubling, and the send copies nothing. If no block is free, the draft stays in private memory and the send copies
//! it.

use std::io;
use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::message::Outgoing;
use crate::channel::{Channel, Reservation, SendError};
use crate::deadline::Deadline;
use crate::error::Error;
use crate::kept::{self, Borrowed};

/// A message under construction, created by [`Channel::draft`]: append bytes and handles, then send it. Dropping a
/// draft sends nothing and closes its handles.
///
/// ```
/// use std::io::Write;
/// let (a, b) = strait::Channel::pair()?;
/// let mut draft = a.draft();
/// for n in 0..100_000 {
///     write!(draft, "{n} ").expect("it fits a message");
/// }
/// draft.handle(std::fs::File::open("/dev/null").expect("/dev/null"));
/// draft.send(strait::Deadline::NEVER)?;
/// assert!(b.recv()?.bytes().ends_with(b"99998 99999 "));
/// # Ok::<(), strait::Error>(())
/// ```
///
/// # Cost
/// Bytes are copied when they are appended. A long message is copied again whenever its memory doubles, but the send
/// does not copy it. A draft longer than [`Options::inline_max`](crate::Options::inline_max) holds the sending lock of
/// this end: other threads that send wait until the draft is sent or dropped.
pub struct Draft<'a, K = ()> {
    channel: Borrowed<'a, Channel>,
    storage: DraftStorage<'a>,
    len: usize,
    handles: Vec<Handle>,
    /// The reference that keeps the channel alive, for an owned draft. Dropped last.
    kept: K,
}

impl<K> std::fmt::Debug for Draft<'_, K> {
    /// Prints the sizes of the draft, not the bytes.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Draft").field("len", &self.len).field("handles", &self.handles).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum DraftStorage<'a> {
    Private(Vec<u8>),
    /// The bytes of the draft are in a block of the pool, mapped by the peer, so sending the draft copies nothing.
    Shared(Reservation<'a>),
}

impl Channel {
    /// Begins a message that is built by appending bytes and handles. Allocates nothing yet, and does not block.
    pub fn draft(&self) -> Draft<'_> {
        Draft::new(self, ())
    }

    /// Begins a message, like [`draft`](Self::draft), for a draft that [owns itself](crate::owned).
    pub fn draft_owned(self: Arc<Self>) -> Draft<'static, Arc<Self>> {
        // SAFETY: the draft drops its borrows before the `Arc`.
        let channel = unsafe { kept::borrow(&self) };
        Draft::new(channel, self)
    }
}

impl<'a, K> Draft<'a, K> {
    fn new(channel: &'a Channel, kept: K) -> Self {
        let storage = DraftStorage::Private(Vec::new());
        Self { channel: channel.into(), storage, len: 0, handles: Vec::new(), kept }
    }

    /// Returns the reference that keeps the channel alive: for an [owned](crate::owned) draft an `Arc`.
    pub fn kept(&self) -> &K {
        &self.kept
    }

    /// Returns the number of bytes appended to the message so far.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether no bytes were appended to the message yet.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the bytes of the message are in shared memory already. If so, sending copies nothing.
    pub fn is_shared(&self) -> bool {
        matches!(self.storage, DraftStorage::Shared(_))
    }

    /// Appends bytes to the message. Does not block.
    ///
    /// # Errors
    /// [`Error::MessageTooLarge`] if the message would exceed the limit in the options of this end,
    /// [`Error::NoMemory`], [`Error::Forked`]. After an error nothing was appended.
    pub fn append(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.channel.end.born.check()?;
        let limit = self.channel.end.options.max_message;
        let len = self.len.saturating_add(bytes.len());
        if len > limit {
            return Err(Error::MessageTooLarge { len, limit });
        }
        self.make_room(len)?;
        match &mut self.storage {
            DraftStorage::Private(own) => own.extend_from_slice(bytes),
            DraftStorage::Shared(room) => room.write_at(bytes, self.len),
        }
        self.len = len;
        Ok(())
    }

    /// Overwrites bytes of the message that were appended before, from byte `offset` on. Use it for a length field at
    /// the start, for example, once the length is known.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if `bytes` would reach past the [end](Self::len); [`Error::Forked`]. After an error
    /// nothing was written.
    pub fn write_at(&mut self, bytes: &[u8], offset: usize) -> Result<(), Error> {
        self.channel.end.born.check()?;
        let len = self.len;
        if len.checked_sub(offset).is_none_or(|room| bytes.len() > room) {
            return Err(Error::OutOfRange { len });
        }
        match &mut self.storage {
            DraftStorage::Private(own) => own[offset..][..bytes.len()].copy_from_slice(bytes),
            DraftStorage::Shared(room) => room.write_at(bytes, offset),
        }
        Ok(())
    }

    /// Appends a handle to the message.
    pub fn handle(&mut self, handle: impl Into<Handle>) {
        self.handles.push(handle.into());
    }

    fn make_room(&mut self, len: usize) -> Result<(), Error> {
        let options = &self.channel.end.options;
        let doubled = len.saturating_mul(2).min(options.max_message);
        match &mut self.storage {
            // Each time the private memory would have to grow, the draft tries to move to a block.
            DraftStorage::Private(own) if len > options.inline_limit() && len > own.capacity() => {
                // SAFETY: the draft drops the room before the reference that keeps the channel alive.
                let channel = unsafe { self.channel.get() };
                if let Ok(mut room) = channel.reserve(doubled, Deadline::NOW) {
                    room.write_at(own, 0);
                    self.storage = DraftStorage::Shared(room);
                    return Ok(());
                }
                own.try_reserve(doubled - own.len()).map_err(|_| Error::NoMemory { call: "memory for a draft" })
            }
            DraftStorage::Private(own) => {
                own.try_reserve(len - own.len()).map_err(|_| Error::NoMemory { call: "memory for a draft" })
            }
            DraftStorage::Shared(room) if len <= room.len() => Ok(()),
            DraftStorage::Shared(room) => {
                let mut own = match room.enlarge(doubled, self.len)? {
                    None => return Ok(()),
                    Some(own) => own,
                };
                let reserved = own.try_reserve(doubled - own.len());
                self.storage = DraftStorage::Private(own);
                reserved.map_err(|_| Error::NoMemory { call: "memory for a draft" })
            }
        }
    }

    /// Sends the message; waits for room until the deadline.
    ///
    /// # Errors
    /// The errors of [`Channel::send_by`]. The error contains the handles; the bytes are lost.
    pub fn send(self, deadline: impl Into<Deadline>) -> Result<(), SendError> {
        match self.storage {
            DraftStorage::Private(own) => self.channel.send_by(Outgoing::new(&own).handles(self.handles), deadline),
            DraftStorage::Shared(room) => room.commit_with(self.len, self.handles, deadline.into()).map(drop),
        }
    }
}

/// Each `write` appends all of its bytes to the message, or none.
impl<K> io::Write for Draft<'_, K> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.append(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
