//! One end at a time: to the peer, and to a third process.
//!
//! All times are one way: each message carries the start time of its send, by the clock of all processes.

use strait::{Channel, Options};

use super::super::parts::Share;
use super::talk::{self, SIZE, Words, words};
use crate::process::clock;
use crate::samples::Samples;
use crate::shape::payload;
use crate::trouble::{Result, While};
use crate::work::Report;

/// Returns the number of messages in the warm-up: `count`, but at most 500.
fn warm_up(count: u64) -> u64 {
    count.min(500)
}

/// Runs the first process of the task `Give`: sends an end of a new channel, and a message through the channel.
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
        // The other process closes its end before answering, so closing is not timed.
        talk::hear_number(peer, number)?;
    }
    let mut report = Report { count, ..Report::default() };
    report.found.insert("sending".to_owned(), sends.percentiles().p50);
    Ok(report)
}

/// Runs the second process of the task `Give`: receives each end, and the message through it.
pub(super) fn take(peer: &Channel, count: u64) -> Result<Share> {
    hear_over_new_ends(peer, count, Answer::Afterwards)
}

/// The moment when the first process learns that the second has received an end.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    /// `AtOnce`: as soon as the end was received, and once more when the message through it was received.
    AtOnce,
    /// `Afterwards`: only when the first message through the end was received.
    Afterwards,
}

/// Receives `count` ends after the warm-up, and times the first message that arrives through each.
fn hear_over_new_ends(from: &Channel, count: u64, answer: Answer) -> Result<Share> {
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
    Ok(Share { count, times: samples.percentiles(), ..Share::default() })
}

/// Runs the first process of the task `Acquaint`: sends one end of a new channel to the second process and the other
/// to the third. These two have had a link to each other for long. The time begins when the latter end is sent.
pub(super) fn acquaint(second: &Channel, third: &Channel, options: &Options, count: u64) -> Result<Report> {
    for number in 0..warm_up(count) + count {
        let (one, other) = new_channel(options)?;
        talk::give(second, &words(number, 0), [one])?;
        talk::hear_number(second, number)?;
        talk::give(third, &words(number, clock::now()), [other])?;
        talk::hear_number(second, number)?;
    }
    Ok(Report { count, ..Report::default() })
}

/// Runs the second process of the task `Acquaint`: receives the message from the third process through its end.
pub(super) fn meet(first: &Channel, count: u64) -> Result<Share> {
    hear_over_new_ends(first, count, Answer::AtOnce)
}

/// Runs the third process of the task `Acquaint`: sends a message through each end as soon as it has received the
/// end.
pub(super) fn greet(first: &Channel, count: u64) -> Result<Share> {
    let mut heard: Words = [0; SIZE];
    for _ in 0..warm_up(count) + count {
        let end = talk::one_end(talk::hear(first, &mut heard)?)?;
        end.send(&heard).doing("the first message")?;
    }
    Ok(Share::default())
}

pub(super) fn new_channel(options: &Options) -> Result<(Channel, Channel)> {
    options.pair().doing("making a channel")
}
