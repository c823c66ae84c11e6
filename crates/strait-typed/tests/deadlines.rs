//! A call and a send end at their deadline, also while another thread still waits to compare the types of the two ends.

mod common;

use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use common::{LIMIT, question};
use strait::call::{CallEnd, CallOptions};
use strait::{Channel, Deadline, Options};
use strait_typed::{CallError, Json, SendError, Typed, TypedCalls};

/// The time after which a thread that has not returned counts as hanging. The deadlines of the tests are shorter.
const HANGS: Duration = Duration::from_secs(20);

/// A thread of a test, for another thread to see that it sleeps.
#[derive(Default)]
struct Thread(Mutex<Option<std::path::PathBuf>>);

impl Thread {
    /// Notes the calling thread as the one that is about to sleep.
    fn begins(&self) {
        *self.0.lock().unwrap() = Some(std::fs::read_link("/proc/thread-self").unwrap());
    }

    /// Returns once the noted thread sleeps.
    fn await_sleep(&self) {
        let begin = Instant::now();
        let sleeps = || {
            let Some(thread) = self.0.lock().unwrap().clone() else { return false };
            let state = std::fs::read_to_string(std::path::Path::new("/proc").join(thread).join("stat"));
            state.is_ok_and(|state| state.rsplit(") ").next().is_some_and(|state| state.starts_with('S')))
        };
        while !sleeps() {
            assert!(begin.elapsed() < LIMIT, "the thread does not sleep");
            std::thread::yield_now();
        }
    }
}

/// Shows that a call ends at its deadline although another thread's first call has no answer.
#[test]
fn a_call_ends_at_its_deadline_while_another_thread_awaits_the_types() {
    let (one, other) = Channel::pair().unwrap();
    let client = TypedCalls::<u64, u64>::over(one);
    // The server answers nothing.
    let server = CallEnd::over(other);
    let thread = Thread::default();
    let (done, returned) = channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            thread.begins();
            client.call(&1, Deadline::NEVER)
        });
        thread.await_sleep();
        scope.spawn(|| {
            let calls = [Deadline::NOW, Deadline::after(Duration::from_millis(50))].map(|limit| client.call(&2, limit));
            done.send(calls).unwrap();
        });
        let calls = returned.recv_timeout(HANGS);
        // The first call ends with the server.
        drop(server);
        for called in calls.expect("the calls end at their deadlines") {
            assert!(matches!(called, Err(CallError::Call(_))), "{called:?}");
        }
        let first = first.join().unwrap();
        assert!(matches!(first, Err(CallError::Call(_))), "{first:?}");
    });
}

/// Shows that a send ends at its deadline although another thread waits for room for the first message.
#[test]
fn a_send_ends_at_its_deadline_while_another_thread_awaits_room_for_the_types() {
    let (one, other) = Options::new().ring_max(64 << 10).pair().unwrap();
    let mut unread = 0;
    for message in [&[0; 1024][..], b""] {
        while one.try_send(message).is_ok() {
            unread += 1;
        }
    }
    let (near, far) = (Typed::<u64>::over(one), Typed::<u64>::over(other));
    let thread = Thread::default();
    let (done, returned) = channel();
    let would_block = |sent: &Result<(), SendError>| matches!(sent, Err(SendError::Channel(strait::Error::WouldBlock)));
    let timed_out = |sent: &Result<(), SendError>| matches!(sent, Err(SendError::Channel(strait::Error::TimedOut)));
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            thread.begins();
            near.send(&1)
        });
        thread.await_sleep();
        scope.spawn(|| done.send((near.try_send(&2), near.send_by(&3, Duration::from_millis(50)))).unwrap());
        let sent = returned.recv_timeout(HANGS);
        (0..unread).for_each(|_| drop(far.channel().try_recv().unwrap()));
        let (now, later) = sent.expect("the sends end at their deadlines");
        assert!(would_block(&now) && timed_out(&later), "{now:?}, {later:?}");
        first.join().unwrap().unwrap();
    });
    near.send_by(&4, LIMIT).unwrap();
    assert_eq!((far.recv_by(LIMIT).unwrap(), far.recv_by(LIMIT).unwrap()), (1, 4));
}

/// Returns the number of first messages in the two tests below: more than one call takes after its deadline.
const MANY: usize = 3000;

/// Shows that a receive looks at its deadline although the peer repeats its first message.
#[test]
fn a_receive_ends_at_its_deadline_while_the_peer_repeats_its_first_message() {
    let (one, other) = Channel::pair().unwrap();
    Typed::<u32, u32, Json>::over(one).send(&1).unwrap();
    let first = other.recv().unwrap();
    let (near, far) = Typed::<u32, u32, Json>::pair().unwrap();
    near.send(&1).unwrap();
    assert_eq!(far.recv_by(LIMIT).unwrap(), 1);
    for _ in 0..MANY {
        near.channel().try_send(first.bytes()).unwrap();
    }
    near.try_send(&2).unwrap();
    let would_block = strait_typed::RecvError::Channel(strait::Error::WouldBlock);
    assert_eq!(far.try_recv(), Err(would_block));
    assert!(far.channel().status().unwrap().messages > 1, "the receive has taken all messages");
    // Without a deadline, the receive waits for the value.
    assert_eq!(far.recv().unwrap(), 2);
}

/// Shows that a server looks at its deadline although the peer asks for the types again and again.
#[test]
fn a_server_ends_at_its_deadline_while_the_peer_asks_for_the_types() {
    let (one, other) = Channel::pair().unwrap();
    let options = CallOptions::new().calls(2 * MANY).requests(2 * MANY);
    let (raw, server) = (options.over(one), TypedCalls::<u32, u32>::from_end(options.over(other)));
    let question = question();
    let ask = |_: usize| raw.begin_call(&question, Deadline::NOW).unwrap();
    let _asked: Vec<_> = (0..MANY).map(ask).collect();
    let would_block = strait_typed::RecvError::Channel(strait::Error::WouldBlock);
    assert_eq!(server.next_request(Deadline::NOW).map(drop), Err(would_block));
    let answered = raw.channel().status().unwrap().messages;
    assert!(answered > 0 && answered < MANY as u64, "{answered} answers");
    let _call = raw.begin_call(&[7], Deadline::NOW).unwrap();
    assert_eq!(server.next_request(Deadline::NEVER).unwrap().take(), 7);
}

/// Shows that an end sends its types once, although several threads begin to send at once and wait for room.
#[test]
fn threads_that_send_at_once_send_the_types_once() {
    for _ in 0..50 {
        let (near, far) = Typed::<u64>::pair().unwrap();
        std::thread::scope(|scope| {
            (0..4u64).for_each(|number| {
                let near = &near;
                scope.spawn(move || near.send_by(&number, LIMIT).unwrap());
            });
        });
        let mut received: Vec<_> = (0..4).map(|_| far.recv_by(LIMIT).unwrap()).collect();
        received.sort_unstable();
        assert_eq!(received, [0, 1, 2, 3]);
    }
}
