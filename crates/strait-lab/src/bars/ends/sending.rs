//! One end at a time: to the peer, and to a third process; and what both are compared with.
//!
//! All times are one way: the message says when its sender began, by the clock that is the same in all processes.

use std::os::fd::OwnedFd;

use strait::{Channel, Options};

use super::order::Order;
use super::talk::{self, SIZE, Words, words};
use crate::mechanism::{End, Rights, Side, StraitRights, traveller};
use crate::pair::clock;
use crate::samples::Samples;
use crate::shape::payload;
use crate::trouble::{Result, While};
use crate::work::{Report, Work};

/// What goes before, to be left out: as much again, but not more than this.
fn warm_up(count: u64) -> u64 {
    count.min(500)
}

fn report(count: u64, samples: &Samples) -> Report {
    Report { count, times: samples.percentiles(), ..Report::default() }
}

/// A descriptor goes to and fro, and each process times what it receives.
pub(super) fn descriptor(order: &Order, first: bool, bare: bool, count: u64, socket: OwnedFd) -> Result<Report> {
    // The mechanisms take the description of a work of their own.
    let mechanism = if bare { crate::mechanism::Mechanism::RIGHTS } else { crate::mechanism::Mechanism::STRAIT_RIGHTS };
    let work = Work::round_trip(mechanism, SIZE, order.wait, order.placement);
    let mut descriptors = vec![socket];
    let side = if first { Side::First } else { Side::Second };
    if first {
        descriptors.push(traveller()?);
    }
    if bare {
        to_and_fro(&mut Rights::join(&work, side, descriptors)?, first, count)
    } else {
        to_and_fro(&mut StraitRights::join(&work, side, descriptors)?, first, count)
    }
}

fn to_and_fro(end: &mut impl End, first: bool, count: u64) -> Result<Report> {
    let mut samples = Samples::new();
    let warm = warm_up(count);
    let mut heard = [0; SIZE];
    for number in 0..warm + count {
        if first {
            end.send(&words(number, clock::now()))?;
        }
        end.recv(&mut heard)?;
        let now = clock::now();
        payload::check(&heard, number)?;
        if number >= warm {
            samples.record(now - talk::time_in(&heard), 1);
        }
        if !first {
            end.send(&words(number, clock::now()))?;
        }
    }
    Ok(report(count, &samples))
}

/// The first process: sends an end of a new channel, and a message through it.
pub(super) fn give(peer: &Channel, options: &Options, count: u64) -> Result<Report> {
    let warm = warm_up(count);
    let mut sends = Samples::new();
    for number in 0..warm + count {
        let (mine, theirs) = new_channel(options)?;
        let begin = clock::now();
        talk::give(peer, &words(number, begin), [theirs])?;
        let sent = clock::now();
        mine.send(&words(number, begin)).doing("the first message")?;
        if number >= warm {
            sends.record(sent - begin, 1);
        }
        // The other has closed its end before it answers: closing is none of this.
        talk::hear_number(peer, number)?;
    }
    let mut report = talk::hear_report(peer)?;
    report.found.insert("sending".to_owned(), sends.percentiles().p50);
    Ok(report)
}

/// The second process: takes it.
pub(super) fn take(peer: &Channel, count: u64) -> Result<Report> {
    hear_over_new_ends(peer, count, Answer::Afterwards)
}

/// When the one who gives ends learns that one has been taken.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    AtOnce,
    /// Once a message came through it.
    Afterwards,
}

/// Takes ends, and times what comes through each.
fn hear_over_new_ends(from: &Channel, count: u64, answer: Answer) -> Result<Report> {
    let warm = warm_up(count);
    let mut samples = Samples::new();
    let mut heard: Words = [0; SIZE];
    for number in 0..warm + count {
        let end = talk::one_end(talk::hear(from, &mut heard)?)?;
        payload::check(&heard, number)?;
        if answer == Answer::AtOnce {
            talk::say(from, number)?;
        }
        talk::hear(&end, &mut heard)?;
        let now = clock::now();
        payload::check(&heard, number)?;
        if number >= warm {
            samples.record(now - talk::time_in(&heard), 1);
        }
        drop(end);
        talk::say(from, number)?;
    }
    let report = report(count, &samples);
    talk::report(from, &report)?;
    Ok(report)
}

/// The first process: gives one end of a new channel to each of the others, who have met long since. What counts is the
/// second of these ends.
pub(super) fn acquaint(second: &Channel, third: &Channel, options: &Options, count: u64) -> Result<Report> {
    for number in 0..warm_up(count) + count {
        let (one, other) = new_channel(options)?;
        talk::give(second, &words(number, 0), [one])?;
        talk::hear_number(second, number)?;
        talk::give(third, &words(number, clock::now()), [other])?;
        talk::hear_number(second, number)?;
    }
    talk::hear_report(second)
}

/// The second process: receives through its end what the third sends.
pub(super) fn meet(first: &Channel, count: u64) -> Result<Report> {
    hear_over_new_ends(first, count, Answer::AtOnce)
}

/// The third process: sends through its end at once.
pub(super) fn greet(first: &Channel, count: u64) -> Result<Report> {
    let mut heard: Words = [0; SIZE];
    for _ in 0..warm_up(count) + count {
        let end = talk::one_end(talk::hear(first, &mut heard)?)?;
        end.send(&heard).doing("the first message")?;
    }
    Ok(Report::default())
}

pub(super) fn new_channel(options: &Options) -> Result<(Channel, Channel)> {
    Channel::pair_with(options).doing("making a channel")
}
