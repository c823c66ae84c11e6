//! Two processes exchange messages in every way of sending and receiving, with every size.

mod common;

use std::io::{IoSlice, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::time::Duration;

use common::{DEADLINE, checksum, parent, pattern, spawn};
use strait::{Channel, Deadline, Error, Message, Outgoing};

/// Sizes around every boundary: empty, one cell, a quarter of the ring, the inline limit, the sizes of blocks.
const SIZES: &[usize] = &[
    0,
    1,
    7,
    8,
    55,
    56,
    57,
    63,
    64,
    119,
    120,
    121,
    144,
    1024,
    4095,
    4096,
    4097,
    16_376,
    16_377,
    20_736,
    65_535,
    65_536,
    65_537,
    131_072,
    131_073,
    248_832,
    1 << 20,
    (1 << 20) + 1,
];

#[test]
fn child() {
    common::play(&[("echo", echo), ("sums", sums), ("files", files)]);
}

/// Sends back each received message with its handles, until the channel is closed.
fn echo(_: &str) {
    let channel = parent();
    common::echo(&channel);
}

/// Answers each message with its checksum; the message is read in place.
fn sums(_: &str) {
    let channel = parent();
    loop {
        match channel.recv_in_place(Deadline::NEVER) {
            Ok(mut message) => {
                let mut bytes = vec![0; message.len()];
                message.read_at(&mut bytes, 0);
                drop(message);
                channel.send(&checksum(&bytes).to_le_bytes()).unwrap();
            }
            Err(error) => return assert_eq!(error, Error::PeerClosed),
        }
    }
}

/// Reads each file that arrives in a message, and answers with the contents of the files.
fn files(_: &str) {
    let channel = parent();
    while let Ok(mut message) = channel.recv() {
        let mut content = Vec::new();
        for handle in message.take_handles().unwrap() {
            let mut file = std::fs::File::from(handle.into_fd().unwrap());
            file.seek(SeekFrom::Start(0)).unwrap();
            file.read_to_end(&mut content).unwrap();
        }
        channel.send(&content).unwrap();
    }
}

fn recv(channel: &Channel) -> Message {
    channel.recv_by(DEADLINE).unwrap()
}

#[test]
fn every_size_comes_back_as_it_was() {
    let (actor, channel) = spawn("echo");
    for (seed, &len) in SIZES.iter().enumerate() {
        let bytes = pattern(seed as u64, len);
        channel.send(&bytes).unwrap();
        assert!(recv(&channel).bytes() == bytes, "{len} bytes");
    }
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn sizes_follow_each_other_without_waiting_for_answers() {
    let (actor, channel) = spawn("sums");
    let sent: Vec<u64> = std::thread::scope(|scope| {
        let sender = scope.spawn(|| {
            let mut sums = Vec::new();
            for round in 0..8 {
                for &len in SIZES {
                    let bytes = pattern(round * 1000 + len as u64, len);
                    channel.send_by(&bytes, DEADLINE).unwrap();
                    sums.push(checksum(&bytes));
                }
            }
            sums
        });
        let received: Vec<u64> =
            (0..8 * SIZES.len()).map(|_| u64::from_le_bytes(recv(&channel).bytes().try_into().unwrap())).collect();
        assert_eq!(sender.join().unwrap(), received);
        received
    });
    assert_eq!(sent.len(), 8 * SIZES.len());
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn the_largest_message_arrives_whole_and_one_byte_more_is_refused() {
    let (actor, channel) = spawn("sums");
    let bytes = pattern(1, strait::MAX_MESSAGE);
    for _ in 0..2 {
        channel.send_by(&bytes, DEADLINE).unwrap();
        // Under a sanitizer the checksum alone may take a minute.
        assert_eq!(channel.recv_by(10 * DEADLINE).unwrap().bytes(), checksum(&bytes).to_le_bytes());
    }
    let over = strait::MAX_MESSAGE + 1;
    let parts = [IoSlice::new(&bytes), IoSlice::new(b"x")];
    let refused = channel.send(Outgoing::vectored(&parts)).unwrap_err().error;
    assert_eq!(refused, Error::MessageTooLarge { len: over, limit: strait::MAX_MESSAGE });
    channel.send(b"still there").unwrap();
    assert_eq!(recv(&channel).bytes(), checksum(b"still there").to_le_bytes());
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn parts_are_gathered() {
    let (actor, channel) = spawn("echo");
    for &len in SIZES {
        let bytes = pattern(3, len);
        for pieces in [1, 2, 3, 16, 64] {
            let parts: Vec<IoSlice<'_>> = bytes.chunks(len.div_ceil(pieces).max(1)).map(IoSlice::new).collect();
            channel.send(Outgoing::vectored(&parts)).unwrap();
            assert!(recv(&channel).bytes() == bytes, "{len} bytes in {pieces} parts");
        }
    }
    drop(channel);
    actor.wait_for_success();
}

/// Shows that the messages of a batch arrive singly and in order.
#[test]
fn a_row_of_messages_keeps_its_order_and_its_borders() {
    let (actor, channel) = spawn("echo");
    let rows: Vec<Vec<u8>> = (0..5000u64).map(|n| pattern(n, (n % 300) as usize)).collect();
    std::thread::scope(|scope| {
        scope.spawn(|| assert_eq!(channel.send_many(rows.iter(), DEADLINE).unwrap(), rows.len()));
        let mut slots: Vec<Message> = (0..64).map(|_| Message::new()).collect();
        let mut received = 0;
        while received < rows.len() {
            let n = channel.recv_many(&mut slots, DEADLINE).unwrap();
            for slot in &slots[..n] {
                assert!(slot.bytes() == rows[received], "message {received}");
                received += 1;
            }
        }
    });
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn a_reservation_is_filled_in_place() {
    let (actor, channel) = spawn("sums");
    for &len in SIZES.iter().chain(&[5 << 20]) {
        let bytes = pattern(4, len);
        let mut room = channel.reserve(len, DEADLINE).unwrap();
        assert_eq!(room.len(), len);
        room.write_all(&bytes).unwrap();
        room.commit().unwrap();
        assert_eq!(recv(&channel).bytes(), checksum(&bytes).to_le_bytes(), "{len} bytes");

        let mut room = channel.reserve(len, DEADLINE).unwrap();
        for (place, byte) in room.as_uninit_mut().iter_mut().zip(&bytes) {
            place.write(*byte);
        }
        room.commit_first(len / 2).unwrap();
        assert_eq!(recv(&channel).bytes(), checksum(&bytes[..len / 2]).to_le_bytes(), "half of {len} bytes");

        // A reservation that is dropped has no effect on later messages.
        drop(channel.reserve(len, DEADLINE).unwrap());
    }
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn a_sealed_message_is_read_in_place() {
    let (actor, channel) = spawn("echo");
    for &len in SIZES {
        let bytes = pattern(5, len);
        let mut room = channel.reserve_sealed(len).unwrap();
        room.bytes().copy_from_slice(&bytes);
        room.commit(DEADLINE).unwrap();
        assert!(recv(&channel).bytes() == bytes, "{len} bytes");
    }
    drop(channel);
    actor.wait_for_success();

    let (a, b) = Channel::pair().unwrap();
    let mut room = a.reserve_sealed(100_000).unwrap();
    room.bytes().fill(7);
    room.commit(DEADLINE).unwrap();
    assert_eq!(b.recv_in_place(DEADLINE).unwrap().sealed(), Some([7; 100_000].as_slice()));
    a.send(b"not sealed").unwrap();
    assert_eq!(b.recv_in_place(DEADLINE).unwrap().sealed(), None);
}

#[test]
fn a_buffer_that_is_too_small_keeps_the_message() {
    let (actor, channel) = spawn("echo");
    for &len in &[1, 100, 70_000, 1 << 20] {
        let bytes = pattern(6, len);
        channel.send(&bytes).unwrap();
        let mut small = vec![0; len - 1];
        for _ in 0..2 {
            let refused = channel.recv_into(&mut small, DEADLINE).unwrap_err();
            assert_eq!(refused, Error::BufferTooSmall { needed: len });
        }
        let mut buffer = vec![0; len + 10];
        let received = channel.recv_into(&mut buffer, DEADLINE).unwrap();
        assert_eq!(received.len(), len);
        assert!(buffer[..len] == bytes);
    }
    drop(channel);
    actor.wait_for_success();
}

/// Shows that `try_recv_bytes` receives a message of bytes alone, wherever in the ring the message is, and leaves a
/// message with handles to the other calls.
#[test]
fn bytes_alone_are_taken_and_nothing_else() {
    let (a, b) = Channel::pair().unwrap();
    let mut buffer = [0; 300];
    assert_eq!(b.try_recv_bytes(&mut buffer), Err(Error::WouldBlock));
    // The messages pass the ends of several rings, each larger than the one before.
    for round in 1..200usize {
        for len in [round, 0, 300 - round] {
            a.send(&pattern(len as u64, len)).unwrap();
        }
        for len in [round, 0, 300 - round] {
            // A message at the start of a ring may be found only by a later call.
            let taken = (0..10).find_map(|_| b.try_recv_bytes(&mut buffer).unwrap());
            assert_eq!(taken, Some(len));
            assert!(buffer[..len] == pattern(len as u64, len));
        }
    }
    a.send(b"longer").unwrap();
    assert_eq!(b.try_recv_bytes(&mut buffer[..5]), Err(Error::BufferTooSmall { needed: 6 }));
    assert_eq!(b.try_recv_bytes(&mut buffer), Ok(Some(6)));

    a.send(Outgoing::new(b"with a handle").handle(file_with(b"x"))).unwrap();
    a.send(b"behind it").unwrap();
    assert_eq!((b.try_recv_bytes(&mut buffer), b.try_recv_bytes(&mut buffer)), (Ok(None), Ok(None)));
    let mut received = b.recv_into(&mut buffer, Deadline::NOW).unwrap();
    assert_eq!((received.len(), received.take_handles().unwrap().len()), (13, 1));
    assert_eq!(b.try_recv_bytes(&mut buffer), Ok(Some(9)));
    drop(a);
    let closed = (0..10).find_map(|_| b.try_recv_bytes(&mut buffer).err());
    assert!(closed.is_none_or(|error| error == Error::PeerClosed));
    assert_eq!(b.recv_into(&mut buffer, Deadline::NOW).unwrap_err(), Error::PeerClosed);
}

/// Shows that `try_recv_bytes` leaves a message that was put back to the other calls, and receives nothing before that
/// message.
#[test]
fn the_shortest_way_to_receive_does_not_pass_over_messages_that_were_put_back() {
    let (a, b) = Channel::pair().unwrap();
    a.send(b"one").unwrap();
    let one = b.recv().unwrap();
    b.put_back([one]).unwrap();
    drop(a);
    assert_eq!(b.try_recv_bytes(&mut [0; 8]), Ok(None));
    assert_eq!(b.try_recv().unwrap().bytes(), b"one");
    assert_eq!(b.try_recv().unwrap_err(), Error::PeerClosed);
}

fn file_with(content: &[u8]) -> OwnedFd {
    let (mut writer, reader) = (tempfile(), tempfile());
    drop(reader);
    writer.write_all(content).unwrap();
    writer.into()
}

/// Returns an open file without a name.
fn tempfile() -> std::fs::File {
    let path =
        std::env::temp_dir().join(format!("strait-test-{}-{:?}", std::process::id(), std::thread::current().id()));
    let file = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    file
}

#[test]
fn descriptors_travel_with_their_message() {
    let (actor, channel) = spawn("files");
    for count in [1usize, 2, 3, 64] {
        let contents: Vec<Vec<u8>> = (0..count).map(|n| format!("file {n} of {count}; ").into_bytes()).collect();
        let message = Outgoing::new(b"read these").handles(contents.iter().map(|content| file_with(content).into()));
        channel.send(message).unwrap();
        assert_eq!(recv(&channel).bytes(), contents.concat());
    }
    // The bytes beside the descriptors are stored in the ring, in a block, or in sealed memory.
    for len in [10usize, 100_000] {
        channel.send(Outgoing::new(&vec![1; len]).handle(file_with(b"beside bytes"))).unwrap();
        assert_eq!(recv(&channel).bytes(), b"beside bytes");
        let mut room = channel.reserve(len, DEADLINE).unwrap();
        room.handle(file_with(b"beside a reservation"));
        room.commit().unwrap();
        assert_eq!(recv(&channel).bytes(), b"beside a reservation");
        let mut room = channel.reserve_sealed(len).unwrap();
        room.handle(file_with(b"beside a sealed one"));
        room.commit(DEADLINE).unwrap();
        assert_eq!(recv(&channel).bytes(), b"beside a sealed one");
    }
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn received_descriptors_are_closed_on_exec() {
    let (actor, channel) = spawn("echo");
    channel.send(Outgoing::new(b"").handle(file_with(b"x"))).unwrap();
    let handles = recv(&channel).take_handles().unwrap();
    let fd = handles.into_iter().next().unwrap().into_fd().unwrap();
    assert!(rustix::io::fcntl_getfd(&fd).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    drop(channel);
    actor.wait_for_success();
}

#[test]
fn a_receiver_times_out_and_goes_on() {
    let (actor, channel) = spawn("echo");
    assert_eq!(channel.try_recv().unwrap_err(), Error::WouldBlock);
    assert_eq!(channel.recv_by(Duration::from_millis(30)).unwrap_err(), Error::TimedOut);
    assert_eq!(channel.recv_by(Duration::ZERO).unwrap_err(), Error::TimedOut);
    channel.send(b"later").unwrap();
    assert_eq!(recv(&channel).bytes(), b"later");
    drop(channel);
    actor.wait_for_success();
}

/// Shows that the state of a channel, its peer and its counters are reported correctly.
#[test]
fn state_and_counters_tell_what_happened() {
    let (actor, channel) = spawn("echo");
    assert!(channel.is_writable() && !channel.is_readable() && !channel.is_peer_closed());
    channel.send(b"four").unwrap();
    channel.send(&vec![0; 100_000]).unwrap();
    while !channel.is_readable() {
        std::thread::yield_now();
    }
    recv(&channel);
    recv(&channel);
    let peer = channel.peer().unwrap().unwrap();
    assert_eq!(peer.pid, Some(actor.pid()));
    assert_eq!(peer.uid, rustix::process::geteuid().as_raw());
    assert_eq!(peer.gid, rustix::process::getegid().as_raw());
    channel.peer_pidfd().unwrap();
    let counters = channel.counters();
    assert_eq!((counters.messages_sent, counters.bytes_sent), (2, 100_004));
    assert_eq!((counters.messages_received, counters.bytes_received), (2, 100_004));
    assert_eq!(counters.out_of_line, 1);
    drop(channel);
    actor.wait_for_success();
}

/// Shows that a received message says whether it has handles before they are taken.
#[test]
fn a_received_message_says_whether_it_has_handles() {
    let (a, b) = strait::Channel::pair().unwrap();
    let mut buffer = [0; 8];
    a.send(b"none").unwrap();
    assert!(!b.recv_into(&mut buffer, strait::Deadline::NOW).unwrap().has_handles());
    a.send(strait::Outgoing::new(b"one").handle(std::fs::File::open("/dev/null").unwrap())).unwrap();
    let mut received = b.recv_into(&mut buffer, strait::Deadline::NOW).unwrap();
    assert!(received.has_handles());
    assert_eq!(received.take_handles().unwrap().len(), 1);
    assert!(!received.has_handles());
}
