//! Support for the code of the derive macro. Not for programs: changes without notice.

pub use crate::decode::Decoder;
pub use crate::encode::Output;
use crate::envelope;
pub use crate::envelope::Envelope;
pub use crate::error::{Code, Error};
pub use crate::layout::{Context, Decode, Encode, Layout, Optional};
use crate::memory;

/// A field of a struct.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    size: usize,
    align: usize,
    copyable: bool,
    any_bits: bool,
    offset: usize,
    memory: usize,
}

impl Field {
    /// Describes a field of type `T` at this offset of the struct in memory.
    pub const fn new<T: Layout>(offset: usize) -> Self {
        let (copyable, any_bits) = (T::COPYABLE, T::ANY_BITS);
        Self { size: T::SIZE, align: T::ALIGN, copyable, any_bits, offset, memory: size_of::<T>() }
    }
}

/// Returns where a field begins in the encoding of its struct; for the number of fields, where the last field ends.
pub const fn offset(fields: &[Field], index: usize) -> usize {
    let (mut end, mut at) = (0_usize, 0);
    while at < index {
        end = end.next_multiple_of(fields[at].align) + fields[at].size;
        at += 1;
    }
    if index < fields.len() { end.next_multiple_of(fields[index].align) } else { end }
}

/// Returns the alignment of a struct.
pub const fn align(fields: &[Field]) -> usize {
    let (mut align, mut at) = (1, 0);
    while at < fields.len() {
        if fields[at].align > align {
            align = fields[at].align;
        }
        at += 1;
    }
    align
}

/// Returns the number of bytes of the encoding of a struct.
pub const fn size(fields: &[Field]) -> usize {
    if fields.is_empty() { 1 } else { offset(fields, fields.len()).next_multiple_of(align(fields)) }
}

/// Returns whether the memory of a struct of `memory` bytes is its encoding: neither has padding, and the fields are at
/// the same places in both.
pub const fn copyable(fields: &[Field], memory: usize) -> bool {
    let (mut end, mut at) = (0, 0);
    while at < fields.len() {
        let field = fields[at];
        if !field.copyable || field.memory != field.size || field.offset != end || end % field.align != 0 {
            return false;
        }
        end += field.size;
        at += 1;
    }
    !fields.is_empty() && end == memory && end == size(fields)
}

/// Returns whether any bytes are the encoding of a struct.
pub const fn any_bits(fields: &[Field]) -> bool {
    let mut at = 0;
    while at < fields.len() {
        if !fields[at].any_bits {
            return false;
        }
        at += 1;
    }
    true
}

/// Checks that a field of the type takes `count` limits. Called by the compiler.
///
/// # Panics
/// If the type takes fewer limits; a compile error.
pub const fn check_limits<T: Layout + ?Sized>(count: usize) {
    assert!(
        count <= T::LIMITS,
        "this field does not take so many limits: `#[fidl(max)]` is for a string, and for each level of nested vectors"
    );
}

/// Writes a value as the bytes of its memory, if the memory is the encoding. Returns whether the value was written.
#[inline]
pub fn encode_copyable<T: Layout>(value: &T, out: &mut Output<'_>, at: usize) -> bool {
    memory::bytes_of(std::slice::from_ref(value)).map(|bytes| out.put(at, bytes)).is_some()
}

/// Reads a value as its memory, if any bytes are a value.
///
/// # Errors
/// The message is too short.
#[inline]
pub fn decode_any<T: Layout>(input: &Decoder<'_>, at: usize) -> Result<Option<T>, Error> {
    if !memory::is_any::<T>() {
        return Ok(None);
    }
    Ok(memory::value_of(input.bytes(at, T::SIZE)?))
}

/// Writes a field of a struct.
///
/// # Errors
/// The errors of encoding the field.
#[inline]
pub fn encode_field<'v, T: Encode + ?Sized>(
    value: &'v T,
    out: &mut Output<'v>,
    at: usize,
    context: Context,
    name: &'static str,
) -> Result<(), Error> {
    value.encode(out, at, context).map_err(|error| error.in_field(name))
}

/// Reads a field of a struct.
///
/// # Errors
/// The errors of decoding the field.
#[inline]
pub fn decode_field<'m, T: Decode<'m>>(
    input: &mut Decoder<'m>,
    at: usize,
    context: Context,
    name: &'static str,
) -> Result<T, Error> {
    T::decode(input, at, context).map_err(|error| error.in_field(name))
}

/// Writes the bytes of an enum or of bits.
#[inline]
pub fn put(out: &mut Output<'_>, at: usize, bytes: &[u8]) {
    out.put(at, bytes);
}

/// Creates an error of the object at the given offset.
pub fn error(code: Code, at: usize) -> Error {
    Error::new(code, at)
}

/// Checks that the bytes between two offsets are zero.
///
/// # Errors
/// [`Code::InvalidPaddingByte`].
#[inline]
pub fn padding(input: &Decoder<'_>, from: usize, to: usize) -> Result<(), Error> {
    if from < to { input.zeros(from, to) } else { Ok(()) }
}

/// Checks the byte of a struct without fields.
///
/// # Errors
/// [`Code::InvalidEmptyStruct`].
pub fn empty(input: &Decoder<'_>, at: usize) -> Result<(), Error> {
    if input.array(at)? == [0] { Ok(()) } else { Err(Error::new(Code::InvalidEmptyStruct, at)) }
}

/// Writes the words of a table, and adds the envelopes, filled with zeros. Returns the place and the context of the
/// envelopes.
///
/// # Errors
/// [`Code::ExceededMaxOutOfLineDepth`].
pub fn encode_table(out: &mut Output<'_>, at: usize, context: Context, max: u64) -> Result<(usize, Context), Error> {
    let context = out.deeper(context, at)?;
    out.put(at, &max.to_le_bytes());
    out.put(at + 8, &crate::decode::PRESENT.to_le_bytes());
    Ok((out.object(max as usize * envelope::SIZE), context))
}

/// Writes a field of a table.
///
/// # Errors
/// The errors of encoding the field.
pub fn encode_member<'v, T: Encode>(
    value: &'v T,
    out: &mut Output<'v>,
    body: usize,
    ordinal: u64,
    context: Context,
    name: &'static str,
) -> Result<(), Error> {
    let at = body + (ordinal as usize - 1) * envelope::SIZE;
    envelope::encode(value, out, at, context).map_err(|error| error.in_field(name))
}

/// The envelopes of a table being decoded, in order.
#[derive(Clone, Copy, Debug)]
pub struct Members {
    body: usize,
    count: u64,
    next: u64,
    /// The context of the envelopes.
    pub context: Context,
}

impl Members {
    /// Reads the words of a table, and takes the envelopes.
    ///
    /// # Errors
    /// The words are invalid, or the envelopes are not there.
    pub fn read(input: &mut Decoder<'_>, at: usize, context: Context) -> Result<Self, Error> {
        let (count, presence) = (input.u64(at)?, input.u64(at + 8)?);
        if count > u64::from(u32::MAX) {
            return Err(Error::new(Code::TableCountExceeds32BitLimit, at));
        }
        match presence {
            crate::decode::PRESENT => {}
            0 => return Err(Error::new(Code::NonNullableTypeWithNullValue, at + 8)),
            _ => return Err(Error::new(Code::InvalidPresenceIndicator, at + 8)),
        }
        if count > envelope::MAX_ORDINAL {
            return Err(Error::new(Code::CountExceedsLimit, at));
        }
        let context = context.deeper(at)?;
        let body = input.object(count as usize * envelope::SIZE)?;
        Ok(Self { body, count, next: 0, context })
    }

    /// Returns the ordinal and the envelope of the next present field; `None` after the last field.
    ///
    /// # Errors
    /// The envelope is invalid.
    pub fn next(&mut self, input: &mut Decoder<'_>) -> Result<Option<(u64, Envelope)>, Error> {
        while self.next < self.count {
            self.next += 1;
            let at = self.body + (self.next as usize - 1) * envelope::SIZE;
            match Envelope::read(input, at)? {
                Some(envelope) => return Ok(Some((self.next, envelope))),
                None if self.next == self.count => input.count_skipped(),
                None => {}
            }
        }
        Ok(None)
    }
}

/// Reads a field of a table or union.
///
/// # Errors
/// The errors of the envelope and of decoding the field.
pub fn decode_member<'m, T: Decode<'m>>(
    envelope: Envelope,
    input: &mut Decoder<'m>,
    context: Context,
    name: &'static str,
) -> Result<T, Error> {
    envelope.decode(input, context).map_err(|error| error.in_field(name))
}

/// Writes a union.
///
/// # Errors
/// The errors of encoding the field.
pub fn encode_union<'v, T: Encode>(
    value: &'v T,
    out: &mut Output<'v>,
    at: usize,
    ordinal: u64,
    context: Context,
    name: &'static str,
) -> Result<(), Error> {
    out.put(at, &ordinal.to_le_bytes());
    envelope::encode(value, out, at + envelope::IN_UNION, context).map_err(|error| error.in_field(name))
}

/// Creates the error of a union whose unknown field was dropped. The parameter `_ordinal` makes the ordinal count as
/// read: otherwise the compiler would warn of an unread field of the enum.
pub fn unknown(out: &Output<'_>, at: usize, _ordinal: u64) -> Error {
    out.error(Code::FlexibleUnionUnknownField, at)
}

/// Reads the ordinal of a union, and the envelope unless the union refuses the ordinal.
///
/// # Errors
/// The union has no field; the envelope is invalid; [`Code::StrictUnionUnknownField`] if `known` says so.
pub fn read_union(input: &Decoder<'_>, at: usize, known: impl FnOnce(u64) -> bool) -> Result<(u64, Envelope), Error> {
    let ordinal = input.u64(at)?;
    if ordinal == 0 {
        return Err(Error::new(Code::UnionFieldNotSet, at));
    }
    if !known(ordinal) {
        return Err(Error::new(Code::StrictUnionUnknownField, at));
    }
    match Envelope::read(input, at + envelope::IN_UNION)? {
        Some(envelope) => Ok((ordinal, envelope)),
        None => Err(Error::new(Code::UnionFieldNotSet, at + envelope::IN_UNION)),
    }
}
