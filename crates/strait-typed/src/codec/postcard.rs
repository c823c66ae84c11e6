//! The codec Postcard: short, fast, and not self-describing.

use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

use super::{Codec, Decode, Encode, Malformed, within_limits};
use crate::output::Output;

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

/// The place where postcard writes: a message.
struct Out<'w, 'c>(&'w mut Output<'c>);

impl Flavor for Out<'_, '_> {
    type Output = ();

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.put(bytes).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.put_byte(byte).map_err(|_| postcard::Error::SerializeBufferFull)
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

impl<T: Serialize + ?Sized> Encode<T> for Postcard {
    #[inline]
    fn encode(value: &T, out: &mut Output<'_>) -> Result<(), String> {
        postcard::serialize_with_flavor(value, Out(out)).map_err(|error| error.to_string())
    }
}

impl<'de, T: Deserialize<'de>> Decode<'de, T> for Postcard {
    #[inline]
    fn decode(bytes: &'de [u8]) -> Result<T, Malformed> {
        let mut deserializer = postcard::Deserializer::from_bytes(bytes);
        let decoded = within_limits(&mut deserializer, bytes.len());
        let left = deserializer.finalize().map_or(0, <[u8]>::len);
        let at = Some(bytes.len() - left);
        match decoded {
            Ok(_) if left > 0 => Err(Malformed::new(at, "bytes behind the value")),
            Ok(value) => Ok(value),
            Err(what) => Err(Malformed::new(at, what)),
        }
    }
}
