//! Tests of a dispatcher, whose handlers run in a single thread: order, priorities, back-pressure, and adding and
//! removing channels.

mod common;

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use common::{DEADLINE, Watched, finish, parent, spawn};
use strait::quota::{Limits, Resource, set_limits};
use strait::region::Region;
use strait::wait::{Dispatched, Dispatcher};
use strait::{Channel, Deadline, Error, Options, Outgoing};

#[test]
fn child() {
    common::play(&[
        ("stream", stream),
        ("short", |_| parent().send(b"last words").unwrap()),
        ("pause", |_| {
            let channel = parent();
            channel.send(b"hello").unwrap();
            let _ = channel.recv();
        }),
        ("limited", |_| limited()),
    ]);
}

const STREAM: u64 = 20_000;

/// Sends numbers, and succeeds if each number comes back in order.
fn stream(_: &str) {
    let channel = parent();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0..STREAM {
                channel.send(&n.to_le_bytes()).unwrap();
            }
        });
        for n in 0..STREAM {
            assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), n.to_le_bytes());
        }
    });
}

type Seen = Rc<RefCell<Vec<Vec<u8>>>>;

/// Returns a handler that records each message, and the error at the end of the channel.
fn note(seen: &Seen) -> impl FnMut(&Channel, Dispatched) + 'static {
    let seen = seen.clone();
    move |_: &Channel, dispatched| {
        seen.borrow_mut().push(match dispatched {
            Dispatched::Message(message) => message.into_bytes(),
            Dispatched::Ended(error) => error.to_string().into_bytes(),
        });
    }
}

#[test]
fn streams_of_three_processes_each_in_order_with_two_pumps() {
    streams_in_order(3, 2);
}

#[test]
fn streams_of_three_processes_each_in_order_without_a_pump() {
    streams_in_order(3, 0);
}

#[test]
fn a_stream_in_order_without_a_pump() {
    streams_in_order(1, 0);
}

fn streams_in_order(processes: usize, pumps: usize) {
    let dispatcher = Dispatcher::new().unwrap();
    let pumps: Vec<_> = (0..pumps)
        .map(|_| {
            let pump = dispatcher.pump();
            std::thread::spawn(move || pump.run().unwrap())
        })
        .collect();
    let here = std::thread::current().id();
    let over = Rc::new(RefCell::new(0));
    let actors: Vec<_> = (0..processes)
        .map(|_| {
            let (actor, channel) = spawn("stream");
            let over = over.clone();
            let mut expected = 0u64;
            let handler = move |channel: &Channel, dispatched| {
                assert_eq!(std::thread::current().id(), here);
                match dispatched {
                    Dispatched::Message(message) => {
                        assert_eq!(message.bytes(), expected.to_le_bytes());
                        expected += 1;
                        channel.send(message.bytes()).unwrap();
                    }
                    Dispatched::Ended(error) => {
                        assert_eq!((error, expected), (Error::PeerClosed, STREAM));
                        *over.borrow_mut() += 1;
                    }
                }
            };
            dispatcher.serve(channel, 0, handler).unwrap();
            actor
        })
        .collect();
    while *over.borrow() < processes {
        assert_ne!(dispatcher.dispatch(DEADLINE).unwrap(), 0, "the dispatcher made no progress");
    }
    actors.into_iter().for_each(finish);
    drop(dispatcher);
    pumps.into_iter().for_each(|pump| pump.join().unwrap());
}

/// Shows that a dispatcher handles channels of higher priority first, and channels of equal priority in turn.
#[test]
fn the_urgent_go_first_and_equals_take_turns() {
    the_urgent_go_first(true);
}

#[test]
fn the_urgent_go_first_and_equals_take_turns_without_a_pump() {
    the_urgent_go_first(false);
}

fn the_urgent_go_first(pumped: bool) {
    let dispatcher = Dispatcher::new().unwrap();
    let seen = Seen::default();
    let ends: Vec<_> = [(1, "a"), (1, "b"), (9, "urgent")]
        .into_iter()
        .map(|(priority, name)| {
            let (theirs, ours) = Channel::pair().unwrap();
            dispatcher.serve(ours, priority, note(&seen)).unwrap();
            (theirs, name)
        })
        .collect();
    for n in 0..3 {
        for (end, name) in &ends {
            end.send(format!("{name}{n}").as_bytes()).unwrap();
        }
    }
    let pump = pumped.then(|| dispatcher.pump());
    assert!(pump.is_none_or(|pump| pump.run_once(Deadline::NOW).unwrap()));
    while dispatcher.dispatch(Deadline::NOW).unwrap() > 0 {}
    let seen: Vec<_> = seen.borrow().iter().map(|bytes| String::from_utf8(bytes.clone()).unwrap()).collect();
    assert_eq!(seen[..3], ["urgent0", "urgent1", "urgent2"]);
    let mut rest = seen[3..].to_vec();
    assert!(rest.chunks(2).all(|pair| pair[0][..1] != pair[1][..1]), "{rest:?}");
    rest.sort();
    assert_eq!(rest, ["a0", "a1", "a2", "b0", "b1", "b2"]);
}

/// Shows that a channel whose handler is not called fills up, while other channels are served.
#[test]
fn a_slow_handler_holds_up_its_sender_and_nobody_else() {
    let options = Options::new().ring(256).ring_max(256);
    let dispatcher = Dispatcher::new().unwrap();
    let pump = dispatcher.pump();
    let (theirs, ours) = options.pair().unwrap();
    let (others, other) = Channel::pair().unwrap();
    let (seen, seen_other) = (Seen::default(), Seen::default());
    dispatcher.serve(ours, 0, note(&seen)).unwrap();
    dispatcher.serve(other, 0, note(&seen_other)).unwrap();
    // The pump receives only up to a limit of messages for the channel, so the ring fills.
    let mut sent = 0u32;
    for _ in 0..1000 {
        while theirs.try_send(&sent.to_le_bytes()).is_ok() {
            sent += 1;
        }
        pump.run_once(Deadline::NOW).unwrap();
    }
    assert!((64..200).contains(&sent), "{sent}");
    others.send(b"meanwhile").unwrap();
    pump.run_once(Deadline::NOW).unwrap();
    // All the messages arrive once the handler is called.
    while seen.borrow().len() < sent as usize {
        dispatcher.dispatch(Deadline::NOW).unwrap();
        pump.run_once(Deadline::NOW).unwrap();
    }
    assert!(seen.borrow().iter().enumerate().all(|(n, bytes)| bytes[..] == (n as u32).to_le_bytes()));
    assert_eq!(seen_other.borrow().len(), 1);
    assert!(theirs.try_send(b"there is room again").is_ok());
}

/// Shows that a handler gets the close of its channel after the last message.
#[test]
fn the_end_comes_after_the_last_message() {
    let dispatcher = Dispatcher::new().unwrap();
    let pump = dispatcher.pump();
    let pumping = std::thread::spawn(move || pump.run().unwrap());
    let (actor, channel) = spawn("short");
    let seen = Seen::default();
    dispatcher.serve(channel, 0, note(&seen)).unwrap();
    while seen.borrow().len() < 2 {
        assert_ne!(dispatcher.dispatch(DEADLINE).unwrap(), 0);
    }
    assert_eq!(seen.borrow()[0], b"last words");
    assert_eq!(seen.borrow()[1], Error::PeerClosed.to_string().as_bytes());
    finish(actor);
    drop(dispatcher);
    pumping.join().unwrap();
}

/// Shows that a handler may add and remove channels, dispatch, and panic.
#[test]
fn handlers_may_serve_stop_dispatch_and_panic() {
    let dispatcher = Rc::new(Dispatcher::new().unwrap());
    let pump = Rc::new(dispatcher.pump());
    let (theirs, ours) = Channel::pair().unwrap();
    let (others, other) = Channel::pair().unwrap();
    let seen = Seen::default();
    let pumps = pump.clone();
    let mut other = Some(other);
    let (inner, inner_seen) = (dispatcher.clone(), seen.clone());
    let key = dispatcher
        .serve(ours, 0, move |_, dispatched| {
            let Dispatched::Message(message) = dispatched else { panic!("{dispatched:?}") };
            match message.bytes() {
                b"serve" => {
                    inner.serve(other.take().unwrap(), 5, note(&inner_seen)).unwrap();
                }
                b"dispatch" => {
                    // The inner dispatch handles the message of the other channel, and not the next message of this
                    // channel.
                    others.send(b"inside").unwrap();
                    pumps.run_once(Deadline::NOW).unwrap();
                    assert_eq!(inner.dispatch(Deadline::NOW).unwrap(), 1);
                }
                b"stop" => assert!(inner.stop(0)),
                _ => panic!("the panic that the test wants"),
            }
        })
        .unwrap();
    assert_eq!(key, 0);
    let run = |what: &str| {
        theirs.send(what).unwrap();
        pump.run_once(Deadline::NOW).unwrap();
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dispatcher.dispatch(Deadline::NOW).unwrap()))
    };
    assert_eq!(run("serve").unwrap(), 1);
    assert!(run("panic").is_err());
    theirs.send(b"dispatch").unwrap();
    pump.run_once(Deadline::NOW).unwrap();
    theirs.send(b"stop").unwrap();
    // A message for the first channel that arrives while its handler runs waits until the handler has returned.
    assert_eq!(dispatcher.dispatch(Deadline::NOW).unwrap(), 2);
    assert_eq!(seen.borrow()[0], b"inside");
    assert_eq!(theirs.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    assert!(!dispatcher.stop(0));
}

/// Shows that an urgent message that arrives while messages of another channel are handled is handled before the
/// remaining messages.
#[test]
fn what_becomes_urgent_meanwhile_goes_first_without_a_pump() {
    let dispatcher = Dispatcher::new().unwrap();
    let seen = Seen::default();
    let (theirs, ours) = Channel::pair().unwrap();
    let (urgent, ours_urgent) = Channel::pair().unwrap();
    let notes = seen.clone();
    dispatcher
        .serve(ours, 0, move |_, dispatched| {
            let Dispatched::Message(message) = dispatched else { return };
            if message.bytes() == b"0" {
                urgent.send(b"urgent").unwrap();
            }
            notes.borrow_mut().push(message.into_bytes());
        })
        .unwrap();
    dispatcher.serve(ours_urgent, 1, note(&seen)).unwrap();
    for n in 0..3 {
        theirs.send(&*n.to_string()).unwrap();
    }
    assert_eq!(dispatcher.dispatch(Deadline::NOW).unwrap(), 4);
    assert_eq!(*seen.borrow(), [&b"0"[..], b"urgent", b"1", b"2"]);
}

#[test]
fn without_a_pump_nothing_is_received_ahead_of_the_handler() {
    let options = Options::new().ring(256).ring_max(256);
    let dispatcher = Dispatcher::new().unwrap();
    let (theirs, ours) = options.pair().unwrap();
    let seen = Seen::default();
    dispatcher.serve(ours, 0, note(&seen)).unwrap();
    let mut sent = 0u32;
    while theirs.try_send(&sent.to_le_bytes()).is_ok() {
        sent += 1;
    }
    assert!(sent < 64, "{sent}");
    while seen.borrow().len() < sent as usize {
        assert_ne!(dispatcher.dispatch(Deadline::NOW).unwrap(), 0);
    }
    assert!(seen.borrow().iter().enumerate().all(|(n, bytes)| bytes[..] == (n as u32).to_le_bytes()));
    assert_eq!(dispatcher.dispatch(Deadline::NOW).unwrap(), 0);
    assert!(theirs.try_send(b"there is room again").is_ok());
}

/// Shows that a dispatcher without a pump misses no message and handles none twice while it serves one channel,
/// several, one again, and none.
#[test]
fn channels_come_and_go_without_a_pump() {
    let dispatcher = Dispatcher::new().unwrap();
    let seen = Seen::default();
    let serve = || {
        let (theirs, ours) = Channel::pair().unwrap();
        (theirs, dispatcher.serve(ours, 0, note(&seen)).unwrap())
    };
    let next = |expected: &[&[u8]]| {
        while seen.borrow().len() < expected.len() {
            assert_ne!(dispatcher.dispatch(DEADLINE).unwrap(), 0);
        }
        let mut got = std::mem::take(&mut *seen.borrow_mut());
        got.sort();
        assert_eq!(got, expected);
        assert_eq!(dispatcher.dispatch(Deadline::NOW).unwrap(), 0);
    };
    let (first, first_key) = serve();
    first.send(b"alone").unwrap();
    next(&[b"alone"]);
    first.send(b"before the second is served").unwrap();
    let (second, second_key) = serve();
    next(&[b"before the second is served"]);
    first.send(b"1").unwrap();
    second.send(b"2").unwrap();
    next(&[b"1", b"2"]);
    second.send(b"dropped with its channel").unwrap();
    assert!(dispatcher.stop(second_key));
    assert_eq!(second.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
    std::thread::scope(|scope| {
        scope.spawn(|| first.send(b"alone again").unwrap());
        next(&[b"alone again"]);
    });
    let (third, _) = serve();
    std::thread::scope(|scope| {
        scope.spawn(|| third.send(b"3").unwrap());
        next(&[b"3"]);
        scope.spawn(|| first.send(b"first").unwrap());
        next(&[b"first"]);
    });
    drop(third);
    next(&[Error::PeerClosed.to_string().as_bytes()]);
    first.send(b"last").unwrap();
    next(&[b"last"]);
    assert!(dispatcher.stop(first_key));
    assert_eq!(dispatcher.dispatch(std::time::Duration::from_millis(1)).unwrap(), 0);
}

/// Shows that the first pump takes over receiving from the dispatcher, and that the dispatcher takes over again from
/// the last pump, also while the dispatcher sleeps.
#[test]
fn pumps_come_and_go() {
    for channels in 1..3 {
        let dispatcher = Dispatcher::new().unwrap();
        let seen = Seen::default();
        let ends: Vec<_> = (0..channels)
            .map(|_| {
                let (theirs, ours) = Channel::pair().unwrap();
                dispatcher.serve(ours, 0, note(&seen)).unwrap();
                theirs
            })
            .collect();
        let next = |expected: &[u8]| {
            assert_eq!(dispatcher.dispatch(DEADLINE).unwrap(), 1);
            assert_eq!(seen.borrow_mut().pop().unwrap(), expected);
        };
        for end in &ends {
            end.send(b"by itself").unwrap();
            next(b"by itself");
        }
        for _ in 0..3 {
            let (pump, other) = (dispatcher.pump(), dispatcher.pump());
            drop(other);
            for end in &ends {
                end.send(b"pumped").unwrap();
                assert_eq!(dispatcher.dispatch(Deadline::NOW).unwrap(), 0, "no pump received this");
                assert!(pump.run_once(DEADLINE).unwrap());
                end.send(b"left").unwrap();
                next(b"pumped");
                assert!(pump.run_once(DEADLINE).unwrap());
                next(b"left");
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    drop(pump);
                    ends[0].send(b"by itself again").unwrap();
                });
                next(b"by itself again");
            });
        }
    }
}

/// Shows that the death of a peer ends the channel while a dispatcher sleeps, with one channel or with several.
#[test]
fn a_peer_that_is_killed_ends_its_channel_without_a_pump() {
    for others in 0..2 {
        let dispatcher = Dispatcher::new().unwrap();
        let seen = Seen::default();
        let idle: Vec<_> = (0..others)
            .map(|_| {
                let (theirs, ours) = Channel::pair().unwrap();
                dispatcher.serve(ours, 0, note(&seen)).unwrap();
                theirs
            })
            .collect();
        let (mut actor, channel) = spawn("pause");
        dispatcher.serve(channel, 0, note(&seen)).unwrap();
        assert_ne!(dispatcher.dispatch(DEADLINE).unwrap(), 0);
        std::thread::scope(|scope| {
            scope.spawn(|| actor.kill());
            while seen.borrow().len() < 2 {
                assert_ne!(dispatcher.dispatch(DEADLINE).unwrap(), 0);
            }
        });
        assert_eq!(*seen.borrow(), [b"hello", Error::PeerClosed.to_string().as_bytes()]);
        drop(idle);
    }
}

/// Serves two channels. The peer of one channel sends more regions than its limit of one megabyte permits; the other
/// channel reaches no limit.
fn limited() {
    let channel = parent();
    set_limits(Limits::new().peer(Resource::Regions, 1 << 20));
    let limit = Err(Error::LimitReached(Resource::Regions));
    let dispatcher = Dispatcher::new().unwrap();
    let (seen, regions) = (Seen::default(), Rc::new(RefCell::new(Vec::new())));
    let received = regions.clone();
    // The channel with the limit is the more urgent one.
    let handler = move |channel: &Channel, dispatched| {
        let Dispatched::Message(mut message) = dispatched else { panic!("the channel ended") };
        received.borrow_mut().push(message.take_handles().unwrap().remove(0).into_region().expect("a region"));
        channel.send(b"received").unwrap();
    };
    dispatcher.serve(channel, 9, handler).unwrap();
    let (theirs, ours) = Channel::pair().unwrap();
    dispatcher.serve(ours, 0, note(&seen)).unwrap();
    let sizes = || regions.borrow().iter().map(Region::len).collect::<Vec<_>>();

    // A dispatcher without a pump receives itself. The dispatcher has to report the limit instead of waiting until the
    // deadline or without end.
    assert_eq!(dispatcher.dispatch(DEADLINE), Ok(1));
    assert_eq!(sizes(), [600_000]);
    assert_eq!(dispatcher.dispatch(DEADLINE), limit);
    assert_eq!(dispatcher.dispatch(Deadline::NEVER), limit);
    assert_eq!(dispatcher.dispatch(Deadline::NOW), limit);
    for n in 0..3 {
        theirs.send(&[n]).unwrap();
        assert_eq!(dispatcher.dispatch(DEADLINE), Ok(1));
        assert_eq!(seen.borrow().last().unwrap(), &[n]);
        assert_eq!(dispatcher.dispatch(DEADLINE), limit);
    }
    regions.borrow_mut().clear();
    assert_eq!(dispatcher.dispatch(DEADLINE), Ok(1));
    assert_eq!(sizes(), [700_000]);

    // A pump continues with the other channel, and tries the channel at its limit again at intervals.
    let pump = dispatcher.pump();
    theirs.send(b"pumped").unwrap();
    while dispatcher.dispatch(Deadline::NOW).unwrap() == 0 {
        pump.run_once(DEADLINE).unwrap();
    }
    assert_eq!(seen.borrow().last().unwrap(), b"pumped");
    let (mut rounds, begin) = (0, Instant::now());
    while begin.elapsed() < Duration::from_millis(200) {
        pump.run_once(Deadline::NEVER).unwrap();
        rounds += 1;
    }
    assert!(rounds <= begin.elapsed().as_millis() / 10 + 2, "{rounds} tries");
    assert_eq!(dispatcher.dispatch(Deadline::NOW), Ok(0));
    regions.borrow_mut().clear();
    while dispatcher.dispatch(Deadline::NOW).unwrap() == 0 {
        pump.run_once(DEADLINE).unwrap();
    }
    assert_eq!(sizes(), [800_000]);

    // The dispatcher reports the limit again after the pump that reached the limit was dropped.
    pump.run_once(DEADLINE).unwrap();
    drop(pump);
    assert_eq!(dispatcher.dispatch(DEADLINE), limit);
    regions.borrow_mut().clear();
    assert_eq!(dispatcher.dispatch(DEADLINE), Ok(1));
    assert_eq!(sizes(), [900_000]);
}

/// Shows that a dispatcher reports a channel whose next message exceeds a limit, and serves the other channels
/// meanwhile.
#[test]
fn who_is_over_a_limit_is_told_of_and_holds_up_nobody() {
    let (actor, channel) = spawn("limited");
    for size in [600_000, 700_000, 800_000, 900_000] {
        channel.send(Outgoing::new(b"").handle(Region::new(size).unwrap())).unwrap();
    }
    for _ in 0..4 {
        assert_eq!(channel.recv_by(DEADLINE).unwrap().bytes(), b"received");
    }
    finish(actor);
}

/// Shows that the only channel of a dispatcher stays open when its waits are interrupted, and that the dispatcher
/// handles its messages meanwhile and afterwards.
#[test]
fn an_interruption_does_not_end_the_only_channel() {
    let (theirs, ours) = Channel::pair().unwrap();
    let interrupter = ours.interrupter();
    let watched = Watched::new();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let dispatcher = Dispatcher::new().unwrap();
            let handler = |channel: &Channel, dispatched| match dispatched {
                Dispatched::Message(message) => channel.send(message.bytes()).unwrap(),
                Dispatched::Ended(error) => panic!("the channel has ended: {error}"),
            };
            dispatcher.serve(ours, 0, handler).unwrap();
            watched.enter();
            let mut handled = 0;
            while handled < 3 {
                handled += dispatcher.dispatch(DEADLINE).unwrap();
            }
            assert_eq!(dispatcher.dispatch(Duration::from_millis(1)), Ok(0));
        });
        watched.wait_until_blocked();
        let echo = |text: &str| {
            theirs.send(text).unwrap();
            assert_eq!(theirs.recv_by(DEADLINE).unwrap().bytes(), text.as_bytes());
        };
        interrupter.interrupt();
        echo("interrupted");
        interrupter.resume();
        echo("resumed");
        interrupter.interrupt();
        echo("interrupted again");
    });
    assert_eq!(theirs.recv_by(DEADLINE).unwrap_err(), Error::PeerClosed);
}
