//! Connections: ends of channels.

use std::io::IoSlice;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use pyo3::IntoPyObjectExt;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyMemoryView, PySlice};
use strait::quota::Reported;
use strait::wait::Interest;
use strait::{Channel, Deadline, Error, Handle, Outgoing};

use crate::buffers;
use crate::codec::{self, Settings};
use crate::errors;
use crate::handles::{self, Carrier};
use crate::held::Held;
use crate::message::{Message, Peer};
use crate::place::Place;
use crate::status::{self, Counters, Status};
use crate::sync::lock;
use crate::unopened::{OpenError, Unopened};
use crate::waiting::{self, Timeout};
use crate::watch::Watch;

/// The maximum number of further messages received by one call.
const MOST_AT_ONCE: usize = 1 << 16;

/// The longest message sent with the interpreter lock held.
const QUICK_SEND: usize = 1 << 14;
/// The longest message received with the interpreter lock held.
const QUICK_RECEIVE: usize = 1 << 10;

/// An end of a channel. Any number of threads may use a connection at once.
#[pyclass(frozen, weakref, module = "strait")]
pub(crate) struct Connection {
    end: Mutex<End>,
    /// Whether this object receives.
    #[pyo3(get)]
    readable: bool,
    /// Whether this object sends.
    #[pyo3(get)]
    writable: bool,
    settings: Settings,
    /// The number of arrays copied into regions by `send`.
    copied: AtomicU64,
}

enum End {
    /// An end that, as far as this process can tell, no process has used yet.
    Unopened(Unopened),
    Open {
        channel: Arc<Held<Channel>>,
        /// The wait set with this end, made when the program first asks for a descriptor or polls.
        set: Option<Arc<Watch>>,
        /// The wait set of a call of `strait.wait` with this end.
        group: Option<Arc<Watch>>,
    },
    Closed,
    /// The end travels, or is about to travel, in a message, or another object has the end.
    Moved {
        /// The wait set of the end, kept until the message was sent or the end is back: the program may have given the
        /// descriptor of the set to a selector.
        set: Option<Arc<Watch>>,
        /// The wait set of a call of `strait.wait`, which ends once the message was sent or the end is back.
        group: Option<Arc<Watch>>,
        /// The call that moved the end.
        call: Place,
    },
}

/// Why a connection has no channel to use.
enum Unusable {
    Closed,
    Moved(Place),
    NotOpened(OpenError),
}

impl End {
    fn open(channel: Channel) -> Self {
        // An interrupter ends only waits that begin after its making, so the interrupter is made before any wait.
        let _ = channel.interrupter();
        Self::Open { channel: Arc::new(Held::new(channel)), set: None, group: None }
    }
}

impl Connection {
    /// Makes a connection with the default settings.
    pub(crate) fn new(channel: Channel) -> Self {
        Self::with(channel, Settings::default())
    }

    pub(crate) fn with(channel: Channel, settings: Settings) -> Self {
        Self::made(End::open(channel), true, true, settings)
    }

    /// Makes a connection that opens at its first use.
    pub(crate) fn unopened(end: Unopened, readable: bool, writable: bool, settings: Settings) -> Self {
        Self::made(End::Unopened(end), readable, writable, settings)
    }

    fn made(end: End, readable: bool, writable: bool, settings: Settings) -> Self {
        Self { end: Mutex::new(end), readable, writable, settings, copied: AtomicU64::new(0) }
    }

    pub(crate) fn settings(&self, py: Python<'_>) -> Settings {
        self.settings.clone_ref(py)
    }

    fn channel(&self, py: Python<'_>) -> PyResult<Arc<Held<Channel>>> {
        let (class, text) = match self.opened() {
            Ok(channel) => return Ok(channel),
            Err(Unusable::Closed) => ("Closed", "this connection was closed in this process"),
            Err(Unusable::Moved(call)) => {
                return Err(errors::named(py, "Moved", format!("this connection was sent away in a message{call}")));
            }
            Err(Unusable::NotOpened(OpenError::Elsewhere)) => {
                ("Moved", "another process has used this end of the pipe: one process alone can use an end")
            }
            Err(Unusable::NotOpened(OpenError::Failed(Error::PeerClosed))) => {
                return Err(errors::peer_closed(py, None));
            }
            Err(Unusable::NotOpened(OpenError::Failed(error))) => return Err(errors::raise(py, error)),
        };
        Err(errors::named(py, class, text.to_owned()))
    }

    /// Returns the channel; the first call opens the channel.
    fn opened(&self) -> Result<Arc<Held<Channel>>, Unusable> {
        let mut end = lock(&self.end);
        match &*end {
            End::Unopened(unopened) => {
                let channel = unopened.open().map_err(Unusable::NotOpened)?;
                *end = End::open(channel);
            }
            End::Open { .. } => {}
            End::Closed => return Err(Unusable::Closed),
            End::Moved { call, .. } => return Err(Unusable::Moved(call.clone())),
        }
        match &*end {
            End::Open { channel, .. } => Ok(channel.clone()),
            _ => Err(Unusable::Closed),
        }
    }

    /// Returns whether this end cannot be opened because the peer has closed the other end.
    fn is_closed_by_peer(&self) -> bool {
        matches!(self.opened(), Err(Unusable::NotOpened(OpenError::Failed(Error::PeerClosed))))
    }

    fn check_readable(&self) -> PyResult<()> {
        if self.readable { Ok(()) } else { Err(PyOSError::new_err("this end of the pipe only sends")) }
    }

    fn check_writable(&self) -> PyResult<()> {
        if self.writable { Ok(()) } else { Err(PyOSError::new_err("this end of the pipe only receives")) }
    }

    /// Returns the exception of a failed call on `channel`.
    fn failed(&self, py: Python<'_>, channel: &Channel, error: Error) -> PyErr {
        match error {
            Error::Interrupted => self.channel(py).err().unwrap_or_else(|| errors::raise(py, error)),
            Error::PeerClosed => errors::peer_closed(py, channel.close_reason()),
            error => errors::raise(py, error),
        }
    }

    /// Takes the end out, to be sent in a message.
    pub(crate) fn take(&self, py: Python<'_>) -> PyResult<Handle> {
        self.channel(py)?;
        let call = Place::of_call(py);
        let mut end = lock(&self.end);
        match std::mem::replace(&mut *end, End::Moved { set: None, group: None, call: call.clone() }) {
            End::Open { channel, set, group } => match Arc::try_unwrap(channel) {
                Ok(held) => {
                    let channel = held.into_end();
                    let _ = group.as_ref().map(|group| group.leave(&channel));
                    // An end in transit leaves its set.
                    let set = set.filter(|set| {
                        let left = set.leave(&channel).is_ok();
                        if !left {
                            set.end();
                        }
                        left
                    });
                    *end = End::Moved { set, group, call };
                    Ok(channel.into())
                }
                Err(channel) => {
                    *end = End::Open { channel, set, group };
                    Err(PyValueError::new_err("the connection is in use: it carries this message, or a thread waits"))
                }
            },
            other => {
                *end = other;
                Err(PyValueError::new_err("another thread has closed or sent this connection"))
            }
        }
    }

    /// Takes the end out, to be used by another object of this process.
    pub(crate) fn take_channel(&self, py: Python<'_>) -> PyResult<Channel> {
        let channel = self.take(py)?.into_channel();
        self.sent();
        channel.ok_or_else(|| errors::named(py, "BadHandle", "this is no connection".to_owned()))
    }

    /// Puts the end back after a failed send.
    pub(crate) fn restore(&self, handle: Handle) {
        if let Some(channel) = handle.into_channel() {
            let mut end = lock(&self.end);
            let before = std::mem::replace(&mut *end, End::open(channel));
            if let (End::Moved { set: before, group, .. }, End::Open { channel, set, .. }) = (before, &mut *end) {
                if let Some(before) = before {
                    match before.join(&***channel) {
                        Ok(()) => *set = Some(before),
                        Err(_) => before.end(),
                    }
                }
                if let Some(group) = group {
                    group.end();
                }
            }
        }
    }

    /// Notes that the end will not come back. Ends the waits of other threads in `poll` and in `strait.wait`.
    pub(crate) fn sent(&self) {
        let sets = match &mut *lock(&self.end) {
            End::Moved { set, group, .. } => [set.take(), group.take()],
            _ => return,
        };
        for set in sets.into_iter().flatten() {
            set.end();
        }
    }

    /// Returns the wait set of this end; makes the set if there is none.
    fn set(&self, py: Python<'_>) -> PyResult<Arc<Watch>> {
        let channel = self.channel(py)?;
        let set = match &mut *lock(&self.end) {
            End::Open { set: Some(set), .. } => Ok(set.clone()),
            End::Open { set, group, .. } => {
                leave(&channel, group.take());
                Watch::new(&**channel).map(|made| set.insert(Arc::new(made)).clone())
            }
            _ => Err(Error::Interrupted),
        };
        set.map_err(|error| errors::raise(py, error))
    }

    /// Puts this end into the wait set of a call of `strait.wait`. Returns `false` if this end has a wait set of its
    /// own or is in that of another call, or if the peer has closed the unused end.
    pub(crate) fn join(&self, py: Python<'_>, group: &Arc<Watch>, key: u64) -> PyResult<bool> {
        self.check_readable()?;
        let channel = match self.channel(py) {
            Ok(channel) => channel,
            Err(_) if self.is_closed_by_peer() => return Ok(false),
            Err(error) => return Err(error),
        };
        let joined = match &mut *lock(&self.end) {
            End::Open { set: None, group: Some(other), .. } => Ok(Arc::ptr_eq(other, group)),
            End::Open { set: None, group: none, .. } => {
                group.join_as(&**channel, key, Interest::Readable).map(|()| none.replace(group.clone()).is_none())
            }
            _ => Ok(false),
        };
        joined.map_err(|error| errors::raise(py, error))
    }

    /// Takes this end out of the wait set of a call of `strait.wait`.
    pub(crate) fn part(&self, group: &Arc<Watch>) {
        if let End::Open { channel, group: joined, .. } = &mut *lock(&self.end)
            && joined.as_ref().is_some_and(|joined| Arc::ptr_eq(joined, group))
        {
            *joined = None;
            let _ = group.leave(&***channel);
        }
    }

    /// Has the descriptor of the set, if there is one, tell whether there is more to receive.
    fn settle(&self, py: Python<'_>) {
        let set = match &*lock(&self.end) {
            End::Open { set: Some(set), .. } => set.clone(),
            _ => return,
        };
        py.detach(|| set.settle());
    }

    /// Returns whether this end has a wait set of its own.
    fn has_set(&self) -> bool {
        matches!(&*lock(&self.end), End::Open { set: Some(_), .. })
    }

    /// Sends bytes with the handles of `carriers`. All handles stay with this process if the call fails.
    fn send_with(&self, py: Python<'_>, bytes: &[u8], carriers: &[Carrier], timeout: Timeout) -> PyResult<()> {
        self.send_parts(py, &[IoSlice::new(bytes)], carriers, timeout)
    }

    fn send_parts(
        &self,
        py: Python<'_>,
        parts: &[IoSlice<'_>],
        carriers: &[Carrier],
        timeout: Timeout,
    ) -> PyResult<()> {
        self.check_writable()?;
        let channel = self.channel(py)?;
        if let ([whole], []) = (parts, carriers)
            && whole.len() <= QUICK_SEND
        {
            // To give up the interpreter lock would take as long as the call itself.
            match channel.send_by(Outgoing::new(whole), Deadline::NOW).map_err(|failed| failed.error) {
                Err(Error::WouldBlock) if !matches!(timeout, Timeout::Now) => {}
                sent => return sent.map_err(|error| self.failed(py, &channel, error)),
            }
        }
        let mut kept = handles::take_all(py, carriers)?;
        let sent = waiting::wait(py, timeout, |deadline| {
            let outgoing = outgoing(parts).handles(std::mem::take(&mut kept));
            channel.send_by(outgoing, deadline).map_err(|failed| {
                kept = failed.handles;
                failed.error
            })
        });
        handles::restore_all(carriers, kept);
        sent?.map_err(|error| self.failed(py, &channel, error))
    }

    /// Receives a short message without handles, if the message is there now, and returns the result of `take` for
    /// its bytes: `None` if the message is not for the program. Keeps the interpreter lock, since releasing the lock
    /// would take as long as the call itself.
    fn receive_quickly<T>(
        &self,
        py: Python<'_>,
        take: impl FnOnce(&[u8]) -> PyResult<Option<T>>,
    ) -> PyResult<Option<T>> {
        self.check_readable()?;
        let (channel, is_watched) = match &*lock(&self.end) {
            End::Open { channel, set, .. } => (channel.clone(), set.is_some()),
            _ => return Ok(None),
        };
        let mut buffer = [0; QUICK_RECEIVE];
        // A message that this call does not receive, and every error, is found again on the usual path.
        let Ok(Some(len)) = channel.try_recv_bytes(&mut buffer) else { return Ok(None) };
        drop(channel);
        if is_watched {
            self.settle(py);
        }
        take(&buffer[..len])
    }

    /// Receives an object; returns `None` for a first message. The bytes of a long message are decoded where the peer
    /// has put them.
    fn receive_object(&self, py: Python<'_>, timeout: Timeout, writable: bool) -> PyResult<Option<Py<PyAny>>> {
        if !self.settings.is_plain() {
            let message = self.receive(py, timeout)?;
            let skips = self.settings.skips(py, message.bytes())?;
            return if skips { Ok(None) } else { self.settings.decode(py, message, writable).map(Some) };
        }
        self.check_readable()?;
        let channel = self.channel(py)?;
        let mut message = strait::Message::new();
        let received = waiting::wait(py, timeout, |deadline| channel.recv_message_or_view(&mut message, deadline));
        self.settle(py);
        match received?.map_err(|error| self.failed(py, &channel, error))? {
            Some(view) => self.settings.decode_view(py, view, writable),
            None if self.settings.skips(py, message.bytes())? => Ok(None),
            None => self.settings.decode(py, message, writable).map(Some),
        }
    }

    fn receive(&self, py: Python<'_>, timeout: Timeout) -> PyResult<strait::Message> {
        self.check_readable()?;
        let channel = self.channel(py)?;
        let received = waiting::wait(py, timeout, |deadline| channel.recv_by(deadline));
        self.settle(py);
        received?.map_err(|error| self.failed(py, &channel, error))
    }

    /// Receives the bytes of a message, and closes its handles. The bytes of a long message are copied once, from where
    /// the peer has put them.
    fn receive_bytes<'py>(&self, py: Python<'py>, timeout: Timeout) -> PyResult<Bound<'py, PyBytes>> {
        self.check_readable()?;
        let channel = self.channel(py)?;
        let mut message = strait::Message::new();
        let received = waiting::wait(py, timeout, |deadline| channel.recv_message_or_view(&mut message, deadline));
        let bytes = match received?.map_err(|error| self.failed(py, &channel, error))? {
            Some(view) => {
                let mut view = Some(view);
                buffers::written(py, view.as_ref().map_or(0, |view| view.len()), |bytes| {
                    if let Some(mut view) = view.take() {
                        view.read_at(bytes, 0);
                    }
                })
            }
            None => buffers::taken(py, Bytes(message)),
        };
        self.settle(py);
        bytes
    }

    /// Receives the bytes of a message of at most `limit` bytes, and closes its handles. A longer message stays in its
    /// place.
    fn receive_within(&self, py: Python<'_>, limit: usize, timeout: Timeout) -> PyResult<Vec<u8>> {
        self.check_readable()?;
        let channel = self.channel(py)?;
        let mut buffer = vec![0; limit.min(QUICK_RECEIVE)];
        let received = waiting::wait(py, timeout, |deadline| {
            loop {
                match channel.recv_into(&mut buffer, deadline) {
                    Err(Error::BufferTooSmall { needed }) if needed <= limit => buffer = vec![0; needed],
                    received => return received.map(|received| received.len()),
                }
            }
        });
        self.settle(py);
        buffer.truncate(received?.map_err(|error| self.failed(py, &channel, error))?);
        Ok(buffer)
    }
}

/// A received message, for its bytes.
pub(crate) struct Bytes(pub(crate) strait::Message);

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// Takes an end out of the wait set of a call of `strait.wait`, and ends the set.
fn leave(channel: &Channel, group: Option<Arc<Watch>>) {
    if let Some(group) = group {
        let _ = group.leave(channel);
        group.end();
    }
}

/// Returns a message with the bytes of all parts.
pub(crate) fn outgoing<'a>(parts: &'a [IoSlice<'a>]) -> Outgoing<'a> {
    match parts {
        [whole] => Outgoing::new(whole),
        parts => Outgoing::vectored(parts),
    }
}

/// Returns the bytes of a bytes-like object: the object itself if it is immutable, otherwise a copy.
pub(crate) fn steady<'py>(data: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    match data.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.clone()),
        Err(_) => buffers::snapshot(data),
    }
}

/// Returns a view of the bytes of a writable buffer, and the number of bytes from an offset on.
pub(crate) fn writable_room<'py>(buffer: &Bound<'py, PyAny>, offset: usize) -> PyResult<(Bound<'py, PyAny>, usize)> {
    let view = PyMemoryView::from(buffer)?.call_method1("cast", ("B",))?;
    if view.getattr("readonly")?.is_truthy()? {
        return Err(PyValueError::new_err("the buffer is read-only"));
    }
    let room = view.len()?.checked_sub(offset);
    let room = room.ok_or_else(|| PyValueError::new_err(format!("offset {offset} is beyond the buffer")))?;
    Ok((view, room))
}

/// Writes bytes to a view from an offset on, where there is room.
fn fill(view: &Bound<'_, PyAny>, offset: usize, bytes: &[u8]) -> PyResult<()> {
    let py = view.py();
    let target = PySlice::new(py, offset.try_into()?, (offset + bytes.len()).try_into()?, 1);
    view.set_item(target, buffers::copied(py, bytes)?)
}

/// Returns the part of `bytes` selected by an offset and a size.
fn part(bytes: &[u8], offset: usize, size: Option<usize>) -> PyResult<&[u8]> {
    let end = size.map_or(Some(bytes.len()), |size| offset.checked_add(size));
    end.and_then(|end| bytes.get(offset..end)).ok_or_else(|| {
        let size = size.map_or_else(|| "rest".to_owned(), |size| size.to_string());
        PyValueError::new_err(format!("offset {offset} and size {size} are not within {} bytes", bytes.len()))
    })
}

#[pymethods]
impl Connection {
    /// Sends an object in the connection's codec, by default `plain`. Open files are duplicated; connections move into
    /// the message.
    #[pyo3(signature = (obj, *, timeout=None))]
    fn send(&self, py: Python<'_>, obj: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<()> {
        let timeout = Timeout::of(timeout)?;
        self.channel(py)?;
        let encoded = self.settings.encode(obj)?;
        self.copied.fetch_add(encoded.copied, Ordering::Relaxed);
        let sent = self.send_parts(py, &encoded.parts(), &encoded.carriers, timeout);
        encoded.give_back();
        sent
    }

    /// Receives an object in the connection's codec. Unless `writable` is set, arrays in the object are read-only.
    #[pyo3(signature = (*, timeout=None, writable=true))]
    fn recv(&self, py: Python<'_>, timeout: Option<f64>, writable: bool) -> PyResult<Py<PyAny>> {
        let timeout = Timeout::of(timeout)?;
        if self.settings.is_plain()
            && let Some(object) = self.receive_quickly(py, |bytes| self.settings.decode_plain(py, bytes, writable))?
        {
            return Ok(object);
        }
        for _ in 0..codec::MOST_FIRST {
            if let Some(object) = self.receive_object(py, timeout, writable)? {
                return Ok(object);
            }
        }
        Err(codec::too_many_first(py))
    }

    /// Sends bytes and handles.
    #[pyo3(signature = (data, offset=0, size=None, *, handles=None, timeout=None))]
    fn send_bytes(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        offset: usize,
        size: Option<usize>,
        handles: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = Timeout::of(timeout)?;
        let data = steady(data)?;
        let bytes = part(data.as_bytes(), offset, size)?;
        let carriers = handles.map_or(Ok(Vec::new()), handles::carriers)?;
        self.send_with(py, bytes, &carriers, timeout)
    }

    /// Sends the bytes of several buffers as one message.
    #[pyo3(signature = (parts, *, handles=None, timeout=None))]
    fn sendv(
        &self,
        py: Python<'_>,
        parts: &Bound<'_, PyAny>,
        handles: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        let timeout = Timeout::of(timeout)?;
        let parts = parts.try_iter()?.map(|part| steady(&part?)).collect::<PyResult<Vec<_>>>()?;
        let carriers = handles.map_or(Ok(Vec::new()), handles::carriers)?;
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part.as_bytes())).collect();
        self.send_parts(py, &slices, &carriers, timeout)
    }

    /// Sends several messages of bytes with few wake-ups of the peer, and returns the number of messages sent. If a
    /// message cannot be sent, raises the error only if it is the first message. An exception raised by a signal
    /// handler gets the number of messages sent as its attribute `sent`.
    #[pyo3(signature = (messages, *, timeout=None))]
    fn send_many(&self, py: Python<'_>, messages: &Bound<'_, PyAny>, timeout: Option<f64>) -> PyResult<usize> {
        self.check_writable()?;
        let timeout = Timeout::of(timeout)?;
        let messages = messages.try_iter()?.map(|data| steady(&data?)).collect::<PyResult<Vec<_>>>()?;
        let messages: Vec<_> = messages.iter().map(|data| data.as_bytes()).collect();
        let channel = self.channel(py)?;
        let mut sent = 0;
        let outcome = waiting::wait(py, timeout, |deadline| {
            channel.send_many(messages[sent..].iter().copied(), deadline).map(drop).map_err(|failed| {
                sent += failed.sent;
                failed.failed.error
            })
        });
        match outcome {
            Ok(Ok(())) => Ok(messages.len()),
            Ok(Err(_)) if sent > 0 => Ok(sent),
            Ok(Err(error)) => Err(self.failed(py, &channel, error)),
            Err(raised) => {
                // An exception of a class without attributes is raised as it is.
                let _ = raised.value(py).setattr("sent", sent);
                Err(raised)
            }
        }
    }

    /// Receives at least one and at most `n` messages, and returns their bytes. Closes the handles of the messages.
    #[pyo3(signature = (n, *, timeout=None))]
    fn recv_many<'py>(&self, py: Python<'py>, n: usize, timeout: Option<f64>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        if n == 0 {
            return Err(PyValueError::new_err("n must be at least 1"));
        }
        // Held for the whole call: no other thread sends the end away between the two receives.
        let channel = self.channel(py)?;
        let mut all = vec![self.receive(py, Timeout::of(timeout)?)?];
        let mut slots: Vec<_> = std::iter::repeat_with(strait::Message::new).take((n - 1).min(MOST_AT_ONCE)).collect();
        // Messages received before an error are returned; the next call raises the error.
        let more = if slots.is_empty() { 0 } else { channel.recv_many(&mut slots, Deadline::NOW).unwrap_or(0) };
        slots.truncate(more);
        all.append(&mut slots);
        self.settle(py);
        all.into_iter().map(|message| buffers::taken(py, Bytes(message))).collect()
    }

    /// Returns memory of `nbytes` zeros to fill in place and send. With `dtype`, the memory is an array of `nbytes`
    /// bytes, and is sent as an object; `seal` is as of `strait.empty`.
    #[pyo3(signature = (nbytes, dtype=None, *, seal=false))]
    fn reserve<'py>(
        slf: &Bound<'py, Self>,
        nbytes: usize,
        dtype: Option<&Bound<'py, PyAny>>,
        seal: bool,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.get().check_writable()?;
        slf.get().channel(slf.py())?;
        slf.py().import("strait._arrays")?.getattr("Reservation")?.call1((slf, nbytes, dtype, seal))
    }

    /// Ends the waits of other threads on this end, until `resume`: waiting calls, and later calls that would have to
    /// wait, raise `Interrupted`. Does not end `poll` and `strait.wait`.
    fn interrupt(&self, py: Python<'_>) -> PyResult<()> {
        self.channel(py)?.interrupter().interrupt();
        Ok(())
    }

    /// Lets calls on this end wait again. If `interrupt` and `resume` follow each other at once, a waiting call may not
    /// notice; so call `resume` only once the waiting calls have ended.
    fn resume(&self, py: Python<'_>) -> PyResult<()> {
        self.channel(py)?.interrupter().resume();
        Ok(())
    }

    /// If the end came through other processes, moves its messages to memory of this process's own link with the peer.
    #[pyo3(signature = (*, timeout=None))]
    fn rehome(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<()> {
        let channel = self.channel(py)?;
        let moved = waiting::wait(py, Timeout::of(timeout)?, |deadline| channel.rehome(deadline))?;
        moved.map_err(|error| self.failed(py, &channel, error))
    }

    /// Reports that the peer has broken a protocol of the program. If the peer's end has always been in the peer
    /// process, closes the link with the peer, and all connections over the link. Returns "closed", "within", "brought"
    /// or "gone".
    fn report_bad(&self, py: Python<'_>, why: &str) -> PyResult<&'static str> {
        let channel = self.channel(py)?;
        let why = status::interned(why);
        Ok(match py.detach(|| channel.report_bad(why)) {
            Reported::Closed => "closed",
            Reported::Within => "within",
            Reported::Brought => "brought",
            _ => "gone",
        })
    }

    /// The receivable messages of this end, and whether there is room to send.
    #[getter]
    fn status(&self, py: Python<'_>) -> PyResult<Status> {
        let channel = self.channel(py)?;
        let status = channel.status().map_err(|error| self.failed(py, &channel, error))?;
        Ok(status.into())
    }

    /// The counts of this end since it was made or received.
    #[getter]
    fn counters(&self, py: Python<'_>) -> PyResult<Counters> {
        Ok(Counters::new(self.channel(py)?.counters(), self.copied.load(Ordering::Relaxed)))
    }

    /// Whether arrays may lie in memory that is writable for the peer.
    #[getter]
    fn trust(&self) -> bool {
        self.settings.trust
    }

    /// The codec given by the program; `None` stands for `plain`.
    #[getter]
    fn codec(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.settings.codec(py)
    }

    /// Receives the bytes of a message, and closes its handles.
    #[pyo3(signature = (maxlength=None, *, timeout=None))]
    fn recv_bytes<'py>(
        &self,
        py: Python<'py>,
        maxlength: Option<usize>,
        timeout: Option<f64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let (limit, timeout) = (maxlength.unwrap_or(usize::MAX), Timeout::of(timeout)?);
        if limit >= QUICK_RECEIVE
            && let Some(bytes) = self.receive_quickly(py, |bytes| Ok(Some(PyBytes::new(py, bytes))))?
        {
            return Ok(bytes);
        }
        if limit == usize::MAX {
            return self.receive_bytes(py, timeout);
        }
        buffers::taken(py, self.receive_within(py, limit, timeout)?)
    }

    /// Receives the bytes of a message into a writable buffer, and returns their number.
    #[pyo3(signature = (buffer, offset=0, *, timeout=None))]
    fn recv_bytes_into(
        &self,
        py: Python<'_>,
        buffer: &Bound<'_, PyAny>,
        offset: usize,
        timeout: Option<f64>,
    ) -> PyResult<usize> {
        let (view, room) = writable_room(buffer, offset)?;
        let bytes = self.receive_within(py, room, Timeout::of(timeout)?)?;
        fill(&view, offset, &bytes)?;
        Ok(bytes.len())
    }

    /// Receives the bytes of a message into a writable buffer, and returns their number. If the buffer is too small,
    /// returns the bytes.
    #[pyo3(name = "_recv_bytes_into")]
    fn recv_bytes_into_or_return<'py>(
        &self,
        py: Python<'py>,
        buffer: &Bound<'py, PyAny>,
        offset: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (view, room) = writable_room(buffer, offset)?;
        let message = self.receive(py, Timeout::Never)?;
        let bytes = message.bytes();
        if bytes.len() > room {
            return Ok(buffers::copied(py, bytes)?.into_any());
        }
        fill(&view, offset, bytes)?;
        bytes.len().into_bound_py_any(py)
    }

    /// Receives a message with its bytes and its handles.
    #[pyo3(signature = (*, timeout=None))]
    fn recv_message(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Message> {
        Message::new(py, self.receive(py, Timeout::of(timeout)?)?)
    }

    /// Waits for a message until the timeout, and returns whether a call of `recv` would not wait.
    #[pyo3(signature = (timeout=Some(0.0)))]
    fn poll(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<bool> {
        let timeout = Timeout::of(timeout)?;
        self.check_readable()?;
        match self.channel(py) {
            Ok(channel) if has_something(&channel) => return Ok(true),
            Ok(_) => {}
            Err(_) if self.is_closed_by_peer() => return Ok(true),
            Err(error) => return Err(error),
        }
        if matches!(timeout, Timeout::Now) && !self.has_set() {
            return Ok(false);
        }
        let set = self.set(py)?;
        loop {
            let waited = set.wait(py, timeout)?;
            let channel = self.channel(py)?;
            match waited {
                Ok(()) if has_something(&channel) => return Ok(true),
                Ok(()) => {}
                Err(Error::WouldBlock | Error::TimedOut) => return Ok(has_something(&channel)),
                Err(error) => return Err(self.failed(py, &channel, error)),
            }
        }
    }

    /// Returns a descriptor that is readable whenever there may be something to receive. Do not read from it.
    fn fileno(&self, py: Python<'_>) -> PyResult<i32> {
        match (self.set(py), self.unopened_parts(py)) {
            (Ok(set), _) => Ok(set.as_raw_fd()),
            // The socket is readable, since the other end is closed.
            (Err(_), Some((socket, _))) if self.is_closed_by_peer() => Ok(socket),
            (Err(error), _) => Err(error),
        }
    }

    /// Closes this end, and gives the other end the reason. Ends the waits of other threads on this end. Does nothing
    /// the second time.
    #[pyo3(signature = (reason=0))]
    fn close(&self, py: Python<'_>, reason: u32) {
        let end = match &mut *lock(&self.end) {
            End::Moved { .. } => return,
            end => std::mem::replace(end, End::Closed),
        };
        // An unused end closes with the last descriptor of its socket, and can give no reason.
        let End::Open { channel, set, group } = end else { return };
        channel.interrupter().interrupt();
        py.detach(|| {
            for set in [set, group].into_iter().flatten() {
                set.end();
            }
            // A call of another thread may still hold the channel; the end closes when that call returns.
            channel.set_reason(reason);
            drop(channel);
        });
    }

    /// Whether this end was closed here or sent away.
    #[getter]
    fn closed(&self) -> bool {
        matches!(&*lock(&self.end), End::Closed | End::Moved { .. })
    }

    /// Returns the descriptor of the socket and the options, if this end was not used yet; otherwise `None`.
    fn unopened_parts<'py>(&self, py: Python<'py>) -> Option<(i32, Option<Bound<'py, PyDict>>)> {
        match &*lock(&self.end) {
            End::Unopened(unopened) => Some(unopened.parts(py)),
            _ => None,
        }
    }

    /// Moves this end into a new object for receiving only, or for sending only.
    fn limited(&self, py: Python<'_>, readable: bool, writable: bool) -> Self {
        let call = Place::of_call(py);
        let end = match &mut *lock(&self.end) {
            // The end of a closed or moved connection stays as it is.
            End::Closed => End::Closed,
            end => std::mem::replace(end, End::Moved { set: None, group: None, call: call.clone() }),
        };
        let (readable, writable) = (self.readable && readable, self.writable && writable);
        Self::made(end, readable, writable, self.settings.clone_ref(py))
    }

    /// Lets a connection be an argument of a `multiprocessing.Process`.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("strait._handover")?.call_method1("reduce", (slf,))
    }

    /// The process at the other end; `None` while unknown.
    #[getter]
    fn peer(&self, py: Python<'_>) -> PyResult<Option<Peer>> {
        let channel = self.channel(py)?;
        let peer = channel.peer().map_err(|error| self.failed(py, &channel, error))?;
        Ok(peer.map(Peer::from))
    }

    /// The reason given by the other end when it closed; 0 without a reason, or while the other end is open.
    #[getter]
    fn close_reason(&self, py: Python<'_>) -> PyResult<u32> {
        Ok(self.channel(py)?.close_reason().unwrap_or(0))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        self.close(py, 0);
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Receives the next object. Ends once the peer has closed and everything was received.
    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        match self.recv(py, None, true) {
            Err(error) if errors::is(py, &error, "PeerClosed") => Ok(None),
            received => received.map(Some),
        }
    }

    fn __repr__(&self) -> &'static str {
        match &*lock(&self.end) {
            End::Open { .. } => "<strait.Connection>",
            End::Unopened(_) => "<strait.Connection not used yet>",
            End::Closed => "<strait.Connection closed>",
            End::Moved { .. } => "<strait.Connection moved>",
        }
    }
}

/// Returns whether a receiving call would return or fail at once.
pub(crate) fn has_something(channel: &Channel) -> bool {
    channel.is_readable() || channel.is_peer_closed()
}
