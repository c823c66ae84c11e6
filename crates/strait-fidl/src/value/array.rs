//! Arrays.

use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::Error;
use crate::layout::{Context, Decode, Encode, Layout};
use crate::memory;

// SAFETY: elements of a copyable type lie one after the other, in memory as in the encoding.
unsafe impl<T: Layout, const N: usize> Layout for [T; N] {
    const SIZE: usize = {
        assert!(N > 0, "an array of FIDL has at least one element");
        T::SIZE * N
    };
    const ALIGN: usize = T::ALIGN;
    const COPYABLE: bool = T::COPYABLE;
    const ANY_BITS: bool = T::ANY_BITS;
    const LIMITS: usize = T::LIMITS;
}

impl<T: Encode, const N: usize> Encode for [T; N] {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        if let Some(bytes) = memory::bytes_of(self) {
            out.put(at, bytes);
            return Ok(());
        }
        for (index, item) in self.iter().enumerate() {
            item.encode(out, at + index * T::SIZE, context).map_err(|error| error.in_element(index))?;
        }
        Ok(())
    }
}

impl<'m, T: Decode<'m>, const N: usize> Decode<'m> for [T; N] {
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        if let Some(array) = memory::value_of(input.bytes(at, Self::SIZE)?) {
            return Ok(array);
        }
        let mut items = [const { None }; N];
        for (index, item) in items.iter_mut().enumerate() {
            *item = Some(T::decode(input, at + index * T::SIZE, context).map_err(|error| error.in_element(index))?);
        }
        Ok(items.map(|item| item.expect("each element was decoded")))
    }
}
