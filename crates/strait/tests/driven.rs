//! Tests of reactors with a driver that polls for a while before parking.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use common::{DEADLINE, finish, spawn};
use rustix::event::{PollFd, PollFlags, poll};
use strait::task::{AsyncChannel, Reactor};
use strait::{Channel, Message};

#[test]
fn child() {
    common::play(&[("echo", |_| common::echo(&common::parent()))]);
}

/// Whether the descriptor of the reactor becomes readable within `limit`.
fn is_readable(reactor: &Reactor, limit: Duration) -> bool {
    let limit = limit.try_into().unwrap();
    poll(&mut [PollFd::new(reactor, PollFlags::IN)], Some(&limit)).unwrap() > 0
}

/// Parks the reactor: calls `rest` until nothing is left.
fn rest(reactor: &Reactor) {
    while reactor.rest().unwrap() > 0 {}
}

#[derive(Default)]
struct Counting(AtomicUsize);

impl Wake for Counting {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct Task {
    wakes: Arc<Counting>,
    waker: Waker,
}

impl Task {
    fn new() -> Self {
        let wakes = Arc::<Counting>::default();
        Self { waker: wakes.clone().into(), wakes }
    }

    fn poll(&self, channel: &AsyncChannel) -> Poll<Message> {
        channel.poll_recv(&mut Context::from_waker(&self.waker)).map(|received| received.unwrap())
    }

    fn wakes(&self) -> usize {
        self.wakes.0.load(Ordering::Relaxed)
    }
}

/// Shows that the descriptor of a reactor becomes readable for each event while the driver is parked, and for none
/// while it polls.
#[test]
fn the_descriptor_says_nothing_while_the_driver_is_awake_and_everything_while_it_rests() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let b = AsyncChannel::new(b, &reactor).unwrap();
    let task = Task::new();
    // The first use makes the descriptor readable.
    is_readable(&reactor, DEADLINE);
    rest(&reactor);
    assert!(task.poll(&b).is_pending() && !is_readable(&reactor, Duration::ZERO));

    // The driver is parked.
    a.send(b"one").unwrap();
    assert!(is_readable(&reactor, DEADLINE));
    assert_eq!((reactor.rest().unwrap(), task.wakes()), (1, 1));
    assert!(matches!(task.poll(&b), Poll::Ready(message) if message.bytes() == b"one"));
    assert!(task.poll(&b).is_pending());

    // The driver polls, and finds the message without a wake-up.
    while reactor.look().unwrap() > 0 {}
    rest(&reactor);
    assert_eq!(reactor.look().unwrap(), 0);
    a.send(b"two").unwrap();
    assert!(!is_readable(&reactor, Duration::ZERO));
    assert_eq!((reactor.look().unwrap(), task.wakes()), (1, 2));
    assert!(matches!(task.poll(&b), Poll::Ready(message) if message.bytes() == b"two"));
    assert!(task.poll(&b).is_pending());

    // `rest` finds an earlier message; a later message makes the descriptor readable.
    a.send(b"three").unwrap();
    assert_eq!((reactor.rest().unwrap(), task.wakes()), (1, 3));
    assert!(matches!(task.poll(&b), Poll::Ready(message) if message.bytes() == b"three"));
    rest(&reactor);
    assert!(task.poll(&b).is_pending() && !is_readable(&reactor, Duration::ZERO));
    a.send(b"four").unwrap();
    assert!(is_readable(&reactor, DEADLINE));
}

/// Shows that `turn` can run a reactor after polling by a driver.
#[test]
fn a_driver_that_goes_leaves_a_reactor_that_can_be_turned() {
    let reactor = Reactor::new().unwrap();
    let (a, b) = Channel::pair().unwrap();
    let b = AsyncChannel::new(b, &reactor).unwrap();
    let task = Task::new();
    assert!(task.poll(&b).is_pending());
    reactor.look().unwrap();
    while reactor.turn().unwrap() > 0 {}
    a.send(b"one").unwrap();
    assert!(is_readable(&reactor, DEADLINE));
    assert_eq!((reactor.turn().unwrap(), task.wakes()), (1, 1));
}

/// Shows that no message of another process is missed, however long the driver polls before it parks. Some messages
/// arrive while the driver polls, and some while it sleeps.
#[test]
fn nothing_of_another_process_is_missed_however_long_the_driver_looks() {
    let (actor, channel) = spawn("echo");
    let reactor = Reactor::new().unwrap();
    let channel = AsyncChannel::new(channel, &reactor).unwrap();
    let task = Task::new();
    for n in 0..3000u32 {
        channel.get_ref().send(&n.to_le_bytes()).unwrap();
        let mut looks = n % 40;
        let message = loop {
            // A task that has received many times in a row is woken at once, to poll again after other tasks.
            let wakes = task.wakes();
            if let Poll::Ready(message) = task.poll(&channel) {
                break message;
            }
            while looks > 0 && task.wakes() == wakes {
                looks -= 1;
                reactor.look().unwrap();
            }
            while task.wakes() == wakes {
                if reactor.rest().unwrap() == 0 && task.wakes() == wakes {
                    assert!(is_readable(&reactor, DEADLINE), "a wake-up was lost");
                }
            }
        };
        assert_eq!(message.bytes(), n.to_le_bytes());
    }
    drop(channel);
    finish(actor);
}
