//! Tasks of one thread: idle tasks sleep, and busy tasks let each other run.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{FutureExt, SinkExt};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use strait::call::{CallEnd, CallOptions};
use strait::pipe::DataPipe;
use strait::{Channel, CommandExt, Deadline, Error, Message, Options, Outgoing};
use strait_tokio::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, Framed, Listener, Reactor};
use tokio::task::{JoinHandle, LocalSet};
use tokio::time::timeout;

const DEADLINE: Duration = Duration::from_secs(60);

/// More operations than a task does before it lets other tasks run.
const MANY: usize = 1000;

const ROLE: &str = "STRAIT_TEST_ROLE";

/// Runs the other process of a test, in the role that the environment names.
#[test]
fn child() {
    match std::env::var(ROLE).as_deref() {
        Ok("reader") => read_one_for_each(),
        Ok("holder") => hold_one(),
        _ => {}
    }
}

fn start(role: &str) -> (Child, Channel) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture", "--test-threads", "1"]).env(ROLE, role);
    command.stdout(std::process::Stdio::null());
    command.spawn_with_channel().unwrap()
}

/// Receives a message and keeps its memory. Then, on request, receives all messages from the other channels.
fn hold_one() {
    let channel = strait::from_parent().unwrap();
    let mut handles = channel.recv().unwrap().take_handles().unwrap();
    let data = handles.remove(0).into_channel().unwrap();
    let _held = data.recv_in_place(DEADLINE).unwrap();
    channel.send(b"held").unwrap();
    channel.recv().unwrap();
    for handle in handles {
        let other = handle.into_channel().unwrap();
        while other.recv_by(DEADLINE).is_ok() {}
    }
    let mut short = data.recv_by(DEADLINE).unwrap();
    assert_eq!(short.take_handles().unwrap().len(), 1);
    channel.send(b"short").unwrap();
    let _ = channel.recv();
}

/// For each request from the parent, receives a message from the data channel, and replies with the length.
fn read_one_for_each() {
    let channel = strait::from_parent().unwrap();
    let mut handles = channel.recv().unwrap().take_handles().unwrap();
    let data = handles.remove(0).into_channel().unwrap();
    while channel.recv().is_ok() {
        let len = data.recv().unwrap().bytes().len();
        channel.send(&len.to_le_bytes()).unwrap();
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(DEADLINE, future).await.expect("in time")
}

/// Returns whether another task of the thread ran before `future` was done. `future` never has to wait.
async fn lets_others_run(future: impl Future) -> bool {
    let others = LocalSet::new();
    let ran = Rc::new(Cell::new(false));
    let runs = ran.clone();
    others.spawn_local(async move { runs.set(true) });
    soon(others.run_until(async {
        future.await;
        ran.get()
    }))
    .await
}

#[tokio::test]
async fn who_always_finds_something_lets_others_run() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let (a, b) = (AsyncChannel::new(a, &reactor).unwrap(), AsyncChannel::new(b, &reactor).unwrap());
    let send = async {
        for _ in 0..MANY {
            a.send(b"one of many").await.unwrap();
        }
    };
    assert!(lets_others_run(send).await);
    let receive = async {
        for _ in 0..MANY {
            b.recv().await.unwrap();
        }
    };
    assert!(lets_others_run(receive).await);
    let (producer, consumer) = DataPipe::pair(MANY).unwrap();
    let producer = AsyncProducer::new(producer, &reactor).unwrap();
    let consumer = AsyncConsumer::new(consumer, &reactor).unwrap();
    let write = async {
        for _ in 0..MANY {
            producer.write(b"x").await.unwrap();
        }
    };
    assert!(lets_others_run(write).await);
    let read = async {
        for _ in 0..MANY / 2 {
            consumer.read(&mut [0]).await.unwrap();
        }
        for _ in 0..MANY / 2 {
            consumer.begin_read().await.unwrap().consume(1);
        }
    };
    assert!(lets_others_run(read).await);
    let (a, b) = Channel::pair().unwrap();
    let (client, server) = (CallEnd::over(a), AsyncCallEnd::new(CallEnd::over(b), &reactor).unwrap());
    let _calls: Vec<_> = (0..MANY).map(|_| client.begin_call(b"one of many", DEADLINE).unwrap()).collect();
    while server.get_ref().counters().requests < MANY as u64 {
        reactor.turn().unwrap();
    }
    let serve = async {
        for _ in 0..MANY {
            drop(server.next_request().await.unwrap());
        }
    };
    assert!(lets_others_run(serve).await);
    let (a, _b) = Channel::pair().unwrap();
    let mut sink = Framed::new(AsyncChannel::new(a, &reactor).unwrap());
    let feed = async {
        for _ in 0..MANY {
            sink.feed(Message::from_parts(b"one of many".to_vec(), Vec::new())).await.unwrap();
        }
    };
    assert!(lets_others_run(feed).await);
}

/// Shows that a task that has used up its budget lets other tasks run before it accepts a process, and that it loses no
/// process then.
#[tokio::test]
async fn who_accepts_process_after_process_lets_others_run() {
    let name = format!("tokio-turns-{}", std::process::id());
    let listener = Listener::bind(&name).unwrap();
    let client = std::thread::spawn(move || strait::connect(&name, DEADLINE).unwrap());
    while tokio::task::coop::has_budget_remaining() {
        tokio::task::coop::consume_budget().await;
    }
    // Each attempt would bring the process nearer to being accepted.
    let begin = std::time::Instant::now();
    while begin.elapsed() < Duration::from_secs(1) {
        assert!(listener.accept_channel().now_or_never().is_none(), "the task accepted without a budget");
        std::thread::sleep(Duration::from_millis(10));
    }
    let channel = soon(listener.accept_channel()).await.unwrap();
    channel.send(b"hello").unwrap();
    assert_eq!(client.join().unwrap().recv_by(DEADLINE).unwrap().bytes(), b"hello");
}

/// Returns how often `future` is polled within 100 ms without its event; `None` if the event happens.
async fn polls_without_event(future: &mut (impl Future + Unpin)) -> Option<u32> {
    let mut polls = 0;
    let counted = std::future::poll_fn(|context| {
        polls += 1;
        std::pin::Pin::new(&mut *future).poll(context).map(|_| ())
    });
    let happened = timeout(Duration::from_millis(100), counted).await.is_ok();
    (!happened).then_some(polls)
}

/// Returns how often `future` is polled within 100 ms without its event.
async fn polls_for_nothing(future: &mut (impl Future + Unpin)) -> u32 {
    polls_without_event(future).await.expect("there was room")
}

/// The greatest number of polls that is accepted. The task may be woken for earlier events, and for each batch of
/// received messages.
const FEW: u32 = 20;

#[tokio::test]
async fn a_task_that_waits_for_room_for_what_is_long_sleeps_until_there_is_some() {
    // One case is short of memory in the pool; the other is short of room in a ring, which has room for a short
    // message.
    let cases =
        [(Options::new().queue_bytes(300_000), 200_000), (Options::new().ring(16 << 10).ring_max(16 << 10), 5000)];
    for (options, len) in cases {
        let reactor = Reactor::new().unwrap();
        let (a, b) = options.pair().unwrap();
        let (a, message) = (AsyncChannel::new(a, &reactor).unwrap(), vec![7; len]);
        let mut sent = 0;
        while a.get_ref().try_send(&message).is_ok() {
            sent += 1;
        }
        assert!(a.get_ref().is_writable(), "there is no room for a short message");
        let mut sends = Box::pin(a.send(&message));
        let polls = polls_for_nothing(&mut sends).await;
        assert!(polls <= FEW, "the task polled {polls} times");
        for _ in 0..sent {
            assert_eq!(b.recv_by(DEADLINE).unwrap().bytes().len(), len);
        }
        soon(sends).await.unwrap();
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes().len(), len);
    }
}

/// Starts a task to send a message for which there is no room now, and returns once the task waits. The task continues
/// only when woken.
async fn start_sending(a: &Arc<AsyncChannel>, message: Outgoing<'static>) -> JoinHandle<()> {
    let (polled, waits) = tokio::sync::oneshot::channel();
    let a = a.clone();
    let sends = tokio::spawn(async move {
        let (mut send, mut polled) = (Box::pin(a.send(message)), Some(polled));
        let sent = std::future::poll_fn(|context| {
            let sent = send.as_mut().poll(context);
            if let Some(polled) = polled.take() {
                polled.send(sent.is_pending()).unwrap();
            }
            sent
        });
        sent.await.unwrap();
    });
    assert!(soon(waits).await.unwrap(), "the task did not have to wait");
    sends
}

#[tokio::test]
async fn a_task_that_found_an_end_in_use_goes_on_though_another_found_no_room() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().queue_bytes(300_000).pair().unwrap();
    let (a, long) = (Arc::new(AsyncChannel::new(a, &reactor).unwrap()), vec![7; 200_000]);
    let mut held = Vec::new();
    while a.get_ref().try_send(&long).is_ok() {
        held.push(b.recv_in_place(DEADLINE).unwrap());
    }
    // The peer has received all messages, and gives none of their memory back. A task gives up waiting for memory.
    let given_up = async || assert!(timeout(Duration::from_millis(1), a.send(&long)).await.is_err());
    let goes_on = async |sends: JoinHandle<()>| {
        soon(sends).await.unwrap();
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"short");
    };
    given_up().await;
    let reserved = a.get_ref().reserve(1, Deadline::NOW).unwrap();
    let sends = start_sending(&a, Outgoing::new(b"short")).await;
    drop(reserved);
    goes_on(sends).await;
    // An attempt that fails while the task waits does not disturb it either.
    given_up().await;
    let reserved = a.get_ref().reserve(1, Deadline::NOW).unwrap();
    let sends = start_sending(&a, Outgoing::new(b"short")).await;
    drop(reserved);
    assert_eq!(a.get_ref().try_send(&long).unwrap_err().error, Error::WouldBlock);
    goes_on(sends).await;
}

#[tokio::test]
async fn a_task_that_found_the_socket_full_goes_on_though_another_found_no_room() {
    let (mut child, channel) = start("holder");
    let (a, b) = Options::new().queue_bytes(300_000).pair().unwrap();
    let others: Vec<_> = (0..20).map(|_| Channel::pair().unwrap()).collect();
    let (others, theirs): (Vec<_>, Vec<_>) = others.into_iter().unzip();
    let handles: Vec<_> = std::iter::once(b).chain(theirs).map(strait::Handle::from).collect();
    channel.send(Outgoing::new(b"").handles(handles)).unwrap();
    let (reactor, long) = (Reactor::new().unwrap(), vec![7; 200_000]);
    let a = Arc::new(AsyncChannel::new(a, &reactor).unwrap());
    soon(a.send(&long)).await.unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"held");
    let one = OwnedFd::from(std::fs::File::open("/dev/null").unwrap());
    let with_file = || Outgoing::new(b"short").handle(one.try_clone().unwrap());
    // The other process waits for a message, and would empty the socket meanwhile. It is stopped, so the socket stays
    // full.
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let stopped = waitpid(Some(pid), WaitOptions::UNTRACED).unwrap().expect("a state of the child");
    assert!(stopped.1.stopped());
    for other in &others {
        while other.try_send(with_file()).is_ok() {}
    }
    // A task gives up waiting for memory, of which the peer gives none back.
    assert!(timeout(Duration::from_millis(1), a.send(&long)).await.is_err());
    let sends = start_sending(&a, with_file()).await;
    kill_process(pid, Signal::CONT).unwrap();
    channel.send(b"take the others").unwrap();
    drop(others);
    soon(sends).await.unwrap();
    assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"short");
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Shows that a task is woken if room comes between its attempt and its wait: meanwhile the peer receives the message
/// in the way, and another thread finds no room for a larger message.
#[tokio::test]
async fn a_task_is_told_of_room_that_came_before_it_waited_whatever_found_none_since() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().queue_bytes(300_000).pair().unwrap();
    let a = AsyncChannel::new(a, &reactor).unwrap();
    a.get_ref().try_send(&[1; 200_000]).unwrap();
    a.get_ref().try_send(&[2; 100_000]).unwrap();
    let mut tries = 0;
    let sends = a.send_with(|channel| {
        tries += 1;
        let sent = channel.try_send(&[3; 150_000]).map_err(|failed| failed.error);
        if tries == 1 {
            assert_eq!(sent, Err(Error::WouldBlock));
            assert_eq!(b.recv_by(DEADLINE).unwrap().bytes().len(), 200_000);
            let another = || channel.try_send(&[4; 250_000]).unwrap_err().error;
            let found = std::thread::scope(|scope| scope.spawn(another).join().unwrap());
            assert_eq!(found, Error::WouldBlock);
        }
        sent
    });
    let begin = std::time::Instant::now();
    soon(sends).await.unwrap();
    assert!(begin.elapsed() < DEADLINE / 2, "the task was not woken");
    assert_eq!(tries, 2);
    for first in [2, 3] {
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes()[0], first);
    }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let kind = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    rustix::net::socketpair(kind.0, kind.1, rustix::net::SocketFlags::CLOEXEC, None).unwrap()
}

/// Returns the two ends of a channel over a socket within this process. Both sides have opened the channel.
fn open_pair() -> (Channel, Channel) {
    let (one, other) = sockets();
    let [one, other] = [one, other].map(|socket| Channel::over(socket).unwrap());
    for (from, to) in [(&one, &other), (&other, &one)] {
        from.send(b"hello").unwrap();
        to.recv_by(DEADLINE).unwrap();
    }
    (one, other)
}

#[tokio::test]
async fn a_task_that_sends_an_end_sleeps_until_the_peer_of_that_has_opened_its_side() {
    let reactor = Reactor::new().unwrap();
    let (ours, theirs) = sockets();
    let end = Channel::over(ours).unwrap();
    let (a, b) = open_pair();
    let a = AsyncChannel::new(a, &reactor).unwrap();
    let mut sends = Box::pin(a.send(Outgoing::new(b"end").handle(end)));
    let polls = polls_for_nothing(&mut sends).await;
    assert!(polls <= FEW, "the task polled {polls} times");
    let other = Channel::over(theirs).unwrap();
    soon(sends).await.unwrap();
    let end = b.recv_by(DEADLINE).unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    end.send(b"through").unwrap();
    assert_eq!(other.recv_by(DEADLINE).unwrap().bytes(), b"through");
}

#[tokio::test]
async fn a_task_that_found_the_socket_full_looks_seldom_until_there_is_room() {
    let reactor = Reactor::new().unwrap();
    let (ours, theirs) = sockets();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 1).unwrap();
    let [a, b] = [ours, theirs].map(|socket| Channel::over(socket).unwrap());
    let a = AsyncChannel::new(a, &reactor).unwrap();
    let file = || Outgoing::new(b"file").handle(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
    // A thread of another test that closes a link looks at all links of this process, and may so empty the socket.
    let (mut sent, mut sends) = (0, Box::pin(a.send(file())));
    let polls = loop {
        sent += 1;
        if let Some(polls) = polls_without_event(&mut sends).await {
            break polls;
        }
        while a.get_ref().try_send(file()).is_ok() {
            sent += 1;
        }
        sends = Box::pin(a.send(file()));
    };
    assert!(polls <= FEW, "the task polled {polls} times");
    let receives = tokio::task::spawn_blocking(move || {
        (0..sent).for_each(|_| assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"file"));
    });
    soon(sends).await.unwrap();
    soon(receives).await.unwrap();
}

#[tokio::test]
async fn and_is_told_of_room_that_another_process_makes() {
    for (options, len) in [
        (Options::new().queue_bytes(300_000), 200_000),
        (Options::new().ring(16 << 10).ring_max(16 << 10), 5000),
        (Options::new().queue_messages(2), 5),
    ] {
        let (mut child, channel) = start("reader");
        let (a, b) = options.pair().unwrap();
        channel.send(strait::Outgoing::new(b"").handle(b)).unwrap();
        let reactor = Reactor::new().unwrap();
        let (a, channel) = (AsyncChannel::new(a, &reactor).unwrap(), AsyncChannel::new(channel, &reactor).unwrap());
        let message = vec![7; len];
        let mut under_way = 0;
        for _ in 0..20 {
            loop {
                let mut sends = Box::pin(a.send(&message));
                if let Ok(sent) = timeout(Duration::from_millis(1), &mut sends).await {
                    sent.unwrap();
                    under_way += 1;
                    continue;
                }
                // The task waits; there is room once the other process has received enough.
                let takes = async {
                    while under_way > 0 {
                        channel.send(b"take one").await.unwrap();
                        assert_eq!(channel.recv().await.unwrap().bytes(), len.to_le_bytes());
                        under_way -= 1;
                    }
                };
                let (sent, ()) = soon(async { tokio::join!(sends, takes) }).await;
                sent.unwrap();
                under_way += 1;
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // A waiting task learns of the death of the process, too.
        let fails = async { while a.send(&message).await.is_ok() {} };
        soon(fails).await;
    }
}

#[tokio::test]
async fn calls_that_wait_for_a_place_or_for_room_sleep_until_there_is_one() {
    for (options, calls, len) in [
        (Options::new().queue_bytes(300_000), 10, 200_000),
        (Options::new().ring(4096).ring_max(4096), 1000, 40),
        (Options::new(), 1, 10),
    ] {
        let reactor = Reactor::new().unwrap();
        let (a, b) = options.pair().unwrap();
        let client = AsyncCallEnd::new(CallOptions::new().calls(calls).over(a), &reactor).unwrap();
        let server = CallEnd::over(b);
        let request = vec![7; len];
        let mut under_way = Vec::new();
        while let Ok(pending) = client.get_ref().begin_call(&request, Deadline::NOW) {
            under_way.push(pending);
        }
        let mut call = Box::pin(client.call(&request));
        let polls = polls_for_nothing(&mut call).await;
        assert!(polls <= FEW, "the task polled {polls} times");
        let server = std::thread::spawn(move || {
            while let Ok(request) = server.next_request(DEADLINE) {
                let _ = request.reply(b"done", Deadline::NEVER);
            }
        });
        let others = async {
            for pending in under_way {
                assert_eq!(pending.await.unwrap().bytes(), b"done");
            }
        };
        let (reply, ()) = soon(async { tokio::join!(call, others) }).await;
        assert_eq!(reply.unwrap().bytes(), b"done");
        drop(client);
        server.join().unwrap();
    }
}

#[tokio::test]
async fn what_a_channel_can_do_without_waiting_a_task_can_wait_for() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().queue_bytes(300_000).pair().unwrap();
    let (a, b) = (AsyncChannel::new(a, &reactor).unwrap(), AsyncChannel::new(b, &reactor).unwrap());
    let sends = async {
        for n in 0..10u8 {
            let mut place = a.send_with(|channel| channel.reserve(200_000, Deadline::NOW)).await.unwrap();
            place.write_at(&[n; 200_000], 0);
            place.commit().unwrap();
        }
        for n in 10..20u8 {
            a.send(&[n; 100]).await.unwrap();
        }
    };
    let receives = async {
        for n in 0..10u8 {
            let mut view = b.recv_with(|channel| channel.recv_in_place(Deadline::NOW)).await.unwrap();
            let mut last = [0];
            view.read_at(&mut last, 199_999);
            assert_eq!((view.len(), last), (200_000, [n]));
        }
        let mut message = Message::new();
        b.recv_message(&mut message).await.unwrap();
        let memory = message.bytes().as_ptr();
        for n in 11..20u8 {
            b.recv_message(&mut message).await.unwrap();
            assert_eq!((message.bytes(), message.bytes().as_ptr()), (&[n; 100][..], memory));
        }
    };
    soon(async { tokio::join!(sends, receives) }).await;
    drop(a);
    assert_eq!(soon(b.recv_message(&mut Message::new())).await, Err(Error::PeerClosed));
}
