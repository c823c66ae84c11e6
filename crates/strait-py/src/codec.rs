//! The codec `plain`: objects as MessagePack, with extension types for handles and for Python's other plain types.
//!
//! Decoding executes nothing: it makes objects of a fixed list of types. Each length is checked against the remaining
//! bytes before anything is allocated.

mod array;
mod decoder;
mod encoder;
mod keys;
mod source;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use strait::view::InPlace;

use crate::errors;
use crate::handles;
use crate::message::Message;

pub(crate) use decoder::{Mode, decode};
pub(crate) use encoder::{Encoded, encode};
pub(crate) use source::{Source, Viewed};

/// The greatest depth of lists, dictionaries and sets in each other.
const MAX_DEPTH: usize = 64;

/// The maximum number of MessagePack arrays, maps and extension objects in a message. A byte of the message can stand
/// for some 80 bytes of such objects.
const MAX_CONTAINERS: u32 = 1 << 22;

/// The maximum number of arrays of a message in separate regions. Further arrays are in the bytes of the message.
pub(crate) const MAX_REGIONS: usize = 32;

/// The first bytes of the first message of a typed channel. The number of its codec follows.
const FIRST: &[u8] = b"\xF5strait\x01";
/// The number of bytes of a first message before the names of the types.
const FIRST_FIXED: usize = 32;
/// The number of the codec MsgPack.
const MSGPACK: u8 = 2;

/// The maximum number of first messages skipped by one call. Each earlier holder of the other end has sent at most one.
pub(crate) const MOST_FIRST: usize = 64;

/// Returns the exception for a peer that sends only first messages.
pub(crate) fn too_many_first(py: Python<'_>) -> PyErr {
    errors::named(py, "Malformed", format!("{MOST_FIRST} messages in a row have no object, but begin a typed channel"))
}

/// Where an object stands.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Value,
    /// The key of a dictionary or the member of a set. A MessagePack array is a tuple there. There are no dictionaries,
    /// sets and arrays of numbers, which have no hash.
    Key,
}

/// The extension types. The numbers are part of the protocol between programs.
mod extension {
    /// A handle: its index in the message as a MessagePack integer.
    pub(super) const HANDLE: i8 = 1;
    /// An array: a MessagePack array: type of the elements, shape, order and bytes.
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
    let encoded = encode(obj, 0, usize::MAX)?;
    if encoded.carriers.is_empty() {
        return encoded.whole(obj.py());
    }
    Err(crate::errors::named(obj.py(), "NotPlain", "handles travel in messages only: use Connection.send".to_owned()))
}

/// Returns the object of bytes made by `dumps`.
#[pyfunction]
pub(crate) fn loads(py: Python<'_>, data: &[u8]) -> PyResult<Py<PyAny>> {
    decode(py, Source::of_bytes(data), Vec::new(), Mode::default())
}

/// How a connection carries objects.
#[derive(Default)]
pub(crate) struct Settings {
    /// Whether the peer may write to the memory of arrays of this process.
    pub(crate) trust: bool,
    /// The number of bytes of the longest message, if the program has set it.
    pub(crate) max_message: Option<usize>,
    /// The codec of the program; `None` stands for `plain`.
    codec: Option<Py<PyAny>>,
}

impl Settings {
    pub(crate) fn clone_ref(&self, py: Python<'_>) -> Self {
        let Self { trust, max_message, .. } = *self;
        Self { trust, max_message, codec: self.codec.as_ref().map(|codec| codec.clone_ref(py)) }
    }

    /// Sets the codec: `None` or `strait.codec.plain`, or an object with the methods `dumps` and `loads`.
    pub(crate) fn set_codec(&mut self, codec: &Bound<'_, PyAny>) -> PyResult<()> {
        if codec.is_none() || codec.getattr_opt("is_plain")?.is_some_and(|plain| plain.is_truthy().unwrap_or(false)) {
            self.codec = None;
        } else if codec.hasattr("dumps")? && codec.hasattr("loads")? {
            self.codec = Some(codec.clone().unbind());
        } else {
            return Err(PyTypeError::new_err("codec: give strait.codec.plain, json, pickle or msgspec(Type)"));
        }
        Ok(())
    }

    /// Warns if a peer could run code here and is not a child of this process.
    pub(crate) fn warn(&self, py: Python<'_>) -> PyResult<()> {
        let Some(codec) = &self.codec else { return Ok(()) };
        let unpickles = codec.bind(py).getattr_opt("unpickles")?;
        if unpickles.is_none_or(|unpickles| !unpickles.is_truthy().unwrap_or(true)) {
            return Ok(());
        }
        let text = c"the peer is no child of this process, and can run code in this process by a pickle";
        PyErr::warn(py, &py.get_type::<pyo3::exceptions::PyRuntimeWarning>(), text, 1)
    }

    pub(crate) fn codec(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.codec.as_ref().map(|codec| codec.clone_ref(py))
    }

    /// Returns the message of an object.
    pub(crate) fn encode(&self, object: &Bound<'_, PyAny>) -> PyResult<Encoded> {
        let Some(codec) = &self.codec else {
            return encode(object, MAX_REGIONS, self.max_message.unwrap_or(usize::MAX));
        };
        let dumped = codec.bind(object.py()).call_method1("dumps", (object,))?;
        let (bytes, objects): (Bound<'_, PyAny>, Bound<'_, PyAny>) = dumped.extract()?;
        let bytes = crate::connection::steady(&bytes)?.as_bytes().to_owned();
        let carriers = handles::carriers(&objects)?;
        Ok(Encoded::of_bytes(bytes, carriers))
    }

    /// Returns whether the codec is `plain`.
    pub(crate) fn is_plain(&self) -> bool {
        self.codec.is_none()
    }

    /// Returns the object of a message without handles in the codec `plain`; `None` for a first message.
    pub(crate) fn decode_plain(&self, py: Python<'_>, bytes: &[u8], writable: bool) -> PyResult<Option<Py<PyAny>>> {
        if self.skips(py, bytes)? {
            return Ok(None);
        }
        decode(py, Source::of_bytes(bytes), Vec::new(), Mode { trust: self.trust, writable }).map(Some)
    }

    /// Returns whether a message is the first message of a typed channel of `strait-typed`, without an object. The
    /// names and keys of Rust types in the message mean nothing here. Raises `Malformed` if the message names another
    /// codec.
    ///
    /// No object of a codec of this package has such bytes: MessagePack has only one byte in an object that begins with
    /// the byte F5, and JSON has no such byte.
    pub(crate) fn skips(&self, py: Python<'_>, bytes: &[u8]) -> PyResult<bool> {
        if !bytes.starts_with(FIRST) || bytes.len() < FIRST_FIXED {
            return Ok(false);
        }
        let ours = match &self.codec {
            None => MSGPACK,
            Some(codec) => match codec.bind(py).getattr_opt("typed")? {
                Some(number) => number.extract()?,
                None => return Ok(false),
            },
        };
        if bytes[FIRST.len()] == ours {
            return Ok(true);
        }
        let name = |number| match number {
            1 => "Postcard".to_owned(),
            2 => "MsgPack".to_owned(),
            3 => "Json".to_owned(),
            4 => "Pod".to_owned(),
            other => format!("number {other}"),
        };
        let text = format!(
            "the peer's typed channel has the codec {}: make it one of {} for this connection",
            name(bytes[FIRST.len()]),
            name(ours)
        );
        Err(errors::named(py, "Malformed", text))
    }

    /// Returns the object of a message in the codec `plain` that lies in memory that the peer can change; `None` for a
    /// first message.
    pub(crate) fn decode_view(&self, py: Python<'_>, view: InPlace<'_>, writable: bool) -> PyResult<Option<Py<PyAny>>> {
        let viewed = Viewed::new(view);
        let mut source = Source::of_view(&viewed);
        if let Some(first) = source.peek(py, FIRST_FIXED)?
            && self.skips(py, first)?
        {
            return Ok(None);
        }
        let handles = viewed.take_handles(py)?;
        decode(py, source, handles, Mode { trust: self.trust, writable }).map(Some)
    }

    /// Returns the object of a message. The arrays of the object are writable, or read-only.
    pub(crate) fn decode(&self, py: Python<'_>, mut message: strait::Message, writable: bool) -> PyResult<Py<PyAny>> {
        if let Some(codec) = &self.codec {
            return Ok(codec.bind(py).call_method1("loads", (Message::new(py, message)?,))?.unbind());
        }
        let handles = message.take_handles().map_err(|error| errors::raise(py, error))?;
        decode(py, Source::of_bytes(message.bytes()), handles, Mode { trust: self.trust, writable })
    }
}
