//! A write that fails for lack of room has no effect, also on threads that use one of its handles meanwhile: they wait
//! for the handle, miss no event, and lose no answer.

mod rig;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::scope;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

const ROUNDS: u64 = 40;

/// Returns a channel without room for a message from the first end.
fn without_room() -> (zx_handle_t, zx_handle_t) {
    let (c, d) = channel();
    for message in [&[0; 65536][..], b"x"] {
        while write(c, message, &[]) == ZX_OK {}
    }
    assert_eq!(write(c, b"x", &[]), ZX_ERR_SHOULD_WAIT);
    (c, d)
}

/// Runs `use_it` while another thread writes `handle` again and again, in vain.
fn while_writing(handle: zx_handle_t, use_it: impl FnOnce()) {
    let (c, d) = without_room();
    let (tries, is_over) = (AtomicU32::new(0), AtomicBool::new(false));
    /// Ends the writes when it is dropped, also by a failing test.
    struct Over<'a>(&'a AtomicBool);
    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                assert_eq!(write(c, b"a handle", &[handle]), ZX_ERR_SHOULD_WAIT);
                tries.fetch_add(1, Ordering::SeqCst);
            }
        });
        let _over = Over(&is_over);
        while tries.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        use_it();
    });
    assert_eq!((close(c), close(d)), (ZX_OK, ZX_OK));
}

both_sides! {
    /// Shows that a port gets the packet for each message.
    fn a_port_gets_each_packet(side: &Side) {
        let (h, peer) = channel();
        let peer = side.adopt(peer);
        let port = port();
        while_writing(h, || {
            for round in 0..ROUNDS {
                assert_eq!(zx_object_wait_async(h, port, round, ZX_CHANNEL_READABLE, 0), ZX_OK);
                assert_eq!(side.write(peer, b"x", &[]), ZX_OK);
                let (status, packet) = port_wait(port, deadline());
                assert_eq!((status, packet.key), (ZX_OK, round));
                assert_eq!(read(h).bytes, b"x");
            }
        });
        assert_eq!((close(h), side.close(peer), close(port)), (ZX_OK, ZX_OK, ZX_OK));
    }

    /// Shows that a waiting thread sees each message and each change of signals.
    fn a_thread_sees_each_event(side: &Side) {
        let (h, peer) = channel();
        let peer = side.adopt(peer);
        while_writing(h, || {
            for _ in 0..ROUNDS {
                scope(|scope| {
                    let waits = scope.spawn(|| wait(h, ZX_CHANNEL_READABLE, deadline()).0);
                    assert_eq!(side.write(peer, b"x", &[]), ZX_OK);
                    assert_eq!(waits.join().unwrap(), ZX_OK);
                    let waits = scope.spawn(|| wait(h, ZX_USER_SIGNAL_0, deadline()).0);
                    while side.signal_peer(peer, 0, ZX_USER_SIGNAL_0) == ZX_ERR_SHOULD_WAIT {}
                    assert_eq!(waits.join().unwrap(), ZX_OK);
                });
                assert_eq!(zx_object_signal(h, ZX_USER_SIGNAL_0, 0), ZX_OK);
                assert_eq!(read(h).bytes, b"x");
            }
        });
        assert_eq!((close(h), side.close(peer)), (ZX_OK, ZX_OK));
    }

    /// Shows that a write of handles to the end finds the end.
    fn each_write_of_handles_finds_the_end(side: &Side) {
        let (h, peer) = channel();
        let peer = side.adopt(peer);
        while_writing(h, || {
            for _ in 0..10 * ROUNDS {
                let sent = event();
                assert_eq!(write(h, b"x", &[sent]), ZX_OK);
                let received = side.await_read(peer);
                assert_eq!((received.status, side.close(received.handles[0].handle)), (ZX_OK, ZX_OK));
            }
        });
        assert_eq!((close(h), side.close(peer)), (ZX_OK, ZX_OK));
    }

    /// Shows that each call gets its answer.
    fn each_call_gets_its_answer(side: &Side) {
        let (h, peer) = channel();
        let peer = side.adopt(peer);
        while_writing(h, || {
            for _ in 0..ROUNDS {
                scope(|scope| {
                    let calls = scope.spawn(|| call(h, b"....question", &[]));
                    let request = side.await_read(peer);
                    assert_eq!(request.status, ZX_OK);
                    assert_eq!(side.write(peer, &request.bytes, &[]), ZX_OK);
                    let called = calls.join().unwrap();
                    assert_eq!((called.status, &called.bytes[4..]), (ZX_OK, &b"question"[..]));
                });
            }
        });
        assert_eq!((close(h), side.close(peer)), (ZX_OK, ZX_OK));
    }
}
