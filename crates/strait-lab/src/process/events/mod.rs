//! Counters of the processor and the kernel for this process, if `perf_event_open` allows them: instructions,
//! branches, mispredicted branches, instruction cache misses, and system calls.
//!
//! A virtual machine mostly has no such counters, and the kernel counts system calls only for processes with access to
//! the tracepoints. A value that cannot be counted is `None`, never 0.

#[cfg(feature = "counters")]
mod counters;
#[cfg(not(feature = "counters"))]
#[path = "no_counters.rs"]
mod counters;

pub(crate) use self::counters::{missing, now, open};

/// The counts of all counters since [`open`]; `None` for a counter that is not available.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Events {
    pub(crate) calls: Option<u64>,
    pub(crate) instructions: Option<u64>,
    pub(crate) branches: Option<u64>,
    pub(crate) mispredictions: Option<u64>,
    pub(crate) instruction_misses: Option<u64>,
}
