//! Several processes send to the first, each as fast as it can: each through its own end, or all through one end.
//!
//! Each message carries the number of its producer and its own number. The messages of one producer must arrive in
//! order. The measured part lasts from when all send until the last producer has ended.

use std::collections::BTreeMap;

use super::parts::{Share, report};
use crate::mechanism::{End, Hub};
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload;
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// The number of bits for the message in the number of a message; the producer's number is in the bits above.
const BITS: u32 = 48;
/// The mask of the bits for the message in the number of a message.
const WHICH: u64 = (1 << BITS) - 1;
/// The message number by which a producer announces the measured part.
const BEGIN: u64 = WHICH - 1;
/// The message number by which a producer announces the end.
const END: u64 = WHICH;

/// The number of messages between two readings of the clock.
const LOOK: u64 = 1024;
/// The least duration of a timed stretch in nanoseconds.
const STRETCH: u64 = 5_000_000;

/// The end of all producers, as a [`Hub`].
#[derive(Debug)]
pub(super) struct One<E>(pub(super) E);

impl<E: End> Hub for One<E> {
    fn send(&mut self, _: usize, message: &[u8]) -> Result<()> {
        self.0.send(message)
    }

    fn recv(&mut self, buffer: &mut [u8]) -> Result<Option<usize>> {
        self.0.recv(buffer).map(|()| None)
    }
}

/// Runs the first process of the shape `producers`, which receives the messages of all producers.
pub(super) fn first(hub: &mut dyn Hub, work: &Work, producers: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut due = vec![0u64; producers];
    let mut measured = vec![None; producers];
    let mut samples = Samples::new();
    let (mut beginning, mut ended) = (0, 0);
    let mut gauge = Gauge::start()?;
    let (mut begin, mut end) = (0, 0);
    let (mut then, mut count, mut counted_to) = (0, 0, 0);
    while ended < producers {
        let from = hub.recv(&mut message)?;
        let number = payload::number(&message);
        let (who, which) = ((number >> BITS) as usize, number & WHICH);
        if who >= producers || from.is_some_and(|from| from != who) {
            return Err(Trouble::new(format!("a message of producer {who} arrived through end {from:?}")));
        }
        match which {
            BEGIN => {
                // The measured part begins when every producer has begun; messages before it belong to the warm-up.
                beginning += 1;
                if beginning == producers {
                    gauge = Gauge::start()?;
                    begin = clock::now();
                    then = begin;
                }
                measured[who] = Some(due[who]);
            }
            END => {
                end = clock::now();
                ended += 1;
            }
            _ => {
                payload::check(&message, (who as u64) << BITS | due[who])?;
                due[who] += 1;
                if beginning == producers {
                    count += 1;
                    if count % LOOK == 0 {
                        let now = clock::now();
                        if now - then >= STRETCH {
                            samples.record(now - then, count - counted_to);
                            (then, counted_to) = (now, count);
                        }
                    }
                }
            }
        }
    }
    // If a producer was done before another began, there was no time in which all sent. Then the messages of the
    // producers' own measured parts are counted.
    if count == 0 {
        (count, begin) = (measured.iter().zip(&due).map(|(from, due)| due - from.unwrap_or(*due)).sum(), 0);
    }
    let elapsed = if begin == 0 { 0 } else { end - begin };
    if samples.is_empty() && count > 0 {
        samples.record(elapsed.max(1), count);
    }
    let each: Vec<u64> = measured.iter().zip(&due).map(|(from, due)| due - from.unwrap_or(*due)).collect();
    let mut report = report(gauge.spent()?, count, elapsed, &samples);
    // How unfair the mechanism was: what the slowest producer sent, where 1 is an equal share.
    let (least, sum) = (each.iter().min().copied().unwrap_or(0), each.iter().sum::<u64>());
    report.found.insert("slowest_share".to_owned(), least as f64 * producers as f64 / sum.max(1) as f64);
    Ok(report)
}

/// Runs the producer with the number `index` in the shape `producers`.
pub(super) fn second(end: &mut impl End, work: &Work, index: usize) -> Result<Share> {
    let mut message = vec![0; work.size];
    let who = (index as u64) << BITS;
    let mut number = 0;
    let mut pour = |end: &mut _, number: &mut u64| -> Result<()> {
        for _ in 0..64 {
            payload::stamp(&mut message, who | *number);
            End::send(end, &message)?;
            *number += 1;
        }
        Ok(())
    };
    let mut mark = vec![0; work.size];
    let mut say = |end: &mut _, which: u64| -> Result<()> {
        payload::stamp(&mut mark, who | which);
        End::send(end, &mark)
    };
    let begin = clock::now();
    while !work.extent.is_warm(number, clock::now() - begin) {
        pour(end, &mut number)?;
    }
    say(end, BEGIN)?;
    let gauge = Gauge::start()?;
    let (begin, from) = (clock::now(), number);
    while !work.extent.is_over(number - from, clock::now() - begin) {
        pour(end, &mut number)?;
    }
    let spent = gauge.spent()?;
    say(end, END)?;
    Ok(Share { spent, count: number - from, found: BTreeMap::new(), ..Share::default() })
}
