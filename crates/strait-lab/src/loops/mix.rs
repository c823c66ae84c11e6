//! Messages with the sizes of Chrome's messages in an hour of browsing, there and back or one way.
//!
//! Both sides shuffle the same deck, with every size of the published histogram as often as in the histogram. They go
//! through the deck again and again. So the receiver knows the size of the next message.

use super::parts::{Share, exchange, finish, report};
use crate::mechanism::End;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::chrome::{CHROME, LARGEST};
use crate::shape::payload::{self, SMALLEST, STEADY, STOP};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// The random seed of the deck. It is fixed, so every run sends the same sizes.
const SEED: u64 = 37_573;

/// Returns the message sizes in bytes, in sending order.
fn deck() -> Vec<u16> {
    let mut random = fastrand::Rng::with_seed(SEED);
    let mut deck = Vec::new();
    for pair in CHROME.windows(2) {
        let ((least, count), (next, _)) = (pair[0], pair[1]);
        deck.extend((0..count).map(|_| random.usize(least..next) as u16));
    }
    random.shuffle(&mut deck);
    deck
}

/// The message sizes of a run, which both processes draw alike.
#[derive(Debug)]
struct Sizes {
    deck: Vec<u16>,
}

impl Sizes {
    fn new() -> Self {
        Self { deck: deck() }
    }

    /// Returns the size of message `number` in bytes.
    #[inline(always)]
    fn of(&self, number: u64) -> usize {
        self.deck[number as usize % self.deck.len()].into()
    }
}

/// Runs the first process of the shape `mix`: sends messages, and unless `stream` is set receives each of them back.
pub(super) fn first(end: &mut impl End, work: &Work, stream: bool) -> Result<Report> {
    let sizes = Sizes::new();
    let mut answer = vec![0; LARGEST];
    let mut samples = Samples::new();
    let mut number = 0;
    // A mark (begin or end of the measured part) has the size of the message that is due.
    let mark = |end: &mut _, due: u64, mark: u64| exchange(end, &mut vec![0; sizes.of(due)], &mut [0; SMALLEST], mark);
    let mut message = vec![0; LARGEST];
    let mut step = |end: &mut _, number: u64| -> Result<()> {
        let message = &mut message[..sizes.of(number)];
        if stream {
            payload::stamp(message, number);
            End::send(end, message)
        } else {
            exchange(end, message, &mut answer[..sizes.of(number)], number)
        }
    };
    // In a stream the second process measures the time.
    let stride = if stream { 256 } else { 1 };
    let begin = clock::now();
    while !work.extent.is_warm(number, clock::now() - begin) {
        for _ in 0..stride {
            step(end, number)?;
            number += 1;
        }
    }
    mark(end, number, STEADY)?;
    let gauge = Gauge::start()?;
    let (begin, from) = (clock::now(), number);
    let mut then = begin;
    while !work.extent.is_over(number - from, then - begin) {
        for _ in 0..stride {
            step(end, number)?;
            number += 1;
        }
        let now = clock::now();
        if !stream {
            samples.record(now - then, stride);
        }
        then = now;
    }
    let spent = gauge.spent()?;
    mark(end, number, STOP)?;
    let bytes: u64 = (from..number).map(|number| sizes.of(number) as u64).sum();
    let mut report = report(spent, number - from, then - begin, &samples);
    report.found.insert("bytes_per_message".to_owned(), bytes as f64 / (number - from).max(1) as f64);
    Ok(report)
}

/// Runs the second process of the shape `mix`: receives messages, and unless `stream` is set sends each of them back.
pub(super) fn second(end: &mut impl End, work: &Work, stream: bool) -> Result<Share> {
    let sizes = Sizes::new();
    let mut message = vec![0; LARGEST];
    let mut samples = Samples::new();
    let mut gauge = Gauge::start()?;
    let mut due = 0;
    let (mut then, mut counted_to) = (clock::now(), 0);
    loop {
        let message = &mut message[..sizes.of(due)];
        end.recv(message)?;
        match payload::number(message) {
            STEADY => {
                samples = Samples::new();
                gauge = Gauge::start()?;
                end.send(&message[..SMALLEST])?;
                (then, counted_to) = (clock::now(), due);
            }
            STOP => {
                if stream && samples.is_empty() && due > counted_to {
                    samples.record(clock::now() - then, due - counted_to);
                }
                break;
            }
            _ => {
                payload::check(message, due)?;
                due += 1;
                if !stream {
                    end.send(message)?;
                } else if due.is_multiple_of(super::stream::LOOK) {
                    let now = clock::now();
                    if now - then >= super::stream::STRETCH {
                        samples.record(now - then, due - counted_to);
                        (then, counted_to) = (now, due);
                    }
                }
            }
        }
    }
    finish(end, work, &STOP.to_le_bytes(), &gauge, due, &samples)
}

#[cfg(test)]
mod tests {
    use super::{CHROME, LARGEST, deck};

    #[test]
    fn the_deck_is_the_histogram() {
        let deck = deck();
        assert_eq!(deck.len(), 37_573);
        for pair in CHROME.windows(2) {
            let ((least, count), (next, _)) = (pair[0], pair[1]);
            assert_eq!(deck.iter().filter(|&&size| (least..next).contains(&usize::from(size))).count(), count);
        }
        let share = |below: usize| deck.iter().filter(|&&size| usize::from(size) < below).count() as f64 / 37_573.0;
        assert!((share(65) - 0.90).abs() < 0.001 && share(2400) > 0.999);
        assert_eq!(usize::from(*deck.iter().max().unwrap()).max(LARGEST), LARGEST);
        // The document states a mean of 86.4 bytes.
        let mean = deck.iter().map(|&size| f64::from(size)).sum::<f64>() / 37_573.0;
        assert!((80.0..95.0).contains(&mean), "{mean}");
    }
}
