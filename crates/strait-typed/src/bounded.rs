//! A deserializer around the deserializer of a codec. The wrapper bounds the depth and the number of elements of a
//! message, and hides the claimed lengths.
//!
//! Collections reserve memory by the length that a deserializer reports. A peer can claim any length, so this
//! deserializer reports no length: a collection grows as its elements are read. The memory of a decoded value is
//! therefore proportional to the bytes received. A type whose elements have no bytes (`Vec<()>`) could still claim
//! billions of elements. So each element costs a unit of the budget, which is the number of bytes plus [`SPARE`].
//!
//! A recursive type could be nested as deeply as the message is long, and overflow the stack; [`DEPTH`] ends this.

use std::cell::Cell;
use std::fmt;

use serde::Deserialize;
use serde::de::{self, DeserializeSeed, Deserializer, EnumAccess, MapAccess, SeqAccess, VariantAccess, Visitor};

use crate::limits::{DEPTH, SPARE};

/// The limits of a message.
pub(crate) struct Budget {
    elements: Cell<usize>,
    /// The limit that the message has exceeded. Some codecs lose the text of an error, so it is kept here.
    exceeded: Cell<Option<&'static str>>,
}

impl Budget {
    /// Creates the limits for a message of `len` bytes.
    pub(crate) fn of(len: usize) -> Self {
        Self { elements: Cell::new(len.saturating_add(SPARE)), exceeded: Cell::new(None) }
    }

    /// Returns the limit exceeded by the message, if any.
    pub(crate) fn exceeded(&self) -> Option<&'static str> {
        self.exceeded.get()
    }

    fn exceed<E: de::Error>(&self, limit: &'static str) -> E {
        self.exceeded.set(Some(limit));
        E::custom(limit)
    }

    fn count<E: de::Error>(&self) -> Result<(), E> {
        match self.elements.get().checked_sub(1) {
            Some(left) => {
                self.elements.set(left);
                Ok(())
            }
            None => Err(self.exceed("more elements than the message has bytes for")),
        }
    }
}

/// The limits at one place of a message.
#[derive(Clone, Copy)]
pub(crate) struct Limits<'b> {
    budget: &'b Budget,
    depth: usize,
}

impl<'b> Limits<'b> {
    /// Creates the limits that apply at the outermost value of a message.
    pub(crate) fn new(budget: &'b Budget) -> Self {
        Self { budget, depth: DEPTH }
    }

    fn deeper<E: de::Error>(self) -> Result<Self, E> {
        match self.depth.checked_sub(1) {
            Some(depth) => Ok(Self { depth, ..self }),
            None => Err(self.budget.exceed("values are nested too deeply")),
        }
    }
}

/// Decodes a value of serde from `deserializer` within limits for a message of `len` bytes. Returns the reason if the
/// value exceeds a limit, and otherwise what `text` says of the codec's error.
#[inline]
pub(crate) fn within_limits<'de, T, D>(
    deserializer: D,
    len: usize,
    text: impl FnOnce(D::Error) -> String,
) -> Result<T, String>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    let budget = Budget::of(len);
    let limits = Limits::new(&budget);
    T::deserialize(Bounded { inner: deserializer, limits })
        .map_err(|error| budget.exceeded().map_or_else(|| text(error), str::to_owned))
}

/// A part of a codec's deserializer, with limits: the deserializer itself, a seed, or an access object that a
/// deserializer gives to a visitor.
pub(crate) struct Bounded<'b, T> {
    pub(crate) inner: T,
    pub(crate) limits: Limits<'b>,
}

/// A visitor that passes the limits on to the values nested in the visited value.
struct Visit<'b, V> {
    visitor: V,
    limits: Limits<'b>,
    /// Whether the elements of the visited value count. The elements of a tuple or struct do not count: their number is
    /// part of the type.
    counts: bool,
}

/// The elements of a sequence or map, with limits.
struct Elements<'b, A> {
    access: A,
    limits: Limits<'b>,
    counts: bool,
}

impl<A> Elements<'_, A> {
    /// Returns `element`, after a count if it is there: the search for an element behind the last one costs nothing.
    #[inline]
    fn counted<T, E: de::Error>(&self, element: Option<T>) -> Result<Option<T>, E> {
        if self.counts && element.is_some() {
            self.limits.budget.count()?;
        }
        Ok(element)
    }
}

macro_rules! pass_on {
    ($($method:ident)*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, D::Error> {
            self.inner.$method(visitor)
        }
    )*};
}

macro_rules! bound {
    ($($method:ident $counts:literal ($($name:ident: $kind:ty),*))*) => {$(
        #[inline]
        fn $method<V: Visitor<'de>>(self, $($name: $kind,)* visitor: V) -> Result<V::Value, D::Error> {
            let limits = self.limits.deeper()?;
            self.inner.$method($($name,)* Visit { visitor, limits, counts: $counts })
        }
    )*};
}

impl<'de, D: Deserializer<'de>> Deserializer<'de> for Bounded<'_, D> {
    type Error = D::Error;

    pass_on! {
        deserialize_bool deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
        deserialize_f32 deserialize_f64 deserialize_char deserialize_unit deserialize_identifier
    }

    #[inline]
    fn deserialize_unit_struct<V: Visitor<'de>>(self, name: &'static str, visitor: V) -> Result<V::Value, D::Error> {
        self.inner.deserialize_unit_struct(name, visitor)
    }

    // A self-describing codec may find a sequence where a visitor asks for a string or for bytes.
    bound! {
        deserialize_any true ()
        deserialize_str true ()
        deserialize_string true ()
        deserialize_bytes true ()
        deserialize_byte_buf true ()
        deserialize_ignored_any true ()
        deserialize_option false ()
        deserialize_seq true ()
        deserialize_map true ()
        deserialize_newtype_struct false (name: &'static str)
        deserialize_tuple false (len: usize)
        deserialize_tuple_struct false (name: &'static str, len: usize)
        deserialize_struct false (name: &'static str, fields: &'static [&'static str])
        deserialize_enum false (name: &'static str, variants: &'static [&'static str])
    }

    #[inline]
    fn is_human_readable(&self) -> bool {
        self.inner.is_human_readable()
    }
}

macro_rules! visit {
    ($($method:ident($kind:ty))*) => {$(
        #[inline]
        fn $method<E: de::Error>(self, value: $kind) -> Result<V::Value, E> {
            self.visitor.$method(value)
        }
    )*};
}

impl<'de, V: Visitor<'de>> Visitor<'de> for Visit<'_, V> {
    type Value = V::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.visitor.expecting(f)
    }

    visit! {
        visit_bool(bool) visit_i8(i8) visit_i16(i16) visit_i32(i32) visit_i64(i64) visit_i128(i128)
        visit_u8(u8) visit_u16(u16) visit_u32(u32) visit_u64(u64) visit_u128(u128)
        visit_f32(f32) visit_f64(f64) visit_char(char)
        visit_str(&str) visit_borrowed_str(&'de str) visit_string(String)
        visit_bytes(&[u8]) visit_borrowed_bytes(&'de [u8]) visit_byte_buf(Vec<u8>)
    }

    #[inline]
    fn visit_none<E: de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_none()
    }

    #[inline]
    fn visit_unit<E: de::Error>(self) -> Result<V::Value, E> {
        self.visitor.visit_unit()
    }

    #[inline]
    fn visit_some<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_some(Bounded { inner, limits: self.limits })
    }

    #[inline]
    fn visit_newtype_struct<D: Deserializer<'de>>(self, inner: D) -> Result<V::Value, D::Error> {
        self.visitor.visit_newtype_struct(Bounded { inner, limits: self.limits })
    }

    #[inline]
    fn visit_seq<A: SeqAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_seq(Elements { access, limits: self.limits, counts: self.counts })
    }

    #[inline]
    fn visit_map<A: MapAccess<'de>>(self, access: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_map(Elements { access, limits: self.limits, counts: self.counts })
    }

    #[inline]
    fn visit_enum<A: EnumAccess<'de>>(self, inner: A) -> Result<V::Value, A::Error> {
        self.visitor.visit_enum(Bounded { inner, limits: self.limits })
    }
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Bounded<'_, S> {
    type Value = S::Value;

    #[inline]
    fn deserialize<D: Deserializer<'de>>(self, inner: D) -> Result<S::Value, D::Error> {
        self.inner.deserialize(Bounded { inner, limits: self.limits })
    }
}

impl<'de, A: SeqAccess<'de>> SeqAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let element = self.access.next_element_seed(Bounded { inner: seed, limits: self.limits })?;
        self.counted(element)
    }
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for Elements<'_, A> {
    type Error = A::Error;

    #[inline]
    fn next_key_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, A::Error> {
        let key = self.access.next_key_seed(Bounded { inner: seed, limits: self.limits })?;
        self.counted(key)
    }

    #[inline]
    fn next_value_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<S::Value, A::Error> {
        self.access.next_value_seed(Bounded { inner: seed, limits: self.limits })
    }
}

impl<'de, 'b, A: EnumAccess<'de>> EnumAccess<'de> for Bounded<'b, A> {
    type Error = A::Error;
    type Variant = Bounded<'b, A::Variant>;

    #[inline]
    fn variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<(S::Value, Self::Variant), A::Error> {
        let limits = self.limits;
        let (value, inner) = self.inner.variant_seed(Bounded { inner: seed, limits })?;
        Ok((value, Bounded { inner, limits }))
    }
}

impl<'de, A: VariantAccess<'de>> VariantAccess<'de> for Bounded<'_, A> {
    type Error = A::Error;

    #[inline]
    fn unit_variant(self) -> Result<(), A::Error> {
        self.inner.unit_variant()
    }

    #[inline]
    fn newtype_variant_seed<S: DeserializeSeed<'de>>(self, seed: S) -> Result<S::Value, A::Error> {
        self.inner.newtype_variant_seed(Bounded { inner: seed, limits: self.limits })
    }

    #[inline]
    fn tuple_variant<V: Visitor<'de>>(self, len: usize, visitor: V) -> Result<V::Value, A::Error> {
        self.inner.tuple_variant(len, Visit { visitor, limits: self.limits, counts: false })
    }

    #[inline]
    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, A::Error> {
        self.inner.struct_variant(fields, Visit { visitor, limits: self.limits, counts: false })
    }
}
