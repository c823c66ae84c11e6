//! Tests under the model checker of the way from a ring to a sleeping set. The tests use the shipped ring, words and
//! notification area, and model the waiting thread. [`harness`](crate::ring::tests::harness) describes the checker.

mod without_bitmap;

use std::sync::Arc;

use loom::thread;

use crate::lane::waiter;
use crate::ring::ready_bitmap::{self, Collector, ON_SOCKET, ON_WORD, Words};
use crate::ring::tests::harness::{
    Fence, Futex, SharedTable, Tracked32, Tracked64, check_within, memory, send, try_receive, word32, word64,
};
use crate::ring::{Consumer, Memory, Producer, announce, take_sleeper};

const NUMBER: u32 = 7;

/// The model's notification area: the words of the area that a member with the id [`NUMBER`] needs.
struct Bitmap {
    words: Vec<Tracked64>,
    sleeping: Tracked32,
    posted: Tracked32,
    known: Tracked32,
}

impl Words for Bitmap {
    type Word32 = Tracked32;
    type Word64 = Tracked64;

    fn word(&self, index: usize) -> &Tracked64 {
        match index {
            // The four words of the top level, the first of the middle level, and the first leaf.
            0..=4 => &self.words[index],
            260 => &self.words[5],
            _ => panic!("word {index} is nobody's"),
        }
    }

    fn sleeping(&self) -> &Tracked32 {
        &self.sleeping
    }

    fn posted(&self) -> &Tracked32 {
        &self.posted
    }

    fn known(&self) -> &Tracked32 {
        &self.known
    }

    fn full_barrier() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }

    fn sleep_barrier() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }

    fn known_barrier() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
}

/// Runs a model in which a peer sends two messages and notifies a member of a wait set. The waiting thread looks at the
/// member, sleeps if there is nothing, and receives all messages. `look_again` says whether the thread checks the ring
/// after it has armed the member, and the notification area after it has written that it sleeps. `false` is a
/// deliberate error.
fn a_member_is_heard(look_again: [bool; 2]) {
    const MESSAGES: u64 = 2;
    check_within(2, move || {
        let memory = memory::<Fence>(8);
        let bitmap = Arc::new(Bitmap {
            words: (0..6).map(|_| word64()).collect(),
            sleeping: word32(),
            posted: word32(),
            known: word32(),
        });
        let futex = Arc::new(Futex::default());
        let peer = {
            let (memory, bitmap, futex) = (memory.clone(), bitmap.clone(), futex.clone());
            thread::spawn(move || {
                let mut producer = Producer::new(memory);
                for message in 0..MESSAGES {
                    assert_eq!(send(&mut producer, message), Ok(true));
                    let how = take_sleeper(producer.memory().sleeping());
                    if how != 0 {
                        assert_eq!(how, waiter::on_set(NUMBER, false));
                        let member = ready_bitmap::MemberId::new(NUMBER).unwrap();
                        if ready_bitmap::notify(&bitmap, member) != 0 {
                            futex.wake();
                        }
                    }
                }
            })
        };
        let mut consumer = Consumer::new(memory, u64::MAX);
        let mut collector = Collector::new(bitmap.clone());
        let mut received = 0;
        let mut queued = true;
        loop {
            if std::mem::take(&mut queued) {
                while try_receive(&mut consumer).is_some() {
                    received += 1;
                }
                if received == MESSAGES {
                    break;
                }
                announce::<SharedTable<Fence>>(consumer.memory().sleeping(), waiter::on_set(NUMBER, false));
                if look_again[0] && !consumer.is_empty() {
                    announce::<SharedTable<Fence>>(consumer.memory().sleeping(), 0);
                    queued = true;
                    continue;
                }
            }
            collector.collect(9, |_| queued = true);
            if queued {
                continue;
            }
            announce::<SharedTable<Fence>>(bitmap.sleeping(), 2);
            if !look_again[1] || collector.is_empty() {
                futex.wait(bitmap.sleeping(), 2);
            }
        }
        peer.join().unwrap();
    });
}

#[test]
fn every_message_is_heard() {
    a_member_is_heard([true, true]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_another_look_at_the_ring_one_is_not() {
    a_member_is_heard([false, true]);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_another_look_at_the_bitmap_one_is_not() {
    a_member_is_heard([true, false]);
}

/// A model of a wait set with a driver: the state that the driver shares with the threads that queue members.
#[derive(Default)]
struct Driven {
    polling: Awake,
    /// The number of members in the queue of the wait set, and whether its wake fd is readable.
    ready: loom::sync::Mutex<(u32, bool)>,
}

struct Awake(loom::sync::atomic::AtomicBool);

impl Default for Awake {
    fn default() -> Self {
        Self(loom::sync::atomic::AtomicBool::new(true))
    }
}

impl Driven {
    /// Models [`SharedSet::push`](crate::wait_set::SharedSet::push): counts one more member in the queue, and wakes the
    /// driver if the driver is not polling.
    fn push(&self, futex: &Futex) {
        let mut ready = self.ready.lock().unwrap();
        ready.0 += 1;
        if !self.polling.0.load(loom::sync::atomic::Ordering::SeqCst) && !std::mem::replace(&mut ready.1, true) {
            drop(ready);
            futex.wake();
        }
    }

    fn take(&self) -> u32 {
        std::mem::take(&mut self.ready.lock().unwrap().0)
    }
}

/// Runs a model in which a thread queues members while the driver of the wait set polls and parks: see
/// [`driven`](crate::wait_set::shared::driven). Checks that the driver finds all members. If `says_first`, the driver
/// records the end of its polling before its last look. `false` is a deliberate error.
fn a_driver_finds_all(says_first: bool) {
    use loom::sync::atomic::Ordering::SeqCst;
    const MEMBERS: u32 = 2;
    check_within(3, move || {
        let set = Arc::new(Driven::default());
        let futex = Arc::new(Futex::default());
        let other = {
            let (set, futex) = (set.clone(), futex.clone());
            thread::spawn(move || (0..MEMBERS).for_each(|_| set.push(&futex)))
        };
        let mut found = 0;
        while found < MEMBERS {
            if says_first {
                set.polling.0.store(false, SeqCst);
            }
            let now = set.take();
            if now > 0 {
                found += now;
                set.polling.0.store(true, SeqCst);
                continue;
            }
            if !says_first {
                set.polling.0.store(false, SeqCst);
            }
            // Makes the wake fd unreadable, if there is still nothing.
            let mut ready = set.ready.lock().unwrap();
            if says_first && ready.0 > 0 {
                continue;
            }
            ready.1 = false;
            drop(ready);
            futex.wait_while(|| !set.ready.lock().unwrap().1);
        }
        other.join().unwrap();
    });
}

#[test]
fn what_comes_while_a_driver_is_awake_is_found() {
    a_driver_finds_all(true);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_driver_that_looks_before_it_says_that_it_rests_misses_some() {
    a_driver_finds_all(false);
}

/// The step that the model leaves out as a deliberate error, to show that the checker then finds a sleeping thread.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Broken {
    Nothing,
    /// The model leaves out this step, as a deliberate error: a thread that has sent a packet checks whether a thread
    /// of the peer sleeps on the sleep word of the notification area.
    Post,
    /// The model leaves out this step, as a deliberate error: a thread that slept on the sleep word of the notification
    /// area writes that it no longer sleeps there.
    Leave,
    /// The model leaves out this step, as a deliberate error: a thread that overwrites the sleep word of the
    /// notification area wakes the thread that sleeps on the word.
    Take,
}

fn new_bitmap() -> Arc<Bitmap> {
    let words = (0..6).map(|_| word64()).collect();
    Arc::new(Bitmap { words, sleeping: word32(), posted: word32(), known: word32() })
}

/// Runs a model in which one thread of a peer notifies a member while another thread of the peer sends a packet. Checks
/// that a thread that sleeps on the sleep word of the notification area notices both. `broken` is the step to leave out
/// as a deliberate error, and then the check fails; [`Broken::Nothing`] leaves out none.
fn what_is_notified_and_posted_is_heard(broken: Broken) {
    check_within(2, move || {
        let bitmap = new_bitmap();
        let futex = Arc::new(Futex::default());
        let packets = Arc::new(loom::sync::atomic::AtomicU32::new(0));
        let notifier = {
            let (bitmap, futex) = (bitmap.clone(), futex.clone());
            thread::spawn(move || match ready_bitmap::notify(&bitmap, ready_bitmap::MemberId::new(NUMBER).unwrap()) {
                0 => {}
                how => {
                    assert_eq!(how, ON_WORD);
                    futex.wake();
                }
            })
        };
        let sender = {
            let (bitmap, futex, packets) = (bitmap.clone(), futex.clone(), packets.clone());
            thread::spawn(move || {
                packets.fetch_add(1, loom::sync::atomic::Ordering::AcqRel);
                if broken == Broken::Post {
                    crate::ring::Word::swap(bitmap.posted(), 1, std::sync::atomic::Ordering::SeqCst);
                } else if ready_bitmap::post(&bitmap) {
                    futex.wake();
                }
            })
        };
        let mut collector = Collector::new(bitmap.clone());
        let (mut notified, mut received) = (false, false);
        while !(notified && received) {
            ready_bitmap::announce(&bitmap, ON_WORD);
            if collector.is_empty() && !ready_bitmap::has_post(&bitmap) {
                futex.wait(bitmap.sleeping(), ON_WORD);
            }
            received |= ready_bitmap::take_post(&bitmap) && packets.load(loom::sync::atomic::Ordering::Acquire) > 0;
            ready_bitmap::leave(&bitmap);
            collector.collect(9, |_| notified = true);
        }
        notifier.join().unwrap();
        sender.join().unwrap();
    });
}

#[test]
fn who_sleeps_on_the_word_hears_rings_and_packets() {
    what_is_notified_and_posted_is_heard(Broken::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_a_look_at_the_word_a_packet_is_not_heard() {
    what_is_notified_and_posted_is_heard(Broken::Post);
}

/// A model of two wait sets with one member each on one link. The first set sleeps on the sleep word of the
/// notification area while the second set does not sleep, and otherwise on the socket. The second set always sleeps on
/// the socket.
struct Two {
    bitmap: Arc<Bitmap>,
    collector: loom::sync::Mutex<Collector<Arc<Bitmap>>>,
    /// The number of threads that sleep or are about to sleep, for each of the two wait sets.
    asleep: [loom::sync::Mutex<u32>; 2],
    /// The futex that stands for the sleep word of the notification area, on which the first wait set sleeps.
    on_word: Futex,
    /// The futexes that stand for the link's socket: one for each of the two wait sets, on which the set sleeps.
    on_socket: [Futex; 2],
    found: [loom::sync::Mutex<bool>; 2],
    packet: loom::sync::Mutex<bool>,
    broken: Broken,
}

const MEMBERS: [u32; 2] = [NUMBER, NUMBER + 1];

impl Two {
    fn new(broken: Broken) -> Self {
        let bitmap = new_bitmap();
        Self {
            collector: loom::sync::Mutex::new(Collector::new(bitmap.clone())),
            bitmap,
            asleep: Default::default(),
            on_word: Default::default(),
            on_socket: Default::default(),
            found: Default::default(),
            packet: Default::default(),
            broken,
        }
    }

    fn has_found(&self, set: usize) -> bool {
        *self.found[set].lock().unwrap()
    }

    fn has_notified(&self) -> bool {
        !self.collector.lock().unwrap().is_empty()
    }

    fn notify(&self, set: usize) {
        match ready_bitmap::notify(&self.bitmap, ready_bitmap::MemberId::new(MEMBERS[set]).unwrap()) {
            0 => {}
            ON_WORD => self.on_word.wake(),
            _ => {
                *self.packet.lock().unwrap() = true;
                self.on_socket.iter().for_each(Futex::wake);
            }
        }
    }

    /// Models `Link::arm`: records in the notification area how this process sleeps (`how`: on the area's word or on
    /// the socket).
    fn arm(&self, how: u32) {
        if ready_bitmap::announce(&self.bitmap, how) && self.broken != Broken::Take {
            self.on_word.wake();
        }
    }

    /// Models `Link::collect`: marks each notified member as found by its wait set, and wakes the set.
    fn collect(&self) {
        self.collector.lock().unwrap().collect(9, |member| {
            let set = MEMBERS.iter().position(|number| *number == member.number()).unwrap();
            *self.found[set].lock().unwrap() = true;
            self.on_socket[set].wake();
            if set == 0 {
                self.on_word.wake();
            }
        });
    }

    /// Models `Link::answer_notifications`: collects notified members. If a wait set sleeps, also records again that
    /// this process sleeps on the socket.
    fn answer(&self) {
        self.collect();
        if self.asleep.iter().any(|asleep| *asleep.lock().unwrap() > 0) {
            self.arm(ON_SOCKET);
            self.collect();
        }
    }

    fn wait(&self, set: usize) {
        while !self.has_found(set) {
            *self.asleep[set].lock().unwrap() += 1;
            if set == 0 && *self.asleep[1].lock().unwrap() == 0 {
                self.arm(ON_WORD);
                if !self.has_notified() {
                    let asleep = || {
                        crate::ring::Word::load(self.bitmap.sleeping(), std::sync::atomic::Ordering::SeqCst) == ON_WORD
                    };
                    self.on_word.wait_while(|| asleep() && !self.has_found(0));
                }
                *self.asleep[0].lock().unwrap() -= 1;
                if self.broken != Broken::Leave {
                    ready_bitmap::leave(&self.bitmap);
                    self.answer();
                } else {
                    self.collect();
                }
                continue;
            }
            self.arm(ON_SOCKET);
            if !self.has_notified() {
                let packet = || *self.packet.lock().unwrap();
                self.on_socket[set].wait_while(|| !packet() && !self.has_found(set));
            }
            *self.asleep[set].lock().unwrap() -= 1;
            if std::mem::take(&mut *self.packet.lock().unwrap()) {
                self.answer();
            } else {
                self.collect();
            }
        }
    }
}

/// Runs a model in which a peer notifies a member of each of two wait sets, in the order `order`. Checks that the
/// threads of both sets find their member. `preemptions` is the most forced thread switches in one interleaving.
/// `broken` is the step to leave out as a deliberate error, and then the check fails; [`Broken::Nothing`] leaves out
/// none.
fn both_sets_hear(order: [usize; 2], preemptions: usize, broken: Broken) {
    check_within(preemptions, move || {
        let two = Arc::new(Two::new(broken));
        let notifier = {
            let two = two.clone();
            thread::spawn(move || order.into_iter().for_each(|set| two.notify(set)))
        };
        let second = {
            let two = two.clone();
            thread::spawn(move || two.wait(1))
        };
        two.wait(0);
        second.join().unwrap();
        notifier.join().unwrap();
    });
}

#[test]
fn a_set_on_the_word_and_one_on_the_socket_both_hear() {
    both_sets_hear([0, 1], 2, Broken::Nothing);
    both_sets_hear([1, 0], 1, Broken::Nothing);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_does_not_leave_the_word_leaves_another_asleep() {
    both_sets_hear([0, 1], 2, Broken::Leave);
}

#[test]
#[should_panic(expected = "deadlock")]
fn who_takes_the_word_in_silence_leaves_its_sleeper_asleep() {
    both_sets_hear([1, 0], 1, Broken::Take);
}
