//! The state and the counts of connections, and the limits of the process.

use std::collections::HashSet;
use std::sync::Mutex;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use strait::quota::{self, Resource};

use crate::sync::lock;
use crate::warm;

/// The receivable messages of a connection, and whether there is room to send.
#[pyclass(frozen, get_all, module = "strait")]
pub(crate) struct Status {
    /// The number of receivable messages.
    messages: u64,
    /// The number of their bytes.
    bytes: u64,
    /// The number of arrived messages since the connection was made or received.
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

/// The counts of a connection since it was made or received.
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
    /// Messages too large for the ring.
    out_of_line: u64,
    /// Messages outside of the ring, in reused memory.
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
    /// Arrays above 64 KiB copied by `send`. The first send of an array of `strait.empty` copies nothing.
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

/// Sets the limits of this process for one peer process, and for all processes of one user. Unnamed limits do not
/// change. Existing links keep their limits.
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

/// Sets the greatest number of bytes of memory kept by this process for sending large messages, over all connections.
#[pyfunction]
pub(crate) fn set_pool_limit(py: Python<'_>, size: usize) {
    py.detach(|| quota::set_pool_limit(size));
}

/// Returns the greatest number of bytes of memory kept by this process for sending large messages.
#[pyfunction]
pub(crate) fn pool_limit() -> usize {
    quota::pool_limit()
}

/// Returns the present number of bytes of memory kept by this process for sending large messages.
#[pyfunction]
pub(crate) fn pool_held() -> usize {
    quota::pool_held()
}

/// Gives back all unused memory kept by this process for large messages and arrays. Returns the number of bytes given
/// back.
#[pyfunction]
pub(crate) fn trim(py: Python<'_>) -> usize {
    py.detach(|| quota::trim() + warm::trim())
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
