//! The messages between the processes of a run: numbered messages, channel ends, and the report.

use strait::{Channel, Deadline, Handle, Outgoing, Received};

use crate::shape::payload;
use crate::trouble::{Result, Trouble, While};

/// The size of a message of this suite in bytes: with its header, the message fits into one cache line.
pub(super) const SIZE: usize = 56;

/// A message with a number and a time.
pub(super) type Words = [u8; SIZE];

/// Returns a message with a number, and a time in nanoseconds.
#[inline]
pub(super) fn words(number: u64, time: u64) -> Words {
    let mut words = [0; SIZE];
    words[8..16].copy_from_slice(&time.to_le_bytes());
    payload::stamp(&mut words, number);
    words
}

/// Returns the time in a message, in nanoseconds.
#[inline]
pub(super) fn time_in(words: &Words) -> u64 {
    u64::from_le_bytes(*words[8..].first_chunk().expect("a message is longer"))
}

/// Sends a message with this number.
#[inline]
pub(super) fn say(channel: &Channel, number: u64) -> Result<()> {
    channel.send(&words(number, 0)).doing("send")
}

/// Sends a message and channel ends with it.
pub(super) fn give(channel: &Channel, words: &Words, ends: impl IntoIterator<Item = Channel>) -> Result<()> {
    channel.send(Outgoing::new(words).handles(ends.into_iter().map(Handle::from))).doing("sending ends")
}

/// Receives a message of this suite into `words`.
#[inline]
pub(super) fn hear(channel: &Channel, words: &mut Words) -> Result<Received> {
    let received = channel.recv_into(words, Deadline::NEVER).doing("recv_into")?;
    match received.len() {
        SIZE => Ok(received),
        other => Err(Trouble::new(format!("a message of {other} bytes arrived"))),
    }
}

/// Receives a message and checks its number.
#[inline]
pub(super) fn hear_number(channel: &Channel, number: u64) -> Result<()> {
    let mut words = [0; SIZE];
    hear(channel, &mut words)?;
    payload::check(&words, number)
}

/// Returns the channel ends in a message.
pub(super) fn ends(mut received: Received) -> Result<Vec<Channel>> {
    let handles = received.take_handles().doing("take_handles")?;
    handles
        .into_iter()
        .map(|handle| handle.into_channel().ok_or_else(|| Trouble::new("the message has no channel end")))
        .collect()
}

/// Returns the only channel end in a message.
pub(super) fn one_end(received: Received) -> Result<Channel> {
    ends(received)?.pop().ok_or_else(|| Trouble::new("the message has no channel end"))
}
