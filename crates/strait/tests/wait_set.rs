//! Waiting for many channels at once.

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, SOON, Watched, alone, descriptors, finish, parent, play, spawn, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::{Channel, Deadline, Error, Event, Handle, Interest, Mode, Options, Outgoing, WaitSet};

#[test]
fn child() {
    play(&[("hub", |_| hub())]);
}

/// The only handle of the next message, an end.
fn recv_end(channel: &Channel) -> Channel {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    message.take_handles().unwrap().pop().expect("a handle").into_channel().expect("an end")
}

/// Does as the parent says, with the ends it is given.
fn hub() {
    let parent = parent();
    let mut ends: Vec<Channel> = Vec::new();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        let text = std::str::from_utf8(message.bytes()).unwrap().to_owned();
        let mut words = text.split(' ');
        let mut number = || words.next().unwrap().parse::<usize>().unwrap();
        match text.split(' ').next().unwrap() {
            "keep" => {
                ends.extend(handles.into_iter().filter_map(Handle::into_channel));
                continue;
            }
            "say" => {
                let _ = words.next();
                let through = words.next().unwrap().parse::<usize>().unwrap();
                ends[through].send_by(words.next().unwrap().as_bytes(), DEADLINE).unwrap();
            }
            // Says something through all of them.
            "all" => ends.iter().for_each(|end| end.send_by(b"all", DEADLINE).unwrap()),
            // Takes so many messages from one.
            "take" => {
                let _ = words.next();
                let from = words.next().unwrap().parse::<usize>().unwrap();
                for _ in 0..words.next().unwrap().parse::<usize>().unwrap() {
                    ends[from].recv_by(DEADLINE).unwrap();
                }
            }
            // Sends an end through another.
            "pass" => {
                let _ = words.next();
                let what = ends.remove(words.next().unwrap().parse().unwrap());
                let over = &ends[words.next().unwrap().parse::<usize>().unwrap()];
                over.send_by(Outgoing::new(b"end").handle(what), DEADLINE).unwrap();
            }
            "adopt" => {
                let _ = number();
                unreachable!()
            }
            "receive" => {
                let _ = words.next();
                let from = words.next().unwrap().parse::<usize>().unwrap();
                let end = recv_end(&ends[from]);
                ends.push(end);
            }
            "close" => {
                let _ = words.next();
                drop(ends.remove(words.next().unwrap().parse().unwrap()));
            }
            other => panic!("{other}"),
        }
        parent.send(b"done").unwrap();
    }
}

fn tell(hub: &Channel, what: &str) {
    hub.send_by(what.as_bytes(), DEADLINE).unwrap();
    assert_eq!(hub.recv_by(DEADLINE).unwrap().bytes(), b"done");
}

fn keep(hub: &Channel, end: Channel) {
    hub.send_by(Outgoing::new(b"keep").handle(end), DEADLINE).unwrap();
}

/// Channels to another process: our ends of them.
fn channels(hub: &Channel, count: usize) -> Vec<Channel> {
    (0..count)
        .map(|_| {
            let (ours, theirs) = Channel::pair().unwrap();
            keep(hub, theirs);
            ours
        })
        .collect()
}

/// The keys of what is ready, sorted.
fn ready(set: &WaitSet, deadline: impl Into<Deadline>) -> Vec<u64> {
    let mut events = Vec::new();
    set.wait(&mut events, deadline).unwrap();
    let mut keys: Vec<_> = events.iter().map(Event::key).collect();
    keys.sort_unstable();
    keys
}

fn add_all(set: &WaitSet, channels: &[Channel], mode: Mode) {
    for (key, channel) in (0..).zip(channels) {
        set.add(channel, key, Interest::Readable, mode).unwrap();
    }
}

#[test]
fn one_of_some_within_the_process() {
    let pairs: Vec<_> = (0..10).map(|_| Channel::pair().unwrap()).collect();
    let set = WaitSet::new().unwrap();
    for (key, (_, ours)) in (0..).zip(&pairs) {
        set.add(ours, key, Interest::Readable, Mode::Level).unwrap();
    }
    assert_eq!(set.len(), 10);
    assert_eq!(ready(&set, Deadline::NOW), []);
    for (key, (theirs, ours)) in (0..).zip(&pairs) {
        theirs.send(b"hello").unwrap();
        assert_eq!(ready(&set, DEADLINE), [key]);
        assert_eq!(ready(&set, DEADLINE), [key], "as long as it is there");
        ours.try_recv().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
    }
}

#[test]
fn one_of_some_to_another_process() {
    let (actor, hub) = spawn("hub");
    let ours = channels(&hub, 10);
    let set = WaitSet::new().unwrap();
    add_all(&set, &ours, Mode::Level);
    assert_eq!(ready(&set, Deadline::NOW), []);
    for key in 0..10u64 {
        tell(&hub, &format!("say {key} hello"));
        assert_eq!(ready(&set, DEADLINE), [key]);
        assert_eq!(ready(&set, DEADLINE), [key], "as long as it is there");
        ours[key as usize].try_recv().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
    }
    // While a thread sleeps.
    for key in 0..10u64 {
        hub.send(format!("say {key} hello").as_bytes()).unwrap();
        assert_eq!(ready(&set, DEADLINE), [key]);
        ours[key as usize].try_recv().unwrap();
        hub.recv_by(DEADLINE).unwrap();
    }
    drop(hub);
    finish(actor);
}
