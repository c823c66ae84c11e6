//! Reading messages from a channel.

use strait::Message;

use super::wire::{self, RECORD};
use super::{CHANGES, Chan, Inner};
use crate::abi::*;
use crate::status::{Result, Status};
use crate::table::{Entry, For, Table, table};
use crate::user::Out;
use std::sync::atomic::Ordering;

/// The caller's memory for a message: the bytes, the handles, and both numbers.
pub(crate) struct Destination<'a> {
    pub(crate) bytes: Out<'a, u8>,
    pub(crate) handles: HandlesOut<'a>,
    pub(crate) actual_bytes: Out<'a, u32>,
    pub(crate) actual_handles: Out<'a, u32>,
}

/// The caller's array for handles.
#[derive(Clone, Copy)]
pub(crate) enum HandlesOut<'a> {
    /// An array of handles, of `zx_channel_read`.
    Plain(Out<'a, zx_handle_t>),
    /// An array of handles with their types and rights, of `zx_channel_read_etc`.
    Infos(Out<'a, zx_handle_info_t>),
}

impl HandlesOut<'_> {
    /// Returns the number of handles with room.
    #[inline]
    fn len(&self) -> usize {
        match self {
            Self::Plain(out) => out.len(),
            Self::Infos(out) => out.len(),
        }
    }

    /// Checks that there is an array.
    ///
    /// # Errors
    /// `INVALID_ARGS` if the array is null.
    fn check(&self) -> Result<()> {
        let is_missing = match self {
            Self::Plain(out) => out.is_null(),
            Self::Infos(out) => out.is_null(),
        };
        if is_missing { Err(Status::INVALID_ARGS) } else { Ok(()) }
    }

    /// Adds the entries to the handle table, and writes their handles to the array.
    ///
    /// # Errors
    /// `NO_MEMORY` if the table is full. Then no handle was added.
    fn deliver(&self, entries: Vec<Entry>) -> Result<()> {
        let mut made = Vec::with_capacity(entries.len());
        for entry in entries {
            let (rights, type_) = (entry.rights, entry.object.type_());
            match table().add(entry) {
                Ok(handle) => made.push(zx_handle_info_t { handle, type_, rights, unused: 0 }),
                Err(error) => {
                    for info in made {
                        let _ = crate::object::close_handle(info.handle);
                    }
                    return Err(error);
                }
            }
        }
        for (index, info) in made.into_iter().enumerate() {
            match self {
                Self::Plain(out) => out.set(index, info.handle),
                Self::Infos(out) => out.set(index, info),
            }
        }
        Ok(())
    }
}

impl Destination<'_> {
    /// Writes a message that fits to the caller's memory.
    pub(crate) fn deliver(&mut self, mut message: Message) -> Result<()> {
        let payload = message.bytes().len() - message.handles().len() * RECORD;
        if message.handles().is_empty() {
            return self.bytes.fill(&message.bytes()[..payload]);
        }
        self.bytes.fill(&message.bytes()[..payload])?;
        self.handles.check()?;
        // The handles are made last, so that an earlier failure leaves none behind.
        self.handles.deliver(wire::unpack_all(&mut message)?)
    }

    /// Returns whether there is room for a message of the given size.
    pub(crate) fn fits(&self, bytes: usize, handles: usize) -> bool {
        bytes <= self.bytes.len() && handles <= self.handles.len()
    }

    /// Writes the size of a message to the caller's memory, if the caller wants it.
    #[inline]
    pub(crate) fn tell_sizes(&self, bytes: usize, handles: usize) {
        self.actual_bytes.set_if_wanted(bytes as u32);
        self.actual_handles.set_if_wanted(handles as u32);
    }
}

/// `zx_channel_read` and `zx_channel_read_etc`.
#[inline]
pub(crate) fn read(handle: zx_handle_t, options: u32, destination: &mut Destination<'_>) -> Result<()> {
    if let Some(entry) = table().glance(handle, For::Reading)
        && let Some(result) = read_open(&entry, options, destination)
    {
        return result;
    }
    read_counted(handle, options, destination)
}

/// Reads from an end whose receiving side is only the ring; `None` if there is more to do.
#[inline(always)]
fn read_open(entry: &Entry, options: u32, destination: &mut Destination<'_>) -> Option<Result<()>> {
    let chan = entry.object.channel().ok()?;
    if entry.need(ZX_RIGHT_READ).is_err() || options & !ZX_CHANNEL_READ_MAY_DISCARD != 0 {
        return None;
    }
    chan.read_bytes(destination)
}

/// Reads under the reading lock.
#[inline(never)]
fn read_counted(handle: zx_handle_t, options: u32, destination: &mut Destination<'_>) -> Result<()> {
    let entry = table().get_kept(handle, Table::get_to_read)?;
    let chan = entry.object.channel()?;
    entry.need(ZX_RIGHT_READ)?;
    if options & !ZX_CHANNEL_READ_MAY_DISCARD != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    if !chan.slow.load(Ordering::Relaxed)
        && let Some(result) = chan.read_bytes(destination)
    {
        entry.warm(For::Reading);
        return result;
    }
    let message = chan.read_slowly(handle, options, destination)?;
    // A message may have handles, and adding them uses other slots of the table. So the use of this slot ends first.
    drop(entry);
    destination.deliver(message)
}

impl Chan {
    /// Reads a message without handles directly from the ring, or reports that there is no message; `None` if another
    /// case needs the slow path. Needs no reading lock, as long as no holder of that lock does more than such a read.
    #[inline(always)]
    fn read_bytes(&self, destination: &mut Destination<'_>) -> Option<Result<()>> {
        let buffer = destination.bytes.buffer(ZX_CHANNEL_MAX_MSG_BYTES as usize);
        match self.strait().try_recv_bytes(buffer) {
            Ok(Some(len)) => {
                destination.tell_sizes(len, 0);
                Some(Ok(()))
            }
            Err(strait::Error::WouldBlock) => Some(Err(Status::SHOULD_WAIT)),
            Ok(None) | Err(_) => None,
        }
    }

    /// Takes the message to be read, from the queue or from the ring, and informs observers.
    #[inline(never)]
    fn read_slowly(&self, handle: zx_handle_t, options: u32, destination: &Destination<'_>) -> Result<Message> {
        let inner = self.inner();
        let was_full = inner.is_full();
        let read = self.take_front(inner, options, destination);
        // A signal that is gone can come anew. If the queue was full, there is room in it now for the next messages of
        // the ring, which may be answers to calls.
        if !inner.observers.is_empty() || (was_full && !inner.calls.is_empty()) {
            self.tell(inner, handle);
        }
        self.settle(inner);
        read
    }

    /// Takes the first message of the queue, and fills the queue from the ring if it is empty.
    ///
    /// # Errors
    /// `BUFFER_TOO_SMALL` if the message does not fit; the message stays, unless the options ask to discard it.
    /// `NO_RESOURCES` if handles of the message got lost; the message is gone.
    fn take_front(&self, inner: &mut Inner, options: u32, destination: &Destination<'_>) -> Result<Message> {
        while inner.queue.is_empty() {
            if inner.changes == CHANGES {
                return Err(Status::SHOULD_WAIT);
            }
            self.pull(inner)?;
        }
        let front = inner.queue.front_mut().expect("looked at just now");
        if wire::has_lost_handles(front) {
            drop(inner.pop());
            return Err(Status::NO_RESOURCES);
        }
        let handles = front.handles().len();
        let bytes = wire::payload(front.bytes().len(), handles).expect("checked when it was received");
        destination.tell_sizes(bytes, handles);
        if !destination.fits(bytes, handles) {
            if options & ZX_CHANNEL_READ_MAY_DISCARD != 0 {
                drop(inner.pop());
            }
            return Err(Status::BUFFER_TOO_SMALL);
        }
        Ok(inner.pop().expect("looked at just now"))
    }
}
