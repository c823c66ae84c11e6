//! A stream: the first process sends as fast as possible, and the second measures the pace of the arriving messages.

use std::time::Duration;

use super::parts::{Share, exchange, farewell, finish, report};
use crate::mechanism::End;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::process::silence;
use crate::samples::Samples;
use crate::shape::payload::{self, SMALLEST, STEADY, STOP};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// The number of messages between two readings of the clock.
pub(super) const LOOK: u64 = 4096;
/// The least duration of a timed stretch in nanoseconds.
pub(super) const STRETCH: u64 = 5_000_000;

/// The delay after which the receiver begins.
const LATE: Duration = Duration::from_millis(10);

/// Runs the first process of the shape `stream`: sends as fast as it can, `batch` messages in a call.
pub(super) fn first(end: &mut impl End, work: &Work, batch: usize) -> Result<Report> {
    let mut messages = vec![0; work.size * batch];
    let mut mark = vec![0; work.size];
    let mut answer = [0; SMALLEST];
    let mut number = 0;

    let mut pour = |end: &mut _, number: &mut u64| -> Result<()> {
        for _ in 0..(1024 / batch).max(1) {
            for message in messages.chunks_exact_mut(work.size) {
                payload::stamp(message, *number);
                *number += 1;
            }
            End::send_batch(end, &messages, work.size)?;
        }
        Ok(())
    };

    let begin = clock::now();
    while !work.extent.is_warm(number, clock::now() - begin) {
        pour(end, &mut number)?;
    }
    exchange(end, &mut mark, &mut answer, STEADY)?;
    let gauge = Gauge::start()?;
    let farewell = farewell(work)?;
    let begin = clock::now();
    let from = number;
    while !work.extent.is_over(number - from, clock::now() - begin) {
        pour(end, &mut number)?;
    }
    let elapsed = clock::now() - begin;
    if let Some(packet) = farewell {
        exchange(end, &mut mark, &mut answer, STOP)?;
        silence::farewell(&packet);
    }
    let spent = gauge.spent()?;
    exchange(end, &mut mark, &mut answer, STOP)?;
    Ok(report(spent, number - from, elapsed, &Samples::new()))
}

/// Runs the second process of the shape `stream`: receives messages, and times stretches of them.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut samples = Samples::new();
    let mut gauge = Gauge::start()?;
    let mut due = 0;
    // The receiver begins late once, in the warm-up: a ring that grows under pressure has then grown before the
    // measured part.
    std::thread::sleep(LATE);
    let (mut then, mut counted_to) = (clock::now(), 0);
    loop {
        end.recv(&mut message)?;
        match payload::number(&message) {
            STEADY => {
                samples = Samples::new();
                gauge = Gauge::start()?;
                farewell(work)?;
                end.send(&message[..SMALLEST])?;
                (then, counted_to) = (clock::now(), due);
            }
            STOP => {
                // A stream shorter than a stretch is timed as one stretch.
                if samples.is_empty() && due > counted_to {
                    samples.record(clock::now() - then, due - counted_to);
                }
                break;
            }
            _ => {
                payload::check(&message, due)?;
                due += 1;
                if due.is_multiple_of(LOOK) {
                    let now = clock::now();
                    if now - then >= STRETCH {
                        samples.record(now - then, due - counted_to);
                        (then, counted_to) = (now, due);
                    }
                }
            }
        }
    }
    finish(end, work, &message[..SMALLEST], &gauge, due, &samples)
}
