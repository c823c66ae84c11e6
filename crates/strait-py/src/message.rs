//! Received messages, and the processes at the other ends.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Mutex;

use crate::buffers;
use crate::errors;
use crate::handles;
use crate::sync::lock;

/// A received message: its bytes and its handles.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Message {
    bytes: Py<PyBytes>,
    received: Mutex<strait::Message>,
    handles: Mutex<Option<Py<PyList>>>,
}

impl Message {
    pub(crate) fn new(py: Python<'_>, received: strait::Message) -> PyResult<Self> {
        let bytes = buffers::copied(py, received.bytes())?.unbind();
        Ok(Self { bytes, received: Mutex::new(received), handles: Mutex::new(None) })
    }
}

#[pymethods]
impl Message {
    /// The bytes of the message.
    #[getter]
    fn bytes(&self, py: Python<'_>) -> Py<PyBytes> {
        self.bytes.clone_ref(py)
    }

    /// The handles of the message, each a `File`, a `Connection`, a `Region` or an `Opaque`. Raises `HandlesLost` if
    /// descriptors did not arrive.
    #[getter]
    fn handles(&self, py: Python<'_>) -> PyResult<Py<PyList>> {
        if let Some(list) = &*lock(&self.handles) {
            return Ok(list.clone_ref(py));
        }
        let taken = lock(&self.received).take_handles();
        let taken = taken.map_err(|error| errors::raise(py, error))?;
        let objects = taken.into_iter().map(|handle| handles::received(py, handle)).collect::<PyResult<Vec<_>>>()?;
        let list = PyList::new(py, objects)?.unbind();
        Ok(lock(&self.handles).get_or_insert(list).clone_ref(py))
    }

    /// Closes all handles that the program has neither taken from the list nor used.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        for handle in self.handles(py)?.bind(py).iter() {
            if handle.hasattr("close")? {
                handle.call_method0("close")?;
            }
        }
        Ok(())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) -> PyResult<()> {
        self.close(py)
    }
}

/// The process at the other end of a connection, by the kernel's report.
#[pyclass(frozen, get_all, module = "strait")]
pub(crate) struct Peer {
    /// The process id; `None` if the kernel knows none here.
    pid: Option<u32>,
    /// The user id.
    uid: u32,
    /// The group id.
    gid: u32,
    /// Whether the process was alive at the making of this object.
    is_alive: bool,
}

impl From<strait::Peer> for Peer {
    fn from(peer: strait::Peer) -> Self {
        Self { pid: peer.pid, uid: peer.uid, gid: peer.gid, is_alive: peer.is_alive }
    }
}

#[pymethods]
impl Peer {
    fn __repr__(&self) -> String {
        format!("<strait.Peer pid={:?} uid={} gid={} is_alive={}>", self.pid, self.uid, self.gid, self.is_alive)
    }
}
