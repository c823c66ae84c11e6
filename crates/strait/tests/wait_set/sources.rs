//! Tests of listeners and descriptors of the program in wait sets.

use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use strait::wait::{Event, Fd, Interest, Mode, WaitSet};
use strait::{Channel, Deadline, Error, Listener, connect};

use crate::common::DEADLINE;

/// Returns the events of the set: key, readable, writable.
fn events(set: &WaitSet, deadline: Deadline) -> Vec<(u64, bool, bool)> {
    let mut events = Vec::new();
    set.wait(&mut events, deadline).unwrap();
    events.iter().map(|event: &Event| (event.key(), event.is_readable(), event.is_writable())).collect()
}

fn soon() -> Deadline {
    DEADLINE.into()
}

/// Shows that a set reports a descriptor as often as the mode says, and for the latest interest.
#[test]
fn a_descriptor_is_reported_as_its_registration_says() {
    let set = WaitSet::new().unwrap();
    let (mut far, mut near) = UnixStream::pair().unwrap();
    let fd = Fd::duplicate(&near).unwrap();
    set.add(&fd, 1, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(set.add(&fd, 1, Interest::Readable, Mode::Level), Err(Error::InSet));
    assert_eq!(WaitSet::new().unwrap().remove(&fd), Err(Error::NotInSet));
    assert_eq!((set.len(), events(&set, Deadline::NOW)), (1, vec![]));
    far.write_all(b"12").unwrap();
    for _ in 0..3 {
        assert_eq!(events(&set, soon()), [(1, true, false)]);
    }
    near.read_exact(&mut [0; 2]).unwrap();
    assert_eq!(events(&set, Deadline::NOW), []);
    set.modify(&fd, 2, Interest::Both, Mode::OneShot).unwrap();
    assert_eq!(events(&set, soon()), [(2, false, true)]);
    far.write_all(b"3").unwrap();
    assert_eq!(events(&set, Deadline::NOW), []);
    set.modify(&fd, 3, Interest::Both, Mode::Level).unwrap();
    assert_eq!(events(&set, soon()), [(3, true, true)]);
    set.modify(&fd, 4, Interest::Readable, Mode::Level).unwrap();
    near.read_exact(&mut [0; 1]).unwrap();
    assert_eq!(events(&set, Deadline::NOW), []);
    drop(far);
    assert_eq!(events(&set, soon()), [(4, true, false)]);
    set.remove(&fd).unwrap();
    assert_eq!((set.remove(&fd), set.len()), (Err(Error::NotInSet), 0));
    assert_eq!(set.modify(&fd, 4, Interest::Readable, Mode::Level), Err(Error::NotInSet));
    assert_eq!(events(&set, Deadline::NOW), []);
}

/// Shows that a wait in progress returns an event of a descriptor that another thread adds, and then makes ready. The
/// wait also has a channel, on whose notification area a thread sleeps first.
#[test]
fn a_wait_in_progress_sees_a_descriptor_that_is_added() {
    for _ in 0..50 {
        let set = WaitSet::new().unwrap();
        let (_theirs, ours) = Channel::pair().unwrap();
        set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
        let (mut far, near) = UnixStream::pair().unwrap();
        let fd = Fd::new(near).unwrap();
        let (begins, begun) = mpsc::channel();
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                begins.send(()).unwrap();
                events(&set, soon())
            });
            begun.recv().unwrap();
            set.add(&fd, 2, Interest::Readable, Mode::Level).unwrap();
            far.write_all(b"x").unwrap();
            assert_eq!(waits.join().unwrap(), [(2, true, false)]);
        });
    }
}

/// Shows that the interest that `modify` sets counts, although another thread looks at the descriptor for the old
/// interest at that moment.
#[test]
fn a_new_interest_counts_while_another_thread_looks_for_the_old_one() {
    const ROUNDS: u64 = 2000;
    let set = WaitSet::new().unwrap();
    let (mut far, mut near) = UnixStream::pair().unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&near, 1).unwrap();
    [&near, &far].iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    let fd = Fd::duplicate(&near).unwrap();
    set.add(&fd, 0, Interest::Readable, Mode::Level).unwrap();
    let (reports, reported) = mpsc::channel();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut last = 0;
            while last < 2 * ROUNDS {
                let events = events(&set, soon());
                if events.is_empty() {
                    return;
                }
                for event in events {
                    last = event.0;
                    reports.send(event).unwrap();
                }
            }
        });
        let wait_for = |event| while reported.recv_timeout(DEADLINE).expect("an event") != event {};
        for round in 1..=ROUNDS {
            while near.write(&[0; 4096]).is_ok() {}
            // The other thread reports the descriptor again and again, until it is not readable any more.
            far.write_all(b"x").unwrap();
            wait_for((2 * round - 2, true, false));
            near.read_exact(&mut [0]).unwrap();
            set.modify(&fd, 2 * round - 1, Interest::Writable, Mode::Level).unwrap();
            while far.read(&mut [0; 4096]).is_ok() {}
            wait_for((2 * round - 1, false, true));
            set.modify(&fd, 2 * round, Interest::Readable, Mode::Level).unwrap();
        }
        far.write_all(b"x").unwrap();
    });
}

/// Shows that a descriptor leaves its set when it is dropped, although the program has the same file open, and that it
/// can enter another set when its first set was dropped.
#[test]
fn a_dropped_descriptor_leaves_its_set() {
    let (mut far, near) = UnixStream::pair().unwrap();
    far.write_all(b"x").unwrap();
    let fd = Fd::duplicate(&near).unwrap();
    let first = WaitSet::new().unwrap();
    first.add(&fd, 1, Interest::Readable, Mode::Level).unwrap();
    let set = WaitSet::new().unwrap();
    assert_eq!(set.add(&fd, 1, Interest::Readable, Mode::Level), Err(Error::InSet));
    drop(first);
    set.add(&fd, 1, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(events(&set, soon()), [(1, true, false)]);
    drop(fd);
    assert_eq!((events(&set, Deadline::NOW), set.len()), (vec![], 0));
    // Many that come and go leave nothing behind.
    for _ in 0..500 {
        let fd = Fd::duplicate(&near).unwrap();
        set.add(&fd, 1, Interest::Readable, Mode::Level).unwrap();
    }
    assert_eq!((events(&set, Deadline::NOW), set.len()), (vec![], 0));
}

/// Shows that threads which add and remove one descriptor all the time get no other errors than that it is in the set,
/// or is not, and that the set then reports the descriptor.
#[test]
fn a_descriptor_that_threads_add_and_remove_at_once_is_in_the_set_or_not() {
    let (mut far, near) = UnixStream::pair().unwrap();
    let fd = Fd::new(near).unwrap();
    let set = WaitSet::new().unwrap();
    let add = || match set.add(&fd, 1, Interest::Readable, Mode::Level) {
        Ok(()) | Err(Error::InSet) => {}
        other => panic!("add: {other:?}"),
    };
    let remove = || match set.remove(&fd) {
        Ok(()) | Err(Error::NotInSet) => {}
        other => panic!("remove: {other:?}"),
    };
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| (0..5000).for_each(|_| add()));
            scope.spawn(|| (0..5000).for_each(|_| remove()));
        }
    });
    remove();
    assert_eq!(set.len(), 0);
    add();
    assert_eq!(events(&set, Deadline::NOW), []);
    far.write_all(b"x").unwrap();
    assert_eq!(events(&set, soon()), [(1, true, false)]);
}

/// Shows that the set's own descriptor becomes readable for a descriptor in the set, and unreadable once the set has
/// nothing more to report.
#[test]
fn an_event_loop_is_told_of_a_descriptor() {
    let set = WaitSet::new().unwrap();
    let readable = |seconds| {
        let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
        poll(&mut [PollFd::new(&set, PollFlags::IN)], Some(&limit)).unwrap() == 1
    };
    let (mut far, mut near) = UnixStream::pair().unwrap();
    let fd = Fd::duplicate(&near).unwrap();
    set.add(&fd, 1, Interest::Readable, Mode::Level).unwrap();
    // Asking for the set's descriptor for the first time makes it readable.
    assert!(readable(0));
    assert_eq!(events(&set, Deadline::NOW), []);
    assert!(!readable(0));
    for _ in 0..3 {
        far.write_all(b"x").unwrap();
        assert!(readable(60));
        assert_eq!(events(&set, Deadline::NOW), [(1, true, false)]);
        assert!(readable(0), "the descriptor is still ready");
        near.read_exact(&mut [0; 1]).unwrap();
        assert_eq!(events(&set, Deadline::NOW), []);
        assert!(!readable(0));
    }
}

/// Shows that a descriptor is reported although channels of the set are ready all the time.
#[test]
fn a_busy_channel_does_not_hide_a_descriptor() {
    let set = WaitSet::new().unwrap();
    let (theirs, ours) = Channel::pair().unwrap();
    theirs.send(b"never received").unwrap();
    set.add(&ours, 1, Interest::Readable, Mode::Level).unwrap();
    let (mut far, near) = UnixStream::pair().unwrap();
    let fd = Fd::new(near).unwrap();
    set.add(&fd, 2, Interest::Readable, Mode::OneShot).unwrap();
    far.write_all(b"x").unwrap();
    let waits = (1..=200).find(|_| events(&set, soon()).contains(&(2, true, false)));
    assert!(waits.is_some_and(|waits| waits <= 65), "after {waits:?} waits");
}

/// Shows that a regular file, which epoll does not support, is always ready.
#[test]
fn a_file_is_always_ready() {
    let set = WaitSet::new().unwrap();
    let fd = Fd::new(File::open("/proc/self/exe").unwrap()).unwrap();
    set.add(&fd, 1, Interest::Readable, Mode::Level).unwrap();
    assert_eq!(events(&set, soon()), [(1, true, false)]);
    assert_eq!(events(&set, soon()), [(1, true, false)]);
    set.remove(&fd).unwrap();
    assert_eq!(events(&set, Deadline::NOW), []);
}

/// Shows that a thread that waits on a set accepts the processes that connect to a listener in the set, whatever
/// interest was given, and that a dropped listener leaves the set although an invitation is left.
#[test]
fn a_listener_is_reported_when_a_process_connects() {
    let name = format!("set-{}", std::process::id());
    let set = WaitSet::new().unwrap();
    let listener = Listener::bind(&name).unwrap();
    set.add(&listener, 9, Interest::Writable, Mode::OneShot).unwrap();
    assert_eq!(set.add(&listener, 9, Interest::Writable, Mode::OneShot), Err(Error::InSet));
    assert_eq!(events(&set, Deadline::NOW), []);
    for round in 0..3 {
        let client = {
            let name = name.clone();
            std::thread::spawn(move || connect(&name, DEADLINE).unwrap().send(b"hello").unwrap())
        };
        let channel = loop {
            assert_eq!(events(&set, soon()), [(9 + round, true, false)]);
            set.modify(&listener, 9 + round, Interest::Writable, Mode::OneShot).unwrap();
            match listener.accept(Deadline::NOW) {
                Ok(channel) => break channel,
                Err(failed) => assert_eq!(failed.error, Error::WouldBlock),
            }
        };
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"hello");
        client.join().unwrap();
        // An event may be left of what `accept` has handled.
        while !events(&set, Deadline::NOW).is_empty() {}
        set.modify(&listener, 10 + round, Interest::Writable, Mode::OneShot).unwrap();
    }
    let invitation = listener.invite(DEADLINE).unwrap();
    assert_eq!(set.len(), 1);
    drop(listener);
    assert_eq!(set.len(), 0);
    drop(invitation);
}
