//! Honest conversations between this crate and the library: both speak the wire protocol of the document.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Outgoing};
use strait_hostile::layout::transfer;
use strait_hostile::record::{AN_END, kind, kind_of};
use strait_hostile::{RawPeer, Table};

const DEADLINE: Duration = Duration::from_secs(60);

fn sockets() -> (OwnedFd, OwnedFd) {
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap()
}

fn meet() -> (RawPeer, Channel) {
    let (ours, theirs) = sockets();
    let channel = Channel::over(theirs).unwrap();
    let mut peer = RawPeer::meet(ours).unwrap();
    peer.pump().unwrap();
    (peer, channel)
}

fn file_with(content: &[u8]) -> OwnedFd {
    let fd = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    assert_eq!(rustix::io::pwrite(&fd, content, 0).unwrap(), content.len());
    fd
}

fn content_of(fd: &OwnedFd) -> Vec<u8> {
    let mut content = vec![0; usize::try_from(rustix::fs::fstat(fd).unwrap().st_size).unwrap()];
    assert_eq!(rustix::io::pread(fd, &mut content, 0).unwrap(), content.len());
    content
}

#[test]
fn the_library_understands_what_is_written_here() {
    let (mut peer, channel) = meet();
    let recv = || channel.recv_by(Deadline::NOW).unwrap();
    peer.send(b"small").unwrap();
    assert_eq!(recv().bytes(), b"small");
    peer.send_pack(&[b"one", b"", b"three, of more than eight bytes"]).unwrap();
    for expected in [&b"one"[..], b"", b"three, of more than eight bytes"] {
        assert_eq!(recv().bytes(), expected);
    }
    let (one, two) = (file_with(b"one"), file_with(b"two"));
    peer.send_with(b"handles", &[one.as_fd(), two.as_fd()]).unwrap();
    let mut message = recv();
    assert_eq!(message.bytes(), b"handles");
    let handles = message.take_handles().unwrap().into_iter().map(|handle| content_of(&handle.into_fd().unwrap()));
    assert_eq!(handles.collect::<Vec<_>>(), [b"one", b"two"]);
    peer.grow(512).unwrap();
    // Twice around the ring.
    for n in 0..100u8 {
        peer.send(&[n; 700]).unwrap();
        assert_eq!(recv().bytes(), [n; 700]);
    }
    let block = peer.send_block(3, &[7; 200_000]).unwrap();
    assert_eq!(recv().bytes(), [7; 200_000]);
    assert_eq!(block.word64(0).load(std::sync::atomic::Ordering::SeqCst), 1);
    peer.send_sealed(&[8; 100_000]).unwrap();
    let message = channel.recv_in_place(Deadline::NOW).unwrap();
    assert_eq!(message.sealed().unwrap(), [8; 100_000]);
    drop(message);
    peer.close().unwrap();
    assert_eq!(channel.recv_by(Deadline::NOW).unwrap_err(), Error::PeerClosed);
}

#[test]
fn what_the_library_writes_is_understood_here() {
    let (mut peer, channel) = meet();
    channel.send(b"small").unwrap();
    assert_eq!(peer.try_recv().unwrap().unwrap().bytes, b"small");
    assert!(peer.try_recv().unwrap().is_none());
    channel.send_many(["one", "", "three, of more than eight bytes"], Deadline::NOW).unwrap();
    for expected in ["one", "", "three, of more than eight bytes"] {
        assert_eq!(peer.try_recv().unwrap().unwrap().bytes, expected.as_bytes());
    }
    channel.send(Outgoing::new(b"handles").handle(file_with(b"one")).handle(file_with(b"two"))).unwrap();
    let message = peer.try_recv().unwrap().unwrap();
    assert_eq!(message.bytes, b"handles");
    assert_eq!(message.descriptors.iter().map(content_of).collect::<Vec<_>>(), [b"one", b"two"]);
    // More messages than the ring has room for at first, so that the ring grows.
    for n in 0..100u8 {
        channel.try_send(&[n; 700]).unwrap();
    }
    assert!(channel.counters().grown > 0);
    for n in 0..100u8 {
        assert_eq!(peer.try_recv().unwrap().unwrap().bytes, [n; 700]);
    }
    channel.send(Outgoing::new(&[7; 200_000]).handle(file_with(b"beside"))).unwrap();
    let message = peer.try_recv().unwrap().unwrap();
    assert_eq!(message.bytes, [7; 200_000]);
    assert_eq!(content_of(&message.descriptors[0]), b"beside");
    channel.send(&[9; 150_000]).unwrap();
    assert_eq!(peer.try_recv().unwrap().unwrap().bytes, [9; 150_000]);
    // The block was returned.
    assert_eq!(channel.counters().pool_hits, 1);
    let mut room = channel.reserve_sealed(100_000).unwrap();
    room.bytes().fill(8);
    room.commit(Deadline::NOW).unwrap();
    assert_eq!(peer.try_recv().unwrap().unwrap().bytes, [8; 100_000]);
    drop(channel);
    assert_eq!(peer.try_recv().unwrap_err().kind(), std::io::ErrorKind::UnexpectedEof);
}

#[test]
fn an_end_is_sent_and_used_and_its_sleepers_are_woken() {
    let (mut peer, channel) = meet();
    let arena = peer.announce(1, 4, 4, 0).unwrap();
    let lane = arena.lane(2);
    let table = Table::of(&[AN_END]).end(arena.name(2), 1, 0, 1).message(b"not received", 0, &[]);
    peer.send_ends(b"an end", 1, &table, std::slice::from_ref(&lane)).unwrap();
    let mut message = channel.recv_by(Deadline::NOW).unwrap();
    let end = message.take_handles().unwrap().remove(0).into_channel().unwrap();
    assert_eq!(lane.transfer().load(std::sync::atomic::Ordering::SeqCst), transfer::CLAIMED);
    assert_eq!(end.recv_by(Deadline::NOW).unwrap().bytes(), b"not received");
    let mut writer = strait_hostile::layout::Writer::new(lane.ring(0));
    // A thread that blocks in a receive call is woken, as is a thread that waits for a wait set.
    std::thread::scope(|scope| {
        let blocked = scope.spawn(|| end.recv_by(DEADLINE));
        let begin = std::time::Instant::now();
        while lane.ring(0).sleeping().load(std::sync::atomic::Ordering::SeqCst) == 0 {
            assert!(begin.elapsed() < DEADLINE);
            std::thread::yield_now();
        }
        writer.put(strait_hostile::record::header(1, 3, 0), b"for");
        peer.wake_reader_of(&lane.ring(0)).unwrap();
        assert_eq!(blocked.join().unwrap().unwrap().bytes(), b"for");
    });
    let set = WaitSet::new().unwrap();
    set.add(&end, 5, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    peer.pump().unwrap();
    assert!(peer.bitmap.is_some());
    writer.put(strait_hostile::record::header(1, 4, 0), b"ever");
    peer.wake_reader_of(&lane.ring(0)).unwrap();
    assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
    assert_eq!(end.recv_by(Deadline::NOW).unwrap().bytes(), b"ever");
    end.send(b"back").unwrap();
    let mut reader = strait_hostile::layout::Reader::new(lane.ring(1));
    assert_eq!(reader.take().unwrap().payload, b"back");
    drop(end);
    assert_eq!(lane.done(1).load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn two_raw_peers_talk_in_one_thread() {
    let (one, other) = sockets();
    let (mut one, mut other) = (RawPeer::meet_as(one, 1, 4).unwrap(), RawPeer::meet_as(other, 2, 4).unwrap());
    one.pump().unwrap();
    other.pump().unwrap();
    assert_ne!(one.side(), other.side());
    for n in 0..20 {
        one.send(&[n; 40]).unwrap();
        assert_eq!(other.try_recv().unwrap().unwrap().bytes, [n; 40]);
        other.send(&[n; 50]).unwrap();
        assert_eq!(one.try_recv().unwrap().unwrap().bytes, [n; 50]);
    }
    assert_eq!(one.shared().len(), 2);
}

/// Shows that a handle table and its message appear together, and that neither appears while the ring has room for only
/// one of them.
#[test]
fn a_table_and_its_message_appear_together() {
    let (ours, theirs) = sockets();
    // 32 cells: the longest message in the ring takes 12 cells, and a table of one end takes one.
    let channel = strait::Options::new().ring(2048).ring_max(2048).over(theirs).unwrap();
    let mut peer = RawPeer::meet(ours).unwrap();
    peer.pump().unwrap();
    peer.send(b"hello").unwrap();
    channel.recv_by(Deadline::NOW).unwrap();
    for _ in 0..19 {
        channel.try_send(b"small").unwrap();
    }
    // The 13 cells left are room for the message and the free cell behind it, but not for the table.
    let (one, _other) = Channel::pair().unwrap();
    let failed = channel.try_send(Outgoing::new(&[7; 760]).handle(one)).unwrap_err();
    assert_eq!(failed.error, Error::WouldBlock);
    let kinds = |peer: &mut RawPeer| {
        let records = std::iter::from_fn(|| peer.record().unwrap());
        records.map(|record| kind_of(record.header)).collect::<Vec<_>>()
    };
    assert_eq!(kinds(&mut peer), [kind::MESSAGE; 19]);
    peer.give_credit().unwrap();
    channel.try_send(Outgoing::new(&[7; 760]).handle(failed.handles.into_iter().next().unwrap())).unwrap();
    assert_eq!(kinds(&mut peer), [kind::TABLE, kind::MESSAGE]);
}
