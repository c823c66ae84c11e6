//! Messages: what is sent, and what was received.

use std::io::IoSlice;
use std::sync::Arc;

use crate::channel::handle::Handle;
use crate::channel::origin::{Origin, Reported};
use crate::channel::value::{Lazy, Value};
use crate::error::Error;
use crate::os::fd_reaper::Untaken;
use crate::quota::{Payer, holding_back, tell};
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

/// What came with the bytes of a received message, or in place of them. Most messages have nothing but bytes: so it is one word, that
/// they are small and nothing is to be done when they are dropped.
#[derive(Debug, Default)]
pub(crate) struct Arrived(Option<Box<Beside>>);

/// What a message has but bytes.
#[derive(Debug, Default)]
pub(crate) struct Beside {
    handles: Untaken,
    /// The error, if some handles did not arrive.
    lost: Option<Error>,
    /// What the message is, if that is a value: then it has neither handles nor bytes.
    value: Option<Lazy>,
    /// Its bytes, if they lie in memory that cannot change.
    sealed: Option<Sealed>,
}

/// A message that is a value, on its way within this process.
pub(crate) type Valued = Box<Beside>;

/// Bytes of a message in memory that cannot change.
#[derive(Debug)]
pub(crate) struct Sealed {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) len: usize,
}

impl Sealed {
    fn bytes(&self) -> &[u8] {
        assert!(!self.mapping.is_elsewhere(), "{}", Error::Forked);
        self.mapping.immutable_bytes(self.len)
    }
}

impl Arrived {
    pub(crate) const NONE: Self = Self(None);

    pub(crate) fn new(handles: Untaken, lost: Option<Error>) -> Self {
        if handles.is_empty() && lost.is_none() {
            return Self::NONE;
        }
        Self(Some(Box::new(Beside { handles, lost, ..Beside::default() })))
    }

    pub(crate) fn of_handles(handles: Untaken) -> Self {
        Self::new(handles, None)
    }

    pub(crate) fn of_lost(lost: Error) -> Self {
        Self::new(Untaken::default(), Some(lost))
    }

    pub(crate) fn of_value(value: Valued) -> Self {
        Self(Some(value))
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn handles(&self) -> &[Handle] {
        self.0.as_ref().map_or(&[], |beside| &beside.handles)
    }

    /// Gives it handles, if it has none.
    pub(crate) fn set_handles(&mut self, handles: Untaken) {
        if !handles.is_empty() {
            self.0.get_or_insert_default().handles = handles;
        }
    }

    /// The peer that sent its handles.
    pub(crate) fn payer(&self) -> Payer {
        self.0.as_ref().map(|beside| beside.handles.payer().clone()).unwrap_or_default()
    }

    /// The error, if some handles did not arrive.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.0.as_ref()?.lost
    }

    /// What the message is, if that is a value.
    pub(crate) fn value(&self) -> Option<&Lazy> {
        self.0.as_ref()?.value.as_ref()
    }

    /// Takes it, if it is a value.
    pub(crate) fn take_valued(&mut self) -> Option<Valued> {
        self.value()?;
        self.0.take()
    }

    /// The same, back.
    pub(crate) fn put_valued(&mut self, value: Option<Valued>) {
        self.0 = value.or_else(|| self.0.take());
    }

    /// Its bytes, if they lie in memory that cannot change.
    pub(crate) fn sealed(&self) -> Option<&Sealed> {
        self.0.as_ref()?.sealed.as_ref()
    }

    pub(crate) fn set_sealed(&mut self, sealed: Sealed) {
        self.0.get_or_insert_default().sealed = Some(sealed);
    }

    pub(crate) fn take_sealed(&mut self) -> Option<Sealed> {
        self.0.as_mut()?.sealed.take()
    }

    /// All that arrived, whatever was lost. A value is dropped, where that may be.
    pub(crate) fn into_handles(mut self) -> Untaken {
        // What else there is is put aside: the caller may hold locks.
        self.0.take().map(|beside| beside.handles).unwrap_or_default()
    }

    /// Turns a value into handles, which it has from now on, and these bytes. The value's own code runs.
    pub(crate) fn turn(&mut self) -> Option<Vec<u8>> {
        let (bytes, handles) = self.take_valued()?.value?.into_parts();
        self.set_handles(Untaken::new(handles, Payer::default()));
        Some(bytes)
    }

    /// Apart, since what is dropped may be anything.
    #[cold]
    #[inline(never)]
    fn let_go(&mut self) {
        let Some(beside) = self.0.take() else { return };
        let Beside { handles, value, .. } = *beside;
        drop(handles);
        if value.is_some() {
            drop(value);
            tell();
        }
    }

    pub(crate) fn take(&mut self) -> Result<Vec<Handle>, Error> {
        match &mut self.0 {
            None => Ok(Vec::new()),
            Some(beside) => match beside.lost {
                Some(error) => Err(error),
                None => {
                    let handles = beside.handles.take();
                    if beside.sealed.is_none() && beside.value.is_none() {
                        self.0 = None;
                    }
                    Ok(handles)
                }
            },
        }
    }
}

impl Beside {
    pub(crate) fn valued(value: Lazy) -> Valued {
        Box::new(Self { value: Some(value), ..Self::default() })
    }

    /// How many bytes it holds, as it says, if it is a value.
    pub(crate) fn size(&self) -> usize {
        self.value.as_ref().map_or(0, Lazy::size)
    }
}

impl Drop for Arrived {
    // As with ends in there: who drops one with a lock held, holds back what is told.
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            self.let_go();
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
    /// Empty if they are sealed, or the message is a value.
    pub(crate) bytes: Vec<u8>,
    pub(crate) arrived: Arrived,
    pub(crate) origin: Origin,
}

impl Message {
    pub(crate) const EMPTY: Self = Self { bytes: Vec::new(), arrived: Arrived::NONE, origin: Origin::NOWHERE };

    /// [`Error::Forked`] if its bytes lie in memory that only the parent of this process has.
    pub(crate) fn check_fork(&self) -> Result<(), Error> {
        let elsewhere = self.arrived.sealed().is_some_and(|sealed| sealed.mapping.is_elsewhere());
        if elsewhere { Err(Error::Forked) } else { Ok(()) }
    }

    /// An empty one, to receive into.
    pub fn new() -> Self {
        Self::default()
    }

    /// One of these bytes and handles, as if it had been received: to be [put back](crate::Channel::put_back), or to test with.
    pub fn from_parts(bytes: Vec<u8>, handles: Vec<Handle>) -> Self {
        Self { bytes, arrived: Arrived::of_handles(Untaken::new(handles, Payer::default())), ..Self::EMPTY }
    }

    /// One that is this value, to be [sent](crate::Channel::forward).
    pub fn from_value(value: impl Value) -> Self {
        Self { arrived: Arrived::of_value(Beside::valued(Lazy::new(value))), ..Self::EMPTY }
    }

    /// Whether it is a value of this type, which can be [taken](Self::take_value).
    pub fn is_value<T: Value>(&self) -> bool {
        self.arrived.value().is_some_and(Lazy::is::<T>)
    }

    /// Takes the [value](Value) that the message is; then the message is empty. `None`, and the message is as it was, if
    /// it is a value of another type, or bytes: since it came from another process, or was turned into bytes already.
    pub fn take_value<T: Value>(&mut self) -> Option<T> {
        let value = self.arrived.value()?.take()?;
        self.arrived.take_valued();
        Some(value)
    }

    /// Makes it empty; keeps its memory.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.origin = Origin::NOWHERE;
        if self.has_more_than_bytes() {
            self.drop_arrived();
        }
    }

    /// The same where no lock is held: what is in there is dropped at once.
    #[inline]
    pub(crate) fn clear_and_tell(&mut self) {
        let tells = self.has_more_than_bytes();
        self.clear();
        if tells {
            tell();
        }
    }

    /// Whether it has handles or memory or is a value, which are let go when it is cleared.
    #[inline]
    pub(crate) fn has_more_than_bytes(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Apart, since it looks at what is the thread's own, which a shared library has to ask for by a call.
    #[cold]
    #[inline(never)]
    fn drop_arrived(&mut self) {
        // An end in there is closed, and the channel that is received from may be locked.
        holding_back(|| self.arrived = Arrived::default());
    }

    /// Takes its bytes into memory that is only its own.
    #[inline]
    pub(crate) fn own_bytes(&mut self) {
        if let Some(sealed) = self.arrived.take_sealed() {
            self.bytes.extend_from_slice(sealed.bytes());
        }
    }

    /// Turns a value into bytes and handles. The value's own code runs.
    pub(crate) fn turn(&mut self) {
        if let Some(bytes) = self.arrived.turn() {
            self.bytes = bytes;
        }
    }

    /// Its bytes. If it is a [value](Value) it is turned into bytes and handles by this, once.
    ///
    /// # Panics
    /// In the child of a `fork`, if they are a large message's that its sender has sealed: the child does not have the memory.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &self.arrived.0 {
            None => &self.bytes,
            Some(_) => self.bytes_elsewhere(),
        }
    }

    fn bytes_elsewhere(&self) -> &[u8] {
        match (self.arrived.sealed(), self.arrived.value()) {
            (None, None) => &self.bytes,
            (Some(sealed), _) => sealed.bytes(),
            (None, Some(value)) => &value.parts().0,
        }
    }

    /// Its bytes, without a copy; with one, if they are a large message's that its sender has sealed.
    ///
    /// # Panics
    /// As [`Message::bytes`].
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.turn();
        self.own_bytes();
        std::mem::take(&mut self.bytes)
    }

    /// Its handles, in the order in which they were sent; none if they were taken, or [did not arrive](Error::HandlesLost). A value
    /// is turned into bytes and handles, as by [`Message::bytes`].
    pub fn handles(&self) -> &[Handle] {
        match self.arrived.value() {
            None => self.arrived.handles(),
            Some(value) => &value.parts().1,
        }
    }

    /// Takes its handles, in the order in which they were sent; none if they were taken before. A value is turned into bytes and
    /// handles, as by [`Message::bytes`].
    ///
    /// # Errors
    /// [`Error::HandlesLost`] if this process had too few free descriptors when the message arrived. Those that did
    /// arrive were closed; the bytes are intact.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.turn();
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
        !self.arrived.handles().is_empty() || self.arrived.lost().is_some()
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
