//! Connections in an event loop: attempts that never wait, and calls when another attempt is worthwhile.

use std::cell::RefCell;
use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use strait::task::AsyncChannel;
use strait::{Channel, Deadline, Error};

use crate::connection::{self, Connection};
use crate::handles::{self, Carrier};
use crate::held::{Held, Slot};
use crate::message::{Message, Peer};
use crate::status::{Counters, Status};
use crate::{buffers, codec, errors};

/// The greatest number of turns in one call: other callbacks of the loop run in between.
const TURNS: usize = 8;

/// How long an attempt to receive looks for a message before the task waits. A peer on another processor often answers
/// sooner than the loop could sleep and wake.
const SPIN: Duration = Duration::from_micros(30);
/// The number of looks between two reads of the clock.
const LOOKS: u32 = 32;
/// How often a callback is called in which a signal handler raises an exception.
const MOST_CALLS: usize = 100;

/// After this many consecutive vain looks of attempts, only one attempt in [`SELDOM`] looks.
const IN_VAIN: u32 = 4;
const SELDOM: u32 = 16;

/// The shared state of the connections of one event loop: the descriptor for which the loop waits.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Reactor {
    pub(crate) reactor: strait::task::Reactor,
}

#[pymethods]
impl Reactor {
    #[new]
    fn new(py: Python<'_>) -> PyResult<Self> {
        let reactor = strait::task::Reactor::new().map_err(|error| errors::raise(py, error))?;
        Ok(Self { reactor })
    }

    /// Returns a descriptor that is readable whenever `turn` has something to do. Do not read from it.
    fn fileno(&self) -> i32 {
        self.reactor.as_raw_fd()
    }

    /// Calls back each connection for which another attempt is worthwhile. Raises the first exception of a signal
    /// handler that ran in a callback, once each callback was called.
    fn turn(&self, py: Python<'_>) -> PyResult<()> {
        for _ in 0..TURNS {
            if turn_and_call(py, &self.reactor)? == 0 {
                break;
            }
        }
        Ok(())
    }
}

/// A message to send, possibly in several attempts.
#[pyclass(frozen, module = "strait")]
pub(crate) struct Draft {
    body: Body,
    carriers: Vec<Carrier>,
}

enum Body {
    Object(codec::Encoded),
    Bytes(Vec<Py<PyBytes>>),
}

impl Draft {
    fn new(parts: Vec<Bound<'_, PyBytes>>, handles: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        let carriers = handles.map_or(Ok(Vec::new()), handles::carriers)?;
        Ok(Self { body: Body::Bytes(parts.into_iter().map(Bound::unbind).collect()), carriers })
    }

    fn parts<'a>(&'a self, py: Python<'a>) -> Vec<IoSlice<'a>> {
        match &self.body {
            Body::Object(encoded) => encoded.parts(),
            Body::Bytes(parts) => parts.iter().map(|part| IoSlice::new(part.as_bytes(py))).collect(),
        }
    }
}

#[pymethods]
impl Draft {
    /// Makes a message of bytes, and of handles if there are any.
    #[staticmethod]
    #[pyo3(signature = (data, handles=None))]
    fn of_bytes(data: &Bound<'_, PyAny>, handles: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Self::new(vec![connection::steady(data)?], handles)
    }

    /// Makes a message of the bytes of several buffers, and of handles if there are any.
    #[staticmethod]
    #[pyo3(signature = (parts, handles=None))]
    fn of_parts(parts: &Bound<'_, PyAny>, handles: Option<&Bound<'_, PyAny>>) -> PyResult<Self> {
        Self::new(parts.try_iter()?.map(|part| connection::steady(&part?)).collect::<PyResult<_>>()?, handles)
    }
}

/// Looks for a message on `channel` for at most [`SPIN`]. Returns whether there is one, or the channel has ended.
fn is_readable_soon(channel: &Channel) -> bool {
    let begin = Instant::now();
    loop {
        for _ in 0..LOOKS {
            if channel.is_readable() {
                return true;
            }
            std::hint::spin_loop();
        }
        if begin.elapsed() >= SPIN {
            return false;
        }
    }
}

thread_local! {
    /// What was woken in this thread by the turn of a reactor in progress; `None` while no turn is in progress.
    static WOKEN: RefCell<Option<Vec<Woken>>> = const { RefCell::new(None) };
}

/// A callback for the time after a turn.
enum Woken {
    Call(Arc<Callback>),
    /// The last reference to a callback, to be dropped.
    Drop(Py<PyAny>),
}

/// Makes one turn of a reactor, and then calls the callbacks that the turn has woken. Returns the number of events, or
/// the first exception of a callback.
///
/// Within the turn, the reactor uses the ends that have events. A callback can drop the last reference to such an end,
/// and the end would then wait for the turn.
fn turn_and_call(py: Python<'_>, reactor: &strait::task::Reactor) -> PyResult<usize> {
    WOKEN.set(Some(Vec::new()));
    let mut turned = reactor.turn().map_err(|error| errors::raise(py, error));
    for woken in WOKEN.take().unwrap_or_default() {
        match woken {
            Woken::Call(callback) => {
                if let Err(raised) = callback.call(py)
                    && turned.is_ok()
                {
                    turned = Err(raised);
                }
            }
            Woken::Drop(call) => drop(call),
        }
    }
    turned
}

/// Keeps `woken` until the end of the turn in progress in this thread. Returns it if there is none.
fn deferred(woken: Woken) -> Option<Woken> {
    let mut woken = Some(woken);
    // An ending thread has no list any more.
    let _ = WOKEN.try_with(|list| {
        if let Some(list) = &mut *list.borrow_mut() {
            list.extend(woken.take());
        }
    });
    woken
}

/// A callback of Python as a waker. Any thread may wake the task.
pub(crate) struct Callback(Option<Py<PyAny>>);

impl Callback {
    pub(crate) fn waker(call: Py<PyAny>) -> Waker {
        Arc::new(Self(Some(call))).into()
    }

    /// Calls the callback. A signal handler can raise an exception in the callback, before the callback has woken its
    /// task. So the callback is called again, and the first exception is returned.
    fn call(&self, py: Python<'_>) -> PyResult<()> {
        let Some(call) = &self.0 else { return Ok(()) };
        let mut first = None;
        for _ in 0..MOST_CALLS {
            match call.call0(py) {
                Ok(_) => break,
                // A closed loop takes no more calls.
                Err(raised) if raised.is_instance_of::<PyRuntimeError>(py) => break,
                Err(raised) => first = first.or(Some(raised)),
            }
        }
        first.map_or(Ok(()), Err)
    }
}

impl Wake for Callback {
    fn wake(self: Arc<Self>) {
        if let Some(Woken::Call(callback)) = deferred(Woken::Call(self)) {
            // An ending interpreter takes no calls.
            let _ = Python::try_attach(|py| callback.call(py).map_err(|raised| raised.write_unraisable(py, None)));
        }
    }

    fn wake_by_ref(self: &Arc<Self>) {
        Arc::clone(self).wake();
    }
}

impl Drop for Callback {
    fn drop(&mut self) {
        drop(self.0.take().map(|call| deferred(Woken::Drop(call))));
    }
}

/// A connection in an event loop. `callback` is called, in any thread, when another attempt of a kind that has found
/// nothing is worthwhile. All senders share one callback, so only one sender at a time may make attempts.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct AsyncEnd {
    channel: Slot<Held<AsyncChannel>>,
    waker: Waker,
    settings: codec::Settings,
    /// How many attempts in a row have looked in vain, or have not looked since.
    in_vain: AtomicU32,
    /// The number of arrays copied into regions for drafts.
    copied: AtomicU64,
}

impl AsyncEnd {
    fn failed(py: Python<'_>, channel: &AsyncChannel, error: Error) -> PyErr {
        match error {
            Error::PeerClosed => errors::peer_closed(py, channel.get_ref().close_reason()),
            error => errors::raise(py, error),
        }
    }

    /// Looks for a message for a short time, if looking paid off before. The interpreter lock is free meanwhile.
    fn look(&self, py: Python<'_>, channel: &AsyncChannel) {
        let in_vain = self.in_vain.load(Ordering::Relaxed);
        let looks = in_vain < IN_VAIN || in_vain.is_multiple_of(SELDOM);
        let found = looks && py.detach(|| is_readable_soon(channel.get_ref()));
        self.in_vain.store(if found { 0 } else { in_vain.wrapping_add(1) }, Ordering::Relaxed);
    }

    /// Receives by `receive`, which must not wait; returns `None` if there is nothing.
    fn received<'a, T>(
        &self,
        py: Python<'_>,
        channel: &'a AsyncChannel,
        looks: bool,
        mut receive: impl FnMut(&'a Channel) -> Result<T, Error>,
    ) -> PyResult<Option<T>> {
        if looks {
            match receive(channel.get_ref()) {
                Err(Error::WouldBlock) => self.look(py, channel),
                Ok(received) => return Ok(Some(received)),
                Err(error) => return Err(Self::failed(py, channel, error)),
            }
        }
        match channel.poll_recv_with(&mut Context::from_waker(&self.waker), receive) {
            Poll::Pending => Ok(None),
            Poll::Ready(Ok(received)) => Ok(Some(received)),
            Poll::Ready(Err(error)) => Err(Self::failed(py, channel, error)),
        }
    }

    /// Receives an object: `Some(None)` for a first message, and `None` if there is nothing.
    fn received_object(&self, py: Python<'_>, looks: bool) -> PyResult<Option<Option<Py<PyAny>>>> {
        let channel = self.channel.get(py)?;
        let mut message = strait::Message::new();
        let is_plain = self.settings.is_plain();
        let received = self.received(py, &channel, looks, |channel| {
            if is_plain {
                channel.recv_message_or_view(&mut message, Deadline::NOW)
            } else {
                channel.recv_message(&mut message, Deadline::NOW).map(|()| None)
            }
        });
        match received? {
            None => Ok(None),
            Some(Some(view)) => self.settings.decode_view(py, view, true).map(Some),
            Some(None) if self.settings.skips(py, message.bytes())? => Ok(Some(None)),
            Some(None) => Ok(Some(Some(self.settings.decode(py, message, true)?))),
        }
    }
}

#[pymethods]
impl AsyncEnd {
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
        let channel = AsyncChannel::new(channel, &reactor.get().reactor).map_err(|error| errors::raise(py, error))?;
        Ok(Self {
            channel: Slot::new(Held::new(channel)),
            waker: Callback::waker(callback),
            settings,
            in_vain: AtomicU32::new(0),
            copied: AtomicU64::new(0),
        })
    }

    /// Receives an object in the codec of the connection, in a tuple; returns `None` if there is nothing. If `looks` is
    /// set, it first looks for some microseconds.
    #[pyo3(signature = (looks=false))]
    fn poll_recv(&self, py: Python<'_>, looks: bool) -> PyResult<Option<(Py<PyAny>,)>> {
        for _ in 0..codec::MOST_FIRST {
            match self.received_object(py, looks)? {
                None => return Ok(None),
                Some(None) => {}
                Some(Some(object)) => return Ok(Some((object,))),
            }
        }
        Err(codec::too_many_first(py))
    }

    /// Receives the bytes of a message; returns `None` if there is none. If `looks` is set, it first looks for some
    /// microseconds.
    #[pyo3(signature = (looks=false))]
    fn poll_recv_bytes<'py>(&self, py: Python<'py>, looks: bool) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let channel = self.channel.get(py)?;
        let message = self.received(py, &channel, looks, Channel::try_recv)?;
        message.map(|message| buffers::taken(py, connection::Bytes(message))).transpose()
    }

    /// Receives a message with its bytes and its handles; returns `None` if there is none. If `looks` is set, it first
    /// looks for some microseconds.
    #[pyo3(signature = (looks=false))]
    fn poll_recv_message(&self, py: Python<'_>, looks: bool) -> PyResult<Option<Message>> {
        let channel = self.channel.get(py)?;
        let message = self.received(py, &channel, looks, Channel::try_recv)?;
        message.map(|message| Message::new(py, message)).transpose()
    }

    /// Returns `True` if an attempt to receive would receive something or fail, and `None` otherwise.
    fn poll_readable(&self, py: Python<'_>) -> PyResult<Option<bool>> {
        let channel = self.channel.get(py)?;
        // An attempt may find nothing although there is something, so that other tasks of the loop run.
        if connection::has_something(channel.get_ref()) {
            return Ok(Some(true));
        }
        self.received(py, &channel, false, |channel| {
            if connection::has_something(channel) { Ok(true) } else { Err(Error::WouldBlock) }
        })
    }

    /// The receivable messages of this end, and whether there is room to send.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Status> {
        let channel = self.channel.get(py)?;
        let status = channel.get_ref().status().map_err(|error| Self::failed(py, &channel, error))?;
        Ok(status.into())
    }

    /// The counts of this end since it was made or received. The number of copied arrays begins with this object.
    #[getter]
    fn counters(&self, py: Python<'_>) -> PyResult<Counters> {
        let channel = self.channel.get(py)?;
        Ok(Counters::new(channel.get_ref().counters(), self.copied.load(Ordering::Relaxed)))
    }

    /// Makes the message of an object in the codec of the connection.
    fn draft(&self, obj: &Bound<'_, PyAny>) -> PyResult<Draft> {
        let mut encoded = self.settings.encode(obj)?;
        self.copied.fetch_add(encoded.copied, Ordering::Relaxed);
        let carriers = std::mem::take(&mut encoded.carriers);
        Ok(Draft { body: Body::Object(encoded), carriers })
    }

    /// Sends a message; returns `False` if there is no room.
    fn poll_send(&self, py: Python<'_>, draft: &Bound<'_, Draft>) -> PyResult<bool> {
        let channel = self.channel.get(py)?;
        let draft = draft.get();
        let (parts, carriers) = (draft.parts(py), &draft.carriers);
        let mut kept = handles::take_all(py, carriers)?;
        let sent = channel.poll_send_with(&mut Context::from_waker(&self.waker), |channel| {
            let outgoing = connection::outgoing(&parts).handles(std::mem::take(&mut kept));
            channel.try_send(outgoing).map_err(|failed| {
                kept = failed.handles;
                failed.error
            })
        });
        handles::restore_all(carriers, kept);
        match sent {
            Poll::Pending => Ok(false),
            Poll::Ready(sent) => sent.map(|()| true).map_err(|error| Self::failed(py, &channel, error)),
        }
    }

    /// Closes this end, and gives the other end the reason. Does nothing the second time.
    #[pyo3(signature = (reason=0))]
    fn close(&self, py: Python<'_>, reason: u32) {
        let channel = self.channel.close();
        py.detach(|| {
            if let Some(channel) = channel {
                // A call of another thread may still hold the channel; then the channel closes when the call returns.
                channel.set_reason(reason);
            }
        });
    }

    /// Takes the end out of the loop, and returns a connection with waiting calls. Fails, and leaves the end, while a
    /// call of another thread uses the end.
    fn detach(&self, py: Python<'_>) -> PyResult<Connection> {
        let channel = self.channel.take(py)?.into_end();
        Ok(Connection::with(py.detach(|| channel.into_inner()), self.settings.clone_ref(py)))
    }

    /// Whether this end was closed or detached.
    #[getter]
    fn closed(&self) -> bool {
        self.channel.is_closed()
    }

    /// The process at the other end; `None` while unknown.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Option<Peer>> {
        let channel = self.channel.get(py)?;
        let peer = channel.get_ref().peer().map_err(|error| Self::failed(py, &channel, error))?;
        Ok(peer.map(Peer::from))
    }
}
