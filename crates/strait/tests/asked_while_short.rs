//! Tests of an end's reports about its other end while this process lacks the descriptors to follow the other end.

mod common;

use common::{Actor, DEADLINE, alone, parent, play, spawn};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::fd::AsRawFd;
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing};

#[test]
fn child() {
    play(&[("asker", asker), ("mover", mover), ("keeper", keeper), ("rearmer", rearmer), ("taker", taker)]);
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

/// The processes through which an end moves on, with a channel to each.
struct Processes {
    _actors: [Actor; 2],
    to_mover: Channel,
    to_keeper: Channel,
}

impl Processes {
    fn start() -> Self {
        let ((mover, to_mover), (keeper, to_keeper)) = (spawn("mover"), spawn("keeper"));
        let (one, other) = Channel::pair().unwrap();
        to_mover.send(Outgoing::new(b"").handle(one)).unwrap();
        to_keeper.send(Outgoing::new(b"").handle(other)).unwrap();
        Self { _actors: [mover, keeper], to_mover, to_keeper }
    }

    /// Sends `end` to the mover, which sends the end to the keeper. Returns once the keeper has the end.
    fn move_on(&self, end: Channel) {
        self.to_mover.send(Outgoing::new(b"").handle(end)).unwrap();
        assert_eq!(self.to_keeper.recv_by(DEADLINE).unwrap().bytes(), b"it is here");
    }
}

/// Makes a call while this process has no free descriptor.
fn without_descriptors<T>(call: impl FnOnce() -> T) -> T {
    let plenty = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..plenty }).unwrap();
    let result = call();
    setrlimit(Resource::Nofile, plenty).unwrap();
    result
}

/// Receives a message whose packet brings two pieces of memory, first while one descriptor is free.
fn taker(_: &str) {
    let (one, other) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let options = Options::new().inline_max(256);
    let (near, far) = (options.over(one).unwrap(), options.over(other).unwrap());
    near.send(b"open").unwrap();
    far.recv_by(DEADLINE).unwrap();
    far.send(b"open").unwrap();
    near.recv_by(DEADLINE).unwrap();
    // The payload and the table of handles are too long for the ring.
    let (stay, travel): (Vec<_>, Vec<_>) = (0..5).map(|_| Channel::pair().unwrap()).unzip();
    near.send(Outgoing::new(&[7; 1000]).handles(travel.into_iter().map(Handle::from))).unwrap();
    let plenty = getrlimit(Resource::Nofile);
    let lowest = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest + 1), ..plenty }).unwrap();
    let early = far.try_recv().map(drop);
    setrlimit(Resource::Nofile, plenty).unwrap();
    assert_eq!(early, Err(Error::NoDescriptors));
    let mut message = far.recv_by(DEADLINE).unwrap();
    assert_eq!(message.bytes(), [7; 1000]);
    assert_eq!(message.take_handles().unwrap().len(), 5);
    drop(stay);
}

/// Shows that an honest peer does not count as bad if its packet brings two pieces of memory while one descriptor is
/// free. Runs in a process of its own, because the role limits the descriptors.
#[test]
fn a_packet_with_two_pieces_of_memory_waits_until_both_fit() {
    alone("taker", "");
}

fn rearmer(_: &str) {
    let processes = Processes::start();
    let (stays, moves) = Channel::pair().unwrap();
    let (set, mut events) = (WaitSet::new().unwrap(), Vec::new());
    set.add(&stays, 7, Interest::Readable, Mode::OneShot).unwrap();
    let rearm = || set.modify(&stays, 7, Interest::Readable, Mode::OneShot);
    moves.send(b"first").unwrap();
    assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
    assert_eq!(stays.try_recv().unwrap().bytes(), b"first");
    processes.move_on(moves);
    // Follows the other end, so that only the registration at another link is left.
    assert_eq!(stays.try_recv().unwrap_err(), Error::WouldBlock);
    assert_eq!(without_descriptors(rearm), Err(Error::NoDescriptors));
    stays.send(b"hello").unwrap();
    assert_eq!(processes.to_keeper.recv_by(DEADLINE).unwrap().bytes(), b"it works");
    // The keeper has closed the end.
    assert_eq!(stays.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    let reported = set.wait(&mut events, Deadline::NOW).unwrap();
    assert_eq!(reported, 0, "reported although it was not rearmed");
    rearm().unwrap();
    assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
}

fn asker(_: &str) {
    let processes = Processes::start();
    let (stays, moves) = Channel::pair().unwrap();
    processes.move_on(moves);
    let is_closed = without_descriptors(|| stays.is_peer_closed());
    assert!(!is_closed, "an end was reported as closed although its other end is open");
    stays.send(b"hello").unwrap();
    assert_eq!(processes.to_keeper.recv_by(DEADLINE).unwrap().bytes(), b"it works");
}

/// Shows that a one-shot registration that could not be rearmed reports nothing. Each round runs in a process of its
/// own, because the role limits the descriptors. There are many rounds, because in most rounds the library has no
/// reason to look at the end again.
#[test]
fn a_registration_that_cannot_be_rearmed_for_want_of_descriptors_is_not_armed() {
    (0..60).for_each(|_| alone("rearmer", ""));
}

/// Shows that a process without free descriptors does not report an end as closed whose other end has moved to another
/// process. Runs in a process of its own, because the role limits the descriptors of its process.
#[test]
fn an_end_that_cannot_be_followed_for_want_of_descriptors_is_not_said_to_be_closed() {
    alone("asker", "");
}
