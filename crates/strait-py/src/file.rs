//! File descriptors as objects that a message can carry.

use std::os::fd::{AsRawFd, BorrowedFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Mutex;

use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use strait::Handle;

use crate::errors;
use crate::sync::lock;

/// A file descriptor, owned and closed by this object. `File(f)` duplicates the descriptor of an open file, a socket or
/// a number.
#[pyclass(frozen, module = "strait")]
pub(crate) struct File {
    fd: Mutex<Option<OwnedFd>>,
}

impl File {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd: Mutex::new(Some(fd)) }
    }

    /// Takes the descriptor out, to be sent.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Handle> {
        let fd = lock(&self.fd).take();
        fd.map(Handle::Fd).ok_or_else(|| closed(py))
    }

    /// Puts an unsent handle back.
    pub(crate) fn restore(&self, handle: Handle) {
        *lock(&self.fd) = handle.into_fd();
    }
}

fn closed(py: Python<'_>) -> PyErr {
    errors::named(py, "Closed", "this file was closed, detached or sent before".to_owned())
}

/// Returns a duplicate, closed on `exec`, of the descriptor with this number.
#[allow(unsafe_code)]
pub(crate) fn duplicate(number: RawFd) -> PyResult<OwnedFd> {
    if number < 0 {
        return Err(PyOSError::new_err((rustix::io::Errno::BADF.raw_os_error(), "a descriptor is not negative")));
    }
    // SAFETY: the number is not -1. The descriptor is used for the one system call below, which fails with EBADF if the
    // number is not an open descriptor. If the program closes the descriptor at the same time, the result is a
    // duplicate of the file that has the number now.
    let borrowed = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::io::fcntl_dupfd_cloexec(borrowed, 0).map_err(|error| std::io::Error::from(error).into())
}

/// Returns a file with a duplicate of the descriptor of an open file or a socket.
pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<File> {
    let number = match object.extract::<RawFd>() {
        Ok(number) => number,
        Err(_) => object.call_method0("fileno")?.extract()?,
    };
    Ok(File::new(duplicate(number)?))
}

#[pymethods]
impl File {
    #[new]
    fn of_object(file: &Bound<'_, PyAny>) -> PyResult<Self> {
        of(file)
    }

    /// Returns the number of the descriptor; this object still owns the descriptor.
    fn fileno(&self, py: Python<'_>) -> PyResult<RawFd> {
        let number = lock(&self.fd).as_ref().map(AsRawFd::as_raw_fd);
        number.ok_or_else(|| closed(py))
    }

    /// Returns the number of the descriptor; now the caller has to close the descriptor.
    fn detach(&self, py: Python<'_>) -> PyResult<RawFd> {
        let fd = lock(&self.fd).take();
        fd.map(IntoRawFd::into_raw_fd).ok_or_else(|| closed(py))
    }

    /// Closes the descriptor. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let fd = lock(&self.fd).take();
        py.detach(|| drop(fd));
    }

    /// Whether the descriptor was closed, detached or sent.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.fd).is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        match &*lock(&self.fd) {
            Some(fd) => format!("<strait.File {}>", fd.as_raw_fd()),
            None => "<strait.File closed>".to_owned(),
        }
    }
}
