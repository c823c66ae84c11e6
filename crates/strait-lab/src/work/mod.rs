//! Work: the description of one measurement, which can be sent to another process.

mod report;

use std::fmt;
use std::time::Duration;

use clap::ValueEnum;
#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
use crate::placement::Placement;
use crate::shape::{Ability, Shape, Task, UNBUILT};
use crate::stats::bytes;
use crate::trouble::Result;

pub use self::report::{Calls, Counted, Report, Spent};

/// The way in which a side of a measurement waits for the other side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, ValueEnum, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
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

/// A side of a measurement: the first process, or the other processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The process that sends first, and measures.
    First,
    /// A process that answers.
    Second,
}

impl Side {
    /// Returns `(mine, theirs)` of two values: `first` belongs to the first side and `second` to the second.
    pub(crate) fn of<T>(self, first: T, second: T) -> (T, T) {
        match self {
            Self::First => (first, second),
            Self::Second => (second, first),
        }
    }
}

/// The properties of a mechanism, and the functions that run it.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    pub(crate) waits: &'static [Wait],
    pub(crate) abilities: &'static [Ability],
    pub(crate) hub_waits: &'static [Wait],
    pub(crate) most: usize,
    pub(crate) most_shared: usize,
    pub(crate) most_descriptors: usize,
    pub(crate) missing: fn() -> Option<String>,
    pub(crate) run: fn(&Work, Side) -> Result<Report>,
}

/// A way to send a message to another process: an entry of the [`CATALOGUE`](crate::CATALOGUE).
#[derive(Clone, Copy)]
pub struct Mechanism(&'static Listing);

impl Mechanism {
    /// Returns the mechanism with these properties.
    pub(crate) const fn listed(listing: &'static Listing) -> Self {
        Self(listing)
    }

    /// Returns the mechanism's name on the command line and in results.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the mechanism's name in a table.
    pub fn title(self) -> &'static str {
        self.0.title
    }

    /// Returns why the mechanism cannot do this work on any machine, if it cannot: because of the size, the way of
    /// waiting or the shape.
    pub fn unfit(self, work: &Work) -> Option<String> {
        if work.size > self.0.most {
            return Some(format!("carries {} bytes at most", self.0.most));
        }
        if !self.0.waits.contains(&work.wait) {
            return Some(format!("does not support {} waits", work.wait.name()));
        }
        match work.shape {
            Shape::Coded { value, .. } if !value.has(work.size) => {
                return Some("a struct of u8 fields has 256 or 4096 of them".to_owned());
            }
            Shape::Coded { .. } => {}
            Shape::Fidl { .. } if !work.size.is_multiple_of(8) => {
                return Some("a FIDL message has a multiple of 8 bytes".to_owned());
            }
            _ if self.0.abilities.contains(&Ability::Codec) => {
                return Some("encodes values, and sends no messages".to_owned());
            }
            _ => {}
        }
        let able = |ability: &Ability| self.0.abilities.contains(ability);
        if let Some(lacking) = work.shape.needs().iter().find(|ability| !able(ability)) {
            return Some(lacking.lacking().to_owned());
        }
        let hub = work.shape.needs().contains(&Ability::Hub);
        if hub && !self.0.hub_waits.contains(&work.wait) {
            return Some(format!("does not support {} waits for several ends", work.wait.name()));
        }
        match work.shape {
            Shape::Producers { shared: true, .. } if work.size > self.0.most_shared => Some(format!(
                "keeps only messages of up to {} bytes whole if several processes send",
                self.0.most_shared
            )),
            Shape::Descriptors { count } if usize::from(count) > self.0.most_descriptors => {
                Some(format!("carries {} descriptors in a message at most", self.0.most_descriptors))
            }
            Shape::OutOfLine { cold: true, .. } if able(&Ability::InPlace) && !able(&Ability::Fresh) => {
                Some("uses memory that is always warm".to_owned())
            }
            _ => None,
        }
    }

    /// Returns why this machine does not support the mechanism, if it does not.
    pub fn missing(self) -> Option<String> {
        (self.0.missing)()
    }

    /// Returns the ways of waiting that the mechanism supports.
    pub fn waits(self) -> &'static [Wait] {
        self.0.waits
    }

    /// Whether more than one message may be in flight.
    pub fn streams(self) -> bool {
        self.0.abilities.contains(&Ability::Stream)
    }

    /// Runs one process of the measurement `work`, on the given side, until the end.
    pub(crate) fn run(self, work: &Work, side: Side) -> Result<Report> {
        (self.0.run)(work, side)
    }
}

impl fmt::Debug for Mechanism {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.name)
    }
}

impl PartialEq for Mechanism {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Mechanism {}

impl std::hash::Hash for Mechanism {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.name.hash(state);
    }
}

impl Serialize for Mechanism {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.0.name)
    }
}

#[cfg(feature = "schema")]
impl schemars::JsonSchema for Mechanism {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Mechanism".into()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        String::json_schema(generator)
    }
}

/// One measurement: mechanism, shape and size, way of waiting, placement, and length.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
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

    /// Returns the time limit within which the work ends unless something hangs.
    ///
    /// If the number of messages is limited, the limit is half a millisecond for each message, its bytes at 100 MB/s,
    /// and its idle time; all this for each other process. A connection gets 100 ms more: connections that spin on
    /// one busy processor take some time slices each, and some libraries create files for a connection.
    pub(crate) fn longest(&self) -> Duration {
        match (self.shape, self.extent) {
            // Each channel of a mesh gets two milliseconds more: its two processes are introduced to each other.
            (Shape::Objects { task: Task::Mesh { members, .. } }, _) => {
                Duration::from_secs(35) + Duration::from_millis((members * members) as u64)
            }
            // Any other task has its own length.
            (Shape::Objects { .. }, _) => Duration::from_secs(35),
            (_, Extent::Time { warm, steady }) => Duration::from_millis(2 * warm + steady),
            (_, Extent::Count { warm, steady }) => {
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

    /// Returns the reason if this program cannot measure the work on this machine: the mechanism is missing, there are
    /// too few processors, or the program was built without the feature `suites`.
    pub fn lacking(&self) -> Option<String> {
        if !self.shape.is_built() {
            return Some(UNBUILT.to_owned());
        }
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
        match (self.shape, self.extent) {
            (Shape::InPlace, Extent::Time { .. }) => {
                return Some("needs a number of messages: give --count".to_owned());
            }
            (Shape::Idle, Extent::Count { .. }) => {
                return Some("sends no messages to count: leave out --count".to_owned());
            }
            _ => {}
        }
        if self.size < self.shape.smallest() {
            return Some(format!("needs messages of at least {} bytes", self.shape.smallest()));
        }
        self.mechanism.unfit(self)
    }

    /// Describes a task with Strait's objects.
    pub(crate) fn objects(task: Task, wait: Wait, placement: Placement) -> Self {
        Self { shape: Shape::Objects { task }, ..Self::round_trip(Mechanism::STRAIT, 56, wait, placement) }
    }

    /// Describes a stream of messages in one direction, `batch` messages in a call.
    pub fn one_way(mechanism: Mechanism, size: usize, batch: usize, wait: Wait, placement: Placement) -> Self {
        Self { shape: Shape::Stream { batch }, ..Self::round_trip(mechanism, size, wait, placement) }
    }
}

#[cfg(test)]
mod tests {
    use super::{Extent, Mechanism, Wait, Work};
    use crate::placement::Placement;
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
