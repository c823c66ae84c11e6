//! Reports: the results of a run.

use std::collections::BTreeMap;
use std::ops::AddAssign;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::samples::Percentiles;

/// The resources that one side used in the measured part, summed over its processes and threads.
///
/// A counter that the machine does not allow is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(default)]
pub struct Spent {
    /// Processor time of this side in nanoseconds.
    pub cpu: u64,
    /// How often the side went to sleep and was woken: voluntary context switches.
    pub sleeps: u64,
    /// How often the side was taken off its processor: involuntary context switches.
    pub preempted: u64,
    /// Page faults without reading from a device.
    pub minor_faults: u64,
    /// Page faults that waited for a device.
    pub major_faults: u64,
    /// Memory allocations of this side.
    pub allocations: u64,
    /// System calls, counted by the kernel's tracepoint.
    pub calls: Option<u64>,
    /// Instructions in user space.
    pub instructions: Option<u64>,
    /// Branches in user space.
    pub branches: Option<u64>,
    /// Mispredicted branches in user space.
    pub mispredictions: Option<u64>,
    /// Misses of the first-level instruction cache.
    pub instruction_misses: Option<u64>,
}

impl Spent {
    /// Combines each counter with that of `other`. A counter that one of them lacks is absent.
    pub(crate) fn with(self, other: Self, combine: fn(u64, u64) -> u64) -> Self {
        let both = |one: Option<u64>, other: Option<u64>| Some(combine(one?, other?));
        Self {
            cpu: combine(self.cpu, other.cpu),
            sleeps: combine(self.sleeps, other.sleeps),
            preempted: combine(self.preempted, other.preempted),
            minor_faults: combine(self.minor_faults, other.minor_faults),
            major_faults: combine(self.major_faults, other.major_faults),
            allocations: combine(self.allocations, other.allocations),
            calls: both(self.calls, other.calls),
            instructions: both(self.instructions, other.instructions),
            branches: both(self.branches, other.branches),
            mispredictions: both(self.mispredictions, other.mispredictions),
            instruction_misses: both(self.instruction_misses, other.instruction_misses),
        }
    }
}

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        *self = self.with(other, |one, other| one + other);
    }
}

/// The number of system calls for each message or round trip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Calls {
    /// The system calls of each side, for each message or round trip.
    pub sides: [f64; 2],
    /// How the system calls were counted.
    pub how: Counted,
}

/// A method that counts system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// The kernel's tracepoint counts in the measured part itself.
    Tracepoint,
    /// Two separate runs under `ptrace`, one longer than the other, give the count as their difference. System calls
    /// are slower there: a process that polls by system calls makes fewer, and a process that spins before it sleeps
    /// may sleep more often.
    Ptrace,
}

/// The results of one run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct Report {
    /// The number of messages (one way) or round trips in the measured part.
    pub count: u64,
    /// The duration of the measured part in nanoseconds.
    #[serde(default)]
    pub elapsed: u64,
    /// The distribution of the measured quantity in nanoseconds. The shape decides the quantity: a round trip; the
    /// time per message of a stream, in stretches of 5 milliseconds; or the time from commit to the reader's first
    /// byte.
    pub times: Percentiles,
    /// The resources that each side used: the first process, and all others together.
    pub spent: [Spent; 2],
    /// The duration of making and connecting the ends, in nanoseconds.
    pub connect: u64,
    /// The duration of the very first round trip, in nanoseconds.
    pub first: u64,
    /// The bare cache-line round trip in nanoseconds, measured in the same processes on the same processors just
    /// before and just after the run.
    pub probes: Vec<f64>,
    /// The share of all processors' time that other processes used during the run, from 0 to 1.
    #[serde(default)]
    pub foreign: Option<f64>,
    /// How often the idle receiver woke; only in the shape `idle`.
    pub wake_ups: Option<u64>,
    /// Whether the second process was killed for a system call when none was allowed.
    pub silence_broken: bool,
    /// The distribution of `times` for drawing: the time at each fraction in the results' `quantiles`. It is stored
    /// for the repetition with the median time only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<f64>,
    /// Additional results of the shape, by their name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<String, f64>,
}

impl Report {
    /// Returns the processor time of both sides for each message or round trip, in nanoseconds.
    pub fn cpu_per_message(&self) -> f64 {
        (self.spent[0].cpu + self.spent[1].cpu) as f64 / self.count.max(1) as f64
    }

    /// Returns the number of messages or round trips per second; `None` if no time was measured, as in the shape
    /// `idle`.
    pub fn per_second(&self) -> Option<f64> {
        if self.elapsed > 0 {
            Some(self.count as f64 * 1e9 / self.elapsed as f64)
        } else {
            Some(1e9 / self.times.p50).filter(|rate| rate.is_finite())
        }
    }

    /// Returns how often a side slept for each message or round trip, both sides together.
    pub fn sleeps_per_message(&self) -> f64 {
        (self.spent[0].sleeps + self.spent[1].sleeps) as f64 / self.count.max(1) as f64
    }

    /// Returns the counter `what` of both sides for each message or round trip; `None` if it cannot be counted here.
    pub fn per_message(&self, what: fn(&Spent) -> Option<u64>) -> Option<f64> {
        let sum = what(&self.spent[0])? + what(&self.spent[1])?;
        Some(sum as f64 / self.count.max(1) as f64)
    }

    /// Returns the number of memory allocations of both sides.
    pub fn allocations(&self) -> u64 {
        self.spent[0].allocations + self.spent[1].allocations
    }
}
