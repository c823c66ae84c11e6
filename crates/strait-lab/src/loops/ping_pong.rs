//! Ping-pong, a closed loop: the first process sends a message and waits until the second has answered it.

use super::parts::{Messages, Share, exchange, farewell, finish, report};
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::process::silence;
use crate::samples::Samples;
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// Runs the first process of the shape `ping-pong`: sends messages, and waits for the answer to each. `reply` is the
/// size of an answer in bytes.
pub(super) fn first(end: &mut impl Messages, work: &Work, reply: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; reply];
    let mut samples = Samples::new();
    let stride = u64::from(work.stride);
    let mut number = 1;

    let begin = clock::now();
    exchange(end, &mut message, &mut answer, 0)?;
    let first = clock::now() - begin;
    while !work.extent.is_warm(number, clock::now() - begin) {
        number = trips(end, &mut message, &mut answer, number, stride)?;
    }

    exchange(end, &mut message, &mut answer, STEADY)?;
    let gauge = Gauge::start()?;
    let farewell = farewell(work)?;
    let begin = clock::now();
    let mut then = begin;
    let mut count = 0;
    while !work.extent.is_over(count, then - begin) {
        number = trips(end, &mut message, &mut answer, number, stride)?;
        let now = clock::now();
        samples.record(now - then, stride);
        then = now;
        count += stride;
    }
    if let Some(packet) = farewell {
        exchange(end, &mut message, &mut answer, STOP)?;
        silence::farewell(&packet);
    }
    let elapsed = then - begin;
    let spent = gauge.spent()?;
    exchange(end, &mut message, &mut answer, STOP)?;

    Ok(Report { first, ..report(spent, count, elapsed, &samples) })
}

/// Makes `count` round trips with the messages numbered from `from`. Returns the number after the last one.
///
/// The round trips are in a function of their own, with a loop for each kind of check: so a loop's variables are in
/// registers, and the loop costs little beside the mechanism (`strait bench` says how much).
#[inline(never)]
fn trips(end: &mut impl Messages, message: &mut [u8], answer: &mut [u8], from: u64, count: u64) -> Result<u64> {
    if answer.len() == message.len() {
        for number in from..from + count {
            payload::stamp(message, number);
            end.send(message)?;
            end.recv(answer)?;
            payload::check(answer, number)?;
        }
    } else {
        for number in from..from + count {
            exchange(end, message, answer, number)?;
        }
    }
    Ok(from + count)
}

/// Runs the second process of the shape `ping-pong`: answers each message with its first `reply` bytes.
pub(super) fn second(end: &mut impl Messages, work: &Work, reply: usize) -> Result<Share> {
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
