//! Ping-pong, a closed loop: the first process sends a message and waits until the second has answered it.

use super::{Share, exchange, farewell, finish, payload, report};
use crate::mechanism::End;
use crate::pair::clock;
use crate::pair::gauge::Gauge;
use crate::pair::silence;
use crate::samples::Samples;
use crate::shape::payload::{STEADY, STOP};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// The first process's side of a round trip.
pub(super) fn first(end: &mut impl End, work: &Work, reply: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; reply];
    let mut samples = Samples::new();
    let stride = u64::from(work.stride);
    let mut number = 0;
    let mut trip = |end: &mut _, number| exchange(end, &mut message, &mut answer, number);

    let begin = clock::now();
    trip(end, number)?;
    let first = clock::now() - begin;
    while !work.extent.is_warm(number, clock::now() - begin) {
        for _ in 0..stride {
            number += 1;
            trip(end, number)?;
        }
    }

    trip(end, STEADY)?;
    let gauge = Gauge::start()?;
    let farewell = farewell(work)?;
    let begin = clock::now();
    let mut then = begin;
    let mut count = 0;
    while !work.extent.is_over(count, then - begin) {
        for _ in 0..stride {
            number += 1;
            trip(end, number)?;
        }
        let now = clock::now();
        samples.record(now - then, stride);
        then = now;
        count += stride;
    }
    if let Some(packet) = farewell {
        trip(end, STOP)?;
        silence::farewell(&packet);
    }
    let elapsed = then - begin;
    let spent = gauge.spent()?;
    trip(end, STOP)?;

    Ok(Report { first, ..report(spent, count, elapsed, &samples) })
}

/// The second process's side of a round trip.
pub(super) fn second(end: &mut impl End, work: &Work, reply: usize) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut due = 0;
    let untimed = Samples::new();
    let mut gauge = Gauge::start()?;
    loop {
        end.recv(&mut message)?;
        match payload::number(&message) {
            STEADY => {
                gauge = Gauge::start()?;
                farewell(work)?;
            }
            STOP => break,
            _ => {
                payload::check(&message, due)?;
                due += 1;
            }
        }
        end.send(&message[..reply])?;
    }
    finish(end, work, &message[..reply], &gauge, due, &untimed)
}
