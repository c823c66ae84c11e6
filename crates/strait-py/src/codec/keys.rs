//! The insertion of a peer's keys into dictionaries and sets, in limited time.
//!
//! Python randomises the hashes of texts and bytes only. For other keys, such as integers and tuples of integers, a
//! hostile peer can choose hashes that collide, so that the insertion of *n* keys takes a time that grows as *n*².
//! Equal hashes are one way, different hashes with one sequence of places in the table are another. So the decoder
//! measures the time of the insertions, whatever makes them slow.

use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use rustix::time::{ClockId, clock_gettime};

/// The number of keys that are inserted between two reads of the clock.
const BATCH: usize = 64;
/// Fewer keys of one dictionary or set are inserted without a look at the clock: they cannot collide much.
const FEW: usize = 16;

/// The time that all insertions of a message may take.
const BASE: Duration = Duration::from_millis(200);
/// The further time for each key. The insertion of an honest key into a large table takes some 300 ns, and up to 3.7 µs
/// if keys differ in their high bits only, as `i << 33` does.
const PER_KEY: Duration = Duration::from_micros(4);
/// The further time, in multiples of the time in which the decoder made the keys and the values. A slow machine, or
/// an interpreter that traces calls, is slow at both.
const PER_DECODING: u32 = 2;

/// Pairs of one dictionary, or members of one set, that are decoded and not yet inserted.
pub(super) struct Pairs<'py> {
    pairs: Vec<(Bound<'py, PyAny>, Bound<'py, PyAny>)>,
    /// The number of pairs that were inserted before.
    inserted: usize,
}

impl<'py> Pairs<'py> {
    pub(super) fn new() -> Self {
        Self { pairs: Vec::new(), inserted: 0 }
    }

    /// Returns whether a key is inserted by way of this object: the hash of the key is not random, or earlier keys of
    /// the dictionary are not inserted yet.
    pub(super) fn takes(&self, key: &Bound<'py, PyAny>) -> bool {
        !self.pairs.is_empty() || !(key.is_exact_instance_of::<PyString>() || key.is_exact_instance_of::<PyBytes>())
    }

    pub(super) fn push(&mut self, key: Bound<'py, PyAny>, value: Bound<'py, PyAny>) {
        self.pairs.push((key, value));
    }

    pub(super) fn is_full(&self) -> bool {
        self.pairs.len() >= BATCH
    }
}

/// The time taken by the insertions of one message.
#[derive(Default)]
pub(super) struct Insertions {
    keys: u32,
    inserting: Duration,
    decoding: Duration,
    /// The time of the thread after the last measured insertion.
    end: Option<Duration>,
}

impl Insertions {
    /// Empties `pairs` into a dictionary or a set by calls of `insert`. Returns whether all insertions of the message
    /// together have not taken too long.
    pub(super) fn make<'py>(
        &mut self,
        pairs: &mut Pairs<'py>,
        mut insert: impl FnMut(Bound<'py, PyAny>, Bound<'py, PyAny>) -> PyResult<()>,
    ) -> PyResult<bool> {
        let count = pairs.pairs.len();
        let is_measured = pairs.inserted + count >= FEW && count > 0;
        let begin = is_measured.then(thread_time);
        for (key, value) in pairs.pairs.drain(..) {
            insert(key, value)?;
        }
        pairs.inserted += count;
        let Some(begin) = begin else { return Ok(true) };
        let end = thread_time();
        self.decoding += self.end.map_or(Duration::ZERO, |last| begin.saturating_sub(last));
        self.inserting += end.saturating_sub(begin);
        self.end = Some(end);
        self.keys = self.keys.saturating_add(u32::try_from(count).unwrap_or(u32::MAX));
        let allowed = BASE + PER_KEY * self.keys + PER_DECODING * self.decoding;
        Ok(self.inserting <= allowed)
    }
}

/// Returns the time that the processors have spent on this thread: waits for the processor do not count.
fn thread_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}
