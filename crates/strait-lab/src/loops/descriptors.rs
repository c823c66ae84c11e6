//! Ping-pong with moving descriptors in each message: the sender closes its copies.
//!
//! A fixed set of descriptors goes back and forth. If a descriptor is lost, too few come back. If a descriptor stays
//! behind, a process has one too many open at the end.

use std::fs;
use std::os::fd::OwnedFd;

use super::parts::{Share, closed_loop};
use crate::mechanism::{End, traveller};
use crate::process::gauge::Gauge;
use crate::shape::payload::{self, STEADY, STOP};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Work};

/// Runs the first process of the shape `descriptors`: sends messages with `count` descriptors, and receives them
/// back.
pub(super) fn first(end: &mut impl End, work: &Work, count: usize) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; work.size];
    let mut held = (0..count).map(|_| traveller()).collect::<Result<Vec<OwnedFd>>>()?;
    let mut open = usize::MAX;
    closed_loop(&Work { stride: 1, ..work.clone() }, |number| {
        if number == STOP && open_descriptors()? > open {
            return Err(Trouble::new("descriptors stayed behind in the first process"));
        }
        payload::stamp(&mut message, number);
        end.send_with(&message, &mut held)?;
        end.recv_with(&mut answer, &mut held)?;
        payload::check(&answer, number)?;
        if held.len() != count {
            return Err(Trouble::new(format!("{} of {count} descriptors came back", held.len())));
        }
        if number == STEADY {
            open = open_descriptors()?;
        }
        Ok(())
    })
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

/// Returns the number of open descriptors of this process.
fn open_descriptors() -> Result<usize> {
    Ok(fs::read_dir("/proc/self/fd").doing("counting descriptors")?.count())
}
