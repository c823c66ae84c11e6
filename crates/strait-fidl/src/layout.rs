//! The traits of types with an encoding.

use crate::decode::Decoder;
use crate::encode::Output;
use crate::error::{Code, Error};

/// How deep objects of a message may be nested: each pointer and each envelope is a level.
pub const MAX_DEPTH: u32 = 32;

/// Rounds up to the alignment of objects.
#[inline]
pub(crate) const fn padded(len: usize) -> usize {
    (len + 7) & !7
}

/// The layout of a type's encoding inside another value. The derive macro [`Fidl`](macro@crate::Fidl) implements this
/// trait.
///
/// # Safety
/// If `COPYABLE` is true, the type is `Sized` with the size `SIZE`, each byte of each value is initialized, the bytes
/// of a value are the encoding of the value, and no value changes while borrowed. If `ANY_BITS` is true too, any
/// sequence of `SIZE` bytes is a valid value.
#[diagnostic::on_unimplemented(
    message = "`{Self}` has no encoding in FIDL",
    note = "FIDL has bool, numbers of 8 to 64 bits, strings, arrays, vectors, handles, and types with #[derive(Fidl)]"
)]
pub unsafe trait Layout {
    /// The number of bytes of the encoding; what pointers lead to is not counted.
    const SIZE: usize;
    /// The alignment of the encoding.
    const ALIGN: usize;
    /// Whether a value's memory is the value's encoding.
    const COPYABLE: bool = false;
    /// Whether any bytes are the encoding of a value.
    const ANY_BITS: bool = false;
    /// The number of limits (`#[fidl(max)]`) for a field of the type: one for a string, and one for each level of
    /// nested vectors.
    const LIMITS: usize = 0;
}

/// A value with an encoding. The derive macro [`Fidl`](macro@crate::Fidl) implements this trait.
pub trait Encode: Layout {
    /// Writes the encoding to the `SIZE` zero bytes at offset `at` of the output, and adds the targets of its pointers
    /// behind all other objects.
    ///
    /// # Errors
    /// See [`Code`].
    fn encode<'v>(&'v self, out: &mut Output<'v>, at: usize, context: Context) -> Result<(), Error>;
}

/// A value that can be decoded from a message borrowed for `'m`. The derive macro [`Fidl`](macro@crate::Fidl)
/// implements this trait.
pub trait Decode<'m>: Layout + Sized {
    /// Reads the encoding at offset `at` of the message, where `SIZE` bytes are known to be present, and the targets of
    /// its pointers.
    ///
    /// # Errors
    /// See [`Code`].
    fn decode(input: &mut Decoder<'m>, at: usize, context: Context) -> Result<Self, Error>;
}

/// A type whose values can be absent: `Option` of it has an encoding. Structs, unions, vectors, strings and handles are
/// such types; numbers, tables and arrays are not.
pub trait Optional: Layout {
    /// Whether the encoding of an optional value is a pointer to the value. Otherwise the encoding has the layout of
    /// the value, and is all zeros if the value is absent.
    const BOXED: bool;
    /// The number of bytes of the encoding of an optional value.
    const OPTION_SIZE: usize;
    /// The alignment of the encoding of an optional value.
    const OPTION_ALIGN: usize;
}

/// The place of a value in a message, and the limits set by the value's field.
#[derive(Clone, Copy, Debug)]
pub struct Context {
    depth: u32,
    limits: &'static [u32],
}

impl Context {
    pub(crate) const ROOT: Self = Self { depth: 0, limits: &[] };

    /// Returns the context of a field with the given limits.
    #[doc(hidden)]
    #[inline]
    pub const fn with(self, limits: &'static [u32]) -> Self {
        Self { depth: self.depth, limits }
    }

    /// Takes the limit of a vector or string: the greatest number of its elements or bytes. Returns the context of the
    /// elements too.
    #[inline]
    pub(crate) fn limit(self) -> (u32, Self) {
        match self.limits {
            [first, rest @ ..] => (*first, self.with(rest)),
            [] => (u32::MAX, self),
        }
    }

    /// Returns the context for an object, given the offset of the object that points to it.
    #[inline]
    pub(crate) fn deeper(self, at: usize) -> Result<Self, Error> {
        if self.depth >= MAX_DEPTH {
            return Err(Error::new(Code::ExceededMaxOutOfLineDepth, at));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }
}
