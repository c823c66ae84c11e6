//! Streams of bytes between processes: complete and aborted streams, peers that open no stream, and peers that die.

use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use slow::{slow_to_close, soon};
use strait::pipe::{DataPipe, PANICKED, PipeOptions};
use strait::{Channel, CommandExt, Error, Outgoing};
use strait_tokio::{AsyncConsumer, AsyncProducer, Listener, PipeReader, PipeWriter, Reactor, Stream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

#[path = "../../strait-typed/tests/common/slow.rs"]
mod slow;

const DEADLINE: Duration = Duration::from_secs(60);
const ROLE: &str = "STRAIT_TEST_ROLE";

/// More bytes than both data pipes of a stream have room for.
const MANY: usize = 3 << 20;

/// Starts this test program as another process with the given role, and returns the process and a channel to it.
fn spawn(role: &str) -> (Child, Channel) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    command.stdout(Stdio::null());
    command.spawn_with_channel().unwrap()
}

fn many_bytes() -> Vec<u8> {
    (0..MANY).map(|index| (index % 251) as u8).collect()
}

#[tokio::test]
async fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let channel = strait::from_parent().unwrap();
    let reactor = Reactor::new().unwrap();
    match role.as_str() {
        "echo" => {
            let (mut reader, mut writer) =
                Stream::accept(channel, &reactor).unwrap().into_split().await.expect("a stream");
            tokio::io::copy(&mut reader, &mut writer).await.unwrap();
            writer.shutdown().await.unwrap();
        }
        "dies" => {
            let mut stream = Stream::accept(channel, &reactor).unwrap();
            stream.write_all(b"last words").await.unwrap();
            assert_eq!(stream.peer().and_then(|peer| peer.pid), Some(std::os::unix::process::parent_id()));
            // Waits until the peer has read.
            let _ = stream.read_u8().await;
            rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL).unwrap();
        }
        "reads nothing" => {
            let _stream = Stream::accept(channel, &reactor).unwrap();
            std::future::pending::<()>().await;
        }
        _ => panic!("{role}"),
    }
}

/// Returns both ends of a stream in this process.
async fn pair(reactor: &Reactor) -> (Stream, Stream) {
    let (one, other) = Channel::pair().unwrap();
    let opened = Stream::open(one, &PipeOptions::new().capacity(4096), reactor).await.unwrap();
    (opened, Stream::accept(other, reactor).unwrap())
}

#[tokio::test]
async fn another_process_echoes_more_bytes_than_the_pipes_hold() {
    let (mut process, channel) = spawn("echo");
    let reactor = Reactor::new().unwrap();
    let stream = Stream::open(channel, &PipeOptions::new(), &reactor).await.unwrap();
    let (mut reader, mut writer) = tokio::io::split(stream);
    let sent = tokio::spawn(async move {
        writer.write_all(&many_bytes()).await.unwrap();
        writer.shutdown().await.unwrap();
    });
    let mut echo = Vec::new();
    timeout(DEADLINE, reader.read_to_end(&mut echo)).await.expect("in time").unwrap();
    assert!(echo == many_bytes(), "{} bytes came back", echo.len());
    sent.await.unwrap();
    assert!(process.wait().unwrap().success());
}

#[tokio::test]
async fn processes_meet_by_a_name() {
    let name = format!("tokio-streams-{}", std::process::id());
    let reactor = Reactor::new().unwrap();
    let listener = Listener::bind(&name).unwrap();
    // This client connects and sends nothing; the server serves others meanwhile.
    let silent = tokio::task::spawn_blocking({
        let name = name.clone();
        move || strait::connect(&name, DEADLINE).unwrap()
    });
    let mut unopened = timeout(DEADLINE, listener.accept_stream(&reactor)).await.expect("in time").unwrap();
    let silent = silent.await.unwrap();
    let (client, server) = tokio::join!(
        timeout(DEADLINE, Stream::connect(&name, &reactor, DEADLINE)),
        timeout(DEADLINE, listener.accept_stream(&reactor))
    );
    let (mut client, mut server) = (client.expect("in time").unwrap(), server.expect("in time").unwrap());
    for stream in [&client, &server] {
        assert_eq!(stream.peer().and_then(|peer| peer.pid), Some(std::process::id()));
    }
    client.write_all(b"request").await.unwrap();
    let mut request = [0; 7];
    timeout(DEADLINE, server.read_exact(&mut request)).await.expect("in time").unwrap();
    assert_eq!(&request, b"request");
    drop(silent);
    let failed = timeout(DEADLINE, unopened.read_u8()).await.expect("in time").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
    assert_eq!(unopened.write_u8(0).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_dropped_stream_ends_after_its_bytes() {
    let reactor = Reactor::new().unwrap();
    let (mut opened, mut accepted) = pair(&reactor).await;
    opened.write_all(b"bytes").await.unwrap();
    drop(opened);
    let mut read = Vec::new();
    timeout(DEADLINE, accepted.read_to_end(&mut read)).await.expect("in time").unwrap();
    assert_eq!(read, b"bytes");
    assert_eq!(accepted.write_all(&[0; 8192]).await.unwrap_err().kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn each_direction_ends_by_itself() {
    let reactor = Reactor::new().unwrap();
    let (mut opened, mut accepted) = pair(&reactor).await;
    accepted.shutdown().await.unwrap();
    assert_eq!(timeout(DEADLINE, opened.read(&mut [0])).await.expect("in time").unwrap(), 0);
    opened.write_all(b"still").await.unwrap();
    let mut read = [0; 5];
    timeout(DEADLINE, accepted.read_exact(&mut read)).await.expect("in time").unwrap();
    assert_eq!(&read, b"still");
}

/// Reads all bytes of an aborted stream, and returns the reason.
async fn reason_after(mut stream: Stream, bytes: &[u8]) -> u32 {
    let mut read = Vec::new();
    let reading = timeout(DEADLINE, stream.read_to_end(&mut read)).await.expect("in time");
    let failed = reading.expect_err("the stream was not complete");
    assert_eq!((read.as_slice(), failed.kind()), (bytes, ErrorKind::ConnectionAborted));
    match failed.downcast().unwrap() {
        Error::Aborted { reason } => reason,
        failed => panic!("{failed}"),
    }
}

/// Shows that a stream counts as incomplete if its task panics, is cancelled after setting a reason, or aborts the
/// stream.
#[tokio::test]
async fn a_stream_that_was_broken_off_is_no_complete_one() {
    let reactor = Reactor::new().unwrap();
    let (mut one, other) = pair(&reactor).await;
    let panics = tokio::spawn(async move {
        one.write_all(b"part").await.unwrap();
        panic!("caught, as it should be");
    });
    assert_eq!(reason_after(other, b"part").await, PANICKED);
    assert!(panics.await.unwrap_err().is_panic());

    let (mut one, mut other) = pair(&reactor).await;
    let cancelled = tokio::spawn(async move {
        one.set_abort_reason(5);
        one.write_all(b"part").await.unwrap();
        std::future::pending::<()>().await;
    });
    assert_eq!(timeout(DEADLINE, other.read_u8()).await.unwrap().unwrap(), b'p');
    cancelled.abort();
    assert_eq!(reason_after(other, b"art").await, 5);

    let (mut one, other) = pair(&reactor).await;
    one.set_abort_reason(5);
    one.write_all(b"part").await.unwrap();
    one.abort(6);
    assert_eq!(reason_after(other, b"part").await, 6);

    let (one, other) = pair(&reactor).await;
    let (mut reader, mut writer) = one.into_split().await.unwrap();
    writer.write_all(b"part").await.unwrap();
    writer.abort(7);
    assert_eq!(reason_after(other, b"part").await, 7);
    let failed = timeout(DEADLINE, reader.read(&mut [0])).await.unwrap();
    assert_eq!(failed.unwrap(), 0, "the other side was dropped");
}

/// Shows that a stream stays complete if it is aborted after its shutdown, and that the peer's writes fail with the
/// reason.
#[tokio::test]
async fn aborting_a_stream_that_was_shut_down_stops_the_peer_only() {
    let reactor = Reactor::new().unwrap();
    let (mut one, mut other) = pair(&reactor).await;
    one.write_all(b"all").await.unwrap();
    one.shutdown().await.unwrap();
    one.abort(17);
    let mut read = Vec::new();
    timeout(DEADLINE, other.read_to_end(&mut read)).await.unwrap().unwrap();
    assert_eq!(read, b"all");
    let failed = timeout(DEADLINE, other.write_all(&[0; 8192])).await.unwrap().unwrap_err();
    assert_eq!(failed.downcast::<Error>().unwrap(), Error::Aborted { reason: 17 });
}

/// Shows that an accepted stream can be aborted before the first read, and that the reason is kept until then.
#[tokio::test]
async fn an_accepted_stream_is_aborted_before_its_first_read() {
    let reactor = Reactor::new().unwrap();
    let (one, other) = pair(&reactor).await;
    other.abort(17);
    assert_eq!(reason_after(one, b"").await, 17);

    let (mut one, mut other) = pair(&reactor).await;
    other.set_abort_reason(18);
    one.write_u8(1).await.unwrap();
    assert_eq!(timeout(DEADLINE, other.read_u8()).await.unwrap().unwrap(), 1);
    drop(other);
    assert_eq!(reason_after(one, b"").await, 18);

    // The peer has not opened the stream yet.
    let (one, other) = Channel::pair().unwrap();
    Stream::accept(other, &reactor).unwrap().abort(19);
    assert_eq!((one.recv().unwrap_err(), one.close_reason()), (Error::PeerClosed, Some(19)));
}

/// Shows that an accepted stream that the peer has not opened is shut down at once; that the direction to the peer has
/// ended when the peer opens the stream; and that the other direction still works.
#[tokio::test]
async fn an_accepted_stream_is_shut_down_before_the_peer_opens_it() {
    let reactor = Reactor::new().unwrap();
    let (one, other) = Channel::pair().unwrap();
    let mut accepted = Stream::accept(other, &reactor).unwrap();
    timeout(DEADLINE, accepted.shutdown()).await.expect("in time").unwrap();
    let mut opened = Stream::open(one, &PipeOptions::new(), &reactor).await.unwrap();
    opened.write_u8(7).await.unwrap();
    assert_eq!(timeout(DEADLINE, accepted.read_u8()).await.expect("in time").unwrap(), 7);
    assert_eq!(timeout(DEADLINE, opened.read(&mut [0])).await.expect("in time").unwrap(), 0);

    // A direction that was shut down is complete, also if the stream is aborted before its first read.
    let (one, other) = Channel::pair().unwrap();
    let mut accepted = Stream::accept(other, &reactor).unwrap();
    timeout(DEADLINE, accepted.shutdown()).await.expect("in time").unwrap();
    let mut opened = Stream::open(one, &PipeOptions::new(), &reactor).await.unwrap();
    accepted.abort(17);
    assert_eq!(timeout(DEADLINE, opened.read(&mut [0])).await.expect("in time").unwrap(), 0);
}

#[tokio::test]
async fn a_writer_waits_for_a_reader_that_is_slower() {
    let reactor = Reactor::new().unwrap();
    let (mut opened, accepted) = pair(&reactor).await;
    let (mut reader, _writer) = accepted.into_split().await.unwrap();
    let sent = tokio::spawn(async move { opened.write_all(&many_bytes()).await });
    let mut read = Vec::new();
    timeout(DEADLINE, reader.read_to_end(&mut read)).await.expect("in time").unwrap();
    sent.await.unwrap().unwrap();
    assert!(read == many_bytes(), "{} bytes arrived", read.len());
}

#[tokio::test]
async fn the_death_of_the_peer_is_no_end_of_the_stream() {
    let (mut process, channel) = spawn("dies");
    let reactor = Reactor::new().unwrap();
    let mut stream = Stream::open(channel, &PipeOptions::new(), &reactor).await.unwrap();
    let mut read = [0; 10];
    timeout(DEADLINE, stream.read_exact(&mut read)).await.expect("in time").unwrap();
    assert_eq!(&read, b"last words");
    stream.write_u8(0).await.unwrap();
    let failed = timeout(DEADLINE, stream.read_u8()).await.expect("in time").unwrap_err();
    assert_eq!(failed.kind(), ErrorKind::BrokenPipe);
    process.wait().unwrap();
}

/// Shows that the death of a process that has accepted a stream, but never read, ends the wait of the peer.
#[tokio::test]
async fn the_death_of_a_peer_that_has_not_opened_its_side_is_seen() {
    let (mut process, channel) = spawn("reads nothing");
    let reactor = Reactor::new().unwrap();
    let mut stream = Stream::open(channel, &PipeOptions::new(), &reactor).await.unwrap();
    let mut byte = [0];
    let (killed, read) = tokio::join!(
        async {
            // The reader waits first.
            tokio::task::yield_now().await;
            process.kill()
        },
        timeout(DEADLINE, stream.read(&mut byte))
    );
    killed.unwrap();
    assert_eq!(read.expect("in time").unwrap_err().kind(), ErrorKind::BrokenPipe);
    process.wait().unwrap();
}

/// Shows that a message that does not open a stream gives an error, with any handles, and that the error does not wait
/// until a descriptor of the peer is closed. Also shows that an accepted stream with such a message is aborted at once.
#[tokio::test]
async fn a_peer_that_opens_no_stream_is_refused() {
    const OPENING: &[u8] = b"strait stream 1";
    let reactor = Reactor::new().unwrap();
    let words = || PipeOptions::new().element(4).create().unwrap();
    let bytes = || DataPipe::pair(4096).unwrap();
    let ends = |bytes, reads: (_, _), writes: (_, _)| Outgoing::new(bytes).handle(reads.1).handle(writes.0);
    for aborts in [false, true] {
        // The other sides of the slow connections, which stay open meanwhile.
        let mut others = Vec::new();
        let mut slow = || {
            let (slow, other) = slow_to_close();
            others.push(other);
            slow
        };
        let messages = [
            Outgoing::new(b""),
            Outgoing::new(OPENING),
            Outgoing::new(OPENING).handle(bytes().1),
            Outgoing::new(OPENING).handle(bytes().0).handle(bytes().1),
            ends(b"strait stream 2", bytes(), bytes()),
            ends(OPENING, bytes(), words()),
            ends(OPENING, words(), bytes()),
            ends(OPENING, bytes(), bytes()).handle(bytes().0),
            Outgoing::new(b"").handle(slow()),
            Outgoing::new(OPENING).handle(slow()),
            Outgoing::new(OPENING).handle(slow()).handle(bytes().0),
            Outgoing::new(OPENING).handle(bytes().1).handle(slow()),
            ends(OPENING, bytes(), bytes()).handle(slow()),
        ];
        for (number, message) in messages.into_iter().enumerate() {
            let (peer, channel) = Channel::pair().unwrap();
            peer.send(message).unwrap();
            let mut stream = Stream::accept(channel, &reactor).unwrap();
            if aborts {
                soon(&format!("aborting after message {number}"), || stream.abort(17));
                continue;
            }
            let begin = Instant::now();
            let failed = timeout(DEADLINE, stream.read_u8()).await.expect("in time").unwrap_err();
            assert_eq!(failed.kind(), ErrorKind::InvalidData);
            assert!(begin.elapsed() < DEADLINE / 4, "refusing message {number} took {:?}", begin.elapsed());
            assert_eq!(stream.flush().await.map_err(|error| error.kind()), Ok(()));
            assert_eq!(stream.shutdown().await.unwrap_err().kind(), ErrorKind::NotConnected);
            assert_eq!(stream.into_split().await.unwrap_err().kind(), ErrorKind::NotConnected);
        }
    }
    let (one, _other) = Channel::pair().unwrap();
    let wide = Stream::open(one, &PipeOptions::new().element(4), &reactor).await.unwrap_err();
    assert_eq!(wide.kind(), ErrorKind::InvalidInput);
}

/// Shows that a reader waits for an element larger than its usual read.
#[tokio::test]
async fn a_reader_waits_for_wide_elements() {
    const ELEMENT: usize = 8192;
    let reactor = Reactor::new().unwrap();
    let (producer, consumer) = PipeOptions::new().element(ELEMENT as u32).create().unwrap();
    let mut writer = PipeWriter(AsyncProducer::new(producer, &reactor).unwrap());
    let mut reader = PipeReader(AsyncConsumer::new(consumer, &reactor).unwrap());
    let read = tokio::spawn(async move {
        let mut bytes = vec![0; 3 * ELEMENT];
        reader.read_exact(&mut bytes).await.map(|_| bytes)
    });
    tokio::task::yield_now().await;
    let sent = &many_bytes()[..3 * ELEMENT];
    writer.write_all(sent).await.unwrap();
    assert!(timeout(DEADLINE, read).await.expect("in time").unwrap().unwrap() == sent);
}

/// Shows that a task that waits for the first bytes of an accepted stream is woken although another task, which writes,
/// has received the message that opens the stream.
#[tokio::test(flavor = "current_thread")]
async fn a_reader_of_a_split_stream_does_not_miss_the_opening() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Channel::pair().unwrap();
    let (mut reader, mut writer) = tokio::io::split(Stream::accept(near, &reactor).unwrap());
    let reading = tokio::spawn(async move { reader.read_u8().await });
    // The reader begins to wait. No task runs the reactor until the write below has received the opening message.
    tokio::task::yield_now().await;
    let mut other = Stream::open(far, &PipeOptions::new(), &reactor).await.unwrap();
    writer.write_u8(1).await.unwrap();
    other.write_u8(7).await.unwrap();
    assert_eq!(timeout(DEADLINE / 6, reading).await.expect("in time").unwrap().unwrap(), 7);
}
