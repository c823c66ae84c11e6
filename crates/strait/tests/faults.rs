//! What goes wrong between two processes, one fault a test.
//!
//! Tests that count descriptors or change what a process may do play in a process of their own ([`common::alone`]).

mod common;

use std::fs::File;
use std::io::{IoSlice, PipeReader, PipeWriter, Read};
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{
    Actor, DEADLINE, SOON, Watched, alone, content_of, descriptors, file_with, finish, mappings, parent,
    parent_over_any, pattern, refuse, spawn, spawn_over_socket, spawn_with, wait_until,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use rustix::process::{Pid, Resource, Rlimit, Signal};
use strait::{Channel, CommandExt, Deadline, Error, Handle, Message, Options, Outgoing, SendError, Wait};

const WAITS: [Wait; 3] = [Wait::Spin, Wait::Adaptive, Wait::Block];

#[test]
fn child() {
    common::play(&[
        ("echo", echo),
        ("late echo", late_echo),
        ("tells files", tells_files),
        ("tells descriptors", tells_descriptors),
        ("silent", silent),
        ("absent", absent),
        ("gone", gone),
        ("source", source),
        ("source in a row", source_in_a_row),
        ("stream", stream),
        ("dies after sending", dies_after_sending),
        ("closes after sending", closes_after_sending),
        ("closes unread", closes_unread),
        ("closes on request", closes_on_request),
        ("closed descriptor", closed_descriptor),
        ("kills", kills),
        ("sends to the dead", sends_to_the_dead),
        ("closed socket", closed_socket),
        ("unread", unread),
        ("closes without descriptors", closes_without_descriptors),
        ("sees the end", sees_the_end),
        ("handles without descriptors", handles_without_descriptors),
        ("memory without descriptors", memory_without_descriptors),
        ("larger ring without descriptors", larger_ring_without_descriptors),
        ("grows before handles", grows_before_handles),
        ("handles behind a ring without descriptors", handles_behind_a_ring_without_descriptors),
        ("sending without descriptors", sending_without_descriptors),
        ("growing without descriptors", growing_without_descriptors),
        ("refused", refused),
        ("memfd refused from the start", memfd_refused_from_the_start),
        ("memfd refused later", memfd_refused_later),
        ("futex refused", futex_refused),
        ("forks", forks),
        ("forks in the middle", forks_in_the_middle),
        ("takes twice", takes_twice),
        ("takes nothing", takes_nothing),
        ("starts a grandchild", starts_a_grandchild),
        ("interrupted", interrupted),
        ("interrupted echo", interrupted_echo),
        ("small files", small_files),
    ]);
}

// Roles that several tests use.

/// Sends back what it receives, handles included, until the channel ends.
fn echo(_: &str) {
    let channel = parent_over_any(&Options::new());
    common::echo(&channel);
}

/// The same, but takes nothing before its standard input ends; its own ring never needs to grow.
fn late_echo(_: &str) {
    let channel = parent_over_any(&Options::new().ring(1 << 20));
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    common::echo(&channel);
}

/// Takes its channel, says so, and does nothing more.
fn silent(_: &str) {
    let channel = parent_over_any(&Options::new());
    channel.send(b"here").unwrap();
    std::thread::sleep(2 * DEADLINE);
}

/// Lives without taking its channel.
fn absent(_: &str) {
    std::thread::sleep(2 * DEADLINE);
}

/// Ends without taking its channel.
fn gone(_: &str) {}

/// Sends what it is asked for: `(count, bytes each, handles each, sealed)`.
fn source(_: &str) {
    let channel = parent();
    loop {
        match channel.recv() {
            Ok(message) => {
                let field = |n: usize| u64::from_le_bytes(message.bytes()[8 * n..8 * n + 8].try_into().unwrap());
                let (count, len, handles, sealed) = (field(0), field(1) as usize, field(2), field(3) == 1);
                for n in 0..count {
                    let handles = (0..handles).map(|n| file_with(format!("file {n}").as_bytes()).into());
                    if sealed {
                        let mut room = channel.reserve_sealed(len).unwrap();
                        room.bytes().copy_from_slice(&pattern(n, len));
                        handles.for_each(|handle: Handle| room.add_handle(handle));
                        room.commit(DEADLINE).unwrap();
                    } else {
                        channel.send(Outgoing::new(&pattern(n, len)).handles(handles)).unwrap();
                    }
                }
            }
            Err(error) => return assert_eq!(error, Error::PeerClosed),
        }
    }
}

fn ask(channel: &Channel, count: u64, len: usize, handles: u64, sealed: bool) {
    let fields = [count, len as u64, handles, u64::from(sealed)];
    channel.send(&fields.iter().flat_map(|field| field.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
}

// Helpers.

fn spawn_role(role: &str) -> (Actor, Channel) {
    let (actor, channel) = spawn(role);
    assert_eq!(recv(&channel).bytes(), b"here");
    (actor, channel)
}

/// A process whose first packet is here: it brings memory, which would need a descriptor later.
fn met(role: &str) -> (Actor, Channel) {
    let (actor, channel) = spawn(role);
    await_memory(&channel);
    (actor, channel)
}

/// Waits until the memory is here that the peer brings when it opens its side. Nothing else has come.
fn await_memory(channel: &Channel) {
    let held = |channel: &Channel| Some(channel.peer_usage().unwrap()?.peer(strait::Resource::Mappings).held);
    wait_until("the peer has opened its side", || {
        assert_eq!(channel.try_recv().map(|_| ()), Err(Error::WouldBlock));
        held(channel) > Some(0)
    });
}

fn recv(channel: &Channel) -> Message {
    channel.recv_by(DEADLINE).unwrap()
}

fn failed(sent: Result<(), SendError>) -> Error {
    sent.unwrap_err().error
}

fn files(count: usize) -> Vec<Handle> {
    (0..count).map(|n| file_with(format!("file {n}").as_bytes()).into()).collect()
}

/// These handles are those of [`files`], all of them and in order.
fn assert_files(handles: Vec<Handle>, count: usize) {
    let contents: Vec<Vec<u8>> = handles.into_iter().map(content_of).collect();
    assert_eq!(contents, (0..count).map(|n| format!("file {n}").into_bytes()).collect::<Vec<_>>());
}

/// The channel still works both ways, for bytes of every kind and for handles.
fn assert_echoes(channel: &Channel) {
    for len in [0, 5, 5000, 200_000] {
        let bytes = pattern(len as u64, len);
        channel.send_by(Outgoing::new(&bytes).handles(files(2)), DEADLINE).unwrap();
        let mut message = recv(channel);
        assert!(message.bytes() == bytes, "{len} bytes");
        assert_files(message.take_handles().unwrap(), 2);
    }
}

fn pid_of(actor: &Actor) -> Pid {
    Pid::from_raw(actor.pid().cast_signed()).unwrap()
}

/// Open descriptors of another process.
fn descriptors_of(actor: &Actor) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", actor.pid())).unwrap().count()
}

/// Strait's mappings in another process.
fn mappings_of(actor: &Actor) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", actor.pid())).unwrap();
    maps.lines().filter(|line| line.contains("memfd:strait")).count()
}

/// How a process runs: 'T' when it is stopped.
fn state_of(actor: &Actor) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", actor.pid())).unwrap();
    stat.rsplit_once(") ").unwrap().1.chars().next().unwrap()
}

/// Runs `call` in a thread; once it has blocked there, `meanwhile`. What the call returned, and how long after
/// `meanwhile` began.
fn while_blocked<T: Send>(
    call: impl FnOnce() -> T + Send,
    started: impl Fn() -> bool,
    meanwhile: impl FnOnce(&Watched),
) -> (T, Duration) {
    let watched = Watched::new();
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            watched.enter();
            let result = call();
            (result, Instant::now())
        });
        wait_until("the call waits", started);
        watched.wait_until_blocked();
        assert!(!thread.is_finished(), "the call did not block");
        let begin = Instant::now();
        meanwhile(&watched);
        let (result, end) = thread.join().unwrap();
        (result, end.saturating_duration_since(begin))
    })
}

// Messages that are refused.

#[test]
fn too_many_handles_are_refused_and_come_back() {
    for limit in [64, 2] {
        let (actor, channel) = spawn_with("echo", "", &Options::new().max_handles(limit));
        let error = Error::TooManyHandles { count: limit + 1, limit };
        let check = |failed: SendError| {
            assert_eq!(failed.error, error);
            assert_files(failed.handles, limit + 1);
        };
        check(channel.send(Outgoing::new(b"refused").handles(files(limit + 1))).unwrap_err());
        let mut room = channel.reserve(7, DEADLINE).unwrap();
        files(limit + 1).into_iter().for_each(|handle| room.add_handle(handle));
        check(room.commit().unwrap_err());
        let mut room = channel.reserve_sealed(7).unwrap();
        files(limit + 1).into_iter().for_each(|handle| room.add_handle(handle));
        check(room.commit(DEADLINE).unwrap_err());
        // In a row, those before it are sent.
        let row = [limit, limit + 1, 0].map(|count| Outgoing::new(b"in a row").handles(files(count)));
        let stopped = channel.send_many(row, DEADLINE).unwrap_err();
        assert_eq!(stopped.sent, 1);
        check(stopped.failed);
        let mut first = recv(&channel);
        assert_eq!(first.bytes(), b"in a row");
        assert_files(first.take_handles().unwrap(), limit);
        assert_echoes(&channel);
        drop(channel);
        finish(actor);
    }
}

#[test]
fn a_message_over_a_smaller_limit_is_refused_and_its_handles_come_back() {
    let (actor, channel) = spawn_with("echo", "", &Options::new().max_message(1000));
    let error = Error::MessageTooLarge { len: 1001, limit: 1000 };
    let refused = channel.send(Outgoing::new(&[0; 1001]).handles(files(2))).unwrap_err();
    assert_eq!(refused.error, error);
    assert_files(refused.handles, 2);
    let parts = [IoSlice::new(&[1; 1000]), IoSlice::new(&[2])];
    assert_eq!(failed(channel.try_send(Outgoing::vectored(&parts))), error);
    assert_eq!(channel.reserve(1001, DEADLINE).unwrap_err(), error);
    assert_eq!(channel.reserve_sealed(1001).unwrap_err(), error);
    assert_eq!(channel.send_many([&[3; 1000][..], &[4; 1001]], DEADLINE).unwrap_err().sent, 1);
    assert_eq!(recv(&channel).bytes(), [3; 1000]);
    channel.send(Outgoing::vectored(&parts[..1])).unwrap();
    assert_eq!(recv(&channel).bytes(), [1; 1000]);
    drop(channel);
    finish(actor);
}

#[test]
fn a_closed_descriptor_is_refused_and_nothing_is_sent() {
    // Alone, since the number of a closed descriptor is soon somebody else's.
    alone("closed descriptor", "");
}

fn closed_descriptor(_: &str) {
    fn closed() -> OwnedFd {
        // A high number, which no file that is opened meanwhile gets.
        let fd = rustix::io::fcntl_dupfd_cloexec(file_with(b"closed"), 500).unwrap();
        let number = fd.as_raw_fd();
        drop(fd);
        // SAFETY: it is not open, which is what is tested; nobody else in this process has the number, and it is
        // forgotten before it would be closed.
        unsafe { OwnedFd::from_raw_fd(number) }
    }
    fn forget(handles: Vec<Handle>) -> usize {
        handles.into_iter().map(ManuallyDrop::new).count()
    }
    let (actor, remote) = spawn("echo");
    let (local, other) = Channel::pair().unwrap();
    for channel in [&remote, &local] {
        for len in [0, 5, 5000, 200_000, 200_000] {
            // A good one before it, so that not even that one goes.
            let (reader, writer) = std::io::pipe().unwrap();
            let bytes = pattern(9, len);
            let message = Outgoing::new(&bytes).handle(OwnedFd::from(reader)).handle(closed());
            let refused = channel.send_by(message, DEADLINE).unwrap_err();
            assert_eq!(refused.error, Error::BadHandle);
            let mut handles = refused.handles;
            assert_eq!(handles.len(), 2);
            drop(handles.remove(0));
            assert_eq!(forget(handles), 1);
            wait_until("nobody else has the other descriptor", || has_no_reader(&writer));

            let mut room = channel.reserve(len, DEADLINE).unwrap();
            room.add_handle(closed());
            let refused = room.commit().unwrap_err();
            assert_eq!((refused.error, forget(refused.handles)), (Error::BadHandle, 1));
            let mut room = channel.reserve_sealed(len).unwrap();
            room.add_handle(closed());
            let refused = room.commit(DEADLINE).unwrap_err();
            assert_eq!((refused.error, forget(refused.handles)), (Error::BadHandle, 1));
        }
        let row = [Outgoing::new(b"goes out"), Outgoing::new(b"does not").handle(closed()), Outgoing::new(b"nor does")];
        let stopped = channel.send_many(row, DEADLINE).unwrap_err();
        assert_eq!((stopped.sent, stopped.failed.error), (1, Error::BadHandle));
        assert_eq!(forget(stopped.failed.handles), 1);
        let receiver = if std::ptr::eq(channel, &raw const local) { &other } else { channel };
        assert_eq!(recv(receiver).bytes(), b"goes out");
        assert_eq!(receiver.recv_by(Duration::from_millis(20)).unwrap_err(), Error::TimedOut);
    }
    // Nothing of them piles up at the peer, where their memory may have arrived.
    assert_echoes(&remote);
    let mapped = mappings_of(&actor);
    for n in 0..700u32 {
        let mut room = remote.reserve_sealed(10).unwrap();
        room.add_handle(closed());
        assert_eq!(forget(room.commit(DEADLINE).unwrap_err().handles), 1);
        let refused = remote.send_by(Outgoing::new(&[7; 200_000]).handle(closed()), DEADLINE).unwrap_err();
        assert_eq!((refused.error, forget(refused.handles)), (Error::BadHandle, 1));
        remote.send(&n.to_le_bytes()).unwrap();
        assert_eq!(recv(&remote).bytes(), n.to_le_bytes());
    }
    assert!(mappings_of(&actor) <= mapped + 5, "{} mappings", mappings_of(&actor));
    assert_echoes(&remote);
    local.send(Outgoing::new(b"still").handles(files(1))).unwrap();
    assert_files(recv(&other).take_handles().unwrap(), 1);
    drop(remote);
    finish(actor);
}

/// Whether every reader of a pipe is closed, wherever it was.
fn has_no_reader(writer: &PipeWriter) -> bool {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    let mut fds = [PollFd::new(writer, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).unwrap();
    fds[0].revents().contains(PollFlags::ERR)
}

#[test]
fn only_a_connected_seqpacket_socket_is_taken() {
    let over = |fd: OwnedFd| Channel::over(fd, &Options::new()).map(drop);
    let pair = |kind| rustix::net::socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).unwrap();
    for kind in [SocketType::STREAM, SocketType::DGRAM] {
        let (one, other) = pair(kind);
        assert_eq!(over(one), Err(Error::NotASocket), "{kind:?}");
        assert_eq!(over(other), Err(Error::NotASocket), "{kind:?}");
    }
    let unconnected =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    assert_eq!(over(unconnected), Err(Error::NotASocket));
    assert_eq!(over(file_with(b"file")), Err(Error::NotASocket));
    assert_eq!(over(File::open("/dev/null").unwrap().into()), Err(Error::NotASocket));
    let (reader, writer) = std::io::pipe().unwrap();
    assert_eq!(over(reader.into()), Err(Error::NotASocket));
    assert_eq!(over(writer.into()), Err(Error::NotASocket));
    let (one, other) = pair(SocketType::SEQPACKET);
    let (one, other) = (Channel::over(one, &Options::new()).unwrap(), Channel::over(other, &Options::new()).unwrap());
    one.send(b"this kind").unwrap();
    assert_eq!(recv(&other).bytes(), b"this kind");
}

#[test]
fn a_socket_whose_other_end_is_closed_is_no_channel_for_long() {
    // Nobody else may have that end.
    alone("closed socket", "");
}

fn closed_socket(_: &str) {
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    drop(other);
    assert_eq!(Channel::over(one, &Options::new()).map(drop), Err(Error::PeerClosed));
}

#[test]
fn what_was_sent_by_a_peer_that_has_ended_before_we_came_is_received() {
    let (one, other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let one = Channel::over(one, &Options::new()).unwrap();
    one.send(b"small").unwrap();
    one.send(Outgoing::new(&pattern(3, 100_000)).handles(files(2))).unwrap();
    drop(one);
    let other = Channel::over(other, &Options::new()).unwrap();
    assert_eq!(recv(&other).bytes(), b"small");
    let mut large = recv(&other);
    assert_eq!(large.bytes(), pattern(3, 100_000));
    assert_files(large.take_handles().unwrap(), 2);
    assert_eq!(other.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(failed(other.send_by(b"late", DEADLINE)), Error::PeerClosed);
}

#[test]
fn a_deadline_in_the_past_lets_through_what_needs_no_waiting() {
    let past = Instant::now().checked_sub(Duration::from_secs(1)).unwrap();
    for wait in WAITS {
        let options = Options::new().wait(wait).ring_max(4096).queue_bytes(1);
        let (mut actor, channel) = spawn_with("echo", "", &options);
        for deadline in [Deadline::from(past), Deadline::from(Duration::ZERO)] {
            assert_eq!(channel.recv_by(deadline).unwrap_err(), Error::TimedOut);
            for len in [5, 200_000] {
                channel.send_by(&vec![7; len], deadline).unwrap();
                wait_until("the echo came", || channel.is_readable());
                assert_eq!(channel.recv_by(deadline).unwrap().bytes(), vec![7; len]);
            }
        }
        actor.kill();

        let (_actor, channel) = spawn_with("silent", "", &options);
        recv(&channel);
        channel.send_by(&[7; 200_000], past).unwrap();
        let refused = channel.send_by(Outgoing::new(&[7; 200_000]).handles(files(3)), past).unwrap_err();
        assert_eq!(refused.error, Error::TimedOut);
        assert_files(refused.handles, 3);
        let mut fitted = 0;
        let refused = loop {
            match channel.send_by(Outgoing::new(&[7; 500]).handles(files(1)), past) {
                Ok(()) => fitted += 1,
                Err(refused) => break refused,
            }
        };
        assert!(fitted > 0);
        assert_eq!(refused.error, Error::TimedOut);
        assert_files(refused.handles, 1);
        while channel.send_by(&[7; 500], past).is_ok() {}
        assert_eq!(failed(channel.send_by(&[7; 500], past)), Error::TimedOut);
        assert_eq!(failed(channel.send_by(&[7; 500], Duration::ZERO)), Error::TimedOut);
        assert_eq!(failed(channel.try_send(&[7; 500])), Error::WouldBlock);
        assert_eq!(channel.reserve(500, past).unwrap_err(), Error::TimedOut);
    }
}

// A peer that dies.

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

/// Sends until it fails.
fn send_until_it_fails(channel: &Channel, len: usize, handles: usize) -> Error {
    let bytes = vec![7; len];
    loop {
        match channel.send(Outgoing::new(&bytes).handles(files(handles))) {
            Ok(()) => {}
            Err(failed) => {
                assert_files(failed.handles, handles);
                return failed.error;
            }
        }
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
    // The socket holds few packets; each of these messages needs one or two, for its memory and its handles.
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
            assert!(channel.counters().messages_sent < 20, "it waited for something else");
            assert_eq!(failed(channel.send(b"nobody")), Error::PeerClosed);
        }
    }
}

/// For each line of its standard input: receives so many messages, and says what was in their files; for 0, looks long enough for
/// a message which does not come that it has taken what there is in the socket.
fn tells_files(_: &str) {
    let channel = parent_over_any(&Options::new());
    let mut before = None;
    for line in std::io::stdin().lines() {
        let count: u32 = line.unwrap().parse().unwrap();
        if count == 0 {
            assert_eq!(channel.recv_by(Duration::from_millis(150)).unwrap_err(), Error::TimedOut);
            channel.send(b"nothing").unwrap();
        }
        for _ in 0..count {
            let mut message = channel.recv_by(DEADLINE).unwrap();
            let handles = message.take_handles().unwrap().into_iter();
            let files: Vec<u8> =
                handles.filter(|handle| matches!(handle, Handle::Fd(_))).flat_map(content_of).collect();
            channel.send(&files).unwrap();
        }
        before.get_or_insert_with(descriptors);
    }
    // Nothing stays of what was sent for nothing, but for the last of it.
    assert!(descriptors() <= before.unwrap() + 2, "{} descriptors, once {}", descriptors(), before.unwrap());
}

#[test]
fn packets_of_a_message_that_failed_are_not_taken_for_those_of_the_next() {
    use std::io::Write;
    let (mut actor, channel) = spawn_over_socket("tells files", "", &Options::new());
    let mut input = actor.0.stdin.take().unwrap();
    let mut receive = |count: u32, expected: &[u8]| {
        writeln!(input, "{count}").unwrap();
        for _ in 0..count.max(1) {
            assert_eq!(recv(&channel).bytes(), expected);
        }
    };
    // Its descriptor and its memory are two packets.
    let send_two = |content: &[u8], deadline: Deadline| {
        let mut room = channel.reserve_sealed(5000).unwrap();
        room.add_handle(Channel::pair().unwrap().0);
        room.add_handle(file_with(content));
        room.commit(deadline)
    };
    send_two(b"first", DEADLINE.into()).unwrap();
    receive(1, b"first");
    let mut failed = 0;
    for before in (0..12).cycle().take(48) {
        let fills = |_: &u32| channel.send_by(Outgoing::new(b"").handle(file_with(b"fills")), Deadline::NOW).is_ok();
        let before = (0..before).take_while(fills).count() as u32;
        let sent = send_two(b"old", Deadline::NOW);
        if before > 0 {
            receive(before, b"fills");
        }
        match sent {
            Ok(()) => receive(1, b"old"),
            Err(error) => {
                assert_eq!((error.error, error.handles.len()), (Error::WouldBlock, 2));
                failed += 1;
                receive(0, b"nothing");
                channel.send_by(Outgoing::new(b"").handle(file_with(b"new")), DEADLINE).unwrap();
                receive(1, b"new");
            }
        }
    }
    assert!(failed > 3, "the socket is never full");
    drop(input);
    finish(actor);
}

/// For each line receives as many messages as it says from an end that came first, then one, and says how many descriptors it has.
fn tells_descriptors(_: &str) {
    let channel = parent_over_any(&Options::new());
    let other = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    for line in std::io::stdin().lines() {
        let count: u32 = line.unwrap().parse().unwrap();
        (0..count).for_each(|_| drop(recv(&other)));
        drop(recv(&channel));
        channel.send(&(descriptors() as u32).to_le_bytes()).unwrap();
    }
}

#[test]
fn packets_of_messages_that_failed_do_not_pile_up_where_no_other_handles_follow() {
    use std::io::Write;
    let (mut actor, channel) = spawn_over_socket("tells descriptors", "", &Options::new());
    let mut input = actor.0.stdin.take().unwrap();
    let (fills, theirs) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let mut told = |count: usize| {
        writeln!(input, "{count}").unwrap();
        u32::from_le_bytes(recv(&channel).bytes().try_into().unwrap())
    };
    channel.send(b"").unwrap();
    let at_first = told(0);
    // Its descriptor and its memory are two packets. Where there is room for both behind so many others, there is for one behind
    // one more.
    let (mut before, mut failed) = (0, 0);
    while failed < 30 {
        let fill = |_: &usize| fills.send_by(Outgoing::new(b"").handle(file_with(b"fills")), Deadline::NOW).is_ok();
        let filled = (0..before).take_while(fill).count();
        let mut room = channel.reserve_sealed(5000).unwrap();
        room.add_handle(Channel::pair().unwrap().0);
        room.add_handle(file_with(b"for nothing"));
        match room.commit(Deadline::NOW) {
            Ok(()) => before += 1,
            Err(error) => {
                assert_eq!(error.error, Error::WouldBlock);
                failed += 1;
                channel.send(b"").unwrap();
            }
        }
        told(filled);
    }
    wait_until("nothing is left of what was sent for nothing", || {
        channel.send(b"").unwrap();
        told(0) <= at_first + 1
    });
    drop(input);
    finish(actor);
}

#[test]
fn a_message_for_which_the_socket_has_no_room_is_not_sent_by_half() {
    for deadline in [Deadline::NOW, Deadline::from(Instant::now()), Deadline::after(Duration::from_millis(3))] {
        let refused = if deadline == Deadline::NOW { Error::WouldBlock } else { Error::TimedOut };
        for round in 0..3 {
            // A hello is in the socket; these packets before the first message make it fail at its first packet, at
            // its second, and so on.
            let (mut actor, channel) = spawn_over_socket("late echo", "", &Options::new());
            let mut sent = Vec::new();
            let mut send = |n: u64, kind: u64| {
                let (len, handles) = [(20, 2), (200_000, 1), (300, 3)][kind as usize];
                let bytes = pattern(n, len);
                let outcome = if kind == 2 {
                    let mut room = channel.reserve_sealed(len).unwrap();
                    room.bytes().copy_from_slice(&bytes);
                    files(handles).into_iter().for_each(|handle| room.add_handle(handle));
                    room.commit(deadline)
                } else {
                    channel.send_by(Outgoing::new(&bytes).handles(files(handles)), deadline)
                };
                match outcome {
                    Ok(()) => sent.push((bytes, handles)),
                    Err(failed) => {
                        assert_eq!(failed.error, refused);
                        assert_files(failed.handles, handles);
                    }
                }
            };
            (0..round).for_each(|n| send(n, 0));
            for n in 0..40 {
                send(100 + n, 2 - n % 3);
            }
            assert!(sent.len() < 12, "the socket is never full");
            // What was sent is there, and what was not leaves no trace.
            drop(actor.0.stdin.take());
            for (n, (bytes, handles)) in sent.into_iter().enumerate() {
                let mut message = recv(&channel);
                assert!(message.bytes() == bytes, "message {n}");
                assert_files(message.take_handles().unwrap(), handles);
            }
            assert_echoes(&channel);
            drop(channel);
            finish(actor);
        }
    }
}

#[test]
fn a_row_that_needs_more_packets_than_the_socket_holds_gets_through() {
    for wait in WAITS {
        let (actor, channel) = spawn_over_socket("echo", "", &Options::new().wait(wait));
        for len in [10, 200_000] {
            let bytes = pattern(5, len);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let row = (0..50).map(|_| Outgoing::new(&bytes).handles(files(2)));
                    assert_eq!(channel.send_many(row, DEADLINE).unwrap(), 50);
                });
                for _ in 0..50 {
                    let mut message = recv(&channel);
                    assert!(message.bytes() == bytes);
                    assert_files(message.take_handles().unwrap(), 2);
                }
            });
        }
        drop(channel);
        finish(actor);
    }
    // Whoever receives may never look at the socket of its own accord.
    let (actor, channel) = spawn_over_socket("source in a row", "", &Options::new().wait(Wait::Spin));
    channel.send(b"go").unwrap();
    for _ in 0..50 {
        assert_files(channel.recv_by(SOON).unwrap().take_handles().unwrap(), 2);
    }
    drop(channel);
    finish(actor);
}

#[test]
fn a_row_that_ends_in_a_panic_of_the_callers_leaves_the_channel_whole() {
    for (len, handles) in [(4, 0), (500, 0), (4, 1), (200_000, 0)] {
        for panics_at in [0, 1, 2, 7] {
            let (actor, channel) = spawn("echo");
            let bytes: Vec<Vec<u8>> = (0..10).map(|n| pattern(n, len)).collect();
            let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                let row = bytes.iter().enumerate().map(|(n, bytes)| {
                    if n == panics_at {
                        // Not by `panic!`, which would be reported.
                        std::panic::resume_unwind(Box::new("the caller's own"));
                    }
                    Outgoing::new(bytes).handles(files(handles))
                });
                channel.send_many(row, DEADLINE)
            }));
            assert!(outcome.is_err());
            channel.send(b"after it").unwrap();
            // Whatever was sent of the row is whole, in order, and comes before.
            let mut arrived = 0;
            loop {
                let mut message = recv(&channel);
                if message.bytes() == b"after it" {
                    break;
                }
                assert!(message.bytes() == bytes[arrived], "message {arrived} of {len} bytes");
                assert_files(message.take_handles().unwrap(), handles);
                arrived += 1;
            }
            assert!(arrived <= panics_at);
            assert_echoes(&channel);
            drop(channel);
            finish(actor);
        }
    }
}

/// Sends a row of messages with handles when it is told to.
fn source_in_a_row(_: &str) {
    let channel = parent_over_any(&Options::new());
    recv(&channel);
    let row = (0..50).map(|_| Outgoing::new(b"in a row").handles(files(2)));
    assert_eq!(channel.send_many(row, DEADLINE).unwrap(), 50);
    assert_eq!(channel.recv().unwrap_err(), Error::PeerClosed);
}

/// A row of messages of every kind that needs no more packets than a socket holds.
fn send_a_row(channel: &Channel) {
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

/// Receives all of [`send_a_row`].
fn assert_row(channel: &Channel) {
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

fn dies_after_sending(argument: &str) {
    let channel = parent();
    if argument == "leaves unread" {
        // What it leaves unread in its socket makes the kernel reset the connection instead of closing it.
        wait_until("something is here to be left", || channel.is_readable());
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
        // Nothing is received, and nothing taken in, before it is dead.
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
    // Nobody else may have the socket of the dead.
    alone("sends to the dead", "");
}

fn sends_to_the_dead(_: &str) {
    let (mut actor, channel) = spawn_with("dies after sending", "leaves unread", &Options::new());
    channel.send(Outgoing::new(b"small").handles(files(3))).unwrap();
    actor.0.wait().unwrap();
    let handed_back = channel.send(Outgoing::new(b"nobody").handles(files(1))).unwrap_err();
    assert_eq!(handed_back.error, Error::PeerClosed);
    assert!(channel.is_peer_closed());
    assert_row(&channel);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
}

/// A message of the stream: its size, and whether a file comes with it, by its number.
fn in_stream(n: u64) -> (Vec<u8>, bool) {
    let len = match n % 50 {
        7 => 100_000,
        13 | 29 => 5000,
        other => (other * 13 % 200) as usize,
    };
    (pattern(n, len), n % 40 == 5)
}

/// Sends the stream; an error ends it.
fn send_stream(channel: &Channel, count: u64) -> Result<(), Error> {
    for n in 0..count {
        let (bytes, file) = in_stream(n);
        let handles = file.then(|| Handle::from(file_with(&n.to_le_bytes())));
        channel.send_by(Outgoing::new(&bytes).handles(handles), DEADLINE)?;
    }
    Ok(())
}

/// Receives message `n` of the stream, if there is one.
fn recv_in_stream(channel: &Channel, n: u64, deadline: Duration) -> Result<(), Error> {
    let mut message = channel.recv_by(deadline)?;
    let (bytes, file) = in_stream(n);
    assert!(message.bytes() == bytes, "message {n}");
    let contents: Vec<Vec<u8>> = message.take_handles().unwrap().into_iter().map(content_of).collect();
    assert_eq!(contents, Vec::from_iter(file.then(|| n.to_le_bytes().to_vec())), "message {n}");
    Ok(())
}

/// Sends and receives so many messages of the stream at once.
fn stream(argument: &str) {
    let channel = parent_over_any(&Options::new());
    let count = argument.parse().unwrap();
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_stream(&channel, count));
        let received: Result<(), Error> = (0..count).try_for_each(|n| recv_in_stream(&channel, n, DEADLINE));
        assert_eq!((sender.join().unwrap(), received), (Ok(()), Ok(())));
    });
}

#[test]
fn of_a_stream_cut_off_by_a_kill_a_prefix_is_received_and_nothing_leaks() {
    alone("kills", "");
}

fn kills(_: &str) {
    // One first, so that what the process itself keeps is there.
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
        // A thread of the library closes a socket in which something may be unread.
        let start = *start.get_or_insert_with(|| {
            wait_until("a thread has closed the socket", || std::fs::read_dir("/proc/self/task").unwrap().count() == 2);
            (descriptors(), mappings())
        });
        wait_until("descriptors and mappings are as they were", || (descriptors(), mappings()) == start);
    }
}

// A peer that closes.

fn closes_after_sending(_: &str) {
    let channel = parent();
    send_a_row(&channel);
    drop(channel);
    // It lives on: what the other end sees is the close, not the death.
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
    // It closes one direction and then the other, and may be stopped between the two.
    wait_until("it receives no more either", || channel.try_send(b"nobody").is_err());
    for len in [5, 200_000] {
        assert_eq!(failed(channel.try_send(&vec![0; len])), Error::PeerClosed);
        assert_eq!(failed(channel.send(&vec![0; len])), Error::PeerClosed);
        assert_eq!(channel.reserve(len, Deadline::NEVER).map(|_| ()), Err(Error::PeerClosed));
        assert_eq!(failed(channel.reserve_sealed(len).unwrap().commit(Deadline::NEVER)), Error::PeerClosed);
    }
}

/// Takes its channel and says so; closes it when its standard input ends, and lives on.
fn closes_on_request(_: &str) {
    let channel = parent();
    channel.send(b"here").unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    drop(channel);
    std::thread::sleep(2 * DEADLINE);
}

/// A process whose channel or work begins or ends when its standard input does.
fn spawn_with_stdin(role: &str, options: &Options) -> (Actor, Channel) {
    let (child, channel) = common::command(role, "").stdin(Stdio::piped()).spawn_with_channel(options).unwrap();
    (Actor(child), channel)
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

/// Says that it is here, and closes without receiving what came; then lives until its standard input ends.
fn closes_unread(_: &str) {
    let channel = parent();
    channel.send(b"here").unwrap();
    std::io::stdin().read_exact(&mut [0]).unwrap();
    assert!(channel.is_readable());
    drop(channel);
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn unread(_: &str) {
    use std::io::Write;
    let start = (descriptors(), mappings());
    let (mut actor, channel) = spawn_with_stdin("closes unread", &Options::new());
    recv(&channel);
    let theirs = descriptors_of(&actor);
    let pipes: Vec<(PipeReader, PipeWriter)> = (0..8).map(|_| std::io::pipe().unwrap()).collect();
    let mut writers = Vec::new();
    for (n, (reader, writer)) in pipes.into_iter().enumerate() {
        // In the ring, in a block, sealed.
        if n == 7 {
            let mut room = channel.reserve_sealed(100).unwrap();
            room.add_handle(OwnedFd::from(reader));
            room.commit(DEADLINE).unwrap();
        } else {
            let bytes = vec![0; if n == 6 { 200_000 } else { 10 }];
            channel.send(Outgoing::new(&bytes).handle(OwnedFd::from(reader))).unwrap();
        }
        writers.push(writer);
    }
    assert!(!writers.iter().any(has_no_reader), "nobody closed them before");
    actor.0.stdin.as_mut().unwrap().write_all(b"x").unwrap();
    wait_until("all are closed", || writers.iter().all(has_no_reader));
    // The channel's socket is gone too, and nothing else has come.
    wait_until("the peer has what it had", || descriptors_of(&actor) == theirs - 1);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::PeerClosed);
    drop((channel, writers));
    finish(actor);
    assert_eq!((descriptors(), mappings()), start);

    // The same within a process, and when the sending side goes first.
    let (a, b) = Channel::pair().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    a.send(Outgoing::new(b"").handle(OwnedFd::from(reader))).unwrap();
    drop(a);
    assert!(!has_no_reader(&writer));
    drop(b);
    wait_until("the one that was sent within the process is closed", || has_no_reader(&writer));
}

// No descriptors left.

/// Every descriptor that this process may have.
struct Exhausted(Vec<File>);

impl Exhausted {
    fn new() -> Self {
        let limit = descriptors() as u64 + 20;
        let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: hard }).unwrap();
        let all = Self(std::iter::from_fn(|| File::open("/dev/null").ok()).collect());
        assert!(all.0.len() >= 10);
        all
    }

    /// Makes so many of them free.
    fn free(&mut self, count: usize) {
        self.0.truncate(self.0.len() - count);
    }

    /// How many are free.
    fn count_free(&mut self) -> usize {
        let free = std::iter::from_fn(|| File::open("/dev/null").ok()).collect::<Vec<File>>();
        free.len()
    }
}

/// Closes an end whose other end has moved to a process that is not known here, while there is no descriptor for getting to know it.
/// What it is told it reads elsewhere: whoever waits on the channel gets to know that process.
fn closes_without_descriptors(_: &str) {
    let channel = parent();
    let mut lines = std::io::stdin().lines();
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "it has moved");
    common::handle_signals();
    let all = Exhausted::new();
    drop(end);
    channel.send(b"closed").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "have descriptors");
    assert_eq!(common::handled_by(), 0);
    drop(all);
    channel.send(b"has descriptors").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Says what became of an end that it is given.
fn sees_the_end(_: &str) {
    let channel = parent();
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    // One direction is closed after the other.
    wait_until("nobody is sent to", || {
        end.send_by(b"", DEADLINE).is_err_and(|failed| failed.error == Error::PeerClosed)
    });
    channel.send(b"saw it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn an_end_that_was_closed_for_want_of_descriptors_is_closed_once_there_are_some() {
    use std::io::Write;
    let mut command = common::command("closes without descriptors", "");
    let (child, to_closing) = command.stdin(Stdio::piped()).spawn_with_channel(&Options::new()).unwrap();
    let mut closing = Actor(child);
    let mut input = closing.0.stdin.take().unwrap();
    let (seeing, to_seeing) = spawn("sees the end");
    let (one, other) = Channel::pair().unwrap();
    to_closing.send(Outgoing::new(b"").handle(one)).unwrap();
    assert_eq!(recv(&to_closing).bytes(), b"has it");
    to_seeing.send(Outgoing::new(b"").handle(other)).unwrap();
    assert_eq!(recv(&to_seeing).bytes(), b"has it");
    writeln!(input, "it has moved").unwrap();
    assert_eq!(recv(&to_closing).bytes(), b"closed");
    // The thread that closes it later is none that handlers of the program run on.
    common::assert_handles_no_signals(closing.pid(), "strait-unclosed");
    writeln!(input, "have descriptors").unwrap();
    assert_eq!(recv(&to_closing).bytes(), b"has descriptors");
    assert_eq!(recv(&to_seeing).bytes(), b"saw it");
    drop((to_closing, to_seeing));
    finish(closing);
    finish(seeing);
}

#[test]
fn handles_that_find_no_free_descriptor_are_an_error_of_their_message_alone() {
    alone("handles without descriptors", "");
}

fn handles_without_descriptors(_: &str) {
    let start = (descriptors(), mappings());
    let (actor, channel) = spawn("source");
    let bytes = pattern(0, 40);
    // Once in good times.
    ask(&channel, 1, 40, 3, false);
    assert_files(recv(&channel).take_handles().unwrap(), 3);

    let mut all = Exhausted::new();
    for free in [0, 1, 2] {
        let lost = Error::HandlesLost { sent: 3, arrived: free };
        assert_eq!(all.count_free(), free);
        ask(&channel, 1, 40, 3, false);
        let mut message = recv(&channel);
        assert_eq!(message.bytes(), bytes);
        assert_eq!(message.take_handles().unwrap_err(), lost);
        drop(message);
        assert_eq!(all.count_free(), free);

        ask(&channel, 1, 40, 3, false);
        let mut buffer = [0; 100];
        let mut received = channel.recv_into(&mut buffer, DEADLINE).unwrap();
        assert_eq!(buffer[..received.len()], bytes);
        assert_eq!(received.take_handles().unwrap_err(), lost);

        ask(&channel, 1, 40, 3, false);
        let mut message = channel.recv_in_place(DEADLINE).unwrap();
        message.copy_to(0, &mut buffer[..40]);
        assert_eq!(buffer[..40], bytes);
        assert_eq!(message.take_handles().unwrap_err(), lost);
        drop(message);
        assert_eq!(all.count_free(), free);

        // Messages without handles around it are not concerned.
        ask(&channel, 1, 40, 0, false);
        ask(&channel, 1, 40, 3, false);
        ask(&channel, 1, 40, 0, false);
        assert_eq!(recv(&channel).take_handles().unwrap().len(), 0);
        assert_eq!(recv(&channel).take_handles().unwrap_err(), lost);
        assert_eq!(recv(&channel).take_handles().unwrap().len(), 0);
        all.free(1);
    }
    // Three are free now, which is enough.
    ask(&channel, 1, 40, 3, false);
    assert_files(recv(&channel).take_handles().unwrap(), 3);
    assert_eq!(all.count_free(), 3);
    drop((all, channel));
    finish(actor);
    assert_eq!((descriptors(), mappings()), start);
}

#[test]
fn memory_that_finds_no_free_descriptor_waits_until_there_is_one() {
    alone("memory without descriptors", "");
}

fn memory_without_descriptors(_: &str) {
    let (actor, channel) = met("source");
    let mut all = Exhausted::new();
    // A block, a sealed payload, and both again.
    for (sealed, len) in [(false, 200_000), (true, 100_000), (false, 1 << 20), (true, 50)] {
        ask(&channel, 1, 10, 0, false);
        ask(&channel, 1, len, 0, sealed);
        ask(&channel, 1, 20, 0, false);
        // Who sleeps until the first comes may be told of the second's memory.
        let mut first = Err(Error::NoDescriptors);
        wait_until("the first is there", || {
            first = channel.recv_by(DEADLINE);
            !matches!(first, Err(Error::NoDescriptors))
        });
        assert_eq!(first.unwrap().bytes(), pattern(0, 10));
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::NoDescriptors);
        wait_until("it is there to be received", || channel.is_readable());
        for _ in 0..3 {
            assert_eq!(channel.recv().unwrap_err(), Error::NoDescriptors);
            assert_eq!(channel.try_recv().unwrap_err(), Error::NoDescriptors);
            assert_eq!(channel.recv_in_place(DEADLINE).unwrap_err(), Error::NoDescriptors);
            let mut buffer = vec![0; len];
            assert_eq!(channel.recv_into(&mut buffer, DEADLINE).unwrap_err(), Error::NoDescriptors);
            assert_eq!(channel.recv_many(&mut [Message::new()], DEADLINE).unwrap_err(), Error::NoDescriptors);
            let needed = Error::BufferTooSmall { needed: len };
            assert_eq!(channel.recv_into(&mut buffer[1..], DEADLINE).unwrap_err(), needed);
        }
        all.free(1);
        let received = recv(&channel);
        assert!(received.bytes() == pattern(0, len), "{len} bytes, sealed: {sealed}");
        assert_eq!(recv(&channel).bytes(), pattern(0, 20));
        assert_eq!(all.count_free(), 1, "none is kept");
        all.0.push(File::open("/dev/null").unwrap());
    }
    // Memory that is mapped already needs none.
    ask(&channel, 1, 200_000, 0, false);
    assert!(recv(&channel).bytes() == pattern(0, 200_000));
    drop((all, channel));
    finish(actor);
}

#[test]
fn a_larger_ring_that_finds_no_free_descriptor_waits_until_there_is_one() {
    alone("larger ring without descriptors", "");
}

fn larger_ring_without_descriptors(_: &str) {
    let (actor, channel) = met("source");
    let mut all = Exhausted::new();
    // More than the first ring holds, which therefore grows at the other side.
    ask(&channel, 100, 1000, 0, false);
    let mut received = 0;
    let refused = loop {
        match channel.recv_by(DEADLINE) {
            Ok(message) => assert!(message.bytes() == pattern(received, 1000), "message {received}"),
            Err(error) => break error,
        }
        received += 1;
        assert!(received < 100, "the ring did not grow");
        // Not too fast for it to fill up.
        std::thread::sleep(Duration::from_millis(1));
    };
    assert_eq!(refused, Error::NoDescriptors);
    assert_eq!(channel.try_recv().unwrap_err(), Error::NoDescriptors);
    all.free(1);
    for n in received..100 {
        assert!(recv(&channel).bytes() == pattern(n, 1000), "message {n}");
    }
    assert_eq!(all.count_free(), 1);
    drop((all, channel));
    finish(actor);
}

/// Has the ring of one channel grow, and then sends handles over another.
fn grows_before_handles(_: &str) {
    let channel = common::parent();
    let other = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    recv(&channel);
    for n in 0..20 {
        other.send(&pattern(n, 1000)).unwrap();
    }
    channel.send(Outgoing::new(b"handles").handles(files(2))).unwrap();
    assert_eq!(channel.recv().unwrap_err(), Error::PeerClosed);
}

#[test]
fn handles_behind_the_ring_of_another_channel_wait_until_there_is_a_descriptor() {
    alone("handles behind a ring without descriptors", "");
}

fn handles_behind_a_ring_without_descriptors(_: &str) {
    let (actor, channel) = met("grows before handles");
    let (one, other) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"other").handle(other)).unwrap();
    let mut all = Exhausted::new();
    channel.send(b"go").unwrap();
    // The ring is in the socket before the handles, and neither is lost.
    for _ in 0..3 {
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::NoDescriptors);
    }
    all.free(2);
    let mut message = recv(&channel);
    assert_eq!(message.bytes(), b"handles");
    assert_files(message.take_handles().unwrap(), 2);
    for n in 0..20 {
        assert!(recv(&one).bytes() == pattern(n, 1000), "message {n}");
    }
    drop((all, one, channel));
    finish(actor);
}

#[test]
fn a_sender_without_free_descriptors_says_so_and_sends_small_messages() {
    alone("sending without descriptors", "");
}

fn sending_without_descriptors(_: &str) {
    let (actor, channel) = met("echo");
    let handles = files(3);
    let mut all = Exhausted::new();
    let large = pattern(1, 200_000);
    let refused = channel.send(Outgoing::new(&large).handles(handles)).unwrap_err();
    assert_eq!((refused.error, refused.handles.len()), (Error::NoDescriptors, 3));
    assert_eq!(channel.reserve(200_000, DEADLINE).map(|_| ()), Err(Error::NoDescriptors));
    assert_eq!(channel.reserve_sealed(10).map(|_| ()), Err(Error::NoDescriptors));
    let row: [&[u8]; 3] = [b"goes out", &large, b"does not"];
    let stopped = channel.send_many(row, DEADLINE).unwrap_err();
    assert_eq!((stopped.sent, stopped.failed.error), (1, Error::NoDescriptors));
    assert_eq!(recv(&channel).bytes(), b"goes out");
    // Handles to send need no new descriptor; those that come back do.
    channel.send(Outgoing::new(b"with handles").handles(refused.handles)).unwrap();
    assert_files(recv(&channel).take_handles().unwrap(), 3);
    all.free(5);
    channel.send(Outgoing::new(&large)).unwrap();
    assert!(recv(&channel).bytes() == large);
    // That memory is warm now, and none is needed.
    let _none = Exhausted::new();
    channel.send(Outgoing::new(&large)).unwrap();
    assert!(recv(&channel).bytes() == large);
    drop((all, channel));
    finish(actor);
}

#[test]
fn a_ring_that_cannot_grow_for_want_of_descriptors_fills_up() {
    alone("growing without descriptors", "");
}

fn growing_without_descriptors(_: &str) {
    let (mut actor, channel) = spawn_with_stdin("late echo", &Options::new());
    // Its hello needs a descriptor.
    await_memory(&channel);
    let all = Exhausted::new();
    let mut sent = 0u64;
    while channel.try_send(&sent.to_le_bytes()).is_ok() {
        sent += 1;
        assert!(sent < 1000, "the ring grew");
    }
    assert!(sent > 100, "{sent}");
    assert_eq!(failed(channel.try_send(b"full")), Error::WouldBlock);
    assert_eq!(failed(channel.send_by(b"full", Duration::from_millis(30))), Error::TimedOut);
    // A message that no ring of this size takes is another matter.
    assert_eq!(failed(channel.try_send(&[7; 20_000])), Error::NoDescriptors);
    assert_eq!(channel.counters().grown, 0);
    drop(all);
    drop(actor.0.stdin.take());
    std::thread::scope(|scope| {
        scope.spawn(|| (sent..5000).for_each(|n| channel.send_by(&n.to_le_bytes(), DEADLINE).unwrap()));
        for n in 0..5000u64 {
            assert_eq!(recv(&channel).bytes(), n.to_le_bytes());
        }
    });
    drop(channel);
    finish(actor);

    // And with none free until the end: those that were stuck get on when the peer makes room.
    let (mut actor, channel) = spawn_with_stdin("late echo", &Options::new());
    await_memory(&channel);
    let mut all = Exhausted::new();
    let mut sent = 0u64;
    while sent_or_full(channel.try_send(&sent.to_le_bytes())) {
        sent += 1;
    }
    drop(actor.0.stdin.take());
    all.0.push(File::open("/dev/null").unwrap());
    assert_eq!(all.count_free(), 0);
    for n in 0..2000u64 {
        if n + sent < 2000 {
            channel.send_by(&(n + sent).to_le_bytes(), DEADLINE).unwrap();
        }
        assert_eq!(recv(&channel).bytes(), n.to_le_bytes());
    }
    assert_eq!(channel.counters().grown, 0);
    drop((all, channel));
    finish(actor);
}

/// Whether it was sent; full is the only other outcome.
fn sent_or_full(sent: Result<(), SendError>) -> bool {
    match sent {
        Ok(()) => true,
        Err(failed) => {
            assert_eq!(failed.error, Error::WouldBlock);
            false
        }
    }
}

#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_signal() {
    alone("small files", "");
}

fn small_files(_: &str) {
    let (actor, channel) = spawn("echo");
    assert_echoes(&channel);
    drop(channel);
    finish(actor);

    let (mut actor, channel) = spawn_with_stdin("late echo", &Options::new());
    await_memory(&channel);
    let set = |bytes| {
        let hard = rustix::process::getrlimit(Resource::Fsize).maximum;
        rustix::process::setrlimit(Resource::Fsize, Rlimit { current: bytes, maximum: hard }).unwrap();
    };
    let too_large = |error: Error| match error {
        Error::System { call, code } => call.contains("ftruncate") && code == libc::EFBIG,
        _ => false,
    };
    // Above the first ring, below the second.
    set(Some(20_000));
    let refused = channel.send(&[7; 200_000]).unwrap_err();
    assert!(too_large(refused.error), "{refused}");
    assert!(channel.reserve(200_000, DEADLINE).is_err_and(too_large));
    assert!(channel.reserve_sealed(200_000).is_err_and(too_large));
    // No ring of the first size takes this.
    assert!(too_large(failed(channel.send(&[7; 20_000]))));
    let mut sent = 0u64;
    while sent_or_full(channel.try_send(&sent.to_le_bytes())) {
        sent += 1;
        assert!(sent < 1000, "the ring grew");
    }
    set(None);
    channel.send(&pattern(1, 200_000)).unwrap();
    drop(actor.0.stdin.take());
    for n in 0..sent {
        assert_eq!(recv(&channel).bytes(), n.to_le_bytes());
    }
    assert!(recv(&channel).bytes() == pattern(1, 200_000));
    drop(channel);
    finish(actor);

    // A channel itself needs memory.
    set(Some(1000));
    let (one, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    assert!(Channel::over(one, &Options::new()).is_err_and(too_large));
}

// A kernel that refuses.

/// Ends this process, well if `play` returned. The test harness needs calls that are refused.
fn end_after(play: impl FnOnce() + std::panic::UnwindSafe) -> ! {
    let status = i32::from(std::panic::catch_unwind(play).is_err());
    // SAFETY: it does not return; nothing of this process is used after it.
    unsafe { libc::_exit(status) }
}

const REFUSALS: [libc::c_int; 2] = [libc::EPERM, libc::ENOSYS];

/// Its channel cannot be opened.
fn refused(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        refuse(libc::SYS_memfd_create, errno);
        let error = strait::from_parent(&Options::new()).map(drop).unwrap_err();
        assert_eq!(error, Error::System { call: "memfd_create", code: errno });
    });
}

#[test]
fn a_kernel_that_refuses_memfds_is_named_and_the_peer_sees_a_closed_channel() {
    for errno in REFUSALS {
        alone("memfd refused from the start", &errno.to_string());
        let (actor, channel) = spawn_with("refused", &errno.to_string(), &Options::new());
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
        finish(actor);
    }
}

fn memfd_refused_from_the_start(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        refuse(libc::SYS_memfd_create, errno);
        let start = descriptors();
        let (one, other) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let error = Channel::over(one, &Options::new()).map(drop).unwrap_err();
        assert_eq!(error, Error::System { call: "memfd_create", code: errno });
        assert!(error.to_string().starts_with("memfd_create: "), "{error}");
        drop(other);
        assert_eq!(descriptors(), start);
        // Within a process none is needed.
        let (a, b) = Channel::pair().unwrap();
        a.send(&pattern(1, 200_000)).unwrap();
        assert!(recv(&b).bytes() == pattern(1, 200_000));
    });
}

#[test]
fn a_kernel_that_refuses_memfds_later_leaves_what_needs_none() {
    for errno in REFUSALS {
        alone("memfd refused later", &errno.to_string());
    }
}

fn memfd_refused_later(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        let (mut actor, channel) = spawn_with_stdin("late echo", &Options::new());
        refuse(libc::SYS_memfd_create, errno);
        let refused = Error::System { call: "memfd_create", code: errno };
        assert_eq!(failed(channel.send(&[7; 200_000])), refused);
        assert_eq!(channel.reserve(200_000, DEADLINE).map(|_| ()), Err(refused));
        assert_eq!(channel.reserve_sealed(10).map(|_| ()), Err(refused));
        let mut sent = 0u64;
        while sent_or_full(channel.try_send(&sent.to_le_bytes())) {
            sent += 1;
            assert!(sent < 1000, "the ring grew");
        }
        drop(actor.0.stdin.take());
        for n in 0..sent {
            assert_eq!(recv(&channel).bytes(), n.to_le_bytes());
        }
    });
}

#[test]
fn a_kernel_that_refuses_futexes_is_named_or_done_without() {
    for errno in REFUSALS {
        alone("futex refused", &errno.to_string());
    }
}

fn futex_refused(argument: &str) {
    let errno = argument.parse().unwrap();
    end_after(move || {
        let mut channels = WAITS.map(|wait| spawn_with("echo", "", &Options::new().wait(wait)));
        refuse(libc::SYS_futex, errno);
        for (actor, channel) in &mut channels {
            for len in [0, 5, 5000, 200_000] {
                let bytes = pattern(len as u64, len);
                // Waiting may be refused, by name; then the answer still comes.
                let named = |error: Error| assert_eq!(error, Error::System { call: "futex", code: errno });
                let begin = Instant::now();
                while let Err(failed) = channel.send_by(&bytes, DEADLINE) {
                    named(failed.error);
                    assert!(begin.elapsed() < DEADLINE);
                }
                let message = loop {
                    match channel.recv_by(DEADLINE) {
                        Ok(message) => break message,
                        Err(error) => named(error),
                    }
                    assert!(begin.elapsed() < DEADLINE);
                };
                assert!(message.bytes() == bytes, "{len} bytes");
            }
            actor.kill();
            let error = loop {
                match channel.recv_by(DEADLINE).unwrap_err() {
                    Error::System { call: "futex", .. } => {
                        assert!(channel.is_peer_closed(), "its death is seen without futexes");
                    }
                    other => break other,
                }
            };
            assert_eq!(error, Error::PeerClosed);
        }
        let (a, b) = Channel::pair().unwrap();
        a.send(b"within").unwrap();
        assert_eq!(b.recv().unwrap().bytes(), b"within");
        let error = b.recv_by(Duration::from_millis(20)).unwrap_err();
        assert!(matches!(error, Error::System { call: "futex", .. } | Error::TimedOut), "{error}");
    });
}

// Children that do not take their channel, and those that should not.

#[test]
fn a_child_that_ends_without_taking_its_channel_is_a_closed_peer() {
    let (actor, channel) = spawn("gone");
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(failed(channel.send(b"nobody")), Error::PeerClosed);
    finish(actor);
}

#[test]
fn a_child_that_never_takes_its_channel_lets_sends_succeed_until_the_queue_is_full() {
    for (len, handles, least) in [(8, 0, 1000), (1000, 0, 100), (200_000, 0, 3), (8, 1, 3)] {
        let (_actor, channel) = spawn("absent");
        let mut sent = 0;
        let refused = loop {
            let message = vec![0; len];
            match channel.send_by(Outgoing::new(&message).handles(files(handles)), Duration::from_millis(50)) {
                Ok(()) => sent += 1,
                Err(refused) => break refused,
            }
        };
        assert_eq!(refused.error, Error::TimedOut, "{len} bytes");
        assert_files(refused.handles, handles);
        assert!(sent >= least, "{sent} messages of {len} bytes");
        assert_eq!(failed(channel.try_send(Outgoing::new(&vec![0; len]).handles(files(handles)))), Error::WouldBlock);
        assert_eq!(channel.recv_by(Duration::from_millis(20)).unwrap_err(), Error::TimedOut);
        assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
        assert_eq!(channel.peer().unwrap(), None);
        assert!(!channel.is_peer_closed() && !channel.is_readable());
    }
}

#[test]
fn a_forked_child_is_told_so_and_the_parent_goes_on() {
    alone("forks", "");
}

/// Forks; what the child does must end well, and the parent waits for that.
fn in_forked_child(play: impl FnOnce()) {
    // SAFETY: the child runs the closure, which allocates at most (which the C library makes safe after a fork), and
    // ends with `_exit`.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        end_after(std::panic::AssertUnwindSafe(play));
    }
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    assert_eq!(unsafe { libc::waitpid(pid, &raw mut status, 0) }, pid);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "the forked child ended with {status:#x}");
}

/// Every call of the interface.
fn assert_forked(channel: &Channel) {
    for len in [0, 200_000] {
        let bytes = vec![0; len];
        let refused = channel.send(Outgoing::new(&bytes).handles(files(1))).unwrap_err();
        assert_eq!(refused.error, Error::Forked);
        assert_files(refused.handles, 1);
        assert_eq!(failed(channel.try_send(&bytes)), Error::Forked);
        assert_eq!(failed(channel.send_by(&bytes, SOON)), Error::Forked);
        assert_eq!(channel.reserve(len, SOON).unwrap_err(), Error::Forked);
        assert_eq!(channel.reserve_sealed(len).unwrap_err(), Error::Forked);
    }
    assert_eq!(channel.send_many([b"row"], SOON).unwrap_err().failed.error, Error::Forked);
    assert_eq!(channel.recv().unwrap_err(), Error::Forked);
    assert_eq!(channel.try_recv().unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_by(SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_to(&mut Message::new(), SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_into(&mut [0; 10], SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_in_place(SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.recv_many(&mut [Message::new()], SOON).unwrap_err(), Error::Forked);
    assert_eq!(channel.peer().unwrap_err(), Error::Forked);
    assert_eq!(channel.peer_pidfd().unwrap_err(), Error::Forked);
    assert!(!channel.is_readable() && !channel.is_writable());
    let _ = (channel.is_peer_closed(), channel.counters(), format!("{channel:?}"));
}

fn forks(_: &str) {
    let (actor, channel) = spawn("echo");
    let (a, b) = Channel::pair().unwrap();
    assert_echoes(&channel);
    a.send(b"before").unwrap();
    channel.send(b"before").unwrap();
    channel.send(&pattern(8, 200_000)).unwrap();
    // Something is there to be received in the child as well.
    wait_until("the echo came", || channel.is_readable());
    let channels = ManuallyDrop::new([channel, a, b]);
    in_forked_child(|| {
        channels.iter().for_each(assert_forked);
        // What it makes by itself works, and changes nothing of that: see `forked.rs`.
        let (one, other) = Channel::pair().unwrap();
        one.send(b"new").unwrap();
        assert_eq!(recv(&other).bytes(), b"new");
        channels.iter().for_each(assert_forked);
        // SAFETY: the parent has its own copy of this variable; here it is dropped once.
        drop(unsafe { std::ptr::read(&raw const *channels) });
    });
    let [channel, a, b] = ManuallyDrop::into_inner(channels);
    assert_eq!(recv(&channel).bytes(), b"before");
    assert!(recv(&channel).bytes() == pattern(8, 200_000));
    assert_eq!(recv(&b).bytes(), b"before");
    b.send(b"after").unwrap();
    assert_eq!(recv(&a).bytes(), b"after");
    assert_echoes(&channel);
    // The peer has seen nothing: for it, only this is the end.
    drop(channel);
    finish(actor);
}

#[test]
fn a_fork_in_the_middle_of_a_message_harms_neither_process() {
    for what in ["view", "large view", "view with handles", "reservation", "large reservation", "sealed reservation"] {
        alone("forks in the middle", what);
    }
}

fn forks_in_the_middle(what: &str) {
    let (actor, channel) = spawn("echo");
    let len = if what.starts_with("large") { 200_000 } else { 20 };
    let bytes = pattern(3, len);
    if what.contains("view") {
        let handles = files(if what.contains("handles") { 2 } else { 0 });
        channel.send(Outgoing::new(&bytes).handles(handles)).unwrap();
        let message = ManuallyDrop::new(channel.recv_in_place(DEADLINE).unwrap());
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of this variable; here it is dropped once.
            drop(unsafe { std::ptr::read(&raw const *message) });
        });
        let mut message = ManuallyDrop::into_inner(message);
        let mut copy = vec![0; len];
        message.copy_to(0, &mut copy);
        assert!(copy == bytes);
    } else if what == "sealed reservation" {
        let mut room = channel.reserve_sealed(len).unwrap();
        room.bytes().copy_from_slice(&bytes);
        let mut room = ManuallyDrop::new(room);
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of this variable; here it is used once.
            let room = unsafe { std::ptr::read(&raw const *room) };
            assert_eq!(failed(room.commit(SOON)), Error::Forked);
        });
        assert_eq!(room.bytes(), bytes);
        ManuallyDrop::into_inner(room).commit(DEADLINE).unwrap();
        assert!(recv(&channel).bytes() == bytes);
    } else {
        let mut room = channel.reserve(len, DEADLINE).unwrap();
        room.put_at(0, &bytes);
        let room = ManuallyDrop::new(room);
        in_forked_child(|| {
            // SAFETY: the parent has its own copy of this variable; here it is dropped once.
            drop(unsafe { std::ptr::read(&raw const *room) });
        });
        in_forked_child(|| {
            // SAFETY: as above.
            let room = unsafe { std::ptr::read(&raw const *room) };
            assert_eq!(failed(room.commit()), Error::Forked);
        });
        ManuallyDrop::into_inner(room).commit().unwrap();
        assert!(recv(&channel).bytes() == bytes);
    }
    assert_echoes(&channel);
    drop(channel);
    finish(actor);
}

fn takes_twice(_: &str) {
    let channel = parent();
    for _ in 0..2 {
        assert_eq!(strait::from_parent(&Options::new()).map(drop), Err(Error::ParentTaken));
    }
    channel.send(b"here").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn the_channel_to_the_parent_is_taken_once() {
    let (actor, channel) = spawn_role("takes twice");
    drop(channel);
    finish(actor);
}

fn takes_nothing(_: &str) {
    let start = descriptors();
    for _ in 0..2 {
        assert_eq!(strait::from_parent(&Options::new()).map(drop), Err(Error::NoParent));
    }
    assert_eq!(descriptors(), start);
}

#[test]
fn a_process_that_was_started_without_a_channel_has_none() {
    alone("takes nothing", "");
}

fn starts_a_grandchild(argument: &str) {
    use std::os::unix::process::CommandExt as _;
    let channel = parent();
    let mut command = common::command("takes nothing", "");
    if argument == "other files" {
        // What happens to have the number in the grandchild is another file.
        let other = file_with(b"another");
        // SAFETY: the closure makes system calls only, which are async-signal-safe.
        unsafe {
            command.pre_exec(move || {
                for number in 3..20 {
                    if number != other.as_raw_fd() && libc::dup2(other.as_raw_fd(), number) < 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
    }
    finish(Actor(command.spawn().unwrap()));
    channel.send(b"here").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn a_grandchild_that_inherits_the_environment_has_no_channel() {
    for argument in ["", "other files"] {
        let (actor, channel) = spawn_with("starts a grandchild", argument, &Options::new());
        assert_eq!(recv(&channel).bytes(), b"here");
        drop(channel);
        finish(actor);
    }
}

// Interruptions.

#[test]
fn a_peer_that_is_stopped_for_a_while_loses_nothing() {
    const COUNT: u64 = 20_000;
    let (actor, channel) = spawn_with("stream", &COUNT.to_string(), &Options::new());
    std::thread::scope(|scope| {
        let sender = scope.spawn(|| send_stream(&channel, COUNT));
        let mut n = 0;
        for stop_at in [0, 500, 7000, 15_000] {
            while n < stop_at {
                recv_in_stream(&channel, n, DEADLINE).unwrap();
                n += 1;
            }
            rustix::process::kill_process(pid_of(&actor), Signal::STOP).unwrap();
            wait_until("it is stopped", || state_of(&actor) == 'T');
            // What it had sent is there, and then nothing for a while: neither an end nor an error.
            let error = loop {
                match recv_in_stream(&channel, n, Duration::from_millis(100)) {
                    Ok(()) => n += 1,
                    Err(error) => break error,
                }
            };
            assert_eq!(error, Error::TimedOut);
            assert!(!channel.is_peer_closed());
            rustix::process::kill_process(pid_of(&actor), Signal::CONT).unwrap();
        }
        while n < COUNT {
            recv_in_stream(&channel, n, DEADLINE).unwrap();
            n += 1;
        }
        assert_eq!(sender.join().unwrap(), Ok(()));
    });
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    finish(actor);
}

static INTERRUPTIONS: AtomicU64 = AtomicU64::new(0);
static THREADS_INTERRUPTED: [AtomicI32; 2] = [AtomicI32::new(0), AtomicI32::new(0)];

/// Interrupts this thread a thousand times a second from here on; its system calls are not restarted.
fn interrupt_this_thread() {
    extern "C" fn count(_: libc::c_int) {
        INTERRUPTIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: no memory is involved.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        for thread in &THREADS_INTERRUPTED {
            let known = thread.load(Ordering::Relaxed);
            if known == tid
                || (known == 0 && thread.compare_exchange(0, tid, Ordering::Relaxed, Ordering::Relaxed).is_ok())
            {
                break;
            }
        }
    }
    // SAFETY: all-zero is a valid `sigaction`; the handler does only what is async-signal-safe.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = count as extern "C" fn(libc::c_int) as libc::sighandler_t;
        assert_eq!(libc::sigaction(libc::SIGALRM, &raw const action, std::ptr::null_mut()), 0);
    }
    // SAFETY: all-zero is a valid `sigevent` and `itimerspec`; the pointers are to locals.
    unsafe {
        let mut event: libc::sigevent = std::mem::zeroed();
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGALRM;
        event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
        let mut timer: libc::timer_t = std::ptr::null_mut();
        assert_eq!(libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer), 0);
        let mut period: libc::itimerspec = std::mem::zeroed();
        period.it_interval.tv_nsec = 1_000_000;
        period.it_value.tv_nsec = 1_000_000;
        assert_eq!(libc::timer_settime(timer, 0, &raw const period, std::ptr::null_mut()), 0);
    }
}

/// Sends back what it receives, in bursts, so that the other side waits for room and for answers.
fn interrupted_echo(_: &str) {
    interrupt_this_thread();
    let channel = parent();
    for n in 0u64.. {
        match channel.recv() {
            Ok(mut message) => {
                let handles = message.take_handles().unwrap();
                channel.send(Outgoing::new(message.bytes()).handles(handles)).unwrap();
            }
            Err(error) => {
                assert_eq!(error, Error::PeerClosed);
                break;
            }
        }
        if n % 500 == 0 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    assert!(INTERRUPTIONS.load(Ordering::Relaxed) > 100);
}

fn interrupted(argument: &str) {
    const COUNT: u64 = 10_000;
    let wait = WAITS[argument.parse::<usize>().unwrap()];
    // A ring that does not grow, and few bytes in flight, so that senders wait.
    let options = Options::new().wait(wait).ring_max(16 << 10).queue_bytes(200_000);
    let (actor, channel) = spawn_with("interrupted echo", "", &options);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            interrupt_this_thread();
            send_stream(&channel, COUNT).unwrap();
            done.store(true, Ordering::Relaxed);
        });
        interrupt_this_thread();
        for n in 0..COUNT {
            recv_in_stream(&channel, n, DEADLINE).unwrap();
        }
        // A wait with nothing to come lasts its full time.
        let begin = Instant::now();
        assert_eq!(channel.recv_by(Duration::from_millis(200)).unwrap_err(), Error::TimedOut);
        assert!(begin.elapsed() >= Duration::from_millis(200));
    });
    assert!(done.load(Ordering::Relaxed));
    let counters = channel.counters();
    assert!(counters.stalls > 0 && (wait == Wait::Spin || counters.sleeps > 0), "{counters:?}");
    assert!(INTERRUPTIONS.load(Ordering::Relaxed) > 200);
    assert!(THREADS_INTERRUPTED.iter().all(|thread| thread.load(Ordering::Relaxed) != 0));
    drop(channel);
    finish(actor);
}

#[test]
fn signals_in_the_middle_of_waits_change_nothing() {
    for wait in 0..WAITS.len() {
        alone("interrupted", &wait.to_string());
    }
}

// Sleep.

fn idle_receiver(wait: Wait) {
    let (mut actor, channel) = spawn_with("echo", "", &Options::new().wait(wait));
    assert_echoes(&channel);
    let (result, took) = while_blocked(
        || channel.recv_by(DEADLINE),
        || true,
        |watched| {
            watched.assert_idle();
            channel.send(b"wake up").unwrap();
        },
    );
    assert_eq!(result.unwrap().bytes(), b"wake up");
    assert!(took < 2 * SOON, "{took:?}");
    let (result, took) = while_blocked(
        || channel.recv(),
        || true,
        |watched| {
            watched.assert_idle();
            actor.kill();
        },
    );
    assert_eq!(result.unwrap_err(), Error::PeerClosed);
    assert!(took < 2 * SOON, "{took:?}");
}

#[test]
fn an_idle_receiver_that_blocks_sleeps_until_a_message_or_the_end() {
    idle_receiver(Wait::Block);
}

#[test]
fn an_idle_receiver_that_spins_at_first_sleeps_until_a_message_or_the_end() {
    idle_receiver(Wait::Adaptive);
}

#[test]
fn an_idle_receiver_whose_peer_never_came_sleeps_until_it_dies() {
    let (mut actor, channel) = spawn("absent");
    let (result, _) = while_blocked(
        || channel.recv(),
        || true,
        |watched| {
            watched.assert_idle();
            actor.kill();
        },
    );
    assert_eq!(result.unwrap_err(), Error::PeerClosed);
}

#[test]
fn an_idle_sender_sleeps_until_its_peer_dies() {
    for (len, queue) in [(1000, 256 << 20), (1 << 20, 3 << 20)] {
        let (mut actor, channel) = spawn_with("silent", "", &Options::new().queue_bytes(queue));
        recv(&channel);
        let stalled = || channel.counters().stalls > 0;
        let (error, _) = while_blocked(
            || send_until_it_fails(&channel, len, 0),
            stalled,
            |watched| {
                watched.assert_idle();
                actor.kill();
            },
        );
        assert_eq!(error, Error::PeerClosed);
    }
}
