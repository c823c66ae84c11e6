//! No counters: the program was built without the feature `counters`.

use super::Events;
use crate::shape::UNBUILT;

/// Does nothing.
pub(crate) fn open() {}

/// Returns the counters that are not available, each with the reason: all of them.
pub(crate) fn missing() -> Vec<[String; 2]> {
    ["instructions", "branches", "mispredictions", "instruction cache misses"]
        .map(|what| [what, UNBUILT].map(str::to_owned))
        .into()
}

/// Returns no counts.
pub(crate) fn now() -> Events {
    Events::default()
}
