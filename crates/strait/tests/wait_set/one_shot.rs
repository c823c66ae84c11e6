//! Tests of one-shot registrations.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::common::{DEADLINE, spawn, wait_until};
use crate::roles::{add_all, channels, ready, tell};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline};

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
