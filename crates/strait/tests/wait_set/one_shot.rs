//! Tests of one-shot registrations.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use crate::common::{DEADLINE, spawn, wait_until};
use crate::roles::{add_all, channels, ready, tell};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Options};

/// Shows that a one-shot registration reports one event until it is rearmed.
#[test]
fn a_one_shot_tells_once_until_it_is_armed_again() {
    let (_actor, hub) = spawn("hub");
    let (theirs, within) = Channel::pair().unwrap();
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    for ours in [&within, &across] {
        set.add(ours, 1, Interest::Readable, Mode::OneShot).unwrap();
        let say = || if std::ptr::eq(ours, &within) { theirs.send(b"a").unwrap() } else { tell(&hub, "say 0 a") };
        say();
        assert_eq!(ready(&set, DEADLINE), [1]);
        assert_eq!(ready(&set, Deadline::NOW), []);
        say();
        assert_eq!(ready(&set, Deadline::NOW), []);
        set.modify(ours, 1, Interest::Readable, Mode::OneShot).unwrap();
        assert_eq!(ready(&set, Deadline::NOW), [1], "a rearmed member with messages was not reported");
        ours.try_recv().unwrap();
        ours.try_recv().unwrap();
        set.modify(ours, 1, Interest::Readable, Mode::OneShot).unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
        say();
        assert_eq!(ready(&set, DEADLINE), [1]);
        set.remove(ours).unwrap();
    }
}

#[test]
fn of_several_threads_one_gets_each_event() {
    let (_actor, hub) = spawn("hub");
    let ours = channels(&hub, 50);
    let set = WaitSet::new().unwrap();
    add_all(&set, &ours, Mode::OneShot);
    let rounds = 40;
    let got: Vec<AtomicUsize> = ours.iter().map(|_| AtomicUsize::new(0)).collect();
    let total = || got.iter().map(|got| got.load(Ordering::SeqCst)).sum::<usize>();
    let over = AtomicBool::new(false);
    let (over_theirs, over_ours) = Channel::pair().unwrap();
    set.add(&over_ours, 1000, Interest::Readable, Mode::Level).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let mut events = Vec::with_capacity(3);
                while !over.load(Ordering::SeqCst) {
                    assert!(set.wait(&mut events, DEADLINE).unwrap() > 0);
                    for event in events.iter().filter(|event| event.key() < 1000) {
                        let key = event.key() as usize;
                        // No other thread was given this event, so the message is there.
                        ours[key].try_recv().unwrap();
                        got[key].fetch_add(1, Ordering::SeqCst);
                        set.modify(&ours[key], event.key(), Interest::Readable, Mode::OneShot).unwrap();
                    }
                }
            });
        }
        for round in 1..=rounds {
            tell(&hub, "all");
            wait_until("all messages were received", || total() == round * ours.len());
        }
        over.store(true, Ordering::SeqCst);
        over_theirs.send(b"over").unwrap();
    });
    assert!(got.iter().all(|got| got.load(Ordering::SeqCst) == rounds));
}

/// Shows that a set tells when a large message may have room, and does not tell again and again as long as there is
/// room for small messages only.
#[test]
fn a_set_waits_for_the_room_of_a_message_that_did_not_fit() {
    let kind = (rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET);
    let (one, other) = rustix::net::socketpair(kind.0, kind.1, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
    let ours = Options::new().queue_bytes(1 << 20).over(one).unwrap();
    let theirs = Options::new().over(other).unwrap();
    for (from, to) in [(&ours, &theirs), (&theirs, &ours)] {
        from.send(b"hello").unwrap();
        to.recv_by(DEADLINE).unwrap();
    }
    let set = WaitSet::new().unwrap();
    assert_eq!(set.await_room(&ours, 1), Err(Error::NotInSet));
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    let large = vec![7; 700 << 10];
    let does_not_fit = || ours.try_send(&large).unwrap_err().error == Error::WouldBlock;
    ours.try_send(&large).unwrap();
    assert!(does_not_fit());
    set.await_room(&ours, 2).unwrap();
    assert!(ours.is_writable(), "there is room for a small message");
    assert_eq!(ready(&set, Duration::from_millis(50)), []);
    theirs.recv_by(DEADLINE).unwrap();
    assert_eq!(ready(&set, DEADLINE), [2]);
    assert_eq!(ready(&set, Deadline::NOW), [], "the event came twice");
    ours.try_send(&large).unwrap();

    // A change of the registration ends the wait for the room of that message.
    assert!(does_not_fit());
    set.await_room(&ours, 3).unwrap();
    assert_eq!(ready(&set, Deadline::NOW), []);
    set.modify(&ours, 4, Interest::Writable, Mode::Level).unwrap();
    assert_eq!(ready(&set, DEADLINE), [4]);

    // The end of the channel ends the wait too.
    assert!(does_not_fit());
    set.await_room(&ours, 5).unwrap();
    assert_eq!(ready(&set, Deadline::NOW), []);
    drop(theirs);
    assert_eq!(ready(&set, DEADLINE), [5]);
    assert_eq!(ours.try_send(&large).unwrap_err().error, Error::PeerClosed);
}

/// Shows that a set waits for room in the ring, with a peer in another process.
#[test]
fn a_set_waits_until_another_process_has_made_room() {
    let (_actor, hub) = spawn("hub");
    let [ours] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    let message = vec![7; 60 << 10];
    for _ in 0..3 {
        while ours.try_send(&message).is_ok() {}
        set.await_room(&ours, 2).unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
        tell(&hub, "drain 0");
        assert_eq!(ready(&set, DEADLINE), [2]);
        ours.try_send(&message).unwrap();
    }
    set.modify(&ours, 3, Interest::Readable, Mode::Level).unwrap();
    tell(&hub, "say 0 a");
    assert_eq!(ready(&set, DEADLINE), [3]);
}
