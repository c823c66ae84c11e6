//! Fan-out: the first process sends each message to several others, and waits until all have acknowledged it.
//!
//! The others answer as in a [ping-pong](super::ping_pong).

use super::parts::{acknowledged, report};
use crate::mechanism::Hub;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, SMALLEST, STEADY, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// Runs the first process of the shape `fan-out`. It times and counts rounds: a message to each of the `receivers`,
/// and the acknowledgements of all.
pub(super) fn first(hub: &mut dyn Hub, work: &Work, receivers: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut samples = Samples::new();
    let mut number = 0;
    let mut round = |number: u64| -> Result<()> {
        payload::stamp(&mut message, number);
        for to in 0..receivers {
            hub.send(to, &message)?;
        }
        let mut answer = [0; SMALLEST];
        let mut seen = 0u64;
        for _ in 0..receivers {
            let from = hub.recv(&mut answer)?.ok_or_else(|| Trouble::new("an acknowledgement has no sender"))?;
            acknowledged(&answer, number)?;
            seen |= 1 << from;
        }
        if seen.count_ones() as usize == receivers {
            Ok(())
        } else {
            Err(Trouble::new("one receiver acknowledged twice, and another never"))
        }
    };

    let begin = clock::now();
    round(number)?;
    let first = clock::now() - begin;
    while !work.extent.is_warm(number, clock::now() - begin) {
        number += 1;
        round(number)?;
    }
    round(STEADY)?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let (mut then, mut count) = (begin, 0);
    while !work.extent.is_over(count, then - begin) {
        number += 1;
        round(number)?;
        let now = clock::now();
        samples.record(now - then, 1);
        then = now;
        count += 1;
    }
    let spent = gauge.spent()?;
    round(STOP)?;
    Ok(Report { first, ..report(spent, count, then - begin, &samples) })
}
