//! Calls: requests and replies over a connection.

use std::io::IoSlice;
use std::sync::{Arc, Mutex};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use strait::Error;
use strait::call::{CallCounters, CallEnd, CallError, CallOptions};

use crate::codec::Settings;
use crate::connection::{Connection, outgoing};
use crate::errors;
use crate::handles::{self, Carrier};
use crate::message::{Message, Peer};
use crate::sync::lock;
use crate::waiting::{self, Timeout};

/// An end of a connection for calls: each side may call the other, in any number of threads. Takes the end out of
/// `connection`; the other side makes a `Caller` of its end, too.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Caller {
    end: Mutex<Option<Arc<CallEnd>>>,
    settings: Settings,
}

/// A request of the other side. If the request is dropped without a reply, the caller gets `NotAnswered`.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Request {
    request: Mutex<Option<(Option<strait::Message>, strait::call::Replier)>>,
    settings: Settings,
}

fn closed(py: Python<'_>) -> PyErr {
    errors::named(py, "Closed", "this caller was closed".to_owned())
}

/// Returns the exception of a failed call.
pub(crate) fn raise_call(py: Python<'_>, error: &CallError) -> PyErr {
    let (class, cause) = match error {
        CallError::NotSent(failed) => ("NotSent", Some(failed.error)),
        CallError::NotAnswered => ("NotAnswered", None),
        CallError::OutcomeUnknown(error) => ("OutcomeUnknown", Some(*error)),
        _ => ("CallError", None),
    };
    let exception = errors::named(py, class, error.to_string());
    exception.set_cause(py, cause.map(|cause| errors::raise(py, cause)));
    exception
}

/// Returns `Err` with an error after which the call waits and tries again; `Ok` with any other error.
fn passing(error: CallError) -> Result<CallError, Error> {
    match error {
        CallError::OutcomeUnknown(error @ (Error::WouldBlock | Error::TimedOut | Error::Signalled)) => Err(error),
        error => Ok(error),
    }
}

impl Caller {
    fn get(&self, py: Python<'_>) -> PyResult<Arc<CallEnd>> {
        let end = lock(&self.end).clone();
        end.ok_or_else(|| closed(py))
    }

    fn make(
        &self,
        py: Python<'_>,
        parts: &[IoSlice<'_>],
        carriers: &[Carrier],
        timeout: Timeout,
    ) -> PyResult<strait::Message> {
        let end = self.get(py)?;
        let mut kept = handles::take_all(py, carriers)?;
        // The request is sent once; the reply is awaited in several attempts, between which signal handlers run.
        let begun = waiting::wait(py, timeout, |deadline| {
            let outgoing = outgoing(parts).handles(std::mem::take(&mut kept));
            match end.begin_call(outgoing, deadline) {
                Err(CallError::NotSent(failed))
                    if matches!(failed.error, Error::WouldBlock | Error::TimedOut | Error::Signalled) =>
                {
                    kept = failed.handles;
                    Err(failed.error)
                }
                Err(CallError::NotSent(mut failed)) => {
                    kept = std::mem::take(&mut failed.handles);
                    Ok(Err(CallError::NotSent(failed)))
                }
                begun => Ok(begun),
            }
        });
        handles::restore_all(carriers, kept);
        let mut pending = match begun? {
            Ok(Ok(pending)) => pending,
            Ok(Err(error)) => return Err(self.failed(py, &error)),
            Err(error) => {
                let exception = errors::named(py, "NotSent", format!("the request was not sent: {error}"));
                exception.set_cause(py, Some(errors::raise(py, error)));
                return Err(exception);
            }
        };
        let waited = waiting::wait(py, timeout, |deadline| match pending.poll(deadline) {
            Ok(message) => Ok(Ok(message)),
            Err(error) => passing(error).map(Err),
        });
        match waited? {
            Ok(Ok(message)) => Ok(message),
            Ok(Err(error)) => Err(self.failed(py, &error)),
            Err(error) => Err(raise_call(py, &CallError::OutcomeUnknown(error))),
        }
    }

    fn failed(&self, py: Python<'_>, error: &CallError) -> PyErr {
        let interrupted = match error {
            CallError::NotSent(failed) => failed.error == Error::Interrupted,
            CallError::OutcomeUnknown(error) => *error == Error::Interrupted,
            _ => false,
        };
        match self.get(py) {
            Err(closed) if interrupted => closed,
            _ => raise_call(py, error),
        }
    }
}

#[pymethods]
impl Caller {
    #[new]
    #[pyo3(signature = (connection, *, calls=None, requests=None))]
    fn new(
        py: Python<'_>,
        connection: &Bound<'_, Connection>,
        calls: Option<usize>,
        requests: Option<usize>,
    ) -> PyResult<Self> {
        let settings = connection.get().settings(py);
        let mut options = CallOptions::new();
        if let Some(calls) = calls {
            options = options.calls(calls);
        }
        if let Some(requests) = requests {
            options = options.requests(requests);
        }
        let channel = connection.get().take_channel(py)?;
        let _ = channel.interrupter();
        Ok(Self { end: Mutex::new(Some(Arc::new(options.over(channel)))), settings })
    }

    /// Sends an object as a request, and returns the object of the reply.
    #[pyo3(signature = (obj, *, timeout=None))]
    fn call(&self, py: Python<'_>, obj: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<Py<PyAny>> {
        let timeout = Timeout::of(timeout)?;
        self.get(py)?;
        let encoded = self.settings.encode(obj)?;
        let reply = self.make(py, &encoded.parts(), &encoded.carriers, timeout)?;
        self.settings.decode(py, reply, true)
    }

    /// Sends bytes as a request, with handles, and returns the reply.
    #[pyo3(signature = (data, *, handles=None, timeout=None))]
    fn call_bytes(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        handles: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<Message> {
        let timeout = Timeout::of(timeout)?;
        let data = crate::connection::steady(data)?;
        let carriers = handles.map_or(Ok(Vec::new()), handles::carriers)?;
        Message::new(py, self.make(py, &[IoSlice::new(data.as_bytes())], &carriers, timeout)?)
    }

    /// Returns the next request of the other side; waits for it until the timeout.
    #[pyo3(signature = (*, timeout=None))]
    fn next_request(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Request> {
        let end = self.get(py)?;
        match waiting::wait(py, Timeout::of(timeout)?, |deadline| end.next_request(deadline))? {
            Ok(request) => Ok(Request::new(request, self.settings.clone_ref(py))),
            Err(Error::Interrupted) => Err(self.get(py).err().unwrap_or_else(|| errors::raise(py, Error::Interrupted))),
            Err(Error::PeerClosed) => Err(errors::peer_closed(py, end.channel().close_reason())),
            Err(error) => Err(errors::raise(py, error)),
        }
    }

    /// Calls `handler` with the object of each request, and replies with the result, until the other side closes. If
    /// the handler raises an exception, the caller gets `NotAnswered`, and this function raises the exception.
    fn serve(&self, py: Python<'_>, handler: &Bound<'_, PyAny>) -> PyResult<()> {
        loop {
            let request = match self.next_request(py, None) {
                Err(error) if errors::is(py, &error, "PeerClosed") => return Ok(()),
                request => request?,
            };
            let answer = handler.call1((request.value(py)?,))?;
            match request.reply(py, &answer, None) {
                Err(error) if errors::is(py, &error, "PeerClosed") => return Ok(()),
                done => done?,
            }
        }
    }

    /// The number of unanswered calls of this side.
    #[getter]
    fn under_way(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.get(py)?.under_way())
    }

    /// The numbers of calls of this side, of received requests, and of late and unknown answers.
    #[getter]
    fn counters(&self, py: Python<'_>) -> PyResult<(u64, u64, u64, u64)> {
        let CallCounters { calls, requests, late, unknown, .. } = self.get(py)?.counters();
        Ok((calls, requests, late, unknown))
    }

    /// The process at the other end; `None` while unknown.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Option<Peer>> {
        let peer = self.get(py)?.channel().peer().map_err(|error| errors::raise(py, error))?;
        Ok(peer.map(Peer::from))
    }

    /// Closes this end. Calls of other threads raise `Closed`. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let Some(end) = lock(&self.end).take() else { return };
        end.channel().interrupter().interrupt();
        py.detach(|| drop(end));
    }

    /// Whether this end was closed.
    #[getter]
    fn closed(&self) -> bool {
        lock(&self.end).is_none()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py);
    }
}

impl Request {
    pub(crate) fn new(request: strait::call::Request, settings: Settings) -> Self {
        let (message, replier) = request.into_parts();
        Self { request: Mutex::new(Some((Some(message), replier))), settings }
    }

    fn message(&self, py: Python<'_>) -> PyResult<strait::Message> {
        let message = lock(&self.request).as_mut().and_then(|(message, _)| message.take());
        message.ok_or_else(|| errors::named(py, "Closed", "this request was read or answered before".to_owned()))
    }

    fn answer(&self, py: Python<'_>, parts: &[IoSlice<'_>], carriers: &[Carrier], timeout: Timeout) -> PyResult<()> {
        let Some((message, mut replier)) = lock(&self.request).take() else {
            return Err(errors::named(py, "Closed", "this request was answered before".to_owned()));
        };
        let mut kept = match handles::take_all(py, carriers) {
            Ok(kept) => kept,
            Err(error) => {
                *lock(&self.request) = Some((message, replier));
                return Err(error);
            }
        };
        let sent = waiting::wait(py, timeout, |deadline| {
            let outgoing = outgoing(parts).handles(std::mem::take(&mut kept));
            replier.reply(outgoing, deadline).map_err(|failed| {
                kept = failed.handles;
                failed.error
            })
        });
        handles::restore_all(carriers, kept);
        if !matches!(sent, Ok(Ok(()))) {
            *lock(&self.request) = Some((message, replier));
        }
        sent?.map_err(|error| errors::raise(py, error))
    }
}

#[pymethods]
impl Request {
    /// Returns the object of the request. Can be called once.
    fn value(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        let message = self.message(py)?;
        self.settings.decode(py, message, true)
    }

    /// Returns the bytes of the request. Its handles are closed. Can be called once, in place of `value`.
    fn bytes<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        Ok(PyBytes::new(py, self.message(py)?.bytes()))
    }

    /// Replies with an object. After an exception the request can be answered again.
    #[pyo3(signature = (obj, *, timeout=None))]
    fn reply(&self, py: Python<'_>, obj: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = Timeout::of(timeout)?;
        let encoded = self.settings.encode(obj)?;
        self.answer(py, &encoded.parts(), &encoded.carriers, timeout)
    }

    /// Replies with bytes and handles.
    #[pyo3(signature = (data, *, handles=None, timeout=None))]
    fn reply_bytes(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        handles: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = Timeout::of(timeout)?;
        let data = crate::connection::steady(data)?;
        let carriers = handles.map_or(Ok(Vec::new()), handles::carriers)?;
        self.answer(py, &[IoSlice::new(data.as_bytes())], &carriers, timeout)
    }

    /// Whether the caller does not wait for a reply any more.
    #[getter]
    fn cancelled(&self) -> bool {
        lock(&self.request).as_ref().is_none_or(|(_, replier)| replier.is_cancelled())
    }

    /// Drops the request without a reply: the caller gets `NotAnswered`.
    fn drop(&self, py: Python<'_>) {
        let request = lock(&self.request).take();
        py.detach(|| drop(request));
    }
}
