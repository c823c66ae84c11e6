//! Values that stay what they are as long as they are sent within a process.
//!
//! A value is not in the ring, where there is nothing but a message without bytes and with one handle. It lies where the handles of a
//! message within this process lie: in the [stash](crate::link) of the process's link to itself, under the name of the direction
//! and the number of the message. That name is this process's own, and nothing that arrives from elsewhere is put there. So no
//! other process can name a value, whatever it writes, and one that has made the memory of the ring can have it received in its turn or not
//! at all.
//!
//! A value is turned into bytes and handles by the user's code, as its destructor is. Neither may run while this library holds a
//! lock that the user does not know of. So a value that is dropped anywhere in here is put aside, and its destructor runs where
//! [bad peers are told of](crate::quota): just before a call of the user's returns.

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::{Mutex, OnceLock};

use crate::channel::handle::Handle;
use crate::channel::message::Message;
use crate::error::Error;
use crate::quota;
use crate::sync::unpoisoned;

/// What can be sent as a value: moved to a receiver in the same process, and turned into bytes and handles only for one that is
/// elsewhere, or that asks for bytes.
///
/// ```
/// use strait::{Channel, Deadline, Handle, Value};
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
/// // Whoever wants bytes gets bytes.
/// a.send_value(frame, Deadline::NEVER)?;
/// assert_eq!(b.recv()?.bytes().len(), 8 + (1 << 20));
/// # Ok::<(), strait::Error>(())
/// ```
pub trait Value: Send + 'static {
    /// The bytes and the handles of the message that it is in another process.
    ///
    /// Called at most once, when it must be, in a call that needs the bytes: that sends to another process; that sends away an
    /// end which has not received the value, or fuses its channel; that asks a received message for bytes, or receives into a
    /// buffer or [in place](crate::Channel::recv_in_place). It may take its time and call anything, but must not wait for the channel
    /// that such a call is made on: that may be the call's own until it returns.
    ///
    /// A panic goes on in that call. The value is lost by it, and what the call was to send.
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>);

    /// About how many bytes it holds. That much counts as under way from the end that sent it, until it was received: see
    /// [`Options::queue_bytes`](crate::Options::queue_bytes).
    fn size(&self) -> usize {
        0
    }
}

/// Bytes and handles of a value.
type Parts = (Vec<u8>, Vec<Handle>);

/// A value of any type.
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

/// A value on its way, or the parts that it was turned into.
pub(crate) struct Lazy {
    /// In a lock, as a message is shared between threads and a value need not be.
    value: Mutex<Option<Box<dyn Erased>>>,
    /// Once somebody asked for them who has only lent the message.
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

    /// How many bytes it holds, as it says.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Whether it is a value still, and not bytes.
    pub(crate) fn is_value(&self) -> bool {
        unpoisoned(&self.value).is_some()
    }

    /// Whether it is a value of this type.
    pub(crate) fn is<T: Value>(&self) -> bool {
        unpoisoned(&self.value).as_ref().is_some_and(|value| (**value).type_of() == TypeId::of::<T>())
    }

    /// Takes the value, if it is of this type.
    pub(crate) fn take<T: Value>(&self) -> Option<T> {
        let value = unpoisoned(&self.value).take_if(|value| (**value).type_of() == TypeId::of::<T>())?;
        value.into_any().downcast().ok().map(|value| *value)
    }

    /// What it is in bytes and handles; made of it if nobody has asked before. The value's own code runs.
    pub(crate) fn parts(&self) -> &Parts {
        self.parts.get_or_init(|| self.turn())
    }

    pub(crate) fn into_parts(mut self) -> Parts {
        self.parts.take().unwrap_or_else(|| self.turn())
    }

    fn turn(&self) -> Parts {
        // No lock is held while it runs.
        let value = unpoisoned(&self.value).take();
        value.map(Erased::into_parts).unwrap_or_default()
    }
}

impl Drop for Lazy {
    fn drop(&mut self) {
        let value = self.value.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if let Some(value) = value {
            put_aside(value);
        }
    }
}

/// Values that a thread dropped, maybe with locks held.
struct Aside {
    values: RefCell<Vec<Box<dyn Erased>>>,
    /// Whether it is dropping them: from within a destructor no other one is run.
    busy: Cell<bool>,
}

impl Drop for Aside {
    fn drop(&mut self) {
        self.values.get_mut().drain(..).for_each(drop_one);
    }
}

thread_local! {
    static ASIDE: Aside = const { Aside { values: RefCell::new(Vec::new()), busy: Cell::new(false) } };
}

fn drop_one(value: Box<dyn Erased>) {
    quota::dropped_aside();
    drop(value);
}

fn put_aside(value: Box<dyn Erased>) {
    let mut value = Some(value);
    // Once the thread is ending it is dropped here.
    let _ = ASIDE.try_with(|aside| {
        aside.values.borrow_mut().extend(value.take());
        quota::note_aside();
    });
}

/// Drops what this thread has put aside. The caller holds no lock.
pub(crate) fn drop_aside() {
    struct Busy;
    impl Drop for Busy {
        fn drop(&mut self) {
            let _ = ASIDE.try_with(|aside| aside.busy.set(false));
        }
    }
    if ASIDE.try_with(|aside| aside.busy.replace(true)) != Ok(false) {
        return;
    }
    let _busy = Busy;
    // What a destructor puts aside comes after.
    while let Ok(Some(value)) = ASIDE.try_with(|aside| aside.values.borrow_mut().pop()) {
        drop_one(value);
    }
}

/// A message that was not sent.
#[derive(Debug)]
pub struct ValueError {
    /// Why.
    pub error: Error,
    /// The value, as [`Message::take_value`] gives it; or, if it had to be turned into bytes to be sent, those.
    pub message: Box<Message>,
}

impl fmt::Display for ValueError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for ValueError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

impl From<ValueError> for Error {
    /// Keeps the reason; the value is dropped.
    fn from(failed: ValueError) -> Self {
        failed.error
    }
}
