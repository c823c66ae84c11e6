//! Tests of ports.

mod rig;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

const SIGNALED: zx_signals_t = ZX_EVENT_SIGNALED;

fn cancel_key(port: zx_handle_t, key: u64) -> zx_status_t {
    zx_port_cancel_key(port, 0, key)
}

both_sides! {
    /// Covers these test cases of Fuchsia: PortTest.AsyncWaitChannelTimedOut,
    /// PortTest.ChannelAsyncWaitOnExistingStateIsNotified.
    fn a_port_hears_of_messages(side: &Side) {
        let (a, b) = channel();
        let b = side.adopt(b);
        let port = port();
        assert_eq!(zx_object_wait_async(a, port, 7, ZX_CHANNEL_READABLE, 0), ZX_OK);
        assert_eq!(port_wait(port, zx_deadline_after(1_000_000)).0, ZX_ERR_TIMED_OUT);
        assert_eq!(side.write(b, b"x", &[]), ZX_OK);
        let (status, packet) = port_wait(port, deadline());
        let observed = ZX_CHANNEL_READABLE | ZX_CHANNEL_WRITABLE;
        assert_eq!((status, packet.key, packet.type_, packet.status), (ZX_OK, 7, ZX_PKT_TYPE_SIGNAL_ONE, 0));
        assert_eq!(packet.signal, zx_packet_signal_t { trigger: ZX_CHANNEL_READABLE, observed, count: 1, ..Default::default() });
        // A wait queues a single packet; a signal that is already set counts at once.
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
        assert_eq!(zx_object_wait_async(a, port, 8, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
        assert_eq!(port_wait(port, 0).1.key, 8);
        assert_eq!(read(a).bytes, b"x");
        assert_eq!(zx_object_wait_async(a, port, 9, ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
        assert_eq!(side.write(b, b"y", &[]), ZX_OK);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(port_wait(port, deadline()).1.key, 9);
        assert_eq!(read(a).bytes, b"y");
        assert_eq!((close(a), close(port)), (ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: PortTest.EdgeTriggerDetected, PortTest.EdgeTriggerTimeout, for messages.
    fn an_edge_is_the_first_message_after_none(side: &Side) {
        let (a, b) = channel();
        let b = side.adopt(b);
        let port = port();
        assert_eq!(side.write(b, b"1", &[]), ZX_OK);
        assert_eq!(wait(a, ZX_CHANNEL_READABLE, deadline()).0, ZX_OK);
        assert_eq!(zx_object_wait_async(a, port, 5, ZX_CHANNEL_READABLE, ZX_WAIT_ASYNC_EDGE), ZX_OK);
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
        assert_eq!(side.write(b, b"2", &[]), ZX_OK);
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT, "an end that was readable before had an edge");
        assert_eq!((await_read(a).bytes, await_read(a).bytes), (b"1".to_vec(), b"2".to_vec()));
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
        assert_eq!(side.write(b, b"3", &[]), ZX_OK);
        assert_eq!(port_wait(port, deadline()).1.key, 5);
        assert_eq!((close(a), side.close(b), close(port)), (ZX_OK, ZX_OK, ZX_OK));
    }

    /// Shows that packets of programs are cancelled by their key, and the others stay in order, also on a port of two
    /// processes.
    fn canceling_a_key_takes_packets_of_programs(side: &Side) {
        let ours = port();
        let theirs = side.adopt(duplicate(ours, ZX_RIGHT_SAME_RIGHTS).unwrap());
        for key in [7, 1, 7, 2, 3, 7] {
            assert_eq!(if key == 2 { side.queue(theirs, key) } else { queue(ours, key) }, ZX_OK);
        }
        assert_eq!(cancel_key(ours, 7), ZX_OK);
        assert_eq!(cancel_key(ours, 7), ZX_ERR_NOT_FOUND);
        for key in 1..=3 {
            assert_eq!(port_wait(ours, deadline()).1.key, key);
        }
        assert_eq!(port_wait(ours, 0).0, ZX_ERR_TIMED_OUT);
        assert_eq!((close(ours), side.close(theirs)), (ZX_OK, ZX_OK));
    }

    /// Shows that the packets of programs go with the last handle of a port. If the kernel's queue has too little room
    /// for them, the write has no effect.
    fn no_packet_is_lost_with_the_last_handle(side: &Side) {
        let (ours, event) = (port(), event());
        for key in 0..300 {
            assert_eq!(queue(ours, key), ZX_OK);
        }
        let (a, b) = channel();
        assert_eq!(write(a, b"300", &[event, ours]), ZX_ERR_SHOULD_WAIT);
        assert_eq!((read(b).status, is_valid(event)), (ZX_ERR_SHOULD_WAIT, true));
        for key in 0..50 {
            assert_eq!(port_wait(ours, 0).1.key, key);
        }
        assert_eq!(write(a, b"250", &[event, ours]), ZX_OK);
        let moved = read(b).handles;
        let theirs = side.adopt(moved[1].handle);
        assert_eq!(side.queue(theirs, 300), ZX_OK);
        let back = side.give(theirs);
        for key in 50..=300 {
            assert_eq!(port_wait(back, 0), (ZX_OK, zx_port_packet_t { key, ..Default::default() }));
        }
        for handle in [a, b, back, moved[0].handle] {
            assert_eq!(close(handle), ZX_OK);
        }
    }

    /// Shows that the packets that a process holds for a shared port go to the other processes when the process closes
    /// the port, as far as there is room.
    fn packets_outlive_the_process_that_holds_them(side: &Side) {
        let ours = port();
        for key in 0..300 {
            assert_eq!(queue(ours, key), ZX_OK);
        }
        let theirs = side.adopt(duplicate(ours, ZX_RIGHT_SAME_RIGHTS).unwrap());
        assert_eq!(close(ours), ZX_OK);
        let back = side.give(theirs);
        for key in 0..256 {
            assert_eq!(port_wait(back, 0), (ZX_OK, zx_port_packet_t { key, ..Default::default() }));
        }
        assert_eq!(close(back), ZX_OK);
    }

    /// Shows that a port gets packets from all processes with the port, and gives each packet to a single waiting
    /// thread.
    fn a_port_is_shared(side: &Side) {
        let ours = port();
        assert_eq!(queue(ours, 1), ZX_OK);
        let theirs = side.adopt(duplicate(ours, ZX_RIGHT_SAME_RIGHTS).unwrap());
        assert_eq!(side.queue(theirs, 2), ZX_OK);
        assert_eq!(queue(ours, 3), ZX_OK);
        for key in 1..=3 {
            let (status, packet) = port_wait(ours, deadline());
            assert_eq!((status, packet.key, packet.type_), (ZX_OK, key, ZX_PKT_TYPE_USER));
        }
        assert_eq!(port_wait(ours, 0).0, ZX_ERR_TIMED_OUT);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| port_wait(ours, deadline()));
            assert_eq!(side.queue(theirs, 4), ZX_OK);
            assert_eq!(waits.join().unwrap().1.key, 4);
        });
        // The port comes back, and is the same object.
        let back = side.give(theirs);
        assert_eq!(info(back).1.koid, info(ours).1.koid);
        assert_eq!(queue(back, 5), ZX_OK);
        assert_eq!(port_wait(ours, deadline()).1.key, 5);
        assert_eq!((close(ours), close(back)), (ZX_OK, ZX_OK));
    }
}

/// Covers these test cases of Fuchsia: PortTest.PortTimeout, PortTest.QueueAndClose.
#[test]
fn packets_come_in_order() {
    let port = port();
    assert_eq!(port_wait(port, zx_deadline_after(1_000_000)).0, ZX_ERR_TIMED_OUT);
    let signal = zx_packet_signal_t { trigger: 1, observed: 2, count: 3, timestamp: 4, reserved1: 5 };
    for key in 0..10 {
        let packet = zx_port_packet_t { key, type_: 77, status: -5, signal };
        // SAFETY: the pointer leads to a local variable.
        assert_eq!(unsafe { zx_port_queue(port, &packet) }, ZX_OK);
    }
    for key in 0..9 {
        let packet = zx_port_packet_t { key, type_: ZX_PKT_TYPE_USER, status: -5, signal };
        assert_eq!(port_wait(port, 0), (ZX_OK, packet));
    }
    assert_eq!(close(port), ZX_OK);
    assert_eq!(queue(port, 1), ZX_ERR_BAD_HANDLE);
}

/// Shows that a port has Zircon's limit, and that reaching the limit kills no process.
#[test]
fn a_port_holds_so_many_packets() {
    let port = port();
    for key in 0..4096 {
        assert_eq!(queue(port, key), ZX_OK);
    }
    assert_eq!(queue(port, 4096), ZX_ERR_SHOULD_WAIT);
    assert_eq!(port_wait(port, 0).1.key, 0);
    assert_eq!(queue(port, 4096), ZX_OK);
    assert_eq!(close(port), ZX_OK);
}

/// Covers Fuchsia's test case PortTest.EventAsyncSignalWaitSingle.
#[test]
fn a_wait_is_for_once() {
    let (port, event) = (port(), event());
    assert_eq!(zx_object_wait_async(event, port, 1, SIGNALED, 0), ZX_OK);
    for _ in 0..3 {
        assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
        assert_eq!(zx_object_signal(event, SIGNALED, 0), ZX_OK);
    }
    assert_eq!(port_wait(port, 0).1.signal.observed, SIGNALED);
    assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
    assert_eq!((close(port), close(event)), (ZX_OK, ZX_OK));
}

/// Covers Fuchsia's test case PortTest.AsyncWaitEventManyAllProcessed.
#[test]
fn very_many_waits_all_bring_a_packet() {
    let (port, event) = (port(), event());
    for key in 0..16385 {
        assert_eq!(zx_object_wait_async(event, port, key, SIGNALED, 0), ZX_OK);
    }
    assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
    for key in (0..16385).rev() {
        assert_eq!(port_wait(port, 0).1.key, key);
    }
    assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
    assert_eq!((close(port), close(event)), (ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: PortTest.AsyncWaitInvalidOption, PortTest.CreateInvalidOptions,
/// PortTest.QueueAccessDenied, PortTest.WaitWrongType, PortTest.WaitAccessDenied, PortTest.CancelWrongType,
/// PortTest.CancelAccessDenied, PortTest.CancelBadSourceHandle, PortTest.CancelKeyAccessDenied,
/// PortTest.CancelKeyInvalidOptions.
#[test]
fn what_a_port_refuses() {
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    unsafe {
        assert_eq!(zx_port_create(2, &mut out), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_port_create(ZX_PORT_BIND_TO_INTERRUPT, &mut out), ZX_OK);
    }
    assert_eq!(close(out), ZX_OK);
    let (port, event) = (port(), event());
    let both = ZX_WAIT_ASYNC_TIMESTAMP | ZX_WAIT_ASYNC_BOOT_TIMESTAMP;
    for options in [8, u32::MAX, both] {
        assert_eq!(zx_object_wait_async(event, port, 0, SIGNALED, options), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_object_wait_async(0, 0, 0, SIGNALED, options), ZX_ERR_INVALID_ARGS, "options come first");
    }
    let reader = duplicate(port, ZX_RIGHT_READ).unwrap();
    let writer = duplicate(port, ZX_RIGHT_WRITE).unwrap();
    assert_eq!(queue(reader, 1), ZX_ERR_ACCESS_DENIED);
    assert_eq!(port_wait(writer, 0).0, ZX_ERR_ACCESS_DENIED);
    assert_eq!(port_wait(event, 0).0, ZX_ERR_WRONG_TYPE);
    assert_eq!(queue(event, 1), ZX_ERR_WRONG_TYPE);
    assert_eq!(port_wait(0, 0).0, ZX_ERR_BAD_HANDLE);
    // The handle of the port, then the handle to wait for.
    assert_eq!(zx_object_wait_async(0, 0, 0, SIGNALED, 0), ZX_ERR_BAD_HANDLE);
    assert_eq!(zx_object_wait_async(0, event, 0, SIGNALED, 0), ZX_ERR_WRONG_TYPE);
    assert_eq!(zx_object_wait_async(0, reader, 0, SIGNALED, 0), ZX_ERR_ACCESS_DENIED);
    assert_eq!(zx_object_wait_async(0, port, 0, SIGNALED, 0), ZX_ERR_BAD_HANDLE);
    assert_eq!(zx_object_wait_async(port, port, 0, SIGNALED, 0), ZX_ERR_ACCESS_DENIED, "ports cannot be waited for");
    assert_eq!(zx_port_cancel(event, event, 1), ZX_ERR_WRONG_TYPE);
    assert_eq!(zx_port_cancel(reader, event, 1), ZX_ERR_ACCESS_DENIED);
    assert_eq!(zx_port_cancel(port, 0, 1), ZX_ERR_BAD_HANDLE);
    assert_eq!(zx_port_cancel(port, event, 1), ZX_ERR_NOT_FOUND);
    assert_eq!(zx_port_cancel_key(port, 1, 1), ZX_ERR_INVALID_ARGS);
    assert_eq!(cancel_key(reader, 1), ZX_ERR_ACCESS_DENIED);
    assert_eq!(cancel_key(event, 1), ZX_ERR_WRONG_TYPE);
    assert_eq!(cancel_key(port, 1), ZX_ERR_NOT_FOUND);
    for handle in [port, event, reader, writer] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Covers these test cases of Fuchsia: PortTest.CancelEventKeyAfter, PortTest.CancelKey.
#[test]
fn canceling_takes_waits_and_packets_of_a_key() {
    let (port, one, other) = (port(), event(), event());
    for by_source in [true, false] {
        let cancel = |key| if by_source { zx_port_cancel(port, one, key) } else { cancel_key(port, key) };
        // A wait in progress, a queued packet, and others with another key or for another object.
        for (event, key) in [(one, 1), (one, 2), (other, 1), (other, 2)] {
            assert_eq!(zx_object_wait_async(event, port, key, SIGNALED, 0), ZX_OK);
        }
        assert_eq!(cancel(1), ZX_OK);
        assert_eq!(cancel(1), ZX_ERR_NOT_FOUND);
        assert_eq!(queue(port, 2), ZX_OK);
        for event in [one, other] {
            assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
        }
        assert_eq!(cancel(2), ZX_OK);
        assert_eq!(cancel(2), ZX_ERR_NOT_FOUND);
        let mut left = Vec::new();
        while let (ZX_OK, packet) = port_wait(port, 0) {
            left.push((packet.key, packet.type_));
        }
        let expected = if by_source {
            vec![(2, ZX_PKT_TYPE_USER), (2, ZX_PKT_TYPE_SIGNAL_ONE), (1, ZX_PKT_TYPE_SIGNAL_ONE)]
        } else {
            vec![]
        };
        assert_eq!(left, expected, "a program's packet has no source, and goes with its key");
        for event in [one, other] {
            assert_eq!(zx_object_signal(event, SIGNALED, 0), ZX_OK);
        }
    }
    for handle in [port, one, other] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that waits for a signal end in the order of Zircon's kernel: the newest first.
#[test]
fn of_several_waits_for_a_signal_the_newest_comes_first() {
    let (port, event) = (port(), event());
    let (near, far) = channel();
    for (object, signals) in [(event, SIGNALED), (near, ZX_CHANNEL_READABLE)] {
        for key in 1..=3 {
            assert_eq!(zx_object_wait_async(object, port, key, signals, 0), ZX_OK);
        }
    }
    assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
    assert_eq!(write(far, b"x", &[]), ZX_OK);
    let keys: Vec<_> = (0..6).map(|_| port_wait(port, ZX_TIME_INFINITE).1.key).collect();
    assert_eq!(keys, [3, 2, 1, 3, 2, 1]);
    for handle in [port, event, near, far] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that a wait that has not slept when the port is closed returns `BAD_HANDLE`, like a wait that begins later.
#[test]
fn a_wait_that_does_not_sleep_is_never_canceled() {
    for _ in 0..200 {
        let port = port();
        let status = std::thread::scope(|scope| {
            scope.spawn(|| {
                (0..50).for_each(|_| std::thread::yield_now());
                assert_eq!(close(port), ZX_OK);
            });
            let mut waits = std::iter::repeat_with(|| port_wait(port, 0).0);
            waits.find(|status| *status != ZX_ERR_TIMED_OUT).unwrap()
        });
        assert_eq!(status, ZX_ERR_BAD_HANDLE);
    }
}

/// Covers Fuchsia's test case PortTest.AsyncWaitCloseOrder.
#[test]
fn ports_and_ends_are_closed_in_any_order() {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let (a, b) = channel();
        let all = [port(), a, b];
        assert_eq!(zx_object_wait_async(a, all[0], 1, ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
        for index in order {
            assert_eq!(close(all[index]), ZX_OK);
            if index == 2 && order[0] == 2 {
                assert_eq!(port_wait(all[0], 0).1.signal.observed, ZX_CHANNEL_PEER_CLOSED, "at once");
            }
        }
    }
}

/// Covers these test cases of Fuchsia: PortTest.Timestamp, PortTest.WaitAsyncBootTimestamp.
#[test]
fn packets_have_a_time_if_it_is_asked_for() {
    let (port, event) = (port(), event());
    assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
    let before = zx_clock_get_monotonic();
    for (options, has_time) in [(0, false), (ZX_WAIT_ASYNC_TIMESTAMP, true), (ZX_WAIT_ASYNC_BOOT_TIMESTAMP, true)] {
        assert_eq!(zx_object_wait_async(event, port, 1, SIGNALED, options), ZX_OK);
        let stamp = port_wait(port, 0).1.signal.timestamp;
        assert_eq!(stamp != 0, has_time);
        if options == ZX_WAIT_ASYNC_TIMESTAMP {
            assert!((before..=zx_clock_get_monotonic()).contains(&stamp));
        }
    }
    assert_eq!((close(port), close(event)), (ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: PortTest.EdgeTriggerDetected, PortTest.EdgeTriggerTimeout.
#[test]
fn an_edge_is_a_change() {
    let (port, event) = (port(), event());
    assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
    assert_eq!(zx_object_wait_async(event, port, 1, SIGNALED, ZX_WAIT_ASYNC_EDGE), ZX_OK);
    assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
    assert_eq!(port_wait(port, zx_deadline_after(1_000_000)).0, ZX_ERR_TIMED_OUT);
    assert_eq!(zx_object_signal(event, SIGNALED, 0), ZX_OK);
    assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
    assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK);
    assert_eq!(port_wait(port, 0).1.key, 1);
    assert_eq!((close(port), close(event)), (ZX_OK, ZX_OK));
}

/// Shows that the packet of a message comes before a packet that was queued after the message, though no thread waited
/// meanwhile.
#[test]
fn packets_are_in_the_order_of_what_they_are_about() {
    let port = port();
    let (a, b) = channel();
    assert_eq!(zx_object_wait_async(a, port, 1, ZX_CHANNEL_READABLE, 0), ZX_OK);
    assert_eq!(write(b, b"x", &[]), ZX_OK);
    assert_eq!(queue(port, 2), ZX_OK);
    assert_eq!((port_wait(port, 0).1.key, port_wait(port, 0).1.key), (1, 2));
    for handle in [a, b, port] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that a wait gets its packet although another call on the end has moved the awaited message out of the ring.
#[test]
fn other_calls_on_an_end_leave_a_wait_its_packet() {
    type Other = fn(zx_handle_t, zx_handle_t);
    let others: [(&str, Other); 5] = [
        ("a wait for another signal", |a, port| {
            assert_eq!(zx_object_wait_async(a, port, 2, ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
        }),
        ("a wait for an edge", |a, port| {
            assert_eq!(zx_object_wait_async(a, port, 2, ZX_USER_SIGNAL_0, ZX_WAIT_ASYNC_EDGE), ZX_OK);
        }),
        ("a query of a signal", |a, _| {
            assert_eq!(wait(a, ZX_USER_SIGNAL_0, 0).0, ZX_ERR_TIMED_OUT);
        }),
        ("a query of all signals", |a, _| {
            signals(a);
        }),
        ("a call", |a, _| {
            assert_eq!(call_with(a, 0, b"....", &[], (4, 0)).status, ZX_ERR_TIMED_OUT);
        }),
    ];
    let mut failed = Vec::new();
    for (name, other) in others {
        for options in [0, ZX_WAIT_ASYNC_EDGE] {
            // A write to this end is like a write of another process: no thread here is told.
            let (peer, end) = strait_zx::channel_options().pair().unwrap();
            let (a, port) = (strait_zx::handle_from_channel(end).unwrap(), port());
            assert_eq!(zx_object_wait_async(a, port, 1, ZX_CHANNEL_READABLE, options), ZX_OK);
            peer.try_send(b"x").unwrap();
            other(a, port);
            let (status, packet) = port_wait(port, zx_deadline_after(20_000_000_000));
            if (status, packet.key) != (ZX_OK, 1) {
                failed.push((name, options));
            }
            assert_eq!((close(port), close(a)), (ZX_OK, ZX_OK));
        }
    }
    assert!(failed.is_empty(), "no packet after {failed:?}");
}
