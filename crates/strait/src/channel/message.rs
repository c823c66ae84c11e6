//! Messages: [`Outgoing`] to send, [`Message`] and [`Received`] as received.

use std::any::Any;
use std::fmt;
use std::io::IoSlice;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use crate::channel::buffer::Buffer;
use crate::channel::handle::Handle;
use crate::channel::origin::Origin;
use crate::channel::unclaimed::{self, UnclaimedHandle, UnclaimedHandles};
use crate::channel::value::{Lazy, Value};
use crate::deferred;
use crate::error::Error;
use crate::lane::in_transit::LaneUser;
use crate::lane::mailbox::Parcel;
use crate::peer::Peer;
use crate::quota::Payer;
use crate::quota::Reported;
use crate::shm::Mapping;

/// A message to send: borrowed bytes, in one piece or several, and handles.
///
/// Everything that is just bytes converts into an `Outgoing`: `channel.send(b"hello")`.
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
pub struct Outgoing<'a> {
    pub(crate) parts: Parts<'a>,
    pub(crate) handles: Vec<Handle>,
}

impl fmt::Debug for Outgoing<'_> {
    /// Prints the sizes of the message, not the bytes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing").field("len", &self.parts.len()).field("handles", &self.handles).finish()
    }
}

/// The bytes of a message to be sent, in one piece or in several parts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Parts<'a> {
    One(&'a [u8]),
    Many(&'a [IoSlice<'a>]),
}

impl<'a> Parts<'a> {
    /// Returns the number of bytes of all parts together; `None` if that number overflows a `usize`.
    #[inline]
    pub(crate) fn len(&self) -> Option<usize> {
        match self {
            Self::One(bytes) => Some(bytes.len()),
            Self::Many(parts) => {
                // One test for all parts finds whether the sum could overflow: a branch for each part costs as much
                // as copying a short part.
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

    /// Calls `take` for each part in order; the first argument is the byte offset of the part in the message. Stops at
    /// the first error and returns that error.
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
    /// Creates a message to be sent, of these bytes and no handles. An empty message is allowed.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { parts: Parts::One(bytes), handles: Vec::new() }
    }

    /// Creates a message to be sent, of all these parts, joined, without handles. Sending copies the parts straight
    /// into shared memory.
    pub fn vectored(parts: &'a [IoSlice<'a>]) -> Self {
        Self { parts: Parts::Many(parts), handles: Vec::new() }
    }

    /// Returns the bytes of a message in one piece whose list of handles is empty and owns no memory; `None` for any
    /// other message.
    #[inline(always)]
    pub(crate) fn only_bytes(&self) -> Option<&'a [u8]> {
        match self.parts {
            Parts::One(bytes) if self.handles.capacity() == 0 => Some(bytes),
            _ => None,
        }
    }

    /// Adds a handle to the message, behind the handles already added.
    #[must_use]
    pub fn handle(mut self, handle: impl Into<Handle>) -> Self {
        self.handles.push(handle.into());
        self
    }

    /// Adds handles to the message, in order, behind the handles already added.
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

/// The content of a received message besides its bytes: handles, sealed memory, a value. Most messages have only bytes.
/// For such a message this one pointer is null: the message stays small and costs nothing to drop.
///
/// The pointer is dropped by [`Drop`] alone: a drop of a message without extras is one look at the pointer, without a
/// call.
#[derive(Debug, Default)]
pub(crate) struct ReceivedExtras(ManuallyDrop<Option<Box<MessageExtras>>>);

/// The allocated part of [`ReceivedExtras`]: handles, a value, or the sealed memory of a received message.
#[derive(Debug, Default)]
pub(crate) struct MessageExtras {
    handles: UnclaimedHandles,
    /// [`Error::HandlesLost`] if some handles of the message did not arrive; otherwise `None`.
    lost: Option<Error>,
    /// The value, if the message is a value. Such a message has neither handles nor bytes until the value is turned
    /// into bytes and handles.
    value: Option<Lazy>,
    /// The sealed memory with the bytes of the message, if the bytes were not copied into private memory.
    sealed: Option<Sealed>,
}

/// The [`MessageExtras`] of a message that is a value. A send within this process takes the extras out of the message,
/// and puts the extras back if the send fails.
pub(crate) type Valued = Box<MessageExtras>;

/// The bytes of a received message, in sealed memory that no process can change.
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

impl ReceivedExtras {
    pub(crate) const NONE: Self = Self(ManuallyDrop::new(None));

    pub(crate) fn new(handles: UnclaimedHandles, lost: Option<Error>) -> Self {
        if handles.is_empty() && lost.is_none() {
            return Self::NONE;
        }
        Self::of_local(Box::new(MessageExtras { handles, lost, ..MessageExtras::default() }))
    }

    pub(crate) fn of_handles(handles: UnclaimedHandles) -> Self {
        Self::new(handles, None)
    }

    pub(crate) fn of_lost(lost: Error) -> Self {
        Self::new(UnclaimedHandles::default(), Some(lost))
    }

    /// Returns the extras of a value message, or of a message with handles from this process.
    pub(crate) fn of_local(extras: Box<MessageExtras>) -> Self {
        Self(ManuallyDrop::new(Some(extras)))
    }

    #[inline]
    fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    pub(crate) fn handles(&self) -> &[Handle] {
        self.0.as_ref().map_or(&[], |beside| &beside.handles)
    }

    /// Sets the handles of the message. Does nothing if `handles` is empty.
    pub(crate) fn set_handles(&mut self, handles: UnclaimedHandles) {
        if !handles.is_empty() {
            self.0.get_or_insert_default().handles = handles;
        }
    }

    /// Returns the account of the peer process that sent the message's handles. Returns the empty payer, which charges
    /// no peer, if the message has only bytes.
    pub(crate) fn payer(&self) -> Payer {
        self.0.as_ref().map(|beside| beside.handles.payer().clone()).unwrap_or_default()
    }

    /// Returns [`Error::HandlesLost`] if some handles of the message did not arrive; otherwise `None`.
    pub(crate) fn lost(&self) -> Option<Error> {
        self.0.as_ref()?.lost
    }

    /// Returns the value, if the message is a value; otherwise `None`.
    pub(crate) fn value(&self) -> Option<&Lazy> {
        self.0.as_ref()?.value.as_ref()
    }

    /// Takes out and returns the extras with the value of a value message. Returns `None`, and changes nothing, if the
    /// message is not a value.
    pub(crate) fn take_valued(&mut self) -> Option<Valued> {
        self.value()?;
        self.0.take()
    }

    /// Puts the extras with the value, which [`ReceivedExtras::take_valued`] has returned, back into the message.
    /// `None` changes nothing.
    pub(crate) fn put_valued(&mut self, value: Option<Valued>) {
        *self.0 = value.or_else(|| self.0.take());
    }

    /// Returns the sealed memory in which the bytes of the message lie; `None` if they lie in private memory.
    pub(crate) fn sealed(&self) -> Option<&Sealed> {
        self.0.as_ref()?.sealed.as_ref()
    }

    pub(crate) fn set_sealed(&mut self, sealed: Sealed) {
        self.0.get_or_insert_default().sealed = Some(sealed);
    }

    pub(crate) fn take_sealed(&mut self) -> Option<Sealed> {
        self.0.as_mut()?.sealed.take()
    }

    /// Returns the handles of the message that arrived, also if others were lost. If the message is a value, drops the
    /// value; its destructor is deferred.
    pub(crate) fn into_handles(mut self) -> UnclaimedHandles {
        // The destructor of a value is deferred, since the caller may hold locks.
        self.0.take().map(|beside| beside.handles).unwrap_or_default()
    }

    /// Turns a message that is a value into bytes and handles: returns the bytes, and stores the handles in the
    /// message. `None` if the message is not a value. Runs the value's own code, so the caller holds no lock.
    pub(crate) fn turn(&mut self) -> Option<Vec<u8>> {
        let (bytes, handles) = self.take_valued()?.value?.into_parts();
        self.set_handles(UnclaimedHandles::new(handles, Payer::default()));
        Some(bytes)
    }

    /// Drops the message's handles, sealed memory or value; if there was a value, runs deferred destructors and
    /// callbacks. A separate function, so that the code for dropping an empty message stays small.
    #[cold]
    #[inline(never)]
    fn let_go(&mut self) {
        let Some(beside) = self.0.take() else { return };
        let MessageExtras { handles, value, .. } = *beside;
        drop(handles);
        if value.is_some() {
            drop(value);
            deferred::run();
        }
    }

    /// Takes the handle with this index out of the message; the handles behind it move up. Returns `None` if the
    /// message has fewer handles.
    pub(crate) fn take_one(&mut self, index: usize) -> Result<Option<Handle>, Error> {
        let Some(beside) = &mut *self.0 else { return Ok(None) };
        beside.lost.map_or_else(|| Ok(beside.handles.take_one(index)), Err)
    }

    /// Takes the handles out of the message; each closes without blocking until the program claims the handle.
    pub(crate) fn take_unclaimed(&mut self) -> Result<Vec<UnclaimedHandle>, Error> {
        let payer = self.payer();
        Ok(UnclaimedHandles::new(self.take()?, payer).into_each())
    }

    pub(crate) fn take(&mut self) -> Result<Vec<Handle>, Error> {
        match &mut *self.0 {
            None => Ok(Vec::new()),
            Some(beside) => match beside.lost {
                Some(error) => Err(error),
                None => {
                    let handles = beside.handles.take();
                    if beside.sealed.is_none() && beside.value.is_none() {
                        *self.0 = None;
                    }
                    Ok(handles)
                }
            },
        }
    }
}

impl MessageExtras {
    pub(crate) fn valued(value: Lazy) -> Valued {
        Box::new(Self { value: Some(value), ..Self::default() })
    }

    /// Returns the extras of a message to an end in this process with these handles.
    pub(crate) fn with_handles(handles: Vec<Handle>) -> Box<Self> {
        Box::new(Self { handles: UnclaimedHandles::new(handles, Payer::default()), ..Self::default() })
    }

    /// Returns the message's extras that `parcel` is. Nothing else lies in the mailbox of this process.
    pub(crate) fn of_parcel(parcel: Box<dyn Parcel>) -> Box<Self> {
        let parcel: Box<dyn Any> = parcel;
        parcel.downcast().expect("only messages leave parcels")
    }

    /// Takes out and returns the handles of these extras.
    pub(crate) fn take_handles(&mut self) -> Vec<Handle> {
        self.handles.take()
    }

    /// Returns the size in bytes that the value reports ([`Value::size`]); 0 if the message is not a value.
    pub(crate) fn value_size(&self) -> usize {
        self.value.as_ref().map_or(0, Lazy::size)
    }
}

impl Parcel for MessageExtras {
    fn len(&self) -> usize {
        if self.is_value() { 1 } else { self.handles.len() }
    }

    fn is_value(&self) -> bool {
        self.value.is_some()
    }

    fn size(&self) -> usize {
        self.value_size()
    }

    fn ends(&self) -> Vec<Arc<dyn LaneUser>> {
        let ends = self.handles.iter().filter_map(Handle::as_end);
        ends.map(|end| Arc::clone(end) as Arc<dyn LaneUser>).collect()
    }

    fn close(self: Box<Self>) {
        unclaimed::close_left(self.handles);
    }
}

impl Drop for ReceivedExtras {
    // A caller that drops a message with a lock held defers callbacks and destructors, as it does for dropped ends.
    #[inline]
    fn drop(&mut self) {
        if self.0.is_some() {
            self.let_go();
        }
    }
}

/// A received message: bytes, unchangeable for other processes, and handles.
///
/// Dropping a message closes the handles that were not taken. [`Channel::recv_message`](crate::Channel::recv_message)
/// reuses a message with its memory; [`Channel::forward`](crate::Channel::forward) sends it on.
///
/// The bytes are in memory of this process. If the sender has [sealed](crate::Channel::reserve_sealed) a large message,
/// the bytes stay in the sealed memory, where no process can change them; the message then keeps one descriptor open.
///
/// ```
/// use strait::{Channel, Outgoing};
/// let (a, b) = Channel::pair()?;
/// a.send(Outgoing::new(b"a file").handle(std::fs::File::open("/dev/null").expect("a file")))?;
/// let mut message = b.recv()?;
/// assert_eq!((message.bytes(), message.handles().len()), (b"a file".as_slice(), 1));
/// let file = message.take_handles()?.remove(0).into_fd().expect("a descriptor");
/// # drop(file);
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Default)]
pub struct Message {
    /// The bytes of the message; empty if they lie in sealed memory, or if the message is a value.
    pub(crate) bytes: Buffer,
    pub(crate) arrived: ReceivedExtras,
    pub(crate) origin: Origin,
}

impl fmt::Debug for Message {
    /// Prints the sizes of the message, and not its bytes. A value stays a value.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let len = self.arrived.sealed().map_or(self.bytes.len(), |sealed| sealed.len);
        f.debug_struct("Message")
            .field("len", &len)
            .field("handles", &self.arrived.handles().len())
            .field("is_value", &self.arrived.value().is_some())
            .finish_non_exhaustive()
    }
}

impl Message {
    pub(crate) const EMPTY: Self =
        Self { bytes: Buffer::EMPTY, arrived: ReceivedExtras::NONE, origin: Origin::NOWHERE };

    /// Checks that this process can read the bytes of the message.
    ///
    /// # Errors
    /// [`Error::Forked`] if the bytes lie in memory of the parent process only.
    #[doc(hidden)]
    pub fn check_fork(&self) -> Result<(), Error> {
        let elsewhere = self.arrived.sealed().is_some_and(|sealed| sealed.mapping.is_elsewhere());
        if elsewhere { Err(Error::Forked) } else { Ok(()) }
    }

    /// Creates an empty message, into which a message can be received.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty message with the spare buffer of this thread, if the thread has one.
    #[inline]
    pub(crate) fn with_spare() -> Self {
        Self { bytes: Buffer::spare(), arrived: ReceivedExtras::NONE, origin: Origin::NOWHERE }
    }

    /// Creates a message of these bytes and handles, like a received message. Use it with
    /// [`Channel::put_back`](crate::Channel::put_back), or in tests.
    pub fn from_parts(bytes: Vec<u8>, handles: Vec<Handle>) -> Self {
        Self {
            bytes: bytes.into(),
            arrived: ReceivedExtras::of_handles(UnclaimedHandles::new(handles, Payer::default())),
            ..Self::EMPTY
        }
    }

    /// Replaces the bytes and the handles of the message, and drops the old handles. The [sender](Self::sender) of the
    /// message stays known: a layer may rewrite a received message, or put unwanted handles back, and a later report of
    /// the message still names its sender.
    ///
    /// ```
    /// use strait::{Channel, Message, Outgoing};
    /// let (a, b) = Channel::pair()?;
    /// a.send(Outgoing::new(b"wrapped").handle(std::fs::File::open("/dev/null").expect("/dev/null")))?;
    ///
    /// let mut message = b.recv()?;
    /// let file = message.take_handle(0)?.expect("a file");
    /// message.set_parts(b"plain".to_vec(), vec![file]);
    /// assert_eq!((message.bytes(), message.handles().len()), (b"plain".as_slice(), 1));
    /// assert!(message.sender().is_some() && Message::from_parts(Vec::new(), Vec::new()).sender().is_none());
    /// # Ok::<(), strait::Error>(())
    /// ```
    pub fn set_parts(&mut self, bytes: Vec<u8>, handles: Vec<Handle>) {
        let origin = self.origin;
        *self = Self { origin, ..Self::from_parts(bytes, handles) };
        deferred::run();
    }

    /// Creates a message of this value, to be sent with [`Channel::forward`](crate::Channel::forward).
    pub fn from_value(value: impl Value) -> Self {
        Self { arrived: ReceivedExtras::of_local(MessageExtras::valued(Lazy::new(value))), ..Self::EMPTY }
    }

    /// Returns whether the message is a value of type `T`, which [`Message::take_value`] can take.
    pub fn is_value<T: Value>(&self) -> bool {
        self.arrived.value().is_some_and(Lazy::is::<T>)
    }

    /// Takes the [value](Value) out of the message, and leaves the message empty. Returns `None`, and leaves the
    /// message unchanged, if the message is a value of another type or not a value: a message from another process is
    /// not a value, nor is a message already turned into bytes.
    pub fn take_value<T: Value>(&mut self) -> Option<T> {
        let value = self.arrived.value()?.take()?;
        self.arrived.take_valued();
        Some(value)
    }

    /// Makes the message empty, but retains the memory of its buffer. Destructors of values and callbacks are deferred,
    /// so the caller may hold locks.
    #[inline]
    pub(crate) fn clear_deferred(&mut self) {
        self.bytes.clear();
        self.origin = Origin::NOWHERE;
        if self.has_more_than_bytes() {
            self.drop_arrived();
        }
    }

    /// Makes the message empty: drops the bytes, and closes the handles that were not taken. Keeps the memory of the
    /// buffer for the next [`recv_message`](crate::Channel::recv_message).
    ///
    /// The handles are closed without blocking: a thread of the library closes a descriptor whose close may take long.
    #[inline]
    pub fn clear(&mut self) {
        let has_deferred = self.has_more_than_bytes();
        self.clear_deferred();
        if has_deferred {
            deferred::run();
        }
    }

    /// Returns whether the message has more than bytes: handles (also lost ones), sealed memory, or a value.
    #[inline]
    pub(crate) fn has_more_than_bytes(&self) -> bool {
        !self.arrived.is_empty()
    }

    /// Drops the handles, the sealed memory or the value of the message. A separate function, because each read of a
    /// thread-local variable costs a call in a shared library.
    #[cold]
    #[inline(never)]
    fn drop_arrived(&mut self) {
        // Dropping a message may close ends, and the caller may hold a lock of the channel from which it receives.
        deferred::postponed(|| self.arrived = ReceivedExtras::default());
    }

    /// If the bytes of the message lie in sealed memory, copies the bytes into the message's own buffer. Otherwise does
    /// nothing. Fails if there is no memory; the message is then unchanged.
    #[inline]
    pub(crate) fn own_bytes(&mut self) -> Result<(), Error> {
        match self.arrived.sealed() {
            None => Ok(()),
            Some(_) => self.own_sealed_bytes(),
        }
    }

    #[cold]
    fn own_sealed_bytes(&mut self) -> Result<(), Error> {
        let len = self.arrived.sealed().map_or(0, |sealed| sealed.len);
        self.bytes.try_reserve_exact(len).map_err(|_| Error::NoMemory { call: "memory for the message" })?;
        if let Some(sealed) = self.arrived.take_sealed() {
            self.bytes.extend_from_slice(sealed.bytes());
        }
        Ok(())
    }

    /// Turns the message into bytes and handles, if it is a value. Runs the value's own code, so the caller holds no
    /// lock.
    pub(crate) fn turn(&mut self) {
        if let Some(bytes) = self.arrived.turn() {
            self.bytes = bytes.into();
        }
    }

    /// Returns whether the message is nothing but bytes in memory of its own: the message has and lost no handles, is
    /// not a value, and is not in memory sealed by its sender. So are most short messages.
    ///
    /// ```
    /// let (a, b) = strait::Channel::pair()?;
    /// a.send(b"bytes")?;
    /// assert!(b.recv()?.has_only_bytes());
    /// # Ok::<(), strait::Error>(())
    /// ```
    #[inline]
    pub fn has_only_bytes(&self) -> bool {
        self.arrived.is_empty()
    }

    /// Returns the bytes of the message. If the message is a [value](Value), the first call that needs bytes or handles
    /// turns the value into bytes and handles.
    ///
    /// # Panics
    /// In a child of `fork`, if the bytes lie in memory that the sender has sealed: the child does not have that
    /// memory.
    #[inline]
    pub fn bytes(&self) -> &[u8] {
        match &*self.arrived.0 {
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

    /// Returns the bytes of the message as a vector. The bytes are copied only if they lie in memory sealed by the
    /// sender.
    ///
    /// # Panics
    /// In a child of `fork`, if the bytes lie in memory that the sender has sealed: the child does not have that
    /// memory.
    pub fn into_bytes(mut self) -> Vec<u8> {
        self.turn();
        if let Some(sealed) = self.arrived.take_sealed() {
            self.bytes.extend_from_slice(sealed.bytes());
        }
        self.bytes.take()
    }

    /// Returns the handles of the message, in sending order. Returns none if the handles were taken, or [did not
    /// arrive](Error::HandlesLost). A value is turned into bytes and handles, as by [`Message::bytes`].
    pub fn handles(&self) -> &[Handle] {
        match self.arrived.value() {
            None => self.arrived.handles(),
            Some(value) => &value.parts().1,
        }
    }

    /// Takes the handles of the message, in the order in which they were sent. Returns none if the handles were taken
    /// before. A value is turned into bytes and handles, as by [`Message::bytes`].
    ///
    /// # Errors
    /// [`Error::HandlesLost`] if this process had too few free descriptors when the message arrived. The handles that
    /// did arrive were closed; the bytes are intact.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        self.turn();
        let handles = self.arrived.take();
        deferred::run();
        handles
    }

    /// Takes the handles of the message, as [`Message::take_handles`] does, for a layer that decodes the message: until
    /// the layer claims a handle, dropping the handle closes it as dropping the message would.
    ///
    /// # Errors
    /// As [`Message::take_handles`].
    #[doc(hidden)]
    pub fn take_unclaimed(&mut self) -> Result<Vec<UnclaimedHandle>, Error> {
        self.turn();
        let handles = self.arrived.take_unclaimed();
        deferred::run();
        handles
    }

    /// Takes the handle with this index, and leaves the others in the message: the indices of later handles decrease by
    /// one. Returns `None` if the message has no handle with this index. A value is turned into bytes and handles, as
    /// by [`Message::bytes`].
    ///
    /// # Errors
    /// As [`Message::take_handles`].
    pub fn take_handle(&mut self, index: usize) -> Result<Option<Handle>, Error> {
        self.turn();
        let handle = self.arrived.take_one(index);
        deferred::run();
        handle
    }

    /// Returns the identity of the sender of this message, by the kernel's report. Within one process, returns the
    /// identity of this process.
    ///
    /// Returns `None` if no single process is known to have sent the message: the message was not received; it was
    /// queued at an end when the end was sent to this process, so either of two processes may have made the message; or
    /// no channel over the link to the sender exists any more.
    ///
    /// # Cost
    /// A lock, and a system call that asks whether the sender is alive. Nothing for messages that are not asked.
    pub fn sender(&self) -> Option<Peer> {
        self.origin.sender()
    }

    /// Reports that the sender of this message broke the rules. Closes the link to the sender's process, and every
    /// channel over the link; all calls on these channels then fail with [`Error::BadPeer`] and this reason. The sender
    /// sees *peer closed*. Calls the [`on_bad_peer`](crate::quota::on_bad_peer) callback before this call returns.
    ///
    /// Meant for parsers of messages from untrusted processes: the message has the number of its link. A report from
    /// deep within a program therefore needs no channel, and hits the right process. See [`Reported`] for the cases
    /// without a link to close.
    ///
    /// ```
    /// let (theirs, ours) = strait::Channel::pair()?;
    /// theirs.send(b"no number")?;
    /// let message = ours.recv()?;
    /// if str::from_utf8(message.bytes()).ok().and_then(|text| text.parse::<u32>().ok()).is_none() {
    ///     // Within one process there is no link to close; the result says so.
    ///     assert_eq!(message.report_bad("not a number"), strait::quota::Reported::Within);
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

/// A message that was received into the caller's buffer: length and handles.
///
/// ```
/// let (a, b) = strait::Channel::pair()?;
/// a.send(b"hello")?;
/// let mut buffer = [0; 100];
/// let received = b.recv_into(&mut buffer, strait::Deadline::NEVER)?;
/// assert_eq!(&buffer[..received.len()], b"hello");
/// # Ok::<(), strait::Error>(())
/// ```
#[derive(Debug)]
pub struct Received {
    pub(crate) len: usize,
    pub(crate) arrived: ReceivedExtras,
    pub(crate) origin: Origin,
}

impl Received {
    /// Returns the number of bytes of the received message; they are at the start of the caller's buffer.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the received message had no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns whether the message has untaken handles, or handles that [did not arrive](Error::HandlesLost). In the
    /// latter case [`Received::take_handles`] returns that error.
    #[inline]
    pub fn has_handles(&self) -> bool {
        !self.arrived.handles().is_empty() || self.arrived.lost().is_some()
    }

    /// Takes the handles of the message, in the order in which they were sent. Returns none if they were taken before.
    ///
    /// # Errors
    /// [`Error::HandlesLost`] if this process had too few free descriptors when the message arrived. The handles that
    /// did arrive were closed; the bytes are intact.
    pub fn take_handles(&mut self) -> Result<Vec<Handle>, Error> {
        let handles = self.arrived.take();
        deferred::run();
        handles
    }

    /// Takes the handle with this index, and leaves the others in the message: the indices of later handles decrease by
    /// one. Returns `None` if the message has no handle with this index.
    ///
    /// # Errors
    /// As [`Received::take_handles`].
    pub fn take_handle(&mut self, index: usize) -> Result<Option<Handle>, Error> {
        let handle = self.arrived.take_one(index);
        deferred::run();
        handle
    }

    /// Returns the identity of the sender of this message, like [`Message::sender`](crate::Message::sender).
    pub fn sender(&self) -> Option<Peer> {
        self.origin.sender()
    }

    /// Reports that the sender of this message broke the rules, and closes the link to the sender, like
    /// [`Message::report_bad`].
    pub fn report_bad(&self, why: &'static str) -> Reported {
        self.origin.report(why)
    }
}
