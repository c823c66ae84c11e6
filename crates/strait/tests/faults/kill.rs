//! Tests of processes that are killed or close their ends.

use std::io::{PipeReader, PipeWriter, Read};
use std::os::fd::OwnedFd;

use crate::common::{
    Actor, DEADLINE, SOON, alone, descriptors, finish, mappings, parent, pattern, spawn, spawn_over_socket, spawn_with,
    wait_until,
};
use crate::roles::{
    WAITS, assert_files, failed, files, has_no_reader, recv, recv_in_stream, send_stream, send_until_it_fails,
    spawn_with_stdin, while_blocked,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::Signal;
use strait::{Channel, Deadline, Error, Options, Outgoing};

/// Exits without opening its side of the channel.
pub(crate) fn gone(_: &str) {}

/// Returns the number of open descriptors of another process.
pub(crate) fn descriptors_of(actor: &Actor) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", actor.pid())).unwrap().count()
}

#[test]
fn what_was_sent_by_a_peer_that_has_ended_before_we_came_is_received() {
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let one = Channel::over(one).unwrap();
    one.send(b"small").unwrap();
    one.send(Outgoing::new(&pattern(3, 100_000)).handles(files(2))).unwrap();
    drop(one);
    let other = Channel::over(other).unwrap();
    assert_eq!(recv(&other).bytes(), b"small");
    let mut large = recv(&other);
    assert_eq!(large.bytes(), pattern(3, 100_000));
    assert_files(large.take_handles().unwrap(), 2);
    assert_eq!(other.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(failed(other.send_by(b"late", DEADLINE)), Error::PeerClosed);
}

#[test]
fn a_peer_killed_before_it_takes_its_end_is_a_closed_peer() {
    let (mut actor, channel) = spawn("absent");
    channel.send(b"never received").unwrap();
    actor.kill();
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    let refused = channel.send(Outgoing::new(b"nobody").handles(files(2))).unwrap_err();
    assert_eq!(refused.error, Error::PeerClosed);
    assert_files(refused.handles, 2);
    assert!(channel.is_peer_closed());

    for wait in WAITS {
        let (mut actor, channel) = spawn_with("absent", "", &Options::new().wait(wait));
        let (result, took) = while_blocked(|| channel.recv_by(DEADLINE), || true, |_| actor.kill());
        assert_eq!(result.unwrap_err(), Error::PeerClosed, "{wait:?}");
        assert!(took < SOON, "{wait:?}: {took:?}");
    }
}

#[test]
fn a_peer_killed_while_a_receiver_is_blocked_ends_the_wait() {
    for wait in WAITS {
        let (mut actor, channel) = spawn_with("silent", "", &Options::new().wait(wait));
        recv(&channel);
        let (result, took) = while_blocked(|| channel.recv(), || true, |_| actor.kill());
        assert_eq!(result.unwrap_err(), Error::PeerClosed, "{wait:?}");
        assert!(took < SOON, "{wait:?}: {took:?}");
        assert_eq!(channel.try_recv().unwrap_err(), Error::PeerClosed);
    }
}

#[test]
fn a_peer_killed_while_a_sender_waits_for_room_in_the_ring_ends_the_wait() {
    for wait in WAITS {
        let (mut actor, channel) = spawn_with("silent", "", &Options::new().wait(wait));
        recv(&channel);
        let stalled = || channel.counters().stalls > 0;
        let (error, took) = while_blocked(|| send_until_it_fails(&channel, 1000, 0), stalled, |_| actor.kill());
        assert_eq!(error, Error::PeerClosed, "{wait:?}");
        assert!(took < SOON, "{wait:?}: {took:?}");
        assert_eq!(failed(channel.try_send(b"nobody")), Error::PeerClosed);
        assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    }
}

#[test]
fn a_peer_killed_while_a_sender_of_large_messages_waits_ends_the_wait() {
    for wait in WAITS {
        let (mut actor, channel) = spawn_with("silent", "", &Options::new().wait(wait).queue_bytes(3 << 20));
        recv(&channel);
        let stalled = || channel.counters().stalls > 0;
        let (error, took) = while_blocked(|| send_until_it_fails(&channel, 1 << 20, 0), stalled, |_| actor.kill());
        assert_eq!(error, Error::PeerClosed, "{wait:?}");
        assert!(took < SOON, "{wait:?}: {took:?}");
    }
}

#[test]
fn a_peer_killed_while_a_sender_waits_for_the_socket_ends_the_wait() {
    // The socket holds few packets; each message needs one or two packets, for memory and for handles.
    for (len, handles) in [(1 << 20, 0), (10, 1), (1 << 20, 3)] {
        for role in ["silent", "absent"] {
            let (mut actor, channel) = spawn_over_socket(role, "", &Options::new());
            if role == "silent" {
                recv(&channel);
            }
            let (error, took) =
                while_blocked(|| send_until_it_fails(&channel, len, handles), || true, |_| actor.kill());
            assert_eq!(error, Error::PeerClosed, "{len} bytes");
            assert!(took < SOON, "{took:?}");
            assert!(channel.counters().messages_sent < 20, "the sender did not wait for the socket");
            assert_eq!(failed(channel.send(b"nobody")), Error::PeerClosed);
        }
    }
}

/// Sends a sequence of messages of every kind that needs no more packets than a socket holds.
pub(crate) fn send_a_row(channel: &Channel) {
    for n in 0..40u64 {
        let len = (n % 7 * 20) as usize;
        channel.send(&pattern(n, len)).unwrap();
    }
    for n in 40..44u64 {
        channel.send(Outgoing::new(&pattern(n, 50)).handles(files(n as usize - 39))).unwrap();
    }
    for n in 44..46u64 {
        channel.send(Outgoing::new(&pattern(n, 300_000))).unwrap();
    }
    let mut room = channel.reserve_sealed(100_000).unwrap();
    room.bytes().copy_from_slice(&pattern(46, 100_000));
    room.commit(DEADLINE).unwrap();
    channel.send(&pattern(47, 9)).unwrap();
}

/// Receives and checks all messages of [`send_a_row`].
pub(crate) fn assert_row(channel: &Channel) {
    for n in 0..48u64 {
        let (len, handles) = match n {
            0..40 => ((n % 7 * 20) as usize, 0),
            40..44 => (50, n as usize - 39),
            44..46 => (300_000, 0),
            46 => (100_000, 0),
            _ => (9, 0),
        };
        let mut message = channel.recv_by(SOON).unwrap_or_else(|error| panic!("message {n}: {error}"));
        assert!(message.bytes() == pattern(n, len), "message {n}");
        assert_files(message.take_handles().unwrap(), handles);
    }
}

pub(crate) fn dies_after_sending(argument: &str) {
    let channel = parent();
    if argument == "leaves unread" {
        // With unreceived packets in its socket, the kernel resets the connection at the death of the process instead
        // of closing it.
        wait_until("a message is here to be left unread", || channel.is_readable());
    }
    send_a_row(&channel);
    rustix::process::kill_process(rustix::process::getpid(), Signal::KILL).unwrap();
}

#[test]
fn what_was_committed_before_a_kill_is_received() {
    for argument in ["", "leaves unread"] {
        let (mut actor, channel) = spawn_with("dies after sending", argument, &Options::new());
        if argument == "leaves unread" {
            channel.send(Outgoing::new(b"small").handles(files(3))).unwrap();
            channel.send(&[7; 200_000]).unwrap();
        }
        // This process receives nothing, not even packets, before the peer is dead.
        actor.0.wait().unwrap();
        assert_row(&channel);
        for _ in 0..2 {
            assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
        }
        assert_eq!(failed(channel.send(b"nobody")), Error::PeerClosed);
    }
}

#[test]
fn what_was_committed_before_a_kill_is_received_after_sends_have_failed() {
    // No other process may have a copy of the dead peer's socket.
    alone("sends to the dead", "");
}

pub(crate) fn sends_to_the_dead(_: &str) {
    let (mut actor, channel) = spawn_with("dies after sending", "leaves unread", &Options::new());
    channel.send(Outgoing::new(b"small").handles(files(3))).unwrap();
    actor.0.wait().unwrap();
    let handed_back = channel.send(Outgoing::new(b"nobody").handles(files(1))).unwrap_err();
    assert_eq!(handed_back.error, Error::PeerClosed);
    assert!(channel.is_peer_closed());
    assert_row(&channel);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
}

#[test]
fn of_a_stream_cut_off_by_a_kill_a_prefix_is_received_and_nothing_leaks() {
    alone("kills", "");
}

pub(crate) fn kills(_: &str) {
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    // Before the first channel no thread is one of the library. A sanitizer has a thread of its own.
    let others = threads();
    // The first round makes everything that the process keeps.
    let mut start = None;
    for round in 0..25u64 {
        let start_it = if round % 2 == 0 { spawn_with } else { spawn_over_socket };
        let (mut actor, channel) = start_it("stream", &u64::MAX.to_string(), &Options::new());
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| send_stream(&channel, u64::MAX));
            let kill_at = round * round * 7;
            let mut n = 0;
            let error = loop {
                if n == kill_at {
                    actor.0.kill().unwrap();
                }
                match recv_in_stream(&channel, n, SOON) {
                    Ok(()) => n += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Error::PeerClosed, "round {round}, after {n} messages");
            assert!(n >= kill_at);
            assert_eq!(sender.join().unwrap(), Err(Error::PeerClosed), "round {round}");
        });
        actor.0.wait().unwrap();
        drop(channel);
        // A thread of the library closes a socket that may have unreceived packets.
        let start = *start.get_or_insert_with(|| {
            wait_until("a thread has closed the socket", || threads() == others);
            (descriptors(), mappings())
        });
        wait_until("descriptors and mappings are as they were", || (descriptors(), mappings()) == start);
    }
}

pub(crate) fn closes_after_sending(_: &str) {
    let channel = parent();
    send_a_row(&channel);
    drop(channel);
    // The process keeps running, so the other end sees the close and not a death.
    std::thread::sleep(2 * DEADLINE);
}

#[test]
fn what_was_sent_before_a_close_is_received_and_then_the_peer_is_closed() {
    let (_actor, channel) = spawn("closes after sending");
    wait_until("the close is seen", || channel.is_peer_closed());
    let refused = channel.send(Outgoing::new(b"nobody").handles(files(2))).unwrap_err();
    assert_eq!(refused.error, Error::PeerClosed);
    assert_files(refused.handles, 2);
    assert_row(&channel);
    for _ in 0..2 {
        assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    }

    let (_actor, channel) = spawn("closes after sending");
    assert_row(&channel);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    // The peer closes one direction after the other, and may be suspended between the two.
    wait_until("the peer has closed the other direction", || channel.try_send(b"nobody").is_err());
    for len in [5, 200_000] {
        assert_eq!(failed(channel.try_send(&vec![0; len])), Error::PeerClosed);
        assert_eq!(failed(channel.send(&vec![0; len])), Error::PeerClosed);
        assert_eq!(channel.reserve(len, Deadline::NEVER).map(|_| ()), Err(Error::PeerClosed));
        assert_eq!(failed(channel.reserve_sealed(len).unwrap().commit(Deadline::NEVER)), Error::PeerClosed);
    }
}

/// Sends one message, closes the end at the end of standard input, and keeps running.
pub(crate) fn closes_on_request(_: &str) {
    let channel = parent();
    channel.send(b"here").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(channel);
    std::thread::sleep(2 * DEADLINE);
}

#[test]
fn a_close_ends_the_wait_of_whoever_is_blocked() {
    for wait in WAITS {
        let (mut actor, channel) = spawn_with_stdin("closes on request", &Options::new().wait(wait));
        recv(&channel);
        let (result, took) = while_blocked(|| channel.recv(), || true, |_| drop(actor.0.stdin.take()));
        assert_eq!(result.unwrap_err(), Error::PeerClosed);
        assert!(took < SOON, "{wait:?}: {took:?}");
        let (mut actor, channel) = spawn_with_stdin("closes on request", &Options::new().wait(wait));
        recv(&channel);
        let stalled = || channel.counters().stalls > 0;
        let (error, took) =
            while_blocked(|| send_until_it_fails(&channel, 1000, 0), stalled, |_| drop(actor.0.stdin.take()));
        assert_eq!(error, Error::PeerClosed);
        assert!(took < SOON, "{wait:?}: {took:?}");
    }
}

#[test]
fn handles_that_were_never_received_are_closed_everywhere() {
    alone("unread", "");
}

/// Sends one message, closes the end with unreceived messages, and runs until the end of standard input.
pub(crate) fn closes_unread(_: &str) {
    let channel = parent();
    channel.send(b"here").unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    assert!(channel.is_readable());
    drop(channel);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

pub(crate) fn unread(_: &str) {
    use std::io::Write;
    let start = (descriptors(), mappings());
    let (mut actor, channel) = spawn_with_stdin("closes unread", &Options::new());
    recv(&channel);
    let theirs = descriptors_of(&actor);
    let pipes: Vec<(PipeReader, PipeWriter)> = (0..8).map(|_| std::io::pipe().unwrap()).collect();
    let mut writers = Vec::new();
    for (n, (reader, writer)) in pipes.into_iter().enumerate() {
        // In the ring, in a block, and sealed.
        if n == 7 {
            let mut room = channel.reserve_sealed(100).unwrap();
            room.handle(OwnedFd::from(reader));
            room.commit(DEADLINE).unwrap();
        } else {
            let bytes = vec![0; if n == 6 { 200_000 } else { 10 }];
            channel.send(Outgoing::new(&bytes).handle(OwnedFd::from(reader))).unwrap();
        }
        writers.push(writer);
    }
    assert!(!writers.iter().any(has_no_reader), "a handle was closed before the channel");
    actor.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    wait_until("all handles are closed", || writers.iter().all(has_no_reader));
    // The channel's socket is closed too, and no other descriptor was added.
    wait_until("the peer has only its earlier descriptors", || descriptors_of(&actor) == theirs - 1);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    drop((channel, writers));
    finish(actor);
    assert_eq!((descriptors(), mappings()), start);

    // Within a process, the handles are closed as well, also if the sending end is closed first.
    let (a, b) = Channel::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    a.send(Outgoing::new(b"").handle(OwnedFd::from(reader))).unwrap();
    drop(a);
    assert!(!has_no_reader(&writer));
    drop(b);
    wait_until("the handle that was sent within the process is closed", || has_no_reader(&writer));
}

#[test]
fn a_child_that_ends_without_taking_its_channel_is_a_closed_peer() {
    let (actor, channel) = spawn("gone");
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(failed(channel.send(b"nobody")), Error::PeerClosed);
    finish(actor);
}
