//! The ring under a model checker: the checker tries every order in which the steps of the two sides can run, with weak
//! memory. See [`harness`](super::harness) for how the checker works.

use std::sync::Arc;

use loom::sync::atomic::Ordering::{Acquire, SeqCst};
use loom::thread;

use super::harness::{
    Barrier, FEWER, Fence, Futex, InOperations, SharedTable, Tracked32, check, check_within, ending_wakes_a_receiver,
    ending_wakes_a_sender, memory, outcomes_within, receive, receive_short, send, send_short, try_receive,
    wake_receiver, wake_sender, word32,
};
use crate::ring::{Consumer, Header, Memory, Producer, RecordKind, Word, announce, wake_for};

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

/// Shows that the model finds the lost wake-up if the barrier between publishing a record and loading the sleep word is
/// left out (a deliberate error).
#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_a_wake_up_is_lost() {
    check(sleep_and_wake::<InOperations>);
}

/// Receives one message as a blocking receiver does, unless another thread of the same process ends the wait: that
/// thread sets `reason` to a value other than 0, and then wakes this thread through `futex` if the sleep word records a
/// sleep. Returns `true` if a message was received, `false` if `reason` ended the wait.
fn receive_unless<B: Barrier>(consumer: &mut Consumer<SharedTable<B>>, reason: &Tracked32, futex: &Futex) -> bool {
    loop {
        if try_receive(consumer).is_some() {
            return true;
        }
        announce::<SharedTable<B>>(consumer.memory().sleeping(), 1);
        if consumer.is_empty() {
            if reason.load(SeqCst) != 0 {
                announce::<SharedTable<B>>(consumer.memory().sleeping(), 0);
                return false;
            }
            futex.wait(consumer.memory().sleeping(), 1);
        }
    }
}

/// Lets another thread of the receiver's process interrupt the receiver's wait; if `comes` is set, a third thread sends
/// one message at the same time. Checks that the wait ends and the message is not lost. Returns whether the interrupted
/// wait received the message.
fn interrupt<B: Barrier + Send + Sync + 'static>(comes: bool) -> bool {
    let memory = memory::<B>(4);
    let (futex, reason) = (Arc::new(Futex::default()), Arc::new(word32()));
    let mut consumer = Consumer::new(memory.clone(), u64::MAX);
    let interrupter = {
        let (memory, futex, reason) = (memory.clone(), futex.clone(), reason.clone());
        thread::spawn(move || {
            if wake_for::<SharedTable<B>>(&reason, memory.sleeping()) != 0 {
                futex.wake();
            }
        })
    };
    let sender = comes.then(|| {
        let futex = futex.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(memory);
            assert_eq!(send(&mut producer, 1), Ok(true));
            wake_receiver(&producer, &futex);
        })
    });
    let received = receive_unless(&mut consumer, &reason, &futex);
    interrupter.join().unwrap();
    sender.into_iter().for_each(|sender| sender.join().unwrap());
    assert!(received || !comes || try_receive(&mut consumer).is_some(), "it is not lost");
    received
}

#[test]
fn an_interruption_ends_a_sleep_that_is_about_to_begin() {
    check(|| assert!(!interrupt::<Fence>(false)));
}

#[test]
fn an_interruption_and_a_message_may_come_at_once() {
    assert_eq!(outcomes_within(FEWER, || interrupt::<Fence>(true)), [false, true].into());
}

#[test]
#[should_panic(expected = "deadlock")]
fn without_the_barrier_an_interruption_is_lost() {
    check(|| assert!(!interrupt::<InOperations>(false)));
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

/// A sender sends two messages by the shortest path and wakes the receiver, which sleeps or is about to sleep.
fn sleep_and_wake_by_the_shortest_path<B: Barrier + Send + Sync + 'static>() {
    let memory = memory::<B>(4);
    let futex = Arc::new(Futex::default());
    let mut consumer = Consumer::new(memory.clone(), u64::MAX);
    let sender = {
        let futex = futex.clone();
        thread::spawn(move || {
            let mut producer = Producer::new(memory);
            for value in 1..=2 {
                assert!(send_short(&mut producer, value));
                wake_receiver(&producer, &futex);
            }
        })
    };
    assert_eq!(receive(&mut consumer, &futex), 1);
    assert_eq!(receive(&mut consumer, &futex), 2);
    sender.join().unwrap();
}

#[test]
fn by_the_shortest_path_no_wake_up_is_lost() {
    check(sleep_and_wake_by_the_shortest_path::<Fence>);
}

#[test]
#[should_panic(expected = "deadlock")]
fn by_the_shortest_path_a_wake_up_is_lost_without_the_barrier() {
    check(sleep_and_wake_by_the_shortest_path::<InOperations>);
}

#[test]
fn by_the_shortest_path_messages_are_whole_and_in_order_round_the_end_of_the_ring() {
    check_within(FEWER, || {
        let memory = memory::<Fence>(4);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(memory);
            for value in 1..=6 {
                while !send_short(&mut producer, value) {
                    thread::yield_now();
                }
            }
        });
        let futex = Futex::default();
        for expected in 1..=6 {
            let value = loop {
                match receive_short(&mut consumer, &futex) {
                    Some(value) => break value,
                    None => thread::yield_now(),
                }
            };
            assert_eq!(value, expected);
        }
        sender.join().unwrap();
    });
}

/// A sender of a full ring sleeps, or is about to sleep, while the receiver takes messages by the shortest path, which
/// gives credit. The sender waits for room, or, with a message quota, for the number of messages taken.
fn credit_wakes_a_sender<B: Barrier + Send + Sync + 'static>(quota: u64) {
    let memory = memory::<B>(4);
    let futex = Arc::new(Futex::default());
    let mut consumer = Consumer::new(memory.clone(), quota);
    let mut producer = Producer::new(memory);
    for value in 1..=3 {
        assert!(send_short(&mut producer, value));
    }
    assert!(!send_short(&mut producer, 4), "full, and no credit was given");
    let sender = {
        let futex = futex.clone();
        thread::spawn(move || {
            loop {
                let memory = producer.memory().clone();
                announce::<SharedTable<B>>(memory.waiting(), 1);
                let is_over = if quota == u64::MAX { producer.has_news() } else { memory.taken().load(Acquire) > 0 };
                if is_over {
                    break;
                }
                futex.wait(memory.waiting(), 1);
            }
            // The credit for a quota is published after the number of messages.
            assert!(quota != u64::MAX || send_short(&mut producer, 4));
        })
    };
    for expected in 1..=2 {
        assert_eq!(receive_short(&mut consumer, &futex), Some(expected));
    }
    sender.join().unwrap();
}

#[test]
fn by_the_shortest_path_a_sender_that_waits_for_room_is_woken() {
    check(|| credit_wakes_a_sender::<Fence>(u64::MAX));
}

#[test]
fn by_the_shortest_path_a_sender_that_waits_for_its_quota_is_woken() {
    check(|| credit_wakes_a_sender::<Fence>(1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn by_the_shortest_path_a_sender_sleeps_on_without_the_barrier() {
    check(|| credit_wakes_a_sender::<InOperations>(u64::MAX));
}

/// The receiver closes the ring while the sender publishes two messages by the shortest path. Shows that the receiver
/// finds exactly the messages whose sending succeeded.
#[test]
fn closing_and_publishing_by_the_shortest_path_agree() {
    check(|| {
        let memory = memory::<Fence>(4);
        let mut consumer = Consumer::new(memory.clone(), u64::MAX);
        let sender = thread::spawn(move || {
            let mut producer = Producer::new(memory);
            let first = send_short(&mut producer, 1);
            let second = send_short(&mut producer, 2);
            assert!(first || !second, "what is closed stays closed");
            u64::from(first) + u64::from(second)
        });
        let (mut found, futex) = (0, Futex::default());
        while !consumer.end(RecordKind::Closed) {
            found += u64::from(receive_short(&mut consumer, &futex).is_some());
        }
        assert_eq!(sender.join().unwrap(), found);
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
                let slot = producer.stage(Header::new(RecordKind::Message, 8, 0)).unwrap();
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
                    announce::<SharedTable<Fence>>(waiting, 1);
                    if producer.has_news() {
                        announce::<SharedTable<Fence>>(waiting, 0);
                    } else {
                        futex.wait(waiting, 1);
                    }
                }
            })
        };
        assert_eq!(try_receive(&mut consumer), Some(1));
        consumer.give_credit();
        wake_sender(&consumer, &futex);
        sender.join().unwrap();
    });
}

/// The receiver closes the ring while the sender publishes two messages. Shows that the receiver finds exactly the
/// messages whose sending succeeded: every other send fails, because the ring is closed.
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
        while !consumer.end(RecordKind::Closed) {
            found += u64::from(try_receive(&mut consumer).is_some());
        }
        assert_eq!(sender.join().unwrap(), found);
    });
}

#[test]
fn closing_wakes_a_sender_that_waits() {
    check(|| ending_wakes_a_sender(RecordKind::Closed, false));
}

/// A receiver waits for a message, and the sender closes the ring. Shows that the receiver is woken.
#[test]
fn closing_wakes_a_receiver_that_waits() {
    check(|| ending_wakes_a_receiver(RecordKind::Closed, &[]));
}
