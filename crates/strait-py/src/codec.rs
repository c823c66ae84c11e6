//! The codec `plain`: objects as MessagePack, with extension types for handles and for Python's other plain types.
//!
//! Decoding executes nothing: it makes objects of a fixed list of types. Each length is checked against the bytes that
//! are left before anything is allocated.

mod array;
mod decoder;
mod encoder;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub(crate) use decoder::decode;
pub(crate) use encoder::encode;

/// The greatest depth of lists, dictionaries and sets in each other.
const MAX_DEPTH: usize = 64;

/// The greatest number of arrays of a message that are in regions of their own. Further arrays are in its bytes.
pub(crate) const MAX_REGIONS: usize = 32;

/// The extension types. The numbers are part of the protocol between programs.
mod extension {
    /// A handle: its index in the message as a MessagePack integer.
    pub(super) const HANDLE: i8 = 1;
    /// An array: a MessagePack array of the type of its elements, its shape, its order and its bytes.
    pub(super) const ARRAY: i8 = 2;
    /// A set: its members as a MessagePack array.
    pub(super) const SET: i8 = 3;
    /// An integer of more than 64 bits: two's complement, the most significant byte first.
    pub(super) const BIG_INTEGER: i8 = 4;
    /// A date and time: text as of `datetime.isoformat`.
    pub(super) const DATETIME: i8 = 5;
    /// A UUID: its 16 bytes.
    pub(super) const UUID: i8 = 6;
    /// A path: its bytes as of `os.fsencode`.
    pub(super) const PATH: i8 = 7;
}

/// Returns the bytes of an object without handles in the codec `plain`.
#[pyfunction]
pub(crate) fn dumps<'py>(obj: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let (bytes, carriers) = encode(obj, 0)?;
    if carriers.is_empty() {
        return Ok(PyBytes::new(obj.py(), &bytes));
    }
    Err(crate::errors::named(obj.py(), "NotPlain", "handles travel in messages only: use Connection.send".to_owned()))
}

/// Returns the object whose bytes `dumps` made.
#[pyfunction]
pub(crate) fn loads(py: Python<'_>, data: &[u8]) -> PyResult<Py<PyAny>> {
    decode(py, data, Vec::new())
}
