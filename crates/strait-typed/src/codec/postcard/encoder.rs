//! Values to the bytes of postcard.

use std::fmt::{self, Display, Write};

use serde::ser::{self, Serialize};

use super::Error;
use crate::output::{Full, Output};

/// A serializer that appends a value to a message.
pub(super) struct Encoder<'o, 'c>(pub(super) &'o mut Output<'c>);

impl Encoder<'_, '_> {
    /// Appends a number as seven bits a byte, the lowest first; the top bit of a byte says that another byte follows.
    #[inline(always)]
    fn put_varint(&mut self, mut number: u64) -> Result<(), Error> {
        while number >= 0x80 {
            self.0.put_byte(number as u8 | 0x80)?;
            number >>= 7;
        }
        Ok(self.0.put_byte(number as u8)?)
    }

    #[inline]
    fn put_wide_varint(&mut self, mut number: u128) -> Result<(), Error> {
        while number >= 0x80 {
            self.0.put_byte(number as u8 | 0x80)?;
            number >>= 7;
        }
        Ok(self.0.put_byte(number as u8)?)
    }

    /// Appends the length of a collection.
    #[inline]
    fn put_length(&mut self, len: Option<usize>) -> Result<(), Error> {
        let len = len.ok_or_else(|| Error::new("the length of a collection is not known before its elements"))?;
        self.put_varint(len as u64)
    }
}

/// Returns a signed number as an unsigned one, in which numbers near zero are small: 0, -1, 1, -2, ...
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
    out: &'o mut Output<'c>,
    left: usize,
    full: Option<Full>,
}

impl Write for Text<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.left = self.left.checked_sub(text.len()).ok_or(fmt::Error)?;
        self.out.put(text.as_bytes()).map_err(|full| {
            self.full = Some(full);
            fmt::Error
        })
    }
}

macro_rules! numbers {
    ($($method:ident($kind:ty) => |$encoder:ident, $number:ident| $put:expr;)*) => {$(
        #[inline(always)]
        fn $method(self, $number: $kind) -> Result<(), Error> {
            let $encoder = self;
            $put
        }
    )*};
}

impl ser::Serializer for &mut Encoder<'_, '_> {
    type Ok = ();
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    numbers! {
        serialize_bool(bool) => |encoder, number| Ok(encoder.0.put_byte(number.into())?);
        serialize_u8(u8) => |encoder, number| Ok(encoder.0.put_byte(number)?);
        serialize_i8(i8) => |encoder, number| Ok(encoder.0.put_byte(number as u8)?);
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
        serialize_f32(f32) => |encoder, number| Ok(encoder.0.put(&number.to_le_bytes())?);
        serialize_f64(f64) => |encoder, number| Ok(encoder.0.put(&number.to_le_bytes())?);
        serialize_char(char) => |encoder, number| encoder.serialize_str(number.encode_utf8(&mut [0; 4]));
    }

    #[inline]
    fn serialize_str(self, text: &str) -> Result<(), Error> {
        self.serialize_bytes(text.as_bytes())
    }

    #[inline]
    fn serialize_bytes(self, bytes: &[u8]) -> Result<(), Error> {
        self.put_varint(bytes.len() as u64)?;
        Ok(self.0.put(bytes)?)
    }

    #[inline(always)]
    fn serialize_none(self) -> Result<(), Error> {
        Ok(self.0.put_byte(0)?)
    }

    #[inline(always)]
    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<(), Error> {
        self.0.put_byte(1)?;
        value.serialize(self)
    }

    #[inline(always)]
    fn serialize_unit(self) -> Result<(), Error> {
        Ok(())
    }

    #[inline(always)]
    fn serialize_unit_struct(self, _: &'static str) -> Result<(), Error> {
        Ok(())
    }

    #[inline(always)]
    fn serialize_unit_variant(self, _: &'static str, index: u32, _: &'static str) -> Result<(), Error> {
        self.put_varint(index.into())
    }

    #[inline(always)]
    fn serialize_newtype_struct<T: Serialize + ?Sized>(self, _: &'static str, value: &T) -> Result<(), Error> {
        value.serialize(self)
    }

    #[inline(always)]
    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        index: u32,
        _: &'static str,
        value: &T,
    ) -> Result<(), Error> {
        self.put_varint(index.into())?;
        value.serialize(self)
    }

    #[inline]
    fn serialize_seq(self, len: Option<usize>) -> Result<Self, Error> {
        self.put_length(len)?;
        Ok(self)
    }

    #[inline(always)]
    fn serialize_tuple(self, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    #[inline(always)]
    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    #[inline(always)]
    fn serialize_tuple_variant(self, _: &'static str, index: u32, _: &'static str, _: usize) -> Result<Self, Error> {
        self.put_varint(index.into())?;
        Ok(self)
    }

    #[inline]
    fn serialize_map(self, len: Option<usize>) -> Result<Self, Error> {
        self.put_length(len)?;
        Ok(self)
    }

    #[inline(always)]
    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    #[inline(always)]
    fn serialize_struct_variant(self, _: &'static str, index: u32, _: &'static str, _: usize) -> Result<Self, Error> {
        self.put_varint(index.into())?;
        Ok(self)
    }

    /// Formats the text twice: first for its length, and then into the message.
    fn collect_str<T: Display + ?Sized>(self, value: &T) -> Result<(), Error> {
        let mut count = Count(0);
        write!(count, "{value}").map_err(|_| Error::new("a value cannot be formatted"))?;
        self.put_varint(count.0 as u64)?;
        let mut text = Text { out: &mut *self.0, left: count.0, full: None };
        let written = write!(text, "{value}").map(|()| text.left);
        match (written, text.full) {
            (_, Some(full)) => Err(full.into()),
            (Ok(0), None) => Ok(()),
            _ => Err(Error::new("a value is not formatted twice as the same text")),
        }
    }

    #[inline(always)]
    fn is_human_readable(&self) -> bool {
        false
    }
}

macro_rules! compound {
    ($($compound:ident $method:ident)*) => {$(
        impl ser::$compound for &mut Encoder<'_, '_> {
            type Ok = ();
            type Error = Error;

            #[inline(always)]
            fn $method<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
                value.serialize(&mut **self)
            }

            #[inline(always)]
            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        }
    )*};
}

compound! {
    SerializeSeq serialize_element
    SerializeTuple serialize_element
    SerializeTupleStruct serialize_field
    SerializeTupleVariant serialize_field
}

macro_rules! named {
    ($($compound:ident)*) => {$(
        impl ser::$compound for &mut Encoder<'_, '_> {
            type Ok = ();
            type Error = Error;

            #[inline(always)]
            fn serialize_field<T: Serialize + ?Sized>(&mut self, _: &'static str, value: &T) -> Result<(), Error> {
                value.serialize(&mut **self)
            }

            #[inline(always)]
            fn end(self) -> Result<(), Error> {
                Ok(())
            }
        }
    )*};
}

named! { SerializeStruct SerializeStructVariant }

impl ser::SerializeMap for &mut Encoder<'_, '_> {
    type Ok = ();
    type Error = Error;

    #[inline]
    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        key.serialize(&mut **self)
    }

    #[inline]
    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(&mut **self)
    }

    #[inline]
    fn end(self) -> Result<(), Error> {
        Ok(())
    }
}
