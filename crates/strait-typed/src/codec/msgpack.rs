//! The codec MsgPack: self-describing, for peers in other languages.

use rmp_serde::decode::Error;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};

use super::{Codec, Decode, Encode, Malformed};
use crate::bounded::within_limits;
use crate::output::Output;
use crate::scratch;

/// [MessagePack](https://msgpack.org): self-describing, with the names of fields and variants. Programs in other
/// languages read it (in Python: `msgpack.unpackb`).
///
/// Handles and [`Array`](crate::Array)s are extension types, as in the codec `plain` of the Python package
/// `strait-ipc`: a program in Rust and a program in Python can be the two ends of a channel. The page [messages between
/// languages](https://github.com/strait-ipc/strait/blob/main/docs/reference/messagepack.md) lists the bytes.
///
/// A receiver ignores fields that it does not know, and a missing field may have a default (`#[serde(default)]`), so
/// the definitions of the two programs may differ.
#[derive(Clone, Copy, Debug)]
pub struct MsgPack(());

impl<T: ?Sized> Codec<T> for MsgPack {
    const ID: u8 = 2;
    const SELF_DESCRIBING: bool = true;
}

impl<T: Serialize + ?Sized> Encode<T> for MsgPack {
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String> {
        scratch::encode_extensions();
        let mut serializer = rmp_serde::Serializer::new(out).with_struct_map();
        value.serialize(&mut serializer).map_err(|error| error.to_string())
    }
}

impl<'de, T: Deserialize<'de>> Decode<'de, T> for MsgPack {
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed> {
        scratch::decode_extensions();
        let mut deserializer = rmp_serde::Deserializer::from_read_ref(bytes);
        let value = within_limits(&mut deserializer, bytes.len(), text).map_err(|what| Malformed::new(None, what))?;
        // Only the end of the bytes fails with this error.
        match IgnoredAny::deserialize(&mut deserializer) {
            Err(Error::InvalidMarkerRead(_)) => Ok(value),
            _ => Err(Malformed::new(None, "bytes behind the value")),
        }
    }
}

/// Returns the text of an error. The texts of the crate `rmp-serde` describe that crate's calls, and are replaced.
#[cold]
fn text(error: Error) -> String {
    match error {
        Error::InvalidMarkerRead(_) | Error::InvalidDataRead(_) => "the message ends before its value does".to_owned(),
        Error::TypeMismatch(marker) => format!("the object {marker:?} of MessagePack is not of the type of its place"),
        Error::OutOfRange => "a number is out of the range of its type".to_owned(),
        other => other.to_string(),
    }
}
