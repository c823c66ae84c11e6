//! Values: messages that stay objects when sent within a process.
//!
//! A value is not in the ring; the ring has only a message without bytes and with one handle. The value lies where the
//! handles of a message within this process lie: in the [mailbox](crate::lane::mailbox) of this process. There it is
//! filed under the token of the direction and the number of the message. That token belongs to this process alone, and
//! nothing from another process is filed there. So no other process can name a value, whatever its writes. The maker of
//! the ring's memory can only let a value be received in its turn, or not at all.
//!
//! The user's code turns a value into bytes and handles, and also destroys it. Neither may run while this library holds
//! a lock, because user code knows nothing of the lock. So the library defers the destructor of each dropped value. The
//! destructor runs where the [bad-peer callback](crate::quota::on_bad_peer) runs: just before a call by the program
//! returns.

use std::any::{Any, TypeId};
use std::fmt;
use std::sync::{Mutex, OnceLock};

use crate::channel::handle::Handle;
use crate::channel::message::Message;
use crate::channel::send_error::write_reason;
use crate::deferred;
use crate::error::Error;
use crate::sync::unpoisoned;

/// A type whose objects can be sent as messages. A receiver in the same process gets the object itself. The object is
/// turned into bytes and handles only for a receiver in another process, or if the receiver asks for bytes.
///
/// ```
/// use strait::{Channel, Deadline, Handle};
/// use strait::view::Value;
///
/// struct Frame {
///     number: u64,
///     pixels: Vec<u8>,
/// }
///
/// impl Value for Frame {
///     fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
///         ([&self.number.to_le_bytes(), &self.pixels[..]].concat(), Vec::new())
///     }
///
///     fn size(&self) -> usize {
///         8 + self.pixels.len()
///     }
/// }
///
/// let (a, b) = Channel::pair()?;
/// a.send_value(Frame { number: 7, pixels: vec![0; 1 << 20] }, Deadline::NEVER)?;
/// // Nothing was copied.
/// let frame: Frame = b.recv()?.take_value().expect("a frame");
/// assert_eq!(frame.number, 7);
///
/// // A receiver that asks for bytes gets bytes.
/// a.send_value(frame, Deadline::NEVER)?;
/// assert_eq!(b.recv()?.bytes().len(), 8 + (1 << 20));
/// # Ok::<(), strait::Error>(())
/// ```
pub trait Value: Send + 'static {
    /// Returns the bytes and the handles of the message, in place of this value, for another process.
    ///
    /// The library calls this function at most once, and only in a call that needs the bytes:
    /// - a call that sends the value to another process;
    /// - a call that sends away, or fuses, an end with the unreceived value;
    /// - a call that asks a received message for bytes, or receives into a buffer or [in
    ///   place](crate::Channel::recv_in_place).
    ///
    /// The implementation may block and may call any function. But it must not wait for the channel whose call runs it:
    /// that call may hold the channel's locks until the implementation returns.
    ///
    /// A panic propagates out of that call. The value is lost, and so is the message that the call was to send.
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>);

    /// Returns about how many bytes the value holds. These bytes count as in flight from the sending end until the
    /// value is received: see [`Options::queue_bytes`](crate::Options::queue_bytes). The default is 0.
    fn size(&self) -> usize {
        0
    }
}

/// The bytes and handles into which a value was turned.
type Parts = (Vec<u8>, Vec<Handle>);

/// Object-safe form of [`Value`], for a value of any type.
trait Erased: Any + Send {
    fn into_parts(self: Box<Self>) -> Parts;
    fn into_any(self: Box<Self>) -> Box<dyn Any>;
    fn type_of(&self) -> TypeId;
}

impl<T: Value> Erased for T {
    fn into_parts(self: Box<Self>) -> Parts {
        Value::into_parts(*self)
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }

    fn type_of(&self) -> TypeId {
        TypeId::of::<T>()
    }
}

/// A value sent within this process, or the bytes and handles made of the value.
pub(crate) struct Lazy {
    /// The value, until it is taken or turned into bytes and handles. In a mutex, because threads may share a message,
    /// and a value need not be [`Sync`].
    value: Mutex<Option<Box<dyn Erased>>>,
    /// The bytes and handles of the value, once a caller has asked for them through a shared reference.
    parts: OnceLock<Parts>,
    size: usize,
}

impl fmt::Debug for Lazy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lazy").field("parts", &self.parts).field("size", &self.size).finish_non_exhaustive()
    }
}

impl Lazy {
    pub(crate) fn new(value: impl Value) -> Self {
        let size = value.size();
        Self { value: Mutex::new(Some(Box::new(value))), parts: OnceLock::new(), size }
    }

    /// Returns the size in bytes reported by the value at the send ([`Value::size`]).
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns whether this still is a value: neither taken nor turned into bytes.
    pub(crate) fn is_value(&self) -> bool {
        unpoisoned(&self.value).is_some()
    }

    /// Returns whether this is still a value, and of type `T`: it was neither taken nor turned into bytes.
    pub(crate) fn is<T: Value>(&self) -> bool {
        unpoisoned(&self.value).as_ref().is_some_and(|value| (**value).type_of() == TypeId::of::<T>())
    }

    /// Takes the value if it is of type `T`; `None` if the value has another type, or was taken or turned into bytes
    /// before.
    pub(crate) fn take<T: Value>(&self) -> Option<T> {
        let value = unpoisoned(&self.value).take_if(|value| (**value).type_of() == TypeId::of::<T>())?;
        value.into_any().downcast().ok().map(|value| *value)
    }

    /// Returns the bytes and handles of the value. The first call turns the value into bytes and handles, and runs the
    /// value's own code.
    pub(crate) fn parts(&self) -> &Parts {
        self.parts.get_or_init(|| self.turn())
    }

    pub(crate) fn into_parts(mut self) -> Parts {
        self.parts.take().unwrap_or_else(|| self.turn())
    }

    fn turn(&self) -> Parts {
        // No lock is held while the value's own code runs.
        let value = unpoisoned(&self.value).take();
        value.map(Erased::into_parts).unwrap_or_default()
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        let value = self.value.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(value) = value {
            deferred::drop_later(value.into_any());
        }
    }
}

/// The error of a message or value that was not sent, together with the message.
///
/// Example: [a value](crate::view::Value).
#[derive(Debug)]
pub struct ValueError {
    /// The reason why the message was not sent.
    pub error: Error,
    /// The message that was not sent: the value, for [`Message::take_value`], or the bytes and handles into which the
    /// call had turned the value.
    pub message: Box<Message>,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_reason(self.error, f)
    }
}

impl std::error::Error for ValueError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<ValueError> for Error {
    /// Returns the reason why the message was not sent, and drops the message.
    fn from(failed: ValueError) -> Self {
        failed.error
    }
}

impl From<ValueError> for std::io::Error {
    fn from(failed: ValueError) -> Self {
        Error::from(failed).into()
    }
}
