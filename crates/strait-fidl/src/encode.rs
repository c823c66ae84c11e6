//! Encoding.

use std::fmt;
use std::io::IoSlice;

use strait::{Channel, Outgoing};

use crate::error::{Code, Error};
use crate::handle::{RawHandle, Slot};
use crate::header::Header;
use crate::layout::{Context, Encode, padded};
use crate::memory::Parts;

/// Which bytes of a value an encoder leaves in the caller's memory.
///
/// An encoder copies a value into its own memory, except for the bodies of some strings and vectors: if the memory of a
/// body is its encoding (as in a vector of numbers), the body can become a part of the message without a copy. The last
/// one to seven bytes of such a body are copied, with the padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gather {
    /// The greatest number of parts of a message, at least 1. With fewer than 3, everything is copied.
    pub parts: usize,
    /// The number of bytes from which on a body is not copied.
    pub threshold: usize,
}

impl Gather {
    /// A single part, with everything copied.
    pub const LINEAR: Self = Self { parts: 1, threshold: usize::MAX };

    /// At most 16 parts, and no threshold, as the C++ library of Fuchsia has it.
    pub const FUCHSIA: Self = Self { parts: 16, threshold: 1 };
}

impl Default for Gather {
    /// At most 16 parts, for bodies of 512 bytes or more: below, a part costs about as much as copying it.
    fn default() -> Self {
        Self { parts: 16, threshold: 512 }
    }
}

/// Encodes values. An encoder keeps its memory from one value to the next, so that only a value larger than all before
/// needs an allocation.
///
/// ```
/// use strait::Channel;
/// use strait_fidl::{Encoder, Fidl, decode};
///
/// #[derive(Debug, PartialEq, Fidl)]
/// struct Frame {
///     number: u32,
///     pixels: Vec<u8>,
/// }
///
/// let (a, b) = Channel::pair()?;
/// let frame = Frame { number: 7, pixels: vec![0x80; 4096] };
/// let mut encoder = Encoder::new();
/// let encoded = encoder.encode(&frame)?;
/// // The first part has the number and the length; the second part is the memory of `pixels`.
/// assert_eq!((encoded.len(), encoded.parts().len()), (4120, 2));
/// assert_eq!(encoded.parts()[1].as_ptr(), frame.pixels.as_ptr());
/// encoded.send(&a)?;
///
/// let message = b.recv()?;
/// assert_eq!(decode::<Frame>(message.bytes(), [])?, frame);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Default)]
pub struct Encoder {
    own: Vec<u8>,
    parts: Parts,
    ends: Vec<usize>,
    gather: Gather,
}

impl Encoder {
    /// Creates an encoder with [`Gather::default`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an encoder with the given `gather`.
    pub fn gathering(gather: Gather) -> Self {
        Self { gather, ..Self::default() }
    }

    /// Encodes a value. Handles stay in the value until the message is sent.
    ///
    /// # Errors
    /// The value is not one of its FIDL type: too long, too deep, or a handle was sent already. Nothing has changed.
    #[inline]
    pub fn encode<'e, T: Encode + ?Sized>(&'e mut self, value: &'e T) -> Result<Encoded<'e>, Error> {
        self.own.clear();
        self.output().finish(value)
    }

    /// Encodes a message of a protocol: the header, and behind it the value.
    ///
    /// # Errors
    /// As for [`Encoder::encode`].
    #[inline]
    pub fn message<'e, T: Encode + ?Sized>(&'e mut self, header: Header, value: &'e T) -> Result<Encoded<'e>, Error> {
        self.own.clear();
        self.own.extend_from_slice(&header.encode());
        self.output().finish(value)
    }

    /// Returns an output behind the encoder's own bytes, without parts.
    #[inline]
    fn output(&mut self) -> Output<'_> {
        self.ends.clear();
        let Self { own, parts, ends, gather } = self;
        Output { own, gather: *gather, parts: parts.start(), ends, open: 0, borrowed: 0, handles: Vec::new() }
    }
}

/// Encodes a value without handles into a single piece of memory.
///
/// # Errors
/// As for [`Encoder::encode`]; [`Code::TooManyHandlesInMessage`] if the value has handles, which then stay in the
/// value.
pub fn to_vec<T: Encode + ?Sized>(value: &T) -> Result<Vec<u8>, Error> {
    let mut encoder = Encoder::gathering(Gather::LINEAR);
    let encoded = encoder.encode(value)?;
    if encoded.handle_count() > 0 {
        return Err(Error::new(Code::TooManyHandlesInMessage, 0));
    }
    Ok(encoder.own)
}

/// The placeholder in the list of parts for the encoder's own bytes, which may still move. All other parts have bytes.
const OWN: &[u8] = &[];

/// The encoded beginning of a message, extended by [`Encode::encode`].
pub struct Output<'v> {
    own: &'v mut Vec<u8>,
    gather: Gather,
    /// The parts, without the open part of own bytes.
    parts: &'v mut Vec<IoSlice<'v>>,
    /// Where the parts of own bytes end.
    ends: &'v mut Vec<usize>,
    /// Where the part of own bytes that is still open begins.
    open: usize,
    /// The bytes of all borrowed parts.
    borrowed: usize,
    handles: Vec<&'v Slot>,
}

impl fmt::Debug for Output<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Output").field("len", &self.len()).field("handles", &self.handles.len()).finish()
    }
}

impl<'v> Output<'v> {
    #[inline]
    fn finish<T: Encode + ?Sized>(mut self, value: &'v T) -> Result<Encoded<'v>, Error> {
        let at = self.object(T::SIZE);
        value.encode(&mut self, at, Context::ROOT)?;
        let len = self.len();
        self.close();
        let own: &'v [u8] = self.own;
        let mut begin = 0;
        let places = self.parts.iter_mut().filter(|part| part.is_empty());
        for (part, &end) in places.zip(self.ends.iter()) {
            *part = IoSlice::new(&own[begin..end]);
            begin = end;
        }
        Ok(Encoded { parts: self.parts, len, handles: self.handles })
    }

    /// Ends the part of own bytes, if not empty.
    #[inline]
    fn close(&mut self) {
        if self.own.len() > self.open {
            self.open = self.own.len();
            self.parts.push(IoSlice::new(OWN));
            self.ends.push(self.open);
        }
    }

    /// Returns the number of bytes so far.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.own.len() + self.borrowed
    }

    /// Returns the number of handles so far.
    #[inline]
    pub(crate) fn handles(&self) -> usize {
        self.handles.len()
    }

    /// Creates an error of the object at a place of the output.
    #[cold]
    pub(crate) fn error(&self, code: Code, at: usize) -> Error {
        let (mut before, mut ends) = (0, self.ends.iter());
        for part in self.parts.iter() {
            match part.len() {
                0 if ends.next().is_some_and(|&end| at < end) => break,
                len => before += len,
            }
        }
        Error::new(code, at + before)
    }

    /// Returns the context for an object, given the place of the object that points to it.
    #[inline]
    pub(crate) fn deeper(&self, context: Context, at: usize) -> Result<Context, Error> {
        context.deeper(at).map_err(|error| self.error(error.code(), at))
    }

    /// Adds an object of zeros behind all others, with padding. Returns the place of the object.
    #[inline]
    pub(crate) fn object(&mut self, size: usize) -> usize {
        /// Objects of at most this many bytes are zeroed without a call.
        const SHORT: [u8; 64] = [0; 64];
        let at = self.own.len();
        match SHORT.get(..padded(size)) {
            Some(zeros) => self.own.extend_from_slice(zeros),
            None => self.own.resize(at + padded(size), 0),
        }
        at
    }

    /// Adds an object of these bytes behind all others: as a part of the message, or copied.
    #[inline]
    pub(crate) fn body(&mut self, bytes: &'v [u8]) {
        let whole = bytes.len() & !7;
        if whole == 0 || bytes.len() < self.gather.threshold || self.parts.len() + 2 >= self.gather.parts {
            return self.copy(bytes);
        }
        self.close();
        let (bytes, tail) = bytes.split_at(whole);
        self.parts.push(IoSlice::new(bytes));
        self.borrowed += whole;
        if !tail.is_empty() {
            self.copy(tail);
        }
    }

    /// Adds an object with a copy of the bytes behind all others, with padding.
    #[inline]
    fn copy(&mut self, bytes: &[u8]) {
        self.own.extend_from_slice(bytes);
        let padded = padded(self.own.len());
        if padded > self.own.len() {
            self.own.resize(padded, 0);
        }
    }

    /// Writes bytes into an object.
    #[inline]
    pub(crate) fn put(&mut self, at: usize, bytes: &[u8]) {
        self.own[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Adds the handle of a slot.
    #[inline]
    pub(crate) fn handle(&mut self, slot: &'v Slot) {
        self.handles.push(slot);
    }
}

/// An encoded value: bytes, some of which lie in the memory of the value, and handles, which are still in the value.
pub struct Encoded<'e> {
    parts: &'e [IoSlice<'e>],
    len: usize,
    handles: Vec<&'e Slot>,
}

impl fmt::Debug for Encoded<'_> {
    /// Prints the sizes, not the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sizes: Vec<usize> = self.parts().iter().map(|part| part.len()).collect();
        f.debug_struct("Encoded").field("parts", &sizes).field("handles", &self.handles.len()).finish()
    }
}

impl<'e> Encoded<'e> {
    /// Returns the bytes of the message, in parts.
    pub fn parts(&self) -> &[IoSlice<'e>] {
        self.parts
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the message has no bytes. It always has some.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of handles.
    pub fn handle_count(&self) -> usize {
        self.handles.len()
    }

    /// Returns the bytes in a single piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.parts().iter().flat_map(|part| part.iter().copied()).collect()
    }

    /// Sends the message over a channel, as [`Channel::send`] does. The parts are copied straight into the channel's
    /// memory, and the handles leave the value.
    ///
    /// # Errors
    /// The message was not sent; the handles are in the value again.
    #[inline]
    pub fn send(&self, channel: &Channel) -> Result<(), SendError> {
        self.send_with(|message| channel.send(message))
    }

    /// Sends the message by a call of your choice: `encoded.send_with(|message| channel.send_by(message, deadline))`.
    ///
    /// # Errors
    /// As for [`Encoded::send`].
    #[inline]
    pub fn send_with<F>(&self, send: F) -> Result<(), SendError>
    where
        F: FnOnce(Outgoing<'_>) -> Result<(), strait::SendError>,
    {
        let message = Outgoing::vectored(self.parts());
        if self.handles.is_empty() {
            return send(message).map_err(|error| SendError::Channel(error.error));
        }
        self.send_handles(message, send)
    }

    fn send_handles<F>(&self, message: Outgoing<'_>, send: F) -> Result<(), SendError>
    where
        F: FnOnce(Outgoing<'_>) -> Result<(), strait::SendError>,
    {
        let taken = self.take_handles().map_err(SendError::Handles)?;
        let mut handles = Vec::with_capacity(taken.len());
        let mut rest = taken.into_iter();
        while let Some(handle) = rest.next() {
            match handle.into_strait() {
                Ok(handle) => handles.push(handle),
                Err(other) => {
                    let taken = handles.into_iter().map(RawHandle::Strait).chain([other]).chain(rest);
                    self.put_back(taken);
                    return Err(SendError::Handles(Error::new(Code::IncorrectHandleType, 0)));
                }
            }
        }
        send(message.handles(handles)).map_err(|failed| {
            self.put_back(failed.handles.into_iter().map(RawHandle::Strait));
            SendError::Channel(failed.error)
        })
    }

    /// Takes all handles out of the value, for a message sent by other means than this crate.
    ///
    /// # Errors
    /// [`Code::NonNullableTypeWithNullValue`] if the value has a handle twice, or another thread has taken a handle.
    /// Then all handles are back in their places.
    pub fn take_handles(&self) -> Result<Vec<RawHandle>, Error> {
        let mut taken = Vec::with_capacity(self.handles.len());
        for slot in &self.handles {
            match slot.take() {
                Some(handle) => taken.push(handle),
                None => {
                    self.put_back(taken);
                    return Err(Error::new(Code::NonNullableTypeWithNullValue, 0));
                }
            }
        }
        Ok(taken)
    }

    /// Puts handles back into the value, in the order of taking.
    pub fn put_back(&self, handles: impl IntoIterator<Item = RawHandle>) {
        for (slot, handle) in self.handles.iter().zip(handles) {
            slot.put(handle);
        }
    }
}

/// The reason why an encoded value was not sent. Its handles are in the value again.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SendError {
    /// A handle of the value cannot be sent: the value has it twice, or it is of the other kind of channels.
    Handles(Error),
    /// The channel did not take the message.
    Channel(strait::Error),
}

impl fmt::Display for SendError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handles(error) => write!(f, "a handle of the value cannot be sent: {}", error.code()),
            Self::Channel(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for SendError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Handles(error) => Some(error),
            Self::Channel(error) => Some(error),
        }
    }
}
