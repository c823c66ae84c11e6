//! The model of a call end under the model checker. The shipped code that sorts, waits, hands over and yields runs on
//! locks and condition variables that the checker knows; see [`harness`](crate::ring::tests::harness).
//!
//! The channel is modelled as the [ring's model](crate::lane::waiter) shows it to be: a queue whose receiver records
//! its sleep, and whose sender wakes a sleeping receiver. No thread in the model wakes by itself, so a lost wake-up
//! shows as a deadlock.

use std::sync::Arc;

use loom::thread;

use crate::call::{numbers, wire};
use crate::error::Error;
use crate::ring::tests::harness::check_within;
use platform::{Channel, Deadline, Wire};
use routes::{Most, Routes};
use shared::CallShared;
use slots::Answer;
use waiting::Waits;
use wire::CallKind;

#[path = "../routes.rs"]
#[allow(clippy::duplicate_mod, dead_code, unreachable_pub, reason = "as above")]
mod routes;
#[path = "../shared.rs"]
#[allow(clippy::duplicate_mod, dead_code, reason = "as above")]
mod shared;
#[path = "../slots.rs"]
#[allow(clippy::duplicate_mod, reason = "as above")]
mod slots;
#[path = "../waiting.rs"]
#[allow(clippy::duplicate_mod, dead_code, reason = "as above")]
mod waiting;
#[path = "../yield_policy.rs"]
#[allow(clippy::duplicate_mod, reason = "it is compiled once more, on another ground")]
mod yield_policy;

/// Limit of preemptions (switches to another thread where the running thread could go on) in one execution of a model.
/// With 1, the model checker takes some seconds for three or four busy threads.
const PREEMPTIONS: usize = 1;

/// The channel, locks and clock that the model of calls (a loom test that explores the interleavings of the threads)
/// uses in place of [`crate::call::platform`].
mod platform {
    use std::collections::VecDeque;
    use std::sync::Arc;
    use std::time::Duration;

    use loom::sync::atomic::Ordering;

    pub(super) use loom::sync::atomic::AtomicBool;
    pub(super) use loom::sync::{Mutex, MutexGuard};
    pub(super) use loom::thread_local;

    pub(super) use crate::wake::strict;

    use crate::channel::SendError;
    use crate::channel::message::{Message, Outgoing, Parts};
    use crate::error::Error;

    loom::lazy_static! {
        /// Whether the deadlines of kind [`Deadline::Passes`] have passed in the model.
        static ref LATE: AtomicBool = AtomicBool::new(false);
        /// Deliberate error of the model: whether dropping a deferred wake-up wakes no thread. A test shows that the
        /// model finds the error.
        static ref FORGETFUL: AtomicBool = AtomicBool::new(false);
    }

    pub(super) fn forget_to_wake() {
        FORGETFUL.store(true, Ordering::SeqCst);
    }

    /// The model checker's condition variable, as [`crate::wake::condvar::Condvar`]. No time passes in a model.
    #[derive(Debug, Default)]
    pub(in crate::call) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(in crate::call) fn wait<'a, T>(
            &self,
            _mutex: &'a Mutex<T>,
            guard: MutexGuard<'a, T>,
            _limit: Option<Duration>,
        ) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap()
        }

        pub(in crate::call) fn notify_one(&self) {
            self.0.notify_one();
        }

        pub(in crate::call) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    /// One direction of the channel of a model: a queue of messages, and the condition variable on which its receiver
    /// sleeps.
    #[derive(Debug, Default)]
    struct Lane {
        queue: Mutex<Queue>,
        news: Condvar,
    }

    #[derive(Debug, Default)]
    struct Queue {
        messages: VecDeque<Vec<u8>>,
        /// Whether the thread that receives from the queue was nudged.
        nudged: bool,
        /// Whether the thread that receives from the queue sleeps and no other thread is about to wake it.
        asleep: bool,
    }

    /// One end of the channel of a model: first the queue into which the end sends, then the queue from which it
    /// receives.
    #[derive(Clone, Debug, Default)]
    pub(super) struct Wire {
        lanes: [Arc<Lane>; 2],
    }

    impl Wire {
        pub(super) fn other_side(&self) -> Self {
            let [out, back] = &self.lanes;
            Self { lanes: [back.clone(), out.clone()] }
        }

        /// Puts a message into the queue from which the other end receives. If the receiving thread sleeps, returns a
        /// value whose drop wakes the thread; otherwise returns `None`.
        pub(in crate::call) fn put(&self, message: Vec<u8>) -> Option<WakeOnDrop> {
            let mut queue = unpoisoned(&self.lanes[0].queue);
            queue.messages.push_back(message);
            std::mem::take(&mut queue.asleep).then(|| WakeOnDrop { lane: self.lanes[0].clone() })
        }

        /// Takes all messages out of the queue from which the end receives, and returns the messages; waits until there
        /// is a message, or fails at the deadline.
        pub(in crate::call) fn take(&self, deadline: Deadline) -> Result<Vec<Vec<u8>>, Error> {
            let lane = &self.lanes[1];
            let mut queue = unpoisoned(&lane.queue);
            loop {
                if !queue.messages.is_empty() {
                    queue.asleep = false;
                    return Ok(queue.messages.drain(..).collect());
                }
                if queue.nudged {
                    queue.asleep = false;
                    return Err(Error::Interrupted);
                }
                if deadline.has_passed() {
                    queue.asleep = false;
                    return Err(if deadline.is_now() { Error::WouldBlock } else { Error::TimedOut });
                }
                queue.asleep = true;
                queue = lane.news.wait(&lane.queue, queue, None);
            }
        }

        /// Lets the deadlines of kind [`Deadline::Passes`] pass, and then wakes the sleeping threads of the other end:
        /// `waiters` wakes the threads that wait on the call end, and this function wakes the receiving thread.
        pub(super) fn be_late(&self, waiters: impl FnOnce()) {
            LATE.store(true, Ordering::SeqCst);
            waiters();
            drop(unpoisoned(&self.lanes[0].queue));
            self.lanes[0].news.notify_all();
        }
    }

    #[derive(Debug)]
    pub(in crate::call) struct WakeOnDrop {
        lane: Arc<Lane>,
    }

    impl WakeOnDrop {
        /// Wakes the thread that receives from the queue, also if the model makes its deliberate error (to forget
        /// deferred wake-ups).
        pub(super) fn wake(self) {
            self.lane.news.notify_one();
            std::mem::forget(self);
        }
    }

    impl Drop for WakeOnDrop {
        fn drop(&mut self) {
            if !FORGETFUL.load(Ordering::SeqCst) {
                self.lane.news.notify_one();
            }
        }
    }

    #[derive(Debug)]
    pub(in crate::call) struct Channel {
        pub(in crate::call) end: End,
    }

    #[derive(Debug)]
    pub(super) struct End {
        wire: Wire,
    }

    impl Channel {
        pub(in crate::call) fn over(wire: Wire) -> Self {
            Self { end: End { wire } }
        }

        pub(in crate::call) fn make_interruptible(&self) {}

        pub(in crate::call) fn nudge_receiver(&self) {
            let lane = &self.end.wire.lanes[1];
            let mut queue = unpoisoned(&lane.queue);
            queue.nudged = true;
            if std::mem::take(&mut queue.asleep) {
                lane.news.notify_one();
            }
        }

        pub(in crate::call) fn take_nudge(&self) -> bool {
            std::mem::take(&mut unpoisoned(&self.end.wire.lanes[1].queue).nudged)
        }

        pub(in crate::call) fn is_peer_closed(&self) -> bool {
            panic!("nothing lacks here that passes");
        }

        pub(in crate::call) fn try_send(&self, bytes: &[u8]) -> Result<(), SendError> {
            if let Some(reader) = self.end.wire.put(bytes.to_vec()) {
                reader.wake();
            }
            Ok(())
        }

        pub(in crate::call) fn recv_onto(
            &self,
            batch: &mut Vec<Message>,
            _: usize,
            _: usize,
            deadline: Deadline,
        ) -> Result<(), Error> {
            for bytes in self.end.wire.take(deadline)? {
                let mut message = Message::new();
                message.bytes = bytes.into();
                batch.push(message);
            }
            Ok(())
        }
    }

    impl End {
        pub(in crate::call) fn sleeps_at_once(&self) -> bool {
            true
        }

        pub(in crate::call) fn break_off(&self, error: Error) -> Error {
            error
        }

        pub(in crate::call) fn send_with_deferred_wake(
            &self,
            message: &mut Outgoing<'_>,
            _: Deadline,
        ) -> Result<Option<WakeOnDrop>, SendError> {
            let Parts::One(bytes) = message.parts else { panic!("these messages are in one piece") };
            Ok(self.wire.put(bytes.to_vec()))
        }

        pub(in crate::call) fn send_any(
            &self,
            message: &mut Outgoing<'_>,
            deadline: Deadline,
        ) -> Result<(), SendError> {
            if let Some(reader) = self.send_with_deferred_wake(message, deadline)? {
                reader.wake();
            }
            Ok(())
        }
    }

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(in crate::call) enum Deadline {
        Now,
        Never,
        /// The deadline passes when the test calls `be_late`; before that, it has not passed.
        Passes,
    }

    impl Deadline {
        pub(in crate::call) const NOW: Self = Self::Now;
        pub(in crate::call) const NEVER: Self = Self::Never;

        pub(in crate::call) fn after(_: Duration) -> Self {
            panic!("what is put off finds room here, and is not waited for")
        }

        pub(in crate::call) fn is_now(self) -> bool {
            self == Self::Now
        }

        pub(in crate::call) fn has_passed(self) -> bool {
            match self {
                Self::Now => true,
                Self::Never => false,
                Self::Passes => LATE.load(Ordering::SeqCst),
            }
        }

        pub(in crate::call) fn remaining(self, _: Instant) -> Option<Duration> {
            let left = if self.has_passed() { Duration::ZERO } else { Duration::from_secs(1) };
            (self != Self::Never).then_some(left)
        }

        pub(in crate::call) fn within(self, limit: Duration) -> Duration {
            limit
        }
    }

    /// The time in a model, in which the clock stands still.
    #[derive(Clone, Copy, Debug)]
    pub(in crate::call) struct Instant;

    impl Instant {
        pub(in crate::call) fn now() -> Self {
            Self
        }

        pub(in crate::call) fn elapsed(self) -> Duration {
            Duration::ZERO
        }
    }

    /// Does nothing: the model checker decides which other threads run meanwhile.
    pub(in crate::call) fn yield_now() {}

    pub(in crate::call) fn sleep(_: Duration) {
        panic!("nothing lacks here that passes");
    }

    /// No signals come in a model.
    pub(in crate::call) fn check_signals() -> Result<(), Error> {
        Ok(())
    }

    pub(in crate::call) fn postponed<T>(act: impl FnOnce() -> T) -> T {
        act()
    }

    /// No thread interrupts another one in a model.
    pub(in crate::call) fn check_interruption(_: &Channel) -> Result<(), Error> {
        Ok(())
    }

    pub(in crate::call) fn check_fork(_: &Channel) -> Result<(), Error> {
        Ok(())
    }

    pub(in crate::call) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }

    /// Returns 0 for all threads, as if all ran on one processor.
    pub(in crate::call) fn current_cpu() -> u32 {
        0
    }
}

/// Makes a call end with 8 call slots that runs the shipped code. Also returns the other end of its channel, over which
/// the test itself plays the server.
fn pair() -> (Arc<CallShared>, Wire) {
    pair_with(8)
}

/// Makes a call end as [`pair`] does, but with `calls` call slots.
fn pair_with(calls: usize) -> (Arc<CallShared>, Wire) {
    let wire = Wire::default();
    let server = wire.other_side();
    (
        Arc::new(CallShared::new(Channel::over(wire), Routes::new(Most { calls, requests: 8, ..Most::default() }))),
        server,
    )
}

/// Makes a call as [`crate::call::CallEnd::call`] does, and checks that the reply has the bytes of `question`.
fn call(end: &CallShared, question: &[u8], deadline: Deadline) -> Result<(), Error> {
    let (id, deferred_wake) = end.begin(question.into(), deadline, true).map_err(|failed| failed.error)?;
    match end.wait_until(Waits::Reply(id), deadline, deferred_wake, |routes| routes.take_answer(id)) {
        Ok(Answer::Reply(message)) => {
            assert_eq!(message.bytes(), question);
            Ok(())
        }
        Ok(Answer::None) => panic!("a server that drops nothing"),
        Err(error) => {
            end.cancel(id);
            Err(error)
        }
    }
}

/// Waits on the call end `end` for the next request of the server until the deadline, and takes the request. Fails if
/// the deadline passes first.
fn next_request(end: &CallShared, deadline: Deadline) -> Result<(), Error> {
    end.wait_until(Waits::Request, deadline, None, |routes| routes.next_request()).map(drop)
}

fn put(server: &Wire, kind: CallKind, id: u64, payload: &[u8]) {
    if let Some(reader) = server.put([payload, &wire::encode(kind, id)].concat()) {
        reader.wake();
    }
}

const UNANSWERED: &[u8] = b"of no interest";

/// Plays the server: waits for requests, and replies to `requests` of them with their own bytes. Never replies to the
/// request [`UNANSWERED`], which does not count.
fn serve(server: &Wire, mut requests: usize) {
    while requests > 0 {
        for mut message in server.take(Deadline::NEVER).unwrap() {
            if let Some((CallKind::Request, id)) = wire::cut(&mut message)
                && message != UNANSWERED
            {
                requests -= 1;
                put(server, CallKind::Reply, id, &message);
            }
        }
    }
}

/// Lets the deadlines of kind [`Deadline::Passes`] pass, and wakes all threads that sleep on the call end `end`.
/// `server` is the other end of its channel.
fn be_late(end: &CallShared, server: &Wire) {
    server.be_late(|| end.routes().waiters.iter().for_each(|(_, waiter)| waiter.condition.notify_one()));
}

/// Checks, in a model, two threads that make `calls[0]` and `calls[1]` calls at the same time. The receiving thread
/// wakes the other thread and lets it run, and each of the two may leave the waking of the server to the other. Shows
/// that every call gets its reply. With `forgetful`, the model makes a deliberate error: it forgets a wake-up left to
/// another thread, so that a call waits for ever.
fn two_threads_call(calls: [usize; 2], forgetful: bool) {
    check_within(PREEMPTIONS, move || {
        if forgetful {
            platform::forget_to_wake();
        }
        let (end, server) = pair();
        let callers = [(calls[0], b"a"), (calls[1], b"b")].map(|(calls, question)| {
            let end = end.clone();
            thread::spawn(move || (0..calls).for_each(|_| call(&end, question, Deadline::NEVER).unwrap()))
        });
        serve(&server, calls.iter().sum());
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(end.routes().in_flight(), 0);
    });
}

#[test]
fn every_call_is_answered() {
    two_threads_call([2, 1], false);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_wake_up_that_was_left_to_somebody_and_forgotten_is_missed() {
    two_threads_call([2, 1], true);
}

/// Shows that two threads that share one call slot both get their replies: each waits for the slot while the other has
/// it, and perhaps receives for the other meanwhile.
#[test]
fn threads_get_the_only_slot_one_after_the_other() {
    check_within(PREEMPTIONS, || {
        let (end, server) = pair_with(1);
        let callers = [b"a", b"b"].map(|question| {
            let end = end.clone();
            thread::spawn(move || call(&end, question, Deadline::NEVER).unwrap())
        });
        serve(&server, 2);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert_eq!(end.routes().in_flight(), 0);
    });
}

/// Shows that a thread gets the only call slot although another thread gives up waiting for the slot, perhaps just when
/// it is woken for the slot, or takes the slot and cannot send its request.
#[test]
fn a_slot_that_one_was_woken_for_and_leaves_is_anothers() {
    check_within(PREEMPTIONS, || {
        let (end, server) = pair_with(1);
        let (id, _) = end.begin(b"first".into(), Deadline::NEVER, false).unwrap();
        let waits = {
            let end = end.clone();
            thread::spawn(move || call(&end, b"a", Deadline::NEVER).unwrap())
        };
        let may_give_up = {
            let end = end.clone();
            thread::spawn(move || {
                let begun = end.wait_until(Waits::Slot, Deadline::Passes, None, Routes::begin);
                // The request is not sent.
                begun.into_iter().for_each(|id| drop(end.routes().forget(id)));
            })
        };
        let clock = {
            let (end, server) = (end.clone(), server.clone());
            thread::spawn(move || be_late(&end, &server))
        };
        serve(&server, 1);
        end.wait_until(Waits::Reply(id), Deadline::NEVER, None, |routes| routes.take_answer(id)).unwrap();
        serve(&server, 1);
        [waits, may_give_up, clock].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Shows that a thread gets its replies although the server never answers a call of another thread. The other thread
/// gives up at its deadline, perhaps while it receives for the first thread or lets the first thread run.
#[test]
fn one_that_gives_up_leaves_the_other_its_reply() {
    check_within(PREEMPTIONS, || {
        let (end, server) = pair();
        let caller = {
            let end = end.clone();
            thread::spawn(move || (0..2).for_each(|_| call(&end, b"a", Deadline::NEVER).unwrap()))
        };
        let gives_up = {
            let end = end.clone();
            thread::spawn(move || assert_eq!(call(&end, UNANSWERED, Deadline::Passes), Err(Error::TimedOut)))
        };
        let clock = {
            let (end, server) = (end.clone(), server.clone());
            thread::spawn(move || be_late(&end, &server))
        };
        serve(&server, 2);
        [caller, gives_up, clock].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Shows that no request is lost if two threads wait for requests, and one thread gives up at its deadline just when it
/// is woken for a request: the other thread gets the request.
#[test]
fn what_one_that_gives_up_was_woken_for_is_anothers() {
    check_within(PREEMPTIONS, || {
        let (end, server) = pair();
        let waits = {
            let end = end.clone();
            thread::spawn(move || next_request(&end, Deadline::NEVER).unwrap())
        };
        let may_give_up = {
            let (end, server) = (end.clone(), server.clone());
            thread::spawn(move || {
                // The other thread has a request in any case.
                if next_request(&end, Deadline::Passes).is_ok() {
                    put(&server, CallKind::Request, 2, b"");
                }
            })
        };
        let clock = {
            let (end, server) = (end.clone(), server.clone());
            thread::spawn(move || be_late(&end, &server))
        };
        put(&server, CallKind::Request, 1, b"");
        [waits, may_give_up, clock].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Shows that another thread gets a request although the thread woken for the request leaves it: the woken thread waits
/// for a reply or a request, and has its reply before it runs. A third thread receives all the time, so that no thread
/// is asked to receive.
#[test]
fn what_one_was_woken_for_and_leaves_is_anothers() {
    // One more preemption: the first to have two threads asleep, the second to receive the two messages one by one.
    check_within(PREEMPTIONS + 1, || {
        let (end, server) = pair();
        let receives = {
            let end = end.clone();
            thread::spawn(move || call(&end, b"a", Deadline::NEVER).unwrap())
        };
        let mut asked = server.take(Deadline::NEVER).unwrap().remove(0);
        let (_, last) = wire::cut(&mut asked).unwrap();
        let serves = {
            let end = end.clone();
            thread::spawn(move || next_request(&end, Deadline::NEVER).unwrap())
        };
        let (id, deferred_wake) = end.begin((b"b").into(), Deadline::NEVER, false).unwrap();
        assert!(deferred_wake.is_none());
        let either = {
            let (end, server) = (end.clone(), server.clone());
            thread::spawn(move || {
                let find = |routes: &mut Routes| match routes.take_answer(id) {
                    Some(_) => Some(false),
                    None => routes.next_request().map(|_| true),
                };
                if end.wait_until(Waits::Either(id), Deadline::NEVER, None, find).unwrap() {
                    put(&server, CallKind::Request, 2, b"");
                }
            })
        };
        put(&server, CallKind::Request, 1, b"");
        put(&server, CallKind::Reply, id, b"b");
        [serves, either].into_iter().for_each(|thread| thread.join().unwrap());
        put(&server, CallKind::Reply, last, b"a");
        receives.join().unwrap();
    });
}
