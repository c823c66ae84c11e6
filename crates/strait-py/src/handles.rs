//! Handles: the parts of a message besides bytes, as Python objects.

use std::sync::Mutex;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use strait::Handle;

use crate::connection::Connection;
use crate::errors;
use crate::file::{self, File};
use crate::region::Region;
use crate::streams::{Consumer, Producer};
use crate::sync::lock;

/// A received handle of a kind that this package cannot use yet. The handle can be sent on or closed.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Opaque {
    handle: Mutex<Option<Handle>>,
}

#[pymethods]
impl Opaque {
    /// Closes the handle. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let handle = lock(&self.handle).take();
        py.detach(|| drop(handle));
    }
}

/// An object that gives its handle to a message.
pub(crate) enum Carrier {
    File(Py<File>),
    Connection(Py<Connection>),
    Opaque(Py<Opaque>),
    Region(Py<Region>),
    Producer(Py<Producer>),
    Consumer(Py<Consumer>),
}

impl Carrier {
    /// Returns the carrier of an object: the object itself, or a duplicate of an open file or a socket. Returns `None`
    /// for an object of another kind.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Option<Self>> {
        if let Ok(connection) = object.cast::<Connection>() {
            return Ok(Some(Self::Connection(connection.clone().unbind())));
        }
        if let Ok(file) = object.cast::<File>() {
            return Ok(Some(Self::File(file.clone().unbind())));
        }
        if let Ok(region) = object.cast::<Region>() {
            return Ok(Some(Self::Region(region.clone().unbind())));
        }
        if let Ok(producer) = object.cast::<Producer>() {
            return Ok(Some(Self::Producer(producer.clone().unbind())));
        }
        if let Ok(consumer) = object.cast::<Consumer>() {
            return Ok(Some(Self::Consumer(consumer.clone().unbind())));
        }
        if let Ok(opaque) = object.cast::<Opaque>() {
            return Ok(Some(Self::Opaque(opaque.clone().unbind())));
        }
        if !is_open_file(object)? {
            return Ok(None);
        }
        Ok(Some(Self::File(Py::new(object.py(), file::of(object)?)?)))
    }

    fn take(&self, py: Python<'_>) -> PyResult<Handle> {
        match self {
            Self::File(file) => file.get().take(py),
            Self::Connection(connection) => connection.get().take(py),
            Self::Region(region) => Ok(region.get().handle()),
            Self::Producer(producer) => producer.get().take(py),
            Self::Consumer(consumer) => consumer.get().take(py),
            Self::Opaque(opaque) => {
                let handle = lock(&opaque.get().handle).take();
                handle.ok_or_else(|| errors::named(py, "Closed", "this handle was closed or sent before".to_owned()))
            }
        }
    }

    fn restore(&self, handle: Handle) {
        match self {
            Self::File(file) => file.get().restore(handle),
            Self::Connection(connection) => connection.get().restore(handle),
            Self::Producer(producer) => producer.get().restore(handle),
            Self::Consumer(consumer) => consumer.get().restore(handle),
            // The region has kept its own handle.
            Self::Region(_) => {}
            Self::Opaque(opaque) => *lock(&opaque.get().handle) = Some(handle),
        }
    }
}

impl Carrier {
    /// Notes that the handle was sent.
    fn sent(&self) {
        match self {
            Self::Connection(connection) => connection.get().sent(),
            Self::Producer(producer) => producer.get().sent(),
            Self::Consumer(consumer) => consumer.get().sent(),
            Self::File(_) | Self::Region(_) | Self::Opaque(_) => {}
        }
    }
}

/// Returns whether an object is a file of the module `io`, or a socket.
fn is_open_file(object: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = object.py();
    for (module, class) in [("io", "IOBase"), ("socket", "socket")] {
        if object.is_instance(&py.import(module)?.getattr(class)?)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns the carriers of the given objects.
pub(crate) fn carriers(objects: &Bound<'_, PyAny>) -> PyResult<Vec<Carrier>> {
    let mut carriers = Vec::new();
    for object in objects.try_iter()? {
        let object = object?;
        let number = object.extract::<i32>().is_ok();
        let carrier = if number { None } else { Carrier::of(&object)? };
        carriers.push(carrier.ok_or_else(|| {
            let class = object.get_type().to_string();
            PyTypeError::new_err(format!(
                "{class} is no handle: give a connection, a region, an end of a data pipe, an open file, a socket, or File(fd)"
            ))
        })?);
    }
    Ok(carriers)
}

/// Takes the handles of all carriers, or of none.
pub(crate) fn take_all(py: Python<'_>, carriers: &[Carrier]) -> PyResult<Vec<Handle>> {
    let mut taken = Vec::with_capacity(carriers.len());
    for carrier in carriers {
        match carrier.take(py) {
            Ok(handle) => taken.push(handle),
            Err(error) => {
                carriers.iter().zip(taken).for_each(|(carrier, handle)| carrier.restore(handle));
                return Err(error);
            }
        }
    }
    Ok(taken)
}

/// Puts the handles of a message back that was not sent. No handles stand for a message that was sent.
pub(crate) fn restore_all(carriers: &[Carrier], handles: Vec<Handle>) {
    if handles.is_empty() {
        carriers.iter().for_each(Carrier::sent);
    }
    for (carrier, handle) in carriers.iter().zip(handles) {
        carrier.restore(handle);
    }
}

/// Returns the Python object of a received handle.
pub(crate) fn received(py: Python<'_>, handle: Handle) -> PyResult<Py<PyAny>> {
    match handle {
        Handle::Fd(fd) => Ok(Py::new(py, File::new(fd))?.into_any()),
        Handle::Channel(channel) => Ok(Py::new(py, Connection::new(channel))?.into_any()),
        Handle::Region(region) => Ok(Py::new(py, Region::new(region))?.into_any()),
        Handle::Producer(producer) => Ok(Py::new(py, Producer::new(producer))?.into_any()),
        Handle::Consumer(consumer) => Ok(Py::new(py, Consumer::new(consumer))?.into_any()),
        other => Ok(Py::new(py, Opaque { handle: Mutex::new(Some(other)) })?.into_any()),
    }
}
