//! Ping-pong with descriptors in each message, which move: the sender closes its copies.
//!
//! A fixed set of descriptors goes back and forth. If a descriptor is lost, too few come back. If a descriptor stays
//! behind, a process has one too many open at the end.

use std::fs;
use std::os::fd::OwnedFd;

use super::parts::{Share, report};
use crate::mechanism::{End, traveller};
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Work};

/// Runs the first process of the shape `descriptors`: sends messages with `count` descriptors, and receives them
/// back.
pub(super) fn first(end: &mut impl End, work: &Work, count: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; work.size];
    let mut held = (0..count).map(|_| traveller()).collect::<Result<Vec<OwnedFd>>>()?;
    let mut samples = Samples::new();
    let mut number = 0;
    let mut trip = |end: &mut _, number: u64| -> Result<()> {
        payload::stamp(&mut message, number);
        End::send_with(end, &message, &mut held)?;
        End::recv_with(end, &mut answer, &mut held)?;
        payload::check(&answer, number)?;
        if held.len() == count {
            Ok(())
        } else {
            Err(Trouble::new(format!("{} of {count} descriptors came back", held.len())))
        }
    };
    let begin = clock::now();
    trip(end, number)?;
    let first = clock::now() - begin;
    while !work.extent.is_warm(number, clock::now() - begin) {
        number += 1;
        trip(end, number)?;
    }
    trip(end, STEADY)?;
    let open = open_descriptors()?;
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let (mut then, mut done) = (begin, 0);
    while !work.extent.is_over(done, then - begin) {
        number += 1;
        trip(end, number)?;
        let now = clock::now();
        samples.record(now - then, 1);
        then = now;
        done += 1;
    }
    let spent = gauge.spent()?;
    if open_descriptors()? > open {
        return Err(Trouble::new("descriptors stayed behind in the first process"));
    }
    trip(end, STOP)?;
    Ok(Report { first, ..report(spent, done, then - begin, &samples) })
}

/// Runs the second process of the shape `descriptors`: sends back every message with its descriptors.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut held = Vec::new();
    let mut gauge = Gauge::start()?;
    let mut open = usize::MAX;
    let mut due = 0;
    loop {
        end.recv_with(&mut message, &mut held)?;
        match payload::number(&message) {
            STEADY => {
                open = open_descriptors()?;
                gauge = Gauge::start()?;
            }
            STOP => break,
            _ => {
                payload::check(&message, due)?;
                due += 1;
            }
        }
        end.send_with(&message, &mut held)?;
    }
    if open_descriptors()? > open {
        return Err(Trouble::new("descriptors stayed behind in the second process"));
    }
    // The last answer returns the descriptors, which `finish` cannot send.
    let share = Share { spent: gauge.spent()?, count: due, ..Share::default() };
    end.send_with(&message, &mut held)?;
    Ok(share)
}

/// Returns the number of descriptors that this process has open.
fn open_descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd").doing("counting descriptors")?.count())
}
