//! Functions for making connections.

use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Instant;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use strait::meet::{self, Connector, MeetError};
use strait::wait::{Fd, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error};

use crate::connection::Connection;
use crate::sync::lock;
use crate::waiting::{self, Timeout};
use crate::{errors, options};

/// Returns two connected ends in this process.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn pair(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<(Connection, Connection)> {
    let (options, settings) = options::all(options)?;
    let (one, other) = options.pair().map_err(|error| errors::raise(py, error))?;
    Ok((Connection::with(one, settings.clone_ref(py)), Connection::with(other, settings)))
}

/// Connects to the listener of a name; waits until the listener accepts, or until the timeout.
#[pyfunction]
#[pyo3(signature = (name, *, server_uid=None, directory=None, wait_for_listener=false, timeout=None, **options))]
pub(crate) fn connect(
    py: Python<'_>,
    name: &str,
    server_uid: Option<u32>,
    directory: Option<PathBuf>,
    wait_for_listener: bool,
    timeout: Option<f64>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Connection> {
    let (options, settings) = options::all(options)?;
    settings.warn(py)?;
    let mut connector = Connector::new().options(options);
    if let Some(uid) = server_uid {
        connector = connector.server(uid);
    }
    if let Some(directory) = directory {
        connector = connector.directory(directory);
    }
    let deadline = Timeout::of(timeout)?.whole();
    if wait_for_listener {
        connector = connector.wait_for_listener();
    }
    Ok(Connection::with(connect_by(py, &connector, name, deadline)?, settings))
}

/// Connects by a deadline.
fn connect_by(py: Python<'_>, connector: &Connector, name: &str, deadline: Deadline) -> PyResult<Channel> {
    let since = Instant::now();
    loop {
        match py.detach(|| waiting::checked(since, || connector.connect(name, deadline)))? {
            Err(MeetError { error: Error::Signalled, .. }) => py.check_signals()?,
            connected => return connected.map_err(|error| errors::raise_meeting(py, &error)),
        }
    }
}

/// Returns the connection to the parent process, which started this process with `strait.spawn`, or with the
/// corresponding call in Rust, C or C++. A process can call this function once.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn parent(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<Connection> {
    let (options, settings) = options::all(options)?;
    let channel = options.from_parent().map_err(|error| errors::raise_meeting(py, &error))?;
    Ok(Connection::with(channel, settings))
}

/// Connects to the inviting listener. Reads the invitation, one line, from the standard input. The line can be read
/// once. A call that raises an exception of a signal handler has read nothing.
#[pyfunction]
#[pyo3(signature = (*, timeout=None, **options))]
pub(crate) fn invited(
    py: Python<'_>,
    timeout: Option<f64>,
    options: Option<&Bound<'_, PyDict>>,
) -> PyResult<Connection> {
    let (options, settings) = options::all(options)?;
    let timeout = Timeout::of(timeout)?;
    wait_for_stdin(py, timeout)?;
    let deadline = timeout.whole();
    // A signal ends no wait here: the line can be read only once.
    let channel = py.detach(|| options.invited(deadline)).map_err(|error| errors::raise_meeting(py, &error))?;
    Ok(Connection::with(channel, settings))
}

/// Waits until there is something to read on the standard input, or until the timeout. Each error is found again by the
/// read; a file, which no wait set takes, can be read at once.
fn wait_for_stdin(py: Python<'_>, timeout: Timeout) -> PyResult<()> {
    let watched = std::io::stdin().as_fd().try_clone_to_owned().map(|stdin| {
        let (set, fd) = (WaitSet::new()?, Fd::new(stdin)?);
        set.add(&fd, 0, Interest::Readable, Mode::Level)?;
        Ok::<_, Error>((set, fd))
    });
    let Ok(Ok((set, _fd))) = watched else { return Ok(()) };
    let mut events = Vec::with_capacity(1);
    let waited = waiting::wait(py, timeout, |deadline| match set.wait(&mut events, deadline)? {
        0 => Err(if deadline == Deadline::NOW { Error::WouldBlock } else { Error::TimedOut }),
        _ => Ok(()),
    });
    waited.map(drop)
}

/// The inheritance by which a new process gets the other end of a connection.
#[pyclass(frozen, module = "strait._native")]
pub(crate) struct Inheritance {
    inheritance: Mutex<Option<meet::Inheritance>>,
}

#[pymethods]
impl Inheritance {
    /// The name of the environment variable.
    #[classattr]
    const VARIABLE: &str = meet::Inheritance::VARIABLE;

    /// Returns the descriptor to inherit, and the value of the environment variable.
    fn parts(&self, py: Python<'_>) -> PyResult<(i32, String)> {
        let inheritance = |held: &meet::Inheritance| (held.as_raw_fd(), held.value());
        let parts = lock(&self.inheritance).as_ref().map(inheritance);
        parts.ok_or_else(|| errors::named(py, "Closed", "this inheritance was closed".to_owned()))
    }

    /// Closes the descriptor in this process.
    fn close(&self) {
        lock(&self.inheritance).take();
    }
}

/// Returns an end of a connection to a process about to be started, with the inheritance of the process.
#[pyfunction]
#[pyo3(signature = (**options))]
pub(crate) fn inherit(py: Python<'_>, options: Option<&Bound<'_, PyDict>>) -> PyResult<(Connection, Inheritance)> {
    let (options, settings) = options::all(options)?;
    let made = options.inheritance().map_err(|error| errors::raise(py, error))?;
    let inheritance = Inheritance { inheritance: Mutex::new(Some(made.1)) };
    Ok((Connection::with(made.0, settings), inheritance))
}
