//! FIDL messages: a header and a vector of bytes, encoded, sent, received and decoded. The vector is a part of the
//! message in place, or is first copied into one piece with the rest.
//!
//! The second process acknowledges as in a [ping-pong](super::ping_pong).

use strait_fidl::{Encoder, Fidl, Gather, Header, decode};

use super::parts::{Share, acknowledged, closed_loop, finish};
use crate::mechanism::End;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::FIDL_AROUND;
use crate::shape::payload::{self, SMALLEST, STEADY, STOP};
use crate::trouble::{Result, Trouble};
use crate::work::{Report, Work};

#[derive(Fidl)]
struct Event {
    bytes: Vec<u8>,
}

#[derive(Fidl)]
struct Seen<'m> {
    bytes: &'m [u8],
}

fn wrong(error: strait_fidl::Error) -> Trouble {
    Trouble::new(format!("the message is wrong: {error}"))
}

/// Runs the first process of the shape `fidl`: encodes and sends messages, and waits for each acknowledgement.
pub(super) fn first(end: &mut impl End, work: &Work, linear: bool) -> Result<Report> {
    let mut event = Event { bytes: vec![0; work.size - FIDL_AROUND] };
    let mut encoder = Encoder::gathering(if linear { Gather::LINEAR } else { Gather::FUCHSIA });
    let header = Header { txid: 0, flexible: false, ordinal: 1 };
    closed_loop(work, |number| {
        payload::stamp(&mut event.bytes, number);
        let encoded = encoder.message(header, &event).map_err(wrong)?;
        match encoded.parts() {
            [one] => end.send(one)?,
            parts => end.send_gathered(parts)?,
        }
        let mut answer = [0; SMALLEST];
        end.recv(&mut answer)?;
        acknowledged(&answer, number)
    })
}

/// Runs the second process of the shape `fidl`: decodes each message, and acknowledges it.
pub(super) fn second(end: &mut impl End, work: &Work) -> Result<Share> {
    let mut message = vec![0; work.size];
    let mut due = 0;
    let untimed = Samples::new();
    let mut gauge = Gauge::start()?;
    let answer = loop {
        end.recv(&mut message)?;
        let (_, body) = Header::split(&message).map_err(wrong)?;
        let seen: Seen<'_> = decode(body, []).map_err(wrong)?;
        let number = payload::number(seen.bytes);
        let answer = number.to_le_bytes();
        match number {
            STEADY => gauge = Gauge::start()?,
            STOP => break answer,
            _ => {
                payload::check(seen.bytes, due)?;
                due += 1;
            }
        }
        end.send(&answer)?;
    };
    finish(end, work, &answer, &gauge, due, &untimed)
}
