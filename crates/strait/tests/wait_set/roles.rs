//! The process with the other ends, and helpers.

use crate::common::{DEADLINE, parent};
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Handle, Outgoing};

/// Executes the orders of its parent on a list of ends.
pub(crate) fn hub() {
    let parent = parent();
    let mut ends: Vec<Channel> = Vec::new();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        let text = String::from_utf8(message.into_bytes()).unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "keep" => {
                ends.extend(handles.into_iter().filter_map(Handle::into_channel));
                continue;
            }
            "say" => ends[number(1)].send_by(words[2].as_bytes(), DEADLINE).unwrap(),
            // Sends a message on each end.
            "all" => ends.iter().for_each(|end| end.send_by(b"all", DEADLINE).unwrap()),
            // Receives a number of messages from an end.
            "take" => (0..number(2)).for_each(|_| drop(ends[number(1)].recv_by(DEADLINE).unwrap())),
            // Sends on an end until there is no room.
            "fill" => fill(&ends[number(1)]),
            // Receives all messages of an end.
            "drain" => while ends[number(1)].try_recv().is_ok() {},
            // Sends an end over another end; waits for room.
            "pass" => {
                let what = ends.remove(number(1));
                ends[number(2)].send_by(Outgoing::new(b"end").handle(what), DEADLINE).unwrap();
            }
            // Sends back each message of one end, until the message "enough".
            "echo" => loop {
                let message = ends[number(1)].recv_by(DEADLINE).unwrap();
                if message.bytes() == b"enough" {
                    break;
                }
                ends[number(1)].send_by(message.bytes(), DEADLINE).unwrap();
            },
            // Receives messages from one end until a message carries an end.
            "receive" => {
                let end = loop {
                    let mut message = ends[number(1)].recv_by(DEADLINE).unwrap();
                    if let Some(end) = message.take_handles().unwrap().pop() {
                        break end.into_channel().unwrap();
                    }
                };
                ends.push(end);
            }
            "close" => drop(ends.remove(number(1))),
            other => panic!("{other}"),
        }
        parent.send(b"done").unwrap();
    }
}

/// Gives the hub an order without waiting for the answer.
pub(crate) fn begin(hub: &Channel, what: &str) {
    hub.send_by(what.as_bytes(), DEADLINE).unwrap();
}

pub(crate) fn done(hub: &Channel) {
    assert_eq!(hub.recv_by(DEADLINE).unwrap().bytes(), b"done");
}

pub(crate) fn tell(hub: &Channel, what: &str) {
    begin(hub, what);
    done(hub);
}

pub(crate) fn keep(hub: &Channel, end: Channel) {
    hub.send_by(Outgoing::new(b"keep").handle(end), DEADLINE).unwrap();
}

/// Returns the ends of this process of `count` channels to the hub.
pub(crate) fn channels(hub: &Channel, count: usize) -> Vec<Channel> {
    (0..count)
        .map(|_| {
            let (ours, theirs) = Channel::pair().unwrap();
            keep(hub, theirs);
            ours
        })
        .collect()
}

/// Waits in the wait set, and returns the keys of the ready members, sorted.
pub(crate) fn ready(set: &WaitSet, deadline: impl Into<Deadline>) -> Vec<u64> {
    let mut events = Vec::new();
    set.wait(&mut events, deadline).unwrap();
    let mut keys: Vec<_> = events.iter().map(Event::key).collect();
    keys.sort_unstable();
    keys
}

pub(crate) fn add_all(set: &WaitSet, channels: &[Channel], mode: Mode) {
    for (key, channel) in (0..).zip(channels) {
        set.add(channel, key, Interest::Readable, mode).unwrap();
    }
}

/// Sends on an end until there is no room.
pub(crate) fn fill(channel: &Channel) {
    while channel.try_send(&[0; 30_000]).is_ok() {}
    // The ring has no room for another long message, but for short ones.
    while channel.try_send(b"small").is_ok() {}
}

/// Makes the hub send a message, and polls for its answer instead of waiting on the same link.
pub(crate) fn tell_from(hub: &Channel, which: usize) {
    begin(hub, &format!("say {which} hello"));
    while hub.try_recv().is_err() {
        std::thread::yield_now();
    }
}

/// A random number generator (splitmix64); the same seed gives the same numbers.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}
