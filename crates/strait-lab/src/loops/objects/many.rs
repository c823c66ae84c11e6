//! Many ends: channels made and sent in sequence, and ends going back and forth.

use strait::{Channel, Options};

use super::super::parts::Share;
use super::sending::new_channel;
use super::talk::{self, SIZE, Words, words};
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Spent};

/// The number of channels or messages that are timed together.
const STRETCH: u64 = 100;

/// Runs the first process of the task `Open`: makes channels, sends one end of each, and a message through each.
pub(super) fn open(peer: &Channel, options: &Options, channels: usize, batch: usize) -> Result<Report> {
    // Both processes have used the link and a channel once before the measured part.
    let (mine, theirs) = new_channel(options)?;
    talk::give(peer, &words(0, 0), [theirs])?;
    talk::say(&mine, 0)?;
    talk::hear_number(peer, 0)?;

    let mut all = Vec::with_capacity(channels);
    let mut given = Vec::with_capacity(batch);
    let gauge = Gauge::start()?;
    let begin = clock::now();
    while all.len() < channels {
        let from = all.len();
        for _ in 0..batch.min(channels - from) {
            let (mine, theirs) = new_channel(options)?;
            all.push(mine);
            given.push(theirs);
        }
        talk::give(peer, &words(from as u64, 0), given.drain(..))?;
        for (number, mine) in all.iter().enumerate().skip(from) {
            talk::say(mine, number as u64)?;
        }
    }
    let sent = clock::now();
    talk::hear_number(peer, STOP)?;
    let end = clock::now();
    let spent = gauge.spent()?;
    let mut report = Report { count: channels as u64, spent: [spent, Spent::default()], ..Report::default() };
    let before = clock::now();
    drop(all);
    for (name, time) in [("each", end - begin), ("sending", sent - begin), ("closing", clock::now() - before)] {
        report.found.insert(name.to_owned(), time as f64 / channels as f64);
    }
    Ok(report)
}

/// Runs the second process of the task `Open`: receives a message through each end.
pub(super) fn accept(peer: &Channel, channels: usize) -> Result<Share> {
    let mut heard: Words = [0; SIZE];
    let first = talk::one_end(talk::hear(peer, &mut heard)?)?;
    talk::hear_number(&first, 0)?;
    talk::say(peer, 0)?;

    let mut all = Vec::with_capacity(channels);
    let mut samples = Samples::new();
    let mut then = 0;
    let gauge = Gauge::start()?;
    while all.len() < channels {
        let ends = talk::ends(talk::hear(peer, &mut heard)?)?;
        if then == 0 {
            then = clock::now();
        }
        for end in ends {
            talk::hear_number(&end, all.len() as u64)?;
            all.push(end);
            if (all.len() as u64).is_multiple_of(STRETCH) {
                let now = clock::now();
                samples.record(now - then, STRETCH);
                then = now;
            }
        }
    }
    talk::say(peer, STOP)?;
    let spent = gauge.spent()?;
    Ok(Share { count: channels as u64, times: samples.percentiles(), spent, ..Share::default() })
}

/// Runs the first process of the task `Pass`: sends ends and receives them back.
pub(super) fn pass(peer: &Channel, options: &Options, crossings: usize, ends: usize, window: usize) -> Result<Report> {
    let mut heard: Words = [0; SIZE];
    let mut mine = Vec::new();
    let mut theirs = Vec::new();
    for _ in 0..window * ends {
        let (one, other) = new_channel(options)?;
        mine.push(one);
        theirs.push(other);
    }

    // The number of messages that go out and come back.
    let rounds = crossings.div_ceil(2 * ends) as u64;
    let mut samples = Samples::new();
    let gauge = Gauge::start()?;
    let begin = clock::now();
    let mut then = begin;
    let mut out = 0;
    let mut back = 0;
    while out < rounds.min(window as u64) {
        talk::give(peer, &words(out, 0), theirs.drain(..ends))?;
        out += 1;
    }
    while back < rounds {
        let returned = talk::ends(talk::hear(peer, &mut heard)?)?;
        payload::check(&heard, back)?;
        back += 1;
        if out < rounds {
            talk::give(peer, &words(out, 0), returned)?;
            out += 1;
        } else {
            theirs.extend(returned);
        }
        let stretch = 1 + STRETCH / (2 * ends as u64);
        if back.is_multiple_of(stretch) {
            let now = clock::now();
            samples.record(now - then, 2 * stretch * ends as u64);
            then = now;
        }
    }
    let end = clock::now();
    let spent = [gauge.spent()?, Spent::default()];
    talk::say(peer, STOP)?;

    // All ends are back, and each still belongs to a different channel of this process.
    let mut numbers = 0;
    for (number, mine) in mine.iter().enumerate() {
        mine.send(&words(number as u64, 0)).doing("send")?;
    }
    for end in &theirs {
        talk::hear(end, &mut heard)?;
        numbers += payload::number(&heard);
    }
    let count = mine.len() as u64;
    if theirs.len() != mine.len() || numbers != count * (count - 1) / 2 {
        return Err(Trouble::new(format!("{} of {count} ends came back", theirs.len())));
    }

    let passed = rounds * 2 * ends as u64;
    let mut report = Report { count: passed, times: samples.percentiles(), spent, ..Report::default() };
    report.found.insert("each".to_owned(), (end - begin) as f64 / passed as f64);
    Ok(report)
}

/// Runs the second process of the task `Pass`: sends back every message with its ends.
pub(super) fn pass_back(peer: &Channel) -> Result<Share> {
    let mut heard: Words = [0; SIZE];
    let gauge = Gauge::start()?;
    loop {
        let received = talk::hear(peer, &mut heard)?;
        if payload::number(&heard) == STOP {
            break;
        }
        talk::give(peer, &heard, talk::ends(received)?)?;
    }
    Ok(Share { spent: gauge.spent()?, ..Share::default() })
}
