//! From bytes to objects. The bytes come from a possibly hostile peer.

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyDict, PyList, PySet, PyString, PyTuple};
use rmp::Marker;
use strait::Handle;

use super::keys::{Insertions, Pairs};
use super::source::{Source, Span};
use super::{MAX_CONTAINERS, MAX_DEPTH, Place, array, extension};
use crate::buffers;
use crate::memory::Memory;
use crate::{errors, handles};

/// Returns the object of a message. Raises `Malformed` if the bytes are no plain object, if a handle is named twice or
/// does not exist, and if no part of the object names a handle. Then all handles are closed.
pub(crate) fn decode(py: Python<'_>, source: Source<'_, '_>, handles: Vec<Handle>, mode: Mode) -> PyResult<Py<PyAny>> {
    let handles = handles.into_iter().map(Some).collect();
    let insertions = Insertions::default();
    let mut decoder = Decoder { py, source, handles, mode, in_array: false, of_array: None, containers: 0, insertions };
    let object = decoder.value(0, Place::Value)?;
    if decoder.source.remaining() > 0 {
        return Err(decoder.malformed("more bytes follow the object"));
    }
    if decoder.handles.iter().any(Option::is_some) {
        return Err(decoder.malformed("the object does not name each handle of the message"));
    }
    Ok(object.unbind())
}

/// How arrays are made.
#[derive(Clone, Copy)]
pub(crate) struct Mode {
    /// Whether an array may lie in memory that the peer can write to, and tables of Arrow are not validated.
    pub(crate) trust: bool,
    /// Whether arrays are writable.
    pub(crate) writable: bool,
}

impl Default for Mode {
    fn default() -> Self {
        Self { trust: false, writable: true }
    }
}

struct Decoder<'py, 'a, 'v> {
    py: Python<'py>,
    source: Source<'a, 'v>,
    handles: Vec<Option<Handle>>,
    mode: Mode,
    /// Whether the decoder is in an array; if so, it leaves the bytes of a large array in the message.
    in_array: bool,
    /// The many bytes of the array, shown as `...`.
    of_array: Option<Span<'a, 'v>>,
    /// The number of MessagePack arrays, maps and extension objects so far.
    containers: u32,
    /// The time taken by the insertion of keys into dictionaries and sets.
    insertions: Insertions,
}

/// The number of bytes from which on the bytes of an array are copied only once.
const MANY: usize = 1 << 12;

impl<'py, 'a, 'v> Decoder<'py, 'a, 'v> {
    fn malformed(&self, why: &str) -> PyErr {
        let at = self.source.at();
        errors::named(self.py, "Malformed", format!("the message is no plain object: {why} (before byte {at})"))
    }

    fn ends(&self) -> PyErr {
        self.malformed("the message ends within an object")
    }

    /// Takes `len` bytes.
    fn take(&mut self, len: usize) -> PyResult<&'a [u8]> {
        self.source.take(self.py, len)?.ok_or_else(|| self.ends())
    }

    /// Takes an unsigned number of `N` bytes, with the most significant byte first.
    fn number<const N: usize>(&mut self) -> PyResult<u64> {
        Ok(self.take(N)?.iter().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Takes a length of `N` bytes.
    fn length<const N: usize>(&mut self) -> PyResult<usize> {
        let length = self.number::<N>()?;
        usize::try_from(length).map_err(|_| self.malformed("a length is over the limit of this machine"))
    }

    fn value(&mut self, depth: usize, place: Place) -> PyResult<Bound<'py, PyAny>> {
        let marker = Marker::from_u8(self.take(1)?[0]);
        match marker {
            Marker::Null => Ok(self.py.None().into_bound(self.py)),
            Marker::False => self.object(false),
            Marker::True => self.object(true),
            Marker::FixPos(number) => self.object(number),
            Marker::FixNeg(number) => self.object(number),
            Marker::U8 => self.number::<1>().and_then(|number| self.object(number)),
            Marker::U16 => self.number::<2>().and_then(|number| self.object(number)),
            Marker::U32 => self.number::<4>().and_then(|number| self.object(number)),
            Marker::U64 => self.number::<8>().and_then(|number| self.object(number)),
            Marker::I8 => self.number::<1>().and_then(|number| self.object(number as i8)),
            Marker::I16 => self.number::<2>().and_then(|number| self.object(number as i16)),
            Marker::I32 => self.number::<4>().and_then(|number| self.object(number as i32)),
            Marker::I64 => self.number::<8>().and_then(|number| self.object(number as i64)),
            Marker::F32 => self.number::<4>().and_then(|bits| self.object(f32::from_bits(bits as u32))),
            Marker::F64 => self.number::<8>().and_then(|bits| self.object(f64::from_bits(bits))),
            other => self.with_length(other, depth, place),
        }
    }

    fn object<T: IntoPyObject<'py>>(&self, value: T) -> PyResult<Bound<'py, PyAny>> {
        value.into_bound_py_any(self.py)
    }

    fn with_length(&mut self, marker: Marker, depth: usize, place: Place) -> PyResult<Bound<'py, PyAny>> {
        match marker {
            Marker::FixStr(len) => self.text(len.into()),
            Marker::Str8 => self.length::<1>().and_then(|len| self.text(len)),
            Marker::Str16 => self.length::<2>().and_then(|len| self.text(len)),
            Marker::Str32 => self.length::<4>().and_then(|len| self.text(len)),
            Marker::Bin8 => self.length::<1>().and_then(|len| self.binary(len)),
            Marker::Bin16 => self.length::<2>().and_then(|len| self.binary(len)),
            Marker::Bin32 => self.length::<4>().and_then(|len| self.binary(len)),
            Marker::FixExt1 => self.extension(1, depth),
            Marker::FixExt2 => self.extension(2, depth),
            Marker::FixExt4 => self.extension(4, depth),
            Marker::FixExt8 => self.extension(8, depth),
            Marker::FixExt16 => self.extension(16, depth),
            Marker::Ext8 => self.length::<1>().and_then(|len| self.extension(len, depth)),
            Marker::Ext16 => self.length::<2>().and_then(|len| self.extension(len, depth)),
            Marker::Ext32 => self.length::<4>().and_then(|len| self.extension(len, depth)),
            other => self.container(other, depth, place),
        }
    }

    /// Counts an array, a map or an extension object.
    fn count(&mut self) -> PyResult<()> {
        self.containers += 1;
        if self.containers > MAX_CONTAINERS {
            return Err(self.malformed("it has too many lists, dictionaries and objects of extension types"));
        }
        Ok(())
    }

    fn container(&mut self, marker: Marker, depth: usize, place: Place) -> PyResult<Bound<'py, PyAny>> {
        self.count()?;
        if depth > MAX_DEPTH {
            return Err(self.malformed("it is nested too deeply"));
        }
        match marker {
            Marker::FixArray(count) => self.array(count.into(), depth, place),
            Marker::Array16 => self.length::<2>().and_then(|count| self.array(count, depth, place)),
            Marker::Array32 => self.length::<4>().and_then(|count| self.array(count, depth, place)),
            Marker::FixMap(count) => self.dictionary(count.into(), depth),
            Marker::Map16 => self.length::<2>().and_then(|count| self.dictionary(count, depth)),
            Marker::Map32 => self.length::<4>().and_then(|count| self.dictionary(count, depth)),
            _ => Err(self.malformed("a byte begins no object")),
        }
    }

    fn text(&mut self, len: usize) -> PyResult<Bound<'py, PyAny>> {
        let bytes = self.take(len)?;
        let text = std::str::from_utf8(bytes).map_err(|_| self.malformed("a text is not UTF-8"))?;
        Ok(PyString::new(self.py, text).into_any())
    }

    fn binary(&mut self, len: usize) -> PyResult<Bound<'py, PyAny>> {
        if self.in_array && len >= MANY && self.of_array.is_none() {
            let span = self.source.span(len).ok_or_else(|| self.ends())?;
            self.of_array = Some(span);
            return Ok(self.py.Ellipsis().into_bound(self.py));
        }
        Ok(PyBytes::new(self.py, self.take(len)?).into_any())
    }

    /// Fails unless `count` objects of at least one byte each can be in the rest of the message.
    fn check_count(&self, count: usize) -> PyResult<()> {
        if count > self.source.remaining() {
            return Err(self.malformed("a length is beyond the end of the message"));
        }
        Ok(())
    }

    /// Decodes the items of an array. Allocates memory for each decoded item, whatever the claimed number of items.
    fn items(&mut self, count: usize, depth: usize, place: Place) -> PyResult<Bound<'py, PyList>> {
        self.check_count(count)?;
        let list = PyList::empty(self.py);
        for _ in 0..count {
            list.append(self.value(depth + 1, place)?)?;
        }
        Ok(list)
    }

    fn array(&mut self, count: usize, depth: usize, place: Place) -> PyResult<Bound<'py, PyAny>> {
        let list = self.items(count, depth, place)?;
        match place {
            Place::Value => Ok(list.into_any()),
            Place::Key => Ok(PyTuple::new(self.py, list.iter())?.into_any()),
        }
    }

    fn dictionary(&mut self, count: usize, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        self.check_count(count)?;
        let dictionary = PyDict::new(self.py);
        let mut pairs = Pairs::new();
        for _ in 0..count {
            let key = self.value(depth + 1, Place::Key)?;
            let value = self.value(depth + 1, Place::Value)?;
            self.check_key(&key)?;
            if pairs.takes(&key) {
                pairs.push(key, value);
                if pairs.is_full() {
                    self.insert(&mut pairs, |key, value| dictionary.set_item(key, value))?;
                }
            } else {
                dictionary.set_item(key, value)?;
            }
        }
        self.insert(&mut pairs, |key, value| dictionary.set_item(key, value))?;
        Ok(dictionary.into_any())
    }

    /// Inserts pairs of a dictionary, or members of a set. Fails if insertions take too long, because keys collide.
    fn insert(
        &mut self,
        pairs: &mut Pairs<'py>,
        insert: impl FnMut(Bound<'py, PyAny>, Bound<'py, PyAny>) -> PyResult<()>,
    ) -> PyResult<()> {
        if self.insertions.make(pairs, insert)? {
            return Ok(());
        }
        Err(self.malformed("too many keys of a dictionary, or members of a set, have colliding hashes"))
    }

    /// Fails if an object cannot be the key of a dictionary or the member of a set.
    fn check_key(&self, key: &Bound<'py, PyAny>) -> PyResult<()> {
        key.hash().map(drop).map_err(|_| self.malformed("a dictionary or a set is a key or a member of a set"))
    }

    fn extension(&mut self, len: usize, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        self.count()?;
        let code = self.take(1)?[0] as i8;
        match code {
            extension::ARRAY => return self.numbers(len, depth),
            extension::SET => return self.set(len, depth),
            _ => {}
        }
        let payload = self.take(len)?;
        match code {
            extension::HANDLE => self.handle(payload),
            extension::BIG_INTEGER => self.big_integer(payload),
            extension::DATETIME => self.datetime(payload),
            extension::UUID => self.uuid(payload),
            extension::PATH => self.path(payload),
            code => {
                let module = self.py.import("strait._registered")?;
                module.call_method1("loaded", (code, PyBytes::new(self.py, payload)))
            }
        }
    }

    fn handle(&mut self, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let mut rest = payload;
        let index = rmp::decode::read_int::<usize, _>(&mut rest).ok();
        // A typed end of a Rust program has one more byte: which first messages the end has exchanged.
        if !matches!(rest, [] | [0..=3]) {
            return Err(self.malformed("more bytes follow the index of a handle"));
        }
        let handle = self.named_handle(index)?;
        Ok(handles::received(self.py, handle)?.into_bound(self.py))
    }

    /// Takes the handle with an index.
    fn named_handle(&mut self, index: Option<usize>) -> PyResult<Handle> {
        let handle = index.and_then(|index| self.handles.get_mut(index)?.take());
        handle.ok_or_else(|| self.malformed("it names a handle twice, or one that the message has not"))
    }

    /// Decodes an array in `len` bytes; its own bytes are there or in a region.
    fn numbers(&mut self, len: usize, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let outer = std::mem::replace(&mut self.in_array, true);
        let parts = self.tuple(len, depth);
        self.in_array = outer;
        let (parts, many) = (parts?, self.of_array.take());
        let wrong = || self.malformed("an array has not a type, a shape, an order and bytes");
        let origin: String = match parts.len() {
            4 => String::new(),
            5 => parts.get_item(4)?.extract().map_err(|_| wrong())?,
            _ => return Err(wrong()),
        };
        let four: PyResult<(String, Vec<u64>, String, Bound<'py, PyAny>)> = parts.get_slice(0, 4).extract();
        let (dtype, shape, order, data) = four.map_err(|_| wrong())?;
        let item =
            array::item_size(&dtype).ok_or_else(|| self.malformed("an array has an unknown type of elements"))?;
        let size = array::size(item, &shape).ok_or_else(|| self.malformed("an array has too large a shape"))?;
        // A tensor has no read-only kind, so it always gets writable memory.
        let writable = self.mode.writable || origin == "torch";
        let memory = match data.cast::<PyBytes>() {
            _ if data.is(self.py.Ellipsis()) => {
                let span = many.filter(|span| span.len() == size);
                let span = span.ok_or_else(|| self.malformed("an array has not as many bytes as its shape"))?;
                self.copied(span, writable)?
            }
            Ok(bytes) if bytes.as_bytes().len() != size => {
                return Err(self.malformed("an array has not as many bytes as its shape"));
            }
            Ok(bytes) if writable => PyByteArray::new(self.py, bytes.as_bytes()).into_any(),
            Ok(bytes) => bytes.clone().into_any(),
            Err(_) => Bound::new(self.py, self.mapped(&data, size, writable)?)?.into_any(),
        };
        let shape = PyTuple::new(self.py, shape)?;
        let arguments = (dtype, shape, order, memory, origin, self.mode.trust);
        let made = self.py.import("strait._arrays")?.call_method1("made", arguments);
        made.map_err(|error| {
            let is_value =
                error.is_instance_of::<PyValueError>(self.py) || error.is_instance_of::<PyTypeError>(self.py);
            if !is_value {
                return error;
            }
            let malformed = self.malformed("an array has a type, an order or values that do not exist");
            malformed.set_cause(self.py, Some(error));
            malformed
        })
    }

    /// Copies the bytes of an array into memory of this process alone.
    fn copied(&self, span: Span<'a, 'v>, writable: bool) -> PyResult<Bound<'py, PyAny>> {
        let py = self.py;
        span.copied(|copy| {
            if writable {
                return buffers::filled(py, span.len(), copy);
            }
            let bytes = PyBytes::new_with(py, span.len(), |bytes| {
                py.detach(|| copy(bytes));
                Ok(())
            });
            Ok(bytes?.into_any())
        })
    }

    /// Maps the bytes of an array from `[index of the region, offset]`: as private memory, read-only, or, if the peer
    /// is trusted and the region is not sealed, as memory that processes share.
    fn mapped(&mut self, place: &Bound<'py, PyAny>, size: usize, writable: bool) -> PyResult<Memory> {
        let place: PyResult<(usize, usize)> = place.extract();
        let (index, offset) =
            place.map_err(|_| self.malformed("the bytes of an array are neither bytes nor a region"))?;
        let region = self.named_handle(Some(index))?.into_region();
        let region = region.ok_or_else(|| self.malformed("the handle of an array is no region"))?;
        let end = offset.checked_add(size).filter(|end| size > 0 && *end <= region.len());
        let range = offset..end.ok_or_else(|| self.malformed("an array is not within its region"))?;
        let is_sealed = region.is_sealed().map_err(|error| errors::raise_region(self.py, &error))?;
        let mapped = match (is_sealed, writable) {
            (true, true) => region.copy_on_write(range).map(Memory::private),
            (true, false) => region.view(range.clone()).map(|view| Memory::viewed(view, region, range.start)),
            (false, _) if self.mode.trust => Memory::shared(region, range, writable),
            (false, _) => return Err(self.malformed("the region of an array is not sealed")),
        };
        mapped.map_err(|failed| errors::raise_region(self.py, &failed))
    }

    /// Decodes the payload of an extension, `len` bytes that are a MessagePack array.
    fn tuple(&mut self, len: usize, depth: usize) -> PyResult<Bound<'py, PyTuple>> {
        let end = self.source.limit(len).ok_or_else(|| self.ends())?;
        // Only arrays count as a level of nesting: an extension that is all of another extension's payload would not.
        let marker = self.source.peek(self.py, 1)?.map(|bytes| Marker::from_u8(bytes[0]));
        if !matches!(marker, Some(Marker::FixArray(_) | Marker::Array16 | Marker::Array32)) {
            return Err(self.malformed("the payload of an extension is no array"));
        }
        let members = self.value(depth, Place::Key)?.cast_into::<PyTuple>()?;
        if self.source.remaining() > 0 {
            return Err(self.malformed("more bytes follow the array of an extension"));
        }
        self.source.restore(end);
        Ok(members)
    }

    fn set(&mut self, len: usize, depth: usize) -> PyResult<Bound<'py, PyAny>> {
        let members = self.tuple(len, depth)?;
        let set = PySet::empty(self.py)?;
        let mut pairs = Pairs::new();
        let none = self.py.None().into_bound(self.py);
        for member in members {
            self.check_key(&member)?;
            if pairs.takes(&member) {
                pairs.push(member, none.clone());
                if pairs.is_full() {
                    self.insert(&mut pairs, |member, _| set.add(member))?;
                }
            } else {
                set.add(member)?;
            }
        }
        self.insert(&mut pairs, |member, _| set.add(member))?;
        Ok(set.into_any())
    }

    fn big_integer(&self, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let signed = PyDict::new(self.py);
        signed.set_item("signed", true)?;
        let class = self.py.get_type::<pyo3::types::PyInt>();
        class.call_method("from_bytes", (PyBytes::new(self.py, payload), "big"), Some(&signed))
    }

    fn datetime(&self, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let class = self.py.import("datetime")?.getattr("datetime")?;
        let text = std::str::from_utf8(payload).map_err(|_| self.malformed("a date is not UTF-8"))?;
        class.call_method1("fromisoformat", (text,)).map_err(|_| self.malformed("a date has no ISO format"))
    }

    fn uuid(&self, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let keywords = PyDict::new(self.py);
        keywords.set_item("bytes", PyBytes::new(self.py, payload))?;
        let uuid = self.py.import("uuid")?.getattr("UUID")?.call((), Some(&keywords));
        uuid.map_err(|_| self.malformed("a UUID has not 16 bytes"))
    }

    fn path(&self, payload: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        let text = self.py.import("os")?.call_method1("fsdecode", (PyBytes::new(self.py, payload),))?;
        self.py.import("pathlib")?.getattr("Path")?.call1((text,))
    }
}
