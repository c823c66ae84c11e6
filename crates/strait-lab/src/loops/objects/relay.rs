//! Messages as objects: passed on by a process in between, and as values within one process.

use std::time::Duration;

use strait::view::Value;
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing};

use super::super::parts::{Share, Steady, together};
use super::talk;
use crate::process::clock;
use crate::process::gauge::Gauge;
use crate::samples::Samples;
use crate::shape::{Relay, payload};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Spent};

const PATIENCE: Duration = Duration::from_secs(20);

/// The distance in bytes between the bytes of a message that the receiver checks.
const PAGE: usize = 4096;

/// Returns the number of messages before the `count` measured ones.
fn warm_up(count: u64) -> u64 {
    (count / 10).max(2)
}

/// Runs the first process of the task `Relayed`: sends `count` messages, one at a time. The time of each counts from
/// before the write until the third process has checked the message.
pub(super) fn source(
    relay: &Channel,
    sink: &Channel,
    options: &Options,
    how: Relay,
    size: usize,
    count: u64,
) -> Result<Report> {
    let (ours, theirs) = options.pair().doing("making a channel")?;
    relay.send(Outgoing::new(b"").handle(ours)).doing("send")?;
    sink.send(Outgoing::new(b"").handle(theirs)).doing("send")?;
    let mut message = vec![7; size];
    let mut samples = Samples::new();
    let warm_up = warm_up(count);
    let mut gauge = Gauge::start()?;
    for number in 0..warm_up + count {
        if number == warm_up {
            samples = Samples::new();
            gauge = Gauge::start()?;
        }
        let begin = clock::now();
        payload::stamp(&mut message, number);
        if how == Relay::Sealed {
            let mut room = relay.reserve_sealed(size).doing("reserve_sealed")?;
            room.bytes().copy_from_slice(&message);
            room.commit(PATIENCE).doing("commit")?;
        } else {
            relay.send_by(&message, PATIENCE).doing("send")?;
        }
        talk::hear_number(sink, number)?;
        samples.record(clock::now() - begin, 1);
    }
    let spent = [gauge.spent()?, Spent::default()];
    Ok(Report { count, times: samples.percentiles(), spent, ..Report::default() })
}

/// Receives a message and returns the channel end in it.
fn end(channel: &Channel) -> Result<Channel> {
    let mut handles = channel.recv_by(PATIENCE).doing("recv")?.take_handles().doing("take_handles")?;
    handles.pop().and_then(Handle::into_channel).ok_or_else(|| Trouble::new("the message has no channel end"))
}

/// Runs the second process of the task `Relayed`: passes on every received message.
pub(super) fn relay(from: &Channel, how: Relay, count: u64) -> Result<Share> {
    let to = end(from)?;
    let mut steady = Steady::after(warm_up(count))?;
    let mut message = Message::new();
    loop {
        if how == Relay::View {
            match from.recv_in_place(Deadline::NEVER) {
                Err(Error::PeerClosed) => return steady.share(),
                view => view.doing("recv_in_place")?.forward(&to, PATIENCE).doing("forward")?,
            }
            steady.answered()?;
            continue;
        }
        match from.recv_message(&mut message, Deadline::NEVER) {
            Err(Error::PeerClosed) => return steady.share(),
            received => received.doing("recv_message")?,
        }
        if how == Relay::Sent {
            to.send_by(message.bytes(), PATIENCE).doing("send")?;
        } else {
            to.forward(&mut message, PATIENCE).doing("forward")?;
        }
        steady.answered()?;
    }
}

/// Runs the third process of the task `Relayed`: checks a byte of each page of each message, and acknowledges the
/// message.
pub(super) fn sink(first: &Channel, count: u64) -> Result<Share> {
    let from = end(first)?;
    let mut steady = Steady::after(warm_up(count))?;
    let mut message = Message::new();
    let mut number = 0;
    while from.recv_message(&mut message, Deadline::NEVER).is_ok() {
        payload::check(message.bytes(), number)?;
        if message.bytes()[PAGE..].iter().step_by(PAGE).any(|byte| *byte != 7) {
            return Err(Trouble::new("the received message differs from the sent one"));
        }
        talk::say(first, number)?;
        number += 1;
        steady.answered()?;
    }
    steady.share()
}

/// A value with many bytes, sent as a value or as bytes.
struct Picture(Vec<u8>);

impl Value for Picture {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (self.0, Vec::new())
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// Runs the only process of the task `Values`: sends `count` values (or, with `as_bytes`, messages) from one end to
/// the other, after a tenth of them as warm-up.
pub(super) fn values(options: &Options, as_bytes: bool, size: usize, count: u64) -> Result<Report> {
    let (one, other) = options.pair().doing("making a channel")?;
    let mut picture = Picture(vec![7; size]);
    let mut message = Message::new();
    let all = |count: u64| -> Result<()> {
        for number in 0..count {
            payload::stamp(&mut picture.0, number);
            if as_bytes {
                one.send(&picture.0).doing("send")?;
                other.recv_message(&mut message, PATIENCE).doing("recv_message")?;
                payload::check(message.bytes(), number)?;
            } else {
                let sent = std::mem::replace(&mut picture, Picture(Vec::new()));
                one.send_value(sent, PATIENCE).doing("send_value")?;
                other.recv_message(&mut message, PATIENCE).doing("recv_message")?;
                picture = message.take_value().ok_or_else(|| Trouble::new("the value was received as bytes"))?;
                payload::check(&picture.0, number)?;
            }
        }
        Ok(())
    };
    together(count, all)
}
