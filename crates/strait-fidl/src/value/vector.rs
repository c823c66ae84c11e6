//! Vectors.

use std::fmt;
use std::marker::PhantomData;

use crate::decode::{Decoder, PRESENT};
use crate::encode::Output;
use crate::error::{Code, Error};
use crate::layout::{Context, Decode, Encode, Layout, Optional};
use crate::memory;

/// The words of a vector or string: the number of elements, and whether the body is there.
pub(super) struct Counted;

/// The type with the two words of a vector.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Vector,
    String,
}

impl Counted {
    pub(super) const SIZE: usize = 16;
    pub(super) const ALIGN: usize = 8;

    /// Checks the number of elements, and writes the words. Returns the context of the elements.
    #[inline]
    pub(super) fn write(
        out: &mut Output<'_>,
        at: usize,
        context: Context,
        count: usize,
        kind: Kind,
    ) -> Result<Context, Error> {
        let (limit, context) = context.limit();
        if count > limit as usize {
            return Err(out.error(Self::too_long(count as u64, kind), at));
        }
        let context = out.deeper(context, at)?;
        out.put(at, &(count as u64).to_le_bytes());
        out.put(at + 8, &PRESENT.to_le_bytes());
        Ok(context)
    }

    /// Reads the words, and checks the number of elements against the limit, not against the bytes present. Returns the
    /// number, and the context of the elements.
    #[inline]
    pub(super) fn read(
        input: &Decoder<'_>,
        at: usize,
        context: Context,
        kind: Kind,
    ) -> Result<(usize, Context), Error> {
        let (count, presence) = (input.u64(at)?, input.u64(at + 8)?);
        let (limit, context) = context.limit();
        if count > u64::from(u32::MAX) {
            return Err(Error::new(Self::too_long(count, kind), at));
        }
        match presence {
            PRESENT => {}
            0 if count == 0 => return Err(Error::new(Code::NonNullableTypeWithNullValue, at + 8)),
            0 if kind == Kind::String => return Err(Error::new(Code::NonEmptyStringWithNullBody, at)),
            0 => return Err(Error::new(Code::NonEmptyVectorWithNullBody, at)),
            _ => return Err(Error::new(Code::InvalidPresenceIndicator, at + 8)),
        }
        if count > u64::from(limit) {
            return Err(Error::new(Self::too_long(count, kind), at));
        }
        Ok((count as usize, context.deeper(at)?))
    }

    #[cold]
    fn too_long(count: u64, kind: Kind) -> Code {
        match (kind, count > u64::from(u32::MAX)) {
            (Kind::Vector, false) => Code::CountExceedsLimit,
            (Kind::Vector, true) => Code::VectorCountExceeds32BitLimit,
            (Kind::String, false) => Code::StringTooLong,
            (Kind::String, true) => Code::StringCountExceeds32BitLimit,
        }
    }

    /// Takes the body of a vector. Returns the offset and the number of bytes.
    #[inline]
    fn body<T: Layout>(input: &mut Decoder<'_>, count: usize) -> Result<(usize, usize), Error> {
        match count.checked_mul(T::SIZE) {
            Some(len) => Ok((input.object(len)?, len)),
            None => Err(Error::new(Code::TooFewBytes, input.next())),
        }
    }
}

macro_rules! layout {
    ($($vector:ty),*) => {$(
        // SAFETY: not copyable.
        unsafe impl<T: Layout> Layout for $vector {
            const SIZE: usize = Counted::SIZE;
            const ALIGN: usize = Counted::ALIGN;
            const LIMITS: usize = 1 + T::LIMITS;
        }

        impl<T: Layout> Optional for $vector {
            const BOXED: bool = false;
            const OPTION_SIZE: usize = Counted::SIZE;
            const OPTION_ALIGN: usize = Counted::ALIGN;
        }
    )*};
}

layout!([T], Vec<T>, Elements<'_, T>);

impl<T: Encode> Encode for [T] {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        let context = Counted::write(out, at, context, self.len(), Kind::Vector)?;
        if let Some(bytes) = memory::bytes_of(self) {
            out.body(bytes);
            return Ok(());
        }
        let body = out.object(self.len() * T::SIZE);
        for (index, item) in self.iter().enumerate() {
            item.encode(out, body + index * T::SIZE, context).map_err(|error| error.in_element(index))?;
        }
        Ok(())
    }
}

impl<T: Encode> Encode for Vec<T> {
    #[inline]
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        self.as_slice().encode(out, at, context)
    }
}

impl<'m, T: Decode<'m>> Decode<'m> for Vec<T> {
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        let (count, context) = Counted::read(input, at, context, Kind::Vector)?;
        let (body, len) = Counted::body::<T>(input, count)?;
        if let Some(values) = memory::values_of(input.bytes(body, len)?) {
            return Ok(values);
        }
        // The bytes of all elements are there.
        let mut values = Self::with_capacity(count);
        for index in 0..count {
            let value = T::decode(input, body + index * T::SIZE, context).map_err(|error| error.in_element(index))?;
            values.push(value);
        }
        Ok(values)
    }
}

impl<'m: 'a, 'a> Decode<'m> for &'a [u8] {
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        let (count, _) = Counted::read(input, at, context, Kind::Vector)?;
        let body = input.object(count)?;
        input.bytes(body, count)
    }
}

/// The elements of a vector, read in place from the message, like `&[T]` without the alignment. The elements are
/// numbers, or structs of numbers without padding; the compiler refuses a type with invalid bit patterns.
///
/// ```
/// use strait_fidl::{Elements, Fidl, decode, to_vec};
///
/// #[derive(Fidl)]
/// struct Samples<'m> {
///     samples: Elements<'m, u32>,
/// }
///
/// #[derive(Fidl)]
/// struct Owned {
///     samples: Vec<u32>,
/// }
///
/// let bytes = to_vec(&Owned { samples: vec![1, 2, 3] })?;
/// let Samples { samples } = decode(&bytes, [])?;
/// assert_eq!(samples.get(1), Some(2));
/// assert_eq!(samples.iter().sum::<u32>(), 6);
/// # Ok::<(), strait_fidl::Error>(())
/// ```
pub struct Elements<'m, T> {
    bytes: &'m [u8],
    types: PhantomData<fn() -> T>,
}

impl<T> Clone for Elements<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Elements<'_, T> {}

impl<T: Layout + fmt::Debug> fmt::Debug for Elements<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl<T: Layout + PartialEq> PartialEq for Elements<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl<'m, T: Layout> Elements<'m, T> {
    /// Makes compiling fail for a type with invalid bit patterns.
    const ANY: () = assert!(memory::is_any::<T>(), "the elements of `Elements` must be valid whatever their bytes");

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.bytes.len() / T::SIZE
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the element at this index; `None` if there are not as many.
    #[inline]
    pub fn get(&self, index: usize) -> Option<T> {
        let bytes = self.bytes.get(index.checked_mul(T::SIZE)?..)?.get(..T::SIZE)?;
        memory::value_of(bytes)
    }

    /// Returns the elements, one after the other.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = T> + use<'m, T> {
        let all = self.bytes.chunks_exact(T::SIZE);
        all.map(|bytes| memory::value_of(bytes).expect("the type was checked by the compiler"))
    }

    /// Returns the memory of the elements.
    pub fn as_bytes(&self) -> &'m [u8] {
        self.bytes
    }
}

impl<T: Layout> Encode for Elements<'_, T> {
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error> {
        Counted::write(out, at, context, self.len(), Kind::Vector)?;
        out.body(self.bytes);
        Ok(())
    }
}

impl<'m: 'a, 'a, T: Layout> Decode<'m> for Elements<'a, T> {
    #[inline]
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error> {
        let () = Self::ANY;
        let (count, _) = Counted::read(input, at, context, Kind::Vector)?;
        let (body, len) = Counted::body::<T>(input, count)?;
        Ok(Self { bytes: input.bytes(body, len)?, types: PhantomData })
    }
}
