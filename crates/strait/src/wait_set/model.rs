//! From a ring to a set that sleeps, under the model checker: the shipped ring, words and board, and what a thread that
//! waits does with them. See [`harness`](crate::ring::harness) for what the checker does.

use std::sync::Arc;

use loom::thread;

use crate::board::{self, Collector, Words};
use crate::ring::harness::{
    Fence, Futex, Shared, Tracked32, Tracked64, check_within, memory, send, try_receive, word32, word64,
};
use crate::ring::{Consumer, Memory, Producer, announce, take_sleeper};
use crate::wait;

const NUMBER: u32 = 7;

/// The words of a board that the member with this number needs.
struct Board {
    words: Vec<Tracked64>,
    sleeping: Tracked32,
}

impl Words for Arc<Board> {
    type Word32 = Tracked32;
    type Word64 = Tracked64;

    fn word(&self, index: usize) -> &Tracked64 {
        match index {
            // Those at the top, the first in the middle, and the first leaf.
            0..=4 => &self.words[index],
            260 => &self.words[5],
            _ => panic!("word {index} is nobody's"),
        }
    }

    fn sleeping(&self) -> &Tracked32 {
        &self.sleeping
    }

    fn full_barrier() {
        loom::sync::atomic::fence(loom::sync::atomic::Ordering::SeqCst);
    }
}

/// A peer sends, and rings; a set looks at the member, sleeps if there is nothing, and gets all of it.
fn a_member_is_heard(look_again: [bool; 2]) {
    const MESSAGES: u64 = 2;
    check_within(2, move || {
        let memory = memory::<Fence>(8);
        let board = Arc::new(Board { words: (0..6).map(|_| word64()).collect(), sleeping: word32() });
        let futex = Arc::new(Futex::default());
        let peer = {
            let (memory, board, futex) = (memory.clone(), board.clone(), futex.clone());
            thread::spawn(move || {
                let mut producer = Producer::new(memory);
                for message in 0..MESSAGES {
                    assert_eq!(send(&mut producer, message), Ok(true));
                    let how = take_sleeper(producer.memory().sleeping());
                    if how != 0 {
                        assert_eq!(how, wait::on_set(NUMBER, false));
                        let member = board::Member::new(NUMBER).unwrap();
                        if board::ring(&board, member) != 0 {
                            futex.wake();
                        }
                    }
                }
            })
        };
        let mut consumer = Consumer::new(memory, u64::MAX);
        let mut collector = Collector::new(board.clone());
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
                announce::<Shared<Fence>>(consumer.memory().sleeping(), wait::on_set(NUMBER, false));
                if look_again[0] && !consumer.is_empty() {
                    announce::<Shared<Fence>>(consumer.memory().sleeping(), 0);
                    queued = true;
                    continue;
                }
            }
            collector.collect(9, |_| queued = true);
            if queued {
                continue;
            }
            announce::<Shared<Fence>>(board.sleeping(), 2);
            if !look_again[1] || collector.is_empty() {
                futex.wait(board.sleeping(), 2);
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
fn without_another_look_at_the_board_one_is_not() {
    a_member_is_heard([true, false]);
}

/// What the threads of a process have of a set with a driver.
#[derive(Default)]
struct Driven {
    awake: Awake,
    /// What is in the queue, and whether the eventfd is readable.
    ready: loom::sync::Mutex<(u32, bool)>,
}

struct Awake(loom::sync::atomic::AtomicBool);

impl Default for Awake {
    fn default() -> Self {
        Self(loom::sync::atomic::AtomicBool::new(true))
    }
}

impl Driven {
    /// [`Shared::push`](super::Shared::push).
    fn push(&self, futex: &Futex) {
        let mut ready = self.ready.lock().unwrap();
        ready.0 += 1;
        if !self.awake.0.load(loom::sync::atomic::Ordering::SeqCst) && !std::mem::replace(&mut ready.1, true) {
            drop(ready);
            futex.wake();
        }
    }

    fn take(&self) -> u32 {
        std::mem::take(&mut self.ready.lock().unwrap().0)
    }
}

/// Another thread puts members into the queue while the driver looks, and rests: see [`driven`](super::shared::driven).
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
                set.awake.0.store(false, SeqCst);
            }
            let now = set.take();
            if now > 0 {
                found += now;
                set.awake.0.store(true, SeqCst);
                continue;
            }
            if !says_first {
                set.awake.0.store(false, SeqCst);
            }
            // Makes the eventfd unreadable, if there is nothing still.
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
