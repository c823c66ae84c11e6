//! Parts of the measuring loops: the exchange of a message, shared loops of several shapes, and the reports of both
//! sides.

use std::collections::BTreeMap;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::mechanism::End;
use crate::process::gauge::Gauge;
use crate::process::{clock, control, silence};
use crate::samples::{Percentiles, Samples};
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Spent, Work};

/// The report of a process other than the first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub(crate) struct Share {
    pub(crate) spent: Spent,
    pub(crate) count: u64,
    pub(crate) times: Percentiles,
    pub(crate) curve: Vec<f64>,
    pub(crate) found: BTreeMap<String, f64>,
}

/// Sends messages and waits for messages: an end, or a handler in front of an end.
pub(super) trait Messages {
    fn send(&mut self, message: &[u8]) -> Result<()>;
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()>;
}

impl<E: End> Messages for E {
    #[inline(always)]
    fn send(&mut self, message: &[u8]) -> Result<()> {
        End::send(self, message)
    }

    #[inline(always)]
    fn recv(&mut self, buffer: &mut [u8]) -> Result<()> {
        End::recv(self, buffer)
    }
}

/// Sends the message with a number, waits for the answer and checks the answer.
#[inline(always)]
pub(super) fn exchange(end: &mut impl Messages, message: &mut [u8], answer: &mut [u8], number: u64) -> Result<()> {
    payload::stamp(message, number);
    end.send(message)?;
    end.recv(answer)?;
    if answer.len() == message.len() { payload::check(answer, number) } else { acknowledged(answer, number) }
}

/// Checks that `answer` acknowledges the message with a number.
#[inline(always)]
pub(super) fn acknowledged(answer: &[u8], number: u64) -> Result<()> {
    if payload::number(answer) == number {
        Ok(())
    } else {
        Err(Trouble::new("the acknowledgement of another message arrived"))
    }
}

/// Reads the counters of this process, and then acknowledges the end of the run. In a silent run it ends the process
/// instead of returning.
pub(super) fn finish(
    end: &mut impl Messages,
    work: &Work,
    answer: &[u8],
    gauge: &Gauge,
    count: u64,
    samples: &Samples,
) -> Result<Share> {
    if work.silent {
        end.send(answer)?;
        silence::farewell(&[]);
    }
    let share = Share::of(gauge.spent()?, count, samples);
    end.send(answer)?;
    Ok(share)
}

impl Share {
    pub(super) fn of(spent: Spent, count: u64, samples: &Samples) -> Self {
        Self { spent, count, times: samples.percentiles(), curve: samples.curve(), ..Self::default() }
    }
}

/// Builds the first process's report of a measured part that took `elapsed` nanoseconds.
pub(super) fn report(spent: Spent, count: u64, elapsed: u64, samples: &Samples) -> Report {
    Report {
        count,
        elapsed,
        times: samples.percentiles(),
        curve: samples.curve(),
        spent: [spent, Spent::default()],
        ..Report::default()
    }
}

/// In a silent run, forbids system calls from now on. Returns the packet for reporting success. It is encoded in
/// advance, since allocating memory may need a system call. Returns `None` if the run is not silent.
pub(super) fn farewell(work: &Work) -> Result<Option<Vec<u8>>> {
    if !work.silent {
        return Ok(None);
    }
    let packet = control::encode(&Ok::<_, Trouble>(Report::default()))?;
    silence::begin()?;
    Ok(Some(packet))
}

/// Measures round trips one at a time. `trip` makes the round trip of the message with the given number. The clock is
/// read after each stride of the work. Messages with the numbers [`STEADY`] and [`STOP`] announce the measured part and
/// the end.
pub(super) fn closed_loop(work: &Work, mut trip: impl FnMut(u64) -> Result<()>) -> Result<Report> {
    let stride = u64::from(work.stride);
    let mut samples = Samples::new();
    let begin = clock::now();
    trip(0)?;
    let first = clock::now() - begin;
    let mut number = 0;
    while !work.extent.is_warm(number, clock::now() - begin) {
        (number + 1..=number + stride).try_for_each(&mut trip)?;
        number += stride;
    }
    trip(STEADY)?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let (mut then, mut count) = (begin, 0);
    while !work.extent.is_over(count, then - begin) {
        (number + 1..=number + stride).try_for_each(&mut trip)?;
        number += stride;
        let now = clock::now();
        samples.record(now - then, stride);
        then = now;
        count += stride;
    }
    let spent = gauge.spent()?;
    trip(STOP)?;
    Ok(Report { first, ..report(spent, count, then - begin, &samples) })
}

/// The counters of a process that answers, from the end of its warm-up.
#[derive(Debug)]
pub(super) struct Steady {
    gauge: Gauge,
    warm_up: u64,
    done: u64,
}

impl Steady {
    /// Returns counters that begin after `warm_up` messages, at least one.
    pub(super) fn after(warm_up: u64) -> Result<Self> {
        Ok(Self { gauge: Gauge::start()?, warm_up, done: 0 })
    }

    /// Counts a message that this process has answered.
    pub(super) fn answered(&mut self) -> Result<()> {
        self.done += 1;
        if self.done == self.warm_up {
            self.gauge = Gauge::start()?;
        }
        Ok(())
    }

    /// Returns the share of this process: what it has used since its warm-up.
    pub(super) fn share(&self) -> Result<Share> {
        Ok(Share { spent: self.gauge.spent()?, ..Share::default() })
    }
}

/// Returns the number of messages in the warm-up of [`together`].
pub(super) fn warm_up(count: u64) -> u64 {
    (count / 10).max(1)
}

/// Builds the first process's report of `count` messages that were timed together.
pub(super) fn paced(count: u64, elapsed: u64, spent: Spent) -> Report {
    let mut report = Report { count, elapsed, spent: [spent, Spent::default()], ..Report::default() };
    report.times.p50 = elapsed as f64 / count.max(1) as f64;
    report
}

/// Calls `work` for a tenth of `count` as the warm-up, and then for `count`, which is timed as a whole.
pub(super) fn together(count: u64, mut work: impl FnMut(u64) -> Result<()>) -> Result<Report> {
    work(warm_up(count))?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    work(count)?;
    let elapsed = clock::now() - begin;
    Ok(paced(count, elapsed, gauge.spent()?))
}
