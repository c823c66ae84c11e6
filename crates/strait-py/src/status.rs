//! What connections tell about themselves, and the limits of the process.

use std::collections::HashSet;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use strait::quota::{self, Resource};

use crate::sync::lock;

/// What a connection has to receive, and whether it has room to send.
#[pyclass(frozen, get_all, module = "strait")]
pub(crate) struct Status {
    /// The number of messages that can be received.
    messages: u64,
    /// The number of their bytes.
    bytes: u64,
    /// The number of messages that have arrived since the connection was made or received.
    arrived: u64,
    /// Whether a short message can be sent without waiting.
    has_room: bool,
    /// Whether the peer has closed its end.
    peer_closed: bool,
}

impl From<strait::Status> for Status {
    fn from(status: strait::Status) -> Self {
        let strait::Status { messages, bytes, arrived, has_room, peer_closed, .. } = status;
        Self { messages, bytes, arrived, has_room, peer_closed }
    }
}

#[pymethods]
impl Status {
    fn __repr__(&self) -> String {
        let Self { messages, bytes, arrived, has_room, peer_closed } = self;
        format!(
            "<strait.Status messages={messages} bytes={bytes} arrived={arrived} has_room={has_room} \
             peer_closed={peer_closed}>"
        )
    }
}

/// What a connection has counted since it was made or received.
#[pyclass(frozen, get_all, module = "strait")]
pub(crate) struct Counters {
    /// Messages sent.
    messages_sent: u64,
    /// Messages received.
    messages_received: u64,
    /// Bytes sent.
    bytes_sent: u64,
    /// Bytes received.
    bytes_received: u64,
    /// Messages that did not fit into the ring.
    out_of_line: u64,
    /// Messages outside of the ring whose memory was used before.
    pool_hits: u64,
    /// Sends that had to wait for room.
    stalls: u64,
    /// Sleeps of receiving threads.
    sleeps: u64,
    /// Wake-ups of the peer.
    wake_ups: u64,
    /// How often the ring has grown.
    grown: u64,
    /// How often a limit was reached.
    limits_reached: u64,
    /// Arrays above 64 KiB that `send` has copied. Arrays of `strait.empty` that are sent for the first time are not.
    copied: u64,
}

impl Counters {
    pub(crate) fn new(counters: strait::Counters, copied: u64) -> Self {
        Self {
            messages_sent: counters.messages_sent,
            messages_received: counters.messages_received,
            bytes_sent: counters.bytes_sent,
            bytes_received: counters.bytes_received,
            out_of_line: counters.out_of_line,
            pool_hits: counters.pool_hits,
            stalls: counters.stalls,
            sleeps: counters.sleeps,
            wake_ups: counters.wake_ups,
            grown: counters.grown,
            limits_reached: counters.limits_reached,
            copied,
        }
    }
}

/// Returns the resource of a name such as "queued_bytes".
fn resource(name: &str) -> PyResult<Resource> {
    Ok(match name {
        "descriptors" => Resource::Descriptors,
        "lanes" => Resource::Lanes,
        "mappings" => Resource::Mappings,
        "memory" => Resource::Memory,
        "queued_bytes" => Resource::QueuedBytes,
        "queued_messages" => Resource::QueuedMessages,
        "regions" => Resource::Regions,
        other => return Err(PyValueError::new_err(format!("there is no limit {other:?}"))),
    })
}

/// Sets how much this process holds at most for one peer process, and for all processes of one user. What is not named
/// keeps its limit. Links that exist keep the limits that they have.
#[pyfunction]
#[pyo3(signature = (peer=None, user=None))]
pub(crate) fn set_limits(peer: Option<&Bound<'_, PyDict>>, user: Option<&Bound<'_, PyDict>>) -> PyResult<()> {
    let mut limits = quota::limits();
    for (name, most) in peer.into_iter().flatten() {
        limits = limits.peer(resource(&name.extract::<String>()?)?, most.extract()?);
    }
    for (name, most) in user.into_iter().flatten() {
        limits = limits.user(resource(&name.extract::<String>()?)?, most.extract()?);
    }
    quota::set_limits(limits);
    Ok(())
}

/// Sets the number of bytes of memory that this process keeps for large messages that it sends, over all connections.
#[pyfunction]
pub(crate) fn set_pool_limit(size: usize) {
    quota::set_pool_limit(size);
}

/// Returns the number of bytes of memory that this process keeps at most for large messages that it sends.
#[pyfunction]
pub(crate) fn pool_limit() -> usize {
    quota::pool_limit()
}

/// Returns the number of bytes of memory that this process keeps now for large messages that it sends.
#[pyfunction]
pub(crate) fn pool_held() -> usize {
    quota::pool_held()
}

/// Gives back the memory that this process keeps for large messages and that no message uses now. Returns the number of
/// bytes given back.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> usize {
    py.detach(quota::trim)
}

/// Returns a text that lives as long as the process: the library keeps the reasons of reports. Of a program that gives
/// very many different reasons, later ones are not kept.
pub(crate) fn interned(text: &str) -> &'static str {
    const MOST: usize = 1024;
    static TEXTS: Mutex<Option<HashSet<&'static str>>> = Mutex::new(None);
    let mut texts = lock(&TEXTS);
    let texts = texts.get_or_insert_default();
    if let Some(known) = texts.get(text) {
        return known;
    }
    if texts.len() >= MOST {
        return "the program has reported the peer";
    }
    let kept: &'static str = Box::leak(text.to_owned().into_boxed_str());
    texts.insert(kept);
    kept
}
