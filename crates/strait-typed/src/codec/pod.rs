//! The codec Pod: the memory of a value is its encoding.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{Codec, Decode, Encode, Malformed};
use crate::output::Output;

/// Plain memory, for types of a fixed layout that derive zerocopy's `FromBytes`, `IntoBytes`, `Immutable` and
/// `KnownLayout`. The bytes of the message are the memory of the value, in this machine's byte order.
///
/// Encoding and decoding are a copy. A received message can also be used where it lies: [`Encoded::get`] returns a
/// reference `&T`.
///
/// [`Encoded::get`]: crate::Encoded::get
#[derive(Clone, Copy, Debug)]
pub struct Pod(());

impl<T: ?Sized> Codec<T> for Pod {
    const ID: u8 = 4;
}

impl<T: IntoBytes + Immutable + ?Sized> Encode<T> for Pod {
    #[inline]
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String> {
        out.put(value.as_bytes()).map_err(|full| full.to_string())
    }
}

impl<'de, T: FromBytes> Decode<'de, T> for Pod {
    #[inline]
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed> {
        T::read_from_bytes(bytes).map_err(|_| wrong_length::<T>(bytes))
    }
}

/// A reference to a received value in place, in the memory of the message.
#[derive(Clone, Copy, Debug)]
pub struct InPlace<'de, T>(pub &'de T);

impl<'de, T: FromBytes + Immutable + KnownLayout> Decode<'de, InPlace<'de, T>> for Pod {
    #[inline]
    fn decode(bytes: &'de [u8]) -> Result<InPlace<'de, T>, Malformed> {
        if bytes.len() != size_of::<T>() {
            return Err(wrong_length::<T>(bytes));
        }
        T::ref_from_bytes(bytes).map(InPlace).map_err(|_| Malformed::new(Some(0), "the message is not aligned"))
    }
}

fn wrong_length<T>(bytes: &[u8]) -> Malformed {
    let at = Some(bytes.len().min(size_of::<T>()));
    Malformed::new(at, format!("{} bytes instead of {}", bytes.len(), size_of::<T>()))
}
