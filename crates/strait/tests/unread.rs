//! Shows that a process that lacks a resource cannot send, rehome or fuse an end with unreceived messages, because the
//! messages travel with the end: the call reports the shortage, and the end is unchanged.

#![allow(missing_docs, reason = "a test")]

mod common;

use std::os::fd::AsRawFd;
use std::time::Duration;

use common::{DEADLINE, alone, finish, spawn};
use rustix::process::{Resource as Rlimit, Rlimit as Limit, getrlimit, setrlimit};
use strait::quota::{Limits, Resource, set_limits};
use strait::{Channel, Deadline, Error, Outgoing};

#[test]
fn child() {
    common::play(&[("writer", |_| writer()), ("holder", holder), ("taker", |_| taker())]);
}

fn end_of(mut message: strait::Message) -> Channel {
    message.take_handles().unwrap().remove(0).into_channel().unwrap()
}

fn expect(channel: &Channel, what: &[u8]) {
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), what);
}

fn large() -> Vec<u8> {
    common::pattern(1, 3000)
}

/// Keeps one end of a channel and sends the other end to the parent; sends messages, which are not received at first.
fn writer() {
    let parent = common::parent();
    let (warm, other) = Channel::pair().unwrap();
    let (mine, theirs) = Channel::pair().unwrap();
    for (end, its_other) in [(other, &warm), (theirs, &mine)] {
        parent.send(Outgoing::new(b"yours").handle(end)).unwrap();
        its_other.send(b"first").unwrap();
    }
    let how = parent.recv_by(DEADLINE).unwrap();
    if how.bytes() == b"descriptors" {
        let mut room = mine.reserve_sealed(3000).unwrap();
        room.bytes().copy_from_slice(&large());
        room.commit(DEADLINE).unwrap();
    } else {
        mine.send(&large()).unwrap();
    }
    mine.send(b"behind").unwrap();
    parent.send(b"sent both").unwrap();
    expect(&mine, b"as before");
    mine.send(b"both ways").unwrap();
    expect(&mine, b"from where it went");
    assert_eq!(mine.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    common::wait_until("the end is closed for sending too", || mine.is_peer_closed());
    parent.send(b"was told").unwrap();
    let _ = parent.recv();
}

/// Receives an end, and then all messages of the end.
fn taker() {
    let parent = common::parent();
    let end = end_of(parent.recv_by(DEADLINE).unwrap());
    expect(&end, b"first");
    parent.send(b"got it").unwrap();
    let end = end_of(parent.recv_by(DEADLINE).unwrap());
    expect(&end, &large());
    expect(&end, b"behind");
    expect(&end, b"both ways");
    end.send(b"from where it went").unwrap();
    drop(end);
    parent.send(b"closed it").unwrap();
    let _ = parent.recv();
}

/// A shortage in this process, ended by [`Shortage::end`].
enum Shortage {
    Descriptors(Limit),
    Limit,
}

impl Shortage {
    fn of(what: &str) -> Self {
        let limits = |resource, most| {
            set_limits(Limits::new().peer(resource, most).user(resource, 4 * most));
            Self::Limit
        };
        match what {
            "bytes" => limits(Resource::QueuedBytes, 1000),
            "messages" => limits(Resource::QueuedMessages, 1),
            _ => {
                let before = getrlimit(Rlimit::Nofile);
                let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
                setrlimit(Rlimit::Nofile, Limit { current: Some(next), maximum: before.maximum }).unwrap();
                Self::Descriptors(before)
            }
        }
    }

    fn error(&self, what: &str) -> Error {
        match (self, what) {
            (Self::Descriptors(_), _) => Error::NoDescriptors,
            (Self::Limit, "bytes") => Error::LimitReached(Resource::QueuedBytes),
            (Self::Limit, _) => Error::LimitReached(Resource::QueuedMessages),
        }
    }

    fn end(self) {
        match self {
            Self::Descriptors(before) => setrlimit(Rlimit::Nofile, before).unwrap(),
            Self::Limit => set_limits(Limits::new()),
        }
    }
}

/// Receives an end, fails to pass it on while the process has a shortage, and then passes it on.
fn holder(what: &str) {
    let (writer, from) = spawn("writer");
    let (taker, to) = spawn("taker");
    let warm = end_of(from.recv_by(DEADLINE).unwrap());
    let mut end = end_of(from.recv_by(DEADLINE).unwrap());
    expect(&end, b"first");
    // Everything that the three processes make only once has been made.
    to.send(Outgoing::new(b"").handle(warm)).unwrap();
    expect(&to, b"got it");
    from.send(what.as_bytes()).unwrap();
    expect(&from, b"sent both");

    let (mut near, _far) = Channel::pair().unwrap();
    let shortage = Shortage::of(what);
    let error = shortage.error(what);
    for _ in 0..3 {
        for deadline in [Deadline::NOW, Deadline::from(Duration::from_millis(20))] {
            let failed = to.send_by(Outgoing::new(b"").handle(end), deadline).unwrap_err();
            assert_eq!(failed.error, error, "sent");
            end = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
            assert_eq!(end.rehome(deadline).unwrap_err(), error, "rehomed");
            let failed = end.fuse(near, deadline).unwrap_err();
            assert_eq!(failed.error, error, "fused");
            (end, near) = failed.channels;
        }
    }
    assert!(!end.is_peer_closed());
    end.send(b"as before").unwrap();
    shortage.end();

    // The end has not moved, and has lost no message.
    to.send_by(Outgoing::new(b"").handle(end), DEADLINE).unwrap();
    expect(&to, b"closed it");
    expect(&from, b"was told");
    drop((from, to));
    finish(writer);
    finish(taker);
}

#[test]
fn an_end_that_is_sent_without_a_descriptor_stays_as_it_was() {
    alone("holder", "descriptors");
}

#[test]
fn an_end_with_more_unread_than_queued_bytes_stays_as_it_was() {
    alone("holder", "bytes");
}

#[test]
fn an_end_with_more_unread_than_queued_messages_stays_as_it_was() {
    alone("holder", "messages");
}
