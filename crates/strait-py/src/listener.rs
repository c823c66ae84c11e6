//! Listeners: names for connecting processes.

use std::collections::HashMap;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use pyo3::exceptions::{PyException, PyValueError};
use pyo3::gc::{PyTraverseError, PyVisit};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use strait::{Channel, Deadline, Error};

use crate::codec::Settings;
use crate::connection::Connection;
use crate::message::Peer;
use crate::sync::lock;
use crate::waiting::{self, Timeout};
use crate::watch::Watch;
use crate::{errors, options};

/// Accepts connections under a name. By default a listener accepts the processes of its own user only.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Listener {
    listener: Mutex<Option<Arc<strait::Listener>>>,
    /// The name, for `connect`.
    #[pyo3(get)]
    address: String,
    settings: Settings,
    policy: Arc<Policy>,
    /// Connections that were accepted by a call that raised an exception of the policy.
    kept: Mutex<Vec<Channel>>,
    last_accepted: Mutex<Option<strait::Peer>>,
    /// Made when a call of `accept` first waits.
    watch: Mutex<Option<Arc<Watch>>>,
}

/// A token with which one process can connect to a listener, once.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Invitation {
    invitation: strait::meet::Invitation,
    settings: Settings,
    /// The connection, if it was accepted by a call that raised an exception of the policy.
    kept: Mutex<Vec<Channel>>,
    /// The listener stays open as long as it can be needed for the invitation.
    listener: Py<Listener>,
}

fn closed(py: Python<'_>) -> PyErr {
    errors::named(py, "Closed", "this listener was closed".to_owned())
}

impl Listener {
    fn accepted(&self, py: Python<'_>, channel: Channel) -> Connection {
        *lock(&self.last_accepted) = channel.peer().ok().flatten();
        Connection::with(channel, self.settings.clone_ref(py))
    }

    fn watch(&self, listener: &strait::Listener) -> Result<Arc<Watch>, Error> {
        let mut watch = lock(&self.watch);
        match &*watch {
            Some(watch) => Ok(watch.clone()),
            None => Ok(watch.insert(Arc::new(Watch::new(listener)?)).clone()),
        }
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<strait::Listener>> {
        let listener = lock(&self.listener).clone();
        listener.ok_or_else(|| closed(py))
    }
}

/// The policy of the program: which processes are let in.
#[derive(Default)]
struct Policy {
    function: Mutex<Option<Py<PyAny>>>,
    /// The exceptions of policies that were ended by a signal handler. Each is for the call of `accept` that asked the
    /// policy, which runs in the thread of that call.
    raised: Mutex<HashMap<ThreadId, PyErr>>,
}

impl Policy {
    /// Asks the policy whether a process is let in. If the policy raises an exception, the process is refused.
    fn allows(&self, peer: strait::Peer) -> bool {
        let asked = Python::try_attach(|py| {
            let function = lock(&self.function).as_ref().map(|function| function.clone_ref(py));
            let Some(function) = function else { return false };
            let function = function.bind(py);
            match function.call1((Peer::from(peer),)).and_then(|answer| answer.is_truthy()) {
                Ok(answer) => answer,
                Err(error) if error.is_instance_of::<PyException>(py) => {
                    error.write_unraisable(py, Some(function));
                    false
                }
                Err(error) => {
                    let before = lock(&self.raised).insert(thread::current().id(), error);
                    drop(before);
                    false
                }
            }
        });
        asked.unwrap_or(false)
    }

    /// Returns whether a policy that the calling thread has asked was ended by a signal handler.
    fn has_raised(&self) -> bool {
        lock(&self.raised).contains_key(&thread::current().id())
    }

    /// Returns the outcome of an accepting call: the exception of the policy if there is one. An accepted connection
    /// then goes to `kept`.
    fn outcome(&self, accepted: PyResult<Channel>, kept: &Mutex<Vec<Channel>>) -> PyResult<Channel> {
        let Some(raised) = lock(&self.raised).remove(&thread::current().id()) else { return accepted };
        lock(kept).extend(accepted);
        Err(raised)
    }
}

#[pymethods]
impl Invitation {
    /// Writes the invitation, one line, to an open file or a descriptor: the standard input of the invited process.
    fn tell(&self, py: Python<'_>, file: &Bound<'_, PyAny>) -> PyResult<()> {
        let fd = crate::file::of(file)?.take(py)?.into_fd();
        let fd = fd.ok_or_else(|| errors::raise(py, Error::BadHandle))?;
        let told = py.detach(|| self.invitation.tell(&mut std::fs::File::from(fd)));
        told.map_err(|failed| errors::raise_meeting(py, &failed))
    }

    /// Returns the connection to the invited process; waits for that process until the timeout.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Connection> {
        let timeout = Timeout::of(timeout)?;
        let kept = lock(&self.kept).pop();
        let channel = match kept {
            Some(channel) => channel,
            None => {
                let policy = &self.listener.get().policy;
                let accepted = waiting::wait(py, timeout, |deadline| match self.invitation.accept(deadline) {
                    Err(_) if policy.has_raised() => Err(Error::Interrupted),
                    accepted => Ok(accepted?),
                });
                let accepted = accepted.and_then(|accepted| accepted.map_err(|error| errors::raise(py, error)));
                policy.outcome(accepted, &self.kept)?
            }
        };
        Ok(Connection::with(channel, self.settings.clone_ref(py)))
    }
}

#[pymethods]
impl Listener {
    #[new]
    #[pyo3(signature = (name, *, policy=None, mode=None, invited_only=false, directory=None, **options))]
    fn new(
        py: Python<'_>,
        name: &str,
        policy: Option<Py<PyAny>>,
        mode: Option<u32>,
        invited_only: bool,
        directory: Option<PathBuf>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let (options, settings) = options::all(options)?;
        let mut builder = strait::Listener::builder().options(options);
        let has_policy = policy.is_some();
        let policy = Arc::new(Policy { function: Mutex::new(policy), raised: Mutex::default() });
        if has_policy {
            let policy = policy.clone();
            builder = builder.policy(move |peer| policy.allows(*peer));
        }
        if invited_only {
            builder = builder.invited_only();
        }
        if let Some(mode) = mode {
            builder = builder.mode(mode);
        }
        if let Some(directory) = directory {
            builder = builder.directory(directory);
        }
        let listener = py.detach(|| builder.bind(name)).map_err(|error| errors::raise_meeting(py, &error))?;
        let listener = Mutex::new(Some(Arc::new(listener)));
        let (kept, last_accepted, watch) = (Mutex::default(), Mutex::new(None), Mutex::new(None));
        Ok(Self { listener, address: name.to_owned(), settings, policy, kept, last_accepted, watch })
    }

    /// Returns the connection to the next connecting process; waits for that process until the timeout.
    #[pyo3(signature = (timeout=None))]
    fn accept(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Connection> {
        let timeout = Timeout::of(timeout)?;
        loop {
            let listener = self.get(py)?;
            let kept = lock(&self.kept).pop();
            if let Some(channel) = kept {
                return Ok(self.accepted(py, channel));
            }
            match py.detach(|| listener.accept(Deadline::NOW)) {
                Err(failed)
                    if failed.error == Error::WouldBlock
                        && !matches!(timeout, Timeout::Now)
                        && !self.policy.has_raised() => {}
                accepted => {
                    let accepted = accepted.map_err(|failed| errors::raise_meeting(py, &failed));
                    let channel = self.policy.outcome(accepted, &self.kept)?;
                    return Ok(self.accepted(py, channel));
                }
            }
            // During the wait, this thread holds only the wait set. So a close by another thread removes the name at
            // once.
            let watch = self.watch(&listener).map_err(|error| errors::raise(py, error))?;
            drop(listener);
            // A close after this call ends the wait.
            self.get(py)?;
            match watch.wait(py, timeout)? {
                Ok(()) | Err(Error::Interrupted) => {}
                Err(error) => return Err(errors::raise(py, error)),
            }
        }
    }

    /// Returns an invitation, valid for a number of seconds.
    fn invite(slf: &Bound<'_, Self>, valid_for: f64) -> PyResult<Invitation> {
        let (py, this) = (slf.py(), slf.get());
        let valid_for = Duration::try_from_secs_f64(valid_for)
            .map_err(|error| PyValueError::new_err(format!("valid_for={valid_for}: {error}")))?;
        let invitation = this.get(py)?.invite(valid_for).map_err(|failed| errors::raise_meeting(py, &failed))?;
        let (settings, listener) = (this.settings.clone_ref(py), slf.clone().unbind());
        Ok(Invitation { invitation, settings, kept: Mutex::default(), listener })
    }

    /// The last accepted process; `None` before the first.
    #[getter]
    fn last_accepted(&self) -> Option<Peer> {
        lock(&self.last_accepted).map(Peer::from)
    }

    /// Returns a descriptor, readable whenever a process may wait to be accepted. Do not read from it.
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
        let watch = lock(&self.watch).take();
        let kept = std::mem::take(&mut *lock(&self.kept));
        py.detach(|| {
            drop(kept);
            if let Some(watch) = watch {
                watch.end();
            }
            drop(listener);
        });
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

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        // While another thread uses the policy, the listener is no garbage.
        match self.policy.function.try_lock() {
            Ok(function) => function.as_ref().map_or(Ok(()), |function| visit.call(function)),
            Err(_) => Ok(()),
        }
    }

    fn __clear__(&self) {
        let function = lock(&self.policy.function).take();
        drop(function);
    }

    fn __repr__(&self) -> String {
        match &*lock(&self.listener) {
            Some(listener) => format!("<strait.Listener {}>", listener.path().display()),
            None => "<strait.Listener closed>".to_owned(),
        }
    }
}
