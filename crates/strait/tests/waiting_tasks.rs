//! Tests of tasks that wait to send: each task sleeps until the event that ends its wait, and no other event ends the
//! wait.

mod common;

use std::fs::File;
use std::future::Future;
use std::os::fd::OwnedFd;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use common::{DEADLINE, parent, spawn};
use rustix::event::{PollFd, PollFlags, poll};
use strait::task::{AsyncChannel, Reactor};
use strait::{Channel, Error, Options, Outgoing, SendError};

/// The most polls in which a task and its reactor come to rest.
const FEW: usize = 10;

#[test]
fn child() {
    common::play(&[("reader", |_| read_on_command())]);
}

/// Notes that its task is woken.
struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A future of a reactor's task, which is polled when it is woken.
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

    /// Asserts that the task does not become ready, and that it and the reactor come to rest after few polls.
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

/// Shows that a task which waits for room for a short message is not woken by memory that the receiver returns.
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

/// Shows that a task which sends a descriptor, and waits because other ends have too many descriptors in flight over
/// the link, is not woken by progress of its own receiver that was there before.
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
