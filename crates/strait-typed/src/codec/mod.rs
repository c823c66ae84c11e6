//! Codecs: how values become the bytes of a message, and bytes become values.

#[cfg(feature = "schema")]
mod checked;
#[cfg(feature = "json")]
mod json;
#[cfg(feature = "msgpack")]
mod msgpack;
#[cfg(feature = "pod")]
mod pod;
mod postcard;

#[cfg(feature = "schema")]
pub use checked::Checked;
#[cfg(feature = "json")]
pub use json::Json;
#[cfg(feature = "msgpack")]
pub use msgpack::MsgPack;
#[cfg(feature = "pod")]
pub use pod::{InPlace, Pod};
pub use postcard::Postcard;

use strait::view::InPlace as View;

use crate::output::Output;

/// The identity of a codec for the type `T`, sent in the first message of a channel.
pub trait Codec<T: ?Sized> {
    /// The number of the codec. Both ends of a channel must have the same codec. Codecs of other crates use numbers
    /// from 128 on.
    const ID: u8;

    /// Whether the bytes of a value name its fields and types, as those of MessagePack and JSON do. An end with such a
    /// codec also receives from a peer that sends no first message, for example from a program in another language; the
    /// types are then not compared. No value of such a codec may begin with the bytes of a first message.
    const SELF_DESCRIBING: bool = false;

    /// Returns a key of the type's shape: equal keys mean that both ends read the same bytes as the same value.
    /// Returns `None` for a codec that does not know the shape; then shapes are not compared.
    fn key() -> Option<u64> {
        None
    }
}

/// A codec for turning values of type `T` into bytes.
pub trait Encode<T: ?Sized>: Codec<T> {
    /// Appends the bytes of `value` to a message.
    ///
    /// # Errors
    /// The reason why the value cannot be encoded. Nothing is sent then.
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String>;
}

/// A codec for turning bytes into values of type `T`, which may borrow from the bytes.
pub trait Decode<'de, T>: Codec<T> {
    /// Decodes a value from the bytes of a message; all bytes belong to the value.
    ///
    /// # Errors
    /// The reason why the bytes are not such a value.
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed>;

    /// Decodes a value from a long message, whose bytes still lie in the memory where the peer wrote them. The default
    /// copies all bytes to `buffer`, and decodes the copy. A codec that copies long fields straight into the value
    /// saves that copy.
    ///
    /// The peer may change the bytes at any time, so an implementation reads each byte once.
    ///
    /// # Errors
    /// As [`Decode::decode`], or if there is no memory for the bytes.
    fn decode_view(view: &mut View<'_>, buffer: &'de mut Vec<u8>) -> Result<T, Malformed> {
        let len = view.len();
        view.append_to(buffer, 0, len).map_err(|error| Malformed::new(None, error.to_string()))?;
        Self::decode(buffer)
    }
}

/// A codec for decoding values of type `T` without borrows from the bytes. Implemented for all such codecs.
pub trait DecodeOwned<T>: for<'de> Decode<'de, T> {}

impl<T, C: for<'de> Decode<'de, T>> DecodeOwned<T> for C {}

/// The reason why the bytes of a message are no value of the expected type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// The offset of the byte at which decoding failed, if known.
    pub at: Option<usize>,
    /// The description of the problem.
    pub what: String,
}

impl Malformed {
    /// Creates the error of a message that fails at a byte offset.
    pub(crate) fn new(at: Option<usize>, what: impl Into<String>) -> Self {
        Self { at, what: what.into() }
    }
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.at {
            Some(at) => write!(f, "{} (at byte {at})", self.what),
            None => f.write_str(&self.what),
        }
    }
}

impl std::error::Error for Malformed {}
