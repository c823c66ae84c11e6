//! The codec Json: text, for debugging and for peers in other languages.

use serde::{Deserialize, Serialize};

use super::{Codec, Decode, Encode, Malformed};
use crate::bounded::within_limits;
use crate::output::Output;

/// The codec for JSON text. Every language reads JSON, but it is several times as long as
/// [`Postcard`](super::Postcard), and has no type for bytes: a `Vec<u8>` becomes a list of numbers. A float that is
/// infinite or not a number becomes `null`.
#[derive(Clone, Copy, Debug)]
pub struct Json(());

impl<T: ?Sized> Codec<T> for Json {
    const ID: u8 = 3;
    const SELF_DESCRIBING: bool = true;
}

impl<T: Serialize + ?Sized> Encode<T> for Json {
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String> {
        let mut serializer = serde_json::Serializer::new(out);
        value.serialize(&mut serializer).map_err(|error| error.to_string())
    }
}

impl<'de, T: Deserialize<'de>> Decode<'de, T> for Json {
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed> {
        let mut deserializer = serde_json::Deserializer::from_slice(bytes);
        // The error's text names the line and the column.
        let value = within_limits(&mut deserializer, bytes.len(), |error| error.to_string())
            .map_err(|what| Malformed::new(None, what))?;
        deserializer.end().map_err(|_| Malformed::new(None, "bytes behind the value"))?;
        Ok(value)
    }
}
