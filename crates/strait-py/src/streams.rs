//! Data pipes: one-way streams of bytes in shared memory.

use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyTuple};
use strait::pipe::{DataConsumer, DataProducer, PipeOptions};
use strait::wait::{Interest, Mode, Source, WaitSet};
use strait::{Deadline, Error, Handle, Interrupter};

use crate::buffers;
use crate::connection::{steady, writable_room};
use crate::held::{self, CloseWith};
use crate::place::Place;
use crate::sync::lock;
use crate::waiting::{self, Timeout};
use crate::watch::Watch;
use crate::{errors, options};

/// The greatest number of bytes for which a read takes memory before the number of readable bytes is known.
const PIECE: usize = 1 << 16;

/// A pipe end for interrupting, watching and sending.
trait PipeEnd: Source + Into<Handle> + CloseWith + Sized {
    const INTEREST: Interest;
    /// Returns the interrupter for the waits of other threads.
    fn waits(&self) -> Interrupter;
    /// Returns the end in a handle of this kind.
    fn of(handle: Handle) -> Option<Self>;
}

impl PipeEnd for DataProducer {
    const INTEREST: Interest = Interest::Writable;

    fn waits(&self) -> Interrupter {
        self.interrupter()
    }

    fn of(handle: Handle) -> Option<Self> {
        match handle {
            Handle::Producer(producer) => Some(producer),
            _ => None,
        }
    }
}

impl PipeEnd for DataConsumer {
    const INTEREST: Interest = Interest::Readable;

    fn waits(&self) -> Interrupter {
        self.interrupter()
    }

    fn of(handle: Handle) -> Option<Self> {
        match handle {
            Handle::Consumer(consumer) => Some(consumer),
            _ => None,
        }
    }
}

impl CloseWith for DataProducer {
    fn close_with(self, reason: u32) {
        self.abort(reason);
    }
}

impl CloseWith for DataConsumer {
    fn close_with(self, reason: u32) {
        self.abort(reason);
    }
}

enum State<E: PipeEnd> {
    Open {
        end: Arc<held::Held<E>>,
        set: Option<Arc<WaitSet>>,
        /// The wait set of a call of `strait.wait` with this end.
        group: Option<Arc<Watch>>,
    },
    Closed,
    Moved {
        /// The wait set of the end, kept until the message was sent or the end is back: the program may have given the
        /// descriptor of the set to a selector.
        set: Option<Arc<WaitSet>>,
        /// The wait set of a call of `strait.wait`, which ends once the message was sent or the end is back.
        group: Option<Arc<Watch>>,
        /// The call that moved the end.
        call: Place,
    },
}

/// Takes an end out of the wait set of a call of `strait.wait`, and ends the set.
fn leave(end: &impl Source, group: Option<Arc<Watch>>) {
    if let Some(group) = group {
        let _ = group.leave(end);
        group.end();
    }
}

/// The end of a data pipe in a Python object.
struct Held<E: PipeEnd>(Mutex<State<E>>);

impl<E: PipeEnd> Held<E> {
    fn new(end: E) -> Self {
        // An interrupter ends only waits that begin after its making, so the interrupter is made before any wait.
        let _ = end.waits();
        Self(Mutex::new(State::Open { end: Arc::new(held::Held::new(end)), set: None, group: None }))
    }

    fn get(&self, py: Python<'_>) -> PyResult<Arc<held::Held<E>>> {
        let (class, text) = match &*lock(&self.0) {
            State::Open { end, .. } => return Ok(end.clone()),
            State::Closed => ("Closed", "this end of the data pipe was closed in this process".to_owned()),
            State::Moved { call, .. } => {
                ("Moved", format!("this end of the data pipe was sent away in a message{call}"))
            }
        };
        Err(errors::named(py, class, text))
    }

    fn wait<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        mut attempt: impl FnMut(&E, Deadline) -> Result<T, Error> + Send,
    ) -> PyResult<T>
    where
        E: Send + Sync,
    {
        let timeout = Timeout::of(timeout)?;
        let end = self.get(py)?;
        waiting::wait(py, timeout, |deadline| attempt(&end, deadline))?.map_err(|error| self.failed(py, error))
    }

    fn failed(&self, py: Python<'_>, error: Error) -> PyErr {
        match error {
            Error::Interrupted => self.get(py).err().unwrap_or_else(|| errors::raise(py, error)),
            error => errors::raise(py, error),
        }
    }

    /// Returns the wait set with this end, made at the first call.
    fn set(&self, py: Python<'_>) -> PyResult<Arc<WaitSet>> {
        let end = self.get(py)?;
        let set = match &mut *lock(&self.0) {
            State::Open { set: Some(set), .. } => Ok(set.clone()),
            State::Open { set, group, .. } => {
                leave(&**end, group.take());
                let made = WaitSet::new().and_then(|made| {
                    made.add(&**end, 0, E::INTEREST, Mode::Level)?;
                    Ok(made)
                });
                made.map(|made| set.insert(Arc::new(made)).clone())
            }
            _ => Err(Error::Interrupted),
        };
        set.map_err(|error| errors::raise(py, error))
    }

    /// Puts this end into the wait set of a call of `strait.wait`. Returns `false` if this end has a wait set of its
    /// own or is in that of another call.
    fn join(&self, py: Python<'_>, group: &Arc<Watch>, key: u64) -> PyResult<bool> {
        let end = self.get(py)?;
        let joined = match &mut *lock(&self.0) {
            State::Open { set: None, group: Some(other), .. } => Ok(Arc::ptr_eq(other, group)),
            State::Open { set: None, group: none, .. } => {
                group.join_as(&**end, key, E::INTEREST).map(|()| none.replace(group.clone()).is_none())
            }
            _ => Ok(false),
        };
        joined.map_err(|error| errors::raise(py, error))
    }

    /// Takes this end out of the wait set of a call of `strait.wait`.
    fn part(&self, group: &Arc<Watch>) {
        if let State::Open { end, group: joined, .. } = &mut *lock(&self.0)
            && joined.as_ref().is_some_and(|joined| Arc::ptr_eq(joined, group))
        {
            *joined = None;
            let _ = group.leave(&***end);
        }
    }

    /// Returns whether a call would not wait now.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        let set = self.set(py)?;
        let found = py.detach(|| set.wait(&mut Vec::with_capacity(1), Deadline::NOW));
        match found {
            Ok(found) => Ok(found > 0),
            Err(Error::WouldBlock | Error::TimedOut) => Ok(false),
            Err(error) => Err(self.failed(py, error)),
        }
    }

    /// Has the descriptor of the set, if there is one, tell whether another call is worthwhile.
    fn settle(&self, py: Python<'_>) {
        if let State::Open { set: Some(set), .. } = &*lock(&self.0) {
            let set = set.clone();
            let _ = py.detach(move || set.wait(&mut Vec::with_capacity(1), Deadline::NOW));
        }
    }

    fn take(&self, py: Python<'_>) -> PyResult<Handle> {
        self.get(py)?;
        let call = Place::of_call(py);
        let mut state = lock(&self.0);
        match std::mem::replace(&mut *state, State::Moved { set: None, group: None, call: call.clone() }) {
            State::Open { end, set, group } => match Arc::try_unwrap(end) {
                Ok(held) => {
                    let end = held.into_end();
                    let _ = group.as_ref().map(|group| group.leave(&end));
                    // An end in transit leaves its set.
                    let set = set.filter(|set| set.remove(&end).is_ok());
                    *state = State::Moved { set, group, call };
                    Ok(end.into())
                }
                Err(end) => {
                    *state = State::Open { end, set, group };
                    Err(PyValueError::new_err("the end of the data pipe is in use by another thread"))
                }
            },
            other => {
                *state = other;
                Err(PyValueError::new_err("another thread has closed or sent this end of the data pipe"))
            }
        }
    }

    /// Puts the end back after a failed send.
    fn restore(&self, handle: Handle) {
        if let Some(end) = E::of(handle) {
            let mut state = lock(&self.0);
            let (set, group) = match &mut *state {
                State::Moved { set, group, .. } => (set.take(), group.take()),
                _ => (None, None),
            };
            let set = set.filter(|set| set.add(&end, 0, E::INTEREST, Mode::Level).is_ok());
            if let Some(group) = group {
                group.end();
            }
            *state = State::Open { end: Arc::new(held::Held::new(end)), set, group: None };
        }
    }

    /// Notes that the end was sent. Ends the waits of other threads in `strait.wait`.
    fn sent(&self) {
        let (set, group) = match &mut *lock(&self.0) {
            State::Moved { set, group, .. } => (set.take(), group.take()),
            _ => return,
        };
        drop(set);
        if let Some(group) = group {
            group.end();
        }
    }

    /// Closes the end; with a reason, aborts the stream. If a call still uses the end, the end closes when the call
    /// returns.
    fn close(&self, py: Python<'_>, reason: Option<u32>)
    where
        E: Send + Sync,
    {
        let state = match &mut *lock(&self.0) {
            State::Moved { .. } => return,
            state => std::mem::replace(state, State::Closed),
        };
        if let State::Open { end, set, group } = state {
            if let Some(group) = group {
                group.end();
            }
            if let Some(reason) = reason {
                end.set_reason(reason);
            }
            end.waits().interrupt();
            py.detach(|| drop((set, end)));
        }
    }

    fn closed(&self) -> bool {
        !matches!(&*lock(&self.0), State::Open { .. })
    }
}

/// The two ends of a new data pipe with a buffer of `capacity` bytes: `producer, consumer = DataPipe(capacity)`. A pipe
/// with elements of several bytes is written and read in whole elements.
#[pyclass(frozen, module = "strait")]
pub(crate) struct DataPipe {
    /// The writing end.
    #[pyo3(get)]
    producer: Py<Producer>,
    /// The reading end.
    #[pyo3(get)]
    consumer: Py<Consumer>,
}

#[pymethods]
impl DataPipe {
    #[new]
    #[pyo3(signature = (capacity, *, element=1, wait=None, spin=None))]
    fn new(
        py: Python<'_>,
        capacity: usize,
        element: u32,
        wait: Option<&Bound<'_, PyAny>>,
        spin: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Self> {
        let mut options = PipeOptions::new().capacity(capacity).element(element);
        if let Some(wait) = wait {
            options = options.wait(options::strategy(wait)?);
        }
        if let Some(spin) = spin {
            options = options.spin(options::seconds(spin)?);
        }
        let (producer, consumer) = options.create().map_err(|error| errors::raise(py, error))?;
        Ok(Self { producer: Py::new(py, Producer::new(producer))?, consumer: Py::new(py, Consumer::new(consumer))? })
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let ends = PyTuple::new(py, [self.producer.bind(py).as_any(), self.consumer.bind(py).as_any()])?;
        Ok(ends.try_iter()?.into_any())
    }
}

/// The writing end of a data pipe. It can be sent in a message.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Producer {
    held: Held<DataProducer>,
}

impl Producer {
    pub(crate) fn new(end: DataProducer) -> Self {
        Self { held: Held::new(end) }
    }

    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Handle> {
        self.held.take(py)
    }

    pub(crate) fn restore(&self, handle: Handle) {
        self.held.restore(handle);
    }

    pub(crate) fn sent(&self) {
        self.held.sent();
    }

    pub(crate) fn join(&self, py: Python<'_>, group: &Arc<Watch>, key: u64) -> PyResult<bool> {
        self.held.join(py, group, key)
    }

    pub(crate) fn part(&self, group: &Arc<Watch>) {
        self.held.part(group);
    }
}

#[pymethods]
impl Producer {
    /// Writes as many bytes as there is room for, at least one element, and returns the number.
    #[pyo3(signature = (data, *, timeout=None))]
    fn write(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        let data = steady(data)?;
        let bytes = data.as_bytes();
        let written = self.held.wait(py, timeout, |end, deadline| end.write_some(bytes, deadline));
        self.held.settle(py);
        written
    }

    /// Writes all of the bytes at once, or none. Raises `OutOfRange` if there are more bytes than the capacity.
    #[pyo3(signature = (data, *, timeout=None))]
    fn write_whole(&self, py: Python<'_>, data: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let data = steady(data)?;
        let bytes = data.as_bytes();
        let written = self.held.wait(py, timeout, |end, deadline| end.write_whole(bytes, deadline));
        self.held.settle(py);
        written
    }

    /// Ends the stream: the consumer reads all written bytes, and then the end of the stream.
    #[pyo3(signature = (*, timeout=None))]
    fn finish(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        self.held.wait(py, timeout, |end, deadline| end.finish(deadline))
    }

    /// The number of bytes writable without waiting.
    #[getter]
    fn room(&self, py: Python<'_>) -> PyResult<usize> {
        self.held.get(py)?.room().map_err(|error| errors::raise(py, error))
    }

    /// The size of the buffer in bytes.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held.get(py)?.capacity())
    }

    /// The size of an element in bytes.
    #[getter]
    fn element(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held.get(py)?.element())
    }

    /// Returns whether `write` would not wait: there is room, or nobody reads any more.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.held.poll(py)
    }

    /// Returns a descriptor that is readable whenever there may be room, or nobody reads any more. Do not read from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.held.set(py)?.as_raw_fd())
    }

    /// Closes this end and aborts the stream: the consumer reads what was written, and then raises `Aborted` with the
    /// reason. Ends the waits of other threads. Does nothing if the end was closed.
    #[pyo3(signature = (reason=0))]
    fn abort(&self, py: Python<'_>, reason: u32) {
        self.held.close(py, Some(reason));
    }

    /// Closes this end, and thereby ends the stream. Ends the waits of other threads. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        self.held.close(py, None);
    }

    /// Whether this end was closed here or sent away.
    #[getter]
    fn closed(&self) -> bool {
        self.held.closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.held.close(py, None);
    }
}

/// The reading end of a data pipe. It can be sent in a message.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Consumer {
    held: Held<DataConsumer>,
}

impl Consumer {
    pub(crate) fn new(end: DataConsumer) -> Self {
        Self { held: Held::new(end) }
    }

    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Handle> {
        self.held.take(py)
    }

    pub(crate) fn restore(&self, handle: Handle) {
        self.held.restore(handle);
    }

    pub(crate) fn sent(&self) {
        self.held.sent();
    }

    pub(crate) fn join(&self, py: Python<'_>, group: &Arc<Watch>, key: u64) -> PyResult<bool> {
        self.held.join(py, group, key)
    }

    pub(crate) fn part(&self, group: &Arc<Watch>) {
        self.held.part(group);
    }

    fn some(&self, py: Python<'_>, size: usize, timeout: Option<f64>) -> PyResult<Vec<u8>> {
        let end = self.held.get(py)?;
        let there = end.available().unwrap_or(0);
        let room = if there > 0 { there } else { end.capacity().min(PIECE.max(end.element())) };
        drop(end);
        let mut out = vec![0; size.min(room)];
        let read = self.held.wait(py, timeout, |end, deadline| end.read_some(&mut out, deadline));
        self.held.settle(py);
        out.truncate(read?);
        Ok(out)
    }
}

#[pymethods]
impl Consumer {
    /// Reads at most `size` bytes, as many as there are, at least one element. Returns no bytes at the end of the
    /// stream. Without a size, reads all available bytes.
    #[pyo3(signature = (size=None, *, timeout=None))]
    fn read<'py>(&self, py: Python<'py>, size: Option<usize>, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        buffers::taken(py, self.some(py, size.unwrap_or(usize::MAX), timeout)?)
    }

    /// Reads exactly `size` bytes, or none. Raises `OutOfRange` if the stream ends before.
    #[pyo3(signature = (size, *, timeout=None))]
    fn read_whole<'py>(&self, py: Python<'py>, size: usize, timeout: Option<f64>) -> PyResult<Bound<'py, PyBytes>> {
        if size > self.held.get(py)?.capacity() {
            return Err(errors::raise(py, Error::OutOfRange { len: self.held.get(py)?.capacity() }));
        }
        let mut out = vec![0; size];
        let read = self.held.wait(py, timeout, |end, deadline| end.read_whole(&mut out, deadline));
        self.held.settle(py);
        read?;
        buffers::taken(py, out)
    }

    /// Reads into a writable buffer, and returns the number of bytes; 0 at the end of the stream.
    #[pyo3(signature = (buffer, *, timeout=None))]
    fn readinto(&self, py: Python<'_>, buffer: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        let (view, room) = writable_room(buffer, 0)?;
        let bytes = self.some(py, room, timeout)?;
        view.set_item(pyo3::types::PySlice::new(py, 0, bytes.len().try_into()?, 1), buffers::copied(py, &bytes)?)?;
        Ok(bytes.len())
    }

    /// Returns at most `size` bytes, and leaves them in the pipe. Raises `WouldBlock` if there are none.
    fn peek<'py>(&self, py: Python<'py>, size: usize) -> PyResult<Bound<'py, PyBytes>> {
        let end = self.held.get(py)?;
        let mut out = vec![0; size.min(end.capacity())];
        let peeked = end.peek(&mut out).map_err(|error| errors::raise(py, error))?;
        out.truncate(peeked);
        buffers::taken(py, out)
    }

    /// Removes at most `size` bytes, without waiting, and returns the number.
    fn discard(&self, py: Python<'_>, size: usize) -> PyResult<usize> {
        let discarded = self.held.get(py)?.discard(size).map_err(|error| errors::raise(py, error));
        self.held.settle(py);
        discarded
    }

    /// The number of bytes readable without waiting; 0 at the end of the stream too.
    #[getter]
    fn available(&self, py: Python<'_>) -> PyResult<usize> {
        self.held.get(py)?.available().map_err(|error| errors::raise(py, error))
    }

    /// The size of the buffer in bytes.
    #[getter]
    fn capacity(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held.get(py)?.capacity())
    }

    /// The size of an element in bytes.
    #[getter]
    fn element(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.held.get(py)?.element())
    }

    /// Returns whether `read` would not wait: there is something to read, or the stream has ended.
    fn poll(&self, py: Python<'_>) -> PyResult<bool> {
        self.held.poll(py)
    }

    /// Returns a descriptor that is readable whenever there may be something to read. Do not read from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        Ok(self.held.set(py)?.as_raw_fd())
    }

    /// Closes this end with a reason: the producer's writes raise `Aborted`. Ends the waits of other threads. Does
    /// nothing if the end was closed.
    #[pyo3(signature = (reason=0))]
    fn abort(&self, py: Python<'_>, reason: u32) {
        self.held.close(py, Some(reason));
    }

    /// Closes this end. Ends the waits of other threads. Does nothing the second time.
    fn close(&self, py: Python<'_>) {
        self.held.close(py, None);
    }

    /// Whether this end was closed here or sent away.
    #[getter]
    fn closed(&self) -> bool {
        self.held.closed()
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.held.close(py, None);
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Returns the next bytes, as many as there are. Ends at the end of the stream.
    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let bytes = self.read(py, None, None)?;
        Ok(if bytes.as_bytes().is_empty() { None } else { Some(bytes) })
    }
}
