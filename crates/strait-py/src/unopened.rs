//! Unused ends of pipes. The first process that uses an end opens the end, so an end can go to a child process in every
//! way in which a socket can: by `fork`, by inheritance, or in a message.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use strait::{Channel, Error, Options};

use crate::connection::Connection;
use crate::errors;

/// A connected socket; the first use makes a channel of the socket.
pub(crate) struct Unopened {
    socket: OwnedFd,
    options: Options,
    /// The given options, for another process.
    keywords: Option<Py<PyDict>>,
}

/// Why an end cannot be opened.
pub(crate) enum OpenError {
    /// Another process, or another object of this process, has opened the end.
    Elsewhere,
    Failed(Error),
}

impl Unopened {
    fn new(py: Python<'_>, socket: OwnedFd, keywords: Option<&Bound<'_, PyDict>>) -> PyResult<Self> {
        let options = crate::options::of(keywords)?;
        // The sockets request credentials before a packet can be sent, so that the kernel names the sender.
        sockopt::set_socket_passcred(&socket, true)
            .map_err(|_| errors::raise(py, Error::NotASocket("no Unix socket")))?;
        Ok(Self { socket, options, keywords: keywords.map(|keywords| keywords.clone().unbind()) })
    }

    /// Opens the end. Fails if another process has done so.
    ///
    /// A socket option without another effect marks an opened end: all processes with the socket see the option.
    pub(crate) fn open(&self) -> Result<Channel, OpenError> {
        let failed = |error: rustix::io::Errno| {
            OpenError::Failed(Error::System { call: "SO_KEEPALIVE", code: error.raw_os_error() })
        };
        if sockopt::socket_keepalive(&self.socket).map_err(failed)? {
            return Err(OpenError::Elsewhere);
        }
        let socket = rustix::io::fcntl_dupfd_cloexec(&self.socket, 0).map_err(|_| Error::NoDescriptors);
        let opened = socket.and_then(|socket| {
            let _ = sockopt::set_socket_keepalive(&self.socket, true);
            self.options.over(socket)
        });
        opened.map_err(|error| {
            let _ = sockopt::set_socket_keepalive(&self.socket, false);
            OpenError::Failed(error)
        })
    }

    /// Returns the descriptor of the socket, and the given options.
    pub(crate) fn parts<'py>(&self, py: Python<'py>) -> (i32, Option<Bound<'py, PyDict>>) {
        (self.socket.as_raw_fd(), self.keywords.as_ref().map(|keywords| keywords.bind(py).clone()))
    }
}

/// Returns the two ends of a new pipe, for one process or for two. The first process that uses an end opens the end,
/// and only this process can use the end then. Without `duplex`, the first end only receives, and the second only
/// sends.
#[pyfunction]
#[pyo3(signature = (duplex=true, **options))]
pub(crate) fn pipe(
    py: Python<'_>,
    duplex: bool,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<(Connection, Connection)> {
    let made = rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
    let (one, other) = made.map_err(|error| match error {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => errors::raise(py, Error::NoDescriptors),
        error => errors::raise(py, Error::System { call: "socketpair", code: error.raw_os_error() }),
    })?;
    let settings = crate::options::all(options)?.1;
    let (one, other) = (Unopened::new(py, one, options)?, Unopened::new(py, other, options)?);
    let one = Connection::unopened(one, true, duplex, settings.clone_ref(py));
    Ok((one, Connection::unopened(other, duplex, true, settings)))
}

/// Returns the end with the connected socket `fd`; the descriptor belongs to the connection from now on.
#[pyfunction]
#[pyo3(signature = (fd, readable=true, writable=true, **options))]
#[allow(unsafe_code)]
pub(crate) fn unopened(
    py: Python<'_>,
    fd: i32,
    readable: bool,
    writable: bool,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Connection> {
    if fd < 0 {
        return Err(PyValueError::new_err(format!("{fd} is no descriptor")));
    }
    // SAFETY: the number is not -1. It is used for the one system call below, which fails if the number is not open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    rustix::io::fcntl_setfd(borrowed, rustix::io::FdFlags::CLOEXEC).map_err(std::io::Error::from)?;
    // SAFETY: the descriptor is open, and the caller gives it away.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let settings = crate::options::all(options)?.1;
    Ok(Connection::unopened(Unopened::new(py, socket, options)?, readable, writable, settings))
}
