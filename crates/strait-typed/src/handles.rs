//! Handles as fields of messages.

use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de, ser};
use strait::bindings::UnclaimedHandle;
use strait::pipe::{DataConsumer, DataProducer};
use strait::region::Region;
use strait::{Channel, Handle};

use crate::extension;
use crate::scratch::{Held, Slot, exchange, receive_handle, send_handle};
use crate::{Postcard, Typed};

/// Creates the slot of a handle of this program.
pub(crate) fn slot(handle: impl Into<Handle>) -> Slot {
    Arc::new(Mutex::new(Some(Held::Own(handle.into()))))
}

/// Creates the slot of a received handle.
fn received(handle: UnclaimedHandle) -> Slot {
    Arc::new(Mutex::new(Some(Held::Received(handle))))
}

macro_rules! handle {
    ($(#[$docs:meta])* $name:ident, $object:ty, $kind:ident, $into:ident, $from:literal) => {
        $(#[$docs])*
        ///
        /// The object leaves the value when the value is sent, and the value keeps an empty place. If the send fails,
        /// the object is in its place again.
        ///
        /// A handle can be serialized only into a message of a typed channel; any other serializer gets an error.
        ///
        /// Dropping a received object that was not taken out of its place closes the object without blocking, as
        /// dropping a message does.
        pub struct $name(Slot);

        impl $name {
            #[doc = concat!("Makes a field of ", $from, ".")]
            pub fn new(object: impl Into<$object>) -> Self {
                Self(slot(object.into()))
            }

            /// Returns the object; `None` if the object was sent.
            pub fn $into(self) -> Option<$object> {
                exchange(&self.0, None)?.$into()
            }

            /// Returns whether the object was sent, and this place is empty.
            pub fn is_sent(&self) -> bool {
                self.0.lock().map_or(true, |handle| handle.is_none())
            }
        }

        impl From<$object> for $name {
            fn from(object: $object) -> Self {
                Self::new(object)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("is_sent", &self.is_sent()).finish()
            }
        }

        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                let index = send_handle(&self.0).map_err(ser::Error::custom)?;
                extension::write_handle(serializer, index, 0)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let (index, progress) = extension::read_handle(deserializer)?;
                // Only a typed end has a progress.
                let index = if progress == 0 { index } else { u32::MAX };
                let handle = receive_handle(index, |handle| matches!(handle, Handle::$kind(_)));
                handle.map(|handle| Self(received(handle))).map_err(de::Error::custom)
            }
        }

        #[cfg(feature = "schema")]
        impl postcard_schema::Schema for $name {
            const SCHEMA: &'static postcard_schema::schema::NamedType = &postcard_schema::schema::NamedType {
                name: stringify!($name),
                ty: &postcard_schema::schema::DataModelType::Struct(&[&postcard_schema::schema::NamedValue {
                    name: concat!("strait::", stringify!($name)),
                    ty: u32::SCHEMA,
                }]),
            };
        }
    };
}

handle!(
    /// A file descriptor in a message.
    ///
    /// To use the descriptor, take it out with [`into_fd`](Self::into_fd). A field lends no descriptor (`AsFd`), since
    /// the place may be empty: another thread may send the value at any time.
    Fd, OwnedFd, Fd, into_fd, "a descriptor"
);

handle!(
    /// A region of shared memory in a message.
    Shared, Region, Region, into_region, "a region"
);

handle!(
    /// The reading end of a data pipe in a message.
    Reader, DataConsumer, Consumer, into_consumer, "the reading end of a data pipe"
);

handle!(
    /// The writing end of a data pipe in a message.
    Writer, DataProducer, Producer, into_producer, "the writing end of a data pipe"
);

handle!(
    /// An end of a channel of bytes in a message. For a typed end see [`End`].
    RawEnd, Channel, Channel, into_channel, "an end of a channel"
);

impl From<File> for Fd {
    fn from(file: File) -> Self {
        Self::new(file)
    }
}

/// The bit of a typed end whose first message was sent.
const GREETED: u8 = 1;
/// The bit of a typed end that has received the peer's first message.
const MET: u8 = 2;

/// An end of a typed channel in a message: for example, a channel for the replies in a request. The receiver of the
/// message sends values of type `S` over it and receives values of type `R`.
///
/// ```
/// use serde::{Deserialize, Serialize};
/// use strait_typed::{End, Typed};
///
/// #[derive(Serialize, Deserialize)]
/// struct Search {
///     words: String,
///     results: End<String, ()>,
/// }
///
/// let (client, server) = Typed::<Search, ()>::pair()?;
/// let (results, theirs) = Typed::<(), String>::pair()?;
/// client.send(&Search { words: "plain english".into(), results: theirs.into() })?;
///
/// let search = server.recv()?;
/// let answers = search.results.into_typed().expect("an end");
/// answers.send(&format!("nothing found for {}", search.words))?;
/// assert_eq!(results.recv()?, "nothing found for plain english");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// When the value is sent, the end leaves the value, with its unreceived messages. If the send fails, the end is in its
/// place again.
pub struct End<S, R = S, C = Postcard> {
    slot: Slot,
    /// Whether the end has sent and received the first messages: [`GREETED`] and [`MET`].
    progress: u8,
    types: PhantomData<fn(S) -> (R, C)>,
}

impl<S, R, C> End<S, R, C> {
    /// Returns the typed end; `None` if the end was sent.
    pub fn into_typed(self) -> Option<Typed<S, R, C>> {
        let channel = exchange(&self.slot, None)?.into_channel()?;
        Some(Typed::resume(channel, self.progress & GREETED != 0, self.progress & MET != 0))
    }

    /// Returns whether the end was sent, and this place is empty.
    pub fn is_sent(&self) -> bool {
        self.slot.lock().map_or(true, |handle| handle.is_none())
    }
}

impl<S, R, C> From<Typed<S, R, C>> for End<S, R, C> {
    fn from(typed: Typed<S, R, C>) -> Self {
        let (greeted, met) = typed.progress();
        let progress = if greeted { GREETED } else { 0 } | if met { MET } else { 0 };
        Self { slot: slot(typed.into_channel()), progress, types: PhantomData }
    }
}

impl<S, R, C> fmt::Debug for End<S, R, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("End").field("is_sent", &self.is_sent()).finish()
    }
}

impl<S, R, C> Serialize for End<S, R, C> {
    fn serialize<Z: Serializer>(&self, serializer: Z) -> Result<Z::Ok, Z::Error> {
        let index = send_handle(&self.slot).map_err(ser::Error::custom)?;
        extension::write_handle(serializer, index, self.progress)
    }
}

impl<'de, S, R, C> Deserialize<'de> for End<S, R, C> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (index, progress) = extension::read_handle(deserializer)?;
        let handle = receive_handle(index, |handle| matches!(handle, Handle::Channel(_)));
        handle.map(|handle| Self { slot: received(handle), progress, types: PhantomData }).map_err(de::Error::custom)
    }
}

#[cfg(feature = "schema")]
impl<S, R, C> postcard_schema::Schema for End<S, R, C> {
    // The types of the end in the field are compared by the first messages over the end. So a type may contain an end
    // whose messages have the same type again.
    const SCHEMA: &'static postcard_schema::schema::NamedType = &postcard_schema::schema::NamedType {
        name: "End",
        ty: &postcard_schema::schema::DataModelType::Struct(&[&postcard_schema::schema::NamedValue {
            name: "strait::End",
            ty: u32::SCHEMA,
        }]),
    };
}
