//! Tests of data pipes whose ends are closed with a reason: the other side gets the reason, and nothing that was
//! written is lost.

mod common;

use std::fs::File;
use std::io::Read;
use std::sync::mpsc;

use common::{DEADLINE, Role, finish, parent, spawn, wait_until};
use strait::pipe::{DataPipe, DataProducer, PANICKED, PipeOptions};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Outgoing, Wait};

const ROLES: &[(&str, Role)] = &[
    ("producer", |_| produce()),
    ("armed", |_| arm()),
    ("consumer", |_| consume()),
    ("echo", |_| common::echo(&parent())),
];

#[test]
fn child() {
    common::play(ROLES);
}

const WAITS: [Wait; 3] = [Wait::Block, Wait::Adaptive, Wait::Spin];

fn take(channel: &Channel) -> Handle {
    channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0)
}

fn give(channel: &Channel, end: impl Into<Handle>) {
    channel.send(Outgoing::new(b"an end").handle(end)).unwrap();
}

/// Sends an end through another process and back, and returns the end.
fn there_and_back(end: impl Into<Handle>) -> Handle {
    let (_actor, channel) = spawn("echo");
    give(&channel, end);
    take(&channel)
}

/// Receives a producer, writes some bytes, and aborts the stream with the reason that the parent sends.
fn produce() {
    let channel = parent();
    let producer = take(&channel).into_producer().unwrap();
    producer.write_whole(b"written", Deadline::NOW).unwrap();
    channel.send(b"written").unwrap();
    let reason = channel.recv().unwrap().bytes().try_into().unwrap();
    producer.abort(u32::from_le_bytes(reason));
    let _ = channel.recv();
}

/// Receives a producer and sets its reason. Exits when the channel is closed.
fn arm() {
    let channel = parent();
    let producer = take(&channel).into_producer().unwrap();
    producer.set_abort_reason(5);
    channel.send(b"armed").unwrap();
    let _ = channel.recv();
}

/// Receives a consumer, and closes the consumer with the parent's reason.
fn consume() {
    let channel = parent();
    let consumer = take(&channel).into_consumer().unwrap();
    let reason = channel.recv().unwrap().bytes().try_into().unwrap();
    consumer.abort(u32::from_le_bytes(reason));
    let _ = channel.recv();
}

fn aborted<T>(reason: u32) -> Result<T, Error> {
    Err(Error::Aborted { reason })
}

#[test]
fn every_read_gives_what_was_written_and_then_the_reason() {
    for wait in WAITS {
        for deadline in [Deadline::NOW, Deadline::after(DEADLINE), Deadline::NEVER] {
            for reason in [0, 17, PANICKED] {
                let (producer, mut consumer) = PipeOptions::new().capacity(100).wait(wait).create().unwrap();
                producer.write_whole(b"written", Deadline::NOW).unwrap();
                producer.abort(reason);
                let mut out = [0; 10];
                assert_eq!(consumer.read_whole(&mut out, deadline), aborted(reason));
                assert_eq!(consumer.peek(&mut out), Ok(7));
                assert_eq!(consumer.available(), Ok(7));
                assert_eq!(consumer.read_some(&mut out, deadline), Ok(7));
                assert_eq!(&out[..7], b"written");
                for _ in 0..2 {
                    assert_eq!(consumer.read_some(&mut out, deadline), aborted(reason));
                    assert_eq!(consumer.read_whole(&mut out, deadline), aborted(reason));
                    assert_eq!(consumer.peek(&mut out), aborted(reason));
                    assert_eq!(consumer.begin_read(deadline).map(drop), aborted(reason));
                    let null = File::options().write(true).open("/dev/null").unwrap();
                    assert_eq!(consumer.splice_to(&null, 10, deadline), aborted(reason));
                    let failed = consumer.read(&mut out).unwrap_err();
                    assert_eq!(failed.kind(), std::io::ErrorKind::ConnectionAborted);
                    assert_eq!((consumer.available(), consumer.discard(10)), (Ok(0), Ok(0)));
                }
            }
        }
    }
}

#[test]
fn a_reader_that_waits_is_told_the_reason() {
    for wait in WAITS {
        let (producer, consumer) = PipeOptions::new().capacity(100).wait(wait).create().unwrap();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| consumer.read_some(&mut [0; 10], DEADLINE));
            wait_until("the other thread waits", || consumer.available() == Err(Error::WouldBlock));
            producer.abort(17);
            assert_eq!(waits.join().unwrap(), aborted(17));
        });
    }
}

#[test]
fn a_reader_is_told_the_reason_by_another_process_and_in_another_process() {
    let (_actor, channel) = spawn("producer");
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    give(&channel, producer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"written");
    let mut out = [0; 100];
    assert_eq!(consumer.read_some(&mut out[..4], DEADLINE), Ok(4));
    channel.send(&17u32.to_le_bytes()).unwrap();
    // The rest of the bytes and the reason go with the consumer.
    wait_until("the stream is aborted", || consumer.read_whole(&mut out[..4], Deadline::NOW) == aborted(17));
    let consumer = there_and_back(consumer).into_consumer().unwrap();
    assert_eq!(consumer.read_some(&mut out, DEADLINE), Ok(3));
    assert_eq!(&out[..3], b"ten");
    assert_eq!(consumer.read_some(&mut out, DEADLINE), aborted(17));
}

#[test]
fn a_set_reports_a_stream_that_was_aborted() {
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&consumer, 7, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, Deadline::NOW), Ok(0));
    producer.abort(17);
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
    assert_eq!(consumer.read_some(&mut [0; 10], Deadline::NOW), aborted(17));
}

#[test]
fn a_finished_stream_cannot_be_aborted() {
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    producer.write_whole(b"all", Deadline::NOW).unwrap();
    producer.finish(Deadline::NOW).unwrap();
    producer.abort(17);
    let mut out = [0; 10];
    assert_eq!(consumer.read_some(&mut out, DEADLINE), Ok(3));
    assert_eq!(consumer.read_some(&mut out, DEADLINE), Ok(0));
}

#[test]
fn a_producer_aborts_even_if_its_room_was_leaked() {
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    std::mem::forget(producer.begin_write(Deadline::NOW).unwrap());
    producer.abort(17);
    assert_eq!(consumer.read_some(&mut [0; 10], DEADLINE), aborted(17));
}

/// Shows which ways of dropping a producer abort the stream.
#[test]
fn a_producer_with_a_reason_aborts_however_it_is_dropped_unless_it_has_finished() {
    let drops: [(fn(DataProducer), _); 5] = [
        (drop, Ok(0)),
        (
            |producer| {
                producer.set_abort_reason(4);
                producer.set_abort_reason(5);
            },
            aborted(5),
        ),
        (
            |producer| {
                producer.set_abort_reason(5);
                producer.abort(6);
            },
            aborted(6),
        ),
        (
            |producer| {
                producer.set_abort_reason(5);
                producer.finish(Deadline::NOW).unwrap();
            },
            Ok(0),
        ),
        // In a message within this process that nobody receives.
        (
            |producer| {
                let (one, _other) = Channel::pair().unwrap();
                producer.set_abort_reason(5);
                give(&one, producer);
            },
            aborted(5),
        ),
    ];
    for (number, (ends, expected)) in drops.into_iter().enumerate() {
        let (producer, consumer) = DataPipe::pair(100).unwrap();
        ends(producer);
        assert_eq!(consumer.read_some(&mut [0; 10], DEADLINE), expected, "{number}");
    }
}

#[test]
fn a_panic_that_drops_a_producer_aborts_its_stream() {
    let panics = |set: fn(&DataProducer)| -> Result<usize, Error> {
        let (producer, consumer) = DataPipe::pair(100).unwrap();
        let thread = std::thread::spawn(move || {
            set(&producer);
            panic!("caught, as it should be");
        });
        assert!(thread.join().is_err());
        consumer.read_some(&mut [0; 10], DEADLINE)
    };
    assert_eq!(panics(|_| ()), aborted(PANICKED));
    assert_eq!(panics(|producer| producer.set_abort_reason(5)), aborted(5));
    assert_eq!(panics(|producer| producer.finish(Deadline::NOW).unwrap()), Ok(0));
    let text = Error::Aborted { reason: PANICKED }.to_string();
    assert!(text.contains("panic") && !text.contains(&PANICKED.to_string()), "{text}");
}

/// Shows that a process that ends without destructors has no reason, and that a reason does not travel.
#[test]
fn a_killed_process_gives_no_reason_and_an_end_that_is_sent_leaves_its_reason_behind() {
    let (mut actor, channel) = spawn("armed");
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    give(&channel, producer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"armed");
    actor.kill();
    assert_eq!(consumer.read_some(&mut [0; 10], DEADLINE), Err(Error::PeerClosed));

    let (actor, channel) = spawn("armed");
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    give(&channel, producer);
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"armed");
    drop(channel);
    finish(actor);
    assert_eq!(consumer.read_some(&mut [0; 10], DEADLINE), aborted(5));

    let (producer, consumer) = DataPipe::pair(100).unwrap();
    producer.set_abort_reason(5);
    drop(there_and_back(producer));
    assert_eq!(consumer.read_some(&mut [0; 10], DEADLINE), Ok(0));
}

#[test]
fn a_producer_is_told_the_reason_of_its_consumer() {
    let full = |wait| {
        let (producer, consumer) = PipeOptions::new().capacity(100).wait(wait).create().unwrap();
        producer.write_whole(&[1; 100], Deadline::NOW).unwrap();
        (producer, consumer)
    };
    for wait in WAITS {
        let (producer, consumer) = full(wait);
        consumer.abort(17);
        assert_eq!(producer.room(), aborted(17));
        assert_eq!(producer.write_some(b"more", DEADLINE), aborted(17));
        assert_eq!(producer.finish(DEADLINE), aborted(17));
        // A thread waiting for room.
        let (producer, consumer) = full(wait);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| producer.write_some(b"more", DEADLINE));
            wait_until("the other thread waits", || producer.room() == Err(Error::WouldBlock));
            consumer.abort(18);
            assert_eq!(waits.join().unwrap(), aborted(18));
        });
    }
    // A consumer in another process, and a wait set.
    let (_actor, channel) = spawn("consumer");
    let (producer, consumer) = full(Wait::Adaptive);
    give(&channel, consumer);
    let set = WaitSet::new().unwrap();
    set.add(&producer, 7, Interest::Writable, Mode::Level).unwrap();
    assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW), Ok(0));
    channel.send(&19u32.to_le_bytes()).unwrap();
    assert_eq!(set.wait(&mut Vec::new(), DEADLINE), Ok(1));
    assert_eq!(producer.write_some(b"more", Deadline::NOW), aborted(19));
}

/// Shows that closing with a reason does not block while another thread holds a reference to the other end's bytes.
#[test]
fn closing_with_a_reason_does_not_wait_for_the_other_side() {
    let (producer, consumer) = DataPipe::pair(100).unwrap();
    producer.write_whole(b"held", Deadline::NOW).unwrap();
    let unread = consumer.begin_read(DEADLINE).unwrap();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        producer.abort(17);
        tell.send(()).unwrap();
    });
    told.recv_timeout(DEADLINE).unwrap();
    unread.consume(4);
    assert_eq!(consumer.read_some(&mut [0; 10], DEADLINE), aborted(17));
}
