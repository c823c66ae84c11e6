//! How messages name their handles: by the extension type 1 of MessagePack, or by numbers in the other codecs.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::ser::{Serialize, SerializeTuple, Serializer};

use crate::scratch::{self, Carries};

/// The name of an extension type in `rmp-serde`.
const NAME: &str = "_ExtStruct";

/// The code of the extension type of a handle.
const HANDLE: i8 = 1;

/// The lowest bit of a typed end's progress in a number that holds the index of the end in the bits below.
const ABOVE: u32 = 16;

/// The bits of the progress.
const BITS: u32 = 3;

/// Serializes the index of a handle, and how far a typed end is with its first messages (0 for other handles).
pub(crate) fn write_handle<S: Serializer>(serializer: S, index: u32, progress: u8) -> Result<S::Ok, S::Error> {
    if scratch::encodes() != Carries::Extensions {
        return (index | u32::from(progress) << ABOVE).serialize(serializer);
    }
    let [.., high, low] = index.to_be_bytes();
    // MessagePack's shortest form of an integer: a message has less than 65,536 handles.
    let index: &[u8] = match (high, low) {
        (0, 0..=0x7F) => &[low],
        (0, _) => &[0xCC, low],
        _ => &[0xCD, high, low],
    };
    if progress == 0 {
        return write(serializer, HANDLE, index);
    }
    write(serializer, HANDLE, &[index, &[progress]].concat())
}

/// Deserializes the index of a handle, and how far a typed end is with its first messages.
pub(crate) fn read_handle<'de, D: Deserializer<'de>>(deserializer: D) -> Result<(u32, u8), D::Error> {
    if scratch::decodes() != Carries::Extensions {
        let word = u32::deserialize(deserializer)?;
        let bits = word & BITS << ABOVE;
        return Ok((word ^ bits, (bits >> ABOVE) as u8));
    }
    read(deserializer, HANDLE, |payload| {
        let (index, rest) = match *payload {
            [index @ 0..=0x7F, ref rest @ ..] | [0xCC, index, ref rest @ ..] => (u32::from(index), rest),
            [0xCD, high, low, ref rest @ ..] => (u32::from(u16::from_be_bytes([high, low])), rest),
            _ => return Err("the index of a handle is no integer".to_owned()),
        };
        match *rest {
            [] => Ok((index, 0)),
            [bits] if u32::from(bits) <= BITS => Ok((index, bits)),
            _ => Err("more bytes follow the index of a handle".to_owned()),
        }
    })
}

/// Serializes an extension type with these bytes.
pub(crate) fn write<S: Serializer>(serializer: S, code: i8, payload: &[u8]) -> Result<S::Ok, S::Error> {
    serializer.serialize_newtype_struct(NAME, &Parts { code, payload })
}

/// Deserializes an extension type, of which `take` makes a value. `take` returns a text if the bytes are wrong.
pub(crate) fn read<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    code: i8,
    take: impl FnOnce(&[u8]) -> Result<T, String>,
) -> Result<T, D::Error> {
    deserializer.deserialize_newtype_struct(NAME, Outer { code, take, makes: PhantomData })
}

/// The two parts of an extension type.
struct Parts<'a> {
    code: i8,
    payload: &'a [u8],
}

impl Serialize for Parts<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(2)?;
        tuple.serialize_element(&self.code)?;
        tuple.serialize_element(&Bytes(self.payload))?;
        tuple.end()
    }
}

/// Bytes that serde takes for bytes, and not for a list of numbers.
pub(crate) struct Bytes<'a>(pub(crate) &'a [u8]);

impl Serialize for Bytes<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(self.0)
    }
}

/// The visitor of an extension type.
struct Outer<F, T> {
    code: i8,
    take: F,
    makes: PhantomData<T>,
}

impl<'de, T, F: FnOnce(&[u8]) -> Result<T, String>> Visitor<'de> for Outer<F, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the extension type {}", self.code)
    }

    fn visit_newtype_struct<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_tuple(2, self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<T, A::Error> {
        if parts.next_element::<i8>()? != Some(self.code) {
            return Err(de::Error::custom(format_args!("this is not the extension type {}", self.code)));
        }
        let payload = parts.next_element_seed(Payload { take: self.take, makes: PhantomData })?;
        payload.ok_or_else(|| de::Error::custom("an extension type without bytes"))
    }
}

/// The visitor of the bytes of an extension type.
struct Payload<F, T> {
    take: F,
    makes: PhantomData<T>,
}

impl<'de, T, F: FnOnce(&[u8]) -> Result<T, String>> DeserializeSeed<'de> for Payload<F, T> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<'de, T, F: FnOnce(&[u8]) -> Result<T, String>> Visitor<'de> for Payload<F, T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the bytes of an extension type")
    }

    fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<T, E> {
        (self.take)(bytes).map_err(E::custom)
    }
}
