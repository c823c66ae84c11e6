//! Arrays of numbers as fields of messages.

use std::fmt;

use serde::de::{self, Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::ser::{self, Serializer};
use serde::{Deserialize, Serialize};
use strait::Handle;
use strait::region::{Region, RegionError};

#[cfg(feature = "msgpack")]
use crate::bounded::{Bounded, Budget, Limits};
#[cfg(feature = "msgpack")]
use crate::extension;
use crate::extension::Bytes;
use crate::handles::slot;
#[cfg(feature = "msgpack")]
use crate::scratch::{self, Carries};
use crate::scratch::{Slot, exchange, receive_handle, send_handle};

/// The code of the extension type of an array.
#[cfg(feature = "msgpack")]
const ARRAY: i8 = 2;

/// The greatest number of dimensions.
const MAX_DIMENSIONS: usize = 32;

/// An array of numbers in a message: the type of the elements, the shape, and the bytes. If both ends use MessagePack,
/// a program in Python receives the object as an array of NumPy, and can send NumPy arrays to this type.
///
/// ```
/// use strait_typed::codec::MsgPack;
/// use strait_typed::{Array, Typed};
///
/// let (near, far) = Typed::<Array, (), MsgPack>::pair()?;
/// near.send(&Array::from_slice(&[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0_f64])?)?;
///
/// let array = far.recv()?;
/// assert_eq!((array.dtype(), array.shape()), ("<f8", &[2, 3][..]));
/// assert_eq!(array.to_vec::<f64>()?, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// A large array travels without a copy if its bytes are in a sealed region of shared memory: see
/// [`Array::in_region`].
///
/// The array may come from a hostile peer. The shape fits the bytes, but the peer has chosen the values of the
/// elements.
pub struct Array {
    dtype: String,
    shape: Vec<u64>,
    order: Order,
    data: Data,
}

/// The order of the elements of an array in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The last index changes fastest, as in C.
    C,
    /// The first index changes fastest, as in Fortran.
    Fortran,
}

enum Data {
    Inline(Vec<u8>),
    Region { slot: Slot, offset: u64 },
}

/// Why there is no such array.
#[derive(Debug)]
#[non_exhaustive]
pub enum ArrayError {
    /// No array has this type of elements in a message.
    Dtype(String),
    /// The shape has more than 32 dimensions, or not as many elements as the array has bytes for.
    Shape,
    /// The elements have another type than the caller asks for.
    OtherDtype(String),
    /// The array was sent, and the bytes with it.
    Sent,
    /// The bytes are in a region that is not sealed.
    NotSealed,
    /// The region cannot be read.
    Region(RegionError),
}

impl fmt::Display for ArrayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dtype(dtype) => write!(f, "`{}` is no type of the elements of an array", dtype.escape_debug()),
            Self::Shape => f.write_str("the shape of the array does not fit its bytes"),
            Self::OtherDtype(dtype) => write!(f, "the elements of the array have the type `{dtype}`"),
            Self::Sent => f.write_str("the array was sent already"),
            Self::NotSealed => {
                f.write_str("the bytes of the array are in a region that is not sealed: seal the region")
            }
            Self::Region(error) => write!(f, "the bytes of the array cannot be read: {error}"),
        }
    }
}

impl std::error::Error for ArrayError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Region(error) => Some(error),
            _ => None,
        }
    }
}

/// A type of numbers for the elements of arrays.
pub trait Element: Copy + sealed::Sealed {
    /// The name of the type in messages: NumPy's `dtype.str` of a machine with the least significant byte first.
    const DTYPE: &'static str;
}

mod sealed {
    /// The methods of [`super::Element`], out of reach of other crates.
    pub trait Sealed: Sized {
        /// Appends the bytes of a number.
        fn append(self, bytes: &mut Vec<u8>);
        /// Returns the number with the given bytes.
        fn of(bytes: &[u8]) -> Option<Self>;
    }
}

macro_rules! element {
    ($($type:ident $dtype:literal)*) => {$(
        impl Element for $type {
            const DTYPE: &'static str = $dtype;
        }

        impl sealed::Sealed for $type {
            #[inline]
            fn append(self, bytes: &mut Vec<u8>) {
                bytes.extend_from_slice(&self.to_le_bytes());
            }

            #[inline]
            fn of(bytes: &[u8]) -> Option<Self> {
                Some(Self::from_le_bytes(*bytes.first_chunk()?))
            }
        }
    )*};
}

element! { u8 "|u1" i8 "|i1" u16 "<u2" i16 "<i2" u32 "<u4" i32 "<i4" u64 "<u8" i64 "<i8" f32 "<f4" f64 "<f8" }

impl fmt::Debug for Array {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Array")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl Array {
    /// Makes an array of a type of elements, a shape and the bytes of the elements.
    ///
    /// # Errors
    /// [`ArrayError::Dtype`], [`ArrayError::Shape`].
    pub fn new(dtype: &str, shape: &[u64], order: Order, bytes: Vec<u8>) -> Result<Self, ArrayError> {
        let size = byte_count(dtype, shape)?;
        let data = Data::Inline(bytes);
        let array = Self { dtype: dtype.to_owned(), shape: shape.to_vec(), order, data };
        if size == array.inline_len() { Ok(array) } else { Err(ArrayError::Shape) }
    }

    /// Makes an array of a shape and its elements, in the order of C.
    ///
    /// # Errors
    /// [`ArrayError::Shape`].
    pub fn from_slice<T: Element>(shape: &[u64], elements: &[T]) -> Result<Self, ArrayError> {
        let mut bytes = Vec::with_capacity(size_of_val(elements));
        elements.iter().for_each(|element| element.append(&mut bytes));
        Self::new(T::DTYPE, shape, Order::C, bytes)
    }

    /// Makes an array whose bytes are in a sealed region from `offset` on. The receiver maps the region, so a large
    /// array travels without a copy.
    ///
    /// # Errors
    /// [`ArrayError::Dtype`]; [`ArrayError::Shape`] if the array is empty or not within the region;
    /// [`ArrayError::NotSealed`].
    pub fn in_region(
        dtype: &str,
        shape: &[u64],
        order: Order,
        region: Region,
        offset: u64,
    ) -> Result<Self, ArrayError> {
        check_region(&region, offset, byte_count(dtype, shape)?)?;
        let data = Data::Region { slot: slot(region), offset };
        Ok(Self { dtype: dtype.to_owned(), shape: shape.to_vec(), order, data })
    }

    /// Returns the type of the elements, written as NumPy's `dtype.str`, or `bfloat16`.
    pub fn dtype(&self) -> &str {
        &self.dtype
    }

    /// Returns the length of each dimension.
    pub fn shape(&self) -> &[u64] {
        &self.shape
    }

    /// Returns the order of the elements in memory.
    pub fn order(&self) -> Order {
        self.order
    }

    /// Returns the bytes of the elements; copies them out of a region.
    ///
    /// # Errors
    /// [`ArrayError::Sent`], [`ArrayError::Region`].
    pub fn into_bytes(self) -> Result<Vec<u8>, ArrayError> {
        match self.data {
            Data::Inline(bytes) => Ok(bytes),
            Data::Region { .. } => self.copy(),
        }
    }

    /// Returns the elements in the order of C: the last index changes fastest, as in [`Array::from_slice`]. The
    /// elements of an array in the order of Fortran are put into that order; [`Array::into_bytes`] and
    /// [`Array::into_region`] give the bytes as they are in memory.
    ///
    /// # Errors
    /// [`ArrayError::OtherDtype`], [`ArrayError::Sent`], [`ArrayError::Region`].
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>, ArrayError> {
        if self.dtype != T::DTYPE {
            return Err(ArrayError::OtherDtype(self.dtype.clone()));
        }
        let elements = |bytes: &[u8]| bytes.chunks_exact(size_of::<T>()).filter_map(T::of).collect::<Vec<T>>();
        let elements = match &self.data {
            Data::Inline(bytes) => elements(bytes),
            Data::Region { .. } => elements(&self.copy()?),
        };
        Ok(match self.order {
            Order::C => elements,
            Order::Fortran => in_order_of_c(&elements, &self.shape),
        })
    }

    /// Returns the region with the bytes and the offset of the first byte, to map the array without a copy. Returns the
    /// array itself if its bytes are in no region.
    ///
    /// # Errors
    /// The array.
    pub fn into_region(self) -> Result<(Region, u64), Self> {
        let Data::Region { slot, offset } = &self.data else { return Err(self) };
        match exchange(slot, None).and_then(Handle::into_region) {
            Some(region) => Ok((region, *offset)),
            None => Err(self),
        }
    }

    /// Copies the bytes of the elements out of the region.
    fn copy(&self) -> Result<Vec<u8>, ArrayError> {
        let Data::Region { slot, offset } = &self.data else { return Ok(Vec::new()) };
        let size = byte_count(&self.dtype, &self.shape)?;
        let Some(Handle::Region(region)) = exchange(slot, None) else { return Err(ArrayError::Sent) };
        let mut bytes = vec![0; size];
        let read = usize::try_from(*offset).map(|offset| region.read_at(&mut bytes, offset));
        exchange(slot, Some(Handle::Region(region)));
        match read {
            Ok(Ok(())) => Ok(bytes),
            Ok(Err(error)) => Err(ArrayError::Region(error)),
            Err(_) => Err(ArrayError::Shape),
        }
    }

    fn inline_len(&self) -> usize {
        match &self.data {
            Data::Inline(bytes) => bytes.len(),
            Data::Region { .. } => 0,
        }
    }
}

/// Puts the elements of an array, which are in the order of Fortran, into the order of C.
fn in_order_of_c<T: Copy>(elements: &[T], shape: &[u64]) -> Vec<T> {
    // For each dimension: its length, how far apart two neighbours are in memory, and the index of the next element.
    let mut dimensions = Vec::with_capacity(shape.len());
    let mut step = 1_u64;
    for &len in shape {
        dimensions.push((len, step, 0_u64));
        step = step.saturating_mul(len);
    }
    let mut at = 0;
    let mut next = || {
        let element = elements.get(usize::try_from(at).ok()?).copied();
        for (len, step, index) in dimensions.iter_mut().rev() {
            *index += 1;
            at += *step;
            if *index < *len {
                break;
            }
            at -= *step * std::mem::take(index);
        }
        element
    };
    (0..elements.len()).map_while(|_| next()).collect()
}

/// Fails unless `size` bytes from `offset` on are in `region`, and the region is sealed.
fn check_region(region: &Region, offset: u64, size: usize) -> Result<(), ArrayError> {
    let end = usize::try_from(offset).ok().and_then(|offset| offset.checked_add(size));
    if size == 0 || end.is_none_or(|end| end > region.len()) {
        return Err(ArrayError::Shape);
    }
    match region.is_sealed() {
        Ok(true) => Ok(()),
        Ok(false) => Err(ArrayError::NotSealed),
        Err(error) => Err(ArrayError::Region(error)),
    }
}

/// Returns the number of bytes of an array.
fn byte_count(dtype: &str, shape: &[u64]) -> Result<usize, ArrayError> {
    let item = item_size(dtype).ok_or_else(|| ArrayError::Dtype(dtype.to_owned()))?;
    let product = shape.iter().filter(|len| **len != 0).try_fold(item, |product, len| product.checked_mul(*len));
    let product = product.filter(|_| shape.len() <= MAX_DIMENSIONS).and_then(|product| isize::try_from(product).ok());
    let product = product.ok_or(ArrayError::Shape)?;
    Ok(if shape.contains(&0) { 0 } else { product.unsigned_abs() })
}

/// Returns the size in bytes of an element of the type `dtype`; `None` if there is no such type. Each kind of numbers
/// has the sizes that NumPy has for it; texts and bytes of a fixed length have any size.
fn item_size(dtype: &str) -> Option<u64> {
    if dtype == "bfloat16" {
        return Some(2);
    }
    let rest = dtype.strip_prefix(['<', '>', '|'])?;
    let kind = rest.chars().next()?;
    let rest = rest.get(kind.len_utf8()..)?;
    match kind {
        'm' | 'M' => is_unit(rest.strip_prefix('8')?).then_some(8),
        'b' => number(rest).filter(|size| *size == 1),
        'i' | 'u' => number(rest).filter(|size| matches!(size, 1 | 2 | 4 | 8)),
        'f' => number(rest).filter(|size| matches!(size, 2 | 4 | 8)),
        'c' => number(rest).filter(|size| matches!(size, 8 | 16)),
        'S' | 'V' => number(rest),
        'U' => number(rest).map(|characters| 4 * characters),
        _ => None,
    }
}

/// Returns a size of at least 1 that fits 31 bits, from decimal digits.
fn number(digits: &str) -> Option<u64> {
    let is_number = digits.bytes().all(|digit| digit.is_ascii_digit());
    digits.parse().ok().filter(|size| is_number && (1..=1 << 29).contains(size))
}

/// Returns whether `text` may be the unit of a time: nothing, or letters and digits in brackets.
fn is_unit(text: &str) -> bool {
    let unit = text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    text.is_empty()
        || unit.is_some_and(|unit| unit.len() <= 12 && unit.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

impl Order {
    fn name(self) -> &'static str {
        match self {
            Self::C => "C",
            Self::Fortran => "F",
        }
    }
}

/// The bytes of an array in a message.
enum Place<'a> {
    Inline(&'a [u8]),
    /// The index of the region in the message, and the offset of the first byte.
    Region(u32, u64),
}

impl Serialize for Place<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Inline(bytes) => Bytes(bytes).serialize(serializer),
            Self::Region(index, offset) => (index, offset).serialize(serializer),
        }
    }
}

impl Serialize for Array {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let place = match &self.data {
            Data::Inline(bytes) => Place::Inline(bytes),
            Data::Region { slot, offset } => Place::Region(send_handle(slot).map_err(ser::Error::custom)?, *offset),
        };
        let (dtype, shape, order) = (&self.dtype, &self.shape, self.order.name());
        #[cfg(feature = "msgpack")]
        if scratch::encodes() == Carries::Extensions {
            let payload = rmp_serde::to_vec(&(dtype, shape, order, place)).map_err(ser::Error::custom)?;
            return extension::write(serializer, ARRAY, &payload);
        }
        let (bytes, region) = match place {
            Place::Inline(bytes) => (bytes, None),
            Place::Region(index, offset) => (&[][..], Some((index, offset))),
        };
        (dtype, shape, order, region, Bytes(bytes)).serialize(serializer)
    }
}

/// The parts of an array of a message, as the peer sent them.
struct Received {
    dtype: String,
    shape: Vec<u64>,
    order: String,
    place: ReceivedPlace,
}

/// The bytes of a received array.
enum ReceivedPlace {
    Inline(Vec<u8>),
    Region(u32, u64),
}

impl Received {
    /// Checks the parts and makes the array; takes its region out of the message.
    fn into_array(self) -> Result<Array, String> {
        let order = match self.order.as_str() {
            "C" => Order::C,
            "F" => Order::Fortran,
            _ => return Err("an array has an unknown order".to_owned()),
        };
        let array = match self.place {
            ReceivedPlace::Inline(bytes) => Array::new(&self.dtype, &self.shape, order, bytes),
            ReceivedPlace::Region(index, offset) => {
                let handle = receive_handle(index, |handle| matches!(handle, Handle::Region(_)))?;
                let region = handle.claim().into_region().ok_or("the handle of an array is no region")?;
                Array::in_region(&self.dtype, &self.shape, order, region, offset)
            }
        };
        array.map_err(|error| error.to_string())
    }
}

impl<'de> Deserialize<'de> for Array {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[cfg(feature = "msgpack")]
        if scratch::decodes() == Carries::Extensions {
            return extension::read(deserializer, ARRAY, |payload| {
                let budget = Budget::of(payload.len());
                let mut rest = rmp_serde::Deserializer::from_read_ref(payload);
                let inner = Bounded { inner: &mut rest, limits: Limits::new(&budget) };
                let received = inner.deserialize_tuple(4, Extension).map_err(|error| error.to_string())?;
                // Only the end of the bytes fails with this error.
                match IgnoredAny::deserialize(&mut rest) {
                    Err(rmp_serde::decode::Error::InvalidMarkerRead(_)) => received.into_array(),
                    _ => Err("more bytes follow an array".to_owned()),
                }
            });
        }
        let (dtype, shape, order, region, Buffer(bytes)) = Deserialize::deserialize(deserializer)?;
        let place = match region {
            None => ReceivedPlace::Inline(bytes),
            Some((index, offset)) => ReceivedPlace::Region(index, offset),
        };
        Received { dtype, shape, order, place }.into_array().map_err(de::Error::custom)
    }
}

/// The visitor of the array of MessagePack that is the payload of the extension type.
#[cfg(feature = "msgpack")]
struct Extension;

#[cfg(feature = "msgpack")]
impl<'de> Visitor<'de> for Extension {
    type Value = Received;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the type, shape, order and bytes of an array")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Received, A::Error> {
        let short = || de::Error::custom("an array has not a type, a shape, an order and bytes");
        let received = Received {
            dtype: parts.next_element()?.ok_or_else(short)?,
            shape: parts.next_element()?.ok_or_else(short)?,
            order: parts.next_element()?.ok_or_else(short)?,
            place: parts.next_element()?.ok_or_else(short)?,
        };
        // The name of the sender's array library.
        let _ = parts.next_element::<String>()?;
        match parts.next_element::<IgnoredAny>()? {
            None => Ok(received),
            Some(_) => Err(de::Error::custom("an array has more than five parts")),
        }
    }
}

impl<'de> Deserialize<'de> for ReceivedPlace {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = ReceivedPlace;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes, or the index of a region and an offset")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<ReceivedPlace, E> {
                Ok(ReceivedPlace::Inline(bytes.to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<ReceivedPlace, A::Error> {
                match (parts.next_element()?, parts.next_element()?, parts.next_element::<IgnoredAny>()?) {
                    (Some(index), Some(offset), None) => Ok(ReceivedPlace::Region(index, offset)),
                    _ => Err(de::Error::custom("the region of an array has not an index and an offset")),
                }
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// Bytes that a codec has as bytes, or as a list of numbers.
struct Buffer(Vec<u8>);

impl<'de> Deserialize<'de> for Buffer {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;

        impl<'de> Visitor<'de> for Numbers {
            type Value = Buffer;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Buffer, E> {
                Ok(Buffer(bytes.to_vec()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Buffer, A::Error> {
                let mut bytes = Vec::new();
                while let Some(byte) = parts.next_element()? {
                    bytes.push(byte);
                }
                Ok(Buffer(bytes))
            }
        }

        deserializer.deserialize_byte_buf(Numbers)
    }
}

#[cfg(feature = "schema")]
impl postcard_schema::Schema for Array {
    const SCHEMA: &'static postcard_schema::schema::NamedType = &postcard_schema::schema::NamedType {
        name: "Array",
        ty: &postcard_schema::schema::DataModelType::Struct(&[&postcard_schema::schema::NamedValue {
            name: "strait::Array",
            ty: u32::SCHEMA,
        }]),
    };
}
