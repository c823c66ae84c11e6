//! Channels within one process, for a given number of channels.

use strait::{Channel, Options};

use super::sending::new_channel;
use super::talk::{self, SIZE, Words, words};
use crate::process::clock;
use crate::trouble::Result;
use crate::work::Report;

/// Runs the only process of the task `Within`: makes and uses `channels` channels, sends an end of each, and closes
/// all. All channels go through one step before the next step; the report has the mean time of each step for a channel.
pub(super) fn run(options: &Options, channels: usize) -> Result<Report> {
    let mut report = Report { count: channels as u64, ..Report::default() };
    let mut then = clock::now();
    let mut step = |name: &str, begin: &mut u64| {
        let time = (clock::now() - *begin) as f64 / channels as f64;
        report.found.insert(name.to_owned(), time);
        *begin = clock::now();
    };
    let mut ones = Vec::with_capacity(channels);
    let mut others = Vec::with_capacity(channels);
    for _ in 0..channels {
        let (one, other) = new_channel(options)?;
        ones.push(one);
        others.push(other);
    }
    step("making", &mut then);

    for name in ["first", "second"] {
        for (one, other) in ones.iter().zip(&others) {
            talk::say(one, 1)?;
            talk::hear_number(other, 1)?;
        }
        step(name, &mut then);
    }

    let (out, back) = new_channel(options)?;
    let mut heard: Words = [0; SIZE];
    let mut send = |end: Channel| -> Result<Channel> {
        talk::give(&out, &words(0, 0), [end])?;
        talk::one_end(talk::hear(&back, &mut heard)?)
    };
    // The list is allocated before, so that only the memory of the channels is measured.
    let mut sent = Vec::with_capacity(channels);
    then = clock::now();
    for other in others {
        sent.push(send(other)?);
    }
    step("sending", &mut then);

    drop((ones, sent));
    step("closing", &mut then);
    Ok(report)
}
