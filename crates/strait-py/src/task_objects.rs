//! Data pipes and calls in an event loop: attempts that never wait, and calls when another attempt is worthwhile.

use std::future::Future;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use strait::Error;
use strait::call::{CallEnd, CallError};
use strait::task::{AsyncCallEnd, AsyncConsumer, AsyncProducer};

use crate::calls::{self, Request};
use crate::codec::Settings;
use crate::connection::{self, Connection, outgoing};
use crate::errors;
use crate::handles::{self, Carrier};
use crate::held::{Slot, closed};
use crate::streams::{Consumer, Producer};
use crate::sync::lock;
use crate::tasks::{Callback, Reactor};

/// The maximum number of bytes read by one attempt.
const PIECE: usize = 1 << 16;

/// The writing end of a data pipe, in an event loop. One task at a time may make attempts.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct AsyncProducerEnd {
    end: Slot<AsyncProducer>,
    waker: Waker,
}

#[pymethods]
impl AsyncProducerEnd {
    /// Takes the end out of a `Producer`.
    #[new]
    fn new(
        py: Python<'_>,
        producer: &Bound<'_, Producer>,
        reactor: &Bound<'_, Reactor>,
        callback: Py<PyAny>,
    ) -> PyResult<Self> {
        let end = producer.get().take(py)?.into_producer().ok_or_else(|| closed(py))?;
        producer.get().sent();
        let end = AsyncProducer::new(end, &reactor.get().reactor).map_err(|error| errors::raise(py, error))?;
        Ok(Self { end: Slot::new(end), waker: Callback::waker(callback) })
    }

    /// Writes as many bytes as there is room for, and returns the number; `None` if there is no room.
    fn poll_write(&self, py: Python<'_>, data: &Bound<'_, PyAny>) -> PyResult<Option<usize>> {
        let data = connection::steady(data)?;
        match self.end.get(py)?.poll_write(&mut Context::from_waker(&self.waker), data.as_bytes()) {
            Poll::Pending => Ok(None),
            Poll::Ready(written) => written.map(Some).map_err(|error| errors::raise(py, error)),
        }
    }

    /// Ends the stream; returns `None` if another attempt is needed.
    fn poll_finish(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        match self.end.get(py)?.poll_finish(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => Ok(None),
            Poll::Ready(finished) => finished.map(|()| Some(true)).map_err(|error| errors::raise(py, error)),
        }
    }

    /// Closes this end. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let end = self.end.close();
        py.detach(|| drop(end));
    }

    /// Takes the end out of the loop.
    fn detach(&self, py: Python<'_>) -> PyResult<Producer> {
        let end = self.end.take(py)?;
        Ok(Producer::new(py.detach(|| end.into_inner())))
    }

    /// Whether this end was closed or detached.
    #[getter]
    fn closed(&self) -> bool {
        self.end.is_closed()
    }
}

/// The reading end of a data pipe, in an event loop. One task at a time may make attempts.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct AsyncConsumerEnd {
    end: Slot<AsyncConsumer>,
    waker: Waker,
}

#[pymethods]
impl AsyncConsumerEnd {
    /// Takes the end out of a `Consumer`.
    #[new]
    fn new(
        py: Python<'_>,
        consumer: &Bound<'_, Consumer>,
        reactor: &Bound<'_, Reactor>,
        callback: Py<PyAny>,
    ) -> PyResult<Self> {
        let end = consumer.get().take(py)?.into_consumer().ok_or_else(|| closed(py))?;
        consumer.get().sent();
        let end = AsyncConsumer::new(end, &reactor.get().reactor).map_err(|error| errors::raise(py, error))?;
        Ok(Self { end: Slot::new(end), waker: Callback::waker(callback) })
    }

    /// Reads at most `size` bytes, as many as there are; `None` if there are none, and no bytes at the end of the
    /// stream.
    fn poll_read<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let end = self.end.get(py)?;
        let most = PIECE.max(end.get_ref().element()).min(end.get_ref().capacity());
        let mut out = vec![0; size.min(most)];
        match end.poll_read(&mut Context::from_waker(&self.waker), &mut out) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(read)) => Ok(Some(PyBytes::new(py, &out[..read]))),
            Poll::Ready(Err(error)) => Err(errors::raise(py, error)),
        }
    }

    /// Closes this end. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        let end = self.end.close();
        py.detach(|| drop(end));
    }

    /// Takes the end out of the loop.
    fn detach(&self, py: Python<'_>) -> PyResult<Consumer> {
        let end = self.end.take(py)?;
        Ok(Consumer::new(py.detach(|| end.into_inner())))
    }

    /// Whether this end was closed or detached.
    #[getter]
    fn closed(&self) -> bool {
        self.end.is_closed()
    }
}

/// An end for calls, in an event loop.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct AsyncCaller {
    end: Slot<AsyncCallEnd>,
    waker: Waker,
    settings: Settings,
}

#[pymethods]
impl AsyncCaller {
    /// Takes the end out of a connection.
    #[new]
    fn new(
        py: Python<'_>,
        connection: &Bound<'_, Connection>,
        reactor: &Bound<'_, Reactor>,
        callback: Py<PyAny>,
    ) -> PyResult<Self> {
        let settings = connection.get().settings(py);
        let channel = connection.get().take_channel(py)?;
        // An interrupter ends only waits that begin after the first call of this function.
        let _ = channel.interrupter();
        let end = AsyncCallEnd::new(CallEnd::over(channel), &reactor.get().reactor);
        let end = end.map_err(|error| errors::raise(py, error))?;
        Ok(Self { end: Slot::new(end), waker: Callback::waker(callback), settings })
    }

    /// Begins a call with an object. `callback` is called when another attempt to take the reply is worthwhile.
    fn begin(&self, py: Python<'_>, obj: &Bound<'_, PyAny>, callback: Py<PyAny>) -> PyResult<AsyncCall> {
        let end = self.end.get(py)?;
        let mut encoded = self.settings.encode(obj)?;
        let carriers = std::mem::take(&mut encoded.carriers);
        let handles = handles::take_all(py, &carriers)?;
        let call = async move {
            let parts = encoded.parts();
            end.call(outgoing(&parts).handles(handles)).await
        };
        let state = Mutex::new(Some((Box::pin(call) as Call, carriers)));
        Ok(AsyncCall { state, waker: Callback::waker(callback), settings: self.settings.clone_ref(py) })
    }

    /// Returns the next request of the other side; `None` if there is none.
    fn poll_request(&self, py: Python<'_>) -> PyResult<Option<Request>> {
        let end = self.end.get(py)?;
        match end.poll_next_request(&mut Context::from_waker(&self.waker)) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(request)) => Ok(Some(Request::new(request, self.settings.clone_ref(py)))),
            Poll::Ready(Err(Error::PeerClosed)) => Err(errors::peer_closed(py, end.get_ref().channel().close_reason())),
            Poll::Ready(Err(error)) => Err(errors::raise(py, error)),
        }
    }

    /// Ends the waits of threads that reply to requests, until `resume`. Does nothing once this end is closed.
    fn interrupt(&self, py: Python<'_>) {
        if let Ok(end) = self.end.get(py) {
            end.get_ref().channel().interrupter().interrupt();
        }
    }

    /// Lets threads that reply to requests wait again, after the end of the interrupted waits. Does nothing once this
    /// end is closed.
    fn resume(&self, py: Python<'_>) {
        if let Ok(end) = self.end.get(py) {
            end.get_ref().channel().interrupter().resume();
        }
    }

    /// Closes this end, and ends the waits of threads that reply to requests. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        self.interrupt(py);
        let end = self.end.close();
        py.detach(|| drop(end));
    }

    /// Whether this end was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.end.is_closed()
    }
}

type Call = Pin<Box<dyn Future<Output = Result<strait::Message, CallError>> + Send>>;

/// A call in an event loop. Dropping it cancels the call.
#[pyclass(frozen, module = "strait")]
pub(crate) struct AsyncCall {
    /// The call and the carriers of its handles, until the call has ended.
    state: Mutex<Option<(Call, Vec<Carrier>)>>,
    waker: Waker,
    settings: Settings,
}

#[pymethods]
impl AsyncCall {
    /// Returns the object of the reply in a tuple; `None` if there is no reply yet.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<(Py<PyAny>,)>> {
        let mut state = lock(&self.state);
        let Some((call, _)) = &mut *state else {
            drop(state);
            return Err(closed(py));
        };
        let Poll::Ready(outcome) = call.as_mut().poll(&mut Context::from_waker(&self.waker)) else { return Ok(None) };
        let carriers = state.take().map(|(_, carriers)| carriers).unwrap_or_default();
        drop(state);
        match outcome {
            Ok(message) => {
                handles::restore_all(&carriers, Vec::new());
                Ok(Some((self.settings.decode(py, message, true)?,)))
            }
            Err(error) => {
                let exception = calls::raise_call(py, &error);
                let unsent = if let CallError::NotSent(failed) = error { failed.handles } else { Vec::new() };
                handles::restore_all(&carriers, unsent);
                Err(exception)
            }
        }
    }

    /// Cancels the call.
    fn cancel(&self, py: Python<'_>) {
        let Some((call, carriers)) = lock(&self.state).take() else { return };
        py.detach(|| drop(call));
        handles::restore_all(&carriers, Vec::new());
    }
}
