//! Tests of level registrations, and of the descriptor of a wait set.

use std::os::fd::AsFd;
use std::time::Duration;

use crate::common::{DEADLINE, Watched, alone, file_with, finish, parent, spawn, wait_until};
use crate::roles::{Random, add_all, begin, channels, done, fill, ready, tell, tell_from};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use strait::wait::{Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Outgoing};

/// Whether the descriptor of the wait set is readable now.
pub(crate) fn is_signalled(set: &WaitSet) -> bool {
    poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

/// Shows that a wait set reports a member as writable when there is room again.
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

/// Shows that a wait set goes on reporting a member that is moved into other memory: messages, and room.
#[test]
fn a_member_that_is_rehomed_is_reported() {
    let (_actor, hub) = spawn("hub");
    let (theirs, within) = Channel::pair().unwrap();
    let [across] = channels(&hub, 1).try_into().unwrap();
    let set = WaitSet::new().unwrap();
    for mode in [Mode::Level, Mode::OneShot] {
        for ours in [&within, &across] {
            let is_within = std::ptr::eq(ours, &within);
            set.add(ours, 7, Interest::Readable, mode).unwrap();
            assert_eq!(ready(&set, Deadline::NOW), []);
            ours.rehome(DEADLINE).unwrap();
            if is_within {
                theirs.send(b"hello").unwrap()
            } else {
                tell(&hub, "say 0 hello")
            }
            assert_eq!(ready(&set, DEADLINE), [7]);
            ours.try_recv().unwrap();
            fill(ours);
            set.await_room(ours, 7).unwrap();
            assert_eq!(ready(&set, Deadline::NOW), []);
            ours.rehome(DEADLINE).unwrap();
            if is_within {
                while theirs.try_recv().is_ok() {}
            } else {
                tell(&hub, "drain 0")
            }
            assert_eq!(ready(&set, DEADLINE), [7]);
            ours.try_send(b"small").unwrap();
            set.remove(ours).unwrap();
        }
    }
}

/// Shows that a single registration reports readable and writable.
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

/// Shows that an event loop can poll the descriptor of a wait set together with another descriptor.
#[test]
fn the_descriptor_in_a_loop_with_another() {
    for mode in [Mode::Level, Mode::OneShot] {
        let (_actor, hub) = spawn("hub");
        let across = channels(&hub, 20);
        let (theirs, within) = Channel::pair().unwrap();
        let set = WaitSet::new().unwrap();
        let (reader, mut writer) = std::io::pipe().unwrap();
        // No thread has waited in the set when the first message arrives.
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
                assert!(woken > 0, "no event in round {round}");
                if !both[1].revents().is_empty() {
                    assert_eq!(rustix::io::read(&reader, &mut [0; 8]).unwrap(), 1);
                    pipe += 1;
                }
                if !both[0].revents().is_empty() {
                    // One wait each time the descriptor is readable.
                    set.wait(&mut events, Deadline::NOW).unwrap();
                    for event in &events {
                        let channel = if event.key() == 100 { &within } else { &across[event.key() as usize] };
                        while channel.try_recv().is_ok() {
                            heard += 1;
                        }
                        if mode == Mode::OneShot {
                            set.modify(channel, event.key(), Interest::Readable, mode).unwrap();
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
            assert!(is_signalled(&set), "the descriptor is not readable although a message is there");
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

/// Shows that a message which another process sends just when the wait set arms is not lost. `threads.rs` has the same
/// test within a process.
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
    assert_eq!(ready(&set, DEADLINE), [1001], "the member is not writable");
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
    // The peer has opened its side from here on, so waiting for its answer below receives nothing from the socket.
    tell(&hub, "drain 0");
    let mut events = Vec::with_capacity(3);
    let mut told = [0; 11];
    for _ in 0..40 {
        assert_eq!(set.wait(&mut events, DEADLINE), Ok(3));
        events.iter().for_each(|event| told[event.key() as usize] += 1);
    }
    assert_eq!(told, [12, 12, 12, 12, 12, 12, 12, 12, 12, 12, 0]);
    // Nor do the ready members keep another member from being reported.
    tell_from(&hub, 0);
    let mut calls = 0;
    while !events.iter().any(|event| event.key() == 10) {
        set.wait(&mut events, DEADLINE).unwrap();
        calls += 1;
    }
    assert!(calls <= 6, "the member was reported only after {calls} waits");
}

/// Shows that a program that waits seldom is told of a death within a few waits, although another member is always
/// ready: each wait takes longer than a look at the sockets may be delayed.
#[test]
fn a_death_is_told_beside_a_member_that_is_always_ready() {
    let (mut actor, hub) = spawn("hub");
    let (theirs, ours) = Channel::pair().unwrap();
    theirs.send(b"unread").unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    set.add(&hub, 2, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::new();
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
    actor.0.kill().unwrap();
    actor.0.wait().unwrap();
    for _ in 0..3 {
        // The work of the program for its other clients.
        std::thread::sleep(Duration::from_millis(30));
        set.wait(&mut events, Deadline::NOW).unwrap();
    }
    assert!(events.iter().any(|event| event.key() == 2), "{events:?}");
}

/// Sends a message with a file once the parent says so, and waits until the parent has received the file.
pub(crate) fn sends_a_file(_: &str) {
    let parent = parent();
    assert_eq!(parent.recv_by(DEADLINE).unwrap().bytes(), b"send");
    parent.send(Outgoing::new(b"file").handle(file_with(b"content"))).unwrap();
    assert_eq!(parent.recv_by(DEADLINE).unwrap().bytes(), b"received");
}

/// Shows that a member that cannot be received from for lack of a descriptor is reported ten times a second at most,
/// also if the set has another member to report all the time. Runs in a process of its own, because the test limits
/// descriptors.
#[test]
fn a_member_that_lacks_a_descriptor_rests_beside_a_busy_one() {
    alone("lacks a descriptor", "");
}

pub(crate) fn lacks_a_descriptor(_: &str) {
    let (actor, lacking) = spawn("sends a file");
    let (busy, other) = Channel::pair().unwrap();
    other.send(b"unread").unwrap();
    let set = WaitSet::new().unwrap();
    set.add(&lacking, 1, Interest::Readable, Mode::Level).unwrap();
    set.add(&busy, 2, Interest::Readable, Mode::Level).unwrap();
    let mut events = Vec::with_capacity(4);
    assert_eq!(set.wait(&mut events, DEADLINE), Ok(1));
    let plenty = getrlimit(Resource::Nofile);
    let lowest = std::os::fd::AsRawFd::as_raw_fd(&file_with(b"")) as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..plenty }).unwrap();
    lacking.send(b"send").unwrap();
    wait_until("the message has arrived", || {
        set.wait(&mut events, DEADLINE).unwrap();
        events.iter().any(|event| event.key() == 1)
    });
    assert_eq!(lacking.try_recv().unwrap_err(), Error::NoDescriptors);
    let begin = std::time::Instant::now();
    let mut reports = 0;
    while begin.elapsed() < Duration::from_millis(500) {
        set.wait(&mut events, DEADLINE).unwrap();
        assert!(events.iter().any(|event| event.key() == 2));
        if events.iter().any(|event| event.key() == 1) {
            reports += 1;
            assert_eq!(lacking.try_recv().unwrap_err(), Error::NoDescriptors);
        }
    }
    let most = 2 + begin.elapsed().as_millis() / 90;
    setrlimit(Resource::Nofile, plenty).unwrap();
    assert!(reports <= most, "{reports} reports in {:?}", begin.elapsed());
    wait_until("the member was reported again", || {
        set.wait(&mut events, DEADLINE).unwrap();
        events.iter().any(|event| event.key() == 1)
    });
    assert_eq!(lacking.recv_by(DEADLINE).unwrap().take_handles().unwrap().len(), 1);
    lacking.send(b"received").unwrap();
    finish(actor);
}
