//! Listeners: names under which other processes connect.

use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use strait::Error;

use crate::connection::Connection;
use crate::sync::lock;
use crate::waiting::{self, Timeout};
use crate::{errors, options};

/// Accepts connections under a name. By default a listener accepts the processes of its own user only.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Listener {
    listener: Mutex<Option<Arc<strait::Listener>>>,
}

fn closed(py: Python<'_>) -> PyErr {
    errors::named(py, "Closed", "this listener was closed".to_owned())
}

impl Listener {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<strait::Listener>> {
        lock(&self.listener).clone().ok_or_else(|| closed(py))
    }
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (name, *, mode=None, directory=None, **options))]
    fn new(
        py: Python<'_>,
        name: &str,
        mode: Option<u32>,
        directory: Option<PathBuf>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let mut builder = strait::Listener::builder().options(options::of(options)?);
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        if let Some(directory) = directory {
            builder = builder.directory(directory);
        }
        let listener = py.detach(|| builder.bind(name)).map_err(|error| errors::raise_meeting(py, &error))?;
        Ok(Self { listener: Mutex::new(Some(Arc::new(listener))) })
    }

    /// Returns the connection to the next process that connects; waits for that process until the timeout.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Connection> {
        let timeout = Timeout::of(timeout)?;
        let listener = Arc::downgrade(&self.get(py)?);
        // Each attempt lasts a tenth of a second and holds the listener; so a close by another thread ends the wait.
        let accepted = waiting::wait_in_slices(py, timeout, |deadline| {
            let listener = listener.upgrade().ok_or(Error::Interrupted)?;
            listener.accept(deadline)
        })?;
        match accepted {
            Ok(channel) => Ok(Connection::new(channel)),
            Err(Error::Interrupted) => Err(closed(py)),
            Err(error) => Err(errors::raise(py, error)),
        }
    }

    /// Returns a descriptor that is readable whenever a process may wait to be accepted. Do not read from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.get(py)?.as_raw_fd())
    }

    /// The path of the listener's socket.
    #[getter]
    fn path(&self, py: Python<'_>) -> PyResult<PathBuf> {
        Ok(self.get(py)?.path().to_owned())
    }

    /// Stops listening, and ends the waits of other threads. Accepted connections stay open. Does nothing the second
    /// time.
    fn close(&self, py: Python<'_>) {
        let listener = lock(&self.listener).take();
        py.detach(|| drop(listener));
    }

    /// Whether the listener was closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.listener).is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the next connection. Ends once the listener is closed.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Connection>> {
        match self.accept(py, None) {
            Err(error) if errors::is(py, &error, "Closed") => Ok(None),
            accepted => accepted.map(Some),
        }
    }

    fn __repr__(&self) -> String {
        match &*lock(&self.listener) {
            Some(listener) => format!("<strait.Listener {}>", listener.path().display()),
            None => "<strait.Listener closed>".to_owned(),
        }
    }
}
