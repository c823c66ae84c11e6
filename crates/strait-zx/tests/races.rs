//! Tests of races: several threads use the same handles. Each function returns what it should, nothing hangs, and
//! nothing is left behind.
//!
//! The tests also run under the thread sanitizer (`./run-sanitizers thread`).

mod rig;

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// Number of rounds of each race.
const ROUNDS: usize = 300;

const SIGNALED: zx_signals_t = ZX_EVENT_SIGNALED;

/// Shows that no thread sees a readable signal when there is no message: NoSpuriousReadableSignalWhenRacing.
#[test]
fn a_message_that_is_told_of_is_there() {
    let (a, b) = channel();
    let port = port();
    scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS * 10 {
                assert_eq!(write(b, b"x", &[]), ZX_OK);
            }
        });
        for _ in 0..ROUNDS * 10 {
            assert_eq!(zx_object_wait_async(a, port, 1, ZX_CHANNEL_READABLE, 0), ZX_OK);
            assert_eq!(port_wait(port, deadline()).0, ZX_OK);
            assert_eq!(read(a).status, ZX_OK);
        }
    });
    assert_eq!(read(a).status, ZX_ERR_SHOULD_WAIT);
    assert_eq!((close(a), close(b), close(port)), (ZX_OK, ZX_OK, ZX_OK));
}

/// Shows that two readers get whole messages, each once, each reader in order.
#[test]
fn readers_get_each_message_once() {
    let (a, b) = channel();
    let count = (ROUNDS * 10) as u32;
    let next = AtomicU32::new(0);
    scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|_| {
                scope.spawn(|| {
                    let mut seen = Vec::new();
                    while next.load(Ordering::Relaxed) < count {
                        // A concurrent wait moves messages out of the ring.
                        wait(a, ZX_CHANNEL_PEER_CLOSED, 0);
                        let read = read_with(a, 0, 4, 0);
                        if read.status == ZX_OK {
                            seen.push(u32::from_le_bytes(read.bytes.try_into().unwrap()));
                            next.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    seen
                })
            })
            .collect();
        for number in 0..count {
            assert_eq!(write(b, &number.to_le_bytes(), &[]), ZX_OK);
        }
        let mut all = Vec::new();
        for reader in readers {
            let seen = reader.join().unwrap();
            assert!(seen.is_sorted(), "a reader got messages out of order");
            all.extend(seen);
        }
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>());
    });
    assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
}

/// Number of uses of a handle after which the handle table counts its uses no more, with some to spare.
const WARM: u32 = 300;

/// Makes a channel and uses both of its handles often.
fn warm_channel() -> (zx_handle_t, zx_handle_t) {
    let (a, b) = channel();
    for _ in 0..WARM {
        assert_eq!((write(a, b"", &[]), read(b).status), (ZX_OK, ZX_OK));
        assert_eq!((write(b, b"", &[]), read(a).status), (ZX_OK, ZX_OK));
    }
    (a, b)
}

/// Shows that a reading thread gets messages in order when another thread begins to look behind unread messages, which
/// moves messages out of the ring, and to read as well.
#[test]
fn a_reader_in_a_row_and_who_looks_behind() {
    let count = 300u32;
    for round in 0..ROUNDS {
        let (a, b) = warm_channel();
        for number in 0..count {
            assert_eq!(write(a, &number.to_le_bytes(), &[]), ZX_OK);
        }
        let begun = AtomicU32::new(0);
        let reads = || {
            let mut seen = Vec::new();
            loop {
                let read = read_with(b, 0, 4, 0);
                if read.status != ZX_OK {
                    assert_eq!(read.status, ZX_ERR_SHOULD_WAIT);
                    return seen;
                }
                seen.push(u32::from_le_bytes(read.bytes.try_into().unwrap()));
                begun.store(seen.len() as u32, Ordering::Relaxed);
            }
        };
        let (one, other) = scope(|scope| {
            let reader = scope.spawn(reads);
            while begun.load(Ordering::Relaxed) < (round % 100) as u32 {
                std::hint::spin_loop();
            }
            // Changes of signals may be behind messages.
            wait(b, ZX_USER_SIGNAL_0, 0);
            let other = reads();
            (reader.join().unwrap(), other)
        });
        assert!(one.is_sorted() && other.is_sorted(), "a reader got messages out of order");
        let mut all = [one, other].concat();
        all.sort_unstable();
        assert_eq!(all, (0..count).collect::<Vec<_>>());
        assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
    }
}

/// Shows that handles in steady use by other threads can be closed, replaced, or sent in a message.
#[test]
fn handles_go_that_are_in_steady_use() {
    for round in 0..ROUNDS / 3 {
        let (a, b) = warm_channel();
        let (c, d) = channel();
        let (handles, left) = ([a, b], AtomicU32::new(0));
        let left = &left;
        scope(|scope| {
            for handle in handles {
                scope.spawn(move || {
                    left.fetch_add(1, Ordering::SeqCst);
                    loop {
                        match write(handle, b"x", &[]) {
                            ZX_OK | ZX_ERR_SHOULD_WAIT | ZX_ERR_PEER_CLOSED => {}
                            status => break assert_eq!(status, ZX_ERR_BAD_HANDLE),
                        }
                        match read(handle).status {
                            ZX_OK | ZX_ERR_SHOULD_WAIT | ZX_ERR_PEER_CLOSED => {}
                            status => break assert_eq!(status, ZX_ERR_BAD_HANDLE),
                        }
                    }
                });
            }
            while left.load(Ordering::SeqCst) < 2 {
                std::thread::yield_now();
            }
            let mut new = 0;
            match round % 3 {
                0 => assert_eq!(close(a), ZX_OK),
                1 => {
                    // SAFETY: the pointer leads to a local variable.
                    assert_eq!(unsafe { zx_handle_replace(a, ZX_RIGHT_SAME_RIGHTS, &mut new) }, ZX_OK);
                    assert_eq!(write(new, b"x", &[]), ZX_OK);
                    assert_eq!(close(new), ZX_OK);
                }
                _ => {
                    assert_eq!(write(c, b"with it", &[a]), ZX_OK);
                    let message = read(d);
                    assert_eq!((message.status, &message.bytes[..]), (ZX_OK, &b"with it"[..]));
                    assert_eq!(close(message.handles[0].handle), ZX_OK);
                }
            }
            assert_eq!((write(a, b"x", &[]), read(a).status), (ZX_ERR_BAD_HANDLE, ZX_ERR_BAD_HANDLE));
            assert_eq!(close(b), ZX_OK);
        });
        assert_eq!((close(c), close(d)), (ZX_OK, ZX_OK));
    }
}

/// Covers Fuchsia's test case PortTest.ThreadEvents: each packet to one thread.
#[test]
fn each_packet_goes_to_one_thread() {
    let port = port();
    let count = 2000u64;
    scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|_| {
                scope.spawn(|| {
                    let mut keys = Vec::new();
                    loop {
                        let (status, packet) = port_wait(port, deadline());
                        assert_eq!(status, ZX_OK);
                        if packet.key == u64::MAX {
                            return keys;
                        }
                        keys.push(packet.key);
                    }
                })
            })
            .collect();
        for key in 0..count {
            while queue(port, key) == ZX_ERR_SHOULD_WAIT {
                std::thread::yield_now();
            }
        }
        for _ in 0..4 {
            assert_eq!(queue(port, u64::MAX), ZX_OK);
        }
        let mut keys: Vec<_> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        keys.sort_unstable();
        assert_eq!(keys, (0..count).collect::<Vec<_>>());
    });
    assert_eq!(close(port), ZX_OK);
}

/// Covers these test cases of Fuchsia: PortTest.CloseQueueRace,
/// PortStressTest.QueuePacketAfterPortClosedConcurrentRace.
#[test]
fn queueing_and_closing() {
    for _ in 0..ROUNDS {
        let port = port();
        scope(|scope| {
            scope.spawn(|| while queue(port, 1) == ZX_OK {});
            scope.spawn(|| {
                let (status, _) = port_wait(port, deadline());
                assert!([ZX_OK, ZX_ERR_CANCELED, ZX_ERR_BAD_HANDLE].contains(&status));
            });
            assert_eq!(close(port), ZX_OK);
        });
    }
}

/// Covers these test cases of Fuchsia: PortStressTest.CancelKeyDuringMatchRace, PortStressTest.WaitSignalCancel.
#[test]
fn canceling_and_signaling() {
    let port = port();
    for round in 0..ROUNDS as u64 {
        let event = event();
        assert_eq!(zx_object_wait_async(event, port, round, SIGNALED, 0), ZX_OK);
        scope(|scope| {
            scope.spawn(|| assert_eq!(zx_object_signal(event, 0, SIGNALED), ZX_OK));
            // In either order of the calls, the wait or its packet exists, and is cancelled.
            assert_eq!(zx_port_cancel_key(port, 0, round), ZX_OK);
        });
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
        assert_eq!(close(event), ZX_OK);
    }
    assert_eq!(close(port), ZX_OK);
}

/// Covers these test cases of Fuchsia: PortStressTest.CancelKeyDuringRegistrationRace,
/// PortStressTest.CancelKeyCloseRace.
#[test]
fn canceling_registering_and_closing() {
    for round in 0..ROUNDS as u64 {
        let (port, event) = (port(), event());
        scope(|scope| {
            scope.spawn(|| {
                let status = zx_object_wait_async(event, port, round, SIGNALED, 0);
                assert!([ZX_OK, ZX_ERR_BAD_HANDLE].contains(&status));
            });
            scope.spawn(|| {
                let status = zx_port_cancel_key(port, 0, round);
                assert!([ZX_OK, ZX_ERR_NOT_FOUND, ZX_ERR_BAD_HANDLE].contains(&status));
            });
            if round % 2 == 0 {
                assert_eq!(close(port), ZX_OK);
            } else {
                assert_eq!(close(event), ZX_OK);
            }
        });
        let _ = if round % 2 == 0 { close(event) } else { close(port) };
    }
}

/// Covers these test cases of Fuchsia: PortStressTest.MatchHandleCloseRace, PortStressTest.CloseWaitRace,
/// HandleCloseTest.RegressionTest_479281267.
#[test]
fn closing_signaling_and_waiting() {
    for _ in 0..ROUNDS {
        let (port, event) = (port(), event());
        let other = duplicate(event, ZX_RIGHT_SAME_RIGHTS).unwrap();
        assert_eq!(zx_object_wait_async(event, port, 1, SIGNALED, 0), ZX_OK);
        scope(|scope| {
            let waits = scope.spawn(|| wait(event, SIGNALED, deadline()).0);
            scope.spawn(|| assert_eq!(zx_object_signal(other, 0, SIGNALED), ZX_OK));
            assert_eq!(close(event), ZX_OK);
            assert!([ZX_OK, ZX_ERR_CANCELED, ZX_ERR_BAD_HANDLE].contains(&waits.join().unwrap()));
        });
        assert_eq!((close(port), close(other)), (ZX_OK, ZX_OK));
    }
}

/// Covers these test cases of Fuchsia: PortStressTest.ChannelCallWaitQueuePanicRepro,
/// ChannelCallMutex.MutexHeldAcrossCallChain.
#[test]
fn calls_ports_and_closing() {
    for round in 0..ROUNDS {
        let (a, b) = channel();
        let port = port();
        scope(|scope| {
            let calls: Vec<_> = (0..2).map(|_| scope.spawn(|| call(a, b"....", &[]).status)).collect();
            let waits = scope.spawn(|| {
                let _ = zx_object_wait_async(a, port, 1, ZX_CHANNEL_PEER_CLOSED, 0);
                port_wait(port, deadline()).0
            });
            let request = await_read(b);
            assert_eq!(request.status, ZX_OK);
            assert_eq!(write(b, &request.bytes, &[]), ZX_OK);
            // A single call got the answer.
            if round % 2 == 0 {
                assert_eq!((close(b), close(a)), (ZX_OK, ZX_OK));
            } else {
                assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
            }
            assert_eq!(queue(port, 2), ZX_OK);
            let ends = [ZX_OK, ZX_ERR_PEER_CLOSED, ZX_ERR_CANCELED, ZX_ERR_BAD_HANDLE];
            for call in calls {
                assert!(ends.contains(&call.join().unwrap()));
            }
            assert_eq!(waits.join().unwrap(), ZX_OK);
        });
        assert_eq!(close(port), ZX_OK);
    }
}

/// Shows that a call ends soon after the other end is closed, also if that happens while the call is about to sleep.
#[test]
fn closing_while_a_call_falls_asleep() {
    for round in 0..ROUNDS as u32 * 10 {
        let (a, b) = channel();
        scope(|scope| {
            let calls = scope.spawn(|| {
                let called = call(a, b"....", &[]).status;
                (called, Instant::now())
            });
            while read(b).status != ZX_OK {
                std::hint::spin_loop();
            }
            // A call spins for some time before it sleeps.
            let begin = Instant::now();
            while begin.elapsed() < Duration::from_nanos(u64::from(round) % 1000 * 500) {
                std::hint::spin_loop();
            }
            let closed = Instant::now();
            assert_eq!(close(b), ZX_OK);
            let (called, ended) = calls.join().unwrap();
            assert_eq!(called, ZX_ERR_PEER_CLOSED);
            let late = ended.saturating_duration_since(closed);
            assert!(late < Duration::from_secs(SECONDS as u64 / 2), "the call ended after {late:?}");
        });
        assert_eq!(close(a), ZX_OK);
    }
}

/// Shows that a thread that writes to or reads from an end that is being sent either succeeds before, or gets an error;
/// no message is lost.
#[test]
fn sending_an_end_while_others_use_it() {
    for _ in 0..ROUNDS / 10 {
        let (carrier, receiver) = channel();
        let (a, b) = channel();
        let sent = AtomicU32::new(0);
        scope(|scope| {
            let writes = scope.spawn(|| {
                let mut count = 0u32;
                loop {
                    match write(b, &count.to_le_bytes(), &[]) {
                        ZX_OK => count += 1,
                        status => {
                            assert_eq!(status, ZX_ERR_BAD_HANDLE);
                            return count;
                        }
                    }
                    sent.store(count, Ordering::Relaxed);
                }
            });
            let waits = scope.spawn(|| wait(b, ZX_CHANNEL_READABLE, deadline()).0);
            while sent.load(Ordering::Relaxed) == 0 {
                std::hint::spin_loop();
            }
            assert_eq!(write(carrier, b"", &[b]), ZX_OK);
            let count = writes.join().unwrap();
            assert!([ZX_ERR_CANCELED, ZX_ERR_BAD_HANDLE].contains(&waits.join().unwrap()));
            let b = read(receiver).handles[0].handle;
            assert_eq!(write(b, b"end", &[]), ZX_OK);
            for number in 0..count {
                assert_eq!(read(a).bytes, number.to_le_bytes());
            }
            assert_eq!(read(a).bytes, b"end");
            assert_eq!(close(b), ZX_OK);
        });
        for handle in [carrier, receiver, a] {
            assert_eq!(close(handle), ZX_OK);
        }
    }
}

/// Shows that two threads that send each other's channel do not block each other.
#[test]
fn two_ends_are_sent_over_each_other() {
    for _ in 0..ROUNDS {
        let ((a, b), (c, d)) = (channel(), channel());
        scope(|scope| {
            let other = scope.spawn(|| write(a, b"", &[c]));
            let one = write(c, b"", &[a]);
            let other = other.join().unwrap();
            // Either one thread sent first, or each sent the other's channel; then both channels are closed.
            for status in [one, other] {
                assert!([ZX_OK, ZX_ERR_BAD_HANDLE].contains(&status), "{status}");
            }
        });
        // SAFETY: the pointer and the length are those of an array.
        let _ = unsafe { zx_handle_close_many([a, b, c, d].as_ptr(), 4) };
    }
}

/// Shows that many threads wait for their own events while others signal the events, in this process and from another
/// process.
#[test]
fn threads_that_wait_take_turns_at_listening() {
    let side = Side::there();
    let pairs: Vec<_> = (0..6).map(|_| eventpair()).collect();
    let channels: Vec<_> = (0..6).map(|_| channel()).collect();
    let theirs: Vec<_> = pairs.iter().map(|pair| side.adopt(pair.1)).collect();
    let far: Vec<_> = channels.iter().map(|ends| side.adopt(ends.1)).collect();
    scope(|scope| {
        let threads: Vec<_> = pairs
            .iter()
            .zip(&channels)
            .map(|(pair, ends)| {
                scope.spawn(|| {
                    let mut seen = 0;
                    for _ in 0..20 {
                        assert_eq!(wait(pair.0, ZX_USER_SIGNAL_0, deadline()).0, ZX_OK);
                        assert_eq!(zx_object_signal(pair.0, ZX_USER_SIGNAL_0, 0), ZX_OK);
                        assert_eq!(wait(ends.0, ZX_CHANNEL_READABLE, deadline()).0, ZX_OK);
                        assert_eq!(read(ends.0).status, ZX_OK);
                        seen += 1;
                        assert_eq!(write(ends.0, b"next", &[]), ZX_OK);
                    }
                    seen
                })
            })
            .collect();
        for _ in 0..20 {
            for (event, channel) in theirs.iter().zip(&far) {
                assert_eq!(side.signal_peer(*event, 0, ZX_USER_SIGNAL_0), ZX_OK);
                assert_eq!(side.write(*channel, b"x", &[]), ZX_OK);
            }
            for channel in &far {
                assert_eq!(side.await_read(*channel).bytes, b"next");
            }
        }
        for thread in threads {
            assert_eq!(thread.join().unwrap(), 20);
        }
    });
    for (event, channel) in pairs.iter().zip(&channels) {
        assert_eq!((close(event.0), close(channel.0)), (ZX_OK, ZX_OK));
    }
}
