//! The model of the leader and the followers under the model checker. The shipped code of
//! [`leader`](crate::wake::leader) runs on locks and condition variables that the checker knows; see
//! [`harness`](crate::ring::tests::harness).
//!
//! The socket of a link is modelled as a queue on which the leader sleeps. No thread in the model wakes by itself, so a
//! lost wake-up shows as a deadlock.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use crate::ring::tests::harness::check_within;
use leader::{Doing, Leader, Leading};
use platform::{Condvar, Mutex, MutexGuard, unpoisoned};

#[path = "../leader.rs"]
#[allow(clippy::duplicate_mod, dead_code, reason = "it is compiled once more, on another ground")]
mod leader;

/// The locks that the model uses in place of those in [`crate::wake`].
mod platform {
    use std::time::Duration;

    pub(super) use loom::sync::{Mutex, MutexGuard};

    /// The model checker's condition variable, as [`crate::wake::condvar::Condvar`]. No time passes in a model.
    #[derive(Debug, Default)]
    pub(super) struct Condvar(loom::sync::Condvar);

    impl Condvar {
        pub(super) fn wait<'a, T>(
            &self,
            _mutex: &'a Mutex<T>,
            guard: MutexGuard<'a, T>,
            _limit: Option<Duration>,
        ) -> MutexGuard<'a, T> {
            self.0.wait(guard).unwrap()
        }

        pub(super) fn notify_all(&self) {
            self.0.notify_all();
        }
    }

    pub(super) fn unpoisoned<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().unwrap()
    }
}

/// Limit of involuntary thread switches in one execution of a model.
const PREEMPTIONS: usize = 3;

/// Lets the leader sleep in `sleep`. If the checker finds a deadlock meanwhile, the thread unwinds where it can take no
/// lock, so it must not drop `leading`.
fn asleep<'a, T>(leading: Leading<'a, T>, sleep: impl FnOnce()) -> Leading<'a, T> {
    let leading = ManuallyDrop::new(leading);
    sleep();
    ManuallyDrop::into_inner(leading)
}

/// A packet, and at the same time the number of the thread that waits for the packet.
type Packet = usize;

/// A link whose socket and inbox are modelled. `WAITING` is the number of threads that wait for a packet.
#[derive(Debug)]
struct Link<const WAITING: usize> {
    leader: Leader<()>,
    /// The packets in the socket.
    unread: Mutex<Vec<Packet>>,
    /// The condition variable on which the leader sleeps until it can receive or is interrupted.
    arrivals: Condvar,
    /// Whether the packet for each thread was received.
    received: [AtomicBool; WAITING],
    /// Whether the wait of thread 1 is interrupted.
    interrupted: AtomicBool,
    /// Whether a thread leads, as the threads themselves know.
    is_led: AtomicBool,
}

impl<const WAITING: usize> Link<WAITING> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            leader: Leader::default(),
            unread: Mutex::default(),
            arrivals: Condvar::default(),
            received: std::array::from_fn(|_| AtomicBool::new(false)),
            interrupted: AtomicBool::new(false),
            is_led: AtomicBool::new(false),
        })
    }

    fn send(&self, packet: Packet) {
        unpoisoned(&self.unread).push(packet);
        self.arrivals.notify_all();
    }

    fn has_received(&self, packet: Packet) -> bool {
        self.received[packet].load(Ordering::SeqCst)
    }

    /// Receives one packet, if any: stores the packet, and then removes it from the socket. Returns whether there was
    /// one. Only the leader calls this, so it checks that there is no other leader.
    fn receive(&self) -> bool {
        assert!(!self.is_led.swap(true, Ordering::SeqCst), "two leaders");
        let packet = unpoisoned(&self.unread).first().copied();
        if let Some(packet) = packet {
            self.received[packet].store(true, Ordering::SeqCst);
            unpoisoned(&self.unread).retain(|other| *other != packet);
        }
        assert!(self.is_led.swap(false, Ordering::SeqCst), "two leaders");
        packet.is_some()
    }

    /// Waits until `done` returns `true`, as [`crate::link::Link::park`] does. A leader receives one packet, and leaves
    /// the others in the socket. An interruption wakes the leader if the leader is `interruptible`.
    fn park(&self, interruptible: bool, done: impl Fn() -> bool) {
        let mut turn = self.leader.lock();
        while !done() {
            turn = match self.leader.lead(turn, Doing::Sleeping) {
                Ok(leading) => {
                    let leading = asleep(leading, || {
                        let mut unread = unpoisoned(&self.unread);
                        while unread.is_empty() && !(interruptible && self.interrupted.load(Ordering::SeqCst)) {
                            unread = self.arrivals.wait(&self.unread, unread, None);
                        }
                    });
                    leading.handle();
                    self.receive();
                    drop(leading);
                    self.leader.lock()
                }
                Err(turn) => self.leader.follow(turn, None),
            };
        }
    }

    /// Returns whether `packet` is there, as [`crate::link::Link::fetch`] does. But a follower sleeps without a limit.
    fn fetch(&self, packet: Packet) -> bool {
        while !self.has_received(packet) {
            match self.leader.lead(self.leader.lock(), Doing::Handling) {
                Ok(_leading) => {
                    while !self.has_received(packet) && self.receive() {}
                    return self.has_received(packet);
                }
                Err(turn) if turn.sleeps() && unpoisoned(&self.unread).is_empty() => {
                    drop(turn);
                    return self.has_received(packet);
                }
                Err(turn) => drop(self.leader.follow(turn, None)),
            }
        }
        true
    }

    /// Interrupts the wait of thread 1, as [`crate::wake::interrupt::Interrupts::raise`] does.
    fn interrupt(&self) {
        self.interrupted.store(true, Ordering::SeqCst);
        drop(unpoisoned(&self.unread));
        self.arrivals.notify_all();
        self.leader.wake_followers();
    }

    /// Starts a thread that waits for `packet`.
    fn waits_for(self: &Arc<Self>, packet: Packet) -> thread::JoinHandle<()> {
        let link = self.clone();
        thread::spawn(move || link.park(false, || link.has_received(packet)))
    }
}

/// Shows that each of several threads gets its packet, whichever thread leads, and that one thread leads at a time. The
/// leader stops leading with its own packet received and the packet of a follower still in the socket, or not yet sent.
#[test]
fn every_thread_gets_its_packet() {
    check_within(PREEMPTIONS, || {
        let link = Link::<2>::new();
        let waiting = [0, 1].map(|packet| link.waits_for(packet));
        link.send(0);
        link.send(1);
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Shows that all followers check when the leader stops leading: it may have received the packet of each of them.
#[test]
fn every_follower_gets_its_packet() {
    check_within(PREEMPTIONS - 1, || {
        let link = Link::<3>::new();
        let waiting = [0, 1, 2].map(|packet| link.waits_for(packet));
        (0..3).for_each(|packet| link.send(packet));
        waiting.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Shows that an interruption ends the wait of a thread, whether it leads or follows, although no packet comes; and
/// that the other thread leads afterwards.
#[test]
fn an_interruption_is_not_missed() {
    check_within(PREEMPTIONS, || {
        let link = Link::<1>::new();
        let waits = link.waits_for(0);
        let interrupted = {
            let link = link.clone();
            thread::spawn(move || link.park(true, || link.interrupted.load(Ordering::SeqCst)))
        };
        link.interrupt();
        interrupted.join().unwrap();
        link.send(0);
        waits.join().unwrap();
    });
}

/// Shows that a thread that does not wait finds the packet that was sent before, although another thread leads, and
/// does not sleep for ever if no packet was sent.
#[test]
fn a_look_finds_what_was_sent_before() {
    check_within(PREEMPTIONS, || {
        let link = Link::<3>::new();
        let waits = link.waits_for(0);
        assert!(!link.fetch(2));
        link.send(1);
        assert!(link.fetch(1));
        link.send(0);
        waits.join().unwrap();
    });
}

/// Shows why a follower that does not want to wait sleeps for a limited time: a process with a copy of the socket may
/// take the packet that the follower has seen there. Then the leader sleeps on, and the follower with it.
#[test]
#[should_panic(expected = "deadlock")]
fn a_look_hangs_if_another_process_takes_the_packet() {
    check_within(PREEMPTIONS, || {
        let link = Link::<2>::new();
        let waits = link.waits_for(0);
        link.send(1);
        let thief = {
            let link = link.clone();
            thread::spawn(move || unpoisoned(&link.unread).clear())
        };
        link.fetch(1);
        link.send(0);
        [waits, thief].into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// Shows that each of two threads gets one of two items that the leader hands out under the lock, all at once.
#[test]
fn what_the_leader_shares_is_for_all() {
    check_within(PREEMPTIONS, || {
        let place = Arc::new((Leader::<usize>::default(), Mutex::new(0), Condvar::default()));
        let takes = [(); 2].map(|()| {
            let place = place.clone();
            thread::spawn(move || {
                let (leader, coming, arrivals) = &*place;
                let mut turn = leader.lock();
                while turn.shared == 0 {
                    turn = match leader.lead(turn, Doing::Sleeping) {
                        Ok(leading) => {
                            let leading = asleep(leading, || {
                                let mut new = unpoisoned(coming);
                                while *new == 0 {
                                    new = arrivals.wait(coming, new, None);
                                }
                            });
                            leader.lock().shared += std::mem::take(&mut *unpoisoned(coming));
                            drop(leading);
                            leader.lock()
                        }
                        Err(turn) => leader.follow(turn, None),
                    };
                }
                turn.shared -= 1;
            })
        });
        let (leader, coming, arrivals) = &*place;
        for _ in 0..2 {
            *unpoisoned(coming) += 1;
            arrivals.notify_all();
        }
        takes.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(leader.lock().shared, 0);
    });
}
