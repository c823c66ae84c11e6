//! Tests of the members of a wait set: adding, removing, moving, and the death of peers.

use std::time::{Duration, Instant};

use crate::common::{DEADLINE, SOON, Watched, alone, finish, spawn};
use crate::roles::{add_all, begin, channels, done, keep, ready, tell};
use strait::wait::{Event, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Outgoing};

/// Receives a message and returns its last handle, a channel end.
pub(crate) fn recv_end(channel: &Channel) -> Channel {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    message.take_handles().unwrap().pop().expect("a handle").into_channel().expect("an end")
}

/// Shows that a wait set reports the single ready member of ten whose other ends are in this process.
#[test]
fn one_of_some_within_the_process() {
    let pairs: Vec<_> = (0..10).map(|_| Channel::pair().unwrap()).collect();
    let set = WaitSet::new().unwrap();
    for (key, (_, ours)) in (0..).zip(&pairs) {
        set.add(ours, key, Interest::Readable, Mode::Level).unwrap();
    }
    assert_eq!(set.len(), 10);
    assert_eq!(ready(&set, Deadline::NOW), []);
    for (key, (theirs, ours)) in (0..).zip(&pairs) {
        theirs.send(b"hello").unwrap();
        assert_eq!(ready(&set, DEADLINE), [key]);
        assert_eq!(ready(&set, DEADLINE), [key], "a message was not reported again");
        ours.try_recv().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
    }
}

/// Shows that a wait set reports the single ready member of ten whose other ends are in another process.
#[test]
fn one_of_some_to_another_process() {
    let (actor, hub) = spawn("hub");
    let ours = channels(&hub, 10);
    let set = WaitSet::new().unwrap();
    add_all(&set, &ours, Mode::Level);
    assert_eq!(ready(&set, Deadline::NOW), []);
    for key in 0..10u64 {
        tell(&hub, &format!("say {key} hello"));
        assert_eq!(ready(&set, DEADLINE), [key]);
        assert_eq!(ready(&set, DEADLINE), [key], "a message was not reported again");
        ours[key as usize].try_recv().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
    }
    // The messages arrive while a thread sleeps.
    for key in 0..10u64 {
        hub.send(format!("say {key} hello").as_bytes()).unwrap();
        assert_eq!(ready(&set, DEADLINE), [key]);
        ours[key as usize].try_recv().unwrap();
        hub.recv_by(DEADLINE).unwrap();
    }
    drop(hub);
    finish(actor);
}

/// Shows that a wait set of twenty thousand members reports a single ready member, and all members at once.
#[test]
fn one_active_among_twenty_thousand() {
    let (actor, hub) = spawn("hub");
    let count = 20_000;
    let ours = channels(&hub, count);
    let set = WaitSet::new().unwrap();
    add_all(&set, &ours, Mode::Level);
    assert_eq!(set.len(), count);
    assert_eq!(ready(&set, Deadline::NOW), []);
    for n in 0..200 {
        let key = n * 7919 % count;
        begin(&hub, &format!("say {key} hello"));
        assert_eq!(ready(&set, DEADLINE), [key as u64]);
        ours[key].try_recv().unwrap();
        done(&hub);
    }
    // All members become ready at once.
    begin(&hub, "all");
    let mut heard = vec![false; count];
    let mut events = Vec::new();
    while heard.iter().any(|heard| !heard) {
        assert!(set.wait(&mut events, DEADLINE).unwrap() > 0);
        for event in &events {
            if ours[event.key() as usize].try_recv().is_ok() {
                assert!(!std::mem::replace(&mut heard[event.key() as usize], true));
            }
        }
    }
    done(&hub);
    for channel in ours.iter().take(count / 2) {
        set.remove(channel).unwrap();
    }
    assert_eq!(set.len(), count / 2);
    drop(ours);
    assert_eq!(set.len(), 0);
    drop(hub);
    finish(actor);
}

#[test]
fn a_member_that_is_dropped_leaves_the_set() {
    let (_actor, hub) = spawn("hub");
    let mut across = channels(&hub, 3);
    let set = WaitSet::new().unwrap();
    add_all(&set, &across, Mode::Level);
    tell(&hub, "all");
    assert_eq!(ready(&set, DEADLINE), [0, 1, 2]);
    drop(across.remove(1));
    assert_eq!(set.len(), 2);
    assert_eq!(ready(&set, DEADLINE), [0, 2]);
    set.remove(&across[0]).unwrap();
    assert_eq!(set.remove(&across[0]), Err(Error::NotInSet));
    assert_eq!(set.modify(&across[0], 0, Interest::Readable, Mode::Level), Err(Error::NotInSet));
    assert_eq!(ready(&set, DEADLINE), [2]);
    drop(across);
    assert_eq!(ready(&set, Deadline::NOW), []);
    assert!(set.is_empty());
}

#[test]
fn a_channel_is_in_one_set_at_a_time() {
    let (theirs, ours) = Channel::pair().unwrap();
    let (one, other) = (WaitSet::new().unwrap(), WaitSet::new().unwrap());
    one.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(one.add(&ours, 2, Interest::Readable, Mode::Level), Err(Error::InSet));
    assert_eq!(other.add(&ours, 3, Interest::Readable, Mode::Level), Err(Error::InSet));
    assert_eq!(other.remove(&ours), Err(Error::NotInSet));
    assert_eq!((one.len(), other.len()), (1, 0));
    theirs.send(b"hello").unwrap();
    assert_eq!(ready(&one, DEADLINE), [1]);
    // A dropped set has no members.
    drop(one);
    other.add(&ours, 3, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(ready(&other, DEADLINE), [3]);
}

/// Shows that a sent member leaves its wait set and is reported once as moved.
#[test]
fn a_member_that_is_sent_away_says_so_once() {
    let (_actor, hub) = spawn("hub");
    let (near, far) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    let mut events = Vec::new();
    for mode in [Mode::Level, Mode::OneShot] {
        // The end moves within the process or to another one, when it is not ready or has been reported already.
        for (over, ready_before) in [(&near, false), (&near, true), (&hub, false), (&hub, true)] {
            let (theirs, ours) = Channel::pair().unwrap();
            set.add(&ours, 9, Interest::Readable, mode).unwrap();
            if ready_before {
                theirs.send(b"unread").unwrap();
                set.wait(&mut events, DEADLINE).unwrap();
                assert!(events[0].is_readable());
            }
            over.send_by(Outgoing::new(b"keep").handle(ours), DEADLINE).unwrap();
            assert!(set.is_empty());
            assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
            assert!(events[0].has_moved() && !events[0].is_readable() && events[0].key() == 9);
            assert_eq!(set.wait(&mut events, Deadline::NOW), Ok(0));
            if std::ptr::eq(over, &near) {
                // The new holder of the end can add it at once.
                let ours = recv_end(&far);
                set.add(&ours, 10, Interest::Readable, mode).unwrap();
                theirs.send(b"more").unwrap();
                assert_eq!(ready(&set, DEADLINE), [10]);
            }
        }
    }
}

#[test]
fn a_member_that_could_not_be_sent_stays() {
    // In a process of its own no other process has a copy of the dead peer's socket.
    alone("to the dead", "");
}

pub(crate) fn to_the_dead() {
    let (mut actor, dead) = spawn("hub");
    actor.kill();
    let (_other_actor, hub) = spawn("hub");
    let (theirs, within) = Channel::pair().unwrap();
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    for (ours, key) in [(within, 1), (across, 2)] {
        set.add(&ours, key, Interest::Readable, Mode::Level).unwrap();
        let failed = dead.send_by(Outgoing::new(b"keep").handle(ours), SOON).unwrap_err();
        let _ours = failed.handles.into_iter().next().unwrap().into_channel().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
        assert_eq!(set.len(), 1);
        if key == 1 {
            theirs.send(b"hello").unwrap();
        } else {
            tell(&hub, "say 0 hello");
        }
        assert_eq!(ready(&set, DEADLINE), [key]);
    }
}

/// Shows that a wait set reports messages of a member whose other end moves between processes, and no event for the
/// moves.
#[test]
fn a_member_whose_peer_moves_notices_nothing() {
    let (_one_actor, one) = spawn("hub");
    let (_other_actor, other) = spawn("hub");
    // A channel between the two hubs.
    let (bridge, bridge_end) = Channel::pair().unwrap();
    keep(&one, bridge);
    keep(&other, bridge_end);
    let set = WaitSet::new().unwrap();
    // The other end moves from this process to one hub, from there to the other hub, and back to the first.
    let (ours, theirs) = Channel::pair().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(ready(&set, Deadline::NOW), []);
    keep(&one, theirs);
    assert_eq!(ready(&set, Deadline::NOW), []);
    let hear = |what: &[u8]| {
        assert_eq!(ready(&set, DEADLINE), [1]);
        assert_eq!(ours.try_recv().unwrap().bytes(), what);
    };
    begin(&one, "say 1 first");
    hear(b"first");
    done(&one);
    begin(&one, "say 1 second");
    begin(&one, "pass 1 0");
    begin(&other, "receive 0");
    begin(&other, "say 1 third");
    hear(b"second");
    hear(b"third");
    for hub in [&one, &one, &other, &other] {
        done(hub);
    }
    begin(&other, "pass 1 0");
    begin(&one, "receive 0");
    begin(&one, "say 1 fourth");
    hear(b"fourth");
    // The holder closes the end.
    begin(&one, "close 1");
    assert_eq!(ready(&set, DEADLINE), [1]);
    assert_eq!(ours.try_recv().unwrap_err(), Error::PeerClosed);
}

/// Shows that a wait set reports no event of a member while its other end is in transit, and reports messages
/// afterwards.
#[test]
fn a_member_whose_peer_is_on_its_way() {
    let (_one_actor, one) = spawn("hub");
    let (_other_actor, other) = spawn("hub");
    let (bridge, bridge_end) = Channel::pair().unwrap();
    keep(&one, bridge);
    keep(&other, bridge_end);
    let [ours] = channels(&one, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Both, Mode::Level).unwrap();
    set.remove(&ours).unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    for round in 0..5 {
        // The source has marked the lane, and waits for room for the message that hands the end over.
        tell(&one, "fill 0");
        begin(&one, "pass 1 0");
        let before = Instant::now();
        while before.elapsed() < Duration::from_millis(50) {
            assert_eq!(ready(&set, Duration::from_millis(5)), []);
        }
        begin(&other, "receive 0");
        begin(&other, &format!("say 1 round{round}"));
        assert_eq!(ready(&set, DEADLINE), [1]);
        assert_eq!(ours.try_recv().unwrap().bytes(), format!("round{round}").as_bytes());
        done(&one);
        done(&other);
        done(&other);
        // The end moves back, with room to send.
        tell(&other, "pass 1 0");
        tell(&one, "receive 0");
    }
}

/// Shows that a wait set reports the close of a member if the process that moves the other end dies in the middle.
#[test]
fn the_mover_dies() {
    let (mut one_actor, one) = spawn("hub");
    let (_other_actor, other) = spawn("hub");
    let (bridge, bridge_end) = Channel::pair().unwrap();
    keep(&one, bridge);
    keep(&other, bridge_end);
    let [ours] = channels(&one, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    tell(&one, "fill 0");
    begin(&one, "pass 1 0");
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(ready(&set, Deadline::NOW), []);
    one_actor.kill();
    assert_eq!(ready(&set, DEADLINE), [1]);
    assert_eq!(ours.try_recv().unwrap_err(), Error::PeerClosed);
    tell(&other, "drain 0");
}

#[test]
fn when_a_process_dies_all_its_members_are_readable() {
    let (mut actor, hub) = spawn("hub");
    let (_other_actor, other) = spawn("hub");
    let mut ours = channels(&hub, 300);
    let others = channels(&other, 10);
    let set = WaitSet::new().unwrap();
    add_all(&set, &ours, Mode::Level);
    set.remove(&ours[5]).unwrap();
    set.add(&ours[5], 5, Interest::Readable, Mode::OneShot).unwrap();
    for (key, channel) in (1000..).zip(&others) {
        set.add(channel, key, Interest::Both, Mode::OneShot).unwrap();
    }
    let mut events = Vec::with_capacity(1000);
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(10), "the members are not writable");
    tell(&hub, "say 7 last");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut events = Vec::with_capacity(1000);
            while events.len() < 299 {
                set.wait(&mut events, DEADLINE).unwrap();
            }
        });
        actor.kill();
    });
    let left: Vec<u64> = ready_with_room(&set, 1000).into_iter().filter(|key| *key != 5).collect();
    assert_eq!(left, (0..300).filter(|key| *key != 5).collect::<Vec<_>>());
    assert_eq!(ours[7].try_recv().unwrap().bytes(), b"last");
    assert_eq!(ours[7].try_recv().unwrap_err(), Error::PeerClosed);
    // A reported one-shot member stays a member.
    let told = ours.swap_remove(5);
    drop(ours);
    assert_eq!(told.try_recv().unwrap_err(), Error::PeerClosed);
    assert_eq!(ready(&set, Deadline::NOW), []);
    set.modify(&others[3], 1003, Interest::Both, Mode::OneShot).unwrap();
    assert_eq!(ready(&set, DEADLINE), [1003]);
    set.remove(&others[3]).unwrap();
    set.add(&others[3], 3, Interest::Readable, Mode::Level).unwrap();
    let sleeper = Watched::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sleeper.enter();
            assert_eq!(ready(&set, DEADLINE), [3]);
        });
        // The socket of a dead process stays readable, which must not keep the set awake.
        sleeper.assert_idle();
        begin(&other, "say 3 alive");
    });
}

pub(crate) fn ready_with_room(set: &WaitSet, room: usize) -> Vec<u64> {
    let mut events = Vec::with_capacity(room);
    set.wait(&mut events, DEADLINE).unwrap();
    let mut keys: Vec<_> = events.iter().map(Event::key).collect();
    keys.sort_unstable();
    keys
}

/// Shows that a channel can be added before its peer has opened its side.
#[test]
fn the_first_channel_before_the_other_side_is_there() {
    let (actor, hub) = spawn("hub");
    let set = WaitSet::new().unwrap();
    set.add(&hub, 4, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(ready(&set, Deadline::NOW), []);
    begin(&hub, "all");
    assert_eq!(ready(&set, DEADLINE), [4]);
    done(&hub);
    begin(&hub, "all");
    assert_eq!(ready(&set, DEADLINE), [4]);
    done(&hub);
    drop(hub);
    finish(actor);
}
