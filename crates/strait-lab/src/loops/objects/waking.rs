//! Waiting for many channels at once.

use std::time::Duration;

use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Options};

use super::super::parts::Share;
use super::holding::fill;
use super::talk::{self, SIZE, Words, words};
use crate::process::clock;
use crate::samples::Samples;
use crate::shape::payload::{self, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::Report;

/// The number of messages in the warm-up.
const WARM_UP: u64 = 100;
/// The number of messages that are timed.
const COUNT: u64 = 1000;

/// The pause before each message, so that the other process sleeps.
const PAUSE: Duration = Duration::from_micros(200);

/// Runs the first process of the task `Wake`: sends through the newest of many channels.
pub(super) fn wake(peer: &Channel, options: &Options, members: usize) -> Result<Report> {
    let mut mine = Vec::new();
    fill(peer, options, &mut mine, members)?;
    talk::say(peer, STOP)?;
    talk::hear_number(peer, STOP)?;
    let active = mine.last().expect("at least one");
    for number in 0..WARM_UP + COUNT {
        std::thread::sleep(PAUSE);
        active.send(&words(number, clock::now())).doing("send")?;
        talk::hear_number(active, number)?;
    }
    Ok(Report { count: COUNT, ..Report::default() })
}

/// Runs the second process of the task `Wake`: waits for all channels by one wait set.
pub(super) fn sleep(peer: &Channel, members: usize) -> Result<Share> {
    let mut heard: Words = [0; SIZE];
    let mut ends = Vec::with_capacity(members);
    while ends.len() < members {
        ends.extend(talk::ends(talk::hear(peer, &mut heard)?)?);
    }
    talk::hear_number(peer, STOP)?;
    let set = WaitSet::new().doing("making a wait set")?;
    let begin = clock::now();
    for (key, end) in (0..).zip(&ends) {
        set.add(end, key, Interest::Readable, Mode::Level).doing("adding to the wait set")?;
    }
    let adding = clock::now() - begin;
    talk::say(peer, STOP)?;

    let mut samples = Samples::new();
    let mut events = Vec::new();
    for number in 0..WARM_UP + COUNT {
        while set.wait(&mut events, Deadline::NEVER).doing("waiting")? == 0 {}
        let [event] = events[..] else {
            return Err(Trouble::new(format!("{} channels are ready instead of one", events.len())));
        };
        let end = ends.get(event.key() as usize).ok_or_else(|| Trouble::new("an event has an unknown key"))?;
        talk::hear(end, &mut heard)?;
        let now = clock::now();
        payload::check(&heard, number)?;
        if number >= WARM_UP {
            samples.record(now - talk::time_in(&heard), 1);
        }
        talk::say(end, number)?;
    }
    let mut share = Share { count: COUNT, times: samples.percentiles(), ..Share::default() };
    share.found.insert("adding".to_owned(), adding as f64 / members as f64);
    Ok(share)
}
