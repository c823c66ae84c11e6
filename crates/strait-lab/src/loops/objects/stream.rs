//! A stream whose receiving end moves while messages are in flight.

use strait::{Channel, Options};

use super::super::parts::Share;
use super::sending::new_channel;
use super::talk::{self, Words, words};
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload::{self, STOP};
use crate::trouble::{Result, While};
use crate::work::{Report, Spent};

/// The number of stretches (groups of messages that are timed together) in the warm-up.
const WARM_UP: u64 = 4;

/// Runs the first process of the task `Stream`: introduces the two others to each other, and sends without a pause.
pub(super) fn pour(
    second: &Channel,
    third: &Channel,
    options: &Options,
    moves: bool,
    stretches: u64,
    stretch: u64,
) -> Result<Report> {
    let (one, other) = new_channel(options)?;
    talk::give(second, &words(0, 0), [one])?;
    talk::give(third, &words(0, 0), [other])?;
    let (mine, theirs) = new_channel(options)?;
    talk::give(second, &words(u64::from(moves), stretches), [theirs])?;
    talk::hear_number(second, 0)?;

    let gauge = Gauge::start()?;
    for number in 0..stretches * stretch {
        talk::say(&mine, number)?;
    }
    let spent = gauge.spent()?;

    // The holder of the end reported the time when its stretch was received.
    let mut samples = Samples::new();
    let mut heard: Words = [0; talk::SIZE];
    let (mut first, mut then) = (0, 0);
    for number in 0..stretches {
        let holder = if moves && number % 2 == 1 { third } else { second };
        talk::hear(holder, &mut heard)?;
        payload::check(&heard, number)?;
        let now = talk::time_in(&heard);
        if number == WARM_UP {
            first = now;
        }
        if number > WARM_UP {
            samples.record(now - then, stretch);
        }
        then = now;
    }
    talk::say(second, STOP)?;
    talk::say(third, STOP)?;

    let mut times = samples.percentiles();
    let median = times.p50 * stretch as f64;
    // The pace over the whole run is judged, including the moves.
    times.p50 = (then - first) as f64 / ((stretches - 1 - WARM_UP) * stretch) as f64;
    let mut report =
        Report { count: stretches * stretch, times, spent: [spent, Spent::default()], ..Report::default() };
    report.found.insert("stretch".to_owned(), median);
    Ok(report)
}

/// Runs the second or the third process of the task `Stream`: each receives a stretch of messages and, if the end is
/// to move, sends the end to the other.
pub(super) fn drain(first: &Channel, is_second: bool, stretch: u64) -> Result<Share> {
    let mut heard: Words = [0; talk::SIZE];
    let across = talk::one_end(talk::hear(first, &mut heard)?)?;
    let gauge = Gauge::start()?;
    if is_second {
        let end = talk::one_end(talk::hear(first, &mut heard)?)?;
        let moves = payload::number(&heard) == 1;
        let stretches = talk::time_in(&heard);
        talk::say(first, 0)?;
        if moves {
            hand_about(first, &across, Some((end, stretches)), stretch)?;
        } else {
            for number in 0..stretches {
                receive(first, &end, number, stretch)?;
            }
            talk::say(&across, STOP)?;
        }
    } else {
        hand_about(first, &across, None, stretch)?;
    }
    talk::hear_number(first, STOP)?;
    Ok(Share { spent: gauge.spent()?, ..Share::default() })
}

/// Receives the messages of one stretch through `end`, and tells the first process when the last has arrived.
fn receive(first: &Channel, end: &Channel, number: u64, stretch: u64) -> Result<()> {
    for message in number * stretch..(number + 1) * stretch {
        talk::hear_number(end, message)?;
    }
    first.send(&words(number, clock::now())).doing("send")
}

/// Takes turns with the other receiving process until all stretches are received. The message with the end carries
/// the number of the next stretch, and how many there are.
fn hand_about(first: &Channel, across: &Channel, mut held: Option<(Channel, u64)>, stretch: u64) -> Result<()> {
    let mut heard: Words = [0; talk::SIZE];
    let mut number = 0;
    loop {
        let (end, stretches) = match held.take() {
            Some(held) => held,
            None => {
                let received = talk::hear(across, &mut heard)?;
                number = payload::number(&heard);
                if number == STOP {
                    return Ok(());
                }
                (talk::one_end(received)?, talk::time_in(&heard))
            }
        };
        receive(first, &end, number, stretch)?;
        if number + 1 == stretches {
            return talk::say(across, STOP);
        }
        talk::give(across, &words(number + 1, stretches), [end])?;
    }
}
