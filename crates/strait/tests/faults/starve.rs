//! Tests of processes that lack descriptors, permitted file size, or room in a socket.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{
    Actor, DEADLINE, SOON, alone, descriptors, file_with, finish, mappings, parent, parent_over_any, pattern, spawn,
    spawn_over_socket, wait_until,
};
use crate::roles::{WAITS, assert_echoes, assert_files, failed, files, recv, sent_or_full, spawn_with_stdin};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use rustix::process::{Resource, Rlimit};
use strait::{Channel, CommandExt, Deadline, Error, Handle, Message, Options, Outgoing, Wait};

/// Sends messages on the parent's request: `(count, bytes of each, handles of each, sealed)`.
pub(crate) fn source(_: &str) {
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
                        handles.for_each(|handle: Handle| room.handle(handle));
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

pub(crate) fn ask(channel: &Channel, count: u64, len: usize, handles: u64, sealed: bool) {
    let fields = [count, len as u64, handles, u64::from(sealed)];
    channel.send(&fields.iter().flat_map(|field| field.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
}

/// Starts a process, and waits until its open packet was received. The packet brings memory, and receiving it later
/// would need a descriptor.
pub(crate) fn met(role: &str) -> (Actor, Channel) {
    let (actor, channel) = spawn(role);
    await_memory(&channel);
    (actor, channel)
}

/// Waits until the memory of the peer's open packet was received; asserts that no message is there.
pub(crate) fn await_memory(channel: &Channel) {
    let held = |channel: &Channel| Some(channel.peer_usage().unwrap()?.peer(strait::quota::Resource::Mappings).held);
    wait_until("the peer has opened its side", || {
        assert_eq!(channel.try_recv().map(|_| ()), Err(Error::WouldBlock));
        held(channel) > Some(0)
    });
}

/// Kinds of packets: packets of messages, and packets with descriptors ahead of a message.
const MESSAGE: u32 = 3;
const AHEAD: u32 = 4;

/// Takes all packets from a socket, without descriptors. Returns kind and number of descriptors of each packet of a
/// message, and of each packet ahead of a message.
fn packets(socket: &OwnedFd) -> Vec<(u32, u32)> {
    let mut packet = [0; 48];
    let mut found = Vec::new();
    while let Ok((48, _)) = rustix::net::recv(socket, &mut packet, rustix::net::RecvFlags::DONTWAIT) {
        let word = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
        found.extend(Some((word(0), word(4))).filter(|(kind, _)| matches!(*kind, MESSAGE | AHEAD)));
    }
    found
}

/// Sends messages with `handles` over a socket until there is no room for one more, once for each possible number of
/// earlier packets in the socket. Returns, for each number, how many messages were sent, and the packets sent for these
/// messages and for the failed message.
fn sent_until_full(handles: impl Fn() -> Vec<Handle>) -> Vec<(usize, Vec<(u32, u32)>)> {
    let fill = |before: usize| {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
        // The kernel raises the 1 to the minimum, about six packets.
        sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
        let channel = Options::new().queue_handles(4096).over(ours).unwrap();
        packets(&theirs);
        let file = || Outgoing::new(b"").handle(file_with(b"before"));
        let before = (0..before).take_while(|_| channel.try_send(file()).is_ok()).count();
        let mut sent = 0;
        loop {
            let handles = handles();
            let count = handles.len();
            let mut room = channel.reserve_sealed(5000).unwrap();
            handles.into_iter().for_each(|handle| room.handle(handle));
            match room.commit(Deadline::NOW) {
                Ok(()) => sent += 1,
                Err(failed) => {
                    assert_eq!((failed.error, failed.handles.len()), (Error::WouldBlock, count));
                    let mut found = packets(&theirs).split_off(before);
                    // The unsent packets of the failed message go before the next packet.
                    channel.try_send(file()).unwrap();
                    found.extend(packets(&theirs));
                    assert_eq!(found.pop(), Some((MESSAGE, 1)));
                    return (sent, found);
                }
            }
        }
    };
    (0..6).map(fill).collect()
}

/// Shows that a single packet brings everything that a message needs of the socket. So nothing is sent for a message
/// without room in the socket, wherever the room ends.
#[test]
fn the_packet_of_a_message_comes_last_and_is_the_only_one() {
    // The message's memory, a descriptor, and an end, for which the socket is not needed.
    let runs = sent_until_full(|| vec![Channel::pair().unwrap().0.into(), file_with(b"x").into()]);
    for (sent, packets) in &runs {
        assert_eq!(*packets, vec![(MESSAGE, 2); *sent]);
    }
    assert!(runs.iter().any(|(sent, _)| *sent > 0), "the socket is never full");
}

/// Shows that descriptors that do not fit into the packet of their message are sent ahead of the packet. If the packet
/// cannot be sent, the descriptors are declared void before any other message.
#[test]
fn descriptors_ahead_of_a_packet_that_cannot_be_sent_are_void() {
    let end_with_many = || {
        let (end, other) = Channel::pair().unwrap();
        for _ in 0..5 {
            other.send(Outgoing::new(b"").handles(files(strait::quota::MAX_HANDLES))).unwrap();
        }
        vec![Handle::from(end)]
    };
    // The packet of a message has its memory and 252 descriptors; the other 68 come ahead.
    let (ahead, whole, void) = ((AHEAD, 5 * strait::quota::MAX_HANDLES as u32 - 252), (MESSAGE, 253), (AHEAD, 0));
    let runs = sent_until_full(end_with_many);
    for (sent, packets) in &runs {
        let (first, last) = packets.split_at(2 * sent);
        assert!(first.chunks(2).all(|packets| packets == [ahead, whole]), "{packets:?}");
        assert!(last.is_empty() || *last == [ahead, void], "{packets:?}");
    }
    assert!(runs.iter().any(|(sent, _)| *sent > 0) && runs.iter().any(|(sent, all)| all.len() > 2 * sent));
}

/// Shows that a message fails completely, whichever of its packets lacks room in the socket.
#[test]
fn a_message_for_which_the_socket_has_no_room_is_not_sent_by_half() {
    for deadline in [Deadline::NOW, Deadline::from(Instant::now()), Deadline::after(Duration::from_millis(3))] {
        let refused = if deadline == Deadline::NOW { Error::WouldBlock } else { Error::TimedOut };
        for round in 0..3 {
            // The open packet is in the socket. The number of packets before the first message decides at which of its
            // packets the message fails.
            let (mut actor, channel) = spawn_over_socket("late echo", "", &Options::new());
            let mut sent = Vec::new();
            let mut send = |n: u64, kind: u64| {
                let (len, handles) = [(20, 2), (200_000, 1), (300, 3)][kind as usize];
                let bytes = pattern(n, len);
                let outcome = if kind == 2 {
                    let mut room = channel.reserve_sealed(len).unwrap();
                    room.bytes().copy_from_slice(&bytes);
                    files(handles).into_iter().for_each(|handle| room.handle(handle));
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
            // Sent messages arrive, and failed messages have no effect.
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
    // A spinning receiver may never look at the socket by itself.
    let (actor, channel) = spawn_over_socket("source in a row", "", &Options::new().wait(Wait::Spin));
    channel.send(b"go").unwrap();
    for _ in 0..50 {
        assert_files(channel.recv_by(SOON).unwrap().take_handles().unwrap(), 2);
    }
    drop(channel);
    finish(actor);
}

/// Sends a batch of messages with handles when it receives a message.
pub(crate) fn source_in_a_row(_: &str) {
    let channel = parent_over_any(&Options::new());
    recv(&channel);
    let row = (0..50).map(|_| Outgoing::new(b"in a row").handles(files(2)));
    assert_eq!(channel.send_many(row, DEADLINE).unwrap(), 50);
    assert_eq!(channel.recv().unwrap_err(), Error::PeerClosed);
}

/// Files that use up all descriptors of the process.
pub(crate) struct Exhausted(pub(crate) Vec<File>);

impl Exhausted {
    pub(crate) fn new() -> Self {
        let limit = descriptors() as u64 + 20;
        let hard = rustix::process::getrlimit(Resource::Nofile).maximum;
        rustix::process::setrlimit(Resource::Nofile, Rlimit { current: Some(limit), maximum: hard }).unwrap();
        let all = Self(std::iter::from_fn(|| File::open("/dev/null").ok()).collect());
        assert!(all.0.len() >= 10);
        all
    }

    /// Makes `count` descriptors free.
    pub(crate) fn free(&mut self, count: usize) {
        self.0.truncate(self.0.len() - count);
    }

    /// Returns the number of free descriptors.
    pub(crate) fn count_free(&mut self) -> usize {
        let free = std::iter::from_fn(|| File::open("/dev/null").ok()).collect::<Vec<File>>();
        free.len()
    }
}

/// Closes an end whose other end has moved to a process to which this process has no link, while there is no descriptor
/// for such a link. Orders come on the standard input, because a wait on the channel would make the link.
pub(crate) fn closes_without_descriptors(_: &str) {
    let channel = parent();
    let mut lines = std::io::stdin().lines();
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "it has moved");
    crate::common::handle_signals();
    let all = Exhausted::new();
    drop(end);
    channel.send(b"closed").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "have descriptors");
    assert_eq!(crate::common::handled_by(), 0);
    drop(all);
    channel.send(b"has descriptors").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Reports the close of the channel of a received end.
pub(crate) fn sees_the_end(_: &str) {
    let channel = parent();
    let end = recv(&channel).take_handles().unwrap().remove(0).into_channel().unwrap();
    channel.send(b"has it").unwrap();
    assert_eq!(end.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    // The peer closes one direction after the other.
    wait_until("sending fails too", || {
        end.send_by(b"", DEADLINE).is_err_and(|failed| failed.error == Error::PeerClosed)
    });
    channel.send(b"saw it").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn an_end_that_was_closed_for_want_of_descriptors_is_closed_once_there_are_some() {
    use std::io::Write;
    let mut command = crate::common::command("closes without descriptors", "");
    let (child, to_closing) = command.stdin(Stdio::piped()).spawn_with_channel().unwrap();
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
    // The thread that closes the end later must not run signal handlers of the program.
    crate::common::assert_handles_no_signals(closing.pid(), "strait-unclosed");
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

pub(crate) fn handles_without_descriptors(_: &str) {
    let start = (descriptors(), mappings());
    let (actor, channel) = spawn("source");
    let bytes = pattern(0, 40);
    // The first message finds enough descriptors.
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
        message.read_at(&mut buffer[..40], 0);
        assert_eq!(buffer[..40], bytes);
        assert_eq!(message.take_handles().unwrap_err(), lost);
        drop(message);
        assert_eq!(all.count_free(), free);

        // Messages without handles before and after are not affected.
        ask(&channel, 1, 40, 0, false);
        ask(&channel, 1, 40, 3, false);
        ask(&channel, 1, 40, 0, false);
        assert_eq!(recv(&channel).take_handles().unwrap().len(), 0);
        assert_eq!(recv(&channel).take_handles().unwrap_err(), lost);
        assert_eq!(recv(&channel).take_handles().unwrap().len(), 0);
        all.free(1);
    }
    // Three free descriptors are enough now.
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

pub(crate) fn memory_without_descriptors(_: &str) {
    let (actor, channel) = met("source");
    let mut all = Exhausted::new();
    // A block, a sealed payload, a larger block, and a small sealed payload.
    for (sealed, len) in [(false, 200_000), (true, 100_000), (false, 1 << 20), (true, 50)] {
        ask(&channel, 1, 10, 0, false);
        ask(&channel, 1, len, 0, sealed);
        ask(&channel, 1, 20, 0, false);
        // A thread that sleeps until the first message arrives may report the second message's memory first.
        let mut first = Err(Error::NoDescriptors);
        wait_until("the first message has arrived", || {
            first = channel.recv_by(DEADLINE);
            !matches!(first, Err(Error::NoDescriptors))
        });
        assert_eq!(first.unwrap().bytes(), pattern(0, 10));
        assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::NoDescriptors);
        wait_until("the second message is readable", || channel.is_readable());
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
        assert_eq!(all.count_free(), 1, "the number of free descriptors changed");
        all.0.push(File::open("/dev/null").unwrap());
    }
    // Memory that is already mapped needs no descriptor.
    ask(&channel, 1, 200_000, 0, false);
    assert!(recv(&channel).bytes() == pattern(0, 200_000));
    drop((all, channel));
    finish(actor);
}

#[test]
fn a_larger_ring_that_finds_no_free_descriptor_waits_until_there_is_one() {
    alone("larger ring without descriptors", "");
}

pub(crate) fn larger_ring_without_descriptors(_: &str) {
    let (actor, channel) = met("source");
    let mut all = Exhausted::new();
    // The messages are more than the first ring holds, so the sender's ring grows.
    ask(&channel, 100, 1000, 0, false);
    let mut received = 0;
    let refused = loop {
        match channel.recv_by(DEADLINE) {
            Ok(message) => assert!(message.bytes() == pattern(received, 1000), "message {received}"),
            Err(error) => break error,
        }
        received += 1;
        assert!(received < 100, "the ring did not grow");
        // The pause lets the ring fill.
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

/// Makes the ring of one channel grow, and then sends handles over another channel.
pub(crate) fn grows_before_handles(_: &str) {
    let channel = crate::common::parent();
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

pub(crate) fn handles_behind_a_ring_without_descriptors(_: &str) {
    let (actor, channel) = met("grows before handles");
    let (one, other) = Channel::pair().unwrap();
    channel.send(Outgoing::new(b"other").handle(other)).unwrap();
    let mut all = Exhausted::new();
    channel.send(b"go").unwrap();
    // The packet with the ring is in the socket before the one with the handles, and neither is lost.
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

pub(crate) fn sending_without_descriptors(_: &str) {
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
    // Sending handles needs no new descriptor; receiving them does.
    channel.send(Outgoing::new(b"with handles").handles(refused.handles)).unwrap();
    assert_files(recv(&channel).take_handles().unwrap(), 3);
    all.free(5);
    channel.send(Outgoing::new(&large)).unwrap();
    assert!(recv(&channel).bytes() == large);
    // That memory is in the pool now, so no descriptor is needed.
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

pub(crate) fn growing_without_descriptors(_: &str) {
    let (mut actor, channel) = spawn_with_stdin("late echo", &Options::new());
    // Receiving the peer's open packet needs a descriptor.
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
    // A message too large for every ring of this size fails at once.
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

    // Without a free descriptor until the end: senders continue when the peer makes room.
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

#[test]
fn a_limit_on_file_sizes_is_an_error_and_no_signal() {
    alone("small files", "");
}

pub(crate) fn small_files(_: &str) {
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
    // The limit is above the size of the first ring and below that of the second.
    set(Some(20_000));
    let refused = channel.send(&[7; 200_000]).unwrap_err();
    assert!(too_large(refused.error), "{refused}");
    assert!(channel.reserve(200_000, DEADLINE).is_err_and(too_large));
    assert!(channel.reserve_sealed(200_000).is_err_and(too_large));
    // No ring of the first size can hold this message.
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

    // Opening a channel needs memory too.
    set(Some(1000));
    let (one, _other) =
        rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    assert!(Channel::over(one).is_err_and(too_large));
}
