//! The ring under a model checker: every order in which two sides can go, with weak memory.
//!
//! `loom` runs each test again for every interleaving (with at most [`PREEMPTIONS`] switches that no one asked for)
//! and every value that a load may return under the C11 memory model. A lost wake-up shows as a deadlock.
//!
//! The futex is modelled as the kernel has it: it compares the word and sleeps in one step.

use std::mem::MaybeUninit;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use super::table::{Barrier, Fence, InOperations, Table};
use super::{Consumer, Front, Header, Kind, Memory, Producer, announce, take_sleeper};

const PREEMPTIONS: usize = 3;

type Shared<B> = Arc<Table<AtomicU32, AtomicU64, B>>;

fn memory<B>(cells: usize) -> Shared<B> {
    Arc::new(Table::new(cells, || AtomicU32::new(0), || AtomicU64::new(0)))
}

fn check(test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(test);
}

/// The kernel's side of a futex.
#[derive(Default)]
struct Futex {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    fn wait(&self, word: &AtomicU32, expected: u32) {
        let mut lock = self.lock.lock().unwrap();
        while word.load(Ordering::SeqCst) == expected {
            lock = self.sleepers.wait(lock).unwrap();
        }
    }

    fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.sleepers.notify_one();
    }
}

fn send<M: Memory>(producer: &mut Producer<M>, value: u64) -> Result<bool, super::Ended> {
    match producer.stage(Header::new(Kind::Message, 8, 0)) {
        Ok(slot) => {
            producer.write(slot, 0, &value.to_le_bytes());
            producer.commit().map(|()| true)
        }
        Err(_) => Ok(false),
    }
}

fn try_receive<M: Memory>(consumer: &mut Consumer<M>) -> Option<u64> {
    match consumer.front().expect("never corrupt") {
        Front::Empty => None,
        Front::Record(record) => {
            assert_eq!(record.header.kind(), Kind::Message);
            let mut out = [MaybeUninit::uninit(); 8];
            let value = u64::from_le_bytes(consumer.read(record, 0, &mut out).try_into().unwrap());
            consumer.advance(record);
            Some(value)
        }
    }
}

/// What a receiver that blocks does, without the spinning.
fn receive<B: Barrier>(consumer: &mut Consumer<Shared<B>>, futex: &Futex) -> u64 {
    loop {
        if let Some(value) = try_receive(consumer) {
            return value;
        }
        announce::<Shared<B>>(consumer.memory().sleeping(), 1);
        if consumer.is_empty() {
            futex.wait(consumer.memory().sleeping(), 1);
        } else {
            announce::<Shared<B>>(consumer.memory().sleeping(), 0);
        }
    }
}

fn wake_receiver<M: Memory>(producer: &Producer<M>, futex: &Futex) {
    if take_sleeper(producer.memory().sleeping()) != 0 {
        futex.wake();
    }
}

fn sleep_and_wake<B: Barrier + Send + Sync + 'static>() {
    let memory = memory::<B>(4);
    let futex = Arc::new(Futex::default());
    let mut consumer = Consumer::new(memory.clone(), u64::MAX);
    let sender = {
        let futex = futex.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(memory);
            for value in 1..=2 {
                assert_eq!(send(&mut producer, value), Ok(true));
                wake_receiver(&producer, &futex);
            }
        })
    };
    assert_eq!(receive(&mut consumer, &futex), 1);
    assert_eq!(receive(&mut consumer, &futex), 2);
    sender.join().unwrap();
}

#[test]
fn no_wake_up_is_lost() {
    check(sleep_and_wake::<Fence>);
}

/// Shows that the model sees what it is there for.
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_wake_up_is_lost() {
    check(sleep_and_wake::<InOperations>);
}

#[test]
fn messages_are_whole_and_in_order_round_the_end_of_the_ring() {
    check(|| {
        let memory = memory::<Fence>(4);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(memory);
            for value in 1..=5 {
                while send(&mut producer, value) == Ok(false) {
                    thread::yield_now();
                }
            }
        });
        for expected in 1..=5 {
            let value = loop {
                match try_receive(&mut consumer) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
            consumer.give_credit();
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_batch_appears_at_once() {
    check(|| {
        let memory = memory::<Fence>(8);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(memory);
            for value in 1..=3u64 {
                let slot = producer.stage(Header::new(Kind::Message, 8, 0)).unwrap();
                producer.write(slot, 0, &value.to_le_bytes());
            }
            producer.commit().unwrap();
        });
        if let Some(value) = try_receive(&mut consumer) {
            assert_eq!(value, 1);
            assert_eq!(try_receive(&mut consumer), Some(2));
            assert_eq!(try_receive(&mut consumer), Some(3));
        }
        sender.join().unwrap();
    });
}

#[test]
fn a_sender_that_waits_for_room_is_woken() {
    check(|| {
        let memory = memory::<Fence>(4);
        let futex = Arc::new(Futex::default());
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let mut producer = Producer::new(memory);
        for value in 1..=3 {
            assert_eq!(send(&mut producer, value), Ok(true));
        }
        let sender = {
            let futex = futex.clone();
            thread::spawn(move || {
                while send(&mut producer, 4) == Ok(false) {
                    let waiting = producer.memory().waiting();
                    announce::<Shared<Fence>>(waiting, 1);
                    if producer.has_news() {
                        announce::<Shared<Fence>>(waiting, 0);
                    } else {
                        futex.wait(waiting, 1);
                    }
                }
            })
        };
        assert_eq!(try_receive(&mut consumer), Some(1));
        consumer.give_credit();
        if take_sleeper(consumer.memory().waiting()) != 0 {
            futex.wake();
        }
        sender.join().unwrap();
    });
}

/// Either the message was accepted, and then the closing side finds it, or its sender is told; never both, never
/// neither.
#[test]
fn closing_and_publishing_agree() {
    check(|| {
        let memory = memory::<Fence>(4);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(memory);
            let first = send(&mut producer, 1).is_ok();
            let second = send(&mut producer, 2).is_ok();
            assert!(first || !second, "what is closed stays closed");
            u64::from(first) + u64::from(second)
        });
        let mut found = 0;
        while !consumer.end(Kind::Closed) {
            found += u64::from(try_receive(&mut consumer).is_some());
        }
        assert_eq!(sender.join().unwrap(), found);
    });
}

/// A sender that sleeps for room while the receiver closes is woken, and sees that it closed.
#[test]
fn closing_wakes_a_sender_that_waits() {
    check(|| {
        let memory = memory::<Fence>(4);
        let futex = Arc::new(Futex::default());
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let mut producer = Producer::new(memory);
        for value in 1..=3 {
            assert_eq!(send(&mut producer, value), Ok(true));
        }
        let sender = {
            let futex = futex.clone();
            thread::spawn(move || {
                loop {
                    let waiting = producer.memory().waiting();
                    announce::<Shared<Fence>>(waiting, 1);
                    if producer.ended().is_some() {
                        return;
                    }
                    futex.wait(waiting, 1);
                }
            })
        };
        while !consumer.end(Kind::Closed) {
            assert!(try_receive(&mut consumer).is_some());
        }
        if take_sleeper(consumer.memory().waiting()) != 0 {
            futex.wake();
        }
        sender.join().unwrap();
    });
}

/// The other way round: a receiver that sleeps while the sender closes.
#[test]
fn closing_wakes_a_receiver_that_waits() {
    check(|| {
        let memory = memory::<Fence>(4);
        let futex = Arc::new(Futex::default());
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let sender = {
            let futex = futex.clone();
            thread::spawn(move || {
                let mut producer = Producer::new(memory);
                assert_eq!(send(&mut producer, 1), Ok(true));
                producer.end(Kind::Closed, &[]).unwrap();
                wake_receiver(&producer, &futex);
            })
        };
        let mut received = 0;
        loop {
            match consumer.front().unwrap() {
                Front::Record(record) if record.header.kind() == Kind::Closed => break,
                Front::Record(record) => {
                    received += 1;
                    consumer.advance(record);
                }
                Front::Empty => {
                    announce::<Shared<Fence>>(consumer.memory().sleeping(), 1);
                    if consumer.is_empty() {
                        futex.wait(consumer.memory().sleeping(), 1);
                    }
                }
            }
        }
        assert_eq!(received, 1);
        sender.join().unwrap();
    });
}
