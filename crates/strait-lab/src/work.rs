//! Work: the description of one measurement, which can be sent to another process.

use std::collections::BTreeMap;
use std::ops::AddAssign;
use std::time::Duration;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::mechanism::Mechanism;
use crate::pair::placement::Placement;
use crate::samples::Percentiles;
use crate::shape::Shape;
use crate::stats::bytes;

/// The way in which a side of a measurement waits for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// The side polls continuously, and never sleeps.
    Spin,
    /// The side spins while that pays, then sleeps.
    Adaptive,
    /// The side sleeps at once.
    Block,
}

impl Wait {
    /// Whether this way of waiting makes sense on `placement`: spinning on one processor only keeps the other side
    /// from running.
    pub fn fits(self, placement: Placement) -> bool {
        !(self == Self::Spin && matches!(placement, Placement::Same(_)))
    }

    /// Returns the name of the way of waiting for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spin => "spinning",
            Self::Adaptive => "adaptive",
            Self::Block => "blocking",
        }
    }
}

/// The length of a run: of its warm-up, and of its measured part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// The run is limited by time. Both fields are in milliseconds.
    Time {
        /// The duration of the warm-up in milliseconds. The warm-up is in no figure.
        warm: u64,
        /// The duration of the measured part in milliseconds.
        steady: u64,
    },
    /// The run is limited by the number of messages or round trips.
    Count {
        /// The number of messages or round trips in the warm-up, which is in no figure.
        warm: u64,
        /// The number of messages or round trips in the measured part.
        steady: u64,
    },
}

impl Extent {
    /// Whether the warm-up is over after `done` messages and `elapsed` nanoseconds.
    #[inline]
    pub fn is_warm(self, done: u64, elapsed: u64) -> bool {
        match self {
            Self::Time { warm, .. } => elapsed >= warm * 1_000_000,
            Self::Count { warm, .. } => done >= warm,
        }
    }

    /// Whether the measured part is over, `done` messages and `elapsed` nanoseconds after it began.
    #[inline]
    pub fn is_over(self, done: u64, elapsed: u64) -> bool {
        match self {
            Self::Time { steady, .. } => elapsed >= steady * 1_000_000,
            Self::Count { steady, .. } => done >= steady,
        }
    }
}

/// One measurement: mechanism, shape and size, way of waiting, placement, and length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// The mechanism that carries the messages.
    pub mechanism: Mechanism,
    /// The shape of the work: which process sends what, and when.
    pub shape: Shape,
    /// The size of a message in bytes, at least 8.
    pub size: usize,
    /// How each side waits.
    pub wait: Wait,
    /// The processors on which the sides run.
    pub placement: Placement,
    /// The length of the warm-up and of the measured part.
    pub extent: Extent,
    /// The number of round trips between two readings of the clock: more than one if the clock would cost as much as
    /// the message.
    pub stride: u32,
    /// The number of 64-byte slots in a ring, if the size of the ring is fixed.
    pub slots: Option<usize>,
    /// Whether any system call in the measured part ends the run.
    pub silent: bool,
}

/// The number of 64-byte slots in Strait's largest ring by default.
pub const DEFAULT_SLOTS: usize = 16_384;

impl Work {
    /// Describes a ping-pong with messages of `size` bytes in both directions, and with the default length.
    pub fn round_trip(mechanism: Mechanism, size: usize, wait: Wait, placement: Placement) -> Self {
        // Reading the clock costs up to a third of a round trip of one cache line, and must not distort the figure.
        let stride = match (wait, size) {
            (Wait::Spin, ..=256) => 64,
            (Wait::Spin, ..=4096) => 16,
            _ => 1,
        };
        Self {
            mechanism,
            shape: Shape::PingPong { reply: size },
            size,
            wait,
            placement,
            extent: Extent::Time { warm: 30, steady: 120 },
            stride,
            slots: None,
            silent: false,
        }
    }

    /// Returns the time limit in which the work ends if nothing hangs.
    ///
    /// If the number of messages is limited, this is half a millisecond for each message, its bytes at 100 MB/s, and
    /// its idle time; all that for each other process. A connection gets 100 ms more: connections that spin on one
    /// busy processor take some time slices each, and some libraries create files for a connection.
    pub(crate) fn longest(&self) -> Duration {
        match self.extent {
            Extent::Time { warm, steady } => Duration::from_millis(2 * warm + steady),
            Extent::Count { warm, steady } => {
                let silence = if let Shape::Wake { after } = self.shape { u64::from(after) * 1_000_000 } else { 0 };
                let setting_up = if self.shape == Shape::Connect { 100_000_000 } else { 0 };
                let each = 500_000 + 10 * self.size as u64 + silence + setting_up;
                Duration::from_nanos((warm + steady).saturating_mul(each * (self.shape.processes() as u64 - 1)))
            }
        }
    }

    /// Estimates how long one message of this work takes. The estimate serves only to predict the duration of a
    /// suite.
    pub(crate) fn about(&self) -> Duration {
        let far = !matches!(self.placement, Placement::Same(_)) && self.wait == Wait::Block;
        let nanoseconds = match self.shape {
            Shape::Wake { after } => 1_000_000 * u64::from(after),
            Shape::Connect => 200_000,
            Shape::Hop { .. } => 50_000,
            Shape::OutOfLine { cold: true, .. } => 50_000 + 3 * self.size as u64,
            _ if far => 40_000,
            _ if self.wait == Wait::Spin => 1_000,
            _ => 10_000,
        };
        Duration::from_nanos(nanoseconds + self.size as u64 / 2)
    }

    /// Returns why this machine cannot measure the work, if it cannot: it lacks the mechanism, or has too few
    /// processors.
    pub fn lacking(&self) -> Option<String> {
        let (processes, processors) = (self.shape.processes(), Machine::processors());
        if self.wait == Wait::Spin && processes > 2 && processes > processors {
            return Some(format!(
                "{processes} spinning processes need {processes} processors, and this machine has {processors}"
            ));
        }
        self.mechanism.missing()
    }

    /// Whether the two works are compared with each other: shape, size, waiting and placement are equal.
    pub fn is_compared_with(&self, other: &Self) -> bool {
        (self.shape, self.size, self.wait, self.placement) == (other.shape, other.size, other.wait, other.placement)
    }

    /// Whether `other` is the same case: mechanism, shape, size, waiting, kind of placement and ring size are equal.
    /// The processors and the length of the run may differ.
    pub fn is_same_case(&self, other: &Self) -> bool {
        let key = |work: &Self| (work.mechanism, work.shape, work.size, work.wait, work.placement.name(), work.slots);
        key(self) == key(other)
    }

    /// Returns a description of the work in one line.
    pub fn words(&self) -> String {
        let (shape, size) = (self.shape.words(), bytes(self.size));
        format!("{}, {shape} of {size}, {}, {}", self.mechanism.title(), self.wait.name(), self.placement.name())
    }

    /// Returns why the work cannot be measured on any machine, if it cannot: the combination makes no sense, or the
    /// mechanism cannot do it.
    pub fn unfit(&self) -> Option<String> {
        if !self.wait.fits(self.placement) {
            return Some("spinning on one processor only keeps the other side from running".to_owned());
        }
        if self.size < self.shape.smallest() {
            return Some(format!("needs messages of at least {} bytes", self.shape.smallest()));
        }
        self.mechanism.unfit(self)
    }

    /// Describes a stream of messages in one direction, `batch` messages in a call.
    pub fn one_way(mechanism: Mechanism, size: usize, batch: usize, wait: Wait, placement: Placement) -> Self {
        Self { shape: Shape::Stream { batch }, ..Self::round_trip(mechanism, size, wait, placement) }
    }
}

/// The resources that one side used in the measured part, summed over its processes and threads.
///
/// A counter that the machine does not allow is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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

impl AddAssign for Spent {
    fn add_assign(&mut self, other: Self) {
        let both = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
        *self = Self {
            cpu: self.cpu + other.cpu,
            sleeps: self.sleeps + other.sleeps,
            preempted: self.preempted + other.preempted,
            minor_faults: self.minor_faults + other.minor_faults,
            major_faults: self.major_faults + other.major_faults,
            allocations: self.allocations + other.allocations,
            calls: both(self.calls, other.calls),
            instructions: both(self.instructions, other.instructions),
            branches: both(self.branches, other.branches),
            mispredictions: both(self.mispredictions, other.mispredictions),
            instruction_misses: both(self.instruction_misses, other.instruction_misses),
        };
    }
}

/// The number of system calls for each message or round trip.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calls {
    /// The system calls of each side, for each message or round trip.
    pub sides: [f64; 2],
    /// How the system calls were counted.
    pub how: Counted,
}

/// A method that counts system calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
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

    /// Returns the number of messages or round trips per second.
    pub fn per_second(&self) -> f64 {
        if self.elapsed == 0 { 1e9 / self.times.p50 } else { self.count as f64 * 1e9 / self.elapsed as f64 }
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

#[cfg(test)]
mod tests {
    use super::{Extent, Wait, Work};
    use crate::mechanism::Mechanism;
    use crate::pair::placement::Placement;
    use crate::shape::Shape;

    #[test]
    fn a_work_survives_the_way_to_its_process() {
        let work = Work {
            shape: Shape::Stream { batch: 16 },
            slots: Some(1024),
            ..Work::round_trip(Mechanism::RING, 64, Wait::Spin, Placement::Two(0, 1))
        };
        let told = serde_json::to_string(&work).unwrap();
        assert_eq!(serde_json::from_str::<Work>(&told).unwrap(), work);
    }

    #[test]
    fn an_extent_ends_by_its_own_measure() {
        let time = Extent::Time { warm: 1, steady: 2 };
        assert!(!time.is_warm(1_000_000, 999_999));
        assert!(time.is_warm(0, 1_000_000));
        assert!(time.is_over(0, 2_000_000));
        let count = Extent::Count { warm: 3, steady: 4 };
        assert!(!count.is_warm(2, u64::MAX));
        assert!(count.is_over(4, 0));
    }

    #[test]
    fn what_cannot_be_done_is_not_asked_for() {
        let unfit = |mechanism: Mechanism, size, wait| Work::round_trip(mechanism, size, wait, Placement::Free).unfit();
        assert!(unfit(Mechanism::LINE, 64, Wait::Spin).is_some());
        assert!(unfit(Mechanism::PIPE, 64, Wait::Adaptive).is_some());
        assert!(unfit(Mechanism::FUTEX, 64, Wait::Spin).is_some());
        assert_eq!(unfit(Mechanism::STRAIT, 1 << 28, Wait::Adaptive), None);
    }
}
