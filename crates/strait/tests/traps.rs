//! Tests of traps: conditions, arming that fails at once, cancelling, and what handlers may do.

mod common;

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};

use common::{DEADLINE, finish, parent, pattern, spawn};
use rustix::event::{PollFd, PollFlags, poll};
use strait::wait::{Conditions, Interest, Mode, Reason, Sprung, Traps, WaitSet};
use strait::{Channel, Deadline, Error, Options, Outgoing, Status};

#[test]
fn child() {
    common::play(&[("sender", sender), ("stream", stream)]);
}

/// Executes the orders of its parent on an end: sends messages of a given number and size, one by one, as a batch or
/// sealed; receives messages; or closes the end.
fn sender(_: &str) {
    let hub = parent();
    let channel = recv_end(&hub);
    while let Ok(order) = hub.recv() {
        let order = std::str::from_utf8(order.bytes()).unwrap().to_string();
        let mut words = order.split(' ');
        let what = words.next().unwrap();
        let (count, size) = match (words.next(), words.next()) {
            (Some(count), Some(size)) => (count.parse().unwrap(), size.parse().unwrap()),
            _ => (0, 0),
        };
        let bytes = pattern(1, size);
        match what {
            "send" => (0..count).for_each(|_: usize| channel.send(&bytes).unwrap()),
            "row" => assert_eq!(channel.send_many((0..count).map(|_| &bytes[..]), DEADLINE).unwrap(), count),
            "seal" => {
                let mut room = channel.reserve_sealed(size).unwrap();
                room.bytes().copy_from_slice(&bytes);
                room.commit(DEADLINE).unwrap();
            }
            "take" => {
                for _ in 0..count {
                    channel.recv().unwrap();
                }
            }
            "close" => break,
            other => panic!("{other}"),
        }
        hub.send(b"done").unwrap();
    }
    drop(channel);
    let _ = hub.recv();
}

fn recv_end(channel: &Channel) -> Channel {
    let mut message = channel.recv_by(DEADLINE).unwrap();
    message.take_handles().unwrap().remove(0).into_channel().unwrap()
}

/// Returns a sender in another process, the channel to the sender, and this process's end of the channel for the
/// messages.
fn start() -> (common::Actor, Channel, Channel) {
    let (actor, hub) = spawn("sender");
    let (ours, theirs) = Channel::pair().unwrap();
    hub.send(Outgoing::new(b"").handle(theirs)).unwrap();
    (actor, hub, ours)
}

fn tell(hub: &Channel, what: &str) {
    hub.send(what).unwrap();
    assert_eq!(hub.recv_by(DEADLINE).unwrap().bytes(), b"done");
}

/// Shows that a trap on the end of all messages can be armed on a channel of a dead process with messages, also if no
/// wait set has waited for the process before.
#[test]
fn a_trap_on_the_last_messages_of_a_dead_process_springs_once_they_are_received() {
    let (mut actor, hub, ours) = start();
    tell(&hub, "send 2 5");
    actor.kill();
    assert_eq!(hub.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    springs_after(&ours, Conditions::new().all_read(), || (0..2).for_each(|_| drop(ours.recv_by(DEADLINE).unwrap())));
}

/// Shows that a trap on the next message and on room springs at the next message.
#[test]
fn a_trap_on_an_arrival_and_on_room_springs_at_either() {
    let (a, b) = Options::new().ring_max(4096).pair().unwrap();
    while b.try_send(b"full").is_ok() {}
    let conditions = |arrived| Conditions::new().arrived(arrived).room();
    let status = springs_after(&b, conditions(1), || a.send(b"hello").unwrap());
    assert!(!status.has_room);
    let status = springs_after(&b, conditions(2), || while a.try_recv().is_ok() {});
    assert_eq!(status.arrived, 1);
}

/// Shows that a trap on an end that is moved into other memory springs.
#[test]
fn a_trap_on_an_end_that_is_rehomed_springs() {
    let (a, b) = Channel::pair().unwrap();
    let status = springs_after(&b, Conditions::new().messages(1), || {
        b.rehome(DEADLINE).unwrap();
        a.send(b"hello").unwrap();
    });
    assert_eq!(status.messages, 1);
}

/// Returns a handler that records the reason of each call, and the receiver of the records.
fn note() -> (impl FnOnce(Sprung) + Send + 'static, mpsc::Receiver<Sprung>) {
    let (tell, told) = mpsc::channel();
    (move |sprung| tell.send(sprung).unwrap(), told)
}

fn met(sprung: Sprung) -> Status {
    match sprung {
        Sprung::Met(status) => status,
        other => panic!("{other:?}"),
    }
}

/// Arms a trap whose condition is not met, runs `act`, which must make the trap spring, and returns the status given to
/// the handler.
fn springs_after(channel: &Channel, conditions: Conditions, act: impl FnOnce()) -> Status {
    let traps = Traps::new().unwrap();
    let (handler, told) = note();
    traps.arm(channel, conditions, handler).unwrap();
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 0);
    act();
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    let status = met(told.try_recv().unwrap());
    assert!(conditions.are_met(&status), "{status:?}");
    assert!(traps.is_empty());
    // Arming the trap now fails at once, with the same status.
    let failed = traps.arm(channel, conditions, |_| panic!("called unarmed")).unwrap_err();
    assert_eq!(failed.reason, Reason::Met(status));
    status
}

/// Shows that a trap springs when a number of messages is queued at the end.
#[test]
fn on_a_number_of_messages_queued_here() {
    let (actor, hub, ours) = start();
    for (order, wanted) in [("send 9 56", 9), ("row 30 64", 39), ("send 1 300000", 40), ("seal 1 100000", 41)] {
        let status = springs_after(&ours, Conditions::new().messages(wanted), || tell(&hub, order));
        assert_eq!(status.messages, wanted, "{order}");
    }
    let bytes = 9 * 56 + 30 * 64 + 300_000 + 100_000;
    assert_eq!(ours.status().unwrap().bytes, bytes);
    for left in (0..41).rev() {
        ours.recv_by(DEADLINE).unwrap();
        assert_eq!(ours.status().unwrap().messages, left);
    }
    assert_eq!(ours.status().unwrap().bytes, 0);
    drop(hub);
    finish(actor);
}

/// Shows that a trap springs when a number of bytes is queued at the end.
#[test]
fn on_a_number_of_bytes_queued_here() {
    let (actor, hub, ours) = start();
    let status = springs_after(&ours, Conditions::new().bytes(1000), || {
        tell(&hub, "send 3 333");
        tell(&hub, "row 2 1");
    });
    assert_eq!((status.messages, status.bytes), (5, 1001));
    drop(hub);
    finish(actor);
}

/// Shows that a trap springs on more messages than the first ring holds, and that the survey loses nothing.
#[test]
fn on_more_than_the_first_rings_hold() {
    let (actor, hub, ours) = start();
    let status = springs_after(&ours, Conditions::new().messages(2000), || tell(&hub, "send 2000 100"));
    assert_eq!((status.messages, status.bytes), (2000, 200_000));
    // The survey lost and reordered no messages.
    for _ in 0..2000 {
        assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), pattern(1, 100));
    }
    // The sender has its room and its memory again.
    for _ in 0..200 {
        tell(&hub, "send 1 200000");
        assert_eq!(ours.status().unwrap().bytes, 200_000);
        assert_eq!(ours.recv_by(DEADLINE).unwrap().bytes(), pattern(1, 200_000));
    }
    drop(hub);
    finish(actor);
}

/// Shows that a trap counts messages from before and after a move of the other end.
#[test]
fn on_messages_from_before_and_after_the_other_end_moved() {
    let (actor, hub) = spawn("sender");
    let (ours, theirs) = Channel::pair().unwrap();
    theirs.send(b"from here").unwrap();
    let status = springs_after(&ours, Conditions::new().messages(4), || {
        hub.send(Outgoing::new(b"").handle(theirs)).unwrap();
        tell(&hub, "send 3 10");
    });
    assert_eq!((status.messages, status.bytes), (4, 39));
    assert_eq!(ours.recv().unwrap().bytes(), b"from here");
    drop(hub);
    finish(actor);
}

/// Shows that a trap springs when there is room to send.
#[test]
fn on_room() {
    let options = Options::new().ring(256).ring_max(256);
    let (ours, theirs) = options.pair().unwrap();
    while ours.try_send(b"full").is_ok() {}
    springs_after(&ours, Conditions::new().room(), || while theirs.try_recv().is_ok() {});
}

/// Shows that a trap springs when the peer has closed, and another when all its messages were received too.
#[test]
fn on_the_end_with_something_left_and_with_nothing_left() {
    let (actor, hub, ours) = start();
    let status = springs_after(&ours, Conditions::new().peer_closed(), || {
        tell(&hub, "send 2 5");
        hub.send("close").unwrap();
    });
    assert!(status.peer_closed && status.messages == 2 && !status.all_read());
    let status = springs_after(&ours, Conditions::new().all_read(), || {
        // The trap springs with the last message; no further receive is needed.
        ours.recv().unwrap();
        ours.recv().unwrap();
    });
    assert!(status.all_read());
    drop(hub);
    finish(actor);
}

/// Shows that the handler of a trap gets the outcome *never* if the peer closes before the condition is met.
#[test]
fn on_more_than_will_ever_come() {
    let (mut actor, hub, ours) = start();
    let traps = Traps::new().unwrap();
    let (handler, told) = note();
    traps.arm(&ours, Conditions::new().messages(3).bytes(100), handler).unwrap();
    tell(&hub, "send 2 5");
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 0);
    actor.kill();
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    match told.try_recv().unwrap() {
        Sprung::Never(status) => assert!(status.messages == 2 && status.peer_closed),
        other => panic!("{other:?}"),
    }
    // Arming fails for a condition that can never be met, and for a condition that is met already; arming succeeds for
    // a condition that can still be met.
    let failed = traps.arm(&ours, Conditions::new().messages(3), |_| panic!("called unarmed")).unwrap_err();
    assert!(matches!(failed.reason, Reason::Never(status) if status.messages == 2));
    let failed = traps.arm(&ours, Conditions::new().messages(2), |_| panic!("called unarmed")).unwrap_err();
    assert!(matches!(failed.reason, Reason::Met(status) if status.messages == 2));
    let (handler, told) = note();
    traps.arm(&ours, Conditions::new().messages(3).all_read(), handler).unwrap();
    ours.recv().unwrap();
    ours.recv().unwrap();
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    assert!(met(told.try_recv().unwrap()).all_read());
    // The handler is notified once that no more messages will come, although the handler asks to be called again.
    let (tell, told) = mpsc::channel();
    let again = move |sprung| {
        tell.send(sprung).unwrap();
        Some(Conditions::new().messages(1))
    };
    traps.watch(&ours, Conditions::new().messages(1), again).unwrap();
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    assert!(matches!(told.try_recv().unwrap(), Sprung::Never(status) if status.all_read()));
    assert!(traps.is_empty());
}

/// Shows that a trap on the close of the peer springs when the peer's process dies.
#[test]
fn on_the_death_of_the_process() {
    let (mut actor, hub, ours) = start();
    tell(&hub, "send 1 5");
    let status = springs_after(&ours, Conditions::new().peer_closed(), || actor.kill());
    assert_eq!((status.messages, status.peer_closed), (1, true));
    assert_eq!(ours.recv().unwrap().bytes(), pattern(1, 5));
    assert_eq!(ours.recv().unwrap_err(), Error::PeerClosed);
}

/// Sends numbers as fast as possible.
fn stream(_: &str) {
    let channel = parent();
    for n in 0..STREAM {
        channel.send(&n.to_le_bytes()).unwrap();
        if n % 7 == 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(channel.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}

const STREAM: u64 = 20_000;

/// Shows that a message is not missed if it arrives while a trap is being armed.
#[test]
fn what_comes_while_it_is_armed_is_not_lost() {
    let (actor, channel) = spawn("stream");
    let traps = Traps::new().unwrap();
    let mut received = 0u64;
    while received < STREAM {
        while let Ok(message) = channel.try_recv() {
            assert_eq!(message.bytes(), received.to_le_bytes());
            received += 1;
        }
        if received == STREAM {
            break;
        }
        let (handler, told) = note();
        match traps.arm(&channel, Conditions::new().messages(1), handler) {
            Ok(_) => {
                // Each dispatch must succeed: a lost wake-up would let it time out.
                assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
                assert!(met(told.try_recv().unwrap()).messages >= 1);
            }
            Err(failed) => assert!(matches!(failed.reason, Reason::Met(status) if status.messages >= 1)),
        }
    }
    drop(channel);
    finish(actor);
}

#[test]
fn the_descriptor_says_when_to_dispatch() {
    let (actor, hub, ours) = start();
    let traps = Traps::new().unwrap();
    let (handler, told) = note();
    traps.arm(&ours, Conditions::new().messages(3), handler).unwrap();
    // The descriptor becomes readable once when it is first used, and later only when there is something to dispatch.
    let _ = traps.as_fd();
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 0);
    tell(&hub, "send 3 8");
    while told.try_recv().is_err() {
        poll(&mut [PollFd::new(&traps, PollFlags::IN)], None).unwrap();
        traps.dispatch(Deadline::NOW).unwrap();
    }
    drop(hub);
    finish(actor);
}

#[test]
fn a_cancelled_trap_is_not_called() {
    let (theirs, ours) = Channel::pair().unwrap();
    let traps = Traps::new().unwrap();
    let (handler, told) = note();
    let trap = traps.arm(&ours, Conditions::new().messages(1), handler).unwrap();
    // True even if the trap has sprung, as long as the handler has not been called.
    theirs.send(b"too late").unwrap();
    assert!(traps.cancel(trap));
    assert!(!traps.cancel(trap));
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 0);
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Disconnected), "the handler was not dropped");
    // Another trap can be armed on the channel.
    let (handler, told) = note();
    let trap = traps.arm(&ours, Conditions::new().messages(2), handler).unwrap();
    theirs.send(b"now").unwrap();
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 1);
    assert_eq!(met(told.try_recv().unwrap()).messages, 2);
    assert!(!traps.cancel(trap), "a trap was cancelled whose handler had been called");
}

#[test]
fn a_channel_has_one_trap_and_is_in_no_other_set() {
    let (_theirs, ours) = Channel::pair().unwrap();
    let traps = Traps::new().unwrap();
    let trap = traps.arm(&ours, Conditions::new().messages(1), |_| {}).unwrap();
    let failed = traps.arm(&ours, Conditions::new().messages(1), |_| {}).unwrap_err();
    assert_eq!(failed.reason, Reason::Failed(Error::InSet));
    let set = WaitSet::new().unwrap();
    assert_eq!(set.add(&ours, 0, Interest::Readable, Mode::Level).unwrap_err(), Error::InSet);
    assert!(traps.cancel(trap));
    set.add(&ours, 0, Interest::Readable, Mode::Level).unwrap();
}

/// Shows that the handler of a trap is notified when the end was sent or dropped.
#[test]
fn one_whose_channel_goes_is_told_so() {
    let (actor, hub) = spawn("sender");
    let traps = Traps::new().unwrap();
    for sent in [true, false] {
        let (_theirs, ours) = Channel::pair().unwrap();
        let (handler, told) = note();
        traps.arm(&ours, Conditions::new().messages(1), handler).unwrap();
        if sent {
            hub.send(Outgoing::new(b"").handle(ours)).unwrap()
        } else {
            drop(ours)
        }
        assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
        assert_eq!(told.try_recv().unwrap(), Sprung::Removed);
    }
    drop(hub);
    finish(actor);
}

#[test]
fn handlers_may_do_anything() {
    let traps = Arc::new(Traps::new().unwrap());
    let (theirs, ours) = Channel::pair().unwrap();
    let (other_theirs, other) = Channel::pair().unwrap();
    let inner = traps.clone();
    let (handler, told) = note();
    traps
        .arm(&ours, Conditions::new().messages(1), move |sprung| {
            assert_eq!(met(sprung).messages, 1);
            // The handler arms a trap on another channel, makes the new trap spring by a message, dispatches it, and
            // drops the channel.
            inner.arm(&other, Conditions::new().messages(1), handler).unwrap();
            other_theirs.send(b"inside").unwrap();
            assert_eq!(inner.dispatch(Deadline::NOW).unwrap(), 1);
            drop(other);
        })
        .unwrap();
    theirs.send(b"go").unwrap();
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    assert_eq!(met(told.try_recv().unwrap()).messages, 1);
    assert_eq!(ours.recv().unwrap().bytes(), b"go");
}

/// Shows that a panicking handler does not affect other traps.
#[test]
fn one_that_panics_leaves_the_others_alone() {
    let traps = Traps::new().unwrap();
    let pairs: Vec<_> = (0..8).map(|_| Channel::pair().unwrap()).collect();
    let called = Arc::new(AtomicUsize::new(0));
    for (n, (theirs, ours)) in pairs.iter().enumerate() {
        let called = called.clone();
        traps
            .arm(ours, Conditions::new().messages(1), move |_| {
                called.fetch_add(1, Ordering::Relaxed);
                assert!(n % 2 == 0, "the panic that the test wants");
            })
            .unwrap();
        theirs.send(b"go").unwrap();
    }
    while !traps.is_empty() {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| traps.dispatch(Deadline::NOW)));
    }
    assert_eq!(called.load(Ordering::Relaxed), 8);
}

/// Shows that several threads may dispatch, and that each handler is called by one thread.
#[test]
fn of_several_threads_one_calls_each_handler() {
    const ROUNDS: usize = 2000;
    let traps = Arc::new(Traps::new().unwrap());
    let (theirs, ours) = Channel::pair().unwrap();
    let ours = Arc::new(ours);
    let seen = Arc::new(Mutex::new(Vec::new()));
    fn arm(traps: &Arc<Traps>, ours: &Arc<Channel>, seen: &Arc<Mutex<Vec<u64>>>) {
        let parts = (Arc::downgrade(traps), ours.clone(), seen.clone());
        let act = move |_: Sprung| {
            let (traps, ours, seen) = parts;
            // No two handlers of the channel run at once: from the call of one until it arms the next, no trap is
            // armed.
            let mut seen_now = seen.try_lock().expect("two handlers of one channel ran at once");
            while let Ok(message) = ours.try_recv() {
                seen_now.push(u64::from_le_bytes(message.bytes().try_into().unwrap()));
            }
            drop(seen_now);
            if let Some(traps) = traps.upgrade() {
                arm(&traps, &ours, &seen);
            }
        };
        if let Err(failed) = traps.arm(ours, Conditions::new().messages(1), act) {
            let Reason::Met(status) = failed.reason else { panic!("{failed:?}") };
            (failed.handler)(Sprung::Met(status));
        }
    }
    arm(&traps, &ours, &seen);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while seen.lock().unwrap().len() < ROUNDS {
                    traps.dispatch(std::time::Duration::from_millis(20)).unwrap();
                }
            });
        }
        for n in 0..ROUNDS as u64 {
            theirs.send(&n.to_le_bytes()).unwrap();
        }
    });
    assert_eq!(*seen.lock().unwrap(), (0..ROUNDS as u64).collect::<Vec<_>>());
}

/// Shows that the handler of a quota is called each time a returned quota is exceeded.
#[test]
fn a_quota_is_told_of_whenever_it_is_passed_anew() {
    let (actor, hub, ours) = start();
    let traps = Traps::new().unwrap();
    let (tell_it, told) = mpsc::channel();
    tell(&hub, "send 12 10");
    let quota = |messages| Conditions::new().messages(messages).bytes(100_000);
    traps
        .watch(&ours, quota(10), move |sprung| {
            tell_it.send(sprung).unwrap();
            match sprung {
                Sprung::Met(status) if status.bytes < 100_000 => Some(quota(2 * status.messages)),
                _ => None,
            }
        })
        .unwrap();
    // The quota is exceeded at the start, then by messages, then by bytes; the third call is the last.
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 1);
    assert_eq!(met(told.try_recv().unwrap()).messages, 12);
    tell(&hub, "send 11 10");
    assert_eq!(traps.dispatch(Deadline::NOW).unwrap(), 0);
    tell(&hub, "send 1 10");
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    assert_eq!(met(told.try_recv().unwrap()).messages, 24);
    tell(&hub, "send 1 100000");
    assert_eq!(traps.dispatch(DEADLINE).unwrap(), 1);
    assert_eq!(met(told.try_recv().unwrap()).bytes, 100_240);
    assert!(traps.is_empty());
    drop(hub);
    finish(actor);
}

/// Shows that a survey counts messages that were put back.
#[test]
fn what_is_put_back_is_counted_again() {
    let (theirs, ours) = Channel::pair().unwrap();
    for _ in 0..5 {
        theirs.send(b"12345").unwrap();
    }
    let count = || ours.status().map(|status| (status.messages, status.bytes)).unwrap();
    assert_eq!(count(), (5, 25));
    let two = [ours.recv().unwrap(), ours.recv().unwrap()];
    assert_eq!(count(), (3, 15));
    ours.put_back(two).unwrap();
    for left in (0..=5).rev() {
        assert_eq!(count(), (left, 5 * left));
        let _ = ours.try_recv();
    }
}
