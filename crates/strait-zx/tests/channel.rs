//! Tests of channels: the assertions of Fuchsia's own tests, through the C interface, with the other end in this
//! process and in another one.
//!
//! The comment of each test names the cases of Fuchsia covered by the test. `catalogue.tsv` lists all cases.

mod rig;

use std::ptr::{null, null_mut};

use rig::*;
use strait_zx::abi::*;

#[test]
fn child() {
    serve();
}

const BOTH: zx_signals_t = ZX_CHANNEL_READABLE | ZX_CHANNEL_WRITABLE;

/// Makes a channel whose second end is on the given side.
fn ends(side: &Side) -> (zx_handle_t, zx_handle_t) {
    let (a, b) = channel();
    (a, side.adopt(b))
}

fn close_both(side: &Side, a: zx_handle_t, b: zx_handle_t) {
    assert_eq!((close(a), side.close(b)), (ZX_OK, ZX_OK));
}

/// Checks that the handle is closed, or will soon be closed, by watching the other end of the handle's eventpair.
fn is_closed_soon(witness: zx_handle_t) -> bool {
    wait(witness, ZX_EVENTPAIR_PEER_CLOSED, deadline()).0 == ZX_OK
}

both_sides! {
    /// Covers Fuchsia's test case ChannelTest.CreateIsOkAndEndpointsAreRelated.
    fn create_is_ok_and_ends_are_related(side: &Side) {
        let (a, b) = ends(side);
        let (of_a, of_b) = (info(a).1, side.info(b).1);
        assert_ne!(of_a.koid, of_b.koid);
        assert_eq!((of_a.related_koid, of_b.related_koid), (of_b.koid, of_a.koid));
        assert_eq!((of_a.type_, of_b.type_), (ZX_OBJ_TYPE_CHANNEL, ZX_OBJ_TYPE_CHANNEL));
        assert_eq!((of_a.rights, of_b.rights), (ZX_DEFAULT_CHANNEL_RIGHTS, ZX_DEFAULT_CHANNEL_RIGHTS));
        close_both(side, a, b);
    }

    /// Covers Fuchsia's test case ChannelTest.IsWriteableByDefault.
    fn is_writable_by_default(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!((signals(a), side.signals(b)), (ZX_CHANNEL_WRITABLE, ZX_CHANNEL_WRITABLE));
        close_both(side, a, b);
    }

    /// Covers Fuchsia's test case ChannelTest.WriteToEndpointCausesOtherToBecomeReadable.
    fn a_write_makes_the_other_end_readable(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(write(a, b"x", &[]), ZX_OK);
        assert_eq!(side.await_signal(b, ZX_CHANNEL_READABLE), BOTH);
        assert_eq!(signals(a), ZX_CHANNEL_WRITABLE);
        assert_eq!(side.read(b).bytes, b"x");
        assert_eq!(side.signals(b), ZX_CHANNEL_WRITABLE);
        close_both(side, a, b);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.WaitManyIsSignaledOnAnyElementWrite,
    /// ChannelTest.WaitManyIsSignaledForBothWrites.
    fn wait_many_tells_which_became_readable(side: &Side) {
        let ((a, b), (c, d)) = (ends(side), ends(side));
        let mut items = [a, c].map(|handle| zx_wait_item_t { handle, waitfor: ZX_CHANNEL_READABLE, pending: 0 });
        assert_eq!(side.write(d, b"x", &[]), ZX_OK);
        // SAFETY: the pointer and the length are those of an array.
        assert_eq!(unsafe { zx_object_wait_many(items.as_mut_ptr(), 2, deadline()) }, ZX_OK);
        assert_eq!(items.map(|item| item.pending), [ZX_CHANNEL_WRITABLE, BOTH]);
        assert_eq!(side.write(b, b"x", &[]), ZX_OK);
        assert_eq!(wait(a, ZX_CHANNEL_READABLE, deadline()).0, ZX_OK);
        // SAFETY: the pointer and the length are those of an array.
        assert_eq!(unsafe { zx_object_wait_many(items.as_mut_ptr(), 2, deadline()) }, ZX_OK);
        assert_eq!(items.map(|item| item.pending), [BOTH, BOTH]);
        close_both(side, a, b);
        close_both(side, c, d);
    }

    /// Covers Fuchsia's test case ChannelTest.ReadWhenEmptyReturnsShouldWait.
    fn reading_an_empty_one_should_wait(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!((read(a).status, side.read(b).status), (ZX_ERR_SHOULD_WAIT, ZX_ERR_SHOULD_WAIT));
        close_both(side, a, b);
    }

    /// Covers Fuchsia's test case ChannelTest.ReadRemainingMessagesWhenPeerIsClosed.
    fn what_was_written_before_closing_is_read(side: &Side) {
        let (a, b) = ends(side);
        for number in 0..4u8 {
            assert_eq!(side.write(b, &[number], &[]), ZX_OK);
        }
        assert_eq!(side.close(b), ZX_OK);
        let closed = ZX_CHANNEL_READABLE | ZX_CHANNEL_PEER_CLOSED;
        assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, deadline()), (ZX_OK, closed));
        for number in 0..4u8 {
            assert_eq!(signals(a), closed);
            assert_eq!(read(a).bytes, [number]);
        }
        assert_eq!(read(a).status, ZX_ERR_PEER_CLOSED);
        assert_eq!(signals(a), ZX_CHANNEL_PEER_CLOSED);
        assert_eq!(write(a, b"x", &[]), ZX_ERR_PEER_CLOSED);
        assert_eq!(close(a), ZX_OK);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.CloseSignalsPeerClosed, ChannelTest.CloseClearsSignalsWriteable.
    fn closing_is_seen_at_the_other_end(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(side.close(b), ZX_OK);
        assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, deadline()), (ZX_OK, ZX_CHANNEL_PEER_CLOSED));
        assert_eq!(close(a), ZX_OK);
        let (a, b) = ends(side);
        assert_eq!(close(a), ZX_OK);
        assert_eq!(side.await_signal(b, ZX_CHANNEL_PEER_CLOSED), ZX_CHANNEL_PEER_CLOSED);
        assert_eq!(side.close(b), ZX_OK);
    }

    /// Covers Fuchsia's test case ChannelTest.OnFlightHandlesSignalledWhenPeerIsClosed.
    fn handles_in_unread_messages_are_closed_with_the_reader(side: &Side) {
        let (a, b) = ends(side);
        let (witness, sent) = eventpair();
        let (inner, inner_sent) = channel();
        assert_eq!(write(a, b"", &[sent]), ZX_OK);
        assert_eq!(write(a, b"", &[inner_sent]), ZX_OK);
        assert_eq!(signals(witness), 0);
        assert_eq!(side.close(b), ZX_OK);
        assert!(is_closed_soon(witness));
        assert_eq!(wait(inner, ZX_CHANNEL_PEER_CLOSED, deadline()).0, ZX_OK);
        assert_eq!((close(a), close(witness), close(inner)), (ZX_OK, ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: ChannelTest.ReadMayDiscardWithNullBuffersReturnsBufferTooSmall,
    /// ChannelTest.ReadMayDiscardWithNullBufferDiscardsData, ChannelTest.ReadMayDiscardWithNullBufferDiscardHandles,
    /// ChannelTest.ReadMayDiscardWithSmallerBufferReturnsBufferTooSmall,
    /// ChannelTest.ReadEtcMayDiscardDiscardsHandlesAndClosesThemOnBufferTooSmall.
    fn what_does_not_fit_is_kept_or_discarded(side: &Side) {
        let (a, b) = ends(side);
        // Number of bytes and of handles sent, and the room for bytes and for handles.
        for (bytes, handles, room) in [(4, 0, (0, 0)), (4, 0, (3, 0)), (0, 2, (0, 0)), (0, 2, (9, 1)), (5, 1, (0, 0)), (5, 2, (5, 1)), (5, 1, (4, 1))] {
            let (witnesses, sent): (Vec<_>, Vec<_>) = (0..handles).map(|_| eventpair()).unzip();
            assert_eq!(write(a, &vec![7; bytes], &sent), ZX_OK);
            side.await_signal(b, ZX_CHANNEL_READABLE);
            let sizes = (bytes as u32, handles as u32);
            let kept = side.read_with(b, 0, room.0, room.1);
            assert_eq!((kept.status, kept.actual), (ZX_ERR_BUFFER_TOO_SMALL, sizes));
            let kept = side.read_with(b, 0, room.0, room.1);
            assert_eq!((kept.status, kept.actual), (ZX_ERR_BUFFER_TOO_SMALL, sizes));
            let gone = side.read_with(b, ZX_CHANNEL_READ_MAY_DISCARD, room.0, room.1);
            assert_eq!((gone.status, gone.actual), (ZX_ERR_BUFFER_TOO_SMALL, sizes));
            assert_eq!(side.read(b).status, ZX_ERR_SHOULD_WAIT);
            for witness in witnesses {
                assert!(is_closed_soon(witness));
                assert_eq!(close(witness), ZX_OK);
            }
        }
        close_both(side, a, b);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.WriteSelfHandleReturnsNotSupported,
    /// ChannelWriteEtcTest.TransferSelfFailure, ChannelWriteEtcTest.ChannelHandleInTransferredHandlesShouldFail.
    fn an_end_is_not_written_into_itself(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(write(a, b"x", &[a]), ZX_ERR_NOT_SUPPORTED);
        assert!(!is_valid(a));
        assert_eq!(side.await_signal(b, ZX_CHANNEL_PEER_CLOSED), ZX_CHANNEL_PEER_CLOSED);
        assert_eq!(side.close(b), ZX_OK);
        let (a, b) = ends(side);
        let mut self_moved = [moved(a)];
        assert_eq!(write_etc(a, b"x", &mut self_moved), ZX_ERR_NOT_SUPPORTED);
        assert_eq!(self_moved[0].result, ZX_ERR_NOT_SUPPORTED);
        assert!(!is_valid(a));
        side.await_signal(b, ZX_CHANNEL_PEER_CLOSED);
        assert_eq!(side.close(b), ZX_OK);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.ReadEtcHandleInfoValidation,
    /// ChannelTest.ReadEtcPopulatesAllHandleInfoFieldsCorrectly, HandleInfoTest.RelatedKoid.
    fn handles_of_every_kind_arrive_with_type_rights_and_number(side: &Side) {
        let (a, b) = ends(side);
        let (one, other) = channel();
        let (left, right) = eventpair();
        let mut file = 0;
        let null = std::os::fd::IntoRawFd::into_raw_fd(std::fs::File::open("/dev/null").unwrap());
        // SAFETY: the pointer leads to a local variable.
        assert_eq!(unsafe { strait_zx_handle_from_fd(null, &mut file) }, ZX_OK);
        let sent = [one, left, event(), port(), vmo(4096), file];
        let before: Vec<_> = sent.iter().map(|handle| info(*handle).1).collect();
        assert_eq!(write(a, b"all", &sent), ZX_OK);
        assert!(sent.iter().all(|handle| !is_valid(*handle)));
        let read = side.await_read(b);
        assert_eq!((read.status, read.bytes.as_slice()), (ZX_OK, b"all".as_slice()));
        let types = [
            ZX_OBJ_TYPE_CHANNEL,
            ZX_OBJ_TYPE_EVENTPAIR,
            ZX_OBJ_TYPE_EVENT,
            ZX_OBJ_TYPE_PORT,
            ZX_OBJ_TYPE_VMO,
            STRAIT_ZX_OBJ_TYPE_FD,
        ];
        for ((received, before), type_) in read.handles.iter().zip(before).zip(types) {
            assert_eq!((received.type_, received.rights, received.unused), (type_, before.rights, 0));
            let after = side.info(received.handle).1;
            assert_eq!(
                (after.koid, after.related_koid, after.rights, after.type_),
                (before.koid, before.related_koid, before.rights, before.type_)
            );
            assert_eq!(side.close(received.handle), ZX_OK);
        }
        assert_eq!(wait(other, ZX_CHANNEL_PEER_CLOSED, deadline()).0, ZX_OK);
        assert!(is_closed_soon(right));
        assert_eq!((close(other), close(right)), (ZX_OK, ZX_OK));
        close_both(side, a, b);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.ReadAndWriteWithMultipleSizes, message_packet.create,
    /// message_packet.create_zero, message_packet.create_void_star.
    fn messages_of_many_sizes_survive(side: &Side) {
        let (a, b) = ends(side);
        let mut state = 12345u64;
        let mut random = |limit: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % limit
        };
        let mut sizes: Vec<(usize, usize)> = (0..40).map(|_| (random(65537) as usize, random(9) as usize)).collect();
        sizes.extend([(62234, 64), (0, 0), (65536, 64), (1, 0), (0, 1)]);
        for (bytes, handles) in sizes {
            let content: Vec<u8> = (0..bytes).map(|at| (at * 7 + bytes) as u8).collect();
            let (witnesses, sent): (Vec<_>, Vec<_>) = (0..handles).map(|_| channel()).unzip();
            assert_eq!(write(a, &content, &sent), ZX_OK);
            let read = side.await_read(b);
            assert_eq!((read.status, read.actual), (ZX_OK, (bytes as u32, handles as u32)));
            assert!(read.bytes == content);
            for (witness, received) in witnesses.iter().zip(&read.handles) {
                // The handles arrived in the order of sending.
                assert_eq!(info(*witness).1.related_koid, side.info(received.handle).1.koid);
                assert_eq!(side.close(received.handle), ZX_OK);
                assert_eq!(close(*witness), ZX_OK);
            }
        }
        close_both(side, a, b);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.WriteIovecUnboundedSuccess, message_packet.create_iovec_bounded,
    /// message_packet.create_iovec_unbounded.
    fn regions_are_one_message(side: &Side) {
        let (a, b) = ends(side);
        let bytes: Vec<u8> = (0..100).collect();
        for count in [0usize, 1, 16, 17, 20, 32, 64, 65, 66, 67, 100] {
            let regions: Vec<_> = (0..count).map(|at| region(&bytes[at..=at])).collect();
            assert_eq!(write_iovec(a, &regions), ZX_OK);
            assert_eq!(side.await_read(b).bytes, &bytes[..count], "{count} regions");
        }
        // No region, a repeated region, overlapping regions, and unaligned regions.
        let none = zx_channel_iovec_t { buffer: null(), capacity: 0, reserved: 0 };
        let regions = [none, region(&bytes[3..6]), none, region(&bytes[3..6]), region(&bytes[1..5]), none];
        assert_eq!(write_iovec(a, &regions), ZX_OK);
        assert_eq!(side.await_read(b).bytes, [3, 4, 5, 3, 4, 5, 1, 2, 3, 4]);
        // The maximum number of regions, and the maximum number of bytes.
        let regions = vec![region(&bytes[8..16]); 8192];
        assert_eq!(write_iovec(a, &regions), ZX_OK);
        let read = side.await_read(b);
        assert!(read.bytes.len() == 65536 && read.bytes.chunks(8).all(|chunk| chunk == &bytes[8..16]));
        close_both(side, a, b);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.ReadZeroByteZeroHandleMessageSucceeds,
    /// ChannelWriteEtcTest.HandleCountAndDataCountBothZeroShouldSucceed.
    fn a_message_of_nothing_is_one(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(write(a, b"", &[]), ZX_OK);
        assert_eq!(write_etc(a, b"", &mut []), ZX_OK);
        for _ in 0..2 {
            side.await_signal(b, ZX_CHANNEL_READABLE);
            let read = side.read_with(b, 0, 0, 0);
            assert_eq!((read.status, read.actual), (ZX_OK, (0, 0)));
        }
        assert_eq!(side.read(b).status, ZX_ERR_SHOULD_WAIT);
        close_both(side, a, b);
    }

    /// Covers these test cases of Fuchsia: ChannelTest.WriteToPeerClosedConsumesMovedHandles,
    /// ChannelWriteEtcTest.OppositeChannelEndClosedShouldFail.
    fn writing_to_a_closed_end_consumes_handles(side: &Side) {
        let (a, b) = ends(side);
        assert_eq!(side.close(b), ZX_OK);
        wait(a, ZX_CHANNEL_PEER_CLOSED, deadline());
        let (sent, kept) = (event(), event());
        assert_eq!(write_etc(a, b"x", &mut [moved(sent), copied(kept)]), ZX_ERR_PEER_CLOSED);
        assert_eq!((is_valid(sent), is_valid(kept)), (false, true));
        let (witness, sent) = channel();
        assert_eq!(write(a, b"x", &[sent]), ZX_ERR_PEER_CLOSED);
        assert!(!is_valid(sent));
        assert_eq!(wait(witness, ZX_CHANNEL_PEER_CLOSED, deadline()).0, ZX_OK);
        assert_eq!((close(a), close(kept), close(witness)), (ZX_OK, ZX_OK, ZX_OK));
    }

    /// Covers these test cases of Fuchsia: ChannelWriteEtcTest.MoveSuccess, ChannelWriteEtcTest.DuplicateSuccess,
    /// ChannelWriteEtcTest.ReducedRightsSuccess, ChannelWriteEtcTest.RemoveAllHandleRightsShouldSucceed,
    /// ChannelWriteEtcTest.RemovingSomeHandleRightsShouldSucceed,
    /// ChannelWriteEtcTest.SameHandleRightsBitsShouldSucceed, ChannelWriteEtcTest.SameHandleRightsFlagShouldSucceed,
    /// ChannelWriteEtcTest.SentHandleReferrsToSameObject,
    /// ChannelWriteEtcTest.DuplicateHandlesInTransferredHandlesShouldSucceed.
    fn handles_are_moved_or_duplicated_with_the_rights_that_are_asked_for(side: &Side) {
        let (a, b) = ends(side);
        let all = ZX_DEFAULT_EVENT_RIGHTS;
        let some = ZX_RIGHT_TRANSFER | ZX_RIGHT_WAIT;
        for (operation, asked, got) in [
            (ZX_HANDLE_OP_MOVE, ZX_RIGHT_SAME_RIGHTS, all),
            (ZX_HANDLE_OP_MOVE, all, all),
            (ZX_HANDLE_OP_MOVE, some, some),
            (ZX_HANDLE_OP_MOVE, 0, 0),
            (ZX_HANDLE_OP_DUPLICATE, ZX_RIGHT_SAME_RIGHTS, all),
            (ZX_HANDLE_OP_DUPLICATE, some, some),
            (ZX_HANDLE_OP_DUPLICATE, 0, 0),
        ] {
            let handle = event();
            let koid = info(handle).1.koid;
            let type_ = ZX_OBJ_TYPE_EVENT;
            let disposition = zx_handle_disposition_t { operation, handle, type_, rights: asked, result: 77 };
            let count = if operation == ZX_HANDLE_OP_DUPLICATE { 2 } else { 1 };
            let mut dispositions = vec![disposition; count];
            assert_eq!(write_etc(a, b"x", &mut dispositions), ZX_OK);
            assert!(dispositions.iter().all(|disposition| disposition.result == 77), "a successful call changed a result");
            assert_eq!(is_valid(handle), operation == ZX_HANDLE_OP_DUPLICATE);
            let read = side.await_read(b);
            assert_eq!(read.handles.len(), count);
            for received in read.handles {
                assert_eq!((received.rights, received.type_), (got, ZX_OBJ_TYPE_EVENT));
                assert_eq!(side.info(received.handle).1.koid, koid);
                assert_eq!(side.close(received.handle), ZX_OK);
            }
            if count == 2 {
                assert_eq!(close(handle), ZX_OK);
            }
        }
        close_both(side, a, b);
    }

    /// Covers Fuchsia's test case ChannelWriteEtcTest.FailureDoesNotResultInReceivedPacket.
    fn a_write_that_fails_queues_nothing(side: &Side) {
        let (a, b) = ends(side);
        let good = event();
        assert_eq!(write_etc(a, b"x", &mut [moved(good), moved(0)]), ZX_ERR_BAD_HANDLE);
        assert!(!is_valid(good));
        assert_eq!(write(a, b"next", &[]), ZX_OK);
        assert_eq!(side.await_read(b).bytes, b"next");
        close_both(side, a, b);
    }

    /// Covers Fuchsia's test case HandleTransferTest.OverChannelThenRead.
    fn messages_before_and_after_a_transfer_are_in_order(side: &Side) {
        let (carrier, receiver) = ends(side);
        let (a, b) = channel();
        assert_eq!(write(a, b"0", &[]), ZX_OK);
        assert_eq!(write(a, b"1", &[]), ZX_OK);
        // A wait moves messages out of the ring, and they travel with the end all the same.
        let port = port();
        assert_eq!(zx_object_wait_async(b, port, 1, ZX_CHANNEL_PEER_CLOSED, 0), ZX_OK);
        assert_eq!(write(carrier, b"end", &[b]), ZX_OK);
        assert_eq!(port_wait(port, 0).0, ZX_ERR_TIMED_OUT);
        assert_eq!(close(port), ZX_OK);
        assert_eq!(write(a, b"2", &[]), ZX_OK);
        let b = side.await_read(receiver).handles[0].handle;
        for text in ["0", "1", "2"] {
            assert_eq!(side.await_read(b).bytes, text.as_bytes());
        }
        close_both(side, a, b);
        close_both(side, carrier, receiver);
    }

    /// Shows that an end travels to another process and back, with the unread messages, and that answers come back.
    fn an_end_goes_there_and_comes_back(side: &Side) {
        let (a, mut b) = ends(side);
        for turn in 0..20u8 {
            assert_eq!(write(a, &[turn, 0], &[]), ZX_OK);
            assert_eq!(write(a, &[turn, 1], &[]), ZX_OK);
            assert_eq!(side.await_read(b).bytes, [turn, 0]);
            let back = side.give(b);
            assert_eq!(await_read(back).bytes, [turn, 1]);
            assert_eq!(write(back, &[turn], &[]), ZX_OK);
            assert_eq!(await_read(a).bytes, [turn]);
            b = side.adopt(back);
            assert_eq!(side.write(b, b"on", &[]), ZX_OK);
            assert_eq!(await_read(a).bytes, b"on");
        }
        close_both(side, a, b);
    }

    /// Shows that the rights of a received handle are enforced in the receiving process.
    fn rights_hold_where_a_handle_arrives(side: &Side) {
        let (a, b) = ends(side);
        let (one, other) = channel();
        let rights = ZX_RIGHT_READ | ZX_RIGHT_WAIT;
        assert_eq!(write_etc(a, b"", &mut [zx_handle_disposition_t { rights, ..moved(one) }]), ZX_OK);
        let received = side.await_read(b).handles[0].handle;
        assert_eq!(side.write(received, b"x", &[]), ZX_ERR_ACCESS_DENIED);
        assert_eq!(write(other, b"y", &[]), ZX_OK);
        assert_eq!(side.await_read(received).bytes, b"y");
        assert_eq!(side.write(b, b"", &[received]), ZX_ERR_ACCESS_DENIED);
        assert_eq!(side.info(received).0, ZX_ERR_BAD_HANDLE, "the handle was not consumed");
        assert_eq!(wait(other, ZX_CHANNEL_PEER_CLOSED, deadline()).0, ZX_OK);
        assert_eq!(close(other), ZX_OK);
        close_both(side, a, b);
    }

    /// Shows that a channel takes more messages than a writer on Zircon could queue without being killed.
    fn thousands_of_messages_find_room(side: &Side) {
        let (a, b) = ends(side);
        let content = vec![9u8; 4096];
        for _ in 0..3500 {
            assert_eq!(write(a, &content, &[]), ZX_OK);
        }
        for _ in 0..3500 {
            assert_eq!(side.await_read(b).bytes.len(), 4096);
        }
        assert_eq!(side.read(b).status, ZX_ERR_SHOULD_WAIT);
        close_both(side, a, b);
    }

    /// Shows that a write without room has no effect, and that the end is writable again once there is room.
    fn without_room_nothing_has_happened(side: &Side) {
        let (a, b) = ends(side);
        // Between processes the descriptors of the events fill the channel; within one process only the bytes count.
        let mut written = 0;
        let (last, ours) = loop {
            let sent = vec![event()];
            match write(a, &[7; 60_000], &sent) {
                ZX_OK => written += 1,
                status => break (status, sent),
            }
            assert!(written < 10_000);
        };
        assert_eq!(last, ZX_ERR_SHOULD_WAIT);
        assert!(ours.iter().all(|handle| is_valid(*handle)), "the caller lost a handle");
        for _ in 0..written {
            for received in side.await_read(b).handles {
                assert_eq!(side.close(received.handle), ZX_OK);
            }
        }
        let mut tries = 0;
        while write(a, b"again", &ours) == ZX_ERR_SHOULD_WAIT {
            tries += 1;
            assert!(tries < 100_000);
            std::thread::yield_now();
        }
        let read = side.await_read(b);
        assert_eq!((read.bytes.as_slice(), read.handles.len()), (b"again".as_slice(), 1));
        for received in read.handles {
            assert_eq!(side.close(received.handle), ZX_OK);
        }
        close_both(side, a, b);
    }
}

/// Covers Fuchsia's test case ChannelTest.CreateInvalidOptionsReturnsInvalidArgs.
#[test]
fn create_takes_no_options() {
    let (mut a, mut b) = (1, 2);
    for options in [1, 2, u32::MAX] {
        // SAFETY: the pointers lead to local variables.
        assert_eq!(unsafe { zx_channel_create(options, &mut a, &mut b) }, ZX_ERR_INVALID_ARGS);
    }
    assert_eq!((a, b), (1, 2));
}

/// Covers these test cases of Fuchsia: ChannelTest.ReadInvalidOptionsReturnsNotSupported,
/// ChannelTest.ReadFromWrongObjectTypeReturnsWrongType.
#[test]
fn a_read_that_cannot_be_leaves_the_message() {
    let (a, b) = channel();
    assert_eq!(write(a, b"kept", &[]), ZX_OK);
    for options in [2, 4, 1 << 31, 3] {
        assert_eq!(read_with(b, options, 10, 0).status, ZX_ERR_NOT_SUPPORTED);
    }
    let event = event();
    assert_eq!(read_with(event, 0, 10, 0).status, ZX_ERR_WRONG_TYPE);
    assert_eq!(read_with(event, 2, 10, 0).status, ZX_ERR_WRONG_TYPE, "the handle is not checked first");
    for bad in [0, 1, 2, 3, u32::MAX, b ^ 0x100] {
        assert_eq!(read_with(bad, 2, 10, 0).status, ZX_ERR_BAD_HANDLE);
    }
    let writer = replace(b, ZX_DEFAULT_CHANNEL_RIGHTS & !ZX_RIGHT_READ).unwrap();
    assert_eq!(read_with(writer, 2, 10, 0).status, ZX_ERR_ACCESS_DENIED);
    assert_eq!((close(a), close(writer), close(event)), (ZX_OK, ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: ChannelTest.ReadNullBytesWithNonZeroSizeReturnsInvalidArgs,
/// ChannelTest.ReadNullHandlesWithNonZeroCountReturnsInvalidArgs, ChannelTest.ReadEtcNullHandlesReturnsInvalidArgs.
#[test]
fn reading_into_nothing_loses_the_message_and_no_handle() {
    let (a, b) = channel();
    let mut room = [0u8; 8];
    for (bytes_are_null, etc) in [(true, false), (false, false), (true, true), (false, true)] {
        let (witness, sent) = eventpair();
        assert_eq!(write(a, b"payload", &[sent]), ZX_OK);
        let bytes = if bytes_are_null { null_mut() } else { room.as_mut_ptr().cast() };
        let mut handle = [0u32; 4];
        let handles = if bytes_are_null { handle.as_mut_ptr() } else { null_mut() };
        // SAFETY: each pointer is null or valid.
        let status = unsafe {
            if etc {
                zx_channel_read_etc(b, 0, bytes, handles.cast(), 8, 1, null_mut(), null_mut())
            } else {
                zx_channel_read(b, 0, bytes, handles, 8, 1, null_mut(), null_mut())
            }
        };
        assert_eq!(status, ZX_ERR_INVALID_ARGS);
        assert_eq!(read(b).status, ZX_ERR_SHOULD_WAIT);
        assert!(is_closed_soon(witness));
        assert_eq!(close(witness), ZX_OK);
    }
    // A null pointer is permitted where nothing is to be written.
    assert_eq!(write(a, b"", &[]), ZX_OK);
    // SAFETY: all pointers are null.
    assert_eq!(unsafe { zx_channel_read(b, 0, null_mut(), null_mut(), 8, 8, null_mut(), null_mut()) }, ZX_OK);
    assert_eq!((close(a), close(b)), (ZX_OK, ZX_OK));
}

/// Covers these test cases of Fuchsia: HandleTransferTest.CancelsWait: on Linux a wait ends when the end is written,
/// not when it is read.
#[test]
fn a_wait_for_an_end_that_is_sent_away_is_canceled() {
    let (carrier, receiver) = channel();
    let (a, b) = channel();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| wait(b, ZX_CHANNEL_READABLE, deadline()));
        // The result is the same whether the thread waits already or not, except for a handle that is gone.
        std::thread::yield_now();
        assert_eq!(write(carrier, b"", &[b]), ZX_OK);
        let (status, observed) = waits.join().unwrap();
        match status {
            ZX_ERR_CANCELED => assert_ne!(observed & ZX_SIGNAL_HANDLE_CLOSED, 0),
            other => assert_eq!(other, ZX_ERR_BAD_HANDLE),
        }
    });
    assert_eq!((close(carrier), close(receiver), close(a)), (ZX_OK, ZX_OK, ZX_OK));
}

/// Shows that an end gets `PEER_CLOSED` when the process of the other end is killed.
#[test]
fn the_death_of_a_process_closes_its_ends() {
    let mut side = Side::there();
    let (a, b) = ends(&side);
    let (witness, sent) = eventpair();
    side.adopt(sent);
    assert_eq!(side.write(b, b"last words", &[]), ZX_OK);
    side.kill();
    assert_eq!(wait(a, ZX_CHANNEL_PEER_CLOSED, deadline()).0, ZX_OK);
    assert_eq!(read(a).bytes, b"last words");
    assert_eq!(read(a).status, ZX_ERR_PEER_CLOSED);
    assert!(is_closed_soon(witness));
    assert_eq!((close(a), close(witness)), (ZX_OK, ZX_OK));
}

/// Shows that a malformed message ends the channel without a panic, and closes the handles of the message.
#[test]
fn a_peer_that_breaks_the_rules_is_gone() {
    use strait::{Channel, Deadline, Outgoing};
    let fd = || std::fs::File::open("/dev/null").unwrap();
    let record = |type_: u32, rights: u32| {
        let mut record = [type_.to_le_bytes(), rights.to_le_bytes()].concat();
        record.resize(32, 0);
        record
    };
    let (event_rights, fd_rights) = (ZX_DEFAULT_EVENT_RIGHTS, STRAIT_ZX_DEFAULT_FD_RIGHTS);
    let (far, _) = Channel::pair().unwrap();
    let carrier = |cargo: usize| {
        let (into, out) = Channel::pair().unwrap();
        into.send(Outgoing::new(b"").handles((0..cargo).map(|_| fd().into()))).unwrap();
        out
    };
    let end = || strait::Handle::from(Channel::pair().unwrap().0);
    let signals = |set: u32, more: u8| [&[0; 4], set.to_le_bytes().as_slice(), &[more; 23]].concat();
    let cases: Vec<(&str, Vec<u8>, Vec<strait::Handle>)> = vec![
        ("no record", b"x".to_vec(), vec![fd().into()]),
        ("no bytes", Vec::new(), vec![fd().into()]),
        ("half a record", vec![0; 16], vec![fd().into()]),
        ("one record for two", record(63, 0), vec![fd().into(), fd().into()]),
        ("an unknown type", record(1, 0), vec![fd().into()]),
        ("a right that there is not", record(63, fd_rights | ZX_RIGHT_WAIT), vec![fd().into()]),
        ("an end that is a descriptor", record(ZX_OBJ_TYPE_CHANNEL, 0), vec![fd().into()]),
        ("a descriptor that is an end", record(63, 0), vec![far.into()]),
        ("memory that is none", record(ZX_OBJ_TYPE_VMO, 0), vec![fd().into()]),
        ("an event of nothing", record(ZX_OBJ_TYPE_EVENT, event_rights), vec![carrier(0).into()]),
        ("an event of files", record(ZX_OBJ_TYPE_EVENT, event_rights), vec![carrier(3).into()]),
        ("an eventpair of files", record(ZX_OBJ_TYPE_EVENTPAIR, event_rights), vec![carrier(4).into()]),
        ("a port of files", record(ZX_OBJ_TYPE_PORT, 0), vec![carrier(2).into()]),
        ("too many bytes", vec![0; 70_000], Vec::new()),
        ("signals that are not the program's", signals(ZX_CHANNEL_READABLE, 0), vec![end()]),
        ("signals and something else", signals(1 << 24, 1), vec![end()]),
        ("signals with a descriptor", signals(1 << 24, 0), vec![fd().into()]),
    ];
    for (number, (name, bytes, handles)) in cases.into_iter().enumerate() {
        let (theirs, ours) = Channel::pair().unwrap();
        let ours = strait_zx::handle_from_channel(ours).unwrap();
        theirs.send_by(Outgoing::new(&bytes).handles(handles), Deadline::NEVER).unwrap();
        // A wait or a read takes the message out of the ring, with the same result.
        if number % 2 == 0 {
            wait(ours, ZX_CHANNEL_PEER_CLOSED, 0);
        }
        assert_eq!(read(ours).status, ZX_ERR_PEER_CLOSED, "{name}");
        assert_eq!(close(ours), ZX_OK);
    }
}

/// Shows that an arrived end with the numbers of an end of this process does not take part in that end's channel.
#[test]
fn a_peer_that_chooses_numbers_changes_no_other_channel() {
    use strait::{Channel, Outgoing};
    let (a, b) = channel();
    let (of_a, of_b) = (info(a).1.koid, info(b).1.koid);
    let (peer, end) = strait_zx::channel_options().pair().unwrap();
    let end = strait_zx::handle_from_channel(end).unwrap();
    let arrives = |koid: zx_koid_t, related: zx_koid_t| {
        let (kept, sent) = Channel::pair().unwrap();
        let mut record = [ZX_OBJ_TYPE_CHANNEL.to_le_bytes(), ZX_DEFAULT_CHANNEL_RIGHTS.to_le_bytes()].concat();
        record.extend_from_slice(&koid.to_le_bytes());
        record.extend_from_slice(&related.to_le_bytes());
        record.resize(32, 0);
        peer.send(Outgoing::new(&record).handle(sent)).unwrap();
        let read = await_read(end);
        assert_eq!(read.status, ZX_OK);
        (kept, read.handles[0].handle)
    };
    let (_far, like_b) = arrives(of_b, of_a);
    assert_eq!(zx_object_signal_peer(a, 0, ZX_USER_SIGNAL_0), ZX_OK);
    let (_far, like_a) = arrives(of_a, of_b);
    assert_eq!(zx_object_signal_peer(like_a, 0, ZX_USER_SIGNAL_7), ZX_OK);
    let expected = (ZX_CHANNEL_WRITABLE | ZX_USER_SIGNAL_0, ZX_CHANNEL_WRITABLE);
    assert_eq!((signals(b), signals(like_b)), expected);
    for handle in [like_a, like_b, end, a, b] {
        assert_eq!(close(handle), ZX_OK);
    }
}
