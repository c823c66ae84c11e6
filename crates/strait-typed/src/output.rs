//! The bytes of a message under construction.

use std::io;

use strait::view::Draft;
use strait::{Channel, Deadline, Handle, Outgoing};

/// A message that grows beyond this number of bytes is built in the memory where the peer reads it. Shorter messages
/// are built in memory that this thread reuses, and copied once by the send.
pub(crate) const SMALL: usize = 64 << 10;

/// A piece of at least this number of bytes goes straight into a message that is being built in shared memory.
/// Smaller pieces are collected first.
const PIECE: usize = 4 << 10;

/// The first size in bytes of the memory in which short messages are collected.
const FIRST: usize = 4 << 10;

/// The bytes of a message under construction. A codec writes them with [`Output::put`], or as to an [`io::Write`].
///
/// A short message is collected in memory that the thread reuses. A message of more than 64 KiB moves to shared memory
/// while it is built ([`Channel::draft`]), so that the send copies nothing.
pub struct Output<'c> {
    /// Memory into which the bytes are collected. All of it is initialised, so it is longer than what was collected.
    buffer: Vec<u8>,
    /// The number of bytes that were collected.
    collected: usize,
    channel: Option<&'c Channel>,
    draft: Option<Draft<'c>>,
    failed: Option<strait::Error>,
}

impl<'c> Output<'c> {
    /// Creates an empty message for `channel`, whose bytes replace those in `buffer`. Without a channel all of the
    /// message stays in the buffer.
    #[inline]
    pub(crate) fn new(buffer: Vec<u8>, channel: Option<&'c Channel>) -> Self {
        Self { buffer, collected: 0, channel, draft: None, failed: None }
    }

    /// Appends bytes to the message.
    ///
    /// # Errors
    /// [`Full`] if the message is longer than the options of the channel allow, or there is no memory for it. The
    /// channel then reports the reason when the encoding ends.
    #[inline(always)]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        match self.buffer.get_mut(self.collected..).and_then(|free| free.get_mut(..bytes.len())) {
            Some(place) => place.copy_from_slice(bytes),
            None => return self.put_beyond(bytes),
        }
        self.collected += bytes.len();
        Ok(())
    }

    /// Appends one byte to the message.
    ///
    /// # Errors
    /// As [`Output::put`].
    #[inline(always)]
    pub fn put_byte(&mut self, byte: u8) -> Result<(), Full> {
        match self.buffer.get_mut(self.collected) {
            Some(place) => *place = byte,
            None => return self.put_beyond(&[byte]),
        }
        self.collected += 1;
        Ok(())
    }

    /// Appends bytes for which the buffer has no room: makes it larger, or goes on in shared memory.
    #[cold]
    fn put_beyond(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let len = self.collected + bytes.len();
        match self.channel {
            Some(channel) if len > SMALL => self.put_shared(channel, bytes),
            _ => {
                self.buffer.resize(len.next_power_of_two().max(FIRST), 0);
                self.put(bytes)
            }
        }
    }

    fn put_shared(&mut self, channel: &'c Channel, bytes: &[u8]) -> Result<(), Full> {
        self.draft.get_or_insert_with(|| channel.draft());
        self.flush_buffer()?;
        if bytes.len() < PIECE { self.put(bytes) } else { self.append(bytes) }
    }

    /// Moves the collected bytes to the draft.
    fn flush_buffer(&mut self) -> Result<(), Full> {
        let buffer = std::mem::take(&mut self.buffer);
        let appended = self.append(&buffer[..self.collected]);
        self.buffer = buffer;
        self.collected = 0;
        appended
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let Some(draft) = &mut self.draft else { return Ok(()) };
        draft.append(bytes).map_err(|error| {
            self.failed = Some(error);
            Full
        })
    }

    /// Returns the error of the channel that has ended the encoding, if any.
    pub(crate) fn failed(&self) -> Option<strait::Error> {
        self.failed
    }

    /// Returns the memory of the message, for the next one.
    #[inline]
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
    }

    /// Returns the bytes of a message without a channel.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.buffer[..self.collected]
    }

    /// Returns the bytes of a message without a channel, in memory of their own.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        let mut bytes = self.buffer;
        bytes.truncate(self.collected);
        bytes
    }

    /// Sends the message over its channel with these handles; waits for room until the deadline.
    #[inline]
    pub(crate) fn send(
        &mut self,
        channel: &Channel,
        handles: Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), strait::SendError> {
        if self.draft.is_some() {
            return self.send_draft(handles, deadline);
        }
        let bytes = &self.buffer[..self.collected];
        if handles.is_empty() {
            return channel.send_by(bytes, deadline);
        }
        channel.send_by(Outgoing::new(bytes).handles(handles), deadline)
    }

    #[cold]
    fn send_draft(&mut self, handles: Vec<Handle>, deadline: Deadline) -> Result<(), strait::SendError> {
        let flushed = self.flush_buffer();
        match (self.draft.take(), flushed) {
            (Some(mut draft), Ok(())) => {
                handles.into_iter().for_each(|handle| draft.handle(handle));
                draft.send(deadline)
            }
            _ => {
                let error = self.failed.unwrap_or(strait::Error::NoMemory { call: "memory for a draft" });
                Err(strait::SendError { error, handles })
            }
        }
    }
}

/// The error of an [`Output`] that takes no more bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl std::fmt::Display for Full {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the message is too long, or there is no memory for it")
    }
}

impl std::error::Error for Full {}

impl io::Write for Output<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.put(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    #[inline]
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes).map_err(io::Error::other)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
