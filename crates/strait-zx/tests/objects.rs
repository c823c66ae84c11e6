//! Tests of handles, waits, events, eventpairs, memory, descriptors and time. If an object has two ends, the other end
//! is in this process and in another one.

mod rig;
#[path = "../../strait-hostile/tests/attacks/standstill.rs"]
#[expect(dead_code, reason = "the module is that of the attacks, which stand still in other calls as well")]
mod standstill;

use std::os::fd::FromRawFd;
use std::time::{Duration, Instant};

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

const CLOSED: zx_signals_t = ZX_EVENTPAIR_PEER_CLOSED;
const USER: zx_signals_t = ZX_USER_SIGNAL_0;
const OTHER: zx_signals_t = ZX_USER_SIGNAL_0 << 1;
const THIRD: zx_signals_t = ZX_USER_SIGNAL_0 << 2;

fn pair(side: &Side) -> (zx_handle_t, zx_handle_t) {
    let (a, b) = eventpair();
    (a, side.adopt(b))
}

both_sides! {
    /// Covers these test cases of Fuchsia: EventPairTest.HandlesNotInvalid, EventPairTest.HandleRightsAreCorrect,
    /// EventPairTest.KoidsAreCorrect.
    fn an_eventpair_is_two_related_ends(side: &Side) {
        let (a, b) = pair(side);
        let (of_a, of_b) = (info(a).1, side.info(b).1);
        assert_eq!((of_a.related_koid, of_b.related_koid), (of_b.koid, of_a.koid));
        assert_ne!(of_a.koid, of_b.koid);
        assert_eq!((of_a.type_, of_b.type_), (ZX_OBJ_TYPE_EVENTPAIR, ZX_OBJ_TYPE_EVENTPAIR));
        let rights = ZX_RIGHTS_BASIC | ZX_RIGHT_SIGNAL | ZX_RIGHT_SIGNAL_PEER;
        assert_eq!((of_a.rights, of_b.rights), (rights, rights));
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: EventPairTest.SignalEventPairAndClearVerifySignals,
    /// EventPairTest.SignalPeerAndVerifyRecived.
    fn ends_signal_themselves_and_each_other(side: &Side) {
        let (a, b) = pair(side);
        assert_eq!((signals(a), side.signals(b)), (0, 0));
        assert_eq!(zx_object_signal(a, 0, USER), ZX_OK);
        assert_eq!((signals(a), side.signals(b)), (USER, 0));
        assert_eq!(zx_object_signal(a, USER, ZX_EVENTPAIR_SIGNALED), ZX_OK);
        assert_eq!((signals(a), side.signals(b)), (ZX_EVENTPAIR_SIGNALED, 0));
        assert_eq!(zx_object_signal_peer(a, 0, USER), ZX_OK);
        assert_eq!(side.await_signal(b, USER), USER);
        assert_eq!(side.signal_peer(b, ZX_EVENTPAIR_SIGNALED, ZX_USER_SIGNAL_7), ZX_OK);
        assert_eq!(wait(a, ZX_USER_SIGNAL_7, deadline()), (ZX_OK, ZX_USER_SIGNAL_7));
        assert_eq!(side.signal(b, USER, 0), ZX_OK);
        assert_eq!(side.signals(b), 0);
        for wrong in [1, ZX_EVENTPAIR_PEER_CLOSED, ZX_SIGNAL_HANDLE_CLOSED, 1 << 4] {
            assert_eq!(zx_object_signal(a, wrong, 0), ZX_ERR_INVALID_ARGS);
            assert_eq!(zx_object_signal_peer(a, 0, wrong), ZX_ERR_INVALID_ARGS);
        }
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: EventPairTest.SignalPeerThenCloseAndVerifySignalReceived,
    /// EventPairTest.SignalingClosedPeerReturnsPeerClosed.
    fn what_an_end_signaled_before_it_was_closed_stays(side: &Side) {
        let (a, b) = pair(side);
        assert_eq!(side.signal_peer(b, 0, USER), ZX_OK);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(wait(a, CLOSED, deadline()), (ZX_OK, USER | CLOSED));
        assert_eq!(zx_object_signal_peer(a, 0, USER), ZX_ERR_PEER_CLOSED);
        assert_eq!(zx_object_signal(a, USER, 0), ZX_OK);
        assert_eq!(signals(a), CLOSED);
        assert_eq!(close(a), ZX_OK);
    }

    /// Shows that an event stays a single object for any processes with handles:
    /// HandleWaitTest.WaitOneWaitForEventThenSignal
    fn an_event_is_signaled_from_anywhere(side: &Side) {
        let ours = event();
        let theirs = side.adopt(duplicate(ours, ZX_RIGHT_SAME_RIGHTS).unwrap());
        assert_eq!(side.signals(theirs), 0);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| wait(ours, ZX_EVENT_SIGNALED, deadline()));
            assert_eq!(side.signal(theirs, 0, ZX_EVENT_SIGNALED), ZX_OK);
            assert_eq!(waits.join().unwrap(), (ZX_OK, ZX_EVENT_SIGNALED));
        });
        assert_eq!(zx_object_signal(ours, ZX_EVENT_SIGNALED, USER), ZX_OK);
        assert_eq!(side.await_signal(theirs, USER), USER);
        // The event comes back, and is the same object.
        let back = side.give(theirs);
        assert_eq!(info(back).1.koid, info(ours).1.koid);
        assert_eq!(zx_object_signal(back, USER, ZX_EVENT_SIGNALED), ZX_OK);
        assert_eq!(signals(ours), ZX_EVENT_SIGNALED);
        assert_eq!((close(ours), close(back)), (ZX_OK, ZX_OK));
    }

    /// Shows that an end of an eventpair lives as long as any process has a handle of it.
    fn an_end_is_closed_with_its_last_handle(side: &Side) {
        let (a, b) = eventpair();
        let theirs = side.adopt(duplicate(b, ZX_RIGHT_SAME_RIGHTS).unwrap());
        assert_eq!(close(b), ZX_OK);
        assert_eq!(signals(a), 0);
        let copy = side.duplicate(theirs, ZX_RIGHT_SAME_RIGHTS).unwrap();
        assert_eq!(side.close(theirs), ZX_OK);
        assert_eq!(signals(a), 0);
        assert_eq!(side.close(copy), ZX_OK);
        assert_eq!(wait(a, CLOSED, deadline()), (ZX_OK, CLOSED));
        assert_eq!(close(a), ZX_OK);
    }

    /// Shows that waits on both sides, and ports, see the same changes.
    fn a_port_hears_of_events_from_anywhere(side: &Side) {
        let port = port();
        let (a, b) = pair(side);
        for key in 1..20 {
            assert_eq!(zx_object_wait_async(a, port, key, USER, 0), ZX_OK);
            assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
            assert_eq!(side.signal_peer(b, 0, USER), ZX_OK);
            let (status, packet) = port_wait(port, deadline());
            assert_eq!((status, packet.key, packet.signal.observed), (ZX_OK, key, USER));
            assert_eq!(zx_object_signal(a, USER, 0), ZX_OK);
        }
        assert_eq!(zx_object_wait_async(a, port, 99, CLOSED, 0), ZX_OK);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(port_wait(port, deadline()).1.signal.observed, CLOSED);
        assert_eq!((close(a), close(port)), (ZX_OK, ZX_OK));
    }

    /// Shows that changed signals of the other end are seen at once, before earlier messages are read, and that no
    /// reader gets the changes as messages.
    fn ends_of_channels_signal_each_other(side: &Side) {
        let (a, b) = channel();
        let b = side.adopt(b);
        for text in [b"one".as_slice(), &[0; 31], b"three"] {
            assert_eq!(write(a, text, &[]), ZX_OK);
        }
        assert_eq!(zx_object_signal_peer(a, 0, USER | OTHER), ZX_OK);
        let open = ZX_CHANNEL_WRITABLE | ZX_CHANNEL_READABLE;
        assert_eq!(side.await_signal(b, USER), open | USER | OTHER);
        assert_eq!(zx_object_signal_peer(a, USER, ZX_USER_SIGNAL_7), ZX_OK);
        assert_eq!(side.await_signal(b, ZX_USER_SIGNAL_7), open | OTHER | ZX_USER_SIGNAL_7);
        // Both ends can change the same signals.
        assert_eq!(side.signal(b, ZX_USER_SIGNAL_7 | OTHER, 0), ZX_OK);
        for text in [b"one".as_slice(), &[0; 31], b"three"] {
            let read = side.read(b);
            assert_eq!((read.status, read.bytes.as_slice()), (ZX_OK, text));
        }
        assert_eq!(side.read(b).status, ZX_ERR_SHOULD_WAIT);
        assert_eq!(side.signals(b), ZX_CHANNEL_WRITABLE);
        // A message of 31 bytes without a handle is an ordinary message.
        assert_eq!(write(a, &[0; 31], &[]), ZX_OK);
        assert_eq!(side.await_signal(b, ZX_CHANNEL_READABLE), open);
        assert_eq!(side.read(b).bytes, [0; 31]);
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Shows that signals set by the other side reach a wait and a port of this side, and that the port does not report
    /// a message.
    fn a_port_hears_that_the_other_end_signals(side: &Side) {
        let (a, b) = channel();
        let b = side.adopt(b);
        let port = port();
        // There is nothing else to watch.
        assert_eq!(zx_object_wait_async(a, port, 99, USER, 0), ZX_OK);
        assert_eq!(side.signal_peer(b, 0, USER), ZX_OK);
        assert_eq!(port_wait(port, deadline()).1.key, 99);
        assert_eq!(zx_object_signal(a, USER, 0), ZX_OK);
        for key in 1..20 {
            assert_eq!(zx_object_wait_async(a, port, 0, ZX_CHANNEL_READABLE, 0), ZX_OK);
            assert_eq!(zx_object_wait_async(a, port, key, USER, 0), ZX_OK);
            assert_eq!(side.signal_peer(b, 0, USER), ZX_OK);
            let (status, packet) = port_wait(port, deadline());
            assert_eq!((status, packet.key, packet.signal.observed), (ZX_OK, key, USER | ZX_CHANNEL_WRITABLE));
            assert_eq!(wait(a, ZX_CHANNEL_READABLE, 0), (ZX_ERR_TIMED_OUT, USER | ZX_CHANNEL_WRITABLE));
            assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT, "the port reported a message");
            assert_eq!(zx_object_signal(a, USER, 0), ZX_OK);
            // A wait that began before the change reports it.
            assert_eq!(side.write(b, b"x", &[]), ZX_OK);
            assert_eq!(port_wait(port, deadline()).1.key, 0);
            assert_eq!(read(a).bytes, b"x");
        }
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(zx_object_signal_peer(a, 0, USER), ZX_ERR_PEER_CLOSED);
        assert_eq!((close(a), close(port)), (ZX_OK, ZX_OK));
    }

    /// Shows that unseen changes of signals travel with an end, in order, also with changes that are made once the end
    /// has arrived.
    fn signals_come_along_when_an_end_moves(side: &Side) {
        let (a, b) = channel();
        let b = side.adopt(b);
        assert_eq!(write(a, b"before", &[]), ZX_OK);
        assert_eq!(zx_object_signal_peer(a, 0, USER | OTHER | THIRD), ZX_OK);
        assert_eq!(zx_object_signal_peer(a, OTHER, 0), ZX_OK);
        let b = side.give(b);
        assert_eq!(zx_object_signal_peer(a, THIRD, OTHER), ZX_OK);
        let user = USER | OTHER;
        assert_eq!(signals(b), ZX_CHANNEL_READABLE | ZX_CHANNEL_WRITABLE | user);
        let b = side.adopt(b);
        assert_eq!(side.signals(b), ZX_CHANNEL_READABLE | ZX_CHANNEL_WRITABLE | user);
        assert_eq!(side.read(b).bytes, b"before");
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Shows that memory stays a single object for any processes with handles.
    fn memory_is_shared(side: &Side) {
        let ours = vmo(5000);
        assert_eq!(vmo_write(ours, 4090, b"across pages"), ZX_OK);
        let reader = duplicate(ours, ZX_RIGHT_READ | ZX_RIGHT_TRANSFER).unwrap();
        let theirs = side.adopt(reader);
        assert_eq!(side.vmo_read(theirs, 4090, 12), (ZX_OK, b"across pages".to_vec()));
        assert_eq!(vmo_write(ours, 0, b"later"), ZX_OK);
        assert_eq!(side.vmo_read(theirs, 0, 5).1, b"later");
        assert_eq!(side.vmo_read(theirs, 8192, 1).0, ZX_ERR_OUT_OF_RANGE);
        assert_eq!(side.info(theirs).1.koid, info(ours).1.koid);
        assert_eq!((close(ours), side.close(theirs)), (ZX_OK, ZX_OK));
    }
}

/// Shows that the signals set by programs on an end travel with the end, and can be changed meanwhile.
#[test]
fn a_channel_has_signals_of_the_program() {
    let (a, b) = channel();
    let (carrier, receiver) = channel();
    assert_eq!(zx_object_signal(b, 0, USER), ZX_OK);
    assert_eq!(zx_object_signal_peer(a, 0, ZX_USER_SIGNAL_7), ZX_OK);
    let both = USER | ZX_USER_SIGNAL_7;
    assert_eq!(signals(b), ZX_CHANNEL_WRITABLE | both);
    assert_eq!(zx_object_signal(a, 0, ZX_EVENT_SIGNALED), ZX_ERR_INVALID_ARGS);
    assert_eq!(zx_object_signal_peer(a, ZX_CHANNEL_READABLE, 0), ZX_ERR_INVALID_ARGS);
    assert_eq!(write(carrier, b"", &[b]), ZX_OK);
    assert_eq!(zx_object_signal_peer(a, ZX_USER_SIGNAL_7, 0), ZX_OK, "on its way");
    let b = read(receiver).handles[0].handle;
    assert_eq!(signals(b), ZX_CHANNEL_WRITABLE | USER);
    assert_eq!(read(b).status, ZX_ERR_SHOULD_WAIT, "nobody reads a signal");
    assert_eq!(close(b), ZX_OK);
    assert_eq!(zx_object_signal_peer(a, 0, USER), ZX_ERR_PEER_CLOSED);
    for handle in [a, carrier, receiver] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that a change of the other end's signals fails at once if there is no room, however often it is tried.
#[test]
fn a_signal_for_which_there_is_no_room_does_not_wait() {
    let side = Side::there();
    let (a, b) = channel();
    let b = side.adopt(b);
    let bytes = vec![0; ZX_CHANNEL_MAX_MSG_BYTES as usize];
    let until_full = |send: &dyn Fn() -> zx_status_t| {
        let sent = (0..100_000).find(|_| send() != ZX_OK);
        assert_eq!((send(), sent.is_some()), (ZX_ERR_SHOULD_WAIT, true));
    };
    until_full(&|| write(a, &bytes, &[]));
    until_full(&|| zx_object_signal_peer(a, 0, USER));
    let (before, begin) = (descriptors(), std::time::Instant::now());
    for _ in 0..1000 {
        assert_eq!(zx_object_signal_peer(a, 0, USER), ZX_ERR_SHOULD_WAIT);
    }
    assert!(begin.elapsed() < std::time::Duration::from_secs(60), "each call waited");
    // One descriptor for each try would be a thousand; other tests of this process have a few at times.
    assert!(descriptors() < before + 500, "{} descriptors, and {before} before", descriptors());
    assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: EventPairTest.CheckNoFlagsSupported,
/// EventPairTest.SignalAccessDeniedWithoutRight, EventPairTest.SignalPeerAccessDeniedWithoutRight,
/// EventPairTest.WaitAccessDeniedWithoutRight.
#[test]
fn rights_are_needed() {
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    assert_eq!(unsafe { zx_eventpair_create(1, &mut a, &mut b) }, ZX_ERR_NOT_SUPPORTED);
    // SAFETY: the pointer leads to a local variable.
    assert_eq!(unsafe { zx_event_create(1, &mut a) }, ZX_ERR_INVALID_ARGS);
    let (a, b) = eventpair();
    let all = ZX_DEFAULT_EVENTPAIR_RIGHTS;
    let without = |right: zx_rights_t| duplicate(a, all & !right).unwrap();
    let (no_signal, no_peer, no_wait) =
        (without(ZX_RIGHT_SIGNAL), without(ZX_RIGHT_SIGNAL_PEER), without(ZX_RIGHT_WAIT));
    assert_eq!(zx_object_signal(no_signal, 0, USER), ZX_ERR_ACCESS_DENIED);
    assert_eq!(zx_object_signal_peer(no_peer, 0, USER), ZX_ERR_ACCESS_DENIED);
    assert_eq!(wait(no_wait, USER, 0).0, ZX_ERR_ACCESS_DENIED);
    let port = port();
    assert_eq!(zx_object_wait_async(no_wait, port, 0, USER, 0), ZX_ERR_ACCESS_DENIED);
    // Objects without another end, and objects that cannot be waited for.
    let event = event();
    assert_eq!(zx_object_signal_peer(event, 0, USER), ZX_ERR_ACCESS_DENIED);
    assert_eq!(wait(port, 1, 0).0, ZX_ERR_ACCESS_DENIED);
    for handle in [a, b, no_signal, no_peer, no_wait, port, event] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Covers these test cases of Fuchsia: HandleWaitTest.WaitOneWaitForEventSignaled,
/// HandleWaitTest.WaitOneWaitForEventTimeout, HandleWaitTest.WaitOneWaitForEventTimeoutPreSignalClear.
#[test]
fn a_wait_ends_with_the_signal_or_the_deadline() {
    let event = event();
    assert_eq!(wait(event, ZX_EVENT_SIGNALED, zx_deadline_after(1_000_000)), (ZX_ERR_TIMED_OUT, 0));
    assert_eq!(zx_object_signal(event, 0, ZX_EVENT_SIGNALED | USER), ZX_OK);
    let both = ZX_EVENT_SIGNALED | USER;
    assert_eq!(wait(event, ZX_EVENT_SIGNALED, 0), (ZX_OK, both), "a deadline in the past hid the signals");
    assert_eq!(wait(event, ZX_EVENT_SIGNALED, ZX_TIME_INFINITE), (ZX_OK, both));
    assert_eq!(zx_object_signal(event, ZX_EVENT_SIGNALED, 0), ZX_OK);
    assert_eq!(wait(event, ZX_EVENT_SIGNALED, zx_deadline_after(1_000_000)), (ZX_ERR_TIMED_OUT, USER));
    assert_eq!(close(event), ZX_OK);
}

/// Covers these test cases of Fuchsia: HandleWaitTest.WaitManyTooManyObjects, HandleWaitTest.WaitManyInvalidHandle,
/// HandleWaitTest.WaitManyWaitForEventsSignaled, HandleWaitTest.WaitManyWaitForEventsThenSignal.
#[test]
fn waiting_for_many() {
    let events = [event(), event(), event()];
    let item = |handle| zx_wait_item_t { handle, waitfor: ZX_EVENT_SIGNALED, pending: 77 };
    let wait_many = |items: &mut [zx_wait_item_t], deadline| {
        // SAFETY: the pointer and the length are those of a slice.
        unsafe { zx_object_wait_many(items.as_mut_ptr(), items.len(), deadline) }
    };
    assert_eq!(wait_many(&mut [item(events[0]); 65], deadline()), ZX_ERR_OUT_OF_RANGE);
    assert_eq!(wait_many(&mut [item(events[0]); 64], 0), ZX_ERR_TIMED_OUT);
    assert_eq!(wait_many(&mut [item(events[0]), item(0)], deadline()), ZX_ERR_BAD_HANDLE);
    assert_eq!(wait_many(&mut [], zx_deadline_after(1_000_000)), ZX_ERR_TIMED_OUT);
    let mut items = events.map(item);
    assert_eq!(wait_many(&mut items, zx_deadline_after(1_000_000)), ZX_ERR_TIMED_OUT);
    assert_eq!(items.map(|item| item.pending), [0, 0, 0]);
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let mut items = events.map(item);
            (wait_many(&mut items, deadline()), items)
        });
        assert_eq!(zx_object_signal(events[2], 0, ZX_EVENT_SIGNALED), ZX_OK);
        let (status, items) = waits.join().unwrap();
        assert_eq!((status, items.map(|item| item.pending)), (ZX_OK, [0, 0, ZX_EVENT_SIGNALED]));
    });
    assert_eq!(zx_object_signal(events[0], 0, ZX_EVENT_SIGNALED | USER), ZX_OK);
    assert_eq!(wait_many(&mut items, 0), ZX_OK);
    assert_eq!(items.map(|item| item.pending), [ZX_EVENT_SIGNALED | USER, 0, ZX_EVENT_SIGNALED]);
    assert!(events.iter().all(|event| close(*event) == ZX_OK));
}

/// Shows that closing the handle of a wait makes the wait fail with `CANCELED`.
#[test]
fn closing_a_handle_cancels_waits_by_it() {
    let event = event();
    let other = duplicate(event, ZX_RIGHT_SAME_RIGHTS).unwrap();
    let port = port();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(event, ZX_EVENT_SIGNALED, deadline()));
        std::thread::yield_now();
        assert_eq!(close(event), ZX_OK);
        match waits.join().unwrap() {
            (ZX_ERR_CANCELED, observed) => assert_eq!(observed, ZX_SIGNAL_HANDLE_CLOSED),
            (status, _) => assert_eq!(status, ZX_ERR_BAD_HANDLE),
        }
    });
    // A wait by a port through the closed handle queues no packet; one through another handle does.
    let third = duplicate(other, ZX_RIGHT_SAME_RIGHTS).unwrap();
    assert_eq!(zx_object_wait_async(third, port, 3, ZX_EVENT_SIGNALED, 0), ZX_OK);
    assert_eq!(zx_object_wait_async(other, port, 4, ZX_EVENT_SIGNALED, 0), ZX_OK);
    assert_eq!(close(third), ZX_OK);
    assert_eq!(zx_object_signal(other, 0, ZX_EVENT_SIGNALED), ZX_OK);
    assert_eq!(port_wait(port, 0).1.key, 4);
    assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
    assert_eq!((close(other), close(port)), (ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: HandleCloseTest.Many, HandleCloseTest.ManyInvalidHandlesShouldNotFail,
/// HandleCloseTest.ManyDuplicateTest.
#[test]
fn closing_many() {
    let close_many = |handles: &[zx_handle_t]| {
        // SAFETY: the pointer and the length are those of a slice.
        unsafe { zx_handle_close_many(handles.as_ptr(), handles.len()) }
    };
    let (a, b) = eventpair();
    assert_eq!(close_many(&[0, a, 0, b, 0]), ZX_OK);
    assert!(!is_valid(a) && !is_valid(b));
    let (a, b) = eventpair();
    assert_eq!(close_many(&[a, a, b]), ZX_ERR_BAD_HANDLE);
    assert!(!is_valid(a) && !is_valid(b), "a valid handle was not closed");
    assert_eq!(close(0), ZX_OK);
    assert_eq!(close(a), ZX_ERR_BAD_HANDLE);
}

/// Covers these test cases of Fuchsia: HandleDupTest.ReplaceSuccessOrigInvalid,
/// HandleDupTest.ReplaceFailureBothInvalid, HandleDupTest.Replace, HandleDupTest.Duplicate,
/// HandleInfoTest.DupAndInfoRights, HandleInfoTest.DuplicateRights, HandleInfoTest.ReplaceRights.
#[test]
fn duplicating_and_replacing() {
    let event = event();
    let all = ZX_DEFAULT_EVENT_RIGHTS;
    let copy = duplicate(event, ZX_RIGHT_SAME_RIGHTS).unwrap();
    assert_ne!(copy, event);
    assert_eq!((info(copy).1.rights, info(copy).1.koid), (all, info(event).1.koid));
    let weak = duplicate(event, ZX_RIGHT_WAIT).unwrap();
    assert_eq!(info(weak).1.rights, ZX_RIGHT_WAIT);
    assert_eq!(duplicate(weak, ZX_RIGHT_SAME_RIGHTS), Err(ZX_ERR_ACCESS_DENIED));
    assert_eq!(duplicate(event, all | ZX_RIGHT_WRITE), Err(ZX_ERR_INVALID_ARGS));
    assert_eq!(duplicate(0, all), Err(ZX_ERR_BAD_HANDLE));
    let new = replace(copy, all & !ZX_RIGHT_DUPLICATE).unwrap();
    assert!(!is_valid(copy));
    assert_eq!(info(new).1.rights, all & !ZX_RIGHT_DUPLICATE);
    assert_eq!(replace(new, all), Err(ZX_ERR_INVALID_ARGS));
    assert!(!is_valid(new), "the source was not closed");
    let (a, b) = channel();
    assert_eq!(duplicate(a, ZX_RIGHT_SAME_RIGHTS), Err(ZX_ERR_ACCESS_DENIED), "an end got a second handle");
    let a = replace(a, ZX_RIGHT_SAME_RIGHTS).unwrap();
    assert_eq!(write(b, b"x", &[]), ZX_OK);
    assert_eq!(read(a).bytes, b"x");
    for handle in [event, weak, a, b] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that the number of a closed handle is not reused soon.
#[test]
fn closed_handles_stay_bad() {
    let first = event();
    assert_eq!(first & ZX_HANDLE_FIXED_BITS_MASK, ZX_HANDLE_FIXED_BITS_MASK);
    assert_eq!(close(first), ZX_OK);
    for _ in 0..100_000 {
        let next = event();
        assert_ne!(next, first);
        assert_eq!(close(next), ZX_OK);
    }
    assert_eq!(close(first), ZX_ERR_BAD_HANDLE);
}

#[test]
fn memory_has_a_size() {
    let size = |handle| {
        let mut size = 0;
        // SAFETY: the pointer leads to a local variable.
        (unsafe { zx_vmo_get_size(handle, &mut size) }, size)
    };
    let mut out = 0;
    // SAFETY: the pointer leads to a local variable.
    unsafe {
        assert_eq!(zx_vmo_create(1, 1, &mut out), ZX_ERR_INVALID_ARGS);
        assert_eq!(zx_vmo_create(u64::MAX, 0, &mut out), ZX_ERR_OUT_OF_RANGE);
    }
    let vmo = vmo(5000);
    assert_eq!(size(vmo), (ZX_OK, 8192));
    assert_eq!(vmo_read(vmo, 0, 8192), (ZX_OK, vec![0; 8192]));
    for (offset, len) in [(0, 8193), (8192, 1), (u64::MAX, 1), (u64::MAX - 1, 8192)] {
        assert_eq!(vmo_read(vmo, offset, len).0, ZX_ERR_OUT_OF_RANGE);
        assert_eq!(vmo_write(vmo, offset, &vec![0; len]), ZX_ERR_OUT_OF_RANGE);
    }
    let reader = duplicate(vmo, ZX_RIGHT_READ).unwrap();
    assert_eq!(vmo_write(reader, 0, b"x"), ZX_ERR_ACCESS_DENIED);
    let writer = duplicate(vmo, ZX_RIGHT_WRITE).unwrap();
    assert_eq!(vmo_read(writer, 0, 1).0, ZX_ERR_ACCESS_DENIED);
    let event = event();
    assert_eq!((vmo_read(event, 0, 1).0, size(event).0), (ZX_ERR_WRONG_TYPE, ZX_ERR_WRONG_TYPE));
    for handle in [vmo, reader, writer, event] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that writes go to their offset although another process may set the shared open file to append.
#[test]
fn memory_is_written_where_it_is_said_whatever_others_do_to_the_open_file() {
    use rustix::fs::OFlags;
    use std::os::fd::{FromRawFd, OwnedFd};
    for options in [0, ZX_VMO_RESIZABLE] {
        let (mut vmo, mut fd) = (0, -1);
        // SAFETY: the pointers lead to local variables, and the test owns the descriptor.
        let file = unsafe {
            assert_eq!(zx_vmo_create(8192, options, &mut vmo), ZX_OK);
            let other = duplicate(vmo, ZX_RIGHT_SAME_RIGHTS).unwrap();
            assert_eq!(strait_zx_handle_to_fd(other, &mut fd), ZX_OK);
            OwnedFd::from_raw_fd(fd)
        };
        rustix::fs::fcntl_setfl(&file, OFlags::APPEND).unwrap();
        assert_eq!(vmo_write(vmo, 4000, b"here"), ZX_OK);
        assert_eq!(vmo_read(vmo, 4000, 4), (ZX_OK, b"here".to_vec()));
        assert_eq!(rustix::fs::fstat(&file).unwrap().st_size, 8192);
        assert_eq!(close(vmo), ZX_OK);
    }
}

#[test]
fn descriptors_become_handles_and_handles_descriptors() {
    use std::io::{Read, Seek, Write};
    use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
    let (mut handle, mut fd) = (0, -1);
    let vmo = vmo(4096);
    assert_eq!(vmo_write(vmo, 0, b"memory"), ZX_OK);
    // SAFETY: the pointers lead to local variables, and the test owns the descriptor.
    unsafe {
        assert_eq!(strait_zx_handle_to_fd(vmo, &mut fd), ZX_OK);
        let mut file = std::fs::File::from_raw_fd(fd);
        let mut text = [0; 6];
        file.read_exact(&mut text).unwrap();
        assert_eq!(&text, b"memory");
        file.rewind().unwrap();
        file.write_all(b"MEM").unwrap();
        assert_eq!(strait_zx_handle_from_fd(file.into_raw_fd(), &mut handle), ZX_OK);
    }
    let (a, b) = channel();
    assert_eq!(write(a, b"", &[handle]), ZX_OK);
    let received = read(b).handles[0];
    assert_eq!((received.type_, received.rights), (STRAIT_ZX_OBJ_TYPE_FD, STRAIT_ZX_DEFAULT_FD_RIGHTS));
    assert_eq!(wait(received.handle, 1, 0).0, ZX_ERR_ACCESS_DENIED);
    // SAFETY: the pointer leads to a local variable, and the test owns the descriptor.
    let file = unsafe {
        assert_eq!(strait_zx_handle_to_fd(received.handle, &mut fd), ZX_OK);
        OwnedFd::from_raw_fd(fd)
    };
    let mut file = std::fs::File::from(file);
    let mut text = String::new();
    file.rewind().unwrap();
    (&file).take(6).read_to_string(&mut text).unwrap();
    assert_eq!(text, "MEMory");
    assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));

    // A channel over a pair of sockets.
    let (ours, theirs) = rustix::net::socketpair(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::SEQPACKET,
        rustix::net::SocketFlags::empty(),
        None,
    )
    .unwrap();
    let (mut a, mut b) = (0, 0);
    // SAFETY: the pointers lead to local variables.
    unsafe {
        assert_eq!(strait_zx_channel_from_socket(ours.into_raw_fd(), &mut a), ZX_OK);
        assert_eq!(strait_zx_channel_from_socket(theirs.into_raw_fd(), &mut b), ZX_OK);
    }
    assert_eq!(write(a, b"over a socket", &[event()]), ZX_OK);
    let read = await_read(b);
    assert_eq!((read.bytes.as_slice(), read.handles[0].type_), (b"over a socket".as_slice(), ZX_OBJ_TYPE_EVENT));
    assert_eq!((close(read.handles[0].handle), close(a), close(b)), (ZX_OK, ZX_OK, ZX_OK));
}

#[test]
fn time_goes_on() {
    let begin = Instant::now();
    let now = zx_clock_get_monotonic();
    assert!(now > 0);
    let until = zx_deadline_after(20_000_000);
    assert!(until >= now + 20_000_000);
    assert_eq!(zx_nanosleep(until), ZX_OK);
    assert!(zx_clock_get_monotonic() >= until && begin.elapsed() >= Duration::from_millis(20));
    assert_eq!(zx_nanosleep(0), ZX_OK);
    assert_eq!(zx_nanosleep(ZX_TIME_INFINITE_PAST), ZX_OK);
    assert_eq!(zx_deadline_after(ZX_TIME_INFINITE), ZX_TIME_INFINITE);
    assert!(zx_deadline_after(i64::MIN) < 0);
}

#[test]
fn statuses_have_names() {
    let name = |status| {
        // SAFETY: the function returns a constant text.
        unsafe { std::ffi::CStr::from_ptr(zx_status_get_string(status)) }.to_str().unwrap()
    };
    assert_eq!(name(0), "ZX_OK");
    assert_eq!(name(-24), "ZX_ERR_PEER_CLOSED");
    assert_eq!(name(-76), "ZX_ERR_CONNECTION_ABORTED");
    assert_eq!((name(1), name(-5)), ("(UNKNOWN)", "(UNKNOWN)"));
}

/// Shows that memory of a fixed size can be written while another holder of the memory stands still in a write.
#[test]
fn a_vmo_is_written_while_another_holder_stands_still_in_a_write() {
    let Some(watcher) = standstill::Watcher::new() else { return };
    let memory = vmo(8192);
    let (mut copy, mut fd) = (0, -1);
    // SAFETY: the pointers lead to local variables, and the descriptor is owned by nothing else.
    let fd = unsafe {
        assert_eq!(zx_handle_duplicate(memory, ZX_RIGHT_SAME_RIGHTS, &mut copy), ZX_OK);
        assert_eq!(strait_zx_handle_to_fd(copy, &mut fd), ZX_OK);
        std::os::fd::OwnedFd::from_raw_fd(fd)
    };
    let page = watcher.stand_still_in_a_write_to(&fd);
    let begin = Instant::now();
    assert_eq!(vmo_write(memory, 4090, b"in the middle"), ZX_OK);
    assert!(begin.elapsed() < Duration::from_secs(60), "the write took {:?}", begin.elapsed());
    assert_eq!(vmo_read(memory, 4090, 13), (ZX_OK, b"in the middle".to_vec()));
    assert_eq!(vmo_write(memory, 8191, b"12"), ZX_ERR_OUT_OF_RANGE);
    drop(page);
    assert_eq!(close(memory), ZX_OK);
}
