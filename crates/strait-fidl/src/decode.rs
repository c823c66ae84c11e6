//! Decoding.

use std::fmt;
use std::vec;

use strait::Message;

use crate::error::{Code, Error};
use crate::handle::RawHandle;
use crate::header::Header;
use crate::layout::{Context, Decode, padded};

/// The presence word of an object.
pub(crate) const PRESENT: u64 = u64::MAX;

/// Decodes a value from the bytes and the handles of a message. The value may borrow the bytes (`&[u8]`, `&str`,
/// [`Elements`](crate::Elements)), so nobody may change the bytes. The bytes of a [`Message`] and of a sealed view in
/// place do not change.
///
/// The memory of the value is proportional to the number of bytes.
///
/// # Errors
/// The bytes and handles are not the encoding of a value; see [`Code`]. All handles are closed.
#[inline]
pub fn decode<'m, T: Decode<'m>>(bytes: &'m [u8], handles: impl Into<Vec<RawHandle>>) -> Result<T, Error> {
    Decoder::new(bytes, handles.into()).decode()
}

/// Decodes a value from a received message, and takes the handles out of the message.
///
/// # Errors
/// As for [`decode`]. [`Code::TooFewHandles`] if handles of the message were lost on their way. The handles of the
/// message are closed without blocking.
pub fn decode_message<'m, T: Decode<'m>>(message: &'m mut Message) -> Result<T, Error> {
    let handles = take_handles(message)?;
    decode(message.bytes(), handles)
}

/// Decodes a message of a protocol: the header, and behind it the value.
///
/// # Errors
/// As for [`decode_message`]; [`Code::InvalidHeader`] if the message does not begin with a header of this format.
pub fn decode_call<'m, T: Decode<'m>>(message: &'m mut Message) -> Result<(Header, T), Error> {
    let handles = take_handles(message)?;
    let (header, body) = Header::split(message.bytes())?;
    Ok((header, decode(body, handles).map_err(|error| error.behind(Header::LEN))?))
}

fn take_handles(message: &mut Message) -> Result<Vec<RawHandle>, Error> {
    let handles = message.take_unclaimed().map_err(|_| Error::new(Code::TooFewHandles, 0))?;
    Ok(handles.into_iter().map(RawHandle::Received).collect())
}

/// A message being decoded, for use by [`Decode::decode`].
pub struct Decoder<'m> {
    bytes: &'m [u8],
    /// The offset of the next object to which a pointer leads.
    next: usize,
    handles: vec::IntoIter<RawHandle>,
    skipped: usize,
}

impl fmt::Debug for Decoder<'_> {
    /// Prints the sizes, not the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, next, handles, skipped } = self;
        f.debug_struct("Decoder")
            .field("len", &bytes.len())
            .field("next", next)
            .field("handles", &handles.len())
            .field("skipped", skipped)
            .finish()
    }
}

impl<'m> Decoder<'m> {
    /// Creates a decoder of a message's bytes and handles.
    #[inline]
    pub fn new(bytes: &'m [u8], handles: Vec<RawHandle>) -> Self {
        Self { bytes, next: 0, handles: handles.into_iter(), skipped: 0 }
    }

    /// Decodes the value of the message.
    ///
    /// # Errors
    /// As for [`decode`](fn@decode).
    #[inline]
    pub fn decode<T: Decode<'m>>(mut self) -> Result<T, Error> {
        self.decode_whole()
    }

    /// Decodes the value of the message, and counts the envelopes in tables and unions whose encoding is not part of
    /// the value: envelopes of unknown fields, which were skipped, and absent envelopes at the end of a table. If the
    /// count is 0, encoding the value gives the same bytes again.
    ///
    /// # Errors
    /// As for [`decode`](fn@decode).
    pub fn decode_counting<T: Decode<'m>>(mut self) -> Result<(T, usize), Error> {
        let value = self.decode_whole()?;
        Ok((value, self.skipped))
    }

    #[inline]
    fn decode_whole<T: Decode<'m>>(&mut self) -> Result<T, Error> {
        if self.bytes.len() < padded(T::SIZE) {
            return Err(Error::new(Code::TooFewBytesInPrimaryObject, self.bytes.len()));
        }
        let at = self.object(T::SIZE)?;
        let value = T::decode(self, at, Context::ROOT)?;
        if self.next != self.bytes.len() {
            return Err(Error::new(Code::TooManyBytesInMessage, self.next));
        }
        if self.handles.len() > 0 {
            return Err(Error::new(Code::TooManyHandlesInMessage, self.next));
        }
        Ok(value)
    }

    /// Takes the next object, the target of a pointer, and checks its padding. Returns the object's offset.
    #[inline]
    pub(crate) fn object(&mut self, size: usize) -> Result<usize, Error> {
        let at = self.next;
        if size > self.bytes.len() - at || padded(size) > self.bytes.len() - at {
            return Err(Error::new(Code::TooFewBytes, at));
        }
        self.next = at + padded(size);
        self.zeros(at + size, self.next)?;
        Ok(at)
    }

    /// Checks that the bytes between two offsets are zero.
    #[inline]
    pub(crate) fn zeros(&self, from: usize, to: usize) -> Result<(), Error> {
        match self.bytes.get(from..to).and_then(|padding| padding.iter().position(|&byte| byte != 0)) {
            None => Ok(()),
            Some(index) => Err(Error::new(Code::InvalidPaddingByte, from + index)),
        }
    }

    /// Returns bytes of the message.
    #[inline]
    pub(crate) fn bytes(&self, at: usize, len: usize) -> Result<&'m [u8], Error> {
        self.bytes.get(at..).and_then(|rest| rest.get(..len)).ok_or_else(|| Error::new(Code::TooFewBytes, at))
    }

    /// Returns a fixed number of bytes of the message.
    #[inline]
    pub(crate) fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], Error> {
        let rest = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        rest.copied().ok_or_else(|| Error::new(Code::TooFewBytes, at))
    }

    #[inline]
    pub(crate) fn u32(&self, at: usize) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.array(at)?))
    }

    #[inline]
    pub(crate) fn u64(&self, at: usize) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.array(at)?))
    }

    /// Returns the offset of the next object.
    #[inline]
    pub(crate) fn next(&self) -> usize {
        self.next
    }

    /// Returns the number of bytes not yet taken by an object.
    #[inline]
    pub(crate) fn bytes_left(&self) -> usize {
        self.bytes.len() - self.next
    }

    /// Skips bytes whose presence was already checked.
    #[inline]
    pub(crate) fn skip_bytes(&mut self, len: usize) {
        self.next += len;
    }

    /// Returns the number of handles not yet taken by a value.
    #[inline]
    pub(crate) fn handles_left(&self) -> usize {
        self.handles.len()
    }

    /// Takes the next handle.
    #[inline]
    pub(crate) fn take_handle(&mut self) -> Option<RawHandle> {
        self.handles.next()
    }

    /// Counts an envelope that does not become part of the value.
    #[inline]
    pub(crate) fn count_skipped(&mut self) {
        self.skipped += 1;
    }
}
