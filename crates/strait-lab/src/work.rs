//! What is measured: one run of one mechanism, described so that another process can be told of it.

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

/// How a side waits for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Wait {
    /// Looks again and again, and never sleeps.
    Spin,
    /// Spins while that pays, then sleeps.
    Adaptive,
    /// Sleeps at once.
    Block,
}

impl Wait {
    /// Whether a placement makes sense: spinning on one processor only keeps the other side from running.
    pub fn fits(self, placement: Placement) -> bool {
        !(self == Self::Spin && matches!(placement, Placement::Same(_)))
    }

    /// The words for a table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spin => "spinning",
            Self::Adaptive => "adaptive",
            Self::Block => "blocking",
        }
    }
}

/// How long it goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Extent {
    /// By the clock, in milliseconds.
    Time {
        /// Excluded from all figures.
        warm: u64,
        /// What is measured.
        steady: u64,
    },
    /// By the number of messages.
    Count {
        /// Excluded from all figures.
        warm: u64,
        /// What is measured.
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

    /// Whether the measured part is over after `done` messages and `elapsed` nanoseconds of it.
    #[inline]
    pub fn is_over(self, done: u64, elapsed: u64) -> bool {
        match self {
            Self::Time { steady, .. } => elapsed >= steady * 1_000_000,
            Self::Count { steady, .. } => done >= steady,
        }
    }
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Work {
    /// By what means.
    pub mechanism: Mechanism,
    /// In which manner.
    pub shape: Shape,
    /// Bytes in a message, at least 8.
    pub size: usize,
    /// How each side waits.
    pub wait: Wait,
    /// Where each side runs.
    pub placement: Placement,
    /// For how long.
    pub extent: Extent,
    /// Round trips between two looks at the clock: more than one where the clock would cost as much as the message.
    pub stride: u32,
    /// Slots of 64 bytes in a ring, where the size of the ring is fixed.
    pub slots: Option<usize>,
    /// Whether any system call in the measured part ends the run.
    pub silent: bool,
}

/// The number of slots of Strait's largest ring, if it is not told otherwise.
pub const DEFAULT_SLOTS: usize = 16_384;

impl Work {
    /// A round trip of `size` bytes there and back.
    pub fn round_trip(mechanism: Mechanism, size: usize, wait: Wait, placement: Placement) -> Self {
        // Reading the clock costs as much as a third of a round trip of one cache line, and shall not show.
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

    /// How long it can take if nothing hangs: of what is counted, half a millisecond each, and the bytes at 100 MB/s. Connections
    /// that spin on one busy processor take some of its time slices each, and those of some libraries make files.
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

    /// About how long one message of it takes: only good enough to say how long a suite does.
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

    /// Why it cannot be measured on this machine, if it cannot: what the mechanism lacks, or the processors.
    pub fn lacking(&self) -> Option<String> {
        let (processes, processors) = (self.shape.processes(), Machine::processors());
        if self.wait == Wait::Spin && processes > 2 && processes > processors {
            return Some(format!("{processes} spinning processes need as many processors, and here are {processors}"));
        }
        self.mechanism.missing()
    }

    /// Whether only the mechanism is another.
    pub fn is_compared_with(&self, other: &Self) -> bool {
        (self.shape, self.size, self.wait, self.placement) == (other.shape, other.size, other.wait, other.placement)
    }

    /// Whether it is the same measurement, perhaps on other processors of the same arrangement and for another time.
    pub fn is_same_case(&self, other: &Self) -> bool {
        let key = |work: &Self| (work.mechanism, work.shape, work.size, work.wait, work.placement.name(), work.slots);
        key(self) == key(other)
    }

    /// All of it in a line.
    pub fn words(&self) -> String {
        let (shape, size) = (self.shape.words(), bytes(self.size));
        format!("{}, {shape} of {size}, {}, {}", self.mechanism.title(), self.wait.name(), self.placement.name())
    }

    /// Why the mechanism cannot do this here, if it cannot. Says nothing of the machine.
    pub fn unfit(&self) -> Option<String> {
        if !self.wait.fits(self.placement) {
            return Some("spinning on one processor only keeps the other side from running".to_owned());
        }
        if self.size < self.shape.smallest() {
            return Some(format!("takes messages of at least {} bytes", self.shape.smallest()));
        }
        self.mechanism.unfit(self)
    }

    /// A stream of messages in one direction.
    pub fn one_way(mechanism: Mechanism, size: usize, batch: usize, wait: Wait, placement: Placement) -> Self {
        Self { shape: Shape::Stream { batch }, ..Self::round_trip(mechanism, size, wait, placement) }
    }
}

/// What one side used up in the measured part, by all of its processes and threads together.
///
/// What the machine does not let be counted is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Spent {
    /// Processor time in nanoseconds.
    pub cpu: u64,
    /// How often it went to sleep and was woken: voluntary context switches.
    pub sleeps: u64,
    /// How often it was taken off its processor: involuntary context switches.
    pub preempted: u64,
    /// Page faults that needed no reading.
    pub minor_faults: u64,
    /// Page faults that waited for a device.
    pub major_faults: u64,
    /// Memory allocations.
    pub allocations: u64,
    /// System calls, by the kernel's tracepoint.
    pub calls: Option<u64>,
    /// Instructions in user space.
    pub instructions: Option<u64>,
    /// Branches in user space.
    pub branches: Option<u64>,
    /// Branches that the processor did not foresee.
    pub mispredictions: Option<u64>,
    /// Misses of the first instruction cache.
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

/// How many system calls a message costs, from runs of their own.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Calls {
    /// Of each side, per message or round trip.
    pub sides: [f64; 2],
    /// How they were counted.
    pub how: Counted,
}

/// How system calls are counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Counted {
    /// By the kernel's tracepoint, in the measured part itself.
    Tracepoint,
    /// In two runs of their own under `ptrace`, one longer than the other: their difference. The calls are slower there, so
    /// whoever polls by system calls, or spins for a while and then sleeps, is counted as it does with slow calls.
    Ptrace,
}

/// What a run found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Report {
    /// Messages (one way) or round trips in the measured part.
    pub count: u64,
    /// How long the measured part took, in nanoseconds.
    #[serde(default)]
    pub elapsed: u64,
    /// The distribution of the measured quantity, in nanoseconds: a round trip; the pace of a stream per message, by
    /// stretches of 5 milliseconds; or the way from commit to the reader's first byte.
    pub times: Percentiles,
    /// What each side spent.
    pub spent: [Spent; 2],
    /// How long it took to connect, in nanoseconds.
    pub connect: u64,
    /// How long the very first round trip took, in nanoseconds.
    pub first: u64,
    /// The bare cache-line round trip on the same processors in the same processes, just before and just after.
    pub probes: Vec<f64>,
    /// The share of all processors' time that others used meanwhile, from 0 to 1.
    #[serde(default)]
    pub foreign: Option<f64>,
    /// How often the idle receiver woke.
    pub wake_ups: Option<u64>,
    /// The second process was killed for a system call when none was allowed.
    pub silence_broken: bool,
    /// The distribution of `times` once more, for drawing: the time at each of the results' `quantiles`. Kept of the
    /// repetition with the median time only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub curve: Vec<f64>,
    /// What else was found, by name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub found: BTreeMap<String, f64>,
}

impl Report {
    /// Processor time of both sides per message, in nanoseconds.
    pub fn cpu_per_message(&self) -> f64 {
        (self.spent[0].cpu + self.spent[1].cpu) as f64 / self.count.max(1) as f64
    }

    /// Messages or round trips a second.
    pub fn per_second(&self) -> f64 {
        if self.elapsed == 0 { 1e9 / self.times.p50 } else { self.count as f64 * 1e9 / self.elapsed as f64 }
    }

    /// How often a side slept, per message.
    pub fn sleeps_per_message(&self) -> f64 {
        (self.spent[0].sleeps + self.spent[1].sleeps) as f64 / self.count.max(1) as f64
    }

    /// Something that both sides spent, per message; `None` if it cannot be counted here.
    pub fn per_message(&self, what: fn(&Spent) -> Option<u64>) -> Option<f64> {
        let sum = what(&self.spent[0])? + what(&self.spent[1])?;
        Some(sum as f64 / self.count.max(1) as f64)
    }

    /// Memory allocations of both sides.
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
