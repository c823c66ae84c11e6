//! Tests of data pipes: between processes and within a process, with moving ends, and with dying processes.

mod common;

use std::io::{Read, Seek, Write};
use std::time::Duration;

use common::{DEADLINE, Role, finish, parent, pattern, spawn, spawn_with, wait_until};
use strait::pipe::{DataConsumer, DataPipe, DataProducer, PipeOptions};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing, Wait};

const ROLES: &[(&str, Role)] = &[
    ("reader", |_| reader()),
    ("writer", |_| writer()),
    ("echo", |_| common::echo(&parent())),
    ("middle", |_| middle()),
    ("half", |_| half()),
    ("silent", |_| silent()),
    ("drops", |_| drops()),
];

#[test]
fn child() {
    common::play(ROLES);
}

const LEN: usize = 10_000_000;

fn take(channel: &Channel) -> Handle {
    channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0)
}

fn give(channel: &Channel, end: impl Into<Handle>) {
    channel.send(Outgoing::new(b"an end").handle(end)).unwrap();
}

/// Reads its data pipe to the end and answers with a checksum.
fn reader() {
    let channel = parent();
    let mut consumer = take(&channel).into_consumer().unwrap();
    let mut bytes = Vec::new();
    consumer.read_to_end(&mut bytes).unwrap();
    channel.send(&common::checksum(&bytes).to_le_bytes()).unwrap();
    let _ = channel.recv();
}

/// Writes a pattern of [`LEN`] bytes in pieces of many sizes.
fn writer() {
    let channel = parent();
    let mut producer = take(&channel).into_producer().unwrap();
    let bytes = pattern(3, LEN);
    let (mut rest, mut size) = (bytes.as_slice(), 1);
    while !rest.is_empty() {
        let (piece, others) = rest.split_at(size.min(rest.len()));
        producer.write_all(piece).unwrap();
        (rest, size) = (others, size * 3 % 100_003 + 1);
    }
}

/// Receives a channel and other handles, sends the others over the channel, and exits.
fn middle() {
    let channel = parent();
    let mut message = channel.recv_by(DEADLINE).unwrap();
    let mut handles = message.take_handles().unwrap();
    let next = handles.remove(0).into_channel().unwrap();
    next.send(Outgoing::new(b"on").handles(handles)).unwrap();
}

/// Writes some bytes, reports it, and waits until the channel is closed or the process is killed.
fn half() {
    let channel = parent();
    let producer = take(&channel).into_producer().unwrap();
    producer.write_whole(b"what was written", Deadline::NOW).unwrap();
    channel.send(b"written").unwrap();
    let _ = channel.recv();
}

/// Holds the received end, and does nothing with it.
fn silent() {
    let channel = parent();
    let held = take(&channel);
    channel.send(b"held").unwrap();
    let _ = channel.recv();
    drop(held);
}

/// Drops the received end.
fn drops() {
    let channel = parent();
    drop(take(&channel));
    channel.send(b"dropped").unwrap();
    let _ = channel.recv();
}

#[test]
fn bytes_go_through_in_order_to_another_process_and_then_the_end() {
    for wait in [Wait::Adaptive, Wait::Block] {
        let (actor, channel) = spawn("reader");
        let (mut producer, consumer) = PipeOptions::new().capacity(50_000).wait(wait).create().unwrap();
        // Some bytes are unread when the consumer is sent.
        producer.write_all(&pattern(3, LEN)[..40_000]).unwrap();
        give(&channel, consumer);
        producer.write_all(&pattern(3, LEN)[40_000..]).unwrap();
        drop(producer);
        let sum = channel.recv_by(DEADLINE).unwrap();
        assert_eq!(sum.bytes(), common::checksum(&pattern(3, LEN)).to_le_bytes());
        drop(channel);
        finish(actor);
    }
}

#[test]
fn bytes_come_from_another_process_and_then_the_end() {
    for wait in [Wait::Adaptive, Wait::Block] {
        let (_actor, channel) = spawn_with("writer", "", &Options::new().wait(wait));
        let (producer, mut consumer) = PipeOptions::new().capacity(30_001).wait(wait).create().unwrap();
        give(&channel, producer);
        let mut bytes = Vec::new();
        consumer.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len(), LEN);
        assert_eq!(common::checksum(&bytes), common::checksum(&pattern(3, LEN)));
    }
}

/// Shows that both ends of a data pipe can move to other processes and back while bytes are unread.
#[test]
fn both_ends_move_on_in_the_middle_of_the_stream() {
    let (producer, consumer) = DataPipe::pair(5_000).unwrap();
    let (_reads, reads) = spawn("echo");
    let (_writes, writes) = spawn("echo");
    let bytes = pattern(4, 200_000);
    let (mut producer, mut consumer) = (Some(producer), Some(consumer));
    let mut read = Vec::new();
    let mut rest = bytes.as_slice();
    for _ in 0..20 {
        for _ in 0..4 {
            let written =
                producer.as_ref().unwrap().write_some(&rest[..rest.len().min(1_500)], Deadline::NOW).unwrap_or(0);
            rest = &rest[written..];
        }
        // Each end goes to another process and back, with the unread bytes.
        give(&writes, producer.take().unwrap());
        give(&reads, consumer.take().unwrap());
        producer = take(&writes).into_producer();
        consumer = take(&reads).into_consumer();
        let mut out = vec![0; 4_321];
        let len = consumer.as_ref().unwrap().read_some(&mut out, Deadline::NOW).unwrap();
        read.extend_from_slice(&out[..len]);
    }
    drop(producer);
    consumer.unwrap().read_to_end(&mut read).unwrap();
    assert_eq!(read.len(), bytes.len() - rest.len());
    assert!(bytes.starts_with(&read));
}

/// Shows that a consumer can be sent through an exiting process.
#[test]
fn an_end_goes_on_through_a_process_that_ends() {
    let (middle, to_middle) = spawn("middle");
    let (reader, to_reader) = spawn("reader");
    let (mut producer, consumer) = DataPipe::pair(10_000).unwrap();
    producer.write_all(b"before").unwrap();
    let (a, b) = Channel::pair().unwrap();
    to_middle.send(Outgoing::new(b"").handle(a).handle(consumer)).unwrap();
    let consumer = take(&b).into_consumer().unwrap();
    finish(middle);
    producer.write_all(b" and after").unwrap();
    give(&to_reader, consumer);
    drop(producer);
    assert_eq!(to_reader.recv_by(DEADLINE).unwrap().bytes(), common::checksum(b"before and after").to_le_bytes());
    drop(to_reader);
    finish(reader);
}

/// Shows that the bytes of a killed producer can be read, and that the stream then fails and does not end.
#[test]
fn a_producer_that_is_killed_leaves_what_it_wrote_and_no_end() {
    let (mut actor, channel) = spawn("half");
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    give(&channel, producer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"written");
    actor.kill();
    let mut out = [0; 100];
    assert_eq!(consumer.read_some(&mut out[..4], DEADLINE).unwrap(), 4);
    // Fewer bytes are left than were requested, and they stay in the pipe.
    assert_eq!(consumer.read_whole(&mut out[..50], DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(consumer.peek(&mut out).unwrap(), 12);
    assert_eq!(consumer.read_some(&mut out, DEADLINE).unwrap(), 12);
    assert_eq!(&out[..12], b" was written");
    assert_eq!(consumer.read_some(&mut out, DEADLINE).unwrap_err(), Error::PeerClosed);
    assert_eq!(consumer.begin_read(DEADLINE).unwrap_err(), Error::PeerClosed);
    let error = (&consumer).read(&mut out).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::BrokenPipe);
}

#[test]
fn a_producer_that_is_dropped_or_exits_ends_the_stream() {
    let (actor, channel) = spawn("half");
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    give(&channel, producer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"written");
    drop(channel);
    finish(actor);
    let mut out = [0; 100];
    assert_eq!(consumer.read_whole(&mut out, DEADLINE).unwrap_err(), Error::OutOfRange { len: 16 });
    assert_eq!(consumer.read_some(&mut out, DEADLINE).unwrap(), 16);
    assert_eq!(consumer.read_some(&mut out, DEADLINE).unwrap(), 0);
    assert_eq!(consumer.read_some(&mut out, Deadline::NOW).unwrap(), 0);
    assert!(consumer.begin_read(DEADLINE).unwrap().is_empty());
}

#[test]
fn a_reader_that_waits_is_told_of_the_death_of_its_producer() {
    let (mut actor, channel) = spawn("silent");
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    give(&channel, producer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| consumer.read_some(&mut [0; 10], DEADLINE));
        wait_until("the other thread waits", || consumer.available() == Err(Error::WouldBlock));
        actor.kill();
        assert_eq!(waits.join().unwrap().unwrap_err(), Error::PeerClosed);
    });
}

#[test]
fn a_producer_whose_consumer_is_gone_is_told() {
    // After a drop of the consumer, a write fails at once, although there is room.
    let (_actor, channel) = spawn("drops");
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    give(&channel, consumer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"dropped");
    assert_eq!(producer.room().unwrap_err(), Error::PeerClosed);
    assert_eq!(producer.write_some(b"too late", DEADLINE).unwrap_err(), Error::PeerClosed);
    // After a kill of the consumer, a write fails when the pipe is full.
    let (mut actor, channel) = spawn("silent");
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    give(&channel, consumer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    producer.write_whole(&[1; 1000], DEADLINE).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| producer.write_some(b"more", DEADLINE));
        wait_until("the other thread waits", || producer.room() == Err(Error::WouldBlock));
        actor.kill();
        assert_eq!(waits.join().unwrap().unwrap_err(), Error::PeerClosed);
    });
}

#[test]
fn a_consumer_that_stops_stalls_its_producer_until_the_deadline() {
    let (actor, channel) = spawn("silent");
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    give(&channel, consumer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    let pid = rustix::process::Pid::from_raw(actor.pid() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
    assert_eq!(producer.write_some(&[1; 2000], DEADLINE).unwrap(), 1000);
    assert_eq!(producer.write_some(b"more", Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(producer.write_some(b"more", Duration::from_millis(30)).unwrap_err(), Error::TimedOut);
    assert_eq!(producer.room().unwrap(), 0);
}

#[test]
fn elements_stay_whole() {
    let (producer, consumer) = PipeOptions::new().element(12).capacity(100).create().unwrap();
    assert_eq!((producer.capacity(), producer.element()), (108, 12));
    assert_eq!((consumer.capacity(), consumer.element()), (108, 12));
    let bytes = pattern(5, 120);
    assert_eq!(producer.write_some(&bytes[..11], Deadline::NOW).unwrap_err(), Error::NotElements { element: 12 });
    assert_eq!(producer.write_whole(&bytes[..13], Deadline::NOW).unwrap_err(), Error::NotElements { element: 12 });
    assert_eq!(producer.write_some(&bytes[..35], Deadline::NOW).unwrap(), 24);
    let mut out = [0; 200];
    assert_eq!(consumer.read_some(&mut out[..11], Deadline::NOW).unwrap_err(), Error::NotElements { element: 12 });
    assert_eq!(consumer.read_some(&mut out[..23], Deadline::NOW).unwrap(), 12);
    assert_eq!(producer.write_some(&bytes[24..], Deadline::NOW).unwrap(), 96);
    assert_eq!(consumer.discard(13).unwrap(), 12);
    assert_eq!(consumer.available().unwrap(), 96);
    // The bytes continue past the end of the buffer, at its start.
    assert_eq!(consumer.read_some(&mut out, Deadline::NOW).unwrap(), 96);
    assert_eq!(out[..96], bytes[24..]);
    assert_eq!(consumer.read_some(&mut out, Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(
        producer.splice_from(std::fs::File::open("/dev/zero").unwrap(), 12, Deadline::NOW).unwrap_err(),
        Error::NotElements { element: 12 }
    );
}

/// Shows that `write_whole` and `read_whole` transfer all bytes or none.
#[test]
fn all_or_none_is_all_or_none() {
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    producer.write_whole(&[1; 80], Deadline::NOW).unwrap();
    assert_eq!(producer.write_whole(&[2; 30], Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(producer.write_whole(&[2; 101], DEADLINE).unwrap_err(), Error::OutOfRange { len: 100 });
    let mut out = [0; 90];
    assert_eq!(consumer.read_whole(&mut out, Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(consumer.available().unwrap(), 80);
    std::thread::scope(|scope| {
        scope.spawn(|| producer.write_whole(&[2; 30], DEADLINE).unwrap());
        let mut some = [0; 10];
        consumer.read_whole(&mut some, DEADLINE).unwrap();
        consumer.read_whole(&mut out, DEADLINE).unwrap();
    });
    assert_eq!((&out[..70], &out[70..]), (&[1; 70][..], &[2; 20][..]));
    assert_eq!(consumer.available().unwrap(), 10);
}

/// Shows that bytes can be written and read in place, in two steps.
#[test]
fn two_phases_write_and_read_in_place() {
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    let mut room = producer.begin_write(Deadline::NOW).unwrap();
    assert_eq!(room.len(), 1000);
    room.write_at(b"middle", 100);
    room.as_uninit_mut()[0].write(7);
    // Other writes have to wait until the room is committed or dropped.
    assert_eq!(producer.write_some(b"x", Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(consumer.available().unwrap(), 0);
    room.commit(600);
    // The room is dropped without a byte written.
    drop(producer.begin_write(Deadline::NOW).unwrap());
    assert_eq!(producer.room().unwrap(), 400);

    let unread = consumer.begin_read(Deadline::NOW).unwrap();
    assert_eq!(unread.len(), 600);
    assert_eq!(consumer.read_some(&mut [0], Deadline::NOW).unwrap_err(), Error::WouldBlock);
    let mut out = [0; 6];
    unread.read_at(&mut out, 100);
    assert_eq!(&out, b"middle");
    // SAFETY: the producer is in this test, and writes nothing now.
    assert_eq!(unsafe { unread.trusted() }[0], 7);
    drop(unread);
    consumer.begin_read(Deadline::NOW).unwrap().consume(500);
    assert_eq!(consumer.available().unwrap(), 100);
    // The room reaches to the end of the buffer; the next room begins at its start.
    let room = producer.begin_write(Deadline::NOW).unwrap();
    assert_eq!(room.len(), 400);
    room.commit(400);
    assert_eq!(producer.begin_write(Deadline::NOW).unwrap().len(), 500);
}

/// Shows that a wait set reports producers and consumers of data pipes and channels, also when an end is closed or
/// moves.
#[test]
fn a_set_waits_for_both_ends_beside_channels() {
    let (_actor, echo) = spawn("echo");
    let set = WaitSet::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    set.add(&b, 1, strait::wait::Interest::Readable, Mode::Level).unwrap();
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    let (full, drain) = DataPipe::pair(10).unwrap();
    full.write_whole(&[0; 10], Deadline::NOW).unwrap();
    // These ends came back from another process, so the data pipes go over a link.
    give(&echo, producer);
    give(&echo, drain);
    let producer = take(&echo).into_producer().unwrap();
    let drain = take(&echo).into_consumer().unwrap();
    set.add(&consumer, 2, Interest::Both, Mode::Level).unwrap();
    set.add(&full, 3, Interest::Both, Mode::Level).unwrap();
    assert_eq!(set.add(&full, 3, Interest::Both, Mode::Level).unwrap_err(), Error::InSet);
    let mut events = Vec::new();
    let keys = |events: &[strait::wait::Event]| events.iter().map(|event| event.key()).collect::<Vec<_>>();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    for round in 0..100u8 {
        std::thread::scope(|scope| {
            scope.spawn(|| match round % 3 {
                0 => a.send(b"message").unwrap(),
                1 => producer.write_whole(&[round], Deadline::NOW).unwrap(),
                _ => drain.read_whole(&mut [0; 10], DEADLINE).unwrap(),
            });
            assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
        });
        let event = events[0];
        assert_eq!(event.key(), u64::from(round % 3) + 1);
        match round % 3 {
            0 => drop(b.try_recv().unwrap()),
            1 => {
                assert!(event.is_readable() && !event.is_writable());
                // The event is reported as long as there are bytes to read.
                set.wait(&mut events, Deadline::NOW).unwrap();
                assert_eq!(keys(&events), [2]);
                assert_eq!(consumer.read_some(&mut [0; 5], Deadline::NOW).unwrap(), 1);
            }
            _ => {
                assert!(event.is_writable() && !event.is_readable());
                full.write_whole(&[0; 10], Deadline::NOW).unwrap();
            }
        }
        assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0, "round {round}");
    }
    // A thread that blocks in a read is served, and the set still works.
    std::thread::scope(|scope| {
        scope.spawn(|| consumer.read_whole(&mut [0; 3], DEADLINE).unwrap());
        producer.write_whole(b"abc", Deadline::NOW).unwrap();
    });
    producer.write_whole(b"d", Deadline::NOW).unwrap();
    set.wait(&mut events, DEADLINE).unwrap();
    assert_eq!(keys(&events), [2]);
    consumer.read_some(&mut [0; 5], Deadline::NOW).unwrap();
    // The set reports the end of the stream, and a closed consumer.
    drop(producer);
    set.wait(&mut events, DEADLINE).unwrap();
    assert_eq!(keys(&events), [2]);
    assert_eq!(consumer.read_some(&mut [0; 5], Deadline::NOW).unwrap(), 0);
    set.remove(&consumer).unwrap();
    drop(drain);
    set.wait(&mut events, DEADLINE).unwrap();
    assert_eq!(keys(&events), [3]);
    assert_eq!(full.write_some(b"x", Deadline::NOW).unwrap_err(), Error::PeerClosed);
    // An end that is sent to another process leaves the set.
    give(&echo, full);
    set.wait(&mut events, DEADLINE).unwrap();
    assert!(events[0].has_moved());
    assert_eq!(set.len(), 1);
}

/// Shows that the descriptor of a wait set is no longer readable once the set has found its members without events.
#[test]
fn the_descriptor_of_a_set_with_pipes_comes_to_rest() {
    use rustix::event::{PollFd, PollFlags, poll};
    let set = WaitSet::new().unwrap();
    let readable = || poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&Default::default())).unwrap() > 0;
    let (producer, consumer) = DataPipe::pair(10).unwrap();
    set.add(&consumer, 1, Interest::Both, Mode::Level).unwrap();
    set.add(&producer, 2, Interest::Both, Mode::Level).unwrap();
    let mut events = Vec::new();
    for _ in 0..10 {
        producer.write_whole(&[0; 10], Deadline::NOW).unwrap();
        assert!(readable());
        set.wait(&mut events, Deadline::NOW).unwrap();
        assert_eq!(events.iter().map(|event| event.key()).collect::<Vec<_>>(), [1]);
        set.remove(&producer).unwrap();
        consumer.read_whole(&mut [0; 10], Deadline::NOW).unwrap();
        while set.wait(&mut events, Deadline::NOW).unwrap() > 0 {}
        assert!(!readable());
        set.add(&producer, 2, Interest::Both, Mode::Level).unwrap();
    }
}

/// Shows that a one-shot registration of a data pipe reports one event until it is rearmed.
#[test]
fn one_shot_registrations_of_pipes_tell_once() {
    let set = WaitSet::new().unwrap();
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    set.add(&consumer, 1, Interest::Both, Mode::OneShot).unwrap();
    producer.write_whole(b"one", Deadline::NOW).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
    producer.write_whole(b"two", Deadline::NOW).unwrap();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    set.modify(&consumer, 1, Interest::Both, Mode::OneShot).unwrap();
    assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
    consumer.read_some(&mut [0; 10], Deadline::NOW).unwrap();
    set.modify(&consumer, 1, Interest::Both, Mode::OneShot).unwrap();
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    producer.write_whole(b"three", Deadline::NOW).unwrap();
    assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
}

#[test]
fn files_and_sockets_are_spliced() {
    let bytes = pattern(6, 1_000_000);
    let mut file = tempfile();
    file.write_all(&bytes).unwrap();
    file.rewind().unwrap();
    let (producer, consumer) = DataPipe::pair(60_000).unwrap();
    let (mut from, to) = std::os::unix::net::UnixStream::pair().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while producer.splice_from(&file, 50_000, DEADLINE).unwrap() > 0 {}
            drop(producer);
        });
        scope.spawn(move || while consumer.splice_to(&to, usize::MAX, DEADLINE).unwrap() > 0 {});
        let mut came = Vec::new();
        from.read_to_end(&mut came).unwrap();
        assert_eq!(common::checksum(&came), common::checksum(&bytes));
    });
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
    ours.set_nonblocking(true).unwrap();
    assert_eq!(producer.splice_from(&ours, 10, Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(consumer.splice_to(&ours, 10, Deadline::NOW).unwrap_err(), Error::WouldBlock);
    producer.write_whole(b"unread", Deadline::NOW).unwrap();
    drop(theirs);
    // The bytes that could not be written are still in the pipe.
    assert!(matches!(consumer.splice_to(&ours, 10, Deadline::NOW), Err(Error::System { .. })));
    assert_eq!(consumer.available().unwrap(), 6);
}

fn tempfile() -> std::fs::File {
    let fd = rustix::fs::memfd_create("strait-test-file", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    fd.into()
}

/// Shows that several threads can write to and read from a data pipe, each piece whole.
#[test]
fn threads_take_turns() {
    let (producer, consumer) = DataPipe::pair(1000).unwrap();
    let sum = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let producer = &producer;
        let writers: Vec<_> = (0..4u8)
            .map(|n| {
                scope.spawn(move || {
                    for _ in 0..500 {
                        producer.write_whole(&[n; 8], DEADLINE).unwrap();
                    }
                })
            })
            .collect();
        for _ in 0..2 {
            scope.spawn(|| {
                let mut out = [0; 8];
                for _ in 0..1000 {
                    consumer.read_whole(&mut out, DEADLINE).unwrap();
                    assert!(out.iter().all(|byte| *byte == out[0]), "{out:?}");
                    sum.fetch_add(u64::from(out[0]), std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
        writers.into_iter().for_each(|writer| writer.join().unwrap());
    });
    assert_eq!(sum.into_inner(), 500 * (1 + 2 + 3));
}

#[test]
fn nothing_is_left_of_pipes_whose_ends_travelled() {
    let (_actor, echo) = spawn("echo");
    let round = || {
        let (producer, consumer) = DataPipe::pair(10_000).unwrap();
        give(&echo, producer);
        give(&echo, consumer);
        let producer: DataProducer = take(&echo).into_producer().unwrap();
        let consumer: DataConsumer = take(&echo).into_consumer().unwrap();
        producer.write_whole(b"x", Deadline::NOW).unwrap();
        // The program leaves this end in the message.
        give(&echo, consumer);
        drop(echo.recv_by(DEADLINE).unwrap());
        assert_eq!(producer.write_some(&[0; 20_000], DEADLINE).unwrap_err(), Error::PeerClosed);
    };
    round();
    let mine = || std::fs::read_to_string("/proc/self/maps").unwrap().matches("memfd:strait-pipe-leak").count();
    let (producer, consumer) = PipeOptions::new().name("strait-pipe-leak").create().unwrap();
    assert_eq!(mine(), 2);
    for _ in 0..30 {
        round();
    }
    give(&echo, consumer);
    drop(take(&echo));
    assert_eq!(producer.room().unwrap_err(), Error::PeerClosed);
    drop(producer);
    assert_eq!(mine(), 0);
}
