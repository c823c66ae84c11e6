//! Optional values.

use crate::decode::{Decoder, PRESENT};
use crate::encode::Output;
use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode, Layout, Optional};

// SAFETY: not copyable.
unsafe impl<T: Optional> Layout for Option<T> {
    const SIZE: usize = T::OPTION_SIZE;
    const ALIGN: usize = T::OPTION_ALIGN;
    const LIMITS: usize = T::LIMITS;
}

impl<T: Optional + Encode> Encode for Option<T> {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        match self {
            None => Ok(()),
            Some(value) if !T::BOXED => value.encode(out, at, context),
            Some(value) => {
                let context = out.deeper(context, at)?;
                out.put(at, &PRESENT.to_le_bytes());
                let body = out.object(T::SIZE);
                value.encode(out, body, context)
            }
        }
    }
}

impl<'m, T: Optional + Decode<'m>> Decode<'m> for Option<T> {
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        if !T::BOXED {
            // If only a part of the encoding is absent, the value's own decoding reports the error.
            let absent = input.bytes(at, T::OPTION_SIZE)?.iter().all(|&byte| byte == 0);
            return if absent { Ok(None) } else { T::decode(input, at, context).map(Some) };
        }
        match input.u64(at)? {
            0 => Ok(None),
            PRESENT => {
                let context = context.deeper(at)?;
                let body = input.object(T::SIZE)?;
                T::decode(input, body, context).map(Some)
            }
            _ => Err(Error::new(Code::InvalidPresenceIndicator, at)),
        }
    }
}
