//! Helpers for the tests under the model checker.
//!
//! `loom` runs each test again for every interleaving (with at most [`PREEMPTIONS`] involuntary switches between
//! threads) and every value that a load may return under the C11 memory model. A lost wake-up shows as a deadlock.
//!
//! The modelled futex works like the kernel's: it compares the word and sleeps in one step.

use std::collections::BTreeSet;
use std::mem::MaybeUninit;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use loom::sync::{Condvar, Mutex};
use loom::thread;

use crate::ring::{
    Consumer, Ended, Header, Memory, NextRecord, Popped, Producer, Record, RecordKind, Word, announce, take_sleeper,
};

pub use super::table::{Barrier, Fence, InOperations, Table, note_access};

/// Limit of involuntary thread switches that `loom` tries in a test with two threads. With three switches one thread
/// can look at a word, be overtaken by the other, and then act on the old value.
pub const PREEMPTIONS: usize = 3;

/// Limit of involuntary thread switches that `loom` tries in a test with three threads, or with many steps.
pub const FEWER: usize = 2;

/// A word of the model checker for which `loom` also tries all orders of loads.
///
/// To find the orders worth trying, `loom` remembers only the last access to a word. If one thread loads the word, and
/// another thread then loads and changes it, `loom` never tries to make this change before the first load. A load of a
/// tracked word also changes a second word, so `loom` tries all orders of loads. The change is relaxed, so it adds no
/// order of its own.
#[derive(Debug)]
pub struct Tracked<A> {
    word: A,
    loads: AtomicU32,
}

pub type Tracked32 = Tracked<AtomicU32>;
pub type Tracked64 = Tracked<AtomicU64>;

pub fn word32() -> Tracked32 {
    Tracked { word: AtomicU32::new(0), loads: AtomicU32::new(0) }
}

pub fn word64() -> Tracked64 {
    Tracked { word: AtomicU64::new(0), loads: AtomicU32::new(0) }
}

impl<T, A: Word<T>> Word<T> for Tracked<A> {
    fn load(&self, order: Ordering) -> T {
        // Relaxed loads read the contents of records, which other words put in order.
        if order != Ordering::Relaxed {
            self.loads.swap(0, Ordering::Relaxed);
        }
        let value = self.word.load(order);
        note_access(false);
        value
    }
    fn store(&self, value: T, order: Ordering) {
        self.word.store(value, order);
        note_access(order == Ordering::SeqCst);
    }
    fn swap(&self, value: T, order: Ordering) -> T {
        let old = self.word.swap(value, order);
        note_access(order == Ordering::SeqCst);
        old
    }
    fn fetch_or(&self, bits: T, order: Ordering) -> T {
        let old = self.word.fetch_or(bits, order);
        note_access(order == Ordering::SeqCst);
        old
    }
    fn compare_exchange(&self, current: T, new: T, success: Ordering, failure: Ordering) -> Result<T, T> {
        let exchanged = self.word.compare_exchange(current, new, success, failure);
        note_access(success == Ordering::SeqCst);
        exchanged
    }
}

pub type SharedTable<B> = Arc<Table<Tracked32, Tracked64, B>>;

pub fn memory<B>(cells: usize) -> SharedTable<B> {
    Arc::new(Table::new(cells, word32, word64))
}

pub fn check(test: impl Fn() + Sync + Send + 'static) {
    check_within(PREEMPTIONS, test);
}

pub fn check_within(preemptions: usize, test: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(test);
}

/// Runs `test` for every interleaving, and returns the set of all results. With the results a test can also check that
/// the model reached the interesting cases.
pub fn outcomes<T: Ord + Send + 'static>(test: impl Fn() -> T + Sync + Send + 'static) -> BTreeSet<T> {
    outcomes_within(PREEMPTIONS, test)
}

pub fn outcomes_within<T: Ord + Send + 'static>(
    preemptions: usize,
    test: impl Fn() -> T + Sync + Send + 'static,
) -> BTreeSet<T> {
    let seen = Arc::new(std::sync::Mutex::new(BTreeSet::new()));
    let outcomes = seen.clone();
    check_within(preemptions, move || {
        let outcome = test();
        seen.lock().unwrap().insert(outcome);
    });
    std::mem::take(&mut *outcomes.lock().unwrap())
}

/// A model of a futex: threads sleep on the futex and are woken as by the kernel.
#[derive(Default)]
pub struct Futex {
    lock: Mutex<()>,
    sleepers: Condvar,
}

impl Futex {
    pub fn wait(&self, word: &Tracked32, expected: u32) {
        self.wait_while(|| word.load(Ordering::SeqCst) == expected);
    }

    /// Sleeps until `asleep` returns `false`; checks `asleep` first, and again after each wake-up. For a sleep that a
    /// change of any of several words can end.
    pub fn wait_while(&self, asleep: impl Fn() -> bool) {
        let mut lock = self.lock.lock().unwrap();
        while asleep() {
            lock = self.sleepers.wait(lock).unwrap();
        }
    }

    pub fn wake(&self) {
        drop(self.lock.lock().unwrap());
        self.sleepers.notify_one();
    }
}

pub fn send<M: Memory>(producer: &mut Producer<M>, value: u64) -> Result<bool, Ended> {
    match producer.stage(Header::new(RecordKind::Message, 8, 0)) {
        Ok(slot) => {
            producer.write(slot, 0, &value.to_le_bytes());
            producer.commit().map(|()| true)
        }
        Err(_) => Ok(false),
    }
}

/// Sends a message of 8 bytes by the shortest path. Returns whether the message was sent; `false` if the ring has no
/// room or was ended.
pub fn send_short<M: Memory>(producer: &mut Producer<M>, value: u64) -> bool {
    producer.push_one(&value.to_le_bytes())
}

/// Receives a message of 8 bytes by the shortest path, and wakes the sender through `futex` if the credit for the
/// message makes that necessary. Returns `None` if the ring is empty.
pub fn receive_short<M: Memory>(consumer: &mut Consumer<M>, futex: &Futex) -> Option<u64> {
    let mut out = [MaybeUninit::uninit(); 8];
    match consumer.pop_one(|len| out.get_mut(..len)) {
        Popped::Message { len, producer_sleeps } => {
            assert_eq!(len, out.len());
            if producer_sleeps {
                wake_sender(consumer, futex);
            }
            // SAFETY: all bytes were read just now.
            Some(u64::from_le_bytes(out.map(|byte| unsafe { byte.assume_init() })))
        }
        Popped::Empty => None,
        Popped::Other => panic!("a message of another kind"),
    }
}

/// Receives the message in `record`, of 8 bytes, and returns the bytes as a number.
pub fn take<M: Memory>(consumer: &mut Consumer<M>, record: Record) -> u64 {
    assert_eq!(record.header.kind(), RecordKind::Message);
    let mut out = [MaybeUninit::uninit(); 8];
    let value = u64::from_le_bytes(consumer.read(record, 0, &mut out).try_into().unwrap());
    consumer.advance(record);
    value
}

pub fn try_receive<M: Memory>(consumer: &mut Consumer<M>) -> Option<u64> {
    match consumer.next_record().expect("never corrupt") {
        NextRecord::Empty => None,
        NextRecord::Record(record) => Some(take(consumer, record)),
    }
}

/// Receives a message as a blocking receiver does, but without spinning: sleeps until there is a message, and returns
/// its number.
pub fn receive<B: Barrier>(consumer: &mut Consumer<SharedTable<B>>, futex: &Futex) -> u64 {
    loop {
        if let Some(value) = try_receive(consumer) {
            return value;
        }
        announce::<SharedTable<B>>(consumer.memory().sleeping(), 1);
        if consumer.is_empty() {
            futex.wait(consumer.memory().sleeping(), 1);
        } else {
            announce::<SharedTable<B>>(consumer.memory().sleeping(), 0);
        }
    }
}

pub fn wake_receiver<M: Memory>(producer: &Producer<M>, futex: &Futex) {
    if take_sleeper(producer.memory().sleeping()) != 0 {
        futex.wake();
    }
}

pub fn wake_sender<M: Memory>(consumer: &Consumer<M>, futex: &Futex) {
    if take_sleeper(consumer.memory().waiting()) != 0 {
        futex.wake();
    }
}

/// A receiver sleeps, or is about to sleep, while the sender sends one message and ends the ring with the mark `kind`.
/// Shows that the receiver is woken, and reads the message and the mark's whole payload.
pub fn ending_wakes_a_receiver(kind: RecordKind, payload: &'static [u8]) {
    let memory = memory::<Fence>(4);
    let futex = Arc::new(Futex::default());
    let mut consumer = Consumer::new(memory.clone(), u64::MAX);
    let sender = {
        let futex = futex.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(memory);
            assert_eq!(send(&mut producer, 1), Ok(true));
            producer.end(kind, payload).unwrap();
            wake_receiver(&producer, &futex);
        })
    };
    let mut received = 0;
    loop {
        match consumer.next_record().unwrap() {
            NextRecord::Record(record) if record.header.kind() == kind => {
                let mut out = vec![MaybeUninit::uninit(); record.header.len()];
                assert_eq!(consumer.read(record, 0, &mut out), payload);
                break;
            }
            NextRecord::Record(record) => {
                received += take(&mut consumer, record);
            }
            NextRecord::Empty => {
                announce::<SharedTable<Fence>>(consumer.memory().sleeping(), 1);
                if consumer.is_empty() {
                    futex.wait(consumer.memory().sleeping(), 1);
                }
            }
        }
    }
    assert_eq!(received, 1);
    sender.join().unwrap();
}

/// A sender sleeps for room, or is about to, while the receiver ends the ring with the mark `kind`. Shows that the
/// sender is woken and sees the mark. If `credit` is set, the receiver also gives credit before it wakes the sender.
pub fn ending_wakes_a_sender(kind: RecordKind, credit: bool) {
    let memory = memory::<Fence>(4);
    let futex = Arc::new(Futex::default());
    let mut consumer = Consumer::new(memory.clone(), u64::MAX);
    let mut producer = Producer::new(memory);
    for value in 1..=3 {
        assert_eq!(send(&mut producer, value), Ok(true));
    }
    assert_eq!(send(&mut producer, 4), Ok(false), "full, and no credit was given");
    let sender = {
        let futex = futex.clone();
        thread::spawn(move || {
            let waiting = producer.memory().waiting();
            loop {
                announce::<SharedTable<Fence>>(waiting, 1);
                if let Some(ended) = producer.ended() {
                    assert_eq!(ended, Ended(Some(kind)));
                    return;
                }
                // Credit comes after the mark, for which the sender looked before: new credit is reason for another
                // look.
                if !producer.has_news() {
                    futex.wait(waiting, 1);
                }
            }
        })
    };
    while !consumer.end(kind) {
        assert!(try_receive(&mut consumer).is_some());
    }
    if credit {
        consumer.give_credit();
    }
    wake_sender(&consumer, &futex);
    sender.join().unwrap();
}
