//! Tests of calls: from many threads, in both directions, with replies in any order; and of the error that a caller
//! gets when a call fails.

mod common;

use std::future::Future as _;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use common::{DEADLINE, Role, SOON, Watched, finish, parent, pattern, spawn, spawn_with, wait_until};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use strait::call::{CallEnd, CallError, CallOptions, PendingCall, Request};
use strait::region::Region;
use strait::task::{AsyncCallEnd, Reactor};
use strait::view::Value;
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Options, Outgoing};

const ROLES: &[(&str, Role)] = &[
    ("server", |threads| server(threads.parse().unwrap())),
    ("takes and waits", |_| takes_and_waits()),
    ("caller and server", |_| caller_and_server()),
    ("refuser", |_| refuser()),
];

#[test]
fn child() {
    common::play(ROLES);
}

/// Answers each request with the reversed bytes, and with the handles.
fn server(threads: usize) {
    let end = CallEnd::over(parent());
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    match end.next_request(DEADLINE) {
                        Ok(mut request) => {
                            let handles = request.take_handles().unwrap();
                            let bytes: Vec<u8> = request.bytes().iter().rev().copied().collect();
                            request.reply(Outgoing::new(&bytes).handles(handles), Deadline::NEVER).unwrap();
                        }
                        Err(error) => return assert_eq!(error, Error::PeerClosed),
                    }
                }
            });
        }
    });
}

/// Answers one request, then takes requests without answers until killed.
fn takes_and_waits() {
    let end = CallEnd::over(parent());
    let request = end.next_request(DEADLINE).unwrap();
    request.reply(b"taken", Deadline::NEVER).unwrap();
    let mut held = Vec::new();
    while let Ok(request) = end.next_request(Deadline::NEVER) {
        held.push(request);
    }
}

/// Answers each request with the depth; above depth 0, also with the answer to a request of depth - 1.
fn caller_and_server() {
    let end = CallEnd::over(parent());
    loop {
        let request = match end.next_request(DEADLINE) {
            Ok(request) => request,
            Err(error) => return assert_eq!(error, Error::PeerClosed),
        };
        let depth = request.bytes()[0];
        let mut answer = vec![depth];
        if depth > 0 {
            let serve = |request: strait::call::Request| {
                let bytes = request.bytes().to_vec();
                request.reply(&[bytes.as_slice(), b" inner"].concat(), Deadline::NEVER).unwrap();
            };
            answer.extend(end.call_serving(&[depth - 1], DEADLINE, serve).unwrap().into_bytes());
        }
        request.reply(&answer, Deadline::NEVER).unwrap();
    }
}

/// Drops every request unanswered.
fn refuser() {
    let end = CallEnd::over(parent());
    while let Ok(request) = end.next_request(DEADLINE) {
        drop(request);
    }
}

fn outcome_unknown(result: Result<strait::Message, CallError>) -> Error {
    match result {
        Err(CallError::OutcomeUnknown(error)) => error,
        other => panic!("{other:?}"),
    }
}

#[test]
fn many_threads_call_and_each_gets_its_answer() {
    let (actor, channel) = spawn_with("server", "3", &Options::new());
    let end = CallEnd::over(channel);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let end = &end;
            scope.spawn(move || {
                for n in 0..1000u64 {
                    // Small messages, larger messages, and some out of line.
                    let len = [8, 200, 300, 5_000, 100_000][(n % if n % 100 == 0 { 5 } else { 4 }) as usize];
                    let bytes = pattern(thread << 32 | n, len);
                    let reply = end.call(&bytes, DEADLINE).unwrap();
                    assert!(reply.bytes().iter().rev().eq(&bytes), "thread {thread}, call {n}");
                }
            });
        }
    });
    assert_eq!((end.counters().calls, end.counters().late, end.counters().unknown), (8000, 0, 0));
    assert_eq!(end.under_way(), 0);
    drop(end);
    finish(actor);
}

#[test]
fn replies_come_in_any_order_and_with_handles() {
    let (a, b) = Channel::pair().unwrap();
    let (client, server) = (CallEnd::over(a), CallEnd::over(b));
    let mut pending: Vec<_> = (0..10u8).map(|n| client.begin_call(&[n], Deadline::NOW).unwrap()).collect();
    let mut requests: Vec<_> = (0..10).map(|_| server.next_request(Deadline::NOW).unwrap()).collect();
    assert_eq!(server.next_request(Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(outcome_unknown(pending[3].poll(Deadline::NOW)), Error::WouldBlock);
    for n in [3, 0, 5, 2, 4, 1, 3, 2, 1, 0] {
        let request = requests.remove(n % requests.len());
        let region = Region::sealed(request.bytes()).unwrap();
        let bytes = request.bytes().to_vec();
        request.reply(Outgoing::new(&bytes).handle(region), Deadline::NEVER).unwrap();
    }
    for (n, pending) in (0..10u8).zip(pending).rev() {
        let mut reply = pending.wait(DEADLINE).unwrap();
        assert_eq!(reply.bytes(), [n]);
        let region = reply.take_handles().unwrap().remove(0).into_region().unwrap();
        assert_eq!(region.view(..).unwrap()[..], [n]);
    }
}

#[test]
fn a_server_that_drops_a_request_tells_its_caller() {
    let (_actor, channel) = spawn("refuser");
    let end = CallEnd::over(channel);
    for _ in 0..100 {
        assert!(matches!(end.call(b"please", DEADLINE), Err(CallError::NotAnswered)));
    }
}

/// Shows that a call whose peer dies fails with an unknown outcome if the request was sent, and as not sent otherwise.
#[test]
fn what_was_sent_to_a_peer_that_dies_has_an_unknown_outcome_and_what_was_not_has_none() {
    let (mut actor, channel) = spawn("takes and waits");
    let end = CallEnd::over(channel);
    assert_eq!(end.call(b"first", DEADLINE).unwrap().bytes(), b"taken");
    std::thread::scope(|scope| {
        let callers: Vec<_> = (0..3).map(|_| scope.spawn(|| end.call(b"held", DEADLINE))).collect();
        wait_until("the requests are sent", || end.counters().calls == 4);
        actor.kill();
        for caller in callers {
            match caller.join().unwrap() {
                Err(CallError::OutcomeUnknown(Error::PeerClosed)) => {}
                // The call was not sent yet when the peer died.
                Err(CallError::NotSent(failed)) => assert_eq!(failed.error, Error::PeerClosed),
                other => panic!("{other:?}"),
            }
        }
    });
    let file = std::fs::File::open("/dev/null").unwrap();
    match end.call(Outgoing::new(b"late").handle(file), DEADLINE) {
        Err(CallError::NotSent(failed)) => assert_eq!((failed.error, failed.handles.len()), (Error::PeerClosed, 1)),
        other => panic!("{other:?}"),
    }
}

/// Shows that a reply to a timed-out or cancelled call is counted and dropped, and that the call keeps its call slot
/// until then.
#[test]
fn late_replies_are_counted_and_dropped() {
    let (a, b) = Channel::pair().unwrap();
    let (client, server) = (CallOptions::new().calls(2).over(a), CallEnd::over(b));
    assert_eq!(outcome_unknown(client.call(b"one", Duration::from_millis(5))), Error::TimedOut);
    let pending = client.begin_call(b"two", Deadline::NOW).unwrap();
    // Both calls keep their call slots until the answers.
    match client.begin_call(b"three", Deadline::NOW) {
        Err(CallError::NotSent(failed)) => assert_eq!(failed.error, Error::WouldBlock),
        other => panic!("{other:?}"),
    }
    // The first call was cancelled before the server received it.
    let request = server.next_request(Deadline::NOW).unwrap();
    assert_eq!(request.bytes(), b"two");
    assert!(!request.is_cancelled());
    pending.cancel();
    assert_eq!(server.next_request(Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert!(request.is_cancelled());
    request.reply(b"too late", Deadline::NEVER).unwrap();
    assert_eq!(server.counters().requests, 2);
    assert_eq!(client.next_request(Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!((client.under_way(), client.counters().late, client.counters().unknown), (0, 2, 0));
    drop(client.begin_call(b"three", Deadline::NOW).unwrap());
}

/// Shows that replies to unknown calls are counted, and that a message which is no call, or one request too many, makes
/// the sender a bad peer.
#[test]
fn answers_that_nobody_asked_for_are_counted_and_what_is_no_call_is_a_bad_peer() {
    let trailer = |kind: u8, id: u64| [id.to_le_bytes(), [kind, 0, 0, 0, 0, 0, 0, 0]].concat();
    let (a, b) = Channel::pair().unwrap();
    let end = CallEnd::over(a);
    for id in [0, 1, 7, u64::MAX] {
        b.send(&[b"reply".as_slice(), &trailer(2, id)].concat()).unwrap();
    }
    assert_eq!(end.next_request(Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(end.counters().unknown, 4);
    for bad in [b"".to_vec(), trailer(0, 1), trailer(5, 1), [b"x".as_slice(), &trailer(3, 1)].concat()] {
        let (a, b) = Channel::pair().unwrap();
        let end = CallEnd::over(a);
        b.send(&bad).unwrap();
        assert!(matches!(end.next_request(DEADLINE), Err(Error::BadPeer(_))));
        assert!(matches!(end.begin_call(b"", DEADLINE), Err(CallError::NotSent(_))));
    }
    // One more request at a time than the limit allows.
    let (a, b) = Channel::pair().unwrap();
    let end = CallOptions::new().requests(3).over(a);
    for id in 1..=4 {
        b.send(&trailer(1, id)).unwrap();
    }
    // The requests before the bad request can be received.
    let _held: Vec<_> = (0..3).map(|_| end.next_request(DEADLINE).unwrap()).collect();
    assert!(matches!(end.next_request(DEADLINE), Err(Error::BadPeer(_))));
}

/// Two requests that a server has taken; there is room for one answer.
fn two_requests() -> (CallEnd, CallEnd, [PendingCall; 2], [Request; 2]) {
    let (a, b) = Options::new().queue_messages(1).pair().unwrap();
    let (client, server) = (CallEnd::over(a), CallEnd::over(b));
    let (calls, requests) = [b"one", b"two"]
        .map(|bytes| (client.begin_call(bytes, DEADLINE).unwrap(), server.next_request(DEADLINE).unwrap()))
        .into_iter()
        .unzip::<_, _, Vec<_>, Vec<_>>();
    (client, server, calls.try_into().unwrap(), requests.try_into().unwrap())
}

/// Shows that a caller learns that there will be no reply, although there was no room to say so when the request was
/// dropped, and the server's other thread sleeps.
#[test]
fn a_request_that_is_dropped_without_room_is_refused_by_the_thread_that_receives() {
    let (client, server, calls, [one, two]) = two_requests();
    let (other, waits) = (Watched::new(), &server);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            other.enter();
            assert_eq!(waits.next_request(DEADLINE).unwrap_err(), Error::PeerClosed);
        });
        other.wait_until_blocked();
        one.reply(b"first", Deadline::NOW).unwrap();
        drop(two);
        let [one, two] = calls;
        assert_eq!(one.wait(DEADLINE).unwrap().bytes(), b"first");
        assert!(matches!(two.wait(DEADLINE), Err(CallError::NotAnswered)));
        drop(client);
    });
}

/// Shows what [`a_request_that_is_dropped_without_room_is_refused_by_the_thread_that_receives`] shows, for a reactor.
#[test]
fn a_request_that_is_dropped_without_room_is_refused_by_the_reactor() {
    let (client, server, calls, [one, two]) = two_requests();
    let reactor = Reactor::new().unwrap();
    let server = AsyncCallEnd::new(server, &reactor).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                poll(&mut [PollFd::new(&reactor, PollFlags::IN)], None).unwrap();
                reactor.turn().unwrap();
            }
        });
        one.reply(b"first", Deadline::NOW).unwrap();
        drop(two);
        let [one, two] = calls;
        let answers = (one.wait(DEADLINE), two.wait(DEADLINE));
        over.store(true, Ordering::Relaxed);
        // Wakes the thread.
        drop(client);
        assert_eq!(answers.0.unwrap().bytes(), b"first");
        assert!(matches!(answers.1, Err(CallError::NotAnswered)));
    });
    drop(server);
}

/// Shows that a cancellation that arrives while the reply waits for room is noted.
#[test]
fn a_request_can_be_cancelled_while_its_reply_waits_for_room() {
    let (_client, _server, [_one, two], [first, second]) = two_requests();
    first.reply(b"first", Deadline::NOW).unwrap();
    two.cancel();
    let (_, mut replier) = second.into_parts();
    assert!(!replier.is_cancelled());
    // The thread that waits for room receives meanwhile.
    assert_eq!(replier.reply(b"second", Duration::from_millis(100)).unwrap_err().error, Error::TimedOut);
    assert!(replier.is_cancelled());
}

/// Shows that a program can report a peer as bad for a reason of its own, and that the peer loses the link.
#[test]
fn a_peer_is_reported_as_bad_and_loses_its_link() {
    let (actor, channel) = spawn("refuser");
    let (_bystander, other) = spawn_with("server", "1", &Options::new());
    let (second, theirs) = Channel::pair().unwrap();
    let told = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let tell = told.clone();
    strait::quota::on_bad_peer(move |bad| tell.lock().unwrap().push(*bad));
    let pid = actor.pid();
    wait_until("the peer has opened its side", || channel.peer().unwrap().is_some());
    // A second channel to the peer, over the link that the report closes.
    channel.send(Outgoing::new(b"").handle(theirs)).unwrap();
    channel.report_bad("a reason of ours");
    let bad: Vec<_> = told.lock().unwrap().iter().filter(|bad| bad.reason == "a reason of ours").copied().collect();
    assert_eq!(bad.len(), 1);
    assert_eq!((bad[0].peer.unwrap().pid, bad[0].link_lost), (Some(pid), true));
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::BadPeer("a reason of ours"));
    assert!(second.recv_by(DEADLINE).is_err());
    drop(channel);
    finish(actor);
    // The other peer is not affected.
    assert_eq!(CallEnd::over(other).call(b"ab", DEADLINE).unwrap().bytes(), b"ba");
}

#[test]
fn ends_call_each_other_while_they_are_called() {
    let (actor, channel) = spawn("caller and server");
    let end = CallEnd::over(channel);
    let serve = |request: strait::call::Request| {
        let depth = request.bytes()[0];
        let mut answer = vec![depth];
        if depth > 0 {
            answer.extend(end.call(&[depth - 1], DEADLINE).unwrap().into_bytes());
        }
        request.reply(&answer, Deadline::NEVER).unwrap();
    };
    let answer = end.call_serving(&[3], DEADLINE, serve).unwrap();
    assert_eq!(answer.bytes(), b"\x03\x02\x01 inner");
    drop(end);
    finish(actor);
}

/// Shows that two ends that fill each other's rings with requests and answers, as fast as they can, do not block each
/// other. The rings have the smallest size.
#[test]
fn two_ends_that_call_each_other_with_full_rings_go_on() {
    let options = Options::new().ring(256).ring_max(2048);
    let (a, b) = options.pair().unwrap();
    let ends = [CallEnd::over(a), CallEnd::over(b)];
    let answered = AtomicU64::new(0);
    const CALLS: u64 = 400;
    std::thread::scope(|scope| {
        for end in &ends {
            // The thread sends all requests before waiting for an answer.
            scope.spawn(|| {
                let pending: Vec<_> = (0..CALLS).map(|n| end.begin_call(&[n as u8; 700], DEADLINE).unwrap()).collect();
                for (n, pending) in (0..CALLS).zip(pending) {
                    assert_eq!(pending.wait(DEADLINE).unwrap().bytes(), [n as u8; 700]);
                    answered.fetch_add(1, Ordering::Relaxed);
                }
            });
            scope.spawn(|| {
                for _ in 0..CALLS {
                    let request = end.next_request(DEADLINE).unwrap();
                    let bytes = request.bytes().to_vec();
                    request.reply(&bytes, Deadline::NEVER).unwrap();
                }
            });
        }
    });
    assert_eq!(answered.into_inner(), 2 * CALLS);
}

/// Shows that a thread without room to send receives meanwhile. Each end has one thread, which first sends all requests
/// and then answers all; no other thread receives.
#[test]
fn threads_that_find_no_room_receive_meanwhile() {
    let options = Options::new().ring(256).ring_max(1024);
    let (a, b) = options.pair().unwrap();
    std::thread::scope(|scope| {
        for channel in [a, b] {
            scope.spawn(move || {
                let end = CallEnd::over(channel);
                let pending: Vec<_> = (0..100u8).map(|n| end.begin_call(&[n; 300], DEADLINE).unwrap()).collect();
                for _ in 0..100 {
                    let request = end.next_request(DEADLINE).unwrap();
                    let bytes = request.bytes().to_vec();
                    request.reply(&bytes, Deadline::NEVER).unwrap();
                }
                for (n, pending) in (0..100u8).zip(pending) {
                    assert_eq!(pending.wait(DEADLINE).unwrap().bytes(), [n; 300]);
                }
            });
        }
    });
}

/// Shows that calls above the limit wait for a free call slot.
#[test]
fn more_calls_than_there_may_be_wait_for_their_place() {
    let (actor, channel) = spawn_with("server", "2", &Options::new());
    let end = CallOptions::new().calls(2).over(channel);
    std::thread::scope(|scope| {
        for thread in 0..6u8 {
            let end = &end;
            scope.spawn(move || {
                for n in 0..200u8 {
                    assert_eq!(end.call(&[thread, n], DEADLINE).unwrap().bytes(), [n, thread]);
                    assert!(end.under_way() <= 2);
                }
            });
        }
    });
    drop(end);
    finish(actor);
}

/// Checks that a thread which waits for the only call slot, and receives meanwhile, gets the slot when `free` frees the
/// answered call of another thread.
fn assert_slot_goes_to_the_receiver(free: impl FnOnce(PendingCall)) {
    let (a, b) = Channel::pair().unwrap();
    let (client, server) = (CallOptions::new().calls(1).over(a), CallEnd::over(b));
    let first = client.begin_call(b"first", DEADLINE).unwrap();
    let other = Watched::new();
    std::thread::scope(|scope| {
        let caller = scope.spawn(|| {
            other.enter();
            client.call(b"second", DEADLINE).unwrap().into_bytes()
        });
        other.wait_until_blocked();
        server.next_request(DEADLINE).unwrap().reply(b"one", DEADLINE).unwrap();
        // The other thread receives the reply, and sleeps again.
        wait_until("the reply was received", || client.channel().counters().messages_received == 1);
        other.wait_until_blocked();
        free(first);
        server.next_request(SOON).expect("a second request").reply(b"two", DEADLINE).unwrap();
        assert_eq!(caller.join().unwrap(), b"two");
    });
}

#[test]
fn a_thread_that_waits_for_a_slot_and_receives_gets_the_slot_of_a_call_that_another_thread_ends() {
    assert_slot_goes_to_the_receiver(|first| assert_eq!(first.wait(DEADLINE).unwrap().bytes(), b"one"));
    assert_slot_goes_to_the_receiver(|mut first| assert_eq!(first.poll(DEADLINE).unwrap().bytes(), b"one"));
}

#[test]
fn a_thread_that_waits_for_a_slot_and_receives_gets_the_slot_of_an_answered_call_that_is_dropped() {
    assert_slot_goes_to_the_receiver(drop);
}

/// A value whose drop asks the call end, to which it was sent, for its counters.
struct Asks(Arc<CallEnd>, mpsc::Sender<u64>);

impl Value for Asks {
    fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
        panic!("the value stays in this process")
    }
}

impl Drop for Asks {
    fn drop(&mut self) {
        self.1.send(self.0.counters().calls).unwrap();
    }
}

/// Runs `act` with a call end over a channel of `options`, with the other end of that channel, and with another end of
/// a channel, in which a value lies that [asks](Asks) the call end when it is dropped. Returns the answer.
fn asked_by(options: Options, act: impl FnOnce(&CallEnd, Channel, Channel) + Send + 'static) -> u64 {
    let (dropped, drops) = mpsc::channel();
    // The thread is not joined: if the value is dropped under the lock of the call end, the thread waits for ever.
    std::thread::spawn(move || {
        let (a, b) = options.pair().unwrap();
        let client = Arc::new(CallEnd::over(a));
        let (x, y) = Channel::pair().unwrap();
        y.send_value(Asks(client.clone(), dropped), DEADLINE).unwrap();
        act(&client, b, x);
    });
    drops.recv_timeout(SOON).expect("the value is dropped, and asks the call end")
}

/// Shows that dropping an answered call drops the answer without a lock.
#[test]
fn the_answer_of_a_dropped_call_is_dropped_without_a_lock() {
    let calls = asked_by(Options::new(), |client, far, end| {
        let server = CallEnd::over(far);
        let call = client.begin_call(b"request", DEADLINE).unwrap();
        server.next_request(DEADLINE).unwrap().reply(Outgoing::new(b"reply").handle(end), DEADLINE).unwrap();
        assert_eq!(client.next_request(Deadline::NOW).unwrap_err(), Error::WouldBlock);
        drop(call);
    });
    assert_eq!(calls, 1);
}

/// Shows that an answer to a request that was not sent is dropped without a lock. A bad peer makes up such an answer.
#[test]
fn an_answer_to_a_request_that_was_not_sent_is_dropped_without_a_lock() {
    let calls = asked_by(Options::new().queue_messages(1), |client, far, end| {
        let _first = client.begin_call(b"first", DEADLINE).unwrap();
        let second = [(1u64 << 32 | 1).to_le_bytes(), [2, 0, 0, 0, 0, 0, 0, 0]].concat();
        far.send(Outgoing::new(&second).handle(end)).unwrap();
        // There is no room for the second request.
        match client.begin_call(b"second", Duration::from_millis(50)) {
            Err(CallError::NotSent(failed)) => assert_eq!(failed.error, Error::TimedOut),
            begun => panic!("{begun:?}"),
        }
        assert_eq!(client.counters().unknown, 0);
    });
    assert_eq!(calls, 1);
}

/// Shows that a wait without a deadline for a request that cannot be taken, because of a limit, ends when the other end
/// is closed, or when another thread interrupts the wait.
#[test]
fn a_wait_for_a_request_that_cannot_be_taken_ends_with_the_peer_or_by_an_interruption() {
    let waits = |end: fn(&CallEnd, CallEnd)| {
        let (x, y) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let client = CallEnd::over(Channel::over(x).unwrap());
        let server = Arc::new(CallEnd::over(Options::new().peer_memory(8 << 20).over(y).unwrap()));
        drop(client.begin_call(&vec![7; 16 << 20], DEADLINE).unwrap());
        let error = server.next_request(Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, Error::LimitReached(_)), "{error:?}");
        let (ended, ends) = mpsc::channel();
        let (watched, waiting) = (Arc::new(Watched::new()), server.clone());
        let entered = watched.clone();
        // The thread is not joined: it may wait for ever.
        std::thread::spawn(move || {
            entered.enter();
            ended.send(waiting.next_request(Deadline::NEVER).unwrap_err()).unwrap();
        });
        watched.wait_until_blocked();
        assert_eq!(ends.try_recv(), Err(mpsc::TryRecvError::Empty));
        end(&server, client);
        ends.recv_timeout(SOON).expect("the wait ends")
    };
    assert!(matches!(waits(|_, client| drop(client)), Error::LimitReached(_)));
    let interrupted = waits(|server, client| {
        server.channel().interrupter().interrupt();
        std::mem::forget(client);
    });
    assert_eq!(interrupted, Error::Interrupted);
}

#[test]
fn threads_that_wait_for_requests_and_replies_share_one_end() {
    let (a, b) = Channel::pair().unwrap();
    let ends = [CallEnd::over(a), CallEnd::over(b)];
    let served = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for end in &ends {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Ok(request) = end.next_request(DEADLINE) {
                        if request.bytes() == b"end" {
                            return drop(request);
                        }
                        served.fetch_add(1, Ordering::Relaxed);
                        let bytes = request.bytes().to_vec();
                        request.reply(&bytes, Deadline::NEVER).unwrap();
                    }
                });
            }
        }
        let callers: Vec<_> = (0..6usize)
            .map(|n| {
                let end = &ends[n % 2];
                scope.spawn(move || {
                    for call in 0..500u64 {
                        let bytes = (n as u64 * 1000 + call).to_le_bytes();
                        assert_eq!(end.call(&bytes, DEADLINE).unwrap().bytes(), bytes);
                    }
                })
            })
            .collect();
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        for end in [&ends[0], &ends[0], &ends[1], &ends[1]] {
            assert!(matches!(end.call(b"end", DEADLINE), Err(CallError::NotAnswered)));
        }
    });
    assert_eq!(served.into_inner(), 3000);
}

/// Shows that a wait set holds call ends, also behind an `Arc`, and reports requests and replies.
#[test]
fn a_wait_set_reports_what_arrives_at_call_ends() {
    let (a, b) = Channel::pair().unwrap();
    let (client, server) = (CallEnd::over(a), std::sync::Arc::new(CallEnd::over(b)));
    let set = WaitSet::new().unwrap();
    set.add(&client, 1, Interest::Readable, Mode::Level).unwrap();
    set.add(&server, 2, Interest::Readable, Mode::OneShot).unwrap();
    let ready = || {
        let mut events = Vec::new();
        set.wait(&mut events, DEADLINE).unwrap();
        events.iter().map(Event::key).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        let mut pending = client.begin_call(b"question", DEADLINE).unwrap();
        assert_eq!(ready(), [2]);
        server.next_request(Deadline::NOW).unwrap().reply(b"answer", Deadline::NOW).unwrap();
        assert_eq!(ready(), [1]);
        assert_eq!(pending.poll(Deadline::NOW).unwrap().bytes(), b"answer");
        set.modify(&server, 2, Interest::Readable, Mode::OneShot).unwrap();
    }
    set.remove(&client).unwrap();
    set.remove(&server).unwrap();
    assert!(set.is_empty());
}

/// Shows that an end with many long requests in its channel looks at the deadline of its own call after each request.
/// An idle machine needs more than 10 ms for a request.
#[test]
fn long_requests_do_not_hold_up_a_call_past_its_deadline() {
    let (a, b) = Options::new().queue_bytes(2 << 30).pair().unwrap();
    let (client, server) = (CallEnd::over(a), CallEnd::over(b));
    let request = vec![7; 64 << 20];
    let _calls: Vec<_> = (0..16).map(|_| client.begin_call(&request, DEADLINE).unwrap()).collect();
    let failed = server.call(b"x", Duration::from_millis(50)).unwrap_err();
    assert!(matches!(failed, CallError::OutcomeUnknown(Error::TimedOut)), "{failed}");
    assert!(server.counters().requests < 10, "{:?}", server.counters());
}

/// Shows that an end whose requests have as many bytes as permitted still finds the answer to its own call behind
/// further requests: the end refuses these, and serves the others. While the end has no call, it refuses none.
#[test]
fn an_end_full_of_requests_refuses_some_only_for_the_sake_of_its_own_call() {
    const LEN: usize = 1000;
    const CALLS: u64 = 100;
    let (a, b) = Channel::pair().unwrap();
    let (client, server) = (CallEnd::over(a), CallOptions::new().request_bytes(10 * LEN).over(b));
    let reactor = Reactor::new().unwrap();
    let server = AsyncCallEnd::new(server, &reactor).unwrap();
    let calls: Vec<_> = (0..CALLS).map(|_| client.begin_call(&[7; LEN], DEADLINE).unwrap()).collect();
    while reactor.turn().unwrap() > 0 {}
    let server = server.into_inner();
    let received = server.counters().requests;
    assert!((10..30).contains(&received) && server.counters().refused == 0, "{:?}", server.counters());
    let question = server.begin_call(b"a question", DEADLINE).unwrap();
    client.next_request(DEADLINE).unwrap().reply(b"an answer", DEADLINE).unwrap();
    assert_eq!(question.wait(DEADLINE).unwrap().bytes(), b"an answer");
    let counters = server.counters();
    assert_eq!((counters.requests, counters.refused), (CALLS, CALLS - received));
    for _ in 0..received {
        server.next_request(DEADLINE).unwrap().reply(b"served", DEADLINE).unwrap();
    }
    let outcomes: Vec<_> = calls.into_iter().map(|call| call.wait(DEADLINE)).collect();
    let (served, refused) = outcomes.split_at(received as usize);
    assert!(served.iter().all(|outcome| outcome.is_ok()));
    assert!(refused.iter().all(|outcome| matches!(outcome, Err(CallError::NotAnswered))));
}

/// Shows that an end takes no longer request or reply than its options permit.
#[test]
fn who_sends_a_longer_request_or_reply_than_permitted_is_a_bad_peer() {
    let pair = || {
        let (a, b) = Channel::pair().unwrap();
        (CallEnd::over(a), CallOptions::new().max_message(1000).over(b))
    };
    let (client, server) = pair();
    let _calls = [1000, 1001].map(|len| client.begin_call(&vec![7; len], DEADLINE).unwrap());
    assert_eq!(server.next_request(DEADLINE).unwrap().bytes().len(), 1000);
    assert!(matches!(server.next_request(DEADLINE), Err(Error::BadPeer(_))));
    let (server, client) = pair();
    let call = client.begin_call(b"", DEADLINE).unwrap();
    server.next_request(DEADLINE).unwrap().reply(&vec![7; 1001], DEADLINE).unwrap();
    assert!(matches!(call.wait(DEADLINE), Err(CallError::OutcomeUnknown(Error::BadPeer(_)))));
}

/// A waker that looks at a call end when it is dropped, as the drop of a task may do.
struct LooksAt(Arc<CallEnd>);

impl Wake for LooksAt {
    fn wake(self: Arc<Self>) {}
}

impl Drop for LooksAt {
    fn drop(&mut self) {
        self.0.counters();
    }
}

/// Shows that the waker of a task that awaits a reply is dropped without a lock of the end: when another waker takes
/// its place, when the call is dropped, and when the reply comes.
#[test]
fn wakers_are_dropped_without_a_lock() {
    let (done, ends) = mpsc::channel();
    std::thread::spawn(move || {
        let (a, b) = Channel::pair().unwrap();
        let (client, server) = (Arc::new(CallEnd::over(a)), CallEnd::over(b));
        let poll = |call: &mut PendingCall| {
            let waker = Waker::from(Arc::new(LooksAt(client.clone())));
            assert!(Pin::new(call).poll(&mut Context::from_waker(&waker)).is_pending());
        };
        let mut call = client.begin_call(b"", DEADLINE).unwrap();
        poll(&mut call);
        poll(&mut call);
        drop(call);
        let mut call = client.begin_call(b"", DEADLINE).unwrap();
        poll(&mut call);
        server.next_request(DEADLINE).unwrap().reply(b"", DEADLINE).unwrap();
        call.wait(DEADLINE).unwrap();
        done.send(()).unwrap();
    });
    ends.recv_timeout(DEADLINE / 6).expect("no deadlock");
}
