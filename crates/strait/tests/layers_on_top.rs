//! Tests of the functions that a layer on top of the library needs: looking before receiving, single handles, reasons
//! for a close, counts that only grow, children that are started in another way, and links that end without an
//! accusation.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use common::{Actor, DEADLINE, command, finish, parent, spawn, spawn_with, wait_until};
use strait::meet::Inheritance;
use strait::view::Value;
use strait::wait::{Conditions, Sprung, Traps};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("echo", |_| common::echo(&parent())),
        ("closes with a reason", closes_with_a_reason),
        ("hands on", hands_on),
        ("fills", fills),
    ]);
}

/// Sends a message and closes the channel with the reason named by the parent.
fn closes_with_a_reason(_: &str) {
    let channel = parent();
    let reason: [u8; 4] = channel.recv_by(DEADLINE).unwrap().bytes().try_into().unwrap();
    channel.send(b"last").unwrap();
    channel.close_with(u32::from_le_bytes(reason));
}

/// Receives an end, says so over it, and waits until the link has ended; both its channels end without an accusation.
fn hands_on(_: &str) {
    let channel = parent();
    let other = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    other.send(b"here").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(other.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Sends 48 MiB in small messages without waiting for its parent, and is killed while the parent has received nothing.
fn fills(_: &str) {
    let channel = Options::new().ring_max(1 << 30).from_parent().unwrap();
    let before = private_kilobytes();
    for number in 0..48u64 << 10 {
        channel.try_send(&[&number.to_le_bytes()[..], &[7; 1000]].concat()).unwrap();
    }
    assert!(private_kilobytes() < before + 16_384, "what was accepted lies in private memory");
    channel.try_send(b"all").unwrap();
    println!("sent");
    rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
}

/// Returns the resident anonymous memory of this process in kilobytes.
fn private_kilobytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn null() -> File {
    File::open("/dev/null").unwrap()
}

#[test]
fn the_next_message_is_looked_at_and_stays() {
    let (_actor, echo) = spawn("echo");
    let (a, b) = Channel::pair().unwrap();
    let look = |channel: &Channel, len: usize, handles: usize| {
        wait_until("a message is there", || channel.peek().unwrap().is_some());
        for _ in 0..2 {
            let next = channel.peek().unwrap().unwrap();
            assert_eq!((next.len, next.handles, next.is_value), (len, handles, false));
        }
    };
    for (near, far) in [(&echo, &echo), (&a, &b)] {
        assert_eq!(far.peek().unwrap(), None);
        for (len, count) in [(0, 0), (5, 0), (3_000, 2), (2_000_000, 0), (2_000_000, 3)] {
            let bytes = common::pattern(7, len);
            let (kept, _away) = Channel::pair().unwrap();
            let mut handles: Vec<Handle> = (0..count).map(|_| null().into()).collect();
            if count == 3 {
                handles[1] = kept.into();
            }
            near.send(Outgoing::new(&bytes).handles(handles)).unwrap();
            look(far, len, count);
            let message = far.recv_by(DEADLINE).unwrap();
            assert_eq!((message.bytes(), message.handles().len()), (&*bytes, count));
            far.put_back([message]).unwrap();
            look(far, len, count);
            far.recv_by(DEADLINE).unwrap();
        }
        let mut room = near.reserve_sealed(100_000).unwrap();
        room.handle(null());
        room.commit(DEADLINE).unwrap();
        look(far, 100_000, 1);
        far.recv_by(DEADLINE).unwrap();
    }
    drop(a);
    assert_eq!(b.peek().unwrap_err(), Error::PeerClosed);
}

struct Heavy(usize);

impl Value for Heavy {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        (vec![0; self.0], Vec::new())
    }

    fn size(&self) -> usize {
        self.0
    }
}

#[test]
fn a_value_counts_as_many_bytes_as_it_says() {
    let (a, b) = Channel::pair().unwrap();
    let counted = |messages, bytes, arrived| {
        let status = b.status().unwrap();
        assert_eq!((status.messages, status.bytes, status.arrived), (messages, bytes, arrived));
    };
    a.send(b"bytes").unwrap();
    a.send_value(Heavy(1000), Deadline::NOW).unwrap();
    a.send_value(Heavy(20), Deadline::NOW).unwrap();
    counted(3, 1025, 3);
    b.recv().unwrap();
    counted(2, 1020, 3);
    let next = b.peek().unwrap().unwrap();
    assert_eq!((next.len, next.handles, next.is_value), (1000, 0, true));
    let value = b.recv().unwrap();
    counted(1, 20, 3);
    b.put_back([value]).unwrap();
    counted(2, 1020, 4);
    assert_eq!(b.peek().unwrap().map(|next| (next.len, next.is_value)), Some((1000, true)));
    assert_eq!(b.recv().unwrap().take_value::<Heavy>().unwrap().0, 1000);
    b.recv().unwrap();
    counted(0, 0, 4);
}

#[test]
fn a_trap_fires_at_the_next_message_though_others_are_queued() {
    let (_actor, echo) = spawn("echo");
    echo.send(b"one").unwrap();
    wait_until("a message is queued", || echo.status().unwrap().messages == 1);
    let traps = Traps::new().unwrap();
    let (fired, sprung) = mpsc::channel();
    let next = Conditions::new().arrived(echo.status().unwrap().arrived + 1);
    traps.arm(&echo, next, move |sprung| fired.send(sprung).unwrap()).map_err(|not| not.reason).unwrap();
    traps.dispatch(Deadline::NOW).unwrap_or(0);
    assert!(sprung.try_recv().is_err(), "nothing has arrived since");
    echo.send(b"two").unwrap();
    traps.dispatch(DEADLINE).unwrap();
    let Sprung::Met(status) = sprung.try_recv().unwrap() else { panic!("the other end is open") };
    assert_eq!((status.messages, status.arrived), (2, 2));
}

#[test]
fn one_handle_is_taken_and_the_rest_keeps_its_sender() {
    let (_actor, echo) = spawn("echo");
    let files = ["a", "b", "c"].map(|content| Handle::from(common::file_with(content.as_bytes())));
    echo.send(Outgoing::new(b"three").handles(files)).unwrap();
    let mut message = echo.recv_by(DEADLINE).unwrap();
    assert!(message.take_handle(3).unwrap().is_none());
    assert_eq!(common::content_of(message.take_handle(1).unwrap().unwrap()), b"b");
    assert_eq!(message.handles().len(), 2);
    let last = message.take_handle(1).unwrap().unwrap();
    let sender = message.sender().unwrap();
    assert_ne!(sender.pid, Some(std::process::id()));
    message.set_parts(b"one".to_vec(), vec![last]);
    assert_eq!((message.bytes(), message.sender()), (b"one".as_slice(), Some(sender)));
    echo.put_back([message]).unwrap();
    let mut message = echo.recv().unwrap();
    assert_eq!(message.sender(), Some(sender));
    assert_eq!(common::content_of(message.take_handle(0).unwrap().unwrap()), b"c");
    assert!(message.take_handle(0).unwrap().is_none() && Message::new().take_handle(0).unwrap().is_none());
}

#[test]
fn a_reason_arrives_after_all_messages() {
    for reason in [0, 7, u32::MAX] {
        let (actor, channel) = spawn("closes with a reason");
        channel.send(&reason.to_le_bytes()).unwrap();
        finish(actor);
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"last");
        assert_eq!(channel.close_reason(), None);
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        assert_eq!(channel.close_reason(), Some(reason));
    }
    // A dropped end, and a dying process, give no reason.
    let (mut actor, channel) = spawn("echo");
    actor.kill();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(channel.close_reason(), None);
    let (a, b) = Channel::pair().unwrap();
    drop(a);
    assert_eq!((b.recv().unwrap_err(), b.close_reason()), (Error::PeerClosed, None));
}

/// Shows that the reason reaches an end that moves before the other end is closed.
#[test]
fn a_reason_follows_an_end_that_moves() {
    let (_actor, echo) = spawn("echo");
    let (kept, travels) = Channel::pair().unwrap();
    kept.send(b"unread").unwrap();
    echo.send(Outgoing::new(b"").handle(travels)).unwrap();
    let mut back = echo.recv_by(DEADLINE).unwrap();
    kept.close_with(42);
    let back = back.take_handle(0).unwrap().unwrap().into_channel().unwrap();
    assert_eq!(back.recv_by(DEADLINE).unwrap().bytes(), b"unread");
    assert_eq!(back.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(back.close_reason(), Some(42));
}

#[test]
fn a_close_reason_is_set_before_and_does_not_travel_to_another_process() {
    let (one, other) = Channel::pair().unwrap();
    one.set_close_reason(1);
    one.set_close_reason(2);
    let (near, far) = Channel::pair().unwrap();
    far.set_close_reason(3);
    let (_actor, echo) = spawn("echo");
    echo.send(Outgoing::new(b"").handle(far)).unwrap();
    drop(echo.recv_by(DEADLINE).unwrap());
    assert_eq!(near.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(near.close_reason(), None);
    one.close_with(4);
    assert_eq!(other.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(other.close_reason(), Some(1), "the first one stays");
}

/// Starts a process without the library's own way to do so: the descriptor is duplicated to another number.
fn start_by_hand(role: &str, number: i32, inheritance: Inheritance) -> Actor {
    let mut command: Command = command(role, "");
    command.env(Inheritance::VARIABLE, inheritance.value_at(number));
    let from = inheritance.as_raw_fd();
    // SAFETY: `dup2` is async-signal-safe, and the closure allocates nothing.
    unsafe {
        command.pre_exec(move || {
            if libc::dup2(from, number) == number { Ok(()) } else { Err(std::io::Error::last_os_error()) }
        });
    }
    Actor(command.spawn().unwrap())
}

#[test]
fn a_child_that_is_started_in_another_way_has_its_channel() {
    let (channel, inheritance) = Options::new().inheritance().unwrap();
    channel.send(b"before it runs").unwrap();
    let mut actor = start_by_hand("echo", 200, inheritance);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"before it runs");
    actor.kill();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    // If nobody takes the other end, this end is notified.
    let (channel, inheritance) = Options::new().inheritance().unwrap();
    assert!(inheritance.value().starts_with(&format!("{}:", inheritance.as_raw_fd())));
    drop(inheritance);
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn a_link_ends_with_all_its_channels_and_nobody_is_accused() {
    let accused = mpsc::channel();
    strait::quota::on_bad_peer(move |bad| accused.0.send(bad.reason).unwrap());
    let (actor, channel) = spawn("hands on");
    let (near, far) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"").handle(far)).unwrap();
    wait_until("the other process has the end", || near.peek().unwrap().is_some());
    assert!(channel.disconnect().unwrap());
    assert_eq!(near.recv_by(DEADLINE).unwrap().bytes(), b"here");
    assert_eq!(near.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert!(!channel.disconnect().unwrap() && !Channel::pair().unwrap().0.disconnect().unwrap());
    finish(actor);
    assert!(accused.1.try_recv().is_err());
}

/// Shows that a sender whose ring may grow does not wait, and that accepted messages survive the sender's death.
#[test]
fn a_ring_that_may_grow_keeps_all_that_was_accepted_in_shared_memory() {
    let (mut actor, channel) = spawn_with("fills", "", &Options::new());
    let status = actor.0.wait().unwrap();
    assert!(!status.success());
    for number in 0..48u64 << 10 {
        let message = channel.recv_by(DEADLINE).unwrap();
        assert_eq!((message.bytes().len(), &message.bytes()[..8]), (1008, &number.to_le_bytes()[..]));
    }
    assert_eq!(channel.recv_by(Duration::from_secs(1)).unwrap().bytes(), b"all");
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}
