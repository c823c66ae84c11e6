//! Connections, one after the other between two processes: each connection is opened, used for a message in each
//! direction, and closed.
//!
//! For all mechanisms, the descriptors for the second process are sent over a socket that both processes already have.
//! The cost of the socket alone is measured, too, by sending an unused descriptor.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use super::parts::{Share, exchange, report};
use crate::mechanism::{End, Side, traveller};
use crate::process::clock;
use crate::process::control::{self, Heard};
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::payload;
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

/// The longest time that a connection may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// The number of exchanges by which the cost of the control socket alone is measured.
const BARE: u64 = 200;

/// The request to the second process to join a connection.
const CONNECT: u8 = 0;
/// The request to the second process to drop the descriptor in the request.
const NOTHING: u8 = 1;
/// The request to the second process to begin its measured part.
const MEASURE: u8 = 2;
/// The request to the second process to end.
const STOP: u8 = 3;

/// Runs the first process of the shape `connect`, which opens every connection.
pub(crate) fn first<E: End>(work: &Work, socket: BorrowedFd<'_>) -> Result<Report> {
    let mut message = vec![0; work.size];
    let mut answer = vec![0; work.size];
    let mut connection = |number: u64| -> Result<u64> {
        let then = clock::now();
        let opened = E::open(work)?;
        control::send(socket, &CONNECT, &opened.second)?;
        drop(opened.second);
        let mut end = E::join(work, Side::First, opened.first)?;
        exchange(&mut end, &mut message, &mut answer, number)?;
        let taken = clock::now() - then;
        heard(socket)?;
        Ok(taken)
    };
    let mut bare = Samples::new();
    for _ in 0..BARE {
        let then = clock::now();
        control::send(socket, &NOTHING, &[traveller()?])?;
        heard(socket)?;
        bare.record(clock::now() - then, 1);
    }

    let mut number = 0;
    let begin = clock::now();
    let first = connection(number)?;
    while !work.extent.is_warm(number, clock::now() - begin) {
        number += 1;
        connection(number)?;
    }
    control::send(socket, &MEASURE, &[])?;
    heard(socket)?;
    let mut samples = Samples::new();
    let gauge = Gauge::start()?;
    let (begin, mut count) = (clock::now(), 0);
    while !work.extent.is_over(count, clock::now() - begin) {
        number += 1;
        samples.record(connection(number)?, 1);
        count += 1;
    }
    let elapsed = clock::now() - begin;
    let spent = gauge.spent()?;
    control::send(socket, &STOP, &[])?;
    let mut report = Report { first, ..report(spent, count, elapsed, &samples) };
    report.found.insert("descriptor_ns".to_owned(), bare.percentiles().p50);
    Ok(report)
}

fn heard(socket: BorrowedFd<'_>) -> Result<()> {
    match control::recv::<Result<()>>(socket, PATIENCE)? {
        Heard::Packet(Ok(()), _) => Ok(()),
        Heard::Packet(Err(trouble), _) => Err(trouble.of("second process")),
        Heard::Gone => Err(Trouble::new("the second process died")),
        Heard::Nothing => Err(Trouble::new("the second process does not answer")),
    }
}

/// Runs the second process of the shape `connect`: joins every connection opened by the first process.
pub(crate) fn second<E: End>(work: &Work, socket: BorrowedFd<'_>) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut gauge = Gauge::start()?;
    let mut due = 0;
    loop {
        let Heard::Packet(what, descriptors) = control::recv::<u8>(socket, PATIENCE)? else {
            return Err(Trouble::new("the first process has died"));
        };
        match what {
            CONNECT => {
                let mut end = E::join(work, Side::Second, descriptors)?;
                end.recv(&mut message)?;
                payload::check(&message, due)?;
                due += 1;
                end.send(&message)?;
                // The end is closed here. Closing is not timed, but the next connection begins after it.
            }
            NOTHING => drop(descriptors),
            MEASURE => gauge = Gauge::start()?,
            _ => return Ok(Share { spent: gauge.spent()?, count: due, ..Share::default() }),
        }
        control::send(socket, &Ok::<(), Trouble>(()), &[])?;
    }
}
