//! Tests of a wait set asleep in a futex or in epoll, and of every event that can end the sleep.

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::{Actor, DEADLINE, SOON, Watched, finish, parent, spawn, wait_until};
use strait::wait::{Conditions, Event, Interest, Mode, Traps, WaitSet};
use strait::{Channel, Deadline, Error, Options, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("echo", |_| echo()),
        ("hello", |_| {
            drop(parent().send(b"hello").map(|()| {
                loop {
                    thread::park()
                }
            }))
        }),
        ("talker", |_| talk()),
        ("giver", |_| give()),
    ]);
}

/// Sends back each message on the channel to the parent, and on each channel that arrives over a channel.
fn echo() {
    fn back(channel: &Channel) {
        while let Ok(mut message) = channel.recv() {
            match message.take_handles().unwrap().pop() {
                Some(end) => {
                    let end = end.into_channel().unwrap();
                    thread::spawn(move || back(&end));
                }
                None => channel.send(message.bytes()).unwrap(),
            }
        }
    }
    back(&parent());
}

/// Waits for a message, and then sends a message every 5 ms until the channel is closed.
fn talk() {
    // The ring is large enough never to grow; growing would send packets, which also wake the peer.
    let parent = Options::new().ring(1 << 20).from_parent().unwrap();
    parent.recv().unwrap();
    while !matches!(parent.try_send(b"x"), Err(failed) if failed.error != Error::WouldBlock) {
        thread::sleep(Duration::from_millis(5));
    }
}

const GIFTS: u64 = 20_000;

/// Sends [`GIFTS`] files over one channel, and one message over another channel before and one after.
fn give() {
    let (parent, file) = (parent(), common::file_with(b"x"));
    let other = parent.recv().unwrap().take_handles().unwrap().pop().unwrap().into_channel().unwrap();
    other.send(b"x").unwrap();
    parent.recv().unwrap();
    for _ in 0..GIFTS {
        parent.send(Outgoing::new(b"").handle(file.try_clone().unwrap())).unwrap();
    }
    other.send(b"x").unwrap();
    let _ = parent.recv();
}

/// Returns an echoing process, and two channels.
fn two_channels() -> (Actor, [Channel; 2]) {
    let (actor, first) = spawn("echo");
    let (second, theirs) = Channel::pair().unwrap();
    first.send(Outgoing::new(b"").handle(theirs)).unwrap();
    (actor, [first, second])
}

/// The id of a thread in `wait`, or 0; other threads use the id to see whether the thread sleeps.
struct Sleeper(AtomicI32);

impl Sleeper {
    fn new() -> Self {
        Self(0.into())
    }

    fn wait(&self, set: &WaitSet) -> Vec<u64> {
        self.0.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::SeqCst);
        let mut events = Vec::new();
        assert_ne!(set.wait(&mut events, DEADLINE).unwrap(), 0, "the set was never woken");
        self.0.store(0, Ordering::SeqCst);
        events.iter().map(Event::key).collect()
    }

    /// Waits until the thread sleeps in the kernel.
    fn until_asleep(&self) {
        let asleep = || {
            let tid = self.0.load(Ordering::SeqCst);
            let stat = std::fs::read_to_string(format!("/proc/self/task/{tid}/stat")).unwrap_or_default();
            stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('S'))
        };
        let begin = std::time::Instant::now();
        while !asleep() {
            assert!(begin.elapsed() < DEADLINE, "the thread never slept");
            thread::yield_now();
        }
    }
}

/// Shows that each kind of event wakes a thread asleep in a wait set.
#[test]
fn everything_wakes_a_set() {
    let (actor, [first, second]) = two_channels();
    let (near, here) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    for (key, channel) in [(1, &first), (2, &second), (3, &here)] {
        set.add(channel, key, Interest::Readable, Mode::Level).unwrap();
    }
    let sleeper = Sleeper::new();
    let mut polled = false;
    for round in 0..200 {
        thread::scope(|scope| {
            let waiting = scope.spawn(|| sleeper.wait(&set));
            sleeper.until_asleep();
            let (what, kept) = match round % 5 {
                0 => (first.send(b"x").map(|()| 1).unwrap(), None),
                1 => (second.send(b"x").map(|()| 2).unwrap(), None),
                2 => (near.send(b"x").map(|()| 3).unwrap(), None),
                // An already readable channel becomes a member.
                3 => {
                    let (a, b) = Channel::pair().unwrap();
                    a.send(b"x").unwrap();
                    set.add(&b, 4, Interest::Readable, Mode::Level).unwrap();
                    (4, Some((a, b)))
                }
                // The peer of a member closes its end.
                _ => {
                    let (a, b) = Channel::pair().unwrap();
                    set.add(&b, 5, Interest::Readable, Mode::Level).unwrap();
                    drop(a);
                    (5, Some(Channel::pair().map(|(a, _)| (a, b)).unwrap()))
                }
            };
            assert_eq!(waiting.join().unwrap(), [what], "in round {round}");
            match what {
                1 => drop(first.try_recv().unwrap()),
                2 => drop(second.try_recv().unwrap()),
                3 => drop(here.try_recv().unwrap()),
                _ => drop(kept),
            }
        });
        // From here on the set has a descriptor that a program may poll, so the set sleeps in epoll and never in a
        // futex.
        if round == 150 {
            polled = set.as_fd().try_clone_to_owned().is_ok();
        }
    }
    assert!(polled);
    drop((first, second));
    finish(actor);
}

/// Shows that asking for the descriptor of a wait set while a thread sleeps in the set loses no wake-up.
#[test]
fn a_set_that_sleeps_is_asked_for_its_descriptor() {
    for _ in 0..20 {
        let (actor, [first, second]) = two_channels();
        let set = WaitSet::new().unwrap();
        set.add(&first, 1, Interest::Readable, Mode::Level).unwrap();
        let sleeper = Sleeper::new();
        for round in 0..4 {
            thread::scope(|scope| {
                let waiting = scope.spawn(|| sleeper.wait(&set));
                sleeper.until_asleep();
                if round == 2 {
                    set.as_fd();
                    sleeper.until_asleep();
                }
                first.send(b"x").unwrap();
                assert_eq!(waiting.join().unwrap(), [1]);
                first.try_recv().unwrap();
            });
        }
        drop((first, second));
        finish(actor);
    }
}

/// Shows that no wake-up is lost between several threads waiting on one link: one thread in one wait set, two threads
/// in another, and one thread in a receive. Which threads sleep, and how, changes all the time.
#[test]
fn sets_on_one_link_sleep_and_wake_beside_each_other() {
    const ROUNDS: usize = 3000;
    let (actor, [first, second]) = two_channels();
    let (third, theirs) = Channel::pair().unwrap();
    first.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let (fourth, theirs) = Channel::pair().unwrap();
    first.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let sets = [WaitSet::new().unwrap(), WaitSet::new().unwrap()];
    for (set, channel) in [(0, &first), (1, &second), (1, &third)] {
        sets[set].add(channel, 1, Interest::Readable, Mode::Level).unwrap();
    }
    thread::scope(|scope| {
        for (set, channel) in [(0, &first), (1, &second), (1, &third)] {
            let set = &sets[set];
            scope.spawn(move || {
                let mut events = Vec::new();
                for n in 0..ROUNDS {
                    // Pauses leave the other threads alone on the link at times.
                    if n % 64 == 0 {
                        thread::yield_now();
                    }
                    channel.send(&n.to_le_bytes()).unwrap();
                    loop {
                        match channel.try_recv() {
                            Ok(message) => break assert_eq!(message.bytes(), n.to_le_bytes()),
                            Err(Error::WouldBlock) => {
                                assert_ne!(set.wait(&mut events, DEADLINE).unwrap(), 0, "message {n} was lost");
                            }
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        scope.spawn(|| {
            for n in 0..ROUNDS {
                fourth.send(&n.to_le_bytes()).unwrap();
                assert_eq!(fourth.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
            }
        });
    });
    drop((first, second, third, fourth));
    finish(actor);
}

/// Shows that the death of a peer wakes a sleeping wait set although a dying peer sends nothing, and that messages sent
/// before can be received.
#[test]
fn a_peer_that_is_killed_wakes_a_set() {
    for _ in 0..10 {
        let (mut actor, channel) = spawn("hello");
        let set = WaitSet::new().unwrap();
        set.add(&channel, 1, Interest::Readable, Mode::Level).unwrap();
        let sleeper = Sleeper::new();
        assert_eq!(sleeper.wait(&set), [1]);
        assert_eq!(channel.try_recv().unwrap().bytes(), b"hello");
        thread::scope(|scope| {
            let waiting = scope.spawn(|| sleeper.wait(&set));
            sleeper.until_asleep();
            actor.kill();
            assert_eq!(waiting.join().unwrap(), [1]);
        });
        assert_eq!(channel.try_recv().unwrap_err(), Error::PeerClosed);
    }
}

/// Shows that the death of a peer wakes a sleeping wait set although another peer keeps waking the wait set, at short
/// intervals, with messages that meet no condition.
#[test]
fn a_peer_that_is_killed_while_another_rings_for_nothing_wakes_a_set() {
    let (_talker, talker) = spawn("talker");
    let (mut actor, mortal) = spawn("echo");
    let traps = Arc::new(Traps::new().unwrap());
    let (tell, told) = mpsc::channel();
    let arm = |channel: &Channel, conditions: Conditions| {
        let tell = tell.clone();
        traps.arm(channel, conditions, move |_| tell.send(()).unwrap()).unwrap();
    };
    // After sending a message, the peer knows how to wake a thread asleep in a futex.
    for channel in [&mortal, &talker] {
        arm(channel, Conditions::new().messages(2));
    }
    talker.send(b"talk").unwrap();
    for _ in 0..2 {
        mortal.send(b"x").unwrap();
    }
    while !traps.is_empty() {
        assert_ne!(traps.dispatch(DEADLINE).unwrap(), 0);
    }
    for channel in [&mortal, &talker] {
        told.try_recv().unwrap();
        arm(channel, Conditions::new().peer_closed());
    }
    let watched = Arc::new(Watched::new());
    let (waits, entered) = (Arc::clone(&traps), Arc::clone(&watched));
    // Not joined, so that a dispatch without return does not hang the test.
    thread::spawn(move || {
        entered.enter();
        waits.dispatch(Deadline::NEVER)
    });
    watched.wait_until_blocked();
    let before = watched.switches();
    wait_until("the thread has been woken for nothing", || watched.switches() > before + 10);
    actor.kill();
    told.recv_timeout(SOON).expect("the death of the peer was not reported");
}

/// Shows that packets for another thread do not count as idle wake-ups of a wait set woken by the packets.
#[test]
fn packets_for_another_thread_are_not_counted_as_wake_ups_for_nothing() {
    let (actor, gifts) = spawn("giver");
    let (word, theirs) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&word, 1, Interest::Readable, Mode::Level).unwrap();
    gifts.send(Outgoing::new(b"").handle(theirs)).unwrap();
    let sleeper = Sleeper::new();
    assert_eq!(sleeper.wait(&set), [1]);
    word.try_recv().unwrap();
    let idle = || gifts.peer_usage().unwrap().unwrap().idle_wake_ups();
    let before = idle();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| sleeper.wait(&set));
        sleeper.until_asleep();
        gifts.send(b"begin").unwrap();
        // The thread polls, because the wake-ups of a sleep might be counted too.
        let mut came = 0;
        while came < GIFTS {
            match gifts.try_recv() {
                Ok(mut gift) => came += gift.take_handles().unwrap().len() as u64,
                Err(error) => assert_eq!(error, Error::WouldBlock),
            }
        }
        assert_eq!(waiting.join().unwrap(), [1]);
    });
    let counted = idle() - before;
    assert!(counted < GIFTS / 100, "{counted} idle wake-ups were counted");
    drop((gifts, word));
    finish(actor);
}

/// Shows that a wait set is woken by an event that only a packet reports: an end in transit has arrived and sends a
/// message.
#[test]
fn an_end_that_arrives_wakes_a_set() {
    let (actor, [first, second]) = two_channels();
    let set = WaitSet::new().unwrap();
    set.add(&first, 1, Interest::Readable, Mode::Level).unwrap();
    let sleeper = Sleeper::new();
    for round in 0..100 {
        let (ours, theirs) = Channel::pair().unwrap();
        set.add(&ours, 2, Interest::Readable, Mode::Level).unwrap();
        thread::scope(|scope| {
            let waiting = scope.spawn(|| sleeper.wait(&set));
            sleeper.until_asleep();
            ours.send(b"to be sent back").unwrap();
            first.send(Outgoing::new(b"").handle(theirs)).unwrap();
            assert_eq!(waiting.join().unwrap(), [2], "in round {round}");
        });
        assert_eq!(ours.try_recv().unwrap().bytes(), b"to be sent back");
        first.send(b"x").unwrap();
        let mut events = Vec::new();
        set.remove(&ours).unwrap();
        assert_eq!(set.wait(&mut events, DEADLINE).unwrap(), 1);
        first.try_recv().unwrap();
        assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap(), 0);
    }
    wait_until("the set has one member left", || set.len() == 1);
    drop((first, second));
    finish(actor);
}
