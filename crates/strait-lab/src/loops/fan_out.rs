//! Fan-out: the first process sends each message to several others, and waits until all have acknowledged it.
//!
//! The others answer as in a [ping-pong](super::ping_pong).

use super::parts::{acknowledged, closed_loop};
use crate::mechanism::Hub;
use crate::shape::payload::{self, SMALLEST};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// Runs the first process of the shape `fan-out`. It times and counts rounds: a message to each of the `receivers`,
/// and the acknowledgements of all.
pub(super) fn first(hub: &mut dyn Hub, work: &Work, receivers: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    closed_loop(&Work { stride: 1, ..work.clone() }, |number| {
        payload::stamp(&mut message, number);
        for to in 0..receivers {
            hub.send(to, &message)?;
        }
        let mut answer = [0; SMALLEST];
        let mut seen = 0u64;
        for _ in 0..receivers {
            let from = hub.recv(&mut answer)?.ok_or_else(|| Trouble::new("an acknowledgement has no sender"))?;
            acknowledged(&answer, number)?;
            seen |= 1 << from;
        }
        if seen.count_ones() as usize == receivers {
            Ok(())
        } else {
            Err(Trouble::new("one receiver acknowledged twice, and another never"))
        }
    })
}
