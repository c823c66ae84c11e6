//! Strings.

use std::str;

use super::vector::{Counted, Kind};
use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode, Layout, Optional};

macro_rules! layout {
    ($($text:ty)*) => {$(
        // SAFETY: not copyable.
        unsafe impl Layout for $text {
            const SIZE: usize = Counted::SIZE;
            const ALIGN: usize = Counted::ALIGN;
            const LIMITS: usize = 1;
        }

        impl Optional for $text {
            const BOXED: bool = false;
            const OPTION_SIZE: usize = Counted::SIZE;
            const OPTION_ALIGN: usize = Counted::ALIGN;
        }
    )*};
}

layout!(str String);

impl Encode for str {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        Counted::write(out, at, context, self.len(), Kind::String)?;
        out.body(self.as_bytes());
        Ok(())
    }
}

impl Encode for String {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        self.as_str().encode(out, at, context)
    }
}

impl<'m: 'a, 'a> Decode<'m> for &'a str {
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        let (count, _) = Counted::read(input, at, context, Kind::String)?;
        let body = input.object(count)?;
        str::from_utf8(input.bytes(body, count)?)
            .map_err(|error| Error::new(Code::StringNotUtf8, body + error.valid_up_to()))
    }
}

impl<'m> Decode<'m> for String {
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        <&str>::decode(input, at, context).map(str::to_owned)
    }
}
