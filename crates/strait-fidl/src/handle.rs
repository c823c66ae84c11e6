//! Handles in values.

use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use strait::bindings::UnclaimedHandle;
use strait::pipe::{DataConsumer, DataProducer};
use strait::region::Region;
use strait::{Channel, Handle};

use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode, Layout, Optional};

/// A handle of a message: a handle of Strait or of the crate `strait-zx`.
#[derive(Debug)]
#[non_exhaustive]
pub enum RawHandle {
    /// A handle of a message over a channel of Strait.
    Strait(Handle),
    /// A handle of a received message over a channel of Strait. Dropping it closes the handle without blocking, as
    /// dropping the message does; [`RawHandle::into_strait`] takes the handle.
    Received(UnclaimedHandle),
    /// A handle of a message over a channel of `strait-zx`.
    #[cfg(feature = "zx")]
    Zx(crate::zx::ZxHandle),
}

impl RawHandle {
    /// Returns the handle of Strait.
    ///
    /// # Errors
    /// The unchanged handle, if not of Strait.
    pub fn into_strait(self) -> Result<Handle, Self> {
        match self {
            Self::Strait(handle) => Ok(handle),
            Self::Received(handle) => Ok(handle.claim()),
            #[cfg(feature = "zx")]
            other => Err(other),
        }
    }

    /// Returns the handle of `strait-zx`.
    ///
    /// # Errors
    /// The unchanged handle, if not of `strait-zx`.
    #[cfg(feature = "zx")]
    pub fn into_zx(self) -> Result<crate::zx::ZxHandle, Self> {
        match self {
            Self::Zx(handle) => Ok(handle),
            other => Err(other),
        }
    }
}

impl<T: Into<Handle>> From<T> for RawHandle {
    fn from(handle: T) -> Self {
        Self::Strait(handle.into())
    }
}

/// The place of a handle in a value. It is empty once the handle was sent.
#[derive(Debug)]
pub(crate) struct Slot(Mutex<Option<RawHandle>>);

impl Slot {
    pub(crate) fn take(&self) -> Option<RawHandle> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn put(&self, handle: RawHandle) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle);
    }

    fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_none()
    }
}

/// The kinds of handles: parameters of [`FidlHandle`].
pub mod kind {
    #[cfg(feature = "zx")]
    use strait_zx::abi;

    use super::{Handle, PhantomData, RawHandle};

    mod sealed {
        /// Only this crate has kinds.
        #[allow(unreachable_pub, reason = "the trait seals a public one")]
        pub trait Sealed {}
    }

    /// A kind of handles. A message whose handle is of another kind is refused.
    pub trait Kind: sealed::Sealed {
        /// Returns whether the handle has this kind.
        fn accepts(handle: &RawHandle) -> bool;
    }

    macro_rules! kinds {
        ($($(#[$docs:meta])* $name:ident: $strait:expr, $zx:expr;)*) => {$(
            $(#[$docs])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub enum $name {}

            impl sealed::Sealed for $name {}

            impl Kind for $name {
                fn accepts(handle: &RawHandle) -> bool {
                    let strait: fn(&Handle) -> bool = $strait;
                    match handle {
                        RawHandle::Strait(handle) => strait(handle),
                        RawHandle::Received(handle) => strait(handle),
                        #[cfg(feature = "zx")]
                        RawHandle::Zx(handle) => {
                            let zx: fn(u32) -> bool = $zx;
                            zx(handle.kind())
                        }
                    }
                }
            }
        )*};
    }

    kinds! {
        /// Any kind of handle.
        Any: |_| true, |_| true;
        /// A file descriptor.
        Fd: |handle| matches!(handle, Handle::Fd(_)), |kind| kind == abi::STRAIT_ZX_OBJ_TYPE_FD;
        /// An end of a channel.
        Channel: |handle| matches!(handle, Handle::Channel(_)), |kind| kind == abi::ZX_OBJ_TYPE_CHANNEL;
        /// A region of shared memory; over `strait-zx`, a VMO.
        Region: |handle| matches!(handle, Handle::Region(_)), |kind| kind == abi::ZX_OBJ_TYPE_VMO;
        /// The writing end of a data pipe.
        Producer: |handle| matches!(handle, Handle::Producer(_)), |_| false;
        /// The reading end of a data pipe.
        Consumer: |handle| matches!(handle, Handle::Consumer(_)), |_| false;
        /// An event of `strait-zx`.
        Event: |_| false, |kind| kind == abi::ZX_OBJ_TYPE_EVENT;
        /// An eventpair of `strait-zx`.
        EventPair: |_| false, |kind| kind == abi::ZX_OBJ_TYPE_EVENTPAIR;
    }

    /// The client's end of a channel of the protocol `P`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Client<P>(PhantomData<fn() -> P>);

    /// The server's end of a channel of the protocol `P`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Server<P>(PhantomData<fn() -> P>);

    impl<P> sealed::Sealed for Client<P> {}
    impl<P> sealed::Sealed for Server<P> {}

    impl<P> Kind for Client<P> {
        fn accepts(handle: &RawHandle) -> bool {
            Channel::accepts(handle)
        }
    }

    impl<P> Kind for Server<P> {
        fn accepts(handle: &RawHandle) -> bool {
            Channel::accepts(handle)
        }
    }
}

use kind::Kind;

/// The client's end of a channel of the protocol `P`, in a value: `client_end:P`.
pub type ClientEnd<P> = FidlHandle<kind::Client<P>>;

/// The server's end of a channel of the protocol `P`, in a value: `server_end:P`.
pub type ServerEnd<P> = FidlHandle<kind::Server<P>>;

/// A handle in a value, of the kind `K`. An optional handle is an `Option` of it.
///
/// The handle leaves the value when the value is sent, and the value keeps an empty place. If encoding or sending
/// fails, the handle is in its place again. Dropping a received handle that was not taken out of its place closes the
/// handle without blocking.
///
/// ```
/// use strait::Channel;
/// use strait_fidl::{Encoder, Fidl, FidlHandle, decode_message, kind};
///
/// #[derive(Fidl)]
/// struct Opened {
///     file: FidlHandle<kind::Fd>,
/// }
///
/// let (a, b) = Channel::pair()?;
/// let opened = Opened { file: std::fs::File::open("/dev/null")?.into() };
/// Encoder::new().encode(&opened)?.send(&a)?;
/// assert!(opened.file.is_sent());
///
/// let mut message = b.recv()?;
/// let opened: Opened = decode_message(&mut message)?;
/// assert!(opened.file.into_fd().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct FidlHandle<K = kind::Any> {
    slot: Slot,
    kind: PhantomData<fn() -> K>,
}

impl<K: Kind> FidlHandle<K> {
    /// Makes a field of a handle.
    ///
    /// # Errors
    /// The unchanged handle, if of another kind.
    pub fn new(handle: impl Into<RawHandle>) -> Result<Self, RawHandle> {
        let handle = handle.into();
        if !K::accepts(&handle) {
            return Err(handle);
        }
        Ok(Self::of(handle))
    }

    fn of(handle: RawHandle) -> Self {
        Self { slot: Slot(Mutex::new(Some(handle))), kind: PhantomData }
    }

    /// Returns the handle; `None` after the handle was sent.
    pub fn into_raw(self) -> Option<RawHandle> {
        self.slot.take()
    }

    /// Returns the handle if it is of Strait and of kind `Taken`. Any other handle is dropped.
    fn into_kind<Taken: Kind>(self) -> Option<Handle> {
        let handle = self.into_raw()?;
        if Taken::accepts(&handle) { handle.into_strait().ok() } else { None }
    }

    /// Returns the handle of Strait; `None` if it was sent, or is none of Strait's, and then is closed.
    pub fn into_strait(self) -> Option<Handle> {
        self.into_kind::<kind::Any>()
    }

    /// Returns the file descriptor; `None` if the handle was sent, or is none, and then is closed.
    pub fn into_fd(self) -> Option<OwnedFd> {
        self.into_kind::<kind::Fd>()?.into_fd()
    }

    /// Returns the end of a channel; `None` if the handle was sent, or is none, and then is closed.
    pub fn into_channel(self) -> Option<Channel> {
        self.into_kind::<kind::Channel>()?.into_channel()
    }

    /// Returns the region; `None` if the handle was sent, or is none, and then is closed.
    pub fn into_region(self) -> Option<Region> {
        self.into_kind::<kind::Region>()?.into_region()
    }

    /// Returns the writing end of a data pipe; `None` if the handle was sent, or is none, and then is closed.
    pub fn into_producer(self) -> Option<DataProducer> {
        self.into_kind::<kind::Producer>()?.into_producer()
    }

    /// Returns the reading end of a data pipe; `None` if the handle was sent, or is none, and then is closed.
    pub fn into_consumer(self) -> Option<DataConsumer> {
        self.into_kind::<kind::Consumer>()?.into_consumer()
    }

    /// Returns whether the handle was sent, and this place is empty.
    pub fn is_sent(&self) -> bool {
        self.slot.is_empty()
    }
}

impl<K> fmt::Debug for FidlHandle<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FidlHandle").field("is_sent", &self.slot.is_empty()).finish()
    }
}

impl From<RawHandle> for FidlHandle {
    fn from(handle: RawHandle) -> Self {
        Self::of(handle)
    }
}

impl From<Handle> for FidlHandle {
    fn from(handle: Handle) -> Self {
        Self::of(handle.into())
    }
}

macro_rules! from {
    ($($object:ty => $($kind:ty),*;)*) => {$($(
        impl From<$object> for FidlHandle<$kind> {
            fn from(object: $object) -> Self {
                Self::of(object.into())
            }
        }
    )*)*};
}

from! {
    OwnedFd => kind::Any, kind::Fd;
    File => kind::Any, kind::Fd;
    Channel => kind::Any, kind::Channel;
    Region => kind::Any, kind::Region;
    DataProducer => kind::Any, kind::Producer;
    DataConsumer => kind::Any, kind::Consumer;
}

impl<P> From<Channel> for ClientEnd<P> {
    fn from(channel: Channel) -> Self {
        Self::of(channel.into())
    }
}

impl<P> From<Channel> for ServerEnd<P> {
    fn from(channel: Channel) -> Self {
        Self::of(channel.into())
    }
}

/// The presence word of a handle.
const PRESENT: u32 = u32::MAX;

// SAFETY: not copyable.
unsafe impl<K> Layout for FidlHandle<K> {
    const SIZE: usize = 4;
    const ALIGN: usize = 4;
}

impl<K> Optional for FidlHandle<K> {
    const BOXED: bool = false;
    const OPTION_SIZE: usize = 4;
    const OPTION_ALIGN: usize = 4;
}

impl<K: Kind> Encode for FidlHandle<K> {
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, _: Context) -> Result<(), Error> {
        if self.slot.is_empty() {
            return Err(out.error(Code::NonNullableTypeWithNullValue, at));
        }
        out.put(at, &PRESENT.to_le_bytes());
        out.handle(&self.slot);
        Ok(())
    }
}

impl<'m, K: Kind> Decode<'m> for FidlHandle<K> {
    fn decode(input: &mut Decoder<'m>, at: usize, _: Context) -> Result<Self, Error> {
        match input.u32(at)? {
            PRESENT => {
                let handle = input.take_handle().ok_or_else(|| Error::new(Code::TooFewHandles, at))?;
                if !K::accepts(&handle) {
                    return Err(Error::new(Code::IncorrectHandleType, at));
                }
                Ok(Self::of(handle))
            }
            0 => Err(Error::new(Code::NonNullableTypeWithNullValue, at)),
            _ => Err(Error::new(Code::InvalidHandlePresenceIndicator, at)),
        }
    }
}
