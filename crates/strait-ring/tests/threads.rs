//! Two threads of one process.

use std::thread;
use std::time::{Duration, Instant};

use strait_ring::{Error, channel};

/// Longer than any of these tests takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn message(number: usize, longest: usize) -> Vec<u8> {
    (0..number * 7 % (longest + 1)).map(|at| (number + at) as u8).collect()
}

/// Number of messages of the longest test.
const COUNT: usize = if cfg!(miri) { 60 } else { 3000 };

/// Both sides wait for each other all the time: the ring has room for few messages.
#[test]
fn messages_of_every_length_arrive_whole_and_in_order() {
    for bytes in [0, 1 << 10, 1 << 14] {
        let (mut sender, mut receiver) = channel(bytes);
        let longest = sender.longest();
        let sends = thread::spawn(move || {
            for number in 0..COUNT {
                sender.send_by(&message(number, longest), Instant::now() + PATIENCE).unwrap();
            }
        });
        let mut received = Vec::new();
        for number in 0..COUNT {
            receiver.recv_by(&mut received, Instant::now() + PATIENCE).unwrap();
            assert_eq!(received, message(number, longest));
        }
        assert_eq!(receiver.recv(&mut received), Err(Error::Closed));
        assert_eq!(receiver.recv(&mut received), Err(Error::Closed), "what is closed stays closed");
        sends.join().unwrap();
    }
}

#[test]
fn a_full_ring_is_full_and_an_empty_one_is_empty() {
    let (mut sender, mut receiver) = channel(1024);
    let mut received = Vec::new();
    assert_eq!(receiver.try_recv(&mut received), Err(Error::WouldBlock));
    let soon = || Instant::now() + Duration::from_millis(1);
    assert_eq!(receiver.recv_by(&mut received, soon()), Err(Error::TimedOut));
    let mut sent = 0u8;
    while sender.try_send(&[sent]).is_ok() {
        sent += 1;
    }
    assert!(sent > 8);
    assert_eq!(sender.try_send(&[sent]), Err(Error::WouldBlock));
    assert_eq!(sender.send_by(&[sent], soon()), Err(Error::TimedOut));
    for number in 0..sent {
        receiver.try_recv(&mut received).unwrap();
        assert_eq!(received, [number]);
    }
    assert_eq!(receiver.try_recv(&mut received), Err(Error::WouldBlock));
    assert_eq!(received, [sent - 1], "a call that fails changes nothing");
    assert_eq!(sender.try_send(&[sent]), Ok(()));
}

#[test]
fn the_longest_message_fits_and_no_longer_one() {
    for bytes in [0, 256, 5000, 1 << 14] {
        let (mut sender, mut receiver) = channel(bytes);
        let longest = sender.longest();
        assert!(longest + 8 >= bytes.next_power_of_two() / 4);
        assert_eq!(sender.try_send(&vec![1; longest + 1]), Err(Error::TooLong));
        let mut received = Vec::new();
        for number in 0..20 {
            assert_eq!(sender.try_send(&vec![number; longest]), Ok(()));
            receiver.try_recv(&mut received).unwrap();
            assert_eq!(received, vec![number; longest]);
        }
    }
}

#[test]
fn a_sender_that_waits_learns_that_the_receiver_is_gone() {
    let (mut sender, receiver) = channel(0);
    let sends = thread::spawn(move || {
        let mut sent = 0;
        loop {
            match sender.send_by(b"more", Instant::now() + PATIENCE) {
                Ok(()) => sent += 1,
                Err(error) => return (sent, error),
            }
        }
    });
    drop(receiver);
    let (sent, error) = sends.join().unwrap();
    assert!(sent <= 3);
    assert_eq!(error, Error::Closed);
}

#[test]
fn what_was_sent_can_be_received_after_the_sender_is_gone() {
    let (mut sender, mut receiver) = channel(1024);
    for number in 0..5 {
        sender.send(&[number]).unwrap();
    }
    drop(sender);
    let mut received = Vec::new();
    for number in 0..5 {
        receiver.recv(&mut received).unwrap();
        assert_eq!(received, [number]);
    }
    assert_eq!(receiver.recv(&mut received), Err(Error::Closed));
}
