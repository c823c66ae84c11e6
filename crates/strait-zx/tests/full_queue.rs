//! Tests of waits and calls on an end with more unread messages than a wait moves out of the ring.

mod rig;

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::scope;
use std::time::{Duration, Instant};

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// Number of unread messages: more than the 8,192 that a wait moves out of the ring.
const MANY: usize = 8200;

/// Returns an end in this process with [`MANY`] unread messages, and the other end, which is on the given side.
fn full(side: &Side) -> (zx_handle_t, zx_handle_t) {
    let (a, b) = channel();
    (0..MANY).for_each(|_| assert_eq!(write(b, b"x", &[]), ZX_OK));
    (a, side.adopt(b))
}

/// A thread of a test, for another thread to see that it sleeps.
#[derive(Default)]
struct Thread(AtomicI32);

impl Thread {
    /// Notes the calling thread as the one that is about to sleep.
    fn begins(&self) {
        // SAFETY: the call has no arguments.
        self.0.store(unsafe { libc::gettid() }, Ordering::SeqCst);
    }

    /// Returns once the noted thread sleeps.
    fn await_sleep(&self) {
        let begin = Instant::now();
        let sleeps = || {
            let number = self.0.load(Ordering::SeqCst);
            let state = std::fs::read_to_string(format!("/proc/self/task/{number}/stat"));
            state.is_ok_and(|state| state.rsplit(") ").next().is_some_and(|state| state.starts_with('S')))
        };
        while !sleeps() {
            assert!(begin.elapsed() < Duration::from_secs(60), "the thread does not sleep");
            std::thread::yield_now();
        }
    }
}

both_sides! {
    /// Shows that closing the other end ends a wait, although messages are left in the ring.
    fn a_close_behind_many_messages_ends_a_wait(side: &Side) {
        let (a, b) = full(side);
        let thread = Thread::default();
        scope(|scope| {
            let waits = scope.spawn(|| {
                thread.begins();
                wait(a, ZX_CHANNEL_PEER_CLOSED, deadline())
            });
            thread.await_sleep();
            assert_eq!(side.close(b), ZX_OK);
            let (status, observed) = waits.join().unwrap();
            assert_eq!(status, ZX_OK);
            assert_eq!(observed & ZX_CHANNEL_PEER_CLOSED, ZX_CHANNEL_PEER_CLOSED);
        });
        (0..MANY).for_each(|_| assert_eq!(read(a).bytes, b"x"));
        assert_eq!((read(a).status, close(a)), (ZX_ERR_PEER_CLOSED, ZX_OK));
    }

    /// Shows that a wait for the close of an end that is closed already, behind many messages, ends at once.
    fn a_close_before_a_wait_is_seen_behind_many_messages(side: &Side) {
        let (a, b) = full(side);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, deadline()).0, ZX_OK);
        assert_eq!(close(a), ZX_OK);
    }

    /// Shows that a change of signals behind many messages ends a wait once another thread has read the messages.
    fn reading_many_messages_shows_a_signal_behind_them(side: &Side) {
        let (a, b) = full(side);
        // A process without the end's other end sends the change behind the messages.
        assert_eq!(side.signal_peer(b, 0, ZX_USER_SIGNAL_0), ZX_OK);
        let thread = Thread::default();
        scope(|scope| {
            let waits = scope.spawn(|| {
                thread.begins();
                wait(a, ZX_USER_SIGNAL_0, deadline()).0
            });
            thread.await_sleep();
            for _ in 0..MANY {
                assert_eq!(read(a).bytes, b"x");
            }
            assert_eq!(waits.join().unwrap(), ZX_OK);
        });
        assert_eq!((side.close(b), close(a)), (ZX_OK, ZX_OK));
    }

    /// Shows that the answer to a call is found behind many messages once another thread has read the messages.
    fn reading_many_messages_shows_an_answer_behind_them(side: &Side) {
        let (a, b) = full(side);
        let thread = Thread::default();
        scope(|scope| {
            let calls = scope.spawn(|| {
                thread.begins();
                call(a, b"....question", &[])
            });
            let request = side.await_read(b);
            assert_eq!(&request.bytes[4..], b"question");
            thread.await_sleep();
            assert_eq!(side.write(b, &request.bytes, &[]), ZX_OK);
            for _ in 0..MANY {
                assert_eq!(read(a).bytes, b"x");
            }
            let called = calls.join().unwrap();
            assert_eq!((called.status, &called.bytes[4..]), (ZX_OK, &b"question"[..]));
        });
        assert_eq!((side.close(b), close(a)), (ZX_OK, ZX_OK));
    }

    /// Shows that a call ends if the other end is closed, although messages are left in the ring.
    fn a_close_behind_many_messages_ends_a_call(side: &Side) {
        let (a, b) = full(side);
        let thread = Thread::default();
        scope(|scope| {
            let calls = scope.spawn(|| {
                thread.begins();
                call(a, b"....question", &[]).status
            });
            assert_eq!(side.await_read(b).status, ZX_OK);
            thread.await_sleep();
            assert_eq!(side.close(b), ZX_OK);
            assert_eq!(calls.join().unwrap(), ZX_ERR_PEER_CLOSED);
        });
        (0..MANY).for_each(|_| assert_eq!(read(a).bytes, b"x"));
        assert_eq!((read(a).status, close(a)), (ZX_ERR_PEER_CLOSED, ZX_OK));
    }

    /// Shows that a wait for room and for the close of an end with many unread messages ends when there is room.
    fn room_beside_many_messages_ends_a_wait(side: &Side) {
        let (a, b) = full(side);
        for message in [&[0; 65536][..], b"x"] {
            while write(a, message, &[]) == ZX_OK {}
        }
        let awaited = ZX_CHANNEL_WRITABLE | ZX_CHANNEL_PEER_CLOSED;
        let thread = Thread::default();
        scope(|scope| {
            let waits = scope.spawn(|| {
                thread.begins();
                wait(a, awaited, deadline())
            });
            thread.await_sleep();
            while side.read(b).status == ZX_OK {}
            let (status, observed) = waits.join().unwrap();
            assert_eq!((status, observed & awaited), (ZX_OK, ZX_CHANNEL_WRITABLE));
        });
        assert_eq!((side.close(b), close(a)), (ZX_OK, ZX_OK));
    }
}

/// Shows that the death of the other process ends a wait, although messages are left in the ring.
#[test]
fn a_death_behind_many_messages_ends_a_wait() {
    let mut side = Side::there();
    let (a, _b) = full(&side);
    let thread = Thread::default();
    scope(|scope| {
        let waits = scope.spawn(|| {
            thread.begins();
            wait(a, ZX_CHANNEL_PEER_CLOSED, deadline()).0
        });
        thread.await_sleep();
        side.kill();
        assert_eq!(waits.join().unwrap(), ZX_OK);
    });
    assert_eq!(close(a), ZX_OK);
}
