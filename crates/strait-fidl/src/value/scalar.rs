//! Numbers and bools.

use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode, Layout};

/// Whether a number's memory is the number's encoding.
const LITTLE_ENDIAN: bool = cfg!(target_endian = "little");

macro_rules! number {
    ($($number:ty)*) => {$(
        // SAFETY: a number has no padding, any bytes are a number, and on a little-endian machine its memory is its
        // encoding.
        unsafe impl Layout for $number {
            const SIZE: usize = size_of::<Self>();
            const ALIGN: usize = size_of::<Self>();
            const COPYABLE: bool = LITTLE_ENDIAN;
            const ANY_BITS: bool = true;
        }

        impl Encode for $number {
            #[inline]
            fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, _: Context) -> Result<(), Error> {
                out.put(at, &self.to_le_bytes());
                Ok(())
            }
        }

        impl<'m> Decode<'m> for $number {
            #[inline]
            fn decode(input: &mut Decoder<'m>, at: usize, _: Context) -> Result<Self, Error> {
                Ok(Self::from_le_bytes(input.array(at)?))
            }
        }
    )*};
}

number!(u8 u16 u32 u64 i8 i16 i32 i64 f32 f64);

// SAFETY: the memory of a bool is one byte, 0 or 1, equal to the encoding.
unsafe impl Layout for bool {
    const SIZE: usize = 1;
    const ALIGN: usize = 1;
    const COPYABLE: bool = true;
}

impl Encode for bool {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, _: Context) -> Result<(), Error> {
        out.put(at, &[u8::from(*self)]);
        Ok(())
    }
}

impl<'m> Decode<'m> for bool {
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, _: Context) -> Result<Self, Error> {
        match input.array(at)? {
            [0] => Ok(false),
            [1] => Ok(true),
            _ => Err(Error::new(Code::InvalidBoolean, at)),
        }
    }
}
