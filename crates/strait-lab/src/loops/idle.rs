//! Idle: one process waits and receives nothing. The shape counts how often it wakes.

use std::time::Duration;

use super::parts::{Share, exchange};
use crate::mechanism::End;
use crate::process::gauge::sleeps;
use crate::shape::payload::{SMALLEST, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Extent, Report, Work};

/// Runs the first process of the shape `idle`, which sends nothing and counts how often the other process wakes.
pub(super) fn first(end: &mut impl End, work: &Work, peer: u32) -> Result<Report> {
    let Extent::Time { warm, steady } = work.extent else {
        return Err(Trouble::new("the shape idle needs a duration, not a number of messages"));
    };
    let pause = |milliseconds| std::thread::sleep(Duration::from_millis(milliseconds));
    pause(warm);
    let before = sleeps(peer)?;
    pause(steady);
    let wake_ups = sleeps(peer)? - before;

    // The other process still answers: it was asleep in its wait, and not stuck elsewhere.
    let mut answer = [0; SMALLEST];
    exchange(end, &mut [0; SMALLEST], &mut answer, STOP)?;
    Ok(Report { wake_ups: Some(wake_ups), ..Report::default() })
}

/// Runs the second process of the shape `idle`: waits for the single message at the end.
pub(super) fn second(end: &mut impl End) -> Result<Share> {
    let mut message = [0; SMALLEST];
    end.recv(&mut message)?;
    end.send(&message)?;
    Ok(Share::default())
}
