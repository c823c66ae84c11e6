//! Tests of calls: a request message and its answer.

mod rig;

use std::ptr::null_mut;
use std::time::Instant;

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

fn ends(side: &Side) -> (zx_handle_t, zx_handle_t) {
    let (a, b) = channel();
    (a, side.adopt(b))
}

/// Runs a call; meanwhile the other side reads the message and calls `answer` with it to reply.
fn called(side: &Side, b: zx_handle_t, call: impl FnOnce() -> Called + Send, answer: impl FnOnce(Read)) -> Called {
    std::thread::scope(|scope| {
        let called = scope.spawn(call);
        answer(side.await_read(b));
        called.join().unwrap()
    })
}

both_sides! {
    /// Covers these test cases of Fuchsia: ChannelTest.CallBytesFitIsOk, ChannelTest.CallHandlesFitIsOk,
    /// ChannelTest.CallConsumesHandlesOnSuccess.
    fn bytes_and_handles_go_there_and_back(side: &Side) {
        let (a, b) = ends(side);
        let sent = event();
        let koid = info(sent).1.koid;
        let answer = called(side, b, || call_with(a, deadline(), b"....payload", &[sent], (11, 1)), |request| {
            assert_eq!(&request.bytes[4..], b"payload");
            assert!(request.bytes[3] >= 0x80, "the call number lacks its highest bit");
            assert_eq!(side.write(b, &request.bytes, &[request.handles[0].handle]), ZX_OK);
        });
        assert_eq!((answer.status, &answer.bytes[4..]), (ZX_OK, b"payload".as_slice()));
        assert!(!is_valid(sent));
        assert_eq!(info(answer.handles[0]).1.koid, koid);
        assert_eq!(signals(a), ZX_CHANNEL_WRITABLE, "an answer made the end readable");
        assert_eq!((close(answer.handles[0]), close(a), side.close(b)), (ZX_OK, ZX_OK, ZX_OK));
    }

    /// Covers Fuchsia's test case ChannelTest.CallResponseBiggerThanRdNumHandlesReturnsBufferTooSmall.
    fn an_answer_that_does_not_fit_is_lost(side: &Side) {
        let (a, b) = ends(side);
        for room in [(3, 1), (4, 0)] {
            let (witness, sent) = eventpair();
            let answer = called(side, b, || call_with(a, deadline(), b"....", &[sent], room), |request| {
                assert_eq!(side.write(b, &request.bytes, &[request.handles[0].handle]), ZX_OK);
            });
            assert_eq!(answer.status, ZX_ERR_BUFFER_TOO_SMALL);
            assert_eq!(wait(witness, ZX_EVENTPAIR_PEER_CLOSED, deadline()).0, ZX_OK);
            assert_eq!(read(a).status, ZX_ERR_SHOULD_WAIT);
            assert_eq!(close(witness), ZX_OK);
        }
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: ChannelTest.CallNullptrNumBytesIsInvalidArgs,
    /// ChannelTest.CallNullptrNumHandlesInvalidArgs.
    fn places_for_sizes_are_needed(side: &Side) {
        let (a, b) = ends(side);
        for which in 0..2 {
            let answer = called(side, b, || {
                let mut size = 0;
                let sizes = if which == 0 { (null_mut(), &raw mut size) } else { (&raw mut size, null_mut()) };
                let mut room = [0u8; 8];
                let args = zx_channel_call_args_t {
                    wr_bytes: b"....".as_ptr().cast(),
                    wr_handles: null_mut(),
                    rd_bytes: room.as_mut_ptr().cast(),
                    rd_handles: null_mut(),
                    wr_num_bytes: 4,
                    wr_num_handles: 0,
                    rd_num_bytes: 8,
                    rd_num_handles: 0,
                };
                // SAFETY: each pointer is null or valid.
                let status = unsafe { zx_channel_call(a, 0, deadline(), &args, sizes.0, sizes.1) };
                Called { status, ..Default::default() }
            }, |request| assert_eq!(side.write(b, &request.bytes, &[]), ZX_OK));
            assert_eq!(answer.status, ZX_ERR_INVALID_ARGS);
        }
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Covers Fuchsia's test case ChannelTest.CallPendingTransactionsUseDifferentIds.
    fn twenty_calls_at_once_get_their_own_answers(side: &Side) {
        let (a, b) = ends(side);
        std::thread::scope(|scope| {
            let calls: Vec<_> = (0..20u8)
                .map(|number| scope.spawn(move || (number, call(a, &[0, 0, 0, 0, number], &[]))))
                .collect();
            let mut requests: Vec<_> = (0..20).map(|_| side.await_read(b).bytes).collect();
            let mut numbers: Vec<_> = requests.iter().map(|request| request[..4].to_vec()).collect();
            numbers.sort();
            numbers.dedup();
            assert_eq!(numbers.len(), 20);
            // The answers come in another order, with other messages in between.
            requests.sort_by_key(|request| request[4].wrapping_mul(37));
            for request in &requests {
                assert_eq!(side.write(b, &[request.as_slice(), b"!"].concat(), &[]), ZX_OK);
                assert_eq!(side.write(b, &[1, 0, 0, 0, 9], &[]), ZX_OK);
            }
            for call in calls {
                let (number, answer) = call.join().unwrap();
                assert_eq!((answer.status, &answer.bytes[4..]), (ZX_OK, [number, b'!'].as_slice()));
            }
        });
        for _ in 0..20 {
            assert_eq!(await_read(a).bytes, [1, 0, 0, 0, 9]);
        }
        assert_eq!(read(a).status, ZX_ERR_SHOULD_WAIT);
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: ChannelTest.CallNotifiedOnPeerClosed,
    /// ChannelTest.CallConsumesHandlesOnError.
    fn a_call_ends_when_the_other_end_is_closed(side: &Side) {
        let (a, b) = ends(side);
        let sent = event();
        let answer = called(side, b, || call(a, b"....", &[sent]), |request| {
            assert_eq!(side.close(request.handles[0].handle), ZX_OK);
            assert_eq!(side.close(b), ZX_OK);
        });
        assert_eq!(answer.status, ZX_ERR_PEER_CLOSED);
        assert!(!is_valid(sent));
        let sent = event();
        assert_eq!(call(a, b"....", &[sent]).status, ZX_ERR_PEER_CLOSED);
        assert!(!is_valid(sent));
        assert_eq!(close(a), ZX_OK);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.CallMismatchedTxidQueuesRegularMessage,
    /// ChannelTest.WriteShortPayloadsSucceeds.
    fn other_messages_are_queued_during_a_call(side: &Side) {
        let (a, b) = ends(side);
        let others: [&[u8]; 6] = [b"", b"1", b"12", b"123", &[0xff, 0xff, 0xff, 0x8f], b"four and more"];
        let answer = called(side, b, || call(a, b"....", &[]), |request| {
            for other in others {
                assert_eq!(side.write(b, other, &[]), ZX_OK);
            }
            // Other messages can be read while the call waits.
            assert_eq!(await_read(a).bytes, others[0]);
            assert_eq!(side.write(b, &request.bytes, &[]), ZX_OK);
        });
        assert_eq!(answer.status, ZX_OK);
        for other in &others[1..] {
            assert_eq!(await_read(a).bytes, *other);
        }
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Shows that a timed-out call has sent its message, and that a late answer is an ordinary message.
    fn a_call_that_was_given_up_was_sent(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(call_with(a, 0, b"....", &[], (4, 0)).status, ZX_ERR_TIMED_OUT);
        assert_eq!(call_with(a, zx_deadline_after(1_000_000), b"....", &[], (4, 0)).status, ZX_ERR_TIMED_OUT);
        for _ in 0..2 {
            let request = side.await_read(b).bytes;
            assert_eq!(side.write(b, &request, &[]), ZX_OK);
            assert_eq!(await_read(a).bytes, request);
        }
        assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
    }

    /// Covers Fuchsia's test case ChannelCallEtcTest.CallEtcSuccess.
    fn call_etc_says_what_handles_are(side: &Side) {
        let (a, b) = ends(side);
        let kept = event();
        let (mut bytes, mut handles) = (0, 0);
        let mut infos = [zx_handle_info_t::default(); 2];
        let answer = called(side, b, || {
            let mut room = [0u8; 8];
            let rights = ZX_RIGHT_TRANSFER | ZX_RIGHT_WAIT;
            let mut dispositions = [zx_handle_disposition_t { rights, ..copied(kept) }];
            let mut args = zx_channel_call_etc_args_t {
                wr_bytes: b"....".as_ptr().cast(),
                wr_handles: dispositions.as_mut_ptr(),
                rd_bytes: room.as_mut_ptr().cast(),
                rd_handles: infos.as_mut_ptr(),
                wr_num_bytes: 4,
                wr_num_handles: 1,
                rd_num_bytes: 8,
                rd_num_handles: 2,
            };
            // SAFETY: the pointers lead to local variables.
            let status = unsafe { zx_channel_call_etc(a, 0, deadline(), &mut args, &mut bytes, &mut handles) };
            Called { status, ..Default::default() }
        }, |request| {
            assert_eq!(side.write(b, &request.bytes, &[request.handles[0].handle]), ZX_OK);
        });
        assert_eq!((answer.status, bytes, handles), (ZX_OK, 4, 1));
        assert_eq!((infos[0].type_, infos[0].rights), (ZX_OBJ_TYPE_EVENT, ZX_RIGHT_TRANSFER | ZX_RIGHT_WAIT));
        assert_eq!(info(kept).1.koid, info(infos[0].handle).1.koid);
        assert_eq!((close(kept), close(infos[0].handle), close(a), side.close(b)), (ZX_OK, ZX_OK, ZX_OK, ZX_OK));
    }

    /// Covers Fuchsia's test case ChannelInternalTest.TransferChannelWithPendingCall: on Linux a call ends
    /// when its end is written, not when it is read.
    fn a_call_on_an_end_that_is_closed_or_sent_away_is_canceled(side: &Side) {
        let (carrier, receiver) = ends(side);
        for sends in [false, true] {
            let (a, b) = ends(side);
            let answer = called(side, b, || call(a, b"....", &[]), |_| {
                if sends {
                    assert_eq!(write(carrier, b"", &[a]), ZX_OK);
                } else {
                    assert_eq!(close(a), ZX_OK);
                }
            });
            assert_eq!(answer.status, ZX_ERR_CANCELED);
            if sends {
                let a = side.await_read(receiver).handles[0].handle;
                assert_eq!(side.close(a), ZX_OK);
            }
            assert_eq!(side.close(b), ZX_OK);
        }
        assert_eq!((close(carrier), side.close(receiver)), (ZX_OK, ZX_OK));
    }
}

/// Covers these test cases of Fuchsia: ChannelTest.CallWrittenBytesSmallerThanZxTxIdReturnsInvalidArgs,
/// ChannelCallEtcTest.CallEtcInvalidArgs, ChannelTest.CallWithoutReadRightReturnsAccessDenied,
/// ChannelTest.CallWithoutWriteRightReturnsAccessDenied, ChannelTest.CallFromWrongObjectTypeReturnsWrongType.
#[test]
fn a_call_that_cannot_be_consumes_its_handles() {
    let (a, b) = channel();
    let rights = ZX_DEFAULT_CHANNEL_RIGHTS;
    let (one, other) = channel();
    let reader = replace(one, rights & !ZX_RIGHT_WRITE).unwrap();
    let writer = replace(other, rights & !ZX_RIGHT_READ).unwrap();
    let not_a_channel = event();
    for (handle, bytes, expected) in [
        (a, b"abc".as_slice(), ZX_ERR_INVALID_ARGS),
        (a, b"", ZX_ERR_INVALID_ARGS),
        (reader, b"abcd", ZX_ERR_ACCESS_DENIED),
        (writer, b"abcd", ZX_ERR_ACCESS_DENIED),
        (not_a_channel, b"abcd", ZX_ERR_WRONG_TYPE),
        (0, b"abcd", ZX_ERR_BAD_HANDLE),
        (a, &[0; 65537], ZX_ERR_OUT_OF_RANGE),
    ] {
        let sent = event();
        assert_eq!(call(handle, bytes, &[sent]).status, expected);
        assert!(!is_valid(sent));
    }
    let sent = event();
    assert_eq!(call(a, b"abcd", &[sent, a]).status, ZX_ERR_NOT_SUPPORTED);
    assert!(!is_valid(sent) && !is_valid(a));
    assert_eq!(read(b).status, ZX_ERR_PEER_CLOSED);
    // SAFETY: the pointer is null.
    let status = unsafe { zx_channel_call(b, 0, 0, std::ptr::null(), null_mut(), null_mut()) };
    assert_eq!(status, ZX_ERR_INVALID_ARGS);
    for handle in [b, reader, writer, not_a_channel] {
        assert_eq!(close(handle), ZX_OK);
    }
}

/// Shows that a call ends at its deadline although the ring has many changes of signals, which no reader sees.
#[test]
fn many_changes_of_signals_do_not_delay_the_deadline_of_a_call() {
    let (peer, end) = strait_zx::channel_options().pair().unwrap();
    let a = strait_zx::handle_from_channel(end).unwrap();
    const CHANGES: usize = 50_000;
    for number in 1..=CHANGES {
        let mut change = [0; 31];
        // The last change sets a signal.
        change[4..8].copy_from_slice(&(if number == CHANGES { ZX_USER_SIGNAL_0 } else { 0 }).to_le_bytes());
        let (token, _) = strait::Channel::pair().unwrap();
        peer.try_send(strait::Outgoing::new(&change).handle(token)).unwrap();
    }
    let begin = Instant::now();
    assert_eq!(call_with(a, zx_deadline_after(1_000_000), b"....", &[], (4, 0)).status, ZX_ERR_TIMED_OUT);
    let (called, begin) = (begin.elapsed(), Instant::now());
    while wait(a, ZX_USER_SIGNAL_0, 0).0 != ZX_OK {}
    let rest = begin.elapsed();
    // The call has taken a small share of the changes.
    assert!(called < rest, "the call took {called:?}, and all other changes {rest:?}");
    assert_eq!(close(a), ZX_OK);
}

/// Shows that the call number is written also if the first region is too short for it.
#[test]
fn the_number_of_a_call_goes_over_the_first_bytes_wherever_they_are() {
    let (a, b) = channel();
    for split in [[0usize, 2, 4], [1, 3, 5], [2, 3, 9], [4, 4, 6], [5, 6, 7]] {
        let bytes = b"abcdefghi";
        let edges = [0, split[0], split[1], split[2], 9];
        let mut regions: Vec<_> = edges.windows(2).map(|edge| region(&bytes[edge[0]..edge[1]])).collect();
        // More regions than checked together.
        if split[0] == 5 {
            regions.extend(vec![region(b""); 100]);
        }
        let (mut size, mut count) = (0, 0);
        let args = zx_channel_call_args_t {
            wr_bytes: regions.as_ptr().cast(),
            wr_handles: null_mut(),
            rd_bytes: null_mut(),
            rd_handles: null_mut(),
            wr_num_bytes: regions.len() as u32,
            wr_num_handles: 0,
            rd_num_bytes: 0,
            rd_num_handles: 0,
        };
        // SAFETY: the pointers lead to local variables.
        let status = unsafe { zx_channel_call(a, ZX_CHANNEL_WRITE_USE_IOVEC, 0, &args, &mut size, &mut count) };
        assert_eq!(status, ZX_ERR_TIMED_OUT);
        let request = read(b).bytes;
        assert!(request[3] >= 0x80);
        assert_eq!(&request[4..], b"efghi");
    }
    assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
}

/// A channel whose ring has many changes of signals, which no reader sees. The program-defined signals 0 to 6 count how
/// far the changes have been taken, in steps of 1 to 127; the last change sets signal 7.
struct Flooded {
    handle: zx_handle_t,
    _peer: strait::Channel,
}

impl Flooded {
    const CHANGES: usize = 10_000;

    fn new() -> Self {
        let (peer, end) = strait_zx::channel_options().pair().unwrap();
        for number in 1..=Self::CHANGES {
            let mut change = [0; 31];
            let step = (number * 127 / Self::CHANGES) as u32;
            let set = step << 24 | if number == Self::CHANGES { ZX_USER_SIGNAL_7 } else { 0 };
            change[..4].copy_from_slice(&ZX_USER_SIGNAL_ALL.to_le_bytes());
            change[4..8].copy_from_slice(&set.to_le_bytes());
            let (token, _) = strait::Channel::pair().unwrap();
            peer.try_send(strait::Outgoing::new(&change).handle(token)).unwrap();
        }
        Self { handle: strait_zx::handle_from_channel(end).unwrap(), _peer: peer }
    }

    /// Returns which share of the changes was taken, in percent; a query takes a few.
    fn taken(&self) -> u32 {
        (signals(self.handle) >> 24 & 0x7F) * 100 / 127
    }
}

impl Drop for Flooded {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            // The last change arrives.
            assert_eq!(wait(self.handle, ZX_USER_SIGNAL_7, deadline()).0, ZX_OK);
            assert_eq!(close(self.handle), ZX_OK);
        }
    }
}

/// Shows that waits end at their deadlines although the rings of the channels have many changes of signals: each wait
/// takes a small share of them.
#[test]
fn many_changes_of_signals_do_not_delay_the_deadline_of_a_wait() {
    let soon = || zx_deadline_after(1_000_000);
    let mut taken = Vec::new();
    for mask in [ZX_USER_SIGNAL_7, ZX_CHANNEL_READABLE] {
        let flooded = Flooded::new();
        assert_eq!(wait(flooded.handle, mask, soon()).0, ZX_ERR_TIMED_OUT);
        taken.push(("a wait for one", mask, flooded.taken()));
    }
    let flooded = [(); 3].map(|()| Flooded::new());
    let mut items =
        [0, 1, 2].map(|at: usize| zx_wait_item_t { handle: flooded[at].handle, waitfor: ZX_USER_SIGNAL_7, pending: 0 });
    // SAFETY: the pointer and the length are those of an array.
    assert_eq!(unsafe { zx_object_wait_many(items.as_mut_ptr(), 3, soon()) }, ZX_ERR_TIMED_OUT);
    flooded.iter().for_each(|flooded| taken.push(("a wait for three", ZX_USER_SIGNAL_7, flooded.taken())));
    drop(flooded);

    // A wait for a channel without changes looks at the others, for which ports wait.
    let flooded = [(); 3].map(|()| Flooded::new());
    let (port, (a, b)) = (port(), channel());
    for flooded in &flooded {
        assert_eq!(zx_object_wait_async(flooded.handle, port, 1, ZX_USER_SIGNAL_7, 0), ZX_OK);
    }
    assert_eq!(port_wait(port, soon()).0, ZX_ERR_TIMED_OUT);
    assert_eq!(wait(a, ZX_CHANNEL_READABLE, soon()).0, ZX_ERR_TIMED_OUT);
    flooded.iter().for_each(|flooded| taken.push(("a wait for another", ZX_CHANNEL_READABLE, flooded.taken())));
    for _ in &flooded {
        assert_eq!(port_wait(port, deadline()).0, ZX_OK);
    }
    assert!(taken.iter().all(|(.., percent)| *percent < 50), "{taken:?}");
    for handle in [a, b, port] {
        assert_eq!(close(handle), ZX_OK);
    }
}
