//! Tests of tasks waiting to send: each task sleeps until the event for which it waits, and no other event ends the
//! wait.

mod common;

use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{DEADLINE, parent, spawn};
use rustix::event::{PollFd, PollFlags, poll};
use strait::call::{CallEnd, CallError, CallOptions};
use strait::pipe::DataPipe;
use strait::task::{AsyncCallEnd, AsyncChannel, AsyncConsumer, AsyncProducer, Reactor};
use strait::{Channel, Deadline, Error, Options, Outgoing, SendError};

/// The most polls until a task and its reactor come to rest.
const FEW: usize = 10;

#[test]
fn child() {
    common::play(&[("reader", |_| read_on_command()), ("turns only", |_| turns_only())]);
}

/// Notes that the task is woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A future of a reactor's task, polled when woken.
struct Task<'a, F> {
    reactor: &'a Reactor,
    future: Pin<Box<F>>,
    flag: Arc<Flag>,
}

impl<'a, F: Future> Task<'a, F> {
    fn new(reactor: &'a Reactor, future: F) -> Self {
        Self { reactor, future: Box::pin(future), flag: Arc::new(Flag(AtomicBool::new(true))) }
    }

    fn poll(&mut self) -> Poll<F::Output> {
        let waker = Waker::from(self.flag.clone());
        self.future.as_mut().poll(&mut Context::from_waker(&waker))
    }

    /// Asserts that the task does not become ready, and that task and reactor come to rest after few polls.
    fn assert_waits(&mut self) {
        for _ in 0..FEW {
            if self.flag.0.swap(false, Ordering::Relaxed) {
                assert!(self.poll().is_pending(), "the task did not wait");
            }
            if self.reactor.turn().unwrap() == 0 && !self.flag.0.load(Ordering::Relaxed) {
                return;
            }
        }
        panic!("the task was woken {FEW} times though nothing had changed");
    }

    /// Drives the task until it is ready. Only wakes of the task and events of the reactor end the sleeps in between.
    fn finish(mut self) -> F::Output {
        loop {
            if self.flag.0.swap(false, Ordering::Relaxed)
                && let Poll::Ready(output) = self.poll()
            {
                return output;
            }
            if self.reactor.turn().unwrap() == 0 && !self.flag.0.load(Ordering::Relaxed) {
                let readable = PollFd::new(self.reactor, PollFlags::IN);
                assert_eq!(poll(&mut [readable], Some(&DEADLINE.try_into().unwrap())).unwrap(), 1, "no event came");
            }
        }
    }
}

fn assert_full(sent: Result<(), SendError>) {
    assert_eq!(sent.unwrap_err().error, Error::WouldBlock);
}

/// Shows that memory returned by the receiver does not wake a task waiting for room for a short message.
#[test]
fn a_task_without_room_in_the_queue_is_not_woken_by_memory_that_comes_back() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().queue_messages(2).pair().unwrap();
    let a = AsyncChannel::new(a, &reactor).unwrap();
    a.get_ref().try_send(&[7; 100_000]).unwrap();
    let view = b.recv_in_place(DEADLINE).unwrap();
    a.get_ref().try_send(b"one").unwrap();
    a.get_ref().try_send(b"two").unwrap();
    assert_full(a.get_ref().try_send(b"three"));
    drop(view);
    let mut task = Task::new(&reactor, a.send(b"three"));
    task.assert_waits();
    for expected in [&b"one"[..], b"two"] {
        assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), expected);
    }
    task.finish().unwrap();
    assert_eq!(b.recv_by(DEADLINE).unwrap().bytes(), b"three");
}

/// Receives two channel ends from the parent. Then, for each command of the parent, receives as many messages from one
/// of the ends as the command says, and answers.
fn read_on_command() {
    let parent = parent();
    let ends = parent.recv().unwrap().take_handles().unwrap();
    let ends: Vec<_> = ends.into_iter().map(|end| end.into_channel().unwrap()).collect();
    while let Ok(command) = parent.recv() {
        let [end, count] = command.bytes() else { panic!("a command of two bytes") };
        (0..*count).for_each(|_| drop(ends[usize::from(*end)].recv().unwrap()));
        parent.send(b"received").unwrap();
    }
}

fn null() -> OwnedFd {
    File::open("/dev/null").unwrap().into()
}

/// Shows that earlier progress of a task's own receiver does not wake the task while the task waits to send a
/// descriptor, because other ends have too many descriptors in flight over the link.
#[test]
fn a_task_without_room_for_a_descriptor_is_not_woken_by_progress_from_before_its_attempt() {
    const END: u8 = 0;
    let (_actor, control) = spawn("reader");
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let (filling, filled) = Options::new().queue_handles(usize::MAX).pair().unwrap();
    control.send(Outgoing::new(b"ends").handle(b).handle(filled)).unwrap();
    let read = |count: u8| {
        control.send(&[END, count]).unwrap();
        assert_eq!(control.recv_by(DEADLINE).unwrap().bytes(), b"received");
    };
    let files = |count| Outgoing::new(b"").handles((0..count).map(|_| null().into()).collect::<Vec<_>>());
    // The reader makes progress that the sender has no reason to read. One descriptor of this end stays in flight, so
    // this end may not use the link's reserve.
    (0..3).for_each(|_| a.send(&[7; 1000]).unwrap());
    a.send(files(1)).unwrap();
    read(3);
    let mut sent = 0;
    for count in [50, 1] {
        while filling.try_send(files(count)).is_ok() {
            sent += count;
        }
    }
    assert!(sent > 256, "the limit of the link was not reached: {sent}");
    let a = AsyncChannel::new(a, &reactor).unwrap();
    let mut task = Task::new(&reactor, a.send(files(1)));
    task.assert_waits();
    // The reader takes the first descriptor, so this end has none in flight and may use the reserve.
    read(1);
    task.finish().unwrap();
}

/// Asserts that the end of the reactor wakes a waiting task, and that the wait then fails, as checked by `check`; so
/// does a wait that begins later.
fn assert_ends<F: Future>(future: impl Fn(&Reactor) -> F, check: impl Fn(F::Output)) {
    let reactor = Reactor::new().unwrap();
    let driver = reactor.driver();
    let mut waiting = Task::new(&reactor, future(&reactor));
    waiting.assert_waits();
    assert!(!reactor.has_ended());
    drop(driver);
    assert!(reactor.has_ended() && waiting.flag.0.load(Ordering::Relaxed), "the task was not woken");
    for mut task in [waiting, Task::new(&reactor, future(&reactor))] {
        match task.poll() {
            Poll::Ready(output) => check(output),
            Poll::Pending => panic!("the task waits for ever"),
        }
    }
}

fn assert_ended<T>(result: Result<T, Error>) {
    assert_eq!(result.err(), Some(Error::ReactorEnded));
}

#[test]
fn a_task_that_waits_for_a_channel_learns_that_the_reactor_has_ended() {
    let receive = |reactor: &Reactor| {
        let (near, far) = Channel::pair().unwrap();
        let far = AsyncChannel::new(far, reactor).unwrap();
        async move {
            let received = far.recv().await;
            near.send(b"nothing was lost").unwrap();
            assert_eq!(far.into_inner().recv_by(DEADLINE).unwrap().bytes(), b"nothing was lost");
            received
        }
    };
    assert_ends(receive, assert_ended);
    let send = |reactor: &Reactor| {
        let (near, far) = Options::new().queue_messages(1).pair().unwrap();
        let near = AsyncChannel::new(near, reactor).unwrap();
        near.get_ref().try_send(b"first").unwrap();
        async move {
            let sent = near.send(Outgoing::new(b"second").handle(null())).await.unwrap_err();
            assert_eq!((sent.handles.len(), far.recv_by(DEADLINE).unwrap().bytes()), (1, &b"first"[..]));
            near.send(b"needs no wait").await.unwrap();
            sent
        }
    };
    assert_ends(send, |sent| assert_eq!(sent.error, Error::ReactorEnded));
    let forward = |reactor: &Reactor| {
        let (near, far) = Options::new().queue_messages(1).pair().unwrap();
        let near = AsyncChannel::new(near, reactor).unwrap();
        near.get_ref().try_send(b"first").unwrap();
        async move {
            let _open = far;
            near.send_with(|channel| channel.reserve(1, Deadline::NOW).map(drop)).await
        }
    };
    assert_ends(forward, assert_ended);
}

#[test]
fn a_task_that_waits_for_a_data_pipe_learns_that_the_reactor_has_ended() {
    let read = |reactor: &Reactor| {
        let (producer, consumer) = DataPipe::pair(4096).unwrap();
        let consumer = AsyncConsumer::new(consumer, reactor).unwrap();
        async move {
            let read = consumer.read(&mut [0]).await;
            assert_ended(consumer.begin_read().await);
            producer.write_some(b"x", DEADLINE).unwrap();
            assert_eq!(consumer.read(&mut [0]).await, Ok(1));
            read
        }
    };
    assert_ends(read, assert_ended);
    let write = |reactor: &Reactor| {
        let (producer, consumer) = DataPipe::pair(4096).unwrap();
        let producer = AsyncProducer::new(producer, reactor).unwrap();
        async move {
            let _open = consumer;
            loop {
                producer.write(&[7; 1000]).await?;
            }
        }
    };
    assert_ends(write, assert_ended::<()>);
}

#[test]
fn a_task_that_waits_for_a_call_learns_that_the_reactor_has_ended() {
    fn unknown<T>(called: Result<T, CallError>) {
        assert!(matches!(called, Err(CallError::OutcomeUnknown(Error::ReactorEnded))));
    }
    let ends = |options: Options, calls, reactor: &Reactor| {
        let (near, far) = options.pair().unwrap();
        (AsyncCallEnd::new(CallOptions::new().calls(calls).over(near), reactor).unwrap(), CallEnd::over(far))
    };
    let reply = |reactor: &Reactor| {
        let (client, server) = ends(Options::new(), 9, reactor);
        async move {
            let _open = server;
            client.call(b"request").await
        }
    };
    assert_ends(reply, unknown);
    let begun = |reactor: &Reactor| {
        let (client, server) = ends(Options::new(), 9, reactor);
        let mut pending = client.get_ref().begin_call(b"request", Deadline::NOW).unwrap();
        async move {
            let failed = (&mut pending).await;
            // The call goes on.
            server.next_request(DEADLINE).unwrap().reply(b"reply", DEADLINE).unwrap();
            let _end = client.into_inner();
            assert_eq!(pending.wait(DEADLINE).unwrap().bytes(), b"reply");
            failed
        }
    };
    assert_ends(begun, unknown);
    let next = |reactor: &Reactor| {
        let (server, client) = ends(Options::new(), 9, reactor);
        async move {
            let failed = server.next_request().await;
            let call = client.begin_call(b"request", DEADLINE).unwrap();
            let server = server.into_inner();
            server.next_request(DEADLINE).unwrap().reply(b"reply", DEADLINE).unwrap();
            assert_eq!(call.wait(DEADLINE).unwrap().bytes(), b"reply");
            failed
        }
    };
    assert_ends(next, assert_ended);
    // One call waits for a slot, and one call for room.
    for (options, calls) in [(Options::new(), 1), (Options::new().queue_messages(1), 9)] {
        let begin = |reactor: &Reactor| {
            let (client, server) = ends(options, calls, reactor);
            let first = client.get_ref().begin_call(b"first", Deadline::NOW).unwrap();
            async move {
                let _open = (server, first);
                client.call(Outgoing::new(b"second").handle(null())).await
            }
        };
        assert_ends(begin, |called| match called.unwrap_err() {
            CallError::NotSent(failed) => {
                assert_eq!((failed.error, failed.handles.len()), (Error::ReactorEnded, 1));
            }
            failed => panic!("{failed}"),
        });
    }
}

/// Shows that objects can be put into a reactor that has ended, and are not lost there; and that a call end can go on
/// in another reactor.
#[test]
fn an_object_can_leave_a_reactor_that_has_ended_and_enter_another() {
    let ended = Reactor::new().unwrap();
    ended.end();
    let (near, far) = Channel::pair().unwrap();
    let near = AsyncCallEnd::new(CallEnd::over(near), &ended).unwrap();
    let far = CallEnd::over(far);
    let mut task = Task::new(&ended, near.next_request());
    assert!(matches!(task.poll(), Poll::Ready(Err(Error::ReactorEnded))));
    drop(task);
    let reactor = Reactor::new().unwrap();
    let near = AsyncCallEnd::new(near.into_inner(), &reactor).unwrap();
    let mut task = Task::new(&reactor, near.next_request());
    task.assert_waits();
    let call = far.begin_call(b"request", DEADLINE).unwrap();
    task.finish().unwrap().reply(b"reply", DEADLINE).unwrap();
    assert_eq!(call.wait(DEADLINE).unwrap().bytes(), b"reply");
}

/// Shows that a call end in a reactor comes to rest when the other end has closed, or has broken the protocol.
#[test]
fn a_call_end_whose_peer_has_gone_leaves_its_reactor_at_rest() {
    let broken = |far: Channel| {
        far.send(b"no call").unwrap();
        far
    };
    let closed = |far: Channel| drop(far);
    let comes_to_rest = |reactor: &Reactor, drive: fn(&Reactor) -> Result<usize, Error>| {
        assert!((0..100).any(|_| drive(reactor).unwrap() == 0), "the reactor had an event at each of 100 turns");
    };
    for drive in [Reactor::turn, Reactor::rest] {
        let reactor = Reactor::new().unwrap();
        let (near, far) = Channel::pair().unwrap();
        let near = AsyncCallEnd::new(CallEnd::over(near), &reactor).unwrap();
        comes_to_rest(&reactor, drive);
        closed(far);
        comes_to_rest(&reactor, drive);
        assert!(matches!(Task::new(&reactor, near.next_request()).poll(), Poll::Ready(Err(Error::PeerClosed))));
        let (near, far) = Channel::pair().unwrap();
        let near = AsyncCallEnd::new(CallEnd::over(near), &reactor).unwrap();
        let _far = broken(far);
        comes_to_rest(&reactor, drive);
        assert!(matches!(Task::new(&reactor, near.next_request()).poll(), Poll::Ready(Err(Error::BadPeer(_)))));
        comes_to_rest(&reactor, drive);
    }
}

/// Shows that a task gets the call slot of another task that drops its answered call.
#[test]
fn a_task_that_waits_for_a_slot_gets_the_slot_of_an_answered_call_that_is_dropped() {
    let reactor = Reactor::new().unwrap();
    let (near, far) = Channel::pair().unwrap();
    let client = AsyncCallEnd::new(CallOptions::new().calls(1).over(near), &reactor).unwrap();
    let server = CallEnd::over(far);
    let mut first = Task::new(&reactor, client.call(b"first"));
    assert!(first.poll().is_pending());
    server.next_request(DEADLINE).unwrap().reply(b"reply", DEADLINE).unwrap();
    let mut second = Task::new(&reactor, client.call(b"second"));
    second.assert_waits();
    drop(first);
    assert!(second.flag.0.load(Ordering::Relaxed), "nobody woke the task that waits for the slot");
    assert!(second.poll().is_pending());
    server.next_request(DEADLINE).unwrap().reply(b"reply", DEADLINE).unwrap();
    assert_eq!(second.finish().unwrap().bytes(), b"reply");
}

/// Polls a future that has to wait, drops it, and asserts that nothing holds the waker of its task any more.
#[track_caller]
fn assert_leaves_no_waker(future: impl Future) {
    let flag = Arc::new(Flag(AtomicBool::new(false)));
    let mut future = Box::pin(future);
    let waker = Waker::from(flag.clone());
    for _ in 0..3 {
        assert!(future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending(), "the future did not wait");
    }
    drop((future, waker));
    assert_eq!(Arc::strong_count(&flag), 1, "the waker of the dropped future is still held");
}

/// Shows that futures which are dropped while they wait leave nothing behind, however long the peer is silent. A
/// program may drop any number of them, for example at its own timeouts.
#[test]
fn a_future_that_is_dropped_leaves_no_waker() {
    let reactor = Reactor::new().unwrap();
    let (near, _far) = Options::new().queue_messages(1).pair().unwrap();
    near.send(b"full").unwrap();
    let channel = AsyncChannel::new(near, &reactor).unwrap();
    let mut message = strait::Message::new();
    assert_leaves_no_waker(channel.recv());
    assert_leaves_no_waker(channel.recv_message(&mut message));
    assert_leaves_no_waker(channel.recv_with(|channel| channel.recv_in_place(Deadline::NOW)));
    assert_leaves_no_waker(channel.send(b"more"));
    assert_leaves_no_waker(channel.send_with(|channel| Ok(channel.try_send(b"more")?)));
    assert_leaves_no_waker(channel.forward(&mut message));

    let (producer, consumer) = DataPipe::pair(4096).unwrap();
    let producer = AsyncProducer::new(producer, &reactor).unwrap();
    let consumer = AsyncConsumer::new(consumer, &reactor).unwrap();
    assert_leaves_no_waker(consumer.read(&mut [0]));
    assert_leaves_no_waker(consumer.begin_read());
    while producer.get_ref().write_some(&[7; 4096], Deadline::NOW).is_ok() {}
    assert_leaves_no_waker(producer.write(b"more"));
    assert_leaves_no_waker(producer.write_all(b"more"));
    assert_leaves_no_waker(producer.begin_write());

    // One end has no call slot, and one no room.
    for (options, calls) in [(Options::new(), 1), (Options::new().queue_messages(1), 9)] {
        let (near, _far) = options.pair().unwrap();
        let client = AsyncCallEnd::new(CallOptions::new().calls(calls).over(near), &reactor).unwrap();
        let _first = client.get_ref().begin_call(b"first", Deadline::NOW).unwrap();
        assert_leaves_no_waker(client.call(b"second"));
        assert_leaves_no_waker(client.next_request());
    }
}

/// Shows that a task learns that nothing receives its reply any more, because the `AsyncCallEnd` of its call was
/// dropped.
#[test]
fn a_task_learns_that_the_call_end_of_its_call_was_dropped() {
    let reactor = Reactor::new().unwrap();
    let (near, _far) = Channel::pair().unwrap();
    let client = AsyncCallEnd::new(CallEnd::over(near), &reactor).unwrap();
    let mut task = Task::new(&reactor, client.get_ref().begin_call(b"request", Deadline::NOW).unwrap());
    task.assert_waits();
    drop(client);
    assert!(task.flag.0.load(Ordering::Relaxed), "the task was not woken");
    assert!(matches!(task.poll(), Poll::Ready(Err(CallError::OutcomeUnknown(Error::ReactorEnded)))));
}

/// The number of long requests, and the bytes of each.
const LONG: (usize, usize) = (40, 64 << 20);

/// Returns the greatest amount of memory that this process has had so far, in bytes.
fn peak_memory() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

/// Turns a reactor with a call end until nothing comes any more, and checks the memory that the requests take. Then
/// answers all requests.
fn turns_only() {
    let reactor = Reactor::new().unwrap();
    let end = AsyncCallEnd::new(CallEnd::over(parent()), &reactor).unwrap();
    let rests = || poll(&mut [PollFd::new(&reactor, PollFlags::IN)], Some(&Duration::from_secs(2).try_into().unwrap()));
    while reactor.turn().unwrap() > 0 || rests().unwrap() > 0 {}
    assert!(peak_memory() < 1 << 30, "{} MiB", peak_memory() >> 20);
    for number in 0..LONG.0 {
        let request = Task::new(&reactor, end.next_request()).finish().unwrap();
        assert_eq!((request.bytes().len(), usize::from(request.bytes()[0])), (LONG.1, number));
        request.reply(b"taken", DEADLINE).unwrap();
    }
    assert!(peak_memory() < 1 << 30, "{} MiB", peak_memory() >> 20);
    assert_eq!(end.get_ref().counters().refused, 0);
}

/// Shows that a process whose reactor is turned, and that serves no request, does not receive requests without a limit,
/// and that it receives the other requests later.
#[test]
fn requests_that_no_task_takes_are_not_received_without_a_limit() {
    let (actor, channel) = spawn("turns only");
    let client = CallEnd::over(channel);
    let mut request = vec![0; LONG.1];
    let calls: Vec<_> = (0..LONG.0)
        .map(|number| {
            request[0] = number as u8;
            client.begin_call(&request, DEADLINE).unwrap()
        })
        .collect();
    for call in calls {
        assert_eq!(call.wait(DEADLINE).unwrap().bytes(), b"taken");
    }
    actor.wait_for_success();
}

/// Shows that a task whose reply finds no room sleeps until there is room, and that a reply that was given up or failed
/// can be sent later.
#[test]
fn a_task_waits_for_room_for_its_reply() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Options::new().queue_bytes(300_000).pair().unwrap();
    let (client, server) = (CallEnd::over(a), AsyncCallEnd::new(CallEnd::over(b), &reactor).unwrap());
    let answer = vec![7; 200_000];
    let calls: Vec<_> = (0..10).map(|_| client.begin_call(b"", DEADLINE).unwrap()).collect();
    let next = || Task::new(&reactor, server.next_request()).finish().unwrap().into_parts().1;
    let mut sent = 0;
    let mut replier = loop {
        let mut replier = next();
        match replier.reply(&answer, Deadline::NOW) {
            Ok(()) => sent += 1,
            Err(failed) => {
                assert_eq!(failed.error, Error::WouldBlock);
                break replier;
            }
        }
    };
    // The future is given up once. The handle stays with the answer of a poll.
    Task::new(&reactor, server.reply(&mut replier, &answer)).assert_waits();
    let file = File::open("/dev/null").unwrap();
    let mut with_file = Outgoing::new(&answer).handle(file);
    let mut context = Context::from_waker(Waker::noop());
    assert!(server.poll_reply(&mut context, &mut replier, &mut with_file).is_pending());
    let mut replies = Task::new(&reactor, server.reply(&mut replier, with_file));
    replies.assert_waits();
    let mut calls = calls.into_iter();
    for call in calls.by_ref().take(sent) {
        assert_eq!(call.wait(DEADLINE).unwrap().bytes(), answer);
    }
    replies.finish().unwrap();
    assert_eq!(calls.next().unwrap().wait(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
    // Once the reactor has ended, a task does not wait.
    let mut replier = loop {
        let mut replier = next();
        if replier.reply(&answer, Deadline::NOW).is_err() {
            break replier;
        }
    };
    reactor.end();
    let failed = Task::new(&reactor, server.reply(&mut replier, &answer)).finish().unwrap_err();
    assert_eq!(failed.error, Error::ReactorEnded);
}
