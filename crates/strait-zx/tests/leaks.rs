//! Counts handles, descriptors and memory before and after everything was used. There is one test, since the counts are
//! those of the whole process.

mod rig;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

/// Uses everything once: messages with handles of every kind that are read, discarded, refused, lost and left unread;
/// waits, calls and ports; in this process and with another one.
fn everything(side: &Side) {
    let (a, b) = channel();
    let b = side.adopt(b);
    let all = || vec![channel(), eventpair(), (event(), 0), (port(), 0), (vmo(4096), 0)];
    let send = |keep: usize| {
        let (sent, kept): (Vec<_>, Vec<_>) = all().into_iter().unzip();
        assert_eq!(write(a, &vec![1; keep], &sent), ZX_OK);
        kept
    };
    let close_kept = |kept: Vec<zx_handle_t>| {
        // SAFETY: the pointer and the length are those of a slice.
        assert_eq!(unsafe { zx_handle_close_many(kept.as_ptr(), kept.len()) }, ZX_OK);
    };
    // Messages are read.
    let kept = send(10);
    for received in side.await_read(b).handles {
        assert_eq!(side.close(received.handle), ZX_OK);
    }
    close_kept(kept);
    // Messages are discarded, also with a buffer that is long enough for the records.
    for room in [0, 1000] {
        let kept = send(10);
        side.await_signal(b, ZX_CHANNEL_READABLE);
        let read = side.read_with(b, ZX_CHANNEL_READ_MAY_DISCARD, room, 4);
        assert_eq!(read.status, ZX_ERR_BUFFER_TOO_SMALL);
        close_kept(kept);
    }
    // Signals of the other end change; some changes are seen, some are not.
    assert_eq!(zx_object_signal_peer(a, 0, ZX_USER_SIGNAL_0), ZX_OK);
    side.await_signal(b, ZX_USER_SIGNAL_0);
    assert_eq!(side.signal_peer(b, 0, ZX_USER_SIGNAL_0), ZX_OK);
    // A message is lost, since there are no arrays for its bytes and handles.
    let (c, d) = channel();
    let (sent, kept): (Vec<_>, Vec<_>) = all().into_iter().unzip();
    assert_eq!(write(c, b"x", &sent), ZX_OK);
    let nowhere = std::ptr::null_mut();
    // SAFETY: the pointer is null.
    let status = unsafe { zx_channel_read(d, 0, nowhere, nowhere.cast(), 1, 5, nowhere.cast(), nowhere.cast()) };
    assert_eq!(status, ZX_ERR_INVALID_ARGS);
    close_kept(kept);
    // Writes are refused, at each step.
    for place in 0..=5 {
        let (mut sent, mut kept): (Vec<_>, Vec<_>) = all().into_iter().unzip();
        sent.insert(place, 0);
        assert_eq!(write(c, b"x", &sent), ZX_ERR_BAD_HANDLE);
        kept.retain(|handle| *handle != 0);
        close_kept(kept);
    }
    // Calls are answered or time out; waits end or are left behind.
    let port = port();
    assert_eq!(zx_object_wait_async(a, port, 1, ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
    assert_eq!(zx_object_wait_async(c, port, 1, ZX_CHANNEL_READABLE, 0), ZX_OK);
    assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, zx_deadline_after(1000)).0, ZX_ERR_TIMED_OUT);
    assert_eq!(call_with(a, 0, b"....", &[event()], (4, 4)).status, ZX_ERR_TIMED_OUT);
    let request = side.await_read(b);
    assert_eq!(side.write(b, &request.bytes, &[request.handles[0].handle]), ZX_OK);
    let late = await_read(a);
    assert_eq!(close(late.handles[0].handle), ZX_OK);
    // Messages are left unread, with an end in an end in an end.
    let kept = send(10);
    let mut innermost = channel();
    for _ in 0..20 {
        let (outer, carries) = channel();
        assert_eq!(write(outer, b"", &[innermost.0]), ZX_OK);
        assert_eq!(close(outer), ZX_OK);
        close(innermost.1);
        innermost = (carries, 0);
    }
    assert_eq!(write(a, b"", &[innermost.0]), ZX_OK);
    close_kept(kept);
    assert_eq!(side.close(b), ZX_OK);
    assert_eq!(port_wait(port, deadline()).0, ZX_OK);
    for handle in [a, c, d, port] {
        assert_eq!(close(handle), ZX_OK);
    }
}

#[test]
fn nothing_is_left_behind() {
    let here = Side::here();
    let there = Side::there();
    let rounds = |count: usize| {
        for _ in 0..count {
            everything(&here);
            everything(&there);
        }
    };
    // The first round makes objects that stay: the wait set, and a link to the other process.
    rounds(1);
    let (before, theirs) = (Counts::now(), there.counts().unwrap());
    rounds(20);
    // The other process closes its unread messages when it hears of the close; a thread may close descriptors.
    let settles = |what: &str, before: Counts, count: &dyn Fn() -> Counts| {
        // The first round may not have settled when it was counted, so fewer may be left than then.
        let settled = |now: &Counts| now.handles <= before.handles && now.descriptors <= before.descriptors;
        let mut now = count();
        for _ in 0..6000 {
            if settled(&now) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
            now = count();
        }
        assert!(
            settled(&now),
            "handles and descriptors {what}: {:?}, before {:?}",
            (now.handles, now.descriptors),
            (before.handles, before.descriptors)
        );
    };
    settles("here", before, &Counts::now);
    settles("there", theirs, &|| there.counts().unwrap());
    // Memory is kept for reuse, and sometimes doubled. A leak, however, shows in every round.
    let is_kept = |before: Counts, now: Counts| now.allocated <= before.allocated && now.mapped <= before.mapped;
    let (mut kept_here, mut kept_there) = (false, false);
    let mut seen = Vec::new();
    for _ in 0..50 {
        let before = (Counts::now(), there.counts().unwrap());
        rounds(10);
        let now = (Counts::now(), there.counts().unwrap());
        kept_here |= is_kept(before.0, now.0);
        kept_there |= is_kept(before.1, now.1);
        seen.push(now);
        if kept_here && kept_there {
            return;
        }
    }
    panic!("memory is left over: {seen:#?}");
}
