//! Tests of receiving into a message or as a view, whichever saves a copy.

use std::fs::File;
use std::time::Duration;

use strait::view::Value;
use strait::{Channel, Deadline, Error, Handle, Message, Outgoing};

const LIMIT: Duration = Duration::from_secs(60);
const LONG: usize = 300_000;

fn long(seed: u8) -> Vec<u8> {
    (0..LONG).map(|at| (at % 251) as u8 ^ seed).collect()
}

/// Receives the next message, and returns the bytes, the number of handles, and whether the message was a view.
fn received(channel: &Channel) -> (Vec<u8>, usize, bool) {
    let mut message = Message::new();
    match channel.recv_message_or_view(&mut message, LIMIT).unwrap() {
        Some(mut view) => {
            assert!(message.bytes().is_empty());
            let mut bytes = vec![0xAA];
            view.append_to(&mut bytes, 1, view.len() - 1).unwrap();
            view.read_at(&mut bytes[..1], 0);
            (bytes, view.take_handles().unwrap().len(), true)
        }
        None => (message.bytes().to_vec(), message.take_handles().unwrap().len(), false),
    }
}

#[test]
fn a_long_message_is_a_view_and_brings_its_handles() {
    let (near, far) = Channel::pair().unwrap();
    let file = || File::open("/dev/null").unwrap();
    near.send(Outgoing::new(&long(1)).handle(file())).unwrap();
    near.send(Outgoing::new(b"short").handle(file())).unwrap();
    near.send(b"bytes").unwrap();
    near.send(&long(2)[..]).unwrap();
    assert!(received(&far) == (long(1), 1, true));
    assert_eq!(received(&far), (b"short".to_vec(), 1, false));
    assert_eq!(received(&far), (b"bytes".to_vec(), 0, false));
    assert!(received(&far) == (long(2), 0, true));
}

#[test]
fn the_channel_goes_on_while_a_view_lives() {
    let (near, far) = Channel::pair().unwrap();
    near.send(&long(1)[..]).unwrap();
    let mut message = Message::new();
    let mut view = far.recv_message_or_view(&mut message, LIMIT).unwrap().unwrap();
    for round in 0..100 {
        near.send_by(&long(round)[..], LIMIT).unwrap();
        assert!(received(&far).0 == long(round));
    }
    let mut bytes = Vec::new();
    view.append_to(&mut bytes, 0, LONG).unwrap();
    assert!(bytes == long(1));
}

#[test]
fn messages_that_travelled_with_their_end_arrive_whole() {
    let (near, far) = Channel::pair().unwrap();
    let (carrier, other) = Channel::pair().unwrap();
    near.send(&long(3)[..]).unwrap();
    near.send(b"short").unwrap();
    carrier.send(Outgoing::new(b"").handle(far)).unwrap();
    let far = other.recv().unwrap().take_handles().unwrap().remove(0).into_channel().unwrap();
    assert!(received(&far).0 == long(3));
    assert_eq!(received(&far).0, b"short");
}

#[test]
fn a_value_stays_a_value() {
    struct Number(u64);
    impl Value for Number {
        fn into_parts(self) -> (Vec<u8>, Vec<Handle>) {
            panic!("nobody asks for bytes")
        }
    }
    let (near, far) = Channel::pair().unwrap();
    near.send_value(Number(7), LIMIT).unwrap();
    let mut message = Message::new();
    assert!(far.recv_message_or_view(&mut message, LIMIT).unwrap().is_none());
    assert!(!message.has_only_bytes());
    assert_eq!(message.take_value::<Number>().unwrap().0, 7);
    assert!(message.has_only_bytes());
}

#[test]
fn the_call_waits_until_its_deadline_and_ends_with_the_peer() {
    let (near, far) = Channel::pair().unwrap();
    let mut message = Message::new();
    let mut outcome = |deadline: Deadline| far.recv_message_or_view(&mut message, deadline).map(|view| view.is_some());
    assert_eq!(outcome(Deadline::NOW), Err(Error::WouldBlock));
    assert_eq!(outcome(Duration::from_millis(1).into()), Err(Error::TimedOut));
    let sender = std::thread::spawn(move || near.send(&long(4)[..]).unwrap());
    assert_eq!(outcome(LIMIT.into()), Ok(true));
    sender.join().unwrap();
    assert_eq!(outcome(LIMIT.into()), Err(Error::PeerClosed));
}
