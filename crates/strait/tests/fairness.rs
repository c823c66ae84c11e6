//! Shows that each channel keeps its share of a link. Many busy channels share a link with a quiet channel, a channel
//! of huge messages and two flooding channels that are never read.
//!
//! Shares are counted in turns, not in time: a turn is one report of a wait set. So the result does not depend on how
//! the machine schedules the two processes.

mod common;

use std::thread;

use common::{Actor, DEADLINE, finish, parent, play, spawn_with};
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Handle, Options, Outgoing};

/// The number of busy channels.
const BUSY: usize = 100;

/// The number of messages that are queued in each busy channel before the receiver begins. As long as messages are left
/// there, every busy channel is ready, whatever the sender does.
const BACKLOG: u64 = 200;

/// The number of messages that each busy channel carries in all.
const MESSAGES: u64 = 2 * BACKLOG;

/// The number of threads that send to the busy channels.
const SENDERS: usize = 4;

/// The number of round trips on the quiet channel.
const TRIPS: u64 = 300;

/// The number of huge messages.
const HUGE: u64 = 3;

/// The number of events taken at a time by the receiver: few, so that the wait set has to choose.
const EVENTS: usize = 8;

/// The number of channels in the wait set: busy channels, the quiet channel and the channel of huge messages.
const MEMBERS: usize = BUSY + 2;

/// The number of all channels. The last three are not in the wait set: on one of the three, the sender reports what it
/// has sent on the quiet channel; the other two flood.
const CHANNELS: usize = MEMBERS + 3;

/// The key of the quiet channel in the wait set; the busy channels have the keys below.
const QUIET: usize = BUSY;

/// The key of the channel of huge messages in the wait set.
const LARGE: usize = BUSY + 1;

/// The most channel ends in one message.
const ENDS: usize = 50;

#[test]
fn child() {
    play(&[("crowd", crowd)]);
}

/// Returns the size of a huge message in bytes: 256 MiB, or 64 MiB on a machine with little free memory.
fn huge() -> usize {
    let info = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = info.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kilobytes = available.and_then(|rest| rest.split_whitespace().next()?.parse::<usize>().ok()).unwrap_or(0);
    if kilobytes >= 3 << 20 { 256 << 20 } else { 64 << 20 }
}

/// Plays the sending process: makes all channels over the link to its parent, and sends through all of them at once.
fn crowd(size: &str) {
    let parent = parent();
    let mut mine = open(&parent, CHANNELS);
    let (descriptors, bytes, told) = (mine.pop().unwrap(), mine.pop().unwrap(), mine.pop().unwrap());
    let (large, quiet) = (mine.pop().unwrap(), mine.pop().unwrap());
    for busy in &mine {
        (0..BACKLOG).for_each(|number| busy.send_by(&number.to_le_bytes(), DEADLINE).unwrap());
    }
    thread::scope(|scope| {
        scope.spawn(|| flood(&bytes, || Outgoing::new(b"flood")));
        scope.spawn(|| flood(&descriptors, || Outgoing::new(b"flood").handles([a_descriptor()])));
        parent.send(b"the backlog is there").unwrap();
        scope.spawn(|| trips(&quiet, &told));
        scope.spawn(|| send_huge(&large, size.parse().unwrap()));
        for busy in mine.chunks(BUSY.div_ceil(SENDERS)) {
            scope.spawn(|| (BACKLOG..MESSAGES).for_each(|number| send_to_all(busy, number)));
        }
    });
}

/// Makes `count` channels, and sends the other end of each to the peer of `parent`.
fn open(parent: &Channel, count: usize) -> Vec<Channel> {
    let (mine, theirs): (Vec<_>, Vec<_>) = (0..count).map(|_| Channel::pair().unwrap()).unzip();
    let mut theirs = theirs.into_iter().map(Handle::from).peekable();
    while theirs.peek().is_some() {
        parent.send(Outgoing::new(b"ends").handles(theirs.by_ref().take(ENDS))).unwrap();
    }
    mine
}

fn a_descriptor() -> Handle {
    Handle::from(std::os::fd::OwnedFd::from(std::fs::File::open("/dev/null").unwrap()))
}

/// Sends to a channel that is never read, until the other end is closed.
fn flood(channel: &Channel, message: impl Fn() -> Outgoing<'static>) {
    while channel.send(message()).is_ok() {}
}

/// Makes the round trips on the quiet channel. Tells of each message when its sending is over, so that the receiver
/// knows that the message is announced: a sender may be interrupted between the message and its announcement.
fn trips(quiet: &Channel, told: &Channel) {
    for number in 0..TRIPS {
        quiet.send(&number.to_le_bytes()).unwrap();
        told.send(&number.to_le_bytes()).unwrap();
        assert_eq!(quiet.recv_by(DEADLINE).unwrap().bytes(), number.to_le_bytes());
    }
}

fn send_huge(large: &Channel, size: usize) {
    let mut bytes = vec![0; size];
    for number in 0..HUGE {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[size - 8..].copy_from_slice(&number.to_le_bytes());
        large.send(&bytes).unwrap();
    }
}

fn send_to_all(channels: &[Channel], number: u64) {
    channels.iter().for_each(|channel| channel.send(&number.to_le_bytes()).unwrap());
}

/// The receiving process: the channels, the received messages, and the turns of each channel.
struct Receiver {
    channels: Vec<Channel>,
    /// The channel for the sender's reports about the quiet channel.
    told: Channel,
    /// The number of messages of which the sender has told.
    announced: u64,
    /// The number of messages received over each channel.
    received: Vec<u64>,
    /// The number of reports so far.
    turn: usize,
    /// For each channel known to be ready: the turn at which it became ready.
    ready_since: Vec<Option<usize>>,
    /// The most turns waited by a ready channel.
    longest: usize,
    huge: Vec<u8>,
}

impl Receiver {
    fn new(channels: Vec<Channel>, told: Channel, size: usize) -> Self {
        let count = channels.len();
        Self {
            channels,
            told,
            announced: 0,
            received: vec![0; count],
            turn: 0,
            ready_since: vec![None; count],
            longest: 0,
            huge: vec![0; size],
        }
    }

    /// Takes a message from each reported channel.
    fn serve(&mut self, events: &[Event]) {
        for event in events {
            let key = usize::try_from(event.key()).unwrap();
            self.count_turn(key);
            match key {
                LARGE => self.receive_huge(),
                key => self.receive(key),
            }
            self.received[key] += 1;
            self.check_backlogs();
            self.note_ready(key);
            self.note_quiet();
        }
    }

    /// Counts the report of a channel, and checks that the channel did not wait for too many reports of others.
    fn count_turn(&mut self, key: usize) {
        self.turn += 1;
        if let Some(since) = self.ready_since[key].take().filter(|_| key != LARGE) {
            let waited = self.turn - since;
            self.longest = self.longest.max(waited);
            // Two rounds of all members, and the events that were on the way when the channel became ready.
            assert!(waited <= 2 * MEMBERS + EVENTS, "channel {key} was ready for {waited} turns of others");
        }
    }

    /// Notes whether a channel is still ready right after its turn.
    fn note_ready(&mut self, key: usize) {
        self.ready_since[key] = self.channels[key].is_readable().then_some(self.turn);
    }

    /// Notes that the quiet channel is ready, if a message was announced there.
    fn note_quiet(&mut self) {
        while self.told.try_recv().is_ok() {
            self.announced += 1;
        }
        if self.announced > self.received[QUIET] {
            self.ready_since[QUIET].get_or_insert(self.turn);
        }
    }

    /// Checks that the busy channels, all of which are ready as long as the backlog lasts, had as many turns each.
    fn check_backlogs(&self) {
        let counts = || self.received[..BUSY].iter();
        let (least, most) = (*counts().min().unwrap(), *counts().max().unwrap());
        assert!(
            most.min(BACKLOG) <= least + 2,
            "one busy channel carried {most} messages while another carried {least}"
        );
    }

    fn receive(&self, key: usize) {
        let mut number = [0; 8];
        let received = self.channels[key].recv_into(&mut number, Deadline::NOW).unwrap();
        assert_eq!(received.len(), number.len(), "channel {key}");
        assert_eq!(u64::from_le_bytes(number), self.received[key], "a message of channel {key} is missing");
        if key == QUIET {
            self.channels[key].send(&number).unwrap();
        }
    }

    fn receive_huge(&mut self) {
        let received = self.channels[LARGE].recv_into(&mut self.huge, Deadline::NOW).unwrap();
        assert_eq!(received.len(), self.huge.len());
        let number = self.received[LARGE].to_le_bytes();
        assert!(self.huge.starts_with(&number) && self.huge.ends_with(&number));
    }

    fn is_done(&self) -> bool {
        self.received[..BUSY].iter().all(|&count| count == MESSAGES)
            && self.received[QUIET] == TRIPS
            && self.received[LARGE] == HUGE
    }
}

/// Starts the sending process. Returns the process and the ends of the channels once the backlog is there: the busy
/// channels, the quiet channel, the channel of huge messages, the channel of reports, and the two flooding channels.
fn start(size: usize) -> (Actor, Vec<Channel>) {
    let (actor, channel) = spawn_with("crowd", &size.to_string(), &Options::new());
    let mut ends = Vec::new();
    while ends.len() < CHANNELS {
        let handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
        ends.extend(handles.into_iter().map(|handle| handle.into_channel().unwrap()));
    }
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"the backlog is there");
    (actor, ends)
}

#[test]
fn every_channel_of_a_crowded_link_has_its_turn() {
    let size = huge();
    let (actor, mut ends) = start(size);
    // The process holds the ends of the flooding channels, and never reads from them.
    let flooded = ends.split_off(MEMBERS + 1);
    let told = ends.pop().unwrap();
    let mut receiver = Receiver::new(ends, told, size);
    let set = WaitSet::new().unwrap();
    for (key, channel) in (0..).zip(&receiver.channels) {
        set.add(channel, key, Interest::Readable, Mode::Level).unwrap();
    }
    let mut events = Vec::with_capacity(EVENTS);
    while !receiver.is_done() {
        let received = &receiver.received;
        assert!(set.wait(&mut events, DEADLINE).unwrap() > 0, "nothing came any more: {received:?}");
        receiver.serve(&events);
    }
    println!("huge messages of {} MiB; a ready channel waited {} turns at most", size >> 20, receiver.longest);
    assert!(flooded.iter().all(Channel::is_readable), "the floods came as well");
    drop(flooded);
    finish(actor);
}
