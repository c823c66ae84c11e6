//! Values to the bytes of postcard.
//!
//! The place of the next byte is passed on by value: each method takes the encoder and returns the encoder for what
//! follows. So the compiler can keep the place in registers over all fields of a struct.

use std::fmt::{self, Display, Write};

use serde::ser::{self, Serialize};

use super::Error;
use crate::output::Cursor;

/// A serializer for appending a value to a message.
pub(super) struct Encoder<'o, 'c>(pub(super) Cursor<'o, 'c>);

/// The result of a method: the encoder for what follows the value.
type Encoded<'o, 'c> = Result<Encoder<'o, 'c>, Error>;

impl<'o, 'c> Encoder<'o, 'c> {
    #[inline(always)]
    fn put_byte(self, byte: u8) -> Encoded<'o, 'c> {
        Ok(Self(self.0.put_word::<1>(byte.into())?))
    }

    /// Appends the lowest `N` bytes of `word`.
    #[inline(always)]
    fn put_word<const N: usize>(self, word: u64) -> Encoded<'o, 'c> {
        Ok(Self(self.0.put_word::<N>(word)?))
    }

    #[inline(always)]
    fn put(self, bytes: &[u8]) -> Encoded<'o, 'c> {
        Ok(Self(self.0.put(bytes)?))
    }

    /// Appends a number as seven bits a byte, the lowest first; the top bit of a byte says that another byte follows.
    #[inline(always)]
    fn put_varint(mut self, mut number: u64) -> Encoded<'o, 'c> {
        while number >= 0x80 {
            self = self.put_byte(number as u8 | 0x80)?;
            number >>= 7;
        }
        self.put_byte(number as u8)
    }

    #[inline]
    fn put_wide_varint(mut self, mut number: u128) -> Encoded<'o, 'c> {
        while number >= 0x80 {
            self = self.put_byte(number as u8 | 0x80)?;
            number >>= 7;
        }
        self.put_byte(number as u8)
    }

    /// Appends the length of a collection.
    #[inline]
    fn put_length(self, len: Option<usize>) -> Encoded<'o, 'c> {
        let len = len.ok_or_else(|| Error::new("the length of a collection is not known before its elements"))?;
        self.put_varint(len as u64)
    }
}

/// Returns a signed number as an unsigned number; numbers near zero become small, in the order 0, -1, 1, -2, ...
#[inline(always)]
fn zigzag(number: i64) -> u64 {
    ((number << 1) ^ (number >> 63)) as u64
}

/// Counts the bytes of a text.
struct Count(usize);

impl Write for Count {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0 += text.len();
        Ok(())
    }
}

/// Appends a text to a message as it is formatted, but no more than the announced number of bytes.
struct Text<'o, 'c> {
    /// The encoder, or why the text could not be appended.
    encoded: Parts<'o, 'c>,
    left: usize,
}

impl Write for Text<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        self.encoded.add(|encoder| encoder.put(text.as_bytes())).map_err(|failed| {
            self.encoded = Parts(Err(Some(failed)));
            fmt::Error
        })
    }
}

macro_rules! numbers {
    ($($method:ident($kind:ty) => |$encoder:ident, $number:ident| $put:expr;)*) => {$(
        #[inline(always)]
        fn $method(self, $number: $kind) -> Encoded<'o, 'c> {
            let $encoder = self;
            $put
        }
    )*};
}

impl<'o, 'c> ser::Serializer for Encoder<'o, 'c> {
    type Ok = Self;
    type Error = Error;
    type SerializeSeq = Parts<'o, 'c>;
    type SerializeTuple = Parts<'o, 'c>;
    type SerializeTupleStruct = Parts<'o, 'c>;
    type SerializeTupleVariant = Parts<'o, 'c>;
    type SerializeMap = Parts<'o, 'c>;
    type SerializeStruct = Parts<'o, 'c>;
    type SerializeStructVariant = Parts<'o, 'c>;

    numbers! {
        serialize_bool(bool) => |encoder, number| encoder.put_byte(number.into());
        serialize_u8(u8) => |encoder, number| encoder.put_byte(number);
        serialize_i8(i8) => |encoder, number| encoder.put_byte(number as u8);
        serialize_u16(u16) => |encoder, number| encoder.put_varint(number.into());
        serialize_u32(u32) => |encoder, number| encoder.put_varint(number.into());
        serialize_u64(u64) => |encoder, number| encoder.put_varint(number);
        serialize_u128(u128) => |encoder, number| encoder.put_wide_varint(number);
        serialize_i16(i16) => |encoder, number| encoder.put_varint(zigzag(number.into()));
        serialize_i32(i32) => |encoder, number| encoder.put_varint(zigzag(number.into()));
        serialize_i64(i64) => |encoder, number| encoder.put_varint(zigzag(number));
        serialize_i128(i128) => |encoder, number| {
            encoder.put_wide_varint(((number << 1) ^ (number >> 127)) as u128)
        };
        serialize_f32(f32) => |encoder, number| encoder.put_word::<4>(number.to_bits().into());
        serialize_f64(f64) => |encoder, number| encoder.put_word::<8>(number.to_bits());
        serialize_char(char) => |encoder, number| encoder.serialize_str(number.encode_utf8(&mut [0; 4]));
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Encoded<'o, 'c> {
        self.serialize_bytes(text.as_bytes())
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Encoded<'o, 'c> {
        self.put_varint(bytes.len() as u64)?.put(bytes)
    }

    #[inline(always)]
    fn serialize_none(self) -> Encoded<'o, 'c> {
        self.put_byte(0)
    }

    #[inline(always)]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Encoded<'o, 'c> {
        value.serialize(self.put_byte(1)?)
    }

    #[inline(always)]
    fn serialize_unit(self) -> Encoded<'o, 'c> {
        Ok(self)
    }

    #[inline(always)]
    fn serialize_unit_struct(self, _: &'static str) -> Encoded<'o, 'c> {
        Ok(self)
    }

    #[inline(always)]
    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Encoded<'o, 'c> {
        self.put_varint(index.into())
    }

    #[inline(always)]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Encoded<'o, 'c> {
        value.serialize(self)
    }

    #[inline(always)]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Encoded<'o, 'c> {
        value.serialize(self.put_varint(index.into())?)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self.put_length(len)?)))
    }

    #[inline(always)]
    fn serialize_tuple(self, _: usize) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self)))
    }

    #[inline(always)]
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self)))
    }

    #[inline(always)]
    fn serialize_tuple_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self.put_varint(index.into())?)))
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self.put_length(len)?)))
    }

    #[inline(always)]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self)))
    }

    #[inline(always)]
    fn serialize_struct_variant(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Parts<'o, 'c>, Error> {
        Ok(Parts(Ok(self.put_varint(index.into())?)))
    }

    /// Formats the text twice: first for its length, and then into the message.
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Encoded<'o, 'c> {
        let mut count = Count(0);
        write!(count, "{value}").map_err(|_| Error::new("a value cannot be formatted"))?;
        let encoder = self.put_varint(count.0 as u64)?;
        let mut text = Text { encoded: Parts(Ok(encoder)), left: count.0 };
        let written = write!(text, "{value}");
        let encoder = text.encoded.finish()?;
        match (written, text.left) {
            (Ok(()), 0) => Ok(encoder),
            _ => Err(Error::new("a value is not formatted twice as the same text")),
        }
    }

    #[inline(always)]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The encoder of a value of several parts: appends one part after the other. After a failure, `Err` with the reason,
/// or without one if the reason was returned already.
pub(super) struct Parts<'o, 'c>(Result<Encoder<'o, 'c>, Option<Error>>);

impl<'o, 'c> Parts<'o, 'c> {
    /// Appends a part.
    #[inline(always)]
    fn add(&mut self, part: impl FnOnce(Encoder<'o, 'c>) -> Encoded<'o, 'c>) -> Result<(), Error> {
        let encoder = std::mem::replace(&mut self.0, Err(None)).map_err(reason)?;
        self.0 = Ok(part(encoder)?);
        Ok(())
    }

    #[inline(always)]
    fn finish(self) -> Encoded<'o, 'c> {
        self.0.map_err(reason)
    }
}

#[cold]
fn reason(failed: Option<Error>) -> Error {
    failed.unwrap_or_else(|| Error::new("an earlier part of the value could not be encoded"))
}

macro_rules! parts {
    ($($compound:ident $method:ident($($name:ty)?) $($skip:ident)?;)*) => {$(
        impl<'o, 'c> ser::$compound for Parts<'o, 'c> {
            type Ok = Encoder<'o, 'c>;
            type Error = Error;

            #[inline(always)]
            fn $method<T: Serialize + ?Sized>(&mut self, $(_: $name,)? value: &T) -> Result<(), Error> {
                self.add(|encoder| value.serialize(encoder))
            }

            $(
                /// A receiver could not notice that a field is missing, and would read the next field instead.
                #[cold]
                fn $skip(&mut self, name: &'static str) -> Result<(), Error> {
                    Err(Error::new(format!(
                        "the field `{name}` is left out (skip_serializing_if), and Postcard has no names of fields: use \
                         another codec for this type"
                    )))
                }
            )?

            #[inline(always)]
            fn end(self) -> Encoded<'o, 'c> {
                self.finish()
            }
        }
    )*};
}

parts! {
    SerializeSeq serialize_element();
    SerializeTuple serialize_element();
    SerializeTupleStruct serialize_field();
    SerializeTupleVariant serialize_field();
    SerializeStruct serialize_field(&'static str) skip_field;
    SerializeStructVariant serialize_field(&'static str) skip_field;
}

impl<'o, 'c> ser::SerializeMap for Parts<'o, 'c> {
    type Ok = Encoder<'o, 'c>;
    type Error = Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        self.add(|encoder| key.serialize(encoder))
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        self.add(|encoder| value.serialize(encoder))
    }

    #[inline]
    fn end(self) -> Encoded<'o, 'c> {
        self.finish()
    }
}
