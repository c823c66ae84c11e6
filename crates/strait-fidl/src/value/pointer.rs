//! Pointers of Rust, which the encoding does not show: a `Box<T>` and a `&T` are encoded like a `T`.

use std::borrow::Cow;

use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::Error;
use crate::layout::{Context, Decode, Encode, Layout, Optional};

macro_rules! pointer {
    ($($pointer:ty $(=> $lifetime:lifetime)? $(, $bound:ident)?;)*) => {$(
        // SAFETY: not copyable.
        unsafe impl<$($lifetime,)? T: Layout $(+ $bound)? + ?Sized> Layout for $pointer {
            const SIZE: usize = T::SIZE;
            const ALIGN: usize = T::ALIGN;
            const LIMITS: usize = T::LIMITS;
        }

        impl<$($lifetime,)? T: Optional $(+ $bound)? + ?Sized> Optional for $pointer {
            const BOXED: bool = T::BOXED;
            const OPTION_SIZE: usize = T::OPTION_SIZE;
            const OPTION_ALIGN: usize = T::OPTION_ALIGN;
        }

        impl<$($lifetime,)? T: Encode $(+ $bound)? + ?Sized> Encode for $pointer {
            #[inline]
            fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
                (**self).encode(out, at, context)
            }
        }
    )*};
}

pointer! {
    Box<T>;
    &'a T => 'a;
    Cow<'a, T> => 'a, ToOwned;
}

impl<'m, T: Decode<'m>> Decode<'m> for Box<T> {
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        T::decode(input, at, context).map(Self::new)
    }
}

/// A `Cow` is borrowed for encoding, and owned after decoding.
impl<'m, T: ?Sized + ToOwned + Layout> Decode<'m> for Cow<'_, T>
where
    T::Owned: Decode<'m>,
{
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        T::Owned::decode(input, at, context).map(Cow::Owned)
    }
}
