//! Tests of messages that are forwarded: what arrives, and whether the memory of the message was sent on or copied.

mod common;

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

use common::{DEADLINE, alone, checksum, descriptors, finish, parent, pattern, spawn};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("produce", produce),
        ("consume", consume),
        ("relay", relay),
        ("poor relay", poor_relay),
        ("close", |_| drop(parent().recv().unwrap())),
        ("any_size", any_size),
        ("views", views),
        ("row", row),
        ("unread", unread),
        ("within", within),
        ("put_back", put_back),
        ("few_descriptors", few_descriptors),
        ("limited", limited),
    ]);
}

const SIZES: [usize; 6] = [0, 64, 65_536, 65_537, 1 << 20, 16 << 20];

/// Returns a file containing `text`.
fn file_with(text: &[u8]) -> File {
    let mut file = File::from(rustix::fs::memfd_create("test", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
    file.write_all(text).unwrap();
    file
}

fn content(handle: Handle) -> Vec<u8> {
    let mut file = File::from(handle.into_fd().expect("a file"));
    let mut content = Vec::new();
    file.rewind().unwrap();
    file.read_to_end(&mut content).unwrap();
    content
}

/// Returns the inode numbers of sealed memory mapped in this process.
fn sealed_memory() -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let of_memory = maps.lines().filter(|line| line.contains("memfd:strait-sealed"));
    of_memory.map(|line| line.split_whitespace().nth(4).unwrap().parse().unwrap()).collect()
}

/// Sends a message of `size` bytes, sealed if `sealed` is set. With handles, the message carries a file and a channel
/// end, and the other end of that channel is returned.
fn send(channel: &Channel, size: usize, sealed: bool, with_handles: bool) -> Option<Channel> {
    let bytes = pattern(size as u64, size);
    let mut handles = Vec::new();
    let mut ours = None;
    if with_handles {
        let (one, other) = Channel::pair().unwrap();
        one.send(b"unread").unwrap();
        handles = vec![file_with(b"beside it").into(), other.into()];
        ours = Some(one);
    }
    if sealed {
        let mut room = channel.reserve_sealed(size).unwrap();
        room.bytes().copy_from_slice(&bytes);
        handles.into_iter().for_each(|handle| room.handle(handle));
        room.commit(DEADLINE).unwrap();
    } else {
        channel.send_by(Outgoing::new(&bytes).handles(handles), DEADLINE).unwrap();
    }
    ours
}

/// Sends the messages ordered by the parent.
fn produce(_: &str) {
    let channel = parent();
    let mut ends = Vec::new();
    while let Ok(order) = channel.recv() {
        let order = str::from_utf8(order.bytes()).unwrap();
        let fields: Vec<usize> = order.split(' ').map(|field| field.parse().unwrap()).collect();
        ends.extend(send(&channel, fields[0], fields[1] == 1, fields[2] == 1));
    }
}

/// Answers each message with the length, the checksum, and the numbers of mapped sealed memory; checks the file and the
/// end of a message, if any.
fn consume(_: &str) {
    let channel = parent();
    while let Ok(mut message) = channel.recv() {
        let mut answer = vec![message.bytes().len() as u64, checksum(message.bytes())];
        answer.extend(sealed_memory());
        let answer: Vec<u8> = answer.into_iter().flat_map(u64::to_le_bytes).collect();
        let mut handles = message.take_handles().unwrap().into_iter();
        if let (Some(file), Some(end)) = (handles.next(), handles.next()) {
            assert_eq!(content(file), b"beside it");
            assert_eq!(end.into_channel().unwrap().recv_by(DEADLINE).unwrap().bytes(), b"unread");
        }
        drop(message);
        channel.send(&answer).unwrap();
    }
}

fn words(message: &Message) -> Vec<u64> {
    message.bytes().chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

fn order(channel: &Channel, size: usize, sealed: bool, with_handles: bool) {
    channel.send(format!("{size} {} {}", u8::from(sealed), u8::from(with_handles)).as_bytes()).unwrap();
}

/// Shows that a message of any size, sealed or not, can be forwarded with its handles; a large sealed message with its
/// memory.
#[test]
fn of_any_size_and_kind_with_its_handles_between_three_processes() {
    alone("any_size", "");
}

fn any_size(_: &str) {
    let (producer, from) = spawn("produce");
    let (consumer, to) = spawn("consume");
    let mut message = Message::new();
    for round in 0..2 {
        let before = descriptors();
        for size in SIZES {
            for sealed in [false, true] {
                for with_handles in [false, true] {
                    order(&from, size, sealed, with_handles);
                    from.recv_message(&mut message, DEADLINE).unwrap();
                    assert!(message.bytes() == pattern(size as u64, size));
                    let memory = sealed_memory();
                    // A small message was copied out of the sealed memory.
                    assert_eq!(memory.len(), usize::from(sealed && size > 65_536));
                    to.forward(&mut message, DEADLINE).unwrap();
                    assert!(message.bytes().is_empty() && message.handles().is_empty());
                    let answer = words(&to.recv_by(DEADLINE).unwrap());
                    assert_eq!(answer[..2], [size as u64, checksum(&pattern(size as u64, size))]);
                    assert_eq!(answer[2..], memory, "{size} bytes, sealed: {sealed}");
                }
            }
        }
        if round > 0 {
            assert_eq!(descriptors(), before);
            assert!(sealed_memory().is_empty());
        }
    }
    drop((from, to));
    finish(producer);
    finish(consumer);
}

/// Shows that a view of a message can be forwarded; a view of a large sealed message with its memory.
#[test]
fn views_are_sent_on_as_well() {
    alone("views", "");
}

fn views(_: &str) {
    let (producer, from) = spawn("produce");
    let (consumer, to) = spawn("consume");
    for size in SIZES {
        for sealed in [false, true] {
            for with_handles in [false, true] {
                order(&from, size, sealed, with_handles);
                let mut view = from.recv_in_place(DEADLINE).unwrap();
                let memory = sealed_memory();
                assert_eq!(memory.len(), usize::from(sealed));
                view.forward(&to, DEADLINE).unwrap();
                drop(view);
                let answer = words(&to.recv_by(DEADLINE).unwrap());
                assert_eq!(answer[..2], [size as u64, checksum(&pattern(size as u64, size))]);
                // A small message is copied, because a descriptor would cost more than the copy.
                let passed_on = if size > 65_536 { memory } else { Vec::new() };
                assert_eq!(answer[2..], passed_on, "{size} bytes, sealed: {sealed}");
            }
        }
    }
    drop((from, to));
    finish(producer);
    finish(consumer);
}

/// Forwards each message over the first received channel.
fn relay(_: &str) {
    let channel = parent();
    let mut road = channel.recv().unwrap();
    let next = road.take_handles().unwrap().remove(0).into_channel().unwrap();
    let mut message = Message::new();
    while channel.recv_message(&mut message, Deadline::NEVER).is_ok() {
        next.forward(&mut message, DEADLINE).unwrap();
    }
}

/// Shows that a sealed message forwarded by several processes stays in the same memory.
#[test]
fn a_row_of_processes_has_one_memory() {
    alone("row", "");
}

fn row(_: &str) {
    let (consumer, to) = spawn("consume");
    let (one, first) = spawn("relay");
    let (two, second) = spawn("relay");
    // The first relay forwards to this process over `road`; the second relay over `last`.
    let (road, end) = Channel::pair().unwrap();
    let (answers, last) = Channel::pair().unwrap();
    second.send(Outgoing::new(b"").handle(last)).unwrap();
    first.send(Outgoing::new(b"").handle(road)).unwrap();
    send(&first, 1 << 20, true, false);
    // This process, between the relays and the consumer, forwards too.
    let mut message = end.recv_by(DEADLINE).unwrap();
    let memory = sealed_memory();
    assert_eq!(memory.len(), 1);
    second.forward(&mut message, DEADLINE).unwrap();
    let mut message = answers.recv_by(DEADLINE).unwrap();
    to.forward(&mut message, DEADLINE).unwrap();
    let answer = words(&to.recv_by(DEADLINE).unwrap());
    assert_eq!(answer, [1 << 20, checksum(&pattern(1 << 20, 1 << 20)), memory[0]]);
    drop((to, first, second, end, answers));
    finish(consumer);
    finish(one);
    finish(two);
}

/// Shows that a sealed message in the backlog of a moving end can be forwarded with its memory.
#[test]
fn its_memory_goes_along_with_an_end_that_has_not_received_it() {
    alone("unread", "");
}

fn unread(_: &str) {
    let (consumer, to) = spawn("consume");
    let (relay, through) = spawn("relay");
    let (ours, theirs) = Channel::pair().unwrap();
    send(&ours, 1 << 20, true, true);
    send(&ours, 300_000, false, false);
    let [memory] = sealed_memory()[..] else { panic!("one memory") };
    // The relay passes the end on together with the messages that the end has not received.
    let (next, arrived) = Channel::pair().unwrap();
    through.send(Outgoing::new(b"").handle(next)).unwrap();
    through.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let theirs = arrived.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    let mut message = theirs.recv_by(DEADLINE).unwrap();
    assert!(message.bytes() == pattern(1 << 20, 1 << 20));
    to.forward(&mut message, DEADLINE).unwrap();
    let answer = words(&to.recv_by(DEADLINE).unwrap());
    assert_eq!(answer[2..], [memory]);
    assert!(theirs.recv_by(DEADLINE).unwrap().bytes() == pattern(300_000, 300_000));
    drop((to, through, arrived, theirs, ours));
    finish(consumer);
    finish(relay);
}

/// Shows that a message can be forwarded within a process and then to another process.
#[test]
fn within_a_process_and_out_of_it() {
    alone("within", "");
}

fn within(_: &str) {
    let (consumer, to) = spawn("consume");
    let (a, b) = Channel::pair().unwrap();
    let (c, d) = Channel::pair().unwrap();
    for size in [100, 100_000, 1 << 20] {
        for sealed in [false, true] {
            let _end = send(&a, size, sealed, true);
            let mut message = b.recv_by(DEADLINE).unwrap();
            let at = message.bytes().as_ptr();
            c.forward(&mut message, DEADLINE).unwrap();
            let mut message = d.recv_by(DEADLINE).unwrap();
            assert_eq!(message.bytes().as_ptr() == at, sealed && size > 65_536, "{size} bytes, sealed: {sealed}");
            let memory = sealed_memory();
            to.forward(&mut message, DEADLINE).unwrap();
            let answer = words(&to.recv_by(DEADLINE).unwrap());
            assert_eq!(answer[..2], [size as u64, checksum(&pattern(size as u64, size))]);
            assert_eq!(answer[2..], memory);
        }
    }
    drop(to);
    finish(consumer);
}

/// Shows that a failed forward leaves a message or a view unchanged.
#[test]
fn what_cannot_be_sent_on_is_as_it_was() {
    let options = Options::new().queue_messages(1).max_message(1 << 20).max_handles(2);
    let (closer, closed) = spawn("close");
    closed.send(b"close").unwrap();
    finish(closer);
    for sealed in [false, true] {
        let (a, b) = Channel::pair().unwrap();
        let (narrow, _theirs) = options.pair().unwrap();
        let _end = send(&a, 1 << 20, sealed, true);
        let mut message = b.recv_by(DEADLINE).unwrap();
        assert_eq!(closed.forward(&mut message, DEADLINE), Err(Error::PeerClosed));
        narrow.send(b"one is all there may be").unwrap();
        assert_eq!(narrow.forward(&mut message, Deadline::NOW), Err(Error::WouldBlock));
        let soon = Deadline::after(std::time::Duration::from_millis(10));
        assert_eq!(narrow.forward(&mut message, soon), Err(Error::TimedOut));
        let strict = options.max_handles(1).pair().unwrap();
        assert_eq!(strict.0.forward(&mut message, DEADLINE), Err(Error::TooManyHandles { count: 2, limit: 1 }));
        let small = options.max_message(1000).pair().unwrap();
        assert_eq!(small.0.forward(&mut message, DEADLINE), Err(Error::MessageTooLarge { len: 1 << 20, limit: 1000 }));
        assert_eq!(message.handles().len(), 2);
        // A message with one end of a channel cannot be sent over the other end.
        let (ours, theirs) = Channel::pair().unwrap();
        let handles = message.take_handles().unwrap();
        let mut own = Message::from_parts(message.bytes().to_vec(), vec![theirs.into()]);
        assert_eq!(ours.forward(&mut own, DEADLINE), Err(Error::OwnChannel));
        assert_eq!((own.bytes().len(), own.handles().len()), (1 << 20, 1));
        // The message is unchanged and can be sent; forwarding a view fails and succeeds in the same way.
        let (c, d) = Channel::pair().unwrap();
        c.forward(&mut own, DEADLINE).unwrap();
        let mut view = d.recv_in_place(DEADLINE).unwrap();
        assert_eq!(narrow.try_send(b"x").unwrap_err().error, Error::WouldBlock);
        assert_eq!(view.forward(&narrow, Deadline::NOW), Err(Error::WouldBlock));
        assert_eq!(view.forward(&closed, DEADLINE), Err(Error::PeerClosed));
        assert_eq!(view.forward(&small.0, DEADLINE), Err(Error::MessageTooLarge { len: 1 << 20, limit: 1000 }));
        let (e, f) = Channel::pair().unwrap();
        view.forward(&e, DEADLINE).unwrap();
        let mut last = f.recv_by(DEADLINE).unwrap();
        assert!(last.bytes() == pattern(1 << 20, 1 << 20));
        let theirs = last.take_handles().unwrap().remove(0).into_channel().unwrap();
        theirs.send(b"alive").unwrap();
        assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), b"alive");
        assert_eq!(handles.len(), 2);
    }
}

/// Shows that a sealed message that was put back is received again in the same memory, with its handles.
#[test]
fn what_was_put_back_is_the_same_message() {
    alone("put_back", "");
}

fn put_back(_: &str) {
    let (producer, from) = spawn("produce");
    order(&from, 1 << 20, true, true);
    let message = from.recv_by(DEADLINE).unwrap();
    let at = message.bytes().as_ptr();
    from.put_back([message]).unwrap();
    let mut again = from.recv_by(DEADLINE).unwrap();
    assert_eq!(again.bytes().as_ptr(), at);
    assert_eq!(again.take_handles().unwrap().len(), 2);
    assert!(again.into_bytes() == pattern(1 << 20, 1 << 20));
    assert!(sealed_memory().is_empty());
    drop(from);
    finish(producer);
}

/// Uses descriptors until few are left, and forwards each message; asserts that no descriptor is kept for a received
/// message.
fn poor_relay(_: &str) {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let channel = parent();
    let limit = Rlimit { current: Some(40), ..getrlimit(Resource::Nofile) };
    setrlimit(Resource::Nofile, limit).unwrap();
    let mut many = vec![File::open("/dev/null").unwrap()];
    // The next descriptor is in the last quarter of the limit.
    while many.last().unwrap().as_raw_fd() < 29 {
        many.push(File::open("/dev/null").unwrap());
    }
    let before = descriptors();
    loop {
        let Ok(mut message) = channel.recv() else { return };
        assert_eq!(descriptors(), before, "none is kept while few are left");
        channel.forward(&mut message, DEADLINE).unwrap();
    }
}

/// Shows that a process with few free descriptors copies a sealed message instead of keeping a descriptor.
#[test]
fn with_few_descriptors_left_it_is_copied() {
    alone("few_descriptors", "");
}

fn few_descriptors(_: &str) {
    let (relay, channel) = spawn("poor relay");
    for _ in 0..20 {
        send(&channel, 1 << 20, true, false);
        let message = channel.recv_by(DEADLINE).unwrap();
        assert!(message.bytes() == pattern(1 << 20, 1 << 20));
        assert!(sealed_memory().is_empty());
    }
    drop(channel);
    finish(relay);
}

/// Shows that the descriptors kept for received messages are limited by the limit on the peer, and charged to the peer.
#[test]
fn as_many_descriptors_are_kept_as_the_peer_may_have() {
    alone("limited", "");
}

fn limited(_: &str) {
    let (producer, from) = spawn("produce");
    let before = descriptors();
    strait::quota::set_limits(strait::quota::Limits::new().peer(strait::quota::Resource::Descriptors, 3));
    let messages: Vec<_> = (0..5)
        .map(|_| {
            order(&from, 100_000, true, false);
            from.recv_by(DEADLINE).unwrap()
        })
        .collect();
    assert_eq!(descriptors(), before + 3);
    let (a, b) = Channel::pair().unwrap();
    for mut message in messages {
        a.forward(&mut message, DEADLINE).unwrap();
        assert!(b.recv_by(DEADLINE).unwrap().bytes() == pattern(100_000, 100_000));
    }
    assert_eq!(descriptors(), before);
    let held = from.peer_usage().unwrap().unwrap().peer(strait::quota::Resource::Descriptors).held;
    assert_eq!(held, 0);
    strait::quota::set_limits(strait::quota::Limits::new());
    drop(from);
    finish(producer);
}
