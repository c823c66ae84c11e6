//! From objects to bytes.

use std::io::IoSlice;

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::{
    PyBool, PyByteArray, PyBytes, PyDict, PyFloat, PyFrozenSet, PyInt, PyList, PyMemoryView, PySet, PyString, PyTuple,
};
use rmp::encode as write;

use super::{MAX_CONTAINERS, MAX_DEPTH, Place, extension};
use crate::handles::Carrier;
use crate::region::Region;
use crate::{buffers, errors};

/// Returns the bytes of an object, and the carriers of its handles. Takes no handle out of its carrier yet. At most
/// `regions` arrays get regions of their own, so that the message has no more than `limit` bytes.
///
/// Raises `NotPlain`, with the place in the object, for anything that the codec cannot carry.
pub(crate) fn encode(object: &Bound<'_, PyAny>, regions: usize, limit: usize) -> PyResult<Encoded> {
    let mut encoder = Encoder {
        bytes: buffers::bytes(),
        carriers: Vec::new(),
        regions,
        limit,
        copied: 0,
        apart: Vec::new(),
        total: 0,
        nested: false,
        containers: 0,
    };
    match encoder.value(object, 0, Place::Value) {
        Ok(()) => {
            let Encoder { bytes, carriers, copied, apart, .. } = encoder;
            Ok(Encoded { bytes, apart, carriers, copied })
        }
        Err(Failed::Raised(error)) => Err(error),
        Err(Failed::NotPlain { mut place, why }) => {
            place.push("x".to_owned());
            place.reverse();
            Err(errors::named(object.py(), "NotPlain", format!("{}: {why}", place.concat())))
        }
    }
}

/// The message of an object. The bytes of large arrays stay in the memory of the arrays, and are copied from there into
/// the memory of the message.
pub(crate) struct Encoded {
    bytes: Vec<u8>,
    /// The bytes of arrays, each with the place in `bytes` before which they belong.
    apart: Vec<(usize, PyBuffer<u8>)>,
    pub(crate) carriers: Vec<Carrier>,
    /// The number of arrays copied into regions.
    pub(crate) copied: u64,
}

impl Encoded {
    pub(crate) fn of_bytes(bytes: Vec<u8>, carriers: Vec<Carrier>) -> Self {
        Self { bytes, apart: Vec::new(), carriers, copied: 0 }
    }

    /// Returns the bytes of the message, in parts.
    pub(crate) fn parts(&self) -> Vec<IoSlice<'_>> {
        let mut parts = Vec::with_capacity(2 * self.apart.len() + 1);
        let mut from = 0;
        for (at, buffer) in &self.apart {
            parts.push(IoSlice::new(&self.bytes[from..*at]));
            parts.push(IoSlice::new(bytes_of(buffer)));
            from = *at;
        }
        parts.push(IoSlice::new(&self.bytes[from..]));
        parts
    }

    /// Returns a copy of the bytes of the message.
    pub(crate) fn whole<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let parts = self.parts();
        let [whole] = parts.as_slice() else {
            return PyBytes::new_with(py, parts.iter().map(|part| part.len()).sum(), |bytes| {
                let mut at = 0;
                for part in &parts {
                    bytes[at..at + part.len()].copy_from_slice(part);
                    at += part.len();
                }
                Ok(())
            });
        };
        Ok(PyBytes::new(py, whole))
    }

    /// Keeps the memory of a sent message for a later message.
    pub(crate) fn give_back(self) {
        buffers::give_back(self.bytes);
    }
}

/// Returns the bytes of a buffer, which `binary_of` has checked to be in a row.
fn bytes_of(buffer: &PyBuffer<u8>) -> &[u8] {
    // SAFETY: the memory exists as long as `buffer` lives, and cannot be resized meanwhile. A thread that writes to the
    // array during a send changes single bytes of the message. Every byte value is valid, and this package only copies
    // the bytes.
    #[allow(unsafe_code)]
    buffer.as_slice_ptr().map_or(&[], |bytes| unsafe { bytes.as_ref() })
}

enum Failed {
    /// An object that the codec does not carry. The steps to the object are listed from the last step to the first.
    NotPlain {
        place: Vec<String>,
        why: String,
    },
    Raised(PyErr),
}

impl Failed {
    fn because(why: impl Into<String>) -> Self {
        Self::NotPlain { place: Vec::new(), why: why.into() }
    }

    /// Returns the failure with a further step in front of the others.
    fn within(self, step: impl FnOnce() -> String) -> Self {
        match self {
            Self::NotPlain { mut place, why } => {
                place.push(step());
                Self::NotPlain { place, why }
            }
            raised => raised,
        }
    }
}

impl From<PyErr> for Failed {
    fn from(error: PyErr) -> Self {
        Self::Raised(error)
    }
}

struct Encoder {
    bytes: Vec<u8>,
    carriers: Vec<Carrier>,
    /// The number of arrays that may still become regions.
    regions: usize,
    limit: usize,
    copied: u64,
    /// The bytes of large arrays, each with its place in `bytes`.
    apart: Vec<(usize, PyBuffer<u8>)>,
    /// The number of bytes in `apart`.
    total: usize,
    /// Whether `bytes` is a part of the message whose place is not known yet. Then all bytes are copied.
    nested: bool,
    /// The number of MessagePack arrays, maps and extension objects so far.
    containers: u32,
}

impl Encoder {
    fn value(&mut self, object: &Bound<'_, PyAny>, depth: usize, place: Place) -> Result<(), Failed> {
        if object.is_none() {
            self.write(write::write_nil)
        } else if let Ok(value) = object.cast::<PyBool>() {
            self.write(|bytes| write::write_bool(bytes, value.is_true()))
        } else if let Ok(value) = object.cast::<PyInt>() {
            self.integer(value)
        } else if let Ok(value) = object.cast::<PyFloat>() {
            self.write(|bytes| write::write_f64(bytes, value.value()))
        } else if let Ok(value) = object.cast::<PyString>() {
            self.text(value)
        } else if let Ok(value) = object.cast::<PyBytes>() {
            self.binary(value.as_bytes())
        } else if object.is_instance_of::<PyByteArray>() || object.is_instance_of::<PyMemoryView>() {
            self.buffer(object)
        } else if depth > MAX_DEPTH {
            Err(too_deep())
        } else {
            self.container(object, depth, place)
        }
    }

    fn container(&mut self, object: &Bound<'_, PyAny>, depth: usize, place: Place) -> Result<(), Failed> {
        if object.is_instance_of::<PyList>() || object.is_instance_of::<PyTuple>() {
            self.items(object, depth, place)
        } else if let Ok(value) = object.cast::<PyDict>() {
            no_key(place, "a dictionary")?;
            self.dictionary(value, depth)
        } else if object.is_instance_of::<PySet>() || object.is_instance_of::<PyFrozenSet>() {
            no_key(place, "a set")?;
            self.set(object, depth)
        } else {
            self.other(object, depth, place)
        }
    }

    /// Counts arrays, maps and extension objects. The receiver would refuse a message with too many.
    fn count(&mut self, more: u32) -> Result<(), Failed> {
        self.containers += more;
        if self.containers > MAX_CONTAINERS {
            let why = format!(
                "more than {MAX_CONTAINERS} lists, dictionaries and objects of extension types: send several messages"
            );
            return Err(Failed::because(why));
        }
        Ok(())
    }

    /// Appends what `write` writes; writing to memory does not fail.
    fn write<T, E: std::fmt::Debug>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> Result<T, E>) -> Result<(), Failed> {
        write(&mut self.bytes).map(drop).map_err(|error| Failed::because(format!("{error:?}")))
    }

    fn integer(&mut self, value: &Bound<'_, PyInt>) -> Result<(), Failed> {
        if let Ok(number) = value.extract::<i64>() {
            return self.write(|bytes| write::write_sint(bytes, number));
        }
        if let Ok(number) = value.extract::<u64>() {
            return self.write(|bytes| write::write_uint(bytes, number));
        }
        let bits = value.call_method0("bit_length")?.extract::<usize>()?;
        let signed = PyDict::new(value.py());
        signed.set_item("signed", true)?;
        let digits = value.call_method("to_bytes", (bits / 8 + 1, "big"), Some(&signed))?;
        self.extension(extension::BIG_INTEGER, digits.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes())
    }

    fn text(&mut self, value: &Bound<'_, PyString>) -> Result<(), Failed> {
        match value.to_str() {
            Ok(text) => {
                length(text.len())?;
                self.write(|bytes| write::write_str(bytes, text))
            }
            Err(_) => Err(Failed::because("text with a surrogate, which no UTF-8 has")),
        }
    }

    fn binary(&mut self, value: &[u8]) -> Result<(), Failed> {
        length(value.len())?;
        self.write(|bytes| write::write_bin(bytes, value))
    }

    /// Appends a copy of a buffer that may change.
    fn buffer(&mut self, object: &Bound<'_, PyAny>) -> Result<(), Failed> {
        let copy = PyMemoryView::from(object)?.call_method0("tobytes")?;
        self.binary(copy.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes())
    }

    fn items(&mut self, object: &Bound<'_, PyAny>, depth: usize, place: Place) -> Result<(), Failed> {
        self.count(1)?;
        // A copy: code of the program may run meanwhile and change the list.
        let items: Vec<_> = object.try_iter()?.collect::<PyResult<_>>()?;
        let count = length(items.len())?;
        self.write(|bytes| write::write_array_len(bytes, count))?;
        for (index, item) in items.iter().enumerate() {
            self.value(item, depth + 1, place).map_err(|failed| failed.within(|| format!("[{index}]")))?;
        }
        Ok(())
    }

    fn dictionary(&mut self, value: &Bound<'_, PyDict>, depth: usize) -> Result<(), Failed> {
        self.count(1)?;
        let items: Vec<_> = value.iter().collect();
        let count = length(items.len())?;
        self.write(|bytes| write::write_map_len(bytes, count))?;
        for (key, item) in items {
            let step = || key.repr().map_or_else(|_| "[?]".to_owned(), |text| format!("[{text}]"));
            let failed = |failed: Failed| failed.within(|| format!("{} (the key)", step()));
            self.value(&key, depth + 1, Place::Key).map_err(failed)?;
            self.value(&item, depth + 1, Place::Value).map_err(|failed| failed.within(step))?;
        }
        Ok(())
    }

    fn set(&mut self, object: &Bound<'_, PyAny>, depth: usize) -> Result<(), Failed> {
        let outer = std::mem::take(&mut self.bytes);
        let was_nested = std::mem::replace(&mut self.nested, true);
        let encoded = self.items(object, depth, Place::Key);
        let members = std::mem::replace(&mut self.bytes, outer);
        self.nested = was_nested;
        encoded?;
        self.extension(extension::SET, &members)
    }

    fn extension(&mut self, code: i8, payload: &[u8]) -> Result<(), Failed> {
        self.count(1)?;
        let len = length(payload.len())?;
        self.write(|bytes| write::write_ext_meta(bytes, len, code))?;
        self.bytes.extend_from_slice(payload);
        Ok(())
    }

    fn other(&mut self, object: &Bound<'_, PyAny>, depth: usize, place: Place) -> Result<(), Failed> {
        let py = object.py();
        let registered = py.import("strait._registered")?.call_method1("dumped", (object,))?;
        if !registered.is_none() {
            let (code, payload): (i8, Bound<'_, PyAny>) = registered.extract()?;
            return self.extension_of(code, &payload);
        }
        if place == Place::Key {
            let number = py.import("strait._arrays")?.call_method1("number", (object,))?;
            if !number.is_none() {
                return self.value(&number, depth, place);
            }
        }
        if self.array(object, depth, place)? {
            return Ok(());
        }
        let is = |module: &str, class: &str| object.is_instance(&py.import(module)?.getattr(class)?);
        match Carrier::of(object) {
            Ok(Some(carrier)) => return self.handle(carrier),
            Ok(None) => {}
            Err(error) if error.is_instance(py, &py.import("io")?.getattr("UnsupportedOperation")?) => {
                return Err(Failed::because(format!("{}: a file without a descriptor", object.get_type())));
            }
            Err(error) => return Err(error.into()),
        }
        if is("datetime", "datetime")? {
            return self.datetime(object);
        }
        if is("uuid", "UUID")? {
            return self.extension_of(extension::UUID, &object.getattr("bytes")?);
        }
        if is("pathlib", "PurePath")? {
            return self.extension_of(extension::PATH, &py.import("os")?.call_method1("fsencode", (object,))?);
        }
        if is("strait._errors", "Unknown")? {
            let code = object.getattr("code")?.extract()?;
            return self.extension_of(code, &object.getattr("data")?);
        }
        // Any other buffer.
        if PyMemoryView::from(object).is_ok() {
            return self.buffer(object);
        }
        Err(Failed::because(object.get_type().to_string()))
    }

    fn datetime(&mut self, object: &Bound<'_, PyAny>) -> Result<(), Failed> {
        let class = object.py().import("datetime")?.getattr("datetime")?;
        let text = object.call_method0("isoformat")?;
        // An object of a subclass can have another text, or a part that the text or `datetime` does not have.
        if !object.get_type().is(&class) {
            let naive = PyDict::new(object.py());
            naive.set_item("tzinfo", object.py().None())?;
            let parsed = class.call_method1("fromisoformat", (&text,)).ok();
            let is_equal = match parsed {
                None => false,
                Some(parsed) => {
                    let parsed = parsed.call_method("replace", (), Some(&naive))?;
                    parsed.eq(object.call_method("replace", (), Some(&naive))?)?
                }
            };
            if !is_equal {
                return Err(Failed::because(format!("{}, which is not equal to any datetime", object.get_type())));
            }
        }
        let text: String = text.extract()?;
        self.extension(extension::DATETIME, text.as_bytes())
    }

    fn extension_of(&mut self, code: i8, payload: &Bound<'_, PyAny>) -> Result<(), Failed> {
        self.extension(code, payload.cast::<PyBytes>().map_err(PyErr::from)?.as_bytes())
    }

    fn handle(&mut self, carrier: Carrier) -> Result<(), Failed> {
        let outer = std::mem::take(&mut self.bytes);
        let written = self.index(carrier);
        let index = std::mem::replace(&mut self.bytes, outer);
        written?;
        self.extension(extension::HANDLE, &index)
    }

    /// Appends the index of a new handle of the message.
    fn index(&mut self, carrier: Carrier) -> Result<(), Failed> {
        let index = self.carriers.len() as u64;
        self.carriers.push(carrier);
        self.write(|bytes| write::write_uint(bytes, index))
    }

    /// Appends an array. Returns `false`, and appends nothing, if the object is no array.
    fn array(&mut self, object: &Bound<'_, PyAny>, depth: usize, place: Place) -> Result<bool, Failed> {
        let taken = self.bytes.len() + self.total;
        let room = self.limit.saturating_sub(taken);
        let module = object.py().import("strait._arrays")?;
        let parts = module.call_method1("parts", (object, self.regions > 0, taken, room))?;
        if parts.is_none() {
            return Ok(false);
        }
        if let Ok(why) = parts.cast::<PyString>() {
            return Err(Failed::because(why.to_string()));
        }
        no_key(place, "an array")?;
        // The parts of an array include its shape, which is a list.
        if depth + 1 > MAX_DEPTH {
            return Err(too_deep());
        }
        let many = parts.get_item(3)?;
        if !many.is_instance_of::<Region>() && many.len()? > usize::from(u16::MAX) {
            return self.large(&parts, many.len()?).map(|()| true);
        }
        let outer = std::mem::take(&mut self.bytes);
        let was_nested = std::mem::replace(&mut self.nested, true);
        let written = self.parts(&parts);
        let payload = std::mem::replace(&mut self.bytes, outer);
        self.nested = was_nested;
        written?;
        self.extension(extension::ARRAY, &payload)?;
        Ok(true)
    }

    /// Appends an array of `len` bytes, with a length of 32 bits, which is written last.
    fn large(&mut self, parts: &Bound<'_, PyAny>, len: usize) -> Result<(), Failed> {
        const HEAD: usize = 6;
        let begin = (self.bytes.len(), self.total);
        if self.nested {
            self.bytes.reserve(len + 256);
        }
        self.count(1)?;
        self.write(|bytes| write::write_ext_meta(bytes, u32::MAX, extension::ARRAY).map(drop))?;
        self.parts(parts)?;
        let payload = length(self.bytes.len() - begin.0 - HEAD + self.total - begin.1)?;
        self.bytes[begin.0 + 1..begin.0 + HEAD - 1].copy_from_slice(&payload.to_be_bytes());
        Ok(())
    }

    /// Appends the bytes of a buffer of bytes: a copy of the bytes as they are now, or the buffer itself.
    fn binary_of(&mut self, data: &Bound<'_, PyAny>) -> Result<(), Failed> {
        if let Ok(bytes) = data.cast::<PyBytes>()
            && bytes.as_bytes().len() <= usize::from(u16::MAX)
        {
            return self.binary(bytes.as_bytes());
        }
        let buffer = PyBuffer::<u8>::get(data)?;
        if buffer.as_slice_ptr().is_none() {
            return Err(Failed::because("the bytes of an array are not in a row"));
        }
        let count = bytes_of(&buffer).len();
        let len = length(count)?;
        self.write(|out| write::write_bin_len(out, len).map(drop))?;
        if self.nested {
            self.bytes.extend_from_slice(bytes_of(&buffer));
        } else {
            self.total += count;
            self.apart.push((self.bytes.len(), buffer));
        }
        Ok(())
    }

    /// Appends the parts of an array: type, shape, order, bytes or `[index of the region, offset]`, and the kind of
    /// array if it is not NumPy's.
    fn parts(&mut self, parts: &Bound<'_, PyAny>) -> Result<(), Failed> {
        let parts: (String, Vec<u64>, String, Bound<'_, PyAny>, u64, bool, String) = parts.extract()?;
        let (dtype, shape, order, data, offset, copied, origin) = parts;
        self.copied += u64::from(copied);
        // The parts, their shape, and the place in a region.
        self.count(if data.is_instance_of::<Region>() { 3 } else { 2 })?;
        self.write(|bytes| write::write_array_len(bytes, if origin.is_empty() { 4 } else { 5 }))?;
        self.write(|bytes| write::write_str(bytes, &dtype))?;
        let count = length(shape.len())?;
        self.write(|bytes| write::write_array_len(bytes, count))?;
        for len in shape {
            self.write(|bytes| write::write_uint(bytes, len))?;
        }
        self.write(|bytes| write::write_str(bytes, &order))?;
        match data.cast::<Region>() {
            Ok(region) => {
                self.regions = self.regions.saturating_sub(1);
                self.write(|bytes| write::write_array_len(bytes, 2))?;
                self.index(Carrier::Region(region.clone().unbind()))?;
                self.write(|bytes| write::write_uint(bytes, offset))?;
            }
            Err(_) => self.binary_of(&data)?,
        }
        if origin.is_empty() { Ok(()) } else { self.write(|bytes| write::write_str(bytes, &origin)) }
    }
}

fn too_deep() -> Failed {
    Failed::because(format!("nested more than {MAX_DEPTH} deep"))
}

/// Fails for an object that would be a key and has no hash at the receiver.
fn no_key(place: Place, object: &str) -> Result<(), Failed> {
    match place {
        Place::Value => Ok(()),
        Place::Key => {
            Err(Failed::because(format!("{object} is no key of a dictionary and no member of a set at the receiver")))
        }
    }
}

/// Returns a length in MessagePack.
fn length(len: usize) -> Result<u32, Failed> {
    u32::try_from(len)
        .map_err(|_| Failed::because(format!("{len} bytes or items: MessagePack has at most {}", u32::MAX)))
}
