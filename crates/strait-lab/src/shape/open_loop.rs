//! Open loop: messages are sent when they are due, whether or not the last one has been taken.
//!
//! The first part sends as fast as it can, which is the capacity of just these two processes, just now; then messages are
//! due at random intervals, whose mean is what the load asks for. Each carries the time at which it was *due*, and is
//! timed from then until the second process has it whole. Where the sender is late, because the way is full or it
//! did not run, all that waited behind has that wait in its time: a backlog cannot hide.
//!
//! Between two messages the sender looks at the clock and lets others run who want its processor, but never sleeps,
//! since timers are coarser than what is measured. So its processor time says nothing; that of the receiver does.

use super::{Share, exchange, finish, payload, report};
use crate::mechanism::End;
use crate::pair::clock;
use crate::pair::gauge::Gauge;
use crate::pair::placement::Placement;
use crate::samples::Samples;
use crate::shape::payload::{SMALLEST, STEADY, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Extent, Report, Work};

/// So many random intervals are drawn before, and used again and again.
const DRAWN: usize = 8192;

/// A sender that is so many nanoseconds late will not catch up.
const HOPELESS: u64 = 1_000_000_000;
/// The part of a rate that must have been sent in its time.
const KEPT_UP: f64 = 0.9;

/// How much is asked for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Load {
    /// So many percent of the capacity.
    Share(u8),
    /// So many messages a second.
    Rate(u32),
}

/// The sender's schedule and what came of it.
#[derive(Debug)]
struct Pace {
    /// Nanoseconds from one message to the next, in thousandths.
    gaps: Vec<u64>,
    /// When the next is due, in thousandths of nanoseconds since the beginning.
    due: u64,
    begin: u64,
    shares_a_processor: bool,
}

impl Pace {
    /// No waiting at all.
    fn capacity(work: &Work) -> Self {
        Self::with_gaps(vec![0], work)
    }

    /// A message every `mean` nanoseconds, at random.
    fn random(mean: f64, work: &Work) -> Self {
        let mut random = fastrand::Rng::with_seed(0x0b5e_55ed);
        let drawn: Vec<f64> = (0..DRAWN).map(|_| -(1.0 - random.f64()).ln()).collect();
        // What was drawn has not quite the mean that it should.
        let scale = mean * 1000.0 * DRAWN as f64 / drawn.iter().sum::<f64>();
        Self::with_gaps(drawn.iter().map(|gap| (gap * scale) as u64).collect(), work)
    }

    fn with_gaps(gaps: Vec<u64>, work: &Work) -> Self {
        let shares_a_processor = !matches!(work.placement, Placement::Two(..));
        Self { gaps, due: 0, begin: clock::now(), shares_a_processor }
    }

    /// Waits until message `index` is due, and says since when that is so and how late it is.
    #[inline(always)]
    fn wait(&mut self, index: u64) -> (u64, u64) {
        let gap = self.gaps[index as usize % self.gaps.len()];
        self.due += gap;
        let due = self.begin + self.due / 1000;
        loop {
            let now = clock::now();
            if now >= due {
                // Without a pace it is due just now.
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

/// The first process's side: sends.
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

    // The receiver begins late once, and what grows under pressure has then grown.
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
    // A backlog that grows without end has no distribution.
    let taken = (number - from) as f64 * 1e9 / elapsed as f64;
    if matches!(load, Load::Rate(_)) && taken < KEPT_UP * offered {
        return Err(Trouble::limit(format!("took {taken:.0} messages a second where {offered:.0} were due")));
    }
    let spent = gauge.spent()?;
    exchange(end, &mut mark, &mut answer, STOP)?;

    let mut report = report(spent, number - from, elapsed, &Samples::new());
    report.found.insert("capacity".to_owned(), capacity);
    report.found.insert("offered".to_owned(), offered);
    report.found.insert("latest_ns".to_owned(), late as f64);
    Ok(report)
}

/// The capacity takes as long as the warm-up.
fn capacity_extent(extent: Extent) -> Extent {
    match extent {
        Extent::Time { warm, .. } => Extent::Time { warm, steady: warm.max(1) },
        Extent::Count { warm, .. } => Extent::Count { warm, steady: warm.max(1) },
    }
}

/// The second process's side: receives, and looks how long each message took.
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

/// Writes a time behind the number of `message`.
#[inline(always)]
pub(super) fn put_time(message: &mut [u8], time: u64) {
    if let Some(place) = message.get_mut(8..16) {
        place.copy_from_slice(&time.to_le_bytes());
    }
}

/// The time that `put_time` wrote.
#[inline(always)]
pub(super) fn time(message: &[u8]) -> u64 {
    message[8..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::{Pace, put_time, time};
    use crate::mechanism::Mechanism;
    use crate::pair::clock;
    use crate::pair::placement::Placement;
    use crate::work::{Wait, Work};

    fn work() -> Work {
        Work::round_trip(Mechanism::PIPE, 64, Wait::Block, Placement::Free)
    }

    #[test]
    fn random_gaps_have_the_mean_that_was_asked_for() {
        let pace = Pace::random(250.0, &work());
        let mean = pace.gaps.iter().sum::<u64>() as f64 / pace.gaps.len() as f64;
        assert!((mean / 1000.0 - 250.0).abs() < 1.0, "{mean}");
        let longer = pace.gaps.iter().filter(|&&gap| gap > 250_000).count() as f64 / pace.gaps.len() as f64;
        // Of an exponential distribution 1/e lies above its mean.
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
