//! What the processes say to each other: numbered messages, ends, and at the end a report.

use strait::{Channel, Deadline, Handle, Outgoing, Received};

use crate::shape::payload::{self, SMALLEST};
use crate::trouble::{Result, Trouble, While};
use crate::work::{Report, Spent};

/// Bytes in a message of this suite: as many as fit one cache line.
pub(super) const SIZE: usize = 56;

/// A message that says a number and a time.
pub(super) type Words = [u8; SIZE];

/// A message with this number and this time.
#[inline]
pub(super) fn words(number: u64, time: u64) -> Words {
    let mut words = [0; SIZE];
    words[8..16].copy_from_slice(&time.to_le_bytes());
    payload::stamp(&mut words, number);
    words
}

/// The time in a message.
#[inline]
pub(super) fn time_in(words: &Words) -> u64 {
    u64::from_le_bytes(*words[8..].first_chunk().expect("a message is longer"))
}

/// What was done so many times in this time, at this cost to the first process.
pub(in crate::bars) fn paced(count: u64, elapsed: u64, spent: Spent) -> Report {
    let mut report = Report { count, elapsed, spent: [spent, Spent::default()], ..Report::default() };
    report.times.p50 = elapsed as f64 / count.max(1) as f64;
    report
}

/// Sends a number.
#[inline]
pub(in crate::bars) fn say(channel: &Channel, number: u64) -> Result<()> {
    channel.send(&words(number, 0)).doing("send")
}

/// Sends a number, a time, and ends.
pub(super) fn give(channel: &Channel, words: &Words, ends: impl IntoIterator<Item = Channel>) -> Result<()> {
    channel.send(Outgoing::new(words).handles(ends.into_iter().map(Handle::from))).doing("sending ends")
}

/// Receives a message of this suite.
#[inline]
pub(super) fn hear(channel: &Channel, words: &mut Words) -> Result<Received> {
    let received = channel.recv_into(words, Deadline::NEVER).doing("recv_into")?;
    match received.len() {
        SIZE => Ok(received),
        other => Err(Trouble::new(format!("a message of {other} bytes came"))),
    }
}

/// Receives the message with this number.
#[inline]
pub(in crate::bars) fn hear_number(channel: &Channel, number: u64) -> Result<()> {
    let mut words = [0; SIZE];
    hear(channel, &mut words)?;
    payload::check(&words, number)
}

/// The ends in a message.
pub(super) fn ends(mut received: Received) -> Result<Vec<Channel>> {
    let handles = received.take_handles().doing("take_handles")?;
    handles.into_iter().map(|handle| handle.into_channel().ok_or_else(|| Trouble::new("no end came"))).collect()
}

/// The only end in a message.
pub(super) fn one_end(received: Received) -> Result<Channel> {
    ends(received)?.pop().ok_or_else(|| Trouble::new("no end came"))
}

/// Sends what was found to the first process.
pub(super) fn report(channel: &Channel, report: &Report) -> Result<()> {
    let packet = serde_json::to_vec(report).doing("encoding a report")?;
    channel.send(&packet).doing("send")
}

/// Receives what was found.
pub(super) fn hear_report(channel: &Channel) -> Result<Report> {
    let message = channel.recv().doing("recv")?;
    if message.bytes().len() <= SMALLEST {
        return Err(Trouble::new("no report came"));
    }
    serde_json::from_slice(message.bytes()).doing("decoding a report")
}
