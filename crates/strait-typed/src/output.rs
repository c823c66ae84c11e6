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

/// The bytes of a message under construction. A codec writes them with [`Output::put`], or as to an [`io::Write`].
///
/// A short message is collected in memory that the thread reuses. A message of more than 64 KiB moves to shared memory
/// while it is built ([`Channel::draft`]), so that the send copies nothing.
pub struct Output<'c> {
    buffer: Vec<u8>,
    channel: Option<&'c Channel>,
    draft: Option<Draft<'c>>,
    failed: Option<strait::Error>,
}

impl<'c> Output<'c> {
    /// Creates an empty message for `channel`, which begins in `buffer`. Without a channel all of the message stays in
    /// the buffer.
    pub(crate) fn new(mut buffer: Vec<u8>, channel: Option<&'c Channel>) -> Self {
        buffer.clear();
        Self { buffer, channel, draft: None, failed: None }
    }

    /// Appends bytes to the message.
    ///
    /// # Errors
    /// [`Full`] if the message is longer than the options of the channel allow, or there is no memory for it. The
    /// channel then reports the reason when the encoding ends.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        if self.buffer.len() + bytes.len() > SMALL {
            return self.put_shared(bytes);
        }
        self.buffer.extend_from_slice(bytes);
        Ok(())
    }

    /// Appends one byte to the message.
    ///
    /// # Errors
    /// As [`Output::put`].
    #[inline]
    pub fn put_byte(&mut self, byte: u8) -> Result<(), Full> {
        if self.buffer.len() >= SMALL {
            return self.put_shared(&[byte]);
        }
        self.buffer.push(byte);
        Ok(())
    }

    #[cold]
    fn put_shared(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let Some(channel) = self.channel else {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        };
        self.draft.get_or_insert_with(|| channel.draft());
        self.flush_buffer()?;
        if bytes.len() < PIECE {
            self.buffer.extend_from_slice(bytes);
            return Ok(());
        }
        self.append(bytes)
    }

    /// Moves the collected bytes to the draft.
    fn flush_buffer(&mut self) -> Result<(), Full> {
        let buffer = std::mem::take(&mut self.buffer);
        let appended = self.append(&buffer);
        self.buffer = buffer;
        self.buffer.clear();
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

    /// Returns the bytes; for a message without a channel, all bytes.
    pub(crate) fn into_buffer(self) -> Vec<u8> {
        self.buffer
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
        if handles.is_empty() {
            return channel.send_by(&self.buffer, deadline);
        }
        channel.send_by(Outgoing::new(&self.buffer).handles(handles), deadline)
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
