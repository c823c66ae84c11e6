//! Tests of the halves of an end, a sender and a receiver, each for one thread.

mod common;

use std::sync::mpsc;
use std::time::Duration;

use common::{DEADLINE, SOON, finish, parent, pattern, spawn, wait_until};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Handle, Message, Options, Outgoing, Receiver, Sender};

#[test]
fn child() {
    common::play(&[
        ("echo", |_| common::echo(&parent())),
        ("echo of halves", |_| echo_of_halves()),
        ("sends the end around", |_| sends_the_end_around()),
    ]);
}

/// Echoes everything, with a thread for each direction of the received end.
fn echo_of_halves() {
    let (mut sender, mut receiver) = parent().split();
    let (pass, passed) = mpsc::sync_channel::<(Vec<u8>, Vec<Handle>)>(16);
    let receiving = std::thread::spawn(move || {
        loop {
            match receiver.recv() {
                Ok(mut message) => {
                    let handles = message.take_handles().unwrap();
                    pass.send((message.into_bytes(), handles)).unwrap();
                }
                Err(error) => return error,
            }
        }
    });
    for (bytes, handles) in passed {
        sender.send(Outgoing::new(&bytes).handles(handles)).unwrap();
    }
    assert_eq!(receiving.join().unwrap(), Error::PeerClosed);
}

/// Sends the received end to itself again and again, and meanwhile echoes the messages of the end.
fn sends_the_end_around() {
    let channel = parent();
    let mut end = channel.recv_by(DEADLINE).unwrap().take_handle(0).unwrap().unwrap().into_channel().unwrap();
    let (there, here) = Channel::pair().unwrap();
    loop {
        match end.recv_by(Duration::from_millis(1)) {
            Ok(message) if message.bytes() == b"stop" => break,
            Ok(message) => end.send_by(message.bytes(), DEADLINE).unwrap(),
            Err(error) => assert_eq!(error, Error::TimedOut),
        }
        there.send_by(Outgoing::new(b"").handle(end), DEADLINE).unwrap();
        end = here.recv_by(DEADLINE).unwrap().take_handle(0).unwrap().unwrap().into_channel().unwrap();
    }
    end.send(b"stopped").unwrap();
}

fn halves(channel: Channel) -> (Sender, Receiver) {
    channel.split()
}

/// Sends messages of many kinds from one thread and receives them back in another.
fn round_trip(channel: Channel) -> Channel {
    let (mut sender, mut receiver) = halves(channel);
    let len = |number: usize| [0, 5, 56, 57, 1000, 70_000, 300_000][number % 7];
    const COUNT: usize = 700;
    let sending = std::thread::spawn(move || {
        for number in 0..COUNT {
            let bytes = pattern(number as u64, len(number));
            match number % 11 {
                3 => {
                    let file = common::file_with(b"content");
                    sender.send_by(Outgoing::new(&bytes).handle(file), DEADLINE).unwrap();
                }
                7 => assert_eq!(sender.send_many([&*bytes], DEADLINE).unwrap(), 1),
                _ => sender.send_by(&bytes, DEADLINE).unwrap(),
            }
        }
        sender
    });
    let (mut message, mut buffer) = (Message::new(), vec![0; 300_000]);
    let mut slots = [Message::new()];
    for number in 0..COUNT {
        let expected = pattern(number as u64, len(number));
        if number % 5 == 0 {
            assert_eq!(receiver.recv_many(&mut slots, DEADLINE).unwrap(), 1);
            assert_eq!(slots[0].bytes(), expected);
            assert_eq!(slots[0].take_handles().unwrap().len(), usize::from(number % 11 == 3));
        } else if number % 2 == 0 {
            receiver.recv_message(&mut message, DEADLINE).unwrap();
            assert_eq!(message.bytes(), expected);
            let handles = message.take_handles().unwrap();
            assert_eq!(handles.len(), usize::from(number % 11 == 3));
        } else {
            let mut received = receiver.recv_into(&mut buffer, DEADLINE).unwrap();
            assert_eq!(buffer[..received.len()], expected);
            assert_eq!(received.take_handles().unwrap().len(), usize::from(number % 11 == 3));
        }
    }
    assert_eq!(receiver.try_recv().unwrap_err(), Error::WouldBlock);
    sending.join().unwrap().join(receiver).unwrap()
}

#[test]
fn halves_in_two_threads_carry_everything() {
    for role in ["echo", "echo of halves"] {
        let (actor, channel) = spawn(role);
        drop(round_trip(channel));
        finish(actor);
    }
}

#[test]
fn a_receiver_takes_what_is_there_at_once() {
    let (a, b) = Channel::pair().unwrap();
    let (mut sender, unused) = halves(a);
    let (_sender, mut receiver) = halves(b);
    let mut slots = [(); 3].map(|()| Message::new());
    assert_eq!(receiver.recv_many(&mut slots, Deadline::NOW).unwrap_err(), Error::WouldBlock);
    assert_eq!(receiver.recv_many(&mut [], DEADLINE).unwrap(), 0);
    assert_eq!(sender.send_many([&b"one"[..], b"two", b"three", b"four"], DEADLINE).unwrap(), 4);
    assert_eq!(receiver.recv_many(&mut slots, DEADLINE).unwrap(), 3);
    assert_eq!(slots.each_ref().map(Message::bytes), [&b"one"[..], b"two", b"three"]);
    assert_eq!(receiver.recv_many(&mut slots, DEADLINE).unwrap(), 1);
    assert_eq!(slots[0].bytes(), b"four");
    drop((sender, unused));
    assert_eq!(receiver.recv_many(&mut slots, DEADLINE).unwrap_err(), Error::PeerClosed);
}

#[test]
fn joined_halves_travel_with_their_unread_messages() {
    let (_actor, echo) = spawn("echo");
    let (kept, travels) = Channel::pair().unwrap();
    kept.send(b"unread").unwrap();
    let (mut sender, receiver) = halves(travels);
    sender.send(b"from the half").unwrap();
    let travels = sender.join(receiver).unwrap();
    echo.send(Outgoing::new(b"").handle(travels)).unwrap();
    let back = echo.recv_by(DEADLINE).unwrap().take_handle(0).unwrap().unwrap().into_channel().unwrap();
    let (mut sender, mut receiver) = halves(back);
    assert_eq!(receiver.recv_by(DEADLINE).unwrap().bytes(), b"unread");
    sender.send(b"again").unwrap();
    assert_eq!(kept.recv_by(DEADLINE).unwrap().bytes(), b"from the half");
    assert_eq!(kept.recv_by(DEADLINE).unwrap().bytes(), b"again");
}

#[test]
fn an_end_is_closed_with_the_last_of_its_halves() {
    for first in ["sender", "receiver"] {
        let (a, b) = Channel::pair().unwrap();
        let (mut sender, mut receiver) = halves(a);
        sender.send(b"last").unwrap();
        assert_eq!(b.recv().unwrap().bytes(), b"last");
        if first == "sender" {
            drop(sender);
            assert_eq!(b.try_recv().unwrap_err(), Error::WouldBlock);
            b.send(b"to the receiver").unwrap();
            assert_eq!(receiver.recv().unwrap().bytes(), b"to the receiver");
            drop(receiver);
        } else {
            drop(receiver);
            sender.send(b"still there").unwrap();
            assert_eq!(b.recv().unwrap().bytes(), b"still there");
            drop(sender);
        }
        assert_eq!(b.recv().unwrap_err(), Error::PeerClosed);
        assert_eq!(b.send(b"").unwrap_err().error, Error::PeerClosed);
    }
    let [(a, _x), (b, _y)] = [Channel::pair().unwrap(), Channel::pair().unwrap()];
    let ((sender, _receiver), (_sender, receiver)) = (halves(a), halves(b));
    assert!(sender.join(receiver).is_err(), "these are halves of two ends");
}

#[test]
fn halves_learn_of_the_death_of_their_peer() {
    let (mut actor, channel) = spawn("echo");
    let (mut sender, mut receiver) = halves(channel);
    sender.send(b"hello").unwrap();
    assert_eq!(receiver.recv_by(DEADLINE).unwrap().bytes(), b"hello");
    let receiving = std::thread::spawn(move || receiver.recv_by(DEADLINE).unwrap_err());
    actor.kill();
    assert_eq!(receiving.join().unwrap(), Error::PeerClosed);
    wait_until("sending fails", || sender.try_send(b"").is_err_and(|failed| failed.error == Error::PeerClosed));
}

#[test]
fn halves_keep_deadlines_and_can_be_interrupted() {
    let (a, b) = Options::new().ring_max(4096).pair().unwrap();
    let (mut sender, mut receiver) = halves(a);
    assert_eq!(receiver.try_recv().unwrap_err(), Error::WouldBlock);
    assert_eq!(receiver.recv_by(Duration::from_millis(10)).unwrap_err(), Error::TimedOut);
    while sender.try_send(&[7; 100]).is_ok() {}
    assert_eq!(sender.send_by(&[7; 100], Duration::from_millis(10)).unwrap_err().error, Error::TimedOut);
    let interrupters = [sender.interrupter(), receiver.interrupter()];
    let sending = std::thread::spawn(move || sender.send(&[7; 100]).unwrap_err().error);
    let receiving = std::thread::spawn(move || receiver.recv().unwrap_err());
    interrupters.iter().for_each(strait::Interrupter::interrupt);
    assert_eq!((sending.join().unwrap(), receiving.join().unwrap()), (Error::Interrupted, Error::Interrupted));
    assert_eq!(b.recv().unwrap().bytes(), [7; 100]);
}

/// Shows that a wait set takes halves, though a half holds the lock until added.
#[test]
fn a_wait_set_takes_halves() {
    let (_actor, echo) = spawn("echo");
    let (mut sender, mut receiver) = halves(echo);
    let set = WaitSet::new().unwrap();
    let mut events = Vec::new();
    set.add(&receiver, 5, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(set.add(&sender, 6, Interest::Writable, Mode::Level).unwrap_err(), Error::InSet);
    assert_eq!(set.wait(&mut events, Deadline::NOW).unwrap_or(0), 0);
    for number in 0..100_u64 {
        sender.send(&number.to_le_bytes()).unwrap();
        events.clear();
        assert_eq!(set.wait(&mut events, SOON).unwrap(), 1);
        assert!(events[0].key() == 5 && events[0].is_readable());
        assert_eq!(receiver.try_recv().unwrap().bytes(), number.to_le_bytes());
    }
    set.remove(&receiver).unwrap();
    set.add(&sender, 6, Interest::Writable, Mode::OneShot).unwrap();
    events.clear();
    assert_eq!(set.wait(&mut events, SOON).unwrap(), 1);
    assert!(events[0].key() == 6 && events[0].is_writable());
    set.remove(&sender).unwrap();
    round_trip(sender.join(receiver).unwrap());
}

/// Waits until `set` reports a member, and returns whether the member is readable and whether it is writable.
fn next_event(set: &WaitSet) -> Option<(bool, bool)> {
    let mut events = Vec::new();
    set.wait(&mut events, SOON).ok()?;
    events.first().map(|event| (event.is_readable(), event.is_writable()))
}

/// Returns halves of an end of which only the receiver is in a wait set, which also waits for room; the set could not
/// look for room yet, since the sender holds that lock.
fn receiver_in_set() -> (Channel, Sender, Receiver, WaitSet) {
    let (a, b) = Channel::pair().unwrap();
    let (sender, receiver) = halves(a);
    let set = WaitSet::new().unwrap();
    set.add(&receiver, 1, Interest::Both, Mode::Level).unwrap();
    assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW).unwrap_or(0), 0);
    (b, sender, receiver, set)
}

/// Shows that a wait set learns when a half that was not added gives its lock back: with the drop of the half, when the
/// halves are joined, after the next call, and when adding the half fails.
#[test]
fn a_wait_set_is_notified_when_the_other_half_gives_its_lock_back() {
    let (_peer, sender, _receiver, set) = receiver_in_set();
    drop(sender);
    assert_eq!(next_event(&set), Some((false, true)), "after the drop");

    let (_peer, sender, receiver, set) = receiver_in_set();
    let _channel = sender.join(receiver).unwrap();
    assert_eq!(next_event(&set), Some((false, true)), "after the join");

    let (_peer, mut sender, _receiver, set) = receiver_in_set();
    sender.send(b"next").unwrap();
    assert_eq!(next_event(&set), Some((false, true)), "after a call");

    let (_peer, sender, _receiver, set) = receiver_in_set();
    assert_eq!(set.add(&sender, 2, Interest::Writable, Mode::Level).unwrap_err(), Error::InSet);
    assert_eq!(next_event(&set), Some((false, true)), "after an attempt to add the half");
}

/// Returns halves of an end with a message to receive, of which only the sender is in a wait set; the set could not
/// look for messages yet, since the receiver holds that lock.
fn sender_in_set() -> (Channel, Sender, Receiver, WaitSet) {
    let (a, b) = Options::new().ring_max(4096).pair().unwrap();
    let (mut sender, receiver) = halves(a);
    while sender.try_send(b"").is_ok() {}
    let set = WaitSet::new().unwrap();
    set.add(&sender, 1, Interest::Both, Mode::Level).unwrap();
    b.send(b"first").unwrap();
    b.send(b"second").unwrap();
    assert_eq!(set.wait(&mut Vec::new(), Deadline::NOW).unwrap_or(0), 0);
    (b, sender, receiver, set)
}

/// Shows that a wait set with the sender is notified when the receiver gives its lock back.
#[test]
fn a_wait_set_is_notified_when_the_receiver_gives_its_lock_back() {
    let (_peer, _sender, receiver, set) = sender_in_set();
    drop(receiver);
    assert_eq!(next_event(&set), Some((true, false)), "after the drop");

    let (_peer, sender, receiver, set) = sender_in_set();
    let _channel = sender.join(receiver).unwrap();
    assert_eq!(next_event(&set), Some((true, false)), "after the join");

    let (_peer, _sender, mut receiver, set) = sender_in_set();
    assert_eq!(receiver.try_recv().unwrap().bytes(), b"first");
    assert_eq!(next_event(&set), Some((true, false)), "after a call");
}

/// Splits an end in a wait set: the wait set continues with the end.
#[test]
fn an_end_in_a_wait_set_may_be_split() {
    let (a, b) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&a, 1, Interest::Readable, Mode::Level).unwrap();
    let (mut sender, mut receiver) = halves(a);
    b.send(b"news").unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, SOON).unwrap(), 1);
    assert_eq!(receiver.try_recv().unwrap().bytes(), b"news");
    sender.send(b"answer").unwrap();
    assert_eq!(b.recv().unwrap().bytes(), b"answer");
}

/// Shows that halves follow an other end that moves all the time.
#[test]
fn halves_follow_the_other_end() {
    let (actor, channel) = spawn("sends the end around");
    let (near, far) = Channel::pair().unwrap();
    let (mut sender, mut receiver) = halves(near);
    channel.send(Outgoing::new(b"").handle(far)).unwrap();
    let receiving = std::thread::spawn(move || {
        for number in 0..200_u64 {
            assert_eq!(receiver.recv_by(DEADLINE).unwrap().bytes(), number.to_le_bytes());
        }
        assert_eq!(receiver.recv_by(DEADLINE).unwrap().bytes(), b"stopped");
    });
    for number in 0..200_u64 {
        sender.send_by(&number.to_le_bytes(), DEADLINE).unwrap();
        std::thread::yield_now();
    }
    sender.send_by(b"stop", DEADLINE).unwrap();
    receiving.join().unwrap();
    finish(actor);
}
