//! Tests of data pipes used while another thread holds an end, waits on the end, or has leaked a borrow.

mod common;

use std::sync::{Arc, mpsc};
use std::time::Duration;

use common::{DEADLINE, Role, Watched, parent, spawn};
use strait::pipe::{DataConsumer, DataPipe, DataProducer, PipeOptions};
use strait::{Deadline, Error, Outgoing, Wait};

const ROLES: &[(&str, Role)] = &[
    ("reader", |_| reader()),
    ("echo", |_| common::echo(&parent())),
    ("silent", |_| silent()),
    ("lacks address space", |_| lacks_address_space()),
];

#[test]
fn child() {
    common::play(ROLES);
}

/// Answers with the read bytes.
fn reader() {
    let channel = parent();
    let consumer = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_consumer().unwrap();
    let mut out = [0; 100];
    let len = consumer.read_some(&mut out, DEADLINE).unwrap();
    channel.send(&out[..len]).unwrap();
    let _ = channel.recv();
}

/// Receives an end, and leaves it unused.
fn silent() {
    let channel = parent();
    let _end = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap();
    channel.send(b"held").unwrap();
    let _ = channel.recv();
}

/// Runs `body` in a thread of its own and returns its result. The test fails if `body` waits for too long; the thread
/// is not joined.
fn soon<T: Send + 'static>(body: impl FnOnce() -> T + Send + 'static) -> T {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || tell.send(body()));
    told.recv_timeout(DEADLINE).expect("a call waits that must not wait")
}

/// Waits until another thread waits in a call on the end that `look` looks at.
fn until_it_waits(look: impl Fn() -> Result<usize, Error>) {
    common::wait_until("the other thread waits", || look() == Err(Error::WouldBlock));
}

/// Shows that the capacity and the element size of a pipe can be read while bytes are held or another thread waits.
#[test]
fn the_shape_can_be_asked_for_by_whoever_holds_an_end_and_while_another_waits() {
    soon(|| {
        let (producer, consumer) = PipeOptions::new().element(4).capacity(64).create().unwrap();
        let room = producer.begin_write(DEADLINE).unwrap();
        assert_eq!((producer.capacity(), producer.element()), (64, 4));
        room.commit(4);
        let unread = consumer.begin_read(DEADLINE).unwrap();
        assert_eq!((consumer.capacity(), consumer.element()), (64, 4));
        drop(unread);
    });
    let (producer, consumer) = DataPipe::pair(64).unwrap();
    let consumer = Arc::new(consumer);
    let reader = consumer.clone();
    let reads = std::thread::spawn(move || reader.read_some(&mut [0; 1], DEADLINE));
    until_it_waits(|| consumer.available());
    // A splice also reads the shape of the pipe, and then waits until its own deadline.
    let splices = consumer.clone();
    let spliced = soon(move || (splices.capacity(), splices.splice_to(std::io::stderr(), 1, Duration::from_millis(1))));
    assert_eq!(spliced, (64, Err(Error::TimedOut)));
    producer.write_some(b"x", DEADLINE).unwrap();
    assert_eq!(reads.join().unwrap(), Ok(1));
}

#[test]
fn nothing_is_spliced_without_a_wait() {
    let (producer, consumer) = DataPipe::pair(4).unwrap();
    assert_eq!(consumer.splice_to(std::io::stderr(), 0, Deadline::NOW), Ok(0));
    producer.write_whole(b"full", Deadline::NOW).unwrap();
    assert_eq!(producer.splice_from(std::io::stdin(), 0, Deadline::NOW), Ok(0));
}

/// Shows that an end with a leaked borrow can be sent.
#[test]
fn an_end_that_was_held_by_what_was_leaked_is_sent() {
    let (_actor, channel) = spawn("reader");
    let (producer, consumer) = DataPipe::pair(64).unwrap();
    producer.write_whole(b"unread", Deadline::NOW).unwrap();
    std::mem::forget(consumer.begin_read(Deadline::NOW).unwrap());
    let answer = soon(move || {
        channel.send(Outgoing::new(b"an end").handle(consumer)).unwrap();
        channel.recv_by(DEADLINE).unwrap().into_bytes()
    });
    assert_eq!(answer, b"unread");
}

/// Shows that a finished stream ends for the consumer although the producer exists and moves, and that no more can be
/// written.
#[test]
fn a_stream_that_was_finished_is_at_its_end_though_its_producer_is_there_and_wherever_it_goes() {
    let (producer, consumer) = DataPipe::pair(64).unwrap();
    let room = producer.begin_write(DEADLINE).unwrap();
    assert_eq!(producer.finish(Deadline::NOW), Err(Error::WouldBlock));
    room.commit(4);
    producer.finish(DEADLINE).unwrap();
    producer.finish(DEADLINE).unwrap();
    let mut out = [0; 64];
    assert_eq!(consumer.read_some(&mut out, DEADLINE), Ok(4));
    assert_eq!(consumer.read_some(&mut out, DEADLINE), Ok(0));
    assert_eq!(producer.write_some(b"more", DEADLINE), Err(Error::Finished));
    assert_eq!(producer.room(), Err(Error::Finished));
    let (_actor, channel) = spawn("echo");
    channel.send(Outgoing::new(b"an end").handle(producer)).unwrap();
    let handle = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0);
    assert_eq!(handle.into_producer().unwrap().write_some(b"more", DEADLINE), Err(Error::Finished));
    // A producer whose consumer is closed cannot finish, because the consumer did not receive everything.
    let (producer, consumer) = DataPipe::pair(64).unwrap();
    drop(consumer);
    assert_eq!(producer.room(), Err(Error::PeerClosed));
    assert_eq!(producer.finish(DEADLINE), Err(Error::PeerClosed));
}

#[test]
fn who_waits_for_bytes_is_told_that_the_stream_was_finished() {
    let (producer, consumer) = DataPipe::pair(64).unwrap();
    let consumer = Arc::new(consumer);
    let reader = consumer.clone();
    let reads = std::thread::spawn(move || reader.read_some(&mut [0; 1], Deadline::NEVER));
    until_it_waits(|| consumer.available());
    producer.finish(DEADLINE).unwrap();
    assert_eq!(soon(move || reads.join().unwrap()), Ok(0));
}

/// A waiting call on an end; returns the error at the end of the wait.
type Waits<T> = fn(&T) -> Error;

fn reads(consumer: &DataConsumer) -> Error {
    consumer.read_some(&mut [0; 4], DEADLINE).unwrap_err()
}

fn reads_in_place(consumer: &DataConsumer) -> Error {
    consumer.begin_read(DEADLINE).unwrap_err()
}

fn writes(producer: &DataProducer) -> Error {
    producer.write_some(b"more", DEADLINE).unwrap_err()
}

fn splices(producer: &DataProducer) -> Error {
    producer.splice_from(std::io::stdin(), 1, DEADLINE).unwrap_err()
}

/// Asserts that an interrupt ends the wait of a thread on an end, and of another thread behind it, and that later calls
/// do not wait either until the interrupt is taken back.
fn is_ended<T: Send + Sync + 'static>(
    end: T,
    waits: Waits<T>,
    look: impl Fn(&T) -> Result<usize, Error>,
    interrupter: strait::Interrupter,
) -> T {
    let end = Arc::new(end);
    let (tell, told) = mpsc::channel();
    for _ in 0..2 {
        let (tell, end) = (tell.clone(), end.clone());
        std::thread::spawn(move || tell.send(waits(&end)));
    }
    until_it_waits(|| look(&end));
    interrupter.interrupt();
    for _ in 0..2 {
        assert_eq!(told.recv_timeout(DEADLINE), Ok(Error::Interrupted));
    }
    assert_eq!(waits(&end), Error::Interrupted);
    interrupter.resume();
    let mut end = end;
    // The threads drop their references after sending their results.
    loop {
        match Arc::try_unwrap(end) {
            Ok(end) => return end,
            Err(shared) => end = shared,
        }
        std::thread::yield_now();
    }
}

#[test]
fn waits_are_ended_from_another_thread() {
    for wait in [Wait::Block, Wait::Adaptive, Wait::Spin] {
        for waits in [reads, reads_in_place] {
            let (producer, consumer) = PipeOptions::new().capacity(4).wait(wait).create().unwrap();
            let interrupter = consumer.interrupter();
            let consumer = is_ended(consumer, waits, DataConsumer::available, interrupter);
            // The interrupted waits lost nothing.
            producer.write_whole(b"next", DEADLINE).unwrap();
            let mut out = [0; 4];
            consumer.read_whole(&mut out, DEADLINE).unwrap();
            assert_eq!(&out, b"next");
        }
        for waits in [writes, splices] {
            let (producer, consumer) = PipeOptions::new().capacity(4).wait(wait).create().unwrap();
            producer.write_whole(b"full", DEADLINE).unwrap();
            let interrupter = producer.interrupter();
            let producer = is_ended(producer, waits, DataProducer::room, interrupter);
            assert_eq!(consumer.discard(4), Ok(4));
            producer.write_whole(b"next", DEADLINE).unwrap();
        }
    }
}

#[test]
fn waits_for_another_process_are_ended_from_another_thread() {
    let (_actor, channel) = spawn("silent");
    let (producer, consumer) = DataPipe::pair(4).unwrap();
    channel.send(Outgoing::new(b"an end").handle(producer)).unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    let interrupter = consumer.interrupter();
    is_ended(consumer, reads, DataConsumer::available, interrupter);
}

/// Shows that an interrupt ends the wait of a thread for room held by another call.
#[test]
fn who_waits_behind_room_that_is_held_is_told_of_an_interruption() {
    let (producer, _consumer) = DataPipe::pair(4).unwrap();
    let producer = Arc::new(producer);
    let room = producer.begin_write(DEADLINE).unwrap();
    let interrupter = producer.interrupter();
    let (waits, watched) = (producer.clone(), Arc::new(Watched::new()));
    let watches = watched.clone();
    let writes = std::thread::spawn(move || {
        watches.enter();
        waits.write_some(b"x", Deadline::NEVER)
    });
    watched.wait_until_blocked();
    interrupter.interrupt();
    assert_eq!(soon(move || writes.join().unwrap()), Err(Error::Interrupted));
    room.commit(4);
    interrupter.resume();
}

/// Receives a message while there is address space for only some of its handles.
fn lacks_address_space() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let channel = parent();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split_whitespace().next().unwrap().parse().unwrap();
    let maximum = getrlimit(Resource::As).maximum;
    setrlimit(Resource::As, Rlimit { current: Some(pages * 4096 + (16 << 20)), maximum }).unwrap();
    let mut message = channel.recv_by(DEADLINE).unwrap();
    assert!(matches!(message.take_handles(), Err(Error::HandlesLost { .. })), "no handles were lost");
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

/// Shows that a producer that was lost in transit, because its receiver could not map another handle of the message,
/// does not count as finished. The stream must not appear complete.
#[test]
fn a_producer_that_is_lost_on_the_way_has_not_finished() {
    let (actor, channel) = spawn("lacks address space");
    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let (large, _large_consumer) = DataPipe::pair(256 << 20).unwrap();
    producer.write_whole(b"half of it", DEADLINE).unwrap();
    channel.send_by(Outgoing::new(b"").handle(producer).handle(large), DEADLINE).unwrap();
    let mut bytes = [0; 10];
    consumer.read_whole(&mut bytes, DEADLINE).unwrap();
    assert_eq!(consumer.read_some(&mut bytes, DEADLINE), Err(Error::PeerClosed));
    drop(channel);
    common::finish(actor);
}
