//! Whether an end is reported as closed when this process lacks the descriptors to learn where the other end has moved.

mod common;

use common::{DEADLINE, alone, parent, play, spawn};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use strait::{Channel, Outgoing};

#[test]
fn child() {
    play(&[("asker", asker), ("mover", mover), ("keeper", keeper)]);
}

fn end_from(channel: &Channel) -> Channel {
    let mut handles = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    handles.remove(0).into_channel().unwrap()
}

fn mover(_: &str) {
    let parent = parent();
    let to_keeper = end_from(&parent);
    let moved = end_from(&parent);
    to_keeper.send(Outgoing::new(b"keep it").handle(moved)).unwrap();
    let _ = parent.recv_by(DEADLINE);
}

fn keeper(_: &str) {
    let parent = parent();
    let from_mover = end_from(&parent);
    let kept = end_from(&from_mover);
    parent.send(b"it is here").unwrap();
    assert_eq!(kept.recv_by(DEADLINE).unwrap().bytes(), b"hello");
    parent.send(b"it works").unwrap();
}

fn asker(_: &str) {
    let ((_mover, to_mover), (_keeper, to_keeper)) = (spawn("mover"), spawn("keeper"));
    let (one, other) = Channel::pair().unwrap();
    to_mover.send(Outgoing::new(b"").handle(one)).unwrap();
    to_keeper.send(Outgoing::new(b"").handle(other)).unwrap();
    let (stays, moves) = Channel::pair().unwrap();
    to_mover.send(Outgoing::new(b"").handle(moves)).unwrap();
    assert_eq!(to_keeper.recv_by(DEADLINE).unwrap().bytes(), b"it is here");
    let plenty = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..plenty }).unwrap();
    let is_closed = stays.is_peer_closed();
    setrlimit(Resource::Nofile, plenty).unwrap();
    assert!(!is_closed, "an end was reported as closed although its other end is open");
    stays.send(b"hello").unwrap();
    assert_eq!(to_keeper.recv_by(DEADLINE).unwrap().bytes(), b"it works");
}

/// Shows that a process without free descriptors does not report an end as closed whose other end has moved to another
/// process. Runs in a process of its own, because the role limits the descriptors of its process.
#[test]
fn an_end_that_cannot_be_followed_for_want_of_descriptors_is_not_said_to_be_closed() {
    alone("asker", "");
}
