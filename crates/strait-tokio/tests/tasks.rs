//! Tasks that wait for channels, data pipes and calls, together with sockets.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use strait::call::{CallEnd, CallError, CallOptions};
use strait::pipe::DataPipe;
use strait::{Channel, CommandExt, Deadline, Error, Options, Outgoing};
use strait_tokio::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, PipeReader, PipeWriter, Reactor};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

const ROLE: &str = "STRAIT_TEST_ROLE";

/// Starts this test program as another process with the given role, and returns the process and a channel to it.
fn spawn(role: &str) -> (std::process::Child, Channel) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    command.stdout(std::process::Stdio::null());
    command.spawn_with_channel().unwrap()
}

#[test]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let channel = strait::from_parent().unwrap();
    match role.as_str() {
        "echo" => {
            while let Ok(mut message) = channel.recv() {
                let handles = message.take_handles().unwrap();
                channel.send(Outgoing::new(message.bytes()).handles(handles)).unwrap();
            }
        }
        "server" => {
            let end = CallEnd::over(channel);
            while let Ok(request) = end.next_request(DEADLINE) {
                let bytes: Vec<u8> = request.bytes().iter().rev().copied().collect();
                request.reply(&bytes, Deadline::NEVER).unwrap();
            }
        }
        other => panic!("{other}"),
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("in time")
}

#[tokio::test]
async fn messages_go_to_and_fro_between_processes() {
    let (mut child, channel) = spawn("echo");
    let reactor = Reactor::new().unwrap();
    let channel = AsyncChannel::new(channel, &reactor).unwrap();
    for n in 0..2000u32 {
        soon(channel.send(&n.to_le_bytes())).await.unwrap();
        assert_eq!(soon(channel.recv()).await.unwrap().bytes(), n.to_le_bytes());
    }
    // The death of the process ends the waiting.
    let waits = async { channel.recv().await.unwrap_err() };
    let kills = async {
        tokio::task::yield_now().await;
        child.kill().unwrap();
        child.wait().unwrap();
    };
    assert_eq!(soon(async { tokio::join!(waits, kills) }).await.0, Error::PeerClosed);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_wake_up_is_lost_between_tasks_on_two_threads() {
    let reactor = Arc::new(Reactor::new().unwrap());
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let (a, b) = Options::new().ring(256).ring_max(256).pair().unwrap();
        let (a, b) = (AsyncChannel::new(a, &reactor).unwrap(), AsyncChannel::new(b, &reactor).unwrap());
        tasks.push(tokio::spawn(async move {
            for n in 0..500u32 {
                a.send(&n.to_le_bytes()).await.unwrap();
            }
            // As many messages come back.
            for n in 0..500u32 {
                assert_eq!(a.recv().await.unwrap().bytes(), n.to_le_bytes());
            }
        }));
        tasks.push(tokio::spawn(async move {
            for n in 0..500u32 {
                assert_eq!(b.recv().await.unwrap().bytes(), n.to_le_bytes());
            }
            for n in 0..500u32 {
                b.send(&n.to_le_bytes()).await.unwrap();
            }
        }));
    }
    for task in tasks {
        soon(task).await.unwrap();
    }
}

/// Shows that one direction of a channel may be full while a task waits for messages in the other: each task is woken
/// for its own event.
#[tokio::test]
async fn a_channel_waits_for_room_and_for_messages_at_once() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().ring(256).ring_max(256).pair().unwrap();
    while a.try_send(&[0; 40]).is_ok() {}
    let a = AsyncChannel::new(a, &reactor).unwrap();
    let sends = async {
        a.send(b"room").await.unwrap();
        1
    };
    let receives = async {
        assert_eq!(a.recv().await.unwrap().bytes(), b"first");
        2
    };
    let other = async {
        tokio::task::yield_now().await;
        b.send(b"first").unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
        while b.try_recv().is_ok_and(|message| message.bytes() != b"room") {}
    };
    let (one, two, ()) = soon(async { tokio::join!(sends, receives, other) }).await;
    assert_eq!((one, two), (1, 2));
}

#[tokio::test]
async fn a_future_that_is_dropped_has_taken_nothing() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let b = AsyncChannel::new(b, &reactor).unwrap();
    let (mut socket, mut other) = tokio::net::UnixStream::pair().unwrap();
    let mut received = 0;
    let mut from_socket = 0;
    for n in 0..200u8 {
        if n % 2 == 0 {
            a.send(&[n]).unwrap()
        } else {
            other.write_all(&[n]).await.unwrap()
        }
        let mut byte = [0];
        // After the first of the two events, the other future is dropped before it is complete.
        tokio::select! {
            message = b.recv() => { assert_eq!(message.unwrap().bytes(), [n]); received += 1; }
            read = socket.read_exact(&mut byte) => { read.unwrap(); assert_eq!(byte, [n]); from_socket += 1; }
            () = tokio::time::sleep(DEADLINE) => panic!("neither"),
        }
    }
    assert_eq!((received, from_socket), (100, 100));
    let channel = b.into_inner();
    a.send(b"after").unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"after");
}

#[tokio::test]
async fn pipes_are_read_and_written_by_tasks() {
    let (_child, channel) = spawn("echo");
    let reactor = Reactor::new().unwrap();
    let (producer, consumer) = DataPipe::pair(10_000).unwrap();
    // The consumer was sent over a link, so doorbells go over the link.
    channel.send(Outgoing::new(b"").handle(consumer)).unwrap();
    let consumer = channel.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_consumer().unwrap();
    let mut writer = PipeWriter(AsyncProducer::new(producer, &reactor).unwrap());
    let mut reader = PipeReader(AsyncConsumer::new(consumer, &reactor).unwrap());
    let bytes: Vec<u8> = (0..1_000_000u32).map(|n| (n * 7 + n / 251) as u8).collect();
    let copy = bytes.clone();
    let writes = tokio::spawn(async move {
        writer.write_all(&copy).await.unwrap();
        let mut room = writer.0.begin_write().await.unwrap();
        room.write_at(b"end", 0);
        room.commit(3);
    });
    let mut read = vec![0; bytes.len()];
    soon(reader.read_exact(&mut read)).await.unwrap();
    assert!(read == bytes);
    let unread = soon(reader.0.begin_read()).await.unwrap();
    let mut end = [0; 3];
    unread.read_at(&mut end, 0);
    assert_eq!(&end, b"end");
    unread.consume(3);
    soon(writes).await.unwrap();
    assert_eq!(soon(reader.read(&mut read)).await.unwrap(), 0);
}

#[tokio::test]
async fn a_writer_that_is_shut_down_ends_the_stream() {
    let reactor = Reactor::new().unwrap();
    let (producer, consumer) = DataPipe::pair(10).unwrap();
    let mut writer = PipeWriter(AsyncProducer::new(producer, &reactor).unwrap());
    let mut reader = PipeReader(AsyncConsumer::new(consumer, &reactor).unwrap());
    let writes = async {
        writer.write_all(b"more than there is room for").await.unwrap();
        writer.shutdown().await.unwrap();
        assert_eq!(writer.write(b"x").await.unwrap_err().kind(), std::io::ErrorKind::BrokenPipe);
    };
    let mut all = String::new();
    let (read, ()) = soon(async { tokio::join!(reader.read_to_string(&mut all), writes) }).await;
    assert_eq!((read.unwrap(), all.as_str()), (27, "more than there is room for"));
}

#[tokio::test]
async fn a_thousand_tasks_call_over_one_end() {
    let (mut child, channel) = spawn("server");
    let reactor = Reactor::new().unwrap();
    let end = Arc::new(AsyncCallEnd::new(CallOptions::new().calls(50).over(channel), &reactor).unwrap());
    let tasks: Vec<_> = (0..1000u32)
        .map(|n| {
            let end = end.clone();
            tokio::spawn(async move {
                let mut expected = n.to_le_bytes();
                let reply = end.call(&n.to_le_bytes()).await.unwrap();
                expected.reverse();
                assert_eq!(reply.bytes(), expected);
            })
        })
        .collect();
    for task in tasks {
        soon(task).await.unwrap();
    }
    assert_eq!((end.get_ref().counters().unknown, end.get_ref().under_way()), (0, 0));
    child.kill().unwrap();
    child.wait().unwrap();
    match soon(end.call(b"late")).await {
        Err(CallError::NotSent(failed)) => assert_eq!(failed.error, Error::PeerClosed),
        Err(CallError::OutcomeUnknown(error)) => assert_eq!(error, Error::PeerClosed),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_service_answers_tasks_and_cancelled_calls_are_told() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let client = AsyncCallEnd::new(CallEnd::over(a), &reactor).unwrap();
    let server = AsyncCallEnd::new(CallEnd::over(b), &reactor).unwrap();
    let serves = async {
        let slow = server.next_request().await.unwrap();
        let request = server.next_request().await.unwrap();
        let bytes = request.bytes().to_vec();
        request.reply(&bytes, Deadline::NEVER).unwrap();
        while !slow.is_cancelled() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(slow);
    };
    let calls = async {
        tokio::select! {
            // The first branch is polled first.
            biased;
            _ = client.call(b"slow") => panic!("nobody answers it"),
            reply = client.call(b"fast") => assert_eq!(reply.unwrap().bytes(), b"fast"),
        }
    };
    soon(async { tokio::join!(serves, calls) }).await;
}

/// Shows that a service answers all calls of a client that makes as many calls as it may, and reads no reply meanwhile.
#[tokio::test]
async fn replies_for_which_there_is_no_room_are_sent_later() {
    const CALLS: usize = 1024;
    const REPLY: usize = 100_000;
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().queue_bytes(1 << 20).pair().unwrap();
    let client = std::thread::spawn(move || {
        let client = CallEnd::over(a);
        let calls: Vec<_> = (0..CALLS).map(|_| client.begin_call(b"a request", DEADLINE).unwrap()).collect();
        // The replies fill the room meanwhile.
        std::thread::sleep(Duration::from_millis(100));
        calls.into_iter().map(|call| call.wait(DEADLINE).unwrap().bytes().len()).sum::<usize>()
    });
    let server = AsyncCallEnd::new(CallEnd::over(b), &reactor).unwrap();
    let answer = vec![7; REPLY];
    for _ in 0..CALLS {
        let request = timeout(DEADLINE, server.next_request()).await.expect("in time").unwrap();
        let (_, mut replier) = request.into_parts();
        timeout(DEADLINE, server.reply(&mut replier, &answer)).await.expect("in time").unwrap();
    }
    assert_eq!(client.join().unwrap(), CALLS * REPLY);
}
