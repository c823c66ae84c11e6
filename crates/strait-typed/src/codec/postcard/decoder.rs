//! The bytes of postcard to values.
//!
//! A claimed length is compared with the bytes present before any memory is reserved, and a collection reserves at most
//! one element for each eight bytes that follow. Each element costs a unit of a budget of the number of bytes plus
//! [`SPARE`], so that elements without bytes (`Vec<()>`) are bounded too. Options, enums, sequences and maps are nested
//! at most [`DEPTH`] deep: every recursive type contains such a value.

use serde::de::value::U32Deserializer;
use serde::de::{self, Deserialize, DeserializeSeed, IntoDeserializer, Visitor};

use super::Error;
use super::source::Source;
use crate::limits::{DEPTH, SPARE};

/// A deserializer that reads a value from the bytes of a message.
pub(super) struct Decoder<S> {
    /// The bytes not read yet.
    source: S,
    /// The number of elements that the collections of the message may still have.
    elements: usize,
    /// The number of levels by which values may still be nested.
    depth: usize,
}

impl<'de, S: Source<'de>> Decoder<S> {
    #[inline(always)]
    pub(super) fn new(source: S) -> Self {
        Self { elements: source.left().saturating_add(SPARE), source, depth: DEPTH }
    }

    /// Returns the number of bytes not read yet.
    #[inline(always)]
    pub(super) fn left(&self) -> usize {
        self.source.left()
    }

    #[inline(always)]
    fn byte(&mut self) -> Result<u8, Error> {
        self.source.byte()
    }

    #[inline(always)]
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Error> {
        self.source.array()
    }

    /// Reads a number of at most `bits` bits, seven bits a byte.
    #[inline(always)]
    fn varint(&mut self, bits: u32) -> Result<u64, Error> {
        let first = self.byte()?;
        if first < 0x80 { Ok(first.into()) } else { self.long_varint(first, bits) }
    }

    /// Reads the other bytes of a number of at most `bits` bits.
    #[inline]
    fn long_varint(&mut self, first: u8, bits: u32) -> Result<u64, Error> {
        let (mut number, mut shift, mut byte) = (u64::from(first & 0x7F), 7, first);
        while byte >= 0x80 {
            byte = self.byte()?;
            check_last(byte, shift, bits)?;
            number |= u64::from(byte & 0x7F) << shift;
            shift += 7;
        }
        Ok(number)
    }

    /// Reads a number of at most 128 bits.
    fn wide_varint(&mut self) -> Result<u128, Error> {
        let (mut number, mut shift, mut byte) = (0, 0, 0x80);
        while byte >= 0x80 {
            byte = self.byte()?;
            check_last(byte, shift, 128)?;
            number |= u128::from(byte & 0x7F) << shift;
            shift += 7;
        }
        Ok(number)
    }

    /// Reads the length of a text or of a list of bytes.
    #[inline(always)]
    fn count(&mut self) -> Result<usize, Error> {
        Ok(usize::try_from(self.varint(64)?).unwrap_or(usize::MAX))
    }

    #[inline]
    fn text<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        let len = self.count()?;
        self.source.text(len, visitor)
    }

    #[inline(always)]
    fn bytes<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        let len = self.count()?;
        self.source.bytes(len, visitor)
    }

    fn char(&mut self) -> Result<char, Error> {
        let mut bytes = [0; 4];
        let len = self.count()?;
        let bytes = bytes.get_mut(..len).ok_or_else(|| Error::new("a char is not one character"))?;
        for byte in &mut *bytes {
            *byte = self.byte()?;
        }
        let mut chars = std::str::from_utf8(bytes).map_err(|_| Error::new("a text is not UTF-8"))?.chars();
        match (chars.next(), chars.next()) {
            (Some(char), None) => Ok(char),
            _ => Err(Error::new("a char is not one character")),
        }
    }

    /// Reads a bool, or whether an option has a value.
    #[inline(always)]
    fn flag(&mut self, problem: &'static str) -> Result<bool, Error> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Error::new(problem)),
        }
    }

    /// Reads the number of elements of a collection.
    #[inline]
    fn length(&mut self) -> Result<usize, Error> {
        let len = self.count()?;
        let left = self.elements.checked_sub(len);
        self.elements = left.ok_or_else(|| Error::new("more elements than the message has bytes for"))?;
        Ok(len)
    }

    /// Calls `work` for a value nested in the current value.
    #[inline(always)]
    fn deeper<T>(&mut self, work: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        self.depth = self.depth.checked_sub(1).ok_or_else(|| Error::new("values are nested too deeply"))?;
        let result = work(self);
        self.depth += 1;
        result
    }
}

/// Checks that a byte of a number of `bits` bits has no bits beyond those, nor announces a further byte beyond the
/// last.
#[inline(always)]
fn check_last(byte: u8, shift: u32, bits: u32) -> Result<(), Error> {
    let has_excess = bits - shift < 8 && byte >> (bits - shift) != 0;
    if has_excess { Err(Error::new("a number is too large")) } else { Ok(()) }
}

/// Returns the error of a type that needs names or types in the message.
#[cold]
fn unknown<T>() -> Result<T, Error> {
    Err(Error::new("Postcard has no types in its messages: use a self-describing codec for this type"))
}

/// Returns the signed number of an unsigned one: see the encoder.
#[inline(always)]
fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

macro_rules! numbers {
    ($($method:ident $visit:ident |$decoder:ident| $read:expr;)*) => {$(
        #[inline(always)]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            let $decoder = self;
            visitor.$visit($read)
        }
    )*};
}

impl<'de, S: Source<'de>> de::Deserializer<'de> for &mut Decoder<S> {
    type Error = Error;

    numbers! {
        deserialize_bool visit_bool |decoder| decoder.flag("a bool is neither 0 nor 1")?;
        deserialize_u8 visit_u8 |decoder| decoder.byte()?;
        deserialize_i8 visit_i8 |decoder| decoder.byte()? as i8;
        deserialize_u16 visit_u16 |decoder| decoder.varint(16)? as u16;
        deserialize_u32 visit_u32 |decoder| decoder.varint(32)? as u32;
        deserialize_u64 visit_u64 |decoder| decoder.varint(64)?;
        deserialize_u128 visit_u128 |decoder| decoder.wide_varint()?;
        deserialize_i16 visit_i16 |decoder| unzigzag(decoder.varint(16)?) as i16;
        deserialize_i32 visit_i32 |decoder| unzigzag(decoder.varint(32)?) as i32;
        deserialize_i64 visit_i64 |decoder| unzigzag(decoder.varint(64)?);
        deserialize_i128 visit_i128 |decoder| {
            let number = decoder.wide_varint()?;
            (number >> 1) as i128 ^ -((number & 1) as i128)
        };
        deserialize_f32 visit_f32 |decoder| f32::from_le_bytes(decoder.array()?);
        deserialize_f64 visit_f64 |decoder| f64::from_le_bytes(decoder.array()?);
        deserialize_char visit_char |decoder| decoder.char()?;
        deserialize_any visit_bool |_decoder| unknown()?;
        deserialize_identifier visit_bool |_decoder| unknown()?;
        deserialize_ignored_any visit_bool |_decoder| unknown()?;
    }

    #[inline(always)]
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.text(visitor)
    }

    #[inline(always)]
    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.text(visitor)
    }

    #[inline(always)]
    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.bytes(visitor)
    }

    #[inline(always)]
    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.bytes(visitor)
    }

    #[inline(always)]
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.flag("an option is neither 0 nor 1")? {
            return self.deeper(|decoder| visitor.visit_some(decoder));
        }
        visitor.visit_none()
    }

    #[inline(always)]
    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    #[inline(always)]
    fn deserialize_unit_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    #[inline(always)]
    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _: &'static str, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    #[inline]
    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.length()?;
        self.deeper(|decoder| visitor.visit_seq(Elements { decoder, left }))
    }

    #[inline(always)]
    fn deserialize_tuple<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_seq(Elements { decoder: self, left: len })
    }

    #[inline(always)]
    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        len: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(len, visitor)
    }

    #[inline]
    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.length()?;
        self.deeper(|decoder| visitor.visit_map(Elements { decoder, left }))
    }

    #[inline(always)]
    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_tuple(fields.len(), visitor)
    }

    #[inline]
    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deeper(|decoder| visitor.visit_enum(decoder))
    }

    #[inline(always)]
    fn is_human_readable(&self) -> bool {
        false
    }
}

/// The elements of a collection or struct.
struct Elements<'d, S> {
    decoder: &'d mut Decoder<S>,
    left: usize,
}

impl<'de, S: Source<'de>> Elements<'_, S> {
    /// Returns whether there is another element.
    #[inline(always)]
    fn advance(&mut self) -> bool {
        let has_more = self.left > 0;
        self.left -= usize::from(has_more);
        has_more
    }

    /// Returns for how many elements a collection may reserve memory: a collection grows if an element takes less than
    /// eight bytes.
    #[inline]
    fn justified(&self) -> usize {
        self.left.min(self.decoder.left() / 8)
    }
}

impl<'de, S: Source<'de>> de::SeqAccess<'de> for Elements<'_, S> {
    type Error = Error;

    #[inline(always)]
    fn next_element_seed<D: DeserializeSeed<'de>>(&mut self, seed: D) -> Result<Option<D::Value>, Error> {
        if self.advance() { seed.deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    #[inline(always)]
    fn next_element<T: Deserialize<'de>>(&mut self) -> Result<Option<T>, Error> {
        if self.advance() { T::deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.justified())
    }
}

impl<'de, S: Source<'de>> de::MapAccess<'de> for Elements<'_, S> {
    type Error = Error;

    #[inline]
    fn next_key_seed<D: DeserializeSeed<'de>>(&mut self, seed: D) -> Result<Option<D::Value>, Error> {
        if self.advance() { seed.deserialize(&mut *self.decoder).map(Some) } else { Ok(None) }
    }

    #[inline]
    fn next_value_seed<D: DeserializeSeed<'de>>(&mut self, seed: D) -> Result<D::Value, Error> {
        seed.deserialize(&mut *self.decoder)
    }

    #[inline]
    fn size_hint(&self) -> Option<usize> {
        Some(self.justified())
    }
}

impl<'de, S: Source<'de>> de::EnumAccess<'de> for &mut Decoder<S> {
    type Error = Error;
    type Variant = Self;

    #[inline(always)]
    fn variant_seed<D: DeserializeSeed<'de>>(self, seed: D) -> Result<(D::Value, Self), Error> {
        let index: U32Deserializer<Error> = (self.varint(32)? as u32).into_deserializer();
        Ok((seed.deserialize(index)?, self))
    }
}

impl<'de, S: Source<'de>> de::VariantAccess<'de> for &mut Decoder<S> {
    type Error = Error;

    #[inline(always)]
    fn unit_variant(self) -> Result<(), Error> {
        Ok(())
    }

    #[inline(always)]
    fn newtype_variant_seed<D: DeserializeSeed<'de>>(self, seed: D) -> Result<D::Value, Error> {
        seed.deserialize(self)
    }

    #[inline(always)]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_tuple(self, len, visitor)
    }

    #[inline(always)]
    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_tuple(self, fields.len(), visitor)
    }
}
