//! The bytes of a message under construction.

use std::fmt;
use std::io;

use strait::view::Draft;
use strait::{Channel, Deadline, Handle, Outgoing};

/// The length in bytes of a window. A message that grows beyond it is built in the memory where the peer reads it.
/// Shorter messages are built in the window, and copied once by the send.
pub(crate) const SMALL: usize = 64 << 10;

/// A piece of at least this number of bytes that does not fit into the window goes straight into the memory beyond.
/// Smaller pieces are collected first.
const PIECE: usize = 4 << 10;

/// The memory for collecting bytes. A thread reuses the memory from message to message.
pub(crate) type Window = Box<[u8; SMALL]>;

/// Creates a window. The kernel provides a page of it once the page is used.
#[cold]
pub(crate) fn new_window() -> Window {
    let bytes: Box<[u8]> = vec![0; SMALL].into();
    bytes.try_into().unwrap_or_else(|_| unreachable!("as many bytes as a window has"))
}

/// The bytes of a message under construction. A codec writes them with [`Output::put`], or as to an [`io::Write`].
///
/// A short message is collected in memory that the thread reuses. A message of more than 64 KiB moves to shared memory
/// while it is built ([`Channel::draft`]), so that the send copies nothing.
pub struct Output<'c> {
    window: Window,
    /// The number of bytes that were collected in the window.
    filled: usize,
    beyond: Beyond<'c>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").finish_non_exhaustive()
    }
}

/// The bytes of a message before the bytes in the window.
pub(crate) struct Beyond<'c> {
    channel: Option<&'c Channel>,
    /// `None` if all bytes of the message are in the window.
    begun: Option<Box<Begun<'c>>>,
}

/// The beginning of a message that is longer than a window.
struct Begun<'c> {
    /// The message in shared memory, if it has a channel.
    draft: Option<Draft<'c>>,
    /// The bytes of a message without a channel.
    bytes: Vec<u8>,
    failed: Option<strait::Error>,
}

/// The place of the next byte of a message. Serializers pass the cursor on by value, so that it stays in registers.
pub(crate) struct Cursor<'o, 'c> {
    window: &'o mut [u8; SMALL],
    filled: usize,
    beyond: &'o mut Beyond<'c>,
}

impl<'c> Output<'c> {
    /// Creates an empty message for `channel`, whose bytes are collected in `window`. Without a channel all of the
    /// message stays in private memory.
    #[inline]
    pub(crate) fn new(window: Window, channel: Option<&'c Channel>) -> Self {
        Self { window, filled: 0, beyond: Beyond { channel, begun: None } }
    }

    /// Appends bytes to the message.
    ///
    /// # Errors
    /// [`Full`] if the message is longer than the options of the channel allow, or there is no memory for it. The
    /// channel then reports the reason when the encoding ends.
    #[inline]
    pub fn put(&mut self, bytes: &[u8]) -> Result<(), Full> {
        self.write_with(|cursor| cursor.put(bytes))
    }

    /// Appends a byte to the message.
    ///
    /// # Errors
    /// As [`Output::put`].
    #[inline]
    pub fn put_byte(&mut self, byte: u8) -> Result<(), Full> {
        self.write_with(|cursor| cursor.put_word::<1>(byte.into()))
    }

    /// Appends everything that `write` writes to the cursor.
    #[inline(always)]
    pub(crate) fn write_with<'o, E>(
        &'o mut self,
        write: impl FnOnce(Cursor<'o, 'c>) -> Result<Cursor<'o, 'c>, E>,
    ) -> Result<(), E> {
        let Self { window, filled, beyond } = self;
        *filled = write(Cursor { window, filled: *filled, beyond })?.filled;
        Ok(())
    }

    /// Returns the error of the channel that has ended the encoding, if any.
    pub(crate) fn failed(&self) -> Option<strait::Error> {
        self.beyond.begun.as_ref().and_then(|begun| begun.failed)
    }

    /// Returns the bytes of the message, if all of them are in the window.
    #[inline(always)]
    pub(crate) fn short(&self) -> Option<&[u8]> {
        if self.beyond.begun.is_none() { self.window.get(..self.filled) } else { None }
    }

    /// Returns the window of the message, for the next one.
    #[inline(always)]
    pub(crate) fn into_window(self) -> Window {
        let Self { window, beyond, .. } = self;
        match beyond.begun {
            Some(begun) => drop_begun(begun),
            // Tells the compiler that nothing has to be dropped.
            None => std::mem::forget(beyond),
        }
        window
    }

    /// Returns the bytes of a message without a channel.
    pub(crate) fn bytes(&mut self) -> &[u8] {
        match &mut self.beyond.begun {
            None => &self.window[..self.filled],
            Some(begun) => {
                begun.bytes.extend_from_slice(&self.window[..self.filled]);
                self.filled = 0;
                &begun.bytes
            }
        }
    }

    /// Sends the message over its channel with the given handles; waits for room until the deadline.
    #[inline]
    pub(crate) fn send(
        &mut self,
        channel: &Channel,
        handles: Vec<Handle>,
        deadline: Deadline,
    ) -> Result<(), strait::SendError> {
        if self.beyond.begun.is_some() {
            return self.send_draft(handles, deadline);
        }
        let bytes = &self.window[..self.filled];
        if handles.is_empty() {
            return channel.send_by(bytes, deadline);
        }
        channel.send_by(Outgoing::new(bytes).handles(handles), deadline)
    }

    #[cold]
    fn send_draft(&mut self, handles: Vec<Handle>, deadline: Deadline) -> Result<(), strait::SendError> {
        let appended = self.beyond.append(&self.window[..self.filled]);
        let begun = self.beyond.begun.take();
        let failed = begun.as_ref().and_then(|begun| begun.failed);
        match (begun.and_then(|begun| begun.draft), appended) {
            (Some(mut draft), Ok(())) => {
                handles.into_iter().for_each(|handle| draft.handle(handle));
                draft.send(deadline)
            }
            _ => {
                let error = failed.unwrap_or(strait::Error::NoMemory { call: "memory for a draft" });
                Err(strait::SendError { error, handles })
            }
        }
    }
}

#[cold]
fn drop_begun(begun: Box<Begun<'_>>) {
    drop(begun);
}

impl Beyond<'_> {
    /// Appends bytes to the message, behind all others except those in the window.
    fn append(&mut self, bytes: &[u8]) -> Result<(), Full> {
        let Self { channel, begun } = self;
        let begun = begun.get_or_insert_with(|| {
            Box::new(Begun { draft: channel.map(Channel::draft), bytes: Vec::new(), failed: None })
        });
        let appended = match &mut begun.draft {
            Some(draft) => draft.append(bytes),
            None => match begun.bytes.try_reserve(bytes.len()) {
                Ok(()) => {
                    begun.bytes.extend_from_slice(bytes);
                    Ok(())
                }
                Err(_) => Err(strait::Error::NoMemory { call: "memory for a message" }),
            },
        };
        appended.map_err(|error| {
            begun.failed = Some(error);
            Full
        })
    }
}

impl Cursor<'_, '_> {
    /// Appends bytes to the message.
    #[inline(always)]
    pub(crate) fn put(self, bytes: &[u8]) -> Result<Self, Full> {
        let end = self.filled + bytes.len();
        match self.window.get_mut(self.filled..end) {
            Some(place) => {
                place.copy_from_slice(bytes);
                Ok(Self { filled: end, ..self })
            }
            None => self.put_beyond(bytes),
        }
    }

    /// Appends the lowest `N` bytes of `word` to the message, the lowest first. `N` is at most 8.
    #[inline(always)]
    pub(crate) fn put_word<const N: usize>(self, word: u64) -> Result<Self, Full> {
        let filled = self.filled;
        if filled > SMALL - N {
            // Only here the word needs a place in memory.
            return self.put_word_beyond(word, N);
        }
        self.window[filled..filled + N].copy_from_slice(&word.to_le_bytes()[..N]);
        Ok(Self { filled: filled + N, ..self })
    }

    #[cold]
    #[inline(always)]
    fn put_word_beyond(self, word: u64, len: usize) -> Result<Self, Full> {
        let Self { window, filled, beyond } = self;
        let filled = word_beyond(window, filled, beyond, word, len)?;
        Ok(Self { window, filled, beyond })
    }

    #[cold]
    #[inline(always)]
    fn put_beyond(self, bytes: &[u8]) -> Result<Self, Full> {
        let Self { window, filled, beyond } = self;
        let filled = bytes_beyond(window, filled, beyond, bytes)?;
        Ok(Self { window, filled, beyond })
    }
}

/// Appends the lowest `len` bytes of `word`, for which the window has no room. Returns how much of the window is filled
/// then. The arguments are single words, so that a cursor stays in registers.
#[cold]
#[inline(never)]
fn word_beyond(
    window: &mut [u8; SMALL],
    filled: usize,
    beyond: &mut Beyond<'_>,
    word: u64,
    len: usize,
) -> Result<usize, Full> {
    bytes_beyond(window, filled, beyond, &word.to_le_bytes()[..len])
}

/// Appends bytes for which the window has no room: empties the window first. Returns how much of the window is filled
/// then.
#[cold]
#[inline(never)]
fn bytes_beyond(window: &mut [u8; SMALL], filled: usize, beyond: &mut Beyond<'_>, bytes: &[u8]) -> Result<usize, Full> {
    beyond.append(&window[..filled])?;
    if bytes.len() < PIECE {
        window[..bytes.len()].copy_from_slice(bytes);
        return Ok(bytes.len());
    }
    beyond.append(bytes)?;
    Ok(0)
}

/// The error of an [`Output`] without room for more bytes.
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
