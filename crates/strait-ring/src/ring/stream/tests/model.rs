//! The counters of a data pipe under the model checker. See [`harness`](crate::ring::tests::harness) for how it works.

use std::marker::PhantomData;
use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::fence;
use loom::thread;

use crate::ring::stream::{Reading, Shape, Words, Writing};
use crate::ring::tests::harness::{
    Barrier, Fence, Futex, InOperations, Tracked32, Tracked64, check, outcomes, word32, word64,
};

/// A data pipe in a model: the words, and a buffer in which the model checker watches every byte for races.
struct Pipe<B> {
    written: Tracked64,
    finished: Tracked32,
    taken: Tracked64,
    done: Tracked32,
    sleeping: Tracked32,
    waiting: Tracked32,
    bytes: Vec<UnsafeCell<u8>>,
    barrier: PhantomData<B>,
}

impl<B: Barrier> Words for Pipe<B> {
    type Word32 = Tracked32;
    type Word64 = Tracked64;
    fn written(&self) -> &Tracked64 {
        &self.written
    }
    fn finished(&self) -> &Tracked32 {
        &self.finished
    }
    fn taken(&self) -> &Tracked64 {
        &self.taken
    }
    fn done(&self) -> &Tracked32 {
        &self.done
    }
    fn sleeping(&self) -> &Tracked32 {
        &self.sleeping
    }
    fn waiting(&self) -> &Tracked32 {
        &self.waiting
    }
    fn sleep_barrier() {
        fence(loom::sync::atomic::Ordering::SeqCst);
    }
    fn full_barrier() {
        B::barrier();
    }
}

fn pipe<B>(capacity: usize) -> (Arc<Pipe<B>>, Arc<Futex>) {
    let pipe = Pipe {
        written: word64(),
        finished: word32(),
        taken: word64(),
        done: word32(),
        sleeping: word32(),
        waiting: word32(),
        bytes: (0..capacity).map(|_| UnsafeCell::new(0)).collect(),
        barrier: PhantomData,
    };
    (Arc::new(pipe), Arc::default())
}

fn shape(capacity: usize) -> Shape {
    Shape::new(1, capacity as u64).unwrap()
}

/// Runs the producer of a model: writes `count` bytes, which count up from 1, one at a time, and sleeps while there is
/// no room.
fn write_all<B: Barrier>(pipe: &Pipe<B>, futexes: &[Arc<Futex>; 2], count: u8) {
    let mut writing = Writing::at(shape(pipe.bytes.len()), 0).unwrap();
    for value in 1..=count {
        while writing.room() == 0 && writing.refresh(pipe).unwrap() == 0 {
            Writing::arm(pipe);
            if writing.refresh(pipe).unwrap() == 0 {
                futexes[1].wait(&pipe.waiting, 1);
            } else {
                Writing::disarm(pipe);
            }
        }
        let span = writing.span(1);
        assert_eq!(span.len, 1);
        // SAFETY: the model checker fails if another thread reads the byte at the same time; this is what the test
        // checks.
        pipe.bytes[span.at].with_mut(|byte| unsafe { *byte = value });
        if writing.publish(pipe, 1) {
            futexes[0].wake();
        }
    }
}

/// Runs the consumer of a model: reads until the end of the stream, and sleeps while there are no bytes. Returns the
/// bytes read.
fn read_all<B: Barrier>(pipe: &Pipe<B>, futexes: &[Arc<Futex>; 2]) -> Vec<u8> {
    let mut reading = Reading::at(shape(pipe.bytes.len()), 0).unwrap();
    let mut bytes = Vec::new();
    loop {
        if reading.is_at_end(pipe).unwrap() {
            return bytes;
        }
        if reading.available() == 0 {
            Reading::arm(pipe);
            if !reading.is_at_end(pipe).unwrap() && reading.available() == 0 {
                futexes[0].wait(&pipe.sleeping, 1);
            } else {
                Reading::disarm(pipe);
            }
            continue;
        }
        let span = reading.span(0, 1);
        // SAFETY: the model checker fails if another thread writes the byte at the same time; this is what the test
        // checks.
        bytes.push(pipe.bytes[span.at].with(|byte| unsafe { *byte }));
        if reading.advance(pipe, 1) {
            futexes[1].wake();
        }
    }
}

fn through<B: Barrier + Send + Sync + 'static>(capacity: usize, count: u8) {
    let (pipe, sleeper) = pipe::<B>(capacity);
    let futexes = [sleeper, Arc::default()];
    let producer = {
        let (pipe, futexes) = (pipe.clone(), futexes.clone());
        thread::spawn(move || {
            write_all(&pipe, &futexes, count);
            if Writing::finish(&*pipe) {
                futexes[0].wake();
            }
        })
    };
    assert_eq!(read_all(&pipe, &futexes), (1..=count).collect::<Vec<_>>());
    producer.join().unwrap();
}

#[test]
fn all_bytes_arrive_in_order_and_then_the_end_however_often_both_sleep() {
    check(|| through::<Fence>(1, 2));
    check(|| through::<Fence>(2, 2));
}

/// Shows that the model finds the lost wake-up if the barrier between publishing a counter and loading the sleep word
/// is left out (a deliberate error).
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_wake_up_is_lost() {
    check(|| through::<InOperations>(1, 1));
}

/// A consumer that never sleeps looks for the end while the producer writes one byte and finishes the stream. Shows
/// that the consumer reads the byte before seeing the end.
#[test]
fn who_sees_the_end_has_seen_all() {
    let seen = outcomes(|| {
        let (pipe, _) = pipe::<Fence>(2);
        let producer = {
            let pipe = pipe.clone();
            thread::spawn(move || {
                let mut writing = Writing::at(shape(2), 0).unwrap();
                let _ = writing.publish(&*pipe, 1);
                let _ = Writing::finish(&*pipe);
            })
        };
        let mut reading = Reading::at(shape(2), 0).unwrap();
        let first = (reading.is_at_end(&*pipe).unwrap(), reading.available());
        producer.join().unwrap();
        assert!(!first.0, "an end before the byte was read");
        assert_eq!((reading.is_at_end(&*pipe), reading.available()), (Ok(false), 1));
        let _ = reading.advance(&*pipe, 1);
        assert_eq!(reading.is_at_end(&*pipe), Ok(true));
        first
    });
    assert_eq!(seen.len(), 2, "{seen:?}");
}

/// A producer sleeps because the pipe is full, and the consumer abandons the stream. Shows that the producer is woken
/// and sees this.
#[test]
fn a_producer_that_sleeps_sees_that_the_consumer_is_gone() {
    check(|| {
        let (pipe, futex) = pipe::<Fence>(1);
        let mut writing = Writing::at(shape(1), 0).unwrap();
        let _ = writing.publish(&*pipe, 1);
        let producer = {
            let (pipe, futex) = (pipe.clone(), futex.clone());
            thread::spawn(move || {
                while !Writing::is_abandoned(&*pipe) {
                    Writing::arm(&*pipe);
                    if Writing::is_abandoned(&*pipe) {
                        break;
                    }
                    futex.wait(&pipe.waiting, 1);
                }
            })
        };
        if Reading::abandon(&*pipe) {
            futex.wake();
        }
        producer.join().unwrap();
    });
}
