//! Ping-pong after idle time: both processes have been idle for a while when the message is sent, and the second
//! sleeps as deeply as its way of waiting allows.

use std::time::Duration;

use super::open_loop;
use super::parts::{Share, exchange, finish, report};
use crate::mechanism::End;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::Result;
use crate::work::{Report, Work};

/// Runs the first process of the shape `wake`: makes round trips, each after `after` milliseconds of idle time.
pub(super) fn first(end: &mut impl End, work: &Work, after: u32) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; work.size];
    let mut samples = Samples::new();
    let silence = Duration::from_millis(after.into());
    let mut trip = |end: &mut _, number: u64| -> Result<u64> {
        if after > 0 {
            std::thread::sleep(silence);
        }
        let then = clock::now();
        open_loop::put_time(&mut message, then);
        exchange(end, &mut message, &mut answer, number)?;
        Ok(clock::now() - then)
    };
    let mut number = 0;
    let begin = clock::now();
    let first = trip(end, number)?;
    while !work.extent.is_warm(number, clock::now() - begin) {
        number += 1;
        trip(end, number)?;
    }
    trip(end, STEADY)?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let (mut busy, mut count) = (0, 0);
    while !work.extent.is_over(count, clock::now() - begin) {
        number += 1;
        let taken = trip(end, number)?;
        samples.record(taken, 1);
        busy += taken;
        count += 1;
    }
    let spent = gauge.spent()?;
    trip(end, STOP)?;
    // The rate per second leaves out the idle time.
    Ok(Report { first, ..report(spent, count, busy, &samples) })
}

/// Runs the second process of the shape `wake`: answers, and measures how long each message was on its way.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut way = Samples::new();
    let mut due = 0;
    let mut gauge = Gauge::start()?;
    loop {
        end.recv(&mut message)?;
        let taken = clock::now().saturating_sub(open_loop::time(&message));
        match payload::number(&message) {
            STEADY => {
                gauge = Gauge::start()?;
                way = Samples::new();
            }
            STOP => break,
            _ => {
                payload::check(&message, due)?;
                due += 1;
                way.record(taken, 1);
            }
        }
        end.send(&message)?;
    }
    let mut share = finish(end, work, &message, &gauge, due, &Samples::new())?;
    share.found.insert("way_there_ns".to_owned(), way.percentiles().p50);
    Ok(share)
}
