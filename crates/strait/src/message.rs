//! Messages: what is sent, and what was received.

use std::io::IoSlice;
use std::sync::Arc;

use crate::account::holding_back;
use crate::error::Error;
use crate::fork;
use crate::handle::Handle;
use crate::origin::{Origin, Reported};
use crate::shm::Mapping;

/// A message to send: borrowed bytes, in one piece or several, and handles that go with them.
///
/// Anything that is just bytes converts: `channel.send(b"hello")`.
///
/// ```
/// use std::fs::File;
/// use strait::{Channel, Outgoing};
///
/// let (a, b) = Channel::pair()?;
/// let file = File::open("/dev/null").expect("/dev/null");
/// a.send(Outgoing::new(b"a file").handle(file))?;
///
/// let mut message = b.recv()?;
/// assert_eq!(message.bytes(), b"a file");
/// assert_eq!(message.take_handles()?.len(), 1);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Outgoing<'a> {
    pub(crate) parts: Parts<'a>,
    pub(crate) handles: Vec<Handle>,
}

/// The bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts<'a> {
    One(&'a [u8]),
    Many(&'a [IoSlice<'a>]),
}

impl<'a> Parts<'a> {
    /// Bytes in all; `None` if their number overflows.
    #[inline]
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::One(bytes) => Some(bytes.len()),
            Self::Many(parts) => {
                // Whether it could overflow is looked at once: a branch for each part costs as much as copying a short one.
                let add =
                    |(sum, bits): (usize, usize), part: &IoSlice<'_>| (sum.wrapping_add(part.len()), bits | part.len());
                let (sum, bits) = parts.iter().fold((0, 0), add);
                match (bits | parts.len()) >> (usize::BITS / 2) {
                    0 => Some(sum),
                    _ => parts.iter().try_fold(0usize, |sum, part| sum.checked_add(part.len())),
                }
            }
        }
    }

    /// Hands out the parts in order, each with its place in the message.
    #[inline]
    pub(crate) fn each<E>(&self, mut take: impl FnMut(usize, &'a [u8]) -> Result<(), E>) -> Result<(), E> {
        match *self {
            Self::One(bytes) => take(0, bytes),
            Self::Many(parts) => {
                let mut at = 0;
                for part in parts {
                    take(at, part)?;
                    at += part.len();
                }
                Ok(())
            }
        }
    }
}

impl<'a> Outgoing<'a> {
    /// A message of these bytes; none are a message too.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { parts: Parts::One(bytes), handles: Vec::new() }
    }

    /// A message of all these bytes, one part after the other. They are gathered straight into shared memory.
    pub fn vectored(parts: &'a [IoSlice<'a>]) -> Self {
        Self { parts: Parts::Many(parts), handles: Vec::new() }
    }

    /// Adds a handle.
    #[must_use]
    pub fn handle(mut self, handle: impl Into<Handle>) -> Self {
        self.handles.push(handle.into());
        self
    }

    /// Adds handles.
    #[must_use]
    pub fn handles(mut self, handles: impl IntoIterator<Item = Handle>) -> Self {
        self.handles.extend(handles);
        self
    }
}

impl<'a> From<&'a [u8]> for Outgoing<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::new(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for Outgoing<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::new(bytes)
    }
}

impl<'a> From<&'a Vec<u8>> for Outgoing<'a> {
    #[inline]
    fn from(bytes: &'a Vec<u8>) -> Self {
        Self::new(bytes)
    }
}

impl<'a> From<&'a str> for Outgoing<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self::new(text.as_bytes())
    }
}

impl<'a> From<&'a [IoSlice<'a>]> for Outgoing<'a> {
    #[inline]
    fn from(parts: &'a [IoSlice<'a>]) -> Self {
        Self::vectored(parts)
    }
}

/// The handles of a received message.
#[derive(Debug, Default)]
pub(crate) struct Arrived {
    pub(crate) handles: Vec<Handle>,
    /// The error, if some did not arrive.
    pub(crate) lost: Option<Error>,
}

impl Arrived {
    #[inline]
    fn is_empty(&self) -> bool {
        self.handles.capacity() == 0 && self.lost.is_none()
    }

    /// All that arrived, whatever was lost.
    pub(crate) fn into_handles(mut self) -> Vec<Handle> {
        std::mem::take(&mut self.handles)
    }

    pub(crate) fn take(&mut self) -> Result<Vec<Handle>, Error> {
        match self.lost {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut self.handles)),
        }
    }
}

impl Drop for Arrived {
    #[inline]
    fn drop(&mut self) {
        if !self.handles.is_empty() {
            crate::closing::close_all(std::mem::take(&mut self.handles));
        }
    }
}

/// A received message: its bytes, which nobody else can change, and its handles.
///
/// Dropping it closes the handles that were not taken. [`Channel::recv_to`](crate::Channel::recv_to) reuses one, with
/// its memory; [`Channel::forward`](crate::Channel::forward) sends it on.
///
/// The bytes are in memory of this process. Those of a large message that its sender has
/// [sealed](crate::Channel::reserve_sealed) stay where they are, since they cannot change there; then one descriptor is kept
/// as long as the message is.
#[derive(Debug, Default)]
pub struct Message {
    /// Empty if they are `sealed`.
    pub(crate) bytes: Vec<u8>,
    pub(crate) sealed: Option<Sealed>,
    pub(crate) arrived: Arrived,
    pub(crate) origin: Origin,
}

/// Bytes of a message in memory that cannot change.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) len: usize,
}

impl Sealed {
    fn bytes(&self) -> &[u8] {
        assert!(!fork::in_child(), "{}", Error::Forked);
        self.mapping.immutable_bytes(self.len)
    }
}

impl Message {
    /// An empty one, to receive into.
    pub fn new() -> Self {
        Self::default()
    }

    /// One of these bytes and handles, as if it had been received: to be [put back](crate::Channel::put_back), or to test with.
    pub fn from_parts(bytes: Vec<u8>, handles: Vec<Handle>) -> Self {
        Self { bytes, sealed: None, arrived: Arrived { handles, lost: None }, origin: Origin::NOWHERE }
    }

    /// Makes it empty; keeps its memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.origin = Origin::NOWHERE;
        if !self.arrived.is_empty() || self.sealed.is_some() {
            self.drop_arrived();
        }
    }

    /// Apart, since it looks at what is the thread's own, which a shared library has to ask for by a call.
    #[cold]
    #[inline(never)]
    fn drop_arrived(&mut self) {
        self.sealed = None;
        // An end in there is closed, and the channel that is received from may be locked.
        holding_back(|| self.arrived = Arrived::default());
    }

    /// Takes its bytes into memory that is only its own.
    pub(crate) fn own_bytes(&mut self) {
        if let Some(sealed) = self.sealed.take() {
            self.bytes.extend_from_slice(sealed.bytes());
        }
    }

    /// Its bytes.
    ///
    /// # Panics
    /// In the child of a `fork`, if they are a large message's that its sender has sealed: the child does not have the memory.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.sealed {
            None => &self.bytes,
            Some(sealed) => sealed.bytes(),
        }
    }

    /// Its bytes, without a copy; with one, if they are a large message's that its sender has sealed.
    ///
    /// # Panics
    /// As [`Message::bytes`].
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.own_bytes();
        std::mem::take(&mut self.bytes)
    }

    /// Its handles, in the order in which they were sent; none if they were taken, or [did not arrive](Error::HandlesLost).
    pub fn handles(&self) -> &[Handle] {
        &self.arrived.handles
    }

    /// Takes its handles, in the order in which they were sent; none if they were taken before.
    ///
    /// # Errors
    /// [`Error::HandlesLost`] if this process had too few free descriptors when the message arrived. Those that did
    /// arrive were closed; the bytes are intact.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.arrived.take()
    }

    /// Reports that the message is not what its sender may send: closes the link to that process, and with it every channel
    /// to it over that link, all of whose calls then fail with [`Error::BadPeer`] and this reason. The sender sees *peer
    /// closed*. [`on_bad_peer`](crate::on_bad_peer) is told, before this returns.
    ///
    /// For parsers of what an untrusted process sends: the message knows over which link it came, so that the report needs no
    /// channel, and one made from deep within a program hits the right process. See [`Reported`] for where there is no link
    /// to close.
    ///
    /// ```
    /// let (theirs, ours) = strait::Channel::pair()?;
    /// theirs.send(b"no number")?;
    /// let message = ours.recv()?;
    /// if str::from_utf8(message.bytes()).ok().and_then(|text| text.parse::<u32>().ok()).is_none() {
    ///     // Within one process there is no link: the caller is told so.
    ///     assert_eq!(message.report_bad("not a number"), strait::Reported::Within);
    /// }
    /// # Ok::<(), strait::Error>(())
    /// ```
    ///
    /// # Cost
    /// Nothing for messages that are not reported.
    pub fn report_bad(&self, why: &'static str) -> Reported {
        self.origin.report(why)
    }
}

/// What came with a message that was received into a buffer of the caller's.
#[derive(Debug)]
pub struct Received {
    pub(crate) len: usize,
    pub(crate) arrived: Arrived,
    pub(crate) origin: Origin,
}

impl Received {
    /// Bytes of the message, now at the front of the buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the message had no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether handles came with it that were not taken yet, or [did not arrive](Error::HandlesLost): then taking them tells.
    #[inline]
    pub fn has_handles(&self) -> bool {
        !self.arrived.handles.is_empty() || self.arrived.lost.is_some()
    }

    /// As [`Message::take_handles`].
    ///
    /// # Errors
    /// As there.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.arrived.take()
    }

    /// As [`Message::report_bad`].
    pub fn report_bad(&self, why: &'static str) -> Reported {
        self.origin.report(why)
    }
}
