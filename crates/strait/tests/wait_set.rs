//! Waiting for many channels at once.

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::{DEADLINE, SOON, Watched, alone, finish, parent, play, spawn, wait_until};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::{Channel, Deadline, Error, Event, Handle, Interest, Mode, Options, Outgoing, WaitSet};

#[test]
fn child() {
    play(&[("hub", |_| hub()), ("soaker", |_| soaker()), ("to the dead", |_| to_the_dead())]);
}

/// The only handle of the next message, an end.
fn recv_end(channel: &Channel) -> Channel {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    message.take_handles().unwrap().pop().expect("a handle").into_channel().expect("an end")
}

/// Does as the parent says, with the ends it is given.
fn hub() {
    let parent = parent();
    let mut ends: Vec<Channel> = Vec::new();
    while let Ok(mut message) = parent.recv() {
        let handles = message.take_handles().unwrap();
        let text = String::from_utf8(message.into_bytes()).unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse::<usize>().unwrap();
        match words[0] {
            "keep" => {
                ends.extend(handles.into_iter().filter_map(Handle::into_channel));
                continue;
            }
            "say" => ends[number(1)].send_by(words[2].as_bytes(), DEADLINE).unwrap(),
            // Says something through all of them.
            "all" => ends.iter().for_each(|end| end.send_by(b"all", DEADLINE).unwrap()),
            // Takes so many messages from one.
            "take" => (0..number(2)).for_each(|_| drop(ends[number(1)].recv_by(DEADLINE).unwrap())),
            // Sends through one until there is no room.
            "fill" => fill(&ends[number(1)]),
            // Takes what there is.
            "drain" => while ends[number(1)].try_recv().is_ok() {},
            // Sends an end through another; it waits for room.
            "pass" => {
                let what = ends.remove(number(1));
                ends[number(2)].send_by(Outgoing::new(b"end").handle(what), DEADLINE).unwrap();
            }
            // Sends back what comes through one, until it says so.
            "echo" => loop {
                let message = ends[number(1)].recv_by(DEADLINE).unwrap();
                if message.bytes() == b"enough" {
                    break;
                }
                ends[number(1)].send_by(message.bytes(), DEADLINE).unwrap();
            },
            // Takes messages from one until an end comes.
            "receive" => {
                let end = loop {
                    let mut message = ends[number(1)].recv_by(DEADLINE).unwrap();
                    if let Some(end) = message.take_handles().unwrap().pop() {
                        break end.into_channel().unwrap();
                    }
                };
                ends.push(end);
            }
            "close" => drop(ends.remove(number(1))),
            other => panic!("{other}"),
        }
        parent.send(b"done").unwrap();
    }
}

/// Starts something of which the answer comes later.
fn begin(hub: &Channel, what: &str) {
    hub.send_by(what.as_bytes(), DEADLINE).unwrap();
}

fn done(hub: &Channel) {
    assert_eq!(hub.recv_by(DEADLINE).unwrap().bytes(), b"done");
}

fn tell(hub: &Channel, what: &str) {
    begin(hub, what);
    done(hub);
}

fn keep(hub: &Channel, end: Channel) {
    hub.send_by(Outgoing::new(b"keep").handle(end), DEADLINE).unwrap();
}

/// Channels to another process: our ends of them.
fn channels(hub: &Channel, count: usize) -> Vec<Channel> {
    (0..count)
        .map(|_| {
            let (ours, theirs) = Channel::pair().unwrap();
            keep(hub, theirs);
            ours
        })
        .collect()
}

/// The keys of what is ready, sorted.
fn ready(set: &WaitSet, deadline: impl Into<Deadline>) -> Vec<u64> {
    let mut events = Vec::new();
    set.wait(&mut events, deadline).unwrap();
    let mut keys: Vec<_> = events.iter().map(Event::key).collect();
    keys.sort_unstable();
    keys
}

fn add_all(set: &WaitSet, channels: &[Channel], mode: Mode) {
    for (key, channel) in (0..).zip(channels) {
        set.add(channel, key, Interest::Readable, mode).unwrap();
    }
}

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
        assert_eq!(ready(&set, DEADLINE), [key], "as long as it is there");
        ours.try_recv().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
    }
}

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
        assert_eq!(ready(&set, DEADLINE), [key], "as long as it is there");
        ours[key as usize].try_recv().unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
    }
    // While a thread sleeps.
    for key in 0..10u64 {
        hub.send(format!("say {key} hello").as_bytes()).unwrap();
        assert_eq!(ready(&set, DEADLINE), [key]);
        ours[key as usize].try_recv().unwrap();
        hub.recv_by(DEADLINE).unwrap();
    }
    drop(hub);
    finish(actor);
}

/// Whether the set's descriptor is readable now.
fn is_signalled(set: &WaitSet) -> bool {
    poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// Sends through an end until there is no room.
fn fill(channel: &Channel) {
    while channel.try_send(&[0; 30_000]).is_ok() {}
    // The ring takes no other message of that length, but shorter ones.
    while channel.try_send(b"small").is_ok() {}
}

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
    // And all at once.
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
        set.rearm(ours).unwrap();
        assert_eq!(ready(&set, Deadline::NOW), [1], "it is still readable");
        ours.try_recv().unwrap();
        ours.try_recv().unwrap();
        set.rearm(ours).unwrap();
        assert_eq!(ready(&set, Deadline::NOW), []);
        say();
        assert_eq!(ready(&set, DEADLINE), [1]);
        set.remove(ours).unwrap();
    }
}

#[test]
fn writable_once_there_is_room_again() {
    let (_actor, hub) = spawn("hub");
    let (theirs, within) = Channel::pair().unwrap();
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    for ours in [&within, &across] {
        set.add(ours, 5, Interest::Writable, Mode::Level).unwrap();
        assert_eq!(ready(&set, DEADLINE), [5]);
        fill(ours);
        assert_eq!(ready(&set, Deadline::NOW), []);
        let mut events = Vec::new();
        if std::ptr::eq(ours, &within) {
            while theirs.try_recv().is_ok() {}
            set.wait(&mut events, DEADLINE).unwrap();
        } else {
            begin(&hub, "take 0 40");
            set.wait(&mut events, DEADLINE).unwrap();
            done(&hub);
        }
        assert!(events[0].is_writable() && !events[0].is_readable() && !events[0].has_moved());
        assert_eq!(events[0].key(), 5);
        ours.try_send(b"small").unwrap();
        set.remove(ours).unwrap();
    }
}

#[test]
fn both_directions_at_once() {
    let (theirs, ours) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    fill(&ours);
    set.add(&ours, 1, Interest::Both, Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, Deadline::NOW), Ok(0));
    theirs.send(b"hello").unwrap();
    set.wait(&mut events, DEADLINE).unwrap();
    assert!(events[0].is_readable() && !events[0].is_writable());
    while theirs.try_recv().is_ok() {}
    set.wait(&mut events, DEADLINE).unwrap();
    assert!(events[0].is_readable() && events[0].is_writable());
    ours.recv().unwrap();
    set.wait(&mut events, DEADLINE).unwrap();
    assert!(!events[0].is_readable() && events[0].is_writable());
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
                        // Nobody else was told, so it is there for us.
                        ours[key].try_recv().unwrap();
                        got[key].fetch_add(1, Ordering::SeqCst);
                        set.rearm(&ours[key]).unwrap();
                    }
                }
            });
        }
        for round in 1..=rounds {
            tell(&hub, "all");
            wait_until("all were heard", || total() == round * ours.len());
        }
        over.store(true, Ordering::SeqCst);
        over_theirs.send(b"over").unwrap();
    });
    assert!(got.iter().all(|got| got.load(Ordering::SeqCst) == rounds));
}

#[test]
fn a_level_is_seen_by_every_thread() {
    let (theirs, ours) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    let sleepers: [Watched; 3] = std::array::from_fn(|_| Watched::new());
    std::thread::scope(|scope| {
        for sleeper in &sleepers {
            let set = &set;
            scope.spawn(move || {
                sleeper.enter();
                assert_eq!(ready(set, DEADLINE), [1]);
            });
        }
        sleepers.iter().for_each(Watched::wait_until_blocked);
        theirs.send(b"to all").unwrap();
    });
}

#[test]
fn the_descriptor_in_a_loop_with_another() {
    for mode in [Mode::Level, Mode::OneShot] {
        let (_actor, hub) = spawn("hub");
        let across = channels(&hub, 20);
        let (theirs, within) = Channel::pair().unwrap();
        let set = WaitSet::new().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        // Nothing has waited yet when the first comes.
        let descriptor = set.as_fd();
        for (key, channel) in (0..).zip(&across) {
            set.add(channel, key, Interest::Readable, mode).unwrap();
        }
        set.add(&within, 100, Interest::Readable, mode).unwrap();
        let (mut pipe, mut heard, mut events) = (0, 0, Vec::new());
        for round in 1..=100 {
            match round % 3 {
                0 => begin(&hub, &format!("say {} hello", round % 20)),
                1 => theirs.send(b"hello").unwrap(),
                _ => std::io::Write::write_all(&mut writer, b"x").unwrap(),
            }
            while pipe + heard < round {
                let mut both = [PollFd::new(&descriptor, PollFlags::IN), PollFd::new(&reader, PollFlags::IN)];
                let woken = poll(&mut both, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap();
                assert!(woken > 0, "nothing in round {round}");
                if !both[1].revents().is_empty() {
                    assert_eq!(rustix::io::read(&reader, &mut [0; 8]).unwrap(), 1);
                    pipe += 1;
                }
                if !both[0].revents().is_empty() {
                    // Once for each time that it is readable.
                    set.wait(&mut events, Deadline::NOW).unwrap();
                    for event in &events {
                        let channel = if event.key() == 100 { &within } else { &across[event.key() as usize] };
                        while channel.try_recv().is_ok() {
                            heard += 1;
                        }
                        if mode == Mode::OneShot {
                            set.rearm(channel).unwrap();
                        }
                    }
                }
            }
            if round % 3 == 0 {
                done(&hub);
            }
        }
        assert_eq!(pipe, 33);
        while set.wait(&mut events, Deadline::NOW).unwrap() > 0 {}
        assert!(!is_signalled(&set));
        theirs.send(b"hello").unwrap();
        assert!(is_signalled(&set));
        assert_eq!(ready(&set, Deadline::NOW), [100]);
        if mode == Mode::Level {
            assert!(is_signalled(&set), "as long as it is there");
        }
    }
}

#[test]
fn the_descriptor_of_a_set_that_has_something_already() {
    let (theirs, ours) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    theirs.send(b"hello").unwrap();
    assert!(is_signalled(&set));
    assert_eq!(ready(&set, Deadline::NOW), [1]);
}

/// As within a process, with the answer of another.
#[test]
fn what_another_process_sends_just_then_is_not_lost() {
    let (_actor, hub) = spawn("hub");
    let [ours] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    begin(&hub, "echo 0");
    let mut random = Random(1);
    for round in 0..20_000 {
        ours.send(b"x").unwrap();
        for _ in 0..random.below(300) {
            std::hint::black_box(&random);
        }
        assert_eq!(ready(&set, DEADLINE), [1], "round {round}");
        ours.try_recv().unwrap();
    }
    ours.send(b"enough").unwrap();
    done(&hub);
}

#[test]
fn an_idle_set_makes_no_wake_ups() {
    let (_actor, hub) = spawn("hub");
    let across = channels(&hub, 100);
    let (theirs, within) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    add_all(&set, &across, Mode::Level);
    set.add(&hub, 1000, Interest::Readable, Mode::Level).unwrap();
    set.add(&within, 1001, Interest::Both, Mode::OneShot).unwrap();
    assert_eq!(ready(&set, DEADLINE), [1001], "writable");
    set.remove(&within).unwrap();
    set.add(&within, 1001, Interest::Readable, Mode::Level).unwrap();
    for polled in [false, true] {
        let sleeper = Watched::new();
        std::thread::scope(|scope| {
            let (set, within) = (&set, &within);
            let sleeper = &sleeper;
            scope.spawn(move || {
                if polled {
                    while !is_signalled(set) || ready(set, Deadline::NOW).is_empty() {
                        sleeper.enter();
                        poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&Timespec { tv_sec: 60, tv_nsec: 0 }))
                            .unwrap();
                    }
                } else {
                    sleeper.enter();
                    assert_eq!(ready(set, DEADLINE), [1001]);
                }
                within.recv().unwrap();
            });
            sleeper.assert_idle();
            theirs.send(b"over").unwrap();
        });
    }
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
    assert_eq!(set.rearm(&across[0]), Err(Error::NotInSet));
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
    // A set that is gone has no members.
    drop(one);
    other.add(&ours, 3, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(ready(&other, DEADLINE), [3]);
}

#[test]
fn a_member_that_is_sent_away_says_so_once() {
    let (_actor, hub) = spawn("hub");
    let (near, far) = Channel::pair().unwrap();
    let set = WaitSet::new().unwrap();
    let mut events = Vec::new();
    for mode in [Mode::Level, Mode::OneShot] {
        // Within the process, to another, and from one that is not ready or already told.
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
                // Its new holder can add it at once.
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
    // Nobody else may have the socket of the dead.
    alone("to the dead", "");
}

fn to_the_dead() {
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

#[test]
fn a_member_whose_peer_moves_notices_nothing() {
    let (_one_actor, one) = spawn("hub");
    let (_other_actor, other) = spawn("hub");
    // From the one to the other.
    let (bridge, bridge_end) = Channel::pair().unwrap();
    keep(&one, bridge);
    keep(&other, bridge_end);
    let set = WaitSet::new().unwrap();
    // From this process to the one, from there to the other, and back here.
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
    // Its holder dies.
    begin(&one, "close 1");
    assert_eq!(ready(&set, DEADLINE), [1]);
    assert_eq!(ours.try_recv().unwrap_err(), Error::PeerClosed);
}

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
        // The mover has marked the lane and waits for room to say that it hands over.
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
        // And back, with nothing in the way.
        tell(&other, "pass 1 0");
        tell(&one, "receive 0");
    }
}

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
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(10), "writable");
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
    // One that was told stays a member.
    let told = ours.swap_remove(5);
    drop(ours);
    assert_eq!(told.try_recv().unwrap_err(), Error::PeerClosed);
    assert_eq!(ready(&set, Deadline::NOW), []);
    set.rearm(&others[3]).unwrap();
    assert_eq!(ready(&set, DEADLINE), [1003]);
    set.remove(&others[3]).unwrap();
    set.add(&others[3], 3, Interest::Readable, Mode::Level).unwrap();
    let sleeper = Watched::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            sleeper.enter();
            assert_eq!(ready(&set, DEADLINE), [3]);
        });
        // A dead process's socket is readable for ever, which must not keep the set awake.
        sleeper.assert_idle();
        begin(&other, "say 3 alive");
    });
}

fn ready_with_room(set: &WaitSet, room: usize) -> Vec<u64> {
    let mut events = Vec::with_capacity(room);
    set.wait(&mut events, DEADLINE).unwrap();
    let mut keys: Vec<_> = events.iter().map(Event::key).collect();
    keys.sort_unstable();
    keys
}

#[test]
fn ready_members_take_turns() {
    let pairs: Vec<_> = (0..10).map(|_| Channel::pair().unwrap()).collect();
    let (_actor, hub) = spawn("hub");
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&across, 10, Interest::Readable, Mode::Level).unwrap();
    for (key, (theirs, ours)) in (0..).zip(&pairs) {
        set.add(ours, key, Interest::Readable, Mode::Level).unwrap();
        theirs.send(b"never taken").unwrap();
    }
    // Its side is open from here on, so that asking for its answer below takes nothing from the socket.
    tell(&hub, "drain 0");
    let mut events = Vec::with_capacity(3);
    let mut told = [0; 11];
    for _ in 0..40 {
        assert_eq!(set.wait(&mut events, DEADLINE), Ok(3));
        events.iter().for_each(|event| told[event.key() as usize] += 1);
    }
    assert_eq!(told, [12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 0]);
    // Nor do they keep another from being heard.
    tell_from(&hub, 0);
    let mut calls = 0;
    while !events.iter().any(|event| event.key() == 10) {
        set.wait(&mut events, DEADLINE).unwrap();
        calls += 1;
    }
    assert!(calls <= 6, "{calls} calls");
}

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

#[test]
fn a_thread_that_blocks_on_a_member_goes_first() {
    let (_actor, hub) = spawn("hub");
    let (theirs, within) = Channel::pair().unwrap();
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    for ours in [&within, &across] {
        let say = || if std::ptr::eq(ours, &within) { theirs.send(b"a").unwrap() } else { tell(&hub, "say 0 a") };
        // Added before and while another thread blocks.
        for before in [true, false] {
            if before {
                set.add(ours, 1, Interest::Readable, Mode::Level).unwrap();
            }
            let sleeper = Watched::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    sleeper.enter();
                    ours.recv_by(DEADLINE).unwrap();
                });
                sleeper.wait_until_blocked();
                if !before {
                    set.add(ours, 1, Interest::Readable, Mode::Level).unwrap();
                }
                assert_eq!(ready(&set, Deadline::NOW), []);
                say();
            });
            assert_eq!(ready(&set, Deadline::NOW), []);
            say();
            assert_eq!(ready(&set, DEADLINE), [1]);
            // A view of a message is held.
            let view = ours.recv_in_place(DEADLINE).unwrap();
            say();
            assert_eq!(ready(&set, Deadline::NOW), []);
            drop(view);
            assert_eq!(ready(&set, DEADLINE), [1]);
            ours.try_recv().unwrap();
            // A wait whose time is up.
            assert_eq!(ours.recv_by(Duration::from_millis(30)).unwrap_err(), Error::TimedOut);
            assert_eq!(ready(&set, Deadline::NOW), []);
            say();
            assert_eq!(ready(&set, DEADLINE), [1]);
            ours.try_recv().unwrap();
            set.remove(ours).unwrap();
        }
    }
}

/// They share the socket: who receives a wake-up that was meant for another passes it on.
#[test]
fn several_sets_and_a_receiver_on_one_link() {
    let (_actor, hub) = spawn("hub");
    let ours = channels(&hub, 4);
    let sets = [WaitSet::new().unwrap(), WaitSet::new().unwrap(), WaitSet::new().unwrap()];
    for (set, channel) in sets.iter().zip(&ours) {
        set.add(channel, 1, Interest::Readable, Mode::Level).unwrap();
    }
    // The last of them is asked by its descriptor.
    let descriptor = sets[2].as_fd();
    let heard: [AtomicUsize; 4] = Default::default();
    let rounds = 100;
    std::thread::scope(|scope| {
        for which in 0..4 {
            let (sets, ours, heard) = (&sets, &ours, &heard);
            scope.spawn(move || {
                while heard[which].load(Ordering::SeqCst) < rounds {
                    match which {
                        3 => {
                            ours[3].recv_by(DEADLINE).unwrap();
                        }
                        _ => {
                            if which == 2 {
                                let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
                                assert_eq!(poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&limit)), Ok(1));
                                if ready(&sets[2], Deadline::NOW).is_empty() {
                                    continue;
                                }
                            } else {
                                assert_eq!(ready(&sets[which], DEADLINE), [1]);
                            }
                            ours[which].try_recv().unwrap();
                        }
                    }
                    heard[which].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        for round in 1..=rounds {
            for which in 0..4 {
                // None of those before it is there to help.
                let which = (which + round) % 4;
                tell_from(&hub, which);
                wait_until("it was heard", || heard[which].load(Ordering::SeqCst) == round);
            }
        }
    });
}

/// Has the hub say something, without a wait for its answer on the same link.
fn tell_from(hub: &Channel, which: usize) {
    begin(hub, &format!("say {which} hello"));
    while hub.try_recv().is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn members_come_and_go_while_threads_wait() {
    let (_actor, hub) = spawn("hub");
    let across = channels(&hub, 4);
    let pairs: Vec<_> = (0..4).map(|_| Channel::pair().unwrap()).collect();
    let all: Vec<&Channel> = across.iter().chain(pairs.iter().map(|(_, ours)| ours)).collect();
    let set = WaitSet::new().unwrap();
    let heard: Vec<AtomicUsize> = all.iter().map(|_| AtomicUsize::new(0)).collect();
    let over = AtomicBool::new(false);
    let rounds = 300;
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut events = Vec::new();
                while !over.load(Ordering::SeqCst) {
                    set.wait(&mut events, Duration::from_millis(100)).unwrap();
                    for event in &events {
                        let key = event.key() as usize;
                        while all[key].try_recv().is_ok() {
                            heard[key].fetch_add(1, Ordering::SeqCst);
                        }
                    }
                }
            });
        }
        for round in 0..rounds {
            // One after the other is out of the set when something comes for it.
            let out = all[round % all.len()];
            let _ = set.remove(out);
            begin(&hub, "all");
            pairs.iter().for_each(|(theirs, _)| theirs.send(b"all").unwrap());
            if round % 2 == 0 {
                done(&hub);
            }
            for (key, channel) in (0..).zip(&all) {
                match set.add(channel, key, Interest::Readable, Mode::Level) {
                    Ok(()) | Err(Error::InSet) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            if round % 2 == 1 {
                done(&hub);
            }
            wait_until("all were heard", || heard.iter().all(|heard| heard.load(Ordering::SeqCst) > round));
        }
        over.store(true, Ordering::SeqCst);
    });
    assert!(heard.iter().all(|heard| heard.load(Ordering::SeqCst) == rounds));
}

/// What comes at the very moment when the set says that it listens: the other side lets a few nanoseconds pass, each time
/// others.
///
/// Both sides spin, so that where they share a core, or others use it, each round takes as long as a thread may run: there are fewer
/// rounds then.
#[test]
fn what_comes_just_then_is_not_lost() {
    let rounds = 150_000;
    let enough = Duration::from_secs(10);
    let options = Options::new().queue_messages(1);
    for interest in [Interest::Readable, Interest::Writable] {
        let (theirs, ours) = Channel::pair_with(&options).unwrap();
        let set = WaitSet::new().unwrap();
        set.add(&ours, 1, interest, Mode::Level).unwrap();
        let (round, begin) = (AtomicUsize::new(0), Instant::now());
        std::thread::scope(|scope| {
            let round = &round;
            scope.spawn(move || {
                let mut random = Random(1);
                for n in 1.. {
                    let asked = loop {
                        match round.load(Ordering::Acquire) {
                            asked if asked >= n => break asked,
                            _ => std::hint::spin_loop(),
                        }
                    };
                    if asked == usize::MAX {
                        break;
                    }
                    for _ in 0..random.below(60) {
                        std::hint::black_box(&random);
                    }
                    match interest {
                        Interest::Readable => theirs.send(b"x").unwrap(),
                        _ => drop(theirs.recv().unwrap()),
                    }
                }
            });
            // Also if this thread fails: the other one would spin for ever, and nobody would be told why.
            let _over = Over(round);
            for n in 1..=rounds {
                if interest == Interest::Writable {
                    ours.try_send(b"x").unwrap();
                }
                round.store(n, Ordering::Release);
                assert_eq!(ready(&set, DEADLINE), [1], "round {n}");
                if interest == Interest::Readable {
                    ours.try_recv().unwrap();
                }
                if begin.elapsed() > enough {
                    eprintln!("{n} rounds of {interest:?} on a crowded machine");
                    break;
                }
            }
        });
    }
}

/// Says to the thread that waits for the next round that there is none, when it is dropped.
struct Over<'a>(&'a AtomicUsize);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(usize::MAX, Ordering::Release);
    }
}

/// The same numbers for the same seed (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % n as u64) as usize
    }
}

/// Does as the parent says, without an answer: sends numbers through ends, and sends ends to another of its kind and
/// back.
fn soaker() {
    let parent = parent();
    let mut ends = std::collections::BTreeMap::new();
    let mut bridge = None;
    while let Ok(mut message) = parent.recv() {
        let end = message.take_handles().unwrap().pop().and_then(Handle::into_channel);
        let text = String::from_utf8(message.into_bytes()).unwrap();
        let words: Vec<&str> = text.split(' ').collect();
        let number = |at: usize| words[at].parse::<u64>().unwrap();
        match words[0] {
            "bridge" => bridge = end,
            "keep" => drop(ends.insert(number(1), end.unwrap())),
            "say" => {
                let row: Vec<[u8; 8]> = (number(2)..number(3)).map(u64::to_le_bytes).collect();
                ends[&number(1)].send_many(row.iter().map(|n| n.as_slice()), DEADLINE).unwrap();
            }
            "pass" => {
                let what = ends.remove(&number(1)).unwrap();
                bridge
                    .as_ref()
                    .unwrap()
                    .send_by(Outgoing::new(&number(1).to_le_bytes()).handle(what), DEADLINE)
                    .unwrap();
            }
            "receive" => {
                let mut message = bridge.as_ref().unwrap().recv_by(DEADLINE).unwrap();
                let end = message.take_handles().unwrap().pop().unwrap().into_channel().unwrap();
                ends.insert(u64::from_le_bytes(message.bytes().try_into().unwrap()), end);
            }
            other => panic!("{other}"),
        }
    }
}

/// Channels to two processes and within this one; messages in bursts, ends that move between the two, members that come
/// and go, threads that block on them: whatever was sent must be told of.
#[test]
fn soak() {
    let setting = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let seed = setting("STRAIT_SOAK_SEED").unwrap_or_else(|| {
        Instant::now().elapsed().as_nanos() as u64 ^ u64::from(std::process::id()) << 20 ^ std::ptr::from_ref(&0) as u64
    });
    println!("STRAIT_SOAK_SEED={seed}");
    let end = Instant::now() + Duration::from_secs(setting("STRAIT_SOAK_SECONDS").unwrap_or(4));
    let mut random = Random(seed);
    let hubs: [_; 2] = std::array::from_fn(|_| spawn("soaker"));
    let (bridge, bridge_end) = Channel::pair().unwrap();
    for ((_, hub), bridge) in hubs.iter().zip([bridge, bridge_end]) {
        hub.send(Outgoing::new(b"bridge").handle(bridge)).unwrap();
    }
    const WITHIN: usize = 8;
    const COUNT: usize = 40;
    let mut theirs = Vec::new();
    let mut ours = Vec::new();
    // Which of the two processes has the other end.
    let mut holders = vec![0; COUNT];
    for (key, holder) in holders.iter_mut().enumerate() {
        let (one, other) = Channel::pair().unwrap();
        ours.push(one);
        if key < WITHIN {
            theirs.push(other);
        } else {
            *holder = random.below(2);
            hubs[*holder].1.send(Outgoing::new(format!("keep {key}").as_bytes()).handle(other)).unwrap();
        }
    }
    let set = WaitSet::new().unwrap();
    let mode = |random: &mut Random| if random.below(2) == 0 { Mode::Level } else { Mode::OneShot };
    for (key, channel) in (0..).zip(&ours) {
        set.add(channel, key, Interest::Readable, mode(&mut random)).unwrap();
    }
    let mut sent = vec![0u64; COUNT];
    let heard: Vec<std::sync::Mutex<Vec<bool>>> = ours.iter().map(|_| Default::default()).collect();
    let hear = |key: usize, bytes: &[u8]| {
        let n = u64::from_le_bytes(bytes.try_into().unwrap()) as usize;
        let mut heard = heard[key].lock().unwrap();
        let len = heard.len().max(n + 1);
        heard.resize(len, false);
        assert!(!std::mem::replace(&mut heard[n], true), "message {n} of {key} came twice");
    };
    let over = AtomicBool::new(false);
    let (set, ours, over, hear) = (&set, &ours, &over, &hear);
    std::thread::scope(|scope| {
        for waiter in 0..2 {
            let mut random = Random(seed ^ (waiter + 1));
            scope.spawn(move || {
                let mut events = Vec::with_capacity(8);
                while !over.load(Ordering::SeqCst) {
                    // The one waits by the descriptor.
                    let mut deadline = Deadline::after(Duration::from_millis(200));
                    if waiter == 1 {
                        poll(
                            &mut [PollFd::new(set, PollFlags::IN)],
                            Some(&Timespec { tv_sec: 0, tv_nsec: 200_000_000 }),
                        )
                        .unwrap();
                        deadline = Deadline::NOW;
                    }
                    set.wait(&mut events, deadline).unwrap();
                    for event in &events {
                        assert!(event.is_readable());
                        let key = event.key() as usize;
                        for _ in 0..1 + random.below(5) {
                            if let Ok(message) = ours[key].try_recv() {
                                hear(key, message.bytes());
                            }
                        }
                        match set.rearm(&ours[key]) {
                            Ok(()) | Err(Error::NotInSet) => {}
                            Err(error) => panic!("{error}"),
                        }
                    }
                }
            });
        }
        let mut others = Random(seed ^ 99);
        let disturber = scope.spawn(move || {
            let mut out = [false; COUNT];
            while Instant::now() < end {
                let key = others.below(COUNT);
                match others.below(4) {
                    0 => {
                        if let Ok(message) = ours[key].recv_by(Duration::from_micros(others.below(2000) as u64)) {
                            hear(key, message.bytes());
                        }
                    }
                    1 => {
                        if let Ok(view) = ours[key].recv_in_place(Deadline::NOW) {
                            let mut bytes = [0; 8];
                            let mut view = view;
                            view.copy_to(0, &mut bytes);
                            hear(key, &bytes);
                        }
                    }
                    _ if out[key] => {
                        set.add(&ours[key], key as u64, Interest::Readable, mode(&mut others)).unwrap();
                        out[key] = false;
                    }
                    _ => {
                        set.remove(&ours[key]).unwrap();
                        out[key] = true;
                    }
                }
                std::thread::sleep(Duration::from_micros(others.below(300) as u64));
            }
            for (key, _) in out.iter().enumerate().filter(|(_, out)| **out) {
                set.add(&ours[key], key as u64, Interest::Readable, mode(&mut others)).unwrap();
            }
        });
        let mut moves = 0;
        while Instant::now() < end {
            let key = random.below(COUNT);
            let from = sent[key];
            let say = |to: u64| format!("say {key} {from} {to}");
            if key < WITHIN {
                theirs[key].send(&from.to_le_bytes()).unwrap();
                sent[key] += 1;
            } else if random.below(3) > 0 {
                sent[key] += 1 + random.below(6) as u64;
                hubs[holders[key]].1.send(say(sent[key]).as_bytes()).unwrap();
            } else {
                hubs[holders[key]].1.send(format!("pass {key}").as_bytes()).unwrap();
                holders[key] = 1 - holders[key];
                hubs[holders[key]].1.send(b"receive").unwrap();
                // They wait for each other: at most so far behind.
                moves += 1;
            }
            if random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(random.below(1500) as u64));
            }
        }
        disturber.join().unwrap();
        let count = || {
            heard.iter().map(|heard| heard.lock().unwrap().iter().filter(|heard| **heard).count() as u64).sum::<u64>()
        };
        let total = sent.iter().sum::<u64>();
        println!("{total} messages, {moves} moves");
        let begin = Instant::now();
        while count() < total && begin.elapsed() < DEADLINE {
            std::thread::sleep(Duration::from_millis(5));
        }
        over.store(true, Ordering::SeqCst);
        let missing: Vec<_> = (0..COUNT)
            .filter(|key| heard[*key].lock().unwrap().iter().filter(|heard| **heard).count() as u64 != sent[*key])
            .map(|key| (key, sent[key], ours[key].try_recv().map(|message| message.into_bytes())))
            .collect();
        assert!(missing.is_empty(), "seed {seed}: not told of {missing:?}");
    });
}
