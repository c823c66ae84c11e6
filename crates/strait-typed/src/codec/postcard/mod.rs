//! The codec Postcard: short, fast, and not self-describing.

mod decoder;
mod encoder;
mod source;

use std::fmt;

use serde::{Deserialize, Serialize};
use strait::view::InPlace;

use super::{Codec, Decode, Encode, Malformed};
use crate::output::{Full, Output};
use decoder::Decoder;
use encoder::Encoder;
use source::{Slice, Source, Viewed};

/// The [postcard](https://postcard.jamesmunns.com/wire-format) format: short and fast. The default.
///
/// The format contains no names, so both programs must be built from the same definition of the type: a field that is
/// added, or a variant that changes its place, changes the meaning of the bytes. `Checked` compares the definitions.
/// Types that need a self-describing format (`#[serde(untagged)]`, `#[serde(flatten)]`) cannot be received.
#[derive(Clone, Copy, Debug)]
pub struct Postcard(());

impl<T: ?Sized> Codec<T> for Postcard {
    const ID: u8 = 1;
}

/// The reason why a value cannot be encoded or decoded. The text lies behind a pointer, so that the result of each
/// field is returned in a register.
#[allow(clippy::box_collection, reason = "a thin pointer fits a register; a Box<str> or a String does not")]
struct Error(Box<String>);

impl Error {
    #[cold]
    fn new(what: impl Into<String>) -> Self {
        Self(Box::new(what.into()))
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl serde::ser::Error for Error {
    #[cold]
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self::new(what.to_string())
    }
}

impl serde::de::Error for Error {
    #[cold]
    fn custom<T: fmt::Display>(what: T) -> Self {
        Self::new(what.to_string())
    }
}

impl From<Full> for Error {
    #[cold]
    fn from(full: Full) -> Self {
        Self::new(full.to_string())
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    #[inline]
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String> {
        out.write_with(|cursor| Ok(value.serialize(Encoder(cursor))?.0)).map_err(|error: Error| *error.0)
    }
}

impl<'de, T: Deserialize<'de>> Decode<'de, T> for Postcard {
    #[inline]
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed> {
        decode_from(Slice::new(bytes))
    }

    fn decode_view(view: &mut InPlace<'_>, _buffer: &'de mut Vec<u8>) -> Result<T, Malformed> {
        decode_from(Viewed::new(view))
    }
}

#[inline(always)]
fn decode_from<'de, T: Deserialize<'de>>(source: impl Source<'de>) -> Result<T, Malformed> {
    let len = source.left();
    let mut decoder = Decoder::new(source);
    let decoded = T::deserialize(&mut decoder);
    let left = decoder.left();
    match decoded {
        Ok(value) if left == 0 => Ok(value),
        Ok(_) => Err(malformed(len - left, "bytes behind the value")),
        Err(error) => Err(malformed(len - left, *error.0)),
    }
}

#[cold]
fn malformed(at: usize, what: impl Into<String>) -> Malformed {
    Malformed::new(Some(at), what)
}
