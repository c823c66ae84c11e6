//! Open loop: each message is sent when it is due, whether or not the previous message was received.
//!
//! The first part sends as fast as possible, to measure the present capacity of the two processes. Then messages are
//! due at random intervals, whose mean gives the requested load. Each message carries its *due* time; its time counts
//! from then until the second process has the whole message. If the sender is late, because the mechanism is full or
//! the sender did not run, the delay counts for every waiting message: a backlog cannot hide.
//!
//! Between two messages the sender reads the clock, and yields on a shared processor. The sender never sleeps, since
//! timers are coarser than the measured times. So the processor time of the sender means nothing; that of the receiver
//! does.

use super::parts::{Share, exchange, finish, report};
use crate::mechanism::End;
use crate::placement::Placement;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, SMALLEST, STEADY, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Extent, Report, Work};

/// The number of random intervals that are drawn before the run; they are used again and again.
const DRAWN: usize = 8192;

/// The delay in nanoseconds after which a sender at a fixed rate gives up.
const HOPELESS: u64 = 1_000_000_000;
/// The share of a fixed rate that must really be sent. Below it the mechanism is reported as limited.
const KEPT_UP: f64 = 0.9;

/// The load that the sender is to offer.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// A share of the capacity, in percent.
    Share(u8),
    /// A fixed rate, in messages per second.
    Rate(u32),
}

/// The sender's schedule: when each message is due.
#[derive(Debug)]
struct Pace {
    /// The intervals between messages, in picoseconds.
    gaps: Vec<u64>,
    /// The time at which the latest scheduled message is due, in picoseconds since `begin`.
    due: u64,
    begin: u64,
    shares_a_processor: bool,
}

impl Pace {
    /// Returns the schedule without waiting, which sends as fast as possible.
    fn capacity(work: &Work) -> Self {
        Self::with_gaps(vec![0], work)
    }

    /// Returns a schedule with a message every `mean` nanoseconds on average, at random intervals.
    fn random(mean: f64, work: &Work) -> Self {
        let mut random = fastrand::Rng::with_seed(0x0b5e_55ed);
        let drawn: Vec<f64> = (0..DRAWN).map(|_| -(1.0 - random.f64()).ln()).collect();
        // The mean of the drawn intervals differs a little from 1.
        let scale = mean * 1000.0 * DRAWN as f64 / drawn.iter().sum::<f64>();
        Self::with_gaps(drawn.iter().map(|gap| (gap * scale) as u64).collect(), work)
    }

    fn with_gaps(gaps: Vec<u64>, work: &Work) -> Self {
        let shares_a_processor = !matches!(work.placement, Placement::Two(..));
        Self { gaps, due: 0, begin: clock::now(), shares_a_processor }
    }

    /// Waits until message `index` is due. Returns the due time of the message, and the lateness, both in nanoseconds.
    #[inline(always)]
    fn wait(&mut self, index: u64) -> (u64, u64) {
        let gap = self.gaps[index as usize % self.gaps.len()];
        self.due += gap;
        let due = self.begin + self.due / 1000;
        loop {
            let now = clock::now();
            if now >= due {
                // Without a schedule a message is due when the sender is ready to send it.
                return if gap == 0 && self.gaps.len() == 1 { (now, 0) } else { (due, now - due) };
            }
            if self.shares_a_processor {
                std::thread::yield_now();
            } else {
                std::hint::spin_loop();
            }
        }
    }
}

/// Runs the first process of the shapes `open-loop` and `paced`: sends messages when due.
pub(super) fn first(end: &mut impl End, work: &Work, load: Load) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = [0; SMALLEST];
    let mut number = 0;
    let mut late = 0;
    let mut send = |end: &mut _, pace: &mut Pace, number: u64, late: &mut u64| -> Result<()> {
        let (due, behind) = pace.wait(number);
        *late = behind.max(*late);
        payload::stamp(&mut message, number);
        put_time(&mut message, due);
        End::send(end, &message)
    };

    // The first exchange waits until the receiver has caught up. Memory that grows under pressure has grown by then.
    let mut mark = vec![0; work.size];
    let mut pace = Pace::capacity(work);
    let extent = capacity_extent(work.extent);
    while !extent.is_warm(number, clock::now() - pace.begin) {
        send(end, &mut pace, number, &mut late)?;
        number += 1;
    }
    exchange(end, &mut mark, &mut answer, STEADY)?;
    let (begin, from) = (clock::now(), number);
    let mut pace = Pace::capacity(work);
    while !extent.is_over(number - from, clock::now() - begin) {
        send(end, &mut pace, number, &mut late)?;
        number += 1;
    }
    exchange(end, &mut mark, &mut answer, STEADY)?;
    let capacity = (number - from) as f64 * 1e9 / (clock::now() - begin) as f64;

    let offered = match load {
        Load::Share(percent) => capacity * f64::from(percent) / 100.0,
        Load::Rate(rate) => rate.into(),
    };
    let gauge = Gauge::start()?;
    let from = number;
    late = 0;
    let mut pace = Pace::random(1e9 / offered, work);
    let begin = pace.begin;
    while !work.extent.is_over(number - from, pace.due / 1000) {
        send(end, &mut pace, number, &mut late)?;
        number += 1;
        if late > HOPELESS && matches!(load, Load::Rate(_)) {
            break;
        }
    }
    let elapsed = clock::now() - begin;
    // A backlog that grows without bound has no distribution.
    let taken = (number - from) as f64 * 1e9 / elapsed as f64;
    if matches!(load, Load::Rate(_)) && taken < KEPT_UP * offered {
        return Err(Trouble::limit(format!("sent {taken:.0} of {offered:.0} messages per second")));
    }
    let spent = gauge.spent()?;
    exchange(end, &mut mark, &mut answer, STOP)?;

    let mut report = report(spent, number - from, elapsed, &Samples::new());
    report.found.insert("capacity".to_owned(), capacity);
    report.found.insert("offered".to_owned(), offered);
    report.found.insert("latest_ns".to_owned(), late as f64);
    Ok(report)
}

/// Returns the extent of the part for measuring the capacity, as long as the warm-up.
fn capacity_extent(extent: Extent) -> Extent {
    match extent {
        Extent::Time { warm, .. } => Extent::Time { warm, steady: warm.max(1) },
        Extent::Count { warm, .. } => Extent::Count { warm, steady: warm.max(1) },
    }
}

/// Runs the second process of the shapes `open-loop` and `paced`, which receives and measures how long each message
/// took.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut samples = Samples::new();
    let mut gauge = Gauge::start()?;
    let mut due = 0;
    loop {
        end.recv(&mut message)?;
        let now = clock::now();
        match payload::number(&message) {
            STEADY => {
                samples = Samples::new();
                end.send(&message[..SMALLEST])?;
                gauge = Gauge::start()?;
            }
            STOP => break,
            _ => {
                payload::check(&message, due)?;
                due += 1;
                samples.record(now.saturating_sub(time(&message)), 1);
            }
        }
    }
    finish(end, work, &message[..SMALLEST], &gauge, due, &samples)
}

/// Writes `time` into `message`, after the message's number.
#[inline(always)]
pub(super) fn put_time(message: &mut [u8], time: u64) {
    if let Some(place) = message.get_mut(8..16) {
        place.copy_from_slice(&time.to_le_bytes());
    }
}

/// Returns the time that `put_time` wrote.
#[inline(always)]
pub(super) fn time(message: &[u8]) -> u64 {
    message[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::{Pace, put_time, time};
    use crate::placement::Placement;
    use crate::process::clock;
    use crate::work::{Mechanism, Wait, Work};

    fn work() -> Work {
        Work::round_trip(Mechanism::PIPE, 64, Wait::Block, Placement::Free)
    }

    #[test]
    fn random_gaps_have_the_mean_that_was_asked_for() {
        let pace = Pace::random(250.0, &work());
        let mean = pace.gaps.iter().sum::<u64>() as f64 / pace.gaps.len() as f64;
        assert!((mean / 1000.0 - 250.0).abs() < 1.0, "{mean}");
        let longer = pace.gaps.iter().filter(|&&gap| gap > 250_000).count() as f64 / pace.gaps.len() as f64;
        // In an exponential distribution a share of 1/e lies above the mean.
        assert!((longer - 0.368).abs() < 0.03, "{longer}");
    }

    #[test]
    fn what_is_sent_late_counts_from_when_it_was_due() {
        let mut pace = Pace::random(1e6, &work());
        pace.begin -= 60_000_000_000;
        let before = clock::now();
        let (due, late) = pace.wait(0);
        assert!(due < before && late > 1_000_000_000, "{late}");
    }

    #[test]
    fn a_time_lies_beside_the_number() {
        let mut message = [0; 24];
        crate::shape::stamp(&mut message, 77);
        put_time(&mut message, u64::MAX - 5);
        assert_eq!(time(&message), u64::MAX - 5);
        assert!(crate::shape::payload::check(&message, 77).is_ok());
    }
}
